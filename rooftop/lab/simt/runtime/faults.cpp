// What a launch says and what ends it: findings, printed text, assertions, crashes.
#include "scheduler.h"

#include <csignal>
#include <ucontext.h>

namespace simt {

// -- findings ----------------------------------------------------------------------------------------------------------------

static void put(u32 (&to)[3], const uint3& v) { to[0] = v.x, to[1] = v.y, to[2] = v.z; }

Finding* report(Worker& w, const Fiber& f, Kind kind, u64 pc, u64 other_pc) {
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

void other_thread(Worker& w, Finding& found, u32 number) {
    const Fiber& f = w.unit->fibers[number];
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
    w.launch->stop = 1;
    Fiber* f = w.current;
    simt_switch(&f->sp, w.main);
    __builtin_unreachable();
}

// -- what ends a launch ---------------------------------------------------------------------------------------------------------------------

static void stop_with(Kind kind, u64 pc, const char* text) {
    Worker& w = *worker;
    if (Finding* found = report(w, *w.current, kind, pc)) say(*found, "%s", text);
    die(w);
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
    u64 pc = w->current->last;
#if defined(__x86_64__)
    const u64 at = static_cast<u64>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]) - reinterpret_cast<u64>(&__ehdr_start);
    if (at < static_cast<u64>(&_end - &__ehdr_start)) pc = at + 1;
#else
    (void)context;
#endif
    if (Finding* found = report(*w, *w->current, number == SIGFPE ? ASSERT : OUT_OF_BOUNDS, pc)) {
        found->space = LOCAL;
        say(*found, "%s", number == SIGFPE ? "an integer division by zero: on a GPU its result is unspecified" : "the thread crashes here: it has overwritten its own stack, or gone where no code is");
    }
    die(*w);
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
