"""The parts of a contract: what error is allowed, how gradients are computed, and what it says to those who make inputs, judge results, call
and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from rooftop.core.spec import Meta, Option, Problem, Work

Rows: TypeAlias = Callable[[Problem], "Mapping[str, int | tuple[int, ...] | Mapping[int, int]] | str"]  # of `Judging.rows`


@dataclass(frozen=True)
class Tolerance:
    """The error that is allowed: `multiple` times that of the same computation in plain torch at the same precision, never above 4; or two
    units in the last place if torch happens to be exact. `exact`: the bits must be equal, and -0.0 differs from 0.0; any NaN equals any
    other. `flushed`: values below float32's smallest normal number, 2^-126, may become zero, as `ex2.approx.ftz` does."""

    multiple: float = 2.0
    exact: bool = False
    flushed: bool = False

    def __post_init__(self) -> None:
        if not 1.0 <= self.multiple <= 4.0:
            raise ValueError(f"multiple is {self.multiple}; it must be 1 to 4")

    @property
    def floor(self) -> float:
        """The absolute error that is always allowed, however small torch's error is."""
        return 2.0**-126 if self.flushed else 0.0


@dataclass(frozen=True)
class Judged:
    """The arguments of a contract's own comparison (`compare`): tensors by name. `got`: outputs and mutated inputs as the kernel wrote
    them; `exact` and
    `same`: the expected values, in float64 and at the same precision; `tensors`: the inputs before the call."""

    got: Mapping[str, Any]
    exact: Mapping[str, Any]
    same: Mapping[str, Any]
    tensors: Mapping[str, Any]
    options: Mapping[str, Option]


@dataclass(frozen=True)
class Judging:
    """How results are judged where a tolerance does not say it.

    same       the result at the same precision, if that is not the reference in float32, rounded once; parameters as the reference's
    compare    output -> its own comparison instead of the error: None, or what is wrong (a round trip, a bound, ties, a distribution)
    sizes      output -> the output that holds the number of its valid leading elements; the others are not compared
    undefined  (the reference's parameters) -> the outputs with, or without, what 0 · NaN makes of values that do not count, as the reference has
               them the other way: where one of the two is NaN or infinite, a kernel's may be either
    deterministic  two runs give equal bits
    rows       (problem as kernels see it) -> tensor -> its dimension that counts rows, whose results do not depend on each other, or its
               dimensions (the last of them counts), or those with the extents for which the kernel is chosen, or why they do depend: which
               calls `rooftop.invariant()` takes
    invariant  dimension (one of `rooftop.core.invariance.DIMENSIONS`) -> "always", "mode" (under `rooftop.invariant()`), or why a result depends
               on it in any case. What is not said follows from `rows`
    alone      on the CPU under `rooftop.invariant()`: (the reference's parameters) -> outputs, each row computed by itself; by default the
               reference is called for one row after another"""

    same: Callable[..., Any] | None = None
    compare: Mapping[str, Callable[[Judged], str | None]] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    undefined: Callable[..., Any] | None = None
    deterministic: bool = True
    rows: Rows | None = None
    invariant: Mapping[str, str] = field(default_factory=dict)
    alone: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Grad:
    """How gradients are computed. `backward(*d_outputs, *saved, *options)` is plain torch and returns one gradient for each of `wrt`.

    With `outputs` (a shape function, as the op's) the backward is an op of its own, `<op>_bwd`, with kernels; its reference is `backward`.
    Without it, `backward` is composed of ops and runs as written.

    wrt     the inputs that have gradients; if two share one (`"x=residual"`), it is computed once
    saves   names of inputs or outputs; `"s|x"` is the first of them that is present, and the backward calls it `s`
    same    input -> the output whose gradient is also the input's, unchanged
    non_differentiable  outputs made only for the backward: they have no gradient, and `backward` gets none for them
    into    output of the backward -> the saved tensor whose memory it may reuse if the option `inplace` is true
    tolerance  of the backward's outputs; by default the forward's, if that is one for all outputs
    cpu        as the contract's: torch's own function for the gradients on the CPU, where torch does not differentiate the forward's
    judging    of the backward: `same` and `undefined`, with the parameters of `backward` (a kernel may multiply the NaN of a hidden pair by 0, or
               skip it); `rows`, without the gradients that sum over rows (a weight's); `invariant`

    The gradient of an output may be absent (the output was not used, or is absent itself) if `backward` annotates it `Tensor | None`."""

    wrt: tuple[str, ...]
    saves: tuple[str, ...]
    backward: Callable[..., Any]
    outputs: Callable[..., Mapping[str, Meta | None]] | None = None
    work: Callable[..., Work] | None = None
    canonical: Callable[[Problem], Problem | None] | None = None
    peers: Mapping[str, Callable[[], Callable[..., Any]]] = field(default_factory=dict)
    wrong: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    into: Mapping[str, str] = field(default_factory=dict)
    non_differentiable: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    tolerance: Tolerance | Mapping[str, Tolerance] | None = None
    cpu: Callable[..., Any] | None = None
    judging: Judging = Judging()

    @property
    def saved_names(self) -> tuple[str, ...]:
        """The names by which the backward calls the saved tensors."""
        return tuple(entry.partition("|")[0] for entry in self.saves)

    @cached_property
    def _entries(self) -> tuple[list[str], ...]:
        return tuple(entry.split("|") for entry in self.saves)

    def saved(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The saved tensors (or their Metas) among inputs and outputs; None for an absent one."""
        get = values.get
        return tuple([get(one[0]) if len(one) == 1 else next((get(n) for n in one if get(n) is not None), None) for one in self._entries])

    def spread(self, gradients: Any) -> dict[str, Any]:
        """The results of `backward`, by the names of the inputs."""
        found = gradients if isinstance(gradients, tuple) else (gradients,)
        return {name: g for entry, g in zip(self.wrt, found, strict=True) for name in entry.split("=")}


@dataclass(frozen=True)
class Values:
    """What a contract says of the values of its inputs.

    fixup            (tensors, options, generator) -> {name: tensor}: replaces inputs of a case that depend on each other (offsets, page
                     tables, codes) by consistent ones of the same shape and dtype
    runtime_options  options that influence only values, such as a seed or a scale: kernels get them at each call by name, as signed 32-bit
                     integers or float32"""

    fixup: Callable[..., Mapping[str, Any]] | None = None
    runtime_options: Sequence[str] = ()


@dataclass(frozen=True)
class Calls:
    """What a contract says of calls: of the public function, on the CPU, by several processes.

    cpu         torch's own function for calls on tensors of the CPU, with the reference's parameters: plain torch on the tensors as they
                are, which torch itself differentiates. Its results are within the contract (`rooftop.lab.check.contracts` holds it to
                that); it returns NotImplemented where torch's function computes something else, and the reference runs. It may leave out
                (None) outputs that the public function does not return, or returns only where it calls the op with `implementation=""`,
                which runs the reference. No kernel is judged by it
    public      (tensors, options) -> (args, kwargs) of the public function, if that has other parameters than the reference; None if no
                call of it produces such a case
    objects     the public function takes or returns an object instead of tensors: tests of its own call it, not the generic ones nor the
                fuzzer
    faults      (the reference's parameters) -> None or what is wrong: finds values that only the device can see; called under
                `rooftop.debug()`
    strict      what `faults` finds is an error on tensors of the CPU without `rooftop.debug()`, too
    ranks       (tensors, options, group) -> this rank's outputs by name: the public function run by several processes, each with its slice
                of the tensors along their first dimension. The gathered result is judged as the outputs are (`rooftop ranks`). A kernel
                that runs this way defines `on_ranks` with these parameters (`rooftop check` and `bench` under torchrun)
    ranks_peers name -> a callable with the parameters of `ranks`, which a user of several ranks would use instead; timed alone, and may
    overwrite its tensors"""

    cpu: Callable[..., Any] | None = None
    public: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[Sequence[Any], Mapping[str, Any]] | None] | None = None
    objects: bool = False
    faults: Callable[..., str | None] | None = None
    strict: bool = False
    ranks: Callable[[Mapping[str, Any], Mapping[str, Any], Any], Mapping[str, Any]] | None = None
    ranks_peers: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any], Any], Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Timed:
    """What a contract says to whoever times its kernels, beyond `work` and `peers`.

    measured_work  (problem, tensors) -> Work, if the work depends on values
    bucket         (problem) -> the problem that represents similar ones in the tables of tuned configs
    lower_bounds   name -> factory of a callable with the reference's signature, timed together with the kernels and not judged: the part of
                   the work that every kernel must do, such as the products of a fused op; ValueError for a case that it does not support"""

    measured_work: Callable[[Problem, Mapping[str, Any]], Work] | None = None
    bucket: Callable[[Problem], Problem] | None = None
    lower_bounds: Mapping[str, Callable[[], Callable[..., Any]]] = field(default_factory=dict)
