"""One step of AdamW whose two states are 8-bit codes: read as codes, computed in float32, written as codes again.

    m = beta1 m + (1 - beta1) g,   v = beta2 r² + (1 - beta2) g²,   r = sqrt(v)
    param = param (1 - lr weight_decay) - lr / (1 - beta1^t) · m / (r / sqrt(1 - beta2^t) + eps)

m and r are kept as e4m3 with a float32 scale for each 256 neighbours. The root is kept, not v: its exponents spread half as far. Rounding is stochastic: what a
step adds to a state is mostly less than half a gap, and to nearest it would be lost each time. Every operation is rounded by itself (no fused
multiply-add), so that the bits are alike everywhere.

Sources: Loshchilov & Hutter 2019 (arXiv 1711.05101); Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number, whole_seed
from rooftop.core.op import Op, Sizes, Tolerance
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.formats import random_bits

if TYPE_CHECKING:
    from torch import Tensor

    from rooftop.formats.quantized import Quantized

BLOCK = 256
ROOT = 0x5BD1E995  # xor of the seed for the second state


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
        first, second: written into: the states m and r, as `rooftop.quant.adamw_8bit_states(param)` makes them: e4m3 of [numel] in groups of 256.
        step: number of the step, starting at 1.
        lr, betas, eps, weight_decay: as `torch.optim.AdamW`'s.
        rounding: of the states: "stochastic" or "nearest".
        seed: of the random bits; use a different one for each step (and parameter) to make the roundings independent.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports the input.

    A NaN in `grad` makes the same element of `param` and of both states NaN; it does not affect the scales.

    Raises TypeError for other dtypes or states, ValueError for shapes, devices or numbers that do not fit, RuntimeError where `param` requires a gradient and
    gradients are on."""
    import torch

    from rooftop.formats.quantized import Quantized

    name = "adamw_8bit"
    for what, t in (("param", param), ("grad", grad)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{name}: {what} is a {type(t).__name__}; it must be a tensor")
        if t.dtype not in (torch.float32, torch.float16, torch.bfloat16) or t.dtype != param.dtype:
            raise TypeError(f"{name}: {what} is {t.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16, alike for param ({param.dtype}) and grad")
        if t.layout != torch.strided:
            raise ValueError(f"{name}: {what} is {t.layout}; it must be dense (torch.strided)")
        if t.shape != param.shape or t.device != param.device:
            raise ValueError(f"{name}: {what} is {tuple(t.shape)} on {t.device}; param is {tuple(param.shape)} on {param.device}")
    if not param.is_contiguous():
        raise ValueError(f"{name}: param has shape {tuple(param.shape)} and strides {tuple(param.stride())}; it must be contiguous")
    for what, q in (("first", first), ("second", second)):
        if not isinstance(q, Quantized):
            raise TypeError(f"{name}: {what} is a {type(q).__name__}; it must be a rooftop.quant.Quantized")
        if (q.format, q.shape, q.columns, q.scale_dtype, q.device) != ("e4m3", (param.numel(),), BLOCK, "f32", param.device):
            raise ValueError(
                f"{name}: {what} is {q.format} of {q.shape} in groups of {q.columns} on {q.device}; it must be e4m3 of ({param.numel()},) in groups of {BLOCK} "
                f"on {param.device}"
            )
        q.verify()
    if first is second or any(_same(a, b) for a, b in ((first.codes, second.codes), (first.scale, second.scale))):
        raise ValueError(f"{name}: first and second are one state; each is written into, so they must be two")
    number(name, "step", step, "a whole number from 1 on", whole=True)
    whole_seed(name, seed)
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ValueError(f"{name}: betas is {betas!r}; it must be two numbers of at least 0 and below 1")
    numbers = (("lr", lr, None), ("betas[0]", betas[0], 1.0), ("betas[1]", betas[1], 1.0), ("eps", eps, None), ("weight_decay", weight_decay, None))
    for what, value, most in numbers:
        number(name, what, value, "a finite number", finite=True)
        if value < 0 or (most is not None and value >= most):
            raise ValueError(f"{name}: {what} is {value}; it must be at least 0" + (" and below 1" if most else ""))
    if step < 1 or rounding not in ("stochastic", "nearest"):
        raise ValueError(f"{name}: step is {step} and rounding {rounding!r}; step must be at least 1, rounding stochastic or nearest")
    if param.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{name}: param requires a gradient; call it under torch.no_grad()")
    OP(
        param.view(-1), grad.detach().reshape(-1), first.codes.view(torch.uint8), first.scale, second.codes.view(torch.uint8), second.scale,
        rounding, lr / (1 - betas[0] ** step), (1 - betas[1] ** step) ** -0.5, 1 - lr * weight_decay, float(betas[0]), float(betas[1]), float(eps),
        random_bits.signed(seed), implementation=implementation,
    )  # fmt: skip


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether both lie at one place, as far as that is known."""
    import torch

    if a is b or torch.compiler.is_compiling() or type(a) is not torch.Tensor or type(b) is not torch.Tensor or a.device.type == "meta":
        return a is b
    return a.numel() > 0 and a.data_ptr() == b.data_ptr()


def reference(
    param: Tensor, grad: Tensor, m: Tensor, m_scale: Tensor, r: Tensor, r_scale: Tensor, rounding: str, size: float, root: float, keep: float, beta1: float,
    beta2: float, eps: float, seed: int,
) -> None:  # fmt: skip
    import torch

    from rooftop.formats.number_formats import decode
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
    param.copy_(p * number(keep) - number(size) * (m1 / (r1 * number(root) + number(eps))))
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
        param: Tensor, grad: Tensor, m: Tensor, m_scale: Tensor, r: Tensor, r_scale: Tensor, rounding: str, size: float, root: float, keep: float, beta1: float,
        beta2: float, eps: float, seed: int,
    ) -> None:  # fmt: skip
        if change == "seed":
            seed += 1
        if change == "decay":
            keep = 1.0
        if change == "eps":
            eps = 0.0
        kept = m.clone(), r_scale.clone()
        reference(param, grad, m, m_scale, r, r_scale, rounding, size, root, keep, beta1, beta2, eps, seed)
        if change == "first":
            m.copy_(kept[0])
        if change == "scale":
            r_scale.copy_(kept[1])

    return run


def _given(n: int, d: str, fill: str = "normal", rounding: str = "stochastic") -> dict[str, Any]:
    codes, scales = Input((n,), "u8", "below 120"), Input((-(-n // BLOCK),), "f32")
    state: dict[str, Any] = {"m": codes, "m_scale": scales, "r": codes, "r_scale": scales}
    numbers: dict[str, Any] = {"size": 1.25e-3, "root": 1.5, "keep": 0.99, "beta1": 0.9, "beta2": 0.999, "eps": 1e-3, "seed": 11}
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


def arrange(tensors: dict[str, Any], options: dict[str, Any], generator: Any) -> dict[str, Any]:
    """Scales are above zero."""
    return {n: tensors[n].abs() * 1e-2 + 1e-4 for n in ("m_scale", "r_scale")}


OP = Op(
    reference,
    objects=True,
    outputs=outputs,
    mutates=("param", "m", "m_scale", "r", "r_scale"),
    cases=_cases(),
    swept=Sizes(  # a layer's weight
        lambda dtype, rows, columns: _given(rows * columns, dtype), {"rows": (1, 1 << 18), "columns": (64, 1 << 16)},
        models={"rows": "inner", "columns": "hidden"},
    ),
    work=work,
    tolerance={n: Tolerance(exact=True) for n in ("param", "m", "m_scale", "r", "r_scale")},
    arrange=arrange,
    runtime_options=("size", "root", "keep", "beta1", "beta2", "eps", "seed"),
    wrong={
        "another seed": _wrong("seed"), "no decay": _wrong("decay"), "no eps": _wrong("eps"), "first state not written": _wrong("first"),
        "scale of the second state not written": _wrong("scale"),
    },
)  # fmt: skip
