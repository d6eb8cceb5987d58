// Atomic operations on every type of 1 to 16 bytes: a loop of compare-and-swap on the memory itself.
#pragma once

namespace simt {

template <class T>
SIMT_INLINE T atomic_get(const T* p) {
    T v;
    atomic_load(p, &v, sizeof(T));
    return v;
}
/// *p = f(*p) at once; returns what was there.
template <class T, class F>
SIMT_INLINE T atomic_update(T* p, int kind, F f) {
    note_atomic(const_cast<std::remove_cv_t<T>*>(p), sizeof(T), kind);
    T old, next;
    atomic_load(p, &old, sizeof(T));
    do next = f(old);
    while (!compare_and_swap(const_cast<std::remove_cv_t<T>*>(p), &old, &next, sizeof(T)));
    return old;
}
template <class T>
struct Same { using type = T; };
template <class T>
using same = typename Same<T>::type;   // takes no part in deduction
}  // namespace simt

#define SIMT_ATOMIC(name, expression)                                                                                        \
    template <class T>                                                                                                       \
    SIMT_INLINE T name(T* p, simt::same<T> v) { return simt::atomic_update(p, 0, [v](T old) -> T { return expression; }); }    \
    template <class T>                                                                                                       \
    SIMT_INLINE T name##_block(T* p, simt::same<T> v) { return simt::atomic_update(p, 0, [v](T old) -> T { return expression; }); } \
    template <class T>                                                                                                       \
    SIMT_INLINE T name##_system(T* p, simt::same<T> v) { return simt::atomic_update(p, 0, [v](T old) -> T { return expression; }); }
SIMT_ATOMIC(atomicAdd, old + v)
SIMT_ATOMIC(atomicSub, old - v)
SIMT_ATOMIC(atomicExch, v)
SIMT_ATOMIC(atomicMin, v < old ? v : old)
SIMT_ATOMIC(atomicMax, old < v ? v : old)
SIMT_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
SIMT_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
SIMT_ATOMIC(atomicAnd, old & v)
SIMT_ATOMIC(atomicOr, old | v)
SIMT_ATOMIC(atomicXor, old ^ v)
#undef SIMT_ATOMIC
// Of vectors in global memory: each of their numbers for itself.
SIMT_INLINE float2 atomicAdd(float2* p, float2 v) { return {atomicAdd(&p->x, v.x), atomicAdd(&p->y, v.y)}; }
SIMT_INLINE float4 atomicAdd(float4* p, float4 v) {
    return {atomicAdd(&p->x, v.x), atomicAdd(&p->y, v.y), atomicAdd(&p->z, v.z), atomicAdd(&p->w, v.w)}; }
template <class T>
SIMT_INLINE T atomicCAS(T* p, simt::same<T> expected, simt::same<T> desired) {
    simt::note_atomic(p, sizeof(T), 0);
    T old = expected;
    simt::compare_and_swap(p, &old, &desired, sizeof(T));
    return old;
}
template <class T>
SIMT_INLINE T atomicCAS_block(T* p, simt::same<T> e, simt::same<T> d) { return atomicCAS(p, e, d); }
template <class T>
SIMT_INLINE T atomicCAS_system(T* p, simt::same<T> e, simt::same<T> d) { return atomicCAS(p, e, d); }
