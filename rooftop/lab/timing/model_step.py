"""The ops of one step of a model, with the bytes and operations of each, found without computing: tensors have shapes and no values.

Integers keep their values, as far as they are few: masks, positions and labels decide which ops run. What they cannot decide (rows by
expert) stays unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rooftop.core import registry
from rooftop.core.contract import metas_of
from rooftop.core.library import NAMESPACE
from rooftop.core.spec import Work

FEW = 1 << 22  # elements of an integer tensor that has values
UNITS = {torch.bfloat16: "tensor-bf16", torch.float16: "tensor-f16", torch.float32: "fma32"}
DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
NOTHING = (
    "detach", "alias", "_unsafe_view", "_reshape_alias", "device", "promote_types", "lift_fresh", "empty", "empty_like", "new_empty",
    "sym_size"
)
GATHERS = ("embedding", "index", "index_select", "gather", "nll_loss_forward")  # read as much of their first tensor as they return
WRITES = ("nll_loss_backward",)  # read next to nothing of it


@dataclass(frozen=True)
class Done:
    """An op as it ran: by its own name, of rooftop or of torch; `dtype` of its first tensor of floats."""

    op: str
    ours: bool
    work: Work
    dtype: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        return self.op, self.ours, self.dtype, self.work.read, self.work.write, tuple(sorted(self.work.ops.items()))


def of_step(step: Callable[[], Any]) -> list[tuple[Done, int]]:
    """What `step` runs, and how often: its tensors of floats are without values, parameters of modules among them."""
    with FakeTensorMode(allow_non_fake_inputs=True), _Seen() as seen:
        step()
    by_key = {d.key: d for d in seen.done}
    return [(by_key[k], n) for k, n in Counter(d.key for d in seen.done).items()]


def training(model: nn.Module, ids: Tensor) -> Callable[[], Any]:
    """A step's forward and backward."""
    parameters = [p for p in model.parameters() if p.requires_grad]

    def step() -> None:
        torch.autograd.grad(model(input_ids=ids, labels=ids, use_cache=False).loss, parameters, allow_unused=True)

    return step


class _Seen(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.done: list[Done] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function._schema.name.split("::")[-1]
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if (inputs or name == "arange") and _known(inputs):
            with unset_fake_temporarily():
                result = function(*args, **kwargs)
            if not any(t.is_floating_point() for t in tree_leaves(result) if isinstance(t, Tensor)):
                return result
        result = function(*args, **kwargs)
        dtype = next((DTYPES.get(t.dtype, "") for t in inputs if t.is_floating_point()), "")
        if function.namespace == NAMESPACE:
            self.done.append(Done(name, True, _contract(name, args), dtype))
        elif name not in NOTHING and not _is_view(function):
            returned = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
            self.done.append(Done(name, False, _counted(function, name, args, kwargs, inputs, returned), dtype))
        return result


def _known(tensors: list[Tensor]) -> bool:
    """Whether they are integers with values, and what is made of them is small."""
    if any(isinstance(t, FakeTensor) or t.device.type == "meta" or t.is_floating_point() for t in tensors):
        return False
    rank = max((t.dim() for t in tensors), default=0)
    return prod(max(1, *(t.shape[d] for t in tensors if t.dim() >= -d)) for d in range(-rank, 0)) <= FEW


def _is_view(function: Any) -> bool:
    returned = function._schema.returns
    return bool(returned) and returned[0].alias_info is not None and not returned[0].alias_info.is_write


def _bytes(t: Tensor) -> int:
    """Of its elements in memory: what is expanded is read once."""
    return prod(n for n, s in zip(t.shape, t.stride(), strict=True) if s) * t.element_size() if t.numel() else 0


def _contract(name: str, args: Any) -> Work:
    op: Any = registry.op(name)
    tensors, options = op.flattened(args[: len(op.kinds)])
    return op.work(op.problem_of(metas_of(tensors, addresses=False), options))


def _counted(function: Any, name: str, args: Any, kwargs: Mapping[str, Any], inputs: list[Tensor], outputs: list[Tensor]) -> Work:
    read, write = sum(_bytes(t) for t in inputs), sum(_bytes(t) for t in outputs)
    if name in GATHERS:
        read = write + sum(_bytes(t) for t in inputs if not t.is_floating_point())
    elif name in WRITES:
        read = 0
    elif name.endswith(("slice_backward", "select_backward")):
        read, write = read, write + read  # zeros, and a copy into them
    elif name.endswith("_") and inputs:  # in place
        read -= _bytes(inputs[0]) if name in ("copy_", "zero_", "fill_") else 0
    named = {a.name: v for a, v in zip(function._schema.arguments, args, strict=False)} | dict(kwargs)
    return Work(read, write, _operations(name, named, inputs, outputs))


def _operations(name: str, named: Mapping[str, Any], inputs: list[Tensor], outputs: list[Tensor]) -> dict[str, float]:
    """Of products; an FMA is one."""
    if name in ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "addmv", "mv") and outputs:
        factors = [t for t in inputs if t.dim() >= 1][-2:]
        inner = factors[0].shape[-1]
        if name == "_grouped_mm" and outputs[0].dim() == 3:  # the gradient of the weights: rows are summed over, each once
            return {UNITS.get(outputs[0].dtype, "fma32"): float(outputs[0].shape[-2] * outputs[0].shape[-1] * inner)}
        return {UNITS.get(factors[0].dtype, "fma32"): float(outputs[0].numel() * inner)}
    if "scaled_dot_product" in name or "_flash_attention" in name or "_efficient_attention" in name:
        q, k, v = (named[n] for n in ("query", "key", "value"))
        pairs = float(q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]) * (0.5 if named.get("is_causal") else 1.0)
        products = 3 * q.shape[-1] + 2 * v.shape[-1] if name.endswith("backward") else q.shape[-1] + v.shape[-1]
        return {UNITS.get(q.dtype, "fma32"): pairs * products, "exp": pairs}
    return {}
