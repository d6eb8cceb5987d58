"""Python files of kernels: loading by path, and the parts of their text that a digest covers."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from rooftop.core import settings
from rooftop.core.digests import digest, strip
from rooftop.core.head_text import shown, without_head
from rooftop.core.helpers import with_imported
from rooftop.core.names import RegistryError

LOADED = "rooftop._files."  # how the names of modules begin that are loaded by their path


def load_file(path: Path) -> ModuleType:
    """Import one file by its path, once: one of the package as that module of it."""
    if path.is_relative_to(settings.PACKAGE):
        name = ".".join((settings.PACKAGE.name, *path.relative_to(settings.PACKAGE).with_suffix("").parts))
    else:
        name = LOADED + "_".join(path.with_suffix("").parts[-3:]).replace("-", "_") + f"_{digest(str(path))[:6]}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        found.loader.exec_module(module)
    except ImportError as error:
        del sys.modules[name]
        if (error.name or "").startswith("rooftop.kernels"):  # a helper that is misspelt
            raise RegistryError(f"{shown(path)}: {error}") from None
        raise
    except BaseException:
        del sys.modules[name]
        raise
    return module


_IMPORTS = re.compile(r"^(?:from rooftop[\w.]* import (?:\([^)]*\)|[^\n(]*)|import rooftop[^\n]*)\n", re.M)


def without_imports(text: str) -> str:
    """A Python file without its imports from the package: the location of a helper has no effect on what runs. The helpers' own text is
    hashed too."""
    return _IMPORTS.sub("", text)


def texts_of(text: str) -> list[str]:
    """The text of a kernel for its digest: its file and its helpers, each without comments, imports and the head."""
    return [strip(without_imports(without_head(one)), "python") for one in with_imported(text)]


def _binds(node: ast.stmt) -> list[str]:
    """The names of a module that a statement assigns or changes: `x`, also in `x.y = 1`, and those in the body of an `if`."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Expr):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else [node]
    found = [n for target in targets for n in ast.walk(target)]
    return list(
        dict.fromkeys(
            n.id if isinstance(n, ast.Name) else n.name for n in found if isinstance(n, ast.Name | ast.FunctionDef | ast.ClassDef)
        )
    )


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def texts_of_function(text: str, name: str) -> list[str]:
    """The text of one function of a kernel for its digest: the function, everything of the file that it uses, directly or indirectly, and
    all of the file's helpers."""
    tree = ast.parse(text)
    defined: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        for one in _binds(node):
            defined.setdefault(one, []).append(node)
    found: dict[str, list[ast.stmt]] = {}
    todo = [name]
    while todo:
        one = todo.pop()
        if one in defined and one not in found:
            found[one] = defined[one]
            todo += [n.id for node in found[one] for n in ast.walk(node) if isinstance(n, ast.Name)]
    lines = text.splitlines()
    own = [strip("\n".join(lines[_first_line(node) - 1 : node.end_lineno]), "python") for one in sorted(found) for node in found[one]]
    return own + [strip(without_imports(one), "python") for one in sorted(with_imported(text)) if one != text]
