"""Input tensors of a case: how they are filled and how they lie in memory. Always random, from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.layouts import strides_of, widen
from rooftop.core.spec import DTYPES, Case, Input, Meta, Option, Problem

if TYPE_CHECKING:
    import torch

    from rooftop.core.contract import Contract


def on_gpu(_: str, meta: Meta) -> torch.Tensor:
    """Memory of a call on a GPU, as it is found."""
    import torch

    return torch.empty_strided(meta.shape, meta.strides, dtype=getattr(torch, DTYPES[meta.dtype].torch), device="cuda")


def _normal(shape: Any, d: Any, g: torch.Generator, device: Any) -> torch.Tensor:
    import torch

    return torch.randn(shape, generator=g, device=device, dtype=torch.float32)


def _large(shape: Any, d: Any, g: torch.Generator, device: Any) -> torch.Tensor:
    """Both signs, a half to nine tenths of the largest finite value of the dtype."""
    import torch

    size = torch.rand(shape, generator=g, device=device) * 0.4 + 0.5
    return size * min(d.max, 3.0e38) * torch.where(_normal(shape, d, g, device) > 0, 1.0, -1.0)


def _vast(shape: Any, d: Any, g: torch.Generator, device: Any) -> torch.Tensor:
    """Both signs, 2e30 to 4e30: squares overflow, sums do not, in whatever order. Of dtypes that end below, a quarter to a half of the
    largest value."""
    import torch

    size = torch.rand(shape, generator=g, device=device) + 1
    return size * min(d.max / 4, 2.0e30) * torch.where(_normal(shape, d, g, device) > 0, 1.0, -1.0)


def _tiny(shape: Any, d: Any, g: torch.Generator, device: Any) -> torch.Tensor:
    """Denormals of the dtype (of f32 where the dtype has its exponent range)."""
    smallest = 2.0**-14 if d.name == "f16" else 2.0**-126
    return _normal(shape, d, g, device) * (smallest / 8)


def _with(value: float, rows: str) -> Callable[..., torch.Tensor]:
    def fill(shape: Any, d: Any, g: torch.Generator, device: Any) -> torch.Tensor:
        import torch

        x = _normal(shape, d, g, device)
        if x.numel() == 0:
            return x
        flat = x.view(-1, shape[-1]) if len(shape) else x.view(1, 1)
        if rows == "whole":
            flat[::3] = value
        else:
            column = int(torch.randint(0, flat.shape[1], (1,), generator=g, device=device))
            flat[::2, column] = value
        return x

    return fill


def _ties(shape: Any, d: Any, g: torch.Generator, device: Any) -> torch.Tensor:
    """Rows whose elements over a 127th of the largest lie midway between two whole numbers, 16 alike once rotated by 16: 24 (k + 1/2), then
    zeros."""
    import torch

    found = torch.zeros(shape, device=device)
    found[..., ::16] = 12 * (1 + 2 * torch.randint(0, 127, found[..., ::16].shape, generator=g, device=device)).to(found)
    found[..., :1] = 24 * 127
    return found


FILLS: Mapping[str, Callable[..., Any]] = {
    "normal": _normal,
    "large": _large,
    "vast": _vast,
    "tiny": _tiny,
    "far": lambda shape, d, g, device: _normal(shape, d, g, device) + 100,  # sums of squares lose the spread
    "wide": lambda shape, d, g, device: _normal(shape, d, g, device) * 6,  # into the tails of activations
    "nan": _with(float("nan"), "some"),
    "inf": _with(float("inf"), "some"),
    "-inf": _with(float("-inf"), "some"),
    "-inf rows": _with(float("-inf"), "whole"),
    "-0.0": _with(-0.0, "whole"),
    # sums of their products are exact in f32
    "integers": lambda shape, d, g, device: (_normal(shape, d, g, device) * 2).round().clamp(-8, 8),
    "rising": lambda shape, d, g, device: _normal(shape, d, g, device).sort(-1).values if len(shape) else _normal(shape, d, g, device),
    "ties": _ties,
    "equal": lambda shape, d, g, device: _normal((1,) * len(shape), d, g, device).expand(shape).clone(),
}


def tensor(spec: Input, generator: torch.Generator, device: Any) -> torch.Tensor:
    """One tensor: filled, rounded to its dtype, laid out. Memory around the elements holds NaN (or a large code)."""
    import torch

    d = DTYPES[spec.dtype]
    dtype = getattr(torch, d.torch)
    if d.name in ("f4e2m1x2", "f8e8m0", "c64"):  # torch draws no such values: bits
        words = torch.int32 if d.name == "c64" else torch.uint8
        low, high = (-(2**31), 2**31 - 1) if d.name == "c64" else (119, 136) if d.name == "f8e8m0" else (0, 256)  # exponents of 2^-8 to 2^8
        shape = (*spec.shape[:-1], spec.shape[-1] * 2) if d.name == "c64" else spec.shape
        values = torch.randint(low, high, shape, generator=generator, device=device, dtype=words).view(dtype)
    elif not d.floating:
        low, high = (0, 2) if d.name == "bool" else (0, int(spec.fill.removeprefix("below ")) if spec.fill.startswith("below ") else 100)
        values = torch.randint(low, high, spec.shape, generator=generator, device=device).to(dtype)
    else:
        if spec.fill not in FILLS:
            raise ValueError(f"fill {spec.fill!r} is not one of {', '.join(FILLS)}")
        values = FILLS[spec.fill](spec.shape, d, generator, device).to(dtype)
    if spec.layout == "contiguous":
        return values
    if spec.layout == "expanded":
        return values[:1].expand(spec.shape)
    strides = strides_of(spec.shape, spec.layout)
    reach = 1 + sum((n - 1) * s for n, s in zip(spec.shape, strides, strict=True)) if values.numel() else 0
    start = 1 if spec.layout == "offset" else 0
    memory = torch.full((reach + start,), float("nan") if d.floating else 1, device=device).to(dtype)
    view = memory.as_strided(spec.shape, strides, start)
    return view.copy_(values)


def make(op: Contract, case: Case, device: Any, seed: int) -> tuple[dict[str, torch.Tensor | None], dict[str, Option]]:
    """The tensors (by name, None where absent) and options of a case. A backward's follow from its forward's reference."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    forward = op.forward or op
    made_of = dict(case.tensors())
    given: dict[str, torch.Tensor | None] = {
        n: tensor(made_of[n], generator, device) if n in made_of else None for n in forward.inputs_of(forward.problem(case))
    }
    options = forward.options(case)
    if forward.fixup is not None:
        for name, fitting in forward.fixup(given, options, generator).items():
            before = given[name]
            if before is None or (before.shape, before.dtype) != (fitting.shape, fitting.dtype):
                raise ValueError(f"{forward.name}: fixup() made {name} {fitting.dtype} {tuple(fitting.shape)}, which the case has not")
            given[name] = before.copy_(fitting) if case_layout(made_of[name]) else fitting.contiguous()
    if op.forward is None:
        return given, options
    assert forward.grad is not None
    results = rounded(
        forward, forward.problem(case), forward.reference(*forward.arguments({n: widen(t) for n, t in given.items()}, options))
    )
    values: dict[str, torch.Tensor | None] = {**given, **results}
    problem = forward.problem(case)
    made: dict[str, torch.Tensor | None] = {}
    for name in (n for n in forward.output_names if n not in forward.grad.non_differentiable):
        meta = problem.get(name)
        made[f"d{name}"] = None if meta is None else laid_out(_normal(meta.shape, None, generator, device), meta)
    made.update(zip(forward.grad.saved_names, forward.grad.saved(values), strict=True))
    return made, {n: options[n] for n in op.option_names}


def laid_out(t: Any, meta: Meta) -> torch.Tensor:
    """`t` in memory of its own with the strides of `meta`."""
    import torch

    out = torch.empty_strided(meta.shape, meta.strides, dtype=getattr(torch, DTYPES[meta.dtype].torch), device=t.device)
    return out.copy_(t)


def case_layout(spec: Input) -> bool:
    """Whether a case asks for another layout than a contiguous one."""
    return spec.layout not in ("contiguous", "expanded")


def by_name(op: Contract, results: Any) -> dict[str, Any]:
    """A reference's results by the names of the outputs; None for one that is absent."""
    if not op.output_names:
        return {}
    return dict(zip(op.output_names, results if isinstance(results, tuple) else (results,), strict=True))


def rounded(op: Contract, problem: Problem, results: Any) -> dict[str, torch.Tensor]:
    """A reference's results in the dtypes and layouts that the op's outputs have, by name; those that are absent are left out."""
    return {n: laid_out(r, m) for n, r in by_name(op, results).items() if (m := problem.get(n)) is not None}
