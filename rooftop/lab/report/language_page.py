"""The same ops in each language: the table of docs/languages.md, and what the page of the report shows beside the sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rooftop.core import helpers, settings
from rooftop.core.backends.table import BACKENDS
from rooftop.core.digests import strip
from rooftop.core.implementation import Implementation
from rooftop.core.registry import HOUSE, House
from rooftop.lab.records.record import Record, of_kind
from rooftop.lab.report.joined import Measured
from rooftop.lab.timing.languages import LANGUAGES, ROWS, subject_of

Found = Mapping[tuple[str, str, str, str], Measured]  # (device, op, subject, case) -> the newest record
EXTRAS = ("cutile", "cute")
NOTHING = "Nothing has been measured yet with the kernels as they stand."


@dataclass(frozen=True)
class InLanguage:
    """A kernel as one of several languages in which the op is written. `lines` of its own files, `shared` of the helpers that it takes
    in."""

    subject: str
    path: str
    source: str
    lines: int
    shared: int
    measured: Measured | None
    compile_s: float | None  # CPU time
    compiler: str
    first_s: float | None  # of the first call in a process, the binary on the disk
    registers: tuple[int, ...]  # of each kernel that is launched
    spills: tuple[int, ...]


@dataclass(frozen=True)
class LanguageRow:
    """An op at one case on one card; a cell a language, None where there is no kernel."""

    op: str
    case: str
    device: str
    cells: tuple[InLanguage | None, ...]


def lines_of(implementation: Implementation) -> tuple[int, int]:
    """Lines of code of a kernel's own files, and of the shared helpers and headers that it uses; without comments, docstrings and empty
    lines."""

    def count(path: Path) -> int:
        return len(strip(path.read_text(encoding="utf-8"), "c" if path.suffix in (".cu", ".cuh") else "python").splitlines())

    path = implementation.path
    own = [path, *([path.with_suffix(".py")] if path.suffix == ".cu" and path.with_suffix(".py").is_file() else [])]
    return sum(map(count, own)), sum(map(count, helpers.all_of(path, implementation.op)))


def rows(
    records: Iterable[Record], measured: Found, stale: Callable[[Record], str | None], house: House = HOUSE
) -> tuple[LanguageRow, ...]:
    """A row an op, case and card, of those cards on which the languages that are extras were timed."""
    costs: dict[tuple[str, str, str], dict[str, Record]] = {}
    for r in of_kind(records, "language"):
        if stale(r) is None:
            costs.setdefault(
                (r.op, r.case, r.subject), {}
            ).update({k: r for k in ("compile_s", "first_s") if k in r})
    found = []
    extras = {row.kernels.get(language) for row in ROWS for language in EXTRAS} - {None}
    cards = sorted({device for (device, _, name, _), m in measured.items() if name in extras and m.stale is None})
    for row in ROWS:
        for device in cards:
            cells = tuple(_cell(measured, costs, house, row.op, row.case, device, row.kernels.get(language)) for language in LANGUAGES)
            if any(cell is not None and cell.measured is not None for cell in cells):
                found.append(LanguageRow(row.op, row.case, device, cells))
    return tuple(found)


def _cell(
    measured: Found, costs: Mapping[tuple[str, str, str], Mapping[str, Record]], house: House, op: str, case: str, device: str,
    name: str | None
) -> InLanguage | None:
    if name is None:
        return None
    subject = subject_of(op, name, house)
    if subject is None or subject.implementation is None:
        return None
    implementation = subject.implementation
    own, shared = lines_of(implementation)
    m: Measured | None = measured.get((device, op, name, case))
    cost = costs.get((op, case, name), {})
    made, first = cost.get("compile_s"), cost.get("first_s")
    kernels = made["kernels"] if made else []
    return InLanguage(
        name, str(implementation.path).removeprefix(f"{settings.CHECKOUT}/"), implementation.path.read_text(encoding="utf-8"), own, shared,
        m if m is not None and m.stale is None and m.kernel is not None else None, float(made["compile_s"]) if made else None,
        str(made["compiler"]) if made else "", float(first["first_s"]) if first else None,
        tuple(int(k["registers"]) for k in kernels), tuple(int(k["spills"]) for k in kernels),
    )


def table(found: Sequence[LanguageRow]) -> str:
    """Two tables a card: times, then costs. An op a row, a language a column."""
    if not found:
        return NOTHING
    names = [BACKENDS[language].language for language in LANGUAGES]
    lines: list[str] = []
    for device in dict.fromkeys(row.device for row in found):
        mine = [row for row in found if row.device == device]
        lines += [
            f"{device}: µs, share of the roof, and speed over the best peer.", "", f"| op | {' | '.join(names)} |",
            "|---|" + "---|" * len(names)
        ]
        lines += [f"| {row.op} {row.case} | {' | '.join(map(_time, row.cells))} |" for row in mine]
        shown = "Lines of code (and of shared helpers; a file that holds the backward too is counted whole)"
        lines += ["", f"{shown}, CPU seconds to compile, ms of the first call, registers, bytes spilled.", ""]
        lines += [f"| op | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
        lines += [f"| {row.op} {row.case} | {' | '.join(map(_cost, row.cells))} |" for row in mine]
        lines.append("")
    return "\n".join(lines).rstrip()


def _time(cell: InLanguage | None) -> str:
    if cell is None:
        return ""
    m = cell.measured
    if m is None:
        return "not measured"
    peer = m.best_peer
    share = f", {m.share:.2f}" if m.share else ""
    return f"{m.seconds * 1e6:.1f}{share}" + (f", {peer.speed:.2f}x {peer.label}" if peer else "")


def _cost(cell: InLanguage | None) -> str:
    if cell is None:
        return ""
    lines = f"{cell.lines}" + (f" (+{cell.shared})" if cell.shared else "")
    parts = [lines, *_maybe(cell.compile_s, "{:.1f} s"), *_maybe(None if cell.first_s is None else cell.first_s * 1e3, "{:.1f} ms")]
    if cell.registers:
        parts.append(f"{'/'.join(map(str, cell.registers))} regs" + (f", {sum(cell.spills)} B spilled" if any(cell.spills) else ""))
    return ", ".join(parts)


def _maybe(value: float | None, form: str) -> Iterable[str]:
    return [] if value is None else [form.format(value)]
