#pragma once
enum cudaDataType { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16F = 2, CUDA_R_8I = 3, CUDA_R_8U = 8, CUDA_R_32I = 10, CUDA_R_16BF = 14,
    CUDA_R_8F_E4M3 = 28, CUDA_R_8F_E5M2 = 29 };
typedef cudaDataType cudaDataType_t;
namespace simt {
struct Library {                    // a library's function on the host: device memory is open to it, and what it wrote is known
    SIMT_API Library();
    SIMT_API ~Library();
    SIMT_API void wrote(void* p, size_t bytes);
};
}  // namespace simt
