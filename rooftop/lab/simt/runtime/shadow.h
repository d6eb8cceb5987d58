// Checking: what is known of each word of memory, and how a fault in it is told.
#pragma once
#include "engine.h"

namespace simt {

// -- global memory: one cell for each 4 bytes --------------------------------------------------------------------------------------
// Tags of `writer` and `reader`: 0 nobody in this launch, else a cluster's (blocks of a cluster count as one: their barriers order them).
struct GlobalCell {
    u32 writer, reader, pc, bits;   // pc: of the write. bits: 4 initialised, 4 readable, 4 writable, 4 written by `writer`, 1 by atomics
};
constexpr u32 INIT = 0, VALID = 4, WRITABLE = 8, MINE = 12, ATOMIC = 1 << 16;
static GlobalCell* cells;
static u32* reader_pcs;
static u64* stamps;                 // of the last write, as in shared memory: for races inside a cluster
static size_t cell_count;
static u32 many, mixed;             // tags of this launch: several readers; several writers, each of its own bytes
static std::vector<std::atomic<u32>>* released;   // by cluster: when it last released what it had done
static std::atomic<u32> release_time;
struct Acquired { u32 first, time; };

struct Place {                      // an address that atomics meet at
    std::atomic<u64> address;
    std::atomic<u32> time;
};
static std::vector<Place>* places;

// -- shared memory: one cell for each 4 bytes of each block of the unit --------------------------------------------------------------
// A record: epoch << 30 | thread << 16 | the lane's clock << 1 | atomic.
struct SharedCell {
    u64 write, read, other;         // the last write; a read since; one by another thread
    u32 write_pc, read_pc;
};
enum Flag : u8 { INVALID = 0, USED = 1, SPLIT = 2, UNDER_WAY = 4 };

// Two writes of one value do no harm whichever comes last. The second is seen before it is done, so what it makes is looked at afterwards.
struct Suspect {
    char* at;
    u8 before[16];
    Finding finding;
    bool armed = false;
};

struct Mode {
    Suspect suspect;                // of the thread that runs: it is settled before another does
    SharedCell* cells = nullptr;    // by word
    SharedCell* bytes = nullptr;    // by byte, of words that are accessed in parts
    u8* flags = nullptr;            // by word
    size_t words = 0;
    u32 acquired = 0;               // the time up to which this cluster has acquired,
    std::vector<Place*> met;        // at these addresses
    u32 split_any = 0, way_any = 0;
};

template <class T>
static T* map_array(size_t n) {
    void* p = mmap(nullptr, n * sizeof(T) + 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<T*>(p);
}

// -- faults ---------------------------------------------------------------------------------------------------------------------------

static __attribute__((noinline, cold)) Finding* fault(Worker& w, Kind kind, Memory space, u64 address, u32 bytes, bool write, u64 pc, u64 other_pc = 0) {
    Finding* found = report(w, *w.current, kind, pc, other_pc);
    if (found) found->space = space, found->address = address, found->bytes = bytes, found->write = write;
    return found;
}

static Finding described(Kind kind, Memory space, u64 address, u32 bytes, bool write, u64 pc, u64 other_pc) {
    Finding f;
    std::memset(&f, 0, sizeof f);
    f.kind = kind, f.space = space, f.address = address, f.bytes = bytes, f.write = write, f.pc = pc, f.other_pc = other_pc, f.count = 1;
    return f;
}
static void put_thread(Finding& found, const Fiber& f) {
    found.block[0] = f.block->index.x, found.block[1] = f.block->index.y, found.block[2] = f.block->index.z;
    found.thread[0] = f.tid.x, found.thread[1] = f.tid.y, found.thread[2] = f.tid.z;
}

static __attribute__((noinline, cold)) void wild(Worker& w, u64 address, u32 bytes, bool write, u64 pc) {
    if (Finding* found = fault(w, OUT_OF_BOUNDS, OTHER, address, bytes, write, pc)) found->detail[0] = address == 0;
    die(w);
}

static __attribute__((noinline, cold)) void settle(Worker& w, Fiber& f) {
    Suspect& s = *f.suspect;
    f.suspect = nullptr;
    if (!std::memcmp(s.at, s.before, std::min<u32>(s.finding.bytes, 16))) return;
    if (Finding* found = report(w, f, static_cast<Kind>(s.finding.kind), s.finding.pc, s.finding.other_pc)) {
        const u64 count = found->count;
        *found = s.finding;
        found->count = count;
        put_thread(*found, f);
    }
}
static void suspect(Worker& w, Fiber& f, char* at, const Finding& finding) {
    if (f.suspect) return;
    Suspect& s = w.mode->suspect;
    s.at = at, s.finding = finding;
    std::memcpy(s.before, at, std::min<u32>(finding.bytes, 16));
    f.suspect = &s;
}

// An index outside the type of its array. Of an array in shared or global memory the access itself follows at once and is judged by its
// address (rows of a tile may be walked as one); what follows no access is an array of the thread's own.
static __attribute__((noinline, cold)) void overrun(Worker& w, Fiber& f, u64 pc, const void* p) {
    const u64 at = f.outside;
    f.outside = 0;
    if (p && pc > at && pc - at < 192 && memory_of(p) != LOCAL) return;
    if (Finding* found = report(w, f, OUT_OF_BOUNDS, at)) snprintf(found->text, sizeof found->text, "index %llu of an array of the thread's own, %.100s", static_cast<unsigned long long>(f.index), f.array);
}
}  // namespace simt
