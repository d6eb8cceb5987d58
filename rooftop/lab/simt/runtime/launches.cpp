// A program's launches: a launch runs the watched build of its kernel; one that has been watched as often as was asked runs the plain
// build, which has the same results. Once a launch repeats what it did and changes nothing more, it is not run again. Launches by kernels
// run when the launch that made them ends.
#include "program.h"
#include <mutex>

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
            if (const Allocation* held = allocation_of(p)) put(text, "{\"pc\":%llu,\"offset\":%lld,\"bytes\":%llu}",
                static_cast<unsigned long long>(held->pc), static_cast<long long>(p - arena - static_cast<i64>(held->at)),
                static_cast<unsigned long long>(held->bytes));
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

// of a launch that is made elsewhere: bytes, or a place in an allocation
static std::string raw(const LaunchArgument* list, unsigned count) {
    std::string text = "[";
    for (unsigned i = 0; i < count; ++i) {
        const LaunchArgument& a = list[i];
        u64 v = 0;
        if (a.at) std::memcpy(&v, a.at, std::min(8u, a.bytes));
        const char* kind = a.kind == POINTER ? "pointer" : a.kind == REAL ? "real" : a.kind == NUMBER ? "number" : "struct";
        const Allocation* held = a.kind == POINTER ? allocation_of(reinterpret_cast<const char*>(v)) : nullptr;
        put(text, "%s{\"kind\":\"%s\",\"bytes\":%u,\"value\":\"%llx\"", i ? "," : "", kind, a.bytes, static_cast<unsigned long long>(v));
        if (held) put(text, ",\"at\":%llu,\"size\":%llu", static_cast<unsigned long long>(held->at),
            static_cast<unsigned long long>(held->bytes));
        if (held) put(text, ",\"offset\":%lld", static_cast<long long>(reinterpret_cast<const char*>(v) - arena - static_cast<i64>(held->at)));
        text += '}';
    }
    return text + "]";
}

/// What launches have in common that are made again: numbers, and pointers to places in allocations of one line and size, as a loop makes
/// them anew.
static std::string alike(const LaunchArgument* list, unsigned count) {
    std::string text;
    for (unsigned i = 0; i < count; ++i) {
        u64 v = 0;
        if (list[i].kind == POINTER && list[i].at) std::memcpy(&v, list[i].at, std::min(8u, list[i].bytes));
        const char* p = reinterpret_cast<const char*>(v);
        const Allocation* held = v ? allocation_of(p) : nullptr;
        if (held) put(text, "%llu:%llu:%lld/", static_cast<unsigned long long>(held->pc), static_cast<unsigned long long>(held->bytes),
            static_cast<long long>(p - arena - static_cast<i64>(held->at)));
        else if (list[i].at) text.append(static_cast<const char*>(list[i].at), list[i].bytes);
    }
    return text;
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
    static std::mutex lock;
    std::string text = std::string(name) + "<";
    // `const char* simt::shown() [with T = float]`, and what names in it stand for after a semicolon
    for (const char* a : arguments) {
        const char* from = std::strstr(a, " = ");
        std::string one = from ? from + 3 : a;
        one.erase(std::min(one.find("; "), one.rfind(']')));
        text += (text.back() == '<' ? "" : ", ") + one;
    }
    const std::lock_guard<std::mutex> held(lock);                // a kernel may launch too
    return kept.insert(text + ">").first->c_str();
}

/// A launch that is made later, with its arguments as they are now.
static std::function<void()> later(const Given& given, void (*entry)(void**), void* closure, size_t bytes, u64 address,
    const LaunchArgument* list = nullptr, unsigned count = 0) {
    const std::string kept(static_cast<const char*>(closure), bytes);
    std::vector<std::pair<LaunchArgument, std::string>> arguments;
    for (unsigned i = 0; i < count; ++i) arguments.emplace_back(list[i],
        std::string(static_cast<const char*>(list[i].at), list[i].at ? list[i].bytes : 0));
    const auto pointer = given.pointer ? reinterpret_cast<char*>(given.pointer) - static_cast<char*>(closure) : -1;
    return [=]() {
        Given again = given;
        std::string own = kept;
        again.pointer = pointer < 0 ? nullptr : reinterpret_cast<void**>(&own[static_cast<size_t>(pointer)]);
        std::vector<LaunchArgument> now;
        for (const auto& [a, value] : arguments) now.push_back({a.kind, a.at ? value.data() : nullptr, a.bytes, a.is_signed});
        launch(again, entry, &own[0], bytes, now.data(), static_cast<unsigned>(now.size()), address);
    };
}
static constexpr u32 MOST_BY_KERNELS = 2000;                     // launches by kernels: each thread may make one
static std::mutex by_kernels_lock;
static std::vector<std::function<void()>> by_kernels;            // of the launch that runs: they run when it has ended
static void launch_by_kernel(const Given& given, void (*entry)(void**), void* closure, size_t bytes, u64 address) {
    static u32 made = 0;
    const std::lock_guard<std::mutex> held(by_kernels_lock);
    if (++made > MOST_BY_KERNELS) not_simulated("more than 2000 launches by kernels");
    const u64 at = here(reinterpret_cast<void*>(entry));
    for (const auto& [plain, watched] : program.watched)         // the caller may be of either build
        if (watched == at) entry = reinterpret_cast<void (*)(void**)>(__ehdr_start + plain);
    by_kernels.push_back(later(given, entry, closure, bytes, address));
}
static void run_those_by_kernels() {
    const std::vector<std::function<void()>> now = std::move(by_kernels);
    by_kernels.clear();
    for (const auto& step : now) step();
}

cudaError_t launch(Given& given, void (*entry)(void**), void* closure, size_t bytes, const LaunchArgument* arguments, unsigned count,
    unsigned long long address) {
    if (program.launched_at) address = std::exchange(program.launched_at, 0);
    const u64 pc = here(reinterpret_cast<void*>(address));
    if (worker && worker->current) return launch_by_kernel(given, entry, closure, bytes, address), cudaSuccess;
    begin();
    if (program.capturing) {
        program.capturing->push_back(later(given, entry, closure, bytes, address, arguments, count));
        return cudaSuccess;
    }
    if (program.sticky) return failed(program.sticky);
    const u64 threads = u64(given.block.x) * given.block.y * given.block.z, blocks = u64(given.grid.x) * given.grid.y * given.grid.z;
    if (!blocks) return refused(pc, cudaErrorInvalidConfiguration, "a launch of %s with 0 blocks: grid (%u, %u, %u)", given.kernel,
        given.grid.x, given.grid.y, given.grid.z);
    if (!threads || threads > 1024 || given.block.z > 64) return refused(pc, cudaErrorInvalidConfiguration,
        "a launch of %s with %llu threads a block (%u, %u, %u); a block has 1 to 1024", given.kernel,
        static_cast<unsigned long long>(threads), given.block.x, given.block.y, given.block.z);
    if (given.grid.x > 0x7fffffffu || given.grid.y > 65535 || given.grid.z > 65535) return refused(pc, cudaErrorInvalidConfiguration,
        "a launch of %s with a grid of (%u, %u, %u); at most (2147483647, 65535, 65535)", given.kernel, given.grid.x, given.grid.y,
        given.grid.z);
    if (given.shared > SHARED_LIMIT) return refused(pc, cudaErrorInvalidValue,
        "a launch of %s with %zu bytes of dynamic shared memory; a block can have %zu", given.kernel, given.shared, SHARED_LIMIT);
    if (given.shared > static_cast<size_t>(program.opted_in)) return refused(pc, cudaErrorInvalidValue,
        "a launch of %s with %zu bytes of dynamic shared memory: more than 49152 needs cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) first", given.kernel, given.shared);
    if (!given.cluster.x) given.cluster = cluster_of_kernel(given.kernel);
    const dim3 c = given.cluster;
    if (u64(c.x) * c.y * c.z > 16 || given.grid.x % c.x || given.grid.y % c.y || given.grid.z % c.z) return refused(pc,
        cudaErrorInvalidConfiguration, "a launch of %s with a cluster of (%u, %u, %u) in a grid of (%u, %u, %u)", given.kernel, c.x, c.y,
        c.z, given.grid.x, given.grid.y, given.grid.z);
    if (given.cooperative && blocks > u64(132) * static_cast<u64>(simt_resident(static_cast<int>(threads),
        given.shared))) return refused(pc, cudaErrorCooperativeLaunchTooLarge,
        "a cooperative launch of %s with %llu blocks: so many do not run at once on 132 multiprocessors", given.kernel,
        static_cast<unsigned long long>(blocks));

    Open open;
    ++program.done_launches;
    std::string key;
    put(key, "%llu/%p/%p/%u,%u,%u/%u,%u,%u/%zu/", address, reinterpret_cast<void*>(entry), given.pointer ? *given.pointer : nullptr,
        given.grid.x, given.grid.y, given.grid.z, given.block.x, given.block.y, given.block.z, given.shared);
    const std::string raw_arguments(static_cast<const char*>(closure), bytes);
    key += count ? alike(arguments, count) : raw_arguments;
    Repeated& r = program.repeated[key];
    if (r.arguments != raw_arguments) r.arguments = raw_arguments, r.plain = 0, r.settled = false;
    if (!r.seen++ || program.listed) {
        r.record = program.records++;
        std::string& j = program.journal;
        put(j, "%s{\"launch\":%u,\"pc\":%llu,\"kernel\":", j.empty() ? "" : ",\n", r.record, static_cast<unsigned long long>(pc));
        put_text(j, given.kernel);
        put(j, ",\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"shared\":%zu,\"cooperative\":%s,\"cluster\":[%u,%u,%u],\"arguments\":",
            given.grid.x, given.grid.y, given.grid.z, given.block.x, given.block.y, given.block.z, given.shared, given.cooperative ? "true"
            : "false", c.x, c.y, c.z);
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
    // Time is over: launches are left out, for a while in which the program may come to its end; but those of a kernel that was never
    // watched.
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
    const double spent = now_seconds() - program.started - program.library;
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
    l.dynamic = static_cast<u32>(given.shared), l.cooperative = given.cooperative, l.seed = program.seed, l.poison = program.poison,
        l.patience = program.patience;
    l.stack = program.stack;
    l.plain_call = entry;
    l.call = seen == program.watched.end() ? nullptr : reinterpret_cast<void (*)(void**)>(__ehdr_start + seen->second);
    const bool watch = l.call && r.watched < program.repeat && (fresh || spent <= program.most / 2);
    if (!watch) l.call = nullptr;
    l.budget = spent > program.most ? program.budget / 4 : program.budget;
    l.deadline = std::max(program.started + program.library + program.most, now_seconds() + (fresh ? program.budget / 2 : 0));
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
    const u32 grid[3] = {given.grid.x, given.grid.y, given.grid.z}, block[3] = {given.block.x, given.block.y, given.block.z},
        cluster[3] = {c.x, c.y, c.z};
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
    if (!status) return run_those_by_kernels(), cudaSuccess;
    by_kernels.clear();
    if (status == static_cast<int>(OVER)) return over(now_seconds() - program.started - program.library);
    if (status == 2) not_on_the_host("no memory for the threads of a launch");
    for (size_t i = first; i < all_findings.size(); ++i)
        if (all_findings[i].kind == NOT_SIMULATED) leave_program(4, 0);
    program.sticky = all_findings.size() > first && all_findings.back().kind == ASSERT ? cudaErrorAssert : status == 1
        ? cudaErrorIllegalAddress : cudaErrorLaunchFailure;
    return cudaSuccess;                                          // told at the next call, as on a GPU
}
static std::map<const void*, std::pair<const char*, ByAddress>>& by_addresses() {
    static std::map<const void*, std::pair<const char*, ByAddress>> known;
    return known;
}
void know(const void* kernel, const char* name, ByAddress launches) { by_addresses()[kernel] = {name, launches}; }
cudaError_t launch_by_address(const void* kernel, dim3 grid, dim3 block, void** values, size_t shared, bool cooperative,
    unsigned long long address) {
    const auto found = by_addresses().find(kernel);
    if (found == by_addresses().end()) {
        if (Finding* f = found_on_host(NOT_SIMULATED, here(reinterpret_cast<void*>(address)))) say(*f,
            "a launch by an address of which the source does not say what kernel it is");
        leave_program(4, 0);
    }
    program.launched_at = address;
    return found->second.second(kernel, {found->second.first, grid, block, dim3(0, 0, 0), shared, cooperative, nullptr}, values);
}
}  // namespace simt
SIMT_FAR cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** values, size_t shared, cudaStream_t) {
    return launch_by_address(kernel, grid, block, values, shared, false, reinterpret_cast<u64>(__builtin_return_address(0)));
}
SIMT_FAR cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block, void** values, size_t shared, cudaStream_t) {
    return launch_by_address(kernel, grid, block, values, shared, true, reinterpret_cast<u64>(__builtin_return_address(0)));
}

// Of callers that are made for a file (program_caller.py): launches so far; and a fresh start after a fault.
unsigned long long simt_launches() { return program.done_launches; }
void simt_fresh() { program.sticky = program.last = cudaSuccess; }

