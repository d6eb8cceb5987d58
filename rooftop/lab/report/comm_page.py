"""The tables of docs/comm.md: ops of several ranks on several GPUs of one host, from the records."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rooftop.core import registry
from rooftop.lab.records.store import Record
from rooftop.lab.report.joined import Joined
from rooftop.lab.report.measured import Measured
from rooftop.lab.report.model import SiteData

SEVERAL = re.compile(r" x\d+$")  # how the name of so many cards ends
LADDER, GATHERED = "gemm_comm", "all_gather_matmul_ranks"
NOTHING = "Nothing has been measured yet with the kernels as they stand."


def _fresh(found: Sequence[Record]) -> dict[str, dict[tuple[str, str], dict[str, Measured]]]:
    """Device -> (op, case) -> subject -> its newest record, of the kernels as they are."""
    mine = [r for r in found if r.kind == "bench" and SEVERAL.search(r.card)]
    made: dict[str, dict[tuple[str, str], dict[str, Measured]]] = {}
    for (device, op, subject, case), m in Joined(mine).measured.items():
        if m.kernel is not None and not m.stale:
            made.setdefault(device, {}).setdefault((op, case), {})[subject] = m
    return made


def _us(m: Measured | None) -> str:
    return "" if m is None else f"{m.seconds * 1e6:.0f}" if m.seconds >= 1e-4 else f"{m.seconds * 1e6:.1f}"


def speeds(found: list[Record]) -> dict[str, list[float]]:
    """Name of one of the cards -> of each case how many times as fast ours is as NCCL's unquantised collective on so many of them."""
    made: dict[str, list[float]] = {}
    for device, cases in _fresh(found).items():
        for (op, _), by in cases.items():
            ours = min((m.seconds for s, m in by.items() if s.startswith(f"{op}__")), default=None)
            if ours is not None and (theirs := by.get("peer:NCCL")) is not None:
                made.setdefault(SEVERAL.sub("", device), []).append(theirs.seconds / ours)
    return made


def collectives(found: list[Record], _site: SiteData) -> str:
    """A row a case: the fastest of our kernels, torch's collective of the same tensors unquantised, and how many times as fast ours is."""
    lines: list[str] = []
    for device, cases in sorted(_fresh(found).items()):
        rows = []
        for (op, case), by in sorted(
            cases.items(), key=lambda item: (item[0][0], [int(n) if n.isdigit() else n for n in re.split(r"(\d+)", item[0][1])])
        ):
            ours = sorted(
                (m for s, m in by.items() if s.startswith(f"{op}__") and op != registry.ladder(LADDER).op), key=lambda m: m.seconds
            )
            theirs = by.get("peer:NCCL")
            if ours and theirs is not None:
                name = ours[0].subject.removeprefix(f"{op}__")
                rows.append(
                    f"| {op.removesuffix('_ranks')} | {case} | {_us(theirs)} | {_us(ours[0])} | {theirs.seconds / ours[0].seconds:.2f} | "
                    f"{name} |"
                )
        if rows:
            lines += [
                f"{device}.", "", "| | case | NCCL, unquantised: µs | ours: µs | times as fast | kernel |", "|---|---|---:|---:|---:|---|",
                *rows, ""
            ]
    return "\n".join(lines).rstrip() or NOTHING


def products(found: list[Record], _site: SiteData) -> str:
    """A row a way, a column a case: the ladder gemm_comm, then the product whose rows are gathered."""
    ladder, lines = registry.ladder(LADDER), list[str]()
    for device, cases in sorted(_fresh(found).items()):
        for op, title in ((ladder.op, "matmul_reduce_scatter"), (GATHERED, "all_gather_matmul")):
            names = ladder.cases if op == ladder.op else tuple(c.name for c in registry.op(op).cases if "bench" in c.tags)
            shown = [c for c in (f"{name} bf16" for name in names) if (op, c) in cases]
            ways = {
                s for c in shown for s in cases[op, c] if s.startswith(("peer:", f"{LADDER}/") if op == ladder.op else ("peer:", f"{op}__"))
            }
            if not shown:
                continue
            lines += [
                f"{device}, {title}: microseconds of the slower rank.", "", f"| | {' | '.join(shown)} |", "|---|" + "---:|" * len(shown)
            ]
            for way in sorted(ways, key=lambda s: (not s.startswith("peer:"), s)):
                name = way.removeprefix("peer:").removeprefix(f"{LADDER}/").removeprefix(f"{op}__")
                lines.append(f"| {name} | {' | '.join(_us(cases[op, c].get(way)) for c in shown)} |")
            lines.append("")
    return "\n".join(lines).rstrip() or NOTHING
