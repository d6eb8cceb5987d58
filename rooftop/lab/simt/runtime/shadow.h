// Checking: what is known of each word of memory, and how a fault in it is told.
#pragma once
#include "engine.h"

namespace simt {

// -- global memory: one cell for each 4 bytes --------------------------------------------------------------------------------------
// Tags of `writer` and `reader`: 0 nobody in this launch, else a cluster's (blocks of a cluster count as one: their barriers order them).
struct GlobalCell {
    // pc: of the write. bits: 4 initialised, 4 readable, 4 writable, 4 written by `writer`; 12 from SINCE on; and flags:
    u32 writer, reader, pc, bits;
};
constexpr u32 INIT = 0, VALID = 4, WRITABLE = 8, MINE = 12, SINCE = 20;
// written by an atomic, or (both) a volatile store; has watchers
constexpr u32 ATOMIC = 1 << 16, INPUT = 1 << 17, VOLATILE = 1 << 18, WATCHED = 1 << 19;
static GlobalCell* cells;
// of a word: the cluster that read it first, and the first other one; where; how often the first had released when it last did
struct Readers {
    u32 first, first_pc, second, second_pc;
    u16 first_since;
};
static Readers* readers;
// those that read it by atomics or as volatile: `first` and `second` are tags, which count from the launch's first on
static Readers* watchers;
static u64* stamps;                 // of the last write, as in shared memory: for races inside a cluster
static size_t cell_count;           // of the arena; those of the source's variables come behind
// A page of which every byte is marked alike has no marks in its cells until a thread comes to it, so that memory that nobody watches costs
// none.
constexpr u8 IN_CELLS = 8;          // of a page's state; else the bits of simt_mark() for all of it, and 0: none is marked
constexpr size_t PAGE_BYTES = 4096;
static u8* pages;
static std::mutex pages_mutex;
static const size_t variable_cells = static_cast<size_t>(simt_variables_end - simt_variables + 3) / 4;
static u32 many, mixed;             // tags of this launch: several readers; several writers, each of its own bytes
// When a cluster released what it had done by then: the last so many times. An access keeps `since`, the low bits of how many there had
// been.
struct Releases {
    static constexpr u32 KEPT = 15, LOW = 0xfff;
    std::atomic<u32> count, times[KEPT];
};
static Releases* released;          // by cluster
static size_t released_count;
static std::atomic<u32> release_time;

struct Place {                      // an address that atomics meet at
    std::atomic<u64> address;
    std::atomic<u32> time;
};
static std::vector<Place>* places;
constexpr size_t PLACE_TRIES = 64;  // where so many are taken, an address shares the first place
constexpr size_t MOST_MET = 64;

// -- shared memory: one cell for each 4 bytes of each block of the unit --------------------------------------------------------------
// A record: epoch << 30 | thread << 16 | the lane's clock << 1 | atomic.
struct SharedCell {
    u64 write, read, other;         // the last write; a read since; one by another thread
    u32 write_pc, read_pc;          // where `other` was: there as well, if it has SAME_PLACE, else as `other_pcs` says
};
constexpr u64 SAME_PLACE = u64(1) << 63;
// from bit OUTSIDE on: the bytes that belong to no variable
enum Flag : u8 { INVALID = 0, USED = 1, SPLIT = 2, UNDER_WAY = 4, OUTSIDE = 4 };

// Two writes of one value do no harm whichever comes last. The second is seen before it is done, so what it makes is looked at afterwards.
struct Suspect {
    char* at;
    u8 before[16];
    Finding finding;
    bool armed = false;
};

struct Fault { u64 address, pc; u32 thread, kind; };

struct Order {                      // of a cluster
    u32 since = 0;                  // how often it has released: what it accesses now is past from the next time on
    u32 acquired = 0;               // the time up to which it has acquired,
    std::vector<Place*> met;        // at these addresses
    std::vector<u64> sought;        // addresses read as volatile at which nobody had released anything by then
    size_t next_sought = 0;
};

struct Mode {
    Fault last = {};                // of this worker
    Suspect suspect;                // of the thread that runs: it is settled before another does
    SharedCell* cells = nullptr;    // by word
    SharedCell* bytes = nullptr;    // by byte, of words that are accessed in parts
    u32* other_pcs = nullptr;       // by word: where `other` of its cell, or the last one of its bytes' cells, was
    u8* flags = nullptr;            // by word
    size_t words = 0;
    std::vector<Order> orders;      // of the unit's clusters
    u32 split_any = 0, way_any = 0;
};

template <class T>
static T* map_array(size_t n) {
    void* p = mmap(nullptr, n * sizeof(T) + 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<T*>(p);
}

// The marks of the page of this byte are in its cells from now on.
static __attribute__((noinline)) void into_cells(size_t at) {
    std::lock_guard<std::mutex> lock(pages_mutex);
    u8& state = pages[at / PAGE_BYTES];
    if (state == IN_CELLS) return;
    const u32 bits = (state & 1 ? 15u << INIT : 0) | (state & 2 ? 15u << VALID : 0) | (state & 4 ? 15u << WRITABLE : 0);
    GlobalCell* c = cells + at / PAGE_BYTES * (PAGE_BYTES / 4);
    for (size_t i = 0; bits && i < PAGE_BYTES / 4; ++i) __atomic_store_n(&c[i].bits, bits, __ATOMIC_RELAXED);
    __atomic_store_n(&state, IN_CELLS, __ATOMIC_RELEASE);
}

// -- faults ---------------------------------------------------------------------------------------------------------------------------

// The variable in shared memory at `address`, or the one nearest to it.
static __attribute__((noinline, cold)) void put_place(Worker& w, Finding& found) {
    Launch& l = *w.launch;
    const u32 at = static_cast<u32>(found.address % SHARED_STRIDE), rank = static_cast<u32>(found.address / SHARED_STRIDE);
    std::lock_guard<std::mutex> lock(l.mutex);
    u32 first = 0, bytes = l.dynamic, least = l.dynamic ? (at < bytes ? 0 : at - bytes + 1) : ~0u;
    const SharedSite* site = nullptr;
    for (size_t i = 0; i < l.shared_ranges.size(); ++i) {
        const auto [from, size] = l.shared_ranges[i];
        const u32 away = at < from ? from - at : at < from + size ? 0 : at - from - size + 1;
        if (away < least) least = away, first = from, bytes = size, site = l.shared_sites[i];
    }
    char text[96] = "", part[40];
    const char* name = site ? site->name : "dynamic shared memory";
    if (least == ~0u) {
        snprintf(text, sizeof text, "byte %u of shared memory, of which the block has none", at);
    } else if (at < first || at >= first + bytes) {
        snprintf(text, sizeof text, "%u bytes %s %.40s (%u bytes)", at < first ? first - at : at - first - bytes, at < first ? "before"
            : "past the end of", name, bytes);
    } else if (!site) {
        snprintf(text, sizeof text, "byte %u of dynamic shared memory", at);
    } else {
        u32 count = (at - first) / site->item, whole = 1;
        const u32 rest = (at - first) % site->item;
        snprintf(text, sizeof text, "%.40s", name);
        for (u32 d = 1; d < 4 && site->extents[d]; ++d) whole *= site->extents[d];
        for (u32 d = 0; d < 4 && site->extents[d]; ++d) {
            snprintf(part, sizeof part, "[%u]", count / whole);
            std::strncat(text, part, sizeof text - std::strlen(text) - 1);
            count %= whole, whole /= d < 3 && site->extents[d + 1] ? site->extents[d + 1] : 1;
        }
        if (rest) {
            snprintf(part, sizeof part, " + %u bytes", rest);
            std::strncat(text, part, sizeof text - std::strlen(text) - 1);
        }
    }
    if (site && at >= first && at < first + bytes && at + found.bytes > first + bytes) {
        snprintf(part, sizeof part, ", %u bytes of it past the end", at + found.bytes - first - bytes);
        std::strncat(text, part, sizeof text - std::strlen(text) - 1);
    }
    if (const Block* own = w.current ? w.current->block : nullptr; own && w.unit->cluster_blocks > 1 && own->rank != rank) {
        const uint3& b = w.unit->blocks[rank].index;
        snprintf(found.place, sizeof found.place, "%.72s of block (%u, %u, %u)", text, b.x, b.y, b.z);
    } else {
        snprintf(found.place, sizeof found.place, "%s", text);
    }
}

static __attribute__((noinline, cold)) Finding* fault(Worker& w, Kind kind, Memory space, u64 address, u32 bytes, bool write, u64 pc,
    u64 other_pc = 0) {
    Fault& last = w.mode->last;
    // its next word
    if (bytes > 4 && last.address == address && last.pc == pc && last.thread == w.current->number && last.kind == kind) return nullptr;
    last = {address, pc, w.current->number, kind};
    Finding* found = report(w, *w.current, kind, pc, other_pc);
    if (found) {
        found->space = space, found->address = address, found->bytes = bytes, found->write = write;
        if (space == SHARED) put_place(w, *found);
    }
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
        if (found->space == SHARED) put_place(w, *found);
    }
}
static void suspect(Worker& w, Fiber& f, char* at, const Finding& finding) {
    if (f.suspect) return;
    Suspect& s = w.mode->suspect;
    s.at = at, s.finding = finding;
    std::memcpy(s.before, at, std::min<u32>(finding.bytes, 16));
    f.suspect = &s;
}

// -- indices --------------------------------------------------------------------------------------------------------------------------

struct TypeData { u16 kind, info; char name[1]; };   // as -fsanitize=bounds describes an array's type: 'float [4][33]'

// Bytes of an element of the array that such a name tells of; 0 where it is a type of the source's own.
static u32 element_bytes(const char* name) {
    static constexpr struct { const char* word; u32 bytes; } known[] = {
        {"char", 1}, {"bool", 1}, {"short", 2}, {"__half2", 4}, {"__half", 2}, {"__nv_bfloat162", 4}, {"__nv_bfloat16", 2}, {"long", 8},
            {"double", 8}, {"int", 4},
        {"unsigned", 4}, {"float", 4}};
    const char* at = *name == '\'' ? name + 1 : name;
    for (const char* word : {"const ", "volatile ", "unsigned ", "signed "})
        if (!std::strncmp(at, word, std::strlen(word))) at += std::strlen(word);
    for (const auto& [word, bytes] : known) {
        const size_t n = std::strlen(word);
        if (std::strncmp(at, word, n)) continue;
        const char* bracket = std::strchr(at, '[');
        if (!bracket || (at[n] != ' ' && at[n] != '[')) return 0;
        u32 all = bytes;
        for (bracket = std::strchr(bracket + 1, '['); bracket;
            bracket = std::strchr(bracket + 1, '[')) all *= static_cast<u32>(std::strtoul(bracket + 1, nullptr, 10));
        return all;
    }
    return 0;
}

// Whether the access at `p` may be the one of the index that was outside: of an array in shared memory or of the source's variables, such
// an element is judged by its address (rows of a tile may be walked as one). Then the array begins where the access does less the index.
static bool judged(Worker& w, const Fiber& f, const void* p, u64 pc) {
    const char* at = static_cast<const char*>(p);
    const Memory space = memory_of(p);
    if (space == LOCAL || space == OTHER) return false;
    if (space == GLOBAL && !in_library(at)) return pc > f.outside && pc - f.outside < 192;   // a tensor seen as an array: hardly ever
    const u32 bytes = element_bytes(f.array);
    if (!bytes || std::strstr(f.array, "simt_type_")) return true;
    const char* array = at - f.index * static_cast<i64>(bytes);
    if (space == GLOBAL) {
        if (array < simt_variables || array >= simt_variables_end) return false;
        into_cells(global_place(array));
        return cells[global_place(array) / 4].bits >> VALID & 15;
    }
    Launch& l = *w.launch;
    const i64 from = array - w.shared, in = from % static_cast<i64>(SHARED_STRIDE);
    if (from < 0) return false;
    if (in < l.dynamic) return true;
    std::lock_guard<std::mutex> lock(l.mutex);
    return std::any_of(l.shared_ranges.begin(), l.shared_ranges.end(),
        [&](const std::pair<u32, u32>& r) { return in >= r.first && in < r.first + r.second; });
}

// An index outside the type of its array. `p`: of the access that follows; null: none does before the thread meets others.
static __attribute__((noinline, cold)) void overrun(Worker& w, Fiber& f, const void* p, u64 pc) {
    const bool known = p && judged(w, f, p, pc);
    const u64 at = f.outside;
    f.outside = 0;
    if (known) return;
    f.overran = true;
    const char* whose = std::strncmp(f.array, "'const ", 7) ? "an array of the thread's own" : "a constant array";
    if (Finding* found = report(w, f, OUT_OF_BOUNDS, at)) snprintf(found->text, sizeof found->text, "index %lld of %s, %.100s",
        static_cast<long long>(f.index), whose, f.array);
}
}  // namespace simt
