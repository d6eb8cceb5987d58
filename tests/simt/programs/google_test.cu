// Tests of Google's, without a main(): each runs, with its fixture; one fails, and says where.
// prints: [       OK ] Twice.Plain
// prints: [       OK ] Held.Doubles
// prints: [  FAILED  ] Held.Fails
#include <gtest/gtest.h>
#include <vector>

__global__ void twice(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}

class Held : public ::testing::Test {
protected:
    void SetUp() override { ASSERT_EQ(cudaMalloc(&d, 100 * sizeof(float)), cudaSuccess); }
    void TearDown() override { cudaFree(d); }
    float *d = nullptr;
};

TEST(Twice, Plain) { EXPECT_NEAR(2 * 0.1f, 0.2, 1e-6) << "never said"; }

TEST_F(Held, Doubles) {
    std::vector<float> h(100, 1.5f);
    cudaMemcpy(d, h.data(), 400, cudaMemcpyHostToDevice);
    twice<<<1, 128>>>(d, 100);
    cudaMemcpy(h.data(), d, 400, cudaMemcpyDeviceToHost);
    for (float v : h) ASSERT_FLOAT_EQ(v, 3.0f);
}

TEST_F(Held, Fails) { EXPECT_LT(2, 1) << "as it should"; }
