"""One field: subjects that are timed together on one case. Its inputs, its candidates, its records."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from rooftop.core import registry
from rooftop.core.contract import Contract
from rooftop.core.cubins import AbsentCompiler
from rooftop.core.spec import Case, Device
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker, judgement
from rooftop.lab.check.result import Status
from rooftop.lab.inputs import make, on_gpu
from rooftop.lab.records import identity, store
from rooftop.lab.timing import peak_memory, roofline, streams
from rooftop.lab.timing.peak_memory import without_grad
from rooftop.lab.timing.throughput import compute_bound, rate
from rooftop.lab.timing.timer import Candidate, ImpossibleTime, Measurement, Timer, sets_needed

STREAM = "ceiling:"  # followed by copy or read: what is timed beside the kernels to hold them against
PART = "part:"  # followed by a name of the contract's `lower_bounds`
SLOW = 25.0  # times the fastest: what is slower than that runs in a field of its own, with the fastest beside it
LONGEST_S = 1.2  # one call that takes longer is not timed at that case
MEMORY = 0.75  # of the free device memory that input sets may take
DUTIES = ("auto", "normal", "burst", "sustained")


@dataclass
class BenchGroup:
    """Subjects that are timed together on one case."""

    op: Contract
    case: Case
    entries: list[Subject]
    ladder: str = ""

    @property
    def title(self) -> str:
        return f"{self.ladder or self.op.name}: {self.case.id}"


@dataclass
class Summary:
    """What a run did."""

    written: list[store.Record] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


class Bench:
    """One group: its inputs, its candidates, its records."""

    def __init__(
        self, f: BenchGroup, device: Device, timer: Timer, budget_s: float, clocks: Sequence[str], summary: Summary,
        copies: streams.Streams | None = None, ceilings: roofline.Ceilings | None = None, duty: Sequence[str] = ("auto",),
        proofs: Mapping[tuple[str, ...], store.Record] | None = None,
    ) -> None:
        self.streams, self.ceilings, self.duty = copies, ceilings or roofline.Ceilings(device.name), duty
        self.f, self.device, self.timer, self.budget_s, self.clocks, self.summary = f, device, timer, budget_s, clocks, summary
        self.problem = f.op.problem(f.case, device)
        self.work = f.op.work(self.problem).of_part(f.case.part)
        self.proofs = proofs or {}
        self.checks: dict[str, checker.Result] = {}
        self.errors: dict[str, dict[str, Any]] = {}
        self.memory: dict[str, int] = {}

    def write(self, writer: store.Writer) -> str:
        """Measures, writes a record of each, and says in a few lines what was found."""
        rows = [writer.write(row) for row in self.rows()]
        self.summary.written += rows
        said = [f"{len(rows)} records"]
        for r in rows:
            for name in ("kernel", "sustained"):
                if name in r.clocks and r.kind == "bench":
                    t = r.clocks[name]
                    duty = "" if t.duty == "normal" else f"  {t.duty}"
                    said.append(f"    {r.subject:40s} {t.median * 1e6:10.1f} us  {rate(r.work, t.median)}{duty}")
        return "\n".join(said)

    def rows(self) -> list[store.Record]:
        """Measures, and makes a record of each."""
        import torch

        able = self._able()
        if not any(s.implementation for s in able):
            return []
        self._check(able)
        able = [s for s in able if self.checks[s.name].status == "ok" or (s.peer is not None and self.checks[s.name].status == "wrong")]
        if not any(s.implementation for s in able):
            return []
        self.memory = peak_memory.of(
            self.f.op, self.f.case, able, {s.name: self._public(s) for s in able}, lambda s, tensors: self.kernel(s, [tensors]).calls[0]
        )
        size = max(sum(m.nbytes for _, m in self.problem.tensors if m is not None), 1)
        count = sets_needed(size, self.device.l2_bytes)
        free = torch.cuda.mem_get_info()[0] * MEMORY
        if count * size > free:
            self.summary.skipped.append(f"{self.f.title}: {count} input sets of {size >> 20} MiB do not fit the device")
            return []
        sets = [make(self.f.op, self.f.case, "cuda", seed)[0] for seed in range(count)]
        options = self.f.op.options(self.f.case)
        candidates = {s.name: self.candidate(s, sets, options) for s in able}
        # what is written into counts twice, and of a cache only what is appended counts
        moved = self.work.bytes if self.f.op.mutates else size
        copies = [] if moved < 1 << 20 or compute_bound(self.work) else self.copies(
            moved // 32 * 32, max(count, sets_needed(moved, self.device.l2_bytes))
        )
        once = self._once(candidates)
        able = [s for s in able if s.name in once]
        if not any(s.implementation for s in able):
            return []
        parts = self.parts(sets, options)
        fastest = min(once[s.name] for s in able)
        quick = [s for s in able if once[s.name] <= SLOW * fastest]
        slow = [s for s in able if SLOW * fastest < once[s.name] <= LONGEST_S]
        self.summary.skipped += [
            f"{s.name} at {self.f.case.id}: one call takes {once[s.name]:.2f} s" for s in able if once[s.name] > LONGEST_S
        ]
        times = {s.name: {} for s in able}  # type: dict[str, dict[str, Measurement]]
        for clock in self.clocks:
            budget = self.budget_s if clock == "kernel" else self.budget_s / 4
            extra = copies + parts if clock == "kernel" else []
            for duty in self._duties() if clock == "kernel" else ("normal",):
                self._measure(clock, [candidates[s.name] for s in quick] + extra, size, budget, times, duty=duty)
        if slow:
            leader = min(quick, key=lambda s: once[s.name])
            self._measure(
                "kernel", [candidates[s.name] for s in (leader, *slow)], size, self.budget_s, times, keep={s.name for s in slow},
                duty=self._duties()[0]
            )
        return [self._record(s, times[s.name]) for s in able if times[s.name]] + self._copy_row() + self._part_rows()

    def parts(self, sets: Sequence[dict[str, Any]], options: dict[str, Any]) -> list[Candidate]:
        """What the contract has timed beside its kernels, where it fits the case."""
        parts = []
        for name, factory in self.f.op.lower_bounds.items():
            c = Candidate(PART + name, [partial(without_grad, factory(), self.f.op.arguments(t, options)) for t in sets])
            try:
                parts += [c] if self._once({c.name: c}) else []
            except ValueError as error:
                self.summary.skipped.append(f"{name} at {self.f.case.id}: {error}")
        return parts

    def copies(self, size: int, count: int) -> list[Candidate]:
        """Plain copies of `size` bytes, read and written, or where hardly a byte is written plain reads: torch's, and that of ours which
        calibration found to be the fastest."""
        if self.streams is None:
            return []
        kind: roofline.Kind = "read" if 8 * self.work.write < self.work.read else "copy"
        ours = self.ceilings.fastest(kind, size) or next(iter(streams.VARIANTS))
        self.streams.reserve(size * count)
        copies = self.streams.candidates(kind, size, count, only=tuple({ours, streams.TORCH[kind]}))
        self.streams.reserve(0)  # the calls hold what they need
        return [Candidate(f"{STREAM}{kind} {c.name}", c.calls, floor=self.floor("kernel", moved=True)) for c in copies]

    def _able(self) -> list[Subject]:
        able = []
        for s in self.f.entries:
            reason = s.absent() if s.peer is not None else s.supports(self.f.case, self.device)
            if reason:
                self.summary.skipped.append(f"{s.name} at {self.f.case.id}: {reason}")
            else:
                able.append(s)
        return able

    def _check(self, able: Sequence[Subject]) -> None:
        """Judge all of `able`. Where records say of each what a check would, of a kernel that it is right, they stand: the reference can
        take longer than the timing."""
        import torch

        results = {
            s.name: r for s in able if (r := self.proofs.get((self.f.op.name, s.name, self.f.case.id, s.digest(self.f.case, self.device))))
        }
        if len(results) == len(able):
            for s in able:
                path = s.call(self.f.case, self.device).path if s.peer is None else ()
                status: Status = "ok" if results[s.name]["error"]["ok"] else "wrong"
                if s.peer is None and (reason := self._not_made(s)):
                    status = "skipped"
                    self.summary.skipped.append(f"{s.name} at {self.f.case.id}: {reason}")
                self.checks[s.name] = checker.Result(s.name, self.f.op.name, self.f.case.id, status, "gpu", path=path)
            self.errors = {name: record["error"] for name, record in results.items()}
            return
        expected = judgement.expect(self.f.op, self.f.case, "cuda", 1)
        for s in able:
            if s.peer is not None:
                result = checker.check_callable(self.f.op, self.f.case, s.function, name=s.name, device="cuda", expected=expected)
            else:
                result = checker.check(s, self.f.case, backend="gpu", expected=expected)
            self.checks[s.name] = result
            if result.status != "ok":
                findings = self.summary.wrong if s.peer is None and result.status != "skipped" else self.summary.skipped
                findings.append(f"{s.name} at {self.f.case.id}: {result.status}: {result.message}")
        del expected
        torch.cuda.empty_cache()

    def _not_made(self, s: Subject) -> str:
        """Why a kernel that was proven elsewhere cannot be compiled here: its language is not installed. Else empty."""
        import torch

        try:
            s.call(self.f.case, self.device).runner(torch.cuda.current_device())
        except AbsentCompiler as error:
            return str(error)
        return ""

    def candidate(self, s: Subject, sets: Sequence[dict[str, Any]], options: dict[str, Any]) -> Candidate:
        if s.peer is not None:
            function = s.function
            restore = self._restore(sets) if self.f.op.mutates else None
            return Candidate(s.name, [partial(without_grad, function, self.f.op.arguments(t, options)) for t in sets], restore=restore)
        return self.kernel(s, sets)

    def kernel(self, s: Subject, sets: Sequence[dict[str, Any]], config: Any = None) -> Candidate:
        """The kernel's own launches on each input set, in memory allocated beforehand. A set may bring outputs along, by name; `config`: in
        place of the one that the kernel chooses. What the op writes into is put back before each sample."""
        import torch

        call = s.call(self.f.case, self.device)
        call = call if config is None else call.with_config(config)
        run = call.runner(torch.cuda.current_device())
        runtime_values = {n: v for n, v in self.f.op.options(self.f.case).items() if n in self.f.op.runtime_options}

        def on(tensors: dict[str, Any]) -> Callable[[], Any]:
            memory = call.memory(
                call.given(tensors), runtime_values, lambda n, m: on_gpu(n, m) if tensors.get(n) is None else tensors[n]  # type: ignore[arg-type]
            )
            values = list(memory.values())

            def launch() -> Any:
                call.zero(memory)
                run(torch.cuda.current_stream().cuda_stream, values)
                return memory  # keeps the tensors alive

            return launch

        return Candidate(s.name, [on(t) for t in sets], restore=self._restore(sets) if call.op.mutates else None)

    def _restore(self, sets: Sequence[dict[str, Any]]) -> Callable[[], None]:
        before_call = [{n: t[n].clone() for n in self.f.op.mutates if t[n] is not None} for t in sets]

        def restore() -> None:
            for tensors, before in zip(sets, before_call, strict=True):
                for name, value in before.items():
                    tensors[name].copy_(value)

        return restore

    def _once(self, candidates: Mapping[str, Candidate]) -> dict[str, float]:
        """Seconds of one call of each; without the peers, and the parts, that the memory does not hold."""
        import torch

        results = {}
        for name, c in candidates.items():
            try:
                results[name] = self.once(c)
            except torch.OutOfMemoryError:
                if not name.startswith(("peer:", PART)):
                    raise
                self.summary.skipped.append(f"{name} at {self.f.case.id}: out of device memory")
                torch.cuda.empty_cache()
        return results

    def once(self, c: Candidate) -> float:
        """Seconds of one call, after one to warm up."""
        import torch

        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        c.calls[0]()
        start.record()
        c.calls[-1]()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3

    def _duties(self) -> tuple[str, ...]:
        """Of the kernel clock, the one that is called by its name first: of what is bound by arithmetic, how hot the card is decides."""
        if self.f.op.mutates:  # what a call overwrites is put back between samples, which leaves neither a burst nor a card at work
            return ("normal",)
        if tuple(self.duty) != ("auto",):
            return tuple(sorted(set(self.duty), key=DUTIES.index))
        return ("burst", "sustained") if compute_bound(self.work) else ("normal",)

    def _public(self, s: Subject) -> bool:
        """Whether the op's public function accepts it as `implementation`: a shipped kernel, not a rung or a user's file."""
        return s.rung is None and any(i.name == s.name for i in registry.implementations(self.f.op.name))

    def _measure(
        self, clock: str, candidates: Sequence[Candidate], size: int, budget_s: float, times: dict[str, dict[str, Measurement]],
        keep: set[str] | None = None, duty: str = "normal",
    ) -> None:
        if clock == "host":
            candidates = [c for c in candidates if c.name.startswith("peer:")] + self._eager()
        if not candidates:
            return
        import torch

        samples = (11, 401) if keep is None else (6, 12)
        m: Measurement | None = None
        while m is None:
            try:
                m = self.timer.measure(
                    candidates, clock,  # type: ignore[arg-type]
                    bytes_per_call=size, floor_seconds=self.floor(clock), budget_s=budget_s, samples=samples,
                    duty=duty,  # type: ignore[arg-type]
                )
            except ImpossibleTime as error:
                self.summary.wrong.append(f"{self.f.title}, {clock}: {error}")
                return
            except torch.OutOfMemoryError:  # a captured call holds its memory until the field ends
                if not any(c.name.startswith(("peer:", PART)) for c in candidates):
                    raise
                candidates = self._without_the_largest(candidates)
        for name in m.timings:
            if name in times and (keep is None or name in keep):
                times[name]["sustained" if duty == "sustained" else clock] = m
        if any(name.startswith(STREAM) for name in m.timings):
            self._copy = m
        if clock == "kernel" and keep is None:
            self._parts = {**self._parts, "sustained" if duty == "sustained" else clock: m}

    def _without_the_largest(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Without the peer, or else the part, that takes the most memory."""
        import torch

        heaviest = max((c for c in candidates if c.name.startswith(("peer:", PART))), key=lambda c: self.memory.get(c.name, 0))
        self.summary.skipped.append(f"{heaviest.name} at {self.f.case.id}: out of device memory, captured together with the others")
        gc.collect()
        torch.cuda.empty_cache()
        return [c for c in candidates if c is not heaviest]

    def _eager(self) -> list[Candidate]:
        """The op as a user calls it, for the host clock: one candidate an implementation."""
        calls = []
        tensors, options = make(self.f.op, self.f.case, "cuda", 0)
        for s in self.f.entries:
            if s.implementation is None or not self._public(s) or s.supports(self.f.case, self.device):
                continue
            args = self.f.op.arguments(tensors, options)
            calls.append(Candidate(s.name, [partial(self.f.op, *args, implementation=s.name)]))
        return calls

    def floor(self, clock: str, moved: bool = False) -> float:
        """Seconds below which no call can lie; `moved`: none that moves the bytes and computes nothing."""
        from rooftop.core.devices import floor_seconds, lookup, units

        sheet = lookup(self.device.name)
        if sheet is None or clock == "host":
            return 0.0
        dram = 0 if clock == "hot" else max(0, self.work.bytes - 2 * self.device.l2_bytes)
        elsewhere = units() - set(sheet.rates)  # units that this card has not: whoever computes the op on it uses others
        return floor_seconds(sheet, dram, {} if moved else {unit: n for unit, n in self.work.ops.items() if unit not in elsewhere})

    def _record(self, s: Subject, times: dict[str, Measurement]) -> store.Record:
        clocks = {
            clock: {**m[s.name].json(), "noise": m.noise, "duty": m.duty, "busy": m.busy, "reached": m.reached, "empty_s": m.empty_s}
            for clock, m in times.items()
        }
        some = next(iter(times.values()))
        record: store.Table = {
            "kind": "bench", "op": self.f.op.name, "case": self.f.case.id, "subject": s.name,
            **identity.facts(s, [self.f.case], self.device),
            "work": {"read": self.work.read, "write": self.work.write, "ops": dict(self.work.ops)}, "clocks": clocks, "versus": {},
            "error": self.errors.get(s.name) or self.checks[s.name].error(),
            "device": dict(some.device), "versions": store.versions(), "sensors": dict(some.sensors),
        }
        for clock, key in (("kernel", "versus"), ("sustained", "sustained_versus")):
            if clock in times:
                record[key] = _pairs(times[clock], s.name)
        if s.name in self.memory:
            record["memory"] = self.memory[s.name]
        if s.implementation is not None:
            _, seen = s.kernel_problem(self.f.case, self.device)
            config, source = s.implementation.resolve(seen)
            record |= {"config": s.implementation.config_dict(config), "config_from": source, "path": list(self.checks[s.name].path)}
        if s.head is not None:
            record["predict"] = dict(s.head.predict)
        return store.Record(record)

    _copy: Measurement | None = None
    _parts: Mapping[str, Measurement] = MappingProxyType({})

    def _part_rows(self) -> list[store.Record]:
        """The parts timed beside the kernels, a record each."""
        times: dict[str, dict[str, Measurement]] = {}
        for duty, m in self._parts.items():
            for name in (n for n in m.timings if n.startswith(PART)):
                times.setdefault(name, {})[duty] = m
        return [store.Record({
            "kind": "clock", "op": self.f.op.name, "case": self.f.case.id, "subject": name,
            "clocks": {duty: {**m[name].json(), "duty": m.duty} for duty, m in by.items()}, "device": dict(next(iter(by.values())).device),
            "versions": store.versions(), "sensors": dict(next(iter(by.values())).sensors),
        }) for name, by in times.items()]

    def _copy_row(self) -> list[store.Record]:
        """The plain copy, or read, of as many bytes, in the same field: a record of its own."""
        copy = fastest_copy(self._copy) if self._copy else None
        if self._copy is None or copy is None:
            return []
        t = self._copy[copy]
        every = {n.partition(" ")[2]: other.median for n, other in self._copy.timings.items() if n.startswith(STREAM)}
        return [store.Record({
            "kind": "clock", "op": self.f.op.name, "case": self.f.case.id, "subject": copy.partition(" ")[0], "by": copy.partition(" ")[2],
            "all": every, "clocks": {"kernel": t.json()}, "device": dict(self._copy.device),
            "versions": store.versions(), "work": {"read": self.work.read, "write": self.work.write, "ops": {}},
            "sensors": dict(self._copy.sensors),
        })]


def _pairs(m: Measurement, name: str) -> dict[str, Any]:
    """One candidate of a field against each of the others, and against the fastest copy."""
    versus = {other: m.compare(name, other).json() for other in m.timings if other != name and not other.startswith(STREAM)}
    if copy := fastest_copy(m):
        versus[copy.split()[0]] = m.compare(name, copy).json()
    return versus


def fastest_copy(m: Measurement) -> str | None:
    """The faster of the copies, or reads, in a field."""
    return min((n for n in m.timings if n.startswith(STREAM)), key=lambda n: m[n].median, default=None)
