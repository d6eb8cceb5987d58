"""One call put together: which kernel with which config, what is copied first, what is written, in which memory.

Dispatch, the checker, the timer, the tuner, the simulator and the counters all run kernels through a `Call`; only where the memory comes from differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rooftop.core import registry
from rooftop.core.backends.table import preference
from rooftop.core.contract import Contract
from rooftop.core.implementation import Implementation, UnsupportedError
from rooftop.core.spec import Launch, Meta, Number, Problem, Step

if TYPE_CHECKING:
    from torch import Tensor

RANKINGS = 2048  # kinds of problem of which an op remembers what runs
Allocate = Callable[[str, Meta], "Tensor"]  # memory for an output or for scratch, by its name


def problem_for_kernels(op: Contract, problem: Problem) -> tuple[Problem, tuple[str, ...]]:
    """The problem as kernels see it, and the inputs that are first copied into contiguous memory."""
    if op.twin_of is not None:
        problem = _as_twin(op, problem)
        op = op.twin_of
    # an output that takes an input's memory lies at its address
    seen = op.kernel_problem(problem.replace(**{out: problem[given] for out, given in op.reused(problem).items()}))
    if seen is not None:
        return seen, ()
    inputs = op.inputs_of(problem)
    copies = tuple(n for n, m in problem.tensors if n in inputs and m is not None and not m.contiguous)
    seen = op.kernel_problem(op.contiguous(problem))
    if seen is None:
        raise ValueError(f"{op.name}: canonical() refuses contiguous inputs: {op.contiguous(problem).signature}")
    return seen, copies


def _as_twin(op: Contract, problem: Problem) -> Problem:
    """The problem of the op that the twin is of: each output that it writes in place lies as the input does."""
    assert op.twin_of is not None
    base = op.twin_of.problem_of(dict(problem.tensors), {**dict(problem.options), **dict.fromkeys(op.runtime_options, 0)}, problem.device)
    return base.replace(**{out: problem[given] for out, given in op.into.items() if problem.get(given) is not None})


@dataclass(frozen=True)
class Call:
    """What one kernel does for one kind of input. `config_from`: explicit, tuned on which card, or heuristic."""

    op: Contract
    implementation: Implementation
    called: Problem  # as the user gave it
    problem: Problem  # as the kernel sees it
    copies: tuple[str, ...]  # inputs that are first copied into contiguous memory
    config: Any
    config_from: str

    @classmethod
    def of(cls, op: Contract, implementation: Implementation, called: Problem, config: Mapping[str, Any] | None = None) -> Call:
        """The call of one kernel. Raises UnsupportedError where it cannot take the input."""
        seen, copies = problem_for_kernels(op, called)
        if reason := implementation.supports(seen):
            raise UnsupportedError(f"{implementation.name} cannot take this input: {reason}")
        return cls.made(op, implementation, called, seen, copies, config)

    @classmethod
    def made(
        cls, op: Contract, implementation: Implementation, called: Problem, seen: Problem, copies: tuple[str, ...], config: Mapping[str, Any] | None = None
    ) -> Call:
        """The same where `seen` is known to be supported."""
        chosen, source = implementation.resolve(seen, config)
        return cls(op, implementation, called, seen, copies, chosen, source)

    def with_config(self, config: Any) -> Call:
        """The same call with another config of the kernel's own type."""
        return replace(self, config=config, config_from="explicit")

    # -- what is written ------------------------------------------------------------------------------------------

    @cached_property
    def base(self) -> Contract:
        """The contract whose kernel runs: the op's own, or that of which it is the in-place twin."""
        return self.op.twin_of or self.op

    @cached_property
    def _laid_out(self) -> Problem:
        """The problem after the copies, with the outputs as the kernel writes them."""
        called = self.called if self.op.twin_of is None else _as_twin(self.op, self.called)
        return self.base.contiguous(called) if self.copies else called

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return self.base.inputs_of(self._laid_out)

    @cached_property
    def outputs(self) -> tuple[tuple[str, Meta | None], ...]:
        """As the kernel writes them. Where inputs are copied, results are contiguous."""
        return tuple((n, m) for n, m in self._laid_out.tensors if n not in self.inputs)

    @cached_property
    def promised(self) -> dict[str, Meta]:
        """Outputs that the caller was promised with other strides than the kernel writes."""
        want = dict(self.called.tensors)
        return {n: p for n, m in self.outputs if m is not None and (p := want.get(n)) is not None and p.strides != m.strides}

    @cached_property
    def reused(self) -> dict[str, str]:
        """Output -> the input whose memory it reuses (in-place)."""
        if self.op.twin_of is not None:
            return {out: given for out, given in self.op.into.items() if self.called.get(given) is not None}
        return {} if self.copies else self.op.reused(self.called)

    @cached_property
    def mutated(self) -> tuple[str, ...]:
        """Inputs that are not afterwards what they were before."""
        return tuple(n for n in self.inputs if n in self.op.mutates or n in self.reused.values())

    @cached_property
    def scratch(self) -> dict[str, Meta]:
        return self.implementation.scratch(self.problem, self.config)

    @cached_property
    def zeroed(self) -> tuple[str, ...]:
        """Scratch that must be zero when the kernel begins."""
        return self.implementation.zeroed(self.problem, self.config)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of all that launches can name, in the order of a runner's values."""
        return (*self.inputs, *(n for n, _ in self.outputs), *self.scratch, *self.op.runtime_options)

    @cached_property
    def idle(self) -> bool:
        """Whether there is nothing to write, so that nothing is launched."""
        return self.op.idle(self.called)

    @cached_property
    def launches(self) -> list[Launch]:
        return [] if self.idle else self.implementation.launches(self.problem, self.config)

    @property
    def steps(self) -> Sequence[Step]:
        """The launches, and what torch is called for between them."""
        return [] if self.idle else self.implementation.steps(self.problem, self.config)

    @property
    def path(self) -> tuple[str, ...]:
        """The kernels that are launched, by name."""
        return tuple(str(getattr(x.kernel, "__name__", x.kernel)) for x in self.launches)

    # -- memory -----------------------------------------------------------------------------------------------------

    def given(self, tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        """The inputs as the kernel takes them: some as contiguous copies."""
        return {n: t.contiguous() if n in self.copies and (t := tensors[n]) is not None else tensors[n] for n in self.inputs}

    def memory(self, given: Mapping[str, Tensor | None], late: Mapping[str, Number], allocate: Allocate) -> dict[str, Any]:
        """Everything that the launches name, in the order of `names`: the inputs (as `given` returns them), outputs and scratch from `allocate`,
        runtime options. An output that takes an input's memory is that input's tensor."""
        memory: dict[str, Any] = {n: given[n] for n in self.inputs}
        for name, meta in self.outputs:
            memory[name] = memory[self.reused[name]] if name in self.reused else None if meta is None else allocate(name, meta)
        memory.update((name, allocate(name, meta)) for name, meta in self.scratch.items())
        memory.update((name, late[name]) for name in self.op.runtime_options)
        return memory

    def zero(self, memory: Mapping[str, Any]) -> None:
        for name in self.zeroed:
            memory[name].zero_()

    def runner(self, index: int) -> Callable[[int, Sequence[Any]], None]:
        """The kernel compiled and loaded on GPU `index` (or wherever its backend runs): called with a stream and the values of `memory`."""
        if self.idle:
            return _nothing
        return self.implementation.bind(self.problem, self.config, self.names, index)


def _nothing(stream: int, values: Sequence[Any]) -> None:
    """An empty output: nothing is launched."""


# -- choosing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What a call runs. `call` None: the reference, as plain torch."""

    call: Call | None
    rejected: tuple[tuple[str, str], ...]  # (implementation, why not)


def ranked(found: Iterable[Implementation], problem: Problem) -> Iterator[tuple[Implementation, str | None]]:
    """In the order in which they are asked, each with None or the reason why it cannot take the problem. The first without a reason runs. The order is
    that of `problem.near`."""
    for candidate in sorted(found, key=lambda f: preference(f, problem.near)):
        yield candidate, candidate.supports(problem)


Ranking = tuple[Implementation | None, tuple[tuple[str, str], ...]]  # the first that runs, and what was asked before it with the reasons why not


def _first(found: Iterable[Implementation], problem: Problem, by_name: bool) -> Ranking:
    rejected: list[tuple[str, str]] = []
    for candidate, reason in ranked(found, problem):
        if reason is None and not by_name and not candidate.automatic:
            reason = f"taken by its name alone: what compiles {candidate.backend} is an extra"
        if reason is None:
            return candidate, tuple(rejected)
        rejected.append((candidate.name, reason))
    return None, tuple(rejected)


def _first_of(op: Contract, seen: Problem) -> Ranking:
    """As `_first` of all implementations of an op, remembered for the problems that are rounded to the same one."""
    near = seen.near
    known: Ranking | None = op.rankings.get(near)
    if known is None:
        known = _first(registry.implementations(op.name), near, False)
        if len(op.rankings) >= RANKINGS:
            op.rankings.clear()
        op.rankings[near] = known
    if near is seen or (known[0] is not None and known[0].supports(seen) is None):
        return known
    return _first(registry.implementations(op.name), seen, False)


def named(op: Contract, implementation: str) -> list[Implementation]:
    """The implementations of an op that are called so. Raises RegistryError where there is none."""
    base = (op.twin_of or op).name
    found = registry.implementations(base)
    chosen = [f for f in found if f.name in (implementation, f"{base}__{implementation}")]
    if not chosen:
        raise registry.unknown(f"implementation of {op.name}", implementation, [f.name for f in found])
    return chosen


def select(op: Contract, problem: Problem, implementation: str | None = None, config: Mapping[str, Any] | None = None) -> Choice:
    """The implementation and config for a problem: a pure function of shapes, strides, dtypes and device.

    Raises UnsupportedError where a *named* implementation cannot take it, RegistryError where there is none of that name."""
    found = [] if implementation is None else named(op, implementation)
    if implementation is None and op.idle(problem):
        every = registry.implementations((op.twin_of or op).name)
        return Choice(None, tuple((f.name, "there is nothing to write: nothing is launched") for f in every))
    seen, copies = problem_for_kernels(op, problem)
    candidate, rejected = _first_of(op.twin_of or op, seen) if implementation is None else _first(found, seen, True)
    if candidate is not None:
        return Choice(Call.made(op, candidate, problem, seen, copies, config), rejected)
    if implementation is not None:
        raise UnsupportedError(f"{rejected[0][0]} cannot take this input: {rejected[0][1]}")
    return Choice(None, rejected)
