"""What `rooftop.comm.all_reduce` gives each rank, computed on one device: a quantised all-reduce of the tensors of all ranks.

    shots = 1:  out[r] = sum_p Q(x[p])          each rank sends all it has to all
    shots = 2:  out[r] = Q(sum_p Q(x[p]))       each rank adds up one stripe and sends the sum; the same bits for all ranks

Q is a wire's rounding, rooftop/formats/wire.py; sums are taken in float32 in the order of the ranks and rounded once to x's dtype.

The kernels are those that run on several GPUs: here one launch plays all the ranks, which meet at the same flags in memory.

Sources: QuickReduce (two shots with a quantised wire), Flash Communication (arXiv 2412.04964), SDP4Bit (arXiv 2410.15526)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.core.op import Calls, Op, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.formats import random_bits
from rooftop.formats import wire as wires
from rooftop.ranks.rank_launches import public

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("bf16", "f16", "f32")
MOST_RANKS = 16


def all_reduce_ranks(
    x: Tensor, *, wire: str = "int8", group_size: int = 128, hadamard: bool = False, stochastic: bool = False, seed: int = 0,
    shots: int = 2, implementation: str | None = None,
) -> Tensor:
    """Each rank's result [W, ...] of a quantised all-reduce of the W ranks' tensors `x` [W, ...]: ``rooftop.all_reduce_ranks(gradients,
    wire="int4")``.

    It runs on one device and shows the effect of a wire format. The kernels of `rooftop.comm.all_reduce` are checked against it.

    Args:
        x: float32, float16 or bfloat16; the first dimension is the rank, 1 to 16.
        wire: "bf16", "fp8" (e4m3), "int8" or "int4".
        group_size: elements that share a scale: 32, 64, 128 or 256.
        hadamard: rotate each group before it is quantised. Not with "bf16".
        stochastic: unbiased rounding, for "int8" and "int4".
        seed: of its random bits; an integer, of which the low 32 bits are used.
        shots: 1: quantised once, each rank sums everything. 2: each rank sums its stripe, and the sums are quantised again.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports `x`.

    With one rank nothing is sent and x is returned. NaN and infinities are preserved (with `hadamard` they spread to their whole group). No
    gradient.

    Raises TypeError for other dtypes and types, ValueError for a wire, group size, rank count or combination that is not supported."""
    import torch

    if not isinstance(x, torch.Tensor):
        raise TypeError(f"all_reduce_ranks: x is a {type(x).__name__}; it must be a tensor")
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"all_reduce_ranks: x is {x.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    if x.dim() == 0 or not 1 <= x.shape[0] <= MOST_RANKS:
        raise ValueError(f"all_reduce_ranks: x is {tuple(x.shape)}; its first dimension is the rank, 1 to {MOST_RANKS}")
    wires.wire_of("all_reduce_ranks", wire, group_size, hadamard, stochastic)
    number("all_reduce_ranks", "seed", seed, "a whole number", whole=True)
    number("all_reduce_ranks", "shots", shots, "1 or 2", whole=True)
    if shots not in (1, 2):
        raise ValueError(f"all_reduce_ranks: shots is {shots}; accepted are 1 and 2")
    flat = x.detach().reshape(x.shape[0], x[0].numel())
    found: Tensor = OP(
        flat, wire, group_size, bool(hadamard), bool(stochastic), random_bits.signed(seed), shots, implementation=implementation
    )
    return found.view(x.shape)


def reference(x: Tensor, wire: str, group: int, hadamard: bool, stochastic: bool, seed: int, shots: int) -> Tensor:
    """`random`: element i of rank p has the bits of index p * W * stripe + i, those of the sums follow, from W * W * stripe on."""
    kind, (ranks, count) = wires.WIRES[wire], x.shape
    if ranks == 1 or count == 0:
        return x.clone()
    share = wires.stripe(count, ranks, group)
    size = ranks * share

    def bits(rows: int, start: int) -> Tensor | None:
        return random_bits.halves(seed, rows * size, x.device, start).view(rows, size) if stochastic else None

    def through(v: Tensor, random: Tensor | None) -> Tensor:
        return wires.values(wires.encode(v, kind, group, random), kind, group, size)

    v = wires.rows_of(_filled(x, size), group, hadamard)
    found = wires.total(through(v, bits(ranks, 0)))[None]
    if shots == 2:
        found = through(found, bits(1, ranks * size))
    return wires.restored(found, group, hadamard, count).to(x.dtype).expand(ranks, count).contiguous()


def _filled(x: Tensor, size: int) -> Tensor:
    import torch

    return torch.nn.functional.pad(x, (0, size - x.shape[1]))


def outputs(x: Meta, **_: Any) -> dict[str, Meta]:
    return {"out": Meta(x.shape, x.dtype)}


def canonical(p: Problem) -> Problem | None:
    return p if p["x"].contiguous else None


def work(p: Problem) -> Work:
    """Read x once, write out once: what crosses a link is no memory traffic of this device."""
    n = p["x"].numel
    return Work(p["x"].nbytes, p["out"].nbytes, {"fma32": 2.0 * n})


def _plain(x: Tensor, wire: str, group: int, hadamard: bool, stochastic: bool, seed: int, shots: int) -> Tensor:
    """As one adds up unquantised: what a wire costs and gains is seen against it."""
    if wire != "bf16":
        raise ValueError("plain torch: the bf16 wire")
    import torch

    sent = x.to(torch.bfloat16).float()
    found = wires.total(sent)
    return (found.to(torch.bfloat16) if shots == 2 else found).to(x.dtype).expand(x.shape).contiguous()


def _case(
    name: str, tags: str, ranks: int, count: int, d: str = "bf16", fill: str = "normal", layout: str = "contiguous", why: str = "",
    **more: Any
) -> Case:
    given: dict[str, Any] = {
        "x": Input((ranks, count), d, fill, layout), "wire": "int8", "group": 128, "hadamard": False, "stochastic": False, "seed": 7
    }
    return case(f"{name} {d}" if tags == "edge" and d != "bf16" else name, tags=tags, why=why, **{**given, "shots": 2, **more})


def _cases() -> list[Case]:
    found = [_case(f"{wire} 4 ranks 16Mi, two shots", "bench", 4, 1 << 24, wire=wire) for wire in wires.WIRES]
    found += [_case(f"{wire} 4 ranks 64Ki, one shot", "bench", 4, 1 << 16, wire=wire, shots=1) for wire in wires.WIRES]
    found += [_case(f"{wire} 2 ranks {n}Mi, two shots", "bench", 2, n << 20, wire=wire) for wire in wires.WIRES for n in (8, 32, 128)]
    small = (8, 32, 128, 256, 512, 2048)  # 16 KiB to 4 MiB a rank
    found += [_case(f"{wire} 2 ranks {n}Ki, one shot", "bench", 2, n << 10, wire=wire, shots=1) for wire in ("bf16", "int8") for n in small]
    for wire in wires.WIRES:
        for shots in (1, 2):
            what = f"{wire}, {shots} shot{'s' * (shots - 1)}"
            found += [_case(f"{what}, odd", "edge", 3, 1037, d, wire=wire, shots=shots) for d in FLOATS]
            found += [
                _case(f"{what}, {fill}", "edge", 2, 640, "f32", fill, wire=wire, shots=shots)
                for fill in ("nan", "inf", "-inf", "large", "tiny", "-0.0")
            ]
            found += [
                _case(f"{what}, one rank", "edge", 1, 300, wire=wire, shots=shots),
                _case(f"{what}, 8 ranks", "edge", 8, 2048, wire=wire, shots=shots),
                _case(f"{what}, fewer than ranks", "edge", 4, 3, wire=wire, shots=shots),
                _case(f"{what}, empty", "edge", 2, 0, wire=wire, shots=shots),
            ]
            if wire != "bf16":
                found += [_case(f"{what}, groups of {g}", "edge", 2, 1000, wire=wire, shots=shots, group=g) for g in wires.GROUPS]
                found += [
                    _case(f"{what}, hadamard, groups of {g}", "edge", 2, 1000, wire=wire, shots=shots, group=g, hadamard=True)
                    for g in wires.GROUPS
                ]
            if wire in ("int8", "int4"):
                found.append(_case(f"{what}, stochastic", "edge", 3, 1500, wire=wire, shots=shots, stochastic=True))
                found.append(
                    _case(f"{what}, hadamard, stochastic", "edge", 2, 1500, "f32", wire=wire, shots=shots, stochastic=True, hadamard=True)
                )
    found += [_case(f"int8, {layout}", "edge", 4, 600, layout=layout) for layout in ("transposed", "padded", "strided", "offset")]
    found.append(_case("int8, many blocks", "edge", 2, 24_000, why="more packs than one block's threads"))
    found.append(_case("int8, over 2^31 elements", "edge huge", 2, 2**30 + 2**20, why="offsets need 64 bits"))
    return found


def _changed(change: str) -> Callable[..., Any]:
    def run(x: Tensor, wire: str, group: int, hadamard: bool, stochastic: bool, seed: int, shots: int) -> Any:
        if change == "shots":
            return reference(x, wire, group, hadamard, stochastic, seed, 3 - shots)
        if change == "seed":
            return reference(x, wire, group, hadamard, stochastic, seed + 1, shots)
        if change == "rotation":
            return reference(x, wire, group, not hadamard and wire != "bf16", stochastic, seed, shots)
        if change == "nan":
            return reference(x.nan_to_num(0.0, 0.0, 0.0), wire, group, hadamard, stochastic, seed, shots)
        if change == "last rank":
            return reference(
                x[:-1] if x.shape[0] > 1 else x, wire, group, hadamard, stochastic, seed, shots
            )[:1].expand(x.shape).contiguous()
        if change == "order":
            return reference(x.flip(0), wire, group, hadamard, stochastic, seed, shots)
        # a rank keeps its own stripe as it was before it was quantised again
        found = reference(x, wire, group, hadamard, stochastic, seed, shots)
        if shots == 2:
            share = wires.stripe(x.shape[1], x.shape[0], group)
            once = reference(x, wire, group, hadamard, stochastic, seed, 1)
            for rank in range(x.shape[0]):
                found[rank, rank * share : (rank + 1) * share] = once[rank, rank * share : (rank + 1) * share]
        return found

    return run


def _on_a_group(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Mapping[str, Any]:
    from rooftop.ranks.collectives import all_reduce

    return {"out": all_reduce(tensors["x"], group, **public(options))}


def _by_nccl(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Any:
    import torch.distributed as dist

    return dist.all_reduce(tensors["x"], group=group)


_SYMMETRIC: dict[Any, Tensor] = {}  # what torch's collectives have of each tensor, of one shape at a time


def _by_torch(shots: int) -> Callable[[Mapping[str, Any], Mapping[str, Any], Any], Any]:
    """torch's own collective through symmetric memory. Its user keeps x there, so the copy into it is not timed: of each tensor the first
    call makes one."""

    def run(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Any:
        import torch

        if options["wire"] != "bf16":
            raise ValueError("torch sends what it is given: it is timed beside the bf16 wire")
        import torch.distributed._symmetric_memory as symmetric

        x = tensors["x"]
        key = shots, x.data_ptr(), tuple(x.shape), x.dtype
        if key not in _SYMMETRIC:
            for old in [k for k in _SYMMETRIC if k[2:] != key[2:]]:
                del _SYMMETRIC[old]
            _SYMMETRIC[key] = symmetric.empty(x.numel(), dtype=x.dtype, device=x.device).view(x.shape)
            symmetric.rendezvous(_SYMMETRIC[key], group.group_name)
            _SYMMETRIC[key].copy_(x)
        call = torch.ops.symm_mem.one_shot_all_reduce if shots == 1 else torch.ops.symm_mem.two_shot_all_reduce_
        return call(_SYMMETRIC[key], "sum", group.group_name)

    return run


OP = Op(
    reference,
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    work=work,
    tolerance=Tolerance(exact=True),
    values=Values(runtime_options=("seed",)),
    peers={"torch": lambda: _plain},
    calls=Calls(
        public=lambda tensors, options: ([tensors["x"]], public(options)), ranks=_on_a_group,
        ranks_peers={"NCCL": _by_nccl, "torch, one shot": _by_torch(1), "torch, two shots": _by_torch(2)}
    ),
    wrong={
        "another number of shots": _changed("shots"),
        "another seed": _changed("seed"),
        "rotated or not": _changed("rotation"),
        "NaN and infinities lost": _changed("nan"),
        "the last rank left out": _changed("last rank"),
        "another order of the ranks": _changed("order"),
        "own stripe not quantised again": _changed("own"),
    },
)
