"""CUDA C++ that a Python file hands to torch's loaders is taken as a `.cu`, with the lines of the Python file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooftop.lab.cli import triton_files
from rooftop.lab.simt import in_python

INLINE = Path(__file__).parent.parent / "interpret" / "files" / "inline.py"
LOADS = "from torch.utils.cpp_extension import load, load_inline\nimport os\n"


def test_an_inline_source_has_the_lines_of_its_file() -> None:
    (made,) = in_python.sources(INLINE)
    ours, theirs = INLINE.read_text(encoding="utf-8").splitlines(), made.read_text(encoding="utf-8").splitlines()
    line = next(i for i, text in enumerate(ours) if "__global__" in text)
    assert made.name == "inline.cu" and theirs[line] == ours[line] and "load_inline" not in made.read_text(encoding="utf-8")
    assert triton_files.cuda([str(INLINE), "softmax"]) == [str(made), "softmax"]
    assert triton_files.cuda_one(f"{INLINE}:doubled") == (str(made), "doubled") and triton_files.cuda_one(str(INLINE)) == (str(made), None)


@pytest.mark.parametrize(
    ("text", "names"),
    [('load("a", ["a.cu", "b.cpp"])', ["a.cu"]), ('load(name="a", sources=[os.path.join("sub", "b.cu"), "a.cu"])', ["a.cu"]),
     ('FILES = ["sub/b.cu"]\nload(name="a", sources=FILES)', ["b.cu"]), ('load("a", ["none.cu"])', []), ("load_inline('a', 'int f();')", []),
     ('A = "__global__ void k() {}"\nB = "void f() {}"\nload_inline("a", [B], [A])', ["mine.cu"]),
     ('load_inline("a", cpp_sources="", cuda_sources="__global__ void k()" + " {}")', ["mine.cu"]), ("def (", [])],
)
def test_what_the_loaders_are_given_is_found(text: str, names: list[str], tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.cu", "sub/b.cu"):
        (tmp_path / name).write_text("__global__ void k() {}\n", encoding="utf-8")
    (tmp_path / "mine.py").write_text(LOADS + text, encoding="utf-8")
    assert [p.name for p in in_python.sources(tmp_path / "mine.py")] == names


def test_a_source_that_is_made_by_code_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LOADS + 'load_inline("a", "", f"__global__ void k() {{ {1} }}")', encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine.py:3: the CUDA source is made by code"):
        in_python.sources(tmp_path / "mine.py")


def test_several_files_are_named(tmp_path: Path) -> None:
    for name in ("a.cu", "b.cu"):
        (tmp_path / name).write_text("__global__ void k() {}\n", encoding="utf-8")
    (tmp_path / "mine.py").write_text(LOADS + 'load("a", ["a.cu", "b.cu"])', encoding="utf-8")
    with pytest.raises(ValueError, match="loads 2 files of CUDA C"):
        triton_files.cuda_one(str(tmp_path / "mine.py"))
