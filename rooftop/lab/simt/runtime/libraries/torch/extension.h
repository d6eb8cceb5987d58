// As much of torch's C++ as a file with kernels for torch needs: tensors on the device that such a file makes, looks at and hands to its
// kernels.
#pragma once
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include "cuda_fp8.h"
#include "library_types.h"

namespace c10 {
struct BFloat16 : __nv_bfloat16 { using __nv_bfloat16::__nv_bfloat16; BFloat16() = default; BFloat16(float f) : __nv_bfloat16(f) {}
    BFloat16(const __nv_bfloat16& v) : __nv_bfloat16(v) {} operator float() const { return __bfloat162float(*this); } };
struct Half : __half { using __half::__half; Half() = default; Half(float f) : __half(f) {} Half(const __half& v) : __half(v) {}
    operator float() const { return __half2float(*this); } };
enum class ScalarType : signed char { Byte, Char, Short, Int, Long, Half, Float, Double, ComplexHalf, ComplexFloat, ComplexDouble, Bool,
    QInt8, QUInt8, QInt32, BFloat16, Float8_e5m2 = 23, Float8_e4m3fn = 24, Undefined = 44 };
enum class DeviceType : signed char { CPU, CUDA };
struct Device {
    DeviceType kind = DeviceType::CUDA;
    int number = 0;
    Device(DeviceType k = DeviceType::CUDA, int n = 0) : kind(k), number(n) {}
    Device(const std::string& s) : kind(s.rfind("cuda", 0) == 0 ? DeviceType::CUDA : DeviceType::CPU) {}
    bool is_cuda() const { return kind == DeviceType::CUDA; }
    bool is_cpu() const { return kind == DeviceType::CPU; }
    DeviceType type() const { return kind; }
    int index() const { return number; }
    bool operator==(const Device& o) const { return kind == o.kind; }
    bool operator!=(const Device& o) const { return kind != o.kind; }
};
inline size_t elementSize(ScalarType t) {
    switch (t) {
        case ScalarType::Double: case ScalarType::Long: return 8;
        case ScalarType::Float: case ScalarType::Int: return 4;
        case ScalarType::Half: case ScalarType::BFloat16: case ScalarType::Short: return 2;
        default: return 1;
    }
}
inline const char* toString(ScalarType t) { return t == ScalarType::Float ? "Float" : t == ScalarType::Half ? "Half"
    : t == ScalarType::BFloat16 ? "BFloat16" : t == ScalarType::Double ? "Double" : t == ScalarType::Int ? "Int" : t == ScalarType::Long
    ? "Long" : "another type"; }
inline std::ostream& operator<<(std::ostream& o, ScalarType t) { return o << toString(t); }
inline std::ostream& operator<<(std::ostream& o, const Device& d) { return o << (d.is_cuda() ? "cuda" : "cpu"); }
struct Error : std::runtime_error { using std::runtime_error::runtime_error; };
template <class T> using optional = std::optional<T>;
using nullopt_t = std::nullopt_t;
inline constexpr std::nullopt_t nullopt = std::nullopt;
struct IntArrayRef {
    std::vector<int64_t> v;
    IntArrayRef() = default;
    IntArrayRef(std::vector<int64_t> x) : v(std::move(x)) {}
    IntArrayRef(std::initializer_list<int64_t> x) : v(x) {}
    template <class N, class = std::enable_if_t<std::is_integral_v<N>>> IntArrayRef(N n) : v{static_cast<int64_t>(n)} {}
    size_t size() const { return v.size(); }
    int64_t operator[](size_t i) const { return v[i]; }
    auto begin() const { return v.begin(); }
    auto end() const { return v.end(); }
    std::vector<int64_t> vec() const { return v; }
    const int64_t* data() const { return v.data(); }
    bool operator==(const IntArrayRef& o) const { return v == o.v; }
    bool operator!=(const IntArrayRef& o) const { return v != o.v; }
};
inline std::ostream& operator<<(std::ostream& o, const IntArrayRef& x) { for (const int64_t n : x.v) o << n << ' '; return o; }
}  // namespace c10
namespace at {
using c10::BFloat16; using c10::Half; using c10::ScalarType; using c10::Device; using c10::DeviceType; using c10::IntArrayRef;
    using c10::nullopt;
enum class MemoryFormat { Contiguous, Preserve };
struct TensorOptions {
    ScalarType kind = ScalarType::Float;
    TensorOptions(ScalarType t = ScalarType::Float) : kind(t) {}
    TensorOptions(Device) {}
    TensorOptions(DeviceType) {}
    TensorOptions dtype(ScalarType t) const { TensorOptions o = *this; o.kind = t; return o; }
    template <class D> TensorOptions device(D, int = 0) const { return *this; }
    TensorOptions requires_grad(bool) const { return *this; }
    template <class L> TensorOptions layout(L) const { return *this; }
    ScalarType dtype() const { return kind; }
};
inline std::ostream& operator<<(std::ostream& o, const TensorOptions& t) { return o << t.dtype(); }
struct Storage {
    void* p = nullptr;
    size_t bytes;
    explicit Storage(size_t n) : bytes(n) { cudaMalloc(&p, n); }
    ~Storage() { cudaFree(p); }
    Storage(const Storage&) = delete;
};
template <class T, int N, template <class> class = std::add_pointer, class Index = int64_t>
struct Accessor {                   // tensor[i][j]
    T* p; const Index *n, *s;
    __host__ __device__ auto operator[](Index i) const {
        if constexpr (N == 1) return static_cast<T&>(p[i * s[0]]);
        else return Accessor<T, N - 1, std::add_pointer, Index>{p + i * s[0], n + 1, s + 1};
    }
};
template <class T, int N, template <class> class P = std::add_pointer, class Index = int64_t>
struct PackedTensorAccessor {
    T* p; Index n[N], s[N];
    __host__ __device__ Index size(int i) const { return n[i]; }
    __host__ __device__ Index stride(int i) const { return s[i]; }
    __host__ __device__ T* data() const { return p; }
    __host__ __device__ decltype(auto) operator[](Index i) const {
        if constexpr (N == 1) return (p[i * s[0]]);
        else return Sub<N - 1>{p + i * s[0], n + 1, s + 1};
    }
    template <int M>
    struct Sub {
        T* p; const Index *n, *s;
        __host__ __device__ Index size(int i) const { return n[i]; }
        __host__ __device__ decltype(auto) operator[](Index i) const {
            if constexpr (M == 1) return (p[i * s[0]]);
            else return Sub<M - 1>{p + i * s[0], n + 1, s + 1};
        }
    };
};
template <class T> struct RestrictPtrTraits { typedef T* PtrType; };
/// What `item()` gives.
struct Scalar {
    double v;
    template <class T> T to() const { return static_cast<T>(v); }
    float toFloat() const { return to<float>(); }
    double toDouble() const { return v; }
    int toInt() const { return to<int>(); }
    int64_t toLong() const { return to<int64_t>(); }
};

class Tensor {
public:
    Tensor() = default;
    Tensor(std::vector<int64_t> shape, ScalarType t) : shape_(std::move(shape)), kind_(t) {
        stride_.resize(shape_.size());
        int64_t n = 1;
        for (size_t i = shape_.size(); i-- > 0; n *= shape_[i]) stride_[i] = n;
        storage_ = std::make_shared<Storage>(static_cast<size_t>(std::max<int64_t>(n, 1)) * c10::elementSize(t));
    }
    bool defined() const { return storage_ != nullptr; }
    int64_t dim() const { return static_cast<int64_t>(shape_.size()); }
    int64_t ndimension() const { return dim(); }
    int64_t size(int64_t i) const {
        if (i < -dim() || i >= dim()) throw c10::Error("Dimension out of range");
        return shape_[static_cast<size_t>(i < 0 ? i + dim() : i)];
    }
    int64_t stride(int64_t i) const { return stride_.at(static_cast<size_t>(i < 0 ? i + dim() : i)); }
    IntArrayRef sizes() const { return shape_; }
    IntArrayRef strides() const { return stride_; }
    int64_t numel() const { int64_t n = 1; for (const int64_t v : shape_) n *= v; return n; }
    size_t nbytes() const { return static_cast<size_t>(numel()) * element_size(); }
    size_t element_size() const { return c10::elementSize(kind_); }
    size_t itemsize() const { return element_size(); }
    ScalarType scalar_type() const { return kind_; }
    ScalarType type() const { return kind_; }              // as AT_DISPATCH takes it
    ScalarType dtype() const { return kind_; }
    TensorOptions options() const { return kind_; }
    Device device() const { return {}; }
    int get_device() const { return 0; }
    bool is_cuda() const { return true; }
    bool is_cpu() const { return false; }
    bool is_contiguous() const {
        int64_t n = 1;
        for (size_t i = shape_.size(); i-- > 0; n *= shape_[i])
            if (shape_[i] != 1 && stride_[i] != n) return false;
        return true;
    }
    bool is_same(const Tensor& o) const { return storage_ == o.storage_; }
    bool is_floating_point() const { return kind_ == ScalarType::Float || kind_ == ScalarType::Double || kind_ == ScalarType::Half
        || kind_ == ScalarType::BFloat16; }
    template <class T = void> T* data_ptr() const { return reinterpret_cast<T*>(at()); }
    template <class T> T* data() const { return data_ptr<T>(); }
    template <class T> const T* const_data_ptr() const { return data_ptr<T>(); }
    template <class T> T* mutable_data_ptr() const { return data_ptr<T>(); }
    void* data_ptr() const { return at(); }
    void* mutable_data_ptr() const { return at(); }
    const void* const_data_ptr() const { return at(); }
    Tensor cuda() const { return *this; }
    Tensor cpu() const { return *this; }
    Tensor detach() const { return *this; }
    template <class... A> Tensor to(ScalarType t, A...) const { return t == kind_ ? *this : converted(t); }
    Tensor to(Device) const { return *this; }
    Tensor to(const TensorOptions& o) const { return to(o.kind); }
    Tensor contiguous() const { return is_contiguous() ? *this : converted(kind_); }
    Tensor contiguous(MemoryFormat) const { return contiguous(); }
    Tensor clone() const { return converted(kind_); }
    Tensor view(IntArrayRef shape) const { return reshape(shape); }
    Tensor reshape(IntArrayRef shape) const {
        Tensor t = contiguous();
        int64_t known = 1, open = -1;
        for (size_t i = 0; i < shape.v.size(); ++i) shape.v[i] < 0 ? open = static_cast<int64_t>(i) : known *= shape.v[i];
        if (open >= 0) shape.v[static_cast<size_t>(open)] = numel() / std::max<int64_t>(known, 1);
        Tensor made = t;
        made.shape_ = shape.v, made.stride_.assign(shape.v.size(), 1);
        for (size_t i = shape.v.size(); i-- > 1;) made.stride_[i - 1] = made.stride_[i] * shape.v[i];
        if (made.numel() != numel()) throw c10::Error("shape is invalid for input of this size");
        return made;
    }
    Tensor flatten() const { return reshape(IntArrayRef(std::vector<int64_t>{-1})); }
    Tensor transpose(int64_t a, int64_t b) const {
        Tensor t = *this;
        const auto x = static_cast<size_t>(a < 0 ? a + dim() : a), y = static_cast<size_t>(b < 0 ? b + dim() : b);
        std::swap(t.shape_.at(x), t.shape_.at(y)), std::swap(t.stride_[x], t.stride_[y]);
        return t;
    }
    Tensor t() const { return transpose(0, 1); }
    Tensor permute(IntArrayRef order) const {
        Tensor t = *this;
        for (size_t i = 0; i < order.size(); ++i) t.shape_[i] = shape_.at(static_cast<size_t>(order[i])),
            t.stride_[i] = stride_[static_cast<size_t>(order[i])];
        return t;
    }
    Tensor unsqueeze(int64_t at) const { Tensor t = *this; const auto i = at < 0 ? at + dim() + 1 : at;
        t.shape_.insert(t.shape_.begin() + i, 1), t.stride_.insert(t.stride_.begin() + i, 1); return t; }
    Tensor squeeze(int64_t i) const { Tensor t = *this; i = i < 0 ? i + dim() : i;
        if (shape_.at(static_cast<size_t>(i)) == 1) t.shape_.erase(t.shape_.begin() + i), t.stride_.erase(t.stride_.begin() + i); return t;
        }
    Tensor slice(int64_t d, int64_t from, int64_t to) const { Tensor t = *this; t.first_ += from * stride_.at(static_cast<size_t>(d)),
        t.shape_[static_cast<size_t>(d)] = to - from; return t; }
    Tensor& zero_() { cudaMemset(storage_->p, 0, storage_->bytes); return *this; }
    Tensor& fill_(double v) { for (int64_t i = 0; i < numel(); ++i) set(i, v); return *this; }
    template <class T, int N, template <class> class P = std::add_pointer, class I = int64_t> PackedTensorAccessor<T, N, P,
        I> packed_accessor() const {
        if (dim() != N) throw c10::Error("accessor of another number of dimensions");
        PackedTensorAccessor<T, N, P, I> a;
        a.p = data_ptr<T>();
        for (int i = 0; i < N; ++i) a.n[i] = static_cast<I>(shape_[i]), a.s[i] = static_cast<I>(stride_[i]);
        return a;
    }
    template <class T, int N, template <class> class P = std::add_pointer> PackedTensorAccessor<T, N, P,
        int32_t> packed_accessor32() const { return packed_accessor<T, N, P, int32_t>(); }
    template <class T, int N, template <class> class P = std::add_pointer> PackedTensorAccessor<T, N, P,
        int64_t> packed_accessor64() const { return packed_accessor<T, N, P, int64_t>(); }
    template <class T> T item() const { return static_cast<T>(get(0)); }
    Scalar item() const { return {get(0)}; }
    Tensor max() const;
    Tensor min() const;
    Tensor sum() const;
    Tensor mean() const;
    std::tuple<Tensor, Tensor> max(int64_t d, bool keep = false) const;
    std::tuple<Tensor, Tensor> min(int64_t d, bool keep = false) const;
    Tensor sum(int64_t d, bool keep = false) const;
    Tensor mean(int64_t d, bool keep = false) const;
    Tensor norm(double p = 2) const {
        double sum = 0;
        for (int64_t i = 0; i < numel(); ++i) sum += std::pow(std::abs(get(i)), p);
        Tensor t({}, kind_);
        t.set(0, std::pow(sum, 1 / p));
        return t;
    }
    void set(int64_t linear, double v) {
        simt::Library here;
        char* p = static_cast<char*>(at()) + place(linear) * static_cast<int64_t>(element_size());
        switch (kind_) {
            case ScalarType::Float: *reinterpret_cast<float*>(p) = static_cast<float>(v); break;
            case ScalarType::Double: *reinterpret_cast<double*>(p) = v; break;
            case ScalarType::Half: *reinterpret_cast<__half*>(p) = __float2half(static_cast<float>(v)); break;
            case ScalarType::BFloat16: *reinterpret_cast<__nv_bfloat16*>(p) = __float2bfloat16(static_cast<float>(v)); break;
            case ScalarType::Int: *reinterpret_cast<int*>(p) = static_cast<int>(v); break;
            case ScalarType::Long: *reinterpret_cast<int64_t*>(p) = static_cast<int64_t>(v); break;
            case ScalarType::Short: *reinterpret_cast<short*>(p) = static_cast<short>(v); break;
            default: *p = static_cast<char>(v);
        }
        here.wrote(p, element_size());
    }
    double get(int64_t linear) const {
        simt::Library here;
        const char* p = static_cast<const char*>(at()) + place(linear) * static_cast<int64_t>(element_size());
        switch (kind_) {
            case ScalarType::Float: return *reinterpret_cast<const float*>(p);
            case ScalarType::Double: return *reinterpret_cast<const double*>(p);
            case ScalarType::Half: return __half2float(*reinterpret_cast<const __half*>(p));
            case ScalarType::BFloat16: return __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(p));
            case ScalarType::Int: return *reinterpret_cast<const int*>(p);
            case ScalarType::Long: return static_cast<double>(*reinterpret_cast<const int64_t*>(p));
            default: return *p;
        }
    }

private:
    void* at() const { return storage_ ? static_cast<char*>(storage_->p) + first_ * static_cast<int64_t>(element_size()) : nullptr; }
    int64_t place(int64_t linear) const {
        int64_t p = 0;
        for (size_t i = shape_.size(); i-- > 0; linear /= shape_[i]) p += linear % shape_[i] * stride_[i];
        return p;
    }
    Tensor converted(ScalarType t) const {
        Tensor made(shape_, t);
        for (int64_t i = 0; i < numel(); ++i) made.set(i, get(i));
        return made;
    }
    std::vector<int64_t> shape_, stride_;
    ScalarType kind_ = ScalarType::Float;
    std::shared_ptr<Storage> storage_;
    int64_t first_ = 0;
};
#define SIMT_TYPE(name, T) inline constexpr ScalarType k##name = ScalarType::T;
SIMT_TYPE(Float, Float) SIMT_TYPE(Float32, Float) SIMT_TYPE(Double, Double) SIMT_TYPE(Float64, Double) SIMT_TYPE(Half,
    Half) SIMT_TYPE(Float16, Half) SIMT_TYPE(BFloat16, BFloat16)
SIMT_TYPE(Int, Int) SIMT_TYPE(Int32, Int) SIMT_TYPE(Long, Long) SIMT_TYPE(Int64, Long) SIMT_TYPE(Short, Short) SIMT_TYPE(Int16,
    Short) SIMT_TYPE(Char, Char) SIMT_TYPE(Int8, Char)
SIMT_TYPE(Byte, Byte) SIMT_TYPE(UInt8, Byte) SIMT_TYPE(Bool, Bool) SIMT_TYPE(Float8_e4m3fn, Float8_e4m3fn) SIMT_TYPE(Float8_e5m2,
    Float8_e5m2)
#undef SIMT_TYPE
inline constexpr DeviceType kCUDA = DeviceType::CUDA, kCPU = DeviceType::CPU;
inline TensorOptions dtype(ScalarType t) { return t; }
inline TensorOptions device(Device) { return {}; }
inline Tensor empty(IntArrayRef shape, TensorOptions o = {}) { return Tensor(shape.v, o.kind); }
inline Tensor zeros(IntArrayRef shape, TensorOptions o = {}) { Tensor t(shape.v, o.kind); t.zero_(); return t; }
inline Tensor full(IntArrayRef shape, double v, TensorOptions o = {}) { Tensor t(shape.v, o.kind); t.fill_(v); return t; }
inline Tensor ones(IntArrayRef shape, TensorOptions o = {}) { return full(shape, 1, o); }
inline Tensor empty_like(const Tensor& t, TensorOptions o) { return Tensor(t.sizes().v, o.kind); }
inline Tensor empty_like(const Tensor& t) { return Tensor(t.sizes().v, t.scalar_type()); }
inline Tensor zeros_like(const Tensor& t) { return zeros(t.sizes(), t.options()); }
inline Tensor zeros_like(const Tensor& t, TensorOptions o) { return zeros(t.sizes(), o); }
inline Tensor ones_like(const Tensor& t) { return full(t.sizes(), 1, t.options()); }
inline Tensor full_like(const Tensor& t, double v) { return full(t.sizes(), v, t.options()); }
/// `of` the values along dimension `d`, in double.
template <class F> Tensor reduced(const Tensor& x, int64_t d, bool keep, ScalarType kind, F of) {
    std::vector<int64_t> shape = x.sizes().v;
    const auto at = static_cast<size_t>(d < 0 ? d + x.dim() : d);
    const int64_t n = shape.at(at);
    int64_t inner = 1, outer = 1;
    for (size_t i = 0; i < shape.size(); ++i) (i < at ? outer : inner) *= i == at ? 1 : shape[i];
    shape[at] = 1;
    Tensor made(shape, kind);
    std::vector<double> v(static_cast<size_t>(n));
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < inner; ++i) {
            for (int64_t k = 0; k < n; ++k) v[static_cast<size_t>(k)] = x.get((o * n + k) * inner + i);
            made.set(o * inner + i, of(v));
        }
    return keep ? made : made.squeeze(static_cast<int64_t>(at));
}
#define SIMT_EXTREME(name)                                                                                                       \
    inline std::tuple<Tensor, Tensor> Tensor::name(int64_t d, bool keep) const {                                                 \
        if (!numel()) throw c10::Error(#name " of no elements");                                                                 \
        return {reduced(*this, d, keep, kind_, [](auto& v) { return *std::name##_element(v.begin(), v.end()); }),                \
                reduced(*this, d, keep, ScalarType::Long, [](auto& v) { return static_cast<double>(std::name##_element(v.begin(), v.end()) - v.begin()); })}; \
    }                                                                                                                            \
    inline Tensor Tensor::name() const { return std::get<0>(flatten().name(0)); }
SIMT_EXTREME(max) SIMT_EXTREME(min)
#undef SIMT_EXTREME
inline Tensor Tensor::sum(int64_t d, bool keep) const {
    return reduced(*this, d, keep, is_floating_point() ? kind_ : ScalarType::Long,
        [](auto& v) { return std::accumulate(v.begin(), v.end(), 0.0); });
}
inline Tensor Tensor::mean(int64_t d, bool keep) const {
    return reduced(*this, d, keep, kind_, [](auto& v) { return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size()); });
}
inline Tensor Tensor::sum() const { return flatten().sum(0); }
inline Tensor Tensor::mean() const { return flatten().mean(0); }
#define SIMT_OF(name) template <class... A> auto name(const Tensor& x, A... how) { return x.name(how...); }
SIMT_OF(max) SIMT_OF(min) SIMT_OF(sum) SIMT_OF(mean)
#undef SIMT_OF
namespace cuda {
struct CUDAStream { operator cudaStream_t() const { return nullptr; } cudaStream_t stream() const { return nullptr; } };
inline CUDAStream getCurrentCUDAStream(int = 0) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = 0) { return {}; }
inline cudaDeviceProp* getCurrentDeviceProperties() { static cudaDeviceProp p; cudaGetDeviceProperties(&p, 0); return &p; }
struct CUDAGuard { template <class D> explicit CUDAGuard(D) {} };
struct OptionalCUDAGuard { template <class... D> explicit OptionalCUDAGuard(D...) {} };
}  // namespace cuda
template <class T> inline T ceil_div(T a, T b) { return (a + b - 1) / b; }
}  // namespace at
namespace c10 {
namespace cuda { using namespace at::cuda; }
using at::Tensor; using at::TensorOptions;
template <class T> std::vector<T> irange(T n) { std::vector<T> v; for (T i = 0; i < n; ++i) v.push_back(i); return v; }
}
namespace torch {
using namespace at;
using c10::optional; using c10::elementSize;
using c10::DeviceType;
namespace cuda { inline void synchronize() { cudaDeviceSynchronize(); } inline bool is_available() { return true; }
    using namespace at::cuda; }
}  // namespace torch
namespace simt {
// Functions that a file offers are called with the first tensors that they take: a type and a shape that throw, or that launch nothing, are
// passed over.
inline const char* shown_by = nullptr;             // whoever compares wants to see what goes in and comes out (rooftop/lab/check/like.py)
inline void shown(const char* when, int number, const at::Tensor& t) {
    if (!shown_by || !t.defined()) return;
    const at::Tensor whole = t.contiguous();
    static const char* const kinds[] = {"u8", "i8", "i16", "i32", "i64", "half", "float", "double"};
    std::vector<unsigned char> bytes(whole.nbytes());
    cudaMemcpy(bytes.data(), whole.data_ptr(), bytes.size(), cudaMemcpyDeviceToHost);
    std::string text = std::string(shown_by) + " " + when + " tensor" + std::to_string(number) + " " + (t.scalar_type() == at::kBFloat16
        ? "bf16" : static_cast<int>(t.scalar_type()) < 8 ? kinds[static_cast<int>(t.scalar_type())] : "u8") + " ";
    for (int64_t i = 0; i < t.dim(); ++i) text += (i ? "x" : "") + std::to_string(t.size(i));
    text += t.dim() ? " " : "1 ";
    for (const unsigned char b : bytes) text += "0123456789abcdef"[b >> 4], text += "0123456789abcdef"[b & 15];
    std::cout << text << std::endl;
}
template <class T> void shown_result(const T& v) {
    if constexpr (std::is_same_v<T, at::Tensor>) shown("out", 0, v);
    else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) for (size_t i = 0; i < v.size(); ++i) shown("out", static_cast<int>(i),
        v[i]);
}
inline at::Tensor made_tensor(at::ScalarType kind, std::vector<int64_t> shape, int seed) {
    at::Tensor t(shape, kind);
    std::mt19937 drawn(seed + 1);
    const bool whole = !t.is_floating_point();
    for (int64_t i = 0; i < t.numel(); ++i) t.set(i, whole ? drawn() % 16 : drawn() / 2147483648.0 - 1.0);
    return t;
}
struct Made {
    at::ScalarType kind;
    std::vector<int64_t> shape;
    int seed = 0;
    std::vector<at::Tensor> given;
    template <class T> T of() {
        if constexpr (std::is_same_v<T, at::Tensor>) {
            given.push_back(made_tensor(kind, shape, seed++));
            shown("before", seed - 1, given.back());
            return given.back();
        }
        else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) return {made_tensor(kind, shape, seed++),
            made_tensor(kind, shape, seed++)};
        else if constexpr (std::is_same_v<T, bool>) return true;
        else if constexpr (std::is_integral_v<T>) return static_cast<T>(shape.back());
        else if constexpr (std::is_floating_point_v<T>) return T(1);
        else return T{};
    }
};
template <class T> T& lasting(T&& v) { return v; }     // for a parameter that is a reference
inline bool larger = false;         // tensors of shapes that tiles divide
template <class F> void attempt(const char* name, F call) {
    std::string why;
    const int64_t side = larger ? 256 : 128;
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{side, side}, {32 * side}, {2, larger ? side : 64, 64},
        {1, 2, side, 64}})
        for (const at::ScalarType kind : {at::kFloat, at::kHalf, at::kBFloat16, at::kInt, at::kDouble, at::kChar, at::kLong, at::kByte}) {
            simt_fresh();
            const unsigned long long before = simt_launches();
            try {
                Made made{kind, shape};
                attempting = true;
                if (shown_by) std::cout << shown_by << " call " << name << std::endl;
                call(made);
                cudaDeviceSynchronize();
                if (simt_launches() == before) continue;
                for (size_t i = 0; i < made.given.size(); ++i) shown("after", static_cast<int>(i), made.given[i]);
                std::cout << name << ": tensors of " << c10::toString(kind) << ", sizes";
                for (const int64_t n : shape) std::cout << ' ' << n;
                std::cout << std::endl;
                return;
            } catch (const std::exception& e) {
                why = e.what();
            }
        }
    std::cout << name << ": takes none of the tensors tried" << (why.empty() ? "" : ": ") << why << std::endl;
}
}  // namespace simt
struct SimtModule {
    template <class R, class... P, class... A> SimtModule& def(const char* name, R (*f)(P...), A&&...) {
        simt::attempt(name, [f](simt::Made& made) { std::tuple<std::decay_t<P>...> all{made.of<std::decay_t<P>>()...};
            if constexpr (std::is_void_v<R>) std::apply(f, all); else simt::shown_result(std::apply(f, all)); });
        return *this;
    }
    template <class R, class... P> SimtModule& impl(const char* name, R (*f)(P...)) { return def(name, f); }
    template <class... A> SimtModule& def(A&&...) { return *this; }
    template <class... A> SimtModule& impl(A&&...) { return *this; }
    SimtModule& doc(...) { return *this; }
};
namespace py { struct arg { arg(const char*) {} template <class T> arg& operator=(T&&) { return *this; }
    arg& none(bool = true) { return *this; } arg& noconvert(bool = true) { return *this; } }; }
namespace pybind11 { using py::arg; typedef SimtModule module_; typedef SimtModule module; }
#define TORCH_EXTENSION_NAME simt_extension
#define SIMT_JOINED(a, b) a##b
#define SIMT_JOIN(a, b) SIMT_JOINED(a, b)
struct SimtOffer {       // what a file hands to Python: a list, since there are several fragments of a name, and some are in namespaces
    void (*const fill)(SimtModule&);
    SimtOffer* const before;
    static inline SimtOffer* last = nullptr;
    SimtOffer(void (*f)(SimtModule&)) : fill(f), before(last) { last = this; }
    static void call() { SimtModule m; for (SimtOffer* o = last; o; o = o->before) o->fill(m); }
};
#define SIMT_OFFERED(own, m) \
    static __attribute__((unused)) void own(SimtModule& m); \
    static SimtOffer SIMT_JOIN(own, _listed)(own); \
    static __attribute__((unused)) void own(SimtModule& m)
#define PYBIND11_MODULE(name, m) SIMT_OFFERED(SIMT_JOIN(simt_module_, __LINE__), m)
#define TORCH_LIBRARY(name, m) SIMT_OFFERED(SIMT_JOIN(simt_module_, __LINE__), m)
#define TORCH_LIBRARY_IMPL(name, key, m) TORCH_LIBRARY(name, m)
#define TORCH_LIBRARY_FRAGMENT(name, m) TORCH_LIBRARY(name, m)
namespace simt {
template <class... A> std::string joined(const A&... a) { std::ostringstream o; (o << ... << a); return o.str(); }
template <c10::ScalarType> struct TypeOf;
#define SIMT_TYPE(kind, T) template <> struct TypeOf<c10::ScalarType::kind> { typedef T type; };
SIMT_TYPE(Byte, uint8_t) SIMT_TYPE(Char, int8_t) SIMT_TYPE(Short, int16_t) SIMT_TYPE(Int, int) SIMT_TYPE(Long, int64_t) SIMT_TYPE(Bool,
    bool)
SIMT_TYPE(Half, at::Half) SIMT_TYPE(BFloat16, at::BFloat16) SIMT_TYPE(Float, float) SIMT_TYPE(Double, double)
inline void torch_check(bool holds, const std::string& text) { if (!holds) throw c10::Error(text); }
}
#define TORCH_CHECK(cond, ...) if (!(cond)) { simt::torch_check(false, simt::joined("TORCH_CHECK(" #cond ")  ", ##__VA_ARGS__)); }
#define TORCH_INTERNAL_ASSERT(cond, ...) TORCH_CHECK(cond, ##__VA_ARGS__)
#define AT_ASSERTM(cond, ...) TORCH_CHECK(cond, ##__VA_ARGS__)
#define AT_ASSERT(cond, ...) TORCH_CHECK(cond, ##__VA_ARGS__)
#define AT_ERROR(...) throw c10::Error(simt::joined(__VA_ARGS__))
#define C10_CUDA_CHECK(e) simt::torch_check((e) == cudaSuccess, "a CUDA error")
#define AT_CUDA_CHECK(e) C10_CUDA_CHECK(e)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define C10_LAUNCH_BOUNDS_1(n) __launch_bounds__(n)
#define SIMT_DISPATCHED(kind, T, ...) case c10::ScalarType::kind: { using scalar_t = T; return __VA_ARGS__(); }
#define SIMT_DISPATCH(type, name, cases) [&] { switch (type) { cases default: throw c10::Error(std::string(name) + " is not implemented for this type"); } }()
#define SIMT_FLOATS(...) SIMT_DISPATCHED(Float, float, __VA_ARGS__) SIMT_DISPATCHED(Double, double, __VA_ARGS__)
#define SIMT_INTEGERS(...) SIMT_DISPATCHED(Byte, uint8_t, __VA_ARGS__) SIMT_DISPATCHED(Char, int8_t, __VA_ARGS__) SIMT_DISPATCHED(Short, int16_t, __VA_ARGS__) SIMT_DISPATCHED(Int, int, __VA_ARGS__) SIMT_DISPATCHED(Long, int64_t, __VA_ARGS__)
#define SIMT_HALF(...) SIMT_DISPATCHED(Half, at::Half, __VA_ARGS__)
#define SIMT_BRAIN(...) SIMT_DISPATCHED(BFloat16, at::BFloat16, __VA_ARGS__)
#define SIMT_OF(kind, ...) case kind: { using scalar_t = typename simt::TypeOf<kind>::type; return __VA_ARGS__(); }
#define AT_DISPATCH_FLOATING_TYPES(type, name, ...) SIMT_DISPATCH(type, name, SIMT_FLOATS(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(type, name, ...) SIMT_DISPATCH(type, name, SIMT_FLOATS(__VA_ARGS__) SIMT_HALF(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(a, type, name, ...) SIMT_DISPATCH(type, name, SIMT_FLOATS(__VA_ARGS__) SIMT_OF(a, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(a, b, type, name, ...) SIMT_DISPATCH(type, name, SIMT_FLOATS(__VA_ARGS__) SIMT_OF(a, __VA_ARGS__) SIMT_OF(b, __VA_ARGS__))
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(type, name, ...) SIMT_DISPATCH(type, name, SIMT_HALF(__VA_ARGS__) SIMT_BRAIN(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(type, name, ...) SIMT_DISPATCH(type, name, SIMT_FLOATS(__VA_ARGS__) SIMT_INTEGERS(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND2(a, b, type, name, ...) SIMT_DISPATCH(type, name, SIMT_FLOATS(__VA_ARGS__) SIMT_INTEGERS(__VA_ARGS__) SIMT_OF(a, __VA_ARGS__) SIMT_OF(b, __VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(type, name, ...) SIMT_DISPATCH(type, name, SIMT_INTEGERS(__VA_ARGS__))
