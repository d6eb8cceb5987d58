"""Who uses which helper of the kernels: a family's own lie in its folder, shared ones in kernels/_device, short ones of one user in that
user; and how much there is to read for a kernel."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rooftop.core import helpers, settings

SHORT = 60  # lines of a helper that is worth a file though one file alone uses it


def family(path: Path) -> str:
    """The family of a kernel, a helper or a rung; of other files the package."""
    parts = path.relative_to(settings.PACKAGE).parts
    if parts[0] == "ladders":
        own = helpers.family(tomllib.loads((path.parent / "ladder.toml").read_text(encoding="utf-8"))["op"])
        return own.name if own is not None else f"ladders/{parts[1]}"
    return parts[1] if parts[0] == "kernels" else f"rooftop.{parts[0]}"


def is_helper(path: Path) -> bool:
    return path.parent.parent == helpers.KERNELS and (path.parent == helpers.SHARED or path.name.startswith("_"))


@cache
def users() -> Mapping[Path, frozenset[Path]]:
    """helper -> the files that include or import it themselves, or name it (a `.cu`, which nothing includes)."""
    files = [p for p in settings.PACKAGE.rglob("*") if p.suffix in (".py", ".cu", ".cuh")]
    found: dict[Path, set[Path]] = {p: set() for p in files if is_helper(p)}
    named = [p for p in found if p.suffix == ".cu"]
    for path in files:
        where = (helpers.KERNELS / family(path), helpers.SHARED)
        text = path.read_text(encoding="utf-8")
        for helper in {*helpers.named(path, where), *(p for p in named if f"{p.parent.name}/{p.name}" in text)} - {path}:
            found.setdefault(helper, set()).add(path)
    return {helper: frozenset(by) for helper, by in found.items()}


def families(helper: Path) -> set[str]:
    """The families that use a helper, also through others."""
    found: set[str] = set()
    todo, seen = [helper], {helper}
    while todo:
        for user in users()[todo.pop()] - seen:
            seen.add(user)
            if user.parent == helpers.SHARED:
                todo.append(user)
            else:
                found.add(family(user))
    return found


def shown(path: Path) -> str:
    return str(path.relative_to(settings.PACKAGE))


def test_every_helper_is_used() -> None:
    assert [shown(p) for p, by in users().items() if not by] == []


def test_what_one_family_uses_lies_in_its_folder() -> None:
    shared = [p for p in users() if p.parent == helpers.SHARED]
    assert {shown(p): sorted(found) for p in shared if len(found := families(p)) < 2} == {}
    assert len(list(helpers.SHARED.glob("*.*"))) <= 32


def test_no_family_reaches_into_another() -> None:
    """Nor does the rest of the package; a `.cu` that fulfils no op is launched by whoever needs it (rooftop/ranks)."""
    private = {p: by for p, by in users().items() if p.parent != helpers.SHARED and p.suffix != ".cu"}
    assert {shown(p): away for p, by in private.items() if (away := sorted(shown(u) for u in by if family(u) != p.parent.name))} == {}


def test_a_short_helper_with_one_user_is_part_of_it() -> None:
    lengths = {p: p.read_text(encoding="utf-8").count("\n") for p in users() if is_helper(p) and p.suffix != ".cu"}
    assert {shown(p): n for p, n in lengths.items() if n < SHORT and len(users()[p]) == 1} == {}


def test_a_kernel_names_its_helpers_where_its_digest_looks() -> None:
    """At the start of a line: an import within a function would not be seen. What chooses among kernels is in no digest."""
    for path in (p for folder in ("kernels", "ladders") for p in (settings.PACKAGE / folder).rglob("*.py") if p.name != "choose.py"):
        found = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
        modules = {f"{n.module}.{a.name}" for n in found for a in n.names if n.module and n.module.startswith("rooftop.kernels")}
        assert all(any(m.startswith(f"rooftop.kernels.{p.parent.name}.{p.stem}") for p in helpers.named(path)) for m in modules), path


FILES, LINES, OF_PRODUCTS = 8, 1500, 2000  # to read for a kernel, its contract among them: what `rooftop where` prints
PRODUCTS = ("attention", "matmul", "linear_cross_entropy")
# More than that: (files, lines) at most. Apart they would be slower: each is one launch whose steps share registers or shared memory.
MORE = {
    # a slice of a row in each block of a cluster, of rows of any alignment, in both directions
    "norms__cuda_sm90": (10, 1840), "norms_bwd__cuda_sm90": (10, 2000),
    # the backward in registers, for other residences of the row; the sums of a warp are those of clusters
    "norms_bwd__cuda_sm80": (9, 1530), "norms_bwd__staged__cuda_sm80": (12, 1980), "norms_bwd__long__cuda_sm80": (11, 1730),
    "norms__staged__cuda_sm80": (9, 1280),
    # rows that are computed and quantised at once: the arithmetic of nine formats
    "rms_norm_quantize__cuda_sm80": (11, 1550), "softmax_quantize__cuda_sm80": (11, 1460), "hadamard_quantize__cuda_sm80": (11, 1460),
    "swiglu_quantize__cuda_sm80": (11, 1430), "adamw_8bit__cuda_sm80": (8, 1540),
    "quantize__groups__cuda_sm80": (9, 1500), "quantize__panels__cuda_sm80": (9, 1500), "quantize__columns__cuda_sm80": (9, 1480),
    # selection: sorting networks, thresholds and radix passes, between which the device decides
    "selections__cuda_sm80": (12, 2290), "selections__splitters__cuda_sm80": (10, 1930),
    "sample__cuda_sm90": (13, 2850), "sample__stream__cuda_sm80": (11, 2500), "sample__cuda_sm80": (9, 1730),
    # chunks of a file, what they are made of, and the coder
    "compress_planes__bytes__cuda_sm80": (9, 1000), "compress_ratio__cuda_sm80": (9, 1080), "decompress_ratio__cuda_sm80": (9, 1230),
    # rows of any alignment among clusters, as the norms' persistent kernels
    "softmax__ring__cuda_sm90": (9, 1310),
    # three launches of attention's backward, whose tiles of packed sequences, dropout and scores are those of the forward, and the gradient
    # of a bias, a launch of the portable one
    "attention_bwd__gluon_sm90": (12, 2400),
    # products that share the kernel of matmul, with its loop for scales of blocks, and are larger contracts
    "matmul__split__gluon_sm90": (8, 2150), "scaled_matmul__gluon_sm90": (8, 1740), "quantized_matmul__gluon_sm90": (8, 1820),
    "int_matmul__gluon_sm90": (8, 1590), "linear_cross_entropy__gluon_sm90": (11, 2240), "linear_cross_entropy_bwd__gluon_sm90": (11, 2160),
}


def to_read() -> Mapping[str, tuple[str, int, int]]:
    """kernel -> the stem of its file, and the number of files and lines that `rooftop where` prints for it."""
    from rooftop.core import registry
    from rooftop.lab.cli.look import reading

    paths = {file.name: (file.path.stem, reading(file.name)) for file in registry.kernel_files()}
    return {
        name: (stem, len(found), sum(p.read_text(encoding="utf-8").count("\n") for p in found)) for name, (stem, found) in paths.items()
    }


def too_much(read: Mapping[str, tuple[str, int, int]], more: Mapping[str, tuple[int, int]] = MORE, part: float = 1.0) -> dict[str, tuple[int, int]]:
    """Kernels with more to read than that, or than `part` of those lines."""
    found = {}
    for name, (stem, files, lines) in read.items():
        most = more.get(stem, (FILES, OF_PRODUCTS if name.partition("__")[0].removesuffix("_bwd") in PRODUCTS else LINES))
        if files > most[0] or lines > part * most[1]:
            found[name] = (files, lines)
    return found


def test_a_kernel_is_read_in_few_files() -> None:
    read = to_read()
    assert len(read) > 150 and too_much(read) == {}
    assert set(MORE) - {read[name][0] for name in too_much(read, {}, 0.95)} == set(), "these need no exception"


@pytest.mark.parametrize(("files", "lines", "name"), [(9, 100, "add__triton"), (8, 1501, "add__triton"), (8, 2001, "matmul__triton")])
def test_too_much_to_read_is_seen(files: int, lines: int, name: str) -> None:
    assert too_much({name: (name, files, lines)}) == {name: (files, lines)}
    assert too_much({name: (name, 8, 1500)}) == {}


def without_a_kernel(folder: Path) -> list[str]:
    """The `.cu` files that say how to launch a kernel and hold none."""
    return [p.stem for p in sorted(folder.glob("[!_]*/[!_]*.cu")) if "__global__" not in p.read_text(encoding="utf-8").partition("*/")[2]]


def test_a_kernel_that_one_file_launches_stands_in_it(tmp_path: Path) -> None:
    assert without_a_kernel(helpers.KERNELS) == ["sample__cuda_sm80"]  # sample__cuda_sm90 launches its kernel too
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "a__cuda.cu").write_text('/* rooftop\nkernel = "__global__"\n*/\n#include "_a.cuh"\n')
    assert without_a_kernel(tmp_path) == ["a__cuda"]


def test_heads_of_shipped_kernels_are_metadata() -> None:
    """What chooses or computes is Python: `let`, [[choice]], `configs` and conditional launches are for users' files."""
    from rooftop.core import head_text

    for path in sorted(helpers.KERNELS.glob("[!_]*/[!_]*.cu")):
        text = path.read_text(encoding="utf-8")
        for op in helpers.ops_of(text) or ("",):
            head = head_text.parse(text, path, op=op)
            assert not (head.let or head.choices or head.configs) and len(head.launches) < 2 and not any(x.when for x in head.launches), path


# Numbers that a kernel names and what launches it names again; all others are passed as arguments or template arguments.
TWICE = {
    ("norm/_row_groups.py", "norm/_ring.cuh"): {"MAIL_ROWS", "GROUP_MOST"},
    ("quant/quantize_both__cuda_sm80.py", "quant/quantize_both__cuda_sm80.cu"): {"TILE"},
    ("select/_threshold_rows.py", "select/_threshold_rows.cuh"): {"LISTS"},
    ("sparse/scaled_spmm_24__cuda_sm90.py", "sparse/scaled_spmm_24__cuda_sm90.cu"): {"WIDE"},
}


def equal_numbers(host: str, device: str) -> set[str]:
    """Names that both texts give the same whole number."""
    ours = set(re.findall(r"^([A-Z][A-Z_]*) = (\d+)(?= *(?:#|$))", host, re.M))
    theirs = set(re.findall(r"^constexpr (?:int|unsigned) ([A-Z][A-Z_]*) = (\d+);", device, re.M))
    return {name for name, _ in ours & theirs}


def test_a_number_of_host_and_device_stands_once_or_is_the_same() -> None:
    pairs = {(p, p.with_suffix(s)) for p in helpers.KERNELS.glob("[!_]*/*.py") for s in (".cu", ".cuh") if p.with_suffix(s).is_file()}
    pairs |= {(helpers.KERNELS / host, helpers.KERNELS / device) for host, device in TWICE}
    texts = {(f"{a.parent.name}/{a.name}", f"{b.parent.name}/{b.name}"): [f.read_text(encoding="utf-8") for f in (a, b)] for a, b in pairs}
    assert {pair: found for pair, (a, b) in texts.items() if (found := equal_numbers(a, b))} == TWICE
    assert equal_numbers("A = 8  # rows\nB = 7\n", "constexpr int A = 8;\nconstexpr unsigned B = 9;\n") == {"A"}


FAULTS: Mapping[str, tuple[Callable[[], None], dict[str, str]]] = {
    "unused": (test_every_helper_is_used, {"kernels/norm/_row.cuh": ""}),
    "of one family": (
        test_what_one_family_uses_lies_in_its_folder, {"kernels/_device/row.cuh": "", "kernels/norm/a__cuda.cu": '#include "row.cuh"\n'}
    ),
    "through another": (
        test_what_one_family_uses_lies_in_its_folder,
        {
            "kernels/_device/row.cuh": "", "kernels/_device/all.cuh": '#include "row.cuh"\n',
            "kernels/norm/a__cuda.cu": '#include "all.cuh"\n'
        },
    ),
    "of a ladder": (test_what_one_family_uses_lies_in_its_folder, {
        "kernels/_device/row.py": "", "kernels/norm/a__triton.py": "from rooftop.kernels._device import row\n",
        "ladders/l/ladder.toml": 'op = "a_bwd"\n', "ladders/l/01_x.py": "from rooftop.kernels._device.row import x\n",
    }),
    "of another family": (
        test_no_family_reaches_into_another,
        {"kernels/norm/_row.py": "", "kernels/loss/b__triton.py": "from rooftop.kernels.norm._row import x\n"},
    ),
    "shared, of a family": (
        test_no_family_reaches_into_another,
        {"kernels/norm/_row.py": "", "kernels/_device/b.py": "from rooftop.kernels.norm import _row\n"},
    ),
    "short": (
        test_a_short_helper_with_one_user_is_part_of_it,
        {"kernels/norm/_row.py": "", "kernels/norm/a__triton.py": "from rooftop.kernels.norm import _row\n"},
    ),
    "unseen": (
        test_a_kernel_names_its_helpers_where_its_digest_looks,
        {"kernels/norm/_row.py": "", "kernels/norm/a__triton.py": "def f():\n    from rooftop.kernels.norm import _row\n"},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    check, files = FAULTS[fault]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(settings, "PACKAGE", tmp_path)
    monkeypatch.setattr(helpers, "KERNELS", tmp_path / "kernels")
    monkeypatch.setattr(helpers, "SHARED", tmp_path / "kernels" / "_device")
    for kept in (users, helpers._families):
        kept.cache_clear()
        request.addfinalizer(kept.cache_clear)
    with pytest.raises(AssertionError):
        check()
