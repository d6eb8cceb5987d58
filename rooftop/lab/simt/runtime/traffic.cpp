// Traffic: the global accesses of each warp, request by request, are kept, and then passed through caches as the blocks would run: all that fit
// the multiprocessors at once, each warp a request at a time.
#include "engine.h"

namespace simt {
extern const bool checking = false;

constexpr u32 WRITTEN = 1, LAST = 2;        // bits of an entry below its sector: a write; the last sector of its request
constexpr u64 MOST = u64(1) << 28;         // entries that are kept: 1 GiB
constexpr u32 TOO_MANY = 3;                // what simt_run gives where there are more
struct Stream { std::vector<u32> entries; };
struct Mode { int unused; };

static std::vector<std::vector<Stream>> streams;   // of every block of the present launch, by warp
static size_t arena_bytes;
static u32 warps_of_block;
static std::atomic<u64> kept;

// The n-th accesses of a warp's lanes since they last met are taken to be one request, where they are of one kind.
static void merge_trails(Warp& warp) {
    size_t longest = 0;
    for (u32 todo = warp.valid; todo; todo &= todo - 1) longest = std::max(longest, warp.lanes[__builtin_ctz(todo)].trace.size());
    if (!longest) return;
    std::vector<u32>& out = streams[warp.block->linear][warp.index].entries;
    const size_t before = out.size();
    for (size_t i = 0; i < longest; ++i) {
        u64 kinds[2][64];
        u32 n[2] = {0, 0};
        for (u32 todo = warp.valid; todo; todo &= todo - 1) {
            const std::vector<Event>& trace = warp.lanes[__builtin_ctz(todo)].trace;
            if (i >= trace.size()) continue;
            const Event& e = trace[i];
            const u32 k = e.kind != 0;
            for (u64 sector = e.address / 32; sector <= (e.address + e.bytes - 1) / 32; ++sector) {
                u32 j = n[k];
                while (j > 0 && kinds[k][j - 1] != sector) --j;
                if (!j && n[k] < 64) kinds[k][n[k]++] = sector;
            }
        }
        for (u32 k = 0; k < 2; ++k)
            for (u32 j = 0; j < n[k]; ++j) out.push_back(static_cast<u32>(kinds[k][j] << 2) | (k ? WRITTEN : 0) | (j + 1 == n[k] ? LAST : 0));
    }
    for (u32 todo = warp.valid; todo; todo &= todo - 1) warp.lanes[__builtin_ctz(todo)].trace.clear();
    if (kept.fetch_add(out.size() - before) > MOST) worker->launch->stop = TOO_MANY;
}

void mode_stall(Worker&, Warp& warp) { merge_trails(warp); }

static inline void note(Worker& w, const void* p, u32 bytes, bool write) {
    size_t at = static_cast<size_t>(static_cast<const char*>(p) - arena);
    if (at >= arena_bytes && p >= simt_device && p < simt_variables_end) at = global_place(static_cast<const char*>(p));
    if (at < arena_bytes + static_cast<size_t>(simt_variables_end - simt_variables) && w.current) w.current->trace.push_back({at, 0, static_cast<u8>(bytes), static_cast<u8>(write), 0});
}

void mode_launch(Launch& l) {
    const u32 blocks = l.grid.x * l.grid.y * l.grid.z;
    warps_of_block = (l.block.x * l.block.y * l.block.z + 31) / 32;
    kept = 0;
    streams.assign(blocks, std::vector<Stream>(warps_of_block));
}
void mode_worker(Worker&, bool) {}
void mode_unit(Worker&, Unit& u, bool begins) {
    if (begins)
        for (Fiber& f : u.fibers) f.trace.clear();
    else
        for (Block& b : u.blocks)
            for (Warp& warp : b.warps) merge_trails(warp);
}
void mode_sync(Worker&, Fiber&, u32) {}
void mode_met(Warp&, u32) {}
void mode_shared_range(Worker&, u32, u32) {}
void mode_access(Worker& w, const void* p, u32 bytes, bool write, u64) { note(w, p, bytes, write); }
void mode_atomic(Worker& w, void* p, u32 bytes, int, u64) { note(w, p, bytes, true); }
void mode_copy_begin(Worker& w, Copy& c) {
    if (c.filled) note(w, c.from, c.filled, false);
}
void mode_copy_end(Worker&, Copy&) {}
void mode_store_begin(Worker&, Store&) {}
void mode_store_landed(Worker&, const Store&) {}
void mode_new_grid_phase(Launch&) {}
void mode_misaligned(Worker&, const void*, u32, u64) {}

// -- caches -------------------------------------------------------------------------------------------------------------------------

constexpr u32 WAYS = 16, SECTORS = 4;              // of a set; of a line of 128 bytes

struct Line { u32 tag, used; u8 valid, dirty; };

struct Cache {
    std::vector<Line> lines;
    u32 sets, clock = 0;
    bool lru = false;          // what makes room: the least recently used; else any
    u64 random = 0x2545f4914f6cdd1d;
    void size(u64 bytes) {
        sets = static_cast<u32>(std::max<u64>(1, bytes / 128 / WAYS));
        lines.assign(static_cast<size_t>(sets) * WAYS, {~0u, 0, 0, 0});
    }
    /// The line with `tag`, taken in if it is not there; then `evicted` has the sectors that were dirty in the one that makes room.
    Line& at(u32 tag, u32& evicted) {
        evicted = 0;
        Line* set = &lines[first(tag)];
        Line* free = set;
        for (u32 i = 0; i < WAYS; ++i) {
            if (set[i].tag == tag) {
                set[i].used = ++clock;
                return set[i];
            }
            if (set[i].used < free->used) free = &set[i];
        }
        if (!lru && free->tag != ~0u) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            free = &set[random % WAYS];
        }
        evicted = static_cast<u32>(__builtin_popcount(free->dirty));
        *free = {tag, ++clock, 0, 0};
        return *free;
    }
    size_t first(u32 tag) const { return static_cast<size_t>((tag * u64(0x9e3779b97f4a7c15) >> 20) % sets) * WAYS; }
    Line* find(u32 tag) {
        Line* set = &lines[first(tag)];
        for (u32 i = 0; i < WAYS; ++i)
            if (set[i].tag == tag) return &set[i];
        return nullptr;
    }
};

struct Machine {    // as rooftop/lab/counters/traffic.py writes it
    u32 multiprocessors, partitions;
    u64 l1_bytes, l2_bytes;                        // of a multiprocessor; of all partitions
};
struct Traffic { u64 requests, l1_sectors, l2_sectors, l2_read_sectors, memory_read, memory_written; };   // the last two in sectors

static std::vector<Cache> l2;

struct Running {    // a block on a multiprocessor
    u32 block = ~0u, left = 0;
    std::vector<size_t> at;
};
}  // namespace simt

using namespace simt;

extern "C" {
#define SIMT_EXPORT __attribute__((visibility("default")))

SIMT_EXPORT void* simt_arena(size_t bytes) {
    if (arena) munmap(arena, static_cast<size_t>(arena_end - arena));
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    arena = p == MAP_FAILED ? nullptr : static_cast<char*>(p);
    arena_bytes = arena ? bytes : 0;
    arena_end = arena ? arena + bytes : nullptr;
    l2.clear();
    return arena;
}
SIMT_EXPORT void simt_mark(size_t, u32, u32, const u64*, const u64*, u32) {}
SIMT_EXPORT void simt_widths(const u32*, const u32*, const u32*, const u32*, u32) {}
SIMT_EXPORT u32 simt_counts(const void** at) {
    *at = nullptr;
    return 0;
}

/// Passes the accesses of the last launch through the caches. `together`: blocks that a multiprocessor holds at once. The L2 keeps what it held
/// after the launch before (`cold`: it is empty).
SIMT_EXPORT void simt_traffic(const Machine* m, u32 together, u32 cold, Traffic* out) {
    Traffic t = {};
    if (cold || l2.size() != m->partitions) {
        l2.assign(m->partitions, Cache());
        for (Cache& c : l2) c.size(m->l2_bytes / m->partitions);
    }
    std::vector<Cache> l1(m->multiprocessors);
    for (Cache& c : l1) c.size(m->l1_bytes), c.lru = true;
    std::vector<std::vector<Running>> held(m->multiprocessors, std::vector<Running>(together));
    u32 next = 0, open = 0;
    const u32 blocks = static_cast<u32>(streams.size());
    const auto begin = [&](Running& r) {
        r.block = ~0u;
        if (next == blocks) return;
        r.block = next++;
        r.at.assign(streams[r.block].size(), 0);
        r.left = 0;
        for (const Stream& s : streams[r.block]) r.left += !s.entries.empty();
        ++open;
    };
    for (u32 slot = 0; slot < together; ++slot)
        for (std::vector<Running>& sm : held) begin(sm[slot]);
    const auto access = [&](u32 sm, u32 entry) {
        const u32 sector = entry >> 2, tag = sector / SECTORS, bit = 1u << sector % SECTORS;
        const bool write = entry & WRITTEN;
        u32 evicted = 0;
        ++t.l1_sectors;
        if (!write) {
            Line& line = l1[sm].at(tag, evicted);
            if (line.valid & bit) return;
            line.valid = static_cast<u8>(line.valid | bit);
        } else if (Line* line = l1[sm].find(tag)) {        // written through: what a multiprocessor holds of it stays right
            line->valid = static_cast<u8>(line->valid | bit);
        }
        ++t.l2_sectors;
        t.l2_read_sectors += !write;
        const u32 home = static_cast<u32>((tag * u64(0xd6e8feb86659fd93) >> 40) % m->partitions), near = sm % m->partitions;
        if (!write && near != home) {                      // what lies behind the other partition is kept in this one too
            Line& line = l2[near].at(tag, evicted);
            t.memory_written += evicted;
            if (line.valid & bit) return;
            line.valid = static_cast<u8>(line.valid | bit);
        }
        Line& line = l2[home].at(tag, evicted);
        t.memory_written += evicted;
        if (!write && !(line.valid & bit)) ++t.memory_read;
        line.valid = static_cast<u8>(line.valid | bit);
        if (write) {
            line.dirty = static_cast<u8>(line.dirty | bit);
            for (u32 other = 0; other < m->partitions; ++other)
                if (other != home)
                    if (Line* copy = l2[other].find(tag)) copy->valid = static_cast<u8>(copy->valid & ~bit);
        }
    };
    while (open) {
        for (u32 slot = 0; slot < together; ++slot)
            for (u32 sm = 0; sm < m->multiprocessors; ++sm) {
                Running& r = held[sm][slot];
                if (r.block == ~0u) continue;
                for (u32 warp = 0; warp < r.at.size(); ++warp) {
                    const std::vector<u32>& entries = streams[r.block][warp].entries;
                    size_t& at = r.at[warp];
                    if (at == entries.size()) continue;
                    ++t.requests;
                    u32 entry;
                    do access(sm, entry = entries[at++]);
                    while (!(entry & LAST));
                    r.left -= at == entries.size();
                }
                if (!r.left) {
                    streams[r.block].clear();
                    --open;
                    begin(r);
                }
            }
    }
    *out = t;
}

void __ubsan_handle_out_of_bounds(void*, uintptr_t) {}
}

template <bool WRITE>
static inline void seen(Worker& w, const void* p, u32 n, u64) { note(w, p, n, WRITE); }
template <bool WRITE>
static inline void seen_parts(Worker& w, const void* p, u32 n, u64) { note(w, p, n, WRITE); }
template <bool WRITE>
static inline void seen_block(Worker& w, const void* p, u32 n, u64) { note(w, p, n, WRITE); }
template <bool WRITE>
static inline void seen_volatile(Worker& w, const void* p, u32 n, bool, u64 pc) {
    note(w, p, n, WRITE);
    if (WRITE) came_on(w);
    else pause_at(pc);
}
#include "hooks.h"
