"""How many blocks share a row in softmax_bwd__cuda_sm90.cu, and of how many threads."""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels.norm import _softmax_clusters

WARPS = 32  # of a multiprocessor: few instructions an element, and 48 registers a thread
WHOLE = ((4096, 128, 16), (8192, 256, 8), (32768, 1024, 2))  # rows of up to so many bytes: threads, blocks a multiprocessor


def choose(p: Problem, head: Head) -> dict[str, Any]:
    size = p["y"].shape[1] * p["y"].itemsize
    for most, threads, blocks in WHOLE:
        if size <= most:
            return {"threads": threads, "cluster": 1, "blocks": blocks}
    return dict(_softmax_clusters.choose(2 * size, WARPS, p.device))
