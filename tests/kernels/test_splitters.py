"""kthvalue and topk_mask by a bracket: what a block holds, how rarely a bracket misses, and every way to the k-th, in the simulator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from _kernels import right

from rooftop.core import registry
from rooftop.core.spec import TARGETS, Input, Meta, case
from rooftop.kernels.select import _splitter_rows, _top_k

ROWS = {"way": "rows", "sample": 512, "slots": 4, "capacity": 2048, "threads": 256, "splits": 1}
NO_ROOM = ROWS | {"slots": 2, "capacity": 576}
LAST = {"last_sample": 512, "last_slots": 1, "last_capacity": 4096}
PARTS = {"way": "parts", "sample": 512, "slots": 1, "capacity": 2560, "threads": 512, "splits": 3, "per": 2304, "levels": 1, "room0": 4096, "room1": 0, **LAST}
TWICE = PARTS | {"levels": 2, "room1": 2048}
FULL_LIST = PARTS | {"room0": 16}
CONFIGS = {"rows": ROWS, "no room": NO_ROOM, "parts": PARTS, "twice": TWICE, "full list": FULL_LIST}


@pytest.mark.sampled("kernels", "{op}__splitters__cuda_sm80")
@pytest.mark.parametrize("fill", ["normal", "equal", "integers", "nan", "far", "-0.0"])
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("op", ["kthvalue", "topk_mask"])
def test_every_way_to_the_kth(op: str, config: str, fill: str) -> None:
    dtype = {"integers": "i64", "far": "f32", "-0.0": "bf16"}.get(fill, "f32")
    for k in (700, 3000, 6190):
        given: dict[str, Any] = {"x": Input((2, 6211), dtype, "normal" if fill == "integers" else fill), "k": k, "nan": "largest"}
        if op == "topk_mask":
            given |= {"lengths": Input((2,), "i32", "integers"), "largest": k != 3000}
        right(f"{op}__splitters__cuda_sm80", case(f"k {k}", **given), CONFIGS[config], seed=4)


def test_a_block_holds_what_lies_inside() -> None:
    """For any rows, length, dtype and card: sample and entries fit the shared memory, lists have room, and the parts cover the row."""
    op, planned = registry.op("kthvalue"), 0
    for device in (d for d in (*TARGETS.values(), *TARGETS.names.values()) if not d.gfx):
        for dtype in ("f32", "bf16", "i64"):
            for rows in (1, 3, 64, 131, 200, 4096):
                for n in (4096, 5000, 33000, 131072, 1 << 20, 1 << 24, 1 << 30):
                    p = op.problem_of({"x": Meta((rows, n), dtype), "lengths": None}, {"k": n // 2, "nan": "largest"}, device)
                    c = _splitter_rows.plan(p)
                    if c is None:
                        assert n > 1 << 20
                        continue
                    key = _top_k.key_bytes(p)
                    held = [(c["sample"], c["slots"], c["capacity"], c["threads"])]
                    if c["splits"] > 1:
                        held.append((c["last_sample"], c["last_slots"], c["last_capacity"], _splitter_rows.WIDE))
                        assert c["per"] * c["splits"] >= n > c["per"] * (c["splits"] - 1)
                        assert c["room0"] >= _splitter_rows.inside(n, c["sample"]) and (c["room0"], c["room1"])[c["levels"] - 1] <= _splitter_rows.SINGLE
                    for m, slots, capacity, threads in held:
                        assert (_splitter_rows.WIDE // threads) * (capacity * (key + 4) + 2 * _top_k.RESERVED) <= device.shared_per_block
                        assert m * key <= capacity * (key + 4) and slots * threads >= m and capacity > slots * threads
                    part = c["per"] / n if c["splits"] > 1 else 1.0
                    assert c["slots"] * c["threads"] >= part * _splitter_rows.inside(n, c["sample"])
                    planned += 1
    assert planned > 400


@pytest.mark.parametrize("k", [600, 4096, 7000])
def test_a_bracket_hardly_ever_misses(k: int) -> None:
    """Of 2000 random samples of 512 of 8192: none whose bracket leaves the k-th out, or has more inside than there is room for."""
    generator, n, m = torch.Generator().manual_seed(k), 8192, 512
    part = k / n
    spread = 4 * (part * m * (1 - part)) ** 0.5 + 4
    first, last = int(part * m - spread), int(part * m + spread) + 1
    for _ in range(2000):
        found = torch.randperm(n, generator=generator)[:m].sort().values + 1
        high, low = (int(found[first - 1]) if first >= 1 else 0), (int(found[last - 1]) if last <= m else n + 1)
        assert high <= k <= low and low - high <= _splitter_rows.inside(n, m)
