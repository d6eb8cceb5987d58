"""What a Python file imports that Python alone would not find: its relatives in a package, and modules that are not installed."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

MOST = 8  # modules that may be missing
ABOVE = 6  # folders above a file in which its own package may lie


class _Used:
    """Of a module that is not installed. A class may be made of it, and it may be a decorator's argument; called, it is missed."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Used(self._module)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ModuleNotFoundError(f"No module named {self._module!r}", name=self._module)

    def __mro_entries__(self, _: Any) -> tuple[type, ...]:
        return ()


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Used(self.__name__)


class _Absent:
    """Finds a module that is not installed, and whatever it may hold."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, *_: Any) -> Any:
        return spec_from_loader(name, self, is_package=True) if f"{name}.".startswith(f"{self.name}.") else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> Any:
        return _Module(spec.name)

    def exec_module(self, _: Any) -> None: ...


@contextlib.contextmanager
def without() -> Iterator[Callable[[str], bool]]:
    """Gives a function that lets a module be imported that is not installed; False where it was named before, or there are too many."""
    found: list[Any] = []

    def absent(name: str) -> bool:
        if len(found) == MOST or any(name == f.name or name.startswith(f"{f.name}.") for f in found):
            return False
        found.append(_Absent(name))
        sys.meta_path.append(found[-1])
        return True

    try:
        yield absent
    finally:
        for finder in found:
            sys.meta_path.remove(finder)
        for name in [n for n, m in sys.modules.items() if isinstance(m, _Module)]:
            del sys.modules[name]


def above(path: Path, name: str) -> bool:
    """Lets a package be imported that lies in a folder above a file, as in one whose root is on Python's path; whether there is one."""
    first = name.partition(".")[0]
    for folder in path.resolve().parents[1:ABOVE]:
        if str(folder) not in sys.path and any(p.suffix == ".py" for p in [folder / f"{first}.py", *(folder / first).glob("**/*.py")] if p.is_file()):
            sys.path.append(str(folder))
            return True
    return False


class _Package(ModuleType):
    """A folder as a package. Its `__init__.py`, which may want the whole library, runs only for a name that no file of the folder has."""

    def __getattr__(self, name: str) -> Any:
        folder = Path(self.__path__[0])
        beside = folder / name, folder / f"{name}.py"
        first = folder / "__init__.py"
        if name.startswith("__") or "_begun" in vars(self) or not first.is_file() or any(p.exists() for p in beside):
            raise AttributeError(name)
        self._begun = True
        exec(compile(first.read_bytes(), str(first), "exec", dont_inherit=True), vars(self))
        return getattr(self, name)


def package_of(path: Path) -> str:
    """The package that a file's relative imports (`from ..layers import norm`) mean, which can be imported from here on; "" where it has
    none. What lies in a package can import it by its whole name too."""
    dots = [len(d) for d in re.findall(r"^[ \t]*from[ \t]+(\.+)", path.read_text(encoding="utf-8", errors="replace"), re.M)]
    folders = [path.resolve().parent]
    while (folders[0] / "__init__.py").is_file() or len(folders) < max(dots, default=0):
        if folders[0].parent == folders[0]:
            break
        folders.insert(0, folders[0].parent)
    if not (folders[0] / "__init__.py").is_file() and len(folders) > max(dots, default=0):
        sys.path.insert(0, str(folders.pop(0)))
    if not dots:
        return ""
    for i, folder in enumerate(folders):
        name = ".".join(f.name for f in folders[: i + 1])
        made = _Package(name)
        made.__path__ = [str(folder)]
        sys.modules.setdefault(name, made)
    return name
