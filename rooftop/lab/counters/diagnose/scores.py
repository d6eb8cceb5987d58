"""Predictions of gains, kept as JSON lines and joined with what came: how far off each lever is, and to which side.

A line is a prediction (`predicted`: when, kernel, lever, range) or a result (`came`: the kernel and lever, the time before over that
after). A result is joined with the last prediction before it of the same kernel, lever, case and card; one without a prediction counts for
nothing.

`note` keeps them unasked. A version of a kernel is known by its measurements (`version`), so that a report that is read again adds nothing.
The next version is joined with the one before where it says by itself which lever was pulled: the only one that was predicted and is no
longer there."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from rooftop.lab.counters.diagnose.diagnosis import Diagnosis
from rooftop.lab.counters.diagnose.reports import ReportError


@dataclass(frozen=True)
class Joined:
    """`low`, `high`: as predicted; `came`: the measured ratio of times."""

    kernel: str
    lever: str
    low: float
    high: float
    came: float

    @property
    def error(self) -> float:
        """log2 of the predicted over the measured ratio, the prediction at the geometric middle of its range: above 0, too much was
        promised."""
        return math.log2(math.sqrt(self.low * self.high) / self.came)

    @property
    def inside(self) -> bool:
        return self.low <= self.came <= self.high


@dataclass(frozen=True)
class Score:
    lever: str
    count: int
    inside: int
    median_error: float  # of the ratio, 0.2: 20 % off
    bias: float  # the same with its sign; above 0: too much was promised
    no_change: float  # the median error of predicting that nothing changes


def keep(path: Path, found: Iterable[Diagnosis]) -> int:
    """Append the predictions of diagnoses; how many."""
    lines = [
        {"predicted": _now(), **_about(d), "lever": x.key, "low": x.low, "high": x.high} for d in found for x in d.levers
        if x.low is not None
    ]
    _append(path, lines)
    return len(lines)


def came(path: Path, kernel: str, lever: str, ratio: float, case: str = "", card: str = "") -> None:
    """Append a result. Raises ValueError for a ratio that is none."""
    if not (math.isfinite(ratio) and ratio > 0):
        raise ValueError(f"{ratio} is no ratio of two times")
    _append(path, [{"came": _now(), "kernel": kernel, "case": case, "card": card, "lever": lever, "ratio": ratio}])


def note(path: Path, d: Diagnosis, lever: str | None = None) -> str:
    """Keep a version's predictions, and join it with the version before it; what to tell of that, or nothing. `lever`: the one that was
    pulled, where the caller knows. Raises OSError where the file cannot be written, ReportError where it is none of ours."""
    mine = [x for _, x in _lines(path) if _key(x)[1:] == (d.name, d.case, d.card)] if path.is_file() else []
    about = _about(d)
    if any(x.get("version") == about["version"] for x in mine):
        return ""
    predicted = [x for x in mine if "predicted" in x and x.get("seconds")]
    before = {str(x["lever"]): x for x in predicted if x.get("version") == predicted[-1].get("version")}
    gone = [key for key in before if key not in {x.key for x in d.levers}]
    pulled = lever or (gone[0] if len(gone) == 1 else None)
    said = ""
    if pulled in before and d.seconds:
        was = before[pulled]
        ratio = float(was["seconds"]) / d.seconds
        _append(path, [{"came": _now(), **about, "lever": pulled, "ratio": ratio}])
        said = f"{pulled}: predicted {float(was['low']):.2f}x to {float(was['high']):.2f}x at {was['predicted']}, came {ratio:.2f}x"
    elif len(gone) > 1 and lever is None:
        said = (
            f"since the version before, several predicted levers are gone ({', '.join(gone)}): --lever says which one was pulled, to join "
            f"it with what came"
        )
        if not d.levers:
            return said  # nothing is kept: the version may be read again with --lever
    elif lever is not None and before:
        said = f"{lever} was not predicted for the version before: it had {', '.join(before)}"
    keep(path, [d])
    return said


def _about(d: Diagnosis) -> dict[str, Any]:
    shown = json.dumps([d.name, d.case, d.card, d.grid, d.block, d.seconds, [(x.key, x.share) for x in d.loads]])
    return {
        "kernel": d.name, "case": d.case, "card": d.card, "seconds": d.seconds, "version": hashlib.sha256(shown.encode()).hexdigest()[:16]
    }


def _key(line: dict[str, Any]) -> tuple[str, str, str, str]:
    return str(line.get("lever")), str(line.get("kernel")), str(line.get("case", "")), str(line.get("card", ""))


def joined(path: Path) -> list[Joined]:
    """Raises FileNotFoundError, ReportError with the line that is none of ours."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there are no predictions")
    last: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    found = []
    for n, line in _lines(path):
        try:
            kernel, lever, key = str(line["kernel"]), str(line["lever"]), _key(line)
            if "predicted" in line:
                last[key] = {"low": float(line["low"]), "high": float(line["high"])}
            elif key in last:
                found.append(Joined(kernel, lever, **last[key], came=float(line["ratio"])))
        except (KeyError, TypeError, ValueError) as error:
            raise ReportError(f"{path}: line {n} is neither a prediction nor a result ({error!r})") from None
    return found


def scores(found: Sequence[Joined]) -> list[Score]:
    """By lever, and over all of them as `all`."""
    by: dict[str, list[Joined]] = {}
    for one in found:
        by.setdefault(one.lever, []).append(one)
    if found:
        by["all"] = list(found)
    return [_score(lever, ones) for lever, ones in by.items()]


def _score(lever: str, ones: Sequence[Joined]) -> Score:
    off = 2 ** median(abs(x.error) for x in ones) - 1
    side = median(x.error for x in ones)
    still = 2 ** median(abs(math.log2(x.came)) for x in ones) - 1
    return Score(lever, len(ones), sum(x.inside for x in ones), off, math.copysign(2 ** abs(side) - 1, side), still)


def _append(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for n, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ReportError(f"{path}: line {n} is no JSON ({error})") from None
        if not isinstance(found, dict):
            raise ReportError(f"{path}: line {n} is neither a prediction nor a result")
        yield n, found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
