"""group_norm as torch has it: values, gradients, memory formats, errors; moments of many tiles, joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from _kernels import as_torch, right
from torch.nn import functional

import rooftop
from rooftop.core import registry
from rooftop.core.call import select
from rooftop.core.contract import metas_of
from rooftop.core.spec import TARGETS, Input, case


@pytest.mark.parametrize(("shape", "compiled"), [((2, 6, 4, 5), True), ((2, 6, 4, 5), False), ((3, 12), False), ((2, 6, 3, 2, 2), False)])
def test_a_drop_in_with_gradients(shape: tuple[int, ...], compiled: bool) -> None:
    ours, theirs = (lambda x, w, b, of=of: of(x, 3, w, b, 1e-3) for of in (rooftop.group_norm, functional.group_norm))  # type: ignore[misc]
    as_torch(ours, theirs, torch.randn(shape), torch.randn(shape[1]), torch.randn(shape[1]), compiled=compiled, rtol=1e-4, atol=1e-5)


def test_channels_last_is_read_and_written_as_it_is() -> None:
    x = torch.randn(2, 6, 4, 5).to(memory_format=torch.channels_last)
    assert rooftop.group_norm(x, 2).is_contiguous(memory_format=torch.channels_last)
    for name, layout in (("group_norm", "transposed"), ("group_norm", "contiguous")):
        op = registry.op(name)
        given = {"x": torch.empty(2, 64, 400).to("meta"), "weight": None, "bias": None}
        if layout == "transposed":
            given["x"] = torch.empty(2, 400, 64).to("meta").transpose(1, 2)  # type: ignore[union-attr]
        call = select(op, op.problem_of(metas_of(given), {"groups": 8, "eps": 1e-5}, TARGETS[90])).call
        assert call is not None and call.copies == ()


@pytest.mark.sampled("kernels", "{name}__triton")
@pytest.mark.parametrize(("name", "layout"), [("group_norm", "contiguous"), ("group_norm_bwd", "transposed")])
def test_moments_of_many_tiles_are_joined(name: str, layout: str) -> None:
    """More chunks, and more channels of a group, than the launch that joins them has at a time."""
    kernel, w = registry.implementation(f"{name}__triton"), Input((70,), "f32")
    c = case("given", x=Input((1, 70, 139), "f32", "far", layout), weight=w, bias=w, groups=1, eps=1e-5)
    right(kernel.name, c, kernel.module.Config(64, 4, 1), seed=0)  # type: ignore[attr-defined]


X, W = torch.zeros(2, 6, 4), torch.zeros(6)
BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: rooftop.group_norm(X, 4), ValueError, "num_groups is 4; it must be above 0 and divide the 6 channels"),
    (lambda: rooftop.group_norm(X, 0), ValueError, "num_groups is 0"),
    (lambda: rooftop.group_norm(X, 2.0), TypeError, "num_groups"),  # type: ignore[arg-type]
    (lambda: rooftop.group_norm(X[0, 0], 1), ValueError, "it must be"),
    (lambda: rooftop.group_norm(X, 2, W[:5]), ValueError, "weight has shape"),
    (lambda: rooftop.group_norm(X, 2, W.half()), TypeError, "weight is torch.float16"),
    (lambda: rooftop.group_norm(X, 2, eps=-1.0), ValueError, "eps is -1.0"),
    (lambda: rooftop.group_norm(X.long(), 2), TypeError, "input is torch.int64"),
    (lambda: rooftop.group_norm(torch.zeros(1, 6), 6), ValueError, "one element a group"),
]


@pytest.mark.parametrize(("call", "error", "says"), BAD)
def test_bad_input_is_refused_in_a_line(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as raised:
        call()
    assert "\n" not in str(raised.value)
