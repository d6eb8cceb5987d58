/* rooftop
idea    = """Groups of up to 32 packs are contiguous, so a warp reads some 512 contiguous bytes, U times, whatever the length of a group: \
  every access is whole lines. The reduction of the maxima distributes the groups over the lanes: each scale is computed by one lane, not \
  by all lanes of its group, and shuffled back."""
limit   = "the copy of the same bytes"
dtypes  = ["f32", "f16", "bf16"]
args    = ["packs: i64 = N * L // vec", "x: T[N, L]", "over: f32[1]?", "codes: u8[N, BYTES]", "zero: u8[N]?", "seed: i32"]
python  = ["choose", "launches"]
demands = { spills = 0 }

[config]
vec     = 8
lanes   = 16
units   = 4
threads = 256
*/
#include "pdl.cuh"
#include "_group_scales.cuh"

/// One pack a lane, for any numbers and scales. `there`: whether the pack exists; groups are complete.
template <typename T, int F, int S, int ROUND, bool SYMMETRIC, int V, int P>
__device__ void any_pack(bool there, long long pack, const T* x, const float* over, unsigned char* codes,
    typename ScaleType<S>::Stored* scale, unsigned char* zero,
                         int seed) {
    using X = Format<F>;
    Held<T, V> held;
    if (there) held.load(x + pack * V);
    else held.clear();
    unsigned most = 0, least = 0;
    bool unclean = false;
#pragma unroll 1
    for (int again = 0; again < 2; ++again) {  // a second pass without infinities and NaN, if there are any
        Held<T, V> seen = held;
        if (again) seen.drop_unclean();
        Most<T> above, below;
#pragma unroll
        for (int i = 0; i < Held<T, V>::WORDS; ++i) {
            if (SYMMETRIC) above.over_size(seen.w[i]);
            else above.over(seen.w[i]), below.over_negative(seen.w[i]);
        }
        most = over_lanes<P, 32>(above.all(), nullptr);
        if (!SYMMETRIC) least = over_lanes<P, 32>(below.all(), nullptr);
        const bool found = most >= INFINITE_BITS || least >= INFINITE_BITS;
        unclean |= found;
        if (!__any_sync(~0u, found)) break;
    }
    const float up = __uint_as_float(most), down = __uint_as_float(least);
    typename ScaleType<S>::Stored stored;
    float s;
    int offset = X::MIDDLE;
    if constexpr (SYMMETRIC) s = scale_and_value<F, S>(up, over, stored);
    else stored = store_scale<S>(__fadd_rn(__fdiv_rn(up, X::STEPS), __fdiv_rn(down, X::STEPS))), s = effective<S>(stored, over);
    const DividedBy<F, S, ROUND> divided(s, fmaxf(up, down), unclean);
    if constexpr (!SYMMETRIC) offset = zero_point<F>(down, s);
    if (!there) return;
    if (pack % P == 0) {
        scale[pack / P] = stored;
        if (!SYMMETRIC) zero[pack / P] = static_cast<unsigned char>(offset);
    }
    const Drawn<V, true> random(seed, static_cast<unsigned long long>(pack) * V);
    const auto by = [&](int) -> const DividedBy<F, S, ROUND>& { return divided; };
    unsigned out[(V * X::BITS + 31) / 32];
    encode<F, ROUND, SYMMETRIC, V>(out, [&](int i) { return held[i]; }, random, by, [&](int) { return offset; });
    store_codes<X::BITS, V, true>(codes + pack * (V * X::BITS / 8), out, V);
}

template <typename T, int F, int S, int ROUND, bool SYMMETRIC, int V, int P, int U, int THREADS, bool OVER>
__global__ void __launch_bounds__(THREADS)
quantize_groups(long long packs, const T* __restrict__ x, const float* __restrict__ of_all, unsigned char* __restrict__ codes,
                typename ScaleType<S>::Stored* __restrict__ scale, unsigned char* __restrict__ zero, int seed) {
    using X = Format<F>;
    using By = DividedBy<F, S, ROUND>;
    using Shared = Exchange<P, U>;
    constexpr int KEPT = Shared::KEPT, BYTES = V * X::BITS / 8;
    // quotients stay below 7 unless the scale is the largest: no clamp
    constexpr bool WITHIN = F == E2M1 && S == SCALE_E4M3 && ROUND == NEAREST;
    const int lane = threadIdx.x % 32;
    const long long base = (static_cast<long long>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32) * (32 * U);
    const int left = static_cast<int>(packs - base < 32 * U ? packs - base : 32 * U);  // of the warp's packs
    gdc_wait();
    if (left == 32 * U) {
        Held<T, V> held[U];
#pragma unroll
        for (int u = 0; u < U; ++u) held[u].load(x + (base + lane) * V + u * 32 * V);
        unsigned most[U], least[SYMMETRIC ? 1 : U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            Most<T> above, below;
#pragma unroll
            for (int i = 0; i < Held<T, V>::WORDS; ++i) {
                if (SYMMETRIC) above.over_size(held[u].w[i]);
                else above.over(held[u].w[i]), below.over_negative(held[u].w[i]);
            }
            most[u] = above.all();
            if constexpr (!SYMMETRIC) least[u] = below.all();
        }
        Shared::largest(most, lane);
        if constexpr (!SYMMETRIC) Shared::largest(least, lane);

        const float over = OVER ? *of_all : 1.f, part_of_all = OVER ? reciprocal(over) : 1.f;
        using Mine = Found<T, F, S, ROUND, SYMMETRIC>;
        Mine found[KEPT];
        bool careful = false, near = false;
#pragma unroll
        for (int i = 0; i < KEPT; ++i) {
            found[i].template find<OVER>(most[i], SYMMETRIC ? 0 : least[i], over, part_of_all);
            careful |= found[i].careful, near |= found[i].near;
        }
        if (!__any_sync(~0u, careful)) {
            if (lane % P < Shared::SPLIT) {
                const long long first = base / P + Shared::mine(lane) * (32 / P) + lane / P;
#pragma unroll
                for (int i = 0; i < KEPT; ++i) {
                    scale[first + i * (32 / P)] = found[i].stored;
                    if constexpr (!SYMMETRIC) zero[first + i * (32 / P)] = static_cast<unsigned char>(found[i].offset);
                }
            }
            unsigned char* const to = codes + (base + lane) * BYTES;
            if constexpr (Mine::APART) {
                if (!__any_sync(~0u, near)) {
#pragma unroll
                    for (int u = 0; u < U; ++u) {
                        const float part = __shfl_sync(~0u, found[u % KEPT].part, Shared::place(u), P);
                        unsigned out[V / 8];
                        encode_apart<S != SCALE_F32 && !WITHIN>(out, held[u], part);
                        store_codes<X::BITS, V, true>(to + u * 32 * BYTES, out, V);
                    }
                    return;
                }
            }
#pragma unroll
            for (int u = 0; u < U; ++u) {
                By divided;
                divided.lift = 1, divided.careful = false;
                divided.s = By::POWER ? 0.f : __shfl_sync(~0u, found[u % KEPT].divisor, Shared::place(u), P);
                divided.part = __shfl_sync(~0u, found[u % KEPT].part, Shared::place(u), P);
                const int middle = SYMMETRIC ? X::MIDDLE : __shfl_sync(~0u, found[u % KEPT].offset, Shared::place(u), P);
                const Drawn<V, true> random(seed, static_cast<unsigned long long>(base + u * 32 + lane) * V);
                const auto by = [&](int) -> const By& { return divided; };
                unsigned out[(V * X::BITS + 31) / 32];
                encode_clean<F, WITHIN ? SCALE_F32 : S, ROUND, SYMMETRIC>(out, held[u], random, by, [&](int) { return middle; });
                store_codes<X::BITS, V, true>(to + u * 32 * BYTES, out, V);
            }
            return;
        }
    }
#pragma unroll 1
    for (int i = lane; i < 32 * U; i += 32) any_pack<T, F, S, ROUND, SYMMETRIC, V, P>(i < left, base + i, x, OVER ? of_all : nullptr, codes,
        scale, zero, seed);
}
