"""Files of one's own are judged in a process of their own: what their Python does to it is a finding, never the end of the judgement."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from _support import command, flat

from rooftop.core import settings
from rooftop.core.child import ChildError, Process
from rooftop.lab import candidates
from rooftop.lab.check import checker
from rooftop.lab.check.apart import Own
from rooftop.lab.check.result import Result
from rooftop.lab.check.selection import Choice

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


@pytest.mark.sampled("slow")
@pytest.mark.parametrize(
    ("load", "run", "says"),
    [("sys.exit(0)", "pass", "it ends the process: SystemExit: 0"), ("os._exit(0)", "pass", "ended with exit code 0: it said nothing"),
     ("class E(BaseException): pass\nraise E('out')", "pass", "E: out"), ("os.abort()", "pass", "ended by SIGABRT"),
     ("os.execv('/bin/true', ['true'])", "pass", "ended with exit code 0"), ("", "os._exit(0)", "ended with exit code 0"),
     ("", "sys.exit(0)", "it ends the process: SystemExit: 0")],
)  # fmt: skip
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
)  # fmt: skip
def test_what_its_functions_do_is_a_finding(where: str, what: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "square__mine__torch.py"
    path.write_text(KERNEL.format(**{"load": "", "supports": "return None", "run": "pass", where: what}), encoding="utf-8")
    subject = candidates.find([str(path)])[0]
    result = checker.check(subject, subject.op.case("one element f32"))
    assert result.status == "error" and says in result.message, result


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


def test_no_command_ends_as_a_kernels_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "square__mine__torch.py"
    path.write_text(KERNEL.format(load="sys.exit(0)", supports="return None", run="pass"), encoding="utf-8")
    assert command(monkeypatch, "inspect", str(path)) == 1
    assert "square__mine__torch.py:3 ends the process: SystemExit: 0" in flat(capsys.readouterr().err)


def test_a_right_kernel_is_right_and_what_it_prints_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "square__mine__torch.py"
    path.write_text(KERNEL.format(load="print('{\"cases\": []}\\x1b[2J')", supports="return None", run="print('{}', flush=True)"), encoding="utf-8")
    assert command(monkeypatch, "check", str(path), "--case", "one element f32", "--json") == 0
    said = capsys.readouterr()
    assert [r["status"] for r in json.loads(said.out)["results"]] == ["ok"]
    assert '{"cases": []}\\x1b[2J' in said.err and "\x1b" not in said.err


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
)  # fmt: skip
def test_a_result_that_is_none_is_refused(said: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Result.from_json(said)


def test_a_result_is_the_same_after_the_way_between_processes() -> None:
    from rooftop.lab.check.compare import Verdict

    found = Result("s", "op", "case f32", "wrong", "simt", "y: far off", {"y": Verdict(False, 1.0, where=(1, 2), value=float("nan"))}, ("a",), archs=(90, 80))
    assert json.dumps(Result.from_json(json.loads(json.dumps(found.to_json()))).to_json()) == json.dumps(found.to_json())
