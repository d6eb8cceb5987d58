"""The checker: planted faults are found, and a case that could not be judged is not called wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from _support import command

from rooftop.core import registry
from rooftop.lab import candidates
from rooftop.lab.check import checker

PLANTED = {
    "tail dropped": ("tl.store(out + at, total, inside)", "tl.store(out + at, total, at < n - 1)", "wrong", "out"),
    "stored beyond the end": ("tl.store(out + at, total, inside)", "tl.store(out + at, total)", "error", "OutOfBounds"),
    "loaded beyond the end": ("tl.load(y + at, inside)", "tl.load(y + at)", "error", "OutOfBounds"),
    "input written": ("tl.store(out + at, total, inside)", "tl.store(out + at, total, inside)\n    tl.store(x + at, total, inside)", "error", "ReadOnly"),
    "one precision lower": ("+ tl.load(y + at, inside)", "+ tl.load(y + at, inside).to(tl.bfloat16)", "wrong", "largest error"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(tmp_path: Path, name: str) -> None:
    old, new, status, says = PLANTED[name]
    text = (registry.HOUSE.kernels / "elementwise" / "add__triton.py").read_text()
    assert old in text
    path = tmp_path / "add__triton.py"
    path.write_text(text.replace(old, new))
    subject = candidates.Subject("planted", registry.op("add"), registry.user_file(path))
    found = checker.check(subject, registry.op("add").case("odd f32"), backend="interpreter")
    assert (found.status, says in found.message) == (status, True), found.message


@pytest.mark.parametrize(
    ("raised", "status", "column"),
    [(torch.OutOfMemoryError("CUDA out of memory"), "skipped", "skipped"), (RuntimeError("no such kernel"), "error", "errors")],
)
def test_a_case_that_could_not_be_judged_is_not_called_wrong(
    raised: Exception, status: str, column: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(checker, "_check", fails)
    assert command(monkeypatch, "check", "add__triton", "--case", "odd f32", "--json") == 1  # nothing was judged
    said = json.loads(capsys.readouterr().out)["results"]
    assert {r["status"] for r in said} == {status}
    assert command(monkeypatch, "check", "add__triton", "--case", "odd f32") == 1
    header, row = (line.split() for line in capsys.readouterr().out.splitlines() if line.split()[1:2] in (["ok"], ["0"]))
    counts = dict(zip(header[1:5], map(int, row[1:5]), strict=True))
    assert counts == {"ok": 0, "wrong": 0, "errors": 0, "skipped": 0, column: len(said)}
