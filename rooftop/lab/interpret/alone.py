"""Arguments and a grid for a Triton kernel that nothing launches, as its code and the names in it suggest.

A parameter from which an address is made is an array, as long as the sizes together; one that is called a stride is that of rows without
gaps; the other numbers are sizes, blocks, flags or scalars by their names and by where they stand. All of it is assumed: a fault that is
found may come of that."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from rooftop.lab.interpret import guesses, wrappers

STRIDE = re.compile(r"stride|^ld[abc]$", re.I)
BLOCK = re.compile(r"block|tile|chunk|^b[a-z]{1,2}$|^b_[a-z]$|^bs_?[a-z]$", re.I)  # a constant that is a part of a size
FEW = re.compile(r"heads?$|^h$|num_?heads|group|batch|^b$|^z$|iter|steps|splits?$|kernel|pad|radius|window|dilation|offset|start|expert|top_?k", re.I)
ON = re.compile(r"(?:has|use|store|save|with|even|add)_\w+", re.I)  # flags that switch on what is there: every array is
FLAG = re.compile(r"(?:is|no|reverse|causal|inplace|allow|enable|do|return|output|training)(?:_\w+)?|\w*causal\w*", re.I)  # those that stay off
REAL = re.compile(
    r"eps\w*|\w*_eps|(?:\w+_)?(?:scale|scaling|factor|slope|alpha|beta|gamma|lr|momentum|decay|temperature|theta|base|prob|value|min|max|p)|scalar|ratio", re.I
)
ACCESS = ("load", "store", "make_block_ptr", "make_tensor_descriptor", "atomic_add", "atomic_max", "atomic_min", "atomic_cas", "atomic_xchg",
          "atomic_and", "atomic_or", "atomic_xor")
SHAPES = ("arange", "zeros", "full", "reshape", "view", "make_block_ptr", "make_tensor_descriptor", "static_range", "broadcast_to")
ROWS = 8  # of a grid whose programs are rows, where nothing says how many
COUNT = 2  # of heads, groups and the like
MOST = 256  # programs
LONG = 1 << 20  # of one of a kernel without sizes


class Unknown(ValueError):
    """A parameter of which nothing says what it is."""


class Text:
    """The code of one kernel: what its names stand for, which parameters are pointers, and which hold indices."""

    def __init__(self, kernel: Any, within: Sequence[Any] = ()) -> None:
        self.kernel = wrappers.jit_of(kernel)
        function = ast.parse(self.kernel.src).body[0]
        self.nodes = list(ast.walk(function))
        self.params = list(self.kernel.arg_names)
        self.defs: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._define(target, node.value)
            elif isinstance(node, ast.AugAssign | ast.AnnAssign) and node.value is not None:
                self._define(node.target, node.value)
            elif isinstance(node, ast.For):
                self._define(node.target, node.iter)
        self.known: dict[str, set[tuple[str, Any]]] = {p: {("param", p)} for p in self.params}  # what each name depends on
        before = -1
        while before != (before := sum(map(len, self.known.values()))):
            for name, values in self.defs.items():
                self.known[name] = self.known.get(name, set()).union(*map(self.roots, values))
        self.addresses = [first for call in self.calls(*ACCESS) if (first := _first(call)) is not None]
        self.pointers = [p for p in map(self.pointer, self.addresses) if p]
        self.called: set[str] = set()
        for call in (n for n in self.nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)):
            other = self.kernel.fn.__globals__.get(call.func.id)  # type: ignore[attr-defined]
            if other is None or other in within or not wrappers.kernels({"other": other}):
                continue
            self.called.add(call.func.id)  # type: ignore[attr-defined]
            theirs = Text(other, [*within, kernel])
            named = {**dict(zip(theirs.params, call.args, strict=False)), **{k.arg: k.value for k in call.keywords if k.arg}}
            self.pointers += [p for n in theirs.pointers if n in named and (p := self.pointer(named[n]))]
        used = {n.value.id for n in self.nodes if isinstance(n, ast.Attribute) and n.attr == "dtype" and isinstance(n.value, ast.Name)}
        self.pointers += [n for n in used if n in self.params and re.search(r"ptr", n, re.I)]
        loaded = {root[1] for e in self.addresses for root in self.roots(e) if root[0] == "load"}
        bits = [n for n in self.nodes if isinstance(n, ast.BinOp) and (
            isinstance(n.op, ast.LShift | ast.RShift) or (isinstance(n.op, ast.BitAnd) and isinstance(n.right, ast.Constant)))]
        self.whole = loaded | {root[1] for n in bits for root in self.roots(n.left) if root[0] == "load"}

    def _define(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.defs.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Tuple):
            parts = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else [value] * len(target.elts)
            for one, part in zip(target.elts, parts, strict=True):
                self._define(one, part)

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """The calls of functions of these last names."""
        return (n for n in self.nodes if isinstance(n, ast.Call) and _name(n.func) in names)

    def pointer(self, e: ast.expr | None, seen: tuple[str, ...] = ()) -> str:
        """The parameter from which an address is made, or the empty string."""
        if isinstance(e, ast.Name) and e.id not in seen:
            own = next((p for d in self.defs.get(e.id, ()) if (p := self.pointer(d, (*seen, e.id)))), "")
            constant = e.id in self.params and self.kernel.params[self.params.index(e.id)].is_constexpr
            return e.id if e.id in self.params and not constant and not STRIDE.search(e.id) else own
        if isinstance(e, ast.BinOp) and isinstance(e.op, ast.Add | ast.Sub):
            sides = [p for side in (e.left, e.right) if (p := self.pointer(side, seen))]
            return next((p for p in sides if re.search(r"ptr", p, re.I)), sides[0] if sides else "")
        if isinstance(e, ast.Call):
            inner = e.func.value if isinstance(e.func, ast.Attribute) and e.func.attr in ("to", "cast") else _first(e)
            return self.pointer(inner, seen) if _name(e.func) in ("to", "make_block_ptr", "make_tensor_descriptor", "advance", "multiple_of",
                                                                   "max_contiguous", "cast", "pointer_type") else ""
        if isinstance(e, ast.Subscript):
            return self.pointer(e.value, seen)
        return self.pointer(e.body, seen) if isinstance(e, ast.IfExp) else ""

    def roots(self, e: ast.AST) -> set[tuple[str, Any]]:
        """What an expression depends on: parameters, numbers of programs by their axis, and what is loaded from which pointer."""
        if isinstance(e, ast.Call) and _name(e.func) == "load":
            return {("load", self.pointer(_first(e)))}
        if isinstance(e, ast.Call) and _name(e.func) == "program_id":
            axis = _first(e)
            return {("pid", axis.value if isinstance(axis, ast.Constant) else 0)}
        if isinstance(e, ast.Name):
            return self.known.get(e.id, set())
        found: set[tuple[str, Any]] = set()
        return found.union(*map(self.roots, ast.iter_child_nodes(e)))

    def named(self, e: ast.AST) -> set[str]:
        return {n for kind, n in self.roots(e) if kind == "param"}

    def value(self, e: ast.AST, values: Mapping[str, Any], depth: int = 0) -> int | None:
        """A whole number that an expression is with these values of parameters."""
        if depth > 8:
            return None
        if isinstance(e, ast.Constant):
            return e.value if isinstance(e.value, int) else None
        if isinstance(e, ast.Name):
            own = values.get(e.id)
            one = self.defs.get(e.id, [])
            return int(own) if isinstance(own, int) else self.value(one[0], values, depth + 1) if len(one) == 1 else None
        parts: list[ast.AST] = [e.left, e.right] if isinstance(e, ast.BinOp) else list(e.args) if isinstance(e, ast.Call) else []
        sides = [self.value(p, values, depth + 1) for p in parts]
        if len(sides) != 2 or None in sides:
            return None
        a, b = sides[0] or 0, sides[1] or 0
        if isinstance(e, ast.Call):
            return -(-a // b) if _name(e.func) == "cdiv" and b else None
        op = e.op  # type: ignore[attr-defined]
        if isinstance(op, ast.FloorDiv | ast.Mod):
            return None if not b else a // b if isinstance(op, ast.FloorDiv) else a % b
        return a + b if isinstance(op, ast.Add) else a - b if isinstance(op, ast.Sub) else a * b if isinstance(op, ast.Mult) else None


def _name(e: ast.expr) -> str:
    return e.attr if isinstance(e, ast.Attribute) else e.id if isinstance(e, ast.Name) else ""


def _first(call: ast.Call) -> ast.expr | None:
    return call.args[0] if call.args else next((k.value for k in call.keywords if k.arg in ("base", "pointer", "axis")), None)


def launched(names: Mapping[str, Any]) -> dict[str, Any]:
    """The kernels of a file that are for a launch: they write, and no other of them calls them."""
    texts = {n: Text(k) for n, k in wrappers.kernels(names).items() if not wrappers.jit_of(k).is_gluon()}
    inner = set().union(*(t.called for t in texts.values())) if texts else set()
    return {n: names[n] for n, t in texts.items() if t.pointers and n not in inner}


def launch(
    kernel: Any, given: Mapping[str, Any], seed: int, even: bool, long: bool = False
) -> tuple[Callable[[Mapping[str, Any]], tuple[int, ...]], dict[str, Any]]:
    """A grid and arguments by name, those of tuning and heuristics left out. `even`: sizes that blocks divide; `long`: arrays longer than they
    say. Raises Unknown."""
    import torch

    text = Text(kernel)
    params = text.kernel.params
    tuned = _tuned(kernel)
    tuned_names = set(tuned)
    values: dict[str, Any] = {p.name: given.get(p.name, p.default) for p in params if p.name in given or p.has_default}
    values |= {n: v for n, v in tuned.items() if v is not None}
    left = [p for p in params if p.name not in values and p.name not in tuned_names and p.name not in text.pointers]
    shaped = set().union(*(text.named(call) for call in text.calls(*SHAPES)))
    strides = [p.name for p in left if STRIDE.search(p.name)]
    blocks = [p.name for p in left if p.is_constexpr and (
        BLOCK.search(p.name) or (p.name == "B" and "B" in shaped) or re.search("group_?size|group_m", p.name, re.I)
    )]
    sizes: dict[str, int] = {}
    for p in left:
        if p.name in (*strides, *blocks):
            continue
        scalar = _scalar(p, text)
        if scalar is not None:
            values[p.name] = scalar
        else:
            sizes[p.name] = COUNT if FEW.search(p.name) else 0
    large = [n for n, v in sizes.items() if not v]
    for name, n in guesses.whole_numbers(large, large).items():
        sizes[name] = (1 << max(n - 1, 1).bit_length()) if even or (name in shaped and _constant(text, name)) else n
    values |= sizes
    cover = max(sizes.values(), default=64)
    stepped = _stepped(text)
    for name in blocks:
        whole = 1 << max(cover - 1, 15).bit_length()
        part = max(16, whole // (4 if whole > 64 else 2))
        values[name] = COUNT if re.search("group", name, re.I) else part if name in stepped else whole
    programs = _grid(text, values, sizes)
    rows = ROWS if programs[1] else 1
    total = rows * max(prod(sizes.values()), 64) if sizes else LONG
    lengths = _strides(text, strides, sizes, values, total, rows)
    generator = torch.Generator().manual_seed(seed)
    for name in dict.fromkeys(text.pointers):
        if name in values:
            continue
        length = lengths.get(name, total) * (guesses.SPARE if long else 1)
        whole_numbers = name in text.whole or wrappers.TARGET.fullmatch(re.sub(r"_?ptr$", "", name, flags=re.I))
        if length > guesses.LONGEST:
            raise Unknown(f"the length of {name} of {text.kernel.__name__}")
        made = torch.randint(0, COUNT, (length,), generator=generator) if whole_numbers else torch.randn(length, generator=generator)
        values[name] = made.cuda()
    missing = [p.name for p in params if p.name not in values and p.name not in tuned_names]
    if missing:
        raise Unknown(f"the parameter {missing[0]} of {text.kernel.__name__}")

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        return _grid(text, {**values, **meta}, sizes)[0]

    return grid, {n: values[n] for n in text.params if n in values and n not in tuned_names}


def _tuned(kernel: Any) -> dict[str, Any]:
    """What tuning and heuristics give, by name, with the values of a first config."""
    found: dict[str, Any] = {}
    while not hasattr(kernel, "raw_src"):
        for config in getattr(kernel, "configs", ()):
            found = {**config.kwargs, **found}
        found |= dict.fromkeys(n for n in getattr(kernel, "values", {}) if n not in found)
        kernel = kernel.fn
    return found


def _constant(text: Text, name: str) -> bool:
    return bool(text.kernel.params[text.params.index(name)].is_constexpr)


def _scalar(p: Any, text: Text) -> Any:
    """The value of a parameter that is no size: a flag, a word, a type, a real number; None where it is one."""
    import triton.language as tl

    for node in (n for n in text.nodes if isinstance(n, ast.Compare) and _name(n.left) == p.name):
        other = node.comparators[0]
        if isinstance(other, ast.Constant) and isinstance(other.value, str):
            return other.value
        if isinstance(other, ast.Attribute) and isinstance(getattr(tl, other.attr, None), tl.dtype):
            return getattr(tl, other.attr)
    if p.is_constexpr and re.search("dtype|_type", p.name, re.I):
        return tl.float32
    tested = {_name(n.operand) if isinstance(n, ast.UnaryOp) else _name(n) for i in text.nodes if isinstance(i, ast.If | ast.IfExp) for n in [i.test]}
    if ON.fullmatch(p.name):
        return True
    if FLAG.fullmatch(p.name) or (p.is_constexpr and p.name in tested):
        return False
    if re.fullmatch("num_warps|num_stages", p.name, re.I):
        return 4
    said = str(p.annotation)
    if re.search("seed", p.name, re.I):
        return 7
    if "float" in said or said.startswith("fp") or (REAL.fullmatch(p.name) and "int" not in said):
        return 1e-5 if "eps" in p.name.lower() else 0.5
    return None


def _stepped(text: Text) -> set[str]:
    """Blocks that are parts: a program's number, or a step of a loop, is multiplied by them."""
    found: set[str] = set()
    for n in text.nodes:
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult):
            for one, other in ((n.left, n.right), (n.right, n.left)):
                if any(kind == "pid" for kind, _ in text.roots(one)):
                    found |= text.named(other)
        elif isinstance(n, ast.Call) and (_name(n.func) == "range" and len(n.args) > 2):
            found |= text.named(n.args[2])
        elif isinstance(n, ast.Call) and _name(n.func) == "cdiv" and len(n.args) == 2:
            found |= text.named(n.args[1])
    return found


def _grid(text: Text, values: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[tuple[int, ...], bool]:
    """Programs by axis, and whether some are rows of which nothing says how many there are."""
    axes = {root[1] for call in text.calls("program_id") for root in text.roots(call)}
    grid, rows = list[int](), False
    scaled = {*sizes, *(n for n in text.params if STRIDE.search(n))}
    for axis in range(max(axes, default=0) + 1):
        def depends(e: ast.AST, axis: int = axis) -> bool:
            return ("pid", axis) in text.roots(e)

        split = [n.right for n in text.nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.FloorDiv | ast.Mod) and depends(n.left)]
        steps = [v for n in text.nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)
                 for a, b in ((n.left, n.right), (n.right, n.left)) if depends(a) and not text.named(b) <= scaled
                 if (v := text.value(b, values))]
        bounds = [v for n in text.nodes if isinstance(n, ast.Compare)
                  for a, b in ((n.left, n.comparators[0]), (n.comparators[0], n.left))
                  if depends(a) and text.named(b) & {*sizes} and (v := text.value(b, values))]
        inner = {id(c) for call in text.calls("range") for a in call.args for c in ast.walk(a)}
        parts = [v for c in text.calls("cdiv") if id(c) not in inner and (v := text.value(c, values))]
        if axis not in axes:
            grid.append(1)
        elif split:
            known = {ast.dump(e): text.value(e, values) for e in split}
            counted = set().union(*(text.named(c) for c in text.calls("cdiv")))
            others = {n for n in text.params if n not in counted and _constant(text, n) and any(
                n in text.named(b) for m in text.nodes if isinstance(m, ast.BinOp) and isinstance(m.op, ast.Mult) and depends(m.left) for b in [m.right])}
            more = [-(-sizes[s] // max(int(values[n]), 1)) for n in others for s in sizes if s.lower() == n.lower()[-1:] and values.get(n)]
            grid.append(prod(parts) * prod(more) if parts else prod(v for v in known.values() if v))
        elif steps:
            grid.append(-(-(bounds[0] if bounds else max(sizes.values(), default=64)) // max(steps[0], 1)))
        elif bounds:
            grid.append(bounds[0])
        else:
            few = [v for v in sizes.values() if v == COUNT]
            grid.append(COUNT if few else ROWS)
            rows = rows or not few
    return tuple(max(1, min(n, MOST if len(grid) == 1 else 16)) for n in grid), rows


def _strides(text: Text, strides: Sequence[str], sizes: Mapping[str, int], values: dict[str, Any], total: int, rows: int) -> dict[str, int]:
    """Gives strides their values, and says how long the arrays are that have some."""
    bases = {n: re.sub(r"_?ptrs?$|^ptr_?|^p_", "", n, flags=re.I).lower() for n in dict.fromkeys(text.pointers)}
    groups: dict[str, list[tuple[str, str]]] = {}
    for name in strides:
        key = re.sub(r"_?strides?_?", "_", name, flags=re.I).strip("_").lower()
        exact = [n for n, b in bases.items() if b and key.startswith(b)]
        likely = exact or [n for n, b in bases.items() if b and key and b[0] == key[0] and len(key.replace("_", "")) > 1]
        own = max(likely, key=lambda n: len(bases[n])) if likely else ""
        groups.setdefault(own, []).append((name, key[len(bases[own]) if exact else 1:].strip("_") if own else key))
    large = max(sizes.values(), default=64)
    lengths: dict[str, int] = {}
    for own, dims in groups.items():
        def extent(dim: str) -> int:
            same = [v for n, v in sizes.items() if dim and n.lower() == dim] or [
                v for n, v in sizes.items() if dim and any(t.startswith(dim) for t in re.split("_", n.lower()))
            ]
            return same[0] if same else COUNT if FEW.search(dim) else large

        step = large if len(dims) == 1 else 1
        for name, dim in reversed(dims):
            values[name] = step
            step *= max(extent(dim), rows)
        if own:
            lengths[own] = max(step, total if len(dims) == 1 else 1)
    if "" in groups or any(not bases[n] for n in bases):
        lengths = {n: max(v, total) for n, v in lengths.items()}
        for n in bases:
            lengths.setdefault(n, max([total, *(values[s] * large for s, _ in groups.get("", ()))]))
    return lengths
