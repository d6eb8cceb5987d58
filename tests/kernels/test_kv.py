"""RoPE, KV caches and masks: what their contracts' cases cannot say. Memory orders, bad tables of pages, calls, errors."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import rooftop
from rooftop.core import registry
from rooftop.core.call import select
from rooftop.core.contract import metas_of
from rooftop.core.spec import DTYPES, TARGETS, Meta
from rooftop.lab import simt
from rooftop.ops._rotary import angles

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
needs_simulator = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))


def simulated(name: str, *args: Any) -> dict[str, Any]:
    """Run the CUDA kernel of an op where the tensors lie: all memory of the call by name."""
    op = registry.op(name)
    tensors, options = op.flattened(args)
    call = select(op, op.problem_of(metas_of(tensors), options, TARGETS[90])).call
    assert call is not None and call.copies == ()

    def allocate(_: str, m: Meta) -> torch.Tensor:
        return torch.empty_strided(m.shape, m.strides, dtype=getattr(torch, DTYPES[m.dtype].torch)).fill_(7)

    memory = call.memory(tensors, {n: options[n] for n in op.runtime_options}, allocate)
    simt.run_simulator(call, memory)
    return memory


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Hugging Face's formula with the tables [S, D] of [B, H, S, D]."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def tables(rows: int, columns: int, twice: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.arange(rows)[:, None] * 10000.0 ** (torch.arange(columns // 2) * (-2.0 / columns))
    angle = torch.cat((angle, angle), -1) if twice else angle
    return angle.cos(), angle.sin()


# -- rope ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_rope_is_hugging_faces_formula(dtype: torch.dtype) -> None:
    q, k = torch.randn(2, 6, 9, 64, dtype=dtype), torch.randn(2, 2, 9, 64, dtype=dtype)
    cos, sin = tables(9, 64)
    got = rooftop.rope(q, k, cos[None], sin[None], order="bhsd")
    for g, x in zip(got, (q, k), strict=True):
        torch.testing.assert_close(g, turned(x.float(), cos, sin).to(dtype))
    made = rooftop.rope(q, k, order="bhsd")
    for g, x in zip(made, (q, k), strict=True):
        torch.testing.assert_close(g, turned(x.float(), cos, sin).to(dtype))


def test_rope_takes_both_orders_and_three_dimensions() -> None:
    q, k = torch.randn(2, 9, 6, 32), torch.randn(2, 9, 2, 32)
    want = rooftop.rope(q, k, order="bshd", layout="interleaved", offset=3)
    got = rooftop.rope(q.transpose(1, 2), k.transpose(1, 2), layout="interleaved", offset=3, order="bhsd")
    for g, w in zip(got, want, strict=True):
        assert torch.equal(g.transpose(1, 2), w)
        assert g.transpose(1, 2).stride() == w.stride()
    assert torch.equal(rooftop.rope(q[0], order="bshd", layout="interleaved", offset=3), want[0][0])
    flat = rooftop.rope(q.flatten(0, 1), order="bshd", positions=torch.arange(9).repeat(2), layout="interleaved", offset=3)
    assert torch.equal(flat, want[0].flatten(0, 1))


def test_interleaved_pairs_are_neighbours() -> None:
    x = torch.randn(1, 1, 5, 8)
    pairs = torch.view_as_complex(x.view(1, 1, 5, 4, 2))
    angle = torch.arange(5)[:, None] * 10000.0 ** (torch.arange(4) * -0.25)
    want = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    torch.testing.assert_close(rooftop.rope(x, layout="interleaved", order="bhsd"), want)
    cos, sin = angle.cos().repeat_interleave(2, -1), angle.sin().repeat_interleave(2, -1)
    torch.testing.assert_close(rooftop.rope(x, None, cos, sin, layout="interleaved", order="bhsd"), want)


FAR = (0, 1, 4095, 2**24 + 1, -(2**31), 2**31 - 1, 2**32 - 2, -(2**32) + 5)


@pytest.mark.parametrize(("theta", "columns"), [(10000.0, 64), (500000.0, 20), (0.25, 8)])
def test_the_reference_of_angles_is_exact_at_all_positions(theta: float, columns: int) -> None:
    mpmath = pytest.importorskip("mpmath")
    cos, sin = angles(torch.tensor([FAR]), None, None, columns, theta, torch.empty(0, dtype=torch.float64))
    with mpmath.workdps(60):
        for i in range(columns // 2):
            step = mpmath.mpf(theta) ** (mpmath.mpf(-2 * i) / columns)
            for n, position in enumerate(FAR):
                assert abs(mpmath.cos(position * step) - float(cos[0, n, 0, i])) < 2e-9
                assert abs(mpmath.sin(position * step) - float(sin[0, n, 0, i])) < 2e-9


@needs_simulator
@pytest.mark.parametrize(
    ("layout", "head", "columns", "theta"), [("half", 64, 64, 10000.0), ("interleaved", 40, 32, 500000.0), ("half", 16, 6, 1e6), ("half", 8, 8, 0.25)]
)
@pytest.mark.parametrize("offset", [3, 1860626392, -(2**31)])
def test_angles_that_are_made_cost_float32_next_to_nothing(layout: str, head: int, columns: int, theta: float, offset: int) -> None:
    """The error is at most 1.2 times that with cosines and sines that are exact until they are rounded to float32."""
    op, g = registry.op("rope"), torch.Generator().manual_seed(5)
    q = torch.randn(1, 24, 6, head, generator=g)
    options = (layout, columns, theta, offset, False)
    got = simulated("rope", q, None, None, None, None, *options)["out_q"].double()
    exact, _ = op.reference(q.double(), None, None, None, None, *options)
    rounded, _ = op.reference(q, None, None, None, None, *options)
    assert (got - exact).norm() <= 1.2 * (rounded.double() - exact).norm()


@needs_simulator
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(("heads", "keys", "tokens"), [(9, 2, 37), (3, 17, 5), (32, 1, 3)])
def test_a_part_is_rotated_in_shared_memory_and_the_rest_is_copied(heads: int, keys: int, tokens: int, inverse: bool) -> None:
    """The last block of Q and of K has fewer heads than fit, the last of the tokens fewer tokens."""
    op, g = registry.op("rope"), torch.Generator().manual_seed(6)
    q, k = (torch.randn(2, tokens, n, 40, generator=g).half() for n in (heads, keys))
    args = (q, k, None, None, None, "half", 12, 10000.0, 1, inverse)
    memory = simulated("rope", *args)
    want = op.reference(*(t.double() if isinstance(t, torch.Tensor) else t for t in args))
    for got, w, given in zip((memory["out_q"], memory["out_k"]), want, (q, k), strict=True):
        assert torch.equal(got[..., 12:], given[..., 12:])
        torch.testing.assert_close(got.double(), w, rtol=1e-3, atol=1e-3)


@needs_simulator
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rope_reads_views_with_heads_before_tokens_in_place(layout: str) -> None:
    """[B, H, S, D] in memory: neighbours of a warp are tokens."""
    op = registry.op("rope")
    q, k = torch.randn(2, 5, 40, 32).transpose(1, 2), torch.randn(2, 2, 40, 32).transpose(1, 2)
    args = (q, k, None, None, torch.randint(0, 9000, (2, 40)), layout, 24, 10000.0, 11, False)
    memory = simulated("rope", *args)
    want = op.reference(*(t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in args))
    for got, w in zip((memory["out_q"], memory["out_k"]), want, strict=True):
        assert got.transpose(1, 2).is_contiguous()
        torch.testing.assert_close(got.double(), w, rtol=1e-5, atol=1e-6)


@needs_simulator
def test_rope_reads_slices_of_a_packed_projection() -> None:
    """q and k as parts of [B, S, (H + 2 J) D], odd tables in bfloat16."""
    packed = torch.randn(2, 7, 8 * 64, dtype=torch.bfloat16)
    q, k = packed[..., : 4 * 64].unflatten(-1, (4, 64)), packed[..., 4 * 64 : 6 * 64].unflatten(-1, (2, 64))
    cos, sin = (t.bfloat16()[None, :, :32] for t in tables(7, 64))
    args = (q, k, cos, sin, None, "half", 64, 1.0, 0, False)
    memory = simulated("rope", *args)
    want = registry.op("rope").reference(*(t.float() if isinstance(t, torch.Tensor) else t for t in args))
    assert torch.equal(memory["out_q"], want[0].bfloat16()) and torch.equal(memory["out_k"], want[1].bfloat16())


def test_rope_in_place_is_rope() -> None:
    q, k = torch.randn(2, 4, 5, 16), torch.randn(2, 1, 5, 16)
    want, alone = rooftop.rope(q, k, rotary_dim=8, order="bhsd"), rooftop.rope(q, order="bhsd")
    other = q.clone()
    found = rooftop.rope_(q, k, rotary_dim=8, order="bhsd")
    assert found[0] is q and found[1] is k
    assert torch.equal(q, want[0]) and torch.equal(k, want[1])
    assert rooftop.rope_(other, order="bhsd") is other and torch.equal(other, alone)
    with pytest.raises(ValueError, match="expanded"):
        rooftop.rope_(torch.randn(1, 1, 5, 16).expand(2, 4, 5, 16), order="bhsd")
    with pytest.raises(RuntimeError, match="requires a gradient"):
        rooftop.rope_(torch.randn(1, 2, 5, 16, requires_grad=True), order="bhsd")


def test_rope_has_its_gradient_and_compiles() -> None:
    q, k = torch.randn(2, 4, 5, 16, dtype=torch.float32, requires_grad=True), torch.randn(2, 2, 5, 16, requires_grad=True)
    cos, sin = tables(9, 16)
    positions = torch.tensor([4, 0, 8, 8, 1])
    flow = torch.randn(2, 4, 5, 16), torch.randn(2, 2, 5, 16)
    got = torch.autograd.grad(rooftop.rope(q, k, cos, sin, positions=positions, order="bhsd"), (q, k), flow)
    want = torch.autograd.grad((turned(q, cos[positions], sin[positions]), turned(k, cos[positions], sin[positions])), (q, k), flow)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)
    (only,) = torch.autograd.grad(rooftop.rope(q, k, cos, sin, positions=positions, order="bhsd")[1].sum(), (q,), allow_unused=True)
    assert only is None or not only.any()
    compiled = torch.compile(lambda q, k: rooftop.rope(q, k, cos, sin, positions=positions, order="bhsd"), backend="aot_eager", fullgraph=True)
    for g, w in zip(compiled(q, k), rooftop.rope(q, k, cos, sin, positions=positions, order="bhsd"), strict=True):
        assert torch.equal(g, w)
    inner = q.transpose(1, 2).detach().requires_grad_(), k.transpose(1, 2).detach().requires_grad_()
    torch.library.opcheck(torch.ops.rooftop.rope.default, (*inner, None, None, None, "half", 16, 10000.0, 2, False, ""))
    rooftop.rope_(q.detach().clone(), order="bhsd")
    torch.library.opcheck(torch.ops.rooftop.rope_.default, (q.detach().clone(), None, None, None, None, "half", 16, 10000.0, 2, False, ""))


def test_rows_outside_of_the_tables_are_told_under_debug() -> None:
    q, (cos, sin) = torch.randn(1, 2, 5, 16), tables(4, 16)
    out = rooftop.rope(q, None, cos, sin, rotary_dim=16, order="bhsd")
    assert out[:, :, 4].isnan().all() and not out[:, :, :4].isnan().any()
    with rooftop.debug(), pytest.raises(IndexError, match="position is 4; the tables have 4 rows"):
        rooftop.rope(q, None, cos, sin, order="bhsd")


# -- append_kv -------------------------------------------------------------------------------------------------------


def test_append_kv_writes_behind_what_is_there() -> None:
    cache = torch.zeros(2, 3, 8, 4, 16).unbind(0)
    k, v = torch.randn(3, 2, 4, 16), torch.randn(3, 2, 4, 16)
    assert rooftop.append_kv(*cache, k, v, torch.tensor([0, 3, 6])) is None
    for c, x in zip(cache, (k, v), strict=True):
        for b, at in enumerate((0, 3, 6)):
            assert torch.equal(c[b, at : at + 2], x[b])
        assert int((c != 0).any(-1).any(-1).sum()) == 6


def test_the_layout_of_pages_is_as_its_docstring_says() -> None:
    k_cache, v_cache = torch.zeros(7, 4, 2, 8), torch.zeros(7, 4, 2, 8)
    table = torch.tensor([[5, 0, 3], [1, 6, 2]], dtype=torch.int32)
    k, v = torch.randn(9, 2, 8), torch.randn(9, 2, 8)
    rooftop.append_kv(k_cache, v_cache, k, v, torch.tensor([2, 5]), page_table=table, cu_seqlens=torch.tensor([0, 6, 9]))
    for b, first, start, count in ((0, 2, 0, 6), (1, 5, 6, 3)):
        for i in range(count):
            t = first + i
            assert torch.equal(k_cache[table[b, t // 4], t % 4], k[start + i]) and torch.equal(v_cache[table[b, t // 4], t % 4], v[start + i])
    assert int((k_cache != 0).any(-1).any(-1).sum()) == 9


def paged(table: list[list[int]], lengths: list[int], count: int, pages: int = 4) -> tuple[Any, ...]:
    k, v = torch.randn(len(table), count, 2, 16), torch.randn(len(table), count, 2, 16)
    lengths_, table_ = torch.tensor(lengths, dtype=torch.int64), torch.tensor(table, dtype=torch.int32)
    return torch.full((pages, 4, 2, 16), 9.0), torch.full((pages, 4, 2, 16), 9.0), k, v, lengths_, table_, *(None,) * 6, "half", 0, 0.0


@needs_simulator
def test_of_two_tokens_for_one_slot_one_stays_and_nothing_else_is_touched() -> None:
    args = paged([[2, 1], [2, 3]], [0, 0], 3)
    k_cache, v_cache, k, v = args[:4]
    with pytest.raises(simt.SimulatedFault, match="global-race"):  # the simulator tells that two threads write there, and goes on
        simulated("append_kv", *args)
    for cache, x in ((k_cache, k), (v_cache, v)):
        assert ((cache[2, :3] == x[0]) | (cache[2, :3] == x[1])).all()
        cache[2, :3] = 9
        assert (cache == 9).all()


@needs_simulator
@pytest.mark.parametrize(
    ("table", "lengths", "says"),
    [
        ([[4, 1]], [0], r"page_table\[0, 0\] is 4; the cache has 4 pages"),
        ([[-1, 1]], [0], r"page_table\[0, 0\] is -1"),
        ([[2**31 - 1, -(2**31)]], [3], r"page_table\[0, 0\] is 2147483647"),
        ([[0, 1]], [-2], "position -2; a sequence has room for 8"),
        ([[0, 1]], [7], "position 8; a sequence has room for 8"),
        ([[0, 1]], [2**62], "a sequence has room for 8"),
        ([[0, 1]], [-(2**62)], "a sequence has room for 8"),
    ],
)
def test_what_has_no_slot_is_not_written(table: list[list[int]], lengths: list[int], says: str) -> None:
    args = paged(table, lengths, 3)
    mine = [t.clone() if isinstance(t, torch.Tensor) else t for t in args]
    registry.op("append_kv").reference(*mine)
    simulated("append_kv", *args)
    assert torch.equal(args[0], mine[0]) and torch.equal(args[1], mine[1])
    k_cache, v_cache, k, v, lengths_, table_ = args[:6]
    with rooftop.debug(), pytest.raises(IndexError, match=says):
        rooftop.append_kv(k_cache, v_cache, k, v, lengths_, page_table=table_)


@needs_simulator
def test_a_cache_that_lies_head_by_head_is_written_in_place() -> None:
    caches = [torch.zeros(6, 2, 4, 16, dtype=torch.bfloat16).transpose(1, 2) for _ in range(2)]
    k, v = (torch.randn(2, 3, 2, 16, dtype=torch.bfloat16) for _ in range(2))
    table = torch.tensor([[1, 0], [5, 2]], dtype=torch.int64)
    args = (*caches, k, v, torch.tensor([2, 0], dtype=torch.int32), table, *(None,) * 6, "half", 0, 0.0)
    want = [c.clone() for c in caches]
    registry.op("append_kv").reference(*want, *args[2:])
    simulated("append_kv", *args)
    assert torch.equal(caches[0], want[0]) and torch.equal(caches[1], want[1]) and bool(want[0].any())


def test_keys_are_rotated_as_rope_rotates_them_and_codes_are_read_back() -> None:
    caches = [torch.zeros(2, 12, 2, 32, dtype=torch.float8_e4m3fn) for _ in range(2)]
    k, v, (cos, sin) = torch.randn(2, 3, 2, 32), torch.randn(2, 3, 2, 32), tables(12, 32, twice=False)
    scale = torch.tensor([0.02, 0.05])
    rooftop.append_kv(*caches, k, v, torch.tensor([4, 9]), cos=cos, sin=sin, k_scale=scale, v_scale=scale)
    positions = torch.tensor([[4, 5, 6], [9, 10, 11]])
    want = rooftop.rope(k, None, cos, sin, positions=positions, order="bshd")
    for cache, x in zip(caches, (want, v), strict=True):
        read = cache.float() * scale[:, None]
        torch.testing.assert_close(torch.stack((read[0, 4:7], read[1, 9:12])), x, rtol=0.07, atol=1e-3)


@needs_simulator
@pytest.mark.sampled("kernels", "append_kv__cuda_sm80")
@pytest.mark.parametrize("scale", [0.02, 1.0, -3.7, 1e-30, 1e30, 0.0])
def test_codes_are_those_of_the_rounded_quotient(scale: float) -> None:
    x = torch.randn(2, 64, 2, 64)
    x[0, 0, 0, :6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 3e38, -1e-42])
    x[1] *= torch.logspace(-45, 38, 64, dtype=torch.float64)[:, None, None].float()
    caches = [torch.zeros(2, 64, 2, 64, dtype=torch.float8_e4m3fn) for _ in range(2)]
    each = torch.full((1,), scale)
    args = (*caches, x, x, torch.zeros(2, dtype=torch.int32), *(None,) * 5, each, each, "half", 0, 448.0)
    want = [c.clone() for c in caches]
    registry.op("append_kv").reference(*want, *args[2:])
    simulated("append_kv", *args)
    for cache, codes in zip(caches, want, strict=True):
        nan = cache.float().isnan() & codes.float().isnan()
        assert bool(((cache.view(torch.uint8) == codes.view(torch.uint8)) | nan).all())


def test_append_kv_compiles_and_holds_under_opcheck() -> None:
    k_cache, v_cache = torch.zeros(2, 8, 2, 16), torch.zeros(2, 8, 2, 16)
    k, v, lengths = torch.randn(2, 1, 2, 16), torch.randn(2, 1, 2, 16), torch.tensor([1, 5])

    def step(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rooftop.append_kv(k_cache, v_cache, k * 2, v, lengths)
        return k_cache.sum() + v_cache.sum()

    got = torch.compile(step, backend="aot_eager", fullgraph=True)(k, v)
    torch.testing.assert_close(got, (2 * k).sum() + v.sum())
    assert torch.equal(k_cache[1, 5], 2 * k[1, 0])
    torch.library.opcheck(torch.ops.rooftop.append_kv.default, (k_cache, v_cache, k, v, lengths, *(None,) * 7, "half", 0, 0.0, ""))


# -- concat_kv, masks ------------------------------------------------------------------------------------------------


def test_concat_kv_is_cat_with_its_gradient() -> None:
    past, new = torch.randn(2, 5, 3, 8).transpose(1, 2).requires_grad_(), torch.randn(2, 3, 2, 8, requires_grad=True)
    out = rooftop.concat_kv(past, new)
    assert torch.equal(out, torch.cat((past, new), 2)) and out.is_contiguous()
    flow = torch.randn_like(out)
    got = torch.autograd.grad(out, (past, new), flow)
    assert torch.equal(got[0], flow[:, :, :5]) and torch.equal(got[1], flow[:, :, 5:])
    assert torch.equal(rooftop.concat_kv(past, new[:, :, :0]), past) and torch.equal(rooftop.concat_kv(past[:, :, :0], new), new)
    torch.library.opcheck(torch.ops.rooftop.concat_kv.default, (past, new, 2, 5, ""))


@needs_simulator
def test_concat_kv_reads_transposed_views_in_place() -> None:
    past, new = torch.randn(2, 9, 3, 32).half().transpose(1, 2), torch.randn(2, 3, 1, 32).half()
    assert torch.equal(simulated("concat_kv", past, new, 2, 9)["out"], torch.cat((past, new), 2))


def test_masks_are_those_of_torch() -> None:
    causal = rooftop.attention_mask(7, 7, causal=True)
    assert causal.shape == (1, 1, 7, 7) and torch.equal(causal[0, 0], torch.ones(7, 7, dtype=torch.bool).tril())
    bottom = rooftop.attention_mask(3, 7, causal=True, dtype=torch.float32, heads=2)
    assert torch.equal(bottom[0, 1], torch.full((3, 7), float("-inf")).triu(5))
    lengths = torch.tensor([2, 0, 9, 5])
    padded = rooftop.attention_mask(4, 9, lengths)
    assert torch.equal(padded[:, 0, 3], torch.arange(9) < lengths[:, None])
    window = rooftop.attention_mask(8, 8, window=(2, 1))
    far = torch.arange(8) - torch.arange(8)[:, None]
    assert torch.equal(window[0, 0], (far >= -2) & (far <= 1))
    folded = rooftop.attention_mask(3, 7, causal=True, group=2)
    assert torch.equal(folded[0, 0], rooftop.attention_mask(3, 7, causal=True)[0, 0].repeat_interleave(2, 0))


def test_ranges_say_what_the_mask_says() -> None:
    lengths, queries = torch.tensor([2, 0, 9, 5]), torch.tensor([1, 4, 4, 0], dtype=torch.int32)
    arguments: dict[str, Any] = {"q_lengths": queries, "causal": True, "window": (3, -1), "group": 2}
    begin, end = rooftop.attention_ranges(4, 9, lengths, **arguments)
    key = torch.arange(9)
    assert begin.dtype == torch.int32 and begin.shape == (4, 8)
    assert torch.equal((key >= begin[..., None]) & (key < end[..., None]), rooftop.attention_mask(4, 9, lengths, **arguments)[:, 0])


def test_a_mask_is_written_into_a_buffer() -> None:
    room = torch.full((2, 3, 5, 20), 7.0)
    out = room[..., 1:10]
    assert rooftop.attention_mask(5, 9, torch.tensor([4, 9]), heads=3, fill=-1.0, out=out) is out
    assert torch.equal(out, rooftop.attention_mask(5, 9, torch.tensor([4, 9]), heads=3, fill=-1.0, dtype=torch.float32))
    assert (room[..., 0] == 7).all() and (room[..., 10:] == 7).all()
    torch.library.opcheck(torch.ops.rooftop.attention_mask.default, (torch.empty(2, 1, 5, 9), torch.tensor([4, 9]), None, -1, 0, 1, -1.0, ""))
    with rooftop.debug(), pytest.raises(IndexError, match="lengths holds 10; the mask has room for 0 to 9"):
        rooftop.attention_mask(5, 9, torch.tensor([4, 10]))


# -- tensors that overlap ---------------------------------------------------------------------------------------------


def windows(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(4096, dtype=dtype).as_strided(shape, strides)


OWN, LAST = torch.zeros(2, 8, 4, 16), torch.tensor([1, 2])
PAIR = torch.zeros(1, 8, dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: rooftop.rope_(windows((1, 2, 4, 8), (64, 32, 4, 1)), order="bhsd"), "q has shape .* its elements overlap"),
        (lambda: rooftop.rope_(X[:1], X[:1], order="bhsd"), "q and k are the same tensor, or begin at the same address"),
        (lambda: rooftop.append_kv(windows((2, 8, 4, 16), (256, 32, 8, 1)), OWN, NEW, NEW, LAST), "k_cache has shape .* its elements overlap"),
        (lambda: rooftop.append_kv(OWN, OWN, NEW, NEW, LAST), "k_cache and v_cache are the same tensor"),
        (lambda: rooftop.append_kv(OWN, OWN[:], NEW, NEW, LAST), "begin at the same address"),
        (lambda: rooftop.attention_mask(4, 4, batch=2, out=windows((2, 1, 4, 4), (8, 16, 2, 1), torch.bool)), "out has shape .* its elements overlap"),
        (lambda: rooftop.attention_ranges(8, 8, causal=True, out=(PAIR, PAIR)), r"out\[0\] and out\[1\] are the same tensor"),
        (lambda: rooftop.attention_ranges(8, 8, batch=2, out=(windows((2, 8), (4, 1), torch.int32), PAIR.repeat(2, 1))), "its elements overlap"),
        (lambda: rooftop.attention_ranges(8, 8, batch=2, out=(PAIR.expand(2, 8), PAIR.repeat(2, 1))), "it is expanded"),
    ],
)
def test_what_is_written_into_must_not_overlap(call: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


def test_what_lies_side_by_side_is_written_into() -> None:
    room = torch.zeros(2, 8, 2, 4, 16)  # keys and values of a token one behind the other
    rooftop.append_kv(room[:, :, 0], room[:, :, 1], NEW, 2 * NEW, LAST)
    assert room[0, 1].flatten(1).eq(torch.tensor([[1.0], [2.0]])).all() and room.sum() == 2 * 3 * 4 * 16
    q = torch.randn(1, 5, 3, 2, 8)
    want = rooftop.rope(q[:, :, 0], q[:, :, 1], order="bshd")
    rooftop.rope_(q[:, :, 0], q[:, :, 1], order="bshd")
    assert torch.equal(q[:, :, 0], want[0]) and torch.equal(q[:, :, 1], want[1])
    assert rooftop.append_kv(*(t.to("meta") for t in (OWN, OWN, NEW, NEW, LAST))) is None
    with FakeTensorMode() as mode, warnings.catch_warnings(action="error"):
        assert rooftop.append_kv(*(mode.from_tensor(t) for t in (OWN, CACHE, NEW, NEW, LAST))) is None


def test_a_write_that_would_lose_a_gradient_is_refused_when_compiled_too() -> None:
    def rotated(x: torch.Tensor) -> torch.Tensor:
        return rooftop.rope_(x * 1, order="bhsd")  # type: ignore[return-value]

    x = torch.randn(1, 2, 4, 8, requires_grad=True)
    for call in (rotated, torch.compile(rotated, backend="aot_eager")):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match="rope_ writes into a tensor that requires a gradient"):
            call(x)
    torch._dynamo.reset()
    with torch.no_grad():
        assert torch.equal(torch.compile(rotated, backend="aot_eager", fullgraph=True)(x), rooftop.rope(x, order="bhsd"))


def test_a_case_may_have_more_tokens_than_a_sequence_has_room_for() -> None:
    op = registry.op("append_kv")
    tensors = dict.fromkeys(op.tensor_names) | {"k_cache": torch.zeros(1, 1030, 1, 2), "k": torch.zeros(1, 1200, 1, 2), "lengths": torch.zeros(1)}
    assert op.fixup is not None and op.fixup(tensors, {}, torch.Generator().manual_seed(1))["lengths"].tolist() == [0]


# -- errors ----------------------------------------------------------------------------------------------------------

X = torch.ones(2, 4, 5, 16)
CACHE = torch.zeros(2, 8, 4, 16)
NEW = torch.ones(2, 1, 4, 16)
LENGTHS = torch.zeros(2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: rooftop.rope([1.0], order="bhsd"), TypeError, "rope: q is a list"),
        (lambda: rooftop.rope(X.double(), order="bhsd"), TypeError, "float64"),
        (lambda: rooftop.rope(X, X.half(), order="bhsd"), TypeError, "float16"),
        (lambda: rooftop.rope(X[0, 0], order="bhsd"), ValueError, r"\(5, 16\)"),
        (lambda: rooftop.rope(X, X[:, :, :4], order="bhsd"), ValueError, r"\(2, 4, 4, 16\)"),
        (lambda: rooftop.rope(X, rotary_dim=7, order="bhsd"), ValueError, "rotary_dim is 7; it must be even"),
        (lambda: rooftop.rope(torch.ones(2, 4, 5, 15), order="bhsd"), ValueError, "rotary_dim is 15"),
        (lambda: rooftop.rope(X, rotary_dim=18, order="bhsd"), ValueError, "0 to 16"),
        (lambda: rooftop.rope(X, layout="pairs", order="bhsd"), ValueError, "'pairs'"),
        (lambda: rooftop.rope(X, order="sbhd"), ValueError, "'sbhd'"),
        (lambda: rooftop.rope(X, None, torch.ones(5, 8), order="bhsd"), ValueError, "sin.*alone|cos is given alone|together"),
        (lambda: rooftop.rope(X, None, torch.ones(5, 6), torch.ones(5, 6), order="bhsd"), ValueError, "C = 8 or 16"),
        (lambda: rooftop.rope(X, None, torch.ones(5, 8).half(), torch.ones(5, 8).half(), order="bhsd"), TypeError, "float16"),
        (lambda: rooftop.rope(X, positions=torch.ones(5), order="bhsd"), TypeError, "float32"),
        (lambda: rooftop.rope(X, positions=torch.ones(4, dtype=torch.int32), order="bhsd"), ValueError, r"\(4,\)"),
        (lambda: rooftop.rope(X, theta=0.0, order="bhsd"), ValueError, "theta is 0.0"),
        (lambda: rooftop.rope(X, offset=2**31, order="bhsd"), ValueError, "offset is 2147483648"),
        (lambda: rooftop.append_kv(CACHE, CACHE.half(), NEW, NEW, LENGTHS), TypeError, "float16"),
        (lambda: rooftop.append_kv(CACHE, CACHE, NEW.half(), NEW.half(), LENGTHS), TypeError, "k_cache is torch.float32"),
        (lambda: rooftop.append_kv(CACHE, CACHE, NEW[..., :8], NEW, LENGTHS), ValueError, r"\(2, 1, 4, 8\)"),
        (lambda: rooftop.append_kv(CACHE, CACHE, NEW, NEW, LENGTHS.float()), TypeError, "float32"),
        (lambda: rooftop.append_kv(CACHE, CACHE, NEW, NEW, LENGTHS[:1]), ValueError, "1 sequences"),
        (lambda: rooftop.append_kv(CACHE, CACHE, NEW, NEW, LENGTHS, page_table=LENGTHS), ValueError, "page_table"),
        (lambda: rooftop.append_kv(CACHE, CACHE, NEW, NEW, LENGTHS, k_scale=torch.ones(1)), ValueError, "8 bits"),
        (lambda: rooftop.append_kv(CACHE, CACHE, NEW, NEW, LENGTHS, rotary_dim=8), ValueError, "give cos and sin"),
        (lambda: rooftop.append_kv(CACHE[:1].expand(2, 8, 4, 16), CACHE, NEW, NEW, LENGTHS), ValueError, "expanded"),
        (lambda: rooftop.concat_kv(X, X.half()), TypeError, "float16"),
        (lambda: rooftop.concat_kv(X, X[..., :8]), ValueError, r"\(2, 4, 5, 8\)"),
        (lambda: rooftop.concat_kv(X, X, 4), IndexError, "dim is 4"),
        (lambda: rooftop.attention_mask(4, -1), ValueError, "kv_len is -1"),
        (lambda: rooftop.attention_mask(4, 4, dtype=torch.int32), TypeError, "int32"),
        (lambda: rooftop.attention_mask(4, 4, out=torch.ones(4, 4)), ValueError, r"\(1, 1, 4, 4\)"),
        (lambda: rooftop.attention_mask(4, 4, window=3), TypeError, "window is 3"),
        (lambda: rooftop.attention_mask(4, 4, window=(-2, 1)), ValueError, r"\(-2, 1\)"),
        (lambda: rooftop.attention_ranges(4, 4, torch.ones(3)), TypeError, "float32"),
    ],
)
def test_a_wrong_call_says_what_was_given_and_what_is_accepted(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()
