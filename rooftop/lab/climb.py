"""The main job: every rung checked where it can run, compiled and inspected for each target, timed where there is a GPU, and reported."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from rooftop.core import registry, settings
from rooftop.core.implementation import device_of
from rooftop.lab import candidates
from rooftop.lab.check import checker, kept
from rooftop.lab.inspect import binary, inspector
from rooftop.lab.records import store
from rooftop.lab.report import data, known, ladder_cases, rung_counts, site
from rooftop.lab.report.model import SiteData


def climb(names: list[str], out: Path) -> bool:
    """Climb the ladders and write the report; prints what it does. True: nothing is wrong."""
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    out.mkdir(parents=True, exist_ok=True)  # before the work: it may not be possible
    for tool in ("cuobjdump", "nvdisasm"):
        binary.tool(tool)
    console = Console()
    started = time.monotonic()
    gpu = torch.cuda.is_available()
    here = "no GPU: Triton in its interpreter, CUDA C++ in the simulator, everything compiled for three targets, times from the records"
    where = torch.cuda.get_device_name() if gpu else here
    console.print(f"climbing on {where}", highlight=False)
    found = [s for name in names or registry.ladder_names() for s in candidates.rungs(registry.ladder(name))]
    shipped = [s for op in dict.fromkeys(s.op.name for s in found) for s in candidates.implementations(registry.op(op))]
    found, shipped = ([s for s in some if s.implementation is None or s.implementation.platform == "gpu"] for some in (found, shipped))
    results: list[checker.Result] = []
    with Progress(TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console) as progress:
        todo = [(s, c) for s in (*found, *shipped) for c in checker.select_cases(s, tags=() if gpu else ("edge",))]
        task = progress.add_task("check", total=len(todo))
        unchanged = 0
        for s, c in todo:
            assert s.implementation is not None
            place, absent = checker.backend_of(s)
            device = device_of(torch.cuda.current_device()) if place == "gpu" else s.implementation.stand_in(90)
            found_before = None if absent or s.supports(c, device) else kept.find(s, c, place, device)
            unchanged += found_before is not None
            results.append(found_before or checker.check(s, c, seed=int(time.time())))
            if found_before is None:
                kept.keep(s, c, results[-1], device)
            progress.advance(task)
        jobs = [(s, inspector.inspect_case(s, None, arch), arch) for s in (*found, *shipped) for arch in _targets(s)]
        task = progress.add_task("compile and inspect", total=len(jobs))
        facts = inspector.many(jobs, lambda job, f: progress.advance(task))
        task = progress.add_task("count memory accesses", total=sum(s.implementation is not None and s.implementation.where().place == "simt" for s in found))
        counts = report_counts({s.rung.ladder for s in found if s.rung}, lambda s: progress.advance(task))
    wrong = [r for r in results if r.status in ("wrong", "error")]
    unmet = [f"{n} on sm_{a}: {'; '.join(k['unmet'])}" for (n, a), f in facts.items() for k in f.get("kernels", []) if k["unmet"]]
    ran = sum(r.status == "ok" for r in results)
    again = f" ({unchanged} of them unchanged since they last were)" if unchanged else ""
    console.print(f"{ran} checks right{again}, {len(wrong)} wrong, {sum(r.status == 'skipped' for r in results)} not run here", highlight=False)
    for line in not_run(Counter(r.message for r in results if r.status == "skipped")):
        console.print(f"  not run: {line}", highlight=False, markup=False)
    for r in wrong:
        console.print(f"  WRONG {r.subject} at {r.case}: {r.message}", highlight=False, markup=False)
    for line in unmet:
        console.print(f"  UNMET {line}", highlight=False, markup=False)
    if gpu:
        from rooftop.lab.timing import bench

        summary = bench.run(bench.fields(found), settings.load().results, say=lambda text: console.print(text, highlight=False, markup=False))
        wrong += [checker.Result("", "", "", "wrong", message=line) for line in summary.wrong]
    digests = known.load()
    with console.status("joining the records to the tree") as shown:
        pages = data.gather(store.read(settings.load().results), facts, [r.to_json() for r in results], counts, digests=digests)
        index = site.write(out, pages, lambda text: shown.update(text))
    known.save(digests)
    for line in found_out(pages, {s.rung.ladder for s in found if s.rung}):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"{time.monotonic() - started:.0f} s; the report: {index.resolve()}", highlight=False, soft_wrap=True)
    console.print(f"next: {Path(sys.argv[0]).resolve()} ls", highlight=False, soft_wrap=True)
    return not wrong and not unmet


REASONS = 3


def not_run(reasons: Counter[str]) -> list[str]:
    """Why cases were not run, the most frequent reasons first, and how many more there are."""
    said = [f"{n} {'case' if n == 1 else 'cases'}: {why}" for why, n in reasons.most_common(REASONS)]
    rest = [n for _, n in reasons.most_common()[REASONS:]]
    return [*said, f"{sum(rest)} more, for {len(rest)} other reasons: rooftop check names them"] if rest else said


LINES = 5


def found_out(pages: SiteData, ladders: Collection[str]) -> list[str]:
    """What was climbed, a ladder a line: how far, to which share of the roof, and the idea that gained most. At most five lines."""
    said = []
    for page in (p for p in pages.ladders if p.name in ladders):
        if page.top is None:
            said.append(f"{page.name}: {len(page.rungs)} rungs, not measured on any GPU")
            continue
        rung, m = page.top
        measured = [(r, c) for r in page.rungs if (c := r.cells.get((page.devices[0].name, page.headline))) and c.kernel and not c.stale]
        steps = [(a[1].seconds / b[1].seconds, b[0]) for a, b in pairwise(measured)]
        first, begun = measured[0]
        climbed = f"{begun.seconds / m.seconds:.1f}x from {first.number:02d} to {rung.number:02d}" if first is not rung else f"{rung.number:02d}"
        text = f"{page.name} on {page.devices[0].short}, {page.headline}: {climbed}"
        text += f", {100 * m.share:.0f} % of the roof" if m.share is not None else ""
        text += f", {m.best_peer.speed:.2f}x {m.best_peer.label}" if m.best_peer else ""
        most = max(steps, key=lambda s: s[0], default=None)
        said.append(text + (f"; the largest step was {most[1].number:02d}_{most[1].slug}, {most[0]:.1f}x" if most else ""))
    more = len(said) - LINES
    return said if more <= 0 else [*said[: LINES - 1], f"and {more + 1} more ladders: the report has them"]


def _targets(s: candidates.Subject) -> tuple[int, ...]:
    return registry.ladder(s.rung.ladder).targets if s.rung else (80, 89, 90)


def report_facts(
    compute: bool = True, say: Callable[[str], None] = lambda text: None, asked: candidates.Asked | None = None, answers: data.Digests | None = None
) -> tuple[Mapping[tuple[str, int], Any], int]:
    """Facts of every rung for every target, and how many are missing: without `compute` those that were found before.

    asked     what was worked out of problems and contracts; grows
    answers   where facts were kept before (rooftop.lab.report.known); grows"""
    asked, answers = asked or candidates.Asked(), {} if answers is None else answers
    wanted = [(s, arch) for name in registry.ladder_names() for s in candidates.rungs(registry.ladder(name)) for arch in _targets(s)]
    if compute:
        jobs = [(s, inspector.inspect_case(s, None, arch, asked), arch) for s, arch in wanted]
        return inspector.many(jobs, lambda job, f: say(f"compiling {job[0].name}")), 0
    found = {}
    for s, arch in wanted:
        at = ("facts", s.name, arch)
        if at not in answers:
            case = inspector.inspect_case(s, None, arch, asked)
            answers[at] = case.id, inspector.key_of(s, case, arch, asked)
        if (facts := inspector.kept_at(answers[at][1], arch)) is not None:
            found[s.name, arch] = facts
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
        found.update(rung_counts.count(candidates.rungs(ladder), headline, run=name in run, done=done if name in run else lambda s: None, answers=answers))
    return found


def build_report(
    out: Path, records: list[store.Record], digests: data.Digests | None = None, say: Callable[[str], None] = lambda text: None, compute: bool = False
) -> tuple[Path, str]:
    """The pages from records, the binaries and the simulator's counts, without checking anything anew. Returns the index, and what the pages lack.

    digests   those worked out before (`rooftop.lab.report.data.gather`)
    say       is told of each step
    compute   compile and count what has not been here: minutes. Else the pages do without"""
    out.mkdir(parents=True, exist_ok=True)  # before the work: it may not be possible
    say("reading the binaries")
    digests = {} if digests is None else digests
    facts, absent = report_facts(compute, say, answers=digests)
    counts = report_counts(registry.ladder_names() if compute else (), lambda s: say(f"counting {s.name}"), digests)
    uncounted = sum(c.why == rung_counts.NOT_YET for c in counts.values())
    say("joining the records to the tree")
    index = site.build(out, records, facts, counts=counts, digests=digests, say=say)
    lacking = [f"{absent} binaries not compiled here yet"] * bool(absent) + [f"{uncounted} rungs not counted in the simulator yet"] * bool(uncounted)
    return index, " and ".join(lacking)
