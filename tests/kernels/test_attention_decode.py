"""The decode kernel: key heads that share a block, and parts of the keys, in the interpreter."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from rooftop.core import registry, settings
from rooftop.core.call import Call, select
from rooftop.core.contract import metas_of
from rooftop.core.spec import TARGETS
from rooftop.kernels.attention import attention__decode__triton as decode
from rooftop.lab.check import checker

OP = registry.op("attention")
OPTIONS = {"left": -1, "right": 0, "scale": 0.2, "softcap": 0.0, "dropout_p": 0.0, "seed": 0}


def _call(tensors: dict[str, Any], sms: int = 132) -> Call:
    device = dataclasses.replace(TARGETS["h200"], sms=sms)
    call = select(OP, OP.problem_of(metas_of(tensors), OPTIONS, device), "attention__decode__triton").call
    assert call is not None
    return call


def _tensors(kind: torch.dtype, keys: int, heads: int, columns: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, n, h, columns, generator=generator) for n, h in ((3, 2 * heads), (keys, heads), (keys, heads)))
    tensors = dict.fromkeys(OP.tensor_names) | {"q": q.bfloat16(), "k": k.to(kind), "v": v.to(kind)}
    if kind.itemsize == 1:
        tensors |= {"k_scale": torch.rand(heads, generator=generator) + 0.5, "v_scale": torch.rand(heads, generator=generator) + 0.5}
    return tensors


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("kind", "heads", "columns", "shared"), [
    (torch.float8_e4m3fn, 2, 64, 2), (torch.float8_e4m3fn, 3, 64, 1), (torch.float8_e4m3fn, 2, 128, 1), (torch.bfloat16, 4, 32, 2),
    (torch.bfloat16, 2, 24, 1),
])
def test_key_heads_of_a_block_and_parts_of_the_keys(kind: torch.dtype, heads: int, columns: int, shared: int, parts: int) -> None:
    tensors = _tensors(kind, 300, heads, columns)
    call = _call(tensors)
    assert decode._heads(call.problem) == shared
    call = call.with_config(dataclasses.replace(call.config, parts=parts))
    got, _ = checker.Trial(call, "cpu", checker.RUNNERS["interpreter"], 64).run(tensors, OPTIONS, 0xFF)
    wide = {n: x.double() if x is not None and x.is_floating_point() else x for n, x in tensors.items()}
    for name, want in zip(("out", "lse"), OP.reference(*OP.arguments(wide, OPTIONS)), strict=False):
        torch.testing.assert_close(got[name].double(), want.double(), rtol=2e-2, atol=1e-2)


def test_the_parts_are_within_a_tenth_of_the_fastest_of_the_record() -> None:
    rows = json.loads((settings.PACKAGE.parent / "results" / "h200" / "decode_parts.json").read_text())["rows"]
    beyond = []
    for row in rows:
        kv = torch.empty(row["batch"], row["keys"], row["key_heads"], row["columns"], device="meta",
                         dtype=torch.bfloat16 if row["bits"] == 16 else torch.float8_e4m3fn)
        q = torch.empty(row["batch"], 1, row["heads"], row["columns"], device="meta", dtype=torch.bfloat16)
        tensors = dict.fromkeys(OP.tensor_names) | {"q": q, "k": kv, "v": kv}
        if row["bits"] == 8:
            tensors |= {n: torch.empty(1, device="meta") for n in ("k_scale", "v_scale")}
        us = row["us"].get(str(_call(tensors).config.parts))  # some numbers of parts were not timed
        if us is not None:
            beyond.append(us / min(row["us"].values()))
    assert len(beyond) >= 20
    assert max(beyond) < 1.1
    assert sum(beyond) / len(beyond) < 1.02


def test_blocks_that_are_alone_have_a_tile_more_and_no_part_is_empty() -> None:
    tensors = _tensors(torch.bfloat16, 3000, 2, 128)
    for sms, stages in ((132, 4), (1, 3)):
        config = _call(tensors, sms).config
        blocks, tiles = 4 * config.parts, -(-3000 // config.BN)
        assert config.stages == stages
        assert (blocks <= sms) == (stages == 4)
        assert -(-tiles // -(-tiles // config.parts)) == config.parts
