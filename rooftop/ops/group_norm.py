"""Group normalisation: channels in groups, over all positions of a sample.

    y = (x - mean_g(x)) / sqrt(var_g(x) + eps) · weight_c + bias_c

Source: Wu & He 2018, "Group Normalization" (arXiv 1803.08494)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from rooftop.core import argument_checks
from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, like
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case, collapse
from rooftop.ops._group_norm_cpu import cpu
from rooftop.ops._norms import PER_COLUMN, from_first, work
from rooftop.ops._peers import Kept, compiled, one_dtype

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("f32", "f16", "bf16")


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *,
    implementation: str | None = None,
) -> Tensor:
    """Normalise each group of channels of each sample to mean 0 and variance 1, as `torch.nn.functional.group_norm`, computed in float32.

    Args:
        input: float32, float16 or bfloat16, [N, C, *], any strides; channels_last is read and written as it is.
        num_groups: of channels; it divides C.
        weight, bias: [C], in the dtype of `input` or float32, or None.
        eps: added to the variance.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns a tensor of the shape, dtype and memory format of `input`.

    Raises TypeError for other dtypes, ValueError for shapes or devices that do not fit, a number of groups that does not divide C, one
    element a group in all, an eps below 0, or an input that a named implementation cannot take."""
    _validate(input, num_groups, weight, bias, eps)
    return OP(input, weight, bias, int(num_groups), float(eps), implementation=implementation)


def _validate(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
    import torch

    accepted = (torch.float32, torch.float16, torch.bfloat16)
    for what, t in (("input", x), ("weight", weight), ("bias", bias)):
        if t is None and what != "input":
            continue
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"group_norm: {what} is a {type(t).__name__}; it must be a tensor")
        if t.dtype not in accepted:
            raise TypeError(f"group_norm: {what} is {t.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
        if t.device != x.device:
            raise ValueError(f"group_norm: input lies on {x.device} and {what} on {t.device}; they must be on one device")
    if x.dim() < 2:
        raise ValueError(f"group_norm: input has shape {tuple(x.shape)}; it must be [N, C, *]")
    argument_checks.number("group_norm", "num_groups", groups, "a whole number above 0", whole=True)
    n, c = x.shape[:2]
    if groups <= 0 or c % groups:
        raise ValueError(f"group_norm: num_groups is {groups}; it must be above 0 and divide the {c} channels of the input")
    for what, t in (("weight", weight), ("bias", bias)):
        if t is not None and tuple(t.shape) != (c,):
            raise ValueError(f"group_norm: {what} has shape {tuple(t.shape)}; it must be that of the channels, ({c},)")
        if t is not None and t.dtype not in (x.dtype, torch.float32):
            raise TypeError(f"group_norm: {what} is {t.dtype}; accepted are {' and '.join(dict.fromkeys((str(x.dtype), 'torch.float32')))}")
    if n * (c // groups) * prod(x.shape[2:]) == 1:
        raise ValueError(f"group_norm: input has shape {tuple(x.shape)}, one element a group; a variance needs more, as torch's does")
    argument_checks.number("group_norm", "eps", eps, "a number of at least 0")
    if not eps >= 0:
        raise ValueError(f"group_norm: eps is {eps}; it must be at least 0")


def _grouped(x: Tensor, groups: int) -> Tensor:
    n, c = x.shape[:2]
    return x.reshape(n, groups, c // groups * prod(x.shape[2:]))


def _each(t: Tensor, x: Tensor) -> Tensor:
    """One element a channel, beside x."""
    return t.reshape(-1, *[1] * (x.dim() - 2))


def _normal(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised groups [N, G, -1], and 1 / sqrt(var + eps)."""
    v = _grouped(x, groups)
    off = v - v.mean(-1, keepdim=True)
    scale = (off.square().mean(-1, keepdim=True) + eps).rsqrt()
    return off * scale, scale


def reference(x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> Tensor:
    y = _normal(x, groups, eps)[0].reshape(x.shape)
    y = y if weight is None else y * _each(weight, x)
    return y if bias is None else y + _each(bias, x)


def backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """With g = dy · weight and n = (x - mean) · scale: dx = scale · (g - mean(g) - n · mean(g n)), dweight = sum of dy n, dbias = sum of dy,
    both over samples and positions."""
    n, scale = _normal(x, groups, eps)
    g = _grouped(dy if weight is None else dy * _each(weight, x), groups)
    dx = scale * (g - g.mean(-1, keepdim=True) - n * (g * n).mean(-1, keepdim=True))
    wide = dy if dy.element_size() == 8 else dy.float()
    over = (0, *range(2, x.dim()))
    dweight = None if weight is None else (wide * n.reshape(x.shape)).sum(over)
    return dx.reshape(x.shape), dweight, None if bias is None else wide.sum(over)


def _undefined(x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> Tensor:
    """`reference` of what groups are above their first element: groups of equal elements are exactly 0 / 0 if eps is 0."""
    return reference(_from_first(x, groups), weight, bias, groups, eps)


def _from_first(x: Tensor, groups: int) -> Tensor:
    return from_first(_grouped(x, groups), 1).reshape(x.shape)


def outputs(x: Meta, **_: Any) -> dict[str, Meta]:
    return {"y": like(x) if _as_channels(x) is not None else Meta(x.shape, x.dtype)}


def outputs_bwd(dy: Meta, x: Meta, weight: Meta | None, bias: Meta | None, groups: int, eps: float) -> dict[str, Meta | None]:
    dx = like(x) if _as_channels(x) is not None else Meta(x.shape, x.dtype)
    return {"dx": dx, "dweight": weight and Meta(weight.shape, weight.dtype), "dbias": bias and Meta(bias.shape, bias.dtype)}


def _as_channels(m: Meta) -> Meta | None:
    """As [N, C, positions]; None where the positions do not collapse."""
    inner = collapse(m.shape[2:], m.strides[2:])
    if inner is None:
        return None
    return Meta((*m.shape[:2], prod(m.shape[2:])), m.dtype, (*m.strides[:2], inner[1]), m.align)


def canonical(p: Problem) -> Problem | None:
    """x, y, dy and dx as [N, C, positions], weight and bias as they are."""
    found: dict[str, Meta | None] = {}
    for name, m in p.tensors:
        if m is None:
            continue
        seen = (m if m.contiguous else None) if name in PER_COLUMN else _as_channels(m)
        if seen is None:
            return None
        found[name] = seen
    return p.replace(**found)


def work_bwd(p: Problem) -> Work:
    """The statistics are taken anew: that reads no more than dy and x, which are read in any case."""
    read, written = (sum(m.nbytes for n in names if (m := p.get(n)) is not None) for names in (("dy", "x", "weight"), ("dx", "dweight", "dbias")))
    return Work(read, written, {"fma32": 7.0 * p["x"].numel})


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return (tensors["x"], options["groups"], tensors["weight"], tensors["bias"], options["eps"]), {}


def _eager(x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> Tensor:
    import torch

    return torch.nn.functional.group_norm(x, groups, weight, bias, eps)


def _forward(x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> Any:
    import torch

    n, c = x.shape[:2]
    return torch.ops.aten.native_group_norm(x, weight, bias, n, c, prod(x.shape[2:]), groups, eps)


def _torch_backward() -> Callable[..., Any]:
    import torch

    kept = Kept(_forward)

    def run(dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> Any:
        one_dtype(x)
        _, mean, scale = kept(x, weight, bias, groups, eps)
        (n, c), need = x.shape[:2], [True, weight is not None, bias is not None]
        return torch.ops.aten.native_group_norm_backward(dy, x, mean, scale, weight, n, c, prod(x.shape[2:]), groups, need)

    return run


def _cases() -> list[Case]:
    def call(
        shape: tuple[int, ...], groups: int, d: str, fill: str = "normal", layout: str = "contiguous", w: str | None = "", b: str | None = "",
        eps: float = 1e-5,
    ) -> dict[str, Any]:
        """`w` and `b`: a dtype, "" for that of x, None for none."""
        given = {n: None if kind is None else Input(shape[1:2], kind or d) for n, kind in (("weight", w), ("bias", b))}
        return {"x": Input(shape, d, fill, layout), **given, "groups": groups, "eps": eps}

    bench = []
    for name, n, c, side, tags in (
        ("diffusion", 16, 320, 64, "bench model"), ("diffusion", 16, 1280, 16, "bench"), ("decoder", 4, 512, 256, "bench model"),
        ("decoder", 4, 128, 512, "bench"),
    ):
        for layout, word in (("contiguous", "NCHW"), ("transposed", "NHWC")):
            bench.append(case(f"{name} {word} {n}x{c}x{side}x{side}", tags=tags, **call((n, c, side * side), 32, "bf16", layout=layout)))
    edges: dict[str, dict[str, Any]] = {
        "no samples": {"shape": (0, 6, 5), "groups": 2},
        "no positions": {"shape": (2, 6, 0), "groups": 2},
        "one channel a group": {"shape": (2, 5, 33), "groups": 5},
        "one group": {"shape": (3, 10, 21), "groups": 1},
        "no further dimension": {"shape": (3, 12), "groups": 4},
        "odd 3x14x7x5": {"shape": (3, 14, 7, 5), "groups": 2},
        "channels last 2x24x35": {"shape": (2, 24, 35), "groups": 3, "layout": "transposed"},
        "channels last 2x160x9": {"shape": (2, 160, 9), "groups": 16, "layout": "transposed"},
        "many positions 1x4x3001": {"shape": (1, 4, 3001), "groups": 2},
        "many positions last 1x6x1500": {"shape": (1, 6, 1500), "groups": 2, "layout": "transposed"},
        "many channels 1x1030x6": {"shape": (1, 1030, 6), "groups": 2},
        "positions padded": {"shape": (2, 6, 40), "groups": 3, "layout": "padded"},
        "positions misaligned": {"shape": (2, 6, 40), "groups": 3, "layout": "sliced"},
        "address misaligned": {"shape": (2, 6, 40), "groups": 3, "layout": "offset"},
        "every second element": {"shape": (2, 6, 40), "groups": 3, "layout": "strided"},
        "expanded": {"shape": (2, 6, 40), "groups": 3, "layout": "expanded"},
        "no weight": {"shape": (2, 6, 40), "groups": 3, "w": None},
        "no bias": {"shape": (2, 6, 40), "groups": 3, "b": None},
        "neither": {"shape": (2, 6, 40), "groups": 3, "w": None, "b": None},
        "weight in f32": {"shape": (2, 6, 40), "groups": 3, "w": "f32", "b": "f32"},
        "eps of zero": {"shape": (2, 6, 40), "groups": 3, "eps": 0.0},
        "far from zero": {"shape": (2, 6, 40), "groups": 3, "fill": "far"},
        "denormals": {"shape": (2, 6, 40), "groups": 3, "fill": "tiny"},
        "NaN": {"shape": (2, 6, 40), "groups": 3, "fill": "nan"},
        "+inf": {"shape": (2, 6, 40), "groups": 3, "fill": "inf"},
        "-0.0": {"shape": (2, 6, 40), "groups": 3, "fill": "-0.0"},
        "all equal": {"shape": (2, 6, 40), "groups": 3, "fill": "equal"},
    }
    return bench + [case(name, tags="edge", **call(d=d, **how)) for d in FLOATS for name, how in edges.items()]


def _changed(change: str) -> Callable[..., Tensor]:
    """A known-wrong forward."""

    def run(x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> Tensor:
        import torch

        v = _grouped(x, groups)
        mean = v.mean(-1, keepdim=True)
        match change:
            case "tail":
                mean = v[..., : max(v.shape[-1] // 8 * 8, 1)].mean(-1, keepdim=True)
            case "half":
                mean = v.to(torch.bfloat16).mean(-1, keepdim=True).to(v.dtype)
            case "nan":
                mean = mean.nan_to_num(0.0)
        variance = v.square().mean(-1, keepdim=True) - mean.square() if change == "squares" else (v - mean).square().mean(-1, keepdim=True)
        y = ((v - mean) * (variance + eps).rsqrt()).reshape(x.shape)
        y = y if weight is None or change == "weight" else y * _each(weight.roll(1) if change == "channel" else weight, x)
        return y if bias is None or change == "bias" else y + _each(bias, x)

    return run


def _swept(dtype: str, samples: int, channels: int, positions: int) -> Mapping[str, Any]:
    channels = 32 * channels
    w = Input((channels,), dtype)
    return {"x": Input((samples, channels, positions), dtype), "weight": w, "bias": w, "groups": 32, "eps": 1e-5}


OP = Op(
    reference,
    calls=Calls(cpu=cpu(backward), public=_public),
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(_swept, {"samples": (1, 1 << 16), "channels": (2, 64), "positions": (49, 1 << 18)}, rows="samples", axis="positions"),
    work=work,
    judging=Judging(undefined=_undefined, rows=lambda p: {"x": 0, "y": 0}),
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(
        wrt=("x", "weight", "bias"),
        saves=("x", "weight", "bias"),
        judging=Judging(
            rows=lambda p: {"dy": 0, "x": 0, "dx": 0},
            undefined=lambda dy, x, weight, bias, groups, eps: backward(dy, _from_first(x, groups), weight, bias, groups, eps),
        ),
        backward=backward,
        outputs=outputs_bwd,
        work=work_bwd,
        peers={"torch": _torch_backward},
        wrong={
            "mean of g forgotten": lambda dy, x, weight, bias, groups, eps: (
                backward(dy, x, weight, bias, groups, eps)[0] + dy.mean(), *backward(dy, x, weight, bias, groups, eps)[1:]
            ),
            "last sample not in dweight": lambda dy, x, weight, bias, groups, eps: (
                backward(dy, x, weight, bias, groups, eps)[0], *backward(dy[:-1], x[:-1], weight, bias, groups, eps)[1:]
            ),
        },
    ),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager)},
    wrong={
        "mean of squares less square of mean": _changed("squares"),
        "tail not in the mean": _changed("tail"),
        "mean in bfloat16": _changed("half"),
        "weight ignored": _changed("weight"),
        "bias ignored": _changed("bias"),
        "another channel's weight": _changed("channel"),
        "NaN lost": _changed("nan"),
    },
)
