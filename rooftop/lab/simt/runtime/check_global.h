// Checking: an access to global memory, of one block among others that run in no order.
#pragma once
#include "shadow.h"

namespace simt {

// -- global -------------------------------------------------------------------------------------------------------------------------------

static u32 cluster_index(Worker& w, u32 tag) { return tag - w.launch->me0; }

// Whether what cluster `tag` did before came before now for this one, by a chain of atomics.
static bool ordered(Worker& w, u32 tag) {
    if (w.mode->met.size() >= 64) w.mode->acquired = release_time.load();   // too many to tell apart
    for (const Place* place : w.mode->met) w.mode->acquired = std::max(w.mode->acquired, place->time.load());
    const u32 i = cluster_index(w, tag);
    if (i >= released->size()) return w.mode->acquired != 0;
    const u32 time = (*released)[i].load();
    return time && time <= w.mode->acquired;
}

static void put_cluster(Worker& w, Finding& found, u32 tag) {   // a block of the cluster with this tag: its first
    const Launch& l = *w.launch;
    const u32 c = cluster_index(w, tag);
    if (c >= released->size()) return;
    const u32 cx = l.grid.x / l.cluster.x, cy = l.grid.y / l.cluster.y;
    found.other_block[0] = c % cx * l.cluster.x, found.other_block[1] = c / cx % cy * l.cluster.y, found.other_block[2] = c / cx / cy * l.cluster.z;
    found.has_other = 2;
}

// Another cluster than before reads the word.
static inline void note_reader(GlobalCell& c, size_t word, u32 me, u32 first, u64 pc) {
    Readers& r = readers[word];
    if (c.reader >= first) c.reader = many, r.second = me, r.second_pc = static_cast<u32>(pc);
    else c.reader = me, r.first = me, r.first_pc = static_cast<u32>(pc);
}

static __attribute__((noinline)) void global_slow(Worker& w, GlobalCell& c, size_t word, u32 mask, u32 bytes, bool write, bool atomic, u64 address, u64 pc) {
    const u32 bits = c.bits;
    if (!write || atomic) {
        if (~bits >> VALID & mask) {
            fault(w, OUT_OF_BOUNDS, GLOBAL, address, bytes, write, pc);
            return;
        }
        if (~bits >> INIT & mask) {
            fault(w, UNINITIALISED, GLOBAL, address, bytes, false, pc);
            c.bits |= mask << INIT;      // said once
        }
    }
    if (write && (~bits >> WRITABLE & mask)) {
        fault(w, (bits >> VALID & mask) == mask && (bits & 1 << 17) ? CONST_WRITE : OUT_OF_BOUNDS, GLOBAL, address, bytes, true, pc);
        return;
    }
    const u32 me = w.me, first = w.launch->me0;
    if (c.writer >= first && c.writer != me && (bits >> MINE & mask)) {
        // A plain read of what others change atomically gets one whole value or another: loops of compare-and-swap begin so.
        if (c.writer != mixed && !((atomic || !write) && bits & ATOMIC) && !ordered(w, c.writer)) {
            if (write && !atomic && !(bits & ATOMIC)) {
                Finding later = described(GLOBAL_RACE, GLOBAL, address, bytes, true, pc, c.pc);
                put_cluster(w, later, c.writer);
                later.detail[0] = 1;
                suspect(w, *w.current, global_pointer(address), later);
            } else if (Finding* found = fault(w, GLOBAL_RACE, GLOBAL, address, bytes, write, pc, c.pc)) {
                put_cluster(w, *found, c.writer);
                found->detail[0] = 1, found->detail[1] = bits & ATOMIC ? 1 : 0, found->detail[2] = atomic;
            }
        }
    } else if (write && !atomic && c.reader >= first && c.reader != me && !ordered(w, c.reader)) {
        // A reader of other bytes of the word is no race; which bytes were read is not kept, so words in parts are let pass.
        if (mask == 15) {
            const Readers& r = readers[word];
            const bool other = c.reader == many && r.first == me;
            if (Finding* found = fault(w, GLOBAL_RACE, GLOBAL, address, bytes, write, pc, other ? r.second_pc : r.first_pc)) {
                put_cluster(w, *found, other ? r.second : r.first);
                found->detail[0] = 0;
            }
        }
    }
    if (write) {
        const u32 before = c.writer >= first ? bits >> MINE & 15 : 0;
        const bool others = before & ~mask && c.writer != me;
        u32 now = (bits | mask << INIT) & ~(15u << MINE | ATOMIC);
        now |= ((others || c.writer == me ? before : 0) | mask) << MINE;
        if (atomic) now |= ATOMIC;
        c.bits = now;
        c.writer = others ? mixed : me;
        c.pc = static_cast<u32>(pc);
    } else if (c.reader != me && c.reader != many) {
        note_reader(c, word, me, first, pc);
    }
}

static bool concurrent(Worker& w, const Fiber& f, u64 record);
static inline u64 limit(const Worker& w, const Block& b) { return w.unit->cluster_blocks == 1 ? b.epoch : std::min(b.epoch, w.unit->cluster_epoch); }

// What another thread of the block or cluster has written with no barrier since.
static inline void same_cluster(Worker& w, Fiber& f, GlobalCell& c, size_t word, u32 mask, u32 bytes, bool write, u64 address, u64 pc) {
    const u64 record = stamps[word];
    if (record < limit(w, *f.block) || ((record ^ f.low) >> THREAD_SHIFT & 0x3fff) == 0 || c.bits & ATOMIC || !(c.bits >> MINE & mask)) return;
    if (mask != 15 || w.launch->cooperative || !concurrent(w, f, record)) return;
    Finding later = described(GLOBAL_RACE, GLOBAL, address, bytes, write, pc, c.pc);
    other_thread(w, later, static_cast<u32>(record >> THREAD_SHIFT & 0x3fff));
    later.detail[0] = 1, later.detail[3] = 1;
    if (write) {
        suspect(w, f, global_pointer(address), later);
    } else if (Finding* found = report(w, f, GLOBAL_RACE, pc, c.pc)) {
        const u64 count = found->count;
        *found = later;
        found->count = count;
        put_thread(*found, f);
    }
}

template <bool WRITE>
static inline void global_word(Worker& w, Fiber& f, size_t word, u32 mask, u32 bytes, u64 address, u64 pc) {
    GlobalCell& c = cells[word];
    const u32 me = w.me, first = w.launch->me0;
    if (!WRITE) {
        if ((c.bits & mask) == mask && (c.writer < first || c.writer == me)) {
            if (c.writer == me) same_cluster(w, f, c, word, mask, bytes, false, address, pc);
            if (c.reader != me && c.reader != many) note_reader(c, word, me, first, pc);
            return;
        }
    } else if ((c.bits >> WRITABLE & mask) == mask && (c.writer < first || c.writer == me) && (c.reader < first || c.reader == me)) {
        if (c.writer == me) same_cluster(w, f, c, word, mask, bytes, true, address, pc);
        stamps[word] = f.block->epoch | f.low;
        c.bits = (c.bits & ~(ATOMIC | (c.writer == me ? 0 : 15u << MINE))) | mask << INIT | mask << MINE;
        c.writer = me;
        c.pc = static_cast<u32>(pc);
        return;
    }
    if (WRITE) stamps[word] = f.block->epoch | f.low;
    global_slow(w, c, word, mask, bytes, WRITE, false, address, pc);
}

template <bool WRITE>
static inline void global_access(Worker& w, size_t at, u32 bytes, u64 pc) {
    size_t word = at >> 2;
    const u32 shift = at & 3;
    Fiber& f = *w.current;
    if (bytes <= 4 && shift + bytes <= 4) {
        global_word<WRITE>(w, f, word, ((1u << bytes) - 1) << shift, bytes, at, pc);
        return;
    }
    u32 left = bytes, from = shift;
    while (left) {
        const u32 n = std::min(left, 4 - from);
        global_word<WRITE>(w, f, word, ((1u << n) - 1) << from, bytes, at, pc);
        left -= n, from = 0, ++word;
    }
}

void mode_sync(Worker& w, Fiber& f) {
    if (f.outside) overrun(w, f, nullptr, 0);
    if (f.suspect) settle(w, f);
}
}  // namespace simt
