"""The plans of linear_cross_entropy over the tokens that count alone: Triton's passes in the interpreter, the products as torch makes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from rooftop.core import registry
from rooftop.core.backends.triton import GluonImplementation
from rooftop.core.implementation import Where
from rooftop.core.spec import Descriptor, Input, Launch, Problem, Step, TorchCall, View
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker

MIB = 2**20


def counted(out: Any, a: Any, b: Any, live: Any, out_at: int, a_at: int, b_at: int, sizes: tuple[int, int, int], first: int, turned: tuple[bool, bool],
            depth: bool, add: bool) -> None:  # fmt: skip
    """What rooftop/kernels/_device/wgmma_counted.py makes; of rows that do not count NaN, as far as it may write there."""
    m, n, k = sizes
    left = a[a_at : a_at + k, :m].t() if turned[0] else a[a_at : a_at + m, :k]
    right = b[b_at : b_at + n, :k].t() if turned[1] else b[b_at : b_at + k, :n]
    count = min(max(int(live[0]) - first, 0), k if depth else m)
    rows = m if depth else count
    found = left[:rows, : count if depth else k].float() @ right[: count if depth else k].float()
    to = out[out_at : out_at + m, :n]
    to[:rows] = (found + to[:rows] if add else found).to(out.dtype)
    if out.dtype != torch.float32:
        to[rows : -(-rows // 128) * 128] = torch.nan


def by_torch(launch: Launch) -> TorchCall:
    def whole(value: Any) -> View:
        assert isinstance(value, Descriptor)
        assert all(s * 2 % 16 == 0 for s in value.strides[:-1])
        return View(value.tensor, value.shape, value.strides)

    x = launch.args
    sizes = (x["M"], x["N"], x["K"])
    out = whole(x["out_desc"]) if x["out"] is None else View(x["out"], (x["out_at"] + x["M"], x["N"]), (x["ldo"], 1))
    return TorchCall(counted, {"out": out, "a": whole(x["a_desc"]), "b": whole(x["b_desc"]), "live": View("live", (1,), (1,)), "out_at": x["out_at"],
                               "a_at": x["a_at"], "b_at": x["b_at"], "sizes": sizes, "first": x["first"], "turned": (x["A_COLUMNS"], x["B_COLUMNS"]),
                               "depth": x["DEPTH"], "add": x["ADD"]})  # fmt: skip


class Interpreted(GluonImplementation):
    def runs(self) -> Where:
        return Where("interpreter")

    def steps(self, problem: Problem, config: Any) -> Sequence[Step]:
        found = super().steps(problem, config)
        return [by_torch(s) if isinstance(s, Launch) and s.kernel.__name__ == "product" else s for s in found]


def fixed(name: str, like: str, sizes: tuple[int, int, int], **config: Any) -> tuple[Subject, Any]:
    """A case with other sizes, and the kernel with another config."""
    op = registry.op(name)
    n, h, v = sizes
    shapes = {"x": (n, h), "weight": (v, h), "bias": (v,), "target": (n,)}
    c = (op.forward or op).case(like)
    inputs = {k: dataclasses.replace(t, shape=shapes[k]) if isinstance(t, Input) else t for k, t in c.inputs.items()}
    c = dataclasses.replace(c, inputs={**inputs, "target": Input((n,), "i64", f"below {min(v, 12)}")})
    kept = registry.implementation(f"{name}__gluon_sm90")
    found = Interpreted(kept.path, kept.op, kept.name)

    def choose(p: Problem) -> Any:
        return dataclasses.replace(kept.choose(p), **config)

    found.choose = choose  # type: ignore[method-assign]
    return Subject("fixed", op, found), c


@pytest.mark.sampled("kernels", "linear_cross_entropy__gluon_sm90")
@pytest.mark.parametrize("rows", [0, 4])
@pytest.mark.parametrize("like", ["everything bf16", "ignored bf16", "all ignored, mean bf16", "frozen input f16", "weight's gradient in float32 bf16",
                                  "out of range, mean bf16", "the loss alone f16", "frozen weight bf16"])  # fmt: skip
def test_gradients_of_the_tokens_that_count(like: str, rows: int) -> None:
    if rows and "alone" in like:
        pytest.skip("the loss alone goes by slices of the classes")
    n = 11
    inside = bool(rows) and "ignored" in like
    subject, case = fixed("linear_cross_entropy", like, (n, 64, 150), rows=rows, inside=inside)
    case = dataclasses.replace(case, inputs={**case.inputs, "memory": "small" if "loss alone" in like else "fast"})
    found = checker.check(subject, case, backend="interpreter")
    assert found.status == "ok", found.message


@pytest.mark.sampled("kernels", "linear_cross_entropy__gluon_sm90")
@pytest.mark.parametrize("like", ["everything, small bf16", "each token's f16", "ignored, small bf16"])
def test_slices_of_the_classes_of_the_tokens_that_count(like: str) -> None:
    subject, case = fixed("linear_cross_entropy", like, (7, 32, 300), columns=64, warps=1)
    found = checker.check(subject, case, backend="interpreter")
    assert found.status == "ok", found.message


@pytest.mark.sampled("kernels", "linear_cross_entropy_bwd__gluon_sm90")
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("like", ["everything, small bf16", "each token's f16", "frozen weight, small bf16", "ignored, small bf16"])
def test_gradients_by_slices_of_the_tokens_that_count(like: str, inside: bool) -> None:
    subject, case = fixed("linear_cross_entropy_bwd", like, (11, 64, 501), columns=64, inside=inside and "frozen" not in like, block=128)
    found = checker.check(subject, case, backend="interpreter")
    assert found.status == "ok", found.message
