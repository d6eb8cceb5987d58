"""What a Python function computes, as a hash: of its syntax tree, without all that does not change the result.

The hash does not depend on comments, docstrings, layout, imports, the file that a function is in, the order of functions, the names of
functions, constants and local variables. It depends on everything of the package that the function reaches: a name of a module stands for
the hash of what it is bound to. What lies outside (torch, triton, jax) and `rooftop.core` count by their names.

With `known` values of parameters the function is specialised first: these are put in, conditions that are then decided are folded, what is
then never used is left out, and so is a parameter with a known value, here and in the functions that it is passed on to. So a parameter
that was added later, and has its default, changes nothing (`Contract.digest`).

Nothing is imported or run, and the result is the same on every Python version."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.digests import digest
from rooftop.core.specialised import PRESENT, Folder, arguments, assigned, copied, is_simple, parameter_names, specialised

OUTSIDE = ("core", "lab")  # of the package: names of these count by themselves
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
OLD = {"PDL": "CHAINED"}  # names of parameters as the hashes in records have them
_SKIPPED = ("ctx", "type_comment", "kind", "type_params", "lineno")


def of_function(path: Path, name: str, known: Mapping[str, Any] | None = None) -> str:
    """The hash of the function (class, constant) `name` of a file's top level. `known`: values of parameters to specialise it for: None,
    numbers, booleans, texts, or PRESENT. Raises KeyError if the file has no such name."""
    file, name = _file(path).named(name)
    return _reached(file, name, None if known is None else tuple(sorted(known.items(), key=lambda item: item[0])), ())[0]


def of_object(function: Any, known: Mapping[str, Any] | None = None) -> str:
    """The hash of a Python function, or of a kernel made of one (`fn`). A function that another one made counts as that one, with the
    values it has kept."""
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
    return repr(value) if is_simple(value) else str(getattr(value, "__name__", type(value).__name__))


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
        self.path, self.id = path, str(path)
        self.bound: dict[str, list[ast.stmt]] = {}
        self.imported: dict[str, str] = {}  # name -> dotted name
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in OLD:
                node.id = OLD[node.id]
            elif isinstance(node, ast.arg | ast.keyword) and node.arg in OLD:
                node.arg = OLD[node.arg]
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
        """What a name, or an attribute of a module, stands for: a file's name, the dotted name of something outside, or None for
        neither."""
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
    if (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "language"
        and isinstance(value.args[0], ast.Constant)
    ):
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
Named = tuple[str, str]  # of a file, in it
Key = tuple[str, str, str]
Reference = tuple["_File", str, Known, Named]
_HASHES: dict[Key, tuple[str, frozenset[Named]]] = {}  # and all names that are reached
_TEXTS: dict[Key, list[tuple[list[str], list[Reference]]]] = {}
_PLACE = re.compile("⟪hash ([0-9]+)⟫")  # in a text


def forget() -> None:
    """Read all files again: they have changed."""
    _HASHES.clear()
    _TEXTS.clear()
    _file.cache_clear()
    _module_of.cache_clear()


def _reached(file: _File, name: str, known: Known, under_way: tuple[Named, ...]) -> tuple[str, frozenset[Named]]:
    """The hash of a top-level name, and all names that it reaches, itself among them."""
    me, key = (file.id, name), (file.id, name, repr(known))  # 1, 1.0 and True are one key of a table
    if me in under_way:  # counted from the innermost: that does not depend on where one began
        return f"again {under_way[::-1].index(me)}", frozenset({me})
    kept = _HASHES.get(key)
    if kept is not None and kept[1].isdisjoint(under_way):  # else it leads to one of them again, and is written as seen from there
        return kept
    chain, texts, reach = (*under_way, me), [], {me}
    for parts, references in _written(file, name, known, key):
        text = [parts[0]]
        for (to, its_name, its_known, it), part in zip(references, parts[1:], strict=True):
            if it in chain:  # as above, for eight names of one assignment a hundred thousand times
                text += "#again ", str(chain[::-1].index(it)), part
                reach.add(it)
            else:
                found, more = _reached(to, its_name, its_known, chain)
                text += "#", found, part
                reach |= more
        texts.append("".join(text))
    made = digest(*texts), frozenset(reach)
    if reach.isdisjoint(under_way):
        _HASHES[key] = made
    return made


def _written(file: _File, name: str, known: Known, key: Key) -> list[tuple[list[str], list[Reference]]]:
    """The statements of a top-level name as text: what stands before, between and behind the hashes of others, and whose hashes these are.
    Each is written once: names that reach each other have a hash for each way to them."""
    if key not in _TEXTS:
        _TEXTS[key] = []
        for node in file.bound[name]:
            writer = _Writer(file, known, {})
            parts, references = _PLACE.split(writer.statement(node, name)), list(writer.references.values())
            _TEXTS[key].append((parts[::2], [references[int(i)] for i in parts[1::2]]))
    return _TEXTS[key]


class _Writer:
    """Writes one statement of a top level as text, with a place for the hash of each name that it reaches. `references`: these; grows."""

    def __init__(self, file: _File, known: Known, references: dict[Key, Reference]) -> None:
        self.file, self.known, self.references = file, known, references
        self.kept: frozenset[str] = frozenset()  # names of parameters
        self.local: dict[str, str] = {}  # local name -> its name in the text
        self.locals: frozenset[str] = frozenset()
        self.imports: dict[str, str] = {}
        self.decorated = False

    def statement(self, node: ast.stmt, name: str) -> str:
        if isinstance(node, ast.FunctionDef):
            return self.function(node)
        if isinstance(node, ast.ClassDef):
            methods = [_Writer(self.file, None, self.references) for _ in node.body]
            texts = [
                w.statement(n, "") if isinstance(n, ast.FunctionDef) else w.text(n) for w,
                n in zip(methods, node.body, strict=True) if not _is_text(n)
            ]
            names = [n.name if isinstance(n, ast.FunctionDef) else "" for n in node.body if not _is_text(n)]
            return f"class {[self.text(b) for b in (*node.bases, *node.decorator_list)]} {list(zip(names, texts, strict=True))}"
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value = node.value
            # its reference stands for it
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "Op" and value.args:
                return f"op {self.text(value.args[0])}"
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            return f"= {'' if isinstance(target, ast.Name) else self.text(target)} {self.text(value)}"
        return self.text(node)

    def function(self, node: ast.FunctionDef) -> str:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                self.imports.update(self.file.imports(inner))
        parameters, self.decorated = parameter_names(node.args), bool(node.decorator_list)
        if self.known is not None:
            node = specialised(node, dict(self.known))
        self.kept = frozenset(parameters)
        self.locals = frozenset(assigned(node.body)) - self.kept
        given = dict(self.known or ())
        left = [n for n in parameters if n not in given or given[n] is PRESENT]
        kept: list[Any] = [left]
        if self.known is None:
            kept += [
                [self.text(d) for d in node.decorator_list],
                [self.text(d) for d in (*node.args.defaults, *node.args.kw_defaults) if d is not None]
            ]
            kept.append([self.text(a.annotation) for a in arguments(node.args) if a.annotation is not None and self.is_read(a.annotation)])
        else:
            kept.append([(n, self.text(d)) for n, d in _defaults(node.args).items() if n not in given])
        return f"def {kept} {self.block(node.body)}"

    def is_read(self, annotation: ast.expr) -> bool:
        """Whether a compiler reads an annotation: of a function with a decorator each, else those that say that a parameter is a
        constant."""
        return self.known is None and (self.decorated or bool(re.search("Constant|[cC]onstexpr", ast.unparse(annotation))))

    def block(self, body: Sequence[ast.stmt]) -> str:
        return "[" + " ; ".join(
            self.text(n) for n in body if not _is_text(n) and not isinstance(n, ast.Import | ast.ImportFrom | ast.Pass)
        ) + "]"

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
            inner = [n for n in parameter_names(node.args) if n not in self.kept]
            self.kept |= frozenset(inner)
            more = [self.text(d) for d in (*node.args.defaults, *node.decorator_list)]
            return f"def {self.renamed(node.name)} {parameter_names(node.args)} {more} {self.block(node.body)}"
        if isinstance(node, ast.AnnAssign) and not self.is_read(node.annotation):
            return "" if node.value is None else self.text(ast.Assign(targets=[node.target], value=node.value))
        if isinstance(node, ast.Lambda):  # its parameters are called by position
            self.locals |= frozenset(parameter_names(node.args))
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
                return self.place(*target, None if self.known is None else ())
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
        parameters = parameter_names(spec)
        given = dict(zip(parameters, node.args, strict=False)) | {str(k.arg): k.value for k in node.keywords}
        if len(node.args) > len(parameters) or not set(given) <= set(parameters):
            return None
        values = {**{n: d for n, d in _defaults(spec).items() if isinstance(d, ast.Constant)}, **given}
        known = {n: v.value for n, v in values.items() if isinstance(v, ast.Constant) and is_simple(v.value)}
        rest = ",".join(f"{n}={self.text(values[n])}" for n in parameters if n in values and n not in known)
        present = {n: PRESENT for n, v in values.items() if n not in known and getattr(v, "present", False)}
        return f"{self.place(file, name, tuple(sorted({**known, **present}.items(), key=lambda item: item[0])))}({rest})"

    def place(self, file: _File, name: str, known: Known) -> str:
        """Of the hash of a name."""
        key = (file.id, name, repr(known))
        self.references.setdefault(key, (file, name, known, key[:2]))
        return f"⟪hash {list(self.references).index(key)}⟫"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _defaults(args: ast.arguments) -> dict[str, ast.expr]:
    positional = [*args.posonlyargs, *args.args]
    found = dict(zip((a.arg for a in positional[len(positional) - len(args.defaults) :]), args.defaults, strict=True))
    found |= {a.arg: d for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is not None}
    return {n: Folder({}, set()).visit(copied(d)) for n, d in found.items()}


