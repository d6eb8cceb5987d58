// A program's memory: device memory lies in the arena, in two parts: what only the device may touch, which the host cannot read while it
// runs, and what both may (managed, pinned). Copies and fills are checked against the allocations that they touch.
#include "program.h"

extern "C" {
void* simt_arena(size_t bytes);
void simt_mark(size_t at, u_int item, u_int dims, const unsigned long* shape, const unsigned long* strides, u_int bits);
void simt_forget_range(size_t at, size_t bytes);
}

namespace simt {
static constexpr size_t GAP_BYTES = 4096;
static constexpr size_t LARGEST_ALLOCATION = size_t(4) << 30;    // bytes: what a host can fill, too

void begin() {
    if (arena) return;
    simt_arena(2 * REGION);
    if (!arena) not_on_the_host("no address space for device memory");
}
u32 Open::depth = 0;

void mark(u64 from, u64 bytes, u32 bits) {
    if (!bytes) return;
    const unsigned long shape = bytes, stride = 1;
    simt_mark(from, 1, 1, &shape, &stride, bits);
}
Allocation* allocation_of(const void* p) {
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
    if (bytes > LARGEST_ALLOCATION && bytes <= REGION
        && !program.listed) not_on_the_host("an allocation of more than 4 GiB: give the program smaller sizes");
    if (bytes > REGION || at + bytes + GAP_BYTES > first + REGION) return failed(cudaErrorMemoryAllocation);
    Open open;
    used = at - first + bytes;
    Open::set(PROT_READ | PROT_WRITE);
    program.allocations[at] = {at, bytes, pc, 0, kind, false};
    if (!program.listed) mark(at, bytes, kind == cudaMemoryTypeDevice ? 2 | 4 : 1 | 2 | 4);      // the host fills what it can reach unseen
    if (kind == cudaMemoryTypeDevice && !program.listed && bytes <= (64u << 20)) std::memset(arena + at, static_cast<int>(program.poison),
        bytes);
    ++program.changes;
    *p = arena + at;
    return cudaSuccess;
}
static cudaError_t release(void* p, u64 pc) {
    if (!p) return cudaSuccess;
    Allocation* a = allocation_of(p);
    if (!a || static_cast<char*>(p) != arena + a->at || a->freed) {
        if (Finding* f = found_on_host(HOST, pc, a && a->freed ? a->freed_pc : 0)) say(*f, a && a->freed ? "memory is freed twice" : a
            ? "a pointer into the middle of an allocation is freed" : "memory is freed that CUDA has not allocated");
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
            else say(*f, "%s of %zu bytes %s an allocation of %llu bytes%s", what, bytes, direction,
                static_cast<unsigned long long>(a->bytes), at == arena + a->at ? "" : ", from the middle of it");
        }
        return false;
    }
    if (device && p >= arena && p < arena_end) return false;
    if (device) {
        if (Finding* f = found_on_host(HOST, pc)) say(*f, "%s of %zu bytes %s device memory: the pointer is %s", what, bytes, direction, p
            ? "none of CUDA's" : "null");
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
    put(program.journal, "%s{\"%s\":{\"pc\":%llu,\"offset\":%lld,\"bytes\":%llu},\"size\":%zu,\"value\":%d}", program.journal.empty() ? ""
        : ",\n", what,
        a ? static_cast<unsigned long long>(a->pc) : 0ull, a
            ? static_cast<long long>(static_cast<const char*>(to) - arena - static_cast<i64>(a->at)) : 0ll,
        a ? static_cast<unsigned long long>(a->bytes) : 0ull, bytes, v);
}
cudaError_t copy(void* to, const void* from, size_t bytes, int kind, u64 pc, const char* what) {
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
        if (Finding* f = found_on_host(HOST, pc)) say(*f, "%s: %s is device memory, but the direction given says that it is the host's",
            what, !to_device && a && a->kind == cudaMemoryTypeDevice ? "the destination" : "the source");
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

SIMT_FAR cudaError_t simt_malloc(void** p, size_t bytes, int kind) { return allocate(p, bytes, kind, SIMT_PC()); }
SIMT_FAR cudaError_t cudaFree(void* p) { return release(p, SIMT_PC()); }
SIMT_FAR cudaError_t cudaFreeHost(void* p) { return release(p, SIMT_PC()); }
SIMT_FAR cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind kind) {
    return copy(to, from, n, kind, SIMT_PC(), "cudaMemcpy"); }
SIMT_FAR cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind kind, cudaStream_t) {
    return copy(to, from, n, kind, SIMT_PC(), "cudaMemcpyAsync"); }
SIMT_FAR cudaError_t cudaMemset(void* p, int v, size_t n) { return fill(p, v, n, SIMT_PC()); }
SIMT_FAR cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t) { return fill(p, v, n, SIMT_PC()); }
SIMT_FAR cudaError_t cudaMemcpy2D(void* to, size_t tp, const void* from, size_t fp, size_t width, size_t height, cudaMemcpyKind kind) {
    const u64 pc = SIMT_PC();
    if (width > tp || width > fp) return failed(cudaErrorInvalidPitchValue);
    for (size_t y = 0; y < height; ++y)
        if (const cudaError_t e = copy(static_cast<char*>(to) + y * tp, static_cast<const char*>(from) + y * fp, width, kind, pc,
            "cudaMemcpy2D")) return e;
    return cudaSuccess;
}
SIMT_FAR cudaError_t cudaMemset2D(void* p, size_t pitch, int v, size_t width, size_t height) {
    const u64 pc = SIMT_PC();
    for (size_t y = 0; y < height; ++y)
        if (const cudaError_t e = fill(static_cast<char*>(p) + y * pitch, v, width, pc)) return e;
    return cudaSuccess;
}
SIMT_FAR cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p) { return copy_3d(p, SIMT_PC()); }
cudaError_t simt::copy_3d(const cudaMemcpy3DParms* p, u64 pc) {
    if (p->srcArray || p->dstArray) not_on_the_host("cudaMemcpy3D of an array: textures and arrays");
    const auto at = [](const cudaPitchedPtr& x, const cudaPos& o, size_t y, size_t z) {
        return static_cast<char*>(x.ptr) + ((o.z + z) * x.ysize + o.y + y) * x.pitch + o.x; };
    for (size_t z = 0; z < p->extent.depth; ++z)
        for (size_t y = 0; y < p->extent.height; ++y)
            if (const cudaError_t e = copy(at(p->dstPtr, p->dstPos, y, z), at(p->srcPtr, p->srcPos, y, z), p->extent.width, p->kind, pc,
                "cudaMemcpy3D")) return e;
    return cudaSuccess;
}
SIMT_FAR cudaError_t simt_symbol(const void* symbol, size_t size, size_t offset, void* at, const void* from, size_t bytes) {
    const u64 pc = SIMT_PC();
    begin();
    if (program.listed) list_write("copied", nullptr, bytes, 0);
    char* place = const_cast<char*>(static_cast<const char*>(symbol)) + offset;
    if (offset + bytes > size) {
        if (Finding* f = found_on_host(HOST, pc)) say(*f, "a copy of %zu bytes at offset %zu %s a variable of %zu bytes", bytes, offset, at
            ? "from" : "to", size);
        return failed(cudaErrorInvalidValue);
    }
    Open open;
    if (at) std::memcpy(at, place, bytes);
    else std::memcpy(place, from, bytes);
    if (at && !allocation_of(at)) digest_of(at, bytes);
    ++program.changes;
    return cudaSuccess;
}
SIMT_FAR cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
    not_on_the_host("cudaHostRegister: memory of the host's that a kernel reads"); (void)p, (void)bytes; }
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

