"""scripts/prove_selection.py on a CPU at small counts; a wrong order and a wrong distribution fail it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import rooftop
from rooftop.lab.fuzz import selection

SCRIPT = Path(__file__).parents[2] / "scripts" / "prove_selection.py"


@pytest.fixture
def prove(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("prove_selection", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(selection, "SHAPES", ((60, (1, 7)), (200, (5,))))
    monkeypatch.setattr(selection, "LONG", 300)

    def run() -> tuple[int, dict[str, Any]]:
        code = module.main(["--device", "cpu", "--rows", "24", "--draws", "20000", "--out", str(tmp_path / "a" / "out.json")])
        return code, json.loads((tmp_path / "a" / "out.json").read_text(encoding="utf-8"))

    return run


def test_what_is_right_is_proven(prove: Any) -> None:
    code, record = prove()
    assert code == 0 and record["wrong"] == [] and sum(record["rows"].values()) >= 24
    assert len(record["draws"]) == 2 * len(selection.WAYS) and all(way["right"] and way["degrees"] > 0 for way in record["draws"])


@pytest.mark.parametrize("op", ["topk", "kthvalue", "topk_mask", "sort", "argsort"])
def test_a_wrong_order_is_found(prove: Any, monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    right = getattr(rooftop, op)

    def last_of_equals(x: Any, *args: Any, **named: Any) -> Any:
        """Among equals the highest index: wrong in rows with equal elements alone."""
        found = right(x.flip(-1), *args, **named)
        if op == "topk_mask":
            return found.flip(-1)
        return x.shape[-1] - 1 - found if op == "argsort" else (found[0], x.shape[-1] - 1 - found[1])

    monkeypatch.setattr(rooftop, op, last_of_equals)
    code, record = prove()
    assert code == 1 and all(text.startswith(f"{op} ") for text in record["wrong"])


@pytest.mark.parametrize("change", [{"temperature": 1.1}, {"top_k": 1}, {"masked": True}])
def test_a_wrong_distribution_is_found(prove: Any, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    right = rooftop.sample

    def other(logits: Any, temperature: float, **named: Any) -> Any:
        if "masked" in change:
            return right(logits, temperature, seed=named["seed"])  # nothing is left out
        return right(logits, temperature * change.get("temperature", 1.0), **(named | {n: v for n, v in change.items() if n == "top_k"}))

    monkeypatch.setattr(rooftop, "sample", other)
    code, record = prove()
    assert code == 1 and any("sample" in text for text in record["wrong"])
