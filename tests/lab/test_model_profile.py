"""`rooftop profile config.json`: the ops of a step without values, their costs from records, and gains beside measured ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import rooftop
from rooftop.core.spec import Work
from rooftop.lab.cli import app, commands
from rooftop.lab.records import store
from rooftop.lab.records.record import Record
from rooftop.lab.report import models_page
from rooftop.lab.timing import model_costs, model_profile, model_step

pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[dev]')")

LLAMA = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CARD = "NVIDIA H200"
IDS = torch.zeros(2, 32, dtype=torch.long)


def _model(**more: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    said = {**LLAMA, **more}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(said.pop("model_type"), **said), dtype=torch.bfloat16).train()


def _counts(model: Any) -> tuple[Counter[str], dict[str, model_step.Done]]:
    found = model_step.of_step(model_step.training(model, IDS))
    times: Counter[str] = Counter()
    for done, n in found:
        times[done.op] += n
    return times, {done.op: done for done, _ in found}


def _bench(op: str, case: str, seconds: float, read: int, write: int, subject: str) -> Record:
    return Record({"kind": "bench", "op": op, "case": case, "subject": subject, "at": "2026-01-01", "device": {"name": CARD},
            "clocks": {"kernel": {"median": seconds, "low": seconds, "high": seconds}}, "work": {"read": read, "write": write, "ops": {}}})


def test_a_step_as_it_is() -> None:
    """Forward, and two products backward, of each linear layer; attention in causal order, without a mask."""
    model = _model()
    times, done = _counts(model)
    assert times["mm"] == 3 * (7 * 2 + 1) and times["silu"] == 2 and times["embedding"] == 1
    attention = next(d for n, d in done.items() if "attention" in n and "backward" not in n)
    assert attention.work.ops == {"tensor-bf16": 2 * 4 * 32 * 32 / 2 * 32, "exp": 2 * 4 * 32 * 32 / 2}
    assert all(p.grad is None and type(p) is torch.nn.Parameter for p in model.parameters())
    head = Work(2 * (64 * 64 + 256 * 64), 2 * 64 * 256, {"tensor-bf16": 64 * 64 * 256.0})
    assert any(d.work == head for d, _ in model_step.of_step(model_step.training(model, IDS)) if d.op == "mm")


def test_a_patched_step_has_the_work_of_the_contracts() -> None:
    model = _model()
    with rooftop.patch(model):
        times, done = _counts(model)
    assert {n: times[n] for n, d in done.items() if d.ours} == {
        "rms_norm": 5, "rms_norm_bwd": 5, "rope": 4, "attention": 2, "attention_bwd": 2, "swiglu": 2, "swiglu_bwd": 2, "linear_cross_entropy": 1,
        "linear_cross_entropy_bwd": 1,
    }
    assert done["swiglu"].work.read == 2 * 2 * 64 * 128 and done["swiglu"].work.write == 2 * 64 * 128 and done["swiglu"].dtype == "bf16"
    assert done["attention"].work.ops["exp"] == 2 * 4 * 32 * 33 / 2


def test_experts_windows_and_other_kinds_need_no_values() -> None:
    times, _ = _counts(_model(model_type="qwen3_moe", moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, head_dim=16))
    assert times["_grouped_mm"] == 2 * 2 * 3
    model = _model(model_type="gemma3_text", head_dim=16, sliding_window=8)
    with rooftop.patch(model):
        found = [d for d, _ in model_step.of_step(model_step.training(model, IDS)) if d.op == "attention"]
    assert {d.work.ops["exp"] for d in found} == {2 * 4 * (8 * 9 / 2 + 24 * 8)}  # no layer of two has all keys


def test_what_is_nearest_gives_the_share() -> None:
    """Of the same dtype; an op without records moves bytes as torch's addition does."""
    costs = model_costs.Costs(CARD, [
        _bench("rms_norm", "small bf16", 4e-6, 1 << 20, 1 << 20, "rms_norm__cuda_sm90"),
        _bench("rms_norm", "large bf16", 4e-4, 1 << 29, 1 << 29, "rms_norm__cuda_sm90"),
        _bench("rms_norm", "large f32", 1.0, 1 << 29, 1 << 29, "rms_norm__cuda_sm90"),
        _bench("rms_norm", "large bf16", 1e-9, 1 << 29, 1 << 29, "norm_triton/01_pieces"),
        _bench("add", "large bf16", 8e-4, 1 << 30, 1 << 29, "peer:torch"),
    ])
    sheet = costs.ceilings.seconds(1 << 29, 1 << 29)
    same = costs.of(model_step.Done("rms_norm", True, Work(1 << 29, 1 << 29, {}), "bf16"))
    assert same.seconds == pytest.approx(4e-4, rel=0.01) and same.roof.seconds == sheet and same.nearest == "rms_norm large bf16"
    near = costs.of(model_step.Done("rms_norm", True, Work(1 << 28, 1 << 28, {}), "bf16"))
    assert near.seconds == pytest.approx(2e-4, rel=0.1)
    assert costs.of(model_step.Done("mul", False, Work(1 << 30, 1 << 29, {}), "bf16")).seconds == pytest.approx(8e-4)


@pytest.mark.sampled("slow")
def test_gains_are_judged_beside_measured_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that counts ops of torch: 1 ms each, those of rooftop nothing."""
    counted: list[Any] = []

    def seconds(_: Any) -> float:
        return 1e-3 * sum(n for d, n in model_step.of_step(model_step.training(counted[0], IDS)) if not d.ours)

    def real() -> Any:
        counted.append(_model())
        return counted[0]

    monkeypatch.setattr(model_profile, "_seconds", seconds)
    monkeypatch.setattr(model_profile, "_by_group", lambda _: {"matrix products": 0.25})
    model, costs = _model(), model_costs.Costs(CARD, [])
    found = model_profile.profile(model, IDS, costs, real)
    gains = {g.part: g for g in found.gains}
    assert set(gains) == {"attention", "rms_norm", "rope", "mlp", "activation", "fused_linear_cross_entropy", "residual", "linear", model_profile.ALL}
    assert all(g.measured is not None for g in found.gains) and not rooftop.drop_in.is_patched(counted[0]) and not rooftop.drop_in.is_patched(model)
    with rooftop.patch(counted[0], attention=False, rope=False, mlp=False, activation=False, fused_linear_cross_entropy=False):
        normed = seconds(None)
    assert found.measured == seconds(None) > normed and gains["rms_norm"].measured == pytest.approx(seconds(None) - normed)
    assert {r.op: r.measured for r in found.eager}["matrix products"] == 0.25
    shown = model_profile.screen(found, "tiny")
    assert "measured here, predicted from the records of NVIDIA H200" in shown and "predicted within 25%" in shown
    assert model_profile.Gain("rope", 1.2, 1.0).hit(10) is True and model_profile.Gain("rope", 1.3, 1.0).hit(10) is False
    assert model_profile.Gain("rope", 0.05, 0.01).hit(10) is None
    with store.Writer(tmp_path, CARD) as writer:
        device = {"name": CARD, "arch": 90, "sms": 132, "l2_bytes": 1 << 20, "shared_per_block": 1 << 16}
        writer.write({"kind": "clock", "subject": "models", "device": device, "versions": {}, "transformers": "5", "rows": found.rows("tiny")})
    table = models_page.table(list(store.read(tmp_path)), None)  # type: ignore[arg-type]
    assert "| what a part alone saves of forward and backward, ms (predicted) | attention | rms_norm |" in table


def _profiled(path: Path, *more: str) -> Any:
    commands()
    return CliRunner().invoke(app, ["profile", str(path), "--batch", "2", "--length", "32", *more])


@pytest.mark.sampled("slow")
def test_the_command_predicts_without_a_gpu(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    done = _profiled(config, "--layers", "1", "--json", "--card", "h200")
    assert done.exit_code == 0, (done.output, done.exception)
    said = json.loads(done.stdout)
    assert said["device"] == CARD and said["measured"] is None and said["predicted"] > 0
    assert sum(r["seconds"] for r in said["eager"]) == pytest.approx(said["predicted"])
    assert {r["op"] for r in said["patched"]} >= {"rms_norm", "attention", "linear_cross_entropy"} and said["gains"][-1]["part"] == "all of them"
    shown = _profiled(config, "--card", "h200")
    assert "predicted from the records of NVIDIA H200; nothing was measured" in shown.stdout


def test_what_cannot_be_profiled(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    for more, message in ((("--card", "b200"), "there are no bench records of"), (("--card", "h200", "--records", "r"), "nothing is measured without a GPU")):
        failed = _profiled(config, *more)
        assert failed.exit_code and message in str(failed.exception) and not (tmp_path / "r").exists()
    config.write_text("{}")
    assert "it names no model_type" in str(_profiled(config).exception)
