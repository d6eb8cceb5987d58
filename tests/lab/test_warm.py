"""A bounded set of binaries, whatever the rows; and what is compiled ahead is what calls then ask for."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from _support import command, flat

from rooftop.core import registry
from rooftop.core.spec import TARGETS
from rooftop.lab.records import store
from rooftop.lab.records.rewriting import superseded
from rooftop.lab.report import documents
from rooftop.lab.report.joined import staleness
from rooftop.lab.timing import first_calls, warm

MOST = 14  # binaries of one kernel at one number of columns
MOST_TILED = 20  # of a product on tensor cores: ten tiles, some of them split along K in 2 to 6 parts
MOST_PLAIN = 28  # of one on CUDA cores: fourteen tiles, some of them for rows of b that begin on 4, 8 and 16 bytes, where rows and columns are one number


OPS = [pytest.param(n, marks=pytest.mark.sampled("warm", *(i.name for i in registry.implementations(n)))) for n in registry.op_names()]


@pytest.mark.parametrize("columns", [4096, 1000])
@pytest.mark.parametrize("name", OPS)
def test_new_rows_compile_nothing_that_warm_has_not(name: str, columns: int) -> None:
    op = registry.op(name)
    for case in warm.kinds(op)[:2]:
        before = list(warm.calls(op, case, columns, TARGETS[90]))
        known = {v for call in before for v in warm.variants(call)}
        tensor = any(call.implementation.backend == "gluon" for call in before)
        most = MOST_TILED if tensor else MOST_PLAIN if op.name == "matmul" else MOST
        kernels = Counter(re.split(r" \(|<", v)[0] for v in known)
        assert not known or max(kernels.values()) <= most, kernels
        r = random.Random(columns)
        rows = [r.randrange(1, 1 << r.randrange(2, 16)) for _ in range(40)]
        new = {v for call in warm.calls(op, case, columns, TARGETS[90], rows) for v in warm.variants(call)} - known
        assert not new, f"{case.id}: compiled for a row count alone: {sorted(new)}"


def test_warm_compiles_and_says_how_many(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "warm", "square", "--columns", "96", "--dtype", "f32", "--card", "h100", "--json") == 0
    assert '"variants": 0' not in capsys.readouterr().out


def test_attention_has_its_usual_calls_made_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    op = registry.op("attention")
    cases = [c for c in op.cases if c.id in ("causal d64 8192 bf16", "full d128 8192 bf16")]
    monkeypatch.setattr(op, "cases", cases, raising=False)
    assert op.cases == cases

    def made(shapes: list[tuple[int, int, int]]) -> set[str]:
        found = [warm.resized(c, {2: b, 8192: tokens, 16: heads}) for c in cases for b, tokens, heads in shapes]
        return {v for c in found for call in warm.calls_of(op, c, TARGETS["h200"]) for v in warm.variants(call)}

    known = {v for c in warm.usual(op, "bf16") for call in warm.calls_of(op, c, TARGETS["h200"]) for v in warm.variants(call)}
    assert made([(1, 3001, 32), (3, 1024, 12), (4, 640, 40)]) <= known
    assert not list(warm.usual(op, "f32"))
    monkeypatch.setattr(warm.Call, "launches", ())
    assert warm.warm(op, 4096, TARGETS["h200"]).columns == 0


@pytest.mark.sampled("warm", "attention__gluon_sm90")
def test_what_warm_has_compiled_no_other_process_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = (
        "from rooftop.core import registry; from rooftop.core.spec import TARGETS; from rooftop.lab.timing import warm\n"
        "op = registry.op('attention'); case = next(c for c in op.cases if c.id == 'causal d64 8192 bf16')\n"
        "call = next(warm.calls_of(op, warm.resized(case, {8192: 3001}), TARGETS['h200'], 'attention__gluon_sm90'))\n"
        "[call.implementation.machine_code(call.problem, x, call.scratch) for x in call.launches]"
    )
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    op = registry.op("attention")
    monkeypatch.setattr(op, "cases", [c for c in op.cases if c.id == "causal d64 8192 bf16"])
    assert warm.warm(op, 0, TARGETS["h200"], "bf16", kernel="attention__gluon_sm90").failed == []
    made = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.cubin")}
    assert made
    subprocess.run([sys.executable, "-c", said], check=True)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.cubin")} == made


def test_first_calls_are_measured_beside_torch_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "MOST", 40)
    monkeypatch.setattr(first_calls, "KNOWN", 64)
    found = first_calls.measure(registry.op("rms_norm"), "f32", rows=5, columns=2, compiled=False, device="cpu")
    assert [(r["subject"], r["gradients"]) for r in found] == [("rooftop", False), ("rooftop", True), ("torch", False), ("torch", True)]
    for r in found:
        assert (r["rows"]["n"], r["columns"]["n"]) == (5, 2), r
        assert r["known_s"] > 0 and 0 < r["rows"]["median_s"] <= r["rows"]["p90_s"] <= r["rows"]["max_s"]


def measured(**more: Any) -> dict[str, Any]:
    spread = {"n": 5, "median_s": 2e-4, "p90_s": 3e-4, "max_s": 0.02, "slow": 1}
    return {"op": "rms_norm", "dtype": "f32", "subject": "rooftop", "gradients": False, "first_s": 0.5, "known_s": 2e-5, "new_rows_s": 1e-4, "rows": spread,
            "columns": spread, **more}


def test_first_calls_are_records_and_stand_in_the_docs(tmp_path: Path) -> None:
    card = {"name": "NVIDIA H100 80GB HBM3", "arch": 90}
    rows = [measured(), measured(gradients=True), measured(subject="torch", first_s=0.25), measured(subject="torch.compile(dynamic=True)", refused="no")]
    made = first_calls.records(rows, card, seed=3)
    assert [(r["subject"], r["case"]) for r in made] == [("rooftop", "f32"), ("rooftop", "f32, forward and backward"), ("peer:torch", "f32")]
    with store.Writer(tmp_path, card["name"]) as writer:
        for record in made:
            writer.write(record)
        stale = writer.write({**made[0], "digest": "of other kernels"})
    found = store.read(tmp_path)
    assert len(found) == 4 and [first_calls.current(r) for r in found] == [True, True, True, False]
    assert staleness(found)(stale) and not staleness(found)(found[0])
    assert superseded(found, staleness(found)) == [False, False, False, True]  # what is of the kernels as they are outlives a newer one that is not
    text = documents.first(found, None)  # type: ignore[arg-type]
    lines = text.splitlines()[2:]
    assert len(lines) == 3 and text.count("| rooftop |") == 2
    assert lines[0].startswith("| rms_norm f32 | NVIDIA H100 80GB HBM3 | rooftop | 500,000 | 20 | 200 | 20,000 | 1 of 5 |")
    assert "| torch | 250,000 |" in lines[1]
    assert documents.first([], None) == documents.NOTHING  # type: ignore[arg-type]


def test_a_record_of_first_calls_without_its_figures_is_none(tmp_path: Path) -> None:
    (record,) = first_calls.records([measured()], {"name": "NVIDIA H100 80GB HBM3"}, seed=0)
    for key in ("first_s", "rows", "columns"):
        with pytest.raises(ValueError, match=f"{key} is missing"):
            store.SHAPES["first-calls"]({k: v for k, v in record.items() if k != key}, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("warm", "square", "--columns", "0"), "--columns is 0"),
        (("warm", "squares"), "no op 'squares'"),
        (("warm", "square", "--card", "abacus"), "--card is 'abacus'"),
        (("warm", "square", "--dtype", "f7"), "no case has dtype 'f7'"),
        (("warm", "square", "--kernel", "softmax__triton"), "--kernel is softmax__triton, which computes softmax, and the ops are square"),
        (("tune", "square", "--size", "columns=64..96"), "--size goes with --regret"),
        (("tune", "square", "--seed", "3"), "--seed goes with --regret"),
        (("first-calls", "square", "--rows", "0"), "they must be at least 1"),
    ],
)
def test_bad_input_is_answered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    assert command(monkeypatch, *words) == 1
    assert said in flat(capsys.readouterr().err)
