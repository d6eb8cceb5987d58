// A program that runs as it is: its main() on the host, CUDA's runtime API beneath it, its launches watched or counted (runtime_api.h).
//
// Device memory lies in the arena, in two parts: what only the device may touch, which the host cannot read while it runs, and what both may (managed,
// pinned). A launch runs the watched build of its kernel; one that has been watched as often as was asked runs the plain build, which has the same
// results. Once a launch repeats what it did and changes nothing more, it is not run again.
#define SIMT_PROGRAM 1
#include "scheduler.h"
#include "libraries/library_types.h"
#include "host_calls.h"

#include <chrono>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <dlfcn.h>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

extern "C" {
void* simt_arena(size_t bytes);
void simt_mark(size_t at, u_int item, u_int dims, const unsigned long* shape, const unsigned long* strides, u_int bits);
int simt_user_main(int, char**, char**);
void simt_forget_range(size_t at, size_t bytes);
}

namespace simt {
int run_launch(Launch& l, const u32 (&grid)[3], const u32 (&block)[3], const u32 (&cluster)[3], u32 workers);
extern std::vector<Finding> all_findings;

static constexpr size_t REGION = size_t(16) << 30, GAP_BYTES = 4096, PAGE = 4096;
static constexpr int DEVICES = 8;                                // that may be set
static constexpr size_t LARGEST_ALLOCATION = size_t(2) << 30;    // bytes: each is watched by four times as many

struct Allocation {
    u64 at, bytes, pc, freed_pc;
    int kind;
    bool freed;
};
struct Pair { u64 plain, watched; };                             // a function in both builds, from the library's first byte

struct Repeated {                                                // launches that are the same in all they say
    u32 seen = 0, watched = 0, plain = 0, skipped = 0, record = 0;
    u64 before = 0, after = 0;                                   // digests of memory around the last one
    bool settled = false;                                        // it changes nothing more
    bool late = false;                                           // it was not watched for want of time
};

static struct {
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
    int opted_in = 48 << 10, device = 0;
    bool listed = false;                                         // launches are listed and not run
    bool protects = false, running = false, cut = false;         // cut: its time was over, and launches were left out
    jmp_buf leave;
    int status = 0;
    int ended = 0;                                               // 0 returned, 1 exit, 2 abort, 3 crash, 4 not simulated, 5 time is over
} program;

static double now_seconds() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
[[noreturn]] void leave_program(int how, int status) {
    program.ended = how, program.status = status;
    longjmp(program.leave, 1);
}

// -- what is found in the host's code --------------------------------------------------------------------------------------------------------

Finding* found_on_host(Kind kind, u64 pc, u64 other_pc) {
    if (program.cut && kind == HOST) return nullptr;             // it works with results that were not calculated
    for (Finding& f : all_findings)
        if (f.kind == kind && f.pc == pc && f.other_pc == other_pc) {
            ++f.count;
            return nullptr;
        }
    if (all_findings.size() >= 4096) return nullptr;
    Finding& f = all_findings.emplace_back();
    std::memset(&f, 0, sizeof f);
    f.kind = kind, f.pc = pc, f.other_pc = other_pc, f.count = 1;
    return &f;
}
static cudaError_t failed(cudaError_t e) { return program.last = e; }

static void put_text(std::string& to, const char* text) {
    to += '"';
    for (; text && *text; ++text) {
        if (*text == '"' || *text == '\\') to += '\\';
        to += static_cast<unsigned char>(*text) < 32 ? ' ' : *text;
    }
    to += '"';
}
static void put(std::string& to, const char* format, ...) {
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    to += text;
}

void named(const char* what, const char* name, u64 pc, const char* as) {
    put(program.journal, "%s{\"%s\":", program.journal.empty() ? "" : ",\n", as);
    put_text(program.journal, (std::string(what) + " " + (name ? name : "")).substr(0, 160).c_str());
    put(program.journal, ",\"pc\":%llu}", static_cast<unsigned long long>(pc));
}

// -- memory ------------------------------------------------------------------------------------------------------------------------------------

static void begin() {                                            // the first call of the API; a constructor of the program's may make it
    if (arena) return;
    simt_arena(2 * REGION);
    if (!arena) not_on_the_host("no address space for device memory");
}
struct Open {                                                    // while the API or a launch is under way, device memory is open
    static u32 depth;
    Open() { if (!depth++) set(PROT_READ | PROT_WRITE); }
    ~Open() { if (!--depth) set(PROT_NONE); }
    static void set(int rights) {
        if (program.protects && program.device_at) mprotect(arena, (program.device_at + PAGE - 1) / PAGE * PAGE, rights);
    }
};
u32 Open::depth = 0;

static void mark(u64 from, u64 bytes, u32 bits) {
    if (!bytes) return;
    const unsigned long shape = bytes, stride = 1;
    simt_mark(from, 1, 1, &shape, &stride, bits);
}
static Allocation* allocation_of(const void* p) {
    if (!arena) return nullptr;
    const u64 at = static_cast<u64>(static_cast<const char*>(p) - arena);
    if (at >= 2 * REGION) return nullptr;
    auto found = program.allocations.upper_bound(at);
    if (found == program.allocations.begin()) return nullptr;
    Allocation& a = std::prev(found)->second;
    return at < a.at + std::max<u64>(a.bytes, 1) + GAP_BYTES ? &a : nullptr;
}

static cudaError_t allocate(void** p, size_t bytes, int kind, u64 pc) {
    begin();
    if (!p) return failed(cudaErrorInvalidValue);
    *p = nullptr;
    if (!bytes) return cudaSuccess;
    size_t& used = kind == cudaMemoryTypeDevice ? program.device_at : program.shared_at;
    const u64 first = kind == cudaMemoryTypeDevice ? 0 : REGION;
    const u64 at = first + (used + GAP_BYTES + 255) / 256 * 256;
    if (bytes > LARGEST_ALLOCATION && bytes <= REGION && !program.listed) not_on_the_host("an allocation of more than 2 GiB: give the program smaller sizes");
    if (bytes > REGION || at + bytes + GAP_BYTES > first + REGION) return failed(cudaErrorMemoryAllocation);
    Open open;
    used = at - first + bytes;
    Open::set(PROT_READ | PROT_WRITE);
    program.allocations[at] = {at, bytes, pc, 0, kind, false};
    if (!program.listed) mark(at, bytes, kind == cudaMemoryTypeDevice ? 2 | 4 : 1 | 2 | 4);      // the host fills what it can reach unseen
    if (kind == cudaMemoryTypeDevice && !program.listed && bytes <= (64u << 20)) std::memset(arena + at, static_cast<int>(program.poison), bytes);
    ++program.changes;
    *p = arena + at;
    return cudaSuccess;
}
static cudaError_t release(void* p, u64 pc) {
    if (!p) return cudaSuccess;
    Allocation* a = allocation_of(p);
    if (!a || static_cast<char*>(p) != arena + a->at || a->freed) {
        if (Finding* f = found_on_host(HOST, pc, a && a->freed ? a->freed_pc : 0)) say(*f, a && a->freed ? "memory is freed twice" : a ? "a pointer into the middle of an allocation is freed" : "memory is freed that CUDA has not allocated");
        return failed(cudaErrorInvalidValue);
    }
    Open open;
    a->freed = true, a->freed_pc = pc;
    simt_forget_range(a->at, a->bytes);
    madvise(arena + (a->at + PAGE - 1) / PAGE * PAGE, a->bytes > PAGE ? (a->bytes - PAGE) / PAGE * PAGE : 0, MADV_DONTNEED);
    ++program.changes;
    return cudaSuccess;
}

// One side of a copy: whether so many bytes may be there. The device's memory is known; the host's is its own affair.
static bool may(const void* p, size_t bytes, bool device, bool writes, const char* what, u64 pc) {
    const char* at = static_cast<const char*>(p);
    Allocation* a = allocation_of(p);
    const char* direction = writes ? "to" : "from";
    if (a && !a->freed && at + bytes <= arena + a->at + a->bytes && at >= arena + a->at) return true;
    if (global_place(at) != ~u64(0) && !a) {
        if (at >= simt_variables && at + bytes <= simt_variables_end) return true;
    }
    if (a) {
        if (Finding* f = found_on_host(HOST, pc, a->freed ? a->freed_pc : a->pc)) {
            if (a->freed) say(*f, "%s of %zu bytes %s memory that has been freed", what, bytes, direction);
            else say(*f, "%s of %zu bytes %s an allocation of %llu bytes%s", what, bytes, direction, static_cast<unsigned long long>(a->bytes), at == arena + a->at ? "" : ", from the middle of it");
        }
        return false;
    }
    if (device && p >= arena && p < arena_end) return false;
    if (device) {
        if (Finding* f = found_on_host(HOST, pc)) say(*f, "%s of %zu bytes %s device memory: the pointer is %s", what, bytes, direction, p ? "none of CUDA's" : "null");
        return false;
    }
    return p != nullptr || !bytes;
}
static void digest_of(const void* p, size_t bytes) {             // of all that comes back to the host
    const char* at = static_cast<const char*>(p);
    u64 h = program.digest;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        u64 v;
        std::memcpy(&v, at, 8);
        h = (h ^ v) * 1099511628211u, h ^= h >> 29;
    }
    for (; bytes; --bytes, ++at) h = (h ^ static_cast<u8>(*at)) * 1099511628211u;
    program.digest = h;
}
/// Where launches are only listed, so is what writes between them; `v`: the byte of a fill, or none.
static void list_write(const char* what, const void* to, size_t bytes, int v) {
    const Allocation* a = allocation_of(to);
    put(program.journal, "%s{\"%s\":{\"pc\":%llu,\"offset\":%lld,\"bytes\":%llu},\"size\":%zu,\"value\":%d}", program.journal.empty() ? "" : ",\n", what,
        a ? static_cast<unsigned long long>(a->pc) : 0ull, a ? static_cast<long long>(static_cast<const char*>(to) - arena - static_cast<i64>(a->at)) : 0ll,
        a ? static_cast<unsigned long long>(a->bytes) : 0ull, bytes, v);
}
static cudaError_t copy(void* to, const void* from, size_t bytes, int kind, u64 pc, const char* what) {
    begin();
    if (program.listed) list_write("copied", to, bytes, 0);
    if (program.capturing) {
        program.capturing->push_back([=] { copy(to, from, bytes, kind, pc, what); });
        return cudaSuccess;
    }
    if (program.sticky) return failed(program.sticky);
    if (!bytes) return cudaSuccess;
    Open open;
    Allocation *a = allocation_of(to), *b = allocation_of(from);
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice || (kind == cudaMemcpyDefault && a);
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice || (kind == cudaMemcpyDefault && b);
    if (kind < 0 || kind > 4) return failed(cudaErrorInvalidMemcpyDirection);
    if ((!to_device && a && a->kind == cudaMemoryTypeDevice) || (!from_device && b && b->kind == cudaMemoryTypeDevice)) {
        if (Finding* f = found_on_host(HOST, pc)) say(*f, "%s: %s is device memory, but the direction given says that it is the host's", what, !to_device && a && a->kind == cudaMemoryTypeDevice ? "the destination" : "the source");
    }
    if (!may(to, bytes, to_device, true, what, pc) || !may(from, bytes, from_device, false, what, pc)) return failed(cudaErrorInvalidValue);
    std::memmove(to, from, bytes);
    if (a) mark(static_cast<u64>(static_cast<char*>(to) - arena), bytes, 1), ++program.changes;
    else digest_of(to, bytes);
    return cudaSuccess;
}
static cudaError_t fill(void* p, int v, size_t bytes, u64 pc) {
    begin();
    if (program.listed) return list_write("filled", p, bytes, v), cudaSuccess;
    if (program.capturing) {
        program.capturing->push_back([=] { fill(p, v, bytes, pc); });
        return cudaSuccess;
    }
    if (program.sticky) return failed(program.sticky);
    if (!bytes) return cudaSuccess;
    Open open;
    if (!may(p, bytes, true, true, "cudaMemset", pc)) return failed(cudaErrorInvalidValue);
    std::memset(p, v, bytes);
    if (Allocation* a = allocation_of(p)) mark(static_cast<u64>(static_cast<char*>(p) - arena), bytes, 1);
    ++program.changes;
    return cudaSuccess;
}
}  // namespace simt

using namespace simt;
#define SIMT_FAR __attribute__((noinline))

SIMT_FAR cudaError_t simt_malloc(void** p, size_t bytes, int kind) { return allocate(p, bytes, kind, SIMT_PC()); }
SIMT_FAR cudaError_t cudaFree(void* p) { return release(p, SIMT_PC()); }
SIMT_FAR cudaError_t cudaFreeHost(void* p) { return release(p, SIMT_PC()); }
SIMT_FAR cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind kind) { return copy(to, from, n, kind, SIMT_PC(), "cudaMemcpy"); }
SIMT_FAR cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind kind, cudaStream_t) { return copy(to, from, n, kind, SIMT_PC(), "cudaMemcpyAsync"); }
SIMT_FAR cudaError_t cudaMemset(void* p, int v, size_t n) { return fill(p, v, n, SIMT_PC()); }
SIMT_FAR cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t) { return fill(p, v, n, SIMT_PC()); }
SIMT_FAR cudaError_t cudaMemcpy2D(void* to, size_t tp, const void* from, size_t fp, size_t width, size_t height, cudaMemcpyKind kind) {
    const u64 pc = SIMT_PC();
    if (width > tp || width > fp) return failed(cudaErrorInvalidPitchValue);
    for (size_t y = 0; y < height; ++y)
        if (const cudaError_t e = copy(static_cast<char*>(to) + y * tp, static_cast<const char*>(from) + y * fp, width, kind, pc, "cudaMemcpy2D")) return e;
    return cudaSuccess;
}
SIMT_FAR cudaError_t cudaMemset2D(void* p, size_t pitch, int v, size_t width, size_t height) {
    const u64 pc = SIMT_PC();
    for (size_t y = 0; y < height; ++y)
        if (const cudaError_t e = fill(static_cast<char*>(p) + y * pitch, v, width, pc)) return e;
    return cudaSuccess;
}
SIMT_FAR cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p) {
    const u64 pc = SIMT_PC();
    if (p->srcArray || p->dstArray) not_on_the_host("cudaMemcpy3D of an array: textures and arrays");
    const auto at = [](const cudaPitchedPtr& x, const cudaPos& o, size_t y, size_t z) { return static_cast<char*>(x.ptr) + ((o.z + z) * x.ysize + o.y + y) * x.pitch + o.x; };
    for (size_t z = 0; z < p->extent.depth; ++z)
        for (size_t y = 0; y < p->extent.height; ++y)
            if (const cudaError_t e = copy(at(p->dstPtr, p->dstPos, y, z), at(p->srcPtr, p->srcPos, y, z), p->extent.width, p->kind, pc, "cudaMemcpy3D")) return e;
    return cudaSuccess;
}
SIMT_FAR cudaError_t simt_symbol(const void* symbol, size_t size, size_t offset, void* at, const void* from, size_t bytes) {
    const u64 pc = SIMT_PC();
    begin();
    if (program.listed) list_write("copied", nullptr, bytes, 0);
    char* place = const_cast<char*>(static_cast<const char*>(symbol)) + offset;
    if (offset + bytes > size) {
        if (Finding* f = found_on_host(HOST, pc)) say(*f, "a copy of %zu bytes at offset %zu %s a variable of %zu bytes", bytes, offset, at ? "from" : "to", size);
        return failed(cudaErrorInvalidValue);
    }
    Open open;
    if (at) std::memcpy(at, place, bytes);
    else std::memcpy(place, from, bytes);
    if (at && !allocation_of(at)) digest_of(at, bytes);
    ++program.changes;
    return cudaSuccess;
}
SIMT_FAR cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) { not_on_the_host("cudaHostRegister: memory of the host's that a kernel reads"); (void)p, (void)bytes; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
    const Allocation* found = allocation_of(p);
    void* q = const_cast<void*>(p);
    *a = {found ? static_cast<cudaMemoryType>(found->kind) : cudaMemoryTypeUnregistered, 0, found ? q : nullptr, !found || found->kind == cudaMemoryTypeDevice ? nullptr : q};
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
    *total = REGION, *left = REGION - program.device_at;
    return cudaSuccess;
}

// -- errors, devices, time ------------------------------------------------------------------------------------------------------------------------

cudaError_t cudaGetLastError() {
    const cudaError_t e = program.last;
    program.last = program.sticky;
    return e;
}
cudaError_t cudaPeekAtLastError() { return program.last; }
cudaError_t simt::last_of_stream() { return program.sticky; }
cudaError_t cudaDeviceSynchronize() { return program.sticky ? failed(program.sticky) : cudaSuccess; }
#define SIMT_ERRORS(F)                                                                                                                           \
    F(cudaSuccess, "no error") F(cudaErrorInvalidValue, "invalid argument") F(cudaErrorMemoryAllocation, "out of memory")                        \
    F(cudaErrorInvalidConfiguration, "invalid configuration argument") F(cudaErrorInvalidPitchValue, "invalid pitch argument")                   \
    F(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy") F(cudaErrorInvalidDevice, "invalid device ordinal")                  \
    F(cudaErrorIllegalAddress, "an illegal memory access was encountered") F(cudaErrorLaunchOutOfResources, "too many resources requested for launch") \
    F(cudaErrorAssert, "device-side assert triggered") F(cudaErrorLaunchFailure, "unspecified launch failure")                                   \
    F(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch") F(cudaErrorNotSupported, "operation not supported")           \
    F(cudaErrorNotReady, "device not ready") F(cudaErrorInvalidResourceHandle, "invalid resource handle")
const char* cudaGetErrorString(cudaError_t e) {
#define SIMT_TEXT(name, text) if (e == name) return text;
    SIMT_ERRORS(SIMT_TEXT)
    return "unknown error";
}
const char* cudaGetErrorName(cudaError_t e) {
#define SIMT_NAME(name, text) if (e == name) return #name;
    SIMT_ERRORS(SIMT_NAME)
    return "cudaErrorUnknown";
}
cudaError_t cudaGetDevice(int* device) {
    *device = program.device;
    return cudaSuccess;
}
SIMT_FAR cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= DEVICES) return failed(cudaErrorInvalidDevice);
    if (device) named("uses a GPU beside the first", "", SIMT_PC(), "beside");   // another name for the one that there is
    program.device = device;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    std::memset(static_cast<void*>(p), 0, sizeof *p);
    if (device < 0 || device >= DEVICES) return failed(cudaErrorInvalidDevice);
    snprintf(p->name, sizeof p->name, "simulated sm_90");
    p->totalGlobalMem = REGION, p->sharedMemPerBlock = STATIC_LIMIT, p->sharedMemPerBlockOptin = SHARED_LIMIT, p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536, p->warpSize = 32, p->memPitch = 0x7fffffff, p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64, p->maxGridSize[0] = 0x7fffffff, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->clockRate = 1980000, p->totalConstMem = 65536, p->major = 9, p->minor = 0, p->multiProcessorCount = 132, p->canMapHostMemory = p->concurrentKernels = 1;
    p->asyncEngineCount = 3, p->deviceOverlap = p->unifiedAddressing = p->managedMemory = p->concurrentManagedAccess = p->cooperativeLaunch = 1;
    p->memoryClockRate = 2619000, p->memoryBusWidth = 5120, p->l2CacheSize = 50 << 20, p->maxThreadsPerMultiProcessor = 2048, p->maxBlocksPerMultiProcessor = 32;
    p->streamPrioritiesSupported = p->memoryPoolsSupported = p->globalL1CacheSupported = p->localL1CacheSupported = 1, p->textureAlignment = 512, p->reservedSharedMemPerBlock = 1024;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int device) {
    cudaDeviceProp p;
    if (const cudaError_t e = cudaGetDeviceProperties(&p, device)) return e;
    switch (a) {
        case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *v = 1024; break;
        case cudaDevAttrMaxBlockDimZ: *v = 64; break;
        case cudaDevAttrMaxGridDimX: *v = p.maxGridSize[0]; break;
        case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *v = 65535; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *v = static_cast<int>(STATIC_LIMIT); break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = static_cast<int>(SHARED_LIMIT); break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *v = 228 << 10; break;
        case cudaDevAttrTotalConstantMemory: *v = 65536; break;
        case cudaDevAttrWarpSize: *v = 32; break;
        case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *v = 65536; break;
        case cudaDevAttrClockRate: *v = p.clockRate; break;
        case cudaDevAttrMemoryClockRate: *v = p.memoryClockRate; break;
        case cudaDevAttrGlobalMemoryBusWidth: *v = p.memoryBusWidth; break;
        case cudaDevAttrL2CacheSize: *v = p.l2CacheSize; break;
        case cudaDevAttrMultiProcessorCount: *v = 132; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *v = 2048; break;
        case cudaDevAttrComputeCapabilityMajor: *v = 9; break;
        case cudaDevAttrComputeCapabilityMinor: case cudaDevAttrComputeMode: case cudaDevAttrIntegrated: case cudaDevAttrKernelExecTimeout: *v = 0; break;
        default: *v = 1;
    }
    return cudaSuccess;
}
cudaError_t simt_opt_in(int attribute, int v) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (v < 0 || v > static_cast<int>(SHARED_LIMIT)) return failed(cudaErrorInvalidValue);
    program.opted_in = std::max(program.opted_in, v);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* s) {
    static u64 next = 16;
    *s = reinterpret_cast<cudaStream_t>(next++);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) {
    static u64 next = 16;
    *e = reinterpret_cast<cudaEvent_t>(next++);
    return cudaSuccess;
}
typedef std::vector<std::function<void()>> Steps;
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
    program.capturing = new Steps;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* g) {
    if (!program.capturing) return failed(cudaErrorInvalidValue);
    *g = reinterpret_cast<cudaGraph_t>(program.capturing);
    program.capturing = nullptr;
    return cudaSuccess;
}
cudaError_t simt_graph_nodes(cudaGraph_t g, size_t* n) {
    *n = reinterpret_cast<Steps*>(g)->size();
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t) {
    for (const auto& step : *reinterpret_cast<Steps*>(g)) step();
    return program.sticky ? failed(program.sticky) : cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t) {
    program.events[e] = program.done_launches;
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {   // a launch is a millisecond: nothing is measured here
    const auto a = program.events.find(from), b = program.events.find(to);
    if (a == program.events.end() || b == program.events.end()) {
        if (Finding* f = found_on_host(HOST, SIMT_PC())) say(*f, "the time between events of which one was never recorded");
        return failed(cudaErrorInvalidResourceHandle);
    }
    *ms = static_cast<float>(std::max<u64>(b->second - a->second, 1));
    return cudaSuccess;
}

// -- launches ----------------------------------------------------------------------------------------------------------------------------------------

namespace simt {
void not_on_the_host(const char* what) {
    if (worker && worker->current) not_simulated(what);
    if (Finding* f = found_on_host(NOT_SIMULATED, here(__builtin_return_address(0)))) say(*f, "%s", what);
    leave_program(4, 0);
}

bool on_host() { return !worker || !worker->current; }
bool attempting = false;            // arguments are tried out: an assertion says that these do not fit
__attribute__((noinline)) void host_assertion(const char* text) {
    if (attempting) throw std::runtime_error(std::string("assert(") + text + ")");
    if (Finding* f = found_on_host(HOST, SIMT_PC())) say(*f, "the host's assert(%.150s) does not hold", text);
    leave_program(2, 134);
}

static u64 memory_digest() {
    u64 h = 1469598103934665603u;
    const auto add = [&](const char* p, size_t n) {
        for (size_t i = 0; i + 8 <= n; i += 8) {
            u64 v;
            std::memcpy(&v, p + i, 8);
            h = (h ^ v) * 1099511628211u, h ^= h >> 31;
        }
        for (size_t i = n / 8 * 8; i < n; ++i) h = (h ^ static_cast<u8>(p[i])) * 1099511628211u;
    };
    for (const auto& [at, a] : program.allocations)
        if (!a.freed) add(arena + at, a.bytes);
    add(simt_variables, static_cast<size_t>(simt_variables_end - simt_variables));
    return h;
}

Library::Library() {
    begin();
    if (!Open::depth++) Open::set(PROT_READ | PROT_WRITE);
}
Library::~Library() {
    if (!--Open::depth) Open::set(PROT_NONE);
}
void Library::wrote(void* p, size_t bytes) {
    if (allocation_of(p)) mark(static_cast<u64>(static_cast<char*>(p) - arena), bytes, 1);
    ++program.changes;
}

static std::string shown(const LaunchArgument* list, unsigned count) {  // numbers whole where launches are only listed
    std::string text = "[";
    for (unsigned i = 0; i < count; ++i) {
        const LaunchArgument& a = list[i];
        if (i) text += ',';
        if (a.kind == POINTER) {
            u64 v = 0;
            std::memcpy(&v, a.at, std::min(8u, a.bytes));
            const char* p = reinterpret_cast<const char*>(v);
            if (const Allocation* held = allocation_of(p)) put(text, "{\"pc\":%llu,\"offset\":%lld,\"bytes\":%llu}", static_cast<unsigned long long>(held->pc), static_cast<long long>(p - arena - static_cast<i64>(held->at)), static_cast<unsigned long long>(held->bytes));
            else put(text, !v ? "null" : global_place(p) != ~u64(0) ? "\"a __device__ variable\"" : "\"a pointer of the host's\"");
        } else if (a.kind == REAL) {
            double v = 0;
            if (a.bytes == 4) { float f; std::memcpy(&f, a.at, 4); v = f; }
            else if (a.bytes == 8) std::memcpy(&v, a.at, 8);
            put(text, "\"%.*g\"", program.listed ? 17 : 6, v);
        } else if (a.kind == NUMBER) {
            u64 v = 0;
            if (a.at) std::memcpy(&v, a.at, std::min(8u, a.bytes));
            if (a.is_signed && a.bytes && a.bytes < 8 && v >> (8 * a.bytes - 1) & 1) v |= ~u64(0) << 8 * a.bytes;
            put(text, a.is_signed ? "%lld" : "%llu", v);
        } else {
            put(text, "\"%u bytes\"", a.bytes);
        }
    }
    return text + "]";
}

static std::string raw(const LaunchArgument* list, unsigned count) {     // of a launch that is made elsewhere: bytes, or a place in an allocation
    std::string text = "[";
    for (unsigned i = 0; i < count; ++i) {
        const LaunchArgument& a = list[i];
        u64 v = 0;
        if (a.at) std::memcpy(&v, a.at, std::min(8u, a.bytes));
        const char* kind = a.kind == POINTER ? "pointer" : a.kind == REAL ? "real" : a.kind == NUMBER ? "number" : "struct";
        const Allocation* held = a.kind == POINTER ? allocation_of(reinterpret_cast<const char*>(v)) : nullptr;
        put(text, "%s{\"kind\":\"%s\",\"bytes\":%u,\"value\":\"%llx\"", i ? "," : "", kind, a.bytes, static_cast<unsigned long long>(v));
        if (held) put(text, ",\"at\":%llu,\"size\":%llu", static_cast<unsigned long long>(held->at), static_cast<unsigned long long>(held->bytes));
        if (held) put(text, ",\"offset\":%lld", static_cast<long long>(reinterpret_cast<const char*>(v) - arena - static_cast<i64>(held->at)));
        text += '}';
    }
    return text + "]";
}

static cudaError_t refused(u64 pc, cudaError_t e, const char* format, ...) {
    if (Finding* f = found_on_host(LAUNCH, pc)) {
        va_list list;
        va_start(list, format);
        vsnprintf(f->text, sizeof f->text, format, list);
        va_end(list);
    }
    return failed(e);
}
static dim3 cluster_of_kernel(const char* name) {
    std::string base(name, std::strcspn(name, "< "));
    if (const size_t colon = base.rfind(':'); colon != std::string::npos) base.erase(0, colon + 1);
    for (const ClusterDims* p = simt_cluster_dims; p->name; ++p)
        if (base == p->name) return dim3(p->dims[0], p->dims[1], p->dims[2]);
    return dim3(1, 1, 1);
}

const char* instance(const char* name, std::initializer_list<const char*> arguments) {
    static std::set<std::string> kept;
    std::string text = std::string(name) + "<";
    for (const char* a : arguments) {       // `const char* simt::shown() [with T = float]`, and what names in it stand for after a semicolon
        const char* from = std::strstr(a, " = ");
        std::string one = from ? from + 3 : a;
        one.erase(std::min(one.find("; "), one.rfind(']')));
        text += (text.back() == '<' ? "" : ", ") + one;
    }
    return kept.insert(text + ">").first->c_str();
}

cudaError_t launch(Given& given, void (*entry)(void**), void* closure, size_t bytes, const LaunchArgument* arguments, unsigned count, unsigned long long address) {
    const u64 pc = here(reinterpret_cast<void*>(address));
    if (worker && worker->current) not_simulated("a launch <<<...>>> by a kernel (dynamic parallelism)");
    begin();
    if (program.capturing) {
        const std::string kept(static_cast<const char*>(closure), bytes);
        const auto pointer = given.pointer ? reinterpret_cast<char*>(given.pointer) - static_cast<char*>(closure) : -1;
        program.capturing->push_back([=]() mutable {
            Given again = given;
            std::string own = kept;
            again.pointer = pointer < 0 ? nullptr : reinterpret_cast<void**>(&own[static_cast<size_t>(pointer)]);
            launch(again, entry, &own[0], bytes, nullptr, 0, address);
        });
        return cudaSuccess;
    }
    if (program.sticky) return failed(program.sticky);
    const u64 threads = u64(given.block.x) * given.block.y * given.block.z, blocks = u64(given.grid.x) * given.grid.y * given.grid.z;
    if (!blocks) return refused(pc, cudaErrorInvalidConfiguration, "a launch of %s with 0 blocks: grid (%u, %u, %u)", given.kernel, given.grid.x, given.grid.y, given.grid.z);
    if (!threads || threads > 1024 || given.block.z > 64) return refused(pc, cudaErrorInvalidConfiguration, "a launch of %s with %llu threads a block (%u, %u, %u); a block has 1 to 1024", given.kernel, static_cast<unsigned long long>(threads), given.block.x, given.block.y, given.block.z);
    if (given.grid.x > 0x7fffffffu || given.grid.y > 65535 || given.grid.z > 65535) return refused(pc, cudaErrorInvalidConfiguration, "a launch of %s with a grid of (%u, %u, %u); at most (2147483647, 65535, 65535)", given.kernel, given.grid.x, given.grid.y, given.grid.z);
    if (given.shared > SHARED_LIMIT) return refused(pc, cudaErrorInvalidValue, "a launch of %s with %zu bytes of dynamic shared memory; a block can have %zu", given.kernel, given.shared, SHARED_LIMIT);
    if (given.shared > static_cast<size_t>(program.opted_in)) return refused(pc, cudaErrorInvalidValue, "a launch of %s with %zu bytes of dynamic shared memory: more than 49152 needs cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) first", given.kernel, given.shared);
    if (!given.cluster.x) given.cluster = cluster_of_kernel(given.kernel);
    const dim3 c = given.cluster;
    if (u64(c.x) * c.y * c.z > 16 || given.grid.x % c.x || given.grid.y % c.y || given.grid.z % c.z) return refused(pc, cudaErrorInvalidConfiguration, "a launch of %s with a cluster of (%u, %u, %u) in a grid of (%u, %u, %u)", given.kernel, c.x, c.y, c.z, given.grid.x, given.grid.y, given.grid.z);
    if (given.cooperative && blocks > u64(132) * static_cast<u64>(simt_resident(static_cast<int>(threads), given.shared))) return refused(pc, cudaErrorCooperativeLaunchTooLarge, "a cooperative launch of %s with %llu blocks: so many do not run at once on 132 multiprocessors", given.kernel, static_cast<unsigned long long>(blocks));

    Open open;
    ++program.done_launches;
    std::string key;
    put(key, "%llu/%u,%u,%u/%u,%u,%u/%zu/", address, given.grid.x, given.grid.y, given.grid.z, given.block.x, given.block.y, given.block.z, given.shared);
    key.append(static_cast<const char*>(closure), bytes);
    Repeated& r = program.repeated[key];
    if (!r.seen++ || program.listed) {
        r.record = program.records++;
        std::string& j = program.journal;
        put(j, "%s{\"launch\":%u,\"pc\":%llu,\"kernel\":", j.empty() ? "" : ",\n", r.record, static_cast<unsigned long long>(pc));
        put_text(j, given.kernel);
        put(j, ",\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"shared\":%zu,\"cooperative\":%s,\"cluster\":[%u,%u,%u],\"arguments\":", given.grid.x, given.grid.y, given.grid.z, given.block.x, given.block.y, given.block.z, given.shared, given.cooperative ? "true" : "false", c.x, c.y, c.z);
        j += shown(arguments, count) + ",\"widths\":[";
        for (unsigned i = 0; i < count; ++i) put(j, "%s%u", i ? "," : "", arguments[i].bytes);
        j += "]}";
    }
    if (program.listed) {
        ++r.skipped;
        put(program.journal, ",\n{\"step\":%u,\"raw\":", r.record);
        program.journal += raw(arguments, count) + "}";
        return cudaSuccess;
    }
    // Time is over: launches are left out, for a while in which the program may come to its end; but those of a kernel that was never watched.
    const auto over = [&r](double spent) {
        if (spent > 1.5 * program.most) {
            put(program.journal, ",\n{\"over\":%u}", r.record);
            leave_program(5, 0);
        }
        if (!program.cut) put(program.journal, ",\n{\"cut\":%llu}", static_cast<unsigned long long>(program.done_launches));
        program.cut = true;
        ++r.skipped;
        return cudaSuccess;
    };
    const double spent = now_seconds() - program.started;
    const bool fresh = !program.known.count(reinterpret_cast<u64>(entry));
    r.late |= spent > program.most / 2;
    if (spent > program.most && (!fresh || spent > 1.5 * program.most)) return over(spent);
    // The same launch again, after nothing else was done: once it has left memory as it found it, it does so each time.
    const bool asked = r.seen > 2;
    if (asked && r.settled && r.before == program.changes) {
        ++r.skipped;
        return cudaSuccess;
    }
    const auto seen = program.watched.find(here(reinterpret_cast<void*>(entry)));
    Launch l;
    l.dynamic = static_cast<u32>(given.shared), l.cooperative = given.cooperative, l.seed = program.seed, l.poison = program.poison, l.patience = program.patience;
    l.stack = program.stack;
    l.plain_call = entry;
    l.call = seen == program.watched.end() ? nullptr : reinterpret_cast<void (*)(void**)>(__ehdr_start + seen->second);
    const bool watch = l.call && r.watched < program.repeat && (fresh || spent <= program.most / 2);
    if (!watch) l.call = nullptr;
    l.budget = spent > program.most ? program.budget / 4 : program.budget;
    l.deadline = std::max(program.started + program.most, now_seconds() + (fresh ? program.budget / 2 : 0));
    l.sample = program.sample;
    alignas(128) static char held[1 << 16];                      // of arguments: what lies in the library itself is not watched
    if (bytes > sizeof held) return failed(cudaErrorLaunchOutOfResources);
    if (given.pointer && watch) {
        const auto at = program.watched.find(here(*given.pointer));
        if (at != program.watched.end()) *given.pointer = __ehdr_start + at->second;
        else l.call = nullptr;
    }
    std::memcpy(held, closure, bytes);
    void* values[1] = {held};
    l.values = values;
    const u32 grid[3] = {given.grid.x, given.grid.y, given.grid.z}, block[3] = {given.block.x, given.block.y, given.block.z}, cluster[3] = {c.x, c.y, c.z};
    const size_t first = all_findings.size();
    const double before = now_seconds();
    const u64 had = !watch && r.seen > 1 && r.plain < 2 && !program.shared_at ? memory_digest() : 0;
    const int status = run_launch(l, grid, block, cluster, program.workers);
    if (l.call) ++r.watched, program.known.insert(reinterpret_cast<u64>(entry));
    else ++r.plain;
    program.changes += 2;
    if (had) {
        r.after = memory_digest();
        r.settled = r.after == had;
        r.before = program.changes;
    }
    if (l.call || status) put(program.journal, ",\n{\"ran\":%u,\"watched\":%u,\"blocks\":%llu,\"status\":%d,\"seconds\":%.3f,\"findings\":[%zu,%zu]}", r.record, l.watched.load(), static_cast<unsigned long long>(blocks), status, now_seconds() - before, first, all_findings.size());
    if (!status) return cudaSuccess;
    if (status == static_cast<int>(OVER)) return over(now_seconds() - program.started);
    if (status == 2) not_on_the_host("no memory for the threads of a launch");
    for (size_t i = first; i < all_findings.size(); ++i)
        if (all_findings[i].kind == NOT_SIMULATED) leave_program(4, 0);
    program.sticky = all_findings.size() > first && all_findings.back().kind == ASSERT ? cudaErrorAssert : status == 1 ? cudaErrorIllegalAddress : cudaErrorLaunchFailure;
    return cudaSuccess;                                          // told at the next call, as on a GPU
}
}  // namespace simt

// Of callers that are made for a file (program_caller.py): launches so far; and a fresh start after a fault.
unsigned long long simt_launches() { return program.done_launches; }
void simt_fresh() { program.sticky = program.last = cudaSuccess; }

// -- the program -------------------------------------------------------------------------------------------------------------------------------------

static void host_crashed(int number, siginfo_t* info, void* context) {
    if (!program.running) {
        signal(number, SIG_DFL);
        return;
    }
    u64 pc = 0;
#if defined(__x86_64__)
    const u64 at = static_cast<u64>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
    if (in_library(reinterpret_cast<char*>(at))) pc = at - reinterpret_cast<u64>(__ehdr_start) + 1;
    else {                                                       // in a library of the system's: the innermost caller that is ours
        const u64* sp = reinterpret_cast<u64*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RSP]);
        for (int i = 0; i < 512 && !pc; ++i)
            if (in_library(reinterpret_cast<char*>(sp[i])) && reinterpret_cast<char*>(sp[i]) >= simt_code) pc = sp[i] - reinterpret_cast<u64>(__ehdr_start);
    }
#else
    (void)context;
#endif
    const char* where = static_cast<const char*>(info->si_addr);
    if (Finding* f = found_on_host(HOST, pc)) {
        if (number == SIGFPE) say(*f, "an integer division by zero in the host's code");
        else if (arena && where >= arena && where < arena + REGION) say(*f, "the host's code touches device memory: it must be copied by cudaMemcpy first");
        else say(*f, "the host's code crashes here: %s", where < reinterpret_cast<char*>(4096) ? "a null pointer" : "an address that is not its own");
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    Open::depth = 0;
    leave_program(3, 128 + number);
}

// Its CPU time is over while its own code runs; the system says so each second. In a library's code, which may hold a lock, it goes on for that long.
static void time_is_over(int, siginfo_t*, void* context) {
#if defined(__x86_64__)
    const char* at = reinterpret_cast<char*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
    if (!program.running || Open::depth || !in_library(at)) return;
    put(program.journal, "%s{\"over\":0,\"host\":%llu}", program.journal.empty() ? "" : ",\n", static_cast<unsigned long long>(reinterpret_cast<u64>(at) - reinterpret_cast<u64>(__ehdr_start) + 1));
    leave_program(5, 0);
#else
    (void)context;
#endif
}

extern "C" {
#define SIMT_EXPORT __attribute__((visibility("default")))
struct SimtProgram {
    u32 workers, repeat, poison, patience, sample, listed, pairs;
    u64 seed, stack;
    double budget, most;
    const Pair* entries;
};
/// Lays out memory for a program; what follows it are the source's variables.
SIMT_EXPORT size_t simt_program_begin() { begin(); return 2 * REGION; }

/// Runs main(). What it came to is said in the journal, and by simt_findings and the like.
SIMT_EXPORT void simt_program(const SimtProgram* given, int argc, char** argv) {
    program.workers = given->workers, program.repeat = given->repeat, program.poison = given->poison, program.patience = given->patience;
    program.listed = given->listed;
    if (const char* end = argc ? std::strrchr(argv[0], '/') : nullptr) folder_of_source.assign(argv[0], static_cast<size_t>(end + 1 - argv[0]));
    program.sample = given->sample, program.seed = given->seed, program.budget = given->budget, program.most = given->most;
    program.stack = (given->stack + 4095) / 4096 * 4096 + STACK_ODD;
    for (u32 i = 0; i < given->pairs; ++i) program.watched[given->entries[i].plain] = given->entries[i].watched;
    begin();
    // What it prints is taken in by another thread, up to a megabyte.
    constexpr int PRINTED = 63;                                  // of the pipe that its output goes to (rooftop/lab/simt/child.py)
    setvbuf(stdout, nullptr, _IOLBF, 1 << 12);
    std::thread reader([] {
        char part[4096];
        for (ssize_t n; (n = read(PRINTED, part, sizeof part)) > 0;)
            if (printed.size() < (1 << 20)) printed.insert(printed.end(), part, part + n);
    });
    std::vector<char> signal_stack(64 << 10);
    stack_t own = {}, old = {};
    own.ss_sp = signal_stack.data(), own.ss_size = signal_stack.size();
    sigaltstack(&own, &old);
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
        struct sigaction action;
        std::memset(&action, 0, sizeof action);
        action.sa_sigaction = host_crashed;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(number, &action, nullptr);
    }
    struct sigaction late;
    std::memset(&late, 0, sizeof late);
    late.sa_sigaction = time_is_over;
    late.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
    sigaction(SIGXCPU, &late, nullptr);
    program.protects = true, program.started = now_seconds();
    if (!setjmp(program.leave)) {
        program.running = true;
        try {
            char* none[] = {nullptr};
            program.status = simt_user_main(argc, argv, none);
        } catch (const std::exception& e) {
            if (Finding* f = found_on_host(HOST, 0)) say(*f, "an exception that the program does not catch: %.150s", e.what());
            program.ended = 2, program.status = 134;
        } catch (...) {
            if (Finding* f = found_on_host(HOST, 0)) say(*f, "an exception that the program does not catch");
            program.ended = 2, program.status = 134;
        }
    }
    program.running = false, program.protects = false;
    Open::depth = 0;
    if (arena && program.device_at) mprotect(arena, (program.device_at + PAGE - 1) / PAGE * PAGE, PROT_READ | PROT_WRITE);
    if (feof(stdin) || std::cin.eof()) put(program.journal, "%s{\"input\":0}", program.journal.empty() ? "" : ",\n");
    fflush(stdout), fflush(stderr);
    std::cout.flush();
    close(1), close(2);
    reader.join();
    sigaltstack(&old, nullptr);
    u64 leaked = 0;
    const Allocation* first = nullptr;
    for (const auto& [at, a] : program.allocations)
        if (!a.freed) leaked += a.bytes, first = first ? first : &a;
    if (first && program.ended == 0)
        if (Finding* f = found_on_host(LEAK, first->pc)) say(*f, "%llu bytes are never freed, the first of them allocated here", static_cast<unsigned long long>(leaked));
    for (const auto& [key, r] : program.repeated) put(program.journal, ",\n{\"times\":%u,\"seen\":%u,\"watched\":%u,\"plain\":%u,\"skipped\":%u,\"late\":%u}", r.record, r.seen, r.watched, r.plain, r.skipped, unsigned(r.late));
    put(program.journal, "%s{\"ended\":%d,\"status\":%d,\"digest\":\"%llx\"}", program.journal.empty() ? "" : ",\n", program.ended, program.status, static_cast<unsigned long long>(program.digest));
    for (const auto& [at, a] : program.allocations) {
        if (program.journal.size() > (4u << 20)) break;
        put(program.journal, ",\n{\"at\":%llu,\"bytes\":%llu,\"pc\":%llu,\"freed\":%llu}", static_cast<unsigned long long>(at), static_cast<unsigned long long>(a.bytes), static_cast<unsigned long long>(a.pc), static_cast<unsigned long long>(a.freed ? a.freed_pc + 1 : 0));
    }
}
SIMT_EXPORT size_t simt_journal(const char** at) {
    *at = program.journal.data();
    return program.journal.size();
}
}
