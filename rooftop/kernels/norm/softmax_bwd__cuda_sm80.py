"""Which rows softmax_bwd__cuda_sm80.cu supports, and how they are divided among threads: rooftop/kernels/norm/_register_rows.py"""

from __future__ import annotations

from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Problem
from rooftop.kernels.norm import _register_rows


def _rows(p: Problem) -> _register_rows.Rows:
    """y and dy are in registers; single elements if one of the three tensors is not whole vectors on 16 bytes."""
    y = p["y"]
    of_vector = 16 // y.itemsize
    whole = y.shape[1] % of_vector == 0 and all(
        p[name].align >= 16 and (y.shape[0] == 1 or p[name].strides[0] % of_vector == 0) for name in ("y", "dy", "dx")
    )
    return _register_rows.Rows(y.shape[0], max(1, y.shape[1] // of_vector), 2, 1 if whole else 2 * of_vector, p.device)


def _with(p: Problem, config: dict[str, int]) -> dict[str, Any]:
    """Two tensors are in registers; `aligned_rows`: all rows are whole vectors on 16 bytes, so there are no single elements."""
    return {**config, "registers": 64, "aligned_rows": _rows(p).least == 1}


def supports(p: Problem, head: Head) -> str | None:
    row = p["y"].shape[1] * p["y"].itemsize
    return (
        f"a row must fit one block's registers, {_register_rows.ROW_BYTES} bytes; given {row}" if row > _register_rows.ROW_BYTES else None
    )


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return _with(p, _register_rows.choose(_rows(p)))


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    return [_with(p, config) for config in _register_rows.configs(_rows(p))]
