"""Inspecting a file of one's own: what does not compile, what launches nothing, a broken cache."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from _support import KERNEL, command, flat

from rooftop.core import disk_cache, registry
from rooftop.core.cubins import AbsentCompiler
from rooftop.lab.candidates import Subject
from rooftop.lab.cli.app import _narrow, table
from rooftop.lab.inspect import inspector as inspecting


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (("y[0] = x[0];", "y[0] = x[0]"), 12, "error: expected a"),
        (("y[0] = x[0];", "y[0] = z[0];"), 11, 'error: identifier "z" is undefined'),
        (("template", '#include "nothing.cuh"\ntemplate'), 10, 'error: cannot include "nothing.cuh"; a kernel may include CUDA\'s own headers'),
    ],
)
def test_a_file_that_does_not_compile_shows_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: tuple[str, str], line: int, says: str
) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL.replace(*change))
    assert command(monkeypatch, "inspect", str(path), "--arch", "90") == 1
    said = capsys.readouterr().err
    assert f"{path} does not compile" in said
    assert re.search(rf"{re.escape(str(path))}\({line}\): (catastrophic )?{re.escape(says)}", said), said


def test_what_a_kernel_does_not_use_must_compile_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Though its machine code is that of the file before, which is in the cache."""
    path = tmp_path / "mine.cu"
    for more, code in (("", 0), ("__device__ void unused() { undeclared(); }\n", 1)):
        path.write_text(KERNEL + more)
        assert command(monkeypatch, "inspect", str(path), "--arch", "90") == code
    assert 'identifier "undeclared" is undefined' in capsys.readouterr().err


def test_a_kernel_that_is_never_launched_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL.replace("block   = [256]", 'block   = [256]\nwhen    = "0"'))
    assert command(monkeypatch, "inspect", str(path), "--arch", "90") == 0
    assert "launches nothing for" in flat(capsys.readouterr().out)
    table([], {"a": "a"}, False)  # no row at all
    assert list(_narrow([], {"a": "a", "b": "b"}, "", 80)) == ["a  b", "----"]


BROKEN = ["[]", "null", "5", "{}", '"x"', "[" * 100_000, '{"sha256": 1, "names": [], "log": 1}', ""]


@pytest.mark.sampled("slow")
def test_a_broken_cache_is_a_cache_without_the_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.cu").write_text(KERNEL)
    file = registry.user_file(tmp_path / "mine.cu")
    subject = Subject(file.name, registry.op("softmax"), file)
    case = inspecting.inspect_case(subject, None, 90)
    good = inspecting.facts_of(subject, case, 90)
    entries = list((tmp_path / "cache").rglob("*.json"))
    assert sorted(p.relative_to(tmp_path / "cache").parts[0] for p in entries) == ["cuda", "facts", "facts"]
    for text in BROKEN:
        for p in entries:
            p.write_text(text)
        assert inspecting.facts_of(subject, case, 90) == good, text[:50]
        assert not any(p.read_text() == text for p in entries)  # written anew


@pytest.mark.sampled("slow")
def test_facts_of_wrong_types_are_not_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.cu").write_text(KERNEL)
    file = registry.user_file(tmp_path / "mine.cu")
    subject = Subject(file.name, registry.op("softmax"), file)
    case = inspecting.inspect_case(subject, None, 90)
    good = inspecting.facts_of(subject, case, 90)
    (entry,) = (p for p in (tmp_path / "cache" / "facts").rglob("*.json") if not p.name.endswith(".of.json"))
    for change in ({"registers": "16"}, {"opcodes": {"LDG": None}}, {"opcodes": []}, {"loop": {"start": 0}}, {"before_wait": "LDG"}, {"before_wait": [1]}):
        disk_cache.write_json(entry, {**disk_cache.read_json(entry), **change})
        for whole in (tmp_path / "cache" / "facts").rglob("*.of.json"):
            whole.unlink()
        assert inspecting.facts_of(subject, case, 90) == good


def test_a_compiler_that_is_not_installed_is_a_reason_and_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.cu").write_text(KERNEL)
    file = registry.user_file(tmp_path / "mine.cu")
    subject = Subject(file.name, registry.op("softmax"), file)
    case = inspecting.inspect_case(subject, None, 90)
    with monkeypatch.context() as patched:
        patched.setattr(type(file), "machine_code", absent)
        found = inspecting.many([(subject, case, 90)])
        assert found == {("mine", 90): {"arch": 90, "target": "sm_90a", "refused": "package cutlass is not installed", "absent": True}}
    assert inspecting.facts_of(subject, case, 90)["kernels"], "installed since: it is compiled"


def absent(*_: object) -> None:
    raise AbsentCompiler("package cutlass is not installed")


def test_rows_that_are_alike_are_shown_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each architecture, and each refusal three times, were hundreds of lines for an op of many kernels."""
    assert command(monkeypatch, "inspect", "matmul__cublas__torch", "matmul__pallas_tpu", "sgemm_cuda/01") == 0
    said = capsys.readouterr().out
    assert said.count("calls torch: there is no machine code") == 1 and "not for 80 89 90: calls torch" in flat(said)
    assert said.count("runs on a TPU") == 1 and "A800" not in said, "the card of an architecture is no other reason"
    assert 1 <= said.count("sgemm_cuda/01") < 4
    assert command(monkeypatch, "inspect", "matmul__cublas__torch", "sgemm_cuda/01", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 6, "for programs each stands by itself"
