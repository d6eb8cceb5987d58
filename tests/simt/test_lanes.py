"""Lanes of a warp that part and meet again are counted as one: `ldmatrix` of fewer rows than lanes, loads by half a warp, unrolled loops."""

from __future__ import annotations

import pytest
import torch

from rooftop.lab import simt

pytestmark = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
PRODUCT = r"""#include <cuda_bf16.h>
__device__ __forceinline__ unsigned sa(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void ld4(unsigned (&r)[4], const void* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(sa(p)));
}
__device__ __forceinline__ void ld2(unsigned (&r)[2], const void* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(sa(p)));
}
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
constexpr int BK = 32, LD = BK + 8;
__global__ void __launch_bounds__(256) mm(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b, float* __restrict__ c, int N, int K) {
    __shared__ alignas(16) __nv_bfloat16 as[128][LD], bs[128][LD];
    const int t = threadIdx.x, warp = t / 32, lane = t % 32, wm = warp / 4 * 64, wn = warp % 4 * 32;
    float acc[4][4][4] = {};
    for (int k0 = 0; k0 < K; k0 += BK) {
        for (int i = t; i < 128 * BK / 8; i += 256) {
            const int r = i / (BK / 8), q = i % (BK / 8) * 8;
            *reinterpret_cast<uint4*>(&as[r][q]) = *reinterpret_cast<const uint4*>(&a[(blockIdx.y * 128 + r) * K + k0 + q]);
            *reinterpret_cast<uint4*>(&bs[r][q]) = *reinterpret_cast<const uint4*>(&b[(blockIdx.x * 128 + r) * K + k0 + q]);
        }
        __syncthreads();
        #pragma unroll
        for (int kk = 0; kk < BK; kk += 16) {
            unsigned fa[4][4], fb[4][2];
            #pragma unroll
            for (int i = 0; i < 4; ++i) ld4(fa[i], &as[wm + 16 * i + lane % 16][kk + lane / 16 * 8]);
            #pragma unroll
            for (int j = 0; j < 4; ++j) ld2(fb[j], &bs[wn + 8 * j + lane % 8][kk + lane / 8 % 2 * 8]);
            #pragma unroll
            for (int i = 0; i < 4; ++i)
                #pragma unroll
                for (int j = 0; j < 4; ++j) mma(acc[i][j], fa[i], fb[j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
            float* at = c + (blockIdx.y * 128 + wm + 16 * i + lane / 4) * N + blockIdx.x * 128 + wn + 8 * j + lane % 4 * 2;
            *reinterpret_cast<float2*>(at) = make_float2(acc[i][j][0], acc[i][j][1]);
            *reinterpret_cast<float2*>(at + 8 * N) = make_float2(acc[i][j][2], acc[i][j][3]);
        }
}
"""
HALF = """__device__ float joined(float v, int lane) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}
__global__ void half_loads(const float* __restrict__ x, float* __restrict__ y) {
    const int t = threadIdx.x, lane = t % 32;
    float u = 0;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (lane < 16) u += x[64 * i + lane];
        u = joined(u, lane);
        u += x[64 * i + 32 + lane];
    }
    y[t] = u;
}
"""
ROUNDS, WARPS = 128 // 16, 8  # of a product of 128 x 128 x 128 by one block


def test_a_product_by_mma_asks_as_often_as_its_warps_do() -> None:
    memory = {"a": torch.randn(128, 128).bfloat16(), "b": torch.randn(128, 128).bfloat16(), "c": torch.zeros(128, 128)}
    given = [("a", "ptr"), ("b", "ptr"), ("c", "ptr"), (128, "i32"), (128, "i32")]
    report = simt.simulate(PRODUCT, "mm", memory, grid=(1, 1), block=(256,), arguments=given, mode="count")
    assert torch.allclose(memory["c"], memory["a"].float() @ memory["b"].float().T, atol=1e-3)
    found = {(c.text.strip().partition(" ")[0] + c.text.partition("m8n8.")[2][:2], c.space, c.op): c.requests for c in report.lines}
    assert found["asmx4", "shared", "read"] == found["asmx2", "shared", "read"] == ROUNDS * 4 * WARPS
    copies = {c.requests for c in report.lines if (c.space, c.op) in (("global", "read"), ("shared", "write"))}
    assert copies == {4 * 2 * WARPS}
    assert {c.requests for c in report.lines if (c.space, c.op) == ("global", "write")} == {16 * WARPS}


def test_a_load_by_half_a_warp_leaves_later_loads_whole() -> None:
    memory, given = {"x": torch.ones(256), "y": torch.zeros(64)}, [("x", "ptr"), ("y", "ptr")]
    report = simt.simulate(HALF, "half_loads", memory, grid=(1,), block=(64,), arguments=given, mode="count")
    reads = {c.text.strip().partition(" ")[0]: (c.requests, c.lanes) for c in report.lines if (c.space, c.op) == ("global", "read")}
    assert reads == {"if": (4 * 2, 4 * 2 * 16), "u": (4 * 2, 4 * 2 * 32)}
