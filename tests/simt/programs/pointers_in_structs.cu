// prints: 3 7
#include <cstdio>
struct Node { float *values; int n; };
struct Params { Node *nodes; float **rows; int count; };
__global__ void sum(Params p, float *out) {
    int i = threadIdx.x;
    if (i < p.count) { float s = 0; for (int k = 0; k < p.nodes[i].n; ++k) s += p.nodes[i].values[k] + p.rows[i][k] * 0; out[i] = s; }
}
int main() {
    float h[4] = {1, 2, 3, 4}, *v, *out, r[2];
    cudaMalloc(&v, sizeof h), cudaMalloc(&out, sizeof r);
    cudaMemcpy(v, h, sizeof h, cudaMemcpyHostToDevice);
    Node nodes[2] = {{v, 2}, {v + 2, 2}};
    float *rows[2] = {v, v + 2};
    Params p = {nullptr, nullptr, 2};
    cudaMalloc(&p.nodes, sizeof nodes), cudaMalloc(&p.rows, sizeof rows);
    cudaMemcpy(p.nodes, nodes, sizeof nodes, cudaMemcpyHostToDevice);
    cudaMemcpy(p.rows, rows, sizeof rows, cudaMemcpyHostToDevice);
    sum<<<1, 32>>>(p, out);
    cudaMemcpy(r, out, sizeof r, cudaMemcpyDeviceToHost);
    printf("%g %g\n", r[0], r[1]);
    cudaFree(v), cudaFree(out), cudaFree(p.nodes), cudaFree(p.rows);
}
