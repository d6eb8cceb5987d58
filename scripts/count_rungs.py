"""Counts the rungs of the ladders anew, each ladder at the case that rooftop/lab/judge/counts.json has of it, for the scores without a GPU.

    python scripts/count_rungs.py [LADDER ...]
    python scripts/count_rungs.py LADDER --case "odd 5x1001 f32"     # a ladder that is new, or another case of its op"""

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
        if (why := s.supports(case, s.implementation.stand_in(90))) is None:
            rungs[s.name] = list(astuple(counts.of_subject(s, case)[0]))
            language = "cuda" if s.implementation.backend == "cuda" else language
        else:
            print(f"{s.name}: {why}")
    kept = {n: [v.dtype, v.fill, *v.shape] if isinstance(v, Input) else v for n, v in case.inputs.items()}
    return {"op": registry.ladder(name).op, "language": language, "case": case.id, "inputs": kept, "rungs": rungs}


def main(words: Sequence[str]) -> None:
    case_id = words[words.index("--case") + 1] if "--case" in words else ""
    names = list(words[: words.index("--case")]) if case_id else list(words)
    made = dict(counts.shipped())
    for name in names or list(made):
        case = registry.op(registry.ladder(name).op).case(case_id) if case_id else counts.case_of(made[name])
        made[name] = counted(name, case)
        print(f"{name}: {len(made[name]['rungs'])} rungs at {case.id}", flush=True)
    lines = [f"{json.dumps(n)}: {json.dumps(made[n], separators=(',', ':'))}" for n in sorted(made)]
    counts.KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
