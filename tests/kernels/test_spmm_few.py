"""2:4 products of few columns: several stages of K, parts of it in different blocks, both layouts of b."""

from __future__ import annotations

from typing import Any

import pytest
from _kernels import fixed, right

pytest.importorskip("triton")

from rooftop.core import registry
from rooftop.core.spec import TARGETS, Input, case

FEW = "spmm_24__few__cuda_sm80"
WAYS: list[tuple[int, int, int, str, int, dict[str, Any]]] = [  # M, N, K, layout of b, parts of K, more
    (150, 1, 1500, "contiguous", 1, {}),
    (40, 16, 1024, "transposed", 2, {"transposed": True}),
    (140, 10, 1100, "contiguous", 3, {"bias": "rows", "activation": "relu", "alpha": 0.5}),
    (24, 33, 2300, "transposed", 4, {"bias": "columns", "activation": "gelu", "transposed": True}),
    (16, 64, 1536, "contiguous", 1, {}),
    (130, 24, 770, "padded", 2, {"dtype": "f16"}),
]


@pytest.mark.sampled("kernels", FEW)
@pytest.mark.parametrize("number", range(len(WAYS)))
def test_every_way_is_right(number: int) -> None:
    m, n, k, layout, split, more = WAYS[number]
    how = {"dtype": "bf16", "bias": "", "activation": "none", "alpha": 1.0, "transposed": False, **more}
    bias = {"": None, "rows": Input((m, 1), how["dtype"]), "columns": Input((1, n), how["dtype"])}[how["bias"]]
    given = {
        "values": Input((m, 2 * -(-k // 4)), how["dtype"]), "meta": Input((-(-m // 16), -(-k // 256), 32, 4), "i32"),
        "b": Input((k, n), how["dtype"], layout=layout), "bias": bias, "alpha": how["alpha"], "activation": how["activation"],
        "transposed": how["transposed"],
    }
    few = registry.implementation(FEW)
    found = right(fixed(FEW, lambda problem: {**few.choose(problem), "split": split}), case("c", **given), seed=number)
    assert found.path[0].startswith("few_columns<") and len(found.path) == 1 + (split > 1)


def test_what_is_chosen_fits_a_multiprocessor() -> None:
    op, few = registry.op("spmm_24"), registry.implementation(FEW)
    for arch in (80, 90):
        for n in (1, 8, 9, 16, 33, 64):
            for m, k in ((16, 64), (4096, 14336), (14336, 4096), (1000, 1000)):
                given = {
                    "values": Input((m, 2 * -(-k // 4)), "bf16"), "meta": Input((-(-m // 16), -(-k // 256), 32, 4), "i32"),
                    "b": Input((k, n), "bf16"), "bias": None, "alpha": 1.0, "activation": "none", "transposed": False,
                }
                problem = op.problem(case("c", **given), TARGETS[arch])
                config = few.choose(problem)
                first = few.launches(problem, config)[0]
                assert first.shared <= problem.device.shared_per_block and config["stages"] >= 2 and config["wide"] >= n
                assert m * k < 1 << 24 or first.grid[0] * first.grid[1] >= problem.device.sms * 4 // 9  # else memory idles
