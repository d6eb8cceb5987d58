// Thrust's iterators over what is calculated, its tuples and its placeholders.
#pragma once
#include "device_vector.h"
#include <tuple>
namespace thrust {
using std::get;
using std::make_tuple;
using std::tie;
using std::tuple;
/// What a random-access iterator needs of `D`: `at()`, `move(n)` and `from(other)`, the distance.
template <class D, class V, class R = V>
struct Walk {
    typedef std::random_access_iterator_tag iterator_category;
    typedef V value_type;
    typedef R reference;
    typedef void pointer;
    typedef std::ptrdiff_t difference_type;
    D& self() { return static_cast<D&>(*this); }
    const D& self() const { return static_cast<const D&>(*this); }
    R operator*() const { return self().at(); }
    R operator[](difference_type n) const { return (self() + n).at(); }
    D& operator++() { return self().move(1), self(); }
    D operator++(int) { D old = self(); self().move(1); return old; }
    D& operator--() { return self().move(-1), self(); }
    D& operator+=(difference_type n) { return self().move(n), self(); }
    D operator+(difference_type n) const { D to = self(); to.move(n); return to; }
    D operator-(difference_type n) const { return self() + -n; }
    difference_type operator-(const D& o) const { return self().from(o); }
    bool operator==(const D& o) const { return self().from(o) == 0; }
    bool operator!=(const D& o) const { return self().from(o) != 0; }
    bool operator<(const D& o) const { return self().from(o) < 0; }
};
template <class T>
struct counting_iterator : Walk<counting_iterator<T>, T> {
    T v{};
    counting_iterator() = default;
    explicit counting_iterator(T first) : v(first) {}
    T at() const { return v; }
    void move(std::ptrdiff_t n) { v += static_cast<T>(n); }
    std::ptrdiff_t from(const counting_iterator& o) const { return static_cast<std::ptrdiff_t>(v - o.v); }
};
template <class T>
struct constant_iterator : Walk<constant_iterator<T>, T> {
    T v{};
    std::ptrdiff_t i = 0;
    explicit constant_iterator(T value, std::ptrdiff_t at = 0) : v(value), i(at) {}
    T at() const { return v; }
    void move(std::ptrdiff_t n) { i += n; }
    std::ptrdiff_t from(const constant_iterator& o) const { return i - o.i; }
};
template <class F, class I, class V = std::decay_t<decltype(std::declval<F>()(*std::declval<I>()))>>
struct transform_iterator : Walk<transform_iterator<F, I, V>, V> {
    I i;
    F f;
    transform_iterator(I base, F function) : i(base), f(function) {}
    V at() const { return f(*i); }
    void move(std::ptrdiff_t n) { i += n; }
    std::ptrdiff_t from(const transform_iterator& o) const { return i - o.i; }
};
template <class V, class N>
struct permutation_iterator : Walk<permutation_iterator<V, N>, typename std::iterator_traits<V>::value_type,
    typename std::iterator_traits<V>::reference> {
    V v;
    N n;
    permutation_iterator(V values, N at) : v(values), n(at) {}
    typename std::iterator_traits<V>::reference at() const { return v[*n]; }
    void move(std::ptrdiff_t by) { n += by; }
    std::ptrdiff_t from(const permutation_iterator& o) const { return n - o.n; }
};
template <class T> struct zip_iterator;
template <class... I>
struct zip_iterator<std::tuple<I...>> : Walk<zip_iterator<std::tuple<I...>>, std::tuple<typename std::iterator_traits<I>::value_type...>,
    std::tuple<typename std::iterator_traits<I>::reference...>> {
    std::tuple<I...> all;
    explicit zip_iterator(std::tuple<I...> of) : all(of) {}
    const std::tuple<I...>& get_iterator_tuple() const { return all; }
    std::tuple<typename std::iterator_traits<I>::reference...> at() const {
        return std::apply([](const auto&... i) { return std::tuple<typename std::iterator_traits<I>::reference...>(*i...); }, all); }
    void move(std::ptrdiff_t n) { std::apply([n](auto&... i) { ((i += n), ...); }, all); }
    std::ptrdiff_t from(const zip_iterator& o) const { return std::get<0>(all) - std::get<0>(o.all); }
};
template <class T> counting_iterator<T> make_counting_iterator(T v) { return counting_iterator<T>(v); }
template <class T> constant_iterator<T> make_constant_iterator(T v) { return constant_iterator<T>(v); }
template <class I, class F> transform_iterator<F, I> make_transform_iterator(I i, F f) { return {i, f}; }
template <class V, class N> permutation_iterator<V, N> make_permutation_iterator(V v, N n) { return {v, n}; }
template <class... I> zip_iterator<std::tuple<I...>> make_zip_iterator(const std::tuple<I...>& t) {
    return zip_iterator<std::tuple<I...>>(t); }
template <class I, class... J, class = typename std::iterator_traits<I>::iterator_category> zip_iterator<std::tuple<I,
    J...>> make_zip_iterator(I i, J... j) { return zip_iterator<std::tuple<I, J...>>({i, j...}); }

namespace placeholders {
template <class F> struct Expression { F f; template <class... A> auto operator()(const A&... a) const { return f(a...); } };
template <class F> Expression<F> expression(F f) { return {f}; }
template <class T, class... A> auto value(const T& v, const A&...) { return v; }
template <class F, class... A> auto value(const Expression<F>& e, const A&... a) { return e(a...); }
struct First { template <class A, class... B> A operator()(const A& a, const B&...) const { return a; } };
struct Second { template <class A, class B, class... C> B operator()(const A&, const B& b, const C&...) const { return b; } };
inline constexpr Expression<First> _1{};
inline constexpr Expression<Second> _2{};
template <class T> struct Is : std::false_type {};
template <class F> struct Is<Expression<F>> : std::true_type {};
#define SIMT_PLACE(op) \
    template <class X, class Y, class = std::enable_if_t<Is<X>::value || Is<Y>::value>> auto operator op(const X& x, const Y& y) { return expression([x, y](const auto&... a) { return value(x, a...) op value(y, a...); }); }
SIMT_PLACE(+) SIMT_PLACE(-) SIMT_PLACE(*) SIMT_PLACE(/) SIMT_PLACE(%) SIMT_PLACE(<) SIMT_PLACE(>) SIMT_PLACE(<=) SIMT_PLACE(>=) SIMT_PLACE(==) SIMT_PLACE(!=) SIMT_PLACE(&&) SIMT_PLACE(||)
#undef SIMT_PLACE
}  // namespace placeholders
}  // namespace thrust
