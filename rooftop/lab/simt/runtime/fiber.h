// One fiber is one CUDA thread: a stack of its own and the point at which it stopped.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && !defined(SIMT_UCONTEXT)
// Saves what the System V ABI lets a callee change, stores the stack pointer at *save and goes on at `load`.
extern "C" void simt_switch(void** save, void* load) __attribute__((visibility("hidden")));
#ifdef SIMT_SWITCH
asm(R"(
.text
.globl simt_switch
.hidden simt_switch
.type simt_switch, @function
simt_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size simt_switch, .-simt_switch
)");
#endif
// The stack pointer of a fiber that will begin in `entry` on the stack that ends at `top`.
inline void* simt_begin(char*, char* top, void (*entry)()) {
    void** sp = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(63));
    *--sp = nullptr;                               // where `entry` would return to: it does not
    *--sp = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--sp = nullptr;
    return sp;
}
#else
#include <ucontext.h>
// Elsewhere: slower, with a context at the lower end of each stack. `save` and `load` are addresses of contexts.
inline void simt_switch(void** save, void* load) {
    ucontext_t here;
    *save = &here;
    swapcontext(&here, static_cast<ucontext_t*>(load));
}
inline void* simt_begin(char* bottom, char* top, void (*entry)()) {
    ucontext_t* context = reinterpret_cast<ucontext_t*>((reinterpret_cast<uintptr_t>(bottom) + 127) & ~uintptr_t(63));
    getcontext(context);
    context->uc_stack.ss_sp = context + 1;
    context->uc_stack.ss_size = top - reinterpret_cast<char*>(context + 1);
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    return context;
}
#endif
