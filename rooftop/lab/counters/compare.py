"""The simulator's counts beside the hardware's, source line by source line.

    python -m rooftop.lab.counters.compare [--out DIR] [SUBJECT ...]

What is compared: 32-byte sectors of global accesses, wavefronts of shared ones, of each (file, line, space, read | write | atomic).

The machine code need not access memory as the source says so, nor where. How wide its accesses are the simulator asks of the compiler
itself (rooftop.lab.simt.machine). Where they stand is asked there too: an instruction at a line whose source has no such access is counted
for the line it belongs to by the chain of inlined calls or, failing that, for the nearest one that makes an access of its width. That is
settled from the machine code and the source alone, before any counts are looked at, and each instruction is counted for one line; a line
that agrees with the help of instructions at another is `moved`, and named with them. Each line that does not agree plainly is shown with
its SASS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core import settings
from rooftop.core.spec import TARGETS, Device
from rooftop.lab import candidates
from rooftop.lab.counters.jobs import CASES, Job
from rooftop.lab.exit_codes import Parser, echo, ended
from rooftop.lab.inspect.sass_lines import accesses
from rooftop.lab.records import identity, store
from rooftop.lab.simt import machine
from rooftop.lab.simt.machine import Access, Key

if TYPE_CHECKING:
    from rooftop.lab.simt import Report

Homes = Callable[[Mapping[str, Any], str, str], Key]  # a recorded line, space, op -> the line it belongs to
ALLOWED: Mapping[str, float] = {"global": 0.02, "shared": 0.05}  # relative difference: of sectors, of wavefronts
_ALL = 1 << 30
SAMPLED = 8  # blocks of a launch that are simulated: in the cases that are counted all do the same
UNIT: Mapping[str, str] = {"global": "sectors", "shared": "wavefronts"}


@dataclass(frozen=True)
class Row:
    """One accessing line. `hardware`, `simulated`: sectors or wavefronts, None where that side accesses nothing there.

    `verdict`: agrees; moved (agrees, its instructions standing at other lines, `found_at`, some or all); differs; hardware only; simulated
    only.
    `source`: requests of the source where the compiler merged or split accesses, before it did."""

    file: str
    line: int
    space: str
    op: str
    text: str
    hardware: float | None
    simulated: float | None
    requests: tuple[float | None, float | None]  # of a warp: hardware, simulated
    sass: tuple[str, ...]
    verdict: str = ""
    found_at: tuple[str, ...] = ()  # file:line
    source: float | None = None

    @property
    def agrees(self) -> bool:
        return self.verdict in ("agrees", "moved")

    def __str__(self) -> str:
        numbers = f"{UNIT[self.space]} {_shown(self.hardware)} on hardware, {_shown(self.simulated)} simulated"
        requests = f"requests {_shown(self.requests[0])} and {_shown(self.requests[1])}"
        source = f" ({_shown(self.source)} in the source)" if self.source is not None else ""
        where = f" (found at {', '.join(self.found_at)})" if self.found_at else ""
        code = "".join(f"\n        {s}" for s in self.sass)
        return (
            f"{self.file}:{self.line} {self.space} {self.op}: {self.verdict}{where}: {numbers}; {requests}{source}\n    {self.text}{code}"
        )


def _shown(number: float | None) -> str:
    return "none" if number is None else f"{number:,.0f}"


@dataclass(frozen=True)
class _Side:
    number: float
    requests: float
    text: str
    sass: tuple[str, ...] = ()
    found_at: tuple[str, ...] = ()
    source: float | None = None

    def plus(self, other: _Side) -> _Side:
        return replace(
            self, number=self.number + other.number, requests=self.requests + other.requests, sass=(*self.sass, *other.sass),
            found_at=tuple(dict.fromkeys((*self.found_at, *other.found_at))),
        )


def hardware(
    found_records: Iterable[Mapping[str, Any]], soft: Mapping[Key, _Side] | None = None, homes: Homes | None = None
) -> dict[Key, _Side]:
    """The lines of the records of one subject and case (one record for each launch); with `homes`, by the line of `soft` that they belong
    to."""
    sides: dict[Key, _Side] = {}
    for record in found_records:
        for line in record["lines"]:
            if not line["threads"]:  # issued, and masked in every lane: the compiler's padding of asynchronous copies, say
                continue
            for space, op in accesses(line["opcode"]):
                if space == "generic":  # the address decides: a cluster's shared memory is reached so
                    space = "global" if line["sectors"] or line["ideal_sectors"] else "shared"
                if space not in UNIT:
                    continue
                side = _Side(float(line[UNIT[space]]), float(line["executed"]), line["text"], tuple(line["sass"]))
                key = (line["file"], line["line"], space, op)
                home = homes(line, space, op) if homes is not None else key
                if home != key and soft is not None:
                    side = replace(side, text=soft[home].text, found_at=(f"{line['file']}:{line['line']}",))
                sides[home] = sides[home].plus(side) if home in sides else side
    return sides


def homes_of(code: Sequence[Access], source: Mapping[Key, int]) -> Homes:
    """The line of the source, of those that access memory with so many bytes a lane, that a recorded line belongs to.

    `code`: the accesses of the machine code that was run. A recorded line stays where it is if they are not the same there, or belong
    apart."""
    by_place: dict[tuple[str, int, str], list[Access]] = {}
    for a in code:
        by_place.setdefault((a.file, a.line, a.opcode), []).append(a)

    def home(line: Mapping[str, Any], space: str, op: str) -> Key:
        at: Key = (line["file"], line["line"], space, op)
        here = [a for a in by_place.get((line["file"], line["line"], line["opcode"]), []) if a.op == op and a.space in (space, "generic")]
        wanted = {machine.home(a, space, op, source) for a in here}
        home_line = wanted.pop() if len(wanted) == 1 and len(here) == line["instructions"] else None
        return at if home_line is None else home_line

    return home


def simulated(report: Report) -> dict[Key, _Side]:
    """The lines of a report; of sampled blocks, scaled to the whole grid."""
    scale = report.grid_blocks / report.blocks if report.blocks else 1.0
    sides: dict[Key, _Side] = {}
    for line in report.lines:
        if line.space in UNIT and line.requests:
            key = (line.file, line.line, line.space, line.op)
            source = line.source_requests * scale if line.rewritten else None
            side = _Side(getattr(line, UNIT[line.space]) * scale, line.requests * scale, line.text.strip(), source=source)
            sides[key] = sides[key].plus(side) if key in sides else side
    return sides


def near(a: float, b: float, space: str) -> bool:
    return abs(a - b) <= ALLOWED[space] * max(abs(a), abs(b))


def compare(hard: Mapping[Key, _Side], soft: Mapping[Key, _Side]) -> list[Row]:
    """A row for each line that accesses memory on either side, in the order of the source."""
    return [_row(key, hard.get(key), soft.get(key)) for key in sorted({*hard, *soft})]


def _row(key: Key, hard: _Side | None, soft: _Side | None) -> Row:
    file, line, space, op = key
    if hard is not None and soft is not None:
        verdict = "differs" if not near(hard.number, soft.number, space) else "moved" if hard.found_at else "agrees"
    else:
        verdict = "hardware only" if hard is not None else "simulated only"
    either = hard or soft
    assert either is not None
    return Row(
        file, line, space, op, either.text, hard.number if hard else None, soft.number if soft else None,
        (hard.requests if hard else None, soft.requests if soft else None), hard.sass if hard else (), verdict,
        hard.found_at if hard else (), soft.source if soft else None,
    )


def share(rows: Sequence[Row]) -> float:
    """The part of the accessing lines that agree, those among them whose instructions stand at other lines; 1 where nothing accesses
    memory."""
    return sum(r.agrees for r in rows) / len(rows) if rows else 1.0


def sums(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Space -> (hardware, simulated) over all lines."""
    return {
        space: (sum(r.hardware or 0 for r in rows if r.space == space), sum(r.simulated or 0 for r in rows if r.space == space))
        for space in UNIT
        if any(r.space == space for r in rows)
    }


def newest(found_records: Iterable[store.Record], tier: str = "lines") -> dict[tuple[str, str], list[store.Record]]:
    """(subject, case) -> its records of kind `counters` and that tier, one for each launch, of the newest run that has them."""
    by_case: dict[tuple[str, str], dict[str, list[store.Record]]] = {}
    for r in found_records:
        if r.kind == "counters" and r["tier"] == tier:
            by_case.setdefault((r.subject, r.case), {}).setdefault(r.run, []).append(r)
    return {key: max(runs.values(), key=lambda rs: rs[0].at) for key, runs in by_case.items()}


# -- both sides of a record -------------------------------------------------------------------------------------------


def job_of(subject: str, case: str, tier: str = "lines") -> Job:
    """The job that a record was made of. Raises ValueError where its op is no longer counted at that case."""
    if subject.endswith(".cu"):
        return Job(subject, tier, 0, tuple((k, int(v)) for k, v in (part.split("=") for part in case.split(", "))))
    op = candidates.find([subject])[0].op
    ids = [c.id for c in CASES.get(op.name, {}).get(tier, ())]
    if case in ids:
        return Job(subject, tier, ids.index(case))
    return Job(subject, tier, 0, case_id=op.case(case).id)


def simulate(job: Job, device: Device = TARGETS[90], blocks: int | None = SAMPLED, kernel: str | None = None) -> Report:
    """The job counted by the simulator: of one launch `blocks` blocks, of several all. `kernel`: which of those of a file without an op."""
    from rooftop.lab import simt

    launches = job.launches(device)
    if job.found is not None:
        assert job.case is not None
        return simt.run_rung(job.found, job.case, mode="count", blocks=blocks if len(launches) == 1 else _ALL)
    (launch,) = [x for x in launches if kernel in (None, x.kernel)]
    report = simt.simulate(
        job.implementation.head.source, launch.kernel, job.memory(device, "cpu"), grid=_three(launch.grid), block=_three(launch.block),
        arguments=list(zip(launch.args.values(), launch.types, strict=True)), shared=launch.shared, mode="count", blocks=blocks,
        folders=job.implementation.head.folders,
    )
    shown = job.implementation.head.path
    return replace(report, lines=tuple(replace(c, file=shown) for c in report.lines))


def _three(extents: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def both(job: Job, found_records: Sequence[Mapping[str, Any]], device: Device = TARGETS[90]) -> list[Row]:
    """The recorded counters of a job and the simulator's, as `compare` gives them."""
    report = simulate(job, device)
    soft = simulated(report)
    source = {(c.file, c.line, c.space, c.op): c.source_width or c.width for c in report.lines}
    return compare(hardware(found_records, soft, homes_of(_machine_code(job, device), source)), soft)


def _machine_code(job: Job, device: Device) -> list[Access]:
    """Of the job's launches, each kernel once; empty where it cannot be compiled here."""
    from rooftop.core.compile import CompileError, ToolchainError
    from rooftop.lab.inspect.binary import BinaryError

    kernels = list(dict.fromkeys(launch.kernel for launch in job.launches(device)))
    try:
        binary = job.implementation.compile(kernels, device.target)
        return [a for k in kernels for a in machine.accesses_of(binary.cubin, binary.names[k], job.implementation.head.path)]
    except (BinaryError, CompileError, ToolchainError):
        return []


def record(job: Job, versions: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> store.Table:
    """The comparison as data, of kind `compared`."""
    first = versions[0]
    return {
        "kind": "compared", "op": first["op"], "subject": first["subject"], "case": first["case"], **identity.of_record(first).facts,
        "counters": first["run"], "share": share(rows), "sums": {k: list(v) for k, v in sums(rows).items()},
        "rows": [asdict(r) for r in rows], "device": first["device"], "versions": {**store.versions(), **compilers()},
    }


def compilers() -> dict[str, str]:
    """The versions of NVRTC and of the host's compiler, which decide what a comparison gives; what is absent is left out."""
    from rooftop.core.compile import ToolchainError, nvrtc_version
    from rooftop.lab.simt.build import NoCompilerError, compiler

    versions: dict[str, str] = {}
    with suppress(ToolchainError):
        versions["nvrtc"] = nvrtc_version()
    with suppress(NoCompilerError):
        versions["host compiler"] = compiler().version
    return versions


def main(arguments: Sequence[str] | None = None) -> None:
    from rooftop.core.names import RegistryError

    parser = Parser(prog="python -m rooftop.lab.counters.compare", description="The simulator's counts beside recorded hardware counters.")
    parser.add_argument("names", nargs="*", help="subjects, by a part of their name; none: every one that is recorded")
    parser.add_argument("--out", type=Path, help="folder to write records of kind `compared` to")
    options = parser.parse_args(arguments)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)  # before the work: it may not be possible
    tables: list[store.Table] = []
    for (subject, case), records in sorted(newest(store.read(settings.load().results)).items()):
        if "patterns/" in subject or (options.names and not any(n in subject for n in options.names)):
            continue
        try:
            job = job_of(subject, case)
        except RegistryError as error:  # a record of a rung that was renamed or is gone
            echo(f"{subject}, {case}: not compared: {error.args[0]}")
            continue
        rows = both(job, records)
        moved = sum(r.verdict == "moved" for r in rows)
        echo(
            f"{subject}, {case}: {share(rows):.0%} of {len(rows)} lines agree{f' ({moved} of them moved)' if moved else ''}; sums "
            f"{sums(rows)}"
        )
        for r in rows:
            if r.verdict != "agrees":
                echo("    " + str(r).replace("\n", "\n    "))
        tables.append(record(job, records, rows))
    if options.out and tables:
        with store.Writer(options.out, str(tables[0]["device"]["name"])) as writer:
            for one in tables:
                writer.write(one)


if __name__ == "__main__":
    ended(main)
