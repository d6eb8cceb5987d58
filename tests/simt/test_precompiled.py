"""The headers that the host's compiler has read once: used where they fit, made again where they do not, and never needed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rooftop.core import settings
from rooftop.lab.simt import precompiled

FLAGS = ("-O1", "-std=c++20")
COMPILERS = [pytest.param(name, marks=pytest.mark.skipif(settings.tool_path(name) is None, reason=f"no {name} here")) for name in ("g++", "clang++")]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    precompiled._options.cache_clear()
    yield
    precompiled._options.cache_clear()


@pytest.fixture
def header(tmp_path: Path) -> Path:
    path = tmp_path / "own.h"
    path.write_text("#pragma once\n#include <vector>\ninline int answer() { return 42; }\n", encoding="utf-8")
    return path


def options(name: str, header: Path, flags: tuple[str, ...] = FLAGS) -> tuple[str, ...]:
    tool = settings.tool_path(name)
    assert tool is not None
    return precompiled.options(tool, name == "clang++", flags, header, header.parent / "kept")


def compiles(name: str, words: tuple[str, ...], header: Path) -> bool:
    """Whether a source that begins with the header does."""
    source = header.parent / "source" / "a.cpp"
    source.parent.mkdir(exist_ok=True)
    source.write_text('#include "own.h"\nint main() { std::vector<int> v(1, answer()); return v[0] - 42; }\n', encoding="utf-8")
    command = [str(settings.tool_path(name)), *words, *FLAGS, f"-I{header.parent}", "-c", str(source), "-o", str(header.parent / "a.o")]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize("name", COMPILERS)
def test_a_header_is_read_once_and_used(name: str, header: Path) -> None:
    words = options(name, header)
    made = (header.parent / "kept" / "own.h.gch").stat()
    assert made.st_size > 100_000
    precompiled._options.cache_clear()
    assert options(name, header) == words
    assert (header.parent / "kept" / "own.h.gch").stat().st_mtime_ns == made.st_mtime_ns
    assert compiles(name, words, header)


def test_what_gcc_has_read_is_what_it_takes(header: Path) -> None:
    if settings.tool_path("g++") is None:
        pytest.skip("no g++ here")
    words = options("g++", header)
    header.write_text("#error read again\n", encoding="utf-8")
    assert compiles("g++", words, header)
    assert not compiles("g++", (), header)


def test_clang_makes_it_again_where_a_header_has_changed(header: Path) -> None:
    if settings.tool_path("clang++") is None:
        pytest.skip("no clang++ here")
    before = options("clang++", header)
    header.write_text(header.read_text(encoding="utf-8") + "inline int more() { return 1; }\n", encoding="utf-8")
    assert not compiles("clang++", before, header)
    precompiled._options.cache_clear()
    assert options("clang++", header) == before
    assert compiles("clang++", before, header)


@pytest.mark.parametrize("name", COMPILERS)
def test_without_it_the_header_is_read_as_it_is(name: str, header: Path) -> None:
    assert options(name, header, ("--no-such-option",)) == ()
    assert not list((header.parent / "kept").iterdir())
    assert compiles(name, (), header)
