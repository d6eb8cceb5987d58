// Checking: an access to global memory, of one block among others that run in no order.
#pragma once
#include "shadow.h"

namespace simt {

// -- global -------------------------------------------------------------------------------------------------------------------------------

static u32 cluster_index(Worker& w, u32 tag) { return tag - w.launch->me0; }

// The place of an address (and 1), or null where it has none; `make`: then it gets one.
static Place* place_of(u64 address, bool make) {
    const size_t n = places->size();
    size_t i = (address >> 2) * 0x9e3779b97f4a7c15u >> 50;
    for (size_t tries = 0; tries < PLACE_TRIES; ++tries, i = (i + 1) % n) {
        u64 there = (*places)[i].address.load();
        if (there == address) return &(*places)[i];
        if (there == 0 && !make) return nullptr;
        if (there == 0 && (*places)[i].address.compare_exchange_strong(there, address)) return &(*places)[i];
        if (there == address) return &(*places)[i];
    }
    return &(*places)[0];
}
static void meet(Order& m, Place* place) {
    if (m.met.size() < MOST_MET && std::find(m.met.begin(), m.met.end(), place) == m.met.end()) m.met.push_back(place);
}
// A volatile read of an address makes no place. What it reads is there after this, and a release by then: so it is looked for again later.
static void seek(Order& m, u64 address) {
    if (Place* place = place_of(address, false)) return meet(m, place);
    if (std::find(m.sought.begin(), m.sought.end(), address) != m.sought.end()) return;
    if (m.sought.size() < MOST_MET) return m.sought.push_back(address);
    u64& old = m.sought[m.next_sought++ % MOST_MET];
    if (Place* place = place_of(old, false)) meet(m, place);
    old = address;
}

// Whether what cluster `tag` did when it had released `since` times came before now for this one, by a chain of atomics. Taken to, if that
// is long ago.
static bool ordered(Worker& w, u32 tag, u32 since) {
    Order& m = *w.current->block->order;
    for (const u64 address : m.sought)
        if (Place* place = place_of(address, false)) meet(m, place);
    if (m.met.size() >= MOST_MET) m.acquired = release_time.load();   // too many to tell apart
    for (const Place* place : m.met) m.acquired = std::max(m.acquired, place->time.load());
    const u32 i = cluster_index(w, tag);
    if (i >= released_count) return m.acquired != 0;
    const Releases& r = released[i];
    const u32 count = r.count.load(), ago = (count - since) & Releases::LOW, next = count - ago;   // the first release after it
    if (ago == 0) return false;
    const u32 time = r.times[next % Releases::KEPT].load();
    return time <= m.acquired || r.count.load() - next >= Releases::KEPT;   // another may be taking its place by then
}

enum How : u8 { PLAINLY, AS_VOLATILE, ATOMICALLY };

// Volatile accesses and atomics of several threads of the host at one word: its cell changes at once.
class CellLock {
    static inline std::atomic<bool> held[256];
    std::atomic<bool>* mine;
public:
    CellLock(size_t word, How how) : mine(how == PLAINLY ? nullptr : &held[word % 256]) {
        while (mine && mine->exchange(true, std::memory_order_acquire)) {}
    }
    ~CellLock() { if (mine) mine->store(false, std::memory_order_release); }
};

static void put_cluster(Worker& w, Finding& found, u32 tag) {   // a block of the cluster with this tag: its first
    const Launch& l = *w.launch;
    const u32 c = cluster_index(w, tag);
    if (c >= released_count) return;
    const u32 cx = l.grid.x / l.cluster.x, cy = l.grid.y / l.cluster.y;
    found.other_block[0] = c % cx * l.cluster.x, found.other_block[1] = c / cx % cy * l.cluster.y,
        found.other_block[2] = c / cx / cy * l.cluster.z;
    found.has_other = 2;
}

// A cluster reads the word by an atomic or as volatile.
static void note_watcher(const Worker& w, GlobalCell& c, size_t word, u64 pc) {
    const Block& b = *w.current->block;
    const u32 me = b.me, first = w.launch->me0;
    const u16 since = static_cast<u16>(b.order->since);
    Readers& r = watchers[word];
    if (r.first < first) r = {me, static_cast<u32>(pc), 0, 0, since};
    else if (r.first == me) r.first_since = since;
    else if (r.second < first) r.second = me, r.second_pc = static_cast<u32>(pc);
    if (!(c.bits & WATCHED)) __atomic_fetch_or(&c.bits, WATCHED, __ATOMIC_RELAXED);
}

// A cluster reads the word.
static inline void note_reader(const Worker& w, GlobalCell& c, size_t word, u64 pc) {
    if (c.reader == many) return;
    const Block& b = *w.current->block;
    const u32 me = b.me, since = b.order->since;
    Readers& r = readers[word];
    if (c.reader == me) {
        if (__builtin_expect(since != 0, 0)) r.first_since = static_cast<u16>(since);
    } else if (c.reader >= w.launch->me0) {
        c.reader = many, r.second = me, r.second_pc = static_cast<u32>(pc);
    } else {
        c.reader = r.first = me, r.first_pc = static_cast<u32>(pc), r.first_since = static_cast<u16>(since);
    }
}

static __attribute__((noinline, cold)) void read_before(Worker& w, const Readers& r, u32 bytes, u64 address, u64 pc) {
    const bool other = r.second >= w.launch->me0 && r.first == w.current->block->me;
    if (Finding* found = fault(w, GLOBAL_RACE, GLOBAL, address, bytes, true, pc, other ? r.second_pc : r.first_pc)) {
        put_cluster(w, *found, other ? r.second : r.first);
        found->detail[0] = 0;
    }
}

// PTX takes ld.volatile and st.volatile for relaxed ones of the system's scope (PTX ISA, Memory Consistency Model): they race with what is
// plain alone.
static __attribute__((noinline)) void global_slow(Worker& w, GlobalCell& c, size_t word, u32 mask, u32 bytes, bool write, bool read,
    How how, u64 address, u64 pc) {
    if (__builtin_expect(__atomic_load_n(&pages[word * 4 / PAGE_BYTES], __ATOMIC_ACQUIRE) != IN_CELLS, 0)) into_cells(word * 4);
    const CellLock lock(word, how);
    const u32 bits = c.bits;
    if (read) {
        if (~bits >> VALID & mask) {
            fault(w, OUT_OF_BOUNDS, GLOBAL, address, bytes, write, pc);
            return;
        }
        if (~bits >> INIT & mask && !unwatched) {
            fault(w, UNINITIALISED, GLOBAL, address, bytes, false, pc);
            if (w.launch->poison == FIRST_POISON) c.bits |= mask << INIT;      // said once; later runs are asked what was written
        }
    }
    if (write && (~bits >> WRITABLE & mask)) {
        fault(w, (bits >> VALID & mask) == mask && (bits & INPUT) ? CONST_WRITE : OUT_OF_BOUNDS, GLOBAL, address, bytes, true, pc);
        return;
    }
    const u32 me = w.current->block->me, first = w.launch->me0;
    const bool theirs = c.writer >= first && c.writer != me && (bits >> MINE & mask);   // others wrote it
    if (theirs) {
        // A plain read of what others change atomically gets one whole value or another: loops of compare-and-swap begin so.
        const bool together = bits & ATOMIC && (how != PLAINLY || (!write && !(bits & VOLATILE)));
        if (c.writer != mixed && !together && !ordered(w, c.writer, bits >> SINCE)) {
            if (write && how != ATOMICALLY && (!(bits & ATOMIC) || bits & VOLATILE)) {
                Finding later = described(GLOBAL_RACE, GLOBAL, address, bytes, true, pc, c.pc);
                put_cluster(w, later, c.writer);
                later.detail[0] = 1;
                suspect(w, *w.current, global_pointer(address), later);
            } else if (Finding* found = fault(w, GLOBAL_RACE, GLOBAL, address, bytes, write, pc, c.pc)) {
                put_cluster(w, *found, c.writer);
                found->detail[0] = 1;
            }
        }
    }
    if (write && mask == 15 && (how == PLAINLY ? !theirs : how == AS_VOLATILE && (!theirs || bits & ATOMIC))) {
        // A reader of other bytes of the word is no race; which bytes were read is not kept, so words in parts are let pass.
        const Readers& r = watchers[word];
        const u32 watcher = !(bits & WATCHED) || r.first < first ? 0 : r.second >= first ? many : r.first;
        if (c.reader >= first && c.reader != me && !ordered(w, c.reader, readers[word].first_since)) read_before(w, readers[word], bytes,
            address, pc);
        else if (how == PLAINLY && watcher && watcher != me && !ordered(w, watcher, r.first_since)) read_before(w, r, bytes, address, pc);
    }
    if (write) {
        const u32 before = c.writer >= first ? bits >> MINE & 15 : 0;
        const bool others = before & ~mask && c.writer != me;
        u32 now = (bits | mask << INIT) & ~(15u << MINE | Releases::LOW << SINCE | ATOMIC | VOLATILE);
        now |= ((others || c.writer == me ? before : 0) | mask) << MINE | w.current->block->order->since << SINCE;
        if (how != PLAINLY) now |= how == AS_VOLATILE ? ATOMIC | VOLATILE : ATOMIC;
        c.bits = now;
        c.writer = others ? mixed : me;
        c.pc = static_cast<u32>(pc);
    } else if (how != PLAINLY) {
        note_watcher(w, c, word, pc);
    } else {
        note_reader(w, c, word, pc);
    }
}

static bool concurrent(const Fiber& f, u64 record);
static inline u64 limit(const Worker& w, const Block& b) { return w.unit->cluster_blocks == 1 ? b.epoch
    : std::min(b.epoch, b.cluster_epoch); }

// What another thread of the block or cluster has written with no barrier since.
static inline void same_cluster(Worker& w, Fiber& f, GlobalCell& c, size_t word, u32 mask, u32 bytes, bool write, u64 address, u64 pc) {
    const u64 record = stamps[word];
    if (record < limit(w, *f.block) || ((record ^ f.low) >> THREAD_SHIFT & 0x3fff) == 0 || (c.bits & (ATOMIC | VOLATILE)) == ATOMIC
        || !(c.bits >> MINE & mask)) return;
    if (mask != 15 || !concurrent(f, record)) return;
    Finding later = described(GLOBAL_RACE, GLOBAL, address, bytes, write, pc, c.pc);
    other_thread(later, thread_of(f, record));
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
    const u32 me = f.block->me, first = w.launch->me0;
    if (!WRITE) {
        if ((c.bits & mask) == mask && (c.writer < first || c.writer == me)) {
            if (c.writer == me) same_cluster(w, f, c, word, mask, bytes, false, address, pc);
            note_reader(w, c, word, pc);
            return;
        }
    } else if ((c.bits >> WRITABLE & mask) == mask && !(c.bits & WATCHED) && (c.writer < first || c.writer == me)
        && (c.reader < first || c.reader == me)) {
        if (c.writer == me) same_cluster(w, f, c, word, mask, bytes, true, address, pc);
        stamps[word] = f.block->epoch | f.low;
        c.bits = (c.bits & ~(Releases::LOW << SINCE | ATOMIC | VOLATILE | (c.writer == me ? 0 : 15u << MINE))) | mask << INIT | mask
            << MINE | f.block->order->since << SINCE;
        c.writer = me;
        c.pc = static_cast<u32>(pc);
        return;
    }
    if (WRITE && c.bits & WATCHED && c.writer == me) same_cluster(w, f, c, word, mask, bytes, true, address, pc);
    if (WRITE) stamps[word] = f.block->epoch | f.low;
    global_slow(w, c, word, mask, bytes, WRITE, !WRITE, PLAINLY, address, pc);
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

void mode_met(Warp&, u32) {}
void mode_sync(Worker& w, Fiber& f, u32) {
    if (f.outside) overrun(w, f, nullptr, 0);
    if (f.suspect) settle(w, f);
}
}  // namespace simt
