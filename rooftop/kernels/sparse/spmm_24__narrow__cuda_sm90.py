"""The config of spmm_24__narrow__cuda_sm90.cu: so many parts of K that the blocks draw all of the bandwidth."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem, TensorMap, instance
from rooftop.kernels.sparse import spmm_24__cuda_sm90 as many
from rooftop.kernels.sparse import spmm_24__few__cuda_sm80 as few
from rooftop.ops._sparse import ACTIVATIONS

NARROW = 64  # columns
ONE, ALL = 6.5e10, 1.0e11  # bytes a second that TMA loads to a multiprocessor: of S, from device memory; of S and b together
STAGE, STAGES = 4 * 16384, 3  # bytes of values and b in a stage


def supports(p: Problem, head: Any) -> str | None:
    if p["b"].shape[1] > NARROW:
        return f"takes up to {NARROW} columns"
    return many.supports(p, head)


def _seconds(p: Problem, split: int) -> float:
    """Predicted time."""
    (stripes, slices), (m, n) = p["meta"].shape[:2], (p["values"].shape[0], p["b"].shape[1])
    tall, each = -(-stripes // 8), -(-slices // split)
    rounds, blocks = -(-tall * split // p.device.sms), min(p.device.sms, tall * split)
    memory = rounds * each * max(few.STAGE * blocks / few.MEMORY, few.STAGE / ONE, STAGE / ALL)
    return few.START + memory + (few.SECOND + 2 * split * m * n * 4 / few.PARTS if split > 1 else 0.0)


def seconds(p: Problem) -> float:
    """Predicted time of the best config."""
    return _seconds(p, configs(p, None)[0]["split"])


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    slices = p["meta"].shape[1]
    splits = [s for s in range(1, 17) if s == 1 or -(-slices // -(-slices // s)) == s]
    return [{"stages": STAGES, "split": s} for s in sorted(splits, key=lambda s: _seconds(p, s))]


def choose(p: Problem, head: Any) -> dict[str, Any]:
    return configs(p, head)[0]


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    return few.scratch(p, config, head)


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    b, bias, turned = p["b"], p.get("bias"), bool(p.option("transposed"))
    m, n, (stripes, slices), near = p["values"].shape[0], b.shape[1], p["meta"].shape[:2], many.near(b)
    form = 0 if bias is None else 1 if bias.shape[1] == 1 and bias.shape[0] == m else 2
    stages, split, parts = config["stages"], config["split"], "parts" if config["split"] > 1 else None
    act, kind, pairs = ACTIVATIONS.index(str(p.option("activation"))), DTYPES[b.dtype].cuda, (m if turned else n) % 2 == 0
    pitch = (b.strides[1] if n > 1 else -(-b.shape[0] // 8) * 8) if near else (b.strides[0] if b.shape[0] > 1 else -(-n // 8) * 8)
    shape = (n, b.shape[0]) if near else b.shape
    finish: dict[str, Any] = {
        "alpha": float(p.option("alpha")), "bias": "bias" if bias else None, "bias_step": 0 if bias is None else bias.strides[form - 1],
        "out": "out", "pitch": m if turned else n,
    }
    args = {
        "M": m, "N": n, "slices": slices, "each": -(-slices // split), "values_map": TensorMap("values", (128, 64), swizzle=128),
        "b_map": TensorMap("b", (64 if near else 128, 64), swizzle=128, shape=shape, strides=(pitch, 1)), "meta": "meta",
        "stripes": stripes, **finish, "parts": parts,
    }
    made = [
        Launch(
            instance("narrow", kind, stages, near, turned, pairs, act, form, split > 1), (-(-stripes // 8), split), args,
            types=("i32",) * 4 + ("map", "map", "ptr", "i32", "f32", "ptr", "i64", "ptr", "i64", "ptr"), block=(288,),
            shared=stages * STAGE, chained=True,
        )
    ]
    return made + few.added(p, split, finish)
