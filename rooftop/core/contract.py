"""The contract of an op: what is computed, and on which cases it is judged."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from rooftop.core import normal_form
from rooftop.core.contract_parts import Calls, Grad, Judging, Timed, Tolerance, Values
from rooftop.core.contract_parts import Judged as Judged
from rooftop.core.contract_parts import Rows as Rows
from rooftop.core.digests import digest
from rooftop.core.layouts import meta_of
from rooftop.core.names import UnknownName
from rooftop.core.spec import Case, Meta, Option, Problem, Work, dtype_of
from rooftop.core.specialised import PRESENT
from rooftop.core.sweeps import Sizes

if TYPE_CHECKING:
    from torch import Tensor

KINDS: Mapping[str, str] = {
    "Tensor": "Tensor", "Tensor | None": "Tensor?", "list[Tensor]": "Tensor[]", "int": "SymInt", "float": "float", "bool": "bool",
    "str": "str",
}


ALWAYS, MODE = "always", "mode"  # of `Contract.invariance`
_VALUES, _JUDGING, _CALLS, _TIMED = Values(), Judging(), Calls(), Timed()  # of a contract that says no more


class Contract:
    """An op: maths, shapes, cases, tolerance, work, peers. `rooftop.core.op.Op` is a contract that can be called. The fields of `values`,
    `judging`, `calls` and `timed` are attributes of the contract, too.

    reference   plain torch; its parameters name the tensors and options, its annotations give their kinds. A parameter with a default can
                be left out by
                kernels: one whose head does not name it refuses problems in which it differs (`Problem.extra`)
    outputs     shape function: Metas and options in, {name: Meta} out; also used as the fake kernel. None for an absent output
    work        the minimum of bytes and operations of a problem
    canonical   the problem as kernels see it (with dimensions collapsed); None if an input must first be copied into contiguous memory
    tolerance   one for all outputs, or name -> Tolerance
    mutates     names of the tensors that the op writes into; the reference writes into them too. There may then be no outputs
    peers       name -> factory of a callable with the reference's signature; an ImportError means that the peer is absent
    wrong       known-wrong callables that the checker must reject
    swept       which numbers are sizes, and their ranges: `rooftop sweep` draws its points from them; a backward's are its forward's

    Of contracts that are made from others: `forward`, the contract whose backward this is; `twin_of`, the one whose kernels this runs in
    place (`rooftop.core.op.in_place`); `into`, output -> the input whose memory it reuses if the option `inplace` is true (for a backward,
    from its Grad)."""

    def __init__(
        self,
        reference: Callable[..., Any],
        *,
        outputs: Callable[..., Mapping[str, Meta | None]],
        cases: Iterable[Case],
        work: Callable[[Problem], Work],
        canonical: Callable[[Problem], Problem | None] | None = None,
        tolerance: Tolerance | Mapping[str, Tolerance] | None = None,
        grad: Grad | None = None,
        mutates: Sequence[str] = (),
        peers: Mapping[str, Callable[[], Callable[..., Any]]] | None = None,
        wrong: Mapping[str, Callable[..., Any]] | None = None,
        name: str | None = None,
        swept: Sizes | None = None,
        values: Values = _VALUES,
        judging: Judging = _JUDGING,
        calls: Calls = _CALLS,
        timed: Timed = _TIMED,
    ) -> None:
        self.name = name or reference.__module__.rpartition(".")[2]
        self.reference, self.outputs, self.work, self.canonical = reference, outputs, work, canonical
        self._tolerance, self.grad, self.mutates, self.swept = tolerance or Tolerance(), grad, tuple(mutates), swept
        self.peers, self.wrong = dict(peers or {}), dict(wrong or {})
        self.fixup, self.runtime_options = values.fixup, tuple(values.runtime_options)
        self.same, self.compare, self.sizes = judging.same, dict(judging.compare), dict(judging.sizes)
        self.undefined, self.deterministic, self.rows = judging.undefined, judging.deterministic, judging.rows
        self.invariant, self.alone = dict(judging.invariant), judging.alone
        self.cpu, self.public, self.objects, self.faults, self.strict = calls.cpu, calls.public, calls.objects, calls.faults, calls.strict
        self.ranks, self.ranks_peers = calls.ranks, dict(calls.ranks_peers)
        self.measured_work, self.bucket, self.lower_bounds = timed.measured_work, timed.bucket, dict(timed.lower_bounds)
        self.forward: Contract | None = None
        self.twin_of: Contract | None = None
        self.into: Mapping[str, str] = {}
        self.cases: tuple[Case, ...] = tuple(cases)
        if not self.cases:
            raise ValueError(f"{self.name} has no case: a contract needs at least one")
        for written in self.mutates:
            if self.kinds.get(written) not in ("Tensor", "Tensor | None"):
                raise ValueError(f"{self.name}: mutates names {written!r}; it must be one of the reference's tensors (no list of them)")
        seen: set[str] = set()
        for case in self.cases:
            if case.id in seen:
                raise ValueError(f"{self.name}: two cases are called {case.id!r}")
            seen.add(case.id)
        self.bwd: Contract | None = self._backward_op() if grad and grad.outputs else None
        self._plans: dict[Any, Any] = {}  # plans of dispatch, by kind of input
        self._library: Any = None  # the registration with torch.library

    # -- names and kinds, from the reference's signature ------------------------------------------------------------

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.reference).parameters

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """Parameter name -> its annotation, one of KINDS."""
        kinds = {}
        for name, parameter in self.parameters.items():
            text = parameter.annotation if isinstance(parameter.annotation, str) else getattr(parameter.annotation, "__name__", "?")
            if text not in KINDS:
                raise TypeError(f"{self.name}: {name} is annotated {text!r}; a contract's reference takes {', '.join(KINDS)}")
            kinds[name] = text
        return kinds

    @cached_property
    def tensor_names(self) -> tuple[str, ...]:
        """The parameters that are tensors, or lists of them."""
        return tuple(n for n, k in self.kinds.items() if "Tensor" in k)

    @cached_property
    def list_names(self) -> tuple[str, ...]:
        return tuple(n for n, k in self.kinds.items() if k == "list[Tensor]")

    @cached_property
    def option_names(self) -> tuple[str, ...]:
        return tuple(n for n, k in self.kinds.items() if "Tensor" not in k)

    @cached_property
    def runtime_floats(self) -> tuple[str, ...]:
        return tuple(n for n in self.runtime_options if self.kinds[n] == "float")

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        first = self.cases[0]
        names = tuple(self.outputs(**self._grouped(self._metas(first)), **self.options(first)))
        if not names and not self.mutates:
            raise ValueError(f"{self.name} has no output and `mutates` names no tensor: there is nothing to check")
        return names

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of the first tensors of its cases."""
        return tuple(dict.fromkeys(c.dtype for c in self.cases))

    def tolerance_of(self, output: str) -> Tolerance:
        return self._tolerance if isinstance(self._tolerance, Tolerance) else self._tolerance.get(output, Tolerance())

    @property
    def exact(self) -> bool:
        """Whether every output is compared bit for bit."""
        return all(self.tolerance_of(n).exact for n in (*self.output_names, *self.mutates))

    # -- lists of tensors: `xs` is `xs0`, `xs1`, ... wherever tensors have names ------------------------------------

    def flattened(self, args: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """A call's arguments, given in the reference's order: tensors by name and options by name."""
        tensors: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for (name, kind), value in zip(self.kinds.items(), args, strict=True):
            if kind == "list[Tensor]":
                tensors.update((f"{name}{i}", t) for i, t in enumerate(value))
            elif "Tensor" in kind:
                tensors[name] = value
            else:
                options[name] = value
        return tensors, options

    def _grouped(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Values by the names of the parameters, with lists reassembled. Names of outputs are dropped."""
        if not self.list_names:
            return {n: tensors[n] for n in self.tensor_names}
        grouped: dict[str, Any] = {}
        for name in self.tensor_names:
            if name not in self.list_names:
                grouped[name] = tensors[name]
                continue
            grouped[name] = []
            while (key := f"{name}{len(grouped[name])}") in tensors:
                grouped[name].append(tensors[key])
        return grouped

    def arguments(self, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> list[Any]:
        """The arguments in the reference's order."""
        grouped = self._grouped(tensors)
        return [grouped[n] if n in grouped else options[n] for n in self.kinds]

    @cached_property
    def invariance(self) -> Mapping[str, str]:
        """Dimension -> "always", "mode" (under `rooftop.invariant()`), or why the bits of a result depend on it in any case: `Judging.invariant`, and where
        that says nothing what `Judging.rows` means. Rows know nothing of sequences: how those are padded, packed or cut is how many rows there are."""
        if self.twin_of is not None:
            return self.twin_of.invariance
        if self.rows is None:
            refusal = "its gradients are sums over rows" if self.forward is not None else "its contract names no dimension of rows"
            batch = ALWAYS if self.exact and self.forward is None else refusal
        else:
            batch = ALWAYS if self.exact else MODE
        batch = self.invariant.get("batch", batch)
        sequences = dict.fromkeys(("batch", "padding", "packing", "chunking"), batch)
        return {**sequences, "splits": "it is computed by one rank; what several add up depends on their number", **self.invariant}

    def inputs_of(self, problem: Problem) -> tuple[str, ...]:
        return tuple([n for n, _ in problem.tensors if n not in self.output_names])

    def case(self, case_id: str) -> Case:
        """A case by `name dtype`, or by its name if that is unique."""
        found = [c for c in self.cases if case_id in (c.id, c.name)]
        if len(found) != 1:
            raise UnknownName(f"case of {self.name}", case_id, [c.id for c in (found or self.cases)])
        return found[0]

    # -- problems -------------------------------------------------------------------------------------------------

    def problem_of(self, metas: Mapping[str, Meta | None], options: Mapping[str, Option], device: Any = None) -> Problem:
        """The problem of a call, outputs included."""
        grouped = self._grouped(metas)
        outputs = self.outputs(**grouped, **options)
        flat: list[tuple[str, Meta | None]] = []
        for name in self.tensor_names:
            flat += [(f"{name}{i}", m) for i, m in enumerate(grouped[name])] if name in self.list_names else [(name, grouped[name])]
        problem = Problem(
            self.name, (*flat, *outputs.items()), tuple([(k, v) for k, v in options.items() if k not in self.runtime_options]),
            runtime_options=self.runtime_options, runtime_floats=self.runtime_floats, bucket=self.bucket,
            extra=self._extra(metas, options), **({} if device is None else {"device": device}),
        )
        return problem

    @cached_property
    def later(self) -> Mapping[str, Any]:
        """The parameters that the reference gives a default, with it."""
        return {
            n: p.default for n, p in self.parameters.items() if p.default is not inspect.Parameter.empty and n not in self.runtime_options
        }

    def _extra(self, metas: Mapping[str, Meta | None], options: Mapping[str, Option]) -> tuple[str, ...]:
        """Those of them that do not have it here."""
        return tuple([n for n, d in self.later.items() if (metas[n] is not None if n in metas else n in options and options[n] != d)])

    def problem(self, case: Case, device: Any = None) -> Problem:
        """The problem of a case, with the layouts that its inputs will have."""
        return self.problem_of(self._metas(case), self.options(case), device)

    def _metas(self, case: Case) -> dict[str, Meta | None]:
        """The Metas of a case's inputs; None for an absent one."""
        if self.forward:
            return self.forward._bwd_metas(case)
        return {**{n: None for n in self.tensor_names if n not in self.list_names}, **{n: meta_of(v) for n, v in case.tensors()}}

    def options(self, case: Case) -> dict[str, Option]:
        options = {}
        for name in self.option_names:
            default = self.parameters[name].default
            options[name] = case.inputs.get(name, None if default is inspect.Parameter.empty else default)
        return options  # type: ignore[return-value]

    def kernel_problem(self, problem: Problem) -> Problem | None:
        """The problem as kernels see it; None if an input must first be copied into contiguous memory."""
        return problem if self.canonical is None else self.canonical(problem)

    def contiguous(self, problem: Problem) -> Problem:
        """The same problem after its non-contiguous inputs were copied. The others keep their memory, whatever its alignment. Strides of
        dimensions of extent 1, which have no effect, become those of a contiguous tensor."""
        inputs = self.inputs_of(problem)
        metas = {n: m and Meta(m.shape, m.dtype, (), m.align if m.contiguous else 16) for n, m in problem.tensors if n in inputs}
        return self.problem_of(
            metas, {n: problem.option(n) if n not in self.runtime_options else 0 for n in self.option_names}, problem.device
        )

    def idle(self, problem: Problem) -> bool:
        """Whether there is nothing to write: every output is absent or empty, and so is every tensor that the op writes into, or nothing is
        to be written there (no new tokens for a cache)."""
        for name in self.output_names:
            if (meta := problem.get(name)) is not None and 0 not in meta.shape:
                return False
        return all((m := problem.get(n)) is None or 0 in m.shape for n in self.mutates) or self.work(problem).write == 0

    def reused(self, problem: Problem) -> dict[str, str]:
        """Output -> the input whose memory it reuses in this problem: if `inplace` is true and both have the same shape, dtype and
        strides."""
        if not self.into or not problem.option("inplace"):
            return {}

        def alike(a: Meta | None, b: Meta | None) -> bool:
            return a is not None and b is not None and (a.shape, a.dtype, a.strides) == (b.shape, b.dtype, b.strides)

        return {out: given for out, given in self.into.items() if alike(problem.get(out), problem.get(given))}

    # -- the backward as an op ------------------------------------------------------------------------------------

    def _backward_op(self) -> Self:
        grad = self.grad
        assert grad is not None and grad.outputs is not None and grad.work is not None
        unseen = [n for n in grad.same if n in self.later]  # by the backward, so that cases with them are none of its own
        made = type(self)(
            grad.backward, outputs=grad.outputs, cases=[c for c in self.cases if all(c.inputs.get(n) is None for n in unseen)],
            work=grad.work, canonical=grad.canonical or self.canonical,
            tolerance=grad.tolerance or (self._tolerance if isinstance(self._tolerance, Tolerance) else None),
            peers=grad.peers, wrong=grad.wrong, name=f"{self.name}_bwd", swept=self.swept,
            values=Values(runtime_options=[n for n in self.runtime_options if n in inspect.signature(grad.backward).parameters]),
            judging=replace(grad.judging, deterministic=self.deterministic),
            calls=Calls(cpu=grad.cpu),
        )
        made.forward, made.into = self, dict(grad.into)
        return made

    def _bwd_metas(self, case: Case) -> dict[str, Meta | None]:
        """The inputs of `<op>_bwd`: a gradient for each output, then the tensors that the forward saved."""
        assert self.grad is not None
        forward = self.problem(case)
        metas: dict[str, Meta | None] = {f"d{n}": forward.get(n) for n in self.output_names if n not in self.grad.non_differentiable}
        metas.update(zip(self.grad.saved_names, self.grad.saved(dict(forward.tensors)), strict=True))
        return metas

    def __call__(self, *args: Any, implementation: str | None = None) -> Any:
        """Overridden by `rooftop.core.op.Op`, which can be called."""
        raise TypeError(f"{self.name} is only a contract; an Op can be called")

    # -- what its records depend on ---------------------------------------------------------------------------------

    def digest(self, case: Case) -> str:
        """Hash of what is computed for a case: the reference as far as this case goes, the tensors with their values' kind, the work. It
        does not depend on other cases, nor on parameters that have their defaults and were added later."""
        problem, options = self.problem(case), self.options(case)
        default = {n: self._default(n) for n in options}
        known: dict[str, Any] = {n: v for n, v in options.items() if v is None or isinstance(v, (bool, str)) or _same(v, default[n])}
        known |= {n: None if problem.get(n) is None else PRESENT for n in self.tensor_names if n not in self.list_names}
        work, shapes = self.work(problem), replace(problem, options=())
        inputs = {n: f"{i.shape} {i.dtype} {i.fill} {i.layout}" for n, i in case.tensors() if i is not None}
        others = {n: v for n, v in options.items() if not _same(v, default[n])}
        return digest(
            normal_form.of_object(self.reference, known), sorted(shapes.signature.split(" ")), inputs, others, work.read, work.write,
            dict(work.ops)
        )

    def _default(self, name: str) -> Any:
        """The default of an option; a backward's are its forward's."""
        found = self.parameters[name].default
        if found is inspect.Parameter.empty and self.forward is not None and name in self.forward.parameters:
            return self.forward._default(name)
        return found


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def like(x: Meta) -> Meta:
    """An output with the shape and dtype of `x`, and with its strides if they are dense, as torch's elementwise ops do."""
    step = 1
    for stride, extent in sorted(zip(x.strides, x.shape, strict=True)):
        if extent != 1 and stride != step:
            return Meta(x.shape, x.dtype)
        step *= extent
    return Meta(x.shape, x.dtype, x.strides)


def metas_of(tensors: Mapping[str, Tensor | None], *, addresses: bool = True) -> dict[str, Meta | None]:
    """The Metas of torch tensors. Without `addresses` (fake tensors have none) they count as aligned."""
    return {
        n: None if t is None else Meta(tuple(t.shape), dtype_of(t.dtype), tuple(t.stride()), alignment(t) if addresses else 16)
        for n, t in tensors.items()
    }


def alignment(t: Tensor) -> int:
    """The largest power of two up to 16 that divides the tensor's address; 16 if it has no address yet (meta tensors)."""
    try:
        address = t.data_ptr()
    except RuntimeError:
        return 16
    return min(address & -address, 16) if address else 16
