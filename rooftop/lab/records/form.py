"""How records stand in a file: a `run` head, then lines in which what several records have in common is said once.

    {"kind": "run", "form": 2, "run": "9b7784f4", "at": "2026-11-22T02:19:04+00:00", "device": {...}, "versions": {...}, "host": {...}}
    {"kind": "bench", "at": 31, "op": "add", "case": "big f32", "work": {...}, "of": 2, "each": {"subject": [...], "digest": [...], ...}}

The head holds for the lines after it, up to the next head. `at` in a line is seconds after the head's. A table with `of` and `each` stands
for
`of` tables: each has the keys beside these two, and its own value out of every list in `each`, which may be nested. null in such a list:
this one has no such key; a null is written {"": null}. Nothing here knows what the keys mean; `joined` gives back what `lines` was given,
apart from the digits.

A file is that text, `.jsonl`, as a run writes it line by line; or the text in xz, `.jsonl.xz`, a fifth of the size, as `rooftop records
merge` and `rooftop records prune` leave it. It is read by what stands in it, whatever its name. Still a file a run: a packed file has no
lines that git could merge, so two machines must not write into one."""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from rooftop.core.texts import printable
from rooftop.core.whole_file import MOST
from rooftop.lab.records.record import Table

FORM = 2
DIGITS = 6  # significant, of numbers that are no whole ones
SHUT = {""}  # the keys of a table that only holds a value: a null among the values of `each` is {"": null}
OF_RUN = ("device", "versions", "host")  # tables of the head; a record's own add to them
LONGEST = 10**9  # seconds of a run
MADE = 8  # values that a byte of a line may stand for: nested tables with `of` could stand for more than any memory holds

PLAIN, PACKED = ".jsonl", ".jsonl.xz"
FIRST = b"\xfd7zXZ\0"  # bytes of a packed file
MEMORY = 64 << 20  # bytes that unpacking may take; what `packed` makes takes 9 MiB


class Room:
    """How many values the tables of one line, of so many bytes, may stand for."""

    def __init__(self, size: int) -> None:
        self.most = self.left = MADE * size

    def take(self, values: int) -> None:
        """Raises ValueError where there are no longer as many left."""
        self.left -= values
        if self.left < 0:
            raise ValueError(f"its tables stand for more than {self.most} values, {MADE} for each byte of the line")


def rounded(value: Any) -> Any:
    """`value` as records hold it: numbers to DIGITS significant digits (whole numbers are counts and stay as they are), texts that are safe
    to show."""
    if isinstance(value, float):
        return value if not math.isfinite(value) or value.is_integer() else float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {rounded(k): rounded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v) for v in value]
    return printable(value) if isinstance(value, str) else value


def dumps(value: Any) -> str:
    """One line of JSON; the same data give the same text. Raises ValueError for what JSON cannot hold."""
    return json.dumps(value, allow_nan=False, default=dict, sort_keys=True, separators=(",", ":"))


# -- several tables as one ---------------------------------------------------------------------------------------------


def fold(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """Two or more tables as one. None where nothing tells them apart, where one has a key of the form's own, or where a line of it would
    stand for more than a line may."""
    if len(rows) < 2 or any("of" in row or "each" in row for row in rows):
        return None
    common, each = _fold(rows)
    if not each:
        return None
    made = {**common, "of": len(rows), "each": each}
    return made if _made(made) <= MADE * len(dumps(made)) else None


def _made(table: Mapping[str, Any]) -> int:
    """How many values reading a table makes."""
    room = Room(1 << 50)
    unfolded(table, room)
    return room.most - room.left


def _fold(rows: Sequence[Mapping[str, Any]]) -> tuple[Table, Table]:
    common: Table = {}
    each: Table = {}
    for key in dict.fromkeys(k for row in rows for k in row):
        present = [row[key] for row in rows if key in row]
        if len(present) == len(rows) and len({dumps(v) for v in present}) == 1:
            common[key] = present[0]
        elif all(isinstance(v, Mapping) and v for v in present):
            inner_same, inner_each = _fold([row.get(key, {}) for row in rows])
            each[key] = inner_each
            if inner_same:
                common[key] = inner_same
        else:
            each[key] = [_shut(row[key]) if key in row else None for row in rows]
    return common, each


def _shut(value: Any) -> Any:
    return {"": value} if value is None or _is_shut(value) else value


def _is_shut(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == SHUT


def unfold(table: Mapping[str, Any], room: Room) -> list[Table]:
    """The tables that `fold` was given. Raises ValueError where the lists are not as many values long as `of` says, or `room` is too
    small."""
    count, each = table["of"], table["each"]
    common = {k: v for k, v in table.items() if k not in ("of", "each")}
    if type(count) is not int or count < 2:
        raise ValueError(f"of is {count!r}; it must be a whole number of at least 2")
    if not isinstance(each, dict) or not each:
        raise ValueError("each must be a table of lists")
    _must_fit(each, count, "each")
    room.take(count * (len(table) + len(each)))
    return [_one(common, each, i) for i in range(count)]


def _must_fit(each: Mapping[str, Any], count: int, at: str) -> None:
    for key, values in each.items():
        if isinstance(values, dict) and values:
            _must_fit(values, count, f"{at}.{key}")
        elif not isinstance(values, list) or len(values) != count:
            raise ValueError(f"{at}.{key} must be a list of {count}")


def _one(common: Mapping[str, Any], each: Mapping[str, Any], i: int) -> Table:
    row = dict(common)
    for key, values in each.items():
        if isinstance(values, dict):
            inner = common.get(key, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{key} is in each a table, and beside it none")
            if one := _one(inner, values, i):  # an empty one was none
                row[key] = one
        elif values[i] is not None:
            row[key] = values[i][""] if _is_shut(values[i]) else values[i]
    return row


def folded(value: Any) -> Any:
    """`value` with every list of tables that have the same keys as one table."""
    if isinstance(value, Mapping):
        return {k: folded(v) for k, v in value.items()}
    if isinstance(value, list):
        inner = [folded(v) for v in value]
        alike = all(isinstance(v, dict) and v for v in value) and len({frozenset(v) for v in value}) == 1
        return (fold(inner) if alike else None) or inner
    return value


def unfolded(value: Any, room: Room) -> Any:
    """The inverse of `folded`. Raises ValueError like `unfold`."""
    if isinstance(value, dict):
        if "of" in value and "each" in value:
            return [unfolded(one, room) for one in unfold(value, room)]
        room.take(len(value))
        return {k: unfolded(v, room) for k, v in value.items()}
    if isinstance(value, list):
        room.take(len(value))
        return [unfolded(v, room) for v in value]
    return value


# -- records and their head --------------------------------------------------------------------------------------------


def head_of(records: Sequence[Mapping[str, Any]]) -> Table:
    """A head for records of one run: what all of them say of it, and the time of the first."""
    head: Table = {"kind": "run", "form": FORM}
    times = [r["at"] for r in records if "at" in r]
    if len(times) == len(records) and all(_time(t) for t in times):
        head["at"] = min(times)
    runs = {r.get("run") for r in records}
    if len(runs) == 1 and None not in runs:
        head["run"] = runs.pop()
    for key in OF_RUN:
        tables = [t for r in records if isinstance(t := r.get(key), Mapping)]
        if tables and len(tables) == len(records):
            head[key] = {k: v for k, v in tables[0].items() if all(k in t and t[k] == v for t in tables)}
    return head


def _time(text: Any) -> datetime | None:
    """A time in whole seconds of UTC as records write it, or None."""
    return _parsed(text) if isinstance(text, str) else None


@lru_cache(1024)  # a head's is asked for with each of its records
def _parsed(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
        return at if at.tzinfo is not None and at.astimezone(UTC).isoformat(timespec="seconds") == text else None
    except (TypeError, ValueError, OverflowError):  # before the year 1 or after 9999
        return None


def bare(record: Mapping[str, Any], head: Mapping[str, Any]) -> Table:
    """The record without what its head says."""
    fields = {k: v for k, v in record.items() if not (k == "run" and head.get("run") == v)}
    for key in OF_RUN:
        if isinstance(fields.get(key), Mapping) and key in head:
            own = {k: v for k, v in fields[key].items() if k not in head[key] or head[key][k] != v}
            fields = {k: v for k, v in fields.items() if k != key} | ({key: own} if own else {})
    at, start = _time(fields.get("at")), _time(head.get("at"))
    if at and start and 0 <= (seconds := int((at - start).total_seconds())) < LONGEST:
        fields["at"] = seconds
    return fields


def whole(line: Mapping[str, Any], head: Mapping[str, Any]) -> Table:
    """The inverse of `bare`, for one record."""
    record = dict(line)
    if "run" in head:
        record.setdefault("run", head["run"])
    for key in OF_RUN:
        if key in head:
            own = record.get(key)
            record[key] = {**head[key], **own} if isinstance(own, dict) and own else head[key] if own is None else own
    if type(record.get("at")) is int:
        start = _time(head.get("at"))
        if start is None:
            raise ValueError(f"at is {record['at']}, seconds after a time that the head does not give")
        if not 0 <= record["at"] < LONGEST:
            raise ValueError(f"at is {record['at']}; it must be 0 to {LONGEST - 1:,} seconds after the head's")
        try:
            record["at"] = (start + timedelta(seconds=record["at"])).isoformat(timespec="seconds")
        except OverflowError:
            raise ValueError(f"at is {record['at']} seconds after {head.get('at')}, beyond the year 9999") from None
    return record


def group(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Records for which this is the same share a line: those of one kind and subject that hold the same things."""
    error = record.get("error")
    return (
        record.get("kind"), record.get("op"), record.get("subject"), sorted(record), sorted(error) if isinstance(error, Mapping) else None
    )


def lines(records: Iterable[Mapping[str, Any]], head: Mapping[str, Any]) -> Iterator[str]:
    """The lines of records of one run, without the head's own."""
    groups: dict[str, list[Table]] = {}
    for record in records:
        groups.setdefault(dumps(group(record)), []).append(folded(rounded(bare(record, head))))
    for rows in groups.values():
        together = fold(rows)
        yield from (dumps(row) for row in ([together] if together else rows))


def joined(line: Mapping[str, Any], head: Mapping[str, Any], size: int | None = None) -> list[Table]:
    """The records of one line of `size` bytes. Raises ValueError where it does not fit its head or itself, or stands for too much."""
    room = Room(len(dumps(line)) if size is None else size)
    rows = unfold(line, room) if "of" in line and "each" in line else [dict(line)]
    return [whole(unfolded(row, room), head) for row in rows]


# -- packed --------------------------------------------------------------------------------------------------------------


def named(path: Path) -> bool:
    """Whether a file's name says that it is one of records."""
    return path.name.endswith((PLAIN, PACKED))


def packed_name(path: Path) -> Path:
    """What the file of these records is called once it is packed."""
    return path.with_name(path.name.removesuffix(".xz").removesuffix(PLAIN) + PACKED)


def below(folder: Path) -> list[Path]:
    """The files of records in a folder and those within it, in the order of their names."""
    return sorted(path for path in folder.rglob(f"*{PLAIN}*") if named(path))


def unpacked(content: bytes) -> bytes:
    """The text that a file of records holds. Raises ValueError where a packed one is damaged, cut off, or would be larger than a file
    may."""
    if not content.startswith(FIRST):
        return content
    unpack = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
    try:
        data = unpack.decompress(content, MOST + 1)
    except lzma.LZMAError as error:
        raise ValueError(f"the packed file is damaged: {error}") from None
    if len(data) > MOST:
        raise ValueError(f"unpacked it has more than {MOST:,} bytes")
    if not unpack.eof or unpack.unused_data:
        raise ValueError("the packed file is cut off" if not unpack.eof else "something stands after the end of the packed file")
    return data


def packed(text: bytes, path: Path) -> bytes:
    """What a file of this name holds of a text: packed where its name says so. Nothing of nothing. The same text gives the same bytes."""
    return lzma.compress(text) if text and path.name.endswith(PACKED) else text
