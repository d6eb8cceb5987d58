"""What the simulator knows of PTX and CUDA it does right, modifiers included; all else it refuses by name and line."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from rooftop.core.compile import CompileError
from rooftop.core.spec import Launch
from rooftop.lab import simt
from rooftop.lab.simt import ptx
from rooftop.lab.simt.ptx_instructions import _BINARY, _IGNORED, _TABLE, _UNARY
from rooftop.lab.simt.ptx_table import FORMS, refusal

compiled = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
NAN, INF, TINY = math.nan, math.inf, 1e-40  # the last is subnormal


# -- the table --------------------------------------------------------------------------------------------------------


def names(form: str, optional: bool) -> str:
    groups = [g for g in form.split() if optional or not g.endswith("?")]
    return "".join(f".{g.removesuffix('?').split('|')[-1]}" for g in groups)


def test_each_instruction_of_the_table_becomes_something_and_nothing_else_does() -> None:
    assert set(FORMS) == {*_TABLE, *_UNARY, *_BINARY, *_IGNORED}
    for op, forms in FORMS.items():
        for form in forms:
            for optional in (False, True):
                assert refusal(op + names(form, optional)) is None, (op, form)
                assert refusal(f"{op}{names(form, optional)}.nonsense") is not None


@pytest.mark.parametrize(
    "name",
    [
        "max.sat.f32", "min.relu.f32", "add.cc.u32", "fma.rn.oob.f16", "mul.wide.s64", "cvt.rz.f16.s32", "cvt.rs.f16x2.f32", "cvt.pack.sat.u8.s32",
        "setp.lt.f16x2",
        "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", "mma.sync.aligned.m16n8k4.row.col.f32.bf16.bf16.f32", "red.async.relaxed.cluster.add.u32",
        "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32", "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8", "ld.local.f32", "discard.global.L2",
        "cp.async.bulk.tensor.2d.shared::cluster.global", "mbarrier.arrive.shared::cluster.b64", "mbarrier.arrive.noComplete.b64", "bar.red.popc.u32",
        "shfl.up.b32", "wgmma.fence.sync.aligned", "atom.add.v2.f32", "dp4a.u32.s32", "add.s16x2", "rcp.approx.ftz.f64", "lop3.or.b32", "prmt.b32.f4e",
    ],
)
def test_what_is_not_modelled_is_refused_by_name(name: str) -> None:
    made = ptx.translate(f"{name} %0, %1, %2, %3;", [ptx.Operand("=r", c) for c in "abcd"])
    assert f'simt::not_simulated("{name}: ' in made


def test_registers_that_cannot_be_declared_are_refused() -> None:
    assert "registers of a type that the simulator does not know" in ptx.translate("{.reg .b128 q; mov.b32 %0, 1;}", [ptx.Operand("=r", "a")])
    assert "p is declared twice, with different types" in ptx.translate("{.reg .pred p;} {.reg .b32 p;}", [])
    assert "bool simt_r_p = {};" in ptx.translate("{.reg .pred p;} {.reg .pred p;}", [])


# -- results ----------------------------------------------------------------------------------------------------------


def unary(text: str) -> str:
    return f'{{ float d; asm("{text} %0, %1;" : "=f"(d) : "f"(a)); *to++ = d; }}'


def binary(text: str) -> str:
    return f'{{ float d; asm("{text} %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b)); *to++ = d; }}'


def compare(text: str) -> str:
    return f'{{ unsigned d; asm("{{ .reg .pred p; {text} p, %1, %2; selp.u32 %0, 1, 0, p; }}" : "=r"(d) : "f"(a), "f"(b)); *to++ = d; }}'


def halves(text: str, of: str = "%1, %2") -> str:  # into a pair of f16, of which both are kept
    parts = "const __half2 h = *reinterpret_cast<__half2*>(&d); *to++ = __low2float(h); *to++ = __high2float(h);"
    return f'{{ unsigned d; asm("{text} %0, {of};" : "=r"(d) : "f"(a), "f"(b)); {parts} }}'


STEP = 2.0**-23  # of a float from 1 on
FLOATS = [  # statement, a, b -> what it gives
    (binary("add.sat.f32"), 0.75, 0.5, [1.0]), (binary("add.sat.f32"), -0.75, 0.5, [0.0]), (binary("add.sat.f32"), NAN, 0.5, [0.0]),
    (binary("add.rz.f32"), 1.0, -(2.0**-30), [1 - STEP / 2]), (binary("add.rn.f32"), 1.0, -(2.0**-30), [1.0]),
    (binary("add.rp.f32"), 1.0, 2.0**-30, [1 + STEP]),
    (binary("sub.rm.f32"), 1.0, 2.0**-30, [1 - STEP / 2]), (binary("mul.rz.f32"), 1 + STEP, 1 + STEP, [1 + 2 * STEP]),
    (binary("mul.rp.f32"), 1 + STEP, 1 + STEP, [1 + 3 * STEP]), (binary("div.rz.f32"), 2.0, 3.0, [0.6666666269302368]),
    (binary("div.rp.f32"), 2.0, 3.0, [0.6666666865348816]), (unary("sqrt.rz.f32"), 2.0, 0.0, [1.4142135381698608]),
    (binary("add.f32"), TINY, 0.0, [TINY]), (binary("add.ftz.f32"), TINY, 0.0, [0.0]), (binary("mul.ftz.f32"), 1e-30, 1e-10, [0.0]),
    (unary("abs.ftz.f32"), -TINY, 0.0, [0.0]), (unary("abs.f32"), -0.0, 0.0, [0.0]), (unary("neg.f32"), 2.5, 0.0, [-2.5]),
    (binary("max.f32"), NAN, 1.0, [1.0]), (binary("max.NaN.f32"), NAN, 1.0, [NAN]), (binary("min.NaN.f32"), 1.0, NAN, [NAN]),
    (binary("min.f32"), -0.0, 0.0, [-0.0]), (binary("max.xorsign.abs.f32"), -3.0, 2.0, [-3.0]), (binary("min.xorsign.abs.f32"), -3.0, -2.0, [2.0]),
    (binary("max.NaN.xorsign.abs.f32"), -3.0, NAN, [NAN]),
    (compare("setp.ne.f32"), NAN, 1.0, [0.0]), (compare("setp.neu.f32"), NAN, 1.0, [1.0]), (compare("setp.lt.f32"), NAN, 1.0, [0.0]),
    (compare("setp.geu.f32"), 0.0, NAN, [1.0]), (compare("setp.nan.f32"), 0.0, NAN, [1.0]), (compare("setp.num.f32"), 0.0, NAN, [0.0]),
    (compare("setp.eq.ftz.f32"), TINY, 0.0, [1.0]), (compare("setp.eq.f32"), TINY, 0.0, [0.0]),
    (halves("cvt.rn.relu.f16x2.f32"), -3.0, 2.0, [2.0, 0.0]), (halves("cvt.rz.f16x2.f32"), 2049.5, -2051.0, [-2050.0, 2048.0]),
    (halves("cvt.rn.f16x2.f32"), 2049.5, -2051.0, [-2052.0, 2050.0]),
    ('{ unsigned short h; asm("cvt.rn.relu.f16.f32 %0, %1;" : "=h"(h) : "f"(a)); *to++ = __half2float(__ushort_as_half(h)); }', -1.0, 0.0, [0.0]),
    ('{ int d; asm("cvt.sat.s8.s32 %0, %1;" : "=r"(d) : "r"(static_cast<int>(a))); *to++ = d; }', 300.0, 0.0, [127.0]),
    ('{ unsigned d; asm("cvt.u8.u32 %0, %1;" : "=r"(d) : "r"(static_cast<unsigned>(a))); *to++ = d; }', 300.0, 0.0, [44.0]),
    ('{ int d; asm("cvt.rni.s32.f32 %0, %1;" : "=r"(d) : "f"(a)); *to++ = d; }', NAN, 0.0, [0.0]),
    ('{ long long d; asm("cvt.rni.s64.f32 %0, %1;" : "=l"(d) : "f"(a)); *to++ = d; }', NAN, 0.0, [-(2.0**63)]),
    ('{ float d; asm("cvt.rmi.f32.f32 %0, %1;" : "=f"(d) : "f"(a)); *to++ = d; }', -1.5, 0.0, [-2.0]),
    ('{ float d; asm("cvt.rz.f32.s32 %0, %1;" : "=f"(d) : "r"(0x7fffffff)); *to++ = d; }', 0.0, 0.0, [2147483520.0]),
    ('{ int d; asm("add.sat.s32 %0, %1, %2;" : "=r"(d) : "r"(0x7ffffff0), "r"(99)); *to++ = d; }', 0.0, 0.0, [2147483647.0]),
    ('{ int d; asm("max.relu.s32 %0, %1, %2;" : "=r"(d) : "r"(-7), "r"(-9)); *to++ = d; }', 0.0, 0.0, [0.0]),
    ('{ unsigned d; asm("{ .reg .pred p, q; setp.eq.and.u32 p|q, %1, 1, q; selp.u32 %0, 1, 0, q; }" : "=r"(d) : "r"(2)); *to++ = d; }', 0.0, 0.0, [0.0]),
    ('{ unsigned a4; asm("{ .reg .b16 x, y; .reg .b32 z; mov.b32 {x, y}, %1; mov.b64 {z, _}, %2; cvt.u32.u16 %0, y; add.u32 %0, %0, z; }" '
     ': "=r"(a4) : "r"(0x50003), "l"(0x900000002ull)); *to++ = a4; }', 0.0, 0.0, [7.0]),
    ("*to++ = __fadd_rz(a, b); *to++ = __fadd_ru(a, b); *to++ = __fmul_rd(a, b); *to++ = __fmaf_ru(a, a, b);", 1.0, 2.0**-30,
     [1.0, 1 + STEP, 2.0**-30, 1 + STEP]),
    ("*to++ = __float2int_rn(a); *to++ = __float2ll_rn(a) < 0;", NAN, 0.0, [0.0, 1.0]),
]
SOURCE = "#include <cuda_fp16.h>\n" + "\n".join(
    f"__global__ void k{i}(float a, float b, float* to) {{ {statement} }}" for i, (statement, *_) in enumerate(FLOATS)
)


@cache
def gave() -> tuple[list[list[float]], simt.Report]:
    memory = {f"y{i}": torch.zeros(len(expected)) for i, (*_, expected) in enumerate(FLOATS)}
    launches = [
        Launch(f"k{i}", (1,), {"a": a, "b": b, "to": f"y{i}"}, types=("f32", "f32", "ptr"), block=(1,)) for i, (_, a, b, _) in enumerate(FLOATS)
    ]
    report = simt.run_launches(SOURCE, "k.cu", launches, memory)
    return [t.tolist() for t in memory.values()], report


@pytest.mark.sampled("corpus")
@compiled
@pytest.mark.parametrize("i", range(len(FLOATS)), ids=lambda i: FLOATS[i][0][:60])
def test_modifiers_do_what_the_ptx_isa_says(i: int) -> None:
    found, report = gave()
    assert not report.findings
    expected = torch.tensor(FLOATS[i][3], dtype=torch.float32).tolist()
    assert found[i] == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
    assert [math.copysign(1, x) for x in found[i] if x == 0] == [math.copysign(1, x) for x in expected if x == 0]


# -- what stood there as a compiler's error ----------------------------------------------------------------------------

MODERN = """#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda/barrier>
namespace cg = cooperative_groups;
#define RED_ASYNC(bar, v) asm volatile("red.async.relaxed.cluster.global.add.u32 [%0], %1;" ::"l"(bar), "r"(v))
__global__ void maps(const __grid_constant__ CUtensorMap map, unsigned* y) {
    y[threadIdx.x] = 1;
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map), "r"(0), "r"(0));
}
__global__ void texture(cudaTextureObject_t t, unsigned* y) { y[threadIdx.x] = tex2D<float>(t, 0.5f, threadIdx.x); }
__global__ void video(unsigned* y) { y[threadIdx.x] = __vadd4(0x01020304u, threadIdx.x); }
__global__ void reduced(unsigned* y) {
    RED_ASYNC(y, 1u);
}
__global__ void sparse(unsigned* y) {
    unsigned a = 0;
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16 {%0, %0}, {%0, %0, %0, %0}, {%0, %0, %0, %0}, {%0, %0}, %0, 0x0;"
                 : "+r"(a));
    y[threadIdx.x] = a;
}
__global__ void children(unsigned* y) {
    if (threadIdx.x == 0) video<<<1, 32>>>(y);
}
__global__ void special(unsigned* y) { asm volatile("mov.u32 %0, %%pm0;" : "=r"(y[threadIdx.x])); }
__global__ void works(int* y) {
    __shared__ alignas(16) int held[32];
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    if (threadIdx.x == 0) init(&bar, 32);
    __syncthreads();
    cuda::memcpy_async(held + threadIdx.x, y + threadIdx.x, sizeof(int), bar);
    bar.arrive_and_wait();
    const auto part = cg::labeled_partition(cg::coalesced_threads(), threadIdx.x % 3);
    unsigned cluster;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
    __syncwarp();
    y[threadIdx.x] = 100 * held[31 - threadIdx.x] + 10 * static_cast<int>(part.size() == 11) + static_cast<int>(cluster);
    cg::invoke_one(part, [&] { y[threadIdx.x] += 7; });
}
"""


def one(kernel: str, *arguments: tuple[object, str], y: torch.Tensor | None = None, source: str = MODERN) -> tuple[simt.Finding, ...]:
    y = torch.zeros(32, dtype=torch.int32) if y is None else y
    return simt.simulate(source, kernel, {"y": y}, grid=(1,), block=(32,), arguments=[*arguments, ("y", "ptr")]).findings


@compiled
@pytest.mark.parametrize(
    ("kernel", "line", "says"),
    [
        ("maps", 8, "cp.async.bulk.prefetch.tensor.2d.L2.global.tile: of cp the simulator does not know .bulk"), ("texture", 10, "tex2D: textures"),
        ("video", 11, "__vadd4: SIMD within a word"), ("reduced", 13, "red.async.relaxed.cluster.global.add.u32: of red the simulator does not know .async"),
        ("sparse", 17, "of mma the simulator does not know these modifiers together"), ("children", 22, "a launch <<<...>>> by a kernel (dynamic parallelism)"),
        ("special", 24, "mov.u32 of the special register %pm0: the simulator does not know it"),
    ],
)
def test_what_is_not_simulated_is_said_in_a_sentence_at_its_line(kernel: str, line: int, says: str) -> None:
    first = {"maps": [(bytes(128), "struct")], "texture": [(0, "u64")]}.get(kernel, [])
    (found,) = one(kernel, *first)
    assert (found.kind, found.line) == ("not-simulated", line)
    assert says in found.message


@compiled
def test_groups_by_label_one_of_a_group_and_copies_with_a_barrier_work() -> None:
    y = torch.arange(32, dtype=torch.int32)
    assert not one("works", y=y)
    assert y.tolist() == [100 * (31 - t) + 10 * (t % 3 < 2) + 7 * (t < 3) for t in range(32)]


@compiled
def test_a_name_that_nobody_declares_is_one_line() -> None:
    with pytest.raises(CompileError, match=r"^kernel\.cu:2: '__vfrobnicate4' is declared neither by the source nor by what the simulator knows of CUDA$"):
        one("k", source="__global__ void k(unsigned* y) {\n    y[0] = __vfrobnicate4(1u, 2u);\n}\n")
    with pytest.raises(CompileError, match=r"^kernel\.cu:4: 'cub' is declared neither .* \(no header <cub/cub\.cuh> is here\)$"):
        one("k", source="#include <vector>\n#include <cub/cub.cuh>\n__global__ void k(unsigned* y) {\n    y[0] = cub::Sum()(1, 2);\n}\n")


# -- clusters and cooperative launches ----------------------------------------------------------------------------------


@compiled
def test_clusters_are_as_the_source_says() -> None:
    source = """#include <cooperative_groups.h>
__global__ void __cluster_dims__(4, 1, 1) k(unsigned* y) {
    if (threadIdx.x == 0) y[blockIdx.x] = 10 * cooperative_groups::this_cluster().num_blocks() + cooperative_groups::this_cluster().block_rank();
}
"""
    y = torch.zeros(8, dtype=torch.int32)
    arguments = [("y", "ptr")]
    assert not simt.simulate(source, "k", {"y": y}, grid=(8,), block=(32,), arguments=arguments).findings
    assert y.tolist() == [40, 41, 42, 43] * 2
    with pytest.raises(simt.LaunchError, match=r"a cluster of \(4, 1, 1\) in a grid of \(6, 1, 1\)"):
        simt.simulate(source, "k", {"y": y}, grid=(6,), block=(32,), arguments=arguments)
    with pytest.raises(simt.LaunchError, match=r"launched with a cluster of \(2, 1, 1\); its source says __cluster_dims__\(4, 1, 1\)"):
        simt.simulate(source, "k", {"y": y}, grid=(8,), block=(32,), cluster=(2,), arguments=arguments)


@compiled
def test_the_shared_memory_of_many_blocks_of_a_cooperative_launch_is_told_apart() -> None:
    source = """#include <cooperative_groups.h>
__global__ void k(unsigned* y) {
    __shared__ unsigned held[64];
    unsigned v;
    held[threadIdx.x] = blockIdx.x;
    cooperative_groups::this_grid().sync();
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(static_cast<unsigned>(__cvta_generic_to_shared(held + (threadIdx.x + 40) % 64))));
    if (threadIdx.x == 0) y[blockIdx.x] = v;
}
"""
    y = torch.zeros(300, dtype=torch.int32)
    report = simt.simulate(source, "k", {"y": y}, grid=(300,), block=(64,), arguments=[("y", "ptr")], cooperative=True)
    assert not report.findings
    assert y.tolist() == list(range(300))


# -- code of the host's -------------------------------------------------------------------------------------------------


@compiled
def test_what_the_host_would_run_first_is_never_run(tmp_path: object) -> None:
    source = f"""#include <cstdlib>
static int ran = system("touch {tmp_path}/ran");
static int crashes = *static_cast<int*>(nullptr);
struct Loud {{ Loud() {{ abort(); }} }} loud;
__global__ void k(unsigned* y) {{ y[threadIdx.x] = threadIdx.x; }}
"""
    assert not one("k", source=source)
    assert not list(tmp_path.iterdir())  # type: ignore[attr-defined]
