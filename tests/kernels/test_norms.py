"""rms_norm and layer_norm: every way of the Triton kernels, drop-in for torch's functions, under autograd and torch.compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from _kernels import right

import rooftop
from rooftop.core import registry
from rooftop.core.spec import TARGETS, Case, Input, case

NORMS = ("rms_norm", "layer_norm")


def given(rows: int, columns: int, dtype: str, residual: bool = True) -> Case:
    x = Input((rows, columns), dtype)
    weights = {"weight": Input((columns,), dtype), "bias": Input((columns,), dtype)}
    return case(f"{rows}x{columns}", x=x, residual=x if residual else None, **weights, dims=1, eps=1e-5)


WAYS = {
    "": [
        ({"way": "tile", "columns": 1024, "lanes": 2, "warps": 4}, 5, 1000, ("_tile",)),
        ({"way": "tile", "columns": 1024, "lanes": 1, "warps": 4, "early": True}, 5, 1000, ("_tile",)),
        ({"way": "tile", "columns": 1024, "lanes": 1, "warps": 2, "more": 512, "early": True}, 3, 1500, ("_tile",)),
        ({"way": "loop", "columns": 256, "lanes": 1, "warps": 4}, 4, 1000, ("_loop",)),
        ({"way": "loop", "columns": 256, "lanes": 1, "warps": 4}, 2, 130, ("_loop",)),
    ],
    "_bwd": [
        ({"columns": 64, "lanes": 1, "warps": 4, "parts": 1}, 37, 40, ("_tile_bwd", "_columns")),
        ({"columns": 64, "lanes": 2, "warps": 4, "parts": 1, "stages": 3}, 75, 64, ("_tile_bwd", "_columns")),
        ({"columns": 64, "lanes": 8, "warps": 4, "parts": 1}, 70, 64, ("_tile_bwd", "_columns")),
    ],
}


@pytest.mark.sampled("kernels", "{name}{part}__triton")
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(("part", "number"), [(part, i) for part, ways in WAYS.items() for i in range(len(ways))])
@pytest.mark.parametrize("residual", [True, False])
def test_every_way_is_right(name: str, part: str, number: int, residual: bool) -> None:
    config, rows, columns, path = WAYS[part][number]
    kernel = f"{name}{part}__triton"
    c = given(rows, columns, "bf16" if number % 2 else "f32", residual)
    assert right(kernel, c, registry.implementation(kernel).module.Config(**config), seed=0, sms=16).path == path  # type: ignore[attr-defined]


@pytest.mark.sampled("kernels", "rms_norm__triton")
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(
    ("config", "rows", "columns"),
    [
        ({"way": "tile", "columns": 1024, "lanes": 2, "warps": 4}, 5, 1000),
        ({"way": "tile", "columns": 1024, "lanes": 1, "warps": 4, "early": True}, 5, 1000),
        ({"way": "tile", "columns": 1024, "lanes": 1, "warps": 2, "more": 512, "early": True}, 3, 1500),
        ({"way": "tile", "columns": 1024, "lanes": 1, "warps": 2, "more": 512}, 3, 1500),
        ({"way": "loop", "columns": 256, "lanes": 1, "warps": 4}, 4, 1000),
    ],
)
def test_every_way_with_an_addend_is_right(config: dict[str, Any], rows: int, columns: int, residual: bool) -> None:
    one, kernel = given(rows, columns, "bf16" if residual else "f32", residual), "rms_norm__triton"
    added = Case(one.name, {**one.inputs, "addend": one.inputs["x"]})
    found = right(kernel, added, registry.implementation(kernel).module.Config(**config), seed=0)  # type: ignore[attr-defined]
    assert found.path == (f"_{config['way']}",)


def test_only_one_kernel_takes_an_addend() -> None:
    op = registry.op("rms_norm")
    plain = given(4, 64, "f32")
    for c in (plain, Case("added", {**plain.inputs, "addend": plain.inputs["x"]})):
        problem = op.kernel_problem(op.problem(c, TARGETS[90]))
        takes = {i.name for i in registry.implementations("rms_norm") if i.supports(problem) is None}
        assert takes == {"rms_norm__triton"} if c is not plain else len(takes) > 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_an_addend_is_added_after_the_norm_with_its_gradient(compiled: bool, residual: bool) -> None:
    torch.manual_seed(0)
    x, r, a, w, b = torch.randn(6, 4, 10), torch.randn(6, 4, 10), torch.randn(6, 4, 10), torch.randn(10), torch.randn(10)

    def model(x: Any, r: Any, a: Any, w: Any, b: Any) -> Any:
        y, s = rooftop.rms_norm(x, 10, w, bias=b, residual=r, addend=a) if residual else (rooftop.rms_norm(x, 10, w, bias=b, addend=a), x)
        return (y * y.detach().cos()).sum() + s.sin().sum()

    def plain(x: Any, r: Any, a: Any, w: Any, b: Any) -> Any:
        s = x + r if residual else x
        y = torch.nn.functional.rms_norm(s, (10,), w) + b + a
        return (y * y.detach().cos()).sum() + s.sin().sum()

    ours_, theirs = ([t.clone().requires_grad_() for t in (x, r, a, w, b)] for _ in range(2))
    (torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model)(*ours_).backward()
    plain(*theirs).backward()
    for g, want in zip(ours_, theirs, strict=True):
        torch.testing.assert_close(g.grad, want.grad, rtol=1e-4, atol=1e-5)


def test_an_addend_is_rounded_with_the_result() -> None:
    """The sum of a norm and an addend as large as it loses what rounds before the addition."""
    torch.manual_seed(0)
    x, a = torch.randn(8, 64).bfloat16(), (100 * torch.randn(8, 64)).bfloat16()
    want = torch.nn.functional.rms_norm(x.double(), (64,), eps=1e-6) + a.double()
    assert torch.equal(rooftop.rms_norm(x, 64, eps=1e-6, addend=a), want.bfloat16())


@pytest.mark.parametrize("name", [n + part for n in NORMS for part in ("", "_bwd")])
def test_every_config_that_tuning_may_try_launches_and_the_choice_is_among_the_valid(name: str) -> None:
    op = registry.op(name)
    for implementation in (i for i in registry.implementations(name) if i.backend == "triton"):
        for c in (c for c in op.cases if "bench" in c.tags):
            problem = op.kernel_problem(op.problem(c, TARGETS[90]))
            assert problem is not None
            if implementation.supports(problem) is not None:
                continue
            for config in implementation.configs(problem):
                for launch in implementation.launches(problem, config):
                    assert 1 <= launch.grid[0] < 2**31
                    assert launch.warps in (1, 2, 4, 8, 16, 32)


def torch_of(name: str) -> Any:
    def run(x: Any, shape: Any, weight: Any, bias: Any) -> Any:
        if name == "layer_norm":
            return torch.nn.functional.layer_norm(x, shape, weight, bias)
        return torch.nn.functional.rms_norm(x, shape, weight) + bias

    return run


def ours(name: str) -> Any:
    return lambda x, shape, weight, bias, **more: getattr(rooftop, name)(x, shape, weight=weight, bias=bias, **more)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_drop_in_with_gradients(name: str, compiled: bool) -> None:
    torch.manual_seed(0)
    x, r, w, b = torch.randn(6, 4, 10), torch.randn(6, 4, 10), torch.randn(10), torch.randn(10)

    def model(function: Any, fused: bool, x: Any, r: Any, w: Any, b: Any) -> Any:
        y, s = function(x, (10,), w, b, residual=r) if fused else (function(x + r, (10,), w, b), x + r)
        return (y * y.detach().cos()).sum() + s.sin().sum()

    got, want = [], []
    for out, fused, function in ((got, True, ours(name)), (want, False, torch_of(name))):
        inputs = [t.clone().requires_grad_() for t in (x, r, w, b)]
        run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled and fused else model
        run(function, fused, *inputs).backward()
        out += [t.grad for t in inputs]
    for g, w_ in zip(got, want, strict=True):
        torch.testing.assert_close(g, w_, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NORMS)
def test_opcheck(name: str) -> None:
    x, w = torch.randn(3, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    ours(name)(x, (8,), w, None)
    function = getattr(torch.ops.rooftop, name).default
    for r in (None, torch.randn(3, 8, requires_grad=True)):
        for addend in [()] if name == "layer_norm" else [(None,), (torch.randn(3, 8, requires_grad=True),)]:
            torch.library.opcheck(function, (x, r, w, None, 1, 1e-5, *addend, ""))


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_on_a_cpu_are_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    x, w, b = torch.randn(5, 300).to(dtype), torch.randn(300).to(dtype), torch.randn(300).to(dtype)
    want = torch_of(name)(x.float(), (300,), w.float(), b.float()).to(dtype)
    torch.testing.assert_close(ours(name)(x, (300,), w, b), want, rtol=1e-2 if dtype == torch.bfloat16 else 1e-3, atol=1e-3)


def test_the_default_eps_of_rms_norm_is_torchs() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = (torch.randn(4, 64) * 1e-3).to(dtype)
        torch.testing.assert_close(rooftop.rms_norm(x, 64), torch.nn.functional.rms_norm(x, (64,)), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"shape": (9,)}, ValueError, "normalized_shape is"),
        ({"shape": ()}, ValueError, "normalized_shape is"),
        ({"residual": torch.ones(3, 4)}, ValueError, "residual is"),
        ({"residual": torch.ones(3, 8).half()}, ValueError, "float16"),
        ({"weight": torch.ones(7)}, ValueError, "weight has shape"),
        ({"weight": torch.ones(8).double()}, TypeError, "float64"),
        ({"bias": torch.ones(8, device="meta")}, ValueError, "meta"),
        ({"eps": -1.0}, ValueError, "eps is -1"),
        ({"x": torch.ones(3, 8, dtype=torch.int32)}, TypeError, "int32"),
        ({"x": [1.0]}, TypeError, "list"),
        ({"implementation": "triton"}, ValueError, "CUDA tensors"),
    ],
)
@pytest.mark.parametrize("name", NORMS)
def test_bad_input_is_refused_with_what_is_accepted(name: str, change: dict[str, Any], error: type[Exception], says: str) -> None:
    options = {"weight": None, **change}
    with pytest.raises(error, match=says):
        getattr(rooftop, name)(options.pop("x", torch.ones(3, 8)), options.pop("shape", (8,)), **options)


@pytest.mark.parametrize(("addend", "error"), [(torch.ones(3, 4), ValueError), (torch.ones(3, 8).half(), ValueError), ([1.0], TypeError)])
def test_an_addend_is_as_the_input(addend: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="addend is"):
        rooftop.rms_norm(torch.ones(3, 8), 8, addend=addend)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_the_rungs_in_triton_say_what_they_change(number: int) -> None:
    from rooftop.core.registry import ladder

    rung = ladder("norm_triton").rungs[number - 1]
    assert rung.head is not None
    assert rung.head.idea
    assert number == 1 or rung.head.predict["speedup"] > 0


def test_a_rung_in_python_says_its_idea() -> None:
    from rooftop.core import head, head_text

    text = 'IDEA = "one"\nPREDICT = {"speedup": 1.5}\nLIMIT = "the loads"\n'
    found = head_text.of_python(text, "01_x.py")
    assert (found.idea, dict(found.predict), found.limit) == ("one", {"speedup": 1.5}, "the loads")
    with pytest.raises(head.HeadError, match="IDEA"):
        head_text.of_python("X = 1\n", "01_x.py")
    with pytest.raises(head.HeadError, match="plain value"):
        head_text.of_python("IDEA = open('x')\n", "01_x.py")
