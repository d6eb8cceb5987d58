"""`rooftop.invariant()`: the bits of a row do not depend on what else is in the call, and a kernel of which they do is found."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import rooftop
from rooftop.core import debugging, invariance, registry, settings
from rooftop.core.backends.triton import TritonImplementation
from rooftop.core.call import Call, for_any_rows, select
from rooftop.core.contract import Contract
from rooftop.core.spec import TARGETS, Meta
from rooftop.kernels.gemm._product_launches import Product
from rooftop.lab.check.batches import batches, lengths, names_rows

PLANTED = settings.PACKAGE / "kernels" / "_planted" / "softmax__by_rows__triton.py"


def promised() -> list[Contract]:
    ops = [registry.op(n) for n in registry.op_names()]
    return [o for op in ops for o in (op, op.bwd) if o is not None and names_rows(o)]


ROWS = [("rms_norm", 301, "f32"), ("rms_norm", 512, "bf16"), ("cross_entropy", 129, "f32"), ("swiglu", 40, "bf16")]
PRODUCTS = [("grouped_matmul", {"N": 9, "K": 17, "groups": 3}, "bf16"), ("scaled_matmul", {"N": 9, "K": 33}, "f8e4m3")]
INTERPRETED = 89  # the card that the kernel is chosen for: Hopper's Gluon kernels run on a GPU alone


@pytest.mark.sampled("slow")
@pytest.mark.parametrize(("name", "columns", "dtype"), ROWS)
def test_rows_have_the_same_bits_alone_and_among_others(name: str, columns: int, dtype: str) -> None:
    op = registry.op(name)
    assert op.swept is not None
    found = batches(op, dict.fromkeys(op.swept.drawn, columns), dtype, backend="cpu", seed=5)
    assert not found.wrong and not found.skipped and found.calls > 6


@pytest.mark.sampled("slow")
@pytest.mark.parametrize(("name", "sizes", "dtype"), PRODUCTS)
def test_rows_of_a_product_have_the_same_bits(name: str, sizes: dict[str, int], dtype: str) -> None:
    found = batches(registry.op(name), sizes, dtype, backend="cpu", arch=INTERPRETED, seed=5)
    assert not found.wrong and not found.skipped and found.calls > 6


def test_a_kernel_whose_block_depends_on_the_rows_is_found() -> None:
    planted = TritonImplementation(Path(PLANTED), "softmax")
    found = batches(registry.op("softmax"), {"columns": 200}, "f32", backend="cpu", seed=5, implementation=planted)
    assert any(w[:11] in ("1 rows from", "2 rows from", "3 rows from") and "of y differ from those of the same rows among 17" in w for w in found.wrong)


def test_where_a_row_starts_does_not_matter() -> None:
    """Of 301 columns each row starts at another place of its 16 bytes. The kernel in CUDA C++ is for whole vectors then, and its sums follow the start."""
    op = registry.op("rms_norm")
    assert op.swept is not None
    problem = op.problem(op.swept.case("f32", {"columns": 301, "rows": 4096}), TARGETS["h200"])
    plain = select(op, problem).call
    with rooftop.invariant():
        chosen = select(op, problem).call
        with pytest.raises(invariance.InvarianceError, match=r"rms_norm under rooftop.invariant\(\), along batch: .*different places of their 16 bytes"):
            select(op, problem, "cuda_sm80")
    assert plain is not None and chosen is not None
    assert (plain.implementation.backend, chosen.implementation.backend) == ("cuda", "triton")


def order_of(call: Call) -> object:
    """What the order of sums follows from: the config, or of kernels whose tile may follow the rows, how K is cut."""
    config, kernel = call.implementation.config_dict(call.config), call.implementation
    follows = hasattr(kernel._module if kernel.backend == "cuda" else kernel.module, "for_any_rows")  # type: ignore[attr-defined]
    return (type(call.config), *(config.get(n) for n in ("SPLIT", "STREAM", "PART"))) if follows else str(config)


@pytest.mark.parametrize("op", promised(), ids=lambda op: op.name)
def test_kernel_and_config_are_the_same_for_every_number_of_rows(op: Contract) -> None:
    assert op.swept is not None
    chosen = 0
    for sizes, dtype in lengths(op, 11, gpu=True):
        found = set()
        for rows in (1, 3, 17, 257, 4096, 10_007):
            try:
                call = for_any_rows(op, op.problem(op.swept.case(dtype, {**sizes, op.swept.counted: rows}), TARGETS["h200"])).call
            except invariance.InvarianceError as error:
                found.add(str(error))
                continue
            assert call is not None
            found.add((call.implementation.name, order_of(call) if invariance.rows_of(op, call.problem) else "any"))
            chosen += 1
        assert len(found) == 1, (sizes, found)
    assert chosen or op.name == "sample"


def test_what_cannot_promise_it_is_refused() -> None:
    with rooftop.invariant():
        op = registry.op("softmax")
        with pytest.raises(invariance.InvarianceError, match=r"softmax under .*, along batch: along another dimension than the last"):
            select(op, op.problem(_along_columns(op)))
        with pytest.raises(invariance.InvarianceError, match=r"softmax under rooftop.invariant\(\), along batch: along another dimension"):
            rooftop.softmax(torch.randn(4, 8), 0)
        reduce = registry.op("reduce")
        with pytest.raises(invariance.InvarianceError, match=r"reduce under rooftop.invariant\(\), along batch: "):
            select(reduce, reduce.problem(reduce.cases[0]))
        matmul = registry.op("matmul")
        problem = matmul.problem(matmul.cases[0], TARGETS["h200"])
        x, w = torch.randn(5, 256), torch.randn(256)
        for at_random, name in (
            (lambda r: rooftop.quantize(x, granularity="row", rounding=r, seed=1), "quantize"),
            (lambda r: rooftop.quantize_both(x, rounding=r, seed=1), "quantize_both"),
            (lambda r: rooftop.rms_norm_quantize(x, w, rounding=r, seed=1), "rms_norm_quantize"),
            (lambda r: rooftop.hadamard_quantize(x, rounding=r, seed=1), "hadamard_quantize"),
        ):
            at_random("nearest")
            with pytest.raises(invariance.InvarianceError, match=f"^{name} under .*: the random numbers of a row follow from its place in the call$"):
                at_random("stochastic")
            op = registry.op(name)
            drawn = next(op.problem(c, TARGETS["h200"]) for c in op.cases if dict(c.inputs)["rounding"] == "stochastic")
            with pytest.raises(invariance.InvarianceError, match="the random numbers of a row"):
                select(op, drawn)
        with pytest.raises(invariance.InvarianceError, match="matmul__cublas__torch: cuBLAS chooses the order of sums by the number of rows"):
            select(matmul, problem, "cublas__torch")


@pytest.mark.parametrize(("mode", "block"), [(invariance, rooftop.invariant), (debugging, rooftop.debug)])
def test_blocks_of_threads_end_in_any_order(mode: Any, block: Any) -> None:
    """The mode stays for the thread that is still in its block, and not for ever."""
    first, second = block(), block()
    with ThreadPoolExecutor(1) as a, ThreadPoolExecutor(1) as b:
        a.submit(first.__enter__).result()
        b.submit(second.__enter__).result()
        with block(False):
            assert mode.on
        a.submit(first.__exit__, None, None, None).result()
        assert mode.on
        b.submit(second.__exit__, None, None, None).result()
    assert not mode.on
    with block(), pytest.raises(KeyError), block(False):
        assert not mode.on
        raise KeyError
    with block(), block(), block(False), block():
        assert mode.on
    assert not mode.on
    with pytest.raises(TypeError, match="enabled is 'no', a str; it must be True or False"):
        block("no")


@pytest.mark.parametrize(("text", "on"), [("1", True), ("0", False), ("", False), ("yes", None), ("2", None)])
def test_the_mode_from_the_start(text: str, on: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_INVARIANT", text)
    if on is None:
        with pytest.raises(ValueError, match=f"^ROOFTOP_INVARIANT is '{text}'; it must be 0 or 1$"):
            settings.invariant()
    else:
        assert settings.invariant() is on


def test_rows_on_the_cpu_are_computed_one_by_one() -> None:
    """The matrix product of torch has other bits for one row than for many; and what torch computes in float32 is what comes out."""
    x, w, b = torch.randn(37, 129), torch.randn(129, 65), torch.randn(3, 129, 16)
    with rooftop.invariant():
        product, norm, gate, many = rooftop.matmul(x, w), rooftop.rms_norm(x, (129,)), rooftop.silu(x), rooftop.matmul(x.expand(3, 37, 129), b)
        for i, n in ((0, 1), (5, 1), (20, 17)):
            assert torch.equal(rooftop.matmul(x[i : i + n], w), product[i : i + n])
            assert torch.equal(rooftop.rms_norm(x[i : i + n], (129,)), norm[i : i + n])
            assert torch.equal(rooftop.silu(x[i : i + n]), gate[i : i + n])
            assert torch.equal(rooftop.matmul(x[i : i + n], b[1]), many[1, i : i + n])
    torch.testing.assert_close(product, x @ w)
    torch.testing.assert_close(many, x @ b)
    torch.testing.assert_close(gate, torch.nn.functional.silu(x))


def test_rows_that_lie_otherwise_are_copied() -> None:
    """TMA reads rows from multiples of 16 bytes; another kernel for those that start elsewhere would have other bits."""
    op = registry.op("matmul")
    a, b = Meta((5, 512), "bf16", (515, 1)), Meta((512, 64), "bf16")
    given = {"a": a, "b": b, "c": None, "bias": None, "gate": None, "residual": None}
    options = {"alpha": 1.0, "beta": 0.0, "activation": "none", "to": "", "precision": "ieee"}
    metas = a, Meta((5, 512), "bf16"), Meta((5, 512), "bf16", (), 2)
    apart, dense, low = (for_any_rows(op, op.problem_of({**given, "a": m}, options, TARGETS["h200"])).call for m in metas)
    assert apart is not None and dense is not None and low is not None
    assert apart.implementation is dense.implementation is low.implementation
    assert (apart.copies, dense.copies, low.copies) == (("a",), (), ("a",)) and apart.problem["a"].contiguous


def test_a_deep_product_is_cut_at_the_same_places_of_k_for_every_number_of_rows() -> None:
    """Few columns and much of K: parts for more multiprocessors, of all tiles, also where those fill no wave, or several."""
    for rows in (1, 64, 300, 4096, 20_000):
        product, config = product_of(rows, 1024, 8192)
        plan = product.plan(config)
        assert (plan.split, plan.whole) == (4, 0) and plan.blocks <= 132 and plan.parts == plan.streamed * 4
        assert plan.slices % 4 == 0 and plan.slices // 4 * config.BK == 2048  # a part of K, whatever the tile


@pytest.mark.parametrize("name", ["gelu", "silu", "swiglu_bwd", "add"])
def test_one_kernel_computes_an_element_however_rows_lie(name: str) -> None:
    """Two kernels may round an exponential differently; which runs followed from where rows start."""
    op = registry.op(name.removesuffix("_bwd"))
    op = (op.bwd or op) if name.endswith("_bwd") else op
    found = set()
    with rooftop.invariant():
        for meta in (Meta((1, 40), "f32"), Meta((17, 40), "f32"), Meta((17, 40), "f32", (83, 1)), Meta((5, 33), "f32", (), 4), Meta((4096, 512), "f32")):
            problem = op.problem(op.cases[0], TARGETS["h200"])
            given = {n: None if m is None else meta for n, m in problem.tensors if n in op.inputs_of(problem)}
            call = select(op, op.problem_of(given, {n: problem.option(n) for n in op.option_names}, TARGETS["h200"])).call
            assert call is not None
            found.add(call.implementation.name)
    assert len(found) == 1, found


def test_of_no_rows_there_is_nothing_to_keep_in_order() -> None:
    """Attention of no queries, or of no keys, which plain torch answers."""
    q, k = torch.randn(2, 0, 2, 16), torch.randn(2, 5, 2, 16)
    with rooftop.invariant():
        assert rooftop.attention(q, k, k, order="bshd").shape == (2, 0, 2, 16)
        assert not rooftop.attention(k, q, q, order="bshd").any()
        assert rooftop.cross_entropy(torch.randn(0, 7), torch.zeros(0, dtype=torch.int64), reduction="none").shape == (0,)
        assert rooftop.matmul(torch.randn(0, 3), torch.randn(3, 2)).shape == (0, 2)
        op = registry.op("cross_entropy")
        given = {"input": Meta((0, 7), "f32"), "target": Meta((0,), "i64")}
        options = {"ignore_index": -100, "reduction": "none", "label_smoothing": 0.0, "lse_square_scale": 0.0, "softcap": 0.0, "inplace": False}
        select(op, op.problem_of(given, options, TARGETS["h200"]))


def product_of(rows: int, n: int, k: int) -> tuple[Product, Any]:
    """A product of 16 bits, and its config under the mode."""
    op = registry.op("matmul")
    given = {"a": Meta((rows, k), "bf16"), "b": Meta((k, n), "bf16", (1, k)), "c": None, "bias": None, "gate": None, "residual": None}
    options = {"alpha": 1.0, "beta": 0.0, "activation": "none", "to": "", "precision": "ieee"}
    call = for_any_rows(op, op.problem_of(given, options, TARGETS["h200"])).call
    assert call is not None and call.implementation.name == "matmul__gluon_sm90"
    return Product(dict(call.problem.tensors), TARGETS["h200"].sms), call.config


def test_products_keep_near_the_free_choice() -> None:
    """By the model that chooses: at least 0.85 on the geometric mean from 1 to 8192 rows, never under 0.6 (a square of 4096 and of 8192)."""
    for n in (4096, 8192):
        shares = []
        for rows in (1 << i for i in range(14)):
            product, config = product_of(rows, n, n)
            shares.append(product.seconds(product.ranked()[0]) / product.seconds(config))
        assert min(shares) > 0.6 and math.prod(shares) ** (1 / len(shares)) > 0.95, shares


def _along_columns(op: Contract):  # type: ignore[no-untyped-def]
    return next(c for c in op.cases if c.inputs["dim"] == 0 and len(c.inputs["x"].shape) == 2 and c.inputs["x"].shape[1] > 1)  # type: ignore[union-attr]
