"""Fused linear layers and divergence for distillation: that of a student's logits x · weightᵀ from a teacher's. Neither exist in full.

    p = softmax(x · weightᵀ / T),  q = softmax(teacher_x · teacher_weightᵀ / T),  m = beta · q + (1 - beta) · p
    loss_i = beta · KL(q || m) + (1 - beta) · KL(p || m);  KL(q || p) for beta 0, KL(p || q) for beta 1

Source: Agarwal et al. 2023, generalised knowledge distillation (arXiv 2306.13649); beta 0.5 is the Jensen-Shannon divergence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number, wants_gradient
from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.ops._linear_cases import HEADS
from rooftop.ops._peers import compiled

if TYPE_CHECKING:
    from torch import Tensor

UNITS = {"f64": "fma64", "f32": "fma32", "f16": "tensor-f16", "bf16": "tensor-bf16"}


def linear_jsd(
    x: Tensor,
    weight: Tensor,
    teacher_x: Tensor,
    teacher_weight: Tensor,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    mask: Tensor | None = None,
    reduction: str = "mean",
    implementation: str | None = None,
) -> Tensor:
    """The generalised Jensen-Shannon divergence between a teacher's and a student's distribution over V classes, each the softmax of a
    product.

    Products are summed in float32 and rounded to the dtype of `x`, all else is float32. There are four products with gradients, which the
    forward computes. Memory beyond the inputs, for 16 bits, is dX + the larger of 4 dW and 3 dW + 512 MiB.

    Args:
        x: the student's [..., H], float32, float16 or bfloat16.
        weight: the student's [V, H], in the dtype of `x`.
        teacher_x, teacher_weight: the teacher's [..., K] and [V, K], in the dtype of `x`. They have no gradients.
        beta: 0 to 1: share of the teacher in the mixture. 0 is KL(teacher || student), the usual loss; 1 is KL(student || teacher).
        temperature: above 0; logits are divided by it. The loss is not multiplied by its square.
        mask: bool [...]: False where a token does not count. Its products are computed nevertheless.
        reduction: `"mean"` over the tokens that count, or `"sum"`.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns a float32 scalar. The mean over no tokens is NaN. On a GPU a second backward through one forward raises.

    Raises TypeError for other dtypes or options that are not numbers, ValueError for shapes, devices or options that are not accepted."""

    _validate(x, weight, teacher_x, teacher_weight, mask, beta, temperature, reduction)
    rows, teacher = x.reshape(-1, x.shape[-1]), teacher_x.detach().reshape(-1, teacher_x.shape[-1])
    flat = None if mask is None else mask.reshape(-1)
    flags = (wants_gradient(x), wants_gradient(weight), True)
    found = OP(
        rows, weight, teacher, teacher_weight.detach(), flat, float(beta), float(temperature), reduction, *flags,
        implementation=implementation
    )
    return found[0]


def _validate(x: Any, weight: Any, teacher_x: Any, teacher_weight: Any, mask: Any, beta: Any, temperature: Any, reduction: Any) -> None:
    import torch

    name = "linear_jsd"
    tensors = {"x": x, "weight": weight, "teacher_x": teacher_x, "teacher_weight": teacher_weight, "mask": mask}
    for what, t in tensors.items():
        if not isinstance(t, torch.Tensor) and not (what == "mask" and t is None):
            raise TypeError(f"{name}: {what} is a {type(t).__name__}; it must be a tensor")
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"{name}: x is {x.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    for what in ("weight", "teacher_x", "teacher_weight"):
        if tensors[what].dtype != x.dtype:
            raise TypeError(f"{name}: {what} is {tensors[what].dtype} and x {x.dtype}; they must be alike")
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"{name}: mask is {mask.dtype}; accepted is torch.bool")
    for a, b in (("x", "weight"), ("teacher_x", "teacher_weight")):
        one, two = tensors[a], tensors[b]
        if two.dim() != 2 or one.dim() < 1 or one.shape[-1] != two.shape[1] or 0 in two.shape:
            raise ValueError(
                f"{name}: {a} has shape {tuple(one.shape)} and {b} {tuple(two.shape)}; they must be [..., H] and [V, H], V and H not 0"
            )
    if teacher_weight.shape[0] != weight.shape[0]:
        raise ValueError(f"{name}: weight has {weight.shape[0]} classes and teacher_weight {teacher_weight.shape[0]}; they must be as many")
    for what in ("teacher_x", "mask"):
        lead = None if tensors[what] is None else tensors[what].shape[:-1] if what == "teacher_x" else tensors[what].shape
        if lead is not None and lead != x.shape[:-1]:
            raise ValueError(f"{name}: {what} has shape {tuple(tensors[what].shape)}; its tokens must be those of x, {tuple(x.shape[:-1])}")
    for what, t in tensors.items():
        if t is not None and t.device != x.device:
            raise ValueError(f"{name}: x lies on {x.device} and {what} on {t.device}; they must be on one device")
    number(name, "beta", beta, "0 to 1")
    if not 0 <= beta <= 1:
        raise ValueError(f"{name}: beta is {beta}; it must be 0 to 1")
    number(name, "temperature", temperature, "a finite number above 0", finite=True)
    if not temperature > 0:
        raise ValueError(f"{name}: temperature is {temperature}; it must be a finite number above 0")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"{name}: reduction is {reduction!r}; it must be 'mean' or 'sum'")


def reference(
    x: Tensor, weight: Tensor, teacher_x: Tensor, teacher_weight: Tensor, mask: Tensor | None, beta: float, temperature: float,
    reduction: str, x_grad: bool, weight_grad: bool, inplace: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, and its gradients by x and weight)."""
    return _computed(x, weight, teacher_x, teacher_weight, mask, beta, temperature, reduction, narrow=False)


def same(
    x: Tensor, weight: Tensor, teacher_x: Tensor, teacher_weight: Tensor, mask: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The result at the same precision: products rounded to the dtype of `x`, all else in float32; so is the logits' gradient, before it is
    multiplied."""
    beta, temperature, reduction = options[:3]
    return _computed(x, weight, teacher_x, teacher_weight, mask, beta, temperature, reduction, narrow=x.element_size() == 2)


def _computed(
    x: Tensor, weight: Tensor, teacher_x: Tensor, teacher_weight: Tensor, mask: Tensor | None, beta: float, temperature: float,
    reduction: str, narrow: bool
) -> tuple[Tensor, Tensor, Tensor]:
    import torch

    own, other = x @ weight.t(), teacher_x @ teacher_weight.t()
    own, other = ((z.float() if narrow else z) / temperature for z in (own, other))
    own, other = own.log_softmax(-1), other.log_softmax(-1)
    p, q = own.exp(), other.exp()
    if beta == 0:
        losses = (q * (other - own)).sum(-1)
    elif beta == 1:
        losses = (p * (own - other)).sum(-1)
    else:
        mixed = torch.logaddexp(other + torch.tensor(beta, dtype=own.dtype).log(), own + torch.tensor(1 - beta, dtype=own.dtype).log())
        losses = beta * (q * (other - mixed)).sum(-1) + (1 - beta) * (p * (own - mixed)).sum(-1)
    live = torch.ones_like(losses, dtype=torch.bool) if mask is None else mask
    divisor = live.sum().to(losses.dtype) if reduction == "mean" else losses.new_ones(())
    with torch.no_grad():
        if beta == 0:
            d = p - q
        else:
            off = own - (other if beta == 1 else mixed)
            d = (1 if beta == 1 else 1 - beta) * p * (off - (p * off).sum(-1, keepdim=True))
        d = (d / (temperature * divisor)).where(live[:, None], 0.0).to(x.dtype)
        units = d @ weight, d.t() @ x
    return losses.where(live, 0.0).sum() / divisor, *units


def backward(
    dloss: Tensor, unit_x: Tensor, unit_weight: Tensor, beta: float, temperature: float, reduction: str, x_grad: bool, weight_grad: bool,
    inplace: bool
) -> tuple[Tensor, Tensor]:
    """What the forward made, times dloss."""
    return tuple(None if u is None else u * dloss for u in (unit_x, unit_weight))  # type: ignore[return-value]


def outputs(x: Meta, weight: Meta, x_grad: bool, weight_grad: bool, **_: Any) -> dict[str, Meta | None]:
    loss = Meta((), "f64" if x.dtype == "f64" else "f32")
    return {
        "loss": loss, "unit_x": Meta(x.shape, x.dtype) if x_grad else None,
        "unit_weight": Meta(weight.shape, weight.dtype) if weight_grad else None
    }


def outputs_bwd(unit_x: Meta | None, unit_weight: Meta | None, **_: Any) -> dict[str, Meta | None]:
    return {"dx": unit_x and Meta(unit_x.shape, unit_x.dtype), "dweight": unit_weight and Meta(unit_weight.shape, unit_weight.dtype)}


def canonical(p: Problem) -> Problem | None:
    """As they are: rows of the matrices with neighbouring features, one behind another; the mask without gaps."""
    for name, m in p.tensors:
        if m is None or m.contiguous:
            continue
        if len(m.shape) != 2 or name.startswith("unit") or m.strides[1] != 1 or m.strides[0] < m.shape[1]:
            return None
    return p


def work(p: Problem) -> Work:
    products = sum(p.get(n) is not None for n in ("unit_x", "unit_weight"))
    n, v = p["x"].shape[0], p["weight"].shape[0]
    read = sum(m.nbytes for name in ("x", "weight", "teacher_x", "teacher_weight", "mask") if (m := p.get(name)) is not None)
    made = sum(m.nbytes for name in ("loss", "unit_x", "unit_weight") if (m := p.get(name)) is not None)
    fma = float(n) * v * ((1 + products) * p["x"].shape[1] + p["teacher_x"].shape[1])
    return Work(read, made, {UNITS[p["x"].dtype]: fma, "exp": 2.0 * n * v})


def work_bwd(p: Problem) -> Work:
    made = sum(m.nbytes for name in ("dx", "dweight") if (m := p.get(name)) is not None)
    return Work(made, made, {})


def _eager(
    x: Tensor, weight: Tensor, teacher_x: Tensor, teacher_weight: Tensor, mask: Tensor | None, *options: Any
) -> tuple[Tensor, None, None]:
    """KL(teacher || student) by torch's own function."""
    import torch

    beta, temperature, reduction, *_ = options
    if beta or mask is not None:
        raise ValueError("torch has KL(teacher || student) of all tokens")
    own, other = ((a @ b.t()).div(temperature).log_softmax(-1) for a, b in ((x, weight), (teacher_x, teacher_weight)))
    return torch.nn.functional.kl_div(own, other, log_target=True, reduction="batchmean" if reduction == "mean" else "sum"), None, None


def _liger() -> Callable[..., Any]:
    from liger_kernel.chunked_loss.jsd_loss import LigerFusedLinearJSDFunction

    def run(x: Tensor, weight: Tensor, teacher_x: Tensor, teacher_weight: Tensor, mask: Tensor | None, *options: Any) -> Any:
        import torch

        if mask is not None:
            raise ValueError("Liger leaves out tokens by their labels")
        target = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
        with torch.enable_grad():
            given = x.detach().requires_grad_(options[3]), weight.detach().requires_grad_(options[4])
            loss = LigerFusedLinearJSDFunction.apply(
                *given, teacher_x, teacher_weight, target, None, None, 0.0, 1.0, options[0], -100, options[1]
            )
        return (loss[0] if isinstance(loss, tuple) else loss), None, None

    return run


def _changed(**changes: Any) -> Callable[..., Any]:
    names = ("beta", "temperature", "reduction", "x_grad", "weight_grad", "inplace")

    def run(*args: Any) -> Any:
        return reference(*args[:5], *(changes.get(n, v) for n, v in zip(names, args[5:], strict=True)))

    return run


def _swept(dtype: str, tokens: int, hidden: int, classes: int) -> dict[str, Any]:
    """KL(teacher || student), which torch has as well."""
    x, weight = Input((tokens, hidden), dtype), Input((classes, hidden), dtype)
    return {"x": x, "weight": weight, "teacher_x": x, "teacher_weight": weight, "beta": 0.0, "temperature": 1.0, "reduction": "mean",
            "x_grad": True, "weight_grad": True, "inplace": True}


def _cases() -> list[Case]:
    def call(n: int, h: int, v: int, d: str, *, k: int = 0, beta: float = 0.5, temperature: float = 1.0, mask: bool = False,
             reduction: str = "mean", layout: str = "contiguous", fill: str = "normal", inplace: bool = False) -> dict[str, Any]:
        k = k or h
        made: dict[str, Any] = {"x": Input((n, h), d, fill, layout), "weight": Input((v, h), d, "normal", layout)}
        made |= {"teacher_x": Input((n, k), d, "normal", layout), "teacher_weight": Input((v, k), d, "normal", layout)}
        if mask:
            made["mask"] = Input((n,), "bool")
        return {
            **made, "beta": beta, "temperature": temperature, "reduction": reduction, "x_grad": True, "weight_grad": True,
            "inplace": inplace
        }

    # Logits of these inputs have a standard deviation of 64: at temperature 1 their rounding to bf16 alone changes a probability by a
    # factor.
    bench = [
        case(
            f"llama-3 head 8192x4096x128256, beta {b}", tags="bench model",
            **call(8192, 4096, 128256, "bf16", beta=b, temperature=64.0, inplace=True)
        )
        for b in (0.0, 0.5)
    ]
    edges: dict[str, dict[str, Any]] = {
        "no tokens": {"n": 0},
        "one token": {"n": 1, "v": 40, "beta": 0.0},
        "one class": {"n": 4, "v": 1, "beta": 0.0},
        "teacher to student": {"beta": 0.0},
        "student to teacher": {"beta": 1.0},
        "mixed": {"k": 12},
        "mostly the teacher": {"beta": 0.9, "temperature": 2.0, "v": 700, "n": 200},
        "cold": {"beta": 0.0, "temperature": 0.5, "reduction": "sum"},
        "masked": {"mask": True, "n": 67},
        "rows padded": {"layout": "padded", "h": 64},
        "transposed": {"layout": "transposed"},
        "in place": {"inplace": True},
        "NaN": {"fill": "nan", "beta": 0.0},
    }
    # With few tokens the float32 errors of a block of the weight's gradient are those of the tokens' own normalisers: luck, which 16 bits
    # hide.
    made = []
    for d in ("f32", "f16", "bf16"):
        made += [case(name, tags="edge", **call(d=d, **{"n": 65, "h": 20, "v": 65, **how})) for name, how in edges.items()
                 if (d != "f16" or "ma" in name) and (d, name) != ("f32", "one token")]
    return bench + made


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    names = ("x", "weight", "teacher_x", "teacher_weight")
    return [tensors[n] for n in names], {"mask": tensors["mask"], **{n: options[n] for n in ("beta", "temperature", "reduction")}}


OP = Op(
    reference,
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(_swept, **HEADS),
    work=work,
    judging=Judging(invariant={"batch": "its products are cuBLAS's, which chooses the order of sums by the number of tokens"}, same=same),
    tolerance=Tolerance(multiple=4.0),  # where probabilities are alike what counts is a difference, and luck has its part in either error
    grad=Grad(
        wrt=("x", "weight"),
        saves=("unit_x", "unit_weight"),
        non_differentiable=("unit_x", "unit_weight"),
        into={"dx": "unit_x", "dweight": "unit_weight"},
        backward=backward,
        outputs=outputs_bwd,
        work=work_bwd,
        canonical=lambda p: p,
        wrong={"not multiplied": lambda dloss, unit_x, unit_weight, *options: (unit_x, unit_weight)},
    ),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager), "liger": _liger},
    wrong={
        "another mixture": _changed(beta=0.3),
        "temperature forgotten": _changed(temperature=1.0),
        "summed": _changed(reduction="sum"),
        "mask forgotten": lambda x, weight, teacher_x, teacher_weight, mask,
        *options: reference(x, weight, teacher_x, teacher_weight, None, *options),
    },
    calls=Calls(public=_public),
)
