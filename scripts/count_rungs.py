"""Counts the rungs of the ladders, each ladder at one case, for the scores without a GPU: writes rooftop/lab/judge/counts.json.

python scripts/count_rungs.py [LADDER ...]"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import astuple, replace
from math import prod
from typing import Any

import torch

from rooftop.core import registry
from rooftop.core.spec import DTYPES, Case
from rooftop.lab import candidates
from rooftop.lab.check import checker
from rooftop.lab.inputs import make
from rooftop.lab.judge import counts
from rooftop.lab.judge.tasks import OpTask, resized

SMALL, LARGEST = 1 << 12, 1 << 16  # elements of the case that is counted


def _ladder(name: str) -> dict[str, Any] | None:
    """Counted: the largest small plain case of the first dtype that most rungs take."""
    ladder = registry.ladder(name)
    rungs = [s for s in candidates.rungs(ladder) if s.implementation is not None and s.implementation.backend in ("cuda", "triton")]
    rungs = [s for s in rungs if checker.backend_of(s, "cpu") in (("simt", None), ("interpreter", None))]
    try:
        task = OpTask(ladder.op)
    except ValueError:
        return None
    op = task.op

    def usual(c: Case) -> bool:
        tensors = dict.fromkeys(op.tensor_names) | {n: _meta(v) for n, v in c.tensors()}
        return task._usual(tensors, op.options(c)) == op.options(c)

    def takes(s: candidates.Subject, c: Case) -> bool:
        assert s.implementation is not None
        try:
            return checker.left_out(s, c, s.implementation.where().place, s.implementation.stand_in(90)) is None
        except Exception:
            return False

    dtypes = sorted(ladder.dtypes, key=lambda d: d != "f32")
    cases = [r for d in dtypes for c in _plain(task, d) for sizes in ROUND if (r := _round(task, c, sizes)) is not None]
    cases += [
        c
        for d in dtypes
        for c in op.cases
        if c.dtype == d and SMALL <= _count(c) <= LARGEST and not c.tags & {"huge"} and usual(c) and _ordinary(c)
    ]
    if not rungs or not cases:
        return None
    best = max(
        cases,
        key=lambda c: (sum(takes(s, c) for s in rungs), c.dtype == dtypes[0], c.name.startswith("round"), -_ranks(c), -cases.index(c)),
    )
    rungs = [s for s in rungs if takes(s, best)]
    found: dict[str, Any] = {}
    for s in rungs:
        try:
            found[s.name] = list(astuple(counts.of_subject(s, best)[0]))
        except Exception as error:  # one that cannot be counted is left out, and said
            print(f"{s.name} at {best.id}: {' '.join(str(error).split())[:160]}")
    inputs = {n: {"shape": list(v.shape), "dtype": v.dtype, "fill": v.fill} if hasattr(v, "shape") else v for n, v in best.inputs.items()}
    backends = {s.implementation.backend for s in rungs if s.implementation is not None}
    return (
        {"op": ladder.op, "language": "cuda" if "cuda" in backends else "triton", "case": best.id, "inputs": inputs, "rungs": found}
        if len(found) > 1
        else None
    )


ROUND = (4096,), (1024, 32), (4096, 16), (128, 64, 64), (64, 32, 16, 8)  # sizes in place of so many different ones, the largest first


def _plain(task: OpTask, dtype: str) -> list[Case]:
    try:
        return [c for c in task.plain(dtype) if _ranks(c) > len(list(c.tensors())) or all(len(v.shape) < 2 for _, v in c.tensors())]
    except ValueError:
        return []


def _ordinary(case: Case) -> bool:
    return all(v.layout == "contiguous" and (v.fill == "normal" or v.fill.startswith("below ")) for _, v in case.tensors())


def _ranks(case: Case) -> int:
    return sum(len(v.shape) for _, v in case.tensors())


def _round(task: OpTask, case: Case, chosen: Sequence[int]) -> Case | None:
    """The case with sizes that are powers of two, where the op takes them."""
    every = sorted({e for _, v in case.tensors() for e in v.shape if e > 1}, reverse=True)
    if len(every) != len(chosen):
        return None
    sizes = dict(zip(every, chosen, strict=True)) | {1: 1, 0: 0}
    inputs = {n: resized(v, sizes) if hasattr(v, "shape") else v for n, v in case.inputs.items()}
    made = replace(
        case, name="round " + ", ".join("x".join(map(str, v.shape)) for v in inputs.values() if hasattr(v, "shape")), inputs=inputs
    )
    try:
        tensors, options = make(task.op, made, "cpu", 0)
        made = replace(made, inputs={**made.inputs, **{n: v for n, v in task._usual(tensors, options).items() if n in made.inputs}})
        task._expected(*make(task.op, made, "cpu", 0))
    except Exception:  # sizes that the op does not take together
        return None
    return made if SMALL <= _count(made) <= LARGEST else None


def _meta(spec: Any) -> Any:
    return torch.empty(spec.shape, dtype=getattr(torch, DTYPES[spec.dtype].torch))


def _count(case: Case) -> int:
    return sum(prod(v.shape) for _, v in case.tensors())


def main(names: Sequence[str] = ()) -> None:
    """Count the ladders named (all where none is) and write the file that is shipped."""
    made = dict(counts.shipped()) if counts.KEPT.is_file() else {}
    for name in names or registry.ladder_names():
        counted = _ladder(name)
        made.pop(name, None)
        if counted is not None:
            made[name] = counted
            print(f"{name}: {len(counted['rungs'])} rungs at {counted['case']}", flush=True)
    lines = [f"{json.dumps(n)}: {json.dumps(made[n], separators=(',', ':'))}" for n in sorted(made)]
    counts.KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
