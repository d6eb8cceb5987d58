// What the parts of the engine ask of each other: whose turn it is, who waits for whom, how a launch ends.
#pragma once
#include "engine.h"

#include <condition_variable>
#include <pthread.h>

namespace simt {

extern std::vector<char> printed;
void say(Finding& found, const char* format, ...);
void catch_crashes(bool begins);

void end_overdue_at(Worker& w, const Fiber& f);

constexpr u32 OVER = 5;               // and where a program's time was over
constexpr u32 ENDLESS = 4;            // what simt_run gives where a loop was taken to be endless

/// Looks after the workers of a launch while it lives: one whose threads get nowhere is ended, with a finding where it is.
struct Watch {
    struct Watched {
        Worker* worker;
        pthread_t thread;
        clockid_t clock;
        u64 advanced, returned;
        double advanced_at, returned_at;   // seconds of CPU time
    };
    Launch& launch;
    std::mutex mutex;
    std::condition_variable ends;
    std::vector<Watched> watched;
    bool over = false;
    std::thread thread;
    explicit Watch(Launch& l);
    ~Watch();
    void add(Worker& w);
    void remove(const Worker& w);
    void look();
};

inline Fiber* take(Warp& warp) {
    const u32 turned = warp.ready >> warp.rotate | warp.ready << ((32 - warp.rotate) & 31);
    const u32 lane = (static_cast<u32>(__builtin_ctz(turned)) + warp.rotate) & 31;
    warp.ready &= ~(1u << lane);
    return &warp.lanes[lane];
}

inline void make_ready(Worker& w, Warp& warp, u32 lanes) {
    warp.ready |= lanes;
    if (lanes && !warp.queued && &warp != w.running) {
        warp.queued = true;
        w.queue.push_back(&warp);
    }
}

/// The lane's own clock: what it does from here on is later than what others know of it.
inline void set_clock(Warp& warp, u32 lane, u32 clock) {
    Fiber& f = warp.lanes[lane];
    warp.clocks[lane][lane] = static_cast<u16>(std::min(clock, CLOCK_LIMIT));
    f.low = (f.low & ~u64(0xffff)) | static_cast<u64>(warp.clocks[lane][lane]) << 1;
}

inline void progress(Worker& w) {
    __atomic_store_n(&w.advanced, w.advanced + 1, __ATOMIC_RELAXED);
    came_on(w);
}

void park(Worker& w, Fiber& f);                               // the next of its warp runs, till this one is ready again

// Whether all have come that a meeting waits for; then it is over.
bool try_collective(Worker& w, Warp& warp, size_t at);
bool try_barrier(Worker& w, Block& b, int id, const Fiber* last);
void try_cluster(Worker& w, Unit& u, u32 cluster);
void try_grid(Worker& w, Unit& u);
void answer_mask(Warp& warp);

inline u32 cluster_of(const Fiber& f) { return f.block->rank / f.block->unit->cluster_blocks; }
}  // namespace simt
