"""Kinds of Triton files that public repositories hold: sizes beside tensors, products of 16 bits, imports of another torch's."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rooftop.lab.check import triton_like
from rooftop.lab.cli import commands
from rooftop.lab.cli.app import app
from rooftop.lab.inspect import triton_file
from rooftop.lab.interpret.host import Watch

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


@pytest.mark.parametrize(
    ("annotation", "used", "fault"), [("", "range(labels)", False), (": torch.Tensor", "range(labels)", True), (": torch.Tensor", "tl.load(labels)", False)]
)
def test_a_number_that_nothing_says_is_one_and_labels_are_whole(annotation: str, used: str, fault: bool, tmp_path: Path) -> None:
    sum_ = "for i in range(labels):\n        s += v" if "range" in used else "s = tl.load(x + tl.load(labels) + tl.arange(0, B))"
    code, said = simulated(tmp_path, f"""
@triton.jit
def k(x, y, labels, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    s = v
    {sum_}
    tl.store(y + tl.arange(0, B), s)

def f(x: torch.Tensor, labels{annotation}):
    y = torch.empty_like(x)
    k[(1,)](x, y, labels, 16)
    return y
""")
    assert (code, "pointer" in said) == ((1, True) if fault else (0, False)), said


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_product_with_what_the_kernel_has_made_16_bit_is_called_with_tensors_of_16_bits(kind: str, tmp_path: Path) -> None:
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
""".replace("tl.float16", f"tl.{kind}"))
    assert code == 0 and f"={kind} " in said, said
    if kind == "bfloat16":
        done = CliRunner().invoke(app, ["inspect", str(tmp_path / "own.py"), "--arch", "90"])
        assert done.exit_code == 0 and "product" in done.output, done.output


def test_a_name_that_this_torch_does_not_have_is_no_fault_and_its_compiler_may_be_imported(tmp_path: Path) -> None:
    code, said = simulated(tmp_path, "from torch._inductor.utils import no_such_name\n")
    assert code == 3 and "no_such_name" in said, said
    code, said = simulated(tmp_path, "import torch._inductor.utils\n" + SOLVE)
    assert code == 0, said


def test_a_file_of_a_package_finds_its_relatives_and_its_init_runs_only_for_its_own_names(tmp_path: Path) -> None:
    layers = tmp_path / "mykernels" / "layers"
    layers.mkdir(parents=True)
    (tmp_path / "mykernels" / "__init__.py").write_text("import a_library_that_is_not_here\n", encoding="utf-8")
    (tmp_path / "mykernels" / "sizes.py").write_text("BLOCK = 64\n", encoding="utf-8")
    (layers / "__init__.py").write_text("THREADS = 128\n", encoding="utf-8")
    (layers / "types.py").write_text("from ..sizes import BLOCK\n", encoding="utf-8")
    (layers / "mine.py").write_text(
        f"{HEAD}from . import THREADS, types\nfrom ..sizes import BLOCK\nassert types.BLOCK == BLOCK and THREADS == 128\n"
        "@triton.jit\ndef twice(x, y, n, B: tl.constexpr):\n    at = tl.program_id(0) * B + tl.arange(0, B)\n"
        "    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)\n"
        "def double(x):\n    y = torch.empty_like(x)\n    twice[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), B=BLOCK)\n    return y\n",
        encoding="utf-8",
    )
    found = triton_file.launches(layers / "mine.py", "", {}, (), Watch())
    assert not found.findings and [x.name for x in found.launches] == ["twice"]


def test_an_error_of_the_file_itself_is_its_fault_where_nothing_of_it_launches(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        f"{HEAD}@triton.heuristics({{'EVEN': lambda a: a['rows'] % a['B'] == 0}})\n"
        "@triton.jit\ndef fill(y, n, B: tl.constexpr, EVEN: tl.constexpr):\n    at = tl.arange(0, B)\n    tl.store(y + at, 1, mask=at < n)\n"
        "def main():\n    y = torch.empty(64, device='cuda')\n    fill[(1,)](y, 64, B=64)\nif __name__ == '__main__':\n    main()\n", encoding="utf-8",
    )
    (finding,) = triton_file.launches(path, "", {}, (), Watch()).findings
    assert finding.kind == "host" and "KeyError: 'rows'" in finding.text and ":4:" in finding.text


def test_functions_are_called_where_the_file_itself_is_too_slow_to_launch_anything(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        f"{HEAD}import time{SOLVE.replace('solve(x: torch.Tensor, y: torch.Tensor, rows: int, columns: int)', 'solve(x, y, rows: int, columns: int)')}"
        "if __name__ == '__main__':\n    while True:\n        time.sleep(0.01)\n        torch.ones(8)\n", encoding="utf-8",
    )
    watch = Watch(total=3.0)
    found = triton_file.launches(path, "", {}, (), watch)
    assert [x.name for x in found.launches] == ["turn"] and not found.findings and not watch.over


def test_a_module_that_is_not_installed_is_missed_where_it_is_used_and_functions_that_do_without_are_called(tmp_path: Path) -> None:
    text = (
        "import no_such_library.layers as theirs\nfrom no_such_library import nn\n"
        "try:\n    import another_one\n    raise SystemExit('it is here')\nexcept ImportError:\n    pass\nclass Layer(nn.Module):\n    pass\n" + SOLVE
    )
    code, said = simulated(tmp_path, text)
    assert code == 0 and "turn[" in said, said
    code, said = simulated(tmp_path, f"{text}if __name__ == '__main__':\n    theirs.compare(solve)\n")
    assert code == 3 and "theirs.compare(solve): the module no_such_library.layers is not installed" in said and "turn[" in said, said


def test_kernels_that_a_file_beside_launches_are_launched_by_it(tmp_path: Path) -> None:
    (tmp_path / "turn_kernels.py").write_text(HEAD + SOLVE.partition("def solve")[0], encoding="utf-8")
    (tmp_path / "unlike.py").write_text("from other_turn_kernels import turn\n", encoding="utf-8")
    (tmp_path / "layer.py").write_text(f"{HEAD}from .turn_kernels import turn\ndef solve{SOLVE.partition('def solve')[2]}", encoding="utf-8")
    found = triton_file.launches(tmp_path / "turn_kernels.py", "", {}, (), Watch())
    assert [x.name for x in found.launches] == ["turn"] and not found.findings, found


def test_a_function_of_which_nothing_says_what_it_takes_is_called_by_the_tests_above_it(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "test").mkdir()
    wants = "def solve(x: torch.Tensor, y: torch.Tensor, rows: int, columns: int):\n    assert len(x.packed) == 77\n"
    path = tmp_path / "kernels" / "turning.py"
    path.write_text(HEAD + SOLVE.replace("def solve(x: torch.Tensor, y: torch.Tensor, rows: int, columns: int):\n", wants), encoding="utf-8")
    (tmp_path / "test" / "test_turning.py").write_text(
        f"{HEAD}from kernels.turning import solve\nx = torch.ones(7, 11, device='cuda')\nx.packed = 'x' * 77\nsolve(x, torch.empty_like(x), 7, 11)\n",
        encoding="utf-8",
    )
    found = triton_file.launches(path, "", {}, (), Watch())
    assert [(x.name, x.grid, x.values["rows"]) for x in found.launches] == [("turn", (1,), 7)] and not found.findings, found
    assert not found.assumed and found.notes == ("launched by ../test/test_turning.py, which imports it",)


def test_a_test_that_wants_sizes_leaves_the_function_it_tests_to_be_called(tmp_path: Path) -> None:
    code, said = simulated(tmp_path, f"{SOLVE.replace('(x: torch.Tensor, y: torch.Tensor, rows: int, columns: int)', '(x, y, rows: int, columns: int)')}\n"
                           "def test_op(SHAPE, STEPS):\n    x = torch.ones(*SHAPE, STEPS)\n    solve(x, x, 1, STEPS)\n")
    assert code == 0 and "turn[" in said, said


def test_a_comparison_tells_what_refused_the_call_that_came_furthest(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"{HEAD}def cube(x):\n    assert x.dim() == 3\n    return x >= None\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"cube and torch.relu were not called together: .*own.py:6: return x >= None: TypeError"):
        triton_like.compared(tmp_path / "own.py", "cube", "torch.relu", {}, 0)


def test_an_error_of_a_module_that_is_imported_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "their_device.py").write_text("raise RuntimeError('no driver')\n", encoding="utf-8")
    code, said = simulated(tmp_path, "import their_device\n" + SOLVE)
    assert code == 3 and "own.py:4: import their_device: RuntimeError: no driver" in said, said
