"""Tables of docs/, each of records joined to the tree: the course, the loss of a vocabulary, several GPUs, which kernel runs, and what the
model expects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any

from rooftop.core import registry, settings
from rooftop.core.call import select
from rooftop.core.contract import Contract
from rooftop.core.devices import lookup
from rooftop.core.spec import TARGETS
from rooftop.lab.records.record import Record, newest
from rooftop.lab.report.data import SiteData
from rooftop.lab.report.joined import Joined, Measured
from rooftop.lab.report.markup import table
from rooftop.lab.timing import expected
from rooftop.ops._linear_cases import SHAPES

NOTHING = "Nothing has been measured yet."
STANDS = "Nothing has been measured yet with the kernels as they stand."
DRAWN = ("fast", "small", "torch.compile", "liger")  # the last two are peers
Found = Mapping[tuple[str, str, str, str], Measured]  # (device, op, subject, case) -> the newest record


def _counting(found: Iterable[Record]) -> Found:
    """What counts of bench records: times on the kernel clock of the kernels as they are."""
    return {k: m for k, m in Joined(list(found)).measured.items() if m.kernel is not None and not m.stale}


# -- docs/learn.md: how long pages and lessons take to open, as scripts/measure_learn.py timed them ------------------------

LEARN = "learn"


def learn(found: list[Record], _site: Any) -> str:
    """Of the newest record: the pages at each width, and the lessons in the terminal, their slowest by name."""
    record = newest(found, "clock", LEARN)
    if record is None:
        return NOTHING
    device = record["device"]
    lines = [f"{device['name']}, {device['cores']} cores; {record['browser']}, headless.", ""]
    groups: dict[str, list[Any]] = {}
    for row in record["rows"]:
        groups.setdefault(
            f"a page at {row['width']} px" if row["what"] == "page" else "a lesson in the terminal, to its first question", []
        ).append(row)
    made = []
    for what, rows in groups.items():
        ordered = sorted(rows, key=lambda r: float(r["seconds"]))
        last = ordered[-1]
        made.append((what, len(rows), f"{ordered[len(rows) // 2]['seconds']:.2f}", f"{last['seconds']:.2f}", f"`{last['of']}`"))
    return "\n".join([*lines, *table("what | of them | median, s | slowest, s | which", made, "lrrrl")])


# -- docs/linear_cross_entropy.md: time against memory of every rung, kernel and peer --------------------------------------

LINEAR = "linear_cross_entropy"


def linear(found: list[Record], _site: SiteData) -> str:
    """A row a way, two columns a shape: ms of a forward and its gradients, and MiB that are allocated at once at most, gradients included.
    What is made in two ops is two records: their times together, and the larger peak."""
    mine = [r for r in found if r.kind == "bench" and r.op in (LINEAR, f"{LINEAR}_bwd")]
    measured = _counting(mine)
    lines: list[str] = []
    for device in sorted({k[0] for k in measured}):
        ways = _ways(measured, device)
        rows = {way: [_linear_cell(measured, device, *at, *shape) for shape in SHAPES.items()] for way, at in ways.items()}
        if not any(cell for cells in rows.values() for cell in cells):
            continue
        shapes = " | ".join(f"{' x '.join(map(str, s))}: ms | MiB" for s in SHAPES.values())
        ways_of = ((way, *(cell or " | " for cell in cells)) for way, cells in rows.items() if any(cells))
        lines += [f"{device}, bf16.", "", *table(f"way | {shapes}", ways_of, "l" + "rr" * len(SHAPES)), ""]
    return "\n".join(lines).rstrip() or STANDS


def linear_drawn(found: list[Record], _site: SiteData) -> str:
    """What scripts/linear_loss.py measured, results/*/linear_loss.json: ms and MiB of a forward and its gradients at each size, and the means."""
    said = []
    for path in sorted(settings.load().results.glob("*/linear_loss.json")) if found else ():
        kept = json.loads(path.read_text(encoding="utf-8"))
        rows = [(
            f"{r['tokens']} × {r['hidden']} × {r['classes']}",
            *(f"{r['us'][w] / 1e3:.2f}, {r['bytes'][w] >> 20}" if w in r["us"] else "" for w in DRAWN), f"{r['us']['products'] / 1e3:.2f}"
        ) for r in kept["rows"]]
        beside = [(min(r["us"][p] for p in DRAWN[2:] if p in r["us"]) / r["us"]["fast"], r["us"]["fast"] / r["us"]["products"]) for r in kept["rows"]]
        small = [r["us"]["liger"] / r["us"]["small"] for r in kept["rows"] if "liger" in r["us"]]
        faster, over = ([x[i] for x in beside] for i in (0, 1))
        lines = table("tokens × hidden × classes | `fast`: ms, MiB | `small` | torch.compile | Liger | the products", rows, "lrrrrr")
        said.append("\n".join([
            f"{kept['device']}, bf16, seed {kept['seed']}.", "", *lines, "",
            f"`fast` is {geometric_mean(faster):.2f} times as fast as the faster of torch.compile and Liger in the geometric mean, least "
            f"{min(faster):.2f}, and takes {geometric_mean(over):.2f} times the products, most {max(over):.2f}. `small` is "
            f"{geometric_mean(small):.2f} times as fast as Liger, least {min(small):.2f}.",
        ]))
    return "\n\n".join(said) or STANDS


def _ways(measured: Found, device: str) -> dict[str, tuple[str, str]]:
    """What a row is called -> the subject, and the point that it is measured at."""
    subjects = sorted({s for d, op, s, _ in measured if d == device and op == LINEAR})
    found = {s: (s, "fast") for s in subjects if "/" in s}
    for memory in ("fast", "small"):
        found |= {f'memory="{memory}", {s.removeprefix(f"{LINEAR}__")}': (s, memory) for s in subjects if s.startswith(f"{LINEAR}__")}
    return found | {s.removeprefix("peer:"): (s, "fast") for s in subjects if s.startswith("peer:")}


def _linear_cell(measured: Found, device: str, subject: str, memory: str, shape: str, sizes: tuple[int, int, int]) -> str:
    case = f"{shape} {'x'.join(map(str, sizes))}, {memory} bf16"
    parts = [measured.get((device, LINEAR, subject, case))]
    if memory == "small":
        parts.append(measured.get((device, f"{LINEAR}_bwd", subject.replace(LINEAR, f"{LINEAR}_bwd"), case)))
    there = [m for m in parts if m is not None]
    if len(there) < len(parts):
        return ""
    peaks = [m.memory for m in there if m.memory is not None]
    return f"{sum(m.seconds for m in there) * 1e3:.2f} | " + (f"{max(peaks) / 2**20:.0f}" if peaks else "")


# -- docs/comm.md: ops of several ranks on several GPUs of one host --------------------------------------------------------

SEVERAL = re.compile(r" x\d+$")  # how the name of so many cards ends
LADDER, GATHERED = "gemm_comm", "all_gather_matmul_ranks"


def _fresh(found: Sequence[Record]) -> dict[str, dict[tuple[str, str], dict[str, Measured]]]:
    """Device -> (op, case) -> subject -> its newest record, of the kernels as they are."""
    mine = [r for r in found if r.kind == "bench" and SEVERAL.search(r.card)]
    made: dict[str, dict[tuple[str, str], dict[str, Measured]]] = {}
    for (device, op, subject, case), m in _counting(mine).items():
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
                ratio = f"{theirs.seconds / ours[0].seconds:.2f}"
                rows.append((op.removesuffix("_ranks"), case, _us(theirs), _us(ours[0]), ratio, name))
        if rows:
            heads = " | case | NCCL, unquantised: µs | ours: µs | times as fast | kernel"
            lines += [f"{device}.", "", *table(heads, rows, "llrrrl"), ""]
    return "\n".join(lines).rstrip() or STANDS


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
            rows = [
                (way.removeprefix("peer:").removeprefix(f"{LADDER}/").removeprefix(f"{op}__"), *(_us(cases[op, c].get(way)) for c in shown))
                for way in sorted(ways, key=lambda s: (not s.startswith("peer:"), s))
            ]
            heads = " | " + " | ".join(shown)
            lines += [f"{device}, {title}: microseconds of the slower rank.", "", *table(heads, rows, "l" + "r" * len(shown)), ""]
    return "\n".join(lines).rstrip() or STANDS


# -- docs/persistent.md: which kernel runs softmax and the norms. It asks `choose.py`, and no record -----------------------

OPS = ("softmax", "rms_norm", "layer_norm")
CARDS = ("a800", "h200")
DTYPES = ("bf16", "f32")
COLUMNS = (256, 1000, 1024, 4095, 8192, 32768, 131072, 1048576)
FEW, MANY = 64, 1 << 26  # rows; elements


def kernel(op: Contract, card: str, dtype: str, columns: int, rows: int) -> str:
    assert op.swept is not None
    call = select(op, op.problem(op.swept.case(dtype, {"rows": rows, "columns": columns}), TARGETS[card])).call
    return "torch" if call is None else call.implementation.name.removeprefix(f"{op.name}__")


def rows_of(op: Contract) -> list[str]:
    heads = " | ".join((op.name, *(f"{card} {dtype}" for card in CARDS for dtype in DTYPES)))
    rows = []
    for columns in COLUMNS:
        cells = []
        for card in CARDS:
            for dtype in DTYPES:
                many, few = (kernel(op, card, dtype, columns, n) for n in (max(1, MANY // columns), FEW))
                cells.append(many if many == few else f"{many}; {FEW} rows: {few}")
        rows.append([columns, *cells])
    return table(heads, rows, "r" + "l" * len(CARDS) * len(DTYPES))


def choices(_found: list[Record], _site: SiteData) -> str:
    """Of each op and its backward, a row a number of columns: the kernel for 2^26 elements, and for few rows where that is another."""
    ops = [one for name in OPS for one in (registry.op(name), registry.op(name).bwd) if one is not None]
    return "\n\n".join("\n".join(rows_of(op)) for op in ops)


# -- docs/predictions.md: how far off the model is on the card that it was not fitted on, and what it expects of others ----

EXPECTED = ("a800", "l40s", "rtx4090", "h20", "h100", "h200", "rtx5090", "b200", "mi300x", "mi350x")


def judged(found: list[Record], _site: SiteData) -> str:
    """A row a family: cases, median error, and the median of expected over measured."""
    rows = [t for t in expected.timed(found) if t.device == expected.JUDGED_ON]
    if not rows:
        return NOTHING
    fitted = expected.median_error([t for t in expected.timed(found) if t.device == expected.FITTED_ON])
    families = {name: [t for t in rows if t.family == name] for name in sorted({t.family for t in rows})} | {"**all**": rows}
    lines = table("family | cases | median error | expected / measured", (_judged(*one) for one in families.items()), "lrrr")
    return "\n".join(lines) + (f"\n\nOn the H100's own records: {100 * fitted:.1f} %." if fitted is not None else "")


def _judged(name: str, rows: list[expected.Timed]) -> tuple[object, ...]:
    sheet = lookup(expected.JUDGED_ON)
    assert sheet is not None
    ratios = [s / t.seconds for t in rows if (s := expected.MODEL.seconds(sheet, t.work)) is not None]
    error = expected.median_error(rows)
    return name, len(rows), "" if error is None else f"{100 * error:.0f} %", f"{median(ratios):.2f}" if ratios else ""


def expectations(found: list[Record], _site: SiteData) -> str:
    """A row an op, its first bench case, a column a card: microseconds expected; where it was measured, that in brackets."""
    measured = {(t.device, t.op, t.case): t.seconds for t in expected.timed(found)}
    sheets = [s for c in EXPECTED if (s := lookup(TARGETS[c].name)) is not None]
    rows = []
    for name in registry.op_names():
        op = registry.op(name)
        case = next((c for c in op.cases if "bench" in c.tags), None)
        if case is None or op.twin_of is not None or name.endswith("_ranks"):
            continue
        work, cells = op.work(op.problem(case)), []
        for sheet in sheets:
            seconds, there = expected.MODEL.seconds(sheet, work), measured.get((sheet.name, name, case.id))
            cells.append(("" if seconds is None else f"{seconds * 1e6:.4g}") + ("" if there is None else f" ({there * 1e6:.4g})"))
        rows.append((name, case.id, *cells))
    heads = " | ".join(("op", "case", *(s.name.removeprefix("NVIDIA ").removeprefix("AMD ") for s in sheets)))
    return "\n".join(table(heads, rows, "ll" + "r" * len(sheets)))
