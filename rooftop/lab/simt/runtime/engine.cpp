// The scheduler: whose turn it is, running the blocks of a launch; and what Python calls.
#define SIMT_SWITCH 1  // the switch itself is assembled into this file
#include "scheduler.h"

#include <csignal>
#include <ucontext.h>

namespace simt {

char *arena = nullptr, *arena_end = nullptr;
bool unwatched = false;
std::vector<Finding> all_findings;
static u64 total_fma, total_flops;
static u32 launches, tags = 1;
static std::mutex merge;

// -- whose turn it is ----------------------------------------------------------------------------------------------------------

void park(Worker& w, Fiber& f) {
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

// -- running one unit
// -------------------------------------------------------------------------------------------------------------------------

static void leave(Worker& w, Fiber& f) {
    f.state = DONE;
    Warp& warp = *f.warp;
    Block& b = *f.block;
    Unit& u = *b.unit;
    warp.exited |= 1u << f.lane;
    --b.live, --u.live, --u.cluster_live[cluster_of(f)];
    __atomic_store_n(&w.returned, w.returned + 1, __ATOMIC_RELAXED);
    // it had arrived and has gone: it counts once
    if (f.cluster_phase > u.cluster_phase[cluster_of(f)]) --u.cluster_arrived[cluster_of(f)];
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
        if (Finding* found = report(w, f, OUT_OF_BOUNDS, 0)) say(*found,
            "a thread's stack, %zu bytes, is too small for its local variables", w.launch->stack);
        die(w);
    }
}

static void enter() {
    Worker& w = *worker;
    (w.plain ? w.launch->plain_call : w.launch->call)(w.launch->values);
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
        auto at = std::find_if(places.begin(), places.end(),
            [&](const Where& p) { return p.pc == f.pc && p.state == f.state && p.first->block == f.block; });
        if (at == places.end()) places.push_back({f.pc, 1, f.state, &f});
        else ++at->count;
    }
    if (places.empty()) return;
    const Block* b = places[0].first->block;
    const Where* second = nullptr;
    for (const Where& p : places)
        if (&p != &places[0] && p.first->block == b) second = second ? second : &p;
    static const char* const names[] = {"run", "wait at a collective of the warp", "wait at a barrier of the block",
        "wait at a barrier of the cluster", "wait at a barrier of the grid", "", ""};
    const Where& p = places[0];
    if (Finding* found = report(w, *p.first, DEADLOCK, p.pc, second ? second->pc : 0)) {
        u32 gone = 0;
        for (const Warp& warp : b->warps) gone += static_cast<u32>(__builtin_popcount(warp.exited));
        if (second) {
            other_thread(*found, *second->first);
            say(*found, "%u threads of the block %s here, %u %s elsewhere, %u have returned: none can go on", p.count, names[p.state],
                second->count, names[second->state], gone);
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
    u.live = static_cast<u32>(u.blocks.size()) * threads;
    u.grid_arrived = 0;
    u.mbarriers.clear();
    u.releases.clear();
    std::fill(u.cluster_arrived.begin(), u.cluster_arrived.end(), 0);
    std::fill(u.cluster_phase.begin(), u.cluster_phase.end(), 0);
    std::fill(u.cluster_live.begin(), u.cluster_live.end(), u.cluster_blocks * threads);
    ++w.epoch;
    const dim3 clusters((l.grid.x + l.cluster.x - 1) / l.cluster.x, (l.grid.y + l.cluster.y - 1) / l.cluster.y,
        (l.grid.z + l.cluster.z - 1) / l.cluster.z);
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
        b.epoch = b.start = b.cluster_epoch = w.epoch << EPOCH_SHIFT;
        b.me = l.me0 + cluster;
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
            std::memset(warp.coming, 0, sizeof warp.coming);
            warp.meetings = 0;
            warp.met.assign(1, {});
            std::memset(warp.clocks, 0, sizeof warp.clocks);
            std::memset(warp.knows, 0, sizeof warp.knows);
            warp.far.assign(far_warps(u), 0);
            warp.all_began = false;
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
                f.low = static_cast<u64>((in * threads + t) & 0x3fff) << THREAD_SHIFT | 1 << 1;
                f.pc = f.last = f.barriers = 0;
                f.suspect = nullptr;
                f.outside = 0, f.overran = false;
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
        const size_t at = checking ? next_random(w) % w.queue.size() : 0;
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
        if (__builtin_expect(w.overdue != 0, 0) && w.current->state != DONE) {
            end_overdue_at(w, *w.current);
            break;
        }
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

// Whether unit `i` of a program's launch is watched: all are, as long as there is time; else some all over the grid, the first and the last
// among them.
static bool watches(const Launch& l, u32 i) {
    if (!l.call) return false;
    const u64 n = l.unit_count;
    if (l.sample && l.sample < n) return (i + u64(1)) * l.sample / n != u64(i) * l.sample / n;
    return l.budget == 0 || i == 0 || i + 1 == n || 1e-9 * static_cast<double>(l.spent.load()) <= l.budget * (static_cast<double>(i) + 1) / static_cast<double>(n) + 0.1 * l.budget;
}

static double cpu_seconds() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
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
        l.watch->add(w);
        ++l.active;
        if (l.dynamic) mode_shared_range(w, 0, l.dynamic);
        for (;;) {
            const u32 i = l.next.fetch_add(1);
            if (i >= l.unit_count || l.stop) break;
            if (l.deadline > 0 && cpu_seconds() > l.deadline) {
                l.stop = OVER;
                break;
            }
            w.plain = l.plain_call && !watches(l, i);
            if (w.plain) unwatched = true;
            const auto began = std::chrono::steady_clock::now();
            run_unit(w, u, l.units ? l.units[i] : i);
            if (!w.plain) {
                l.spent += static_cast<u64>((std::chrono::steady_clock::now() - began).count());
                l.watched += blocks;
            }
        }
        progress(w);
        --l.active;
        l.watch->remove(w);
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

/// Runs a launch of which all but its extents is set. 0: it ran to its end; 1: it was stopped by a fault; 2: no memory; 4: a loop of it
/// does not end.
int run_launch(Launch& l, const u32 (&grid)[3], const u32 (&block)[3], const u32 (&cluster)[3], u32 given_workers) {
    l.grid = dim3(grid[0], grid[1], grid[2]), l.block = dim3(block[0], block[1], block[2]),
        l.cluster = dim3(cluster[0], cluster[1], cluster[2]);
    l.number = ++launches;
    l.shared_at = l.plain.shared_at = l.dynamic ? l.dynamic + SHARED_GAP : 0;
    const u32 in_cluster = l.cluster.x * l.cluster.y * l.cluster.z;
    const u32 all = l.grid.x * l.grid.y * l.grid.z;
    l.unit_count = l.units ? l.unit_count : l.cooperative ? 1 : all / in_cluster;
    l.me0 = tags;
    tags += all / in_cluster + 4;
    mode_launch(l);
    const u32 workers = l.workers = std::max(1u, std::min(given_workers, l.unit_count));
    const u32 blocks = l.cooperative ? all : in_cluster;
    catch_crashes(true);
    Watch watch(l);
    l.watch = &watch;
    std::vector<std::thread> others;
    for (u32 i = 1; i < workers; ++i) others.emplace_back([&l, i, blocks] { work(l, i, blocks); });
    work(l, 0, blocks);
    for (std::thread& t : others) t.join();
    catch_crashes(false);
    tags = std::max(tags, l.me0 + all / in_cluster + 4);      // barriers of the grid have taken more
    return static_cast<int>(l.stop.load());
}
}  // namespace simt

using namespace simt;

// -- what Python calls (rooftop/lab/simt/native.py)
// -------------------------------------------------------------------------------------------

extern "C" {
#define SIMT_EXPORT __attribute__((visibility("default")))

/// Global memory of `bytes`; everything before is forgotten. Null: there is not so much address space.
SIMT_EXPORT void* simt_arena(size_t bytes);

struct SimtLaunch {
    u32 grid[3], block[3], cluster[3];
    u32 dynamic, cooperative, workers, unit_count, poison, stack, patience;
    u64 seed;
    const u32* units;
};

/// 0: it ran to its end; 1: it was stopped by a fault; 2: no memory; 4: a loop of it does not end.
SIMT_EXPORT int simt_run(const Kernel* kernel, void** values, const SimtLaunch* given) {
    Launch l;
    l.dynamic = given->dynamic;
    l.cooperative = given->cooperative;
    l.seed = given->seed;
    l.poison = given->poison;
    l.patience = given->patience;
    l.stack = (static_cast<size_t>(given->stack) + 4095) / 4096 * 4096 + STACK_ODD;
    l.call = kernel->call;
    alignas(128) static char held[1 << 16];        // of arguments: what lies in the library itself is not watched
    std::vector<void*> arguments;
    for (size_t i = 0, at = 0; i < kernel->count; at = (at + kernel->parameters[i++].bytes + 127) / 128 * 128) {
        if (at + kernel->parameters[i].bytes > sizeof held) return 2;
        arguments.push_back(std::memcpy(held + at, values[i], kernel->parameters[i].bytes));
    }
    l.values = arguments.data();
    l.units = given->units;
    l.unit_count = given->unit_count;
    return run_launch(l, given->grid, given->block, given->cluster, given->workers);
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
