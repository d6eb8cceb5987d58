"""Where the helpers of kernels lie, and which of them a kernel uses. This is the only place that knows.

    kernels/<family>/_<name>.{cuh,py}   private helpers of a family, beside its kernels
    kernels/_device/<name>.{cuh,py}     what two or more families use

An `#include` is looked up in the folder of the kernel's family, then in kernels/_device. Rungs and users' files belong to the family of
their op. Python imports name the folder: `from rooftop.kernels.norm._ring import x`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path

from rooftop.core import settings
from rooftop.core.digests import without_comments

Folders = tuple[Path, ...]

KERNELS = settings.PACKAGE / "kernels"
SHARED = KERNELS / "_device"
_GAP = r"[ \t\f\v\r]*"
INCLUDE = re.compile(
    rf"^{_GAP}(?:#|%:|\?\?=){_GAP}(?:include|include_next|import|embed)\b{_GAP}(?:\"([^\"\n]*)\"|<([^>\n]*)>|([^\n]*))", re.M
)
_SPLICED = re.compile(r"((?:[^\n]*\\[ \t\f\v\r]*\n)+)([^\n]*)")
_SPLICE = re.compile(r"\\[ \t\f\v\r]*\n")
_IMPORT = re.compile(r"^from rooftop\.kernels\.(\w+)(?:\.(\w+) import |(?: import (?:\(([^)]*)\)|([^\n(]*))))", re.M)


_OPS = re.compile(r"^(?:ops *= *\[([^\]]*)\]|OPS = \(([^)]*)\))", re.M)


def ops_of(text: str) -> tuple[str, ...] | None:
    """The ops that the text of a kernel's file lists; None if it serves the op of its name."""
    found = _OPS.search(text)
    return None if found is None else tuple(re.findall(r'"([^"]*)"', found[1] or found[2] or ""))


@cache
def _families() -> Mapping[str, Path]:
    """op -> the folder of its kernels."""
    files = [p for p in sorted(KERNELS.glob("[!_]*/[!_]*__*")) if p.suffix in (".py", ".cu")]
    return {op: p.parent for p in files for op in ops_of(p.read_text(encoding="utf-8")) or (p.name.partition("__")[0],)}


def family(op: str) -> Path | None:
    """The folder of the kernels of an op, of its backward or of its forward; None for an op without kernels."""
    known = _families()
    return known.get(op) or known.get(f"{op}_bwd") or known.get(op.removesuffix("_bwd"))


def folders(path: Path, op: str) -> Folders:
    """The folders in which includes are looked up, in order. `path`: the kernel's file. `op`: of a rung or a user's file, which may have
    none."""
    own = path.parent if path.parent.parent == KERNELS and path.parent != SHARED else family(op)
    return (SHARED,) if own is None else (own, SHARED)


def included(source: str, where: Sequence[Path]) -> dict[str, Path]:
    """The headers of the folders `where` that a text includes, directly or indirectly, each once: the name in the include -> the file."""
    found: dict[str, Path] = {}
    todo = [source]
    while todo:
        for name in _names(todo.pop()):
            path = _found(name, where)
            if path is not None and name not in found:
                found[name] = path
                todo.append(path.read_text(encoding="utf-8"))
    return found


def _found(name: str, where: Sequence[Path]) -> Path | None:
    return None if Path(name).is_absolute() else next((p for folder in where if (p := folder / name).is_file()), None)


def headers(source: str, where: Sequence[Path]) -> list[Path]:
    """The files of `included`, in reading order."""
    return list(included(source, where).values())


@lru_cache(512)  # for the shared headers, which most kernels include
def _names(source: str) -> tuple[str, ...]:
    """The names of the files that a text includes, in order, without those in comments."""
    source = whole_lines(source)
    last = max((m.end() for m in INCLUDE.finditer(source)), default=0)
    top = source[:last]
    if top.count("/*") != top.count("*/"):  # the comment around an include may end later
        top = source
    return tuple(found[1] or found[2] or "" for found in INCLUDE.finditer(without_comments(top)))


def expanded(source: str, where: Sequence[Path], seen: set[Path] | None = None) -> str:
    """`source` with the headers of the folders `where` in place of their first inclusion, as the compiler sees it: the name and the place
    of a header, and how code is divided among headers, do not show."""
    done = set() if seen is None else seen

    def text(found: re.Match[str]) -> str:
        path = _found(found[1] or found[2] or "", where)
        if path is None:
            return found[0]
        if path in done:
            return ""
        done.add(path)
        return expanded(path.read_text(encoding="utf-8"), where, done)

    return INCLUDE.sub(text, without_comments(source))


def whole_lines(text: str) -> str:
    """`text` with lines that a backslash continues put together, as a compiler reads them, each where its last part stood."""
    return _SPLICED.sub(lambda m: "\n" * m[1].count("\n") + _SPLICE.sub("", m[1]) + m[2], text) if "\\" in text else text


def with_headers(source: str, where: Sequence[Path]) -> list[str]:
    """`source` and the texts of the headers that it includes, in a fixed order: the key of a compiled binary."""
    return [source, *(p.read_text(encoding="utf-8") for p in sorted(headers(source, where)))]


def _imports(text: str) -> Iterator[Path]:
    for folder, module, several, line in _IMPORT.findall(text):
        for name in [module] if module else re.findall(r"(?:^|,)\s*(\w+)", re.sub(r"#[^\n]*", "", several or line)):
            yield KERNELS / folder / f"{name}.py"


def imported(text: str) -> list[Path]:
    """The modules of rooftop.kernels that a Python text imports, directly or indirectly, in reading order."""
    found: list[Path] = []
    todo = [text]
    while todo:
        for path in _imports(todo.pop(0)):
            if path.is_file() and path not in found:
                found.append(path)
                todo.append(path.read_text(encoding="utf-8"))
    return found


def with_imported(text: str) -> list[str]:
    """A Python text and those of the modules of rooftop.kernels that it imports, in a fixed order: the input of a digest."""
    return [text, *(p.read_text(encoding="utf-8") for p in sorted(imported(text)))]


def named(path: Path, where: Sequence[Path] = ()) -> list[Path]:
    """The helpers that a file itself includes or imports. `where`: the folders of its includes."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return [p for p in _imports(text) if p.is_file()]
    return [p for name in _names(text) if (p := _found(name, where)) is not None]


def all_of(path: Path, op: str) -> list[Path]:
    """The helpers of a kernel's file, and of the `.py` of the same stem beside a `.cu`, in reading order."""
    python = path.with_suffix(".py")
    found = imported(python.read_text(encoding="utf-8")) if python.is_file() else []
    return found + (headers(path.read_text(encoding="utf-8"), folders(path, op)) if path.suffix == ".cu" else [])
