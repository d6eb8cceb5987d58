"""What a Python function computes, as a hash: of its syntax tree, without all that does not change the result.

The hash does not depend on comments, docstrings, layout, imports, the file that a function is in, the order of functions, the names of functions, constants
and local variables. It depends on everything of the package that the function reaches: a name of a module stands for the hash of what it is bound to. What
lies outside (torch, triton, jax) and `rooftop.core` count by their names.

With `known` values of parameters the function is specialised first: these are put in, conditions that are then decided are folded, what is then never used
is left out, and so is a parameter with a known value, here and in the functions that it is passed on to. So a parameter that was added later, and has its
default, changes nothing (`Contract.digest`).

Nothing is imported or run, and the result is the same on every Python version."""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.digests import digest


class Present:
    """As a known value of a parameter: not None."""

    def __repr__(self) -> str:
        return "present"


PRESENT = Present()
OUTSIDE = ("core", "lab")  # of the package: names of these count by themselves
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SKIPPED = ("ctx", "type_comment", "kind", "type_params", "lineno")
_COMPARED: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Is: lambda a, b: a is b, ast.IsNot: lambda a, b: a is not b, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip


def of_function(path: Path, name: str, known: Mapping[str, Any] | None = None) -> str:
    """The hash of the function (class, constant) `name` of a file's top level. `known`: values of parameters to specialise it for: None, numbers, booleans,
    texts, or PRESENT. Raises KeyError if the file has no such name."""
    file, name = _file(path).named(name)
    return _reached(file, name, None if known is None else tuple(sorted(known.items(), key=lambda item: item[0])), ())[0]


def of_object(function: Any, known: Mapping[str, Any] | None = None) -> str:
    """The hash of a Python function, or of a kernel made of one (`fn`). A function that another one made counts as that one, with the values it has kept."""
    plain = function
    while not hasattr(plain, "__code__") and hasattr(plain, "fn"):
        plain = plain.fn
    plain = inspect.unwrap(plain)
    name, _, inner = str(plain.__qualname__).partition(".")
    path = Path(plain.__code__.co_filename)
    cells = [_value(c.cell_contents) for c in plain.__closure__ or ()]
    found = of_function(path, name, known if not inner else None if known is None else {})
    return digest(found, inner, cells) if inner else found


def _value(value: Any) -> str:
    """A value that a function has kept, as text."""
    if hasattr(getattr(value, "fn", value), "__code__"):
        return of_object(value)
    if isinstance(value, Mapping):
        return repr({repr(k): _value(v) for k, v in value.items()})
    if isinstance(value, (list, tuple)):
        return repr([_value(v) for v in value])
    return repr(value) if _simple(value) else str(getattr(value, "__name__", type(value).__name__))


def reached_kernels(path: Path, names: Sequence[str]) -> list[str]:
    """The hashes of all functions with a decorator `jit` that the functions `names` of a file reach, sorted."""
    found: dict[tuple[Path, str], str] = {}
    seen: set[tuple[Path, str]] = set()
    todo = [_file(path).named(n) for n in names]
    while todo:
        file, name = todo.pop()
        if (file.path, name) in seen:
            continue
        seen.add((file.path, name))
        nodes = file.bound[name]
        if any(isinstance(n, ast.FunctionDef) and any("jit" in ast.dump(d) for d in n.decorator_list) for n in nodes):
            found[file.path, name] = of_function(file.path, name)
            continue
        for node in (n for one in nodes for n in ast.walk(one)):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(to := file.target(node), tuple):
                todo.append(to)
    return sorted(found.values())


# -- files -------------------------------------------------------------------------------------------------------------


class _File:
    """The names of a file's top level: statements that bind them, and imports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bound: dict[str, list[ast.stmt]] = {}
        self.imported: dict[str, str] = {}  # name -> dotted name
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            for name in _binds(node):
                self.bound.setdefault(name, []).append(node)
        for node in tree.body:
            for inner in [node, *(ast.walk(node) if isinstance(node, ast.If | ast.Try) else ())]:
                self.imported.update(self.imports(inner))

    def imports(self, node: ast.AST) -> dict[str, str]:
        """The names that an import binds, with their dotted names."""
        if isinstance(node, ast.Import):
            return {a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0] for a in node.names}
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = [*self.path.relative_to(settings.PACKAGE.parent).with_suffix("").parts][: -node.level]
                base = ".".join([*package, *([base] if base else [])])
            return {a.asname or a.name: f"{base}.{a.name}" for a in node.names}
        return {}

    def named(self, name: str) -> tuple[_File, str]:
        """Where a name of its top level is bound, here or where it is imported from. Raises KeyError if it has none."""
        found = self.target(ast.Name(name, ast.Load()))
        if not isinstance(found, tuple):
            raise KeyError(f"{self.path} has no {name} at its top level")
        return found

    def target(self, node: ast.expr, local: Mapping[str, str] | None = None) -> tuple[_File, str] | str | None:
        """What a name, or an attribute of a module, stands for: a file's name, the dotted name of something outside, or None for neither."""
        if isinstance(node, ast.Attribute):
            base = self.target(node.value, local)
            return _located(f"{base}.{node.attr}") if isinstance(base, str) else None
        if not isinstance(node, ast.Name):
            return None
        if local and node.id in local:
            return _located(local[node.id])
        if node.id in self.bound:
            return _language(self.bound[node.id][0]) or (self, node.id)
        return _located(self.imported[node.id]) if node.id in self.imported else None


def _language(node: ast.stmt) -> str | None:
    """The name of a language that is imported only where it is there (rooftop.core.backends.present): it lies outside."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "language" and isinstance(value.args[0], ast.Constant):
        return str(value.args[0].value)
    return None


@cache
def _file(path: Path) -> _File:
    return _File(path)


def _located(dotted: str) -> tuple[_File, str] | str:
    """What a dotted name stands for."""
    parts = dotted.split(".")
    if parts[0] != settings.PACKAGE.name or len(parts) < 2 or parts[1] in OUTSIDE:
        return dotted
    path = _module(parts[:-1])
    if path is not None:
        file = _file(path)
        if parts[-1] in file.bound:
            return _language(file.bound[parts[-1]][0]) or (file, parts[-1])
        if parts[-1] in file.imported and file.imported[parts[-1]] != dotted:
            return _located(file.imported[parts[-1]])
    return dotted


@cache
def _module_of(dotted: str) -> Path | None:
    path = settings.PACKAGE.parent.joinpath(*dotted.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


def _module(parts: Sequence[str]) -> Path | None:
    return _module_of(".".join(parts))


def _binds(node: ast.AST) -> list[str]:
    """The names of a module that a statement assigns or changes: `x`, also in `x.y = 1`, and those in the body of an `if`."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        if isinstance(node.ctx, ast.Load):
            return []
        while not isinstance(node, ast.Name):
            if not isinstance(node, ast.Attribute | ast.Subscript):
                return []
            node = node.value
        return [node.id]
    left = [node.value] if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) else []
    return list(dict.fromkeys(name for n in ast.iter_child_nodes(node) if n not in left for name in _binds(n)))


# -- what is reached ---------------------------------------------------------------------------------------------------

Known = tuple[tuple[str, Any], ...] | None
Named = tuple[Path, str]
_HASHES: dict[tuple[Path, str, str], tuple[str, frozenset[Named]]] = {}  # and all names that are reached


def forget() -> None:
    """Read all files again: they have changed."""
    _HASHES.clear()
    _file.cache_clear()
    _module_of.cache_clear()


def _reached(file: _File, name: str, known: Known, under_way: tuple[Named, ...]) -> tuple[str, frozenset[Named]]:
    """The hash of a top-level name, and all names that it reaches, itself among them."""
    me, key = (file.path, name), (file.path, name, repr(known))  # 1, 1.0 and True are one key of a table
    if me in under_way:  # counted from the innermost: that does not depend on where one began
        return f"again {under_way[::-1].index(me)}", frozenset({me})
    kept = _HASHES.get(key)
    if kept is not None and kept[1].isdisjoint(under_way):  # else it leads to one of them again, and is written as seen from there
        return kept
    texts, reach = [], frozenset({me})
    for node in file.bound[name]:
        writer = _Writer(file, (*under_way, me), known)
        texts.append(writer.statement(node, name))
        reach |= writer.reach
    found = digest(*texts), reach
    if reach.isdisjoint(under_way):
        _HASHES[key] = found
    return found


class _Writer:
    """Writes one statement of a top level as text."""

    def __init__(self, file: _File, under_way: tuple[Named, ...], known: Known) -> None:
        self.file, self.under_way, self.known = file, under_way, known
        self.reach: frozenset[Named] = frozenset()
        self.kept: frozenset[str] = frozenset()  # names of parameters
        self.local: dict[str, str] = {}  # local name -> its name in the text
        self.locals: frozenset[str] = frozenset()
        self.imports: dict[str, str] = {}
        self.decorated = False

    def statement(self, node: ast.stmt, name: str) -> str:
        if isinstance(node, ast.FunctionDef):
            return self.function(node)
        if isinstance(node, ast.ClassDef):
            methods = [_Writer(self.file, self.under_way, None) for _ in node.body]
            texts = [w.statement(n, "") if isinstance(n, ast.FunctionDef) else w.text(n) for w, n in zip(methods, node.body, strict=True) if not _is_text(n)]
            names = [n.name if isinstance(n, ast.FunctionDef) else "" for n in node.body if not _is_text(n)]
            self.reach |= frozenset().union(*(w.reach for w in methods))
            return f"class {[self.text(b) for b in (*node.bases, *node.decorator_list)]} {list(zip(names, texts, strict=True))}"
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value = node.value
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "Op" and value.args:  # its reference stands for it
                return f"op {self.text(value.args[0])}"
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            return f"= {'' if isinstance(target, ast.Name) else self.text(target)} {self.text(value)}"
        return self.text(node)

    def function(self, node: ast.FunctionDef) -> str:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                self.imports.update(self.file.imports(inner))
        parameters, self.decorated = _parameters(node.args), bool(node.decorator_list)
        if self.known is not None:
            node = _specialised(node, dict(self.known))
        self.kept = frozenset(parameters)
        self.locals = frozenset(_assigned(node.body)) - self.kept
        given = dict(self.known or ())
        left = [n for n in parameters if n not in given or given[n] is PRESENT]
        kept: list[Any] = [left]
        if self.known is None:
            kept += [[self.text(d) for d in node.decorator_list], [self.text(d) for d in (*node.args.defaults, *node.args.kw_defaults) if d is not None]]
            kept.append([self.text(a.annotation) for a in _arguments(node.args) if a.annotation is not None and self.is_read(a.annotation)])
        else:
            kept.append([(n, self.text(d)) for n, d in _defaults(node.args).items() if n not in given])
        return f"def {kept} {self.block(node.body)}"

    def is_read(self, annotation: ast.expr) -> bool:
        """Whether a compiler reads an annotation: of a function with a decorator each, else those that say that a parameter is a constant."""
        return self.known is None and (self.decorated or bool(re.search("Constant|[cC]onstexpr", ast.unparse(annotation))))

    def block(self, body: Sequence[ast.stmt]) -> str:
        return "[" + " ; ".join(self.text(n) for n in body if not _is_text(n) and not isinstance(n, ast.Import | ast.ImportFrom | ast.Pass)) + "]"

    def text(self, node: Any) -> str:
        if isinstance(node, list):
            return self.block(node) if node and isinstance(node[0], ast.stmt) else "[" + ",".join(map(self.text, node)) + "]"
        if not isinstance(node, ast.AST):
            return repr(node)
        if isinstance(node, ast.Constant):
            return f"{type(node.value).__name__} {node.value!r}"
        if isinstance(node, ast.Name | ast.Attribute):
            return self.name(node)
        if isinstance(node, ast.Call) and self.known is not None and (made := self.call(node)):
            return made
        if isinstance(node, ast.FunctionDef):  # within another one
            inner = [n for n in _parameters(node.args) if n not in self.kept]
            self.kept |= frozenset(inner)
            more = [self.text(d) for d in (*node.args.defaults, *node.decorator_list)]
            return f"def {self.renamed(node.name)} {_parameters(node.args)} {more} {self.block(node.body)}"
        if isinstance(node, ast.AnnAssign) and not self.is_read(node.annotation):
            return "" if node.value is None else self.text(ast.Assign(targets=[node.target], value=node.value))
        if isinstance(node, ast.Lambda):  # its parameters are called by position
            self.locals |= frozenset(_parameters(node.args))
        if isinstance(node, ast.arg):
            return self.renamed(node.arg)
        if isinstance(node, _COMPREHENSIONS):  # names are bound before they are used
            first = ",".join(self.text(g) for g in node.generators)
            return f"{type(node).__name__}({first},{','.join(self.text(v) for k, v in ast.iter_fields(node) if k != 'generators')})"
        fields = ((k, v) for k, v in ast.iter_fields(node) if k not in _SKIPPED and v is not None and v != [])
        return f"{type(node).__name__}({','.join(f'{k}={self.text(v)}' for k, v in fields)})"

    def renamed(self, name: str) -> str:
        if name not in self.locals:
            return name
        return self.local.setdefault(name, f"v{len(self.local)}")

    def name(self, node: ast.Name | ast.Attribute) -> str:
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id not in self.kept and (root.id not in self.locals or root.id in self.imports):
            target = self.file.target(node, self.imports)
            if isinstance(target, tuple):
                found, reach = _reached(*target, None if self.known is None else (), self.under_way)
                self.reach |= reach
                return f"#{found}"
            if isinstance(target, str):
                return f"<{target.rpartition('.')[2] if target.startswith(f'{settings.PACKAGE.name}.') else target}>"
        if isinstance(node, ast.Name):
            return self.renamed(node.id)
        return f"{self.text(node.value)}.{node.attr}"

    def call(self, node: ast.Call) -> str | None:
        """A call of a function of the package, specialised for what is known of its arguments; None for another call."""
        root = node.func
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or root.id in self.kept or (root.id in self.locals and root.id not in self.imports):
            return None
        target = self.file.target(node.func, self.imports)
        if not isinstance(target, tuple):
            return None
        file, name = target
        definitions = file.bound[name]
        if len(definitions) != 1 or not isinstance(definition := definitions[0], ast.FunctionDef) or definition.decorator_list:
            return None
        spec = definition.args
        if spec.vararg or spec.kwarg or any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            return None
        parameters = _parameters(spec)
        given = dict(zip(parameters, node.args, strict=False)) | {str(k.arg): k.value for k in node.keywords}
        if len(node.args) > len(parameters) or not set(given) <= set(parameters):
            return None
        values = {**{n: d for n, d in _defaults(spec).items() if isinstance(d, ast.Constant)}, **given}
        known = {n: v.value for n, v in values.items() if isinstance(v, ast.Constant) and _simple(v.value)}
        rest = ",".join(f"{n}={self.text(values[n])}" for n in parameters if n in values and n not in known)
        present = {n: PRESENT for n, v in values.items() if n not in known and getattr(v, "present", False)}
        found, reach = _reached(file, name, tuple(sorted({**known, **present}.items(), key=lambda item: item[0])), self.under_way)
        self.reach |= reach
        return f"#{found}({rest})"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _arguments(args: ast.arguments) -> list[ast.arg]:
    return [*args.posonlyargs, *args.args, *([args.vararg] if args.vararg else []), *args.kwonlyargs, *([args.kwarg] if args.kwarg else [])]


def _parameters(args: ast.arguments) -> list[str]:
    return [a.arg for a in _arguments(args)]


def _defaults(args: ast.arguments) -> dict[str, ast.expr]:
    positional = [*args.posonlyargs, *args.args]
    found = dict(zip((a.arg for a in positional[len(positional) - len(args.defaults) :]), args.defaults, strict=True))
    found |= {a.arg: d for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is not None}
    return {n: _Folder({}, set()).visit(_copied(d)) for n, d in found.items()}


def _assigned(nodes: Sequence[ast.AST]) -> set[str]:
    """The names that statements bind, those of inner comprehensions, lambdas and functions too."""
    found: set[str] = set()
    for node in (n for one in nodes for n in ast.walk(one)):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef) or (isinstance(node, ast.ExceptHandler) and node.name):
            found.add(str(node.name))
        elif isinstance(node, ast.Lambda):
            found.update(_parameters(node.args))
    return found


# -- specialised for known values --------------------------------------------------------------------------------------


def _simple(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _specialised(node: ast.FunctionDef, known: dict[str, Any]) -> ast.FunctionDef:
    node = _copied(node)
    values = dict(known)
    again = _assigned(node.body)
    node.body = _Folder(values, again).block(node.body, values)
    before = -1
    while before != (before := _size(node.body)):
        node.body = _without_unused(node.body, {n.id for one in node.body for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)})
    return node


def _size(body: Sequence[ast.stmt]) -> int:
    """The number of statements, inner ones counted."""
    return sum(1 + sum(_size(getattr(n, part, None) or ()) for part in ("body", "orelse", "finalbody")) for n in body if isinstance(n, ast.stmt))


def _copied(node: Any) -> Any:
    if isinstance(node, list):
        return [_copied(n) for n in node]
    if not isinstance(node, ast.AST) or isinstance(node, ast.expr_context | ast.operator | ast.cmpop | ast.boolop | ast.unaryop):
        return node
    made = type(node)()
    for name in node._fields:
        setattr(made, name, _copied(getattr(node, name, None)))
    return made


def _without_unused(body: list[ast.stmt], used: set[str]) -> list[ast.stmt]:
    """Statements without assignments of plain values to names that are not in `used`."""
    found: list[ast.stmt] = []
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if targets and all(isinstance(t, ast.Name) and t.id not in used for t in targets) and not any(
            isinstance(n, ast.Call | ast.Await | ast.NamedExpr) for n in (ast.walk(value) if value is not None else ())
        ):  # fmt: skip
            continue
        for part in ("body", "orelse", "finalbody"):
            if isinstance(inner := getattr(node, part, None), list) and not isinstance(node, ast.FunctionDef | ast.ClassDef):
                setattr(node, part, _without_unused(inner, used))
        found.append(node)
    return found


class _Folder(ast.NodeTransformer):
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
            for name in _assigned([node]):
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
            for name in _assigned(targets):
                values.pop(name, None)
            if len(targets) == 1 and isinstance(targets[0], ast.Name):
                if isinstance(value, ast.Constant) and _simple(value.value):
                    values[targets[0].id] = value.value
                if isinstance(value, ast.Name) and value.id == targets[0].id:
                    return []  # what `x = x if y is None else x * y` is without y
        return [node]

    def inner(self, node: Any, values: dict[str, Any]) -> None:
        """A function within this one may run when a variable has another value."""
        own = {n: v for n, v in values.items() if n not in self.again and n not in _parameters(node.args)}
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
        self.values = {n: v for n, v in before.items() if n not in _assigned(node.generators)}
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
        if isinstance(node.operand, ast.Constant) and _simple(value := node.operand.value):
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
        if isinstance(op, ast.Is | ast.IsNot) and isinstance(right, ast.Constant) and right.value is None and getattr(left, "present", False):
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
            found: ast.expr = self.visit(node.body if test.value else node.orelse)
            return found
        node.test, node.body, node.orelse = test, self.visit(node.body), self.visit(node.orelse)
        return node


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and bool(a == b))
