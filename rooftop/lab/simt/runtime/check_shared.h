// Checking: an access to shared memory, of lanes that meet at barriers and collectives.
#pragma once
#include "check_global.h"

namespace simt {

// -- shared
// ---------------------------------------------------------------------------------------------------------------------------------

// Whether the access that left `record` may run at the same time as one that `f` makes now.
static bool concurrent(const Fiber& f, u64 record) {
    if (((record ^ f.low) >> THREAD_SHIFT & 0x3fff) == 0 || (record >> 1 & 0x7fff) == 0) return false;
    const Fiber& other = thread_of(f, record);
    const u32 clock = static_cast<u32>(record >> 1 & 0x7fff);
    if (other.block != f.block) {
        const std::vector<u16>& far = f.warp->far;
        return (record & ~LOW_MASK) >= f.block->cluster_epoch && clock < CLOCK_LIMIT
            && (far.empty() || far[far_index(*other.warp)] < clock);
    }
    if (record < f.block->epoch || clock >= CLOCK_LIMIT) return false;
    if (other.warp == f.warp) return f.warp->clocks[f.lane][other.lane] < clock;
    return f.warp->knows[other.warp->index] < clock;
}

static __attribute__((noinline)) void shared_race(Worker& w, Fiber& f, u64 record, u32 other_pc, bool other_writes, u64 address, u32 bytes,
    bool write, u64 pc) {
    const Fiber& other = thread_of(f, record);
    const Kind kind = other.warp == f.warp ? WARP_RACE : SHARED_RACE;
    if (write && other_writes) {
        Finding later = described(kind, SHARED, address, bytes, true, pc, other_pc);
        other_thread(later, other);
        later.detail[0] = 1;
        suspect(w, f, w.shared + address, later);
        return;
    }
    if (Finding* found = fault(w, kind, SHARED, address, bytes, write, pc, other_pc)) {
        other_thread(*found, other);
        found->detail[0] = other_writes;
    }
}

// One cell (a word, or a byte of a split word). `slow`: something is to be looked at closely.
template <bool WRITE>
static inline void shared_cell(Worker& w, Fiber& f, SharedCell& c, u32& other_pc, u64 low, u64 bound, size_t at, u32 bytes, bool atomic,
    u64 pc) {
    const Block& b = *f.block;
    const u64 mine = b.epoch | low;
    constexpr u64 THREAD = u64(0x3fff) << THREAD_SHIFT;
    const auto other = [&](u64 record) { return record >= bound && ((record ^ low) & THREAD) && !(atomic && record & 1); };
    if (other(c.write) && concurrent(f, c.write)) shared_race(w, f, c.write, c.write_pc, true, at, bytes, WRITE, pc);
    if (WRITE) {
        if (other(c.read) && concurrent(f, c.read)) shared_race(w, f, c.read, c.read_pc, false, at, bytes, true, pc);
        else if (const u64 o = c.other & ~SAME_PLACE; other(o) && concurrent(f, o)) shared_race(w, f, o, c.other & SAME_PLACE ? c.read_pc
            : other_pc, false, at, bytes, true, pc);
        c.write = mine;
        c.write_pc = static_cast<u32>(pc);
    } else {
        if (other(c.read)) {
            if (c.read_pc == static_cast<u32>(pc)) c.other = mine | SAME_PLACE;
            else c.other = mine, other_pc = static_cast<u32>(pc);
        } else {
            c.read = mine;
            if (c.read_pc != static_cast<u32>(pc)) {
                if (c.other >= (bound | SAME_PLACE)) c.other &= ~SAME_PLACE, other_pc = c.read_pc;
                c.read_pc = static_cast<u32>(pc);
            }
        }
    }
}

template <bool WRITE>
static __attribute__((noinline)) void shared_slow(Worker& w, Fiber& f, size_t word, u32 mask, size_t at, u32 bytes, bool atomic, u64 pc) {
    Mode& m = *w.mode;
    u8& flags = m.flags[word];
    const Block& owner = w.unit->blocks[word / SHARED_WORDS];
    if (!(flags & USED) || flags >> OUTSIDE & mask) {
        fault(w, OUT_OF_BOUNDS, SHARED, at, bytes, WRITE, pc);
        return;
    }
    SharedCell& whole = m.cells[word];
    if (flags & UNDER_WAY) fault(w, MISSING_WAIT, SHARED, at, bytes, WRITE, pc, whole.write_pc);
    if (mask != 15 && !(flags & SPLIT)) {
        for (u32 i = 0; i < 4; ++i) m.bytes[word * 4 + i] = whole;
        flags |= SPLIT;
        m.split_any = 1;
    }
    const u64 low = f.low | (atomic ? 1 : 0), bound = limit(w, *f.block);
    for (u32 i = 0; i < 4; ++i) {
        if (!(mask >> i & 1)) continue;
        SharedCell& c = flags & SPLIT ? m.bytes[word * 4 + i] : whole;
        if ((!WRITE || atomic) && c.write < owner.start) {
            fault(w, UNINITIALISED, SHARED, at, bytes, false, pc);
            c.write = owner.start;           // said once; clock 0: it races with nothing
        }
        shared_cell<WRITE>(w, f, c, m.other_pcs[word], low, bound, at, bytes, atomic, pc);
        if (!(flags & SPLIT)) break;
    }
}

// Shared memory of another block of the cluster is there from when that block has begun until it ends. False: it has ended.
static __attribute__((noinline)) bool neighbour(Worker& w, const Fiber& f, size_t at, u32 bytes, bool write, u64 pc) {
    const Block& b = w.unit->blocks[at / SHARED_STRIDE];
    if (b.live == 0) {
        if (Finding* found = fault(w, OUT_OF_BOUNDS, SHARED, at, bytes, write, pc)) found->detail[0] = 2;
        return false;
    }
    if (f.warp->all_began) return true;
    for (const Warp& warp : b.warps)
        if (f.warp->far[far_index(warp)]) return true;     // told by one of its threads
    if (Finding* found = fault(w, OUT_OF_BOUNDS, SHARED, at, bytes, write, pc)) found->detail[0] = 3;
    return true;
}

template <bool WRITE>
static inline void shared_access(Worker& w, size_t at, u32 bytes, u64 pc) {
    Mode& m = *w.mode;
    Fiber& f = *w.current;
    size_t word = at >> 2;
    const u32 shift = at & 3;
    const u64 bound = limit(w, *f.block), low = f.low;
    if (w.unit->cluster_blocks > 1 && at / SHARED_STRIDE != f.block->rank && !neighbour(w, f, at, bytes, WRITE, pc)) return;
    if ((bytes & 3) == 0 && shift == 0) {
        for (const size_t end = word + bytes / 4; word < end; ++word) {
            if (m.flags[word] == USED && (WRITE || m.cells[word].write >= f.block->start)) {
                shared_cell<WRITE>(w, f, m.cells[word], m.other_pcs[word], low, bound, at, bytes, false, pc);
            } else {
                shared_slow<WRITE>(w, f, word, 15, at, bytes, false, pc);
            }
        }
        return;
    }
    u32 left = bytes, from = shift;
    while (left) {
        const u32 n = std::min(left, 4 - from);
        shared_slow<WRITE>(w, f, word, ((1u << n) - 1) << from, at, bytes, false, pc);
        left -= n, from = 0, ++word;
    }
}
}  // namespace simt
