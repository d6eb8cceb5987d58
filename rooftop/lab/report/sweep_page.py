"""Of an op's sweep on a card what its page shows: share of the roof against size, peers as thin lines, the points that fall behind by
name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from rooftop.lab.records.record import Record, of_kind
from rooftop.lab.report.model import Behind, SweepView
from rooftop.lab.report.scatter import Line, Point, drawing
from rooftop.lab.timing import swept

NAMED = 6  # of the worst points, in the drawing
LISTED = 20  # and in the table


def newest(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Op -> its newest sweep on each card. A regret is none: its points are few."""
    found: dict[tuple[str, str], Record] = {}
    for r in (r for r in of_kind(records, "sweep") if r["us"] and "best" not in r):
        found[r.op, r.card] = r
    ops: dict[str, list[Record]] = {}
    for (op, _), r in found.items():
        ops.setdefault(op, []).append(r)
    return ops


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
