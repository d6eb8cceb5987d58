"""The tables of docs/models.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rooftop.lab.records import store
from rooftop.lab.report import models_page

CARD = {"name": "NVIDIA H200", "arch": 90, "sms": 132, "l2_bytes": 1 << 20, "shared_per_block": 1 << 16}


def _rows() -> list[dict[str, Any]]:
    def row(what: str, of: str, variant: str, **figures: float) -> dict[str, Any]:
        return {"what": what, "of": of, "variant": variant, "figures": {n.replace("_", " "): v for n, v in figures.items()}}

    return [
        row("train", "llama", "compile", ms=120.0, GiB=20.0), row("train", "llama", "patched", ms=100.0, GiB=10.0),
        row("train", "moe", "compile", ms=150.0, GiB=30.0), row("train", "moe", "patched", ms=200.0, GiB=12.5),
        {"what": "decode", "of": "64", "variant": "rooftop", "figures": {"tokens/s": 27630.0, "of bandwidth": 0.62}},
    ]


def _written(folder: Path, rows: list[dict[str, Any]]) -> None:
    with store.Writer(folder, CARD["name"]) as writer:
        writer.write({"kind": "clock", "subject": "models", "device": CARD, "versions": {}, "transformers": "Transformers 5.17.0", "rows": rows})


def test_tables_and_means(tmp_path: Path) -> None:
    _written(tmp_path, _rows())
    text = models_page.table(list(store.read(tmp_path)), None)  # type: ignore[arg-type]
    assert text.splitlines()[0] == "NVIDIA H200, Transformers 5.17.0."
    assert "| llama | 120.0 (20.0) | 100.0 (10.0) |" in text and "| 64 | 27,630 (62%) |" in text
    assert "- patched over compile: 0.95x in the geometric mean of 2, least 0.75x" in text  # (1.2 x 0.75) ** 0.5


def test_a_figure_that_is_shown_must_be_there(tmp_path: Path) -> None:
    _written(tmp_path, [{"what": "train", "of": "llama", "variant": "patched", "figures": {"GiB": 1.0}}])
    with pytest.raises(store.RecordError, match=r"rows\[0\]\.figures\.ms"):
        list(store.read(tmp_path))
