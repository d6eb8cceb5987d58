"""The launch of spmm_24__mma__cuda_sm80.cu."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import DTYPES, Launch, Problem, instance
from rooftop.ops._sparse import ACTIVATIONS


def supports(p: Problem, head: Any) -> str | None:
    if p["out"].numel * p["b"].shape[0] == 0:
        return "M, N and K must be at least 1"
    if max(*p["b"].shape, *p["out"].shape) >= 2**31 - 512 or p["meta"].shape[0] * p["meta"].shape[1] * 32 >= 2**31:
        return "takes fewer than 2^31 rows and columns"
    return None


def configs(p: Problem, head: Any) -> list[dict[str, Any]]:
    return [{"wide": 128, "stages": 4}, {"wide": 128, "stages": 3}, {"wide": 64, "stages": 4}, {"wide": 32, "stages": 4}]


def choose(p: Problem, head: Any) -> dict[str, Any]:
    """Narrow tiles if there are few columns, or wide ones would leave multiprocessors idle."""
    m, n = p["values"].shape[0], p["b"].shape[1]
    wide = 128
    while wide > 32 and (n <= wide // 2 or -(-m // 128) * -(-n // wide) < p.device.sms):
        wide //= 2
    return {"wide": wide, "stages": 4}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    values, b, bias, turned = p["values"], p["b"], p.get("bias"), bool(p.option("transposed"))
    (m, kept), (k, n) = values.shape, b.shape
    near = b.strides[0] == 1 and k > 1 and not (b.strides[1] == 1 and n > 1)
    bs = (b.strides[1] if n > 1 else k) if near else (b.strides[0] if k > 1 else n)
    whole_a = kept % 8 == 0 and values.align >= 16
    whole_b = (k if near else n) % 8 == 0 and b.align >= 16 and bs % 8 == 0
    form = 0 if bias is None else 1 if bias.shape[1] == 1 and bias.shape[0] == m else 2
    across = -(-n // config["wide"])
    args: dict[str, Any] = {
        "M": m, "N": n, "K": k, "kept": kept, "slices": -(-k // 64), "across": across, "values": "values", "meta": "meta",
        "stripes": p["meta"].shape[0], "blocks": p["meta"].shape[1], "b": "b", "bs": bs, "alpha": float(p.option("alpha")),
        "bias": "bias" if bias else None, "bias_step": 0 if bias is None else bias.strides[form - 1], "out": "out",
        "pitch": m if turned else n,
    }
    types = ("i32",) * 6 + ("ptr", "ptr", "i32", "i32", "ptr", "i64", "f32", "ptr", "i64", "ptr", "i64")
    # rows of results are aligned to 4 bytes: requiring 8, which WHOLE_B needs anyway, makes fewer binaries than 2
    pairs = (m if turned else n) % 8 == 0
    kernel = instance(
        "spmm", DTYPES[b.dtype].cuda, config["wide"], config["stages"], near, whole_a, whole_b, turned, pairs,
        ACTIVATIONS.index(str(p.option("activation"))), form,
    )
    shared = config["stages"] * (128 * 64 + 128 * config["wide"])
    return [Launch(kernel, (-(-m // 128) * across,), args, types=types, block=(256,), shared=shared)]
