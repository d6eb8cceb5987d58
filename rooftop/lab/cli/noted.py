"""What commands keep for the diary (`rooftop.lab.diary.log`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rooftop.lab.diary import log
from rooftop.lab.records.record import Record

if TYPE_CHECKING:
    from rooftop.lab.check.result import Result
    from rooftop.lab.report.place import Placed
    from rooftop.lab.simt import Report

SAID = 160  # characters of a finding


def check(results: Sequence[Result]) -> None:
    counts: Counter[str] = Counter(r.status for r in results)
    said = "; ".join(f"{r.subject}, {r.case}: {r.message}"[:SAID] for r in [r for r in results if r.status in ("wrong", "error")][:2])
    log.keep(
        "check", (r.subject for r in results), (r.op for r in results), {n: counts[n] for n in ("ok", "wrong", "error", "skipped")},
        said=said
    )


def comparison(what: str, like: str, right: Sequence[bool], faults: int) -> None:
    """Of a file with a function."""
    log.keep("check", [what], figures={"ok": sum(right), "wrong": len(right) - sum(right), "faults": faults}, said=f"like {like}")


def bench(written: Sequence[Record], wrong: int) -> None:
    """`written`: the records of a bench."""
    from rooftop.lab.diary.days import row_of

    ours = [r for r in written if r.kind == "bench" and not r.subject.startswith(("peer:", "ceiling:"))]
    rows = [row for r in ours if (row := row_of(r)) is not None]
    log.keep("bench", (r.subject for r in ours), (r.op for r in ours), {"cases": len(rows), "wrong": wrong}, rows)


def simulation(what: str, report: Report) -> None:
    shared = sum(c.wavefronts for c in report.lines if c.space == "shared")
    counts = {"sectors": sum(c.sectors for c in report.lines), "wavefronts": shared, "blocks": report.blocks, "faults": len(report.faults)}
    log.keep("simt", [what], figures=counts, said=str(report.faults[0])[:SAID] if report.faults else "")


def interpreted(what: str, launches: int, faults: int) -> None:
    """Of a Python file with Triton kernels."""
    log.keep("simt", [what], figures={"launches": launches, "faults": faults})


def diagnosis(what: str, found: Sequence[Any]) -> None:
    """Of the longest kernel. `found`: Diagnosis or Without."""
    one = max(found, key=lambda d: d.seconds or 0.0)
    log.keep("diagnose", [what], figures={"us": round((one.seconds or 0.0) * 1e6, 3)}, said=f"bound: {one.bound}")


def placing(what: str, found: Placed) -> None:
    from rooftop.core import registry

    log.keep(
        "place", [what], [registry.ladder(found.ladder).op], {"distance": found.distance}, said=f"nearest: {' or '.join(found.nearest)}"
    )
