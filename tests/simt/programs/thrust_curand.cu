// prints: thrust 45 sorted 1 mean 1
// prints: iterators 30 11 5 31
#include <curand.h>
#include <curand_kernel.h>
#include <iostream>
#include <thrust/device_vector.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>
#include <thrust/tuple.h>
__global__ void square(float *x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= x[i]; }
struct Product { __host__ __device__ float operator()(const thrust::tuple<int, float> &t) const { return thrust::get<0>(t) * thrust::get<1>(t); } };
struct Left { __host__ __device__ float operator()(const thrust::tuple<int, float> &t) const { return thrust::get<0>(t); } };
static void iterators() {
    using namespace thrust::placeholders;
    thrust::device_vector<float> x(5, 3.0f), y(5), z(5);
    thrust::counting_iterator<int> from(0);
    auto pairs = thrust::make_zip_iterator(thrust::make_tuple(from, x.begin()));
    thrust::transform(pairs, pairs + 5, y.begin(), Product());
    auto both = thrust::make_zip_iterator(thrust::make_tuple(y.begin(), z.begin()));
    auto rows = thrust::make_zip_iterator(thrust::make_tuple(thrust::make_transform_iterator(from, _1 * 2 + 3), y.begin()));
    thrust::transform(rows, rows + 5, z.begin(), Left());
    thrust::copy(both, both + 1, both + 4);
    square<<<1, 32>>>(thrust::raw_pointer_cast(z.data()), 1);
    std::cout << "iterators " << thrust::reduce(thrust::make_transform_iterator(from, _1 * 3), thrust::make_transform_iterator(from, _1 * 3) + 5)
              << " " << *(thrust::make_transform_iterator(from, _1 + 10) + 1) << " " << thrust::count_if(from, from + 9, _1 % 2 == 0) << " "
              << thrust::reduce(y.begin(), y.end()) + z[0] + z[4] + 1 << std::endl;
}
__global__ void draw(float *x, unsigned long long seed, int n) {
    int i = threadIdx.x;
    curandState s;
    curand_init(seed, i, 0, &s);
    if (i < n) x[i] = curand_uniform(&s);
}
int main() {
    iterators();
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
