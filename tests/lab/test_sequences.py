"""Under `rooftop.invariant()` the attention of a token has the same bits, however its sequence is batched, padded, packed or cut."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import rooftop
from rooftop.core import registry
from rooftop.core.call import for_any_rows
from rooftop.core.invariance import InvarianceError
from rooftop.core.spec import TARGETS
from rooftop.lab.check.sequences import sequences

SPLITS = registry.implementation("attention__splits__triton")


@pytest.mark.sampled("kernels", "attention__splits__triton")
@pytest.mark.parametrize(("kind", "dtype"), [("plain", "bf16"), ("sinks", "f16"), ("window", "bf16"), ("alibi", "f16"), ("bias", "bf16"), ("mask", "bf16")])
def test_every_arrangement_has_the_same_bits(kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SPLITS.module, "SPLIT", 64)  # type: ignore[attr-defined]
    found = sequences({"lengths": [1, 66], "heads": 1, "key_heads": 1, "head": 16, "kind": kind}, dtype, backend="cpu", seed=4)
    assert not found.wrong and not found.skipped and found.calls > 5 and found.kernel == SPLITS.name


def test_a_kernel_whose_tile_follows_the_queries_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SPLITS.module  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "for_any_rows", lambda p: dataclasses.replace(module.choose(p), BN=16 if p["q"].shape[1] < 8 else 64, apart=False))
    found = sequences({"lengths": [1, 20, 44], "heads": 1, "key_heads": 1, "head": 16}, backend="cpu", seed=4)
    assert any("differ" in w for w in found.wrong)


def test_the_kernel_that_cannot_promise_it_is_refused() -> None:
    op = registry.op("attention")
    dense = op.problem(next(c for c in op.cases if c.dtype == "bf16" and not c.inputs.get("dropout_p") and len(c.inputs["q"].shape) == 4), TARGETS["h200"])  # type: ignore[union-attr]
    assert for_any_rows(op, dense).call.implementation is SPLITS  # type: ignore[union-attr]
    for name in ("triton", "decode__triton", "gluon_sm90"):
        with pytest.raises(InvarianceError, match=f"attention under .*, along batch: attention__{name}: "):
            for_any_rows(op, dense, name)
    dropped = op.problem(next(c for c in op.cases if c.inputs.get("dropout_p")), TARGETS["h200"])
    with pytest.raises(InvarianceError, match="along batch: what dropout drops follows from the place"):
        for_any_rows(op, dropped)


def test_attention_on_the_cpu_is_computed_query_by_query() -> None:
    q, k, v = torch.randn(3, 11, 4, 16), torch.randn(3, 11, 2, 16), torch.randn(3, 11, 2, 16)
    with rooftop.invariant():
        whole = rooftop.attention(q, k, v, causal=True, order="bshd")
        last = rooftop.attention(q[1:2, 7:8], k[1:2, :8], v[1:2, :8], causal=True, order="bshd")
        behind = torch.zeros(3, 1, 1, 11, dtype=torch.bool)
        behind[..., 3:] = True  # what is hidden has no part in a sum
        hidden = rooftop.attention(q, k, v, mask=behind, order="bshd")
        shorter = rooftop.attention(q[:, :5], k[:, 3:], v[:, 3:], order="bshd")
        given = q.clone().requires_grad_()
        loss = rooftop.attention(given, k, v, causal=True, order="bshd").sum()
        with pytest.raises(InvarianceError, match=r"attention_bwd .*along batch: .*call backward\(\) outside of rooftop.invariant\(\)"):
            loss.backward(retain_graph=True)
    loss.backward()
    assert torch.equal(whole[1, 7], last[0, 0]) and torch.equal(hidden[:, :5], shorter)
    torch.testing.assert_close(whole, rooftop.attention(q, k, v, causal=True, order="bshd"))


def test_contracts_say_what_holds() -> None:
    said = {n: registry.op(n).invariance for n in ("attention", "matmul", "rms_norm", "append_kv", "sample", "silu")}
    assert all(set(s) == {"batch", "padding", "packing", "chunking", "splits"} for s in said.values())
    assert said["attention"]["chunking"] == said["matmul"]["batch"] == said["rms_norm"]["padding"] == "mode"
    assert said["append_kv"]["batch"] == "always" and said["silu"]["packing"] == "mode"
    assert said["sample"]["batch"] == "mode"  # with a seed for each row
    for name in registry.op_names():
        for op in filter(None, (registry.op(name), registry.op(name).bwd)):
            assert all(isinstance(why, str) and why and why != "its contract names no dimension of rows" for why in op.invariance.values()), op.name
