"""The counter-based generator: the same bits in torch, Triton and C++, and their quality beside Philox; the op that uses it first."""

from __future__ import annotations

import ctypes
import dataclasses
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from _kernels import right

import rooftop
from rooftop.core import dispatch, registry, settings
from rooftop.core.spec import TARGETS, Input
from rooftop.core.triton_compat import compile_launch
from rooftop.formats import random_bits as definition
from rooftop.kernels._device.random import random_bits
from rooftop.lab.interpret import interpreter

COUNT = 1 << 20
SEEDS = (0, 1, 2, 12345, 2**31 - 1, 2**32 - 1)


@triton.jit
def _bits(out, seed, start, n, SHORT: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    index = start + at.to(tl.int64)
    if SHORT:
        index = index.to(tl.uint32)
    tl.store(out + at, random_bits(seed, index).to(tl.int64), at < n)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("start", [0, 2**31 - 500, 2**32 - 500, 5 * 2**32 + 7])
def test_the_same_bits_in_triton(seed: int, start: int) -> None:
    out = torch.zeros(1000, dtype=torch.int64)
    for short in (False, True) if start + 1000 <= 2**32 else (False,):
        interpreter.run(_bits, (1,), {"out": out, "seed": definition.signed(seed), "start": start, "n": 1000, "SHORT": short, "BLOCK": 1024})
        assert torch.equal(out, definition.bits(seed, 1000, start=start))
        out.zero_()


def test_the_same_bits_in_c_plus_plus(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler here")
    header = (settings.PACKAGE / "kernels" / "_device" / "words.cuh").read_text(encoding="utf-8")
    source = tmp_path / "bits.cpp"
    source.write_text(
        f"#define __device__\n//{header.partition('// The random bits')[2]}\n"
        'extern "C" void bits(unsigned seed, unsigned long long start, int n, unsigned* out)'
        " { for (int i = 0; i < n; ++i) out[i] = random_bits(seed, start + i); }\n"
    )
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(tmp_path / "bits.so"), str(source)], check=True)
    function = ctypes.CDLL(str(tmp_path / "bits.so")).bits
    for seed in SEEDS:
        for start in (0, 2**32 - 500, 5 * 2**32 + 7):
            out = np.zeros(1000, dtype=np.uint32)
            function(ctypes.c_uint(seed), ctypes.c_ulonglong(start), 1000, out.ctypes.data_as(ctypes.c_void_p))
            assert np.array_equal(out, definition.bits(seed, 1000, start=start).numpy().astype(np.uint32))


def test_some_bits_stand_still() -> None:
    """Worked out by hand from the definition, so that no implementation can drift together with another."""

    def mix(h: int) -> int:
        h ^= h >> 16
        h = h * 0x85EBCA6B % 2**32
        h ^= h >> 13
        h = h * 0xC2B2AE35 % 2**32
        return h ^ h >> 16

    for seed, index in ((0, 0), (0, 1), (7, 123456789), (2**32 - 1, 2**33 + 5)):
        want = mix(mix(index % 2**32 ^ seed * 0x9E3779B9 % 2**32) ^ (seed + (index >> 32) * 0x7FEB352D) % 2**32)
        assert int(definition.bits(seed, 1, start=index)) == want


# -- quality: each statistic has a known spread, and Philox is held to the same limits ------------------------------


@cache
def draw(kind: str, seed: int) -> np.ndarray:
    if kind == "hash":
        return definition.bits(seed, COUNT).numpy().astype(np.uint32)
    return np.random.Generator(np.random.Philox(seed)).integers(0, 2**32, COUNT, dtype=np.uint32)


def share(of: np.ndarray) -> np.ndarray:
    return of.astype(np.float64) / 2**32


@pytest.mark.parametrize(("kind", "seed"), [*(("hash", s) for s in SEEDS), ("philox", 0), ("philox", 12345)])
class TestQuality:
    def test_no_bit_is_biased(self, kind: str, seed: int) -> None:
        ones = np.unpackbits(draw(kind, seed).view(np.uint8)).reshape(COUNT, 32).sum(0, dtype=np.int64)
        assert (abs(ones - COUNT / 2) < 5 * (COUNT / 4) ** 0.5).all(), ones

    def test_neighbours_are_not_correlated(self, kind: str, seed: int) -> None:
        u = share(draw(kind, seed)) - 0.5
        for lag in (1, 2, 3, 32, 1024, 4096, 8192):
            r = float((u[:-lag] * u[lag:]).mean() * 12)
            assert abs(r) < 5 / (COUNT - lag) ** 0.5, lag

    @pytest.mark.parametrize("shift", [0, 8, 16, 24])
    def test_bytes_are_uniform(self, kind: str, seed: int, shift: int) -> None:
        counts = np.bincount(draw(kind, seed) >> np.uint32(shift) & 255, minlength=256)
        chi = float(((counts - COUNT / 256) ** 2 / (COUNT / 256)).sum())
        assert abs(chi - 255) < 5 * (2 * 255) ** 0.5

    def test_pairs_are_uniform(self, kind: str, seed: int) -> None:
        values = draw(kind, seed) >> np.uint32(27)
        counts = np.bincount(values[0::2] * 32 + values[1::2], minlength=1024)
        chi = float(((counts - COUNT / 2 / 1024) ** 2 / (COUNT / 2 / 1024)).sum())
        assert abs(chi - 1023) < 5 * (2 * 1023) ** 0.5

    def test_the_next_seed_is_another_stream(self, kind: str, seed: int) -> None:
        a, b = share(draw(kind, seed)) - 0.5, share(draw(kind, (seed + 1) % 2**32)) - 0.5
        assert abs(float((a * b).mean() * 12)) < 5 / COUNT**0.5


def test_every_bit_of_index_and_seed_changes_half_of_the_bits() -> None:
    base = definition.bits(99, 4096)
    for bit in range(12):
        other = base[torch.arange(4096) ^ (1 << bit)]
        flips = torch.tensor([bin(int(v)).count("1") for v in (base ^ other).tolist()], dtype=torch.float64).mean()
        assert abs(float(flips) - 16) < 0.5, bit
    for bit in range(32):
        flips = torch.tensor([bin(int(v)).count("1") for v in (base ^ definition.bits(99 ^ (1 << bit), 4096)).tolist()], dtype=torch.float64).mean()
        assert abs(float(flips) - 16) < 0.5, bit


def test_two_seeds_do_not_share_their_values() -> None:
    """With the seed xored in once, every value of one seed would come back under another."""
    a, b = set(definition.bits(1, 1 << 16).tolist()), set(definition.bits(2, 1 << 16).tolist())
    assert len(a & b) < 20


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_as_many_are_dropped_as_asked(p: float) -> None:
    dropped = int((~definition.kept(p, 3, (1024, 1024), "cpu")).sum())
    assert abs(dropped - p * COUNT) <= 5 * (COUNT * p * (1 - p)) ** 0.5 + (p == 1.0)


# -- the op ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_dropout_with_the_same_mask_in_the_backward(compiled: bool) -> None:
    x, b, r = (torch.randn(s, requires_grad=True) for s in ((6, 50), (50,), (6, 50)))

    def model(x: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return rooftop.bias_mask_scale_add(x, b, r, p=0.3, seed=11)

    out = (torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model)(x, b, r)
    mask = definition.kept(0.3, 11, (6, 50), "cpu")
    torch.testing.assert_close(out, r + (x + b) * mask / 0.7)
    g = torch.randn(6, 50)
    out.backward(g)
    torch.testing.assert_close(x.grad, g * mask / 0.7)
    torch.testing.assert_close(b.grad, (g * mask / 0.7).sum(0))
    torch.testing.assert_close(r.grad, g)


def test_a_mask_that_is_given_and_strides_do_not_change_the_seeds() -> None:
    x = torch.randn(8, 6).t()
    mask = torch.rand(6, 8) > 0.5
    torch.testing.assert_close(rooftop.bias_mask_scale_add(x, mask=mask, scale=2.0), 2 * x * mask)
    torch.testing.assert_close(rooftop.bias_mask_scale_add(x, p=0.5, seed=4), rooftop.bias_mask_scale_add(x.contiguous(), p=0.5, seed=4))
    nan = torch.full((4, 4), float("nan"))
    assert not rooftop.bias_mask_scale_add(nan, mask=torch.zeros(4, 4, dtype=torch.bool)).any()
    assert not rooftop.bias_mask_scale_add(nan, p=1.0, scale=3.0)[nan.isnan()].nan_to_num(0).any()


@pytest.mark.sampled("kernels", "bias_mask_scale_add_bwd__triton")
@pytest.mark.parametrize("how", ["mask", "seed"])
@pytest.mark.parametrize(
    ("config", "launches"),
    [
        ({"block": 16, "lanes": 64, "height": 128, "warps": 4}, 1), ({"block": 32, "lanes": 16, "height": 112, "warps": 1, "stages": 3}, 1),
        ({"block": 64, "lanes": 4, "height": 20, "warps": 1, "stages": 3}, 2), ({"block": 128, "lanes": 1, "height": 7, "warps": 4}, 2),
    ],
)
def test_the_bias_gradient_of_every_way_is_right(how: str, config: dict[str, int], launches: int) -> None:
    kernel = registry.implementation("bias_mask_scale_add_bwd__triton")
    c = registry.op("bias_mask_scale_add_bwd").case(f"{how} three dimensions bf16")
    shape = {1: (100,), 2: (101, 100), 3: (1, 101, 100)}
    c = dataclasses.replace(c, inputs={k: dataclasses.replace(v, shape=shape[len(v.shape)]) if isinstance(v, Input) else v for k, v in c.inputs.items()})
    assert len(right(kernel.name, c, kernel.module.Config(**config), seed=0).path) == launches  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["bias_mask_scale_add", "bias_mask_scale_add_bwd"])
@pytest.mark.parametrize("case", ["mask one element f32", "mask one block bf16", "mask odd bf16"])
def test_what_is_said_to_the_compiler_of_the_mask_compiles(name: str, case: str) -> None:
    """And spares the forward an exchange between layouts where rows lie on 16 bytes."""
    op, implementation = registry.op(name), registry.implementation(f"{name}__triton")
    problem = op.kernel_problem(op.problem(op.case(case), TARGETS[90]))
    assert problem is not None
    wide = (name, case) == ("bias_mask_scale_add", "mask one block bf16")
    config = implementation.module.Config(2048, 1, 4) if wide else implementation.choose(problem)  # 16 elements a thread
    launch = implementation.launches(problem, config)[0]
    made = compile_launch(launch, {**dict(problem.tensors), **implementation.scratch(problem, config)}, 90)
    if wide:
        assert "bar.sync" not in made.ptx


def test_a_new_seed_is_no_new_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    op, asked = registry.op("bias_mask_scale_add"), []
    monkeypatch.setattr(op, "_plans", {})
    monkeypatch.setattr(dispatch, "plan_for", lambda _, args, __: asked.append(args[5:]))  # None: the reference runs
    run = dispatch.runner(op)
    for p, seed in ((0.5, 1), (0.5, 2), (0.6, 1), (0.5, 3)):
        run([torch.ones(4), None, None, None, 1.0, p, seed], None)
    assert asked == [[0.5, 1], [0.6, 1]]


def test_opcheck() -> None:
    x = torch.randn(3, 8, requires_grad=True)
    rooftop.bias_mask_scale_add(x)
    function = torch.ops.rooftop.bias_mask_scale_add.default
    torch.library.opcheck(function, (x, torch.randn(8, requires_grad=True), torch.randn(3, 8, requires_grad=True), None, 1.25, 0.2, 5, ""))
    torch.library.opcheck(function, (x, None, None, torch.ones(3, 8, dtype=torch.bool), 1.25, 0.0, 5, ""))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"bias": torch.ones(5)}, ValueError, "bias has shape"),
        ({"bias": torch.ones(4).half()}, TypeError, "bias is torch.float16"),
        ({"mask": torch.ones(3, 4)}, TypeError, "mask is torch.float32"),
        ({"residual": torch.ones(4, 3)}, ValueError, r"\(3, 4\)"),
        ({"p": 1.5}, ValueError, "p is 1.5"),
        ({"p": 0.5, "mask": torch.ones(3, 4, dtype=torch.bool)}, ValueError, "where a mask is given"),
        ({"x": torch.tensor(1.0)}, ValueError, "no dimensions"),
    ],
)
def test_bad_input_is_refused_with_what_is_accepted(change: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        rooftop.bias_mask_scale_add(**{"x": torch.ones(3, 4), **change})  # type: ignore[arg-type]
