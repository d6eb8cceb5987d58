"""Ops as torch sees them: registered with `torch.library` through define and impl, with a fake kernel and autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rooftop.lab.op import KINDS, Op, metas_of

NAMESPACE = "rooftop"
_LIBRARY: Any = None


def schema(op: Op) -> str:
    """`softmax(Tensor x, SymInt dim, str implementation) -> Tensor`"""
    inputs = ", ".join(f"{KINDS[kind]}{'(a!)' if n in op.mutates else ''} {n}" for n, kind in op.kinds.items())
    results = "Tensor" if len(op.output_names) == 1 else "(" + ", ".join("Tensor" for _ in op.output_names) + ")"
    return f"{op.name}({inputs}, str implementation) -> {results}"


def register(op: Op) -> Callable[..., Any]:
    """The registered op as a callable; registers it the first time."""
    if op._library is not None:
        return op._library
    import torch

    global _LIBRARY
    if _LIBRARY is None:
        _LIBRARY = torch.library.Library(NAMESPACE, "DEF")
    single = len(op.output_names) == 1
    qualified = f"{NAMESPACE}::{op.name}"
    _LIBRARY.define(schema(op), tags=(torch.Tag.pt2_compliant_tag,))

    def cuda(*args: Any) -> Any:
        from rooftop.lab import dispatch

        *given, implementation = args
        tensors = [a for n, a in zip(op.kinds, given, strict=True) if n in op.tensor_names]
        key = (implementation or None, *_key(op, given))
        plan = op._plans.get(key, dispatch._MISSING)
        if plan is dispatch._MISSING:
            plan = op._plans[key] = dispatch.plan_for(op, given, implementation or None)
        if plan is None:
            return op.reference(*given)
        with torch.cuda.device(next(t for t in tensors if t is not None).device):
            made = plan(tensors)
        return made[0] if single else tuple(made)

    def cpu(*args: Any) -> Any:
        *given, implementation = args
        if implementation:
            from rooftop.lab.implementation import UnsupportedError

            raise UnsupportedError(f"{op.name}: implementation={implementation!r} runs on CUDA tensors; these lie on the CPU")
        result = op.reference(*given)
        metas = _fake_metas(op, given)
        results = (result,) if single else result
        shaped = tuple(_as(r, m) for r, m in zip(results, metas, strict=True))
        return shaped[0] if single else shaped

    def fake(*args: Any) -> Any:
        *given, _ = args
        device = next(a for n, a in zip(op.kinds, given, strict=True) if n in op.tensor_names and a is not None).device
        made = tuple(
            torch.empty_strided(m.shape, m.strides, dtype=_torch_dtype(m.dtype), device=device) for m in _fake_metas(op, given)
        )
        return made[0] if single else made

    _LIBRARY.impl(op.name, cuda, "CUDA")
    _LIBRARY.impl(op.name, cpu, "CPU")
    torch.library.register_fake(qualified, fake, lib=_LIBRARY)
    if op.grad is not None:
        setup, backward = _autograd(op)
        torch.library.register_autograd(qualified, backward, setup_context=setup, lib=_LIBRARY)
    op._library = getattr(getattr(torch.ops, NAMESPACE), op.name).default
    return op._library


def _key(op: Op, given: list[Any]) -> list[Any]:
    """As dispatch.caller builds it, so that both ways share their plans."""
    key: list[Any] = []
    for name, a in zip(op.kinds, given, strict=True):
        if name in op.tensor_names:
            key += [None] if a is None else [a.shape, a.stride(), a.dtype, a.get_device(), a.data_ptr() & 15]
    return key + [a for n, a in zip(op.kinds, given, strict=True) if n not in op.tensor_names]


def _torch_dtype(name: str) -> Any:
    import torch

    from rooftop.lab.spec import DTYPES

    return getattr(torch, DTYPES[name].torch)


def _fake_metas(op: Op, given: list[Any]) -> list[Any]:
    tensors = {n: a for n, a in zip(op.kinds, given, strict=True) if n in op.tensor_names}
    options = {n: a for n, a in zip(op.kinds, given, strict=True) if n not in tensors}
    return list(op.outputs(**metas_of(tensors, addresses=False), **options).values())


def _as(result: Any, meta: Any) -> Any:
    """The reference's result in the layout and dtype that the shape function states, and never an alias of an input."""
    import torch

    if tuple(result.stride()) == tuple(meta.strides) and result.dtype == _torch_dtype(meta.dtype):
        return result
    out = torch.empty_strided(meta.shape, meta.strides, dtype=_torch_dtype(meta.dtype), device=result.device)
    return out.copy_(result)


def _autograd(op: Op) -> tuple[Callable[..., None], Callable[..., Any]]:
    grad = op.grad
    assert grad is not None
    names = tuple(op.kinds)

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = dict(zip(op.output_names, (output,) if len(op.output_names) == 1 else output, strict=True))
        values = dict(zip(names, inputs, strict=False))
        ctx.save_for_backward(*(outputs.get(n, values.get(n)) for n in grad.saves))
        ctx.options = tuple(values[n] for n in op.option_names)

    def backward(ctx: Any, *d_outputs: Any) -> Any:
        function = op.bwd if op.bwd is not None else grad.backward
        found = function(*d_outputs, *ctx.saved_tensors, *ctx.options)
        gradients = dict(zip(grad.wrt, (found,) if len(grad.wrt) == 1 else found, strict=True))
        return (*(gradients.get(n) if needed else None for n, needed in zip(names, ctx.needs_input_grad, strict=False)), None)

    return setup, backward
