"""What pointwise__rows__cuda_sm80.cu takes, and its launch: the tensors of each op in the order of its formula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.head import Head
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, instance

# op -> the formula, what it reads, what it writes
FORMULAS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "add": ("Add", ("x", "y"), ("out",)),
    "gelu": ("Gelu", ("x",), ("y",)), "gelu_bwd": ("GeluBwd", ("dy", "x"), ("dx",)),
    "silu": ("Silu", ("x",), ("y",)), "silu_bwd": ("SiluBwd", ("dy", "x"), ("dx",)),
    "square": ("Square", ("x",), ("y",)), "square_bwd": ("SquareBwd", ("dy", "x"), ("dx",)),
    "swiglu": ("Swiglu", ("a", "b"), ("y",)), "swiglu_bwd": ("SwigluBwd", ("dy", "a", "b"), ("da", "db")),
    "geglu": ("Geglu", ("a", "b"), ("y",)), "geglu_bwd": ("GegluBwd", ("dy", "a", "b"), ("da", "db")),
}
FORMS = ("gelu", "geglu")  # exact, and by tanh


def _place(p: Problem, name: str) -> tuple[str, Meta, bool]:
    """The tensor that `name` is in, and whether it is the second half of its rows."""
    half = p.get(name) is None  # b in a, db in da
    held = f"{name[:-1]}a" if half else name
    return held, p[held], half


def _extents(p: Problem) -> tuple[int, int, int]:
    """Rows, columns, and the packs of an output that a row touches at most."""
    whole = next(name for name in ("dy", "y", "x") if p.get(name) is not None)  # never packed
    held = _place(p, whole)[1]
    rows, columns = (1, *held.shape)[-2:]  # add's are of one dimension
    per = 16 // held.itemsize
    return rows, columns, -(-(columns + per - 1) // per)


def supports(p: Problem, head: Head | None = None) -> str | None:
    dtypes = {m.dtype for _, m in p.tensors if m is not None}
    if len(dtypes) != 1 or not dtypes <= {"f32", "f16", "bf16"}:
        return f"takes f32, f16 or bf16, the same for all tensors; given {', '.join(sorted(dtypes))}"
    if p.extra:
        return f"takes no {' and no '.join(p.extra)}"
    rows, columns, packs = _extents(p)
    if rows * columns == 0:
        return "there is nothing to compute"
    if rows * packs >= 2**32 - 1024 or columns >= 2**31 - 64:
        return f"counts packs in 32 bits; given {rows} rows of {columns}"
    return None


def choose(p: Problem, head: Head) -> dict[str, Any]:
    return {"threads": 256}


def launches(p: Problem, config: Mapping[str, int], head: Head) -> list[Launch]:
    rows, columns, packs = _extents(p)
    formula, read, written = FORMULAS[p.op]
    if p.op.removesuffix("_bwd") in FORMS:
        formula = instance(formula, p.option("approximate") == "tanh")
    pointers: dict[str, Any] = dict.fromkeys("pqruv")
    offsets, strides, spans = dict.fromkeys("pqrv", 0), dict.fromkeys("pqruv", 0), dict.fromkeys("pqr", 0)
    for letter, name in (*zip("pqr", read, strict=False), *zip("uv", written, strict=False)):
        pointers[letter], m, half = _place(p, name)
        strides[letter] = m.strides[0]
        if half:
            offsets[letter] = columns
        if letter in spans:
            spans[letter] = m.span
    args = {"rows": rows, "columns": columns, "packs": packs, **pointers}
    args |= {f"{k}{end}": v for end, found in (("o", offsets), ("s", strides), ("n", spans)) for k, v in found.items()}
    kernel = instance("rows_of", formula, DTYPES[p[read[0]].dtype].cuda, config["threads"])
    grid = (-(-rows * packs // config["threads"]),)
    types = ("u32", "i32", "u32", *["ptr"] * 5, *["i64"] * 12)
    return [Launch(kernel, grid, args, types=types, block=(config["threads"],), pdl=p.device.pdl)]
