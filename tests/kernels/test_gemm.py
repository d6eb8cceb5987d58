"""Products of matrices without a GPU: how the tiles and their slices of K are shared out, and the sum of the pieces, run by the interpreter."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")
import torch
import triton
import triton.language as tl

import rooftop
from rooftop.core import registry
from rooftop.core.call import select
from rooftop.core.dispatch import explain_problem
from rooftop.core.spec import TARGETS, Meta
from rooftop.kernels._device import gemm_epilogue
from rooftop.kernels.gemm import _group_scheduler, _product_launches
from rooftop.kernels.gemm._group_scheduler import advance, start_of, tiles_of, work_of
from rooftop.kernels.gemm._model import Config, Facts, Plan, plan, ranked, shared_bytes, valid
from rooftop.lab import candidates
from rooftop.lab.check.checker import check
from rooftop.lab.interpret import interpreter
from rooftop.ops._cublas import BlasError, Heuristic
from rooftop.ops._cublaslt import Searched
from rooftop.ops.matmul import activate, cut, reference


def pieces_of(block: int, p: Plan) -> list[tuple[int, int, int, int]]:
    """What a block makes of the dealt-out tiles, as `wgmma.share` and `wgmma.item` have it: (tile, first slice, one past the last, slot)."""

    def begin_of(b: int) -> int:
        return b * (p.units // p.blocks) + min(b, p.units % p.blocks)

    begin, end = begin_of(block), begin_of(block + 1)
    found = []
    if end > begin:
        for i, t in enumerate(range(begin // p.slices, (end - 1) // p.slices + 1)):
            found.append((p.whole + t, max(begin - t * p.slices, 0), min(end - t * p.slices, p.slices), 2 * block + min(i, 1)))
    return found


@pytest.mark.parametrize("config", [Config(64, 16, 32, 1, STREAM=True, GROUP=2, SWAP=True), Config(64, 32, 32, 1, STREAM=True, GROUP=3)])
@pytest.mark.parametrize(("shape", "sms"), [((20, 300, 1000), 7), ((70, 100, 96), 132), ((33, 257, 64), 4), ((130, 200, 2000), 5)])
def test_the_pieces_of_a_tile_are_added(config: Config, shape: tuple[int, int, int], sms: int) -> None:
    m, n, k = shape
    torch.manual_seed(0)
    a, b = torch.randn(m, k), torch.randn(k, n)
    metas: dict[str, Meta | None] = {"a": Meta((m, k), "f32"), "b": Meta((k, n), "f32"), "out": Meta((m, n), "f32"), "bias": Meta((n,), "f32")}
    product = _product_launches.Product(metas, sms, alpha=0.5, activation="relu")
    p = product.plan(config)
    assert p.units, "nothing is dealt out"
    tensors: dict[str, Any] = {"out": torch.full((m, n), math.nan), "bias": torch.randn(n)}
    want = (0.5 * (a @ b) + tensors["bias"]).relu()
    x, y = (b.t(), a.t()) if config.SWAP else (a, b)
    rows, columns = x.shape[0], y.shape[1]
    high, wide = -(-rows // config.BM), -(-columns // config.BN)
    padded_x = torch.zeros(high * config.BM, p.slices * config.BK)
    padded_x[:rows, :k] = x
    padded_y = torch.zeros(p.slices * config.BK, wide * config.BN)
    padded_y[:k, :columns] = y

    def place(tile: int) -> tuple[int, int]:
        width = config.GROUP * wide
        first = tile // width * config.GROUP
        size = min(high - first, config.GROUP)
        return first + tile % width % size, tile % width // size

    result = torch.full((high * config.BM, wide * config.BN), math.nan)
    parts = torch.full((2 * p.blocks, config.BM * config.BN), math.nan)

    def product_of(tile: int, first: int, last: int) -> torch.Tensor:
        i, j = place(tile)
        at = slice(first * config.BK, last * config.BK)
        return padded_x[i * config.BM : (i + 1) * config.BM, at] @ padded_y[at, j * config.BN : (j + 1) * config.BN]

    def finished(tile: int, made: torch.Tensor) -> None:
        i, j = place(tile)
        result[i * config.BM : (i + 1) * config.BM, j * config.BN : (j + 1) * config.BN] = made

    seen: dict[int, list[tuple[int, int]]] = {}
    for tile in range(p.whole):
        finished(tile, product_of(tile, 0, p.slices))
    for block in range(p.blocks):
        for tile, first, last, slot in pieces_of(block, p):
            seen.setdefault(tile, []).append((first, last))
            if last - first == p.slices:
                finished(tile, product_of(tile, first, last))
            else:
                assert parts[slot].isnan().all(), "a slot is used twice"
                parts[slot] = product_of(tile, first, last).flatten()
    assert sorted(seen) == list(range(p.whole, p.whole + p.streamed))
    assert all(spans[0][0] == 0 and spans[-1][1] == p.slices and all(u[1] == v[0] for u, v in itertools.pairwise(spans)) for spans in seen.values())

    bias = tensors["bias"][:, None] if config.SWAP else tensors["bias"]
    result = (0.5 * result + torch.nn.functional.pad(bias, (0, 0, 0, result.shape[0] - rows) if config.SWAP else (0, result.shape[1] - columns))).relu()
    result = result[:rows, :columns]
    tensors["out"].copy_(result.t() if config.SWAP else result)
    before = tensors["out"].clone()
    launch = _product_launches.launches(product, config, pdl=False)[-1]
    assert launch.kernel is gemm_epilogue.add_pieces
    tensors["parts"] = parts
    interpreter.run(launch.kernel, launch.grid, {n: tensors[v] if isinstance(v, str) else v for n, v in launch.args.items()}, readonly={"parts", "bias"})
    out = tensors["out"]
    assert torch.allclose(out, want, rtol=1e-4, atol=1e-3)
    assert torch.equal(out[~before.isnan()], before[~before.isnan()]), "a tile that one block made was written again"


@pytest.mark.parametrize("shape", [(1, 1, 1), (16, 4096, 14336), (1000, 1, 77), (512, 28672, 4096), (4096, 4096, 4096), (33, 65, 1000)])
@pytest.mark.parametrize("itemsize", [1, 2])
def test_every_candidate_fits(shape: tuple[int, int, int], itemsize: int) -> None:
    found = ranked(Facts(*shape, 1, itemsize, 2, 132, 2))
    assert found
    for config in found:
        assert valid(config, itemsize, 2, 2) and shared_bytes(config, itemsize, 2, 2) <= 227 * 1024
        p = plan(config, *shape, 1, 132)
        m, n = (shape[1], shape[0]) if config.SWAP else shape[:2]
        assert p.whole + p.streamed == -(-m // config.BM) * -(-n // config.BN) and 1 <= p.blocks <= 132


def test_what_tma_reads() -> None:
    assert _product_launches.readable(Meta((64, 64), "bf16")) is None and not _product_launches.turned(Meta((64, 64), "bf16"))
    assert _product_launches.readable(Meta((64, 64), "bf16", (1, 64))) is None and _product_launches.turned(Meta((64, 64), "bf16", (1, 64)))
    for meta, why in (
        (Meta((64, 65), "bf16"), "strides"), (Meta((64, 64), "bf16", align=8), "address"), (Meta((64, 64), "bf16", (128, 2)), "strides"),
        (Meta((3, 8, 8), "bf16", (68, 8, 1)), "apart"),
    ):
        assert why in str(_product_launches.readable(meta))


@pytest.mark.parametrize("kind", ["copy", "tf32", "bf16"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("shape", [(70, 33), (2, 65, 130)])
def test_float32_is_split_into_rows_along_k(kind: str, columns: bool, shape: tuple[int, ...]) -> None:
    """Every element in its place, the parts together as near as the mode says, and zeros between the rows."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    meta = Meta(tuple(x.shape), "f32", tuple(x.stride()))
    rows, k = shape[-2:][::-1] if columns else shape[-2:]
    batch = shape[0] if len(shape) == 3 else 1
    room = _product_launches.operand_room(rows, k, batch, kind)
    into = torch.full(room.shape, math.nan, dtype=torch.bfloat16 if kind == "bf16" else torch.float32)
    launch = _product_launches.operand_launch("x", meta, "into", kind, columns)
    given = {n: {"x": x, "into": into}[v] if isinstance(v, str) else v for n, v in launch.args.items()}
    interpreter.run(launch.kernel, launch.grid, given, readonly={"x"})
    assert room.strides[-2] * into.itemsize % 16 == 0 and not into[..., k:].any(), "TMA reads rows that begin on 16 bytes"
    parts = into[..., :k].double().reshape(-1, batch, rows, k)
    want = (x.transpose(-1, -2) if columns else x).reshape(batch, rows, k)
    first = {"copy": lambda t: t, "tf32": cut, "bf16": lambda t: t.bfloat16().float()}[kind](want)
    assert torch.equal(parts[0].float(), first)
    bound = {"copy": 0.0, "tf32": 2.0**-23, "bf16": 2.0**-16}[kind]  # the rest of TF32 is exact here and cut by the tensor cores
    assert bool(((parts.sum(0) - want.double()).abs() <= bound * want.double().abs()).all())


@pytest.mark.parametrize(("precision", "bound"), [("tf32", 2.0**-10), ("tf32x3", 2.0**-19), ("bf16x3", 2.0**-15)])
def test_a_mode_of_precision_errs_as_its_docstring_says(precision: str, bound: float) -> None:
    """One product each, so that no sum hides its error; and the mode is no more precise than it need be, or the checks of it would be of float32."""
    torch.manual_seed(0)
    a, b = torch.randn(3000, 1), torch.randn(1, 50)
    exact = a.double() @ b.double()
    error = ((reference(a, b, None, None, None, None, 1.0, 0.0, "none", "", precision).double() - exact) / exact).abs().max()
    assert bound / 16 < float(error) < bound


@pytest.mark.parametrize("activation", ["none", "relu", "silu", "gelu", "gelu_tanh"])
def test_a_product_can_be_differentiated_twice(activation: str) -> None:
    generator = torch.Generator().manual_seed(2)
    given = [torch.randn(shape, generator=generator) for shape in ((4, 6), (6, 5), (5,))]

    def second(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        tensors = [t.to(dtype).requires_grad_() for t in given]
        first = torch.autograd.grad(function(*tensors).square().sum(), tensors, create_graph=True)
        return torch.autograd.grad(sum(t.sum() for t in first), tensors)

    got = second(lambda a, b, bias: rooftop.matmul(a, b, bias=bias, activation=activation), torch.float32)
    want = second(lambda a, b, bias: activate(a @ b + bias, activation), torch.float64)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.double(), w, rtol=1e-4, atol=1e-3)


def test_products_of_16_bits_have_one_precision() -> None:
    import rooftop

    x = torch.randn(8, 8)
    with pytest.raises(ValueError, match="only 'ieee' is accepted"):
        rooftop.matmul(x.bfloat16(), x.bfloat16(), precision="tf32")
    with pytest.raises(ValueError, match="ieee, tf32, tf32x3, bf16x3"):
        rooftop.matmul(x, x, precision="high")
    y = x.clone().requires_grad_()
    rooftop.matmul(y, x, precision="bf16x3").sum().backward()
    assert y.grad is not None and torch.allclose(y.grad, x.sum(1).expand(8, 8), atol=1e-4)


def test_cublas_is_chosen_for_batches_that_no_grid_holds_alone() -> None:
    """The rule that its file states, over every case, and what `explain` says of it."""
    op = registry.op("matmul")
    for case in op.cases:
        chosen = select(op, op.problem(case, TARGETS["h200"]))
        assert chosen.call is None or chosen.call.implementation.name != "matmul__cublas__torch", case.id
    batch = op.problem_of({**dict.fromkeys(op.tensor_names), "a": Meta((70000, 30, 30), "f32"), "b": Meta((70000, 30, 30), "f32")},
                          {"alpha": 1.0, "beta": 0.0, "activation": "none", "to": "", "precision": "ieee"}, TARGETS["h200"])
    assert "matmul__cublas__torch: a call of torch" in str(explain_problem(op, batch))
    assert select(op, op.problem(op.case("16384 cubed bf16"), TARGETS["h200"])).call.implementation.name == "matmul__gluon_sm90"


def test_a_case_with_a_large_result_is_left_to_a_gpu() -> None:
    [subject] = candidates.find(["matmul__cublas__torch"])
    result = check(subject, subject.op.case("over 2^31 elements f32"))
    assert result.status == "skipped" and "2^31" in result.message


def test_onednn_takes_no_part_in_checks_on_a_cpu() -> None:
    """With AMX it reads beyond the rows of a bfloat16 matrix, and what the checker has put there is NaN."""
    [subject] = candidates.find(["matmul__cublas__torch"])
    result = check(subject, subject.op.case("odd leading dimensions bf16"), backend="cpu")
    assert result.status == "ok" and torch.backends.mkldnn.enabled, result.message


@triton.jit
def _walk(offsets, seen, G, M, N, K, blocks, BM: tl.constexpr, BN: tl.constexpr, FORM: tl.constexpr, MOST: tl.constexpr):  # type: ignore[no-untyped-def]
    """What one block of the grouped kernel takes, as its producer and consumers walk: a row of `seen` for each tile."""
    g, base, begin, end, n = 0, 0, 0, start_of(offsets, G, M, FORM), 0
    t = tl.program_id(0)
    if FORM == 0:
        g, base, begin, end = advance(t, g, base, begin, end, offsets, G, M, N, BM, BN)
    while (g <= G) & ((FORM == 0) | (t < G * tiles_of(0, M, N, BM, BN))):
        z, row, column, limit, first, last = work_of(t, g, base, begin, end, offsets, G, M, N, K, BM, BN, FORM)
        at = seen + (tl.program_id(0) * MOST + n) * 6
        tl.store(at, z)
        tl.store(at + 1, row)
        tl.store(at + 2, column)
        tl.store(at + 3, limit)
        tl.store(at + 4, first)
        tl.store(at + 5, last)
        n += 1
        t += blocks
        if FORM == 0:
            g, base, begin, end = advance(t, g, base, begin, end, offsets, G, M, N, BM, BN)


@pytest.mark.parametrize("form", _group_scheduler.FORMS)
@pytest.mark.parametrize("offsets", [[5, 5, 130, 131, 400], [0, 0, 0], [450], [7, 300, 200, 9999, -3]])
def test_the_grouped_walk_meets_every_tile_once(form: str, offsets: list[int]) -> None:
    groups, m, n, k, bm, bn, blocks, most = len(offsets), 450, 200, 500, 64, 128, 5, 80
    seen = torch.full((blocks, most, 6), -1, dtype=torch.int32)
    given = {
        "offsets": torch.tensor(offsets, dtype=torch.int32), "seen": seen, "G": groups, "M": m, "N": n, "K": k, "blocks": blocks, "BM": bm, "BN": bn,
        "FORM": _group_scheduler.FORMS.index(form), "MOST": most,
    }
    interpreter.run(_walk, (blocks,), given, readonly={"offsets"})
    tiles = [tuple(x) for x in seen.reshape(-1, 6).tolist() if x[0] >= 0]
    ends = [min(max(x, 0), m if form != "depth" else k) for x in offsets]
    want = []
    if form == "rows":
        running = [max(ends[: i + 1]) for i in range(groups)]
        for g, (begin, end) in enumerate(zip([0, *running], [*running, m], strict=True)):
            want += [(g, row, column, end, 0, k if g < groups else 0) for row in range(begin, end, bm) for column in range(0, n, bn)]
    else:
        for g in range(groups):
            first, last = (min(ends[g - 1] if g else 0, ends[g]), ends[g]) if form == "depth" else (0, k)
            limit = m if form == "depth" else ends[g]
            want += [(g, row, column, limit, first, last if row < limit else 0) for row in range(0, m, bm) for column in range(0, n, bn)]
    assert sorted(tiles) == sorted(want)


@pytest.mark.parametrize(
    ("op", "case", "said"),
    [
        ("matmul", "4096 cubed bf16", r"tile 128 x 256, 4 stages of 64 of K; .*512 tiles on 132 blocks; predicted 1\d\d\.\d µs, 1 of"),
        ("matmul", "layer 16x4096x4096 bf16", "operands are swapped.*predicted"),
        ("matmul", "bf16x3 4096 cubed f32", "split by a launch each.*predicted"),
        ("matmul", "tf32 NT 4096 cubed f32", "predicted .* µs, 1 of"),
        ("grouped_matmul", "experts 8, 16384x14336x4096 bf16", "groups of 2048 x 4096 on average: 7168 tiles; predicted"),
    ],
)
def test_explain_says_tile_stages_why_and_the_predicted_time(op: str, case: str, said: str) -> None:
    contract = registry.op(op)
    assert re.search(said, str(explain_problem(contract, contract.problem(contract.case(case), TARGETS["h200"])))), said


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_the_peer_of_all_heuristics_multiplies_what_torch_does(turned: bool, bias: bool) -> None:
    peer = registry.op("matmul").peers["cublaslt-best"]()
    a, b = torch.randn(5, 7), torch.randn(9, 7).t() if turned else torch.randn(7, 9)
    row = torch.randn(9) if bias else None
    found = peer(a, b, None, row, None, None, 1.0, 0.0, "relu" if bias else "none", "", "ieee")
    torch.testing.assert_close(found, (a @ b + row).relu() if bias else a @ b)
    with pytest.raises(ValueError, match="contiguous rows or columns"):
        peer(torch.randn(5, 14)[:, ::2], b, None, row, None, None, 1.0, 0.0, "none", "", "ieee")
    with pytest.raises(ValueError, match="multiplies two matrices"):
        peer(a, b, None, row, None, None, 2.0, 0.0, "none", "", "ieee")


class Timed(Searched):
    """Of a GPU whose algorithms take known times; one does not run. No first run of one is as short as the later ones."""

    def __init__(self, *times: float | None) -> None:
        self.times, self.asked = times, list[tuple[int, int]]()
        self.algorithms = [Heuristic() for _ in times]

    def run(self, algorithm: int = 0, *_: Any) -> None:
        if self.times[algorithm] is None:
            raise BlasError("cublasLtMatmul returned status 15")

    def _once(self, algorithm: int) -> float:
        self.asked.append((algorithm, 1))
        return float(self.times[algorithm] or 0) * (1.1 if algorithm else 1.05)

    def _seconds(self, algorithm: int, runs: int, replays: int) -> float:
        self.asked.append((algorithm, runs))
        return float(self.times[algorithm] or 0)


def test_the_fastest_algorithm_of_cublaslt_is_found_by_timing_those_that_are_near_again() -> None:
    found = Timed(2.1e-5, None, 2.0e-5, 9.0e-5)
    assert found._fastest() == 2 and [a for a, runs in found.asked if runs > 1] == [0, 2], "the first run alone would take algorithm 0"
    assert [a for a, runs in found.asked if runs == 1] == [0, 2, 3]
    with pytest.raises(BlasError, match="none of the algorithms"):
        Timed(None, None)._fastest()
