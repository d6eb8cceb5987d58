"""Memory layouts of a case's tensors, and the precision in which a reference computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rooftop.core.spec import DTYPES, Input, Meta, Problem, contiguous_strides, dtype_of

if TYPE_CHECKING:
    import torch

PAD = 5  # elements between the rows of a "sliced" tensor: rows lose their alignment
WIDE = 64  # elements between the rows of a "padded" tensor: rows keep their alignment


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


def meta_of(value: object) -> Meta | None:
    """The Meta of an `Input` as `make` lays it out; None for anything else."""
    if not isinstance(value, Input):
        return None
    strides = strides_of(value.shape, value.layout)
    size = DTYPES[value.dtype].bytes
    return Meta(value.shape, value.dtype, strides, size if value.layout == "offset" else 16)


def computes(t: torch.Tensor) -> bool:
    """Whether torch computes with its elements as floating-point numbers: false for codes and for scales that are only exponents."""
    return t.is_floating_point() and DTYPES[dtype_of(t.dtype)].floating


def widen(t: torch.Tensor | None) -> torch.Tensor | None:
    """16- and 8-bit floating-point tensors as float32, in which the same-precision computation is done; others unchanged."""
    return t.float() if t is not None and computes(t) and t.element_size() < 4 else t


def remark(problem: Problem, head: bool, misaligned: bool = False) -> str:
    """A clause for the message of a kernel that is wrong: how its tensors lie that are not contiguous; of an access that is `misaligned`,
    those too that are not at multiples of 16 bytes; "" where there are none. With `head`, what a kernel that needs another layout
    writes."""
    apart = {n: m for n, m in problem.tensors if m is not None and not m.contiguous}
    odd = {n: m for n, m in problem.tensors if misaligned and m is not None and m.contiguous and m.align < 16}
    said = [
        f"{n} has shape {list(m.shape)} and strides {list(m.strides)} (contiguous: {list(contiguous_strides(m.shape))})"
        for n, m in apart.items()
    ]
    said += [f"{n} of shape {list(m.shape)} starts at a multiple of {m.align} bytes, not of 16" for n, m in odd.items()]
    if not said:
        return ""
    name = next(iter(apart or odd))
    needs = f'"aligned({name}, 16)"'
    if apart:
        at, dense = next((i, n) for i, n in enumerate(contiguous_strides(apart[name].shape)) if apart[name].strides[i] != n and apart[name].shape[i] > 1)
        needs = f'"stride({name}, {at}) == {dense}"' + (f" ({dense} by the head's names)" if dense > 1 else "")
    return f" ({'; '.join(said)}{f'; what the kernel needs is written under [requires], as {needs}' if head else ''})"
