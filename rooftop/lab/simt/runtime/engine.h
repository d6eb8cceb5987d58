// The engine's own structures: who runs where, what waits for what. Built once, whether it then checks or counts.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <deque>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <unordered_map>
#include <vector>

#define SIMT_ENGINE 1
#include "simt.h"
#undef printf
#undef assert
#include "fiber.h"

namespace simt {

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;
typedef int64_t i64;

enum Kind : u32 {   // in the order of rooftop/lab/simt/report.py's KINDS
    OUT_OF_BOUNDS, MISALIGNED, UNINITIALISED, SHARED_RACE, WARP_RACE, GLOBAL_RACE, BARRIER_DIVERGENCE, DEADLOCK, ABSENT_LANE, CONST_WRITE,
    MISSING_WAIT, NOT_SIMULATED, ASSERT, LAUNCH, HOST, LEAK,
};

struct Finding {    // as rooftop/lab/simt/native.py reads it
    u32 kind, bytes, write, space;             // space: Memory
    u64 pc, other_pc, address, count;          // address: global: from the arena's first byte; shared: from the block's
    u32 block[3], thread[3], other_block[3], other_thread[3];
    u32 detail[4];
    u32 has_other, unused;
    char place[112];                           // in shared memory: the variable
    char text[192];
};

constexpr size_t STACK_ODD = 320;               // beside whole pages: the tops of a warp's stacks lie in different sets of the cache
constexpr size_t SHARED_LIMIT = 227 << 10;     // bytes a block may have on sm_90
constexpr size_t STATIC_LIMIT = 48 << 10;      // of these in variables: more is dynamic
constexpr size_t SHARED_STRIDE = 512 << 10;    // from one block's shared memory to the next of its cluster
constexpr size_t SHARED_WORDS = SHARED_STRIDE / 4;
constexpr u32 SHARED_GAP = 64;                 // bytes left free after each shared variable
constexpr int EPOCH_SHIFT = 30, THREAD_SHIFT = 16;
constexpr u64 LOW_MASK = (u64(1) << EPOCH_SHIFT) - 1;
constexpr u32 CLOCK_LIMIT = 0x7fff;            // bit 0 of a stamp's low 16 says that the access was atomic, the rest is the lane's clock
// what a check fills memory with that nobody has written; with others it is run again (run.py)
constexpr u32 FIRST_POISON = 0xff;
constexpr u32 CANARY = 0x51a7c0deu;

struct Block;
struct Warp;
struct Unit;

struct Copy {       // cp.async
    char* to;
    const char* from;
    u32 bytes, filled;
    u64 pc;
    u8 early, data[16];
};
struct Copies {
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> groups;
};

enum State : u8 { READY, AT_COLLECTIVE, AT_BARRIER, AT_CLUSTER, AT_GRID, AT_MASK, DONE };

struct Event {      // counting: one access (or place in the code) of one lane
    u64 address;
    u32 site;       // return address, from the library's first byte
    u8 bytes, kind; // kind: of compiled.h's EventKind
    u8 space, parts; // parts: accesses of the source that it is made of
};

struct Fiber {
    void* sp;
    Block* block;
    Warp* warp;
    char* bottom;
    uint3 tid;
    u32 lane, number;              // number: in the unit
    State state;
    u8 barrier;
    bool fenced, ordered;
    u32 spins, mask, cluster_phase;
    u64 low;                       // thread << 16 | clock << 1
    Combine combine;
    void* record;
    u64 pc, last;                  // where it waits or waited; its last access
    bool overran;                  // checking: an array of its own, which is told: what it crashes of then is not
    u64 outside;                   // where an index left its array's type,
    i64 index;                     // and its value
    const char* array;
    struct Suspect* suspect;       // checking: a write that is a race if it changes what is there
    u64 barriers;                  // a few bits of each barrier it has come to
    int result;                    // of the barrier it came from,
    u32 met;                       // and how many met there
    Copies* copies;
    std::vector<Event> trace;
};

struct Meeting {    // counting: the lanes of a warp that came to a collective or barrier, and whether they went on from it
    u32 lanes;
    bool over;
};

struct Pending {
    u32 mask, arrived;
    Combine combine;
    bool ordered;
    u64 pc;                        // of the first to come
    u32 meeting;
};

struct Warp {
    Block* block;
    Fiber* lanes;
    u32 index, valid, ready, exited, rotate;
    bool queued;
    u32 at[16];                    // lanes that wait at each of the block's barriers
    u32 coming[16], meeting[16];   // those that wait or are about to, and the number of their meeting
    u32 meetings;                  // of its lanes, so far
    std::vector<Meeting> met;      // counting: those, from 1
    std::vector<Pending> pending;
    u16 clocks[32][32];            // what a lane knows of another: accesses up to this clock came before
    u16 knows[32];                 // and a warp of another warp
    std::vector<u16> far;          // checking a cluster: and a warp of each warp of the cluster's blocks, since its last barrier
    bool all_began;                // checking a cluster: it knows that all its blocks have begun
};

struct Barrier {
    u32 arrived, expected, yes;
    bool reduces;
    u64 pc;
};

struct Block {
    Unit* unit;
    uint3 index;
    u32 linear, rank, live, threads;
    std::vector<Warp> warps;
    Barrier barriers[16];
    u64 epoch, start, cluster_epoch;   // shifted by EPOCH_SHIFT
    char* shared;
    u32 me;                        // tag of its cluster in the shadow of global memory
    struct Order* order;           // checking: what its cluster has released and acquired
};

struct Store {      // of st.async, on its way to the shared memory of a block of the cluster
    char* to;
    u32 bytes;
    char data[16];
    u64 record, pc;                // checking: who sent it, and where, as the shadow of shared memory keeps it
};

struct MBarrier {   // its words lie in shared memory; what they mean is kept here
    u32 count, pending;
    long long awaited;             // bytes of the open phase that are announced and have not been sent
    u64 phase;
    u16 now[32], past[32];         // what its arrivals release, by warp: of the phase that is open, and of those that are over
    std::vector<u16> far_now, far_past;   // the same of all warps of the cluster, its arrivals' and its stores'
    std::vector<Store> stores;     // of the open phase: they land as late as they may, when it is over
};

struct Unit {       // the blocks that run together: a cluster, or the whole grid of a cooperative launch
    std::vector<Block> blocks;
    std::vector<Fiber> fibers;
    u32 live;
    u32 cluster_blocks;            // blocks of one cluster
    std::vector<u32> cluster_arrived, cluster_phase, cluster_live;   // of each cluster
    u32 grid_arrived;
    std::unordered_map<const void*, MBarrier> mbarriers;
    std::unordered_map<u64, MBarrier> releases;
};

/// The thread that left `record`, in the cluster of `f`: records number threads by cluster.
inline Fiber& thread_of(const Fiber& f, u64 record) {
    Unit& u = *f.block->unit;
    return u.fibers[f.block->rank / u.cluster_blocks * u.cluster_blocks * f.block->threads + (record >> THREAD_SHIFT & 0x3fff)];
}

// Of the warps of a cluster: how many, where that is looked at, and which this one is.
extern const bool checking;      // which of check.cpp and count.cpp this is linked with
inline u32 far_warps(const Unit& u) { return !checking || u.cluster_blocks == 1 ? 0
    : u.cluster_blocks * static_cast<u32>(u.blocks[0].warps.size()); }
inline u32 far_index(const Warp& warp) {
    const Block& b = *warp.block;
    return b.rank % b.unit->cluster_blocks * static_cast<u32>(b.warps.size()) + warp.index;
}

inline void learn(std::vector<u16>& to, const std::vector<u16>& from) {
    if (to.size() < from.size()) to.resize(from.size(), 0);
    for (size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}
/// To what a meeting hands on, what the warp knows, and that it has come to `clock` itself.
inline void release_far(std::vector<u16>& to, const Warp& warp, u16 clock) {
    if (warp.far.empty()) return;
    learn(to, warp.far);
    u16& known = to[far_index(warp)];
    known = std::max(known, clock);
}

struct SharedPlan {  // where the variables of a build of the kernel lie
    u32 shared_at = 0;             // where the next static variable goes
    u32 shared_static = 0;         // bytes of those so far
    std::vector<std::pair<u32, u32>> shared_ranges;            // first byte and bytes,
    std::vector<SharedSite*> shared_sites;                     // and what lies there
};

struct Launch : SharedPlan {
    SharedPlan plain;              // of the build that is not watched
    dim3 grid, block, cluster;
    u32 dynamic = 0;               // bytes of dynamic shared memory
    size_t stack;                  // bytes of a thread's stack
    u32 cooperative, workers, poison;
    u64 seed;
    void (*call)(void**);
    void** values;
    const u32* units = nullptr;    // which to run, or null: all
    u32 unit_count = 0;
    u32 number;                    // of the launch, from 1
    u32 me0;                       // the first of the tags of its clusters
    u32 patience;                  // seconds: see watch
    struct Watch* watch;
    std::atomic<u32> next{0}, stop{0}, idle{0}, active{0};   // idle: workers whose threads all wait, of those that are active
    std::mutex mutex;              // of the plans
    void (*plain_call)(void**) = nullptr;                      // a program's: what runs blocks that are not watched; `call` may be null
    double budget = 0;             // seconds: of the blocks that are watched; 0: all are
    double deadline = 0;           // seconds of the process's CPU time at which a program's launch ends; 0: none
    u32 sample = 0;                // how many blocks are watched, spread over the grid; 0: all
    std::atomic<u64> spent{0};     // nanoseconds, on watched blocks
    std::atomic<u32> watched{0};   // blocks that were
};

struct Worker {
    void* main = nullptr;
    Fiber* current = nullptr;
    Warp* running = nullptr;
    Unit* unit = nullptr;
    bool plain = false;            // the unit is not watched
    Launch* launch = nullptr;
    char *shared = nullptr, *stacks = nullptr;
    size_t shared_bytes = 0, stack_bytes = 0;
    std::vector<Warp*> queue;
    u64 random = 0, epoch = 1, pauses = 0, steps = 0;
    bool idle = false;
    bool combining = false;        // the results of a collective are made, for all its lanes by one: what that passes is no lane's path
    std::chrono::steady_clock::time_point idle_since;
    u64 advanced = 0, returned = 0;                 // how often threads met or returned; how many returned
    u32 overdue = 0;                                // the watch wants it to end: seconds without that << 1, 1 added for the former
    void (*end_overdue)(Worker&, u64 pc) = nullptr;
    std::unordered_map<u64, u32> known;
    std::vector<Finding> findings;
    u32 shared_known = 0;          // how many of the launch's ranges are marked in the shadow
    u64 fma = 0, flops = 0;
    struct Mode* mode = nullptr;
};

extern __thread Worker* worker __attribute__((tls_model("initial-exec"), visibility("default")));   // worker.cpp
extern bool unwatched;             // blocks have run that were not watched: what they wrote is not known
extern char *arena, *arena_end;
#define SIMT_MARK(name) extern "C" char name[] __attribute__((visibility("hidden")))
SIMT_MARK(__ehdr_start);
SIMT_MARK(_end);
SIMT_MARK(simt_code);                   // of the linker's script (link.py): the kernels' code,
SIMT_MARK(simt_code_end);
SIMT_MARK(simt_variables);              // the source's variables: __constant__ ones,
SIMT_MARK(simt_device);                 // then __device__ ones
SIMT_MARK(simt_zeroed);                 // of these, ones without an initialiser
SIMT_MARK(simt_variables_end);

inline bool in_library(const char* p) { return p >= __ehdr_start && p < _end; }
/// Where an address of global memory lies, from the arena's first byte: the source's variables come behind the arena. ~0: it is none.
inline u64 global_place(const char* p) {
    if (static_cast<size_t>(p - arena) < static_cast<size_t>(arena_end - arena)) return static_cast<u64>(p - arena);
    if (p >= simt_variables && p < simt_variables_end) return static_cast<u64>(arena_end - arena) + static_cast<u64>(p - simt_variables);
    return ~u64(0);
}
inline char* global_pointer(u64 place) {
    const u64 bytes = static_cast<u64>(arena_end - arena);
    return place < bytes ? arena + place : simt_variables + (place - bytes);
}

inline u64 here(void* return_address) { return reinterpret_cast<u64>(return_address) - reinterpret_cast<u64>(__ehdr_start); }
#define SIMT_PC() simt::here(__builtin_return_address(0))

Finding* report(Worker& w, const Fiber& f, Kind kind, u64 pc, u64 other_pc = 0);   // null: already known
void other_thread(Finding& found, const Fiber& other);
[[noreturn]] void die(Worker& w);
[[noreturn]] void stop_at(u64 pc, const char* text);      // a fault of kind ASSERT there
void yield(Worker& w, Fiber& f);
// Somebody may have what it waits for.
inline void came_on(Worker& w) {
    w.pauses = 0;
    if (w.idle) w.idle = false, --w.launch->idle;
}
void pause_at(u64 pc);

inline u64 next_random(Worker& w) {
    w.random ^= w.random << 13, w.random ^= w.random >> 7, w.random ^= w.random << 17;
    return w.random;
}

// -- what checking and counting each do in their own way --------------------------------------------------------------------
void mode_launch(Launch& l);
void mode_worker(Worker& w, bool begins);
void mode_unit(Worker& w, Unit& u, bool begins);
void mode_stall(Worker& w, Warp& warp);                        // no lane of the warp can run
// the fiber reaches a point that others wait at: lanes of a warp, at the meeting of this number
void mode_sync(Worker& w, Fiber& f, u32 meeting = 0);
void mode_met(Warp& warp, u32 meeting);       // they have met
void mode_shared_range(Worker& w, u32 from, u32 bytes);
void mode_access(Worker& w, const void* p, u32 bytes, bool write, u64 pc);
void mode_atomic(Worker& w, void* p, u32 bytes, int kind, u64 pc);
void mode_copy_begin(Worker& w, Copy& c);
void mode_copy_end(Worker& w, Copy& c);
void mode_store_begin(Worker& w, Store& store);
void mode_store_landed(Worker& w, const Store& store);
void mode_new_grid_phase(Launch& l);
void mode_misaligned(Worker& w, const void* p, u32 bytes, u64 pc);
}  // namespace simt
