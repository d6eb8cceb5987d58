"""The table of docs/linear_cross_entropy.md: time against memory of every rung, kernel and peer, from the records."""

from __future__ import annotations

from collections.abc import Mapping

from rooftop.lab.records.store import Record
from rooftop.lab.report.joined import Joined
from rooftop.lab.report.measured import Measured
from rooftop.lab.report.model import SiteData
from rooftop.ops._linear_cases import SHAPES

OP = "linear_cross_entropy"
Found = Mapping[tuple[str, str, str, str], Measured]  # (device, op, subject, case) -> the newest record


def front(found: list[Record], _site: SiteData) -> str:
    """A row a way, two columns a shape: ms of a forward and its gradients, and MiB that are allocated at once at most, gradients included.
    What is made in two ops is two records: their times together, and the larger peak."""
    mine = [r for r in found if r.kind == "bench" and r.op in (OP, f"{OP}_bwd")]
    measured = {k: m for k, m in Joined(mine).measured.items() if m.kernel is not None and not m.stale}
    lines: list[str] = []
    for device in sorted({k[0] for k in measured}):
        ways = _rows(measured, device)
        rows = {way: [_cell(measured, device, *at, *shape) for shape in SHAPES.items()] for way, at in ways.items()}
        if not any(cell for cells in rows.values() for cell in cells):
            continue
        shapes = " | ".join(f"{' x '.join(map(str, s))}: ms | MiB" for s in SHAPES.values())
        lines += [f"{device}, bf16.", "", f"| way | {shapes} |", "|---|" + "---:|---:|" * len(SHAPES)]
        lines += [f"| {way} | {' | '.join(cell or ' | ' for cell in cells)} |" for way, cells in rows.items() if any(cells)]
        lines.append("")
    return "\n".join(lines).rstrip() or "Nothing has been measured yet with the kernels as they stand."


def _rows(measured: Found, device: str) -> dict[str, tuple[str, str]]:
    """What a row is called -> the subject, and the point that it is measured at."""
    subjects = sorted({s for d, op, s, _ in measured if d == device and op == OP})
    found = {s: (s, "fast") for s in subjects if "/" in s}
    for memory in ("fast", "small"):
        found |= {f'memory="{memory}", {s.removeprefix(f"{OP}__")}': (s, memory) for s in subjects if s.startswith(f"{OP}__")}
    return found | {s.removeprefix("peer:"): (s, "fast") for s in subjects if s.startswith("peer:")}


def _cell(measured: Found, device: str, subject: str, memory: str, shape: str, sizes: tuple[int, int, int]) -> str:
    case = f"{shape} {'x'.join(map(str, sizes))}, {memory} bf16"
    parts = [measured.get((device, OP, subject, case))]
    if memory == "small":
        parts.append(measured.get((device, f"{OP}_bwd", subject.replace(OP, f"{OP}_bwd"), case)))
    there = [m for m in parts if m is not None]
    if len(there) < len(parts):
        return ""
    peaks = [m.memory for m in there if m.memory is not None]
    return (
        f"{sum(m.seconds for m in there) * 1e3:.2f} | {max(peaks) / 2**20:.0f}" if peaks
        else f"{sum(m.seconds for m in there) * 1e3:.2f} | "
    )
