"""One step of the AdamW optimizer with 8-bit states: codes are read, the step is computed in float32, and new codes are written.

    m = beta1 m + (1 - beta1) g,   v = beta2 r² + (1 - beta2) g²,   r = sqrt(v)
    param = param (1 - lr weight_decay) - lr / (1 - beta1^t) · m / (r / sqrt(1 - beta2^t) + eps)

m and r are kept as e4m3 with a float32 scale for each 256 neighbours. The root is kept, not v: its exponents spread half as far. Rounding
is stochastic: what a step adds to a state is mostly less than half a gap, and to nearest it would be lost each time. Every operation is
rounded by itself (no fused multiply-add), so that the bits are alike everywhere.

Rounding may not make a step large. By the inequality of Cauchy and Schwarz exact states have |m| <= bound r, with

    bound² = (1 - beta1)² / (1 - beta2) · (1 + q + q² + ... + q^(t-1)),   q = beta1² / beta2

so m is brought to this bound before it is used, and an r above zero is kept as at least the smallest code above zero. No element moves by
more than AdamW's largest step, bound sqrt(1 - beta2^t) / (1 - beta1^t) learning rates: 1 in the first step, 7.3 in the end with the usual
betas.

Sources: Loshchilov & Hutter 2019 (arXiv 1711.05101); Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization" (arXiv
2110.02861)."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number, whole_seed
from rooftop.core.op import Calls, Op, Sizes, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.formats import random_bits

if TYPE_CHECKING:
    from torch import Tensor

    from rooftop.formats.quantized import Quantized

BLOCK = 256
ROOT = 0x5BD1E995  # xor of the seed for the second state
SMALLEST = 2.0**-9  # of e4m3 above zero


def adamw_8bit(
    param: Tensor,
    grad: Tensor,
    first: Quantized,
    second: Quantized,
    step: int,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    rounding: str = "stochastic",
    seed: int = 0,
    implementation: str | None = None,
) -> None:
    """One step of AdamW on `param`, in place, with 8-bit states. `rooftop.quant.AdamW8bit` is the optimizer that uses it.

    Args:
        param: written into: float32, float16 or bfloat16, contiguous.
        grad: of the shape and dtype of `param`, any strides.
        first, second: written into: the states m and r, as `rooftop.quant.adamw_8bit_states(param)` makes them: e4m3 of [numel] in groups
            of 256.
        step: number of the step, starting at 1.
        lr, betas, eps, weight_decay: as `torch.optim.AdamW`'s.
        rounding: of the states: "stochastic" or "nearest".
        seed: of the random bits; use a different one for each step (and parameter) to make the roundings independent.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports the input.

    A NaN in `grad` makes the same element of `param` and of both states NaN; it does not affect the scales.

    Raises TypeError for other dtypes or states, ValueError for shapes, devices or numbers that do not fit, RuntimeError where `param`
    requires a gradient and gradients are on."""
    import torch

    name = "adamw_8bit"
    check_param(param, grad)
    check_states(param, first, second)
    number(name, "step", step, "a whole number from 1 on", whole=True)
    whole_seed(name, seed)
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ValueError(f"{name}: betas is {betas!r}; it must be two numbers of at least 0 and below 1")
    given = (
        ("lr", lr, None), ("betas[0]", betas[0], 1.0), ("betas[1]", betas[1], 1.0), ("eps", eps, None), ("weight_decay", weight_decay, None)
    )
    for what, value, most in given:
        number(name, what, value, "a finite number", finite=True)
        if value < 0 or (most is not None and value >= most):
            raise ValueError(f"{name}: {what} is {value}; it must be at least 0" + (" and below 1" if most else ""))
    if step < 1 or rounding not in ("stochastic", "nearest"):
        raise ValueError(f"{name}: step is {step} and rounding {rounding!r}; step must be at least 1, rounding stochastic or nearest")
    if param.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{name}: param requires a gradient; call it under torch.no_grad()")
    OP(
        param.view(-1), grad.detach().reshape(-1), first.codes.view(torch.uint8), first.scale, second.codes.view(torch.uint8), second.scale,
        rounding, *numbers(step, lr, betas, eps, weight_decay), random_bits.signed(seed), implementation=implementation,
    )


def numbers(step: int, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> tuple[float, ...]:
    """size, root, keep, beta1, beta2, eps and bound: what a step computes with."""
    beta1, beta2 = float(betas[0]), float(betas[1])
    size, root = lr / (1 - beta1**step), (1 - beta2**step) ** -0.5
    return size, root, 1 - lr * weight_decay, beta1, beta2, float(eps), _bound(step, beta1, beta2)


def _bound(step: int, beta1: float, beta2: float) -> float:
    """The largest |m| / r of exact states, and what the rounding of one step adds; float32's largest number where there is no bound."""
    q = beta1 * beta1 / beta2 if beta2 else inf if beta1 else 0.0
    if q < 1:
        total = (1 - q**step) / (1 - q)
    else:
        total = float(step) if q == 1 or step == 1 else inf if step * log(q) > 700 else (q**step - 1) / (q - 1)
    return min((1 - beta1) * (total / (1 - beta2)) ** 0.5 * (1 + 2.0**-20), 3.4e38)


def check_param(param: Tensor, grad: Tensor) -> None:
    """Raises TypeError and ValueError where a parameter and its gradient are none that a step takes."""
    import torch

    name = "adamw_8bit"
    for what, t in (("param", param), ("grad", grad)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{name}: {what} is a {type(t).__name__}; it must be a tensor")
        if t.dtype not in (torch.float32, torch.float16, torch.bfloat16) or t.dtype != param.dtype:
            raise TypeError(
                f"{name}: {what} is {t.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16, alike for param ({param.dtype}) "
                f"and grad"
            )
        if t.layout != torch.strided:
            raise ValueError(f"{name}: {what} is {t.layout}; it must be dense (torch.strided)")
        if t.shape != param.shape or t.device != param.device:
            raise ValueError(f"{name}: {what} is {tuple(t.shape)} on {t.device}; param is {tuple(param.shape)} on {param.device}")
    if not param.is_contiguous():
        raise ValueError(f"{name}: param has shape {tuple(param.shape)} and strides {tuple(param.stride())}; it must be contiguous")


def check_states(param: Tensor, first: Quantized, second: Quantized) -> None:
    """Raises TypeError and ValueError where states are not those of a parameter."""
    from rooftop.formats.quantized import Quantized

    name = "adamw_8bit"
    for what, q in (("first", first), ("second", second)):
        if not isinstance(q, Quantized):
            raise TypeError(f"{name}: {what} is a {type(q).__name__}; it must be a rooftop.quant.Quantized")
        if (q.format, q.shape, q.columns, q.scale_dtype, q.device) != ("e4m3", (param.numel(),), BLOCK, "f32", param.device):
            raise ValueError(
                f"{name}: {what} is {q.format} of {q.shape} in groups of {q.columns} on {q.device}; it must be e4m3 of ({param.numel()},) "
                f"in groups of {BLOCK} "
                f"on {param.device}"
            )
        q.verify()
    if first is second or any(_same(a, b) for a, b in ((first.codes, second.codes), (first.scale, second.scale))):
        raise ValueError(f"{name}: first and second are one state; each is written into, so they must be two")


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether both lie at one place, as far as that is known."""
    import torch

    if a is b or torch.compiler.is_compiling() or type(a) is not torch.Tensor or type(b) is not torch.Tensor or a.device.type == "meta":
        return a is b
    return a.numel() > 0 and a.data_ptr() == b.data_ptr()


def reference(
    param: Tensor, grad: Tensor, m: Tensor, m_scale: Tensor, r: Tensor, r_scale: Tensor, rounding: str, size: float, root: float,
    keep: float, beta1: float, beta2: float, eps: float, bound: float, seed: int,
) -> None:
    import torch

    from rooftop.formats.number_formats import decode, scale_of
    from rooftop.ops.quantize import reference as quantized

    if param.numel() == 0:
        return
    p, g = param.float(), grad.float()

    def number(v: float) -> Tensor:
        return torch.tensor(v, dtype=torch.float32, device=p.device)

    def spread(scale: Tensor) -> Tensor:
        return scale.float().repeat_interleave(BLOCK)[: p.numel()]

    one, b1, b2 = number(1.0), number(beta1), number(beta2)
    m0, r0 = decode(m, "e4m3") * spread(m_scale), decode(r, "e4m3") * spread(r_scale)
    m1 = b1 * m0 + (one - b1) * g
    r1 = (b2 * (r0 * r0) + (one - b2) * (g * g)).double().sqrt().float()  # to nearest: torch's own root of float32 is not, on CPUs
    most = number(bound) * r1
    m1 = torch.where(m1.abs() > most, most.copysign(m1), m1)
    sizes = torch.nn.functional.pad(r1.where(r1.isfinite(), 0), (0, -r1.numel() % BLOCK)).view(-1, BLOCK)
    least = spread(scale_of(sizes.amax(1), "e4m3", "f32")) * SMALLEST
    param.copy_(p * number(keep) - number(size) * (m1 / (r1 * number(root) + number(eps))))
    r1 = torch.where((r1 > 0) & (r1 < least), least, r1)
    for codes, scale, value, mine in ((m, m_scale, m1, seed), (r, r_scale, r1, seed ^ ROOT)):
        found, shared, _ = quantized(value.view(1, 1, -1), None, 1, BLOCK, "e4m3", "f32", True, rounding, mine)
        codes.copy_(found.view(-1))
        scale.copy_(shared.view(-1))


def outputs(param: Meta, **_: Any) -> dict[str, Meta | None]:
    return {}


def work(p: Problem) -> Work:
    """Read param, grad and states, write param and states."""
    states = sum(p[n].nbytes for n in ("m", "m_scale", "r", "r_scale"))
    return Work(p["param"].nbytes + p["grad"].nbytes + states, p["param"].nbytes + states, {"fma32": 20.0 * p["param"].numel})


def _wrong(change: str) -> Callable[..., None]:
    def run(
        param: Tensor, grad: Tensor, m: Tensor, m_scale: Tensor, r: Tensor, r_scale: Tensor, rounding: str, size: float, root: float,
        keep: float, beta1: float, beta2: float, eps: float, bound: float, seed: int,
    ) -> None:
        if change == "seed":
            seed += 1
        if change == "decay":
            keep = 1.0
        if change == "eps":
            eps = 0.0
        if change == "bound":
            bound = 3.4e38
        kept = m.clone(), r_scale.clone()
        reference(param, grad, m, m_scale, r, r_scale, rounding, size, root, keep, beta1, beta2, eps, bound, seed)
        if change == "first":
            m.copy_(kept[0])
        if change == "scale":
            r_scale.copy_(kept[1])

    return run


def _given(n: int, d: str, fill: str = "normal", rounding: str = "stochastic") -> dict[str, Any]:
    codes, scales = Input((n,), "u8", "below 120"), Input((-(-n // BLOCK),), "f32")
    state: dict[str, Any] = {"m": codes, "m_scale": scales, "r": codes, "r_scale": scales}
    numbers: dict[str, Any] = {
        "size": 1.25e-3, "root": 1.5, "keep": 0.99, "beta1": 0.9, "beta2": 0.999, "eps": 1e-3, "bound": 7.27, "seed": 11
    }
    return {"param": Input((n,), d), "grad": Input((n,), d, fill), **state, "rounding": rounding, **numbers}


def _cases() -> list[Case]:
    def one(name: str, tags: str, n: int, d: str, fill: str = "normal", rounding: str = "stochastic") -> Case:
        return case(name, tags=tags, **_given(n, d, fill, rounding))

    found = [
        one("128 Mi", "bench", 1 << 27, "bf16"),
        one("64 Mi", "bench", 1 << 26, "f32"),
        one("nearest 128 Mi", "bench", 1 << 27, "bf16", rounding="nearest"),
    ]
    for d in ("f32", "f16", "bf16"):
        found += [one(f"{n} elements", "edge", n, d) for n in (1, 255, 256, 257, 4096, 5000)]
        found += [one(f"{fill} {n}", "edge", n, d, fill) for fill in ("nan", "inf", "tiny") for n in (512, 300)]
        found.append(one("nearest 700", "edge", 700, d, rounding="nearest"))
    return [*found, one("none", "edge", 0, "bf16")]


def fixup(tensors: dict[str, Any], options: dict[str, Any], generator: Any) -> dict[str, Any]:
    """Scales are above zero."""
    return {n: tensors[n].abs() * 1e-2 + 1e-4 for n in ("m_scale", "r_scale")}


OP = Op(
    reference,
    calls=Calls(objects=True),
    outputs=outputs,
    mutates=("param", "m", "m_scale", "r", "r_scale"),
    cases=_cases(),
    swept=Sizes(  # a layer's weight
        lambda dtype, rows, columns: _given(rows * columns, dtype), {"rows": (1, 1 << 18), "columns": (64, 1 << 16)},
        models={"rows": "inner", "columns": "hidden"},
    ),
    work=work,
    tolerance={n: Tolerance(exact=True) for n in ("param", "m", "m_scale", "r", "r_scale")},
    values=Values(fixup=fixup, runtime_options=("size", "root", "keep", "beta1", "beta2", "eps", "bound", "seed")),
    wrong={
        "another seed": _wrong("seed"), "no decay": _wrong("decay"), "no eps": _wrong("eps"), "no bound": _wrong("bound"),
        "first state not written": _wrong("first"),
        "scale of the second state not written": _wrong("scale"),
    },
)
