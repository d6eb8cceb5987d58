"""Skeletons: a new op, kernel or rung as one file that is right as it stands, modelled on the hello world."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable
from pathlib import Path

from rooftop import public_names
from rooftop.core import registry, settings, whole_file
from rooftop.core.backends.table import BACKENDS
from rooftop.core.contract import Contract
from rooftop.core.digests import strip
from rooftop.core.registry import HOUSE, House
from rooftop.lab.scaffold import kernel, twin

_NAME = re.compile(r"^[a-z][a-z0-9]*(?:_[a-z0-9]+)*$")


Files = list[tuple[Path, str]]  # path and text: the file, and a second one that belongs to it

TEXT = r'"""(?:\\[\s\S]|[^"\\]|"(?!""))*"""|"(?:\\.|[^"\\])*"'  # a text of TOML


def write(kind: str, name: str, house: House = HOUSE, empty: bool = False) -> Path:
    """Write the skeleton and return its path.

    `op scale`: a contract, a copy of `add` under the new name, to be changed line by line. `op scale_`: the in-place twin of the op
    `scale`.
    `kernel add__mine__triton`: a second kernel of `add`, a copy of the Triton kernel of the op with a docstring of its own; in another
    backend a copy of the op's kernel there: the one without a variant if there is one, else the first by name. A `.py` beside a `.cu` is
    copied with it. Where there is none, or with `empty`: in CUDA C++ and Triton a kernel of the op's own names that writes zeros, in torch
    a call of the reference.
    `rung softmax_cuda/11_my_idea`: the last `.cu` rung, its idea, prediction and limit emptied.

    Where the package is installed, not a clone, a kernel is written into the current folder, as a file of one's own.

    Raises ValueError for another kind, a name or number that cannot be one, or a file that is there already; RegistryError for what is not
    there."""
    return written(kind, name, house, empty)[0]


def written(kind: str, name: str, house: House = HOUSE, empty: bool = False) -> list[Path]:
    """As `write`; returns all files: a `.cu` whose choice is in Python has a second one."""
    makers: dict[str, Callable[[], Files]] = {
        "op": lambda: [_op(name, house)], "kernel": lambda: _kernel(name, house, empty), "rung": lambda: [_rung(name, house)],
    }
    if kind not in makers:
        raise ValueError(f"kind is {kind!r}; it is one of {', '.join(makers)}")
    if empty and kind != "kernel":
        raise ValueError("--empty is for a kernel: ops and rungs are always copies")
    files = makers[kind]()
    if house == HOUSE and not settings.is_checkout():  # an installed package is nobody's to write into
        if kind != "kernel":
            raise ValueError(
                f"rooftop is installed at {settings.PACKAGE}: {kind}s are written in a clone of its repository; kernels of your own here "
                f"too"
            )
        files = [(Path(path.name), _as_own(text, name) if path.suffix == ".cu" else text) for path, text in files]
    elif kind == "kernel" and (taken := [f.path for f in registry.kernel_files(house) if f.name == name]):  # perhaps in a file of several ops
        raise ValueError(f"{taken[0]} is there already")
    for path, _ in files:
        if path.exists():
            raise ValueError(f"{path} is there already")
    files[0][0].parent.mkdir(parents=True, exist_ok=True)
    for path, text in files:
        whole_file.write(path, text)
    for found in (registry.op_names, registry.kernel_files, registry.ladder):
        found.cache_clear()  # what was listed before the file was there
    return [path for path, _ in files]


def _op(name: str, house: House) -> tuple[Path, str]:
    if _NAME.match(name[:-1]) and name.endswith("_"):
        path = house.ops / f"{name}.py"
        return path, "" if path.exists() else twin.text(name[:-1], house)
    if not _NAME.match(name) or name.endswith("_bwd"):
        raise ValueError(
            f"{name!r} cannot name an op: lower-case words joined by _, not ending in _bwd (and one _ at the end for the in-place twin of "
            f"an op)"
        )
    if keyword.iskeyword(name):
        raise ValueError(f"{name!r} cannot name an op: it is a keyword of Python")
    if name in public_names.OWN or (settings.PACKAGE / name).is_dir():
        raise ValueError(f"{name!r} cannot name an op: rooftop.{name} is the package's own")
    model = (HOUSE.ops / "add.py").read_text(encoding="utf-8")
    text = re.sub(r"\badd\b(?=[:(])", name, model).replace(
        '"""Elementwise sum', f'"""{name}, to be written (this is the contract of add). Elementwise sum', 1
    )
    text = text.replace(": the hello world.", ".", 1)
    return house.ops / f"{name}.py", text


def _kernel(name: str, house: House, empty: bool) -> Files:
    read = registry.kernel_name(name)
    if read is None:
        raise ValueError(f"{name!r} must read <op>[_bwd][__<variant>]__<backend>[_sm<arch>]; the backends are {', '.join(BACKENDS)}")
    if read.op.removesuffix("_bwd") not in registry.op_names(house):
        raise registry.unknown("op", read.op, list(registry.op_names(house)))
    files = [f for f in registry.kernel_files(house) if f.op == read.op]
    family = files[0].path.parent.name if files else "elementwise"
    contract = f"Contract: rooftop/ops/{read.op.removesuffix('_bwd')}.py"
    path = house.kernels / family / f"{name}{read.backend.suffix}"
    models = [] if empty else [
        f.path for f in sorted(files, key=lambda f: "__" in f.name.removeprefix(f"{read.op}__")) if f.backend == read.backend.name
    ]
    if empty and read.backend.name not in ("triton", "cuda", "torch"):
        raise ValueError(f"--empty writes kernels in Triton, CUDA C++ and torch, not in {read.backend.language}")
    if not models and read.backend.name in ("triton", "cuda"):
        op = registry.op(read.op, house)
        if empty or not _as_add(op):
            return [(path, (kernel.cuda if path.suffix == ".cu" else kernel.triton)(name, op))]
        if path.suffix == ".cu":
            return [(path, _added(kernel.cuda(name, op)))]
        models = [HOUSE.kernels / "elementwise" / "add__triton.py"]
    if not models and read.backend.name == "torch":
        return [(path, _torch_call(name, registry.op(read.op, house), contract))]
    if not models:
        raise ValueError(f"{read.op} has no {read.backend.language} kernel to start from: write one by hand (docs/adding.md, docs/head.md)")
    said = f"{name}, to be written (this is {models[0].stem}). {contract}"
    # the copy serves the op of its name
    text = re.sub(r"^(ops *= *\[[^\]]*\]|OPS = \(.*)\n", "", models[0].read_text(encoding="utf-8"), count=1, flags=re.M)
    if path.suffix == ".cu":
        own = _of_one(text, read.op).replace(models[0].stem, name)
        own = re.sub(rf"^(idea\s*=\s*)(?:{TEXT})", lambda m: f'{m[1]}"{said}"', own, count=1, flags=re.M)
        beside = models[0].with_suffix(".py")
        return [
            (path, own),
            *([(path.with_suffix(".py"), beside.read_text(encoding="utf-8").replace(models[0].stem, name))] if beside.is_file() else [])
        ]
    return [(path, re.sub(r'\A""".*?"""', lambda _: f'"""{said}"""', text, count=1, flags=re.S))]


def _of_one(text: str, op: str) -> str:
    """A `.cu` whose head speaks of a forward and its backward, with what it says of one of them."""
    end = text.index("*/")
    first, *tables = re.split(r"^(?=\[)", text[:end], flags=re.M)
    own = [table for table in tables if re.match(r"\[bwd[.\]]", table)]
    tables = [table for table in tables if table not in own]
    for table in own if op.endswith("_bwd") else ():
        name, _, body = table.partition("]\n")
        if name == "[bwd":
            for key in re.findall(r"^(\w+) *=", body, re.M):
                first = re.sub(rf"^{key} *=.*?(?=^\w+ *=|\Z)", "", first, count=1, flags=re.M | re.S)
            first += body
        else:
            header = name.replace("[bwd.", "[") + "]\n"
            tables = [*(t for t in tables if not t.startswith(header)), header + body]
    return first + "".join(tables) + text[end:]


def _as_add(op: Contract) -> bool:
    """Whether an op still is what `new op` wrote: another name of the sum."""
    return strip(inspect.getsource(op.reference), "python") == strip(inspect.getsource(registry.op("add").reference), "python")


def _added(text: str) -> str:
    """The skeleton of a kernel of such an op, with the sum in the place of zeros."""
    return text.replace(
        "out[i] = T();  // to be written", "out[i] = T(float(x[i]) + float(y[i]));"
    ).replace(": zeros, as it stands.", " (this is a sum).")


def _as_own(text: str, name: str) -> str:
    """A `.cu` of the package rewritten as a user's own file, whose head names its op."""
    read = registry.kernel_name(name)
    assert read is not None
    return text.replace("/* rooftop\n", f'/* rooftop\nop      = "{read.op}"\n', 1)


def _torch_call(name: str, op: Contract, contract: str) -> str:
    """An implementation in torch that calls the contract's reference. It is right as it stands where kernels see tensors as they are
    called."""
    seen = "" if op.canonical is None else "\n\nTensors come as the contract's `canonical` makes them, options as they are called."
    module = f"rooftop.ops.{op.name.removesuffix('_bwd')}"
    wanted = "OP.bwd" if op.forward is not None else "OP"
    call = "op.reference(*op.arguments(inputs, inputs))"
    body = (
        f"    found = {call}\n"
        + """    for name, result in zip(op.output_names, found if isinstance(found, tuple) else (found,), strict=True):
        if outputs.get(name) is not None:
            outputs[name].copy_(result)
"""
    )
    if not op.output_names:
        body = f"    {call}  # it writes into its inputs\n"
    return f'''"""{name}, to be written (this is the reference, called as it stands). {contract}{seen}"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Problem


def supports(p: Problem) -> str | None:
    return None


def run(inputs: Mapping[str, Any], outputs: Mapping[str, Any], scratch: Mapping[str, Any], config: Any) -> None:
    from {module} import OP

    op = {wanted}
{body}'''


def _rung(name: str, house: House) -> tuple[Path, str]:
    ladder_name, _, stem = name.partition("/")
    ladder = registry.ladder(ladder_name, house)
    match = registry._RUNG.match(stem)
    if not match or match["backend"]:
        raise ValueError(f"{name!r} must read <ladder>/NN_slug, as softmax_cuda/11_my_idea")
    path = ladder.path / f"{stem}.cu"
    for rung in ladder.rungs:
        if rung.number == int(match["number"]) and rung.path != path:
            raise ValueError(
                f"{name!r}: number {match['number']} is taken by {rung.path.name}; the next that is free is "
                f"{ladder.rungs[-1].number + 1:02d}"
            )
    models = [r.path for r in ladder.rungs if r.path.suffix == ".cu"]
    if not models:
        raise ValueError(f"{ladder_name} has no .cu rung to start from: write one by hand (docs/head.md)")
    text = models[-1].read_text(encoding="utf-8")
    for key in ("idea", "limit"):
        text = re.sub(rf"^({key}\s*=\s*)(?:{TEXT})", r'\1""', text, count=1, flags=re.M)
    text = re.sub(r"^(predict\s*=\s*)\{[^}]*\}", r"\1{ }", text, count=1, flags=re.M)
    return path, text
