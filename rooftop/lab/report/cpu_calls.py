"""What scripts/cpu_calls.py measured, results/*/cpu_calls.json, as a table of docs/timing.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rooftop.core import settings
from rooftop.lab.records.record import Record
from rooftop.lab.report.data import SiteData

SIZES = {"1": "small", "2": "medium", "3": "large"}  # scripts/cpu_calls.py has their shapes
DTYPES = ("f32", "bf16")


def table(found: Sequence[Record], _site: SiteData | None = None) -> str:
    paths = sorted(settings.load().results.glob("*/cpu_calls.json")) if found else []
    return "\n\n".join(text(json.loads(p.read_text(encoding="utf-8"))) for p in paths) or "Nothing has been measured yet."


def text(record: Mapping[str, Any]) -> str:
    """Of each op and dtype torch's time in ours, a figure a size; in bold those above what is allowed, which are counted."""
    heads = [f"{d}{more}" for d in DTYPES for more in ("", ", with backward")]
    rows, misses, asked = [], 0, 0
    for name, of in record["rows"].items():
        cells = []
        for dtype in DTYPES:
            for part in ("forward", "both"):
                shown = []
                for size in SIZES:
                    if (point := of.get(dtype, {}).get(size, {})) and part in point:
                        ratio, much = point[part][0] / point[part][1], point[part][0] > point["most"] * point[part][1]
                        asked, misses = asked + 1, misses + much
                        shown.append(f"**{ratio:.2f}**" if much else f"{ratio:.2f}")
                cells.append(" ".join(shown) or "-")
        allowed = " / ".join(dict.fromkeys(f"{p['most']:g}" for d in DTYPES for p in of.get(d, {}).values()))
        host = [f"{p['forward'][0] - p['forward'][1]:.0f}" for d in DTYPES[:1] if (p := of.get(d, {}).get("0"))]
        rows.append(f"| `{name}` | {' | '.join(cells)} | {allowed} | {' '.join(host) or '-'} |")
    return "\n".join([
        f"{record['cpu']} ({record['capability']}), torch {record['torch']}, one thread; load average {record['load']:g} at the beginning.",
        f"{misses} of {asked} figures are above what is allowed, in bold.", "",
        f"| op | {' | '.join(heads)} | allowed | host, µs |", f"|---|{'---:|' * (len(heads) + 2)}", *rows,
    ])
