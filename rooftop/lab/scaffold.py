"""Skeletons: a new op, kernel or rung as one file that is right as it stands, modelled on the hello world."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from rooftop.core import api, registry, settings
from rooftop.core.registry import HOUSE, House

_NAME = re.compile(r"^[a-z][a-z0-9]*(?:_[a-z0-9]+)*$")


def write(kind: str, name: str, house: House = HOUSE) -> Path:
    """Write the skeleton and return its path.

    `op scale`: a contract, a copy of `add` under the new name, to be changed line by line. `kernel add__mine__triton`: a second kernel of `add`,
    a copy of the first Triton kernel of the op (of `add`, where the op has none) with a docstring of its own.
    `rung softmax_cuda/08_my_idea`: the last `.cu` rung, its idea, prediction and limit emptied.

    Raises ValueError for another kind, a name or number that cannot be one, or a file that is there already; RegistryError for what is not there."""
    makers = {"op": _op, "kernel": _kernel, "rung": _rung}
    if kind not in makers:
        raise ValueError(f"kind is {kind!r}; it is one of {', '.join(makers)}")
    path, text = makers[kind](name, house)
    if path.exists():
        raise ValueError(f"{path} is there already")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    for found in (registry.op_names, registry.kernel_files, registry.ladder):
        found.cache_clear()  # what was listed before the file was there
    return path


def _op(name: str, house: House) -> tuple[Path, str]:
    if not _NAME.match(name) or name.endswith("_bwd"):
        raise ValueError(f"{name!r} cannot name an op: lower-case words joined by _, not ending in _bwd")
    if keyword.iskeyword(name):
        raise ValueError(f"{name!r} cannot name an op: it is a keyword of Python")
    if name in api.OWN or (settings.PACKAGE / name).is_dir():
        raise ValueError(f"{name!r} cannot name an op: rooftop.{name} is the package's own")
    model = (HOUSE.ops / "add.py").read_text(encoding="utf-8")
    text = re.sub(r"\badd\b(?=[:(])", name, model).replace('"""Elementwise sum', f'"""{name}, to be written (this is the contract of add). Elementwise sum', 1)
    text = text.replace(": the hello world.", ".", 1)
    return house.ops / f"{name}.py", text


def _kernel(name: str, house: House) -> tuple[Path, str]:
    match = registry._KERNEL.match(name)
    if not match or match["backend"] != "triton":
        raise ValueError(f"{name!r} must read <op>[_bwd][__<variant>]__triton[_sm<arch>] (a .cu is started with `rooftop new rung`, or from docs/head.md)")
    op = match["op"]
    if op.removesuffix("_bwd") not in registry.op_names(house):
        raise registry.unknown("op", op, list(registry.op_names(house)))
    family = next((f.path.parent.name for f in registry.kernel_files(house) if f.op == op), "elementwise")
    model = next((f.path for f in registry.kernel_files(house) if f.op == op and f.backend == "triton"), HOUSE.kernels / "elementwise" / "add__triton.py")
    said = f'"""{name}, to be written (this is {model.stem}). Contract: rooftop/ops/{op.removesuffix("_bwd")}.py"""'
    return house.kernels / family / f"{name}.py", re.sub(r'\A""".*?"""', lambda _: said, model.read_text(encoding="utf-8"), count=1, flags=re.S)


def _rung(name: str, house: House) -> tuple[Path, str]:
    ladder_name, _, stem = name.partition("/")
    ladder = registry.ladder(ladder_name, house)
    match = registry._RUNG.match(stem)
    if not match:
        raise ValueError(f"{name!r} must read <ladder>/NN_slug, as softmax_cuda/08_my_idea")
    path = ladder.path / f"{stem}.cu"
    for rung in ladder.rungs:
        if rung.number == int(match["number"]) and rung.path != path:
            raise ValueError(f"{name!r}: number {match['number']} is taken by {rung.path.name}; the next that is free is {ladder.rungs[-1].number + 1:02d}")
    models = [r.path for r in ladder.rungs if r.path.suffix == ".cu"]
    if not models:
        raise ValueError(f"{ladder_name} has no .cu rung to start from: write one by hand (docs/head.md)")
    text = models[-1].read_text(encoding="utf-8")
    for key in ("idea", "limit"):
        text = re.sub(rf'^({key}\s*=\s*)"(?:\\.|[^"\\])*"', r'\1""', text, count=1, flags=re.M)
    text = re.sub(r"^(predict\s*=\s*)\{[^}]*\}", r"\1{ }", text, count=1, flags=re.M)
    return path, text
