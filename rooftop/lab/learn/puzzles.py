"""The puzzles of the ladders: lines of a rung to fill in, with three fillings that the judge has refused.

proven.json lists them, by digests of the blank and of its fillings; `prove` writes it. The texts are those of the tree: where a rung
changes, a digest is found no more, and the puzzle is gone until it is proven again."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from rooftop.core import registry
from rooftop.core.child import ChildError, ChildTimeout, Process
from rooftop.core.names import RegistryError
from rooftop.lab.learn.blanks import WRONG, Blank, Filling, blanks, code_of, fillings
from rooftop.lab.learn.words import _

PROVEN = Path(__file__).parent / "proven.json"
A_RUNG = 2  # puzzles at most
TRIED = 9  # fillings of a blank that are judged at most
STEADY = 6  # times that one is judged: where it fails in different ways, as the memory lies, it is left out
ENOUGH = 5  # that fail, of which those are taken that fail in the most ways
LIMIT = 120  # seconds in which a solution must be judged
SAID = 220  # characters of a verdict that are kept
LONGEST = 1 << 20  # bytes of a solution
MARK = "TODO"


@dataclass(frozen=True)
class Wrong:
    """A wrong filling with its verdict."""

    filling: Filling
    kind: str
    said: str


@dataclass(frozen=True)
class Puzzle:
    """A blank of a rung. `name`: `transpose_cuda/04a`."""

    name: str
    blank: Blank
    wrong: tuple[Wrong, ...]

    @property
    def rung(self) -> registry.Rung:
        return registry.rung(self.blank.rung)

    @property
    def source(self) -> str:
        return self.rung.path.read_text(encoding="utf-8")

    @property
    def exercise(self) -> str:
        """The source with the blank empty, but for a mark."""
        first = self.blank.text.splitlines()[0]
        indent = first[: len(first) - len(first.lstrip())]
        lines = self.blank.last - self.blank.first + 1
        said = f"{MARK}: {'one line is' if lines == 1 else f'{lines} lines are'} missing here (rooftop learn --puzzle {self.name} --hint 1)"
        comment = f"# {said}" if self.blank.language == ".py" else f"// {said}"
        return self.blank.filled(self.source, indent + comment)

    def hints(self) -> tuple[str, str, str]:
        """From the idea to nearly the answer."""
        head = self.rung.head
        idea = head.idea if head is not None else ""
        code = "\n".join(code_of(line, self.blank.language).strip() for line in self.blank.text.splitlines())
        names = ", ".join(dict.fromkeys(re.findall(r"[A-Za-z_][\w.]*", code)))
        there = _("The rung before has here:\n{code}\n", code=self.blank.before.strip()) if self.blank.before else ""
        shape = re.sub(r"\b(?:\d\w*|[a-z]\w?)\b", "_", code)
        return (
            _("The idea of this rung: {idea}", idea=_(idea)), there + _("These names stand in what is missing: {names}", names=names),
            _("With numbers and short names left out it reads:\n{shape}", shape=shape),
        )


@cache
def _listed() -> Mapping[str, list[dict[str, object]]]:
    return json.loads(PROVEN.read_text(encoding="utf-8")) if PROVEN.is_file() else {}


@cache
def puzzles(name: str) -> tuple[Puzzle, ...]:
    """Those of a ladder, in the order of its rungs. Raises RegistryError for no such ladder."""
    ladder = registry.ladder(name)
    found = []
    for before, rung in pairwise(ladder.rungs):
        if rung.name not in _listed():
            continue
        have = {b.key(""): b for b in blanks(before, rung)}
        for letter, entry in zip("abcdefgh", _listed()[rung.name], strict=False):
            blank = have.get(str(entry["blank"]))
            if blank is None:
                continue
            by_key = {blank.key(f.text): f for f in fillings(blank)}
            wrong = entry["wrong"]
            assert isinstance(wrong, list)
            if all(w["key"] in by_key for w in wrong):
                found.append(
                    Puzzle(f"{name}/{rung.number:02d}{letter}", blank, tuple(Wrong(by_key[w["key"]], w["kind"], w["said"]) for w in wrong))
                )
    return tuple(found)


def ladders() -> tuple[str, ...]:
    """Those that have puzzles."""
    return tuple(n for n in registry.ladder_names() if any(rung.partition("/")[0] == n for rung in _listed()))


def find(name: str) -> Puzzle:
    """A puzzle by its name. Raises RegistryError."""
    ladder, _, which = name.partition("/")
    known = puzzles(ladder)
    for puzzle in known:
        if which and puzzle.name.endswith(f"/{which.zfill(3) if len(which) == 2 else which}"):
            return puzzle
    if not known:
        raise RegistryError(f"{ladder} has no puzzles; there are some of {', '.join(ladders())}")
    raise registry.unknown("puzzle", name, [p.name for p in known])


def solution(path: Path) -> str:
    """The text of a learner's file. Raises OSError, ValueError: there is none, it is a folder or a device, too large, or no UTF-8."""
    from rooftop.core.head_text import read

    if path.exists() and not path.is_dir():
        if not path.is_file():
            raise ValueError(f"{path} is no ordinary file; a solution is read from one")
        if (size := path.stat().st_size) > LONGEST:
            raise ValueError(f"{path} has {size:,} bytes; a solution has {LONGEST:,} at most")
    return read(path)


# -- judging, in a process of its own ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """The answer of the process that judges."""

    kind: str
    said: str
    case: str
    counts: dict[str, int]


@dataclass(frozen=True)
class Refused:
    """The answer where nothing can be judged: the rung does not run here, or something is missing."""

    refused: str


class JudgeError(ValueError):
    """Nothing can be judged here; the text says why."""


class Court:
    """Judges solutions, in a process of its own. A solution that does not come to its end costs `limit` seconds, and the process."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.limit = limit
        self._process = Process(Path(sys.executable), "rooftop.lab.learn.judge_child", {"ROOFTOP_SIMT_PATIENCE": "5"}, what="the judge")

    def judge(self, rung: str, text: str) -> Said:
        """The verdict on a source in place of a rung's. Raises JudgeError."""
        try:
            found: Said | Refused = self._process.ask({"what": "judging", "kernel": rung, "text": text}, self.limit, Said, Refused)
        except ChildTimeout:
            return Said("stuck", f"it has not come to its end in {self.limit:.0f} s", "", {})
        except ChildError as error:  # a solution in Python has ended the process, or filled its memory
            return Said("broken", str(error), "", {})
        if isinstance(found, Refused):
            raise JudgeError(found.refused)
        return found

    def close(self) -> None:
        self._process.close(patience=0.5)

    def __enter__(self) -> Court:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- the list -----------------------------------------------------------------------------------------------------------------


def prove(names: Iterable[str], say: Callable[[str], None], path: Path = PROVEN) -> int:
    """Find the puzzles of these ladders anew, and write them to the list; how many there are. Minutes: each filling is built and run."""
    found: dict[str, list[dict[str, object]]] = dict(_listed())
    with Court() as court:
        for name in names:
            ladder = registry.ladder(name)
            for rung in ladder.rungs:
                found.pop(rung.name, None)
            for before, rung in pairwise(ladder.rungs):
                if made := _proven_of(before, rung, court, say):
                    found[rung.name] = made
                lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(v, separators=(',', ':'))}" for n, v in sorted(found.items()))
                path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    _listed.cache_clear()
    puzzles.cache_clear()
    return sum(map(len, found.values()))


def _proven_of(before: registry.Rung, rung: registry.Rung, court: Court, say: Callable[[str], None]) -> list[dict[str, object]]:
    asked = blanks(before, rung)
    if not asked:
        return []
    source = rung.path.read_text(encoding="utf-8")
    try:
        own = court.judge(rung.name, source)
    except JudgeError as error:
        say(f"{rung.name}: no puzzle: {error}")
        return []
    if own.kind != "right":
        say(f"{rung.name}: no puzzle, the rung itself is judged {own.kind}: {own.said}")
        return []
    made: list[dict[str, object]] = []
    taken: set[int] = set()
    for blank in asked:
        lines = set(range(blank.first, blank.last + 1))
        if len(made) == A_RUNG or lines & taken:
            continue
        wrong: list[dict[str, str]] = []
        for filling in _in_turn(fillings(blank))[:TRIED]:
            text = blank.filled(source, filling.text)
            verdict = court.judge(rung.name, text)
            if verdict.kind not in ("right", "broken") and all(
                court.judge(rung.name, text).kind == verdict.kind for _ in range(STEADY - 1)
            ):
                wrong.append({"key": blank.key(filling.text), "rule": filling.rule, "kind": verdict.kind, "said": _short(verdict.said)})
            if len(wrong) == ENOUGH or len({w["kind"] for w in wrong}) == WRONG:
                break
        wrong = _varied(wrong)
        say(f"{rung.name}, line {blank.first}: {len(wrong)} of {WRONG} wrong fillings: {', '.join(w['kind'] for w in wrong)}")
        if len(wrong) == WRONG:
            made.append({"blank": blank.key(""), "wrong": wrong})
            taken |= set(range(blank.first - 1, blank.last + 2))
    return made


def _varied(wrong: list[dict[str, str]]) -> list[dict[str, str]]:
    """Three at most: the first of each kind of failure, then others, in the order in which they were found."""
    kinds: dict[str, int] = {}
    rank = {}
    for w in wrong:
        kinds[w["kind"]] = kinds.get(w["kind"], 0) + 1
        rank[w["key"]] = kinds[w["kind"]]
    taken = sorted(wrong, key=lambda w: rank[w["key"]])[:WRONG]
    return [w for w in wrong if w in taken]


def _in_turn(found: list[Filling]) -> list[Filling]:
    """The first filling of each rule, then the second of each, and so on."""
    seen: dict[str, int] = {}
    order: list[tuple[int, int, Filling]] = []
    for filling in found:
        seen[filling.rule] = seen.get(filling.rule, 0) + 1
        order.append((seen[filling.rule], len(order), filling))
    return [filling for _, _, filling in sorted(order, key=lambda x: x[:2])]


def _short(said: str) -> str:
    return said if len(said) <= SAID else said[: SAID - 1].rstrip() + "…"
