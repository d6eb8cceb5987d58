"""Facts of real cubins, compiled here by NVRTC and by Triton: against the compiler's own report, by hand, and between tools."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rooftop.core.compile import ToolchainError, cuda_include
from rooftop.lab.inspect import binary
from rooftop.lab.inspect.binary import BinaryError, Facts, unmet

TARGETS = ("sm_80", "sm_89", "sm_90a")

SOURCE = r"""
extern "C" __global__ void vector4(int n, float a, const float4* __restrict__ x, float4* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 v = x[i], w = y[i];
        w.x += a * v.x; w.y += a * v.y; w.z += a * v.z; w.w += a * v.w;
        y[i] = w;
    }
}
extern "C" __global__ void widths(const char* a, const short* b, const int* c, const float2* d, float* y) {
    int i = threadIdx.x;
    y[i] = a[i] + b[i] + c[i] + d[i].x * d[i].y;
}
template <int N> __device__ void many_registers(const float* x, float* y, int n) {
    float r[N];
#pragma unroll
    for (int i = 0; i < N; i++) r[i] = x[threadIdx.x + i * n];
    for (int k = 0; k < n; k++) {
#pragma unroll
        for (int i = 0; i < N; i++) r[i] = r[i] * r[(i * 7 + 3) % N] + x[k];
    }
#pragma unroll
    for (int i = 0; i < N; i++) y[threadIdx.x + i * n] = r[i];
}
extern "C" __global__ void spills(const float* x, float* y, int n) { many_registers<300>(x, y, n); }
extern "C" __global__ void array(const float* x, float* y, const int* at, int n) {
    float a[200];
    for (int k = 0; k < 200; k++) a[k] = 0;
    for (int j = 0; j < n; j++) a[at[j]] += x[j];
    float s = 0;
    for (int k = 0; k < 200; k++) s += a[k] * k;
    y[threadIdx.x] = s;
}
template <int T> __global__ void tile(const float* A, const float* B, float* C, int N) {
    __shared__ float a[T][T], b[T][T];
    int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * T + ty, col = blockIdx.x * T + tx;
    float acc = 0;
#pragma unroll 1
    for (int k = 0; k < N; k += T) {
        a[ty][tx] = A[row * N + k + tx];
        b[ty][tx] = B[(k + ty) * N + col];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < T; ++i) acc += a[ty][i] * b[i][tx];
        __syncthreads();
    }
    C[row * N + col] = acc;
}
template __global__ void tile<16>(const float*, const float*, float*, int);
extern "C" __global__ void nested(const float* A, const float* B, float* C, int M, int N, int K) {
#pragma unroll 1
    for (int m = blockIdx.x; m < M; m += gridDim.x) {
        float s[8] = {};
#pragma unroll 1
        for (int k = 0; k < K; k++) {
            float a = A[m * K + k];
#pragma unroll
            for (int i = 0; i < 8; i++) s[i] += a * B[k * N + threadIdx.x + i * 32];
        }
#pragma unroll
        for (int i = 0; i < 8; i++) C[m * N + threadIdx.x + i * 32] = s[i] * s[i] * 3.0f + 1.0f;
    }
}
extern "C" __global__ void dynamic(const float* x, float* y) {
    extern __shared__ float s[];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void aligned(const float4* x, float4* y) {
    __shared__ __align__(2048) float4 s[64];
    __shared__ float t[3];
    s[threadIdx.x] = x[threadIdx.x];
    t[threadIdx.x % 3] = 1;
    __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];
    y[0].x = t[threadIdx.x & 1];
}
extern "C" __global__ void reduce(const float* x, float* y) {
    float s = __expf(x[threadIdx.x]);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
    if (threadIdx.x == 0) atomicAdd(y, s);
}
extern "C" __global__ void async(const float4* x, float4* y) {
    __shared__ float4 s[64];
    unsigned to = __cvta_generic_to_shared(&s[threadIdx.x]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\ncp.async.wait_all;" ::"r"(to), "l"(x + threadIdx.x) : "memory");
    __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];
}
extern "C" __global__ void wait(volatile int* flag, float* y) {
    while (*flag == 0) {}
    y[threadIdx.x] = 1;
}
__constant__ float table[64];
extern "C" __global__ void constants(float* y, int i) { y[threadIdx.x] = table[i]; }
"""

HOPPER = r"""
extern "C" __global__ void __launch_bounds__(128) wgmma(float* o, unsigned long long a, unsigned long long b, int n) {
    float d[4] = {};
    for (int k = 0; k < n; k++)
        asm volatile("wgmma.fence.sync.aligned;\n"
                     "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;\n"
                     "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a + k), "l"(b + k));
    for (int i = 0; i < 4; i++) o[threadIdx.x * 4 + i] = d[i];
}
extern "C" __global__ void tma(const void* map, float* o) {
    __shared__ __align__(128) float s[1024];
    __shared__ unsigned long long bar;
    unsigned to = __cvta_generic_to_shared(s), b = __cvta_generic_to_shared(&bar);
    if (threadIdx.x == 0)
        asm volatile("mbarrier.init.shared.b64 [%1], 1;\n"
                     "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%2, {%3, %3}], [%1];"
                     ::"r"(to), "r"(b), "l"(map), "r"(0) : "memory");
    __syncthreads();
    o[threadIdx.x] = s[threadIdx.x];
}
"""


@cache
def compiled(source: str, target: str) -> tuple[bytes, str]:
    """The cubin and what the assembler says of it (`-v`)."""
    core = pytest.importorskip("cuda.core")
    try:
        include = list(cuda_include())
    except ToolchainError as error:
        pytest.skip(str(error))
    log = io.StringIO()
    options = core.ProgramOptions(arch=target, std="c++17", include_path=include, ptxas_options=["-v"])
    return bytes(core.Program(source, "c++", options).compile("cubin", logs=log).code), log.getvalue()


def reported(log: str) -> dict[str, dict[str, int]]:
    """Kernel to registers, stack, spilled and shared bytes, as the assembler reports them."""
    out = {}
    for part in log.split("Compiling entry function '")[1:]:
        found = {"smem": 0} | {what: int(n) for n, what in re.findall(r"(\d+) bytes (stack frame|spill stores|spill loads|smem)", part)}
        registers = re.search(r"Used (\d+) registers", part)
        assert registers
        out[part.split("'")[0]] = found | {"registers": int(registers[1])}
    return out


@pytest.fixture(scope="module", params=TARGETS)
def cubin(request: pytest.FixtureRequest) -> tuple[str, bytes, dict[str, dict[str, int]]]:
    code, log = compiled(SOURCE, request.param)
    return request.param, code, reported(log)


@pytest.fixture(scope="module")
def found(cubin: tuple[str, bytes, Any]) -> dict[str, Facts]:
    return binary.all_facts(cubin[1])


@pytest.fixture(scope="module")
def hopper() -> dict[str, Facts]:
    return binary.all_facts(compiled(HOPPER, "sm_90a")[0])


TILE = "_Z4tileILi16EEvPKfS1_Pfi"


def loop(facts: Facts) -> binary.Loop:
    assert facts.loop is not None
    return facts.loop


@pytest.mark.sampled("slow")
def test_against_the_assemblers_report(cubin: tuple[str, bytes, dict[str, dict[str, int]]], found: dict[str, Facts]) -> None:
    target, _, report = cubin
    assert set(found) == set(report) and len(found) == 12
    for name, facts in found.items():
        said = report[name]
        assert facts.kernel == name and facts.arch == int(target[3:5])
        assert (facts.registers, facts.stack, facts.shared) == (said["registers"], said["stack frame"], said["smem"]), name
        if name != "array":  # an array in local memory is written and read too, and is no spill to the assembler
            assert (facts.spill_stores, facts.spill_loads) == (said["spill stores"], said["spill loads"]), name
    assert found["spills"].spill_stores > 0 and found["spills"].registers == 255
    assert found[TILE].shared == 2048 and 1036 <= found["aligned"].shared <= 1040
    assert found["dynamic"].shared == found["vector4"].shared == 0


def test_a_vector_kernel(found: dict[str, Facts]) -> None:
    facts = found["vector4"]
    assert {k: v for k, v in facts.counts.items() if k[:3] in ("LDG", "STG")} == {"LDG.128": 2, "STG.128": 1}
    assert facts.counts["FFMA"] == 4
    assert not {"FMUL", "FADD", "HFMA2", "BAR", "BRA", "LDS.32", "LDL.32"} & set(facts.counts)
    assert facts.loop is None


def test_widths(found: dict[str, Facts]) -> None:
    loads = {k: v for k, v in found["widths"].counts.items() if k.startswith("LDG")}
    assert loads == {"LDG.8": 1, "LDG.16": 1, "LDG.32": 1, "LDG.64": 1}


def test_a_tile_loop(found: dict[str, Facts]) -> None:
    facts = found[TILE]
    body = loop(facts)
    # Not unrolled: two loads of the tile, two stores, 16 FMAs, of a's row 4 x 4 floats and of b's column 16.
    wanted = {"FFMA": 16, "LDG.32": 2, "STS.32": 2, "BAR": 2, "LDS.128": 4, "LDS.32": 16, "BRA": 1}
    assert body.counts == wanted
    assert body.depth == 1 and 0 < body.start < body.end < 16 * facts.instructions + 16
    assert facts.counts == wanted | {"STG.32": 1, "BRA": facts.counts["BRA"]}
    assert body.share("FFMA") == 16 / body.instructions
    assert 0.2 < body.share("FFMA") < 0.5 and body.share("LDS") == 20 / body.instructions


def test_the_inner_loop_is_the_hot_one(found: dict[str, Facts]) -> None:
    body = loop(found["nested"])
    assert body.depth == 2
    assert body.counts["FFMA"] == 8 and body.counts["LDG.32"] == 9
    assert "STG.32" not in body.counts and found["nested"].counts["STG.32"] >= 8


def test_local_memory(found: dict[str, Facts]) -> None:
    assert found["array"].stack == 800
    assert found["array"].spill_stores >= 800 and found["array"].counts["LDL.32"] > 0
    spills = loop(found["spills"])
    assert spills.counts["FFMA"] == 300 and spills.counts["LDL.32"] > 0 and spills.counts["STL.32"] > 0


def test_other_families(found: dict[str, Facts]) -> None:
    assert {k: found["reduce"].counts[k] for k in ("SHFL", "MUFU", "RED")} == {"SHFL": 5, "MUFU": 1, "RED": 1}
    assert found["async"].counts["LDGSTS.128"] == 1 and "STS.128" not in found["async"].counts
    assert found["constants"].constant > 0


def test_a_wait_is_no_hot_loop(found: dict[str, Facts]) -> None:
    assert found["wait"].counts["BRA"] >= 1
    assert not {"FFMA", "FADD", "MUFU"} & set(found["wait"].counts)
    # It loads and nothing else: the only loop there is.
    assert loop(found["wait"]).counts == {"BRA": 1, next(k for k in found["wait"].counts if k.startswith("LD")): 1}


def test_hopper(hopper: dict[str, Facts]) -> None:
    body = loop(hopper["wgmma"])
    assert body.counts["HGMMA"] >= 1 and hopper["wgmma"].stack == 0
    assert hopper["tma"].counts["UTMALDG"] == 1 and hopper["tma"].counts["SYNCS"] >= 1
    assert hopper["tma"].shared == 4096 + 8
    assert unmet(hopper["tma"], {"has": ["UTMALDG.2D"], "lacks": ["LDG"]}) == []


def test_static_shared_memory_alone(cubin: tuple[str, bytes, Any], found: dict[str, Facts]) -> None:
    assert binary.static_shared(cubin[1], next(iter(found.values())).arch) == {name: f.shared for name, f in found.items()}
    assert any(f.shared for f in found.values())


def test_json(found: dict[str, Facts]) -> None:
    for facts in found.values():
        text = json.dumps(facts.to_json())
        assert Facts.from_json(json.loads(text)) == facts
    with pytest.raises(KeyError):
        Facts.from_json({"loop": None})


def test_demands(found: dict[str, Facts]) -> None:
    vector, spills = found["vector4"], found["spills"]
    assert unmet(vector, {}) == unmet(vector, {"has": ["LDG.E.128", "FFMA"], "lacks": ["LDG.E.64", "LDS"], "spills": 0}) == []
    (missing,) = unmet(vector, {"has": ["LDG.E.64"]})
    assert "no LDG.E.64" in missing and "LDG.E.128" in missing
    (unwanted,) = unmet(vector, {"lacks": ["LDG.E.128"]})
    assert "must not have LDG.E.128, and has 2" in unwanted
    (spilled,) = unmet(spills, {"has": ["FFMA"]})
    assert f"uses {spills.stack} bytes of local memory" in spilled
    assert unmet(spills, {"spills": spills.stack}) == []
    assert len(unmet(spills, {"spills": spills.stack - 1})) == 1
    with pytest.raises(ValueError, match="unknown have"):
        unmet(vector, {"have": ["FFMA"]})


TWO = """
extern "C" __global__ void twice(float* y) { y[threadIdx.x] *= 2.0f; }
template <int N> __global__ void add(float4* y) { y[threadIdx.x].x += N; }
template __global__ void add<3>(float4*);
"""


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("target", TARGETS)
def test_choosing_a_kernel(target: str) -> None:
    code, _ = compiled(TWO, target)
    arch = int(target[3:5])
    both = binary.all_facts(code)
    assert set(both) == {"twice", "_Z3addILi3EEvP6float4"}
    assert binary.facts(code, "twice", arch) == both["twice"]
    with pytest.raises(BinaryError, match=r"2 kernels \(.*twice.*: say which"):
        binary.facts(code)
    with pytest.raises(BinaryError, match=r"no kernel 'add'.*_Z3add"):
        binary.facts(code, "add")
    with pytest.raises(BinaryError, match=f"for sm_{arch}, not sm_86"):
        binary.facts(code, "twice", 86)


def test_listing() -> None:
    code, _ = compiled(TWO, "sm_90a")
    text = binary.sass(code, "twice")
    assert "STG.E" in text and ".text.twice:" in text and "_Z3add" not in text
    assert ".text.twice:" in binary.sass(code) and ".text._Z3add" in binary.sass(code)
    with pytest.raises(BinaryError, match="no kernel 'add'"):
        binary.sass(code, "add")


def test_one_kernel_needs_no_name() -> None:
    code, _ = compiled('extern "C" __global__ void only(float* y) { y[threadIdx.x] = 2.0f; }', "sm_80")
    assert binary.facts(code).kernel == "only"


def test_the_tools_agree(cubin: tuple[str, bytes, Any], found: dict[str, Facts], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cuobjdump and nvdisasm that is installed says the same of these kernels."""
    pairs = list(zip(binary._candidates("cuobjdump"), binary._candidates("nvdisasm"), strict=False))
    if len(pairs) < 2:
        pytest.skip("only one set of tools is installed")
    for dump, disassemble in pairs[1:]:
        paths = {"cuobjdump": dump, "nvdisasm": disassemble}
        monkeypatch.setattr(binary, "_candidates", lambda name, paths=paths: iter([paths[name]]))
        assert binary.all_facts(cubin[1]) == found, paths


def test_no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binary, "_candidates", lambda name: iter(()))
    with pytest.raises(ToolchainError, match="pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"):
        binary.facts(b"\x7fELF")


def test_a_tool_that_fails_hands_on_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    code, _ = compiled(TWO, "sm_80")
    wanted = binary.all_facts(code)
    real = {name: binary.tool(name) for name in ("cuobjdump", "nvdisasm")}
    monkeypatch.setattr(binary, "_candidates", lambda name: iter([Path("/bin/false"), real[name]]))
    assert binary.all_facts(code) == wanted


@pytest.mark.parametrize("code", [b"", b"// .version 8.5 PTX", b"\x7fELF" + bytes(60), b"\x7fELF" + bytes(range(256)) * 8])
def test_not_a_cubin(code: bytes) -> None:
    with pytest.raises(BinaryError, match=r"not a cubin|cannot be read"):
        binary.facts(code)


TRITON = """
import sys
from pathlib import Path
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def matmul(A, B, C, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.arange(0, BM); n = tl.arange(0, BN); k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, K, BK):
        a = tl.load(A + m[:, None] * BK + k[None, :] + i * BM)
        b = tl.load(B + k[:, None] * BN + n[None, :] + i * BN)
        acc = tl.dot(a, b, acc)
    tl.store(C + m[:, None] * BN + n[None, :], acc)

types = dict(A="*bf16", B="*bf16", C="*fp32", K="i32", BM="constexpr", BN="constexpr", BK="constexpr")
sizes = {(4,): 64, (5,): 64, (6,): 32}
aligned = {(i,): [["tt.divisibility", 16]] for i in range(4)}
for arch in (80, 90):
    source = ASTSource(fn=matmul, signature=types, constexprs=sizes, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=dict(num_warps=4))
    Path(sys.argv[1], f"{arch}.cubin").write_bytes(made.asm["cubin"])
"""


def test_triton(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "kernel.py").write_text(TRITON)
    # A process of its own: the interpreter may be switched on in this one.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_")} | {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "kernel.py", str(tmp_path)], cwd=tmp_path, env=environment, check=True)
    ampere, hopper = (binary.facts((tmp_path / f"{arch}.cubin").read_bytes(), "matmul", arch) for arch in (80, 90))
    assert loop(ampere).counts["HMMA"] > 0 and "HGMMA" not in ampere.counts
    assert loop(hopper).counts["HGMMA"] > 0 and "HMMA" not in hopper.counts
    assert ampere.shared == hopper.shared == 0  # Triton asks for all of it at launch
    assert unmet(hopper, {"has": ["HGMMA"], "lacks": ["HMMA"]}) == []
    assert unmet(replace(hopper, stack=8), {"has": ["HGMMA"]}) != []
