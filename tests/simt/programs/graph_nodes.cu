// prints: 2 1 4: 22 42 12, host saw 22
// A graph made node by node: kernels by their addresses, a fill, copies, a function of the host's, a child; then changed in its executable form.
#include <cstdio>
__global__ void scale(float *x, float by, int n) { if (threadIdx.x < n) x[threadIdx.x] *= by; }
template <typename T, int ADD> __global__ void add(T *x, int n) { if (threadIdx.x < n) x[threadIdx.x] += ADD; }
struct Seen { float *at, value; };
static void look(void *p) { Seen *s = static_cast<Seen *>(p); s->value = *s->at; }
int main() {
    const int n = 32;
    float *x, host[n], out[n], three = 3, two = 2;
    for (int i = 0; i < n; ++i) host[i] = 10;
    int *y, ints[n], count = n;
    cudaMalloc(&x, sizeof host), cudaMalloc(&y, sizeof ints);
    cudaGraph_t graph, child;
    cudaGraphCreate(&graph, 0), cudaGraphCreate(&child, 0);
    cudaGraphNode_t in, scaled, back, called, filled, added, inner;
    void *arguments[] = {&x, &two, &count}, *of_add[] = {&y, &count};
    cudaKernelNodeParams p = {};
    p.func = (void *)scale, p.gridDim = dim3(1), p.blockDim = dim3(n), p.kernelParams = arguments;
    cudaGraphAddMemcpyNode1D(&in, graph, nullptr, 0, x, host, sizeof host, cudaMemcpyHostToDevice);
    cudaGraphAddKernelNode(&scaled, graph, &in, 1, &p);
    cudaKernelNodeParams q = p;
    q.func = reinterpret_cast<void *>(add<int, 2>), q.kernelParams = of_add;
    cudaMemsetParams zero = {y, 0, 0, 4, n, 1};
    cudaGraphAddMemsetNode(&filled, graph, nullptr, 0, &zero);
    cudaGraphAddKernelNode(&inner, child, nullptr, 0, &q);
    cudaGraphAddChildGraphNode(&added, graph, &filled, 1, child);
    cudaMemcpy3DParms c = {};
    c.srcPtr = make_cudaPitchedPtr(x, sizeof host, n, 1), c.dstPtr = make_cudaPitchedPtr(out, sizeof host, n, 1);
    c.extent = make_cudaExtent(sizeof host, 1, 1), c.kind = cudaMemcpyDeviceToHost;
    cudaGraphAddMemcpyNode(&back, graph, &scaled, 1, &c);
    Seen seen = {out, 0};
    cudaHostNodeParams h = {look, &seen};
    cudaGraphAddHostNode(&called, graph, nullptr, 0, &h);
    cudaGraphAddDependencies(graph, &back, &called, 1);     // made last and without it done first
    host[0] = 11;
    cudaGraphExec_t exec;
    cudaGraphInstantiate(&exec, graph, nullptr, nullptr, 0);
    cudaGraphLaunch(exec, 0);
    cudaMemcpy(ints, y, sizeof ints, cudaMemcpyDeviceToHost);
    size_t nodes, inside, roots = 0;
    cudaGraphGetNodes(graph, nullptr, &nodes), cudaGraphGetNodes(child, nullptr, &inside);
    printf("%d %zu %zu: %g ", ints[31], inside, nodes - 2, seen.value);
    const float first = seen.value;
    two = 4, three = 12;
    host[0] = 10.5f;
    cudaGraphExecKernelNodeSetParams(exec, scaled, &p);     // the numbers as they are now
    cudaGraphLaunch(exec, 0);
    printf("%g ", seen.value);
    void *again[] = {&x, &three, &count};
    const void *kernel = (const void *)scale;
    three = 0.2857142857f;
    cudaLaunchKernel(kernel, dim3(1), dim3(n), again, 0, 0);
    cudaMemcpy(out, x, sizeof out, cudaMemcpyDeviceToHost);
    printf("%g, host saw %g\n", out[0], first);
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaGraphDestroy(child), cudaFree(x), cudaFree(y);
    return static_cast<int>(roots);
}
