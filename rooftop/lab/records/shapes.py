"""What a record of each kind must hold for those who read it (`rooftop.lab.records.store`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

LARGEST, SMALLEST = 1e300, 1e-30  # of numbers, and of those that are divided by

Check = Callable[[Any, str], None]  # (value, its name in the record): raises ValueError


def _must(good: bool, value: Any, at: str, what: str) -> None:
    if not good:
        shown = repr(value)
        raise ValueError(f"{at} is {shown if len(shown) < 60 else shown[:57] + '...'}; it must be {what}")


def _text(value: Any, at: str) -> None:
    _must(isinstance(value, str), value, at, "a text")


def _flag(value: Any, at: str) -> None:
    _must(isinstance(value, bool), value, at, "true or false")


def _number(value: Any, at: str) -> None:
    _must(isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST, value, at, "a number")


def _whole(value: Any, at: str) -> None:
    _must(type(value) is int and 0 <= value < 1 << 63, value, at, "a whole number of at least 0")


def _positive(value: Any, at: str) -> None:
    _number(value, at)
    _must(value >= SMALLEST, value, at, "above 0")


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


_DEVICE = _keys({"name": _text}, {"arch": _whole, "sms": _whole, "l2_bytes": _whole, "shared_per_block": _whole, "memory_bytes": _whole})
_WORK = _keys({"read": _whole, "write": _whole}, {"ops": _table(_number)})
_CLOCKS = _table(_keys({"median": _positive, "low": _number, "high": _number}))
_VERSUS = _table(_keys({"ratio": _positive, "low": _positive, "high": _positive, "verdict": _text}))
_FIGURES = dict.fromkeys(("max", "rms", "allowed_max", "allowed_rms"), _number_or_null)
_ERROR = _keys({"ok": _flag}, _FIGURES | dict.fromkeys(("share", "max_share", "rms_share"), _number))
_COUNTS = _table(_number)
_WHAT: dict[str, Check] = {"op": _text, "case": _text, "subject": _text, "device": _DEVICE}
_OFTEN: dict[str, Check] = {
    "at": _text, "run": _text, "digest": _text, "source": _text, "machine": _text,
    "config": _keys({}), "config_from": _text, "path": _list(_text), "versions": _keys({}),
    "host": _keys({}), "sensors": _keys({}), "rate": _text, "backend": _text, "predict": _COUNTS, "counters": _COUNTS, "error": _ERROR, "versus": _VERSUS,
    "sustained_versus": _VERSUS, "memory": _whole_or_null, "op": _text, "case": _text, "work": _WORK, "clocks": _CLOCKS,
}  # fmt: skip
_POINTS = _list(_keys({"bytes": _positive, "seconds": _positive, "by": _text}), 1)
_SPREAD = _keys({"n": _whole, "median_s": _positive, "p90_s": _positive, "max_s": _positive, "slow": _whole})  # of first calls
_RATES = _table(_keys({"ops_per_s": _positive}))  # by duty
_CEILINGS: dict[str, dict[str, Check]] = {  # of each part
    "memory": {"curves": _table(_POINTS), "launch": _keys({"graph_node_s": _positive}), "fma_fp32": _RATES},
    "l2": {"curves": _table(_POINTS)},
    "tensor": {"rates": _table(_RATES)},
}


def _ceiling(value: Any, at: str) -> None:
    part = value.get("subject", "memory")
    _must(isinstance(part, str) and part in _CEILINGS, part, "subject", f"one of {', '.join(_CEILINGS)}")
    _keys({"at": _text, "device": _DEVICE, **_CEILINGS[part]}, {"digest": _text, "source": _text, "machine": _text})(value, at)


_COLUMN = _list(_number_or_null)  # of a sweep: a value a point


def _sweep(value: Any, at: str) -> None:
    _keys(_SWEEP, {**_OFTEN, "sources": _table(_text), "machines": _table(_text)})(value, at)
    count = len(value["us"])
    columns = {n: value[n] for n in ("dtype", "few", "aligned", "bytes", "copy_us", "roof_us", "noise", "by")}
    for name, column in {**columns, **value["sizes"], **value["peers"]}.items():
        _must(len(column) == count, len(column), f"the length of {name}", f"that of us, {count}")


_SWEEP: dict[str, Check] = {
    "op": _text, "device": _DEVICE, "axis": _text, "sizes": _table(_list(_whole)), "dtypes": _list(_text, 1), "dtype": _list(_whole), "few": _list(_whole),
    "aligned": _list(_whole), "bytes": _list(_whole), "us": _COLUMN, "copy_us": _COLUMN, "roof_us": _list(_positive), "noise": _list(_number),
    "implementations": _list(_text), "by": _list(_whole), "digests": _table(_text), "peers": _table(_COLUMN), "wrong": _list(_whole),
}  # fmt: skip
_COUNTERS: dict[str, Check] = {"tier": _text, "run": _text, "totals": _table(_number_or_null), "lines": _list(_keys({})), "opcodes": _keys({})}
HEAD: Check = _keys({"form": _whole}, {"at": _text, "run": _text, "device": _keys({}), "versions": _keys({}), "host": _keys({})})
# What a record of each kind must hold for those who read it: the pages, `tune`, the comparisons. Whatever else it holds is left as it is.
SHAPES: dict[str, Check] = {
    "bench": _keys({**_WHAT, "work": _WORK, "clocks": _CLOCKS}, _OFTEN),
    "check": _keys({**_WHAT, "error": _ERROR}, _OFTEN),
    "ceiling": _ceiling,
    "sanitize": _keys({**_WHAT, "cases": _list(_text, 1), "errors": _whole}, {**_OFTEN, "first": _text, "message": _text}),
    "build": _keys({"subject": _text, "device": _DEVICE, "seconds": _positive}, {**_OFTEN, "all": _list(_number), "n": _whole}),
    "clock": _keys({"subject": _text, "device": _DEVICE}, {**_OFTEN, "rows": _list(_keys({}))}),
    "first-calls": _keys(
        {**_WHAT, "first_s": _positive, "known_s": _positive, "new_rows_s": _number, "rows": _SPREAD, "columns": _SPREAD},
        {**_OFTEN, "seed": _whole, "known_columns": _whole},
    ),
    "sweep": _sweep,
    "tune": _keys({**_WHAT, "config": _keys({}), "verdict": _text}, {**_OFTEN, "over_heuristic": _number_or_null, "pick": _table_or_null}),
    "counters": _keys({**_WHAT, **_COUNTERS}, {k: c for k, c in _OFTEN.items() if k != "counters"}),
    "language": _keys(_WHAT, {**_OFTEN, "compiler": _text, "compile_s": _positive, "kernels": _list(_keys({}), 1), "first_s": _positive}),
    "compared": _keys({**_WHAT, "share": _number, "rows": _list(_keys({}))}, {k: c for k, c in _OFTEN.items() if k != "counters"}),
}
