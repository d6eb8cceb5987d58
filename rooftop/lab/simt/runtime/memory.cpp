// Where a thread is, and its memory: shared variables, addresses, atomics, asynchronous copies.
#include "scheduler.h"

#include <unistd.h>

namespace simt {

// -- where a thread is -----------------------------------------------------------------------------------------------------------------

uint3 thread_index() { return worker->current->tid; }
uint3 block_index() { return worker->current->block->index; }
dim3 block_extent() { return worker->launch->block; }
dim3 grid_extent() { return worker->launch->grid; }
dim3 cluster_extent() { return worker->launch->cluster; }
unsigned lane_index() { return worker->current->lane; }
unsigned warp_index() { return worker->current->warp->index; }
bool cooperative() { return worker->launch->cooperative; }
unsigned cluster_rank() {
    const Fiber& f = *worker->current;
    return f.block->rank % f.block->unit->cluster_blocks;
}

// -- memory -------------------------------------------------------------------------------------------------------------------------------

static u32 round_up(u32 v, u32 to) { return (v + to - 1) / to * to; }

__attribute__((noinline)) void* shared_variable(SharedSite& site, unsigned bytes, unsigned align) {
    Worker& w = *worker;
    Launch& launch = *w.launch;
    SharedPlan& l = w.plain ? launch.plain : launch;
    const u64 pc = SIMT_PC();
    if (__atomic_load_n(&site.launch, __ATOMIC_ACQUIRE) != launch.number || (!w.plain && w.shared_known != l.shared_ranges.size())) {
        std::lock_guard<std::mutex> lock(launch.mutex);
        if (site.launch != launch.number) {
            site.offset = round_up(l.shared_at, std::max(align, 128u));
            l.shared_at = site.offset + bytes + SHARED_GAP;
            l.shared_static = round_up(l.shared_static, align) + bytes;
            if (l.shared_static > STATIC_LIMIT || l.shared_static + launch.dynamic > SHARED_LIMIT) {
                if (Finding* found = report(w, *w.current, OUT_OF_BOUNDS, pc)) say(*found,
                    "the block's shared memory is %u bytes of variables and %u dynamic; a block can have %zu of variables, and %zu in all",
                    l.shared_static, launch.dynamic, STATIC_LIMIT, SHARED_LIMIT);
                die(w);
            }
            l.shared_ranges.push_back({site.offset, bytes});
            l.shared_sites.push_back(&site);
            __atomic_store_n(&site.launch, launch.number, __ATOMIC_RELEASE);
        }
        for (; !w.plain && w.shared_known < l.shared_ranges.size(); ++w.shared_known) mode_shared_range(w,
            l.shared_ranges[w.shared_known].first, l.shared_ranges[w.shared_known].second);
    }
    return w.current->block->shared + site.offset;
}

void* dynamic_shared() { return worker->current->block->shared; }
bool is_shared(const void* p) { return static_cast<size_t>(static_cast<const char*>(p) - worker->shared) < worker->shared_bytes; }
static size_t first_of_cluster(const Worker& w) {
    const Block& b = *w.current->block;
    return b.rank / b.unit->cluster_blocks * b.unit->cluster_blocks;
}
unsigned shared_address(const void* p) {   // the block's rank in its cluster above, as in the shared::cluster window
    Worker& w = *worker;
    const size_t at = static_cast<size_t>(static_cast<const char*>(p) - w.shared);
    if (at >= w.shared_bytes) stop_at(SIMT_PC(), "an address that is not in shared memory is used as one");
    return static_cast<unsigned>(at % SHARED_STRIDE) | static_cast<unsigned>(at / SHARED_STRIDE - first_of_cluster(w)) << 24;
}
void* shared_pointer(unsigned a) {
    Worker& w = *worker;
    return w.shared + (first_of_cluster(w) + (a >> 24)) * SHARED_STRIDE + (a & 0xffffff);
}
void* cluster_map(const void* p, unsigned rank) {
    Worker& w = *worker;
    const Fiber& f = *w.current;
    const u32 n = f.block->unit->cluster_blocks;
    if (rank >= n) stop_at(SIMT_PC(), "a block rank outside the cluster");
    const size_t at = static_cast<size_t>(static_cast<const char*>(p) - f.block->shared);
    if (at >= SHARED_STRIDE) stop_at(SIMT_PC(), "map_shared_rank of an address that is not in this block's shared memory");
    return w.shared + (f.block->rank / n * n + rank) * SHARED_STRIDE + at;
}
Memory memory_of(const void* p) {
    Worker& w = *worker;
    const char* at = static_cast<const char*>(p);
    if (static_cast<size_t>(at - w.shared) < w.shared_bytes) return SHARED;
    if (global_place(at) != ~u64(0)) return GLOBAL;
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

static bool swapped(void* p, void* expected, const void* desired, unsigned bytes) {
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
bool compare_and_swap(void* p, void* expected, const void* desired, unsigned bytes) {
    const bool changes = std::memcmp(expected, desired, bytes) != 0, done = swapped(p, expected, desired, bytes);
    if (done && changes) came_on(*worker);   // not one that only looks, or takes a lock that is taken
    return done;
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
        if ((w.idle && w.launch->idle == w.launch->active && waited > std::chrono::milliseconds(300))
            || waited > std::chrono::seconds(20)) {
            f.pc = pc;
            if (Finding* found = report(w, f, DEADLOCK, f.pc)) say(*found,
                "this thread waits for something that does not come: nobody in its block can change it");
            die(w);
        }
    }
    yield(w, f);
}

// turns of the scheduler stand for cycles: it grows, says nothing about time, and begins elsewhere in each process
long long clock_now() {
    static const u64 first = [] {
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return static_cast<u64>(now.tv_sec) * 1000000000u + static_cast<u64>(now.tv_nsec);
    }();
    Worker& w = *worker;
    return static_cast<long long>(first + ++w.steps);
}

// -- variables of the source
// ----------------------------------------------------------------------------------------------------------------

extern "C" {
__attribute__((visibility("default"))) char* simt_variables_at() { return simt_variables; }
/// Puts the source's variables back to what they are initialised to, as the first run found them.
__attribute__((visibility("default"))) void simt_restore() {
    static const std::vector<char> first(simt_variables, simt_zeroed);
    std::memcpy(simt_variables, first.data(), first.size());
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), bytes = static_cast<size_t>(simt_variables_end - simt_zeroed),
        whole = bytes / page * page;
    // such pages are zero when they are next touched
    const bool given_back = page <= 4096 && whole && !madvise(simt_zeroed, whole, MADV_DONTNEED);
    if (const size_t done = given_back ? whole : 0; done < bytes) std::memset(simt_zeroed + done, 0, bytes - done);
}
}

// -- asynchronous copies -----------------------------------------------------------------------------------------------------------------

__attribute__((noinline)) void copy_async(void* to, const void* from, unsigned bytes, unsigned filled) {
    Worker& w = *worker;
    Fiber& f = *w.current;
    if (!f.copies) f.copies = new Copies;
    Copy c = {static_cast<char*>(to), static_cast<const char*>(from), bytes, filled, SIMT_PC(), static_cast<u8>(next_random(w) >> 40 & 1),
        {}};
    if (bytes != 4 && bytes != 8 && bytes != 16) stop_at(SIMT_PC(), "an asynchronous copy of a size other than 4, 8 or 16 bytes");
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
}  // namespace simt
