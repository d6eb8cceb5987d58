"""Drawings of how a kernel works, one file a kind, found by file name: `draw(...)` takes plain numbers and texts and returns a Picture.

Nothing in them is drawn by hand: places, counts and captions are computed from the parameters, which a ladder.toml takes from the kernels'
own configs (`rooftop.lab.report.derivation`). The same parameters give the same bytes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rooftop.core.names import UnknownName
from rooftop.lab.report.drawings.canvas import Picture


@cache
def kinds() -> tuple[str, ...]:
    return tuple(sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in ("__init__", "canvas")))


def draw(kind: str, parameters: Mapping[str, Any]) -> Picture:
    """Raises UnknownName for no such kind, ValueError for parameters that it does not take or cannot draw."""
    if kind not in kinds():
        raise UnknownName("drawing", kind, list(kinds()))
    function = importlib.import_module(f"{__name__}.{kind}").draw
    try:
        inspect.signature(function).bind(**parameters)
    except TypeError as error:
        raise ValueError(f"drawing {kind}: {error}; it takes {', '.join(inspect.signature(function).parameters)}") from None
    return function(**parameters)
