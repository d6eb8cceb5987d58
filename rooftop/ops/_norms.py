"""What the contracts of rms_norm and layer_norm have in common: arguments, shapes, layouts, bytes, cases.

Tensors: x, the residual and the addend [..., C...], weight and bias [C...]; s is what is normalised, x + residual rounded to the dtype of
x, or x."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core import argument_checks
from rooftop.core.layouts import widen
from rooftop.core.op import Sizes, like
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case, collapse

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("f32", "f16", "bf16")
PER_COLUMN = ("weight", "bias", "dweight", "dbias")
NEARLY_EQUAL = 0.5  # of a row's variance and eps, the share of eps from which its elements count as equal


def validate(
    name: str, x: Tensor, shape: Sequence[int] | int, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float,
    addend: Tensor | None = None,
) -> int:
    """The number of dimensions that are normalised together. Raises as the public functions say."""
    import torch

    accepted = (torch.float32, torch.float16, torch.bfloat16)
    for what, t in (("input", x), ("residual", residual), ("addend", addend), ("weight", weight), ("bias", bias)):
        if t is None and what != "input":
            continue
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{name}: {what} is a {type(t).__name__}; it must be a tensor")
        if t.dtype not in accepted:
            raise TypeError(f"{name}: {what} is {t.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
        if t.device != x.device:
            raise ValueError(f"{name}: input lies on {x.device} and {what} on {t.device}; they must be on one device")
    dims = argument_checks.shape(name, "normalized_shape", shape)
    if not dims or tuple(x.shape[-len(dims) :]) != dims:
        raise ValueError(
            f"{name}: normalized_shape is {dims}; it must be the last dimensions of the input, which has shape {tuple(x.shape)}"
        )
    for what, t in (("residual", residual), ("addend", addend)):
        if t is not None and (t.shape != x.shape or t.dtype != x.dtype):
            raise ValueError(f"{name}: {what} is {t.dtype} {tuple(t.shape)}; it must be as the input is, {x.dtype} {tuple(x.shape)}")
    for what, t in (("weight", weight), ("bias", bias)):
        if t is not None and tuple(t.shape) != dims:
            raise ValueError(f"{name}: {what} has shape {tuple(t.shape)}; it must be normalized_shape, {dims}")
        if t is not None and t.dtype not in (x.dtype, torch.float32):
            raise TypeError(f"{name}: {what} is {t.dtype}; accepted are {' and '.join(dict.fromkeys((str(x.dtype), 'torch.float32')))}")
    argument_checks.number(name, "eps", eps, "a number of at least 0")
    if not eps >= 0:
        raise ValueError(f"{name}: eps is {eps}; it must be at least 0")
    return len(dims)


def public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """How rms_norm and layer_norm are called."""
    x, dims = tensors["x"], int(options["dims"])
    if not 0 < dims <= x.dim():
        raise ValueError(f"dims is {dims}; x has {x.dim()} dimensions")
    return (x, tuple(x.shape[x.dim() - dims :])), {
        n: tensors[n] for n in ("weight", "bias", "residual", "addend") if n in tensors
    } | {"eps": options["eps"]}


def rows(x: Meta, dims: int) -> Meta | None:
    """`x` as [rows, columns] with neighbouring elements in a row; None where it does not lie so."""
    outer, inner = collapse(x.shape[:-dims], x.strides[:-dims]), collapse(x.shape[-dims:], x.strides[-dims:])
    if outer is None or inner is None or (inner[0] > 1 and inner[1] != 1):
        return None
    return Meta((prod(x.shape[:-dims]), prod(x.shape[-dims:])), x.dtype, (outer[1], 1), x.align)


def canonical(p: Problem) -> Problem | None:
    dims = int(p.option("dims"))
    found: dict[str, Meta | None] = {}
    for name, m in p.tensors:
        if m is None:
            continue
        if name in PER_COLUMN:
            seen = Meta((m.numel,), m.dtype, (1,), m.align) if m.contiguous else None
        else:
            seen = rows(m, dims)
        if seen is None:
            return None
        found[name] = seen
    return p.replace(**found)


def _like_rows(x: Meta, dims: int) -> Meta:
    """An output like x, in its layout where the kernels can write it."""
    return like(x) if rows(x, dims) is not None else Meta(x.shape, x.dtype)


def outputs(x: Meta, residual: Meta | None, dims: int, **_: Any) -> dict[str, Meta | None]:
    return {"y": _like_rows(x, dims), "s": None if residual is None else _like_rows(x, dims)}


def outputs_bwd(
    dy: Meta, ds: Meta | None, s: Meta, weight: Meta | None, bias: Meta | None, dims: int, eps: float
) -> dict[str, Meta | None]:
    return {
        "dx": _like_rows(s, dims), "dweight": weight and Meta(weight.shape, weight.dtype), "dbias": bias and Meta(bias.shape, bias.dtype)
    }


def of_rounded_sum(reference: Callable[..., tuple[Tensor, Tensor | None]]) -> Callable[..., Any]:
    """The result at the same precision: `reference` in float32, of the sum as it is returned, which is rounded to the dtype of x."""

    def same(
        x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float, *addend: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        s = x if residual is None else x + residual
        y, _ = reference(widen(s), None, widen(weight), widen(bias), dims, eps, *map(widen, addend))
        return y, None if residual is None else s

    return same


def _bytes(p: Problem, names: str) -> int:
    return sum(m.nbytes for n in names.split() if (m := p.get(n)) is not None)


def work(p: Problem) -> Work:
    """Each input read once, each output written once; an FMA each for the sum of squares, the scale, the weight."""
    return Work(_bytes(p, "x residual weight bias addend"), _bytes(p, "y s"), {"fma32": 3.0 * p["x"].numel})


def work_bwd(p: Problem) -> Work:
    """The statistics are taken anew: that reads no more than dy and s, which are read in any case."""
    return Work(_bytes(p, "dy ds s weight"), _bytes(p, "dx dweight dbias"), {"fma32": 7.0 * p["s"].numel})


def from_first(s: Tensor, dims: int) -> Tensor:
    """What the elements of each row are above its first."""
    first = s
    for d in range(-dims, 0):
        first = first[(..., slice(1), *[slice(None)] * (-d - 1))]
    return s - first


def far(mean: Tensor, scale: Tensor) -> bool:
    """Whether a row's mean lies more than four standard deviations from 0. Of such rows x · scale - mean · scale, as torch computes some
    results on the CPU, has lost digits that (x - mean) · scale has."""
    return bool(((mean.float() * scale.float()).abs() > 4).any())


def total(t: Tensor, dims: int) -> Tensor:
    """The sum over the rows, in float32 or better."""
    import torch

    wide = t if t.dtype == torch.float64 else t.float()
    return wide.reshape(prod(t.shape[: t.dim() - dims]), *t.shape[t.dim() - dims :]).sum(0)


def sizes(bias: bool) -> Sizes:
    """`bias`: whether the usual call has one."""

    def inputs(dtype: str, rows: int, columns: int) -> dict[str, Any]:
        given = {"weight": Input((columns,), dtype), "bias": Input((columns,), dtype) if bias else None}
        return {"x": Input((rows, columns), dtype), "residual": None, **given, "dims": 1, "eps": 1e-5}

    return Sizes(inputs, {"rows": (1, 1 << 26), "columns": (64, 1 << 22)}, rows="rows", models={"columns": "hidden"}, axis="columns")


def cases(bias: bool) -> list[Case]:
    """`bias`: whether the usual call has one."""

    def call(shape: tuple[int, ...], d: str, *, fill: str = "normal", layout: str = "contiguous", w: str | None = "", b: str | None = None,
             r: bool = False, dims: int = 1, eps: float = 1e-5) -> dict[str, Any]:
        """`w` and `b`: a dtype, "" for that of x, None for none."""
        tail = shape[-dims:]
        kinds = {"weight": w, "bias": "" if bias and b is None else b if b != "none" else None}
        given = {n: None if kind is None else Input(tail, kind or d) for n, kind in kinds.items()}
        return {
            "x": Input(shape, d, fill, layout), "residual": Input(shape, d, fill, layout) if r else None, **given, "dims": dims, "eps": eps
        }

    bench = [
        case(f"rows {r}x{c}", tags="bench", **call((r, c), d)) for r,
        c in ((16384, 8192), (4096, 32768), (2048, 131072)) for d in ("bf16", "f32")
    ]
    bench += [
        case(f"{name} {r}x{c}", tags=f"bench {more}", **call((r, c), "bf16"))
        for name, r, c, more in (
            ("rows", 1024, 262144, ""), ("rows", 262144, 256, ""), ("model", 32768, 2304, "model"), ("model", 16384, 5120, "model"),
            ("model", 16384, 7168, ""), ("model", 8192, 12288, ""), ("odd", 8192, 12289, ""),
            ("32 MiB", 2048, 4096, "model"), ("4 MiB", 256, 4096, "model"), ("2 MiB", 512, 1024, ""),
        )
    ]
    bench += [case("residual 16384x8192", tags="bench model", **call((16384, 8192), "bf16", r=True))]
    edges: dict[str, dict[str, Any]] = {
        "empty rows": {"shape": (0, 128)},
        "empty columns": {"shape": (3, 0)},
        "one element": {"shape": (1,)},
        "one column": {"shape": (5, 1)},
        "odd 3x7": {"shape": (3, 7), "r": True},
        "odd 37x1001": {"shape": (37, 1001)},
        "tile 4x1024": {"shape": (4, 1024), "r": True},
        "many rows": {"shape": (150, 40)},
        "one more 2x4097": {"shape": (2, 4097)},
        "long 3x33000": {"shape": (3, 33000), "r": True},
        "longer 1x131080": {"shape": (1, 131080)},
        "odd, long 2x51599": {"shape": (2, 51599)},
        "odd, longer 2x131081": {"shape": (2, 131081)},
        "two dimensions": {"shape": (4, 3, 10), "dims": 2},
        "four dimensions": {"shape": (2, 3, 4, 40)},
        "no weight": {"shape": (6, 70), "w": None, "b": "none", "r": True},
        "rows alone": {"shape": (7, 130), "w": None, "b": "none"},
        "rows alone 5x2048": {"shape": (5, 2048), "w": None, "b": "none"},
        "rows alone, NaN": {"shape": (5, 300), "w": None, "b": "none", "fill": "nan"},
        "with bias": {"shape": (6, 70), "b": ""},
        "weight in f32": {"shape": (6, 70), "w": "f32", "b": "f32"},
        "transposed": {"shape": (20, 36), "layout": "transposed"},
        "rows padded": {"shape": (9, 256), "layout": "padded", "r": True},
        "rows misaligned": {"shape": (9, 256), "layout": "sliced", "r": True},
        "address misaligned": {"shape": (9, 256), "layout": "offset"},
        "every second element": {"shape": (6, 64), "layout": "strided"},
        "expanded": {"shape": (6, 64), "layout": "expanded", "r": True},
        "rows do not collapse": {"shape": (3, 4, 30), "layout": "sliced"},
        "eps of zero": {"shape": (5, 90), "eps": 0.0},
        "far from zero": {"shape": (5, 300), "fill": "far"},
        "far from zero, the sum rounded": {"shape": (5, 3), "fill": "far", "r": True},
        "denormals": {"shape": (4, 300), "fill": "tiny"},
        "NaN": {"shape": (5, 300), "fill": "nan"},
        "+inf": {"shape": (5, 300), "fill": "inf"},
        "-inf": {"shape": (5, 300), "fill": "-inf"},
        "-0.0": {"shape": (5, 300), "fill": "-0.0"},
        "all equal": {"shape": (5, 300), "fill": "equal"},
    }
    edge = [case(name, tags="edge", **call(d=d, **how)) for d in FLOATS for name, how in edges.items()]
    edge += [case("large values", tags="edge", why="in float32 their squares overflow", **call((8, 300), "f16", fill="large"))]
    edge += [case("+inf, long 2x33001", tags="edge", why="the sum of squares is infinite", **call((2, 33001), "bf16", fill="inf"))]
    huge = [case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **call((65537, 32768), "bf16"))]
    return bench + edge + huge
