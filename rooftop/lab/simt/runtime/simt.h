// What every translated source begins with: CUDA's language on the CPU. The engine (engine.cpp) runs what is declared here.
#pragma once
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#define SIMT_INLINE static inline __attribute__((always_inline, unused))
#define SIMT_MEMBER inline __attribute__((always_inline))
#define SIMT_API __attribute__((visibility("hidden")))
#define SIMT_PLAIN __attribute__((no_sanitize("thread")))
#ifdef __clang__   // where threads meet: no path of the code gets a copy of its own
#define SIMT_MEETING SIMT_API __attribute__((convergent))
#else
#define SIMT_MEETING SIMT_API
#endif

#define __CUDA_ARCH__ SIMT_ARCH
#define __CUDACC__ 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __inline_hint__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __nv_pure__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define CUDART_VERSION 13000
#define CUDA_VERSION 13000
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

#include "vectors.h"

namespace simt {
typedef unsigned long long u_long;

// -- the engine's entry points; each call is a place in the user's source, found by its return address --------------

SIMT_API uint3 thread_index() __attribute__((const));
SIMT_API uint3 block_index() __attribute__((const));
SIMT_API dim3 block_extent() __attribute__((const));
SIMT_API dim3 grid_extent() __attribute__((const));
SIMT_API unsigned lane_index() __attribute__((const));
SIMT_API unsigned warp_index() __attribute__((const));
SIMT_API dim3 cluster_extent() __attribute__((const));
SIMT_API unsigned cluster_rank() __attribute__((const));       // of this block in its cluster
SIMT_API bool cooperative() __attribute__((const));
SIMT_INLINE dim3 cluster_index() { const dim3 d = cluster_extent(); const uint3 b = block_index();
    return dim3(b.x / d.x, b.y / d.y, b.z / d.z); }
SIMT_INLINE dim3 cluster_block() { const dim3 d = cluster_extent(); const uint3 b = block_index();
    return dim3(b.x % d.x, b.y % d.y, b.z % d.z); }
SIMT_INLINE dim3 clusters() { const dim3 d = cluster_extent(), g = grid_extent(); return dim3(g.x / d.x, g.y / d.y, g.z / d.z); }

enum Reduce { PLAIN, COUNT, AND, OR };
SIMT_MEETING int block_barrier(int id, int threads, Reduce reduce, int predicate);  // threads: 0, all of the block
SIMT_MEETING void block_arrive(int id, int threads);
SIMT_MEETING void cluster_arrive();
SIMT_MEETING void cluster_wait();
SIMT_MEETING void grid_barrier();
SIMT_API void* cluster_map(const void* shared, unsigned rank);

// A warp's collective: every lane of `mask` hands in the address of its own record; the last to come calls `combine` on all of them.
// `ordered`: it orders memory among the lanes, as __syncwarp does.
struct Group {
    void* record[32];
    unsigned mask;     // the lanes that take part
    unsigned named;    // those that the callers name
};
typedef void (*Combine)(Group&);
SIMT_MEETING void collective(unsigned mask, Combine combine, void* record, bool ordered);
SIMT_API void absent_lane(Group& group, int reader, int source, unsigned mask);
SIMT_MEETING unsigned active_mask();

// Shared memory: a place for each variable, found when it is first met in a launch.
struct SharedSite {
    unsigned launch, offset;
    const char* name;
    unsigned item, extents[4];                                  // bytes of an element; of the array, 0 where it has fewer dimensions
};
template <class T>
constexpr SharedSite shared_site(const char* name) {
    return {0, 0, name, sizeof(std::remove_all_extents_t<T>),
        {std::extent_v<T, 0>, std::extent_v<T, 1>, std::extent_v<T, 2>, std::extent_v<T, 3>}};
}
SIMT_API void* shared_variable(SharedSite& site, unsigned bytes, unsigned align);
SIMT_API void* dynamic_shared();
SIMT_API bool is_shared(const void* p);
SIMT_API unsigned shared_address(const void* p);                // as PTX counts it: from the block's first byte
SIMT_API void* shared_pointer(unsigned address);

enum Memory { SHARED, GLOBAL, LOCAL, OTHER };
SIMT_API Memory memory_of(const void* p);
SIMT_API void note_read(const void* p, unsigned bytes);         // an access that the instrumentation does not see
SIMT_API void note_write(void* p, unsigned bytes);
// kind: 0 read-modify-write, 1 load, 2 store; 4 added: it releases and acquires
SIMT_MEETING void note_atomic(void* p, unsigned bytes, int kind);
SIMT_API bool compare_and_swap(void* p, void* expected, const void* desired, unsigned bytes);
SIMT_API void atomic_load(const void* p, void* to, unsigned bytes);
SIMT_API void note_float(unsigned fma, unsigned other);         // floating operations that are not instructions of the CPU's
SIMT_API void fence();
SIMT_API void pause();                                          // a thread that waits for another lets the others go on
SIMT_API long long clock_now();
SIMT_API void copy_async(void* shared, const void* global, unsigned bytes, unsigned filled);
SIMT_API void copy_commit();
SIMT_API void copy_wait(unsigned groups);                       // until at most `groups` of the newest are under way
SIMT_API void copy_wait_all();
SIMT_API void check_aligned(const void* p, unsigned bytes);      // a fault where the address is not a multiple
SIMT_API void mbarrier_init(void* shared, unsigned count);
SIMT_MEETING u_long mbarrier_arrive(void* shared, unsigned count);   // the phase that it arrives in
SIMT_MEETING bool mbarrier_test(void* shared, u_long phase);         // whether that phase (its last bit) is over; else the others run first
SIMT_API void mbarrier_expect(void* shared, unsigned bytes);       // the open phase ends after so many bytes of store_async as well
SIMT_API void store_async(void* to, const void* data, unsigned bytes, void* shared);  // lands when the phase of the mbarrier ends
SIMT_API void copy_arrive(void* shared, int counted);            // arrives when this thread's copies so far have landed
SIMT_API void assertion(const char* text, const char* function) __attribute__((noreturn));
SIMT_API void trap(const char* what) __attribute__((noreturn));
SIMT_API void not_simulated(const char* what) __attribute__((noreturn));
SIMT_API int print(const char* format, ...) __attribute__((format(printf, 1, 2)));

// -- launching -----------------------------------------------------------------------------------------------------

struct Parameter {
    unsigned bytes, pointer, constant;      // constant: what it points to,
    const char* target;                     // whose type is at the end of this text
};
struct Kernel {
    const Parameter* parameters;
    unsigned count;
    void (*call)(void** values);
};

template <class Target>
constexpr const char* type_text() { return __PRETTY_FUNCTION__; }
template <class A>
constexpr Parameter parameter() {
    using T = std::remove_cv_t<A>;
    return {sizeof(T), std::is_pointer_v<T>, std::is_const_v<std::remove_pointer_t<T>>,
        type_text<std::remove_cv_t<std::remove_pointer_t<T>>>()};
}
template <class... A>
struct Parameters {
    static constexpr Parameter list[sizeof...(A) + 1] = {parameter<A>()..., {0, 0, 0, nullptr}};
};
template <auto F, class... A, size_t... I>
SIMT_PLAIN inline void call_with(void (*)(A...), void** v, std::index_sequence<I...>) {
    F(*static_cast<std::remove_cv_t<std::remove_reference_t<A>>*>(v[I])...);
}
template <auto F, class... A>
SIMT_PLAIN constexpr Kernel kernel(void (*)(A...)) {
    return {Parameters<A...>::list, sizeof...(A), [](void** v) SIMT_PLAIN { call_with<F>(F, v, std::index_sequence_for<A...>{}); }};
}
/// Of a kernel whose source says __cluster_dims__.
#define SIMT_CLUSTER(number, ...) extern "C" __attribute__((visibility("default"))) const unsigned simt_cluster_##number[3] = {__VA_ARGS__};
// Of arguments that are written in C++ (ordinary.py): the type of a kernel's parameter, and a tensor's address in it.
template <class F, int I>
struct Argument;
template <class... A, int I>
struct Argument<void (*)(A...), I> { using type = std::remove_cv_t<std::tuple_element_t<I, std::tuple<A...>>>; };
struct Address {
    void* at;
    template <class T>
    constexpr operator T*() const { return static_cast<T*>(at); }
};
#define SIMT_KERNEL(number, ...) \
    extern "C" __attribute__((visibility("default"))) const simt::Kernel simt_kernel_##number = simt::kernel<(__VA_ARGS__)>(__VA_ARGS__);
}  // namespace simt

#ifndef SIMT_PROGRAM   // a program's host code may have names of its own like these: `translate` knows where they are CUDA's
#define threadIdx (simt::thread_index())
#define blockIdx (simt::block_index())
#define blockDim (simt::block_extent())
#define gridDim (simt::grid_extent())
#define warpSize 32
#else
template <class T, T (*F)()>
struct SimtExtent { SIMT_MEMBER operator T() const { return F(); } };
static constexpr SimtExtent<uint3, simt::thread_index> threadIdx;
static constexpr SimtExtent<uint3, simt::block_index> blockIdx;
static constexpr SimtExtent<dim3, simt::block_extent> blockDim;
static constexpr SimtExtent<dim3, simt::grid_extent> gridDim;
static constexpr int warpSize = 32;
#endif

#ifdef SIMT_PROGRAM
#define SIMT_ASSERT(...) ((__VA_ARGS__) ? void(0) : simt::on_host() ? simt::host_assertion(#__VA_ARGS__) : simt::assertion(#__VA_ARGS__, __func__))
#else
#define SIMT_ASSERT(...) ((__VA_ARGS__) ? void(0) : simt::assertion(#__VA_ARGS__, __func__))
#define printf(...) simt::print(__VA_ARGS__)
#endif
#undef assert
#define assert(...) SIMT_ASSERT(__VA_ARGS__)
#define __trap() simt::trap("__trap()")
#define __brkpt() simt::trap("__brkpt()")

#include "refused.h"
#include "warp.h"
#include "atomics.h"
#include "arithmetic.h"
#include "ptx.h"
#ifdef SIMT_PROGRAM
#define __CUDA_RUNTIME_H__   // helpers of CUDA's samples ask for these
#define __DRIVER_TYPES_H__
#include "runtime_api.h"
#endif
