"""The plans of linear_cross_entropy over the tokens that count alone: Triton's passes in the interpreter, the products as torch makes them."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from _kernels import right

from rooftop.core import registry, settings
from rooftop.core.backends.triton import GluonImplementation
from rooftop.core.call import Call
from rooftop.core.implementation import Implementation, Where
from rooftop.core.spec import TARGETS, Case, Descriptor, Input, Launch, Problem, Step, TorchCall, View
from rooftop.lab.candidates import Subject
from rooftop.ops._linear_cases import SHAPES

MIB = 2**20


def counted(out: Any, a: Any, b: Any, live: Any, out_at: int, a_at: int, b_at: int, sizes: tuple[int, int, int], first: int, turned: tuple[bool, bool],
            depth: bool, add: bool, parts: int) -> None:
    """What rooftop/kernels/loss/_counted_gluon.py makes; of rows that do not count NaN, as far as it may write there."""
    m, n, k = sizes
    left = a[a_at : a_at + k, :m].t() if turned[0] else a[a_at : a_at + m, :k]
    right = b[b_at : b_at + n, :k].t() if turned[1] else b[b_at : b_at + k, :n]
    count = min(max(int(live[0]) - first, 0), k if depth else m)
    rows = m if depth else count
    if parts > 1:
        each = ((k + 63) // 64 + parts - 1) // parts * 64
        for i in range(parts):
            out[i * m : i * m + rows, :n] = left[:rows, i * each : (i + 1) * each].float() @ right[i * each : (i + 1) * each].float()
        return
    found = left[:rows, : count if depth else k].float() @ right[: count if depth else k].float()
    to = out[out_at : out_at + m, :n]
    to[:rows] = (found + to[:rows] if add else found).to(out.dtype)
    if out.dtype != torch.float32:
        to[rows : -(-rows // 128) * 128] = torch.nan


def by_torch(launch: Launch) -> TorchCall:
    def whole(value: Any) -> View:
        assert isinstance(value, Descriptor)
        assert all(s * 2 % 16 == 0 for s in value.strides[:-1])
        return View(value.tensor, value.shape, value.strides)

    x = launch.args
    sizes = (x["M"], x["N"], x["K"])
    out = whole(x["out_desc"]) if x["out"] is None else View(x["out"], (x["out_at"] + x.get("SPLIT", 1) * x["M"], x["N"]), (x["ldo"], 1))
    return TorchCall(counted, {"out": out, "a": whole(x["a_desc"]), "b": whole(x["b_desc"]), "live": View("live", (1,), (1,)), "out_at": x["out_at"],
                               "a_at": x["a_at"], "b_at": x["b_at"], "sizes": sizes, "first": x["first"], "turned": (x["A_COLUMNS"], x["B_COLUMNS"]),
                               "depth": x["DEPTH"], "add": x["ADD"], "parts": x.get("SPLIT", 1)})


class Interpreted(GluonImplementation):
    def runs(self) -> Where:
        return Where("interpreter")

    def steps(self, problem: Problem, config: Any) -> Sequence[Step]:
        found = super().steps(problem, config)
        return [by_torch(s) if isinstance(s, Launch) and s.kernel.__name__ == "product" else s for s in found]


def fixed(name: str, like: str, sizes: tuple[int, int, int], **config: Any) -> tuple[Implementation, Case]:
    """A case with other sizes, and the kernel with another config."""
    op = registry.op(name)
    n, h, v = sizes
    shapes = {"x": (n, h), "weight": (v, h), "bias": (v,), "target": (n,)}
    c = (op.forward or op).case(like)
    inputs = {k: dataclasses.replace(t, shape=shapes[k]) if isinstance(t, Input) else t for k, t in c.inputs.items()}
    c = dataclasses.replace(c, inputs={**inputs, "target": Input((n,), "i64", f"below {min(v, 12)}")})
    kept = registry.implementation(f"{name}__gluon_sm90")
    found = Interpreted(kept.path, kept.op, kept.name, kept.arch)

    def choose(p: Problem) -> Any:
        return dataclasses.replace(kept.choose(p), **config)

    found.choose = choose  # type: ignore[method-assign]
    return found, c


@pytest.mark.sampled("kernels", "linear_cross_entropy__gluon_sm90")
@pytest.mark.parametrize(
    ("like", "rows"),
    [("everything bf16", 0), ("everything bf16", 4), ("ignored bf16", 4), ("all ignored, mean bf16", 4), ("frozen input f16", 4), ("frozen weight bf16", 0),
     ("weight's gradient in float32 bf16", 4), ("out of range, mean bf16", 0), ("the loss alone f16", 0), ("logit scale bf16", 4)],
)
def test_gradients_of_the_tokens_that_count(like: str, rows: int) -> None:
    """`rows` of a chunk; where some are ignored the chunk lies in the memory of dW."""
    kernel, case = fixed("linear_cross_entropy", like, (11, 64, 150), rows=rows, inside=like == "ignored bf16")
    case = dataclasses.replace(case, inputs={**case.inputs, "memory": "small" if "loss alone" in like else "fast"})
    right(kernel, case, seed=0)


@pytest.mark.sampled("kernels", "linear_cross_entropy__gluon_sm90")
@pytest.mark.parametrize(
    ("like", "rows"),
    [("everything bf16", 0), ("ignored bf16", 4), ("frozen input f16", 0), ("frozen weight bf16", 4), ("weight's gradient in float32 bf16", 0)],
)
def test_gradients_with_a_weight_that_tma_does_not_read(like: str, rows: int) -> None:
    """61 features: the weight is copied into aligned rows; of one chunk dW takes their place."""
    kernel, case = fixed("linear_cross_entropy", like, (11, 61, 150), rows=rows, inside=like == "ignored bf16")
    right(kernel, case, seed=0)


@pytest.mark.sampled("kernels", "linear_cross_entropy_bwd__gluon_sm90")
@pytest.mark.parametrize(
    ("name", "like"),
    [("linear_cross_entropy", "everything, small bf16"), ("linear_cross_entropy_bwd", "everything, small bf16"),
     ("linear_cross_entropy_bwd", "frozen weight, small bf16"), ("linear_cross_entropy_bwd", "entropy, everything bf16")],
)
def test_slices_of_a_weight_that_tma_does_not_read(name: str, like: str) -> None:
    kernel, case = fixed(name, like, (11, 61, 300), columns=128)
    right(kernel, case, seed=0)


@pytest.mark.sampled("kernels", "linear_cross_entropy__gluon_sm90")
@pytest.mark.parametrize("width", [64, 61])
def test_parts_of_the_classes_in_the_gradient_of_x(width: int) -> None:
    kernel, case = fixed("linear_cross_entropy", "everything bf16", (11, width, 900))
    problem = Subject("fixed", registry.op("linear_cross_entropy"), kernel).kernel_problem(case, TARGETS["h200"])[1]
    assert "dx_parts" in kernel.scratch(problem, kernel.resolve(problem)[0])
    right(kernel, case, seed=0)


@pytest.mark.sampled("kernels", "linear_cross_entropy__gluon_sm90")
@pytest.mark.parametrize("like", ["everything, small bf16", "each token's f16", "entropy, everything bf16", "entropy, -inf in the bias bf16"])
def test_slices_of_the_classes_of_the_tokens_that_count(like: str) -> None:
    kernel, case = fixed("linear_cross_entropy", like, (7, 32, 200), columns=64, warps=1)
    right(kernel, case, seed=0)


@pytest.mark.sampled("kernels", "linear_cross_entropy_bwd__gluon_sm90")
@pytest.mark.parametrize(
    ("like", "inside"),
    [("everything, small bf16", True), ("ignored, small bf16", False), ("each token's f16", True), ("frozen weight, small bf16", False),
     ("entropy, everything bf16", True), ("logit scale, small bf16", False)],
)
def test_gradients_by_slices_of_the_tokens_that_count(like: str, inside: bool) -> None:
    kernel, case = fixed("linear_cross_entropy_bwd", like, (11, 64, 400), columns=64, inside=inside, block=128)
    right(kernel, case, seed=0)


def call(name: str, like: str, **sizes: int) -> Call:
    op = registry.op(name)
    case = (op.forward or op).case(like)
    if sizes:
        n, h, v = sizes.values()
        new = {"x": Input((n, h), "bf16"), "weight": Input((v, h), "bf16"), "target": Input((n,), "i64", f"below {v}")}
        case = dataclasses.replace(case, inputs={**case.inputs, **new})
    return Call.of(op, registry.implementation(f"{name}__gluon_sm90"), op.problem(case, TARGETS["h200"]))


def own(call: Call) -> int:
    """Bytes that a call allocates."""
    return sum(m.nbytes for m in (*(m for n, m in call.outputs if m is not None and n not in call.reused), *call.scratch.values()))


def logits_kept(n: int, h: int, v: int) -> int:
    """Bytes of all logits and of their x where these are at most 4 GiB, else 0; in rows of whole lines."""
    size = 2 * n * (-(-v // 64) * 64 + -(-h // 64) * 64)
    return size if size <= 4 << 30 else 0


@pytest.mark.parametrize("shape", SHAPES)
def test_the_memory_of_both_points(shape: str) -> None:
    """dW and dX in bfloat16; the lines of the docstring of linear_cross_entropy."""
    n, h, v = SHAPES[shape]
    dw, dx = 2 * v * h, 2 * n * h
    fast, small = (f"{shape} {n}x{h}x{v}, {memory} bf16" for memory in ("fast", "small"))
    assert own(call("linear_cross_entropy", fast)) <= max(3.1 * dw, 3 * dw + 256 * MIB) + dx
    forward, backward = call("linear_cross_entropy", small), call("linear_cross_entropy_bwd", small)
    states = sum(m.nbytes for n, m in forward.outputs if m is not None)
    assert max(own(forward), own(backward) + states) <= dw + 3 * dx + 64 * MIB


@pytest.mark.parametrize(("n", "h", "v"), [(12624, 1872, 155264), (30000, 1872, 155264), (5376, 1040, 78752), (262144, 512, 32000)])
def test_all_logits_are_kept_up_to_4_gib(n: int, h: int, v: int) -> None:
    dw, dx, kept = 2 * v * h, 2 * n * h, logits_kept(n, h, v)
    made = call("linear_cross_entropy", "small head 2048x2048x32000, fast bf16", n=n, h=h, v=v)
    assert (made.config.rows == 0) == (kept > 0)
    assert own(made) <= max(3.1 * dw, 3 * dw + 256 * MIB, dw + (4 << 30) * (kept > 0)) + dx + 32 * n


@pytest.mark.parametrize(("n", "h", "v"), [(5000, 3034, 29576), (20000, 1001, 50257), (60000, 1001, 50257), (2000, 300, 20001)])
def test_the_memory_with_features_that_are_no_eights(n: int, h: int, v: int) -> None:
    dw, dx, kept = 2 * v * h, 2 * n * h, logits_kept(n, h, v)
    assert own(call("linear_cross_entropy", "small head 2048x2048x32000, fast bf16", n=n, h=h, v=v)) <= (
        max(4.1 * dw, 4 * dw + 256 * MIB, 2 * dw + (4 << 30) * (kept > 0)) + 2 * dx
    )
    forward, backward = (call(name, "small head 2048x2048x32000, small bf16", n=n, h=h, v=v) for name in ("linear_cross_entropy", "linear_cross_entropy_bwd"))
    states = sum(m.nbytes for _, m in forward.outputs if m is not None)
    assert max(own(forward), own(backward) + states) <= dw + 4 * dx + 64 * MIB


@pytest.mark.parametrize(("n", "h", "v"), [(8192, 4096, 128256), (131072, 2048, 50257), (20000, 16384, 3000), (6720, 20000, 10000), (700, 32, 70001)])
def test_chunks_and_slices_lie_where_nothing_is_read_any_more(n: int, h: int, v: int) -> None:
    forward = call("linear_cross_entropy", "small head 2048x2048x32000, fast bf16", n=n, h=h, v=v)
    rows = forward.config.rows or n
    assert not forward.config.inside or (rows < n and rows * (-(-v // 64) * 64) <= v * h)
    backward = call("linear_cross_entropy_bwd", "small head 2048x2048x32000, small bf16", n=n, h=h, v=v)
    for columns in (backward.config.columns, 64):
        done = 0
        config = dataclasses.replace(backward.config, columns=columns)
        for first, each, offset in backward.implementation.module.slices(backward.problem, config):  # type: ignore[attr-defined]
            assert first == done < done + each <= v
            done += each
            assert each <= columns if offset is None else done * h <= offset and offset + n * each <= v * h and offset % each == each % 64 == 0
        assert done == v


def test_the_recorded_times_are_of_the_sizes_that_a_seed_draws() -> None:
    spec = importlib.util.spec_from_file_location("linear_loss", settings.PACKAGE.parent / "scripts" / "linear_loss.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    record = json.loads((settings.PACKAGE.parent / "results" / "h200" / "linear_loss.json").read_text())
    sizes = script.drawn(record["seed"], 8)
    assert [(r["tokens"], r["hidden"], r["classes"]) for r in record["rows"]] == sizes[: len(record["rows"])]
    assert all(r["wrong"] == [] and max(r["off"].values()) < script.FAR_OFF for r in record["rows"])


def test_where_the_time_of_a_call_goes() -> None:
    """What docs/linear_cross_entropy.md says of the kernels of a call in one chunk, beside the faster of the products by cuBLAS that were timed."""
    found: dict[str, list[float]] = {"logits": [], "others": [], "rows": []}
    for row in json.loads((settings.PACKAGE.parent / "results" / "h200" / "linear_loss_kernels.json").read_text())["rows"]:
        call = row["us"].get("one chunk", row["us"]["fast"])
        logits, *others = (us for name, us in call["kernels"] if name.startswith("product"))
        beside = [[p["torch"] for p in row["products_us"].values()]]
        if row["hidden"] % 8 == 0:
            beside.append([us for name, us in row["us"]["one chunk, products by cuBLAS"]["kernels"] if name.startswith("nvjet")])
        found["logits"].append(logits / min(b[0] for b in beside))
        found["others"] += [sum(others) / min(b[1] + b[2] for b in beside)]
        found["rows"].append(sum(us for name, us in call["kernels"] if name.startswith("live_rows")) / call["sum"])
    assert len(found["rows"]) == 4 and max(found["logits"]) < 1.065 and 1.1 < min(found["others"]) < max(found["others"]) < 1.7
    assert 0.045 < min(found["rows"]) < max(found["rows"]) < 0.105
