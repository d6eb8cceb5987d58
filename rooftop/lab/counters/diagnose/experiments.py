"""What bounds each profiled kernel, settled by experiments alone: by the times of variants, without a look at a counter.

`tests/lab/profiles/experiments.json` holds, for each kernel, the time in us of `main` and of variants on one H200 (L2 flushed before each
call, median of 11), and

- `variants`: `of` a resource, of whose work `left` is left (`also`: the same of others), and nothing else changed; `keeps` all the work,
done in another way
  or `times` over in the same launch; or `size`: the whole problem is smaller, which says nothing;
- `floors_us`: what the kernel's own work needs of a resource at its ceiling, by arithmetic (4.19 TB/s copy, 4.57 TB/s read, 32.9 T FMA/s
and 457 T bf16
  multiply-adds/s as calibrated; 8.8 TB/s of L2 as in `l2_read`; one wavefront a cycle and SM, four instructions a cycle and SM, at 1980
  MHz).
- `blocks` of the launch, where that matters on 132 SMs; `lever`: the waste that a variant removes.

The rule. A resource's share of the time is (1 - t'/t) / (1 - left) by a variant, and floor / t where no variant is of it; where
the variant itself is at another floor, so that it shows less than the whole gain, the larger of the two. The resource of the largest
share bounds the kernel if that is at least two thirds. Otherwise no resource bounds it, provided that this is shown: by a variant that
keeps all work and takes at most two thirds of the time for it; by shares of device memory, L2, L1 and issue, all below; by fewer blocks
than two thirds of the SMs. Then it is idle SMs where the blocks do not fill three quarters of the SMs evenly, and latency otherwise. What
neither settles has no label."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rooftop.core import settings
from rooftop.lab.counters.diagnose import reports
from rooftop.lab.counters.diagnose.diagnosis import Diagnosis, diagnose
from rooftop.lab.timing.roofline import Ceilings

FOLDER = settings.CHECKOUT / "tests" / "lab" / "profiles"
CARD = "NVIDIA H200"
SEEN, HELD = ("own", "rungs", "torch"), ("held",)  # groups of which the counters were read before the rules were frozen, and only after
LEVERS: Mapping[str, tuple[tuple[str, str], ...]] = {  # lever -> the kernels and variants that pulled it
    "conflicts": (("shared_conflict", "conflicts"), ("transpose_conflict", "conflicts")),
    "sectors_ld": (("strided", "unused bytes"), ("sgemm_01", "sectors")),
    "sectors_st": (("transpose_naive", "sectors"),),
    "spills": (("spill", "spills"),),
    "grid": (("tail", "tail"), ("idle_sms", "spread")),
    "latency": (("few_warps", "warps x16"), ("copy_scalar", "issue /4"), ("bytes", "wider")),
}
BOUNDS = 2 / 3
SMS = 132
ANSWERS = {  # what an experiment removed -> the bounds that name it
    "sectors": ("l1", "l2"), "local": ("l1", "l2", "dram"), "lanes": ("issue", "fma", "alu"), "atomics": ("l2",), "barrier": ("latency",),
    "accesses": ("l1", "issue", "latency"),  # wider accesses: fewer instructions, fewer requests, more bytes in flight
}


@dataclass(frozen=True)
class Label:
    """`bounds`: the right answers, none where the experiments do not settle it. `lever`: what must be among the levers. `share`: by the
    experiment."""

    bounds: tuple[str, ...]
    share: float | None
    lever: str | None


def experiments() -> dict[str, dict[str, Any]]:
    return dict(json.loads((FOLDER / "experiments.json").read_text()))


def label(name: str, case: dict[str, Any]) -> Label:
    if name == "empty":
        return Label(("launch",), None, None)
    t = case["us"]["main"]
    shares: dict[str, float] = {}
    caps = [1.0]
    for key, variant in case["variants"].items():
        took = case["us"][key] / t
        if "keeps" in variant:
            caps.append(took / variant["times"])
        elif "of" in variant:
            for resource, left in {variant["of"]: variant["left"], **variant.get("also", {})}.items():
                shares[resource] = max(shares.get(resource, 0.0), (1 - took) / (1 - left))
    floors = case.get("floors_us", {})
    for key, variant in case["variants"].items():
        touched = {variant.get("of"), *variant.get("also", {})}
        if "of" in variant and any(floor / case["us"][key] >= BOUNDS for resource, floor in floors.items() if resource not in touched):
            for resource in touched & set(floors):
                shares[resource] = max(shares[resource], floors[resource] / t)
    for resource, floor in floors.items():
        shares.setdefault(resource, floor / t)
    blocks = case.get("blocks")
    filled = 1.0 if blocks is None else blocks / SMS / -(-blocks // SMS)
    lever = case.get("lever")
    if min(caps) > BOUNDS and shares and max(shares.values()) >= BOUNDS:
        best = max(shares, key=lambda r: shares[r])
        return Label(ANSWERS.get(best, (best,)), shares[best], lever)
    excluded = min(caps) <= BOUNDS or filled < BOUNDS or (
        all(r in shares for r in ("dram", "l2", "issue")) and ("l1" in shares or "shared" in shares)
    )
    if excluded:
        return Label(("idle",) if filled < 0.75 else ("latency",), None, lever)
    if "barrier" in shares and shares["barrier"] >= BOUNDS:
        return Label(("latency",), shares["barrier"], lever)
    return Label((), None, lever)


def labels(*groups: str) -> dict[str, Label]:
    return {name: label(name, case) for name, case in experiments().items() if case["group"] in groups}


def diagnosed(ceilings: Ceilings, *groups: str) -> dict[str, Diagnosis]:
    """By case; of a case that launches several kernels the longest."""
    found: dict[str, Diagnosis] = {}
    for group in groups:
        for kernel in reports.read(FOLDER / f"{group}.raw.csv.xz"):
            d = diagnose(kernel, ceilings)
            if d.case not in found or (d.seconds or 0) > (found[d.case].seconds or 0):
                found[d.case] = d
    return found


def misses(found: Mapping[str, Diagnosis], *groups: str) -> dict[str, str]:
    """Of the settled kernels of the groups, those that were diagnosed otherwise: what was said."""
    return {n: found[n].bound for n, label in labels(*groups).items() if label.bounds and not _right(found[n], label)}


def _right(d: Diagnosis, label: Label) -> bool:
    return d.bound in label.bounds and (label.lever is None or label.lever in {x.key for x in d.levers})
