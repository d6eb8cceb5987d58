"""A small Llama gives a token the same bits alone, in a batch, padded, packed, in chunks, decoded; and training the losses of inference."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from rooftop.core import settings

pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[dev]')")
TINY = ["--device", "cpu", "--tiny", "--length", "7"]


def test_every_way_has_the_same_bits(tmp_path: Path) -> None:
    script = runpy.run_path(str(settings.CHECKOUT / "scripts" / "invariant_llama.py"))
    assert script["main"]([*TINY, "--out", str(tmp_path / "with.json")]) == 0
    record = json.loads((tmp_path / "with.json").read_text())
    assert len(record["ways"]) == 7 and all(way["values"] > 10 for way in record["ways"])
    script["main"]([*TINY, "--free", "--out", str(tmp_path / "without.json")])
    assert any(way["unequal"] for way in json.loads((tmp_path / "without.json").read_text())["ways"])  # what is compared can differ
