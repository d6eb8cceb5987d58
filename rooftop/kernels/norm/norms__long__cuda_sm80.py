"""Configs and launches of norms__long__cuda_sm80.cu, and which rows it supports: the forward where a row is too long for a block's
registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem
from rooftop.kernels.norm import _row_groups
from rooftop.kernels.norm._row_groups import LongRows

TENSORS = ("x", "residual", "weight", "bias", "y", "s")
MOST = 6  # vectors a thread: 56 to 96 registers, none spilled
OVERHEAD = 1000  # vectors: slices of 27 to 31 KiB took 2.8 us a row on an H200, 1 us more than the memory needs for them
STREAMED = 512 * 1024  # bytes: longer rows that no ring holds took clusters 1.4 (rms_norm) to 1.9 times the time of a copy there
BESIDE = (1, 2, 3)  # blocks of a multiprocessor


def of(p: Problem, beside: int = 1) -> LongRows:
    present = [m for name in TENSORS if (m := p.get(name)) is not None]
    kept = sum(p.get(name) is not None for name in ("weight", "bias"))
    one = _row_groups.of(
        p, p["x"], present, 1 if p.get("residual") is None else 2, kept, 2 if p.op.startswith("layer_norm") else 1, MOST, OVERHEAD
    )
    return _row_groups.besides(replace(one, sectors=not one.aligned), beside)


def _best(p: Problem) -> int:
    """How many blocks a multiprocessor should have: as many as are estimated to be fastest."""
    return max(BESIDE, key=lambda n: _row_groups.share(of(p, n)))


def supports(p: Problem, head: Head | None = None) -> str | None:
    return _row_groups.refuses(of(p), p["x"])


def choose(p: Problem, head: Head) -> dict[str, int]:
    n = _best(p)
    return (_row_groups.choose(of(p, n)) or {}) | {"beside": n}


def share(p: Problem) -> float:
    """The estimated speed as a share of the memory's."""
    return _row_groups.share(of(p, _best(p)))


def configs(p: Problem, head: Head) -> list[dict[str, int]]:
    return [c | {"beside": n} for n in BESIDE for c in _row_groups.configs(of(p, n))]


def scratch(p: Problem, config: Mapping[str, int], head: Head) -> dict[str, Meta]:
    return {"mail": _row_groups.mail(of(p, config["beside"]), config["blocks"])}


def zeroed(p: Problem, config: Mapping[str, int], head: Head) -> tuple[str, ...]:
    return ("mail",)


def launches(p: Problem, config: Mapping[str, int], head: Head) -> list[Launch]:
    r = of(p, config["beside"])
    flags = (r.aligned, p.op.startswith("layer_norm"), *(p.get(name) is not None for name in ("residual", "weight", "bias")))
    template = (DTYPES[p["x"].dtype].cuda, config["vectors"], config["stages"], config["lag"], *(str(v).lower() for v in flags))
    return [_row_groups.launch(r, config, f"norm_long<{', '.join(map(str, template))}>", *head.arguments(p, config))]
