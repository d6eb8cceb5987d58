"""How linear_cross_entropy is divided into chunks, the steps that its forward and backward share, and matrix products by torch (cuBLAS on a
GPU) as steps.

N tokens of H features, V classes; b bytes an element. What is chosen depends on shapes and on bytes alone, so that the peak of memory is a
formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rooftop.core.spec import Launch, Meta, Problem, TorchCall, View
from rooftop.kernels.loss._linear_passes import column_sums, count_live, total_loss
from rooftop.kernels.loss._live_passes import gather_rows, sort_out, spread_rows
from rooftop.kernels.loss._logits import EXACT, FEW, SHORT

SMALL = 60 << 20  # bytes of logits in memory at a time with memory="small"; with states, losses and rounding to tiles within 64 MiB
SPARE = 256 << 20  # bytes of logits with memory="fast" if the weight is small
TILE = 256  # classes or tokens: chunks are multiples of it if possible, a tile of a product


@dataclass(frozen=True)
class Config:
    """`rows` tokens of a chunk (0: all), `columns` of its classes (0: all). `inside`: it is in the memory of dW. `warps` of a program that
    processes a row for its loss only, `whole` of one that writes its gradient too; `stages` - 1 of its tiles are in flight besides the one
    in use."""

    rows: int
    columns: int
    inside: bool = False
    warps: int = 8
    whole: int = 16
    stages: int = 3


def wanted(p: Problem) -> bool:
    """Whether gradients are computed here."""
    return any(p.get(n) is not None for n in ("unit_x", "unit_weight", "unit_bias"))


def summed_aside(p: Problem, config: Any) -> bool:
    """Whether dW is summed over chunks, and not in its own memory."""
    rows, weight = p["x"].shape[0], p.get("unit_weight")
    return weight is not None and 0 < config.rows < rows and weight.dtype != "f32"


def varied(chosen: Config, p: Problem) -> list[Config]:
    """More configs, for tuning: other numbers of warps."""
    pairs = [(warps, 16) for warps in (4, 16)] if not wanted(p) else [(8, whole) for whole in (8, 32)]
    return [Config(chosen.rows, chosen.columns, chosen.inside, *pair) for pair in pairs]


def padded(columns: int) -> int:
    """Row stride of a chunk: rows start on 128 bytes, for TMA and 16-byte loads."""
    return -(-columns // 64) * 64


def in_one_chunk(weight: int) -> int:
    """Bytes of the logits of all tokens up to which memory="fast" has one chunk; weight: bytes of dW. It is what several chunks take: dW in
    float32, which they are summed in, and SPARE."""
    return 2 * weight + max(weight // 10, SPARE)


def in_tiles(extent: int) -> int:
    """The largest multiple of a tile that is at most `extent`; below a tile, of 64."""
    step = TILE if extent >= TILE else 64
    return extent // step * step


def evenly(extent: int, most: int) -> int:
    """The length of chunks that divide `extent` evenly, none longer than `most`."""
    if most >= extent:
        return extent
    count = -(-extent // most)
    even = -(-extent // count)
    return min(-(-even // TILE) * TILE, most)


def in_waves(columns: int, most: int, rows: int, sms: int) -> int:
    """The length of slices of the classes, at most `most`, whose products with `rows` tokens take the fewest waves of tiles of 128 x 256
    (cuBLAS's usual
    tile): the last wave of each slice is rarely full."""
    if most >= columns:
        return columns
    high, found = -(-rows // 128), []
    for each in range(TILE, most + 1, TILE):
        whole, rest = divmod(columns, each)
        waves = whole * -(-high * (each // TILE) // sms) + -(-high * -(-rest // TILE) // sms)
        found.append((waves, -each))
    return -min(found)[1] if found else max(64, in_tiles(most))


def sizes(p: Problem) -> tuple[int, int, int]:
    """Tokens, features, classes."""
    return (*p["x"].shape, p["weight"].shape[0])


def matrix(p: Problem, name: str, first: int = 0, rows: int | None = None) -> View:
    """`rows` rows of a matrix of the problem from row `first` on, with its strides."""
    m = p[name]
    return View(name, (m.shape[0] if rows is None else rows, m.shape[1]), m.strides, first * m.strides[0])


def dense(name: str, rows: int, columns: int, first: int = 0) -> View:
    """`rows` rows of a contiguous matrix, from row `first` on."""
    return View(name, (rows, columns), (columns, 1), first * columns)


def cap_of(p: Problem) -> int:
    """The soft cap's arithmetic: 0 for none; for 16 bits, many classes and a cap of usual size an approximation with an error of 2e-7 of
    the cap."""
    cap = float(p.option("softcap"))
    return 0 if cap == 0 else SHORT.value if p["x"].itemsize < 4 and classes(p) >= FEW and 1e-30 < cap <= 70 else EXACT.value


def numbers(p: Problem) -> dict[str, Any]:
    """Options by the names of the kernels' parameters."""
    found = {"ignore": int(p.option("ignore_index")), "smoothing": float(p.option("label_smoothing")),
             "scale": float(p.option("lse_square_scale")), "cap": float(p.option("softcap"))}
    return found if p.option("logit_scale") == 1 else {**found, "factor": float(p.option("logit_scale"))}


def classes(p: Problem) -> int:
    """For the whole vocabulary, of which the weight may be a slice."""
    return int(p.option("classes")) or p["weight"].shape[0]


def bias_of(p: Problem) -> str | None:
    return "bias" if p.get("bias") is not None else None


def entropy_of(p: Problem) -> dict[str, bool]:
    """ENTROPY for the kernels that have it, where it is asked for."""
    return {"ENTROPY": True} if p.option("with_entropy") else {}


def taking(launch_of: Any, args: dict[str, Any], grid: int, warps: int) -> Launch:
    """A launch with those of `args` that the kernel has as parameters."""
    return Launch(launch_of, (grid,), {k: v for k, v in args.items() if k in launch_of.arg_names}, warps)


def count(p: Problem) -> Launch:
    rows = p["x"].shape[0]
    block = 512 if rows <= 512 else 8192
    args = {**numbers(p), "target": "target", "divisor": "divisor", "R": rows, "MEAN": p.option("reduction") == "mean", "BLOCK": block}
    return taking(count_live, args, 1, max(4, block // 256))


def total(p: Problem, losses: str) -> Launch:
    rows = p["x"].shape[0]
    block = 512 if rows <= 512 else 8192
    return Launch(
        total_loss, (1,), {"losses": losses, "divisor": "divisor", "loss": "loss", "R": rows, "BLOCK": block}, max(4, block // 256)
    )


def ragged(columns: int) -> dict[str, bool]:
    """For rows of no multiple of 16: `_replace_row` of _linear_rows.py masks the last columns alone."""
    return {"RAGGED": True} if columns % 16 else {}


def row_shape(columns: int, itemsize: int, most: int) -> tuple[int, int]:
    """(columns of a piece, warps) of a program that loops over a row: 16 bytes a thread in a piece, four pieces at a time."""
    side, warps = 16 // itemsize, most
    while warps > 1 and 4 * 32 * side * warps >= 2 * columns:
        warps //= 2
    return 32 * side * warps, warps


def sums_of_columns(p: Problem, z: View, out: str, first: int, add: bool) -> Launch:
    """The bias's gradient of a chunk."""
    rows, columns = z.shape
    args = {"z": z.tensor, "out": out, "zo": z.offset, "zs": z.strides[0], "rows": rows, "columns": columns, "first": first, "ADD": add}
    return Launch(column_sums, (-(-columns // 64),), {**args, "ROWS": 32, "COLUMNS": 64}, 4)


def bytes_of(metas: Sequence[Meta | None]) -> int:
    return sum(m.nbytes for m in metas if m is not None)


# -- over the tokens that count alone ---------------------------------------------------------------------------------


def by_program(width: int) -> int:
    """Features that a program of a gather or a scatter moves at once."""
    return min(2048, max(128, 1 << (width - 1).bit_length()))


def sorted_out(p: Problem, losses: str | None, divisor: str | None) -> Launch:
    rows = p["x"].shape[0]
    block = 512 if rows <= 512 else 4096
    args = {
        "target": "target", "order": "order", "place": "place", "live": "live", "divisor": divisor, "state": "state", "losses": losses,
        "R": rows
    }
    args |= {**numbers(p), "MEAN": p.option("reduction") == "mean", "BLOCK": block}
    return taking(sort_out, args, 1, max(4, block // 256))


def gathered(p: Problem, to: str, first: int, height: int, pitch: int = 0) -> Launch:
    """`pitch`: row stride of `to`; 0: rows lie one after the other."""
    _, width, _ = sizes(p)
    args = {
        "x": "x", "order": "order", "live": "live", "out": to, "xs": p["x"].strides[0], "H": width, "first": first,
        "BLOCK": by_program(width), **({"pitch": pitch} if pitch else {})
    }
    return taking(gather_rows, args, height, max(1, by_program(width) // 512))


def spread(p: Problem, source: str, out: str, first: int, height: int, pitch: int = 0, parts: int = 1) -> Launch:
    """`pitch`: row stride of `source`, as in `gathered`; its parts are added."""
    rows, width, _ = sizes(p)
    args = {
        "source": source, "place": "place", "out": out, "H": width, "first": first, "height": height, "FIRST": first == 0,
        "BLOCK": by_program(width), **({"pitch": pitch} if pitch else {}),
        **({"PARTS": parts} if parts > 1 else {})
    }
    return taking(spread_rows, args, rows, max(1, by_program(width) // 512))


# -- torch ------------------------------------------------------------------------------------------------------------


def product(out: View, a: View, b: View, add: bool = False) -> TorchCall:
    """out = a · b, or out += a · b: summed in float32 and rounded once, to the dtype of `out` (that of `a`, or float32)."""
    return TorchCall(_product, {"out": out, "a": a, "b": b, "add": add})


def copied(out: View, source: View) -> TorchCall:
    """out = source, rounded to the dtype of `out`."""
    return TorchCall(_copied, {"out": out, "source": source})


def turned(view: View) -> View:
    """A matrix transposed."""
    return View(view.tensor, view.shape[::-1], view.strides[::-1], view.offset)


def _product(out: Any, a: Any, b: Any, add: bool) -> None:
    import torch

    if not out.is_cuda:  # torch's CPU has no product of 16 bits into float32
        found = a.float() @ b.float()
        out.copy_(out + found if add else found)
    elif out.dtype == a.dtype:
        if add:
            torch.addmm(out, a, b, out=out)
        else:
            torch.mm(a, b, out=out)
    elif add:
        torch.addmm(out, a, b, out_dtype=out.dtype, out=out)
    else:
        torch.mm(a, b, out_dtype=out.dtype, out=out)


def _copied(out: Any, source: Any) -> None:
    out.copy_(source)
