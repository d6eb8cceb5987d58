"""What `rooftop.comm.all_gather_matmul` gives each rank, computed on one device: its product with the rows of all ranks.

    out[r] = cat(a[0], ..., a[W - 1]) b[r]        a [W, M, K], b [W, K, N], out [W, W M, N]

Sources: Megatron-LM's column-parallel layer with sequence parallelism (arXiv 2205.05198), Flux (arXiv 2406.06858)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Judging, Op
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("bf16", "f16", "f32")
UNITS = {"f32": "fma32", "f16": "tensor-f16", "bf16": "tensor-bf16"}
MOST_RANKS = 16


def all_gather_matmul_ranks(a: Tensor, b: Tensor, *, implementation: str | None = None) -> Tensor:
    """Each rank's product with the rows of all ranks, [W, W M, N]: ``rooftop.all_gather_matmul_ranks(a, b)``.

    The paths of `rooftop.comm.all_gather_matmul` are checked against it; it runs on one device.

    Args:
        a: [W, M, K], float32, float16 or bfloat16; the first dimension is the rank, 1 to 16.
        b: [W, K, N], of the same dtype.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports the input.

    No gradient. Raises TypeError for other dtypes and types, ValueError for shapes that do not fit and tensors on different devices."""
    validate("all_gather_matmul_ranks", a, b)
    return OP(a.detach(), b.detach(), implementation=implementation)


def validate(what: str, a: Tensor, b: Tensor) -> None:
    """Raises for operands [W, M, K] and [W, K, N] of the ranks' products that do not fit."""
    import torch

    for name, t in (("a", a), ("b", b)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{what}: {name} is a {type(t).__name__}; it must be a tensor")
    if a.dtype not in (torch.float32, torch.float16, torch.bfloat16) or b.dtype != a.dtype:
        raise TypeError(
            f"{what}: a is {a.dtype}, b is {b.dtype}; accepted is one of torch.float32, torch.float16, torch.bfloat16, the same for both"
        )
    if a.dim() != 3 or b.dim() != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1] or not 1 <= a.shape[0] <= MOST_RANKS:
        raise ValueError(
            f"{what}: a is {tuple(a.shape)}, b is {tuple(b.shape)}; they must be [W, M, K] and [W, K, N] with 1 to {MOST_RANKS} ranks"
        )
    if a.device != b.device:
        raise ValueError(f"{what}: a lies on {a.device}, b on {b.device}; they must be on one device")


def reference(a: Tensor, b: Tensor) -> Tensor:
    ranks, m, k = a.shape
    return a.reshape(ranks * m, k).matmul(b)


def outputs(a: Meta, b: Meta) -> dict[str, Meta]:
    return {"out": Meta((a.shape[0], a.shape[0] * a.shape[1], b.shape[2]), a.dtype)}


def canonical(p: Problem) -> Problem | None:
    return p if p["a"].contiguous and p["b"].contiguous else None


def work(p: Problem) -> Work:
    """Of one device that plays all ranks: a, b and out once; what crosses a link is no memory traffic of this device."""
    a, b, out = p["a"], p["b"], p["out"]
    return Work(a.nbytes + b.nbytes, out.nbytes, {UNITS[a.dtype]: float(out.numel * a.shape[2])})


def _plain(a: Tensor, b: Tensor) -> Tensor:
    return a.flatten(0, 1).expand(b.shape[0], -1, -1).bmm(b)


def _case(
    name: str, tags: str, ranks: int, m: int, n: int, k: int, d: str = "bf16", fill: str = "normal", layout: str = "contiguous"
) -> Case:
    given: dict[str, Any] = {"a": Input((ranks, m, k), d, fill, layout), "b": Input((ranks, k, n), d, "normal", layout)}
    return case(f"{name} {d}" if tags == "edge" and d != "bf16" else name, tags=tags, **given)


def _cases() -> list[Case]:
    """Names of bench cases: rows x columns x K of the whole product, over so many ranks."""
    shapes = ((8192, 8192, 8192), (8192, 28672, 8192), (8192, 8192, 28672), (4096, 14336, 4096))
    found = [_case(f"{m}x{n}x{k} over 2", "bench", 2, m // 2, n // 2, k) for m, n, k in shapes]
    for d in FLOATS:
        found += [_case("odd", "edge", 3, 7, 19, 33, d), _case("two ranks", "edge", 2, 70, 48, 40, d)]
    found += [_case("one rank", "edge", 1, 10, 24, 16), _case("four ranks", "edge", 4, 128, 64, 96)]
    found += [_case(fill, "edge", 2, 24, 16, 20, "f32", fill) for fill in ("nan", "inf", "tiny")]
    found += [_case(layout, "edge", 2, 40, 24, 48, layout=layout) for layout in ("padded", "offset")]
    return [*found, _case("no rows", "edge", 2, 0, 8, 8), _case("no columns", "edge", 2, 8, 0, 8), _case("no K", "edge", 2, 8, 8, 0)]


def _changed(change: str) -> Callable[..., Any]:
    def run(a: Tensor, b: Tensor) -> Any:
        if change == "order":
            return reference(a.flip(0), b)
        if change == "b":
            return reference(a, b.flip(0))
        if change == "own":  # the own rows in place of all
            return reference(a, b)[:, : a.shape[1]].repeat(1, a.shape[0], 1)
        return (reference(a, b).float() * 1.03).to(a.dtype)

    return run


def _on_a_group(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Mapping[str, Any]:
    from rooftop.ranks import fused

    return {"out": fused.all_gather_matmul(tensors["a"], tensors["b"], group)}


def _by_nccl(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Any:
    import torch.distributed as dist

    from rooftop.ranks import groups

    a = tensors["a"]
    rows = a.new_empty(a.shape[0] * dist.get_world_size(group), a.shape[1])
    groups.gather_into(rows, a, group).wait()
    return rows @ tensors["b"]


def _by_torch(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Any:
    import torch
    import torch.distributed._symmetric_memory

    return torch.ops.symm_mem.fused_all_gather_matmul(tensors["a"], [tensors["b"]], 0, group.group_name)[1][0]


OP = Op(
    reference,
    outputs=outputs,
    judging=Judging(invariant={"batch": "its tiles are those of the rows that each rank has"}),
    canonical=canonical,
    cases=_cases(),
    work=work,
    peers={"torch": lambda: _plain},
    calls=Calls(
        public=lambda tensors, options: ([tensors["a"], tensors["b"]], {}), ranks=_on_a_group,
        ranks_peers={"NCCL then product": _by_nccl, "torch's fused": _by_torch}
    ),
    wrong={
        "another order of the ranks": _changed("order"),
        "another rank's b": _changed("b"),
        "the own rows alone": _changed("own"),
        "three per cent off": _changed("off"),
    },
)
