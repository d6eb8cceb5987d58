"""Products that are easily got wrong: nothing to add up, one product a sum, rows on no boundary, sums that overflow, scales that do not fit."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest

pytest.importorskip("triton")
import torch

import rooftop
from rooftop.core import registry
from rooftop.core.call import Call, select
from rooftop.core.contract import metas_of
from rooftop.core.spec import TARGETS, Case, Input, Meta, case
from rooftop.formats import two_four
from rooftop.lab import candidates
from rooftop.lab.check.checker import check, run_interpreter

OPTIONS = {"alpha": 1.0, "beta": 0.0, "activation": "none", "to": "", "precision": "ieee"}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("shape", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_an_extent_of_zero_gives_zeros_or_nothing(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = shape
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    out = rooftop.matmul(a, b)
    assert out.shape == (m, n) and not out.any()
    c = torch.randn(m, n).to(dtype)
    assert torch.equal(rooftop.matmul(a, b, c=c, beta=0.5), (0.5 * c.float()).to(dtype))
    offsets = torch.tensor([m // 2, m], dtype=torch.int32)
    grouped = rooftop.grouped_matmul(a, b.expand(2, k, n), offsets)
    assert grouped.shape == (m, n) and not grouped.any()
    x, y = torch.zeros(m, k, dtype=torch.int8), torch.zeros(k, n, dtype=torch.int8)
    assert rooftop.int_matmul(x, y).shape == (m, n) and not rooftop.int_matmul(x, y).any()


def one_product(dtype: str, precision: str = "ieee") -> Case:
    inputs: dict[str, Any] = {"a": Input((40, 1), dtype), "b": Input((1, 72), dtype), "c": None, **OPTIONS, "precision": precision}
    return case("K of 1", tags="edge", **inputs)


@pytest.mark.parametrize(("kernel", "dtype", "precision"), [
    ("matmul__triton", "bf16", "ieee"), ("matmul__triton", "f16", "ieee"), ("matmul__triton", "f32", "ieee"), ("matmul__precision__triton", "f32", "bf16x3"),
])
def test_a_sum_of_one_product(kernel: str, dtype: str, precision: str) -> None:
    [subject] = candidates.find([kernel])
    result = check(subject, one_product(dtype, precision))
    assert result.status == "ok", result.message


@pytest.mark.parametrize(("a", "why"), [
    (Meta((64, 65), "bf16"), "TMA does not read a: its strides"), (Meta((64, 64), "bf16", align=2), "TMA does not read a: its address"),
    (Meta((64, 64), "f16", (68, 1)), "TMA does not read a: its strides"),
])
def test_rows_on_no_boundary_of_16_bytes_go_to_kernels_without_tma(a: Meta, why: str) -> None:
    """bfloat16 of few tiles has a kernel of its own."""
    op = registry.op("matmul")
    problem = op.problem_of({**dict.fromkeys(op.tensor_names), "a": a, "b": Meta((a.shape[1], 64), a.dtype)}, OPTIONS, TARGETS["h200"])
    chosen = select(op, problem)
    wanted = "matmul__few__cuda_sm90" if a.dtype == "bf16" else "matmul__triton"
    assert chosen.call is not None and chosen.call.implementation.name == wanted
    assert str(registry.implementation("matmul__gluon_sm90").supports(problem)).startswith(why)


def test_more_than_2_31_elements_are_taken_with_offsets_of_64_bits() -> None:
    op = registry.op("matmul")
    problem = op.problem_of({**dict.fromkeys(op.tensor_names), "a": Meta((70000, 64), "bf16"), "b": Meta((64, 40000), "bf16")}, OPTIONS, TARGETS["h200"])
    chosen = select(op, problem)
    assert chosen.call is not None and chosen.call.implementation.name == "matmul__gluon_sm90" and len(chosen.call.launches) == 1
    wide = op.problem_of({**dict.fromkeys(op.tensor_names), "a": Meta((2**31, 16), "bf16"), "b": Meta((16, 16), "bf16")}, OPTIONS, TARGETS["h200"])
    assert all("2^31" in str(registry.implementation(name).supports(wide)) for name in ("matmul__gluon_sm90", "matmul__triton"))


@pytest.mark.parametrize("dtype", FLOATS)
def test_beta_of_zero_reads_no_addend(dtype: torch.dtype) -> None:
    a, b = torch.randn(8, 16).to(dtype), torch.randn(16, 8).to(dtype)
    assert torch.equal(rooftop.matmul(a, b, c=torch.full((8, 8), math.nan, dtype=dtype), beta=0.0), rooftop.matmul(a, b))


def test_nan_and_infinity_go_through_a_product_of_groups_and_stay_in_their_group() -> None:
    a, b, offsets = torch.ones(8, 16), torch.ones(2, 16, 4), torch.tensor([3, 8], dtype=torch.int32)
    a[1, 5], a[6, 2] = math.nan, math.inf
    out = rooftop.grouped_matmul(a, b, offsets)
    assert out[1].isnan().all() and out[6].isposinf().all() and int(out.isfinite().sum()) == 6 * 4
    wide = rooftop.grouped_matmul(a.t().contiguous().t(), torch.ones(16, 4), torch.tensor([4, 16], dtype=torch.int32))
    assert wide[0, 1].isfinite().all() and wide[1, 1].isnan().all() and wide[0, 6].isposinf().all() and wide[1, 6].isfinite().all()


@pytest.mark.parametrize("to", ["f16", "bf16", "f32"])
def test_a_product_of_fp8_that_overflows_is_what_rounding_makes_of_it(to: str) -> None:
    """448² · 64 products is over float16's largest number, 65504: an infinity, as in torch; bfloat16 and float32 hold it."""
    op = registry.op("scaled_matmul")
    a, b = torch.full((16, 64), 448.0).to(torch.float8_e4m3fn), torch.full((64, 16), 448.0).to(torch.float8_e4m3fn)
    one = torch.ones(())
    given = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[to]
    want = rooftop.scaled_matmul(a, b, one, one, out_dtype=given)
    assert want.isposinf().all() if to == "f16" else torch.equal(want, torch.full((16, 16), 448.0**2 * 64).to(given))
    tensors = {**dict.fromkeys(op.tensor_names), "a": a, "b": b, "scale_a": one.reshape(1), "scale_b": one.reshape(1)}
    found = next(c for c in op.cases if c.dtype == "f8e4m3" and op.options(c)["scales"] == "one")
    options = {**op.options(found), "to": to} if "to" in op.options(found) else op.options(found)
    problem = op.problem_of(metas_of(tensors), options, TARGETS[90])
    implementation = next(f for f in registry.implementations("scaled_matmul") if f.name == "scaled_matmul__triton")
    call = Call.of(op, implementation, problem)
    out = torch.empty(16, 16, dtype=getattr(torch, {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}[problem["out"].dtype]))
    run_interpreter(call, call.memory(call.given(tensors), {}, lambda name, meta: out))
    assert torch.equal(out, torch.full((16, 16), 448.0**2 * 64).to(out.dtype))


def test_scales_of_a_wrong_shape_are_refused_before_any_launch() -> None:
    a, b = torch.ones(8, 256).to(torch.float8_e4m3fn), torch.ones(256, 16).to(torch.float8_e4m3fn)
    of = torch.ones
    for scale_a, scale_b in ((of(7), of(16)), (of(8), of(8)), (of(8, 1), of(2, 2)), (of(()), of(16))):
        with pytest.raises((ValueError, TypeError), match="scaled_matmul: "):
            rooftop.scaled_matmul(a, b, scale_a, scale_b)


def test_a_flag_is_a_bool() -> None:
    a, b, one = torch.ones(8, 32).to(torch.float8_e4m3fn), torch.ones(32, 16).to(torch.float8_e4m3fn), torch.ones(1)
    with pytest.raises(TypeError, match="scaled_matmul: fast is 'no', a str; it must be True or False"):
        rooftop.scaled_matmul(a, b, one, one, fast="no")  # type: ignore[arg-type]


def test_sums_of_int8_that_may_not_fit_are_refused_and_the_longest_is_right() -> None:
    longest = 2**17 - 1
    a, b = torch.tensor(-128, dtype=torch.int8).expand(1, longest + 1), torch.tensor(-128, dtype=torch.int8).expand(longest + 1, 1)
    with pytest.raises(ValueError, match="may not fit int32"):
        rooftop.int_matmul(a, b)
    with pytest.raises(ValueError, match="may not fit int32"):
        rooftop.scaled_matmul(a, b, torch.ones(()), torch.ones(()))
    assert int(rooftop.int_matmul(a[:, 1:], b[1:])) == longest * 128**2


def test_no_product_writes_where_it_is_told_to() -> None:
    """Results are new tensors, so none can alias an input."""
    for function in (rooftop.matmul, rooftop.scaled_matmul, rooftop.int_matmul, rooftop.grouped_matmul):
        assert "out" not in inspect.signature(function).parameters
    a = torch.randn(8, 8)
    assert rooftop.matmul(a, a, c=a).data_ptr() != a.data_ptr()


@pytest.mark.parametrize("precision", ["tf32", "tf32x3", "bf16x3"])
def test_an_infinite_operand_stands_where_the_docstring_says(precision: str) -> None:
    a, b = torch.rand(4, 8) + 1, torch.rand(8, 5) + 1
    a[2, 3] = math.inf
    out = rooftop.matmul(a, b, precision=precision)
    assert (out[2].isposinf() if precision == "tf32" else out[2].isnan()).all() and int(out.isfinite().sum()) == 15
    [subject] = candidates.find(["matmul__precision__triton"])
    inputs: dict[str, Any] = {"a": Input((40, 33), fill="inf"), "b": Input((33, 72)), "c": None, **OPTIONS, "precision": precision}
    result = check(subject, case("infinities", tags="edge", **inputs))
    assert result.status == "ok", result.message


def test_offsets_out_of_range_are_clamped() -> None:
    generator = torch.Generator().manual_seed(6)
    a, b = torch.randn(6, 8, generator=generator), torch.randn(3, 8, 5, generator=generator)
    offsets, clamped = torch.tensor([-2, 4, 90], dtype=torch.int32), torch.tensor([0, 4, 6], dtype=torch.int32)
    for x, y in ((a, b), (a.t(), torch.randn(6, 5, generator=generator)), (a.expand(3, 6, 8), b)):
        assert torch.equal(rooftop.grouped_matmul(x, y, offsets), rooftop.grouped_matmul(x, y, clamped))
    assert torch.equal(rooftop.grouped_matmul(a, b, torch.full((3,), -1, dtype=torch.int32)), torch.zeros(6, 5))


def test_int8_is_summed_exactly_however_deep() -> None:
    k = 4099
    a, b = torch.full((1, k), 127, dtype=torch.int8), torch.full((k, 1), 127, dtype=torch.int8)
    a[0, 0] = b[0, 0] = 1
    total, one = 127 * 127 * (k - 1) + 1, torch.ones(())
    out = rooftop.scaled_matmul(a, b, one, one, bias=torch.tensor([-float(total // 8 * 8)]), out_dtype=torch.float32)
    assert float(out) == total % 8 == 3


def test_int8_of_a_sparse_matrix_is_summed_exactly_however_deep() -> None:
    k = 16388  # 1 and 4096 products, then as many of the other sign
    dense, b = torch.zeros(16, k, dtype=torch.int8), torch.full((k, 64), 127, dtype=torch.int8)
    dense[:, ::2], b[k // 2 + 2 :] = 127, -127
    dense[:, 2], b[0] = 0, 1
    dense[:, 0] = 1
    values, meta = two_four.compress(dense, two_four.select(dense.abs()))
    assert bool((rooftop.scaled_spmm_24(values, meta, b, torch.ones(1), torch.ones(1)) == 1).all())
