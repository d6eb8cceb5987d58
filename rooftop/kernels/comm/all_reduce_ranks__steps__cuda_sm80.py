"""The launches of all_reduce_ranks__steps__cuda_sm80.cu if one device plays all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.formats.wire import WIRES, message_bytes, stripe
from rooftop.ranks import rank_launches


def supports(p: Problem, head: Any) -> str | None:
    n, count = p["x"].shape
    return "nothing to send" if count == 0 or n == 1 else None


def choose(p: Problem, head: Any) -> dict[str, Any]:
    return {"blocks": launches(p, {}, head)[0].grid[0]}


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    n, count = p["x"].shape
    wire, group = str(p.option("wire")), int(p.option("group"))
    how, dtype = rank_launches.How(wire, group, bool(p.option("hadamard")), bool(p.option("stochastic"))), p["x"].dtype
    share = stripe(count, n, group)
    most = 4 * p.device.sms
    if p.option("shots") == 1:
        size = n * share
        encode = rank_launches.encode_rows(how, dtype, 1, size, count, size, most, x="x", messages="messages", tensors=n)
        stride = message_bytes(WIRES[wire], group, size)
        return [
            encode, rank_launches.decode_rows(how, dtype, n, 1, size, count, size, stride, most, messages="messages", out="out", tensors=n)
        ]
    one = message_bytes(WIRES[wire], group, share)
    return [
        rank_launches.encode_rows(how, dtype, n, share, count, share, most, x="x", messages="messages", tensors=n),
        rank_launches.add_messages(how, n, share, n * one, most, messages="messages", sums="sums", start=n * n * share, rows=n),
        rank_launches.decode_rows(how, dtype, 1, n, share, count, share, 0, most, messages="sums", out="out", tensors=n),
    ]


def scratch(p: Problem, config: Any, head: Any) -> dict[str, Meta]:
    n, count = p["x"].shape
    wire, group = str(p.option("wire")), int(p.option("group"))
    share = stripe(count, n, group)
    one = message_bytes(WIRES[wire], group, share)
    if p.option("shots") == 1:
        return {"messages": Meta((n, message_bytes(WIRES[wire], group, n * share)), "u8")}
    return {"messages": Meta((n, n, one), "u8"), "sums": Meta((n, one), "u8")}


def on_ranks(tensors: Mapping[str, Any], options: Mapping[str, Any], group: Any) -> dict[str, Any]:
    """As one rank of several processes."""
    from rooftop.ranks import collectives

    return {"out": collectives.all_reduce(tensors["x"], group, path="portable", verify=False, **rank_launches.public(options))}
