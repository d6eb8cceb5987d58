"""GELU (Gaussian error linear unit), exact or by tanh.

    y = x · Φ(x),   Φ(x) = (1 + erf(x / sqrt(2))) / 2   or   (1 + tanh(sqrt(2 / pi) · (x + 0.044715 x³))) / 2

Source: Hendrycks & Gimpel 2016, "Gaussian Error Linear Units" (arXiv 1606.08415)."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Grad, Judging, Op, Tolerance, each_element
from rooftop.core.spec import Case, Input, Meta, Problem, Work
from rooftop.ops._peers import compiled
from rooftop.ops._pointwise import canonical, cases, sizes, together, validate

if TYPE_CHECKING:
    from torch import Tensor

APPROXIMATIONS = ("none", "tanh")
LARGE, FAINT = 0x7cf0bdc2, 0xda24260  # the bits of 1e37 and 1e-30 in float32, whose upper half bfloat16 has
INFINITE = 0x7C00  # in float16


def gelu(input: Tensor, approximate: str = "none", *, implementation: str | None = None) -> Tensor:
    """x · Φ(x), as `torch.nn.functional.gelu`, computed in float32 and rounded once.

    Args:
        input: float32, float16 or bfloat16, any shape and strides.
        approximate: `"none"`, exact, or `"tanh"`.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns a tensor of the shape and dtype of `input`.

    Raises TypeError for other dtypes, ValueError for another `approximate` or an input that a named implementation cannot take."""
    validate("gelu", "input", input=input)
    if approximate not in APPROXIMATIONS:
        raise ValueError(f"gelu: approximate is {approximate!r}; it must be 'none' or 'tanh'")
    return OP(input, approximate, implementation=implementation)


def reference(x: Tensor, approximate: str) -> Tensor:
    if approximate == "none":
        return x * ((1 + (x * sqrt(0.5)).erf()) / 2)
    return x * ((1 + (sqrt(2 / pi) * (x + 0.044715 * x**3)).tanh()) / 2)


def eager(x: Tensor, approximate: str) -> Tensor:
    import torch

    return torch.nn.functional.gelu(x, approximate=approximate)


def cpu(x: Tensor, approximate: str) -> Any:
    """oneDNN, which computes the exact one of contiguous tensors, makes infinities of what is large and NaN of them, and zeros of
    denormals of bfloat16; its gradients err more than what is allowed. What it does not take, transposed tensors, torch computes itself."""
    import torch

    if approximate == "tanh" or not x.is_contiguous():
        return eager(x, approximate)
    followed = x.requires_grad and torch.is_grad_enabled()
    if not followed and x.numel() and _ordinary(x):
        return eager(x, approximate)
    if x.dim() > 1 and x.shape[-1] > 1 and x.shape[-2] > 1:
        return eager(x.mT, approximate).mT
    return NotImplemented


def _ordinary(x: Tensor) -> bool:
    """Whether no element is as large, and in each row of bfloat16 one large enough that zeros for denormals are within the contract. The
    bits of positive numbers are ordered as the numbers are."""
    import torch

    if x.element_size() == 4:
        return x.detach().view(torch.int32).amax().item() < LARGE
    bits = x.detach().view(torch.int16)
    if x.dtype == torch.float16:
        return bits.amax().item() < INFINITE
    least, most = bits.amax(-1).aminmax()
    return least.item() > FAINT >> 16 and most.item() < LARGE >> 16


def backward(dy: Tensor, x: Tensor, approximate: str) -> Tensor:
    """dx = dy · (Φ(x) + x Φ'(x))"""
    if approximate == "none":
        return dy * ((1 + (x * sqrt(0.5)).erf()) / 2 + x * ((-x * x / 2).exp() / sqrt(2 * pi)))
    t = (sqrt(2 / pi) * (x + 0.044715 * x**3)).tanh()
    return dy * ((1 + t) / 2 + x * ((1 - t * t) / 2) * (sqrt(2 / pi) * (1 + 3 * 0.044715 * x * x)))


def work(p: Problem) -> Work:
    """Read x, write y; about 20 FMAs for erf, or one exponential and 8."""
    n = p["x"].numel
    ops = {"fma32": 20.0 * n} if p.option("approximate") == "none" else {"fma32": 8.0 * n, "exp": 1.0 * n}
    return Work(p["x"].nbytes, p["y"].nbytes, ops)


def work_bwd(p: Problem) -> Work:
    n = p["x"].numel
    return Work(p["dy"].nbytes + p["x"].nbytes, p["dx"].nbytes, {"fma32": 24.0 * n, "exp": 1.0 * n})


def _torch_backward() -> Callable[..., Any]:
    import torch

    return lambda dy, x, approximate: torch.ops.aten.gelu_backward(dy, x, approximate=approximate)


def _cases() -> list[Case]:
    def call(approximate: str) -> Callable[[Input], dict[str, Any]]:
        return lambda x: {"x": x, "approximate": approximate}

    exact = cases(call("none"), traffic=2)
    tanh = [Case(f"tanh {c.name}", c.inputs, c.tags, c.why) for c in cases(call("tanh"), traffic=2) if "huge" not in c.tags]
    return exact + tanh


OP = Op(
    reference,
    calls=Calls(cpu=cpu, public=lambda tensors, options: ((tensors["x"],), options)),
    outputs=lambda x, approximate: {"y": together(x)},
    canonical=canonical,
    cases=_cases(),
    judging=Judging(rows=each_element),
    swept=sizes(lambda x: {"x": x, "approximate": "none"}),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(
        wrt=("x",),
        judging=Judging(rows=each_element), saves=("x",),
        backward=backward,
        outputs=lambda dy, x, approximate: {"dx": together(x) if dy.strides == x.strides else Meta(x.shape, x.dtype)},
        work=work_bwd,
        peers={"torch": _torch_backward, "torch.compile": compiled(backward)},
        wrong={
            "slope of the other": lambda dy, x, approximate: backward(dy, x, "tanh" if approximate == "none" else "none"),
            "x times the density left out": lambda dy, x, approximate: dy * (1 + (x * sqrt(0.5)).erf()) / 2,
        },
    ),
    peers={"torch": lambda: eager, "torch.compile": compiled(reference)},
    wrong={
        "the other approximation": lambda x, approximate: reference(x, "tanh" if approximate == "none" else "none"),
        "by sigmoid": lambda x, approximate: x * (1.702 * x).sigmoid(),
        "tail cut off": lambda x, approximate: reference(x, approximate) * (x > -2),
        "tail not written": lambda x, approximate: _tail(x, reference(x, approximate)),
    },
)


def _tail(x: Tensor, y: Tensor) -> Tensor:
    """The last elements, short of a multiple of 8, keep x."""
    import torch

    n = y.numel() // 8 * 8
    return torch.cat((y.reshape(-1)[:n], x.reshape(-1)[n:])).view(y.shape)
