"""Matrix product of 8-bit operands (fp8, int8) with scales.

    out = scale_a · scale_b · a b + bias

Source: Micikevicius et al., "FP8 formats for deep learning" (2022); scales of blocks: the DeepSeek-V3 report (2024), section 3.3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import among, flag
from rooftop.core.op import Calls, Judging, Op, Sizes, Tolerance, Values
from rooftop.core.spec import DTYPES, Case, Input, Meta, Option, Problem, Work, case, dtype_of
from rooftop.core.sweeps import PRODUCT

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 128  # elements along K (and along N, of b) that share a scale
LONGEST = 2**31 // 2**14 - 1  # K of int8: (-128)² this often is less than 2^31


def scaled_matmul(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    fast: bool = False,
    out_dtype: Any = None,
    implementation: str | None = None,
) -> Tensor:
    """scale_a · scale_b · a b + bias, with a and b in fp8 or int8, rounded once.

    Fastest where both operands are contiguous along K: `b` a transposed [N, K] tensor. All other layouts are read in place too.

    Args:
        a: [M, K], float8_e4m3fn, float8_e5m2 or int8, any strides.
        b: [K, N], an fp8 dtype if `a` has one, else int8; any strides.
        scale_a, scale_b: float32; their shapes determine what they scale:
            one element each: all of a, all of b;
            [M] or [M, 1], and [N] or [1, N]: rows of a and columns of b;
            [M, ceil(K / 128)] and [ceil(K / 128), ceil(N / 128)] (fp8 only): 128 elements of a row of a, blocks of 128 x 128 of b.
            Any strides: they are copied. DeepGEMM's `fp8_gemm_nt((a, sa), (b, sb), out)` is ``scaled_matmul(a, b.t(), sa, sb.t())``.
        bias: [N], float32, float16 or bfloat16, added to each row, or None.
        fast: lets tensor cores accumulate fp8 products in fewer than 24 bits along all of K, up to 4096 of them. If False, or for
            float32 results, or with block scales, at most 128 products are accumulated this way, and these sums are added in float32.
        out_dtype: torch.bfloat16 (the default), torch.float16 or torch.float32. Values beyond its range become infinite.
        implementation: name of a kernel (`"gluon_sm90"`), which runs or raises. None selects the best one that supports the input.

    int8 is summed exactly in 32 bits before it is scaled.

    Returns [M, N], the bias (or zeros) where K is 0. No gradient flows through it.

    Raises TypeError for other dtypes; ValueError for shapes that do not fit, scales of other shapes or of two kinds, tensors on different
    devices, or int8 with K above 131071, where a sum could leave 32 bits."""
    flag("scaled_matmul", "fast", fast)
    scales = _validate(a, b, scale_a, scale_b, bias, out_dtype)
    to = "bf16" if out_dtype is None else dtype_of(out_dtype)
    flat = ((t if scales == "blocks" else t.reshape(-1)).contiguous() for t in (scale_a, scale_b))
    return OP(a, b, *flat, bias, scales, fast, to, implementation=implementation)


def _validate(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, out_dtype: Any) -> str:
    """What the scales are: "one", "rows" or "blocks"."""
    import torch

    fp8, floats = (torch.float8_e4m3fn, torch.float8_e5m2), (torch.float32, torch.float16, torch.bfloat16)
    for name, t in (("a", a), ("b", b), ("scale_a", scale_a), ("scale_b", scale_b), ("bias", bias)):
        if t is None and name == "bias":
            continue
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"scaled_matmul: {name} is a {type(t).__name__}; it must be a tensor")
        accepted = (torch.float32,) if name.startswith("scale") else floats if name == "bias" else (*fp8, torch.int8)
        if t.dtype not in accepted:
            raise TypeError(f"scaled_matmul: {name} is {t.dtype}; accepted is {', '.join(map(str, accepted))}")
        if t.device != a.device:
            raise ValueError(f"scaled_matmul: a lies on {a.device} and {name} on {t.device}; they must be on one device")
    if (a.dtype == torch.int8) != (b.dtype == torch.int8):
        raise TypeError(f"scaled_matmul: a is {a.dtype} and b is {b.dtype}; both must be fp8 or both int8")
    if out_dtype is not None and out_dtype not in floats:
        raise TypeError(f"scaled_matmul: out_dtype is {out_dtype}; accepted is {', '.join(map(str, floats))}")
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"scaled_matmul: a is {tuple(a.shape)} and b is {tuple(b.shape)}; they must be [M, K] and [K, N]")
    m, k, n = a.shape[0], a.shape[1], b.shape[1]
    if bias is not None and tuple(bias.shape) != (n,):
        raise ValueError(f"scaled_matmul: bias is {tuple(bias.shape)}; it must be {(n,)}")
    if a.dtype == torch.int8 and k > LONGEST:
        raise ValueError(f"scaled_matmul: K is {k}; sums of more than {LONGEST} products of int8 may not fit int32")
    given, kb = (tuple(scale_a.shape), tuple(scale_b.shape)), -(-k // BLOCK)
    if scale_a.numel() == 1 and scale_b.numel() == 1:
        return "one"
    if among(given[0], ((m,), (m, 1))) and among(given[1], ((n,), (1, n))):
        return "rows"
    if given == ((m, kb), (kb, -(-n // BLOCK))):
        if a.dtype == torch.int8:
            raise ValueError("scaled_matmul: scales of blocks are for fp8; int8 takes one scale, or one for each row of a and column of b")
        return "blocks"
    raise ValueError(
        f"scaled_matmul: scale_a is {given[0]} and scale_b {given[1]}; accepted is one element each, {(m,)} and {(n,)}, or {(m, kb)} and "
        f"{(kb, -(-n // BLOCK))}"
    )


def in_float32(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, scales: str, fast: bool, to: str) -> Tensor:
    import torch

    kind = torch.promote_types(scale_a.dtype, torch.float32)
    x, y = a.to(kind), b.to(kind)
    if scales == "blocks":
        x = x * scale_a.repeat_interleave(BLOCK, 1)[:, : x.shape[1]]
        out = x @ (y * scale_b.repeat_interleave(BLOCK, 0)[: y.shape[0]].repeat_interleave(BLOCK, 1)[:, : y.shape[1]])
    else:
        out = (x @ y) * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
    out = out if bias is None else out + bias
    return out if kind == torch.float64 else out.to(getattr(torch, DTYPES[to].torch))


def reference(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, scales: str, fast: bool, to: str) -> Tensor:
    """`in_float32`, with int8 in float64: float32 holds the sums of no more than 1024 products exactly."""
    import torch

    if a.dtype != torch.int8 or scale_a.dtype == torch.float64:
        return in_float32(a, b, scale_a, scale_b, bias, scales, fast, to)
    return in_float32(a, b, scale_a.double(), scale_b, bias, scales, fast, to).to(getattr(torch, DTYPES[to].torch))


def outputs(a: Meta, b: Meta, to: str, **_: Any) -> dict[str, Meta]:
    return {"out": Meta((a.shape[0], b.shape[1]), to)}


def canonical(p: Problem) -> Problem | None:
    """Operands of any strides; scales and bias contiguous."""
    return p if all(m is None or m.contiguous for n, m in p.tensors if n not in ("a", "b")) else None


def work(p: Problem) -> Work:
    read = sum(m.nbytes for n, m in p.tensors if m is not None and n != "out")
    return Work(read, p["out"].nbytes, {"tensor-i8" if p["a"].dtype == "i8" else "tensor-f8": float(p["a"].numel) * p["b"].shape[1]})


def _fitting(tensors: Mapping[str, Any], options: Mapping[str, Option], generator: Any) -> dict[str, Any]:
    """All 256 values of int8; scales between 0.5 and 1.5."""
    import torch

    found = {}
    for n, t in tensors.items():
        if n.startswith("scale"):
            found[n] = torch.rand(t.shape, generator=generator, device=t.device) + 0.5
        elif n != "bias" and t is not None and t.dtype == torch.int8:
            found[n] = torch.randint(-128, 128, t.shape, generator=generator, device=t.device, dtype=torch.int32).to(torch.int8)
    return found


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    named = {"bias": tensors["bias"], "fast": options["fast"], "out_dtype": getattr(torch, DTYPES[options["to"]].torch)}
    return tuple(tensors[n] for n in ("a", "b", "scale_a", "scale_b")), named


def _torch() -> Callable[..., Tensor]:
    import torch

    def scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, scales: str, fast: bool, to: str) -> Tensor:
        """cuBLASLt by `torch._scaled_mm`, which takes fp8 contiguous along K, a scale each or one a row and column."""
        if a.dtype == torch.int8:
            raise ValueError("torch has no scaled product of int8")
        of_a, of_b = (scale_a, scale_b) if scales == "blocks" else (scale_a.reshape(-1, 1), scale_b.reshape(1, -1))
        if scales == "one":
            of_a, of_b = scale_a.reshape(()), scale_b.reshape(())
        return torch._scaled_mm(a, b, of_a, of_b, bias=bias, out_dtype=getattr(torch, DTYPES[to].torch), use_fast_accum=fast)

    return scaled_mm


def _sixteen() -> Callable[..., Tensor]:
    """What one would run without quantising: cuBLAS with both operands in bf16, dequantised outside what is timed."""
    import torch

    from rooftop.ops._peers import Kept

    left = Kept(lambda a, scale: (a.float() * scale.reshape(-1, 1)).bfloat16())
    right = Kept(lambda b, scale: (b.float() * scale.reshape(1, -1)).bfloat16().t().contiguous())

    def linear(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, scales: str, fast: bool, to: str) -> Tensor:
        if scales == "blocks" or to != "bf16":
            raise ValueError("in bf16 for scales of rows and columns, or one of each")
        return torch.nn.functional.linear(left(a, scale_a), right(b, scale_b), bias)

    return linear


def _with(change: Callable[[dict[str, Any]], None]) -> Callable[..., Tensor]:
    def run(*args: Any) -> Tensor:
        given = dict(zip(("a", "b", "scale_a", "scale_b", "bias", "scales", "fast", "to"), args, strict=True))
        change(given)
        return in_float32(**given)

    return run


def _ones(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda given: given.update({name: given[name] * 0 + 1})


def _cut(given: dict[str, Any]) -> None:
    """The last products of each row are left out."""
    import torch

    k = given["a"].shape[1]
    keep = torch.arange(k, device=given["a"].device) < k // 8 * 8
    given["a"] = (given["a"].float() * keep).to(given["a"].dtype)


def _swept(dtype: str, M: int, N: int, K: int) -> dict[str, Any]:
    """A scale a row of a and a column of b."""
    return {"a": Input((M, K), dtype), "b": Input((K, N), dtype, layout="transposed"), "scale_a": Input((M,)), "scale_b": Input((N,)),
            "scales": "rows", "fast": False, "to": "bf16"}


def _cases() -> list[Case]:
    def mm(
        dtype: str, m: int, n: int, k: int, scales: str = "rows", *, fast: bool = False, to: str = "bf16", bias: bool = False,
        a: str = "contiguous", b: str = "transposed", of_b: str = "",
    ) -> dict[str, Any]:
        kb = -(-k // BLOCK)
        shapes = {"one": ((1,), (1,)), "rows": ((m,), (n,)), "blocks": ((m, kb), (kb, -(-n // BLOCK)))}[scales]
        return {
            "a": Input((m, k), dtype, layout=a), "b": Input((k, n), of_b or dtype, layout=b), "scale_a": Input(shapes[0]),
            "scale_b": Input(shapes[1]), "bias": Input((n,), to) if bias else None, "scales": scales, "fast": fast, "to": to,
        }

    bench = [case(f"{n} cubed", tags="bench", **mm("f8e4m3", n, n, n, "one")) for n in (4096, 8192)]
    bench += [case(f"{n} cubed fast", tags="bench", **mm("f8e4m3", n, n, n, "one", fast=True)) for n in (4096, 8192)]
    bench += [
        case(f"layer {m}x{n}x{k}", tags="bench model", **mm("f8e4m3", m, n, k, fast=True)) for m, n,
        k in ((16, 8192, 8192), (4096, 7168, 2048))
    ]
    bench += [
        case(f"blocks {m}x{n}x{k}", tags="bench model", **mm("f8e4m3", m, n, k, "blocks")) for m, n,
        k in ((4096, 7168, 2048), (128, 7168, 2048), (4096, 7168, 16384))
    ]
    bench.append(case("4096 cubed", tags="bench", **mm("i8", 4096, 4096, 4096)))
    bench += [case(f"rows {m}x8192x8192", tags="bench", **mm(d, m, 8192, 8192)) for d in ("f8e4m3", "i8") for m in (1024, 4096)]
    edge = []
    for dtype in ("f8e4m3", "f8e5m2", "i8"):
        for scales in ("one", "rows") if dtype == "i8" else ("one", "rows", "blocks"):
            edge += [
                case(f"{scales} aligned", tags="edge", **mm(dtype, 136, 272, 400, scales, bias=True)),
                case(f"{scales} small", tags="edge", **mm(dtype, 17, 24, 140, scales, b="contiguous")),
                case(f"{scales} odd", tags="edge", **mm(dtype, 33, 131, 259, scales)),
                case(f"{scales} few rows, deep", tags="edge", **mm(dtype, 16, 72, 4112, scales, to="f16")),
            ]
        edge += [
            case("one element", tags="edge", **mm(dtype, 1, 1, 1, "one")), case("K of zero", tags="edge", **mm(dtype, 9, 7, 0, bias=True)),
            case("no rows", tags="edge", **mm(dtype, 0, 5, 7)),
            case("result of float32", tags="edge", **mm(dtype, 72, 136, 272, to="f32", bias=True)),
            case("rows of b", tags="edge", **mm(dtype, 72, 136, 272, b="contiguous")),
            case("columns of a", tags="edge", **mm(dtype, 72, 136, 272, a="transposed")),
        ]
    edge += [
        case("e4m3 by e5m2", tags="edge", **mm("f8e4m3", 72, 136, 272, of_b="f8e5m2")),
        case("fast", tags="edge", **mm("f8e4m3", 136, 272, 144, fast=True)),
    ]
    return bench + edge


OP = Op(
    reference,
    judging=Judging(same=in_float32, rows=lambda p: dict.fromkeys(("a", "out") if p.option("scales") == "one" else ("a", "scale_a", "out"), 0)),
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(_swept, {**PRODUCT, "K": (16, 1 << 16)}, models={"N": "inner", "K": "hidden"}, dtypes=("f8e4m3", "i8"), independent="M"),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    values=Values(fixup=_fitting),
    calls=Calls(public=_public),
    peers={"torch": _torch, "torch bf16": _sixteen},
    wrong={
        "scale of a ignored": _with(_ones("scale_a")),
        "scale of b ignored": _with(_ones("scale_b")),
        "bias ignored": _with(lambda given: given.update(bias=None)),
        "K tail dropped": _with(_cut),
    },
)
