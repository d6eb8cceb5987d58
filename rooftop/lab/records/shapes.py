"""What a record of each kind must hold for those who read it (`rooftop.lab.records.store`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from rooftop.core.devices import slug
from rooftop.core.spec import DTYPES
from rooftop.core.texts import CONTROL

LARGEST, SMALLEST = 1e300, 1e-30  # of numbers, and of those that are divided by, which are at most 1 / SMALLEST

Check = Callable[[Any, str], None]  # (value, its name in the record): raises ValueError


def _must(good: bool, value: Any, at: str, what: str) -> None:
    if not good:
        shown = repr(value)
        raise ValueError(f"{at} is {shown if len(shown) < 60 else shown[:57] + '...'}; it must be {what}")


def shown(value: Any, at: str = "") -> None:
    """Raises ValueError for control characters in the texts and keys of a value: what shows a record would obey them."""
    if isinstance(value, str):
        if found := CONTROL.search(value):
            raise ValueError(f"{at} holds the control character U+{ord(found[0]):04X}; texts of records hold none but newlines and tabs")
    elif isinstance(value, dict):
        for key, inner in value.items():
            shown(key, f"a key of {at or 'the record'}")
            shown(inner, f"{at}.{key}" if at else key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            shown(inner, f"{at}[{i}]")


def _dtype(value: Any, at: str) -> None:
    _must(isinstance(value, str) and value in DTYPES, value, at, f"one of {', '.join(DTYPES)}")


def _text(value: Any, at: str) -> None:
    _must(isinstance(value, str), value, at, "a text")


def _name(value: Any, at: str) -> None:
    _must(isinstance(value, str) and 0 < len(value) <= 200 and "\n" not in value, value, at, "a text of one line, 1 to 200 characters")


def _time(value: Any, at: str) -> None:
    try:
        good = datetime.fromisoformat(value).utcoffset() is not None
    except (TypeError, ValueError, OverflowError):
        good = False
    _must(good, value, at, "a time with its zone, as 2026-11-22T02:19:04+00:00")


def _flag(value: Any, at: str) -> None:
    _must(isinstance(value, bool), value, at, "true or false")


def _number(value: Any, at: str) -> None:
    _must(isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST, value, at, "a number")


def _whole(value: Any, at: str) -> None:
    _must(type(value) is int and 0 <= value < 1 << 63, value, at, "a whole number of at least 0")


def _positive(value: Any, at: str) -> None:
    _number(value, at)
    _must(SMALLEST <= value <= 1 / SMALLEST, value, at, "above 0")


def _count(value: Any, at: str) -> None:
    _whole(value, at)
    _must(value > 0, value, at, "at least 1")


def _positive_or_null(value: Any, at: str) -> None:
    if value is not None:
        _positive(value, at)


def _number_or_null(value: Any, at: str) -> None:
    if value is not None:
        _number(value, at)


def _table_or_null(value: Any, at: str) -> None:
    if value is not None:
        _keys({})(value, at)


def _list(one: Check, least: int = 0) -> Check:
    def check(value: Any, at: str) -> None:
        _must(isinstance(value, list) and len(value) >= least, value, at, f"a list of at least {least}" if least else "a list")
        for i, v in enumerate(value):
            one(v, f"{at}[{i}]")

    return check


def _table(one: Check) -> Check:
    def check(value: Any, at: str) -> None:
        _must(isinstance(value, dict), value, at, "a table")
        for key, v in value.items():
            one(v, f"{at}.{key}")

    return check


def _keys(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    def check(value: Any, at: str) -> None:
        _must(isinstance(value, dict), value, at, "a table")
        for key, one in required.items():
            if key not in value:
                raise ValueError(f"{at + '.' if at else ''}{key} is missing")
            one(value[key], f"{at + '.' if at else ''}{key}")
        for key, one in (optional or {}).items():
            if key in value:
                one(value[key], f"{at + '.' if at else ''}{key}")

    return check


def _whole_or_null(value: Any, at: str) -> None:
    if value is not None:
        _whole(value, at)


def _card(value: Any, at: str) -> None:
    _name(value, at)
    slug(value)  # the name of its folder


_DEVICE = _keys({"name": _card}, dict.fromkeys(("arch", "sms", "l2_bytes", "shared_per_block", "memory_bytes"), _count))
_WORK = _keys({"read": _whole, "write": _whole}, {"ops": _table(_number)})
_CLOCKS = _table(_keys({"median": _positive, "low": _number, "high": _number}))
_VERSUS = _table(_keys({"ratio": _positive, "low": _positive, "high": _positive, "verdict": _text}))
_FIGURES = dict.fromkeys(("max", "rms", "allowed_max", "allowed_rms"), _number_or_null)
_ERROR = _keys({"ok": _flag}, _FIGURES | dict.fromkeys(("share", "max_share", "rms_share"), _number))
_COUNTS = _table(_number)
_WHAT: dict[str, Check] = {"op": _name, "case": _name, "subject": _name, "device": _DEVICE}
_OFTEN: dict[str, Check] = {
    "at": _time, "run": _name, "digest": _name, "source": _name, "machine": _name,
    "config": _keys({}), "config_from": _text, "path": _list(_text), "versions": _keys({}),
    "host": _keys({}), "sensors": _keys({}), "rate": _text, "backend": _text, "predict": _COUNTS, "counters": _COUNTS, "error": _ERROR,
    "versus": _VERSUS,
    "sustained_versus": _VERSUS, "memory": _whole_or_null, "op": _name, "case": _name, "work": _WORK, "clocks": _CLOCKS,
}


def _points(value: Any, at: str) -> None:
    _list(_keys({"bytes": _positive, "seconds": _positive, "by": _text}), 1)(value, at)
    for i in range(1, len(value)):
        _must(value[i]["bytes"] > value[i - 1]["bytes"], value[i]["bytes"], f"{at}[{i}].bytes", "above that of the point before it")


_SPREAD = _keys({"n": _whole, "median_s": _positive, "p90_s": _positive, "max_s": _positive, "slow": _whole})  # of first calls
_RATES = _table(_keys({"ops_per_s": _positive}))  # by duty
_CEILINGS: dict[str, dict[str, Check]] = {  # of each part
    "memory": {"curves": _table(_points), "launch": _keys({"graph_node_s": _positive}), "fma_fp32": _RATES},
    "l2": {"curves": _table(_points)},
    "tensor": {"rates": _table(_RATES)},
}


def _ceiling(value: Any, at: str) -> None:
    part = value.get("subject", "memory")
    _must(isinstance(part, str) and part in _CEILINGS, part, "subject", f"one of {', '.join(_CEILINGS)}")
    _keys({"at": _time, "device": _DEVICE, **_CEILINGS[part]}, {"digest": _text, "source": _text, "machine": _text})(value, at)


_COLUMN = _list(_positive_or_null)  # of a sweep: a value a point


def _sweep(value: Any, at: str) -> None:
    _keys(_SWEEP, {**_OFTEN, "named": _list(_name), "seed": _whole, "sources": _table(_text), "machines": _table(_text)})(value, at)
    count, dtypes, kernels = len(value["us"]), len(value["dtypes"]), len(value["implementations"])
    columns = {n: value[n] for n in ("dtype", "few", "aligned", "bytes", "copy_us", "roof_us", "noise", "by")}
    for name, column in {**columns, **value["sizes"], **value["peers"]}.items():
        _must(len(column) == count, len(column), f"the length of {name}", f"that of us, {count}")
    _must(bool(value["sizes"]), value["sizes"], "sizes", "a table of at least one size")
    _must(value["axis"] in ("", *value["sizes"]), value["axis"], "axis", f"one of {', '.join(value['sizes'])}, or empty")
    for name, among, most in (("dtype", "dtypes", dtypes), ("by", "implementations", kernels)):
        for i, n in enumerate(value[name]):
            _must(n < most, n, f"{name}[{i}]", f"the place of one of {most} {among}")
    for i, n in enumerate(value["wrong"]):
        _must(n < count, n, f"wrong[{i}]", f"the place of one of {count} points")
    for name in value["implementations"]:
        _must(name in value["digests"], name, "a name of implementations", "in digests")


_SWEEP: dict[str, Check] = {
    "op": _name, "device": _DEVICE, "axis": _text, "sizes": _table(_list(_count)), "dtypes": _list(_dtype, 1), "dtype": _list(_whole),
    "few": _list(_whole),
    "aligned": _list(_whole), "bytes": _list(_whole), "us": _COLUMN, "copy_us": _COLUMN, "roof_us": _list(_positive),
    "noise": _list(_number),
    "implementations": _list(_name), "by": _list(_whole), "digests": _table(_text), "peers": _table(_COLUMN), "wrong": _list(_whole),
}
_MOVED = _keys({"read": _number, "written": _number})


def _compared(value: Any, at: str) -> None:
    _keys(
        {**_WHAT, "share": _number, "rows": _list(_keys({}))}, {k: c for k, c in _OFTEN.items() if k != "counters"} | {"tier": _text}
    )(value, at)
    if value.get("tier") == "traffic":
        _keys({"at": _time, "digest": _name, "launch": _whole, "model": _MOVED, "hardware": _MOVED})(value, at)
        _positive(value["hardware"]["read"] + value["hardware"]["written"], "the sum of hardware")


_FACTS = _keys(
    {"m": _count, "k": _count, "size": _count, "nnz": _whole, "blocks": _table(_whole), "semi": _flag}, {"pace": _positive}
)
ROWS: dict[str, dict[str, Check]] = {  # of records of kind `clock` that a table of docs/ shows, by subject
    "codec peers": {
        "values": _name, "codec": _name, "on": _name, "rel": _number, "ratio": _positive, "share": _number,
        **dict.fromkeys(("in_kernel", "in_call", "out_kernel", "out_call"), _number),
    },
    "learn": {"what": _name, "of": _name, "seconds": _positive},
    "models": {"what": _name, "of": _name, "variant": _name, "figures": _table(_number)},
    "naive timing": {"how": _name, "mib": _count, "seconds": _positive, "gb_per_s": _number, "says": _text},
    "perplexity": {"way": _name, "perplexity": _number, "over_float16": _number}, "trials": {"outcome": _name, "count": _whole},
    "sparse ways": {"matrix": _name, "dtype": _name, "n": _count, "facts": _FACTS, "seconds": _keys({"dense": _positive})},
}
_BESIDE: dict[str, dict[str, Check]] = {  # the rows
    "learn": {"browser": _name}, "models": {"transformers": _name},
    "naive timing": {"repeats": _count}, "perplexity": {"parameters": _count, "steps": _count, "versions": _keys({})},
    "trials": {"case": _name, "seconds": _positive, "revision": _text, "seed": _whole_or_null},
}


def _clock(value: Any, at: str) -> None:
    _keys({"subject": _name, "device": _DEVICE}, {**_OFTEN, "rows": _list(_keys({}))})(value, at)
    subject = value["subject"]
    if subject.startswith("cost of invariance of "):
        _keys({"rows": _list(_keys({"group": _name, "case": _name, "free": _positive, "mode": _positive}))})(value, at)
    if subject not in ROWS:
        return
    _keys({"rows": _list(_keys(ROWS[subject]), 1), **_BESIDE.get(subject, {})})(value, at)
    rows = value["rows"]
    if subject == "naive timing":
        ways, sizes = {r["how"] for r in rows}, {r["mib"] for r in rows}
        found = {(r["how"], r["mib"]) for r in rows}
        _must(
            len(found) == len(ways) * len(sizes), len(found), "the number of rows",
            f"{len(ways) * len(sizes)}: each of {len(ways)} ways at each size"
        )
    if subject == "models":
        for i, r in enumerate(rows):
            if (first := {"train": "ms", "decode": "tokens/s", "experts": "ms", "loss": "loss"}.get(r["what"])) is not None:
                _positive(r["figures"].get(first), f"rows[{i}].figures.{first}")
    if subject == "sparse ways":
        for i, r in enumerate(rows):
            _table(_positive)(r["seconds"], f"rows[{i}].seconds")
            facts, of = r["facts"], f"rows[{i}].facts"
            _must(facts["size"] in (1, 2, 4, 8), facts["size"], f"{of}.size", "1, 2, 4 or 8")
            _must(not facts["semi"] or facts["size"] <= 2, facts["semi"], f"{of}.semi", "false for elements of more than 2 bytes")
            for side in facts["blocks"]:
                _must(side in _SIDES, side, f"a key of {of}.blocks", f"one of {', '.join(_SIDES)}")


_SIDES = ("8", "16", "32", "64", "128")


def _build(value: Any, at: str) -> None:
    _keys({"subject": _name, "device": _DEVICE, "seconds": _positive}, {**_OFTEN, "all": _list(_number), "n": _whole})(value, at)
    _keys({"n": _whole, "versions": _keys({})})(value, at)


_COUNTERS: dict[str, Check] = {
    "tier": _text, "run": _text, "totals": _table(_number_or_null), "lines": _list(_keys({})), "opcodes": _keys({})
}
HEAD: Check = _keys({"form": _whole}, {"at": _time, "run": _name, "device": _keys({}), "versions": _keys({}), "host": _keys({})})
# What a record of each kind must hold for those who read it: the pages, `tune`, the comparisons. Whatever else it holds is left as it is.
SHAPES: dict[str, Check] = {
    "bench": _keys({**_WHAT, "work": _WORK, "clocks": _CLOCKS}, _OFTEN),
    "check": _keys({**_WHAT, "error": _ERROR}, _OFTEN),
    "ceiling": _ceiling,
    "sanitize": _keys({**_WHAT, "cases": _list(_text, 1), "errors": _whole}, {**_OFTEN, "first": _text, "message": _text}),
    "build": _build,
    "clock": _clock,
    "first-calls": _keys(
        {**_WHAT, "first_s": _positive, "known_s": _positive, "new_rows_s": _number, "rows": _SPREAD, "columns": _SPREAD},
        {**_OFTEN, "seed": _whole, "known_columns": _whole},
    ),
    "sweep": _sweep,
    "tune": _keys({**_WHAT, "config": _keys({}), "verdict": _text}, {**_OFTEN, "over_heuristic": _number_or_null, "pick": _table_or_null}),
    "counters": _keys({**_WHAT, **_COUNTERS}, {k: c for k, c in _OFTEN.items() if k != "counters"}),
    "language": _keys(_WHAT, {**_OFTEN, "compiler": _text, "compile_s": _positive, "kernels": _list(_keys({}), 1), "first_s": _positive}),
    "compared": _compared,
}
