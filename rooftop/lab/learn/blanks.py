"""Which lines of a rung a puzzle may blank, and what may stand there wrongly: from the texts of the rung and of the one before alone.

A blank is a line, or a few, that the rung adds to the rung before. A wrong filling is the line of the rung before, or the right one after
one of RULES. Whether a filling is wrong in fact is for the judge to say (rooftop.lab.learn.judge): what it cannot tell from the right one
is no puzzle."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from rooftop.core.registry import Rung

if TYPE_CHECKING:
    from rooftop.lab.report.site import Line

LONGEST = 4  # lines of a blank
WRONG = 3  # wrong fillings of a puzzle
WIDEST = 150  # characters of a line
BEFORE = "the rung before"
SYNC = re.compile(r"__sync(?:threads|warp)\(\);|__pipeline_wait_prior")


@dataclass(frozen=True)
class Filling:
    """What stands in a blank. `rule`: what was done to the right lines."""

    rule: str
    text: str


@dataclass(frozen=True)
class Blank:
    """Lines `first` to `last` of a rung's source, counted from 1. `before`: the lines of the rung before that they replace, "" where there
    are none. `nth`: how many blanks with the same text stand above it."""

    rung: str
    first: int
    last: int
    text: str
    before: str
    language: str  # ".cu" or ".py"
    nth: int = 0

    def key(self, filling: str) -> str:
        """Of the blank with this filling: another where a line of either changes."""
        return sha256("\0".join((self.rung, self.text, filling, *([str(self.nth)] if self.nth else []))).encode()).hexdigest()[:12]

    def filled(self, source: str, filling: str) -> str:
        """The source with other lines in the blank."""
        lines = source.splitlines(keepends=True)
        return "".join([*lines[: self.first - 1], filling.rstrip("\n") + "\n" if filling.strip() else "\n", *lines[self.last :]])


# -- the rules ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    name: str
    pattern: re.Pattern[str]
    make: Callable[[re.Match[str]], str]
    language: str = ""  # ".cu", ".py"; "": both


def _rule(name: str, pattern: str, to: str | Callable[[re.Match[str]], str], language: str = "") -> Rule:
    return Rule(name, re.compile(pattern), (lambda m: m.expand(to)) if isinstance(to, str) else to, language)


def _swapped(a: str, b: str) -> Callable[[re.Match[str]], str]:
    return lambda m: b if m[0] == a else a


def _stretch(m: re.Match[str]) -> str:
    """A loop over every n-th element, as one over neighbours: right, and uncoalesced."""
    kind, name, start, end, step = m.groups()
    first = start if start.isidentifier() or re.fullmatch(r"\w+\.\w", start) else f"({start})"
    each = f"(({end} + {step} - 1) / {step if step.isalnum() else f'({step})'})"
    return f"for ({kind} {name} = {first} * {each}; {name} < {end} && {name} < ({start} + 1) * {each}; ++{name})"


RULES = (  # the most telling ones first
    _rule("the barrier left out", r"__sync(?:threads|warp)\(\);", ""),
    _rule("the wait left out", r"__pipeline_wait_prior\([^;]*\);", ""),
    _rule(
        "a stretch of neighbours for each thread", r"for \((\w+(?: long)?) (\w+) = ([^;,]+); \2 < (\w+); \2 \+= ([^)]+)\)", _stretch, ".cu"
    ),
    _rule("the padding left out", r"(?<=\w) \+ (?:[1248]|16)\](?=[\s,;\[])", "]"),
    _rule("the padding left out", r"\[33\]", "[32]"),
    _rule("the mask left out", r", mask=(?:[^=\n]|==|<=|>=)+?(?:, other=[\d.]+|(?=\)$))", ""),
    _rule("the bounds not tested", r"\bif \([^()]*(?:\([^()]*\)[^()]*)*\) (?:return|break|continue);", "", ".cu"),
    _rule("the condition left out", r"\bif \([^()]*(?:\([^()]*\)[^()]*)*\) (?!return|break|continue)(?=[^{\s])", "", ".cu"),
    _rule("no test of the bounds", r"(?<== )[^=?;]+(?:<|>)[^=?;]+ \? ([^:;]+) : [^;]+;", r"\1;"),
    _rule("x and y exchanged", r"\b(?:threadIdx|blockIdx)\.[xy]\b", lambda m: m[0][:-1] + ("y" if m[0][-1] == "x" else "x")),
    _rule("rows and columns exchanged", r"\[([^\[\]]+)\]\[([^\[\]]+)\]", r"[\2][\1]"),
    _rule("rows and columns exchanged", r"\[:, None\]|\[None, :\]", _swapped("[:, None]", "[None, :]")),
    _rule("plus for exclusive or", r" \^ ", " + "),
    _rule("one step too many", r"(?<![<>=-])<(?=\s)(?!<)", "<="),
    _rule("one step too few", r"(?<= )> 0", "> 1"),
    _rule("one step too many", r"(?<= )>=(?= )", ">"),
    _rule("division and remainder exchanged", r" (?:/|%) ", _swapped(" / ", " % "), ".cu"),
    _rule("division and remainder exchanged", r" // | % ", _swapped(" // ", " % "), ".py"),
    _rule("the sum overwritten", r" \+= ", " = "),
    _rule("the smaller for the larger", r"\b(?:f?max)f?\(", lambda m: m[0].replace("max", "min")),
    _rule("the larger for the smaller", r"\b(?:f?min)f?\(", lambda m: m[0].replace("min", "max")),
    _rule("the larger for the smaller", r"\btl\.minimum\(", "tl.maximum("),
    _rule("the last tile forgotten", r"\btl\.cdiv\((\w+), (\w+)\)", r"\1 // \2"),
    _rule("half the steps", r"\b(?:16|32|64|128|256|512|1024)\b(?!\])", lambda m: str(int(m[0]) // 2)),
    _rule("minus for plus", r" \+ ", " - "),
    _rule("plus for times", r" \* ", " + "),
    _rule("another lane", r"__shfl_xor_sync", "__shfl_up_sync"),
    _rule("not rescaled", r" \* (?:shrink|scale|e|norm)\b", ""),
    _rule("a wrong start", r"(?<== )0(?=;|,)", "1"),
    _rule("the neighbour's element", r"\[([a-z]\w*)\]", r"[\1 + 1]"),
    _rule("one of the bounds left out", r" (?:&&|&) [^&|?]+?(?=[?)]| \?|, other)", ""),
    _rule("the tile not advanced", r"(?<= )\+= \w+ \* \w+", "+= 0"),
)


def code_of(line: str, language: str) -> str:
    """A line without its comment."""
    return re.split(r"\s+//" if language == ".cu" else r"\s\s#\s", line)[0].rstrip()


def fillings(blank: Blank) -> list[Filling]:
    """What may stand in a blank and differs from the right lines, the most telling first. No two are alike but for spaces."""
    seen = {_bare(blank.text, blank.language)}
    found: list[Filling] = []

    def take(rule: str, text: str) -> None:
        if (bare := _bare(text, blank.language)) not in seen:
            seen.add(bare)
            found.append(Filling(rule, text))

    if blank.before:
        take(BEFORE, blank.before)
    right = "\n".join(code_of(line, blank.language) for line in blank.text.splitlines())
    for rule in (r for r in RULES if r.language in ("", blank.language)):
        for match in rule.pattern.finditer(right):
            made = right[: match.start()] + rule.make(match) + right[match.end() :]
            if _balanced(made):
                take(rule.name, made)
    return found


def _bare(text: str, language: str) -> str:
    return "".join("".join(code_of(line, language) for line in text.splitlines()).split())


def _balanced(text: str) -> bool:
    return all(text.count(a) == text.count(b) for a, b in ("()", "[]", "{}"))


# -- blanks ---------------------------------------------------------------------------------------------------------------


def blanks(before: Rung, rung: Rung) -> list[Blank]:
    """Every blank of a rung for which there are wrong fillings by three rules or more, the best first: those that the rung before fills
    otherwise, those with a barrier, then those with the most wrong fillings. A rung that is the shipped kernel has none, nor one in another
    language than the rung before."""
    if rung.path.suffix == ".toml" or before.implementation.path.suffix != rung.path.suffix:
        return []
    seen: dict[str, int] = {}
    rules: dict[Blank, set[str]] = {}
    for blank in _of(before, rung):
        rules[replace(blank, nth=seen.get(blank.text, 0))] = {f.rule for f in fillings(blank)}
        seen[blank.text] = seen.get(blank.text, 0) + 1

    def worth(b: Blank) -> tuple[int, int]:
        return -(3 * (BEFORE in rules[b]) + 6 * bool(SYNC.search(b.text)) + min(len(rules[b]), 6)), b.first

    return sorted((b for b in rules if len(rules[b]) >= WRONG), key=worth)


def _of(before: Rung, rung: Rung) -> Iterator[Blank]:
    from rooftop.lab.report.site import Source, listing

    language = rung.path.suffix
    old, new = (r.implementation.path.read_text(encoding="utf-8") for r in (before, rung))
    device = _device_lines(new, language)
    for removed, added in _hunks(listing(Source(before.name, old), Source(rung.name, new)).lines):
        asked = [n in device and _is_code(text, language) for n, text in added]

        def made(a: int, b: int, instead: str, added: list[tuple[int, str]] = added) -> Iterator[Blank]:
            text = "\n".join(line for _, line in added[a:b])
            if _balanced("\n".join(code_of(line, language) for _, line in added[a:b])):
                yield Blank(rung.name, added[a][0], added[b - 1][0], text, instead if _balanced(instead) else "", language)

        if 1 < len(added) <= LONGEST and all(asked):
            yield from made(0, len(added), "\n".join(removed) if len(removed) <= LONGEST else "")
        for i, (_, text) in enumerate(added):
            if asked[i]:
                yield from made(
                    i, i + 1, removed[i] if len(removed) == len(added) else removed[0] if len(removed) == 1 == sum(asked) else ""
                )
            if SYNC.search(text):  # a barrier, with the line before it or after it
                yield from (made(i - 1, i + 1, "") if i and asked[i - 1] else made(i, i + 2, "") if any(asked[i + 1 : i + 2]) else ())


def _hunks(lines: Sequence[Line]) -> Iterator[tuple[list[str], list[tuple[int, str]]]]:
    """(lines of the rung before, (number, line) of this one) of each change."""
    removed: list[str] = []
    added: list[tuple[int, str]] = []
    for line in lines:
        if line.kind == "added":
            added.append((line.number, line.text))
            continue
        if added:
            yield removed, added
        if added or line.kind != "removed":
            removed, added = [], []
        if line.kind == "removed":
            removed.append(line.text)
    if added:
        yield removed, added


NOT_ASKED = re.compile(
    r"\s*(?:#|//|/\*|\*|template\b|using\b|static_assert|struct\b|__global__|__device__|constexpr\b|\"\"\"|@|def |return;)"
)


def _is_code(text: str, language: str) -> bool:
    code = code_of(text, language).strip()
    return (
        bool(re.search(r"\w", code)) and len(text) <= WIDEST and not NOT_ASKED.match(text) and code not in ("else", "return v;")
        and len(code) > 8
    )


def _device_lines(text: str, suffix: str) -> set[int]:
    """The lines of the code of the device, without heads and host code."""
    lines = text.splitlines()
    if suffix == ".cu":
        end = next((i for i, line in enumerate(lines) if "*/" in line), -1)
        return set(range(end + 2, len(lines) + 1))
    found: set[int] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list):
            body = node.body[1:] if isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant) else node.body
            found |= {n for inner in body for n in range(inner.lineno, (inner.end_lineno or inner.lineno) + 1)}
    return found
