"""The config of spmm_24__few__cuda_sm80.cu: as many stages as fit, and so many parts of K that the blocks draw all of the bandwidth."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance
from rooftop.kernels.sparse import spmm_24__mma__cuda_sm80 as many
from rooftop.ops._sparse import ACTIVATIONS

FEW = 64  # columns
MEMORY, ONE = 4.2e12, 3.3e10  # bytes a second: of device memory; of S and b together that one block takes
START = 2e-6  # seconds of the first loads
SECOND = 2e-6  # seconds of the launch that adds the parts
PARTS = 2.5e12  # bytes a second at which parts are written and read
STAGE = 128 * 256 + 4096  # bytes of S in a stage: values and metadata of 128 rows by 256 columns


def supports(p: Problem, head: Any) -> str | None:
    if reason := many.supports(p, head):
        return reason
    if p["b"].shape[1] > FEW:
        return f"takes up to {FEW} columns"
    if _stages(p, _wide(p)) < 2:
        return f"needs two stages of {_wide(p)} columns in shared memory; this card has {p.device.shared_per_block} bytes for a block"
    return "metadata must begin at a multiple of 16 bytes" if p["meta"].align % 16 else None


def _wide(p: Problem) -> int:
    return next(w for w in (8, 16, 32, 64) if p["b"].shape[1] <= w)


def _stages(p: Problem, wide: int) -> int:
    return min(6, (p.device.shared_per_block - 1024) // (STAGE + 512 * wide))


def _predicted(p: Problem) -> list[tuple[float, int]]:
    """The time in seconds of each number of parts of K, the best first."""
    (stripes, slices), (m, n), sms = p["meta"].shape[:2], (p["values"].shape[0], p["b"].shape[1]), p.device.sms
    tall, found = -(-stripes // 8), []
    for split in range(1, 17):
        each = -(-slices // split)
        if split == 1 or -(-slices // each) == split:
            rounds, blocks = -(-tall * split // sms), min(sms, tall * split)
            memory = rounds * each * max(STAGE * blocks / MEMORY, (STAGE + 512 * n) / ONE)
            found.append((START + memory + (SECOND + 2 * split * m * n * 4 / PARTS if split > 1 else 0.0), split))
    return sorted(found)


def seconds(p: Problem) -> float:
    """Predicted time of the best config."""
    return _predicted(p)[0][0]


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    wide = _wide(p)
    stages = _stages(p, wide)
    return [{"wide": wide, "stages": stages, "split": split} for _, split in _predicted(p)]


def choose(p: Problem, head: Any) -> dict[str, Any]:
    return configs(p, head)[0]


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    split = config["split"]
    return {"parts": Meta((split, p["b"].shape[1], p["values"].shape[0]), "f32")} if split > 1 else {}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    values, b, bias, turned = p["values"], p["b"], p.get("bias"), bool(p.option("transposed"))
    (m, kept), (k, n), (stripes, slices) = values.shape, b.shape, p["meta"].shape[:2]
    near = b.strides[0] == 1 and k > 1 and not (b.strides[1] == 1 and n > 1)
    bs = (b.strides[1] if n > 1 else k) if near else (b.strides[0] if k > 1 else n)
    whole_a = kept % 8 == 0 and values.align >= 16
    whole_b = (k if near else n) % 8 == 0 and b.align >= 16 and bs % 8 == 0
    form = 0 if bias is None else 1 if bias.shape[1] == 1 and bias.shape[0] == m else 2
    wide, stages, split, pdl = config["wide"], config["stages"], config["split"], p.device.arch >= 90
    act, kind, pairs = ACTIVATIONS.index(str(p.option("activation"))), DTYPES[b.dtype].cuda, (m if turned else n) % 8 == 0
    finish: dict[str, Any] = {
        "alpha": float(p.option("alpha")), "bias": "bias" if bias else None, "bias_step": 0 if bias is None else bias.strides[form - 1],
        "out": "out", "pitch": m if turned else n,
    }
    types = ("f32", "ptr", "i64", "ptr", "i64")
    parts = "parts" if split > 1 else None
    args = {
        "M": m, "N": n, "K": k, "kept": kept, "slices": slices, "each": -(-slices // split), "values": "values", "meta": "meta",
        "stripes": stripes, "b": "b", "bs": bs, **finish, "parts": parts,
    }
    kernel = instance("few_columns", kind, wide, stages, near, whole_a, whole_b, turned, pairs, act, form, split > 1)
    made = [
        Launch(
            kernel, (-(-stripes // 8), split), args, types=("i32",) * 6 + ("ptr", "ptr", "i32", "ptr", "i64", *types, "ptr"), block=(256,),
            shared=max(stages * (STAGE + 512 * wide), 8 * wide * wide * 4), pdl=pdl,
        )
    ]
    if split > 1:
        args = {"M": m, "N": n, "split": split, "parts": parts, **finish}
        made.append(
            Launch(
                instance("add_parts", kind, turned, act, form), (-(-m // 256), n), args, types=("i32", "i32", "i32", "ptr", *types),
                block=(256,), pdl=pdl,
            )
        )
    return made
