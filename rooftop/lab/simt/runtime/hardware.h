// What the hardware makes of one request of a warp: sectors of global memory, wavefronts of shared memory.
#pragma once
#include "engine.h"

namespace simt {

// Wavefronts: 32 banks of 4 bytes; in one wavefront each bank gives one word, to any number of lanes.
inline u32 bank_cycles(const u64* address, u32 bytes, u32 lanes) {
    u64 words[32][8];
    u8 held[32] = {};
    u32 most = 0;
    for (u32 todo = lanes; todo; todo &= todo - 1) {
        const u64 at = address[__builtin_ctz(todo)];
        for (u64 word = at / 4; word <= (at + bytes - 1) / 4; ++word) {
            const u32 bank = word & 31;
            u32 i = 0;
            while (i < held[bank] && words[bank][i % 8] != word) ++i;
            if (i == held[bank] && held[bank] < 8) words[bank][held[bank]++] = word;
            else if (i == held[bank]) ++held[bank];             // more than eight: taken as all different
            most = std::max<u32>(most, held[bank]);
        }
    }
    return most;
}
inline u32 bank_cycles_wide(const u64* address, u32 bytes, u32 lanes) {   // exact, whatever the number of words
    std::vector<u64> words[32];
    size_t most = 0;
    for (u32 todo = lanes; todo; todo &= todo - 1) {
        const u64 at = address[__builtin_ctz(todo)];
        for (u64 word = at / 4; word <= (at + bytes - 1) / 4; ++word) {
            std::vector<u64>& bank = words[word & 31];
            if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
            most = std::max(most, bank.size());
        }
    }
    return static_cast<u32>(most);
}
inline u32 cycles(const u64* address, u32 bytes, u32 lanes) {
    const u32 n = bank_cycles(address, bytes, lanes);
    return n < 8 ? n : bank_cycles_wide(address, bytes, lanes);
}
// Whether every active lane has the address of the active lane `flip` away.
inline bool pairs(const u64* address, u32 lanes, u32 flip) {
    for (u32 todo = lanes; todo; todo &= todo - 1) {
        const u32 lane = static_cast<u32>(__builtin_ctz(todo)), other = lane ^ flip;
        if (lanes >> other & 1 && address[other] != address[lane]) return false;
    }
    return true;
}
// 8 bytes a lane are served by half-warps, 16 by quarters; neighbours with equal addresses are served together.
inline u32 wavefronts(const u64* address, u32 bytes, u32 lanes) {
    if (bytes <= 4) return cycles(address, bytes, lanes);
    u32 total = 0;
    if (bytes == 8) {
        if (pairs(address, lanes, 1) || pairs(address, lanes, 2)) return cycles(address, bytes, lanes);
        for (const u32 half : {0x0000ffffu, 0xffff0000u})
            if (lanes & half) total += cycles(address, bytes, lanes & half);
        return total;
    }
    for (const u32 half : {0x0000ffffu, 0xffff0000u}) {
        const u32 in = lanes & half;
        if (!in) continue;
        if (pairs(address, in, 1) || pairs(address, in, 2)) {
            total += cycles(address, bytes, in);
            continue;
        }
        for (const u32 quarter : {0x00ff00ffu, 0xff00ff00u})
            if (in & quarter) total += cycles(address, bytes, in & quarter);
    }
    return total;
}
/// The fewest that a request is said to need: 128 bytes each, of what the lanes ask for; but no more than it takes, where lanes share
/// words.
inline u32 ideal_wavefronts(u32 bytes, u32 lanes, u32 taken) {
    return std::min(taken, (static_cast<u32>(__builtin_popcount(lanes)) * bytes + 127) / 128); }

inline u32 distinct_sectors(const u64* address, u32 bytes, u32 lanes) {
    u64 found[64];
    u32 n = 0;
    u64 last = ~u64(0);
    for (u32 todo = lanes; todo; todo &= todo - 1) {
        const u64 at = address[__builtin_ctz(todo)];
        for (u64 sector = at / 32; sector <= (at + bytes - 1) / 32; ++sector) {
            if (sector == last) continue;
            last = sector;
            u32 i = 0;
            while (i < n && found[i] != sector) ++i;
            if (i == n && n < 64) found[n++] = sector;
        }
    }
    return n;
}
/// The fewest sectors: as many as the bytes fill that the lanes ask for, but no more than the request takes.
inline u32 ideal_sectors(u32 bytes, u32 lanes, u32 taken) {
    return std::min(taken, (static_cast<u32>(__builtin_popcount(lanes)) * bytes + 31) / 32); }

// -- asynchronous copies ------------------------------------------------------------------------------------------------------------
// As the counters of tests/simt/patterns/async_copies.cu say. `to`: from the block's first byte of shared memory; `from`: 0 where a lane
// copies nothing and zeros are written.

// Copies of 16 bytes go past the L1 (cp.async.cg): what leaves one 128-byte line for one 128-byte row of shared memory goes together, in
// one wavefront unless 32 bytes of the row come from two sectors of the line: `mixed`.
template <class Group>
inline void copy_groups(const u64* to, const u64* from, u32 lanes, const Group& group) {
    while (lanes) {
        const u32 first = static_cast<u32>(__builtin_ctz(lanes));
        u32 together = 0;
        bool mixed = false;
        u64 source[4] = {~u64(0), ~u64(0), ~u64(0), ~u64(0)};   // the sector that each 32 bytes of the row come from
        for (u32 todo = lanes; todo; todo &= todo - 1) {
            const u32 lane = static_cast<u32>(__builtin_ctz(todo));
            if (from[lane] / 128 != from[first] / 128 || to[lane] / 128 != to[first] / 128) continue;
            u64& before = source[to[lane] / 32 % 4];
            mixed |= before != ~u64(0) && before != from[lane] / 32;
            before = from[lane] / 32;
            together |= 1u << lane;
        }
        lanes &= ~together;
        group(together, mixed);
    }
}

// The sectors that they ask for: those of each group, or, mixed, each lane for itself.
inline u32 copy_sectors(const u64* to, const u64* from, u32 lanes) {
    u32 total = 0;
    for (u32 todo = lanes; todo; todo &= todo - 1)
        if (!from[__builtin_ctz(todo)]) lanes &= ~(1u << __builtin_ctz(todo));
    copy_groups(to, from, lanes, [&](u32 together, bool mixed) {
        total += mixed ? static_cast<u32>(__builtin_popcount(together)) : distinct_sectors(from, 16, together);
    });
    return total;
}

// Copies of 4 bytes pass through the L1, whose lines come one after the other, a wavefront apart; each wavefront writes a word of each bank
// and takes a word of a line once. Those of 8 bytes are written line by line, as a store of the lanes of that line.
inline u32 copy_wavefronts(const u64* to, const u64* from, u32 bytes, u32 lanes) {
    u32 total = 0;
    if (bytes == 16) {
        copy_groups(to, from, lanes, [&](u32, bool mixed) { total += mixed ? 2 : 1; });
        return total;
    }
    u64 lines[32];
    u32 of_line[32] = {}, count = 0;
    for (u32 todo = lanes; todo; todo &= todo - 1) {
        const u32 lane = static_cast<u32>(__builtin_ctz(todo));
        u32 i = 0;
        while (i < count && lines[i] != from[lane] / 128) ++i;
        if (i == count) lines[count++] = from[lane] / 128;
        of_line[i] |= 1u << lane;
    }
    if (bytes == 8) {
        for (u32 i = 0; i < count; ++i) total += cycles(to, bytes, of_line[i]);
        return total;
    }
    for (u32 left = lanes; left; ++total) {
        u32 banks = 0;
        for (u32 i = 0; i <= std::min(total, count - 1); ++i) {
            u32 words = 0;
            for (u32 todo = of_line[i] & left; todo; todo &= todo - 1) {
                const u32 lane = static_cast<u32>(__builtin_ctz(todo)), bank = 1u << to[lane] / 4 % 32, word = from[lane] ? 1u
                    << from[lane] / 4 % 32 : 0;
                if (banks & bank || words & word) continue;
                banks |= bank, words |= word, left &= ~(1u << lane);
            }
        }
    }
    return total;
}
}  // namespace simt
