"""What the counts of a kernel mean: a sentence a line, with what to do; and findings grouped by their cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rooftop.lab.simt.report import Finding, LineCounts, Report

EXCESS = 1.5  # times the least that an access needs: from here on it is told
SHARE = 0.02  # of all sectors (wavefronts) of a run: what is less is not worth a sentence
CROWD = 8  # lanes of a warp on one address


@dataclass(frozen=True)
class Sentence:
    """One remark about a line. `weight`: what it costs, as a share of the run's sectors or wavefronts."""

    file: str
    line: int
    text: str
    weight: float

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


def sentences(report: Report, parted: bool = True) -> tuple[Sentence, ...]:
    """The remarks on a counted run, the costliest first."""
    made = [*_memory(report.lines), *_atomics(report.lines), *(_divergence(report) if parted else ())]
    return tuple(sorted(made, key=lambda s: -s.weight))


def _memory(lines: Sequence[LineCounts]) -> Iterator[Sentence]:
    sectors, waves = sum(c.sectors for c in lines) or 1, sum(c.wavefronts for c in lines) or 1
    for c in lines:
        if c.op == "atomic":
            continue
        if c.space == "global" and c.ideal_sectors and c.sectors / c.ideal_sectors >= EXCESS and c.sectors / sectors >= SHARE:
            yield Sentence(c.file, c.line, _uncoalesced(c), (c.sectors - c.ideal_sectors) / sectors)
        if c.space == "shared" and c.ideal_wavefronts and c.wavefronts / c.ideal_wavefronts >= EXCESS and c.wavefronts / waves >= SHARE:
            yield Sentence(c.file, c.line, _conflicts(c), (c.wavefronts - c.ideal_wavefronts) / waves)


def _bytes(n: int) -> str:
    n = abs(n)
    return f"{n // 1024} KiB" if n >= 1024 and n % 1024 == 0 else f"{n:,} B"


def _uncoalesced(c: LineCounts) -> str:
    times = f"uncoalesced {c.op}, {c.sectors / c.ideal_sectors:.1f}x the sectors"
    if c.apart is None:
        return f"{times}: the threads of a warp take scattered addresses; sort the work by address, or stage it in shared memory"
    if c.apart == 0:
        return f"{times}: groups of threads share an address and the groups lie apart; let threadIdx.x run over neighbouring elements"
    if abs(c.apart) == c.width:
        return f"{times}: rows of neighbouring threads are short or begin between sectors; align them to 32 B, or give a warp longer rows"
    return (
        f"{times}: neighbouring threads take {c.width} B each, {_bytes(c.apart)} apart; let threadIdx.x run over neighbouring elements"
        + (", or read them as one vector" if abs(c.apart) <= 16 else ", or pass the tile through shared memory")
    )


def _conflicts(c: LineCounts) -> str:
    times = f"bank conflicts, {c.wavefronts / c.ideal_wavefronts:.1f}x the wavefronts of the {c.op}s"
    if c.apart is None:
        return f"{times}: the threads of a warp meet in a bank at different rows; pad the rows of the array, or swizzle its columns"
    if c.apart % 128 == 0 and c.apart:
        return f"{times}: neighbouring threads are {_bytes(c.apart)} apart, all in one bank; pad each row by one element, or swizzle the columns"
    return f"{times}: neighbouring threads are {_bytes(c.apart)} apart; pad the rows, or let neighbouring threads take neighbouring words"


def _atomics(lines: Sequence[LineCounts]) -> Iterator[Sentence]:
    for c in lines:
        if c.op == "atomic" and c.contention >= CROWD:
            yield Sentence(
                c.file, c.line,
                f"up to {c.contention} threads of a warp add to one address, one after the other; sum within the warp or block first", 0.5
            )


def _divergence(report: Report) -> Iterator[Sentence]:
    warps = max(report.threads, 1) / 32
    for (file, line), n in report.divergent.items():
        if n / warps >= 1 or (report.threads == 0 and n):
            yield Sentence(file, line, f"divergence: warps parted {n:,} times here; let whole warps take the same branch", 0.0)


# -- findings
# --------------------------------------------------------------------------------------------------------------------------------------

_PLACES = ("out-of-bounds", "misaligned", "uninitialised", "const-write")


def grouped(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings with one cause as one: the two sides of a race, the lines that one missing barrier leaves open, an index that several lines
    use."""
    made: list[Finding] = []
    for f in found:
        cause = next((i for i, g in enumerate(made) if _same_cause(g, f)), None)
        if cause is None:
            made.append(f)
        else:
            made[cause] = replace(made[cause], count=made[cause].count + f.count, also=(*made[cause].also, f.line))
    return tuple(made)


def _same_cause(a: Finding, b: Finding) -> bool:
    if a.kind != b.kind or a.file != b.file:
        return False
    if a.kind in _PLACES:
        return a.line == b.line
    if a.kind in ("shared-race", "warp-race", "global-race") and a.other and b.other:
        return {a.line, *a.also, a.other.line} & {b.line, b.other.line} != set()
    return False


def kernel_lines(text: str, kernels: Mapping[str, object] | None = None) -> list[range]:
    """The lines of the functions of the device's."""
    from rooftop.lab.simt import host
    from rooftop.lab.simt.tokens import tokenise

    tokens = tokenise(text)
    marks = host.marks([text])
    found: list[range] = []
    at = 0
    while at < len(tokens):
        try:
            end, opens = host.declaration(tokens, at)
        except host.UnreadableError:
            return [range(1, text.count("\n") + 2)]
        part = tokens[at:end]
        code = [t for t in part if t.kind in ("word", "symbol")]
        if not opens and code and any(t.text in marks for t in code):
            found.append(range(code[0].line, part[-1].line + part[-1].text.count("\n") + 1))
        at = end
    return found
