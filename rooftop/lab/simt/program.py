"""A program run as it is: its main(), or a caller made for the functions that it offers, with every launch listed, watched and counted."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.compile import CompileError
from rooftop.lab.interpret import guesses
from rooftop.lab.simt import counts, findings, host_variables, native, process, program_build, program_text
from rooftop.lab.simt.build import stack_bytes
from rooftop.lab.simt.launching import POISONS, Answer, Mode, Program, Request
from rooftop.lab.simt.lines import places, text_of
from rooftop.lab.simt.link import variables
from rooftop.lab.simt.memory import Held, Layout
from rooftop.lab.simt.program_build import Source
from rooftop.lab.simt.report import KINDS, Report

ENDED = ("returned", "exit", "abort", "crash", "not simulated", "time")
BY_HAND = "launch a kernel of it by --kernel, --grid, --block and --arg"
COUNTED = 8.0  # seconds of the counted run of a program that did not end in its time
MOST = 2  # times the budget of one launch: what all of a program's launches may take
LONGEST = 3.0  # times that: what the program may take with its host code
ROUNDS = 8  # times that declarations are left out that do not compile, of a file whose kernels are launched without its host code
NAMED = 4  # of these that are shown
ARENA = 32 << 30  # bytes: as runtime/program.cpp has them


_ALLOCATED = re.compile(
    r"cuda\w*(?:Malloc|Alloc)\w*\s*(?:<[^>]*>)?\(\s*(?:\(\s*void\s*\*\s*\*\s*\)\s*|reinterpret_cast<void\s*\*\*>\(\s*)?&?\s*\(?([\w.\->\[\]]+)"
)


@dataclass(frozen=True)
class Launched:
    """Launches that are the same in kernel, extents and arguments. `times`: how often it was made; `watched`: of these, how often it was
    watched."""

    kernel: str
    file: str
    line: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    cooperative: bool
    arguments: tuple[str, ...]
    times: int = 1
    watched: int = 0
    skipped: int = 0
    watched_blocks: int = 0
    blocks: int = 0
    late: bool = False  # it came after half of the time

    def __str__(self) -> str:
        def extent(n: tuple[int, ...]) -> str:
            shown = n[:3] if n[2] > 1 else n[:2] if n[1] > 1 else n[:1]
            return "x".join(map(str, shown))

        more = f", {self.shared} B shared" if self.shared else ""
        again = f", {self.times:,} times" if self.times > 1 else ""
        part = f" ({self.watched_blocks:,} of {self.blocks:,} blocks watched)" if self.watched and self.watched_blocks < self.blocks else ""
        part = f" (not watched{': no time was left' if self.late else ''})" if not self.watched else part
        return f"{self.file}:{self.line}: {self.kernel}<<<{extent(self.grid)}, {extent(self.block)}{more}>>>({', '.join(self.arguments)}){again}{part}"


@dataclass(frozen=True)
class Run:
    """What a program came to. `ended`: one of ENDED; `status`: its exit code; `denied`: what it wanted and may not have; `unkept`: files
    that it has written, of which nothing is."""

    report: Report
    launches: tuple[Launched, ...]
    ended: str
    status: int
    denied: tuple[str, ...] = ()
    unkept: tuple[str, ...] = ()
    without_input: bool = False  # it reads its standard input to its end, and comes to no result
    beside: tuple[str, ...] = ()  # where it uses a second GPU, which is the first by another name
    over: bool = False  # its time ran out, and it was ended
    busy: str = ""  # the line of its host code that ran then
    left: str = ""  # a library's product that was too large for the CPU, and left out: MxNxK
    cut: int = 0  # its time ran out at so many launches: those after it were left out
    digest: str = ""
    journal: Sequence[Mapping[str, Any]] = field(default=(), repr=False)


def kernel_of(path: Path, folders: Sequence[Path], entry: str, given: Sequence[str], **launch: Any) -> Source:
    """A file whose kernel `entry` a main() of ours launches; its own main() is called by another name."""
    from rooftop.lab.simt import kernel_caller

    source = program_build.read(path, folders)
    code, _ = kernel_caller.call_of_kernel(entry, given=_named_values(given), **launch)
    return replace(source, added=code, device=True)


class NoCallerError(ValueError):
    """A file has no main(), and nothing that one can be made for."""


def source_of(path: Path, folders: Sequence[Path] = (), given: Sequence[str] = ()) -> tuple[Source, str]:
    """A file as a program, and what is assumed of its inputs: it runs its own main(), that of a file beside it, or one made for its
    functions of arrays or of torch's tensors.

    `given`: what `--arg` says of these. Raises NoCallerError where the file has none of them."""
    from rooftop.lab.simt import ordinary, program_caller

    source = program_build.read(path, folders)
    if program_build.has_main(source):
        return source, ""
    if program_caller.TESTED.search(source.whole):
        return replace(source, added=program_caller.TESTS), ""
    texts = _named_values(given)
    text = source.texts[source.shown]
    text = text if program_text.launches(text) else _code(source)
    try:
        offered = program_caller.offers(source.whole)
        if (functions := program_caller.torch_functions(text)) or offered:
            code, assumed = program_caller.call_of_torch(functions, offered, texts)
            again = () if texts else (program_caller.call_of_torch(functions, offered, texts, larger=True),)
            return replace(source, added=code, guessed="" if texts else "its inputs are assumed", others=again), assumed
        other = program_build.main_beside(source, folders)
        if (functions := program_caller.of_arrays(text)) and (other is None or functions[0].name == "solve"):
            code, assumed = program_caller.call_of_arrays(functions, texts, text)
            complete = all(p.name in texts for f in functions for p in f.parameters)
            others = program_caller.round_sizes(functions, texts)
            other_sizes = () if complete else (program_caller.call_of_arrays(functions, others, text),)
            return replace(source, added=code, guessed="" if complete else "its inputs are assumed", others=other_sizes), assumed
        if other is not None:
            return other, ""
        if _instances(_code(source)):
            return _kernels_of(source, texts)
    except program_caller.Unknown as unknown:
        with contextlib.suppress(program_caller.Unknown):
            return _kernels_of(source, texts)
        raise NoCallerError(f"{path} has no main(), and no caller can be made for {unknown}: {BY_HAND}") from None
    have = "; ".join(str(k) for t in source.texts.values() for k in ordinary.kernels(t)) or "none"
    raise NoCallerError(f"{path} has no main(), solve() or function of torch's tensors: {BY_HAND}; it has {have}")


def _named_values(given: Sequence[str]) -> dict[str, str]:
    return {n.strip(): v.strip() for n, _, v in (g.partition("=") for g in given)}


def _code(source: Source) -> str:
    """The text that has the file's kernels: its own, or, if it only includes them, its headers' too."""
    return text if "__global__" in (text := source.texts[source.shown]) else source.whole


def _kernels_of(source: Source, given: Mapping[str, str]) -> tuple[Source, str]:
    from rooftop.lab.simt import kernel_caller

    text = _code(source)
    each = [
        kernel_caller.call_of_kernels(text, _instances(text), given, source.whole, spare, coarse)
        for spare, coarse in ((1, False), (guesses.SPARE, False), (guesses.SPARE, True))
    ]
    (code, assumed), *others = dict.fromkeys(each)
    return replace(source, added=code, device=True, guessed="its launches are assumed", others=tuple(others)), assumed


def kernels_alone(path: Path, folders: Sequence[Path] = (), given: Sequence[str] = ()) -> tuple[Source, str]:
    """A file's own kernels without its host code, each launched as is assumed, and what is assumed; what keeps the others from compiling is
    left out, and said.

    Raises ValueError where none of them can be launched, CompileError where none compiles."""
    source, gone = program_build.read(path, folders), list[str]()
    for again in reversed(range(ROUNDS)):
        made, assumed = _kernels_of(source, _named_values(given))
        try:
            program_build.built(made, "check")
            break
        except CompileError as error:
            source, names = program_build.without(source, str(error))
            gone += names
            if not names or not again or not _instances(_code(source)):
                raise
    named = "; ".join(list(dict.fromkeys(gone))[:NAMED]) + (f" and {len(gone) - NAMED} more" if len(gone) > NAMED else "")
    left = f"; left out, as it does not compile: {named}" if gone else ""
    return replace(made, others=tuple((code, said + left) for code, said in made.others)), assumed + left


def _instances(text: str) -> list[tuple[Any, str]]:
    """The kernels that a text defines, with their name expressions."""
    from rooftop.lab.simt import instances, ordinary

    templates = instances.Templates([text])
    pairs = [(k, k.name) for k in ordinary.kernels(text) if not k.template]
    own = {k.name: k for k in templates.kernels.values()}
    return pairs + [(own[i.name.partition("<")[0]], i.name) for i in templates.instances()[0]]


def run(
    source: Source, arguments: Sequence[str] = (), *, mode: Mode = "check", seed: int = 0, repeat: int = 1, blocks: int | None = None,
    only: str | None = None,
    budget: float = 10.0, most: float = 0.0, files: Sequence[Path] = (), listed: bool = False, input: Path | None = None,
) -> Run:
    """Run a program in a process that may do nothing else.

    `repeat`: how often a launch is watched that is made again; `only`: the kernel to be watched; `budget`: seconds of CPU time for the
    watched blocks of one launch; `most`: for all of them (0: MOST times that); `files`: that it may read; `input`: what its standard
    input is; `listed`: launches are listed
    with their arguments and not made, so that nothing that the GPU calculates is there.

    Raises CompileError where it does not compile, SimulatedCrash where its process ends otherwise."""
    if theirs := host_variables.used(source.texts):
        raise CompileError("\n".join(
            f"{file}:{line}: {name} is a variable of the host's (line {at}), which nvcc refuses in device code: pass it as an argument, or declare it"
            " __device__ or __constant__" for file, line, name, at in theirs
        ))
    built = program_build.built(source, mode, only)
    program = Program(
        built.pairs, [source.shown, *arguments], repeat, budget, most or MOST * budget, listed=listed,
        files=[f.resolve() for f in (*files, input) if f is not None], input=None if input is None else input.resolve(),
        here=str(Path.cwd()),
    )
    answered = _ask(source, built, program, mode, seed, blocks)
    raw = native.array(native.RawFinding, answered.findings)
    if mode == "check" and any(_kind(f) == "uninitialised" for f in raw) and not _matters(source, built, program, seed):
        answered.findings = b"".join(bytes(f) for f in raw if _kind(f) != "uninitialised")
    return _read(source, built, answered, mode)


def _kind(f: native.RawFinding) -> str:
    return KINDS[f.kind]


def _matters(source: Source, built: program_build.Program, program: Program, seed: int) -> bool:
    """Whether what comes back to the host depends on memory that was read before it was written: other contents there give other results.
    No launch of these runs is watched."""
    seen = []
    for poison in POISONS[1:]:
        answered = _ask(source, built, replace(program, poison=poison, repeat=0), "check", seed, None, 1)
        seen.append(next((e["digest"] for e in _events(answered.journal) if "digest" in e), ""))
    return len(set(seen)) > 1


def _ask(
    source: Source, built: program_build.Program, program: Program, mode: Mode, seed: int, blocks: int | None, workers: int | None = None
) -> Answer:
    chosen = settings.load()
    request = Request(
        library=built.path, numbers={}, launches=(), tensors={}, values={}, variables=variables(built.path), mode=mode,
        stack=stack_bytes(built.path),
        workers=workers or chosen.jobs, patience=chosen.patience, seconds=min(chosen.simt_seconds, int(LONGEST * program.most) + 1),
        seed=seed, blocks=blocks,
        widths=_widths(built, mode), program=program,
    )
    return process.ask(request, {}, source.shown)


def _widths(built: program_build.Program, mode: Mode) -> tuple[Any, Any]:
    from rooftop.lab.simt.machine import MachineCode

    return counts.widths(built.path, MachineCode()) if mode == "count" else ((), ())


def _events(journal: str) -> list[dict[str, Any]]:
    try:
        events = json.loads(f"[{journal}]")
    except ValueError:
        return []
    return [e for e in events if isinstance(e, dict)]


def _read(source: Source, built: program_build.Program, answered: Answer, mode: Mode) -> Run:
    events = _events(answered.journal)
    texts = {**source.texts, program_build.CALLER: source.added}
    addresses = {int(e[at]) for e in events for at in ("pc", "host") if at in e}
    addresses |= {int(a["pc"]) for e in events for a in e.get("arguments", ()) if isinstance(a, dict)}
    where = places(built.path, addresses)

    def name(pc: int) -> str:
        text = text_of(*where[pc], texts)
        several = sorted(a for a in addresses if where[a] == where[pc])  # calls on one line, in order
        every = list(_ALLOCATED.finditer(text))
        kernel = every[min(several.index(pc), len(every) - 1)] if every else None
        kernel = kernel or re.search(r"(?:auto|Tensor|device_vector<[^=]*>)\s*&?\s+(\w+)\s*[=({]", text)
        return kernel[1] if kernel else f"memory of line {where[pc][1]}"

    tensors = {}
    for i, e in enumerate(e for e in events if "at" in e):
        shown = name(int(e["pc"]))
        tensors[f"{shown}" if shown not in tensors else f"{shown} ({i + 1})"] = Held(
            int(e["at"]), int(e["bytes"]), 0, (int(e["bytes"]),), (1,), 1, "uint8"
        )
    layout = Placed(tensors, variables(built.path), {int(e["at"]) for e in events if e.get("freed")})
    faults = findings.read(built.path, native.array(native.RawFinding, answered.findings), layout, texts)
    seen = counts.read(built.path, native.array(native.RawCount, answered.counts), texts) if mode == "count" else counts.Counts()
    gone: dict[str, Any] = {"ended": 3, "status": 1, "digest": ""}
    end = next((e for e in events if "ended" in e), gone)
    lacking = any("input" in e for e in events) and (
        not any("launch" in e for e in events) or bool(end["status"]) or any(f.kind in ("host", "launch") for f in faults)
    )
    if lacking or any("denied" in e for e in events):  # what the program makes of that is no fault of its own
        faults = tuple(f for f in faults if f.kind not in (("host", "launch", "leak") if lacking else ("host",)))
    launched: dict[int, Launched] = {}
    for e in events:
        if "launch" in e:
            file, line = where[int(e["pc"])]
            arguments = tuple(
                (name(int(a["pc"])) + (f" + {a['offset']} B" if a["offset"] else "")) if isinstance(a, dict) else "null" if a is None else str(a)
                for a in e["arguments"]
            )
            launched[e["launch"]] = Launched(
                e["kernel"] or _named(text_of(file, line, texts)), file, line, tuple(e["grid"]), tuple(e["block"]), int(e["shared"]),
                bool(e["cooperative"]), arguments,
            )
        elif "times" in e and e["times"] in launched:
            launched[e["times"]] = replace(
                launched[e["times"]], times=e["seen"], watched=e["watched"], skipped=e["skipped"], late=bool(e["late"])
            )
        elif "ran" in e and e["ran"] in launched:
            before = launched[e["ran"]]
            launched[e["ran"]] = replace(before, watched_blocks=max(before.watched_blocks, int(e["watched"])), blocks=int(e["blocks"]))
    report = Report(
        findings=faults, lines=seen.lines, fma=answered.fma + sum(seen.fma.values()), other_flops=answered.other + sum(seen.flops.values()),
        fma_at=seen.fma,
        other_at=seen.flops, divergent=seen.parted, blocks=sum(x.watched_blocks for x in launched.values()),
        grid_blocks=sum(x.blocks for x in launched.values()),
        threads=sum(x.watched_blocks * _product(x.block) for x in launched.values()), printed=answered.printed, build_seconds=built.seconds,
    )
    denied, unkept, beside = (
        tuple(dict.fromkeys(f"line {where[int(e['pc'])][1]} {str(e[way]).strip()}" for e in events if way in e and "pc" in e))
        for way in ("denied", "unkept", "beside")
    )
    busy = next((f"line {where[int(e['host'])][1]}" for e in events if "host" in e), "")
    return Run(
        report, tuple(launched.values()), ENDED[int(end["ended"])], int(end["status"]), denied, unkept, lacking, beside,
        any("over" in e for e in events), busy, next((str(e["left"]) for e in events if "left" in e), ""),
        next((int(e["cut"]) for e in events if "cut" in e), 0), str(end["digest"]), events,
    )


class Placed(Layout):
    """Allocations of a program, where it put them."""

    def __init__(self, tensors: Mapping[str, Held], known: Sequence[Any], freed: set[int]) -> None:
        super().__init__({}, known)
        from rooftop.lab.simt.memory import Buffer

        self.end = ARENA
        self.freed = freed
        self.buffers = {n: Buffer(n, t.at, t.span, t.shape, t.strides, t.item) for n, t in tensors.items()}

    def state(self, at: int, size: int) -> str:
        """Of an access that may not be: to memory that is wholly the program's, it can only have been freed before."""
        inside = any(b.at <= at and at + size <= b.at + b.span and b.at in self.freed for b in self.buffers.values())
        return ", which has been freed" if inside else ""

    def describe(self, at: int, size: int) -> str:
        for b in self.buffers.values():
            if b.at <= at < b.at + b.span:
                over = at + size - (b.at + b.span)
                return f"byte {at - b.at} of {b.name} ({b.span} bytes)" + (f", {over} of them past the end" if over > 0 else "")
        return super().describe(at, size)


def _product(extents: Sequence[int]) -> int:
    n = 1
    for e in extents:
        n *= e
    return n


def _named(text: str) -> str:
    match = re.search(r"([\w:]+(?:<[^;]*?>)?)\s*<<<", text) or re.search(r"cudaLaunch\w+\s*\([^,]*?(\w+)\s*,", text)
    return match[1] if match else "kernel"


def both(source: Source, arguments: Sequence[str] = (), **given: Any) -> tuple[Run, Run | None]:
    """The checked run, and the counted one, which is built at the same time and left out where the first does not end."""
    with ThreadPoolExecutor(1) as ahead:
        counted = ahead.submit(program_build.built, source, "count", given.get("only"))
        checked = run(source, arguments, mode="check", **given)
        if any(f.kind in ("deadlock", "not-simulated") for f in checked.report.findings) or not checked.launches:
            return checked, None
        counted.result()
    return checked, run(source, arguments, mode="count", **{**given, **({"most": COUNTED} if checked.cut or checked.over else {})})
