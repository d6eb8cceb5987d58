"""The skeleton of an op's in-place twin: its public function with the checks of the op's own, and the contract that follows from the
op's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping

from rooftop.core import registry
from rooftop.core.contract import Contract
from rooftop.core.registry import HOUSE, House

BY_HAND = "write it by hand: ops/rope_.py is the one to copy (docs/adding.md)"

CONTRACT = """# Only for kernels whose every thread reads what it overwrites before it writes. Cases: those whose elements are apart, to be written into.
OP = in_place(plain.OP, {{{pairs}}}, [c for c in plain.OP.cases if not any(n in {held} and v.layout == "expanded" for n, v in c.tensors())])"""


def text(base: str, house: House) -> str:
    """The file `<base>_.py`. Raises RegistryError where there is no such op, ValueError where its outputs fit no input or its public
    function does more than to check and call."""
    where = house if base in registry.op_names(house) else HOUSE
    op = registry.op(base, where)
    into = over(op)
    source = (where.ops / f"{base}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    tops = _definitions(tree)
    function = tops.get(base)
    last = function.body[-1] if isinstance(function, ast.FunctionDef) else None
    if not isinstance(function, ast.FunctionDef) or not isinstance(last, ast.Return) or not _calls_op(last.value):
        raise ValueError(f"the function {base} does not end with `return OP(...)`: {BY_HAND}")
    assert isinstance(last.value, ast.Call)
    given = dict(zip(op.kinds, map(ast.unparse, last.value.args), strict=False))
    written = [given[name] for name in into.values()]
    if strange := [w for w in written if w not in {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}]:
        raise ValueError(f"{base} gives its op {strange[0]}, which is no parameter of its own: {BY_HAND}")
    start, body = function.body[0], function.body[1:-1] if ast.get_docstring(function) else function.body[:-1]
    head = source.splitlines()[function.lineno - 1 : start.lineno - 1]
    lines = [*head, *_docstring(base, written), *(_segment(source, node) for node in body), *_held(f"{base}_", written)]
    lines += [f"    {ast.get_source_segment(source, last.value)}", f"    return {', '.join(written)}"]
    used = _names(body)
    helpers = [n for n in _closure(used, tops) if n not in (base, "OP")]
    parts = [_imports(tree, base, {*used, *(m for n in helpers for m in _names([tops[n]]))})]
    parts += ["\n".join(lines).replace(f"def {base}(", f"def {base}_(", 1)]
    parts += ["\n".join(_segment(source, tops[n]) for n in helpers if not isinstance(tops[n], ast.FunctionDef))]
    parts += [_segment(source, tops[n]) for n in helpers if isinstance(tops[n], ast.FunctionDef)]
    pairs = ", ".join(f'"{out}": "{n}"' for out, n in into.items())
    parts += [CONTRACT.format(pairs=pairs, held=tuple(dict.fromkeys(into.values())))]
    about = f'"""`{base}` in place, to be written: `rooftop.ops.{base}` written over its input."""'
    own = [re.sub(rf'"{base}"|\b{base}(?=: )', lambda m: m[0].replace(base, f"{base}_"), p) for p in parts[1:-1] if p]
    return "\n\n\n".join([f"{about}\n\n{parts[0]}", *own, parts[-1]]) + "\n"


def over(op: Contract) -> dict[str, str]:
    """Output -> the input that it can be written over: the first of its shape and dtype in every case."""
    if op.mutates or op.objects or op.list_names:
        raise ValueError(f"{op.name} writes into its inputs already, or takes objects or lists of tensors: {BY_HAND}")
    problems = [op.problem(c) for c in op.cases]
    found: dict[str, str] = {}
    for out in op.output_names:
        for name in op.tensor_names:
            pairs = [(p.get(out), p.get(name)) for p in problems]
            if name not in found.values() and all(
                a is None or (b is not None and (a.shape, a.dtype) == (b.shape, b.dtype)) for a, b in pairs
            ):
                found[out] = name
                break
        else:
            raise ValueError(f"no input of {op.name} has the shape and dtype of {out} in every case: it cannot be computed in place")
    return found


def _definitions(tree: ast.Module) -> dict[str, ast.stmt]:
    """What a file defines at its top, by name."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update((t.id, node) for t in targets if isinstance(t, ast.Name))
    return found


def _calls_op(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "OP"


def _names(nodes: Iterable[ast.stmt]) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}


def _closure(names: Iterable[str], tops: Mapping[str, ast.stmt]) -> list[str]:
    """Those of the names that the file defines, with all that they name in turn, in the file's order."""
    found: set[str] = set()
    waiting = [n for n in names if n in tops]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [n for n in _names([tops[name]]) if n in tops]
    return [n for n in tops if n in found]


def _segment(source: str, node: ast.stmt) -> str:
    """The lines of a statement, as they stand."""
    return "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])


def _docstring(base: str, written: list[str]) -> list[str]:
    said = " and ".join(f"`{w}`" for w in written)
    return [
        f'    """`{base}`, written over {said}: arguments and errors as `{base}`\'s.',
        "",
        f'    Returns {said}. Raises RuntimeError where {said} requires a gradient while gradients are on, ValueError where {said} is '
        f'expanded."""',
    ]


def _held(name: str, written: list[str]) -> list[str]:
    lines = []
    for w in written:
        lines += [
            f"    if any(step == 0 and n > 1 for step, n in zip({w}.stride(), {w}.shape, strict=True)):",
            f'        raise ValueError(f"{name}: {w} has shape {{tuple({w}.shape)}} and strides {{tuple({w}.stride())}}: it is expanded")',
        ]
    return lines


def _imports(tree: ast.Module, base: str, used: set[str]) -> str:
    """What the file imports of the names that are used, and what every twin needs."""
    lines = ["from rooftop.core.op import in_place", f"from rooftop.ops import {base} as plain"]
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names = ", ".join(a.name for a in node.names if (a.asname or a.name) in used and a.name != "Op")
            lines += [f"from {node.module} import {names}"] * bool(names)
    house = sorted(line for line in lines if line.startswith("from rooftop"))
    others = sorted(line for line in lines if not line.startswith("from rooftop") and not line.startswith("from typing"))
    parts = ["from __future__ import annotations", "\n".join([*others, "from typing import TYPE_CHECKING"]), "\n".join(house)]
    return "\n\n".join([*parts, "if TYPE_CHECKING:\n    from torch import Tensor"])
