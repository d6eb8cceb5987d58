"""Times on a GPU. Of CUDA C++ this process compiles, launches and times the launches by the one timer: the submission's host code never
runs near it. Of Python the submission's process runs the calls, and the clock of this process decides."""

from __future__ import annotations

import base64
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core.child import ChildError
from rooftop.core.compile import Binary, CompileError, ToolchainError, compile_cuda
from rooftop.core.spec import DTYPES, Case, Launch
from rooftop.lab import sanitize
from rooftop.lab.judge import audit, cuda, python, score, sizes
from rooftop.lab.judge.forms import Submission
from rooftop.lab.judge.tasks import OpTask
from rooftop.lab.judge.verdict import Verdict
from rooftop.lab.simt import program, program_build
from rooftop.lab.simt.own_file import Code

if TYPE_CHECKING:
    from rooftop.lab.candidates import Subject
    from rooftop.lab.records.store import Record

CALLS = 20  # of a Python submission in one timed batch; another has twice as many
BATCHES = 5  # pairs of batches, of whose differences the median counts
IN_CONTEXT = "no host code of it ran; its kernels ran in this process's GPU context"


@dataclass(frozen=True)
class Timed:
    """A verdict with its time, and what an audit asks of it again."""

    verdict: Verdict
    checks: Mapping[str, audit.Check] = field(default_factory=dict)


def case_of(task: OpTask, device: str, records: Sequence[Record], takes: Callable[[Case], bool], dtype: str | None) -> Case | None:
    """The case to time: the one of the op's scale on the card, else its first bench case, that the submission takes."""
    for kind in (dtype,) if dtype else ("f32", "bf16", "f16"):
        scale = score.by_time(records, task.name, device, kind)
        if scale is not None and takes(task.op.case(scale.case)):
            return task.op.case(scale.case)
    return next((c for c in task.op.cases if "bench" in c.tags and dtype in (None, c.dtype) and takes(c)), None)


def _sets(task: OpTask, case: Case, l2_bytes: int) -> tuple[list[tuple[dict[str, Any], dict[str, Any]]], int]:
    """Inputs on the GPU, so many that the timer's rotation leaves the L2, and the bytes of one call."""
    from rooftop.lab.inputs import make
    from rooftop.lab.timing.timer import sets_needed

    size = max(sum(m.nbytes for _, m in task.op.problem(case).tensors if m is not None), 1)
    return [make(task.op, case, "cuda", secrets.randbits(40)) for _ in range(sets_needed(size, l2_bytes))], size


def _timer() -> tuple[Any, Any]:
    import torch

    from rooftop.core.implementation import device_of
    from rooftop.lab.timing.timer import Timer
    from rooftop.lab.timing.timer_cuda import CudaBackend

    return Timer(CudaBackend()), device_of(torch.cuda.current_device())


# -- CUDA C++ with a head --------------------------------------------------------------------------------------------


def of_head(verdict: Verdict, subject: Subject, case: Case) -> Timed:
    """As `rooftop bench` times it; checked at the case first."""
    from rooftop.lab.timing.bench_group import Bench, BenchGroup, Summary

    timer, device = _timer()

    def measured(clock: str) -> tuple[float | None, str]:
        summary = Summary()
        rows = Bench(BenchGroup(subject.op, case, [subject]), device, timer, 2.0, (clock,), summary).rows()
        row = next((r for r in rows if r.subject == subject.name and clock in r.clocks), None)
        return (row.clocks[clock].median, "") if row else (None, "; ".join((*summary.wrong, *summary.skipped))[:300])

    seconds, why = measured("kernel")
    verdict = replace(verdict, place="gpu", isolation=IN_CONTEXT, device=device.name, case=case.id, clock="kernel")
    if seconds is None:
        return Timed(
            replace(verdict, kind="impossible" if "could do it under" in why else "wrong" if "wrong" in why else "not judged", said=why)
        )
    checks: dict[str, audit.Check] = {"fresh inputs": partial(_fresh, subject, case), "a cold clock": partial(_cold, measured, seconds)}
    with contextlib.suppress(ToolchainError):
        sanitize.sanitizer()
        checks["compute-sanitizer"] = partial(_sanitized, subject)
    return Timed(replace(verdict, seconds=seconds), checks)


def _sanitized(subject: Subject) -> tuple[str, str]:
    """Under NVIDIA's tools, at the op's edge cases."""
    for finding in sanitize.run([subject], ("memcheck", "racecheck"), say=lambda _: None):
        if not finding.clean:
            kind = "race" if finding.tool == "racecheck" else "beyond"
            return (kind if finding.errors else "not judged"), f"{finding.tool}: {finding.first or finding.message}"
    return "right", ""


def _fresh(subject: Subject, case: Case) -> tuple[str, str]:
    from rooftop.lab.check import checker

    result = checker.check(subject, case, backend="gpu", seed=secrets.randbits(31))
    return ("right", "") if result.status == "ok" else (cuda.kind_of(result.status, result.message), result.message)


def _cold(measured: Callable[[str], tuple[float | None, str]], seconds: float) -> tuple[str, str]:
    """By events around single calls after the L2 was emptied: never faster than the rotation, beyond the noise."""
    cold, why = measured("cold")
    if cold is None:
        return "not judged", why
    return ("right", "") if cold >= (1 - score.AGREE) * seconds else audit.second_timer(seconds, cold)


# -- solve() ---------------------------------------------------------------------------------------------------------


class NotReplayedError(ValueError):
    """What a solve does between its launches cannot be done in its place."""


@dataclass(frozen=True)
class Fill:
    """A cudaMemset: `size` bytes of a tensor's memory."""

    tensor: str
    offset: int
    size: int
    value: int


Step = Launch | Fill


def recorded(solve: cuda.Solve, bytes_of: Mapping[str, int], numbers: Sequence[Any]) -> tuple[list[Step], dict[str, int]]:
    """What `solve` launches and fills with pointers of so many bytes, its kernels not run: the steps, and memory that it allocates itself
    (bytes by name). Its host code runs in the simulator's process, and sees no data. Raises NotReplayedError."""
    words = ["-", "0", *(str(bytes_of[p]) for p in solve.pointers), *(repr(n) if isinstance(n, float) else str(int(n)) for n in numbers)]
    run = program.run(solve.source, words, listed=True, most=cuda.MOST_SECONDS)
    if run.ended != "returned" or run.report.faults:
        raise NotReplayedError(f"its host code {run.ended}: {run.report.faults[0] if run.report.faults else run.status}")
    held = [e for e in run.journal if "at" in e]
    names = {(e["pc"], e["bytes"]): p for e, p in zip(held, solve.pointers, strict=False)}
    scratch = {f"scratch{i}": int(e["bytes"]) for i, e in enumerate(held[len(solve.pointers) :])}
    names |= {(e["pc"], e["bytes"]): f"scratch{i}" for i, e in enumerate(held[len(solve.pointers) :])}
    steps: list[Step] = []
    for e in run.journal:
        if "copied" in e:
            raise NotReplayedError(f"it copies {e['size']} bytes between its launches; kernels and cudaMemset alone are launched again")
        if "filled" in e:
            steps.append(Fill(names[e["filled"]["pc"], e["filled"]["bytes"]], e["filled"]["offset"], e["size"], e["value"]))
        elif "launch" in e:
            args, types = (
                zip(*(_argument(a, w, names) for a, w in zip(e["arguments"], e["widths"], strict=True)), strict=True)
                if e["arguments"]
                else ((), ())
            )
            cluster = tuple(e["cluster"]) if prod(e["cluster"]) > 1 else ()
            steps.append(
                Launch(
                    e["kernel"], tuple(e["grid"]), {str(i): a for i, a in enumerate(args)}, types=types, block=tuple(e["block"]),
                    cluster=cluster, shared=e["shared"], cooperative=e["cooperative"],
                )
            )
    if not any(isinstance(s, Launch) for s in steps):
        raise NotReplayedError("it launches no kernel")
    return steps, scratch


def _argument(said: Any, width: int, names: Mapping[tuple[int, int], str]) -> tuple[Any, str]:
    if isinstance(said, dict):
        if said["offset"]:
            return f"{names[said['pc'], said['bytes']]}+{said['offset']}", "ptr"
        return names[said["pc"], said["bytes"]], "ptr"
    if said is None:
        return 0, "ptr"
    try:
        kind = {(True, 4): "f32", (True, 8): "f64", (False, 4): "i32", (False, 8): "i64", (False, 1): "bool"}[isinstance(said, str), width]
        return (
            (float(said), kind)
            if isinstance(said, str)
            else (int(said) & 0xFFFFFFFF if said >= 1 << 31 and kind == "i32" else int(said), kind)
        )
    except (KeyError, ValueError):
        raise NotReplayedError(f"an argument of {width} bytes ({said}) cannot be passed again") from None


def compiled(solve: cuda.Solve, steps: Sequence[Step], target: str) -> Binary:
    """The machine code of what is launched: the file's device code, by NVRTC. Raises CompileError."""
    code = Code(program_build.Source(solve.source.path, solve.source.texts, solve.source.includes))
    kernels = list(dict.fromkeys(str(s.kernel) for s in steps if isinstance(s, Launch)))
    return compile_cuda(code.text(), name=solve.source.shown, target=target, kernels=kernels)


def replay(solve: cuda.Solve, steps: Sequence[Step], target: str) -> Callable[[Mapping[str, Any]], Callable[[], None]]:
    """Of memory by name a call that does the steps."""
    import torch

    from rooftop.core.launch import Module

    launches = [s for s in steps if isinstance(s, Launch)]
    module = Module(compiled(solve, steps, target))
    places = list(dict.fromkeys(a for x in launches for a in x.args.values() if isinstance(a, str)))
    device = torch.cuda.current_device()
    ready = [module.prepare(x, places, device) if isinstance(x, Launch) else x for x in steps]

    def bound(memory: Mapping[str, Any]) -> Callable[[], None]:
        addresses = [memory[p.partition("+")[0]].data_ptr() + int(p.partition("+")[2] or 0) for p in places]
        fills = {id(s): memory[s.tensor].view(-1).view(torch.uint8)[s.offset : s.offset + s.size] for s in steps if isinstance(s, Fill)}

        def call() -> None:
            for step in ready:
                if isinstance(step, Fill):
                    fills[id(step)].fill_(step.value)
                else:
                    step(torch.cuda.current_stream().cuda_stream, addresses)

        return call

    return bound


def of_solve(verdict: Verdict, solve: cuda.Solve, task: OpTask, rule: str, case: Case) -> Timed:
    """The recorded launches, compiled by NVRTC, on the card: timed, and their outputs judged."""
    import torch

    from rooftop.lab.timing.timer import Candidate, ImpossibleTime

    timer, device = _timer()
    sets, size = _sets(task, case, device.l2_bytes)
    calls = [task.call(case, *s) for s in sets[:1]]
    numbers = sizes.numbers_by(solve.numbers, calls[0], rule)
    verdict = replace(
        verdict, place="gpu", isolation=f"its host code ran in the simulator's process, without data; {IN_CONTEXT}", device=device.name,
        case=case.id, clock="kernel",
    )
    if numbers is None:
        return Timed(replace(verdict, notes=(*verdict.notes, f"no time: {case.id} has other sizes than this solve takes")))
    tensors, outputs = list(calls[0].tensors), dict(calls[0].outputs)
    names = dict(zip(solve.pointers, [*tensors, *outputs], strict=True))
    try:
        bytes_of = {
            p: sets[0][0][n].nbytes if n in calls[0].tensors else prod(outputs[n][0]) * DTYPES[outputs[n][1]].bytes
            for p, n in names.items()
        }
        steps, scratch = recorded(solve, bytes_of, numbers)
        bound = replay(solve, steps, device.target)
    except (NotReplayedError, CompileError) as error:
        return Timed(
            replace(verdict, kind="not judged", said=f"right in the simulator; on the card not: {' '.join(str(error).split())[:300]}")
        )

    def memory(tensors: Mapping[str, Any]) -> dict[str, Any]:
        made_of = {
            p: tensors[n]
            if n in calls[0].tensors
            else torch.empty(outputs[n][0], dtype=getattr(torch, DTYPES[outputs[n][1]].torch), device="cuda").fill_(-1)
            for p, n in names.items()
        }
        return made_of | {n: torch.empty(b, dtype=torch.uint8, device="cuda") for n, b in scratch.items()}

    held = [memory(s[0]) for s in sets]
    runs = [bound(m) for m in held]

    def judged(i: int) -> tuple[str, str]:
        call = task.call(case, *sets[i])
        before = {n: t.clone() for n, t in call.tensors.items()}
        for p, n in names.items():
            if n in outputs:
                held[i][p].fill_(-1)
        runs[i]()
        torch.cuda.synchronize()
        if any(not torch.equal(t, before[n]) for n, t in call.tensors.items() if n not in call.mutates):
            return "input changed", "an input was written"
        said = call.wrong({n: held[i][p] for p, n in names.items() if n in outputs})
        return ("wrong", said) if said else ("right", "")

    def timed(clock: str) -> float:
        try:
            return float(timer.measure([Candidate("submission", runs)], clock, bytes_per_call=size, budget_s=2.0)["submission"].median)
        except ImpossibleTime as error:
            return float(error.measurement["submission"].median)

    kind, said = judged(secrets.randbelow(len(sets)))
    if kind != "right":
        return Timed(replace(verdict, kind=kind, said=f"{case.id}: {said}"))
    seconds = timed("kernel")
    kind, said = judged(secrets.randbelow(len(sets)))
    if kind != "right":
        return Timed(replace(verdict, kind="replay", said=f"{case.id}, after it was timed: {said}"))
    return Timed(
        replace(verdict, seconds=seconds),
        {
            "fresh inputs": lambda: judged(secrets.randbelow(len(sets))),
            "a cold clock": lambda: _cold(lambda clock: (timed(clock), ""), seconds),
        },
    )


# -- Python ----------------------------------------------------------------------------------------------------------


def of_python(verdict: Verdict, submission: Submission, task: OpTask, case: Case) -> Timed:
    """Its process gets memory of this one's GPU context. From the moment that fresh inputs are there until the last output is, this
    process's clock counts; of twice as many calls less once as many, so that what starts and ends a batch is in neither. The copies of the
    outputs are timed here and taken off."""
    import torch

    _, device = _timer()
    sets, _ = _sets(task, case, device.l2_bytes)
    sets = (sets * 2)[: max(2, min(len(sets), 8))]
    calls = [task.call(case, *s) for s in sets]
    outputs = [{n: torch.empty(s, dtype=getattr(torch, DTYPES[d].torch), device="cuda") for n, (s, d) in c.outputs.items()} for c in calls]
    verdict = replace(verdict, place="gpu", device=device.name, case=case.id, clock="judge's")
    shared = [{n: _handle(t) for n, t in (*c.tensors.items(), *o.items())} for c, o in zip(calls, outputs, strict=True)]
    try:
        child = _child(submission, shared)
    except ChildError as error:
        return Timed(replace(verdict, kind="not judged", said=str(error)))
    with child:
        verdict = replace(verdict, isolation=child.isolation)
        if (failed := child.load()) is not None:
            return Timed(replace(verdict, kind=failed.kind, said=failed.said))
        torch.cuda.synchronize()
        chosen, before = secrets.randbelow(len(calls)), dict[str, Any]()

        def batch(count: int) -> tuple[float, float]:
            for c, o in zip(calls, outputs, strict=True):
                for t in c.tensors.values():
                    if t.is_floating_point():
                        t.copy_(t.view(-1).roll(secrets.randbelow(t.numel())).view_as(t))  # other contents than before, as likely
                for t in o.values():
                    t.fill_(-1)
            before.update({n: t.clone() for n, t in calls[chosen].tensors.items()})
            torch.cuda.synchronize()
            began = time.perf_counter()
            told = child.time(count, [list(c.tensors) for c in calls], [list(c.outputs) for c in calls])
            return time.perf_counter() - began, told

        pairs = []
        try:
            batch(len(calls))
            for _ in range(BATCHES):
                (one, a), (two, b) = batch(CALLS), batch(2 * CALLS)
                pairs.append(((two - one) / CALLS, (b - a) / CALLS))
        except ChildError as error:
            end = python.of_end(error)
            return Timed(replace(verdict, kind=end.kind, said=end.said))
        if any(not torch.equal(t, before[n]) for n, t in calls[chosen].tensors.items()):
            return Timed(replace(verdict, kind="input changed", said=f"{case.id}: an input was written"))
        if said := task.call(case, {**sets[chosen][0], **before}, sets[chosen][1]).wrong(outputs[chosen]):
            return Timed(replace(verdict, kind="wrong", said=f"{case.id}, after it was timed: {said}"))
        ours, theirs = (sorted(p[k] for p in pairs)[len(pairs) // 2] for k in (0, 1))
    if not score.clocks_agree(ours, theirs):
        return Timed(
            replace(verdict, kind="clocks differ", said=f"{ours * 1e6:.1f} us by the judge's clock, {theirs * 1e6:.1f} us by its events")
        )
    copies = _copies(outputs)
    return Timed(
        replace(
            verdict, seconds=max(ours - copies, 1e-9),
            notes=(*verdict.notes, f"launches of the host included; {copies * 1e6:.1f} us of copies taken off"),
        )
    )


def _copies(outputs: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of copying one call's outputs, on the device."""
    import torch

    other = [{n: torch.empty_like(t) for n, t in o.items()} for o in outputs]
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for turn in range(2):
        (begin if turn else end).record()
        for k in range(CALLS):
            for n, t in outputs[k % len(outputs)].items():
                other[k % len(outputs)][n].copy_(t)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3 / CALLS


def _child(submission: Submission, shared: Sequence[Mapping[str, Any]]) -> python.Child:
    """A process that has opened memory of the GPU: in bubblewrap, but where the driver opens none there. Raises ChildError."""
    child = python.Child(submission, gpu=True, opened=_counters(shared))
    why = child.open(shared)
    if why and child.bubble:
        child.end()
        child = python.Child(submission, gpu=True, opened=None)
        why = child.open(shared)
    if why:
        child.end()
        raise ChildError(f"another process cannot open memory of the GPU here: {why}")
    return child


def _counters(shared: Sequence[Mapping[str, Any]]) -> list[Path]:
    """The files in which torch counts who holds memory that processes share: whoever opens the memory opens them."""
    names = {base64.b64decode(h["storage"][4]).decode().strip("/\0") for one in shared for h in one.values()}
    return [f for n in sorted(names) if (f := Path("/dev/shm") / n).is_file()]


def _handle(tensor: Any) -> dict[str, Any]:
    """A tensor of the GPU as another process opens it."""
    parts = [base64.b64encode(p).decode() if isinstance(p, bytes) else p for p in tensor.untyped_storage()._share_cuda_()]
    return {
        "storage": parts, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "strides": list(tensor.stride()),
        "offset": tensor.storage_offset(),
    }
