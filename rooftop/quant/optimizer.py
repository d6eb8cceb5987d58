"""AdamW with 8-bit states, a quarter of the memory of float32: `rooftop.adamw_8bit` for each parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import torch
from torch import Tensor

from rooftop.formats.quantized import Quantized
from rooftop.ops.adamw_8bit import BLOCK, adamw_8bit


def adamw_8bit_states(param: Tensor) -> tuple[Quantized, Quantized]:
    """Both states of `rooftop.adamw_8bit` for `param` before the first step: zeros."""
    n = param.numel()

    def zeros() -> Quantized:
        codes = torch.zeros(n, dtype=torch.uint8, device=param.device).view(torch.float8_e4m3fn)
        scale = torch.full((-(-n // BLOCK),), 2.0**-126, device=param.device)
        return Quantized(codes, scale, None, None, "e4m3", (n,), "float32", 1, BLOCK, (0, 0), "f32", None)

    return zeros(), zeros()


class AdamW8bit(torch.optim.Optimizer):  # type: ignore[misc]
    """`torch.optim.AdamW` with states of 8 bits: two bytes a parameter, and a float32 scale for each 256 of both, instead of eight bytes.

    params, lr, betas, eps, weight_decay: as in `torch.optim.AdamW`. rounding: of the states, "stochastic" or "nearest". seed: of the random bits; each step and
    parameter uses different ones. Parameters are float32, float16 or bfloat16, and contiguous; gradients are dense.

    The states are `rooftop.quant.Quantized` (`state[p]["first"]`, `["second"]`): `.dequantize()` decodes them, and `state_dict()` contains them as codes.

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
                raise ValueError(f"AdamW8bit: {name} is {value}; it must be finite, at least 0{' and below 1' if name.startswith('betas') else ''}")
        if rounding not in ("stochastic", "nearest"):
            raise ValueError(f"AdamW8bit: rounding is {rounding!r}; accepted are stochastic, nearest")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "rounding": rounding, "seed": seed})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As of every optimizer of torch. Raises ValueError for the state of another optimizer, such as `torch.optim.AdamW`."""
        for group in state_dict["param_groups"]:
            if missing := self.defaults.keys() - group.keys():
                raise ValueError(f"AdamW8bit: param_groups lack {', '.join(sorted(missing))}; the state must be that of an AdamW8bit")
        for state in state_dict["state"].values():
            if set(state) != {"step", "first", "second"} or not all(isinstance(state[n], Quantized) for n in ("first", "second")):
                raise ValueError(f"AdamW8bit: a state holds {', '.join(map(str, state))}; it must hold step, first and second of an AdamW8bit")
        super().load_state_dict(state_dict)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step for each parameter that has a gradient. Calls `closure` first, with gradients enabled, and returns its result."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        index = 0
        for group in self.param_groups:
            for p in group["params"]:
                index += 1
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["first"], state["second"] = adamw_8bit_states(p)
                elif state["first"].device != p.device:  # loaded from another device
                    state["first"], state["second"] = state["first"].to(p.device), state["second"].to(p.device)
                state["step"] += 1
                adamw_8bit(
                    p, p.grad, state["first"], state["second"], state["step"], lr=float(group["lr"]), betas=group["betas"], eps=group["eps"],
                    weight_decay=group["weight_decay"], rounding=group["rounding"], seed=group["seed"] + state["step"] * 1000003 + index,
                )  # fmt: skip
        return loss
