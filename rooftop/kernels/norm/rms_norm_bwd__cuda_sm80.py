"""Which rows rms_norm_bwd__cuda_sm80.cu supports, and its launch configs: rooftop/kernels/norm/_bwd_rows.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.norm import _bwd_rows


def supports(p: Problem, head: Head) -> str | None:
    return _bwd_rows.refuses(p)


def prefers(p: Problem, head: Head) -> int:
    """Measured on an H200: 1.0 to 1.3 times as fast as the kernel chosen before, except for rows of 2.5 to 8 KiB (0.96) and from 24 KiB on (0.93 to 1.02), for
    which clusters are preferred. Clusters are also preferred where an estimate says that they are faster: for odd rows (0.54 to 0.67 of a copy here) and for
    rows with padding."""
    s = p["s"]
    row = s.shape[1] * s.itemsize
    clusters = p.device.arch >= 90 and ((2048 < row <= 8192 and row % 16 == 0) or row > 16384)
    return 0 if _bwd_rows.refuses(p) or clusters or _bwd_rows.clusters_are_faster(p, False) else 2


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _bwd_rows.choose(p)


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return _bwd_rows.configs(p)


def scratch(p: Problem, config: Any, head: Head) -> dict[str, Meta]:
    return _bwd_rows.scratch(p, config)


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    return _bwd_rows.launches(p, config, head, centre=False)
