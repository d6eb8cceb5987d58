// Thrust on the host: vectors, and the algorithms that programs use as a reference, one element after the other.
#pragma once
#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <tuple>
#include "../library_types.h"
namespace thrust {
template <class T> struct device_ptr;
template <class T>
struct device_reference {           // an element on the device
    T* p;
    device_ptr<T> operator&() const { return device_ptr<T>(p); }
    operator T() const { T v; cudaMemcpy(&v, p, sizeof(T), cudaMemcpyDeviceToHost); return v; }
    device_reference& operator=(const T& v) { cudaMemcpy(p, &v, sizeof(T), cudaMemcpyHostToDevice); return *this; }
    device_reference& operator=(const device_reference& o) { return *this = static_cast<T>(o); }
    device_reference& operator+=(const T& v) { return *this = static_cast<T>(*this) + v; }
};
template <class T> std::ostream& operator<<(std::ostream& o, const device_reference<T>& r) { return o << static_cast<T>(r); }
template <class T>
struct device_ptr {
    typedef std::random_access_iterator_tag iterator_category;
    typedef T value_type;
    typedef std::ptrdiff_t difference_type;
    typedef T* pointer;
    typedef device_reference<T> reference;
    T* p = nullptr;
    device_ptr() = default;
    explicit device_ptr(T* q) : p(q) {}
    template <class U, class = std::enable_if_t<std::is_convertible_v<U*, T*>>> device_ptr(const device_ptr<U>& o) : p(o.p) {}
    T* get() const { return p; }
    device_reference<T> operator*() const { return {p}; }
    device_reference<T> operator[](difference_type i) const { return {p + i}; }
    device_ptr& operator++() { ++p; return *this; }
    device_ptr& operator+=(difference_type n) { p += n; return *this; }
    device_ptr operator+(difference_type n) const { return device_ptr(p + n); }
    device_ptr operator-(difference_type n) const { return device_ptr(p - n); }
    difference_type operator-(const device_ptr& o) const { return p - o.p; }
    bool operator==(const device_ptr& o) const { return p == o.p; }
    bool operator!=(const device_ptr& o) const { return p != o.p; }
    bool operator<(const device_ptr& o) const { return p < o.p; }
};
template <class T> T* raw_pointer_cast(const device_ptr<T>& p) { return p.p; }
template <class T> T* raw_pointer_cast(T* p) { return p; }
template <class T> device_ptr<T> device_pointer_cast(T* p) { return device_ptr<T>(p); }
template <class T> device_ptr<T> device_pointer_cast(const device_ptr<T>& p) { return p; }
template <class T> device_ptr<T> device_malloc(size_t n) { T* p; cudaMalloc(&p, n * sizeof(T)); return device_ptr<T>(p); }
template <class T> void device_free(device_ptr<T> p) { cudaFree(p.p); }
template <class T, class = void> struct host_vector
    : std::vector<T> { using std::vector<T>::vector; host_vector() = default; template <class V,
    class = decltype(std::declval<V>().to_host())> host_vector(const V& v) : std::vector<T>(v.to_host()) {} template <class V,
    class = decltype(std::declval<V>().to_host())> host_vector& operator=(const V& v) { std::vector<T>::operator=(v.to_host());
    return *this; } };
template <class T>
class device_vector {
    T* p = nullptr;
    size_t n = 0, room = 0;
    void put(const T* from, size_t count) { resize(count); if (count) cudaMemcpy(p, from, count * sizeof(T), cudaMemcpyHostToDevice); }
public:
    typedef T value_type;
    typedef device_ptr<T> iterator, pointer;
    typedef device_ptr<const T> const_iterator;
    typedef device_reference<T> reference;
    device_vector() = default;
    explicit device_vector(size_t count, const T& v = T()) { const std::vector<T> all(count, v); put(all.data(), count); }
    device_vector(const std::vector<T>& v) { put(v.data(), v.size()); }
    device_vector(std::initializer_list<T> v) { put(v.begin(), v.size()); }
    device_vector(const device_vector& o) { const std::vector<T> v = o.to_host(); put(v.data(), v.size()); }
    device_vector(device_vector&& o) noexcept { swap(o); }
    template <class I, class = typename std::iterator_traits<I>::iterator_category> device_vector(I a, I b) { std::vector<T> v;
        for (; a != b; ++a) v.push_back(*a); put(v.data(), v.size()); }
    ~device_vector() { cudaFree(p); }
    device_vector& operator=(const device_vector& o) { if (this != &o) { const std::vector<T> v = o.to_host(); put(v.data(), v.size()); }
        return *this; }
    device_vector& operator=(device_vector&& o) noexcept { swap(o); return *this; }
    device_vector& operator=(const std::vector<T>& v) { put(v.data(), v.size()); return *this; }
    void swap(device_vector& o) { std::swap(p, o.p), std::swap(n, o.n), std::swap(room, o.room); }
    std::vector<T> to_host() const { std::vector<T> v(n); if (n) cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost); return v; }
    operator std::vector<T>() const { return to_host(); }
    void resize(size_t count, const T& v = T()) {
        if (count > room) {
            T* q;
            cudaMalloc(&q, count * sizeof(T));
            if (n) cudaMemcpy(q, p, n * sizeof(T), cudaMemcpyDeviceToDevice);
            cudaFree(p), p = q, room = count;
        }
        if (count > n) { const std::vector<T> more(count - n, v);
            cudaMemcpy(p + n, more.data(), more.size() * sizeof(T), cudaMemcpyHostToDevice); }
        n = count;
    }
    void clear() { n = 0; }
    void push_back(const T& v) { resize(n + 1, v); }
    size_t size() const { return n; }
    bool empty() const { return !n; }
    device_ptr<T> data() { return device_ptr<T>(p); }
    device_ptr<const T> data() const { return device_ptr<const T>(p); }
    iterator begin() { return iterator(p); }
    iterator end() { return iterator(p + n); }
    const_iterator begin() const { return const_iterator(p); }
    const_iterator end() const { return const_iterator(p + n); }
    reference operator[](size_t i) { return {p + i}; }
    T operator[](size_t i) const { return device_reference<T>{p + i}; }
    reference front() { return {p}; }
    reference back() { return {p + n - 1}; }
};
template <class T> struct plus : std::plus<T> {};
template <class T> struct minus : std::minus<T> {};
template <class T> struct multiplies : std::multiplies<T> {};
template <class T> struct less : std::less<T> {};
template <class T> struct greater : std::greater<T> {};
template <class T> struct maximum { __host__ __device__ T operator()(const T& a, const T& b) const { return a < b ? b : a; } };
template <class T> struct minimum { __host__ __device__ T operator()(const T& a, const T& b) const { return b < a ? b : a; } };
template <class T> struct negate : std::negate<T> {};
template <class T> struct square { __host__ __device__ T operator()(const T& v) const { return v * v; } };
template <class T> struct identity { __host__ __device__ T operator()(const T& v) const { return v; } };
struct execution { template <class S> execution on(S) const { return {}; } };
inline constexpr execution device{}, host{}, seq{};
namespace cuda { inline constexpr execution par{}, par_nosync{}; }
namespace details {
template <class T> T* raw(const device_ptr<T>& p) { return p.p; }
template <class I> I raw(I i) { return i; }
template <class T> struct Unwrapped { static const T& of(const T& i) { return i; } };
template <class T> struct Unwrapped<device_ptr<T>> { static T* of(const device_ptr<T>& p) { return p.p; } };
struct Wrote : simt::Library {
    template <class I> void range(const I& a, const I& b) {
        if constexpr (std::is_pointer_v<I>) wrote(const_cast<void*>(static_cast<const void*>(a)),
            static_cast<size_t>(reinterpret_cast<const char*>(b) - reinterpret_cast<const char*>(a)));
        else several(a, b, 0);
    }
    // a zip: what each of its iterators is over
    template <class I> auto several(const I& a, const I& b, int) -> decltype((void)a.all) {
        each(a.all, b.all, std::make_index_sequence<std::tuple_size_v<decltype(a.all)>>()); }
    template <class T, size_t... N> void each(const T& a, const T& b, std::index_sequence<N...>) {
        (one(std::get<N>(a), std::get<N>(b)), ...); }
    template <class I> void one(const I& a, const I& b) { range(Unwrapped<I>::of(a), Unwrapped<I>::of(b)); }
    template <class I> void several(const I&, const I&, long) {}
};
}
using details::raw;
template <class I, class O> O copy(I a, I b, O to) { details::Wrote here; auto x = raw(to); auto y = std::copy(raw(a), raw(b), x);
    here.range(x, y); return to + (y - x); }
template <class I, class O> O copy_n(I a, size_t n, O to) { return copy(a, a + n, to); }
template <class I, class T> void fill(I a, I b, const T& v) { details::Wrote here; std::fill(raw(a), raw(b), v); here.range(raw(a), raw(b));
    }
template <class I> void sequence(I a, I b) { details::Wrote here; std::iota(raw(a), raw(b), 0); here.range(raw(a), raw(b)); }
template <class I, class T> void sequence(I a, I b, T v) { details::Wrote here; std::iota(raw(a), raw(b), v); here.range(raw(a), raw(b)); }
template <class I> void sort(I a, I b) { details::Wrote here; std::sort(raw(a), raw(b)); }
template <class I> void stable_sort(I a, I b) { details::Wrote here; std::stable_sort(raw(a), raw(b)); }
template <class I, class F> void stable_sort(I a, I b, F f) { details::Wrote here; std::stable_sort(raw(a), raw(b), f); }
template <class I> bool is_sorted(I a, I b) { details::Wrote here; return std::is_sorted(raw(a), raw(b)); }
template <class I, class T> bool binary_search(I a, I b, const T& v) { details::Wrote here; return std::binary_search(raw(a), raw(b), v); }
template <class I, class T> I lower_bound(I a, I b, const T& v) { details::Wrote here;
    return a + (std::lower_bound(raw(a), raw(b), v) - raw(a)); }
template <class I, class F> void sort(I a, I b, F f) { details::Wrote here; std::sort(raw(a), raw(b), f); }
template <class I> auto reduce(I a, I b) { details::Wrote here;
    return std::accumulate(raw(a), raw(b), typename std::iterator_traits<I>::value_type()); }
template <class I, class T> T reduce(I a, I b, T v) { details::Wrote here; return std::accumulate(raw(a), raw(b), v); }
template <class I, class T, class F> T reduce(I a, I b, T v, F f) { details::Wrote here; return std::accumulate(raw(a), raw(b), v, f); }
template <class I, class G, class T, class F> T transform_reduce(I a, I b, G g, T v, F f) { details::Wrote here;
    for (auto i = raw(a); i != raw(b); ++i) v = f(v, g(*i)); return v; }
template <class I, class J, class T> T inner_product(I a, I b, J c, T v) { details::Wrote here;
    return std::inner_product(raw(a), raw(b), raw(c), v); }
template <class I, class O, class F> O transform(I a, I b, O to, F f) { details::Wrote here; auto x = raw(to);
    auto y = std::transform(raw(a), raw(b), x, f); here.range(x, y); return to + (y - x); }
template <class I, class J, class O, class F, class = decltype(std::declval<J>() + 1)> O transform(I a, I b, J c, O to, F f) {
    details::Wrote here; auto x = raw(to); auto y = std::transform(raw(a), raw(b), raw(c), x, f); here.range(x, y); return to + (y - x); }
template <class I, class F> I for_each(I a, I b, F f) { details::Wrote here; std::for_each(raw(a), raw(b), f); return b; }
template <class I, class F> void generate(I a, I b, F f) { details::Wrote here; std::generate(raw(a), raw(b), f);
    here.range(raw(a), raw(b)); }
template <class I, class O> O inclusive_scan(I a, I b, O to) { details::Wrote here; auto x = raw(to);
    auto y = std::partial_sum(raw(a), raw(b), x); here.range(x, y); return to + (y - x); }
template <class I, class O> O exclusive_scan(I a, I b, O to) { details::Wrote here; typename std::iterator_traits<I>::value_type sum{};
    auto x = raw(to), y = x; for (auto i = raw(a); i != raw(b); ++i, ++y) { const auto v = *i; *y = sum, sum += v; } here.range(x, y);
    return to + (y - x); }
template <class I, class T> I remove(I a, I b, const T& v) { details::Wrote here; return a + (std::remove(raw(a), raw(b), v) - raw(a)); }
template <class I, class F> I remove_if(I a, I b, F f) { details::Wrote here; return a + (std::remove_if(raw(a), raw(b), f) - raw(a)); }
template <class I> I unique(I a, I b) { details::Wrote here; return a + (std::unique(raw(a), raw(b)) - raw(a)); }
template <class I> I max_element(I a, I b) { details::Wrote here; return a + (std::max_element(raw(a), raw(b)) - raw(a)); }
template <class I> I min_element(I a, I b) { details::Wrote here; return a + (std::min_element(raw(a), raw(b)) - raw(a)); }
template <class I, class T> auto count(I a, I b, const T& v) { details::Wrote here; return std::count(raw(a), raw(b), v); }
template <class I, class F> auto count_if(I a, I b, F f) { details::Wrote here; return std::count_if(raw(a), raw(b), f); }
template <class I, class J> bool equal(I a, I b, J c) { details::Wrote here; return std::equal(raw(a), raw(b), raw(c)); }
template <class K, class V> void sort_by_key(K a, K b, V values) {
    details::Wrote here;
    typedef std::pair<typename std::iterator_traits<K>::value_type, typename std::iterator_traits<V>::value_type> P;
    std::vector<P> all;
    auto k = raw(a); auto v = raw(values);
    for (auto i = k; i != raw(b); ++i, ++v) all.emplace_back(*i, *v);
    std::stable_sort(all.begin(), all.end(), [](const P& x, const P& y) { return x.first < y.first; });
    v = raw(values);
    for (const P& p : all) *k++ = p.first, *v++ = p.second;
}
template <class K, class V> void stable_sort_by_key(K a, K b, V values) { sort_by_key(a, b, values); }
typedef std::minstd_rand default_random_engine;
typedef std::minstd_rand minstd_rand;
template <class T> struct uniform_real_distribution
    : std::uniform_real_distribution<T> { using std::uniform_real_distribution<T>::uniform_real_distribution; };
template <class T> struct uniform_int_distribution
    : std::uniform_int_distribution<T> { using std::uniform_int_distribution<T>::uniform_int_distribution; };
template <class T> struct normal_distribution : std::normal_distribution<T> { using std::normal_distribution<T>::normal_distribution; };
namespace random { using thrust::default_random_engine; using thrust::uniform_real_distribution; using thrust::uniform_int_distribution;
    using thrust::normal_distribution; }
#define SIMT_WITH_POLICY(name) template <class... A> auto name(const execution&, A&&... a) { return name(std::forward<A>(a)...); }
SIMT_WITH_POLICY(copy) SIMT_WITH_POLICY(fill) SIMT_WITH_POLICY(sequence) SIMT_WITH_POLICY(sort) SIMT_WITH_POLICY(reduce) SIMT_WITH_POLICY(transform) SIMT_WITH_POLICY(inclusive_scan)
SIMT_WITH_POLICY(exclusive_scan) SIMT_WITH_POLICY(transform_reduce) SIMT_WITH_POLICY(for_each) SIMT_WITH_POLICY(sort_by_key)
SIMT_WITH_POLICY(stable_sort) SIMT_WITH_POLICY(stable_sort_by_key) SIMT_WITH_POLICY(inner_product) SIMT_WITH_POLICY(generate) SIMT_WITH_POLICY(count_if)
#undef SIMT_WITH_POLICY
}  // namespace thrust
