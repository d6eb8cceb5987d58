"""Patched models under torch.compile: one graph for all lengths, no mask of all pairs, no copies around the ops."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from drop_in import _kinds
from torch._dynamo.utils import counters

import rooftop
from rooftop.drop_in import rotations

pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[dev]')")


KINDS = ("llama", "gemma2", "gemma3_text", "gpt_oss", "qwen3_moe", "deepseek_v3", "phi3", "cohere", "glm4", "olmo2", "granite", "mixtral")


def _patched(kind: str, **more: Any) -> Any:
    cls, config = _kinds.works(kind)
    model = _kinds.made(cls, config, "eager")
    rooftop.patch(model, **{"decompose": (), **more})
    return model


def _ids(length: int) -> torch.Tensor:
    return torch.randint(3, 60, (2, length), generator=torch.Generator().manual_seed(length))


class Graphs:
    """A backend that keeps the graphs and runs them as they are."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.found.append(graph)
        return graph.forward

    def masks(self) -> set[torch.dtype]:
        """The dtypes of what has a shape of scores, [.., .., L, L], or is given to attention beside floats."""
        ops = [n for g in self.found for n in g.graph.nodes if "rooftop.attention" in str(n.target)]
        assert ops
        values = [a.meta.get("example_value") for n in ops for a in n.args if isinstance(a, torch.fx.Node)]
        return {t.dtype for t in values if isinstance(t, torch.Tensor) and not t.is_floating_point()}


@pytest.mark.sampled("compiled")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decompose", [(), None])
def test_one_graph_serves_all_lengths(kind: str, decompose: Any) -> None:
    model, graphs = _patched(kind, residual=True, decompose=decompose).train(), Graphs()
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=graphs)
    for length in (9, 12, 30):
        ids, losses = _ids(length), []
        for m in (compiled, model):
            model.zero_grad()
            losses.append(m(ids, labels=ids, use_cache=False).loss)
            losses[-1].backward()
            losses.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        torch.testing.assert_close(losses[0], losses[2], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(losses[1], losses[3], atol=1e-6, rtol=1e-4)
    assert len(graphs.found) == 1 == counters["stats"]["unique_graphs"]
    assert not graphs.masks()  # causal order, or a window


@pytest.mark.sampled("compiled")
def test_packed_rows_are_seen() -> None:
    """Positions that start anew, of which a trace knows nothing: runs of keys, which the graph computes."""
    model, graphs = _patched("llama"), Graphs()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=graphs)
    places = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]] * 2)
    with torch.no_grad():
        got, want = (m(_ids(9), position_ids=places, use_cache=False).logits for m in (compiled, model))
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert graphs.masks() == {torch.int32}


def _padded(length: int, left: bool) -> Any:
    """Two rows, of which the first has three tokens less."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[0, slice(0, 3) if left else slice(length - 3, length)] = 0
    return mask


@pytest.mark.sampled("compiled")
@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "gpt_oss", "qwen3_moe", "bert"])
@pytest.mark.parametrize("left", [True, False])
def test_padding_reaches_attention_as_runs_of_keys(kind: str, left: bool) -> None:
    """One graph for all lengths, no mask of all pairs; results and gradients of tokens are those of the model as it was."""
    cls, config = _kinds.works(kind)
    plain, model, graphs = _kinds.made(cls, config, "eager").train(), _patched(kind).train(), Graphs()
    for m in (plain, model):
        m.config.use_cache = False
    for m in (plain, model):
        for dropout in (x for x in m.modules() if isinstance(x, torch.nn.Dropout)):
            dropout.p = 0.0
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=graphs)
    for length in (9, 12, 30):
        ids, mask, found = _ids(length), _padded(length, left), []
        for m in (compiled, plain):
            m.zero_grad()
            logits = m(ids, attention_mask=mask).logits[mask == 1]
            logits.square().mean().backward()
            found.append((logits, torch.cat([p.grad.flatten() for p in m.parameters() if p.grad is not None])))
        for got, want in zip(*found, strict=True):
            torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)
    assert len(graphs.found) == 1 == counters["stats"]["unique_graphs"]
    assert graphs.masks() == {torch.int32}


@pytest.mark.sampled("compiled")
def test_holes_in_the_padding_stop_a_graph_that_was_not_told() -> None:
    from rooftop.drop_in.transformers import register_transformers

    cls, config = _kinds.works("llama")
    plain, mask = _kinds.made(cls, config, "eager"), torch.ones(2, 9, dtype=torch.long)
    mask[0, 4] = 0
    with torch.no_grad():
        want = plain(_ids(9), attention_mask=mask, use_cache=False).logits
        torch._dynamo.reset()
        model = _patched("llama")
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        with pytest.raises(RuntimeError, match="0 between tokens of a row"):
            compiled(_ids(9), attention_mask=mask, use_cache=False)
        torch.testing.assert_close(model(_ids(9), attention_mask=mask, use_cache=False).logits[mask == 1], want[mask == 1], atol=2e-5, rtol=1e-4)
        try:
            register_transformers(holes=True)
            torch._dynamo.reset()
            got = torch.compile(model, fullgraph=True, backend="eager")(_ids(9), attention_mask=mask, use_cache=False).logits
        finally:
            register_transformers()
        torch.testing.assert_close(got[mask == 1], want[mask == 1], atol=2e-5, rtol=1e-4)


@pytest.mark.sampled("compiled")
def test_layers_that_are_compiled_one_by_one_share_a_graph() -> None:
    model = _patched("llama", residual=True)
    with torch.no_grad():
        want = model(_ids(9)).logits
    torch._dynamo.reset()
    counters.clear()
    for layer in model.model.layers:
        layer.compile(fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(model(_ids(9), use_cache=False).logits, want, atol=1e-5, rtol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.sampled("compiled")
@pytest.mark.parametrize(
    "decompose, left",
    [(("rms_norm", "mlp"), {"rope", "attention"}), (("rope",), {"rms_norm", "swiglu", "attention"}), (None, {"attention"})],
)
def test_parts_are_left_to_the_compiler(decompose: Any, left: set[str]) -> None:
    """None: those that it does at least as well, rotations of few elements among them."""
    model, graphs = _patched("llama", decompose=decompose, residual=decompose is None), Graphs()
    torch._dynamo.reset()
    ids = _ids(9)
    with torch.no_grad():
        got, want = (m(ids, use_cache=False).logits for m in (torch.compile(model, fullgraph=True, backend=graphs), model))
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    ops = {str(n.target) for n in graphs.found[0].graph.nodes if "rooftop" in str(n.target)}
    assert ops == {f"rooftop.{n}.default" for n in left}


@pytest.mark.sampled("compiled")
def test_rotations_of_many_elements_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph serves lengths on both sides of the bound only with a guard on it."""
    monkeypatch.setattr(rotations, "FEW", 2 * 64 * 20)  # two sequences, 64 elements a token
    model, found = _patched("llama", decompose=None), []
    for length in (16, 32):
        torch._dynamo.reset()
        graphs = Graphs()
        with torch.no_grad():
            got, want = (m(_ids(length), use_cache=False).logits for m in (torch.compile(model, fullgraph=True, backend=graphs), model))
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
        found.append(any("rooftop.rope" in str(n.target) for n in graphs.found[0].graph.nodes))
    assert found == [False, True]


def _code(function: Any, *args: Any) -> list[str]:
    """The calls that inductor's program makes, each of its parts."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    _, code = run_and_get_code(function, *args)
    return [re.sub(r"#.*", "", text.split("def call")[-1].split("runner = ")[0]) for text in code]


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.sampled("compiled")
def test_inductor_makes_no_copies_around_the_ops() -> None:
    """Between products: the ops, the additions of residuals, and what computes tables; no more."""
    cls, config = _kinds.works("llama")
    model = _kinds.made(cls, type(config)(**{**config.to_dict(), "num_hidden_layers": 1}), "eager").train()
    rooftop.patch(model, residual=True, decompose=())
    compiled, ids = torch.compile(model, fullgraph=True), _ids(16)

    def step() -> None:
        compiled(ids, labels=ids, use_cache=False).loss.backward()

    forward, backward = _code(step)
    ops = re.findall(r"torch\.ops\.rooftop\.(\w+)\.default\(", forward)
    assert sorted(ops) == ["attention", "linear_cross_entropy", "rms_norm", "rms_norm", "rms_norm", "rope", "swiglu"]
    fused = re.findall(r"^ *cpp_fused_(\w+)\(", forward + backward, re.M)
    copies = [f for f in fused if re.search("clone|transpose|copy_(?!add)", f) and "cos" not in f and "pad" not in f]  # tables; labels, shifted
    assert not copies and not re.findall(r"aten\.(clone|copy|contiguous)|\.copy_\(", forward + backward), fused


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.sampled("compiled")
def test_a_cache_is_written_in_place() -> None:
    def step(keys: Any, values: Any, q: Any, k: Any, v: Any, lengths: Any) -> Any:
        rooftop.append_kv(keys, values, k, v, lengths)
        return rooftop.attention(q, keys, values, cache_lengths=lengths + 1) * 2

    g = torch.Generator().manual_seed(1)
    keys, values = torch.zeros(2, 32, 2, 16), torch.zeros(2, 32, 2, 16)
    q, k, v = (torch.randn(2, 1, h, 16, generator=g) for h in (4, 2, 2))
    lengths, others = torch.tensor([3, 5], dtype=torch.int32), (keys.clone(), values.clone())
    want, compiled, got = step(*others, q, k, v, lengths), torch.compile(step, fullgraph=True), []
    (code,) = _code(lambda: got.append(compiled(keys, values, q, k, v, lengths)))
    torch.testing.assert_close(got[0], want)
    assert torch.equal(keys, others[0]) and "append_kv.default(arg" in code and "copy" not in code and "empty_strided_cpu((2, 32" not in code


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.sampled("compiled")
def test_a_graph_of_torchs_cache_finds_the_ops_in_the_next_process(tmp_path: Path) -> None:
    """There torch traces no backward: nothing calls its op but the graph, by name."""
    script = tmp_path / "step.py"
    script.write_text("""
import torch, rooftop
from torch._dynamo.utils import counters
x = torch.ones(3, 40, requires_grad=True)
torch.compile(lambda x: rooftop.rms_norm(x, (40,)).sum(), fullgraph=True)(x).backward()
print(x.grad.shape, counters["aot_autograd"]["autograd_cache_hit"])
""")
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    said = [subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)]
    assert said == [["torch.Size([3,", "40])", "0"], ["torch.Size([3,", "40])", "1"]]
