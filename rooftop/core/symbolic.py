"""Numbers that record what is computed from them, so that one choice serves every size for which it comes out the same.

A `Trace` makes symbols: numbers of one call (its row count, say) that Python code computes with as with any other. Each operation is recorded. A comparison
gives what it gives for these numbers, and is recorded as a guard. `Trace.function` compiles both: a function of other numbers that checks every guard and then
computes the results, some microseconds instead of the whole computation. If a guard fails, another path would have been taken: it returns None.

A symbol is no `int` to the interpreter: code in C, and a copy, ask for its number, and the guard is then that it stays this number. A text holds a mark in its
place, which `plain_text` and `same_text` resolve; code must not compare such texts by itself. A symbol cannot be hashed: caches with a number as their key
would keep it beyond the trace. Hashing it, or an operation that fails, makes the trace useless, and the caller does the whole computation."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

MOST = 4000  # operations and guards of a trace: far more than a choice among a hundred configs needs
_MARK = re.compile("\x00(\\d+)\x00")


class Untraceable(Exception):
    """What was called cannot be recorded; it must be computed in full each time."""


class Trace:
    """A recording. `symbols` are the inputs of the function, in the order of `values`."""

    def __init__(self, values: Sequence[int]) -> None:
        self.active = True
        self.failed = ""  # why it is of no use, also if code under it has caught the exception
        self.lines: list[tuple[str, tuple[int, ...], int]] = []  # (text, numbers it reads, the one it computes; -1: a guard)
        self.assumed: dict[int, Symbol] = {}  # those whose numbers the function gives, for its caller to judge
        self._known: dict[tuple[Any, ...], Any] = {}
        self._count = 0
        self.symbols = tuple(self._symbol(v) for v in values)

    def _symbol(self, value: float) -> Symbol:
        made = Symbol(self, self._count, value)
        self._count += 1
        return made

    def fail(self, reason: str) -> Untraceable:
        self.failed = self.failed or reason
        return Untraceable(reason)

    def compute(self, form: str, function: Callable[..., Any], *given: Any) -> Any:
        """The result of an operation. `form`: its Python text, with a {} for each operand."""
        result = self._result(form, function, given)
        if not self.active:
            return result
        key = (form, *map(_key, given))
        if key not in self._known:
            if type(result) not in (int, float):
                raise self.fail(f"{form} gives a {type(result).__name__}")
            made = self._known[key] = self._symbol(result)
            self._line(form.format(*map(_operand, given)), given, made.index)
        return self._known[key]

    def compare(self, form: str, function: Callable[..., Any], *given: Any) -> bool:
        """The truth of a comparison, which becomes a guard."""
        result = bool(self._result(form, function, given))
        if self.active:
            key = (form, *map(_key, given))
            if key not in self._known:
                self._known[key] = result
                text = form.format(*map(_operand, given))
                self._line(f"if not ({text}): return" if result else f"if {text}: return", given, -1)
        return result

    def _result(self, form: str, function: Callable[..., Any], given: Sequence[Any]) -> Any:
        try:
            return function(*[g.value if type(g) is Symbol else g for g in given])
        except Exception as error:  # code may catch it, and take a way that no guard describes
            if self.active:
                self.fail(f"{form}: {error!r}")
            raise

    def stays(self, symbol: Symbol) -> Any:
        """The number of a symbol, which becomes a guard."""
        if not self.compare("{} == {}", operator.eq, symbol, symbol.value):
            raise self.fail(f"{symbol.value} is not equal to itself")  # a NaN
        return symbol.value

    def assume(self, symbol: Symbol) -> Any:
        """The number of a symbol, without a guard: the function gives it, and its caller must know for which numbers the results hold (`Family.choices`)."""
        self.assumed[symbol.index] = symbol
        return symbol.value

    def _line(self, text: str, given: Sequence[Any], index: int) -> None:
        if len(self.lines) >= MOST:
            raise self.fail(f"more than {MOST} operations")
        self.lines.append((text, tuple(g.index for g in given if type(g) is Symbol), index))

    def plain_text(self, text: str) -> str:
        """A text with the numbers of the symbols in it, which become guards."""
        by_index = self._by_index()
        return _MARK.sub(lambda found: str(self.stays(by_index[int(found[1])])), text)

    def same_text(self, text: str, others: Iterable[str]) -> str | None:
        """The one of `others` that is equal to a text with symbols in it, or None; the comparisons become guards."""
        parts = _MARK.split(text)  # texts and numbers of symbols in turns
        by_index = self._by_index()
        pattern = re.compile("".join(r"(-?\d+)" if i % 2 else re.escape(part) for i, part in enumerate(parts)))
        for other in others:
            found = pattern.fullmatch(other)
            if found is not None and all(by_index[int(n)] == int(g) for n, g in zip(parts[1::2], found.groups(), strict=True)):
                return other
        return None

    def _by_index(self) -> dict[int, Symbol]:
        return {s.index: s for s in (*self.symbols, *self._known.values()) if type(s) is Symbol}

    def function(self, result: Any) -> Callable[..., Any]:
        """The recording as a function of as many numbers as there are symbols: None if a guard fails, else (the numbers that were assumed, `result`) for these
        numbers. `result` is made of tuples, symbols and anything else. Ends the trace. Raises Untraceable if it failed."""
        if self.failed:
            raise Untraceable(self.failed)
        constants: list[Any] = []
        read: set[int] = set()

        def expressed(value: Any) -> str:
            if type(value) is Symbol:
                read.add(value.index)
                return f"v{value.index}"
            if type(value) is tuple:
                return f"({''.join(f'{expressed(v)}, ' for v in value)})"
            if type(value) in (int, bool, type(None)):
                return repr(value)
            constants.append(value)
            return f"c[{len(constants) - 1}]"

        last = f"return {expressed((tuple(self.assumed.values()), result))}"
        kept = []
        for text, reads, index in reversed(self.lines):  # what nothing reads is left out
            if index < 0 or index in read:
                read.update(reads)
                kept.append(text if index < 0 else f"v{index} = {text}")
        self.active = False
        parameters = ", ".join(f"v{s.index}" for s in self.symbols)
        source = "\n    ".join([f"def f({parameters}):", *reversed(kept), last])
        scope: dict[str, Any] = {
            "__builtins__": {}, "c": constants, "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "round": round, "abs": abs,
            "inf": math.inf, "nan": math.nan,
        }  # fmt: skip
        exec(compile(source, "<a recorded choice>", "exec"), scope)
        found: Callable[..., Any] = scope["f"]
        return found


def _key(value: Any) -> tuple[Any, ...]:
    """Equal for equal operands; 1, 1.0 and True, and 0.0 and -0.0, are not."""
    return (value.index,) if type(value) is Symbol else (type(value), repr(value))


def _operand(value: Any) -> str:
    return f"v{value.index}" if type(value) is Symbol else f"({value!r})"


def _binary(sign: str, function: Callable[[Any, Any], Any], swapped: bool = False) -> Callable[[Any, Any], Any]:
    form = f"({{}} {sign} {{}})"

    def method(self: Symbol, other: Any) -> Any:
        kind = type(other)
        if kind is not Symbol and kind is not int and kind is not float and kind is not bool:
            return NotImplemented
        return self.trace.compute(form, function, other, self) if swapped else self.trace.compute(form, function, self, other)

    return method


def _comparison(sign: str, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    form = f"{{}} {sign} {{}}"

    def method(self: Symbol, other: Any) -> Any:
        kind = type(other)
        if kind is not Symbol and kind is not int and kind is not float and kind is not bool:
            return NotImplemented
        return self.trace.compare(form, function, self, other)

    return method


def _unary(form: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: self.trace.compute(form, function, self)


_POWER, _POWER_OF = _binary("**", operator.pow), _binary("**", operator.pow, True)


class Symbol:
    """A number of a trace. To `isinstance` it is an int or a float, as its number is."""

    __slots__ = ("index", "trace", "value")

    def __init__(self, trace: Trace, index: int, value: float) -> None:
        self.trace, self.index, self.value = trace, index, value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.value)

    __add__, __radd__ = _binary("+", operator.add), _binary("+", operator.add, True)
    __sub__, __rsub__ = _binary("-", operator.sub), _binary("-", operator.sub, True)
    __mul__, __rmul__ = _binary("*", operator.mul), _binary("*", operator.mul, True)
    __floordiv__, __rfloordiv__ = _binary("//", operator.floordiv), _binary("//", operator.floordiv, True)
    __truediv__, __rtruediv__ = _binary("/", operator.truediv), _binary("/", operator.truediv, True)
    __mod__, __rmod__ = _binary("%", operator.mod), _binary("%", operator.mod, True)
    __lshift__, __rlshift__ = _binary("<<", operator.lshift), _binary("<<", operator.lshift, True)
    __rshift__, __rrshift__ = _binary(">>", operator.rshift), _binary(">>", operator.rshift, True)
    __and__, __rand__ = _binary("&", operator.and_), _binary("&", operator.and_, True)
    __or__, __ror__ = _binary("|", operator.or_), _binary("|", operator.or_, True)
    __xor__, __rxor__ = _binary("^", operator.xor), _binary("^", operator.xor, True)
    __lt__, __le__ = _comparison("<", operator.lt), _comparison("<=", operator.le)
    __gt__, __ge__ = _comparison(">", operator.gt), _comparison(">=", operator.ge)
    __eq__, __ne__ = _comparison("==", operator.eq), _comparison("!=", operator.ne)
    __neg__, __pos__ = _unary("(-{})", operator.neg), _unary("(+{})", operator.pos)
    __invert__, __abs__ = _unary("(~{})", operator.invert), _unary("abs({})", abs)
    __floor__, __ceil__, __trunc__ = _unary("floor({})", math.floor), _unary("ceil({})", math.ceil), _unary("trunc({})", math.trunc)
    bit_length = _unary("({}).bit_length()", lambda n: n.bit_length())

    def __pow__(self, other: Any) -> Any:
        return _POWER(self, other) if other >= 0 or type(self.value) is float else NotImplemented  # the guard: a negative power of an int is a float

    def __rpow__(self, other: Any) -> Any:
        return _POWER_OF(self, other) if self >= 0 or type(other) is float else NotImplemented

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __round__(self, digits: int | None = None) -> Any:
        return self.trace.compute("round({}, {})", round, self, digits) if digits is not None else self.trace.compute("round({})", round, self)

    def __bool__(self) -> bool:
        return self.trace.compare("{}", bool, self)

    def __index__(self) -> int:
        if type(self.value) is not int:
            raise TypeError(f"{self.value} is not a whole number")
        return int(self.trace.stays(self))

    def __int__(self) -> int:
        return int(self.trace.compute("trunc({})", math.trunc, self)) if type(self.value) is float else int(self.trace.stays(self))

    def __float__(self) -> float:
        return float(self.trace.stays(self))

    @property
    def numerator(self) -> Any:
        return self

    @property
    def denominator(self) -> int:
        return 1

    def __hash__(self) -> int:
        raise self.trace.fail("a cache has a size as its key") if self.trace.active else TypeError("a number of a finished trace cannot be hashed")

    def __str__(self) -> str:
        return f"\x00{self.index}\x00" if self.trace.active else str(self.value)

    __repr__ = __str__

    def __format__(self, how: str) -> str:
        return str(self) if self.trace.active and not how else format(self._number(), how)

    def __reduce__(self) -> Any:
        return type(self.value), (self._number(),)

    def _number(self) -> Any:
        return self.trace.stays(self) if self.trace.active else self.value


def symbolic(value: Any) -> bool:
    """Whether a number is a symbol."""
    return type(value) is Symbol
