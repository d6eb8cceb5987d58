"""Questions and predictions: what is asked, what an answer is, and how it is judged. `kinds` makes them from data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rooftop.lab.learn.words import _
from rooftop.lab.report.predictions import HIT

FACTOR = 4.0  # an answer that is so many times too high or too low is worth nothing


class AnswerError(ValueError):
    """What was typed is no answer to the question. The text is one line, and says what is."""


@dataclass(frozen=True)
class Question:
    """`id` is the same as long as the question asks the same; `kind`: the function of rooftop.lab.learn.kinds; `subject`: a rung or a
    ladder.

    Of a choice, `choices`, and `answer` is the place of the right one from 0. Of a number, no choices, its `unit`, and `within`: the share
    by which an answer may be off. `source`: where the answer comes from. `code`: lines that it is about."""

    id: str
    kind: str
    subject: str
    text: str
    answer: float
    explanation: str
    source: str
    choices: tuple[str, ...] = ()
    unit: str = ""
    within: float = HIT
    code: str = ""

    @property
    def solution(self) -> str:
        """The right answer as it is shown."""
        return self.choices[int(self.answer)] if self.choices else f"{shown(self.answer)} {self.unit}".strip()

    def read(self, text: str) -> float:
        """An answer as it was typed: the letter or number of a choice, or a number. Raises AnswerError."""
        if not self.choices:
            return number_of(text)
        typed = text.strip().rstrip(").").lower()
        letters = "abcdefgh"[: len(self.choices)]
        if len(typed) == 1 and typed in letters:
            return float(letters.index(typed))
        if typed.isascii() and typed.isdigit() and 1 <= int(typed) <= len(self.choices):
            return float(int(typed) - 1)
        raise AnswerError(_(
            "{typed} is none of the answers: type {letters} or {last}", typed=_quoted(text), letters=", ".join(letters[:-1]),
            last=letters[-1]
        ))

    def right(self, given: float) -> bool:
        return given == self.answer if self.choices else close(given, self.answer, self.within)


def number_of(text: str) -> float:
    """A number as it was typed: 1,024 and 4.5x and 25 % are numbers. Raises AnswerError."""
    typed = re.sub(r"(?<=\d)[,_'\s\N{NARROW NO-BREAK SPACE}](?=\d{3}\b)", "", text.strip())
    match = re.fullmatch(
        r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(?:%|[x×]|times|us|µs|KiB|MiB|GiB|bytes|B|sectors|wavefronts|percent)?", typed
    )
    value = float(match[1]) if match and typed.isascii() | ("µ" in typed) | ("×" in typed) else math.nan
    if not math.isfinite(value):
        raise AnswerError(_("{typed} is no number: type one, as in 4 or 0.25", typed=_quoted(text)))
    return value


def _quoted(text: str) -> str:
    typed = text.strip()
    return repr(typed if len(typed) <= 30 else typed[:27] + "...")


def close(given: float, answer: float, within: float = HIT) -> bool:
    """Whether a number is as near to the answer as is asked."""
    return abs(given - answer) <= within * abs(answer) + 1e-9


def points(given: float, found: float) -> int:
    """What a predicted number is worth, 0 to 100: 100 where it is what was found, 50 where it is twice or half as much, 0 from FACTOR times
    on."""
    if found == 0 or given <= 0 or found < 0:
        return 100 if close(given, found) else 0
    return round(100 * max(0.0, 1 - abs(math.log(given) - math.log(found)) / math.log(FACTOR)))


def shown(value: float) -> str:
    """A number as text: whole where it is, else three digits."""
    from rooftop.lab.report.markup import number

    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else number(value, 3)


@dataclass(frozen=True)
class Prediction:
    """What a lesson asks before it shows: `ours` is what the rung's author predicted, None where nothing was; `found` what came."""

    name: str
    text: str
    unit: str
    ours: float | None
    found: float
    source: str

    def told(self, theirs: float | None) -> str:
        """One line about it: theirs beside ours."""
        said = f"{shown(self.found)}{f' {self.unit}' if self.unit else ''} ({self.source})"
        if theirs is not None:
            said += _("; you said {yours}: {points} points of 100", yours=shown(theirs), points=points(theirs, self.found))
        if self.ours is not None:
            said += _(
                "; the author of the rung predicted {ours} ({points} points)", ours=shown(self.ours), points=points(self.ours, self.found)
            )
        return said


TEXTS: Mapping[str, tuple[str, str]] = {  # name of a prediction -> the question and the unit
    "speedup": ("How many times as fast as the rung before?", "times"),
    "sectors_read": ("How many 32-byte sectors does a global read of a warp touch, on average?", "sectors"),
    "sectors_written": ("How many 32-byte sectors does a global write of a warp touch, on average?", "sectors"),
    "reads": ("How many bytes of sectors are read, as a multiple of what must be read?", "times"),
    "writes": ("How many bytes of sectors are written, as a multiple of what must be written?", "times"),
    "wavefronts": ("How many wavefronts does an access of a warp to shared memory take, on average?", "wavefronts"),
    "conflicts": ("At the line with the worst bank conflict: how many times the fewest wavefronts?", "times"),
    "wavefronts_per_fma": ("How many wavefronts of shared memory are there for each FMA of a warp?", "wavefronts"),
    "intensity": ("How many floating-point operations for each byte of global sectors, an FMA as two?", "operations"),
}
