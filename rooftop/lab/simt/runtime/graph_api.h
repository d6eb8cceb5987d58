// CUDA graphs of a program: captured from a stream, or made node by node (graphs.cpp).
#pragma once

typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;
typedef struct CUgraphNode_st* cudaGraphNode_t;
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive, cudaStreamCaptureStatusInvalidated };
enum cudaGraphExecUpdateResult { cudaGraphExecUpdateSuccess, cudaGraphExecUpdateError, cudaGraphExecUpdateErrorTopologyChanged };
struct cudaGraphExecUpdateResultInfo { cudaGraphExecUpdateResult result; cudaGraphNode_t errorNode, errorFromNode; };
struct cudaKernelNodeParams { void* func; dim3 gridDim, blockDim; unsigned sharedMemBytes; void **kernelParams, **extra; };
struct cudaMemsetParams { void* dst; size_t pitch; unsigned value, elementSize; size_t width, height; };
struct cudaHostNodeParams { cudaHostFn_t fn; void* userData; };

SIMT_API cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode = cudaStreamCaptureModeGlobal);
SIMT_API cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* g);
SIMT_API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status);
SIMT_API cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t f, void* p);
SIMT_API cudaError_t cudaGraphCreate(cudaGraph_t* g, unsigned flags = 0);
SIMT_API cudaError_t cudaGraphClone(cudaGraph_t* to, cudaGraph_t from);
SIMT_API cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t* nodes, size_t* count);
SIMT_API cudaError_t cudaGraphAddDependencies(cudaGraph_t g, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count);
SIMT_API cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t);

// A node is what it does: `simt_node` adds it to a graph, `simt_node_set` changes it in one.
#define SIMT_NODE(name, ...) \
    SIMT_API cudaError_t cudaGraphAdd##name(cudaGraphNode_t* node, cudaGraph_t g, const cudaGraphNode_t* after, size_t count, __VA_ARGS__); \
    SIMT_API cudaError_t cudaGraphExec##name##SetParams(cudaGraphExec_t g, cudaGraphNode_t node, __VA_ARGS__); \
    SIMT_API cudaError_t cudaGraph##name##SetParams(cudaGraphNode_t node, __VA_ARGS__);
SIMT_NODE(KernelNode, const cudaKernelNodeParams* p)
SIMT_NODE(MemcpyNode, const cudaMemcpy3DParms* p)
SIMT_NODE(MemsetNode, const cudaMemsetParams* p)
SIMT_NODE(HostNode, const cudaHostNodeParams* p)
SIMT_NODE(ChildGraphNode, cudaGraph_t child)
#undef SIMT_NODE
SIMT_API cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t g, const cudaGraphNode_t* after, size_t count, void* to,
    const void* from, size_t bytes, cudaMemcpyKind kind);
SIMT_API cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t g, cudaGraphNode_t node, void* to, const void* from, size_t bytes,
    cudaMemcpyKind kind);
SIMT_API cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t g, const cudaGraphNode_t* after, size_t count);

template <class... A> SIMT_HOST_INLINE cudaError_t cudaGraphInstantiate(cudaGraphExec_t* e, cudaGraph_t g, A...) {
    return cudaGraphClone(reinterpret_cast<cudaGraph_t*>(e), g); }
SIMT_HOST_INLINE cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* e, cudaGraph_t g, unsigned long long = 0) {
    return cudaGraphInstantiate(e, g); }
SIMT_API cudaError_t simt_graph_replace(cudaGraphExec_t e, cudaGraph_t g);
SIMT_HOST_INLINE cudaError_t cudaGraphExecUpdate(cudaGraphExec_t e, cudaGraph_t g, cudaGraphExecUpdateResultInfo* info) {
    *info = {cudaGraphExecUpdateSuccess, nullptr, nullptr}; return simt_graph_replace(e, g); }
SIMT_HOST_INLINE cudaError_t cudaGraphExecUpdate(cudaGraphExec_t e, cudaGraph_t g, cudaGraphNode_t* failed,
    cudaGraphExecUpdateResult* result) { *failed = nullptr, *result = cudaGraphExecUpdateSuccess; return simt_graph_replace(e, g); }
SIMT_HOST_INLINE cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
SIMT_HOST_INLINE cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }
