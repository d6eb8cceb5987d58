"""What the driver is told of a launch: tensor maps, cooperative grids and options in CUDA C++; descriptors and scratch in Triton. Nothing here needs a GPU."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from _backend_house import HOUSE, kernel

from rooftop.core import launch as launching
from rooftop.core import registry, tensor_maps, triton_launch
from rooftop.core.head import HeadError, MapArg
from rooftop.core.head_text import parse
from rooftop.core.launch import Module, PreparedCuda
from rooftop.core.spec import TARGETS, Descriptor, Launch, Meta, Problem, TensorMap
from rooftop.core.triton_compat import compile_launch

A, B, C = Meta((128, 256), "bf16"), Meta((192, 256), "bf16"), Meta((128, 192), "bf16")


def problem() -> Problem:
    op = registry.op("mmt", HOUSE)
    return op.problem(op.case("tiles bf16"), TARGETS["h200"])


# -- tensor maps ------------------------------------------------------------------------------------------------------


class Driver:
    """cuda-bindings without a GPU: its own structures, and functions that record what they are given."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.own, self.maps, self.launches, self.attributes = driver, [], [], []
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, *[ctypes.c_void_p] * 5, *[ctypes.c_int] * 4])
        self._encode = kind(self.encode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def cuGetProcAddress(self, symbol: bytes, version: int, flags: int) -> tuple[int, int, int]:
        assert symbol == b"cuTensorMapEncodeTiled"
        return 0, ctypes.cast(self._encode, ctypes.c_void_p).value or 0, 0

    def encode(
        self, out: int, dtype: int, rank: int, address: int, dims: int, strides: int, box: int, steps: int, interleave: int, swizzle: int, l2: int, fill: int
    ) -> int:
        def read(kind: Any, at: int, n: int) -> list[int]:
            return list((kind * n).from_address(at))

        assert out % 64 == 0, "the driver asks for 64 bytes"
        u64, u32 = ctypes.c_uint64, ctypes.c_uint32
        self.maps.append((dtype, address or 0, read(u64, dims, rank), read(u64, strides, rank - 1), read(u32, box, rank), read(u32, steps, rank),
                          interleave, swizzle, l2, fill))
        ctypes.memset(out, len(self.maps), 128)
        return 0

    def cuKernelSetAttribute(self, *args: Any) -> tuple[int]:
        return (0,)

    def cuLaunchKernelEx(self, config: Any, function: Any, params: int, extra: int) -> tuple[int]:
        self.attributes = [(a.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_"), a) for a in config.attrs] if config.numAttrs else []
        self.launches.append((int(config.hStream), params))
        return (0,)


def prepared(driver: Driver, launch: Launch, names: tuple[str, ...]) -> PreparedCuda:
    return PreparedCuda(driver, 7, launch, names, 0)


def cell(driver: Driver, at: int, kind: Any) -> Any:
    """The parameter `at` of the last launch."""
    params = (ctypes.c_void_p * (at + 1)).from_address(driver.launches[-1][1])
    return kind.from_address(params[at])


def test_a_thread_without_a_context_enters_the_primary_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As autograd's thread does, when one of our kernels is the first thing that it launches."""

    class Threads(Driver):
        current, retained = None, 0

        def cuDeviceGet(self, index: int) -> tuple[int, int]:
            return 0, index + 70

        def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[int, int]:
            self.retained += 1
            return 0, device + 1000

        def cuCtxSetCurrent(self, context: int) -> tuple[int]:
            self.current = context
            return (0,)

        def cuLaunchKernelEx(self, config: Any, function: Any, params: int, extra: int) -> tuple[Any]:
            if self.current is None:
                return (self.own.CUresult.CUDA_ERROR_INVALID_CONTEXT,)
            return super().cuLaunchKernelEx(config, function, params, extra)

    monkeypatch.setattr(launching, "_contexts", {})
    driver = Threads()
    run = prepared(driver, Launch("k", (1,), {}, types=()), ())
    run(5, ())
    assert (driver.current, len(driver.launches)) == (1070, 1)
    driver.current = None  # another thread
    run(5, ())
    assert (driver.current, driver.retained, len(driver.launches)) == (1070, 1, 2)


def test_a_map_is_made_for_each_address_and_kept() -> None:
    driver, found = Driver(), kernel("tma__cuda_sm90")
    (launch,) = found.launches(problem(), found.choose(problem()))
    run = prepared(driver, launch, ("a", "b", "c"))
    assert driver.maps == [], "nothing is made before a call"
    for a in (4096, 8192, 4096):
        run(5, (a, 16384, 32768))
    bf16, swizzle128, l2_256 = 9, 3, 3
    assert driver.maps == [
        (bf16, 4096, [256, 128], [512], [64, 64], [1, 1], 0, swizzle128, l2_256, 0),
        (bf16, 16384, [256, 192], [512], [64, 64], [1, 1], 0, swizzle128, l2_256, 0),
        (bf16, 8192, [256, 128], [512], [64, 64], [1, 1], 0, swizzle128, l2_256, 0),
    ]
    whole = ctypes.c_char * 128
    assert cell(driver, 3, whole).raw == b"\1" * 128 and cell(driver, 4, whole).raw == b"\2" * 128, "the map of 4096 is the one that was kept"
    assert (cell(driver, 0, ctypes.c_int).value, cell(driver, 5, ctypes.c_uint64).value) == (128, 32768)
    assert [name for name, _ in driver.attributes] == ["PROGRAMMATIC_STREAM_SERIALIZATION"]


def test_all_that_a_map_may_say_reaches_the_driver() -> None:
    driver, meta = Driver(), Meta((6, 40, 96), "f32", (40 * 128, 128, 1))
    said = TensorMap("x", (2, 8, 16), 64, (1, 2, 1), "tf32", 0, "nan")
    assert tensor_maps.refused(said, meta) is None
    run = prepared(driver, Launch("k", (1,), {"m": tensor_maps.settled(said, meta)}, types=("map",)), ("x",))
    run(0, (256,))
    assert driver.maps == [(11, 256, [96, 40, 6], [512, 40 * 512], [16, 8, 2], [1, 2, 1], 0, 2, 0, 1)]
    one = tensor_maps.settled(TensorMap("x", (1, 8)), Meta((1, 8), "f32", (3, 1)))
    assert one.strides == (8, 1), "the stride of a single row says nothing: it gets one that TMA takes"


@pytest.mark.parametrize(
    ("said", "meta", "why"),
    [
        (TensorMap("x", (64, 64)), Meta((8,), "f32"), "box of 2 dimensions for a tensor of 1"),
        (TensorMap("x", ()), Meta((), "f32"), "a tensor of 0 dimensions; TMA takes 1 to 5"),
        (TensorMap("x", (64, 64)), Meta((9, 64), "f32", align=4), "address is a multiple of 4 bytes"),
        (TensorMap("x", (64, 64)), Meta((9, 7), "f32"), r"outer strides are \[28\] bytes"),
        (TensorMap("x", (64, 64)), Meta((9, 8), "f32", (1, 16)), "innermost stride is 16"),
        (TensorMap("x", (300, 8)), Meta((9, 8), "f32"), r"the box is \[300, 8\]"),
        (TensorMap("x", (8, 3)), Meta((9, 8), "f32"), r"the box is \[8, 3\], 12 bytes wide"),
        (TensorMap("x", (8, 64), 128), Meta((9, 64), "f32"), "the box is 256 bytes wide; swizzle 128 takes at most as many"),
        (TensorMap("x", (8, 8), 16), Meta((9, 64), "f32"), "swizzle is 16; it is one of 0, 32, 64, 128"),
        (TensorMap("x", (8, 8), steps=(1, 2)), Meta((9, 64), "f32"), r"the steps are \[1, 2\]"),
        (TensorMap("x", (8, 8), dtype="bf16"), Meta((9, 64), "f32"), "a f32 tensor cannot be taken for bf16"),
        (TensorMap("x", (8, 8), dtype="tf32"), Meta((9, 64), "i32"), "a i32 tensor cannot be taken for tf32"),
        (TensorMap("x", (8, 8), fill="nan"), Meta((9, 64), "i32"), "fill is 'nan', and i32 has none"),
        (TensorMap("x", (8, 8), fill="one"), Meta((9, 64), "i32"), "fill is 'one'; it is one of zero, nan"),
        (TensorMap("x", (8, 8), promote=32), Meta((9, 64), "i32"), "promote is 32"),
    ],
)
def test_a_map_that_the_hardware_does_not_take_is_refused_with_the_reason(said: TensorMap, meta: Meta, why: str) -> None:
    import re

    assert re.search(why, str(tensor_maps.refused(said, meta)))


HEAD = """/* rooftop
op      = "add"
tensors = ["x: T[N]"]
args    = ["m: map = x[{box}] {rest}", "y: f32[N]", "out: f32[N]"]
[config]
width = 32
[[launch]]
kernel = "k"
grid   = [1]
block  = [32]
*/
"""


def test_a_map_in_a_head_is_read_with_expressions_in_any_order() -> None:
    head = parse(HEAD.format(box="width * 2", rest="fill nan promote 64 steps [1] swizzle width*8//2 as tf32"), "my.cu")
    assert head.args[0] == MapArg("m", "x", ("width * 2",), "width*8//2", ("1",), "tf32", "64", "nan")
    tensor = Meta((1024,), "f32")
    asked = Problem("add", (("x", tensor), ("y", tensor), ("out", tensor)), (), TARGETS[90])
    assert head.supports(asked) == "my.cu: m: the box is 256 bytes wide; swizzle 128 takes at most as many"
    head = parse(HEAD.format(box="width", rest="swizzle 4*width"), "my.cu")
    (launch,) = head.launches_for(asked, head.choose(asked))
    assert launch.types == ("map", "ptr", "ptr")
    assert launch.args["m"] == TensorMap("x", (32,), 128, (1,), "f32", 256, "zero", (1024,), (1,))
    assert head.supports(asked.replace(x=Meta((1024,), "f32", align=4))) == "my.cu: m: the tensor's address is a multiple of 4 bytes; TMA needs 16"


@pytest.mark.parametrize(
    ("box", "rest", "says"),
    [
        ("32", "swizle 128", "'swizle 128' is not swizzle 128, steps"),
        ("32", "swizzle 64 swizzle 128", "each once at most"),
        ("32", "fill one", "fill is zero or nan"),
        ("32 +", "", "is not an expression"),
        ("depth", "", "names 'depth'"),
    ],
)
def test_a_map_that_cannot_be_read_is_an_error_that_names_it(box: str, rest: str, says: str) -> None:
    tensor = Meta((1024,), "f32")
    asked = Problem("add", (("x", tensor), ("y", tensor), ("out", tensor)), (), TARGETS[90])
    with pytest.raises(HeadError, match=says):
        parse(HEAD.format(box=box, rest=rest), "my.cu").supports(asked)


def test_a_map_of_a_tensor_that_the_op_has_not_is_an_error() -> None:
    tensor = Meta((1024,), "f32")
    asked = Problem("add", (("x", tensor), ("y", tensor), ("out", tensor)), (), TARGETS[90])
    with pytest.raises(HeadError, match=r"^my\.cu: m is a map of 'z'; add has x, y, out"):
        parse(HEAD.format(box="32", rest="").replace("= x[", "= z["), "my.cu").supports(asked)
    with pytest.raises(HeadError, match="tensors may contain only tensors"):
        parse(HEAD.format(box="32", rest="").replace('tensors = ["x: T[N]"]', 'tensors = ["n: i32"]'), "my.cu")


def test_a_cooperative_launch_and_its_options_are_said_to_the_driver() -> None:
    driver = Driver()
    plain = Launch("k", (64,), {}, cluster=(4,), pdl=True, cooperative=True, options={"carveout": 80, "spread": True})
    prepared(driver, plain, ())(3, ())
    found = dict(driver.attributes)
    assert set(found) == {"CLUSTER_DIMENSION", "PROGRAMMATIC_STREAM_SERIALIZATION", "COOPERATIVE", "CLUSTER_SCHEDULING_POLICY_PREFERENCE",
                          "PREFERRED_SHARED_MEMORY_CARVEOUT"}
    assert found["COOPERATIVE"].value.cooperative == 1 and found["PREFERRED_SHARED_MEMORY_CARVEOUT"].value.sharedMemCarveout == 80
    assert (found["CLUSTER_DIMENSION"].value.clusterDim.x, driver.launches[-1][0]) == (4, 3)
    prepared(driver, replace(plain, cluster=(1,), pdl=False, cooperative=False, options={}), ())(3, ())
    assert driver.attributes == []
    with pytest.raises(ValueError, match=r"options are maxnreg; a launch of CUDA C\+\+ takes carveout, spread"):
        prepared(driver, replace(plain, options={"maxnreg": 64}), ())
    assert set(launching.OPTIONS) == {"carveout", "spread"}


# -- Triton and Gluon -------------------------------------------------------------------------------------------------


class Recorded:
    """Stands for Triton's driver: its own launcher runs, and what it hands to the C function is recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from triton.backends.compiler import GPUTarget
        from triton.backends.nvidia import driver as nvidia

        self.calls: list[tuple[Any, ...]] = []
        self.made: list[tuple[Any, ...]] = []

        def record(*args: Any) -> None:
            self.calls.append(args)

        def fill(*args: Any) -> tuple[Any, ...]:
            self.made.append(args)
            return ("map", *args[:1])

        monkeypatch.setattr(nvidia, "compile_module_from_src", lambda **kw: types.SimpleNamespace(launch=record))
        monkeypatch.setattr(nvidia, "library_dirs", list)
        self.launcher_cls = nvidia.CudaLauncher
        self.utils = types.SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 232448}, load_binary=lambda *args: (11, 22, 0, 0, 1024),
            unload_module=lambda module: None, fill_tma_descriptor=fill,
        )
        self.target = GPUTarget("cuda", 90, 32)
        self.get_current_target = lambda: self.target
        self.get_current_device = lambda: 0
        self.set_current_device = lambda device: None
        self.get_current_stream = lambda device: 77


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    from triton.runtime.driver import driver

    if not triton.__version__.startswith("3.6"):
        pytest.skip("the launcher that is stood in for is Triton 3.6's")
    fake = Recorded(monkeypatch)
    monkeypatch.setattr(driver, "_active", fake)
    monkeypatch.setattr(triton_launch, "_PREPARED", {})
    jits = [kernel(name).module._mmt for name in ("host__triton_sm90", "device__triton_sm90", "gluon_sm90")]  # type: ignore[attr-defined]
    for jit in jits:
        jit.device_caches.clear()
    yield fake
    for jit in jits:
        jit.device_caches.clear()


def tensors(**addresses: int) -> dict[str, Any]:
    """What Triton's own launch is given: objects with a dtype and an address."""
    return {name: types.SimpleNamespace(dtype=torch.bfloat16, data_ptr=lambda at=at: at) for name, at in addresses.items()}


def plain(value: Any) -> Any:
    if type(value).__name__ in ("HookChain", "LazyDict"):
        return None
    return value.data_ptr() if hasattr(value, "data_ptr") else value


@pytest.mark.parametrize("name", ["host__triton_sm90", "gluon_sm90"])
def test_a_prepared_launch_passes_descriptors_as_triton_does_and_makes_each_once(recorded: Recorded, name: str) -> None:
    found, p = kernel(name), problem()
    (launch,) = found.launches(p, found.choose(p))
    (run,) = found.prepare(p, [launch], ("a", "b", "c"), 0, {})
    assert recorded.calls == recorded.made == []
    run(77, (4096, 8192, 12288))
    given = tensors(a=4096, b=8192, c=12288)
    metas = dict(p.tensors)

    def theirs(value: Any) -> Any:
        from rooftop.core.triton_compat import descriptor

        return descriptor(value, metas[value.tensor], given[value.tensor]) if isinstance(value, Descriptor) else value

    options = {"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": True, **launch.options}
    launch.kernel[launch.grid](**{k: theirs(v) for k, v in launch.args.items()}, **options)
    ours, expected = ([plain(v) for v in call] for call in recorded.calls)
    assert ours == expected
    assert ("map", 4096) in ours and len(ours) == len(expected) > 15
    assert recorded.made[:3] == recorded.made[3:], "one map for each descriptor, made of the same facts"
    assert len({made.hash for made in launch.kernel.device_caches[0][0].values()}) == 1, "the two are one compiled kernel"
    run(78, (4096, 16384, 12288))
    assert [made[0] for made in recorded.made[6:]] == [16384], "maps are kept by address"
    assert {("map", 16384), ("map", 4096)} <= set(recorded.calls[2][13:]) and recorded.calls[2][3] == 78
    with pytest.raises(ValueError, match="a lies at 0x1008, which is not a multiple of 16"):
        run(78, (4104, 16384, 12288))


@pytest.mark.parametrize("name", ["host__triton_sm90", "gluon_sm90"])
def test_a_launch_of_other_shapes_is_prepared_from_the_first(recorded: Recorded, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The same binary; the descriptors are those of the new shapes."""
    found, p = kernel(name), problem()
    config, names = found.choose(p), ("a", "b", "c")
    taller = p.replace(a=Meta((1024, 256), "bf16"), c=Meta((1024, 192), "bf16"))
    (first,), (second,) = found.launches(p, config), found.launches(taller, config)
    asked: list[Launch] = []
    anew = triton_launch._prepare
    monkeypatch.setattr(triton_launch, "_prepare", lambda launch, *rest: asked.append(launch) or anew(launch, *rest))  # type: ignore[func-returns-value]
    for launch, of in ((first, p), (second, taller)):
        (run,) = found.prepare(of, [launch], names, 0, {})
        run(77, (4096, 8192, 12288))
    assert asked == [first]
    made, called = list(recorded.made), list(recorded.calls)
    anew(second, dict(taller.tensors), names, 0)(77, (4096, 8192, 12288))
    assert recorded.made[len(made) :] == made[3:] != made[:3] and [plain(v) for v in recorded.calls[-1]] == [plain(v) for v in called[1]]


def test_a_tensor_that_tma_does_not_copy_is_refused_by_name() -> None:
    found, p = kernel("host__triton_sm90"), problem()
    (launch,) = found.launches(p, found.choose(p))
    with pytest.raises(ValueError, match=r"a descriptor of b: the outer strides are \[510\] bytes"):
        found.machine_code(p.replace(b=Meta((192, 255), "bf16")), launch, {})


def test_scratch_that_triton_asks_for_comes_from_torch(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def allocate(size: int, alignment: int, stream: int | None) -> Any:
        asked.append((size, alignment))
        return types.SimpleNamespace(data_ptr=lambda: 65536)

    monkeypatch.setattr(triton_launch, "_from_torch", allocate)
    found, p = kernel("device__triton_sm90"), problem()
    (launch,) = found.launches(p, found.choose(p))
    (run,) = found.prepare(p, [launch], ("a", "b", "c"), 0, {})
    run(77, (4096, 8192, 12288))
    programs = launch.grid[0] * launch.grid[1]
    assert asked == [(programs * 3 * 128, 128)], "three descriptors of 128 bytes for each program"
    assert [plain(v) for v in recorded.calls[0][7:9]] == [65536, None]
    from triton.runtime import _allocation

    assert isinstance(_allocation._allocator.get(), _allocation.NullAllocator), "the user's setting is left as it was"
    own: list[int] = []
    token = _allocation._allocator.set(lambda size, alignment, stream: own.append(size) or types.SimpleNamespace(data_ptr=lambda: 1))
    try:
        run(77, (4096, 8192, 12288))
    finally:
        _allocation._allocator.reset(token)
    assert own == [programs * 384] and len(asked) == 1, "an allocator that the user has set is taken"


def test_memory_for_triton_is_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.empty
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: made(size, dtype=dtype))
    for alignment in (128, 4096):
        found = triton_launch._from_torch(1000, alignment, None)
        assert found.data_ptr() % alignment == 0 and found.numel() >= 1000


def test_options_of_a_launch_reach_the_compiler() -> None:
    found, p = kernel("host__triton_sm90"), problem()
    (launch,) = found.launches(p, found.choose(p))
    assert ".maxnreg" in found.machine_code(p, launch, {}).ptx
    assert ".maxnreg" not in found.machine_code(p, replace(launch, options={}), {}).ptx
    pair = found.machine_code(p, replace(launch, options={"num_ctas": 2}), {})
    assert (pair.cluster, pair.blocks) == (2, 2 * launch.grid[0] * launch.grid[1])
    with pytest.raises(KeyError, match="max_reg"):
        found.machine_code(p, replace(launch, options={"max_reg": 64}), {})


@triton.jit
def scale(x, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) * factor)


def test_a_late_float_is_compiled_as_a_float() -> None:
    launch, metas = Launch(scale, (2,), {"x": "x", "factor": "factor", "BLOCK": 64}), {"x": Meta((128,), "f32")}
    with_float, with_whole = (compile_launch(launch, metas, 90, floats).ptx for floats in (("factor",), ()))
    assert "cvt.rn.f32.s32" in with_whole and "cvt.rn.f32.s32" not in with_float


def test_shared_memory_that_a_kernel_was_granted_is_never_taken_back() -> None:
    """Two launches of one kernel, the second of which asks for less: the first must still be taken."""

    class Granting(Driver):
        granted: list[int] = []

        def cuLibraryGetKernel(self, library: Any, name: bytes) -> tuple[int, int]:
            return 0, 7

        def cuKernelSetAttribute(self, attribute: Any, value: int, *rest: Any) -> tuple[int]:
            self.granted.append(value)
            return (0,)

    module = Module.__new__(Module)
    module._driver, module._library, module._shared = Granting(), None, {}
    module._binary = type("B", (), {"names": {"k": "k"}})()  # type: ignore[assignment]
    for shared in (200_000, 100_000, 220_000, 60_000):
        module.prepare(Launch("k", (1,), {}, shared=shared), (), 0)
    assert Granting.granted == [200_000, 200_000, 220_000, 220_000]
