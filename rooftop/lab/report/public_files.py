"""What scripts/public_files.py found of other people's kernel files, results/public_files.json, as a table of docs/simulator.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rooftop.core import settings
from rooftop.lab.records.record import Record
from rooftop.lab.report.data import SiteData

KINDS = ("whole", "assumed", "alone", "own", "refused", "none")  # as scripts/public_files.py has them
HEADS = (
    "of", "run as it is", "inputs assumed", "kernels alone", "error of the file's", "refused", "no verdict", "median s", "longest s",
    "longest s without a line"
)
SUFFIX = {"cuda": ".cu", "triton": ".py"}


def table(found: Sequence[Record], _site: SiteData | None = None) -> str:
    path = settings.load().results / "public_files.json"
    if not (found and path.is_file()):
        return "Nothing has been measured yet."
    return "\n\n".join(map(text, json.loads(path.read_text(encoding="utf-8"))))


def text(record: Mapping[str, Any]) -> str:
    """One draw: of each run, with what runs before it found of the files that it left out."""
    kinds = {f["sha256"][:16]: f["kind"] for f in record["files"]}
    repositories = len({f["repository"] for f in record["files"]})
    counts = Counter(f["kind"] for f in record["files"])
    lines = [
        f"{counts['cuda']} `.cu` files and {counts['triton']} Triton files of {repositories} repositories, drawn with seed {record['seed']}",
        "before any was read.", "", f"| run | command | {' | '.join(HEADS)} |", f"|---|---|{'---:|' * len(HEADS)}",
    ]
    known: dict[str, Sequence[Any]] = {}
    for name, run in record["runs"].items():
        known |= run["rows"]  # of the files that were not run again what was found before
        of = {at: (at.split()[0], kinds[at.split()[1]]) for at in known}
        for command, kind in sorted({of[at] for at in run["rows"]}, key=lambda x: (x[0] != "simt", x[1])):
            rows = [r for at, r in known.items() if of[at] == (command, kind)]
            came = Counter(r[3] for r in rows)
            times = f"{median(r[1] for r in rows):.1f}", f"{max(r[1] for r in rows):.0f}", f"{max(r[2] for r in rows):.0f}"
            cells = str(len(rows)), *(str(came[k]) for k in KINDS), *times
            lines.append(f"| {name} | `{command} X{SUFFIX[kind]}` | {' | '.join(cells)} |")
    return "\n".join(lines)
