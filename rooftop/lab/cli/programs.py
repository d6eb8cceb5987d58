"""`rooftop simt my.cu`: what a program came to, as text, page or JSON."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.lab.cli.app import ENVIRONMENT, OK, WRONG, echo

if TYPE_CHECKING:
    from rooftop.lab.simt.program import Run
    from rooftop.lab.simt.program_build import Source

BY_HAND = "--kernel, --grid, --block and --arg give"
TRUE = {  # how the true ones are given
    "its inputs are assumed": "--arg gives", "its standard input is assumed": "--input gives", "its arguments are assumed": "--args gives",
    "it was given no arguments": "--args gives"
}
SIZE = 32  # a whole number of the arguments from which on it is a size
ASSUMED = (8, 64, 128)  # numbers for the arguments of a program that says how many it wants
RANGE = re.compile(r"\b(\d{1,2})\s*(?:-|–|~|to|\.\.+)\s*(\d{1,2})\b")  # of the numbers of kernels that an argument chooses from
USAGE = re.compile(r"^\s*usage:?\s+\S+((?:[ \t]+(?:[<\[(][^<>\[\]()\n]+[>\])]|\w+)){1,4})[ \t]*$", re.I | re.M)
# what it calls its arguments
FLAG = re.compile(r"^[ \t]*(?:usage:?[ \t]+)?(?:\S+\.c\w+|\./\S+)[ \t]+(--[a-z][\w-]*)(=int)?", re.I | re.M)  # the first choice that its usage names
MAIN = re.compile(r"\bmain\s*\(\s*(?:const\s+)?int\s+\w+\s*,\s*(?:const\s+)?char\s*(?:const\s*)?\*\s*(?:const\s*)?\*?\s*(\w+)")
LISTED = 60  # launches that are shown
RACES = ("shared-race", "warp-race", "missing-wait")  # that no assumed size or value makes
PRINTED = 40  # lines of what the program prints that are shown
PATIENT = 60  # seconds after which no other sizes are tried


UNKNOWN = re.compile(  # in what a compiler says of a library that is not here, or not wholly
    r"is declared neither|has no such header|undefined reference|not simulated"
    r"|(?:class|struct) (?:at|torch|c10|py|pybind11|thrust|cub|cuda|cooperative_groups|nvcuda)::[^\n]* has no member named"
    r"|struct cuda\w+\W{1,3}has no member named"
    r"|is not a member of .(?:at|torch|c10|py|pybind11|thrust|cub|cuda|cooperative_groups|nvcuda)\b"
)


def words(args: str | None, scale: float | None) -> tuple[list[str] | None, str]:
    """The arguments of a program (None: nothing is said of them), its sizes scaled, and what is said of that. Raises ValueError."""
    try:
        given = None if args is None else shlex.split(args)
    except ValueError as error:
        raise ValueError(f"--args {args}: {str(error).lower()}") from None
    if scale is None:
        return given, ""
    made = [str(max(1, round(int(w) * scale))) if w.isdigit() and int(w) >= SIZE else w for w in given or []]
    if not 0 < scale <= 1 or made == (given or []):
        why = (
            "it is more than 0 and at most 1" if not 0 < scale <= 1
            else f"--args gives no whole number of {SIZE} or more that it could change"
        )
        raise ValueError(
            f"--scale {scale:g}: {why}; sizes that a program has itself stay, and its large launches are watched in part (--budget)"
        )
    return made, f"--args '{shlex.join(made)}' in place of '{args}'"


def simulate(source: Source, assumed: str, *given: Any, alone: Callable[[], tuple[Source, str]] | None = None, own: bool = True) -> int:
    """The exit code: 0, 1 where a fault was found, 3 where the program could not be run to its end. `alone`: the file's kernels without
    its host code, which are judged too where it comes to no launch; `own`: the program is the file's own, not that of one beside it."""
    from rooftop.core.compile import CompileError
    from rooftop.lab.simt import SimulatedCrash

    code = OK
    try:
        code, why = _simulated(source, assumed, *given)
        if source.missing:
            echo(f"{', '.join(source.missing[:3])}: not found, and left out; -I names the folder of headers", err=True)
        if not why or source.device or alone is None or code == WRONG:
            return code
        why = why.partition("; ")[0]
    except CompileError as error:
        if own and not source.missing and not UNKNOWN.search(str(error)):
            raise
        is_, its = ("are", "their") if len(source.missing) > 1 else ("is", "its")
        absent = f"{', '.join(source.missing[:3])} {is_} not found: name {its} folder by -I. " if source.missing else ""
        why = f"{absent}{error}"
    except SimulatedCrash as error:
        why = f"{error}; smaller sizes (--args, where the program takes them) may do"
    if alone is not None:
        try:
            kernels, assumed = alone()
            echo(f"its kernels alone are judged, since the program cannot be run: {why}", err=True)
            _simulated(kernels, assumed, *given)
            return ENVIRONMENT
        except (CompileError, SimulatedCrash, ValueError) as error:
            more = f"nor can its kernels be launched as is assumed: {error}"
            why = more if code != OK else f"rooftop: {why}\n{more}"
    else:
        why = f"rooftop: {why}"
    echo(f"{why}\nits kernels can be launched without its host code: --kernel, --grid, --block and --arg", err=True)
    return ENVIRONMENT


def _simulated(
    source: Source, assumed: str, given_words: Sequence[str] | None, kernel: str | None, seed: int, schedules: int, repeat: int,
    blocks: int | None,
    budget: float, check: bool, html: Path | None, as_json: bool, files: Sequence[Path] = (), input: Path | None = None,
) -> tuple[int, str]:
    """The exit code, and why no kernel of the program's was launched; empty where one was."""
    from rooftop.core import settings, whole_file
    from rooftop.lab.cli import noted
    from rooftop.lab.simt import annotate, build, process, program, verdict

    build.progress = lambda text: echo(text, err=True)
    process.going_on = lambda seconds: echo(f"{source.path.name}: running for {seconds:.0f} s", err=True)
    path = source.path
    words = list(given_words or [])

    def ran(words: Sequence[str], source: Source = source) -> tuple[Run | None, Run | None]:
        return program.both(source, words, blocks=blocks, **given) if check else (
            None, program.run(source, words, mode="count", blocks=blocks, **given)
        )

    given: dict[str, Any] = {"repeat": repeat, "only": kernel, "budget": budget, "files": files, "input": input, "seed": seed}
    began = time.monotonic()
    checked, counted = ran(words)
    wanted = [] if given_words is not None else _wanted(checked or counted, source)  # type: ignore[arg-type]
    own = "__global__" in source.whole
    if given_words is None and not (checked or counted).launches and (flag := FLAG.search((checked or counted).report.printed)):  # type: ignore[union-attr]
        others = ran([choice := flag[1] + ("=1" if flag[2] else "")])
        if any(r is not None and r.launches for r in others):
            (checked, counted), words, wanted = others, [choice], []
            assumed, source = f"--args '{choice}', as its usage has it", replace(source, guessed="its arguments are assumed")
    equal = [[n] * len(wanted) for n in ASSUMED]
    rising = [[ASSUMED[0] * (i + 1) for i in range(len(wanted))]] if len(wanted) > 1 else []
    chosen = RANGE.search((checked or counted).report.printed) if len(wanted) == 1 else None  # type: ignore[union-attr]
    first_kernel = [[max(int(chosen[1]), 1)]] if chosen is not None else []  # 0 is the library's, as a rule
    refused = ""  # what is wrong at sizes that it may not be made for, where it is right at others
    begun = False
    for numbers in [*first_kernel, *equal, *rising, [1] * len(wanted)] if wanted else ():
        if begun and numbers[0] == 1:  # which is a choice, no size
            break
        others = ran(tried := list(map(str, numbers)))
        if any(r is not None and (r.launches or not (own or r.status or r.over)) for r in others):
            said = f"--args '{' '.join(tried)}'"
            right = not _faults(others)
            if right or not begun:
                refused = f"{said}, has faults: {_faults((checked, counted))[0]}".replace("\n", " ") if begun else ""
                (checked, counted), words = others, tried
                assumed = f"{said}, for {' '.join(wanted)}"
                source = replace(source, guessed="its arguments are assumed")
            begun = True
            if right:
                break
    if wanted and not begun:
        source = replace(source, guessed="it was given no arguments")
    if (checked or counted).without_input:  # type: ignore[union-attr]
        before, given["input"] = given["input"], settings.load().cache / "simt" / f"numbers_{ASSUMED[0]}"
        whole_file.write(given["input"], f"{ASSUMED[0]}\n" * 4096)
        others = ran(words)
        if any(r is not None and r.launches and not r.without_input for r in others):
            (checked, counted), assumed = others, f"a standard input of the number {ASSUMED[0]}, again and again"
            source = replace(source, guessed="its standard input is assumed")
        else:
            given["input"] = before
    for caller, said in source.others if given_words is None else ():
        known: Run = checked or counted  # type: ignore[assignment]
        if not (wrong := _faults((checked, counted))) or known.cut or known.over or time.monotonic() - began > PATIENT:
            break
        called = replace(source, added=caller)
        others = ran(words, called)
        left = _faults(others)
        if any(r is not None and r.launches for r in others) and (not left or (source.device and len(_where(left)) < len(_where(wrong)))):
            refused = refused or f"{assumed}, has faults: {wrong[0]}".replace("\n", " ")
            (checked, counted), source, assumed = others, called, said
        elif not source.device and any(f.kind in RACES for f in wrong) and {(f.kind, f.file, f.line) for f in wrong} <= {
            (f.kind, f.file, f.line) for f in _faults(others)
        }:
            source = replace(source, guessed="")  # of the kernel: no size or value changes in which order threads run
    for again in range(1, schedules if checked is not None else 1):
        other = program.run(source, words, mode="check", **{**given, "seed": seed + again})
        found = {(f.kind, f.file, f.line) for f in checked.report.findings}  # type: ignore[union-attr]
        new = tuple(f for f in other.report.findings if (f.kind, f.file, f.line) not in found)
        checked = replace(checked, report=replace(checked.report, findings=(*checked.report.findings, *new)))  # type: ignore[union-attr, type-var]
    first = checked or counted
    assert first is not None
    report = replace((counted or first).report, findings=verdict.grouped(first.report.findings))
    remarks = verdict.sentences(report)
    why = _unfinished(first, words)
    if not first.launches and not why and "__global__" in source.whole:
        why = "it launches none of its kernels"
    if not why and kernel is None and (unseen := [x for x in first.launches if not x.watched and not x.late]):
        why = f"{len(unseen)} of its launches could not be watched: {unseen[0]}"
    if source.guessed and report.faults:
        why = f"{source.guessed}, and what is found may come of that: {TRUE.get(source.guessed, BY_HAND)} the true ones"
    unknown = bool(why) or any(f.kind == "not-simulated" for f in report.findings)
    code = WRONG if report.faults and not source.guessed else ENVIRONMENT if unknown else OK
    noted.simulation(str(path), report)
    if html is not None:
        whole_file.write(html, annotate.as_html(report, dict(source.texts), str(path), remarks))
    if as_json:
        echo(json.dumps({
            "subject": str(path), "launches": [asdict(x) for x in first.launches], "ended": first.ended, "status": first.status,
            "unfinished": why, "assumed": assumed, "at_other_sizes": refused,
            "verdict": [asdict(s) for s in remarks], **report.to_json(),
        }, indent=2))
        return code, ""
    if assumed:
        echo(f"called as assumed ({TRUE.get(source.guessed, '--arg gives')} others): {assumed}")
    if refused:
        echo(f"the same {'with other sizes or blocks' if source.device else 'with sizes that its tiles may not divide'}, {refused}")
    _show(first, source, report, remarks, why, checked is not None)
    return code, why if "__global__" in source.whole and not first.launches else ""


def _faults(runs: Sequence[Run | None]) -> list[Any]:
    """What is wrong in the first of these, the checked one."""
    first = next((r for r in runs if r is not None), None)
    return [f for f in first.report.faults if f.kind != "leak"] if first is not None else []


def _where(wrong: Sequence[Any]) -> set[Any]:
    return {(f.file, f.line, f.kind) for f in wrong}


def _show(first: Run, source: Source, report: Any, remarks: Sequence[Any], why: str, checked: bool) -> None:
    from rich.console import Console

    from rooftop.lab.simt import annotate, verdict

    console = Console()
    for x in first.launches[:LISTED]:
        echo(str(x))
    if len(first.launches) > LISTED:
        echo(f"... and {len(first.launches) - LISTED:,} launches more")
    if first.report.printed.strip():
        lines = first.report.printed.splitlines()
        echo("it prints (times are simulated and say nothing):")
        for line in lines[:PRINTED]:
            echo(f"  | {''.join(c if c.isprintable() else ' ' for c in line)}")
        if len(lines) > PRINTED:
            echo(f"  | ... and {len(lines) - PRINTED:,} lines more")
    echo("")
    only = {file: verdict.kernel_lines(text) for file, text in source.texts.items()}
    width = console.width if console.is_terminal else 160
    for line in annotate.as_text(report, dict(source.texts), console.is_terminal and not console.no_color, width, only):
        echo(line)
    for s in remarks:
        echo(str(s) if s.file == source.shown else f"{s.file}: {s}")
    for f in report.findings:
        echo(str(f))
    if first.beside:
        echo(f"{'; '.join(first.beside)}: there is one, which stands in for it too")
    if first.unkept:
        echo(f"{'; '.join(first.unkept)}: nothing of it is kept")
    if first.left:
        echo(
            f"a library's product of {first.left}, and larger or later ones: too large for a CPU, left out; what it calculates from them is"
            " not its result"
        )
    if not first.launches and not why:
        echo("it has no kernel of its own, so that its host code alone was watched")
    faults = len(report.faults)
    said = f"{faults} fault{'s' if faults > 1 else ''}" if faults else "no fault"
    if why:
        echo(why)
    if first.over and not why:
        echo(
            "its time was over, and it was ended: what it would have launched after is not judged; smaller sizes (--args, where it takes"
            " them) or a longer --budget let it come to its end"
        )
    elif first.cut and not first.over:
        times = sum(x.times for x in first.launches)
        echo(f"its time was over after {first.cut:,} of its {times:,} launches: the others were left out, and what it calculates from them is not its result")
    echo(f"{'checked' if checked else 'counted'}: {said}{' as far as it came' if (why or first.cut or first.over) and not faults else ''}")


def _wanted(run: Run, source: Source) -> list[str]:
    """The arguments that a program wants which ended without any launch: it names them by a line such as `usage: prog N steps`, or reads
    them."""
    if run.launches or run.denied or run.over or run.without_input:
        return []
    if run.ended in ("exit", "returned") and (said := USAGE.search(run.report.printed)):
        names = re.findall(r"[<\[(][^<>\[\]()]+[>\])]|\w+", said[1])
        return [] if any(re.search("file|path|name|input|output|mode|type", n, re.I) for n in names) else names
    refused = run.status and "usage" not in run.report.printed.lower()
    if (run.ended in ("crash", "abort") or refused) and (main := MAIN.search(source.whole)):
        read = [int(n) for n in re.findall(rf"\b{main[1]}\s*\[\s*([1-9])\s*\]", source.whole)]
        return [f"{main[1]}[{n}]" for n in range(1, max(read, default=0) + 1)]
    return []


def _unfinished(run: Run, words: Sequence[str]) -> str:
    """Why a program did not come to its end; empty where it did."""
    if run.without_input:
        return "it reads its standard input, and there is none, or too little: --input FILE gives it"
    if run.denied:
        given = "; --file NAME lets it read that file, here or beside the source" if any("opens the file" in d for d in run.denied) else ""
        return f"{'; '.join(run.denied)}: a simulated program may not (docs/trust.md){given}"
    if any(f.kind == "not-simulated" for f in run.report.findings):
        return "it came to what is not simulated"
    if run.over and run.busy:
        return f"its time was over while its host code ran ({run.busy}): a loop without an end, or sizes too large for it (--args, a longer --budget)"
    if run.over and not any(x.watched for x in run.launches):
        return "its time was over: smaller sizes (--args, where it takes them) or a longer --budget let it come to its end"
    if run.ended in ("exit", "returned") and run.status and not run.launches:
        hint = "" if words else "; if it wants arguments, give them by --args 'WORD WORD'"
        return f"it ends with exit code {run.status} before any launch{hint}"
    return ""
