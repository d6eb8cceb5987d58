// What a program calls of the C and C++ libraries, and what it gets in their place (program_build.OWN): an end, time and chance that are
// the same in every run, no files but those it was given, no programs, no network.
#include "program.h"

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <sys/time.h>

std::string simt::folder_of_source;

// A file that it was given (--file): by its name, or by that beside the source.
static std::string beside(const char* name) { return name && *name != '/' ? folder_of_source + name : ""; }
struct Opened : std::filebuf {                                   // on standard input, which is /dev/null, to be read and written
    void* on_nothing(std::ios_base::openmode mode) {
        if (!_M_file.sys_open(stdin, mode)) return nullptr;
        this->_M_allocate_internal_buffer();
        _M_mode = mode, _M_reading = _M_writing = false;
        this->_M_set_buffer(-1);
        return this;
    }
};
static void* open_buffer(std::filebuf* self, const char* name, std::ios_base::openmode mode, u64 pc) {
    if (mode & (std::ios_base::out | std::ios_base::app) && !(mode & std::ios_base::in) && !self->is_open()) {
        named("writes the file", name, pc, "unkept");
        return static_cast<Opened*>(self)->on_nothing(mode);
    }
    void* f = self->open(name, mode);
    if (!f) f = self->open(beside(name).c_str(), mode);
    if (!f) named("opens the file", name, pc);
    return f;
}
// Streams of files are made and opened in the C++ library, where nothing could be said of it.
template <class S>
static void open_stream(S* self, const char* name, std::ios_base::openmode mode, u64 pc) {
    if (open_buffer(self->rdbuf(), name, mode, pc)) self->clear();
    else self->setstate(std::ios_base::failbit);
}
template <class S>
static void make_stream(void* self, const char* name, std::ios_base::openmode mode, u64 pc) {
    open_stream(new (self) S, name, mode, pc);
}

extern "C" {
[[noreturn]] void simt_own_exit(int status) { leave_program(1, status); }
[[noreturn]] void simt_own_quit(int status) { leave_program(1, status); }
[[noreturn]] void simt_own_abort() {
    if (worker && worker->current) trap("abort()");
    if (Finding* f = found_on_host(HOST, SIMT_PC())) say(*f, "the program aborts");
    leave_program(2, 134);
}
// Time, and what is seeded by it, is the same in every run.
static u64 clock_ns = 0;
static u64 tick() { return clock_ns += 1000000; }
time_t simt_own_time(time_t* t) { const time_t v = 1700000000; if (t) *t = v; return v; }
clock_t simt_own_clock() { return worker && worker->current ? static_cast<clock_t>(clock_now()) : static_cast<clock_t>(tick() / 1000); }
int simt_own_clock_gettime(clockid_t, timespec* t) { const u64 v = tick(); t->tv_sec = static_cast<time_t>(1700000000 + v / 1000000000),
    t->tv_nsec = static_cast<long>(v % 1000000000); return 0; }
int simt_own_gettimeofday(timeval* t, void*) { const u64 v = tick(); t->tv_sec = static_cast<time_t>(1700000000 + v / 1000000000),
    t->tv_usec = static_cast<long>(v % 1000000000 / 1000); return 0; }
long long simt_own_system_clock() { return static_cast<long long>(1700000000000000000u + tick()); }
long long simt_own_steady_clock() { return static_cast<long long>(tick()); }
unsigned simt_own_random_device(void*) { return static_cast<unsigned>(tick() / 1000000 * 2654435761u); }
// A kernel's printf and the host's: one text, in the order in which it comes.
int simt_own_vprintf(const char* format, va_list list) {
    char line[1024];
    const int n = vsnprintf(line, sizeof line, format, list);
    fwrite(line, 1, static_cast<size_t>(std::min<int>(n, sizeof line - 1)), stdout);
    return n;
}
int simt_own_printf(const char* format, ...) {
    va_list list;
    va_start(list, format);
    const int n = worker && worker->current ? simt_own_vprintf(format, list) : vprintf(format, list);
    va_end(list);
    return n;
}
int simt_own_system(const char* command) {
    if (command && (!strcasecmp(command, "pause") || !strcasecmp(command, "cls"))) return 0;  // of Windows's console: nothing to do
    named("runs the command", command, SIMT_PC());
    errno = EPERM;
    return -1;
}
void* simt_own_popen(const char* command, const char*) { named("runs the command", command, SIMT_PC()); errno = EPERM; return nullptr; }
int simt_own_fork() { named("starts a process", "", SIMT_PC()); errno = EPERM; return -1; }
int simt_own_socket(int, int, int) { named("opens a socket", "", SIMT_PC()); errno = EPERM; return -1; }
int simt_own_getchar() {                                         // a pause at the end wants no input
    const int c = getc(stdin);
    if (c == EOF) clearerr(stdin);
    return c;
}
unsigned simt_own_sleep(unsigned) { return 0; }
int simt_own_usleep(unsigned) { return 0; }

FILE* simt_own_fopen(const char* name, const char* how) {
    // bytes of a file that it writes, which it may read again; they are no file outside
    constexpr size_t KEPT = size_t(64) << 20;
    static std::map<std::string, std::string> written;
    if (name && how && (*how == 'w' || *how == 'a') && !std::strchr(how, '+')) {
        named("writes the file", name, SIMT_PC(), "unkept");
        std::string& text = written[name];
        if (*how == 'w') text.clear();
        return fopencookie(&text, "w", {nullptr, [](void* to, const char* from, size_t n) {
            if (auto* t = static_cast<std::string*>(to); t->size() + n <= KEPT) t->append(from, n); return static_cast<ssize_t>(n); },
            nullptr, nullptr});
    }
    if (const auto own = name ? written.find(name) : written.end(); own != written.end()
        && !own->second.empty()) return fmemopen(own->second.data(), own->second.size(), "r");
    FILE* f = fopen(name, how);
    if (!f) f = fopen(beside(name).c_str(), how);
    if (!f) named("opens the file", name, SIMT_PC());
    return f;
}
void* simt_own_filebuf_open(std::filebuf* self, const char* name, std::ios_base::openmode mode) {
    return open_buffer(self, name, mode, SIMT_PC()); }
#define SIMT_STREAM(S, more) \
    void simt_own_##S##_of(void* self, const char* name, std::ios_base::openmode m) { make_stream<std::S>(self, name, m | more, SIMT_PC()); } \
    void simt_own_##S##_of_text(void* self, const std::string& name, std::ios_base::openmode m) { make_stream<std::S>(self, name.c_str(), m | more, SIMT_PC()); } \
    void simt_own_##S##_open(std::S* self, const char* name, std::ios_base::openmode m) { open_stream(self, name, m | more, SIMT_PC()); } \
    void simt_own_##S##_open_text(std::S* self, const std::string& name, std::ios_base::openmode m) { open_stream(self, name.c_str(), m | more, SIMT_PC()); }
SIMT_STREAM(ofstream, std::ios_base::out)
SIMT_STREAM(ifstream, std::ios_base::in)
SIMT_STREAM(fstream, std::ios_base::openmode())
}
