/* rooftop
args    = ["N: i32", "x: T[N]", "y: T[N]"]
dtypes  = ["f32"]
[[launch]]
kernel  = "scale<{T}>"
grid    = ["ceil(N / 256)"]
block   = [256]
*/
template <typename T> __global__ void scale(int n, const T* __restrict__ x, T* __restrict__ y) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) y[i] = T(2) * x[i];
}
