/* rooftop
idea    = """One cluster per row. With many rows, greedy draws, draws with a top_k of at most 1024 and, from four rows a multiprocessor on, \
  plain draws are made by _draw_rows.cuh, one block a row, in a launch before this one: the kind of draw is known only at run time, so of \
  the two launches the one that has nothing to draw returns at once. Each block copies its part of the logits to shared memory by cp.async, \
  all of it in flight at once, so the row is read from memory once. Plain and min_p draws: one more pass over shared memory adds up weights \
  computed by the hardware's 2^x, in float32 within 16 bytes and in exact integers beyond. top_k up to 1024: each thread takes the maxima \
  of two sets of its elements; the k-th of all maxima is a bound that at least k elements reach; these are sorted in one block. top_p: a \
  histogram of the weights, whose bins are the first bits of a float32, eight between two powers of two, with a copy of each bin for each \
  lane, so that additions never conflict. The next pass adds up the weights above the bin of the boundary and lists the elements of that \
  bin; a second histogram with 256 bins leaves a few of them to sort. A larger top_k, +infinity, and a bin with too many elements need a \
  search digit by digit of the keys."""
limit   = """On an H200: 256x128256 bfloat16 51 us plain, 53 with min_p, 76 with top_k 50, 184 with top_p 0.9 (the read: 15). Within a \
  wave copy, arithmetic and seven cluster barriers follow each other; persistent clusters that copy the next row meanwhile are the next step."""
dtypes  = ["f32", "f16", "bf16"]
args    = ["logits: T[R, N]"]
demands = { has = ["LDG", "MUFU"], spills = 0 }
python  = ["supports", "choose", "for_any_rows", "launches"]
*/
#include "pdl.cuh"
#include "_cluster_nucleus.cuh"

template <typename T, unsigned CLUSTER, int THREADS>
__global__ void __launch_bounds__(THREADS, THREADS == 256 ? 3 : 1)
    sample_clusters(const bits_of<T>* __restrict__ logits, long long xs, unsigned n, unsigned packs, float temperature, int top_k,
        float top_p, float min_p, int seed, const int* __restrict__ seeds, int apart, long long* __restrict__ out) {
    extern __shared__ __align__(16) uint4 held[];
    __shared__ Sampling<THREADS> s;
    using W = Word<T>;
    constexpr unsigned N = 16 / sizeof(T), WARPS = THREADS / 32;
    const cg::cluster_group cluster = cg::this_cluster();
    const unsigned rank = blockIdx.x % CLUSTER, lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x / CLUSTER;
    if (threadIdx.x == 0) s.listed = 0, s.candidate_count = 0, s.at = NOBODY;
    gdc_wait();
    const bool all_of_row = top_k <= 0 || static_cast<unsigned>(top_k) >= n;
    // drawn by sample_rows
    if (apart != 0 && (temperature == 0.0f || (all_of_row ? apart & 2 && !(top_p < 1.0f) : apart & 1 && top_k <= draws::LIST))) return;
    const bits_of<T>* r = logits + row * xs;
    const unsigned off = reinterpret_cast<unsigned long long>(r) % 16 / sizeof(T), all_packs = (off + n + N - 1) / N;
    const unsigned first_pack = min(all_packs, rank * packs), count = min(all_packs, first_pack + packs) - first_pack;
    const Part<T, THREADS> part{held, count, static_cast<int>(first_pack * N) - static_cast<int>(off)};

    // Copies the row to shared memory, all of it in flight at once. A thread reads only the packs that it copied.
    for (unsigned p = threadIdx.x; p < count; p += THREADS) {
        const int i = static_cast<int>(part.index(p * N));
        if (i >= 0 && static_cast<unsigned>(i) + N <= n) {
            __pipeline_memcpy_async(&held[p], r + i, 16);
        } else {
            unsigned words[4] = {0, 0, 0, 0};
#pragma unroll
            for (unsigned j = 0; j < N; ++j) {
                const unsigned bits = i + static_cast<int>(j) >= 0 && i + j < n ? r[i + static_cast<int>(j)] : last_value<T>(0);
                words[j * 4 / N] |= bits << j % (N / 4) * 16;
            }
            held[p] = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
    unsigned lowest;
    {
        float f[W::N];
        for (int j = 0; j < W::N; ++j) f[j] = -CUDART_INF_F;
        lowest = W::narrow(f);
    }
    unsigned even = lowest, odd = lowest;
#pragma unroll 2
    for (unsigned p = threadIdx.x; p < count; p += THREADS) {
        const uint4 v = held[p];
        even = W::larger(even, W::larger(v.x, v.z)), odd = W::larger(odd, W::larger(v.y, v.w));
    }
    float first, second;  // the largest of two sets of this thread's elements
    if constexpr (W::N == 2) {
        float f[W::N];
        W::widen(W::larger(even, odd), f);
        first = f[0], second = f[1];
    } else {
        first = __uint_as_float(even), second = __uint_as_float(odd);
    }
    const float own_most = fmaxf(first, second), warp_most = warp_max(own_most);
    if (lane == 0) reinterpret_cast<float*>(s.warps)[warp] = warp_most;
    __syncthreads();
    if (warp == 0) {
        const float block_most = warp_max(lane < WARPS ? reinterpret_cast<float*>(s.warps)[lane] : -CUDART_INF_F);
        if (lane == 0) s.most = block_most;
    }
    cluster.sync();
    const float most = warp_max(*cluster.map_shared_rank(&s.most, lane % CLUSTER));
    if (!(most > -CUDART_INF_F) || temperature == 0.0f) {
        if (most > -CUDART_INF_F && own_most == most) {  // the lowest index among equal elements
            bool open = true;
#pragma unroll 1
            for (unsigned p = threadIdx.x; open && p < count; p += THREADS) {
#pragma unroll 1
                for (unsigned j = 0; open && j < N; ++j) {
                    if (number<T>(part.bits(p * N + j)) == most) atomicMin(cluster.map_shared_rank(&s.at, 0), part.index(p * N + j)),
                        open = false;
                }
            }
        }
        cluster.sync();
        if (rank == 0 && threadIdx.x == 0) out[row] = s.at == NOBODY ? -1 : static_cast<long long>(s.at);
        return;
    }

    const unsigned limit = top_k > 0 ? min(static_cast<unsigned>(top_k), n) : n;
    const bool nucleus = top_p < 1.0f;
    const Shares shares(most, temperature);
    unsigned top_key;
    if constexpr (sizeof(T) == 4) {
        top_key = to_key<T>(__float_as_uint(most), NAN_SMALLEST);
    } else {
        top_key = short_key<T>(most);
    }
    const Weigh<T> weigh(top_key, temperature, min_p);
    unsigned last_key = 0, last_index = NOBODY;  // the last element in order that may be drawn
    bool slow = most == CUDART_INF_F;  // weights by Weigh, which supports infinities
    if (limit < n) {
        if (limit <= DRAWN && (limit <= 2 * CLUSTER * THREADS || n <= LIST)) {
            bool room = true;
            const float least = reached_by<T, CLUSTER>(limit, short_key<T>(second) << 16 | short_key<T>(first), s, cluster);
#pragma unroll 2
            for (unsigned p = threadIdx.x; room && p < count; p += THREADS) {
                const uint4 v = held[p];
                float f[W::N];
                W::widen(W::larger(W::larger(v.x, v.y), W::larger(v.z, v.w)), f);
                if (!(fmaxf(f[0], f[W::N - 1]) >= least)) continue;
#pragma unroll 1
                for (unsigned j = 0; j < N; ++j) {
                    const bits_of<T> bits = part.bits(p * N + j);
                    const float x = number<T>(bits);
                    if (x >= least && x > -CUDART_INF_F) room =
                        list(to_key<T>(bits, NAN_SMALLEST), part.index(p * N + j), LIST, s, cluster);
                }
            }
            const unsigned listed = length_of_list(s, cluster);
            if (listed <= LIST) {
                if (rank == 0) draw_from_list<T>(listed, limit, weigh, top_p, seed, seeds, row, out, s);
                return;
            }
            if (threadIdx.x == 0) s.listed = 0;
        }
        clear(s);
        part.each([&](float x, unsigned, unsigned) {
            const float d = weigh.scaled(x);
            const Sum w = Weigh<T>::units(expf(d));
            if (w != 0) add(s, bin_of(d), w);
        });
        gather<CLUSTER>(s, cluster);
        if (sum_of(s.totals, s) > limit) {  // elements of weight 0 come last
            Sum earlier;
            const unsigned bin = crossing_bin(s.totals, limit, earlier, s);
            if (limit <= DRAWN && earlier + s.totals[bin] <= LIST) {
                part.each([&](float x, unsigned key, unsigned index) {
                    const float d = weigh.scaled(x);
                    if (bin_of(d) <= bin && Weigh<T>::units(expf(d)) != 0) list(key, index, LIST, s, cluster);
                });
                const unsigned listed = length_of_list(s, cluster);
                if (rank == 0) draw_from_list<T>(listed, limit, weigh, top_p, seed, seeds, row, out, s);
                return;
            }
            slow = true;
            bound<CLUSTER>(part, weigh, limit, 0.0f, last_key, last_index, s, cluster);
        }
        cluster.sync();  // no block reads these bins any more
    }

    // The sum of each warp's section of the part, exact beyond packs. If a nucleus ends within a bin, the elements of that bin are kept for
    // later.
    const unsigned stretch = (count + WARPS - 1) / WARPS, begin = min(count, warp * stretch), end = min(count, begin + stretch);
    float sure = min_p, low = min_p;  // elements of at least `sure` can be drawn; lighter ones of at least `low` are examined one by one
    Sum own = 0;
    if (!slow && nucleus) {
        unsigned bin;
        Sum need;
        slow = !bin_of_boundary<T, CLUSTER>(part, n, shares, top_p, bin, need, s, cluster);
        if (!slow) {
            const float high = Bins::least(bin - 1);
            const bool by_min_p = min_p >= high;  // min_p excludes the whole bin
            if (!by_min_p) sure = high, low = Bins::least(bin);
#pragma unroll 1
            for (unsigned p = begin + lane; p < end; p += 64) {
                unsigned candidates = 0;
#pragma unroll
                for (unsigned u = 0; u < 2; ++u) {
                    if (u == 1 && p + 32 >= end) break;
                    const uint4 v = held[p + 32 * u];
                    float sum = 0.0f;
#pragma unroll
                    for (unsigned j = 0; j < N; ++j) {
                        const float w = shares(element<T>(v, j));
                        if (w >= sure) sum += w;
                        else if (w >= low) candidates |= 1u << (u * N + j);
                    }
                    own += units(sum);
                }
                if (candidates != 0) {
                    unsigned at = atomicAdd(&s.candidate_count, __popc(candidates));
                    for (; candidates != 0; candidates &= candidates - 1) {
                        const unsigned j = __ffs(candidates) - 1;
                        s.candidates[at++] = (p + j / N * 32) * N + j % N;
                    }
                }
            }
            __syncthreads();
            slow = !by_min_p && !last_of_nucleus<T, CLUSTER>(part, shares, weigh, bin, need, last_key, last_index, s, cluster);
        }
        if (slow) last_key = 0, last_index = NOBODY;
    }
    if (slow && nucleus) bound<CLUSTER>(part, weigh, 0, top_p, last_key, last_index, s, cluster);

    const auto kept = [&](unsigned e) {  // the weight of an element in the slow path
        const bits_of<T> bits = part.bits(e);
        const float x = number<T>(bits);
        if (!(x > -CUDART_INF_F)) return Sum(0);
        const float w = weigh.share(x);
        return w < weigh.least || (last_key != 0 && before(last_key, last_index, to_key<T>(bits, NAN_SMALLEST), part.index(e))) ? Sum(0)
            : Weigh<T>::units(w);
    };
    const auto candidate = [&](unsigned e) {  // an element of the bin of the boundary
        const bits_of<T> bits = part.bits(e);
        const float w = shares(number<T>(bits));
        return w >= min_p && !before(last_key, last_index, to_key<T>(bits, NAN_SMALLEST), part.index(e)) ? units(w) : Sum(0);
    };
    if (slow) {
        own = 0;
#pragma unroll 1
        for (unsigned p = begin + lane; p < end; p += 32) {
#pragma unroll 1
            for (unsigned j = 0; j < N; ++j) own += kept(p * N + j);
        }
    } else if (!nucleus) {
#pragma unroll 2
        for (unsigned p = begin + lane; p < end; p += 32) {
            const uint4 v = held[p];
            float sum = 0.0f;
#pragma unroll
            for (unsigned j = 0; j < N; ++j) {
                const float w = shares(element<T>(v, j));
                if (w >= min_p) sum += w;
            }
            own += units(sum);
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) own += __shfl_xor_sync(~0u, own, step);
    __syncthreads();
    if (lane == 0) s.stretches[warp] = own;
    __syncthreads();
    if (!slow && nucleus) {
        for (unsigned i = threadIdx.x; i < s.candidate_count; i += THREADS) {
            const Sum w = candidate(s.candidates[i]);
            if (w != 0) atomicAdd(&s.stretches[s.candidates[i] / N / stretch], w);
        }
        __syncthreads();
    }
    if (threadIdx.x < CLUSTER) {
        Sum block = 0;
        for (int w = 0; w < WARPS; ++w) block += s.stretches[w];
        *cluster.map_shared_rank(&s.sums[rank], threadIdx.x) = block;
    }
    cluster.sync();
    Sum whole = 0, upto = 0;
#pragma unroll
    for (unsigned b = 0; b < CLUSTER; ++b) upto += b < rank ? s.sums[b] : 0, whole += s.sums[b];
    for (unsigned w = 0; w < warp; ++w) upto += s.stretches[w];
    const Sum bar = bar_of(seed, seeds, row, whole);
    if (bar < upto || bar >= upto + s.stretches[warp]) return;

    // One warp of the cluster finds the pack, with the same sums, then the element.
#pragma unroll 1
    for (unsigned from = begin; from < end; from += 32) {
        const unsigned p = from + lane;
        const auto alone = [&](unsigned e, float& quick) {  // of one element: its weight, or (`quick`) its contribution to the pack's sum
            quick = 0.0f;
            if (slow) return kept(e);
            const float w = shares(number<T>(part.bits(e)));
            if (w >= sure) quick = w;
            else if (w >= low) return candidate(e);
            return Sum(0);
        };
        Sum mine = 0;
        if (p < end) {
            float sum = 0.0f, quick;
#pragma unroll 1
            for (unsigned j = 0; j < N; ++j) {
                mine += alone(p * N + j, quick);
                sum += quick;
            }
            mine += units(sum);
        }
        Sum run = mine;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const Sum o = __shfl_up_sync(~0u, run, step);
            if (lane >= step) run += o;
        }
        Sum at = upto + run - mine;
        if (at <= bar && bar < at + mine) {
            // if the rounded weights of the elements add up to less than the pack's, the last element with a weight
            unsigned found = NOBODY;
            bool open = true;
#pragma unroll 1
            for (unsigned j = 0; open && j < N; ++j) {
                float quick;
                const Sum w = alone(p * N + j, quick) + units(quick);
                if (w != 0) found = part.index(p * N + j);
                at += w;
                open = at <= bar;
            }
            out[row] = found;
        }
        upto += __shfl_sync(~0u, run, 31);
        if (bar < upto) return;
    }
}
