"""The table of docs/persistent.md: which kernel runs softmax and the norms, by card, dtype, columns and rows. It asks `choose.py`, and no
record."""

from __future__ import annotations

from rooftop.core import registry
from rooftop.core.call import select
from rooftop.core.contract import Contract
from rooftop.core.spec import TARGETS
from rooftop.lab.records.store import Record
from rooftop.lab.report.model import SiteData

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
    lines = [
        f"| {op.name} | {' | '.join(f'{card} {dtype}' for card in CARDS for dtype in DTYPES)} |",
        "|---:|" + "---|" * len(CARDS) * len(DTYPES)
    ]
    for columns in COLUMNS:
        cells = []
        for card in CARDS:
            for dtype in DTYPES:
                many, few = (kernel(op, card, dtype, columns, rows) for rows in (max(1, MANY // columns), FEW))
                cells.append(many if many == few else f"{many}; {FEW} rows: {few}")
        lines.append(f"| {columns} | {' | '.join(cells)} |")
    return lines


def table(_found: list[Record], _site: SiteData) -> str:
    """Of each op and its backward, a row a number of columns: the kernel for 2^26 elements, and for few rows where that is another."""
    ops = [one for name in OPS for one in (registry.op(name), registry.op(name).bwd) if one is not None]
    return "\n\n".join("\n".join(rows_of(op)) for op in ops)
