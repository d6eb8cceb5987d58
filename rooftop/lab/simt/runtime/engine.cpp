// The scheduler: fibers, warps, blocks, clusters; barriers, collectives, asynchronous copies; and what Python calls.
#define SIMT_SWITCH 1  // the switch itself is assembled into this file
#include "engine.h"

#include <csignal>
#include <ucontext.h>

namespace simt {

__thread Worker* worker = nullptr;
char *arena = nullptr, *arena_end = nullptr;
static std::vector<Finding> all_findings;
static u64 total_fma, total_flops;
static u32 launches, tags = 1;
static std::mutex merge;

// -- findings ----------------------------------------------------------------------------------------------------------------

static void put(u32 (&to)[3], const uint3& v) { to[0] = v.x, to[1] = v.y, to[2] = v.z; }

Finding* report(Worker& w, const Fiber& f, Kind kind, u64 pc, u64 other_pc) {
    const u64 key = (pc * 0x9e3779b97f4a7c15u) ^ (other_pc * 0xc2b2ae3d27d4eb4fu) ^ kind;
    const auto [at, fresh] = w.known.emplace(key, static_cast<u32>(w.findings.size()));
    if (!fresh) {
        ++w.findings[at->second].count;
        return nullptr;
    }
    if (w.findings.size() >= 4096) {
        w.known.erase(at);
        return nullptr;
    }
    Finding& found = w.findings.emplace_back();
    std::memset(&found, 0, sizeof found);
    found.kind = kind, found.pc = pc, found.other_pc = other_pc, found.count = 1;
    put(found.block, f.block->index);
    put(found.thread, f.tid);
    return &found;
}

void other_thread(Worker& w, Finding& found, u32 number) {
    const Fiber& f = w.unit->fibers[number];
    put(found.other_block, f.block->index);
    put(found.other_thread, f.tid);
    found.has_other = 1;
}

static void say(Finding& found, const char* format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(found.text, sizeof found.text, format, list);
    va_end(list);
}

[[noreturn]] void die(Worker& w) {
    w.launch->stop = 1;
    Fiber* f = w.current;
    simt_switch(&f->sp, w.main);
    __builtin_unreachable();
}

// -- whose turn it is ----------------------------------------------------------------------------------------------------------

static Fiber* take(Warp& warp) {
    const u32 turned = warp.ready >> warp.rotate | warp.ready << ((32 - warp.rotate) & 31);
    const u32 lane = (static_cast<u32>(__builtin_ctz(turned)) + warp.rotate) & 31;
    warp.ready &= ~(1u << lane);
    return &warp.lanes[lane];
}

static void make_ready(Worker& w, Warp& warp, u32 lanes) {
    warp.ready |= lanes;
    if (lanes && !warp.queued && &warp != w.running) {
        warp.queued = true;
        w.queue.push_back(&warp);
    }
}

static void park(Worker& w, Fiber& f) {
    Warp& warp = *f.warp;
    if (warp.ready) {
        Fiber* next = take(warp);
        w.current = next;
        if (next == &f) return;
        simt_switch(&f.sp, next->sp);
    } else {
        simt_switch(&f.sp, w.main);
    }
}

void yield(Worker& w, Fiber& f) {      // the others of the warp first, then this one again
    f.warp->ready |= 1u << f.lane;
    f.warp->rotate = (f.lane + 1) & 31;
    simt_switch(&f.sp, w.main);
}

static void progress(Worker& w) {
    w.pauses = 0;
    if (w.idle) w.idle = false, --w.launch->idle;
}

// -- collectives of a warp -------------------------------------------------------------------------------------------------------

static void join_lanes(Warp& warp, u32 lanes) {
    u16 row[32] = {};
    for (u32 todo = lanes; todo; todo &= todo - 1) {
        const u16* other = warp.clocks[__builtin_ctz(todo)];
        for (int i = 0; i < 32; ++i) row[i] = std::max(row[i], other[i]);
    }
    for (u32 todo = lanes; todo; todo &= todo - 1) {
        const int lane = __builtin_ctz(todo);
        std::memcpy(warp.clocks[lane], row, sizeof row);
        if (row[lane] < CLOCK_LIMIT) ++warp.clocks[lane][lane];
        Fiber& f = warp.lanes[lane];
        f.low = (f.low & ~u64(0xffff)) | static_cast<u64>(warp.clocks[lane][lane]) << 1;
    }
}

static bool try_collective(Worker& w, Warp& warp, size_t at) {
    Pending p = warp.pending[at];
    const u32 needed = p.mask & warp.valid & ~warp.exited;
    if ((p.arrived & needed) != needed) return false;
    warp.pending.erase(warp.pending.begin() + static_cast<long>(at));
    Group group;
    group.mask = p.arrived, group.named = p.mask;
    for (u32 todo = p.arrived; todo; todo &= todo - 1) group.record[__builtin_ctz(todo)] = warp.lanes[__builtin_ctz(todo)].record;
    if (p.ordered) join_lanes(warp, p.arrived);
    p.combine(group);
    for (u32 todo = p.arrived; todo; todo &= todo - 1) warp.lanes[__builtin_ctz(todo)].state = READY;
    progress(w);
    return true;
}

__attribute__((noinline)) void collective(unsigned mask, Combine combine, void* record, bool ordered) {
    Worker& w = *worker;
    Fiber& f = *w.current;
    Warp& warp = *f.warp;
    const u32 bit = 1u << f.lane;
    f.pc = SIMT_PC();
    mode_sync(w, f);
    if (!(mask & bit)) {
        if (Finding* found = report(w, f, ABSENT_LANE, f.pc)) say(*found, "lane %u calls a warp collective whose mask 0x%08x does not name it", f.lane, mask);
        mask |= bit;
    }
    f.mask = mask, f.record = record, f.combine = combine;
    size_t at = 0;
    while (at < warp.pending.size() && (warp.pending[at].mask != mask || warp.pending[at].combine != combine)) ++at;
    if (at == warp.pending.size()) warp.pending.push_back({mask, 0, combine, ordered, f.pc});
    if (const u64 first = warp.pending[at].pc; first != f.pc && !ordered) {
        if (Finding* found = report(w, f, ABSENT_LANE, f.pc, first)) {
            const u32 lane = static_cast<u32>(__builtin_ctz(warp.pending[at].arrived));
            other_thread(w, *found, warp.lanes[lane].number);
            say(*found, "lane %u is at this collective while lane %u of its warp, which the mask 0x%08x names as well, waits at another", f.lane, lane, mask);
        }
    }
    warp.pending[at].arrived |= bit;
    const u32 waited = warp.pending[at].arrived & ~bit;
    f.state = AT_COLLECTIVE;
    if (try_collective(w, warp, at)) {
        make_ready(w, warp, waited);
    } else {
        park(w, f);
    }
}

void absent_lane(Group&, int reader, int source, unsigned mask) {
    Worker& w = *worker;
    Warp& warp = *w.current->warp;
    Fiber& f = warp.lanes[reader];
    if (Finding* found = report(w, f, ABSENT_LANE, f.pc)) {
        const u32 bit = 1u << source;
        const char* why = !(warp.valid & bit) ? "the block has no such thread" : warp.exited & bit ? "which has returned" : "which takes no part";
        say(*found, "lane %d reads from lane %d, %s; lanes 0x%08x take part", reader, source, why, mask);
    }
}

// Which lanes run together: those that come to the same place before any of the warp has to wait for something else.
__attribute__((noinline)) unsigned active_mask() {
    Worker& w = *worker;
    Fiber& f = *w.current;
    f.pc = SIMT_PC();
    mode_sync(w, f);
    f.state = AT_MASK;
    park(w, f);
    return f.mask;
}

static void answer_mask(Warp& warp) {   // no lane of the warp can run: those at the lowest place that ask are told of each other
    u32 lanes = 0;
    u64 lowest = ~u64(0);
    for (u32 todo = warp.valid & ~warp.exited; todo; todo &= todo - 1) {
        const Fiber& f = warp.lanes[__builtin_ctz(todo)];
        if (f.state != AT_MASK || f.pc > lowest) continue;
        if (f.pc < lowest) lanes = 0;
        lowest = f.pc;
        lanes |= 1u << f.lane;
    }
    for (u32 todo = lanes; todo; todo &= todo - 1) {
        Fiber& f = warp.lanes[__builtin_ctz(todo)];
        f.mask = lanes;
        f.state = READY;
    }
    warp.ready |= lanes;
}

// -- barriers of a block -----------------------------------------------------------------------------------------------------------

static void new_epoch(Worker& w, Block& b) { b.epoch = ++w.epoch << EPOCH_SHIFT; }

static void join_warps(Worker&, Block& b, int id) {   // a barrier that only some warps have met at
    u16 all[32] = {};
    u16 top[32] = {};
    for (Warp& warp : b.warps) {
        if (!warp.at[id]) continue;
        for (u32 todo = warp.at[id]; todo; todo &= todo - 1) top[warp.index] = std::max(top[warp.index], warp.clocks[__builtin_ctz(todo)][__builtin_ctz(todo)]);
        for (int i = 0; i < 32; ++i) all[i] = std::max(all[i], warp.knows[i]);
    }
    for (int i = 0; i < 32; ++i) all[i] = std::max(all[i], top[i]);
    for (Warp& warp : b.warps) {
        if (!warp.at[id]) continue;
        std::memcpy(warp.knows, all, sizeof all);
        join_lanes(warp, warp.at[id]);
        for (u32 todo = warp.at[id]; todo; todo &= todo - 1) {
            const int lane = __builtin_ctz(todo);
            warp.clocks[lane][lane] = static_cast<u16>(std::min<u32>(top[warp.index] + 1u, CLOCK_LIMIT));
            warp.lanes[lane].low = (warp.lanes[lane].low & ~u64(0xffff)) | static_cast<u64>(warp.clocks[lane][lane]) << 1;
        }
    }
}

static u64 barrier_bit(u64 pc) { return u64(1) << (pc * 0x9e3779b97f4a7c15u >> 58); }

// Threads that return early do not count at a barrier. One that has returned without ever coming to this one and touched memory last at a
// place behind it has gone around it: whether that place is behind is for the lines of the source to say (findings.py).
static void skipped(Worker& w, Block& b, int id) {
    const Fiber* waits = nullptr;
    for (Warp& warp : b.warps)
        if (warp.at[id]) waits = &warp.lanes[__builtin_ctz(warp.at[id])];
    if (!waits) return;
    for (Warp& warp : b.warps) {
        u32 around = 0;
        for (u32 todo = warp.exited; todo; todo &= todo - 1) {
            const Fiber& f = warp.lanes[__builtin_ctz(todo)];
            if (f.last && !(f.barriers & barrier_bit(waits->pc))) around |= 1u << f.lane;
        }
        if (!around) continue;
        const Fiber& gone = warp.lanes[__builtin_ctz(around)];
        if (Finding* found = report(w, *waits, BARRIER_DIVERGENCE, waits->pc, gone.last)) {
            other_thread(w, *found, gone.number);
            found->detail[0] = 1;
            say(*found, "%d threads of a warp have returned without coming to this barrier, at which others of the block wait", __builtin_popcount(around));
        }
    }
}

static bool try_barrier(Worker& w, Block& b, int id, const Fiber* last) {
    Barrier& bar = b.barriers[id];
    const u32 needed = bar.expected ? bar.expected : b.live;
    if (bar.arrived == 0 || bar.arrived < needed) return false;
    const bool everyone = bar.arrived >= b.live;
    if (!everyone) join_warps(w, b, id);
    if (everyone && !bar.expected && b.live < b.threads) skipped(w, b, id);
    for (Warp& warp : b.warps) {
        const u32 lanes = warp.at[id];
        if (!lanes) continue;
        warp.at[id] = 0;
        for (u32 todo = lanes; todo; todo &= todo - 1) {
            Fiber& f = warp.lanes[__builtin_ctz(todo)];
            f.state = READY;
            f.result = static_cast<int>(bar.yes), f.met = bar.arrived;
        }
        make_ready(w, warp, last && last->warp == &warp ? lanes & ~(1u << last->lane) : lanes);
    }
    if (everyone) new_epoch(w, b);
    bar.arrived = bar.expected = bar.yes = 0;
    progress(w);
    return true;
}

__attribute__((noinline)) int block_barrier(int id, int threads, Reduce reduce, int predicate) {
    Worker& w = *worker;
    Fiber& f = *w.current;
    Block& b = *f.block;
    f.pc = SIMT_PC();
    mode_sync(w, f);
    if (id < 0 || id > 15) trap("a barrier with a number other than 0 to 15");
    Barrier& bar = b.barriers[id];
    if (bar.arrived == 0) bar.pc = f.pc;
    if (bar.pc != f.pc && id == 0 && threads == 0) {   // named barriers are for meeting from different places
        if (Finding* found = report(w, f, BARRIER_DIVERGENCE, f.pc, bar.pc)) say(*found, "threads of one block wait at different barriers");
    }
    ++bar.arrived;
    bar.expected = static_cast<u32>(threads);
    bar.yes += predicate != 0;
    f.state = AT_BARRIER, f.barrier = static_cast<u8>(id);
    f.warp->at[id] |= 1u << f.lane;
    f.barriers |= barrier_bit(f.pc);
    if (!try_barrier(w, b, id, &f)) park(w, f);
    switch (reduce) {
        case AND: return f.result == static_cast<int>(f.met);
        case OR: return f.result != 0;
        default: return f.result;
    }
}

__attribute__((noinline)) void block_arrive(int id, int threads) {
    Worker& w = *worker;
    Fiber& f = *w.current;
    mode_sync(w, f);
    Barrier& bar = f.block->barriers[id];
    ++bar.arrived;
    bar.expected = static_cast<u32>(threads);
    try_barrier(w, *f.block, id, nullptr);
}

// -- clusters and the grid -----------------------------------------------------------------------------------------------------------

static u32 cluster_of(const Fiber& f) { return f.block->rank / f.block->unit->cluster_blocks; }

static void try_cluster(Worker& w, Unit& u, u32 cluster) {
    if (u.cluster_arrived[cluster] == 0 || u.cluster_arrived[cluster] < u.cluster_live[cluster]) return;
    u.cluster_arrived[cluster] = 0;
    ++u.cluster_phase[cluster];
    const u64 epoch = ++w.epoch << EPOCH_SHIFT;
    u.cluster_epoch = epoch;
    for (u32 i = cluster * u.cluster_blocks; i < (cluster + 1) * u.cluster_blocks && i < u.blocks.size(); ++i) {
        Block& b = u.blocks[i];
        b.epoch = epoch;
        for (Warp& warp : b.warps) {
            u32 woken = 0;
            for (u32 todo = warp.valid; todo; todo &= todo - 1)
                if (Fiber& f = warp.lanes[__builtin_ctz(todo)]; f.state == AT_CLUSTER) f.state = READY, woken |= 1u << f.lane;
            make_ready(w, warp, woken);
        }
    }
    progress(w);
}

__attribute__((noinline)) void cluster_arrive() {
    Worker& w = *worker;
    Fiber& f = *w.current;
    f.pc = SIMT_PC();
    mode_sync(w, f);
    const u32 c = cluster_of(f);
    f.cluster_phase = w.unit->cluster_phase[c] + 1;
    ++w.unit->cluster_arrived[c];
    try_cluster(w, *w.unit, c);
}

__attribute__((noinline)) void cluster_wait() {
    Worker& w = *worker;
    Fiber& f = *w.current;
    f.pc = SIMT_PC();
    mode_sync(w, f);
    while (w.unit->cluster_phase[cluster_of(f)] < f.cluster_phase) {
        f.state = AT_CLUSTER;
        park(w, f);
    }
}

static void try_grid(Worker& w, Unit& u) {
    if (u.grid_arrived == 0 || u.grid_arrived < u.live) return;
    u.grid_arrived = 0;
    for (Block& b : u.blocks) {
        new_epoch(w, b);
        for (Warp& warp : b.warps) {
            u32 woken = 0;
            for (u32 todo = warp.valid; todo; todo &= todo - 1)
                if (Fiber& f = warp.lanes[__builtin_ctz(todo)]; f.state == AT_GRID) f.state = READY, woken |= 1u << f.lane;
            make_ready(w, warp, woken);
        }
    }
    mode_new_grid_phase(*w.launch);
    progress(w);
}

__attribute__((noinline)) void grid_barrier() {
    Worker& w = *worker;
    Fiber& f = *w.current;
    f.pc = SIMT_PC();
    mode_sync(w, f);
    if (!w.launch->cooperative) trap("a barrier of the grid in a launch that is not cooperative");
    f.state = AT_GRID;
    ++w.unit->grid_arrived;
    try_grid(w, *w.unit);
    if (f.state == AT_GRID) {
        park(w, f);
    } else {
        f.warp->ready &= ~(1u << f.lane);
    }
}

// -- where a thread is -----------------------------------------------------------------------------------------------------------------

uint3 thread_index() { return worker->current->tid; }
uint3 block_index() { return worker->current->block->index; }
dim3 block_extent() { return worker->launch->block; }
dim3 grid_extent() { return worker->launch->grid; }
dim3 cluster_extent() { return worker->launch->cluster; }
unsigned lane_index() { return worker->current->lane; }
unsigned warp_index() { return worker->current->warp->index; }
unsigned cluster_rank() {
    const Fiber& f = *worker->current;
    return f.block->rank % f.block->unit->cluster_blocks;
}

// -- memory -------------------------------------------------------------------------------------------------------------------------------

static u32 round_up(u32 v, u32 to) { return (v + to - 1) / to * to; }

__attribute__((noinline)) void* shared_variable(SharedSite& site, unsigned bytes, unsigned align) {
    Worker& w = *worker;
    Launch& l = *w.launch;
    const u64 pc = SIMT_PC();
    if (__atomic_load_n(&site.launch, __ATOMIC_ACQUIRE) != l.number || w.shared_known != l.shared_ranges.size()) {
        std::lock_guard<std::mutex> lock(l.mutex);
        if (site.launch != l.number) {
            site.offset = round_up(l.shared_at, std::max(align, 128u));
            l.shared_at = site.offset + bytes + SHARED_GAP;
            if (site.offset + bytes > SHARED_LIMIT) {
                if (Finding* found = report(w, *w.current, OUT_OF_BOUNDS, pc)) say(*found, "the block's shared memory, %u bytes and more, exceeds the %zu that a block can have", site.offset + bytes, SHARED_LIMIT);
                die(w);
            }
            l.shared_ranges.push_back({site.offset, bytes});
            __atomic_store_n(&site.launch, l.number, __ATOMIC_RELEASE);
        }
        for (; w.shared_known < l.shared_ranges.size(); ++w.shared_known) mode_shared_range(w, l.shared_ranges[w.shared_known].first, l.shared_ranges[w.shared_known].second);
    }
    return w.current->block->shared + site.offset;
}

void* dynamic_shared() { return worker->current->block->shared; }
bool is_shared(const void* p) { return static_cast<size_t>(static_cast<const char*>(p) - worker->shared) < worker->shared_bytes; }
unsigned shared_address(const void* p) {   // the block's rank above, as in the shared::cluster window
    Worker& w = *worker;
    const size_t at = static_cast<size_t>(static_cast<const char*>(p) - w.shared);
    if (at >= w.shared_bytes) trap("an address that is not in shared memory is used as one");
    return static_cast<unsigned>(at % SHARED_STRIDE) | static_cast<unsigned>(at / SHARED_STRIDE) << 24;
}
void* shared_pointer(unsigned a) {
    Worker& w = *worker;
    const size_t rank = a >> 24;
    return w.shared + rank * SHARED_STRIDE + (a & 0xffffff);
}
void* cluster_map(const void* p, unsigned rank) {
    Worker& w = *worker;
    const Fiber& f = *w.current;
    const u32 n = f.block->unit->cluster_blocks;
    if (rank >= n) trap("a block rank outside the cluster");
    const size_t at = static_cast<size_t>(static_cast<const char*>(p) - f.block->shared);
    if (at >= SHARED_STRIDE) trap("map_shared_rank of an address that is not in this block's shared memory");
    return w.shared + (f.block->rank / n * n + rank) * SHARED_STRIDE + at;
}
Memory memory_of(const void* p) {
    Worker& w = *worker;
    const char* at = static_cast<const char*>(p);
    if (static_cast<size_t>(at - w.shared) < w.shared_bytes) return SHARED;
    if (at >= arena && at < arena_end) return GLOBAL;
    if (static_cast<size_t>(at - w.stacks) < w.stack_bytes) return LOCAL;
    return OTHER;
}
__attribute__((noinline)) void note_read(const void* p, unsigned bytes) { mode_access(*worker, p, bytes, false, SIMT_PC()); }
__attribute__((noinline)) void note_write(void* p, unsigned bytes) { mode_access(*worker, p, bytes, true, SIMT_PC()); }
__attribute__((noinline)) void note_atomic(void* p, unsigned bytes, int kind) {
    Worker& w = *worker;
    pause_at(SIMT_PC());   // before: nobody else of this worker runs between what is noted and what is done
    mode_atomic(w, p, bytes, kind, SIMT_PC());
}
void note_float(unsigned fma, unsigned other) { worker->fma += fma, worker->flops += other; }

bool compare_and_swap(void* p, void* expected, const void* desired, unsigned bytes) {
    switch (bytes) {
#define SIMT_CASE(n, T)                                                                                           \
    case n: {                                                                                                     \
        T want;                                                                                                   \
        std::memcpy(&want, desired, n);                                                                           \
        return __atomic_compare_exchange_n(static_cast<T*>(p), static_cast<T*>(expected), want, false, 5, 5);     \
    }
        SIMT_CASE(1, u8)
        SIMT_CASE(2, u16)
        SIMT_CASE(4, u32)
        SIMT_CASE(8, u64)
        default: {
            static std::mutex wide;
            std::lock_guard<std::mutex> lock(wide);
            if (!std::memcmp(p, expected, bytes)) {
                std::memcpy(p, desired, bytes);
                return true;
            }
            std::memcpy(expected, p, bytes);
            return false;
        }
    }
}
void atomic_load(const void* p, void* to, unsigned bytes) {
    switch (bytes) {
        case 4: { const u32 v = __atomic_load_n(static_cast<const u32*>(p), 5); std::memcpy(to, &v, 4); break; }
        case 8: { const u64 v = __atomic_load_n(static_cast<const u64*>(p), 5); std::memcpy(to, &v, 8); break; }
        default: std::memcpy(to, p, bytes);
    }
}

void fence() { worker->current->fenced = true; }

__attribute__((noinline)) void pause() { pause_at(SIMT_PC()); }

void pause_at(u64 pc) {   // every so often, so that whom it waits for comes to run
    Worker& w = *worker;
    Fiber& f = *w.current;
    if (++f.spins % 32) return;
    if (w.pauses++ == 0) w.idle_since = std::chrono::steady_clock::now();
    if (w.pauses % 1024 == 0 && w.pauses > 64 * static_cast<u64>(w.unit->live)) {   // everyone has had many turns, and nobody has come on
        const auto waited = std::chrono::steady_clock::now() - w.idle_since;
        if (!w.idle && waited > std::chrono::milliseconds(200)) w.idle = true, ++w.launch->idle;
        if ((w.idle && w.launch->idle == w.launch->active && waited > std::chrono::milliseconds(300)) || waited > std::chrono::seconds(20)) {
            f.pc = pc;
            if (Finding* found = report(w, f, DEADLOCK, f.pc)) say(*found, "this thread waits for something that does not come: nobody in its block can change it");
            die(w);
        }
    }
    yield(w, f);
}

long long clock_now() {   // turns of the scheduler stand for cycles: it grows, and says nothing about time
    Worker& w = *worker;
    return static_cast<long long>(++w.steps);
}

// -- asynchronous copies -----------------------------------------------------------------------------------------------------------------

__attribute__((noinline)) void copy_async(void* to, const void* from, unsigned bytes, unsigned filled) {
    Worker& w = *worker;
    Fiber& f = *w.current;
    if (!f.copies) f.copies = new Copies;
    Copy c = {static_cast<char*>(to), static_cast<const char*>(from), bytes, filled, SIMT_PC(), static_cast<u8>(next_random(w) >> 40 & 1), {}};
    if (bytes != 4 && bytes != 8 && bytes != 16) trap("an asynchronous copy of a size other than 4, 8 or 16 bytes");
    mode_copy_begin(w, c);
    if (c.early) std::memcpy(c.data, from, filled);
    f.copies->open.push_back(c);
}

static void land(Worker& w, std::vector<Copy>& copies) {
    for (size_t i = copies.size(); i > 1; --i) std::swap(copies[i - 1], copies[next_random(w) % i]);
    for (Copy& c : copies) {
        mode_copy_end(w, c);
        if (!c.early) std::memcpy(c.data, c.from, c.filled);
        std::memset(c.data + c.filled, 0, c.bytes - c.filled);
        std::memcpy(c.to, c.data, c.bytes);
    }
    copies.clear();
}

void copy_commit() {
    Fiber& f = *worker->current;
    if (!f.copies) f.copies = new Copies;
    f.copies->groups.push_back(std::move(f.copies->open));
    f.copies->open.clear();
}

void copy_wait(unsigned groups) {
    Worker& w = *worker;
    Copies* c = w.current->copies;
    while (c && c->groups.size() > groups) {
        land(w, c->groups.front());
        c->groups.pop_front();
    }
}

void copy_wait_all() {
    Worker& w = *worker;
    copy_wait(0);
    if (w.current->copies) land(w, w.current->copies->open);
}

// -- mbarriers ----------------------------------------------------------------------------------------------------------------------------

void check_aligned(const void* p, unsigned bytes) {
    if (reinterpret_cast<u64>(p) & (bytes - 1)) mode_misaligned(*worker, p, bytes, SIMT_PC());
}

__attribute__((noinline)) void mbarrier_init(void* shared, unsigned count) {
    Worker& w = *worker;
    mode_access(w, shared, 8, true, SIMT_PC());
    MBarrier& bar = w.unit->mbarriers[shared];
    std::memset(&bar, 0, sizeof bar);
    bar.count = bar.pending = count;
}

static MBarrier& mbarrier_at(Worker& w, const void* shared) {
    const auto at = w.unit->mbarriers.find(shared);
    if (at == w.unit->mbarriers.end()) trap("an mbarrier that has not been initialised");
    return at->second;
}

static u64 arrive_at(Fiber& f, MBarrier& bar, u32 count) {
    Warp& warp = *f.warp;
    const u16 clock = warp.clocks[f.lane][f.lane];
    for (int i = 0; i < 32; ++i) bar.now[i] = std::max(bar.now[i], warp.knows[i]);
    bar.now[warp.index] = std::max(bar.now[warp.index], clock);
    if (clock < CLOCK_LIMIT) ++warp.clocks[f.lane][f.lane];
    f.low = (f.low & ~u64(0xffff)) | static_cast<u64>(warp.clocks[f.lane][f.lane]) << 1;
    const u64 phase = bar.phase;
    bar.pending -= std::min(count, bar.pending);
    if (bar.pending == 0) {
        ++bar.phase;
        bar.pending = bar.count;
        for (int i = 0; i < 32; ++i) bar.past[i] = std::max(bar.past[i], bar.now[i]);
    }
    return phase;
}

__attribute__((noinline)) u_long mbarrier_arrive(void* shared, unsigned count) {
    Worker& w = *worker;
    Fiber& f = *w.current;
    f.pc = SIMT_PC();
    MBarrier& bar = mbarrier_at(w, shared);
    const u64 before = bar.phase, phase = arrive_at(f, bar, count);
    if (bar.phase != before) progress(w);
    return phase;
}

__attribute__((noinline)) bool mbarrier_test(void* shared, u_long phase) {
    Worker& w = *worker;
    Fiber& f = *w.current;
    f.pc = SIMT_PC();
    MBarrier& bar = mbarrier_at(w, shared);
    if ((bar.phase & 1) == (phase & 1)) {
        f.spins |= 31;                              // the next pause is a real one
        pause_at(f.pc);
        return false;
    }
    Warp& warp = *f.warp;
    for (int i = 0; i < 32; ++i) warp.knows[i] = std::max(warp.knows[i], bar.past[i]);
    for (u32 todo = warp.valid & ~(1u << f.lane); todo; todo &= todo - 1) {
        u16& known = warp.clocks[f.lane][__builtin_ctz(todo)];
        known = std::max(known, bar.past[warp.index]);
    }
    return true;
}

void copy_arrive(void* shared, int noinc) {
    Worker& w = *worker;
    Fiber& f = *w.current;
    MBarrier& bar = mbarrier_at(w, shared);
    copy_wait_all();                                // they may land at any time from here on: now is one
    if (!noinc) ++bar.pending;
    arrive_at(f, bar, 1);
}

// -- what ends a launch ---------------------------------------------------------------------------------------------------------------------

static void stop_with(Kind kind, u64 pc, const char* text) {
    Worker& w = *worker;
    if (Finding* found = report(w, *w.current, kind, pc)) say(*found, "%s", text);
    die(w);
}
__attribute__((noinline)) void assertion(const char* text, const char* function) {
    char line[180];
    snprintf(line, sizeof line, "assert(%s) does not hold in %s", text, function);
    stop_with(ASSERT, SIMT_PC(), line);
    __builtin_unreachable();
}
__attribute__((noinline)) void trap(const char* what) {
    stop_with(ASSERT, SIMT_PC(), what);
    __builtin_unreachable();
}
__attribute__((noinline)) void not_simulated(const char* what) {
    stop_with(NOT_SIMULATED, SIMT_PC(), what);
    __builtin_unreachable();
}

static std::mutex printing;
static std::vector<char> printed;
int print(const char* format, ...) {
    char line[1024];
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    std::lock_guard<std::mutex> lock(printing);
    if (printed.size() < (1 << 20)) printed.insert(printed.end(), line, line + std::min<int>(n, sizeof line - 1));
    return n;
}

// -- crashes: what a thread does to its own stack, or a division by zero, ends the launch and not the process -----------------------------

static constexpr int SIGNALS[] = {SIGSEGV, SIGILL, SIGBUS, SIGFPE, SIGTRAP};
static struct sigaction before[5];
static std::mutex signalling;
static u32 catching;

static void crashed(int number, siginfo_t*, void* context) {
    Worker* w = worker;
    if (!w || !w->current) {              // not ours: as if nobody had caught it
        signal(number, SIG_DFL);
        return;
    }
    u64 pc = w->current->last;
#if defined(__x86_64__)
    const u64 at = static_cast<u64>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]) - reinterpret_cast<u64>(&__ehdr_start);
    if (at < static_cast<u64>(&_end - &__ehdr_start)) pc = at + 1;
#else
    (void)context;
#endif
    if (Finding* found = report(*w, *w->current, number == SIGFPE ? ASSERT : OUT_OF_BOUNDS, pc)) {
        found->space = LOCAL;
        say(*found, "%s", number == SIGFPE ? "an integer division by zero: on a GPU its result is unspecified" : "the thread crashes here: it has overwritten its own stack, or gone where no code is");
    }
    die(*w);
}

static void catch_crashes(bool begins) {
    std::lock_guard<std::mutex> lock(signalling);
    if (begins ? catching++ : --catching) return;
    for (int i = 0; i < 5; ++i) {
        struct sigaction action;
        std::memset(&action, 0, sizeof action);
        action.sa_sigaction = crashed;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        if (begins) sigaction(SIGNALS[i], &action, &before[i]);
        else sigaction(SIGNALS[i], &before[i], nullptr);
    }
}

// -- running one unit -------------------------------------------------------------------------------------------------------------------------

static void leave(Worker& w, Fiber& f) {
    f.state = DONE;
    Warp& warp = *f.warp;
    Block& b = *f.block;
    Unit& u = *b.unit;
    warp.exited |= 1u << f.lane;
    --b.live, --u.live, --u.cluster_live[cluster_of(f)];
    if (f.cluster_phase > u.cluster_phase[cluster_of(f)]) --u.cluster_arrived[cluster_of(f)];   // it had arrived and has gone: it counts once
    progress(w);
    for (size_t i = 0; i < warp.pending.size();) {
        const u32 waited = warp.pending[i].arrived;
        if (try_collective(w, warp, i)) {
            make_ready(w, warp, waited);
            i = 0;
        } else {
            ++i;
        }
    }
    if (b.live)
        for (int id = 0; id < 16; ++id)
            if (b.barriers[id].arrived) try_barrier(w, b, id, nullptr);
    try_cluster(w, u, cluster_of(f));
    try_grid(w, u);
    if (*reinterpret_cast<u32*>(f.bottom) != CANARY) {
        if (Finding* found = report(w, f, OUT_OF_BOUNDS, 0)) say(*found, "a thread's stack, %zu bytes, is too small for its local variables", w.launch->stack);
        die(w);
    }
}

static void enter() {
    Worker& w = *worker;
    w.launch->call(w.launch->values);
    Worker& after = *worker;
    Fiber& f = *after.current;
    mode_sync(after, f);
    leave(after, f);
    Warp& warp = *f.warp;
    void* unused;
    if (warp.ready) {
        Fiber* next = take(warp);
        after.current = next;
        simt_switch(&unused, next->sp);
    } else {
        simt_switch(&f.sp, after.main);
    }
    __builtin_trap();
}

static void deadlock(Worker& w, Unit& u) {
    struct Where { u64 pc; u32 count; State state; const Fiber* first; };
    std::vector<Where> places;
    for (const Fiber& f : u.fibers) {
        if (f.state == DONE) continue;
        auto at = std::find_if(places.begin(), places.end(), [&](const Where& p) { return p.pc == f.pc && p.state == f.state && p.first->block == f.block; });
        if (at == places.end()) places.push_back({f.pc, 1, f.state, &f});
        else ++at->count;
    }
    if (places.empty()) return;
    const Block* b = places[0].first->block;
    const Where* second = nullptr;
    for (const Where& p : places)
        if (&p != &places[0] && p.first->block == b) second = second ? second : &p;
    static const char* const names[] = {"run", "wait at a collective of the warp", "wait at a barrier of the block", "wait at a barrier of the cluster", "wait at a barrier of the grid", "", ""};
    const Where& p = places[0];
    if (Finding* found = report(w, *p.first, DEADLOCK, p.pc, second ? second->pc : 0)) {
        u32 gone = 0;
        for (const Warp& warp : b->warps) gone += static_cast<u32>(__builtin_popcount(warp.exited));
        if (second) {
            other_thread(w, *found, second->first->number);
            say(*found, "%u threads of the block %s here, %u %s elsewhere, %u have returned: none can go on", p.count, names[p.state], second->count, names[second->state], gone);
        } else {
            say(*found, "%u threads of the block %s here, %u have returned: none can go on", p.count, names[p.state], gone);
        }
        found->detail[0] = p.state, found->detail[1] = second ? second->state : 0;
    }
}

static void run_unit(Worker& w, Unit& u, u32 number) {
    Launch& l = *w.launch;
    const u32 threads = l.block.x * l.block.y * l.block.z, warps = (threads + 31) / 32;
    w.unit = &u;
    w.queue.clear();
    w.me = l.me0 + number;
    u.live = static_cast<u32>(u.blocks.size()) * threads;
    u.grid_arrived = 0;
    u.mbarriers.clear();
    u.releases.clear();
    std::fill(u.cluster_arrived.begin(), u.cluster_arrived.end(), 0);
    std::fill(u.cluster_phase.begin(), u.cluster_phase.end(), 0);
    std::fill(u.cluster_live.begin(), u.cluster_live.end(), u.cluster_blocks * threads);
    u.cluster_epoch = ++w.epoch << EPOCH_SHIFT;
    const dim3 clusters((l.grid.x + l.cluster.x - 1) / l.cluster.x, (l.grid.y + l.cluster.y - 1) / l.cluster.y, (l.grid.z + l.cluster.z - 1) / l.cluster.z);
    for (u32 i = 0; i < u.blocks.size(); ++i) {
        Block& b = u.blocks[i];
        const u32 cluster = l.cooperative ? i / u.cluster_blocks : number, in = i % u.cluster_blocks;
        b.unit = &u;
        b.rank = i;
        b.index.x = cluster % clusters.x * l.cluster.x + in % l.cluster.x;
        b.index.y = cluster / clusters.x % clusters.y * l.cluster.y + in / l.cluster.x % l.cluster.y;
        b.index.z = cluster / clusters.x / clusters.y * l.cluster.z + in / l.cluster.x / l.cluster.y;
        b.linear = (b.index.z * l.grid.y + b.index.y) * l.grid.x + b.index.x;
        b.live = b.threads = threads;
        b.epoch = b.start = u.cluster_epoch;
        b.shared = w.shared + i * SHARED_STRIDE;
        std::memset(b.barriers, 0, sizeof b.barriers);
        b.warps.resize(warps);
        for (u32 k = 0; k < warps; ++k) {
            Warp& warp = b.warps[k];
            const u32 lanes = std::min(32u, threads - 32 * k);
            warp.block = &b;
            warp.lanes = &u.fibers[i * threads + 32 * k];
            warp.index = k;
            warp.valid = warp.ready = lanes == 32 ? ~0u : (1u << lanes) - 1;
            warp.exited = 0;
            warp.rotate = static_cast<u32>(next_random(w) >> 20 & 31);
            warp.queued = true;
            warp.pending.clear();
            std::memset(warp.at, 0, sizeof warp.at);
            std::memset(warp.clocks, 0, sizeof warp.clocks);
            std::memset(warp.knows, 0, sizeof warp.knows);
            w.queue.push_back(&warp);
            for (u32 lane = 0; lane < lanes; ++lane) {
                const u32 t = 32 * k + lane;
                Fiber& f = warp.lanes[lane];
                f.block = &b, f.warp = &warp, f.lane = lane, f.number = i * threads + t;
                f.tid.x = t % l.block.x, f.tid.y = t / l.block.x % l.block.y, f.tid.z = t / l.block.x / l.block.y;
                f.state = READY;
                f.fenced = false;
                f.spins = f.cluster_phase = 0;
                warp.clocks[lane][lane] = 1;
                f.low = static_cast<u64>(f.number & 0x3fff) << THREAD_SHIFT | 1 << 1;
                f.pc = f.last = f.barriers = 0;
                f.suspect = nullptr;
                f.outside = 0;
                if (f.copies) f.copies->open.clear(), f.copies->groups.clear();
                f.bottom = w.stacks + f.number * l.stack;
                *reinterpret_cast<u32*>(f.bottom) = CANARY;
                f.sp = simt_begin(f.bottom + 64, f.bottom + l.stack, enter);
            }
        }
    }
    mode_unit(w, u, true);
    progress(w);
    while (!w.queue.empty() && !l.stop) {
#if SIMT_COUNT
        const size_t at = 0;
#else
        const size_t at = next_random(w) % w.queue.size();
#endif
        Warp& warp = *w.queue[at];
        w.queue.erase(w.queue.begin() + static_cast<long>(at));
        warp.queued = false;
        if (!warp.ready) continue;
        w.running = &warp;
        ++w.steps;
        Fiber* f = take(warp);
        w.current = f;
        simt_switch(&w.main, f->sp);
        w.running = nullptr;
        if (warp.ready) {
            warp.queued = true;
            w.queue.push_back(&warp);
        } else {
            mode_stall(w, warp);
            if (!warp.ready) answer_mask(warp);
            if (warp.ready && !warp.queued) {
                warp.queued = true;
                w.queue.push_back(&warp);
            }
        }
    }
    if (u.live && !l.stop) {
        deadlock(w, u);
        l.stop = 1;
    }
    w.current = nullptr;
    mode_unit(w, u, false);
}

static char* map_memory(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}

static void work(Launch& l, u32 index, u32 blocks) {
    Worker w;
    worker = &w;
    std::vector<char> signal_stack(64 << 10);
    stack_t own = {}, old = {};
    own.ss_sp = signal_stack.data(), own.ss_size = signal_stack.size();
    sigaltstack(&own, &old);
    w.launch = &l;
    w.random = (l.seed + 1) * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u + l.number * 0x94d049bb133111ebu;
    if (!w.random) w.random = 1;
    const u32 threads = l.block.x * l.block.y * l.block.z;
    w.shared_bytes = blocks * SHARED_STRIDE;
    w.stack_bytes = static_cast<size_t>(blocks) * threads * l.stack;
    w.shared = map_memory(w.shared_bytes);
    w.stacks = map_memory(w.stack_bytes);
    Unit u;
    u.blocks.resize(blocks);
    u.fibers.resize(static_cast<size_t>(blocks) * threads);
    for (Fiber& f : u.fibers) f.copies = nullptr;
    u.cluster_blocks = l.cluster.x * l.cluster.y * l.cluster.z;
    const u32 clusters = blocks / u.cluster_blocks;
    u.cluster_arrived.resize(clusters), u.cluster_phase.resize(clusters), u.cluster_live.resize(clusters);
    if (w.shared && w.stacks) {
        mode_worker(w, true);
        ++l.active;
        if (l.dynamic) mode_shared_range(w, 0, l.dynamic);
        for (;;) {
            const u32 i = l.next.fetch_add(1);
            if (i >= l.unit_count || l.stop) break;
            run_unit(w, u, l.units ? l.units[i] : i);
        }
        progress(w);
        --l.active;
        mode_worker(w, false);
    } else {
        l.stop = 2;
    }
    for (Fiber& f : u.fibers) delete f.copies;
    if (w.shared) munmap(w.shared, w.shared_bytes);
    if (w.stacks) munmap(w.stacks, w.stack_bytes);
    worker = nullptr;
    sigaltstack(&old, nullptr);
    std::lock_guard<std::mutex> lock(merge);
    all_findings.insert(all_findings.end(), w.findings.begin(), w.findings.end());
    total_fma += w.fma, total_flops += w.flops;
}
}  // namespace simt

using namespace simt;

// -- what Python calls (rooftop/lab/simt/native.py) -------------------------------------------------------------------------------------------

extern "C" {
#define SIMT_EXPORT __attribute__((visibility("default")))

/// Global memory of `bytes`; everything before is forgotten. Null: there is not so much address space.
SIMT_EXPORT void* simt_arena(size_t bytes);

struct SimtLaunch {
    u32 grid[3], block[3], cluster[3];
    u32 dynamic, cooperative, workers, unit_count, poison, stack;
    u64 seed;
    const u32* units;
};

/// 0: it ran to its end; 1: it was stopped by a fault; 2: no memory.
SIMT_EXPORT int simt_run(const Kernel* kernel, void** values, const SimtLaunch* given) {
    Launch l;
    l.grid = dim3(given->grid[0], given->grid[1], given->grid[2]);
    l.block = dim3(given->block[0], given->block[1], given->block[2]);
    l.cluster = dim3(given->cluster[0], given->cluster[1], given->cluster[2]);
    l.dynamic = given->dynamic;
    l.cooperative = given->cooperative;
    l.seed = given->seed;
    l.poison = given->poison;
    l.stack = (static_cast<size_t>(given->stack) + 4095) / 4096 * 4096 + STACK_ODD;
    l.call = kernel->call;
    l.values = values;
    l.units = given->units;
    l.number = ++launches;
    l.shared_at = l.dynamic ? l.dynamic + SHARED_GAP : 0;
    const u32 in_cluster = l.cluster.x * l.cluster.y * l.cluster.z;
    const u32 all = l.grid.x * l.grid.y * l.grid.z;
    l.unit_count = l.units ? given->unit_count : l.cooperative ? 1 : all / in_cluster;
    l.me0 = tags;
    tags += all / in_cluster + 4;
    mode_launch(l);
    const u32 workers = l.workers = std::max(1u, std::min(given->workers, l.unit_count));
    const u32 blocks = l.cooperative ? all : in_cluster;
    catch_crashes(true);
    std::vector<std::thread> others;
    for (u32 i = 1; i < workers; ++i) others.emplace_back([&l, i, blocks] { work(l, i, blocks); });
    work(l, 0, blocks);
    for (std::thread& t : others) t.join();
    catch_crashes(false);
    return static_cast<int>(l.stop.load());
}

SIMT_EXPORT u32 simt_findings(const Finding** at) {
    *at = all_findings.data();
    return static_cast<u32>(all_findings.size());
}
SIMT_EXPORT void simt_floats(u64* fma, u64* other) { *fma = total_fma, *other = total_flops; }
SIMT_EXPORT size_t simt_printed(const char** at) {
    *at = printed.data();
    return printed.size();
}
SIMT_EXPORT void simt_forget() {
    all_findings.clear();
    printed.clear();
    total_fma = total_flops = 0;
}
SIMT_EXPORT u32 simt_finding_bytes() { return sizeof(Finding); }
}
