"""A submission's verdict: recognised, run apart at hidden calls, scored, placed, explained."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core import settings
from rooftop.core.compile import CompileError
from rooftop.core.implementation import device_of
from rooftop.core.spec import Case
from rooftop.lab.check import apart, own_op
from rooftop.lab.check.selection import Choice
from rooftop.lab.exit_codes import NoGpuError
from rooftop.lab.judge import audit, counts, cuda, forms, python, score, sizes, tasks
from rooftop.lab.judge.forms import Submission, SubmissionError
from rooftop.lab.judge.python import Outcome
from rooftop.lab.judge.tasks import OpTask, Task
from rooftop.lab.judge.verdict import Verdict
from rooftop.lab.records import store
from rooftop.lab.simt.process import SimulatedCrash

if TYPE_CHECKING:
    from rooftop.lab.judge.timed import Timed
    from rooftop.lab.records.store import Record
    from rooftop.lab.simt.report import Report

SECONDS = 90  # that a step of a submission may take: to compile, or a call
ADVICE = 3  # lines of a kernel that are named
BESIDE = "not isolated: it runs beside the reference, in a process of its own"
SIMULATED = "in the simulator's process: no file, network or other process"


def judge(
    word: str, op: str | None = None, *, reference: str | None = None, target: str | None = None, dtype: str | None = None,
    records: Sequence[Record] | None = None, place: Path | None = None, say: Callable[[str], None] = lambda text: None,
) -> Verdict:
    """The verdict on a submission (`FILE.cu`, `FILE.py` or `FILE.py:NAME`).

    `op`: what it computes, or `reference`: FILE.py with a Model, or FILE.py:FUNCTION. `target`: a card to be timed on, as "h200", which
    must be here; None: the card that is here, or none. `records`: what a time is held against; None: those of the settings' folder.
    `place`: of a .cu with a head, the file whose folder has its includes. `say` is told what is done next.

    Raises SubmissionError for what is no submission, RegistryError for an unknown op, NoGpuError for a target that is not here, ValueError
    for options that do not fit together."""
    began = time.monotonic()
    device = card(target)
    submission = forms.recognise(word, op or "")
    if submission.form == "head" and op is None and reference is None:
        op = _op_of_head(submission)
    if (op is None) == (reference is None):
        raise ValueError(
            f"{submission.path.name}: say what it computes, by --op NAME or by --reference FILE.py:NAME" + ("; not both" if op else "")
        )
    task: Task = OpTask(op, submission.form not in ("head", "module")) if op is not None else tasks.ReferenceTask(str(reference))
    try:
        made = Verdict(submission.path.name, submission.digest, forms.SHOWN[submission.form], task.name, "not judged")
        say(f"{made.form}: called at hidden shapes and seeds")
        with settings.within(simt_seconds=SECONDS, step_seconds=SECONDS):
            verdict = _judged(Request(submission, task, device, dtype, records, place, made, say))
    finally:
        task.close()
    from rooftop.lab.records.software import versions

    return replace(
        verdict,
        versions={
            n: str(v) for n, v in versions().items() if n in ("torch", "triton", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc", "driver")
        },
        took=time.monotonic() - began,
    )


def card(target: str | None) -> str:
    """The card that a submission is timed on; empty without one. Raises NoGpuError."""
    import torch

    here = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    if target is None or target == "cpu":
        return "" if target == "cpu" else here
    from rooftop.core.devices import slug
    from rooftop.lab.inspect import inspector

    wanted = inspector.device_of(target).name
    if not here or slug(wanted) != slug(here):
        raise NoGpuError(
            f"--target {target}: {f'the card here is {here}' if here else 'there is no GPU here'}; without --target it is judged by counts"
        )
    return here


def _op_of_head(submission: Submission) -> str:
    from rooftop.core import head_text

    op = head_text.parse(submission.text, str(submission.path)).op
    if op is None:
        raise SubmissionError(f"{submission.path}: its head names no op: give --op NAME, or --reference FILE.py:NAME")
    return op


@dataclass(frozen=True)
class Request:
    """What `judge` was asked, and the verdict so far. `device`: the card that is here, or empty."""

    submission: Submission
    task: Task
    device: str
    dtype: str | None
    records: Sequence[Record] | None
    place: Path | None
    made: Verdict
    say: Callable[[str], None]

    def says(self, outcome: Outcome, **more: Any) -> Verdict:
        verdict = replace(self.made, **more)
        return replace(verdict, kind=outcome.kind, said=outcome.said, trials=outcome.trials)


def _judged(request: Request) -> Verdict:
    form, task = request.submission.form, request.task
    if form == "module" or (form == "head" and (not isinstance(task, OpTask) or own_op.is_program(request.place or request.submission.path))):
        return _apart(request)
    if form == "head":
        return _head(request)
    if form == "solve":
        return _solve(request)
    if form == "load_inline":
        return request.says(cuda.of_inline(request.submission, task), place="simulator", isolation=SIMULATED)
    return _python(request)


# -- each form -------------------------------------------------------------------------------------------------------


def _apart(request: Request) -> Verdict:
    """What only the package's own call runs: a kernel module, a head with functions in a .py beside it, or one that a function judges. As
    `rooftop check`."""
    path, task = request.submission.path, request.task
    if request.submission.form == "module" and not isinstance(task, OpTask):
        raise SubmissionError(f"{path}: a kernel module is judged by --op")
    reference = task.word if isinstance(task, tasks.ReferenceTask) else None
    own = apart.Own(str(path), Choice("cpu", secrets.randbits(31), huge=False, quick=True), reference)
    simulated = request.submission.form == "head" and not own_op.is_program(path)
    where = {"place": "simulator", "isolation": SIMULATED} if simulated else {"place": "cpu", "isolation": BESIDE}
    trials, said = 0, "no case of it runs here"
    try:
        for result, _ in own.results():
            trials += result.status != "skipped"
            said = result.message if result.status == "skipped" else said
            if result.status not in ("ok", "skipped"):
                return request.says(
                    Outcome(cuda.kind_of(result.status, result.message), f"{result.case}: {result.message}", trials=trials), **where
                )
    finally:
        own.end()
    return request.says(Outcome("right" if trials else "not judged", "" if trials else said, trials=trials), **where)


def _head(request: Request) -> Verdict:
    task = request.task
    assert isinstance(task, OpTask)
    try:
        outcome, subject = cuda.of_head(request.submission, task, request.dtype, request.place, "gpu" if request.device else "cpu")
    except (CompileError, SimulatedCrash) as error:
        return request.says(Outcome("broken", " ".join(str(error).split())[:400]))
    verdict = request.says(outcome, place="simulator", isolation=SIMULATED)
    if not verdict.right:
        return verdict
    if request.device:
        return _on_card(request, verdict, lambda c: subject.supports(c, device_of(0)) is None, lambda c: timed().of_head(verdict, subject, c))
    for kind in (request.dtype,) if request.dtype else ("f32", "bf16", "f16"):
        scale = score.by_counts(task.name, kind, "cuda")
        if scale is not None and subject.implementation and subject.supports(scale[1], subject.implementation.stand_in(90)) is None:
            request.say("right; counted beside the ladder's rungs")
            return _by_counts(request, verdict, *counts.of_subject(subject, scale[1]), *scale)
    return _noted(verdict, f"no score: no ladder of {task.name} has counts at a case that it takes")


def _solve(request: Request) -> Verdict:
    task = request.task
    outcome, solve, rule = cuda.of_solve(request.submission, task)
    verdict = request.says(outcome, place="simulator", isolation=SIMULATED)
    if not verdict.right or not isinstance(task, OpTask):
        return verdict
    if request.device:
        return _on_card(request, verdict, lambda c: cuda.fits(solve, task.op, c), lambda c: timed().of_solve(verdict, solve, task, rule, c))
    scale = score.by_counts(task.name, solve.dtypes[0], "cuda")
    if scale is None:
        return _noted(verdict, f"no score: no ladder of {task.name} has counts of {solve.dtypes[0]}")
    call = task.group(scale[1], ("a",))[0]
    numbers = sizes.numbers_by(solve.numbers, call, rule)
    if numbers is None or not cuda.fits(solve, task.op, scale[1]):
        return _noted(verdict, f"no score: the ladder is counted at {scale[1].id}, which this solve does not take")
    request.say("right; counted beside the ladder's rungs")
    report = cuda.counted(solve, call, numbers)
    return _by_counts(request, verdict, counts.of_report(report), report, *scale)


def _python(request: Request) -> Verdict:
    submission, task, kind = request.submission, request.task, request.dtype or "f32"
    where = "interpreter" if submission.language == "triton" else "cpu"
    if submission.language in ("gluon", "cutile"):
        return request.says(
            Outcome("not judged", f"{submission.language} functions run on a GPU alone; as kernel modules rooftop bench times them")
        )
    scale = None
    if isinstance(task, OpTask) and submission.language == "triton" and not request.device:
        scale = score.by_counts(task.name, kind, "triton") or score.by_counts(task.name, kind, "cuda")
    counting = task.group(scale[1], ("a",))[0] if scale and isinstance(task, OpTask) else None
    outcome, isolation = python.run(submission, task, dtype=request.dtype, counting=counting)
    verdict = request.says(outcome, place=where, isolation=isolation)
    if not verdict.right:
        return verdict
    if request.device and isinstance(task, OpTask):
        tensors = {len(c.tensors) for g in task.groups(request.dtype, 1) for c in g}
        return _on_card(request, verdict, lambda c: len(list(c.tensors())) in tensors, lambda c: timed().of_python(verdict, submission, task, c))
    if scale is None or not outcome.launches:
        return _noted(
            verdict, "no score: there is no ladder with counts of it" if outcome.launches else "no score: it launches no kernel to count"
        )
    return _by_counts(request, _noted(verdict, "counted by the bytes of its lanes"), counts.of_bytes(outcome.loaded, outcome.stored), None, *scale)


def _noted(verdict: Verdict, note: str) -> Verdict:
    return replace(verdict, notes=(*verdict.notes, note))


# -- score and place -------------------------------------------------------------------------------------------------


def _by_counts(request: Request, verdict: Verdict, cost: counts.Counts, report: Report | None, scale: score.Scale, case: Case) -> Verdict:
    from rooftop.lab.simt import verdict as sentences

    said = [str(s) for s in sentences.sentences(report)[:ADVICE]] if report is not None else []
    lines = counts.by_line(report, request.place or request.submission.path) if report is not None else ()
    return replace(
        verdict, basis="counts", case=case.id, cost=cost.cost, score=scale.score(cost.cost), between=scale.between(cost.cost),
        lacking=scale.lacking(cost.cost), bound=cost.bound, advice=tuple(said), lines=lines,
    )


def timed() -> Any:
    """The part that needs a GPU, loaded where there is one."""
    from rooftop.lab.judge import timed as found

    return found


def _on_card(request: Request, verdict: Verdict, takes: Callable[[Case], bool], run: Callable[[Case], Timed]) -> Verdict:
    """Timed at the case of the op's scale on this card, where the submission takes it."""
    task, records = request.task, request.records
    assert isinstance(task, OpTask)
    if records is None:
        records = store.read(settings.load().results)
    case = timed().case_of(task, request.device, records, takes, request.dtype)
    if case is None:
        return _noted(verdict, f"no time: no bench case of {task.name} fits what it takes")
    request.say(f"right; timed on {request.device}")
    result = run(case)
    return by_time(result.verdict, task, records, result.checks)


def by_time(verdict: Verdict, task: OpTask, records: Sequence[Record], checks: Mapping[str, audit.Check]) -> Verdict:
    """A time beside the rungs, the peers and the roof of the records: refused where it cannot be, audited where it is a record itself."""
    if verdict.seconds is None or not verdict.right:
        return verdict
    if verdict.seconds < (least := score.impossible(task.name, task.op.case(verdict.case), verdict.device)):
        return replace(
            verdict, kind="impossible", said=f"{verdict.seconds * 1e6:.2f} us; no {verdict.device} could do it under {least * 1e6:.2f} us",
            score=None,
        )
    scale = score.by_time(records, task.name, verdict.device, case=verdict.case)
    if scale is None:
        return _noted(verdict, f"no score: no ladder of {task.name} was timed on {verdict.device} at {verdict.case}")
    verdict = replace(
        verdict, basis="time", score=scale.score(verdict.seconds), roof_seconds=scale.roof, between=scale.between(verdict.seconds),
        lacking=scale.lacking(verdict.seconds), peer=f"{scale.peer[0]}, {scale.peer[1] * 1e6:.1f} us" if scale.peer else "",
        bound=_bound(verdict.seconds, scale.roof),
    )
    return audit.audited(verdict, min(t for _, t in scale.rungs), checks)


def _bound(seconds: float, roof: float) -> str:
    share = roof / seconds
    return f"{share:.0%} of the roof: " + (
        "near what the hardware allows" if share > 0.9 else "excess traffic, latency or too little in flight; rooftop diagnose tells which"
    )
