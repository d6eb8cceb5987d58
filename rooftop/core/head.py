"""What the head of a kernel means for a problem: whether it is taken, with which constants, scratch memory and launches.

`rooftop.core.head_text` reads and checks the text; docs/head.md describes the form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from rooftop.core.expressions import ExpressionError, Let, TensorFacts, evaluate, integer, names
from rooftop.core.spec import DTYPES, Launch, Meta, Problem

_RANGE = {"i32": (-(2**31), 2**31 - 1), "u32": (0, 2**32 - 1), "i64": (-(2**63), 2**63 - 1), "u64": (0, 2**64 - 1)}
BRACES = re.compile(r"\{([^{}]*)\}")  # an expression in a kernel's name


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
    chained: bool = False
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
    let: Mapping[str, str] = field(default_factory=dict)  # the file's own and those of the headers that it includes
    inherited: Mapping[str, str] = field(default_factory=dict)  # names of `let` that are a header's: the header

    # -- what a call comes out as -------------------------------------------------------------------------------

    def scope(self, problem: Problem, config: Mapping[str, Any]) -> dict[str, Any]:
        """The names of every expression for this problem. Raises HeadError where the tensors do not fit `args`."""
        scope: dict[str, Any] = {"sms": problem.device.sms, "card": problem.device, "arch": problem.device.arch, **dict(problem.options), **config}
        scope.update({name: Let(text, self.place(name)) for name, text in self.let.items()})
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
            config = self.choose(problem)
            scope = self.scope(problem, config)
            for condition, why in self.requires.items():
                if not evaluate(condition, scope):
                    return f"{why} ({condition})"
            self.launches_for(problem, config)
        except (Unfit, ExpressionError) as error:
            return str(error)
        return None

    def _known(self, problem: Problem) -> None:
        """Raises HeadError for a name in an expression that nothing binds."""
        letters = {d for arg in self.args if isinstance(arg, TensorArg) for d in arg.dims}
        given = {n for n, _ in (*problem.tensors, *problem.options)}
        if twice := given & set(self.let):
            raise HeadError(f"{self.path}: {self.place(min(twice))}: {problem.op} has a tensor or an option of that name")
        known = {"sms", "card", "arch", "T", *letters, *self.config, *self.let, *self.scratch, *given}
        for where, text in self.expressions():
            try:
                used = names(text)
            except ExpressionError as error:
                raise HeadError(f"{self.path}: {where}: {error}") from None
            if unknown := used - known - set(problem.late):
                close = get_close_matches(min(unknown), known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"
                raise HeadError(f"{self.path}: {where}: {text!r} names {min(unknown)!r}{hint}")

    def place(self, name: str) -> str:
        """Where a name of `let` stands."""
        return f"{self.inherited[name]}: let.{name}" if name in self.inherited else f"let.{name}"

    def formulas(self) -> dict[str, str]:
        """The names of `let` that count: the file's own, and of a header's those that are asked for."""
        found = {name for name in self.let if name not in self.inherited}
        todo = [*(text for _, text in self.uses()), *(self.let[name] for name in found)] if self.inherited else []
        while todo:
            new = names(todo.pop()) & set(self.inherited) - found
            found |= new
            todo += [self.let[name] for name in new]
        return {name: text for name, text in self.let.items() if name in found}

    def expressions(self) -> Iterator[tuple[str, str]]:
        """Every expression that counts, and where it stands."""
        yield from ((self.place(name), text) for name, text in self.let.items() if name not in self.inherited)
        yield from self.uses()
        yield from ((self.place(name), text) for name, text in self.formulas().items() if name in self.inherited)

    def uses(self) -> Iterator[tuple[str, str]]:
        """Every expression but those of `let`, and where it stands."""
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
            yield from ((f"[[launch]] {number}: kernel", inside) for inside in BRACES.findall(launch.kernel))
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
            shared=integer(head.shared, scope), chained=head.chained and scope["arch"] >= 90,
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

        return BRACES.sub(fill, template)
