// What the compiler's instrumentation calls. check.cpp and count.cpp each say before this what they make of it: `seen` of an access that is
// aligned by its type, `seen_parts` of one that is not, `seen_volatile` (`whole`: aligned), `seen_block` of a copy. Code that no simulation
// runs is nobody's.
#pragma once

#define SIMT_SEEN(name, ...) if (__builtin_expect(worker != nullptr, 1)) name(*worker, p, __VA_ARGS__, SIMT_PC())
#define SIMT_HOOK(n, op, writes)                                                                          \
    void __tsan_##op##n(void* p) { SIMT_SEEN(seen<writes>, n); }                                           \
    void __tsan_unaligned_##op##n(void* p) { SIMT_SEEN(seen_parts<writes>, n); }                           \
    void __tsan_volatile_##op##n(void* p) { SIMT_SEEN(seen_volatile<writes>, n, true); }                   \
    void __tsan_unaligned_volatile_##op##n(void* p) { SIMT_SEEN(seen_volatile<writes>, n, false); }
#define SIMT_HOOKS(n) SIMT_HOOK(n, read, false) SIMT_HOOK(n, write, true)

template <bool WRITE>
static void copied(const void* p, size_t n, u64 pc) {
    if (n && worker && worker->current) seen_block<WRITE>(*worker, p, static_cast<u32>(n), pc);
}
extern "C" {
SIMT_HOOKS(1) SIMT_HOOKS(2) SIMT_HOOKS(4) SIMT_HOOKS(8) SIMT_HOOKS(16)
void __tsan_read_range(void* p, size_t n) { SIMT_SEEN(seen_parts<false>, static_cast<u32>(n)); }
void __tsan_write_range(void* p, size_t n) { SIMT_SEEN(seen_parts<true>, static_cast<u32>(n)); }
// Copies that the compiler leaves to the library (clang++ all those of aggregates).
void* __tsan_memcpy(void* to, const void* from, size_t n) {
    copied<false>(from, n, SIMT_PC()), copied<true>(to, n, SIMT_PC());
    return std::memmove(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
    copied<false>(from, n, SIMT_PC()), copied<true>(to, n, SIMT_PC());
    return std::memmove(to, from, n);
}
void* __tsan_memset(void* to, int v, size_t n) {
    copied<true>(to, n, SIMT_PC());
    return std::memset(to, v, n);
}
// Atomics of the host's library, as of shared pointers; those of kernels are calls of their own (atomics.h).
#define SIMT_ATOMIC(n)                                                                                                              \
    u##n __tsan_atomic##n##_load(const volatile u##n* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }                      \
    void __tsan_atomic##n##_store(volatile u##n* p, u##n v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }                      \
    u##n __tsan_atomic##n##_fetch_add(volatile u##n* p, u##n v, int) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }         \
    u##n __tsan_atomic##n##_fetch_sub(volatile u##n* p, u##n v, int) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); }
SIMT_ATOMIC(32) SIMT_ATOMIC(64)
#undef SIMT_ATOMIC
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void** p, void*) { SIMT_SEEN(seen<true>, 8); }   // an object's pointer to its virtual functions
void __tsan_vptr_read(void** p) { SIMT_SEEN(seen<false>, 8); }
}
