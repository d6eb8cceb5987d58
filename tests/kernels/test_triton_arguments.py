"""Arguments of Triton and Gluon kernels that are 1: Triton takes them for constants, plain Python numbers, which have no `.to`."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("triton")

from rooftop.core import registry
from rooftop.core.settings import PACKAGE
from rooftop.core.spec import TARGETS, Meta
from rooftop.core.triton_compat import compile_launch


@dataclass
class Function:
    file: Path
    node: ast.FunctionDef
    left: set[str]  # arguments that do_not_specialize names

    @property
    def place(self) -> str:
        return f"{self.file.name}: {self.node.name}"

    @property
    def parameters(self) -> list[str]:
        return [a.arg for a in self.node.args.args]

    @property
    def constants(self) -> set[str]:
        return {a.arg for a in self.node.args.args if a.annotation is not None and "constexpr" in ast.unparse(a.annotation)}


def functions(files: list[Path]) -> dict[str, list[Function]]:
    found: dict[str, list[Function]] = {}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            decorators = [ast.unparse(d) for d in node.decorator_list] if isinstance(node, ast.FunctionDef) else []
            if isinstance(node, ast.FunctionDef) and any("jit" in d for d in decorators):
                left = {c.value for d in node.decorator_list for c in ast.walk(d) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
                found.setdefault(node.name, []).append(Function(path, node, left))
    return found


def stored(f: Function) -> set[str]:
    """Names that are set within: no longer what was given."""
    return {n.id for n in ast.walk(f.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def traps(files: list[Path]) -> list[str]:
    """Where `.to` is asked of what may be an argument as it was launched, straight or handed on to a helper."""
    known = functions(files)
    called = {c.func.id for fs in known.values() for f in fs for c in ast.walk(f.node) if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)}
    raw = {id(f): set(f.parameters) - f.constants - f.left for name, fs in known.items() if name not in called for f in fs}
    everyone = {id(f): f for fs in known.values() for f in fs}
    todo = list(raw)
    while todo:
        f = everyone[at := todo.pop()]
        kept = raw[at] - stored(f)
        for call in ast.walk(f.node):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            named = known.get(call.func.id, [])
            for g in [g for g in named if g.file == f.file] or named:
                given = {**dict(zip(g.parameters, call.args, strict=False)), **{k.arg: k.value for k in call.keywords if k.arg}}
                handed = {n for n, v in given.items() if isinstance(v, ast.Name) and v.id in kept and n not in g.constants}
                if handed - raw.setdefault(id(g), set()):
                    raw[id(g)] |= handed
                    todo.append(id(g))
    found = []
    for f in everyone.values():
        kept = raw.get(id(f), set()) - stored(f)
        for n in ast.walk(f.node):
            if isinstance(n, ast.Attribute) and n.attr == "to" and isinstance(n.value, ast.Name) and n.value.id in kept:
                found.append(f"{f.place}: {n.value.id}.to in line {n.lineno}")
    return found


def test_no_argument_that_may_be_1_is_asked_for_a_method(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(
        "@triton.jit\ndef helper(m, n):\n    return m.to(tl.int64) + n.to(tl.int64)\n"
        "@triton.jit(do_not_specialize=['K'])\ndef kernel(x, R, K, C: tl.constexpr):\n"
        "    return R.to(tl.int64) + K.to(tl.int64) + helper(tl.program_id(0), R)\n"
    )
    assert [t.split(": ", 2)[1:] for t in traps([tmp_path / "planted.py"])] == [["helper", "n.to in line 3"], ["kernel", "R.to in line 6"]]
    assert traps([p for folder in ("kernels", "ladders") for p in sorted((PACKAGE / folder).rglob("*.py"))]) == []


@pytest.mark.parametrize("shape", [((1, 1), (1, 2619)), ((1, 40), (40, 1)), ((300, 1), (1, 7))], ids=str)
@pytest.mark.parametrize("name", ["matmul__copied__gluon_sm90", "matmul__triton"])
def test_products_with_extents_of_1_compile(name: str, shape: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """Operands off 16 bytes, so that they are packed first."""
    op, kernel = registry.op("matmul"), registry.implementation(name)
    metas = {n: Meta(s, "f16", (s[1], 1), 2) for n, s in zip(("a", "b"), shape, strict=True)}
    options = {"alpha": 1.0, "beta": 0.0, "activation": "none", "to": "", "precision": "ieee"}
    problem = op.problem_of({**dict.fromkeys(op.tensor_names), **metas}, options, TARGETS[90])
    assert kernel.supports(problem) is None
    config = kernel.choose(problem)
    tensors = {**dict(problem.tensors), **kernel.scratch(problem, config)}
    assert all(compile_launch(launch, tensors, 90, problem.runtime_floats) for launch in kernel.launches(problem, config))
