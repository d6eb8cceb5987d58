"""Configs and launches of norms_bwd__long__cuda_sm80.cu, and which rows it supports: the backward where a row is too long for a block."""

from __future__ import annotations

from collections.abc import Mapping

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance
from rooftop.kernels.norm import _row_groups
from rooftop.kernels.norm import norms_bwd__cuda_sm80 as short
from rooftop.kernels.norm._row_groups import LongRows


def of(p: Problem) -> LongRows:
    return _of(p, short.of(p))


def _of(p: Problem, r: short.Rows) -> LongRows:
    most = 4 if r.sums == 1 or (r.aligned and r.itemsize == 2) else 3  # more spill registers
    return LongRows(
        r.count, r.vectors, r.aligned, r.period, r.tensors, int(r.weight), 4 if p.op.startswith("layer_norm") else 2, r.sms, r.shared, most
    )


def supports(p: Problem, head: Head | None = None) -> str | None:
    if reason := short.without_a_pivot(p):
        return reason
    return _row_groups.refuses(of(p), p["s"])


def choose(p: Problem, head: Head) -> dict[str, int]:
    return _row_groups.choose(of(p)) or {}


def configs(p: Problem, head: Head) -> list[dict[str, int]]:
    return _row_groups.configs(of(p))


def scratch(p: Problem, config: Mapping[str, int], head: Head) -> dict[str, Meta]:
    """Partial rows of dweight and dbias, one a group; the mailbox, which starts as zeros."""
    rows, r = short.of(p), of(p)
    return {**short.partial_rows(p, _row_groups.groups(r, config["blocks"]), rows.pitch), "mail": _row_groups.mail(r, config["blocks"])}


def zeroed(p: Problem, config: Mapping[str, int], head: Head) -> tuple[str, ...]:
    return ("mail",)


def launches(p: Problem, config: Mapping[str, int], head: Head) -> list[Launch]:
    rows = short.of(p)
    r = _of(p, rows)
    blocks, threads, vectors, stages, lag = (config[name] for name in ("blocks", "threads", "vectors", "stages", "lag"))
    places = _row_groups.groups(r, blocks)
    made = short.partial_rows(p, places, rows.pitch)
    args, types = short.arguments(p, rows, config, head, made)
    args |= {"blocks": blocks, "all_mail": "mail"}
    kernel = instance("norm_bwd_long", DTYPES[p["s"].dtype].cuda, vectors, stages, lag, *short.flags(p, rows, made))
    first = Launch(
        kernel, (places * blocks,), args, types=(*types, "i32", "ptr"), block=(threads,),
        shared=_row_groups.ring(r, threads, vectors, stages), cooperative=True
    )
    return [first, *short.column_sums(p, rows, places, made)]
