"""Which rows norms__cuda_sm80.cu supports, and how many threads and vectors a row gets: rooftop/kernels/norm/_register_rows.py"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import Launch, Problem
from rooftop.kernels.norm import _register_rows

TENSORS = ("x", "residual", "weight", "bias", "y", "s")


def _rows(p: Problem) -> _register_rows.Rows:
    return _register_rows.of(p, TENSORS, 1 if p.get("residual") is None else 2)


def supports(p: Problem, head: Head) -> str | None:
    return _register_rows.refuses(p["x"])


# by vectors a thread, 1 to 8; True: rows start on 16 bytes
REGISTERS = {True: (32, 32, 48, 48, 56, 56, 64, 64), False: (40, 48, 48, 56, 64, 64, 64, 64)}
INSTRUCTIONS = {True: (127, 120), False: (190, 280)}  # of a warp: fixed, and for each vector
FLYING = 72 * 1024  # bytes in flight to a multiprocessor of an H200, as measured: 0.92 of a copy with 72 KiB, 0.79 to 0.84 with 56 KiB
GAIN = 0.95


def _cycles(r: _register_rows.Rows, c: dict[str, int]) -> float:
    """Estimated cycles of a multiprocessor for one row, at 18.2 bytes a cycle. Each of the four schedulers has 512 registers a lane: with
    48 registers a thread it holds 10 warps, 40 warps in all, so two blocks of 14 warps are resident and not three."""
    aligned, warps = r.least == 1, c["team"] // 32
    fixed, each = INSTRUCTIONS[aligned]
    blocks = min(4 * (512 // REGISTERS[aligned][c["vectors"] - 1]) // warps, 2048 // c["team"])
    memory = 2 * 16 * r.vectors / 18.2 * max(1.0, FLYING / (max(blocks, 1) * 16 * r.vectors))
    issued = warps * (fixed + each * c["vectors"]) / 4
    return max(memory, issued) + 0.25 * min(memory, issued)


def choose(p: Problem, head: Head) -> dict[str, Any]:
    r = _rows(p)
    found = _config(p, r)
    return {**found, "early": _may_be_early(r, found) and 2 * p["x"].nbytes <= p.device.l2_bytes}


def _may_be_early(r: _register_rows.Rows, c: dict[str, Any]) -> bool:
    """Copying weight and bias while the sums are computed hides the latency of the L2: on an H200 0.83 to 0.97 of the time where input and
    result rest there. Larger tensors have waves of blocks enough that hide it, and lose 0 to 8 % where the copies' shared memory or
    instructions limit them."""
    return r.least == 1 and c["team"] > 32


def _config(p: Problem, r: _register_rows.Rows) -> dict[str, Any]:
    """The choice of _register_rows.py. 16-bit rows of layer_norm in a block are bound by instructions about as much as by memory: for them
    another config is taken if `_cycles` estimates that it is 5 % faster. For the example of _register_rows.py (8192 columns of bf16) none
    is."""
    found = _register_rows.choose(r)
    if (
        not p.op.startswith("layer_norm") or p["x"].itemsize == 4 or found["team"] <= 32 or r.tensors > 1
        or r.rows * r.vectors <= 2048 * r.device.sms
    ):
        return found
    blocks = [c for c in _register_rows.blocks(r, 512) if c["team"] * (c["vectors"] - 1) < r.vectors]
    best = min(blocks, key=partial(_cycles, r), default=found)
    return best if _cycles(r, best) < GAIN * _cycles(r, found) else found


def configs(p: Problem, head: Head) -> list[dict[str, Any]]:
    r = _rows(p)
    early = [{**c, "early": True} for c in _register_rows.blocks(r, 1024) if _may_be_early(r, c)]
    return _register_rows.configs(r) + early


def launches(p: Problem, config: Any, head: Head) -> list[Launch]:
    given = p.get("residual") is not None, p.get("weight") is not None, p.get("bias") is not None
    flags = _rows(p).least == 1, p.op == "layer_norm", *given
    if config["team"] <= 32:
        return [_register_rows.launch("norm", p, config, head, *flags)]
    shared = 16 * config["vectors"] * config["team"] * (given[1] + given[2]) if config["early"] else 0
    return [replace(_register_rows.launch("norm", p, config, head, config["early"], *flags), shared=shared)]
