// The words of a chunk of `ratio`: what its parts are, and its symbols.
#pragma once
#include "_ratio.cuh"

constexpr int STREAMS_MOST = 16;

/// What a block knows of its chunk while it reads its words.
struct Reading {
    Parts parts;
    int groups, apart, ends[GROUPS_MOST], low[GROUPS_MOST], high[GROUPS_MOST], at[GROUPS_MOST];  // at: 16-bit word of a table
    int streams, group[STREAMS_MOST], begin[STREAMS_MOST], end[STREAMS_MOST], given[STREAMS_MOST];
    long long from[STREAMS_MOST];  // 16-bit words before the stream's
    int states, halves, packed, exact_count, packed_count, why;
    unsigned check, marks;
    unsigned long long bits;
};

/// Everything that a chunk's first words say, by one warp: 0, or 3 where they do not fit. `size` words at `from`.
__device__ int parsed(Reading& r, Around& around, const unsigned* from, int size, const int (&n)[3], int bytes) {
    const int lane = threadIdx.x % 32, values = n[0] * n[1] * n[2];
    const unsigned head = from[0];
    const bool by_cause = head >> 3 & 1, apart = head >> 2 & 1, weighted = head >> 1 & 1;
    const int low = head >> 8 & 255, high = head >> 16 & 255;
    int anchors = 1;
#pragma unroll
    for (int a = 0; a < 3; ++a) anchors *= (n[a] + LARGEST - 1) / LARGEST;
    if (by_cause) anchors = 0;
    const int total = values - anchors;
    if ((head & 0xFF0000F1u) != 1 || (by_cause && (apart || weighted)) || high < low || high > static_cast<int>(LAST_SYMBOL) || (apart && high)
        || size < 3)
        return 3;
    const int causal_words = causal_words_of(n);
    int at = 3, mask = 0;
    if (by_cause) {
        if (!causal_words || size < 3 + causal_words) return 3;
        bool finite = true;
        for (int i = 3 + lane; i < 3 + causal_words; i += 32) finite &= i < 5 || (from[i] & 0x7F800000u) != 0x7F800000u;
        finite &= (from[4] & 0x7FF00000u) != 0x7FF00000u;  // the base's high half
        if (!__all_sync(~0u, finite)) return 3;
        at += causal_words;
    } else if (weighted) {
        if (size < 4) return 3;
        mask = static_cast<int>(from[3]);
        int weights = 0, known = 0;
        for (int level = 0; level < FITTED; ++level) {
            for (int k = 0; k < 7; ++k) {
                if (!(mask >> (7 * level + k) & 1)) continue;
                const Set set(level, k, n);
                __syncwarp();
                if (set.size() > 0) around.find(set, n);
                __syncwarp();
                if (set.size() > 0 && around.any()) {
                    if (lane == 0) r.parts.begins[7 * level + k] = weights;
                    weights += around.taps, known |= 1 << (7 * level + k);
                }
            }
        }
        if (!mask || mask != known) return 3;
        const int end = 4 + (weights + 1) / 2;
        if (size < end) return 3;
        const unsigned short* held = reinterpret_cast<const unsigned short*>(from + 4);
        bool good = true;
        for (int i = lane; i < 2 * (end - 4); i += 32) good &= i < weights ? (held[i] & 0x7C00) != 0x7C00 : held[i] == 0;
        if (!__all_sync(~0u, good)) return 3;
        at = end;
    }
    __syncwarp();
    int bad = 0;
    if (lane == 0) {
        r.parts.mask = mask, r.parts.anchors = anchors, r.parts.total = total;
        r.parts.kind = by_cause ? CAUSAL : INTERPOLATED;
        r.groups = 0, r.apart = apart;
        int end = 0;
        for (int level = LEVELS - 1; level >= 0 && apart; --level)
            for (int k = 0; k < 7; ++k) {
                end += Set(level, k, n).size();
                const bool last = level == 0 || (k == 6 && level <= 2);  // level 1, and all above it, are a group each
                if (last && end > (r.groups ? r.ends[r.groups - 1] : 0)) r.ends[r.groups++] = end;
            }
        if (!apart) r.ends[0] = total, r.groups = 1;
        const unsigned short* held = reinterpret_cast<const unsigned short*>(from + at);
        const int most = 2 * (size - at);
        int i = 0, streams = 0;
        for (int g = 0; g < r.groups && !bad; ++g) {
            int l = low, h = high;
            if (apart) {
                if (i >= most) { bad = 3; break; }
                l = held[i] & 255, h = held[i] >> 8, ++i;
                if (h < l || h > static_cast<int>(LAST_SYMBOL)) { bad = 3; break; }
            }
            if (i + h - l + 1 > most) { bad = 3; break; }
            r.low[g] = l, r.high[g] = h, r.at[g] = 2 * at + i, i += h - l + 1;
            for (int begin = g ? r.ends[g - 1] : 0; begin < r.ends[g]; begin += STREAM_SYMBOLS, ++streams)
                r.group[streams] = g, r.begin[streams] = begin, r.end[streams] = min(begin + STREAM_SYMBOLS, r.ends[g]);
        }
        if (!bad && i % 2 && (i >= most || held[i])) bad = 3;
        at += (i + 1) / 2, r.streams = streams, r.states = at + streams;
        if (!bad && size < at + 33 * streams) bad = 3;
        long long halves = 0;
        for (int s = 0; s < streams && !bad; ++s) {
            const unsigned off = from[at + s];
            r.from[s] = halves, r.given[s] = static_cast<int>(min(off, 0x7FFFFFFFu)), halves += off;
        }
        const long long exact = from[1], packed = from[2], a = at + 33ll * streams + (halves + 1) / 2, b = a + (packed + 3) / 4;
        if (!bad && (size != b + (exact * bytes + 3) / 4 || exact < anchors)) bad = 3;
        r.halves = at + 33 * streams, r.packed = static_cast<int>(a), r.parts.exact = static_cast<int>(b);
        r.exact_count = static_cast<int>(exact), r.packed_count = static_cast<int>(packed);
    }
    return __shfl_sync(~0u, bad, 0);
}

__device__ inline int low_bits(unsigned symbol) { return symbol > DIRECT ? static_cast<int>(symbol - DIRECT - 1) / 2 + 6 : 0; }

/// A stream's symbols, by one warp: false where its words or states do not come out even. `symbol_of`: 4096 slots.
__device__ bool decoded(const Reading& r, int stream, const unsigned* from, unsigned char* symbol_of, unsigned* slots, unsigned char* symbols,
                        unsigned& marks, unsigned& bits) {
    const int lane = threadIdx.x % 32, group = r.group[stream], low = r.low[group], high = r.high[group];
    const unsigned below = (1u << lane) - 1;
    const unsigned short* table = reinterpret_cast<const unsigned short*>(from) + r.at[group];
    unsigned before = 0;
    for (int first = 0; first < 256; first += 32) {
        const int symbol = first + lane;
        const unsigned f = symbol >= low && symbol <= high ? table[symbol - low] : 0;
        unsigned up_to = f;
#pragma unroll
        for (int j = 1; j < 32; j *= 2) {
            const unsigned other = __shfl_up_sync(~0u, up_to, j);
            if (lane >= j) up_to += other;
        }
        slots[symbol] = f | (before + up_to - f) << 16;
        before += __shfl_sync(~0u, up_to, 31);
    }
    if (before != 4096) return false;
    __syncwarp();
    for (int symbol = low; symbol <= high; ++symbol) {
        const unsigned e = slots[symbol], f = e & 0xFFFF, start = e >> 16;
        for (unsigned i = lane; i < f; i += 32) symbol_of[start + i] = static_cast<unsigned char>(symbol);
    }
    __syncwarp();
    const unsigned short* words = reinterpret_cast<const unsigned short*>(from + r.halves) + r.from[stream];
    const int count = r.end[stream] - r.begin[stream], given = r.given[stream];
    unsigned state = from[r.states + 32 * stream + lane];
    bool good = __all_sync(~0u, state >= LOWEST_STATE);
    int at = 0;
    for (int t = 0; t < count && good; t += 32) {
        const bool live = t + lane < count;
        const unsigned symbol = symbol_of[state & 4095], e = slots[symbol];
        const unsigned next = (e & 0xFFFF) * (state >> 12) + (state & 4095) - (e >> 16);
        const bool off = live && next < LOWEST_STATE;
        const unsigned vote = __ballot_sync(~0u, off);
        const int mine = at + __popc(vote & below);
        at += __popc(vote);
        if (at > given) good = false;
        if (live) {
            state = off ? next << 16 | (good ? words[mine] : 0u) : next;
            symbols[r.begin[stream] + t + lane] = static_cast<unsigned char>(symbol);
            marks += symbol == 0, bits += low_bits(symbol);
        }
    }
    return __all_sync(~0u, state == LOWEST_STATE) && good && at == given;
}
