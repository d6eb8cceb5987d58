"""Discovery: a file is found by its name, and a name that cannot be read is an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _support import KERNEL as HEAD

from rooftop.core import head_text, registry
from rooftop.core.head_parts import HeadError
from rooftop.lab import candidates


@pytest.mark.parametrize(("word", "hint"), [("softmx", "softmax"), ("sgemm_cud", "sgemm_cuda"), ("softmax__tritn", "softmax__triton")])
def test_a_misspelt_name_gets_a_hint(word: str, hint: str) -> None:
    with pytest.raises(registry.RegistryError, match=hint):
        candidates.find([word])


def house(tmp_path: Path) -> registry.House:
    for name in ("ops", "kernels/elementwise", "ladders"):
        (tmp_path / name).mkdir(parents=True)
    return registry.House(tmp_path / "ops", tmp_path / "kernels", tmp_path / "ladders")


def test_one_file_each_adds_an_op_a_kernel_and_a_rung(tmp_path: Path) -> None:
    h = house(tmp_path)
    (h.ops / "softmax.py").write_text((registry.HOUSE.ops / "softmax.py").read_text())
    (h.kernels / "elementwise" / "softmax__mine__cuda_sm90.cu").write_text(HEAD)
    (h.ladders / "l").mkdir()
    (h.ladders / "l" / "ladder.toml").write_text(
        'op="softmax"\ntitle="t"\nintro="i"\ndtypes=["f32"]\ntargets=[90]\nheadline="odd 3x7"\ncases=["odd 3x7"]'
    )
    (h.ladders / "l" / "01_first.cu").write_text(HEAD)
    assert registry.op_names(h) == ("softmax",)
    assert [i.name for i in registry.implementations("softmax", h)] == ["softmax__mine__cuda_sm90"]
    assert registry.rung("l/first", h).implementation.op == "softmax"


@pytest.mark.parametrize("name", ["softmx__cuda.cu", "softmax__tritn.py", "softmax.cu", "softmax__cuda.py"])
def test_a_kernel_file_with_a_wrong_name_is_an_error(tmp_path: Path, name: str) -> None:
    h = house(tmp_path)
    (h.ops / "softmax.py").write_text("")
    (h.kernels / "elementwise" / name).write_text(HEAD)
    with pytest.raises(registry.RegistryError):
        registry.kernel_files(h)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("norm/ring.cuh", r"kernels/norm/ring\.cuh: .* private to it: _ring\.cuh"),
        ("norm/softmax__cuda.cu", r"kernels/norm/softmax__cuda\.cu: the kernels of softmax are in kernels/elementwise"),
        ("norm/deep/softmax__mine__cuda.cu", r"kernels/norm/deep/softmax__mine__cuda\.cu: .* kernels/<family>/softmax__mine__cuda\.cu"),
        ("softmax__mine__cuda.cu", r"kernels/softmax__mine__cuda\.cu: .* kernels/<family>/"),
    ],
)
def test_a_file_in_the_wrong_folder_is_an_error(tmp_path: Path, name: str, says: str) -> None:
    h = house(tmp_path)
    (h.ops / "softmax.py").write_text("")
    (h.kernels / "elementwise" / "softmax__triton.py").write_text("")
    for helper in ("elementwise/_ring.cuh", "elementwise/_plan.py", "_device/lanes.cuh", "_device/deep/x.py"):
        (h.kernels / helper).parent.mkdir(exist_ok=True)
        (h.kernels / helper).write_text("")
    assert [f.name for f in registry.kernel_files(h)] == ["softmax__triton"]
    registry.kernel_files.cache_clear()
    (h.kernels / name).parent.mkdir(parents=True, exist_ok=True)
    (h.kernels / name).write_text(HEAD)
    with pytest.raises(registry.RegistryError, match=says):
        registry.kernel_files(h)


def test_a_misspelt_helper_is_named_with_the_file_that_wants_it(tmp_path: Path) -> None:
    path = tmp_path / "softmax__mine__triton.py"
    path.write_text("from rooftop.kernels._device.pcks import x\n")
    with pytest.raises(registry.RegistryError, match=r"softmax__mine__triton\.py: No module named 'rooftop\.kernels\._device\.pcks'"):
        getattr(registry.user_file(path), "module")  # noqa: B009
    path.write_text("from rooftop.kernels._device import pcks\n")
    with pytest.raises(registry.RegistryError, match=r"softmax__mine__triton\.py: cannot import name 'pcks'"):
        getattr(registry.user_file(path), "module")  # noqa: B009


SEVERAL = HEAD.replace('op      = "softmax"', 'ops     = ["square", "square_bwd", "softmax"]').replace('"x: T[R, C, 1]"', '"x: T[R, C, 1]?"')


def test_a_file_serves_several_ops(tmp_path: Path) -> None:
    h = house(tmp_path)
    for name in ("softmax", "square"):
        (h.ops / f"{name}.py").write_text((registry.HOUSE.ops / f"{name}.py").read_text())
    (h.kernels / "elementwise" / "rows__long__cuda_sm90.cu").write_text(SEVERAL)
    found = {f.op: f.name for f in registry.kernel_files(h)}
    assert found == {op: f"{op}__long__cuda_sm90" for op in ("softmax", "square", "square_bwd")}
    (h.kernels / "elementwise" / "square__long__cuda_sm90.cu").write_text(HEAD)
    registry.kernel_files.cache_clear()
    with pytest.raises(registry.RegistryError, match=r"square__long__cuda_sm90\.cu: square__long__cuda_sm90 is in rows__long__cuda_sm90\.cu already"):
        registry.kernel_files(h)
    (h.kernels / "elementwise" / "square__long__cuda_sm90.cu").unlink()
    registry.kernel_files.cache_clear()
    (kernel,) = registry.implementations("square_bwd", h)
    assert (kernel.name, kernel.op, kernel.path.name) == ("square_bwd__long__cuda_sm90", "square_bwd", "rows__long__cuda_sm90.cu")


def test_a_head_says_what_is_of_a_backward_alone(tmp_path: Path) -> None:
    h = house(tmp_path)
    for name in ("softmax", "square"):
        (h.ops / f"{name}.py").write_text((registry.HOUSE.ops / f"{name}.py").read_text())
    of = '\n[bwd]\nlimit = "of the backward"\n[bwd.demands]\nspills = 8\n[[launch]]'
    path = h.kernels / "elementwise" / "rows__cuda_sm90.cu"
    path.write_text(SEVERAL.replace("\n[[launch]]", of))
    square, backward = (registry.implementation(f"{op}__cuda_sm90", h).head for op in ("square", "square_bwd"))
    assert square is not None and backward is not None and square.args == backward.args and square.limit != backward.limit
    assert (backward.limit, backward.demands["spills"]) == ("of the backward", 8)
    for wrong, why in (("[of]", "unknown key 'of'"), ('[bwd]\nop = "x"', "sets op"), ("[[bwd]]", "bwd is a table")):
        with pytest.raises(HeadError, match=f"rows__cuda_sm90.cu.*{re.escape(why)}"):
            head_text.parse(SEVERAL.replace("\n[[launch]]", f"\n{wrong}\n[[launch]]"), path)


@pytest.mark.parametrize(
    ("name", "ops", "message"),
    [
        ("rows__cuda.cu", '["softmax", "sofmax"]', "sofmax"),
        ("rows__cuda.cu", "[]", "ops must list names of ops"),
        ("rows__cuda.cu", '["softmax", "softmax"]', "each once"),
        ("softmax__cuda.cu", '["softmax", "square"]', "softmax is an op"),
    ],
)
def test_a_wrong_list_of_ops_is_an_error_that_names_the_file(tmp_path: Path, name: str, ops: str, message: str) -> None:
    h = house(tmp_path)
    for op in ("softmax", "square"):
        (h.ops / f"{op}.py").write_text("")
    (h.kernels / "elementwise" / name).write_text(HEAD.replace('op      = "softmax"', f"ops = {ops}"))
    with pytest.raises(registry.RegistryError, match=f"kernels/elementwise/{name}.*{message}"):
        registry.kernel_files(h)
