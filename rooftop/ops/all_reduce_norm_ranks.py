"""What `rooftop.comm.all_reduce_norm` gives each rank, computed on one device: an all-reduce fused with the norm after it.

    s[r] = sum_p Q(x[p]) + residual[r]                            in float32; returned rounded once to the dtype of x
    y[r] = s[r] / sqrt(mean(s[r]²) + eps) · weight[r]             of s in float32; rounded, or as `rooftop.quantize` makes codes of it

Q is a wire's rounding of each row, rooftop/formats/wire.py; sums are taken in the order of the ranks.

Sources: Zhang & Sennrich 2019 (arXiv 1910.07467); TokenWeave (arXiv 2505.11329) fuses the three in a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.contract import Judged
from rooftop.core.op import Calls, Judging, Op, Tolerance
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.formats import wire as wires
from rooftop.ops import _quantized_rows as rows
from rooftop.ops._quantized import groups

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("bf16", "f16", "f32")
MOST_RANKS = 16
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}  # relative error of one
LEAST = {"bfloat16": 2.0**-126, "float16": 2.0**-24, "float32": 2.0**-126}  # numbers below may be flushed


def all_reduce_norm_ranks(
    x: Tensor, residual: Tensor | None = None, weight: Tensor | None = None, eps: float | None = None, *, format: str | None = None,
    columns: int | None = None, wire: str = "bf16", group_size: int = 128, implementation: str | None = None,
) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor]:
    """Each rank's result of a fused all-reduce, addition and RMS norm of the W ranks' tensors: ``y, s = rooftop.all_reduce_norm_ranks(x,
    residual, weight)``.

    It runs on one device. The kernel of `rooftop.comm.all_reduce_norm` is checked against it.

    Args:
        x: float32, float16 or bfloat16, [W, N, C]; the first dimension is the rank, 1 to 16.
        residual: [W, N, C] in the dtype of x, or None.
        weight: [W, C] in the dtype of x or float32, or None.
        eps: added to the mean of the squares. None: the epsilon of float32.
        format: None, "int8" or "e4m3"; columns: that share a scale, 32, 64, 128 or 256, or None for a row.
        wire, group_size: as `rooftop.all_reduce_ranks`.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports `x`.

    Returns (y, s), both [W, N, C]; with a format, y is (codes uint8 [W, N, C], scales float32 [W, N, groups]). No gradient.

    Raises TypeError for other dtypes and types, ValueError for shapes, formats, wires and numbers that are not supported."""
    import torch

    from rooftop.ranks.norm import Norm

    what = "all_reduce_norm_ranks"
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{what}: x is a {type(x).__name__}; it must be a tensor")
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"{what}: x is {x.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    if x.dim() != 3 or not 1 <= x.shape[0] <= MOST_RANKS:
        raise ValueError(f"{what}: x is {tuple(x.shape)}; it must be [W, N, C] with 1 to {MOST_RANKS} ranks")
    for name, t, shape in (("residual", residual, tuple(x.shape)), ("weight", weight, (x.shape[0], x.shape[2]))):
        if t is None:
            continue
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{what}: {name} is a {type(t).__name__}; it must be a tensor")
        if t.dtype != x.dtype and (name == "residual" or t.dtype != torch.float32):
            raise TypeError(f"{what}: {name} is {t.dtype}; x is {x.dtype}")
        if tuple(t.shape) != shape:
            raise ValueError(f"{what}: {name} is {tuple(t.shape)}; it must be {shape}")
    norm = Norm.of(what, eps, format, columns)
    wires.wire_of(what, wire, group_size, False, False)
    y, codes, scale, s = OP(
        x.detach(), None if residual is None else residual.detach(), None if weight is None else weight.detach(), norm.eps, format or "",
        norm.group, wire, group_size, implementation=implementation,
    )
    return (y if format is None else (codes, scale)), s


def summed(x: Tensor, residual: Tensor | None, wire: str, group: int) -> Tensor:
    """s in float32, whatever the dtype of x."""
    ranks, n, columns = x.shape
    total = x.float()
    if ranks > 1 and x.numel():
        kind, v = wires.WIRES[wire], wires.rows_of(x.reshape(ranks * n, columns), group, False)
        total = wires.total(wires.values(wires.encode(v, kind, group), kind, group, columns).view(ranks, n, -1))[None, :, :columns]
    total = total.expand(x.shape)
    return (total if residual is None else total + residual.float()).contiguous()


def _normed(s: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    y = s * (s.square().mean(-1, keepdim=True) + eps).rsqrt()
    return y if weight is None else y * weight.unsqueeze(1)


def reference(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float, format: str, columns: int, wire: str, group: int
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor]:
    import torch

    total = summed(x, residual, wire, group)
    s, v = total.to(x.dtype), total.double() if x.dtype == torch.float64 else total
    y = _normed(v, None if weight is None else weight.to(v.dtype), eps)
    if not format:
        return y.to(x.dtype), None, None, s
    codes, scale = rows.quantized(y.flatten(0, 1), None, columns, format, "f32", "nearest", 0)
    return None, codes.view(x.shape), scale.view(*x.shape[:2], -1), s


def outputs(x: Meta, format: str, columns: int, **_: Any) -> dict[str, Meta | None]:
    ranks, n, wide = x.shape
    if not format:
        return {"y": Meta(x.shape, x.dtype), "codes": None, "scale": None, "s": Meta(x.shape, x.dtype)}
    shared = (ranks, n, groups(wide, columns) if columns else 1 if wide else 0)
    return {"y": None, "codes": Meta(x.shape, "u8"), "scale": Meta(shared, "f32"), "s": Meta(x.shape, x.dtype)}


def _sums(judged: Judged) -> Tensor:
    """s in float32."""
    t, o = judged.tensors, judged.options
    return summed(t["x"], t.get("residual"), str(o["wire"]), int(o["group"]))


def _law_s(judged: Judged) -> str | None:
    got = judged.got["s"]  # bit for bit
    want = _sums(judged).to(got.dtype)
    wrong = ~((got == want) | (got.isnan() & want.isnan()))
    if not bool(wrong.any()):
        return None
    i = tuple(int(k) for k in wrong.nonzero()[0])
    return f"{int(wrong.sum())} sums: {i} is {float(got[i]):.9g}; it must be {float(want[i]):.9g}"


def _law_y(judged: Judged) -> str | None:
    """Against float64 of the sums; where their squares leave the range of float32, against float32."""
    s, weight, got = _sums(judged), judged.tensors.get("weight"), judged.got["y"]
    eps = float(judged.options["eps"])
    name = str(got.dtype).removeprefix("torch.")
    exact = _normed(s.double(), None if weight is None else weight.double(), eps)
    plain = _normed(s.float(), None if weight is None else weight.float(), eps)
    beyond = s.double().square().sum(-1, keepdim=True).float().isinf()
    want = exact.where(~beyond, plain.double())
    want = want.where(want.to(got.dtype).isfinite(), want.to(got.dtype).double())
    off = (got.double() - want).abs()
    wrong = ~((off <= want.abs() * (ROUNDING[name] + rows.ULPS) + LEAST[name]) | (got.double() == want) | (got.isnan() & want.isnan()))
    if not bool(wrong.any()):
        return None
    i = tuple(int(k) for k in wrong.nonzero()[0])
    return f"{int(wrong.sum())} elements: {i} is {float(got[i]):.9g}; it must be {float(want[i]):.9g}"


def _values(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    s, weight = tensors["s"], tensors["weight"]
    y = s.double() * (s.double().square().mean(-1, keepdim=True) + float(options["eps"])).rsqrt()
    beyond = s.double().square().sum(-1, keepdim=True).float().isinf()
    y = y.where(~beyond, (s.float() * (s.float().square().mean(-1, keepdim=True) + float(options["eps"])).rsqrt()).double())
    y = y if weight is None else y * weight.double()
    return y, y.abs() * rows.ULPS + 2.0**-126


def _law_of(name: str) -> Callable[[Judged], str | None]:
    law = rows.laws(_values, ("s", "weight"))[name]

    def run(judged: Judged) -> str | None:
        s, weight = _sums(judged), judged.tensors.get("weight")
        flat = {"s": s.flatten(0, 1), "weight": None if weight is None else weight.unsqueeze(1).expand(s.shape).flatten(0, 1)}
        got = {n: judged.got[n].flatten(0, 1) for n in ("codes", "scale")}
        options = {**judged.options, "scales": "f32", "rounding": "nearest", "seed": 0, "group": judged.options["columns"]}
        return law(Judged(got, {}, {}, flat, options))

    return run


def canonical(p: Problem) -> Problem | None:
    return p if all(m is None or m.contiguous for _, m in p.tensors) else None


def work(p: Problem) -> Work:
    """Read x, the residual and the weight once, write the sums and y once: what crosses a link is no memory traffic of this device."""
    sides = ("x", "residual", "weight"), ("y", "codes", "scale", "s")
    read, written = (sum(m.nbytes for n in names if (m := p.get(n)) is not None) for names in sides)
    return Work(read, written, {"fma32": 6.0 * p["x"].numel})


def _plain(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float, format: str, columns: int, wire: str, group: int
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor]:
    """As one writes it, unquantised."""
    if wire != "bf16" or format:
        raise ValueError("plain torch: the bf16 wire, no codes")
    import torch

    total = x.to(torch.bfloat16).float().sum(0, keepdim=True).expand(x.shape)
    s = (total if residual is None else total + residual).to(x.dtype)
    return _normed(s.float(), None if weight is None else weight.float(), eps).to(x.dtype), None, None, s


def _case(
    name: str, tags: str, shape: tuple[int, int, int], d: str = "bf16", fill: str = "normal", layout: str = "contiguous",
    residual: bool = True, weight: str | None = "", **more: Any,
) -> Case:
    given: dict[str, Any] = {
        "x": Input(shape, d, fill, layout), "residual": Input(shape, d) if residual else None,
        "weight": None if weight is None else Input((shape[0], shape[2]), weight or d), "eps": 1e-5, "format": "",
        "columns": 0, "wire": "bf16",
    }
    return case(f"{name} {d}" if tags == "edge" and d != "bf16" else name, tags=tags, **{**given, "group": 128, **more})


def _cases() -> list[Case]:
    found = [_case(f"2 ranks {n}x8192", "bench", (2, n, 8192)) for n in (1, 16, 64, 256, 512)]
    found += [_case(f"2 ranks 64x8192, {f}", "bench", (2, 64, 8192), format=f, columns=c) for f, c in (("int8", 0), ("e4m3", 128))]
    found += [_case(f"2 ranks 64x8192, {w} sent", "bench", (2, 64, 8192), wire=w) for w in ("int8", "fp8", "int4")]
    for wire in wires.WIRES:
        found += [_case(f"{wire}, odd 3x5x1037", "edge", (3, 5, 1037), d, wire=wire) for d in FLOATS]
        found += [_case(f"{wire}, {ranks} ranks", "edge", (ranks, 3, 256), wire=wire) for ranks in (1, 2, 4, 8)]
        if wire != "bf16":
            found += [_case(f"{wire}, groups of {g}", "edge", (2, 2, 600), wire=wire, group=g) for g in wires.GROUPS]
    for format in ("int8", "e4m3"):
        found += [_case(f"{format} rows", "edge", (2, 3, 1000), d, format=format) for d in FLOATS]
        found += [_case(f"{format} groups of {g}", "edge", (2, 2, 640), format=format, columns=g) for g in (32, 64, 128, 256)]
        found += [_case(f"{format} odd, scales of {c}", "edge", (2, 3, 77), format=format, columns=c) for c in (0, 32)]
        found += [_case(f"{format} {fill}", "edge", (2, 3, 128), "f32", fill, format=format) for fill in ("nan", "inf", "large", "tiny")]
        found.append(_case(f"{format} long 2x2x17000", "edge", (2, 2, 17000), format=format, why="more chunks than warps"))
    fills = ("nan", "inf", "-inf", "large", "tiny", "-0.0")
    found += [_case(f"{fill}", "edge", (2, 3, 200), d, fill) for fill in fills for d in ("f32", "bf16")]
    found += [_case(f"{layout}", "edge", (2, 4, 64), layout=layout) for layout in ("transposed", "padded", "strided", "offset")]
    found += [
        _case("no residual", "edge", (2, 3, 300), residual=False), _case("no weight", "edge", (2, 3, 300), weight=None),
        _case("weight of float32", "edge", (3, 2, 300), weight="f32"),
        _case("neither, int8", "edge", (2, 2, 96), residual=False, weight=None, format="int8"),
        _case("long 2x2x17000", "edge", (2, 2, 17000), why="more chunks than warps"), _case("one element", "edge", (2, 1, 1)),
        _case("many rows 2x300x40", "edge", (2, 300, 40), why="more rows than blocks"),
        _case("no rows", "edge", (2, 0, 64)), _case("no columns", "edge", (2, 3, 0)),
    ]
    return found


def _changed(change: str) -> Callable[..., Any]:
    def run(x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float, format: str, columns: int, wire: str, group: int) -> Any:
        given: dict[str, Any] = {"x": x, "residual": residual, "weight": weight, "eps": eps}
        if change == "rank":
            given["x"] = x[:-1].repeat_interleave(2, 0)[: len(x)] if len(x) > 1 else x * 2
        elif change == "residual":
            given["residual"] = None if residual is None else residual.flip(1) * 2
        elif change == "weight":
            given["weight"] = None if weight is None else weight.roll(1, -1) * 1.5
        elif change == "eps":
            given["eps"] = eps + 1.0
        y, codes, scale, s = reference(**given, format=format, columns=columns, wire=wire, group=group)
        if change == "sum":
            s = x.clone()
        if change == "unrounded" and y is not None:  # what is normalised is not what is returned
            total = (x.float().sum(0, keepdim=True) * 1.02).expand(x.shape)
            total = total if residual is None else total + residual.float()
            y = _normed(total, None if weight is None else weight.float(), eps).to(x.dtype)
        if change == "last" and y is not None and y.numel():
            y[..., -1] = 0 if wire == "bf16" else float("nan")
        if change == "code" and codes is not None and codes.numel():
            codes[..., -1] ^= 1
        if change == "scale" and scale is not None:
            scale = scale * 1.01
        return y, codes, scale, s

    return run


def _on_a_group(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Mapping[str, Any]:
    from rooftop.ranks.norm import of_case

    return of_case(tensors, options, group)


def _by_nccl(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Any:
    import torch.distributed as dist

    from rooftop.ops.rms_norm import rms_norm

    if options["format"]:
        raise ValueError("NCCL and rooftop.rms_norm: without codes")
    x, weight = tensors["x"], tensors.get("weight")
    dist.all_reduce(x, group=group)
    return rms_norm(x, x.shape[-1], weight, options["eps"], residual=tensors.get("residual"))


def _by_two(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Any:
    """Our all-reduce in one shot, then our norm: what the fused kernel replaces."""
    from rooftop.ops.rms_norm import rms_norm
    from rooftop.ops.rms_norm_quantize import rms_norm_quantize
    from rooftop.ranks.collectives import all_reduce

    x, weight, residual = tensors["x"], tensors.get("weight"), tensors.get("residual")
    total = all_reduce(x, group, wire=options["wire"], group_size=options["group"], shots=1, verify=False)
    if options["format"]:
        return rms_norm_quantize(total, weight, options["eps"], options["format"], residual=residual, group=options["columns"] or None)
    return rms_norm(total, x.shape[-1], weight, options["eps"], residual=residual)


OP = Op(
    reference,
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    work=work,
    tolerance=Tolerance(multiple=2.0),
    judging=Judging(
        invariant={"batch": "no check compares a row's sum over ranks among others"},
        compare={"s": _law_s, "y": _law_y, "codes": _law_of("codes"), "scale": _law_of("scale")}
    ),
    peers={"torch": lambda: _plain},
    calls=Calls(objects=True, ranks=_on_a_group, ranks_peers={"NCCL, then the norm": _by_nccl, "one shot, then the norm": _by_two}),
    wrong={
        "the last rank left out": _changed("rank"),
        "another residual": _changed("residual"),
        "another weight": _changed("weight"),
        "another eps": _changed("eps"),
        "sum not returned": _changed("sum"),
        "another sum normalised": _changed("unrounded"),
        "last column wrong": _changed("last"),
        "last code wrong": _changed("code"),
        "scale a little larger": _changed("scale"),
    },
)
