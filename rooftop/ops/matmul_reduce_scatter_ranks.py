"""What `rooftop.comm.matmul_reduce_scatter` gives each rank, computed on one device: its rows of the sum of all products.

    out[r] = sum_p (a[p] b[p])[rows r M / W to (r + 1) M / W]        a [W, M, K], b [W, K, N], out [W, M / W, N]

Products are rounded to the dtype on their way, or to a wire (rooftop/formats/wire.py), and added in float32.

Sources: Flux (arXiv 2406.06858: products whose epilogue stores to the peers), Megatron-LM's row-parallel layer with sequence parallelism
(arXiv 2205.05198)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Judging, Op, Tolerance
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.formats import wire as wires
from rooftop.ops.all_gather_matmul_ranks import validate

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("bf16", "f16", "f32")
UNITS = {"f32": "fma32", "f16": "tensor-f16", "bf16": "tensor-bf16"}
PLAIN = "none"  # as the option says that no wire is asked for


def matmul_reduce_scatter_ranks(
    a: Tensor, b: Tensor, *, wire: str | None = None, group_size: int = 128, implementation: str | None = None
) -> Tensor:
    """Each rank's rows of the sum of all a[p] @ b[p], [W, M / W, N]: ``rooftop.matmul_reduce_scatter_ranks(a, b, wire="int8")``.

    It runs on one device and shows the effect of a wire format. The paths of `rooftop.comm.matmul_reduce_scatter` are checked against it.

    Args:
        a: [W, M, K], float32, float16 or bfloat16; the first dimension is the rank, 1 to 16.
        b: [W, K, N], of the same dtype.
        wire: format in which products are sent: None (their dtype), "bf16", "fp8", "int8" or "int4".
        group_size: elements that share a scale: 32, 64, 128 or 256.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports the input.

    No gradient. Raises TypeError for other dtypes and types, ValueError for shapes that do not fit, a number of rows that is not divisible
    by the number of ranks, and unknown wires or group sizes."""
    what = "matmul_reduce_scatter_ranks"
    validate(what, a, b)
    if a.shape[1] % a.shape[0]:
        raise ValueError(f"{what}: a has {a.shape[1]} rows; they must be a multiple of {a.shape[0]}, the number of ranks")
    wires.wire_of(what, "bf16" if wire is None else wire, group_size, False, False)
    return OP(a.detach(), b.detach(), PLAIN if wire is None else wire, group_size, implementation=implementation)


def reference(a: Tensor, b: Tensor, wire: str, group: int) -> Tensor:
    ranks, m, _ = a.shape
    return a.matmul(b).sum(0).view(ranks, m // max(ranks, 1), b.shape[2])


def same(a: Tensor, b: Tensor, wire: str, group: int) -> Tensor:
    """Products rounded to the dtype, then to the wire: each rank's rows for another are one message."""
    import torch

    ranks, m, n = a.shape[0], a.shape[1], b.shape[2]
    made = a.matmul(b)
    if ranks == 1:
        return made
    parts = made.float()
    if wire != PLAIN and made.numel():
        w, count = wires.WIRES[wire], m // ranks * n
        rows = wires.rows_of(parts.reshape(ranks * ranks, count), group, False)
        parts = wires.values(wires.encode(rows, w, group), w, group, count)[:, :count].reshape(ranks, m, n)
    found: Tensor = wires.total(parts).to(a.dtype) if ranks else torch.zeros_like(made)
    return found.view(ranks, m // ranks, n)


def outputs(a: Meta, b: Meta, **_: Any) -> dict[str, Meta]:
    return {"out": Meta((a.shape[0], a.shape[1] // max(a.shape[0], 1), b.shape[2]), a.dtype)}


def canonical(p: Problem) -> Problem | None:
    return p if p["a"].contiguous and p["b"].contiguous else None


def work(p: Problem) -> Work:
    """Of one device that plays all ranks: a, b and out once; what crosses a link is no memory traffic of this device."""
    a, b, out = p["a"], p["b"], p["out"]
    return Work(a.nbytes + b.nbytes, out.nbytes, {UNITS[a.dtype]: float(a.numel * b.shape[2])})


def _plain(a: Tensor, b: Tensor, wire: str, group: int) -> Tensor:
    """Batched product, then a sum: torch on one device."""
    if wire != PLAIN:
        raise ValueError("plain torch: products as they are")
    ranks, m, _ = a.shape
    return a.bmm(b).sum(0).view(ranks, m // ranks, b.shape[2])


def _case(
    name: str, tags: str, ranks: int, m: int, n: int, k: int, d: str = "bf16", fill: str = "normal", layout: str = "contiguous", **more: Any
) -> Case:
    given: dict[str, Any] = {
        "a": Input((ranks, m, k), d, fill, layout), "b": Input((ranks, k, n), d, "normal", layout), "wire": PLAIN, "group": 128
    }
    return case(f"{name} {d}" if tags == "edge" and d != "bf16" else name, tags=tags, **{**given, **more})


def _cases() -> list[Case]:
    """Names of bench cases: rows x columns x K of the whole product, over so many ranks."""
    shapes = ((8192, 8192, 8192), (8192, 28672, 8192), (8192, 8192, 28672), (4096, 14336, 4096))
    found = [_case(f"{m}x{n}x{k} over 2", "bench", 2, m, n, k // 2) for m, n, k in shapes]
    found += [_case(f"{m}x{n}x{k} over 2, int8", "bench", 2, m, n, k // 2, wire="int8") for m, n, k in shapes[:1]]
    for wire in (PLAIN, "int8", "int4", "fp8"):
        found += [_case(f"{wire}, tiles", "edge", 2, 256, 256, 128, d, wire=wire) for d in ("bf16", "f16")]
        found += [_case(f"{wire}, odd", "edge", 3, 21, 19, 33, d, wire=wire) for d in FLOATS]
        found.append(_case(f"{wire}, one rank", "edge", 1, 10, 24, 16, wire=wire))
    found += [_case(f"none, {fill}", "edge", 2, 24, 16, 20, "f32", fill) for fill in ("nan", "inf", "tiny")]
    found += [_case(f"{wire}, nan", "edge", 2, 128, 128, 64, fill="nan", wire=wire) for wire in (PLAIN, "int8")]
    found += [_case(f"none, {layout}", "edge", 2, 40, 24, 48, layout=layout) for layout in ("padded", "offset")]
    found += [
        _case("none, no rows", "edge", 2, 0, 8, 8), _case("none, no columns", "edge", 2, 8, 0, 8), _case("none, no K", "edge", 2, 8, 8, 0)
    ]
    found += [_case("none, four ranks", "edge", 4, 512, 128, 64), _case("int8, four ranks", "edge", 4, 512, 256, 64, wire="int8")]
    found.append(_case("int8, groups of 32", "edge", 2, 64, 96, 32, wire="int8", group=32))
    return found


def _changed(change: str) -> Callable[..., Any]:
    def run(a: Tensor, b: Tensor, wire: str, group: int) -> Any:
        if change == "last rank":
            return (
                same(a, b, wire, group) - same(a[-1:], b[-1:], wire, group).view(a.shape[0], -1, b.shape[2]) if a.shape[0] > 1
                else same(a, b, wire, group)
            )
        found = same(a, b, wire, group)
        if change == "rows":
            return found.flip(0)
        if change == "sum":  # the mean
            return found / max(a.shape[0], 1)
        return same(a, b, "int4", 256) if wire == PLAIN and a.shape[0] > 1 else same(a.half().to(a.dtype), b, "int4", 256)

    return run


def _public(o: Mapping[str, Any]) -> dict[str, Any]:
    return {"wire": None if o["wire"] == PLAIN else o["wire"], "group_size": o["group"]}


def _on_a_group(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Mapping[str, Any]:
    from rooftop.ranks import fused

    return {"out": fused.matmul_reduce_scatter(tensors["a"], tensors["b"], group, **_public(options))}


def _by_torch(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Any:
    if options["wire"] != PLAIN:
        raise ValueError("torch's fused product sends it as it is")
    import torch
    import torch.distributed._symmetric_memory

    return torch.ops.symm_mem.fused_matmul_reduce_scatter(tensors["a"], tensors["b"], "sum", scatter_dim=0, group_name=group.group_name)


def _by_nccl(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Any:
    import torch.distributed as dist

    from rooftop.ranks import groups

    made = tensors["a"] @ tensors["b"]
    out = made.new_empty(made.shape[0] // dist.get_world_size(group), made.shape[1])
    groups.scatter_sum(out, made, group).wait()
    return out


OP = Op(
    reference,
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    work=work,
    tolerance=Tolerance(2.0),
    judging=Judging(invariant={"batch": "its tiles are those of the rows that each rank has"}, same=same),
    peers={"torch": lambda: _plain},
    calls=Calls(public=lambda tensors, options: ([tensors["a"], tensors["b"]], _public(options)), ranks=_on_a_group, ranks_peers={
        "product then NCCL": _by_nccl,
        "torch's fused": _by_torch,
        "the product alone": lambda tensors, options, group: tensors["a"] @ tensors["b"],
    }),
    wrong={
        "the last rank left out": _changed("last rank"),
        "another rank's rows": _changed("rows"),
        "the mean": _changed("sum"),
        "four bits": _changed("bits"),
    },
)
