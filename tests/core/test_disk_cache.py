"""The cache of compiled kernels stays below its limit, keeps what is in use, and can be shown and emptied."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from _support import command

from rooftop.core import disk_cache

HOUR = 3600.0


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ROOFTOP_CACHE_MIB", "1")
    return tmp_path / "cache"


def entry(root: Path, name: str, kib: int, hours: float, part: str = "simt") -> list[Path]:
    """Two files of one entry, last used so many hours ago."""
    found = [root / part / name[:2] / f"{name}{suffix}" for suffix in (".check.so", ".check.stack")]
    for path, size in zip(found, (kib << 10, 0), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, (time.time() - hours * HOUR,) * 2)
    return found


def test_what_was_longest_not_used_goes_until_the_rest_fits(root: Path) -> None:
    old, middle, new = (entry(root, name, 600, hours) for name, hours in (("aa1", 9), ("bb2", 5), ("cc3", 2)))
    assert disk_cache.trim() == 1200 << 10
    assert not any(p.exists() for p in (*old, *middle)) and all(p.exists() for p in new)


def test_nothing_goes_below_the_limit_nor_what_was_just_used(root: Path) -> None:
    few = entry(root, "aa1", 900, 9)
    assert disk_cache.trim() == 0 and few[0].exists()
    (root / disk_cache.STAMP).unlink()
    busy = entry(root, "bb2", 4000, 0.1)
    assert disk_cache.trim() == 900 << 10
    assert busy[0].exists() and not few[0].exists()


def test_it_looks_once_an_hour(root: Path) -> None:
    entry(root, "aa1", 10, 9)
    disk_cache.trim()
    full = entry(root, "bb2", 3000, 9)
    assert disk_cache.trim() == 0 and full[0].exists()
    os.utime(root / disk_cache.STAMP, (time.time() - 2 * HOUR,) * 2)
    assert disk_cache.trim() > 0 and not full[0].exists()


def test_no_cache_and_wrong_settings_are_no_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk_cache.trim() == 0 and not root.exists()
    monkeypatch.setenv("ROOFTOP_CACHE_MIB", "many")
    assert disk_cache.trim() == 0


def test_the_command_shows_and_empties(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    entry(root, "aa1", 100, 1)
    entry(root, "bb2", 50, 1, "cuda")
    assert command(monkeypatch, "cache", "--json") == 0
    assert {r["part"]: (r["entries"], r["bytes"]) for r in json.loads(capsys.readouterr().out)} == {"simt": (1, 100 << 10), "cuda": (1, 50 << 10)}
    assert command(monkeypatch, "cache", "--empty", "--part", "simt") == 0
    assert "0 MiB removed from" in capsys.readouterr().out
    assert [p.name for p in disk_cache.parts()] == ["cuda"]
    assert command(monkeypatch, "cache", "--part", "gpu") == 1
    assert "--part is 'gpu'; it is one of cuda, cutile, cute, simt" in capsys.readouterr().err


@pytest.mark.parametrize("change", [lambda t: "", lambda t: t[:-3], lambda t: t.replace("17", "18"), lambda t: "[" * 100_000, lambda t: t.partition("\n")[2]])
def test_what_is_kept_as_json_is_not_believed_where_it_is_damaged(tmp_path: Path, change: Callable[[str], str]) -> None:
    path = tmp_path / "parts" / "one.json"
    assert disk_cache.read_json(path) is None
    disk_cache.write_json(path, {"registers": 17, "name": "\u03bb"})
    assert disk_cache.read_json(path) == {"registers": 17, "name": "\u03bb"} and list(path.parent.iterdir()) == [path]
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    assert disk_cache.read_json(path) is None
    disk_cache.write_json(path / "below" / "a file.json", 1)  # it cannot be written: no error
