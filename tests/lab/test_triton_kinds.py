"""Kinds of Triton files that public repositories hold: sizes beside tensors, products of 16 bits, imports of another torch's."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rooftop.lab.cli import commands
from rooftop.lab.cli.app import app

pytest.importorskip("triton")
HEAD = "import torch\nimport triton\nimport triton.language as tl\n"


def simulated(folder: Path, text: str) -> tuple[int, str]:
    commands()
    path = folder / "own.py"
    path.write_text(HEAD + text, encoding="utf-8")
    done = CliRunner().invoke(app, ["simt", str(path)])
    return done.exit_code, done.output


SOLVE = """
@triton.jit
def turn(x, y, rows, columns, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = i < rows * columns
    tl.store(y + i % columns * rows + i // columns, tl.load(x + i, mask=here), mask=here)

def solve(x: torch.Tensor, y: torch.Tensor, rows: int, columns: int):
    turn[(triton.cdiv(rows * columns, 256),)](x, y, rows, columns, 256)
"""


def test_sizes_beside_tensors_are_assumed_and_what_is_past_them_is_a_fault(tmp_path: Path) -> None:
    code, said = simulated(tmp_path, SOLVE)
    assert code == 0 and "rows=48, columns=40" in said and "x=float32 1920" in said, said
    code, said = simulated(tmp_path, SOLVE.replace("mask=here)\n\ndef", "mask=i >= 0)\n\ndef"))
    assert code != 0, said


def test_a_product_with_what_the_kernel_has_made_16_bit_is_called_with_tensors_of_16_bits(tmp_path: Path) -> None:
    code, said = simulated(tmp_path, """
@triton.jit
def product(x, y, z, BLOCK: tl.constexpr):
    i, k = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    a = tl.exp(tl.load(x + i * BLOCK + k).to(tl.float32))
    tl.store(z + i * BLOCK + k, tl.dot(a.to(tl.float16), tl.load(y + i * BLOCK + k)))

def squared(x, y):
    z = torch.empty(64, 64, device=x.device)
    product[(1,)](x.flatten()[:4096].contiguous(), y.flatten()[:4096].contiguous(), z, 64)
    return z
""")
    assert code == 0 and "float16" in said, said


def test_a_name_that_this_torch_does_not_have_is_no_fault_and_its_compiler_may_be_imported(tmp_path: Path) -> None:
    code, said = simulated(tmp_path, "from torch._inductor.utils import no_such_name\n")
    assert code == 3 and "no_such_name" in said, said
    code, said = simulated(tmp_path, "import torch._inductor.utils\n" + SOLVE)
    assert code == 0, said
