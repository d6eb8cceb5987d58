// What the parts of a program's runtime have of each other: program.cpp runs it, device_memory.cpp, devices.cpp, graphs.cpp and
// launches.cpp are CUDA's runtime API beneath it (runtime_api.h), host_calls.cpp what it calls of C's and C++'s libraries.
#pragma once
#define SIMT_PROGRAM 1
#include "scheduler.h"
#include "libraries/library_types.h"

#include <csetjmp>
#include <functional>
#include <map>
#include <set>
#include <string>

namespace simt {
int run_launch(Launch& l, const u32 (&grid)[3], const u32 (&block)[3], const u32 (&cluster)[3], u32 workers);
extern std::vector<Finding> all_findings;
extern std::string folder_of_source;                             // with the slash behind it

static constexpr size_t REGION = size_t(16) << 30, PAGE = 4096;

struct Allocation {
    u64 at, bytes, pc, freed_pc;
    int kind;
    bool freed;
};
struct Pair { u64 plain, watched; };                             // a function in both builds, from the library's first byte

struct Repeated {                                                // launches that are the same in all they say
    u32 seen = 0, watched = 0, plain = 0, skipped = 0, record = 0;
    u64 before = 0, after = 0;                                   // digests of memory around the last one
    std::string arguments;                                       // the bytes of those of the last one
    bool settled = false;                                        // it changes nothing more
    bool late = false;                                           // it was not watched for want of time
};


extern struct ProgramState {
    std::map<u64, Allocation> allocations;                       // by place in the arena
    std::map<u64, u64> watched;                                  // plain entry -> watched
    std::vector<std::pair<char*, size_t>> registered;
    size_t device_at = 0, shared_at = 0;                         // how much of each part is used
    cudaError_t last = cudaSuccess, sticky = cudaSuccess;
    std::map<std::string, Repeated> repeated;
    std::set<u64> known;                                         // plain entries of which a launch has been watched
    std::string journal;
    u32 workers = 1, repeat = 1, poison = FIRST_POISON, patience = 20, records = 0;
    size_t stack = 0;
    u64 seed = 0, digest = 1469598103934665603u, changes = 0;
    u32 sample = 0;                                              // counting: blocks that are counted
    double budget = 0, most = 0, started = 0;                    // seconds: of a launch's watched blocks, of the whole program
    std::map<void*, u64> events;
    u64 done_launches = 0;
    std::vector<std::function<void()>>* capturing = nullptr;     // a graph that is being made: what is asked for is not done yet
    u64 launched_at = 0;                                         // the return address of the call that launches a kernel by its address
    int opted_in = 48 << 10, device = 0;
    bool listed = false;                                         // launches are listed and not run
    bool protects = false, running = false, cut = false;         // cut: its time was over, and launches were left out
    bool left_out = false;                                       // a library's product, which would have taken too long
    double library = 0;                                          // seconds that libraries' functions took
    jmp_buf leave;
    int status = 0;
    int ended = 0;                                               // 0 returned, 1 exit, 2 abort, 3 crash, 4 not simulated, 5 time is over
} program;

Finding* found_on_host(Kind kind, u64 pc, u64 other_pc = 0);
inline cudaError_t failed(cudaError_t e) { return program.last = e; }
[[noreturn]] void leave_program(int how, int status);
double now_seconds();
void put_text(std::string& to, const char* text);
void put(std::string& to, const char* format, ...);
// what is not as outside, or may not be: denied, unkept, beside
void named(const char* what, const char* name, u64 pc, const char* as = "denied");

void begin();                                                    // the first call of the API; a constructor of the program's may make it
struct Open {                                                    // while the API or a launch is under way, device memory is open
    static u32 depth;
    Open() { if (!depth++) set(PROT_READ | PROT_WRITE); }
    ~Open() { if (!--depth) set(PROT_NONE); }
    static void set(int rights) {
        if (program.protects && program.device_at) mprotect(arena, (program.device_at + PAGE - 1) / PAGE * PAGE, rights);
    }
};
void mark(u64 from, u64 bytes, u32 bits);
Allocation* allocation_of(const void* p);
cudaError_t copy(void* to, const void* from, size_t bytes, int kind, u64 pc, const char* what);
cudaError_t copy_3d(const cudaMemcpy3DParms* p, u64 pc);
}  // namespace simt
using namespace simt;
#define SIMT_FAR __attribute__((noinline))
