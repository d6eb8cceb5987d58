// prints: sum 4950 on 2 streams
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
template <typename T>
class DeviceBuffer {
public:
    explicit DeviceBuffer(size_t n) : n_(n) {
        if (cudaMalloc(reinterpret_cast<void **>(&p_), n * sizeof(T)) != cudaSuccess) throw std::runtime_error("no memory");
    }
    ~DeviceBuffer() { cudaFree(p_); }
    DeviceBuffer(const DeviceBuffer &) = delete;
    T *get() const { return p_; }
    size_t bytes() const { return n_ * sizeof(T); }
private:
    T *p_ = nullptr;
    size_t n_;
};
struct Add { __host__ __device__ int operator()(int a, int b) const { return a + b; } };
template <typename T, typename Op>
__global__ void combine(const T *in, T *out, int n, Op op) {
    T v = 0;
    for (int i = 0; i < n; ++i) v = op(v, in[i]);
    *out = v;
}
template <typename T, typename Op>
void launch(cudaStream_t s, const T *in, T *out, int n, Op op) { combine<T, Op><<<1, 1, 0, s>>>(in, out, n, op); }
template <class K, class... A>
void timed(const std::string &name, K kernel, A... args) {
    kernel<<<1, 1>>>(args...);
    if (cudaGetLastError() != cudaSuccess) throw std::runtime_error(name);
}
int main() {
    const int n = 100;
    int *h;
    cudaMallocHost(&h, n * sizeof(int));
    for (int i = 0; i < n; ++i) h[i] = i;
    cudaStream_t streams[2];
    for (auto &s : streams) cudaStreamCreate(&s);
    {
        DeviceBuffer<int> in(n), out(2);
        cudaMemcpyAsync(in.get(), h, in.bytes(), cudaMemcpyHostToDevice, streams[0]);
        for (int i = 0; i < 2; ++i) launch(streams[i], in.get() + 50 * i, out.get() + i, 50, Add());
        timed("combine", combine<int, Add>, in.get(), out.get(), 50, Add());
        int sums[2];
        cudaMemcpyAsync(sums, out.get(), sizeof sums, cudaMemcpyDeviceToHost, streams[1]);
        for (auto &s : streams) cudaStreamSynchronize(s), cudaStreamDestroy(s);
        std::cout << "sum " << Add()(sums[0], sums[1]) << " on 2 streams\n";
    }
    cudaFreeHost(h);
    return 0;
}
