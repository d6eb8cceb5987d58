"""Sum over the ranks, residual, RMS norm and codes in one call: launches of all_reduce_norm_ranks__cuda_sm80.cu, and the same from an
all-gather of messages and plain torch."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rooftop.core.argument_checks import number
from rooftop.core.spec import DTYPES, Launch, dtype_of, typed
from rooftop.formats import number_formats
from rooftop.formats import wire as wires
from rooftop.formats.quantized import Quantized
from rooftop.ranks import again, collectives, groups, steps, symmetric, ways
from rooftop.ranks.groups import Limit
from rooftop.ranks.rank_launches import BLOCKS, CHUNK, FLAGS, KINDS, PATIENCE
from rooftop.ranks.steps import Options

FORMATS = {None: 0, "int8": 1, "e4m3": 2}  # what is written, as the kernel numbers it
GROUPS = (0, 32, 64, 128, 256)  # columns that share a scale; 0: a row
WARPS = 8  # of a block, at most, and of a multiprocessor: with up to 255 registers a lane


@dataclass(frozen=True)
class Norm:
    """What is done with the sums. `group`: columns that share a scale; 0: all."""

    eps: float
    format: str | None = None
    group: int = 0

    @classmethod
    def of(cls, what: str, eps: Any, format: Any, group: Any) -> Norm:
        """Raises TypeError and ValueError."""
        eps = 2.0**-23 if eps is None else eps
        number(what, "eps", eps, "a number of at least 0")
        if not eps >= 0:
            raise ValueError(f"{what}: eps is {eps}; it must be at least 0")
        if format is not None and (not isinstance(format, str) or format not in FORMATS):
            raise ValueError(f"{what}: format is {format!r}; accepted are None, 'int8', 'e4m3'")
        if group is not None and (type(group) is not int or group not in GROUPS[1:]):
            raise ValueError(f"{what}: columns is {group!r}; accepted are None (a row), {', '.join(map(str, GROUPS[1:]))}")
        if group is not None and format is None:
            raise ValueError(f"{what}: columns is {group} and format is None; columns share a scale of codes")
        return cls(float(eps), format, group or 0)


def sizes(rows: int, columns: int, ranks: int, wire: str, group: int) -> tuple[int, int]:
    """(bytes of each of the two halves of a room behind its flags, bytes of both)."""
    half = ranks * rows * wires.message_bytes(wires.WIRES[wire], group, columns)
    return half, 2 * half


def launch(
    rows: int, columns: int, ranks: int, dtype: str, weight: str | None, wire: str, group: int, norm: Norm, sms: int, *, residual: bool,
    rank: int | None = None, half: int = 0, room: int = 0, call: int = 1, patience: int = PATIENCE, normed: str = "out",
) -> Launch:
    """`rank`: for several GPUs, whose rooms are in `table`; None: this device plays all ranks. `normed`: the name of what is written, y or
    codes. `half`, `room`: of a larger room than `sizes` gives."""
    here, (least, whole) = rank is None, sizes(rows, columns, ranks, wire, group)
    warps = max(1, min(WARPS, -(-wires.padded(columns, group) // CHUNK)))
    most = max(1, min(BLOCKS, sms * (WARPS // warps) // (ranks if here else 1)))
    args: dict[str, tuple[str, Any]] = {
        "ranks": ("i32", ranks), "first": ("i32", rank or 0), "rows": ("i64", rows), "columns": ("i64", columns), "x": ("ptr", "x"),
        "residual": ("ptr", "residual" if residual else None), "weight": ("ptr", "weight" if weight else None),
        "sum": ("ptr", "s" if here else "sum"), "out": ("ptr", normed), "scale": ("ptr", "scale" if norm.format else None),
        "room": ("ptr", "room" if here else None), "table": ("ptr", None if here else "table"), "bytes": ("i64", room or FLAGS + whole),
        "half": ("i64", half or least), "epochs": ("ptr", "epochs"), "fault": ("ptr", "fault"), "call": ("u32", call),
        "eps": ("f32", norm.eps), "patience": ("i64", patience),
    }
    said = (DTYPES[dtype].cuda, KINDS[wire], group, str(here).lower(), DTYPES[weight or dtype].cuda, FORMATS[norm.format], norm.group)
    return Launch(
        f"all_reduce_norm<{', '.join(map(str, said))}>", (min(rows, most), ranks if here else 1), **typed(args), block=(32 * warps,), cooperative=True,
    )


def all_reduce_norm(
    x: Tensor, residual: Tensor | None = None, weight: Tensor | None = None, eps: float | None = None, group: Any = None, *,
    format: str | None = None, columns: int | None = None, wire: str = "bf16", group_size: int = 128, path: str | None = None,
    verify: bool | None = None, timeout: float | None = None,
) -> tuple[Tensor | Quantized, Tensor]:
    """(y, s) with s = sum of the ranks' x + residual and y = s / sqrt(mean(s²) + eps) · weight: what follows a row-parallel product in a
    transformer, in one kernel. ``y, h = rooftop.comm.all_reduce_norm(partial, h, norm.weight, norm.eps)``

    Each rank sends its rows once to all, in the format `wire`; sums are computed in float32 in the order of the ranks, and the residual is
    added to them in float32. s is this rounded once, with the same bits on every rank; y is computed in float32 before that rounding. It is
    made for the 1 to 512 tokens of decoding; with more rows it is right, but two shots send less.

    Args:
        x: float32, float16 or bfloat16, [..., C], any strides; on all ranks the same shape and dtype.
        residual: of the shape and dtype of x, the same on all ranks; or None.
        weight: [C], in the dtype of x or float32; or None.
        eps: added to the mean of the squares. None: the epsilon of float32.
        format: None: y in the dtype of x. "int8", "e4m3": y is a `rooftop.quant.Quantized` with float32 scales, quantised out of float32.
        columns: consecutive columns that share a scale: 32, 64, 128 or 256; None: a whole row.
        wire, group_size: how x is sent, as for `all_reduce`; "bf16" rounds float32 and float16.
        path: "symmetric", "portable" or None: see `plan`. On path "portable", and on the CPU, messages are gathered, and plain
        torch does the rest.
        verify, timeout: as for `all_reduce`.

    With one rank nothing is sent, and x is not rounded. NaN and infinities are preserved in s. No gradient.

    Raises the errors of `all_reduce`; ValueError and TypeError for a residual, weight, eps, format or columns that do not fit."""
    what = "all_reduce_norm"
    options = (eps, format, columns, wire, group_size, path, verify, timeout)
    keys = tuple("none" if t is None else again.key_of(what, t, options) for t in (x, residual, weight))
    key = None if None in keys else keys
    if (ready := again.find(what, x, group, key)) is not None:
        norm = Norm.of(what, eps, format, columns)
        given, s, y, scale = _given(x, residual, weight, norm)
        ready.latest.launch(x.device.index, tuple(t.data_ptr() for t in given.values()))
        return packaged(y, scale, norm, x), s
    norm, problem = Norm(0.0), None
    try:
        norm = Norm.of(what, eps, format, columns)
    except (TypeError, ValueError) as error:
        problem = error

    def check(t: Tensor, ranks: int) -> None:
        if problem is not None:
            raise problem
        if t.dim() == 0:
            raise ValueError(f"{what}: x has no dimensions; its last one is normalised")
        for name, other, shape in (("residual", residual, t.shape), ("weight", weight, t.shape[-1:])):
            if other is None:
                continue
            if not isinstance(other, torch.Tensor):
                raise TypeError(f"{what}: {name} is a {type(other).__name__}; it must be a tensor")
            if other.dtype != t.dtype and (name == "residual" or other.dtype != torch.float32):
                raise TypeError(f"{what}: {name} is {other.dtype}; x is {t.dtype}")
            if other.shape != shape or other.device != t.device:
                raise ValueError(f"{what}: {name} is {tuple(other.shape)} on {other.device}; it must be {tuple(shape)} on {t.device}")

    said = (
        f", residual={residual is not None}, weight={str(getattr(weight, 'dtype', None)).removeprefix('torch.')}, eps={norm.eps:.9g}, "
        f"format={norm.format!r}, columns={norm.group or None}"
    )
    settings = (wire, group_size, False, False, 0)
    x, group, o, limit = collectives.begun(what, x, group, settings, None, path, False, verify, timeout, check, more=said)
    residual, weight = (None if t is None else t.detach() for t in (residual, weight))
    way = ways.exchanged_by(what, x, group, path, o.wire.name, limit).path
    rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    added = None if residual is None else residual.reshape(rows.shape)
    again.begin(group)
    if way == "symmetric" and x.numel():
        y, scale, s = _symmetric(rows, added, weight, norm, group, o, limit)
        again.remember(group, key, verify, s, o)
    else:
        total = _summed(rows, added, group, o, limit)
        s, (y, scale) = total.to(x.dtype), finished(total, weight, norm, x.dtype)
    return packaged(y, scale, norm, x), s.view(x.shape)


def of_case(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any, path: str | None = None) -> dict[str, Any]:
    """The outputs of a case of the contract `all_reduce_norm_ranks`, of this rank."""
    y, s = all_reduce_norm(
        tensors["x"], tensors.get("residual"), tensors.get("weight"), options["eps"], group, format=options["format"] or None,
        columns=options["columns"] or None, wire=options["wire"], group_size=options["group"], path=path,
        verify=None if path is None else False,
    )
    if isinstance(y, Tensor):
        return {"y": y, "s": s}
    return {"codes": y.codes.view(torch.uint8), "scale": y.scale.reshape(len(s), -1), "s": s}


def packaged(y: Tensor, scale: Tensor | None, norm: Norm, x: Tensor) -> Tensor | Quantized:
    """Rows as `all_reduce_norm` returns them."""
    if norm.format is None:
        return y.view(x.shape)
    wide, lead = x.shape[-1], x.shape[:-1]
    assert scale is not None
    codes = y.view(*x.shape).view(torch.int8 if norm.format == "int8" else torch.float8_e4m3fn)
    shape = (*lead, scale.shape[1]) if norm.group or not wide else lead
    name = str(x.dtype).removeprefix("torch.")
    each, split = norm.group or max(wide, 1), (0, x.dim() - 1)
    return Quantized(codes, scale.reshape(shape), None, None, norm.format, tuple(x.shape), name, 1, each, split, "f32", None)


def finished(v: Tensor, weight: Tensor | None, norm: Norm, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """(y in `dtype` or codes, scales) of rows of float32, in plain torch."""
    v = v * (v.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    v = v if weight is None else v * weight.float()
    if norm.format is None:
        return v.to(dtype), None
    rows, wide = v.shape
    each = norm.group or max(wide, 1)
    count = -(-wide // each)
    tiles = torch.nn.functional.pad(v, (0, count * each - wide)).view(rows, count, each)
    largest = tiles.abs().where(tiles.isfinite(), tiles.new_zeros(())).amax(2)
    scale = number_formats.scale_of(largest, norm.format, "f32")
    return number_formats.encode((tiles / scale.unsqueeze(2)).flatten(1)[:, :wide], norm.format), scale


def _summed(x: Tensor, residual: Tensor | None, group: Any, o: Options, limit: Limit) -> Tensor:
    """s of rows x in float32, by an all-gather of messages of whole rows."""
    ranks, (rows, columns) = dist.get_world_size(group), x.shape
    v = x.float()
    if ranks > 1 and x.numel():
        wide = wires.padded(columns, o.group)
        sent = steps.encode(torch.nn.functional.pad(x, (0, wide - columns)), o, 1, rows * wide)
        got = sent.new_empty(ranks, sent.shape[1])
        groups.run("all_reduce_norm", group, lambda: groups.gather_into(got.view(-1), sent.view(-1), group), limit)
        v = steps.decode_sum(got, o, rows * wide, torch.float32).view(rows, wide)[:, :columns]
    return (v if residual is None else v + residual.float()).contiguous()


def _symmetric(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, norm: Norm, group: Any, o: Options, limit: Limit
) -> tuple[Tensor, Tensor | None, Tensor]:
    symmetric.raise_faults(group, "all_reduce_norm")
    ranks, rank, (rows, columns) = dist.get_world_size(group), dist.get_rank(group), x.shape
    x, residual, weight = (t if t is None else t.contiguous() for t in (x, residual, weight))
    assert x is not None
    given, s, y, scale = _given(x, residual, weight, norm)
    kind = None if weight is None else dtype_of(weight.dtype)
    facts = ("norm", rows, columns, str(x.dtype), residual is not None, kind, norm.eps, norm.format, norm.group, *o.facts())
    call = zlib.crc32(repr(facts).encode()) & 0x7FFFFFFF

    def make(room: symmetric.Room, sms: int, patience: int) -> Launch:
        return launch(
            rows, columns, ranks, dtype_of(x.dtype), kind, o.wire.name, o.group, norm, sms, residual=residual is not None, rank=rank,
            half=room.capacity // 2, room=FLAGS + room.capacity, call=call, patience=patience,
        )

    whole = sizes(rows, columns, ranks, o.wire.name, o.group)[1]
    symmetric.launched("norm", "norm", whole, facts, make, given, x.device, group, limit)
    return y, scale, s


def _given(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, norm: Norm
) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor | None]:
    """The kernel's tensors by name, without those that there are not; s, y or codes, and scales, which it writes."""
    columns, scale = x.shape[-1], None
    s, y = torch.empty_like(x), torch.empty_like(x, dtype=x.dtype if norm.format is None else torch.uint8)
    if norm.format is not None:
        scale = torch.empty(x.numel() // columns, -(-columns // norm.group) if norm.group else 1, device=x.device)
    tensors = {"x": x, "residual": residual, "weight": weight, "sum": s, "out": y, "scale": scale}
    return {n: t for n, t in tensors.items() if t is not None}, s, y, scale
