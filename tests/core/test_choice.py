"""`choose.py` of a family: which kernel runs with which config. What it may return, and what is said of a wrong one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _backend_house import HERE

from rooftop.core import registry
from rooftop.core.call import refusals, select
from rooftop.core.choice import ChoiceError
from rooftop.core.compile import CompileError
from rooftop.core.implementation import UnsupportedError
from rooftop.core.registry import RegistryError
from rooftop.core.spec import TARGETS

HEAD = "from rooftop.core.choice import Chosen\nfrom rooftop.core.spec import Problem\n\n\n"


def house(folder: Path, text: str) -> registry.House:
    """The house of tests/backend_house, whose family has a `choose.py`."""
    kernels = folder / "kernels" / "gemm"
    kernels.mkdir(parents=True)
    for path in (HERE / "kernels" / "gemm").iterdir():
        if path.is_file():
            (kernels / path.name).write_bytes(path.read_bytes())
    (kernels / "choose.py").write_text(HEAD + text, encoding="utf-8")
    return registry.House(HERE / "ops", folder / "kernels", HERE / "ladders")


def chosen(home: registry.House, monkeypatch: pytest.MonkeyPatch, named: str | None = None, arch: int = 90) -> tuple[object, ...]:
    """The kernel, its config and the sentence of the first case."""
    op = registry.op("mmt", home)
    choose, implementation, implementations = registry.choose, registry.implementation, registry.implementations
    monkeypatch.setattr(registry, "choose", lambda op_name, problem, named="", house=None: choose(op_name, problem, named, home))
    monkeypatch.setattr(registry, "implementation", lambda name, house=None: implementation(name, home))
    monkeypatch.setattr(registry, "implementations", lambda op_name, house=None: implementations(op_name, home))
    choice = select(op, op.problem(op.cases[0], TARGETS[arch]), named)
    assert choice.call is not None, choice.rejected
    return choice.call.implementation.name, choice.call.config, choice.call.why


def test_the_function_of_the_family_chooses_kernel_and_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = house(tmp_path, 'def mmt(p: Problem, named: str = "") -> Chosen | str:\n    return Chosen("mmt__split__cuda_sm80", {"parts": 2}, "few tiles")\n')
    name, config, why = chosen(home, monkeypatch)
    assert (name, why) == ("mmt__split__cuda_sm80", "few tiles")
    assert isinstance(config, dict) and config["parts"] == 2


def test_a_named_kernel_is_the_only_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '''def mmt(p: Problem, named: str = "") -> Chosen | str:
    if named not in ("", "mmt__grid__cuda_sm80"):
        return "it is slower at every size"
    return Chosen("mmt__grid__cuda_sm80", {}, "whole tiles")
'''
    home = house(tmp_path, text)
    op = registry.op("mmt", home)
    assert chosen(home, monkeypatch, "grid__cuda_sm80")[0] == "mmt__grid__cuda_sm80"
    problem = op.problem(op.cases[0], TARGETS[90])
    with pytest.raises(UnsupportedError, match="mmt__torch cannot take this input: it is slower at every size"):
        select(op, problem, "torch")
    kernel_problem = op.kernel_problem(problem)
    assert kernel_problem is not None
    said = dict(refusals(op, kernel_problem, "mmt__grid__cuda_sm80"))
    assert said["mmt__torch"] == "it is slower at every size" and "mmt__grid__cuda_sm80" not in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('return Chosen("mmt__grd__cuda_sm80", {})', r"gemm/choose\.py: mmt chooses 'mmt__grd__cuda_sm80'; its kernels are mmt__"),
        ('return Chosen("mmt__torch", {}) if named else "no"', r"gemm/choose\.py: mmt chooses 'mmt__torch'; the call names mmt__grid__cuda_sm80"),
        ('from rooftop.core.registry import in_order\n    return in_order(p, named, (("add__tritn", "whole tiles"),))',
         r"gemm/choose\.py: mmt: no implementation 'add__tritn'; did you mean"),
        ('return ("mmt__torch", {})', r"gemm/choose\.py: mmt returns \('mmt__torch', \{\}\); it must return Chosen"),
    ],
)
def test_a_choice_that_names_no_kernel_is_one_line(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = house(tmp_path, f'def mmt(p: Problem, named: str = "") -> Chosen | str:\n    {text}\n')
    with pytest.raises(ChoiceError, match=message) as caught:
        chosen(home, monkeypatch, "grid__cuda_sm80" if "if named" in text else None)
    assert "\n" not in str(caught.value)


def test_a_config_that_the_kernel_refuses_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = house(tmp_path, 'def mmt(p: Problem, named: str = "") -> Chosen | str:\n    return Chosen("mmt__gluon_sm90", {})\n')
    kernel = registry.implementation("mmt__gluon_sm90", home)
    monkeypatch.setattr(type(kernel), "breaks", lambda self, p, c: "shared memory: 300 KiB; at most 227")
    with pytest.raises(ChoiceError, match=r"^gemm/choose\.py: mmt__gluon_sm90 with .*: shared memory: 300 KiB; at most 227$"):
        chosen(home, monkeypatch)


def test_a_choose_py_that_is_no_python_is_one_line(tmp_path: Path) -> None:
    home = house(tmp_path, "def mmt(p\n")
    with pytest.raises(RegistryError, match=r"choose\.py, line"):
        registry.chooser("mmt", home)


@pytest.mark.parametrize(("wanted", "said"), [("gemm._modle import Config", "No module named 'rooftop.kernels.gemm._modle'"),
                                              ("gemm import _modle", "cannot import name '_modle' from 'rooftop.kernels.gemm'")])
def test_a_misspelt_helper_of_a_choose_py_is_one_line(wanted: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first call of the op, too; of the package's own families as of others."""
    home = house(tmp_path, f"from rooftop.kernels.{wanted}\n\n\ndef mmt(p: Problem, named: str = \"\") -> Chosen | str:\n    return \"none\"\n")
    for ask in (lambda: registry.chooser("mmt", home), lambda: chosen(home, monkeypatch)):
        with pytest.raises(RegistryError, match=rf"choose\.py: {re.escape(said)}") as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_a_misspelt_header_is_one_line_with_file_and_line(tmp_path: Path) -> None:
    home = house(tmp_path, 'def mmt(p: Problem, named: str = "") -> Chosen | str:\n    return Chosen("mmt__grid__cuda_sm80", {})\n')
    path = home.kernels / "gemm" / "mmt__grid__cuda_sm80.cu"
    path.write_text(path.read_text(encoding="utf-8").replace("*/\n", '*/\n#include "pakcs.cuh"\n', 1), encoding="utf-8")
    kernel, op = registry.implementation("mmt__grid__cuda_sm80", home), registry.op("mmt", home)
    problem = op.problem(op.cases[0], TARGETS[90])
    (step, *_) = kernel.steps(problem, kernel.choose(problem))
    with pytest.raises(CompileError, match=r"mmt__grid__cuda_sm80\.cu\(\d+\): error: cannot include \"pakcs\.cuh\"; a kernel may include"):
        kernel.machine_code(problem, step, {})
