"""Tables of tuned configs: written, read by kernels, lent to siblings, brought home."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from _support import command

from rooftop.core import implementation, registry
from rooftop.core.spec import TARGETS, Device, Meta
from rooftop.lab import candidates
from rooftop.lab.tune import tables, tuner
from rooftop.lab.tune.tables import TuneError

H100 = TARGETS[90]
H800 = dataclasses.replace(H100, name="NVIDIA H800")


def entry(config: dict[str, Any] | None, code: str, at: str = "2026-01-01T00:00:00+00:00", gain: float | None = 1.1) -> dict[str, Any]:
    return {"config": config, "over_heuristic": gain if config is not None else None, "case": "odd f32", "at": at, "digest": code}


def test_a_table_is_merged_sorted_and_rid_of_other_code(tmp_path: Path) -> None:
    path = tmp_path / "card" / "k.json"
    assert tables.save(path, {"b": entry({"n": 1}, "old"), "a": entry(None, "old")}, "old")
    assert list(tables.read_table(path)) == ["a", "b"]
    assert tables.save(path, {"c": entry({"n": 2}, "old")}, "old")
    assert list(tables.read_table(path)) == ["a", "b", "c"]
    before = path.read_bytes()
    assert len(before.splitlines()) == 5, "one line an entry"
    assert not tables.save(path, {"c": entry({"n": 2}, "old")}, "old")
    assert path.read_bytes() == before
    assert tables.save(path, {"d": entry({"n": 3}, "new")}, "new")
    assert list(tables.read_table(path)) == ["d"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_write_that_fails_leaves_the_table_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.json"
    tables.save(path, {"a": entry({"n": 1}, "code")}, "code")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(TuneError, match=r"no space left.*--keep"):
        tables.save(path, {"b": entry({"n": 2}, "code")}, "code")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["k.json"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "JSON object"),
        ('{"s": {"block": 1}}', "an entry holds config"),
        (json.dumps({"s": entry({"n": 1}, "code", gain=0.9)}), "over_heuristic is 0.9"),
        (json.dumps({"s": entry({"n": 1}, "code", gain=None)}), "over_heuristic is None"),
        (json.dumps({"s": {**entry(None, "code"), "config": 3}}), "config is 3"),
        (json.dumps({"s": {**entry(None, "code"), "at": 3}}), "texts"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "k.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TuneError, match=says):
        tables.read_table(path)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables of this test alone, which kernels read as they do the package's."""
    monkeypatch.setattr(implementation, "TUNED", tmp_path / "home")
    monkeypatch.setattr(implementation, "_TABLES", {})
    return tmp_path / "home"


@pytest.fixture
def write(home: Path) -> Callable[..., Path]:
    """Write the entry of one config of add__triton for `odd f32`."""

    def write(config: dict[str, Any] | None, device: Device = H100, code: str | None = None, folder: Path = home, **how: Any) -> Path:
        kernel = registry.implementation("add__triton")
        path = tables.table_path(folder, device.name, kernel.name)
        code = code or kernel.digest
        tables.save(path, {odd(device).signature: entry(config, code, **how)}, code)
        return path

    return write


def odd(device: Device = H100) -> Any:
    op = registry.op("add")
    return op.problem(op.case("odd f32"), device)


BEST = {"block": 4096, "warps": 8}


def test_kernels_take_the_tuned_config_and_say_so(write: Callable[..., Path]) -> None:
    kernel = registry.implementation("add__triton")
    assert kernel.resolve(odd())[1] == "heuristic"
    write(BEST)
    config, source = kernel.resolve(odd())
    assert (kernel.config_dict(config), source) == (BEST, "tuned on h100-80gb-hbm3")
    assert kernel.resolve(odd(), {"block": 1024, "warps": 4})[1] == "explicit"
    x = Meta((77,), "f32")
    assert kernel.resolve(registry.op("add").problem_of({"x": x, "y": x}, {}, H100))[1] == "heuristic", "other shapes are not tuned"


def test_an_entry_of_other_code_is_not_read(write: Callable[..., Path]) -> None:
    write(BEST, code="0123456789ab")
    kernel = registry.implementation("add__triton")
    assert kernel.resolve(odd()) == (kernel.choose(odd()), "heuristic")


def test_a_sibling_lends_its_config_unless_the_card_says_that_none_is_better(write: Callable[..., Path]) -> None:
    from rooftop.core.devices import sibling

    assert sibling(H800.name) == H100.name
    kernel = registry.implementation("add__triton")
    write(BEST)
    assert kernel.resolve(odd(H800)) == (kernel.config_of(BEST), "tuned on h100-80gb-hbm3")
    write(None, H800)
    assert kernel.resolve(odd(H800))[1] == "heuristic"
    assert kernel.resolve(odd(H100))[1] == "tuned on h100-80gb-hbm3"


# -- home from another machine -------------------------------------------------------------------------------------


def test_tables_come_home_once_and_the_newer_entry_stays(home: Path, tmp_path: Path, write: Callable[..., Path]) -> None:
    away = tmp_path / "away"
    source = write(BEST, folder=away, at="2026-02-01T00:00:00+00:00")
    found = tables.bring(away, home)
    assert found.taken == ["h100-80gb-hbm3/add__triton: odd f32"]
    target = tables.table_path(home, H100.name, "add__triton")
    assert target.read_bytes() == source.read_bytes()
    assert registry.implementation("add__triton").resolve(odd())[1] == "tuned on h100-80gb-hbm3"
    found = tables.bring(away, home)
    assert (found.taken, len(found.same)) == ([], 1)
    write(None, at="2026-03-01T00:00:00+00:00")
    tables.bring(away, home)
    assert tables.read_table(target)[odd().signature]["config"] is None
    write(BEST, folder=away, at="2026-04-01T00:00:00+00:00")
    tables.bring(away, home)
    assert tables.read_table(target)[odd().signature]["config"] == BEST


def test_entries_of_other_code_stay_away(home: Path, tmp_path: Path, write: Callable[..., Path]) -> None:
    write(BEST, folder=tmp_path / "away", code="0123456789ab")
    found = tables.bring(tmp_path / "away", home)
    assert (found.taken, found.stale) == ([], ["h100-80gb-hbm3/add__triton: odd f32"])
    assert not home.exists()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"block": 4096}, "one like block=1024, warps=4 is accepted"),
        ({"block": 4096, "warps": 8, "stages": 2}, "one like block=1024"),
        ({"block": "4096", "warps": 8}, "gives no launch"),
        ({"block": 0, "warps": 8}, "gives no launch"),
    ],
)
def test_a_config_that_the_kernel_cannot_take_brings_nothing_home(
    home: Path, tmp_path: Path, write: Callable[..., Path], config: dict[str, Any], says: str
) -> None:
    away = tmp_path / "away"
    write(BEST, folder=away)
    write(config, folder=away, device=TARGETS[80])
    with pytest.raises(TuneError, match=says):
        tables.bring(away, home)
    assert not home.exists()


def test_what_is_not_there_or_unknown_is_an_error(home: Path, tmp_path: Path, write: Callable[..., Path]) -> None:
    away = tmp_path / "away"
    with pytest.raises(FileNotFoundError, match="away"):
        tables.bring(away, home)
    away.mkdir()
    with pytest.raises(TuneError, match="holds no table"):
        tables.bring(away, home)
    path = write(BEST, folder=away)
    with pytest.raises(TuneError, match="<device>/<implementation>"):
        tables.bring(path.parent, home)
    path.rename(path.with_name("add__tritn.json"))
    with pytest.raises(registry.RegistryError, match="did you mean 'add__triton'"):
        tables.bring(away, home)
    path.with_name("add__tritn.json").rename(path)
    kernel = registry.implementation("add__triton")
    tables.save(path, {"x:f32[7]": entry(BEST, kernel.digest)}, kernel.digest)
    with pytest.raises(TuneError, match="no case of add has this signature"):
        tables.bring(away, home)


def test_a_folder_that_cannot_be_written_is_said_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TuneError, match="--keep DIR"):
        tables.require_writable(tmp_path / "file" / "tuned")


def test_every_table_of_the_package_is_one_of_its_kernels(tmp_path: Path) -> None:
    """Those that ship: each can be brought home, so names, keys and configs are in order."""
    if any(implementation.TUNED.rglob("*.json")):
        tables.bring(implementation.TUNED, tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="measures")
def test_on_a_gpu_each_config_is_measured_and_the_table_is_read(home: Path, tmp_path: Path) -> None:
    todo = tuner.jobs(candidates.find(["add"]), case="1 Mi elements f32")
    summary = tuner.run(todo, tmp_path / "records", home, budget_s=60, say=lambda text: None)
    assert not (summary.wrong or summary.failed or summary.skipped or summary.left)
    (row,) = summary.written
    assert all(r["seconds"] > 0 and r["fault"] is None for r in row["configs"])
    device = implementation.device_of(0)
    config, source = todo[0].implementation.resolve(todo[0].subject.kernel_problem(todo[0].case, device)[1])
    if row["verdict"] == "faster":
        assert (todo[0].implementation.config_dict(config), source.split()[0]) == (row["pick"], "tuned")
    else:
        assert source == "heuristic"


def test_the_command_brings_tables_home(
    tmp_path: Path, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(BEST, folder=tmp_path / "away")
    assert command(monkeypatch, "tune", "--from", str(tmp_path / "away"), "--keep", str(tmp_path / "there"), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"taken": ["h100-80gb-hbm3/add__triton: odd f32"], "same": [], "stale": []}
    assert tables.read_table(tables.table_path(tmp_path / "there", H100.name, "add__triton"))
    assert command(monkeypatch, "tune", "add", "--from", str(tmp_path / "away")) == 1 and "--from" in capsys.readouterr().err
