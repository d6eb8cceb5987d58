"""What the simulator watches beside tensors: the source's own variables, other blocks' shared memory, loops that do not end; and how it says so."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from rooftop.core import settings
from rooftop.core.compile import CompileError
from rooftop.core.spec import Launch
from rooftop.lab import simt
from rooftop.lab.simt import build, link
from rooftop.lab.simt.launching import LaunchError
from rooftop.lab.simt.translate import constants, translate

compiled = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))

VARIABLES = r"""
namespace {
__device__ unsigned ticket;
__device__ float table[40];
}
__device__ float start[2] = {3, 4};
__constant__ const float weights[3] = {1, 2, 3};
__constant__ float left[2] = {1, 2}, right[2] = {3, 4};
__constant__ struct { int n; float v[2]; } settings = {2, {1, 2}};
__device__ int calls() {
    static int n = 5;
    return atomicAdd(&n, 1);
}
__global__ void count(int* y) { y[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(&ticket, 1); }
__global__ void change(int* y) {
    y[0] = start[1];
    start[1] = 7;
    y[1] = calls();
}
__global__ void past(float* y) { table[threadIdx.x + 9] = y[threadIdx.x]; }
__global__ void before(float* y) { y[threadIdx.x] = (&table[0] - 1)[threadIdx.x]; }
__global__ void raced(float* y) { table[threadIdx.x] += y[threadIdx.x]; }
__global__ void weighed(float* y) { y[threadIdx.x] *= weights[threadIdx.x]; }
__global__ void wrote(float* y) { const_cast<float*>(weights)[threadIdx.x % 3] = 1; }
__global__ void wrote_second(float* y) { right[threadIdx.x % 2] = left[1]; }
__global__ void wrote_unnamed(float* y) { settings.n = 1; }
__global__ void last(const float* x, float* y) {
    if (threadIdx.x != 0) return;
    y[1 + blockIdx.x] = x[blockIdx.x];
    __threadfence();
    if (atomicInc(&ticket, gridDim.x - 1) != gridDim.x - 1) return;
    __threadfence();
    float s = 0;
    for (int b = 0; b < gridDim.x; ++b) s += y[1 + b];
    y[0] = s;
}
__global__ void last_twice(const float* x, float* y) {      // others release a second time while the last one reads
    if (threadIdx.x != 0) return;
    y[1 + blockIdx.x] = x[blockIdx.x];
    __threadfence();
    if (atomicInc(&ticket, gridDim.x - 1) != gridDim.x - 1) {
        atomicAdd(&table[0], 1);
        return;
    }
    __threadfence();
    float s = 0;
    for (int b = 0; b < gridDim.x; ++b) s += y[1 + b];
    y[0] = s;
}
__global__ void too_late(const float* x, float* y) {
    if (threadIdx.x != 0) return;
    __threadfence();
    const bool last = atomicInc(&ticket, gridDim.x - 1) == gridDim.x - 1;
    y[1 + blockIdx.x] = x[blockIdx.x];
    if (last) for (int b = 0; b < gridDim.x; ++b) y[0] += y[1 + b];
}
"""


def run(entry: str, memory: dict[str, Any], *, grid: int = 1, block: int = 32, source: str = VARIABLES, **changes: Any) -> simt.Report:
    return simt.simulate(source, entry, memory, grid=(grid,), block=(block,), arguments=[(n, "ptr") for n in memory], **changes)


# -- __device__ and __constant__ variables ------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize("workers", [1, 4])
def test_atomics_on_a_device_variable_meet_over_all_workers(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_JOBS", str(workers))
    y = torch.zeros(64 * 32, dtype=torch.int32)
    assert run("count", {"y": y}, grid=64).clean
    assert y.sort().values.tolist() == list(range(64 * 32))


@compiled
def test_variables_last_from_launch_to_launch_and_begin_anew_with_each_run() -> None:
    for schedules in (1, 3):
        y, z = torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
        launches = [Launch("change", (1,), {"y": name}, types=("ptr",), block=(1,)) for name in ("y", "z")]
        report = simt.run_launches(VARIABLES, "kernel.cu", launches, {"y": y, "z": z}, schedules=schedules)
        assert report.clean
        assert (y.tolist(), z.tolist()) == ([4, 5], [7, 6])


@compiled
def test_large_variables_are_zero_at_the_start_of_each_run() -> None:
    source = "__device__ int all[1 << 21];\n__device__ int one = 1;\n__global__ void k(int* y) {\n    for (int i = threadIdx.x; i < 1 << 21; i += 4096)\n"
    source += "        y[threadIdx.x] += all[i], all[i] = i + one;\n}\n"
    for _ in range(2):
        y = torch.zeros(32, dtype=torch.int32)
        assert run("k", {"y": y}, source=source, schedules=2).clean
        assert y.tolist() == [0] * 32


@compiled
@pytest.mark.parametrize("schedules", [1, 8])
def test_blocks_ordered_by_a_counter_of_the_devices_are_right(schedules: int) -> None:
    y = torch.zeros(17)
    report = run("last", {"x": torch.ones(16), "y": y}, grid=16, schedules=schedules)
    assert report.clean, "\n".join(map(str, report.findings))
    assert y[0] == 16


@compiled
@pytest.mark.parametrize("entry", ["last", "last_twice"])
def test_many_blocks_that_release_at_once_are_ordered(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_JOBS", "8")
    for _ in range(8):
        y = torch.zeros(4097)
        report = run(entry, {"x": torch.ones(4096), "y": y}, grid=4096, schedules=4)
        assert report.clean, "\n".join(map(str, report.findings))
        assert y[0] == 4096


@compiled
def test_what_a_block_writes_after_it_released_is_a_race() -> None:
    found = run("too_late", {"x": torch.ones(16), "y": torch.zeros(17)}, grid=16).findings
    assert {f.kind for f in found} == {"global-race"}
    assert any("read of 4 bytes at y[" in f.message for f in found)


RING = r"""
__device__ volatile int filled[2], emptied[2];
__device__ float slot[2];
__global__ void ring(const float* x, float* y, int n) {     // block 0 hands 1 what it reads, through two places
    if (threadIdx.x != 0) return;
    for (int i = 0; i < n; ++i) {
        const int turn = i / 2, at = i % 2;
        if (blockIdx.x == 0) {
            while (emptied[at] < turn) {}
            __threadfence();
            slot[at] = x[i];
            __threadfence();
            filled[at] = turn + 1;
        } else {
            while (filled[at] < turn + 1) {}
            __threadfence();
            y[i] = slot[at];
            __threadfence();
            emptied[at] = turn + 1;
        }
    }
}
"""


@compiled
def test_a_ring_between_two_blocks_is_right_and_does_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_JOBS", "2")
    n = 5000
    x, y = torch.rand(n), torch.zeros(n)
    arguments = [("x", "ptr"), ("y", "ptr"), ("n", "i32")]
    report = simt.simulate(RING, "ring", {"x": x, "y": y, "n": n}, grid=(2,), block=(32,), arguments=arguments, schedules=4)
    assert report.clean, "\n".join(map(str, report.findings))
    assert torch.equal(x, y)


@compiled
@pytest.mark.parametrize(
    ("entry", "kind", "says"),
    [
        ("past", "out-of-bounds", "write of 4 bytes at 0 bytes past the end of table (__device__, 160 bytes), outside what it may write"),
        ("before", "out-of-bounds", "read of 4 bytes at 4 bytes before table (__device__, 160 bytes), outside what it may read"),
        ("weighed", "out-of-bounds", "read of 4 bytes at 0 bytes past the end of weights (__constant__, 12 bytes), outside what it may read"),
        ("wrote", "const-write", "write of 4 bytes at weights (__constant__, 12 bytes), which a kernel cannot write"),
        ("wrote_second", "const-write", "write of 4 bytes at right (__constant__, 8 bytes), which a kernel cannot write"),
        ("wrote_unnamed", "const-write", "write of 4 bytes at settings (__constant__, 12 bytes), which a kernel cannot write"),
    ],
)
def test_faults_name_the_variable(entry: str, kind: str, says: str) -> None:
    block = {"past": 32, "before": 1, "weighed": 4}.get(entry, 1)  # so that one thread goes wrong
    (found,) = run(entry, {"y": torch.ones(32)}, block=block).findings
    assert (found.kind, found.message) == (kind, says)
    assert VARIABLES.splitlines()[found.line - 1].startswith(f"__global__ void {entry}")


@compiled
def test_a_race_on_a_device_variable_is_found() -> None:
    (found,) = run("raced", {"y": torch.ones(32)}, grid=8).findings
    assert found.kind == "global-race"
    assert "table" in found.message
    assert run("raced", {"y": torch.ones(32)}, grid=1).clean


@compiled
def test_accesses_to_device_variables_are_global_ones_and_to_constants_none() -> None:
    atomics = run("count", {"y": torch.zeros(32, dtype=torch.int32)}, mode="count")
    assert [(c.space, c.op, c.requests, c.sectors) for c in atomics.lines] == [("global", "write", 1, 4), ("global", "atomic", 1, 1)]
    plain = run("raced", {"y": torch.ones(32)}, mode="count")
    assert {(c.op, c.requests, c.sectors) for c in plain.lines} == {("read", 2, 8), ("write", 1, 4)}
    held = run("weighed", {"y": torch.ones(32)}, block=3, mode="count")
    assert [(c.op, c.requests, c.lanes) for c in held.lines] == [("read", 1, 3), ("write", 1, 3)]


@compiled
def test_the_layout_tells_variables_apart() -> None:
    library = build.build(VARIABLES, path="kernel.cu", kernels=["count"], mode="check")
    known = {v.name: v for v in link.variables(library.path)}
    assert {n: (v.size, v.constant) for n, v in known.items()} == {
        "ticket": (4, False), "table": (160, False), "start": (8, False), "weights": (12, True), "n": (4, False),
        "left": (8, True), "right": (8, True), "settings": (12, True),
    }
    places = sorted((v.at, v.at + v.size) for v in known.values())
    assert all(b[0] - a[1] >= link.GAP // 2 for a, b in pairwise(places))


def test_constants_are_known_by_name() -> None:
    text = "__constant__ float a[4] = {1, 2}, b;\nstatic __constant__ const int c{3}; // __constant__ int d;\n"
    text += "namespace x { __constant__ __align__(16) T<1, 2> e[N > 2]; }"
    text += "__constant__ struct { int n; float v[3]; } f = {3, {1, 2, 3}}, g;\nfloat h;"
    assert constants(text) == {"a", "b", "c", "e", "f", "g"}
    assert constants("float f;") == set()


def test_an_array_of_the_devices_loses_its_const_and_nothing_else_does() -> None:
    text = "__device__ const float t[2] = {1, 2};\n__device__ const int n = 3;\n__device__ const float* f(const int x[2]);\nconst int k[1] = {1};"
    lines = translate(text, "k.cu").splitlines()[1:]
    assert "const" not in lines[0]
    assert [x.count("const") for x in lines[1:]] == [1, 2, 1]


# -- loops ----------------------------------------------------------------------------------------------------------------

LOOPS = r"""
__device__ int flag;
__global__ void empty(float* y) {
    if (threadIdx.x == 3)
        while (true) {}
    y[threadIdx.x] = 1;
}
__global__ void unseen(float* y) {
    while (flag == 0) {}
    y[threadIdx.x] = 1;
}
__global__ void busy(float* y) {
    for (int i = threadIdx.x; i < 32; i += blockIdx.x) y[i] = i;
}
__global__ void meeting(float* y) {
    while (y[0] == 0) __syncthreads();
}
__global__ void spinning(float* y) {
    while (atomicAdd(&flag, 0) == 0) {}
    y[threadIdx.x] = 1;
}
__global__ void lengthy(float* y) {
    float v = threadIdx.x;
    for (int i = 0; i < 30000000; ++i) v = fmaf(v, 0.5f, 1.f);
    y[threadIdx.x] = v;
}
"""


@compiled
@pytest.mark.sampled("simulator")
@pytest.mark.parametrize("mode", ["check", "count"])
@pytest.mark.parametrize(("entry", "line"), [("empty", 5), ("unseen", 9), ("busy", 13), ("spinning", 19)])
def test_a_loop_without_an_end_is_a_fault_at_its_line(entry: str, line: int, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_SIMT_PATIENCE", "1")
    (found,) = run(entry, {"y": torch.zeros(32)}, source=LOOPS, mode=mode).findings
    assert (found.kind, found.line) == ("deadlock", line)
    if entry == "empty":
        assert found.thread == (3, 0, 0)
    if entry != "spinning":
        assert "no thread here has returned or met others at a barrier (ROOFTOP_SIMT_PATIENCE gives longer)" in found.message


@compiled
@pytest.mark.sampled("simulator")
def test_threads_that_meet_for_ever_are_a_fault_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_SIMT_PATIENCE", "1")
    (found,) = run("meeting", {"y": torch.zeros(32)}, source=LOOPS).findings
    assert (found.kind, found.line) == ("deadlock", 16)
    assert "no thread here has returned (" in found.message


@compiled
def test_threads_that_compute_at_length_and_return_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they take longer than the patience; none of them does."""
    monkeypatch.setenv("ROOFTOP_SIMT_PATIENCE", "1")
    report = run("lengthy", {"y": torch.zeros(48)}, source=LOOPS, block=48, grid=1)
    assert report.clean
    assert report.seconds > 1


def test_the_patience_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.load().patience == 20
    monkeypatch.setenv("ROOFTOP_SIMT_PATIENCE", "0")
    with pytest.raises(ValueError, match="ROOFTOP_SIMT_PATIENCE is '0'; it must be a whole number of seconds"):
        settings.load()


# -- what is said ----------------------------------------------------------------------------------------------------------

SHARED = r"""
struct Part { float a; short b[3]; };
__shared__ int outer[2][3][4];
__global__ void past(float* y) {
    __shared__ float tile[4][33];
    if (threadIdx.x == 0) tile[3][33 + blockDim.x - 32] = y[0];
}
__global__ void far(float* y) {
    extern __shared__ float held[];
    held[threadIdx.x] = y[threadIdx.x];
}
__global__ void odd(float* y) {
    __shared__ Part parts[2];
    if (threadIdx.x == 0) *reinterpret_cast<float*>(&parts[1].b[1]) = y[0];
}
__global__ void three(float* y) {
    if (threadIdx.x < 2) (&outer[1][2][3])[0] = threadIdx.x;
    y[threadIdx.x] = 1;
}
__global__ void again(float* y) {
    __shared__ float s[64];
    const int t = threadIdx.x;
    s[t] = y[t];
    s[t + 32] = 0;
    __syncwarp();
    const float a = s[t];
    const float b = s[t + 1];
    const float c = s[t];
    s[t] = a + b + c;
    y[t] = s[t];
}
"""


@compiled
@pytest.mark.sampled("simulator")
@pytest.mark.parametrize(
    ("entry", "shared", "says"),
    [
        ("past", 0, "write of 4 bytes at 0 bytes past the end of tile (528 bytes) in shared memory, outside what it may write"),
        ("far", 64, "write of 4 bytes at 0 bytes past the end of dynamic shared memory (64 bytes), outside what it may write"),
        ("odd", 0, "write of 4 bytes at parts[1] + 6 bytes in shared memory: the address is not a multiple of 4 bytes (it is 2 past one)"),
        ("three", 0, "write of 4 bytes at outer[1][2][3] in shared memory, which thread (0, 0, 0) of the same warp wrote at line 17"),
    ],
)
def test_a_fault_in_shared_memory_names_the_variable(entry: str, shared: int, says: str) -> None:
    found = [f.message for seed in range(40) for f in run(entry, {"y": torch.ones(64)}, source=SHARED, shared=shared, seed=seed).findings]
    assert any(m.startswith(says) for m in found), set(found)


@compiled
def test_one_line_has_one_finding_of_a_kind_with_how_often_it_was_seen() -> None:
    source = "__global__ void k(float* y) {\n    __shared__ float s[64];\n    const int t = threadIdx.x;\n    s[t] = y[t];\n    __syncthreads();\n"
    source += "    float a = s[(t + 1) % 64];\n    a += s[(t + 2) % 64];\n    a += s[(t + 3) % 64];\n    s[t] = a;\n    y[t] = y[t + 4];\n}\n"
    races = [f for f in run("k", {"y": torch.ones(64)}, source=source, block=64).findings if f.line == 9]
    assert len({f.kind for f in races}) == len(races)
    assert all(f.message.endswith(f"{f.count:,} times)") for f in races)
    assert any("(also lines " in f.message for f in races)
    (past,) = [f for f in run("k", {"y": torch.ones(64)}, source=source, block=64).findings if f.line == 10 and f.kind == "out-of-bounds"]
    assert (past.count, past.message) == (4, "read of 4 bytes at 0 bytes past the end of y (64, 256 bytes), outside what it may read (4 times)")


@compiled
def test_a_wide_access_over_an_end_says_so() -> None:
    source = "__global__ void k(float* y, float* z) {\n    __shared__ __align__(16) float s[6];\n    const int t = threadIdx.x;\n"
    source += "    reinterpret_cast<float4*>(s)[t] = *reinterpret_cast<const float4*>(y + 4 * t);\n    z[t] = s[0];\n}\n"
    found = {f.message for f in run("k", {"y": torch.ones(6), "z": torch.ones(6)}, source=source, block=2).findings if f.kind == "out-of-bounds"}
    assert found == {
        "read of 16 bytes at y[4], 8 bytes of it past the end, outside what it may read",
        "write of 16 bytes at s[4], 8 bytes of it past the end in shared memory, outside what it may write",
    }


@compiled
def test_the_other_line_of_a_race_is_the_other_threads() -> None:
    """Each thread has read its own element last, at a line of its own."""
    for seed in range(4):
        races = [f for f in run("again", {"y": torch.ones(32)}, source=SHARED, seed=seed).findings if f.line == 29]
        assert {f.other and f.other.line for f in races} == {27}


@compiled
@pytest.mark.parametrize("first", [0, 1])
def test_the_other_line_of_a_race_between_blocks_is_the_other_blocks(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_JOBS", "1")  # block 0 comes first
    lines = ["__global__ void k(float* y) {", "    float a = 0;", "    if (blockIdx.x == 0) a = y[0];", "    if (blockIdx.x == 1) a = y[0];"]
    lines += ["    if (blockIdx.x == 2) a = y[0];", f"    if (blockIdx.x == {1 + first}) y[0] = a + 1;", "    y[1 + blockIdx.x] = a;", "}", ""]
    found = run("k", {"y": torch.ones(8)}, source="\n".join(lines), grid=3, block=1).findings
    (race,) = [f for f in found if f.line == 6]
    assert race.other is not None
    assert (race.other.line, race.other.block) == (3, (0, 0, 0))
    assert "which block (0, 0, 0) read at line 3" in race.message


@compiled
def test_a_tensor_of_another_type_than_the_pointers_is_refused() -> None:
    source = "#include <cuda_fp16.h>\n__global__ void k(const float* a, const float4* b, const __half2* c, const unsigned* d) {}\n"
    right: dict[str, Any] = {"a": torch.ones(8), "b": torch.ones(8), "c": torch.ones(8, dtype=torch.float16), "d": torch.ones(8, dtype=torch.bfloat16)}
    assert run("k", right, source=source).clean
    assert run("k", {**right, "a": torch.ones(32, dtype=torch.uint8)}, source=source).clean
    for name, number, target, taken in (("a", 1, "float", "float32"), ("b", 2, "float4", "float32"), ("c", 3, "__half2", "float16")):
        says = f"k: parameter {number} points to {target} and takes a tensor of {taken}; {name} is int32"
        with pytest.raises(LaunchError, match=says):
            run("k", {**right, name: torch.ones(8, dtype=torch.int32)}, source=source)


@compiled
def test_a_kernel_that_is_not_there_is_named_with_those_that_are() -> None:
    source = "__global__ void one(int n) {}\ntemplate <int N> __global__ void two(int n) {}\n"
    says = r"kernel\.cu: a launch names the kernel three, which the source does not have \(.*three.*\); it has one, two<\.\.\.>"
    with pytest.raises(CompileError, match=says):
        simt.simulate(source, "three", {}, grid=(1,), block=(1,), arguments=[(1, "i32")])


@compiled
@pytest.mark.parametrize(
    ("header", "use"), [("cub/cub.cuh", "cub::Sum f;"), ("thrust/reduce.h", "thrust::plus<int> f;"), ("cuda/std/array", "cuda::std::array<int, 4> f;")]
)
def test_headers_that_are_not_simulated_are_named_with_their_line(header: str, use: str) -> None:
    """In a file of kernels the include is refused. Beside host code, whose headers need not be here, the first name that is missing is."""
    for first, says in (
        ("", rf"^kernel\.cu:3: not simulated: #include <{header}>: the simulator has no such header$"),
        ("#include <cuda_runtime.h>", rf"^kernel\.cu:4: '{use.partition(':')[0]}' is declared neither .* \(no header <{header}> is here\)$"),
    ):
        with pytest.raises(CompileError, match=says):
            simt.simulate(f"{first}\n\n#include <{header}>\n__global__ void k(int n) {{ {use} }}\n", "k", {}, grid=(1,), block=(1,), arguments=[(1, "i32")])
