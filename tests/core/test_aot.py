"""Kernels whose compiler is an extra: what is kept and found again, what is said where the compiler is absent, too old or at fault. None of it needs one."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _backend_house import AHEAD, HOUSE, kernel, subject
from _support import command, flat

from rooftop.core import cubins, launch, parameters, registry, settings
from rooftop.core.backends import aot as backends
from rooftop.core.backends.aot import AotImplementation
from rooftop.core.backends.cutile import array, steps
from rooftop.core.backends.python_files import texts_of_function
from rooftop.core.backends.table import BACKENDS
from rooftop.core.call import select
from rooftop.core.child import ChildError, Process
from rooftop.core.compile import CompileError, compile_cuda
from rooftop.core.cubins import AbsentCompiler, Cubin
from rooftop.core.head_parts import HeadError
from rooftop.core.spec import TARGETS, Device, Launch, Meta, Problem, View
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.inspect import inspector

NEW, OLD = "cuda-tile 1.7.0, nvidia-cuda-tileiras 13.4.92", "cuda-tile 1.7.0, nvidia-cuda-tileiras 13.2.86"
CUBIN = Cubin(b"\x7fELF and\nmore", "mmt", NEW, 1.5, {"threads": 128})
LANGUAGES = [name for name, b in BACKENDS.items() if issubclass(b.implementation, AotImplementation)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """As if a compiler of some version were installed, or none; `child`: the module that is run as one."""

    def pretend(versions: str, child: str = "tests._fake_compiler") -> None:
        monkeypatch.setattr(backends, "found", lambda package: bool(versions))
        monkeypatch.setattr(cubins, "versions", lambda packages: versions)
        monkeypatch.setattr(backends, "_PROCESSES", {})
        monkeypatch.setattr(backends, "_IMPORTED", {})
        for name in LANGUAGES:
            monkeypatch.setattr(BACKENDS[name].implementation, "child", child)

    return pretend


def mmt(name: str = "cutile_sm90", case: str = "tiles bf16") -> tuple[AotImplementation, Problem, Launch]:
    found = subject(name)
    assert isinstance(found.implementation, AotImplementation)
    _, problem = found.kernel_problem(found.op.case(case), TARGETS["h200"])
    (one,) = found.implementation.launches(problem, found.implementation.choose(problem))
    return found.implementation, problem, one


def cubin(name: str = "cutile_sm90", case: str = "tiles bf16") -> Cubin:
    implementation, problem, one = mmt(name, case)
    return implementation.cubin(one, dict(problem.tensors), problem)


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_a_cubin_is_kept_whole_and_told_by_its_compiler() -> None:
    cubins.write("cutile", "ab12", CUBIN)
    for compiler in (NEW, ""):  # no compiler here: whoever made it
        found = cubins.read("cutile", "ab12", compiler)
        assert found is not None and found.cached
        assert (found.code, found.symbol, found.compiler, found.seconds, found.facts) == (b"\x7fELF and\nmore", "mmt", NEW, 1.5, {"threads": 128})
    assert cubins.read("cutile", "ab12", OLD) is None, "of another compiler: made anew"
    assert cubins.read("cutile", "cd34", "") is None


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[20:], lambda b: b"", lambda b: b"[]\n" + b, lambda b: b.replace(b"more", b"less")])
def test_a_damaged_cubin_is_none(damage: Callable[[bytes], bytes]) -> None:
    cubins.write("cutile", "ab12", CUBIN)
    path = cubins.folder_of("cutile", "ab12").with_suffix(".cubin")
    path.write_bytes(damage(path.read_bytes()))
    assert cubins.read("cutile", "ab12", "") is None


def test_a_cache_that_cannot_be_written_is_no_error(cache: Path) -> None:
    cache.write_text("a file")
    cubins.write("cutile", "ab12", CUBIN)
    with cubins.alone("cutile", "ab12"):
        assert cubins.read("cutile", "ab12", "") is None


def test_what_cannot_take_its_place_leaves_nothing_behind() -> None:
    path = cubins.folder_of("cutile", "ab12").with_suffix(".cubin")
    path.mkdir(parents=True)
    cubins.write("cutile", "ab12", CUBIN)
    assert cubins.read("cutile", "ab12", "") is None and list(path.parent.iterdir()) == [path]


def test_a_file_that_was_edited_is_compiled_as_it_is_now(compiler: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that compiles imports a file once."""
    compiler(NEW)
    monkeypatch.setenv("TEXTS", "1")
    path = tmp_path / "mmt__mine__cutile_sm90.py"
    text = kernel("cutile_sm90").path.read_text(encoding="utf-8")
    for now in (text, text.replace("ct.mma(left, right, sums)", "ct.mma(left, right, sums) * 2"), text):
        path.write_text(now, encoding="utf-8")
        made = BACKENDS["cutile"].implementation(path, "mmt", arch=90)
        assert isinstance(made, AotImplementation)
        _, problem, _ = mmt()
        (one,) = made.launches(problem, made.choose(problem))
        assert made.cubin(one, dict(problem.tensors), problem).code.decode() == now


def test_the_process_ends_of_itself_and_so_removes_its_files(compiler: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(NEW)
    monkeypatch.setenv("ENDED", str(tmp_path / "ended"))
    cubin()
    for process in backends._PROCESSES.values():
        process.close()
    assert (tmp_path / "ended").read_text() == "of itself"


def test_what_was_compiled_once_is_read_where_no_compiler_is(compiler: Callable[..., None]) -> None:
    compiler(NEW)
    made = cubin()
    assert (made.code, made.compiler, made.cached) == (b"a cubin", NEW, False) and cubin().cached
    compiler("")
    assert cubin().code == b"a cubin" and cubin().cached
    assert cubin(case="tile bf16").cached, "its extents are multiples of 16 bytes too: one cubin serves both"
    with pytest.raises(AbsentCompiler):
        cubin(case="odd bf16")
    compiler("cuda-tile 1.8.0, nvidia-cuda-tileiras 13.5.0")
    assert not cubin().cached


def test_a_carried_cubin_is_inspected_without_its_compiler(compiler: Callable[..., None]) -> None:
    """Any machine code of the right parameters will do: here NVRTC's."""
    compiler("")
    implementation, problem, one = mmt()
    whole = ", ".join(f"void* {n}, int {n}0, int {n}1, int {n}2, int {n}3" for n in "abc")
    made = compile_cuda(f'extern "C" __global__ void mmt({whole}) {{}}', name="mine.cu", target="sm_90a", kernels=["mmt"])
    name = implementation._key(one, "sm_90a", implementation.job(one, dict(problem.tensors), problem))
    cubins.write("cutile", name, Cubin(made.cubin, made.names["mmt"], NEW, 1.0, {}))
    facts = implementation.machine_code(problem, one, {})
    assert facts.cubin == made.cubin and facts.blocks == 6 and facts.cluster == 1
    assert "EXIT" in inspector.text(subject("cutile_sm90"), subject("cutile_sm90").op.case("tiles bf16"), "h200", "sass")


def test_two_processes_compile_a_cubin_once(compiler: Callable[..., None], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(NEW)
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    implementation, problem, one = mmt()
    other = [Process(Path(sys.executable), implementation.child, {}, what="another") for _ in range(2)]

    def make(process: Process) -> None:
        tensors = dict(problem.tensors)
        name = implementation._key(one, "sm_90a", implementation.job(one, tensors, problem))
        with cubins.alone("cutile", name):
            if cubins.read("cutile", name, NEW) is None:
                process.ask({"what": "compilation", "kernel": "mmt", "target": "sm_90a", **implementation.job(one, tensors, problem)})
                cubins.write("cutile", name, CUBIN)

    threads = [threading.Thread(target=make, args=(p,)) for p in other]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for p in other:
        p.end()
    assert (tmp_path / "runs").read_text() == "mmt for sm_90a\n"
    assert cubin().code == CUBIN.code


# -- what is said ----------------------------------------------------------------------------------------------------


def test_an_absent_compiler_is_named_with_its_extra_in_one_line(compiler: Callable[..., None], cache: Path) -> None:
    compiler("")
    with pytest.raises(AbsentCompiler) as error:
        cubin()
    assert str(error.value) == (
        f"mmt__cutile_sm90: no cubin for sm_90 is kept for this input in {cache / 'cutile'}, and package cuda.tile is not installed "
        "(pip install '.[cutile]' in rooftop's checkout)"
    )


def test_a_compiler_too_old_for_hopper_says_what_to_install(compiler: Callable[..., None]) -> None:
    compiler(OLD)
    said = r"tileiras 13\.2 compiles nothing for Hopper \(sm_90a\); pip install '\.\[cutile\]' in rooftop's checkout brings 13\.3 or later$"
    with pytest.raises(AbsentCompiler, match=said):
        cubin()


@pytest.mark.parametrize(
    ("name", "version", "says"),
    [
        ("cute_sm90", "nvidia-cutlass-dsl 4.2.1", r"dsl 4\.2\.1 is too old; pip install '\.\[cute\]' in rooftop's checkout brings 4\.3\.5 or later$"),
        ("cutile_sm90", "cuda-tile 1.6.2", r"cuda-tile 1\.6 is too old; pip install '\.\[cutile\]' in rooftop's checkout brings 1\.7 or later$"),
    ],
)
def test_a_language_too_old_says_what_to_install(compiler: Callable[..., None], name: str, version: str, says: str) -> None:
    compiler(version)
    with pytest.raises(AbsentCompiler, match=says):
        cubin(name)


def test_a_folder_of_the_name_is_not_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the working folder holds a clone of CUTLASS."""
    monkeypatch.setattr(backends, "found", lambda package: True)
    monkeypatch.setattr(cubins, "versions", lambda packages: "")
    assert kernel("cute_sm90").builds() == "package cutlass is not installed (pip install '.[cute]' in rooftop's checkout)"


def test_commands_end_in_one_line_where_the_compiler_is_absent(
    compiler: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler("")
    says = "package cutlass is not installed (pip install '.[cute]' in rooftop's checkout)"
    assert command(monkeypatch, "inspect", "softmax__cute_sm90", "--arch", "90") == 3 and says in flat(capsys.readouterr().out)
    assert command(monkeypatch, "inspect", "softmax__cute_sm90", "--arch", "90", "--sass") == 3
    assert capsys.readouterr().err.splitlines()[0].endswith(says)
    assert command(monkeypatch, "inspect", "softmax__cute_sm90", "--arch", "80") == 0, "refused by the kernel, not for want of a compiler"
    capsys.readouterr()
    assert command(monkeypatch, "warm", "softmax", "--kernel", "softmax__cute_sm90", "--columns", "8192", "--card", "h200") == 1
    assert flat(capsys.readouterr().out).count(says) == 1
    assert command(monkeypatch, "warm", "softmax", "--kernel", "softmax__cute_sm90", "--columns", "8192", "--card", "rtx4090") == 1
    assert "takes no call with 8192 columns on NVIDIA GeForce RTX 4090" in capsys.readouterr().err


def test_what_the_compiler_refuses_is_its_words_in_one_line(compiler: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(NEW)
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(CompileError, match=r"mmt does not compile for sm_90a \(cuda-tile 1\.7\.0.*\): TileError: ct\.mma takes no tiles of words$"):
        cubin()


def test_a_compiler_that_ends_is_an_error_that_says_so(compiler: Callable[..., None]) -> None:
    compiler(NEW, child="tests._no_such_module")
    with pytest.raises(CompileError, match=r"the process of cuTile ended: .*No module named tests\._no_such_module"):
        cubin()


def test_a_compiler_that_is_killed_is_not_said_to_have_refused(compiler: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(NEW)
    monkeypatch.setenv("KILLED", "1")
    with pytest.raises(CompileError, match=r"the process of cuTile was killed \(SIGKILL: .*\); run it again$"):
        cubin()
    monkeypatch.delenv("KILLED")
    assert cubin().code == b"a cubin", "another takes its place"


def test_words_about_an_earlier_job_are_not_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRUMBLES", "1")
    process = Process(Path(sys.executable), "tests._fake_compiler", {}, what="cuTile")
    for function, says in (("a", "takes no tiles of words"), ("b", "ended with exit code 3: it said nothing$"), ("b", "takes no tiles of words")):
        with pytest.raises(ChildError, match=says):
            process.ask({"what": "compilation", "function": function})
    process.close()


def test_a_cubin_that_the_driver_does_not_load_says_whose_it_is(compiler: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    compiler("")
    implementation, problem, one = mmt()
    name = implementation._key(one, "sm_90a", implementation.job(one, dict(problem.tensors), problem))
    cubins.write("cutile", name, Cubin(b"\x7fELF .nv.host", "mmt", NEW, 1.0, {}))

    def refuse(binary: Any) -> Any:
        raise launch.LaunchError("loading code for sm_90a: the driver answers CUDA_ERROR_UNSUPPORTED_PTX_VERSION")

    monkeypatch.setattr(launch, "Module", refuse)
    with pytest.raises(launch.LaunchError, match=r"UNSUPPORTED_PTX_VERSION; the cubin is of cuda-tile 1\.7\.0, .*13\.4\.92: .* update the driver$"):
        implementation.prepare(problem, [one], ["a", "b", "c"], 0)


def test_an_older_card_is_refused_before_the_compiler_is_asked() -> None:
    _, problem, _ = mmt()
    old = Device("NVIDIA A100", 80, 108, 163 << 10, 40 << 20)
    assert kernel("cutile_sm90").supports(problem.on(old)) == "needs sm_90 or later; NVIDIA A100 is sm_80"


def test_check_skips_with_the_reason_without_a_gpu_and_without_a_cubin(compiler: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    found = subject("cutile_sm90")
    result = checker.check(found, found.op.case("tile bf16"), backend="cpu")
    assert (result.status, result.message) == ("skipped", "cuTile kernels run on a GPU only")
    compiler("")
    monkeypatch.setattr(checker, "backend_of", lambda subject, wanted: ("torch", None))  # where a GPU stands in for
    result = checker.check(found, found.op.case("tile bf16"), backend="cpu")
    assert result.status == "skipped" and "is not installed (pip install '.[cutile]' in rooftop's checkout)" in result.message


def test_such_kernels_are_taken_by_name_alone() -> None:
    found, problem = subject("cutile_sm90"), mmt()[1]
    op = registry.op("softmax")
    case = op.problem(op.case("odd 3x7 f32"), TARGETS["h200"])
    choice = select(op, case)
    assert choice.call is not None and choice.call.implementation.backend not in LANGUAGES
    named = select(op, case, "softmax__cutile_sm90").call
    assert named is not None and named.implementation.name == "softmax__cutile_sm90"
    assert found.implementation is not None and found.implementation.supports(problem) is None


def test_the_base_package_imports_neither_language() -> None:
    code = (
        "import sys\nfrom rooftop.core import registry\nfrom rooftop.core.spec import TARGETS\n"
        "for name in ('softmax__cutile_sm90', 'softmax__cute_sm90', 'matmul__cute_sm90', 'attention__cutile_sm90'):\n"
        "    i = registry.implementation(name); op = registry.op(i.op)\n"
        "    from rooftop.core.call import problem_for_kernels\n"
        "    for c in op.cases[:40]:\n"
        "        p = problem_for_kernels(op, op.problem(c, TARGETS['h200']))[0]\n"
        "        if i.supports(p) is None:\n"
        "            i.job(i.launches(p, i.choose(p))[0], dict(p.tensors), p)\n"
        "print([m for m in ('cuda.tile', 'cutlass') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=settings.CHECKOUT)
    assert done.stdout == "[]\n", done.stderr


# -- what a cubin relies on --------------------------------------------------------------------------------------------


def test_of_an_array_alignment_counts_and_not_shapes() -> None:
    one = array(Meta((128, 64), "bf16"))
    assert one == array(Meta((4096, 8192), "bf16")) and (one["ones"], one["strides"], one["extents"]) == ([False, True], [8, 1], [8, 8])
    assert array(Meta((128, 65), "bf16"))["extents"] == [8, 1] and array(Meta((128, 65), "bf16"))["strides"] == [1, 1]
    assert array(Meta((128, 64), "bf16", align=2))["align"] == 2
    assert array(Meta((70000, 32768), "bf16"))["wide"] and not one["wide"]
    assert array(Meta((6, 64), "f32", (0, 1)))["overlaps"] and not one["overlaps"]


def test_the_stride_of_a_single_element_hides_nothing() -> None:
    assert steps(Meta((1, 128, 64), "bf16", (1, 64, 1))) == (8192, 64, 1)
    assert steps(Meta((128, 1), "bf16", (7, 5))) == (7, 1)
    assert array(Meta((1, 33), "bf16", (64, 1)))["strides"] == [1, 1], "TMA would store 40 elements"
    assert steps(Meta((1, 1), "bf16")) == (1, 1)
    assert array(Meta((1, 128, 64), "bf16", (3, 64, 1))) == array(Meta((1, 128, 64), "bf16"))


def test_a_launch_hands_over_addresses_extents_and_strides() -> None:
    implementation, problem, one = mmt()
    ready = implementation.ready(one, CUBIN, dict(problem.tensors), problem)
    assert ready.types == ("ptr", "i32", "i32", "i32", "i32") * 3
    assert list(ready.args.values())[:5] == ["a", 128, 256, 256, 1]
    assert implementation.job(one, dict(problem.tensors), problem)["parameters"][3] == {"constant": 64}
    view = Launch(one.kernel, one.grid, {**one.args, "b": View("b", (256, 192), (1, 256))})
    assert list(implementation.ready(view, CUBIN, dict(problem.tensors), problem).args.values())[5:10] == ["b", 256, 192, 1, 256]


def test_a_launch_that_does_not_fit_its_kernel_is_an_error() -> None:
    implementation, problem, one = mmt()
    for args, options, says in (
        ({"a": "a", "b": "b"}, {}, "mmt takes a, b, c, TILE; the launch gives a, b"),
        ({**one.args, "c": "d"}, {}, "mmt: c is 'd', which names no tensor here"),
        (one.args, {"warps": 4}, "mmt: options are warps; a launch of cuTile takes num_ctas, occupancy, opt_level, num_worker_warps"),
        ({**one.args, "c": View("c", (1, 1), (1, 1), 4)}, {}, "a view of c begins at element 4; an array begins where its tensor does"),
    ):
        with pytest.raises(TypeError, match=says):
            implementation.job(Launch(one.kernel, one.grid, args, options=options), dict(problem.tensors), problem)


def test_what_a_file_does_wrong_is_said_with_the_file(tmp_path: Path) -> None:
    implementation, problem, one = mmt()
    for launched, says in (
        (Launch(one.kernel, one.grid, {}), r"mmt__cutile_sm90\.py: mmt takes a, b, c, TILE; the launch gives $"),
        (Launch("mmt", one.grid, one.args), r"mmt__cutile_sm90\.py: a launch is of 'mmt'; it must be of a function of this file"),
        (Launch(one.kernel, one.grid, {**one.args, "TILE": {1}}), r"mmt__cutile_sm90\.py: the constant TILE is \{1\}; it must be a number, a text, "),
    ):
        with pytest.raises(HeadError, match=says):
            implementation.cubin(launched, dict(problem.tensors), problem)
        with pytest.raises(HeadError, match=says):
            implementation.variant(launched, dict(problem.tensors), problem)
    text = implementation.path.read_text(encoding="utf-8")
    for at, (old, new, says) in enumerate((
        ("def mmt(", "@ct.kernel\ndef mmt(", r"cutile_sm90\.py:13: ct\.kernel: cuda\.tile is there only while a kernel is compiled"),
        ("p[\"c\"].shape)", "p[\"c\"].shapes)", r"cutile_sm90\.py:\d+: 'Meta' object has no attribute 'shapes'"),
    )):
        path = tmp_path / f"mmt__mine{at}__cutile_sm90.py"
        path.write_text(text.replace(old, new), encoding="utf-8")
        mine = BACKENDS["cutile"].implementation(path, "mmt", arch=90)
        with pytest.raises(HeadError, match=says):
            mine.launches(problem, mine.choose(problem))


def test_cute_says_what_its_files_must_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    implementation, _, one = mmt("cute_sm90")
    monkeypatch.setattr(parameters, "check", lambda *all: None)
    monkeypatch.setattr(parameters, "block_threads", lambda code, symbol: 128)
    implementation.verify(one, CUBIN)
    with pytest.raises(HeadError, match=r"mmt__cute_sm90\.py: the blocks of its kernel must have 128 threads; Launch\.block gives them 64"):
        implementation.verify(Launch(one.kernel, one.grid, one.args, block=(64,)), CUBIN)
    path = tmp_path / "mmt__mine__cute_sm90.py"
    text = implementation.path.read_text(encoding="utf-8")
    path.write_text(text.replace("from dataclasses", "from __future__ import annotations\n\nfrom dataclasses", 1), encoding="utf-8")
    mine = Subject("mine", registry.op("mmt", HOUSE), BACKENDS["cute"].implementation(path, "mmt", arch=90))
    with pytest.raises(HeadError, match="the annotations of mmt are texts: a file of CuTe DSL says no `from __future__ import annotations`"):
        inspector.text(mine, mine.op.case("tiles bf16"), "h200", "sass")


def test_the_text_of_a_function_is_what_it_reaches() -> None:
    text = "A = 1\nB = 2\n\n\ndef f(x):\n    return g(x) + A  # why\n\n\ndef g(x):\n    '''What.'''\n    return x\n\n\ndef choose(p):\n    return f(B)\n"
    assert texts_of_function(text, "f") == ["A = 1", "def f(x):\n    return g(x) + A", "def g(x):\n    return x"]
    assert texts_of_function(text, "g") == texts_of_function(text.replace("A = 1", "A = 3"), "g")
    assert texts_of_function(text, "f") != texts_of_function(text.replace("A = 1", "A = 3"), "f")


@pytest.mark.parametrize(
    "more", ["A = A + 1", "A += 1", "if A > 0:\n    A = 2", "for A in range(2):\n    pass", "A.x = 2", "if 1:\n    def A():\n        return 2"]
)
def test_whatever_gives_a_name_its_value_counts(more: str) -> None:
    text = f"A = 1\n{more}\n\n\n@A\ndef f(x):\n    return A\n"
    assert texts_of_function(text, "f")[:3] == ["A = 1", *texts_of_function(text, "f")[1:2], "@A\ndef f(x):\n    return A"]
    for old, new in (("A = 1", "A = 3"), (more, more.replace("1", "4").replace("2", "5")), ("@A\n", "")):
        assert texts_of_function(text, "f") != texts_of_function(text.replace(old, new), "f")


def test_facts_of_another_compiler_are_not_those_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    inspector.tools.cache_clear()
    before = inspector.tools()
    real = inspector.metadata.version
    for package in ("cuda-tile", "nvidia-cuda-tileiras", "nvidia-cutlass-dsl"):
        inspector.tools.cache_clear()
        monkeypatch.setattr(inspector.metadata, "version", lambda name, other=package: "99" if name == other else real(name))
        assert inspector.tools() != before
    monkeypatch.setattr(inspector.metadata, "version", real)
    inspector.tools.cache_clear()


@pytest.mark.parametrize("name", AHEAD)
def test_with_the_compiler_it_holds_what_it_must(name: str) -> None:
    found = subject(name)
    assert found.implementation is not None
    if reason := found.implementation.builds():
        pytest.skip(reason)
    facts = inspector.facts_of(found, found.op.case("tiles bf16"), "h200")
    assert [k["unmet"] for k in facts["kernels"]] == [[]] and facts["kernels"][0]["threads"] % 128 == 0
    assert HOUSE.kernels in found.implementation.path.parents
