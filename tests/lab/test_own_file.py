"""Machine code of files without a head, as others write them: `rooftop inspect my.cu`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rooftop.core.compile import ToolchainError, nvrtc_version
from rooftop.lab.cli import commands
from rooftop.lab.cli.app import app
from rooftop.lab.inspect import inspector
from rooftop.lab.simt import own_file
from rooftop.lab.simt.instances import Templates

try:
    nvrtc_version()
except ToolchainError as error:
    pytest.skip(str(error), allow_module_level=True)

HOST = """#include <cstdio>
#include <cuda.h>
#include <cuda_runtime.h>
#include <iostream>
#include <vector>
typedef struct { FILE* file; int n; } Loader;
static std::vector<float> kept;
inline void check(cudaError_t e, const char* file, int line) { if (e != cudaSuccess) { fprintf(stderr, "%s:%d", file, line); exit(1); } }
"""


def kernels_of(tmp_path: Path, text: str, only: str | None = None, **headers: str) -> own_file.Kernels:
    for name, header in headers.items():
        (tmp_path / name.replace("_cuh", ".cuh")).write_text(header, encoding="utf-8")
    path = tmp_path / "own.cu"
    path.write_text(text, encoding="utf-8")
    return own_file.facts(own_file.read(path), inspector.device_of(90), only)


def names(made: own_file.Kernels) -> list[str]:
    return sorted(k["kernel"] for k in made.found)


@pytest.mark.sampled("slow")
@pytest.mark.parametrize(
    ("text", "kernels"),
    [
        (HOST + "__global__ void k(float* x, int n) { Loader* none = nullptr; if (threadIdx.x < n && !none) x[threadIdx.x] = 2; }\n", ["k"]),
        # made by a macro, and launched by one
        ("#define MAKE(name, op) __global__ void name##_all(float* x) { x[threadIdx.x] = x[threadIdx.x] op 2.0f; }\nMAKE(add, +)\nMAKE(mul, *)\n",
         ["add_all", "mul_all"]),
        # by templates and constants of the host's, and by a macro
        (HOST + "template <int N, int S> __global__ void k(float* x) { __shared__ float s[N * S]; s[threadIdx.x] = N; x[0] = s[0]; }\n"
         "template <int N> void launch(float* x) { constexpr int S = (N < 64) ? 1 : 2, more = 3; k<N, S><<<more, N>>>(x); }\n"
         "#define CASE(n) case n: launch<n>(x); break;\n"
         "void run(float* x, int n) { switch (n) { CASE(32) CASE(64) } k<8, 8><<<1, 8>>>(x); }\n",
         ["k<32, ( ( 32 < 64 ) ? 1 : 2 )>", "k<64, ( ( 64 < 64 ) ? 1 : 2 )>", "k<8, 8>"]),
        # deduced from what is passed
        ("#include <cuda_fp16.h>\ntemplate <typename T, int N = 4> __global__ void k(T* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = T(N); }\n"
         "void run(half* h, int n) { double *a, *b; k<<<1, 32>>>(b, n); k<<<1, 32>>>(h, n); }\n", ["k<double, 4>", "k<half, 4>"]),
        # of one name
        ("__global__ void k(float* x) { x[0] = 1; }\n__global__ void k(int* x) { x[0] = 1; }\nnamespace a { __global__ void k(int* x) { x[0] = 1; } }\n",
         ["a::k", "k [_Z1kPf]", "k [_Z1kPi]"]),
        # as written before Volta
        ("__global__ void k(float* x) { float v = x[threadIdx.x]; v += __shfl_down(v, 16); if (__any(v > 0)) x[threadIdx.x] = v; }\n", ["k"]),
        # parts of C++'s library; a texture of the driver's
        ("#include <limits>\n#include <cuda.h>\n"
         "template <class T> __global__ void k(T* x) { x[0] = std::numeric_limits<T>::max(); x[1] = std::min(x[2], x[3]); }\n"
         "template __global__ void k<float>(float*);\n__global__ void t(float* x, CUtexObject o) { x[0] = tex2D<float>(o, 1, 2); }\n", ["k<float>", "t"]),
        ("#include <mma.h>\nusing namespace nvcuda;\n"
         "__global__ void k(half* a, float* c) { wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> f; "
         "wmma::load_matrix_sync(f, a, 16); c[0] = __half2float(f.x[0]); }\n", ["k"]),
        # functions of <cmath> of whole numbers
        ("#include <cmath>\n__global__ void k(float* x, int n, size_t m) { "
         "x[0] = ceil(n / 32) + sqrt(m) + pow(n, 2) + pow(n, 0.5f) + ceil(x[1]) + pow(x[2], n); }\n",
         ["k"]),
        # a word that C++17 has no more
        ("__global__ void k(float* x) { register float v = x[threadIdx.x]; x[threadIdx.x] = v + __FLT_MAX__ + USHRT_MAX; }\n", ["k"]),
        ("typedef __nv_bfloat16 real;\n__global__ void k(real* x) { x[0] = (real)(float(x[1]) * 2); }\n", ["k"]),
    ],
    ids=["host", "macro", "host templates", "deduced", "overloads", "old", "std", "mma.h", "whole", "register", "bf16"],
)
def test_the_kernels_of_a_file_are_compiled_as_it_launches_them(tmp_path: Path, text: str, kernels: list[str]) -> None:
    made = kernels_of(tmp_path, text)
    assert made.refused == {}
    assert names(made) == kernels


def test_kernels_of_headers_and_cub(tmp_path: Path) -> None:
    header = (
        "/* two\n lines */ #pragma once\n#include <cub/cub.cuh>\n__global__ void k(float* x) {\n    using Reduce = cub::BlockReduce<float, 128>;\n"
        "    __shared__ typename Reduce::TempStorage s;\n    const float v = Reduce(s).Sum(x[threadIdx.x]);\n    if (threadIdx.x == 0) x[0] = v;\n}\n"
    )
    made = kernels_of(tmp_path, '#include "h.cuh"\n' + HOST + "int main() { k<<<1, 128>>>(nullptr); }\n", h_cuh=header)
    assert names(made) == ["k"]
    assert made.found[0]["counts"]["SHFL"] > 0


def test_a_plain_generator_stands_in_for_curand_and_is_named(tmp_path: Path) -> None:
    body = "curand_init(1, threadIdx.x, 0, s); x[0] = curand_normal(s);"
    made = kernels_of(tmp_path, f"#include <curand_kernel.h>\n__global__ void k(curandState* s, float* x) {{ {body} }}\n")
    assert names(made) == ["k"] and not made.refused and not made.needs
    assert [h.rpartition(":")[2] for h in made.stands_in] == [" <curand_kernel.h>"]


def test_one_broken_kernel_keeps_no_other_from_its_machine_code(tmp_path: Path) -> None:
    made = kernels_of(
        tmp_path,
        HOST + "__device__ float helper(float x) {\n    return x * absent_factor;\n}\n__global__ void good(float* x) { x[0] = 1; }\n"
        "__global__ void bad(float* x) { x[0] = nowhere; }\n__global__ void by_helper(float* x) { x[0] = helper(1); }\n",
    )
    assert names(made) == ["good"]
    line = HOST.count("\n") + 1
    assert made.refused["bad"].endswith(f'own.cu:{line + 4}: identifier "nowhere" is undefined')
    assert made.refused["by_helper"].endswith(f'own.cu:{line + 1}: identifier "absent_factor" is undefined'), "the cause, not what follows from it"
    assert not made.needs
    assert [x.rpartition(": ")[2] for x in made.left_out] == ['identifier "absent_factor" is undefined']


def test_a_template_that_nothing_instantiates_is_assumed_and_said_so(tmp_path: Path) -> None:
    text = "template <typename T, int N, bool B> __global__ void k(T* x) { if (B) x[0] = N; }\ntemplate <class F> __global__ void by(F f, int* x) { f(x); }\n"
    made = kernels_of(tmp_path, text)
    assert names(made) == ["k<float, 32, false>"]
    assert made.found[0]["assumed"] == "T = float, N = 32, B = false"
    assert list(made.refused) == ["by"]
    one = kernels_of(tmp_path, text, "k<int, 7, true>")
    assert names(one) == ["k<int, 7, true>"]
    assert not one.refused
    assert one.found[0]["assumed"] == ""


def test_what_nvcc_takes_and_nvrtc_refuses_is_compiled(tmp_path: Path) -> None:
    launching = "__global__ void c(int* x) { x[0] = 1; }\n__global__ void k(int* x) { c<<<1, 1>>>(x); }\n"
    assert names(kernels_of(tmp_path, launching)) == ["c", "k"]
    assert names(kernels_of(tmp_path, "__global__ void k(const int __restrict__* x, int* y) { y[0] = x[0]; }\n")) == ["k"]


def test_an_attribute_in_two_parentheses_leaves_a_function_a_function(tmp_path: Path) -> None:
    text = (
        "__device__ __attribute__((always_inline)) inline int one(int x) { return x; }\n__global__ void k(int* x) { x[0] = one(1); }\n"
        "void host(int* x) { LAUNCHED(cudaMalloc(&x, 4)); }\n"
    )
    assert names(kernels_of(tmp_path, text)) == ["k"]


def test_only_the_chosen_kernel_is_compiled(tmp_path: Path) -> None:
    text = "__global__ void a(float* x) { x[0] = 1; }\n__global__ void b(float* x) { x[0] = nowhere; }\n"
    assert names(kernels_of(tmp_path, text, "a")) == ["a"]
    with pytest.raises(ValueError, match=r"--kernel c: .* has no such kernel; it has a\(float\* x\); b\(float\* x\)"):
        kernels_of(tmp_path, text, "c")


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("#include <cublas_v2.h>\nint main() { cublasCreate(nullptr); }\n", 3, "own.cu has no kernel of its own; it calls cublasCreate"),
        ("#include <nolib/state.h>\n__global__ void k(nolib::State* s) { s->next(); }\n", 3, "not here: own.cu:1: <nolib/state.h>"),
        ("__global__ void k(int* x) { x[0] = 1 }\n", 1, 'own.cu:1: expected a ";"'),
        ("__global__ void k(int* x) {\n    x[0] = 1;\n", 1, "own.cu"),
    ],
)
def test_what_is_refused_is_named_by_its_line_and_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.cu").write_text(text, encoding="utf-8")
    commands()
    done = CliRunner().invoke(app, ["inspect", "own.cu", "--arch", "90"])
    assert done.exit_code == code, done.output
    assert says in done.output.replace("\n", " ").replace("  ", " "), done.output


def test_the_command_says_what_it_assumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.cuh").write_text("template <class T> __global__ void __launch_bounds__(64) k(T* x) { x[0] = 1; }\n", encoding="utf-8")
    commands()
    done = CliRunner().invoke(app, ["inspect", "own.cuh", "--arch", "90"])
    assert done.exit_code == 0, done.output
    assert "assumed, as nothing in the file says it (--kernel does): k<float>: T = float" in done.output
    data = json.loads(CliRunner().invoke(app, ["inspect", "own.cuh", "--arch", "90", "--json"]).stdout)
    assert [(k["kernel"], k["threads"]) for k in data] == [("k<float>", 64)]


def test_the_defaults_of_a_host_templates_parameters_are_no_constants_of_its_body() -> None:
    text = (
        "template <int A, int B, int C> __global__ void k() {}\n"
        "template <const int A = 16, const int B = 8> void go() { constexpr int C = A * 2; k<A, B, C><<<1, 1>>>(); }\n"
        "int main() { go(); go<4>(); }\n"
    )
    assert [i.name for i in Templates([text]).instances()[0]] == ["k<16, 8, ( 16 * 2 )>", "k<4, 8, ( 4 * 2 )>"]


def test_instances_are_those_of_the_calls_of_host_templates() -> None:
    text = (
        "template <typename T, int N> __global__ void k(T* x) {}\n"
        "template <typename T> struct Of { static void go(T* x) { k<T, 8><<<1, 1>>>(x); } };\n"
        "template <typename T, int N> void inner(T* x) { auto* f = &k<T, N * 2>; }\ntemplate <int N> void outer() { inner<float, N + 1>(nullptr); }\n"
        "int main() { outer<3>(); outer<5>(); }\n"
    )
    found, opened = Templates([text]).instances()
    assert [i.name for i in found] == ["k<float, 3 + 1 * 2>", "k<float, 5 + 1 * 2>"] or [i.name for i in found] == [
        "k<float, (3 + 1) * 2>", "k<float, (5 + 1) * 2>"]
    assert opened == []


def test_constants_in_braces_are_read() -> None:
    text = (
        "template <class T, int N, int M> __global__ void k(T* x) {}\n"
        "template <class T> void f(T* x) { constexpr unsigned int A{32U}; const int B{A / 2}; k<T, A, B><<<1, 1>>>(x); }\n"
    )
    made = [i.name.replace(" ", "") for i in Templates([text + "int main() { f<float>(nullptr); }\n"]).instances()[0]]
    assert made == ["k<float,(32U),((32U)/2)>"], made
