// Counting: each lane leaves a trail of its accesses and of the places in the code that it passes; the trails of a warp are put together
// to the instructions that the warp would have issued.
#include "compiled.h"
#include "hardware.h"

namespace simt {
extern const bool checking = false;

struct Count {      // as rooftop/lab/simt/native.py reads it
    u64 site;
    u32 space, op, width, contention;
    u64 requests, lanes, sectors, ideal_sectors, bytes_useful, wavefronts, ideal_wavefronts;
    u64 source_requests, source_sectors, source_wavefronts;     // as the source has them, before the compiler merged or split any
    u32 source_width;
    // bytes from a lane's address to its neighbour's, in most of the first request; SCATTERED: in no such way
    i32 apart;
    u64 of_width[5], source_of_width[5];                        // requests of 1, 2, 4, 8 and 16 bytes a lane
    // Of the first warp of the first block that is run, at all sites of the line: a phase ends at each barrier of the block.
    u32 phases;                                                 // the last one with a request, from 1
    u32 in_phase[8];                                            // requests in the first of them
    // bytes from its first request in a phase to the first in the next, and from one to the next within
    i32 steps[2];
    u32 pairs[2], alike[2];                                     // of requests, and those that are as far apart
    u64 began, last;                                            // where the first of its phase was, and the last
};
constexpr i32 SCATTERED = -2147483647 - 1;
constexpr u32 PHASES = 8;
constexpr size_t TRAIL = 1 << 13;        // events after which a lane lets the others of its warp catch up

constexpr u32 END = 1;                   // where a lane's path ends: no place in the code
/// Where the lanes of a warp went from the last place that they passed. Those that passed it together share a path.
struct Paths {
    // of each path: its place, where the first of its lanes went on to (0: none yet), its lanes
    u32 from[32], to[32], lanes[32] = {};
    bool parted[32];
    u8 of[32];                                                  // each lane's path
};

struct Mode {
    std::unordered_map<u64, Count> counts;                      // by site, space and op
    std::unordered_map<u32, std::pair<u64, u64>> passed;        // by place: lanes, and how often the warp parted after it
    // by line, space and op, as `counts`: the site that keeps the walk of all that the line became
    std::unordered_map<u64, u64> walked;
    u32 phase = 0;                                              // of the first warp, and the barrier that it began with
    u64 barrier = 0;
    std::unordered_map<const Warp*, Paths> paths;
    std::unordered_map<u64, u32> turns;                         // by warp and split: executions so far
    u64 copied[32] = {};                                        // where the asynchronous copies of the last request read,
    u32 copying = 0, readers = 0;                               // their site, the lanes that read (others fill with zeros)
    u64 read_sectors = 0;                                       // and the sectors counted for them
};

std::vector<Width> wide;
std::vector<Split> splits;
static std::vector<Count> all_counts;
static size_t arena_bytes;
static u32 dynamic_at;                   // where dynamic shared memory begins behind the static, as the GPU's compiler lays it out

struct Tally {
    u64 requests, sectors, ideal_sectors, wavefronts, ideal_wavefronts;
};

// One request: `bytes` of each lane.
static void add(Tally& t, u32 space, u32 bytes, const u64* address, u32 lanes) {
    ++t.requests;
    if (space == SHARED) {
        const u32 taken = wavefronts(address, bytes, lanes);
        t.wavefronts += taken, t.ideal_wavefronts += ideal_wavefronts(bytes, lanes, taken);
    } else {
        const u32 taken = distinct_sectors(address, bytes, lanes);
        t.sectors += taken, t.ideal_sectors += ideal_sectors(bytes, lanes, taken);
    }
}

// How far apart neighbouring lanes are in most of a request.
static i32 apart(const u64* address, u32 lanes) {
    i64 step = 0;
    u32 pairs = 0, alike = 0;
    for (u32 lane = 0; lane < 31; ++lane) {
        if ((lanes >> lane & 3) != 3) continue;
        const i64 d = static_cast<i64>(address[lane + 1] - address[lane]);
        if (!pairs++) step = d;
        alike += d == step;
    }
    return pairs && 2 * alike >= pairs && step > SCATTERED && step < 2147483647 ? static_cast<i32>(step) : SCATTERED;
}

static void add_part(Tally& t, const Event& e, u32 from, u32 bytes, const u64* address, u32 lanes) {
    u64 moved[32];
    for (u32 todo = lanes; todo; todo &= todo - 1) moved[__builtin_ctz(todo)] = address[__builtin_ctz(todo)] + from;
    add(t, e.space, bytes, moved, lanes);
}

// The wavefronts of what an asynchronous copy writes, whose reads were the request before; of other requests what was found.
static void copies(Worker& w, const Event& e, const u64* address, u32 lanes, Tally& t) {
    Mode& m = *w.mode;
    // lanes that read less than others have an event of their own
    if (m.copying != e.site || (e.kind == COPY_READ && m.readers & lanes)) {
        std::fill(m.copied, m.copied + 32, 0);
        m.readers = 0, m.read_sectors = 0;
    }
    if (e.kind == COPY_READ) {
        for (u32 todo = lanes; todo; todo &= todo - 1) m.copied[__builtin_ctz(todo)] = address[__builtin_ctz(todo)];
        m.copying = e.site, m.readers |= lanes, m.read_sectors += t.sectors;
    } else if (e.kind == COPY_WRITE) {
        u64 to[32];
        for (u32 todo = lanes; todo; todo &= todo - 1) {
            const u64 at = address[__builtin_ctz(todo)] % SHARED_STRIDE;
            to[__builtin_ctz(todo)] = at + (at < w.launch->dynamic ? dynamic_at : 0);
        }
        t.wavefronts = copy_wavefronts(to, m.copied, e.bytes, lanes);
        t.ideal_wavefronts = ideal_wavefronts(e.bytes, lanes, static_cast<u32>(t.wavefronts));
        if (e.bytes == 16 && m.copying == e.site) {
            Count& read = m.counts[static_cast<u64>(e.site) << 8 | static_cast<u64>(GLOBAL) << 4 | COPY_READ];
            const u64 taken = copy_sectors(to, m.copied, lanes & m.readers), more = taken - std::min(taken, m.read_sectors);
            read.sectors += more, read.source_sectors += more;
        }
        m.copying = 0;
    }
}

// Where the first warp is in its work, and how far it has come since its last request here.
static void walk(const Mode& m, Count& c, u32 requests, u64 address) {
    if (c.phases) {
        const bool within = c.phases == m.phase + 1;
        const i64 d = static_cast<i64>(address - (within ? c.last : c.began));
        if (!c.pairs[within]++) c.steps[within] = d > SCATTERED && d <= 2147483647 ? static_cast<i32>(d) : SCATTERED;
        c.alike[within] += d == c.steps[within];
    }
    if (c.phases != m.phase + 1) c.began = address;
    c.phases = m.phase + 1, c.last = address;
    if (m.phase < PHASES) c.in_phase[m.phase] += requests;
}

static bool is_first(const Worker& w, const Warp& warp) {
    const Launch& l = *w.launch;
    return !warp.index && !warp.block->rank && warp.block->me == l.me0 + (l.units ? l.units[0] : 0);
}

static void issue(Worker& w, const Warp& warp, const Event& e, const u64* address, u32 lanes) {
    const u64 key = static_cast<u64>(e.site) << 8 | static_cast<u64>(e.space) << 4 | e.kind;
    Count& c = w.mode->counts[key];
    const u32 active = static_cast<u32>(__builtin_popcount(lanes)), source_bytes = e.bytes / e.parts;
    c.site = e.site, c.space = e.space, c.op = e.kind == COPY_READ ? u32(READ) : e.kind == COPY_WRITE ? u32(WRITE) : e.kind;
    if (!c.bytes_useful) c.apart = apart(address, lanes);
    c.bytes_useful += active * e.bytes;
    Tally whole = {}, compiled = {}, source = {};
    const Split* split = split_of(e);
    const u32 starts = split ? (*split)[w.mode->turns[reinterpret_cast<u64>(&warp) << 16 ^ (split - splits.data())]++ % split->size()] : 1;
    if (starts == 1 || e.parts == 1) add(whole, e.space, e.bytes, address, lanes);
    if (e.kind > SYNC) copies(w, e, address, lanes, whole);
    for (u32 from = 0, to; from < e.bytes; from = to) {
        for (to = from + 1; to < e.bytes && !(starts >> to & 1); ++to) {}
        if (starts != 1) add_part(compiled, e, from, to - from, address, lanes);
        c.width = std::max(c.width, to - from);
        ++c.of_width[__builtin_ctz(to - from)];
    }
    // the others lie in the same sector, or as far apart in their banks
    if (e.parts > 1) add(source, e.space, source_bytes, address, lanes);
    if (starts == 1) compiled = whole;
    if (e.parts == 1) source = whole;
    if (is_first(w, warp)) {
        const u64 line = e.site < wide.size() && wide[e.site].line ? static_cast<u64>(wide[e.site].line) << 8 | (key & 0xff) : 1ull
            << 63 | key;
        walk(*w.mode, w.mode->counts[w.mode->walked.try_emplace(line, key).first->second], static_cast<u32>(compiled.requests),
            address[__builtin_ctz(lanes)]);
    }
    c.requests += compiled.requests, c.lanes += compiled.requests * active;
    c.sectors += compiled.sectors, c.ideal_sectors += compiled.ideal_sectors;
    c.wavefronts += compiled.wavefronts, c.ideal_wavefronts += compiled.ideal_wavefronts;
    c.source_requests += e.parts * source.requests, c.source_sectors += e.parts * source.sectors,
        c.source_wavefronts += e.parts * source.wavefronts;
    c.source_width = std::max(c.source_width, source_bytes), c.source_of_width[__builtin_ctz(source_bytes)] += e.parts;
    if (e.kind == RMW) {
        for (u32 todo = lanes; todo; todo &= todo - 1) {
            const u64 at = address[__builtin_ctz(todo)];
            u32 same = 0;
            for (u32 others = lanes; others; others &= others - 1) same += address[__builtin_ctz(others)] == at;
            c.contention = std::max(c.contention, same);
        }
    }
}

// Lanes that go on to `place`, together. A path whose lanes go on to different places parted where it began.
static void pass(Mode& m, Paths& p, u32 place, u32 group) {
    if (const u32 path = p.of[__builtin_ctz(group)]; p.lanes[path] == group) {   // all that are left of it: it goes on
        if (p.to[path] && p.to[path] != place && !p.parted[path]) ++m.passed[p.from[path]].second;
        p.from[path] = place, p.to[path] = 0, p.parted[path] = false, p.lanes[path] = place == END ? 0 : group;
        return;
    }
    for (u32 todo = group; todo;) {
        const u32 path = p.of[__builtin_ctz(todo)];
        const u32 with = p.lanes[path] & todo;
        if (!with) {                     // the first place of these lanes
            todo &= todo - 1;
            continue;
        }
        if (p.to[path] && p.to[path] != place && !p.parted[path]) p.parted[path] = true, ++m.passed[p.from[path]].second;
        p.to[path] = place;
        p.lanes[path] &= ~with;
        todo &= ~with;
    }
    if (place == END) return;
    u32 path = 0;
    while (p.lanes[path]) ++path;        // each of the other lanes holds one at most
    p.from[path] = place, p.to[path] = 0, p.parted[path] = false, p.lanes[path] = group;
    for (u32 todo = group; todo; todo &= todo - 1) p.of[__builtin_ctz(todo)] = static_cast<u8>(path);
}

// -- the trails of a warp put together ------------------------------------------------------------------------------------------------
// The lanes whose next event lies lowest in the code go first: loops are left together and both arms of a branch end where they meet. Where
// lanes meet, at a collective or a barrier, none goes on before all that came there have.

/// Of `open` lanes, with their next events, those that may go on.
template <class Next>
static u32 may_go_on(const Warp& warp, u32 open, const Next& next) {
    u32 found = open;
    for (u32 todo = open; todo;) {
        const Event& e = next(static_cast<u32>(__builtin_ctz(todo)));
        if (e.kind != SYNC || !e.address) {
            todo &= todo - 1;
            continue;
        }
        u32 here = 0;
        for (u32 others = todo; others; others &= others - 1)
            if (const Event& o = next(static_cast<u32>(__builtin_ctz(others))); o.kind == SYNC
                && o.address == e.address) here |= others & -others;
        if (!warp.met[e.address].over || warp.met[e.address].lanes & ~here) found &= ~here;
        todo &= ~here;
    }
    return found;
}

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
    Paths& paths = w.mode->paths[&warp];
    const auto next = [&](u32 lane) -> const Event& { return warp.lanes[lane].trace[at[lane]]; };
    while (open && !(waits & ~open)) {
        // of those lowest in the code; the reads of copies before their writes, which lanes that fill with zeros have alone
        const Event* first = nullptr;
        const u32 going = may_go_on(warp, open, next);
        if (!going) break;
        for (u32 todo = going; todo; todo &= todo - 1) {
            const Event& e = next(static_cast<u32>(__builtin_ctz(todo)));
            if (!first || e.site < first->site || (e.site == first->site && e.kind < first->kind)) first = &e;
        }
        u32 group = 0;
        for (u32 todo = going; todo; todo &= todo - 1) {
            const u32 lane = static_cast<u32>(__builtin_ctz(todo));
            const Event& e = next(lane);
            if (first->kind == SYNC && first->address ? e.kind != SYNC || e.address != first->address : e.site != first->site
                || e.kind != first->kind || e.space != first->space || e.bytes != first->bytes || e.parts != first->parts) continue;
            address[lane] = e.address;
            group |= 1u << lane;
        }
        const Event e = *first;
        for (u32 todo = group; todo; todo &= todo - 1) {
            const u32 lane = static_cast<u32>(__builtin_ctz(todo));
            if (++at[lane] == warp.lanes[lane].trace.size()) open &= ~(1u << lane);
        }
        if (e.kind < PLACE || e.kind > SYNC) {
            issue(w, warp, e, address, group);
        } else if (e.kind == PLACE) {
            w.mode->passed[e.site].first += static_cast<u32>(__builtin_popcount(group));
            pass(*w.mode, paths, e.site, group);
        } else if (!e.site) {
            pass(*w.mode, paths, END, group);
        } else if (e.bytes && is_first(w, warp) && w.mode->barrier != e.address) {   // lanes may come in groups
            ++w.mode->phase, w.mode->barrier = e.address;
        }
    }
    for (u32 todo = warp.valid; todo; todo &= todo - 1) {
        const u32 lane = static_cast<u32>(__builtin_ctz(todo));
        std::vector<Event>& trace = warp.lanes[lane].trace;
        trace.erase(trace.begin(), trace.begin() + static_cast<long>(at[lane]));
    }
}

void mode_stall(Worker& w, Warp& warp) {
    if (w.plain) return;
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

void mode_sync(Worker& w, Fiber& f, u32 meeting) {
    if (w.plain) return;
    std::vector<Meeting>& met = f.warp->met;
    if (met.size() <= meeting) met.resize(meeting + 1);
    met[meeting].lanes |= 1u << f.lane;
    const u32* const barriers = f.warp->meeting;
    const bool barrier = meeting && std::find(barriers, barriers + 16, meeting) != barriers + 16;
    leave_event(w, {meeting, static_cast<u32>(f.state == DONE ? 0 : f.pc), barrier, SYNC, 0, 1});
}
void mode_met(Warp& warp, u32 meeting) { if (!worker->plain) warp.met[meeting].over = true; }

static inline void note(Worker& w, const void* p, u32 bytes, EventKind kind, u64 pc) {
    const char* at = static_cast<const char*>(p);
    if (const size_t in = static_cast<size_t>(at - w.shared); in < w.shared_bytes) {
        leave_event(w, {in, static_cast<u32>(pc), static_cast<u8>(bytes), kind, SHARED, 1});
    } else if (const size_t far = static_cast<size_t>(at - arena); far < arena_bytes) {
        leave_event(w, {far, static_cast<u32>(pc), static_cast<u8>(bytes), kind, GLOBAL, 1});
    } else if (at >= simt_device && at < simt_variables_end) {
        leave_event(w, {global_place(at), static_cast<u32>(pc), static_cast<u8>(bytes), kind, GLOBAL, 1});
    } else if (static_cast<size_t>(at - w.stacks) < w.stack_bytes || in_library(at)) {   // constants go through a cache of their own
    } else {
        if (Finding* found = report(w, *w.current, OUT_OF_BOUNDS, pc)) found->space = OTHER, found->address = reinterpret_cast<u64>(p),
            found->bytes = bytes, found->write = kind != READ;
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
    w.mode->turns.clear(), w.mode->paths.clear();
    w.mode->phase = 0, w.mode->barrier = 0;
}
void mode_access(Worker& w, const void* p, u32 bytes, bool write, u64 pc) { if (w.plain) return;
    note(w, p, bytes, write ? WRITE : READ, pc); }
void mode_atomic(Worker& w, void* p, u32 bytes, int kind, u64 pc) { if (w.plain) return;
    note(w, p, bytes, (kind & 3) == 1 ? READ : (kind & 3) == 2 ? WRITE : RMW, pc); }
void mode_copy_begin(Worker& w, Copy& c) {
    if (w.plain) return;
    if (c.filled) note(w, c.from, c.filled, COPY_READ, c.pc);
    note(w, c.to, c.bytes, COPY_WRITE, c.pc);
}
void mode_copy_end(Worker&, Copy&) {}
void mode_store_begin(Worker&, Store&) {}
void mode_store_landed(Worker&, const Store&) {}

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
__attribute__((visibility("hidden"))) void simt_forget_range(size_t, size_t) {}
struct SiteWidths {     // as rooftop/lab/simt/native.py writes it
    u32 site, line, shared, global, shared_split, global_split, again;
};
/// For each site (the return address of an access) its line's number, the widest access of the GPU's machine code there, and the number of
/// its split: `counts[i]` masks of `masks` are split i + 1; and whether it reads again what has just been read.
__attribute__((visibility("default"))) void simt_widths(const SiteWidths* sites, u32 n, const u32* masks, const u32* counts,
    u32 split_count) {
    wide.clear();
    splits.assign(1, {});
    for (u32 i = 0; i < split_count; masks += counts[i++]) splits.emplace_back(masks, masks + counts[i]);
    for (u32 i = 0; i < n; ++i) {
        const SiteWidths& s = sites[i];
        if (s.site >= wide.size()) wide.resize(s.site + 1, {});
        wide[s.site] = {static_cast<u16>(s.line), static_cast<u8>(s.shared), static_cast<u8>(s.global), static_cast<u16>(s.shared_split),
            static_cast<u16>(s.global_split), s.again != 0};
    }
}
/// Where dynamic shared memory begins, in bytes from the first of the block's.
__attribute__((visibility("default"))) void simt_dynamic_at(u32 bytes) { dynamic_at = bytes; }
__attribute__((visibility("default"))) u32 simt_counts(const Count** at) {
    *at = all_counts.data();
    return static_cast<u32>(all_counts.size());
}

void __sanitizer_cov_trace_pc() {
    Worker* w = worker;
    if (w && w->current && !w->combining) leave_event(*w, {0, static_cast<u32>(SIMT_PC()), 0, PLACE, 0, 1});
}
void __ubsan_handle_out_of_bounds(void*, uintptr_t) {}
}

template <bool WRITE>
static inline void seen(Worker& w, const void* p, u32 n, u64 pc) { note(w, p, n, WRITE ? simt::WRITE : READ, pc); }
template <bool WRITE>
static inline void seen_parts(Worker& w, const void* p, u32 n, u64 pc) { note_parts(w, p, n, WRITE ? simt::WRITE : READ, pc); }
template <bool WRITE>
static inline void seen_block(Worker& w, const void* p, u32 n, u64 pc) {
    if (n <= 16 && (n & (n - 1)) == 0 && (reinterpret_cast<u64>(p) & (n - 1)) == 0) seen<WRITE>(w, p, n, pc);
    else seen_parts<WRITE>(w, p, n, pc);
}
template <bool WRITE>
static inline void seen_volatile(Worker& w, const void* p, u32 n, bool whole, u64 pc) {
    if (whole) seen<WRITE>(w, p, n, pc);
    else seen_parts<WRITE>(w, p, n, pc);
    if (WRITE) came_on(w);
    else pause_at(pc);
}
#include "hooks.h"
