"""cross_entropy: drop-in for torch's, under autograd and torch.compile; what it adds; every config of its kernels."""

from __future__ import annotations

import dataclasses
from math import gcd
from typing import Any

import pytest
import torch
from _kernels import as_torch, right
from torch.nn import functional

import rooftop
from rooftop.core import registry
from rooftop.core.call import select
from rooftop.core.choice import Chosen
from rooftop.core.contract import metas_of
from rooftop.core.spec import DTYPES, TARGETS, Case, Input
from rooftop.core.triton_compat import compile_launch
from rooftop.kernels.loss._logits import each
from rooftop.lab.check import checker

OPTIONS: list[dict[str, Any]] = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"label_smoothing": 0.2},
    {"ignore_index": 3},
    {"ignore_index": 3, "label_smoothing": 0.1, "reduction": "none"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_drop_in_with_gradients(options: dict[str, Any], compiled: bool) -> None:
    torch.manual_seed(0)
    target = torch.randint(0, 12, (40,))
    ours, theirs = (lambda x, of=of: of(x, target, **options) for of in (rooftop.cross_entropy, functional.cross_entropy))  # type: ignore[misc]
    as_torch(ours, theirs, torch.randn(40, 12), compiled=compiled)


def test_one_row_and_empty_and_all_ignored() -> None:
    x, t = torch.randn(9), torch.tensor(4)
    for reduction in ("mean", "sum", "none"):
        torch.testing.assert_close(rooftop.cross_entropy(x, t, reduction=reduction), functional.cross_entropy(x, t, reduction=reduction))
    empty = torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64)
    assert rooftop.cross_entropy(*empty).isnan()
    assert rooftop.cross_entropy(*empty, reduction="sum") == 0
    ignored = torch.randn(3, 5, requires_grad=True)
    rooftop.cross_entropy(ignored, torch.full((3,), -100), reduction="sum").backward()
    assert not ignored.grad.any()  # type: ignore[union-attr]


def test_the_square_of_the_normaliser_and_the_cap() -> None:
    x = torch.randn(6, 20, dtype=torch.float32, requires_grad=True)
    t = torch.randint(0, 20, (6,))
    z = 2.0 * torch.tanh(x / 2.0)
    want = functional.cross_entropy(z, t) + 0.01 * z.logsumexp(-1).square().mean()
    got = rooftop.cross_entropy(x, t, lse_square_scale=0.01, softcap=2.0)
    torch.testing.assert_close(got, want)
    (g,) = torch.autograd.grad(got, x)
    (w,) = torch.autograd.grad(want, x)
    torch.testing.assert_close(g, w)


def test_sixteen_bits_have_a_loss_in_float32() -> None:
    x, t = torch.randn(64, 1000).bfloat16(), torch.randint(0, 1000, (64,))
    loss = rooftop.cross_entropy(x, t)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, functional.cross_entropy(x.float(), t))


def test_a_target_out_of_range_gives_nan_and_touches_no_other_row() -> None:
    """In the contract, as kernels have it; a call on the CPU raises."""
    x, t, options = torch.randn(3, 5), torch.tensor([1, 5, -1]), (-100, "none", 0.0, 0.0, 0.0, False)
    op = registry.op("cross_entropy")
    loss, *kept = op.reference(x, t, *options)
    assert op.grad is not None and loss.isnan().tolist() == [False, True, True]
    assert op.grad.backward(torch.ones(3), x, t, *kept, *options).isnan().any(1).tolist() == [False, True, True]
    with pytest.raises(IndexError, match=r"cross_entropy: target\[1\] is 5; accepted are 0 to 4 and ignore_index, -100"):
        rooftop.cross_entropy(x, t)


def test_in_place_is_a_request_of_eager_cuda_calls_alone() -> None:
    x, t = torch.randn(4, 6, requires_grad=True), torch.tensor([0, 1, 2, 3])
    y = x * 1
    before = y.detach().clone()
    rooftop.cross_entropy(y, t, inplace_backward=True).backward()
    assert torch.equal(y.detach(), before)
    op = registry.op("cross_entropy_bwd")
    for c in (c for c in op.cases if c.name.startswith("in place")):
        assert op.reused(op.problem(c, TARGETS[90])) == {"dinput": "input"}
    assert op.reused(op.problem(op.case("rows misaligned f32"), TARGETS[90])) == {}  # a slice: its gradient is dense


def test_opcheck() -> None:
    x, t = torch.randn(5, 7, requires_grad=True), torch.tensor([0, 1, 2, 3, -100])
    rooftop.cross_entropy(x, t)
    for reduction, inplace in (("mean", True), ("none", False)):
        torch.library.opcheck(torch.ops.rooftop.cross_entropy.default, (x, t, -100, reduction, 0.1, 0.01, 3.0, inplace, ""))


@pytest.mark.sampled("kernels", "{name}__triton")
@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy_bwd"])
@pytest.mark.parametrize("case", ["everything bf16", "two blocks 3x4097 f32", "in place f32"])
def test_every_config_is_right(name: str, case: str) -> None:
    op, kernel = registry.op(name), registry.implementation(f"{name}__triton")
    problem = op.kernel_problem(op.problem(op.case(case), TARGETS[90]))
    assert problem is not None
    for config in kernel.configs(problem)[::5]:
        right(kernel.name, op.case(case), config, seed=0)


@pytest.mark.sampled("kernels", "cross_entropy__triton")
@pytest.mark.parametrize(("parts", "stages"), [(1, 2), (2, 1), (4, 1), (8, 3)])
@pytest.mark.parametrize("like", ["everything bf16", "sum f32", "two blocks 3x4097 f16", "ignored bf16"])
def test_rows_that_programs_share_are_put_together(like: str, parts: int, stages: int) -> None:
    c, name = registry.op("cross_entropy").case(like), "cross_entropy__triton"
    x, target = c.inputs["input"], c.inputs["target"]
    assert isinstance(x, Input) and isinstance(target, Input)
    c = dataclasses.replace(c, inputs={**c.inputs, "input": Input((6, 5209), x.dtype), "target": Input((6,), "i64", "below 5211")})
    right(name, c, registry.implementation(name).module.Config(4, 32 * 16 // DTYPES[x.dtype].bytes, 1, parts, stages), seed=0)  # type: ignore[attr-defined]


@pytest.mark.sampled("kernels", "{name}__triton")
@pytest.mark.parametrize("columns", [64, 65, 71, 72, 79])
@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy_bwd"])
def test_rows_that_start_at_any_address(name: str, columns: int) -> None:
    op = registry.op(name)
    c = op.case("everything f16")
    c = dataclasses.replace(c, inputs={**c.inputs, **{k: dataclasses.replace(v, shape=(9, *((columns,) if len(v.shape) > 1 else ())))
                                                      for k, v in c.inputs.items() if isinstance(v, Input) and v.shape}})
    problem = op.kernel_problem(op.problem(c, TARGETS[90]))
    assert problem is not None and each(problem) == (0 if columns == 64 else 8)
    right(f"{name}__triton", c, seed=0)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"target": torch.zeros(4)}, TypeError, "class indices"),
        ({"target": torch.zeros(5, dtype=torch.int64)}, ValueError, r"\(4, 3\)"),
        ({"input": torch.zeros(4, 3).double()}, TypeError, "float64"),
        ({"input": torch.zeros(4, 3, 2)}, ValueError, r"\[N, C\]"),
        ({"input": torch.zeros(4, 0)}, ValueError, "no classes"),
        ({"reduction": "max"}, ValueError, "'max'"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing is 1.5"),
        ({"softcap": 0.0}, ValueError, "softcap is 0.0"),
        ({"input": [1.0]}, TypeError, "list"),
        ({"target": torch.zeros(4, dtype=torch.int64, device="meta")}, ValueError, "meta"),
    ],
)
def test_bad_input_is_refused_with_what_is_accepted(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        rooftop.cross_entropy(**{"input": torch.zeros(4, 3), "target": torch.zeros(4, dtype=torch.int64), **change})


CUDA = [  # pieces, ahead, threads, cluster, blocks, spare
    (2, 1, 32, 1, 16, 0), (4, 0, 64, 2, 8, 1), (8, 0, 128, 1, 8, 2), (2, 1, 128, 2, 4, 1), (2, 0, 256, 1, 4, 0),
    (7, 0, 256, 1, 4, 0), (6, 0, 96, 1, 10, 1), (5, 0, 512, 1, 2, 0),
]


@pytest.mark.sampled("kernels", "cross_entropy__cuda_sm90")
@pytest.mark.parametrize(
    "like", ["everything, many classes bf16", "two blocks 3x4097 f32", "rows misaligned f16", "high soft cap, 1032 classes f16", "long 2x131080 bf16"]
)
@pytest.mark.parametrize("config", CUDA, ids=str)
def test_configs_of_the_cuda_kernel(like: str, config: tuple[int, ...]) -> None:
    chosen = dict(zip(("pieces", "ahead", "threads", "cluster", "blocks", "spare"), config, strict=True))
    right("cross_entropy__cuda_sm90", registry.op("cross_entropy").case(like), chosen, seed=2)


@pytest.mark.sampled("kernels", "cross_entropy__cuda_sm90")
@pytest.mark.parametrize("rows", [1, 3, 513, 1030, 32771])  # the last: by a cluster
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_cuda_kernel_counts_the_rows_that_it_adds(rows: int, reduction: str) -> None:
    """A row that is ignored leaves -0.0, a row whose loss is 0 does not: one class, target 0 or ignored."""
    c = registry.op("cross_entropy").case("all ignored f32")
    given = {**c.inputs, "input": Input((rows, 3), "f32", "equal"), "target": Input((rows,), "i64", "below 3"), "ignore_index": 1, "reduction": reduction}
    right("cross_entropy__cuda_sm90", dataclasses.replace(c, inputs=given), seed=3)


@pytest.mark.parametrize("cap", [2.0, 30.0, 1e4])
def test_the_only_class_has_loss_and_gradient_0_under_a_soft_cap(cap: float) -> None:
    """No compiler may fuse the product with the cap and the difference from the row's maximum: the two would no longer cancel."""
    forward = registry.op("cross_entropy")
    assert forward.bwd is not None
    x, target = 5 * torch.randn(40, 1, generator=torch.Generator().manual_seed(1)), torch.zeros(40, dtype=torch.int64)
    options = {**forward.options(forward.case("one class f32")), "softcap": cap, "reduction": "sum"}
    found: dict[str, torch.Tensor] = {}
    for op in (forward, forward.bwd):
        given = {"dloss": torch.tensor(3.0), "input": x, "target": target, **found}
        tensors = {n: given[n] for n in op.tensor_names}
        call = select(op, op.problem_of(metas_of(tensors), {n: options[n] for n in op.options(op.cases[0])}, TARGETS[90]), "triton").call
        assert call is not None
        made = compile_launch(call.launches[0], {**dict(call.problem.tensors), **call.scratch}, 90)
        assert "mul.rn." in made.ptx
        got, _ = checker.Trial(call, "cpu", checker.RUNNERS["interpreter"], 64).run(tensors, options, 0xFF)
        found |= got
    assert float(found["loss"]) == 0 and not found["dinput"].any()


def test_a_target_out_of_range_is_an_error_under_debug() -> None:
    x, t = torch.randn(3, 5), torch.tensor([0, 7, -100])
    with rooftop.debug(), pytest.raises(IndexError, match=r"cross_entropy: target\[1\] is 7; accepted are 0 to 4 and ignore_index, -100"):
        rooftop.cross_entropy(x, t)


STRETCH = "cross_entropy_bwd__stretch__cuda_sm80"


def _like(name: str, dtype: str, rows: int, classes: int, cap: float = 0.0) -> Case:
    c = registry.op("cross_entropy").case(f"{name} {dtype}")
    x = c.inputs["input"]
    assert isinstance(x, Input)
    given: dict[str, Any] = {"input": dataclasses.replace(x, shape=(rows, classes)), "target": Input((rows,), "i64", f"below {classes + 1}"), "softcap": cap}
    return dataclasses.replace(c, inputs={**c.inputs, **given})


# rows, classes: rows that end within vectors, fewer rows than teams, several stretches a block, a stretch that ends within a vector
STAGED = [(1, 1), (3, 7), (700, 66), (33, 83), (41, 129), (300, 80), (67, 288), (50, 369), (19, 528), (9, 1024), (21, 1003)]


@pytest.mark.sampled("kernels", "cross_entropy__staged__cuda_sm80")
@pytest.mark.parametrize("like", ["each row's", "everything", "sum", "NaN", "-inf", "rows of -inf"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_short_rows_of_a_stretch(dtype: str, like: str) -> None:
    for rows, classes in STAGED:
        right("cross_entropy__staged__cuda_sm80", _like(like, dtype, rows, classes), seed=rows)


@pytest.mark.sampled("kernels", "cross_entropy__staged__cuda_sm80")
def test_all_configs_of_a_stretch_and_a_block_that_takes_several() -> None:
    op, kernel = registry.op("cross_entropy"), registry.implementation("cross_entropy__staged__cuda_sm80")
    few = dataclasses.replace(TARGETS["h200"], sms=1)
    for dtype, rows, classes in (("bf16", 1500, 80), ("bf16", 700, 93), ("f32", 300, 130)):
        c = _like("everything", dtype, rows, classes)
        for config in kernel.configs(op.problem(c, few)):
            right(kernel.name, c, config, seed=2)


def test_stretches_fit_a_multiprocessor_and_lanes_hold_a_row() -> None:
    op, implementation = registry.op("cross_entropy"), registry.implementation("cross_entropy__staged__cuda_sm80")
    for dtype in ("bf16", "f32"):
        for classes in (*range(64, 600, 7), 600, 1000, 1024):
            for card in ("a800", "rtx4090", "h200"):
                problem = op.kernel_problem(op.problem(_like("sum", dtype, 1 << 20, classes), TARGETS[card]))
                assert problem is not None
                config, size = implementation.choose(problem), classes * DTYPES[dtype].bytes
                assert config["pieces"] <= 8
                assert config["lanes"] * config["pieces"] * 16 >= size + 16 - gcd(16, size)
                assert config["rows"] <= 256
                assert config["rows"] * size % 16 == 0
                assert 2 * config["rows"] * size + 5120 <= problem.device.shared_per_block


def test_many_short_rows_are_staged_and_few_are_not() -> None:
    op = registry.op("cross_entropy")
    for rows, classes, cap, staged in ((1 << 20, 80, 0.0, True), (1 << 20, 80, 3.0, False), (512, 1024, 0.0, False), (1 << 20, 4096, 0.0, False)):
        problem = op.kernel_problem(op.problem(_like("sum", "bf16", rows, classes, cap), TARGETS["h200"]))
        assert problem is not None
        found = registry.choose("cross_entropy", problem)
        assert isinstance(found, Chosen)
        assert (found.kernel == "cross_entropy__staged__cuda_sm80") == staged, (rows, classes, cap)


def test_the_cuda_kernel_keeps_enough_of_many_rows_on_their_way() -> None:
    """Rows that a block holds at once: at least 80 KiB of them resident on a multiprocessor, few places idle."""
    op, implementation = registry.op("cross_entropy"), registry.implementation("cross_entropy__cuda_sm90")
    for classes in (*range(2500, 28000, 501), 3024, 8192, 13888, 20000):
        problem = op.kernel_problem(op.problem(_like("sum", "bf16", 16384, classes), TARGETS["h200"]))
        assert problem is not None
        c, size = implementation.choose(problem), classes * 2
        assert size <= 16 * c["pieces"] * c["threads"] <= 1.15 * size + 512
        assert c["blocks"] * c["threads"] <= 1024
        assert c["blocks"] * size >= 72 * 1024, (classes, c)


@pytest.mark.sampled("kernels", "cross_entropy_bwd__cuda_sm80")
@pytest.mark.parametrize("config", [(8, 4, 1), (16, 3, 1), (16, 4, 1), (8, 3, 1)], ids=str)
def test_gradients_of_short_rows_by_few_lanes(config: tuple[int, ...]) -> None:
    op, classes = registry.op("cross_entropy_bwd"), config[0] * config[1] * 4
    for like, wide in (("everything f32", classes - 4), ("each row's f32", classes - 2), ("everything bf16", 2 * classes - 8)):
        c = op.case(like)
        changed = {k: dataclasses.replace(v, shape=(13, wide) if len(v.shape) == 2 and v.shape[1] > 2 else (13, *v.shape[1:])) for k, v in c.inputs.items()
                   if isinstance(v, Input) and v.shape and v.shape != (1,)}
        c = dataclasses.replace(c, inputs={**c.inputs, **changed})
        right("cross_entropy_bwd__cuda_sm80", c, dict(zip(("lanes", "vectors", "rows"), config, strict=True)), seed=4)


# rows, classes: one piece of the range, several, rows longer than a piece, pieces that end within a row, ranges that end within a vector
STRETCHES = [(1, 8), (3, 9), (1100, 8), (700, 15), (300, 64), (127, 65), (60, 137), (121, 143), (64, 128), (15, 1248), (12, 1415), (3, 9001)]


@pytest.mark.sampled("kernels", STRETCH)
@pytest.mark.parametrize("like", ["each row's", "everything", "in place with ignored", "NaN", "rows of -inf"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_gradients_of_a_range_of_rows(dtype: str, like: str) -> None:
    for rows, classes in STRETCHES:
        right(STRETCH, _like(like, dtype, rows, classes), {"vectors": 4}, op="cross_entropy_bwd", seed=rows)


@pytest.mark.sampled("kernels", STRETCH)
@pytest.mark.parametrize("vectors", [2, 3, 6, 8])
def test_pieces_of_a_range_of_rows_of_any_size(vectors: int) -> None:
    for rows, classes in ((2100, 9), (241, 71), (17, 1103)):
        right(STRETCH, _like("everything", "bf16", rows, classes), {"vectors": vectors}, op="cross_entropy_bwd", seed=vectors)


@pytest.mark.sampled("kernels", STRETCH)
def test_the_only_finite_class_of_a_row_in_a_range_has_gradient_0() -> None:
    op, rows, classes = registry.op("cross_entropy_bwd"), 40, 11
    target = torch.arange(rows) % classes
    x = torch.full((rows, classes), float("-inf"), dtype=torch.bfloat16)
    x[torch.arange(rows), target] = 5 * torch.randn(rows, generator=torch.Generator().manual_seed(1)).bfloat16()
    normaliser = torch.stack((x.float().amax(-1), torch.ones(rows)), -1)
    tensors = {"dloss": torch.tensor(3.7), "input": x, "target": target, "normaliser": normaliser, "divisor": torch.tensor(7.0)}
    options = op.options(op.case("sum bf16"))
    call = select(op, op.problem_of(metas_of(tensors), options, TARGETS[90]), "stretch__cuda_sm80").call
    assert call is not None
    got, _ = checker.Trial(call, "cpu", checker.RUNNERS["simt"], 64).run(tensors, options, 0xFF)
    assert not got["dinput"].any()


@pytest.mark.sampled("kernels", STRETCH)
@pytest.mark.parametrize("ignore", [-100, 3])
def test_gradients_of_a_range_with_an_infinite_gradient_of_a_loss(ignore: int) -> None:
    op, rows, classes = registry.op("cross_entropy_bwd"), 30, 13
    x, target = torch.randn(rows, classes, generator=torch.Generator().manual_seed(2)).bfloat16(), torch.arange(rows) % classes
    dloss = torch.ones(rows).masked_fill(torch.arange(rows) % 3 == 1, float("inf"))
    most = x.float().amax(-1)
    normaliser = torch.stack((most, (x.float() - most[:, None]).exp().sum(-1)), -1)
    tensors = {"dloss": dloss, "input": x, "target": target, "normaliser": normaliser, "divisor": torch.tensor(1.0)}
    options = {**op.options(op.case("each row's bf16")), "ignore_index": ignore}
    call = select(op, op.problem_of(metas_of(tensors), options, TARGETS[90]), "stretch__cuda_sm80").call
    assert call is not None
    got, _ = checker.Trial(call, "cpu", checker.RUNNERS["simt"], 64).run(tensors, options, 0xFF)
    p = (x.float() - normaliser[:, :1]).exp() / normaliser[:, 1:]
    want = ((p - functional.one_hot(target, classes)) * dloss[:, None]).where((target != ignore)[:, None], 0.0)
    torch.testing.assert_close(got["dinput"].float(), want, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize(("rows", "classes", "cap", "first"), [
    (3806247, 64, 0.0, True), (744086, 137, 0.0, True), (845056, 143, 0.0, True), (43859, 1248, 0.0, True), (59839, 1415, 0.0, True),
    (744086, 137, 3.0, False), (1000, 137, 0.0, False), (1 << 20, 128, 0.0, False), (1 << 16, 2048, 0.0, False), (4096, 50257, 0.0, False),
])
def test_gradients_of_many_short_rows_are_of_a_range(rows: int, classes: int, cap: float, first: bool) -> None:
    op = registry.op("cross_entropy_bwd")
    problem = op.kernel_problem(op.problem(_like("sum", "bf16", rows, classes, cap), TARGETS["h200"]))
    assert problem is not None
    call = select(op, problem).call
    assert call is not None
    assert (call.implementation.name == "cross_entropy_bwd__stretch__cuda_sm80") == first, call.implementation.name
