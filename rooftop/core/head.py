"""Evaluates a kernel's head for a problem: whether it is supported, with which constants, scratch memory and launches.

`rooftop.core.head_text` reads and checks the text; docs/head.md describes the format."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from math import prod
from typing import Any

from rooftop.core import helpers, tensor_maps
from rooftop.core.expressions import ExpressionError, Scope, compiled, evaluate, integer, names, strided
from rooftop.core.head_parts import BRACES, RANGES, Arg, HeadError, LaunchHead, MapArg, NumberArg, TensorArg, Unfit
from rooftop.core.spec import DTYPES, Launch, Meta, Problem, TensorMap, contiguous_strides

__all__ = ["BRACES", "Arg", "Head", "HeadError", "LaunchHead", "MapArg", "NumberArg", "TensorArg", "Unfit"]

class _Evaluated:
    """The evaluated parts of a head for one problem. Each is computed once, since one call needs the same parts several times."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.tensors = dict(problem.tensors)
        self.bound: dict[str, Any] | None = None  # the values of names, without those of a config
        self.scopes: dict[str, Scope] = {}
        self.chosen: Mapping[str, Any] | None = None
        self.support_known = False
        self.refusal: str | None = None
        self.broken: dict[str, str | None] = {}
        self.scratch: dict[str, dict[str, Meta]] = {}
        self.launches: dict[str, list[Launch]] = {}


@dataclass(frozen=True)
class Head:
    """A parsed head. `source` is the whole file; `line` is the line on which the code after the head starts."""

    path: str
    source: str
    folders: helpers.Folders = (helpers.SHARED,)  # of its headers
    op: str | None = None
    idea: str = ""
    predict: Mapping[str, float] = field(default_factory=dict)
    limit: str = ""
    arch: int = 80
    dtypes: tuple[str, ...] = ()
    args: tuple[Arg, ...] = ()
    tensors: tuple[TensorArg, ...] = ()  # tensors that the kernel has no pointer parameter for; they bind shape names too
    requires: Mapping[str, str] = field(default_factory=dict)
    demands: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    configs: tuple[Mapping[str, Any], ...] = ()
    choices: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    valid: str | None = None
    scratch: Mapping[str, TensorArg] = field(default_factory=dict)
    zeroed: tuple[str, ...] = ()  # scratch tensors that must be zero when the first launch starts
    launches: tuple[LaunchHead, ...] = ()
    implementation: str | None = None
    let: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()  # optional tensors of the op that the kernel does not support: calls that have one are refused
    # the ops that the file serves, if it is not the one of its name; optional tensors of `args` may then be absent from an op
    ops: tuple[str, ...] = ()
    python: tuple[str, ...] = ()  # functions that the .py file of the same stem defines (rooftop.core.backends.cuda)

    # -- evaluated for a problem --------------------------------------------------------------------------------

    @cached_property
    def _located_lets(self) -> Mapping[str, tuple[str, str]]:
        return {name: (text, f"let.{name}") for name, text in self.let.items()}

    def _evaluated(self, problem: Problem) -> _Evaluated:
        """The evaluated parts for `problem`; those of the last problem are cached. Problems are immutable, so identity is enough to
        recognise one."""
        last: _Evaluated | None = self.__dict__.get("_last")
        if last is None or last.problem is not problem:
            last = self.__dict__["_last"] = _Evaluated(problem)
        return last

    def scope(self, problem: Problem, config: Mapping[str, Any]) -> Scope:
        """The values of all names in expressions for this problem. Raises HeadError if the tensors do not match `args`."""
        known: _Evaluated | None = self.__dict__.get("_last")  # asked several times a call, so not by a call
        if known is None or known.problem is not problem:
            known = self._evaluated(problem)
        key = repr(config)
        if key not in known.scopes:
            if self._letters.isdisjoint(config) and known.tensors.keys().isdisjoint(config):
                if known.bound is None:
                    known.bound = self._bound(problem, {})
                known.scopes[key] = Scope({**known.bound, **config}, self._located_lets)
            else:  # a constant has the name of a dimension, which must then have its value
                known.scopes[key] = Scope(self._bound(problem, config), self._located_lets)
        return known.scopes[key]

    @cached_property
    def _optional(self) -> tuple[str, ...]:
        """Tensors that one of several ops may not have."""
        listed = (*self.args, *self.tensors) if self.ops else ()
        return tuple(arg.name for arg in listed if isinstance(arg, TensorArg) and arg.optional)

    @cached_property
    def _letters(self) -> frozenset[str]:
        """The names that get their values from tensors: dimensions, the type T, the tensors themselves."""
        listed = [arg for arg in (*self.args, *self.tensors) if isinstance(arg, TensorArg)]
        return frozenset({"T", *(d for arg in listed for d in arg.dims), *(arg.name for arg in listed)})

    def _bound(self, problem: Problem, config: Mapping[str, Any]) -> dict[str, Any]:
        """The values of all names but those of `let`."""
        device = problem.device
        values = {"sms": device.sms, "card": device, "arch": device.arch, "op": problem.op, **dict(problem.options), **config}
        known = {**dict.fromkeys(self._optional), **dict(problem.tensors)}
        for arg in self._bound_args:
            if arg.name not in known:
                raise HeadError(f"{self.path}: args name a tensor {arg.name!r}; {problem.op} has {', '.join(known)}")
            meta = known[arg.name]
            if meta is None:
                if not arg.optional:
                    raise Unfit(f"{self.path}: {arg.name} is absent, and args do not mark it optional with a '?'")
                continue
            if len(meta.shape) != len(arg.dims):
                raise Unfit(f"{arg.name} has {len(meta.shape)} dimensions; the kernel takes {len(arg.dims)}: [{', '.join(arg.dims)}]")
            if arg.dtype == "T":
                if values.setdefault("T", meta.dtype) != meta.dtype:
                    raise Unfit(f"{arg.name} is {meta.dtype}, other tensors of type T are {values['T']}")
                if self.dtypes and meta.dtype not in self.dtypes:
                    raise Unfit(f"{arg.name} is {meta.dtype}; the kernel takes {', '.join(self.dtypes)}")
            elif meta.dtype != arg.dtype:
                raise Unfit(f"{arg.name} is {meta.dtype}; the kernel takes {arg.dtype}")
            if not self.python and arg.name not in self.strided and not meta.contiguous:
                raise Unfit(
                    f"{arg.name} has shape {list(meta.shape)} and strides {list(meta.strides)}; a head that does not name stride({arg.name}, ...) takes it "
                    f'contiguous, with strides {list(contiguous_strides(meta.shape))}: pass {arg.name}.contiguous(), or add "i64 = stride({arg.name}, 0)" '
                    "to args"
                )
            for name, extent in zip(arg.dims, meta.shape, strict=True):
                want = int(name) if name.isdigit() else values.setdefault(name, extent)
                if want != extent and name.isdigit():
                    raise Unfit(f"{arg.name} is [{', '.join(map(str, meta.shape))}] as the kernel sees it; it takes [{', '.join(arg.dims)}]")
                if want != extent:
                    raise Unfit(f"{arg.name}[{', '.join(arg.dims)}]: {name} is {want} elsewhere and {extent} here")
        values.update(known)
        return values

    @cached_property
    def _bound_args(self) -> tuple[TensorArg, ...]:
        """The tensors whose shapes name dimensions."""
        return tuple(arg for arg in (*self.args, *self.tensors) if isinstance(arg, TensorArg) and arg.name not in self.scratch)

    def supports(self, problem: Problem) -> str | None:
        """None, or the reason why this kernel does not support the problem. Raises HeadError if the head itself is wrong, so that no
        problem could be supported."""
        evaluated = self._evaluated(problem)
        if not evaluated.support_known:
            evaluated.refusal = self._refusal(problem)
            evaluated.support_known = True
        return evaluated.refusal

    def _refusal(self, problem: Problem) -> str | None:
        if reason := self.refuses(problem):
            return reason
        try:
            config = self.choose(problem)
            reason = self.breaks(problem, config)
            if reason is None:
                self.launches_for(problem, config)
        except (Unfit, ExpressionError) as error:
            return str(error)
        return reason

    def refuses(self, problem: Problem, words: frozenset[str] = frozenset()) -> str | None:
        """None, or why the kernel does not support the card or the tensors, whatever the constants. `words`: names of parameters that its
        Python file reads. Raises like `supports`."""
        if problem.device.arch < self.arch:
            return f"needs sm_{self.arch} or later; {problem.device.name} is sm_{problem.device.arch}"
        self._check_names(problem)
        if problem.extra and (missing := [name for name in problem.extra if name not in self._named and name not in words]):
            return f"the kernel has no parameter {' and no '.join(missing)}, which does not have its default in this call"
        if self.without and (given := [name for name in self.without if problem.get(name) is not None]):
            return f"the kernel does not support {' and '.join(given)}"
        try:
            self.scope(problem, self.config)
        except Unfit as error:
            return str(error)
        return None

    def complete(self, op: str, optional: Sequence[str], later: Collection[str] = ()) -> None:
        """Raises HeadError if the head does not mention an optional tensor of its op: a call with that tensor would give a wrong result.
        `later`: those with a default in the reference, without which a kernel need not be written (`refuses`)."""
        if unknown := [n for n in self.without if n not in optional]:
            raise HeadError(
                f"{self.path}: without lists {', '.join(unknown)}; optional tensors of {op} are {', '.join(optional) or 'none'}"
            )
        missing = [n for n in optional if n not in self._named and n not in self.without and n not in later]
        if missing and not self.python:
            listed = ", ".join(f'"{n}"' for n in missing)
            raise HeadError(
                f"{self.path}: the head does not mention {' and '.join(missing)}, which a call of {op} may have: list "
                f"{'it' if len(missing) == 1 else 'them'} "
                f"in args with a '?' at the end, or write without = [{listed}] to be checked on calls without"
            )

    def breaks(self, problem: Problem, config: Mapping[str, Any]) -> str | None:
        """None, or which condition of `requires` is violated with these constants. Raises ExpressionError if one cannot be evaluated."""
        scope = self.scope(problem, config)
        if not self.requires:
            return None
        evaluated, key = self._evaluated(problem), repr(config)
        if key not in evaluated.broken:
            broken = (f"{why} ({condition})" for condition, why in self.requires.items() if not evaluate(condition, scope))
            evaluated.broken[key] = next(broken, None)
        return evaluated.broken[key]

    @cached_property
    def _named(self) -> frozenset[str]:
        """The parameters of the op that the head uses: in its arguments, in those of its launches, and in its expressions."""
        arguments = {arg.name for args in (self.args, self.tensors, *(launch.args or () for launch in self.launches)) for arg in args}
        return frozenset(arguments.union(*(names(text) for _, text in self.expressions())))

    @cached_property
    def strided(self) -> frozenset[str]:
        """The tensors whose strides the head speaks of, or that are copied by a tensor map, which has them. The others must be contiguous,
        unless Python of the file's launches its kernels."""
        listed = {
            arg.tensor for args in (self.args, *(launch.args or () for launch in self.launches)) for arg in args if isinstance(arg, MapArg)
        }
        todo = [name for _, text in self.expressions() for name in strided(text)]
        while todo:
            if (name := todo.pop()) not in listed:
                listed.add(name)
                todo += names(self.let[name]) if name in self.let else ()
        return frozenset(listed)

    @cached_property
    def _checked(self) -> set[tuple[tuple[str, ...], ...]]:
        return set()

    def _check_names(self, problem: Problem) -> None:
        """Raises HeadError if an expression uses an undefined name."""
        what = (tuple(dict(problem.tensors)), tuple(dict(problem.options)), problem.runtime_options)
        if what in self._checked:
            return
        letters = {d for arg in (*self.args, *self.tensors) if isinstance(arg, TensorArg) for d in arg.dims}
        given = {*what[0], *what[1]}
        if clashes := given & set(self.let):
            raise HeadError(f"{self.path}: let.{min(clashes)}: {problem.op} has a tensor or an option of that name")
        known = {"sms", "card", "arch", "T", "op", *self._optional, *letters, *self.config, *self.let, *self.scratch, *given}
        for where, text in self.expressions():
            try:
                used = names(text)
            except ExpressionError as error:
                raise HeadError(f"{self.path}: {where}: {error}") from None
            if unknown := used - known - set(problem.runtime_options):
                close = get_close_matches(min(unknown), known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"
                raise HeadError(f"{self.path}: {where}: {text!r} names {min(unknown)!r}{hint}")
        for arg in (a for args in (self.args, *(launch.args or () for launch in self.launches)) for a in args):
            if isinstance(arg, MapArg) and arg.tensor not in {*what[0], *self.scratch}:
                raise HeadError(f"{self.path}: {arg.name} is a map of {arg.tensor!r}; {problem.op} has {', '.join(what[0])}")
        self._checked.add(what)

    def expressions(self) -> Iterator[tuple[str, str]]:
        """Every expression, and its location."""
        yield from ((f"let.{name}", text) for name, text in self.let.items())
        yield from (("requires", text) for text in self.requires)
        yield from (("[[choice]] when", when) for when, _ in self.choices)
        yield from ((key, text) for key, text in (("valid", self.valid),) if text is not None)
        for name, arg in self.scratch.items():
            yield from ((f"scratch.{name}", d) for d in arg.dims)
        for number, launch in enumerate(self.launches, 1):
            for key, texts in (("grid", launch.grid), ("block", launch.block), ("cluster", launch.cluster), ("shared", (launch.shared,))):
                yield from ((f"[[launch]] {number}: {key}", text) for text in texts)
            if launch.when is not None:
                yield f"[[launch]] {number}: when", launch.when
            yield from ((f"[[launch]] {number}: kernel", inside) for inside in BRACES.findall(launch.kernel))
            yield from self._in_args(launch.args or self.args)
        if not self.launches:
            yield from self._in_args(self.args)

    @staticmethod
    def _in_args(args: tuple[Arg, ...]) -> Iterator[tuple[str, str]]:
        for arg in args:
            if isinstance(arg, NumberArg):
                yield "args", arg.expression
            elif isinstance(arg, MapArg):
                yield from (("args", text) for text in arg.expressions())

    def choose(self, problem: Problem) -> Mapping[str, Any]:
        """The constants for this problem: those of the first `[[choice]]` whose condition holds, else the defaults."""
        if not self.choices:
            return self.config
        evaluated = self._evaluated(problem)
        if evaluated.chosen is None:
            scope = self.scope(problem, self.config)
            fitting = ({**self.config, **constants} for when, constants in self.choices if evaluate(when, scope))
            evaluated.chosen = next(fitting, self.config)
        return evaluated.chosen

    def is_valid(self, problem: Problem, config: Mapping[str, Any]) -> bool:
        """Whether these constants satisfy `valid`."""
        try:
            return self.valid is None or bool(evaluate(self.valid, self.scope(problem, config)))
        except ExpressionError as error:
            raise HeadError(f"{self.path}: valid: {error}") from None

    def scratch_for(self, problem: Problem, config: Mapping[str, Any]) -> dict[str, Meta]:
        if not self.scratch:
            return {}
        evaluated, key = self._evaluated(problem), repr(config)
        if key not in evaluated.scratch:
            scope = self.scope(problem, config)
            evaluated.scratch[key] = {
                name: Meta(tuple(integer(d, scope) for d in arg.dims), scope["T"] if arg.dtype == "T" else arg.dtype)
                for name, arg in self.scratch.items()
            }
        return dict(evaluated.scratch[key])

    def launches_for(self, problem: Problem, config: Mapping[str, Any]) -> list[Launch]:
        """The launches of one call, in order. Raises HeadError or ExpressionError if the geometry cannot be evaluated."""
        evaluated, key = self._evaluated(problem), repr(config)
        if key not in evaluated.launches:
            scope = self._with_scratch(problem, config)
            evaluated.launches[key] = [
                self._launch(head, scope, problem.runtime_options)
                for head in self.launches
                if head.when is None or evaluate(head.when, scope)
            ]
        return list(evaluated.launches[key])

    def _with_scratch(self, problem: Problem, config: Mapping[str, Any]) -> Scope:
        scope = self.scope(problem, config)
        found = self.scratch_for(problem, config)
        return scope.with_(found) if found else scope

    def arguments(self, problem: Problem, config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The values of the parameters of `args` for this problem, and their types: the `args` and `types` of a launch."""
        return self._arguments(self.args, self._with_scratch(problem, config), problem.runtime_options)

    def _arguments(self, listed: Sequence[Arg], scope: Scope, runtime_options: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
        args: dict[str, Any] = {}
        types: list[str] = []
        for arg in listed:
            if isinstance(arg, TensorArg):
                args[arg.name] = arg.name if isinstance(scope.get(arg.name), Meta) else None
                types.append("ptr")
            elif isinstance(arg, MapArg):
                args[arg.name] = self._map(arg, scope)
                types.append("map")
            else:
                value, (low, high) = scope.get(arg.expression), RANGES.get(arg.type, (1, 0))
                if arg.expression in runtime_options:
                    args[arg.name] = arg.expression
                elif type(value) is int and low <= value <= high:  # a name, most often
                    args[arg.name] = value
                else:
                    args[arg.name] = self._number(arg, scope)
                types.append(arg.type)
        return args, tuple(types)

    def _map(self, arg: MapArg, scope: Scope) -> TensorMap | None:
        """The tensor map of an argument; None for an absent tensor: the kernel then gets zeros."""
        meta = scope[arg.tensor]
        if meta is None:
            return None
        made = TensorMap(
            arg.tensor, tuple(integer(n, scope) for n in arg.box), integer(arg.swizzle, scope), tuple(integer(n, scope) for n in arg.steps),
            arg.dtype, integer(arg.promote, scope), arg.fill,
        )
        if reason := tensor_maps.refused(made, meta):
            raise Unfit(f"{self.path}: {arg.name}: {reason}")
        return tensor_maps.settled(made, meta)

    def _launch(self, head: LaunchHead, scope: Scope, runtime_options: tuple[str, ...]) -> Launch:
        block = self._extents(head.block, "block", (1024, 1024, 64), scope)
        if prod(block) > 1024:
            raise Unfit(f"{self.path}: a block of {prod(block)} threads; at most 1024")
        args, types = self._arguments(self.args if head.args is None else head.args, scope, runtime_options)
        return Launch(
            kernel=self.kernel_name(head.kernel, scope), grid=self._extents(head.grid, "grid", (2**31 - 1, 65535, 65535), scope),
            args=args, types=types, block=block, cluster=self._extents(head.cluster, "cluster", (16, 16, 16), scope),
            shared=0 if head.shared == "0" else integer(head.shared, scope), pdl=head.pdl and scope["arch"] >= 90, cooperative=head.cooperative,
        )

    def _extents(self, texts: Sequence[str], what: str, most: Sequence[int], scope: Scope) -> tuple[int, ...]:
        values = tuple([int(t) if t.isdecimal() else integer(t, scope) for t in texts])
        for text, value, limit in zip(texts, values, most, strict=False):
            if not 1 <= value <= limit:
                raise Unfit(f"{self.path}: {what} {text!r} is {value}; it must be 1 to {limit}")
        return values

    def _number(self, arg: NumberArg, scope: Mapping[str, Any]) -> int | float | bool:
        try:
            value = compiled(arg.expression)(scope)  # type: ignore[misc]
        except Exception:  # not a simple case
            value = evaluate(arg.expression, scope)
        if arg.type in ("f32", "f64"):
            return float(value)
        if arg.type == "bool":
            return bool(value)
        if type(value) is not int:
            value = integer(arg.expression, scope)  # raises
        low, high = RANGES[arg.type]
        if not low <= value <= high:
            raise Unfit(f"{self.path}: {arg.name} = {value} does not fit {arg.type}")
        return value

    def kernel_name(self, template: str, scope: Mapping[str, Any]) -> str:
        """`softmax<{T}, {threads}>` with every expression in braces evaluated; dtypes as C++ types, another text (`op`) as it is."""

        def fill(match: re.Match[str]) -> str:
            value = evaluate(match[1], scope)
            if isinstance(value, str):
                return DTYPES[value].cuda if value in DTYPES else value
            return str(value).lower() if isinstance(value, bool) else str(value)

        return BRACES.sub(fill, template)
