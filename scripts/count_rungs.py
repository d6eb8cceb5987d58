"""Counts the rungs of the ladders anew, each ladder at the case that rooftop/lab/judge/counts.json has of it, for the scores without a GPU.

    python scripts/count_rungs.py [LADDER ...]"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from rooftop.core import registry
from rooftop.core.spec import Case, Input
from rooftop.lab import candidates
from rooftop.lab.check import checker
from rooftop.lab.judge import counts


def counted(name: str, case: Case) -> dict[str, Any]:
    rungs: dict[str, list[int]] = {}
    language = "triton"
    for s in candidates.rungs(registry.ladder(name)):
        if s.implementation is None or checker.backend_of(s, "cpu") not in (("simt", None), ("interpreter", None)):
            continue
        if s.supports(case, s.implementation.stand_in(90)) is None:
            rungs[s.name] = list(astuple(counts.of_subject(s, case)[0]))
            language = "cuda" if s.implementation.backend == "cuda" else language
    kept = {n: [v.dtype, v.fill, *v.shape] if isinstance(v, Input) else v for n, v in case.inputs.items()}
    return {"op": registry.ladder(name).op, "language": language, "case": case.id, "inputs": kept, "rungs": rungs}


def main(names: Sequence[str]) -> None:
    made = dict(counts.shipped())
    for name in names or list(made):
        made[name] = counted(name, counts.case_of(made[name]))
        print(f"{name}: {len(made[name]['rungs'])} rungs at {made[name]['case']}", flush=True)
    lines = [f"{json.dumps(n)}: {json.dumps(made[n], separators=(',', ':'))}" for n in sorted(made)]
    counts.KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
