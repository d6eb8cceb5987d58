"""Files of one's own are judged in a process of their own: what their Python does to it is a finding, never the end of the judgement."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import pytest
from _support import command, flat

from rooftop.core import settings
from rooftop.core.child import ChildError, Process
from rooftop.core.forms import FormError, formed
from rooftop.lab import candidates
from rooftop.lab.check import checker
from rooftop.lab.check.apart import Own
from rooftop.lab.check.result import Result
from rooftop.lab.check.selection import Choice
from rooftop.lab.cli.elsewhere import programs

KERNEL = """
import os, sys, time
{load}
class Odd(BaseException):
    pass
def supports(p):
    {supports}
def run(inputs, outputs, scratch, config):
    {run}
    outputs["y"].copy_(inputs["x"] * inputs["x"])
"""
ONE = Choice("auto", 3, case="one element f32")


def own(folder: Path, run: str) -> list[Result]:
    path = folder / "square__mine__torch.py"
    path.write_text(KERNEL.format(load="", supports="return None", run=run), encoding="utf-8")
    file = Own(str(path), ONE)
    try:
        return [r for r, _ in file.results()]
    finally:
        file.end()


@pytest.mark.parametrize("module", ["rooftop.core.compile_child", "rooftop.lab.check.apart_child"])
def test_no_file_in_the_present_folder_is_a_module_of_pythons(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "typing", "base64", "contextlib", "numpy", "rooftop"):
        (tmp_path / f"{name}.py").write_text(f"open('made', 'a').write('{name} ')\nraise SystemExit(0)\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    process = Process(Path(sys.executable), module, {}, what="it")
    try:
        with pytest.raises(ChildError, match="it ended: KeyError: 'source'") if "compile" in module else contextlib.nullcontext():
            assert "index" in process.ask({"what": "nothing", "number": 0})["raised"]["text"]
    finally:
        process.end()
    assert not (tmp_path / "made").exists()


@pytest.mark.sampled("slow")
def test_modules_beside_a_file_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("factor = 1\n", encoding="utf-8")
    assert [r.status for r in own(tmp_path, "import beside; inputs['x'] * beside.factor")] == ["ok"]


@pytest.mark.sampled("slow")
@pytest.mark.parametrize(
    ("load", "run", "says"),
    [("sys.exit(0)", "pass", "it ends the process: SystemExit: 0"), ("os._exit(0)", "pass", "ended with exit code 0: it said nothing"),
     ("class E(BaseException): pass\nraise E('out')", "pass", "E: out"), ("os.abort()", "pass", "ended by SIGABRT"),
     ("os.execv('/bin/true', ['true'])", "pass", "ended with exit code 0"), ("", "os._exit(0)", "ended with exit code 0"),
     ("", "sys.exit(0)", "it ends the process: SystemExit: 0")],
)
def test_how_its_python_ends_the_process_is_a_finding(
    load: str, run: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "square__mine__torch.py"
    path.write_text(KERNEL.format(load=load, supports="return None", run=run), encoding="utf-8")
    assert command(monkeypatch, "check", str(path), "--case", "one element f32", "--json") == 1
    said = capsys.readouterr()
    (result,) = json.loads(said.out)["results"]
    assert result["status"] == "error" and says in result["message"], result
    assert "it runs in a process of its own" in flat(said.err)


@pytest.mark.parametrize(
    ("where", "what", "says"),
    [("run", "sys.exit(0)", "it ends the process: SystemExit: 0"), ("run", "raise Odd('out')", "Odd: out"),
     ("supports", "sys.exit(0)", "it ends the process: SystemExit: 0"), ("supports", "return 3", "returns 3; it must return None, or the reason as a text"),
     ("supports", "return False", "returns False"), ("supports", "raise Odd('out')", "Odd: out"), ("load", "sys.exit(0)", "SystemExit: 0")],
)
def test_what_its_functions_do_is_a_finding(where: str, what: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "square__mine__torch.py"
    path.write_text(KERNEL.format(**{"load": "", "supports": "return None", "run": "pass", where: what}), encoding="utf-8")
    subject = candidates.find([str(path)])[0]
    result = checker.check(subject, subject.op.case("one element f32"))
    assert result.status == "error" and says in result.message, result


@pytest.mark.sampled("slow")
def test_the_python_beside_a_kernel_runs_in_the_other_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head = 'op = "square"\ndtypes = ["f32"]\npython = ["supports"]\nargs = ["x: T[M, N]", "y: T[M, N]"]\n[[launch]]\nkernel = "k"\ngrid = [1]\nblock = [1]'
    path = tmp_path / "mine.cu"
    path.write_text(f"/* rooftop\n{head}\n*/\n__global__ void k(const float* x, float* y) {{ y[0] = x[0] * x[0]; }}\n", encoding="utf-8")
    (tmp_path / "mine.py").write_text(
        f"import os\nfrom pathlib import Path\nPath({str(tmp_path / 'who')!r}).write_text(str(os.getpid()))\ndef supports(p, head):\n    return 'nothing'\n"
    )
    assert command(monkeypatch, "check", str(path), "--case", "one element f32", "--json") == 1
    said = capsys.readouterr()
    assert [r["message"] for r in json.loads(said.out)["results"]] == ["nothing"]
    assert (tmp_path / "who").read_text(encoding="utf-8") != str(os.getpid()) and f"{path}: Python, which may do all that you may" in flat(said.err)


@pytest.mark.sampled("slow")
@pytest.mark.parametrize(("text", "code"), [("import sys\nsys.exit(0)\n", 1), ("import os\nos._exit(0)\n", 1), ("def scale(x):\n    raise SystemExit(0)\n", 1)])
def test_a_reference_is_python_too(text: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    head = 'args = ["N: i32", "x: f32[N]", "y: f32[N]"]\n[[launch]]\nkernel = "k"\ngrid = [1]\nblock = [1]'
    (tmp_path / "k.cu").write_text(f"/* rooftop\n{head}\n*/\n__global__ void k(int n, const float* x, float* y) {{ y[0] = x[0]; }}\n", encoding="utf-8")
    (tmp_path / "ref.py").write_text(text, encoding="utf-8")
    assert command(monkeypatch, "check", str(tmp_path / "k.cu"), "--reference", f"{tmp_path}/ref.py:scale", "--shape", "N=1") == code
    assert "exit" in (said := capsys.readouterr()).out.lower() + said.err.lower()


@pytest.mark.sampled("slow")
@pytest.mark.parametrize(
    ("words", "load", "says"),
    [("inspect", "sys.exit(0)", "ends the process: SystemExit: 0"), ("diagnose", "os._exit(0)", "ended with exit code 0: it said nothing"),
     ("diagnose", "class E(BaseException): pass\nraise E('out')", "square__mine__torch.py: E: out"),
     ("inspect", "os.abort()", "ended by SIGABRT"),
     ("inspect", "1 / 0", "square__mine__torch.py: ZeroDivisionError: division by zero"),
     ("diagnose", "os.execv('/bin/true', ['true'])", "ended with exit code 0"),
     ("inspect", "os.write(1, b'{\"code\": 0}\\n'); os._exit(0)", "ended with exit code 0")],
)
def test_no_command_ends_as_a_files_python_says(
    words: str, load: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "square__mine__torch.py"
    path.write_text(KERNEL.format(load=load, supports="return None", run="pass"), encoding="utf-8")
    name, *more = words.split()
    assert command(monkeypatch, name, str(path), *more) == 1
    said = flat(capsys.readouterr().err)
    assert says in said and f"{path}: Python, which may do all that you may; it runs in a process of its own" in said


TRITON = """
import triton, triton.language as tl
from rooftop.core.spec import Launch
print("loaded \\x1b[31m in " + __name__)
@triton.jit
def squared(x, y, N, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    {body}
    v = tl.load(x + i, mask=i < N)
    tl.store(y + i, v * v, mask=i < N)
def supports(p):
    return None
def choose(p):
    return {{"B": 128}}
def launches(p, config):
    return [Launch(kernel=squared, grid=(-(-p["x"].numel // 128),), args={{"x": "x", "y": "y", "N": p["x"].numel, "B": config["B"]}})]
"""


@pytest.mark.sampled("slow")
def test_what_triton_takes_to_compile_a_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "square__mine__triton.py"
    path.write_text(TRITON.format(body="i += (1 << (1 << 35)) % 2"), encoding="utf-8")  # a number of 4 GiB, and of a second until it is there
    monkeypatch.setenv("ROOFTOP_SIMT_MIB", "2000")
    assert command(monkeypatch, "inspect", str(path), "--arch", "90") == 1
    assert "the command of square__mine__triton.py took more than 2000 MiB of memory (ROOFTOP_SIMT_MIB)" in flat(capsys.readouterr().err)


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("words", ["inspect --arch 90", "diagnose"])
def test_a_triton_kernel_without_end_of_compiling_is_ended(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "square__mine__triton.py"
    path.write_text(TRITON.format(body="for k in tl.static_range(0, 1 << 40):\n        i += k"), encoding="utf-8")
    monkeypatch.setenv("ROOFTOP_STEP_SECONDS", "10")
    name, *more = words.split()
    assert command(monkeypatch, name, str(path), *more) == 1
    assert "no answer in 10 s from the command of square__mine__triton.py (ROOFTOP_STEP_SECONDS)" in flat(capsys.readouterr().err)


@pytest.mark.sampled("slow")
def test_a_command_of_a_files_python_says_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "square__mine__triton.py"
    path.write_text(TRITON.format(body="pass"), encoding="utf-8")
    assert command(monkeypatch, "inspect", str(path), "--arch", "90", "--json") == 0
    said = capsys.readouterr()
    assert [row["kernel"] for row in json.loads(said.out)] == ["squared"]
    assert "loaded \\x1b[31m in rooftop._files." in said.err


def test_which_words_are_python_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text("", encoding="utf-8")
    Path("plain.cu").write_text("__global__ void k() {}", encoding="utf-8")
    head = 'op = "square"\npython = ["supports"]\nargs = ["x: T[M, N]", "y: T[M, N]"]\n[[launch]]\nkernel = "k"\ngrid = [1]\nblock = [1]'
    Path("both.cu").write_text(f"/* rooftop\n{head}\n*/\n__global__ void k(const float* x, float* y) {{}}\n", encoding="utf-8")
    assert programs(["my.py", "--like=my.py:f", "plain.cu", "no.py", "softmax", "both.cu", str(settings.PACKAGE / "ops/softmax.py")]) == ["my.py", "both.cu"]
    assert programs(["--reference", "my.py:f"]) == ["my.py"] and programs(["--with", "ncu", "--", "python", "my.py"]) == []


@pytest.mark.sampled("slow")
def test_a_right_kernel_is_right_and_what_it_prints_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "square__mine__torch.py"
    path.write_text(KERNEL.format(load="print('{\"cases\": []}\\x1b[2J')", supports="return None", run="print('{}', flush=True)"), encoding="utf-8")
    assert command(monkeypatch, "check", str(path), "--case", "one element f32", "--json") == 0
    said = capsys.readouterr()
    assert [r["status"] for r in json.loads(said.out)["results"]] == ["ok"]
    assert '{"cases": []}\\x1b[2J' in said.err and "\x1b" not in said.err


@pytest.mark.sampled("slow")
def test_a_case_without_end_is_ended_and_the_others_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "square__mine__torch.py"
    run = "import subprocess; subprocess.Popen(['sleep', '617']); time.sleep(600)"
    path.write_text(KERNEL.format(load="", supports="return None", run=run), encoding="utf-8")
    file = Own(str(path), Choice("auto", 3, dtype="f16", tags=("edge",)))
    monkeypatch.setenv("ROOFTOP_STEP_SECONDS", "8")  # of cases: loading takes what a busy machine takes
    started = time.monotonic()
    try:
        results = [r for r, _ in file.results()]
    finally:
        file.end()
    judged = [r for r in results if r.status == "error"]
    assert "no answer in 8 s from the case of square__mine__torch.py (ROOFTOP_STEP_SECONDS)" in judged[0].message
    assert len(judged) > 3 and {r.message for r in judged[1:]} == {f"not judged: {judged[0].case} ended the process"}
    assert time.monotonic() - started < 60
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if _words(p) == ["sleep", "617"]]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\0")[:-1]
    except OSError:
        return []


@pytest.mark.sampled("slow")
def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_SIMT_MIB", "1500")
    (result,) = own(tmp_path, run="held = [bytearray(os.urandom(1 << 20) * 64) for _ in range(64)]; time.sleep(5)")
    assert "took more than 1500 MiB of memory (ROOFTOP_SIMT_MIB)" in result.message


@pytest.mark.sampled("slow")
def test_a_reason_of_any_length_is_cut(tmp_path: Path) -> None:
    (result,) = own(tmp_path, run="raise ValueError('x\\x1b[2J ' * 3_000_000)")
    assert len(result.message) <= 5000 and result.message.startswith("ValueError: x\\x1b[2J")


@pytest.mark.parametrize("answer", ["[]", "nonsense", "[" * 100000, "3"])
def test_an_answer_that_is_none_is_an_error(answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_answers.py").write_text(f"import sys\nfor line in sys.stdin:\n    print({answer!r}, flush=True)\n", encoding="utf-8")
    monkeypatch.setattr(settings, "CHECKOUT", tmp_path)  # where the process looks for modules
    process = Process(Path(sys.executable), "odd_answers", {}, what="somebody")
    with pytest.raises(ChildError, match="the process of somebody answers what is no object of JSON"):
        process.ask({"what": "answer"}, 20)
    process.end()


@pytest.mark.parametrize(
    "said",
    [{}, {"subject": 3}, {"subject": "a", "op": "b", "case": "c", "status": "fine", "backend": "", "message": "", "outputs": {}, "path": []},
     {"subject": "a", "op": "b", "case": "c", "status": "ok", "backend": "", "message": "", "outputs": {"y": {"where": None, "ok": 1}}, "path": []}],
)
def test_a_result_that_is_none_is_refused(said: dict[str, object]) -> None:
    with pytest.raises(FormError):
        formed(said, Result)


def test_a_result_is_the_same_after_the_way_between_processes() -> None:
    from rooftop.lab.check.compare import Verdict

    found = Result("s", "op", "case f32", "wrong", "simt", "y: far off", {"y": Verdict(False, 1.0, where=(1, 2), value=float("nan"))}, ("a",), archs=(90, 80))
    assert json.dumps(formed(json.loads(json.dumps(found.to_json())), Result).to_json()) == json.dumps(found.to_json())
