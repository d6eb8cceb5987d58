"""Streams in tensors: the ops behind compress and decompress of CUDA tensors give the container's bytes. Here by their references, which take CPU tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rooftop import codecs
from rooftop.codecs import FormatError, device
from rooftop.codecs.container import to_bytes


@pytest.mark.parametrize("how", [{"abs": 1e-3}, {"lossless": True, "codec": "shuffle"}, {"lossless": True, "codec": "planes"}], ids=str)
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.int32, torch.uint8])
def test_a_gpu_writes_what_the_cpu_writes(dtype: torch.dtype) -> None:
    x = (torch.randn(33, 70, 130, generator=torch.Generator().manual_seed(0)).cumsum(2) * 20).to(dtype)
    for how in ({"abs": 1.5}, {"rel": 1e-2}, {"lossless": True}):
        here, there = codecs.compress(x, **how), codecs.compress(x.cuda(), **how)  # type: ignore[arg-type]
        assert bytes(here) == bytes(there)
        want = codecs.decompress(here)
        assert torch.equal(want, codecs.decompress(there).cpu()) and torch.equal(want, codecs.decompress(bytes(there), to="cuda").cpu())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_compression_is_captured_into_a_graph() -> None:
    """No step waits for the host: all of it can be captured."""
    x = torch.randn(1 << 20, device="cuda")
    h = codecs.compress(x, abs=1e-3).header
    device.decompress(device.compress(x, h))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values, damaged = device.decompress(device.compress(x, h))
    x.mul_(2)
    graph.replay()
    assert not damaged.any() and (values - x).abs().max() <= 1e-3
