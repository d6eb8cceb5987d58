// What a launch says and what ends it: findings, printed text, assertions, crashes.
#include "scheduler.h"

#include <csignal>
#include <ucontext.h>

namespace simt {

// -- findings ----------------------------------------------------------------------------------------------------------------

static void put(u32 (&to)[3], const uint3& v) { to[0] = v.x, to[1] = v.y, to[2] = v.z; }

Finding* report(Worker& w, const Fiber& f, Kind kind, u64 pc, u64 other_pc) {
    // its code is another build's, with barriers in several copies
    if (w.plain && (kind == BARRIER_DIVERGENCE || kind == ABSENT_LANE)) return nullptr;
    const u64 key = (pc * 0x9e3779b97f4a7c15u) ^ (other_pc * 0xc2b2ae3d27d4eb4fu) ^ kind;
    const auto [at, fresh] = w.known.emplace(key, static_cast<u32>(w.findings.size()));
    if (!fresh) {
        ++w.findings[at->second].count;
        return nullptr;
    }
    if (w.findings.size() >= 4096) {
        w.known.erase(at);
        return nullptr;
    }
    Finding& found = w.findings.emplace_back();
    std::memset(&found, 0, sizeof found);
    found.kind = kind, found.pc = pc, found.other_pc = other_pc, found.count = 1;
    put(found.block, f.block->index);
    put(found.thread, f.tid);
    return &found;
}

void other_thread(Finding& found, const Fiber& f) {
    put(found.other_block, f.block->index);
    put(found.other_thread, f.tid);
    found.has_other = 1;
}

void say(Finding& found, const char* format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(found.text, sizeof found.text, format, list);
    va_end(list);
}

[[noreturn]] void die(Worker& w) {
    u32 none = 0;
    w.launch->stop.compare_exchange_strong(none, 1);
    Fiber* f = w.current;
    simt_switch(&f->sp, w.main);
    __builtin_unreachable();
}

// -- what ends a launch
// ---------------------------------------------------------------------------------------------------------------------

static void stop_with(Kind kind, u64 pc, const char* text) {
    Worker& w = *worker;
    if (Finding* found = report(w, *w.current, kind, pc)) say(*found, "%s", text);
    die(w);
}
void stop_at(u64 pc, const char* text) {
    stop_with(ASSERT, pc, text);
    __builtin_unreachable();
}
__attribute__((noinline)) void assertion(const char* text, const char* function) {
    char line[180];
    snprintf(line, sizeof line, "assert(%s) does not hold in %s", text, function);
    stop_with(ASSERT, SIMT_PC(), line);
    __builtin_unreachable();
}
__attribute__((noinline)) void trap(const char* what) {
    stop_with(ASSERT, SIMT_PC(), what);
    __builtin_unreachable();
}
__attribute__((noinline)) void not_simulated(const char* what) {
    stop_with(NOT_SIMULATED, SIMT_PC(), what);
    __builtin_unreachable();
}

static std::mutex printing;
std::vector<char> printed;
int print(const char* format, ...) {
    char line[1024];
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    std::lock_guard<std::mutex> lock(printing);
    if (printed.size() < (1 << 20)) printed.insert(printed.end(), line, line + std::min<int>(n, sizeof line - 1));
    return n;
}

// -- crashes: what a thread does to its own stack, or a division by zero, ends the launch and not the process -----------------------------

static constexpr int SIGNALS[] = {SIGSEGV, SIGILL, SIGBUS, SIGFPE, SIGTRAP};
static struct sigaction before[5];
static std::mutex signalling;
static u32 catching;

static void crashed(int number, siginfo_t*, void* context) {
    Worker* w = worker;
    if (!w || !w->current) {              // not ours: as if nobody had caught it
        signal(number, SIG_DFL);
        return;
    }
    if (w->current->overran && number != SIGFPE) die(*w);
    u64 pc = w->current->last;
#if defined(__x86_64__)
    const u64 at = static_cast<u64>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]) - reinterpret_cast<u64>(__ehdr_start);
    if (at < static_cast<u64>(_end - __ehdr_start)) pc = at + 1;
#else
    (void)context;
#endif
    if (Finding* found = report(*w, *w->current, number == SIGFPE ? ASSERT : OUT_OF_BOUNDS, pc)) {
        found->space = LOCAL;
        say(*found, "%s", number == SIGFPE ? "an integer division by zero: on a GPU its result is unspecified"
            : "the thread crashes here: it has overwritten its own stack, or gone where no code is");
    }
    die(*w);
}

// -- endless loops
// --------------------------------------------------------------------------------------------------------------------------- A loop
// without accesses never comes by the engine. So another thread looks at how much CPU time a worker has spent since any of its threads
// returned or met others; where that is too much, it sends the worker a signal until this finds it in the kernel's own code, which holds no
// lock.

static constexpr u32 OF_MEETINGS = 10;        // times the patience: threads that meet again and again, of which none returns

static double seconds_of(clockid_t clock) {
    timespec t = {};
    clock_gettime(clock, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

static void endless(Worker& w, const Fiber& f, u64 pc) {
    if (Finding* found = report(w, f, DEADLOCK, pc)) {
        const char* what = w.overdue & 1 ? "returned or met others at a barrier" : "returned";
        say(*found, "an endless loop? In %u s of CPU time no thread here has %s (ROOFTOP_SIMT_PATIENCE gives longer)", w.overdue >> 1,
            what);
    }
    w.overdue = 0;
    w.launch->stop = ENDLESS;
}
static void end_overdue(Worker& w, u64 address) {
    if (address < reinterpret_cast<u64>(simt_code) || address >= reinterpret_cast<u64>(simt_code_end) || w.combining) return;
    endless(w, *w.current, address + 1 - reinterpret_cast<u64>(__ehdr_start));
    die(w);
}
void end_overdue_at(Worker& w, const Fiber& f) { endless(w, f, f.state != READY ? f.pc : f.trace.empty() ? f.last : f.trace.back().site); }

static void interrupted(int, siginfo_t*, void* context) {
    Worker* w = worker;
    if (!w || !w->current || !w->overdue) return;
#if defined(__x86_64__)
    w->end_overdue(*w, static_cast<u64>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]));
#elif defined(__aarch64__)
    w->end_overdue(*w, static_cast<u64>(static_cast<ucontext_t*>(context)->uc_mcontext.pc));
#else
    (void)context;
#endif
}

Watch::Watch(Launch& l) : launch(l) {
    struct sigaction action;
    std::memset(&action, 0, sizeof action);
    // it stays: it does nothing to threads that are no workers, and the signal is ignored by default
    action.sa_sigaction = interrupted;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_NODEFER;    // it may not return
    sigaction(SIGURG, &action, nullptr);
    thread = std::thread([this] { look(); });
}
Watch::~Watch() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        over = true;
    }
    ends.notify_one();
    thread.join();
}
void Watch::add(Worker& w) {
    Watched one = {&w, pthread_self(), {}, 0, 0, 0, 0};
    if (pthread_getcpuclockid(one.thread, &one.clock)) return;
    one.advanced_at = one.returned_at = seconds_of(one.clock);
    w.end_overdue = end_overdue;
    std::lock_guard<std::mutex> lock(mutex);
    watched.push_back(one);
}
void Watch::remove(const Worker& w) {
    std::lock_guard<std::mutex> lock(mutex);
    watched.erase(std::remove_if(watched.begin(), watched.end(), [&](const Watched& one) { return one.worker == &w; }), watched.end());
}
void Watch::look() {
    std::unique_lock<std::mutex> lock(mutex);
    bool asked = false;
    while (!ends.wait_for(lock, std::chrono::milliseconds(asked ? 2 : 250), [this] { return over; })) {
        asked = false;
        for (Watched& one : watched) {
            const double now = seconds_of(one.clock);
            const u64 advanced = __atomic_load_n(&one.worker->advanced, __ATOMIC_RELAXED),
                returned = __atomic_load_n(&one.worker->returned, __ATOMIC_RELAXED);
            if (advanced != one.advanced) one.advanced = advanced, one.advanced_at = now;
            if (returned != one.returned) one.returned = returned, one.returned_at = now;
            const double still = now - one.advanced_at, none = now - one.returned_at;
            const u32 spent = still > launch.patience ? static_cast<u32>(still) << 1 | 1 : none > OF_MEETINGS * launch.patience
                ? static_cast<u32>(none) << 1 : 0;
            __atomic_store_n(&one.worker->overdue, spent, __ATOMIC_RELAXED);
            if (spent) asked = true, pthread_kill(one.thread, SIGURG);
        }
    }
}

void catch_crashes(bool begins) {
    std::lock_guard<std::mutex> lock(signalling);
    if (begins ? catching++ : --catching) return;
    for (int i = 0; i < 5; ++i) {
        struct sigaction action;
        std::memset(&action, 0, sizeof action);
        action.sa_sigaction = crashed;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        if (begins) sigaction(SIGNALS[i], &action, &before[i]);
        else sigaction(SIGNALS[i], &before[i], nullptr);
    }
}
}  // namespace simt
