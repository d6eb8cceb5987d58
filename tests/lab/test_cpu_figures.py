"""What calls on a CPU take beside torch: what scripts/cpu_calls.py keeps, and its table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rooftop.core import settings
from rooftop.lab.report import cpu_calls

sys.path.insert(0, str(settings.CHECKOUT / "scripts"))
import cpu_calls as script


def test_figures_are_kept_beside_those_of_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "CALM", 0.0)
    out = tmp_path / "cpu" / "cpu_calls.json"
    for names in (["add"], ["sort", "add"]):
        monkeypatch.setattr(sys, "argv", ["cpu_calls.py", "--sizes", "0", "--out", str(out), *names])
        assert script.main() == 0
    kept = json.loads(out.read_text())
    assert list(kept["rows"]) == ["add", "sort"] and all(len(kept["rows"]["sort"]["f32"]["0"][part]) == 2 for part in ("forward", "both"))


def test_every_pair_computes_what_torchs_does() -> None:
    """Two calls are compared in time alone where their results are alike; what is drawn, or writes into its arguments, returns none to compare."""
    import torch

    for name, make in script.pairs(torch.float32, 0).items():
        if name in ("sample", "append_kv", "bias_mask_scale_add dropout"):
            continue
        pair = make()
        exact = (lambda a, b: a.int() @ b.int()) if name == "int_matmul" else pair.theirs  # without VNNI torch._int_mm saturates
        ours, theirs = (f(*pair.tensors, **pair.options) for f in (pair.ours, exact))
        first = [t if isinstance(t, torch.Tensor) else t[0] for t in (ours, theirs)]
        torch.testing.assert_close(*first, rtol=1e-4, atol=1e-4, msg=lambda said, name=name: f"{name}: {said}")


def test_the_table_says_what_is_above_the_allowed() -> None:
    points = {"0": {"forward": [9.0, 2.0], "most": 1.3}, "1": {"forward": [26.0, 20.0], "both": [27.0, 20.0], "most": 1.3}}
    rows = {"add": {"f32": points, "bf16": {"1": {"forward": [38.0, 20.0], "most": 2.0}}}}
    record = {"cpu": "Some", "capability": "AVX2", "torch": "2", "load": 0.5, "rows": rows}
    lines = cpu_calls.text(record).splitlines()
    assert "1 of 3 figures" in lines[1] and lines[-1] == "| `add` | 1.30 | **1.35** | 1.90 | - | 1.3 / 2 | 7 |"
