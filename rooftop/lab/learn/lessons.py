"""The lessons: a rung each, with what is asked before its results are shown. The terminal and the pages show the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from rooftop.core import registry
from rooftop.core.prediction_names import SPEEDUP
from rooftop.core.spec import TARGETS
from rooftop.lab.learn.kinds import ARCH, Material
from rooftop.lab.learn.puzzles import Puzzle, puzzles
from rooftop.lab.learn.questions import TEXTS, Prediction, Question
from rooftop.lab.learn.words import _
from rooftop.lab.records.store import Record
from rooftop.lab.report.data import LadderPage, RungRow
from rooftop.lab.report.drawings.canvas import Canvas, Picture
from rooftop.lab.report.drawings.lanes import LANES, SECTOR, touched
from rooftop.lab.report.rung_counts import Access

MOST = 3  # predictions that a lesson asks for
SHOWN = 8  # sectors of a drawing
LINE = 100  # characters of a line that a note shows
BANKS, WORD = 32, 4  # of shared memory; bytes
UNASKED = ("check", "sanitize", "fuzz")  # kinds of records that no lesson shows
ON_A_CARD = "How many times as fast as the rung before, on the {card}, at {case}?"
ON_NONE = "How many times as fast as the rung before, at {case}?"
FIRST = ("sectors_read", "sectors_written")  # asked of a rung for which nothing was predicted


@dataclass(frozen=True)
class Ask:
    """A prediction that a lesson asks for, before anybody has looked."""

    name: str
    text: str
    unit: str
    ours: float | None


def material(name: str, records: Sequence[Record], *, compiled: bool = False, done: Callable[[str], None] = lambda rung: None) -> Material:
    """A ladder with what is recorded, and counted or compiled here before; with `compiled`, what is missing of counts and binaries is made
    now.

    `done` is told of each rung. Raises RegistryError for no such ladder."""
    from rooftop.lab import candidates
    from rooftop.lab.inspect import inspector
    from rooftop.lab.report import data, known, ladder_cases, rung_counts

    ladder = registry.ladder(name)
    subjects, answers, memo = candidates.rungs(ladder), known.load(), candidates.Memo()
    binaries = [
        (s, ARCH) for s in subjects if s.implementation is not None and s.implementation.platform == "gpu" and not s.implementation.builds()
    ]
    facts = known.facts(binaries, memo, answers)
    missing = (
        [(s, inspector.inspect_case(s, None, arch, memo), arch) for s, arch in binaries if (s.name, arch) not in facts] if compiled else []
    )
    facts |= inspector.many(missing, lambda job, found: done(job[0].name))
    headline = ladder_cases.headline_of(ladder, registry.op(ladder.op))
    counts = rung_counts.count(subjects, headline, run=compiled, done=lambda s: done(s.name), answers=answers)
    mine = [r for r in records if r.op in ("", ladder.op) and r.kind not in UNASKED]  # the rest takes seconds to join
    page = data.Gatherer(mine, digests=answers, facts=facts, counts=counts).ladder_page(ladder)
    known.save(answers)
    return Material(page, puzzles(name))


def row_of(page: LadderPage, rung: str) -> tuple[RungRow | None, RungRow]:
    """A rung of a page, after the one before it. Raises RegistryError."""
    at = next((i for i, row in enumerate(page.rungs) if row.name == rung), None)
    if at is None:
        raise registry.unknown("rung", rung, [row.name for row in page.rungs])
    return page.rungs[at - 1] if at else None, page.rungs[at]


def asks(page: LadderPage, row: RungRow) -> tuple[Ask, ...]:
    """What a lesson asks before it shows: what the author predicted, and the gain."""
    head = registry.rung(row.name).head
    ours = dict(head.predict) if head is not None else {}
    first = page.rungs[0].name == row.name
    names = [n for n in (SPEEDUP, *(x for x in ours if x != SPEEDUP)) if n in TEXTS and not (first and n == SPEEDUP)]
    if not any(n != SPEEDUP for n in names) and registry.rung(row.name).implementation.where().place == "simt":
        names += FIRST
    made = []
    for name in names[:MOST]:
        text, unit = TEXTS[name]
        if name == SPEEDUP:
            text = ON_A_CARD if page.devices else ON_NONE
        about = {"card": page.devices[0].short if page.devices else "", "case": page.headline} if name == SPEEDUP else {}
        made.append(Ask(name, _(text, **about), _(unit), ours.get(name)))
    return tuple(made)


def answer(ask: Ask, page: LadderPage, row: RungRow) -> Prediction | None:
    """What came of it; None where it is neither counted nor recorded."""
    if ask.name == SPEEDUP:
        found, source = row.measured_speedup, _("recorded on the {card}", card=page.devices[0].short) if page.devices else ""
    else:
        found = row.counts.values.get(ask.name) if row.counts else None
        source = _("counted here at {case}", case=row.counts.case) if row.counts else ""
    return None if found is None else Prediction(ask.name, ask.text, ask.unit, ask.ours, found, source)


def launch(row: RungRow, page: LadderPage) -> str:
    """What a rung launches at the headline, in one line; "" where it is nothing of its own."""
    from rooftop.lab.report.ladder_cases import headline_of

    rung, op = registry.rung(row.name), registry.op(page.op)
    implementation = rung.implementation
    if implementation.platform != "gpu" or implementation.backend not in ("cuda", "triton", "gluon"):
        return ""
    from rooftop.core.call import problem_for_kernels

    problem = problem_for_kernels(op, op.problem(headline_of(registry.ladder(page.name), op), TARGETS[max(ARCH, implementation.arch)]))[0]
    if implementation.supports(problem):
        return ""
    launches = implementation.launches(problem, implementation.resolve(problem)[0])
    said = []
    for one in launches[:3]:
        blocks, about = prod(one.grid), {
            "blocks": f"{prod(one.grid):,}", "threads": prod(one.block), "shared": f"{one.shared:,}", "warps": one.warps
        }
        if implementation.backend != "cuda":
            said.append(
                _("{blocks} program with num_warps={warps}" if blocks == 1 else "{blocks} programs with num_warps={warps}", **about)
            )
        else:
            said.append(_("{blocks} block of {threads} threads" if blocks == 1 else "{blocks} blocks of {threads} threads", **about))
            said[-1] += _(" and {shared} bytes of dynamic shared memory", **about) if one.shared else ""
    more = _(", and {more} more launches", more=len(launches) - 3) if len(launches) > 3 else ""
    return _("At {case} it launches {launches}.", case=page.headline, launches=_(", then ").join(said) + more) if said else ""


def code(row: RungRow) -> list[str]:
    """The lines of a rung without its idea, prediction and limit."""
    from rooftop.lab.report.site import lesson

    lines = row.source.splitlines()
    return [lines[i] for i in lesson(row.source)]


def questions_of(asked: Sequence[Question], rung: str) -> list[Question]:
    return [q for q in asked if q.subject == rung]


def puzzles_of(found: Sequence[Puzzle], rung: str) -> list[Puzzle]:
    return [p for p in found if p.blank.rung == rung]


# -- which thread takes which bytes --------------------------------------------------------------------------------------


def map_of(access: Access) -> tuple[str, str]:
    """What the lanes of a warp do at a line, in words and as a row of characters: the sectors of global memory, or the banks of shared
    memory."""
    shared, one = access.what.startswith("shared"), round(access.found, 2) == 1
    text = ("{n} wavefront a warp" if one else "{n} wavefronts a warp") if shared else (
        "{n} sector a warp" if one else "{n} sectors a warp"
    )
    cost = _(text, n=f"{access.found:.3g}")
    cost += "" if access.found <= 1.02 * access.ideal else _(", {n} at least", n=f"{access.ideal:.3g}")
    about = {"line": access.line, "what": _(access.what), "width": access.width, "cost": cost}
    if access.apart is None:
        return _("line {line}, {what}: {width} B a thread, the lanes lie irregularly; {cost}", **about), ""
    drawn, takes = _drawn(access)
    drawn = drawn if abs(takes - access.found) <= 0.02 * access.found else ""
    if access.apart == 0:
        return _("line {line}, {what}: {width} B a thread, all lanes one address; {cost}", **about), drawn
    text = "line {line}, {what}: {width} B a thread, the next lane mostly {apart} B on; {cost}"
    if access.apart < 0:
        text = "line {line}, {what}: {width} B a thread, the next lane mostly {apart} B back; {cost}"
    return _(text, apart=f"{abs(access.apart):,}", **about), drawn


def sectors_of(access: Access) -> dict[int, set[int]]:
    """Sector -> the bytes of it that a warp asks for, where each lane keeps to the same distance."""
    start = -(-(LANES - 1) * max(-(access.apart or 0), 0) // SECTOR) * SECTOR
    return touched(f"{start} + lane * ({access.apart})", access.width)


def banks_of(access: Access) -> list[int]:
    """Of each of the 32 banks how many words of it a warp asks for. The most of these is how many wavefronts it takes."""
    words = {(lane * (access.apart or 0) + b) // WORD for lane in range(LANES) for b in range(0, access.width, WORD)}
    return [sum(w % BANKS == bank for w in words) for bank in range(BANKS)]


def _drawn(access: Access) -> tuple[str, int]:
    """A row of characters, and the cost of what it shows. Sectors are boxes of eight, a # for four bytes that are asked for, a dot for four
    that come along; banks are digits, + for more than nine words."""
    if access.what.startswith("shared"):
        held = banks_of(access)
        return _("banks ") + "".join("." if n == 0 else str(n) if n < 10 else "+" for n in held), max(held)
    sectors = sectors_of(access)
    boxes = []
    for sector in sorted(sectors)[:SHOWN]:
        words = {b % SECTOR // WORD for b in sectors[sector]}
        boxes.append("[" + "".join("#" if w in words else "." for w in range(SECTOR // WORD)) + "]")
    return " ".join(boxes) + (_(" ... {n} in all", n=len(sectors)) if len(sectors) > SHOWN else ""), len(sectors)


STEPS, SHARES = 4, 8  # of a walk that are drawn, and of each as how many parts


def walk_of(access: Access) -> tuple[str, str]:
    """How the first warp goes on at a line that reads or writes global memory, in words and as a row of characters: a step is SHARES
    characters, # for what the warp takes of it. "" where it comes once, or in no such way. A phase is what lies between two barriers."""
    times = next((n for n in access.requests if n), 0)
    words: list[str] = []
    if access.what.startswith("shared"):
        return "", ""
    if times > 1:
        words.append(_("{n} times a phase" if access.phases > 1 else "{n} times", n=f"{times:,}") + _step(access.within))
    if access.onward is not None:
        words.append(_("until phase {n}, from one to the next", n=access.phases) + _step(access.onward))
    step = abs(access.onward or access.within or 0)
    span = 31 * abs(access.apart) + access.width if access.apart is not None else 0
    if not words or not 0 < span <= step:
        return "; ".join(words), ""
    taken = -(-SHARES * span // step)
    return "; ".join(words), "|".join(["#" * taken + "." * (SHARES - taken)] * STEPS) + "| ..."


def _step(step: int | None) -> str:
    if step is None:
        return ""
    return _(" at the same place") if step == 0 else _(" mostly {n} B on" if step > 0 else " mostly {n} B back", n=f"{abs(step):,}")


@dataclass(frozen=True)
class Timeline:
    """What a warp asks of memory from barrier to barrier. `rows`: a line's access, and its requests in each of the first phases; `phases`:
    in all."""

    rows: tuple[tuple[str, tuple[int, ...]], ...]
    phases: int

    @property
    def text(self) -> Iterator[str]:
        """Line by line, for the terminal."""
        from rich.cells import cell_len

        wide = max(cell_len(name) for name, _ in self.rows)
        count = len(self.rows[0][1])
        more = _("  ... of {n}", n=self.phases) if self.phases > count else ""
        yield _("phase") + " " * (wide + 1 - cell_len(_("phase"))) + "".join(f"{i + 1:6d}" for i in range(count)) + more
        for name, requests in self.rows:
            yield name + " " * (wide + 1 - cell_len(name)) + "".join(f"{n or '.':>6}" for n in requests)


def timeline(row: RungRow) -> Timeline | None:
    """Of the first warp of a rung, as the simulator followed it; None where it meets no barrier."""
    found = [a for a in (row.counts.accesses if row.counts else ()) if any(a.requests)]
    phases = max((a.phases for a in found), default=0)
    if phases < 2:
        return None
    return Timeline(tuple((_("line {line}, {what}", line=a.line, what=_(a.what)), a.requests[:phases]) for a in found), phases)


def notes(before: RungRow | None, row: RungRow) -> Iterator[str]:
    """What a rung's lines do to memory: each line, with a + where it is new, and beneath it its accesses with their maps and walks."""
    lines = row.source.splitlines()
    old = {" ".join(line.split()) for line in before.source.splitlines()} if before is not None else None
    told = 0
    for access in row.counts.accesses if row.counts else ():
        if access.line != told:
            told, text = access.line, " ".join(lines[access.line - 1].split())
            mark = "+" if old is not None and text not in old else " "
            yield f"{mark} {text if len(text) <= LINE else f'{text[:LINE]}...'}"
        words, drawn = map_of(access)
        yield f"      {words}"
        if drawn:
            yield f"        {drawn}"
        words, drawn = walk_of(access)
        if words:
            yield "      " + _("a warp walks on: {words}", words=words)
        if drawn:
            yield f"        {drawn}"
    if (found := timeline(row)) is not None:
        yield _("requests of a warp, from barrier to barrier:")
        yield from (f"    {line}" for line in found.text)


def drawings(page: LadderPage, row: RungRow) -> list[tuple[str, str]]:
    """The drawings of the ladder's page that are of this rung (tiles, pipelines in time, banks): their anchors there, and what they show in
    words."""
    return [
        (f"step-{i}", step.picture.about) for i, step in enumerate(page.derivation, 1) if step.rung == row.name and step.picture is not None
    ]


def picture(before: RungRow | None, row: RungRow) -> Picture | None:
    """The maps of those accesses of a rung that are other than the rung before's, drawn; None where there are none."""
    old = set(map(_kind, before.counts.accesses)) if before is not None and before.counts else set()
    canvas, about, y = Canvas(), [], 0.0
    for access in {_kind(a): a for a in (row.counts.accesses if row.counts else ())}.values():
        words, drawn = map_of(access)
        if not drawn or _kind(access) in old:
            continue
        about.append(words)
        canvas.text(0, y + 12, words)
        how, walked = walk_of(access)
        if how:
            about.append(_("a warp walks on: {words}", words=how))
            canvas.text(0, y + 48, about[-1])
        for i, share in enumerate(walked.removesuffix("| ...").split("|") if walked else ()):
            canvas.box(i * 64.0, y + 54, 63, 14, "paper")
            canvas.box(i * 64.0, y + 54, 63 * share.count("#") / SHARES, 14, "a")
        if access.what.startswith("shared"):
            held = banks_of(access)
            for bank, n in enumerate(held):
                said = str(n) if n and (n != held[bank - 1] or not bank) else ""  # once of banks beside each other that are alike
                canvas.box(bank * 20.0, y + 18, 19, 14, "hot" if n * BANKS > 1.5 * sum(held) else "a" if n else "paper", said)
        else:
            sectors = sectors_of(access)
            for i, sector in enumerate(sorted(sectors)[:SHOWN]):
                canvas.box(i * 32.0, y + 18, 31, 14, "paper")
                used = len(sectors[sector]) / SECTOR
                canvas.box(i * 32.0, y + 18, 31 * used, 14, "a" if used > 0.5 else "hot")
            if len(sectors) > SHOWN:
                canvas.text(SHOWN * 32.0 + 4, y + 29, _(" ... {n} in all", n=len(sectors)).strip())
        y += 42 + (14 if how else 0) + (20 if walked else 0)
    return canvas.picture("; ".join(about)) if about else None


def _kind(access: Access) -> tuple[object, ...]:
    """Accesses that are drawn alike."""
    return access.what, access.width, access.apart, access.onward if access.what.startswith("global") else None
