"""The cases that attention is judged on, and how their inputs that depend on each other are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Case, Input, case


def fixup(tensors: Mapping[str, Any], options: Mapping[str, Any], generator: Any) -> dict[str, Any]:
    """Bounds that rise over the whole buffer, some sequences empty, or all of one length where they are filled "equal"; lengths within the
    cache; pages of the pool."""
    import torch

    found: dict[str, Any] = {}
    for name, x in (("cu_seqlens_q", "q"), ("cu_seqlens_k", "k")):
        if (bounds := tensors.get(name)) is not None:
            total, n = tensors[x].shape[1], bounds.shape[0] - 1
            cuts = torch.randint(0, total + 1, (max(n - 1, 0),), generator=generator, device=bounds.device).sort().values
            if n > 8 and bool((bounds == bounds[0]).all()):
                found[name] = (torch.arange(n + 1, device=bounds.device) * total // n).to(bounds.dtype)
                continue
            ends = [torch.tensor([v], device=bounds.device) for v in (0, total)]
            found[name] = torch.cat((ends[0], cuts, ends[1]))[: n + 1].to(bounds.dtype)
    pages = tensors.get("page_table")
    if (lengths := tensors.get("cache_lengths")) is not None:
        most = tensors["k"].shape[1] * (1 if pages is None else pages.shape[1])
        found["cache_lengths"] = torch.randint(
            min(1, most), most + 1, lengths.shape, generator=generator, device=lengths.device
        ).to(lengths.dtype)
    if pages is not None:
        found["page_table"] = torch.randint(
            0, max(tensors["k"].shape[0], 1), pages.shape, generator=generator, device=pages.device
        ).to(pages.dtype)
    for name in ("q_scale", "k_scale", "v_scale"):
        if (scale := tensors.get(name)) is not None:
            found[name] = torch.rand(scale.shape, generator=generator, device=scale.device, dtype=torch.float64).to(scale.dtype) + 0.5
    if (begin := tensors.get("key_begin")) is not None:
        keys = tensors["k"].shape[1]
        made = [torch.randint(0, keys + 1, begin.shape, generator=generator, device=begin.device).to(begin.dtype) for _ in range(2)]
        found["key_begin"], found["key_end"] = torch.minimum(*made), torch.maximum(*made)
    return found


def cases() -> list[Case]:
    def call(d: str, b: int, sq: int, h: int, size: int, *, sk: int = 0, hk: int = 0, dv: int = 0, left: int = -1, right: int = -1,
             cap: float = 0.0, p: float = 0.0, layout: str = "contiguous", fill: str = "normal", k_fill: str = "normal",
             **more: Any) -> dict[str, Any]:
        keys = (b, sk or sq, hk or h)
        return {
            "q": Input((b, sq, h, size), d, fill, layout), "k": Input((*keys, size), d, k_fill, layout),
            "v": Input((*keys, dv or size), d, "normal", layout), "left": left, "right": right, "scale": size**-0.5, "softcap": cap,
            "dropout_p": p, "seed": 7, **more,
        }

    def pages(d: str, size: int, *, queries: int = 1, codes: str = "") -> dict[str, Any]:
        """3 sequences of 8 pages each, of a pool of 30."""
        kv = Input((30, size, 2, 32), codes or d)
        scales = {f"{n}_scale": Input((2,), "f32") for n in "kv"} if codes else {}
        lists: dict[str, Any] = {"page_table": Input((3, 8), "i32"), "cache_lengths": Input((3,), "i32"), **scales}
        return {**call(d, 3, queries, 4, 32, right=0), "k": kv, "v": kv, **lists}

    def eight(d: str, rows: int, size: int = 32, *, keys: int = 0, batch: int = 2, dv: int = 0, of_heads: bool = False, **more: Any) -> dict[str, Any]:
        """4 heads of 2. `d` f8e4m3: the queries too."""
        k, v = (Input((batch, keys or rows, 2, n), "f8e4m3") for n in (size, dv or size))
        heads = {"q": 4, "k": 2, "v": 2} if of_heads else {}
        scales = {f"{n}_scale": Input((heads.get(n, 1),), "f32") for n in ("qkv" if d == "f8e4m3" else "kv")}
        # so that it shows in 8 bits how exact the scales are
        large: dict[str, Any] = {"scale": 2.0 * (32 / size) ** 0.5} if d == "f8e4m3" else {}
        return {**call(d, batch, rows, 4, size, **{"right": 0, **more}), "k": k, "v": v, **scales, **large}

    bench = [
        case(f"{'causal' if c == 0 else 'full'} d{size} {s}", tags="bench", **call("bf16", 16384 // s, s, 16, size, right=c))
        for size in (128, 64) for c in (0, -1) for s in (2048, 8192, 16384)
    ]
    bench += [
        case("causal d128 512", tags="bench", **call("bf16", 32, 512, 16, 128, right=0)),
        case("causal d256 8192", tags="bench", **call("bf16", 2, 8192, 8, 256, right=0)),
        case("causal d128 8192, 4 key heads", tags="bench model", **call("bf16", 2, 8192, 16, 128, hk=4, right=0)),
        case("window 1024 d128 8192", tags="bench", **call("bf16", 2, 8192, 16, 128, left=1024, right=0)),
        case("soft cap d128 8192", tags="bench", **call("bf16", 2, 8192, 16, 128, right=0, cap=50.0)),
    ]
    bench += [
        case(f"decode {b}x{sk}, 64 heads of 8", tags="bench model", **call("bf16", b, 1, 64, 128, sk=sk, hk=8))
        for b, sk in ((1, 131072), (16, 8192), (64, 8192))
    ]
    codes: dict[str, Any] = {n: Input((16, 16384, 8, 128), "f8e4m3") for n in "kv"} | {f"{n}_scale": Input((1,), "f32") for n in "kv"}
    small: dict[str, Any] = {n: Input((8, 8192, 8, 128), "f8e4m3") for n in "kv"} | {f"{n}_scale": Input((1,), "f32") for n in "kv"}
    short: dict[str, Any] = {n: Input((65,), "i32", "equal") for n in ("cu_seqlens_q", "cu_seqlens_k")}
    sixteen: dict[str, Any] = {n: Input((17,), "i32", "equal") for n in ("cu_seqlens_q", "cu_seqlens_k")}
    bench += [
        case("decode 16x16384 of 8 bits, 64 heads of 8", tags="bench model", **{**call("bf16", 16, 1, 64, 128, sk=16384, hk=8), **codes}),
        case("packed causal d128 16x1024", tags="bench", **call("bf16", 1, 16384, 16, 128, right=0, **sixteen)),
        case("decode 8x8192 of 8 bits, 64 heads of 8", tags="bench", **{**call("bf16", 8, 1, 64, 128, sk=8192, hk=8), **small}),
        case("packed causal d128 64x256", tags="bench", **call("bf16", 1, 16384, 16, 128, right=0, **short)),
        case("dropout d128 8192", tags="bench", **call("bf16", 2, 8192, 16, 128, right=0, p=0.1)),
        case("bias d128 8192", tags="bench", **call("bf16", 2, 8192, 16, 128, right=0, bias=Input((1, 16, 8192, 8192), "bf16"))),
        case("full d256 8192", tags="bench", **call("bf16", 2, 8192, 8, 256)),
        case("causal d96 4096", tags="bench", **call("bf16", 4, 4096, 16, 96, right=0)),
        case("causal d128 1024", tags="bench", **call("bf16", 16, 1024, 16, 128, right=0)),
    ]
    scales: dict[str, Any] = {f"{n}_scale": Input((1,), "f32") for n in "qkv"}
    bench += [
        case(f"8 bits, {'causal' if c == 0 else 'full'} d{size} {s}", tags="bench", **call("f8e4m3", 16384 // s, s, 2048 // size, size, right=c, **scales))
        for size, s, c in ((128, 2048, 0), (128, 8192, 0), (128, 16384, 0), (128, 16384, -1), (64, 8192, 0), (256, 8192, 0))
    ]
    i32: dict[str, Any] = {"cu_seqlens_q": Input((5,), "i32"), "cu_seqlens_k": Input((5,), "i32")}
    edges: dict[str, dict[str, Any]] = {
        "no queries": {"b": 2, "sq": 0, "h": 3, "sk": 3},
        "no batch": {"b": 0, "sq": 4, "h": 2},
        "one token": {"b": 1, "sq": 1, "h": 1},
        "odd 2x5": {"b": 2, "sq": 5, "h": 3},
        "causal 2x37": {"b": 2, "sq": 37, "h": 3, "right": 0},
        "tiles 1x129": {"b": 1, "sq": 129, "h": 2, "right": 0},
        "three tiles full 1x300": {"b": 1, "sq": 300, "h": 1, "size": 64},
        "three tiles causal 1x300": {"b": 1, "sq": 300, "h": 2, "size": 64, "right": 0},
        "few queries 2x3, 70 keys": {"b": 2, "sq": 3, "sk": 70, "h": 3, "right": 0},
        "more queries than keys": {"b": 2, "sq": 70, "sk": 9, "h": 3, "right": 0},
        "group of 8": {"b": 2, "sq": 19, "h": 8, "hk": 1, "right": 0},
        "2 heads a key head": {"b": 3, "sq": 33, "h": 4, "hk": 2},
        "d64": {"b": 1, "sq": 40, "h": 2, "size": 64, "right": 0},
        "d80": {"b": 1, "sq": 40, "h": 2, "size": 80, "right": 0},
        "d96": {"b": 1, "sq": 40, "h": 2, "size": 96},
        "d128": {"b": 1, "sq": 70, "h": 2, "size": 128, "right": 0},
        "d192, values of 128": {"b": 1, "sq": 20, "h": 2, "size": 192, "dv": 128, "right": 0},
        "d256": {"b": 1, "sq": 20, "h": 2, "size": 256},
        "d256, 3 tiles": {"b": 1, "sq": 300, "h": 2, "hk": 1, "size": 256, "right": 0},
        "d192, values of 128, 3 tiles": {"b": 1, "sq": 150, "sk": 200, "h": 2, "size": 192, "dv": 128, "left": 70, "right": 0},
        "window": {"b": 2, "sq": 90, "h": 3, "left": 20, "right": 0},
        "window on both sides": {"b": 1, "sq": 90, "sk": 100, "h": 2, "left": 9, "right": 5},
        "soft cap": {"b": 2, "sq": 40, "h": 3, "cap": 2.0, "right": 0},
        "soft cap 1000": {"b": 2, "sq": 40, "h": 2, "cap": 1000.0, "right": 0},
        "soft cap 1e12": {"b": 1, "sq": 70, "h": 2, "cap": 1e12},
        "heads first in memory": {"b": 1, "sq": 40, "h": 3, "right": 0, "layout": "padded"},
        "address misaligned": {"b": 1, "sq": 20, "h": 2, "layout": "offset"},
        "NaN in q": {"b": 1, "sq": 20, "h": 2, "fill": "nan"},
        "NaN in k": {"b": 1, "sq": 20, "h": 2, "k_fill": "nan"},
        "large scores": {"b": 1, "sq": 40, "h": 2, "fill": "far", "right": 0},
    }
    made = []
    for d in ("f16", "bf16"):
        made += [case(name, tags="edge", **call(d, **{"size": 32, **kw})) for name, kw in edges.items()]
        decode: dict[str, Any] = {"size": 32, "cache_lengths": Input((3,), "i32")}
        both: dict[str, Any] = {"key_begin": Input((2, 70), "i32"), "key_end": Input((2, 70), "i32")}
        made += [
            case("mask of ranges", tags="edge", **call(d, 2, 70, 3, 32, sk=150, **both)),
            case("mask of ranges, causal window", tags="edge", **call(d, 2, 70, 2, 32, hk=1, left=30, right=0, **both)),
            case("mask over heads, 3 tiles", tags="edge", **call(d, 1, 150, 4, 32, hk=2, right=0, mask=Input((1, 4, 150, 150), "bool"))),
            case("mask of keys", tags="edge", **call(d, 2, 30, 2, 32, sk=70, mask=Input((2, 1, 1, 70), "bool"))),
            case("bias of the batch, 3 tiles", tags="edge", **call(d, 2, 150, 2, 32, right=0, bias=Input((1, 2, 150, 150), d))),
            case("bias of rows of 8, 3 tiles", tags="edge", **call(d, 2, 150, 2, 64, sk=296, bias=Input((2, 1, 150, 296), d))),
            case("bias, d256, 5 tiles", tags="edge", **call(d, 1, 200, 2, 256, sk=296, hk=1, bias=Input((1, 2, 200, 296), d))),
            case("d256, queries before all keys", tags="edge", **call(d, 1, 400, 2, 256, sk=100, right=0)),
            case("packed, 4 tiles", tags="edge", **call(d, 1, 500, 2, 64, hk=1, right=0, left=200, cap=5.0, **i32)),
            case("bias of heads and columns", tags="edge", **call(d, 2, 40, 2, 32, hk=1, cap=3.0, bias=Input((2, 1, 40, 1), "f32"))),
            case("dropout, 3 tiles, full", tags="edge", **call(d, 2, 150, 4, 32, sk=137, hk=2, p=0.5)),
            case("dropout of packed", tags="edge", **call(d, 1, 90, 2, 32, right=0, p=0.25, **i32)),
            case("dropout, d128, 5 tiles", tags="edge", **call(d, 1, 300, 2, 128, hk=1, right=0, p=0.2)),
            case("dropout, d256, 3 tiles", tags="edge", **call(d, 1, 150, 2, 256, right=0, p=0.5)),
            case("dropout and bias, d64, 3 tiles", tags="edge", **call(d, 1, 152, 2, 64, hk=1, p=0.25, bias=Input((1, 2, 152, 152), d))),
            case("dropout of packed, soft cap, window", tags="edge", **call(d, 1, 500, 2, 64, left=200, right=0, p=0.25, cap=5.0, **i32)),
            case("sinks, window", tags="edge", **call(d, 2, 90, 4, 32, hk=2, left=20, right=0, sinks=Input((4,), d))),
            case("sinks of packed", tags="edge", **call(d, 1, 90, 2, 32, right=0, sinks=Input((2,), d), **i32)),
            case("ALiBi of the batch, packed", tags="edge", **call(d, 1, 90, 2, 32, right=0, alibi_slopes=Input((1, 2), "f32"), **i32)),
            case("cache lengths, 3 tiles", tags="edge", **call(d, 3, 70, 4, 32, sk=200, hk=2, right=0, cache_lengths=Input((3,), "i64"))),
            case("ALiBi, d128, 5 tiles", tags="edge", **call(d, 2, 300, 2, 128, hk=1, right=0, alibi_slopes=Input((2, 2), "f32"))),
            case("sinks, d64, 5 tiles", tags="edge", **call(d, 1, 300, 4, 64, hk=2, right=0, sinks=Input((4,), d))),
            case("cache lengths, d128", tags="edge", **call(d, 3, 150, 2, 128, sk=300, hk=1, right=0, cache_lengths=Input((3,), "i32"))),
            case("soft cap, d64, 5 tiles", tags="edge", **call(d, 1, 300, 2, 64, hk=1, cap=3.0, right=0)),
            case("cache lengths, all seen", tags="edge", **call(d, 2, 70, 4, 32, hk=2, cache_lengths=Input((2,), "i32"))),
            case("decode", tags="edge", **call(d, 3, 1, 8, 64, sk=300, hk=2)),
            case("decode, lengths", tags="edge", **call(d, 3, 1, 4, right=0, sk=333, hk=1, **decode)),
            case("decode, 5 queries", tags="edge", **call(d, 3, 5, 6, right=0, sk=300, hk=2, **decode)),
            case("decode, soft cap 1e6", tags="edge", **call(d, 2, 1, 4, 32, right=0, cap=1e6, sk=150, hk=2)),
            case("decode, window and soft cap", tags="edge", **call(d, 3, 2, 4, right=0, left=100, cap=3.0, sk=400, hk=2, **decode)),
            case("decode, sinks", tags="edge", **call(d, 3, 3, 4, right=0, sk=300, hk=4, sinks=Input((4,), d), **decode)),
            case("decode, d80, values of 48", tags="edge", **call(d, 2, 1, 6, 80, dv=48, sk=190, hk=2, right=0)),
            *(case(f"decode, pages of {size}", tags="edge", **pages(d, size)) for size in (16, 5)),
            case("pages, 40 queries", tags="edge", **pages(d, 16, queries=40)),
            case("decode, keys of 8 bits", tags="edge", **pages(d, 16, codes="f8e4m3")),
            case("keys of 8 bits", tags="edge", **eight(d, 40)),
            case("packed", tags="edge", **call(d, 1, 90, 2, 32, right=0, **i32)),
            case("packed, of other lengths", tags="edge", **call(d, 1, 90, 2, 32, sk=70, hk=1, **i32)),
            case("bias", tags="edge", **call(d, 2, 20, 3, 32, bias=Input((2, 3, 20, 20), d))),
            case("bias of one row", tags="edge", **call(d, 2, 20, 3, 32, bias=Input((1, 3, 1, 20), "f32"))),
            case("-inf in the bias", tags="edge", **call(d, 2, 20, 3, 32, bias=Input((1, 1, 20, 20), d, "-inf rows"))),
            case("mask", tags="edge", **call(d, 2, 20, 3, 32, mask=Input((2, 1, 20, 20), "bool"))),
            case("dropout", tags="edge", **call(d, 2, 40, 3, 32, p=0.3, right=0)),
            case("ALiBi", tags="edge", **call(d, 2, 20, 3, 32, right=0, alibi_slopes=Input((3,), "f32"))),
            case("sinks", tags="edge", **call(d, 2, 20, 3, 32, right=0, sinks=Input((3,), d))),
            case("cache lengths", tags="edge", **call(d, 3, 2, 2, 32, sk=40, right=0, cache_lengths=Input((3,), "i32"))),
        ]
    # In float16 the weights of far keys are denormal, and so few queries hide nothing of how they are rounded in the gradient of the
    # values.
    decode = {
        "sk": 300, "hk": 4, "size": 32, "cache_lengths": Input((3,), "i32"), "alibi_slopes": Input((3, 4), "f32"),
        "sinks": Input((4,), "bf16")
    }
    made.append(case("decode, ALiBi and sinks", tags="edge", **call("bf16", 3, 3, 4, right=0, **decode)))
    all_eight: dict[str, dict[str, Any]] = {
        "queries of 8 bits": {"rows": 40}, "8 bits, 3 tiles": {"rows": 150}, "8 bits, d64, 5 tiles": {"rows": 300, "size": 64, "right": -1},
        "8 bits, d80, values of 48": {"rows": 150, "size": 80, "dv": 48, "keys": 203}, "8 bits, d128, 5 tiles": {"rows": 300, "size": 128, "batch": 1},
        "8 bits, d256, 5 tiles": {"rows": 300, "size": 256, "batch": 1}, "8 bits, scales of heads": {"rows": 150, "of_heads": True},
        "8 bits, window": {"rows": 300, "left": 70, "batch": 1}, "8 bits, soft cap": {"rows": 150, "size": 64, "cap": 20.0},
        "8 bits, more queries than keys": {"rows": 300, "keys": 90},
    }
    made += [case(name, tags="edge", **eight("f8e4m3", **kw)) for name, kw in all_eight.items()]
    return bench + made
