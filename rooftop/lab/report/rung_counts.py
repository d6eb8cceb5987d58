"""What the simulator counts of each rung of a ladder, for its page: counted here, kept on disk by the digest of all that they follow from.

Every rung of a ladder is counted at one case: the headline made smaller for as long as each rung still launches the same kernels. Of the
blocks a few are run, so many as half a second or so allows; all of them where a rung launches more than one kernel."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core import disk_cache, settings

if TYPE_CHECKING:
    from rooftop.core.spec import Case, Work
    from rooftop.lab.candidates import Subject
    from rooftop.lab.report.known import Digests
    from rooftop.lab.simt import Report

ARCH = 90  # whose kernels and machine code are counted
SMALLEST = 1 << 21  # elements of the inputs below which a case is not made smaller
FMAS = 1 << 26  # of the blocks that are run: about half a second
FEWEST, MOST = 2, 32  # blocks that are run
SHARE = 0.01  # of all wavefronts: a line that takes less is not looked at for conflicts
FORM = 5  # of what is kept
ACCESSES = 8  # of a rung that are kept
NOT_YET = "not counted yet: rooftop report --compute counts it"


@dataclass(frozen=True)
class Line:
    """One line's accesses, the one that takes the most beyond what it needs. `found`, `ideal`: sectors or wavefronts a request."""

    file: str
    line: int
    text: str
    what: str  # global read, shared write, ...
    found: float
    ideal: float
    here: bool  # in the rung's own file

    @property
    def unit(self) -> str:
        return "wavefronts" if self.what.startswith("shared") else "sectors"


@dataclass(frozen=True)
class Access:
    """What one line of the rung's own file does to memory. `width`: bytes a thread; `apart`: bytes from one thread's to the next one's,
    where most keep to it. `found`, `ideal`: sectors or wavefronts a request."""

    line: int
    what: str
    width: int
    apart: int | None
    found: float
    ideal: float
    phases: int = 0  # of the first warp: the last phase with a request, from 1; a phase ends at each barrier of the block
    requests: tuple[int, ...] = ()  # in each of the first phases
    onward: int | None = None  # bytes from its first request in a phase to the first in the next, where most keep to it
    within: int | None = None  # and from one to the next in a phase


@dataclass(frozen=True)
class RungCounts:
    """Counts of one rung at one case, or in `why` why there are none.

    `values`: by the names of rooftop.lab.report.predictions.COUNTS, those that there are. `ideals`: what as many accesses of as many bytes
    take at the least, of those that have such a thing."""

    case: str
    blocks: int = 0  # that were run
    grid_blocks: int = 0
    values: Mapping[str, float] = field(default_factory=dict)
    ideals: Mapping[str, float] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()  # where the most is lost, the worst first
    why: str = ""
    accesses: tuple[Access, ...] = ()  # the most frequent ones, in the order of the source


# -- from a simulation to counts -------------------------------------------------------------------------------------


def summarise(report: Report, work: Work, case: str, path: str) -> RungCounts:
    """The counts of one run of the kernels in `path`. `work`: the least that the op must do there."""
    if report.findings:
        return RungCounts(case, why=str(report.findings[0]))
    scale = report.grid_blocks / max(report.blocks, 1)
    values: dict[str, float] = {}
    ideals: dict[str, float] = {}
    for name, times, op, least in (("sectors_read", "reads", "read", work.read), ("sectors_written", "writes", "write", work.write)):
        counts = [c for c in report.lines if c.space == "global" and c.op == op]
        if requests := sum(c.requests for c in counts):
            values[name] = sum(c.sectors for c in counts) / requests
            ideals[name] = sum(c.ideal_sectors for c in counts) / requests
            if least:
                values[times] = 32 * scale * sum(c.sectors for c in counts) / least
    shared = [c for c in report.lines if c.space == "shared" and c.requests]
    wavefronts = sum(c.wavefronts for c in shared)
    fmas = work.bytes and sum(n for unit, n in work.ops.items() if unit.startswith("fma")) >= work.bytes  # else they say little
    if shared:
        values["wavefronts"] = wavefronts / sum(c.requests for c in shared)
        ideals["wavefronts"] = sum(c.ideal_wavefronts for c in shared) / sum(c.requests for c in shared)
        values["conflicts"] = max(
            (c.wavefronts / c.ideal_wavefronts for c in shared if c.ideal_wavefronts and c.wavefronts >= SHARE * wavefronts), default=1.0
        )
        ideals["conflicts"] = 1.0
        if fmas and report.fma:
            values["wavefronts_per_fma"] = 32 * wavefronts / report.fma
    if fmas and (sectors := sum(c.sectors for c in report.lines)):
        values["intensity"] = (2 * report.fma + report.other_flops) / (32 * sectors)
    return RungCounts(case, report.blocks, report.grid_blocks, values, ideals, _lines(report, path), accesses=_accesses(report, path))


def _accesses(report: Report, path: str) -> tuple[Access, ...]:
    counts = [c for c in report.lines if c.file == path and c.requests and c.op != "atomic"]
    counts = sorted(sorted(counts, key=lambda c: -c.requests)[:ACCESSES], key=lambda c: (c.line, c.op))
    sums = [(c, c.wavefronts, c.ideal_wavefronts) if c.space == "shared" else (c, c.sectors, c.ideal_sectors) for c in counts]
    return tuple(
        Access(c.line, f"{c.space} {c.op}", c.width, c.apart, n / c.requests, least / c.requests, **vars(c.walk)) for c, n, least in sums
    )


def _lines(report: Report, path: str, most: int = 3) -> tuple[Line, ...]:
    """Accesses that take more than they need, those that lose the most first."""
    lost: list[tuple[int, Line]] = []
    for c in report.lines:
        found, ideal = (c.wavefronts, c.ideal_wavefronts) if c.space == "shared" else (c.sectors, c.ideal_sectors)
        if c.requests and found > ideal:
            line = Line(
                c.file, c.line, " ".join(c.text.split()), f"{c.space} {c.op}", found / c.requests, ideal / c.requests, c.file == path
            )
            lost.append((found - ideal, line))
    whole = sum(c.wavefronts + c.sectors for c in report.lines)
    return tuple(line for extra, line in sorted(lost, key=lambda x: -x[0])[:most] if extra >= SHARE * whole)


# -- the case ----------------------------------------------------------------------------------------------------------


def small(subjects: Sequence[Subject], headline: Case) -> Case:
    """The headline with its sizes halved, the largest first, for as long as every subject that takes it launches the same kernels and the
    inputs have SMALLEST elements. Sizes that are equal in the headline stay equal."""
    kernels = {s.name: _kernels(s, headline) for s in subjects}
    parts = {n: 1 for _, v in headline.tensors() for n in v.shape}  # size in the headline -> what it is divided by
    case, halved = headline, True
    while halved:
        halved = False
        for size in sorted(parts, key=lambda n: n // parts[n], reverse=True):
            tried = {**parts, size: parts[size] * 2}
            smaller = _divided(headline, tried)
            if size % tried[size] or _elements(smaller) < SMALLEST:
                continue
            if all(_kernels(s, smaller) == kernels[s.name] for s in subjects if kernels[s.name]):
                case, parts, halved = smaller, tried, True
                break
    return case


def _divided(case: Case, parts: Mapping[int, int]) -> Case:
    from rooftop.core.spec import Input

    inputs = {n: replace(v, shape=tuple(x // parts[x] for x in v.shape)) if isinstance(v, Input) else v for n, v in case.inputs.items()}
    shapes = ", ".join(f"{n}[{', '.join(map(str, v.shape))}]" for n, v in inputs.items() if isinstance(v, Input))
    return replace(case, name=shapes, inputs=inputs, tags=frozenset())


def _elements(case: Case) -> int:
    return sum(math.prod(v.shape) for _, v in case.tensors())


def _kernels(subject: Subject, case: Case) -> tuple[Any, ...] | None:
    """What is launched, sizes of grids apart; None where the case is not taken."""
    from rooftop.core.spec import TARGETS

    device = TARGETS[max(ARCH, subject.implementation.arch)] if subject.implementation else TARGETS[ARCH]
    try:
        if subject.supports(case, device):
            return None
    except ValueError:  # sizes that no longer fit each other or an option
        return None
    return tuple((x.kernel, x.block, x.cluster, x.shared) for x in _launches(subject, case))


def _launches(subject: Subject, case: Case) -> list[Any]:
    from rooftop.core.spec import TARGETS

    assert subject.implementation is not None
    _, problem = subject.kernel_problem(case, TARGETS[max(ARCH, subject.implementation.arch)])
    return subject.implementation.launches(problem, subject.implementation.resolve(problem)[0])


# -- counting, and what is kept of it ----------------------------------------------------------------------------------


def count(
    subjects: Sequence[Subject], headline: Case, *, run: bool = True, done: Callable[[Subject], None] = lambda s: None, answers: Digests | None = None,
    only: str | None = None,
) -> dict[str, RungCounts]:
    """Counts by the subject's name, of those that the simulator runs. `run=False`: only what is kept from before. `done` is told of each.
    `only`: of this subject alone, at the case of all.

    answers   which rungs the simulator runs, and where counts are kept (rooftop.lab.report.known); grows"""
    from rooftop.lab import simt

    answers = {} if answers is None else answers
    able = [s for s in subjects if s.implementation is not None and _place(s, answers) == "simt"]
    if not able:
        return {}
    if reason := simt.unavailable():
        for s in able:
            done(s)
        return {s.name: RungCounts("", why=reason) for s in able}
    at = {s.name: ("counts", s.name, headline.id, engine()) for s in able}
    if not run and all(key in answers for key in at.values()):
        counts = {name: (answers[key][0] or "", _read(_at(answers[key][1]))) for name, key in at.items()}
        return {name: stored or RungCounts(case, why=NOT_YET) for name, (case, stored) in counts.items()}
    case = small(able, headline)
    able = [s for s in able if only in (None, s.name)]

    def one(subject: Subject) -> RungCounts:
        counts = _one(subject, case, run, answers, at[subject.name])
        done(subject)
        return counts

    with ThreadPoolExecutor(settings.load().jobs) as pool:
        return dict(zip([s.name for s in able], pool.map(one, able), strict=True))


def _place(subject: Subject, answers: Digests) -> str:
    """Where the kernel runs without a GPU."""
    at = ("place", subject.name)
    if at not in answers:
        assert subject.implementation is not None
        answers[at] = None, subject.implementation.where().place
    return answers[at][1]


def _one(subject: Subject, case: Case, run: bool, answers: Digests, at: tuple[str, ...]) -> RungCounts:
    from rooftop.core.compile import CompileError
    from rooftop.lab.simt.build import NoCompilerError

    try:
        key = _key(subject, case)
        answers[at], path = (case.id, key), _at(key)
        if counts := _read(path):
            return counts
        if not run:
            return RungCounts(case.id, why=NOT_YET)
        counts = _count(subject, case)
        _write(path, counts)
        return counts
    except (CompileError, NoCompilerError, MemoryError, ValueError) as error:
        return RungCounts(case.id, why=str(error).splitlines()[0])


def _count(subject: Subject, case: Case) -> RungCounts:
    from rooftop.core.spec import TARGETS
    from rooftop.lab import simt

    work = subject.op.work(subject.op.problem(case, TARGETS[ARCH]))
    launches = _launches(subject, case)
    blocks = math.prod(launches[0].grid) if launches else 0
    if len(launches) == 1:
        each = sum(work.ops.values()) / blocks
        blocks = max(FEWEST, min(MOST, blocks, int(FMAS / each) if each else MOST))
    assert subject.implementation is not None and subject.implementation.head is not None
    report = simt.run_rung(subject, case, mode="count", blocks=blocks, arch=ARCH)
    return summarise(report, work, case.id, subject.implementation.head.path)


@cache
def engine() -> str:
    """Digest of what counts: the simulator, this file, the compiler, and NVRTC, whose machine code says how wide accesses are."""
    from rooftop.core.compile import ToolchainError, nvrtc_version
    from rooftop.lab.simt.build import compiler, machine

    try:
        nvrtc = str(nvrtc_version())
    except ToolchainError:
        nvrtc = ""
    lab = settings.PACKAGE / "lab"
    simulator = sorted(p for p in (lab / "simt").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    files = [Path(__file__), lab / "inspect" / "sass_lines.py", lab / "inspect" / "sass.py", *simulator]
    return _hash(compiler().version, *machine(), nvrtc, *(f"{p.relative_to(lab)}\0{p.read_text(encoding='utf-8')}" for p in files))


def _key(subject: Subject, case: Case) -> str:
    """Of the counts of this program at this case, by this engine."""
    from rooftop.core.helpers import with_headers
    from rooftop.core.spec import TARGETS

    assert subject.implementation is not None
    assert subject.implementation.head is not None
    head = subject.implementation.head  # its text with comments: lines are named by their numbers
    launches = [(x.kernel, x.grid, x.block, x.cluster, x.shared, dict(x.args)) for x in _launches(subject, case)]
    return _hash(
        str(FORM), engine(), head.path, *with_headers(head.source, head.folders),
        subject.digest(case, TARGETS[max(ARCH, subject.implementation.arch)]),
        case.id, repr(dict(case.inputs)), json.dumps(launches, sort_keys=True, default=str),
    )


def _at(key: str) -> Path:
    return folder() / key[:2] / f"{key}.json"


def folder() -> Path:
    """Where counts are kept."""
    return settings.load().cache / "counts"


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(path: Path) -> RungCounts | None:
    """What is kept; None where there is nothing, or not what `_write` wrote."""
    try:
        data = disk_cache.read_json(path)
        values, ideals = ({str(n): float(v) for n, v in data[k].items()} for k in ("values", "ideals"))
        lines = tuple(Line(**x) for x in data["lines"])
        accesses = tuple(Access(**{**x, "requests": tuple(x["requests"])}) for x in data["accesses"])
        return RungCounts(str(data["case"]), int(data["blocks"]), int(data["grid_blocks"]), values, ideals, lines, accesses=accesses)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(path: Path, counts: RungCounts) -> None:
    if counts.why:  # of a fault that may be mended elsewhere: counted again the next time
        return
    disk_cache.write_json(path, asdict(counts))
