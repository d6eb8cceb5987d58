// Programmatic dependent launch (PDL, from sm_90 on): a kernel may start before the previous launch in the stream has ended. `chained = true` in a
// kernel's head switches it on. docs/head.md, "Programmatic dependent launch", has the rules; `rooftop inspect` checks the machine code against them.
#pragma once

/// cudaGridDependencySynchronize() of CUDA, griddepcontrol.wait of PTX: waits until the launches before this one have ended and their writes are visible.
/// Every thread calls it before its first access of global memory.
__device__ inline void wait_for_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// cudaTriggerProgrammaticLaunchCompletion() of CUDA, griddepcontrol.launch_dependents of PTX: lets the next launch start early, if that one is chained. It
/// starts once all blocks of this launch have called this or ended, and its own wait_for_before() still waits until this launch has ended. Call it after
/// wait_for_before().
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
