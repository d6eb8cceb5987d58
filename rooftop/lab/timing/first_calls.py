"""What the first call of a kind costs the host: the very first, one with rows not seen before, one with columns not seen before.

Seconds from the call to its return, nothing queued before it: what a program waits that brings other shapes at each step. Inputs lie ready.
Beside torch's eager ops and torch.compile(dynamic=True), where the contract names them as peers. `records` makes records of it, of kind
`first-calls`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from rooftop.core import registry, settings
from rooftop.core.backends.python_files import texts_of
from rooftop.core.contract import Contract
from rooftop.core.digests import digest, strip
from rooftop.core.spec import Case
from rooftop.lab.inputs import make
from rooftop.lab.records.record import Record
from rooftop.lab.timing import warm

HOST = (  # of rooftop/core: what a first call runs on the host, the compilers apart
    "backends/cuda", "backends/triton", "call", "choice", "contract", "dispatch", "expressions", "head", "implementation", "launch",
    "library", "plans", "registry", "spec", "triton_compat", "triton_launch",
)
ROWS, COLUMNS, KNOWN = 200, 30, 4096
SLOW = 0.010  # seconds: a call above it has compiled something
MOST = 16384  # rows


def measure(
    op: Contract, dtype: str, *, seed: int = 0, rows: int = ROWS, columns: int = COLUMNS, compiled: bool = True, device: str = "cuda"
) -> list[dict[str, Any]]:
    """Rows of numbers, one for each candidate, forward and (where the op has gradients) forward and backward. Raises RuntimeError without
    a GPU, ValueError where no case of the op has rows and columns."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("no GPU: torch.cuda.is_available() is False")
    cases = warm.kinds(op, dtype)
    if not cases:
        raise ValueError(f"{op.name} has no case of {dtype} with rows and columns")
    found = []
    for name, function in candidates(op, compiled).items():
        for gradients in (False, True) if op.grad is not None else (False,):
            r = random.Random(seed)  # the same shapes for all
            about = {"op": op.name, "dtype": dtype, "subject": name, "gradients": gradients}
            try:
                found.append({**about, **_measure(op, cases[0], function, r, (rows, columns), gradients, device)})
            except Exception as error:  # a peer that refuses the op's options is left out
                if name == "rooftop":
                    raise
                found.append({**about, "refused": f"{type(error).__name__}: {error}"})
    return found


def records(measured: Sequence[Mapping[str, Any]], device: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
    """Records of what was measured, those left out that refused the op: one of a subject, dtype and direction."""
    found = []
    for r in measured:
        if "refused" in r:
            continue
        subject = r["subject"] if r["subject"] == "rooftop" else f"peer:{r['subject']}"
        about = {
            "kind": "first-calls", "op": r["op"], "subject": subject,
            "case": f"{r['dtype']}, forward and backward" if r["gradients"] else r["dtype"]
        }
        kept = {k: r[k] for k in ("first_s", "known_s", "new_rows_s", "rows", "columns")}
        found.append(
            {**about, "device": dict(device), "digest": digest_of(registry.op(r["op"])), "seed": seed, "known_columns": KNOWN, **kept}
        )
    return found


def digest_of(op: Contract) -> str:
    """Hash of all kernels that a call of the op may run, and its backward, and of the code between a call and its launches."""
    names = [op.name, *([op.bwd.name] if op.bwd is not None else [])]
    found = sorted((i for n in names for i in registry.implementations(n)), key=lambda i: i.name)
    return digest(_host(), *(text for i in found for text in (i.digest, *_texts(i.path.with_suffix(".py")))))


def _texts(path: Path) -> list[str]:
    """The code of a kernel's host functions."""
    return texts_of(path.read_text(encoding="utf-8")) if path.is_file() else []


@cache
def _host() -> str:
    core = settings.PACKAGE / "core"
    return digest(*(strip((core / f"{name}.py").read_text(encoding="utf-8"), "python") for name in HOST))


def current(record: Record) -> bool:
    """Whether a record is of the kernels as they are."""
    return record.op in registry.op_names() and record.digest == digest_of(registry.op(record.op))


def candidates(op: Contract, compiled: bool) -> dict[str, Callable[..., Any]]:
    """By name, callables with the reference's signature."""
    import torch

    found: dict[str, Callable[..., Any]] = {"rooftop": op}
    if "torch" in op.peers:
        eager = op.peers["torch"]()
        found["torch"] = eager
        if compiled:
            found["torch.compile(dynamic=True)"] = torch.compile(lambda *args: eager(*args), dynamic=True)
    return found


def _measure(
    op: Contract, case: Case, function: Callable[..., Any], r: random.Random, counts: tuple[int, int], gradients: bool, device: str
) -> dict[str, Any]:
    was = warm.rows_and_columns(case)
    assert was is not None
    heights = r.sample(range(1, MOST), counts[0] + 1)
    widths = [2 * w for w in r.sample(range(64, 4096), counts[1])]

    def one(n: int, c: int) -> float:
        return _call(op, warm.resized(case, {was[0]: n, was[1]: c}), function, gradients, device)

    first = one(heights[0], KNOWN)
    new_rows = [one(n, KNOWN) for n in heights[1:]]
    known = [one(heights[0], KNOWN) for _ in range(50)]
    new_columns = [one(1024, c) for c in widths]
    figures = {"rows": _percentiles(new_rows), "columns": _percentiles(new_columns)}
    return {"first_s": first, "known_s": median(known), **figures, "new_rows_s": median(new_rows) - median(known)}


def _percentiles(seconds: Sequence[float]) -> dict[str, Any]:
    ordered = sorted(seconds)
    slow = sum(s > SLOW for s in ordered)
    return {
        "n": len(ordered), "median_s": median(ordered), "p90_s": ordered[int(0.9 * (len(ordered) - 1))], "max_s": ordered[-1], "slow": slow
    }


def _call(op: Contract, case: Case, function: Callable[..., Any], gradients: bool, device: str) -> float:
    import torch

    tensors, options = make(op, case, device, 0)
    wrt = {n for entry in op.grad.wrt for n in entry.split("=")} if op.grad and gradients else set()
    for n, t in tensors.items():
        if t is not None and n in wrt:
            t.requires_grad_()
    args = op.arguments(tensors, options)
    wait: Callable[[], Any] = torch.cuda.synchronize if device == "cuda" else torch.get_num_threads
    wait()
    started = time.perf_counter()
    made = function(*args)
    if gradients:
        made = [t for t in (made if isinstance(made, tuple) else (made,)) if t is not None and t.requires_grad]
        torch.autograd.backward(made, [torch.ones_like(t) for t in made])
    took = time.perf_counter() - started
    wait()
    return took
