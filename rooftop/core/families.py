"""Plans for sizes not seen before, from the plan of another size of the same family.

Calls that differ in their leading extents alone (rows of a batch, tokens, keys of a cache) are a family. The way from such a call to its launches is recorded
once with symbols in place of those extents (`rooftop.core.symbolic`): the result is a function that says for other extents whether every choice on the way
comes out the same, and if so the grids, the numbers passed to the kernels and the shapes of outputs and scratch memory. A plan is then a copy of the recorded
one with those. Where the function answers None, or nothing could be recorded, the plan is made in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rooftop.core.call import Call, first_of, select
from rooftop.core.contract import Contract
from rooftop.core.implementation import Launches
from rooftop.core.plans import Plan
from rooftop.core.spec import Descriptor, Device, Launch, Meta, Option, TensorMap, contiguous_strides
from rooftop.core.symbolic import Symbol, Trace, Untraceable, symbolic

FEW = 8  # misses after which a family must have had as many hits
FAILURES = 2  # recordings that failed, after which a family records nothing
CHOICES = 4096  # rounded row counts of a family
RECIPES = 32  # of a family at most
FAMILIES = 1024  # that an op remembers
BACKENDS = ("cuda", "triton", "gluon")  # whose prepared launches can be copied
Sizes = tuple[int, ...]
Choice = tuple[str, str]  # a kernel and its config
Layout = tuple[tuple["Extent", ...], tuple[int, ...] | None, str, int]
Extent = tuple[bool, int]  # whether it is a symbol; its place among the symbols, or the extent


class Family:
    """The recipes of calls that differ in their leading extents alone. `layouts`: of each tensor its extents, its strides (None: contiguous), dtype and
    alignment; None for an absent one."""

    def __init__(self, layouts: Sequence[tuple[str, Layout | None]]) -> None:
        self.layouts = layouts
        self.recipes: list[Recipe] = []
        # For rounded row counts, which kernel and config calls took; several where a config depends on the true count, for which recipes have guards.
        self.choices: dict[tuple[int, ...], set[Choice]] = {}
        self.misses = self.hits = self.failures = 0

    def plan(self, sizes: Sizes) -> Plan | None:
        """A plan for these sizes, if a recipe covers them."""
        for place, recipe in enumerate(self.recipes):
            found = recipe.plan(sizes, self.choices)
            if found is not None:
                self.hits += 1
                if place:  # the next size is probably near this one
                    self.recipes = [recipe, *(r for r in self.recipes if r is not recipe)]
                return found
        return None

    def missed(self) -> bool:
        """Whether to record a plan that no recipe covers. Not the first: most calls have one size alone. Not after failures, nor if recipes cover little more
        than their own size. Where row counts are rounded, each new one is a miss."""
        self.misses += 1
        useful = bool(self.choices) or self.misses < FEW or self.hits >= self.misses
        return self.misses > 1 and useful and self.failures < FAILURES and len(self.recipes) < RECIPES


class Recipe:
    """A recorded plan, and the function that gives what changes with the sizes."""

    def __init__(self, plan: Plan, function: Any, launches: Sequence[Launch], prepared: Sequence[Any]) -> None:
        self._plan, self._function, self.choice = plan, function, choice_of(plan)
        self._launches, self._prepared = tuple(launches), tuple(prepared)

    def changed(self, sizes: Sizes) -> tuple[tuple[int, ...], tuple[Any, ...]] | None:
        """The rounded row counts for which kernel and config are chosen, and (outputs, scratch memory, promised outputs, launches) for these sizes, as
        `_result` forms them; None if something comes out otherwise."""
        try:
            found: tuple[tuple[int, ...], tuple[Any, ...]] | None = self._function(*sizes)
        except (ArithmeticError, ValueError, TypeError):  # a division by zero, say: the whole computation finds the error
            return None
        return found

    def plan(self, sizes: Sizes, choices: Mapping[tuple[int, ...], set[Choice]]) -> Plan | None:
        found = self.changed(sizes)
        if found is None or (found[0] and self.choice not in choices.get(found[0], ())):
            return None
        outputs, scratch, promised, launches = found[1]
        prepared = [self._copy(i, *changes) for i, changes in enumerate(launches)]
        return self._plan.resized(outputs, scratch, promised, Launches(prepared))

    def _copy(self, i: int, grid: tuple[int, ...], numbers: tuple[tuple[str, Any], ...], maps: tuple[Any, ...]) -> Any:
        args: dict[str, Any] = dict(numbers)
        tensors: dict[str, Meta | None] = {}
        for name, shape, strides, meta in maps:
            given = self._launches[i].args[name]
            args[name] = replace(given, shape=shape, strides=strides)
            tensors[given.tensor] = meta and Meta(*meta)
        return self._prepared[i].again(grid, args, tensors)


def family_of(
    op: Contract, metas: Mapping[str, Meta | None], options: Mapping[str, Option], implementation: str | None, index: int
) -> tuple[Family | None, Sizes]:
    """The family of a call on GPU `index`, and its sizes in it: the leading extents above 1 of the first tensor with two dimensions. What is equal to one of
    them elsewhere changes with it. No family if there are no sizes."""
    sizes: list[int] = []
    for m in metas.values():
        if m is not None and len(m.shape) > 1:
            *leading, last = m.shape
            sizes = [n for n in dict.fromkeys(leading) if n > 1 and n != last]
            break
    if not sizes:
        return None, ()
    places = {n: i for i, n in enumerate(sizes)}
    layouts = []
    for name, m in metas.items():
        layout = None
        if m is not None:
            extents = tuple([(True, places[n]) if n in places else (False, n) for n in m.shape])
            layout = extents, None if m.strides == contiguous_strides(m.shape) else m.strides, m.dtype, m.align
        layouts.append((name, layout))
    key = (implementation, index, tuple(layouts), tuple([(n, type(v), v) for n, v in options.items() if n not in op.runtime_options]))
    found = op.families.get(key)
    if found is None:
        if len(op.families) >= FAMILIES:
            for old in list(op.families)[: FAMILIES // 2]:
                op.families.pop(old, None)
        found = op.families[key] = Family(layouts)
    return found, tuple(sizes)


def record(family: Family, op: Contract, options: Mapping[str, Option], implementation: str | None, device: Device, sizes: Sizes, plan: Plan) -> None:
    """Adds the recipe of a plan that was just made for these sizes, if it can be recorded and no other one covers it."""
    choice = choice_of(plan)
    if not follows(plan.call, implementation):
        return
    if len(family.choices) >= CHOICES:
        family.choices.clear()
    for recipe in family.recipes:
        if recipe.choice == choice and (found := recipe.changed(sizes)) is not None and choice not in (known := family.choices.setdefault(found[0], set())):
            known.add(choice)  # the same was chosen for other row counts
            return
    try:
        family.recipes.insert(0, recipe_of(family, op, options, implementation, device, sizes, plan))
    except Exception:  # code that takes no symbol: what is optional must not fail a call
        family.failures += 1


def follows(call: Call, implementation: str | None) -> bool:
    """Whether kernel and config are those for the rounded row count, where the choice is made for it; not if they are another one's because the true count is
    refused."""
    near = call.problem.near
    if near is call.problem:
        return True
    chosen = implementation is not None or first_of(call.op.twin_of or call.op, near)[0] is call.implementation
    return chosen and call.implementation.chosen_for_near(call.problem, call.config)


def recipe_of(family: Family, op: Contract, options: Mapping[str, Option], implementation: str | None, device: Device, sizes: Sizes, plan: Plan) -> Recipe:
    """The recipe of a plan. Raises Untraceable, or what code raises that takes no symbol."""
    call = plan.call
    if call.idle or call.implementation.backend not in BACKENDS or plan.launches is None:
        raise Untraceable("its launches cannot be copied")
    function, result = traced(family, op, options, implementation, device, sizes, call)
    made = Recipe(plan, function, call.launches, plan.launches.prepared)
    found = made.changed(sizes)
    if found is None or found[1] != result:
        raise Untraceable("the recording gives something else")
    if found[0]:
        family.choices.setdefault(found[0], set()).add(made.choice)
    return made


def choice_of(plan: Plan) -> Choice:
    call = plan.call
    return call.implementation.name, repr(call.config)


def traced(
    family: Family, op: Contract, options: Mapping[str, Option], implementation: str | None, device: Device, sizes: Sizes, call: Call
) -> tuple[Any, tuple[Any, ...]]:
    """The function of a recipe, and what it must give for the sizes of `call`."""
    trace = Trace(sizes)
    try:
        found = select(op, op.problem_of(metas_for(family, trace.symbols), options, device), implementation).call
        if found is None or found.idle or found.implementation is not call.implementation:
            raise Untraceable("another kernel was chosen")
        _alike(trace, found, call)
        result = _result(trace, found, call)
        function = trace.function(result)
    finally:
        trace.active = False
    return function, _result(None, call, call)


def metas_for(family: Family, sizes: Sequence[Any]) -> dict[str, Meta | None]:
    """The Metas of a call's inputs, for sizes or symbols of them."""
    found: dict[str, Meta | None] = {}
    for name, layout in family.layouts:
        if layout is None:
            found[name] = None
        else:
            extents, strides, dtype, align = layout
            shape = tuple(sizes[n] if changes else n for changes, n in extents)
            found[name] = Meta(shape, dtype, contiguous_strides(shape) if strides is None else strides, align)
    return found


def _alike(trace: Trace, found: Call, call: Call) -> None:
    """Raises Untraceable if a recorded call differs from the actual one in what a plan copies as it is."""
    for what in ("copies", "inputs", "reused", "mutated", "zeroed", "names"):
        if getattr(found, what) != getattr(call, what):
            raise Untraceable(f"{what} differ")
    if list(found.promised) != list(call.promised) or len(found.launches) != len(call.launches):
        raise Untraceable("other outputs or another number of launches")
    for mine, other in zip(found.launches, call.launches, strict=True):
        if not isinstance(mine.kernel, str):
            if mine.kernel is not other.kernel:
                raise Untraceable("another kernel")
        elif trace.plain_text(mine.kernel) != other.kernel:
            raise Untraceable("another kernel")
        for what in ("warps", "stages", "types", "block", "cluster", "shared", "chained", "cooperative", "options"):
            if _settled(trace, getattr(mine, what)) != getattr(other, what):
                raise Untraceable(f"{what} differ")


def _settled(trace: Trace | None, value: Any) -> Any:
    """A value with numbers in place of symbols; each becomes a guard."""
    if symbolic(value):
        assert trace is not None
        return trace.stays(value)
    if trace is not None and isinstance(value, str):
        return trace.plain_text(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_settled(trace, v) for v in value)
    if isinstance(value, Mapping):
        return {k: _settled(trace, v) for k, v in value.items()}
    return value


def _result(trace: Trace | None, found: Call, call: Call) -> tuple[Any, ...]:
    """What changes with the sizes. Without a trace `found` is `call` itself, and the result has its numbers; with one it has symbols in their place."""
    outputs = tuple(_layout(m) for _, m in found.outputs)
    scratch = tuple(_layout(m) for m in found.scratch.values())
    promised = tuple(_layout(m) for n, m in found.promised.items() if n not in found.reused)
    tensors = {**dict(found.problem.tensors), **found.scratch}
    launches = tuple(_launch(trace, mine, other, tensors) for mine, other in zip(found.launches, call.launches, strict=True))
    return outputs, scratch, promised, launches


def _layout(meta: Meta | None) -> tuple[Any, ...] | None:
    return None if meta is None else (tuple(meta.shape), meta.dtype, tuple(meta.strides), meta.align)


def _launch(trace: Trace | None, mine: Launch, other: Launch, tensors: Mapping[str, Meta | None]) -> tuple[Any, ...]:
    """(grid, numbers by name, maps and descriptors by name) of a launch."""
    numbers: list[tuple[str, Any]] = []
    maps: list[tuple[Any, ...]] = []
    for name, value in mine.args.items():
        if isinstance(value, (TensorMap, Descriptor)):
            if _settled(trace, _fixed(value)) != _fixed(other.args[name]):
                raise Untraceable(f"{name} differs")
            maps.append((name, tuple(value.shape), tuple(value.strides), _layout(tensors.get(value.tensor))))
        elif type(other.args[name]) in (int, float) and not _constant(mine, name):
            if trace is not None and symbolic(value) and not mine.types:
                _specialised(value)
            numbers.append((name, value))
        elif _settled(trace, value) != other.args[name]:
            raise Untraceable(f"{name} differs")
    return tuple(mine.grid), tuple(numbers), tuple(maps)


def _fixed(value: TensorMap | Descriptor) -> tuple[Any, ...]:
    """What a copied map or descriptor keeps."""
    if isinstance(value, TensorMap):
        return value.tensor, value.box, value.swizzle, value.steps, value.dtype, value.promote, value.fill, len(value.shape)
    return value.tensor, value.block, value.padding, value.dtype, len(value.shape), repr(value.layout)


def _constant(launch: Launch, name: str) -> bool:
    """Whether an argument is compiled in."""
    if launch.types:  # CUDA C++
        return False
    from rooftop.core.triton_compat import constants_of

    return name in constants_of(launch.kernel)


def _specialised(value: Symbol) -> None:
    """Makes the comparisons, for their guards, by which Triton compiles different code for whole numbers (`rooftop.core.triton_compat.seen_as`)."""
    from rooftop.core.triton_compat import ALIGN

    if isinstance(value, int):
        _ = (value == 1, value % ALIGN == 0, value >= -(2**31), value < 2**31, value < 2**63)
