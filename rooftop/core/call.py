"""One call: which kernel with which config, which inputs are copied first, what is written, in which memory.

Dispatch, the checker, the timer, the tuner, the simulator and the counters all run kernels through a `Call`; only the allocation of memory
differs."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rooftop.core import invariance, registry
from rooftop.core.backends.table import order
from rooftop.core.choice import ChoiceError, Chosen
from rooftop.core.contract import Contract
from rooftop.core.implementation import Implementation, UnsupportedError
from rooftop.core.spec import TARGETS, Launch, Meta, Number, Problem, Step
from rooftop.core.sweeps import each_element

if TYPE_CHECKING:
    from torch import Tensor

Allocate = Callable[[str, Meta], "Tensor"]  # allocates an output or scratch memory, given its name


def problem_for_kernels(op: Contract, problem: Problem) -> tuple[Problem, tuple[str, ...]]:
    """The problem as kernels see it, and the inputs that must first be copied into contiguous memory."""
    if op.twin_of is not None:
        problem = _as_twin(op, problem)
        op = op.twin_of
    reused = op.reused(problem)  # an output that reuses an input's memory has that input's address
    kernel_problem = op.kernel_problem(problem.replace(**{out: problem[given] for out, given in reused.items()}) if reused else problem)
    if kernel_problem is not None:
        return kernel_problem, ()
    inputs = op.inputs_of(problem)
    copies = tuple(n for n, m in problem.tensors if n in inputs and m is not None and not m.contiguous)
    kernel_problem = op.kernel_problem(op.contiguous(problem))
    if kernel_problem is None:
        raise ValueError(f"{op.name}: canonical() refuses contiguous inputs: {op.contiguous(problem).signature}")
    return kernel_problem, copies


def _as_twin(op: Contract, problem: Problem) -> Problem:
    """For an in-place twin: the problem of its original op, in which each output written in place has the layout of its input."""
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
    why: str = ""  # what the family's function says for it

    @classmethod
    def of(cls, op: Contract, implementation: Implementation, called: Problem, config: Mapping[str, Any] | None = None) -> Call:
        """The call of one kernel. Raises UnsupportedError if the kernel does not support the input."""
        kernel_problem, copies = problem_for_kernels(op, called)
        if reason := implementation.supports(kernel_problem):
            raise UnsupportedError(f"{implementation.name} cannot take this input: {reason}")
        return cls.made(op, implementation, called, kernel_problem, copies, config)

    @classmethod
    def made(
        cls, op: Contract, implementation: Implementation, called: Problem, kernel_problem: Problem, copies: tuple[str, ...],
        config: Mapping[str, Any] | None = None, chosen: Chosen | None = None,
    ) -> Call:
        """The same for a problem that is known to be supported. `chosen`: what the family's function chose. Raises ChoiceError for a config
        that the kernel refuses."""
        used, source = implementation.resolve(kernel_problem, config, chosen)
        if chosen is not None and source == "heuristic" and (reason := implementation.breaks(kernel_problem, used)):
            raise ChoiceError(f"{implementation.path.parent.name}/{registry.CHOOSE}: {implementation.name} with {used}: {reason}")
        return cls(op, implementation, called, kernel_problem, copies, used, source, "" if chosen is None else chosen.why)

    def with_config(self, config: Any) -> Call:
        """The same call with another config, of the kernel's own type."""
        return replace(self, config=config, config_from="explicit")

    # -- outputs and scratch memory -------------------------------------------------------------------------------

    @cached_property
    def base(self) -> Contract:
        """The contract whose kernel runs: the op's own or, for an in-place twin, that of its original op."""
        return self.op.twin_of or self.op

    @cached_property
    def _written_problem(self) -> Problem:
        """The problem after the copies, with the outputs in the layout that the kernel writes."""
        called = self.called if self.op.twin_of is None else _as_twin(self.op, self.called)
        return self.base.contiguous(called) if self.copies else called

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return self.base.inputs_of(self._written_problem)

    @cached_property
    def outputs(self) -> tuple[tuple[str, Meta | None], ...]:
        """The outputs as the kernel writes them. If inputs are copied, results are contiguous."""
        return tuple((n, m) for n, m in self._written_problem.tensors if n not in self.inputs)

    @cached_property
    def promised(self) -> dict[str, Meta]:
        """Outputs whose strides, as promised to the caller, differ from those that the kernel writes."""
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
        """Inputs that the call overwrites."""
        return tuple(n for n in self.inputs if n in self.op.mutates or n in self.reused.values())

    @cached_property
    def scratch(self) -> dict[str, Meta]:
        return self.implementation.scratch(self.problem, self.config)

    @cached_property
    def zeroed(self) -> tuple[str, ...]:
        """Scratch memory that must be zero when the first launch starts."""
        return self.implementation.zeroed(self.problem, self.config)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of everything that launches can refer to, in the order of a runner's values."""
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
        """The launches, and the calls of torch between them."""
        return [] if self.idle else self.implementation.steps(self.problem, self.config)

    @property
    def path(self) -> tuple[str, ...]:
        """The kernels that are launched, by name."""
        return tuple(str(getattr(x.kernel, "__name__", x.kernel)) for x in self.launches)

    # -- memory -----------------------------------------------------------------------------------------------------

    def given(self, tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        """The inputs as the kernel gets them: some as contiguous copies."""
        return {n: copied(t) if n in self.copies and (t := tensors[n]) is not None else tensors[n] for n in self.inputs}

    def memory(self, given: Mapping[str, Tensor | None], runtime_values: Mapping[str, Number], allocate: Allocate) -> dict[str, Any]:
        """Everything that the launches refer to, in the order of `names`: the inputs (as `given` returns them), outputs and scratch from
        `allocate`, runtime options. An output that reuses an input's memory is that input's tensor."""
        memory: dict[str, Any] = {n: given[n] for n in self.inputs}
        for name, meta in self.outputs:
            memory[name] = memory[self.reused[name]] if name in self.reused else None if meta is None else allocate(name, meta)
        memory.update((name, allocate(name, meta)) for name, meta in self.scratch.items())
        memory.update((name, runtime_values[name]) for name in self.op.runtime_options)
        return memory

    def zero(self, memory: Mapping[str, Any]) -> None:
        for name in self.zeroed:
            memory[name].zero_()

    def runner(self, index: int) -> Callable[[int, Sequence[Any]], None]:
        """The kernel, compiled and loaded on GPU `index` (or wherever its backend runs). Call it with a stream and the values of
        `memory`."""
        if self.idle:
            return _launch_nothing
        return self.implementation.bind(self.problem, self.config, self.names, index)


def copied(t: Tensor) -> Tensor:
    """Its values without gaps, from a multiple of 16 bytes on."""
    found = t.contiguous()
    return found.clone() if found is t and t.data_ptr() % 16 else found


def _launch_nothing(stream: int, values: Sequence[Any]) -> None:
    """The runner of a call without anything to write: launches nothing."""


# -- choosing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What a call runs. If `call` is None: the reference, in plain torch."""

    call: Call | None
    rejected: tuple[tuple[str, str], ...]  # (implementation, why not) if none of them runs


def only_named(implementation: Implementation) -> str | None:
    """None, or why a call that names no implementation does not run this one."""
    return (
        None if implementation.automatic else f"runs only if a call names it: the compiler of {implementation.backend} is an optional extra"
    )


Reasons = tuple[tuple[str, str], ...]  # (implementation, why it does not run)


def refusals(op: Contract, problem: Problem, without: str = "") -> Reasons:
    """Why the implementations of an op do not run, but `without`: what each refuses, or that another one is chosen."""
    found: list[tuple[str, str]] = []
    for candidate in registry.implementations(op.name):
        if candidate.name == without:
            continue
        reason = candidate.supports(problem) or only_named(candidate)
        if reason is None:
            said = candidate.chosen(problem)
            why = said.why if isinstance(said, Chosen) and said.why != registry.NAMED else ""
            reason = f"supports this too, but {without} is chosen" + (f" ({why})" if why else "")
        found.append((candidate.name, reason))
    return tuple(found)


def first(op: Contract, problem: Problem) -> tuple[Implementation | None, Chosen | None]:
    """The implementation that runs a problem as kernels see it, and what the family's function says of it. Without such a function, or if
    what it says does not run on such a card, it is the first that supports the problem, in the order of backends and names."""
    chosen = registry.choose(op.name, problem)
    if isinstance(chosen, Chosen):
        found = registry.implementation(chosen.kernel)
        if found.foreign(problem.device) is None and _fits(found, problem, chosen):
            return found, chosen
    if not isinstance(chosen, str):
        for candidate in sorted(registry.implementations(op.name), key=order):
            if candidate.automatic and candidate.supports(problem) is None and _fits(candidate, problem):
                return candidate, None
    return None, None


TUNED = frozenset(TARGETS)  # architectures


def _fits(found: Implementation, problem: Problem, chosen: Chosen | None = None) -> bool:
    """Whether what is launched fits the shared memory of a block. Choices are made for the cards that kernels are tuned for; others may
    have less."""
    if problem.device.arch in TUNED and not problem.device.gfx:
        return True
    return all(x.shared <= problem.device.shared_per_block for x in found.launches(problem, found.resolve(problem, chosen=chosen)[0]))


def named(op: Contract, implementation: str) -> Implementation:
    """The implementation of an op with this name. Raises RegistryError if there is none."""
    base = (op.twin_of or op).name
    found = registry.implementations(base)
    chosen = [f for f in found if f.name in (implementation, f"{base}__{implementation}")]
    if not chosen:
        raise registry.unknown(f"implementation of {op.name}", implementation, [f.name for f in found])
    return chosen[0]


def for_any_rows(op: Contract, problem: Problem, implementation: str | Implementation | None = None) -> Choice:
    """What runs under `rooftop.invariant()`: the kernel of a fixed number of rows, whatever layout and number these have. Raises
    InvarianceError."""
    base = op.twin_of or op
    if op.idle(problem):
        return Choice(None, ())
    kernel_problem = problem_for_kernels(op, problem)[0]
    if invariance.no_rows(base, kernel_problem):
        return freely(op, problem, implementation if isinstance(implementation, str) else None)
    stand_in = invariance.stand_in(base, kernel_problem)
    chosen = None
    if implementation is not None:
        candidates = [implementation if isinstance(implementation, Implementation) else named(op, implementation)]
    else:
        found, chosen = first(base, stand_in)
        candidates = [c for c in sorted(registry.implementations(base.name), key=order) if c.automatic and c is not found]
        candidates = candidates if found is None else [found, *candidates]
    refused = ""
    for candidate in candidates:
        reason = candidate.supports(stand_in) or candidate.varies(stand_in)
        if reason is None:
            said = chosen if chosen is not None and chosen.kernel == candidate.name else None
            return Choice(_for_these_rows(op, candidate, problem, stand_in, said), ())
        refused = refused or f"{candidate.name}: {reason}"
    raise invariance.InvarianceError(f"{op.name} under rooftop.invariant(), along batch: {refused or 'no kernel runs here'}")


def _for_these_rows(op: Contract, candidate: Implementation, problem: Problem, stand_in: Problem, said: Chosen | None) -> Call:
    """The call of the kernel that was chosen for `stand_in`. Rows that it does not take as they lie are copied: another kernel would have
    other bits."""
    base = op.twin_of or op
    along = invariance.rows_of(base, stand_in)
    reason: str | None = None
    for called, more in ((problem, ()), _copied(op, problem, along)):
        kernel_problem, copies = problem_for_kernels(op, called)
        seen = invariance.seen(base, kernel_problem)
        reason = candidate.supports(seen) or candidate.varies(seen)
        if reason is None:
            config, source = candidate.resolve(seen) if base.rows is each_element else candidate.for_any_rows(seen, stand_in, said)
            if (reason := candidate.breaks(seen, config)) is None:
                copies = tuple(dict.fromkeys((*copies, *more)))
                return Call(op, candidate, problem, seen, copies, config, source, "" if said is None else said.why)
    said_of = f"{candidate.name} is chosen for such rows, and cannot take these: {reason}"
    raise invariance.InvarianceError(f"{op.name} under rooftop.invariant(), along batch: {said_of}")


def _copied(op: Contract, problem: Problem, along: Container[str]) -> tuple[Problem, tuple[str, ...]]:
    """The problem with inputs of rows without gaps, at multiples of 16 bytes, and which of them are copied for it."""
    inputs = op.inputs_of(problem)
    metas = {n: Meta(m.shape, m.dtype) if m is not None and n in along else m for n, m in problem.tensors if n in inputs}
    options = {n: problem.option(n) if n not in op.runtime_options else 0 for n in op.option_names}
    return op.problem_of(metas, options, problem.device), tuple(n for n, m in metas.items() if m != problem.get(n))


def select(op: Contract, problem: Problem, implementation: str | None = None, config: Mapping[str, Any] | None = None) -> Choice:
    """The implementation and config for a problem: a pure function of shapes, strides, dtypes and device.

    Raises UnsupportedError if a *named* implementation does not support the problem, RegistryError if there is none of that name,
    ChoiceError for a choice that names no kernel, or a config that the kernel refuses."""
    if invariance.on and not invariance.always(op, problem):
        return for_any_rows(op, problem, implementation)
    return freely(op, problem, implementation, config)


def freely(op: Contract, problem: Problem, implementation: str | None = None, config: Mapping[str, Any] | None = None) -> Choice:
    """`select`, whatever `rooftop.invariant()` says."""
    if implementation is not None:
        candidate = named(op, implementation)
        return Choice(Call.of(op, candidate, problem, config), ())
    base = op.twin_of or op
    if op.idle(problem):
        return Choice(None, tuple((f.name, "there is nothing to write: nothing is launched") for f in registry.implementations(base.name)))
    kernel_problem, copies = problem_for_kernels(op, problem)
    found, chosen = first(base, kernel_problem)
    if found is not None:
        return Choice(Call.made(op, found, problem, kernel_problem, copies, config, chosen), ())
    return Choice(None, refusals(base, kernel_problem))
