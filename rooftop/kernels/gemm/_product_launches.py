"""From a problem to the launches of the Gluon kernel: what TMA can read, operands that are transposed, descriptors, scratch memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from triton.experimental.gluon import language as gl

from rooftop.core.spec import DTYPES, Descriptor, Launch, Meta, Problem
from rooftop.kernels._device import gemm_epilogue
from rooftop.kernels._device.gluon_tiles import TYPES, lies, readable, turned
from rooftop.kernels.gemm import _product_gluon
from rooftop.kernels.gemm._model import Config, Facts, Plan, piece, plan, ranked, seconds, tall_tile

COPY = 3.1e12  # bytes a second of a copied operand, read and written
COPY_LAUNCH = 2.8e-6  # seconds that a copy adds at least
TALLER = 0.98  # the time of tiles of 192 rows, relative to the prediction, that of others is 1


@dataclass(frozen=True)
class Product:
    """out [.., M, N] = a [.., M, K] b [.., K, N] and its epilogue: names of tensors ("" for none) and numbers."""

    metas: Mapping[str, Meta | None]
    sms: int
    a: str = "a"
    b: str = "b"
    out: str = "out"
    alpha: float = 1.0
    beta: float = 0.0
    scale_a: str = ""  # float32 [M]
    scale_b: str = ""  # float32 [N]
    activation: str = "none"
    raw: bool = False  # no epilogue
    promote: bool = False
    scales: str = "rows"  # what the scales are: one of gemm_epilogue.SCALES

    def there(self, name: str) -> Meta | None:
        return self.metas.get(name) if name else None

    def of(self, name: str) -> Meta:
        meta = self.metas[name]
        assert meta is not None, name
        return meta

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, N, K and the matrices of the batch."""
        a, b = self.of(self.a), self.of(self.b)
        return a.shape[-2], b.shape[-1], a.shape[-1], a.shape[0] if len(a.shape) == 3 else 1

    @property
    def stored(self) -> int:
        """Bytes of one element if TMA stores the result; 0 if it cannot."""
        out = self.of(self.out)
        whole = out.strides[-1] == 1 and all(s * out.itemsize % 16 == 0 for s in out.strides[:-1]) and out.align % 16 == 0
        return out.itemsize if whole else 0

    @property
    def vectors(self) -> int:
        return (self.there(self.scale_b) is not None and self.scales != "blocks") + (self.there("bias") is not None)

    @property
    def facts(self) -> Facts:
        a, b = self.of(self.a), self.of(self.b)
        apart = [x.strides[-1 if turned(x) else -2] * x.itemsize % 128 != 0 for x in (a, b)]
        return Facts(*self.sizes, a.itemsize, self.stored, self.sms, self.vectors, *apart, a.dtype == "i8")

    def ranked(self) -> list[Config]:
        """Configs, the best predicted first."""
        found = list(ranked(self.facts, swaps=self.scales != "blocks"))
        if self.promote:  # two accumulators a thread
            found = [c for c in found if c.BM // c.GROUPS * c.BN <= 64 * 128]
            if self.scales in ("rows", "blocks") and self.there("bias") is None:  # for others no GPU has proven it
                for tall in tall_tile(self.facts):
                    time = TALLER * self.seconds(tall)
                    found.insert(next((i for i, c in enumerate(found) if self.seconds(c) > time), len(found)), tall)
        return [c for c in found if c.BK == 128 and c.BN <= 128] if self.scales == "blocks" else found

    def seconds(self, config: Config) -> float:
        """Predicted time."""
        return seconds(config, self.facts)

    def plan(self, config: Config) -> Plan:
        m, n, k, batch = self.sizes
        return plan(config, m, n, k, batch, self.sms)


def _descriptor(name: str, meta: Meta, across: bool, rows: int, columns: int, rounded: bool = True) -> Descriptor:
    """The descriptor of a tensor, or with `across` of its transpose, with boxes of rows x columns. rounded: TMA rounds float32 to TF32;
    tensor cores would truncate it."""
    order = [*range(len(meta.shape) - 2), *((-1, -2) if across else (-2, -1))]
    block = (*(1,) * (len(meta.shape) - 2), rows, columns)
    layout = gl.NVMMASharedLayout.get_default_for(list(block), TYPES[meta.dtype])
    strides = [meta.strides[i] for i in order]
    strides[-1] = 1
    dtype = "tf32" if rounded and meta.dtype == "f32" else ""
    return Descriptor(name, block, layout, shape=tuple(meta.shape[i] for i in order), strides=tuple(strides), dtype=dtype)


def _apart(meta: Meta | None) -> tuple[int, int]:
    """Elements from one row to the next, and from one matrix to the next."""
    if meta is None:
        return 0, 0
    return meta.strides[-2], meta.strides[0] if len(meta.shape) == 3 and meta.shape[0] > 1 else 0


def scratch(product: Product, config: Config) -> dict[str, Meta]:
    p = product.plan(config)
    kind = "i32" if product.of(product.a).dtype == "i8" else "f32"
    return {"parts": Meta((p.parts, config.BM * config.BN), kind)} if p.units else {}


def launches(product: Product, config: Config, pdl: bool) -> list[Launch]:
    m, n, k, _ = product.sizes
    a, b, out = product.of(product.a), product.of(product.b), product.of(product.out)
    p = product.plan(config)
    rows, first, second = config.BM // config.GROUPS, (product.a, a, False), (product.b, b, False)
    if config.SWAP:
        m, n, first, second = n, m, (product.b, b, True), (product.a, a, True)
    a_turned, b_turned = turned(first[1]) != first[2], turned(second[1]) != second[2]
    across_a, across_b = turned(first[1]), turned(second[1])
    a_box = (config.BK, rows) if a_turned else (rows, config.BK)
    b_box = (config.BN, config.BK) if b_turned else (config.BK, config.BN)
    tma_out = product.stored > 0 and not config.SWAP
    ldo, zo = _apart(out)
    (ldc, zc), (ldg, zg), (ldr, zr) = (_apart(product.there(x)) for x in ("c", "gate", "residual"))
    after: dict[str, Any] = {
        "alpha": product.alpha, "beta": product.beta, "c": _name(product, "c" if product.beta != 0 else ""), "ldc": ldc, "zc": zc,
        "bias": _name(product, "bias"),
        "gate": _name(product, "gate"), "ldg": ldg, "zg": zg, "residual": _name(product, "residual"), "ldr": ldr, "zr": zr,
        "scale_a": _name(product, product.scale_b if config.SWAP else product.scale_a), "scale_b": _name(product,
        product.scale_a if config.SWAP else product.scale_b),
        "BM": config.BM, "BN": config.BN, "SWAP": config.SWAP, "RAW": product.raw,
        "ACT": gemm_epilogue.ACTIVATIONS.index(product.activation),
        "SHORT": out.itemsize <= 2, "SCALES": gemm_epilogue.SCALES.index(product.scales),
    }
    args: dict[str, Any] = {
        "a_desc": _descriptor(*first[:2], across_a, *a_box), "b_desc": _descriptor(*second[:2], across_b, *b_box),
        "out_desc": _descriptor(product.out, out, False, rows, piece(config), rounded=False) if tma_out else None,
        "out": None if tma_out else product.out, "ldo": ldo, "zo": zo,
        "parts": "parts" if p.units else None, "M": m, "N": n, "K": k, "whole": p.whole, "streamed": p.streamed, "group": config.GROUP,
        **after, "BK": config.BK, "GROUPS": config.GROUPS, "STAGES": config.STAGES, "A_COLUMNS": a_turned, "B_COLUMNS": b_turned,
        "BATCHED": len(a.shape) == 3, "STREAM": p.units > 0 and p.split == 1, "SPLIT": p.split, "PROMOTE": product.promote,
        "EN": piece(config),
    }
    kernel = _product_gluon.product_tall if config.GROUPS == 3 else _product_gluon.product
    made = [Launch(kernel=kernel, grid=(p.blocks,), args=args, warps=4)]
    shared = {
        "parts": "parts", "out": product.out, "ldo": ldo, "zo": zo, "M": m, "N": n, "whole": p.whole, "streamed": p.streamed,
        "group": config.GROUP, **after, "PDL": pdl,
    }
    if product.scales == "blocks":
        shared |= {"scale_a": None, "scale_b": None}
    if p.split > 1:
        # Enough programs for every multiprocessor, with few parts a thread: loads in flight are in registers.
        elements = max(512, min(2048, p.streamed * config.BM * config.BN // (2 * product.sms) // 512 * 512))
        rows = max(1, min(config.BM, 1 << (max(1, elements // config.BN).bit_length() - 1)))
        args = {**shared, "ROWS": rows, "SPLIT": p.split}
        made.append(Launch(kernel=gemm_epilogue.add_split, grid=(p.streamed, config.BM // rows), args=args, warps=4, pdl=pdl))
    elif p.units and p.blocks > 1:
        piece_rows = max(1, min(config.BM, 2048 // config.BN))
        args = {**shared, "slices": p.slices, "blocks": p.blocks, "ROWS": piece_rows}
        made.append(Launch(kernel=gemm_epilogue.add_pieces, grid=(p.blocks - 1, config.BM // piece_rows), args=args, warps=4, pdl=pdl))
    return made


def _name(product: Product, name: str) -> str | None:
    return name if product.there(name) is not None else None


def unread(a: Meta, b: Meta) -> tuple[str, ...]:
    """Operands of 8 bits that wgmma does not read where they lie: not along K, or not on 16 bytes."""
    return tuple(n for n, off in (("a", readable(a) or turned(a)), ("b", readable(b) or not lies(b, -1, -2))) if off)


def along_k(product: Product) -> str | None:
    """None, or why wgmma cannot multiply these 8-bit operands: both must be contiguous along K."""
    m, n, k, _ = product.sizes
    if m * n * k == 0:
        return "M, N and K must be at least 1"
    if max(m, n, k) >= 2**31 - 512:
        return f"takes fewer than 2^31 rows and columns; given {m} x {n} x {k}"
    a, b = product.of(product.a), product.of(product.b)
    for name, meta in (("a", a), ("b", b)):
        if reason := readable(meta):
            return f"TMA does not read {name}: {reason}"
    if turned(a) or not lies(b, -1, -2):
        return "wgmma reads 8-bit operands along K: rows of a and columns of b must be neighbours in memory"
    return None


def _tile(config: Config) -> str:
    split = f" split-K {config.SPLIT}" if config.SPLIT > 1 else ""
    return f"{config.BM}x{config.BN}x{config.BK}{split}{' stream-K' if config.STREAM else ''}{' swapped' if config.SWAP else ''}"


def explanation(product: Product, config: Config) -> str:
    plan = product.plan(config)
    tiles = plan.whole + plan.streamed
    said = [
        f"tile {config.BM} x {config.BN}, {config.STAGES} stages of {config.BK} of K; {config.GROUPS} consumer warp "
        f"group{'s'[: config.GROUPS - 1]}",
        f"{tiles} tiles on {plan.blocks} blocks",
    ]
    if config.SWAP:
        said.append("few columns: the operands are swapped, so that N fills the 64 rows of an instruction")
    if plan.split > 1:
        which = f"{plan.streamed} tiles of the last, partial wave" if plan.whole else f"{plan.streamed} tiles"
        said.append(f"split-K: the {which} are cut into {plan.split} parts of K each, added by a second launch")
    elif plan.units:
        said.append(
            f"stream-K: the slices of {plan.streamed} tiles are divided evenly among the blocks, the parts added by a second launch"
        )
    ranked = product.ranked()
    predicted = product.seconds(config)
    other = next((c for c in ranked if c != config), None)
    beside = (
        "" if other is None
        else f"; {'next' if ranked[0] == config else 'the model prefers'} {_tile(other)} at {product.seconds(other) * 1e6:.1f} µs"
    )
    said.append(
        f"predicted {predicted * 1e6:.1f} µs, {ranked.index(config) + 1 if config in ranked else 'none'} of {len(ranked)} by the "
        f"model{beside}"
    )
    return "; ".join(said)


# -- operands prepared for tensor cores: rows along K, in one part (a copy, of any dtype) or float32 in two parts whose sum has 22 bits
# (TF32) or 16 bits (bfloat16) of the number
# ------------------------------------------------------------------------------------------------

KINDS = ("copy", "tf32", "bf16")
TF32, BF16 = tl.constexpr(1), tl.constexpr(2)
TILE = 64


@triton.jit
def split_rows(x, out, R, K, xr, xk, xz, pitch, batch, KIND: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """out[part, z, r, k] = the part of x[z, r, k]; xr, xk, xz: strides of x along r, k, z; pitch: row stride of out. TF32: x1 is x without
    the 13 lowest bits, x2 the remainder, which tensor cores truncate too. BF16: x1 is x rounded, x2 the remainder rounded."""
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


def operand_room(rows: int, k: int, batch: int, kind: str, dtype: str = "f32") -> Meta:
    """Memory for the parts. `dtype`: that of a copy."""
    made, parts = (dtype, 1) if kind == "copy" else ("bf16" if kind == "bf16" else "f32", 2)
    return Meta((parts * batch, rows, pitch_of(k, DTYPES[made].bytes)), made)


def operand_launch(name: str, meta: Meta, into: str, kind: str, columns: bool) -> Launch:
    """`columns`: the rows of the result are the columns of the tensor, as for b."""
    r, k = (-1, -2) if columns else (-2, -1)
    batch = meta.shape[0] if len(meta.shape) == 3 else 1
    rows, depth = meta.shape[r], meta.shape[k]
    args = {
        "x": name, "out": into, "R": rows, "K": depth, "xr": meta.strides[r], "xk": meta.strides[k],
        "xz": meta.strides[0] if len(meta.shape) == 3 else 0, "pitch": pitch_of(depth, 2 if kind == "bf16" else meta.itemsize),
        "batch": batch, "KIND": KINDS.index(kind), "TILE": TILE,
    }
    return Launch(kernel=split_rows, grid=(-(-rows // TILE) * -(-depth // TILE), batch), args=args, warps=4)


def copies(p: Problem, names: Sequence[str]) -> dict[str, Meta]:
    """Memory for copies of these operands, in rows along K."""
    a, b = p["a"], p["b"]
    rows, batch = {"a": a.shape[-2], "b": b.shape[-1]}, a.shape[0] if len(a.shape) == 3 else 1
    return {f"{name}_rows": operand_room(rows[name], a.shape[-1], batch, "copy", p[name].dtype) for name in names}


def copying(p: Problem, names: Sequence[str]) -> list[Launch]:
    return [operand_launch(name, p[name], f"{name}_rows", "copy", columns=name == "b") for name in names]


def copying_seconds(p: Problem, names: Sequence[str]) -> float:
    """Predicted. Threads load an element at a time, so that one of 8 bits takes as long as one of 16."""
    return sum(max(COPY_LAUNCH, 4 * p[name].numel / COPY) for name in names)


def read_as(p: Problem, names: Sequence[str]) -> dict[str, Any]:
    """For `Product`: the tensors with the copies of these operands as it reads them, and the names of both operands."""
    found, called = dict(p.tensors), {"a": "a", "b": "b"}
    for name in names:
        meta, pitch = p[name], pitch_of(p["a"].shape[-1], p[name].itemsize)
        rows, near = (meta.shape[-2], (pitch, 1)) if name == "a" else (meta.shape[-1], (1, pitch))
        called[name] = f"{name}_rows"
        found[called[name]] = Meta(meta.shape, meta.dtype, near if len(meta.shape) == 2 else (rows * pitch, *near))
    return {"metas": found, **called}
