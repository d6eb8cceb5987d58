"""Files: models, the command line, numcodecs, and the fields that ratios are measured on."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rooftop import codecs
from rooftop.lab import cli
from rooftop.lab.cli.app import app
from rooftop.lab.report import codec_fields as fields


def write(path: Path, tensors: dict[str, tuple[str, torch.Tensor]]) -> None:
    """A safetensors file, by its description."""
    header, data = {}, b""
    for name, (dtype, t) in tensors.items():
        held = t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": dtype, "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(held)]}
        data += held
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def model() -> dict[str, tuple[str, torch.Tensor]]:
    g = torch.Generator().manual_seed(0)
    return {
        "a.weight": ("BF16", torch.randn(130, 200, generator=g).mul(0.02).bfloat16()), "b.weight": ("F32", torch.randn(3, 4, 5, 6, 7, generator=g)),
        "c.ids": ("I64", torch.arange(5)), "d.codes": ("F8_E4M3", torch.randn(9000, generator=g).to(torch.float8_e4m3fn)),
        "e.none": ("F16", torch.empty(0, 3, dtype=torch.float16)),
    }  # fmt: skip


def test_models_come_back(tmp_path: Path) -> None:
    source, target = tmp_path / "m.safetensors", tmp_path / "c.safetensors"
    write(source, model())
    ratio = codecs.compress_model(source, target)
    assert ratio == source.stat().st_size / target.stat().st_size > 1.3
    for path in (source, target):
        found = dict(codecs.weights(path))
        assert list(found) == list(model())
        for name, (_, t) in model().items():
            assert found[name].dtype == t.dtype and found[name].shape == t.shape
            assert torch.equal(found[name].reshape(-1).view(torch.uint8), t.reshape(-1).view(torch.uint8))


def test_bad_models(tmp_path: Path) -> None:
    source, target = tmp_path / "m.safetensors", tmp_path / "c.safetensors"
    write(source, model())
    codecs.compress_model(source, target)
    with pytest.raises(codecs.FormatError, match="holds compressed weights already"):
        codecs.compress_model(target, tmp_path / "d")
    with pytest.raises(ValueError, match="source and target are both"):
        codecs.compress_model(source, source)
    b = bytearray(target.read_bytes())
    b[8 + struct.unpack("<Q", b[:8])[0] + 3000] ^= 1
    target.write_bytes(b)
    with pytest.raises(codecs.FormatError, match=r"weight 'a.weight': wrong checksum of chunk 0"):
        dict(codecs.weights(target))
    for wrong in (b"", b"12345678", struct.pack("<Q", 9) + b"not JSON!", struct.pack("<Q", 1 << 60) + b"{}"):
        target.write_bytes(wrong)
        with pytest.raises(codecs.FormatError, match="is no safetensors file"):
            dict(codecs.weights(target))


def test_the_command_line(tmp_path: Path) -> None:
    cli.commands()
    x = np.sin(np.arange(20000) / 30).astype(np.float32)
    np.save(tmp_path / "in.npy", x)
    run = CliRunner().invoke
    found = run(app, ["compress", str(tmp_path / "in.npy"), "--abs", "1e-3"])
    assert found.exit_code == 0 and "codec fast" in found.output and "bound 0.001" in found.output
    found = run(app, ["decompress", str(tmp_path / "in.rft"), str(tmp_path / "out.npy")])
    assert found.exit_code == 0 and np.abs(np.load(tmp_path / "out.npy").astype(float) - x).max() <= 1e-3
    b = bytearray((tmp_path / "in.rft").read_bytes())
    b[-1] ^= 1
    (tmp_path / "in.rft").write_bytes(b)
    found = run(app, ["decompress", str(tmp_path / "in.rft"), str(tmp_path / "out.npy")])
    assert found.exit_code != 0 and "wrong checksum of chunk 4" in str(found.exception)
    write(tmp_path / "m.safetensors", model())
    found = run(app, ["compress", str(tmp_path / "m.safetensors")])
    assert found.exit_code == 0 and (tmp_path / "m-compressed.safetensors").is_file()


def test_the_command_line_replaces_no_original(tmp_path: Path) -> None:
    cli.commands()
    x = np.sin(np.arange(5000) / 30).astype(np.float32)
    np.save(tmp_path / "in.npy", x)
    before = (tmp_path / "in.npy").read_bytes()
    run = CliRunner().invoke
    npy, rft = str(tmp_path / "in.npy"), str(tmp_path / "in.rft")
    assert "the target is the source" in str(run(app, ["compress", npy, npy, "--abs", ".1"]).exception)
    assert run(app, ["compress", npy, "--abs", ".1"]).exit_code == 0
    assert "in.npy is there already, perhaps the original" in str(run(app, ["decompress", rft]).exception)
    assert "the target is the source" in str(run(app, ["decompress", rft, rft]).exception)
    assert isinstance(run(app, ["decompress", rft, str(tmp_path)]).exception, IsADirectoryError)
    assert run(app, ["decompress", rft, str(tmp_path / "out.bin")]).exit_code == 0 and (tmp_path / "out.bin").is_file()
    assert (tmp_path / "in.npy").read_bytes() == before
    (tmp_path / "in.npy").unlink()
    assert run(app, ["decompress", rft]).exit_code == 0 and np.load(npy).shape == x.shape
    (tmp_path / "empty.npy").write_bytes(b"")
    np.savez(tmp_path / "two.npz", x, x)
    for name, said in (("empty.npy", "is empty"), ("two.npz", "holds several arrays")):
        assert said in str(run(app, ["compress", str(tmp_path / name), "--abs", ".1"]).exception)


def test_where_the_values_go() -> None:
    c = codecs.compress(np.arange(4, dtype=np.float32), lossless=True)
    assert codecs.decompress(c, to=torch.device("cpu")).tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="out is >f4; its bytes must be in this machine's order"):
        codecs.decompress(c, out=np.empty(4, ">f4"))


def test_numcodecs(tmp_path: Path) -> None:
    pytest.importorskip("numcodecs", reason="numcodecs is not installed: pip install numcodecs")
    from rooftop.codecs.zarr import Rooftop

    c = Rooftop.from_config({"abs": 1e-3})
    x = np.random.default_rng(0).normal(size=(20, 30)).astype(np.float32)
    alike = np.full((4, 5), 7.5, np.float32)
    relative = Rooftop(rel=1e-3, rank=1)
    assert (relative.decode(relative.encode(alike)) == alike.reshape(-1)).all() and relative.get_config()["rank"] == 1
    with pytest.raises(ValueError, match="exactly one"):
        Rooftop()
    assert np.abs(c.decode(c.encode(x)) - x.reshape(-1)).max() <= 1e-3 and Rooftop.from_config({k: v for k, v in c.get_config().items() if k != "id"}).how == c.how


def test_fixed_length_sizes_by_hand() -> None:
    """Blocks of 32: all alike (their first value apart), zeros, one step."""
    assert fields.cuszp_bytes(np.zeros(32, np.float32), 0.5, 1) == 1
    assert fields.cuszp_bytes(np.full(32, 100, np.float32), 0.5, 1) == 1 + 1
    assert fields.cuszp_bytes(np.arange(32, dtype=np.float32), 0.5, 1) == 1 + 2 * 4
    assert fields.cuszp_bytes(np.zeros((8, 8), np.float32), 0.5, 2) == 1
    assert fields.cuszp_bytes(np.arange(64, dtype=np.float32).reshape(4, 4, 4), 0.5, 3) == 1 + (5 + 1) * 8


@pytest.mark.parametrize("name", fields.FIELDS)
def test_fast_is_no_larger_than_the_fixed_length_format(name: str) -> None:
    """On a small field: at least 0.9 of cuSZp3's ratio, by its best dimension; no value beyond the bound."""
    x = fields.field(name, 64)
    for rel in (1e-3,):
        c = min((codecs.compress(x, rel=rel, rank=r, statistics=True) for r in range(1, x.ndim + 1)), key=lambda c: c.nbytes)
        peer = min(fields.cuszp_bytes(x, c.eb, rank) for rank in range(1, x.ndim + 1))
        assert c.nbytes <= peer / 0.9 and c.statistics is not None and c.statistics.violations == 0
