"""Other codecs beside ours: what is timed is right, what is not here is said."""

from __future__ import annotations

import subprocess
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rooftop.lab.records import store
from rooftop.lab.report import codec_peers
from rooftop.lab.report.codec_peers import Way


def test_a_run_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours on the CPU; what is not installed, or needs a GPU, is named once, and the record builds the table."""
    monkeypatch.setattr(codec_peers, "FIELDS", ("seismic",))
    said: list[str] = []
    rows, left = codec_peers.run(16, "cpu", said.append)
    ours = [r for r in rows if r["codec"].startswith("rooftop")]
    assert [(r["values"], r["codec"], r["rel"]) for r in ours] == [
        ("weights", "rooftop planes", 0.0), ("weights", "rooftop shuffle", 0.0),
        *(("seismic", f"rooftop {codec}", rel) for rel in (0.01, 0.001) for codec in ("fast", "ratio")),
    ]
    assert all(0 <= r["share"] <= 1 and r["in_kernel"] == 0 for r in ours)
    assert sum("it needs a GPU" in text for text in left) == 6 and all(f"left out: {text}" in said for text in left)
    codec_peers.keep(tmp_path, rows, left, "cpu")
    found = store.read(tmp_path)
    table = codec_peers.table(found, None)
    assert "| CPU | weights | lossless | rooftop planes | " in table and table.count("\n") == 1 + len(rows)
    assert codec_peers.table([], None) == "Nothing has been measured yet."


def test_a_codec_that_loses_bits_is_not_measured_as_lossless() -> None:
    x = torch.arange(100.0)
    way = Way(lambda: x + 1e-3, lambda made: made, lambda made: 400)
    with pytest.raises(RuntimeError, match="is lossless and gives other values"):
        codec_peers.measured("a", way, x, None)
    assert codec_peers.measured("a", way, x, 1e-2)["share"] == pytest.approx(0.1, rel=0.01)
    with pytest.raises(RuntimeError, match=r"gives torch\.float32"):
        codec_peers.measured("a", Way(lambda: x, lambda made: made[1:], len), x, None)


def test_codecs_of_other_packages() -> None:
    """zfp and SZ3 keep the bound that they are given, and their size is theirs alone."""
    pytest.importorskip("zfpy", reason="zfpy is not installed: pip install zfpy")
    pytest.importorskip("hdf5plugin", reason="hdf5plugin is not installed: pip install hdf5plugin h5py")
    x = codec_peers.values_of("seismic", 24, "cpu")
    for make in (codec_peers.zfp_way, codec_peers.sz3_way):
        row = codec_peers.measured("a", make(x, 0.01), x, 0.01)
        assert 0 < row["share"] <= 1 and 1 < row["ratio"] < 100


def test_what_a_crashed_process_has_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_peers, "FIELDS", ())
    diary = tmp_path / "diary.jsonl"
    rows, _ = codec_peers.run(8, "cpu", lambda text: None, diary)
    kept = diary.read_text().splitlines()[:2]  # of the first codec
    diary.write_text("\n".join([*kept, '{"begun": "rooftop shuffle of weights, lossless"}', ""]))
    said: list[str] = []
    again, left = codec_peers.run(8, "cpu", said.append, diary)
    assert again == rows[:1] and "rooftop shuffle of weights, lossless: it ended the process" in left
    assert codec_peers._read(diary)[0] == again and sorted(codec_peers._read(diary)[1].values()) == sorted(left)


def test_a_codec_that_crashes_costs_the_values_that_it_was_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process for ours, one for each codec of others; `a` ends its process at the looser bound of the field."""

    class Killed(BaseException):
        pass

    def way(x: torch.Tensor, eb: float | None, crashes: bool = False) -> Way:
        if crashes and eb and eb > 0.01:
            raise Killed
        return Way(lambda: x, lambda made: made, lambda made: 1)

    def child(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        given = dict(pairwise(command))
        asked.append([w for at, w in enumerate(command) if command[at - 1] == "--codec"])
        try:
            codec_peers.run(8, "cpu", lambda text: None, Path(given["--diary"]), asked[-1])
        except Killed:
            return subprocess.CompletedProcess(command, -11)
        return subprocess.CompletedProcess(command, 0)

    asked: list[list[str]] = []
    monkeypatch.setattr(codec_peers, "FIELDS", ("seismic",))
    monkeypatch.setattr(codec_peers, "ways", lambda *_: {"rooftop x": way, "rooftop y": way, "a": partial(way, crashes=True)})
    monkeypatch.setattr(subprocess, "run", child)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(uuid=i))
    rows, left = codec_peers.apart(8)
    assert asked == [["rooftop x", "rooftop y"], ["a"], ["a"]] and left == ["a of seismic, 0.01: it ended the process"]
    assert [(r["values"], r["rel"]) for r in rows if r["codec"] == "a"] == [("weights", 0.0), ("seismic", 0.001)]
    assert len(rows) == 8 and rows[0]["codec"] == "rooftop x"
