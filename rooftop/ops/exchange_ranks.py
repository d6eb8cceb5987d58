"""What a quantised reduce-scatter, all-gather or all-to-all of `rooftop.comm` gives each rank, computed on one device.

    reduce_scatter:  out[r] = sum_p Q(x[p, r])     x [W, W n], out [W, n]
    all_gather:      out[r, p] = Q(x[p])           x [W, n],   out [W, W n]
    all_to_all:      out[r, p] = Q(x[p, r])        x [W, W n], out [W, W n]

Q is a wire's rounding, rooftop/formats/wire.py; sums are taken in float32 in the order of the ranks and rounded once to x's dtype.

Sources: ZeRO++ (arXiv 2306.10209: quantised all-gather of weights, all-to-all of gradients), SDP4Bit (arXiv 2410.15526)."""

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
KINDS = ("reduce_scatter", "all_gather", "all_to_all")
MOST_RANKS = 16


def exchange_ranks(
    x: Tensor, kind: str, *, wire: str = "int8", group_size: int = 128, hadamard: bool = False, stochastic: bool = False, seed: int = 0,
    implementation: str | None = None,
) -> Tensor:
    """Each rank's result of a quantised collective on the W ranks' tensors: ``rooftop.exchange_ranks(x, "all_gather", wire="int4")``.

    It runs on one device and shows the effect of a wire format. The kernel of `rooftop.comm.reduce_scatter`, `all_gather` and `all_to_all`
    is checked against it.

    Args:
        x: float32, float16 or bfloat16, [W, N]; the first dimension is the rank, 1 to 16.
        kind: "reduce_scatter" ([W, N] to [W, N / W]), "all_gather" ([W, N] to [W, W N]) or "all_to_all" ([W, N] to [W, N]).
        wire, group_size, hadamard, stochastic, seed: as `rooftop.all_reduce_ranks`.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports `x`.

    With one rank nothing is sent and x is returned. NaN and infinities are preserved (with `hadamard` they spread to their whole group). No
    gradient.

    Raises TypeError for other dtypes and types, ValueError for a kind, wire, group size, number of ranks or combination that is not
    supported, and if N is not divisible by W."""
    import torch

    what = "exchange_ranks"
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{what}: x is a {type(x).__name__}; it must be a tensor")
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"{what}: x is {x.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    if kind not in KINDS:
        raise ValueError(f"{what}: kind is {kind!r}; accepted are {', '.join(map(repr, KINDS))}")
    if x.dim() != 2 or not 1 <= x.shape[0] <= MOST_RANKS:
        raise ValueError(f"{what}: x is {tuple(x.shape)}; it must be [W, N] with 1 to {MOST_RANKS} ranks")
    if kind != "all_gather" and x.shape[1] % x.shape[0]:
        raise ValueError(f"{what}: x is {tuple(x.shape)}; {kind} shares N out over the ranks: it must be a multiple of {x.shape[0]}")
    wires.wire_of(what, wire, group_size, hadamard, stochastic)
    number(what, "seed", seed, "a whole number", whole=True)
    found: Tensor = OP(
        x.detach(), kind, wire, group_size, bool(hadamard), bool(stochastic), random_bits.signed(seed), implementation=implementation
    )
    return found


def reference(x: Tensor, kind: str, wire: str, group: int, hadamard: bool, stochastic: bool, seed: int) -> Tensor:
    """`random`: element i of the row that rank p has for rank r has the bits of index (p W + r) n + i, of an all-gather p n + i; n in whole
    groups."""
    import torch

    ranks = x.shape[0]
    rows = 1 if kind == "all_gather" else ranks
    count = x.shape[1] // rows
    if ranks == 1 or count == 0:
        return x.clone() if kind != "all_gather" else x.repeat(1, ranks)
    w, size = wires.WIRES[wire], wires.padded(count, group)
    v = wires.rows_of(x.reshape(ranks * rows, count), group, hadamard)
    random = random_bits.halves(seed, v.numel(), x.device).view(v.shape) if stochastic else None
    got = wires.values(wires.encode(v, w, group, random), w, group, size)
    if kind == "all_gather":
        return wires.restored(got, group, hadamard, count).to(x.dtype).reshape(1, -1).expand(ranks, -1).contiguous()
    sent = got.view(ranks, ranks, size)
    if kind == "all_to_all":
        return wires.restored(sent.transpose(0, 1), group, hadamard, count).to(x.dtype).reshape(ranks, -1).contiguous()
    found: Tensor = torch.stack([wires.total(sent[:, r]) for r in range(ranks)])
    return wires.restored(found, group, hadamard, count).to(x.dtype).contiguous()


def outputs(x: Meta, kind: str, **_: Any) -> dict[str, Meta]:
    ranks, n = x.shape
    return {"out": Meta((ranks, {"reduce_scatter": n // max(ranks, 1), "all_gather": n * ranks, "all_to_all": n}[kind]), x.dtype)}


def canonical(p: Problem) -> Problem | None:
    return p if p["x"].contiguous else None


def work(p: Problem) -> Work:
    """Read x once, write out once: what crosses a link is no memory traffic of this device."""
    return Work(p["x"].nbytes, p["out"].nbytes, {"fma32": float(p["x"].numel + p["out"].numel)})


def _plain(x: Tensor, kind: str, wire: str, group: int, hadamard: bool, stochastic: bool, seed: int) -> Tensor:
    """Unquantised: what a wire costs and gains is seen against it."""
    if wire != "bf16":
        raise ValueError("plain torch: the bf16 wire")
    import torch

    ranks, sent = x.shape[0], x.to(torch.bfloat16)
    if kind == "all_gather":
        return sent.to(x.dtype).reshape(1, -1).expand(ranks, -1).contiguous()
    parts = sent.view(ranks, ranks, -1).transpose(0, 1)
    if kind == "all_to_all":
        return parts.to(x.dtype).reshape(ranks, -1)
    return parts.float().sum(1).to(x.dtype)


def _case(
    name: str, tags: str, ranks: int, count: int, kind: str, d: str = "bf16", fill: str = "normal", layout: str = "contiguous", **more: Any
) -> Case:
    """`count`: elements of a row."""
    n = count if kind == "all_gather" else count * ranks
    given: dict[str, Any] = {
        "x": Input((ranks, n), d, fill, layout), "kind": kind, "wire": "int8", "group": 128, "hadamard": False, "stochastic": False
    }
    return case(f"{kind}, {name} {d}" if tags == "edge" and d != "bf16" else f"{kind}, {name}", tags=tags, **{**given, "seed": 7, **more})


def _cases() -> list[Case]:
    found: list[Case] = []
    for kind in KINDS:
        found += [
            _case(f"{wire} 4 ranks 4Mi", "bench", 4, 1 << (20 if kind != "all_gather" else 22), kind, wire=wire)
            for wire in ("bf16", "int8", "int4")
        ]
        found += [
            _case(f"{wire} 2 ranks 32Mi", "bench", 2, 1 << (24 if kind != "all_gather" else 25), kind, wire=wire)
            for wire in ("bf16", "int8", "int4")
        ]
        found += [
            _case(f"{wire} 2 ranks 2Mi", "bench", 2, 1 << (20 if kind != "all_gather" else 21), kind, wire=wire)
            for wire in ("bf16", "int8")
        ]
        for wire in wires.WIRES:
            found += [_case(f"{wire}, odd", "edge", 3, 347, kind, d, wire=wire) for d in FLOATS]
            found += [_case(f"{wire}, {fill}", "edge", 2, 320, kind, "f32", fill, wire=wire) for fill in ("nan", "inf", "large", "-0.0")]
            found += [
                _case(f"{wire}, one rank", "edge", 1, 300, kind, wire=wire), _case(f"{wire}, one element", "edge", 4, 1, kind, wire=wire),
                _case(f"{wire}, empty", "edge", 2, 0, kind, wire=wire),
            ]
        found += [_case(f"groups of {g}", "edge", 2, 500, kind, group=g) for g in wires.GROUPS]
        found += [_case(f"hadamard, groups of {g}", "edge", 2, 500, kind, group=g, hadamard=True, wire="int4") for g in (32, 256)]
        found += [_case(f"{wire}, stochastic", "edge", 3, 700, kind, wire=wire, stochastic=True) for wire in ("int8", "int4")]
        found.append(_case("hadamard, stochastic", "edge", 2, 700, kind, "f32", wire="int4", stochastic=True, hadamard=True))
        found += [_case(layout, "edge", 4, 200, kind, layout=layout) for layout in ("transposed", "padded", "offset")]
        found.append(_case("many blocks", "edge", 2, 12_000, kind))
    return found


def _changed(change: str) -> Callable[..., Any]:
    def run(x: Tensor, kind: str, wire: str, group: int, hadamard: bool, stochastic: bool, seed: int) -> Any:
        if change == "seed":
            return reference(x, kind, wire, group, hadamard, stochastic, seed + 1)
        if change == "rotation":
            return reference(x, kind, wire, group, not hadamard and wire != "bf16", stochastic, seed)
        if change == "nan":
            return reference(x.nan_to_num(0.0, 0.0, 0.0), kind, wire, group, hadamard, stochastic, seed)
        if change == "order":
            return reference(x.flip(0), kind, wire, group, hadamard, stochastic, seed)
        found = reference(x, kind, wire, group, hadamard, stochastic, seed)
        if change == "ranks":
            return found.flip(0)
        ranks = x.shape[0]  # a rank's own part as it was before it was quantised
        parts = found.view(ranks, ranks, -1) if kind != "reduce_scatter" else None
        for r in range(ranks if parts is not None else 0):
            parts[r, r] = x[r] if kind == "all_gather" else x.view(ranks, ranks, -1)[r, r]  # type: ignore[index]
        return found

    return run


def _on_a_group(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Mapping[str, Any]:
    from rooftop.ranks import collectives

    return {"out": getattr(collectives, str(options["kind"]))(tensors["x"], group, **public(options))}


def _by_nccl(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> Any:
    import torch.distributed as dist

    from rooftop.ranks import groups

    x, ranks = tensors["x"], dist.get_world_size(group)
    out = x.new_empty(
        x.numel() * ranks if options["kind"] == "all_gather" else x.numel() // ranks if options["kind"] == "reduce_scatter" else x.numel()
    )
    by = {"all_gather": groups.gather_into, "reduce_scatter": groups.scatter_sum, "all_to_all": groups.exchange}
    by[str(options["kind"])](out, x, group).wait()
    return out


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
        public=lambda tensors, options: ([tensors["x"], options["kind"]], public(options)), ranks=_on_a_group,
        ranks_peers={"NCCL": _by_nccl}
    ),
    wrong={
        "another seed": _changed("seed"),
        "rotated or not": _changed("rotation"),
        "NaN and infinities lost": _changed("nan"),
        "another order of the ranks": _changed("order"),
        "another rank's result": _changed("ranks"),
        "own part not quantised": _changed("own"),
    },
)
