// Programmatic dependent launch (PDL, from sm_90 on): a kernel may start before the preceding kernel in the stream has completed. `pdl
// = true` in a kernel's head launches it so. docs/head.md, "Programmatic dependent launch", has the rules; `rooftop inspect` checks the
// machine code against them.
#pragma once

/// cudaGridDependencySynchronize() of CUDA, griddepcontrol.wait of PTX: waits until the preceding kernels have completed and their writes
/// are visible. Every thread calls it before its first access of global memory.
__device__ inline void gdc_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// cudaTriggerProgrammaticLaunchCompletion() of CUDA, griddepcontrol.launch_dependents of PTX: lets the dependent kernel start: the next in
/// the stream, if it is launched by PDL. It starts once all blocks of this kernel have called this or ended; its own gdc_wait() still waits
/// until this kernel has completed. Call it after gdc_wait().
__device__ inline void gdc_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
