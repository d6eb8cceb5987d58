"""Streams in tensors: the ops behind compress and decompress of CUDA tensors give the container's bytes. Here by their references, which take CPU tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rooftop import codecs
from rooftop.codecs import FormatError, device
from rooftop.formats.container import to_bytes

WAYS: list[dict[str, Any]] = [
    {"abs": 1e-3}, {"lossless": True, "codec": "shuffle"}, {"lossless": True, "codec": "planes"}, {"abs": 1e-3, "codec": "ratio", "fitted": False}
]


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_streams_of_ops_are_those_of_the_cpu(how: dict[str, Any]) -> None:
    x = torch.randn(3, 20, 17, 40, generator=torch.Generator().manual_seed(0)).cumsum(3)
    c = codecs.compress(x, **how)
    held = device.compress(x, c.header)
    assert to_bytes(held.to_host()) == bytes(c)
    values = device.checked(*device.decompress(held))
    again = device.checked(*device.decompress(device.on_device(c.stream, "cpu")))
    assert torch.equal(values, codecs.decompress(c)) and torch.equal(again, values)
    assert bytes(codecs.Compressed(held)) == bytes(c) and torch.equal(codecs.decompress(codecs.Compressed(held)), values)


def test_damage_is_told() -> None:
    x = torch.randn(20000)
    held = device.compress(x, codecs.compress(x, abs=1e-3).header)
    first = int(held.table[:2, 0].sum())
    held.words[first + 9] ^= 4
    with pytest.raises(FormatError, match="wrong checksum of chunk 2"):
        device.checked(*device.decompress(held))
