"""From a problem to the launches of the Gluon kernel: what TMA can read, operands that are transposed, descriptors, scratch memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triton.experimental.gluon import language as gl

from rooftop.core.spec import Descriptor, Launch, Meta
from rooftop.kernels._device import gemm_epilogue, gemm_gluon
from rooftop.kernels._device.gemm_model import Config, Facts, Plan, piece, plan, ranked, seconds

TYPES: Mapping[str, Any] = {"bf16": gl.bfloat16, "f16": gl.float16, "f8e4m3": gl.float8e4nv, "f8e5m2": gl.float8e5, "i8": gl.int8, "f32": gl.float32,
"i32": gl.int32}


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
        return out.itemsize if out.strides[-1] == 1 and all(s * out.itemsize % 16 == 0 for s in out.strides[:-1]) and out.align % 16 == 0 else 0

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
        found = ranked(self.facts, swaps=self.scales != "blocks")
        if self.promote:  # two accumulators a thread
            found = [c for c in found if c.BM // c.GROUPS * c.BN <= 64 * 128]
        return [c for c in found if c.BK == 128 and c.BN <= 128] if self.scales == "blocks" else found

    def seconds(self, config: Config) -> float:
        """Predicted time."""
        return seconds(config, self.facts)

    def plan(self, config: Config) -> Plan:
        m, n, k, batch = self.sizes
        return plan(config, m, n, k, batch, self.sms)


def readable(meta: Meta) -> str | None:
    """None, or why TMA can read the matrices of this tensor neither as stored nor transposed."""
    if meta.align % 16:
        return f"its address is a multiple of {meta.align} bytes; TMA needs 16"
    if len(meta.shape) == 3 and meta.shape[0] > 1 and meta.strides[0] * meta.itemsize % 16:
        return f"its matrices are {meta.strides[0] * meta.itemsize} bytes apart; TMA needs a multiple of 16"
    if not (_lies(meta, -2, -1) or _lies(meta, -1, -2)):
        return f"its strides are {meta.strides}; TMA needs one of 1 element and the other a multiple of 16 bytes"
    return None


def _lies(meta: Meta, outer: int, inner: int) -> bool:
    neighbours = meta.strides[inner] == 1 or meta.shape[inner] == 1
    return neighbours and (meta.shape[outer] == 1 or (meta.strides[outer] * meta.itemsize % 16 == 0 and meta.strides[outer] >= 0))


def turned(meta: Meta) -> bool:
    """Whether TMA reads the transposed matrices: their columns are contiguous in memory."""
    return not _lies(meta, -2, -1)


def _descriptor(name: str, meta: Meta, across: bool, rows: int, columns: int, rounded: bool = True) -> Descriptor:
    """The descriptor of a tensor, or with `across` of its transpose, with boxes of rows x columns. rounded: TMA rounds float32 to TF32; tensor cores would
    truncate it."""
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


def launches(product: Product, config: Config, chained: bool) -> list[Launch]:
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
        "BM": config.BM, "BN": config.BN, "SWAP": config.SWAP, "RAW": product.raw, "ACT": gemm_epilogue.ACTIVATIONS.index(product.activation),
        "SHORT": out.itemsize <= 2, "SCALES": gemm_epilogue.SCALES.index(product.scales),
    }  # fmt: skip
    args: dict[str, Any] = {
        "a_desc": _descriptor(*first[:2], across_a, *a_box), "b_desc": _descriptor(*second[:2], across_b, *b_box),
        "out_desc": _descriptor(product.out, out, False, rows, piece(config), rounded=False) if tma_out else None, "out": None if tma_out else product.out,
        "ldo": ldo, "zo": zo,
        "parts": "parts" if p.units else None, "M": m, "N": n, "K": k, "whole": p.whole, "streamed": p.streamed, "group": config.GROUP, **after,
        "BK": config.BK, "GROUPS": config.GROUPS, "STAGES": config.STAGES, "A_COLUMNS": a_turned, "B_COLUMNS": b_turned, "BATCHED": len(a.shape) == 3,
        "STREAM": p.units > 0 and p.split == 1, "SPLIT": p.split, "PROMOTE": product.promote, "EN": piece(config),
    }  # fmt: skip
    made = [Launch(kernel=gemm_gluon.product, grid=(p.blocks,), args=args, warps=4)]
    shared = {
        "parts": "parts", "out": product.out, "ldo": ldo, "zo": zo, "M": m, "N": n, "whole": p.whole, "streamed": p.streamed, "group": config.GROUP, **after,
        "CHAINED": chained,
    }  # fmt: skip
    if product.scales == "blocks":
        shared |= {"scale_a": None, "scale_b": None}
    if p.split > 1:
        # Enough programs for every multiprocessor, with few parts a thread: loads in flight are in registers.
        elements = max(512, min(2048, p.streamed * config.BM * config.BN // (2 * product.sms) // 512 * 512))
        rows = max(1, min(config.BM, 1 << (max(1, elements // config.BN).bit_length() - 1)))
        args = {**shared, "ROWS": rows, "SPLIT": p.split}
        made.append(Launch(kernel=gemm_epilogue.add_split, grid=(p.streamed, config.BM // rows), args=args, warps=4, chained=chained))
    elif p.units and p.blocks > 1:
        piece_rows = max(1, min(config.BM, 2048 // config.BN))
        args = {**shared, "slices": p.slices, "blocks": p.blocks, "ROWS": piece_rows}
        made.append(Launch(kernel=gemm_epilogue.add_pieces, grid=(p.blocks - 1, config.BM // piece_rows), args=args, warps=4, chained=chained))
    return made


def _name(product: Product, name: str) -> str | None:
    return name if product.there(name) is not None else None


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
    if turned(a) or not _lies(b, -1, -2):
        return "wgmma reads 8-bit operands along K: rows of a and columns of b must be neighbours in memory"
    return None
