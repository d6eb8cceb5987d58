"""The simulator's parts: translation, arguments, memory, schedules, faults in words, counts, the pages, and what the commands say."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from rooftop.core import settings
from rooftop.core.compile import CompileError
from rooftop.core.spec import Case, Input, Launch
from rooftop.lab import candidates, simt
from rooftop.lab.check import checker as checks
from rooftop.lab.cli import commands
from rooftop.lab.cli.app import app
from rooftop.lab.simt import annotate, build, ptx
from rooftop.lab.simt.translate import TranslateError, translate

compiled = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
PLANTED = settings.PACKAGE / "kernels" / "_planted"


# -- source to source -------------------------------------------------------------------------------------------------


def body(text: str) -> str:
    return translate(text, "k.cu").split("\n", 1)[1]


def test_every_line_stays_where_it_was() -> None:
    text = "// a\n__shared__ float x[2]\n  [3], y;\nasm volatile(\"ex2.approx.f32 %0, %1;\"\n  : \"=f\"(v)\n  : \"f\"(u));\nlast"
    made = body("void f() {\n" + text)
    assert made.count("\n") == text.count("\n") + 1
    assert made.splitlines()[-1] == "last"


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("__shared__ float a[4][5], b;", ("typedef float simt_type_a[4][5];", "simt_type_b& b = ")),
        ("__shared__ __align__(32) Part<T, 2> parts[N > 3 ? 1 : 2];", ("typedef Part<T, 2> simt_type_parts[N > 3 ? 1 : 2];", "< (32) ? (32)")),
        ("static __shared__ alignas(16) unsigned char raw[64];", ("typedef unsigned char simt_type_raw[64];", "< (16) ? (16)")),
        ("static __shared__ float held[64];", ("{typedef float simt_type_held[64];",)),
        ("alignas(16) static volatile __shared__ int words[4];", ("{typedef volatile int simt_type_words[4];", "< (16) ? (16)")),
        ("extern volatile __shared__ int all[];", ("{volatile int* const all = static_cast<volatile int*>(simt::dynamic_shared());",)),
        ("__shared__ union { int i; float f; } both;", ("typedef union { int i; float f; } simt_type_both;",)),
        ("extern __shared__ float4 all[];", ("float4* const all = static_cast<float4*>(simt::dynamic_shared());",)),
        ("__noinline__ int f();", ("__attribute__((noinline)) int f();",)),
        ('const char* s = "__shared__ int x;"; // asm("x")', ('"__shared__ int x;"', '// asm("x")')),
    ],
)
def test_declarations_become_places_in_the_blocks_memory(text: str, holds: tuple[str, ...]) -> None:
    made = body("void f() {" + text)
    for part in holds:
        assert part in made


def test_loops_marked_for_unrolling_are_so_for_the_host() -> None:
    text = "#pragma unroll\n  for (;;) {}\n#pragma unroll 4  // why\nwhile (1) {}\n#pragma unroll\nint i;\n"
    made = translate(text, "k.cu", unroll=True).split("\n", 1)[1].splitlines()
    assert (made[0], made[2], made[4]) == ("#pragma GCC unroll 256", "#pragma GCC unroll 4", "#pragma unroll")


def test_shared_memory_of_a_file_is_a_name_for_a_call() -> None:
    assert "#define held (static_cast<uint4*>(simt::dynamic_shared()))" in body("namespace a {\nextern __shared__ uint4 held[];\n}\n")


def test_what_cannot_be_read_is_said_with_its_line() -> None:
    with pytest.raises(TranslateError, match=r"k\.cu:2: a launch <<<"):
        body("\nk<<<1, 2>>>;")


def test_a_launch_by_a_kernel_stops_where_it_is_executed() -> None:
    assert body("\nk<<<1, 2>>>(3);") == '\nk, simt::not_simulated("a launch <<<...>>> by a kernel (dynamic parallelism)");'


def test_unknown_ptx_stops_where_it_is_executed() -> None:
    made = ptx.translate("wgmma.fence.sync.aligned;", [])
    assert 'simt::not_simulated("wgmma.fence.sync.aligned: the simulator does not know this instruction")' in made
    assert "of cp the simulator does not know .bulk" in ptx.translate("cp.async.bulk.commit_group;", [])


def test_loops_and_predicates_of_ptx() -> None:
    text = "{\n.reg .pred P1;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n@P1 bra DONE;\nbra WAIT;\nDONE:\n}"
    made = ptx.translate(text, [ptx.Operand("r", "bar"), ptx.Operand("r", "phase")])
    assert "__label__ WAIT, DONE;" in made
    assert "if (simt_r_P1) goto DONE;" in made
    assert "simt::mbarrier_test(simt::ptx::shared_pointer((bar), 0)" in made
    assert "not_simulated" not in made


# -- arguments and geometry ---------------------------------------------------------------------------------------------

SCALE = """__global__ void scale(int n, float by, const float* __restrict__ x, float* __restrict__ y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = by * x[i];
}
"""


def scale(**changes: Any) -> simt.Report:
    memory = changes.pop("memory", {"x": torch.arange(100, dtype=torch.float32), "y": torch.zeros(100)})
    given: dict[str, Any] = {"grid": (4,), "block": (32,), "arguments": [(100, "i32"), (2.0, "f32"), ("x", "ptr"), ("y", "ptr")]}
    return simt.simulate(changes.pop("source", SCALE), changes.pop("entry", "scale"), memory, **{**given, **changes})


@compiled
def test_a_kernel_from_text_writes_its_tensors() -> None:
    memory = {"x": torch.arange(100, dtype=torch.float32), "y": torch.zeros(100)}
    report = scale(memory=memory)
    assert torch.equal(memory["y"], 2 * memory["x"])
    assert report.outputs["y"] is memory["y"]
    assert (report.clean, report.blocks, report.threads) == (True, 4, 128)


@compiled
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"arguments": [(100, "i32")]}, "scale has 4 parameters; 1 arguments are given"),
        ({"arguments": [(100, "i64"), (2.0, "f32"), ("x", "ptr"), ("y", "ptr")]}, "parameter 1 is 4 bytes; the argument 0 is i64"),
        ({"arguments": [(100, "i32"), (2.0, "f32"), (1, "u64"), ("y", "ptr")]}, "parameter 3 is a pointer"),
        ({"arguments": [(100, "i32"), (2.0, "f32"), ("z", "ptr"), ("y", "ptr")]}, "'z' is not in memory, which has x, y"),
        ({"block": (1025,)}, "a block of 1025 threads"),
        ({"grid": (0,)}, "a grid of"),
        ({"cluster": (3,)}, "clusters have 1 to 16 blocks and fill the grid"),
    ],
)
def test_what_does_not_fit_is_said(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(simt.LaunchError, match=says):
        scale(**changes)


@compiled
def test_a_compile_error_names_the_users_line() -> None:
    with pytest.raises(CompileError, match=r"^kernel\.cu:2: 'nothing' is declared neither by the source nor by what the simulator knows of CUDA$"):
        scale(source="__global__ void scale(int n) {\n    nothing(n);\n}\n", arguments=[(1, "i32")])


@compiled
def test_tensors_that_share_memory_go_on_sharing_it() -> None:
    whole = torch.arange(120, dtype=torch.float32)
    report = scale(memory={"x": whole[:100], "y": whole[20:]})  # the same storage: y is x, 20 further
    assert {f.kind for f in report.findings} <= {"global-race"}
    rows = torch.zeros(4, 30)[:, :25]
    assert not rows.is_contiguous()
    scale(memory={"x": torch.ones(100), "y": torch.zeros(100)[::1]})


@compiled
def test_elements_apart_are_the_only_ones_that_may_be_written() -> None:
    report = scale(memory={"x": torch.ones(100), "y": torch.zeros(200)[::2]})
    assert [(f.kind, f.line) for f in report.findings] == [("out-of-bounds", 3)]
    assert "y[" in report.findings[0].message


@compiled
def test_a_schedule_is_the_seeds_and_results_are_not() -> None:
    found = [scale(seed=s).findings for s in (0, 1, 2)]
    assert found == [()] * 3
    assert scale(schedules=3).blocks == 12


# -- faults in words ------------------------------------------------------------------------------------------------------

FAULTS = r"""
__global__ void past_the_end(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x + 1]; }
__global__ void no_barrier(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void null(float* y) { float* p = y[0] == 0 ? nullptr : y; *p = 1; }
__global__ void deep(float* y) {
    volatile float large[20000];
    for (int i = 0; i < 20000; i += 500) large[i] = y[i % 8];
    y[8 + threadIdx.x % 8] = large[500];
}
__global__ void not_here(float* y) {
    if (y[0] > 1) asm volatile("wgmma.fence.sync.aligned;");
    y[0] = 2;
}
__global__ void unused(const float* x, float* y) {
    __shared__ float s[64];
    if (threadIdx.x < 32) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    const float v = s[threadIdx.x];
    y[threadIdx.x] = threadIdx.x < 32 ? v : 0;
}
__global__ void through_global(const float* x, float* y) {
    y[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x < 63 && y[threadIdx.x + 1] < 0) y[threadIdx.x] = 0;
}
"""


def faults(kernel: str, names: tuple[str, ...], block: int = 64, **memory: torch.Tensor) -> tuple[simt.Finding, ...]:
    given = {"x": torch.ones(64), "y": torch.zeros(64), **memory}
    return simt.simulate(FAULTS, kernel, given, grid=(1,), block=(block,), arguments=[(n, "ptr") for n in names]).findings


@compiled
def test_a_fault_names_thread_line_and_element() -> None:
    (found,) = faults("past_the_end", ("x", "y"))
    assert (found.kind, found.line, found.thread, found.count) == ("out-of-bounds", 2, (63, 0, 0), 1)
    assert found.message == "read of 4 bytes at 0 bytes past the end of x (64, 256 bytes), outside what it may read"
    assert found.text.startswith("__global__ void past_the_end")
    assert str(found).startswith("kernel.cu:2: out-of-bounds: read of 4 bytes")


@compiled
def test_a_race_names_both_lines() -> None:
    found = faults("no_barrier", ("x", "y"))
    race = next(f for f in found if f.kind == "shared-race")
    assert race.other is not None
    assert {race.line, race.other.line} == {5, 6}
    assert "with no __syncthreads() between" in race.message


@compiled
def test_threads_of_a_block_meet_in_global_memory_at_barriers_alone() -> None:
    (found,) = faults("through_global", ("x", "y"))
    assert (found.kind, found.line, found.other and found.other.line) == ("global-race", 27, 26)
    assert "with no barrier between" in found.message


@compiled
def test_a_null_pointer_stops_the_kernel_and_large_arrays_have_room() -> None:
    (found,) = faults("null", ("y",))
    assert (found.kind, found.line) == ("out-of-bounds", 8)
    assert "a null pointer" in found.message
    assert faults("deep", ("y",)) == ()  # 80 kB a thread
    assert faults("past_the_end", ("x", "y"), x=torch.ones(65)) == ()


@compiled
def test_what_is_not_simulated_is_said_where_it_runs() -> None:
    assert faults("not_here", ("y",), block=1) == ()
    (found,) = faults("not_here", ("y",), block=1, y=torch.full((64,), 3.0))
    assert (found.kind, found.line) == ("not-simulated", 15)
    assert found.message == "wgmma.fence.sync.aligned: the simulator does not know this instruction"


@compiled
def test_what_is_read_and_not_used_is_no_fault() -> None:
    assert faults("unused", ("x", "y")) == ()


@compiled
@pytest.mark.parametrize(("name", "kind"), [("overrun", "out-of-bounds"), ("race", "shared-race"), ("divergent", "barrier-divergence")])
def test_rooftop_check_finds_the_planted_faults_without_a_gpu(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (subject,) = candidates.find([str(PLANTED / f"{name}.cu")])
    found = checks.check(subject, Case("300", {"x": Input((300,)), "y": Input((300,))}))
    assert (found.status, found.backend) == ("wrong", "simt")
    assert f": {kind}: " in found.message


# -- rungs ------------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled("simulator")
@compiled
@pytest.mark.parametrize(
    ("rung", "case"),
    [
        ("sgemm_cuda/03_shared_tile", "odd 7x3x5 f32"),
        ("sgemm_cuda/08_conflict_free", "odd leading dimensions f32"), ("sgemm_cuda/11_async_copies", "K of zero f32"),
        ("sgemm_cuda/16_tuned", "K of zero with addend f32"), ("softmax_cuda/06_registers", "odd 3x7 bf16"),
        ("softmax_cuda/07_async_copies", "odd 3x7 bf16"), ("softmax_cuda/08_cluster", "odd 3x7 f32"), ("softmax_cuda/09_words", "odd 3x7 bf16"),
    ],
)
def test_rungs_are_right_and_clean(rung: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (subject,) = candidates.find([rung])
    cases = checks.select_cases(subject)
    chosen = next((c for c in cases if c.id == case), None) or next(c for c in cases if c.dtype == case.split()[-1] and "odd" in c.name)
    result = checks.check(subject, chosen, seed=1)
    assert (result.status, result.message, result.backend) == ("ok", "", "simt")


@compiled
def test_only_cuda_that_takes_the_case_is_run() -> None:
    (triton,) = [s for s in candidates.find(["softmax"]) if s.name == "softmax__triton"]
    with pytest.raises(ValueError, match="softmax__triton is not CUDA C"):
        simt.run_rung(triton, triton.op.cases[0])
    (rung,) = candidates.find(["softmax_cuda/06"])
    with pytest.raises(ValueError, match="cannot take"):
        simt.run_rung(rung, Case("wide", {"x": Input((1, 40000)), "dim": 1}))


# -- counts -------------------------------------------------------------------------------------------------------------------

COUNTED = r"""
__global__ void dot(int n, const float* __restrict__ x, const float* __restrict__ y, float* out) {
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 32)
        sum = fmaf(x[i], y[i * 2], sum);
    out[threadIdx.x] = sum;
}
__global__ void part(const float* __restrict__ x, float* out) {
    const int t = threadIdx.x;
    if (t % 2)
        out[t] = x[t] * 2;
    else
        out[t] = x[t] + 1;
}
__global__ void ragged(const float* __restrict__ x, float* out) {   // lane t goes round t % 4 + 1 times, twice
    float sum = 0;
    for (int j = 0; j < 2; ++j) {
        for (int k = 0; k <= threadIdx.x % 4; ++k)
            sum += x[j * 128 + k * 32 + threadIdx.x];
        out[j * 32 + threadIdx.x] = sum;
    }
}
"""


def counted(kernel: str, *arguments: tuple[Any, str]) -> simt.Report:
    memory = {"x": torch.ones(512), "y": torch.ones(1024), "out": torch.zeros(64)}
    return simt.simulate(COUNTED, kernel, memory, grid=(1,), block=(32,), arguments=arguments, mode="count")


@compiled
def test_sectors_and_arithmetic_are_exact() -> None:
    report = counted("dot", (128, "i32"), ("x", "ptr"), ("y", "ptr"), ("out", "ptr"))
    assert report.fma == 128
    reads = next(c for c in report.lines if c.op == "read")
    assert (reads.line, reads.requests, reads.sectors, reads.ideal_sectors, reads.bytes_useful) == (5, 8, 4 * (4 + 8), 32, 8 * 128)
    assert report.divergent == {}


@compiled
def test_arms_of_a_branch_are_requests_of_their_own() -> None:
    report = counted("part", ("x", "ptr"), ("out", "ptr"))
    assert [(c.line, c.op, c.requests, c.lanes) for c in report.lines] == [(11, "read", 1, 16), (11, "write", 1, 16), (13, "read", 1, 16), (13, "write", 1, 16)]
    assert sum(report.divergent.values()) == 1
    assert report.other_flops == 32


@compiled
def test_lanes_that_leave_a_loop_wait_for_the_others() -> None:
    report = counted("ragged", ("x", "ptr"), ("out", "ptr"))
    assert [(c.line, c.op, c.requests, c.lanes) for c in report.lines] == [(19, "read", 8, 2 * 80), (20, "write", 2, 64)]


@compiled
@pytest.mark.sampled("simulator")
@pytest.mark.parametrize("collective", ["__syncwarp()", "__shfl_sync(-1, t, 0)", "__reduce_add_sync(-1, t)"])
def test_lanes_are_together_after_a_collective(collective: str) -> None:
    """What one lane does for all of them, to make the results, is no path of its own."""
    source = "__global__ void k(float* out) {\n    const int t = threadIdx.x;\n    COLLECTIVE;\n    out[t] = 1;\n}\n".replace("COLLECTIVE", collective)
    report = simt.simulate(source, "k", {"out": torch.zeros(32)}, grid=(1,), block=(32,), arguments=[("out", "ptr")], mode="count")
    assert [(c.line, c.requests, c.sectors) for c in report.lines] == [(4, 1, 4)]
    assert not report.divergent


# -- pages and commands -----------------------------------------------------------------------------------------------------------


@compiled
def test_the_source_is_shown_with_its_counts(tmp_path: Path) -> None:
    report = counted("dot", (128, "i32"), ("x", "ptr"), ("y", "ptr"), ("out", "ptr"))
    lines = list(annotate.as_text(report, {"kernel.cu": COUNTED}, colour=False))
    (shown,) = [line for line in lines if "fmaf(x[i]" in line]
    assert shown.startswith("    5 ██████████ ")
    assert "global read 4 B x8: 6 sectors (4)" in shown
    assert lines[-1].startswith("1 block: 128 FMAs, 0 other floating operations")
    page = annotate.as_html(report, {"kernel.cu": COUNTED}, "dot & more")
    assert "<title>dot &amp; more</title>" in page
    assert page.count("<tr") == COUNTED.count("\n")


@pytest.mark.sampled("simulator")
@compiled
def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    commands()
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["simt", "sgemm_cuda/02", "--shape", "a=64x40,b=40x64", "--html", str(page), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["findings"] == []
    assert {(c["space"], c["op"]) for c in found["lines"]} == {("global", "read"), ("global", "write")}
    assert "02_coalesced" in page.read_text(encoding="utf-8")
    faulty = CliRunner().invoke(app, ["simt", str(PLANTED / "overrun.cu"), "--shape", "x=300,y=300"])
    assert faulty.exit_code == 1
    assert "out-of-bounds" in faulty.stdout
    wrong = CliRunner().invoke(app, ["simt", "sgemm_cuda/02", "--shape", "q=3"])
    assert isinstance(wrong.exception, ValueError)
    assert "--shape names q; the inputs are a, b, as in --shape a=" in str(wrong.exception)
    weighted = CliRunner().invoke(app, ["simt", "layer_norm__cuda_sm80", "--shape", "x=3x40,weight=40,bias=40", "--json"])
    assert weighted.exit_code == 0, weighted.output  # the largest of its cases has no weight


@compiled
def test_a_file_without_an_op_takes_sizes(tmp_path: Path) -> None:
    commands()
    file = tmp_path / "flip.cu"
    head = '/* rooftop\nargs = ["n: i32", "x: f32[n]", "y: f32[n]"]\n[[launch]]\nkernel = "flip"\ngrid = ["ceil(n / 64)"]\nblock = [64]\n*/\n'
    code = "__global__ void flip(int n, const float* x, float* y) {\n    int i = blockIdx.x * 64 + threadIdx.x;\n    if (i < n) y[i] = x[n - 1 - i];\n}\n"
    file.write_text(head + code, encoding="utf-8")
    done = CliRunner().invoke(app, ["simt", str(file), "--shape", "n=200"])
    assert done.exit_code == 0, done.output
    assert "if (i < n) y[i] = x[n - 1 - i];" in done.stdout
    assert "checked: no fault" in done.stdout


# -- building -----------------------------------------------------------------------------------------------------------------------


def test_kernels_of_one_source_are_built_together() -> None:
    assert build.family(COUNTED, ["dot"]) == ["dot", "part", "ragged"]
    text = "template <int N> __global__ void a() {}\n"
    text += "__global__ void __launch_bounds__(32) b(int n) {}\nextern \"C\" __global__ __launch_bounds__(8, 2) void c() {}"
    assert build.family(text, ["a<3>"]) == ["a<3>"]
    assert build.family(text, ["b"]) == ["b", "c"]
    assert build.family(text, ["a<3>", "b"]) == ["a<3>", "b"]


@compiled
def test_a_build_is_found_again_and_depends_on_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.build(SCALE, path="k.cu", kernels=["scale"], mode="check")
    assert build.build(SCALE, path="k.cu", kernels=["scale"], mode="check").seconds == 0
    assert build.build(SCALE, path="k.cu", kernels=["scale"], mode="check").path == first.path
    with pytest.raises(ValueError, match="mode 'fast' is not one of check, count"):
        build.build(SCALE, path="k.cu", kernels=["scale"], mode="fast")


@compiled
def test_a_library_keeps_nothing_for_each_thread() -> None:
    """What is kept so has little room in a process: a few hundred simulations would fill it."""
    library = build.build(SCALE, path="k.cu", kernels=["scale"], mode="check")
    headers = subprocess.run([str(settings.tool_path("objdump")), "-p", str(library.path)], capture_output=True, text=True, check=True).stdout
    assert "LOAD" in headers
    assert "TLS" not in headers.split("Dynamic Section")[0]


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    build.compiler.cache_clear()
    monkeypatch.setattr(settings, "tool_path", lambda name: None)
    try:
        assert "needs g++ (11 or later) or clang++" in str(simt.unavailable())
    finally:
        build.compiler.cache_clear()


@compiled
@pytest.mark.sampled("simulator")
def test_fibers_switch_by_contexts_where_there_is_no_assembly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "COMMON", (*build.COMMON, "-DSIMT_UCONTEXT"))
    found = faults("no_barrier", ("x", "y"))
    assert any(f.kind == "shared-race" for f in found)
    assert faults("unused", ("x", "y")) == ()


@compiled
def test_several_launches_share_memory() -> None:
    memory = {"x": torch.ones(64), "y": torch.zeros(64), "z": torch.zeros(64)}
    types = ("i32", "f32", "ptr", "ptr")
    launches = [Launch("scale", (2,), {"n": 64, "by": 3.0, "x": a, "y": b}, types=types, block=(32,)) for a, b in (("x", "y"), ("y", "z"))]
    report = simt.run_launches(SCALE, "kernel.cu", launches, memory, uninitialised=["y", "z"])
    assert report.clean
    assert memory["z"].tolist() == [9.0] * 64


@compiled
def test_a_crash_ends_the_launch_and_not_the_process() -> None:
    source = "__global__ void divide(int n, int* y) {\n    y[threadIdx.x] = 7 / (n - 1);\n}\n"
    report = simt.simulate(source, "divide", {"y": torch.zeros(32, dtype=torch.int32)}, grid=(3,), block=(32,), arguments=[(1, "i32"), ("y", "ptr")])
    assert [(f.kind, f.line) for f in report.findings] == [("assert", 2)]
    assert "integer division by zero" in report.findings[0].message
