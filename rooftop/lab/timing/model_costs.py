"""The time of an op of a model on a card, from bench records: the roof of its work, over the share of the roof that the records of the
nearest work reached."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from rooftop.core.devices import lookup
from rooftop.core.spec import Work
from rooftop.lab.records.record import Record
from rooftop.lab.timing import expected
from rooftop.lab.timing.model_step import Done
from rooftop.lab.timing.roofline import Ceilings, Roof

FLASH = "torch FlashAttention-2"
NEAREST = 3  # records that a share is the mean of
NEAR = 0.1  # added to distances, which are logarithms: a record of the same work counts alone, nearly
# An op of torch: the contract of the same work, and the peer that ran it. Other ops move bytes as torch's addition does.
PEERS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), ("matmul", "torch")), "_grouped_mm": ("grouped_matmul", "torch"),
    **dict.fromkeys(("_softmax", "_log_softmax"), ("softmax", "torch")),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), ("softmax_bwd", "torch")),
    "native_layer_norm": ("layer_norm", "torch"), "native_layer_norm_backward": ("layer_norm_bwd", "torch"),
    "silu": ("silu", "torch"), "silu_backward": ("silu_bwd", "torch"), "gelu": ("gelu", "torch"), "gelu_backward": ("gelu_bwd", "torch"),
    **dict.fromkeys(("sum", "mean"), ("reduce", "torch")),
}
GROUPS: Mapping[str, tuple[str, ...]] = {  # of torch's ops, in the table
    "matrix products": ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "linear", "matmul", "mv", "addmv"),
    "copies": ("_to_copy", "copy", "copy_", "clone", "cat", "contiguous", "slice_backward", "select_backward", "constant_pad_nd", "stack"),
    "sums": ("sum", "mean", "amax", "amin", "cumsum", "all", "any", "count_nonzero"),
    "softmax and loss": (
        "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward"
    ),
    "rows by index": (
        "embedding", "embedding_dense_backward", "index", "index_select", "gather", "index_put_", "_index_put_impl_", "index_add_",
        "scatter_"
    ),
    "selection": ("topk", "sort", "argsort"),
    "norms": ("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"),
}


def group_of(op: str) -> str:
    """The row of a table that an op of torch is counted in."""
    if "attention" in op:
        return "attention"
    return next((g for g, names in GROUPS.items() if op in names), "elementwise")


@dataclass(frozen=True)
class Cost:
    """Seconds, the roof, and how much of it was assumed. `nearest`: the case whose record gave the share."""

    seconds: float
    roof: Roof
    nearest: str


@dataclass
class Costs:
    """Of a card, from its records."""

    device: str
    records: Iterable[Record]
    _timed: dict[tuple[str, str], list[expected.Timed]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.records = [r for r in self.records if r.kind in ("bench", "ceiling") and r.card == self.device]

    @cached_property
    def ceilings(self) -> Ceilings:
        return Ceilings.from_records(self.records, self.device, lookup(self.device))

    def of(self, done: Done) -> Cost:
        roof = self.ceilings.roof(int(done.work.read), int(done.work.write), done.work.ops)
        op, peer = (done.op.removesuffix("_"), "") if done.ours else _peer(done.op)
        # what was never measured alone moves bytes, as an addition does
        near = self._nearest((op, peer), done) or self._nearest(("add", "torch"), done)
        if not near:
            return Cost(roof.seconds, roof, "")
        weights = [1 / (apart + NEAR) ** 2 for apart, _ in near]
        log = sum(w * math.log(self._share(t)) for w, (_, t) in zip(weights, near, strict=True)) / sum(weights)
        return Cost(roof.seconds / math.exp(log), roof, f"{near[0][1].op} {near[0][1].case}")

    def _share(self, t: expected.Timed) -> float:
        return self.ceilings.seconds(t.work.read, t.work.write, t.work.ops) / t.seconds

    def _nearest(self, key: tuple[str, str], done: Done) -> list[tuple[float, expected.Timed]]:
        """Of the records of an op those whose bytes and operations are nearest, with how far they are, of the same dtype where there are
        such."""
        if not self._timed:
            for t in expected.timed(self.records, every=True):
                self._timed.setdefault((t.op, t.peer), []).append(t)
        found = self._timed.get(key, [])
        alike = [t for t in found if t.case.endswith(f" {done.dtype}")] or found
        return sorted(((_apart(t.work, done.work), t) for t in alike), key=lambda x: x[0])[:NEAREST]


def _peer(op: str) -> tuple[str, str]:
    if "attention" in op:
        return ("attention_bwd" if op.endswith("backward") else "attention"), FLASH
    return PEERS.get(op, ("add", "torch"))


def _apart(a: Work, b: Work) -> float:
    """The sum of the |log| of the ratios of bytes, and of the operations of each unit that both have."""
    pairs = [(a.bytes, b.bytes), *((a.ops[u], b.ops[u]) for u in a.ops if u in b.ops)]
    return sum(abs(math.log(max(x, 1) / max(y, 1))) for x, y in pairs)
