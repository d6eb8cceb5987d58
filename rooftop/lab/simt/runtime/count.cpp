// Counting: each lane leaves a trail of its accesses and of the places in the code that it passes; the trails of a warp are put together
// to the instructions that the warp would have issued.
#include "engine.h"

namespace simt {

struct Count {      // as rooftop/lab/simt/native.py reads it
    u64 site;
    u32 space, op, width, contention;
    u64 requests, lanes, sectors, ideal_sectors, bytes_useful, wavefronts, ideal_wavefronts;
};
enum EventKind : u8 { READ, WRITE, RMW, PLACE, SYNC };
constexpr size_t TRAIL = 1 << 13;        // events after which a lane lets the others of its warp catch up

struct Mode {
    std::unordered_map<u64, Count> counts;                      // by site, space and op
    std::unordered_map<u32, std::pair<u64, u64>> passed;        // by place: lanes, and how often the warp parted after it
};

static std::vector<Count> all_counts;
static size_t arena_bytes;

// -- what the hardware makes of one request ---------------------------------------------------------------------------------------

// Wavefronts of shared memory: 32 banks of 4 bytes; in one wavefront each bank gives one word, to any number of lanes.
static u32 bank_cycles(const u64* address, u32 bytes, u32 lanes) {
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
static u32 bank_cycles_wide(const u64* address, u32 bytes, u32 lanes) {   // exact, whatever the number of words
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
static u32 cycles(const u64* address, u32 bytes, u32 lanes) {
    const u32 n = bank_cycles(address, bytes, lanes);
    return n < 8 ? n : bank_cycles_wide(address, bytes, lanes);
}
// Whether every active lane has the address of the active lane `flip` away.
static bool pairs(const u64* address, u32 lanes, u32 flip) {
    for (u32 todo = lanes; todo; todo &= todo - 1) {
        const u32 lane = static_cast<u32>(__builtin_ctz(todo)), other = lane ^ flip;
        if (lanes >> other & 1 && address[other] != address[lane]) return false;
    }
    return true;
}
// 8 bytes a lane are served by half-warps, 16 by quarters; neighbours with equal addresses are served together.
static u32 wavefronts(const u64* address, u32 bytes, u32 lanes) {
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

static u32 distinct_sectors(const u64* address, u32 bytes, u32 lanes) {
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

static void issue(Worker& w, const Event& e, const u64* address, u32 lanes) {
    const u64 key = static_cast<u64>(e.site) << 8 | static_cast<u64>(e.space) << 4 | e.kind;
    Count& c = w.mode->counts[key];
    const u32 active = static_cast<u32>(__builtin_popcount(lanes));
    c.site = e.site, c.space = e.space, c.op = e.kind;
    c.width = std::max<u32>(c.width, e.bytes);
    ++c.requests;
    c.lanes += active;
    c.bytes_useful += active * e.bytes;
    if (e.space == SHARED) {
        c.wavefronts += wavefronts(address, e.bytes, lanes);
        c.ideal_wavefronts += (active * e.bytes + 127) / 128;
    } else {
        c.sectors += distinct_sectors(address, e.bytes, lanes);
        c.ideal_sectors += (active * e.bytes + 31) / 32;
    }
    if (e.kind == RMW) {
        for (u32 todo = lanes; todo; todo &= todo - 1) {
            const u64 at = address[__builtin_ctz(todo)];
            u32 same = 0;
            for (u32 others = lanes; others; others &= others - 1) same += address[__builtin_ctz(others)] == at;
            c.contention = std::max(c.contention, same);
        }
    }
}

// -- what the compiler makes of neighbouring accesses ------------------------------------------------------------------------------------
// Where the machine code for the GPU has wide accesses at a line, a lane's accesses there that continue each other are one, up to that width.
struct Width { u16 line; u8 shared, global; };
static std::vector<Width> wide;          // by site
struct Run {
    u64 next;
    size_t index;
    u16 line, space;
    u8 kind, bytes, width;
};

static void widen(std::vector<Event>& trace) {
    if (wide.empty()) return;
    Run runs[16];
    u32 open = 0, oldest = 0;
    size_t to = 0;
    for (size_t i = 0; i < trace.size(); ++i) {
        const Event e = trace[i];
        if (e.kind == SYNC) open = 0;
        if (e.kind > WRITE || e.site >= wide.size()) {
            trace[to++] = e;
            continue;
        }
        const Width& at = wide[e.site];
        const u8 width = e.space == SHARED ? at.shared : at.global;
        if (width <= e.bytes) {
            trace[to++] = e;
            continue;
        }
        u32 r = 0;
        while (r < open && !(runs[r].next == e.address && runs[r].line == at.line && runs[r].space == e.space && runs[r].kind == e.kind && runs[r].bytes + e.bytes <= width)) ++r;
        if (r < open) {
            trace[runs[r].index].bytes = static_cast<u8>(trace[runs[r].index].bytes + e.bytes);
            runs[r].bytes = static_cast<u8>(runs[r].bytes + e.bytes);
            runs[r].next += e.bytes;
            if (runs[r].bytes == width) runs[r] = runs[--open];
            continue;
        }
        if (e.address % width == 0) {
            const u32 slot = open < 16 ? open++ : oldest++ % 16;
            runs[slot] = {e.address + e.bytes, to, at.line, e.space, e.kind, e.bytes, width};
        }
        trace[to++] = e;
    }
    trace.resize(to);
}

// -- the trails of a warp put together ------------------------------------------------------------------------------------------------
// The lanes whose next event lies lowest in the code go first: loops are left together and both arms of a branch end where they meet.

static void merge_trails(Worker& w, Warp& warp, bool to_the_end) {
    size_t at[32] = {};
    u32 open = 0;
    for (u32 todo = warp.valid; todo; todo &= todo - 1) widen(warp.lanes[__builtin_ctz(todo)].trace);
    for (u32 todo = warp.valid; todo; todo &= todo - 1)
        if (const u32 lane = static_cast<u32>(__builtin_ctz(todo)); !warp.lanes[lane].trace.empty()) open |= 1u << lane;
    u32 waits = 0;   // lanes that have more to tell
    if (!to_the_end)
        for (u32 todo = warp.valid; todo; todo &= todo - 1)
            if (warp.lanes[__builtin_ctz(todo)].state == READY) waits |= 1u << __builtin_ctz(todo);
    u64 address[32];
    while (open && !(waits & ~open)) {
        u32 lowest = ~0u;
        for (u32 todo = open; todo; todo &= todo - 1) {
            const u32 lane = static_cast<u32>(__builtin_ctz(todo));
            lowest = std::min(lowest, warp.lanes[lane].trace[at[lane]].site);
        }
        u32 group = 0;
        const Event* first = nullptr;
        for (u32 todo = open; todo; todo &= todo - 1) {
            const u32 lane = static_cast<u32>(__builtin_ctz(todo));
            const Event& e = warp.lanes[lane].trace[at[lane]];
            if (e.site != lowest || (first && (e.kind != first->kind || e.space != first->space || e.bytes != first->bytes))) continue;
            if (!first) first = &e;
            address[lane] = e.address;
            group |= 1u << lane;
        }
        const Event e = *first;
        for (u32 todo = group; todo; todo &= todo - 1) {
            const u32 lane = static_cast<u32>(__builtin_ctz(todo));
            if (++at[lane] == warp.lanes[lane].trace.size()) open &= ~(1u << lane);
        }
        if (e.kind < PLACE) {
            issue(w, e, address, group);
        } else if (e.kind == PLACE) {
            auto& [lanes, parted] = w.mode->passed[e.site];
            lanes += static_cast<u32>(__builtin_popcount(group));
            u32 next = 0;
            bool seen = false;
            for (u32 todo = group & open; todo; todo &= todo - 1) {
                const u32 lane = static_cast<u32>(__builtin_ctz(todo)), site = warp.lanes[lane].trace[at[lane]].site;
                if (seen && site != next) {
                    ++parted;
                    break;
                }
                next = site, seen = true;
            }
        }
    }
    for (u32 todo = warp.valid; todo; todo &= todo - 1) {
        const u32 lane = static_cast<u32>(__builtin_ctz(todo));
        std::vector<Event>& trace = warp.lanes[lane].trace;
        trace.erase(trace.begin(), trace.begin() + static_cast<long>(at[lane]));
    }
}

void mode_stall(Worker& w, Warp& warp) {
    u32 full = 0;
    for (u32 todo = warp.valid & ~warp.exited; todo; todo &= todo - 1)
        if (warp.lanes[__builtin_ctz(todo)].state == READY) full |= 1u << __builtin_ctz(todo);
    merge_trails(w, warp, full == 0);
    warp.ready |= full;
}

static inline void leave_event(Worker& w, const Event& e) {
    Fiber& f = *w.current;
    f.trace.push_back(e);
    if (f.trace.size() >= TRAIL && f.trace.size() % TRAIL == 0) {
        Warp& warp = *f.warp;                 // not ready and yet waiting for nothing: mode_stall wakes it
        if (warp.ready) {
            u32 lane = static_cast<u32>(__builtin_ctz(warp.ready));
            warp.ready &= warp.ready - 1;
            w.current = &warp.lanes[lane];
            simt_switch(&f.sp, w.current->sp);
        } else {
            simt_switch(&f.sp, w.main);
        }
    }
}

void mode_sync(Worker& w, Fiber& f) { leave_event(w, {0, static_cast<u32>(f.state == DONE ? 0 : f.pc), 0, SYNC, 0}); }

static inline void note(Worker& w, const void* p, u32 bytes, EventKind kind, u64 pc) {
    const char* at = static_cast<const char*>(p);
    if (const size_t in = static_cast<size_t>(at - w.shared); in < w.shared_bytes) {
        leave_event(w, {in, static_cast<u32>(pc), static_cast<u8>(bytes), kind, SHARED});
    } else if (const size_t far = static_cast<size_t>(at - arena); far < arena_bytes) {
        leave_event(w, {far, static_cast<u32>(pc), static_cast<u8>(bytes), kind, GLOBAL});
    } else if (static_cast<size_t>(at - w.stacks) < w.stack_bytes || (at >= &__ehdr_start && at < &_end)) {
    } else {
        if (Finding* found = report(w, *w.current, OUT_OF_BOUNDS, pc)) found->space = OTHER, found->address = reinterpret_cast<u64>(p), found->bytes = bytes, found->write = kind != READ;
        die(w);
    }
}
// What is not aligned to its size is moved in parts, each of the largest power of two that the address and the rest allow.
static void note_parts(Worker& w, const void* p, u32 bytes, EventKind kind, u64 pc) {
    const char* at = static_cast<const char*>(p);
    while (bytes) {
        u32 part = 16;
        while (part > bytes || reinterpret_cast<u64>(at) & (part - 1)) part /= 2;
        if (part > 4) part = 4;                // the compiler knows no more than the type's alignment
        note(w, at, part, kind, pc);
        at += part, bytes -= part;
    }
}

void mode_launch(Launch&) {}
void mode_misaligned(Worker&, const void*, u32, u64) {}
void mode_new_grid_phase(Launch&) {}
void mode_shared_range(Worker&, u32, u32) {}
void mode_unit(Worker& w, Unit& u, bool begins) {
    if (begins)
        for (Fiber& f : u.fibers) f.trace.clear();
    (void)w;
}
void mode_access(Worker& w, const void* p, u32 bytes, bool write, u64 pc) { note(w, p, bytes, write ? WRITE : READ, pc); }
void mode_atomic(Worker& w, void* p, u32 bytes, int kind, u64 pc) { note(w, p, bytes, (kind & 3) == 1 ? READ : (kind & 3) == 2 ? WRITE : RMW, pc); }
void mode_copy_begin(Worker& w, Copy& c) {
    if (c.filled) note(w, c.from, c.filled, READ, c.pc);
    note(w, c.to, c.bytes, WRITE, c.pc);
}
void mode_copy_end(Worker&, Copy&) {}

static std::mutex merging;
void mode_worker(Worker& w, bool begins) {
    if (begins) {
        w.mode = new Mode;
        return;
    }
    std::lock_guard<std::mutex> lock(merging);
    for (const auto& [key, count] : w.mode->counts) all_counts.push_back(count);
    for (const auto& [site, passed] : w.mode->passed) {
        Count c = {};
        c.site = site, c.lanes = passed.first, c.requests = passed.second, c.op = PLACE;
        all_counts.push_back(c);
    }
    delete w.mode;
}
}  // namespace simt

using namespace simt;

static void block_access(Worker& w, const void* p, size_t n, bool write, u64 pc) {
    if (!n || !w.current) return;
    const bool whole = n <= 16 && (n & (n - 1)) == 0 && (reinterpret_cast<u64>(p) & (n - 1)) == 0;
    if (whole) note(w, p, static_cast<u32>(n), write ? WRITE : READ, pc);
    else note_parts(w, p, static_cast<u32>(n), write ? WRITE : READ, pc);
}

extern "C" {
__attribute__((visibility("default"))) void* simt_arena(size_t bytes) {
    if (arena) munmap(arena, static_cast<size_t>(arena_end - arena));
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    arena = p == MAP_FAILED ? nullptr : static_cast<char*>(p);
    arena_bytes = arena ? bytes : 0;
    arena_end = arena ? arena + bytes : nullptr;
    all_counts.clear();
    return arena;
}
__attribute__((visibility("default"))) void simt_mark(size_t, u32, u32, const u64*, const u64*, u32) {}
/// For each site (the return address of an access) its line's number and the widest access of the GPU's machine code there, by space.
__attribute__((visibility("default"))) void simt_widths(const u32* sites, const u32* lines, const u32* shared, const u32* global, u32 n) {
    wide.clear();
    for (u32 i = 0; i < n; ++i) {
        if (sites[i] >= wide.size()) wide.resize(sites[i] + 1, {0, 0, 0});
        wide[sites[i]] = {static_cast<u16>(lines[i]), static_cast<u8>(shared[i]), static_cast<u8>(global[i])};
    }
}
__attribute__((visibility("default"))) u32 simt_counts(const Count** at) {
    *at = all_counts.data();
    return static_cast<u32>(all_counts.size());
}

#define SIMT_HOOK(n)                                                                                                    \
    void __tsan_read##n(void* p) { note(*worker, p, n, READ, SIMT_PC()); }                                              \
    void __tsan_write##n(void* p) { note(*worker, p, n, WRITE, SIMT_PC()); }                                            \
    void __tsan_unaligned_read##n(void* p) { note_parts(*worker, p, n, READ, SIMT_PC()); }                              \
    void __tsan_unaligned_write##n(void* p) { note_parts(*worker, p, n, WRITE, SIMT_PC()); }                            \
    void __tsan_volatile_read##n(void* p) { note(*worker, p, n, READ, SIMT_PC()); pause_at(SIMT_PC()); }                            \
    void __tsan_volatile_write##n(void* p) { note(*worker, p, n, WRITE, SIMT_PC()); }                                   \
    void __tsan_unaligned_volatile_read##n(void* p) { note_parts(*worker, p, n, READ, SIMT_PC()); pause_at(SIMT_PC()); }            \
    void __tsan_unaligned_volatile_write##n(void* p) { note_parts(*worker, p, n, WRITE, SIMT_PC()); }
SIMT_HOOK(1)
SIMT_HOOK(2)
SIMT_HOOK(4)
SIMT_HOOK(8)
SIMT_HOOK(16)
void __tsan_read_range(void* p, size_t n) { note_parts(*worker, p, static_cast<u32>(n), READ, SIMT_PC()); }
void __tsan_write_range(void* p, size_t n) { note_parts(*worker, p, static_cast<u32>(n), WRITE, SIMT_PC()); }
void __sanitizer_cov_trace_pc() {
    Worker* w = worker;
    if (w && w->current) leave_event(*w, {0, static_cast<u32>(SIMT_PC()), 0, PLACE, 0});
}
void __ubsan_handle_out_of_bounds(void*, uintptr_t) {}
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
