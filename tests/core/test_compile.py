"""Compiling CUDA C++: the cache, many programs at once, which headers may be included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _support import KERNEL

from rooftop.core import compile as compiling
from rooftop.core import helpers, registry, sandbox
from rooftop.core.compile import CompileError, compile_cuda, compile_many

FOLDERS = (helpers.SHARED,)


@pytest.mark.parametrize("jobs", [1, 2])
def test_many_programs_are_compiled_into_the_cache_and_one_that_fails_is_left(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path))
    monkeypatch.setenv("ROOFTOP_JOBS", str(jobs))
    right = "template <int N> __global__ void fill(int* y) { y[threadIdx.x] = N; }"
    programs = [(right, "right.cu", "sm_80", (f"fill<{n}>",), FOLDERS) for n in range(7)]
    programs += [("__global__ void broken(", "wrong.cu", "sm_80", ("broken",), FOLDERS)]
    compile_many(programs)
    assert all(compile_cuda(s, name=n, target=t, kernels=k).cached for s, n, t, k, _ in programs[:-1])
    with pytest.raises(CompileError, match=r"wrong\.cu"):
        compile_cuda(programs[-1][0], name="wrong.cu", target="sm_80", kernels=("broken",))


def test_headers_that_are_kept_change_no_byte_and_parts_hold_every_job_once() -> None:
    from rooftop.core import compile as compiling

    source = "#include <cuda_fp16.h>\ntemplate <int N> __global__ void fill(__half* y) { y[threadIdx.x] = __hadd(y[threadIdx.x], __half(N)); }"
    plain = compile_cuda(source, name="fill.cu", target="sm_80", kernels=("fill<3>",), use_cache=False)
    for _ in range(2):  # made, then used
        assert compile_cuda(source, name="fill.cu", target="sm_80", kernels=("fill<3>",), use_cache=False, of_many=True).cubin == plain.cubin
    jobs = [(s, "a.cu", t, (str(i),), FOLDERS) for s, t, n in (("a", "sm_80", 11), ("a", "sm_90a", 2), ("b", "sm_80", 5)) for i in range(n)]
    parts = compiling._parts(jobs, 4)
    assert sorted(job for part in parts for job in part) == sorted(jobs)
    assert all(len({(job[0], job[2]) for job in part}) == 1 for part in parts) and [len(p) for p in parts] == [5, 4, 4, 3, 2]


INCLUDES = [
    '#include "helper.cuh"', "#include <helper.cuh>", '#include "FOLDER/helper.cuh"', "#include <FOLDER/helper.cuh>", '#  include /* x */ "helper.cuh"',
    '#include "../f/helper.cuh"', '#include \\\n"helper.cuh"', '#define H "helper.cuh"\n#include H', '%:include "helper.cuh"', '#include "words.cuh"',
    "#include <cuda_fp16.h>", '\f#include "helper.cuh"', '#inc\\\nlude "helper.cuh"', '#/**/include/**/"helper.cuh"', '\v#\f\\ \ninclude "helper.cuh"',
]


@pytest.mark.parametrize("line", INCLUDES)
def test_a_header_that_the_cache_would_not_see_change_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mine.cu"
    for name in ("helper.cuh", "words.cuh", "cuda_fp16.h"):  # of which two hide others of the same name
        (tmp_path / name).write_text("static const int FACTOR = 2;\n")
    path.write_text(KERNEL.replace("template", line.replace("FOLDER", str(tmp_path)) + "\ntemplate"))
    with pytest.raises(CompileError, match=rf"mine\.cu\({10 + line.count(chr(10))}\): error: .*words\.cuh"):
        registry.user_file(path).compile(["k<float>"], "sm_90a")  # type: ignore[attr-defined]


def test_headers_of_the_house_and_of_cuda_may_be_included_in_both_forms(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL.replace("template", '// #include "helper.cuh"\n#include "words.cuh"\n#include <packs.cuh>\n#include "cuda_fp16.h"\ntemplate', 1))
    assert registry.user_file(path).compile(["k<float>"], "sm_90a").cubin  # type: ignore[attr-defined]


def test_a_house_header_in_angle_brackets_counts_for_the_cache(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text('#include "b.cuh"\n')
    (tmp_path / "b.cuh").write_text("\n")
    assert [p.name for p in helpers.headers("#include <a.cuh>\n#include <cuda_fp16.h>\n", (tmp_path,))] == ["a.cuh", "b.cuh"]
    (tmp_path / "b.cuh").write_text('\n#include "c.cuh"\n')
    with pytest.raises(CompileError, match=r'b\.cuh\(2\): error: cannot include "c\.cuh"; .*: a\.cuh, b\.cuh'):
        compiling.check_includes('#include "a.cuh"\n', "mine.cu", (tmp_path,))


def test_a_compile_cache_that_is_broken_or_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(KERNEL)

    def compiled() -> Any:
        return registry.user_file(path).compile(["k<float>"], "sm_90a")  # type: ignore[attr-defined]

    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path / "cache"))
    first = compiled()
    assert (first.cached, compiled().cached) == (False, True)
    (cubin,), (facts,) = (tmp_path / "cache").rglob("*.cubin"), (tmp_path / "cache").rglob("*.json")
    for broken, content in ((cubin, first.cubin[:100]), (cubin, b""), (facts, b'{"names": '), (facts, b"\xff")):
        broken.write_bytes(content)
        again = compiled()
        assert (again.cached, again.cubin, again.names) == (False, first.cubin, first.names)
        assert compiled().cached
    monkeypatch.setenv("ROOFTOP_CACHE", str(path / "below a file"))
    assert (compiled().cached, compiled().cubin) == (False, first.cubin)


WITHOUT_END = """
template<int N, int M> struct E { static constexpr int v = E<N - 1, 2 * M>::v + E<N - 1, 2 * M + 1>::v; };
template<int M> struct E<0, M> { static constexpr int v = M; };
static constexpr int q = E<24, 1>::v;
__global__ void k(int* y) { y[0] = q; }
"""


def test_a_source_that_nvrtc_has_no_end_of_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_STEP_SECONDS", "2")
    with pytest.raises(CompileError, match=r"endless\.cu does not compile: no answer in 2 s from the compilation of endless\.cu"):
        compile_cuda(WITHOUT_END, name="endless.cu", target="sm_90a", kernels=["k"])
    monkeypatch.undo()
    assert compile_cuda("__global__ void k(int* y) { y[0] = 1; }", name="next.cu", target="sm_90a", kernels=["k"], use_cache=False).cubin


@pytest.mark.skipif(not sandbox.landlock_version(), reason="needs Landlock")
def test_nvrtc_reads_headers_alone_of_somebodys_source(tmp_path: Path) -> None:
    """What the search for includes would miss, the system still refuses."""
    (tmp_path / "mine.txt").write_text("secret")
    text = f'#include "{tmp_path}/mine.txt"\n__global__ void k(int* y) {{ y[0] = 1; }}'
    with pytest.raises(CompileError, match=r"[cC]ould not open|cannot open") as error:
        compiling._compiled_apart(text, "mine.cu", "sm_90a", ["k"], (), (helpers.SHARED,))
    assert "secret" not in str(error.value)
