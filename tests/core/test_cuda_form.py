"""What of a CUDA C++ file a kernel reaches."""

from __future__ import annotations

import pytest

from rooftop.core import registry
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.cuda_form import Definitions
from rooftop.core.helpers import expanded

TEXT = """
#include <cuda_bf16.h>
#define WIDE 4
constexpr int N = 8, M = 2;
enum Sense : unsigned { FIRST = 1, LAST = 2 };
template <typename T, int K>
struct Pack {
    static constexpr int WORDS = K / M;
    __device__ float sum(const T* p) const { return p[0] + p[WORDS - 1]; }
};
template <>
struct Pack<float, 1> { __device__ float sum(const float* p) const { return p[0]; } };
namespace inner {
__device__ inline float twice(float x) { return 2 * x; }
__device__ inline float thrice(float x) { return 3 * x; }
}
#if __CUDA_ARCH__ >= 900
constexpr int RESIDENT = 512;
#else
constexpr int RESIDENT = 640;
#endif
__device__ inline bool unused(int n) { return n < N; }
template <typename T>
__global__ void __launch_bounds__(RESIDENT, N > 4 ? 2 : 1) scale(const T* x, float* y, unsigned sense) {
    y[threadIdx.x] = inner::twice(Pack<T, WIDE>().sum(x)) + (sense & LAST);
}
template <int K>
__global__ void other(float* y) { y[0] = inner::thrice(K); }
"""
SCALE = ("scale<float>",)


def reached(text: str, kernels: tuple[str, ...] = SCALE) -> str:
    return Definitions(text).reached(kernels)


def moved(text: str, part: str, to: str) -> str:
    """`part` before `to`."""
    assert text.count(part) == 1 and text.count(to) == 1
    return text.replace(part, "").replace(to, part + to)


UNUSED = "__device__ inline bool unused(int n) { return n < N; }\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return 3 * x", "return 4 * x"),
        ("return n < N", "return n > N"),
        ("{ return 2 * x; }", "{\n    return 2*x;\n}"),
        (UNUSED, ""),
        (UNUSED, UNUSED + "struct Another { int n; };\n"),
        ("y[0] = inner", "y[1] = inner"),
    ],
)
def test_what_a_kernel_does_not_reach_does_not_count(old: str, new: str) -> None:
    assert TEXT.count(old) == 1 and reached(TEXT.replace(old, new)) == reached(TEXT)


def test_the_order_of_definitions_does_not_count() -> None:
    assert reached(moved(TEXT, "enum Sense : unsigned { FIRST = 1, LAST = 2 };\n", UNUSED)) == reached(TEXT)
    assert reached(moved(TEXT, "constexpr int N = 8, M = 2;\n", "#define WIDE 4\n")) == reached(TEXT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return 2 * x", "return 3 * x"),
        ("N = 8, M = 2", "N = 8, M = 4"),
        ("N = 8, M = 2", "N = 4, M = 2"),
        ("LAST = 2", "LAST = 4"),
        ("WIDE 4", "WIDE 8"),
        ("K / M", "K / M + 1"),
        ("return p[0]; } };", "return p[1]; } };"),
        ("RESIDENT = 640", "RESIDENT = 320"),
        (UNUSED, UNUSED + "#define twice thrice\n"),
        ("namespace inner {", "namespace outer {"),
    ],
)
def test_what_it_reaches_counts(old: str, new: str) -> None:
    assert TEXT.count(old) == 1 and reached(TEXT.replace(old, new)) != reached(TEXT)


def test_other_template_arguments_are_other_kernels_of_the_same_code() -> None:
    assert reached(TEXT) == reached(TEXT, ("scale<__half>",)) != reached(TEXT, ("other<3>",))
    assert reached(TEXT, ("scale<float>", "other<3>")) not in (reached(TEXT), reached(TEXT, ("other<3>",)))


def test_an_overload_that_comes_after_its_use_is_another() -> None:
    text = "__device__ int f(long x) { return 1; }\n__device__ int f(int x) { return 2; }\n__global__ void k(int* y) { *y = f(3); }\n"
    late = moved(text, "__device__ int f(int x) { return 2; }\n", "__global__ void k(int* y) { *y = f(3); }\n")
    last = text.replace("__device__ int f(int x) { return 2; }\n", "") + "__device__ int f(int x) { return 2; }\n"
    assert reached(late, ("k",)) == reached(text, ("k",)) != reached(last, ("k",))


def test_of_a_text_that_undefines_a_macro_all_counts() -> None:
    text = f"{TEXT}#undef WIDE\n"
    assert reached(text.replace("return 3 * x", "return 4 * x")) != reached(text)


def test_operators_and_assertions_always_count() -> None:
    for more in ("struct V { int n; };\n__device__ V operator+(V a, V b) { return {a.n + b.n}; }\n", "static_assert(sizeof(int) == 4);\n"):
        assert reached(TEXT + more) != reached(TEXT)


def test_every_kernel_of_the_tree_is_found_and_reaches_less_than_its_files() -> None:
    fewer = 0
    for file in registry.kernel_files():
        kernel = registry.implementation(file.name)
        if not isinstance(kernel, CudaImplementation):
            continue
        definitions = Definitions(expanded(kernel._text, kernel.head.folders))
        kernels = [name for one in definitions.every if "__global__" in one.uses for name in one.names if name in one.uses]
        assert kernels and all(f"{kernels[0]}" in one for one in [definitions.reached(kernels[:1])]), file.name
        fewer += len(definitions.reached(kernels[:1])) < sum(len(one.text) for one in definitions.every)
    assert fewer > 60
