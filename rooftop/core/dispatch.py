"""From a call to the launches: which implementation, which config, prepared once for each kind of input and then only launched.

Eager calls without gradients go straight to the prepared launches; everything else (autograd, torch.compile, functional transforms,
tensor subclasses) goes through the op registered with `torch.library`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rooftop.core import library, registry
from rooftop.core.contract import Contract, metas_of
from rooftop.core.implementation import Implementation, Prepared, UnsupportedError, device_of
from rooftop.core.spec import DTYPES, Device, Meta, Problem

if TYPE_CHECKING:
    from torch import Tensor

_MISSING: Any = object()


@dataclass(frozen=True)
class Choice:
    """What a call runs. `implementation` None: the reference, as plain torch."""

    implementation: Implementation | None
    problem: Problem  # as the kernel sees it
    config: Any
    config_from: str
    copies: tuple[str, ...]  # inputs first copied into contiguous memory
    rejected: tuple[tuple[str, str], ...]  # (implementation, why not)


@dataclass(frozen=True)
class Explanation:
    """`print(rooftop.explain(...))`: what would run, and why."""

    op: str
    device: str
    choice: Choice | None
    why: str

    def __str__(self) -> str:
        lines = [f"{self.op} on {self.device}: {self.why}"]
        if self.choice and self.choice.implementation:
            c = self.choice
            config = ", ".join(f"{k}={v}" for k, v in c.implementation.config_dict(c.config).items())  # type: ignore[union-attr]
            lines.append(f"  config {config or '(none)'} ({c.config_from})")
            if c.copies:
                lines.append(f"  first copied into contiguous memory: {', '.join(c.copies)}")
        for name, reason in self.choice.rejected if self.choice else ():
            lines.append(f"  not {name}: {reason}")
        return "\n".join(lines)


def preference(implementation: Implementation, problem: Problem) -> tuple[int, str]:
    """Those that say they are to be preferred for this problem come first, then Triton, then the rest."""
    return (0 if implementation.prefers(problem) else 1 if implementation.backend == "triton" else 2, implementation.name)


def ranked(found: Iterable[Implementation], problem: Problem) -> Iterator[tuple[Implementation, str | None]]:
    """In the order in which they are asked, each with None or the reason why it cannot take the problem. The first without a reason runs."""
    for candidate in sorted(found, key=lambda f: preference(f, problem)):
        yield candidate, candidate.supports(problem)


def select(op: Contract, problem: Problem, implementation: str | None = None, config: Mapping[str, Any] | None = None) -> Choice:
    """The implementation and config for a problem: a pure function of shapes, strides, dtypes and device.

    Raises UnsupportedError where a *named* implementation cannot take it, RegistryError where there is none of that name."""
    kernel_problem = op.kernel_problem(problem)
    copies: tuple[str, ...] = ()
    if kernel_problem is None:
        copies = tuple(n for n, m in problem.tensors if n in op.tensor_names and m is not None and not m.contiguous)
        kernel_problem = op.kernel_problem(op.contiguous(problem))
        assert kernel_problem is not None, f"{op.name}: canonical() refuses contiguous inputs"
    found = registry.implementations(op.name)
    if implementation is None and all(m is None or m.numel == 0 for n, m in problem.tensors if n not in op.tensor_names):
        return Choice(None, problem, None, "", (), tuple((f.name, "the output is empty: nothing is launched") for f in found))
    if implementation is not None:
        found = [f for f in found if f.name in (implementation, f"{op.name}__{implementation}")]
        if not found:
            raise registry.unknown(f"implementation of {op.name}", implementation, [f.name for f in registry.implementations(op.name)])
    rejected: list[tuple[str, str]] = []
    for candidate, reason in ranked(found, kernel_problem):
        if reason is None:
            chosen, source = candidate.resolve(kernel_problem, config)
            return Choice(candidate, kernel_problem, chosen, source, copies, tuple(rejected))
        rejected.append((candidate.name, reason))
    if implementation is not None:
        raise UnsupportedError(f"{rejected[0][0]} cannot take this input: {rejected[0][1]}")
    return Choice(None, problem, None, "", (), tuple(rejected))


class Plan:
    """Everything about one kind of input that does not change from call to call."""

    def __init__(self, op: Contract, choice: Choice, call_problem: Problem, index: int) -> None:
        self.implementation = choice.implementation
        assert self.implementation is not None
        inputs = op.tensor_names
        self._copies = tuple(i for i, n in enumerate(inputs) if n in choice.copies)
        outputs, self._promised = allocations(op, choice, call_problem)
        scratch = self.implementation.scratch(choice.problem, choice.config)
        taken = {} if choice.copies else op.taken(call_problem)
        self._taken = tuple((i, inputs.index(taken[n])) for i, (n, _) in enumerate(outputs) if n in taken)
        self.names = (*inputs, *(n for n, _ in outputs), *scratch, *op.late)
        self._outputs = [_allocator(None if n in taken else m, index) for n, m in outputs]
        self._scratch = [_allocator(m, index) for m in scratch.values()]
        empty = all(m is None or m.numel == 0 for _, m in outputs)
        self.launches = [] if empty else self.implementation.launches(choice.problem, choice.config)
        self._index = index
        self._prepared: list[Prepared] | None = None
        self._choice = choice
        import torch

        self._stream = torch._C._cuda_getCurrentRawStream
        self._written = torch.autograd.graph.increment_version

    def prepared(self) -> list[Prepared]:
        if self._prepared is None:
            assert self.implementation is not None
            self._prepared = self.implementation.prepare(self._choice.problem, self.launches, self.names, self._index) if self.launches else []
        return self._prepared

    def __call__(self, tensors: list[Tensor | None], late: Sequence[int] = ()) -> list[Tensor | None]:
        if self._copies:
            tensors = list(tensors)
            for i in self._copies:
                tensors[i] = tensors[i].contiguous()  # type: ignore[union-attr]
        made = [make() for make in self._outputs]
        for i, j in self._taken:
            self._written(tensors[j])
            made[i] = tensors[j].detach()  # type: ignore[union-attr]  # a gradient has no history
        scratch = [make() for make in self._scratch]
        addresses = [0 if t is None else t.data_ptr() for t in (*tensors, *made, *scratch)]
        addresses += late
        stream = self._stream(self._index)
        for launch in self._prepared or self.prepared():
            launch(stream, addresses)
        for i, make in self._promised:
            made[i] = make(self._index).copy_(made[i])
        return made


def allocations(op: Contract, choice: Choice, call_problem: Problem) -> tuple[list[tuple[str, Meta | None]], tuple[tuple[int, Any], ...]]:
    """The outputs as the kernel writes them, and, for those that were promised with other strides (index, maker of what was promised):
    a kernel that is given contiguous copies writes contiguous results."""
    inputs = op.tensor_names
    promised = [(n, m) for n, m in call_problem.tensors if n not in inputs]
    if not choice.copies:
        return promised, ()
    written = [(n, m) for n, m in op.contiguous(call_problem).tensors if n not in inputs]
    pairs = enumerate(zip(written, promised, strict=True))
    return written, tuple((i, partial(_made, p)) for i, ((_, w), (_, p)) in pairs if w is not None and p is not None and w.strides != p.strides)


def _made(meta: Meta, index: int) -> Tensor:
    made = _allocator(meta, index)()
    assert made is not None
    return made


def _allocator(meta: Meta | None, index: int) -> Callable[[], Tensor | None]:
    import torch

    if meta is None:
        return lambda: None
    dtype = getattr(torch, DTYPES[meta.dtype].torch)
    device = torch.device("cuda", index)
    shape, strides = meta.shape, meta.strides
    if meta.contiguous:
        return lambda: torch.empty(shape, dtype=dtype, device=device)
    return lambda: torch.empty_strided(shape, strides, dtype=dtype, device=device)


def plan_for(op: Contract, args: Sequence[Any], implementation: str | None) -> Plan | None:
    """The plan for CUDA arguments; None: run the reference."""
    tensors = {n: a for n, a in zip(op.kinds, args, strict=True) if n in op.tensor_names}
    index = _device_index(op, tensors)
    options = {n: a for n, a in zip(op.kinds, args, strict=True) if n not in tensors}
    problem = op.problem_of(metas_of(tensors), options, _device(index))
    choice = select(op, problem, implementation or None)
    return None if choice.implementation is None else Plan(op, choice, problem, index)


_DEVICES: dict[int, Device] = {}


def _device(index: int) -> Device:
    if index not in _DEVICES:
        _DEVICES[index] = device_of(index)
    return _DEVICES[index]


def _device_index(op: Contract, tensors: Mapping[str, Tensor | None]) -> int:
    devices = {n: t.device for n, t in tensors.items() if t is not None}
    if len(set(devices.values())) > 1:
        raise ValueError(f"{op.name}: tensors lie on different devices: " + ", ".join(f"{n} on {d}" for n, d in devices.items()))
    return next(iter(devices.values())).index or 0


def register(op: Contract) -> Callable[..., Any]:
    """The op as `torch.library` has it, registered the first time."""
    return library.register(op, partial(_run, op))


def _run(op: Contract, given: Sequence[Any], implementation: str | None) -> Any:
    """A call that comes through torch's dispatcher, on CUDA tensors."""
    tensors = [a for n, a in zip(op.kinds, given, strict=True) if n in op.tensor_names]
    key = (implementation, *_key(op, given))
    plan = op._plans.get(key, _MISSING)
    if plan is _MISSING:
        plan = op._plans[key] = plan_for(op, given, implementation)
    if plan is None:
        return library.fallback(op, given)
    with torch_device(next(t for t in tensors if t is not None)):
        made = plan(tensors, [a for n, a in zip(op.kinds, given, strict=True) if n in op.late])
    return made[0] if len(op.output_names) == 1 else tuple(made)


def torch_device(tensor: Tensor) -> Any:
    import torch

    return torch.cuda.device(tensor.device)


def _key(op: Contract, given: Sequence[Any]) -> list[Any]:
    """As `caller` builds it, so that both ways share their plans."""
    key: list[Any] = []
    for name, a in zip(op.kinds, given, strict=True):
        if name in op.tensor_names:
            key += [None] if a is None else [a.shape, a.stride(), a.dtype, a.get_device(), a.data_ptr() & 15]
    return key + [a for n, a in zip(op.kinds, given, strict=True) if n in op.option_names and n not in op.late]


def caller(op: Contract) -> Callable[..., Any]:
    """The function that `OP(...)` is after its first use. Arguments come validated and in the reference's order, defaults filled in."""
    import torch

    registered = register(op)
    plans: dict[Any, Plan | None] = op._plans
    tensor_positions = tuple(i for i, n in enumerate(op.kinds) if n in op.tensor_names)
    option_positions = tuple(i for i, n in enumerate(op.kinds) if n in op.option_names and n not in op.late)
    late_positions = tuple(i for i, n in enumerate(op.kinds) if n in op.late)
    plain = (torch.Tensor, torch.nn.Parameter)
    is_grad_enabled = torch.is_grad_enabled
    is_compiling = torch.compiler.is_compiling
    modes = torch._C._len_torch_dispatch_stack
    forward = torch.autograd.forward_ad
    differentiating = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)
    transform = torch._C._functorch.peek_interpreter_stack
    current_device = torch._C._cuda_getDevice if hasattr(torch._C, "_cuda_getDevice") else None
    single = len(op.output_names) == 1

    def call(*args: Any, implementation: str | None = None) -> Any:
        if is_compiling():
            return registered(*args, implementation or "")
        top = transform()
        if modes() or top is not None:
            if top is not None and top.key() in differentiating:
                raise NotImplementedError(f"{op.name}: torch.func's grad, vjp and jvp do not reach registered ops; torch.autograd and torch.compile do")
            return registered(*args, implementation or "")
        if forward._current_level >= 0 and any(forward.unpack_dual(args[i]).tangent is not None for i in tensor_positions if args[i] is not None):
            raise NotImplementedError(f"{op.name}: forward-mode differentiation does not reach registered ops; torch.autograd does")
        grad = is_grad_enabled()
        key: list[Any] = [implementation]
        first = None
        for i in tensor_positions:
            t = args[i]
            if t is None:
                key.append(None)
                continue
            if type(t) not in plain or (grad and t.requires_grad) or not t.is_cuda:
                return registered(*args, implementation or "")
            if first is None:
                first = t
            key += (t.shape, t.stride(), t.dtype, t.get_device(), t.data_ptr() & 15)
        for i in option_positions:
            key.append(args[i])
        frozen = tuple(key)
        plan = plans.get(frozen, _MISSING)
        if plan is _MISSING:
            plan = plans[frozen] = plan_for(op, args, implementation)
        if plan is None:
            return library.fallback(op, args)
        late = [args[i] for i in late_positions]
        assert first is not None and current_device is not None
        if current_device() != first.get_device():
            with torch.cuda.device(first.device):
                made = plan([args[i] for i in tensor_positions], late)
        else:
            made = plan([args[i] for i in tensor_positions], late)
        return made[0] if single else tuple(made)

    return call


def explain(op: Contract, args: Sequence[Any]) -> Explanation:
    tensors = {n: a for n, a in zip(op.kinds, args, strict=True) if n in op.tensor_names}
    first = next(t for t in tensors.values() if t is not None)
    if not first.is_cuda:
        return Explanation(op.name, str(first.device), None, "the reference, in plain torch (kernels run on CUDA tensors)")
    options = {n: a for n, a in zip(op.kinds, args, strict=True) if n not in tensors}
    device = _device(_device_index(op, tensors))
    return explain_problem(op, op.problem_of(metas_of(tensors), options, device))


def explain_problem(op: Contract, problem: Problem) -> Explanation:
    """What a problem would run on the device it names, GPU or none here."""
    choice = select(op, problem)
    if choice.implementation is None:
        return Explanation(op.name, problem.device.name, choice, "the reference, in plain torch: no implementation takes this input")
    launches = choice.implementation.launches(choice.problem, choice.config)
    path = " then ".join(f"{getattr(x.kernel, '__name__', x.kernel)} on a grid of {'x'.join(map(str, x.grid))}" for x in launches)
    return Explanation(op.name, problem.device.name, choice, f"{choice.implementation.name}: {path}")
