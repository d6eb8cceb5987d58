"""Products of many matrices whose sizes only the device knows (grouped GEMM): the experts of a mixture of experts (MoE).

    out[rows of g] = a[rows of g] b[g],  of fp8 with scales of both

Source: Gale et al., "MegaBlocks" (2023); `torch._grouped_mm`; scales of blocks: the DeepSeek-V3 report (2024), section 3.3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.autocasting import lowered
from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, Values
from rooftop.core.spec import DTYPES, Case, Input, Meta, Option, Problem, Work, case, dtype_of
from rooftop.core.sweeps import PRODUCT
from rooftop.ops._gradient_layout import product_like

if TYPE_CHECKING:
    from torch import Tensor

UNITS = {"f32": "fma32", "f16": "tensor-f16", "bf16": "tensor-bf16", "f8e4m3": "tensor-f8", "f8e5m2": "tensor-f8"}
BLOCK = 128  # elements along K (and along N, of b) that share a scale


def grouped_matmul(
    a: Tensor, b: Tensor, offsets: Tensor, *, scale_a: Tensor | None = None, scale_b: Tensor | None = None, out_dtype: Any = None,
    implementation: str | None = None,
) -> Tensor:
    """One product for each of G groups, given by offsets that stay on the device; summed in float32, rounded once.

    Three forms, distinguished by the dimensions of a and b:
        [M, K], [G, K, N] -> [M, N]: group g is the rows offsets[g - 1] to offsets[g] of a; rows past the last offset give zeros;
        [M, K], [K, N] -> [G, M, N]: group g is the slice offsets[g - 1] to offsets[g] of K (the gradient of the weights); an empty one
        gives zeros;
        [G, M, K], [G, K, N] -> [G, M, N]: the first offsets[g] rows of matrix g; the rows after them give zeros and are not read.

    Args:
        a, b: float32, float16 or bfloat16, of one dtype, any strides. Under autocast both are cast to its dtype. Or float8_e4m3fn or
            float8_e5m2 with both scales, in the two forms with a matrix a group; fastest where both are contiguous along K.
        scale_a, scale_b: float32, of fp8; their shapes determine what they scale. Any strides: they are copied.
            [M] (or [G, M]) and [G, N]: rows of a and columns of b;
            [M, ceil(K / 128)] (or [G, M, ceil(K / 128)]) and [G, ceil(K / 128), ceil(N / 128)]: 128 elements of a row of a, blocks of 128
            x 128 of b.
        out_dtype: of fp8: torch.bfloat16 (the default), torch.float16 or torch.float32.
        offsets: int32 [G]. In the first two forms the end of each group: non-decreasing, at most M (K). In the third the number of rows, at
            most M. Offsets out of range are clamped; which rows then belong to which group is unspecified. `rooftop.debug()` reports them.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns a tensor in the dtype of `a`, or `out_dtype`. No gradient flows through a product of fp8.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit or tensors on different devices."""
    import torch

    a, b = lowered(a, b)
    for name, t in (("a", a), ("b", b), ("offsets", offsets)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"grouped_matmul: {name} is a {type(t).__name__}; it must be a tensor")
        if t.device != a.device:
            raise ValueError(f"grouped_matmul: a lies on {a.device} and {name} on {t.device}; they must be on one device")
    floats, fp8 = (torch.float32, torch.float16, torch.bfloat16), (torch.float8_e4m3fn, torch.float8_e5m2)
    eight = a.dtype in fp8 and b.dtype in fp8
    if not eight and (a.dtype not in floats or b.dtype != a.dtype):
        raise TypeError(
            f"grouped_matmul: a is {a.dtype} and b is {b.dtype}; accepted is one of {', '.join(map(str, floats))}, the same for both, "
            f"or {' and '.join(map(str, fp8))} with scales"
        )
    if offsets.dtype != torch.int32 or offsets.dim() != 1:
        raise TypeError(f"grouped_matmul: offsets is {offsets.dtype} of {offsets.dim()} dimensions; accepted is torch.int32 of one")
    if (a.dim(), b.dim()) not in ((2, 3), (2, 2), (3, 3)) or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"grouped_matmul: a is {tuple(a.shape)} and b is {tuple(b.shape)}; accepted is [M, K] and [G, K, N], [M, K] and [K, N], or [G, "
            f"M, K] and [G, K, N]"
        )
    if any(t.dim() == 3 and t.shape[0] != offsets.shape[0] for t in (a, b)):
        raise ValueError(
            f"grouped_matmul: a is {tuple(a.shape)} and b is {tuple(b.shape)}; one matrix for each of {offsets.shape[0]} offsets is "
            f"accepted"
        )
    if not eight:
        if scale_a is not None or scale_b is not None or out_dtype is not None:
            raise ValueError(f"grouped_matmul: a is {a.dtype}; scale_a, scale_b and out_dtype are of fp8 alone")
        return OP(a, b, offsets, None, None, "", implementation=implementation)
    of_a, of_b = _scales(a, b, scale_a, scale_b)
    if out_dtype not in (None, *floats):
        raise TypeError(f"grouped_matmul: out_dtype is {out_dtype}; accepted is {', '.join(map(str, floats))}")
    to = "bf16" if out_dtype is None else dtype_of(out_dtype)
    return OP(a.detach(), b.detach(), offsets, of_a, of_b, to, implementation=implementation)


def _scales(a: Tensor, b: Tensor, scale_a: Any, scale_b: Any) -> tuple[Tensor, Tensor]:
    """The scales of fp8, without a gradient and contiguous. Raises TypeError and ValueError as grouped_matmul says."""
    import torch

    if b.dim() == 2:
        raise ValueError("grouped_matmul: groups along K are not of fp8: give a matrix of b a group, [G, K, N]")
    for name, t in (("scale_a", scale_a), ("scale_b", scale_b)):
        if not isinstance(t, torch.Tensor) or t.dtype != torch.float32:
            given = t.dtype if isinstance(t, torch.Tensor) else type(t).__name__
            raise TypeError(f"grouped_matmul: {name} is {given}; with fp8 it must be a tensor of torch.float32")
        if t.device != a.device:
            raise ValueError(f"grouped_matmul: a lies on {a.device} and {name} on {t.device}; they must be on one device")
    k, n = -(-a.shape[-1] // BLOCK), -(-b.shape[-1] // BLOCK)
    rows, blocks = (tuple(a.shape[:-1]), (b.shape[0], b.shape[-1])), ((*a.shape[:-1], k), (b.shape[0], k, n))
    if (given := (tuple(scale_a.shape), tuple(scale_b.shape))) not in (rows, blocks):
        raise ValueError(
            f"grouped_matmul: scale_a is {given[0]} and scale_b {given[1]}; accepted is {rows[0]} and {rows[1]}, or {blocks[0]} and "
            f"{blocks[1]}"
        )
    return scale_a.detach().contiguous(), scale_b.detach().contiguous()


def _dequantised(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> tuple[Tensor, Tensor]:
    """Both times their scales, in float32 or what the scales have."""
    import torch

    kind = torch.promote_types(scale_a.dtype, torch.float32)
    if scale_a.dim() < a.dim():
        return a.to(kind) * scale_a[..., None], b.to(kind) * scale_b[:, None, :]
    of_a = scale_a.repeat_interleave(BLOCK, -1)[..., : a.shape[-1]]
    of_b = scale_b.repeat_interleave(BLOCK, 1)[:, : b.shape[1]].repeat_interleave(BLOCK, 2)[:, :, : b.shape[2]]
    return a.to(kind) * of_a, b.to(kind) * of_b


def _narrowed(out: Tensor, to: str) -> Tensor:
    import torch

    return out if out.dtype == torch.float64 else out.to(getattr(torch, DTYPES[to].torch))


def reference(a: Tensor, b: Tensor, offsets: Tensor, scale_a: Tensor | None = None, scale_b: Tensor | None = None, to: str = "") -> Tensor:
    """Offsets out of range are clamped."""
    import torch

    if scale_a is not None and scale_b is not None:
        return _narrowed(reference(*_dequantised(a, b, scale_a, scale_b), offsets), to)
    ends = offsets.clamp(0, a.shape[-1] if b.dim() == 2 else a.shape[-2]).tolist()
    if a.dim() == 3:
        out = a.new_zeros(a.shape[0], a.shape[1], b.shape[-1])
        for g, rows in enumerate(ends):
            out[g, :rows] = a[g, :rows] @ b[g]
        return out
    begins = [0, *ends][: len(ends)]
    if b.dim() == 3:
        out = a.new_zeros(a.shape[0], b.shape[-1])
        for g, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            out[begin:end] = a[begin:end] @ b[g]
        return out
    parts = [a[:, begin:end] @ b[begin:end] for begin, end in zip(begins, ends, strict=True)]
    return torch.stack(parts) if parts else a.new_zeros(0, a.shape[0], b.shape[1])


def cpu(a: Tensor, b: Tensor, offsets: Tensor, scale_a: Tensor | None = None, scale_b: Tensor | None = None, to: str = "") -> Any:
    """The rows of each group by a product of their own, written where they belong; of 16 bits those of whole tiles of bfloat16, as
    rooftop/ops/matmul.py has them."""
    import torch

    if scale_a is not None or (a.element_size() == 2 and (a.dtype != torch.bfloat16 or a.shape[-1] % 32 or not a.shape[-1])):
        return NotImplemented
    ends = offsets.tolist()
    if a.dim() != 2 or b.dim() != 3 or not ends or sorted(ends) != ends or ends[0] < 0 or ends[-1] > a.shape[0]:
        return NotImplemented
    parts = [a[begin:end] @ b[g] for g, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))]
    if ends[-1] < a.shape[0]:
        parts.append(a.new_zeros(a.shape[0] - ends[-1], b.shape[2]))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def alone(a: Tensor, b: Tensor, offsets: Tensor, scale_a: Tensor | None = None, scale_b: Tensor | None = None, to: str = "") -> Tensor:
    """Row by row, each of them where memory begins."""
    if scale_a is not None and scale_b is not None:
        return _narrowed(alone(*_dequantised(a, b, scale_a, scale_b), offsets), to)
    ends = offsets.clamp(0, a.shape[-2]).tolist()
    out = a.new_zeros(*a.shape[:-1], b.shape[-1])
    for g, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        of_a, of_out = (a[g], out[g]) if a.dim() == 3 else (a, out)
        for i in range(0 if a.dim() == 3 else begin, end):
            of_out[i] = (of_a[i : i + 1].clone() @ b[g])[0]
    return out


def _rows(p: Problem) -> dict[str, int] | str:
    if len(p["b"].shape) == 2:
        return "where K is cut, each result is a sum over rows"
    return dict.fromkeys(("a", "out", *(() if p.get("scale_a") is None else ("scale_a",))), len(p["a"].shape) - 2)


def _of_rows(tensors: Mapping[str, Any], rows: list[int]) -> dict[str, Any]:
    """The offsets of these rows, which are in order."""
    import torch

    return {"offsets": torch.searchsorted(torch.tensor(rows, device=tensors["offsets"].device), tensors["offsets"].long()).int()}


def backward(dout: Tensor, a: Tensor, b: Tensor, offsets: Tensor, to: str = "") -> tuple[Tensor, Tensor]:
    """da = dout bᵀ and db = aᵀ dout, group by group; where K is cut each is the product of the other form."""
    turned = dout.transpose(-1, -2)
    if a.dim() == 2 and b.dim() == 2:
        return _of(b, turned, offsets).t(), _of(a.t(), dout, offsets)
    da = _of(dout, b.transpose(-1, -2), offsets)
    if a.dim() == 2:
        return da, product_like(b, a.t(), dout, lambda x, y: _of(x, y, offsets))
    import torch

    from rooftop.ops import matmul

    there = (torch.arange(a.shape[1], device=a.device) < offsets[:, None])[:, :, None]
    rows, slope = (torch.where(there, t, torch.zeros((), dtype=t.dtype, device=t.device)) for t in (a, dout))
    return da, product_like(
        b, rows.transpose(-1, -2), slope, lambda x, y: matmul.OP(x, y, None, None, None, None, 1.0, 0.0, "none", "", "ieee")
    )


def _of(a: Tensor, b: Tensor, offsets: Tensor) -> Any:
    return OP(a, b, offsets, None, None, "")


def outputs(a: Meta, b: Meta, offsets: Meta, to: str = "", **_: Any) -> dict[str, Meta]:
    lead = (offsets.shape[0],) if len(a.shape) == len(b.shape) else ()
    return {"out": Meta((*lead, a.shape[-2], b.shape[-1]), to or a.dtype)}


def canonical(p: Problem) -> Problem | None:
    return p if all(m is None or m.contiguous for n in ("offsets", "scale_a", "scale_b") for m in (p.get(n),)) else None


def work(p: Problem) -> Work:
    """As if every row had a group."""
    a, b = p["a"], p["b"]
    scales = sum(m.nbytes for n in ("scale_a", "scale_b") if (m := p.get(n)) is not None)
    return Work(a.nbytes + b.nbytes + p["offsets"].nbytes + scales, p["out"].nbytes, {UNITS[a.dtype]: float(a.numel) * b.shape[-1]})


def _offsets(tensors: Mapping[str, Any], options: Mapping[str, Option], generator: Any) -> dict[str, Any]:
    """Groups of random sizes, one of them empty where there are several; in the first form some rows are left over. Scales between 0.5 and
    1.5."""
    import torch

    a, b, offsets = tensors["a"], tensors["b"], tensors["offsets"]
    groups, most = offsets.shape[0], a.shape[-1] if b.dim() == 2 else a.shape[-2]
    drawn = torch.randint(0, most + 1, (groups,), generator=generator, device=offsets.device, dtype=torch.int32)
    if a.dim() == 2:
        drawn = drawn.sort().values
        if groups > 2:
            drawn[1] = drawn[0]
    found = {"offsets": drawn}
    for name in ("scale_a", "scale_b"):
        if (t := tensors.get(name)) is not None:
            found[name] = torch.rand(t.shape, generator=generator, device=t.device) + 0.5
    return found


def faults(a: Tensor, b: Tensor, offsets: Tensor, *_: Any) -> str | None:
    """What is wrong with the offsets; they are read, so the device is waited for."""
    most, found = a.shape[-1] if b.dim() == 2 else a.shape[-2], offsets.tolist()
    for g, value in enumerate(found):
        if not 0 <= value <= most:
            return f"offsets[{g}] is {value}; accepted are 0 to {most}"
        if a.dim() == 2 and g and value < found[g - 1]:
            return f"offsets[{g}] is {value}, less than the one before it, {found[g - 1]}"
    return None


def _torch() -> Callable[..., Tensor]:
    import torch

    def grouped(
        a: Tensor, b: Tensor, offsets: Tensor, scale_a: Tensor | None = None, scale_b: Tensor | None = None, to: str = ""
    ) -> Tensor:
        if scale_a is None or scale_b is None:
            return torch._grouped_mm(a, b, offs=offsets)
        if scale_a.dim() == a.dim():
            raise ValueError("torch's grouped product of fp8 has scales of rows and columns")
        return torch._scaled_grouped_mm(a, b, scale_a, scale_b, offsets, out_dtype=getattr(torch, DTYPES[to].torch))

    return grouped


def _first_weights(a: Tensor, b: Tensor, offsets: Tensor, *rest: Any) -> Tensor:
    return reference(a, b[:1].expand_as(b) if b.dim() == 3 else b.flip(0), offsets, *rest)


def _one_row_less(a: Tensor, b: Tensor, offsets: Tensor, *rest: Any) -> Tensor:
    return reference(a, b, (offsets - 1).clamp_(min=0), *rest)


def _without_scale(at: int) -> Callable[..., Tensor]:
    def run(*args: Any) -> Tensor:
        return reference(*(t if i != at or t is None else t * 0 + 1 for i, t in enumerate(args)))

    return run


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    to = options["to"]
    named = {"scale_a": tensors["scale_a"], "scale_b": tensors["scale_b"], "out_dtype": getattr(torch, DTYPES[to].torch) if to else None}
    return tuple(tensors[n] for n in ("a", "b", "offsets")), named


def _all_rows(a: Tensor, b: Tensor, offsets: Tensor, *rest: Any) -> Tensor:
    """What lies past the last offset belongs to the last group."""
    ends = offsets.clone()
    ends[-1:] = a.shape[-1] if b.dim() == 2 else a.shape[-2]
    return reference(a, b, ends, *rest)


def _cases() -> list[Case]:
    def mm(
        groups: int, m: int, n: int, k: int, dtype: str = "bf16", form: str = "rows", a: str = "contiguous", b: str = "contiguous"
    ) -> dict[str, Any]:
        of_a = (groups, m, k) if form == "masked" else (m, k)
        of_b = (k, n) if form == "depth" else (groups, k, n)
        return {"a": Input(of_a, dtype, layout=a), "b": Input(of_b, dtype, layout=b), "offsets": Input((groups,), "i32")}

    bench = [
        case(f"experts {g}, {m}x{n}x{k}", tags="bench model", **mm(g, m, n, k, b="transposed"))
        for g, m, n, k in ((8, 16384, 14336, 4096), (64, 16384, 2816, 2048), (256, 8192, 4096, 7168))
    ]
    bench.append(
        case("weights of 64 experts 2048x1408x16384", tags="bench model", **mm(64, 2048, 1408, 16384, form="depth", a="transposed"))
    )

    def fp8(groups: int, m: int, n: int, k: int, scales: str, dtype: str = "f8e4m3", form: str = "rows", to: str = "bf16", **more: Any) -> dict[str, Any]:
        lead = (groups, m) if form == "masked" else (m,)
        shapes = ((*lead, -(-k // BLOCK)), (groups, -(-k // BLOCK), -(-n // BLOCK))) if scales == "blocks" else (lead, (groups, n))
        given = mm(groups, m, n, k, dtype, form, **{"b": "transposed", **more})
        return {**given, "scale_a": Input(shapes[0]), "scale_b": Input(shapes[1]), "to": to}

    bench += [
        case(f"{scales} of fp8, experts {g}, {m}x{n}x{k}", tags="bench model", **fp8(g, m, n, k, scales))
        for g, m, n, k in ((8, 16384, 14336, 4096), (64, 16384, 2816, 2048)) for scales in ("rows", "blocks")
    ]
    edge = []
    for dtype in ("f8e4m3", "f8e5m2"):
        for form in ("rows", "masked"):
            for scales in ("rows", "blocks"):
                edge += [
                    case(f"{scales} of fp8, {form} aligned", tags="edge", **fp8(5, 200, 272, 400, scales, dtype, form)),
                    case(f"{scales} of fp8, {form} odd", tags="edge", **fp8(3, 40, 33, 147, scales, dtype, form)),
                ]
        edge += [
            case("rows of fp8, small", tags="edge", **fp8(3, 20, 24, 40, "rows", dtype, b="contiguous")),
            case("blocks of fp8, result of float32", tags="edge", **fp8(3, 20, 24, 136, "blocks", dtype, to="f32")),
            case("blocks of fp8, rows of b", tags="edge", **fp8(3, 40, 136, 144, "blocks", dtype, b="contiguous")),
        ]
    for dtype in ("bf16", "f16", "f32"):
        for form in ("rows", "depth", "masked"):
            edge += [
                case(f"{form} small", tags="edge", **mm(3, 40, 33, 27, dtype, form)),
                case(f"{form} aligned", tags="edge", **mm(5, 200, 72, 136, dtype, form)),
                case(f"{form} one group", tags="edge", **mm(1, 70, 40, 48, dtype, form)),
                case(f"{form} transposed", tags="edge", **mm(4, 96, 72, 80, dtype, form, "transposed", "transposed")),
            ]
        edge += [
            case("many groups", tags="edge", **mm(37, 150, 40, 32, dtype)), case("no rows", tags="edge", **mm(3, 0, 8, 16, dtype)),
            case("K of zero", tags="edge", **mm(3, 20, 8, 0, dtype)),
        ]
    return bench + edge


OP = Op(
    reference,
    calls=Calls(cpu=cpu, faults=faults, public=_public),
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(  # with few groups the rows that are left over, which the work counts, would be many
        lambda dtype, M, N, K, groups: {
            "a": Input((M, K), dtype), "b": Input((groups, K, N), dtype, layout="transposed"), "offsets": Input((groups,), "i32"),
        },
        {**PRODUCT, "groups": (8, 256)}, models={"N": "inner", "K": "hidden"}, dtypes=("bf16",), independent="M", taken=_of_rows,
    ),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    grad=Grad(wrt=("a", "b"), saves=("a", "b", "offsets"), backward=backward),
    values=Values(fixup=_offsets),
    judging=Judging(rows=_rows, alone=alone),
    peers={"torch": _torch},
    wrong={"weights of the first group": _first_weights, "one row less": _one_row_less, "rows past the end": _all_rows,
           "scale of a ignored": _without_scale(3), "scale of b ignored": _without_scale(4)},
)
