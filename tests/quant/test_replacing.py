"""Layers of a model that make way for others: which, under which names, and all or none."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from rooftop.quant import QuantLinear, import_checkpoint, load_quantized, quantize_model, save_quantized
from rooftop.quant.safetensors_file import load_file, save_file
from rooftop.sparse import SparseLinear, sparsify_model

Convert = Callable[..., nn.Module]
BOTH = [
    pytest.param(lambda m, **k: quantize_model(m, "int8", group=64, **k), id="quant"),
    pytest.param(lambda m, **k: sparsify_model(m, "csr", **k), id="sparse"),
]
MADE = (QuantLinear, SparseLinear)


def some(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def replaced(model: nn.Module) -> set[str]:
    return {n for n, m in model.named_modules(remove_duplicate=False) if isinstance(m, MADE)}


def doubled(module: nn.Module, given: Any, out: Tensor) -> Tensor:
    return out * 2


# -- torch's fast path -----------------------------------------------------------------------------------------------


def encoder(layers: int = 2) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 64, batch_first=True), layers).eval()


@pytest.mark.parametrize("include", ["*", "layers.1.*"])
def test_the_fast_path_of_an_encoder_is_not_taken(include: str, tmp_path: Path) -> None:
    x, hidden = some(2, 5, 64), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    model = encoder()
    with torch.no_grad():
        want = model(x, src_key_padding_mask=hidden)
        quantize_model(model, "int8", group=64, include=include)
        save_quantized(model, tmp_path / "m.safetensors")
        for m in (model, copy.deepcopy(model), load_quantized(encoder(), tmp_path / "m.safetensors")):
            assert len(replaced(m)) == (4 if include == "*" else 2)
            torch.testing.assert_close(m(x, src_key_padding_mask=hidden)[~hidden], want[~hidden], atol=0.05, rtol=0.05)
    assert type(model.layers[0].self_attn.out_proj) is not QuantLinear


def test_attention_alone_has_nothing_to_replace() -> None:
    with pytest.raises(ValueError, match=r"there are out_proj \(a NonDynamicallyQuantizableLinear, a subclass\)"):
        quantize_model(nn.MultiheadAttention(128, 4), "int8")


# -- what is refused, what is left alone -------------------------------------------------------------------------------


@pytest.mark.parametrize("convert", BOTH)
@pytest.mark.parametrize(
    ("last", "error", "text"),
    [
        (lambda: nn.Linear(64, 64).double(), TypeError, r"1\.0 \(64, 64\): its weight is torch.float64; accepted are torch.float32"),
        (lambda: nn.Linear(64, 64, dtype=torch.complex64), TypeError, r"1\.0 .*torch.complex64"),
        (lambda: nn.Linear(64, 64, device="meta"), ValueError, r"1\.0 .*meta device"),
    ],
)
def test_a_layer_in_the_middle_that_is_refused(convert: Convert, last: Any, error: type[Exception], text: str) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Sequential(last()))
    before = list(model.modules())
    with pytest.raises(error, match=text):
        convert(model)
    assert list(model.modules()) == before


class Twice(nn.Linear):  # type: ignore[misc]
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def pruned() -> nn.Linear:
    layer = nn.Linear(64, 64)
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


def with_another_forward() -> nn.Linear:
    layer = nn.Linear(64, 64)
    plain = layer.forward
    layer.forward = lambda x: plain(x) * 3
    return layer


@pytest.mark.parametrize("convert", BOTH)
@pytest.mark.parametrize(
    "layer",
    [
        lambda: Twice(64, 64), lambda: parametrizations.weight_norm(nn.Linear(64, 64)), lambda: parametrizations.orthogonal(nn.Linear(64, 64)),
        lambda: nn.utils.spectral_norm(nn.Linear(64, 64)), pruned, with_another_forward,
    ],
)
def test_layers_that_compute_something_else_stay(convert: Convert, layer: Callable[[], nn.Module]) -> None:
    model, x = nn.Sequential(layer(), nn.Linear(64, 64)).eval(), some(3, 64)
    want = model[0](x)
    convert(model)
    assert replaced(model) == {"1"} and torch.equal(model[0](x), want)


def test_a_sparse_model_of_something_else() -> None:
    with pytest.raises(TypeError, match="model is a str"):
        sparsify_model("model")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"skip is \[0\]"):
        sparsify_model(nn.Linear(64, 64), skip=[0])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="algorithm is 'best'"):
        sparsify_model(nn.Linear(64, 64), train24=True, algorithm="best")
    with pytest.raises(ValueError, match="block is 32 with layout 'auto'"):
        sparsify_model(nn.Linear(64, 64), "auto", block=32)
    for how in ({}, {"train24": True}):
        layer = sparsify_model(nn.Linear(64, 64), **how)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"a 2:4 weight is torch.float32; accepted are torch.float16 and torch.bfloat16"):
            layer(some(3, 64))
        assert layer.half()(some(3, 64).half()).dtype == torch.float16


# -- hooks, biases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("convert", BOTH)
def test_hooks_go_along(convert: Convert) -> None:
    model, x = nn.Sequential(nn.Linear(64, 64)), some(3, 64)
    handle = model[0].register_forward_hook(doubled)
    model[0].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    gradients: list[Tensor] = []
    model[0].register_full_backward_hook(lambda module, inward, outward: gradients.append(outward[0]))
    bias, want = model[0].bias, model(x)
    out = convert(model)(x)
    torch.testing.assert_close(out, want, atol=0.1, rtol=0.05)
    out.sum().backward()
    assert len(gradients) == 1 and model[0].bias is bias and bias.grad is not None
    handle.remove()
    torch.testing.assert_close(model(x) * 2, out)


@pytest.mark.parametrize("convert", BOTH)
def test_conversion_in_inference_mode(convert: Convert) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    with torch.inference_mode():
        convert(model)
    x = some(3, 64).requires_grad_()
    model(x).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("convert", BOTH)
def test_a_layer_is_called_as_before(convert: Convert) -> None:
    layer, x = convert(nn.Linear(64, 64)), some(3, 64)
    assert torch.equal(layer(input=x), layer(x))
    for bad in (some(3, 128), some(3, 32), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"it must be \[\.\.\., 64\]"):
            layer(bad)
    with pytest.raises(TypeError, match="is a str; it must be a tensor"):
        layer("x")


def test_gptq_of_a_layer_called_by_keyword() -> None:
    class Named(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(input=x)

    model = quantize_model(Named(), "int4", group=64, method="gptq", calibration=[some(200, 64)])
    assert replaced(model) == {"fc"} and model(some(3, 64)).shape == (3, 64)


# -- several names ------------------------------------------------------------------------------------------------------


class Shared(nn.Module):  # type: ignore[misc]
    """One layer under four names."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.a = nn.Linear(64, 64)
        self.b, self.more = self.a, nn.ModuleList([self.a, self.a])

    def forward(self, x: Tensor) -> Tensor:
        return self.more[1](self.b(self.a(x)))


class Tied(nn.Module):  # type: ignore[misc]
    """Two layers with one weight."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.a, self.b, self.e = nn.Linear(64, 64), nn.Linear(64, 64), nn.Embedding(64, 64)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


@pytest.mark.parametrize("convert", BOTH)
def test_a_layer_of_several_names_stays_one(convert: Convert) -> None:
    model = convert(Shared())
    assert replaced(model) == {"a", "b", "more.0", "more.1"} and model.a is model.b is model.more[0] is model.more[1]
    assert model(some(3, 64)).shape == (3, 64)
    key = "exclude" if "quant" in str(type(model.a)) else "skip"
    other = nn.ModuleDict({"shared": Shared(), "x": nn.Linear(64, 64)})
    assert replaced(convert(other, **{key: ["shared.b"]})) == {"x"}


@pytest.mark.parametrize("convert", BOTH)
def test_a_tied_weight_is_converted_once(convert: Convert) -> None:
    model = convert(Tied())
    name = "codes" if isinstance(model.a, QuantLinear) else "values"
    assert getattr(model.a, name) is getattr(model.b, name) and model.a.bias is not model.b.bias
    trained = sparsify_model(Tied(), train24=True)
    assert trained.a.weight is trained.b.weight and sum(p.numel() for p in trained.parameters()) == sum(p.numel() for p in Tied().parameters())


def test_gptq_of_a_tied_weight_has_the_inputs_of_both() -> None:
    model, x = Tied(), some(300, 64)
    with torch.no_grad():
        both = torch.cat([x, model.a(x)])
    one = quantize_model(nn.Sequential(copy.deepcopy(model.a)), "int4", group=64, method="gptq", calibration=[both])
    quantize_model(model, "int4", group=64, method="gptq", calibration=[x])
    assert model.a.codes is model.b.codes and float((model.a.codes == one[0].codes).float().mean()) > 0.99


@pytest.mark.parametrize("kind", [Shared, Tied])
def test_several_names_in_a_file(kind: Any, tmp_path: Path) -> None:
    path, x = tmp_path / "m.safetensors", some(3, 64)
    model = quantize_model(kind(), "int4", group=64)
    save_quantized(model, path)
    for target in (kind(1), quantize_model(kind(2), "int8", group=64)):
        found = load_quantized(target, path)
        assert torch.equal(found(x), model(x)) and found.a.codes is found.b.codes and (found.a is found.b) == (kind is Shared)


def test_a_file_whose_layers_differ_where_the_model_has_one(tmp_path: Path) -> None:
    path, model = tmp_path / "m.safetensors", Shared()
    model.b = nn.Linear(64, 64)
    save_quantized(quantize_model(model, "int4", group=64), path)
    target = Shared(1)
    with pytest.raises(ValueError, match="a and b differ there; they are one layer in the model"):
        load_quantized(target, path)
    assert not replaced(target)


# -- files and checkpoints: all or nothing ----------------------------------------------------------------------------


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64), nn.LayerNorm(64))


@pytest.mark.parametrize(
    "change",
    [{"2.codes": lambda t: t[:1]}, {"3.bias": None}, {"3.weight": lambda t: t[:3]}, {"more": 1}, {"2.scale": lambda t: t.half()}, {"2.bias": None}],
)
def test_a_file_that_does_not_fit_changes_nothing(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_quantized(quantize_model(net(), "int4", group=64), path)
    tensors, metadata = load_file(path)
    for name, new in change.items():
        old = tensors.pop(name, torch.zeros(3))
        if new is not None:
            tensors[name] = new(old) if callable(new) else old
    save_file(tensors, path, metadata)
    for target in (net(1), quantize_model(net(1), "int8", group=64)):
        modules, state = list(target.modules()), {n: t.clone() for n, t in target.state_dict().items()}
        with pytest.raises(ValueError, match=next(iter(change))):
            load_quantized(target, path)
        after = target.state_dict()
        assert list(target.modules()) == modules and set(after) == set(state) and all(torch.equal(after[n], t) for n, t in state.items())


def gptq(n: int, k: int) -> dict[str, Tensor]:
    words = torch.randint(0, 1 << 30, (k // 8, n), dtype=torch.int32)
    return {"qweight": words, "qzeros": torch.zeros(1, n // 8, dtype=torch.int32), "scales": torch.ones(1, n).half(), "bias": torch.zeros(n)}


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"scales": None}, ValueError, "2 lacks scales"),
        ({"qweight": torch.zeros(4, 64, dtype=torch.int32)}, ValueError, r"2 is \(64, 32\)"),
        ({"scales": torch.ones(1, 64).double()}, ValueError, "2: .*float64"),
        ({"bias": torch.zeros(64, dtype=torch.int32)}, TypeError, "2: QuantLinear: bias"),
        ({"g_idx": torch.arange(64).int()}, ValueError, "2: .*activation order"),
    ],
)
def test_a_checkpoint_with_a_bad_layer_in_the_middle(change: dict[str, Any], error: type[Exception], text: str) -> None:
    target = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 64))
    given = {f"{i}.{k}": t for i in (0, 2, 3) for k, t in gptq(64, 64).items()}
    given = {k: t for k, t in {**given, **{f"2.{k}": t for k, t in change.items()}}.items() if t is not None}
    state = {n: t.clone() for n, t in target.state_dict().items()}
    with pytest.raises(error, match=text):
        import_checkpoint(target, given, "gptq")
    assert not replaced(target) and all(torch.equal(t, state[n]) for n, t in target.state_dict().items())


class Refuses(nn.Module):  # type: ignore[misc]
    def get_extra_state(self) -> Tensor:
        return torch.zeros(1)

    def set_extra_state(self, state: Any) -> None:
        raise RuntimeError("no such state")


def test_a_module_that_refuses_its_state_changes_nothing(tmp_path: Path) -> None:
    def model() -> nn.Sequential:
        return nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), Refuses())

    target = model()
    given = {**{f"1.{k}": t for k, t in gptq(64, 64).items()}, "0.weight": torch.zeros(64), "0.bias": torch.ones(64), "2._extra_state": torch.zeros(1)}
    with pytest.raises(RuntimeError, match="no such state"):
        import_checkpoint(target, given, "gptq")
    assert not replaced(target) and bool((target[0].weight == 1).all())
    save_quantized(quantize_model(model(), "int4", group=64), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="no such state"):
        load_quantized(target, tmp_path / "m.safetensors")
    assert not replaced(target)


def test_names_of_a_checkpoint_that_the_model_ties() -> None:
    target = nn.ModuleDict({"wte": nn.Embedding(64, 64), "fc": nn.Linear(64, 64), "lm_head": nn.Linear(64, 64, bias=False), "shared": Shared()})
    target["lm_head"].weight = target["wte"].weight
    given = {"wte.weight": torch.full((64, 64), 2.0), **{f"{n}.{k}": t for n in ("fc", "shared.a") for k, t in gptq(64, 64).items()}}
    import_checkpoint(target, given, "gptq")
    assert replaced(target) == {"fc", "shared.a", "shared.b", "shared.more.0", "shared.more.1"}
    assert target["lm_head"].weight is target["wte"].weight and bool((target["wte"].weight == 2).all())
    with pytest.raises(ValueError, match=r"shared.a and shared.b differ in the checkpoint"):
        import_checkpoint(nn.ModuleDict({"shared": Shared()}), {f"shared.{n}.{k}": t for n in "ab" for k, t in gptq(64, 64).items()}, "gptq")


def test_a_file_into_a_model_on_the_meta_device(tmp_path: Path) -> None:
    model, path = quantize_model(net(), "int4", group=64).eval(), tmp_path / "m.safetensors"
    save_quantized(model, path)
    with torch.device("meta"):
        target, other = net().eval(), net()
    other.register_buffer("table", torch.empty(3, device="meta"), persistent=False)
    assert torch.equal(load_quantized(target, path)(some(3, 64)), model(some(3, 64)))
    with pytest.raises(ValueError, match="table is on the meta device"):
        load_quantized(other, path)
    assert not replaced(other) and all(p.device.type == "meta" for p in other.parameters())


def test_dtypes_are_those_of_the_model(tmp_path: Path) -> None:
    model, path, x = quantize_model(net().bfloat16(), "int4", group=64), tmp_path / "m.safetensors", some(3, 64)
    save_quantized(model, path)
    for dtype in (torch.float32, torch.bfloat16):
        found = load_quantized(net(1).to(dtype), path).eval()
        assert found(x.to(dtype)).dtype == dtype and all(p.dtype == dtype for p in found.parameters())
    found = import_checkpoint(nn.Sequential(nn.Linear(64, 64)), {f"0.{k}": t.half() if k == "bias" else t for k, t in gptq(64, 64).items()}, "gptq")
    assert found(x).dtype == torch.float32


def test_what_no_file_holds_is_refused(tmp_path: Path) -> None:
    class Named(nn.Module):  # type: ignore[misc]
        def get_extra_state(self) -> str:
            return "a name"

    with pytest.raises(TypeError, match=r"1\._extra_state is a str"):
        save_quantized(nn.Sequential(nn.Linear(64, 64), Named()), tmp_path / "m")
    with pytest.raises(ValueError, match=r"weight is on the meta device"):
        save_quantized(nn.Linear(64, 64, device="meta"), tmp_path / "m")
    assert not (tmp_path / "m").exists()
