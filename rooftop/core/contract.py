"""The contract of an op: what is computed, and on which cases it is judged."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from rooftop.core.digests import digest, strip
from rooftop.core.layouts import meta_of
from rooftop.core.names import UnknownName
from rooftop.core.spec import OF_TORCH, Case, Meta, Option, Problem, Work

if TYPE_CHECKING:
    from torch import Tensor

KINDS: Mapping[str, str] = {
    "Tensor": "Tensor", "Tensor | None": "Tensor?", "int": "SymInt", "float": "float", "bool": "bool", "str": "str",
}  # fmt: skip


@dataclass(frozen=True)
class Grad:
    """How gradients flow. `backward(*d_outputs, *saved, *options)` is plain torch and returns one gradient for each of `wrt`.

    With `outputs` (a shape function as the op's) the backward is an op of its own, `<op>_bwd`, with kernels; its reference is `backward`.
    Without, `backward` is composed of ops and is run as it stands.

    wrt     the inputs that have gradients; where two share one (`"x=residual"`) it is computed once
    saves   names of inputs or outputs; of `"s|x"` the first that is present, which the backward calls `s`
    same    input -> the output whose gradient is its own, as it stands
    aside   outputs made for the backward alone: no gradient flows through them, and `backward` is given none
    into    output of the backward -> the saved tensor whose memory it may take, where the option `inplace` is true

    A gradient of an output may be absent (the output was not used, or is absent itself) where `backward` annotates it `Tensor | None`."""

    wrt: tuple[str, ...]
    saves: tuple[str, ...]
    backward: Callable[..., Any]
    outputs: Callable[..., Mapping[str, Meta | None]] | None = None
    work: Callable[..., Work] | None = None
    canonical: Callable[[Problem], Problem | None] | None = None
    peers: Mapping[str, Callable[[], Callable[..., Any]]] = field(default_factory=dict)
    wrong: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    into: Mapping[str, str] = field(default_factory=dict)
    aside: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)

    @property
    def saved_names(self) -> tuple[str, ...]:
        """What the backward calls the saved tensors."""
        return tuple(entry.partition("|")[0] for entry in self.saves)

    def saved(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The saved tensors (or their facts) among inputs and outputs; None where absent."""
        return tuple(next((values[n] for n in entry.split("|") if values.get(n) is not None), None) for entry in self.saves)

    def spread(self, gradients: Any) -> dict[str, Any]:
        """What `backward` returned, by the names of the inputs."""
        found = gradients if isinstance(gradients, tuple) else (gradients,)
        return {name: g for entry, g in zip(self.wrt, found, strict=True) for name in entry.split("=")}


@dataclass(frozen=True)
class Tolerance:
    """An error may be `multiple` times that of the same computation in plain torch at the same precision, never above 4; or two units
    in the last place where torch is exact by luck. `exact`: bit for bit."""

    multiple: float = 2.0
    exact: bool = False

    def __post_init__(self) -> None:
        if not 1.0 <= self.multiple <= 4.0:
            raise ValueError(f"multiple is {self.multiple}; it must be 1 to 4")


class Contract:
    """An op: maths, shapes, cases, tolerance, work, peers. `rooftop.core.op.Op` is one that can be called.

    reference   plain torch; its parameters name the tensors and options, its annotations say their kinds
    outputs     shape function: Metas and options in, {name: Meta} out; it is the fake kernel too. None for an output that is absent
    into        output -> the input whose memory it takes where the option `inplace` is true (a backward's, from its Grad)
    work        the fewest bytes and operations of a problem
    canonical   the problem as kernels see it (collapsed dimensions); None where only a contiguous copy can be
    mutates     names of the tensors that it writes into
    late        whole-number options (32 bits, signed) that decide nothing but values, such as a seed: kernels get them at each call by name
    peers       name -> factory of a callable with the reference's signature; ImportError says that it is absent
    wrong       known-wrong callables that the checker must reject"""

    def __init__(
        self,
        reference: Callable[..., Any],
        *,
        outputs: Callable[..., Mapping[str, Meta | None]],
        cases: Iterable[Case],
        work: Callable[[Problem], Work],
        canonical: Callable[[Problem], Problem | None] | None = None,
        tolerance: Tolerance | None = None,
        grad: Grad | None = None,
        mutates: Sequence[str] = (),
        deterministic: bool = True,
        peers: Mapping[str, Callable[[], Callable[..., Any]]] | None = None,
        wrong: Mapping[str, Callable[..., Any]] | None = None,
        name: str | None = None,
        forward: Contract | None = None,
        into: Mapping[str, str] | None = None,
        late: Sequence[str] = (),
    ) -> None:
        self.name = name or reference.__module__.rpartition(".")[2]
        self.reference, self.outputs, self.work, self.canonical = reference, outputs, work, canonical
        self.tolerance, self.grad, self.mutates, self.deterministic = tolerance or Tolerance(), grad, tuple(mutates), deterministic
        self.peers, self.wrong, self.forward, self.into = dict(peers or {}), dict(wrong or {}), forward, dict(into or {})
        self.late = tuple(late)
        self.cases: tuple[Case, ...] = tuple(cases)
        seen: set[str] = set()
        for case in self.cases:
            if case.id in seen:
                raise ValueError(f"{self.name}: two cases are called {case.id!r}")
            seen.add(case.id)
        self.bwd: Contract | None = self._backward_op() if grad and grad.outputs else None
        self._plans: dict[Any, Any] = {}  # dispatch's, by the kind of input
        self._library: Any = None  # what torch.library has registered it as

    # -- names and kinds, read off the reference's signature ------------------------------------------------------

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
        return tuple(n for n, k in self.kinds.items() if k.startswith("Tensor"))

    @cached_property
    def option_names(self) -> tuple[str, ...]:
        return tuple(n for n, k in self.kinds.items() if not k.startswith("Tensor"))

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        if not self.cases:
            raise ValueError(f"{self.name} has no case")
        return tuple(self.problem(self.cases[0]).tensors[i][0] for i in range(len(self.tensor_names), len(self.problem(self.cases[0]).tensors)))

    def case(self, case_id: str) -> Case:
        """A case by `name dtype`, or by its name where that is unique."""
        found = [c for c in self.cases if case_id in (c.id, c.name)]
        if len(found) != 1:
            raise UnknownName(f"case of {self.name}", case_id, [c.id for c in (found or self.cases)])
        return found[0]

    # -- problems -------------------------------------------------------------------------------------------------

    def problem_of(self, metas: Mapping[str, Meta | None], options: Mapping[str, Option], device: Any = None) -> Problem:
        """The facts of a call, outputs included."""
        outputs = self.outputs(**metas, **options)
        tensors = (*((n, metas[n]) for n in self.tensor_names), *outputs.items())
        problem = Problem(self.name, tensors, tuple((k, v) for k, v in options.items() if k not in self.late), late=self.late)
        return problem if device is None else problem.on(device)

    def problem(self, case: Case, device: Any = None) -> Problem:
        """The facts of a case, as its inputs will be laid out."""
        values = self.forward._bwd_metas(case) if self.forward else {k: meta_of(v) for k, v in case.inputs.items()}
        metas = {n: values.get(n) for n in self.tensor_names}
        return self.problem_of(metas, self.options(case), device)

    def options(self, case: Case) -> dict[str, Option]:
        options = {}
        for name in self.option_names:
            default = self.parameters[name].default
            options[name] = case.inputs.get(name, None if default is inspect.Parameter.empty else default)
        return options  # type: ignore[return-value]

    def kernel_problem(self, problem: Problem) -> Problem | None:
        """The problem as kernels see it; None where an input must be copied into contiguous memory first."""
        return problem if self.canonical is None else self.canonical(problem)

    def contiguous(self, problem: Problem) -> Problem:
        """The same problem with every input contiguous: what is left of it after the copies."""
        metas = {n: m and Meta(m.shape, m.dtype) for n, m in problem.tensors if n in self.tensor_names}
        return self.problem_of(metas, {n: problem.option(n) if n not in self.late else 0 for n in self.option_names}, problem.device)

    def taken(self, problem: Problem) -> dict[str, str]:
        """Output -> the input whose memory it takes in this problem: where `inplace` is true and both lie alike."""
        if not self.into or not problem.option("inplace"):
            return {}

        def alike(a: Meta | None, b: Meta | None) -> bool:
            return a is not None and b is not None and (a.shape, a.dtype, a.strides) == (b.shape, b.dtype, b.strides)

        return {out: given for out, given in self.into.items() if alike(problem.get(out), problem.get(given))}

    # -- the backward as an op ------------------------------------------------------------------------------------

    def _backward_op(self) -> Self:
        grad = self.grad
        assert grad is not None and grad.outputs is not None and grad.work is not None
        return type(self)(
            grad.backward, outputs=grad.outputs, cases=self.cases, work=grad.work, canonical=grad.canonical or self.canonical,
            tolerance=self.tolerance, deterministic=self.deterministic, peers=grad.peers, wrong=grad.wrong, name=f"{self.name}_bwd", forward=self,
            into=grad.into, late=self.late,
        )  # fmt: skip

    def _bwd_metas(self, case: Case) -> dict[str, Meta | None]:
        """What `<op>_bwd` is given: a gradient for each output, then what the forward saved."""
        assert self.grad is not None
        forward = self.problem(case)
        metas: dict[str, Meta | None] = {f"d{n}": forward.get(n) for n in self.output_names if n not in self.grad.aside}
        metas.update(zip(self.grad.saved_names, self.grad.saved(dict(forward.tensors)), strict=True))
        return metas

    def __call__(self, *args: Any, implementation: str | None = None) -> Any:
        """`rooftop.core.op.Op` can be called."""
        raise TypeError(f"{self.name} is a contract alone; an Op can be called")

    # -- what its records depend on -------------------------------------------------------------------------------

    def digest(self, case: Case) -> str:
        """Hash of what a record of this case depends on: the reference, the case, the work. Other cases may come and go."""
        problem = self.problem(case)
        work = self.work(problem)
        about = [{k: str(v) for k, v in case.inputs.items()}, work.read, work.write, dict(work.ops)]
        return digest(strip(inspect.getsource(self.reference), "python"), problem.signature, about)


def like(x: Meta) -> Meta:
    """An output with the shape and dtype of `x`: its strides too where they are dense, as torch's elementwise ops do."""
    order = sorted(range(len(x.shape)), key=lambda i: (x.strides[i], x.shape[i]))
    step = 1
    for i in order:
        if x.shape[i] != 1 and x.strides[i] != step:
            return Meta(x.shape, x.dtype)
        step *= x.shape[i]
    return Meta(x.shape, x.dtype, x.strides)


def metas_of(tensors: Mapping[str, Tensor | None], *, addresses: bool = True) -> dict[str, Meta | None]:
    """The facts of torch tensors; without `addresses` (fake tensors have none) they count as aligned."""
    return {
        n: None if t is None else Meta(tuple(t.shape), OF_TORCH[str(t.dtype).removeprefix("torch.")], tuple(t.stride()), alignment(t) if addresses else 16)
        for n, t in tensors.items()
    }


def alignment(t: Tensor) -> int:
    """The largest power of two up to 16 that divides the tensor's address; 16 where it has none yet (meta tensors)."""
    try:
        address = t.data_ptr()
    except RuntimeError:
        return 16
    return min(address & -address, 16) if address else 16
