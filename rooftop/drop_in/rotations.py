"""Rotary embeddings: the attention of a model calls a function (q, k, cos, sin) of its file. Its forward, compiled code and all, gets other
globals, in which that name is ours. What the function computes, and what form the tables have, is found by trial."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.drop_in.swapping import builder
from rooftop.drop_in.trials import REFUSED, near, ordinary, quiet, replaced_forward
from rooftop.ops.rope import rope

FORMS = {  # tables from frequencies [B, S, R / 2]
    "twice": lambda f: torch.cat((f, f), -1),  # all frequencies, and again
    "pairs": lambda f: f.repeat_interleave(2, -1),  # each one twice
    "once": lambda f: f,
}
FEW = 1 << 23  # elements of q: the CPU takes longer to launch our kernel than a GPU to run what a compiler makes
HOW = ("half", "interleaved", "parted")  # pairs (i, i + R / 2), (2 i, 2 i + 1), and the latter with its halves apart in the result


def rotated(how: str, form: str, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, order: str) -> tuple[Tensor, Tensor]:
    """As `apply_rotary_pos_emb` of a model."""
    size = cos.shape[-1] * (2 if form == "once" else 1)
    if form == "pairs":
        cos, sin = cos[..., ::2], sin[..., ::2]
    elif form == "twice":
        cos, sin = cos[..., : size // 2], sin[..., : size // 2]
    made = rope(q, k, cos, sin, layout="half" if how == "half" else "interleaved", rotary_dim=size, order=order)
    if how == "parted":
        made = tuple(t.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2) for t in made)
    return made


def taken(how: str, form: str, keeps: bool, plain: Callable[..., Any], by_size: bool = False) -> Callable[..., Any]:
    """Ours, with the parameters of `plain`, which runs where ours does not take them, and in a compiled graph `by_size` where q has few
    elements. `keeps`: results are of the dtype of q and k, of whatever dtype the tables are."""
    positional = list(inspect.signature(plain).parameters)

    @functools.wraps(plain)
    def apply_rotary(q: Any, k: Any, cos: Any, sin: Any, *rest: Any, **named: Any) -> Any:
        if by_size and torch.compiler.is_compiling() and q.numel() <= FEW:
            return plain(q, k, cos, sin, *rest, **named)
        more = {**dict(zip(positional[4:], rest, strict=False)), **named}
        axis = more.pop("unsqueeze_dim", 1)
        if axis not in (1, 2) or any(v is not None for v in more.values()) or not ordinary(q, k, cos, sin) or q.dim() != 4 or cos.dim() not in (2, 3):
            return plain(q, k, cos, sin, *rest, **named)
        to = (q.dtype, k.dtype) if keeps else (torch.promote_types(q.dtype, cos.dtype), torch.promote_types(k.dtype, cos.dtype))
        if q.dtype != k.dtype or cos.dtype not in (q.dtype, torch.float32):
            return plain(q, k, cos, sin, *rest, **named)
        made = rotated(how, form, q, k, cos, sin, "bhsd" if axis == 1 else "bshd")
        return tuple(t if t.dtype == d else t.to(d) for t, d in zip(made, to, strict=True))

    return apply_rotary


@builder("rope")
def attention_class(base: type, names: tuple[tuple[str, str, str, bool], ...], by_size: bool) -> dict[str, Any]:
    """`names`: of functions, with how and on what form of tables they rotate, and whether they keep the dtype; `by_size`: a compiler is
    left few elements."""
    plain = base.forward  # type: ignore[attr-defined]
    inner = inspect.unwrap(plain)
    known = {name: taken(how, form, keeps, inner.__globals__[name], by_size) for name, how, form, keeps in names}
    return {"forward": _rebound(plain, known)}


def _rebound(function: Any, known: dict[str, Any]) -> Any:
    """The function, with other globals: those of its file, but for `known`. Decorators around it that keep it in a cell of theirs go on as
    they are."""
    if (below := getattr(function, "__wrapped__", None)) is not None:
        cells = tuple(types.CellType(_rebound(below, known)) if c.cell_contents is below else c for c in function.__closure__ or ())
        made = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
        made.__kwdefaults__ = function.__kwdefaults__
        functools.update_wrapper(made, function)
        made.__dict__["__wrapped__"] = next(
            (c.cell_contents for c, old in zip(cells, function.__closure__ or (), strict=True) if c is not old), below
        )
        return made
    # torch.compile looks globals up in the module of this name, in which the name is not ours
    others = {n: v for n, v in function.__globals__.items() if n != "__name__"} | known
    made = types.FunctionType(function.__code__, others, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__, made.__module__ = function.__kwdefaults__, function.__module__
    made.__dict__.update(function.__dict__)
    made.__doc__, made.__annotations__, made.__qualname__ = function.__doc__, function.__annotations__, function.__qualname__
    return made


def functions(module: nn.Module) -> dict[str, Callable[..., Any]]:
    """The functions (q, k, cos, sin, ...) of its file that a module's forward calls, by name."""
    inner = inspect.unwrap(type(module).forward)
    if not isinstance(inner, types.FunctionType):
        return {}
    found = {n: inner.__globals__.get(n) for n in inner.__code__.co_names}
    return {
        n: f for n, f in found.items() if isinstance(f, types.FunctionType)
        and list(inspect.signature(f).parameters)[:4] == ["q", "k", "cos", "sin"]
    }


def forms_of(model: nn.Module) -> set[str] | str:
    """The forms of the tables that all rotary embeddings of a model make; why they are not known, where one does not say."""
    found: list[set[str]] = []
    for module in model.modules():
        if not any(n.endswith("inv_freq") for n in module._buffers):
            continue
        device = next(b.device for n, b in module._buffers.items() if n.endswith("inv_freq"))
        types_ = sorted(
            {n.removesuffix("_inv_freq") for n in module._buffers if n.endswith("_inv_freq") and not n.endswith("original_inv_freq")}
        )
        x, positions = torch.zeros(1, 5, 8, device=device), torch.arange(3, 8, device=device)[None]
        for kind in types_ or [None]:
            try:
                with torch.no_grad():
                    cos, sin = module(x, positions) if kind is None else module(x, positions, kind)
            except Exception as error:  # of other people's modules
                return f"the tables of {type(module).__name__} are not known ({type(error).__name__})"
            found.append({n for n in FORMS if all(_has_form(n, t) for t in (cos, sin))})
    if not found:
        return "no module makes tables of cosines"
    return set.intersection(*found)


def _has_form(form: str, t: Tensor) -> bool:
    n = t.shape[-1] // 2
    if form == "twice":
        return t.shape[-1] % 2 == 0 and torch.equal(t[..., :n], t[..., n:])
    return form == "once" or (t.shape[-1] % 2 == 0 and torch.equal(t[..., ::2], t[..., 1::2]))


def find(function: Callable[..., Any], forms: set[str], gradients: bool = True) -> tuple[str, str, bool] | str:
    """(how, form, keeps) of a function that rotates, or why there is none."""
    with quiet():
        g = torch.Generator().manual_seed(7)
        for form, how in _candidates(forms):
            tables = [FORMS[form](torch.randn(2, 5, 8, generator=g)) for _ in range(2)]
            if all(_alike(function, how, form, tables, size, axis, gradients) for size in (16, 24) for axis in (1, 2)):
                return how, form, _keeps(function, tables)
            if all(_alike(function, how, form, tables, 16, axis, gradients) for axis in (1, 2)):  # takes whole heads alone
                return how, form, _keeps(function, tables)
    return "it rotates in another way"


def _candidates(forms: set[str]) -> Iterator[tuple[str, str]]:
    for form in FORMS:
        if form in forms:
            for how in HOW:
                yield form, how


def _alike(function: Any, how: str, form: str, tables: list[Tensor], size: int, axis: int, gradients: bool) -> bool:
    shapes = ((2, 3, 5, size), (2, 1, 5, size)) if axis == 1 else ((2, 5, 3, size), (2, 5, 1, size))
    g = torch.Generator().manual_seed(8)
    q, k = (torch.randn(s, generator=g) for s in shapes)
    ours = taken(how, form, False, _never)
    runs: list[Any] = []
    try:
        for f, dtype in ((function, torch.float32), (function, torch.float64), (ours, torch.float32)):
            a, b, *cs = (t.to(dtype) for t in (q, k, *tables))
            a.requires_grad_(), b.requires_grad_()
            made = f(a, b, *cs, unsqueeze_dim=axis)
            total = sum((m * torch.arange(m.numel(), dtype=dtype).reshape(m.shape).cos()).sum() for m in made)
            runs.append((tuple(made), torch.autograd.grad(total, (a, b)) if gradients else ()))
    except Exception as error:  # whatever a function of others raises
        if len(runs) == 2 and not isinstance(error, REFUSED):
            raise
        return False
    theirs, exact, mine = runs
    return near(mine[0], theirs[0], exact[0]) and near(mine[1], theirs[1], exact[1])


def _keeps(function: Any, tables: list[Tensor]) -> bool:
    """Whether it gives 16 bits for q and k of 16 bits and tables of float32."""
    q = torch.randn(2, 1, 5, 16).bfloat16()
    return bool(all(t.dtype == q.dtype for t in function(q, q, *tables)))


def _never(*_: Any, **__: Any) -> Any:
    raise AssertionError("rooftop.rope takes these tensors")


def refusal(module: nn.Module) -> str:
    return replaced_forward(module)
