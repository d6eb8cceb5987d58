"""The source with what was counted beside each line: for a terminal, and as a page."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from rooftop.lab.simt.lines import source_of
from rooftop.lab.simt.report import Finding, LineCounts, Report

BAR = 10  # characters of the widest bar
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class Row:
    """One line of a file. `heat`: its share, 0 to 1, of what the costliest line makes the memory do (sectors and wavefronts)."""

    number: int
    text: str
    counts: tuple[LineCounts, ...] = ()
    findings: tuple[Finding, ...] = ()
    parted: int = 0
    fma: int = 0
    flops: int = 0  # others
    heat: float = 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        done = [f"{n:,} {what}{'s' if n != 1 else ''}" for n, what in ((self.fma, "FMA"), (self.flops, "FLOP")) if n]
        return (
            *(note(c) for c in self.counts), *([" + ".join(done)] if done else []), *([f"parted {self.parted:,}x"] if self.parted else [])
        )

    @property
    def worst(self) -> float:
        """How many times the least that its accesses need they take; 1 is the best."""
        return max((excess(c) for c in self.counts), default=1.0)


@dataclass(frozen=True)
class Page:
    """One file with its rows, and the totals of the run it was part of."""

    file: str
    rows: tuple[Row, ...]
    first: int = field(default=1)


def excess(c: LineCounts) -> float:
    """Sectors or wavefronts against the ideal, 1 at the least."""
    found, ideal = (c.wavefronts, c.ideal_wavefronts) if c.space == "shared" else (c.sectors, c.ideal_sectors)
    return found / ideal if ideal else 1.0


def note(c: LineCounts) -> str:
    """`global read 4 B x8: 16 sectors (4)`: by request, the ideal in brackets; then what the source has and where the machine code has it,
    if elsewhere."""
    if c.space == "shared":
        found, ideal, word, written = c.wavefronts, c.ideal_wavefronts, "wavefronts", c.source_wavefronts
    else:
        found, ideal, word, written = c.sectors, c.ideal_sectors, "sectors", c.source_sectors
    crowd = f", up to {c.contention} lanes on one address" if c.contention > 1 else ""
    as_written = _widths(c.source_widths or ((c.source_width, c.source_requests),))
    source = f"; as written {as_written}: {written / c.source_requests:.3g} {word}" if c.rewritten else ""
    elsewhere = ", ".join(str(line) if file == c.file else f"{file}:{line}" for file, line in c.found_at)
    where = f"; compiled at line {elsewhere}" if elsewhere else ""
    widths = _widths(c.widths or ((c.width, c.requests),))
    return f"{c.space} {c.op} {widths}: {found / c.requests:.3g} {word} ({ideal / c.requests:.3g}){crowd}{source}{where}"


def _widths(of_width: Sequence[tuple[int, int]]) -> str:
    """`16 B x128, 4 B x512`."""
    return ", ".join(f"{width} B x{requests:,}" for width, requests in of_width)


def pages(report: Report, sources: Mapping[str, str]) -> tuple[Page, ...]:
    """The files that anything was counted or found in; `sources` (shown name -> text) come first, whole after their head."""
    named = dict.fromkeys([*sources, *(c.file for c in report.lines), *(f.file for f in report.findings)])
    most = max((c.wavefronts + c.sectors for c in _by_line(report.lines).values()), default=1) or 1
    found = []
    for file in named:
        text = source_of(file, sources)
        if not text:
            continue
        lines = text.splitlines()
        first = 1
        if text.lstrip().startswith("/* rooftop"):
            first = text[: text.index("*/")].count("\n") + 2
        rows = tuple(_row(report, file, n, lines[n - 1], most) for n in range(first, len(lines) + 1))
        found.append(Page(file, rows, first))
    return tuple(found)


@dataclass
class _Cost:
    sectors: int = 0
    wavefronts: int = 0


def _by_line(lines: Sequence[LineCounts]) -> dict[tuple[str, int], _Cost]:
    found: dict[tuple[str, int], _Cost] = {}
    for c in lines:
        cost = found.setdefault((c.file, c.line), _Cost())
        cost.sectors += c.sectors
        cost.wavefronts += c.wavefronts
    return found


def _row(report: Report, file: str, number: int, text: str, most: int) -> Row:
    counts = tuple(c for c in report.lines if c.file == file and c.line == number)
    return Row(
        number, text, counts, tuple(f for f in report.findings if f.file == file and f.line == number),
        report.divergent.get((file, number), 0),
        report.fma_at.get((file, number), 0), report.other_at.get((file, number), 0), sum(c.sectors + c.wavefronts for c in counts) / most,
    )


def summary(report: Report) -> str:
    """One line: blocks, arithmetic, bytes moved, arithmetic intensity. Of a run that does not end and was only checked, that it was not
    counted."""
    if not report.lines and any(f.kind == "deadlock" for f in report.findings):
        return "not counted: the kernel does not end"
    moved = 32 * sum(c.sectors for c in report.lines)
    flops = 2 * report.fma + report.other_flops
    plural = "" if report.grid_blocks == 1 else "s"
    share = (
        f"{report.blocks:,} of {report.grid_blocks:,} blocks" if report.blocks != report.grid_blocks else f"{report.blocks:,} block{plural}"
    )
    intensity = f", {flops / moved:.3g} a byte moved between the multiprocessors and the L2" if moved else ""
    waves = sum(c.wavefronts for c in report.lines)
    ideal = sum(c.ideal_wavefronts for c in report.lines)
    conflicts = f"; shared memory {waves:,} wavefronts (ideal {ideal:,})" if waves else ""
    return f"{share}: {report.fma:,} FMAs, {report.other_flops:,} other floating operations{intensity}; global memory {moved:,} bytes in sectors{conflicts}"


def bar(heat: float) -> str:
    eighths = round(heat * BAR * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip().ljust(BAR)


def as_text(
    report: Report, sources: Mapping[str, str], colour: bool, width: int = 160, only: Mapping[str, Sequence[range]] = MappingProxyType({})
) -> Iterator[str]:
    """Lines for a terminal. With `colour`: red where an access takes twice what it needs or more, green elsewhere.

    `only`: of a file, the functions that are shown if anything was counted or found in them."""
    red, green, yellow, dim, off = ("\33[31m", "\33[32m", "\33[33m", "\33[2m", "\33[0m") if colour else ("", "", "", "", "")
    for page in pages(report, sources):
        rows = _of(page.rows, only[page.file]) if page.file in only else page.rows
        if rows:
            yield page.file
        for row in rows:
            tone = red if row.worst >= 2 else green
            notes = "; ".join(row.notes)
            code = f"{dim}{row.number:5}{off} {tone}{bar(row.heat)}{off} {row.text}"
            room = width - 17 - len(row.text)
            if notes and len(notes) + 4 <= room:
                yield f"{code}  {tone}// {notes}{off}"
            else:
                yield code.rstrip()
                indent = " " * (17 + len(row.text) - len(row.text.lstrip()))
                for text in row.notes:
                    yield f"{indent}{tone}// {text}{off}"
            for f in row.findings:
                yield f"{' ' * 17}{yellow}^ {f.kind}: {f.message} [block {f.block}, thread {f.thread}]{off}"
        if rows:
            yield ""
    if report.lines or report.fma or report.other_flops or not only:
        yield summary(report)


def _of(rows: Sequence[Row], ranges: Sequence[range]) -> list[Row]:
    """Those of the ranges in which there is anything to say."""
    told = [
        r for r in ranges if any(row.number in r and (row.counts or row.findings or row.parted or row.fma or row.flops) for row in rows)
    ]
    return [row for row in rows if any(row.number in r for r in told)]


_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem; color: #1b1b1b; background: #fff }
h1 { font-size: 1.2rem } h2 { font-size: 1rem; font-family: ui-monospace, monospace }
table { border-collapse: collapse; font: 12px/1.5 ui-monospace, monospace; width: 100% }
td { padding: 0 .6rem; white-space: pre; vertical-align: top } td.n { color: #888; text-align: right } td.note { white-space: normal; color: #555 }
td.bar { width: 7rem } td.bar div { height: .9em; background: #3a7d44 } tr.hot td.bar div { background: #c0392b } tr.hot td.note { color: #c0392b }
tr.fault td { background: #fff3cd } p.fault { color: #8a5a00 }
@media (prefers-color-scheme: dark) { body { background: #16181a; color: #ddd } tr.fault td { background: #4a3b00 } td.note { color: #aaa } }
"""


def as_html(report: Report, sources: Mapping[str, str], title: str, remarks: Sequence[object] = ()) -> str:
    """The same as one page that needs nothing else. `remarks`: sentences above it."""
    out = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{_STYLE}</style>"]
    out.append(f"<h1>{html.escape(title)}</h1><p>{html.escape(summary(report))}</p>")
    out += [f"<p>{html.escape(str(remark))}</p>" for remark in remarks]
    for f in report.findings:
        where = f"{f.file}:{f.line}"
        out.append(f"<p class=fault><b>{html.escape(f.kind)}</b> at {html.escape(where)}: {html.escape(f.message)}</p>")
    for page in pages(report, sources):
        out.append(f"<h2>{html.escape(page.file)}</h2><table>")
        for row in page.rows:
            kind = " ".join(w for w, on in (("hot", row.worst >= 2), ("fault", bool(row.findings))) if on)
            notes = "<br>".join(html.escape(n) for n in (*row.notes, *(f"{f.kind}: {f.message}" for f in row.findings)))
            mark = f'<div style="width:{100 * row.heat:.1f}%"></div>' if row.heat else ""
            line = f"<td class=n>{row.number}</td><td class=bar>{mark}</td><td>{html.escape(row.text)}</td><td class=note>{notes}</td>"
            out.append(f'<tr class="{kind}">{line}</tr>' if kind else f"<tr>{line}</tr>")
        out.append("</table>")
    return "\n".join(out) + "</html>\n"
