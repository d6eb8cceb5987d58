"""Matrices prepared for tensor cores: rows along K, in one part (a copy, of any dtype) or float32 in two parts whose sum has 22 bits (TF32) or 16 bits
(bfloat16) of the number."""

from __future__ import annotations

import triton
import triton.language as tl

from rooftop.core.spec import DTYPES, Launch, Meta

KINDS = ("copy", "tf32", "bf16")
TF32, BF16 = tl.constexpr(1), tl.constexpr(2)
TILE = 64


@triton.jit
def split_rows(x, out, R, K, xr, xk, xz, pitch, batch, KIND: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """out[part, z, r, k] = the part of x[z, r, k]; xr, xk, xz: strides of x along r, k, z; pitch: row stride of out. TF32: x1 is x without the 13 lowest
    bits, x2 the remainder, which tensor cores truncate too. BF16: x1 is x rounded, x2 the remainder rounded."""
    along = tl.cdiv(K, TILE)
    tile = tl.program_id(0)
    z = tl.program_id(1).to(tl.int64)
    r, k = tile // along * TILE + tl.arange(0, TILE), tile % along * TILE + tl.arange(0, TILE)
    inside = (r < R)[:, None] & (k < K)[None, :]
    v = tl.load(x + z * xz + (r.to(tl.int64) * xr)[:, None] + (k.to(tl.int64) * xk)[None, :], mask=inside, other=0.0)
    at = (r.to(tl.int64) * pitch)[:, None] + k[None, :]
    written = (r < R)[:, None] & (k < pitch)[None, :]  # zeros up to the pitch: whole 16 bytes
    if KIND == BF16:
        first = v.to(tl.bfloat16)
        rest = (v - first.to(tl.float32)).to(tl.bfloat16)
    elif KIND == TF32:
        first = (v.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
        rest = v - first
    else:
        first = v
    tl.store(out + z * R * pitch + at, first, mask=written)
    if KIND != 0:
        tl.store(out + (z + batch) * R * pitch + at, rest, mask=written)


def pitch_of(k: int, itemsize: int) -> int:
    """Row stride: K, as a multiple of 128 bytes, so that rows are in as few lines of the L2 as possible. TMA requires 16."""
    wide = 128 // itemsize
    return -(-k // wide) * wide


def room(rows: int, k: int, batch: int, kind: str, dtype: str = "f32") -> Meta:
    """Memory for the parts. `dtype`: that of a copy."""
    made, parts = (dtype, 1) if kind == "copy" else ("bf16" if kind == "bf16" else "f32", 2)
    return Meta((parts * batch, rows, pitch_of(k, DTYPES[made].bytes)), made)


def launch(name: str, meta: Meta, into: str, kind: str, columns: bool) -> Launch:
    """`columns`: the rows of the result are the columns of the tensor, as for b."""
    r, k = (-1, -2) if columns else (-2, -1)
    batch = meta.shape[0] if len(meta.shape) == 3 else 1
    rows, depth = meta.shape[r], meta.shape[k]
    args = {
        "x": name, "out": into, "R": rows, "K": depth, "xr": meta.strides[r], "xk": meta.strides[k], "xz": meta.strides[0] if len(meta.shape) == 3 else 0,
        "pitch": pitch_of(depth, 2 if kind == "bf16" else meta.itemsize), "batch": batch, "KIND": KINDS.index(kind), "TILE": TILE,
    }  # fmt: skip
    return Launch(kernel=split_rows, grid=(-(-rows // TILE) * -(-depth // TILE), batch), args=args, warps=4)
