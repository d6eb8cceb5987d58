"""The head of a `.cu` file: TOML in its first comment, read and checked. docs/head.md describes the form."""

from __future__ import annotations

import ast
import itertools
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rooftop.lab.expressions import ExpressionError, Let, TensorFacts, evaluate, integer, names
from rooftop.lab.predictions import refused
from rooftop.lab.spec import DTYPES, Launch, Meta, Problem

C_TYPES: Mapping[str, str] = {
    "i32": "int", "u32": "unsigned int", "i64": "long long", "u64": "unsigned long long", "f32": "float", "f64": "double", "bool": "bool",
}  # fmt: skip
_RANGE = {"i32": (-(2**31), 2**31 - 1), "u32": (0, 2**32 - 1), "i64": (-(2**63), 2**63 - 1), "u64": (0, 2**64 - 1)}
_TENSOR = re.compile(r"^\s*(\w+)\s*:\s*(\w+)\s*\[([^\]]*)\]\s*(\?)?\s*$")
_NUMBER = re.compile(r"^\s*(\w+)\s*:\s*(\w+)\s*(?:=\s*(.+?))?\s*$")
_BRACES = re.compile(r"\{([^{}]*)\}")
_OPEN = re.compile(r"\s*/\*\s*rooftop\b")


class HeadError(ValueError):
    """A head is missing, malformed or does not fit the op. The text names the file and what is accepted."""


class Unfit(HeadError):
    """A problem that the head does not take: not supported, where any other HeadError says that the head is wrong."""


@dataclass(frozen=True)
class TensorArg:
    name: str
    dtype: str  # of DTYPES, or "T"
    dims: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True)
class NumberArg:
    name: str
    type: str
    expression: str


@dataclass(frozen=True)
class LaunchHead:
    kernel: str
    grid: tuple[str, ...]
    block: tuple[str, ...]
    when: str | None = None
    cluster: tuple[str, ...] = ()
    shared: str = "0"
    args: tuple[TensorArg | NumberArg, ...] | None = None


@dataclass(frozen=True)
class Head:
    """A head as read. `source` is the whole file; `line` the one on which the code after the head begins."""

    path: str
    source: str
    op: str | None = None
    idea: str = ""
    predict: Mapping[str, float] = field(default_factory=dict)
    limit: str = ""
    arch: int = 80
    dtypes: tuple[str, ...] = ()
    args: tuple[TensorArg | NumberArg, ...] = ()
    requires: Mapping[str, str] = field(default_factory=dict)
    demands: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    configs: tuple[Mapping[str, Any], ...] = ()
    choices: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    valid: str | None = None
    prefer: str | None = None
    scratch: Mapping[str, TensorArg] = field(default_factory=dict)
    launches: tuple[LaunchHead, ...] = ()
    implementation: str | None = None
    let: Mapping[str, str] = field(default_factory=dict)

    # -- what a call comes out as -------------------------------------------------------------------------------

    def scope(self, problem: Problem, config: Mapping[str, Any]) -> dict[str, Any]:
        """The names of every expression for this problem. Raises HeadError where the tensors do not fit `args`."""
        scope: dict[str, Any] = {"sms": problem.device.sms, "card": problem.device, "arch": problem.device.arch, **dict(problem.options), **config}
        scope.update({name: Let(text) for name, text in self.let.items()})
        for arg in self.args:
            if isinstance(arg, TensorArg) and arg.name not in self.scratch:
                self._bind(arg, problem, scope)
        scope.update({k: TensorFacts(m) for k, m in problem.tensors})
        return scope

    def _bind(self, arg: TensorArg, problem: Problem, scope: dict[str, Any]) -> None:
        known = dict(problem.tensors)
        if arg.name not in known:
            raise HeadError(f"{self.path}: args name a tensor {arg.name!r}; {problem.op} has {', '.join(known)}")
        meta = known[arg.name]
        if meta is None:
            if not arg.optional:
                raise Unfit(f"{self.path}: {arg.name} is absent, and args do not mark it optional with a '?'")
            return
        if len(meta.shape) != len(arg.dims):
            raise Unfit(f"{arg.name} has {len(meta.shape)} dimensions; the kernel takes {len(arg.dims)}: [{', '.join(arg.dims)}]")
        if arg.dtype == "T":
            if scope.setdefault("T", meta.dtype) != meta.dtype:
                raise Unfit(f"{arg.name} is {meta.dtype}, other tensors of type T are {scope['T']}")
            if self.dtypes and meta.dtype not in self.dtypes:
                raise Unfit(f"{arg.name} is {meta.dtype}; the kernel takes {', '.join(self.dtypes)}")
        elif meta.dtype != arg.dtype:
            raise Unfit(f"{arg.name} is {meta.dtype}; the kernel takes {arg.dtype}")
        for name, extent in zip(arg.dims, meta.shape, strict=True):
            want = int(name) if name.isdigit() else scope.setdefault(name, extent)
            if want != extent and name.isdigit():
                raise Unfit(f"{arg.name} is [{', '.join(map(str, meta.shape))}] as the kernel sees it; it takes [{', '.join(arg.dims)}]")
            if want != extent:
                raise Unfit(f"{arg.name}[{', '.join(arg.dims)}]: {name} is {want} elsewhere and {extent} here")

    def supports(self, problem: Problem) -> str | None:
        """None, or the reason why this kernel cannot take the problem. Raises HeadError where no problem could be taken: the head is wrong."""
        if problem.device.arch < self.arch:
            return f"needs sm_{self.arch} or later; {problem.device.name} is sm_{problem.device.arch}"
        self._known(problem)
        try:
            scope = self.scope(problem, self.choose(problem))
            for condition, why in self.requires.items():
                if not evaluate(condition, scope):
                    return f"{why} ({condition})"
            self.launches_for(problem, self.choose(problem))
        except (Unfit, ExpressionError) as error:
            return str(error)
        return None

    def _known(self, problem: Problem) -> None:
        """Raises HeadError for a name in an expression that nothing binds."""
        letters = {d for arg in self.args if isinstance(arg, TensorArg) for d in arg.dims}
        given = {n for n, _ in (*problem.tensors, *problem.options)}
        known = {"sms", "card", "arch", "T", *letters, *self.config, *self.let, *self.scratch, *given}
        for where, text in self._expressions():
            try:
                used = names(text)
            except ExpressionError as error:
                raise HeadError(f"{self.path}: {where}: {error}") from None
            if unknown := used - known - set(problem.late):
                close = get_close_matches(min(unknown), known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"
                raise HeadError(f"{self.path}: {where}: {text!r} names {min(unknown)!r}{hint}")

    def _expressions(self) -> Iterator[tuple[str, str]]:
        """Every expression, and where it stands."""
        for name, text in self.let.items():
            yield f"let.{name}", text
        yield from (("requires", text) for text in self.requires)
        yield from (("[[choice]] when", when) for when, _ in self.choices)
        yield from ((key, text) for key, text in (("valid", self.valid), ("prefer", self.prefer)) if text is not None)
        for name, arg in self.scratch.items():
            yield from ((f"scratch.{name}", d) for d in arg.dims)
        for number, launch in enumerate(self.launches, 1):
            for key, texts in (("grid", launch.grid), ("block", launch.block), ("cluster", launch.cluster), ("shared", (launch.shared,))):
                yield from ((f"[[launch]] {number}: {key}", text) for text in texts)
            if launch.when is not None:
                yield f"[[launch]] {number}: when", launch.when
            yield from ((f"[[launch]] {number}: kernel", inside) for inside in _BRACES.findall(launch.kernel))
            yield from (("args", arg.expression) for arg in launch.args or self.args if isinstance(arg, NumberArg))

    def prefers(self, problem: Problem) -> bool:
        """Whether `prefer` holds for a problem that this kernel supports."""
        return self.prefer is not None and self.supports(problem) is None and self._holds("prefer", self.prefer, problem, self.choose(problem))

    def _holds(self, key: str, condition: str, problem: Problem, config: Mapping[str, Any]) -> bool:
        try:
            return bool(evaluate(condition, self.scope(problem, config)))
        except ExpressionError as error:
            raise HeadError(f"{self.path}: {key}: {error}") from None

    def choose(self, problem: Problem) -> Mapping[str, Any]:
        """The constants for this problem: the first `[[choice]]` that holds, else the defaults."""
        if self.choices:
            scope = self.scope(problem, self.config)
            for when, constants in self.choices:
                if evaluate(when, scope):
                    return {**self.config, **constants}
        return self.config

    def is_valid(self, problem: Problem, config: Mapping[str, Any]) -> bool:
        if self.valid is not None and not self._holds("valid", self.valid, problem, config):
            return False
        return all(launch.shared <= problem.device.shared_per_block for launch in self.launches_for(problem, config))

    def scratch_for(self, problem: Problem, config: Mapping[str, Any]) -> dict[str, Meta]:
        scope = self.scope(problem, config)
        return {
            name: Meta(tuple(integer(d, scope) for d in arg.dims), scope["T"] if arg.dtype == "T" else arg.dtype)
            for name, arg in self.scratch.items()
        }

    def launches_for(self, problem: Problem, config: Mapping[str, Any]) -> list[Launch]:
        """The launches of one call, in order. Raises HeadError or ExpressionError where the geometry does not come out."""
        scope = self.scope(problem, config)
        scope.update({k: TensorFacts(m) for k, m in self.scratch_for(problem, config).items()})
        return [
            self._launch(head, scope, problem.late)
            for head in self.launches
            if head.when is None or evaluate(head.when, scope)
        ]

    def _launch(self, head: LaunchHead, scope: Mapping[str, Any], late: tuple[str, ...]) -> Launch:
        def extents(texts: Sequence[str], what: str, most: Sequence[int]) -> tuple[int, ...]:
            values = tuple(integer(t, scope) for t in texts)
            for text, value, limit in zip(texts, values, most, strict=False):
                if not 1 <= value <= limit:
                    raise Unfit(f"{self.path}: {what} {text!r} comes out as {value}; it must be 1 to {limit}")
            return values

        block = extents(head.block, "block", (1024, 1024, 64))
        threads = block[0] * (block[1] if len(block) > 1 else 1) * (block[2] if len(block) > 2 else 1)
        if threads > 1024:
            raise Unfit(f"{self.path}: a block of {threads} threads; at most 1024")
        args: dict[str, Any] = {}
        types: list[str] = []
        for arg in self.args if head.args is None else head.args:
            if isinstance(arg, TensorArg):
                facts = scope.get(arg.name)
                present = isinstance(facts, TensorFacts) and facts.meta is not None
                args[arg.name] = arg.name if present else None
                types.append("ptr")
            else:
                args[arg.name] = arg.expression if arg.expression in late else self._number(arg, scope)
                types.append(arg.type)
        return Launch(
            kernel=self.kernel_name(head.kernel, scope), grid=extents(head.grid, "grid", (2**31 - 1, 65535, 65535)),
            args=args, types=tuple(types), block=block, cluster=extents(head.cluster, "cluster", (16, 16, 16)),
            shared=integer(head.shared, scope),
        )  # fmt: skip

    def _number(self, arg: NumberArg, scope: Mapping[str, Any]) -> int | float | bool:
        if arg.type in ("f32", "f64"):
            return float(evaluate(arg.expression, scope))
        if arg.type == "bool":
            return bool(evaluate(arg.expression, scope))
        value = integer(arg.expression, scope)
        low, high = _RANGE[arg.type]
        if not low <= value <= high:
            raise Unfit(f"{self.path}: {arg.name} = {value} does not fit {arg.type}")
        return value

    def kernel_name(self, template: str, scope: Mapping[str, Any]) -> str:
        """`softmax<{T}, {threads}>` with dtypes as C++ types and everything in braces evaluated."""

        def fill(match: re.Match[str]) -> str:
            value = evaluate(match[1], scope)
            if isinstance(value, str):
                return DTYPES[value].cuda
            return str(value).lower() if isinstance(value, bool) else str(value)

        return _BRACES.sub(fill, template)


def read(path: Path) -> str:
    """The text of a kernel's file. Raises HeadError with the line where it is not UTF-8."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise HeadError(f"{path}:{line}: not UTF-8 ({error.reason}); save the file as UTF-8") from None


def split(text: str, path: str) -> tuple[str, int]:
    """The TOML of the head and the line number on which it starts (from 1)."""
    match = _OPEN.match(text)
    if not match:
        raise HeadError(f"{path}: no head: the file must begin with a comment `/* rooftop ... */` (docs/head.md)")
    end = text.find("*/", match.end())
    if end < 0:
        raise HeadError(f"{path}: the head's comment is not closed with */")
    return text[match.end() : end], text.count("\n", 0, match.end()) + 1


def parse(text: str, path: str | Path, *, toml: bool = False) -> Head:
    """The head of a `.cu` file's text (or, with `toml`, of a rung that is a head alone).

    Raises HeadError with the file, the line where known, and what is accepted."""
    where = str(path)
    body, first = (text, 1) if toml else split(text, where)
    try:
        data = tomllib.loads(body)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        line = int(found[1]) + first - 1 if found else first
        raise HeadError(f"{where}:{line}: the head is not valid TOML: {error}") from None
    try:
        return _build(data, text, where, toml)
    except ExpressionError as error:
        raise HeadError(f"{where}: {error}") from None


def of_python(text: str, path: str | Path) -> Head:
    """The head of a rung in Python: the plain values of IDEA, PREDICT and LIMIT, read without importing it. Raises HeadError without an IDEA."""
    found: dict[str, Any] = {}
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise HeadError(f"{path}:{error.lineno}: not Python: {error.msg}") from None
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in ("IDEA", "PREDICT", "LIMIT"):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                raise HeadError(f"{path}:{node.lineno}: {node.targets[0].id} must be a plain value") from None
    if not isinstance(found.get("IDEA"), str):
        raise HeadError(f"{path}: a rung in Python says its idea: IDEA = \"...\", and PREDICT = {{\"speedup\": 1.5}}, LIMIT = \"...\"")
    _predictable(found.get("PREDICT", {}), path)
    return Head(path=str(path), source=text, idea=found["IDEA"], predict=found.get("PREDICT", {}), limit=found.get("LIMIT", ""))


_KEYS = {
    "op": str, "idea": str, "predict": dict, "limit": str, "arch": int, "dtypes": list, "args": list, "requires": dict, "demands": dict,
    "config": dict, "configs": list, "choice": list, "valid": str, "prefer": str, "scratch": dict, "launch": list, "implementation": str,
    "let": dict,
}  # fmt: skip
_LAUNCH_KEYS = {"kernel", "grid", "block", "when", "cluster", "shared", "args"}


def _build(data: dict[str, Any], source: str, path: str, toml: bool) -> Head:
    for key, value in data.items():
        if key not in _KEYS:
            close = get_close_matches(key, _KEYS, 1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; it may hold {', '.join(_KEYS)}"
            raise HeadError(f"{path}: the head has an unknown key {key!r}{hint}")
        if not isinstance(value, _KEYS[key]):
            raise HeadError(f"{path}: {key} must be a {_KEYS[key].__name__}, not {type(value).__name__}")
    if toml:
        if "implementation" not in data or "launch" in data:
            raise HeadError(f"{path}: a rung that is a .toml names the shipped kernel (implementation = ...) and launches nothing itself")
    elif not data.get("launch") or "args" not in data:
        raise HeadError(f"{path}: a head needs args and at least one [[launch]]")
    for dtype in data.get("dtypes", []):
        if dtype not in DTYPES:
            raise HeadError(f"{path}: dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    _predictable(data.get("predict", {}), path)
    for key in ("has", "lacks"):
        listed = data.get("demands", {}).get(key, [])
        if not isinstance(listed, list) or not all(isinstance(x, str) for x in listed):
            raise HeadError(f"{path}: demands.{key} must be a list of instructions such as [\"LDG.128\"], not {listed!r}")
    if not isinstance(data.get("demands", {}).get("spills", 0), int):
        raise HeadError(f"{path}: demands.spills must be a number of bytes, not {data['demands']['spills']!r}")
    for condition, why in data.get("requires", {}).items():
        if not isinstance(why, str):
            raise HeadError(f"{path}: requires {condition!r} must say why in a text, not {why!r}")
    known = {"has", "lacks", "spills"}
    if unknown := set(data.get("demands", {})) - known:
        raise HeadError(f"{path}: demands has {', '.join(sorted(unknown))}; it may hold {', '.join(sorted(known))}")
    config = data.get("config", {})
    choices = []
    for choice in data.get("choice", []):
        constants = {k: v for k, v in choice.items() if k != "when"}
        if "when" not in choice or set(constants) - set(config):
            raise HeadError(f"{path}: a [[choice]] needs `when` and only constants of [config] ({', '.join(config)})")
        _reads(choice["when"], f"{path}: [[choice]] when")
        choices.append((choice["when"], constants))
    for extra in data.get("configs", []):
        if set(extra) - set(config):
            raise HeadError(f"{path}: configs set {', '.join(sorted(set(extra) - set(config)))}, which [config] does not have")
    for condition in data.get("requires", {}):
        names(condition)
    for key in ("valid", "prefer"):
        if key in data:
            names(data[key])
    for name, text in data.get("let", {}).items():
        if not name.isidentifier() or name in config:
            raise HeadError(f"{path}: let.{name}: a name of its own is needed, which no constant of [config] has")
        _reads(text, f"{path}: let.{name}")
    scratch = {}
    for name, text in data.get("scratch", {}).items():
        parsed = _arg(f"{name}: {text}", path, extents=True)
        if not isinstance(parsed, TensorArg):
            raise HeadError(f"{path}: scratch.{name} must read like \"f32[R, 8]\", not {text!r}")
        scratch[name] = parsed
    further = (one for extra in data.get("configs", []) for one in _combinations(extra))
    return Head(
        path=path, source=source, op=data.get("op"), idea=data.get("idea", ""), predict=data.get("predict", {}), limit=data.get("limit", ""),
        arch=data.get("arch", 80), dtypes=tuple(data.get("dtypes", [])), args=tuple(_arg(a, path) for a in data.get("args", [])),
        requires=data.get("requires", {}), demands=data.get("demands", {}), config=config,
        configs=tuple({**config, **one} for one in further), choices=tuple(choices), valid=data.get("valid"), prefer=data.get("prefer"),
        scratch=scratch, launches=tuple(_launch_heads(data.get("launch", []), path)), implementation=data.get("implementation"),
        let=data.get("let", {}),
    )  # fmt: skip


def _predictable(predict: Mapping[str, Any], path: str | Path) -> None:
    for name, number in predict.items():
        if why := refused(name):
            raise HeadError(f"{path}: predict.{name}: {why}")
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise HeadError(f"{path}: predict.{name} must be a number, not {number!r}")
        if not math.isfinite(number):
            raise HeadError(f"{path}: predict.{name} is {number}; it must be finite")


def _launch_heads(tables: list[dict[str, Any]], path: str) -> Iterator[LaunchHead]:
    for number, table in enumerate(tables, 1):
        where = f"{path}: [[launch]] {number}"
        if unknown := set(table) - _LAUNCH_KEYS:
            raise HeadError(f"{where} has {', '.join(sorted(unknown))}; it may hold {', '.join(sorted(_LAUNCH_KEYS))}")
        if missing := {"kernel", "grid", "block"} - set(table):
            raise HeadError(f"{where} lacks {', '.join(sorted(missing))}")

        def texts(key: str, table: dict[str, Any] = table, where: str = where) -> tuple[str, ...]:
            value = table.get(key, [])
            if not isinstance(value, list) or len(value) > 3 or (not value and key in table):
                raise HeadError(f"{where}: {key} must be a list of one to three expressions, not {value!r}")
            for item in value:
                names(str(item))
            return tuple(str(item) for item in value)

        if "when" in table:
            _reads(table["when"], f"{where}: when")
        if not isinstance(table["kernel"], str):
            raise HeadError(f"{where}: kernel must be a text such as \"softmax<{{T}}>\", not {table['kernel']!r}")
        for inside in _BRACES.findall(table["kernel"]):
            names(inside)
        shared = str(table.get("shared", 0))
        names(shared)
        for key, most in (("grid", (2**31 - 1, 65535, 65535)), ("block", (1024, 1024, 64)), ("cluster", (16, 16, 16))):
            for text, limit in zip(texts(key), most, strict=False):
                if not names(text) and not 1 <= integer(text, {}) <= limit:
                    raise HeadError(f"{where}: {key} {text[:40]!r} is out of range; it must be 1 to {limit}")
        yield LaunchHead(
            kernel=table["kernel"], grid=texts("grid"), block=texts("block"), cluster=texts("cluster"), when=table.get("when"), shared=shared,
            args=tuple(_arg(a, path) for a in table["args"]) if "args" in table else None,
        )  # fmt: skip


def _reads(text: Any, where: str) -> None:
    if not isinstance(text, str):
        raise HeadError(f"{where} must be a condition, not {text!r}")
    names(text)


def _combinations(constants: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each set of constants that an entry of `configs` stands for: a list stands for each of its values, the last name's changing fastest."""
    several = [value if isinstance(value, list) else [value] for value in constants.values()]
    for values in itertools.product(*several):
        yield dict(zip(constants, values, strict=True))


def _arg(text: Any, path: str, *, extents: bool = False) -> TensorArg | NumberArg:
    """A parameter. Its dimensions bind shape names; with `extents` (scratch, which the caller makes) they are expressions."""
    if not isinstance(text, str):
        raise HeadError(f"{path}: an arg must be a text such as \"x: f32[M, N]\", not {text!r}")
    if found := _TENSOR.match(text):
        name, dtype, dims, optional = found.groups()
        if dtype != "T" and dtype not in DTYPES:
            raise HeadError(f"{path}: arg {text!r}: {dtype!r} is not T or one of {', '.join(DTYPES)}")
        parts = tuple(d.strip() for d in dims.split(",") if d.strip())
        for part in parts:
            if extents:
                names(part)
            elif not (part.isascii() and (part.isidentifier() or part.isdigit())):
                raise HeadError(f"{path}: arg {text!r}: dimension {part!r} is neither a shape name nor a whole number")
        return TensorArg(name, dtype, parts, bool(optional))
    if found := _NUMBER.match(text):
        name, kind, expression = found.groups()
        if kind not in C_TYPES:
            raise HeadError(f"{path}: arg {text!r}: {kind!r} is not one of {', '.join(C_TYPES)} (a tensor is written x: f32[M, N])")
        names(expression or name)
        return NumberArg(name, kind, expression or name)
    raise HeadError(f"{path}: arg {text!r} is neither \"name: dtype[dims]\" nor \"name: type\" nor \"name: type = expression\"")
