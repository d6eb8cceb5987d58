"""`rooftop.invariant()`: the bits of a row do not depend on what else is in the call, and a kernel of which they do is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rooftop
from rooftop.core import invariance, registry, settings
from rooftop.core.backends.triton import TritonImplementation
from rooftop.core.call import for_any_rows, select
from rooftop.core.contract import Contract
from rooftop.core.spec import TARGETS
from rooftop.lab.check.batches import batches, lengths

PLANTED = settings.PACKAGE / "kernels" / "_planted" / "softmax__by_rows__triton.py"


def promised() -> list[Contract]:
    ops = [registry.op(n) for n in registry.op_names()]
    return [o for op in ops for o in (op, op.bwd) if o is not None and o.rows is not None and o.swept is not None]


ROWS = [("rms_norm", 301, "f32"), ("rms_norm", 512, "bf16"), ("cross_entropy", 129, "f32"), ("swiglu", 40, "bf16")]


@pytest.mark.parametrize(("name", "columns", "dtype"), ROWS)
def test_rows_have_the_same_bits_alone_and_among_others(name: str, columns: int, dtype: str) -> None:
    op = registry.op(name)
    assert op.swept is not None
    found = batches(op, dict.fromkeys(op.swept.drawn, columns), dtype, backend="cpu", seed=5)
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
        with pytest.raises(invariance.InvarianceError, match=r"rms_norm under rooftop.invariant\(\): .*different places of their 16 bytes"):
            select(op, problem, "cuda_sm80")
    assert plain is not None and chosen is not None
    assert (plain.implementation.backend, chosen.implementation.backend) == ("cuda", "triton")


@pytest.mark.parametrize("op", promised(), ids=lambda op: op.name)
def test_kernel_and_config_are_the_same_for_every_number_of_rows(op: Contract) -> None:
    assert op.swept is not None
    chosen = 0
    for sizes, dtype in lengths(op, 11, gpu=True):
        found = set()
        for rows in (1, 3, 17, 257, 4096, 10_007):
            try:
                call = for_any_rows(op, op.problem(op.swept.case(dtype, {**sizes, op.swept.rows: rows}), TARGETS["h200"])).call
            except invariance.InvarianceError as error:
                found.add(str(error))
                continue
            assert call is not None
            found.add((call.implementation.name, str(call.config) if invariance.rows_of(op, call.problem) else "any"))
            chosen += 1
        assert len(found) == 1, (sizes, found)
    assert chosen or op.name == "sample"


def test_what_cannot_promise_it_is_refused() -> None:
    x = torch.randn(4, 8)
    with rooftop.invariant():
        with pytest.raises(invariance.InvarianceError, match=r"softmax under rooftop.invariant\(\): on tensors of the CPU plain torch runs"):
            rooftop.softmax(x)
        op = registry.op("softmax")
        with pytest.raises(invariance.InvarianceError, match="along another dimension than the last"):
            select(op, op.problem(_along_columns(op)))
        matmul = registry.op("matmul")
        with pytest.raises(invariance.InvarianceError, match=r"matmul under rooftop.invariant\(\): its contract names no dimension of rows"):
            select(matmul, matmul.problem(matmul.cases[0]))
    assert torch.equal(rooftop.softmax(x), x.softmax(-1))


def _along_columns(op: Contract):  # type: ignore[no-untyped-def]
    return next(c for c in op.cases if c.inputs["dim"] == 0 and len(c.inputs["x"].shape) == 2 and c.inputs["x"].shape[1] > 1)  # type: ignore[union-attr]
