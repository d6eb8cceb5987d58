"""Quantised layers and models: calibration, replacement, files, checkpoints of others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rooftop
from rooftop.lab.records.record import Record
from rooftop.lab.report.perplexity import WAYS, Trained, table
from rooftop.quant import (
    PackedWeight,
    QuantLinear,
    from_awq,
    from_gptq,
    from_hqq,
    gptq,
    hqq,
    import_checkpoint,
    load_quantized,
    nearest,
    quantize_model,
    save_quantized,
)
from rooftop.quant.safetensors_file import load_file, save_file

F32 = torch.float32


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 128, bias=False), nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 16)))


# -- calibration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["int8", "int4", "int2", "fp8", "e5m2", "fp6", "e3m2", "fp4", "mxfp8", "mxfp6", "mxfp4"])
def test_nearest_errs_by_half_a_step(format: str) -> None:
    w = some(24, 128)
    packed = nearest(w, format, group=64)
    f = packed.kind
    group = 32 if format.startswith("mx") else 64
    assert packed.group == group
    step = 0.5 / f.max if not f.exponent else 2.0 ** -(f.mantissa + 1)
    largest = w.view(24, -1, group).abs().amax(-1, keepdim=True)
    error = (packed.dequantize(F32) - w).view(24, -1, group).abs()
    assert bool((error <= largest * step * (2.0 if format.startswith("mx") else 1.01)).all())


def test_nearest_is_what_quantize_does() -> None:
    w = some(24, 128)
    q = rooftop.quantize(w, "int4", granularity="group", group=32)
    assert torch.equal(nearest(w, "int4", group=32).dequantize(), q.dequantize())
    q = rooftop.quantize(w, "uint4", granularity="group", group=32, symmetric=False)
    assert torch.equal(nearest(w, "int4", group=32, zero_points=True).dequantize(), q.dequantize())


def test_fitted_zero_points_err_less() -> None:
    w = some(64, 256) * some(64, 256, seed=1).abs() + 0.3
    plain, fitted = nearest(w, "int2", group=64, zero_points=True), hqq(w, "int2", group=64)

    def loss(p: PackedWeight) -> float:
        return float((p.dequantize(F32) - w).abs().pow(0.7).sum())

    assert fitted.zero is not None and fitted.zero.dtype == F32 and loss(fitted) < 0.97 * loss(plain)


@pytest.mark.parametrize(
    ("format", "zero_points", "group"), [("int4", False, 32), ("int4", True, 128), ("int2", True, 64), ("mxfp4", False, 32), ("fp4", False, 0)]
)
def test_gptq_errs_less_in_the_layers_output(format: str, zero_points: bool, group: int) -> None:
    w, x = some(48, 256), some(600, 256, seed=1) @ some(256, 256, seed=2)  # inputs that depend on each other
    hessian = x.t() @ x
    plain, better = nearest(w, format, group=group, zero_points=zero_points), gptq(w, hessian, format, group=group, zero_points=zero_points)
    errors = [float((x @ (p.dequantize(F32) - w).t()).square().mean()) for p in (plain, better)]
    assert errors[1] < 0.7 * errors[0]
    assert (better.format, better.group, better.shape) == (plain.format, plain.group, plain.shape)


def test_gptq_of_independent_inputs_is_rounding_to_nearest() -> None:
    w = some(16, 128)
    assert torch.equal(gptq(w, torch.eye(128) * 3, "int4", group=32).codes, nearest(w, "int4", group=32).codes)


def test_gptq_across_its_blocks() -> None:
    """The block is a matter of speed alone."""
    w, x = some(16, 192), some(400, 192, seed=1) @ some(192, 192, seed=2)
    found = [gptq(w, x.t() @ x, "int4", group=64, block=block).dequantize(F32) for block in (192, 40, 1)]
    assert all(float((f - found[0]).abs().max()) < 1e-4 for f in found)


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (lambda w: gptq(w, torch.eye(64), "int4"), r"\[K, K\] = \(128, 128\)"),
        (lambda w: gptq(w, -torch.eye(128), "int4"), "not positive definite"),
        (lambda w: gptq(w, torch.eye(128) * math.nan, "int4"), "finite"),
        (lambda w: nearest(w * math.inf, "int4"), "NaN or infinity"),
        (lambda w: nearest(w, "int4", group=96), "group is 96"),
        (lambda w: nearest(w, "int4", group=256), "does not divide K = 128"),
        (lambda w: nearest(w, "fp4", zero_points=True), "fp4 has none"),
        (lambda w: nearest(w, "int5"), "accepted are int8"),
        (lambda w: nearest(w[0], "int4"), r"\[N, K\]"),
        (lambda w: hqq(w, "fp8"), "zero points are for"),
    ],
)
def test_bad_calibration_is_refused(run: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        run(some(8, 128))


# -- layers and models -----------------------------------------------------------------------------------------------


def test_a_layer() -> None:
    linear, x = nn.Linear(128, 24), some(3, 128)
    layer = QuantLinear.of(linear, "int4", group=32)
    assert isinstance(layer.packed, PackedWeight)
    assert torch.allclose(layer(x), nn.functional.linear(x, layer.weight.dequantize(), linear.bias), atol=1e-5)
    assert "128, 24, format=int4, group=32, bias=True" in repr(layer)
    half = QuantLinear.of(linear, "int4", group=32).half()
    assert half.scale.dtype == F32 and half.bias is not None and half.bias.dtype == torch.float16
    assert half(x.half()).dtype == torch.float16


@pytest.mark.parametrize(
    ("format", "activations", "how"),
    [("int8", "int8", {"group": 0}), ("fp8", "fp8", {"group": 0}), ("int4", "int8", {"group": 32}), ("int4", "fp8", {"group": 64, "zero_points": True})],
)
def test_a_layer_with_activations_of_eight_bits(format: str, activations: str, how: dict[str, Any], tmp_path: Path) -> None:
    model, x = net(), some(5, 128)
    plain = quantize_model(net(), format, **how)
    quantize_model(model, format, activations=activations, **how)
    with torch.no_grad():
        assert 0 < float((model(x) - plain(x)).abs().max()) < 0.1 * float(plain(x).abs().max())
    assert f"activations={activations}" in repr(model)
    save_quantized(model, tmp_path / "m.safetensors")
    assert torch.equal(load_quantized(net(1), tmp_path / "m.safetensors")(x), model(x))


def test_layers_by_their_names() -> None:
    model = net()
    assert quantize_model(model, "int8", group=0, include=["0", "3.*"], exclude="3.0") is model
    assert [type(m).__name__ for m in (model[0], model[2], model[3][1])] == ["QuantLinear", "Linear", "QuantLinear"]
    shared = nn.Linear(64, 64)
    both = quantize_model(nn.Sequential(shared, nn.Sequential(shared)), "int4", group=64)
    assert both[0] is both[1][0] and isinstance(both[0], QuantLinear)  # type: ignore[index]


def test_gptq_of_a_model() -> None:
    x, want = some(256, 128), net()(some(256, 128))
    errors = []
    for how in ({"method": "nearest"}, {"method": "gptq", "calibration": [x[:128], (x[128:],)]}):
        model = quantize_model(net(), "int4", group=64, zero_points=True, **how)  # type: ignore[arg-type]
        errors.append(float((model(x) - want).square().mean()))
    assert errors[1] < errors[0]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"include": "nothing*"}, "no linear layer matches"),
        ({"group": 96}, r"0 \(64, 128\): group is 96"),
        ({"format": "int9"}, "accepted are int8"),
        ({"method": "gptq"}, "calibration goes with"),
        ({"method": "other"}, "method is 'other'"),
        ({"calibration": []}, "calibration goes with"),
        ({"method": "gptq", "calibration": []}, "0 calibration batches"),
        ({"activations": "int4", "group": 0}, "activations is 'int4'; accepted are None"),
    ],
)
def test_bad_arguments_change_nothing(how: dict[str, Any], text: str) -> None:
    model = net()
    with pytest.raises(ValueError, match=text):
        quantize_model(model, **{"format": "int4", "group": 64, **how})
    assert not any(isinstance(m, QuantLinear) for m in model.modules())


def test_a_model_that_is_one_layer(tmp_path: Path) -> None:
    linear, x = nn.Linear(128, 8), some(256, 128)
    for how in ({}, {"method": "gptq", "calibration": [x]}):
        made = quantize_model(linear, "int4", **how)  # type: ignore[arg-type]
        assert isinstance(made, QuantLinear) and made(x).shape == (256, 8)
    save_quantized(made, tmp_path / "m.safetensors")
    assert torch.equal(load_quantized(nn.Linear(128, 8), tmp_path / "m.safetensors")(x), made(x))
    with pytest.raises(ValueError, match=r"the layer \(8, 128\): group is 200"):
        quantize_model(linear, "int4", group=200)
    layer, weight = gptq_layer(64, 128, 4, 64)
    found = import_checkpoint(nn.Linear(128, 64), {**layer, "bias": torch.zeros(64)}, "gptq")
    assert isinstance(found, QuantLinear) and torch.equal(found.weight.dequantize(F32), weight)
    with pytest.raises(ValueError, match="the layer lacks bias"):
        import_checkpoint(nn.Linear(128, 64), layer, "gptq")


@pytest.mark.parametrize(("format", "activations"), [("int8", "int8"), ("fp8", "fp8"), ("int8", None)])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(format: str, activations: str | None, bad: float) -> None:
    model = net()
    with torch.no_grad():
        model[2].weight[3, 5] = bad
    with pytest.raises(ValueError, match=r"2 \(128, 64\): .*must be finite"):
        quantize_model(model, format, group=0, activations=activations)
    assert not any(isinstance(m, QuantLinear) for m in model.modules())


def test_a_bias_that_is_frozen_stays_so(tmp_path: Path) -> None:
    model = net()
    model[0].bias.requires_grad_(False)
    quantize_model(model, "int4", group=64)
    save_quantized(model, tmp_path / "m.safetensors")
    other = net(1)
    other[0].bias.requires_grad_(False)
    for m in (model, load_quantized(other, tmp_path / "m.safetensors")):
        assert [m.get_parameter(n).requires_grad for n in ("0.bias", "3.1.bias")] == [False, True]
    single = nn.Linear(128, 64)
    single.requires_grad_(False)
    made = import_checkpoint(single, {**gptq_layer(64, 128, 4, 64)[0], "bias": torch.zeros(64)}, "gptq")
    assert not made.get_parameter("bias").requires_grad
    with pytest.raises(TypeError, match="must be a tensor of a floating dtype"):
        QuantLinear(nearest(some(8, 128)), torch.zeros(8, dtype=torch.int32))


def test_the_bias_under_autocast() -> None:
    layer, x = QuantLinear.of(nn.Linear(128, 8), "int4"), some(3, 128).bfloat16()
    with pytest.raises(TypeError, match=r"bias is torch.float32"):
        layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16 and layer.bias is not None and layer.bias.grad is not None and layer.bias.grad.dtype == F32


def as_state(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).clone()


@pytest.mark.parametrize("eight", [False, True])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"codes": lambda t: t.float()}, r"0\.codes.* torch.float32"),
        ({"codes": lambda t: t[:1]}, r"0\.codes.*codes are \(1, "),
        ({"scale": lambda t: t.half()}, r"0\.scale.*scale is .*torch.float16"),
        ({"scale": lambda t: t[:1]}, r"0\.scale.*scale"),
        ({"scale": lambda t: None}, "0.scale is a NoneType"),
        ({"_extra_state": None, "codes": lambda t: t[:1]}, r"0\.codes"),
        ({"bias": lambda t: t[:3]}, r"0\.bias is \(3,\) torch.float32; it must be \(64,\)"),
        ({"bias": lambda t: t.int()}, r"0\.bias is \(64,\) torch.int32"),
        ({"_extra_state": lambda t: {}}, "0._extra_state: it is a dict; it must be JSON"),
        ({"_extra_state": lambda t: t.float()}, "0._extra_state: it is .*torch.float32"),
        ({"_extra_state": lambda t: t + 127}, "0._extra_state: its bytes are no UTF-8"),
        ({"_extra_state": lambda t: t[:9]}, "0._extra_state: .* is no JSON"),
        ({"_extra_state": lambda t: as_state("[1]")}, "0._extra_state: .* names a list"),
        ({"_extra_state": lambda t: as_state("{}")}, "0._extra_state: .* names nothing; it must name activations"),
        ({"_extra_state": lambda t: as_state(bytes(t.tolist()).decode().replace("[64, 128]", "[64, 96]"))}, r"the weight is \(64, 96\) there"),
        ({"_extra_state": lambda t: as_state(bytes(t.tolist()).decode().replace('"int8"', "[3]"))}, "activations is|does not make sense|format of a weight"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(eight: bool, change: dict[str, Any], text: str) -> None:
    how: dict[str, Any] = {"group": 0, "activations": "int8"} if eight else {"group": 64}
    model, other = quantize_model(net(), "int8", **how), quantize_model(net(1), "int8", **how)
    before = {n: t.clone() for n, t in model.state_dict().items() if n.startswith("0.")}
    state = other.state_dict()
    for key, new in change.items():
        old = state.pop(f"0.{key}")
        if new is not None:
            state[f"0.{key}"] = new(old)
    with pytest.raises(ValueError, match=text):
        model.load_state_dict(state)
    after = model.state_dict()
    assert all(torch.equal(after[n], t) for n, t in before.items()) and {n for n in after if n.startswith("0.")} == set(before)


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_model_in_a_file(tmp_path: Path) -> None:
    model = net()
    quantize_model(model, "int4", group=64, zero_points=True, exclude="3.*")
    save_quantized(model, tmp_path / "m.safetensors")
    other = load_quantized(net(1), tmp_path / "m.safetensors")
    assert torch.equal(other(some(3, 128)), model(some(3, 128)))
    again = quantize_model(net(2), "int4", group=64, exclude="3.*")  # of another kind: without zero points
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(some(3, 128)), model(some(3, 128)))


def test_files_that_are_not_whole(tmp_path: Path) -> None:
    model, path = quantize_model(net(), "int4", group=64), tmp_path / "m.safetensors"
    save_quantized(model, path)
    data = path.read_bytes()
    for cut in (0, 5, 60, len(data) - 1):
        path.write_bytes(data[:cut])
        with pytest.raises(ValueError, match=r"truncated|has 8 at least"):
            load_quantized(net(), path)
    path.write_bytes(b"\x10" + b"\0" * 7 + b"no JSON at all..")
    with pytest.raises(ValueError, match="header"):
        load_quantized(net(), path)
    save_file({"a": torch.ones(3)}, path)
    with pytest.raises(ValueError, match="save_quantized"):
        load_quantized(net(), path)
    save_quantized(model, path)
    with pytest.raises(ValueError, match="the model has none of that name"):
        load_quantized(nn.Sequential(nn.Linear(128, 64)), path)
    with pytest.raises(ValueError, match=r"\(64, 128\) there, the model's is \(64, 96\)"):
        load_quantized(nn.Sequential(nn.Linear(96, 64), *list(net())[1:]), path)


def test_tensors_of_every_dtype_come_back(tmp_path: Path) -> None:
    given = {"a": some(3, 4).bfloat16(), "b": some(2).to(torch.float8_e4m3fn), "none": torch.empty(0, 5), "one": torch.tensor(3)}
    given["u"] = torch.arange(7, dtype=torch.uint8)
    save_file(given, tmp_path / "t", {"x": "y"})
    found, metadata = load_file(tmp_path / "t")
    assert metadata == {"x": "y"} and all(found[n].dtype == t.dtype and torch.equal(found[n].float(), t.float()) for n, t in given.items())


# -- checkpoints of others: their own packing, as their code has it -------------------------------------------------------


def gptq_layer(n: int, k: int, bits: int, group: int) -> tuple[dict[str, Tensor], Tensor]:
    g = torch.Generator().manual_seed(3)
    codes, zeros = (torch.randint(0, 1 << bits, s, generator=g) for s in ((k, n), (k // group, n)))
    scales = (torch.rand(k // group, n, generator=g) + 0.1).half()
    per = 32 // bits
    qweight, qzeros = torch.zeros(k // per, n, dtype=torch.int64), torch.zeros(k // group, n // per, dtype=torch.int64)
    for i in range(per):
        qweight |= codes[i::per] << (bits * i)
        qzeros |= ((zeros[:, i::per] - 1) % (1 << bits)) << (bits * i)
    weight = ((codes - zeros.repeat_interleave(group, 0)) * scales.float().repeat_interleave(group, 0)).t()
    to32 = lambda t: torch.where(t >= 1 << 31, t - (1 << 32), t).int()  # noqa: E731
    return {"qweight": to32(qweight), "qzeros": to32(qzeros), "scales": scales, "g_idx": (torch.arange(k) // group).int()}, weight


def awq_layer(n: int, k: int, group: int) -> tuple[dict[str, Tensor], Tensor]:
    g = torch.Generator().manual_seed(4)
    codes, zeros = (torch.randint(0, 16, s, generator=g) for s in ((k, n), (k // group, n)))
    scales = (torch.rand(k // group, n, generator=g) + 0.1).half()
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    qweight, qzeros = torch.zeros(k, n // 8, dtype=torch.int64), torch.zeros(k // group, n // 8, dtype=torch.int64)
    for i, column in enumerate(order):
        qweight |= codes[:, column::8] << (4 * i)
        qzeros |= zeros[:, column::8] << (4 * i)
    weight = ((codes - zeros.repeat_interleave(group, 0)) * scales.float().repeat_interleave(group, 0)).t()
    to32 = lambda t: torch.where(t >= 1 << 31, t - (1 << 32), t).int()  # noqa: E731
    return {"qweight": to32(qweight), "qzeros": to32(qzeros), "scales": scales}, weight


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gptq_layout(bits: int) -> None:
    layer, weight = gptq_layer(48, 128, bits, 64)
    assert torch.equal(from_gptq(**layer, bits=bits).dequantize(F32), weight)


def test_awq_layout() -> None:
    layer, weight = awq_layer(48, 128, 32)
    assert torch.equal(from_awq(**layer).dequantize(F32), weight)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_hqq_layout(bits: int) -> None:
    n, k, group = 24, 128, 32
    g = torch.Generator().manual_seed(5)
    codes = torch.randint(0, 1 << bits, (n * k // group, group), generator=g, dtype=torch.uint8)
    scale, zero = torch.rand(len(codes), 1, generator=g).half() + 0.1, (torch.rand(len(codes), 1, generator=g) * (1 << bits)).half()
    step, per = len(codes) // (8 // bits), 8 // bits
    packed = torch.zeros(step, group, dtype=torch.uint8)
    for i in range(per):
        packed |= codes[i * step : (i + 1) * step] << (8 - bits * (i + 1))
    want = ((codes.float() - zero.float()) * scale.float()).view(n, k)
    assert torch.equal(from_hqq(packed, scale, zero, shape=(n, k), bits=bits, group=group).dequantize(F32), want)


def test_a_checkpoint_of_a_model() -> None:
    model, x = net().half(), some(3, 128).half()
    state = {k: v for k, v in model.state_dict().items() if k != "0.weight"}
    layer, weight = gptq_layer(64, 128, 4, 64)
    import_checkpoint(model, {**state, **{f"0.{k}": v for k, v in layer.items()}}, "gptq")
    assert isinstance(model[0], QuantLinear) and isinstance(model[2], nn.Linear)
    want = nn.functional.linear(x.float(), weight, model[0].bias.float())  # type: ignore[union-attr]
    assert torch.allclose(model[0](x).float(), want, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"scales": None}, "lacks scales"),
        ({"qweight": torch.zeros(8, 64, dtype=torch.int32)}, "qweight holds K = 64"),
        ({"qweight": torch.zeros(16, 64)}, "torch.int32"),
        ({"qzeros": torch.zeros(2, 4, dtype=torch.int32)}, "qzeros hold"),
        ({"scales": torch.ones(2, 32).half()}, "scales are"),
        ({"scales": torch.full((2, 64), math.nan).half()}, "NaN"),
        ({"g_idx": torch.arange(128).flip(0).int() // 64}, "activation order"),
        ({"extra": torch.zeros(3)}, "differ in 0.extra"),
    ],
)
def test_checkpoints_of_another_layout_are_refused(change: dict[str, Tensor | None], text: str) -> None:
    model = net().half()
    state = {k: v for k, v in model.state_dict().items() if k != "0.weight"}
    layer = {**gptq_layer(64, 128, 4, 64)[0], **change}
    given = {**state, **{f"0.{k}": v for k, v in layer.items() if v is not None}}
    with pytest.raises(ValueError, match=text):
        import_checkpoint(model, given, "gptq")


def test_a_checkpoint_that_lacks_something_changes_nothing() -> None:
    state = {k: v for k, v in net().half().state_dict().items() if k != "0.weight"}
    whole = {**state, **{f"0.{k}": v for k, v in gptq_layer(64, 128, 4, 64)[0].items()}}
    for name, new, text in (("0.bias", None, "0 lacks bias"), ("2.weight", None, "differ in 2.weight"), ("2.weight", torch.ones(3), r"2.weight is \(3,\)"),
                            ("0.bias", torch.zeros(3), r"0: QuantLinear: bias is \(3,\)")):
        model = net().half()
        with pytest.raises(ValueError, match=text):
            import_checkpoint(model, {k: v for k, v in {**whole, name: new}.items() if v is not None}, "gptq")
        assert not any(isinstance(m, QuantLinear) for m in model.modules())


def test_other_checkpoints_are_refused() -> None:
    model = net()
    with pytest.raises(ValueError, match=r"no tensor's name ends in \.qweight"):
        import_checkpoint(model, model.state_dict(), "awq")
    with pytest.raises(ValueError, match="layout is 'exl2'"):
        import_checkpoint(model, {}, "exl2")
    with pytest.raises(ValueError, match="none of that name"):
        import_checkpoint(model, {"x.qweight": torch.zeros(1)}, "gptq")
    with pytest.raises(ValueError, match="bits is 3"):
        from_gptq(*gptq_layer(32, 64, 4, 32)[0].values(), bits=3)
    with pytest.raises(ValueError, match="axis is 0"):
        from_hqq(torch.zeros(4, 4), torch.ones(4), torch.ones(4), shape=(4, 8), axis=0)


# -- what it costs: perplexity of a small model, trained here on the documentation that Python ships --------------------


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small products: threads would wait for each other more than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_perplexity(request: pytest.FixtureRequest) -> None:
    """Formats in the order of what they keep; calibration better than rounding. Few steps, or with --all as many as it takes to read well."""
    steps = 1500 if request.config.getoption("--all") else 150
    trained = Trained(steps, 6e-3 if steps < 1000 else 2e-3)
    plain = trained.perplexity()
    assert plain < (6 if steps > 1000 else 13), "the model has learnt to read"
    limits = {"int8": 1.005, "int8, activations int8": 1.01, "fp8, activations fp8": 1.02, "fp8 g128": 1.02, "fp6 g128": 1.02, "int4 g64": 1.06,
              "int4 g64, activations int8": 1.06, "mxfp4": 1.2}
    twos = ("int2 g64, zero points", "int2 g64, zero points, gptq", "int2 g64, hqq")
    assert {*limits, *twos} < set(WAYS)
    found = {way: trained.perplexity(way) / plain for way in (*limits, *twos)}
    assert all(found[n] < limit for n, limit in limits.items()), found
    assert all(found[n] < found[twos[0]] for n in (*twos[1:], "int4 g64")), found


def test_the_page_shows_the_newest_perplexities() -> None:
    def record(at: str, value: float) -> Record:
        rows = [{"way": "float16", "perplexity": value, "over_float16": 1.0}, {"way": "int4 g64", "perplexity": value * 1.01, "over_float16": 1.01}]
        about = {"device": {"name": "a CPU"}, "versions": {}, "steps": 9, "parameters": 7}
        return Record({"kind": "clock", "subject": "perplexity", "at": at, **about, "rows": rows})

    text = table([record("2026-01-02", 5.0), record("2026-01-01", 6.0)], None)
    assert "| int4 g64 | 5.050 | 1.0100 |" in text and "6.000" not in text and "7 parameters after 9 steps" in text
    assert table([], None) == "Nothing has been measured yet."
