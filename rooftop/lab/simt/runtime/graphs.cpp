// CUDA graphs of a program (graph_api.h). A node is a step that is done when the graph is launched, after those that it depends on; of
// steps that may be done in any order the last one made is done first, so that a dependency that is missing shows in the results.
#include "program.h"

namespace {
struct Node {
    std::function<void()> step;
    std::vector<u64> after;
};
typedef std::vector<std::function<void()>> Steps;
struct Graph {
    std::vector<u64> order;
    std::map<u64, Node> nodes;
};
std::map<u64, Graph*> made_in;                                   // a node's graph: where its parameters are changed
Graph& of(cudaGraph_t g) { return *reinterpret_cast<Graph*>(g); }
Graph& of(cudaGraphExec_t g) { return *reinterpret_cast<Graph*>(g); }
u64 id(cudaGraphNode_t node) { return reinterpret_cast<u64>(node); }

cudaError_t add(cudaGraphNode_t* node, Graph& g, const cudaGraphNode_t* after, size_t count, std::function<void()> step) {
    static u64 next = 16;
    Node n{std::move(step), {}};
    for (size_t i = 0; i < count; ++i) {
        if (!g.nodes.count(id(after[i]))) return failed(cudaErrorInvalidValue);
        n.after.push_back(id(after[i]));
    }
    g.nodes[next] = std::move(n), g.order.push_back(next), made_in[next] = &g;
    *node = reinterpret_cast<cudaGraphNode_t>(next++);
    return cudaSuccess;
}
cudaError_t set(Graph* g, cudaGraphNode_t node, std::function<void()> step) {
    if (!g || !g->nodes.count(id(node))) return failed(cudaErrorInvalidValue);
    g->nodes[id(node)].step = std::move(step);
    return cudaSuccess;
}
cudaError_t run(const Graph& g) {
    std::map<u64, size_t> waits;
    std::map<u64, std::vector<u64>> next;
    std::vector<u64> ready;
    for (const u64 n : g.order) {
        const Node& node = g.nodes.at(n);
        if (!(waits[n] = node.after.size())) ready.push_back(n);
        for (const u64 a : node.after) next[a].push_back(n);
    }
    size_t done = 0;
    for (; !ready.empty(); ++done) {
        const u64 n = ready.back();
        ready.pop_back();
        g.nodes.at(n).step();
        for (const u64 m : next[n])
            if (!--waits[m]) ready.push_back(m);
    }
    if (done < g.order.size()) return failed(cudaErrorInvalidValue);         // they wait for each other
    return program.sticky ? failed(program.sticky) : cudaSuccess;
}

// The steps of each kind of node, with its parameters as they are now.
std::function<void()> step_of(const cudaKernelNodeParams* p, u64 address) {
    Steps one, *outer = program.capturing;
    program.capturing = &one;
    launch_by_address(p->func, p->gridDim, p->blockDim, p->kernelParams, p->sharedMemBytes, false, address);
    program.capturing = outer;
    return one.at(0);
}
std::function<void()> step_of(const cudaMemcpy3DParms* p, u64 address) {
    const cudaMemcpy3DParms kept = *p;
    return [=] { copy_3d(&kept, here(reinterpret_cast<void*>(address))); };
}
std::function<void()> step_of(const cudaMemsetParams* p, u64 address) {
    const cudaMemsetParams kept = *p;
    return [=] {
        std::string row;
        for (size_t i = 0; i < kept.width; ++i) row.append(reinterpret_cast<const char*>(&kept.value), kept.elementSize);
        for (size_t y = 0; y < std::max<size_t>(kept.height, 1); ++y)
            copy(static_cast<char*>(kept.dst) + y * kept.pitch, row.data(), row.size(), cudaMemcpyHostToDevice,
                here(reinterpret_cast<void*>(address)), "a memset node");
    };
}
std::function<void()> step_of(const cudaHostNodeParams* p, u64) {
    const cudaHostNodeParams kept = *p;
    return [=] { kept.fn(kept.userData); };
}
std::function<void()> step_of(cudaGraph_t child, u64) {
    const Graph kept = of(child);
    return [=] { run(kept); };
}
std::function<void()> step_of_copy(void* to, const void* from, size_t bytes, int kind, u64 pc) {
    return [=] { copy(to, from, bytes, kind, pc, "a memcpy node"); };
}
}  // namespace

#define SIMT_ADDRESS() reinterpret_cast<u64>(__builtin_return_address(0))
#define SIMT_NODE(name, type) \
    SIMT_FAR cudaError_t cudaGraphAdd##name(cudaGraphNode_t* node, cudaGraph_t g, const cudaGraphNode_t* after, size_t count, type p) { \
        return add(node, of(g), after, count, step_of(p, SIMT_ADDRESS())); \
    } \
    SIMT_FAR cudaError_t cudaGraphExec##name##SetParams(cudaGraphExec_t g, cudaGraphNode_t node, type p) { return set(&of(g), node, step_of(p, SIMT_ADDRESS())); } \
    SIMT_FAR cudaError_t cudaGraph##name##SetParams(cudaGraphNode_t node, type p) { return set(made_in[id(node)], node, step_of(p, SIMT_ADDRESS())); }
SIMT_NODE(KernelNode, const cudaKernelNodeParams*)
SIMT_NODE(MemcpyNode, const cudaMemcpy3DParms*)
SIMT_NODE(MemsetNode, const cudaMemsetParams*)
SIMT_NODE(HostNode, const cudaHostNodeParams*)
SIMT_NODE(ChildGraphNode, cudaGraph_t)
SIMT_FAR cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t g, const cudaGraphNode_t* after, size_t count, void* to,
    const void* from, size_t bytes, cudaMemcpyKind kind) {
    return add(node, of(g), after, count, step_of_copy(to, from, bytes, kind, SIMT_PC()));
}
SIMT_FAR cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t g, cudaGraphNode_t node, void* to, const void* from, size_t bytes,
    cudaMemcpyKind kind) {
    return set(&of(g), node, step_of_copy(to, from, bytes, kind, SIMT_PC()));
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t g, const cudaGraphNode_t* after, size_t count) {
    return add(node, of(g), after, count, [] {}); }

cudaError_t cudaGraphCreate(cudaGraph_t* g, unsigned) {
    *g = reinterpret_cast<cudaGraph_t>(new Graph);
    return cudaSuccess;
}
cudaError_t cudaGraphClone(cudaGraph_t* to, cudaGraph_t from) {
    *to = reinterpret_cast<cudaGraph_t>(new Graph(of(from)));
    return cudaSuccess;
}
cudaError_t simt_graph_replace(cudaGraphExec_t e, cudaGraph_t g) {
    of(e) = of(g);
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t* nodes, size_t* count) {
    const std::vector<u64>& order = of(g).order;
    if (!nodes) *count = order.size();
    for (size_t i = 0; nodes && i < *count; ++i) nodes[i] = reinterpret_cast<cudaGraphNode_t>(i < order.size() ? order[i] : 0);
    return cudaSuccess;
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t g, const cudaGraphNode_t* from, const cudaGraphNode_t* to, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        if (!of(g).nodes.count(id(from[i])) || !of(g).nodes.count(id(to[i]))) return failed(cudaErrorInvalidValue);
        of(g).nodes[id(to[i])].after.push_back(id(from[i]));
    }
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t) {
    if (!program.capturing) return run(of(g));
    program.capturing->push_back([kept = of(g)] { run(kept); });
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
    program.capturing = new Steps;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* g) {
    if (!program.capturing) return failed(cudaErrorInvalidValue);
    cudaGraphCreate(g, 0);
    cudaGraphNode_t last = nullptr;
    // one after another, as they were asked for
    for (const auto& step : *program.capturing) add(&last, of(*g), &last, last != nullptr, step);
    program.capturing = nullptr;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    *status = program.capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t f, void* p) {
    if (program.capturing) program.capturing->push_back([=] { f(p); });
    else f(p);
    return cudaSuccess;
}
