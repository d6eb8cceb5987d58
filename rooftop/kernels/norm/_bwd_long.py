"""Configs and launches of norms_bwd__long__cuda_sm80.cu: the backward of rms_norm and layer_norm where a row is too long for a block."""

from __future__ import annotations

from collections.abc import Mapping

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem
from rooftop.kernels.norm import _bwd_rows as short
from rooftop.kernels.norm import _row_groups
from rooftop.kernels.norm._row_groups import LongRows


def of(p: Problem, centre: bool) -> LongRows:
    r = short.of(p)
    most = 4 if r.sums == 1 or (r.aligned and r.itemsize == 2) else 3  # more spill registers
    return LongRows(r.count, r.vectors, r.aligned, r.period, r.tensors, int(r.weight), 4 if centre else 2, r.sms, r.shared, most)


def refuses(p: Problem, centre: bool) -> str | None:
    return _row_groups.refuses(of(p, centre), p["s"])


def choose(p: Problem, centre: bool) -> dict[str, int]:
    return _row_groups.choose(of(p, centre)) or {}


def configs(p: Problem, centre: bool) -> list[dict[str, int]]:
    return _row_groups.configs(of(p, centre))


def scratch(p: Problem, config: Mapping[str, int], centre: bool) -> dict[str, Meta]:
    """Partial rows of dweight and dbias, one a group; the mailbox, which starts as zeros."""
    r = of(p, centre)
    return {**short.partial_rows(p, _row_groups.groups(r, config["blocks"])), "mail": _row_groups.mail(r, config["blocks"])}


def launches(p: Problem, config: Mapping[str, int], head: Head, centre: bool) -> list[Launch]:
    r, rows, made = of(p, centre), short.of(p), scratch(p, config, centre)
    blocks, threads, vectors, stages, lag = (config[name] for name in ("blocks", "threads", "vectors", "stages", "lag"))
    places = _row_groups.groups(r, blocks)
    args, types = short.arguments(p, config, head, made)
    args |= {"blocks": blocks, "all_mail": "mail"}
    kernel = f"norm_bwd_long<{DTYPES[p['s'].dtype].cuda}, {vectors}, {stages}, {lag}, {short.flags(rows, centre, made)}>"
    first = Launch(
        kernel, (places * blocks,), args, types=(*types, "i32", "ptr"), block=(threads,), shared=_row_groups.ring(r, threads, vectors, stages), cooperative=True
    )
    return [first, *short.column_sums(p, places, made)]
