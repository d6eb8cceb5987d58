"""The indices of a sparse matrix: checks of what is given, offsets of rows, sorting. All on the tensors' device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LAYOUTS = ("csr", "coo", "bsr", "2:4")
BLOCKS = (8, 16, 32, 64, 128)
BYTES = (torch.float8_e4m3fn, torch.float8_e5m2)  # floating point of 8 bits: in others the bits of zero mean something else


def size_of(shape: Any) -> tuple[int, int]:
    if len(shape) != 2 or any(int(n) < 0 for n in shape):
        raise ValueError(f"the shape is {tuple(shape)}; it must be (M, K)")
    if any(int(n) > 2**31 for n in shape):
        raise ValueError(f"the shape is {tuple(shape)}; a sparse tensor takes at most 2^31 rows and columns, as its indices are int32")
    return int(shape[0]), int(shape[1])


def check_matrix(op: str, x: Any) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{op}: x is a {type(x).__name__}; it must be a tensor")
    if not (x.dtype.is_floating_point or x.dtype == torch.int8):
        raise TypeError(f"{op}: x is {x.dtype}; accepted are floating point and torch.int8")
    if x.dtype.is_floating_point and x.dtype.itemsize == 1 and x.dtype not in BYTES:
        raise TypeError(f"{op}: x is {x.dtype}; of 8 bits, accepted are {', '.join(map(str, BYTES))} and torch.int8")
    if x.dim() != 2 or x.layout != torch.strided:
        raise ValueError(f"{op}: x is {x.layout} of shape {tuple(x.shape)}; it must be a dense [M, K]")


def block_of(layout: Any, block: Any) -> tuple[int, int] | None:
    """The block of a layout. Raises ValueError for an unknown one."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; it is one of {', '.join(map(repr, LAYOUTS))}")
    if layout != "bsr":
        if block is not None:
            raise ValueError(f"block is {block!r} with layout {layout!r}; only 'bsr' has blocks")
        return None
    size = (32, 32) if block is None else (block, block) if isinstance(block, int) else tuple(block)
    if len(size) != 2 or any(n not in BLOCKS for n in size):
        raise ValueError(f"block is {block!r}; it is two of {', '.join(map(str, BLOCKS))}")
    return size


def check_indices(op: str, named: dict[str, Any], device: torch.device) -> None:
    for name, t in named.items():
        if not isinstance(t, torch.Tensor) or t.dtype not in (torch.int32, torch.int64) or t.dim() != 1:
            given = f"{t.dtype} of {t.dim()} dimensions" if isinstance(t, torch.Tensor) else f"a {type(t).__name__}"
            raise TypeError(f"{op}: {name} is {given}; it must be a tensor of torch.int32 or torch.int64, of one dimension")
        if t.device != device:
            raise ValueError(f"{op}: {name} lies on {t.device} and values on {device}; they must be on one device")


def check_range(name: str, x: Tensor, extent: int) -> None:
    if x.numel() == 0:
        return
    least, most = (int(n) for n in torch.aminmax(x))
    if least < 0 or most >= extent:
        raise ValueError(f"{name} hold {least if least < 0 else most}; accepted are 0 to {extent - 1}")


def check_offsets(offsets: Tensor, nnz: int) -> None:
    if int(offsets[0]) != 0 or int(offsets[-1]) != nnz:
        raise ValueError(f"offsets run from {int(offsets[0])} to {int(offsets[-1])}; they must run from 0 to {nnz}")
    if bool((offsets[1:] < offsets[:-1]).any()):
        raise ValueError("offsets fall somewhere; each must be at least the one before it")


def short(x: Tensor) -> Tensor:
    """As int32, which all kernels take. Raises ValueError where a matrix is too large for that."""
    if x.numel() >= 2**31:
        raise ValueError(f"{x.numel()} elements; a sparse tensor takes fewer than 2^31")
    return x.to(torch.int32)


def offsets_of(rows: Tensor, tall: int) -> Tensor:
    """Of sorted or unsorted rows: int32 [tall + 1]."""
    from rooftop.ops.spmm_csr import counted

    ends = torch.zeros(tall + 1, dtype=torch.int32, device=rows.device)
    ends[1:] = counted(rows, tall).cumsum(0)
    return ends


def ordered(rows: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted by rows then columns; values of one place added up, in the order they came."""
    keys = rows.long() * max(1, size[1]) + columns.long()
    if keys.numel() < 2 or bool((keys[1:] > keys[:-1]).all()):
        return rows, columns, values
    keys, order = keys.sort(stable=True)
    values = values[order]
    new = torch.ones_like(keys, dtype=torch.bool)
    new[1:] = keys[1:] != keys[:-1]
    if not bool(new.all()):
        at = new.cumsum(0) - 1
        keys = keys[new]
        wide = torch.float32 if values.dtype.itemsize < 4 and values.dtype.is_floating_point else values.dtype
        values = torch.zeros(
            keys.shape[0], *values.shape[1:], dtype=wide, device=values.device
        ).index_add(0, at, values.to(wide)).to(values.dtype)
    return keys // max(1, size[1]), keys % max(1, size[1]), values
