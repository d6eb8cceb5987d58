"""`rooftop sweep`: an op timed between its cases, at points (rooftop.lab.timing.sweep_points), beside a copy and its peers.

A point takes about 0.05 s on the kernel clock; every candidate of a point is timed in turn with the others, as in a bench. The points of an
op are one record (rooftop.lab.timing.swept)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from rooftop.core import settings
from rooftop.core.call import select
from rooftop.core.contract import Contract
from rooftop.core.devices import lookup
from rooftop.core.spec import Device, Meta, Problem
from rooftop.core.sweeps import Sizes
from rooftop.lab.candidates import Subject
from rooftop.lab.inputs import by_name, make
from rooftop.lab.records import identity, store
from rooftop.lab.timing import bench, roofline, streams
from rooftop.lab.timing.bench_group import LONGEST_S as LONGEST_CALL_S
from rooftop.lab.timing.bench_group import STREAM, Bench, BenchGroup, Summary
from rooftop.lab.timing.sweep_points import MANY, Point, held
from rooftop.lab.timing.swept import made_by
from rooftop.lab.timing.timer import Candidate, ImpossibleTime, Timer, sets_needed

SAMPLED = ("torch.compile", "quack")  # peers that compile for every size: timed at a sample of the points
FAR_OFF = 0.05  # a result further than this from torch's, as a share of its norm, is wrong
BUDGET_S = 0.03  # of sampling a point
SAVE_S, SAVES = 1.0, 0.1  # between two records of the points that there are; and the share of the time that making them may take
LAUNCH_S = 20e-6  # of a launch from Python, which the time of one call contains
BY_CALLS = "a graph takes longer to capture than a point may last"


def aligned(problem: Problem) -> bool:
    """Whether every row of every tensor starts on 16 bytes."""

    def rows(m: Meta) -> bool:
        return all(s * m.itemsize % 16 == 0 for n, s in zip(m.shape[:-1], m.strides[:-1], strict=True) if n > 1 and s > 1)

    return all(rows(m) and m.align >= 16 for _, m in problem.tensors if m is not None)


class Sweep:
    """The points of an op on this machine's GPU.

    named      implementations to be timed beside what a call takes
    compiled   at how many points the peers that compile for every size are timed
    ceilings   of the card; None: from the records, which takes a second"""

    batch = 24  # points whose kernels are compiled together, before they are timed: a small budget does not reach all
    slowest = math.inf  # times the fastest of a point, by a call each: what is named and slower is timed no further

    def __init__(
        self, op: Contract, of: Sizes, points: Sequence[Point], device: Device, *, timer: Timer | None = None,
        named: Sequence[Subject] = (), compiled: int = 4, ceilings: roofline.Ceilings | None = None
    ) -> None:
        self.op, self.of, self.points, self.device, self.named = op, of, points, device, named
        self.wrong: list[str] = []
        self.ended = False  # whether a call has ended the CUDA context: nothing more runs in this process
        self.on = "cuda"
        self.streams: streams.Streams | None = None
        self.kept = 1 << 40
        if timer is None:
            timer, self.streams, self.kept = _on_this_gpu()
        self.timer = timer
        self.ceilings = ceilings or ceilings_of(device)
        peers = [s for n in op.peers if (s := Subject(f"peer:{n}", op, peer=n)).absent() is None]
        self.peers = [s for s in peers if s.peer not in SAMPLED]
        self.sampled = [s for s in peers if s.peer in SAMPLED]
        many = [i for i, p in enumerate(points) if not p.few] or list(range(len(points)))
        self.sample = {many[(2 * k + 1) * len(many) // (2 * compiled)] for k in range(min(compiled, len(many)))} if compiled else set()

    def chosen(self, point: Point) -> Subject | None:
        """What a call at this point takes; None: plain torch."""
        call = select(self.op, self.op.problem(point.case(self.of), self.device)).call
        return None if call is None else Subject(call.implementation.name, self.op, call.implementation)

    def fields(self, which: Iterable[int]) -> list[BenchGroup]:
        """The kernels of these points."""
        found = []
        for p in (self.points[i] for i in which):
            mine = self.chosen(p)
            found.append(BenchGroup(self.op, p.case(self.of), [*([mine] if mine else []), *self.named]))
        return found

    def compile(self, which: Iterable[int]) -> int:
        """Every kernel of these points, on all cores. How many programs."""
        return bench.compile_first(self.fields(which), self.device) if self.on == "cuda" else 0

    def run(self, budget_s: float, say: Callable[[str], None] = print, save: Callable[[store.Table], object] | None = None) -> store.Table:
        """The record. Points that the budget leaves no time for are left out, and those that raise, which `wrong` names.

        save   is given the record of the points that there are, about once a second while there come more"""
        began = saved = time.monotonic()
        apart = SAVE_S
        rows: list[dict[str, Any]] = []
        order, programs, compiling = list(_scattered_order(len(self.points))), 0, 0.0
        for k, i in enumerate(order):
            if k % self.batch == 0 and time.monotonic() - began <= budget_s:
                compiling -= time.monotonic()
                programs += self.compile(order[k : k + self.batch])
                compiling += time.monotonic()
            if time.monotonic() - began > budget_s:
                say(f"{self.op.name}: {len(self.points) - len(rows)} points left out: {budget_s:g} s are spent")
                break
            try:
                row = self.row(i, say)
            except Exception as error:
                self._report_wrong(say, f"{self.op.name} {self.points[i].case(self.of).id}: {first_line(error)}")
                row = None
            if row is None and self.on == "cuda" and context_lost():
                self.ended = True
                say(f"{self.op.name}: {len(self.points) - len(rows)} points left out: the CUDA context is lost")
                break
            if row is not None:
                rows.append({"index": i, **row})
                if save is not None and (now := time.monotonic()) - saved >= apart:
                    save(self._record(_in_order(rows)))
                    saved = time.monotonic()
                    apart = max(SAVE_S, (saved - now) / SAVES)
        spent = time.monotonic() - began - compiling
        say(f"{self.op.name}: {len(rows)} of {len(order)} points in {spent:.1f} s; {programs} programs compiled in {compiling:.1f} s")
        return self._record(_in_order(rows))

    def row(self, i: int, say: Callable[[str], None]) -> dict[str, Any] | None:
        """Point i, timed beside its peers and what is named; None where it cannot be, which `say` is told."""
        import torch

        point = self.points[i]
        case = point.case(self.of)
        mine = self.chosen(point)
        if mine is None:
            say(f"{self.op.name} {case.id}: no kernel takes it")
            return None
        if i in self.sample:
            torch.compiler.reset()  # past its limit of recompilations it would run a peer eagerly
        problem = self.op.problem(case, self.device)
        if torch.cuda.memory_reserved() > self.kept:
            torch.cuda.empty_cache()
        one = Bench(BenchGroup(self.op, case, []), self.device, self.timer, BUDGET_S, ("kernel",), Summary(), self.streams, self.ceilings)
        size = max(held(problem), 1)
        count = sets_needed(size, self.device.l2_bytes)
        try:
            sets = [make(self.op, case, self.on, 0)[0]]
            sets += [copied(sets[0]) for _ in range(count - 1)]  # a backward's tensors take a forward in float32 to make
            options = self.op.options(case)
            others = [s for s in self.named if s.supports(case, self.device) is None and s.name != mine.name]
            subjects = [mine, *others, *self.peers, *(self.sampled if i in self.sample else ())]
            candidates: list[Candidate] = []
            once: dict[str, float] = {}
            wrong = False
            for s in subjects:
                try:
                    made = one.candidate(s, sets, options)
                    result = made.calls[0]()
                    once[s.name] = one.once(made)
                    if once[s.name] > LONGEST_CALL_S:
                        continue
                except Exception as error:
                    if isinstance(error, torch.OutOfMemoryError):
                        if s.peer is None:
                            raise
                        torch.cuda.empty_cache()
                        continue  # a peer that needs more than there is stands beside no kernel here
                    if s.peer is None:
                        self._report_wrong(say, f"{s.name} {case.id}: {first_line(error)}")
                    if s is mine:
                        return None
                    continue
                if (s.peer == "torch" or s in others) and (why := differs(self.op, cast(Mapping[str, Any], candidates[0].calls[0]()), result)):
                    self._report_wrong(say, f"{mine.name if s.peer else s.name} {case.id}: {why}")
                    if s in others:  # a kernel that computes something else is no rival
                        continue
                    wrong = True
                del result
                candidates.append(replace(made, uncapturable=BY_CALLS))
            bytes_ = one.work.bytes
            slow = {s.name: t for s in others if (t := once.get(s.name, 0.0)) > self.slowest * min(once.values()) + LAUNCH_S}
            candidates = [c for c in candidates if c.name not in slow]
            copies = [] if size < 1 << 20 else one.copies(bytes_ // 32 * 32, count)
            field = [*candidates, *(replace(c, uncapturable=BY_CALLS) for c in copies)]
            duty = "normal" if self.op.mutates else "sweep"
            m = self.timer.measure(field, "kernel", bytes_per_call=size, floor_seconds=one.floor("kernel"), target=0.02, budget_s=BUDGET_S,
                                   duty=duty, samples=(6, 6))  # type: ignore[arg-type]
        except (torch.OutOfMemoryError, ImpossibleTime) as error:
            say(f"{self.op.name} {case.id}: {str(error).splitlines()[0]}")
            torch.cuda.empty_cache()
            return None
        copy = min((t.median for n, t in m.timings.items() if n.startswith(STREAM)), default=None)
        parts = dict(self.ceilings.roof(one.work.read, one.work.write, one.work.ops).parts)
        if copy is not None:
            parts["memory"] = copy
        return {
            "seconds": m[mine.name].median, "copy": copy, "roof": max(parts.values()), "noise": m.noise, "by": mine.name, "bytes": bytes_,
            "wrong": wrong, "aligned": aligned(problem), "peers": {n.removeprefix("peer:"): t.median for n, t in m.timings.items()
                                                   if n != mine.name and not n.startswith(STREAM)},
            "slow": slow, "timing_s": m.setup_s + m.elapsed_s,
        }

    def _report_wrong(self, say: Callable[[str], None], text: str) -> None:
        self.wrong.append(text)
        say(f"WRONG {text}")

    def _record(self, rows: Sequence[Mapping[str, Any]]) -> store.Table:
        points = [self.points[r["index"]] for r in rows]
        names = list(dict.fromkeys(r["by"] for r in rows))
        peers = list(dict.fromkeys(n for r in rows for n in r["peers"]))
        about = store.about(self.device)
        record: store.Table = {
            "kind": "sweep", "op": self.op.name, "subject": self.op.name, "device": about, "versions": store.versions(),
            "axis": self.of.axis, "sizes": {n: [dict(p.sizes)[n] for p in points] for n in self.of.ranges}, "dtypes": list(self.of.dtypes),
            "dtype": [self.of.dtypes.index(p.dtype) for p in points], "few": [int(p.few) for p in points],
            "aligned": [int(r["aligned"]) for r in rows], "bytes": [r["bytes"] for r in rows], "us": [_us(r["seconds"]) for r in rows],
            "copy_us": [_us(r["copy"]) for r in rows], "roof_us": [_us(r["roof"]) for r in rows],
            "noise": [round(r["noise"], 3) for r in rows], "implementations": names,
            "by": [names.index(r["by"]) for r in rows], "peers": {n: [_us(r["peers"].get(n)) for r in rows] for n in peers},
            "wrong": [i for i, r in enumerate(rows) if r["wrong"]], "named": [s.name for s in self.named],
        }
        made = {n: identity.facts(*mine, self.device) for n in dict.fromkeys((*names, *record["named"])) if (mine := made_by(store.Record(record), n))}
        return {**record, **{f"{key}s": {n: f[key] for n, f in made.items() if key in f} for key in ("digest", "source", "machine")}}


def copied(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The same values and layouts in other memory."""
    import torch

    return {n: None if t is None else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t) for n, t in tensors.items()}


def ceilings_of(device: Device) -> roofline.Ceilings:
    """Of a card, from the records."""
    return roofline.Ceilings.from_records(store.read(settings.load().results), device.name, lookup(device.name))


def context_lost() -> bool:
    """Whether the CUDA context of this process is gone: after a fault of a kernel, every call fails."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def first_line(error: Exception) -> str:
    """Its type, and the first line of what it says."""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


def _in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda r: int(r["index"]))


def _on_this_gpu() -> tuple[Timer, streams.Streams, int]:
    """A timer and streams on this machine's GPU, and how many bytes torch may keep of its memory from point to point."""
    import torch

    from rooftop.lab.timing.timer_cuda import CudaBackend

    index = torch.cuda.current_device()
    copies = streams.Streams(index)
    copies.keeps = 2 * MANY[1]
    return Timer(CudaBackend(index)), copies, torch.cuda.get_device_properties(index).total_memory // 2


def _us(seconds: float | None) -> float | None:
    """Microseconds to four digits."""
    return None if seconds is None else float(f"{seconds * 1e6:.4g}")


def _scattered_order(count: int) -> Iterable[int]:
    """All of range(count), so that what a spent budget leaves out lies anywhere."""
    step = next(s for s in range(max(1, round(count * 0.618)), count + 2) if math.gcd(s, count) == 1)
    return ((i * step) % count for i in range(count))


def differs(op: Contract, memory: Mapping[str, Any], result: Any) -> str | None:
    """None, or how far a kernel's result is from torch's, or from that of another kernel, a mapping as its own is. Exact outputs and those with
    a comparison of their own are left to `rooftop check`."""
    found, whose = ({n: result.get(n) for n in op.output_names}, "the other kernel") if isinstance(result, Mapping) else (by_name(op, result), "torch")
    for name, want in found.items():
        have = memory.get(name)
        if have is None or want is None or not have.is_floating_point():
            continue
        if op.tolerance_of(name).exact or name in op.compare or have.shape != want.shape:
            continue
        a, b = have.float(), want.float()
        off, norm = float((a - b).norm()), float(b.norm())
        if math.isfinite(norm) and not off <= FAR_OFF * max(norm, 1e-6):
            return f"{name} is {off / max(norm, 1e-6):.2g} of its norm away from {whose}'s"
    return None
