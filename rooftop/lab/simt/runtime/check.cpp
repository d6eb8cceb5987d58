// Checking: what the instrumented accesses report is held against a shadow of global and of shared memory.
#include "check_shared.h"

namespace simt {
extern const bool checking = true;

// -- a launch and its blocks
// ---------------------------------------------------------------------------------------------------------------

void mode_launch(Launch& l) {
    const u32 clusters = l.grid.x * l.grid.y * l.grid.z / (l.cluster.x * l.cluster.y * l.cluster.z);
    many = l.me0 + clusters, mixed = many + 1;
    if (released) munmap(static_cast<void*>(released), released_count * sizeof(Releases) + 64);
    released = map_array<Releases>(released_count = clusters);
    release_time = 0;
    delete places;
    places = new std::vector<Place>(1 << 14);
}
void mode_new_grid_phase(Launch& l) {
    // A barrier of the whole grid: everything before it is past. One worker runs a cooperative launch.
    const u32 step = mixed + 3 - l.me0;
    l.me0 += step, many += step, mixed += step;
    for (Block& b : worker->unit->blocks) b.me += step;
}

void mode_worker(Worker& w, bool begins) {
    if (begins) {
        Mode* m = new Mode;
        m->words = w.shared_bytes / 4;
        m->cells = map_array<SharedCell>(m->words);
        m->bytes = map_array<SharedCell>(m->words * 4);
        m->other_pcs = map_array<u32>(m->words);
        m->flags = map_array<u8>(m->words);
        w.mode = m;
    } else {
        Mode* m = w.mode;
        munmap(m->cells, m->words * sizeof(SharedCell) + 64);
        munmap(m->bytes, m->words * 4 * sizeof(SharedCell) + 64);
        munmap(m->other_pcs, m->words * sizeof(u32) + 64);
        munmap(m->flags, m->words + 64);
        delete m;
    }
}
void mode_shared_range(Worker& w, u32 from, u32 bytes) {
    for (size_t b = 0; b < w.shared_bytes / SHARED_STRIDE; ++b)
        for (u32 word = from / 4; word < (from + bytes + 3) / 4; ++word) {
            const u32 inside = std::min(4u, from + bytes - 4 * word);
            w.mode->flags[b * SHARED_WORDS + word] |= static_cast<u8>(USED | (15u << inside & 15) << OUTSIDE);
        }
    for (size_t b = 0; b < w.shared_bytes / SHARED_STRIDE; ++b) std::memset(w.shared + b * SHARED_STRIDE + from,
        static_cast<int>(w.launch->poison), bytes);
}
void mode_unit(Worker& w, Unit& u, bool begins) {
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
    m.orders.assign(u.blocks.size() / u.cluster_blocks, {});
    for (Block& b : u.blocks) b.order = &m.orders[b.rank / u.cluster_blocks];
    if (m.split_any || m.way_any)
        for (size_t i = 0; i < m.words; ++i)
            m.flags[i] &= static_cast<u8>(~(SPLIT | UNDER_WAY));
    m.split_any = m.way_any = 0;
}
void mode_stall(Worker&, Warp&) {}

// -- every access
// ---------------------------------------------------------------------------------------------------------------------------

template <bool WRITE>
static inline void access(Worker& w, const void* p, u32 bytes, u64 pc) {
    const char* at = static_cast<const char*>(p);
    Fiber& f = *w.current;
    f.last = pc;
    if (__builtin_expect(f.suspect != nullptr, 0)) settle(w, f);
    if (__builtin_expect(f.outside != 0, 0)) overrun(w, f, p, pc);
    if (const size_t in = static_cast<size_t>(at - w.shared); in < w.shared_bytes) {
        shared_access<WRITE>(w, in, bytes, pc);
    } else if (const size_t far = static_cast<size_t>(at - arena); far < cell_count * 4) {
        global_access<WRITE>(w, far, bytes, pc);
    } else if (static_cast<size_t>(at - w.stacks) < w.stack_bytes) {
    } else if (at >= simt_variables && at < simt_variables_end) {
        global_access<WRITE>(w, global_place(at), bytes, pc);
    } else if (in_library(at)) {
    } else {
        wild(w, reinterpret_cast<u64>(p), bytes, WRITE, pc);
    }
}

static __attribute__((noinline, cold)) void misaligned(Worker& w, const void* p, u32 bytes, bool write, u64 pc) {
    const Memory space = memory_of(p);
    if (space == LOCAL) return;
    const char* at = static_cast<const char*>(p);
    fault(w, MISALIGNED, space, space == SHARED ? static_cast<u64>(at - w.shared) : space == GLOBAL ? global_place(at)
        : reinterpret_cast<u64>(p), bytes, write, pc);
}

void mode_misaligned(Worker& w, const void* p, u32 bytes, u64 pc) { if (w.plain) return; misaligned(w, p, bytes, false, pc); }
void mode_access(Worker& w, const void* p, u32 bytes, bool write, u64 pc) {
    if (w.plain) return;
    if (write) access<true>(w, p, bytes, pc);
    else access<false>(w, p, bytes, pc);
}

// An atomic on shared memory releases what its thread did before a fence, and acquires what others released at the same word.
static void order_by(Worker& w, u64 word, bool writes, bool releases) {
    Fiber& f = *w.current;
    Warp& warp = *f.warp;
    if (f.block->threads <= 32 && warp.far.empty()) return;
    if (const auto at = w.unit->releases.find(word); at != w.unit->releases.end()) learn(warp.far, at->second.far_past);
    const u64 near = word | static_cast<u64>(f.block->rank) << 44;   // clocks of a block's warps are told to that block alone
    if (const auto at = w.unit->releases.find(near); at != w.unit->releases.end()) {
        for (int i = 0; i < 32; ++i) warp.knows[i] = std::max(warp.knows[i], at->second.past[i]);
        for (int i = 0; i < 32; ++i) warp.clocks[f.lane][i] = std::max(warp.clocks[f.lane][i],
            static_cast<u16>(i == static_cast<int>(f.lane) ? 0 : at->second.past[warp.index]));
    }
    if (!writes || !releases) return;
    if (!warp.far.empty()) release_far(w.unit->releases[word].far_past, warp, warp.clocks[f.lane][f.lane]);
    MBarrier& place = w.unit->releases[near];
    u16& clock = warp.clocks[f.lane][f.lane];
    for (int i = 0; i < 32; ++i) place.past[i] = std::max(place.past[i], warp.knows[i]);
    place.past[warp.index] = std::max(place.past[warp.index], clock);
    if (clock < CLOCK_LIMIT) ++clock;
    f.low = (f.low & ~u64(0xffff)) | static_cast<u64>(clock) << 1;
}

// What this cluster did before is past for those who meet it at the place.
static void release(Worker& w, Place& place) {
    const u32 time = ++release_time, mine = cluster_index(w, w.current->block->me);
    if (mine < released_count) {
        Releases& r = released[mine];
        r.times[r.count % Releases::KEPT] = time;
        w.current->block->order->since = ++r.count & Releases::LOW;
    }
    // another worker may have a later one there
    for (u32 there = place.time.load(); there < time && !place.time.compare_exchange_weak(there, time);) {}
}

// A volatile access. To global memory it is what a relaxed atomic load or store is, but that plain reads race with it; elsewhere a plain
// access.
template <bool WRITE>
static void volatile_access(Worker& w, const void* p, u32 bytes, u64 pc) {
    const u64 far = global_place(static_cast<const char*>(p));
    const bool global = far != ~u64(0);
    if (w.current->suspect) settle(w, *w.current);
    if (WRITE) came_on(w);
    else if (global) pause_at(pc);        // before, as for atomics
    if (bytes > 1 && reinterpret_cast<u64>(p) & (bytes - 1)) misaligned(w, p, bytes, WRITE, pc);
    if (!global) {
        access<WRITE>(w, p, bytes, pc);
        if (!WRITE) pause_at(pc);
        return;
    }
    Fiber& f = *w.current;
    f.last = pc;
    if (f.outside) overrun(w, f, p, pc);
    if (!WRITE) seek(*f.block->order, far + 1);
    order_by(w, u64(1) << 40 | far / 4, WRITE, f.fenced);
    for (u32 done = 0; done < bytes;) {
        const size_t word = (far + done) / 4;
        const u32 from = static_cast<u32>((far + done) & 3), n = std::min(bytes - done, 4 - from);
        if (WRITE) stamps[word] = f.block->epoch | f.low;
        global_slow(w, cells[word], word, ((1u << n) - 1) << from, bytes, WRITE, !WRITE, AS_VOLATILE, far, pc);
        done += n;
    }
    if (WRITE && f.fenced) release(w, *place_of(far + 1, true));   // what it stores is past as well
}

void mode_atomic(Worker& w, void* p, u32 bytes, int kind, u64 pc) {
    if (w.plain) return;
    char* at = static_cast<char*>(p);
    w.current->last = pc;
    if (w.current->suspect) settle(w, *w.current);
    if (reinterpret_cast<u64>(p) & (bytes - 1)) misaligned(w, p, bytes, true, pc);
    const bool writes = (kind & 3) != 1;
    if (const size_t in = static_cast<size_t>(at - w.shared); in < w.shared_bytes) {
        if (w.unit->cluster_blocks > 1 && in / SHARED_STRIDE != w.current->block->rank
            && !neighbour(w, *w.current, in, bytes, writes, pc)) return;
        for (u32 i = 0; i < std::max(1u, bytes / 4); ++i) {
            const u32 mask = bytes >= 4 ? 15 : ((1u << bytes) - 1) << (in & 3);
            if (writes) shared_slow<true>(w, *w.current, in / 4 + i, mask, in, bytes, true, pc);
            else shared_slow<false>(w, *w.current, in / 4 + i, mask, in, bytes, true, pc);
        }
        order_by(w, in / 4, writes, kind & 4 || w.current->fenced);
    } else if (const u64 far = global_place(at); far != ~u64(0)) {
        Place& place = *place_of(far + 1, true);
        if ((kind & 3) != 2) meet(*w.current->block->order, &place);
        order_by(w, u64(1) << 40 | far / 4, writes, kind & 4 || w.current->fenced);
        for (u32 i = 0; i < std::max(1u, bytes / 4); ++i) {
            const u32 mask = bytes >= 4 ? 15 : ((1u << bytes) - 1) << (far & 3);
            global_slow(w, cells[far / 4 + i], far / 4 + i, mask, bytes, writes, (kind & 3) != 2, ATOMICALLY, far, pc);
        }
        if (writes && (kind & 4 || w.current->fenced)) release(w, place);
    } else if (!in_library(at) && static_cast<size_t>(at - w.stacks) >= w.stack_bytes) {
        wild(w, reinterpret_cast<u64>(p), bytes, true, pc);
    }
}

// What is written from here until it lands; and then by whom, and where.
static void under_way(Worker& w, size_t in, u32 bytes) {
    for (u32 i = 0; i < bytes / 4; ++i)
        if (u8& flags = w.mode->flags[in / 4 + i]; flags & USED) flags |= UNDER_WAY;
    w.mode->way_any = 1;
    // NaN until it lands
    if (in / 4 + bytes / 4 <= w.mode->words && w.mode->flags[in / 4] & USED) std::memset(w.shared + in, 0xff, bytes);
}
static void landed(Worker& w, size_t in, u32 bytes, u64 record, u64 pc) {
    for (u32 i = 0; i < bytes / 4; ++i) {
        u8& flags = w.mode->flags[in / 4 + i];
        flags &= static_cast<u8>(~UNDER_WAY);
        SharedCell& cell = w.mode->cells[in / 4 + i];
        cell.write = record, cell.write_pc = static_cast<u32>(pc);
        if (flags & SPLIT)
            for (u32 k = 0; k < 4; ++k) w.mode->bytes[in + 4 * i + k] = cell;
    }
}
void mode_copy_begin(Worker& w, Copy& c) {
    if (w.plain) return;
    if (reinterpret_cast<u64>(c.from) & (c.bytes - 1)) misaligned(w, c.from, c.bytes, false, c.pc);
    if (reinterpret_cast<u64>(c.to) & (c.bytes - 1)) misaligned(w, c.to, c.bytes, true, c.pc);
    if (c.filled) access<false>(w, c.from, c.filled, c.pc);
    const size_t in = static_cast<size_t>(c.to - w.shared);
    if (in >= w.shared_bytes) {
        if (Finding* found = fault(w, OUT_OF_BOUNDS, memory_of(c.to), reinterpret_cast<u64>(c.to), c.bytes, true,
            c.pc)) found->detail[1] = 1;
        die(w);
    }
    shared_access<true>(w, in, c.bytes, c.pc);
    under_way(w, in, c.bytes);
}
void mode_copy_end(Worker& w, Copy& c) { if (w.plain) return;
    landed(w, static_cast<size_t>(c.to - w.shared), c.bytes, w.current->block->epoch | w.current->low, c.pc); }
// A write by who sends it, from here on until it lands; from then on it is known to those who have waited for its phase.
void mode_store_begin(Worker& w, Store& store) {
    if (w.plain) return;
    const size_t in = static_cast<size_t>(store.to - w.shared);
    shared_access<true>(w, in, store.bytes, store.pc);
    store.record = w.current->block->epoch | w.current->low;
    under_way(w, in, store.bytes);
}
void mode_store_landed(Worker& w, const Store& store) { if (w.plain) return;
    landed(w, static_cast<size_t>(store.to - w.shared), store.bytes, store.record, store.pc); }
}  // namespace simt

using namespace simt;

extern "C" {
__attribute__((visibility("default"))) void* simt_arena(size_t bytes) {
    if (arena) {
        munmap(arena, static_cast<size_t>(arena_end - arena));
        munmap(pages, (cell_count + variable_cells) * 4 / PAGE_BYTES + 1 + 64);
        munmap(cells, (cell_count + variable_cells + PAGE_BYTES / 4) * sizeof(GlobalCell) + 64);
        munmap(readers, (cell_count + variable_cells) * sizeof(Readers) + 64);
        munmap(watchers, (cell_count + variable_cells) * sizeof(Readers) + 64);
        munmap(stamps, (cell_count + variable_cells) * sizeof(u64) + 64);
    }
    arena = map_array<char>(bytes);
    arena_end = arena ? arena + bytes : nullptr;
    cell_count = arena ? bytes / 4 : 0;
    cells = map_array<GlobalCell>(cell_count + variable_cells + PAGE_BYTES / 4);
    pages = map_array<u8>((cell_count + variable_cells) * 4 / PAGE_BYTES + 1);
    readers = map_array<Readers>(cell_count + variable_cells);
    watchers = map_array<Readers>(cell_count + variable_cells);
    stamps = map_array<u64>(cell_count + variable_cells);
    return arena;
}

/// Marks the elements of a tensor: `bits` has 1 initialised, 2 readable, 4 writable, 8 is a kernel's constant input.
__attribute__((visibility("default"))) void simt_mark(size_t at, u32 item, u32 dims, const u64* shape, const u64* strides, u32 bits) {
    if (dims == 0 || (dims == 1 && strides[0] == 1)) {
        const size_t bytes = dims ? shape[0] * item : item;
        for (size_t i = at; i < at + bytes;) {
            u8& page = pages[i / PAGE_BYTES];
            if (page != IN_CELLS && i % PAGE_BYTES == 0 && at + bytes - i >= PAGE_BYTES && !(bits & 8)) {
                page = static_cast<u8>((page & 6) | (bits & 7));
                i += PAGE_BYTES;
                continue;
            }
            if (page != IN_CELLS) into_cells(i);
            const u32 from = i & 3, n = static_cast<u32>(std::min<size_t>(4 - from, at + bytes - i)), mask = ((1u << n) - 1) << from;
            u32& b = cells[i / 4].bits;
            if (bits & 1) b |= mask << INIT;
            else b &= ~(mask << INIT);
            if (bits & 2) b |= mask << VALID;
            if (bits & 4) b |= mask << WRITABLE;
            if (bits & 8) b = (b & ~(mask << WRITABLE)) | INPUT;
            i += n;
        }
        return;
    }
    for (u64 i = 0; i < shape[0]; ++i) simt_mark(at + i * strides[0] * item, item, dims - 1, shape + 1, strides + 1, bits);
}

/// Nobody may touch these bytes any more.
__attribute__((visibility("hidden"))) void simt_forget_range(size_t at, size_t bytes) {
    for (size_t i = at; i < at + bytes; ++i) {
        u8& page = pages[i / PAGE_BYTES];
        if (page != IN_CELLS && i % PAGE_BYTES == 0 && at + bytes - i >= PAGE_BYTES) {
            page = 0, i += PAGE_BYTES - 1;
            continue;
        }
        if (page != IN_CELLS) into_cells(i);
        cells[i / 4].bits &= ~((1u << INIT | 1u << VALID | 1u << WRITABLE) << (i & 3));
    }
}
/// For each byte from `at` on, whether anybody has written it (or it had a value to begin with).
__attribute__((visibility("default"))) void simt_written(size_t at, size_t bytes, u8* to) {
    for (size_t i = at; i < at + bytes; ++i) *to++ = pages[i / PAGE_BYTES] != IN_CELLS ? pages[i / PAGE_BYTES] & 1
        : cells[i / 4].bits >> (INIT + (i & 3)) & 1;
}

// The compiler's own check of indices (-fsanitize=bounds).
struct BoundsData { const char* file; u32 line, column; const TypeData *array, *index; };
void __ubsan_handle_out_of_bounds(BoundsData* data, uintptr_t index) {
    Fiber& f = *worker->current;
    if (f.outside) overrun(*worker, f, nullptr, 0);
    f.outside = SIMT_PC(), f.index = static_cast<i64>(index), f.array = data->array->name;
}
}

template <bool WRITE>
static inline void seen(Worker& w, const void* p, u32 n, u64 pc) {
    if (n > 1 && __builtin_expect(reinterpret_cast<u64>(p) & (n - 1), 0)) misaligned(w, p, n, WRITE, pc);
    access<WRITE>(w, p, n, pc);
}
template <bool WRITE>
static inline void seen_parts(Worker& w, const void* p, u32 n, u64 pc) { access<WRITE>(w, p, n, pc); }
template <bool WRITE>
static inline void seen_block(Worker& w, const void* p, u32 n, u64 pc) { access<WRITE>(w, p, n, pc); }
template <bool WRITE>
static inline void seen_volatile(Worker& w, const void* p, u32 n, bool, u64 pc) { volatile_access<WRITE>(w, p, n, pc); }
#include "hooks.h"
