"""Eager calls with gradients are recorded by an autograd function of their own, which behaves as torch's ops do."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import rooftop
from rooftop.core import gradients, library, registry


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: torch's own functions, which calls on the CPU run where a contract names them, are left out."""
    for name in ("rms_norm", "layer_norm", "softmax"):
        op = registry.op(name)
        for one in (op, op.bwd):
            monkeypatch.setattr(one, "cpu", None)
            monkeypatch.setattr(one, "_call", None)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(5, 33, dtype=dtype, requires_grad=True), torch.randn(33, dtype=dtype, requires_grad=True)


def refused(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("the registered op was called")


def test_an_eager_call_with_gradients_asks_no_registered_op(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = inputs()
    want = torch.autograd.grad(torch.nn.functional.rms_norm(x, (33,), w).square().sum(), (x, w))
    op = registry.op("rms_norm")
    assert op._ready() and op.bwd is not None and op.bwd._ready()  # type: ignore[attr-defined]
    for one in (op, op.bwd):
        caller = one._call  # type: ignore[attr-defined]
        cells = dict(zip(caller.__code__.co_freevars, caller.__closure__, strict=True))
        monkeypatch.setattr(cells["registered"], "cell_contents", refused)
    y = rooftop.rms_norm(x, 33, w)
    assert type(y.grad_fn).__name__ == "rms_normBackward"
    for got, expected in zip(torch.autograd.grad(y.square().sum(), (x, w)), want, strict=True):
        torch.testing.assert_close(got, expected)


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    x, w = inputs()
    rooftop.rms_norm(x, 33, w.detach()).sum().backward()
    assert x.grad is not None and w.grad is None
    with torch.no_grad():
        assert rooftop.rms_norm(x, 33, w).grad_fn is None
    assert rooftop.rms_norm(x.detach(), 33, w.detach()).grad_fn is None
    assert rooftop.rms_norm(x, 33, w).requires_grad


def test_saved_tensors_are_torchs() -> None:
    """Hooks of saved tensors see them, so that checkpointing and offloading work; one that was overwritten is an error."""
    x, w = inputs()
    packed: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
        y = rooftop.rms_norm(x, 33, w)
    assert packed == [x.shape, w.shape]
    y.sum().backward()
    assert x.grad is not None
    want, x.grad = x.grad, None
    checkpoint(lambda a, b: rooftop.rms_norm(a, 33, b), x, w, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad, want)
    scaled = x * 2
    y = rooftop.rms_norm(scaled, 33, w)
    scaled.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_hooks_of_tensors_and_nodes_run() -> None:
    x, w = inputs()
    y = rooftop.layer_norm(x, 33, w)
    seen: list[str] = []
    x.register_hook(lambda g: seen.append("x"))
    assert y.grad_fn is not None
    y.grad_fn.register_prehook(lambda g: seen.append("node"))
    y.sum().backward()
    assert seen == ["node", "x"]
    assert y.grad_fn.metadata == {}


def test_a_second_derivative_is_refused() -> None:
    x, w = inputs()
    (dx,) = torch.autograd.grad(rooftop.rms_norm(x, 33, w).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="rms_norm can be differentiated once"):
        dx.sum().backward()


def test_threads_record_at_once() -> None:
    found: list[torch.Tensor] = []
    first, weight = (t.detach() for t in inputs())  # made here: all threads share torch's generator

    def work() -> None:
        x, w = first.clone().requires_grad_(), weight.clone().requires_grad_()
        for _ in range(20):
            x.grad = None
            rooftop.softmax(rooftop.rms_norm(x, 33, w)).square().sum().backward()
        assert x.grad is not None
        found.append(x.grad)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 4 and all(torch.equal(found[0], f) for f in found)


def test_absent_results_and_unused_ones() -> None:
    x, w = inputs()
    _, s = rooftop.rms_norm(x, 33, w, residual=x.detach())
    (2 * s).sum().backward()  # y is not used
    torch.testing.assert_close(x.grad, torch.full_like(x, 2.0))
    assert w.grad is None or not w.grad.any()


def test_with_torch_compile_the_registered_op_is_in_the_graph() -> None:
    x, w = inputs()
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compile(lambda a, b: rooftop.rms_norm(a, 33, b), backend=backend, fullgraph=True)(x, w)
    assert any("rooftop.rms_norm" in str(n.target) for n in graphs[0].graph.nodes)


def test_the_function_takes_what_a_run_gives() -> None:
    """A GPU's launches are recorded the same way: `run` may be any callable, and what it is told anything."""
    op = registry.op("cross_entropy")
    ran: list[Any] = []

    def run(chosen: Any, args: Any) -> Any:
        ran.append(chosen)
        return library.fallback(op, args)

    x, target = torch.randn(4, 9, requires_grad=True), torch.tensor([0, 8, 3, 1])
    loss, *_ = gradients.recorded(op, run)("some", (x, target, -100, "sum", 0.0, 0.0, 0.0, False))
    loss.backward()
    assert ran == ["some"]
    torch.testing.assert_close(x.grad, torch.autograd.grad(torch.nn.functional.cross_entropy(x, target, reduction="sum"), x)[0])


def test_gradients_lie_in_memory_as_their_matrices_do() -> None:
    """A parameter [N, K] that is passed transposed gets a gradient [N, K] without gaps: autograd need not copy it, and adds to it at full speed."""
    x, offsets = torch.randn(10, 16), torch.tensor([3, 3, 9], dtype=torch.int32)
    for turned in (False, True):
        for name, lead in (("matmul", ()), ("grouped_matmul", (3,))):
            weight = torch.randn(*lead, 24, 16).transpose(-1, -2) if turned else torch.randn(*lead, 16, 24)
            y = x @ weight if name == "matmul" else torch.cat([x[:3] @ weight[0], x[3:9] @ weight[2], torch.zeros(1, 24)])
            dy = torch.randn_like(y)
            options = (None, None, None, None, 1.0, 0.0, "none", "", "ieee") if name == "matmul" else (offsets,)
            _, made, *_ = registry.op(name).grad.backward(dy, x, weight, *options)
            want = x.t() @ dy if name == "matmul" else torch.stack([x[:3].t() @ dy[:3], torch.zeros(16, 24), x[3:9].t() @ dy[3:9]])
            assert made.stride() == weight.stride(), name
            torch.testing.assert_close(made, want)
