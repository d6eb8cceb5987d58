// prints: relu: tensors of Float, sizes 128 128
// prints: row_sum: tensors of Half, sizes 128 128
#include <cuda_fp16.h>
#include <torch/python.h>
#define CHECK_INPUT(x) TORCH_CHECK(x.is_cuda() && x.is_contiguous(), #x " must be a contiguous CUDA tensor")
template <typename scalar_t>
__global__ void relu_kernel(const scalar_t *x, scalar_t *y, int64_t n) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    scalar_t v = 0.f;
    if (i < n) v += x[i] * scalar_t(1);
    if (i < n) y[i] = x[i] > scalar_t(0) ? v : scalar_t(0);
}
__global__ void row_sum_kernel(const half *x, float *y, int n) {
    float v = 0;
    for (int i = threadIdx.x; i < n; i += 32) v += __half2float(x[blockIdx.x * n + i]);
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
    if (threadIdx.x == 0) y[blockIdx.x] = v;
}
torch::Tensor relu(torch::Tensor x) {
    CHECK_INPUT(x);
    auto y = torch::empty_like(x);
    const int threads = 256;
    const auto n = x.numel();
    AT_DISPATCH_FLOATING_TYPES_AND(at::ScalarType::Half, x.scalar_type(), "relu", ([&] {
        relu_kernel<scalar_t><<<(n + threads - 1) / threads, threads>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), n);
    }));
    return y;
}
torch::Tensor row_sum(const torch::Tensor &x) {
    TORCH_CHECK(x.dtype() == torch::kHalf && x.dim() == 2, "rows of half")
    auto y = torch::zeros(x.size(0), x.options().dtype(torch::kFloat32));
    row_sum_kernel<<<x.size(0), 32, 0, at::cuda::getCurrentCUDAStream()>>>(reinterpret_cast<const half *>(x.data_ptr<at::Half>()), y.data_ptr<float>(), x.size(1));
    return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("relu", &relu, "ReLU");
    m.def("row_sum", &row_sum);
}
