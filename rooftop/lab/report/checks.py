"""What the pages say of correctness: checks against float64, and runs under compute-sanitizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rooftop.core.contract import Contract
from rooftop.lab.records.store import Record
from rooftop.lab.report.model import Checked, Sanitized, ToolRun
from rooftop.lab.sanitize import TOOLS


def checked(now: Sequence[Mapping[str, Any]], recorded: Iterable[Record]) -> tuple[Checked, ...]:
    """Of one subject: checks made just now (`rooftop.lab.check.checker.Result.to_json`), then those on record, none of them stale, by card
    (the newest of each case)."""
    found = [_checked("just now, here", now)] if now else []
    newest: dict[tuple[str, str], Record] = {}
    for r in recorded:
        newest[(r.card, r.case)] = r
    for device in sorted({d for d, _ in newest}):
        rows = [r for (d, _), r in newest.items() if d == device]
        day = max(r.at for r in rows)[:10]
        found.append(_checked(f"{device}, {day}", [
            {"status": "ok" if r.error.ok else "wrong", "backend": r.backend, "case": r.case} for r in rows
        ]))
    return tuple(found)


def _checked(where: str, rows: Sequence[Mapping[str, Any]]) -> Checked:
    failed = tuple((str(r["case"]), str(r.get("message", ""))) for r in rows if r["status"] in ("wrong", "error"))
    skipped = [str(r.get("message", "")) for r in rows if r["status"] == "skipped"]
    backends = " and ".join(sorted({str(r["backend"]) for r in rows if r.get("backend") and r["status"] != "skipped"}))
    where += f" ({backends})" if backends else ""
    return Checked(where, sum(r["status"] == "ok" for r in rows), failed, len(skipped), max(skipped, key=skipped.count, default=""))


def sanitized(op: Contract, recorded: Sequence[Record], stale: Callable[[Record], str | None]) -> tuple[Sanitized, ...]:
    """Of one subject, by card: every tool of compute-sanitizer, one that never ran too. Empty where no tool ran on any card.

    `recorded`: its `sanitize` records, oldest first. `stale`: None for a record of the tree as it is, else why it is not."""
    edge = {c.id for c in op.cases if "edge" in c.tags}
    found = []
    for device in sorted({r.card for r in recorded}):
        mine = [r for r in recorded if r.card == device]
        tools = tuple(_tool(tool, [r for r in mine if r.case == tool], edge, stale) for tool in TOOLS)
        found.append(Sanitized(device, max(r.at for r in mine)[:10], tools))
    return tuple(found)


def _tool(tool: str, runs: Sequence[Record], edge: set[str], stale: Callable[[Record], str | None]) -> ToolRun:
    """One tool on one card. A run stands until a later one of at least its cases: one of a single case does not hide one of all."""
    if not runs:
        return ToolRun(tool, "not run")
    fresh = [r for r in runs if stale(r) is None]
    if not fresh:
        return ToolRun(tool, "stale", words=str(stale(runs[-1])))
    standing = [r for i, r in enumerate(fresh) if not any(set(r["cases"]) <= set(later["cases"]) for later in fresh[i + 1 :])]
    cases = {str(c) for r in standing for c in r["cases"]}
    bad = [r for r in standing if r["errors"] or r.get("message")]
    words = next((str(r.get("first") or r.get("message") or "") for r in bad), "")
    return ToolRun(tool, "wrong" if bad else "clean", sum(int(r["errors"]) for r in bad), len(cases), cases <= edge, words)
