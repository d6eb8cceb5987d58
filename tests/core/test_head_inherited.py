"""Names that a device header defines for the kernels that include it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rooftop.core import head_text, helpers, registry
from rooftop.core.expressions import ExpressionError
from rooftop.core.head import HeadError
from rooftop.core.spec import TARGETS, Meta, Problem

KERNEL = """/* rooftop
op   = "add"
args = ["n: i32 = packs", "x: T[R, C]", "y: T[R, C]", "out: T[R, C]"]
valid = "packs % each == 0"
[let]
row = "x"
[config]
each = 2
[[launch]]
kernel = "k<{T}, {bytes(row)}>"
grid   = ["packs // each"]
block  = [32]
shared = "stride(row, 0) if aligned(row, 16) else 0"
*/
#include "outer.cuh"
template <typename T, int N> __global__ void k(int n, const T* x, const T* y, T* out) {}
"""
OUTER = '#pragma once\n#include "inner.cuh"\n'
INNER = """/* rooftop
[let]
packs = "R * ceil(C / lanes)"
lanes = "16 // bytes(row)"
spare = "nowhere + 1"
*/
// Rows in packs.
#pragma once
"""


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of headers in place of the shipped ones."""
    monkeypatch.setattr(helpers, "folders", lambda path, op: (tmp_path,))
    write(tmp_path, OUTER, INNER)
    return tmp_path


def write(house: Path, outer: str, inner: str) -> None:
    (house / "outer.cuh").write_text(outer, encoding="utf-8")
    (house / "inner.cuh").write_text(inner, encoding="utf-8")


def problem(rows: int = 6, columns: int = 20, dtype: str = "f32") -> Problem:
    tensor = Meta((rows, columns), dtype)
    return Problem("add", (("x", tensor), ("y", tensor), ("out", tensor)), (), TARGETS[80])


def test_a_kernel_has_the_names_of_the_headers_that_it_includes(house: Path) -> None:
    read = head_text.parse(KERNEL, "my.cu")
    assert read.supports(problem()) is None
    (launch,) = read.launches_for(problem(), read.config)
    assert (launch.kernel, launch.grid, launch.args["n"], launch.shared) == ("k<float, 4>", (15,), 30, 20)
    (launch,) = read.launches_for(problem(dtype="bf16"), read.config)  # 40 bytes to a row: not on 16
    assert (launch.kernel, launch.grid, launch.args["n"], launch.shared) == ("k<__nv_bfloat16, 2>", (9,), 18, 0)
    assert read.is_valid(problem(), {"each": 5}) and not read.is_valid(problem(), {"each": 7})
    assert set(read.formulas()) == {"row", "packs", "lanes"}  # `spare` is asked for by nobody, so what it names need not be there


def test_a_comment_includes_nothing(house: Path) -> None:
    read = head_text.parse(KERNEL.replace('#include "outer.cuh"', '// #include "outer.cuh"'), "my.cu")
    with pytest.raises(HeadError, match=r"^my\.cu: valid: 'packs % each == 0' names 'packs'"):
        read.supports(problem())


@pytest.mark.parametrize(
    ("old", "new", "table"),
    [
        ('row = "x"', 'row = "x"\npacks = "R"', "[let]"),
        ("each = 2", "each = 2\nlanes = 4", "[config]"),
        ("[config]", '[scratch]\nspare = "f32[R]"\n[config]', "[scratch]"),
        ("y: T[R, C]", "y: T[R, lanes]", "args"),
        ("block  = [32]", 'block  = [32]\nargs   = ["spare: T[R, C]"]', "args"),
    ],
)
def test_a_name_that_kernel_and_header_define_is_an_error_that_names_both(house: Path, old: str, new: str, table: str) -> None:
    text = KERNEL.replace(old, new)
    assert text != KERNEL
    with pytest.raises(HeadError, match=rf"^my\.cu: '(packs|lanes|spare)' of its {re.escape(table)} is also in the \[let\] of .*inner\.cuh"):
        head_text.parse(text, "my.cu")


def test_a_name_that_two_headers_define_is_an_error_that_names_all_three_files(house: Path) -> None:
    write(house, '/* rooftop\n[let]\nlanes = "4"\n*/\n' + OUTER, INNER)
    with pytest.raises(HeadError, match=r"^my\.cu: 'lanes' is in the \[let\] of two headers that it includes, .*outer\.cuh and .*inner\.cuh"):
        head_text.parse(KERNEL, "my.cu")


def test_a_name_that_the_op_has_too_is_an_error(house: Path) -> None:
    write(house, OUTER, INNER.replace("spare", "alpha"))
    read = head_text.parse(KERNEL, "my.cu")
    given = Problem("any", problem().tensors, (("alpha", 2),), TARGETS[80])
    with pytest.raises(HeadError, match=r"^my\.cu: .*inner\.cuh: let\.alpha: any has a tensor or an option of that name"):
        read.supports(given)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (INNER.replace("ceil(C / lanes)", "ceil(C / (lanes)"), r"inner\.cuh: let\.packs: .*is not an expression"),
        (INNER.replace('"nowhere + 1"', '"open(1)"'), r"inner\.cuh: let\.spare: .*calls open"),
        (INNER.replace('"nowhere + 1"', "3"), r"inner\.cuh: let\.spare must be a condition, not 3"),
        (INNER.replace("spare", '"a b"'), r"inner\.cuh: let\.a b: a name is letters"),
        (INNER.replace("lanes =", "lanes"), r"inner\.cuh:4: the head is not valid TOML"),
        (INNER.replace("*/", '[config]\neach = 3\n*/'), r"inner\.cuh: the head of a header may contain only \[let\], not config"),
        ("#pragma once\n" + INNER, r"inner\.cuh: the head must be at the start of the file"),
        (INNER.replace("*/", ""), r"inner\.cuh: the head's comment is not closed"),
    ],
)
def test_a_header_that_cannot_be_read_is_named_with_what_is_wrong(house: Path, text: str, says: str) -> None:
    write(house, OUTER, text)
    with pytest.raises(HeadError, match=rf"^{re.escape(str(house))}/{says}"):
        head_text.parse(KERNEL, "my.cu")


def test_a_formula_that_names_what_is_not_there_names_kernel_header_and_formula(house: Path) -> None:
    write(house, OUTER, INNER.replace("bytes(row)", "bytes(rows)"))
    with pytest.raises(HeadError, match=r"^my\.cu: .*inner\.cuh: let\.lanes: '16 // bytes\(rows\)' names 'rows'; did you mean 'row'\?"):
        head_text.parse(KERNEL, "my.cu").supports(problem())
    with pytest.raises(HeadError, match=r"names 'lane'; did you mean 'lanes'\?"):  # a name that the header offers
        head_text.parse(KERNEL.replace("n: i32 = packs", "n: i32 = lane"), "my.cu").supports(problem())


def test_a_formula_that_does_not_come_out_says_where_it_stands_once(house: Path) -> None:
    write(house, OUTER, INNER.replace("16 // bytes(row)", "16 // (R - 6)"))
    read = head_text.parse(KERNEL, "my.cu")
    reason = read.supports(problem())
    assert reason is not None and re.search(r"inner\.cuh: let\.lanes: '16 // \(R - 6\)' divides by zero$", reason) and reason.count("let.") == 1
    with pytest.raises(HeadError, match=r"^my\.cu: valid: .*inner\.cuh: let\.lanes: "):
        read.is_valid(problem(), read.config)
    with pytest.raises(ExpressionError, match=r"^let\.row: .*divides by zero"):  # a name of its own says as much
        head_text.parse(KERNEL.replace('row = "x"', 'row = "1 // 0"'), "my.cu").launches_for(problem(7), read.config)


def test_a_users_own_file_has_the_names_of_the_headers_of_its_ops_family(tmp_path: Path) -> None:
    text = KERNEL.replace('row = "x"', 'row = "x"\nformat = "\'int8\'"').replace("outer.cuh", "_quantized.cuh").replace('"add"', '"hadamard"')
    path = tmp_path / "mine.cu"
    path.write_text(text.replace("= packs", "= code_bits").replace("packs", "C"), encoding="utf-8")
    found = registry.user_file(path)
    (launch,) = found.launches(problem(), found.choose(problem()))
    assert launch.args["n"] == 8
