"""A Python function specialised for known values of its parameters: they are put in, conditions that are then decided are folded, and what
is then never used is left out."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Present:
    """As a known value of a parameter: not None."""

    def __repr__(self) -> str:
        return "present"


PRESENT = Present()
_COMPARED: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Is: lambda a, b: a is b, ast.IsNot: lambda a, b: a is not b, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}


def arguments(args: ast.arguments) -> list[ast.arg]:
    return [*args.posonlyargs, *args.args, *([args.vararg] if args.vararg else []), *args.kwonlyargs, *([args.kwarg] if args.kwarg else [])]


def parameter_names(args: ast.arguments) -> list[str]:
    return [a.arg for a in arguments(args)]


def assigned(nodes: Sequence[ast.AST]) -> set[str]:
    """The names that statements bind, those of inner comprehensions, lambdas and functions too."""
    found: set[str] = set()
    for node in (n for one in nodes for n in ast.walk(one)):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef) or (isinstance(node, ast.ExceptHandler) and node.name):
            found.add(str(node.name))
        elif isinstance(node, ast.Lambda):
            found.update(parameter_names(node.args))
    return found


def is_simple(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def specialised(node: ast.FunctionDef, known: dict[str, Any]) -> ast.FunctionDef:
    node = copied(node)
    values = dict(known)
    again = assigned(node.body)
    node.body = Folder(values, again).block(node.body, values)
    before = -1
    while before != (before := _size(node.body)):
        node.body = _without_unused(
            node.body, {n.id for one in node.body for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        )
    return node


def _size(body: Sequence[ast.stmt]) -> int:
    """The number of statements, inner ones counted."""
    return sum(
        1 + sum(_size(getattr(n, part, None) or ()) for part in ("body", "orelse", "finalbody")) for n in body if isinstance(n, ast.stmt)
    )


def copied(node: Any) -> Any:
    if isinstance(node, list):
        return [copied(n) for n in node]
    if not isinstance(node, ast.AST) or isinstance(node, ast.expr_context | ast.operator | ast.cmpop | ast.boolop | ast.unaryop):
        return node
    made = type(node)()
    for name in node._fields:
        setattr(made, name, copied(getattr(node, name, None)))
    return made


def _without_unused(body: list[ast.stmt], used: set[str]) -> list[ast.stmt]:
    """Statements without assignments of plain values to names that are not in `used`."""
    found: list[ast.stmt] = []
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if targets and all(isinstance(t, ast.Name) and t.id not in used for t in targets) and not any(
            isinstance(n, ast.Call | ast.Await | ast.NamedExpr) for n in (ast.walk(value) if value is not None else ())
        ):
            continue
        for part in ("body", "orelse", "finalbody"):
            if isinstance(inner := getattr(node, part, None), list) and not isinstance(node, ast.FunctionDef | ast.ClassDef):
                setattr(node, part, _without_unused(inner, used))
        found.append(node)
    return found


class Folder(ast.NodeTransformer):
    """Puts known values in and folds what they decide. `again`: names that the function assigns somewhere."""

    def __init__(self, values: dict[str, Any], again: set[str]) -> None:
        self.values, self.again = values, again

    def block(self, body: Sequence[ast.stmt], values: dict[str, Any]) -> list[ast.stmt]:
        """The statements folded; `values` is what is known, before and then after them."""
        found: list[ast.stmt] = []
        for node in body:
            self.values = values
            found += self.one(node, values)
            if found and isinstance(found[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
                break
        return found

    def one(self, node: ast.stmt, values: dict[str, Any]) -> list[ast.stmt]:
        if isinstance(node, ast.If):
            test = self.visit(node.test)
            if isinstance(test, ast.Constant):
                return self.block(node.body if test.value else node.orelse, values)
            yes, no = dict(values), dict(values)
            node.test, node.body, node.orelse = test, self.block(node.body, yes), self.block(node.orelse, no)
            values.clear()
            ended = [bool(b) and isinstance(b[-1], ast.Return | ast.Raise | ast.Continue | ast.Break) for b in (node.body, node.orelse)]
            values.update(no if ended[0] else yes if ended[1] else {n: v for n, v in yes.items() if n in no and _same(no[n], v)})
            return [node]
        if isinstance(node, ast.For | ast.While | ast.With | ast.Try):
            if isinstance(node, ast.For):
                node.iter = self.visit(node.iter)
            if isinstance(node, ast.With):
                node.items = [self.visit(i) for i in node.items]
            for name in assigned([node]):
                values.pop(name, None)
            if isinstance(node, ast.While):
                self.values = values
                node.test = self.visit(node.test)
                if isinstance(node.test, ast.Constant) and not node.test.value:
                    return self.block(node.orelse, values)
            for part in ("body", "orelse", "finalbody"):
                if inner := getattr(node, part, None):
                    setattr(node, part, self.block(inner, dict(values)))
            for handler in getattr(node, "handlers", ()):
                handler.body = self.block(handler.body, dict(values))
            return [node]
        if isinstance(node, ast.FunctionDef):
            self.inner(node, values)
            return [node]
        node = self.visit(node)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            value = node.value if not isinstance(node, ast.AugAssign) else None
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in assigned(targets):
                values.pop(name, None)
            if len(targets) == 1 and isinstance(targets[0], ast.Name):
                if isinstance(value, ast.Constant) and is_simple(value.value):
                    values[targets[0].id] = value.value
                if isinstance(value, ast.Name) and value.id == targets[0].id:
                    return []  # what `x = x if y is None else x * y` is without y
        return [node]

    def inner(self, node: Any, values: dict[str, Any]) -> None:
        """A function within this one may run when a variable has another value."""
        own = {n: v for n, v in values.items() if n not in self.again and n not in parameter_names(node.args)}
        self.values = own
        if isinstance(node, ast.Lambda):
            node.body = self.visit(node.body)
        else:
            node.body = self.block(node.body, own)
        self.values = values

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        self.inner(node, self.values)
        return node

    def _comprehension(self, node: Any) -> Any:
        before = self.values
        self.values = {n: v for n, v in before.items() if n not in assigned(node.generators)}
        self.generic_visit(node)
        self.values = before
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id in self.values:
            value = self.values[node.id]
            if value is PRESENT:
                node.present = True  # type: ignore[attr-defined]
                return node
            return ast.Constant(value)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        node.value = self.visit(node.value)
        self.values.pop(node.target.id, None)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.operand, ast.Constant) and is_simple(value := node.operand.value):
            if isinstance(node.op, ast.Not):
                return ast.Constant(not value)
            if isinstance(node.op, ast.USub) and isinstance(value, (int, float)):
                return ast.Constant(-value)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) != 1:
            return node
        left, op, right = node.left, node.ops[0], node.comparators[0]
        if (
            isinstance(op, ast.Is | ast.IsNot) and isinstance(right, ast.Constant) and right.value is None
            and getattr(left, "present", False)
        ):
            return ast.Constant(isinstance(op, ast.IsNot))
        if isinstance(left, ast.Constant) and (isinstance(right, ast.Constant) or isinstance(op, ast.In | ast.NotIn)):
            try:
                return ast.Constant(bool(_COMPARED[type(op)](left.value, ast.literal_eval(right))))
            except (TypeError, ValueError):
                return node
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        stops = isinstance(node.op, ast.Or)
        left: list[ast.expr] = []
        for i, value in enumerate(node.values):
            if isinstance(value, ast.Constant):
                if bool(value.value) == stops:
                    left.append(value)
                    break
                if i < len(node.values) - 1:
                    continue
            left.append(value)
        node.values = left
        return left[0] if len(left) == 1 else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test: ast.expr = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.visit(node.body if test.value else node.orelse)
        node.test, node.body, node.orelse = test, self.visit(node.body), self.visit(node.orelse)
        return node


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and bool(a == b))
