"""Gradients of an op: what its forward saves and what its backward returns, for the op registered with `torch.library` and for eager calls.

An eager call whose tensors are plain ones records itself with an autograd function of its own: the way through torch's dispatcher and a
registered op costs the host more. `torch.compile`, functional transforms and subclasses of tensors take that way."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rooftop.core.contract import Contract


def autocast_off(tensors: Iterable[Any]) -> AbstractContextManager[Any]:
    """A context without autocast, which would reduce the precision of computations that the contract requires in float32."""
    import torch

    if not torch._C._is_any_autocast_enabled():
        return nullcontext()
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
        grad = op.grad
        assert grad is not None
        self._op, self._grad = op, grad
        self._names, self._options, self._outputs = tuple(op.kinds), op.option_names, op.output_names
        self._differentiable = tuple(n not in grad.non_differentiable for n in op.output_names)
        # computed for the backward; how they depend on the inputs is not recorded
        self._hidden = bool(set(grad.non_differentiable) & set(grad.saves))
        self._takes_none = tuple(p.annotation == "Tensor | None" for p in inspect.signature(grad.backward).parameters.values())
        self._same = tuple((name, op.output_names.index(out)) for name, out in grad.same.items())

    def save(self, ctx: Any, values: dict[str, Any], outputs: Sequence[Any], present: Sequence[bool]) -> None:
        """Keep what the backward needs. `values`: the arguments, by name; lists of tensors by the names of their members. `present`: which
        outputs the call has."""
        for n, o, there in zip(self._outputs, outputs, present, strict=True):
            if there:
                values[n] = o
        ctx.save_for_backward(*self._grad.saved(values))
        ctx.options = [values[n] for n in self._options]
        ctx.facts = facts = [
            (o.shape, o.dtype, o.device) if there and kept else None
            for o, there, kept in zip(outputs, present, self._differentiable, strict=True)
        ]
        if None in facts and (others := [o for o, fact in zip(outputs, facts, strict=True) if fact is None and o is not None]):
            ctx.mark_non_differentiable(*others)
        ctx.set_materialize_grads(False)

    def of(self, ctx: Any, d_outputs: Sequence[Any], needed: Sequence[bool]) -> tuple[Any, ...]:
        """The gradients of the op's parameters, in order; None for those that are not `needed`."""
        import torch

        op, grad = self._op, self._grad
        if self._hidden and torch.is_grad_enabled():  # as under create_graph=True
            refuse_second_derivative(op.name)(ctx)
        through = [(d, fact) for kept, d, fact in zip(self._differentiable, d_outputs, ctx.facts, strict=True) if kept]
        given: list[Any] = [
            d if d is not None or f is None or may else torch.zeros(f[0], dtype=f[1], device=f[2])
            for (d, f), may in zip(through, self._takes_none, strict=False)
        ]
        given += ctx.saved_tensors
        function = op.bwd if op.bwd is not None else grad.backward
        with autocast_off(given):
            gradients = grad.spread(function(*given, *ctx.options))
        for name, at in self._same:
            gradients[name] = d_outputs[at]
        return tuple([gradients.get(n) if need else None for n, need in zip(self._names, needed, strict=True)])


def recorded(op: Contract, run: Callable[..., Any]) -> Callable[..., Any]:
    """A function (chosen, arguments) that calls `run(chosen, arguments)` and records the call for autograd; `chosen` is handed on as it is.

    The op takes no lists of tensors. `run` returns None for an output that is absent, and no alias of an input."""
    import torch

    gradients, names = Gradients(op), tuple(op.kinds)

    def forward(ctx: Any, chosen: Any, *args: Any) -> Any:
        made = run(chosen, args)
        outputs = made if isinstance(made, tuple) else (made,)
        gradients.save(ctx, dict(zip(names, args, strict=True)), outputs, [o is not None for o in outputs])
        return made

    def backward(ctx: Any, *d_outputs: Any) -> Any:
        return (None, *gradients.of(ctx, d_outputs, ctx.needs_input_grad[1:]))

    function = type(op.name, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})

    apply = super(torch.autograd.Function, function).apply  # what `Function.apply` does without a transform

    def call(chosen: Any, args: Sequence[Any]) -> Any:
        return apply(chosen, *args)

    return call
