"""Registers ops with `torch.library`, through define and impl, with a fake kernel and autograd."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from rooftop.core import debugging, invariance
from rooftop.core.contract import KINDS, Contract, metas_of
from rooftop.core.gradients import Gradients, autocast_off, refuse_second_derivative
from rooftop.core.layouts import widen
from rooftop.core.one_by_one import one_by_one

NAMESPACE = "rooftop"
_LIBRARY: Any = None
registering = threading.RLock()  # several threads may make their first call at once
names: set[str] = set()  # of the ops that are registered, or about to be


def schema(op: Contract) -> str:
    """`softmax(Tensor x, SymInt dim, str implementation) -> Tensor`"""
    marks = {n: f"Tensor({chr(ord('a') + i)}!)" for i, n in enumerate(op.mutates)}  # an alias set each
    inputs = ", ".join(f"{KINDS[kind].replace('Tensor', marks[n], 1) if n in marks else KINDS[kind]} {n}" for n, kind in op.kinds.items())
    results = "Tensor" if len(op.output_names) == 1 else "(" + ", ".join("Tensor" for _ in op.output_names) + ")"  # () where there are none
    return f"{op.name}({inputs}, str implementation) -> {results}"


def _library() -> Any:
    """torch's library of our namespace. What a compiled graph calls is past autograd already, and runs without a second way through torch's
    dispatcher."""
    import torch

    plain, modes, transform = (torch.Tensor, torch.nn.Parameter), torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack
    is_grad_enabled = torch.is_grad_enabled

    class Library(torch.library.Library):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(NAMESPACE, "DEF")
            # by the name of an op: what runs on CUDA tensors, and where its tensors stand among the arguments
            self.direct: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {}

        def impl(self, op_name: Any, fn: Any, dispatch_key: str = "", **more: Any) -> Any:
            kernel = fn
            if dispatch_key == "Autograd" and more.get("with_keyset") and isinstance(op_name, str) and op_name.split("::")[-1] in self.direct:
                direct, positions = self.direct[op_name.split("::")[-1]]

                def fn(keyset: Any, *args: Any) -> Any:
                    if is_grad_enabled() or modes() or transform() is not None:
                        return kernel(keyset, *args)
                    for i in positions:
                        a = args[i]
                        if a is not None and (type(a) not in plain or not a.is_cuda):
                            return kernel(keyset, *args)
                    return direct(*args)

            return super().impl(op_name, fn, dispatch_key, **more)

    return Library()


# (arguments in the reference's order, implementation) -> outputs, None for an absent one
Run = Callable[[Sequence[Any], "str | None"], Any]


def register(op: Contract, run: Run) -> Callable[..., Any]:
    """The registered op as a callable; the first call registers it. `run`: what it does with CUDA tensors."""
    with registering:
        if op._library is None:
            names.add(op.name)
            op._library = _registered(op, run)
        return op._library


def _registered(op: Contract, run: Run) -> Callable[..., Any]:
    import torch

    global _LIBRARY
    if _LIBRARY is None:
        _LIBRARY = _library()
    single = len(op.output_names) == 1
    qualified = f"{NAMESPACE}::{op.name}"
    _LIBRARY.define(schema(op), tags=(torch.Tag.pt2_compliant_tag,))

    def cuda(*args: Any) -> Any:
        *given, implementation = _functional(op, args) if op.into else args
        return _absent_as_empty(run(given, implementation or None), given)

    def cpu(*args: Any) -> Any:
        *given, implementation = args
        return _absent_as_empty(on_cpu(op, given, implementation), given)

    def fake(*args: Any) -> Any:
        *given, _ = args
        device = next(a for a in op.flattened(given)[0].values() if a is not None).device
        made = tuple(
            torch.empty(0, device=device) if m is None else torch.empty_strided(
                m.shape, m.strides, dtype=_torch_dtype(m.dtype), device=device
            )
            for m in _fake_metas(op, given)
        )
        return made[0] if single else made if made else None

    if not op.list_names:
        _LIBRARY.direct[op.name] = cuda, tuple(i for i, n in enumerate(op.kinds) if n in op.tensor_names)
    _LIBRARY.impl(op.name, cuda, "CUDA")
    _LIBRARY.impl(op.name, cpu, "CPU")
    torch.library.register_fake(qualified, fake, lib=_LIBRARY)
    if op.grad is not None:
        setup, backward = _autograd(op)
        torch.library.register_autograd(qualified, backward, setup_context=setup, lib=_LIBRARY)
    elif op.forward is not None and not op.mutates:
        torch.library.register_autograd(qualified, refuse_second_derivative(op.forward.name), lib=_LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), op.name).default


def on_cpu(op: Contract, given: Sequence[Any], implementation: str | None) -> Any:
    """A call on tensors of the CPU: None for an output that is absent. Raises UnsupportedError for a named kernel."""
    if implementation:
        from rooftop.core.call import named
        from rooftop.core.implementation import UnsupportedError

        named(op, implementation)  # raises for a name that does not exist
        raise UnsupportedError(f"{op.name}: implementation={implementation!r} runs on CUDA tensors; these lie on the CPU")
    if debugging.on or op.strict:
        debugging.check(op, given)
    return one_by_one(op, given, fallback, shaped) if invariance.on else fallback(op, given)


def by_torch(op: Contract, given: Sequence[Any], dense: bool = False) -> Any:
    """The result of torch's own function on tensors of the CPU (`Contract.cpu`), NotImplemented where that does not compute it. `dense`:
    all tensors are known to be contiguous."""
    import torch

    assert op.cpu is not None
    if debugging.on:
        debugging.check(op, given)
    autocast = torch._C._is_any_autocast_enabled()
    if not autocast and op.forward is None:
        found = op.cpu(*given)
        return found if dense else _laid_out(op, given, found)
    tensors = op.flattened(given)[0].values()
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return NotImplemented  # a backward has no derivative; of others autocast would change the products of torch's backward
    if not autocast:
        return _laid_out(op, given, op.cpu(*given))
    with autocast_off(tensors):
        return _laid_out(op, given, op.cpu(*given))


def _laid_out(op: Contract, given: Sequence[Any], found: Any) -> Any:
    """The results with the strides of the shape function, which torch's function may not give to inputs that are not contiguous."""
    import torch

    if found is NotImplemented or not op.output_names or all(not isinstance(t, torch.Tensor) or t.is_contiguous() for t in given):
        return found
    results, layouts = found if isinstance(found, tuple) else (found,), _layouts(op, given)
    if not layouts:  # it writes into its arguments
        return found
    made = []
    for r, at in zip(results, layouts, strict=True):
        if r is not None and at is not None and r.stride() != at[1] and r.numel() > 1:
            r = torch.empty_strided(at[0], at[1], dtype=r.dtype, device=r.device).copy_(r)
        made.append(r)
    return tuple(made) if isinstance(found, tuple) else made[0]


_LAYOUTS: dict[Any, Any] = {}  # the last kinds of calls: their shape functions take longer than small products


def _layouts(op: Contract, given: Sequence[Any]) -> list[tuple[Sequence[int], Sequence[int]] | None]:
    """Shape and strides of each output; None for an absent one."""
    key = op, tuple([(t.shape, t.stride(), t.dtype) if hasattr(t, "stride") else t for t in given])
    if key not in _LAYOUTS:
        if len(_LAYOUTS) >= 1024:
            _LAYOUTS.clear()
        _LAYOUTS[key] = [None if m is None else (m.shape, tuple(m.strides)) for m in _fake_metas(op, given)]
    found: list[tuple[Sequence[int], Sequence[int]] | None] = _LAYOUTS[key]
    return found


def leaves_out(op: Contract, given: Sequence[Any], found: Any) -> bool:
    """Whether torch's own function gave no value for an output that the call has."""
    results = found if isinstance(found, tuple) else (found,)
    return any(r is None for r in results) and any(
        r is None and m is not None for r, m in zip(results, _fake_metas(op, given), strict=True)
    )


def transformed(op: Contract, given: Sequence[Any]) -> Any:
    """The reference on tensors that a functional transform (`torch.func`) holds, computed as `fallback` does, in whatever layout."""
    tensors, options = op.flattened(given)
    try:
        with autocast_off(tensors.values()):
            result = op.reference(*op.arguments({n: widen(t) for n, t in tensors.items()}, options))
    except RuntimeError as error:  # vmap's, of values that decide what is computed
        raise NotImplementedError(f"{op.name}: torch.func does not reach it with these arguments: {str(error).splitlines()[0]}") from error
    results = result if isinstance(result, tuple) else (result,)
    made = tuple(None if m is None else r.to(_torch_dtype(m.dtype)) for r, m in zip(results, _fake_metas(op, given), strict=True))
    return made if len(made) > 1 else made[0]


def fallback(op: Contract, given: Sequence[Any]) -> Any:
    """The reference, computed in float32 if the inputs have 16 bits and rounded once, in the layouts that the shape function gives."""
    tensors, options = op.flattened(given)
    wide = {n: widen(t) for n, t in tensors.items()}
    with autocast_off(tensors.values()):
        result = op.reference(*op.arguments(wide, options))
    for name in op.mutates:
        if (t := tensors[name]) is not None and wide[name] is not t:
            t.copy_(wide[name])
    if not op.output_names:
        return None
    return shaped(op, given, result)


def shaped(op: Contract, given: Sequence[Any], result: Any) -> Any:
    """Results in the layouts and dtypes that the shape function gives."""
    results = result if isinstance(result, tuple) else (result,)
    made = tuple(None if m is None else _in_layout(r, m) for r, m in zip(results, _fake_metas(op, given), strict=True))
    return made if len(made) > 1 else made[0]


def _absent_as_empty(results: Any, given: Sequence[Any]) -> Any:
    """Replaces absent results by empty tensors: ops of torch have a fixed number of results."""
    if not isinstance(results, tuple) or all(r is not None for r in results):
        return results
    like = next(t for t in (*results, *given) if hasattr(t, "new_empty"))
    return tuple([like.new_empty(0, dtype=_torch_dtype("f32")) if r is None else r for r in results])


def _functional(op: Contract, args: Sequence[Any]) -> Sequence[Any]:
    """Registered ops may not return an alias of an input: `inplace` works in eager calls only."""
    return [False if n == "inplace" else a for n, a in zip((*op.kinds, ""), args, strict=True)]


def _torch_dtype(name: str) -> Any:
    import torch

    from rooftop.core.spec import DTYPES

    return getattr(torch, DTYPES[name].torch)


def _fake_metas(op: Contract, given: Sequence[Any]) -> list[Any]:
    tensors, options = op.flattened(given)
    return list(op.outputs(**op._grouped(metas_of(tensors, addresses=False)), **options).values())


def _in_layout(result: Any, meta: Any) -> Any:
    """The reference's result in the layout and dtype that the shape function gives, and never an alias of an input."""
    import torch

    if tuple(result.stride()) == tuple(meta.strides) and result.dtype == _torch_dtype(meta.dtype):
        return result
    out = torch.empty_strided(meta.shape, meta.strides, dtype=_torch_dtype(meta.dtype), device=result.device)
    return out.copy_(result)


def _autograd(op: Contract) -> tuple[Callable[..., None], Callable[..., Any]]:
    gradients, count = Gradients(op), len(op.kinds)

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        args, outputs = inputs[:count], (output,) if len(op.output_names) == 1 else output
        tensors, options = op.flattened(args)
        gradients.save(ctx, {**tensors, **options}, outputs, [m is not None for m in _fake_metas(op, args)])

    def backward(ctx: Any, *d_outputs: Any) -> Any:
        return (*gradients.of(ctx, d_outputs, ctx.needs_input_grad[:count]), None)

    return setup, backward
