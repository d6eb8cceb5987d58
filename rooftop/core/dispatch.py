"""From a call to its launches: the implementation and the config are chosen and prepared once for each kind of input; later calls only
launch.

Eager calls on plain tensors run the prepared launches directly and are recorded for autograd if a gradient is needed. torch.compile,
functional transforms, dispatch modes and tensor subclasses go through the op registered with `torch.library`. Eager calls on tensors of the
CPU run torch's own function, where the contract names one (`Contract.cpu`), and torch differentiates it; else the reference. The functional
transforms (`torch.func`) have the reference there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from rooftop.core import debugging, gradients, invariance, library, registry, tensor_kinds
from rooftop.core.call import Choice, refusals, select
from rooftop.core.contract import Contract, metas_of
from rooftop.core.implementation import device_of
from rooftop.core.names import RegistryError
from rooftop.core.plans import Idle, Plan
from rooftop.core.spec import Device, Problem

if TYPE_CHECKING:
    from torch import Tensor

_MISSING: Any = object()
PLANS = 4096  # kinds of input that an op remembers; in decoding, each step adds one


@dataclass(frozen=True)
class Explanation:
    """`print(rooftop.explain(...))`: what would run, and why."""

    op: str
    device: str
    choice: Choice | None
    why: str
    others: tuple[tuple[str, str], ...] = ()  # the other implementations, with the reason

    def __str__(self) -> str:
        lines = [f"{self.op} on {self.device}: {self.why}"]
        if self.choice and self.choice.call:
            c = self.choice.call
            config = ", ".join(f"{k}={v}" for k, v in c.implementation.config_dict(c.config).items())
            lines.append(f"  config {config or '(none)'} ({c.config_from})")
            if c.why:
                lines.append(f"  {c.why}")
            if said := c.implementation.explains(c.problem, c.config):
                lines.append(f"  {said}")
            if c.copies:
                lines.append(f"  first copied into contiguous memory: {', '.join(c.copies)}")
        for name, reason in (*(self.choice.rejected if self.choice else ()), *self.others):
            lines.append(f"  not {name}: {reason}")
        return "\n".join(lines)


def plan_for(op: Contract, args: Sequence[Any], implementation: str | None) -> Plan | Idle | None:
    """The plan for CUDA arguments; None: the reference runs."""
    tensors, options = op.flattened(args)
    index = _device_index(op, tensors)
    metas = metas_of(tensors)
    problem = op.problem_of(metas, options, _device(index))
    if not implementation and op.idle(problem):
        return Idle(op, problem, index)
    call = select(op, problem, implementation or None).call
    return None if call is None else Plan(call, index)


def _remember(plans: dict[Any, Plan | Idle | None], key: Any, plan: Plan | Idle | None) -> Plan | Idle | None:
    """Stores the plan. If there are too many, the older half is dropped."""
    if len(plans) >= PLANS:
        for old in list(islice(plans, PLANS // 2)):
            plans.pop(old, None)
    plans[key] = plan
    return plan


_DEVICES: dict[int, Device] = {}


def _device(index: int) -> Device:
    if index not in _DEVICES:
        _DEVICES[index] = device_of(index)
    return _DEVICES[index]


def _device_index(op: Contract, tensors: Mapping[str, Tensor | None]) -> int:
    devices = {n: t.device for n, t in tensors.items() if t is not None}
    if len(set(devices.values())) > 1:
        raise ValueError(f"{op.name}: tensors are on different devices: " + ", ".join(f"{n} on {d}" for n, d in devices.items()))
    return next(iter(devices.values())).index or 0


def register(op: Contract) -> Callable[..., Any]:
    """The op as registered with `torch.library`; the first call registers it."""
    _found_by_name()
    return library.register(op, runner(op))


@cache
def _found_by_name() -> None:
    """Makes torch's namespace register an op when its name is looked up. A graph that torch compiled in an earlier process and kept in its
    cache calls ops by name that nothing in this process has called."""
    import torch

    namespace = getattr(torch.ops, library.NAMESPACE)

    class Namespace(type(namespace)):  # type: ignore[misc]
        __module__ = namespace.__module__  # torch names ops after it

        def __getattr__(self, name: str) -> Any:
            if name.removesuffix("_bwd") in registry.op_names():
                with library.registering, suppress(RegistryError):  # another thread may be registering it; an op may have no backward
                    if name not in library.names:
                        register(registry.op(name))
            return super().__getattr__(name)

    namespace.__class__ = Namespace


def runner(op: Contract) -> Callable[[Sequence[Any], str | None], Any]:
    """(arguments, implementation) -> outputs, on CUDA tensors: what calls run that come through torch's dispatcher."""
    plans: dict[Any, Plan | Idle | None] = op._plans
    parts = tuple((i, kind == "list[Tensor]") for i, (n, kind) in enumerate(op.kinds.items()) if n in op.tensor_names)
    option_positions = _options(op)
    execute = _executor(op)

    def run(args: Sequence[Any], implementation: str | None) -> Any:
        key: list[Any] = [implementation, invariance.on]
        tensors: list[Tensor | None] = []
        lengths = []
        for i, many in parts:
            if many:
                tensors += args[i]
                lengths.append(len(args[i]))
            else:
                tensors.append(args[i])
        for t in tensors:
            if t is None:
                key.append(None)
            else:
                key += (t.shape, t.stride(), t.dtype, t.get_device(), t.data_ptr() & 15)
        key += lengths
        for i in option_positions:
            key.append(args[i])
        frozen = tuple(key)
        if debugging.on:
            debugging.check(op, args)
        plan = plans.get(frozen, _MISSING)
        if plan is _MISSING:
            plan = _remember(plans, frozen, plan_for(op, args, implementation))
        return library.fallback(op, args) if plan is None else execute(plan, args, tensors)

    return run


def _options(op: Contract) -> tuple[int, ...]:
    """Positions of the options that decide which kernel runs."""
    return tuple(i for i, n in enumerate(op.kinds) if n in op.option_names and n not in op.runtime_options)


def _executor(op: Contract) -> Callable[[Plan | Idle, Sequence[Any], Sequence[Tensor | None]], Any]:
    """(plan, arguments, the tensors among them) -> outputs."""
    import torch

    runtime_positions = tuple(i for i, n in enumerate(op.kinds) if n in op.runtime_options)
    current_device = torch._C._cuda_getDevice if hasattr(torch._C, "_cuda_getDevice") else None

    def execute(plan: Plan | Idle, args: Sequence[Any], tensors: Sequence[Tensor | None]) -> Any:
        runtime_values = [args[i] for i in runtime_positions]
        assert current_device is not None
        if current_device() != plan.index:
            with torch.cuda.device(plan.index):
                made = plan(tensors, runtime_values)
        else:
            made = plan(tensors, runtime_values)
        if debugging.on:
            debugging.wait(op)
        return made[0] if len(made) == 1 else tuple(made) if made else None

    return execute


def caller(op: Contract) -> Callable[..., Any]:
    """The function that `OP(...)` becomes after its first use. Arguments are validated and in the reference's order, with defaults filled
    in."""
    import torch

    registered = register(op)
    plans: dict[Any, Plan | Idle | None] = op._plans
    tensor_positions = tuple(i for i, n in enumerate(op.kinds) if n in op.tensor_names)
    option_positions = _options(op)
    mutated_positions = tuple(i for i, n in enumerate(op.kinds) if n in op.mutates)
    names = tuple(op.kinds)
    plain, strided = (torch.Tensor, torch.nn.Parameter), torch.strided
    is_grad_enabled = torch.is_grad_enabled
    is_compiling = torch.compiler.is_compiling
    modes = torch._C._len_torch_dispatch_stack
    forward = torch.autograd.forward_ad
    differentiating = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)
    transform = torch._C._functorch.peek_interpreter_stack
    execute = _executor(op)
    lists = bool(op.list_names)
    plainly = op.grad is not None and not (op.mutates or op.into or lists)
    recording = (
        gradients.recorded(op, lambda chosen, args: chosen(args) if callable(chosen) else unrecorded(args, chosen)) if plainly else None
    )

    native = op.cpu is not None
    keys = torch._C._dispatch_keys
    common = _common()

    def unrecorded(args: Sequence[Any], implementation: str | None) -> Any:
        on_gpu = any(args[i] is not None and args[i].is_cuda for i in tensor_positions)
        if native and not on_gpu and implementation is None and not invariance.on:
            found = library.by_torch(op, args)
            if found is not NotImplemented and not library.leaves_out(op, args, found):
                return found
        return call(*args, implementation=implementation) if on_gpu else library.on_cpu(op, args, implementation)

    def elsewhere(args: Sequence[Any], implementation: str | None, grad: bool) -> Any:
        """A call with a gradient, or not on plain tensors of a GPU. What is read with another sign than memory has (the imaginary part of a
        conjugate) is written out before."""
        tensor_kinds.refuse(op.name, [(names[i], args[i]) for i in tensor_positions])
        passed = list(args)
        for i in tensor_positions:
            if args[i] is not None and args[i].is_neg():
                passed[i] = args[i].resolve_neg()
        found = positive(passed, implementation, grad)
        for i in mutated_positions:
            if passed[i] is not args[i]:
                args[i].copy_(passed[i])
        return found

    def positive(args: Sequence[Any], implementation: str | None, grad: bool) -> Any:
        given = [args[i] for i in tensor_positions if args[i] is not None]
        if all(type(t) in plain and (t.is_cuda or t.is_cpu) for t in given):
            if grad and any(t.requires_grad for t in given):
                if recording is not None:
                    return recording(implementation, args)
            elif not op.mutates and all(t.is_cpu for t in given):
                return library.on_cpu(op, args, implementation)
        return registered(*args, implementation or "")

    def call(*args: Any, implementation: str | None = None) -> Any:
        if implementation is not None and not isinstance(implementation, str):
            given = f"{implementation!r}, a {type(implementation).__name__}"
            raise TypeError(f"{op.name}: implementation is {given}; it must be the name of a kernel, or None")
        grad = is_grad_enabled()
        if grad:  # in a trace as well, which would take such a write for the identity
            for i in mutated_positions:
                if args[i] is not None and args[i].requires_grad:
                    raise RuntimeError(
                        f"{op.name} writes into a tensor that requires a gradient, and has no derivative: call it under torch.no_grad()"
                    )
        if is_compiling():
            return registered(*args, implementation or "")
        top = transform()
        if (
            top is not None and not (implementation or mutated_positions or lists)
            and all(args[i] is None or _dense_on_cpu(args[i]) for i in tensor_positions)
        ):
            return library.transformed(op, args)
        if native and top is None and implementation is None and not modes() and not invariance.on:
            dense = True
            for i in tensor_positions:
                t = args[i]
                if t is None:
                    continue
                if keys(t).raw_repr() not in common or type(t) not in plain:
                    break
                dense = dense and t.is_contiguous()
            else:
                found = library.by_torch(op, args, dense)
                if found is not NotImplemented:
                    return found
        if modes() or top is not None:
            if top is not None and top.key() in differentiating:
                raise NotImplementedError(
                    f"{op.name}: torch.func's grad, vjp and jvp do not reach kernels; torch.autograd and torch.compile do"
                )
            return registered(*args, implementation or "")
        if lists:
            tensor_kinds.refuse(op.name, [(names[i], args[i]) for i in tensor_positions])
            return registered(*args, implementation or "")
        if forward._current_level >= 0 and any(
            forward.unpack_dual(args[i]).tangent is not None for i in tensor_positions if args[i] is not None
        ):
            raise NotImplementedError(f"{op.name}: forward-mode differentiation does not reach registered ops; torch.autograd does")
        key: list[Any] = [implementation, invariance.on]
        tensors: list[Tensor | None] = []
        records = False
        for i in tensor_positions:
            t = args[i]
            tensors.append(t)
            if t is None:
                key.append(None)
                continue
            if type(t) not in plain or not t.is_cuda or t.layout is not strided or t.is_neg():
                return elsewhere(args, implementation, grad)
            if grad and t.requires_grad:
                records = True
            key += (t.shape, t.stride(), t.dtype, t.get_device(), t.data_ptr() & 15)
        if records and recording is None:
            return elsewhere(args, implementation, grad)
        for i in option_positions:
            key.append(args[i])
        frozen = tuple(key)
        if debugging.on:
            debugging.check(op, args)
        plan = plans.get(frozen, _MISSING)
        if plan is _MISSING:
            plan = _remember(plans, frozen, plan_for(op, args, implementation))
        if records:
            assert recording is not None
            return recording(
                implementation if plan is None else lambda given: execute(plan, given, [given[i] for i in tensor_positions]), args
            )
        return library.fallback(op, args) if plan is None else execute(plan, args, tensors)

    return call


def _common() -> set[int]:
    """What torch's dispatcher sees in a dense tensor of the CPU, one of inference mode too: neither sparse, nested, quantised nor negated,
    and no transform."""
    import torch

    key = torch._C.DispatchKey
    inferred = torch._C.DispatchKeySet(key.CPU).add(key.AutocastCPU)
    return {inferred.raw_repr(), inferred.add(key.ADInplaceOrView).add(key.AutogradCPU).raw_repr()}


def _dense_on_cpu(t: Tensor) -> bool:
    import torch

    return type(t) in (torch.Tensor, torch.nn.Parameter) and t.is_cpu and tensor_kinds.kind_of(t) is None


def explain(op: Contract, args: Sequence[Any]) -> Explanation:
    tensors, options = op.flattened(args)
    first = next(t for t in tensors.values() if t is not None)
    if not first.is_cuda:
        what = (
            "the reference, in plain torch" if op.cpu is None
            else "torch's own function where that computes it, else the reference, in plain torch"
        )
        return Explanation(op.name, str(first.device), None, f"{what} (kernels run on CUDA tensors)")
    device = _device(_device_index(op, tensors))
    return explain_problem(op, op.problem_of(metas_of(tensors), options, device))


def explain_problem(op: Contract, problem: Problem) -> Explanation:
    """What a problem would run on the device that it names; there need not be such a GPU here."""
    choice = select(op, problem)
    call = choice.call
    if call is None:
        return Explanation(op.name, problem.device.name, choice, "the reference, in plain torch: no implementation takes this input")
    path = " then ".join(
        f"{getattr(x.kernel, '__name__', x.kernel)} on a grid of {'x'.join(map(str, x.grid))}" for x in call.launches
    ) or "a call of torch"
    others = refusals(call.base, call.problem, call.implementation.name)
    return Explanation(op.name, problem.device.name, choice, f"{call.implementation.name}: {path}", others)
