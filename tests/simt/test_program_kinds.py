"""Kinds of programs that public repositories hold: a number that chooses a kernel, memory made anew in each turn of a timing loop, types that
a macro decides, headers of other folders, libraries on the host."""

from __future__ import annotations

from pathlib import Path

import pytest
from _support import command
from typer.testing import CliRunner

from rooftop.core.compile import CompileError
from rooftop.lab import simt
from rooftop.lab.cli import commands
from rooftop.lab.cli.app import app
from rooftop.lab.simt import host, host_variables, kernel_caller, ordinary, program, program_caller
from rooftop.lab.simt.tokens import tokenise

pytestmark = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))


def simulated(folder: Path, text: str, *options: str) -> tuple[int, str]:
    commands()
    path = folder / "own.cu"
    path.write_text(text, encoding="utf-8")
    done = CliRunner().invoke(app, ["simt", str(path), *options])
    return done.exit_code, done.output


@pytest.mark.sampled("simulator")
def test_a_program_that_says_which_kernels_it_has_is_called_with_the_first(tmp_path: Path) -> None:
    code, said = simulated(tmp_path, (
        "#include <cstdio>\n#include <cstdlib>\n__global__ void k(int* x, int n) { x[threadIdx.x] = n; }\n"
        'int main(int argc, char** argv) {\n    if (argc != 2) { printf("Please select a kernel (range 0 - 7, 0 is the library)\\n"); exit(1); }\n'
        "    int *x, which = atoi(argv[1]);\n    cudaMalloc(&x, 128);\n    if (which > 0 && which < 7) k<<<1, 32>>>(x, which);\n"
        "    cudaFree(x);\n    return which > 7;\n}\n"
    ))
    assert code == 0 and "--args '1', for argv[1]" in said and "k<<<1, 32>>>(x, 1)" in said, said


TIMED = (
    "#include <vector>\n__global__ void k(float* x, const float* y, int n) { if (threadIdx.x < n) x[threadIdx.x] = y[threadIdx.x] + 1; }\n"
    "int main() {\n    for (int i = 0; i < 50; ++i) {\n        float *x, *y;\n        cudaMalloc(&x, 128);\n        cudaMalloc(&y, 128);\n"
    "        std::vector<float> h(32, float(i)), back(32);\n        cudaMemcpy(y, h.data(), 128, cudaMemcpyHostToDevice);\n"
    "        k<<<1, 32>>>(x, y, 32);\n        k<<<1, 32>>>(x, y, 32);\n        k<<<1, 32>>>(x, y, 32);\n"
    "        cudaMemcpy(back.data(), x, 128, cudaMemcpyDeviceToHost);\n        if (back[31] != float(i) + 1) return 1;\n"
    "        cudaFree(x);\n        cudaFree(y);\n    }\n    return 0;\n}\n"
)


@pytest.mark.sampled("simulator")
def test_launches_on_memory_that_a_loop_makes_anew_are_the_same_launch_and_each_is_made(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(TIMED, encoding="utf-8")
    run = program.run(program.source_of(path)[0])
    assert (run.ended, run.status) == ("returned", 0), "each turn's launch must write its own memory"
    assert [(x.times, x.watched) for x in run.launches] == [(50, 1)] * 3
    other = TIMED.replace("cudaMalloc(&x, 128)", "cudaMalloc(&x, i < 40 ? 128 : 64)").replace("k<<<1, 32>>>(x, y, 32);\n        ", "", 2)
    path.write_text(other.replace("if (back[31] != float(i) + 1) return 1;", "").replace("back.data(), x, 128", "back.data(), x, 64"), encoding="utf-8")
    run = program.run(program.source_of(path)[0])
    assert [(x.times, x.watched) for x in run.launches] == [(40, 1), (10, 1)], "memory of another size is another launch"
    assert [f.kind for f in run.report.faults] == ["out-of-bounds"]


@pytest.mark.sampled("simulator")
def test_a_program_whose_time_ends_between_launches_is_judged_by_those_that_were_watched(tmp_path: Path) -> None:
    text = (
        "__global__ void k(int* x) { for (int i = 0; i < 20000; ++i) x[threadIdx.x] += i; }\n"
        "int main() { for (int n = 1; ; ++n) { int* x; cudaMalloc(&x, 128); cudaMemset(x, 0, 128); k<<<n, 32>>>(x); cudaFree(x); } }\n"
    )
    code, said = simulated(tmp_path, text.replace("<<<n,", "<<<1,"), "--budget", "0.2")
    assert code == 0 and "its time was over, and it was ended" in said and "no fault as far as it came" in said, said
    code, said = simulated(tmp_path, text.replace("x[threadIdx.x] +=", "x[threadIdx.x + 1] +="), "--budget", "0.2")
    assert code == 1 and "out-of-bounds" in said, said


def test_a_kernel_alone_takes_a_type_that_a_macro_decides() -> None:
    text = (
        "#ifdef SMALL\ntypedef __half own_t;\n#else\ntypedef float own_t;\n#endif\ntypedef int number_t;\n"
        "__global__ void k(own_t* x, number_t* y, int n) { if (threadIdx.x < n) x[threadIdx.x] = y[threadIdx.x]; }\n"
    )
    code, assumed = kernel_caller.call_of_kernels(text, [(k, k.name) for k in ordinary.kernels(text)], {})
    assert "x=own_t:4096, y=i32:4096" in assumed and "own_t* x;" in code, assumed


def test_whole_numbers_of_namespace_std_are_sizes_and_elements() -> None:
    text = (
        "__global__ void k(std::int32_t* x, const std::size_t n) { x[threadIdx.x] = n; }\n"
        "void f(const std::int32_t n, std::int32_t* x) { k<<<1, 1>>>(x, n); }\n"
    )
    assert kernel_caller.call_of_kernels(text, [(k, k.name) for k in ordinary.kernels(text)], {})[1] == "k<<<1, 1>>>(x=i32:4096, n=1024)"
    assert program_caller.call_of_arrays(list(program_caller.functions(text)), {})[1] == "f(n = 1000, x: 1,000 elements)"


def test_a_header_of_another_folder_of_the_repository_is_found_and_what_defines_its_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "README.md": "", "src/cpp/include/own.hpp": "#pragma once\nstruct Own { void launched(int* x); };\n", "old/own.txt": "",
        "src/cuda/one.cuh": "__global__ void k(int* x) { x[threadIdx.x] = 1; }\n",
        "src/cpp/include/one.cpp": '#include "own.hpp"\n#include "one.cuh"\nvoid Own::launched(int* x) { k<<<1, 32>>>(x); }\n',
        "bench/run/own.cu": '#include "own.hpp"\nint main() { int* x; cudaMalloc(&x, 128); Own{}.launched(x); cudaFree(x); }\n',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    path = tmp_path / "bench" / "run" / "own.cu"
    source, _ = program.source_of(path)
    assert not source.missing
    assert [x.kernel for x in program.run(source).launches] == ["k"]
    monkeypatch.chdir(path.parent)  # the header has one name there too
    assert [x.kernel for x in program.run(program.source_of(Path("own.cu"))[0]).launches] == ["k"]
    (tmp_path / "README.md").unlink()
    assert program.source_of(path)[0].missing, "nothing says where a repository begins"


def test_a_file_that_a_program_has_written_may_be_read_again_by_it_alone(tmp_path: Path) -> None:
    code, said = simulated(tmp_path, """#include <cstdio>
int main() {
    int kept[4] = {1, 2, 3, 4}, got[4] = {};
    FILE* f = fopen("own.bin", "wb");
    fwrite(kept, 4, 4, f);
    fclose(f);
    f = fopen("own.bin", "rb");
    printf("read %zu", fread(got, 4, 4, f));
    fclose(f);
    printf(" last %d\\n", got[3]);
}
""")
    assert code == 0 and "read 4 last 4" in said and not (tmp_path / "own.bin").exists(), said


@pytest.mark.sampled("simulator")
def test_a_product_of_a_library_that_takes_too_long_is_left_out_and_kernels_are_watched_all_the_same(tmp_path: Path) -> None:
    code, said = simulated(tmp_path, """#include <cublas_v2.h>
#include <helper_cuda.h>
#include <helper_timer.h>
__global__ void k(float* c, half* h) { c[threadIdx.x] += 1; h[0] = __float2half(1); }
int main(int argc, char** argv) {
    const int n = checkCmdLineFlag(argc, (const char**)argv, "n") ? 1 : 20000;
    float *a, *b, *c, one = 1, zero = 0;
    half* h;
    StopWatchInterface* timer;
    sdkCreateTimer(&timer);
    sdkStartTimer(&timer);
    checkCudaErrors(cudaMalloc(&h, 2));
    for (float** p : {&a, &b, &c}) checkCudaErrors(cudaMalloc(p, 4096));
    cudaMemset(c, 0, 4096);
    cublasHandle_t handle;
    cublasCreate(&handle);
    cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, n, b, n, &zero, c, n);
    k<<<1, 32>>>(c, h);
    sdkStopTimer(&timer);
    sdkDeleteTimer(&timer);
    for (float* p : {a, b, c}) cudaFree(p);
    cudaFree(h);
    cublasDestroy(handle);
}
""")
    assert code == 0 and "a library's product of 20000x20000x20000" in said and "k<<<1, 32>>>(" in said, said


@pytest.mark.sampled("simulator")
def test_a_race_at_any_size_is_a_fault_where_sizes_are_assumed_and_one_past_the_end_may_come_of_them(tmp_path: Path) -> None:
    text = """__global__ void k(const float* x, float* y, int n) {
    __shared__ float t[128];
    int i = blockIdx.x * 128 + threadIdx.x;
    t[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    if (i < n) y[i] = t[127 - threadIdx.x];
}
extern "C" void solve(const float* x, float* y, int n) { k<<<(n + 127) / 128, 128>>>(x, y, n); }
"""
    assert simulated(tmp_path, text)[0] == 0
    code, said = simulated(tmp_path, text.replace("    __syncthreads();\n", ""))
    assert code == 1 and "shared-race" in said and "may come of that" not in said, said
    code, said = simulated(tmp_path, text.replace("if (i < n) y[i]", "y[i + 1000]"))
    assert code == 3 and "its inputs are assumed, and what is found may come of that" in said, said


def test_a_program_that_lists_choices_is_called_with_the_first(tmp_path: Path) -> None:
    code, said = simulated(tmp_path, (
        "#include <cstdio>\n#include <cstring>\n__global__ void k(int* x) { x[threadIdx.x] = 1; }\nint main(int argc, char** argv) {\n"
        '    if (argc < 2) { printf("Usage:\\n  %s --quick   # a few\\n  %s --all\\n", argv[0], argv[0]); return 0; }\n'
        '    int* x;\n    cudaMalloc(&x, 128);\n    if (!strcmp(argv[1], "--quick")) k<<<1, 32>>>(x);\n    cudaFree(x);\n}\n'
    ))
    assert code == 0 and "--args '--quick', as its usage has it" in said and "k<<<1, 32>>>(x)" in said, said


def test_a_struct_of_pointers_and_sizes_is_filled_field_by_field() -> None:
    text = (
        "struct Params {\n    float* x; // [rows, columns]\n    const int* index;\n    float scale;\n    int rows;\n};\n"
        + "__global__ void k(const Params p, int n) { if (threadIdx.x < n) p.x[threadIdx.x] = p.scale * p.index[0]; }\n"
    )
    code, said = kernel_caller.call_of_kernels(text, [(k, k.name) for k in ordinary.kernels(text)], {}, text)
    assert "p.x=f32:4096, p.index=i32:4096, p=Params{p_x, p_index, 1.0f, 64}, n=64" in said, said
    assert "k(simt_a...); }, Params{p_x, p_index, 1.0f, 64}, 64);" in code


HOSTS = """#include <cstdio>
int n = 5, m = 2;
float scale;
const int c = 3;
__constant__ float table[4];
__device__ int seen;
struct P { int n; float scale; };
{device}
int main() {{ int* p; cudaMalloc(&p, 128); scale = n * m; k<<<1, 32>>>(p, n, P()); cudaFree(p); }}
"""


@pytest.mark.parametrize(
    ("device", "names"),
    [("__global__ void k(int* p, int m, P q) { p[threadIdx.x] = m * n; }", ["n"]),
     ("__device__ void add(int* p) { atomicAdd(p, m); }\n__global__ void k(int* p, int, P q) { printf(\"%g\", scale); add(p); }", ["m", "scale"]),
     ("__host__ __device__ int twice(int n) { return n * 2; }\n__global__ void k(int* p, int n, P q) {\n"
      "    float *scale = nullptr;\n    int i = c, m = 1;\n    p[i] = q.n + m;\n    seen = table[n];\n}", []),
     ("__global__ void k(int* p, int, P q) {\n    const P& scale = q;\n    for (int n = 0, m = 4; n < m; ++n) p[n] = scale.n;\n}", [])],
)
def test_a_variable_of_the_hosts_in_a_kernel_is_refused_as_nvcc_does(device: str, names: list[str], tmp_path: Path) -> None:
    text = HOSTS.replace("{device}", device).replace("{{", "{").replace("}}", "}")
    assert sorted(name for _, _, name, _ in host_variables.used({"own.cu": text})) == names
    if names == ["n"]:
        path = tmp_path / "own.cu"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(CompileError, match=r"own\.cu:8: n is a variable of the host's \(line 2\), which nvcc refuses in device code"):
            program.run(program.source_of(path)[0])


def test_a_kernel_alone_is_launched_by_its_namespaces_on_rows_by_pointers_and_in_smaller_blocks_of_wider_threads() -> None:
    text = (
        "#define TM 4\nnamespace a::b {\ntemplate <int TN>\n__global__ void k(float** x, int n) { x[threadIdx.y * TM][threadIdx.x * TN] = n; }\n"
        "}\n"
    )
    (kernel,) = ordinary.kernels(text)
    assert kernel.name == "a::b::k"
    code, said = kernel_caller.call_of_kernels(text, [(kernel, "a::b::k<2>")], {}, text, coarse=True)
    assert said == "a::b::k<2><<<1, 8x4>>>(x=f32*:64x4096, n=64)" and "simt_made::rows(x, x_all, 64, 4096);" in code, said
    assert "16x16" in kernel_caller.call_of_kernels(text, [(kernel, "a::b::k<2>")], {}, text)[1]


def test_rows_by_pointers_are_watched_as_memory(tmp_path: Path) -> None:
    for row, kinds in (("blockIdx.x", []), ("n", ["out-of-bounds"])):
        (tmp_path / "own.cu").write_text(f"__global__ void k(float** x, int n) {{ x[{row}][threadIdx.x] = n; }}\n", encoding="utf-8")
        run = program.run(program.source_of(tmp_path / "own.cu")[0])
        assert sorted({f.kind for f in run.report.faults}) == kinds


@pytest.mark.sampled("simulator")
def test_arrays_whose_length_nothing_says_are_longer_where_that_is_right(tmp_path: Path) -> None:
    text = (
        "__global__ void k(const float* x, float* y, int n) {{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < n) y[i] = x[i * {0} + {0}];\n}}\n"
    )
    code, said = simulated(tmp_path, text.format(8))
    assert code == 0 and "x=f32:16384" in said and "with other sizes or blocks, k<<<4, 256>>>(x=f32:4096" in said and "has faults" in said, said
    code, said = simulated(tmp_path, text.format(800))
    assert code == 3 and "out-of-bounds" in said, said


def test_host_code_is_left_out_with_its_prototypes_and_constructors(tmp_path: Path) -> None:
    (tmp_path / "own.cu").write_text("""#include <vector>
template <typename T> struct Held { Held(int n); std::vector<T> v; int n_; int* more_ = nullptr; };
template <typename T> Held<T>::Held(int n)
    : v(n), n_{n}
{ cudaMalloc(&more_, n); }
template <typename T> void filled(Held<T>& to, int n);
void shown(const Held<int>& what);
__global__ void one(int* x) { x[threadIdx.x] = 1; }
""", encoding="utf-8")
    source, assumed = program.source_of(tmp_path / "own.cu")
    assert "one<<<" in assumed and [x.kernel for x in program.run(source).launches] == ["one"]


def test_a_mark_of_byte_order_and_spaces_behind_a_backslash_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "own.cu").write_text(
        "\ufeff#include <thrust/host_vector.h>\nthrust::host_vector<int, std::allocator<int>> v(4);\n"
        "__global__ void one_k(int* x) { x[threadIdx.x] = 1; }\n#define RUN(name) \\  \n    name##_k<<<1, 32>>>(x);\n"
        "int main() { int* x; cudaMalloc(&x, 128); RUN(one) cudaFree(x); return system(\"pause\"); }\n", encoding="utf-8",
    )
    run = program.run(program.source_of(tmp_path / "own.cu")[0])
    assert [x.grid for x in run.launches] == [(1, 1, 1)] and not run.denied and run.status == 0


@pytest.mark.sampled("simulator")
def test_what_a_file_hands_to_torch_in_parts_and_in_a_namespace_is_called_and_its_references_too(tmp_path: Path) -> None:
    code, said = simulated(tmp_path, (
        "#include <torch/extension.h>\nnamespace own {\n__global__ void k(float* x) { x[threadIdx.x] = 1; }\n"
        "void fill(at::Tensor& x) { TORCH_CHECK(!x.is_cpu()); k<<<1, 32>>>(x.data_ptr<float>()); }\n"
        'TORCH_LIBRARY(own, m) { m.def("fill(Tensor x) -> ()"); }\n'
        'TORCH_LIBRARY_IMPL(own, CPU, m) { }\nTORCH_LIBRARY_IMPL(own, CUDA, m) { m.impl("own::fill", &fill); }\n}\n'
    ))
    assert code == 0 and "k<<<1, 32>>>(" in said, said


def test_a_macro_at_the_level_of_a_file_is_the_hosts_unless_device_code_is_in_it() -> None:
    text = (
        "template <class T> struct Known { static bool add(T f) { return f != nullptr; } };\n"
        "#define KEEP(f) static const bool kept_##f = Known<decltype(&f)>::add(&f);\n"
        "#define MAKE(name, op) \\\n    __global__ void name(float* x) { x[0] op 1; }\nMAKE(more, +=)\n"
        "void launch(float* x);\nKEEP(launch)\n__device__ int twice(int x) { return 2 * x; }\n"
    )
    kept = "".join(t.text for t in host.left_out(tokenise(text), host.marks([text])))
    assert "MAKE(more, +=)\n" in kept and "int twice" in kept and "\nKEEP(" not in kept and "struct Known" not in kept


@pytest.mark.parametrize(("options", "says"), [
    (("--kernel", "none"), "has no such kernel; it has k(int* x)"), (("--budget", "-1"), "more than 0"), (("--args", "'"), "--args ': no closing quotation"),
])
def test_options_that_fit_no_program_are_refused_by_a_line(options: tuple[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.cu").write_text("__global__ void k(int* x) { *x = 1; }\nint main() { }\n", encoding="utf-8")
    assert command(monkeypatch, "simt", str(tmp_path / "own.cu"), *options) == 1
    assert says in capsys.readouterr().err


@pytest.mark.sampled("simulator")
def test_launches_that_cannot_be_are_faults_though_no_kernel_ran(tmp_path: Path) -> None:
    code, said = simulated(tmp_path, "__global__ void k(int* x) { *x = 1; }\nint main() { k<<<0, 1>>>(nullptr); k<<<1, 2000>>>(nullptr); }\n")
    assert code == 1 and "with 0 blocks" in said and "kernels alone" not in said, said


def test_tiles_say_how_large_blocks_and_grids_are(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(
        "constexpr int BN = 64;\nconstexpr int TN = 8;\n__global__ void k(float* x, int m, int n) {\n"
        "    const int bx = blockIdx.x, by = blockIdx.y, tx = threadIdx.x, ty = threadIdx.y;\n"
        "    for (int i = 0; i < TN; ++i) if (bx * BN + tx * TN + i < n) x[(by * BN + ty * TN) * n + bx * BN + tx * TN + i] = 1;\n}\n", encoding="utf-8"
    )
    assert program.source_of(path)[1] == "k<<<1x1, 8x8>>>(x=f32:4096, m=64, n=64)"
