"""The simulator's counts beside the hardware's, source line by source line.

    python -m rooftop.lab.counters_compare [--out DIR] [SUBJECT ...]

What is compared: 32-byte sectors of global accesses, wavefronts of shared ones, of each (file, line, space, read | write | atomic). The machine
code need not access memory where the source says so: the compiler hoists loads, merges and widens them, drops the second of two equal ones, and
attributes the copy of a structure to the line that uses it. So each line that does not agree is shown with its SASS."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.lab import records, settings, subjects
from rooftop.lab.counters_jobs import CASES, Job
from rooftop.lab.sass_lines import accesses
from rooftop.lab.spec import TARGETS, Device

if TYPE_CHECKING:
    from rooftop.lab.simt import Report

Key = tuple[str, int, str, str]  # file, line, space, op
ALLOWED: Mapping[str, float] = {"global": 0.02, "shared": 0.05}  # relative difference: of sectors, of wavefronts
_ALL = 1 << 30
SAMPLED = 8  # blocks of a launch that are simulated: in the cases that are counted all do the same
UNIT: Mapping[str, str] = {"global": "sectors", "shared": "wavefronts"}


@dataclass(frozen=True)
class Row:
    """One accessing line. `hardware`, `simulated`: sectors or wavefronts, None where that side accesses nothing there.

    `verdict`: agrees; differs; moved (the same count stands at another line of the other side: `other`); hardware only; simulated only."""

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
    other: int | None = None

    @property
    def agrees(self) -> bool:
        return self.verdict == "agrees"

    def __str__(self) -> str:
        numbers = f"{UNIT[self.space]} {_shown(self.hardware)} on hardware, {_shown(self.simulated)} simulated"
        requests = f"requests {_shown(self.requests[0])} and {_shown(self.requests[1])}"
        where = f" (line {self.other})" if self.other is not None else ""
        code = "".join(f"\n        {s}" for s in self.sass)
        return f"{self.file}:{self.line} {self.space} {self.op}: {self.verdict}{where}: {numbers}; {requests}\n    {self.text}{code}"


def _shown(number: float | None) -> str:
    return "none" if number is None else f"{number:,.0f}"


@dataclass(frozen=True)
class _Side:
    number: float
    requests: float
    text: str
    sass: tuple[str, ...] = ()

    def plus(self, other: _Side) -> _Side:
        return replace(self, number=self.number + other.number, requests=self.requests + other.requests, sass=(*self.sass, *other.sass))


def hardware(found_records: Iterable[Mapping[str, Any]]) -> dict[Key, _Side]:
    """The lines of the records of one subject and case (one record for each launch)."""
    found: dict[Key, _Side] = {}
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
                found[key] = found[key].plus(side) if key in found else side
    return found


def simulated(report: Report) -> dict[Key, _Side]:
    """The lines of a report; of sampled blocks, scaled to the whole grid."""
    scale = report.grid_blocks / report.blocks if report.blocks else 1.0
    found: dict[Key, _Side] = {}
    for line in report.lines:
        if line.space in UNIT and line.requests:
            key = (line.file, line.line, line.space, line.op)
            side = _Side(getattr(line, UNIT[line.space]) * scale, line.requests * scale, line.text.strip())
            found[key] = found[key].plus(side) if key in found else side
    return found


def near(a: float, b: float, space: str) -> bool:
    return abs(a - b) <= ALLOWED[space] * max(abs(a), abs(b))


def compare(hard: Mapping[Key, _Side], soft: Mapping[Key, _Side]) -> list[Row]:
    """A row for each line that accesses memory on either side, in the order of the source."""
    rows = [_row(key, hard.get(key), soft.get(key)) for key in sorted({*hard, *soft})]
    lost = [i for i, r in enumerate(rows) if r.verdict == "simulated only"]
    for i, row in enumerate(rows):
        if row.verdict != "hardware only":
            continue
        for j in lost:
            other = rows[j]
            same = (other.space, other.op) == (row.space, row.op) and other.verdict == "simulated only"
            if same and row.hardware is not None and other.simulated is not None and near(row.hardware, other.simulated, row.space):
                rows[i] = replace(row, verdict="moved", other=other.line)
                rows[j] = replace(other, verdict="moved", other=row.line)
                break
    return rows


def _row(key: Key, hard: _Side | None, soft: _Side | None) -> Row:
    file, line, space, op = key
    if hard is not None and soft is not None:
        verdict = "agrees" if near(hard.number, soft.number, space) else "differs"
    else:
        verdict = "hardware only" if hard is not None else "simulated only"
    either = hard or soft
    assert either is not None
    return Row(
        file, line, space, op, either.text, hard.number if hard else None, soft.number if soft else None,
        (hard.requests if hard else None, soft.requests if soft else None), hard.sass if hard else (), verdict,
    )  # fmt: skip


def share(rows: Sequence[Row]) -> float:
    """The part of the accessing lines that agree; 1 where nothing accesses memory. A line whose count stands at another line counts as one that
    does not agree, once: the machine code accesses memory there as the source says, and names another line for it."""
    moved = sum(r.verdict == "moved" for r in rows) // 2
    return sum(r.agrees for r in rows) / (len(rows) - moved) if rows else 1.0


def sums(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Space -> (hardware, simulated) over all lines."""
    return {
        space: (sum(r.hardware or 0 for r in rows if r.space == space), sum(r.simulated or 0 for r in rows if r.space == space))
        for space in UNIT
        if any(r.space == space for r in rows)
    }


def newest(found_records: Iterable[Mapping[str, Any]], tier: str = "lines") -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """(subject, case) -> its records of kind `counters` and that tier, one for each launch, of the newest run that has them."""
    found: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for r in found_records:
        if r["kind"] == "counters" and r["tier"] == tier:
            found.setdefault((str(r["subject"]), str(r["case"])), {}).setdefault(str(r["run"]), []).append(r)
    return {key: max(runs.values(), key=lambda rs: str(rs[0].get("at", ""))) for key, runs in found.items()}


# -- both sides of a record -------------------------------------------------------------------------------------------


def job_of(subject: str, case: str, tier: str = "lines") -> Job:
    """The job that a record was made of. Raises ValueError where its op is no longer counted at that case."""
    if subject.endswith(".cu"):
        return Job(subject, tier, 0, tuple((k, int(v)) for k, v in (part.split("=") for part in case.split(", "))))
    op = subjects.find([subject])[0].op
    ids = [c.id for c in CASES.get(op.name, {}).get(tier, ())]
    if case in ids:
        return Job(subject, tier, ids.index(case))
    return Job(subject, tier, 0, case_id=op.case(case).id)


def simulate(job: Job, device: Device = TARGETS[90], blocks: int | None = SAMPLED) -> Report:
    """The job counted by the simulator: of one launch `blocks` blocks, of several all."""
    from rooftop.lab import simt

    launches = job.launches(device)
    if job.found is not None:
        assert job.case is not None
        return simt.run_rung(job.found, job.case, mode="count", blocks=blocks if len(launches) == 1 else _ALL)
    (launch,) = launches
    report = simt.simulate(
        job.implementation.head.source, launch.kernel, job.memory(device, "cpu"), grid=_three(launch.grid), block=_three(launch.block),
        arguments=list(zip(launch.args.values(), launch.types, strict=True)), shared=launch.shared, mode="count", blocks=blocks,
    )  # fmt: skip
    shown = job.implementation.head.path
    return replace(report, lines=tuple(replace(c, file=shown) for c in report.lines))


def _three(extents: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def record(job: Job, found: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> records.Record:
    """The comparison as data, of kind `compared`."""
    first = found[0]
    return {
        "kind": "compared", "op": first["op"], "subject": first["subject"], "case": first["case"], "digest": first["digest"], "counters": first["run"],
        "share": share(rows), "sums": {k: list(v) for k, v in sums(rows).items()}, "rows": [asdict(r) for r in rows], "device": first["device"],
        "versions": records.versions(),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m rooftop.lab.counters_compare", description="The simulator's counts beside recorded hardware counters.")
    parser.add_argument("names", nargs="*", help="subjects, by a part of their name; none: every one that is recorded")
    parser.add_argument("--out", type=Path, help="folder to write records of kind `compared` to")
    given = parser.parse_args(arguments)
    made: list[records.Record] = []
    for (subject, case), found in sorted(newest(records.read(settings.load().results)).items()):
        if "patterns/" in subject or (given.names and not any(n in subject for n in given.names)):
            continue
        job = job_of(subject, case)
        rows = compare(hardware(found), simulated(simulate(job)))
        print(f"{subject}, {case}: {share(rows):.0%} of {len(rows)} lines agree; sums {sums(rows)}")
        print("".join(f"    {str(r).replace(chr(10), chr(10) + '    ')}\n" for r in rows if not r.agrees), end="")
        made.append(record(job, found, rows))
    if given.out and made:
        with records.Writer(given.out, str(made[0]["device"]["name"])) as writer:
            for one in made:
                writer.write(one)


if __name__ == "__main__":
    main()
