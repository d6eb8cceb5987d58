"""The sizes at which `rooftop simt` runs a rung, an implementation or a file with a head: a case of its op, or what `--shape` says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.lab.cli import launched

if TYPE_CHECKING:
    from rooftop.core.spec import Case
    from rooftop.lab.candidates import Subject
    from rooftop.lab.simt import Report
    from rooftop.lab.simt.launching import Mode

LARGEST = 1 << 18  # elements of the inputs of a case that is taken where none is named


def registered(path: Path) -> bool:
    from rooftop.core import registry

    known = [f.path for f in registry.kernel_files()] + [r.path for n in registry.ladder_names() for r in registry.ladder(n).rungs]
    return any(path.samefile(p) for p in known)


def sizes(text: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name, size in map(_size, text.split(",")):
        if name in found:
            raise ValueError(f"--shape {text}: {name} is given twice")
        found[name] = size
    return found


def _size(part: str) -> tuple[str, tuple[Any, ...]]:
    name, equals, text = part.partition("=")
    numbers = text.split("x")
    if equals and all(n.strip().isdigit() for n in numbers):
        return name.strip(), tuple(int(n) for n in numbers)
    try:
        return name.strip(), (float(text),)  # a number of a head without an op, such as eps
    except ValueError:
        raise ValueError(
            f"--shape {part!r}: it is written NAME=SIZE or NAME=ROWSxCOLUMNS, of a number that is no size NAME=1e-5, with commas between"
        ) from None


def case(subject: Subject, name: str | None, sizes: dict[str, tuple[int, ...]]) -> Case:
    """The case named; else the largest that is small enough to wait for. `sizes` replace the shapes of its inputs."""
    from rooftop.core.spec import TARGETS, Input
    from rooftop.lab.check import checker as checks

    device = TARGETS[90]
    cases = checks.select_cases(subject, name=name)
    if not name:
        plain = [c for c in cases if all(i.fill == "normal" for _, i in c.tensors())]
        small = [c for c in plain if sizes or sum(checks.count(i) for _, i in c.tensors()) <= LARGEST]
        cases = sorted(small, key=lambda c: -sum(checks.count(i) for _, i in c.tensors()))
    if sizes:
        if broken := [n for n, v in sizes.items() if not all(isinstance(x, int) for x in v)]:
            raise ValueError(f"--shape {broken[0]}={sizes[broken[0]][0]}: {broken[0]} is a shape, of whole numbers")

        def resized(c: Case) -> Case:
            inputs: dict[str, Any] = {
                n: replace(v, shape=sizes[n]) if isinstance(v, Input) and n in sizes else v for n, v in c.inputs.items()
            }
            return replace(c, name="as given", inputs=inputs)

        having = [c for c in cases if set(sizes) <= {n for n, _ in c.tensors()}]  # a weight, say, is no input of every case
        if not having and cases:
            most = max(cases, key=lambda c: len(set(sizes) & {n for n, _ in c.tensors()}))
            unknown = sorted(set(sizes) - {n for n, _ in most.tensors()}) or sorted(sizes)
            example = ",".join(f"{n}={'x'.join(str(min(d, 64)) for d in v.shape)}" for n, v in most.tensors())
            raise ValueError(
                f"--shape names {', '.join(unknown)}; the inputs are {', '.join(n for n, _ in most.tensors())}, as in --shape {example}"
            )
        cases = [resized(c) for c in having]
    reasons = []
    for c in cases:
        reason = (_mismatch(subject, c) if sizes else None) or subject.supports(c, device)
        if reason is None and all(
            m is None or m.numel == 0 for n, m in subject.op.problem(c, device).tensors if n in subject.op.output_names
        ):
            reason = "the output is empty: nothing is launched"
        if reason is None:
            return c
        reasons.append(f"{c.id}: {reason}")
    raise ValueError(f"{subject.name} takes none of its cases here: {'; '.join(dict.fromkeys(reasons[:3]))}")


def _mismatch(subject: Subject, case: Case) -> str | None:
    """Why the op's maths cannot take inputs of these shapes and options, in torch's words; None where it can."""
    import torch

    from rooftop.core.spec import DTYPES, TARGETS, Input

    op = subject.op.forward or subject.op
    given: dict[str, Any] = dict.fromkeys(op.tensor_names)
    given |= {
        n: torch.empty(v.shape, dtype=getattr(torch, DTYPES[v.dtype].torch), device="meta") for n, v in case.inputs.items()
        if isinstance(v, Input)
    }
    try:
        op.reference(**given, **op.options(case))
        subject.kernel_problem(case, TARGETS[90])  # torch does not look at every dimension of tensors without values
    except NotImplementedError:  # an operation that has no shapes without values
        return None
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        options = "".join(f", {n}={v!r}" for n, v in op.options(case).items())
        shapes = ", ".join(f"{n} {'x'.join(map(str, v.shape))}" for n, v in case.tensors())
        why = "an option names a dimension that no input has" if isinstance(error, IndexError) else error
        return f"{op.name} cannot take {shapes}{options}: {why}"
    return None


def without_op(
    path: Path, sizes: dict[str, tuple[int, ...]], blocks: int | None, seed: int, schedules: int, check: bool
) -> tuple[str, dict[str, str], Report, Report | None]:
    """A file whose head names no op: its tensors are random, their sizes those of `--shape`."""
    from rooftop.core import head_text
    from rooftop.core.expressions import names
    from rooftop.core.head import NumberArg, TensorArg
    from rooftop.core.spec import TARGETS
    from rooftop.lab import simt as simulator
    from rooftop.lab.counters.jobs import Job, dimensions

    text = head_text.read(path)
    head = head_text.parse(text, path)
    known = dimensions(head)
    bound = {"arch", "card", "sms", *head.config, *head.let, *(a.name for a in head.args if isinstance(a, TensorArg))}
    free = {name for _, expression in head.expressions() for name in names(expression)} - bound  # may be given as well: options
    example = ",".join(f"{d}=1024" for d in sorted(known))
    if missing := sorted(known - set(sizes)):
        raise ValueError(f"{path} names no op: give the sizes of its dimensions ({', '.join(missing)} missing), as in --shape {example}")
    if broken := [n for n in sorted(known & set(sizes)) if not all(isinstance(v, int) for v in sizes[n])]:
        raise ValueError(f"--shape {broken[0]}={sizes[broken[0]][0]}: {broken[0]} is a size, a whole number")
    if unknown := sorted(set(sizes) - known - free):
        raise ValueError(
            f"--shape names {', '.join(unknown)}; the sizes in the head of {path} are {', '.join(sorted(known | free)) or 'all fixed'}"
        )
    for name, size in sizes.items():
        if len(size) != 1:
            raise ValueError(
                f"--shape {name}={'x'.join(map(str, size))}: {path} names no op, so {name} is one size, as in --shape {name}={size[0]}"
            )
    numbers = {name for a in head.args if isinstance(a, NumberArg) for name in names(a.expression)} & free - known
    if missing := sorted(numbers - set(sizes)):
        whole = ",".join([*(f"{n}={v[0]}" for n, v in sizes.items()), *(f"{n}=1" for n in missing)])
        raise ValueError(f"{path} names no op: give its numbers too ({', '.join(missing)} missing), as in --shape {whole}")
    device = TARGETS[90]
    job = Job(str(path.resolve()), "lines", 0, tuple((n, v[0]) for n, v in sizes.items()))

    def run(mode: Mode) -> Report:
        return simulator.run_launches(
            text, str(path), job.launches(device), job.memory(device, "cpu", seed), mode=mode, seed=seed, schedules=schedules,
            blocks=blocks,
            folders=head.folders,
        )

    counted, checked = launched.runs(run, check)
    return f"{path}, {job.title}" if sizes else str(path), {str(path): text}, counted, checked
