"""The scripts of docs/models.md run, on tiny models."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rooftop.core import settings

pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[dev]')")
SCRIPTS = settings.CHECKOUT / "scripts"
TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 128, "pad_token_id": 0, "eos_token_id": None,
}


def _run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, *args: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(TINY))
    monkeypatch.setattr(sys, "argv", [script, str(config), *args])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    runpy.run_path(str(SCRIPTS / script), run_name="__main__")


def test_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(monkeypatch, tmp_path, "train_patched.py", "--steps", "2", "--length", "8", "--batch", "2")
    said = capsys.readouterr().out
    assert "rms_norm" in said and "step 1: loss " in said


def test_decoding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(monkeypatch, tmp_path, "decode_patched.py", "--new", "5", "--format", "int8")
    said = capsys.readouterr().out
    assert "\n5 tokens in " in said


@pytest.mark.sampled("compiled")
def test_the_measuring_script_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One process, of the small sizes; the timings say nothing."""
    measure = runpy.run_path(str(SCRIPTS / "measure_models.py"))
    args = type("Args", (), {"tiny": True, "device": "cpu", "backend": "eager", "prompt": 8, "new": 4, "bandwidth": 1e9})()
    assert measure["train"](args, "moe", "patched+residual")()["ms"] > 0
    found = [measure["decode"](args, 2, v)() for v in ("transformers", "rooftop", "rooftop+int4+head")]
    assert all(f["tokens/s"] > 0 for f in found)
    assert all(measure["experts"](args, "8 of 64, 2048 x 768", v)()["ms"] > 0 for v in ("transformers", "rooftop"))
