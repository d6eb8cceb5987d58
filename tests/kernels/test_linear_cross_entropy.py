"""linear_cross_entropy: its public function, its plans of chunks, its memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from _kernels import fixed, right
from torch.nn import functional

import rooftop
from rooftop.core import registry
from rooftop.core.call import Call
from rooftop.core.spec import TARGETS, Case, Input, TorchCall
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker, judgement
from rooftop.ops._linear_cases import SHAPES, _call

MIB = 2**20


def given(n: int = 6, h: int = 8, v: int = 20, **more: Any) -> dict[str, Any]:
    g = torch.Generator().manual_seed(3)
    x, w = torch.randn(n, h, generator=g), torch.randn(v, h, generator=g)
    return {"x": x.requires_grad_(), "weight": w.requires_grad_(), "target": torch.randint(0, v, (n,), generator=g), **more}


def plain(x: Any, weight: Any, target: Any, bias: Any = None, softcap: Any = None, lse_square_scale: float = 0.0, **more: Any) -> torch.Tensor:
    z = functional.linear(x, weight, bias)
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    loss = functional.cross_entropy(z, target, **more)
    if lse_square_scale:
        live = (target != more.get("ignore_index", -100)).float()
        loss = loss + lse_square_scale * (z.logsumexp(-1).square() * live).sum() / live.sum()
    return loss


@pytest.mark.parametrize("memory", ["fast", "small"])
@pytest.mark.parametrize(
    "options",
    [{}, {"reduction": "sum"}, {"label_smoothing": 0.2}, {"softcap": 2.0, "lse_square_scale": 0.01}, {"ignore_index": 3, "bias": True}],
    ids=str,
)
def test_loss_and_gradients_are_those_of_torch(memory: str, options: dict[str, Any]) -> None:
    tensors = given()
    more = {**options, **({"bias": torch.randn(20, requires_grad=True)} if "bias" in options else {})}
    tensors["target"][2] = 3
    leaves = [tensors["x"], tensors["weight"], *([more["bias"]] if "bias" in more else [])]
    loss, want = rooftop.linear_cross_entropy(**tensors, **more, memory=memory), plain(**tensors, **more)
    torch.testing.assert_close(loss, want)
    for got, expected in zip(torch.autograd.grad(3 * loss, leaves), torch.autograd.grad(3 * want, leaves), strict=True):
        torch.testing.assert_close(got, expected)


def test_each_tokens_loss_lse_and_more_dimensions() -> None:
    tensors = given()
    x, t = tensors["x"].reshape(2, 3, 8), tensors["target"].reshape(2, 3)
    loss, lse = rooftop.linear_cross_entropy(x, tensors["weight"], t, reduction="none", return_lse=True)
    z = functional.linear(x, tensors["weight"])
    assert loss.shape == lse.shape == (2, 3)
    torch.testing.assert_close(lse, z.logsumexp(-1))
    torch.testing.assert_close(loss, functional.cross_entropy(z.reshape(6, 20), t.reshape(6), reduction="none").reshape(2, 3))
    assert loss.requires_grad
    assert not lse.requires_grad
    one = rooftop.linear_cross_entropy(x[0, 0], tensors["weight"], t[0, 0])
    torch.testing.assert_close(one, loss[0, 0])


WEIGHTS = torch.tensor([1.0, 0.0, 2.5, -1.0, 0.5, 3.0])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"temperature": 0.7, "softcap": 2.0, "bias": True}, {"reduction": "sum", "memory": "small", "temperature": 4.0},
        {"reduction": "none", "ignore_index": 3},
    ],
    ids=str,
)
def test_entropy_temperature_and_weights_of_tokens(options: dict[str, Any], weighted: bool) -> None:
    tensors, more = given(), dict(options)
    tensors["target"][2] = 3
    bias = torch.randn(20, requires_grad=True) if more.pop("bias", False) else None
    leaves = [tensors["x"], tensors["weight"], *([bias] if bias is not None else [])]
    weights = WEIGHTS if weighted else None
    z, cap = functional.linear(tensors["x"], tensors["weight"], bias), more.get("softcap")
    z = (z if cap is None else cap * torch.tanh(z / cap)) / more.get("temperature", 1.0)
    live = (tensors["target"] != more.get("ignore_index", -100)).float()
    losses = functional.cross_entropy(z, tensors["target"], ignore_index=more.get("ignore_index", -100), reduction="none")
    share = live * (weights if weighted else 1.0)
    total = {"mean": (losses * share).sum() / share.sum(), "sum": (losses * share).sum(), "none": losses * share}[more.get("reduction", "mean")]
    log_p = z.log_softmax(-1)
    want = (total, z.logsumexp(-1) * live, -(log_p.exp() * log_p).sum(-1) * live)
    got = rooftop.linear_cross_entropy(**tensors, bias=bias, weights=weights, return_lse=True, return_entropy=True, **more)
    torch.testing.assert_close(got, want)
    alone = rooftop.linear_cross_entropy(**tensors, bias=bias, weights=weights, **more)
    torch.testing.assert_close(alone, total)
    flow, of_loss = torch.linspace(-1, 2, 6), torch.ones_like(total) * 1.5
    for ours, theirs, by in (((got[0], got[2]), (want[0], want[2]), (of_loss, flow)), ((alone,), (total,), (of_loss,)), ((got[2],), (want[2],), (flow,))):
        found, expected = (torch.autograd.grad(o, leaves, by, retain_graph=True) for o in (ours, theirs))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_entropy_of_one_class_is_0_and_of_all_alike_the_log_of_their_number() -> None:
    tensors = given()
    with torch.no_grad():
        tensors["weight"].zero_()
        tensors["weight"][7] = 1e4 * tensors["x"][0]
    *_, entropy = rooftop.linear_cross_entropy(**tensors, return_entropy=True)
    assert entropy[0].item() == 0
    with torch.no_grad():
        tensors["weight"].zero_()
    *_, entropy = rooftop.linear_cross_entropy(**tensors, return_entropy=True)
    torch.testing.assert_close(entropy, torch.full((6,), 20.0).log())


@pytest.mark.parametrize("memory", ["fast", "small"])
def test_no_token_counts(memory: str) -> None:
    tensors = given()
    tensors["target"].fill_(-100)
    leaves = [tensors["x"], tensors["weight"]]
    for reduction in ("mean", "sum"):
        loss = rooftop.linear_cross_entropy(**tensors, reduction=reduction, memory=memory)
        assert loss.isnan() if reduction == "mean" else loss == 0
        grads = torch.autograd.grad(loss, leaves)
        assert not any(g.any() for g in grads)
    x = torch.randn(0, 8, requires_grad=True)
    loss = rooftop.linear_cross_entropy(x, tensors["weight"], torch.empty(0, dtype=torch.int64), reduction="sum", memory=memory)
    loss.backward()
    assert loss == 0
    assert not tensors["weight"].grad.any()


@pytest.mark.parametrize("debug", [False, True])
def test_a_target_out_of_range_is_nan_in_the_contract_and_an_error_on_the_cpu(debug: bool) -> None:
    tensors = given(n=3)
    tensors["target"] = torch.tensor([0, 20, -100])
    options = (-100, "none", 0.0, 0.0, 0.0, 0, 0, "f32", "fast", False, False, False, True)
    loss, *_ = registry.op("linear_cross_entropy").reference(tensors["x"], tensors["weight"], None, tensors["target"], *options)
    assert loss.isnan().tolist() == [False, True, False]
    with rooftop.debug(debug), pytest.raises(IndexError, match=r"linear_cross_entropy: target\[1\] is 20; accepted are 0 to 19 and ignore_index, -100"):
        rooftop.linear_cross_entropy(**tensors)


@pytest.mark.parametrize("memory", ["fast", "small"])
def test_a_bias_of_minus_infinity_takes_a_class_away(memory: str) -> None:
    tensors = given()
    bias = torch.zeros(20)
    bias[5], tensors["target"][0] = float("-inf"), 4
    tensors["target"][tensors["target"] == 5] = 6
    got, want = rooftop.linear_cross_entropy(**tensors, bias=bias, memory=memory), plain(**tensors, bias=bias)
    torch.testing.assert_close(got, want)
    for g, w in zip(torch.autograd.grad(got, [tensors["x"], tensors["weight"]]), torch.autograd.grad(want, [tensors["x"], tensors["weight"]]), strict=True):
        torch.testing.assert_close(g, w)


def test_a_gradient_in_float32_reaches_a_weight_that_takes_one() -> None:
    tensors = {n: t if n == "target" else t.detach().bfloat16().requires_grad_() for n, t in given().items()}
    tensors["weight"].grad_dtype = torch.float32
    rooftop.linear_cross_entropy(**tensors, weight_grad_dtype=torch.float32).backward()
    exact = {n: t if n == "target" else t.detach().float().requires_grad_() for n, t in tensors.items()}
    plain(**exact).backward()
    assert tensors["weight"].grad.dtype == torch.float32
    torch.testing.assert_close(tensors["weight"].grad, exact["weight"].grad)


@pytest.mark.parametrize("frozen", ["x", "weight", "both"])
def test_what_is_frozen_has_no_gradient(frozen: str) -> None:
    tensors = given()
    want = torch.autograd.grad(plain(**tensors), [tensors["x"], tensors["weight"]])
    for name in ("x", "weight") if frozen == "both" else (frozen,):
        tensors[name] = tensors[name].detach()
    loss = rooftop.linear_cross_entropy(**tensors)
    assert loss.requires_grad == (frozen != "both")
    if frozen != "both":
        loss.backward()
        at, name = (1, "weight") if frozen == "x" else (0, "x")
        torch.testing.assert_close(tensors[name].grad, want[at])


def test_opcheck() -> None:
    tensors = given()
    bias = torch.randn(20, requires_grad=True)
    rooftop.linear_cross_entropy(**tensors)
    for reduction, memory, inplace, entropy in (("mean", "fast", True, False), ("sum", "small", False, False), ("none", "fast", True, True)):
        options = (-100, reduction, 0.1, 0.01, 3.0, 0, 0, "f32", memory, True, True, True, inplace, entropy, 1.5, "")
        args = (tensors["x"], tensors["weight"], bias, tensors["target"], *options)
        torch.library.opcheck(torch.ops.rooftop.linear_cross_entropy.default, args)


@pytest.mark.parametrize("memory", ["fast", "small"])
def test_a_compiled_step_is_the_eager_one(memory: str) -> None:
    def step(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss, entropy = rooftop.linear_cross_entropy(x, weight, target, temperature=0.5, weights=WEIGHTS, return_entropy=True)
        return 2 * rooftop.linear_cross_entropy(x * 2, weight, target, memory=memory) + loss - 0.1 * entropy.mean()

    tensors = given()
    found = []
    for function in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        loss = function(**tensors)
        found.append((loss, *torch.autograd.grad(loss, [tensors["x"], tensors["weight"]])))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"x": [1.0]}, TypeError, "x is a list"),
        ({"x": torch.zeros(6, 8).double()}, TypeError, "float64"),
        ({"weight": torch.zeros(20, 8).half()}, TypeError, "weight is torch.float16 and x torch.float32"),
        ({"weight": torch.zeros(20, 9)}, ValueError, r"\(20, 9\)"),
        ({"weight": torch.zeros(0, 8)}, ValueError, "a class and a feature"),
        ({"target": torch.zeros(6)}, TypeError, "class indices"),
        ({"target": torch.zeros(5, dtype=torch.int64)}, ValueError, r"\(5,\)"),
        ({"target": torch.zeros(6, dtype=torch.int64, device="meta")}, ValueError, "meta"),
        ({"bias": torch.zeros(19)}, ValueError, r"\(19,\)"),
        ({"bias": torch.zeros(20).half()}, TypeError, "bias is torch.float16"),
        ({"reduction": "max"}, ValueError, "'max'"),
        ({"memory": "none"}, ValueError, "memory is 'none'"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing is 1.5"),
        ({"softcap": 0.0}, ValueError, "softcap is 0.0"),
        ({"lse_square_scale": float("nan")}, ValueError, "lse_square_scale is nan"),
        ({"ignore_index": 1.5}, TypeError, "ignore_index is 1.5"),
        ({"temperature": 0.0}, ValueError, r"^linear_cross_entropy: temperature is 0.0; it must be a finite number above 0$"),
        ({"temperature": float("nan")}, ValueError, "temperature is nan"),
        ({"temperature": float("inf")}, ValueError, "temperature is inf"),
        ({"temperature": torch.ones(6)}, TypeError, "temperature is tensor"),
        ({"weights": torch.ones(5)}, ValueError, r"^linear_cross_entropy: weights has shape \(5,\); it must be that of target, \(6,\)$"),
        ({"weights": [1.0] * 6}, TypeError, "weights is a list"),
        ({"weights": torch.ones(6, dtype=torch.int64)}, TypeError, "weights is torch.int64"),
        ({"weights": torch.ones(6, requires_grad=True)}, ValueError, "weights requires a gradient"),
        ({"return_entropy": 1}, TypeError, "return_entropy is 1"),
        ({"weight_grad_dtype": torch.float16}, TypeError, "weight_grad_dtype is torch.float16"),
    ],
)
def test_bad_input_is_refused_with_what_is_accepted(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        rooftop.linear_cross_entropy(**{**given(), **change})


# -- plans ---------------------------------------------------------------------------------------------------------


def prepared(case: str, name: str = "linear_cross_entropy", **changed: Any) -> Call:
    op = registry.op(name)
    c = op.case(case)
    c = dataclasses.replace(c, inputs={**c.inputs, **changed})
    return Call.of(op, registry.implementation(f"{name}__triton"), op.problem(c, TARGETS["h200"]))


def products(call: Call) -> list[tuple[int, int, int]]:
    """Rows, columns and depth of each product."""
    return [(*s.args["out"].shape, s.args["a"].shape[1]) for s in call.steps if isinstance(s, TorchCall) and "a" in s.args]


def multiplications(call: Call) -> int:
    return sum(m * n * k for m, n, k in products(call))


def own(call: Call) -> int:
    """Bytes that a call allocates."""
    outs = [m for n, m in call.outputs if m is not None and n not in call.reused]
    return sum(m.nbytes for m in (*outs, *call.scratch.values()))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_memory_and_the_products_of_both_points(shape: str) -> None:
    """dW and dX in bfloat16; the lines of the docstring."""
    n, h, v = SHAPES[shape]
    dw, dx, one = 2 * v * h, 2 * n * h, n * h * v
    fast, small = (f"{shape} {n}x{h}x{v}, {memory} bf16" for memory in ("fast", "small"))
    forward, backward = prepared(fast), prepared(fast, "linear_cross_entropy_bwd")
    assert multiplications(forward) == 3 * one
    assert products(backward) == []
    assert own(forward) <= max(3.1 * dw, 3 * dw + 256 * MIB) + dx
    assert own(backward) == 0
    forward, backward = prepared(small), prepared(small, "linear_cross_entropy_bwd")
    assert (multiplications(forward), multiplications(backward)) == (one, 3 * one)
    states = sum(m.nbytes for n, m in forward.outputs if m is not None)
    assert max(own(forward), own(backward) + states) <= dw + 3 * dx + 64 * MIB


@pytest.mark.parametrize("memory", ["fast", "small"])
@pytest.mark.parametrize(("wanted", "fast", "small"), [(("x_grad",), 2, (1, 2)), (("weight_grad",), 2, (1, 2)), ((), 1, (1, 0))], ids=str)
def test_a_frozen_tensor_has_no_product(memory: str, wanted: tuple[str, ...], fast: int, small: tuple[int, int]) -> None:
    n, h, v = SHAPES["small head"]
    flags = {f: f in wanted for f in ("x_grad", "weight_grad")}
    case = f"small head {n}x{h}x{v}, {memory} bf16"
    forward = multiplications(prepared(case, **flags)) / (n * h * v)
    backward = multiplications(prepared(case, "linear_cross_entropy_bwd", **flags)) / (n * h * v) if wanted else 0
    assert (forward, backward) == ((fast, 0) if memory == "fast" else small)


@pytest.mark.parametrize(("n", "h", "v"), [(8192, 4096, 128256), (32768, 4096, 262144), (131072, 2048, 50257), (700, 33, 70001), (9000, 5, 100003), (1, 7, 9)])
def test_slices_are_all_classes_and_never_lie_on_what_is_written(n: int, h: int, v: int) -> None:
    call = prepared("small head 2048x2048x32000, small bf16", "linear_cross_entropy_bwd", x=Input((n, h), "bf16"), weight=Input((v, h), "bf16"),
                    target=Input((n,), "i64", f"below {v}"))
    module = call.implementation.module  # type: ignore[attr-defined]
    for columns in (call.config.columns, 64):
        config = dataclasses.replace(call.config, columns=columns)
        done = 0
        for first, each, offset in module.slices(call.problem, config):
            assert first == done < done + each <= v
            done += each
            if offset is None:
                assert each <= columns
            else:
                assert done * h <= offset
                assert offset + n * each <= v * h
                assert offset % 64 == each % 64 == 0
        assert done == v


def run(name: str, like: str, sizes: tuple[int, int, int], **config: Any) -> None:
    """The kernel with another config, at a case with other sizes."""
    op = registry.op(name)
    n, h, v = sizes
    shapes = {"x": (n, h), "weight": (v, h), "bias": (v,), "target": (n,)}
    c = (op.forward or op).case(like)
    inputs = {k: dataclasses.replace(t, shape=shapes[k]) if isinstance(t, Input) else t for k, t in c.inputs.items()}
    c = dataclasses.replace(c, inputs={**inputs, "target": Input((n,), "i64", f"below {v}")})
    found = registry.implementation(f"{name}__triton")
    right(fixed(found.name, lambda p: dataclasses.replace(found.choose(p), **config)), c, op=name, seed=0)


@pytest.mark.sampled("kernels", "linear_cross_entropy__triton")
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("like", ["everything bf16", "frozen input f16", "weight's gradient in float32 bf16", "bias f32"])
def test_gradients_are_summed_over_chunks_of_tokens(like: str, inside: bool) -> None:
    if inside and "32" in like:
        pytest.skip("logits lie in the memory of a gradient of their own dtype alone")
    run("linear_cross_entropy", like, (11, 64, 150), rows=4, inside=inside)


@pytest.mark.sampled("kernels", "{name}__triton")
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("like", ["everything, small bf16", "each token's f16", "small f32", "entropy, everything bf16", "entropy, small f32"])
@pytest.mark.parametrize("name", ["linear_cross_entropy", "linear_cross_entropy_bwd"])
def test_slices_of_the_classes_are_put_together(name: str, like: str, inside: bool) -> None:
    if name == "linear_cross_entropy":
        run(name, like, (7, 33, 300), columns=64, warps=1 + inside)
    else:
        run(name, like, (11, 65, 501), columns=64, inside=inside, block=128)


@pytest.mark.sampled("kernels", "linear_cross_entropy_bwd__triton")
def test_a_dloss_of_one_leaves_gradients_that_are_in_place_alone() -> None:
    op = registry.op("linear_cross_entropy_bwd")
    case = op.case("in place f32")
    assert op.reused(op.problem(case)) == {"dx": "unit_x", "dweight": "unit_weight", "dbias": "unit_bias"}
    expected = judgement.expect(op, case, "cpu", 5)
    for dloss in (1.0, -2.5):
        tensors = {**expected.tensors, "dloss": torch.tensor(dloss)}
        made = judgement.expect_given(op, op.problem(case), tensors, expected.options)
        found = checker.check(Subject("found", op, registry.implementation("linear_cross_entropy_bwd__triton")), case, backend="interpreter", expected=made)
        assert found.status == "ok", found.message


@pytest.mark.parametrize(("dtype", "classes", "of", "cap", "exact"), [
    ("bf16", 1024, 0, 30.0, False), ("f16", 512, 2048, 70.0, False), ("bf16", 1023, 0, 30.0, True), ("bf16", 4096, 0, 71.0, True),
    ("bf16", 4096, 0, 1e5, True), ("f32", 4096, 0, 30.0, True),
])
def test_logits_are_bounded_shortly_where_nothing_shows_it(dtype: str, classes: int, of: int, cap: float, exact: bool) -> None:
    """The approximation errs by 2e-7 of the cap: of a high one, or of a few classes, a loss would show it."""
    from rooftop.kernels.loss._linear_plan import cap_of
    from rooftop.kernels.loss._logits import EXACT, SHORT

    case = Case("x", _call(6, 8, classes, dtype, softcap=cap, classes=of))
    assert cap_of(registry.op("linear_cross_entropy").problem(case)) == (EXACT if exact else SHORT).value


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_reference_is_the_same_in_pieces_of_the_tokens(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from rooftop.ops import _linear_loss as reference

    g = torch.Generator().manual_seed(5)
    x, weight, bias = (torch.randn(n, generator=g, dtype=torch.float64).to(dtype) for n in ((50, 16), (30, 16), (30,)))
    target = torch.randint(0, 30, (50,), generator=g)
    options = reference.options_of(weight, (3, "mean", 0.1, 0.01, 5.0, 0, 0))
    whole = reference.forward(x, weight, bias, target, options, "fast", False, 1.0, dtype != torch.float64)
    monkeypatch.setattr(reference, "PIECE", 30 * 7)
    assert len(reference.pieces(x, weight)) == 8
    pieces = reference.forward(x, weight, bias, target, options, "fast", False, 1.0, dtype != torch.float64)
    for one, other in zip(whole, pieces, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-12 if dtype == torch.float64 else 2**-8, atol=1e-12 if dtype == torch.float64 else 1e-4)


def test_a_case_of_an_option_that_the_op_has_not_is_an_error() -> None:
    with pytest.raises(TypeError, match="linear_cross_entropy has no cap"):
        _call(6, 8, 10, "bf16", cap=30.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("columns", [1003, 512, 37])
def test_a_ragged_row_is_replaced_as_another(dtype: torch.dtype, columns: int) -> None:
    """Without masks but for the last columns: the same loss and gradient, and nothing is written past the row."""
    pytest.importorskip("triton")
    from rooftop.kernels.loss._live_passes import live_rows
    from rooftop.lab.interpret import interpreter

    g = torch.Generator().manual_seed(columns)
    logits = torch.randn(3, 1024, generator=g).to(dtype)
    bias = torch.randn(columns, generator=g)
    found = []
    for ragged in (False, True):
        z, state, losses = logits.clone(), torch.zeros(3, 4), torch.zeros(3)
        args = {
            "z": z, "bias": bias, "order": torch.tensor([2, 0], dtype=torch.int32), "live": torch.tensor([2], dtype=torch.int32),
            "target": torch.tensor([columns - 1, -100, 3]), "state": state, "losses": losses, "divisor": torch.tensor([2.0]), "zs": 1024,
            "columns": columns, "first": 0, "smoothing": 0.1, "scale": 0.01, "cap": 0.0, "SMOOTH": True, "CAP": 0, "COLUMNS": 64, "STAGES": 1,
            "RAGGED": ragged
        }
        interpreter.run(live_rows, (3,), args)
        assert torch.equal(z[:, columns:], logits[:, columns:]) and torch.equal(z[2], logits[2])
        assert not torch.equal(z[0], logits[0])
        found.append((z, state, losses))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
