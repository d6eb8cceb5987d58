// Errors, devices, streams and events of a program. Nothing is measured here: a launch takes a millisecond.
#include "program.h"

static constexpr int DEVICES = 8;                                // that may be set

cudaError_t cudaGetLastError() {
    const cudaError_t e = program.last;
    program.last = program.sticky;
    return e;
}
cudaError_t cudaPeekAtLastError() { return program.last; }
cudaError_t simt::last_of_stream() { return program.sticky; }
cudaError_t cudaDeviceSynchronize() {
    if (worker && worker->current) not_simulated("cudaDeviceSynchronize in a kernel, which CUDA 12 has no more: it cannot wait for what it launches");
    return program.sticky ? failed(program.sticky) : cudaSuccess;
}
#define SIMT_ERRORS(F) \
    F(cudaSuccess, "no error") F(cudaErrorInvalidValue, "invalid argument") F(cudaErrorMemoryAllocation, "out of memory") \
    F(cudaErrorInvalidConfiguration, "invalid configuration argument") F(cudaErrorInvalidPitchValue, "invalid pitch argument") \
    F(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy") F(cudaErrorInvalidDevice, "invalid device ordinal") \
    F(cudaErrorIllegalAddress, "an illegal memory access was encountered") F(cudaErrorLaunchOutOfResources, "too many resources requested for launch") \
    F(cudaErrorAssert, "device-side assert triggered") F(cudaErrorLaunchFailure, "unspecified launch failure") \
    F(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch") F(cudaErrorNotSupported, "operation not supported") \
    F(cudaErrorNotReady, "device not ready") F(cudaErrorInvalidResourceHandle, "invalid resource handle")
const char* cudaGetErrorString(cudaError_t e) {
#define SIMT_TEXT(name, text) if (e == name) return text;
    SIMT_ERRORS(SIMT_TEXT)
    return "unknown error";
}
const char* cudaGetErrorName(cudaError_t e) {
#define SIMT_NAME(name, text) if (e == name) return #name;
    SIMT_ERRORS(SIMT_NAME)
    return "cudaErrorUnknown";
}
cudaError_t cudaGetDevice(int* device) {
    *device = program.device;
    return cudaSuccess;
}
SIMT_FAR cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= DEVICES) return failed(cudaErrorInvalidDevice);
    if (device) named("uses a GPU beside the first", "", SIMT_PC(), "beside");   // another name for the one that there is
    program.device = device;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    std::memset(static_cast<void*>(p), 0, sizeof *p);
    if (device < 0 || device >= DEVICES) return failed(cudaErrorInvalidDevice);
    snprintf(p->name, sizeof p->name, "simulated sm_90");
    p->totalGlobalMem = REGION, p->sharedMemPerBlock = STATIC_LIMIT, p->sharedMemPerBlockOptin = SHARED_LIMIT,
        p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536, p->warpSize = 32, p->memPitch = 0x7fffffff, p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64, p->maxGridSize[0] = 0x7fffffff,
        p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->clockRate = 1980000, p->totalConstMem = 65536, p->major = 9, p->minor = 0, p->multiProcessorCount = 132,
        p->canMapHostMemory = p->concurrentKernels = 1;
    p->asyncEngineCount = 3, p->deviceOverlap = p->unifiedAddressing = p->managedMemory = p->concurrentManagedAccess = p->cooperativeLaunch = 1;
    p->memoryClockRate = 2619000, p->memoryBusWidth = 5120, p->l2CacheSize = 50 << 20, p->maxThreadsPerMultiProcessor = 2048,
        p->maxBlocksPerMultiProcessor = 32;
    p->streamPrioritiesSupported = p->memoryPoolsSupported = p->globalL1CacheSupported = p->localL1CacheSupported = 1,
        p->textureAlignment = 512, p->reservedSharedMemPerBlock = 1024;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int device) {
    cudaDeviceProp p;
    if (const cudaError_t e = cudaGetDeviceProperties(&p, device)) return e;
    switch (a) {
        case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *v = 1024; break;
        case cudaDevAttrMaxBlockDimZ: *v = 64; break;
        case cudaDevAttrMaxGridDimX: *v = p.maxGridSize[0]; break;
        case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *v = 65535; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *v = static_cast<int>(STATIC_LIMIT); break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = static_cast<int>(SHARED_LIMIT); break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *v = 228 << 10; break;
        case cudaDevAttrTotalConstantMemory: *v = 65536; break;
        case cudaDevAttrWarpSize: *v = 32; break;
        case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *v = 65536; break;
        case cudaDevAttrClockRate: *v = p.clockRate; break;
        case cudaDevAttrMemoryClockRate: *v = p.memoryClockRate; break;
        case cudaDevAttrGlobalMemoryBusWidth: *v = p.memoryBusWidth; break;
        case cudaDevAttrL2CacheSize: *v = p.l2CacheSize; break;
        case cudaDevAttrMultiProcessorCount: *v = 132; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *v = 2048; break;
        case cudaDevAttrComputeCapabilityMajor: *v = 9; break;
        case cudaDevAttrComputeCapabilityMinor: case cudaDevAttrComputeMode: case cudaDevAttrIntegrated: case cudaDevAttrKernelExecTimeout: *v = 0; break;
        default: *v = 1;
    }
    return cudaSuccess;
}
cudaError_t simt_opt_in(int attribute, int v) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (v < 0 || v > static_cast<int>(SHARED_LIMIT)) return failed(cudaErrorInvalidValue);
    program.opted_in = std::max(program.opted_in, v);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* s) {
    static u64 next = 16;
    *s = reinterpret_cast<cudaStream_t>(next++);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) {
    static u64 next = 16;
    *e = reinterpret_cast<cudaEvent_t>(next++);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t) {
    program.events[e] = program.done_launches;
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {   // a launch is a millisecond: nothing is measured here
    const auto a = program.events.find(from), b = program.events.find(to);
    if (a == program.events.end() || b == program.events.end()) {
        if (Finding* f = found_on_host(HOST, SIMT_PC())) say(*f, "the time between events of which one was never recorded");
        return failed(cudaErrorInvalidResourceHandle);
    }
    *ms = static_cast<float>(std::max<u64>(b->second - a->second, 1));
    return cudaSuccess;
}

