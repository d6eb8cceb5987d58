"""Files: models, the command line, numcodecs, and the fields that ratios are measured on."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
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
    }


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


def test_many_weights_side_by_side_have_the_bytes_of_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of threads, with large weights (a thread a part) among small ones; the file is one of the format."""
    monkeypatch.setattr("rooftop.codecs.model.BATCH", 9000)  # a weight of 2 * 9000 bytes a thread is large
    g = torch.Generator().manual_seed(1)
    sizes = (100, 3, 200_000, 700, 0, 90_000, 8192, 5)
    held = {f'layer "{i}" é': ("BF16", torch.randn(n, generator=g).mul(0.02).bfloat16()) for i, n in enumerate(sizes)}
    source, made = tmp_path / "m.safetensors", []
    write(source, held)
    for threads in (1, 2, 5):
        monkeypatch.setattr("rooftop.formats.array_chunks.cpu_count", lambda threads=threads: threads)
        seen: list[codecs.Progress] = []
        codecs.compress_model(source, tmp_path / "c.safetensors", progress=seen.append)
        made.append((tmp_path / "c.safetensors").read_bytes())
        assert [now.name for now in seen] == list(held) and seen[-1].done == seen[-1].of == 2 * sum(sizes)
        length = struct.unpack("<Q", made[-1][:8])[0]
        assert length % 8 == 0 and seen[-1].written == len(made[-1]) - 8 - length
        codecs.decompress_model(tmp_path / "c.safetensors", tmp_path / "o.safetensors", progress=seen.append)
        assert len(seen) == 2 * len(sizes) and seen[-1].written == 2 * sum(sizes)
        ends = sorted(tuple(t["data_offsets"]) for name, t in json.loads(made[-1][8 : 8 + length]).items() if name != "__metadata__")
        assert ends[0][0] == 0 and ends[-1][1] == len(made[-1]) - 8 - length and all(a[1] == b[0] for a, b in pairwise(ends))
    assert made[0] == made[1] == made[2]
    for path in (tmp_path / "c.safetensors", tmp_path / "o.safetensors"):
        assert all(torch.equal(t.view(torch.int16), held[name][1].view(torch.int16)) for name, t in codecs.weights(path))


def test_few_weights_are_held_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a weight is written at most two a thread are ahead of it."""
    monkeypatch.setattr("rooftop.formats.array_chunks.cpu_count", lambda: 2)
    begun: list[int] = []
    from rooftop.formats.array_chunks import each

    for at, found in enumerate(each(lambda i: begun.append(i) or i, iter(range(100)))):
        assert found == at and len(begun) <= at + 1 + 2 * 16
    assert sorted(begun) == list(range(100))
    with pytest.raises(ZeroDivisionError):
        list(each(lambda i: 1 // (i - 3), range(1000)))


def test_one_weight_without_the_rest(tmp_path: Path) -> None:
    """It comes back where every other one is damaged, and what is damaged names weight and chunk."""
    source, target = tmp_path / "m.safetensors", tmp_path / "c.safetensors"
    write(source, model())
    codecs.compress_model(source, target)
    data = target.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    first, last = header["d.codes"]["data_offsets"]
    begin = 8 + length
    target.write_bytes(data[:begin] + bytes(first) + data[begin + first : begin + last] + bytes(len(data) - begin - last))
    want = model()["d.codes"][1]
    assert torch.equal(codecs.weight(target, "d.codes").view(torch.uint8), want.view(torch.uint8))
    with pytest.raises(codecs.FormatError, match=r"weight 'a\.weight': not a container of rooftop"):
        codecs.weight(target, "a.weight")
    with pytest.raises(ValueError, match=r"has no weight 'd\.code' among its 5; near are 'd\.codes'"):
        codecs.weight(target, "d.code")
    with pytest.raises(codecs.FormatError, match=r"weight 'a\.weight'"):
        codecs.decompress_model(target, tmp_path / "o.safetensors")
    with pytest.raises(codecs.FormatError, match="holds no compressed weights"):
        codecs.decompress_model(source, tmp_path / "o.safetensors")
    assert not (tmp_path / "o.safetensors").exists()


def test_models_on_the_command_line(tmp_path: Path) -> None:
    cli.commands()
    run = CliRunner().invoke
    source, target, out = (str(tmp_path / f"{n}.safetensors") for n in ("m", "m-compressed", "o"))
    write(Path(source), model())
    found = run(app, ["compress", source])
    assert found.exit_code == 0 and " bytes, ratio 1." in found.output and found.output.endswith(" GB/s\n")
    assert run(app, ["decompress", target, out]).exit_code == 0
    assert all(torch.equal(t.reshape(-1).view(torch.uint8), model()[name][1].reshape(-1).view(torch.uint8)) for name, t in codecs.weights(out))
    npy = str(tmp_path / "w.npy")
    assert run(app, ["decompress", target, npy, "--weight", "b.weight"]).exit_code == 0
    assert (np.load(npy) == model()["b.weight"][1].numpy()).all()
    assert run(app, ["decompress", target, npy, "--weight", "a.weight", "--force"]).exit_code == 0
    assert (np.load(npy).view(np.int16) == model()["a.weight"][1].view(torch.int16).numpy()).all()
    assert "is a model: name the file to write" in said("decompress", target)
    assert "--weight x: it is for models" in said("decompress", npy, "--weight", "x")
    assert "has no weight 'x'" in said("decompress", target, tmp_path / "x.npy", "--weight", "x") and not (tmp_path / "x.npy").exists()
    assert "--device" in run(app, ["compress", source, "--device", "sofa"]).output


def test_a_header_that_names_more_than_the_file_holds_takes_no_memory(tmp_path: Path) -> None:
    """Of the file itself, of a container in it, and of its metadata."""
    import tracemalloc

    source, target = tmp_path / "m.safetensors", tmp_path / "c.safetensors"
    write(source, model())
    codecs.compress_model(source, target)
    data = target.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    offsets = header["a.weight"]["data_offsets"]

    def changed(of: dict[str, object], rest: bytes = data[8 + length :]) -> None:
        text = json.dumps(of).encode()
        target.write_bytes(struct.pack("<Q", len(text)) + text + rest)

    huge = 1 << 50
    meta = {**header["__metadata__"], "rooftop.codecs.shape:a.weight": json.dumps(["BF16", [huge]])}
    container = bytearray(data[8 + length :])
    container[offsets[0] + 32 : offsets[0] + 40] = struct.pack("<Q", huge)  # its shape
    cases = (
        ({**header, "a.weight": {"dtype": "U8", "shape": [huge], "data_offsets": [0, huge]}}, None), ({**header, "__metadata__": meta}, None),
        ({**header, "__metadata__": meta}, bytes(container)), (None, None),
    )
    for of, rest in cases:
        if of is None:
            target.write_bytes(struct.pack("<Q", 99_000_000) + data[8:])
        else:
            changed(of, data[8 + length :] if rest is None else rest)
        tracemalloc.start()
        for read in (lambda: dict(codecs.weights(target)), lambda: codecs.weight(target, "a.weight"), lambda: codecs.decompress_model(target, source)):
            with pytest.raises(codecs.FormatError):
                read()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()


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
    found = run(app, ["decompress", str(tmp_path / "in.rft"), str(tmp_path / "other.npy")])
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


def said(*words: object) -> str:
    found = CliRunner().invoke(app, [str(w) for w in words])
    assert found.exit_code != 0
    return str(found.exception)


def test_no_target_is_replaced_unasked(tmp_path: Path) -> None:
    """The default target too: a source of that name, a link to the source, a file that is there."""
    cli.commands()
    x = np.random.default_rng(0).random(900)
    for name in ("x.npy", "a.npy", "b.npy"):
        np.save(tmp_path / name, x)
    (tmp_path / "x.npy").rename(tmp_path / "x.rft")
    (tmp_path / "a.rft").symlink_to("a.npy")
    (tmp_path / "hard.rft").hardlink_to(tmp_path / "b.npy")
    (tmp_path / "dangling.rft").symlink_to("nothing.npy")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.exists()}
    assert "the target is the source: " in said("compress", tmp_path / "x.rft", "--abs", "0.1")
    assert "the target is the source: " in said("compress", tmp_path / "a.npy", "--abs", "0.1", "--force")
    assert "the target is the source: " in said("compress", tmp_path / "b.npy", tmp_path / "hard.rft", "--abs", "0.1", "--force")
    assert "b.npy is there already" in said("compress", tmp_path / "a.npy", tmp_path / "b.npy", "--abs", "0.1")
    assert "dangling.rft is there already" in said("compress", tmp_path / "a.npy", tmp_path / "dangling.rft", "--abs", "0.1")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.exists()} == before
    run = CliRunner().invoke
    assert run(app, ["compress", str(tmp_path / "b.npy"), str(tmp_path / "c.rft"), "--abs", "0.1"]).exit_code == 0
    assert "c.rft is there already" in said("compress", tmp_path / "a.npy", tmp_path / "c.rft", "--abs", "0.1")
    assert run(app, ["compress", str(tmp_path / "a.npy"), str(tmp_path / "c.rft"), "--abs", "0.1", "--force"]).exit_code == 0
    assert "b.npy is there already" in said("decompress", tmp_path / "c.rft", tmp_path / "b.npy")
    write(tmp_path / "m.safetensors", model())
    assert "--abs 0.1: the weights of" in said("compress", tmp_path / "m.safetensors", "--abs", "0.1")
    assert run(app, ["compress", str(tmp_path / "m.safetensors")]).exit_code == 0
    assert "m-compressed.safetensors is there already" in said("compress", tmp_path / "m.safetensors")


OTHERS = {
    "complex": np.zeros(4, complex), "text": np.array(["a", "bc"]), "bytes": np.array([b"a"]), "long double": np.zeros(3, np.longdouble),
    "times": np.zeros(3, "M8[s]"), "structures": np.zeros(3, [("a", "f4")]), "five dimensions": np.zeros((1, 1, 1, 1, 1)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_a_file_holds_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    cli.commands()
    np.save(tmp_path / "x.npy", OTHERS[what])
    found = said("compress", tmp_path / "x.npy", "--abs", "1")
    assert "dtype is" in found or "at most 4 are taken" in found
    assert "\n" not in found and len(found) < 300 and not (tmp_path / "x.rft").exists()


def test_files_that_are_no_arrays(tmp_path: Path) -> None:
    cli.commands()
    np.save(tmp_path / "objects.npy", np.array([{}, None], object), allow_pickle=True)
    (tmp_path / "pickle.npy").write_bytes(b"\x80\x04K\x01.")
    good = (tmp_path / "good.npy", np.zeros(3))
    np.save(*good)
    data = good[0].read_bytes()
    (tmp_path / "cut.npy").write_bytes(data[:-3])
    (tmp_path / "head.npy").write_bytes(data[:8] + b"\xff" * (len(data) - 8))
    (tmp_path / "huge.npy").write_bytes(data.replace(b"(3,), }     ", b"(9999999999999,), }"))
    (tmp_path / "zip.npy").write_bytes(b"PK\x03\x04" + bytes(40))
    (tmp_path / "text.npy").write_text("hello")
    for name in ("objects", "pickle", "cut", "head", "huge", "zip", "text"):
        found = said("compress", tmp_path / f"{name}.npy", "--lossless")
        assert f"{name}.npy cannot be read as a .npy file: " in found and "\n" not in found
    assert "Is a directory" in said("compress", tmp_path, "--lossless")


def test_a_model_that_is_written_can_be_read(tmp_path: Path) -> None:
    """Of a dtype that no codec takes the weights are copied; one that torch does not have is refused before anything is written."""
    source, target = tmp_path / "m.safetensors", tmp_path / "c.safetensors"
    scales, waves = torch.arange(8, dtype=torch.uint8).view(torch.float8_e8m0fnu), torch.randn(4, dtype=torch.cfloat)
    write(source, {**model(), "scales": ("F8_E8M0", scales), "waves": ("C64", waves)})
    codecs.compress_model(source, target)
    found = dict(codecs.weights(target))
    assert torch.equal(found["scales"].view(torch.uint8), scales.view(torch.uint8)) and torch.equal(found["waves"], waves)
    write(source, {**model(), "f4": ("F4", torch.zeros(3, dtype=torch.uint8))})
    with pytest.raises(codecs.FormatError, match="weight 'f4' is of F4; accepted are BOOL, "):
        codecs.compress_model(source, tmp_path / "d.safetensors")
    assert not (tmp_path / "d.safetensors").exists()


def one(dtype: object = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


BAD_HEADERS: dict[str, object] = {
    "a list": [], "a tensor that is a text": {"a": "b"}, "no dtype": {"a": {"shape": [1], "data_offsets": [0, 4]}}, "a dtype that is a number": one(5),
    "a shape of texts": one(shape=["1"]), "a negative shape": one(shape=[-1, -1]), "a shape of booleans": one(shape=[True]),
    "three offsets": one(offsets=[0, 4, 8]), "offsets that are fractions": one(offsets=[0.0, 4.0]), "turned": one(offsets=[4, 0]),
    "beyond the data": one(shape=[9], offsets=[0, 36]), "too short": one(shape=[2]), "shared bytes": {**one(), "b": one()["a"]},
    "metadata that are a list": {"__metadata__": []}, "metadata that are numbers": {"__metadata__": {"a": 1}},
    "beyond 64 bits": one(shape=[1 << 70, 0], offsets=[0, 0]), "of another dtype and 105 GB": one("X9", [26 << 30], [0, 105 << 30]),
}


@pytest.mark.parametrize("what", BAD_HEADERS)
def test_headers_of_models_that_do_not_fit(tmp_path: Path, what: str) -> None:
    from rooftop.quant.safetensors_file import load_file

    text, path = json.dumps(BAD_HEADERS[what]).encode(), tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    for read in (lambda: dict(codecs.weights(path)), lambda: codecs.compress_model(path, tmp_path / "c"), lambda: load_file(path)):
        with pytest.raises(ValueError, match="is no safetensors file: ") as caught:
            read()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    assert not (tmp_path / "c").exists()


OTHER_SHAPES = (
    "5", "[]", "{", '["BF16"]', '["BF16", "x"]', '["BF16", [3]]', '["F32", [130, 200]]', '[["BF16"], [130, 200]]', '["BF16", [-130, -200]]',
)


@pytest.mark.parametrize("said", OTHER_SHAPES)
def test_what_a_models_metadata_say_of_a_weight_is_compared(tmp_path: Path, said: str) -> None:
    source, target = tmp_path / "m.safetensors", tmp_path / "c.safetensors"
    write(source, model())
    codecs.compress_model(source, target)
    data = target.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    assert header["__metadata__"]["rooftop.codecs.shape:a.weight"] == '["BF16", [130, 200]]'
    header["__metadata__"]["rooftop.codecs.shape:a.weight"] = said
    text = json.dumps(header).encode()
    target.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    with pytest.raises(codecs.FormatError, match=r"c\.safetensors: weight 'a\.weight': "):
        dict(codecs.weights(target))


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
    assert np.abs(c.decode(c.encode(x)) - x.reshape(-1)).max() <= 1e-3 and Rooftop.from_config({"abs": 1e-3, "rank": None}).how == c.how


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
