"""Mutated records: a line is refused with its reason, or everything that reads records can read it.

    python -m rooftop.lab.fuzz.records --lines 10000

One to three changes are made to a line of the records of a folder: a value of another type or size, a key gone or new, tables that stand
for several, texts with control characters. What `rooftop.lab.records.store.parse` accepts is then merged, pruned, and shown on every
page."""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.lab.exit_codes import Parser, ended, positive
from rooftop.lab.records import form, rewriting, store, trials
from rooftop.lab.records.record import Table

PATIENCE = 5.0  # seconds of CPU time that reading one line may take
TOGETHER = 400  # lines that the readers are given at once
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 10**6, 2**31, 2**63, 10**400, 0.0, -0.0, 1e-320, 1e-30, 1e300, -1e300, 0.5, "", "0", "nan", "nosuch",
    "a|b", "<b>", "[bold]x", "\x1b[2J\x1b[31mforged", "\u202eoverride", "\x9b31m", "two\nlines", "<!-- /generated -->", "[x](http://x)",
    "x" * 5000, [], {}, [None], ["a"], [0, 0], [[]], [{}], {"": None}, {"": {}}, {"a": None}, {"a": "b"}, {"a": 1}, {"ok": True},
    "0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00", "2026-02-30T00:00:00+00:00", "2026-01-01", {"of": 2, "each": {"k": [1, 2]}},
    {"of": 3, "each": {"k": [1]}}, {"of": 2**40, "each": {"k": [1]}}, {"of": 2, "each": []},
)
KEYS = ("", "of", "each", "at", "named", "seed", "sensors", "rows", "message", "counters", "\x1b[1m", "duty", "more")


def originals(folder: Path, of_a_kind: int = 8) -> list[tuple[Table, Table]]:
    """Heads and lines below a folder: some of each kind, of kinds `clock` and `build` of each subject."""
    # as the file has it, or whole: that takes a thousand times the memory
    found: dict[tuple[str, str], list[tuple[Table, Table, bool]]] = {}
    for path in form.below(folder):
        head: Table = {}
        for line in form.unpacked(path.read_bytes()).decode().splitlines():
            value = json.loads(line)
            if value["kind"] == "run":
                head = value
                continue
            subject = str(value.get("subject")) if value["kind"] in ("clock", "build", "ceiling") else ""
            found.setdefault((value["kind"], re.sub(r"\d+", "", subject)), []).extend([(head, value, False), (head, value, True)])
    rng = random.Random(0)
    drawn = [one for _, group in sorted(found.items()) for one in rng.sample(group, min(len(group), of_a_kind))]
    return [({"kind": "run", "form": form.FORM}, form.joined(value, head)[0]) if whole else (head, value) for head, value, whole in drawn]


def _places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value within `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*way, key)
        if len(way) < 8:
            yield from _places(inner, (*way, key))


def mutated(record: Table, rng: random.Random) -> Table:
    """One to three changes."""
    made = copy.deepcopy(record)
    for _ in range(rng.randrange(1, 4)):
        ways = list(_places(made))
        if not ways:
            break
        top = [w for w in ways if len(w) == 1]
        *way, key = rng.choice(top if rng.random() < 0.3 else ways)
        inner: Any = made
        for step in way:
            inner = inner[step]
        match rng.randrange(9):
            case 0:
                del inner[key]
            case 1 if isinstance(inner, dict):
                inner[rng.choice(KEYS)] = copy.deepcopy(rng.choice(HOSTILE))
            case 2:
                other: Any = made
                for step in rng.choice(ways):
                    other = other[step] if not isinstance(other, list) or step < len(other) else other
                inner[key] = copy.deepcopy(other)
            case 3:
                value: Any = inner[key]
                for _ in range(rng.choice([1, 2, 12, 40])):
                    value = {"of": 2, "each": {"k": [1, 2]}, "v": value} if rng.random() < 0.8 else [value]
                inner[key] = value
            case 4 if isinstance(inner[key], list):
                inner[key] = inner[key][: rng.randrange(len(inner[key]) + 1)] if rng.random() < 0.5 else inner[key] * 2
            case 5 if isinstance(inner[key], (int, float)) and abs(inner[key]) < 1e200:
                inner[key] = rng.choice(
                    [-inner[key], inner[key] + 1, inner[key] * 1e9, inner[key] * 10**12, inner[key] * 1e-12, 0, str(inner[key])]
                )
            case _:
                inner[key] = copy.deepcopy(rng.choice(HOSTILE))
    return made


def lines(folder: Path, count: int, seed: int) -> Iterator[tuple[Table, bytes]]:
    """Changed lines, each with the head above it."""
    held, rng = originals(folder), random.Random(seed)
    for i in range(count):
        head, record = held[i % len(held)]
        text = json.dumps(mutated(record, rng), ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        if rng.random() < 0.05:
            at = rng.randrange(len(text))
            text = text[:at] + rng.randbytes(1) + text[at + 1 :]
        yield head, text.replace(b"\n", b" ")


def parsed(head: Table, line: bytes) -> tuple[str, str]:
    """What reading one line did: "accepted", "refused" with the reason, or "finding" and what."""
    started = time.process_time()
    try:
        store.parse(line, head)
        kind, what = "accepted", ""
    except ValueError as error:
        kind, what = "refused", str(error)
        if len(what) > 400 or any(c != "\t" and not c.isprintable() for c in what):
            kind, what = "finding", f"the refusal is no plain line: {what[:100]!r}"
    except Exception as error:
        kind, what = "finding", f"{type(error).__name__}: {error}"
    if (took := time.process_time() - started) > PATIENCE:
        return "finding", f"took {took:.0f} s"
    return kind, what


def readers(folder: Path) -> None:
    """All that reads the records below a folder: merge, prune, every page, the tables of README and docs, the predictions of diagnose."""
    from rooftop.lab.counters import compare
    from rooftop.lab.counters.diagnose import steps
    from rooftop.lab.report import data, documents, site
    from rooftop.lab.report.joined import staleness

    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "home"
        for file in form.below(folder):
            rewriting.merge(file, home)
        rewriting.prune(home, staleness)
        found = store.read(home)
        pages = data.gather(found)
        site.write(Path(name) / "pages", pages, lambda text: None)
        for make in documents.TABLES.values():
            make(found, pages)
        for draw in documents.DRAWN.values():
            draw(found, pages)
        steps.predict(steps.steps(found))
        compare.newest(found)
        again = Path(name) / "again"
        rewriting.merge(home, again)  # what was written can be read, and is the same
        if sorted(map(str, store.read(again))) != sorted(map(str, found)):
            raise AssertionError("merged once more, the records are others")


def _written(folder: Path, some: Sequence[tuple[Table, bytes]]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for i, (head, line) in enumerate(some):  # a file each: a run has one card
        (folder / f"{i}.jsonl").write_bytes(json.dumps(head).encode() + b"\n" + line + b"\n")


def blamed(some: Sequence[tuple[Table, bytes]], read: Callable[[Path], None], folder: Path) -> list[str]:
    """Of these lines those that a reader fails for, with how."""
    _written(folder, some)
    try:
        read(folder)
        return []
    except Exception as error:
        if len(some) > 1:
            half = len(some) // 2
            return (
                blamed(some[:half], read, folder) + blamed(some[half:], read, folder) or [f"only together: {type(error).__name__}: {error}"]
            )
        where = traceback.extract_tb(error.__traceback__)[-1]
        return [
            f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno}) for {some[0][1][:3000].decode(errors='replace')}"
        ]


def run(folder: Path, count: int, seed: int, read: Callable[[Path], None] = readers) -> tuple[Counter[str], list[str]]:
    """How many lines did what, and the findings."""
    kinds: Counter[str] = Counter()
    findings: list[str] = []
    good: list[tuple[Table, bytes]] = []
    with tempfile.TemporaryDirectory() as name:
        for i, (head, line) in enumerate(lines(folder, count, seed)):
            kind, what = parsed(head, line)
            kinds[kind] += 1
            if kind == "finding":
                findings.append(f"line {i} of seed {seed}: {what}")
            if kind == "accepted":
                good.append((head, line))
            if len(good) == TOGETHER:
                findings += blamed(good, read, Path(name) / "some")
                good = []
        findings += blamed(good, read, Path(name) / "some") if good else []
    return kinds, findings


def main() -> None:
    parser = Parser(prog="python -m rooftop.lab.fuzz.records", description="Mutated records.")
    parser.add_argument("--lines", type=positive, default=10_000)
    trials.options(parser)
    given = parser.parse_args()
    trials.ended("mutated records", given, lambda: run(settings.load().results, given.lines, given.seed))


if __name__ == "__main__":
    ended(main)
