"""A file is written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from rooftop.core import compile as compiling
from rooftop.core import disk_cache, whole_file
from rooftop.lab.records import store
from rooftop.lab.simt import precompiled


def test_what_was_there_stays_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.md"
    path.write_text("before", encoding="utf-8")
    for said in (OSError(errno.ENOSPC, "No space left on device"), OSError("1000000 requested and 51168 written")):
        with pytest.raises(OSError) as raised, whole_file.open_whole(path) as file:
            file.write(b"half")
            raise said
        assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(path))
        assert path.read_text(encoding="utf-8") == "before" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(KeyError), whole_file.open_whole(path) as file:
        raise KeyError
    assert path.read_text(encoding="utf-8") == "before" and list(tmp_path.iterdir()) == [path]


def test_a_link_a_mode_and_a_pipe_stay_what_they_are(tmp_path: Path) -> None:
    path, link = tmp_path / "a.npy", tmp_path / "link"
    path.write_text("", encoding="utf-8")
    path.chmod(0o640)
    link.symlink_to("a.npy")
    whole_file.save_array(link, np.arange(3))
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o640 and np.load(path).tolist() == [0, 1, 2]
    whole_file.write("/dev/null", "text")
    assert not Path("/dev/null").is_file()


def test_a_folder_that_is_not_there_and_one_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        whole_file.write(tmp_path / "none" / "a", "text")
    with pytest.raises(OSError, match="/proc/a"):
        whole_file.write("/proc/a", "text")


def test_a_pipe_is_no_file_to_read(tmp_path: Path) -> None:
    """Nobody writes into it: whoever reads it waits for ever."""
    pipe = tmp_path / "records.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=r"no regular file: .*records\.jsonl"):
        whole_file.regular(pipe)
    with pytest.raises(OSError, match="no regular file"):
        store.read(tmp_path)
    (tmp_path / "long.jsonl").touch()
    os.truncate(tmp_path / "long.jsonl", 8 << 30)
    with pytest.raises(OSError, match=r"it has 8,589,934,592 bytes; at most 268,435,456 are read: .*long\.jsonl"):
        store.read(tmp_path / "long.jsonl")
    os.mkfifo(tmp_path / "kept.json")
    assert disk_cache.read_json(tmp_path / "kept.json") is None
    for suffix in (".cubin", ".json"):
        os.mkfifo((tmp_path / "binary").with_suffix(suffix))
    assert compiling._read(tmp_path / "binary", "sm_90a") is None
    os.mkfifo(tmp_path / "library.sum")
    assert not precompiled.as_made(tmp_path / "library.so")
