"""`rooftop sweep --worst N`: the worst points of a sweep, each with the kernel and the config that a call takes, what bounds it, and the
fastest of the other configs and kernels that take the point."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from rooftop.core import registry
from rooftop.core.spec import TARGETS, Device
from rooftop.lab.candidates import Subject
from rooftop.lab.inspect.inspector import facts_of
from rooftop.lab.timing import bench, sweep, sweep_points, swept
from rooftop.lab.timing.bench_group import BenchGroup
from rooftop.lab.tune.tables import label
from rooftop.lab.tune.tuner import pinned

BACKENDS = ("triton", "cuda", "gluon")  # of which a call takes kernels without naming them
MOST = 48  # rivals of a point: each is compiled
FIRST, DRAWN = 12, 8  # of all valid configs of a kernel, best predicted first: those that are tried, and a random sample of the others
OTHERS = 5  # and of each other kernel, of ops with rows, whose kernels overlap
LATENCY_S = 0.8e-6  # of the memory while it is busy: so many seconds of its bandwidth must be in flight


@dataclass(frozen=True)
class Bound:
    """What the machine code and the grid of a launch say of its speed."""

    kernel: str
    waves: float  # of blocks that are resident at once
    in_flight: int  # bytes that the loads of a multiprocessor's resident threads ask for at once, at most
    registers: int
    spills: int  # bytes a thread
    limiter: str  # of the occupancy
    percent: float

    @property
    def text(self) -> str:
        spilled = f", {self.spills} B spilled" if self.spills else ""
        return f"{self.waves:.3g} waves, {self.in_flight / 1024:.0f} KiB in flight, {self.registers} registers{spilled}, {self.percent:.0f} % ({self.limiter})"


def bound(kernel: Mapping[str, Any], device: Device) -> Bound:
    """Of one kernel of `inspector.facts_of`. Copies without registers (TMA, cp.async) have at most a block's shared memory in flight."""
    counts, blocks = kernel["counts"], max(int(kernel["occupancy"]["blocks"]), 1)
    grid = prod(kernel["grid"])
    resident = min(blocks, -(-grid // device.sms))
    wide = {n: c for n, c in counts.items() if n.partition(".")[0] in ("LDG", "LDGSTS", "LD")}
    loaded = sum(int(n.rpartition(".")[2]) // 8 * c for n, c in wide.items() if n.rpartition(".")[2].isdigit()) * int(kernel["threads"])
    if any(n.startswith(("UBLKCP", "UTMALDG", "LDGSTS")) for n in counts):
        loaded = max(int(kernel["shared"]), loaded if "LDGSTS" not in " ".join(counts) else 0)
    return Bound(
        kernel["kernel"].partition("<")[0], grid / (blocks * device.sms), loaded * resident, int(kernel["registers"]), int(kernel["spills"]),
        str(kernel["occupancy"]["limiter"]), float(kernel["occupancy"]["percent"]),
    )


def needed(device: Device) -> int:
    """Bytes that a multiprocessor must have in flight to keep the memory busy."""
    from rooftop.core.devices import lookup

    sheet = lookup(device.name)
    return 0 if sheet is None else int(sheet.dram_bytes_per_second * LATENCY_S / device.sms)


def _config(subject: Subject, case: Any, device: Device) -> tuple[Any, str]:
    assert subject.implementation is not None
    problem = subject.kernel_problem(case, device)[1]
    config = subject.implementation.resolve(problem)[0]
    return config, label(subject.implementation.config_dict(config))


def config_of(run: sweep.Sweep, point: sweep_points.Point) -> str:
    """The config with which a call runs its kernel at a point."""
    mine = run.chosen(point)
    assert mine is not None
    return _config(mine, point.case(run.of), run.device)[1]


def rivals(run: sweep.Sweep, point: sweep_points.Point, every: bool = False) -> list[Subject]:
    """The other configs of the kernel that a call takes, and the other kernels with the config of their own, named by both. `every`: of all
    valid configs the FIRST, which are the best predicted where a kernel sorts them, and DRAWN others, and not those alone that tuning tries;
    of ops with rows OTHERS of each other kernel, too."""
    case, device, mine = point.case(run.of), run.device, run.chosen(point)
    found: dict[str, Subject] = {}
    if mine is None or mine.implementation is None:
        return []
    chosen = _config(mine, case, device)[1]
    for implementation in registry.implementations(run.op.name):
        subject = Subject(implementation.name, run.op, implementation)
        if implementation.backend not in BACKENDS or subject.supports(case, device) is not None:
            continue
        problem = subject.kernel_problem(case, device)[1]
        listed = getattr(getattr(implementation, "module", None), "every", implementation.configs) if every else implementation.configs
        drawn = random.Random(point.case(run.of).id)
        if implementation.name != mine.name:
            more = implementation.configs(problem) if every and run.of.rows else []
            configs = [implementation.configure(problem), *drawn.sample(more, min(OTHERS, len(more)))]
        else:
            configs = listed(problem)
        if every and len(configs) > FIRST + DRAWN:
            configs = [*configs[:FIRST], *drawn.sample(configs[FIRST:], DRAWN)]
        for config in configs:
            text = label(implementation.config_dict(config))
            if implementation.name != mine.name or text != chosen:
                found[f"{implementation.name} ({text})"] = replace(pinned(subject, config), name=f"{implementation.name} ({text})")
    others = [s for n, s in found.items() if not n.startswith(f"{mine.name} (")]
    return (others + [s for s in found.values() if s not in others])[: None if every else MOST]


def beside(run: sweep.Sweep, point: sweep_points.Point, others: list[Subject], say: Callable[[str], None]) -> dict[str, Any] | None:
    """A row of a sweep with the others timed beside what a call takes."""
    one = sweep.Sweep(run.op, run.of, [point], run.device, timer=run.timer, named=others, compiled=0, ceilings=run.ceilings)
    one.on, one.streams, one.kept, one.peers, one.slowest = run.on, run.streams, run.kept, run.peers, run.slowest
    row = one.row(0, say)
    run.wrong += one.wrong
    return row


def table(run: sweep.Sweep, found: Iterable[swept.Measured], count: int, budget_s: float) -> list[dict[str, Any]]:
    """The `count` worst points, of which rivals are timed as long as the budget lasts."""
    ends, rows = time.monotonic() + budget_s, []
    for p in sorted(found, key=lambda p: p.share)[:count]:
        point = next(q for q in run.points if dict(q.sizes) == dict(p.sizes) and q.dtype == p.dtype)
        rows.append({"point": p.title, "share": p.share, "us": p.seconds * 1e6, "kernel": p.by, **_said(run, point), **_better(run, point, p, ends)})
    return rows


def _said(run: sweep.Sweep, point: sweep_points.Point) -> dict[str, str]:
    case, mine = point.case(run.of), run.chosen(point)
    assert mine is not None
    names = {d.name for d in TARGETS.names.values()}
    target: int | str = run.device.name if run.device.name in names else run.device.arch
    facts = facts_of(mine, case, target)
    said = [bound(k, run.device) for k in facts.get("kernels", ())]
    text = "; ".join(f"{b.kernel + ': ' if len(said) > 1 else ''}{b.text}" for b in said)
    return {"config": _config(mine, case, run.device)[1], "bound": text or str(facts.get("refused", ""))}


def _better(run: sweep.Sweep, point: sweep_points.Point, p: swept.Measured, ends: float) -> dict[str, Any]:
    """The fastest rival, and how many times as fast it was as what a call takes, beside which it was timed."""
    if time.monotonic() > ends:
        return {"next": "not timed: the budget is spent", "faster": None}
    others = rivals(run, point)
    if run.on == "cuda":
        bench.compile_first([BenchGroup(run.op, point.case(run.of), others)], run.device)
    row = beside(run, point, others, lambda text: None)
    named = {s.name for s in others}
    times = {n: t for n, t in (row or {"peers": {}})["peers"].items() if n in named}
    if row is None or not times:
        return {"next": "there is no other", "faster": None}
    best = min(times, key=lambda n: times[n])
    return {"next": best, "faster": row["seconds"] / times[best]}
