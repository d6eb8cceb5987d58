"""A record: what was measured or checked, one of twelve kinds. This module alone states its form: the keys with their types, what each kind
must hold, what is kept of what is known when it is made, and how its times are read. Pages, `tune`, proofs and comparisons take a `Record`;
a file is lines of them (rooftop.lab.records.form), written and read by rooftop.lab.records.store.

Numbers have six significant digits; whole numbers are counts and have all. Whatever else a record holds is left as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar, overload

from rooftop.core.devices import slug
from rooftop.core.spec import Work
from rooftop.lab.records import values as v
from rooftop.lab.records.values import Check

Table = dict[str, Any]  # of JSON
T = TypeVar("T")


@dataclass(frozen=True)
class Clock:
    """Seconds a call: the median and its 95 % interval. `duty`: normal, burst or sustained."""

    median: float
    low: float
    high: float
    duty: str = "normal"


@dataclass(frozen=True)
class Versus:
    """How fast a subject is beside another: `speed` above 1 is faster than the other. The interval is that of paired samples; None
    where the two were timed in the same run, but not side by side."""

    name: str
    speed: float
    interval: tuple[float, float] | None
    verdict: str  # faster, slower, same, unresolved; "not paired" without an interval

    @property
    def label(self) -> str:
        return self.name.removeprefix("peer:")


@dataclass(frozen=True)
class Error:
    """`share`: the worst error as a multiple of what is allowed."""

    ok: bool = True
    share: float | None = None


@dataclass(frozen=True)
class Key(Generic[T]):
    """A key of a record, read as an attribute: what may stand there, what it is where there is no such key, what is made of it."""

    check: Check
    absent: T
    made: Callable[[Any], T] | None = None
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        object.__setattr__(self, "name", name)

    @overload
    def __get__(self, record: None, owner: type) -> Key[T]: ...
    @overload
    def __get__(self, record: Record, owner: type) -> T: ...
    def __get__(self, record: Record | None, owner: type) -> Key[T] | T:
        if record is None:
            return self
        if self.name not in record.table:
            return self.absent
        found = record.table[self.name]
        if self.made is None:
            return found
        return record.__dict__.setdefault(self.name, self.made(found))


def _card(value: Any, at: str) -> None:
    v.name(value, at)
    slug(value)  # the name of its folder


_DEVICE = v.keys({"name": _card}, dict.fromkeys(("arch", "sms", "l2_bytes", "shared_per_block", "memory_bytes"), v.count))
_WORK = v.keys({"read": v.whole, "write": v.whole}, {"ops": v.table_of(v.number)})
_CLOCKS = v.table_of(v.keys({"median": v.positive, "low": v.number, "high": v.number}))
_VERSUS = v.table_of(v.keys({"ratio": v.positive, "low": v.positive, "high": v.positive, "verdict": v.text}))
_FIGURES = dict.fromkeys(("max", "rms", "allowed_max", "allowed_rms"), v.number_or_null)
_ERROR = v.keys({"ok": v.flag}, _FIGURES | dict.fromkeys(("share", "max_share", "rms_share"), v.number))
READINGS = ("sm_mhz", "memory_mhz", "power_w", "temperature_c")
FIGURES = ("max", "rms", "allowed_max", "allowed_rms")  # of an error, and what is allowed
SHARES = ("max_share", "rms_share")
_CLOCK = ("name", "calls", "replays")  # of a clock: the subject once more, and how a sample was put together
_PAIR = ("ratio", "low", "high", "verdict")  # of a pair; noise and number of samples are its clock's


def _versus(ratios: Mapping[str, Any]) -> tuple[Versus, ...]:
    """Slowest first, from ratios of times, this subject's over the other's, to ratios of speeds."""
    entries = (Versus(name, 1 / p["ratio"], (1 / p["high"], 1 / p["low"]), p["verdict"]) for name, p in ratios.items())
    return tuple(sorted(entries, key=lambda one: one.speed))


def _clocks(table: Mapping[str, Any]) -> Mapping[str, Clock]:
    return {name: Clock(c["median"], c["low"], c["high"], c.get("duty", "normal")) for name, c in table.items() if c}


def _error(table: Mapping[str, Any]) -> Error:
    return Error(table.get("ok", True), max((table[k] for k in ("share", *SHARES) if k in table), default=None))


def _work(table: Mapping[str, Any]) -> Work:
    return Work(table["read"], table["write"], dict(table.get("ops", {})))


@dataclass(frozen=True, eq=False)
class Record(Mapping[str, Any]):
    """One record: its table, as JSON holds it, and the keys that more than one kind may hold as attributes. Keys of one kind alone are
    read from the table."""

    table: Table

    kind = Key(v.text, "")
    at = Key(v.time, "")  # UTC
    run = Key(v.name, "")
    op = Key(v.name, "")
    case = Key(v.name, "")
    subject = Key(v.name, "")  # an implementation's name, a rung's (`softmax_cuda/03_online`), `peer:torch`, or what a clock timed
    device = Key[Mapping[str, Any]](_DEVICE, {})
    versions = Key[Mapping[str, str]](v.keys({}), {})  # of the software, peers and driver
    host = Key[Mapping[str, Any]](v.keys({}), {})  # the CPU
    # what made it (rooftop.lab.records.identity); if it is not the tree's, the record is stale
    digest = Key(v.name, "")
    source = Key(v.name, "")
    machine = Key(v.name, "")
    config = Key[Mapping[str, Any]](v.keys({}), {})
    config_from = Key(v.text, "")
    path = Key[list[str]](v.list_of(v.text), [])  # the kernels that were launched
    backend = Key(v.text, "")
    work = Key(_WORK, Work(0, 0), _work)
    # kernel, cold, hot, host; sustained: the kernel clock of that duty. Beside the interval n, noise, duty
    clocks = Key[Mapping[str, Clock]](_CLOCKS, {}, _clocks)
    # of peers, plain copies, and the rung before: the paired ratio of times on the kernel clock
    versus = Key[tuple[Versus, ...]](_VERSUS, (), _versus)
    sustained_versus = Key[tuple[Versus, ...]](_VERSUS, (), _versus)
    memory = Key[int | None](v.whole_or_null, None)  # bytes that one eager call has allocated at once at most, inputs apart
    # `share`; of what is timed or wrong also `max`, `rms` against float64, and what is allowed
    error = Key(_ERROR, Error(), _error)
    predict = Key[Mapping[str, float]](v.table_of(v.number), {})  # the head's prediction as it then stood
    counters = Key[Mapping[str, float]](v.table_of(v.number), {})
    sensors = Key[Mapping[str, Any]](v.keys({}), {})  # each before and after; what held the clocks back
    rate = Key(v.text, "")

    def __getitem__(self, key: str) -> Any:
        return self.table[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def __eq__(self, other: object) -> bool:
        return bool(self.table == (other.table if isinstance(other, Record) else other))

    @property
    def card(self) -> str:
        """The name of the device."""
        return str(self.device.get("name", ""))

    def but(self, **changed: Any) -> Record:
        """With other values; None takes a key out."""
        return Record({k: x for k, x in {**self.table, **changed}.items() if x is not None or k not in changed})


def of_kind(records: Iterable[Record], kind: str, subject: str | None = None) -> list[Record]:
    """The records of a kind, and of a subject where one is given, oldest first."""
    return sorted((r for r in records if r.kind == kind and subject in (None, r.subject)), key=lambda r: r.at)


def newest(records: Iterable[Record], kind: str, subject: str) -> Record | None:
    return max((r for r in records if r.kind == kind and r.subject == subject), key=lambda r: r.at, default=None)


# -- what a kind must hold ---------------------------------------------------------------------------------------------

_WHAT: dict[str, Check] = {"op": v.name, "case": v.name, "subject": v.name, "device": _DEVICE}
_OFTEN: dict[str, Check] = {n: key.check for n, key in vars(Record).items() if isinstance(key, Key) and n not in ("kind", "subject", "device")}


def _points(value: Any, at: str) -> None:
    v.list_of(v.keys({"bytes": v.positive, "seconds": v.positive, "by": v.text}), 1)(value, at)
    for i in range(1, len(value)):
        v.must(value[i]["bytes"] > value[i - 1]["bytes"], value[i]["bytes"], f"{at}[{i}].bytes", "above that of the point before it")


_SPREAD = v.keys({"n": v.whole, "median_s": v.positive, "p90_s": v.positive, "max_s": v.positive, "slow": v.whole})  # of first calls
_RATES = v.table_of(v.keys({"ops_per_s": v.positive}))  # by duty
_CEILINGS: dict[str, dict[str, Check]] = {  # of each part
    "memory": {"curves": v.table_of(_points), "launch": v.keys({"graph_node_s": v.positive}), "fma_fp32": _RATES},
    "l2": {"curves": v.table_of(_points)},
    "tensor": {"rates": v.table_of(_RATES)},
}


def _ceiling(value: Any, at: str) -> None:
    part = value.get("subject", "memory")
    v.must(isinstance(part, str) and part in _CEILINGS, part, "subject", f"one of {', '.join(_CEILINGS)}")
    v.keys({"at": v.time, "device": _DEVICE, **_CEILINGS[part]}, {"digest": v.text, "source": v.text, "machine": v.text})(value, at)


_COLUMN = v.list_of(v.positive_or_null)  # of a sweep: a value a point


def _sweep(value: Any, at: str) -> None:
    more = {"named": v.list_of(v.name), "seed": v.whole, "sources": v.table_of(v.text), "machines": v.table_of(v.text)}
    v.keys(_SWEEP, {**_OFTEN, **more, "best": v.list_of(v.name), "best_us": _COLUMN})(value, at)
    count, dtypes, kernels = len(value["us"]), len(value["dtypes"]), len(value["implementations"])
    columns = {n: value[n] for n in ("dtype", "few", "aligned", "bytes", "copy_us", "roof_us", "noise", "by")}
    columns |= {n: value[n] for n in ("best", "best_us") if n in value}
    for name, column in {**columns, **value["sizes"], **value["peers"]}.items():
        v.must(len(column) == count, len(column), f"the length of {name}", f"that of us, {count}")
    v.must(bool(value["sizes"]), value["sizes"], "sizes", "a table of at least one size")
    v.must(value["axis"] in ("", *value["sizes"]), value["axis"], "axis", f"one of {', '.join(value['sizes'])}, or empty")
    for name, among, most in (("dtype", "dtypes", dtypes), ("by", "implementations", kernels)):
        for i, n in enumerate(value[name]):
            v.must(n < most, n, f"{name}[{i}]", f"the place of one of {most} {among}")
    for i, n in enumerate(value["wrong"]):
        v.must(n < count, n, f"wrong[{i}]", f"the place of one of {count} points")
    for name in value["implementations"]:
        v.must(name in value["digests"], name, "a name of implementations", "in digests")


_SWEEP: dict[str, Check] = {
    "op": v.name, "device": _DEVICE, "axis": v.text, "sizes": v.table_of(v.list_of(v.count)), "dtypes": v.list_of(v.dtype, 1), "dtype": v.list_of(v.whole),
    "few": v.list_of(v.whole),
    "aligned": v.list_of(v.whole), "bytes": v.list_of(v.whole), "us": _COLUMN, "copy_us": _COLUMN, "roof_us": v.list_of(v.positive),
    "noise": v.list_of(v.number),
    "implementations": v.list_of(v.name), "by": v.list_of(v.whole), "digests": v.table_of(v.text), "peers": v.table_of(_COLUMN), "wrong": v.list_of(v.whole),
}
_MOVED = v.keys({"read": v.number, "written": v.number})


def _compared(value: Any, at: str) -> None:
    v.keys(
        {**_WHAT, "share": v.number, "rows": v.list_of(v.keys({}))}, {k: c for k, c in _OFTEN.items() if k != "counters"} | {"tier": v.text}
    )(value, at)
    if value.get("tier") == "traffic":
        v.keys({"at": v.time, "digest": v.name, "launch": v.whole, "model": _MOVED, "hardware": _MOVED})(value, at)
        v.positive(value["hardware"]["read"] + value["hardware"]["written"], "the sum of hardware")


_FACTS = v.keys(
    {"m": v.count, "k": v.count, "size": v.count, "nnz": v.whole, "blocks": v.table_of(v.whole), "semi": v.flag}, {"pace": v.positive}
)
ROWS: dict[str, dict[str, Check]] = {  # of records of kind `clock` that a table of docs/ shows, by subject
    "codec peers": {
        "values": v.name, "codec": v.name, "on": v.name, "rel": v.number, "ratio": v.positive, "share": v.number,
        **dict.fromkeys(("in_kernel", "in_call", "out_kernel", "out_call"), v.number),
    },
    "learn": {"what": v.name, "of": v.name, "seconds": v.positive},
    "models": {"what": v.name, "of": v.name, "variant": v.name, "figures": v.table_of(v.number)},
    "naive timing": {"how": v.name, "mib": v.count, "seconds": v.positive, "gb_per_s": v.number, "says": v.text},
    "perplexity": {"way": v.name, "perplexity": v.number, "over_float16": v.number}, "trials": {"outcome": v.name, "count": v.whole},
    "sparse ways": {"matrix": v.name, "dtype": v.name, "n": v.count, "facts": _FACTS, "seconds": v.keys({"dense": v.positive})},
}
_BESIDE: dict[str, dict[str, Check]] = {  # the rows
    "learn": {"browser": v.name}, "models": {"transformers": v.name},
    "naive timing": {"repeats": v.count}, "perplexity": {"parameters": v.count, "steps": v.count, "versions": v.keys({})},
    "trials": {"case": v.name, "seconds": v.positive, "revision": v.text, "seed": v.whole_or_null},
}


def _clock(value: Any, at: str) -> None:
    v.keys({"subject": v.name, "device": _DEVICE}, {**_OFTEN, "rows": v.list_of(v.keys({}))})(value, at)
    subject = value["subject"]
    if subject.startswith("cost of invariance of "):
        v.keys({"rows": v.list_of(v.keys({"group": v.name, "case": v.name, "free": v.positive, "mode": v.positive}))})(value, at)
    if subject not in ROWS:
        return
    v.keys({"rows": v.list_of(v.keys(ROWS[subject]), 1), **_BESIDE.get(subject, {})})(value, at)
    rows = value["rows"]
    if subject == "naive timing":
        ways, sizes = {r["how"] for r in rows}, {r["mib"] for r in rows}
        points = {(r["how"], r["mib"]) for r in rows}
        v.must(
            len(points) == len(ways) * len(sizes), len(points), "the number of rows",
            f"{len(ways) * len(sizes)}: each of {len(ways)} ways at each size"
        )
    if subject == "models":
        for i, r in enumerate(rows):
            if (first := {"train": "ms", "decode": "tokens/s", "experts": "ms", "loss": "loss"}.get(r["what"])) is not None:
                v.positive(r["figures"].get(first), f"rows[{i}].figures.{first}")
    if subject == "sparse ways":
        for i, r in enumerate(rows):
            v.table_of(v.positive)(r["seconds"], f"rows[{i}].seconds")
            facts, of = r["facts"], f"rows[{i}].facts"
            v.must(facts["size"] in (1, 2, 4, 8), facts["size"], f"{of}.size", "1, 2, 4 or 8")
            v.must(not facts["semi"] or facts["size"] <= 2, facts["semi"], f"{of}.semi", "false for elements of more than 2 bytes")
            for side in facts["blocks"]:
                v.must(side in _SIDES, side, f"a key of {of}.blocks", f"one of {', '.join(_SIDES)}")


_SIDES = ("8", "16", "32", "64", "128")


def _build(value: Any, at: str) -> None:
    v.keys({"subject": v.name, "device": _DEVICE, "seconds": v.positive}, {**_OFTEN, "all": v.list_of(v.number), "n": v.whole})(value, at)
    v.keys({"n": v.whole, "versions": v.keys({})})(value, at)


_COUNTERS: dict[str, Check] = {
    "tier": v.text, "run": v.text, "totals": v.table_of(v.number_or_null), "lines": v.list_of(v.keys({})), "opcodes": v.keys({})
}
HEAD: Check = v.keys({"form": v.whole}, {"at": v.time, "run": v.name, "device": v.keys({}), "versions": v.keys({}), "host": v.keys({})})
# What a record of each kind must hold for those who read it: the pages, `tune`, the comparisons. Whatever else it holds is left as it is.
SHAPES: dict[str, Check] = {
    "bench": v.keys({**_WHAT, "work": _WORK, "clocks": _CLOCKS}, _OFTEN),
    "check": v.keys({**_WHAT, "error": _ERROR}, _OFTEN),
    "ceiling": _ceiling,
    "sanitize": v.keys({**_WHAT, "cases": v.list_of(v.text, 1), "errors": v.whole}, {**_OFTEN, "first": v.text, "message": v.text}),
    "build": _build,
    "clock": _clock,
    "first-calls": v.keys(
        {**_WHAT, "first_s": v.positive, "known_s": v.positive, "new_rows_s": v.number, "rows": _SPREAD, "columns": _SPREAD},
        {**_OFTEN, "seed": v.whole, "known_columns": v.whole},
    ),
    "sweep": _sweep,
    "tune": v.keys({**_WHAT, "config": v.keys({}), "verdict": v.text}, {**_OFTEN, "over_heuristic": v.number_or_null, "pick": v.table_or_null}),
    "counters": v.keys({**_WHAT, **_COUNTERS}, {k: c for k, c in _OFTEN.items() if k != "counters"}),
    "language": v.keys(_WHAT, {**_OFTEN, "compiler": v.text, "compile_s": v.positive, "kernels": v.list_of(v.keys({}), 1), "first_s": v.positive}),
    "compared": _compared,
}

KINDS = tuple(SHAPES)


# -- what is kept ------------------------------------------------------------------------------------------------------


@cache
def timed(op: str, case: str) -> bool:
    """Whether the op times this case; True also where the tree has no such op or case."""
    from rooftop.core import registry
    from rooftop.core.names import RegistryError

    try:
        return "bench" in registry.op(op).case(case).tags
    except (RegistryError, LookupError, ValueError):
        return True


def compact(record: Mapping[str, Any], is_timed: Callable[[str, str], bool] = timed) -> Table:
    """The record as it is written. `is_timed` says of an op and a case whether it is one that is timed."""
    fields = {k: v for k, v in record.items() if k != "rate"}  # worked out from `work` and the kernel clock
    if isinstance(fields.get("sensors"), Mapping):
        fields["sensors"] = readings(fields["sensors"])
        if not fields["sensors"]:
            del fields["sensors"]
    if fields["kind"] in ("bench", "clock") and isinstance(fields.get("clocks"), Mapping):
        fields["clocks"] = {name: _kept_clock(c) for name, c in fields["clocks"].items()}
    if fields["kind"] == "bench":
        for key in ("versus", "sustained_versus"):
            if isinstance(fields.get(key), Mapping):
                fields[key] = pairs(str(fields.get("subject")), fields[key])
        if isinstance(fields.get("error"), Mapping):
            fields["error"] = judged(fields["error"], not str(fields.get("subject")).startswith("peer:"))
    if fields["kind"] == "check":
        fields.pop("path", None)  # the bench record of the case has it
        if isinstance(fields.get("error"), Mapping):
            fields["error"] = judged(fields["error"], is_timed(str(fields.get("op")), str(fields.get("case"))))
    if fields["kind"] == "ceiling":
        fields.setdefault("subject", "memory")
    if fields["kind"] == "sanitize":
        fields = {k: v for k, v in fields.items() if v != "" or k not in ("first", "message")}
    return fields


def _kept_clock(clock: Any) -> Any:
    """Without how busy the card was where it was not to be, and without an empty reason."""
    if not isinstance(clock, Mapping):
        return clock
    left = {*_CLOCK, *(("busy",) if clock.get("duty", "normal") == "normal" else ()), *(("why",) if not clock.get("why") else ())}
    return {k: v for k, v in clock.items() if k not in left}


def readings(sensors: Mapping[str, Any]) -> Table:
    """Clocks, power and temperature before and after as pairs, and what held the clocks back, from two whole readings."""
    before, after = sensors.get("before"), sensors.get("after")
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return {k: v for k, v in sensors.items() if k not in ("before", "after")}
    values: Table = {n: [before[n], after[n]] for n in READINGS if n in before and n in after}
    slowed = sorted({str(r) for one in (before, after) for r in one.get("reasons") or () if r != "idle"})
    return values | ({"slowed": slowed} if slowed else {})


def pairs(subject: str, versus: Mapping[str, Any]) -> Table:
    """Of the pairs of a field those with peers and with plain copies, and a rung's with the rung before it. A peer's: with the copies."""
    ladder, _, rung = subject.rpartition("/")
    earlier = [other for other in versus if ladder and other.rpartition("/")[0] == ladder and other.rpartition("/")[2] < rung]
    latest = {max(earlier)} if earlier else set()
    latest |= {
        other for other in versus if other.startswith(("ceiling:", "part:"))
        or (other.startswith("peer:") and not subject.startswith("peer:"))
    }
    return {
        k: {n: v for n, v in pair.items() if n in _PAIR} if isinstance(pair, Mapping) else pair for k, pair in versus.items() if k in latest
    }


def judged(error: Mapping[str, Any], figures: bool) -> Table:
    """Of an error whether it is right and the worst share of what is allowed; what was measured and allowed too with `figures`, or where it
    is wrong."""
    shares = [error[k] for k in SHARES if k in error]
    fields: Table = {k: error[k] for k in ("ok", "share") if k in error} | ({"share": max(shares)} if shares else {})
    return fields | ({k: error[k] for k in FIGURES if k in error} if figures or not error.get("ok") else {})
