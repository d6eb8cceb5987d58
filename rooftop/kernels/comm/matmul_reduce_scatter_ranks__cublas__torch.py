"""Products by cuBLAS, stored where the sum reads them, then the sum. On several GPUs that is the peers' memory (rooftop/ranks/products.py);
here all ranks are one device, and it is the device's own memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Meta, Problem


def supports(p: Problem) -> str | None:
    if p["out"].numel == 0 or p["a"].shape[0] == 1:
        return "nothing travels"
    return None


def scratch(p: Problem, config: Any) -> dict[str, Meta]:
    ranks, m, _ = p["a"].shape
    from rooftop.formats.wire import WIRES, message_bytes

    count, wire = m // ranks * p["b"].shape[2], str(p.option("wire"))
    size = count * p["out"].itemsize if wire == "none" else message_bytes(WIRES[wire], int(p.option("group")), count)
    return {"places": Meta((ranks, ranks, size), "u8")}


def choose(p: Problem) -> dict[str, Any]:
    return {}


def run(inputs: Mapping[str, Any], outputs: Mapping[str, Any], scratch: Mapping[str, Any], config: Any) -> None:
    from rooftop.ranks import products
    from rooftop.ranks.steps import Options

    a, b, out, places = inputs["a"], inputs["b"], outputs["out"], scratch["places"]
    ranks, m, n = a.shape[0], out.shape[1], out.shape[2]
    o = None if inputs["wire"] == "none" else Options.of("matmul_reduce_scatter_ranks", inputs["wire"], inputs["group"], False, False, 0)
    for rank in range(ranks):
        for reader in range(ranks):
            place = places[reader, rank] if o is not None else places[reader, rank].view(a.dtype)
            products.product(a[rank, reader * m : (reader + 1) * m], b[rank], place, o)
    for rank in range(ranks):
        parts = places[rank] if o is not None else places[rank].view(a.dtype)
        out[rank].copy_(products.summed(parts, o, m * n, a.dtype).view(m, n))


def on_ranks(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> dict[str, Any]:
    """As one rank of several GPUs."""
    from rooftop.ranks import fused

    wire = None if options["wire"] == "none" else str(options["wire"])
    return {
        "out": fused.matmul_reduce_scatter(
            tensors["a"], tensors["b"], group, wire=wire, group_size=int(options["group"]), path="symmetric", verify=False
        )
    }
