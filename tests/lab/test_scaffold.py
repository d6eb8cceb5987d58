"""What a skeleton says of itself."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest
import torch
from _support import KERNEL, command

import rooftop
from rooftop.core import registry
from rooftop.core.backends.python_files import load_file
from rooftop.core.spec import TARGETS
from rooftop.lab import candidates, scaffold
from rooftop.lab.check import checker, contracts


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


def test_skeletons_are_right_as_they_stand(tmp_path: Path) -> None:
    from rooftop.lab import scaffold

    h = registry.House(tmp_path / "ops", tmp_path / "kernels", tmp_path / "ladders")
    for folder in (h.ops, h.kernels, h.ladders):
        folder.mkdir()
    scaffold.write("op", "scale_two", h)
    scaffold.write("kernel", "scale_two__triton", h)
    assert registry.op_names(h) == ("scale_two",)
    found = registry.implementations("scale_two", h)[0]
    op = registry.op("scale_two", h)
    assert checker.check(candidates.Subject(found.name, op, found), op.case("odd f32"), backend="interpreter").status == "ok"
    with pytest.raises(ValueError, match="there already"):
        scaffold.write("op", "scale_two", h)
    with pytest.raises(registry.RegistryError):
        scaffold.write("kernel", "scale_tow__triton", h)


@pytest.fixture
def norms(tmp_path: Path) -> registry.House:
    """The shipped ops, and of their kernels some of rms_norm and softmax."""
    made = registry.House(registry.HOUSE.ops, tmp_path / "kernels", tmp_path / "ladders")
    (made.kernels / "norm").mkdir(parents=True)
    for name in ("norms__cuda_sm80.*", "softmaxes__cuda_sm80.*", "norms__split__triton.py", "norms__triton.py"):
        for path in (registry.HOUSE.kernels / "norm").glob(name):
            shutil.copy(path, made.kernels / "norm")
    return made


@pytest.mark.parametrize(("name", "group"), [("rms_norm", "norms"), ("softmax_bwd", "softmaxes")])
def test_a_cu_whose_choice_is_in_python_is_copied_with_it(norms: registry.House, name: str, group: str) -> None:
    """And of a head of several ops what is of that one."""
    paths = scaffold.written("kernel", f"{name}__mine__cuda", norms)
    assert [p.name for p in paths] == [f"{name}__mine__cuda.cu", f"{name}__mine__cuda.py"]
    assert not any(f"{group}__cuda_sm80" in p.read_text(encoding="utf-8").replace(f"(this is {group}__cuda_sm80)", "") for p in paths)
    assert "[bwd" not in paths[0].read_text(encoding="utf-8")
    found = registry.implementation(f"{name}__mine__cuda", norms)
    op = registry.op(name)
    result = checker.check(candidates.Subject(found.name, op, found), next(c for c in contracts.small(op) if not op.idle(op.problem(c))), backend="simt")
    assert result.status == "ok", result.message


def test_the_plain_kernel_is_copied_before_a_variant(norms: registry.House) -> None:
    text = scaffold.write("kernel", "rms_norm__mine__triton", norms).read_text(encoding="utf-8")
    assert text.startswith('"""rms_norm__mine__triton, to be written (this is norms__triton). ')


@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_empty_gives_the_ops_tensors_and_zeros_instead_of_a_copy(norms: registry.House, backend: str) -> None:
    paths = scaffold.written("kernel", f"rms_norm__mine__{backend}", norms, empty=True)
    text = paths[0].read_text(encoding="utf-8")
    assert len(paths) == 1
    assert "to be written: zeros, as it stands" in text
    assert "residual" in text


@pytest.mark.parametrize("name", ["concat_kv", "decompress_blocks", "reduce", "transpose"])
def test_an_empty_kernel_is_judged(name: str, tmp_path: Path) -> None:
    """It was skipped at every case: strides of dimensions of one element, a name of C++, a name of two things, the type of an element's bits."""
    made = registry.House(registry.HOUSE.ops, tmp_path / "kernels", tmp_path / "ladders")
    made.kernels.mkdir()
    path = scaffold.write("kernel", f"{name}__mine__cuda", made, empty=True)
    op, found = registry.op(name), registry.implementation(path.stem, made)
    subject = candidates.Subject(found.name, op, found)
    small = [c for c in contracts.small(op) if not op.idle(op.problem(c)) and subject.supports(c, TARGETS[90]) is None]
    assert small, "no case that a machine without a GPU can judge"
    result = checker.check(subject, small[0], backend="simt")
    assert result.status == "wrong", "zeros are not the answer"


@pytest.mark.sampled("slow")
def test_every_op_s_empty_cuda_kernel_takes_a_small_case(tmp_path: Path) -> None:
    from rooftop.lab.scaffold import kernel

    for name in registry.op_names():
        for op in (registry.op(name), *([bwd] if (bwd := registry.op(name).bwd) is not None else [])):
            if op.list_names:
                continue
            path = tmp_path / f"{op.name}__mine__cuda.cu"
            path.write_text(scaffold._as_own(kernel.cuda(path.stem, op), path.stem), encoding="utf-8")
            found = registry.user_file(path)
            subject = candidates.Subject(found.name, op, found)
            small = (c for c in op.cases if "huge" not in c.tags and checker._too_large(c, "simt") is None and not op.idle(op.problem(c)))
            assert any(subject.supports(c, TARGETS[90]) is None for c in small), op.name


def test_empty_is_refused_where_there_is_nothing_to_empty(norms: registry.House) -> None:
    with pytest.raises(ValueError, match="--empty is for a kernel"):
        scaffold.write("rung", "softmax_cuda/09_x", norms, empty=True)
    with pytest.raises(ValueError, match="--empty writes kernels in Triton, CUDA"):
        scaffold.write("kernel", "rms_norm__mine__gluon_sm90", norms, empty=True)


@pytest.mark.parametrize("words", [("op", "add"), ("kernel", "add__triton"), ("kernel", "softmax__triton"), ("rung", "softmax_cuda/03_online")], ids=" ".join)
def test_nothing_that_is_there_is_written_over(words: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kind, name = words
    folder = {"op": registry.HOUSE.ops, "kernel": registry.HOUSE.kernels, "rung": registry.HOUSE.ladders}[kind]
    stem = name.rpartition("/")[2].replace("softmax__", "softmaxes__")  # a file of several ops
    path = next(p for p in folder.rglob(f"{stem}.*") if p.suffix in (".py", ".cu"))
    before = path.read_bytes(), path.stat().st_mtime_ns, sorted(folder.rglob("*.[pc][yu]"))
    assert command(monkeypatch, "new", *words) == 1
    assert f"{path.name} is there already" in capsys.readouterr().err.replace("\n", "")
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(folder.rglob("*.[pc][yu]"))) == before


@pytest.fixture
def climbing(tmp_path: Path) -> registry.House:
    """A house of its own with one op and one ladder."""
    made = registry.House(tmp_path / "ops", tmp_path / "kernels", tmp_path / "ladders")
    made.ops.mkdir()
    made.kernels.mkdir()
    (made.ladders / "l").mkdir(parents=True)
    (made.ops / "softmax.py").write_text((registry.HOUSE.ops / "softmax.py").read_text())
    (made.ladders / "l" / "ladder.toml").write_text(
        'op="softmax"\ntitle="t"\nintro="i"\ndtypes=["f32"]\ntargets=[90]\nheadline="odd 3x7"\ncases=["odd 3x7"]'
    )
    (made.ladders / "l" / "01_first.cu").write_text(KERNEL)
    return made


def test_a_rung_under_another_name_leaves_the_ladder_readable(climbing: registry.House) -> None:
    scaffold.write("rung", "l/02_second", climbing)
    assert [r.slug for r in registry.ladder("l", climbing).rungs] == ["first", "second"]
    for name in ("l/../../out", "l/2_second", "l/02_Second", "l/", "l"):
        with pytest.raises(ValueError, match="must read <ladder>/NN_slug"):
            scaffold.write("rung", name, climbing)


def test_a_rung_with_a_number_that_is_taken_is_refused(climbing: registry.House) -> None:
    with pytest.raises(ValueError, match="01"):
        scaffold.write("rung", "l/01_other", climbing)
    assert len(registry.ladder("l", climbing).rungs) == 1


def test_a_ladder_without_a_cu_rung_has_no_model_for_one(climbing: registry.House) -> None:
    (climbing.ladders / "l" / "01_first.cu").unlink()
    with pytest.raises(ValueError, match=r"l has no \.cu rung to start from"):
        scaffold.write("rung", "l/01_first", climbing)


@pytest.mark.parametrize("name", ["lambda", "import", "load", "explain", "register", "lab", "ops"])
def test_an_op_cannot_be_called_as_a_keyword_or_as_what_the_package_has(climbing: registry.House, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        scaffold.write("op", name, climbing)


@pytest.mark.parametrize("base", ["add", "square", "softmax"])
def test_the_in_place_twin_of_an_op_is_right_as_it_stands(base: str, tmp_path: Path) -> None:
    made = registry.House(tmp_path / "ops", tmp_path / "kernels", tmp_path / "ladders")
    made.ops.mkdir()
    path = scaffold.write("op", f"{base}_", made)
    twin = registry.op(f"{base}_", made)
    assert (twin.name, twin.twin_of, twin.output_names) == (f"{base}_", registry.op(base), ())
    one = next(c for c in twin.cases if "odd" in c.name)
    assert checker.check_callable(twin, one, twin.reference, name="reference").status == "ok"
    assert checker.check_callable(twin, one, twin.wrong["nothing written"], name="nothing").status == "wrong"
    function = vars(load_file(path))[f"{base}_"]
    given = [torch.rand(4, 3) for _ in twin.tensor_names]
    want = getattr(rooftop, base)(*given)
    assert function(*given) is given[0] and torch.equal(given[0], want)
    with pytest.raises(TypeError, match=f"^{base}_: .*torch.complex64"):
        function(*(t.to(torch.complex64) for t in given))
    with pytest.raises(ValueError, match=f"^{base}_: .* is expanded"):
        function(*(torch.rand(1, 3).expand(4, 3) for _ in given))


@pytest.mark.parametrize(
    ("name", "said"),
    [("tower_", "no op 'tower'"), ("matmul_", "no input of matmul has the shape and dtype of out"), ("append_kv_", "writes into its inputs already"),
     ("rope_", "rope_.py is there already"), ("add__", "cannot name an op"), ("_", "cannot name an op")],
)
def test_an_op_that_can_have_no_twin_is_refused(name: str, said: str) -> None:
    with pytest.raises((ValueError, registry.RegistryError), match=said):
        scaffold.write("op", name)
