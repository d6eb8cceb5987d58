"""One product for each group of rows (or of slices of K), by offsets on the device, on Hopper. Contract: rooftop/ops/grouped_matmul.py

One persistent kernel loops over the tiles of all groups (rooftop/kernels/gemm/_grouped_gluon.py): as many blocks as multiprocessors,
whatever the groups' sizes. Within a group tiles are ordered in bands of 16 rows of tiles, so that concurrent tiles share weights in L2.
Groups of 64 rows or fewer on average use tiles of 64 rows: then the read of the weights is the limit, not the products."""

from __future__ import annotations

from dataclasses import dataclass

from triton.experimental.gluon import language as gl

from rooftop.core.spec import Descriptor, Launch, Meta, Problem
from rooftop.kernels._device.gluon_tiles import TYPES, lies, readable, turned
from rooftop.kernels.gemm import _grouped_gluon, _model

DEMANDS = {"has": ["HGMMA|QGMMA", "UTMALDG", "UTMASTG"]}
SHARED = 226 * 1024


@dataclass(frozen=True)
class Config:
    """The tile, consumer warp groups and pipeline stages."""

    BM: int = 128
    BN: int = 256
    BK: int = 64
    GROUPS: int = 2
    STAGES: int = 4


def _form(p: Problem) -> str:
    return "masked" if len(p["a"].shape) == 3 else "rows" if len(p["b"].shape) == 3 else "depth"


def supports(p: Problem) -> str | None:
    a, b, out = p["a"], p["b"], p["out"]
    if a.dtype not in ("bf16", "f16", "f8e4m3", "f8e5m2"):
        return f"takes bf16, f16 and fp8; given {a.dtype}"
    if out.numel * a.shape[-1] * p["offsets"].numel == 0:
        return "M, N, K and the number of groups must be at least 1"
    if max(*a.shape, *b.shape) >= 2**31 - 512 or p["offsets"].numel > 2**15:
        return "takes fewer than 2^31 rows and columns and up to 2^15 groups"
    if max(out.shape[-2], 128) * -(-out.shape[-1] // 64) * p["offsets"].numel >= 2**31:
        return "has more tiles than 32 bits count"
    for name in ("a", "b", "out"):
        if reason := readable(p[name]):
            return f"TMA does not read {name}: {reason}"
    if turned(out):
        return "the elements of a row of out must be neighbours"
    if a.itemsize == 1 and out.dtype == "f32":
        return "tensor cores add fp8 products in fewer than 24 bits: a float32 result needs more"
    if a.itemsize == 1 and (turned(a) or not lies(b, -1, -2)):
        return "wgmma reads 8-bit operands along K: rows of a and columns of b must be neighbours in memory"
    # Groups start anywhere, and a TMA box whose start in the innermost dimension is not a multiple of 16 bytes ends in an illegal
    # instruction (H200).
    if _form(p) == "rows" and turned(a):
        return "groups of rows need rows of a whose elements are neighbours: TMA reads from multiples of 16 bytes"
    if _form(p) == "depth" and p["offsets"].numel > 1 and (not turned(a) or turned(b)):
        return "groups along K need columns of a and rows of b whose elements are neighbours: TMA reads from multiples of 16 bytes"
    return None


def configs(p: Problem) -> list[Config]:
    found = []
    for bm, bn, groups in ((128, 256, 2), (128, 128, 2), (64, 256, 1), (64, 128, 1)):
        if bn == 256 and p["a"].itemsize == 1:  # two accumulators a thread
            continue
        ring, beside = (bm + bn) * 128, 2 * bm * 128 + 1024
        found.append(Config(bm, bn, 128 // p["a"].itemsize, groups, min(8, (SHARED - beside) // ring)))
    return found


def choose(p: Problem) -> Config:
    """Tiles about as tall as a group is on average, and narrower if wide ones would leave multiprocessors idle."""
    m, n = p["out"].shape[-2:]
    groups = p["offsets"].numel
    rows = m / groups if _form(p) == "rows" else m
    found = [c for c in configs(p) if (128 if rows > 64 else 64) == c.BM]
    wide, narrow = found[0], found[-1]
    tiles = groups * -(-int(rows) // wide.BM) * -(-n // wide.BN)
    return narrow if n <= 128 or tiles < p.device.sms else wide


def for_any_rows(p: Problem) -> Config:
    """One chain of instructions along all of K, whatever the tile."""
    return choose(p)


def launches(p: Problem, config: Config) -> list[Launch]:
    a, b, out, groups = p["a"], p["b"], p["out"], p["offsets"].numel
    m, n = out.shape[-2:]
    form = _form(p)
    a_turned, b_turned = turned(a), turned(b)

    def boxes(name: str, meta: Meta, turned: bool, rows: int, columns: int) -> Descriptor:
        """The descriptor of a three-dimensional tensor, or of a two-dimensional one with a first dimension of 1; `turned`: of its
        transpose."""
        r, c = (-1, -2) if turned else (-2, -1)
        block = (1, columns, rows) if turned else (1, rows, columns)
        layout = gl.NVMMASharedLayout.get_default_for(list(block), TYPES[meta.dtype])
        unit = 16 // meta.itemsize
        pitch = meta.strides[r] if meta.shape[r] > 1 else -(-meta.shape[c] // unit) * unit
        apart = meta.strides[0] if len(meta.shape) == 3 and meta.shape[0] > 1 else pitch * meta.shape[r]
        count = meta.shape[0] if len(meta.shape) == 3 else 1
        return Descriptor(name, block, layout, shape=(count, meta.shape[r], meta.shape[c]), strides=(apart, pitch, 1))

    tiles = -(-m // config.BM) + groups + 1 if form == "rows" else -(-m // config.BM) * groups
    args = {
        "a_desc": boxes("a", a, a_turned, config.BM // config.GROUPS, config.BK), "b_desc": boxes("b", b, b_turned, config.BK, config.BN),
        "out_desc": boxes("out", out, False, config.BM // config.GROUPS, 64), "out": "out", "ldo": out.strides[-2],
        "zo": out.strides[0] if len(out.shape) == 3 else 0, "offsets": "offsets", "G": groups, "M": m, "N": n, "K": a.shape[-1],
        "BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUPS": config.GROUPS, "STAGES": config.STAGES, "A_COLUMNS": a_turned,
        "B_COLUMNS": b_turned, "FORM": _grouped_gluon.FORMS.index(form),
    }
    if a.itemsize == 1:
        blocks = len(p["scale_a"].shape) == len(a.shape)
        args |= {"scale_a": "scale_a", "scale_b": "scale_b", "SCALED": (_grouped_gluon.BLOCKS if blocks else _grouped_gluon.LINES).value}
    return [Launch(kernel=_grouped_gluon.grouped, grid=(min(p.device.sms, tiles * -(-n // config.BN)),), args=args, warps=4)]


def explains(p: Problem, config: Config) -> str:
    """The real time depends on the offsets; this is the prediction for groups of equal size, with the rates of the other products'
    model."""
    m, n = p["out"].shape[-2:]
    groups, k, form = p["offsets"].numel, p["a"].shape[-1], _form(p)
    rows, depth = (-(-m // groups), k) if form == "rows" else (m, -(-k // groups) if form == "depth" else k)
    tiles = groups * -(-rows // config.BM) * -(-n // config.BN)
    line = config.BK * p["a"].itemsize  # bytes
    step = max(config.BM * config.BN * line / 2 / _model.FMAS, (config.BM + config.BN) * line / _model.FROM_L2) + _model.HANDSHAKE
    clocks = _model.START + -(-tiles // p.device.sms) * (-(-depth // config.BK) * step + _model.EPILOGUE)
    memory = (p["a"].nbytes + p["b"].nbytes + p["out"].nbytes) / _model.MEMORY
    return (
        f"tile {config.BM} x {config.BN}, slices of {config.BK} of K, {config.STAGES} in flight, for groups of {rows} x {depth} on "
        f"average: "
        f"{tiles} tiles; predicted {max(clocks / _model.CLOCK, memory) * 1e6:.1f} µs were they all of that size"
    )
