"""CUDA C++ inside a Python file, or named by one: what `torch.utils.cpp_extension.load_inline` and `load` are given. The file is read, not
run."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

from rooftop.core import settings, whole_file

LOADERS = ("load_inline", "load")
# of the arguments, where they are given by position
PLACES = {"load_inline": {"cpp_sources": 1, "cuda_sources": 2}, "load": {"sources": 1}}


def sources(path: Path) -> list[Path]:
    """The `.cu` files of a Python file: those that it names, and one of what it holds as texts, with the same line numbers. Empty where
    there are none.

    Raises ValueError for a source that is made by code, with its line."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if "cpp_extension" not in text and "load_inline" not in text:
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    known = {t.id: node.value for node in ast.walk(tree) if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)}
    found: list[Path] = []
    texts: list[tuple[int, str]] = []
    for call in ast.walk(tree):
        name = _name(call.func) if isinstance(call, ast.Call) else ""
        if not isinstance(call, ast.Call) or name not in LOADERS:
            continue
        for argument, place in PLACES[name].items():
            given = next((k.value for k in call.keywords if k.arg == argument), call.args[place] if len(call.args) > place else None)
            if given is None:
                continue
            if name == "load":
                found += _files(given, known, path)
            else:
                texts += _texts(given, known, path, needed=argument == "cuda_sources")
    if any("__global__" in said for _, said in texts):
        found.append(_written(path, texts))
    return list(dict.fromkeys(found))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _files(node: ast.expr, known: dict[str, ast.expr], path: Path) -> list[Path]:
    """The files that exist of the names ending in .cu that an expression holds, beside the file or where the command runs."""
    said = [
        n.value for n in ast.walk(_known(node, known)) if isinstance(n, ast.Constant) and isinstance(n.value, str)
        and n.value.endswith((".cu", ".cuh"))
    ]
    return [p for name in said for p in [next((p for p in (path.parent / name, Path(name)) if p.is_file()), None)] if p is not None]


def _known(node: ast.expr, known: dict[str, ast.expr]) -> ast.expr:
    return known.get(node.id, node) if isinstance(node, ast.Name) else node


def _texts(node: ast.expr, known: dict[str, ast.expr], path: Path, needed: bool) -> list[tuple[int, str]]:
    """Each text with the line where it begins; of C++ that is only declared, none."""
    node = _known(node, known)
    if isinstance(node, ast.List | ast.Tuple):
        return [one for part in node.elts for one in _texts(part, known, path, needed)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [one for part in (node.left, node.right) for one in _texts(part, known, path, needed)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [(node.lineno, node.value)] if needed or "{" in node.value else []
    if needed:
        raise ValueError(
            f"{path}:{node.lineno}: the CUDA source is made by code, {ast.unparse(node)[:60]!r}; write it to a .cu file and name that"
        )
    return []


def _written(path: Path, texts: list[tuple[int, str]]) -> Path:
    """One `.cu` in the cache, each text at the line that it has in the file."""
    whole = ""
    for line, text in sorted(dict.fromkeys(texts)):
        whole += "\n" * max(0, line - 1 - whole.count("\n")) + text + ("" if text.endswith("\n") else "\n")
    folder = settings.load().cache / "sources" / hashlib.sha256(whole.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{path.stem}.cu"
    whole_file.write(made, whole)
    return made
