"""The cases of linear_cross_entropy."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import Case, Input, case
from rooftop.core.sweeps import Sizes


def _call(
    n: int, h: int, v: int, d: str, *, below: int | None = None, bias: str = "", fill: str = "normal", weight: str = "normal",
    bias_fill: str = "normal", layout: str = "contiguous", ignore: int = -100, to: str = "", **options: Any,
) -> dict[str, Any]:
    """`options`: those of the op, by its names, that have not their defaults."""
    made: dict[str, Any] = {"x": Input((n, h), d, fill, layout), "weight": Input((v, h), d, weight, layout)}
    if bias:
        made["bias"] = Input((v,), bias, bias_fill)
    made["target"] = Input((n,), "i64", f"below {below or options.get('classes') or v}")
    made |= {
        "ignore_index": ignore, "reduction": "mean", "label_smoothing": 0.0, "lse_square_scale": 0.0, "softcap": 0.0, "start": 0,
        "classes": 0, "weight_to": to or d, "memory": "fast", "x_grad": True, "weight_grad": True, "bias_grad": bool(bias),
        "inplace": False,
    }
    if unknown := options.keys() - made.keys() - {"with_entropy", "logit_scale"}:
        raise TypeError(f"linear_cross_entropy has no {', '.join(sorted(unknown))}")
    return made | options


HEADS: dict[str, Any] = {  # sizes of a last layer and its loss
    "ranges": {"tokens": (64, 8192), "hidden": (256, 16384), "classes": (1000, 262144)},
    "models": {"hidden": "hidden", "classes": "vocabulary"}, "dtypes": ("bf16",),
}
SWEPT = Sizes(lambda dtype, tokens, hidden, classes: _call(tokens, hidden, classes, dtype, inplace=True), **HEADS)
SHAPES = {
    "llama-3 head": (8192, 4096, 128256), "small head": (2048, 2048, 32000), "gpt-2 head": (4096, 1600, 50257),
    "long gemma head": (32768, 4096, 262144)
}

HALVES = (
    "one token", "one class", "bias", "each token's", "small", "ignored", "everything", "everything, small", "rows misaligned",
    "-inf in the bias", "entropy, everything"
)


def cases() -> list[Case]:
    bench, (*first, last) = [], SHAPES
    for name in (*first, "half of the tokens ignored", last):
        n, h, v = SHAPES.get(name, SHAPES["llama-3 head"])
        below, ignore = (None, -100) if name in SHAPES else (2, 0)
        for memory in ("fast", "small"):
            given = _call(n, h, v, "bf16", memory=memory, inplace=True, below=below, ignore=ignore)
            bench.append(
                case(
                    f"{name} {n}x{h}x{v}, {memory}", tags="bench model" if name in SHAPES else "bench", part=1.0 if name in SHAPES else 0.5,
                    **given
                )
            )
    for memory in ("fast", "small"):
        alone = _call(8192, 4096, 128256, "bf16", memory=memory, x_grad=False, weight_grad=False)
        bench.append(case(f"loss alone 8192x4096x128256, {memory}", tags="bench", **alone))
    edges: dict[str, dict[str, Any]] = {
        "no tokens": {"n": 0, "v": 40},
        "one token": {"n": 1, "h": 16, "v": 100},
        "one class": {"n": 5, "v": 1},
        "odd 7x9x33": {"n": 7, "h": 9, "v": 33},
        "bias": {"n": 10, "v": 100, "bias": "own"},
        "bias in float32": {"n": 10, "v": 100, "bias": "f32", "memory": "small"},
        "-inf in the bias": {"n": 10, "v": 100, "bias": "own", "bias_fill": "-inf"},
        "sum": {"n": 9, "h": 24, "v": 1000, "reduction": "sum"},
        "each token's": {"n": 9, "h": 24, "v": 300, "reduction": "none"},
        "each token's, small": {"n": 9, "h": 24, "v": 300, "reduction": "none", "memory": "small"},
        "small": {"n": 24, "v": 300, "memory": "small"},
        "many tokens": {"n": 70, "h": 8, "v": 17},
        "many classes": {"n": 3, "h": 8, "v": 5001, "memory": "small"},
        "ignored": {"n": 24, "v": 10, "ignore": 3},
        "ignored, small": {"n": 24, "v": 10, "ignore": 3, "memory": "small"},
        "all ignored": {"n": 4, "v": 1, "ignore": 0, "reduction": "sum"},
        "all ignored, mean": {"n": 4, "v": 1, "ignore": 0, "memory": "small"},
        "out of range": {"n": 24, "v": 10, "below": 13, "reduction": "none"},
        "out of range, mean": {"n": 24, "v": 10, "below": 13},
        "smoothing": {"n": 10, "v": 300, "label_smoothing": 0.1},
        "all smoothed": {"n": 10, "v": 300, "label_smoothing": 1.0, "reduction": "none"},
        "square of the normaliser": {"n": 10, "v": 300, "lse_square_scale": 1e-2, "memory": "small"},
        "soft cap": {"n": 10, "v": 300, "softcap": 3.0},
        "soft cap, small": {"n": 10, "v": 300, "softcap": 30.0, "memory": "small"},
        "everything": {"n": 10, "v": 300, "bias": "own", "ignore": 7, "label_smoothing": 0.2, "lse_square_scale": 1e-2, "softcap": 2.0},
        "everything, small": {
            "n": 10, "v": 300, "bias": "own", "ignore": 7, "label_smoothing": 0.2, "lse_square_scale": 1e-2, "softcap": 2.0,
            "memory": "small"
        },
        "a slice of the vocabulary": {"n": 10, "v": 30, "start": 30, "classes": 90, "label_smoothing": 0.1, "memory": "small"},
        "entropy": {"n": 10, "v": 300, "reduction": "none", "with_entropy": True},
        "entropy, small": {"n": 9, "h": 24, "v": 270, "reduction": "none", "memory": "small", "with_entropy": True},
        "entropy, everything": {
            "n": 10, "v": 300, "bias": "own", "ignore": 7, "label_smoothing": 0.2, "lse_square_scale": 1e-2, "softcap": 2.0,
            "reduction": "none", "with_entropy": True, "logit_scale": 1.7
        },
        "entropy, -inf in the bias": {"n": 10, "v": 100, "bias": "own", "bias_fill": "-inf", "reduction": "none", "with_entropy": True},
        "logit scale": {"n": 10, "v": 300, "bias": "own", "softcap": 2.0, "logit_scale": 1.7},
        "logit scale, small": {"n": 10, "v": 300, "logit_scale": -0.6, "memory": "small"},
        "rows padded": {"n": 9, "h": 64, "v": 50, "layout": "padded", "memory": "small"},
        "rows misaligned": {"n": 9, "h": 64, "v": 50, "layout": "sliced"},
        "address misaligned": {"n": 9, "h": 64, "v": 50, "layout": "offset"},
        "transposed": {"n": 20, "h": 36, "v": 50, "layout": "transposed"},
        "in place": {"n": 10, "v": 100, "bias": "own", "inplace": True},
        "NaN": {"n": 5, "v": 100, "fill": "nan", "reduction": "none"},
        "+inf": {"n": 5, "v": 100, "weight": "inf", "reduction": "none"},
        "-0.0": {"n": 5, "v": 100, "fill": "-0.0"},
        "all equal": {"n": 5, "v": 100, "weight": "equal", "lse_square_scale": 1e-2},
        "denormals": {"n": 5, "v": 100, "fill": "tiny"},
    }
    edge = []
    for d in ("f32", "f16", "bf16"):
        for name, how in edges.items():
            if d == "f16" and name not in HALVES:
                continue
            given = {"h": 32, **how, "bias": d if how.get("bias") == "own" else how.get("bias", "")}
            edge.append(case(name, tags="edge", **_call(d=d, **given)))
    for d in ("f16", "bf16"):
        edge += [
            case("frozen weight", tags="edge", **_call(10, 32, 100, d, weight_grad=False)),
            case("frozen weight, small", tags="edge", **_call(10, 32, 100, d, weight_grad=False, memory="small")),
            case("frozen input", tags="edge", **_call(10, 32, 100, d, x_grad=False, bias=d)),
            case("the loss alone", tags="edge", **_call(10, 32, 100, d, x_grad=False, weight_grad=False)),
            case("high soft cap", tags="edge", **_call(6, 16, 1030, d, softcap=1e5, memory="small")),
            *(
                case(f"soft cap, exact products, {v} classes", tags="edge",
                                                                                  **_call(6, 1, v, d, softcap=30.0, fill="integers",
                                                                                  weight="integers", reduction="none", x_grad=False,
                                                                                  weight_grad=False)) for v in (3, 1030)),
            case("weight's gradient in float32", tags="edge", **_call(10, 32, 100, d, to="f32")),
            case("weight's gradient in float32, small", tags="edge", **_call(10, 32, 100, d, to="f32", memory="small")),
        ]
    huge = [case("over 2^31 logits", tags="edge huge", why="offsets need 64 bits", **_call(8200, 4096, 262144, "bf16"))]
    return bench + edge + huge
