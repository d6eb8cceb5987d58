"""A submission's verdict: recognised, run apart at hidden calls, scored, placed, explained."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core.compile import CompileError
from rooftop.core.spec import Case
from rooftop.lab.ending import NoGpuError
from rooftop.lab.judge import audit, counts, cuda, forms, python, score, tasks
from rooftop.lab.judge.forms import Submission, SubmissionError
from rooftop.lab.judge.python import Outcome
from rooftop.lab.judge.tasks import OpTask, Task
from rooftop.lab.judge.verdict import Verdict
from rooftop.lab.simt.process import SimulatedCrash

if TYPE_CHECKING:
    from rooftop.lab.judge.timed import Timed
    from rooftop.lab.records.store import Record
    from rooftop.lab.simt.report import Report

ADVICE = 3  # lines of a kernel that are named
SIMULATED = "in the simulator's process: no file, network or other process"


def judge(
    word: str, op: str | None = None, *, reference: str | None = None, target: str | None = None, dtype: str | None = None,
    records: Sequence[Record] | None = None, place: Path | None = None,
) -> Verdict:
    """The verdict on a submission (`FILE.cu`, `FILE.py` or `FILE.py:NAME`).

    `op`: what it computes, or `reference`: FILE.py with a Model, or FILE.py:FUNCTION. `target`: a card to be timed on, as "h200", which
    must be here; None: the card that is here, or none. `records`: what a time is held against; None: those of the settings' folder.
    `place`: of a .cu with a head, the file whose folder has its includes.

    Raises SubmissionError for what is no submission, RegistryError for an unknown op, NoGpuError for a target that is not here, ValueError
    for options that do not fit together."""
    began = time.monotonic()
    device = _device(target)
    submission = forms.recognise(word, op or "")
    if submission.form == "head" and op is None and reference is None:
        op = _op_of_head(submission)
    if (op is None) == (reference is None):
        raise ValueError(
            f"{submission.path.name}: say what it computes, by --op NAME or by --reference FILE.py:NAME" + ("; not both" if op else "")
        )
    task: Task = OpTask(op, submission.form not in ("head", "module")) if op is not None else tasks.ReferenceTask(str(reference))
    try:
        verdict = _judged(submission, task, device, dtype, records, place)
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


def _device(target: str | None) -> str:
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

    found = head_text.parse(submission.text, str(submission.path)).op
    if found is None:
        raise SubmissionError(f"{submission.path}: its head names no op: give --op NAME, or --reference FILE.py:NAME")
    return found


def _judged(
    submission: Submission, task: Task, device: str, dtype: str | None, records: Sequence[Record] | None, place: Path | None
) -> Verdict:
    made = Verdict(submission.path.name, submission.digest, forms.SHOWN[submission.form], task.name, "not judged")
    if submission.form == "solve" and isinstance(task, OpTask):
        dtype = dtype or next(
            (
                cuda.TYPES.get(p.text.replace("const", "").replace("*", "").strip(), None)
                for p in (submission.solve.parameters if submission.solve else ())
            ),
            None,
        )
    if submission.form == "module":
        return _module(made, submission, task)
    if submission.form == "head":
        return _head(made, submission, task, device, dtype, records, place)
    if submission.form == "solve":
        made = replace(made, place="simulator", isolation=SIMULATED)
        outcome, solve, rule = cuda.of_solve(submission, task)
        made = _with(made, outcome)
        if not made.right:
            return made
        if device and isinstance(task, OpTask):
            return _on_card(
                made, task, device, dtype, records, lambda c: cuda.fits(solve, task.group(c, ("a",))[0]),
                lambda c: timed().of_solve(made, solve, task, rule, c),
            )
        return _counted_solve(made, solve, task, rule)
    if submission.form == "load_inline":
        return _with(replace(made, place="simulator", isolation=SIMULATED), cuda.of_inline(submission, task))
    return _python(made, submission, task, device, dtype, records)


def _with(made: Verdict, outcome: Outcome) -> Verdict:
    return replace(made, kind=outcome.kind, said=outcome.said, trials=outcome.trials, notes=(*made.notes, *outcome.notes))


# -- each form -------------------------------------------------------------------------------------------------------


def _module(made: Verdict, submission: Submission, task: Task) -> Verdict:
    """A kernel module of the package's own form, which only the package's call runs: judged as `rooftop check` does."""
    from rooftop.lab.check import apart
    from rooftop.lab.check.selection import Choice

    if not isinstance(task, OpTask):
        raise SubmissionError(f"{submission.path}: a kernel module is judged by --op")
    own = apart.Own(str(submission.path), Choice("cpu", secrets.randbits(31), huge=False, quick=True))
    made = replace(made, place="interpreter", isolation="not isolated: its module runs beside the reference, in a process of its own")
    trials, skipped = 0, ""
    try:
        for result, _ in own.results():
            if result.status == "skipped":
                skipped = result.message
                continue
            trials += 1
            if result.status != "ok":
                kind = cuda.kind_of(result.status, result.message)
                return replace(
                    made, kind="raises" if result.status == "error" and kind == "wrong" else kind, said=f"{result.case}: {result.message}",
                    trials=trials,
                )
    finally:
        own.end()
    return replace(made, kind="right", trials=trials) if trials else replace(made, said=skipped or "no case of it runs here")


def _head(
    made: Verdict, submission: Submission, task: Task, device: str, dtype: str | None, records: Sequence[Record] | None, place: Path | None
) -> Verdict:
    from rooftop.lab.check import own_op

    if not isinstance(task, OpTask):
        return _head_by_reference(made, submission, task)
    if own_op.is_program(place or submission.path):
        return replace(made, said="functions of its head are in a .py beside it: rooftop check judges it")
    made = replace(made, place="simulator", isolation=SIMULATED)
    try:
        outcome, subject = cuda.of_head(submission, task, dtype, place, "gpu" if device else "cpu")
    except (CompileError, SimulatedCrash) as error:
        return _with(made, Outcome("broken", " ".join(str(error).split())[:400]))
    made = _with(made, outcome)
    if device and made.right:
        from rooftop.core.implementation import device_of

        return _on_card(
            made, task, device, dtype, records, lambda c: subject.supports(c, device_of(0)) is None,
            lambda c: timed().of_head(made, subject, c),
        )
    if not made.right:
        return made
    for kind in (dtype,) if dtype else ("f32", "bf16", "f16"):
        if (scale := score.by_counts(task.name, kind, "cuda")) is None:
            continue
        assert subject.implementation is not None
        if subject.supports(scale[1], subject.implementation.stand_in(90)) is None:
            found, report = counts.of_subject(subject, scale[1])
            return _by_counts(made, found, report, *scale)
    return replace(made, notes=(*made.notes, f"no score: no ladder of {task.name} has counts at a case that it takes"))


def _head_by_reference(made: Verdict, submission: Submission, task: Task) -> Verdict:
    """A head that names no op, by a function of the judge's: as `rooftop check --reference` judges it."""
    from rooftop.lab.check import apart
    from rooftop.lab.check.selection import Choice

    assert isinstance(task, tasks.ReferenceTask)
    own = apart.Own(str(submission.path), Choice("cpu", secrets.randbits(31)), task.word)
    made, trials = replace(made, place="simulator", isolation=SIMULATED), 0
    try:
        for result, _ in own.results():
            if result.status in ("wrong", "error"):
                return replace(
                    made, kind=cuda.kind_of(result.status, result.message), said=f"{result.case}: {result.message}", trials=trials + 1
                )
            trials += result.status == "ok"
    finally:
        own.end()
    return replace(made, kind="right", trials=trials) if trials else replace(made, said="no case of it runs here")


def _counted_solve(made: Verdict, solve: cuda.Solve, task: Task, rule: str) -> Verdict:
    if not isinstance(task, OpTask):
        return replace(made, notes=(*made.notes, "no score: a reference has no ladder"))
    scale = score.by_counts(task.name, solve.dtypes[0], "cuda")
    if scale is None:
        return replace(made, notes=(*made.notes, f"no score: no ladder of {task.name} has counts of {solve.dtypes[0]}"))
    call = task.group(scale[1], ("a",))[0]
    sizes = cuda.numbers_of(solve, [call]).get(rule)
    if sizes is None or not cuda.fits(solve, call):
        return replace(made, notes=(*made.notes, f"no score: the ladder is counted at {scale[1].id}, which this solve does not take"))
    report = cuda.counted(solve, call, sizes)
    return _by_counts(made, counts.of_report(report), report, *scale)


def _python(made: Verdict, submission: Submission, task: Task, device: str, dtype: str | None, records: Sequence[Record] | None) -> Verdict:
    made = replace(made, place="interpreter" if submission.language == "triton" else "cpu")
    if submission.language in ("gluon", "cutile"):
        return replace(
            made,
            said=f"{submission.language} functions run on a GPU alone" + ("; as kernel modules rooftop bench times them" if device else ""),
        )
    kind, scale = dtype or "f32", None
    if isinstance(task, OpTask) and submission.language == "triton" and submission.name != "solve":
        scale = score.by_counts(task.name, kind, "triton") or score.by_counts(task.name, kind, "cuda")
    outcome, isolation = python.run(
        submission, task, dtype=dtype, counting=task.group(scale[1], ("a",))[0] if scale and isinstance(task, OpTask) else None
    )
    made = _with(replace(made, isolation=isolation), outcome)
    if not made.right:
        return made
    if device and isinstance(task, OpTask):
        tensors = {len(c.tensors) for g in task.groups(dtype, 1) for c in g}
        return _on_card(
            made, task, device, dtype, records, lambda c: len(list(c.tensors())) in tensors,
            lambda c: timed().of_python(made, submission, task, c),
        )
    if scale is None or not outcome.launches:
        return replace(
            made,
            notes=(
                *made.notes,
                "no score: there is no ladder with counts of it" if outcome.launches else "no score: it launches no kernel to count",
            ),
        )
    made = replace(made, notes=(*made.notes, "counted by the bytes of its lanes"))
    return _by_counts(made, counts.of_bytes(outcome.loaded, outcome.stored), None, *scale)


# -- score and place -------------------------------------------------------------------------------------------------


def _by_counts(made: Verdict, found: counts.Counts, report: Report | None, scale: score.Scale, case: Case) -> Verdict:
    from rooftop.lab.simt import verdict as sentences

    said = [str(s) for s in sentences.sentences(report)[:ADVICE]] if report is not None else []
    return replace(
        made, basis="counts", case=case.id, cost=found.cost, score=scale.score(found.cost), between=scale.between(found.cost),
        lacking=scale.lacking(found.cost), bound=found.bound, advice=tuple(said),
    )


def timed() -> Any:
    """The part that needs a GPU, loaded where there is one."""
    from rooftop.lab.judge import timed as found

    return found


def _on_card(
    made: Verdict, task: OpTask, device: str, dtype: str | None, records: Sequence[Record] | None, takes: Callable[[Case], bool],
    run: Callable[[Case], Timed],
) -> Verdict:
    """Timed at the case of the op's scale on this card, where the submission takes it."""
    if records is None:
        from rooftop.core import settings
        from rooftop.lab.records import store

        records = store.read(settings.load().results)
    case = timed().case_of(task, device, records, takes, dtype)
    if case is None:
        return replace(made, notes=(*made.notes, f"no time: no bench case of {task.name} fits what it takes"))
    found = run(case)
    return by_time(found.verdict, task, records, found.checks)


def by_time(made: Verdict, task: OpTask, records: Sequence[Record], checks: Mapping[str, audit.Check]) -> Verdict:
    """A time beside the rungs, the peers and the roof of the records: refused where it cannot be, audited where it is a record itself."""
    if made.seconds is None or not made.right:
        return made
    if made.seconds < (least := score.impossible(task.name, task.op.case(made.case), made.device)):
        return replace(
            made, kind="impossible", said=f"{made.seconds * 1e6:.2f} us; no {made.device} could do it under {least * 1e6:.2f} us",
            score=None,
        )
    scale = score.by_time(records, task.name, made.device, case=made.case)
    if scale is None:
        return replace(made, notes=(*made.notes, f"no score: no ladder of {task.name} was timed on {made.device} at {made.case}"))
    made = replace(
        made, basis="time", score=scale.score(made.seconds), roof_seconds=scale.roof, between=scale.between(made.seconds),
        lacking=scale.lacking(made.seconds), peer=f"{scale.peer[0]}, {scale.peer[1] * 1e6:.1f} us" if scale.peer else "",
        bound=_bound(made.seconds, scale.roof),
    )
    return audit.audited(made, min(t for _, t in scale.rungs), checks)


def _bound(seconds: float, roof: float) -> str:
    share = roof / seconds
    return f"{share:.0%} of the roof: " + (
        "near what the hardware allows" if share > 0.9 else "excess traffic, latency or too little in flight; rooftop diagnose tells which"
    )
