"""The shapes of a function's tensors as its own code says them: it unpacks them, and asserts which of their sizes are equal."""

from __future__ import annotations

import ast
import inspect
import re
import string
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

WEIGHT = re.compile(r"weight|bias|gamma|beta|scale|^[wbg]$", re.I)
LAST = (64, 32, 2, 2, 2)  # sizes of which nothing is said, from the last
MORE = (64, 256, 1, 2, 2)  # larger ones, which blocks divide


class _Said:
    """Sizes by a word each, those that must be equal by one; numbers that some must be. `last`: of several ways to unpack a tensor the last
    counts, not the first."""

    def __init__(self, tree: ast.AST, names: Sequence[str], last: bool) -> None:
        self.names = names
        self.shapes: dict[str, list[str]] = {}
        self.same: dict[str, str] = {}
        self.numbers: dict[str, int] = {}
        nodes = list(ast.walk(tree))
        for node in nodes:  # M, K = x.shape
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and (of := self._shape_of(node.value)):
                words = [t.id if isinstance(t, ast.Name) and t.id != "_" else f"{of}.{i}" for i, t in enumerate(node.targets[0].elts)]
                if not any(isinstance(t, ast.Starred) for t in node.targets[0].elts):
                    self.shapes[of] = words if last else self.shapes.get(of, words)
        held = [c for node in nodes for c in _held(node)]
        for left, right in held:  # x.dim() == 3
            if (of := self._rank_of(left)) and isinstance(right, ast.Constant) and isinstance(right.value, int):
                self.shapes.setdefault(of, [f"{of}.{i}" for i in range(right.value)])
        for left, right in held:  # x.shape == (M, K), x.shape == y.shape
            of, other = self._shape_of(left), self._shape_of(right)
            if of and other and (of in self.shapes or other in self.shapes):
                known = self.shapes.get(of) or self.shapes[other]
                for n in (of, other):
                    for a, b in zip(self.shapes.setdefault(n, known), known, strict=False):
                        self.same[self.root(a)] = self.root(b)
            elif of and isinstance(right, ast.Tuple):
                words = [w if (w := self.word(e)) else f"{of}.{i}" for i, e in enumerate(right.elts)]
                for a, b in zip(self.shapes.setdefault(of, words), words, strict=False):
                    self.same[self.root(a)] = self.root(b)
        for node in nodes:  # M = x.shape[0], another word for it
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and (word := self.word(node.value)):
                self.same.setdefault(node.targets[0].id, self.root(word))
        for left, right in held:
            a, b = self.word(left), self.word(right)
            if a and b and self.root(a) != self.root(b):
                self.same[self.root(a)] = self.root(b)
        for left, right in held:
            word = self.word(left.left if isinstance(left, ast.BinOp) else left)
            values = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else [right]
            plain = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, int)]
            by = left.right.value if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and isinstance(left.right, ast.Constant) else 0
            if word and isinstance(by, int) and by > 0:  # d % 64 == 0
                self.numbers.setdefault(self.root(word), by)
            elif word and plain and not isinstance(left, ast.BinOp):
                self.numbers.setdefault(self.root(word), plain[len(plain) // 2])

    def root(self, word: str) -> str:
        seen = {word}
        while (word := self.same.get(word, word)) not in seen:
            seen.add(word)
        return word

    def _shape_of(self, e: ast.expr) -> str:
        """`x` of `x.shape` and `x.size()`."""
        e = e.func if isinstance(e, ast.Call) and not e.args else e
        return e.value.id if isinstance(e, ast.Attribute) and e.attr in ("shape", "size") and isinstance(e.value, ast.Name) and e.value.id in self.names else ""

    def _rank_of(self, e: ast.expr) -> str:
        """`x` of `x.dim()`, `x.ndim` and `len(x.shape)`."""
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Name) and e.func.id == "len" and e.args:
            return self._shape_of(e.args[0])
        e = e.func if isinstance(e, ast.Call) else e
        return e.value.id if isinstance(e, ast.Attribute) and e.attr in ("dim", "ndim") and isinstance(e.value, ast.Name) and e.value.id in self.names else ""

    def word(self, e: ast.expr) -> str:
        """What stands for a size: the name that it was given, or that of `x.shape[0]`."""
        if isinstance(e, ast.Name):
            return e.id if e.id in self.same or any(e.id in words for words in self.shapes.values()) else ""
        at = e.slice if isinstance(e, ast.Subscript) else e.args[0] if isinstance(e, ast.Call) and len(e.args) == 1 else None
        base = e.value if isinstance(e, ast.Subscript) else e.func if isinstance(e, ast.Call) else None
        of = self._shape_of(base) if base is not None else ""
        if not of or at is None:
            return ""
        try:
            i = ast.literal_eval(at)
        except ValueError:
            return ""
        if not isinstance(i, int):
            return ""
        words = self.shapes.setdefault(of, [f"{of}.{j}" for j in range(i + 1 if i >= 0 else -i)])
        return words[i] if -len(words) <= i < len(words) else ""


def _held(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The two sides of each equality that a function asserts, or raises without."""
    negative = isinstance(node, ast.If) and len(node.body) == 1 and isinstance(node.body[0], ast.Raise)
    if not isinstance(node, ast.Assert) and not negative:
        return
    for test in ast.walk(node.test):  # type: ignore[attr-defined]
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.NotEq, ast.NotIn) if negative else (ast.Eq, ast.In)):
            sides = [test.left, *test.comparators]
            for a, b in pairwise(sides):
                if isinstance(a, ast.Tuple) and isinstance(b, ast.Tuple):
                    yield from zip(a.elts, b.elts, strict=False)
                else:
                    yield a, b


def said(function: Callable[..., Any], names: Sequence[str], last: bool = False, large: bool = False) -> tuple[list[str], dict[str, int]] | None:
    """A letter for each size of these parameters' tensors, and the letters' sizes; None where the code says nothing of them. A tensor of
    which it says nothing is as the one before; a weight has its last size."""
    target = getattr(getattr(function, "__self__", None), "forward", function) if getattr(function, "__name__", "") == "apply" else function
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(target))))
    except (OSError, TypeError, SyntaxError):
        return None
    known = _Said(tree, names, last)
    if not any(n in known.shapes for n in names):
        return None
    before, shapes = next(known.shapes[n] for n in names if n in known.shapes), []
    for n in names:
        own = known.shapes.get(n, before[-1:] if WEIGHT.search(n) else before)
        before = before if WEIGHT.search(n) else own
        shapes.append([known.root(w) for w in own])
    roots = list(dict.fromkeys(w for shape in shapes for w in shape))
    letters = dict(zip(roots, string.ascii_letters, strict=False))
    sizes = {
        letters[w]: known.numbers.get(w) or (MORE if large else LAST)[min((len(s) - 1 - s.index(w) for s in shapes if w in s), default=0)] for w in roots
    }
    return ["".join(letters[w] for w in shape) for shape in shapes], sizes
