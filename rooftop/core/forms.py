"""Values of JSON that have the form of a type: what another process, or a file, says is read as this or refused."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class FormError(ValueError):
    """The value has not that form; the text says where and what was expected."""


def formed(value: Any, form: type[T], where: str = "it") -> T:
    """A value of JSON as `form`: a dataclass with the fields of an object, `list[X]`, `tuple[X, Y]`, `tuple[X, ...]`, `dict[str, X]`, a
    `Literal`, a union, `str`, `int`, `float` (an integer too), `bool`, `None` or `Any`. A truth value is no number. Raises FormError."""
    return _formed(value, form, where)


def _formed(value: Any, form: Any, where: str) -> Any:
    kind, parts = get_origin(form), get_args(form)
    if form is Any:
        return value
    if dataclasses.is_dataclass(form):
        return _object(value, form, where)
    if kind in (Union, types.UnionType):
        said = []
        for one in parts:
            try:
                return _formed(value, one, where)
            except FormError as error:
                said.append(error)
        raise said[0]
    if kind is Literal and value in parts:
        return value
    if kind is list and isinstance(value, list):
        return [_formed(v, parts[0], f"{where}[{i}]") for i, v in enumerate(value)]
    if kind is tuple and isinstance(value, list) and (parts[-1] is ... or len(parts) == len(value)):
        each = parts if parts[-1] is not ... else parts[:1] * len(value)
        return tuple(_formed(v, one, f"{where}[{i}]") for i, (v, one) in enumerate(zip(value, each, strict=True)))
    if kind is dict and isinstance(value, dict):
        return {k: _formed(v, parts[1], f"{where}.{k:.40}") for k, v in value.items()}
    if kind is None and ((form in (None, type(None)) and value is None) or type(value) is form or (form is float and type(value) is int)):
        return value
    expected = form.__name__ if isinstance(form, type) and kind is None else str(form)
    raise FormError(f"{where} is {_shown(value)}, not {expected.replace('typing.', '')}")


def _object(value: Any, form: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise FormError(f"{where} is {_shown(value)}, not an object")
    hints = get_type_hints(form)
    fields = {f.name: f for f in dataclasses.fields(form) if f.init}
    needed = [n for n, f in fields.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    if (absent := [n for n in needed if n not in value]) or (more := [n for n in value if n not in fields]):
        raise FormError(f"{where} lacks {absent[0]}" if absent else f"{where} has {_shown(more[0])}, which is none of {', '.join(fields)}")
    return form(**{n: _formed(v, hints[n], n if where == "it" else f"{where}.{n}") for n, v in value.items()})


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
