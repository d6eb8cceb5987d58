"""The expected times of cards that nobody measured: constants fitted on one card, judged on another; and what the command shows."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from _support import command, committed

from rooftop.core.devices import lookup
from rooftop.core.spec import Work
from rooftop.lab.records.record import Record
from rooftop.lab.report import tables
from rooftop.lab.timing import expected
from rooftop.lab.timing.expected import MODEL, Model


def test_the_constants_are_those_of_the_records_and_hold_on_the_other_card() -> None:
    """Fitted on the H100's records alone; the median error on the H200's stays below 20 %."""
    found = expected.timed(committed())
    fitted = expected.fit(found)
    assert asdict(fitted) == pytest.approx(asdict(MODEL), rel=0.02) and len(asdict(MODEL)) <= 12
    assert expected.fit([t for t in found if t.device == expected.FITTED_ON]) == fitted
    other = [t for t in found if t.device == expected.JUDGED_ON]
    error = expected.median_error(other)
    assert len(other) > 500 and error is not None and error < 0.2
    own = expected.median_error([t for t in found if t.device == expected.FITTED_ON])
    assert own is not None and own < 0.05


def test_a_model_is_found_again() -> None:
    """From times that it made itself."""
    sheet = lookup(expected.FITTED_ON)
    assert sheet is not None
    true = Model(launch=3e-6, memory=0.8, exp=0.6, fma=0.5, p=4.0)
    works = [Work(n << 16, n << 15, {"fma32": f * (n << 16), "exp": e * (n << 16)}) for n in (1, 8, 64, 512, 4096) for f, e in ((1, 0), (200, 0), (0, 40))]
    rows = [expected.Timed(expected.FITTED_ON, "o", str(i), "f", true.seconds(sheet, w) or 0.0, w) for i, w in enumerate(works)]
    found = expected.fit(rows)
    assert expected.median_error(rows, found) == pytest.approx(0, abs=0.01)
    assert (found.launch, found.memory, found.exp, found.fma) == pytest.approx((3e-6, 0.8, 0.6, 0.5), rel=0.03)


def test_by_hand() -> None:
    h200 = lookup("NVIDIA H200")
    assert h200 is not None
    plain = Model(launch=1e-6, memory=1.0, p=1e3)
    assert plain.seconds(h200, Work(2_400_000, 2_400_000, {})) == pytest.approx(1e-6 + 4.8e6 / h200.dram_bytes_per_second, rel=1e-6)
    assert plain.seconds(h200, Work(0, 0, {})) == 1e-6 and plain.seconds(h200, Work(1, 1, {"no-such-unit": 1.0})) is None
    assert expected.median_error([]) is None


def clock(median: float) -> dict[str, float]:
    return {"median": median, "low": median, "high": median}


def test_other_records_and_peers_do_not_count() -> None:
    work = {"read": 1, "write": 1, "ops": {}}
    base: dict[str, Any] = {"kind": "bench", "op": "softmax", "case": "c", "work": work, "device": {"name": "NVIDIA H200"}, "at": "2026-01-01"}
    rows = [
        {**base, "subject": "softmax__triton", "clocks": {"kernel": clock(2.0)}},
        {**base, "subject": "softmax__triton", "clocks": {"kernel": clock(3.0)}, "at": "2026-01-02"},
        {**base, "subject": "softmax__cuda_sm80", "clocks": {"kernel": clock(2.5)}},
        {**base, "subject": "peer:torch", "clocks": {"kernel": clock(1.0)}},
        {**base, "subject": "softmax_cuda/01_naive", "clocks": {"kernel": clock(1.0)}},
        {**base, "subject": "softmax__x", "clocks": {}}, {**base, "kind": "check"},
        {**base, "subject": "s__t", "device": {"name": "T4"}, "clocks": {"kernel": clock(1.0)}},
    ]
    found = expected.timed(map(Record, rows))
    assert [(t.seconds, t.family) for t in found] == [(2.5, "norm")]  # the newest of each kernel, then the fastest


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("expect", "softmax", "--case", "rows 16384x8192 bf16", "--json", "--card")
    times = {}
    for card in ("h200", "b200", "rtx5090", "mi300x", "NVIDIA L40S"):
        assert command(monkeypatch, *words, card) == 0
        (row,) = json.loads(capsys.readouterr().out)
        times[card] = row["expected_us"]
        assert (row["measured_us"] is not None) == (card == "h200")
    assert times["b200"] < times["mi300x"] < times["h200"] < times["rtx5090"] < times["NVIDIA L40S"]
    for more, why in ((("--card", "t4"), "has no datasheet here; those that have one"), (("--records", str(tmp_path / "no")), "no ")):
        assert command(monkeypatch, "expect", "softmax", *more) == 1
        said = capsys.readouterr().err.strip()
        assert why in said and "\n" not in said


def test_the_tables() -> None:
    site: Any = None
    assert tables.judged([], site) == "Nothing has been measured yet."
    table = tables.judged(committed(), site)
    assert "| **all** | " in table and "On the H100's own records: " in table
    rows = tables.expectations(committed(), site).splitlines()
    assert all(row.count("|") == 13 for row in rows) and any(row.startswith("| softmax |") and "(" in row for row in rows)
