"""Input tensors of a case: how they are filled and how they lie in memory. Always random, from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.lab.spec import DTYPES, Case, Input, Meta, Option, contiguous_strides

if TYPE_CHECKING:
    import torch

    from rooftop.lab.op import Op

PAD = 5  # elements between the rows of a "sliced" tensor: rows lose their alignment
WIDE = 64  # elements between the rows of a "padded" tensor: rows keep it


def strides_of(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Strides in elements of a tensor of `shape` in `layout`."""
    match layout:
        case "contiguous" | "offset":
            return contiguous_strides(shape)
        case "transposed":
            swapped = contiguous_strides((*shape[:-2], shape[-1], shape[-2]))
            return (*swapped[:-2], swapped[-1], swapped[-2])
        case "sliced" | "padded":
            step = shape[-1] + (PAD if layout == "sliced" else WIDE - shape[-1] % 16)
            return contiguous_strides((*shape[:-1], step))
        case "strided":
            return tuple(2 * s for s in contiguous_strides(shape))
        case "expanded":
            return (0, *contiguous_strides(shape)[1:])
    raise ValueError(f"layout {layout!r} is not one of contiguous, offset, transposed, sliced, padded, strided, expanded")


def meta_of(value: Any) -> Meta | None:
    """The facts of an `Input` as `make` lays it out; None for anything else."""
    if not isinstance(value, Input):
        return None
    strides = strides_of(value.shape, value.layout)
    size = DTYPES[value.dtype].bytes
    return Meta(value.shape, value.dtype, strides, size if value.layout == "offset" else 16)


def _normal(shape: Any, d: Any, g: torch.Generator, device: Any) -> torch.Tensor:
    import torch

    return torch.randn(shape, generator=g, device=device, dtype=torch.float32)


def _large(shape: Any, d: Any, g: torch.Generator, device: Any) -> torch.Tensor:
    """Both signs, a half to nine tenths of the largest finite value of the dtype."""
    import torch

    size = torch.rand(shape, generator=g, device=device) * 0.4 + 0.5
    return size * min(d.max, 3.0e38) * torch.where(_normal(shape, d, g, device) > 0, 1.0, -1.0)


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


FILLS: Mapping[str, Callable[..., Any]] = {
    "normal": _normal,
    "large": _large,
    "tiny": _tiny,
    "far": lambda shape, d, g, device: _normal(shape, d, g, device) + 100,  # sums of squares lose the spread
    "wide": lambda shape, d, g, device: _normal(shape, d, g, device) * 6,  # into the tails of activations
    "nan": _with(float("nan"), "some"),
    "inf": _with(float("inf"), "some"),
    "-inf": _with(float("-inf"), "some"),
    "-inf rows": _with(float("-inf"), "whole"),
    "-0.0": _with(-0.0, "whole"),
    "integers": lambda shape, d, g, device: (_normal(shape, d, g, device) * 2).round().clamp(-8, 8),  # sums of their products are exact in f32
    "equal": lambda shape, d, g, device: _normal((1,) * len(shape), d, g, device).expand(shape).clone(),
}


def tensor(spec: Input, generator: torch.Generator, device: Any) -> torch.Tensor:
    """One tensor: filled, rounded to its dtype, laid out. Memory around the elements holds NaN (or a large code)."""
    import torch

    d = DTYPES[spec.dtype]
    dtype = getattr(torch, d.torch)
    if not d.floating:
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


def make(op: Op, case: Case, device: Any, seed: int) -> tuple[dict[str, torch.Tensor | None], dict[str, Option]]:
    """The tensors (by name, None where absent) and options of a case. A backward's follow from its forward's reference."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    forward = op.forward or op
    given: dict[str, torch.Tensor | None] = {
        n: tensor(v, generator, device) if isinstance(v := case.inputs.get(n), Input) else None for n in forward.tensor_names
    }
    options = forward.options(case)
    if op.forward is None:
        return given, options
    assert forward.grad is not None
    results = round_to(forward, case, forward.reference(*(widen(given[n]) for n in forward.tensor_names), *options.values()))
    values: dict[str, torch.Tensor | None] = {**given, **results}
    problem = forward.problem(case)
    made: dict[str, torch.Tensor | None] = {}
    for name in (n for n in forward.output_names if n not in forward.grad.aside):
        meta = problem.get(name)
        made[f"d{name}"] = None if meta is None else laid_out(_normal(meta.shape, None, generator, device), meta)
    made.update(zip(forward.grad.saved_names, forward.grad.saved(values), strict=True))
    return {n: made[n] for n in op.tensor_names}, {n: options[n] for n in op.option_names}


def widen(t: torch.Tensor | None) -> torch.Tensor | None:
    """16- and 8-bit floating tensors in float32, in which the same-precision computation is done; others as they are."""

    return t.float() if t is not None and t.is_floating_point() and t.element_size() < 4 else t


def laid_out(t: Any, meta: Meta) -> torch.Tensor:
    """`t` in memory of its own with the strides of `meta`."""
    import torch

    out = torch.empty_strided(meta.shape, meta.strides, dtype=getattr(torch, DTYPES[meta.dtype].torch), device=t.device)
    return out.copy_(t)


def round_to(op: Op, case: Case, results: Any) -> dict[str, torch.Tensor]:
    """A reference's results in the dtypes and layouts that the op's outputs have, by name; those that are absent are left out."""
    problem = op.problem(case)
    found = results if isinstance(results, tuple) else (results,)
    return {n: laid_out(r, m) for n, r in zip(op.output_names, found, strict=True) if (m := problem.get(n)) is not None}
