"""Which kernel computes attention: by how many queries a block of it would have."""

from __future__ import annotations

from rooftop.core.choice import Chosen
from rooftop.core.registry import in_order
from rooftop.core.spec import Problem
from rooftop.kernels.attention import _arguments


def _length(p: Problem) -> float:
    """Queries of a sequence; of packed ones on average."""
    return p["q"].shape[1] / (max(1, p["cu_seqlens_q"].shape[0] - 1) if _arguments.packed(p) else 1)


def attention(p: Problem, named: str = "") -> Chosen | str:
    """A block of the Gluon kernel takes 128 queries of a sequence: with 64 and fewer, half of it would be idle; at 32 columns a head there
    is little to overlap. With few queries the decoding kernel splits the keys, where others have one program for each tile of queries of a
    head and sequence."""
    q, v = p["q"], p["v"]
    order = [("attention__decode__triton", "few queries: the keys are split among programs")]
    if p.device.arch >= 90 and _length(p) > 64 and max(q.shape[3], v.shape[3]) > 32:
        if q.itemsize == 1:
            order.append(("attention__eight__gluon_sm90", "both products in 8 bits, wgmma and TMA, warps specialised"))
        order.append(("attention__gluon_sm90", "blocks of 128 queries, wgmma and TMA, warps specialised"))
    order += [
        ("attention__triton", "any layout and size"), ("attention__gluon_sm90", "the only kernel that takes it"),
        ("attention__splits__triton", "the kernel of rooftop.invariant()"),
    ]
    return in_order(p, named, order)


def attention_bwd(p: Problem, named: str = "") -> Chosen | str:
    """A block of the Gluon kernel has 128 queries or keys: with fewer than 64 most of it would be idle."""
    kernels = (
        "attention_bwd__gluon_sm90", "blocks of 128 queries or keys, wgmma and TMA"
    ), ("attention_bwd__triton", "any layout and size")
    return in_order(p, named, kernels if p.device.arch >= 90 and _length(p) >= 64 else kernels[::-1])


def latent_attention(p: Problem, named: str = "") -> Chosen | str:
    """The Gluon kernel reads as many tokens at once as the portable one, and its products overlap with the exponentials. Of pages of 8 bits its
    four warps that convert lack the registers for the addresses, and the portable one is faster."""
    kernels = (
        "latent_attention__gluon_sm90", "two warp groups share the weights of each tile, wgmma and TMA"
    ), ("latent_attention__triton", "any page, address and element")
    lacking = p.get("page_table") is not None and p["kv"].itemsize == 1
    return in_order(p, named, kernels if p.device.arch >= 90 and not lacking else kernels[::-1])
