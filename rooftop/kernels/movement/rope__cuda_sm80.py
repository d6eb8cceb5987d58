"""The part of rope__cuda_sm80.cu's head that needs Python: the width of packs, the mapping of heads and tokens to a warp, tables and
positions of several dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Context, Decimal
from functools import lru_cache
from math import gcd
from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance, typed

THREADS = 256
LANES = 128  # of one head, at most
LEAST_THETA = 1e-9  # below, frequencies are so high that the kernel's numbers would lose the fraction of a turn
MOST_TURNED = 48  # the most elements of a head that are rotated in shared memory; wider parts have not been measured


def _on(p: Problem, width: int) -> int:
    """The most elements, a divisor of `width`, that every address and stride is a multiple of."""
    for name in ("q", "k", "out_q", "out_k"):
        if (m := p.get(name)) is not None:
            width = gcd(width, m.align // m.itemsize)
            for step, extent in zip(m.strides[:3], m.shape[:3], strict=True):
                width = gcd(width, step) if extent > 1 else width
    return width


def _width(p: Problem) -> int:
    """Elements of a pack, up to 16 bytes: every address, stride, half of the rotated part and the rest are multiples of it."""
    q, rotary = p["q"], int(p.option("rotary_dim"))
    return gcd(_on(p, 16 // q.itemsize), rotary // 2, q.shape[3] - rotary)


def _part(p: Problem) -> int:
    """Packs of 16 bytes that hold the rotated part, if its halves are not whole packs, heads are, and it is narrow; else 0."""
    q, rotary = p["q"], int(p.option("rotary_dim"))
    whole = 16 // q.itemsize
    if (rotary // 2) % whole == 0 or rotary > MOST_TURNED or q.shape[3] % whole or _on(p, whole) < whole:
        return 0
    return -(-rotary // whole)


def _lanes(p: Problem, vector: int) -> tuple[int, int]:
    """Lanes of a head that rotate, and packs that are copied."""
    rotary = int(p.option("rotary_dim"))
    return rotary // 2 // vector, (p["q"].shape[3] - rotary) // vector


def _threads(p: Problem) -> int:
    """Of one head."""
    if _part(p):
        return int(p["q"].shape[3] * p["q"].itemsize // 16)
    rotating, copied = _lanes(p, _width(p))
    return rotating + -(-copied // 2)


def _heads(p: Problem) -> tuple[int, int]:
    """Of Q and of K."""
    k = p.get("k")
    return p["q"].shape[2], k.shape[2] if k is not None else 0


def _chunks(q: int, k: int, slots: int) -> tuple[int, int]:
    """Of Q's heads and of K's, `slots` heads each: a block has heads of one of the two, so that a head's address is the one before it plus
    a constant."""
    return -(-q // slots), -(-k // slots)


def _quotient(divisor: int) -> tuple[int, int]:
    """`part` and `bits` for the kernel's quotient (Granlund and Montgomery 1994)."""
    bits = (divisor - 1).bit_length()
    return (2 ** (32 + bits) + divisor - 1) // divisor - 2**32, bits


def _heads_first(p: Problem) -> bool:
    """Whether the heads of a token are closer in memory than the tokens of a head."""
    m: Meta = p["q"]
    return abs(m.strides[2]) <= abs(m.strides[1]) or m.shape[1] == 1


@lru_cache(maxsize=256)
def _ratio(theta: float, count: int) -> tuple[float, float]:
    """theta^(-1 / count), each frequency as a multiple of the one before it, as the sum of two doubles."""
    context = Context(prec=60)
    exact = context.power(Decimal(theta), context.divide(Decimal(-1), Decimal(count)))
    high = float(exact)
    return high, float(context.subtract(exact, Decimal(high)))


def supports(p: Problem, head: Any) -> str | None:
    if p["q"].numel == 0 and ((k := p.get("k")) is None or k.numel == 0):
        return "there is nothing to compute"
    if int(p.option("rotary_dim")) == 0:
        return "no column is rotated: that is a copy"
    if (lanes := _threads(p)) > LANES:
        return f"a head takes {lanes} lanes at this alignment; at most {LANES}"
    table = p.get("cos")
    if table is None and float(p.option("theta")) < LEAST_THETA:
        return f"theta is below {LEAST_THETA}"
    if table is not None and table.shape[1] >= 2**31:
        return "the tables must have fewer than 2**31 rows"
    return None


def choose(p: Problem, head: Any) -> Mapping[str, Any]:
    """Four heads a thread, so that each has 128 bytes in flight; fewer if the card would not be filled. A block has so many that at most a
    quarter of the places is past the last. Measured on an H200, bf16, 32 + 8 heads of 128, 256 MiB: four 70.3 µs, two 75.0, one 77.0."""
    vector, lanes, (q, k) = _width(p), _threads(p), _heads(p)
    count, most, tokens = q + k, max(q, k), p["q"].shape[0] * p["q"].shape[1]
    reps = 4
    while reps > 1 and (reps > most or tokens * count * lanes < reps * 1024 * p.device.sms):
        reps //= 2
    heads = 1
    if _heads_first(p):
        fitting = [n for n in (1, 2, 4, 8) if n == 1 or (n * lanes <= THREADS and n * reps <= most)]
        heads = min([(max(sum(_chunks(q, k, n * reps)) * n * reps, count + count // 4), -n, n) for n in fitting])[2]
    rows = max(1, THREADS // (lanes * heads))
    return {"vector": vector, "heads": heads, "reps": reps, "rows": min(rows, 1 << (tokens - 1).bit_length()), "part": _part(p)}


def launches(p: Problem, config: Mapping[str, Any], head: Any) -> list[Launch]:
    vector, heads, reps, rows, part = int(config["vector"]), int(config["heads"]), int(config["reps"]), int(config["rows"]), int(config["part"])
    rotating, copied = _lanes(p, vector)
    lanes = _threads(p) if part else rotating + -(-copied // 2)
    x, (q_heads, k_heads), heads_first = p["q"], _heads(p), _heads_first(p)
    tokens, length = x.shape[0] * x.shape[1], x.shape[1]
    q_chunks, k_chunks = _chunks(q_heads, k_heads, heads * reps)
    chunks, groups = q_chunks + k_chunks, -(-tokens // rows)
    inner = chunks if heads_first else groups
    (inner_part, inner_bits), (s_part, s_bits) = _quotient(inner), _quotient(length)
    table, positions = p.get("cos"), p.get("positions")
    kinds = DTYPES[x.dtype].cuda, DTYPES[(table or x).dtype].cuda, table is None, p.option("layout") == "half"
    args, types = head.arguments(p, config)
    ratio = _ratio(float(p.option("theta")), int(p.option("rotary_dim")) // 2) if table is None else (0.0, 0.0)
    more: dict[str, tuple[str, Any]] = {
        "J": ("i32", k_heads), "rows": ("i32", rows), "q_chunks": ("i32", q_chunks), "heads_first": ("bool", heads_first),
        "inner": ("i32", inner), "inner_part": ("u32", inner_part), "inner_bits": ("i32", inner_bits),
        "S_part": ("u32", s_part), "S_bits": ("i32", s_bits), "ratio": ("f64", ratio[0]), "ratio_low": ("f64", ratio[1]),
        "cos": ("ptr", table and "cos"), "sin": ("ptr", table and "sin"),
        "tb": ("i64", table.strides[0] if table and table.shape[0] > 1 else 0),
        "tr": ("i64", table.strides[1] if table else 0), "step": ("i64", table.strides[2] if table and table.shape[2] > 1 else 1),
        "table_rows": ("i32", table.shape[1] if table else 0), "positions": ("ptr", positions and "positions"),
        "pb": ("i64", positions.strides[0] if positions and positions.shape[0] > 1 else 0),
        "ps": ("i64", positions.strides[1] if positions else 0), "wide": ("bool", positions is not None and positions.dtype == "i64"),
    }
    kernel = instance("rope", *kinds, vector, rotating, copied, heads, reps)
    if part:
        kernel = instance("rope_part", *kinds, int(p.option("rotary_dim")), part, lanes, heads, reps)
    listed = {**{name: (kind, value) for kind, (name, value) in zip(types, args.items(), strict=True)}, **more}
    return [Launch(kernel, (chunks * groups,), block=(lanes * heads * rows,), pdl=p.device.arch >= 90, **typed(listed))]
