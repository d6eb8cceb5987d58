// What the GPU's compiler makes of the accesses of a line: a lane's neighbouring accesses become one, a wide one becomes several.
#pragma once
#include "engine.h"

namespace simt {

enum EventKind : u8 { READ, WRITE, RMW, PLACE, SYNC, COPY_READ, COPY_WRITE };

// of a site: its line, the widest access of the machine code there, and which of `splits` tells how wide ones are split (0: none)
struct Width {
    u16 line;
    u8 shared, global;
    u16 shared_split, global_split;
    bool again;     // it reads what the lane has just read: the machine code has no such access
};
/// The copies of an access that the machine code holds, in order, which a warp's executions go through in turn. Bit i of a copy: one of the
/// instructions that it consists of begins at byte i of the access.
typedef std::vector<u16> Split;
extern std::vector<Width> wide;          // by site
extern std::vector<Split> splits;        // the first is none

struct Run {        // accesses of a lane to one aligned window, which are one in the machine code if they fill it
    u64 window;
    size_t member[32];
    u32 members, filled;                 // filled: a bit for each byte
    u16 line;
    u8 space, kind, unit, width;
};

// One event for each aligned part of the window, as wide as a power of two allows, whose accesses are all there.
inline void close_run(std::vector<Event>& trace, const Run& r) {
    for (u32 size = r.width; size > r.unit; size /= 2)
        for (u32 from = 0; from < r.width; from += size) {
            const u32 part = (size < 32 ? (1u << size) - 1 : ~0u) << from;
            if ((r.filled & part) != part) continue;
            Event* first = nullptr;
            for (u32 i = 0; i < r.members; ++i) {
                Event& e = trace[r.member[i]];
                if (!e.bytes || e.address < r.window + from || e.address >= r.window + from + size || e.bytes >= size) continue;
                if (!first) first = &e;
                else first->parts = static_cast<u8>(first->parts + e.parts), e.bytes = 0;
            }
            if (first) first->address = r.window + from, first->bytes = static_cast<u8>(size);
        }
}

// Where the machine code has wide accesses at a line, a lane's accesses there that fill an aligned piece of memory are one, up to that
// width.
inline void widen(std::vector<Event>& trace) {
    if (wide.empty()) return;
    Run runs[16];
    u32 open = 0, oldest = 0;
    bool merged = false;
    const auto close = [&](u32 r) {
        if (runs[r].members > 1) close_run(trace, runs[r]), merged = true;
    };
    for (size_t i = 0; i < trace.size(); ++i) {
        Event& e = trace[i];
        if (e.kind == SYNC) {
            for (u32 r = 0; r < open; ++r) close(r);
            open = 0;
        }
        if (e.kind > WRITE || e.site >= wide.size()) continue;
        const Width& at = wide[e.site];
        if (at.again) {
            e.bytes = 0, merged = true;
            continue;
        }
        const u8 width = e.space == SHARED ? at.shared : at.global;
        if (width <= e.bytes) continue;
        const u64 window = e.address & ~static_cast<u64>(width - 1);
        const u32 bytes = ((1u << e.bytes) - 1) << (e.address - window);
        u32 r = 0;
        while (r < open && !(runs[r].window == window && runs[r].line == at.line && runs[r].space == e.space && runs[r].kind == e.kind
            && runs[r].unit == e.bytes && runs[r].width == width)) ++r;
        if (r < open && runs[r].filled & bytes) {        // the same again: another time
            close(r);
            runs[r].members = runs[r].filled = 0;
        } else if (r == open) {
            r = open < 16 ? open++ : oldest++ % 16;
            if (r + 1 != open) close(r);
            runs[r] = {window, {}, 0, 0, at.line, e.space, e.kind, e.bytes, width};
        }
        runs[r].member[runs[r].members++] = i;
        runs[r].filled |= bytes;
        if (runs[r].members * e.bytes == width) {
            close(r);
            runs[r] = runs[--open];
        }
    }
    for (u32 r = 0; r < open; ++r) close(r);
    if (merged) trace.erase(std::remove_if(trace.begin(), trace.end(), [](const Event& e) { return e.kind < PLACE && !e.bytes; }),
        trace.end());
}

/// The split of an access, or null.
inline const Split* split_of(const Event& e) {
    if (e.kind > WRITE || e.site >= wide.size()) return nullptr;
    const u16 n = e.space == SHARED ? wide[e.site].shared_split : wide[e.site].global_split;
    return n ? &splits[n] : nullptr;
}
}  // namespace simt
