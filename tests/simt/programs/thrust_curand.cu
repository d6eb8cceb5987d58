// prints: thrust 45 sorted 1 mean 1
#include <curand.h>
#include <curand_kernel.h>
#include <iostream>
#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>
__global__ void square(float *x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= x[i]; }
__global__ void draw(float *x, unsigned long long seed, int n) {
    int i = threadIdx.x;
    curandState s;
    curand_init(seed, i, 0, &s);
    if (i < n) x[i] = curand_uniform(&s);
}
int main() {
    thrust::host_vector<float> h(10);
    for (int i = 0; i < 10; ++i) h[i] = 9 - i;
    thrust::device_vector<float> d = h;
    float sum = thrust::reduce(d.begin(), d.end(), 0.0f, thrust::plus<float>());
    thrust::sort(d.begin(), d.end());
    square<<<1, 32>>>(thrust::raw_pointer_cast(d.data()), d.size());
    bool sorted = d[0] == 0 && d[9] == 81;
    curandGenerator_t gen;
    float *u;
    cudaMalloc(&u, 1000 * sizeof(float));
    curandCreateGenerator(&gen, CURAND_RNG_PSEUDO_DEFAULT);
    curandSetPseudoRandomGeneratorSeed(gen, 1234ULL);
    curandGenerateUniform(gen, u, 1000);
    draw<<<1, 512>>>(u, 1234, 500);
    float mean = thrust::reduce(thrust::device_ptr<float>(u), thrust::device_ptr<float>(u + 1000)) / 1000;
    std::cout << "thrust " << sum << " sorted " << sorted << " mean " << (mean > 0.4f && mean < 0.6f) << std::endl;
    curandDestroyGenerator(gen);
    cudaFree(u);
}
