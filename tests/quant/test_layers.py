"""Layers that take the place of `torch.nn.Linear`, as models and frameworks use one: weight, autocast, states, copies, adapters. What is left of a model."""

from __future__ import annotations

import copy
import io
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rooftop
from rooftop.quant import PackedWeight, QuantLinear, quantize_model
from rooftop.sparse import SparseLinear, prune, sparsify_model

BF16 = torch.bfloat16


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def linear(n: int = 64, k: int = 128, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(k, n)


def left(call: Callable[[], Any]) -> str:
    """What a call says that it left; "" for nothing."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call()
    return " ".join(str(w.message) for w in said)


MAKE: dict[str, Callable[[nn.Linear], Any]] = {
    "int8": lambda m: QuantLinear.of(m, "int8", group=32),
    "int4 with zero points": lambda m: QuantLinear.of(m, "int4", group=64, zero_points=True),
    "mxfp4": lambda m: QuantLinear.of(m, "mxfp4"),
    "fp6 by rows": lambda m: QuantLinear.of(m, "fp6", group=0),
    "int8, int8": lambda m: QuantLinear.of(m, "int8", group=0, activations="int8"),
    "fp8, fp8": lambda m: QuantLinear.of(m, "fp8", group=0, activations="fp8"),
    "csr": lambda m: sparsify_model(m, "csr"),
    "bsr": lambda m: sparsify_model(m, "bsr", block=16),
    "2:4": lambda m: sparsify_model(m, "2:4"),
}
ERROR = {"int4 with zero points": 0.2, "mxfp4": 0.2, "fp6 by rows": 0.1, "2:4": 0.5}


# -- the weight ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MAKE)
def test_a_weight_says_what_models_ask_of_it(kind: str) -> None:
    layer = MAKE[kind](linear().to(BF16))
    weight = layer.weight
    assert isinstance(layer, nn.Linear) and (layer.in_features, layer.out_features) == (128, 64)
    assert weight.dtype == BF16 and weight.device == torch.device("cpu") and weight.shape == (64, 128) and weight.ndim == weight.dim() == 2
    assert weight.size(0) == 64 and weight.size() == weight.shape and weight.numel() == 64 * 128 and weight.element_size() == 2
    assert weight.is_floating_point() and not weight.requires_grad and weight.grad is None
    assert torch.ones(2).to(weight.dtype).dtype == BF16 and torch.empty(1, dtype=weight.dtype, device=weight.device).dtype == BF16
    matrix, wanted = weight.dequantize(torch.float32), linear().weight.detach()
    assert matrix.shape == (64, 128) and float((matrix - wanted).norm() / wanted.norm()) < ERROR.get(kind, 0.05)
    assert weight.dequantize().dtype == BF16
    for dtype in (torch.float16, torch.float32, BF16):
        assert layer.to(dtype).weight.dtype == dtype
    assert torch.allclose(layer.weight.dequantize(torch.float32), matrix, atol=1e-3)


@pytest.mark.parametrize("kind", ["int8", "fp8, fp8", "csr", "2:4"])
@pytest.mark.parametrize(
    "read",
    [
        lambda x, w: nn.functional.linear(x, w), lambda x, w: x @ w.t(), lambda x, w: x @ w, lambda x, w: w @ x.t(), lambda x, w: w * 2, lambda x, w: 2 * w,
        lambda x, w: w[0], lambda x, w: w.data, lambda x, w: w.sum(), lambda x, w: torch.sum(w), lambda x, w: nn.init.normal_(w), lambda x, w: list(w),
        lambda x, w: torch.einsum("bk,nk->bn", x, w), lambda x, w: w.to(torch.float32), lambda x, w: x.copy_(w), lambda x, w: len(w),
    ],
)
def test_reading_a_weight_as_a_matrix_says_what_to_do(kind: str, read: Callable[[Tensor, Any], Any]) -> None:
    layer = MAKE[kind](linear())
    remedy = r"call the layer, or take the matrix layer\.weight\.dequantize\(\)"
    with pytest.raises((TypeError, AttributeError), match=rf"Linear\.weight \(64, 128\) is stored as .* {remedy}"):
        read(some(3, 128), layer.weight)
    with pytest.raises(TypeError, match="cannot be drawn anew"):
        layer.reset_parameters()


@pytest.mark.parametrize("kind", MAKE)
def test_a_matrix_that_is_set_is_stored_in_the_layers_format(kind: str) -> None:
    layer, other = MAKE[kind](linear()), linear(seed=1)
    wanted = MAKE[kind](other)
    for matrix in (other.weight, other.weight.detach()):
        layer.weight = matrix
        assert type(layer.weight).__name__ == "Weight" and "weight" not in dict(layer.named_parameters())
        assert torch.equal(layer.weight.dequantize(), wanted.weight.dequantize()) and set(layer.state_dict()) == set(wanted.state_dict())
    for bad, text in ((some(64, 64), r"must be a matrix \[N, 128\]"), (some(64, 128).double(), "float64"), (torch.empty(64, 128, device="meta"), "meta device"),
                      ("w", "is a str"), (some(32, 128), r"\(32, 128\)")):
        with pytest.raises(ValueError, match=text):
            layer.weight = bad
    assert torch.equal(layer.weight.dequantize(), wanted.weight.dequantize())


def test_a_model_that_asks_for_the_dtype_compiles_whole() -> None:
    class Asks(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = MAKE["int8"](linear())

        def forward(self, x: Tensor) -> Any:
            return self.layer(x.to(self.layer.weight.dtype)) * self.layer.weight.shape[0]

    model, x = Asks(), some(3, 128).to(BF16)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))


# -- autocast -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*MAKE, "2:4, trained"])
@pytest.mark.parametrize("kept", [torch.float32, BF16, torch.float16])
@pytest.mark.parametrize("given", [torch.float32, BF16, torch.float16])
def test_autocast_casts_as_for_linear(kind: str, kept: torch.dtype, given: torch.dtype) -> None:
    make = MAKE.get(kind, lambda m: sparsify_model(m, "2:4", train24=True))
    layer, plain = make(linear().to(kept)), linear().to(kept)
    x = some(4, 128).to(given).requires_grad_()
    with torch.autocast("cpu", BF16):
        y, want = layer(x), plain(x)
    assert y.dtype == want.dtype == BF16
    y.float().sum().backward()
    assert layer.bias.grad.dtype == kept and (x.grad is None) == ("," in kind and "trained" not in kind)  # no gradient goes through codes of the input
    assert x.grad is None or x.grad.dtype == given
    if "trained" in kind:
        assert layer.weight.grad.dtype == kept and bool(layer.weight.grad.any())
    elif kind not in ERROR:
        assert float((y - want).float().norm() / want.float().norm()) < 0.06


def test_a_double_is_not_cast() -> None:
    with torch.autocast("cpu", BF16), pytest.raises(TypeError, match=r"x is torch\.float64"):
        MAKE["int8"](linear())(some(4, 128).double())


def test_masters_of_float32_train_under_autocast() -> None:
    torch.manual_seed(0)
    model = sparsify_model(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), "2:4", train24=True)
    optimizer, x, target = torch.optim.AdamW(model.parameters(), lr=3e-3), some(32, 64), some(32, 64, seed=1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", BF16):
            loss = (model(x).float() - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0] and all(p.dtype == torch.float32 for p in model.parameters())


# -- states and copies --------------------------------------------------------------------------------------------------


def filed(layer: Any) -> Any:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("way", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), filed], ids=["deepcopy", "pickle", "torch.save"])
def test_a_copy_is_a_layer_of_its_own(kind: str, way: Callable[[Any], Any]) -> None:
    layer, x = MAKE[kind](linear().to(BF16)), some(3, 128).to(BF16)
    other = way(nn.Sequential(layer))[0]
    assert type(other) is type(layer) and torch.equal(other(x), layer(x)) and other.weight.dtype == BF16
    want = layer(x)
    other.weight = linear(seed=1).weight
    assert torch.equal(layer(x), want) and not torch.equal(other(x), want)


@pytest.mark.parametrize("kind", [k for k in MAKE if k not in ("csr", "bsr")])
def test_a_state_is_loaded_in_both_directions(kind: str) -> None:
    a, b = (MAKE[kind](linear(seed=i)) for i in (0, 1))
    x, of_a = some(3, 128).to(BF16), a.state_dict()
    if kind == "2:4":
        a, b = a.to(BF16), b.to(BF16)
    a, b = a.to(BF16), b.to(BF16)
    of_a, of_b, want = copy.deepcopy(a.state_dict()), copy.deepcopy(b.state_dict()), (a(x), b(x))
    a.load_state_dict(of_b), b.load_state_dict(of_a)
    assert torch.equal(a(x), want[1]) and torch.equal(b(x), want[0])
    a.load_state_dict(of_a, assign=True)
    assert torch.equal(a(x), want[0])


def test_ties_are_kept_and_dtypes_are_the_models_after_a_load() -> None:
    model = nn.ModuleDict({"a": linear(64, 64), "b": linear(64, 64, seed=1)})
    model["b"].weight = model["a"].weight
    state = copy.deepcopy(quantize_model(copy.deepcopy(model), "int8", group=32).state_dict())
    quantize_model(model.to(BF16), "int8", group=32)
    assert model["a"].codes is model["b"].codes
    fresh = quantize_model(nn.ModuleDict({"a": linear(64, 64, seed=2), "b": linear(64, 64, seed=2)}), "int8", group=32)
    fresh["b"]._buffers.update(fresh["a"]._buffers)
    codes = fresh["a"].codes
    fresh.load_state_dict(state)
    assert fresh["a"].codes is fresh["b"].codes is codes and torch.equal(codes, state["a.codes"])
    model.load_state_dict(state)  # scales of float32 into a model of bfloat16
    assert model["a"].weight.dtype == BF16 and model["a"].scale.dtype == torch.float32 and model["a"](some(3, 64).to(BF16)).dtype == BF16


# -- adapters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("convert", [lambda m: quantize_model(m, "int4", group=32), lambda m: sparsify_model(m, "2:4")], ids=["quant", "sparse"])
@pytest.mark.parametrize("first", ["adapters", "conversion"])
def test_adapters_of_peft_train_over_the_layers(convert: Callable[[Any], Any], first: str) -> None:
    peft = pytest.importorskip("peft", reason="the adapters are those of peft")
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to(BF16)
    config = peft.LoraConfig(r=4, target_modules=["0", "2"])
    made = peft.get_peft_model(convert(model), config) if first == "conversion" else convert(peft.get_peft_model(model, config))
    assert sum(isinstance(m, (QuantLinear, SparseLinear)) for m in made.modules()) == 2
    trained = [p for p in made.parameters() if p.requires_grad]
    optimizer, x, target = torch.optim.AdamW(trained, lr=1e-2), some(16, 64).to(BF16), some(16, 64, seed=1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (made(x).float() - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    with pytest.raises((TypeError, AttributeError), match="not as a matrix"):
        made.merge_and_unload()


# -- what is left of a model --------------------------------------------------------------------------------------------


class Experts(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Parameter(some(4, 128, 64)), nn.Parameter(some(4, 64, 64))


CONVERT: dict[str, Callable[..., Any]] = {
    "quantize_model": lambda m: quantize_model(m, "int8", group=64), "sparsify_model": lambda m: sparsify_model(m, "csr"), "prune": lambda m: prune(m, 0.5),
}


@pytest.mark.parametrize("what", CONVERT)
def test_what_is_left_is_said_with_its_bytes(what: str) -> None:
    said = left(lambda: CONVERT[what](nn.ModuleDict({"mlp": nn.Linear(64, 64), "experts": Experts()})))
    count = (4 * 128 * 64 + 4 * 64 * 64) * 4
    assert said.startswith(f"{what}: of ") and f"{count} bytes of parameters of three dimensions" in said
    assert "experts.gate_up (4, 128, 64), experts.down (4, 64, 64)" in said
    quiet = nn.ModuleDict({"mlp": nn.Linear(64, 64), "norm": nn.LayerNorm(64), "embedding": nn.Embedding(99, 64), "conv": nn.Conv1d(64, 64, 3)})
    assert left(lambda: CONVERT[what](quiet)) == ""


def test_layers_of_other_kinds_are_said() -> None:
    class Twice(nn.Linear):  # type: ignore[misc]
        pass

    for what in ("quantize_model", "sparsify_model"):
        said = left(lambda what=what: CONVERT[what](nn.ModuleDict({"a": nn.Linear(64, 64), "b": Twice(64, 64)})))  # type: ignore[misc]
        assert f"{64 * 64 * 4} bytes of layers that compute something else or whose weight others read: b.weight (64, 64)" in said
    assert left(lambda: quantize_model(nn.ModuleDict({"a": nn.Linear(64, 64), "b": Twice(64, 64)}), "int8", group=64, exclude="b")) == ""


@pytest.mark.parametrize(
    ("format", "group", "k", "fitted"),
    [
        ("int4", 128, 64, 64), ("int4", 128, 192, 64), ("int4", 128, 96, 32), ("int4", 128, 100, 100), ("int8", 256, 384, 128), ("int8", 512, 768, 384),
        ("int4", 128, 128, 128), ("int4", 0, 100, 100), ("int4", 64, 200, None), ("int4", 128, 200, None), ("int4", 32, 7, 7), ("mxfp4", 128, 64, 32),
        ("mxfp4", 128, 100, None),
    ],
)
def test_a_group_is_fitted_or_the_layer_is_kept(format: str, group: int, k: int, fitted: int | None) -> None:
    model = nn.ModuleDict({"wide": nn.Linear(128, 48), "narrow": nn.Linear(k, 48)})
    want = model["narrow"](x := some(3, k))
    said = left(lambda: quantize_model(model, format, group=group))
    layer = model["narrow"]
    if fitted is None:
        assert type(layer) is nn.Linear and f"{48 * k * 4} bytes of layers whose K no group up to {group} divides" in said
        assert f"narrow.weight (48, {k})" in said
        with pytest.raises(ValueError, match=rf"narrow \(48, {k}\): .*none of them can be converted"):
            quantize_model(nn.ModuleDict({"narrow": nn.Linear(k, 48)}), format, group=group)
    else:
        assert layer.facts["group"] == fitted and float((layer(x) - want).detach().norm() / want.detach().norm()) < 0.35
        assert (f"narrow (48, {k}) has groups of {fitted}" in said) == (0 < fitted < group and format != "mxfp4")


@pytest.mark.parametrize("group", [96, 100, -2, 1.5, True, "64"])
def test_a_group_that_no_kernel_knows_is_refused(group: Any) -> None:
    with pytest.raises(ValueError, match=r"a \(64, 128\): group is"):
        quantize_model(nn.ModuleDict({"a": nn.Linear(128, 64)}), "int4", group=group)


class Head(nn.Module):  # type: ignore[misc]
    """A model whose output layer has a name of its own."""

    def __init__(self, tied: bool, said: bool) -> None:
        super().__init__()
        self.embedding, self.body, self.proj_out = nn.Embedding(96, 64), nn.Linear(64, 64), nn.Linear(64, 96, bias=False)
        if tied:
            self.proj_out.weight = self.embedding.weight
        if said:
            self.get_output_embeddings = lambda: self.proj_out


@pytest.mark.parametrize(("tied", "said", "stays"), [(True, False, True), (False, True, True), (False, False, False)])
def test_the_output_embedding_stays_whatever_its_name(tied: bool, said: bool, stays: bool) -> None:
    model = quantize_model(Head(tied, said), "int8", group=64)
    assert isinstance(model.body, QuantLinear) and isinstance(model.proj_out, QuantLinear) != stays
    whole = quantize_model(Head(tied, said), "int8", group=64, exclude=())
    assert isinstance(whole.proj_out, QuantLinear)
    before = whole.proj_out.weight.dequantize()
    whole.proj_out.weight = whole.embedding.weight  # as tie_weights does
    assert isinstance(whole.proj_out, QuantLinear) and torch.equal(whole.proj_out.weight.dequantize(), before) == tied


def conv1d(nx: int, nf: int) -> nn.Module:
    """As in Transformers, where the weight is [K, N]."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias

    kind = type("Conv1D", (nn.Module,), {"forward": forward, "__module__": "transformers.pytorch_utils"})
    made: nn.Module = kind()
    made.weight, made.bias = nn.Parameter(some(nx, nf)), nn.Parameter(some(nf))
    return made


def test_conv1d_of_transformers_is_a_linear_layer() -> None:
    for convert, kind in ((lambda m: quantize_model(m, "int8", group=32), QuantLinear), (lambda m: sparsify_model(m, "csr"), SparseLinear)):
        model, x = nn.Sequential(conv1d(64, 96)), some(3, 64)
        want = model(x)
        assert left(lambda convert=convert, model=model: convert(model)) == ""  # type: ignore[misc]
        assert isinstance(model[0], kind) and float((model(x) - want).detach().norm() / want.detach().norm()) < 0.02
    assert "bytes of layers of Transformers' Conv1D" in left(lambda: prune(nn.Sequential(nn.Linear(64, 64), conv1d(64, 96))))
    trained = nn.Sequential(nn.Linear(64, 64), conv1d(64, 96))
    assert "1.weight (64, 96)" in left(lambda: sparsify_model(trained, "2:4", train24=True)) and isinstance(trained[0], SparseLinear)
    by_gptq = quantize_model(nn.Sequential(conv1d(64, 96)), "int4", group=32, method="gptq", calibration=[some(200, 64)])
    assert isinstance(by_gptq[0].packed, PackedWeight) and by_gptq[0](some(3, 64)).shape == (3, 96)


@pytest.mark.parametrize("size", [1e-2, 2e-4, 2e-5, 2e-6])
@pytest.mark.parametrize("how", [
    {"format": "int8"}, {"format": "int4"}, {"format": "int4", "zero_points": True}, {"format": "int4", "method": "hqq"}, {"format": "fp8"},
    {"format": "fp6"}, {"format": "mxfp8"}, {"format": "int8", "method": "gptq"}, {"format": "int8", "group": 0, "activations": "int8"},
    {"format": "fp8", "group": 0, "activations": "fp8"},
], ids=lambda how: " ".join(map(str, how.values())))
def test_small_weights_of_float16_keep_their_codes(how: dict[str, Any], size: float) -> None:
    """Scales of float16 were held above 2^-14: int8 weights of 2e-5 lost 81 % of their sum of squares."""
    errors = {}
    for dtype in (torch.float16, torch.float32):
        model = nn.Sequential(nn.Linear(256, 64, bias=False))
        model[0].weight.data.copy_(some(64, 256) * size)
        model[0].weight.data[:, :64] *= 1e-2  # a group that is smaller still
        model.to(torch.float16)
        want = model[0].weight.detach().double()
        more = {"calibration": [some(300, 256, seed=1).to(dtype)]} if how.get("method") == "gptq" else {}
        quantize_model(model.to(dtype), **{"group": 64, **how, **more})
        got = model[0].weight.dequantize(torch.float32).double()
        errors[dtype] = [float((got - want)[:, part].norm() / want[:, part].norm()) for part in (slice(0, 64), slice(64, None))]
    assert all(a <= 1.05 * b + 1e-3 for a, b in zip(errors[torch.float16], errors[torch.float32], strict=True)), errors


def test_our_own_layers_are_neither_pruned_nor_converted_again() -> None:
    model = quantize_model(nn.Sequential(nn.Linear(64, 64)), "int8", group=64)
    assert prune(model, 0.5).masks == {} and sparsify_model(model, "csr")[0] is model[0]
    with pytest.raises(ValueError, match=r"there are 0 \(a QuantLinear, a subclass\)"):
        quantize_model(model, "int4", group=64)
    assert math.isfinite(rooftop.quantized_matmul(some(3, 64), model[0].packed).sum().item())
