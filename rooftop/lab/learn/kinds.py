"""The kinds of questions. Each function makes those of one kind from a ladder's material: counts of the simulator, facts of binaries,
records, contracts, differences between sources, verdicts on wrong fillings. What is not counted, compiled or recorded is not asked."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations, pairwise, permutations

from rooftop.core import devices, registry
from rooftop.core.spec import TARGETS, Problem, Work
from rooftop.lab.inspect.occupancy import LIMITS, REGISTERS, Occupancy, occupancy
from rooftop.lab.learn.judge import KINDS as VERDICTS
from rooftop.lab.learn.puzzles import Puzzle
from rooftop.lab.learn.questions import Question, shown
from rooftop.lab.learn.words import _
from rooftop.lab.report.data import LadderPage, RungRow
from rooftop.lab.report.facts import KernelFacts
from rooftop.lab.report.joined import Measured
from rooftop.lab.report.rung_counts import Line

ARCH = 90  # whose binaries are asked about
MORE = 40  # registers that a question adds to each thread
APART = 1.05  # gains that are ordered differ by so many times
CHOICES = 4
UNITS = {  # of a contract's work -> their operations
    "fma32": "float32 FMAs", "fma64": "float64 FMAs", "exp": "exponentials", "int": "integer operations",
    "fp32": "float32 additions or comparisons",
}


@dataclass(frozen=True)
class Material:
    """What questions about a ladder are made of."""

    page: LadderPage
    puzzles: tuple[Puzzle, ...] = ()

    @property
    def problem(self) -> Problem:
        """The headline, as an H100 is asked."""
        from rooftop.lab.report.ladder_cases import headline_of

        op = registry.op(self.page.op)
        return op.problem(headline_of(registry.ladder(self.page.name), op), TARGETS["h100"])

    @property
    def work(self) -> Work:
        return registry.op(self.page.op).work(self.problem)


def questions(material: Material) -> list[Question]:
    """All of a ladder, of every kind that there is data for."""
    return [q for make in KINDS.values() for q in make(material)]


def _shuffled(right: str, wrong: Sequence[str], key: str) -> tuple[tuple[str, ...], float]:
    """The choices in an order that follows from the key, and the place of the right one."""
    draw = random.Random(sha256(key.encode()).hexdigest())
    others = list(dict.fromkeys(w for w in wrong if w != right))
    if len(others) > CHOICES - 1:
        others = draw.sample(others, CHOICES - 1)
    choices = [right, *others]
    draw.shuffle(choices)
    return tuple(choices), float(choices.index(right))


# -- counts of the simulator ----------------------------------------------------------------------------------------


def sectors(m: Material) -> Iterator[Question]:
    """How many sectors a warp's access takes."""
    for row in m.page.rungs:
        for name, verb, text in (("sectors_read", "read", READS), ("sectors_written", "write", WRITES)):
            if row.counts is None or name not in row.counts.values:
                continue
            count, least = row.counts.values[name], row.counts.ideals.get(name, 0.0)
            worst = next((x for x in row.counts.lines if x.what == f"global {verb}"), None)
            why = _("As many bytes need {least} at least.", least=shown(least))
            if worst is not None:
                why += _(" Line {line} is the worst, with {found} instead of {ideal}: {text}", **_worst(worst))
            elif count <= 1.05 * least:
                why += _(" So the accesses are coalesced: each sector that is touched is used whole.")
            yield Question(
                f"sectors:{row.name}:{verb}", "sectors", row.name,
                _(text, rung=row.name), count, why, _(COUNTED, case=row.counts.case), unit=_("sectors"),
            )


READS = "A sector is 32 bytes. How many does a read of global memory by a warp touch in {rung}, on average?"
WRITES = "A sector is 32 bytes. How many does a write of global memory by a warp touch in {rung}, on average?"
COUNTED = "counted by the simulator at {case}"


def _worst(x: Line) -> dict[str, object]:
    return {"line": x.line, "found": shown(x.found), "ideal": shown(x.ideal), "text": x.text}


def wavefronts(m: Material) -> Iterator[Question]:
    """How many wavefronts a warp's access to shared memory takes."""
    for row in m.page.rungs:
        if row.counts is None or "wavefronts" not in row.counts.values:
            continue
        count, least = row.counts.values["wavefronts"], row.counts.ideals.get("wavefronts", 0.0)
        worst = next((x for x in row.counts.lines if x.what.startswith("shared")), None)
        why = _("As many bytes need {least} at least, at 128 bytes a wavefront.", least=shown(least))
        why += _(" There is no bank conflict worth a word.") if worst is None else (
            _(" Line {line} has bank conflicts, {found} instead of {ideal}: {text}", **_worst(worst)))
        yield Question(
            f"wavefronts:{row.name}", "wavefronts", row.name,
            _("A wavefront of shared memory serves each of the 32 banks once. How many does an access of a warp take in {rung}, on average?", rung=row.name),
            count, why, _(COUNTED, case=row.counts.case), unit=_("wavefronts"),
        )


def line(m: Material) -> Iterator[Question]:
    """Which line loses the most."""
    for row in m.page.rungs:
        worst = next((x for x in row.counts.lines if x.here), None) if row.counts else None
        if worst is None or worst.found < 1.5 * worst.ideal:
            continue
        assert row.counts is not None
        lines = {x.line for x in row.counts.lines}
        texts = {i: " ".join(text.split()) for i, text in enumerate(row.source.splitlines(), 1)}
        device = row.source.index("*/") if row.source.lstrip().startswith("/* rooftop") and "*/" in row.source else 0
        start = row.source[:device].count("\n") + 1
        others = [
            t for i, t in texts.items() if i > start and i not in lines and "[" in t and ";" in t and not t.startswith(("//", "#"))
            and len(t) < 130
        ]
        right = texts.get(worst.line, worst.text)
        if len(set(others) - {right}) < 2:
            continue
        key = f"line:{row.name}:{worst.what}"
        choices, answer = _shuffled(right, others, key)
        what = "bank conflicts" if worst.unit == "wavefronts" else worst.what.split()[-1]
        yield Question(
            key, "line", row.name, _(LOSES[what], rung=row.name), answer,
            _("Line {line} takes {found} {unit} a request of a warp, and {ideal} would do.", unit=_(worst.unit), **_worst(worst)),
            _(COUNTED, case=row.counts.case), choices,
        )


LOSES = {
    "bank conflicts": "Which line of {rung} loses the most to bank conflicts?",
    "read": "Which line of {rung} loses the most to reads of global memory that are not coalesced?",
    "write": "Which line of {rung} loses the most to writes of global memory that are not coalesced?",
}


# -- facts of binaries ------------------------------------------------------------------------------------------------


def _kernel(row: RungRow) -> KernelFacts | None:
    """The kernel of a rung's binary for ARCH, where it has one alone."""
    facts = next((f for f in row.facts if f.arch == ARCH and len(f.kernels) == 1), None)
    return facts.kernels[0] if facts and facts.kernels[0].threads else None


def _held(k: KernelFacts, more: int = 0) -> Occupancy:
    assert k.threads is not None
    return occupancy(ARCH, registers=k.registers + more, threads=k.threads, static_shared=k.shared)


def _uses(k: KernelFacts, more: int = 0) -> str:
    text = "{registers} registers a thread, {threads} threads and {shared} bytes of shared memory a block"
    return _(text, registers=k.registers + more, threads=k.threads, shared=f"{k.shared:,}")


def _said(k: KernelFacts, o: Occupancy, more: int = 0) -> str:
    limits = ", ".join(f"{_(name)} {n}" for name, n in o.allowed.items())
    text = "With {uses} a multiprocessor holds {blocks} blocks (each limit alone would allow: {limits}). That is {warps} of its {most} warps."
    if o.blocks == 1:
        text = "With {uses} a multiprocessor holds {blocks} block (each limit alone would allow: {limits}). That is {warps} of its {most} warps."
    return _(text, uses=_uses(k, more), blocks=o.blocks, limits=limits, warps=o.warps, most=o.max_warps)


def limiter(m: Material) -> Iterator[Question]:
    """Which resource limits the occupancy."""
    for row in m.page.rungs:
        if (k := _kernel(row)) is None or (o := _held(k)).refused or " and " in o.limiter:
            continue
        key = f"limiter:{row.name}"
        choices, answer = _shuffled(_(o.limiter), [_(x) for x in o.allowed], key)
        yield Question(
            key, "limiter", row.name,
            _("The binary of {rung} for sm_{arch} uses {uses}. Which limit sets how many blocks a multiprocessor holds?", rung=row.name, arch=ARCH,
              uses=_uses(k)),
            answer, _said(k, o), _("compiled here; limits of sm_90"), choices,
        )


def occupied(m: Material) -> Iterator[Question]:
    """What the occupancy becomes with more registers."""
    for row in m.page.rungs:
        if (k := _kernel(row)) is None or k.registers + MORE > 255 or (o := _held(k, MORE)).refused or (now := _held(k)).refused:
            continue
        yield Question(
            f"occupied:{row.name}", "occupied", row.name,
            _(
                "{rung} has an occupancy of {percent} % on sm_{arch}: {uses}. What does it become with {more} more registers a thread? "
                "A multiprocessor has {registers} registers and holds {warps} warps.",
                rung=row.name, percent=f"{now.percent:.0f}", arch=ARCH, uses=_uses(k), more=MORE, registers=f"{REGISTERS:,}",
                warps=LIMITS[ARCH].warps,
            ),
            o.percent, _said(k, o, MORE), _("compiled here; limits of sm_90"), unit="%", within=0.03,
        )


def binary(m: Material) -> Iterator[Question]:
    """Which rung a binary is of."""
    kernels = {row.name: k for row in m.page.rungs if (k := _kernel(row))}
    if len(kernels) < 3:
        return
    for row in m.page.rungs:
        k = kernels.get(row.name)
        if k is None or any(
            other.registers == k.registers and other.shared == k.shared for name, other in kernels.items() if name != row.name
        ):
            continue
        counts = (
            ", ".join(f"{n} {c}" for n, c in sorted(k.counts.items(), key=lambda x: -x[1]) if c and n.split(".")[0] in TELLING)
            or _("none of these")
        )
        key = f"binary:{row.name}"
        titles = {r.name: f"{r.number:02d} {_(r.title)}" for r in m.page.rungs}
        choices, answer = _shuffled(titles[row.name], [titles[n] for n in kernels], key)
        yield Question(
            key, "binary", row.name,
            _("A rung of {ladder}, compiled for sm_{arch}: {uses}; memory, shuffle and matrix instructions: {counts}. Which rung is it?",
              ladder=m.page.name, arch=ARCH, uses=_uses(k), counts=counts),
            answer, _(ITS_IDEA, idea=_(row.idea)), _("compiled here"), choices,
        )


ITS_IDEA = "Its idea: {idea}"
TELLING = ("LDG", "STG", "LDS", "STS", "LDSM", "LDGSTS", "SHFL", "HMMA", "HGMMA", "BAR", "ATOM", "RED")


# -- contracts ---------------------------------------------------------------------------------------------------------


def moved(m: Material) -> Iterator[Question]:
    """The least bytes of a case."""
    work, problem = m.work, m.problem
    if not work.bytes:
        return
    op = registry.op(m.page.op)
    sizes = "; ".join(f"{name} {shown(meta.nbytes / 2**20)} MiB" for name, meta in problem.tensors if meta is not None and meta.numel)
    yield Question(
        f"moved:{m.page.name}", "moved", m.page.name,
        _("How many MiB must {op} at least read and write together at {case}? Each tensor once: {shapes}.", op=op.name,
          case=m.page.headline, shapes=_shapes(problem)),
        (work.read + work.write) / 2**20,
        _(
            "{sizes}. It must read {read} MiB and write {written} MiB.", sizes=sizes, read=shown(work.read / 2**20),
            written=shown(work.write / 2**20)
        ),
        _(CONTRACT, op=op.name), unit="MiB", within=0.03,
    )


CONTRACT = "the contract of {op}"


def _shapes(problem: Problem) -> str:
    return ", ".join(
        f"{name} {'x'.join(map(str, meta.shape))} {meta.dtype}" for name, meta in problem.tensors if meta is not None and meta.numel
    )


def operations(m: Material) -> Iterator[Question]:
    """The operations of a case."""
    for unit, count in m.work.ops.items():
        if count < 1e6:
            continue
        what = _operations(unit)
        yield Question(
            f"operations:{m.page.name}:{unit}", "operations", m.page.name,
            _(
                "How many million {what} must {op} do at {case}? {shapes}.", what=what, op=m.page.op, case=m.page.headline,
                shapes=_shapes(m.problem)
            ),
            count / 1e6,
            _("{count}: {each} for each of the {mib} MiB's bytes that must be moved.", count=f"{count:,.0f}", each=shown(count / max(m.work.bytes, 1)),
              mib=shown(m.work.bytes / 2**20)),
            _(CONTRACT, op=m.page.op), unit=_("million"), within=0.05,
        )


def _operations(unit: str) -> str:
    if unit.startswith("tensor-"):
        return _("{dtype} FMAs of the tensor cores", dtype=unit.partition("-")[2])
    return _(UNITS[unit]) if unit in UNITS else _("operations of the unit {unit}", unit=unit)


def bound(m: Material) -> Iterator[Question]:
    """What sets the least time on each card."""
    for device in m.page.devices:
        sheet = devices.lookup(device.name)
        if sheet is None or not m.work.bytes:
            continue
        times = {"memory": (m.work.read + m.work.write) / (sheet.bandwidth_gbs * 1e9)}
        times |= {unit: count / sheet.per_second(unit) for unit, count in m.work.ops.items() if unit in sheet.rates}
        order = sorted(times, key=lambda n: -times[n])
        if len(order) < 2 or times[order[0]] < 1.2 * times[order[1]]:
            continue
        names = {n: _("the bandwidth of memory") if n == "memory" else _("the rate of {what}", what=_operations(n)) for n in times}
        key = f"bound:{m.page.name}:{devices.slug(device.name)}"
        spare = [_("the latency of a launch"), _("the number of registers of a thread"), _("the size of the L2")]
        choices, answer = _shuffled(names[order[0]], [*(names[n] for n in order[1:]), *spare][: CHOICES - 1], key)
        said = ", ".join(f"{names[n]} {shown(times[n] * 1e6)} µs" for n in order)
        yield Question(
            key, "bound", m.page.name,
            _("On the {card} ({bandwidth} GB/s): what sets the least time of {op} at {case}? {shapes}.", card=device.short,
              bandwidth=f"{sheet.bandwidth_gbs:,.0f}", op=m.page.op, case=m.page.headline, shapes=_shapes(m.problem)),
            answer, _("By the datasheet: {times}. The longest of these is the least time.", times=said),
            _("the contract and the datasheet"), choices,
        )


# -- sources -------------------------------------------------------------------------------------------------------------


def change(m: Material) -> Iterator[Question]:
    """Which rung brings a line."""
    whole = {row.name: {" ".join(x.split()) for x in row.source.splitlines()} for row in m.page.rungs}
    titles = {row.name: f"{row.number:02d} {_(row.title)}" for row in m.page.rungs}
    for puzzle in m.puzzles:
        row = next((r for r in m.page.rungs if r.name == puzzle.blank.rung), None)
        text = puzzle.blank.text.splitlines()[-1].strip()
        if row is None or any(" ".join(text.split()) in whole[r.name] for r in m.page.rungs if r.number < row.number):
            continue
        key = f"change:{puzzle.blank.key('')}"
        choices, answer = _shuffled(titles[row.name], [t for n, t in titles.items() if n != row.name], key)
        if len(choices) < 3:
            continue
        yield Question(
            key, "change", row.name, _("Which rung of {ladder} is the first with this line?", ladder=m.page.name), answer,
            _(ITS_IDEA, idea=_(row.idea)), _("the sources"), choices, code=text,
        )


# -- verdicts on wrong fillings --------------------------------------------------------------------------------------------


def broken(m: Material) -> Iterator[Question]:
    """What a wrong line does."""
    yield from _broken(m, "broken", lambda rule: not rule.startswith(BARRIERS))


def barrier(m: Material) -> Iterator[Question]:
    """What breaks without a barrier."""
    yield from _broken(m, "barrier", lambda rule: rule.startswith(BARRIERS))


BARRIERS = ("the barrier", "the wait")


def _broken(m: Material, kind: str, wanted: Callable[[str], bool]) -> Iterator[Question]:
    verdicts = [_(VERDICTS[k]) for k in ("race", "bounds", "unwritten", "stuck", "wrong", "slower")]
    for puzzle in m.puzzles:
        for wrong in puzzle.wrong:
            if not wanted(wrong.filling.rule):
                continue
            key = f"{kind}:{puzzle.blank.key(wrong.filling.text)}"
            choices, answer = _shuffled(_(VERDICTS[wrong.kind]), verdicts, key)
            ask = "Somebody changes {rung} at line {line}. What breaks without this barrier?" if kind == "barrier" else (
                "Somebody changes {rung} at line {line}. What happens?")
            instead = "".join(f"\n+ {x.strip()}" for x in wrong.filling.text.splitlines() if x.strip())
            yield Question(
                key, kind, puzzle.blank.rung, _(ask, rung=puzzle.blank.rung, line=puzzle.blank.first), answer,
                _("The judge says: {said}", said=wrong.said), _("run in the simulator or the interpreter when the puzzle was proven"),
                choices,
                code="\n".join(f"- {x.strip()}" for x in puzzle.blank.text.splitlines()) + instead,
            )


# -- records ------------------------------------------------------------------------------------------------------------


def _gains(m: Material) -> dict[str, float]:
    """Rung -> its kernel's speed over the rung before at the headline, on the first card."""
    return {row.name: row.measured_speedup for row in m.page.rungs[1:] if row.measured_speedup is not None}


def gain(m: Material) -> Iterator[Question]:
    """What a step gains."""
    for row in m.page.rungs:
        if row.name in (gains := _gains(m)):
            card = m.page.devices[0].short
            ours = _("It had no prediction.") if row.speedup is None else _(
                "The author predicted {ours}.", ours=shown(row.speedup.predicted)
            )
            yield Question(
                f"gain:{row.name}", "gain", row.name,
                _("How many times as fast as the rung before is {rung} on the {card}, at {case}? Its idea: {idea}", rung=row.name, card=card,
                  case=m.page.headline, idea=_(row.idea)), gains[row.name],
                ours + (_(" What limits it now: {limit}", limit=_(row.limit)) if row.limit else ""),
                _(RECORDED, card=card), unit=_("times"),
            )


RECORDED = "recorded on the {card}"


def order(m: Material) -> Iterator[Question]:
    """Which of three changes gains the most."""
    gains = _gains(m)
    titles = {row.name: _(row.title) for row in m.page.rungs}
    triples = [t for t in combinations(gains, 3) if _apart([gains[n] for n in t])]
    triples.sort(key=lambda t: sha256(" ".join(t).encode()).hexdigest())
    for names in triples[:3]:
        right = sorted(names, key=lambda n: -gains[n])
        key = f"order:{' '.join(names)}"
        choices, answer = _shuffled(
            " > ".join(titles[n] for n in right), [" > ".join(titles[n] for n in p) for p in permutations(names)], key
        )
        yield Question(
            key, "order", m.page.name,
            _("Order these steps of {ladder} by what each gains over the rung before it, at {case}, the largest first.", ladder=m.page.name,
              case=m.page.headline),
            answer, "; ".join(_("{what} {gain} times", what=titles[n], gain=shown(gains[n])) for n in right) + ".",
            _(RECORDED, card=m.page.devices[0].short), choices,
        )


def _apart(values: Sequence[float]) -> bool:
    ranked = sorted(values)
    return all(b >= APART * a for a, b in pairwise(ranked))


def share(m: Material) -> Iterator[Question]:
    """How near to the roof the fastest rung comes."""
    top: tuple[RungRow, Measured] | None = m.page.top
    if top is None or (value := top[1].share) is None or top[1].stale:
        return
    row, timed = top
    yield Question(
        f"share:{m.page.name}", "share", m.page.name,
        _("The fastest rung of {ladder} at {case} is {number} {title}. What share of the roof does it reach on the {card}?", ladder=m.page.name,
          case=m.page.headline, number=f"{row.number:02d}", title=_(row.title), card=m.page.devices[0].short),
        100 * value,
        _("It takes {time} µs; at the ceilings that were measured on that card the work takes {least} µs. It is bound by {bound}.",
          time=shown(timed.seconds * 1e6), least=shown(100 * value * timed.seconds * 1e4),
          bound=_("memory") if timed.roofs.bound == "memory" else timed.roofs.bound),
        _(RECORDED, card=m.page.devices[0].short), unit="%", within=0.1,
    )


KINDS: Mapping[str, Callable[[Material], Iterator[Question]]] = {
    f.__name__: f
    for f in (sectors, wavefronts, line, limiter, occupied, binary, moved, operations, bound, change, broken, barrier, gain, order, share)
}
