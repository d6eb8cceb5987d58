// CUDA that the simulator knows by name alone: a source that uses it is taken, and stops where it would do it.
#pragma once

typedef unsigned long long cudaTextureObject_t, cudaSurfaceObject_t;
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
#ifndef SIMT_PROGRAM
enum cudaError_t { cudaSuccess };
#endif
enum cudaSurfaceBoundaryMode { cudaBoundaryModeZero, cudaBoundaryModeClamp, cudaBoundaryModeTrap };

namespace simt {
struct Nothing {                    // of any type, as what is not there may be
    template <class T>
    SIMT_MEMBER operator T() const { return T{}; }
};
}  // namespace simt
#define SIMT_REFUSED(name, what)                                                                                        \
    template <class T = simt::Nothing, class... A>                                                                      \
    SIMT_INLINE T name(const A&...) { simt::not_simulated(#name ": " what); }
#define SIMT_VIDEO(name) SIMT_REFUSED(__v##name##2, "SIMD within a word") SIMT_REFUSED(__v##name##4, "SIMD within a word")
SIMT_REFUSED(tex1D, "textures") SIMT_REFUSED(tex2D, "textures") SIMT_REFUSED(tex3D, "textures") SIMT_REFUSED(tex1Dfetch, "textures")
SIMT_REFUSED(tex1DLayered, "textures") SIMT_REFUSED(tex2DLayered, "textures") SIMT_REFUSED(tex2DLod, "textures") SIMT_REFUSED(tex2Dgather,
    "textures")
SIMT_REFUSED(texCubemap, "textures") SIMT_REFUSED(surf1Dread, "surfaces") SIMT_REFUSED(surf2Dread, "surfaces") SIMT_REFUSED(surf3Dread,
    "surfaces")
SIMT_REFUSED(surf1Dwrite, "surfaces") SIMT_REFUSED(surf2Dwrite, "surfaces") SIMT_REFUSED(surf3Dwrite, "surfaces")
SIMT_VIDEO(add) SIMT_VIDEO(sub) SIMT_VIDEO(neg) SIMT_VIDEO(addss) SIMT_VIDEO(addus) SIMT_VIDEO(subss) SIMT_VIDEO(subus) SIMT_VIDEO(avgs) SIMT_VIDEO(avgu)
SIMT_VIDEO(haddu) SIMT_VIDEO(abs) SIMT_VIDEO(absss) SIMT_VIDEO(absdiffs) SIMT_VIDEO(absdiffu) SIMT_VIDEO(maxs) SIMT_VIDEO(maxu) SIMT_VIDEO(mins)
SIMT_VIDEO(minu) SIMT_VIDEO(sads) SIMT_VIDEO(sadu) SIMT_VIDEO(cmpeq) SIMT_VIDEO(cmpne) SIMT_VIDEO(cmpgts) SIMT_VIDEO(cmpgtu) SIMT_VIDEO(cmplts)
SIMT_VIDEO(cmpltu) SIMT_VIDEO(cmpges) SIMT_VIDEO(cmpgeu) SIMT_VIDEO(cmples) SIMT_VIDEO(cmpleu) SIMT_VIDEO(seteq) SIMT_VIDEO(setne)
SIMT_REFUSED(__dp2a_lo, "dot products of 16 and 8 bits") SIMT_REFUSED(__dp2a_hi, "dot products of 16 and 8 bits")
#undef SIMT_VIDEO
#undef SIMT_REFUSED
SIMT_INLINE void cudaGridDependencySynchronize() {}            // a launch here begins when the one before it has ended
SIMT_INLINE void cudaTriggerProgrammaticLaunchCompletion() {}
