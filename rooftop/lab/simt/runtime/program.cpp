// A program that runs as it is: its main() on the host, CUDA's runtime API beneath it, its launches watched or counted (program.h).
#include "program.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <dlfcn.h>
#include <exception>
#include <fstream>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

extern "C" int simt_user_main(int, char**, char**);

namespace simt {
ProgramState program;

double now_seconds() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
[[noreturn]] void leave_program(int how, int status) {
    program.ended = how, program.status = status;
    longjmp(program.leave, 1);
}

// -- what is found in the host's code
// --------------------------------------------------------------------------------------------------------

Finding* found_on_host(Kind kind, u64 pc, u64 other_pc) {
    if ((program.cut || program.left_out) && kind == HOST) return nullptr;             // it works with results that were not calculated
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

void put_text(std::string& to, const char* text) {
    to += '"';
    for (; text && *text; ++text) {
        if (*text == '"' || *text == '\\') to += '\\';
        to += static_cast<unsigned char>(*text) < 32 ? ' ' : *text;
    }
    to += '"';
}
void put(std::string& to, const char* format, ...) {
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
}  // namespace simt

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
            if (in_library(reinterpret_cast<char*>(sp[i]))
                && reinterpret_cast<char*>(sp[i]) >= simt_code) pc = sp[i] - reinterpret_cast<u64>(__ehdr_start);
    }
#else
    (void)context;
#endif
    const char* where = static_cast<const char*>(info->si_addr);
    if (Finding* f = found_on_host(HOST, pc)) {
        if (number == SIGFPE) say(*f, "an integer division by zero in the host's code");
        else if (arena && where >= arena && where < arena + REGION) say(*f,
            "the host's code touches device memory: it must be copied by cudaMemcpy first");
        else say(*f, "the host's code crashes here: %s", where < reinterpret_cast<char*>(4096) ? "a null pointer"
            : "an address that is not its own");
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    Open::depth = 0;
    leave_program(3, 128 + number);
}

// Its CPU time is over while its own code runs; the system says so each second. In a library's code, which may hold a lock, it goes on for
// that long.
static void time_is_over(int, siginfo_t*, void* context) {
#if defined(__x86_64__)
    const char* at = reinterpret_cast<char*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
    if (!program.running || Open::depth || !in_library(at)) return;
    put(program.journal, "%s{\"over\":0,\"host\":%llu}", program.journal.empty() ? "" : ",\n",
        static_cast<unsigned long long>(reinterpret_cast<u64>(at) - reinterpret_cast<u64>(__ehdr_start) + 1));
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
    if (const char* end = argc ? std::strrchr(argv[0], '/') : nullptr) folder_of_source.assign(argv[0],
        static_cast<size_t>(end + 1 - argv[0]));
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
        if (Finding* f = found_on_host(LEAK, first->pc)) say(*f, "%llu bytes are never freed, the first of them allocated here",
            static_cast<unsigned long long>(leaked));
    for (const auto& [key, r] : program.repeated) put(program.journal,
        ",\n{\"times\":%u,\"seen\":%u,\"watched\":%u,\"plain\":%u,\"skipped\":%u,\"late\":%u}", r.record, r.seen, r.watched, r.plain,
        r.skipped, unsigned(r.late));
    put(program.journal, "%s{\"ended\":%d,\"status\":%d,\"digest\":\"%llx\"}", program.journal.empty() ? "" : ",\n", program.ended,
        program.status, static_cast<unsigned long long>(program.digest));
    for (const auto& [at, a] : program.allocations) {
        if (program.journal.size() > (4u << 20)) break;
        put(program.journal, ",\n{\"at\":%llu,\"bytes\":%llu,\"pc\":%llu,\"freed\":%llu}", static_cast<unsigned long long>(at),
            static_cast<unsigned long long>(a.bytes), static_cast<unsigned long long>(a.pc),
            static_cast<unsigned long long>(a.freed ? a.freed_pc + 1 : 0));
    }
}
SIMT_EXPORT size_t simt_journal(const char** at) {
    *at = program.journal.data();
    return program.journal.size();
}
}
