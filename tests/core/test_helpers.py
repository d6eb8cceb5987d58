"""Where includes and imports of kernels are looked up: the family's folder, then kernels/_device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rooftop.core import compile as compiling
from rooftop.core import helpers
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.compile import CompileError

KERNEL = """/* rooftop
op      = "softmax"
dtypes  = ["f32"]
args    = ["x: T[R, C, 1]", "y: T[R, C, 1]"]
[[launch]]
kernel  = "k<{T}, 4>"
grid    = ["R"]
block   = [32]
*/
#include "_row.cuh"
#include "lanes.cuh"
template <typename T, int N> __global__ void k(const T* x, T* y) { y[0] = row(lane(x[0])); }
"""
ROW = '#pragma once\ntemplate <typename T> __device__ T row(T x) { return x + NUMBER; }\n'


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of kernels in place of the shipped ones: two families, each with a helper of the same name."""
    root = tmp_path / "kernels"
    for name, number in (("norm", 1), ("loss", 2)):
        (root / name).mkdir(parents=True)
        (root / name / "_row.cuh").write_text(ROW.replace("NUMBER", str(number)))
    (root / "_device").mkdir()
    (root / "_device" / "lanes.cuh").write_text("#pragma once\ntemplate <typename T> __device__ T lane(T x) { return x; }\n")
    (root / "norm" / "softmax__cuda.cu").write_text(KERNEL)
    (root / "loss" / "cross_entropy__cuda.cu").write_text(KERNEL)
    monkeypatch.setattr(helpers, "KERNELS", root)
    monkeypatch.setattr(helpers, "SHARED", root / "_device")
    monkeypatch.setattr(compiling, "_own", lambda name: True)  # a process of NVRTC for other sources reads the shipped helpers alone
    helpers._families.cache_clear()
    yield root
    monkeypatch.undo()
    helpers._families.cache_clear()


@pytest.mark.parametrize(("name", "op"), [("kernels/norm/softmax__cuda.cu", ""), ("mine.cu", "softmax"), ("ladder/01_rung.cu", "softmax_bwd")])
def test_a_kernel_a_rung_and_a_users_file_use_the_helpers_of_their_family(kernels: Path, tmp_path: Path, name: str, op: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(KERNEL)
    assert helpers.folders(path, op) == (kernels / "norm", kernels / "_device")
    found = CudaImplementation(path, op)
    assert helpers.all_of(path, op) == [kernels / "norm" / "_row.cuh", kernels / "_device" / "lanes.cuh"]
    assert found.compile(["k<float, 4>"], "sm_80").cubin
    before = found.digest
    (kernels / "loss" / "_row.cuh").write_text(ROW.replace("NUMBER", "3"))
    assert CudaImplementation(path, op).digest == before
    (kernels / "norm" / "_row.cuh").write_text(ROW.replace("NUMBER", "4"))
    assert CudaImplementation(path, op).digest != before


def test_without_a_family_there_are_the_shared_helpers_alone(kernels: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL.replace('op      = "softmax"\n', ""))
    assert helpers.folders(path, "another") == (kernels / "_device",)
    with pytest.raises(CompileError, match=r'mine\.cu\(9\): error: cannot include "_row\.cuh"; a kernel may include .*_device: lanes\.cuh$'):
        CudaImplementation(path, "another").compile(["k<float, 4>"], "sm_80")


def test_imports_name_the_folder(kernels: Path) -> None:
    (kernels / "norm" / "_plan.py").write_text("from rooftop.kernels._device import (  # both\n    one as short,\n    two,\n)\n")
    for name in ("one", "two"):
        (kernels / "_device" / f"{name}.py").write_text(f"A = '{name}'\n")
    text = "from rooftop.core.spec import Launch\nfrom rooftop.kernels.norm._plan import x\n"
    assert [str(p.relative_to(kernels)) for p in helpers.imported(text)] == ["norm/_plan.py", "_device/one.py", "_device/two.py"]
    assert helpers.imported("from rooftop.kernels.norm import _plan\n") == helpers.imported(text)
    assert helpers.imported("from rooftop.kernels.norm._absent import x\n") == []
