"""The main job: every rung checked where it can run, compiled and inspected for each target, timed where there is a GPU, and reported."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core import registry, settings
from rooftop.core.implementation import device_of
from rooftop.core.spec import Case, Device
from rooftop.core.texts import printable
from rooftop.lab import aot, candidates
from rooftop.lab.check import check_cache, checker
from rooftop.lab.check.proofs import Proofs
from rooftop.lab.inspect import binary, inspector
from rooftop.lab.learn import pages as course_pages
from rooftop.lab.records import store
from rooftop.lab.report import data, findings, known, ladder_cases, rung_counts, site, twins
from rooftop.lab.report.data import SiteData

if TYPE_CHECKING:
    from rich.console import Console


# On a GPU a climb of two ladders takes less than three minutes: seconds from its start after which no check, and no timing, begins.
# Compiling for three targets and counting in the simulator come between (30 s on 16 cores), the pages after (10 s).
CHECKS_S, TIMES_S = 55.0, 150.0
CASE_S = 2.0  # of a case and clock
SEED = 0  # of the inputs: the same for everyone, as a case in some thousands is luckier in plain torch than a right kernel may count on. `check` draws others


def climb(names: list[str], out: Path) -> bool:
    """Climb the ladders and write the report; prints what it does. True: nothing is wrong."""
    import torch
    from rich.console import Console

    out.mkdir(parents=True, exist_ok=True)  # before the work: it may not be possible
    for tool in ("cuobjdump", "nvdisasm"):
        binary.tool(tool)
    console = Console()
    started = time.monotonic()

    def say(text: str) -> None:
        console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    gpu = torch.cuda.is_available()
    device = device_of(torch.cuda.current_device()) if gpu else None
    here = "no GPU: Triton in its interpreter, CUDA C++ in the simulator, everything compiled for three targets, times from the records"
    say(f"climbing on {device.name if device else here}")
    found = [s for name in names or registry.ladder_names() for s in candidates.rungs(registry.ladder(name))]
    shipped = [s for op in dict.fromkeys(s.op.name for s in found) for s in candidates.implementations(registry.op(op))]
    found, shipped = ([s for s in some if s.implementation is None or s.implementation.platform == "gpu"] for some in (found, shipped))
    results, unchanged = _checked(console, found, shipped, device, started)
    jobs = [(s, inspector.inspect_case(s, None, arch), arch) for s in (*found, *shipped) for arch in _targets(s)]
    with step(console, "compile and inspect", len(jobs)) as advance:
        facts = inspector.many(jobs, lambda job, f: advance())
    simulated = sum(s.implementation is not None and s.implementation.where().place == "simt" for s in found)
    with step(console, "count memory accesses", simulated) as advance:
        counts = report_counts({s.rung.ladder for s in found if s.rung}, lambda s: advance())
    wrong = [r for r in results if r.status in ("wrong", "error")]
    unmet = [f"{n} on sm_{a}: {'; '.join(k['unmet'])}" for (n, a), f in facts.items() for k in f.get("kernels", []) if k["unmet"]]
    ran = sum(r.status == "ok" for r in results)
    again = f" ({unchanged} of them unchanged since they last were)" if unchanged else ""
    say(f"{ran} checks right{again}, {len(wrong)} wrong, {sum(r.status == 'skipped' for r in results)} not run here")
    for line in not_run(Counter(r.message for r in results if r.status == "skipped")):
        say(f"  not run: {line}")
    for r in wrong:
        say(f"  WRONG {r.subject} at {r.case}: {r.message}")
    for line in unmet:
        say(f"  UNMET {line}")
    if gpu:
        from rooftop.lab.timing import bench

        fields = sorted(bench.fields(found), key=lambda f: f.case.id != _headline(f.ladder))
        budget = TIMES_S - (time.monotonic() - started)
        summary = bench.run(fields, settings.load().results, budget_s=budget, case_budget_s=CASE_S, foresee=True, say=say)
        wrong += [checker.Result("", "", "", "wrong", message=line) for line in summary.wrong]
        for line in summary.wrong:
            say(f"  WRONG {line}")
        if summary.left:
            say(f"not timed, for want of time: {len(summary.left)} of {len(fields)} cases (rooftop bench {' '.join(dict.fromkeys(f.ladder for f in fields))})")
    digests = known.load()
    with console.status("joining the records to the tree") as shown:
        pages = data.gather(store.read(settings.load().results), facts, [r.to_json() for r in results], counts, digests=digests)
        index = _written(out, pages, lambda text: shown.update(text))
    known.save(digests)
    for line in findings.found_out(pages, {s.rung.ladder for s in found if s.rung}, device.name if device else ""):
        say(line)
    say(f"{time.monotonic() - started:.0f} s; the report: {index.resolve()}")
    say(f"next: {Path(sys.argv[0]).resolve()} ls")
    return not wrong and not unmet


def _headline(ladder: str) -> str:
    found = registry.ladder(ladder)
    return ladder_cases.headline_of(found, registry.op(found.op)).id


def _checked(
    console: Console, found: Sequence[candidates.Subject], shipped: Sequence[candidates.Subject], device: Device | None, started: float
) -> tuple[list[checker.Result], int]:
    """Checks of the rungs, at the edge cases and on a GPU at the headline too; then what no record proves of the shipped kernels, and on a
    GPU of the rungs' other cases. How many of them were right before and have not changed since."""
    tags = () if device else ("edge",)
    proofs = Proofs(store.read(settings.load().results))

    def proven(s: candidates.Subject, c: Case) -> bool:
        return proofs.hold(s, c, device.name, device) if device else proofs.hold(s, c)

    every = [(s, c) for s in found for c in checker.select_cases(s, tags=tags) if "huge" not in c.tags]
    first = [(s, c) for s, c in every if "edge" in c.tags or (s.rung and c.id == _headline(s.rung.ladder))]
    rest = [pair for pair in every if pair not in first] + [
        (s, c) for s in shipped for c in checker.select_cases(s, tags=tags) if "huge" not in c.tags
    ]
    left = [(s, c) for s, c in rest if not proven(s, c)]
    if len(left) < len(rest):
        console.print(
            f"{len(rest) - len(left)} checks are proven by records of the kernels as they are, and not run again", highlight=False
        )
    results: list[checker.Result] = []
    unchanged = 0
    if device:
        console.print("compiling what is checked first", highlight=False)
        aot.compile_first(first, device)
    with step(console, "check", len(first) + len(left)) as advance:
        for n, (s, c) in enumerate((*first, *left)):
            if device and time.monotonic() - started > CHECKS_S:
                console.print(f"{len(first) + len(left) - n} checks left, for want of time: rooftop check", highlight=False)
                break
            assert s.implementation is not None
            place, absent = checker.backend_of(s)
            on = device if device and place == "gpu" else s.implementation.stand_in(90)
            before = None if absent or s.supports(c, on) else check_cache.find(s, c, place, on)
            unchanged += before is not None
            results.append(before or checker.check(s, c, seed=SEED))
            if before is None:
                check_cache.keep(s, c, results[-1], on)
            advance()
    return results, unchanged


REASONS = 3


def not_run(reasons: Counter[str]) -> list[str]:
    """Why cases were not run, the most frequent reasons first, and how many more there are."""
    said = [f"{n} {'case' if n == 1 else 'cases'}: {why}" for why, n in reasons.most_common(REASONS)]
    rest = [n for _, n in reasons.most_common()[REASONS:]]
    return [*said, f"{sum(rest)} more, for {len(rest)} other reasons: rooftop check names them"] if rest else said


def _targets(s: candidates.Subject) -> tuple[int, ...]:
    return registry.ladder(s.rung.ladder).targets if s.rung else (80, 89, 90)


def report_facts(
    compute: bool = True, say: Callable[[str], None] = lambda text: None, memo: candidates.Memo | None = None, answers: data.Digests | None = None
) -> tuple[Mapping[tuple[str, int], Any], int]:
    """Facts of every rung for every target, and how many are missing: without `compute` those that were found before.

    asked     what was worked out of problems and contracts; grows
    answers   where facts were kept before (rooftop.lab.report.known); grows"""
    memo, answers = memo or candidates.Memo(), {} if answers is None else answers
    wanted = [(s, arch) for name in registry.ladder_names() for s in candidates.rungs(registry.ladder(name)) for arch in _targets(s)]
    if compute:
        jobs = [(s, inspector.inspect_case(s, None, arch, memo), arch) for s, arch in wanted]
        return inspector.many(jobs, lambda job, f: say(f"compiling {job[0].name}")), 0
    found = known.facts(wanted, memo, answers)
    return found, len(wanted) - len(found)


def report_counts(
    run: Collection[str], done: Callable[[candidates.Subject], None] = lambda s: None, answers: data.Digests | None = None
) -> dict[str, rung_counts.RungCounts]:
    """What the simulator counts of the rungs of all ladders: those of the ladders in `run` are counted where they have not been, the others
    looked up. `done` is told of each rung. `answers`: as for `report_facts`."""
    answers = {} if answers is None else answers
    found: dict[str, rung_counts.RungCounts] = {}
    for name in registry.ladder_names():
        ladder = registry.ladder(name)
        headline = ladder_cases.headline_of(ladder, registry.op(ladder.op))
        found.update(rung_counts.count(
            candidates.rungs(ladder), headline, run=name in run, done=done if name in run else lambda s: None, answers=answers
        ))
    return found


def build_report(
    out: Path, records: list[store.Record], digests: data.Digests | None = None, say: Callable[[str], None] = lambda text: None, compute: bool = False,
    language: str = "en",
) -> tuple[Path, str]:
    """The pages from records, the binaries and the simulator's counts, without checking anything anew. Returns the index, and what the
    pages lack.

    digests   those worked out before (`rooftop.lab.report.data.gather`)
    say       is told of each step
    compute   compile and count what has not been here: minutes. Else the pages do without
    language  the course's pages are written in this one too"""
    out.mkdir(parents=True, exist_ok=True)  # before the work: it may not be possible
    say("reading the binaries")
    digests = {} if digests is None else digests
    facts, absent = report_facts(compute, say, answers=digests)
    counts = report_counts(registry.ladder_names() if compute else (), lambda s: say(f"counting {s.name}"), digests)
    uncounted = sum(c.why == rung_counts.NOT_YET for c in counts.values())
    say("joining the records to the tree")
    pages = data.gather(records, facts, counts=counts, digests=digests)
    index = _written(out, pages, say, language)
    lacking = [f"{absent} binaries not compiled here yet"] * bool(absent) + [
        f"{uncounted} rungs not counted in the simulator yet"
    ] * bool(uncounted)
    return index, " and ".join(lacking)


def _written(out: Path, pages: SiteData, say: Callable[[str], None], language: str = "en") -> Path:
    """The pages, those of the course among them, and their Markdown twins. Returns the index."""
    pages = replace(pages, course=True)
    index = site.write(out, pages, say)
    course_pages.write(out, pages, say, tuple(dict.fromkeys(("en", language))))
    twins.write(out, pages, course_pages.texts(pages.ladders))
    return index


EVERY_S = 10.0  # seconds between two lines of a long step, where there is no terminal


@contextmanager
def step(console: Console, name: str, total: int) -> Iterator[Callable[[], None]]:
    """A step of `total` parts; what it gives is called after each. Its end may come before all are done."""
    if console.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        with Progress(
            TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        ) as progress:
            task = progress.add_task(name, total=total)
            yield lambda: progress.advance(task)
        return
    began, told, done = time.monotonic(), time.monotonic(), 0

    def say() -> None:
        print(f"{name}: {done} of {total}, {time.monotonic() - began:.0f} s", flush=True)

    def advance() -> None:
        nonlocal told, done
        done += 1
        if time.monotonic() - told >= EVERY_S:
            told = time.monotonic()
            say()

    yield advance
    say()
