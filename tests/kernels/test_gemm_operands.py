"""Operands and results of the Hopper products: what TMA rounds, what is copied first, what blocks share, and GELU in few instructions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
import torch
import triton
import triton.language as tl

from rooftop.core import registry
from rooftop.core.call import select
from rooftop.core.dispatch import explain_problem
from rooftop.core.spec import TARGETS, Descriptor, Meta, Problem
from rooftop.kernels._device.activations import gelu_coarse, gelu_fine, gelu_tanh_fine
from rooftop.kernels._device.gemm_epilogue import finish
from rooftop.kernels.gemm import matmul__multicast__cuda_sm90 as clusters
from rooftop.lab import candidates
from rooftop.lab.interpret import interpreter
from rooftop.ops.matmul import rounded

OPTIONS = {"alpha": 1.0, "beta": 0.0, "activation": "none", "to": "", "precision": "ieee"}


def product(a: Meta, b: Meta, **options: Any) -> Problem:
    op = registry.op("matmul")
    return op.problem_of({**dict.fromkeys(op.tensor_names), "a": a, "b": b}, {**OPTIONS, **options}, TARGETS["h200"])


@triton.jit
def _activated(x, out, N, WHICH: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    v = tl.load(x + at, mask=at < N, other=0.0)
    y = gelu_coarse(v) if WHICH == 0 else gelu_fine(v) if WHICH == 1 else gelu_tanh_fine(v)
    tl.store(out + at, y, mask=at < N)


@pytest.mark.parametrize(("which", "approximate", "bound"), [(0, "none", 2.9e-4), (1, "none", 7e-6), (2, "tanh", 1.2e-4)])
def test_gelu_errs_as_its_docstring_says(which: int, approximate: str, bound: float) -> None:
    """Relative to the result, down to the tail of negative x that float16 still tells from 0; then what is infinite, NaN, huge or tiny."""
    x = torch.cat([torch.linspace(-5.5, 12, 40000), torch.tensor([0.0, -0.0, 1e30, -1e30, 3e-39, -3e-39, math.inf, -math.inf, math.nan, -40.0, 80.0])])
    out = torch.empty_like(x)
    interpreter.run(_activated, (-(-len(x) // 1024),), {"x": x, "out": out, "N": len(x), "WHICH": which}, readonly=["x"])
    want = torch.nn.functional.gelu(x.double(), approximate=approximate)
    body = slice(0, 40000)
    error = (out[body].double() - want[body]).abs() / want[body].abs().clamp_min(1e-30)
    assert float(error[want[body] != 0].max()) < bound
    assert torch.equal(out[40000:40002], torch.zeros(2)) and out[40002] == 1e30 and abs(float(out[40003])) == 0
    assert out[40006] == math.inf and out[40007].isnan() and out[40008].isnan() and abs(float(out[40009])) == 0 and out[40010] == 80


def test_tf32_is_the_nearest() -> None:
    x = torch.cat([torch.randn(4000), torch.tensor([1 + 2.0**-11, -1 - 2.0**-11, 1 + 3 * 2.0**-11, 0.0, math.inf, -math.inf, 3.4028e38])])
    near = rounded(x)
    assert bool(((near - x).abs() <= x.abs() * 2.0**-11)[:4000].all())
    assert near[4000:4007].tolist() == [1 + 2.0**-10, -1 - 2.0**-10, 1 + 2.0**-9, 0.0, math.inf, -math.inf, math.inf]
    assert rounded(torch.tensor([math.nan])).isnan()


def test_tma_rounds_operands_of_tf32_and_no_result() -> None:
    problem = product(Meta((256, 128), "f32"), Meta((128, 256), "f32", (1, 128)), precision="tf32")
    chosen = select(registry.op("matmul"), problem)
    assert chosen.call is not None and chosen.call.implementation.name == "matmul__tf32__gluon_sm90"
    [launch] = chosen.call.launches
    found = {n: v.dtype for n, v in launch.args.items() if isinstance(v, Descriptor)}
    assert found.pop("out_desc", "") == "" and found == {"a_desc": "tf32", "b_desc": "tf32"}


@pytest.mark.parametrize(("a", "b", "name", "said"), [
    (Meta((4096, 4095), "bf16"), Meta((4095, 4096), "bf16"), "matmul__copied__gluon_sm90", "TMA does not read a where it lies: copied first, predicted"),
    (Meta((4096, 4096), "bf16", align=2), Meta((4096, 4097), "bf16"), "matmul__copied__gluon_sm90", "TMA does not read a and b where it lies"),
    (Meta((7, 4097), "bf16"), Meta((4097, 4098), "bf16"), "matmul__triton", ""),
    (Meta((109, 5755), "bf16"), Meta((5755, 1445), "bf16"), "matmul__few__cuda_sm90", "TMA does not read a and b: loaded by threads"),
    (Meta((4096, 4096), "bf16"), Meta((4096, 4096), "bf16"), "matmul__gluon_sm90", "predicted"),
])
def test_operands_that_tma_does_not_read_are_copied_where_that_pays(a: Meta, b: Meta, name: str, said: str) -> None:
    op = registry.op("matmul")
    problem = product(a, b)
    chosen = select(op, problem)
    assert chosen.call is not None and chosen.call.implementation.name == name
    assert said in str(explain_problem(op, problem))
    if "copied" in name:
        copies = [x for x in chosen.call.launches if x.kernel.__name__ == "split_rows"]
        assert len(copies) == said.count("and") + 1
        assert all(m.shape[-1] % 8 == 0 for n, m in chosen.call.scratch.items() if n.endswith("_rows")), "rows on multiples of 16 bytes"


@pytest.mark.parametrize(("a", "b", "copied"), [
    (Meta((665, 2366), "f8e4m3"), Meta((2366, 1159), "f8e4m3", (1, 2366)), ["a", "b"]),
    (Meta((4096, 2048), "i8"), Meta((2048, 4096), "i8"), ["b"]),
    (Meta((4096, 2048), "i8"), Meta((2048, 4096), "i8", (1, 2048)), []),
    (Meta((7, 33), "f8e5m2"), Meta((33, 9001), "f8e4m3"), None),
])
def test_operands_of_8_bits_are_copied_in_rows_along_k(a: Meta, b: Meta, copied: list[str] | None) -> None:
    """None: threads read them where they lie."""
    op = registry.op("int_matmul" if a.dtype == "i8" else "scaled_matmul")
    given: dict[str, Any] = {"a": a, "b": b} if a.dtype == "i8" else {"a": a, "b": b, "scale_a": Meta((1,), "f32"), "scale_b": Meta((1,), "f32"), "bias": None}
    problem = op.problem_of(given, {} if a.dtype == "i8" else {"scales": "one", "fast": False, "to": "bf16"}, TARGETS["h200"])
    call = select(op, problem).call
    assert call is not None
    if copied is None:
        assert call.implementation.name.endswith("__triton")
        return
    assert call.implementation.name.endswith("__gluon_sm90") and [x.args["x"] for x in call.launches if x.kernel.__name__ == "split_rows"] == copied
    [last] = [x for x in call.launches if x.kernel.__name__.startswith("product")]
    assert {last.args[f"{n}_desc"].tensor for n in "ab"} == {f"{n}_rows" if n in copied else n for n in "ab"} or last.args["SWAP"]
    assert all(v.strides[-2] % 16 == 0 and v.strides[-1] == 1 for v in last.args.values() if isinstance(v, Descriptor) and v.strides and v.tensor != "out")
    for name in copied:
        assert call.scratch[f"{name}_rows"].dtype == given[name].dtype


@pytest.mark.parametrize(("a", "b", "why"), [
    (Meta((256, 64), "bf16"), Meta((64, 256), "bf16", (512, 2)), "rows or columns of b must be neighbours"),
    (Meta((256, 65), "bf16"), Meta((65, 256), "bf16", (1, 65)), "TMA does not copy"),
    (Meta((256, 64), "bf16"), Meta((64, 100), "bf16", (1, 64)), "TMA"),
    (Meta((2, 256, 64), "bf16"), Meta((2, 64, 256), "bf16"), "3 dimensions"),
])
def test_what_two_blocks_of_a_cluster_do_not_take(a: Meta, b: Meta, why: str) -> None:
    [subject] = candidates.find(["matmul__multicast__cuda_sm90"])
    assert subject.implementation is not None
    assert why in (subject.implementation.supports(product(a, b)) or "")


@pytest.mark.parametrize(("m", "n"), [(4096, 4096), (300, 520), (1, 8)])
@pytest.mark.parametrize("near", [1, 2], ids=["along K", "along N"])
def test_clusters_cover_the_result(m: int, n: int, near: int) -> None:
    [subject] = candidates.find(["matmul__multicast__cuda_sm90"])
    b = Meta((64, n), "bf16", (1, 64)) if near == 1 else Meta((64, n), "bf16")
    kernel, problem = subject.implementation, product(Meta((m, 64), "bf16"), b)
    assert kernel is not None and kernel.supports(problem) is None
    found = kernel.configs(problem)
    assert kernel.choose(problem) == found[0]
    for config in found:
        [launch] = kernel.launches(problem, config)
        tall, across, blocks, high = launch.args["tall"], launch.args["across"], config["CM"] * config["CN"], config["BM"]
        assert tall * config["CM"] * high >= m and across * config["CN"] * config["BN"] >= n
        assert (tall - 1) * config["CM"] * high < m and (across - 1) * config["CN"] * config["BN"] < n
        assert launch.cluster == (blocks,) and launch.grid == (blocks * min(tall * across, problem.device.resident(blocks)),)
        assert launch.shared <= problem.device.shared_per_block - 1024
        share = config["BN"] // config["CM"] if near == 1 else 64
        assert launch.args["b_map"].box == (share, 64) and share % 8 == 0


def test_the_model_of_clusters_beside_what_was_measured() -> None:
    """Of the recorded configs its choice is the best or near it; where it displaces matmul__gluon_sm90 it is faster, but for one product."""
    rows = json.loads((Path(__file__).parents[2] / "results/h200/product_clusters.json").read_text())["rows"]
    lost, slower = [], []
    for r in rows:
        if {c[5] for c in r["configs"]} == {128}:
            continue  # timed before there were tiles of more rows
        m, n, k = r["M"], r["N"], r["K"]
        p = product(Meta((m, k), "bf16"), Meta((k, n), "bf16", (1, k) if r["b"] == "along K" else (n, 1)))
        times = {(*c[:3], c[5]): c[6] for c in r["configs"]}
        found = clusters.choose(p)
        us = times[found["BN"], found["CM"], found["CN"], found["BM"]]
        lost.append(us / min(times.values()))
        chosen = select(registry.op("matmul"), p).call
        if chosen is not None and chosen.implementation.name == "matmul__multicast__cuda_sm90" and us > r["gluon_us"]:
            slower.append((m, n, k))
    assert sum(lost) / len(lost) < 1.015 and max(lost) < 1.08
    assert slower == [(576, 7168, 2048)], "39 µs of 32: all its configs take longer than predicted there"


@triton.jit
def _finished(sums, row, column, out, SWAP: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, 16)
    x = tl.load(sums + at[:, None] * 16 + at[None, :])
    done = finish(
        x, at, at, tl.program_id(0), 16, 16, 1.0, 0.0, tl.load(row + at), tl.load(column + at), None, 0, 0, tl.load(row + at), tl.load(column + at), None, 0, 0,
        None, 0, 0, True, True, True, SWAP, 0, False,
    )
    tl.store(out + at[:, None] * 16 + at[None, :], done)


def test_a_swapped_tile_is_scaled_in_the_same_order() -> None:
    """Few rows are computed as the transposed product: a token's result may not depend on that (rooftop.invariant)."""
    sums, of_rows, of_columns = torch.randint(-9999, 9999, (16, 16)), torch.rand(16) / 1000, torch.rand(16) / 1000
    plain, swapped = torch.empty(16, 16), torch.empty(16, 16)
    interpreter.run(_finished, (1,), {"sums": sums.int(), "row": of_rows, "column": of_columns, "out": plain, "SWAP": False})
    interpreter.run(_finished, (1,), {"sums": sums.int().t().contiguous(), "row": of_columns, "column": of_rows, "out": swapped, "SWAP": True})
    assert torch.equal(plain, swapped.t())
