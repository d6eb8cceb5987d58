"""Attention on Hopper without a GPU: which kernel is chosen and what it launches."""

from __future__ import annotations

from typing import Any

import pytest

from rooftop.core.call import select
from rooftop.core.registry import implementation, op
from rooftop.core.spec import TARGETS, Case, Input, case
from rooftop.kernels.attention._arguments import rest

HOPPER, PORTABLE = "attention_bwd__gluon_sm90", "attention_bwd__triton"


def _packed(sequences: int, size: int = 128, tokens: int = 4096, **more: Any) -> Case:
    x, ends = Input((1, tokens, 8, size), "bf16"), Input((sequences + 1,), "i32")
    numbers = {"left": -1, "right": 0, "scale": size**-0.5, "softcap": 0.0, "dropout_p": 0.0, "seed": 7}
    return case("packed", q=x, k=x, v=x, cu_seqlens_q=ends, cu_seqlens_k=ends, **{**numbers, **more})


@pytest.mark.parametrize(
    ("made", "kernel"),
    [
        (_packed(16), HOPPER), (_packed(64), HOPPER), (_packed(16, 96), HOPPER), (_packed(65), PORTABLE), (_packed(16, 256), HOPPER),
        (_packed(16, dropout_p=0.1), HOPPER), (_packed(16, softcap=9.0), HOPPER), (_packed(16, 256, softcap=9.0), PORTABLE),
        (_packed(16, sinks=Input((8,), "bf16")), HOPPER),
    ],
)
def test_packed_gradients_run_on_hopper_where_sequences_fill_a_block(made: Case, kernel: str) -> None:
    of = op("attention_bwd")
    call = select(of, of.problem(made, TARGETS["h200"])).call
    assert call is not None and call.implementation.name == kernel


def test_the_list_of_tiles_has_room_for_any_offsets() -> None:
    """One for each whole tile, and one for the rest of each sequence and for what lies before the first and behind the last."""
    of, kernel = op("attention_bwd"), implementation(HOPPER)
    problem = of.problem(_packed(16, tokens=1000), TARGETS["h200"])
    scratch = kernel.scratch(problem, kernel.resolve(problem)[0])
    assert scratch["plan_q"].shape == scratch["plan_k"].shape == (8 * (1 + 1000 // 128 + 18),)
    assert scratch["norms"].shape[1] >= 1000 + 2 * 64  # a tile may begin at any token, and the next one is prefetched


def test_products_of_narrow_heads_have_no_more_columns_than_needed() -> None:
    assert [rest(n, 128) for n in (64, 72, 80, 88, 96, 104, 128)] == [0, 16, 16, 32, 32, 0, 0]
    assert rest(80, 256) == 0  # beside wider values the tile is whole
