"""Expressions of a head: arithmetic on whole numbers and shape names, and nothing else.

A text is checked before it is evaluated: its tree, from Python's parser, may contain only the nodes of `_ALLOWED` and the functions of
`FUNCTIONS`."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from rooftop.core.expression_code import Code, code_of
from rooftop.core.spec import Meta

Value = int | float | bool | Fraction | str
MAX_TEXT = 500
MAX_VALUE = 1 << 80


class ExpressionError(ValueError):
    """An expression is malformed, uses something that is not allowed, or has a value that is not allowed. `placed`: the text already says
    where it is."""

    def __init__(self, text: str, *, placed: bool = False) -> None:
        super().__init__(text)
        self.placed = placed


class Scope(dict[str, Any]):
    """The values of names, and the names of `let`, each of which is evaluated when it is first used, and once. A tensor's value is its
    Meta; None: absent.

    `lets`: name -> (expression, its location in error messages). There are no circular references."""

    __slots__ = ("_errors", "lets")

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]], lets: Mapping[str, tuple[str, str]] | None = None) -> None:
        super().__init__(values)
        self.lets: Mapping[str, tuple[str, str]] = {} if lets is None else lets
        self._errors: dict[str, str] = {}

    def __missing__(self, name: str) -> Any:
        text, where = self.lets[name]
        if name in self._errors:
            raise ExpressionError(self._errors[name], placed=True)
        try:
            value = self[name] = evaluate(text, self)
        except ExpressionError as error:  # the innermost error states the location
            self._errors[name] = str(error) if error.placed else f"{where}: {error}"
            raise ExpressionError(self._errors[name], placed=True) from None
        return value

    def with_(self, more: Mapping[str, Any]) -> Scope:
        """This scope with more names."""
        return Scope({**self, **more}, self.lets)


def _ceil(value: Value) -> int:
    exact = Fraction(value)
    return -(-exact.numerator // exact.denominator)


def _pow2(value: Value) -> int:
    if not isinstance(value, int) or value < 0:
        raise ExpressionError(f"pow2({value}): it takes a whole number of at least 0")
    return 1 << max(value - 1, 0).bit_length() if value > 1 else 1


def _gcd(a: Value, b: Value) -> int:
    if not isinstance(a, int) or not isinstance(b, int):
        raise ExpressionError(f"gcd({a}, {b}): it takes whole numbers")
    return math.gcd(a, b)


def _facts(value: Any, function: str) -> Meta | None:
    if value is not None and not isinstance(value, Meta):
        raise ExpressionError(f"{function}() takes the name of a tensor first")
    return value


def _stride(tensor: Any, axis: Value) -> int:
    meta = _facts(tensor, "stride")
    if meta is None:
        return 0
    if not isinstance(axis, int) or not 0 <= axis < len(meta.shape):
        raise ExpressionError(f"stride(..., {axis}): the tensor has axes 0 to {len(meta.shape) - 1}")
    return int(meta.strides[axis])


def aligned(tensor: Any, boundary: Value) -> bool:
    """Whether the address and every stride are multiples of `boundary` bytes. The last axis of stride 1 is exempt: a window that slides by
    one element has two such axes."""
    meta = _facts(tensor, "aligned")
    if meta is None:
        return True
    if not isinstance(boundary, int) or boundary < 1:
        raise ExpressionError(f"aligned(..., {boundary}): the boundary is a number of bytes")
    if meta.align % boundary:
        return False
    neighbours = False  # whether the last axis of stride 1 has been passed
    for step, extent in zip(reversed(meta.strides), reversed(meta.shape), strict=True):
        if extent > 1 and (step != 1 or neighbours) and step * meta.itemsize % boundary:
            return False
        neighbours = neighbours or (step == 1 and extent > 1)
    return True


def _starts(tensor: Any, boundary: Value) -> bool:
    """Whether the address is a multiple of `boundary` bytes, whatever the strides."""
    meta = _facts(tensor, "starts")
    if not isinstance(boundary, int) or boundary < 1:
        raise ExpressionError(f"starts(..., {boundary}): the boundary is a number of bytes")
    return meta is None or meta.align % boundary == 0


def _resident(card: Any, blocks: Value) -> int:
    if not hasattr(card, "resident"):
        raise ExpressionError("resident() takes `card` first")
    if not isinstance(blocks, int) or blocks < 1:
        raise ExpressionError(f"resident(card, {blocks}): a cluster has at least one block")
    return int(card.resident(blocks))


def _bytes(tensor: Any) -> int:
    meta = _facts(tensor, "bytes")
    if meta is None:
        raise ExpressionError("bytes() of an absent tensor: test present() first")
    return int(meta.itemsize)


FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int, int]] = {  # name: (function, fewest, most arguments)
    "ceil": (_ceil, 1, 1),
    "min": (min, 2, 8),
    "max": (max, 2, 8),
    "pow2": (_pow2, 1, 1),
    "gcd": (_gcd, 2, 2),
    "stride": (_stride, 2, 2),
    "aligned": (aligned, 2, 2),
    "starts": (_starts, 2, 2),
    "resident": (_resident, 2, 2),
    "bytes": (_bytes, 1, 1),
    "numel": (lambda t: 0 if (meta := _facts(t, "numel")) is None else meta.numel, 1, 1),
    "present": (lambda t: _facts(t, "present") is not None, 1, 1),
}
_BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Div: lambda a, b: Fraction(a) / Fraction(b),
}
_COMPARE: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    if len(text) > MAX_TEXT:
        raise ExpressionError(f"an expression of {len(text)} characters; at most {MAX_TEXT}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{text!r} is not an expression: {getattr(error, 'msg', error)}") from None
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise ExpressionError(f"{text!r} uses {type(node).__name__}, which is not allowed in an expression (docs/head.md)")
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords):
            raise ExpressionError(f"{text!r} calls {ast.unparse(node.func)}; only {', '.join(FUNCTIONS)} may be called")
        if isinstance(node, ast.Constant) and type(node.value) not in (int, float, bool, str):
            raise ExpressionError(f"{text!r} contains {node.value!r}; only numbers are allowed in an expression")
    return tree


_ALLOWED = (
    ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call,
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Div, ast.USub, ast.UAdd, ast.Not, ast.And, ast.Or,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
)


@lru_cache(maxsize=4096)
def names(text: str) -> frozenset[str]:
    """The names that an expression uses, without functions."""
    tree = _parse(text)
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    return frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called)


def strided(text: str) -> frozenset[str]:
    """The names whose strides an expression asks for."""
    calls = (n for n in ast.walk(_parse(text)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "stride")
    return frozenset(n.args[0].id for n in calls if n.args and isinstance(n.args[0], ast.Name))


@lru_cache(maxsize=4096)
def compiled(text: str) -> Code | None:
    """The code of an expression, which gives its value in simple cases and else raises; None if there is none."""
    return code_of(_parse(text), FUNCTIONS, MAX_VALUE)


def evaluate(text: str, scope: Mapping[str, Any]) -> Any:
    """The value of `text` with the names of `scope`.

    Raises ExpressionError for anything but the arithmetic of docs/head.md, an unknown name, or a division by zero."""
    code = compiled(text)
    if code is not None:
        try:
            return code(scope)
        except Exception:  # not a simple case: the tree walk below finds the value or the error
            pass
    return walked(text, scope)


def walked(text: str, scope: Mapping[str, Any]) -> Any:
    """Like `evaluate`, by walking the tree."""
    try:
        return _whole(_eval(_parse(text), scope, text))
    except ZeroDivisionError:
        raise ExpressionError(f"{text!r} divides by zero") from None
    except ExpressionError:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ExpressionError(f"{text!r}: {error}") from None


def integer(text: str | int, scope: Mapping[str, Any]) -> int:
    """The value of `text`, which must be a whole number."""
    value = evaluate(str(text), scope)
    if isinstance(value, bool) or not isinstance(value, int):
        shown = f"{value.numerator}/{value.denominator}" if isinstance(value, Fraction) else repr(value)
        raise ExpressionError(f"{text!r} is {shown}; it must be a whole number (ceil(a / b) rounds up)")
    return value


def _whole(value: Any) -> Any:
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


def _eval(node: ast.expr, scope: Mapping[str, Any], text: str) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            lets = scope.lets if isinstance(scope, Scope) else {}
            if name not in scope and name not in lets:
                known = ", ".join(sorted(k for k in {*scope, *lets} if not k.startswith("_")))
                raise ExpressionError(f"{text!r} names {name!r}, which is none of: {known}")
            return scope[name]
        case ast.BinOp(left=left, op=op, right=right):
            value = _BINARY[type(op)](_number(left, scope, text), _number(right, scope, text))
            if abs(value) > MAX_VALUE:
                raise ExpressionError(f"{text!r} grows beyond {MAX_VALUE}")
            return _whole(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _eval(operand, scope, text)
        case ast.UnaryOp(op=op, operand=operand):
            value = _number(operand, scope, text)
            return -value if isinstance(op, ast.USub) else value
        case ast.BoolOp(op=op, values=values):
            if isinstance(op, ast.And):
                return all(_eval(v, scope, text) for v in values)
            return any(_eval(v, scope, text) for v in values)
        case ast.Compare(left=left, ops=ops, comparators=rest):
            value = _eval(left, scope, text)
            for comparison, right in zip(ops, rest, strict=True):
                following = _eval(right, scope, text)
                if not _COMPARE[type(comparison)](value, following):
                    return False
                value = following
            return True
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _eval(body if _eval(test, scope, text) else orelse, scope, text)
        case ast.Call(func=ast.Name(id=name), args=args):
            function, fewest, most = FUNCTIONS[name]
            if name == "ceil" and len(args) == 1 and isinstance(args[0], ast.BinOp) and isinstance(args[0].op, ast.Div):
                above, below = _number(args[0].left, scope, text), _number(args[0].right, scope, text)
                if isinstance(above, int) and isinstance(below, int):
                    return -(-above // below)
            if not fewest <= len(args) <= most:
                raise ExpressionError(f"{text!r}: {name}() takes {fewest if fewest == most else f'{fewest} to {most}'} arguments")
            return _whole(function(*(_eval(a, scope, text) for a in args)))
    raise ExpressionError(f"{text!r} is not an expression of docs/head.md")


def _number(node: ast.expr, scope: Mapping[str, Any], text: str) -> Any:
    value = _eval(node, scope, text)
    if value is None or isinstance(value, (str, Meta)):
        raise ExpressionError(f"{text!r} calculates with {ast.unparse(node)!r}, which is not a number")
    return value
