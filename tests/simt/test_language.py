"""The simulator speaks CUDA C++: each kernel below does one thing of the language, and its result is worked out beside it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from rooftop.core.spec import Launch
from rooftop.lab import simt

pytestmark = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))

SOURCE = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline.h>
#include <math_constants.h>
#include <mma.h>
namespace cg = cooperative_groups;

__constant__ int table[4] = {5, 6, 7, 8};
__device__ unsigned tickets;

__global__ void barriers(int* out) {           // 64 threads: count, and, or over the block
    const int t = threadIdx.x;
    const int count = __syncthreads_count(t % 3 == 0), all = __syncthreads_and(t < 64), any = __syncthreads_or(t == 63);
    out[t] = count * 100 + all * 10 + any;
}
__global__ void votes(unsigned* out) {
    const int lane = threadIdx.x;
    int same;
    out[lane] = __ballot_sync(~0u, lane % 5 == 0);
    out[32 + lane] = __match_any_sync(~0u, lane / 8);
    out[64 + lane] = __match_all_sync(~0u, 3, &same) + same;
    out[96 + lane] = __reduce_add_sync(~0u, static_cast<unsigned>(lane)) * 1000 + __reduce_max_sync(~0u, static_cast<unsigned>(lane));
    if (lane < 8) out[128 + lane] = __ballot_sync(0xffu, lane & 1);
}
__global__ void shuffles(int* out) {
    const int lane = threadIdx.x;
    out[lane] = __shfl_sync(~0u, lane, 5);
    out[32 + lane] = __shfl_up_sync(~0u, lane, 3);
    out[64 + lane] = __shfl_down_sync(~0u, lane, 3, 8);
    out[96 + lane] = __shfl_xor_sync(~0u, lane, 9);
    out[128 + lane] = __shfl_sync(~0u, lane, 2, 8);
}
__global__ void scan(const int* x, int* out) {  // of a block of 256, through shared memory
    __shared__ int sums[8];
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    int v = x[t];
    for (int by = 1; by < 32; by *= 2) {
        const int other = __shfl_up_sync(~0u, v, by);
        if (lane >= by) v += other;
    }
    if (lane == 31) sums[warp] = v;
    __syncthreads();
    for (int w = 0; w < warp; ++w) v += sums[w];
    out[t] = v;
}
__global__ void atomics(int* i, float* f, unsigned long long* u, __half2* h, double* d) {
    atomicAdd(i, 1);
    atomicMax(i + 1, static_cast<int>(threadIdx.x));
    atomicMin(i + 2, -static_cast<int>(threadIdx.x));
    atomicOr(i + 3, 1 << threadIdx.x % 8);
    atomicInc(reinterpret_cast<unsigned*>(i + 4), 6u);
    atomicExch(i + 5, 17);
    atomicAdd(f, 0.5f);
    atomicAdd(u, 1ull << 33);
    atomicAdd(h, __floats2half2_rn(1.0f, 2.0f));
    atomicAdd(d, 0.25);
    int old = i[6], seen;                       // a loop of compare-and-swap: maximum of 3 t mod 101
    const int mine = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * 3 % 101;
    do {
        seen = old;
        if (seen >= mine) break;
        old = atomicCAS(i + 6, seen, mine);
    } while (old != seen);
    if (atomicAdd(&tickets, 1u) == gridDim.x * blockDim.x - 1) i[7] = static_cast<int>(tickets);
}
__global__ void groups(int* out) {
    const auto block = cg::this_thread_block();
    const auto tile = cg::tiled_partition<8>(block);
    const int sum = cg::reduce(tile, static_cast<int>(tile.thread_rank()), cg::plus<int>());
    out[block.thread_rank()] = sum * 100 + tile.meta_group_rank() * 10 + tile.shfl(static_cast<int>(tile.thread_rank()), 3);
    if (threadIdx.x % 2) {
        const auto odd = cg::coalesced_threads();
        if (threadIdx.x < 32) out[64 + threadIdx.x] = static_cast<int>(odd.size());
    }
    block.sync();
}
__global__ void clusters(int* out) {            // each block writes its rank into the shared memory of the next
    __shared__ int box;
    const auto cluster = cg::this_cluster();
    const unsigned rank = cluster.block_rank();
    cluster.sync();
    if (threadIdx.x == 0) *cluster.map_shared_rank(&box, (rank + 1) % cluster.num_blocks()) = static_cast<int>(rank) + 10;
    cluster.sync();
    if (threadIdx.x == 0) out[blockIdx.x] = box;
}
__global__ void copies(const float* x, float* out) {   // three groups of copies, awaited one by one
    __shared__ alignas(16) float held[3][128];
    const int t = threadIdx.x;
    for (int g = 0; g < 3; ++g) {
        __pipeline_memcpy_async(&held[g][t * 4], x + (g * 32 + t) * 4, 16, g == 2 ? 8 : 0);
        __pipeline_commit();
    }
    __pipeline_wait_prior(2);
    __syncthreads();
    out[t] = held[0][127 - t];
    __pipeline_wait_prior(0);
    __syncthreads();
    out[32 + t] = held[1][t] + held[2][t];
}
__global__ void pipelines(const int* x, int* out) {
    __shared__ int held[2][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    const auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    int sum = 0;
    for (int fetch = 0, now = 0; now < 4; ++now) {
        for (; fetch < 4 && fetch < now + 2; ++fetch) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, held[fetch % 2], x + fetch * 64, 64 * sizeof(int), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += held[now % 2][63 - threadIdx.x];
        pipe.consumer_release();
    }
    out[threadIdx.x] = sum;
}
__global__ void barrier_objects(int* out) {     // warp 0 hands a number to warp 1
    __shared__ cuda::barrier<cuda::thread_scope_block> full;
    __shared__ int box;
    if (threadIdx.x == 0) init(&full, 33);
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 7) box = 42;
        __syncwarp();
        if (threadIdx.x == 0) full.arrive();
    } else {
        full.arrive_and_wait();
        out[threadIdx.x - 32] = box;
    }
}
__global__ void named(int* out) {               // bar.sync 1 of two warps of three, and a producer that only arrives
    __shared__ int box[32];
    if (threadIdx.x < 32) {
        box[threadIdx.x] = threadIdx.x * 2;
        asm volatile("bar.arrive 3, 64;");
    } else if (threadIdx.x < 64) {
        asm volatile("bar.sync 3, 64;");
        out[threadIdx.x - 32] = box[63 - threadIdx.x];
    }
}
__global__ void halves(const __half* a, const __nv_bfloat16* b, __half* c, __nv_bfloat16* d) {
    const int i = threadIdx.x;
    const __half2 x = reinterpret_cast<const __half2*>(a)[i];
    reinterpret_cast<__half2*>(c)[i] = __hfma2(x, x, __float2half2_rn(0.5f));
    const __nv_bfloat162 y = reinterpret_cast<const __nv_bfloat162*>(b)[i];
    reinterpret_cast<__nv_bfloat162*>(d)[i] = __hadd2(y, __hmul2(y, y));
}
__global__ void eighths(const float* x, unsigned char* e4, unsigned char* e5, float* back) {
    const int i = threadIdx.x;
    const __nv_fp8_e4m3 a(x[i]);
    const __nv_fp8_e5m2 b(x[i]);
    e4[i] = a.__x, e5[i] = b.__x;
    back[i] = static_cast<float>(a) + static_cast<float>(b);
}
__global__ void bits(unsigned* out, float* f) {
    const unsigned t = threadIdx.x, v = t * 0x9e3779b9u;
    out[t] = __popc(v) + 100 * __clz(static_cast<int>(v)) + 10000 * __ffs(static_cast<int>(v));
    out[32 + t] = __brev(v);
    out[64 + t] = __byte_perm(v, ~v, 0x7150);
    out[96 + t] = __funnelshift_l(v, ~v, t);
    unsigned logic, moved;
    asm("lop3.b32 %0, %1, %2, %3, 0xe8;" : "=r"(logic) : "r"(v), "r"(t * 77u), "r"(~v >> 3));
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(moved) : "r"(v), "r"(t), "r"(0x3210u));
    out[128 + t] = logic;
    out[160 + t] = moved;
    float e;
    asm("{ .reg .f32 half; mul.f32 half, %1, 0f3F000000; ex2.approx.ftz.f32 %0, half; }" : "=f"(e) : "f"(static_cast<float>(t)));
    f[t] = e;
    f[32 + t] = __int2float_rz(16777219) - 16777216.0f + __float2int_rn(2.5f) + __saturatef(1.5f) + __fdividef(1.0f, 4.0f);
    unsigned predicate;
    asm("{\n.reg .pred p;\nsetp.gt.u32 p, %1, 15;\nselp.u32 %0, 7, 9, p;\n}" : "=r"(predicate) : "r"(t));
    f[64 + t] = static_cast<float>(predicate);
}
__global__ void mma_half(const __half* a, const __half* b, float* c) {   // 16 x 16 by 16 x 8, b by columns
    __shared__ alignas(16) __half at[16][16];
    const int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) at[i / 16][i % 16] = a[i];
    __syncwarp();
    unsigned ra[4], rb[2];
    const unsigned row = static_cast<unsigned>(__cvta_generic_to_shared(&at[lane % 16][lane / 16 * 8]));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(row));
    for (int i = 0; i < 2; ++i) rb[i] = *reinterpret_cast<const unsigned*>(b + lane / 4 * 16 + lane % 4 * 2 + 8 * i);
    float d[4] = {1, 1, 1, 1};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
    for (int i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}
__global__ void mma_bytes(const signed char* a, const signed char* b, int* c) {   // 16 x 32 by 32 x 8, b by columns
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    unsigned ra[4], rb[2];
    for (int i = 0; i < 4; ++i) ra[i] = *reinterpret_cast<const unsigned*>(a + (g + i % 2 * 8) * 32 + t * 4 + i / 2 * 16);
    for (int i = 0; i < 2; ++i) rb[i] = *reinterpret_cast<const unsigned*>(b + g * 32 + t * 4 + i * 16);
    int d[4] = {};
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]), "r"(0), "r"(0), "r"(0), "r"(0));
    for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = d[i];
}
__global__ void wmma_product(const __half* a, const __half* b, float* c) {   // 16 x 16 by 16 x 16, b by columns
    using namespace nvcuda;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 2.0f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    for (int i = 0; i < fc.num_elements; ++i) fc.x[i] *= 2;
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
__global__ void dynamic(int n, int* out) {
    extern __shared__ int words[];
    float* const floats = reinterpret_cast<float*>(words + n);
    words[threadIdx.x] = table[threadIdx.x % 4];
    floats[threadIdx.x] = 0.5f * threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = words[n - 1 - threadIdx.x] + static_cast<int>(floats[n - 1 - threadIdx.x]);
    if (threadIdx.x == 0 && blockIdx.x == 0) printf("block of %d: %s\n", n, "hello");
}
__global__ void last_block(const float* x, float* parts, unsigned* counter, float* out) {   // who finishes last adds the parts
    __shared__ bool last;
    float v = x[blockIdx.x * 32 + threadIdx.x];
    for (int by = 16; by; by /= 2) v += __shfl_xor_sync(~0u, v, by);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = v;
        __threadfence();
        last = atomicAdd(counter, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float total = 0;
        for (unsigned i = 0; i < gridDim.x; ++i) total += parts[i];
        *out = total;
    }
}
__global__ void tanhs(const float* x, float* out) {
    const float v = x[threadIdx.x];
    out[threadIdx.x] = tanhf(v) + rsqrtf(1 + v * v) + fminf(v, CUDART_INF_F);
}
"""
P = "ptr"


def launch(kernel: str, *names: str, grid: int = 1, block: int = 32, shared: int = 0, cluster: int = 1, n: int | None = None) -> Launch:
    args: dict[str, Any] = {"n": n} if n is not None else {}
    return Launch(
        kernel, (grid,), {**args, **{name: name for name in names}}, types=(("i32",) if n is not None else ()) + (P,) * len(names), block=(block,),
        shared=shared, cluster=(cluster,),
    )


def numbers(n: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)).to(dtype)


@cache
def ran() -> tuple[dict[str, torch.Tensor], simt.Report]:
    """Everything in one build and one run."""
    i32, f16, bf16, u8 = torch.int32, torch.float16, torch.bfloat16, torch.uint8
    memory = {
        "barriers": torch.zeros(64, dtype=i32), "votes": torch.zeros(160, dtype=i32), "shuffles": torch.zeros(160, dtype=i32),
        "ints": torch.arange(256, dtype=i32) * 7 % 13, "scan": torch.zeros(256, dtype=i32),
        "ai": torch.zeros(8, dtype=i32), "af": torch.zeros(1), "au": torch.zeros(1, dtype=torch.int64),
        "ah": torch.zeros(2, dtype=f16), "ad": torch.zeros(1, dtype=torch.float64), "groups": torch.zeros(96, dtype=i32), "clusters": torch.zeros(8, dtype=i32),
        "x": numbers(384), "copies": torch.zeros(64), "pipelines": torch.zeros(64, dtype=i32), "objects": torch.zeros(32, dtype=i32),
        "named": torch.zeros(32, dtype=i32),
        "h": numbers(64, f16), "b": numbers(64, bf16, 1), "hc": torch.zeros(64, dtype=f16), "bd": torch.zeros(64, dtype=bf16),
        "fx": torch.cat((numbers(96) * 30, torch.tensor([0.0, -0.0, 448, 464, 1e6, -1e6, 2.0**-9, 2.0**-10, 1.5 * 2.0**-9, 57344, 70000, 0.3]))),
        "e4": torch.zeros(108, dtype=u8), "e5": torch.zeros(108, dtype=u8), "back": torch.zeros(108),
        "bits": torch.zeros(192, dtype=i32), "bitsf": torch.zeros(96),
        "ma": numbers(256, f16, 2), "mb": numbers(256, f16, 3), "mc": torch.zeros(128), "wc": torch.zeros(256),
        "sa": torch.randint(-128, 128, (512,), generator=torch.Generator().manual_seed(4)).to(torch.int8), "sc": torch.zeros(128, dtype=i32),
        "sb": torch.randint(-128, 128, (256,), generator=torch.Generator().manual_seed(5)).to(torch.int8), "dynamic": torch.zeros(48, dtype=i32),
        "parts": torch.full((12,), float("nan")), "counter": torch.zeros(1, dtype=i32), "total": torch.zeros(1), "tanhs": torch.zeros(32),
    }
    launches = [
        launch("barriers", "barriers", block=64), launch("votes", "votes"), launch("shuffles", "shuffles"), launch("scan", "ints", "scan", block=256),
        launch("atomics", "ai", "af", "au", "ah", "ad", grid=3, block=64), launch("groups", "groups", block=64),
        launch("clusters", "clusters", grid=8, cluster=4),
        launch("copies", "x", "copies"), launch("pipelines", "ints", "pipelines", block=64), launch("barrier_objects", "objects", block=64),
        launch("named", "named", block=96), launch("halves", "h", "b", "hc", "bd"), launch("eighths", "fx", "e4", "e5", "back", block=108),
        launch("bits", "bits", "bitsf"), launch("mma_half", "ma", "mb", "mc"), launch("mma_bytes", "sa", "sb", "sc"), launch("wmma_product", "ma", "mb", "wc"),
        launch("dynamic", "dynamic", n=48, block=48, shared=48 * 8), launch("last_block", "x", "parts", "counter", "total", grid=12),
        launch("tanhs", "x", "tanhs"),
    ]
    report = simt.run_launches(SOURCE, "language.cu", launches, memory, uninitialised=["parts"], seed=3)
    return memory, report


def result(name: str) -> torch.Tensor:
    return ran()[0][name]


def test_nothing_of_it_is_a_fault() -> None:
    assert not ran()[1].findings, "\n".join(map(str, ran()[1].findings))


def test_printf_is_kept() -> None:
    assert ran()[1].printed == "block of 48: hello\n"


def test_block_barriers_reduce() -> None:
    assert result("barriers").tolist() == [22 * 100 + 11] * 64


def test_votes_matches_and_reductions() -> None:
    got = (result("votes").to(torch.int64) & 0xFFFFFFFF).tolist()
    assert got[:32] == [sum(1 << i for i in range(0, 32, 5))] * 32
    assert got[32:64] == [0xFF << lane // 8 * 8 for lane in range(32)]
    assert got[64:96] == [0] * 32  # the full mask, and one for "all the same"
    assert got[96:128] == [496 * 1000 + 31] * 32
    assert got[128:136] == [0b10101010] * 8


def test_shuffles() -> None:
    got = result("shuffles").tolist()
    assert got[:32] == [5] * 32
    assert got[32:64] == [max(lane - 3, lane if lane < 3 else 0) for lane in range(32)]
    assert got[64:96] == [lane + 3 if lane % 8 + 3 < 8 else lane for lane in range(32)]
    assert got[96:128] == [lane ^ 9 for lane in range(32)]
    assert got[128:160] == [lane // 8 * 8 + 2 for lane in range(32)]


def test_a_scan_through_shared_memory() -> None:
    assert torch.equal(result("scan"), result("ints").cumsum(0).to(torch.int32))


def test_atomics_on_every_type() -> None:
    i = result("ai").tolist()
    assert i == [192, 63, -63, 255, 192 % 7, 17, max(t * 3 % 101 for t in range(192)), 192]
    assert result("af").item() == 96
    assert result("au").item() == 192 << 33
    assert result("ah").tolist() == [192, 384]
    assert result("ad").item() == 48


def test_cooperative_groups() -> None:
    got = result("groups").tolist()
    assert got[:64] == [28 * 100 + t // 8 * 10 + 3 for t in range(64)]
    assert got[64:96] == [0, 16] * 16


def test_clusters_reach_each_others_shared_memory() -> None:
    assert result("clusters").tolist() == [13, 10, 11, 12] * 2


def test_asynchronous_copies_and_their_zeros() -> None:
    x, got = result("x"), result("copies")
    assert torch.equal(got[:32], x[:128].flip(0)[:32])
    third = x[256:384].clone().view(-1, 4)
    third[:, 2:] = 0
    assert torch.equal(got[32:], x[128:160] + third.flatten()[:32])


def test_pipeline_of_a_block() -> None:
    assert torch.equal(result("pipelines"), result("ints").view(4, 64).flip(1).sum(0).to(torch.int32))


def test_barrier_objects_and_named_barriers() -> None:
    assert result("objects").tolist() == [42] * 32
    assert result("named").tolist() == [2 * (31 - t) for t in range(32)]


def test_pairs_of_halves() -> None:
    h, b = result("h"), result("b")
    assert torch.equal(result("hc"), (h.double() * h.double() + 0.5).half())
    assert torch.equal(result("bd"), b + b * b)


def test_eight_bit_floats_round_as_torch_does() -> None:
    x = result("fx")
    for name, dtype, most in (("e4", torch.float8_e4m3fn, 448.0), ("e5", torch.float8_e5m2, 57344.0)):
        assert torch.equal(result(name), x.clamp(-most, most).to(dtype).view(torch.uint8)), name
    wide = x.clamp(-448, 448).to(torch.float8_e4m3fn).float() + x.clamp(-57344, 57344).to(torch.float8_e5m2).float()
    assert torch.equal(result("back"), wide)


def test_bits_and_inline_ptx() -> None:
    got, f = [v & 0xFFFFFFFF for v in result("bits").tolist()], result("bitsf")
    for t in range(32):
        v = t * 0x9E3779B9 & 0xFFFFFFFF
        n = ~v & 0xFFFFFFFF
        low = (v & -v).bit_length()
        assert got[t] == v.bit_count() + 100 * (32 - v.bit_length()) + 10000 * low
        assert got[32 + t] == int(f"{v:032b}"[::-1], 2)
        both = n << 32 | v
        assert got[64 + t] == sum((both >> 8 * s & 255) << 8 * i for i, s in enumerate((0, 5, 1, 7)))
        assert got[96 + t] == (both << t) >> 32 & 0xFFFFFFFF
        a, b, c = v, t * 77, n >> 3
        assert got[128 + t] == (a & b) | (a & c) | (b & c)
        assert got[160 + t] == v
        assert f[64 + t].item() == (7 if t > 15 else 9)
    assert torch.allclose(f[:32], torch.exp2(torch.arange(32) / 2), rtol=1e-6)
    assert f[32].item() == 2 + 2 + 1 + 0.25


def test_matrix_instructions() -> None:
    a, b = result("ma").float().view(16, 16), result("mb").float()
    assert torch.allclose(result("mc").view(16, 8), a @ b[:128].view(8, 16).T + 1, rtol=1e-6, atol=1e-6)
    assert torch.allclose(result("wc").view(16, 16), 2 * (a @ b.view(16, 16).T + 2), rtol=1e-6, atol=1e-5)
    s = result("sa").int().view(16, 32) @ result("sb").int().view(8, 32).T
    assert torch.equal(result("sc").view(16, 8), s)


def test_dynamic_shared_memory_and_constants() -> None:
    assert result("dynamic").tolist() == [(5, 6, 7, 8)[(47 - t) % 4] + (47 - t) // 2 for t in range(48)]


def test_the_last_block_adds_what_the_others_left() -> None:
    assert torch.allclose(result("total"), result("x").sum(), rtol=1e-5, atol=1e-4)


def test_mathematics() -> None:
    x = result("x")[:32]
    assert torch.allclose(result("tanhs"), torch.tanh(x) + torch.rsqrt(1 + x * x) + x, rtol=1e-5, atol=1e-6)
