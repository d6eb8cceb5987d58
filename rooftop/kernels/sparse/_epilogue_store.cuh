// The epilogue's stores: accumulators of wgmma, finished and stored 16 bytes a lane.
#pragma once
#include "_epilogue.cuh"

/// A 4 x 4 transpose among the four lanes of an accumulator row: lane t gets word t of lanes 0 to 3, in order.
__device__ inline void turn_4x4(unsigned (&w)[4]) {
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const unsigned other = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
        if (odd) w[i] = other;
        else w[i + 1] = other;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned other = __shfl_xor_sync(~0u, upper ? w[i] : w[i + 2], 2);
        if (upper) w[i] = other;
        else w[i + 2] = other;
    }
}

/// The 16 rows by 2 REGS columns of a warp; (row, column): the first. Written to out[m · pitch + n] or, TURNED, to out[n · pitch + m], in
/// 16 bits. STEP, the number of elements that out's rows are aligned to: 8, 2 or 1. Past M and N nothing is read or written.
template <typename T, bool TURNED, int STEP, int ACT, int BIAS, int REGS>
__device__ inline void put_sums(const float (&sum)[REGS], int row, int column, int M, int N, float alpha, const T* __restrict__ bias,
    long long step, T* __restrict__ out,
                                long long pitch) {
    constexpr int GROUPS = REGS / 4;  // of 8 columns
    if constexpr (STEP < 8 || GROUPS % (TURNED ? 2 : 4) != 0) {
#pragma unroll
        for (int j = 0; j < GROUPS; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                put_8x8<T, TURNED, STEP % 2 == 0, ACT, BIAS>(sum[j * 4 + half * 2], sum[j * 4 + half * 2 + 1], row + half * 8,
                    column + j * 8, M, N, alpha, bias, step, out, pitch);
            }
        }
    } else {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const auto two = [&](int j, int half) {
            const int r = row + half * 8 + g, c = column + j * 8 + 2 * t;
            T pair[2] = {T(0.f), T(0.f)};
            if (!BIAS || (r < M && c < N)) pair[0] = T(finished<ACT, BIAS>(sum[j * 4 + half * 2], alpha, bias, step, r, c));
            if (!BIAS || (r < M && c + 1 < N)) pair[1] = T(finished<ACT, BIAS>(sum[j * 4 + half * 2 + 1], alpha, bias, step, r, c + 1));
            return *reinterpret_cast<unsigned*>(pair);
        };
        const auto store = [&](const unsigned (&w)[4], int major, int minor) {
            if (major < (TURNED ? N : M) && minor < (TURNED ? M : N)) *reinterpret_cast<uint4*>(out + major * pitch + minor) =
                make_uint4(w[0], w[1], w[2], w[3]);
        };
        if constexpr (TURNED) {
#pragma unroll
            for (int j = 0; j < GROUPS; j += 2) {
                unsigned w[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    w[i] = two(j + i / 2, i % 2);
                    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(w[i]));
                }
                turn_4x4(w);
                store(w, column + (j + t / 2) * 8 + g, row + t % 2 * 8);
            }
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int j = 0; j < GROUPS; j += 4) {
                    unsigned w[4];
#pragma unroll
                    for (int i = 0; i < 4; ++i) w[i] = two(j + i, half);
                    turn_4x4(w);
                    store(w, row + half * 8 + g, column + (j + t) * 8);
                }
            }
        }
    }
}
