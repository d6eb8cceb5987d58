"""Records keep the digest of a kernel whose text has changed only where the machine code is proven to be what it was."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from rooftop.core import settings
from rooftop.core.compile import compile_cuda
from rooftop.lab.records import store
from rooftop.lab.records.store import RecordError
from rooftop.lab.report import restamp
from rooftop.lab.report.restamp_child import code_of, text_of

SOURCE = "__global__ void k(float* out, int n) { int place = blockIdx.x * 32 + threadIdx.x; if (place < n) out[place] = 2.0f * place; }"
KEPT = ("core", "lab", "kernels/_device", "__init__.py", "__init__.pyi")  # of the package: what a small tree with one kernel needs
KERNEL = "kernels/elementwise/gelu__cuda_sm80.cu"


def code(source: str) -> str:
    return code_of(compile_cuda(source, name="k.cu", target="sm_90a", kernels=("k",)).cubin)


def test_code_is_the_same_for_other_names_and_lines_and_for_no_other_number() -> None:
    assert code(SOURCE) == code("// moved\n\n" + SOURCE.replace("place", "index"))
    assert code(SOURCE) != code(SOURCE.replace("2.0f", "3.0f"))
    assert code(SOURCE) != code(SOURCE.replace("void k(", "void __launch_bounds__(64) k("))
    with pytest.raises(ValueError, match="not a cubin"):
        code_of(b"PTX")


def test_a_value_without_a_text_of_its_own_is_refused() -> None:
    assert text_of({"a": (1, max, "x")}) == {"a": ["1", "max", "'x'"]}
    with pytest.raises(ValueError, match="no text"):
        text_of(object())


def said(**more: object) -> dict[str, object]:
    launch = ["k<f32>", ["'x'", "3"], {"grid": ["4"]}, ["abc", "_k"]]
    return {
        "op": "o", "problem": "p", "config": {}, "heuristic": {}, "scratch": {}, "zeroed": [], "grids": [], "source": "heuristic", "launches": [launch], **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("now", "answer", "why"),
    [
        ({}, "same", ""),
        ({"op": "another"}, "changed", "the contract"),
        ({"heuristic": {"threads": 64}}, "changed", "heuristic"),
        ({"config": {"early": 0}, "heuristic": {"early": 0}}, "same", ""),  # a parameter that was added, at its default
        ({"config": {"early": 0}, "heuristic": {"early": 1}}, "changed", "config"),
        ({"grids": ["8"]}, "changed", "grids"),
        ({"launches": []}, "changed", "the number of launches"),
        ({"launches": [["k<f32>", ["'x'", "4"], {"grid": ["4"]}, ["abc", "_k"]]]}, "changed", "arguments"),
        ({"launches": [["k<f32>", ["'x'", "3"], {"grid": ["5"]}, ["abc", "_k"]]]}, "changed", "the launch"),
        ({"launches": [["k<f32>", ["'x'", "3"], {"grid": ["4"]}, ["abd", "_k"]]]}, "changed", "machine code"),
        ({"why": "it does not compile"}, "unknown", "it does not compile"),
    ],
)
def test_only_what_is_all_the_same_is_the_same(now: dict[str, object], answer: str, why: str) -> None:
    found = restamp.verdict(said(), said(**now))
    assert found[0] == answer and why in found[1]


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A repository with the package's core, one op and one CUDA C++ kernel of it."""
    root = tmp_path / "house"
    package = settings.PACKAGE
    for part in KEPT:
        copy = shutil.copytree if (package / part).is_dir() else shutil.copy2
        (root / "rooftop" / part).parent.mkdir(parents=True, exist_ok=True)
        copy(package / part, root / "rooftop" / part, **({"ignore": shutil.ignore_patterns("__pycache__")} if copy is shutil.copytree else {}))
    for path in [*(package / "ops").glob("_*.py"), package / "ops" / "gelu.py", package / KERNEL, (package / KERNEL).with_suffix(".py")]:
        if path.is_file():
            target = root / "rooftop" / path.relative_to(package)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    (root / "rooftop" / "ladders").mkdir()
    shutil.copy2(settings.CHECKOUT / "pyproject.toml", root / "pyproject.toml")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "a house")
    return root


def git(root: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True)


def records_of(house: Path, folder: Path, cases: tuple[str, ...]) -> Path:
    """A check record on an H100 for each case, with the digest of the house as it is."""
    device = {"name": "NVIDIA H100 80GB HBM3", "arch": 90, "sms": 132}
    listed = [["gelu__cuda_sm80", case, ["NVIDIA H100 80GB HBM3", 90, 132, 232448, 52428800], None] for case in cases]
    facts = restamp.Trees(house, house).ask(house, {"what": "facts", "rows": listed})
    assert not any("why" in one for one in facts), facts
    rows = [
        {"kind": "check", "op": "gelu", "subject": "gelu__cuda_sm80", "case": case, "backend": backend, "digest": one["digest"], "device": device,
         "at": "2026-01-01T00:00:00+00:00", "run": "1", "error": {"ok": True}}
        for case, one in zip(cases, facts, strict=True) for backend in ("gpu", "simt")
    ]  # fmt: skip
    path = folder / "h100" / "1.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


def edit(house: Path, old: str, new: str) -> None:
    path = house / "rooftop" / KERNEL
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def sweep() -> dict[str, object]:
    """Of six points of two kernels, the second of which was named too."""
    return {
        "dtypes": ["f32"], "dtype": [0] * 6, "sizes": {"columns": [8, 16, 24, 32, 40, 48]}, "us": [1.0, 2.0, None, 4.0, 5.0, 6.0], "by": [0, 0, 0, 0, 0, 1],
        "implementations": ["one", "two"], "named": ["two"], "peers": {"two": [1.5] * 6}, "digests": {"one": "old", "two": "old"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changed", "us", "named", "digest"),
    [
        ("one", [], [1.0, 2.0, None, 4.0, 5.0, 6.0], [1.5] * 6, "new"),
        ("one", [1], [1.0, 2.0, None, 4.0, 5.0, 6.0], [1.5] * 6, "old"),
        ("two", [5], [1.0, 2.0, None, 4.0, 5.0, None], [1.5] * 5 + [None], "new"),
        ("two", [3, 4], [1.0, 2.0, None, 4.0, 5.0, 6.0], [1.5] * 6, "old"),
    ],
)
def test_a_sweep_loses_the_few_points_at_which_a_kernel_runs_otherwise(
    name: str, changed: list[int], us: list[float | None], named: list[float | None], digest: str
) -> None:
    r, result = sweep(), restamp.Restamped()
    listed = restamp._points(r, name, ("card",))
    assert list(listed) == ([0, 1, 3, 4] if name == "one" else [0, 1, 2, 3, 4, 5])
    facts = {row: (said(kernel="old"), said(kernel="new", **({"heuristic": {"threads": 64}} if i in changed else {}))) for i, row in listed.items()}
    restamp._stamp_sweep(r, name, listed, facts, set(), result)
    assert (r["us"], r["peers"]["two"], r["digests"][name]) == (us, named, digest)  # type: ignore[index]
    assert result.restamped == ({name: 1} if digest == "new" else {}) and result.changed == ({name: len(changed)} if changed else {})
    restamp._stamp_sweep(r, name, listed, facts, set(), result)
    assert len(result.restamped) == (digest == "new"), "what is of another revision, or of this one, stays"


@pytest.mark.sampled("slow")
def test_a_renamed_variable_keeps_the_records_and_another_instruction_does_not(house: Path, tmp_path: Path) -> None:
    path = records_of(house, tmp_path / "results", ("odd f32", "odd bf16"))
    before = {(r["case"], r["backend"]): r["digest"] for r in store.read(tmp_path / "results")}
    assert restamp.restamp(tmp_path / "results", "HEAD", root=house).restamped == {}, "nothing has changed"
    edit(house, "whole", "vectorised")
    whole = path.read_bytes()
    dry = restamp.restamp(tmp_path / "results", "HEAD", root=house, dry=True)
    assert dry.restamped == {"gelu__cuda_sm80": 2} and path.read_bytes() == whole
    done = restamp.restamp(tmp_path / "results", "HEAD", root=house)
    assert done == dry and not done.changed and not done.unknown
    after = {(r["case"], r["backend"]): r["digest"] for r in store.read(tmp_path / "results")}
    assert {k for k in before if before[k] != after[k]} == {("odd f32", "gpu"), ("odd bf16", "gpu")}, "a check without a GPU is made again"
    assert restamp.restamp(tmp_path / "results", "HEAD", root=house).restamped == {}, "they are of the tree now"
    git(house, "commit", "-qam", "another name")
    edit(house, "P::store(y + i, true,", "P::store(y + i, false,")
    done = restamp.restamp(tmp_path / "results", "HEAD", root=house)
    assert not done.restamped and done.changed == {"gelu__cuda_sm80": 2} and "machine code" in done.why["gelu__cuda_sm80"]
    edit(house, "gdc_wait();", "no C++;")
    done = restamp.restamp(tmp_path / "results", "HEAD", root=house)
    assert not done.restamped and done.unknown == {"gelu__cuda_sm80": 2} and "now: CompileError" in done.why["gelu__cuda_sm80"]
    assert {(r["case"], r["backend"]): r["digest"] for r in store.read(tmp_path / "results")} == after


@pytest.mark.sampled("slow")
def test_ceilings_are_kept_by_the_machine_code_of_the_kernels_that_measure_them(house: Path, tmp_path: Path) -> None:
    old, _ = restamp.Trees(house, house).ceilings(["sm_90a"])
    recorded = next(r for r in store.read(settings.CHECKOUT / "results" / "h200") if r["kind"] == "ceiling")
    digests = {"memory": old["memory"]["digest"], "l2": "of another revision"}
    rows = [{**recorded, "subject": part, "digest": digest} for part, digest in digests.items()]
    path = tmp_path / "results" / "h100" / "1.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    ceilings = Path("lab/timing/memory_ceilings.cu")
    (house / "rooftop" / ceilings).write_text((house / "rooftop" / ceilings).read_text().replace("never", "unlikely"))
    done = restamp.restamp(tmp_path / "results", "HEAD", root=house)
    assert done.restamped == {"memory": 1}
    now = {r["subject"]: r["digest"] for r in store.read(tmp_path / "results")}
    assert now["memory"] not in (old["memory"]["digest"], "of another revision") and now["l2"] == "of another revision"
    git(house, "commit", "-qam", "another name")
    (house / "rooftop" / ceilings).write_text((house / "rooftop" / ceilings).read_text().replace("gdc_wait();", ""))
    done = restamp.restamp(tmp_path / "results", "HEAD", root=house)
    assert not done.restamped and done.changed == {"memory": 1} and "machine code" in done.why["memory"]


def test_an_unknown_revision_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="git archive nowhere"):
        restamp.restamp(tmp_path, "nowhere", root=tmp_path)
