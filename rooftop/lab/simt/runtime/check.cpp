// Checking: what the instrumented accesses report is held against a shadow of global and of shared memory.
#include "engine.h"

namespace simt {

// -- global memory: one cell for each 4 bytes --------------------------------------------------------------------------------------
// Tags of `writer` and `reader`: 0 nobody in this launch, else a cluster's (blocks of a cluster count as one: their barriers order them).
struct GlobalCell {
    u32 writer, reader, pc, bits;   // pc: of the write. bits: 4 initialised, 4 readable, 4 writable, 4 written by `writer`, 1 by atomics
};
constexpr u32 INIT = 0, VALID = 4, WRITABLE = 8, MINE = 12, ATOMIC = 1 << 16;
static GlobalCell* cells;
static u32* reader_pcs;
static u64* stamps;                 // of the last write, as in shared memory: for races inside a cluster
static size_t cell_count;
static u32 many, mixed;             // tags of this launch: several readers; several writers, each of its own bytes
static std::vector<std::atomic<u32>>* released;   // by cluster: when it last released what it had done
static std::atomic<u32> release_time;
struct Acquired { u32 first, time; };

struct Place {                      // an address that atomics meet at
    std::atomic<u64> address;
    std::atomic<u32> time;
};
static std::vector<Place>* places;

// -- shared memory: one cell for each 4 bytes of each block of the unit --------------------------------------------------------------
// A record: epoch << 30 | thread << 16 | the lane's clock << 1 | atomic.
struct SharedCell {
    u64 write, read, other;         // the last write; a read since; one by another thread
    u32 write_pc, read_pc;
};
enum Flag : u8 { INVALID = 0, USED = 1, SPLIT = 2, UNDER_WAY = 4 };

// Two writes of one value do no harm whichever comes last. The second is seen before it is done, so what it makes is looked at afterwards.
struct Suspect {
    char* at;
    u8 before[16];
    Finding finding;
    bool armed = false;
};

struct Mode {
    Suspect suspect;                // of the thread that runs: it is settled before another does
    SharedCell* cells = nullptr;    // by word
    SharedCell* bytes = nullptr;    // by byte, of words that are accessed in parts
    u8* flags = nullptr;            // by word
    size_t words = 0;
    u32 acquired = 0;               // the time up to which this cluster has acquired,
    std::vector<Place*> met;        // at these addresses
    u32 split_any = 0, way_any = 0;
};

template <class T>
static T* map_array(size_t n) {
    void* p = mmap(nullptr, n * sizeof(T) + 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<T*>(p);
}

void mode_launch(Launch& l) {
    const u32 clusters = l.grid.x * l.grid.y * l.grid.z / (l.cluster.x * l.cluster.y * l.cluster.z);
    many = l.me0 + clusters, mixed = many + 1;
    delete released;
    released = new std::vector<std::atomic<u32>>(clusters);
    release_time = 0;
    delete places;
    places = new std::vector<Place>(1 << 14);
}
void mode_new_grid_phase(Launch& l) {
    // A barrier of the whole grid: everything before it is past. One worker runs a cooperative launch.
    const u32 step = mixed + 3 - l.me0;
    l.me0 += step, many += step, mixed += step;
    worker->me += step;
}

void mode_worker(Worker& w, bool begins) {
    if (begins) {
        Mode* m = new Mode;
        m->words = w.shared_bytes / 4;
        m->cells = map_array<SharedCell>(m->words);
        m->bytes = map_array<SharedCell>(m->words * 4);
        m->flags = map_array<u8>(m->words);
        w.mode = m;
    } else {
        Mode* m = w.mode;
        munmap(m->cells, m->words * sizeof(SharedCell) + 64);
        munmap(m->bytes, m->words * 4 * sizeof(SharedCell) + 64);
        munmap(m->flags, m->words + 64);
        delete m;
    }
}
void mode_shared_range(Worker& w, u32 from, u32 bytes) {
    for (size_t b = 0; b < w.shared_bytes / SHARED_STRIDE; ++b)
        for (u32 word = from / 4; word < (from + bytes + 3) / 4; ++word) w.mode->flags[b * SHARED_WORDS + word] |= USED;
    for (size_t b = 0; b < w.shared_bytes / SHARED_STRIDE; ++b) std::memset(w.shared + b * SHARED_STRIDE + from, static_cast<int>(w.launch->poison), bytes);
}
void mode_unit(Worker& w, Unit&, bool begins) {
    Mode& m = *w.mode;
    if (!begins) return;
    Launch& l = *w.launch;
    if (l.dynamic) mode_shared_range(w, 0, l.dynamic);   // nothing in shared memory is what the block before left there
    for (u32 i = 0; i < w.shared_known; ++i) {
        std::pair<u32, u32> range;
        {
            std::lock_guard<std::mutex> lock(l.mutex);
            range = l.shared_ranges[i];
        }
        mode_shared_range(w, range.first, range.second);
    }
    m.acquired = 0;
    m.met.clear();
    if (m.split_any || m.way_any)
        for (size_t i = 0; i < m.words; ++i)
            if (m.flags[i] > USED) m.flags[i] = USED;
    m.split_any = m.way_any = 0;
}
void mode_stall(Worker&, Warp&) {}

// -- faults ---------------------------------------------------------------------------------------------------------------------------

static __attribute__((noinline, cold)) Finding* fault(Worker& w, Kind kind, Memory space, u64 address, u32 bytes, bool write, u64 pc, u64 other_pc = 0) {
    Finding* found = report(w, *w.current, kind, pc, other_pc);
    if (found) found->space = space, found->address = address, found->bytes = bytes, found->write = write;
    return found;
}

static Finding described(Kind kind, Memory space, u64 address, u32 bytes, bool write, u64 pc, u64 other_pc) {
    Finding f;
    std::memset(&f, 0, sizeof f);
    f.kind = kind, f.space = space, f.address = address, f.bytes = bytes, f.write = write, f.pc = pc, f.other_pc = other_pc, f.count = 1;
    return f;
}
static void put_thread(Finding& found, const Fiber& f) {
    found.block[0] = f.block->index.x, found.block[1] = f.block->index.y, found.block[2] = f.block->index.z;
    found.thread[0] = f.tid.x, found.thread[1] = f.tid.y, found.thread[2] = f.tid.z;
}

static __attribute__((noinline, cold)) void wild(Worker& w, u64 address, u32 bytes, bool write, u64 pc) {
    if (Finding* found = fault(w, OUT_OF_BOUNDS, OTHER, address, bytes, write, pc)) found->detail[0] = address == 0;
    die(w);
}

static __attribute__((noinline, cold)) void settle(Worker& w, Fiber& f) {
    Suspect& s = *f.suspect;
    f.suspect = nullptr;
    if (!std::memcmp(s.at, s.before, std::min<u32>(s.finding.bytes, 16))) return;
    if (Finding* found = report(w, f, static_cast<Kind>(s.finding.kind), s.finding.pc, s.finding.other_pc)) {
        const u64 count = found->count;
        *found = s.finding;
        found->count = count;
        put_thread(*found, f);
    }
}
static void suspect(Worker& w, Fiber& f, char* at, const Finding& finding) {
    if (f.suspect) return;
    Suspect& s = w.mode->suspect;
    s.at = at, s.finding = finding;
    std::memcpy(s.before, at, std::min<u32>(finding.bytes, 16));
    f.suspect = &s;
}

// An index outside the type of its array. Of an array in shared or global memory the access itself follows at once and is judged by its
// address (rows of a tile may be walked as one); what follows no access is an array of the thread's own.
static __attribute__((noinline, cold)) void overrun(Worker& w, Fiber& f, u64 pc, const void* p) {
    const u64 at = f.outside;
    f.outside = 0;
    if (p && pc > at && pc - at < 192 && memory_of(p) != LOCAL) return;
    if (Finding* found = report(w, f, OUT_OF_BOUNDS, at)) snprintf(found->text, sizeof found->text, "index %llu of an array of the thread's own, %.100s", static_cast<unsigned long long>(f.index), f.array);
}

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
                suspect(w, *w.current, arena + address, later);
            } else if (Finding* found = fault(w, GLOBAL_RACE, GLOBAL, address, bytes, write, pc, c.pc)) {
                put_cluster(w, *found, c.writer);
                found->detail[0] = 1, found->detail[1] = bits & ATOMIC ? 1 : 0, found->detail[2] = atomic;
            }
        }
    } else if (write && !atomic && c.reader >= first && c.reader != me && !ordered(w, c.reader)) {
        // A reader of other bytes of the word is no race; which bytes were read is not kept, so words in parts are let pass.
        if (mask == 15) {
            if (Finding* found = fault(w, GLOBAL_RACE, GLOBAL, address, bytes, write, pc, reader_pcs[word])) {
                if (c.reader != many) put_cluster(w, *found, c.reader);
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
    } else if (c.reader != me) {
        if (c.reader != many) {
            c.reader = c.reader >= first ? many : me;
            reader_pcs[word] = static_cast<u32>(pc);
        }
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
        suspect(w, f, arena + address, later);
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
            if (c.reader != me && c.reader != many) {
                c.reader = c.reader >= first ? many : me;
                reader_pcs[word] = static_cast<u32>(pc);
            }
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
    if (f.outside) overrun(w, f, 0, nullptr);
    if (f.suspect) settle(w, f);
}

// -- shared ---------------------------------------------------------------------------------------------------------------------------------

// Whether the access that left `record` may run at the same time as one that `f` makes now.
static bool concurrent(Worker& w, const Fiber& f, u64 record) {
    const u32 thread = static_cast<u32>(record >> THREAD_SHIFT & 0x3fff);
    if (thread == f.number || (record >> 1 & 0x7fff) == 0) return false;
    const Fiber& other = w.unit->fibers[thread];
    if (other.block != f.block) return (record & ~LOW_MASK) >= w.unit->cluster_epoch;
    if (record < f.block->epoch) return false;
    const u32 clock = static_cast<u32>(record >> 1 & 0x7fff);
    if (clock >= CLOCK_LIMIT) return false;
    if (other.warp == f.warp) return f.warp->clocks[f.lane][other.lane] < clock;
    return f.warp->knows[other.warp->index] < clock;
}

static __attribute__((noinline)) void shared_race(Worker& w, Fiber& f, u64 record, u32 other_pc, bool other_writes, u64 address, u32 bytes, bool write, u64 pc) {
    const u32 thread = static_cast<u32>(record >> THREAD_SHIFT & 0x3fff);
    const Fiber& other = w.unit->fibers[thread];
    const Kind kind = other.warp == f.warp ? WARP_RACE : SHARED_RACE;
    if (write && other_writes) {
        Finding later = described(kind, SHARED, address, bytes, true, pc, other_pc);
        other_thread(w, later, thread);
        later.detail[0] = 1;
        suspect(w, f, w.shared + address, later);
        return;
    }
    if (Finding* found = fault(w, kind, SHARED, address, bytes, write, pc, other_pc)) {
        other_thread(w, *found, thread);
        found->detail[0] = other_writes;
    }
}

// One cell (a word, or a byte of a split word). `slow`: something is to be looked at closely.
template <bool WRITE>
static inline void shared_cell(Worker& w, Fiber& f, SharedCell& c, u64 low, u64 bound, size_t at, u32 bytes, bool atomic, u64 pc) {
    const Block& b = *f.block;
    const u64 mine = b.epoch | low;
    constexpr u64 THREAD = u64(0x3fff) << THREAD_SHIFT;
    const auto other = [&](u64 record) { return record >= bound && ((record ^ low) & THREAD) && !(atomic && record & 1); };
    if (other(c.write) && concurrent(w, f, c.write)) shared_race(w, f, c.write, c.write_pc, true, at, bytes, WRITE, pc);
    if (WRITE) {
        if (other(c.read) && concurrent(w, f, c.read)) shared_race(w, f, c.read, c.read_pc, false, at, bytes, true, pc);
        else if (other(c.other) && concurrent(w, f, c.other)) shared_race(w, f, c.other, c.read_pc, false, at, bytes, true, pc);
        c.write = mine;
        c.write_pc = static_cast<u32>(pc);
    } else {
        if (other(c.read)) c.other = mine;
        else c.read = mine;
        c.read_pc = static_cast<u32>(pc);
    }
}

template <bool WRITE>
static __attribute__((noinline)) void shared_slow(Worker& w, Fiber& f, size_t word, u32 mask, size_t at, u32 bytes, bool atomic, u64 pc) {
    Mode& m = *w.mode;
    u8& flags = m.flags[word];
    const Block& owner = w.unit->blocks[word / SHARED_WORDS];
    if (!(flags & USED)) {
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
        shared_cell<WRITE>(w, f, c, low, bound, at, bytes, atomic, pc);
        if (!(flags & SPLIT)) break;
    }
}

template <bool WRITE>
static inline void shared_access(Worker& w, size_t at, u32 bytes, u64 pc) {
    Mode& m = *w.mode;
    Fiber& f = *w.current;
    size_t word = at >> 2;
    const u32 shift = at & 3;
    const u64 bound = limit(w, *f.block), low = f.low;
    if (w.unit->cluster_blocks > 1 && w.unit->blocks[at / SHARED_STRIDE].live == 0) {
        if (Finding* found = fault(w, OUT_OF_BOUNDS, SHARED, at, bytes, WRITE, pc)) found->detail[0] = 2;
        return;
    }
    if ((bytes & 3) == 0 && shift == 0) {
        for (const size_t end = word + bytes / 4; word < end; ++word) {
            if (m.flags[word] == USED && (WRITE || m.cells[word].write >= f.block->start)) {
                shared_cell<WRITE>(w, f, m.cells[word], low, bound, at, bytes, false, pc);
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

// -- every access ---------------------------------------------------------------------------------------------------------------------------

template <bool WRITE>
static inline void access(Worker& w, const void* p, u32 bytes, u64 pc) {
    const char* at = static_cast<const char*>(p);
    Fiber& f = *w.current;
    f.last = pc;
    if (__builtin_expect(f.suspect != nullptr, 0)) settle(w, f);
    if (__builtin_expect(f.outside != 0, 0)) overrun(w, f, pc, p);
    if (const size_t in = static_cast<size_t>(at - w.shared); in < w.shared_bytes) {
        shared_access<WRITE>(w, in, bytes, pc);
    } else if (const size_t far = static_cast<size_t>(at - arena); far < cell_count * 4) {
        global_access<WRITE>(w, far, bytes, pc);
    } else if (static_cast<size_t>(at - w.stacks) < w.stack_bytes) {
    } else if (at >= &__ehdr_start && at < &_end) {
    } else {
        wild(w, reinterpret_cast<u64>(p), bytes, WRITE, pc);
    }
}

static __attribute__((noinline, cold)) void misaligned(Worker& w, const void* p, u32 bytes, bool write, u64 pc) {
    const Memory space = memory_of(p);
    if (space == LOCAL) return;
    const char* base = space == SHARED ? w.shared : space == GLOBAL ? arena : nullptr;
    fault(w, MISALIGNED, space, static_cast<u64>(static_cast<const char*>(p) - base), bytes, write, pc);
}

void mode_misaligned(Worker& w, const void* p, u32 bytes, u64 pc) { misaligned(w, p, bytes, false, pc); }
void mode_access(Worker& w, const void* p, u32 bytes, bool write, u64 pc) {
    if (write) access<true>(w, p, bytes, pc);
    else access<false>(w, p, bytes, pc);
}

static Place& place_of(u64 address) {
    const size_t n = places->size();
    size_t i = (address >> 2) * 0x9e3779b97f4a7c15u >> 50;
    for (size_t tries = 0; tries < n; ++tries, i = (i + 1) % n) {
        u64 there = (*places)[i].address.load();
        if (there == address) return (*places)[i];
        if (there == 0 && (*places)[i].address.compare_exchange_strong(there, address)) return (*places)[i];
        if (there == address) return (*places)[i];
    }
    return (*places)[0];
}

// An atomic on shared memory releases what its thread did before a fence, and acquires what others released at the same word.
static void order_by(Worker& w, u64 word, bool writes, bool releases) {
    Fiber& f = *w.current;
    Warp& warp = *f.warp;
    if (f.block->threads <= 32) return;
    if (const auto at = w.unit->releases.find(word); at != w.unit->releases.end()) {
        for (int i = 0; i < 32; ++i) warp.knows[i] = std::max(warp.knows[i], at->second.past[i]);
        for (int i = 0; i < 32; ++i) warp.clocks[f.lane][i] = std::max(warp.clocks[f.lane][i], static_cast<u16>(i == static_cast<int>(f.lane) ? 0 : at->second.past[warp.index]));
    }
    if (!writes || !releases) return;
    MBarrier& place = w.unit->releases[word];
    u16& clock = warp.clocks[f.lane][f.lane];
    for (int i = 0; i < 32; ++i) place.past[i] = std::max(place.past[i], warp.knows[i]);
    place.past[warp.index] = std::max(place.past[warp.index], clock);
    if (clock < CLOCK_LIMIT) ++clock;
    f.low = (f.low & ~u64(0xffff)) | static_cast<u64>(clock) << 1;
}

void mode_atomic(Worker& w, void* p, u32 bytes, int kind, u64 pc) {
    char* at = static_cast<char*>(p);
    w.current->last = pc;
    if (w.current->suspect) settle(w, *w.current);
    if (reinterpret_cast<u64>(p) & (bytes - 1)) misaligned(w, p, bytes, true, pc);
    const bool writes = (kind & 3) != 1;
    if (const size_t in = static_cast<size_t>(at - w.shared); in < w.shared_bytes) {
        for (u32 i = 0; i < std::max(1u, bytes / 4); ++i) {
            const u32 mask = bytes >= 4 ? 15 : ((1u << bytes) - 1) << (in & 3);
            if (writes) shared_slow<true>(w, *w.current, in / 4 + i, mask, in, bytes, true, pc);
            else shared_slow<false>(w, *w.current, in / 4 + i, mask, in, bytes, true, pc);
        }
        order_by(w, in / 4, writes, kind & 4 || w.current->fenced);
    } else if (const size_t far = static_cast<size_t>(at - arena); far < cell_count * 4) {
        Place& place = place_of(far + 1);
        if (kind & 4 || w.current->fenced) {
            const u32 time = ++release_time, mine = cluster_index(w, w.me);
            if (writes) {
                if (mine < released->size()) (*released)[mine] = time;
                place.time = time;
            }
        }
        std::vector<Place*>& met = w.mode->met;
        if ((kind & 3) != 2 && met.size() < 64 && std::find(met.begin(), met.end(), &place) == met.end()) met.push_back(&place);
        order_by(w, u64(1) << 40 | far / 4, writes, kind & 4 || w.current->fenced);
        for (u32 i = 0; i < std::max(1u, bytes / 4); ++i) {
            const u32 mask = bytes >= 4 ? 15 : ((1u << bytes) - 1) << (far & 3);
            global_slow(w, cells[far / 4 + i], far / 4 + i, mask, bytes, writes, true, far, pc);
        }
    } else if (!(at >= &__ehdr_start && at < &_end) && static_cast<size_t>(at - w.stacks) >= w.stack_bytes) {
        wild(w, reinterpret_cast<u64>(p), bytes, true, pc);
    }
}

void mode_copy_begin(Worker& w, Copy& c) {
    if (reinterpret_cast<u64>(c.from) & (c.bytes - 1)) misaligned(w, c.from, c.bytes, false, c.pc);
    if (reinterpret_cast<u64>(c.to) & (c.bytes - 1)) misaligned(w, c.to, c.bytes, true, c.pc);
    if (c.filled) access<false>(w, c.from, c.filled, c.pc);
    const size_t in = static_cast<size_t>(c.to - w.shared);
    if (in >= w.shared_bytes) {
        if (Finding* found = fault(w, OUT_OF_BOUNDS, memory_of(c.to), reinterpret_cast<u64>(c.to), c.bytes, true, c.pc)) found->detail[1] = 1;
        die(w);
    }
    shared_access<true>(w, in, c.bytes, c.pc);
    for (u32 i = 0; i < c.bytes / 4; ++i)
        if (u8& flags = w.mode->flags[in / 4 + i]; flags & USED) flags |= UNDER_WAY;
    w.mode->way_any = 1;
    if (in / 4 + c.bytes / 4 <= w.mode->words && w.mode->flags[in / 4] & USED) std::memset(c.to, 0xff, c.bytes);   // NaN until it lands
}
void mode_copy_end(Worker& w, Copy& c) {
    const size_t in = static_cast<size_t>(c.to - w.shared);
    Fiber& f = *w.current;
    for (u32 i = 0; i < c.bytes / 4; ++i) {
        u8& flags = w.mode->flags[in / 4 + i];
        flags &= static_cast<u8>(~UNDER_WAY);
        SharedCell& cell = w.mode->cells[in / 4 + i];
        cell.write = f.block->epoch | f.low;
        cell.write_pc = static_cast<u32>(c.pc);
        if (flags & SPLIT)
            for (u32 k = 0; k < 4; ++k) w.mode->bytes[in + 4 * i + k] = cell;
    }
}
}  // namespace simt

using namespace simt;

static void block_access(Worker& w, const void* p, size_t n, bool write, u64 pc) {
    if (!n || !w.current) return;
    if (write) access<true>(w, p, static_cast<u32>(n), pc);
    else access<false>(w, p, static_cast<u32>(n), pc);
}

extern "C" {
__attribute__((visibility("default"))) void* simt_arena(size_t bytes) {
    if (arena) {
        munmap(arena, static_cast<size_t>(arena_end - arena));
        munmap(cells, cell_count * sizeof(GlobalCell) + 64);
        munmap(reader_pcs, cell_count * sizeof(u32) + 64);
        munmap(stamps, cell_count * sizeof(u64) + 64);
    }
    arena = map_array<char>(bytes);
    arena_end = arena ? arena + bytes : nullptr;
    cell_count = arena ? bytes / 4 : 0;
    cells = map_array<GlobalCell>(cell_count);
    reader_pcs = map_array<u32>(cell_count);
    stamps = map_array<u64>(cell_count);
    return arena;
}

/// Marks the elements of a tensor: `bits` has 1 initialised, 2 readable, 4 writable, 8 is a kernel's constant input.
__attribute__((visibility("default"))) void simt_mark(size_t at, u32 item, u32 dims, const u64* shape, const u64* strides, u32 bits) {
    if (dims == 0 || (dims == 1 && strides[0] == 1)) {
        const size_t bytes = dims ? shape[0] * item : item;
        for (size_t i = at; i < at + bytes;) {
            const u32 from = i & 3, n = static_cast<u32>(std::min<size_t>(4 - from, at + bytes - i)), mask = ((1u << n) - 1) << from;
            u32& b = cells[i / 4].bits;
            if (bits & 1) b |= mask << INIT;
            else b &= ~(mask << INIT);
            if (bits & 2) b |= mask << VALID;
            if (bits & 4) b |= mask << WRITABLE;
            if (bits & 8) b = (b & ~(mask << WRITABLE)) | 1 << 17;
            i += n;
        }
        return;
    }
    for (u64 i = 0; i < shape[0]; ++i) simt_mark(at + i * strides[0] * item, item, dims - 1, shape + 1, strides + 1, bits);
}

#define SIMT_HOOK(n)                                                                                                                  \
    void __tsan_read##n(void* p) {                                                                                                    \
        Worker& w = *worker;                                                                                                          \
        if (n > 1 && __builtin_expect(reinterpret_cast<u64>(p) & (n - 1), 0)) misaligned(w, p, n, false, SIMT_PC());                  \
        access<false>(w, p, n, SIMT_PC());                                                                                            \
    }                                                                                                                                 \
    void __tsan_write##n(void* p) {                                                                                                   \
        Worker& w = *worker;                                                                                                          \
        if (n > 1 && __builtin_expect(reinterpret_cast<u64>(p) & (n - 1), 0)) misaligned(w, p, n, true, SIMT_PC());                   \
        access<true>(w, p, n, SIMT_PC());                                                                                             \
    }                                                                                                                                 \
    void __tsan_unaligned_read##n(void* p) { access<false>(*worker, p, n, SIMT_PC()); }                                               \
    void __tsan_unaligned_write##n(void* p) { access<true>(*worker, p, n, SIMT_PC()); }                                               \
    void __tsan_volatile_read##n(void* p) { access<false>(*worker, p, n, SIMT_PC()); pause_at(SIMT_PC()); }                                       \
    void __tsan_volatile_write##n(void* p) { access<true>(*worker, p, n, SIMT_PC()); }                                                \
    void __tsan_unaligned_volatile_read##n(void* p) { access<false>(*worker, p, n, SIMT_PC()); pause_at(SIMT_PC()); }                             \
    void __tsan_unaligned_volatile_write##n(void* p) { access<true>(*worker, p, n, SIMT_PC()); }
SIMT_HOOK(1)
SIMT_HOOK(2)
SIMT_HOOK(4)
SIMT_HOOK(8)
SIMT_HOOK(16)
void __tsan_read_range(void* p, size_t n) { access<false>(*worker, p, static_cast<u32>(n), SIMT_PC()); }
void __tsan_write_range(void* p, size_t n) { access<true>(*worker, p, static_cast<u32>(n), SIMT_PC()); }
// The compiler's own check of indices (-fsanitize=bounds).
struct BoundsData { const char* file; u32 line, column; const struct { u16 kind, info; char name[1]; } *array, *index; };
void __ubsan_handle_out_of_bounds(BoundsData* data, uintptr_t index) {
    Fiber& f = *worker->current;
    if (f.outside) overrun(*worker, f, 0, nullptr);
    f.outside = SIMT_PC(), f.index = index, f.array = data->array->name;
}
// Copies that the compiler leaves to the library (clang++ all those of aggregates).
void* __tsan_memcpy(void* to, const void* from, size_t n) {
    block_access(*worker, from, n, false, SIMT_PC()), block_access(*worker, to, n, true, SIMT_PC());
    return std::memmove(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
    block_access(*worker, from, n, false, SIMT_PC()), block_access(*worker, to, n, true, SIMT_PC());
    return std::memmove(to, from, n);
}
void* __tsan_memset(void* to, int v, size_t n) {
    block_access(*worker, to, n, true, SIMT_PC());
    return std::memset(to, v, n);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
