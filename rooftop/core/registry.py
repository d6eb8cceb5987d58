"""Finds ops, kernels and ladders, by file name only. A file is imported when it is used; a misspelt name is an error.

    ops/<op>.py                                                        the contract
    kernels/<family>/<op>[_bwd][__<variant>]__<backend>[_<target>].{py,cu}  an implementation; _<name>.{py,cuh}: a helper (helpers.py). A file that serves
                                                                       several ops has the name of their group in place of <op>, and lists them:
                                                                       `ops` in the head of a .cu, OPS in a .py
    kernels/<family>/choose.py                                         which of them runs: a function an op (rooftop.core.choice)
    ladders/<ladder>/ladder.toml, NN_slug.{cu,py,toml}                 a ladder and its rungs; a .py is in Triton, NN_slug__gluon.py in Gluon, and so on

`rooftop.core.backends.table` lists the backends. A .py of the same name beside a .cu belongs to it."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Any

from rooftop.core import head as heads
from rooftop.core import head_text, helpers, settings
from rooftop.core.backends.python_files import load_file
from rooftop.core.backends.table import BACKENDS, Backend
from rooftop.core.choice import Choose, Chosen, asked
from rooftop.core.contract import Contract
from rooftop.core.implementation import Implementation
from rooftop.core.names import RegistryError, UnknownName
from rooftop.core.spec import Problem

_KERNEL = re.compile(r"^(?P<op>[a-z0-9]+(?:_[a-z0-9]+)*)(?:__(?P<variant>[a-z0-9_]+?))?__(?P<backend>[a-z]+)(?:_(?P<target>[a-z0-9]+))?$")
_RUNG = re.compile(r"^(?P<number>\d\d)_(?P<slug>[a-z0-9]+(?:_[a-z0-9]+)*)(?:__(?P<backend>[a-z]+)(?:_(?P<target>[a-z0-9]+))?)?$")

CHOOSE = "choose.py"  # of a family: which kernel runs


@dataclass(frozen=True, eq=False)
class House:
    """The folders that are searched. Tests build their own. The caches of this module are keyed by the object: paths take long to hash."""

    ops: Path = settings.PACKAGE / "ops"
    kernels: Path = settings.PACKAGE / "kernels"
    ladders: Path = settings.PACKAGE / "ladders"


HOUSE = House()


@dataclass(frozen=True)
class KernelFile:
    """What an implementation's file name says."""

    path: Path
    op: str
    variant: str | None
    backend: str
    arch: int
    name: str  # the file's stem; of a file that serves several ops, with the op in place of the group


@dataclass(frozen=True)
class Rung:
    """One version of a ladder's op. `implementation` is what it runs: its own file, or the shipped kernel that it names."""

    ladder: str
    number: int
    slug: str
    path: Path
    head: heads.Head | None
    implementation: Implementation

    @property
    def name(self) -> str:
        return f"{self.ladder}/{self.number:02d}_{self.slug}"


@dataclass(frozen=True)
class Ladder:
    name: str
    path: Path
    op: str
    title: str
    intro: str
    dtypes: tuple[str, ...]
    targets: tuple[int, ...]
    headline: str
    cases: tuple[str, ...]
    rungs: tuple[Rung, ...]
    derivation: tuple[Mapping[str, Any], ...] = ()  # tables with which its page opens; rooftop.lab.report.derivation reads them
    needs: tuple[str, ...] = ()  # ladders and topics that come before it; rooftop.lab.learn.course reads them
    large_steps: Mapping[str, str] = field(default_factory=dict)  # a rung that changes more than 120 lines -> why it is no smaller step


@dataclass(frozen=True)
class KernelName:
    """The parsed name of a kernel's file."""

    op: str
    variant: str | None
    backend: Backend
    arch: int


def kernel_name(stem: str) -> KernelName | None:
    """Parses a file's stem; None if it is not the name of a kernel.

    Raises RegistryError for an unknown backend or target."""
    match = _KERNEL.match(stem)
    if not match:
        return None
    backend = _backend(match["backend"])
    return KernelName(match["op"], match["variant"], backend, backend.arch_of(match["target"]))


def _backend(name: str) -> Backend:
    if name not in BACKENDS:
        raise unknown("backend", name, sorted(BACKENDS))
    return BACKENDS[name]


def unknown(kind: str, name: str, known: list[str]) -> RegistryError:
    return UnknownName(kind, name, known)


@cache
def op_names(house: House = HOUSE) -> tuple[str, ...]:
    """The ops that have a contract, by file name."""
    return tuple(sorted(p.stem for p in house.ops.glob("*.py") if not p.stem.startswith("_")))


@cache
def op(name: str, house: House = HOUSE) -> Contract:
    """The contract of `name`; for `<op>_bwd` that of the backward, which is derived from the forward's.

    Raises RegistryError if there is none, or if its file is not valid Python."""
    base = name.removesuffix("_bwd") if name.removesuffix("_bwd") in op_names(house) else name
    if base not in op_names(house):
        raise unknown("op", name, list(op_names(house)))
    try:
        module = importlib.import_module(f"rooftop.ops.{base}") if house == HOUSE else load_file(house.ops / f"{base}.py")
    except SyntaxError as error:  # in this file, or in one that it imports
        raise RegistryError(not_python(error)) from None
    found = getattr(module, "OP", None)
    if not isinstance(found, Contract):
        raise RegistryError(f"ops/{base}.py defines no OP = Op(...)")
    found.name = base  # the file's name, however it was imported
    if found.bwd is not None:
        found.bwd.name = f"{base}_bwd"
    if name != base:
        if found.bwd is None:
            raise RegistryError(f"{name}: {base} has no backward op of its own")
        return found.bwd
    return found


def public(name: str) -> Callable[..., Any]:
    """The public function of an op."""
    return getattr(importlib.import_module(f"rooftop.ops.{name}"), name)


def not_python(error: SyntaxError) -> str:
    """The place and reason of a syntax error, in one line."""
    return f"{head_text.shown(Path(error.filename))}, line {error.lineno}: {error.msg}" if error.filename else str(error)


@cache
def kernel_files(house: House = HOUSE) -> tuple[KernelFile, ...]:
    """Every implementation's file. Raises RegistryError for a name that cannot be parsed, or that names no op, and for a file in the wrong
    folder."""
    files: list[KernelFile] = []
    rooms: dict[str, Path] = {}  # op, for forward and backward -> its family's folder
    for path in sorted(p for p in house.kernels.rglob("*") if p.suffix in (".py", ".cu", ".cuh") and p.name != CHOOSE):
        shown = path.relative_to(house.kernels)
        if any(part.startswith("_") for part in shown.parts):  # helpers of a family, and kernels/_device
            continue
        if path.suffix == ".cuh":
            raise RegistryError(
                f"kernels/{shown}: a header of a family is private to it: _{path.name}; what several families share is in kernels/_device"
            )
        if len(shown.parts) != 2:
            raise RegistryError(f"kernels/{shown}: a kernel lies in the folder of its family, kernels/<family>/{path.name}")
        try:
            name = kernel_name(path.stem)
        except RegistryError as error:
            raise RegistryError(f"kernels/{shown}: {error}") from None
        if name is None:
            raise RegistryError(f"kernels/{shown}: the name must read <op>[_bwd][__<variant>]__<backend>[_<target>]{path.suffix}")
        if path.suffix != name.backend.suffix:
            if path.with_suffix(name.backend.suffix).is_file():
                _check_stray_python(path, name.backend)
                continue
            raise RegistryError(f"kernels/{shown}: a {name.backend.name} kernel is a {name.backend.suffix} file")
        listed = _ops_of(path, f"kernels/{shown}")
        if listed and name.op in (*op_names(house), *(f"{n}_bwd" for n in op_names(house))):
            raise RegistryError(f"kernels/{shown}: a file that lists its ops has the name of a group, and {name.op} is an op")
        for one in listed or (name.op,):
            base = one.removesuffix("_bwd") if one not in op_names(house) else one
            if base not in op_names(house):
                raise RegistryError(f"kernels/{shown}: {unknown('op', one, list(op_names(house)))}")
            if rooms.setdefault(base, path.parent) != path.parent:
                raise RegistryError(
                    f"kernels/{shown}: the kernels of {base} are in kernels/{rooms[base].name}; those of an op are in one family"
                )
            called = one + path.stem.removeprefix(name.op)
            if other := next((f.path for f in files if f.name == called), None):
                raise RegistryError(f"kernels/{shown}: {called} is in {other.name} already")
            files.append(KernelFile(path, one, name.variant, name.backend.name, name.arch, called))
    return tuple(files)


def _ops_of(path: Path, shown: str) -> tuple[str, ...]:
    """The ops that a kernel's file lists, read from its text; () if it serves the op of its name."""
    names = helpers.ops_of(head_text.read(path))
    if names is not None and (not names or len(set(names)) != len(names)):
        raise RegistryError(f"{shown}: ops must list names of ops, each once; it lists {', '.join(names) or 'none'}")
    return names or ()


def _check_stray_python(path: Path, backend: Backend) -> None:
    """Raises RegistryError if a Python file lies beside a kernel whose head does not list it."""
    kernel = path.with_suffix(backend.suffix)
    if backend.name != "cuda" or not head_text.parse(head_text.read(kernel), head_text.shown(kernel)).python:
        raise RegistryError(f"{head_text.shown(path)} lies beside {kernel.name}, which does not ask for it (docs/head.md: python = [...])")


def _made(backend: Backend, path: Path, op_name: str, name: str, arch: int, house: House) -> Implementation:
    found = backend.implementation(path, op_name, name, arch)
    found.contract = partial(op, op_name, house)
    return found


def choose(op_name: str, problem: Problem, named: str = "", house: House = HOUSE) -> Chosen | str | None:
    """What the family's function chooses, among all kernels or with `named` alone; None if it has no function for the op. Raises
    ChoiceError."""
    found = chooser(op_name, house)
    if found is None:
        return None
    return asked(*found, problem, named)


def implementation(name: str, house: House = HOUSE) -> Implementation:
    """An implementation by its file's stem; always the same object."""
    return _implementation(name, house)


@cache
def _implementation(name: str, house: House) -> Implementation:
    files = {f.name: f for f in kernel_files(house)}
    if name not in files:
        raise unknown("implementation", name, sorted(files))
    file = files[name]
    found = _made(BACKENDS[file.backend], file.path, file.op, file.name, file.arch, house)
    found.weighed = partial(choose, file.op, named=file.name, house=house)
    return found


def implementations(op_name: str, house: House = HOUSE) -> list[Implementation]:
    """The implementations of one op, by file name."""
    return list(_implementations(op_name, house))


@cache
def _implementations(op_name: str, house: House) -> tuple[Implementation, ...]:
    return tuple(implementation(f.name, house) for f in kernel_files(house) if f.op == op_name)


@cache
def chooser(op_name: str, house: House = HOUSE) -> tuple[Choose, str, tuple[str, ...]] | None:
    """The function that chooses among the kernels of an op, the file that it is in, and the kernels. None: the op has no function, and its
    first kernel that supports a problem runs, in the order of backends and names.

    Raises RegistryError if the file is not valid Python, or imports a helper that does not exist."""
    files = [f for f in kernel_files(house) if f.op == op_name]
    path = files[0].path.parent / CHOOSE if files else None
    if path is None or not path.is_file():
        return None
    try:
        module = load_file(path)
    except SyntaxError as error:
        raise RegistryError(not_python(error)) from None
    function = getattr(module, op_name, None)
    return (function, head_text.shown(path), tuple(f.name for f in files)) if callable(function) else None


NAMED = "the call names it"  # why a choice says of a kernel that it was asked for


def in_order(p: Problem, named: str, order: Iterable[tuple[str, str]]) -> Chosen | str:
    """For a `choose.py`: the first of these (kernel, why) that takes the problem, with the config of its own file, or why the first does
    not; `named`: that kernel alone."""
    refused = ""
    for name, why in [(named, NAMED)] if named else order:
        kernel = _implementation(name, HOUSE)
        reason = kernel.rejects(p)
        if reason is None:
            return Chosen(name, kernel.configure(p), why)
        refused = refused or reason
    return refused or "no kernel is for such a problem"


@cache
def ladder_names(house: House = HOUSE) -> tuple[str, ...]:
    return tuple(sorted(p.parent.name for p in house.ladders.glob("*/ladder.toml")))


_LADDER_KEYS: Mapping[str, type] = {"op": str, "title": str, "intro": str, "dtypes": list, "targets": list, "headline": str, "cases": list}


@cache
def ladder(name: str, house: House = HOUSE) -> Ladder:
    """A ladder with all its rungs. Raises RegistryError for an unknown name or a malformed folder."""
    if name not in ladder_names(house):
        raise unknown("ladder", name, list(ladder_names(house)))
    folder = house.ladders / name
    try:
        data: dict[str, Any] = tomllib.loads((folder / "ladder.toml").read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise RegistryError(f"ladders/{name}/ladder.toml: {error}") from None
    for key, kind in _LADDER_KEYS.items():
        if not isinstance(data.get(key), kind):
            raise RegistryError(f"ladders/{name}/ladder.toml: {key} must be a {kind.__name__}")
    if extra := set(data) - {*_LADDER_KEYS, "derivation", "needs", "large_steps"}:
        raise RegistryError(
            f"ladders/{name}/ladder.toml: unknown keys {', '.join(sorted(extra))}; it holds {', '.join(_LADDER_KEYS)}, derivation, needs, large_steps"
        )
    needs = data.get("needs", [])
    if not isinstance(needs, list) or not all(isinstance(n, str) for n in needs):
        raise RegistryError(f"ladders/{name}/ladder.toml: needs must be names of ladders and topics")
    large = data.get("large_steps", {})
    if not isinstance(large, dict) or not all(isinstance(why, str) for why in large.values()):
        raise RegistryError(f"ladders/{name}/ladder.toml: large_steps must be a table, rung = why")
    derivation = data.get("derivation", [])
    if not isinstance(derivation, list) or not all(isinstance(step, dict) for step in derivation):
        raise RegistryError(f"ladders/{name}/ladder.toml: derivation must be tables, [[derivation]]")
    if data["op"].removesuffix("_bwd") not in op_names(house):
        raise RegistryError(f"ladders/{name}/ladder.toml: {unknown('op', data['op'], list(op_names(house)))}")
    return Ladder(
        name=name, path=folder, op=data["op"], title=data["title"], intro=data["intro"], dtypes=tuple(data["dtypes"]),
        targets=tuple(data["targets"]), headline=data["headline"], cases=tuple(data["cases"]),
        rungs=tuple(_rungs(name, folder, data["op"], house)),
        derivation=tuple(derivation), needs=tuple(needs), large_steps=large,
    )


def _rungs(name: str, folder: Path, op_name: str, house: House) -> list[Rung]:
    rungs: list[Rung] = []
    for path in sorted(p for p in folder.iterdir() if p.name not in ("ladder.toml", "__pycache__")):
        match = _RUNG.match(path.stem)
        if not match or path.suffix not in (".cu", ".py", ".toml"):
            raise RegistryError(f"ladders/{name}/{path.name}: a rung's name reads NN_slug.cu, .py or .toml")
        if path.suffix == ".py" and path.with_suffix(".cu").is_file():
            _check_stray_python(path, BACKENDS["cuda"])
            continue
        number, slug = int(match["number"]), match["slug"]
        if rungs and number == rungs[-1].number:
            raise RegistryError(f"ladders/{name}: two rungs have number {number:02d}: {rungs[-1].path.name} and {path.name}")
        rung_name = f"{name}/{number:02d}_{slug}"
        head: heads.Head | None
        if path.suffix == ".toml":
            head = head_text.parse(head_text.read(path), f"ladders/{name}/{path.name}", toml=True)
            found = implementation(head.implementation or "", house)
        else:
            try:
                backend = _backend(match["backend"] or ("cuda" if path.suffix == ".cu" else "triton"))
                if backend.suffix != path.suffix:
                    raise RegistryError(f"a {backend.name} kernel is a {backend.suffix} file")
                arch = backend.arch_of(match["target"])
            except RegistryError as error:
                raise RegistryError(f"ladders/{name}/{path.name}: {error}") from None
            found = _made(backend, path, op_name, rung_name, arch, house)
            head = found.head or head_text.of_python(head_text.read(path), f"ladders/{name}/{path.name}")
        rungs.append(Rung(name, number, slug, path, head, found))
    return rungs


def rung(name: str, house: House = HOUSE) -> Rung:
    """A rung by `ladder/NN_slug`, `ladder/NN` or `ladder/slug`."""
    ladder_name, _, wanted = name.partition("/")
    found = ladder(ladder_name, house)
    for candidate in found.rungs:
        if wanted in (f"{candidate.number:02d}_{candidate.slug}", f"{candidate.number:02d}", str(candidate.number), candidate.slug):
            return candidate
    raise unknown("rung", name, [r.name for r in found.rungs])


def no_file(path: Path) -> str:
    """The error message for a `path` that is not a file, with the closest name beside it."""
    if path.is_dir():
        return f"{path} is a folder; a file is needed"
    if path.exists():
        return f"{path} is no regular file"
    present = [p.name for p in path.parent.iterdir() if p.suffix in (".cu", ".py")] if path.parent.is_dir() else []
    close = get_close_matches(path.name, present, 1)
    return f"no file {path}" + (f"; did you mean {close[0]!r}?" if close else "")


def no_op(path: Path) -> str:
    """The error message for a head without an op."""
    return (
        f'{path}: the head names no op (op = "softmax"; rooftop ls has all {len(op_names())}): name one, or judge it by a function of yours: '
        f"rooftop check {path} --reference my.py:{path.stem if path.stem.isidentifier() else 'reference'}"
    )


def user_file(path: Path, otherwise: str | None = None) -> Implementation:
    """A user's own kernel: a `.cu` whose head names its op, or a `.py` with the name of a kernel. `otherwise`: the op of a head that names
    none.

    Raises RegistryError or HeadError with what is accepted."""
    if not path.is_file():
        raise RegistryError(no_file(path))
    if path.suffix == ".cu":
        head = head_text.parse(head_text.read(path), str(path))
        name_of_op = head.op or otherwise
        if name_of_op is None:
            raise heads.HeadError(no_op(path))
        contract = op(name_of_op)
        head.complete(name_of_op, [n for n, kind in contract.kinds.items() if kind == "Tensor | None"], contract.later)
        return _made(BACKENDS["cuda"], path.resolve(), name_of_op, path.stem, 0, HOUSE)
    if path.suffix == ".py":
        try:
            name = kernel_name(path.stem)
        except RegistryError as error:
            raise RegistryError(f"{path}: {error}") from None
        if name is None or name.backend.suffix != ".py":
            backends = ", ".join(b.name for b in BACKENDS.values() if b.suffix == ".py")
            raise RegistryError(
                f"{path}: the name of a kernel in Python must read <op>[_bwd][__<variant>]__<backend>[_sm<arch>].py, in {backends}; "
                "rooftop simt, inspect, place, check --like take any file with Triton kernels"
            )
        op(name.op)
        return _made(name.backend, path.resolve(), name.op, path.stem, name.arch, HOUSE)
    raise RegistryError(f"{path}: a kernel is a .cu or a .py file")
