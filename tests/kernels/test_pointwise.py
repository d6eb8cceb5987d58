"""Elementwise functions: drop-in for torch's, under autograd and torch.compile, every config of the one machinery."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from pathlib import Path
from typing import Any

import pytest
import torch
from _kernels import as_torch, right
from torch.nn import functional

import rooftop
from rooftop.core import registry
from rooftop.core.call import select
from rooftop.core.contract import metas_of
from rooftop.core.spec import TARGETS, Input, case
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.inspect.inspector import facts_of

PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "gelu": (lambda x: rooftop.gelu(x), functional.gelu),
    "gelu tanh": (lambda x: rooftop.gelu(x, approximate="tanh"), lambda x: functional.gelu(x, approximate="tanh")),
    "silu": (lambda x: rooftop.silu(x), functional.silu),
    "square": (lambda x: rooftop.square(x), torch.square),
    "swiglu packed": (lambda x: rooftop.swiglu(x), lambda x: functional.silu(x[..., :6]) * x[..., 6:]),
    "geglu packed": (lambda x: rooftop.geglu(x), lambda x: functional.gelu(x[..., :6]) * x[..., 6:]),
    "swiglu": (lambda x: rooftop.swiglu(x, x.flip(0)), lambda x: functional.silu(x) * x.flip(0)),
    "geglu": (lambda x: rooftop.geglu(x, x.flip(0), "tanh"), lambda x: functional.gelu(x, approximate="tanh") * x.flip(0)),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_drop_in_with_gradients(name: str, compiled: bool) -> None:
    torch.manual_seed(1)
    as_torch(*PAIRS[name], 3 * torch.randn(4, 5, 12), compiled=compiled, rtol=1e-4, atol=1e-5)


def test_opcheck() -> None:
    x, y = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)
    rooftop.gelu(x), rooftop.silu(x), rooftop.square(x), rooftop.swiglu(x), rooftop.geglu(x)
    ops = torch.ops.rooftop
    for function, args in (
        (ops.gelu, (x, "tanh")), (ops.silu, (x,)), (ops.square, (x,)), (ops.swiglu, (x, y, 0.0, 1.0, 0.0, False)), (ops.swiglu, (x, None, 0.5, 1.7, 1.0, True)),
        (ops.geglu, (x, y, "none")),
    ):
        torch.library.opcheck(function.default, (*args, ""))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: rooftop.gelu(torch.ones(3), "erf"), ValueError, "'erf'"),
        (lambda: rooftop.gelu(torch.ones(3).double()), TypeError, "float64"),
        (lambda: rooftop.silu([1.0]), TypeError, "list"),
        (lambda: rooftop.square(torch.ones(3, dtype=torch.int32)), TypeError, "int32"),
        (lambda: rooftop.swiglu(torch.ones(2, 3)), ValueError, "must be even"),
        (lambda: rooftop.swiglu(torch.tensor(1.0)), ValueError, "must be even"),
        (lambda: rooftop.swiglu(torch.ones(2, 4), torch.ones(2, 5)), ValueError, r"\(2, 4\)"),
        (lambda: rooftop.swiglu(torch.ones(2, 4), limit=0.0), ValueError, "limit is 0.0"),
        (lambda: rooftop.swiglu(torch.ones(2, 4), alpha=-1.0), ValueError, "alpha -1.0"),
        (lambda: rooftop.swiglu(torch.ones(2, 4), limit=float("nan")), ValueError, "limit"),
        (lambda: rooftop.swiglu(torch.ones(2, 4), offset="1"), TypeError, "offset"),
        (lambda: rooftop.swiglu(torch.ones(2, 4), torch.ones(2, 4), interleaved=True), ValueError, "interleaved is True and b is given"),
        (lambda: rooftop.geglu(torch.ones(2, 4), torch.ones(2, 4).half()), TypeError, "float16"),
        (lambda: rooftop.geglu(torch.ones(2, 4), approximate="erf"), ValueError, "'erf'"),
    ],
)
def test_bad_input_is_refused_with_what_is_accepted(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


NAMES = [f"{n}{part}" for n in ("gelu", "silu", "square", "swiglu", "geglu") for part in ("", "_bwd")]


@pytest.mark.parametrize("name", NAMES)
def test_a_contiguous_call_is_one_row_and_every_config_covers_it(name: str) -> None:
    op = registry.op(name)
    implementation = registry.implementation(f"{name}__triton")
    for c in (c for c in op.cases if "bench" in c.tags and "packed" not in c.name):
        problem = op.kernel_problem(op.problem(c, TARGETS[90]))
        assert problem is not None
        if problem.extra:
            implementation = registry.implementation(f"{name}__clamped__triton")
        rows, columns = problem.tensors[0][1].shape
        assert rows == 1
        for config in implementation.configs(problem):
            launch = implementation.launches(problem, config)[0]
            assert launch.grid[0] * config.block * config.lanes >= rows * columns


@pytest.mark.sampled("kernels", "{name}__triton")
@pytest.mark.parametrize("kernel", ["", "clamped__"])
@pytest.mark.parametrize("name", ["swiglu", "swiglu_bwd"])
def test_configs_of_several_rows_are_right(name: str, kernel: str) -> None:
    op = registry.op(name)
    c = op.case("gpt-oss packed rows padded f32" if kernel else "packed rows padded f32")
    implementation = registry.implementation(f"{name}__{kernel}triton")
    problem = op.kernel_problem(op.problem(c, TARGETS[90]))
    assert problem is not None
    tried = set()
    for config in implementation.configs(problem):
        tried.add(config.lanes)
        right(implementation.name, c, config, seed=0)
    assert len(tried) > 2


def _classes(x: torch.Tensor) -> torch.Tensor:
    """9 for NaN, ± 1 for an infinity, else 0."""
    return torch.where(x.isnan(), 9.0, torch.where(x.isinf(), x.sign(), 0.0)).double()


FAR = (-3e38, -100.0, -12.0, -8.0, -5.5, -4.0, -1.0, -0.0, 0.0, 1.0, 5.5, 12.0, 100.0, 3e38, float("-inf"), float("inf"), float("nan"))
UPS = (0.0, 1.0, float("inf"), float("-inf"), float("nan"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_geglu_of_gates_far_off_is_infinite_where_torchs_formula_is(approximate: str, dtype: torch.dtype) -> None:
    op = registry.op("geglu")
    assert op.bwd is not None and op.grad is not None
    gate, up, flow = (x.flatten()[None].contiguous().to(dtype) for x in torch.meshgrid(torch.tensor(FAR), *2 * [torch.tensor(UPS)], indexing="ij"))
    options = {"approximate": approximate}

    # 1 + erf(-5.5 / sqrt(2)) is 0 or 6e-8 in float32, as the CPU's erf rounds. Both are right: the class of the product is that of one of the two.
    rounded_off = (gate > -10) & (gate < -5)
    cubed = (gate.abs() > 1e19) & gate.isfinite()  # its cube is finite in float64 alone

    def check(contract: Any, tensors: dict[str, torch.Tensor], reference: Callable[..., Any]) -> None:
        call = select(contract, contract.problem_of(metas_of(tensors), options, TARGETS[90]), "triton").call
        assert call is not None
        got, _ = checker.Trial(call, "cpu", checker.RUNNERS["interpreter"], 64).run(tensors, options, 0xFF)

        def classes(gate: torch.Tensor, kind: torch.dtype) -> list[torch.Tensor]:
            wanted = reference(*(x.to(kind) for x in {**tensors, "a": gate}.values()), approximate)
            return [_classes(want.to(dtype)) for want in (wanted if isinstance(wanted, tuple) else (wanted,))]

        float32, float64 = classes(gate, torch.float32), classes(gate, torch.float64)
        zero = classes(torch.where(rounded_off, -9.0, gate).to(dtype), torch.float32)  # 1 + erf is exactly 0 there
        for name, want32, want64, want_zero in zip(contract.output_names, float32, float64, zero, strict=True):
            found = _classes(got[name])
            torch.testing.assert_close(found[~rounded_off], want32[~rounded_off])
            torch.testing.assert_close(found[~rounded_off & ~cubed], want64[~rounded_off & ~cubed])
            assert ((found == want64) | (found == want_zero))[rounded_off].all()

    check(op, {"a": gate, "b": up}, op.reference)
    check(op.bwd, {"dy": flow, "a": gate, "b": up}, op.grad.backward)


OSS: dict[str, Any] = {"limit": 0.7, "alpha": 1.702, "offset": 1.0}


def _gpt_oss(gate: torch.Tensor, up: torch.Tensor, limit: float = 0.7, alpha: float = 1.702, offset: float = 1.0) -> torch.Tensor:
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return (up + offset) * gate * torch.sigmoid(alpha * gate)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("options", [OSS, {"limit": 0.7}, {"alpha": 1.702}, {"offset": 1.0}])
@pytest.mark.parametrize("how", ["apart", "halves", "in turns"])
def test_a_clamped_gate_with_gradients(how: str, options: dict[str, Any], compiled: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(1)
    x, more = torch.randn(4, 5, 24), {"limit": float("inf"), "alpha": 1.0, "offset": 0.0, **options}
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    n = 12

    def function(x: torch.Tensor) -> torch.Tensor:
        if how == "apart":
            return rooftop.swiglu(x[..., :n], x[..., n:], **options)
        return rooftop.swiglu(x, interleaved=how == "in turns", **options)

    got = (torch.compile(function, backend="aot_eager", fullgraph=True) if compiled else function)(ours)
    want = _gpt_oss(*((theirs[..., ::2], theirs[..., 1::2]) if how == "in turns" else (theirs[..., :n], theirs[..., n:])), **more)
    torch.testing.assert_close(got, want)
    got.sin().sum().backward()
    want.sin().sum().backward()
    assert "limit" not in options or (((ours.grad == 0) == (theirs.grad == 0)).all() and (ours.grad == 0).any())
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_only_the_clamped_kernels_take_a_limit() -> None:
    for name in ("swiglu", "swiglu_bwd"):
        op = registry.op(name)
        for title, clamped in (("odd f32", False), ("clamped odd f32", True), ("gpt-oss packed odd f32", True)):
            problem = op.kernel_problem(op.problem(op.case(title), TARGETS[90]))
            takes = {i.name for i in registry.implementations(name) if i.supports(problem) is None}
            assert (takes == {f"{name}__clamped__triton"}) if clamped else takes and f"{name}__clamped__triton" not in takes


def test_gate_and_values_in_turns_are_read_and_written_in_place() -> None:
    for name in ("swiglu", "swiglu_bwd"):
        op = registry.op(name)
        call = select(op, op.problem(op.case("gpt-oss packed 4 MiB 682x1024 bf16"))).call
        assert call is not None and call.copies == () and call.launches[0].args["TURNS"]


def test_packed_inputs_are_read_in_place() -> None:
    op = registry.op("swiglu")
    call = select(op, op.problem(op.case("packed 512 MiB 10922x8192 bf16"))).call
    assert call is not None and call.copies == ()
    args = call.launches[0].args
    assert (args["p"], args["po"], args["q"], args["qo"]) == ("a", None, "a", 8192)


def test_the_short_normal_distribution_keeps_to_its_stated_error() -> None:
    import re

    from rooftop.kernels._device import activations

    text = Path(activations.__file__).read_text(encoding="utf-8")
    (constant, highest), *_ = re.findall(r"q = ([\d.e-]+) - ([\d.e-]+) \* t", text)
    t_square = (x := torch.linspace(-5.5, 5.5, 20001, dtype=torch.float64)).square().clamp_max(30.25)
    q = float(constant) - float(highest) * t_square
    lower = re.findall(r"q = (-?[\d.e-]+) \+ q \* t", text)
    assert len(lower) == 6
    for c in lower:
        q = float(c) + q * t_square
    error = (x * q - (torch.special.log_ndtr(x) - torch.special.log_ndtr(-x))).abs()
    assert float(error[x.abs() < 4.4].max()) < 2.2e-5
    assert float(error.max()) < 8e-4


def _counts(name: str, kernel: str, **inputs: Any) -> dict[str, int]:
    found = facts_of(Subject(kernel, registry.op(name), registry.implementation(kernel)), case("probe", **inputs), 90)
    return dict(found["kernels"][0]["counts"])


X, MASK = Input((9777, 2051), "bf16"), Input((9777, 2051), "bool")
PLAIN = {"limit": 0.0, "alpha": 1.0, "offset": 0.0, "interleaved": False}
ODD: dict[str, tuple[str, str, dict[str, Any]]] = {
    "silu": ("silu", "silu__triton", {"x": X}),
    "add": ("add", "add__triton", {"x": X, "y": X}),
    "swiglu, backward": ("swiglu_bwd", "swiglu_bwd__triton", {"a": X, "b": X, **PLAIN}),
    "clamped": ("swiglu", "swiglu__clamped__triton", {"a": X, "b": X, **PLAIN, "limit": 1.0}),
    "in turns": ("swiglu_bwd", "swiglu_bwd__clamped__triton", {"a": Input((9777, 4102), "bf16"), "b": None, **PLAIN, "interleaved": True}),
    **{
        name: (name, f"{name}__triton", {"x": X, "bias": Input((2051,), "bf16"), "residual": None, "mask": MASK, "scale": 1.25, "p": 0.0, "seed": 0})
        for name in ("bias_mask_scale_add", "bias_mask_scale_add_bwd")
    },
}


@pytest.mark.parametrize("how", ODD)
def test_odd_columns_without_gaps_are_read_and_written_in_vectors(how: str) -> None:
    """The programs that are whole; the last one takes single elements."""
    counts = _counts(*ODD[how][:2], **ODD[how][2])
    assert any(counts.get(f"{kind}.{bits}") for kind in ("LDG", "LDGSTS") for bits in (64, 128)), counts
    assert counts.get("STG.64") or counts.get("STG.128"), counts


@pytest.mark.parametrize("shape", [(37, 40), (50, 7), (33, 1), (19, 2051)])
def test_the_gradients_of_rows_that_are_seen_as_one(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole vectors of several odd rows, the rows left over, and the sums of their columns."""
    op, implementation = registry.op("bias_mask_scale_add_bwd"), registry.implementation("bias_mask_scale_add_bwd__triton")
    monkeypatch.setattr(implementation.module, "SECOND", 0)
    for mask, p in ((True, 0.0), (False, 0.5)):
        x = Input(shape, "f32")
        given = {"x": x, "bias": Input(shape[-1:], "f32"), "residual": None, "mask": Input(shape, "bool") if mask else None}
        c = case("folded", **given, scale=1.25, p=p, seed=3)
        problem = op.kernel_problem(op.problem(c, TARGETS[90]))
        assert problem is not None
        (slab, sums), unit = implementation.launches(problem, implementation.choose(problem)), 8 if shape[1] >= 2048 else 16
        fold = unit // gcd(unit, shape[1])
        assert slab.args["C"] * slab.args["EACH"] == fold * shape[1] and slab.args["EACH"] == 8
        assert sums.args["C"] == shape[1] and slab.args["REST"] == (shape[0] % fold > 0)
        right(implementation, c, seed=0)


def _choice(name: str, **inputs: Any) -> str:
    op = registry.op(name)
    c = case("probe", **inputs)
    found = select(op, op.problem(c, TARGETS[90])).call
    assert found is not None and found.copies == ()
    return str(found.implementation.name)


def test_rows_that_start_within_vectors_are_shifted_in_registers() -> None:
    """Columns do not matter where tensors have no gaps and start alike, on a vector; a copy is made of none."""
    odd, packed, even = Input((64, 1003), "bf16"), Input((64, 2006), "bf16"), Input((64, 2048), "bf16")
    for name in ("swiglu", "swiglu_bwd", "geglu", "geglu_bwd"):
        options = {"approximate": "none"} if name.startswith("geglu") else PLAIN
        assert _choice(name, a=odd, b=odd, **options) == f"{name}__triton"
        assert _choice(name, a=packed, b=None, **options) == f"{name}__rows__cuda_sm80"
        assert _choice(name, a=even, b=None, **options) == f"{name}__triton"
    for layout in ("offset", "sliced"):
        x = Input((64, 1003), "bf16", layout=layout)
        assert _choice("silu", x=x) == "silu__rows__cuda_sm80"
    begins = Input((1003,), "bf16", layout="offset")
    assert _choice("add", x=begins, y=begins) == "add__rows__cuda_sm80" and _choice("add", x=odd, y=odd) == "add__triton"
