"""How a weight [N, K] becomes codes: round to nearest, a fit of zero points, GPTQ. Plain torch, on whatever device the weight lies.

    nearest   scale from the largest size of a group (ints with zero points: from its ends), each weight to the nearest code
    hqq       zero points fitted, real numbers, so that Σ |w - w'|^0.7 becomes small: the many small errors count, the few large weights
    less
    gptq      column by column: what rounding a column loses is made good by the columns after it, by the Hessian of the layer's inputs

Sources: Badri & Shaji 2023, "Half-Quadratic Quantization of Large Machine Learning Models"; Frantar et al. 2022, "GPTQ" (arXiv 2210.17323),
algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rooftop.formats.number_formats import ALIASES, FORMATS, Format, decode, divided, encode, load_scale, scale_of
from rooftop.formats.packed import COLUMNS, FLOATS, PackedWeight, check_group, pack_codes, weight_format

METHODS = ("nearest", "hqq", "gptq")
STEPS, SHRINK, POWER, GROWTH = 20, 10.0, 0.7, 1.01  # of the fit of zero points: HQQ's own


@dataclass(frozen=True)
class Scheme:
    """What codes a weight gets. `scale_dtype` "" is that of the weight, float32 for float32."""

    format: Format
    group: int
    zero_points: bool = False
    scale_dtype: str = ""

    @classmethod
    def of(cls, format: str, group: int, zero_points: bool, k: int) -> Scheme:
        """Raises ValueError for a format, a group or zero points that do not go together. mx formats bring their group of 32 and e8m0."""
        known = FORMATS.get(ALIASES.get(format, format)) if isinstance(format, str) else None
        shared = known is not None and known.kind == "mx"
        f = weight_format(known.element if shared and known is not None else format)
        if zero_points and f.exponent:
            raise ValueError(f"zero points are for int8, int4 and int2; {format} has none")
        group = 32 if shared else k if group in (0, -1) else group
        check_group(k, group)
        return cls(f, group, zero_points, "e8m0" if shared else "")


def fitting(format: str, group: int, k: int) -> int | None:
    """The group for a weight with K columns: `group` where it divides K, else the largest smaller one that does, or K below `group`; None
    where there is none. Raises ValueError for a group that no K could have."""
    known = FORMATS.get(ALIASES.get(format, format)) if isinstance(format, str) else None
    if known is not None and known.kind == "mx":
        return 32 if k % 32 == 0 else None
    if group in (0, -1) or isinstance(group, bool) or not isinstance(group, int) or group == k:
        check_group(k, k if group in (0, -1) and not isinstance(group, bool) else group)
        return k
    if group not in (32, 64) and (group < 1 or group % COLUMNS):
        check_group(k, group)
    below = (*range(group // COLUMNS * COLUMNS, 0, -COLUMNS), 64, 32)
    return next((g for g in below if g <= group and k % g == 0), k if k < group else None)


def _typed(scale: Tensor, kind: torch.dtype) -> Tensor:
    """A float32 scale as it is stored: never zero, infinite or below what its type holds with full precision."""
    facts = torch.finfo(kind)
    return scale.clamp(facts.tiny, facts.max).to(kind)


def _scale_type(w: Tensor, scheme: Scheme, like: Tensor) -> torch.dtype:
    """The dtype of the scales: that of the weight, but float32 where float16 would hold a scale above what its group of w [N, K] needs."""
    if like.dtype != torch.float16:
        return torch.bfloat16 if like.dtype == torch.bfloat16 else torch.float32
    groups, f = w.view(len(w), -1, scheme.group), scheme.format
    needed = (
        groups.amax(-1).clamp(min=0) - groups.amin(-1).clamp(max=0)
    ) / (2**f.bits - 1) if scheme.zero_points else groups.abs().amax(-1) / f.max
    return torch.float32 if bool(((needed > 0) & (needed < torch.finfo(torch.float16).tiny)).any()) else torch.float16


def _ranges(groups: Tensor, scheme: Scheme, kind: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Scales as stored [..., 1] and whole zero points of groups [..., G] in float32."""
    f = scheme.format
    if scheme.scale_dtype == "e8m0":
        return scale_of(groups.abs().amax(-1, keepdim=True), f.element, "e8m0").view(torch.float8_e8m0fnu), None
    if not scheme.zero_points:
        return _typed(divided(groups.abs().amax(-1, keepdim=True), f.max), kind), None
    most, least, top = groups.amax(-1, keepdim=True).clamp(min=0), groups.amin(-1, keepdim=True).clamp(max=0), 2**f.bits - 1
    scale = _typed(divided(most, top) - divided(least, top), kind)
    return scale, (-least / scale.float()).round().clamp(0, top)


def _codes(v: Tensor, f: Format, zero: Tensor | None) -> Tensor:
    """Stored codes of v = w / scale: ints without a sign."""
    if f.exponent:
        return encode(v, f.element)
    middle = 1 << (f.bits - 1)
    if zero is None:
        return (v.round().clamp(f.min, f.max) + middle).to(torch.uint8)
    return (v + zero).round().clamp(0, 2**f.bits - 1).to(torch.uint8)


def _values(codes: Tensor, f: Format, scale: Tensor, zero: Tensor | None) -> Tensor:
    if f.exponent:
        return decode(codes, f.element) * scale
    return (codes.float() - (float(1 << (f.bits - 1)) if zero is None else zero)) * scale


def _number(scale: Tensor) -> Tensor:
    return load_scale(scale, "e8m0") if scale.dtype == torch.float8_e8m0fnu else scale.float()


def _checked(weight: Tensor) -> Tensor:
    if not isinstance(weight, Tensor) or weight.dim() != 2 or 0 in weight.shape or not weight.dtype.is_floating_point:
        given = f"{tuple(weight.shape)} {weight.dtype}" if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"a weight is [N, K] of a floating dtype, both at least 1; given {given}")
    check_finite(weight)
    return weight.detach().float()


def check_finite(weight: Tensor) -> None:
    """Raises ValueError for a weight with NaN or infinity."""
    if not bool(weight.isfinite().all()):
        raise ValueError("the weight holds NaN or infinity; every weight must be finite")


def nearest(weight: Tensor, format: str = "int4", *, group: int = 128, zero_points: bool = False) -> PackedWeight:
    """Round to nearest. `group` 0: one scale a row. Raises ValueError for combinations that are not supported and for weights that are not
    finite."""
    return _nearest(weight, _checked(weight), Scheme.of(format, group, zero_points, weight.shape[1]))


def again(weight: Tensor, like: PackedWeight) -> PackedWeight:
    """Round to nearest in the format, the groups and the kind of scales and zero points of another weight."""
    whole_row = like.group == like.shape[1]
    scheme = Scheme(
        like.kind, weight.shape[1] if whole_row else like.group, like.zero is not None, "e8m0" if like.scale_dtype == "e8m0" else ""
    )
    return _nearest(weight, _checked(weight), scheme)


def _nearest(weight: Tensor, w: Tensor, scheme: Scheme) -> PackedWeight:
    n, k = w.shape
    groups = w.view(n, k // scheme.group, scheme.group)
    scale, zero = _ranges(groups, scheme, _scale_type(w, scheme, weight))
    codes = _codes(groups / _number(scale), scheme.format, zero).view(n, k)
    return _packed(codes, scale.squeeze(-1), None if zero is None else zero.squeeze(-1).to(torch.uint8), scheme, weight)


def _packed(codes: Tensor, scale: Tensor, zero: Tensor | None, scheme: Scheme, weight: Tensor) -> PackedWeight:
    kind = weight.dtype if weight.dtype in FLOATS else torch.float32
    return pack_codes(codes, scale, zero, format=scheme.format.name, group=scheme.group, dtype=kind)


def hqq(weight: Tensor, format: str = "int4", *, group: int = 128, steps: int = STEPS) -> PackedWeight:
    """Fitted zero points: real numbers in the dtype of the scales, for int8, int4 and int2. A group keeps the result of rounding to nearest
    if the fit does not reduce Σ |w - w'|^0.7."""
    w = _checked(weight)
    n, k = w.shape
    scheme = Scheme.of(format, group, True, k)
    groups = w.view(n, k // scheme.group, scheme.group)
    stored, whole = _ranges(groups, scheme, _scale_type(w, scheme, weight))
    assert whole is not None
    scale, zero, beta = stored.float(), whole, SHRINK

    def loss(z: Tensor) -> Tensor:
        return (groups - _values(_codes(groups / scale, scheme.format, z), scheme.format, scale, z)).abs().pow(POWER).sum(-1, keepdim=True)

    best, least = zero, loss(zero)
    for _ in range(steps):
        codes = _codes(groups / scale, scheme.format, zero).float()
        error = groups - (codes - zero) * scale
        shrunk = error.sign() * (error.abs() - error.abs().clamp(min=1e-8).pow(POWER - 1) / beta).clamp(min=0)
        zero = (codes - (groups - shrunk) / scale).mean(-1, keepdim=True).to(stored.dtype).float()
        beta *= GROWTH
        found = loss(zero)
        best, least = torch.where(found < least, zero, best), torch.minimum(found, least)
    codes = _codes(groups / scale, scheme.format, best).view(n, k)
    return _packed(codes, stored.squeeze(-1), best.squeeze(-1).to(stored.dtype), scheme, weight)


def gptq(
    weight: Tensor, hessian: Tensor, format: str = "int4", *, group: int = 128, zero_points: bool = False, damping: float = 0.01,
    block: int = 128
) -> PackedWeight:
    """GPTQ in the order of the columns. `hessian`: Σ xᵀ x over the layer's inputs, [K, K]; `damping` times its mean diagonal is added to
    the diagonal.

    Inputs that never occur (a diagonal of 0) have their weights set to 0. Raises ValueError for a Hessian of another shape or one that is
    not finite or, with the damping, not positive definite."""
    w = _checked(weight).clone()
    n, k = w.shape
    scheme = Scheme.of(format, group, zero_points, k)
    if not isinstance(hessian, Tensor) or tuple(hessian.shape) != (k, k) or not bool(hessian.isfinite().all()):
        given = tuple(hessian.shape) if isinstance(hessian, Tensor) else type(hessian).__name__
        raise ValueError(f"the Hessian is {given}; it must be [K, K] = {(k, k)} and finite")
    h = hessian.detach().to(w.device, torch.float64).clone()
    dead = h.diagonal() == 0
    h.diagonal()[dead] = 1
    w[:, dead] = 0
    h.diagonal().add_(damping * h.diagonal().mean())
    factor, wrong = torch.linalg.cholesky_ex(h)
    if int(wrong):
        raise ValueError(f"the Hessian with damping {damping} is not positive definite; more inputs or more damping may make it so")
    upper = torch.linalg.cholesky(torch.cholesky_inverse(factor), upper=True).float()
    codes = torch.empty(n, k, dtype=torch.uint8, device=w.device)
    scales, zeros, kind = [], [], _scale_type(w, scheme, weight)
    for begin in range(0, k, block):
        end = min(begin + block, k)
        lost = torch.zeros(n, end - begin, device=w.device)
        for j in range(begin, end):
            if j % scheme.group == 0:  # what earlier columns of this block have not yet passed on beyond it is passed on first
                part = w[:, j : j + scheme.group].clone()
                if j + scheme.group > end:
                    part[:, end - j :] -= lost[:, : j - begin] @ upper[begin:j, end : j + scheme.group]
                kind = _scale_type(part, scheme, weight) if kind == torch.float16 else kind  # earlier scales are float32 numbers too
                stored, zero = _ranges(part, scheme, kind)
                scale = _number(stored)
                scales.append(stored)
                zeros.append(zero)
            code = _codes(w[:, j : j + 1] / scale, scheme.format, zero)
            codes[:, j : j + 1] = code
            error = (w[:, j : j + 1] - _values(code, scheme.format, scale, zero)) / upper[j, j]
            w[:, j:end] -= error @ upper[j : j + 1, j:end]
            lost[:, j - begin : j - begin + 1] = error
        w[:, end:] -= lost @ upper[begin:end, end:]
    if scheme.scale_dtype == "e8m0":
        merged = torch.cat([s.view(torch.uint8) for s in scales], 1).view(torch.float8_e8m0fnu)
    else:
        merged = torch.cat([s.to(kind) for s in scales], 1)
    return _packed(codes, merged, torch.cat(zeros, 1).to(torch.uint8) if scheme.zero_points else None, scheme, weight)
