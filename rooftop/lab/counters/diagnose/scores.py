"""Predictions of gains, kept as JSON lines and joined with what came: how far off each lever is, and to which side.

A line is a prediction (`predicted`: when, kernel, lever, range) or a result (`came`: the kernel and lever, the time before over that after). A result is
joined with the last prediction before it of the same kernel and lever; one without a prediction counts for nothing."""

from __future__ import annotations

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
        """log2 of the predicted over the measured ratio, the prediction at the geometric middle of its range: above 0, too much was promised."""
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
    lines = [{"predicted": _now(), "kernel": d.name, "lever": x.key, "low": x.low, "high": x.high} for d in found for x in d.levers]
    _append(path, lines)
    return len(lines)


def came(path: Path, kernel: str, lever: str, ratio: float) -> None:
    """Append a result. Raises ValueError for a ratio that is none."""
    if not (math.isfinite(ratio) and ratio > 0):
        raise ValueError(f"{ratio} is no ratio of two times")
    _append(path, [{"came": _now(), "kernel": kernel, "lever": lever, "ratio": ratio}])


def joined(path: Path) -> list[Joined]:
    """Raises FileNotFoundError, ReportError with the line that is none of ours."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there are no predictions")
    last: dict[tuple[str, str], dict[str, Any]] = {}
    found = []
    for n, line in _lines(path):
        try:
            key = (str(line["kernel"]), str(line["lever"]))
            if "predicted" in line:
                last[key] = {"low": float(line["low"]), "high": float(line["high"])}
            elif key in last:
                found.append(Joined(*key, **last[key], came=float(line["ratio"])))
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
            yield n, json.loads(text)
        except ValueError as error:
            raise ReportError(f"{path}: line {n} is no JSON ({error})") from None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
