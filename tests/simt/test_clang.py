"""The simulator built by clang++, as on a machine without g++: it finds the planted faults and counts what was worked out by hand, as g++'s build does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
from simt import test_corpus, test_counts, test_engine, test_faults
from simt.corpus import BUGS, CLEAN, Bug
from simt.counts import DONE, EXPECTED, Done, Expected

from rooftop.core import settings
from rooftop.core.compile import CompileError
from rooftop.core.spec import Case, Input
from rooftop.lab import candidates, simt
from rooftop.lab.report import rung_counts
from rooftop.lab.simt import build
from rooftop.lab.simt.clang_accesses import keep

CLANG = settings.tool_path("clang++")
here = pytest.mark.skipif(CLANG is None or simt.unavailable() is not None, reason="no clang++ here (apt install clang)")
# Clang++ left to itself misses these, or names no line: it takes copies of 16 bytes apart, stops at an array's end, moves reads out of loops.
HARD = ("misaligned_float4", "misaligned_rows", "local_array_overrun", "uninitialised_output")
TWINS = [*(b for b in BUGS if b.name in HARD), *[b for b in BUGS if b.name not in HARD][::4], *CLEAN[::4]]


@pytest.fixture
def clang(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No g++ is on PATH."""
    with without("g++", "c++", monkeypatch=monkeypatch):
        yield


@contextmanager
def without(*names: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs that are not on PATH meanwhile."""
    found = settings.tool_path

    def tool(name: str) -> Path | None:
        return None if name in names else found(name)

    def forget() -> None:
        for cached in (build.compiler, rung_counts.engine):
            cached.cache_clear()

    with monkeypatch.context() as patch:
        patch.setattr(settings, "tool_path", tool)
        forget()
        try:
            yield
        finally:
            forget()


@here
@pytest.mark.usefixtures("clang")
def test_without_gcc_clang_is_taken() -> None:
    assert build.compiler().clang
    assert build.compiler().path == CLANG
    assert simt.unavailable() is None


def test_without_any_compiler_it_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with without("g++", "clang++", "c++", monkeypatch=monkeypatch):
        reason = simt.unavailable()
        assert reason == "no C++ compiler on PATH: simulating CUDA C++ needs g++ (11 or later) or clang++, with binutils (apt install g++)"
        with pytest.raises(build.NoCompilerError, match=r"needs g\+\+ \(11 or later\) or clang\+\+"):
            build.build("", path="x.cu", kernels=["k"], mode="check")


@here
@pytest.mark.usefixtures("clang")
def test_a_compile_error_names_the_users_line() -> None:
    with pytest.raises(CompileError, match=r"k\.cu:2: 'nothing' is declared neither"):
        build.build("__global__ void scale(int n) {\n    nothing(n);\n}\n", path="k.cu", kernels=["scale"], mode="check")


@here
@pytest.mark.usefixtures("clang")
def test_options_that_the_compiler_does_not_have_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "STEADY", ("enable-tail-merge=0", "no-such-option=0"))
    build.steady.cache_clear()
    try:
        assert build.steady(build.compiler()) == ("-mllvm", "-enable-tail-merge=0")
    finally:
        build.steady.cache_clear()


# -- faults -------------------------------------------------------------------------------------------------------------


@here
@pytest.mark.usefixtures("clang")
@pytest.mark.parametrize("fault", test_faults.FAULTS, ids=lambda f: f.name)
def test_a_fault_of_an_ordinary_file_is_found_and_its_twin_is_clean(fault: test_faults.Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    test_faults.test_a_fault_is_found_at_its_line(fault, monkeypatch)
    test_faults.test_its_twin_is_clean(fault)


@here
@pytest.mark.usefixtures("clang")
@pytest.mark.parametrize("bug", BUGS, ids=lambda b: b.name)
def test_a_planted_fault_is_found_at_its_line(bug: Bug) -> None:
    test_corpus.test_a_planted_fault_is_found_at_its_line(bug)


@here
@pytest.mark.usefixtures("clang")
@pytest.mark.parametrize("bug", TWINS, ids=lambda b: b.name)
def test_the_corrected_twin_is_clean_and_right(bug: Bug) -> None:
    test_corpus.test_the_corrected_twin_is_clean_and_right(bug)


@here
@pytest.mark.usefixtures("clang")
def test_a_null_pointer_is_not_assumed_away() -> None:
    test_engine.test_a_null_pointer_stops_the_kernel_and_large_arrays_have_room()


@here
@pytest.mark.usefixtures("clang")
def test_what_is_read_and_not_used_is_no_fault() -> None:
    test_engine.test_what_is_read_and_not_used_is_no_fault()


# -- counts -------------------------------------------------------------------------------------------------------------

by_clang = cache(test_corpus.counted.__wrapped__)  # not what g++ counted in this process


@here
@pytest.mark.usefixtures("clang")
@pytest.mark.parametrize("expected", EXPECTED, ids=str)
def test_a_pattern_is_counted_as_by_hand(expected: Expected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_corpus, "counted", by_clang)
    test_corpus.test_a_pattern_is_counted_as_by_hand(expected)


@here
@pytest.mark.usefixtures("clang")
@pytest.mark.parametrize("done", DONE, ids=str)
def test_operations_and_branches_are_counted_as_by_hand(done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_corpus, "counted", by_clang)
    test_counts.test_operations_and_branches_are_counted_as_by_hand(done)


@here
@pytest.mark.usefixtures("clang")
def test_arms_of_a_branch_are_requests_of_their_own() -> None:
    test_engine.test_arms_of_a_branch_are_requests_of_their_own()


LINES = r"""
#include <cuda_fp16.h>
struct alignas(16) Halves { __half2 v[4]; };
__global__ void lines(int n, const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ out) {
    const int t = threadIdx.x;
    float v;
    if (t % 2)
        v = x[t];                                                          // 4 read
    else
        v = w[t];                                                          // 4 read
    for (int i = 0; i < n; ++i)
        v += x[i * 32 + t] *                                               // 4 read
             w[0];                                                         // 4 read
    out[t] = v;                                                            // 4 write
    float4 q;
    if (t < n)
        q = reinterpret_cast<const float4*>(x)[t + 32];                    // 16 read
    else
        q = reinterpret_cast<const float4*>(w)[t % 16];                    // 16 read
    reinterpret_cast<float4*>(out)[t + 8] = q;                             // 16 write
    Halves h = reinterpret_cast<const Halves*>(x)[t + 64];                 // 16 read
    for (int i = 0; i < 4; ++i) h.v[i] = __hadd2(h.v[i], h.v[i]);
    reinterpret_cast<Halves*>(out)[t + 40] = h;                            // 16 write
    reinterpret_cast<float2*>(out)[t + 144] = reinterpret_cast<const float2*>(x)[t + 192];  // 8 read, 8 write
    const float3 three = reinterpret_cast<const float3*>(x)[t + 160];      // 4 read
    reinterpret_cast<float3*>(out)[t + 120] = three;                       // 4 write
    for (int i = 0; i < 8; ++i)
        out[480 + 8 * t + i] =                                             // 4 write
            x[8 * t + i + 700];                                            // 4 read
    if (t % 4 == 0) out[t + 800] = 1;                                      // 4 write
    else out[t + 800] = 2;                                                 // 4 write
}
"""


def lines() -> simt.Report:
    memory = {"x": torch.ones(1024), "w": torch.ones(64), "out": torch.zeros(1024)}
    arguments = [(4, "i32"), ("x", "ptr"), ("w", "ptr"), ("out", "ptr")]
    return simt.simulate(LINES, "lines", memory, grid=(1,), block=(32,), arguments=arguments, mode="count")


@here
@pytest.mark.usefixtures("clang")
def test_every_access_is_at_its_line_and_as_wide_as_it_stands() -> None:
    marked = [(n, facts) for n, line in enumerate(LINES.splitlines(), 1) if "// " in line for facts in line.rsplit("// ", 1)[1].split(", ")]
    assert [(c.line, f"{c.source_width} {c.op}") for c in lines().lines] == marked


STATIC = """
static __device__ int seen;
static __device__ struct { int a; float b; } two;
__global__ void statics(const float* __restrict__ x, float* __restrict__ out) {
    const int t = threadIdx.x;
    if (t == 0) seen = 1;                      // 4 write
    if (t == 0) {
        two.a = 5;                             // 4 write
        two.b = x[0];                          // 4 read, 4 write
    }
    __syncthreads();
    out[t] = seen ? x[t] : two.b + two.a;      // 4 read, 4 write
}
"""


@here
@pytest.mark.usefixtures("clang")
def test_static_variables_are_as_wide_as_they_stand() -> None:
    """LLVM makes a truth value of an internal variable that holds two values, and parts of a struct."""
    memory = {"x": torch.ones(32), "out": torch.zeros(32)}
    report = simt.simulate(STATIC, "statics", memory, grid=(1,), block=(32,), arguments=[("x", "ptr"), ("out", "ptr")], mode="count")
    marked = [(n, facts) for n, line in enumerate(STATIC.splitlines(), 1) if "// " in line for facts in line.rsplit("// ", 1)[1].split(", ")]
    assert [(c.line, f"{c.source_width} {c.op}") for c in report.lines] == marked


def product(m: int, n: int, k: int) -> Case:
    return Case(f"{m}x{n}x{k}", {"a": Input((m, k)), "b": Input((k, n)), "c": None, "alpha": 1.0, "beta": 1.0})


def rows(r: int, c: int) -> Case:
    return Case(f"{r}x{c}", {"x": Input((r, c), "bf16"), "dim": 1})


@here
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("sgemm_cuda/05", product(128, 128, 32)), ("sgemm_cuda/08", product(129, 128, 32)), ("softmax_cuda/03", rows(8, 1000)),
        ("softmax_cuda/06", rows(4, 4096)), ("softmax_cuda/07", rows(4, 4096)), ("softmax_cuda/08", rows(4, 8192)),
    ],
)
def test_rungs_are_counted_as_by_gcc(name: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    if settings.tool_path("g++") is None:
        pytest.skip("no g++ here to compare with")
    (subject,) = candidates.find([name])
    gcc = simt.run_rung(subject, case, mode="count")
    with without("g++", "c++", monkeypatch=monkeypatch):
        assert build.compiler().clang
        clang = simt.run_rung(subject, case, mode="count")
    assert gcc.lines
    assert clang.lines == gcc.lines
    assert (clang.fma, clang.other_flops) == pytest.approx((gcc.fma, gcc.other_flops), rel=0.02)  # each fuses a product with a sum where it likes


# -- the compiler's text, changed ------------------------------------------------------------------------------------------

COPY = "  call void @llvm.memcpy.{p}.{p}.i64({t} align {a} %to, {t} align {b} %from, i64 {n}, i1 false), !dbg !7, !tbaa.struct !8"


def body(line: str, pointer: str) -> list[str]:
    """The lines of a function of one block that a line makes."""
    made = keep(f"define void @f({pointer} %to, {pointer} %from) {{\n{line}\n  ret void\n}}\n").splitlines()
    return [x.strip() for x in made[1:-2]]


def test_a_copy_of_sixteen_bytes_is_one_load_and_one_store() -> None:
    found = body(COPY.format(p="p0", t="ptr", a=16, b=16, n=16), "ptr")
    assert found == [
        'call void asm sideeffect "", ""() convergent readnone', "%kept.0 = load <4 x i32>, ptr %from, align 16, !dbg !7",
        "store <4 x i32> %kept.0, ptr %to, align 16, !dbg !7",
    ]


def test_pointers_have_types_up_to_llvm_14() -> None:
    found = body(COPY.format(p="p0i8", t="i8*", a=8, b=16, n=8), "i8*")
    assert found[:2] == ["%kept.from.0 = bitcast i8* %from to <2 x i32>*, !dbg !7", "%kept.to.0 = bitcast i8* %to to <2 x i32>*, !dbg !7"]
    assert found[-1] == "store <2 x i32> %kept.0, <2 x i32>* %kept.to.0, align 8, !dbg !7"


def test_static_variables_of_the_source_might_be_used_elsewhere_and_those_of_the_runtime_not() -> None:
    text = "@_ZL4seen = internal global i32 0, section \"x\", align 4\n@_ZN12_GLOBAL__N_15otherE = internal global i32 3, align 4"
    assert keep(text) == text.replace("internal", "hidden")
    others = "@_ZN4simtL4heldE = internal global i32 0\n@_ZL5table = internal constant [1 x i32] [i32 1]\n@_ZGVZ1fvE1x = internal global i64 0"
    assert keep(others) == others


@pytest.mark.parametrize(("size", "align", "parts"), [(12, 4, 3), (16, 4, 4), (3, 1, 3), (32, 16, 8), (6, 2, 3), (4, 4, 1)])
def test_other_copies_become_several(size: int, align: int, parts: int) -> None:
    found = body(COPY.format(p="p0", t="ptr", a=align, b=align, n=size), "ptr")
    assert sum(" = load " in x for x in found) == sum(x.startswith("store ") for x in found) == parts


def test_what_is_the_threads_own_and_what_is_large_is_left() -> None:
    large = COPY.format(p="p0", t="ptr", a=16, b=16, n=80)
    assert body(large, "ptr") == [large.strip()]
    own = "  %a = alloca [4 x float]\n  %b = getelementptr inbounds [4 x float], ptr %a, i64 0, i64 1\n  %c = load float, ptr %b, align 4"
    assert body(own, "ptr") == [x.strip() for x in own.splitlines()]


def test_an_arm_of_a_branch_ends_with_what_might_write() -> None:
    found = body("  br i1 %c, label %a, label %b\n\na:\n  %v = load float, ptr %from, align 4\n  br label %b\n\nb:", "ptr")
    assert found[0] == "%kept.here = alloca i8, align 1"
    at = found.index("%v = load float, ptr %from, align 4")
    assert found[at - 1].startswith('call void asm sideeffect "", ""()')
    assert found[at + 1] == 'call void asm sideeffect "", "X"(ptr nocapture %kept.here) argmemonly nounwind'
    assert sum("asm" in x for x in found) == 2
