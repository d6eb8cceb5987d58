"""What a patched model still is, and what `patch` refuses."""

from __future__ import annotations

import copy
import inspect
import io
import os
import pickle
import subprocess
import sys
import types
from typing import Any

import _processes
import pytest
import torch
from drop_in import _kinds
from torch import nn

import rooftop
from rooftop.drop_in import gates, mixtures, residuals
from rooftop.drop_in.swapping import swap_of

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "pad_token_id": 0,
}


@pytest.fixture(scope="module")
def hf() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed (pip install -e '.[dev]')")


def _model(hf: Any, kind: str = "Llama", seed: int = 0, **more: Any) -> Any:
    torch.manual_seed(seed)
    return getattr(hf, f"{kind}ForCausalLM")(getattr(hf, f"{kind}Config")(**SIZES, **more)).eval()


READS = """import pickle, sys, torch
m, i, want = pickle.load(open(sys.argv[1], 'rb'))
torch.testing.assert_close(m(i).logits, want)
print(m.config._attn_implementation)"""


def _ids(length: int = 9) -> torch.Tensor:
    return torch.randint(3, 60, (2, length), generator=torch.Generator().manual_seed(1))


def _logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(_ids()).logits


def _gradient(model: Any, **more: Any) -> torch.Tensor:
    model.train().zero_grad()
    model(_ids(), labels=_ids(), use_cache=False, **more).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-6, rtol=2e-5)


# what it still is ------------------------------------------------------------------------------------------------------------------------


def test_only_the_instance_changes_and_layers_of_a_kind_share_a_class(hf: Any) -> None:
    model, other = _model(hf), _model(hf)
    module = sys.modules[type(model).__module__]
    before, function = dict(vars(module)), hf.LlamaForCausalLM.forward
    rooftop.patch(model)
    assert dict(vars(module)) == before and hf.LlamaForCausalLM.forward is function
    assert not any(swap_of(m) for m in other.modules()) and other.config._attn_implementation == "sdpa"
    a, b = model.model.layers
    for part in ("self_attn", "mlp", "input_layernorm"):
        assert swap_of(getattr(a, part)) is not None
        assert type(getattr(a, part)) is type(getattr(b, part)), part
    rooftop.patch(other)
    assert type(other.model.norm) is type(model.model.norm) is type(a.input_layernorm)
    assert isinstance(a.mlp, module.LlamaMLP) and type(a.mlp).__name__ == "LlamaMLP" and type(model).__name__ == "LlamaForCausalLM"


def test_the_signature_is_that_of_the_model(hf: Any) -> None:
    """Trainer drops columns of the data by it."""
    model = _model(hf)
    want = inspect.signature(model.forward)
    rooftop.patch(model)
    assert inspect.signature(model.forward) == want


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_copies_are_patched_too(hf: Any, how: str) -> None:
    model = _model(hf)
    rooftop.patch(model)
    if how == "deepcopy":
        made = copy.deepcopy(model)
    elif how == "pickle":
        made = pickle.loads(pickle.dumps(model))
    else:
        torch.save(model, stored := io.BytesIO())
        stored.seek(0)
        made = torch.load(stored, weights_only=False)
    assert torch.equal(_logits(made), _logits(model)) and all(type(a) is type(b) for a, b in zip(made.modules(), model.modules(), strict=True))
    rooftop.unpatch(made)
    assert type(made) is hf.LlamaForCausalLM and made.config._attn_implementation == "sdpa"
    assert rooftop.drop_in.is_patched(model) and not rooftop.drop_in.is_patched(made)


@pytest.mark.sampled("slow")
def test_a_pickle_is_read_in_another_process(hf: Any, tmp_path: Any) -> None:
    model = _model(hf)
    rooftop.patch(model)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps((model, _ids(), _logits(model))))
    done = subprocess.run([sys.executable, "-c", READS, str(tmp_path / "model.pkl")], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "rooftop", done.stderr


def test_a_checkpoint_is_that_of_the_model(hf: Any, tmp_path: Any) -> None:
    model = _model(hf)
    plain = _logits(model)
    rooftop.patch(model)
    model.save_pretrained(tmp_path)
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is hf.LlamaForCausalLM and again.config.architectures == ["LlamaForCausalLM"] and again.config._attn_implementation == "sdpa"
    torch.testing.assert_close(_logits(again), plain, atol=0, rtol=0)
    model.load_state_dict(again.state_dict())


def test_hooks_run_as_before(hf: Any) -> None:
    model, seen = _model(hf), []
    watched = {n: m for n, m in model.named_modules() if n.endswith(("mlp", "norm", "gate_proj", "self_attn"))}
    handles = [m.register_forward_hook(lambda m, i, o, n=n: seen.append(n)) for n, m in watched.items()]
    _logits(model)
    want, seen[:] = list(seen), []
    rooftop.patch(model)
    _logits(model)
    assert seen == want and len(want) == 11
    for h in handles:
        h.remove()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_activations(hf: Any, reentrant: bool) -> None:
    model = _model(hf)
    want = _gradient(model)
    rooftop.patch(model, residual=True)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    _close(_gradient(model), want)


def test_selective_checkpoints_know_the_ops_by_name(hf: Any) -> None:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    model, seen = _model(hf), set()

    def policy(_: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        seen.add(str(op))
        return CheckpointPolicy.MUST_SAVE if "rooftop.attention" in str(op) else CheckpointPolicy.PREFER_RECOMPUTE

    want = _gradient(model)
    rooftop.patch(model)
    how = {"use_reentrant": False, "context_fn": lambda: create_selective_checkpoint_contexts(policy)}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
    _close(_gradient(model), want)
    assert {"rooftop.attention.default", "rooftop.rms_norm.default", "rooftop.rope.default", "rooftop.swiglu.default"} <= seen


def test_output_hidden_states_are_those_of_the_model(hf: Any) -> None:
    model = _model(hf)
    with torch.no_grad():
        want = model(_ids(), output_hidden_states=True).hidden_states
        rooftop.patch(model, residual=True)
        for got, w in zip(model(_ids(), output_hidden_states=True).hidden_states, want, strict=True):
            _close(got, w)


@pytest.mark.parametrize("first", ["patch", "adapters"])
def test_adapters_of_peft(hf: Any, first: str) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "gate_proj", "down_proj"], init_lora_weights=False)
    model = _model(hf)
    if first == "patch":
        rooftop.patch(model)
    model, other = peft.get_peft_model(model, config), peft.get_peft_model(_model(hf), config)
    if first == "adapters":
        assert rooftop.patch(model).replaced["mlp"] == 2
    model.load_state_dict(other.state_dict())
    _close(_gradient(model), _gradient(other))


def test_distributed_wrappers(hf: Any) -> None:
    """FSDP2 and DDP over a patched model, in a group of one."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    want = _gradient(_model(hf))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = _model(hf)
        rooftop.patch(model)
        ddp = nn.parallel.DistributedDataParallel(model)
        _close(_gradient(ddp), want)
        model = _model(hf)
        rooftop.patch(model)
        mesh = dist.init_device_mesh("cpu", (1,)) if hasattr(dist, "init_device_mesh") else dist.device_mesh.init_device_mesh("cpu", (1,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model.train()
        model(_ids(), labels=_ids(), use_cache=False).loss.backward()
        _close(torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()]), want)
        with pytest.raises(ValueError, match=r"unpatch: .* was wrapped by FSDP after it was patched; unpatch it before$"):
            rooftop.unpatch(model)
        plain = _model(hf)
        fully_shard(plain, mesh=mesh)
        with pytest.raises(ValueError, match=r"is wrapped by FSDP; patch the model before it is wrapped$"):
            rooftop.patch(plain)
    finally:
        dist.destroy_process_group()


def test_a_model_that_is_wrapped_in_part_is_refused(hf: Any) -> None:
    """One layer is wrapped by FSDP, the rest is not yet."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        plain, patched = _model(hf), _model(hf)
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        fully_shard(plain.model.layers[0], mesh=mesh)
        with pytest.raises(ValueError, match=r"^patch: FSDPLlamaDecoderLayer is wrapped by FSDP; patch the model before it is wrapped$"):
            rooftop.patch(plain)
        assert not rooftop.drop_in.is_patched(plain) and plain.config._attn_implementation != "rooftop"
        rooftop.patch(patched, residual=True)
        fully_shard(patched.model.layers[0], mesh=mesh)
        with pytest.raises(ValueError, match=r"^unpatch: LlamaForCausalLM was wrapped by FSDP after it was patched; unpatch it before$"):
            rooftop.unpatch(patched)
    finally:
        dist.destroy_process_group()


def _sharded(rank: int, ranks: int, path: str) -> tuple[Any, ...]:
    """(the plan before and after, what was left and why, logits and gradients of norms: patched and not)."""
    os.environ.update(LOCAL_RANK=str(rank), RANK=str(rank), WORLD_SIZE=str(ranks))
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    model = AutoModelForCausalLM.from_pretrained(path, distributed_config=DistributedConfig(tp_plan="auto"))
    plan = dict(model.tp_plan)
    found = []
    for patched in (False, True):
        report = rooftop.patch(model) if patched else None
        model.train()
        model.zero_grad()
        out = model(_ids(), labels=_ids(), use_cache=False)
        out.loss.backward()
        found += [out.loss.detach(), model.model.norm.weight.grad.clone(), model.model.layers[0].input_layernorm.weight.grad.clone()]
    assert report is not None
    return plan, dict(model.tp_plan), report.replaced, [r.why for r in report.left], found


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_tensor_parallel_ranks_compute_the_same(hf: Any, kind: str, tmp_path: Any) -> None:
    """Two ranks that hold halves of the products, by the plan of the model."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    cls, config = _kinds.works(kind)
    _kinds.made(cls, config, "eager").save_pretrained(tmp_path)
    before, after, replaced, why, found = _processes.run(_sharded, 2, str(tmp_path))[0]
    assert before == after and before
    assert replaced["attention"] == 2 and replaced["rope"] == 2 and replaced["rms_norm"] >= 5 and ("mlp" in replaced) == (kind == "llama")
    head = "its output embedding has hooks, or another forward"
    assert head in why and (kind == "llama" or any("weights of it are distributed" in w for w in why))
    for plain, patched in zip(found[:3], found[3:], strict=True):
        _close(patched, plain)


def test_quantised_experts_are_named(hf: Any) -> None:
    """Grouped products take no 8 bits; the rest of the model is patched."""
    cls, config = _kinds.works("qwen3_moe")
    model = _kinds.made(cls, config, "eager")
    for layer in model.model.layers:
        layer.mlp.experts.down_proj = nn.Parameter(layer.mlp.experts.down_proj.data.to(torch.float8_e4m3fn), requires_grad=False)
    report = rooftop.patch(model)
    (row,) = (r for r in report.left if r.part == "experts")
    assert (row.what, row.count) == ("Qwen3MoeExperts", 2) and report.replaced["rms_norm"] == 9
    assert row.why == "weights of it are torch.float8_e4m3fn; grouped products take float32, float16 and bfloat16 of one device"


def test_accelerate_prepares_it(hf: Any) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    found = []
    for patched in (False, True):
        model = _model(hf).train()
        if patched:
            rooftop.patch(model)
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(4):
            with accelerator.accumulate(model):
                accelerator.backward(model(_ids(), labels=_ids(), use_cache=False).loss)
                optimizer.step()
                optimizer.zero_grad()
        found.append(torch.cat([p.detach().flatten() for p in accelerator.unwrap_model(model).parameters()]))
        assert rooftop.drop_in.is_patched(model) == patched
    _close(found[1], found[0])


def test_trainer_trains_it(hf: Any, tmp_path: Any) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    data, losses = [{"input_ids": row, "labels": row} for row in _ids(12).repeat(4, 1)], []
    for patched in (False, True):
        model = _model(hf)
        if patched:
            rooftop.patch(model)
        how = hf.TrainingArguments(
            str(tmp_path), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2, report_to=[], use_cpu=True, save_strategy="no"
        )
        losses.append(hf.Trainer(model, how, train_dataset=data, eval_dataset=data).train().training_loss)
    assert abs(losses[0] - losses[1]) < 1e-5


def test_autocast_trains_as_eager_does(hf: Any) -> None:
    found = []
    for patched, low in ((False, False), (False, True), (True, True)):
        model = _model(hf)
        if patched:
            rooftop.patch(model, residual=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            found.append(_gradient(model))
    assert (found[2] - found[0]).norm() <= 1.5 * (found[1] - found[0]).norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(hf: Any, dtype: torch.dtype) -> None:
    """float64, which no kernel takes, runs as in eager."""
    exact = _logits(_model(hf).double())
    eager, model = _model(hf).to(dtype), _model(hf).to(dtype)
    rooftop.patch(model)
    got, want = _logits(model), _logits(eager)
    assert got.dtype == want.dtype == dtype
    assert (got - exact).norm() <= 1.5 * (want - exact).norm() + 1e-12 * exact.norm()
    _gradient(model)


# the loss --------------------------------------------------------------------------------------------------------------------------------


def test_logits_are_made_on_request_and_in_evaluation(hf: Any) -> None:
    model = _model(hf)
    rooftop.patch(model)
    ids = _ids()
    assert model.eval()(ids, labels=ids).logits is not None and model(ids, labels=ids, skip_logits=True).logits is None
    model.train()
    assert model(ids, labels=ids).logits is None and model(ids, labels=ids, skip_logits=False).logits is not None and model(ids).logits is not None
    assert model(ids, logits_to_keep=2).logits.shape[1] == 2
    losses = [model(ids, labels=ids, skip_logits=s).loss for s in (True, False)]
    _close(*losses)
    assert isinstance(model(ids, labels=ids, return_dict=False), tuple)


@pytest.mark.parametrize("more", [{"num_items_in_batch": 5}, {"num_items_in_batch": torch.tensor(5)}, {"shift_labels": True}, {"ignore_index": 7}])
def test_options_of_the_loss(hf: Any, more: dict[str, Any]) -> None:
    plain, model = _model(hf).train(), _model(hf).train()
    rooftop.patch(model)
    ids = _ids()
    labels = ids.clone()
    labels[0, :3] = more.get("ignore_index", -100)
    given = {**more, "shift_labels": labels.roll(-1, 1)} if "shift_labels" in more else more
    _close(model(ids, labels=labels, **given).loss, plain(ids, labels=labels, **given).loss)


def test_labels_of_another_length(hf: Any) -> None:
    model = _model(hf).train()
    rooftop.patch(model)
    with pytest.raises(ValueError, match=r"target has shape \(12,\); it must be that of x but for the last dimension, \(18,\)$"):
        model(_ids(), labels=_ids(6))
    assert torch.isfinite(model(_ids(), labels=_ids()).loss)


# what it refuses -------------------------------------------------------------------------------------------------------------------------


def _unchanged(model: nn.Module) -> None:
    assert not rooftop.drop_in.is_patched(model) and not any("_rooftop" in vars(m) for m in model.modules())


def test_bad_input_is_one_clear_line_and_changes_nothing(hf: Any) -> None:
    model = _model(hf)
    with pytest.raises(TypeError, match=r"^patch: model is a str; it must be a torch.nn.Module$"):
        rooftop.patch("llama")
    with pytest.raises(TypeError, match=r"^patch: 'rms' is no part; there are attention, rms_norm, "):
        rooftop.patch(model, rms=True)
    with pytest.raises(TypeError, match=r"^patch: rope is 'yes'; it must be True or False$"):
        rooftop.patch(model, rope="yes")
    with pytest.raises(ValueError, match=r"^patch: memory is 'big'; it must be 'fast' or 'small'$"):
        rooftop.patch(model, memory="big")
    with pytest.raises(ValueError, match=r"^unpatch: LlamaForCausalLM is not patched$"):
        rooftop.unpatch(model)
    with torch.device("meta"):
        empty = hf.LlamaForCausalLM(model.config)
    with pytest.raises(ValueError, match=r"^patch: model.embed_tokens.weight is on the meta device and has no values; load the model first$"):
        rooftop.patch(empty)
    _unchanged(empty)
    _unchanged(model)
    with rooftop.patch(model), pytest.raises(ValueError, match=r"^patch: LlamaForCausalLM is patched already; rooftop.unpatch\(model\) first$"):
        rooftop.patch(model)
    _unchanged(model)
    with pytest.raises(ValueError, match=r"^patch: nothing of Sequential can be replaced \(attention of Sequential: it is no model of Transformers\)$"):
        rooftop.patch(nn.Sequential(nn.Linear(4, 4)))


def test_what_others_have_replaced_is_left(hf: Any) -> None:
    model = _model(hf)
    model.model.norm.forward = lambda x: x * 2
    model.forward = model.forward
    report = rooftop.patch(model)
    why = {r.what: r.why for r in report.left}
    assert why == {"LlamaRMSNorm": f"its forward was replaced by {__name__.split('.')[0]}", "LlamaForCausalLM": "its forward was replaced by transformers"}
    assert report.replaced["rms_norm"] == 4 and torch.equal(model.model.norm(torch.ones(2, 32)), torch.full((2, 32), 2.0))


def test_hooks_of_accelerate_are_left(hf: Any) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    model = _model(hf)
    accelerate.hooks.add_hook_to_module(model.model.layers[0].mlp, accelerate.hooks.ModelHook())
    want = _logits(model)
    report = rooftop.patch(model)
    assert [(r.part, r.what, r.count, r.why) for r in report.left] == [("mlp", "LlamaMLP", 1, "its forward was replaced by hooks of accelerate")]
    _close(_logits(model), want)


# models that nobody listed ---------------------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    def __init__(self, how: str, width: int = 16) -> None:
        super().__init__()
        self.weight, self.how, self.tiny = nn.Parameter(torch.randn(width)), how, 3e-4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        square = x.square().mean(-1, keepdim=True)
        match self.how:
            case "rms":
                return x * (square + self.tiny).rsqrt() * self.weight
            case "one plus":
                return x * (square + self.tiny).rsqrt() * (1 + self.weight)
            case "eps outside":
                return x / (square.sqrt() + self.tiny) * self.weight
            case "centred":
                return nn.functional.layer_norm(x, x.shape[-1:], self.weight, None, self.tiny)
            case "another eps":
                return x * (square + 1e-3).rsqrt() * self.weight
            case "no gradient":
                return (x * (square + self.tiny).rsqrt()).detach() * self.weight
        return x * (square + self.tiny).rsqrt() * self.weight.abs()


class Optional(Norm):
    """A norm with a gate that may be given, as Mamba's."""

    def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x if gate is None else x * gate)


class Layer(nn.Module):
    """A decoder layer of no known family; `how` says what it does otherwise."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm("rms"), Norm("rms")
        self.self_attn, self.mlp, self.how = Mixing(), Gate("second"), how

    def forward(self, hidden_states: torch.Tensor, scale: Any = None, **kwargs: Any) -> torch.Tensor:
        given = {"scale": None if self.how == "keeps scale" else scale, **kwargs}
        h = hidden_states + self.self_attn(hidden_states=self.input_layernorm(hidden_states), **given)[0] * (0.5 if self.how == "half" else 1)
        return h + self.mlp(self.post_attention_layernorm(h))


class After(nn.Module):
    """A layer that adds after its norms; `how` says what it does otherwise."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.post_attention_layernorm, self.post_feedforward_layernorm = Norm("one plus"), Norm("one plus")
        self.self_attn, self.mlp, self.how = Mixing(), Gate("second"), how
        if how == "between":
            self.input_layernorm, self.pre_feedforward_layernorm = Norm("rms"), Norm("rms")

    def forward(self, hidden_states: torch.Tensor, scale: Any = None, **kwargs: Any) -> torch.Tensor:
        before, between = (self.input_layernorm, self.pre_feedforward_layernorm) if self.how == "between" else (nn.Identity(), nn.Identity())
        made = self.post_attention_layernorm(self.self_attn(hidden_states=before(hidden_states), scale=scale, **kwargs)[0])
        h = made + hidden_states
        made = self.post_feedforward_layernorm(self.mlp(between(h)))
        return made + {"plain": h, "between": h, "the first": hidden_states, "of the sum": self.post_feedforward_layernorm(h)}[self.how]


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, hidden_states: torch.Tensor, scale: Any = None, **kwargs: Any) -> Any:
        return self.layer(hidden_states) * (1 if scale is None else scale), None


class Gate(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 24), nn.Linear(16, 24, bias=False), nn.Linear(24, 16)
        self.act, self.drop, self.how = nn.SiLU(), nn.Dropout(0.5), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        match self.how:
            case "second":
                return self.c(self.a(x) * self.act(self.b(x)))
            case "gelu":
                return self.c(nn.functional.gelu(self.a(x)) * self.b(x))
            case "dropped":
                return self.c(self.drop(self.act(self.a(x)) * self.b(x)))
            case "added":
                return self.c(self.act(self.a(x)) * self.b(x)) + x
        return self.c(torch.relu(self.a(x)) * self.b(x))


NORMS = {"rms": True, "one plus": True, "centred": True, "eps outside": False, "another eps": False, "no gradient": False, "absolute": False}
GATES = {"second": True, "gelu": True, "dropped": False, "added": False, "relu": False}


@pytest.mark.parametrize("how", NORMS)
def test_norms_are_found_by_what_they_compute(how: str) -> None:
    torch.manual_seed(1)
    model, x = nn.Sequential(nn.Linear(8, 16), Norm(how), nn.SiLU()), torch.randn(5, 8)
    want = model(x)
    report = rooftop.patch(model)
    assert ("rms_norm" in report.replaced or "layer_norm" in report.replaced) == NORMS[how], str(report)
    _close(model(x), want)


def test_an_argument_that_may_be_given_is_still_taken() -> None:
    torch.manual_seed(1)
    norm, x = Optional("rms"), torch.randn(5, 16)
    want = norm(x), norm(x, gate=x)
    assert rooftop.patch(norm).replaced == {"rms_norm": 1}
    _close(norm(x), want[0])
    _close(norm(x, gate=x), want[1])


@pytest.mark.parametrize(("how", "replaced"), [("plain", True), ("keeps scale", False), ("half", False)])
def test_a_layer_hands_on_what_it_is_given(how: str, replaced: bool) -> None:
    torch.manual_seed(1)
    layer, x = Layer(how).eval(), torch.randn(2, 3, 16)
    want = layer(x, scale=3.0)
    report = rooftop.patch(layer, residual=True)
    assert ("residual" in report.replaced) == replaced, str(report)
    _close(layer(x, scale=3.0), want)


@pytest.mark.parametrize(("how", "added"), [("plain", 2), ("between", 2), ("the first", 0), ("of the sum", 0)])
@pytest.mark.parametrize("hooked", [False, True])
def test_a_layer_that_adds_after_its_norms_adds_in_them(how: str, added: int, hooked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    layer, x, seen, called = After(how), torch.randn(2, 3, 16, requires_grad=True), [], []
    want = layer(x, scale=3.0)
    (wanted,) = torch.autograd.grad(want.square().sum(), x)
    report = rooftop.patch(layer, residual=True)
    assert report.replaced.get("residual", 0) == (added > 0), str(report)
    monkeypatch.setattr(residuals, "rms_norm", lambda *a, **k: seen.append(k["addend"]) or rooftop.rms_norm(*a, **k))
    if hooked:
        layer.post_attention_layernorm.register_forward_hook(lambda *_: called.append(1))
    got = layer(x, scale=3.0)
    assert len(seen) == added - (added > 0 and hooked) and len(called) == hooked
    _close(got, want)
    _close(torch.autograd.grad(got.square().sum(), x)[0], wanted)


class Clamped(nn.Module):
    """A gate that clamps: DeepSeek V4's, gpt-oss's in halves or in turns; clamped after the activation it is another."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.limit, self.alpha, self.act = how, 7.0, 1.702, nn.SiLU()
        self.down, self.packed = nn.Linear(24, 16), nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.packed(x)
        gate, up = (both[..., ::2], both[..., 1::2]) if self.how == "in turns" else both.chunk(2, -1)
        if self.how == "after":
            return self.down(self.act(gate).clamp(max=self.limit) * up.clamp(-self.limit, self.limit))
        gate, up = gate.clamp(max=self.limit), up if self.how == "gate alone" else up.clamp(-self.limit, self.limit)
        if self.how in ("in turns", "halves"):
            return self.down((up + 1) * gate * torch.sigmoid(self.alpha * gate))
        return self.down(self.act(gate) * up)


@pytest.mark.parametrize(("how", "replaced"), [("clamped", True), ("in turns", True), ("halves", True), ("after", False), ("gate alone", False)])
@pytest.mark.parametrize("size", [1.0, 50.0])
def test_clamped_gates_are_found_by_what_they_compute(how: str, replaced: bool, size: float) -> None:
    torch.manual_seed(1)
    model, x = Clamped(how), (size * torch.randn(5, 16)).requires_grad_()
    want = model(x)
    (wanted,) = torch.autograd.grad(want.square().sum(), x)
    report = rooftop.patch(model) if replaced else rooftop.patch(nn.Sequential(model, Norm("rms")))
    assert ("mlp" in report.replaced) == replaced, str(report)
    got = model(x)
    (gradient,) = torch.autograd.grad(got.square().sum(), x)
    for a, b in ((got, want), (gradient, wanted)):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6 * float(b.detach().abs().max()))


def test_an_activation_that_clips_far_off_is_no_gelu() -> None:
    class Clipped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.gelu(x).clamp(-10, 10)

    model, x = nn.Sequential(Norm("rms"), Clipped()), 100 * torch.randn(3, 16)
    want = Clipped()(x)
    assert "activation" not in rooftop.patch(model).replaced
    _close(model[1](x), want)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("GptOss", ("silu", "limit", "alpha", 1, True)), ("DeepseekV4", ("silu", "limit", "", 0, False)),
        ("MiniMaxM3VL", ("silu", "swiglu_limit", "swiglu_alpha", 1, False)), ("Mixtral", ("silu", "", "", 0, False)),
    ],
)
def test_gates_of_experts_are_found_with_their_limits(hf: Any, kind: str, how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import import_module

    folder = {"GptOss": "gpt_oss", "DeepseekV4": "deepseek_v4", "MiniMaxM3VL": "minimax_m3_vl", "Mixtral": "mixtral"}[kind]
    try:
        cls = getattr(import_module(f"transformers.models.{folder}.modeling_{folder}"), f"{kind}Experts")
    except (ImportError, AttributeError):
        pytest.skip(f"this transformers has no {kind}Experts")
    sizes: dict[str, Any] = {"num_local_experts": 3, "n_routed_experts": 3, "hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 24}
    config = types.SimpleNamespace(**sizes, hidden_act="silu", swiglu_limit=4.0, swiglu_alpha=1.702, _experts_implementation="eager")
    torch.manual_seed(1)
    experts, seen = cls(config), []
    if kind == "GptOss":
        experts.limit = 4.0
    for p in experts.parameters():
        nn.init.normal_(p)
    exact, index = copy.deepcopy(experts).double(), torch.tensor([[0, 2], [1, 0], [2, 1], [1, 2]])
    x, weights = torch.randn(4, 16, requires_grad=True), torch.rand(4, 2)
    want = exact(x.double(), index, weights.double())
    (wanted,) = torch.autograd.grad(want.square().sum(), x)
    monkeypatch.setattr(mixtures, "gated", lambda module, way, h, up, turns: seen.append((*way, turns)) or gates.gated(module, way, h, up, turns))
    got = mixtures.experts_forward(experts, x, index, weights)
    (gradient,) = torch.autograd.grad(got.square().sum(), x)
    assert seen[-1] == how
    for a, b in ((got, want.float()), (gradient, wanted)):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6 * float(b.detach().abs().max()))


@pytest.mark.parametrize("how", GATES)
def test_gates_are_found_by_what_they_compute(how: str) -> None:
    torch.manual_seed(1)
    model, x = nn.Sequential(Norm("rms"), Gate(how)).eval(), torch.randn(5, 16)
    want = model(x)
    report = rooftop.patch(model)
    assert ("mlp" in report.replaced) == GATES[how], str(report)
    assert GATES[how] or [r.part for r in report.left if r.part == "mlp"] == ["mlp"]
    _close(model(x), want)


def test_random_numbers_are_not_used_up(hf: Any) -> None:
    model = _model(hf)
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    rooftop.patch(model)
    assert torch.equal(torch.rand(3), want)


def test_parts_and_their_other_names(hf: Any) -> None:
    off = dict.fromkeys(("attention", "rms_norm", "rope", "swiglu", "cross_entropy"), False)
    model = _model(hf)
    with pytest.raises(ValueError, match=r"^patch: nothing of LlamaForCausalLM can be replaced"):
        rooftop.patch(model, **off, activation=False)
    _unchanged(model)
    assert set(rooftop.patch(model, **{**off, "rms_norm": True}, gelu=False).replaced) == {"rms_norm"}
    said = str(rooftop.unpatch(model) and rooftop.patch(model, rope=False))
    assert "rms_norm" in said and "LlamaRMSNorm" in said and "rope" not in said


# models that others load -----------------------------------------------------------------------------------------------------------------


def test_models_are_patched_as_they_are_loaded(hf: Any, tmp_path: Any) -> None:
    plain = _model(hf)
    plain.save_pretrained(tmp_path)
    with rooftop.drop_in.apply_to("llama", swiglu=False) as applied:
        found = [
            hf.AutoModelForCausalLM.from_pretrained(tmp_path), hf.AutoModelForCausalLM.from_config(plain.config),
            hf.LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)[0],
        ]
        with pytest.raises(ValueError, match=r"^apply_to: LlamaForCausalLM is patched already as it is loaded; remove\(\) what the first call returned$"):
            rooftop.drop_in.apply_to("llama")
        assert not rooftop.drop_in.is_patched(hf.AutoModelForCausalLM.from_config(hf.Qwen2Config(**SIZES)))
    assert all(rooftop.drop_in.is_patched(m) for m in found) and [set(r.replaced) & {"mlp", "rope"} for r in applied.reports] == [{"rope"}] * 3
    _close(_logits(found[0]), _logits(plain))
    assert not rooftop.drop_in.is_patched(hf.AutoModelForCausalLM.from_pretrained(tmp_path))
    assert not {"from_pretrained", "_from_config"} & set(vars(hf.LlamaForCausalLM))
    with pytest.raises(ValueError, match=r"^apply_to: 'lama' is no type of Transformers' causal language models; there is llama"):
        rooftop.drop_in.apply_to("lama")
    with pytest.raises(TypeError, match=r"^patch: 'rms' is no part"):
        rooftop.drop_in.apply_to("llama", rms=True)
