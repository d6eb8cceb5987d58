"""Tables of what scripts/low_bits.py measured, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rooftop.core import settings
from rooftop.lab.records.record import Record
from rooftop.lab.report import low_bits

SITE: Any = None


def product(m: int, us: float, cublas: float | None, format: str = "int4", **more: float) -> dict[str, Any]:
    return {"format": format, "M": m, "N": 4096, "K": 1024, "us": us, "peers": {"torch": cublas, **more}}


def test_products_are_means_of_a_band_and_its_slowest_point() -> None:
    rows = [product(256, 10.0, 9.0), product(1000, 10.0, 16.0), product(1, 2.0, 6.0), product(1, 2.0, None), product(2, 1.0, 9.0)]
    assert low_bits.products(rows).splitlines()[2:] == [
        "| int4 | 1 | 1 | 3.00 | 3.00 | 1 x 4096 x 1024 |", "| int4 | 256 to 1023 | 2 | 1.20 | 0.90 | 256 x 4096 x 1024 |",
    ]
    table = low_bits.peers([product(16, 2.0, 4.0, humming=8.0)]).splitlines()
    assert table == ["| weights | M | ours | humming |", "|---|---:|---:|---:|", "| int4 | 16 | 2.00 | 0.50 |"]


def test_codes_below_the_floor_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"op": "quantize", "format": f, "way": w, "us": 100.0, "copy_us": 100 * s, "share": s}
        for f, w, s in (("nvfp4", "its groups", 0.87), ("int8", "columns", 0.57), ("e3m2", "blocks", 0.7))  # of columns x is read twice: 40 bits for 24
    ]
    said = "3 pairs of format and granularity, both ways: median 0.87; quantize nvfp4 0.87."
    assert low_bits.codes(rows) == f"{said} Below 0.8: quantize e3m2 by blocks 0.70."
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "low_bits_codes.json").write_text(json.dumps({"device": "A card", "seed": 3, "rows": rows[:2]}))
    monkeypatch.setattr(settings, "load", lambda: type("Of", (), {"results": tmp_path}))
    table = low_bits.TABLES["codes"]([Record({})], SITE)
    assert table.splitlines()[0] == "A card, seed 3." and table.endswith("None below 0.8.")
    assert low_bits.TABLES["sparse"]([Record({})], SITE) == low_bits.NOTHING
    semi = [{"op": "spmm_24", "N": 16, "us": 2.0, "peers": {"cublas": 3.0}}, {"op": "spmm_bsr", "side": 32, "percent": 50, "N": 512, "share": 0.4}]
    assert "| 16 | 1 | 1.50 | 1.50 |" in low_bits.sparse(semi) and "| 32 | 0.5 | 512 | 0.40 |" in low_bits.sparse(semi)
