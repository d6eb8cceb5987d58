"""The table of docs/learn.md: how long pages and lessons of the course take to open, as scripts/measure_learn.py timed them."""

from __future__ import annotations

from typing import Any

from rooftop.lab.records.record import Record, newest

SUBJECT = "learn"


def table(found: list[Record], _site: Any) -> str:
    """Of the newest record: the pages at each width, and the lessons in the terminal, their slowest by name."""
    record = newest(found, "clock", SUBJECT)
    if record is None:
        return "Nothing has been measured yet."
    device = record["device"]
    lines = [f"{device['name']}, {device['cores']} cores; {record['browser']}, headless.", ""]
    lines += ["| what | of them | median, s | slowest, s | which |", "|---|---:|---:|---:|---|"]
    groups: dict[str, list[Any]] = {}
    for row in record["rows"]:
        groups.setdefault(
            f"a page at {row['width']} px" if row["what"] == "page" else "a lesson in the terminal, to its first question", []
        ).append(row)
    for what, rows in groups.items():
        ordered = sorted(rows, key=lambda r: float(r["seconds"]))
        last = ordered[-1]
        lines.append(
            f"| {what} | {len(rows)} | {float(ordered[len(rows) // 2]['seconds']):.2f} | {float(last['seconds']):.2f} | `{last['of']}` |"
        )
    return "\n".join(lines)
