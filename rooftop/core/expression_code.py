"""Compiles expressions of a head to Python code, for speed. The code gives the same value as the tree walk of `rooftop.core.expressions`,
or raises.

It is compiled from a tree that is already checked: that has only arithmetic, comparisons and calls of the named functions, and no names of
Python's. The code supports simple values (whole numbers, floats, texts, tensors). In all other cases, including every error, it raises, and
the tree is walked."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

Code = Callable[[Mapping[str, Any]], Any]


class NotPlain(Exception):
    """Raised if the tree must be walked."""


def code_of(tree: ast.expr, functions: Mapping[str, tuple[Callable[..., Any], int, int]], most: int) -> Code | None:
    """Compiles the tree to a function of the scope, which raises if a number exceeds `most`. None if a call has the wrong number of
    arguments, or the tree is too deep."""

    def bounded(value: Any) -> Any:
        kind = type(value)
        if (kind is int or kind is float) and -most <= value <= most:
            return value
        raise NotPlain

    def divided(a: Any, b: Any) -> int:
        if type(a) is int and type(b) is int and not a % b:
            return a // b
        raise NotPlain

    def divided_up(a: Any, b: Any) -> int:
        if type(a) is int and type(b) is int:
            return -(-a // b)
        raise NotPlain

    def number(value: Any) -> Any:
        if isinstance(value, (int, float)):
            return value
        raise NotPlain

    known = {name: found[0] for name, found in functions.items()}
    given = {"__builtins__": {}, "_bounded": bounded, "_divided": divided, "_divided_up": divided_up, "_number": number, **known}
    arguments = ast.arguments([], [ast.arg("_scope")], None, [], [], None, [])
    try:
        whole = ast.Expression(ast.Lambda(arguments, _Translated(functions).visit(tree)))
        made: Code = eval(compile(ast.fix_missing_locations(whole), "<expression of a head>", "eval"), given)
    except (NotPlain, RecursionError, MemoryError):
        return None
    return made


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])


class _Translated(ast.NodeVisitor):
    """A copy of the tree in which names are looked up in the scope and each result is checked."""

    def __init__(self, functions: Mapping[str, tuple[Callable[..., Any], int, int]]) -> None:
        self.functions = functions

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Constant(node.value)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Subscript(ast.Name("_scope", ast.Load()), ast.Constant(node.id), ast.Load())

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(node.op, ast.Div):
            return _call("_divided", left, right)
        return _call("_bounded", ast.BinOp(left, node.op, right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return ast.UnaryOp(ast.Not(), operand)
        operand = _call("_number", operand)
        return operand if isinstance(node.op, ast.UAdd) else ast.UnaryOp(ast.USub(), operand)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        found = ast.BoolOp(node.op, [self.visit(value) for value in node.values])
        return ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), found))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        return ast.Compare(self.visit(node.left), node.ops, [self.visit(value) for value in node.comparators])

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return ast.IfExp(self.visit(node.test), self.visit(node.body), self.visit(node.orelse))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        _, fewest, most = self.functions[name]
        if not fewest <= len(node.args) <= most:
            raise NotPlain
        first = node.args[0]
        if name == "ceil" and isinstance(first, ast.BinOp) and isinstance(first.op, ast.Div):
            return _call("_divided_up", self.visit(first.left), self.visit(first.right))
        return _call(name, *(self.visit(argument) for argument in node.args))
