"""One op with a kernel in every backend: found by name, judged where it can run, compiled where it cannot, chosen by a rule."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
from _backend_house import AHEAD, HERE, HOUSE, NAMES, kernel, subject

from rooftop.core import registry
from rooftop.core.backends import table
from rooftop.core.backends.gpu_only import needs_gpu
from rooftop.core.backends.python_modules import ModuleImplementation
from rooftop.core.backends.table import BACKENDS, Backend, order
from rooftop.core.head import HeadError
from rooftop.core.implementation import Implementation, Where
from rooftop.core.names import RegistryError
from rooftop.core.spec import TARGETS, Meta, Problem
from rooftop.lab import simt
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.check.unproven import unproven
from rooftop.lab.inspect import inspector
from rooftop.lab.records.identity import Identity
from rooftop.lab.records.record import Record

PLACES = {"triton": "interpreter", "cuda": "simt", "gluon": "none", "torch": "torch"}


def test_every_backend_has_a_kernel_here_and_all_are_found() -> None:
    assert tuple(i.name for i in registry.implementations("mmt", HOUSE)) == tuple(f"mmt__{name}" for name in sorted((*NAMES, *AHEAD)))
    assert {kernel(name).backend for name in (*NAMES, *AHEAD)} == set(BACKENDS) - {"pallas"}  # for another device: tests/npu


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_right_where_it_runs_and_skipped_with_a_reason_where_it_does_not(name: str) -> None:
    found = subject(name)
    assert found.implementation is not None
    if found.implementation.where().place == "simt" and simt.unavailable() is not None:
        pytest.skip("the simulator cannot be built here")
    results = {c.name: checker.check(found, c, backend="cpu", seed=3) for c in found.op.cases}
    said = {case: (r.status, r.message) for case, r in results.items()}
    if name in ("gluon_sm90", "tma__cuda_sm90"):
        why = "Gluon kernels run on a GPU only" if name == "gluon_sm90" else "TMA runs on a GPU only: its args hold a tensor map"
        assert said == dict.fromkeys(said, ("skipped", why))
        return
    skipped = {case for case, (status, _) in said.items() if status == "skipped"}
    assert skipped == ({"odd", "one"} if name in ("device__triton_sm90", "host__triton_sm90") else set())  # TMA writes whole 16 bytes
    assert all(status in ("ok", "skipped") for status, _ in said.values()), said
    assert {r.backend for r in results.values()} == {PLACES[found.implementation.backend]}
    assert all(r.outputs["c"].elements for r in results.values() if r.status == "ok")


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("name", [n for n in NAMES if n != "torch"])
def test_what_is_compiled_holds_what_it_must(name: str) -> None:
    found = subject(name)
    facts = inspector.facts_of(found, found.op.case("tiles bf16"), "h200")
    kernels = facts["kernels"]
    assert facts["target"] == "sm_90a" and [k["unmet"] for k in kernels] == [[]] * len(kernels)
    assert all(k["spills"] == 0 and k["registers"] <= 128 and k["occupancy"]["blocks"] for k in kernels)
    counts = kernels[0]["counts"]
    if name in ("gluon_sm90", "tma__cuda_sm90") or "triton" in name:
        assert counts["HGMMA"] == 4 and counts["UTMALDG"] >= 2, "64 x 64 x 64 is four steps of wgmma"
        assert ("UTMASTG" in counts) == (name != "tma__cuda_sm90")
    if "sm90" in name:
        assert inspector.facts_of(found, found.op.case("tiles bf16"), 89)["refused"] == "needs sm_90 or later; NVIDIA GeForce RTX 4090 is sm_89"
    assert ("HGMMA" in inspector.text(found, found.op.case("tile bf16"), "h200", "sass")) == ("HGMMA" in counts)


def test_calls_of_torch_have_no_machine_code() -> None:
    found = subject("torch")
    case = found.op.case("tile bf16")
    assert inspector.facts_of(found, case, 90)["refused"] == "calls torch: there is no machine code of its own"
    with pytest.raises(ValueError, match=r"mmt__torch launches nothing of its own for tile bf16: there is no SASS"):
        inspector.text(found, case, 90, "sass")


def test_demands_of_gluon_are_held_against_its_machine_code(tmp_path: Path) -> None:
    text = kernel("gluon_sm90").path.read_text(encoding="utf-8")
    path = tmp_path / "mmt__gluon_sm90.py"
    path.write_text(text.replace('"UTMASTG"], "spills"', '"IGMMA"], "lacks": ["UTMALDG"], "spills"'), encoding="utf-8")
    found = Subject("mine", registry.op("mmt", HOUSE), BACKENDS["gluon"].implementation(path, "mmt", arch=90))
    (made,) = inspector.facts_of(found, found.op.case("tile bf16"), 90)["kernels"]
    assert made["unmet"] == ["_mmt must not have UTMALDG, and has 6", "no IGMMA in any kernel"]


# -- which is taken -------------------------------------------------------------------------------------------------


def problem(case: str = "tiles bf16", card: str = "h100") -> Problem:
    op = registry.op("mmt", HOUSE)
    return op.problem(op.case(case), TARGETS[card])


def test_the_order_is_that_of_the_backends_then_of_the_names() -> None:
    found = registry.implementations("mmt", HOUSE)
    assert [i.name.removeprefix("mmt__") for i in sorted(found, key=order)] == [
        "device__triton_sm90", "host__triton_sm90", "grid__cuda_sm80", "split__cuda_sm80", "tiles__cuda_sm80", "tma__cuda_sm90", "gluon_sm90", "torch",
        "cutile_sm90", "cute_sm90",
    ]


# -- a pair of files ------------------------------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path: Path) -> registry.House:
    """A copy of the house."""
    shutil.copytree(HERE, tmp_path / "house", ignore=shutil.ignore_patterns("__pycache__"))
    return registry.House(tmp_path / "house" / "ops", tmp_path / "house" / "kernels", tmp_path / "house" / "ladders")


def edited(house: registry.House, name: str, old: str, new: str) -> Path:
    path = house.kernels / "gemm" / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_a_pair_is_one_implementation_whose_python_chooses_and_launches() -> None:
    found, p = kernel("tiles__cuda_sm80"), problem("ragged bf16")
    assert found.supports(p) is None and found.choose(p) == {"rows": 2}
    first, second = found.launches(p, found.choose(p))
    assert (first.kernel, first.grid, first.args["first"], second.grid, second.args["first"]) == ("mmt<2>", (3, 32), 0, (3, 18), 64)
    assert [c["rows"] for c in found.configs(p)] == [2, 4, 1, 8, 16]
    assert found.choose(problem("tiles bf16")) == {"rows": 8}
    wide = p.replace(a=Meta((100, 8192), "bf16"), b=Meta((72, 8192), "bf16"))
    assert found.supports(wide) == "rows of at most 4096 elements"
    assert "rows lie one after another" in str(found.supports(p.replace(a=Meta((100, 136), "bf16", (1, 100)))))
    assert found.supports(p.replace(a=Meta((100, 136), "f16"))) == "a is f16; the kernel takes bf16", "what the head says holds before Python is asked"


def test_the_identity_of_a_pair_follows_its_code_and_what_it_launches(mine: registry.House) -> None:
    def made() -> Identity:
        for name in [n for n in sys.modules if n.startswith("rooftop._files.") and "mmt__tiles" in n]:
            del sys.modules[name]  # the file was edited
        kernel = BACKENDS["cuda"].implementation(mine.kernels / "gemm" / "mmt__tiles__cuda_sm80.cu", "mmt")
        op = registry.op("mmt", HOUSE)
        return Subject("mine", op, kernel).identity(op.case("tiles bf16"), TARGETS[80])

    before = made()
    edited(mine, "mmt__tiles__cuda_sm80.py", "SHARE = 64  # rows of c that", "SHARE = 64  # the rows of c that")
    edited(mine, "mmt__tiles__cuda_sm80.py", "SHARE", "OFTEN")
    assert made() == before
    edited(mine, "mmt__tiles__cuda_sm80.cu", "fmaf(", "1.0f * fmaf(")
    assert made().source != before.source and made().digest == before.digest
    edited(mine, "mmt__tiles__cuda_sm80.py", "OFTEN = 64", "OFTEN = 32")
    assert made().digest != before.digest


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("mmt__tiles__cuda_sm80.cu", ', "launches"]', "]", r"a head needs args and at least one \[\[launch\]\]"),
        ("mmt__tiles__cuda_sm80.cu", '"choose", ', '"chose", ', r"python lists 'chose'; the .py file may define supports, choose"),
        ("mmt__tiles__cuda_sm80.cu", '"choose", ', "", r"cuda_sm80\.py defines choose, which the head of mmt__tiles__cuda_sm80\.cu does not list"),
        ("mmt__tiles__cuda_sm80.py", "def choose", "def choice", r"cuda_sm80\.py lacks choose: the head of mmt__tiles__cuda_sm80\.cu lists"),
        ("mmt__tiles__cuda_sm80.cu", "rows = 4\n", 'rows = 4\n[[choice]]\nwhen = "M > 2"\nrows = 3\n', r"choice is in the head, and python lists choose"),
    ],
)
def test_a_pair_that_does_not_fit_is_an_error(mine: registry.House, file: str, old: str, new: str, says: str) -> None:
    edited(mine, file, old, new)
    with pytest.raises(HeadError, match=says):
        registry.implementation("mmt__tiles__cuda_sm80", mine).supports(problem())


def test_a_python_file_beside_a_kernel_that_does_not_ask_for_it_is_an_error(mine: registry.House) -> None:
    (mine.kernels / "gemm" / "mmt__split__cuda_sm80.py").write_text("")
    with pytest.raises(RegistryError, match=r"mmt__split__cuda_sm80\.py lies beside mmt__split__cuda_sm80\.cu, which does not ask for it"):
        registry.kernel_files(mine)
    (mine.kernels / "gemm" / "mmt__split__cuda_sm80.py").unlink()
    (mine.kernels / "gemm" / "mmt__tiles__cuda_sm80.py").unlink()
    with pytest.raises(HeadError, match=r"python lists supports, choose, configs, launches, and there is no mmt__tiles__cuda_sm80\.py beside it"):
        registry.implementation("mmt__tiles__cuda_sm80", mine).supports(problem())


# -- scratch, grids that wait ----------------------------------------------------------------------------------------


def test_scratch_that_must_hold_zeros_is_named_and_counts() -> None:
    found, p = kernel("split__cuda_sm80"), problem()
    assert found.zeroed(p, found.choose(p)) == ("arrived",)
    assert set(found.scratch(p, found.choose(p))) == {"left", "arrived"}


@pytest.mark.skipif(simt.unavailable() is not None, reason="the simulator cannot be built here")
def test_a_kernel_that_forgets_to_ask_for_zeros_is_found(mine: registry.House) -> None:
    path = edited(mine, "mmt__split__cuda_sm80.cu", '"i32[M, N] = 0"', '"i32[M, N]"')
    made = BACKENDS["cuda"].implementation(path, "mmt")
    op = registry.op("mmt", HOUSE)
    assert checker.check(Subject("mine", op, made), op.case("odd bf16"), backend="simt").status == "wrong"


@pytest.mark.sampled("slow")
def test_a_grid_that_waits_for_itself_must_be_launched_so_and_fit_the_card(mine: registry.House) -> None:
    op = registry.op("mmt", HOUSE)

    def unmet(old: str, new: str) -> list[str]:
        path = edited(mine, "mmt__grid__cuda_sm80.cu", old, new)
        made = BACKENDS["cuda"].implementation(path, "mmt")
        assert made.launches(problem(), made.choose(problem()))[0].cooperative == ("cooperative = true" in path.read_text())
        return list(inspector.facts_of(Subject("mine", op, made), op.case("tiles bf16"), "h100")["kernels"][0]["unmet"])

    assert unmet("idea    =", "idea =") == []
    card = "NVIDIA H100 80GB HBM3"
    assert unmet('"min(8, sms)"', '"sms * 99"') == [f"a cooperative grid of 13068 blocks; 16 a multiprocessor, 2112 in all, run at once on {card}"]
    assert unmet("cooperative = true\n", "") == ["mmt is launched as any other, and its file waits for the whole grid (this_grid): cooperative = true"]


# -- where a kernel runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ('asm volatile("wgmma.fence.sync.aligned;");', "wgmma runs on a GPU only"),
        ('asm volatile("cp.async.bulk.shared::cta.global [%0], [%1], 16, [%2];");', "TMA runs on a GPU only"),
        ('asm volatile("multimem.ld_reduce.relaxed.sys.global.add.f32 %0, [%1];"); asm("wgmma.fence.sync.aligned;");', "multimem and wgmma run on a GPU only"),
        ("prefetch_map(map);", "TMA runs on a GPU only"),
        ('asm volatile("cp.async.ca.shared.global [%0], [%1], 16;");', None),
        ("// wgmma.fence and CUtensorMap in words\n", None),
        ("gdc_wait();", None),
    ],
)
def test_where_a_kernel_runs_is_read_off_its_instructions(code: str, says: str | None) -> None:
    include = '#include "pdl.cuh"\n' + ('#include "tensor_map.cuh"\n' if "prefetch" in code else "")
    assert needs_gpu(f"{include}__global__ void k() {{ {code} }}") == says


def test_a_header_that_is_included_and_not_used_takes_no_kernel_to_the_gpu() -> None:
    assert needs_gpu('#include "tensor_map.cuh"\n__global__ void k() {}') is None


# -- a backend that is not there -------------------------------------------------------------------------------------


class Elsewhere(ModuleImplementation):
    """As a backend of another package and another target would be."""

    backend = "pallas"
    needed = ("supports", "choose")
    package, install = "jax_that_nobody_has", "pip install 'rooftop[tpu]'"

    def runs(self) -> Where:
        return Where("interpreter")


def test_a_backend_whose_package_is_missing_is_skipped_with_what_to_install(mine: registry.House, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {**BACKENDS, "pallas": Backend("pallas", "Pallas", ".py", Elsewhere, targets=r"tpu\w*", reads="it reads tpu, tpuv5e, ...", arch=0)}
    monkeypatch.setattr(registry, "BACKENDS", more)
    monkeypatch.setattr(table, "BACKENDS", more)
    (mine.kernels / "gemm" / "mmt__pallas_tpuv5e.py").write_text("import jax_that_nobody_has\n")
    found = registry.implementation("mmt__pallas_tpuv5e", mine)
    why = "package jax_that_nobody_has is not installed (pip install 'rooftop[tpu]')"
    assert found.where() == ("none", why) and found.supports(problem()) == why
    op = registry.op("mmt", HOUSE)
    for backend in ("cpu", "interpreter"):
        result = checker.check(Subject(found.name, op, found), op.case("tile bf16"), backend=backend)
        assert (result.status, result.message) == ("skipped", why)
    refused = {
        "mmt__pallas_sm90.py": "'sm90' is no target of pallas: it reads tpu, tpuv5e", "mmt__torch_sm90.py": "'sm90' is no target of torch: it has none",
        "mmt__cuda_tpu.cu": "'tpu' is no target of cuda: it reads sm80", "mmt__jax.py": "no backend 'jax'",
    }
    for name, says in refused.items():
        path = mine.kernels / "gemm" / name
        path.write_text("")
        registry.kernel_files.cache_clear()
        with pytest.raises(RegistryError, match=says):
            registry.kernel_files(mine)
        path.unlink()


# -- torch ------------------------------------------------------------------------------------------------------------


def test_calls_of_torch_get_tensors_by_name_as_the_problem_has_them(tmp_path: Path) -> None:
    path = tmp_path / "softmax__torch.py"
    path.write_text(
        "def supports(p): return None\n"
        "def scratch(p, config):\n    from rooftop.core.spec import Meta\n    return {'kept': Meta((2,), 'f32')}\n"
        "SEEN = []\n"
        "def run(inputs, outputs, scratch, config):\n"
        "    import torch\n"
        "    SEEN.append((sorted(inputs), sorted(outputs), sorted(scratch), config, tuple(inputs['x'].shape)))\n"
        "    outputs['y'].copy_(torch.softmax(inputs['x'], 1))\n"
    )
    op = registry.op("softmax")
    made = registry.user_file(path)
    assert isinstance(made, Implementation) and made.arch == 0 and made.demands == {}
    for case in ("four dimensions f32", "odd 3x7 f32"):
        assert checker.check(Subject("mine", op, made), op.case(case), backend="cpu").status == "ok"
    inputs, outputs, scratch, config, shape = made.module.SEEN[0]  # type: ignore[attr-defined]
    assert (inputs, outputs, scratch, config) == (["dim", "x"], ["y"], ["kept"], {})
    assert len(shape) == 3 and op.case("four dimensions f32").inputs["x"].shape != shape
    assert made.where().place == "torch"


def test_late_numbers_reach_a_call_of_torch(tmp_path: Path) -> None:
    path = tmp_path / "mmt__torch.py"
    path.write_text("def supports(p): return None\ndef run(i, o, s, c): o['c'].fill_(i['shift'])\n")
    made = BACKENDS["torch"].implementation(path, "mmt")
    made.contract = lambda: registry.op("mmt", HOUSE)
    out = torch.zeros(128, 192, dtype=torch.bfloat16)
    a, b = torch.ones(128, 256, dtype=torch.bfloat16), torch.ones(192, 256, dtype=torch.bfloat16)
    made.bind(problem(), {}, ("a", "b", "c", "shift"), 0)(0, [a, b, out, 2.5])
    assert float(out.min()) == float(out.max()) == 2.5


# -- what is still to be proven --------------------------------------------------------------------------------------


def test_kernels_for_a_gpu_only_are_listed_until_each_case_has_a_check_record_of_what_they_now_are() -> None:
    found = {u.name: u for u in unproven([], HOUSE)}
    assert set(found) == {"mmt__cute_sm90", "mmt__cutile_sm90", "mmt__gluon_sm90", "mmt__tma__cuda_sm90"}
    assert found["mmt__tma__cuda_sm90"].of == 4, "TMA does not take `odd`"
    assert str(found["mmt__gluon_sm90"]) == "mmt__gluon_sm90: 3 of 3 cases have no check record (Gluon kernels run on a GPU only)"
    card = TARGETS["h200"]
    about = {"name": card.name, "arch": 90, "sms": 132, "shared_per_block": card.shared_per_block, "l2_bytes": card.l2_bytes}

    def record(case: str, ok: bool = True, digest: str | None = None) -> Record:
        one = subject("tma__cuda_sm90")
        return Record({"kind": "check", "op": "mmt", "subject": one.name, "case": case, "error": {"ok": ok}, "device": about,
                       **one.identity(one.op.case(case), card).facts, **({} if digest is None else {"digest": digest})})

    def left(*records: Record) -> tuple[str, ...]:
        return next((u.cases for u in unproven(records, HOUSE) if u.name == "mmt__tma__cuda_sm90"), ())

    every = [record(f"{name} bf16") for name in ("tile", "tiles", "ragged", "one")]
    assert left(*every) == ()
    assert left(*every[1:], record("tile bf16", ok=False)) == ("tile bf16",)
    assert left(*every[1:], record("tile bf16", digest="0")) == ("tile bf16",)
