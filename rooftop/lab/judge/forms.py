"""What a submission is, read from its text alone: nothing of it runs before it is recognised."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rooftop.lab.simt.program_caller import Function

Form = Literal["head", "solve", "load_inline", "module", "model", "function"]
MOST = 1 << 20  # bytes of a submission
SHOWN: dict[Form, str] = {
    "head": "CUDA C++ with a head", "solve": 'CUDA C++ with extern "C" void solve(...)',
    "load_inline": "CUDA C++ in a Python file (load_inline)", "module": "a kernel module of rooftop's", "model": "class ModelNew",
    "function": "a Python function",
}
ACCEPTED = (
    'a .cu with a head, a .cu with extern "C" void solve(pointers and sizes), a .py with a function of tensors, load_inline sources, '
    "or class ModelNew"
)


class SubmissionError(ValueError):
    """A file is no submission; the text says what it is and what is accepted."""


@dataclass(frozen=True)
class Submission:
    """`name`: the function or class that is called; `language`: what its text imports. `solve`: of a .cu, the function with its
    parameters."""

    path: Path
    form: Form
    text: str
    digest: str
    name: str = ""
    language: Literal["cuda", "triton", "gluon", "cutile", "torch"] = "cuda"
    solve: Function | None = None


def recognise(word: str, op: str = "") -> Submission:
    """`FILE.cu`, `FILE.py` or `FILE.py:NAME`. `op`: the function of this name is meant where a file has several. Raises SubmissionError."""
    file, colon, name = word.rpartition(":")
    path = Path(file if colon and file.endswith(".py") else word)
    name = name if colon and file.endswith(".py") else ""
    text = _text(path)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if path.suffix == ".cu":
        return _cuda(path, text, digest)
    return _python(path, text, digest, name, op)


def _text(path: Path) -> str:
    from rooftop.core.whole_file import regular

    if path.suffix not in (".cu", ".py"):
        raise SubmissionError(f"{path} is no submission: {ACCEPTED}")
    if not path.is_file():
        raise SubmissionError(f"there is no file {path}; a submission is {ACCEPTED}")
    if (size := path.stat().st_size) > MOST:
        raise SubmissionError(f"{path} has {size:,} bytes; a submission has at most {MOST:,}")
    held = regular(path, MOST)
    if not held.strip():
        raise SubmissionError(f"{path} is empty; a submission is {ACCEPTED}")
    if b"\0" in held:
        raise SubmissionError(f"{path} is binary (a zero byte at {held.index(0)}); a submission is source text in UTF-8")
    try:
        return held.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise SubmissionError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from None


def _cuda(path: Path, text: str, digest: str) -> Submission:
    if text.lstrip().startswith("/* rooftop"):
        return Submission(path, "head", text, digest)
    from rooftop.lab.simt import program_caller

    found = [f for f in program_caller.functions(text) if f.name == "solve"]
    if not found:
        others = ", ".join(f.name for f in program_caller.functions(text)) or "none"
        raise SubmissionError(f'{path} has neither a head nor extern "C" void solve(...); its host functions: {others}')
    solve = found[0]
    if not any(p.pointer for p in solve.parameters) or not re.search(r'extern\s*"C"', text):
        raise SubmissionError(
            f'{path}:{solve.line}: {solve} has another signature; extern "C" void solve(pointers, then sizes) is accepted'
        )
    if "__global__" not in text:
        raise SubmissionError(f"{path} has a solve() and no __global__ kernel: what the host computes is not judged")
    return Submission(path, "solve", text, digest, "solve", "cuda", solve)


def _python(path: Path, text: str, digest: str, name: str, op: str) -> Submission:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise SubmissionError(f"{path}{where} is not Python: {getattr(error, 'msg', error)}") from None
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    bound = functions.keys() | {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    classes = {n.name for n in tree.body if isinstance(n, ast.ClassDef)}
    language = _language(text)
    if "ModelNew" in classes and name in ("", "ModelNew"):
        return Submission(path, "model", text, digest, "ModelNew", language)
    if "supports" in bound and bound & {"launches", "run", "steps"}:
        return Submission(path, "module", text, digest, path.stem, language)
    if not name and "load_inline" in text and _inline(tree):
        return Submission(path, "load_inline", text, digest, "", "cuda")
    plain = [n for n, f in functions.items() if not n.startswith("_") and not any(_jit(d) for d in f.decorator_list)]
    if name and name not in plain:
        raise SubmissionError(f"{path} has no function {name!r} that can be called; it has {', '.join(plain) or 'none'}")
    chosen = name or next((n for n in (op, "solve", path.stem) if n in plain), plain[0] if len(plain) == 1 else "")
    if not chosen:
        have = f"{len(plain)} functions; name one: {path}:{plain[0]}" if plain else "no function of tensors and no class ModelNew"
        raise SubmissionError(f"{path} has {have}")
    return Submission(path, "function", text, digest, chosen, language)


def _language(text: str) -> Literal["triton", "gluon", "cutile", "torch"]:
    if re.search(r"^\s*(?:import|from)\s+cuda\.tile", text, re.M):
        return "cutile"
    if re.search(r"^\s*(?:import|from)\s+triton\.experimental(?:\.| import )gluon", text, re.M):
        return "gluon"
    return "triton" if re.search(r"^\s*(?:import|from)\s[^#\n]*\btriton\b", text, re.M) else "torch"


def _inline(tree: ast.AST) -> bool:
    return any(isinstance(n, ast.Call) and getattr(n.func, "attr", getattr(n.func, "id", "")) == "load_inline" for n in ast.walk(tree))


def _jit(node: ast.expr) -> bool:
    return bool(re.search(r"\b(?:jit|kernel|autotune|heuristics)\b", ast.unparse(node)))
