"""Inline PTX in the simulator: each instruction does what NVIDIA's PTX ISA says of it."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from rooftop.core.spec import Launch
from rooftop.lab import simt
from rooftop.lab.simt import translate
from rooftop.lab.simt.tokens import tokenise

pytestmark = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))

SOURCE = r"""
#include <cuda_fp16.h>
__device__ unsigned shared_of(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

__global__ void moves(const float4* x, float4* y, unsigned* out) {
    const unsigned t = threadIdx.x;
    float4 v;
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(x + t));
    asm volatile("st.global.v4.f32 [%0 + 16], {%1, %2, %3, %4};" :: "l"(y + t - 1), "f"(v.w), "f"(v.z), "f"(v.y), "f"(v.x) : "memory");
    unsigned packed, low, high, id;
    unsigned short a = static_cast<unsigned short>(t * 3), b = 7, c, d;
    asm("mov.b32 %0, {%1, %2};" : "=r"(packed) : "h"(a), "h"(b));
    asm("mov.b32 {%0, %1}, %2;" : "=h"(c), "=h"(d) : "r"(packed + 1));
    asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "d"(1.0));
    asm("mov.u32 %0, %%laneid;" : "=r"(id));
    out[t] = packed, out[32 + t] = c * 1000u + d, out[64 + t] = high ^ low, out[96 + t] = id;
}
__global__ void integers(unsigned* out, long long* wide) {
    const unsigned t = threadIdx.x, v = t * 0x01234567u;
    unsigned hi, field, put, turned, chosen, counted;
    long long product;
    asm("mul.hi.u32 %0, %1, %2;" : "=r"(hi) : "r"(v), "r"(0x10001u));
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(product) : "r"(-static_cast<int>(t)), "r"(1 << 30), "l"(5ll));
    asm("bfe.u32 %0, %1, 5, 9;" : "=r"(field) : "r"(v));
    asm("bfi.b32 %0, %1, %2, 8, 4;" : "=r"(put) : "r"(t), "r"(0xffffffffu));
    asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(turned) : "r"(v), "r"(~v), "r"(t));
    asm("{ .reg .pred p, q; setp.lt.u32 p, %1, 20; setp.ge.and.u32 q, %1, 10, p; selp.b32 %0, 1, 2, q; }" : "=r"(chosen) : "r"(t));
    asm("{ .reg .pred p; setp.eq.u32 p, %1, 3; mov.u32 %0, 5; @p mov.u32 %0, 6; @!p add.u32 %0, %0, %1; }" : "=r"(counted) : "r"(t));
    wide[t] = product;
    out[t] = hi, out[32 + t] = field, out[64 + t] = put, out[96 + t] = turned, out[128 + t] = chosen, out[160 + t] = counted;
}
__global__ void floats(float* out, unsigned* halves) {
    const float t = threadIdx.x;
    float a, b, c, e;
    int n;
    unsigned two, up;
    asm("fma.rn.f32 %0, %1, %2, 0f3F800000;" : "=f"(a) : "f"(t), "f"(0.5f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(b) : "f"(t + 1));
    asm("max.f32 %0, %1, %2;" : "=f"(c) : "f"(t), "f"(9.5f));
    asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(n) : "f"(-t * 0.7f));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(t), "f"(-t));
    asm("ex2.approx.f16x2 %0, %1;" : "=r"(up) : "r"(two & 0x00007fffu));
    asm("cvt.rna.tf32.f32 %0, %1;" : "=f"(e) : "f"(1.0f + t * 0.00048828125f));
    const int i = threadIdx.x;
    out[i] = a, out[32 + i] = b, out[64 + i] = c, out[96 + i] = static_cast<float>(n), out[128 + i] = e;
    halves[i] = two, halves[32 + i] = up;
}
__global__ void lanes(int* out) {
    const int t = threadIdx.x;
    int moved, sum;
    unsigned votes, inside;
    asm volatile("{ .reg .pred p; shfl.sync.down.b32 %0|p, %2, 4, 0x1f, 0xffffffff; selp.u32 %1, 1, 0, p; }" : "=r"(moved), "=r"(inside) : "r"(t));
    asm volatile("{ .reg .pred p; setp.lt.s32 p, %1, 5; vote.sync.ballot.b32 %0, p, 0xffffffff; }" : "=r"(votes) : "r"(t));
    asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(sum) : "r"(t - 3));
    out[t] = moved, out[32 + t] = static_cast<int>(inside), out[64 + t] = static_cast<int>(votes), out[96 + t] = sum;
}
__global__ void memory(const float* x, unsigned* counter, float* out) {
    __shared__ alignas(16) float held[128];
    const int t = threadIdx.x;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(shared_of(held + 4 * t)), "l"(x + 4 * t));
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 0;");
    asm volatile("bar.warp.sync 0xffffffff;");
    float v;
    asm volatile("ld.shared.f32 %0, [%1 + 8];" : "=f"(v) : "r"(shared_of(held + 4 * (31 - t))));
    out[t] = v;
    unsigned old;
    asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(counter), "r"(2u));
    asm volatile("red.global.max.u32 [%0], %1;" :: "l"(counter + 1), "r"(old));
}
__global__ void handed_over(float* out) {      // one warp fills, the other waits at an mbarrier, twice
    __shared__ alignas(8) unsigned long long bar;
    __shared__ float box[32];
    const unsigned at = shared_of(&bar);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" :: "r"(at));
    __syncthreads();
    for (int round = 0; round < 2; ++round) {
        if (threadIdx.x < 32) {
            box[threadIdx.x] = threadIdx.x + 100.0f * round;
            asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }" :: "r"(at) : "memory");
        } else {
            asm volatile("{\n.reg .pred p;\nAGAIN:\n"
                         "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(at), "r"(round & 1) : "memory");
            out[32 * round + threadIdx.x - 32] = box[63 - threadIdx.x];
        }
        __syncthreads();
    }
}
__global__ void turned(const unsigned* x, unsigned* out) {   // an 8 x 8 matrix of 16 bits through stmatrix and ldmatrix.trans, and by movmatrix
    __shared__ alignas(16) unsigned short tile[8][8];
    const int t = threadIdx.x;
    const unsigned row = shared_of(&tile[t % 8][0]);
    unsigned v = x[t], back, moved;
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" :: "r"(row), "r"(v) : "memory");
    __syncwarp();
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(back) : "r"(row) : "memory");
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(moved) : "r"(v));   // the same without shared memory
    out[t] = moved == back ? back : ~back;
}
__global__ void neighbours(unsigned* out) {     // st.shared::cluster into the other block
    __shared__ unsigned box;
    unsigned rank, remote;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_of(&box)), "r"(rank ^ 1));
    if (threadIdx.x == 0) asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(remote), "r"(rank + 40) : "memory");
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (threadIdx.x == 0) out[blockIdx.x] = box;
}
"""


@cache
def ran() -> tuple[dict[str, torch.Tensor], simt.Report]:
    i32, i64 = torch.int32, torch.int64
    memory = {
        "x": torch.arange(128, dtype=torch.float32), "y": torch.zeros(128), "m": torch.zeros(128, dtype=i32), "i": torch.zeros(192, dtype=i32),
        "w": torch.zeros(32, dtype=i64), "f": torch.zeros(160), "h": torch.zeros(64, dtype=i32), "l": torch.zeros(128, dtype=i32),
        "c": torch.zeros(2, dtype=i32), "o": torch.zeros(32), "b": torch.zeros(64), "t": torch.arange(32, dtype=i32) * 131073 + 65536,
        "u": torch.zeros(32, dtype=i32), "n": torch.zeros(4, dtype=i32),
    }

    def launch(kernel: str, *names: str, grid: int = 1, block: int = 32, cluster: int = 1) -> Launch:
        return Launch(kernel, (grid,), {n: n for n in names}, types=("ptr",) * len(names), block=(block,), cluster=(cluster,))

    launches = [
        launch("moves", "x", "y", "m"), launch("integers", "i", "w"), launch("floats", "f", "h"), launch("lanes", "l"), launch("memory", "x", "c", "o"),
        launch("handed_over", "b", block=64), launch("turned", "t", "u"), launch("neighbours", "n", grid=4, cluster=2),
    ]
    return memory, simt.run_launches(SOURCE, "ptx.cu", launches, memory, seed=5)


def words(name: str) -> list[int]:
    return [v & 0xFFFFFFFF for v in ran()[0][name].tolist()]


def test_none_of_it_is_a_fault() -> None:
    assert not ran()[1].findings, "\n".join(map(str, ran()[1].findings))


def test_loads_stores_and_moves() -> None:
    memory, _ = ran()
    assert torch.equal(memory["y"].view(32, 4), memory["x"].view(32, 4).flip(1))
    m = words("m")
    assert m[:32] == [7 << 16 | 3 * t for t in range(32)]
    assert m[32:64] == [(3 * t + 1) * 1000 + 7 for t in range(32)]
    assert m[64:96] == [0x3FF00000] * 32
    assert m[96:] == list(range(32))


def test_whole_numbers_and_predicates() -> None:
    i = words("i")
    for t in range(32):
        v = t * 0x01234567 & 0xFFFFFFFF
        n = ~v & 0xFFFFFFFF
        assert i[t] == v * 0x10001 >> 32
        assert i[32 + t] == v >> 5 & 511
        assert i[64 + t] == (0xFFFFF0FF | (t & 15) << 8)
        assert i[96 + t] == ((n << 32 | v) >> t) & 0xFFFFFFFF
        assert i[128 + t] == (1 if 10 <= t < 20 else 2)
        assert i[160 + t] == (6 if t == 3 else 5 + t)
    assert ran()[0]["w"].tolist() == [-t * (1 << 30) + 5 for t in range(32)]


def test_floats_and_halves() -> None:
    f, t = ran()[0]["f"].view(5, 32), torch.arange(32, dtype=torch.float32)
    assert torch.equal(f[0], t * 0.5 + 1)
    assert torch.allclose(f[1], 1 / (t + 1))
    assert torch.equal(f[2], t.clamp(min=9.5))
    assert torch.equal(f[3], (-t * 0.7).trunc() + 0.0)
    assert torch.equal(f[4], 1 + torch.floor(t / 2 + 0.5) * 2.0**-10)
    halves = ran()[0]["h"].view(torch.float16).view(2, 32, 2).float()
    assert torch.equal(halves[0], torch.stack((-t, t), 1))
    assert torch.equal(halves[1], torch.stack((torch.exp2(t).half().float(), torch.ones(32)), 1))


def test_lanes() -> None:
    got = ran()[0]["l"].view(4, 32)
    assert got[0].tolist() == [t + 4 if t < 28 else t for t in range(32)]
    assert got[1].tolist() == [int(t < 28) for t in range(32)]
    assert got[2].tolist() == [31] * 32
    assert got[3].tolist() == [sum(range(32)) - 96] * 32


def test_copies_atomics_and_barriers() -> None:
    memory, _ = ran()
    assert memory["o"].tolist() == [4 * (31 - t) + 2 for t in range(32)]
    assert memory["c"].tolist() == [64, 62]
    assert memory["b"].tolist() == [31.0 - t + 100 * r for r in range(2) for t in range(32)]


def test_matrices_and_clusters() -> None:
    memory, _ = ran()
    tile = memory["t"].view(torch.int16).view(8, 8)
    assert torch.equal(memory["u"].view(torch.int16).view(8, 8), tile.T)
    assert memory["n"].tolist() == [41, 40] * 2


SPARSE = r"""
__global__ void product(const unsigned* a, const unsigned* b, const unsigned* meta, float* out) {   // a lane's words of A and B one after the other
    const int t = threadIdx.x;
    float c[4] = {0, 1, 2, 3};
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.TYPE.TYPE.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9, %10, %11}, "
                 "{%0, %1, %2, %3}, %12, SELECTOR;" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[4 * t]), "r"(a[4 * t + 1]), "r"(a[4 * t + 2]), "r"(a[4 * t + 3]), "r"(b[4 * t]), "r"(b[4 * t + 1]), "r"(b[4 * t + 2]),
                   "r"(b[4 * t + 3]), "r"(meta[t]));
    for (int i = 0; i < 4; ++i) out[(t / 4 + 8 * (i / 2)) * 8 + t % 4 * 2 + i % 2] = c[i];
}
"""


@pytest.mark.parametrize("selector", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_sparse_product_is_the_dense_one(dtype: torch.dtype, selector: int) -> None:
    """Fragments and metadata as the PTX ISA lays them out: two of four columns are kept, and lane 4 g + 2 selector + h has the places of half a row."""
    draw = torch.Generator().manual_seed(selector)
    b = torch.randn(32, 8, generator=draw).to(dtype)
    dense, kept, meta = torch.zeros(16, 32, dtype=dtype), torch.randn(16, 16, generator=draw).to(dtype), [0xFFFF0000] * 32  # other lanes': not looked at
    for lane in range(32):
        meta[lane] = 0 if lane % 4 // 2 == selector else meta[lane]
    for row in range(16):
        for group in range(8):
            low, high = sorted(torch.randperm(4, generator=draw)[:2].tolist())
            dense[row, 4 * group + low], dense[row, 4 * group + high] = kept[row, 2 * group], kept[row, 2 * group + 1]
            meta[row % 8 * 4 + 2 * selector + group // 4] |= (high << 2 | low) << 16 * (row // 8) + 4 * (group % 4)
    lanes = [(lane // 4, 2 * (lane % 4)) for lane in range(32)]
    of_a = torch.stack([kept[g + 8 * (r % 2), t + 8 * (r // 2) : t + 8 * (r // 2) + 2] for g, t in lanes for r in range(4)])
    of_b = torch.stack([b[t + 8 * r : t + 8 * r + 2, g] for g, t in lanes for r in range(4)])
    memory = {
        "a": of_a.contiguous().view(torch.int32).flatten(), "b": of_b.contiguous().view(torch.int32).flatten(),
        "meta": torch.tensor([m - (m >> 31 << 32) for m in meta], dtype=torch.int32), "out": torch.zeros(16, 8),
    }
    source = SPARSE.replace("TYPE", "f16" if dtype == torch.float16 else "bf16").replace("SELECTOR", str(selector))
    report = simt.simulate(source, "product", memory, grid=(1,), block=(32,), arguments=[(n, "ptr") for n in memory])
    assert not report.findings, "\n".join(map(str, report.findings))
    start = torch.tensor([[0.0, 1.0], [2.0, 3.0]]).repeat_interleave(8, 0).repeat(1, 4)
    assert torch.allclose(memory["out"], (dense.double() @ b.double()).float() + start, rtol=1e-6, atol=1e-6)


def test_operands_without_a_comma_between_are_two() -> None:
    """As nvcc takes them."""
    found = list(translate._operands(tokenise('"r"(at + 4 * sizeof(int)) "r"(v.x), "=r" (out[1])')))
    assert found == [("r", "at + 4 * sizeof(int)"), ("r", "v.x"), ("=r", "out[1]")]


def test_special_registers_are_written_with_one_sign_too() -> None:
    source = """__global__ void k(int* y) {
    unsigned lane, m, s;
    asm("mov.u32 %0, %laneid;" : "=r"(lane));
    asm("mov.u32 %0, %%ntid.x;" : "=r"(m));
    asm("mov.u32 %0, %smid;" : "=r"(s));
    y[threadIdx.x] = lane + 100 * m + s;
}
"""
    y = torch.zeros(4, dtype=torch.int32)
    report = simt.simulate(source, "k", {"y": y}, grid=(1,), block=(4,), arguments=[("y", "ptr")])
    assert not report.findings and y.tolist() == [400, 401, 402, 403]
