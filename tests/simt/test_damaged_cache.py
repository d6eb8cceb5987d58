"""A simulation whose files in the cache are cut off, empty or not what was written is built anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rooftop.core import settings
from rooftop.lab import simt
from rooftop.lab.simt import build, precompiled

SOURCE = "// {}\n__global__ void healed(int* y) {{ y[0] = 41 + 1; }}\n"  # each test with files of its own: several run at the same time


def run(test: str) -> int:
    y = torch.zeros(1, dtype=torch.int32)
    assert simt.simulate(SOURCE.format(test), "healed", {"y": y}, grid=(1,), block=(1,), arguments=[("y", "ptr")]).clean
    return int(y[0])


def library(test: str) -> Path:
    return build.build(SOURCE.format(test), path="kernel.cu", kernels=["healed"], mode="check").path


@pytest.mark.sampled("simulator")
@pytest.mark.parametrize("suffix", [".so", ".stack", ".variables"])
@pytest.mark.parametrize("damage", ["cut off", "empty", "other"])
def test_a_damaged_library_is_built_anew(suffix: str, damage: str) -> None:
    test = f"{suffix} {damage}"
    assert run(test) == 42
    path = library(test) if suffix == ".so" else library(test).with_suffix(suffix)
    whole = path.read_bytes()
    path.unlink()  # a loaded library is not written over
    path.write_bytes({"cut off": whole[: len(whole) // 2] if suffix == ".so" else b"", "empty": b"", "other": b"\x00 no such thing"}[damage])
    build.stack_bytes.cache_clear()
    assert run(test) == 42
    assert library(test).is_file()


def test_machine_code_that_cannot_be_read_is_made_anew() -> None:
    y = torch.zeros(1, dtype=torch.int32)
    arguments = {"grid": (1,), "block": (1,), "arguments": [("y", "ptr")], "mode": "count"}
    want = simt.simulate(SOURCE.format("machine code"), "healed", {"y": y}, **arguments).lines  # type: ignore[arg-type]
    folder = settings.load().cache / "simt" / "machine"
    newest = max(folder.rglob("*.json"), key=lambda p: p.stat().st_mtime)
    for text in ("", "{", "[]", '{"kernels": {"healed": [[1]]}, "shared": {}}'):
        newest.write_text(text, encoding="utf-8")
        assert simt.simulate(SOURCE.format("machine code"), "healed", {"y": y}, **arguments).lines == want  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"", b"garbage\n", None])
def test_a_damaged_part_of_the_simulator_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path))

    def part() -> bytes:
        path, under_way = build._part(*build.WORKER)
        if under_way is not None:
            under_way.result()
        return path.read_bytes()

    good = part()
    path, _ = build._part(*build.WORKER)
    path.unlink()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]) if content is None else content)
    assert part()[:4] == good[:4] == b"\x7fELF" and precompiled.as_made(path)


@pytest.mark.sampled("simulator")
def test_bits_that_have_changed_in_the_middle_of_a_file_are_noticed() -> None:
    assert run("bits") == 42
    for path in (library("bits"), library("bits").with_suffix(".variables"), library("bits").with_suffix(".stack")):
        content = path.read_bytes()
        at = len(content) // 2
        damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        path.unlink()
        path.write_bytes(damaged)
        build.stack_bytes.cache_clear()
        assert run("bits") == 42
        assert library("bits").is_file() and path.read_bytes() != damaged
