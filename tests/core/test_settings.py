"""Settings: numbers that no limit could take, relative folders, folders of PATH that may not be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rooftop.core import settings

NUMBERS = ("ROOFTOP_JOBS", "ROOFTOP_CACHE_MIB", "ROOFTOP_SIMT_PATIENCE", "ROOFTOP_SIMT_SECONDS", "ROOFTOP_SIMT_MIB")


@pytest.mark.parametrize("name", [*NUMBERS, "WORLD_SIZE", "LOCAL_RANK"])
@pytest.mark.parametrize("text", ["-1", "1.5", "two", "99999999999999999999999", "9" * 5000, "\u00b2", "\u0663", " 3", "1_000", "0x10", "1e3"])
def test_numbers_that_are_none(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=rf"^{name} is '.*; it must be a whole number of \w+, [01] to \d+$") as caught:
        settings.load() if name in NUMBERS else settings.torchrun()
    assert len(str(caught.value)) < 160


def test_numbers_that_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NUMBERS:
        monkeypatch.setenv(name, "7")
    found = settings.load()
    assert (found.jobs, found.cache_mib, found.patience, found.simt_seconds, found.simt_mib) == (7, 7, 7, 7, 7)
    for name in NUMBERS:
        monkeypatch.setenv(name, "")  # as if it were not set
    assert settings.load().simt_seconds == 3600


FOLDERS = {"ROOFTOP_CACHE": "cache", "ROOFTOP_RESULTS": "results", "ROOFTOP_PREDICTIONS": "predictions", "ROOFTOP_LEARN": "learn",
           "ROOFTOP_DIARY": "diary", "XDG_CACHE_HOME": "cache"}


@pytest.mark.parametrize("name", FOLDERS)
def test_relative_folders_stay_where_they_were(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    for other in FOLDERS:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "some/../where")
    monkeypatch.chdir(tmp_path)
    found = getattr(settings.load(), FOLDERS[name])
    assert found.is_absolute() and found == tmp_path / "where" / ("rooftop" if name == "XDG_CACHE_HOME" else "")
    monkeypatch.setenv("TRITON_CACHE_DIR", "t")
    assert settings.triton_cache() == tmp_path / "t"




@pytest.mark.skipif(os.geteuid() != 0, reason="only the super-user can become one who may not read a folder")
def test_a_folder_of_path_that_may_not_be_read_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut" / "sh").write_text("")
    (tmp_path / "shut").chmod(0)
    code = "import os; from rooftop.core import settings; os.setuid(65534); print(settings.tool_path('sh'), settings.tool_path('nosuch'))"
    path = f"{tmp_path / 'shut'}:/nosuch::/usr/bin:/bin"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["/usr/bin/sh" if Path("/usr/bin/sh").exists() else "/bin/sh", "None"], done.stderr


def test_tools_are_found_by_a_whole_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mine").write_text("#!/bin/sh\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "bin")
    assert settings.tool_path("mine") is None  # it cannot be run
    (tmp_path / "bin" / "mine").chmod(0o755)
    assert settings.tool_path("mine") == tmp_path / "bin" / "mine" and settings.tool_path("bin/mine") is None
