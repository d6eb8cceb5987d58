// prints: 40 after 4 graphs
#include <cstdio>
#include <functional>
#define CHECK_LAST() check(cudaGetLastError(), __LINE__)
static void check(cudaError_t e, int line) { if (e) { printf("%s (%s) at %d\n", cudaGetErrorName(e), cudaGetErrorString(e), line); std::exit(1); } }
#define LAUNCH(kernel, grid, block, ...) do { kernel<<<grid, block>>>(__VA_ARGS__); CHECK_LAST(); } while (0)
#define DEFINE_OP(name, expression) __global__ void name##_op(int *x) { x[threadIdx.x] = expression; }
DEFINE_OP(increment, x[threadIdx.x] + 1)
DEFINE_OP(add_ten, x[threadIdx.x] + 9)
__global__ void copy(const int *a, int *b) { b[threadIdx.x] = a[threadIdx.x]; }
__global__ void copy(const float *a, float *b) { b[threadIdx.x] = a[threadIdx.x]; }
template <typename T> __global__ void fill(T *p, T v) { p[threadIdx.x] = v; }
int main() {
    int *x, *y, h;
    cudaMalloc(&x, 128), cudaMalloc(&y, 128);
    fill<<<1, 32>>>(x, 0);
    cudaStream_t s;
    cudaStreamCreate(&s);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
    LAUNCH(increment_op, 1, 32, x);
    add_ten_op<<<1, 32, 0, s>>>(x);
    cudaStreamEndCapture(s, &graph);
    cudaGraphInstantiate(&exec, graph, NULL, NULL, 0);
    for (int i = 0; i < 4; ++i) cudaGraphLaunch(exec, s);
    cudaStreamSynchronize(s);
    copy<<<1, 32>>>(x, y);
    cudaMemcpy(&h, y, sizeof h, cudaMemcpyDeviceToHost);
    printf("%d after 4 graphs\n", h);
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaStreamDestroy(s);
    cudaFree(x), cudaFree(y);
}
