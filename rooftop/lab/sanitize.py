"""Kernels under NVIDIA's compute-sanitizer: every access within bounds (memcheck), no races in shared memory (racecheck), barriers reached
by all (synccheck).

Each subject runs in a process of its own for each tool, several side by side. torch's caching allocator is off, so that every tensor is an
allocation whose exact end the sanitizer knows: inside the allocator's pool an overrun goes unseen. Only the subject's kernels are watched,
by their symbols: torch's own, which make the inputs and compare, are slow to watch, and racecheck reports hazards in its reductions. A tool
is believed only after it has found the faults planted for it (`rooftop/kernels/_planted`), in the same run, by the same command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.compile import ToolchainError
from rooftop.core.spec import Case, Device, Input
from rooftop.lab import candidates
from rooftop.lab.aot import word_of
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.exit_codes import gpu_for
from rooftop.lab.records import identity, store

PLANTED = settings.PACKAGE / "kernels" / "_planted"
TOOLS: Mapping[str, tuple[str, ...]] = {  # tool -> the planted faults that it must find
    "memcheck": ("overrun.cu", "add__overrun__triton.py"),
    "racecheck": ("race.cu",),
    "synccheck": ("divergent.cu",),
}
ELEMENTS = 1 << 21  # of all inputs of a case: instrumented code is some hundred times slower
AT_ONCE = 8  # processes on one GPU: each holds a context of some 500 MB
TIMEOUT_S = 400.0
BARRIERS = 65536  # mbarriers that synccheck tracks: two a block of those that run and have run
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
_RESULTS = "rooftop-sanitize-results "


@dataclass(frozen=True)
class Found:
    """One subject under one tool. `errors`: what the tool counted; None where it did not come to its summary (`message` says why)."""

    subject: str
    op: str
    tool: str
    errors: int | None
    first: str  # the first finding in the tool's words
    cases: tuple[str, ...]  # those that ran
    message: str = ""

    @property
    def clean(self) -> bool:
        return self.errors == 0 and not self.message


def sanitizer() -> Path:
    """Raises ToolchainError where it is not to be found."""
    found = settings.tool_path("compute-sanitizer")
    for path in (found, Path("/usr/local/cuda/bin/compute-sanitizer")):
        if path is not None and path.is_file():
            return path
    raise ToolchainError("compute-sanitizer is not on PATH: it is part of the CUDA toolkit (rooftop doctor)")


def select_cases(subject: Subject, device: Device, name: str | None = None) -> list[Case]:
    """The edge cases that the subject takes and that are small enough; with a name, that case whatever its size."""
    chosen = checker.select_cases(subject, name=name, tags=() if name else ("edge",))
    return [c for c in chosen if (name or ("huge" not in c.tags and _elements(c) <= ELEMENTS)) and subject.supports(c, device) is None]


def _elements(case: Case) -> int:
    return sum(checker.count(v) for v in case.inputs.values() if isinstance(v, Input))


def run(
    found: Sequence[Subject],
    tools: Sequence[str] = tuple(TOOLS),
    *,
    case: str | None = None,
    writer: store.Writer | None = None,
    say: Callable[[str], None] = print,
) -> list[Found]:
    """Every subject under every tool, the planted faults first. Writes a `sanitize` record for each that came to its end.

    Raises NoGpuError, ToolchainError where the sanitizer is absent or does not find a planted fault, ValueError for an unknown tool."""
    import torch

    from rooftop.core.implementation import device_of

    for tool in tools:
        if tool not in TOOLS:
            raise ValueError(f"tool {tool!r} is not one of {', '.join(TOOLS)}")
    gpu_for("sanitize")
    program = sanitizer()
    device = device_of(torch.cuda.current_device())
    faults = [(candidates.find([str(PLANTED / file)])[0], tool) for tool in tools for file in TOOLS[tool]]
    jobs: list[tuple[Subject, str, tuple[str, ...]]] = [(fault, tool, ("odd f32",)) for fault, tool in faults]
    for subject in found:
        ids = tuple(c.id for c in select_cases(subject, device, case))
        if subject.implementation is not None and ids:
            jobs += [(subject, tool, ids) for tool in tools]
        elif subject.implementation is not None:
            say(f"{subject.name}: none of its edge cases can run on {device.name}")
    planted = {(s.name, t) for s, t in faults}
    results: list[Found] = []
    with ThreadPoolExecutor(min(AT_ONCE, max(2, settings.load().jobs // 2))) as pool:
        waiting = {pool.submit(_one, program, s, tool, ids, device): s for s, tool, ids in jobs}
        for done in as_completed(waiting):
            subject, one = waiting[done], done.result()
            if (one.subject, one.tool) in planted:
                if not one.errors:
                    pool.shutdown(cancel_futures=True)
                    raise ToolchainError(
                        f"{one.tool} did not find the fault planted in {subject.name}: its word is worth nothing here. {one.message}"
                    )
                say(f"{one.tool}: found the planted fault ({one.first.splitlines()[0] if one.first else one.errors})")
                continue
            results.append(one)
            say(
                f"{one.subject}, {one.tool}: " + ("clean" if one.clean else one.message or f"{one.errors} errors")
                + f", {len(one.cases)} cases"
            )
            if writer is not None and one.errors is not None and one.cases:
                writer.write(_record(one, subject, device))
    return sorted(results, key=lambda r: (r.subject, r.tool))


def _record(one: Found, subject: Subject, device: Device) -> store.Table:
    return {
        "kind": "sanitize", "op": one.op, "subject": one.subject, "case": one.tool, "cases": list(one.cases),
        **identity.facts(subject, [subject.op.case(name) for name in one.cases], device),
        "errors": one.errors, "first": one.first, "message": one.message,
        "device": store.about(device), "versions": store.versions(),
    }


def symbols(subject: Subject, ids: Sequence[str], device: Device) -> set[str]:
    """The kernels of these cases as the driver calls them. Compiles CUDA C++ that was not compiled before."""
    implementation = subject.implementation
    assert implementation is not None
    found: set[str] = set()
    for name in ids:
        _, problem = subject.kernel_problem(subject.op.case(name), device)
        kernels = [x.kernel for x in implementation.launches(problem, implementation.resolve(problem)[0])]
        if isinstance(implementation, CudaImplementation):
            found |= set(implementation.compile(kernels, problem.device.target).names.values())
        else:
            found |= {k.__name__ for k in kernels}
    return found


def _one(program: Path, subject: Subject, tool: str, ids: Sequence[str], device: Device) -> Found:
    only = [part for symbol in sorted(symbols(subject, ids, device)) for part in ("--kernel-name", f"kne={symbol}")]
    command = [
        str(program), "--tool", tool, "--report-api-errors", "no", "--target-processes", "application-only", "--print-limit", "20",
        *(("--num-cuda-barriers", str(BARRIERS)) if tool == "synccheck" else ()), *only, sys.executable, "-m", "rooftop.lab.sanitize",
        word_of(subject), subject.op.name, *ids,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Found(subject.name, subject.op.name, tool, None, "", (), f"not at its end after {TIMEOUT_S:.0f} s")
    return parse(subject.name, subject.op.name, tool, done.stdout, done.stderr)


def parse(subject: str, op: str, tool: str, output: str, stderr: str = "") -> Found:
    """What one process under the sanitizer printed."""
    summary = [next(g for g in m.groups() if g) for m in _SUMMARY.finditer(output)]
    line = next((text for text in output.splitlines() if text.startswith(_RESULTS)), None)
    statuses: dict[str, list[str]] = json.loads(line.removeprefix(_RESULTS)) if line else {}
    ran = tuple(name for name, (status, _) in statuses.items() if status != "skipped")
    first = _first(output)
    if not summary:
        tail = (stderr or output).strip().splitlines()[-1:]
        return Found(subject, op, tool, None, first, ran, f"no summary: {tail[0] if tail else 'no output'}")
    errors = sum(map(int, summary))
    wrong = [f"{name} is {status}: {message}" for name, (status, message) in statuses.items() if status in ("wrong", "error")]
    message = "" if statuses else "the kernels did not come to their end: " + (stderr.strip().splitlines() or ["no word of why"])[-1]
    if not errors and wrong:
        message = wrong[0]
    return Found(subject, op, tool, errors, first, ran, message)


def _first(output: str) -> str:
    """The first finding: the sanitizer's lines up to its host backtrace."""
    lines: list[str] = []
    for text in output.splitlines():
        if not text.startswith("========="):
            continue
        body = text.removeprefix("=========").rstrip()
        if not lines and not re.match(r" (Invalid|Error:|Warning:|Race|Barrier|Out-of|Uninit|Program hit|Misaligned|Leaked)", body):
            continue
        if lines and (not body.strip() or "backtrace" in body):
            break
        lines.append(body.strip())
    return "\n".join(lines[:6])


def _checks(name: str, op: str, ids: Sequence[str]) -> Iterator[tuple[str, checker.Result]]:
    subject = candidates.find([name], op)[0]
    for case in subject.op.cases:
        if case.id in ids or case.name in ids:
            yield case.id, checker.check(subject, case, backend="gpu", seed=1, guard=0)


def worker(arguments: Sequence[str]) -> None:
    """Runs inside the sanitizer: check the cases of one subject, with every tensor an allocation of its own."""
    settings.without_caching_allocator()
    found: dict[str, Any] = {name: (r.status, r.message) for name, r in _checks(arguments[0], arguments[1], arguments[2:])}
    sys.stdout.write("\n" + _RESULTS + json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    worker(sys.argv[1:])
