"""Compiles expressions of a head to Python code, for speed. The code gives the same value as the tree walk of `rooftop.core.expressions`,
or raises.

It is compiled from a tree that is already checked: that has only arithmetic, comparisons and calls of the named functions, and no names of
Python's. The code supports simple values (whole numbers, floats, texts, tensors). In all other cases, including every error, it raises, and
the tree is walked."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from rooftop.core.spec import DTYPES

Code = Callable[[Mapping[str, Any]], Any]


class NotPlain(Exception):
    """Raised if the tree must be walked."""


def code_of(tree: ast.expr, functions: Mapping[str, tuple[Callable[..., Any], int, int]], most: int) -> Code | None:
    """Compiles the tree to a function of the scope, which raises if a number exceeds `most`. None if a call has the wrong number of
    arguments, or the tree is too deep."""

    def refused() -> Any:
        raise NotPlain

    given = {
        "__builtins__": {}, "_refused": refused, "_type": type, "_int": int, "_plain": (int, float), "_most": most,
        "_widths": {name: d.bytes for name, d in DTYPES.items()}, **{name: found[0] for name, found in functions.items()},
    }
    try:
        made: Code = eval(f"lambda _scope: {_Translated(functions).visit(tree)}", given)
    except (NotPlain, RecursionError, MemoryError, SyntaxError):
        return None
    return made


_SYMBOLS: Mapping[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.And: " and ", ast.Or: " or ", ast.Eq: "==", ast.NotEq: "!=",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}


class _Translated(ast.NodeVisitor):
    """The text of a tree in which names are looked up in the scope and each result is checked. Arithmetic, strides and widths are written
    in place: a call of a function would take longer than they do."""

    def __init__(self, functions: Mapping[str, tuple[Callable[..., Any], int, int]]) -> None:
        self.functions = functions
        self.names = 0  # of values, so far

    def _name(self) -> str:
        self.names += 1
        return f"_v{self.names}"

    def visit_Constant(self, node: ast.Constant) -> str:
        return repr(node.value)

    def visit_Name(self, node: ast.Name) -> str:
        return f"_scope[{node.id!r}]"

    def visit_BinOp(self, node: ast.BinOp) -> str:
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(node.op, ast.Div):
            a, b = self._name(), self._name()
            return f"({a} // {b} if _type({a} := {left}) is _int and _type({b} := {right}) is _int and not {a} % {b} else _refused())"
        v = self._name()
        return f"({v} if _type({v} := {left} {_SYMBOLS[type(node.op)]} {right}) in _plain and -_most <= {v} <= _most else _refused())"

    def visit_UnaryOp(self, node: ast.UnaryOp) -> str:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return f"(not {operand})"
        v, sign = self._name(), "" if isinstance(node.op, ast.UAdd) else "-"
        return f"({sign}{v} if _type({v} := {operand}) in _plain else _refused())"

    def visit_BoolOp(self, node: ast.BoolOp) -> str:
        return f"(not not ({_SYMBOLS[type(node.op)].join(map(self.visit, node.values))}))"

    def visit_Compare(self, node: ast.Compare) -> str:
        return f"({self.visit(node.left)}{''.join(_SYMBOLS[type(op)] + self.visit(right) for op, right in zip(node.ops, node.comparators, strict=True))})"

    def visit_IfExp(self, node: ast.IfExp) -> str:
        return f"({self.visit(node.body)} if {self.visit(node.test)} else {self.visit(node.orelse)})"

    def visit_Call(self, node: ast.Call) -> str:
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        _, fewest, most = self.functions[name]
        if not fewest <= len(node.args) <= most:
            raise NotPlain
        first, a, b = node.args[0], self._name(), self._name()
        if name == "ceil" and isinstance(first, ast.BinOp) and isinstance(first.op, ast.Div):
            left, right = self.visit(first.left), self.visit(first.right)
            return f"(-(-{a} // {b}) if _type({a} := {left}) is _int and _type({b} := {right}) is _int else _refused())"
        if name == "stride" and isinstance(first, ast.Name) and isinstance(axis := node.args[1], ast.Constant) and type(axis.value) is int:
            return f"(0 if ({a} := {self.visit(first)}) is None else {a}.strides[{axis.value}])"
        if name == "bytes" and isinstance(first, ast.Name):
            return f"_widths[{self.visit(first)}.dtype]"
        if name == "present" and isinstance(first, ast.Name):
            return f"(({a} := {self.visit(first)}) is not None and {a}.align > 0)"
        return f"{name}({', '.join(map(self.visit, node.args))})"
