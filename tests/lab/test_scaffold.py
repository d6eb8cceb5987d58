"""What a skeleton says of itself."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rooftop.core import registry
from rooftop.lab import scaffold


@pytest.fixture
def house(tmp_path: Path) -> registry.House:
    made = registry.House(tmp_path / "ops", tmp_path / "kernels", tmp_path / "ladders")
    for folder in (made.ops, made.kernels, made.ladders):
        folder.mkdir()
    scaffold.write("op", "relu6", made)
    return made


def test_a_kernel_names_its_own_contract_and_what_it_was_copied_from(house: registry.House) -> None:
    path = scaffold.write("kernel", "relu6__triton", house)
    module = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(module) == "relu6__triton, to be written (this is add__triton). Contract: rooftop/ops/relu6.py"
    model = ast.parse((registry.HOUSE.kernels / "elementwise" / "add__triton.py").read_text(encoding="utf-8"))
    assert [ast.dump(n) for n in module.body[1:]] == [ast.dump(n) for n in model.body[1:]]
    second = scaffold.write("kernel", "relu6__mine__triton", house)
    assert ast.get_docstring(ast.parse(second.read_text(encoding="utf-8"))) == (
        "relu6__mine__triton, to be written (this is relu6__triton). Contract: rooftop/ops/relu6.py"
    )


def test_an_op_is_laid_out_as_ruff_would_have_it_and_no_hello_world(house: registry.House) -> None:
    text = (house.ops / "relu6.py").read_text(encoding="utf-8")
    about = ast.get_docstring(ast.parse(text)) or ""
    assert about.startswith("relu6, to be written (this is the contract of add). ")
    assert "hello world" not in about
    assert "\n\n    ]" not in text
