"""Where the shipped kernel differs from the last rung of its ladder that is a file of its own: in five lines at most, from the files and
what they launch at the headline."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rooftop.core import helpers, registry
from rooftop.core.contract import Contract
from rooftop.core.digests import strip
from rooftop.core.implementation import Implementation, UnsupportedError
from rooftop.core.spec import TARGETS, Case, Launch
from rooftop.lab.candidates import Memo, Subject

CARD = TARGETS[90]
MOST = 3  # launches that are told one by one
NAMED = 6  # files, or values of a config, at the most
MEANS: Mapping[str, str] = {  # of the hardware -> how it is written in CUDA C++, Triton or Gluon
    "TMA": r"cp\.async\.bulk|\btma\.", "cp.async": r"cp\.async\.c[ag]|async_copy\.", "mbarriers": r"mbarrier", "wgmma": r"wgmma|warpgroup_mma",
    "mma.sync": r"mma\.sync|mma_v2", "ldmatrix": r"ldmatrix", "clusters": r"\bmapa\b|\.cluster\b|cluster_",
    "warp specialisation": r"setmaxnreg|warp_specialize", "programmatic launch": r"griddepcontrol|launch_pdl|gdc_",
    "atomics": r"\batomic|\bred\.",
}

# What a compiler chooses of them, where the kernel is written in Triton: its text does not tell.
CHOSEN = {"TMA", "cp.async", "mbarriers", "wgmma", "mma.sync", "ldmatrix", "warp specialisation"}


def lines(ladder: registry.Ladder, op: Contract, shipped: Implementation | None, case: Case, memo: Memo) -> Iterator[str]:
    """`shipped`: what the last rung names, or a call of `case` takes; where plain torch does, None, nothing is said. Launches and configs
    are left out of what does not take the case on an H100."""
    own = [r for r in ladder.rungs if r.implementation.path == r.path and (shipped is None or r.path != shipped.path)]
    if shipped is None or not own:
        return
    rung, number = own[-1], f"rung {own[-1].number:02d}"
    old, new = (_files(path, op) for path in (rung.path, shipped.path))
    names = [p.name for p in new if p not in old]
    yield f"{number.capitalize()}, the last in a file of its own, is {_count(old)}; {shipped.name} is {_count(new)}; new: {_some(names)}."
    left_out = CHOSEN if "triton" in (rung.implementation.backend, shipped.backend) else set[str]()
    uses, used = (_means(files) - left_out for files in (old, new))
    said = [f"{who} uses {', '.join(found)}" for who, found in (("the shipped kernel", _but(used, uses)), (number, _but(uses, used))) if found]
    if said:
        yield f"Of the hardware, only {', and only '.join(said)}."
    before, after = (_launched(i, op, case, memo) for i in (rung.implementation, shipped))
    if before and after and before[0] and after[0]:
        same = f"both launch {after[0]}" if before[0] == after[0] else f"{number} launches {before[0]}; the shipped kernel {after[0]}"
        changed = [f"{k} is {x} instead of {before[1][k]}" for k, x in after[1].items() if before[1].get(k, x) != x]
        new_ones = [f"{k} = {x}" for k, x in after[1].items() if k not in before[1]]
        yield f"At {case.id}, {same}."
        if told := [*([_some(changed)] if changed else []), *([f"new: {_some(new_ones)}"] if new_ones else [])]:
            yield f"In the config of that launch, {'; '.join(told)}."
    cases = [c for c in op.cases if "bench" in c.tags]
    taken = [[c for c in cases if Subject(i.name, op, i).supports(c, CARD, memo) is None] for i in (rung.implementation, shipped)]
    only = [c.id for c in taken[1] if c not in taken[0]]
    if taken[1]:
        apart = f", among them {only[-1]}, which the rung does not" if only else ""
        yield f"Of the {len(cases)} timed cases of {op.name}, {number} takes {len(taken[0])} and the shipped kernel {len(taken[1])}{apart}."


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:NAMED], *([f"and {len(names) - NAMED} more"] if len(names) > NAMED else [])])


def _but(found: set[str], others: set[str]) -> list[str]:
    return [name for name in MEANS if name in found - others]


def _files(path: Path, op: Contract) -> list[Path]:
    beside = path.with_suffix(".py")
    return list(dict.fromkeys([path, *([beside] if beside.is_file() else []), *helpers.all_of(path, op.name)]))


def _code(path: Path) -> str:
    return strip(path.read_text(encoding="utf-8"), "c" if path.suffix in (".cu", ".cuh") else "python")


def _count(files: list[Path]) -> str:
    return f"{sum(len(_code(p).splitlines()) for p in files)} lines of code in {len(files)} file{'s' if len(files) > 1 else ''}"


def _means(files: list[Path]) -> set[str]:
    text = "\n".join(map(_code, files))
    return {name for name, pattern in MEANS.items() if re.search(pattern, text)}


def _launched(implementation: Implementation, op: Contract, case: Case, memo: Memo) -> tuple[str, Mapping[str, object]] | None:
    """The launches of a case, and its config; None where it is not taken."""
    problem = memo.problem(op, case, CARD)
    try:
        config, _ = implementation.resolve(problem)
        steps = [s for s in implementation.steps(problem, config) if isinstance(s, Launch)]
    except (UnsupportedError, ValueError):
        return None
    shown = list(map(_step, steps))
    return ", then ".join(shown) if len(shown) <= MOST else f"{len(shown)} kernels", implementation.config_dict(config)


def _step(step: Launch) -> str:
    blocks, cluster = math.prod(step.grid), math.prod(step.cluster or (1,))
    threads = f" of {math.prod(step.block)} threads" if step.types else ""  # what a compiler chooses, or adds to, is not said
    return f"{blocks} block{'s' if blocks > 1 else ''}" + (f" in clusters of {cluster}" if cluster > 1 else "") + threads
