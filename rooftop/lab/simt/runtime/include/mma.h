// nvcuda::wmma: a fragment's elements lie with the lanes in an order of their own (lane * num_elements + i, by rows).
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
namespace precision { struct tf32; struct u4; struct s4; struct b1; }
enum layout_t { mem_row_major, mem_col_major };

namespace details {
template <class T> struct Element { using type = T; };
template <> struct Element<precision::tf32> { using type = float; };
template <class Use, int M, int N, int K> struct Shape;
template <int M, int N, int K> struct Shape<matrix_a, M, N, K> { static constexpr int R = M, C = K; };
template <int M, int N, int K> struct Shape<matrix_b, M, N, K> { static constexpr int R = K, C = N; };
template <int M, int N, int K> struct Shape<accumulator, M, N, K> { static constexpr int R = M, C = N; };
}  // namespace details

template <class Use, int M, int N, int K, class T, class Layout = void>
class fragment {
public:
    using element_type = typename details::Element<T>::type;
    using storage_element_type = element_type;
    static constexpr int ROWS = details::Shape<Use, M, N, K>::R, COLUMNS = details::Shape<Use, M, N, K>::C;
    static constexpr int num_elements = ROWS * COLUMNS / 32, num_storage_elements = num_elements;
    element_type x[num_elements];
};
SIMT_INLINE float __float_to_tf32(float v) { return simt::ptx::to_tf32(v, 1); }

template <class U, int M, int N, int K, class T, class L, class V>
SIMT_INLINE void fill_fragment(fragment<U, M, N, K, T, L>& f, V v) {
    for (auto& x : f.x) x = static_cast<typename fragment<U, M, N, K, T, L>::element_type>(v);
}

namespace details {
template <class F, class E>
SIMT_INLINE void check(const E* p, unsigned step) {   // 32 bytes for the tile, 16 for each row
    simt::check_aligned(p, 32);
    if (step * sizeof(E) % 16) simt::check_aligned(p + step, 16);
}
template <bool COLUMN, class F, class E>
SIMT_INLINE void load(F& f, const E* p, unsigned step) {
    check<F>(p, step);
    const unsigned first = simt::lane_index() * F::num_elements;
    for (int i = 0; i < F::num_elements; ++i) {
        const unsigned at = first + i, major = COLUMN ? F::ROWS : F::COLUMNS;
        f.x[COLUMN ? i : i] = p[at / major * step + at % major];
    }
    __syncwarp();
    if constexpr (COLUMN) {                            // the lanes took columns: turn them
        struct Both { F* f; } mine = {&f};
        simt::collective(~0u, [](simt::Group& g) SIMT_PLAIN {
            if (!simt::whole(g)) return;
            typename F::element_type all[F::ROWS * F::COLUMNS];
            for (int l = 0; l < 32; ++l)
                for (int i = 0; i < F::num_elements; ++i) all[l * F::num_elements + i] = static_cast<Both*>(g.record[l])->f->x[i];
            for (int l = 0; l < 32; ++l)
                for (int i = 0; i < F::num_elements; ++i) {
                    const int at = l * F::num_elements + i;
                    static_cast<Both*>(g.record[l])->f->x[i] = all[at % F::COLUMNS * F::ROWS + at / F::COLUMNS];
                }
        }, &mine, false);
    }
}
}  // namespace details

template <class U, int M, int N, int K, class T, class L, class E>
SIMT_INLINE void load_matrix_sync(fragment<U, M, N, K, T, L>& f, const E* p, unsigned step) { details::load<std::is_same_v<L,
    col_major>>(f, p, step); }
template <int M, int N, int K, class T, class E>
SIMT_INLINE void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const E* p, unsigned step, layout_t layout) {
    if (layout == mem_col_major) details::load<true>(f, p, step);
    else details::load<false>(f, p, step);
}
template <int M, int N, int K, class T, class E>
SIMT_INLINE void store_matrix_sync(E* p, const fragment<accumulator, M, N, K, T>& f, unsigned step, layout_t layout) {
    details::check<int>(p, step);
    const unsigned first = simt::lane_index() * f.num_elements;
    for (int i = 0; i < f.num_elements; ++i) {
        const unsigned at = first + i, row = at / f.COLUMNS, column = at % f.COLUMNS;
        p[layout == mem_col_major ? column * step + row : row * step + column] = f.x[i];
    }
}

namespace details {
template <class T, class V> SIMT_INLINE double value(V v) {
    if constexpr (std::is_same_v<T, precision::tf32>) return simt::ptx::to_tf32(v, 0);
    else return static_cast<double>(static_cast<float>(v));
}
template <class D, class A, class B, class C>
struct Operands { D* d; const A* a; const B* b; const C* c; };
template <class TA, class TB, class D, class A, class B, class C>
SIMT_PLAIN void multiply(simt::Group& g) {
    using O = Operands<D, A, B, C>;
    if (!simt::whole(g)) return;
    double a[A::ROWS * A::COLUMNS], b[B::ROWS * B::COLUMNS];
    for (int l = 0; l < 32; ++l) {
        const O& o = *static_cast<O*>(g.record[l]);
        for (int i = 0; i < A::num_elements; ++i) a[l * A::num_elements + i] = value<TA>(o.a->x[i]);
        for (int i = 0; i < B::num_elements; ++i) b[l * B::num_elements + i] = value<TB>(o.b->x[i]);
    }
    for (int l = 0; l < 32; ++l) {
        const O& o = *static_cast<O*>(g.record[l]);
        for (int i = 0; i < D::num_elements; ++i) {
            const int at = l * D::num_elements + i, row = at / D::COLUMNS, column = at % D::COLUMNS;
            double sum = 0;
            for (int k = 0; k < A::COLUMNS; ++k) sum += a[row * A::COLUMNS + k] * b[k * B::COLUMNS + column];
            const double total = sum + static_cast<double>(static_cast<std::conditional_t<std::is_class_v<typename C::element_type>, float,
                typename C::element_type>>(o.c->x[i]));
            o.d->x[i] = static_cast<typename D::element_type>(total);
        }
    }
}
}  // namespace details
template <int M, int N, int K, class TD, class TA, class LA, class TB, class LB, class TC>
SIMT_INLINE void mma_sync(fragment<accumulator, M, N, K, TD>& d, const fragment<matrix_a, M, N, K, TA, LA>& a, const fragment<matrix_b, M,
    N, K, TB, LB>& b,
                          const fragment<accumulator, M, N, K, TC>& c, bool = false) {
    using D = fragment<accumulator, M, N, K, TD>;
    using A = fragment<matrix_a, M, N, K, TA, LA>;
    using B = fragment<matrix_b, M, N, K, TB, LB>;
    using C = fragment<accumulator, M, N, K, TC>;
    details::Operands<D, A, B, C> mine = {&d, &a, &b, &c};
    simt::collective(~0u, details::multiply<TA, TB, D, A, B, C>, &mine, false);
    simt::note_float(M * N * K / 32, 0);
}
}  // namespace nvcuda::wmma
