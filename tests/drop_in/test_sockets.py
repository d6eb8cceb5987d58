"""Sockets of other libraries: torch's for flash attention through its own dispatcher, vLLM's and torchtitan's with the real package or
its signature."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.attention

from rooftop.drop_in import torch_attention, vllm_ir

F = torch.nn.functional
HAS = pytest.mark.skipif(not hasattr(torch.nn.attention, "register_flash_attention_impl"), reason="this torch has no socket for flash attention")


@pytest.fixture
def active() -> Iterator[None]:
    """The implementation in the place of aten's functions on the CPU, which has none of its own there."""
    torch_attention.register("CPU")
    torch.nn.attention.activate_flash_attention_impl("rooftop")
    yield
    torch.nn.attention.restore_flash_attention_impl()


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(5)
    return [torch.randn(s, generator=g).bfloat16().requires_grad_() for s in shapes]


@HAS
@pytest.mark.parametrize(("causal", "heads"), [(False, 4), (True, 4), (True, 2)])
def test_torch_runs_it_forward_and_backward(active: None, causal: bool, heads: int) -> None:
    """Through aten's op and torch's own autograd formula for it; as torch's plain attention on the same tensors."""
    q, k, v = tensors((2, 4, 9, 16), (2, heads, 9, 16), (2, heads, 9, 16))
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=0.3)
    grads = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    want = F.scaled_dot_product_attention(*exact, is_causal=causal, scale=0.3, enable_gqa=True)
    wanted = torch.autograd.grad(want.square().sum(), exact)
    torch.testing.assert_close(out.double(), want, atol=0.02, rtol=0.02)
    assert lse.shape == (2, 4, 9) and out.stride() == q.stride()
    for got, there in zip(grads, wanted, strict=True):
        torch.testing.assert_close(got.double(), there, atol=0.06, rtol=0.06)


@HAS
def test_packed_sequences_and_windows(active: None) -> None:
    q, k, v = tensors((10, 4, 8), (10, 2, 8), (10, 2, 8))
    bounds = torch.tensor([0, 3, 10], dtype=torch.int32)
    out, lse, state, unused, _ = torch.ops.aten._flash_attention_forward(q, k, v, bounds, bounds, 7, 7, 0.0, True, False, window_size_left=2)
    assert out.shape == q.shape and lse.shape == (4, 10)
    for first, last in ((0, 3), (3, 10)):
        n = last - first
        sees = torch.ones(n, n, dtype=torch.bool).tril() & torch.ones(n, n, dtype=torch.bool).triu(-2)
        parts = [t[first:last].double().transpose(0, 1) for t in (q, k, v)]
        want = F.scaled_dot_product_attention(*parts, attn_mask=sees, enable_gqa=True).transpose(0, 1)
        torch.testing.assert_close(out[first:last].double(), want, atol=0.02, rtol=0.02)
    grads = torch.ops.aten._flash_attention_backward(
        torch.ones_like(out), q, k, v, out, lse, bounds, bounds, 7, 7, 0.0, True, state, unused, window_size_left=2
    )
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    total = torch.zeros((), dtype=torch.float64)
    for first, last in ((0, 3), (3, 10)):
        n = last - first
        sees = torch.ones(n, n, dtype=torch.bool).tril() & torch.ones(n, n, dtype=torch.bool).triu(-2)
        total = total + F.scaled_dot_product_attention(*(t[first:last].transpose(0, 1) for t in exact), attn_mask=sees, enable_gqa=True).sum()
    for got, there in zip(grads, torch.autograd.grad(total, exact), strict=True):
        torch.testing.assert_close(got.double(), there, atol=0.06, rtol=0.06)


@HAS
def test_it_ends_and_refuses_what_it_does_not_do(active: None) -> None:
    q, k, v = (t.detach() for t in tensors((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)))
    assert torch.nn.attention.current_flash_attention_impl() == "rooftop" and "rooftop" in torch.nn.attention.list_flash_attention_impls()
    with pytest.raises(RuntimeError, match=r"does not take dropout_p: torch\.nn\.attention\.restore_flash_attention_impl"):
        torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.5)
    torch.nn.attention.restore_flash_attention_impl()
    with pytest.raises(NotImplementedError):
        torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)
    torch.nn.attention.activate_flash_attention_impl("rooftop")


@HAS
def test_its_functions_have_the_schemas_of_aten() -> None:
    """Argument for argument: what torch passes by keyword has the same name."""
    import inspect

    for name, function in (
        ("_scaled_dot_product_flash_attention", torch_attention.dense), ("_scaled_dot_product_flash_attention_backward", torch_attention.dense_backward),
        ("_flash_attention_forward", torch_attention.forward), ("_flash_attention_backward", torch_attention.backward),
    ):
        schema = getattr(torch.ops.aten, name).default._schema
        known = list(inspect.signature(function).parameters)
        assert [a.name for a in schema.arguments if a.name in known] == [n for n in known if n in {a.name for a in schema.arguments}]
        assert {a.name for a in schema.arguments} <= set(known)


SCHEMAS = {  # of vllm/ir/ops, as it was in November 2026
    "rms_norm": "(Tensor x, Tensor? weight, float epsilon, SymInt? variance_size=None) -> Tensor",
    "fused_add_rms_norm": "(Tensor x, Tensor x_residual, Tensor? weight, float epsilon, SymInt? variance_size=None) -> (Tensor, Tensor)",
    "silu_and_mul": "(Tensor x) -> Tensor",
}


class Recorded:
    """An op of vLLM's IR as far as an implementation sees it: `register_impl`, which compares the schema, and `impls`."""

    def __init__(self, name: str) -> None:
        self.name, self.impls, self.takes = name, dict[str, Callable[..., Any]](), dict[str, Callable[..., bool]]()

    def register_impl(self, provider: str, *, supported: bool = True, supports_args: Any = None, inplace: bool = False) -> Any:
        def decorator(f: Callable[..., Any]) -> Callable[..., Any]:
            assert torch.library.infer_schema(f, mutates_args=[]) == SCHEMAS[self.name] and provider not in self.impls and not inplace
            self.impls[provider], self.takes[provider] = f, supports_args
            return f

        return decorator


def test_vllm_gets_its_implementations(monkeypatch: pytest.MonkeyPatch) -> None:
    ops: Any
    try:
        ops = importlib.import_module("vllm.ir").ops
    except ImportError:
        ops = types.SimpleNamespace(**{n: Recorded(n) for n in SCHEMAS})
        monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
        monkeypatch.setitem(sys.modules, "vllm.ir", types.SimpleNamespace(ops=ops))
    assert vllm_ir.register() == vllm_ir.register()
    x, r, w = (t.detach() for t in tensors((3, 16), (3, 16), (16,)))
    run = {n: getattr(ops, n).impls["rooftop"] for n in vllm_ir.register()}
    run = {n: getattr(f, "impl_fn", f) for n, f in run.items()}
    torch.testing.assert_close(run["rms_norm"](x, w, 1e-5), F.rms_norm(x, (16,), w, 1e-5), atol=0.03, rtol=0.02)
    normed, total = run["fused_add_rms_norm"](x, r, w, 1e-5)
    torch.testing.assert_close(total, x + r)
    torch.testing.assert_close(normed, F.rms_norm(x.float() + r.float(), (16,), w.float(), 1e-5).bfloat16(), atol=0.03, rtol=0.02)
    torch.testing.assert_close(run["silu_and_mul"](x), F.silu(x[:, :8]) * x[:, 8:], atol=0.02, rtol=0.02)
    assert vllm_ir._takes_norm(x, w, 1e-5) and not vllm_ir._takes_norm(x, w, 1e-5, 8) and not vllm_ir._takes_norm(x, w.float(), 1e-5)
    assert not vllm_ir._takes_added(x, r.float(), w, 1e-5) and not vllm_ir._takes(x.double())


def test_a_vllm_without_ir_ops_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.ir", None)
    with pytest.raises(RuntimeError, match=r"this vLLM has no IR ops .* 0\.22 is the first"):
        vllm_ir.register()


def test_torchtitan_gets_its_overrides() -> None:
    """In a process of its own: torchtitan's registry of overrides is global."""
    text = (
        "import torch\n"
        "from rooftop.drop_in import torchtitan_overrides as o\n"
        "from torchtitan.config import override as module\n"
        "from torchtitan.models.common.nn_modules import RMSNorm\n"
        "cfg = o.rooftop_rms_norm(RMSNorm.Config(normalized_shape=16, eps=1e-3))\n"
        "norm = cfg.build()\n"
        "assert type(norm) is o.RooftopRMSNorm and cfg.eps == 1e-3\n"
        "torch.nn.init.ones_(norm.weight)\n"
        "x = torch.randn(3, 16, requires_grad=True)\n"
        "y = norm(x); y.sum().backward()\n"
        "assert torch.allclose(y, torch.nn.functional.rms_norm(x, (16,), None, 1e-3), atol=1e-5) and x.grad is not None\n"
        "from torchtitan.models.common.feed_forward import FeedForward\n"
        "from torchtitan.models.common.linear import Linear\n"
        "size = lambda i, j: Linear.Config(in_features=i, out_features=j, bias=False)\n"
        "base = FeedForward.Config(w1=size(16, 24), w2=size(24, 16), w3=size(16, 24))\n"
        "mine, theirs = o.rooftop_swiglu(base).build(), base.build()\n"
        "assert type(mine) is o.RooftopFeedForward\n"
        "for p in theirs.parameters(): torch.nn.init.normal_(p)\n"
        "mine.load_state_dict(theirs.state_dict())\n"
        "assert torch.allclose(mine(x), theirs(x), atol=1e-4)\n"
        "print('fine')\n"
    )
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    if ran.returncode and "ModuleNotFoundError: No module named" in ran.stderr.strip().splitlines()[-1]:
        pytest.skip(f"torchtitan is not installed ({ran.stderr.strip().splitlines()[-1]})")
    assert ran.returncode == 0 and ran.stdout.strip() == "fine", ran.stderr


def test_nothing_imports_them() -> None:
    """`import rooftop.drop_in` loads none of these, nor torch."""
    text = "import sys, rooftop.drop_in\nprint([m for m in sys.modules if m.startswith(('torch', 'vllm', 'rooftop.drop_in.t', 'rooftop.drop_in.v'))])"
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert "titan" not in ran.stdout and "torch_attention" not in ran.stdout and "vllm" not in ran.stdout and "'torch'" not in ran.stdout
