"""Whether a result is right: against float64, block by block, allowed what the same precision costs in plain torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rooftop.core.spec import DTYPES, dtype_of

if TYPE_CHECKING:
    import torch

BLOCK_ROWS = 128
LONG_ROW = 4096
CHUNK = 1 << 26  # elements compared at once, so that a result of 2^31 fits beside its float64 reference


@dataclass
class Verdict:
    """The comparison of one output. Errors are absolute; `max_share` and `rms_share` are the worst block's, as parts of the allowance."""

    ok: bool = True
    max: float = 0.0
    rms: float = 0.0
    allowed_max: float = 0.0
    allowed_rms: float = 0.0
    max_share: float = 0.0
    rms_share: float = 0.0
    message: str = ""
    where: tuple[int, ...] | None = None
    value: float | None = None
    expected: float | None = None
    wrong: int = 0
    elements: int = 0

    def to_json(self) -> dict[str, Any]:
        return {k: (list(v) if isinstance(v, tuple) else v) for k, v in asdict(self).items()}


@dataclass
class _Worst:
    """The worst block so far, of one kind of error."""

    error: float = 0.0
    allowed: float = 0.0
    share: float = -1.0
    block: int = -1
    rows: tuple[int, int] = field(default=(0, 0))


def ulp(value: float, dtype: str) -> float:
    """The distance between neighbouring numbers of `dtype` at `value`."""
    d = DTYPES[dtype]
    smallest = {"f16": -24, "f8e4m3": -9, "f8e5m2": -16, "f64": -1074}.get(dtype, -126 - d.mantissa)
    if value == 0 or not math.isfinite(value):
        return 2.0**smallest
    return float(2.0 ** max(math.frexp(abs(value))[1] - 1 - d.mantissa, smallest))


def compare(
    out: torch.Tensor, exact: torch.Tensor, same: torch.Tensor, dtype: str, multiple: float, bitwise: bool = False, floor: float = 0.0
) -> Verdict:
    """Judge `out` by `exact` (float64) and `same` (plain torch at the same precision, in the dtype of `out`).

    Error is taken in blocks of 128 rows of the last dimension, the largest and the root of the mean square, so that one wrong tile shows. A
    block may err by `multiple` times what `same` errs there, or by two units in the last place (at its largest, or root-mean-square,
    value), or by `floor`. NaN and infinities must stand where they stand in `same`."""
    verdict = Verdict(elements=out.numel())
    if tuple(out.shape) != tuple(exact.shape):
        return _failed(verdict, f"shape {tuple(out.shape)}; it must be {tuple(exact.shape)}")
    if out.numel() == 0:
        return verdict
    if bitwise or not DTYPES[dtype].floating:
        return _bitwise(verdict, out, same)
    columns = out.shape[-1] if out.dim() else 1
    if out.numel() == columns > LONG_ROW:
        return _compare_long(out, exact, same, dtype, multiple, floor)
    return _compare_rows(out, exact, same, dtype, multiple, floor, columns)


def _compare_rows(
    out: torch.Tensor, exact: torch.Tensor, same: torch.Tensor, dtype: str, multiple: float, floor: float, columns: int
) -> Verdict:
    verdict = Verdict(elements=out.numel())
    rows = out.numel() // columns
    flat_out, flat_exact, flat_same = (t.reshape(rows, columns) for t in (out, exact, same))
    step = max(BLOCK_ROWS, CHUNK // max(columns, 1) // BLOCK_ROWS * BLOCK_ROWS)
    worst_max, worst_rms = _Worst(), _Worst()
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        o, e, s = flat_out[start:stop].double(), flat_exact[start:stop].double(), flat_same[start:stop].double()
        if found := _nonfinite(o, s):
            row, column, what = found
            where = index_of(out.shape, (start + row) * columns + column)
            verdict.where, verdict.value, verdict.expected = where, float(o[row, column]), float(s[row, column])
            return _failed(verdict, what)
        finite = s.isfinite()
        e = e.where(finite, o.new_zeros(()))
        mine, theirs = (o.where(finite, e) - e).abs(), (s.where(finite, e) - e).abs()
        _blocks(mine, theirs, e, dtype, multiple, floor, start, worst_max, worst_rms)
    verdict.max, verdict.allowed_max, verdict.max_share = worst_max.error, worst_max.allowed, worst_max.share
    verdict.rms, verdict.allowed_rms, verdict.rms_share = worst_rms.error, worst_rms.allowed, worst_rms.share
    for kind, worst in (("largest", worst_max), ("root-mean-square", worst_rms)):
        if worst.share > 1.0:
            a, b = worst.rows
            mine = (flat_out[a:b].double() - flat_exact[a:b].double()).nan_to_num(0.0, 0.0, 0.0).abs()
            bad = mine > verdict.allowed_max if kind == "largest" else mine >= mine.max()
            first = int(bad.reshape(-1).to(dtype=_int8()).argmax())
            verdict.wrong = int(bad.sum())
            verdict.where = index_of(out.shape, a * columns + first)
            verdict.value, verdict.expected = float(flat_out[a:b].reshape(-1)[first]), float(flat_exact[a:b].reshape(-1)[first])
            return _failed(verdict, f"{kind} error {worst.error:.3g} in rows {a} to {b - 1}; {worst.allowed:.3g} is allowed")
    return verdict


def _compare_long(out: Any, exact: Any, same: Any, dtype: str, multiple: float, floor: float) -> Verdict:
    """One very long row, judged as rows of 4096, and its last 4096 elements once more: what is left alone would be allowed what one
    rounding came to."""
    count = out.numel()
    spans = [(0, count // LONG_ROW * LONG_ROW)] + ([(count - LONG_ROW, count)] if count % LONG_ROW else [])
    parts = []
    for a, b in spans:
        o, e, s = (t.reshape(-1)[a:b].reshape(-1, LONG_ROW) for t in (out, exact, same))
        parts.append(found := _compare_rows(o, e, s, dtype, multiple, floor, LONG_ROW))
        if found.where is not None:
            found.where = index_of(out.shape, a + found.where[0] * LONG_ROW + found.where[1])
    worst = max(parts, key=lambda v: (not v.ok, v.max_share, v.rms_share))
    worst.elements = count
    return worst


def _int8() -> Any:
    import torch

    return torch.int8


def _blocks(
    mine: Any, theirs: Any, exact: Any, dtype: str, multiple: float, floor: float, start: int, worst_max: _Worst, worst_rms: _Worst
) -> None:
    """Fold the blocks of one chunk into the worst so far."""
    import torch

    rows, columns = mine.shape
    height = min(BLOCK_ROWS, rows)
    count = -(-rows // height)
    pad = count * height - rows

    def block(t: Any) -> Any:
        padded = torch.nn.functional.pad(t, (0, 0, 0, pad)) if pad else t
        return padded.reshape(count, height * columns)

    sizes = torch.full((count,), height * columns, dtype=torch.float64, device=mine.device)
    sizes[-1] = (height - pad) * columns
    m, t, e = block(mine), block(theirs), block(exact).abs()
    for worst, error, base, size in (
        (worst_max, m.amax(1), t.amax(1), e.amax(1)),
        (worst_rms, _rms(m, sizes), _rms(t, sizes), _rms(e, sizes)),
    ):
        for i, (mine_b, base_b, size_b) in enumerate(torch.stack((error, base, size), 1).tolist()):
            allowed = max(multiple * base_b, 2 * ulp(size_b, dtype), floor)
            share = mine_b / allowed if math.isfinite(mine_b) else math.inf
            if share > worst.share:
                a = start + i * BLOCK_ROWS
                worst.error, worst.allowed, worst.share, worst.block, worst.rows = mine_b, allowed, share, i, (
                    a, min(a + BLOCK_ROWS, start + rows)
                )


def _rms(t: Any, sizes: Any) -> Any:
    """Root of the mean square, scaled first so that squares neither overflow nor vanish."""
    scale = t.amax(1, keepdim=True).clamp_min(1e-300)
    return ((t / scale).square().sum(1) / sizes).sqrt() * scale[:, 0]


def _nonfinite(out: Any, same: Any) -> tuple[int, int, str] | None:
    """The first place where NaN or an infinity stands in one and not in the other."""
    bad = (out.isnan() != same.isnan()) | (out.isinf() != same.isinf()) | (out.isinf() & same.isinf() & (out != same))
    if not bool(bad.any()):
        return None
    first = int(bad.reshape(-1).to(_int8()).argmax())
    row, column = divmod(first, out.shape[1])
    got, want = float(out[row, column]), float(same[row, column])
    return row, column, f"{got} where the same precision in plain torch gives {want} ({int(bad.sum())} such elements)"


def differing(a: Any, b: Any) -> Any:
    """Where two tensors of one dtype and shape do not hold the same bits: -0.0 is not 0.0. Any NaN is as good as another: which sign and
    payload an operation gives it is not specified, by IEEE 754 nor by CUDA, and conversions change them."""
    import torch

    x, y = (torch.view_as_real(t.contiguous()) if t.is_complex() else t.contiguous() for t in (a, b))
    found = _words(x) != _words(y)
    if DTYPES[dtype_of(x.dtype)].floating:  # packed codes and bare exponents have no NaN that torch could tell
        found &= ~(x.isnan() & y.isnan())
    return found.any(-1) if a.is_complex() else found


def _words(t: Any) -> Any:
    """The elements as whole numbers of their size."""
    import torch

    return t.view(getattr(torch, f"int{8 * t.element_size()}"))


def _number(element: Any) -> float:
    """An element as a number; codes that torch has no numbers for, and complex ones, as the number of their bits."""
    return float(
        element if DTYPES[dtype_of(element.dtype)].floating or not (element.is_floating_point() or element.is_complex())
        else _words(element)
    )


def _bitwise(verdict: Verdict, out: Any, same: Any) -> Verdict:
    different = differing(out, same)
    if bool(different.any()):
        first = int(different.reshape(-1).to(_int8()).argmax())
        verdict.wrong = int(different.sum())
        verdict.where = index_of(out.shape, first)
        verdict.value, verdict.expected = (_number(t.reshape(-1)[first]) for t in (out, same))
        verdict.max_share = math.inf
        return _failed(verdict, f"{verdict.wrong} of {out.numel()} elements differ; they must be the same bit for bit")
    return verdict


def index_of(shape: Any, flat: int) -> tuple[int, ...]:
    """Where the element stands that is number `flat` of a tensor of this shape."""
    index = []
    for extent in reversed(tuple(shape)):
        flat, rest = divmod(flat, extent)
        index.append(rest)
    return tuple(reversed(index))


def _failed(verdict: Verdict, message: str) -> Verdict:
    verdict.ok, verdict.message = False, message
    return verdict
