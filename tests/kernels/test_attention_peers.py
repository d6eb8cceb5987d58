"""What stands beside attention when it is timed: FlexAttention, the wheel of cuDNN, and the script of the floors."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from rooftop.core import settings
from rooftop.core.registry import op
from rooftop.core.spec import TARGETS
from rooftop.lab.candidates import Subject
from rooftop.lab.inputs import make


@pytest.mark.parametrize(
    "name", ["packed, 4 tiles", "packed, of other lengths", "ALiBi of the batch, packed", "cache lengths, 3 tiles", "window on both sides", "soft cap", "d80"]
)
def test_flex_attention_is_given_the_same_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    of = op("attention")
    tensors, options = make(of, next(c for c in of.cases if c.id == f"{name} bf16"), "cpu", 1)
    out, lse = of.peers["torch.compile"]()(*of.arguments(tensors, options))
    want = of.reference(*of.arguments({n: x.float() if x is not None and x.is_floating_point() else x for n, x in tensors.items()}, options))
    torch.testing.assert_close(out.float(), want[0], atol=0.02, rtol=0.02)
    torch.testing.assert_close(lse, want[1], atol=1e-4, rtol=1e-4)


def test_flex_attention_is_not_given_what_it_has_not() -> None:
    of = op("attention")
    tensors, options = make(of, next(c for c in of.cases if c.id == "sinks bf16"), "cpu", 1)
    with pytest.raises(ValueError, match="alone"):
        of.peers["torch.compile"]()(*of.arguments(tensors, options))


@pytest.mark.parametrize("name", ["attention", "attention_bwd"])
def test_the_wheel_of_cudnn_stands_beside_torchs_copy_or_is_said_to_be_absent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = op(name)
    assert {"torch cuDNN", "cuDNN frontend", "torch FlashAttention-2", "torch.compile"} <= set(of.peers)
    monkeypatch.setitem(sys.modules, "cudnn", None)
    assert "cudnn" in str(Subject("peer:cuDNN frontend", of, peer="cuDNN frontend").absent())


@pytest.fixture(scope="module")
def floors() -> ModuleType:
    spec = importlib.util.spec_from_file_location("attention_floors", settings.PACKAGE.parent / "scripts" / "attention_floors.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_points_of_the_floors_follow_from_a_seed_and_a_kernel_takes_each(floors: Any) -> None:
    for part in floors.PARTS:
        found = floors.points(part, 3, 8)
        assert found == floors.points(part, 3, 8) and len(found) == (6 if part in ("eight", "latent") else 8)
        for _, name, of in found[:3]:
            assert floors.chosen(op(name), of, TARGETS["h200"]).implementation is not None


def test_the_table_of_the_floors_holds_each_part_against_what_it_names(floors: Any) -> None:
    row = {"part": "decode", "case": "one", "by": "attention__decode__triton", "us": 10.0, "read_us": 8.0, "bytes": 1 << 29, "tflops": 1.0, "differs": {}}
    peers = [{"torch SDPA": 9.0}, {"torch SDPA": 16.0}]
    said = floors.table([*({**row, "peers": p} for p in peers), {"part": "eight", "case": "three", "error": "out of memory"}])
    assert "decode: 2 of 2 points, geometric mean 1.200, least 0.900" in said and "from 256 MiB: 0.800" in said and "eight three: out of memory" in said


def test_the_documents_table_is_that_of_the_record(floors: Any) -> None:
    root = settings.PACKAGE.parent
    record = json.loads((root / "results" / "h200" / "attention_floors.json").read_text())
    rows = [r for r in record["rows"] if "us" in r]
    large = [r for r in rows if r["part"] in ("decode", "decode8") and r["bytes"] >= floors.LARGE]
    found = {words: [floors.ratio(r) for r in rows if r["part"] == part] for words, part in (("forward |", "forward"), ("backward |", "backward"))}
    found["one query |"] = [floors.ratio(r) for r in rows if r["part"] == "decode"]
    for words, part in (("one query, from 256 MiB |", "decode"), ("cache of 8 bits |", "decode8")):
        found[words] = [r["read_us"] / r["us"] for r in large if r["part"] == part]
    lines = (root / "docs" / "attention.md").read_text().splitlines()
    for words, ratios in found.items():
        line = next(x for x in lines if x.startswith("|") and words in x and "---" not in x)
        assert line.split("|")[2].strip() == str(len(ratios))
        assert line.endswith(f"| {floors.mean(ratios):.2f} | {min(ratios):.2f} |")
