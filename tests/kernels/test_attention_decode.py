"""Attention of one query without a GPU: the list of tiles that programs share, run by the interpreter, and how many share it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rooftop.core.call import select
from rooftop.core.contract import metas_of
from rooftop.core.registry import implementation, op
from rooftop.core.spec import TARGETS, Case, Input, case
from rooftop.lab.check import checker, judgement

DECODE = "attention__decode__triton"
OPTIONS: dict[str, Any] = {"left": -1, "right": -1, "scale": 0.25, "softcap": 0.0, "dropout_p": 0.0, "seed": 7}
LENGTHS = ([0, 1, 70, 33, 16], [0, 0, 0, 0, 99], [99, 99, 99, 99, 99], None)


def _given(lengths: list[int] | None, page: int, **more: Any) -> dict[str, Any]:
    """5 sequences of up to 99 keys, 4 heads of 2; in pages, those of a sequence in reversed order."""
    generator = torch.Generator().manual_seed(3)
    found: dict[str, Any] = dict.fromkeys(op("attention").tensor_names)
    found["q"] = torch.randn(5, 1, 4, 16, generator=generator).bfloat16()
    shape = (5, 99, 2, 16) if not page else (5 * -(-99 // page), page, 2, 16)
    found |= {n: torch.randn(shape, generator=generator).bfloat16() for n in "kv"}
    if lengths is not None:
        found["cache_lengths"] = torch.tensor(lengths, dtype=torch.int32)
    if page:
        found["page_table"] = torch.arange(shape[0], dtype=torch.int32).view(5, -1).flip(1).contiguous()
    return found | more


@pytest.mark.sampled("kernels", DECODE)
@pytest.mark.parametrize("lengths", LENGTHS, ids=["mixed", "one", "alike", "none"])
@pytest.mark.parametrize(("programs", "page", "left"), [(3, 0, -1), (7, 0, 20), (23, 16, -1)])
def test_programs_share_the_tiles_of_all_sequences(programs: int, page: int, left: int, lengths: list[int] | None) -> None:
    of = op("attention")
    if page and lengths is None:
        lengths = [99] * 5
    tensors, options = _given(lengths, page, sinks=torch.full((4,), 0.5).bfloat16() if programs == 3 else None), {**OPTIONS, "left": left}
    problem = of.problem_of(metas_of(tensors), options, TARGETS[90])
    call = select(of, problem, "decode__triton").call
    assert call is not None
    call = call.with_config(type(call.config)(programs, 16, 4, 2))
    got, _ = checker.Trial(call, "cpu", checker.RUNNERS["interpreter"], 64).run(tensors, options, 0xFF)
    verdicts = judgement.judge_given(of, problem, judgement.expect_given(of, problem, tensors, options), got)
    assert not {n: v.message for n, v in verdicts.items() if not v.ok}


def _decode(batch: int, keys: int, heads: int = 8, **more: Any) -> Case:
    cache = Input((batch, keys, heads, 128), "bf16")
    return case("decode", q=Input((batch, 1, 4 * heads, 128), "bf16"), k=cache, v=cache, **OPTIONS, **more)


@pytest.mark.parametrize(
    ("made", "programs"),
    [
        (_decode(1, 8192), 396), (_decode(1, 512), 32), (_decode(54, 1630), 396),  # few tiles: two each
        (_decode(108, 1705), 864), (_decode(20, 1399), 160),  # a program each ends as evenly
        (_decode(108, 1705, cache_lengths=Input((108,), "i32")), 396), (_decode(4096, 512, 1, cache_lengths=Input((4096,), "i32")), 4096),
    ],
)
def test_the_list_is_divided_where_a_program_each_would_end_unevenly(made: Case, programs: int) -> None:
    kernel = implementation(DECODE)
    assert kernel.resolve(op("attention").problem(made, TARGETS["h200"]))[0].programs == programs
