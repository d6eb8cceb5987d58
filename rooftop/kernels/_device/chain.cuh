// Launches that begin before the launch before them in the stream has ended (programmatic dependent launch, from sm_90 on): `chained = true` in a
// kernel's head. docs/head.md, "Launches that begin early", has the rules, which rooftop inspect holds the machine code to.
#pragma once

/// Until every launch before this one has ended and what it wrote is to be seen. Every thread, before its first access of global memory.
__device__ inline void wait_for_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The next launch, where it is chained, may begin once all blocks have said so or ended; it waits for the end of this one all the same. After
/// wait_for_before().
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
