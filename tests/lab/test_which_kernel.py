"""The table of which kernel runs."""

from __future__ import annotations

from rooftop.core import registry
from rooftop.core.call import select
from rooftop.core.spec import TARGETS
from rooftop.lab.report import tables


def test_each_cell_is_what_a_call_runs() -> None:
    op = registry.op("layer_norm")
    head, _, *rows = tables.rows_of(op)
    titles = [cell.strip() for cell in head.strip("|").split("|")]
    assert titles[0] == "layer_norm" and len(rows) == len(tables.COLUMNS)
    names = {file.name for file in registry.kernel_files()} | {"layer_norm__torch"}
    for row in rows:
        columns, *cells = [cell.strip() for cell in row.strip("|").split("|")]
        for title, cell in zip(titles[1:], cells, strict=True):
            card, dtype = title.split()
            many, _, few = cell.partition("; 64 rows: ")
            assert {f"layer_norm__{name}" for name in (many, few or many)} <= names
            assert op.swept is not None
            case = op.swept.case(dtype, {"rows": 64, "columns": int(columns)})
            call = select(op, op.problem(case, TARGETS[card])).call
            assert call is not None and call.implementation.name == f"layer_norm__{few or many}"
