"""Checks of many kernels: those that no record proves, several at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from _support import command, flat

from rooftop.core import registry
from rooftop.core.spec import TARGETS
from rooftop.lab import candidates
from rooftop.lab.check import checker, many
from rooftop.lab.check.judgement import expect
from rooftop.lab.records.record import Record

DEVICE = TARGETS[90]
DEADLY = """
import os
import triton
import triton.language as tl
from rooftop.core.spec import Launch

HEAD = {"op": "add"}

@triton.jit
def _add(x, y, out, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + at, tl.load(x + at, at < n, 0) + tl.load(y + at, at < n, 0), at < n)

def supports(p):
    return None

def choose(p):
    return None

def launches(p, config):
    if os.environ.get("DEADLY"):
        os._exit(9)
    return [Launch(_add, (1,), {"x": "x", "y": "y", "out": "out", "n": p["x"].numel, "B": 1024})]
"""


def todo(word: str, tag: str = "edge", dtype: str = "f32") -> list[tuple[candidates.Subject, Any]]:
    return [(s, c) for s in candidates.find([word]) for c in checker.select_cases(s, tags=(tag,), dtype=dtype)]


def launched(word: str) -> list[tuple[candidates.Subject, Any]]:
    return [(s, c) for s, c in todo(word) if not s.op.idle(s.op.problem(c)) and not s.supports(c, DEVICE)]


def record(s: candidates.Subject, case: Any, **other: Any) -> Record:
    return Record({"kind": "check", "op": s.op.name, "subject": s.name, "case": case.id, **s.identity(case, DEVICE).facts,
            "error": {"ok": True}, "device": {"name": "card"}} | other)


def test_a_record_proves_a_case_of_its_kernel_card_and_digest_alone() -> None:
    cases = launched("softmax__triton")
    (s, c), rest = cases[0], cases[1:]
    assert many.lacking(cases, [record(s, c)], "card", DEVICE) == rest
    for other in ({"digest": "another"}, {"error": {"ok": False}}, {"device": {"name": "another"}}, {"subject": "another"}, {"kind": "bench"}):
        assert many.lacking(cases, [record(s, c, **other)], "card", DEVICE) == cases
    assert len(many.lacking(todo("softmax__triton"), [], "card", DEVICE)) == len(cases) < len(todo("softmax__triton"))  # empty tensors launch nothing


def test_what_only_machine_code_can_prove_is_compiled_on_all_cores_first(monkeypatch: Any) -> None:
    cases, first = launched("softmax__triton")[:4], []  # type: tuple[Any, list[Any]]
    (s, moved), (_, present), (_, changed), (_, older) = cases
    monkeypatch.setattr(many.aot, "compile_first", lambda todo, device: first.extend(todo))
    monkeypatch.setattr("rooftop.lab.records.identity.machine", lambda subject, cases, *_: "code of " + cases[0].id)
    records = [
        record(s, moved, source="another text", machine="code of " + moved.id), record(s, present, machine="?"),
        record(s, changed, source="another text", digest="another launch", machine="code of " + changed.id), record(s, older, source="another text"),
    ]
    assert many.lacking(cases, records, "card", DEVICE) == cases[2:] and first == cases[:1]


@pytest.mark.sampled("slow")
def test_a_kernel_that_kills_its_process_is_an_error_of_its_own(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "add__deadly__triton.py"
    path.write_text(DEADLY)
    given = [*launched(str(path))[:3], *launched("softmax__triton")[:2]]
    monkeypatch.setenv("DEADLY", "1")  # in the children alone
    results = list(many.check_many(given, "cpu", 7, jobs=2))
    assert {(s.name, c.id) for s, c, _ in results} == {(s.name, c.id) for s, c in given} and len(results) == len(given)
    assert {r.status for s, _, r in results if s.name == "softmax__triton"} == {"ok"}
    deadly = [r for s, _, r in results if s.name != "softmax__triton"]
    assert {r.status for r in deadly} == {"error"} and all("was killed" in r.message for r in deadly)


def test_what_lacked_memory_or_was_not_reached_is_checked_again_alone(monkeypatch: Any) -> None:
    (s, first), (_, second), (_, third), *_ = launched("softmax__triton")
    asked = []

    def result(case: Any, status: str, message: str = "") -> checker.Result:
        return checker.Result(s.name, s.op.name, case.id, status, message=message)

    def run(chunks: Any, jobs: int, backend: str, seed: int) -> Any:
        asked.append((jobs, [[c.name for c in cases] for _, cases in chunks]))
        if jobs > 1:  # the third case is not reached
            yield chunks[0], [result(first, "ok"), result(second, "error", "AcceleratorError: CUDA error: out of memory")]
            return
        yield chunks[0], [result(second, "skipped", "this case does not fit what is free of the GPU's memory")]
        yield chunks[1], []

    monkeypatch.setattr(many, "_run", run)
    found = [(c.name, r.status) for _, c, r in many.check_many([(s, first), (s, second), (s, third)], "gpu", 7, jobs=4)]
    assert found == [(first.name, "ok"), (second.name, "skipped"), (third.name, "error")]
    assert asked == [(4, [[first.name, second.name, third.name]]), (1, [[second.name], [third.name]])]


HANGS = """
import time
from rooftop.core import registry
from rooftop.lab.check import many
many.HANGS_S = 0.2
many.checker.backend_of = lambda subject, backend: ("gpu", None)
many.check_one = lambda *_: time.sleep(60)
op = registry.op("softmax")
many._check("softmax__triton", "softmax", op.cases[:2], "gpu", 7)
"""


@pytest.mark.sampled("slow")
def test_a_case_that_never_ends_on_a_gpu_ends_its_process() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=50)
    assert done.returncode == 1 and "Timeout" in done.stderr


def test_a_quick_check_takes_a_sample_and_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (subject,) = candidates.find(["reduce__triton"])
    todo = [(subject, c) for c in checker.select_cases(subject)]
    found = many.sampled(todo, "cpu", 7)
    assert len(found) == many.SAMPLE < len(todo) and found == many.sampled(todo, "cpu", 7) != many.sampled(todo, "cpu", 8)
    assert {c.dtype for _, c in found} >= {"f32", "bf16", "f16"}
    for s, c in found:
        assert s.implementation is not None and checker.left_out(s, c, "interpreter", s.implementation.stand_in(90)) is None
    monkeypatch.setattr(many, "SAMPLE", 2)
    monkeypatch.setattr(many.sampled, "__defaults__", (2,))
    assert command(monkeypatch, "check", "add__triton", "--quick", "--backend", "cpu") == 0
    said = capsys.readouterr()
    cases = len(checker.select_cases(candidates.find(["add__triton"])[0]))
    assert f"a sample: 2 of {cases} cases; without --quick all are checked" in flat(said.out)


def test_a_check_that_is_long_says_how_long(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from rooftop.lab.cli import check as commands

    monkeypatch.setattr(commands, "TELL_S", -1.0)
    assert command(monkeypatch, "check", "add__triton", "--backend", "cpu", "--dtype", "f32") == 0
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if " cases in " in line]
    assert len(lines) > 1 and all("about" in line for line in lines), "not on a terminal: a line now and then"
    counts = [int(line.split(" of ")[0]) for line in lines]
    assert counts == sorted(set(counts))
    assert sum("--quick" in line for line in lines) <= 1


def test_torch_warns_of_no_case_that_is_asked_for_on_purpose(recwarn: pytest.WarningsRecorder) -> None:
    op = registry.op("reduce")
    torch.set_warn_always(True)
    try:
        expect(op, op.case("var, one element f32"), "cpu", 0)
    finally:
        torch.set_warn_always(False)
    assert not [w for w in recwarn if "degrees of freedom" in str(w.message)]


def test_another_process_finds_every_kernel_by_its_word() -> None:
    """A file holds kernels of several ops: a path would name the first of them."""
    from rooftop.lab.aot import word_of

    ops = [o for op in map(registry.op, registry.op_names()) for o in (op, op.bwd) if o is not None]
    for subject in [s for op in ops for s in candidates.implementations(op)]:
        [found] = candidates.find([word_of(subject)])
        assert found.name == subject.name
