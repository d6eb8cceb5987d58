"""Matrix products by torch (cuBLAS on a GPU), as steps of a kernel that calls torch between its launches."""

from __future__ import annotations

from typing import Any

from rooftop.core.spec import TorchCall, View


def product(out: View, a: View, b: View, add: bool = False) -> TorchCall:
    """out = a · b, or out += a · b: summed in float32 and rounded once, to the dtype of `out` (that of `a`, or float32)."""
    return TorchCall(_product, {"out": out, "a": a, "b": b, "add": add})


def copied(out: View, source: View) -> TorchCall:
    """out = source, rounded to the dtype of `out`."""
    return TorchCall(_copied, {"out": out, "source": source})


def turned(view: View) -> View:
    """A matrix transposed."""
    return View(view.tensor, view.shape[::-1], view.strides[::-1], view.offset)


def _product(out: Any, a: Any, b: Any, add: bool) -> None:
    import torch

    if not out.is_cuda:  # torch's CPU has no product of 16 bits into float32
        found = a.float() @ b.float()
        out.copy_(out + found if add else found)
    elif out.dtype == a.dtype:
        if add:
            torch.addmm(out, a, b, out=out)
        else:
            torch.mm(a, b, out=out)
    elif add:
        torch.addmm(out, a, b, out_dtype=out.dtype, out=out)
    else:
        torch.mm(a, b, out_dtype=out.dtype, out=out)


def _copied(out: Any, source: Any) -> None:
    out.copy_(source)
