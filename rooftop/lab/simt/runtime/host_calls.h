// What host_calls.cpp and program.cpp have of each other.
#pragma once
#include <string>

namespace simt {
extern std::string folder_of_source;                             // with the slash behind it
Finding* found_on_host(Kind kind, u64 pc, u64 other_pc = 0);
[[noreturn]] void leave_program(int how, int status);
void named(const char* what, const char* name, u64 pc, const char* as = "denied");   // what is not as outside, or may not be: denied, unkept, beside
}  // namespace simt
