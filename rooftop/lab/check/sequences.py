"""Whether the bits of a token's attention depend on how its sequence is batched, padded, packed, cut into chunks or decoded: what
`rooftop.invariant()` promises along `padding`, `packing` and `chunking`. Each sequence alone, in one piece, is what all else is compared
with."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from rooftop.core import registry
from rooftop.core.call import for_any_rows
from rooftop.core.contract import Contract, metas_of
from rooftop.core.implementation import Implementation, device_of
from rooftop.lab.check.batches import Compared, backend_and_reason, batches, card, lengths
from rooftop.lab.check.checker import RUNNERS, Trial, same_bits
from rooftop.lab.check.guard_zones import GUARD
from rooftop.lab.interpret.numbers import one_order

POINTS = 4
PAGE = 16  # tokens
SEQUENCES = 3
KINDS = ("plain", "window", "softcap", "sinks", "alibi", "bias", "mask")

Tokens = tuple[int, int, int]  # a sequence, its first token, and the one after its last


def drawn(seed: int, gpu: bool) -> Iterator[dict[str, Any]]:
    """Lengths of sequences, heads, their size, and what else changes a score; without a GPU short ones."""
    draw = random.Random(seed)
    for i in range(POINTS):
        most = 9000 if gpu else 90
        key_heads = draw.choice((1, 2, 4) if gpu else (1, 2))
        yield {
            "lengths": [1, *(round(math.exp(draw.uniform(math.log(17), math.log(most)))) for _ in range(SEQUENCES - 1))],
            "heads": key_heads * draw.choice((1, 2, 3, 4, 8) if gpu else (1, 3)), "key_heads": key_heads,
            "head": draw.choice((64, 72, 128, 128, 256) if gpu else (16, 24)), "kind": KINDS[(seed + i) % len(KINDS)],
        }


def sequences(sizes: Mapping[str, Any], dtype: str = "bf16", *, backend: str = "auto", arch: int = 90, seed: int = 0,
              implementation: str | Implementation | None = None) -> Compared:
    """Causal attention of sequences of these lengths, in every arrangement. Raises InvarianceError where the mode refuses it."""
    import torch

    gpu = torch.cuda.is_available() and backend in ("auto", "gpu")
    where, op = "cuda" if gpu else "cpu", registry.op("attention")
    device = device_of(torch.cuda.current_device()) if gpu else card(arch)
    g = torch.Generator().manual_seed(seed)
    lengths, kind, size = list(sizes["lengths"]), str(sizes.get("kind", "plain")), int(sizes["head"])
    torch_dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[dtype]

    def made(*shape: int) -> Any:
        return torch.randn(*shape, generator=g).to(torch_dtype).to(where)

    q, k, v = ([made(n, sizes[h], size) for n in lengths] for h in ("heads", "key_heads", "key_heads"))
    options = {
        "left": 100 if kind == "window" else -1, "right": 0, "scale": size**-0.5, "softcap": 5.0 if kind == "softcap" else 0.0, "dropout_p": 0.0, "seed": 7,
    }
    extra = {"sinks": {"sinks": made(sizes["heads"]).float()}, "alibi": {"alibi_slopes": made(sizes["heads"]).float().abs()}}.get(kind, {})
    tables = [made(sizes["heads"], n, n) for n in lengths] if kind in ("bias", "mask") else []
    if kind == "mask":  # of a key in four or so
        tables = [t > -0.7 for t in tables]
    name = f"{'+'.join(map(str, lengths))} tokens, {sizes['heads']}/{sizes['key_heads']} heads of {size}, {kind} {dtype}"
    expected: dict[int, tuple[Any, Any]] = {}
    kernel, wrong, calls = "", [], 0
    for said, tensors, tokens in arrangements(q, k, v, seed, {kind: tables} if tables else {}):
        given = dict.fromkeys(op.tensor_names) | extra | tensors
        call = for_any_rows(op, op.problem_of(metas_of(given), options, device), implementation).call
        assert call is not None
        runs, reason = backend_and_reason(op, call.implementation, "auto" if gpu else backend)
        if reason:
            return Compared(name, call.implementation.name, calls, skipped=reason)
        if kernel and call.implementation.name != kernel:
            wrong.append(f"{said}: {call.implementation.name} runs, not {kernel}")
            continue
        kernel = call.implementation.name
        with one_order():
            found, _ = Trial(call, where, RUNNERS[runs], GUARD).run(given, options, 0xFF)
        calls += 1
        for (s, first, last), (b, at) in tokens.items():
            out, lse = found["out"][b, at : at + last - first].contiguous(), found["lse"][b, :, at : at + last - first].contiguous()
            if s not in expected:
                expected[s] = out, lse
                continue
            for what, got, want in (("out", out, expected[s][0][first:last]), ("lse", lse, expected[s][1][:, first:last])):
                if not same_bits(got, want.contiguous()):
                    many = f"{int((got != want).sum())} of {got.numel()} elements of {what}"
                    wrong.append(f"{said}: {many} of sequence {s}, tokens {first} to {last - 1}, differ")
    return Compared(name, kernel, calls, tuple(wrong))


def arrangements(
    q: list[Any], k: list[Any], v: list[Any], seed: int, tables: Mapping[str, list[Any]] = MappingProxyType({})
) -> Iterator[tuple[str, dict[str, Any], dict[Tokens, tuple[int, int]]]]:
    """(what it is called, the tensors of the call, which tokens are where in its result: row of the batch and place). `tables`: a bias or a
    mask [heads, queries, keys] of each sequence, which packed sequences and pages do not take."""
    import torch
    from torch.nn.functional import pad

    draw, lengths, where = random.Random(seed), [len(x) for x in q], q[0].device

    def whole(n: int) -> Tokens:
        return n, 0, lengths[n]

    def integers(values: list[int]) -> Any:
        return torch.tensor(values, dtype=torch.int32, device=where)

    def part(n: int, first: int, last: int) -> dict[str, Any]:
        return {"q": q[n][None, first:last], "k": k[n][None, :last], "v": v[n][None, :last], **{x: t[n][None, :, first:last, :last] for x, t in tables.items()}}

    for n in range(len(q)):
        yield f"sequence {n} alone", part(n, 0, lengths[n]), {whole(n): (0, 0)}
    order = draw.sample(range(len(q)), len(q))
    for more in (0, 5):  # behind each sequence stands what the tensor held before
        most = max(lengths) + more

        def padded(x: list[Any], most: int = most) -> Any:
            made = torch.full((len(order), most, *x[0].shape[1:]), 1e4, dtype=x[0].dtype, device=where)
            for b, n in enumerate(order):
                made[b, : lengths[n]] = x[n]
            return made

        more_tables = {x: torch.stack([pad(t[n], (0, most - lengths[n], 0, most - lengths[n])) for n in order]) for x, t in tables.items()}
        many = {"q": padded(q), "k": padded(k), "v": padded(v), **more_tables}
        yield f"a batch padded to {most}", many, {whole(n): (b, 0) for b, n in enumerate(order)}
    if tables:
        for n, length in enumerate(lengths):
            first = 0
            while first < length:
                last = min(length, first + draw.choice((1, 15, 64, 130, 1000)))
                yield f"tokens {first} to {last - 1} of sequence {n}", part(n, first, last), {(n, first, last): (0, 0)}
                first = last
        return
    packed = [torch.cat([x[n] for n in order])[None] for x in (q, k, v)]
    starts = [0]
    for n in order:
        starts.append(starts[-1] + lengths[n])
    bounds = {"cu_seqlens_q": integers(starts), "cu_seqlens_k": integers(starts)}
    yield "packed", dict(zip("qkv", packed, strict=True)) | bounds, {whole(n): (0, starts[b]) for b, n in enumerate(order)}

    room = -(-(max(lengths) + 3) // PAGE) + 1  # pages of a sequence
    pool = torch.randperm(room * len(q), generator=torch.Generator().manual_seed(seed)).view(len(q), room)
    cached = []
    for x in (k, v):
        pages = torch.full((room * len(q), PAGE, *x[0].shape[1:]), 1e4, dtype=x[0].dtype, device=where)
        for n, t in enumerate(x):
            token = torch.arange(len(t))
            pages[pool[n, token // PAGE].to(where), (token % PAGE).to(where)] = t
        cached.append(pages)
    for n in range(len(q)):
        first = 0
        while first < lengths[n]:
            last = min(lengths[n], first + draw.choice((2, 15, 64, 130, 1000)))
            dense = part(n, first, last)
            paged = {**dense, "k": cached[0], "v": cached[1], "page_table": pool[n : n + 1].int().to(where), "cache_lengths": integers([last])}
            which = draw.choice((dense, paged))
            yield f"tokens {first} to {last - 1} of sequence {n}{' of pages' if which is paged else ''}", which, {(n, first, last): (0, 0)}
            first = last
    for step in sorted({0, *(draw.randrange(max(lengths)) for _ in range(2))}):  # one token of each sequence that has so many
        there = [n for n in order if lengths[n] > step]
        many = {
            "q": torch.stack([q[n][step : step + 1] for n in there]), "k": cached[0], "v": cached[1], "page_table": pool[there].int().to(where),
            "cache_lengths": integers([step + 1] * len(there)),
        }
        yield f"decoding token {step} of {len(there)} sequences", many, {(n, step, step + 1): (b, 0) for b, n in enumerate(there)}


def comparisons(op: Contract, seed: int, gpu: bool, backend: str) -> Iterator[tuple[str, Callable[[], Compared]]]:
    """What the promise of an op is held against: (the call as Python, the call). Of attention sequences, without a GPU these alone."""
    if op.name == "attention":
        for told in drawn(seed, gpu):
            yield f"sequences({told}, seed={seed})", partial(sequences, told, backend=backend, seed=seed)
        if not gpu:
            return
    for sizes, dtype in lengths(op, seed, gpu):
        yield f"batches(registry.op({op.name!r}), {sizes}, {dtype!r}, seed={seed})", partial(batches, op, sizes, dtype, backend=backend, seed=seed)
