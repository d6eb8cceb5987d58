"""Skeletons of kernels in every backend."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from _backend_house import HERE

from rooftop.core import registry
from rooftop.core.head_text import parse
from rooftop.lab import scaffold
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker


@pytest.fixture
def house(tmp_path: Path) -> registry.House:
    """The shipped ops without a kernel."""
    made = registry.House(registry.HOUSE.ops, tmp_path / "kernels", tmp_path / "ladders")
    for folder in (made.kernels, made.ladders):
        folder.mkdir()
    return made


@pytest.mark.parametrize(("name", "case"), [("add__torch", "odd f16"), ("gelu_bwd__torch", "odd f32"), ("matmul__plain__torch", "odd 7x3x5 f32")])
def test_a_skeleton_in_torch_calls_the_reference(house: registry.House, name: str, case: str) -> None:
    path = scaffold.write("kernel", name, house)
    found = registry.implementation(path.stem, house)
    op = registry.op(found.op)
    result = checker.check(Subject(found.name, op, found), op.case(case), backend="cpu")
    assert (result.status, result.backend) == ("ok", "torch"), result.message
    with pytest.raises(ValueError, match="there already"):
        scaffold.write("kernel", name, house)


def test_a_skeleton_in_torch_of_an_op_without_outputs_writes_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = registry.House(HERE.parent / "contracts" / "house" / "ops", tmp_path / "kernels", tmp_path / "ladders")
    for folder in (mine.kernels, mine.ladders):
        folder.mkdir()
    op = registry.op("made_up_append", mine)
    monkeypatch.setitem(sys.modules, "rooftop.ops.made_up_append", SimpleNamespace(OP=op))
    found = registry.implementation(scaffold.write("kernel", "made_up_append__torch", mine).stem, mine)
    result = checker.check(Subject(found.name, op, found), op.case("odd"), backend="cpu")
    assert result.status == "ok", result.message


def test_a_skeleton_in_another_backend_is_a_copy_of_the_ops_first_kernel_there(tmp_path: Path) -> None:
    shutil.copytree(HERE, tmp_path / "h", ignore=shutil.ignore_patterns("__pycache__"))
    mine = registry.House(tmp_path / "h" / "ops", tmp_path / "h" / "kernels", tmp_path / "h" / "ladders")
    path = scaffold.write("kernel", "mmt__mine__gluon_sm90", mine)
    text, model = path.read_text(encoding="utf-8"), (path.parent / "mmt__gluon_sm90.py").read_text(encoding="utf-8")
    assert text.startswith('"""mmt__mine__gluon_sm90, to be written (this is mmt__gluon_sm90). Contract: rooftop/ops/mmt.py"""')
    assert text.partition("from __future__")[2] == model.partition("from __future__")[2]
    path = scaffold.write("kernel", "mmt__mine__cuda_sm80", mine)
    idea = parse(path.read_text(encoding="utf-8"), "mine.cu").idea
    assert idea == "mmt__mine__cuda_sm80, to be written (this is mmt__grid__cuda_sm80). Contract: rooftop/ops/mmt.py"
    assert {"mmt__mine__cuda_sm80", "mmt__mine__gluon_sm90"} <= {i.name for i in registry.implementations("mmt", mine)}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("add__gluon_sm90", "add has no Gluon kernel to start from"),
        ("add__pallas_tpu", "add has no Pallas kernel to start from"),
        ("add__jax", "no backend 'jax'"),
        ("add__torch_sm90", "'sm90' is no target of torch"),
        ("add", "must read <op>"),
    ],
)
def test_what_cannot_be_started_says_why(house: registry.House, name: str, says: str) -> None:
    with pytest.raises((ValueError, registry.RegistryError), match=says):
        scaffold.write("kernel", name, house)
