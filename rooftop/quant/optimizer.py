"""AdamW with 8-bit states, a quarter of the memory of float32: `rooftop.adamw_8bit` for each parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import torch
from torch import Tensor

from rooftop.formats.quantized import Quantized
from rooftop.ops.adamw_8bit import BLOCK, adamw_8bit, check_param, check_states
from rooftop.ops.adamw_8bit import numbers as step_numbers
from rooftop.ops.quantize import reference as quantized
from rooftop.quant import adamw_cpu

OWN = ("lr", "betas", "eps", "weight_decay", "rounding", "seed")  # of a group


def adamw_8bit_states(param: Tensor) -> tuple[Quantized, Quantized]:
    """Both states of `rooftop.adamw_8bit` for `param` before the first step: zeros."""
    n = param.numel()

    def zeros() -> Quantized:
        codes = torch.zeros(n, dtype=torch.uint8, device=param.device)  # as bytes: pickle cannot read storages of float8
        scale = torch.full((-(-n // BLOCK),), 2.0**-126, device=param.device)
        return Quantized(codes, scale, None, None, "e4m3", (n,), "float32", 1, BLOCK, (0, 0), "f32", None)

    return zeros(), zeros()


class AdamW8bit(torch.optim.Optimizer):  # type: ignore[misc]
    """`torch.optim.AdamW` with states of 8 bits: two bytes a parameter, and a float32 scale for each 256 of both, instead of eight bytes.

    params, lr, betas, eps, weight_decay: as in `torch.optim.AdamW`. rounding: of the states, "stochastic" or "nearest". seed: of the random
    bits; each step and parameter uses different ones. Parameters are float32, float16 or bfloat16, and contiguous, DTensors (FSDP2) too;
    gradients are dense. No element moves by more than AdamW's largest step (`rooftop.adamw_8bit`).

    The states are `rooftop.quant.Quantized` (`state[p]["first"]`, `["second"]`): `.dequantize()` decodes them, and `state_dict()` contains
    them as codes.

    Raises ValueError for numbers out of range; the first step raises the errors of `rooftop.adamw_8bit`."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        rounding: str = "stochastic",
        seed: int = 0,
    ) -> None:
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise ValueError(f"AdamW8bit: betas is {betas!r}; it must be two numbers of at least 0 and below 1")
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay), ("betas[0]", betas[0]), ("betas[1]", betas[1])):
            if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)):
                raise TypeError(f"AdamW8bit: {name} is {value!r}, a {type(value).__name__}; it must be a number")
            if not 0 <= value < (1 if name.startswith("betas") else inf):
                raise ValueError(
                    f"AdamW8bit: {name} is {value}; it must be finite, at least 0{' and below 1' if name.startswith('betas') else ''}"
                )
        if rounding not in ("stochastic", "nearest"):
            raise ValueError(f"AdamW8bit: rounding is {rounding!r}; accepted are stochastic, nearest")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "rounding": rounding, "seed": seed})

    def state_dict(self) -> dict[str, Any]:
        """As of every optimizer of torch: the states of a parameter as codes. Those of a DTensor, whose blocks end where a shard ends, are
        written as DTensors
        of float32: they can be gathered, and loaded on another number of ranks."""
        found = super().state_dict()
        params = [p for group in self.param_groups for p in group["params"]]
        for index, state in found["state"].items():
            if is_dtensor(p := params[index]):
                found["state"][index] = {n: _whole(v, p) if isinstance(v, Quantized) else v for n, v in state.items()}
        return dict(found)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As of every optimizer of torch. Raises ValueError for the state of another optimizer, such as `torch.optim.AdamW`, or of other
        parameters; the optimizer is then as it was."""
        groups, params = state_dict["param_groups"], [p for group in self.param_groups for p in group["params"]]
        for group in groups:
            if missing := set(OWN) - group.keys():
                raise ValueError(f"AdamW8bit: param_groups lack {', '.join(sorted(missing))}; the state must be that of an AdamW8bit")
        given = dict(zip((key for group in groups for key in group["params"]), params, strict=False))
        states = {}
        for key, state in state_dict["state"].items():
            if set(state) != {"step", "first", "second"} or not all(isinstance(state[n], (Quantized, Tensor)) for n in ("first", "second")):
                raise ValueError(
                    f"AdamW8bit: a state holds {', '.join(map(str, state))}; it must hold step, first and second of an AdamW8bit"
                )
            states[key] = dict(state)
            if key in given:
                states[key] |= {n: _coded(state[n], given[key]) for n in ("first", "second")}
                check_states(local(given[key]), states[key]["first"], states[key]["second"])
        super().load_state_dict({**state_dict, "state": states})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step for each parameter that has a gradient, of a DTensor the part on this rank. Calls `closure` first, with gradients
        enabled, and returns its result."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        index = 0
        for group in self.param_groups:
            on_cpu: dict[int, list[adamw_cpu.Update]] = {}  # by the number of the step
            numbers = {"lr": float(group["lr"]), "betas": group["betas"], "eps": group["eps"], "weight_decay": group["weight_decay"]}
            for p in group["params"]:
                index += 1
                if p.grad is None:
                    continue
                param, grad, state = local(p), local(p.grad), self.state[p]
                if not state:
                    state["step"] = 0
                    state["first"], state["second"] = adamw_8bit_states(param)
                elif state["first"].device != param.device:  # the model has been moved
                    state["first"], state["second"] = state["first"].to(param.device), state["second"].to(param.device)
                first, second, count, seed = (
                    state["first"], state["second"], int(state["step"]) + 1, group["seed"] + (int(state["step"]) + 1) * 1000003 + index
                )
                if param.device.type == "cpu" and not torch.compiler.is_compiling():
                    check_param(param, grad)
                    on_cpu.setdefault(count, []).append(adamw_cpu.Update(param.view(-1), grad.reshape(-1), first, second, seed))
                else:
                    adamw_8bit(param, grad, first, second, count, rounding=group["rounding"], seed=seed, **numbers)
                state["step"] = count
            for count, updates in on_cpu.items():
                adamw_cpu.step(updates, step_numbers(count, **numbers), group["rounding"])
        return loss


def is_dtensor(t: Tensor) -> bool:
    return torch.distributed.is_available() and isinstance(t, torch.distributed.tensor.DTensor)


def local(t: Tensor) -> Tensor:
    """The part of a DTensor on this rank; another tensor as it is."""
    return t.to_local() if is_dtensor(t) else t


def _whole(state: Quantized, param: Any) -> Tensor:
    """The values of a state, distributed as its parameter is."""
    values = state.dequantize().view(param.to_local().shape)
    return torch.distributed.tensor.DTensor.from_local(
        values, param.device_mesh, param.placements, run_check=False, shape=param.shape, stride=param.stride()
    )


def _coded(state: Quantized | Tensor, param: Tensor) -> Quantized:
    """A state of its own for a parameter, of codes or of values."""
    part = local(param)
    if isinstance(state, Quantized):
        return state._with([None if t is None else t.to(part.device, copy=True) for t in state._leaves()])
    if is_dtensor(param) and not is_dtensor(state):
        state = torch.distributed.tensor.distribute_tensor(state.to(part.device), param.device_mesh, param.placements)
    values, made = local(state).detach().to(part.device).reshape(1, 1, -1).float(), adamw_8bit_states(part)[0]
    if values.numel() != part.numel():
        raise ValueError(f"AdamW8bit: a state is {tuple(state.shape)}; its parameter is {tuple(param.shape)}")
    codes, scale, _ = quantized(values, None, 1, BLOCK, "e4m3", "f32", True, "nearest", 0)
    made.codes.view(torch.uint8).copy_(codes.view(-1))
    made.scale.copy_(scale.view(-1))
    return made
