"""The backward of attention on Hopper in threads: warps that are specialised, barriers and copies, and blocks that compute several tiles."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch

from rooftop.core import registry
from rooftop.core.spec import TARGETS, Input, case
from tests import _gluon_threads as threads

NAME = "attention_bwd__gluon_sm90"
FILE = registry.implementation(NAME).path


def kernels() -> dict[str, Any]:
    given: dict[str, Any] = {"gdc_wait": threads.nothing, "gdc_launch_dependents": threads.nothing}
    for name in ("_packed_sm90", "_scores_sm90", "_bwd_sm90", "_bwd_keys_sm90", "_bwd_queries_sm90"):
        given |= threads.functions(FILE.with_name(f"{name}.py"), **given)
        given["clear_rows"] = clear_rows
    return threads.functions(FILE, **given)


def clear_rows(tile: threads.Shared, there: Any, rows: int) -> None:
    """What that of rooftop/kernels/attention/_packed_sm90.py does."""
    tile.values[max(int(there), 0) :] = 0


def plan(ends: list[int], total: int, block: int, room: int) -> torch.Tensor:
    """What `plan_tiles` lists where both sides have the same sequences and no token lies outside of them."""
    found = [
        (row, [begin, end - begin, begin, end - begin, row])
        for begin, end in itertools.pairwise(ends) for row in range(0, end - begin, block)
    ]
    listed = [[len(found), *[0] * 7]] + [[*x, 0, 0, 0] for _, x in sorted(found, key=lambda x: x[0])]
    flat = torch.tensor(listed, dtype=torch.int32).flatten()
    return torch.cat([flat, torch.zeros(room - flat.numel(), dtype=torch.int32)])


def _ends(sq: int, packed: tuple[int, ...]) -> list[int]:
    return [0, *(sum(packed[: i + 1]) for i in range(len(packed)))] if packed else [0, sq]


@pytest.mark.parametrize(("batch", "sq", "sk", "heads", "key_heads", "size", "right", "left", "blocks", "packed"), [
    (1, 300, 300, 2, 1, 64, 0, -1, 2, ()), (2, 200, 330, 2, 2, 64, -1, -1, 3, ()), (1, 260, 260, 2, 2, 128, 0, -1, 2, ()),
    (1, 200, 200, 2, 2, 80, -1, -1, 1, ()), (1, 200, 200, 1, 1, 256, 0, -1, 2, ()), (1, 300, 300, 2, 1, 64, 0, 70, 2, ()),
    (1, 400, 400, 2, 2, 64, 0, -1, 3, (170, 3, 227)), (1, 400, 400, 2, 1, 128, -1, -1, 3, (0, 140, 260)),
])
@pytest.mark.sampled("kernels", NAME)
def test_blocks_of_several_tiles_give_the_gradients(
    batch: int, sq: int, sk: int, heads: int, key_heads: int, size: int, right: int, left: int, blocks: int, packed: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    numbers = {"left": left, "right": right, "scale": size**-0.5, "softcap": 0.0, "dropout_p": 0.0, "seed": 7}
    q, kv = Input((batch, sq, heads, size), "f16"), Input((batch, sk, key_heads, size), "f16")
    more = {n: Input((len(packed) + 1,), "i32") for n in ("cu_seqlens_q", "cu_seqlens_k")} if packed else {}
    made = case("threads", q=q, k=kv, v=kv, **more, **numbers)
    of = registry.op("attention_bwd")
    problem = of.kernel_problem(of.problem(made, dataclasses.replace(TARGETS["h200"], sms=blocks)))
    assert problem is not None
    kernel = registry.implementation(NAME)
    assert kernel.supports(problem) is None
    config, _ = kernel.resolve(problem)
    tensors = {n: torch.randn(x.shape).half() for n, x in {"q": q, "k": kv, "v": kv, "dout": q}.items()}
    of64 = {n: tensors[n].double().requires_grad_() for n in "qkv"}
    spread = {n: x.repeat_interleave(heads // x.shape[2], 2).transpose(1, 2) for n, x in of64.items()}
    z = spread["q"] @ spread["k"].mT * size**-0.5
    at_q, at_k = torch.arange(sq)[:, None] + (sk - sq), torch.arange(sk)[None, :]
    hidden = (at_k > at_q + right if right >= 0 else at_k < 0) | (at_k < at_q - left if left >= 0 else at_k < 0)
    if packed:
        of_q, of_k = (torch.bucketize(torch.arange(n), torch.tensor(_ends(sq, packed)[1:]), right=True) for n in (sq, sk))
        hidden = hidden | (of_q[:, None] != of_k[None, :])
    z = z.masked_fill(hidden, -math.inf)
    out = (z.softmax(-1) @ spread["v"]).transpose(1, 2)
    out.backward(tensors["dout"].double())
    scratch = {n: torch.full(m.shape, math.nan, dtype=getattr(torch, {"f32": "float32", "i32": "int32"}[m.dtype]) if m.dtype == "f32" else torch.float32)
               for n, m in kernel.scratch(problem, config).items()}
    for n, x in (("norms", z.logsumexp(-1) / math.log(2)), ("deltas", (out * tensors["dout"]).sum(-1).transpose(1, 2))):
        scratch[n].zero_()
        scratch[n].view(batch, heads, -1)[..., :sq] = x.detach()
    for n, block in (("plan_k", 64 if size > 128 else 128), ("plan_q", 128)):
        if packed:
            scratch[n] = plan(_ends(sq, packed), sq, block, scratch[n].numel())
    results = {f"d{n}": torch.full_like(tensors[n], math.nan) for n in "qkv"}
    found = kernels()
    for launch in kernel.launches(problem, config):
        name = launch.kernel.__name__
        if name in ("_keys", "_queries"):
            assert launch.grid[0] <= blocks
            threads.launch(found[name], launch.grid, launch.args, {**tensors, **scratch, **results, "scale": size**-0.5})
    assert config.parts == 1
    for n in "qkv":
        want = of64[n].grad
        assert want is not None
        worst = float((results[f"d{n}"].double() - want).abs().max() / want.square().mean().sqrt())
        assert worst < 0.03, f"d{n} is {worst} off"
