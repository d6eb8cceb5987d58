"""What `rooftop.comm.dispatch_rows` and `combine_rows` give each rank, computed on one device: rows go to the ranks of their experts, and
back.

    dispatch:  out[r] = Q(rows of x[p] for expert g), by experts g of rank r, then by ranks p; zeros after them
    combine:   out[p] = Q(rows of x[r] that came from p), in the order that they had there; zeros after them

Rank r has the experts r L to r L + L - 1. Rank p's rows lie by experts: counts[p, g] rows for expert g. Q is a wire's rounding of each row,
rooftop/formats/wire.py.

Sources: GShard (arXiv 2006.16668: all-to-all of a mixture of experts); DeepEP and the DeepSeek-V3 report (arXiv 2412.19437: dispatch in 8
bits, combine)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.core.op import Calls, Op, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.formats import wire as wires

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("bf16", "f16", "f32")
MOST_RANKS = 16


def expert_rows_ranks(
    x: Tensor, counts: Tensor, routes: Tensor | None = None, *, rows: int, wire: str = "int8", group_size: int = 128,
    implementation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Each rank's rows after they went to the ranks of their experts, or back: ``out, routes, ends = rooftop.expert_rows_ranks(x, counts,
    rows=512)``, ``back = rooftop.expert_rows_ranks(out, counts, routes, rows=x.shape[1])``.

    It runs on one device. The kernel of `rooftop.comm.dispatch_rows` and `combine_rows` is checked against it.

    Args:
        x: float32, float16 or bfloat16, [W, N, C]; the first dimension is the rank, 1 to 16. Without routes by experts, else what the
            experts made of the rows that they got.
        counts: int32 [W, E], rows of each rank for each expert; E is a multiple of W. Below 0 counts as 0; rows beyond N do not exist.
        routes: None: rows go to their experts; int32 [W, W, E / W], as returned then: they go back.
        rows: of each rank's result. What does not fit is left out, and comes back as zeros.
        wire, group_size: as `rooftop.all_reduce_ranks`. With one rank rows are copied.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports `x`.

    Returns out [W, rows, C], and without routes also routes (the rows that each rank got from each other one for each of its experts) and
    ends, int32 [W, E / W]: where each expert's rows end, as `rooftop.grouped_matmul` takes them. No gradient.

    Raises TypeError for other dtypes and types, ValueError for shapes, wires and numbers that are not supported."""
    import torch

    what = "expert_rows_ranks"
    for name, t in (("x", x), ("counts", counts), ("routes", routes)):
        if not isinstance(t, torch.Tensor) and (name != "routes" or t is not None):
            raise TypeError(f"{what}: {name} is a {type(t).__name__}; it must be a tensor")
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"{what}: x is {x.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    for name, t in (("counts", counts), ("routes", routes)):
        if t is not None and t.dtype != torch.int32:
            raise TypeError(f"{what}: {name} is {t.dtype}; it must be torch.int32")
        if t is not None and t.device != x.device:
            raise ValueError(f"{what}: x lies on {x.device}, {name} on {t.device}; they must be on one device")
    if x.dim() != 3 or not 1 <= x.shape[0] <= MOST_RANKS:
        raise ValueError(f"{what}: x is {tuple(x.shape)}; it must be [W, N, C] with 1 to {MOST_RANKS} ranks")
    ranks = x.shape[0]
    if counts.dim() != 2 or counts.shape[0] != ranks or counts.shape[1] % ranks or not counts.shape[1]:
        raise ValueError(f"{what}: counts is {tuple(counts.shape)}; it must be [{ranks}, E] with E a multiple of {ranks} and above 0")
    if routes is not None and tuple(routes.shape) != (ranks, ranks, counts.shape[1] // ranks):
        raise ValueError(f"{what}: routes is {tuple(routes.shape)}; it must be {(ranks, ranks, counts.shape[1] // ranks)}")
    number(what, "rows", rows, "a whole number from 0 on", whole=True)
    if not 0 <= rows < 2**31:
        raise ValueError(f"{what}: rows is {rows}; it must be at least 0 and below 2^31")
    wires.wire_of(what, wire, group_size, False, False)
    out, received, ends = OP(
        x.detach(), counts, None if routes is None else routes, int(rows), wire, group_size, implementation=implementation
    )
    return (out, received, ends) if routes is None else out


def reference(
    x: Tensor, counts: Tensor, routes: Tensor | None, rows: int, wire: str, group: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    import torch

    from rooftop.ranks.experts import begins

    ranks, n, columns = x.shape
    back, each = routes is not None, counts.shape[1] // ranks
    capacity, starts = (n if back else rows), begins(counts, rows if back else n)
    sent = starts.diff().view(ranks, ranks, each)  # from, to, for which of its experts
    w, rounded = wires.WIRES[wire], x
    if ranks > 1 and x.numel():
        v = wires.rows_of(x.reshape(ranks * n, columns), group, False)
        rounded = wires.values(wires.encode(v, w, group), w, group, columns)[:, :columns].to(x.dtype).view(x.shape)
    out = x.new_zeros(ranks, rows, columns)
    for r in range(ranks):
        at = 0
        for e in range(each):
            for p in range(ranks):
                begin, count = int(starts[p, r * each + e]), int(sent[p, r, e])
                kept = max(min(count, capacity - at), 0)
                if back:
                    out[p, begin : begin + kept] = rounded[r, at : at + kept]
                else:
                    out[r, at : at + kept] = rounded[p, begin : begin + kept]
                at += count
    if back:
        return out, None, None
    received = sent.transpose(0, 1).contiguous()
    ends = received.sum(1).cumsum(1).clamp(max=capacity)
    return out, received.to(torch.int32), ends.to(torch.int32)


def outputs(x: Meta, counts: Meta, routes: Meta | None, rows: int, **_: Any) -> dict[str, Meta | None]:
    ranks, _n, columns = x.shape
    each = counts.shape[1] // max(ranks, 1)
    out = Meta((ranks, rows, columns), x.dtype)
    if routes is not None:
        return {"out": out, "received": None, "ends": None}
    return {"out": out, "received": Meta((ranks, ranks, each), "i32"), "ends": Meta((ranks, each), "i32")}


def canonical(p: Problem) -> Problem | None:
    return p if all(t is None or t.contiguous for t in (p["x"], p["counts"], p.get("routes"))) else None


def work(p: Problem) -> Work:
    """Read x once, write out once: what crosses a link is no memory traffic of this device."""
    return Work(p["x"].nbytes + p["counts"].nbytes, p["out"].nbytes, {"fma32": float(p["x"].numel + p["out"].numel)})


def _arrange(tensors: Mapping[str, Any], options: Mapping[str, Any], generator: Any) -> dict[str, Any]:
    """Rows for experts at random, about nine tenths of them and one expert without; every fifth draw with counts that are out of range."""
    import torch

    from rooftop.ranks.experts import begins

    x, counts, routes = tensors["x"], tensors["counts"], tensors.get("routes")
    ranks, experts = counts.shape
    tokens = x.shape[1] if routes is None else int(options["rows"])
    share = torch.rand(ranks, experts, generator=generator, device=counts.device)
    share[:, experts // 2] = 0
    made = (share / share.sum(1, keepdim=True).clamp(min=1e-6) * tokens * 0.9).round().to(torch.int32)
    if int(torch.randint(5, (1,), generator=generator, device=counts.device)) == 0:
        made[0, 0], made[-1, -1] = -3, 2**31 - 1
    found = {"counts": made}
    if routes is not None:
        sent = begins(made, tokens).diff().view(ranks, ranks, -1)
        found["routes"] = sent.transpose(0, 1).contiguous().to(torch.int32)
    return found


def _case(
    name: str, tags: str, shape: tuple[int, int, int], experts: int, rows: int, back: bool, d: str = "bf16", fill: str = "normal",
    layout: str = "contiguous", **more: Any,
) -> Case:
    """`shape`: [W, N, C] of what is dispatched; `rows`: of what is received."""
    ranks, n, columns = shape
    routes = Input((ranks, ranks, experts // ranks), "i32") if back else None
    given: dict[str, Any] = {
        "x": Input((ranks, rows if back else n, columns), d, fill, layout), "counts": Input((ranks, experts), "i32"), "routes": routes,
        "rows": n if back else rows, "wire": "int8", "group": 128,
    }
    kind = "combine" if back else "dispatch"
    return case(f"{kind}, {name} {d}" if tags == "edge" and d != "bf16" else f"{kind}, {name}", tags=tags, **{**given, **more})


def _cases() -> list[Case]:
    found: list[Case] = []
    for back in (False, True):
        for wire in ("bf16", "int8", "fp8"):
            found.append(_case(f"{wire} 2 ranks 4096x7168, 64 experts", "bench", (2, 4096, 7168), 64, 6144, back, wire=wire))
            found.append(_case(f"{wire} 2 ranks 128x7168, 64 experts", "bench", (2, 128, 7168), 64, 256, back, wire=wire))
        for wire in wires.WIRES:
            found += [_case(f"{wire}, odd", "edge", (3, 17, 200), 6, 40, back, d, wire=wire) for d in FLOATS]
            found += [_case(f"{wire}, {fill}", "edge", (2, 8, 160), 4, 16, back, "f32", fill, wire=wire) for fill in ("nan", "inf", "large")]
        found += [_case(f"groups of {g}", "edge", (2, 6, 300), 2, 12, back, group=g) for g in wires.GROUPS]
        found += [_case(f"{ranks} ranks", "edge", (ranks, 12, 64), 2 * ranks, 12 * ranks, back) for ranks in (1, 2, 4, 8)]
        found += [
            _case("does not fit", "edge", (3, 20, 72), 9, 13, back, why="more rows come than out has"),
            _case("many experts", "edge", (2, 40, 32), 256, 80, back), _case("several chunks", "edge", (2, 5, 2500), 2, 10, back),
            _case("one row", "edge", (2, 1, 33), 2, 2, back), _case("many blocks", "edge", (2, 60, 1100), 4, 90, back),
            _case("no tokens", "edge", (2, 0, 32), 2, 4, back), _case("no columns", "edge", (2, 5, 0), 2, 8, back),
            _case("no room", "edge", (2, 5, 64), 2, 0, back),
        ]
        found += [_case(layout, "edge", (2, 9, 64), 4, 18, back, layout=layout) for layout in ("transposed", "padded", "offset")]
    return found


def _changed(change: str) -> Callable[..., Any]:
    def run(x: Tensor, counts: Tensor, routes: Tensor | None, rows: int, wire: str, group: int) -> Any:
        if change == "wire":
            return reference(x, counts, routes, rows, "int4" if wire != "int4" else "bf16", group)
        if change == "counts":
            return reference(x, counts.flip(1), routes, rows, wire, group)
        out, received, ends = reference(x.flip(0) if change == "ranks" else x, counts, routes, rows, wire, group)
        if change == "rest" and out.numel():  # what lay there stays
            out[:, -1] = 1
        if change == "ends" and ends is not None and received is not None:
            received, ends = received.transpose(0, 1).contiguous(), ends + 1
        if change == "nan":
            out = out.nan_to_num(0.0, 0.0, 0.0)
        return out, received, ends

    return run


def _on_a_group(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Mapping[str, Any]:
    from rooftop.ranks import experts

    return experts.of_case(tensors, options, group)


def _by_nccl(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Any:
    """Counts, then rows, by torch's all-to-all; the host waits for the counts. Rows stay by ranks."""
    import torch
    import torch.distributed as dist

    from rooftop.ranks.experts import begins

    x, counts, ranks = tensors["x"], tensors["counts"], dist.get_world_size(group)
    back = tensors.get("routes") is not None
    sent = begins(counts, int(options["rows"]) if back else x.shape[0]).diff().view(ranks, -1)
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, group=group)
    into, out = got.sum(1).tolist(), sent.sum(1).tolist()
    if back:
        into, out = out, into
    found = x.new_empty(sum(into), x.shape[1])
    dist.all_to_all_single(found, x[: sum(out)], into, out, group=group)
    return found


OP = Op(
    reference,
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    work=work,
    tolerance=Tolerance(exact=True),
    values=Values(fixup=_arrange),
    calls=Calls(objects=True, ranks=_on_a_group, ranks_peers={"NCCL": _by_nccl}),
    wrong={
        "another wire": _changed("wire"),
        "another order of the experts": _changed("counts"),
        "another rank's rows": _changed("ranks"),
        "the rest not zero": _changed("rest"),
        "counts by another rank, ends off by one": _changed("ends"),
        "NaN and infinities lost": _changed("nan"),
    },
)
