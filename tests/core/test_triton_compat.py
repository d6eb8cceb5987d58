"""Ahead-of-time compiling, and the arguments of a prepared launch against those of Triton's own. Nothing here needs a GPU."""

from __future__ import annotations

import importlib.util
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from rooftop.core import triton_compat, triton_launch
from rooftop.core.spec import Launch, Meta
from rooftop.lab.interpret import interpreter


@triton.jit
def scale(x, y, bias, n, stride, factor, BLOCK: tl.constexpr, SQUARE: tl.constexpr = False):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at * stride, at < n) * factor
    if bias is not None:
        v += tl.load(bias + at, at < n)
    if SQUARE:
        v = v * v
    tl.store(y + at, v, at < n)


@triton.jit
def matmul(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    tl.store(c + m * N + n, tl.dot(tl.load(a + m * K + k[None, :]), tl.load(b + k[:, None] * N + n)))


@gluon.jit
def gluon_copy(x, y, N: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = gl.arange(0, N, layout=layout)
    gl.store(y + at, gl.load(x + at))


SIGNATURE = {"x": "*fp32", "y": "*fp32", "bias": "*fp32", "n": "i32", "stride": "i32", "factor": "fp32"}


@pytest.mark.parametrize(("arch", "target"), [(80, "sm_80"), (89, "sm_89"), (90, "sm_90a")])
def test_compile_for(arch: int, target: str) -> None:
    made = triton_compat.compile_for(scale, SIGNATURE, {"BLOCK": 1024}, ("x", "y", "n"), arch, num_warps=8)
    assert re.search(r"^\.target (\S+)$", made.ptx, re.M)[1] == target  # type: ignore[index]
    assert made.cubin[:4] == b"\x7fELF" and len(made.cubin) > 1000
    assert (made.name, made.arch, made.num_warps, made.num_ctas, made.shared, made.scratch) == ("scale", arch, 8, 1, 0, 0)
    assert f".reqntid {32 * 8}" in made.ptx


def test_shared_memory_and_tensor_cores() -> None:
    sizes = {"M": 64, "N": 64, "K": 64}
    made = triton_compat.compile_for(matmul, dict.fromkeys("abc", "*bf16") | {"c": "*fp32"}, sizes, ("a", "b", "c"), 90)
    assert made.shared >= 2 * 64 * 64 * 2 and "wgmma.mma_async" in made.ptx


def test_alignment_and_constants_reach_the_code() -> None:
    def widest(aligned: tuple[str, ...], constants: dict[str, Any]) -> int:
        signature = {k: v for k, v in SIGNATURE.items() if k not in constants}
        made = triton_compat.compile_for(scale, signature, {"BLOCK": 1024, **constants}, aligned, 90)
        return max(int(v or 1) for v in re.findall(r"ld\.global(?:\.v(\d))?\.b32", made.ptx))

    assert widest(("x", "y", "n"), {"stride": 1, "bias": None}) == 4
    assert widest((), {"stride": 1, "bias": None}) == 1


def test_what_the_parser_refuses_of_two_threads_at_once_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, failed = triton.compile, [SystemError("AST constructor recursion depth mismatch (before=129, after=53)")]

    def at_times(*given: Any, **more: Any) -> Any:
        if failed:
            raise failed.pop()
        return whole(*given, **more)

    monkeypatch.setattr(triton, "compile", at_times)
    values = {"x": torch.empty(8), "y": torch.empty(8), "bias": None, "n": 8, "stride": 1, "factor": 2.0, "BLOCK": 32}
    assert triton_compat.compile_values(scale, values, 90, {}).name == "scale"
    failed.append(SystemError("something else"))
    with pytest.raises(SystemError, match="something else"):
        triton_compat.compile_values(scale, values, 90, {})


def test_gluon() -> None:
    made = triton_compat.compile_for(gluon_copy, {"x": "*fp32", "y": "*fp32"}, {"N": 128}, ("x", "y"), 90)
    assert made.cubin and "ld.global" in made.ptx
    with pytest.raises(TypeError, match="a Gluon kernel"):
        interpreter.run(gluon_copy, (1,), {"x": torch.ones(128), "y": torch.ones(128), "N": 128})


def test_parameters_that_do_not_fit() -> None:
    for signature, constants, aligned, text in (
        ({"x": "*fp32"}, {"BLOCK": 64}, (), r"missing are \['y', 'bias', 'n', 'stride', 'factor'\]"),
        (SIGNATURE, {"BLOCK": 64, "WIDTH": 1}, (), r"unknown are \['WIDTH'\]"),
        (SIGNATURE, {"BLOCK": 64, "n": 1}, (), r"in both signature and constants are \['n'\]"),
        (SIGNATURE, {"BLOCK": 64}, ("BLOCK",), r"aligned names \['BLOCK'\]"),
    ):
        with pytest.raises(ValueError, match=text):
            triton_compat.compile_for(scale, signature, constants, aligned, 90)


def test_interpreting_and_compiling_live_together() -> None:
    before = triton_compat.compile_for(scale, SIGNATURE, {"BLOCK": 64}, (), 80)
    x, y = torch.randn(60), torch.empty(60)
    interpreter.run(scale, (1,), {"x": x, "y": y, "bias": None, "n": 60, "stride": 1, "factor": 2.0, "BLOCK": 64})
    assert torch.equal(y, x * 2)
    assert triton_compat.compile_for(scale, SIGNATURE, {"BLOCK": 64}, (), 80) == before


@pytest.mark.parametrize("version", ["3.5.1", "3.10.0", "4.0.0", "unknown"])
def test_other_versions_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (3, 6) <= triton_compat.version() <= (3, 9)
    monkeypatch.setattr(triton, "__version__", version)
    with pytest.raises(triton_compat.UnsupportedTriton, match=rf"Triton is {version}; 3\.6 to 3\.9 are accepted"):
        triton_compat.version()


# -- launches ------------------------------------------------------------------------------------------------------

TENSORS = {"a": Meta((4096,), "f32"), "b": Meta((4096,), "f32", align=4), "out": Meta((4096,), "f32"), "none": None}


def launching(n: int = 4096, stride: int = 1, bias: str = "b", **changed: Any) -> Launch:
    args = {"x": "a", "y": "out", "bias": bias, "n": n, "stride": stride, "factor": 0.5, "BLOCK": 1024, **changed}
    return Launch(kernel=scale, grid=(-(-n // 1024),), args=args, warps=8, stages=2)


def test_compile_launch_specialises_as_a_launch() -> None:
    made = triton_compat.compile_launch(launching(bias="none"), TENSORS, 90)
    direct = triton_compat.compile_for(
        scale,
        {"x": "*fp32", "y": "*fp32", "n": "i32", "factor": "fp32"},
        {"BLOCK": 1024, "stride": 1, "bias": None},
        ("x", "y", "n"),
        90,
        num_warps=8,
        num_stages=2,
    )
    assert made.ptx == direct.ptx
    assert made.ptx != triton_compat.compile_launch(launching(n=4095, bias="none"), TENSORS, 90).ptx
    assert made.ptx != triton_compat.compile_launch(launching(bias="none"), {**TENSORS, "a": TENSORS["b"]}, 90).ptx
    with pytest.raises(TypeError, match="unknown are WIDTH"):
        triton_compat.compile_launch(launching(WIDTH=1), TENSORS, 90)


class RecordedDriver:
    """Stands for the CUDA driver: Triton's own launcher runs, and what it hands to the C function is recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from triton.backends.compiler import GPUTarget
        from triton.backends.nvidia import driver as nvidia

        self.calls: list[tuple[Any, ...]] = []
        self.device = 0

        def record(*args: Any) -> None:
            self.calls.append(args)

        if hasattr(nvidia, "make_launcher"):  # 3.6 compiles a C module for each signature, which needs libcuda
            monkeypatch.setattr(nvidia, "compile_module_from_src", lambda **kw: types.SimpleNamespace(launch=record))
            monkeypatch.setattr(nvidia, "library_dirs", list)
        else:
            monkeypatch.setattr(nvidia, "PyKernelArg", lambda nested_tuple, type: (nested_tuple, type))
        self.launcher_cls = nvidia.CudaLauncher
        self.utils = types.SimpleNamespace(
            launch=record,
            build_signature_metadata=lambda signature: tuple(signature),
            get_device_properties=lambda device: {"max_shared_mem": 232448},
            load_binary=lambda *args: (11, 22, 0, 0, 1024),
            unload_module=lambda module: None,
        )
        self.get_current_target = lambda: GPUTarget("cuda", 90, 32)
        self.get_current_device = lambda: self.device
        self.get_current_stream = lambda device: 77
        self.allocate_default_profile_scratch = lambda *args: None

    def set_current_device(self, device: int) -> None:
        self.device = device


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedDriver]:
    from triton.runtime.driver import driver

    fake = RecordedDriver(monkeypatch)
    scale.device_caches.clear()
    monkeypatch.setattr(driver, "_active", fake)
    monkeypatch.setattr(triton_launch, "_PREPARED", {})
    yield fake
    for caches in scale.device_caches.values():
        for made in caches[0].values():
            made.module = None  # 3.9 would unload it
    scale.device_caches.clear()


class Address:
    dtype = torch.float32

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def plain(value: Any) -> Any:
    """A recorded argument with tensors as their addresses, and None for Triton's (empty) launch hooks and what they would be told."""
    if isinstance(value, tuple):
        return tuple(plain(v) for v in value)
    if type(value).__name__ in ("HookChain", "LazyDict"):
        return None
    return value.data_ptr() if isinstance(value, Address) else value


def numbers(call: tuple[Any, ...]) -> set[Any]:
    return {v for part in call for v in (part if isinstance(part, tuple) else (part,)) if isinstance(v, int)}


def test_prepared_launch_passes_what_triton_passes(recorded: RecordedDriver) -> None:
    prepared = triton_launch.prepare(launching(), TENSORS, ("out", "a", "none", "b"), 0)
    assert recorded.calls == []
    prepared(77, (4096, 8192, 0, 12292))
    options = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": True}
    scale[(4,)](Address(8192), Address(4096), Address(12292), 4096, 1, 0.5, BLOCK=1024, **options)
    ours, theirs = (plain(call) for call in recorded.calls)
    assert ours == theirs and {77, 4096, 8192, 12292} <= numbers(ours)
    assert len({made.hash for made in scale.device_caches[0][0].values()}) == 1  # the two are one compiled kernel
    prepared(78, (160, 320, 0, 644))
    assert {78, 160, 320, 644} <= numbers(recorded.calls[2]) and not {77, 8192, 12292} & numbers(recorded.calls[2])


def test_a_launch_with_other_numbers_is_prepared_from_the_first(recorded: RecordedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("out", "a", "none", "b")
    asked: list[Launch] = []
    anew = triton_launch._prepare
    monkeypatch.setattr(triton_launch, "_prepare", lambda launch, *rest: asked.append(launch) or anew(launch, *rest))  # type: ignore[func-returns-value]
    first = triton_launch.prepare(launching(), TENSORS, names, 0)
    like = [launching(n=8192), launching(n=16, factor=0.25)]
    unlike = [launching(n=4095), launching(stride=2), launching(BLOCK=512), launching(bias="none"), launching(n=2**31), launching(bias="a")]
    for launch in (*like, *unlike):
        triton_launch.prepare(launch, TENSORS, names, 0)(77, (4096, 8192, 0, 12288))
    assert asked == [launching(), *unlike]
    triton_launch.prepare(like[0], {**TENSORS, "a": TENSORS["b"]}, names, 0)
    triton_launch.prepare(like[0], TENSORS, names, 1)
    triton_launch.prepare(like[0], TENSORS, names[::-1], 0)
    assert len(asked) == 4 + len(unlike), "another alignment, another GPU, another order of addresses"
    known = list(recorded.calls)
    recorded.calls.clear()
    for launch in like:
        anew(launch, TENSORS, names, 0)(77, (4096, 8192, 0, 12288))
    assert [plain(call) for call in known[: len(like)]] == [plain(call) for call in recorded.calls]
    first(77, (4096, 8192, 0, 12288))
    assert 4096 in numbers(recorded.calls[-1]) and recorded.calls[-1][0] == 4, "the first launch is what it was"


def test_prepared_launch_refuses_a_lower_alignment(recorded: RecordedDriver) -> None:
    prepared = triton_launch.prepare(launching(), TENSORS, ("a", "b", "out"), 3)
    assert recorded.device == 0
    prepared(0, (16, 4, 32))
    with pytest.raises(ValueError, match="address 0x8 is not a multiple of 16"):
        prepared(0, (8, 4, 32))
    assert len(recorded.calls) == 1


def test_prepared_launch_without_an_optional_tensor(recorded: RecordedDriver) -> None:
    triton_launch.prepare(launching(bias="none"), TENSORS, ("a", "none", "out"), 0)(77, (16, 0, 32))
    options = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": True}
    scale[(4,)](Address(16), Address(32), None, 4096, 1, 0.5, BLOCK=1024, **options)
    ours, theirs = (plain(call) for call in recorded.calls)
    assert ours == theirs


def test_prepared_launch_with_wrong_parameters(recorded: RecordedDriver) -> None:
    args = {**launching().args, "m": 1}
    del args["n"]
    with pytest.raises(TypeError, match=r"missing are \['n'\], unknown are \['m'\]"):
        triton_launch.prepare(Launch(kernel=scale, grid=(1,), args=args), TENSORS, ("a", "b", "out"), 0)


CALLED = """
import triton
import triton.language as tl

SCALE = tl.constexpr(3.0)


@triton.jit
def inner(x):
    return x * SCALE


@triton.jit
def outer(x):
    return inner(x) + 1


@triton.jit
def kernel(x):
    tl.store(x, outer(tl.load(x)))
"""


def loaded(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("called", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_kernels_key_does_not_follow_what_was_compiled_before_it(tmp_path: Path) -> None:
    path = tmp_path / "called.py"
    path.write_text(CALLED)

    def key(*before: str) -> str:
        made = loaded(path)
        for name in before:
            triton_compat.settle(getattr(made, name))
        triton_compat.settle(made.kernel)
        return str(made.kernel.cache_key)

    first = key()
    assert first == key("inner") == key("inner", "outer") == key("outer")
    path.write_text(CALLED.replace("3.0", "40.0"))
    assert key() == key("inner") != first


def test_what_a_launch_looks_up_leaves_the_key_as_it_was_compiled_ahead(tmp_path: Path) -> None:
    """A kernel as a key in a dict is hashed, which computes Triton's key."""
    path = tmp_path / "called.py"
    path.write_text(CALLED)
    ahead, launched = loaded(path).kernel, loaded(path).kernel
    triton_compat.settle(ahead)
    assert triton_launch._same_binary(Launch(kernel=launched, grid=(1,), args={"x": "a"}), TENSORS, ("a",), 0, ()) is not None
    assert launched.cache_key == ahead.cache_key
    seen = loaded(path).kernel
    assert triton_compat.seen_as(seen, "x", 3) and seen.cache_key == ahead.cache_key
