// mbarriers: phases, what they release, and the stores that they count (st.async).
#include "scheduler.h"

namespace simt {

void check_aligned(const void* p, unsigned bytes) {
    if (reinterpret_cast<u64>(p) & (bytes - 1)) mode_misaligned(*worker, p, bytes, SIMT_PC());
}

__attribute__((noinline)) void mbarrier_init(void* shared, unsigned count) {
    Worker& w = *worker;
    mode_access(w, shared, 8, true, SIMT_PC());
    MBarrier& bar = w.unit->mbarriers[shared];
    bar = {};
    bar.count = bar.pending = count;
}

static MBarrier& mbarrier_at(Worker& w, const void* shared) {
    const auto at = w.unit->mbarriers.find(shared);
    if (at == w.unit->mbarriers.end()) stop_at(w.current->pc, "an mbarrier that has not been initialised");
    return at->second;
}

static void end_phase(Worker& w, MBarrier& bar) {   // where nothing more is waited for
    if (bar.pending || bar.awaited) return;
    ++bar.phase;
    bar.pending = bar.count;
    for (int i = 0; i < 32; ++i) bar.past[i] = std::max(bar.past[i], bar.now[i]);
    learn(bar.far_past, bar.far_now);
    for (const Store& store : bar.stores) {
        std::memcpy(store.to, store.data, store.bytes);
        mode_store_landed(w, store);
    }
    bar.stores.clear();
}

// What the thread has done so far comes before the end of the open phase. `near`: of a barrier in its own block.
static void release_at(Fiber& f, MBarrier& bar, bool near) {
    Warp& warp = *f.warp;
    const u16 clock = warp.clocks[f.lane][f.lane];
    if (near) {
        for (int i = 0; i < 32; ++i) bar.now[i] = std::max(bar.now[i], warp.knows[i]);
        bar.now[warp.index] = std::max(bar.now[warp.index], clock);
    }
    release_far(bar.far_now, warp, clock);
    set_clock(warp, f.lane, clock + 1u);
}

static u64 arrive_at(Fiber& f, MBarrier& bar, u32 count) {
    release_at(f, bar, true);
    const u64 phase = bar.phase;
    bar.pending -= std::min(count, bar.pending);
    end_phase(*worker, bar);
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
    learn(warp.far, bar.far_past);
    for (u32 todo = warp.valid & ~(1u << f.lane); todo; todo &= todo - 1) {
        u16& known = warp.clocks[f.lane][__builtin_ctz(todo)];
        known = std::max(known, bar.past[warp.index]);
    }
    return true;
}

void mbarrier_expect(void* shared, unsigned bytes) {
    worker->current->pc = SIMT_PC();
    mbarrier_at(*worker, shared).awaited += bytes;
}

__attribute__((noinline)) void store_async(void* to, const void* data, unsigned bytes, void* shared) {
    Worker& w = *worker;
    Fiber& f = *w.current;
    f.pc = SIMT_PC();
    if (reinterpret_cast<u64>(to) & (bytes - 1)) mode_misaligned(w, to, bytes, SIMT_PC());
    if (memory_of(to) != SHARED) stop_at(SIMT_PC(), "st.async to an address that is not in shared memory");
    MBarrier& bar = mbarrier_at(w, shared);
    const u64 before = bar.phase;
    Store store = {static_cast<char*>(to), bytes, {}, 0, f.pc};
    std::memcpy(store.data, data, bytes);
    mode_store_begin(w, store);
    release_at(f, bar, static_cast<size_t>(static_cast<char*>(shared) - f.block->shared) < SHARED_STRIDE);
    bar.stores.push_back(store);
    bar.awaited -= bytes;
    end_phase(w, bar);
    if (bar.phase != before) progress(w);
}

void copy_arrive(void* shared, int noinc) {
    Worker& w = *worker;
    Fiber& f = *w.current;
    f.pc = SIMT_PC();
    MBarrier& bar = mbarrier_at(w, shared);
    copy_wait_all();                                // they may land at any time from here on: now is one
    if (!noinc) ++bar.pending;
    arrive_at(f, bar, 1);
}
}  // namespace simt
