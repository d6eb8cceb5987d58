"""Which short rows the kernels take that copy many adjacent rows to shared memory at once: *__staged__cuda_sm80.cu"""

from __future__ import annotations

from rooftop.core.spec import Meta, Problem


def refuses(p: Problem, names: tuple[str, ...], most: int) -> str | None:
    """Why the rows are not supported, or None. `names`: the row tensors, all of one shape; `most`: the most elements of a row."""
    x = p[names[0]]
    rows, columns = x.shape[:2]
    if not x.numel:
        return "there is nothing to compute"
    if columns > most:
        return f"takes rows of up to {most} elements; given {columns}"
    if len(x.shape) == 3 and x.shape[2] != 1:
        return "the dimension must be the last"
    if rows >= 2**31 - 2**16:
        return f"rows are counted in 32 bits; given {rows}"
    if any(not _one_after_another(m) for name in names if (m := p.get(name)) is not None):
        return "rows must lie one after another, the first on 16 bytes"
    return None


def _one_after_another(m: Meta) -> bool:
    rows, columns = m.shape[:2]
    return m.align >= 16 and (columns == 1 or m.strides[1] == 1) and (rows == 1 or m.strides[0] == columns)
