"""What a source finds of its compiler and of earlier calls in the simulator: what it finds on a GPU."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from rooftop.core import compile as compiling
from rooftop.core.spec import Launch
from rooftop.lab import simt
from rooftop.lab.simt import build, macros

MORE = [
    "__CUDACC__", "__CUDACC_RTC__", "__NVCC__", "__CUDACC_VER_MAJOR__", "__CUDACC_VER_MINOR__", "__CUDACC_VER_BUILD__", "__CUDA_ARCH__",
    "__CUDA_ARCH_LIST__", "__CUDA_ARCH_FEAT_SM90_ALL", "__CUDA_ARCH_SPECIFIC__", "__CUDA_ARCH_FAMILY_SPECIFIC__", "CUDA_VERSION",
    "CUDART_VERSION", "_WIN32", "NDEBUG", "__clang__", "__COUNTER_", "__CUDACC_RDC__", "__INTEL_COMPILER",
]
VALUES = [
    "__CUDACC_RTC__", "__CUDACC__", "__CUDACC_VER_MAJOR__", "__CUDACC_VER_MINOR__", "__CUDACC_VER_BUILD__", "__CUDA_ARCH__",
    "__CUDA_ARCH_LIST__", "__CUDA_ARCH_SPECIFIC__", "__CUDA_ARCH_FEAT_SM90_ALL", "__EDG_VERSION__", "__cplusplus", "CUDART_VERSION",
    "__CUDA_FTZ", "__CUDA_PREC_DIV",
]


def ran(text: str, results: int, **more: bool) -> list[int]:
    y = torch.zeros(results, dtype=torch.int32)
    launch = Launch(kernel="k", grid=(1,), block=(1,), args={"y": "y"}, types=("ptr",), cluster=(), cooperative=False, shared=0)
    report = simt.run_launches(text, "kernel.cu", [launch], {"y": y}, **more)  # type: ignore[arg-type]
    assert report.clean, report.findings
    return [int(v) for v in y]


def test_the_macros_are_nvrtcs() -> None:
    """Each macro that the host defines behind the simulator's header, and each of NVRTC's: defined here if, and only if, NVRTC defines it."""
    tool = build.compiler()
    command = [str(tool.path), *build._flags(tool), *build.KERNEL, "-dM", "-E", "-x", "c++", str(build.RUNTIME / "simt.h")]
    host = re.findall(r"^#define (\w+)", subprocess.run(command, capture_output=True, text=True, check=True).stdout, re.M)
    stand_ins = {n for p in build.RUNTIME.rglob("*") if p.is_file() for n in macros._NAME.findall(p.read_text(encoding="utf-8"))}  # of functions of CUDA
    names = sorted({*host, *MORE, *macros.DEFINED} - (stand_ins - {*MORE, *macros.DEFINED}))
    lines = "".join(f"#ifdef {n}\n    __device__ int seen_{i} = 1;\n#endif\n" for i, n in enumerate(names))
    here = f"{''.join(f'#ifdef {n}{chr(10)}y[{i}] = 1;{chr(10)}#endif{chr(10)}' for i, n in enumerate(names))}"
    found = ran(f"__global__ void k(int* y) {{\n{here}}}", len(names), rtc=True)
    cubin = compiling.compile_cuda(f"{lines}__global__ void k(int* y) {{ y[0] = 1; }}", name="kernel.cu", target="sm_90a", kernels=["k"]).cubin
    there = {names[int(m)] for m in re.findall(rb"\0seen_(\d+)(?=\0)", cubin)}
    assert {n for n, v in zip(names, found, strict=True) if v} == there and len(there) > 100


def test_the_values_of_macros_are_nvrtcs() -> None:
    found = ran("__global__ void k(int* y) {\n" + "".join(f"y[{i}] = {n};\n" for i, n in enumerate(VALUES)) + "}", len(VALUES), rtc=True)
    asserted = "".join(f'static_assert({n} == {v}, "{n}");\n' for n, v in zip(VALUES, found, strict=True))
    assert compiling.compile_cuda(f"{asserted}__global__ void k(int* y) {{ y[0] = 1; }}", name="kernel.cu", target="sm_90a", kernels=["k"]).cubin


@pytest.mark.parametrize("rtc", [False, True])
def test_a_program_has_nvccs(rtc: bool) -> None:
    names = ["__NVCC__", "__CUDACC_RTC__", "__linux__", "__CUDACC__", "__GNUC__"] if not build.compiler().clang else ["__NVCC__", "__CUDACC_RTC__", "__linux__"]
    lines = "".join(f"#ifdef {n}\ny[{i}] = 1;\n#endif\n" for i, n in enumerate(names))
    assert ran(f"__global__ void k(int* y) {{\n{lines}}}", len(names), rtc=rtc) == ([0, 1, 0, 1, 0] if rtc else [1, 0, 1, 1, 1])[: len(names)]


def test_macros_name_the_architecture() -> None:
    text = "__global__ void k(int* y) {\n#ifdef __CUDA_ARCH_FEAT_SM90_ALL\ny[0] = 1;\n#endif\ny[1] = __CUDA_ARCH_LIST__; }"
    assert ran(text, 2, rtc=True, arch=80) == [0, 800] and ran(text, 2, rtc=True, arch=90) == [1, 900]


HEAD = """/* rooftop
args   = ["N: i32", "x: T[N]", "y: T[N]"]
dtypes = ["f32"]
[[launch]]
kernel = "count"
grid   = [1]
block  = [1]
args   = []
[[launch]]
kernel = "scale<{T}>"
grid   = ["ceil(N / 256)"]
block  = [256]
*/
"""


def judged(tmp_path: Path, text: str) -> list[tuple[str, str]]:
    from rooftop.lab.check import many, own_op

    (tmp_path / "k.cu").write_text(HEAD + text, encoding="utf-8")
    (tmp_path / "ref.py").write_text("def twice(x):\n    return x * 2\n", encoding="utf-8")
    subject = own_op.subject(tmp_path / "k.cu", f"{tmp_path}/ref.py:twice", [{"N": 300}])
    return [(r.status, r.message) for _, _, r in many.check_many([(subject, subject.op.cases[0])], "simt", 3)]


@pytest.mark.sampled("simulator")
@pytest.mark.parametrize(
    ("variables", "factor", "right"),
    [("__device__ int other = 1; __device__ int calls;", "calls > other ? 3 : 2", False),
     ("__device__ long pad = 7; __constant__ int two = 2; __device__ int calls = 0;", "two", True)],
)
def test_variables_of_the_device_keep_their_values_from_run_to_run(variables: str, factor: str, right: bool, tmp_path: Path) -> None:
    text = f"""{variables}
__global__ void count() {{ calls = calls + 1; }}
template <typename T> __global__ void scale(int n, const T* x, T* y) {{
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) y[i] = T({factor}) * x[i];
}}
"""
    assert {status for status, _ in judged(tmp_path, text)} == ({"ok"} if right else {"wrong"})


@pytest.mark.sampled("simulator")
@pytest.mark.parametrize(
    ("factor", "first", "archs", "says"),
    [("2", 80, [90], ""), ("__CUDA_ARCH__ < 900 ? 3 : 2", 80, [90, 80], "on sm_80: y: largest error"), ("__CUDA_ARCH__ < 900 ? 2 : 2", 80, [90, 80], ""),
     ("__CUDA_ARCH__ < 900 ? 3 : 2", 90, [90], "")],
)
def test_each_architecture_that_a_source_tells_apart_is_simulated_and_named(factor: str, first: int, archs: list[int], says: str, tmp_path: Path) -> None:
    from rooftop.lab.check import many, own_op

    begin = HEAD.partition("[[launch]]")[0] + f"arch = {first}\n"
    head = begin + '[[launch]]\nkernel = "scale<{T}>"\ngrid = ["ceil(N / 256)"]\nblock = [256]\n*/\n'
    body = f"int i = blockIdx.x * 256 + threadIdx.x; if (i < n) y[i] = T({factor}) * x[i];"
    (tmp_path / "k.cu").write_text(f"{head}template <typename T> __global__ void scale(int n, const T* x, T* y) {{ {body} }}\n", encoding="utf-8")
    (tmp_path / "ref.py").write_text("def twice(x):\n    return x * 2\n", encoding="utf-8")
    subject = own_op.subject(tmp_path / "k.cu", f"{tmp_path}/ref.py:twice", [{"N": 30}])
    result = many.check_one(subject, subject.op.cases[0], "simt", 3)
    assert (result.status, list(result.archs)) == ("wrong" if says else "ok", archs) and result.message.startswith(says)


def test_the_clock_differs_between_runs() -> None:
    text = "__global__ void k(long long* y) { y[0] = clock64(); }"
    seen = set()
    for _ in range(3):
        y = torch.zeros(1, dtype=torch.int64)
        assert simt.simulate(text, "k", {"y": y}, grid=(1,), block=(1,), arguments=[("y", "ptr")]).clean
        seen.add(int(y[0]))
    assert len(seen) == 3
