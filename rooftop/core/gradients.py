"""Gradients of an op: what its forward saves and what its backward returns, for the op registered with `torch.library` and for eager calls.

An eager call whose tensors are plain ones records itself with an autograd function of its own: the way through torch's dispatcher and a registered op costs
the host several times as much. `torch.compile`, functional transforms and subclasses of tensors take that way."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rooftop.core.contract import Contract


def autocast_off(tensors: Iterable[Any]) -> AbstractContextManager[Any]:
    """A context without autocast, which would reduce the precision of computations that the contract requires in float32."""
    import torch

    device = next(t for t in tensors if t is not None).device.type
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if on else nullcontext()


def refuse_second_derivative(name: str) -> Callable[..., Any]:
    """Raises an error for a second derivative, which would otherwise silently be zero."""

    def refuse(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError(f"{name} can be differentiated once; a derivative of its derivative was asked for (create_graph=True)")

    return refuse


class Gradients:
    """Of one op. `ctx` is the context of an autograd function, or what stands for it in a registered op."""

    def __init__(self, op: Contract) -> None:
        assert op.grad is not None
        self._op, self._grad = op, op.grad
        self._names, self._options, self._outputs = tuple(op.kinds), op.option_names, op.output_names
        self._differentiable = [n not in op.grad.non_differentiable for n in op.output_names]
        self._hidden = set(op.grad.non_differentiable) & set(op.grad.saves)  # computed for the backward; how they depend on the inputs is not recorded
        self._takes_none = [p.annotation == "Tensor | None" for p in inspect.signature(op.grad.backward).parameters.values()]

    def save(self, ctx: Any, args: Sequence[Any], outputs: Sequence[Any], present: Sequence[bool]) -> None:
        """Keep what the backward needs. `present`: which outputs the call has."""
        tensors, options = self._op.flattened(args)
        values = {**tensors, **options}
        values.update((n, o) for n, o, there in zip(self._outputs, outputs, present, strict=True) if there)
        ctx.save_for_backward(*self._grad.saved(values))
        ctx.options = tuple(values[n] for n in self._options)
        facts = zip(outputs, present, self._differentiable, strict=True)
        ctx.facts = [(o.shape, o.dtype, o.device) if there and kept else None for o, there, kept in facts]
        ctx.mark_non_differentiable(*(o for o, fact in zip(outputs, ctx.facts, strict=True) if fact is None and o is not None))
        ctx.set_materialize_grads(False)

    def of(self, ctx: Any, d_outputs: Sequence[Any], needed: Sequence[bool]) -> tuple[Any, ...]:
        """The gradients of the op's parameters, in order; None for those that are not `needed`."""
        import torch

        op, grad = self._op, self._grad
        if self._hidden and torch.is_grad_enabled():  # as under create_graph=True
            refuse_second_derivative(op.name)(ctx)
        function = op.bwd if op.bwd is not None else grad.backward
        through = [(d, fact) for kept, d, fact in zip(self._differentiable, d_outputs, ctx.facts, strict=True) if kept]
        d_given = [
            torch.zeros(f[0], dtype=f[1], device=f[2]) if d is None and f is not None and not may else None if f is None else d
            for (d, f), may in zip(through, self._takes_none, strict=False)
        ]
        saved = ctx.saved_tensors
        with autocast_off((*d_given, *saved)):
            gradients = grad.spread(function(*d_given, *saved, *ctx.options))
        gradients.update({n: d_outputs[self._outputs.index(out)] for n, out in grad.same.items()})
        return tuple(gradients.get(n) if need else None for n, need in zip(self._names, needed, strict=True))


def recorded(op: Contract, run: Callable[..., Any]) -> Callable[..., Any]:
    """A function (implementation, arguments) that calls `run(*arguments, implementation=...)` and records the call for autograd.

    `run` returns None for an output that is absent, and no alias of an input."""
    import torch

    gradients = Gradients(op)

    def forward(ctx: Any, implementation: str | None, *args: Any) -> Any:
        made = run(*args, implementation=implementation)
        outputs = made if isinstance(made, tuple) else (made,)
        gradients.save(ctx, args, outputs, [o is not None for o in outputs])
        return made

    def backward(ctx: Any, *d_outputs: Any) -> Any:
        return (None, *gradients.of(ctx, d_outputs, ctx.needs_input_grad[1:]))

    function = type(op.name, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})

    def call(implementation: str | None, args: Sequence[Any]) -> Any:
        return function.apply(implementation, *args)  # type: ignore[attr-defined]

    return call
