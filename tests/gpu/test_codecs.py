"""Compression on a GPU: what it writes is what a CPU writes, nothing waits for the host, and arrays may be as long as 2^32 bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rooftop import codecs
from rooftop.codecs import device

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch.cuda.is_available() is False")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.int32, torch.uint8])
def test_a_gpu_writes_what_the_cpu_writes(dtype: torch.dtype) -> None:
    x = (torch.randn(33, 70, 130, generator=torch.Generator().manual_seed(0)).cumsum(2) * 20).to(dtype)
    for how in ({"abs": 1.5}, {"rel": 1e-2}, {"lossless": True}):
        here, there = codecs.compress(x, **how), codecs.compress(x.cuda(), **how)  # type: ignore[arg-type]
        assert bytes(here) == bytes(there)
        want = codecs.decompress(here)
        assert torch.equal(want, codecs.decompress(there).cpu()) and torch.equal(want, codecs.decompress(bytes(there), to="cuda").cpu())


def test_a_model_has_the_same_bytes_from_a_gpu(tmp_path: Path) -> None:
    from rooftop.lab.fuzz import containers

    compressed, plain = tmp_path / "c.safetensors", tmp_path / "m.safetensors"
    compressed.write_bytes(containers.model())
    codecs.decompress_model(compressed, plain)
    for device_of_it in ("cpu", "cuda"):
        codecs.compress_model(plain, tmp_path / device_of_it, device=device_of_it)
        codecs.decompress_model(tmp_path / device_of_it, tmp_path / f"{device_of_it}.safetensors", device=device_of_it)
    assert (tmp_path / "cpu").read_bytes() == (tmp_path / "cuda").read_bytes()
    assert (tmp_path / "cpu.safetensors").read_bytes() == (tmp_path / "cuda.safetensors").read_bytes()
    for name, t in codecs.weights(compressed, device="cuda"):
        assert t.is_cuda and torch.equal(t.cpu().reshape(-1).view(torch.uint8), codecs.weight(plain, name).reshape(-1).view(torch.uint8))


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


@pytest.mark.parametrize("how", [{"abs": 1e-3}, {"lossless": True, "codec": "shuffle"}, {"lossless": True, "codec": "planes"}], ids=str)
def test_four_gibibytes_come_back(how: dict[str, Any]) -> None:
    """2^32 bytes, whose words are counted beyond 2^31 bytes of the payload where they are noise."""
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB of device memory")
    x = torch.randn(1 << 30, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    x[: 1 << 29].copy_(torch.arange(1 << 29, device="cuda", dtype=torch.float32).mul_(1e-4).sin_())
    y = codecs.decompress(codecs.compress(x, **how))
    for part in range(16):
        a, b = (t[part << 26 : (part + 1) << 26] for t in (x, y))
        assert float((a - b).abs().max()) <= how["abs"] if "abs" in how else torch.equal(a.view(torch.int32), b.view(torch.int32))


def test_every_bfloat16_comes_back() -> None:
    x = torch.arange(1 << 16, dtype=torch.int32, device="cuda").to(torch.int16).view(torch.bfloat16)
    for how in ({"lossless": True, "codec": "shuffle"}, {"lossless": True, "codec": "planes"}, {"abs": 1e-3}, {"abs": 1e30}):
        y = codecs.decompress(codecs.compress(x, **how))  # type: ignore[arg-type]
        same = x.view(torch.int16) == y.view(torch.int16)
        kept = ~x.isfinite() | (x.float().abs() < torch.finfo(torch.bfloat16).tiny) & (x.view(torch.int16) != 0)
        near = (x.double() - y.double()).abs() <= how.get("abs", 0.0)
        assert bool((same | ~kept & near).all())
