"""Instructions of a cubin and the source lines that they come from."""

from __future__ import annotations

import pytest

from rooftop.core import settings
from rooftop.core.compile import compile_cuda
from rooftop.lab.inspect import sass_lines
from rooftop.lab.inspect.binary import BinaryError

NAME = "some/place/of_a_kernel.cu"
SOURCE = """#include <cuda_pipeline.h>

__device__ float4 load(const float* from) {
    return *reinterpret_cast<const float4*>(from);
}

__global__ void k(const float* __restrict__ x, float* out, int n) {
    __shared__ __align__(16) float s[256];
    const int t = threadIdx.x;
    __pipeline_memcpy_async(&s[t], x + t, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += s[4 * (255 - t) + i];
    const float4 v = load(x + 4 * t);
    if (n > 3) atomicAdd(out + n, v.x * v.y);
    out[t] = sum + v.z * v.w;
}
"""


@pytest.fixture(scope="module")
def cubin() -> tuple[bytes, str]:
    binary = compile_cuda(SOURCE, name=NAME, target="sm_90a", kernels=["k"])
    return binary.cubin, binary.names["k"]


def test_accesses_stand_at_their_lines_with_their_widths(cubin: tuple[bytes, str]) -> None:
    found = sass_lines.widths(*cubin, NAME)
    assert found[NAME, 10, "global", "read"] == {4: 1}
    assert found[NAME, 10, "shared", "write"] == {4: 1}
    assert found[NAME, 15, "shared", "read"] == {16: 1}  # four floats in one instruction
    assert found[NAME, 4, "global", "read"] == {16: 1}  # in the function that loads
    assert found[NAME, 17, "global", "atomic"] == {4: 1}
    assert found[NAME, 18, "global", "write"] == {4: 1}
    assert len(found) == 6


def test_instructions_are_in_order_and_those_that_never_run_left_out(cubin: tuple[bytes, str]) -> None:
    code = sass_lines.instructions(*cubin, NAME)
    assert [i.offset for i in code] == sorted(i.offset for i in code)
    assert code[0].offset == 0
    assert "EXIT" in {i.opcode for i in code}
    assert not [i for i in code if i.sass.startswith("@!PT")]


def test_another_symbol_is_an_error(cubin: tuple[bytes, str]) -> None:
    with pytest.raises(BinaryError, match="no kernel _Z1j"):
        sass_lines.instructions(cubin[0], "_Z1j", NAME)


def test_opcodes_what_they_access_and_how_wide() -> None:
    assert sass_lines.opcode("@!UP0 LDG.E.128 R4, desc[UR4][R2.64] ;") == "LDG.E.128"
    assert sass_lines.opcode("STS.64 [R2], R4") == "STS.64"
    assert sass_lines.accesses("LDG.E.128") == (("global", "read"),)
    assert sass_lines.accesses("LDGSTS.E.BYPASS.128") == (("global", "read"), ("shared", "write"))
    assert sass_lines.accesses("REDG.E.ADD.F32") == (("global", "atomic"),)
    assert sass_lines.accesses("LDSM.16.M88.4") == (("shared", "read"),)
    assert sass_lines.accesses("FFMA") == sass_lines.accesses("LDC") == ()
    assert [sass_lines.width(o) for o in ("LDG.E.U8.CONSTANT", "LDG.E.U16", "STS", "LDS.64", "STG.E.128", "LDSM.16.M88.4")] == [1, 2, 4, 8, 16, 16]


def test_files_are_named_from_the_checkout() -> None:
    assert sass_lines.place(f"/a/b/{NAME}", NAME) == NAME
    assert sass_lines.place(str(settings.CHECKOUT / "rooftop/kernels/_device/packs.cuh"), NAME) == "rooftop/kernels/_device/packs.cuh"
    assert sass_lines.place("/usr/include/crt/sm_80_rt.hpp", NAME) == "crt/sm_80_rt.hpp"
    assert sass_lines.foreign("/x/nvidia/cu13/include/cuda_pipeline_helpers.h")
    assert not sass_lines.foreign("/x/rooftop/kernels/_device/words.cuh")
    assert not sass_lines.foreign("rooftop/ladders/softmax_cuda/01_naive.cu")
