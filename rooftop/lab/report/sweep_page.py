"""Of an op's sweep on a card what its page shows: share of the roof against size, peers as thin lines, the points that fall behind by
name. And the tables of docs/gpu.md, of the row ops together, and of docs/matmul.md, of the products."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from markupsafe import Markup

from rooftop.lab.records.record import Record, of_kind
from rooftop.lab.report.markup import table
from rooftop.lab.report.model import Behind, SweepView
from rooftop.lab.report.scatter import Line, Point, drawing
from rooftop.lab.timing import swept
from rooftop.lab.tune import regret

NAMED = 6  # of the worst points, in the drawing
LISTED = 20  # and in the table
LARGE = 32 << 20  # bytes that a point of the table moves, at least
ROWS = ("softmax", "rms_norm", "layer_norm", "cross_entropy")
ELEMENTS = ("gelu", "silu", "square", "swiglu", "geglu", "add", "bias_mask_scale_add")
GROUPS: Mapping[str, tuple[str, ...]] = {
    "softmax, norms, cross_entropy": ROWS, "their backwards": tuple(f"{op}_bwd" for op in ROWS),
    "elementwise and gated, both ways": (*ELEMENTS, *(f"{op}_bwd" for op in ELEMENTS)), "transpose": ("transpose",)
}
PRODUCTS = ("matmul", "scaled_matmul")
PARTS = (0.5, 0.95, 0.98, 0.99)  # of the points
HOURS = timedelta(hours=2)


def newest(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Op -> its newest sweep on each card. A regret is none: its points are few."""
    found: dict[tuple[str, str], Record] = {}
    for r in (r for r in of_kind(records, "sweep") if r["us"] and "best" not in r):
        found[r.op, r.card] = r
    ops: dict[str, list[Record]] = {}
    for (op, _), r in found.items():
        ops.setdefault(op, []).append(r)
    return ops


def reached(shares: Iterable[float], part: float) -> float:
    """The share of the roof that this part of the points reaches; there is at least one."""
    found = sorted(shares, reverse=True)
    return found[math.ceil(part * len(found)) - 1]


def campaign(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Op -> its sweeps on each card that are at most HOURS older than the newest: runs that time left parts of out, with other seeds."""
    found: dict[tuple[str, str], list[Record]] = {}
    for r in of_kind(records, "sweep"):
        if r["us"] and "best" not in r:
            found.setdefault((r["op"], r.card), []).append(r)
    ops: dict[str, list[Record]] = {}
    for (op, _), several in found.items():
        at = [datetime.fromisoformat(r.at) for r in several]
        ops.setdefault(op, []).extend(r for r, when in zip(several, at, strict=True) if max(at) - when <= HOURS)
    return ops


def together(records: Sequence[Record], _site: object = None) -> str:
    """The newest sweeps of the row ops, and the newest regret of each, as tables: what share of the roof the points reach, and how fast they
    are beside peers; and what the choice of kernel and config loses."""
    sweeps, lost = campaign(records), {(r["op"], r.card): r for r in of_kind(records, "sweep") if r["us"] and "best" in r}
    heads = ["ops", "on", "points", *(f"{100 * part:g} % of them reach" for part in PARTS), "beside"]
    rows, chosen = list[tuple[object, ...]](), list[tuple[object, ...]]()
    for name, ops in GROUPS.items():
        for card in sorted({r.card for op in ops for r in sweeps.get(op, ())}):
            found = [p for op in ops for r in sweeps.get(op, ()) if r.card == card for p in swept.points(r) if p.moved >= LARGE]
            if found:
                shares = (f"{reached([p.share for p in found], part):.2f}" for part in PARTS)
                rows.append((name, card, len(found), *shares, _beside(found)))
        for card in sorted({at for op, at in lost if op in ops}):
            ratios = [x for op in ops if (op, card) in lost for x in regret.ratios(lost[op, card])]
            chosen.append((name, card, len(ratios), f"{regret.mean(ratios):.3f}", f"{max(ratios):.2f}"))
    said = table(" | ".join(heads), rows, "llrrrrrl") if rows else ["Nothing has been measured yet."]
    if chosen:
        said += ["", *table("ops | on | points | time over the best, mean | most", chosen, "llrrr")]
    return "\n".join(said)


def products(records: Sequence[Record], _site: object = None) -> str:
    """The newest sweeps of the matrix products beside their peers, and the newest regret of each, as tables."""
    sweeps, rows, chosen = campaign(records), list[tuple[object, ...]](), list[tuple[object, ...]]()
    for op in PRODUCTS:
        for card in sorted({r.card for r in sweeps.get(op, ())}):
            found = [p for r in sweeps[op] if r.card == card for p in swept.points(r)]
            for dtype, even in sorted({(p.dtype, p.aligned) for p in found}, key=lambda kind: (kind[0], not kind[1])):
                some = [p for p in found if (p.dtype, p.aligned) == (dtype, even)]
                for peer in dict.fromkeys(name for p in some for name in p.peers):
                    beside = [(p.peers[peer] / p.seconds, p) for p in some if peer in p.peers]
                    least, at = min(beside, key=lambda b: b[0])
                    rows.append((
                        f"{op}, {dtype}", "start on 16 bytes" if even else "odd", card, peer, len(beside), f"{regret.mean([x for x, _ in beside]):.2f}",
                        f"{least:.2f} at {' × '.join(str(at.sizes[n]) for n in ('M', 'N', 'K'))}",
                    ))
    for (op, card), r in {(r["op"], r.card): r for r in of_kind(records, "sweep") if r["us"] and "best" in r}.items():
        if op in PRODUCTS:
            lost = regret.ratios(r)
            chosen.append((f"{op}, {', '.join(r['dtypes'])}", card, len(lost), f"{regret.mean(lost):.3f}", f"{max(lost):.2f}"))
    if not rows:
        return "Nothing has been measured yet."
    said = table("operands | rows | on | beside | points | times its speed, mean | least, M × N × K", rows, "llllrrl")
    if chosen:
        said += ["", *table("operands | on | points | time over the best, mean | most", chosen, "llrrr")]
    return "\n".join(said)


def _beside(found: Sequence[swept.Measured]) -> str:
    """Of each peer at how many points it was timed, the geometric mean of the ratio of speeds, and the least."""
    said = []
    for peer in dict.fromkeys(name for p in found for name in p.peers):
        ratios = [p.peers[peer] / p.seconds for p in found if peer in p.peers]
        said.append(f"{peer} {regret.mean(ratios):.2f}x, least {min(ratios):.2f} ({len(ratios)} points)")
    return "; ".join(said)


def view(record: Record, fresh: bool) -> SweepView:
    """`fresh`: whether it is of the kernels as they are."""
    found = swept.points(record)
    cliffs, slower = swept.cliffs(found), swept.slower(found, record.get("named", ()))
    why: dict[int, list[str]] = {}
    for p, near in cliffs:
        why.setdefault(p.index, []).append(f"neighbours at {100 * near:.0f} %")
    for p, name, ratio in slower:
        why.setdefault(p.index, []).append(f"{ratio:.2f} of the speed of {name}")
    worst = sorted((p for p in found if p.index in why), key=lambda p: p.share)
    behind = tuple(Behind(p.title, p.share, p.seconds, p.by, "; ".join(why[p.index])) for p in worst[:LISTED])
    shares = [p.share for p in found]
    lines = (0.5, 0.6, 0.75, 0.88)
    return SweepView(
        record.card, int(record.get("seed", 0)), fresh, len(found),
        swept.median(shares), tuple(zip(lines, swept.counted(found, lines), strict=True)), _drawn(record, found, worst[:NAMED]),
        tuple(n for n in record["peers"] if n not in record.get("named", ())), behind, len(worst) - len(behind),
    )


def _drawn(record: Record, found: Sequence[swept.Measured], worst: Sequence[swept.Measured]) -> Markup:
    axis = str(record["axis"])
    named = {p.index for p in worst}
    points = [
        Point(p.at(axis), p.share, f"{p.title}: {100 * p.share:.1f} % of the roof, {p.seconds * 1e6:.4g} µs, {p.by}",
              "unit" if p.few else "", p.title if p.index in named else "")
        for p in found
    ]
    peers = [n for n in record["peers"] if n not in record.get("named", ())]
    lines = [Line(n, tuple(sorted((p.at(axis), p.roof / p.peers[n]) for p in found if not p.few and n in p.peers))) for n in peers]
    return drawing(
        points, axis or f"geometric mean of {', '.join(record['sizes'])}", lines=[line for line in lines if len(line.points) > 1]
    )
