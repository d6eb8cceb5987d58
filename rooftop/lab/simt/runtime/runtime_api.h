// CUDA's runtime API for a program that runs as it is (program.cpp): memory, streams, events, attributes; and the launches of its host code.
#pragma once
#include <chrono>
#include <iostream>
#include <random>
#include <string>
#include <vector>

enum cudaError_t {
    cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInitializationError = 3, cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidPitchValue = 12, cudaErrorInvalidSymbol = 13, cudaErrorInvalidDevicePointer = 17, cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35, cudaErrorNoDevice = 100, cudaErrorInvalidDevice = 101, cudaErrorInvalidKernelImage = 200,
    cudaErrorInvalidResourceHandle = 400, cudaErrorNotReady = 600, cudaErrorIllegalAddress = 700, cudaErrorLaunchOutOfResources = 701,
    cudaErrorPeerAccessAlreadyEnabled = 704, cudaErrorAssert = 710, cudaErrorHostMemoryAlreadyRegistered = 712, cudaErrorLaunchFailure = 719,
    cudaErrorCooperativeLaunchTooLarge = 720, cudaErrorNotSupported = 801, cudaErrorUnknown = 999
};
typedef cudaError_t cudaError;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual };
enum cudaSharedMemConfig { cudaSharedMemBankSizeDefault, cudaSharedMemBankSizeFourByte, cudaSharedMemBankSizeEightByte };
enum cudaLimit { cudaLimitStackSize, cudaLimitPrintfFifoSize, cudaLimitMallocHeapSize, cudaLimitDevRuntimeSyncDepth, cudaLimitPersistingL2CacheSize };
enum cudaMemoryAdvise {
    cudaMemAdviseSetReadMostly = 1, cudaMemAdviseUnsetReadMostly, cudaMemAdviseSetPreferredLocation, cudaMemAdviseUnsetPreferredLocation,
    cudaMemAdviseSetAccessedBy, cudaMemAdviseUnsetAccessedBy
};
enum cudaComputeMode { cudaComputeModeDefault, cudaComputeModeExclusive, cudaComputeModeProhibited, cudaComputeModeExclusiveProcess };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9, cudaFuncAttributeNonPortableClusterSizeAllowed = 14 };
enum cudaSharedCarveout { cudaSharedmemCarveoutDefault = -1, cudaSharedmemCarveoutMaxShared = 100, cudaSharedmemCarveoutMaxL1 = 0 };
enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1, cudaDevAttrMaxBlockDimX, cudaDevAttrMaxBlockDimY, cudaDevAttrMaxBlockDimZ, cudaDevAttrMaxGridDimX, cudaDevAttrMaxGridDimY,
    cudaDevAttrMaxGridDimZ, cudaDevAttrMaxSharedMemoryPerBlock, cudaDevAttrTotalConstantMemory, cudaDevAttrWarpSize, cudaDevAttrMaxPitch,
    cudaDevAttrMaxRegistersPerBlock, cudaDevAttrClockRate, cudaDevAttrTextureAlignment, cudaDevAttrGpuOverlap, cudaDevAttrMultiProcessorCount,
    cudaDevAttrKernelExecTimeout, cudaDevAttrIntegrated, cudaDevAttrCanMapHostMemory, cudaDevAttrComputeMode, cudaDevAttrConcurrentKernels = 31,
    cudaDevAttrEccEnabled, cudaDevAttrPciBusId, cudaDevAttrPciDeviceId, cudaDevAttrAsyncEngineCount = 40, cudaDevAttrGlobalL1CacheSupported = 79,
    cudaDevAttrLocalL1CacheSupported = 80, cudaDevAttrHostNativeAtomicSupported = 86, cudaDevAttrSingleToDoublePrecisionPerfRatio = 87,
    cudaDevAttrComputePreemptionSupported = 90, cudaDevAttrCanUseHostPointerForRegisteredMem = 91, cudaDevAttrMaxBlocksPerMultiprocessor = 106,
    cudaDevAttrMaxPersistingL2CacheSize = 108, cudaDevAttrReservedSharedMemoryPerBlock = 111, cudaDevAttrHostRegisterSupported = 99,
    cudaDevAttrMemoryClockRate = 36, cudaDevAttrGlobalMemoryBusWidth = 37, cudaDevAttrL2CacheSize = 38, cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrUnifiedAddressing = 41, cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76, cudaDevAttrStreamPrioritiesSupported = 78,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81, cudaDevAttrMaxRegistersPerMultiprocessor = 82, cudaDevAttrManagedMemory = 83,
    cudaDevAttrPageableMemoryAccess = 88, cudaDevAttrConcurrentManagedAccess = 89, cudaDevAttrCooperativeLaunch = 95,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97, cudaDevAttrMemoryPoolsSupported = 115
};
#define cudaHostAllocDefault 0u
#define cudaHostAllocPortable 1u
#define cudaHostAllocMapped 2u
#define cudaHostAllocWriteCombined 4u
#define cudaHostRegisterDefault 0u
#define cudaHostRegisterMapped 2u
#define cudaMemAttachGlobal 1u
#define cudaMemAttachHost 2u
#define cudaEventDefault 0u
#define cudaEventBlockingSync 1u
#define cudaEventDisableTiming 2u
#define cudaStreamDefault 0u
#define cudaStreamNonBlocking 1u
#define cudaStreamLegacy ((cudaStream_t)1)
#define cudaStreamPerThread ((cudaStream_t)2)
#define cudaDeviceScheduleAuto 0u
#define cudaDeviceScheduleSpin 1u
#define cudaDeviceScheduleYield 2u
#define cudaDeviceScheduleBlockingSync 4u
#define cudaDeviceBlockingSync 4u
#define cudaDeviceMapHost 8u
#define cudaOccupancyDefault 0u
#define cudaCpuDeviceId (-1)
#define cudaInvalidDeviceId (-2)
#define CUDART_CB
struct cudaUUID_t { char bytes[16]; };
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem, sharedMemPerBlock;
    int regsPerBlock, warpSize;
    size_t memPitch;
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], clockRate;
    size_t totalConstMem;
    int major, minor;
    size_t textureAlignment, texturePitchAlignment;
    int deviceOverlap, multiProcessorCount, kernelExecTimeoutEnabled, integrated, canMapHostMemory, computeMode, maxTexture1D, maxTexture2D[2], maxTexture3D[3],
        maxTexture1DLayered[2], maxTexture2DLayered[3], maxTexture1DMipmap, maxTexture1DLinear, maxTexture2DMipmap[2], maxTexture2DLinear[3],
        maxTexture2DGather[2], maxTexture3DAlt[3], maxTextureCubemap, maxTextureCubemapLayered[2], maxSurface1D, maxSurface2D[2], maxSurface3D[3],
        maxSurface1DLayered[2], maxSurface2DLayered[3], maxSurfaceCubemap, maxSurfaceCubemapLayered[2], concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver,
        asyncEngineCount, unifiedAddressing, memoryClockRate, memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor,
        streamPrioritiesSupported, globalL1CacheSupported, localL1CacheSupported;
    size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID, hostNativeAtomicSupported, singleToDoublePrecisionPerfRatio,
        pageableMemoryAccess, concurrentManagedAccess, computePreemptionSupported, canUseHostPointerForRegisteredMem, cooperativeLaunch,
        cooperativeMultiDeviceLaunch, pageableMemoryAccessUsesHostPageTables;
    size_t sharedMemPerBlockOptin, surfaceAlignment;
    int directManagedMemAccessFromHost, maxBlocksPerMultiProcessor, accessPolicyMaxWindowSize, memoryPoolsSupported, hostRegisterSupported,
        sparseCudaArraySupported, hostRegisterReadOnlySupported, timelineSemaphoreInteropSupported, gpuDirectRDMASupported, clusterLaunch,
        unifiedFunctionPointers, ipcEventSupported, deferredMappingCudaArraySupported;
    size_t reservedSharedMemPerBlock;
};
struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA, maxDynamicSharedSizeBytes, preferredShmemCarveout;
};
struct cudaPointerAttributes { cudaMemoryType type; int device; void *devicePointer, *hostPointer; };
struct cudaPitchedPtr { void* ptr; size_t pitch, xsize, ysize; };
struct cudaExtent { size_t width, height, depth; };
struct cudaPos { size_t x, y, z; };
struct cudaMemcpy3DParms {
    struct cudaArray* srcArray;
    cudaPos srcPos;
    cudaPitchedPtr srcPtr;
    struct cudaArray* dstArray;
    cudaPos dstPos;
    cudaPitchedPtr dstPtr;
    cudaExtent extent;
    cudaMemcpyKind kind;
};
struct cudaMemLocation { int type, id; };
enum cudaMemLocationType { cudaMemLocationTypeInvalid, cudaMemLocationTypeDevice, cudaMemLocationTypeHost };
enum cudaLaunchAttributeID { cudaLaunchAttributeIgnore, cudaLaunchAttributeAccessPolicyWindow, cudaLaunchAttributeCooperative, cudaLaunchAttributeSynchronizationPolicy, cudaLaunchAttributeClusterDimension, cudaLaunchAttributeClusterSchedulingPolicyPreference, cudaLaunchAttributeProgrammaticStreamSerialization, cudaLaunchAttributeProgrammaticEvent, cudaLaunchAttributePriority };
union cudaLaunchAttributeValue {
    char pad[64];
    int cooperative, priority, programmaticStreamSerializationAllowed;
    struct { unsigned x, y, z; } clusterDim;
};
struct cudaLaunchAttribute { cudaLaunchAttributeID id; cudaLaunchAttributeValue val; };
struct cudaLaunchConfig_t { dim3 gridDim, blockDim; size_t dynamicSmemBytes; cudaStream_t stream; cudaLaunchAttribute* attrs; unsigned numAttrs; };
typedef void (*cudaStreamCallback_t)(cudaStream_t, cudaError_t, void*);
typedef void (*cudaHostFn_t)(void*);
typedef struct CUmemPoolHandle_st* cudaMemPool_t;
enum cudaMemAllocationType { cudaMemAllocationTypeInvalid, cudaMemAllocationTypePinned };
enum cudaMemAllocationHandleType { cudaMemHandleTypeNone, cudaMemHandleTypePosixFileDescriptor };
enum cudaMemPoolAttr {
    cudaMemPoolReuseFollowEventDependencies = 1, cudaMemPoolReuseAllowOpportunistic, cudaMemPoolReuseAllowInternalDependencies, cudaMemPoolAttrReleaseThreshold,
    cudaMemPoolAttrReservedMemCurrent, cudaMemPoolAttrReservedMemHigh, cudaMemPoolAttrUsedMemCurrent, cudaMemPoolAttrUsedMemHigh
};
struct cudaMemPoolProps {
    cudaMemAllocationType allocType;
    cudaMemAllocationHandleType handleTypes;
    cudaMemLocation location;
    void* win32SecurityAttributes;
    size_t maxSize;
};
static inline cudaPitchedPtr make_cudaPitchedPtr(void* p, size_t pitch, size_t x, size_t y) { return {p, pitch, x, y}; }
static inline cudaExtent make_cudaExtent(size_t w, size_t h, size_t d) { return {w, h, d}; }
static inline cudaPos make_cudaPos(size_t x, size_t y, size_t z) { return {x, y, z}; }

// -- memory ------------------------------------------------------------------------------------------------------------------------------
SIMT_API cudaError_t simt_malloc(void** p, size_t bytes, int kind);            // kind: cudaMemoryType
SIMT_API cudaError_t cudaFree(void* p);
SIMT_API cudaError_t cudaFreeHost(void* p);
SIMT_API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
SIMT_API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t = nullptr);
SIMT_API cudaError_t cudaMemset(void* p, int v, size_t bytes);
SIMT_API cudaError_t cudaMemsetAsync(void* p, int v, size_t bytes, cudaStream_t = nullptr);
SIMT_API cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind);
SIMT_API cudaError_t cudaMemset2D(void* p, size_t pitch, int v, size_t width, size_t height);
SIMT_API cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p);
SIMT_API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p);
SIMT_API cudaError_t cudaMemGetInfo(size_t* left, size_t* total);
SIMT_API cudaError_t simt_symbol(const void* symbol, size_t size, size_t offset, void* at, const void* from, size_t bytes);  // from symbol to `at`, or from `from` to symbol
#define SIMT_HOST_INLINE SIMT_PLAIN static inline __attribute__((always_inline, unused))
template <class T> SIMT_HOST_INLINE cudaError_t cudaMalloc(T** p, size_t bytes) { return simt_malloc(reinterpret_cast<void**>(p), bytes, cudaMemoryTypeDevice); }
template <class T> SIMT_HOST_INLINE cudaError_t cudaMallocAsync(T** p, size_t bytes, cudaStream_t) { return simt_malloc(reinterpret_cast<void**>(p), bytes, cudaMemoryTypeDevice); }
template <class T> SIMT_HOST_INLINE cudaError_t cudaMallocManaged(T** p, size_t bytes, unsigned = cudaMemAttachGlobal) { return simt_malloc(reinterpret_cast<void**>(p), bytes, cudaMemoryTypeManaged); }
template <class T> SIMT_HOST_INLINE cudaError_t cudaMallocHost(T** p, size_t bytes, unsigned = 0) { return simt_malloc(reinterpret_cast<void**>(p), bytes, cudaMemoryTypeHost); }
template <class T> SIMT_HOST_INLINE cudaError_t cudaHostAlloc(T** p, size_t bytes, unsigned) { return simt_malloc(reinterpret_cast<void**>(p), bytes, cudaMemoryTypeHost); }
template <class T> SIMT_HOST_INLINE cudaError_t cudaMallocPitch(T** p, size_t* pitch, size_t width, size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return simt_malloc(reinterpret_cast<void**>(p), *pitch * height, cudaMemoryTypeDevice);
}
SIMT_HOST_INLINE cudaError_t cudaMalloc3D(cudaPitchedPtr* p, cudaExtent e) {
    *p = {nullptr, (e.width + 511) / 512 * 512, e.width, e.height};
    return simt_malloc(&p->ptr, p->pitch * e.height * e.depth, cudaMemoryTypeDevice);
}
SIMT_HOST_INLINE cudaError_t cudaMemcpy2DAsync(void* to, size_t tp, const void* from, size_t fp, size_t w, size_t h, cudaMemcpyKind kind, cudaStream_t = nullptr) { return cudaMemcpy2D(to, tp, from, fp, w, h, kind); }
SIMT_HOST_INLINE cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) { return cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice); }
SIMT_HOST_INLINE cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t = nullptr) { return cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice); }
SIMT_HOST_INLINE cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return cudaFree(p); }
SIMT_HOST_INLINE cudaError_t cudaMemset2DAsync(void* p, size_t pitch, int v, size_t w, size_t h, cudaStream_t = nullptr) { return cudaMemset2D(p, pitch, v, w, h); }
template <class T> SIMT_HOST_INLINE cudaError_t cudaHostGetDevicePointer(T** device, void* host, unsigned) { *device = static_cast<T*>(host); return cudaSuccess; }
SIMT_API cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned flags);
SIMT_API cudaError_t cudaHostUnregister(void* p);
template <class T> SIMT_HOST_INLINE const void* simt_at(const T& s) { return &s; }
template <class T> SIMT_HOST_INLINE size_t simt_size(const T&) { return sizeof(T); }
SIMT_HOST_INLINE const void* simt_at(const void* const& s) { return s; }  // the address of a symbol, which a function was given
SIMT_HOST_INLINE size_t simt_size(const void* const&) { return size_t{1} << 40; }
template <class T> SIMT_HOST_INLINE cudaError_t cudaMemcpyToSymbol(const T& s, const void* from, size_t bytes, size_t offset = 0, cudaMemcpyKind = cudaMemcpyHostToDevice) { return simt_symbol(simt_at(s), simt_size(s), offset, nullptr, from, bytes); }
template <class T> SIMT_HOST_INLINE cudaError_t cudaMemcpyToSymbolAsync(const T& s, const void* from, size_t bytes, size_t offset = 0, cudaMemcpyKind = cudaMemcpyHostToDevice, cudaStream_t = nullptr) { return simt_symbol(simt_at(s), simt_size(s), offset, nullptr, from, bytes); }
template <class T> SIMT_HOST_INLINE cudaError_t cudaMemcpyFromSymbol(void* to, const T& s, size_t bytes, size_t offset = 0, cudaMemcpyKind = cudaMemcpyDeviceToHost) { return simt_symbol(simt_at(s), simt_size(s), offset, to, nullptr, bytes); }
template <class T> SIMT_HOST_INLINE cudaError_t cudaMemcpyFromSymbolAsync(void* to, const T& s, size_t bytes, size_t offset = 0, cudaMemcpyKind = cudaMemcpyDeviceToHost, cudaStream_t = nullptr) { return simt_symbol(simt_at(s), simt_size(s), offset, to, nullptr, bytes); }
template <class T> SIMT_HOST_INLINE cudaError_t cudaGetSymbolAddress(void** p, const T& s) { *p = const_cast<void*>(simt_at(s)); return cudaSuccess; }
template <class T> SIMT_HOST_INLINE cudaError_t cudaGetSymbolSize(size_t* n, const T&) { *n = sizeof(T); return cudaSuccess; }

// -- errors, devices, streams, events ----------------------------------------------------------------------------------------------------
SIMT_API cudaError_t cudaGetLastError();
SIMT_API cudaError_t cudaPeekAtLastError();
SIMT_API const char* cudaGetErrorString(cudaError_t);
SIMT_API const char* cudaGetErrorName(cudaError_t);
SIMT_API cudaError_t cudaDeviceSynchronize();
SIMT_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device);
SIMT_API cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int device);
SIMT_API cudaError_t cudaGetDevice(int* device);
SIMT_API cudaError_t cudaSetDevice(int device);
SIMT_API cudaError_t cudaStreamCreate(cudaStream_t* s);
SIMT_API cudaError_t cudaEventCreate(cudaEvent_t* e);
SIMT_API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t = nullptr);
SIMT_API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to);
SIMT_API unsigned long long simt_launches();
SIMT_API void simt_fresh();
SIMT_API cudaError_t simt_opt_in(int attribute, int value);
namespace simt {
[[noreturn]] SIMT_API void not_on_the_host(const char* what);     // a library or feature that is not here: the program ends, and says so
SIMT_API cudaError_t last_of_stream();
}
#define SIMT_NO_OP(name, ...) SIMT_HOST_INLINE cudaError_t name(__VA_ARGS__) { return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaThreadSynchronize() { return cudaDeviceSynchronize(); }
SIMT_HOST_INLINE cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaDeviceSynchronize(); }
SIMT_HOST_INLINE cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaDeviceSynchronize(); }
SIMT_HOST_INLINE cudaError_t cudaStreamQuery(cudaStream_t) { return simt::last_of_stream(); }
SIMT_HOST_INLINE cudaError_t cudaEventQuery(cudaEvent_t) { return simt::last_of_stream(); }
SIMT_HOST_INLINE cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { return cudaStreamCreate(s); }
SIMT_HOST_INLINE cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) { return cudaStreamCreate(s); }
SIMT_HOST_INLINE cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return cudaEventCreate(e); }
SIMT_HOST_INLINE cudaError_t cudaEventCreate(cudaEvent_t* e, unsigned) { return cudaEventCreate(e); }
SIMT_HOST_INLINE cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s = nullptr, unsigned = 0) { return cudaEventRecord(e, s); }
SIMT_HOST_INLINE cudaError_t cudaGetDeviceCount(int* n) { *n = 1; return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaRuntimeGetVersion(int* v) { *v = CUDART_VERSION; return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaDriverGetVersion(int* v) { *v = CUDART_VERSION; return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { *can = 0; return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { *least = 0, *greatest = -5; return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaDeviceGetLimit(size_t* v, cudaLimit) { *v = 8 << 20; return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void* p, unsigned) { f(s, cudaSuccess, p); return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaChooseDevice(int* d, const cudaDeviceProp*) { *d = 0; return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaDeviceGetPCIBusId(char* to, int n, int) { snprintf(to, static_cast<size_t>(n), "0000:00:00.0"); return cudaSuccess; }
SIMT_NO_OP(cudaDeviceReset) SIMT_NO_OP(cudaThreadExit) SIMT_NO_OP(cudaProfilerStart) SIMT_NO_OP(cudaProfilerStop) SIMT_NO_OP(cudaSetDeviceFlags, unsigned)
SIMT_NO_OP(cudaDeviceEnablePeerAccess, int, unsigned) SIMT_NO_OP(cudaDeviceDisablePeerAccess, int) SIMT_NO_OP(cudaStreamDestroy, cudaStream_t)
SIMT_NO_OP(cudaEventDestroy, cudaEvent_t) SIMT_NO_OP(cudaStreamWaitEvent, cudaStream_t, cudaEvent_t, unsigned = 0) SIMT_NO_OP(cudaDeviceSetLimit, cudaLimit, size_t)
SIMT_NO_OP(cudaDeviceSetCacheConfig, cudaFuncCache) SIMT_NO_OP(cudaDeviceSetSharedMemConfig, cudaSharedMemConfig) SIMT_NO_OP(cudaCtxResetPersistingL2Cache)
SIMT_NO_OP(cudaMemPrefetchAsync, const void*, size_t, int, cudaStream_t = nullptr) SIMT_NO_OP(cudaMemAdvise, const void*, size_t, cudaMemoryAdvise, int)
SIMT_NO_OP(cudaMemPrefetchAsync, const void*, size_t, cudaMemLocation, unsigned, cudaStream_t = nullptr)
SIMT_NO_OP(cudaMemAdvise, const void*, size_t, cudaMemoryAdvise, cudaMemLocation) SIMT_NO_OP(cudaStreamAttachMemAsync, cudaStream_t, void*, size_t = 0, unsigned = 0)
#undef SIMT_NO_OP
template <class F> SIMT_HOST_INLINE cudaError_t cudaFuncSetAttribute(F, cudaFuncAttribute a, int v) { return simt_opt_in(a, v); }
template <class F> SIMT_HOST_INLINE cudaError_t cudaFuncSetCacheConfig(F, cudaFuncCache) { return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* p) { *p = cudaSharedMemBankSizeFourByte; return cudaSuccess; }
template <class F> SIMT_HOST_INLINE cudaError_t cudaFuncSetSharedMemConfig(F, cudaSharedMemConfig) { return cudaSuccess; }
template <class F> SIMT_HOST_INLINE cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, F) { *a = {0, 0, 0, 1024, 32, 90, 90, 0, 48 << 10, -1}; return cudaSuccess; }
SIMT_HOST_INLINE int simt_resident(int threads, size_t shared) {     // by threads and dynamic shared memory alone: registers are not known here
    const int by_threads = 2048 / ((threads + 31) / 32 * 32), by_shared = static_cast<int>((228u << 10) / (shared + 1024));
    return threads < 1 || threads > 1024 ? 0 : by_threads < by_shared ? (by_threads < 32 ? by_threads : 32) : (by_shared < 32 ? by_shared : 32);
}
template <class F> SIMT_HOST_INLINE cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, F, int threads, size_t shared) { *n = simt_resident(threads, shared); return cudaSuccess; }
template <class F> SIMT_HOST_INLINE cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, F, int threads, size_t shared, unsigned) { *n = simt_resident(threads, shared); return cudaSuccess; }
template <class F> SIMT_HOST_INLINE cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, F, size_t = 0, int limit = 0) { *block = limit > 0 && limit < 1024 ? limit : 1024, *grid = 2 * 132; return cudaSuccess; }
template <class S, class F> SIMT_HOST_INLINE cudaError_t cudaOccupancyMaxPotentialBlockSizeVariableSMem(int* grid, int* block, F, S, int limit = 0) { *block = limit > 0 && limit < 1024 ? limit : 1024, *grid = 2 * 132; return cudaSuccess; }
#include "graph_api.h"
// A pool is a name: memory comes from where all of it does, and is gone when it is freed.
SIMT_HOST_INLINE cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) { *pool = reinterpret_cast<cudaMemPool_t>(1); return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) { return cudaMemPoolCreate(pool, nullptr); }
SIMT_HOST_INLINE cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int) { return cudaMemPoolCreate(pool, nullptr); }
SIMT_HOST_INLINE cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* v) { *static_cast<unsigned long long*>(v) = 0; return cudaSuccess; }
template <class T> SIMT_HOST_INLINE cudaError_t cudaMallocFromPoolAsync(T** p, size_t bytes, cudaMemPool_t, cudaStream_t s) { return cudaMallocAsync(p, bytes, s); }
SIMT_HOST_INLINE cudaError_t cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaDeviceSetMemPool(int, cudaMemPool_t) { return cudaSuccess; }
#define SIMT_ABSENT(name, what) \
    template <class... A> SIMT_HOST_INLINE cudaError_t name(const A&...) { simt::not_on_the_host(#name ": " what); }
SIMT_ABSENT(cudaGraphAddNode, "graph nodes of any kind") SIMT_ABSENT(cudaGraphKernelNodeGetParams, "the parameters of a graph's node") SIMT_ABSENT(cudaMallocArray, "textures and arrays") SIMT_ABSENT(cudaMalloc3DArray, "textures and arrays")
SIMT_ABSENT(cudaCreateTextureObject, "textures") SIMT_ABSENT(cudaDestroyTextureObject, "textures") SIMT_ABSENT(cudaBindTexture, "textures")
SIMT_ABSENT(cudaBindTexture2D, "textures") SIMT_ABSENT(cudaBindTextureToArray, "textures") SIMT_ABSENT(cudaUnbindTexture, "textures")
SIMT_ABSENT(cudaFreeArray, "textures and arrays") SIMT_ABSENT(cudaMemcpyToArray, "textures and arrays") SIMT_ABSENT(cudaMemcpy2DToArray, "textures and arrays")
SIMT_ABSENT(cudaCreateSurfaceObject, "surfaces") SIMT_ABSENT(cudaStreamSetAttribute, "L2 access policies") SIMT_ABSENT(cudaIpcGetMemHandle, "memory of other processes")
SIMT_ABSENT(cudaGetDriverEntryPoint, "the driver API") SIMT_ABSENT(cudaGetDriverEntryPointByVersion, "the driver API")

namespace simt {
struct ClusterDims { const char* name; unsigned dims[3]; };
SIMT_API bool on_host();
extern SIMT_API bool attempting;
SIMT_API void host_assertion(const char* text) __attribute__((noreturn));
}  // namespace simt
extern "C" SIMT_API const simt::ClusterDims simt_cluster_dims[];
// -- launches ------------------------------------------------------------------------------------------------------------------------------
namespace simt {
struct Zero {                       // a 0 among a launch's arguments: a number, or a null pointer
    template <class T>
    SIMT_MEMBER constexpr operator T() const { return T{}; }
};
template <size_t I, class T>
struct Leaf { T v; };
template <class Sequence, class L, class... A>
struct Closure;
template <size_t... I, class L, class... A>
struct Closure<std::index_sequence<I...>, L, A...> : Leaf<I, A>... {   // a call of a kernel with its arguments, as they are at the launch
    L call;
    Closure(const L& l, const A&... a) : Leaf<I, A>{a}..., call(l) {}
    SIMT_PLAIN SIMT_MEMBER void run() { call(static_cast<Leaf<I, A>&>(*this).v...); }
};
template <class C>
struct Entry {                      // what each thread of a launch runs: in both builds of a source, of the same name
    SIMT_PLAIN __attribute__((used, noinline)) static void enter(void** values) { static_cast<C*>(values[0])->run(); }
};
template <class... P>
struct Pointed {                    // by a pointer, which the launch replaces by that of the build that is watched
    void (*kernel)(P...);
    SIMT_MEMBER void operator()(P... p) const { kernel(p...); }
};
enum ArgumentKind { NUMBER, REAL, POINTER, VALUE };
struct LaunchArgument { ArgumentKind kind; const void* at; unsigned bytes; bool is_signed; };
template <class T>
SIMT_PLAIN inline LaunchArgument argument(const T& v) {
    if constexpr (std::is_same_v<T, Zero>) return {NUMBER, nullptr, 0, true};
    else return {!std::is_class_v<T> && std::is_convertible_v<T, const volatile void*> ? POINTER : std::is_floating_point_v<T> ? REAL : std::is_integral_v<T> || std::is_enum_v<T> ? NUMBER : VALUE, &v, sizeof(T), std::is_signed_v<T>};
}
template <class T>
SIMT_HOST_INLINE const char* shown() { return __PRETTY_FUNCTION__; }
template <auto V>
SIMT_HOST_INLINE const char* shown() { return __PRETTY_FUNCTION__; }
template <template <class...> class T>
SIMT_HOST_INLINE const char* shown() { return __PRETTY_FUNCTION__; }
SIMT_API const char* instance(const char* name, std::initializer_list<const char*> arguments);   // `name<float, 32>`, of what `shown` says of each
struct Given {                      // of a launch, besides its arguments
    const char* kernel;
    dim3 grid, block, cluster;
    size_t shared;
    bool cooperative;
    void** pointer;                 // in the closure: a kernel's address
};
SIMT_API cudaError_t launch(Given& given, void (*entry)(void**), void* closure, size_t bytes, const LaunchArgument* arguments, unsigned count, unsigned long long pc);

struct Launching {
    Given given;
    SIMT_PLAIN Launching(const char* kernel, dim3 grid, dim3 block, size_t shared = 0, cudaStream_t = nullptr)
        : given{kernel, grid, block, dim3(0, 0, 0), shared, false, nullptr} {}
    template <class T>
    using Number = std::conditional_t<std::is_same_v<T, Zero>, int, T>;
    template <class L, class... A>
    SIMT_PLAIN SIMT_MEMBER cudaError_t run(const L& call, const A&... a) {      // a 0 is a number where the kernel takes one
        if constexpr (std::is_invocable_v<const L&, Number<std::decay_t<const A>>&...>) return made<L, Number<std::decay_t<const A>>...>(call, a...);
        else return made<L, std::decay_t<const A>...>(call, a...);
    }
    template <class L, class... A>
    SIMT_PLAIN __attribute__((noinline)) cudaError_t made(const L& call, const A&... a) {
        typedef Closure<std::index_sequence_for<A...>, L, A...> C;
        C closure(call, a...);
        const LaunchArgument list[] = {argument(a)..., {}};
        return launch(given, &Entry<C>::enter, &closure, sizeof closure, list, sizeof...(A), reinterpret_cast<unsigned long long>(__builtin_return_address(0)));
    }
    template <class... P, class... A>
    SIMT_PLAIN __attribute__((noinline)) cudaError_t pointed(void (*kernel)(P...), const A&... a) {
        typedef Closure<std::index_sequence_for<P...>, Pointed<P...>, std::decay_t<P>...> C;
        C closure(Pointed<P...>{kernel}, std::decay_t<P>(a)...);
        const LaunchArgument list[] = {argument(a)..., {}};
        given.pointer = reinterpret_cast<void**>(&closure.call.kernel);
        return launch(given, &Entry<C>::enter, &closure, sizeof closure, list, sizeof...(A), reinterpret_cast<unsigned long long>(__builtin_return_address(0)));
    }
    template <class... P, size_t... I>
    SIMT_PLAIN SIMT_MEMBER cudaError_t gathered(void (*kernel)(P...), void** values, std::index_sequence<I...>) { return pointed(kernel, *static_cast<std::remove_reference_t<P>*>(values[I])...); }
};
// A kernel of which a program keeps the address as a pointer to void: what it takes is known by that address.
typedef cudaError_t (*ByAddress)(const void* kernel, const Given& given, void** values);
SIMT_API void know(const void* kernel, const char* name, ByAddress launches);
SIMT_API cudaError_t launch_by_address(const void* kernel, dim3 grid, dim3 block, void** values, size_t shared, bool cooperative, unsigned long long pc);
template <class... P>
SIMT_PLAIN cudaError_t by_address(const void* kernel, const Given& given, void** values) {
    Launching l("", given.grid, given.block);
    l.given = given;
    return l.gathered(reinterpret_cast<void (*)(P...)>(const_cast<void*>(kernel)), values, std::index_sequence_for<P...>{});
}
template <class... P>
SIMT_HOST_INLINE auto known(const char* name, void (*kernel)(P...)) { know(reinterpret_cast<const void*>(kernel), name, &by_address<P...>); return kernel; }
}  // namespace simt
template <class... P>
SIMT_HOST_INLINE cudaError_t cudaLaunchKernel(void (*k)(P...), dim3 grid, dim3 block, void** values, size_t shared = 0, cudaStream_t = nullptr) {
    return simt::Launching("", grid, block, shared).gathered(k, values, std::index_sequence_for<P...>{});
}
template <class... P>
SIMT_HOST_INLINE cudaError_t cudaLaunchCooperativeKernel(void (*k)(P...), dim3 grid, dim3 block, void** values, size_t shared = 0, cudaStream_t = nullptr) {
    simt::Launching l("", grid, block, shared);
    l.given.cooperative = true;
    return l.gathered(k, values, std::index_sequence_for<P...>{});
}
template <class... P, class... A>
SIMT_HOST_INLINE cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* c, void (*k)(P...), A&&... a) {
    simt::Launching l("", c->gridDim, c->blockDim, c->dynamicSmemBytes);
    for (unsigned i = 0; i < c->numAttrs; ++i) {
        const cudaLaunchAttribute& x = c->attrs[i];
        if (x.id == cudaLaunchAttributeClusterDimension) l.given.cluster = dim3(x.val.clusterDim.x, x.val.clusterDim.y, x.val.clusterDim.z);
        if (x.id == cudaLaunchAttributeCooperative) l.given.cooperative = x.val.cooperative;
    }
    return l.pointed(k, a...);
}
SIMT_API cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** values, size_t shared = 0, cudaStream_t = nullptr);
SIMT_API cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block, void** values, size_t shared = 0, cudaStream_t = nullptr);
