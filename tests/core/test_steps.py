"""Launches with calls of torch between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rooftop.core import registry
from rooftop.core.backends.triton import TritonImplementation
from rooftop.core.call import Call
from rooftop.core.head_parts import HeadError
from rooftop.core.implementation import Steps
from rooftop.core.spec import TARGETS, Launch, TorchCall, View

SUPPORTS = "def supports(p):\n    return None\ndef choose(p):\n    return {}\n"


def test_steps_run_in_order_on_views_of_what_a_call_brings() -> None:
    seen: list[Any] = []

    def doubled(out: torch.Tensor, a: torch.Tensor, by: float) -> None:
        seen.append("torch")
        out.copy_(a * by)

    def launch(stream: int, addresses: Any) -> None:
        seen.append((stream, [a if isinstance(a, float) else bool(a) for a in addresses]))

    half = View("y", (2, 2), (2, 1), 4)
    call = TorchCall(doubled, {"out": half, "a": View("x", (2, 2), (3, 1)), "by": 2.0})
    x, y = torch.arange(6.0).reshape(2, 3), torch.zeros(8)
    Steps([launch, call, launch], ("x", "y", "none", "seed"))(7, [x, y, None, 0.5])
    facts = (7, [True, True, False, 0.5])
    assert seen == [facts, "torch", facts]
    assert y.tolist() == [0, 0, 0, 0, 0, 2, 6, 8]


@pytest.mark.parametrize(("body", "right"), [("", False), ("def launches(p, c):\n    return []\ndef steps(p, c):\n    return []\n", False),
                                             ("def steps(p, c):\n    return []\n", True)])
def test_a_kernel_says_its_launches_or_its_steps(tmp_path: Path, body: str, right: bool) -> None:
    path = tmp_path / f"made_up_{len(body)}__triton.py"
    path.write_text(SUPPORTS + body)
    found = TritonImplementation(path, "made_up")
    if right:
        assert hasattr(found.module, "steps")
    else:
        with pytest.raises(HeadError, match="one of the two"):
            _ = found.module


def test_of_steps_that_run_one_binary_the_first_is_listed() -> None:
    op = registry.op("linear_cross_entropy_bwd")
    problem = op.problem(op.case("llama-3 head 8192x4096x128256, small bf16"), TARGETS["h200"])
    call = Call.of(op, registry.implementation("linear_cross_entropy_bwd__triton"), problem)
    launches = [s for s in call.steps if isinstance(s, Launch)]
    assert len(launches) == 10  # slices of the classes
    assert len(call.launches) == 3  # logits in the memory of dW, in their own, and in a last slice of one block a row
    assert {x.args["z"] for x in call.launches} == {"dweight", "chunk"}
