"""Trials: what a module computes is found by running small copies of it on random numbers, never by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
TIMES = 4.0  # the float32 error of the original that ours may reach, both against float64
REFUSED = (TypeError, ValueError, RuntimeError, IndexError)  # what our functions raise where the original is another one
LEAST = 2e-6  # of the largest value: where the original is exact by luck
MOST = 1e-3  # of the largest value: an original that errs by more in float32 proves nothing
HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
    "_backward_pre_hooks", "_backward_hooks",
)


@contextmanager
def quiet() -> Iterator[None]:
    """On the CPU, with gradients, without autocast; torch's generators are as before."""
    with (
        torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"),
        torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False),
    ):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        torch.manual_seed(20)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def ordinary(*tensors: Any) -> bool:
    """Whether kernels take these tensors: floats of at most 32 bits that are not distributed."""
    return all(t is None or (t.dtype in FLOATS and type(t).__name__ != "DTensor") for t in tensors)


def twin(module: nn.Module, parameters: Mapping[str, Tensor | None] | None = None, modules: Mapping[str, nn.Module] | None = None) -> Any:
    """A copy that shares everything but the dictionaries, without hooks; with other parameters and children."""
    made = object.__new__(type(module))
    made.__dict__.update(vars(module))
    for name in ("_parameters", "_buffers", "_modules"):
        made.__dict__[name] = dict(vars(module)[name])
    for name in HOOKS:
        if name in made.__dict__:
            made.__dict__[name] = type(made.__dict__[name])()
    made._parameters.update({n: None if p is None else nn.Parameter(p) for n, p in (parameters or {}).items()})
    made._modules.update(modules or {})
    return made


def in_float64(module: Any) -> Any:
    """A copy of a twin, with its parameters and those of its children in float64."""
    parameters = {n: None if p is None else p.detach().double() for n, p in module._parameters.items()}
    made = twin(module, parameters, {n: in_float64(m) for n, m in module._modules.items() if m is not None})
    made._buffers = {n: b.double() if isinstance(b, Tensor) and b.is_floating_point() else b for n, b in module._buffers.items()}
    return made


def in_mode(module: Any, training: bool) -> Any:
    """A copy of a twin that trains or not, with all of its children."""
    made = twin(module, modules={n: in_mode(m, training) for n, m in module._modules.items() if m is not None})
    made.__dict__["training"] = training
    return made


def is_linear(module: Any) -> bool:
    """A layer [..., K] -> [..., N], whatever computes it: nn.Linear, quantised ones, adapters of peft."""
    return all(isinstance(getattr(module, n, None), int) for n in ("in_features", "out_features"))


def small_linears(layers: Mapping[str, nn.Module]) -> dict[str, nn.Linear]:
    """Random layers in the place of others, whose sizes stand to one another as theirs do."""
    unit = gcd(*(n for m in layers.values() for n in (m.in_features, m.out_features))) or 1
    shrunk = {n: (int(m.in_features) * 8 // unit, int(m.out_features) * 8 // unit) for n, m in layers.items()}
    if max(max(s) for s in shrunk.values()) > 1024:  # sizes without a large common divisor
        shrunk = {n: (int(m.in_features), int(m.out_features)) for n, m in layers.items()}
    return {n: nn.Linear(k, c, bias=getattr(layers[n], "bias", None) is not None) for n, (k, c) in shrunk.items()}


def near(got: Any, want: Any, exact: Any) -> bool:
    """Whether tensors, or nested tuples of them, are as near to the float64 results as the originals are."""
    if isinstance(want, (tuple, list)):
        return isinstance(got, (tuple, list)) and len(got) == len(want) and all(near(*x) for x in zip(got, want, exact, strict=True))
    if not isinstance(want, Tensor):
        return got is None and want is None
    if not isinstance(got, Tensor) or got.shape != want.shape or got.dtype != want.dtype:
        return False
    if not want.numel():
        return True
    largest = float(exact.detach().abs().max())
    own = float((want.double() - exact).detach().abs().max())
    if not own <= MOST * largest < float("inf"):  # another result at each run, or none
        return False
    allowed = max(TIMES * own, LEAST * largest)
    return float((got.double() - exact).detach().abs().max()) <= allowed


def result_and_gradients(function: Callable[..., Any], inputs: Sequence[Tensor], parameters: Sequence[Tensor] = ()) -> tuple[Any, Any]:
    """(what it returns, the gradients of the weighted sum of it), of float inputs and parameters."""
    wrt = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    made = function(*wrt)
    outputs = made if isinstance(made, (tuple, list)) else (made,)
    g = torch.Generator().manual_seed(5)
    total = sum((o * torch.randn(o.shape, generator=g).to(o.dtype)).sum() for o in outputs if isinstance(o, Tensor) and o.requires_grad)
    leaves = [x for x in (*wrt, *parameters) if x.requires_grad]
    gradients = torch.autograd.grad(total, leaves, allow_unused=True) if isinstance(total, Tensor) else ()
    return made, gradients


def same(ours: Any, theirs: Any, inputs: Sequence[Tensor], gradients: bool = True) -> bool:
    """Whether two modules, twins of one another, give the same for these inputs, as near to float64 as `theirs`; gradients too."""
    try:
        exact = in_float64(theirs)
        wide = [x.double() if x.is_floating_point() else x for x in inputs]
        found = [result_and_gradients(m, x, list(m.parameters())) for m, x in ((theirs, inputs), (exact, wide))]
    except Exception:  # whatever a forward of others raises where it is run on its own
        return False
    try:
        found = [result_and_gradients(ours, inputs, list(ours.parameters())), *found]
    except REFUSED:
        return False
    return near(*(r for r, _ in found)) and (not gradients or near(*(g for _, g in found)))


def required(function: Callable[..., Any]) -> list[str] | None:
    """The names of the parameters after self that must be given; None for a function that does not say."""
    try:
        found = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in found if p.default is inspect.Parameter.empty and p.kind not in kinds]


def replaced_forward(module: nn.Module) -> str:
    """Who has put a forward of their own on an instance; "" where nobody has."""
    if "forward" not in vars(module):
        return ""
    if hasattr(module, "_hf_hook"):
        return "its forward was replaced by hooks of accelerate"
    where = getattr(getattr(vars(module)["forward"], "__func__", vars(module)["forward"]), "__module__", None) or "?"
    return f"its forward was replaced by {where.split('.')[0]}"
