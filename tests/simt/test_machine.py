"""What the GPU's compiler makes of accesses, and how the simulator counts it: merged, split, at other lines; asynchronous copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rooftop.lab import simt
from rooftop.lab.inspect import sass_lines
from rooftop.lab.simt import annotate, machine
from rooftop.lab.simt.machine import Access, MachineCode, home, split
from rooftop.lab.simt.report import LineCounts

compiled = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))


def stores(*parts: tuple[int, int, str], line: int = 3) -> list[Access]:
    """(width, offset, base) of each."""
    return [Access("kernel.cu", line, "global", "write", w, "STG.E", base, offset) for w, offset, base in parts]


FOURS = [(4, 0, "R2"), (4, 4, "R2"), (4, 8, "R2"), (4, 12, "R2")]


@pytest.mark.parametrize(
    ("parts", "masks"),
    [
        ([(16, 0, "R2")], []),
        (FOURS, [0x1111]),
        ([*FOURS, (16, 16, "R2"), *FOURS, (16, 32, "R2")], [0x1111, 1]),  # every second one
        ([*FOURS, (16, 16, "R2"), (16, 32, "R2")], [0x1111, 1, 1]),
        ([(8, 16, "R2"), (8, 24, "R2")], [0x0101]),
        ([(4, 4, "R2"), (16, 32, "R4"), (8, 8, "R2"), (4, 0, "R2")], [0x0111, 1]),  # 4 + 4 + 8, put among others
        ([(4, 0, "R2"), (4, 0, "R4"), (4, 4, "R2"), (4, 4, "R4"), (8, 8, "R2"), (8, 8, "R4")], [0x0111]),  # two at once
        ([(4, 0, "R2")], []),  # one part is used, or it is another access
        ([*FOURS, (4, 64, "R2")], []),
    ],
)
def test_how_wide_accesses_are_split_is_read_off_their_offsets(parts: list[tuple[int, int, str]], masks: list[int]) -> None:
    assert split(stores(*parts), 16) == masks


def test_an_access_belongs_to_its_line_its_call_or_the_nearest_of_its_width() -> None:
    source = {("a.cu", n, "shared", "read"): w for n, w in ((10, 4), (20, 16), (30, 16), (40, 8))} | {("b.cuh", 5, "shared", "read"): 4}

    def at(file: str, line: int, width: int, *callers: tuple[str, int], opcode: str = "LDS") -> Any:
        found = home(Access(file, line, "shared", "read", width, opcode, "R2", 0, callers), "shared", "read", source)
        return found and found[:2]

    assert at("a.cu", 10, 16) == ("a.cu", 10)  # merged there
    assert at("a.cu", 20, 4) == ("a.cu", 20)  # split there
    assert at("c.cuh", 1, 16, ("b.cuh", 5), ("a.cu", 22)) == ("b.cuh", 5)  # inlined by it
    assert at("c.cuh", 1, 16, ("a.cu", 31)) == ("a.cu", 30)  # used by what is inlined at 31
    assert at("a.cu", 29, 16) == ("a.cu", 20)
    assert at("a.cu", 15, 16) == ("a.cu", 20)  # none before it
    assert at("a.cu", 39, 2) is None
    assert at("a.cu", 40, 16, opcode="LDGSTS.E.128") == ("a.cu", 30)  # a copy is neither merged nor split
    assert at("d.cuh", 1, 16) is None


@pytest.mark.parametrize(
    ("sass", "address"),
    [
        ("STG.E desc[UR14][R24.64+0x4], R29", ("R24.64", 4)), ("LDS.128 R8, [R7+-0x4000] ;", ("R7", -0x4000)), ("STS [UR5], R2", ("UR5", 0)),
        ("@!P0 LDS R4, [R8+UR4+0x100]", ("@!P0 R8+UR4", 0x100)), ("LDG.E R2, desc[UR8][R6.64] ;", ("R6.64", 0)), ("LDS R1, [0x20]", ("", 0x20)),
    ],
)
def test_addresses_of_sass(sass: str, address: tuple[str, int]) -> None:
    assert sass_lines.address(sass) == address


# -- counted -------------------------------------------------------------------------------------------------------------

SOURCE = r"""
#include <cuda_pipeline.h>
__global__ void stores(float* out) {
    for (int i = 0; i < 4; ++i)
        reinterpret_cast<float4*>(out)[32 * i + threadIdx.x] = make_float4(i, 1, 2, 3);
}
__global__ void backwards(float* out) {
    __shared__ float2 s[32];
    const int t = threadIdx.x;
    s[t] = make_float2(t, 1);
    __syncwarp();
    out[t] = s[t].y - s[t].x;
}
template <int BYTES, int AHEAD, int LANE, int GROUP>
__global__ void copies(const float* x, float* out) {
    extern __shared__ float4 held[];
    __shared__ float4 before[AHEAD];
    const int t = threadIdx.x;
    before[t % AHEAD] = make_float4(0, 0, 0, 0);
    char* const to = reinterpret_cast<char*>(held) + t % 8 * LANE + t / 8 * GROUP;
    __pipeline_memcpy_async(to, x + t / 8 * 256 + t % 8 * (BYTES / 4), BYTES);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[t] = *reinterpret_cast<float*>(to) + before[t % AHEAD].x;
}
__global__ void zeros(const float* x, float* out) {
    __shared__ __align__(128) float s[32];
    const int t = threadIdx.x;
    __pipeline_memcpy_async(s + t, x + t, 4, t % 2 ? 0 : 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    out[t] = s[t];
}
"""


def counted(kernel: str, line: int, space: str, op: str, code: MachineCode | None = None, patch: pytest.MonkeyPatch | None = None) -> LineCounts:
    """One warp; `code` in the place of what NVRTC makes of it."""
    if patch is not None:
        patch.setattr(machine, "of", lambda *_: code)
    memory = {"x": torch.ones(8192), "out": torch.zeros(8192)}
    names = ("out",) if kernel in ("stores", "backwards") else ("x", "out")
    report = simt.simulate(SOURCE, kernel, memory, grid=(1,), block=(32,), arguments=[(n, "ptr") for n in names], shared=16384, mode="count")
    (found,) = [c for c in report.lines if (c.line, c.space, c.op) == (line, space, op)]
    return found


@compiled
def test_what_the_compiler_splits_is_counted_in_parts_copy_after_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 stores every second is 4 of 4 bytes: 512 bytes are 16 sectors, and each of 32 4-byte stores that lie 16 bytes apart touches them all."""
    code = MachineCode({"stores": tuple(stores(*FOURS, (16, 512, "R2"), line=5))})
    found = counted("stores", 5, "global", "write", code, monkeypatch)
    assert (found.requests, found.sectors, found.ideal_sectors, found.lanes, found.width) == (2 * 4 + 2, 2 * 4 * 16 + 2 * 16, 4 * 16, 10 * 32, 16)
    assert (found.source_width, found.source_requests, found.source_sectors, found.rewritten) == (16, 4, 4 * 16, True)
    assert annotate.note(found) == "global write 16 B x2, 4 B x8: 16 sectors (6.4); as written 16 B x4: 16 sectors"
    plain = counted("stores", 5, "global", "write", MachineCode(), monkeypatch)
    assert (plain.requests, plain.sectors, plain.rewritten) == (4, 64, False)


@compiled
def test_what_the_compiler_merges_is_one_request_in_whatever_order_the_parts_come(monkeypatch: pytest.MonkeyPatch) -> None:
    code = MachineCode({"backwards": (Access("kernel.cu", 12, "shared", "read", 8, "LDS.64", "R2", 0),)})
    found = counted("backwards", 12, "shared", "read", code, monkeypatch)
    assert (found.requests, found.wavefronts, found.ideal_wavefronts, found.width) == (1, 2, 2, 8)
    assert (found.source_requests, found.source_wavefronts, found.source_width) == (2, 4, 4)
    plain = counted("backwards", 12, "shared", "read", MachineCode(), monkeypatch)
    assert (plain.requests, plain.wavefronts, plain.source_requests) == (2, 4, 2)


@compiled
def test_where_the_machine_code_has_an_access_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sunk = Access("other.cuh", 1, "shared", "read", 4, "LDS", "R2", 0, (("kernel.cu", 13),))
    never = Access("kernel.cu", 5, "global", "write", 4, "STG.E", "R2", 0)  # a line of the source that this run does not reach
    found = counted("backwards", 12, "shared", "read", MachineCode({"backwards": (sunk, never)}), monkeypatch)
    assert found.found_at == (("other.cuh", 1),)
    assert annotate.note(found).endswith("; compiled at line other.cuh:1")
    assert counted("backwards", 12, "global", "write", MachineCode({"backwards": (sunk, never)}), monkeypatch).found_at == ()


@compiled
@pytest.mark.sampled("simulator")
@pytest.mark.parametrize(
    ("kernel", "wavefronts"),
    [
        ("copies<4, 1, 528, 4>", 4),  # the a of sgemm_cuda/11: 8 lanes a line of global memory, turned, rows of 132 floats: no bank twice
        ("copies<4, 1, 512, 4>", 11),  # the same with rows of 128: 8 lanes of a line in one bank, the four lines a wavefront apart (patterns/async_copies.cu)
        ("copies<16, 8, 16, 128>", 4),  # 16 bytes, rows of shared memory as those of global memory: softmax_cuda/08 in f32
        ("copies<16, 4, 16, 128>", 8),  # behind 64 bytes of static shared memory each line lies across two rows: in bf16
    ],
)
def test_asynchronous_copies_write_line_by_line(kernel: str, wavefronts: int) -> None:
    """As recorded of the rungs named. `held` begins behind the static memory, of which the simulator asks the machine code."""
    if not MADE:
        pytest.skip("NVRTC or nvdisasm is not at hand")
    found = counted(kernel, 21, "shared", "write")
    assert (found.requests, found.wavefronts) == (1, wavefronts)
    assert found.ideal_wavefronts == (4 if kernel.startswith("copies<16") else 1)


@compiled
def test_a_copy_is_one_request_whichever_lanes_fill_with_zeros() -> None:
    for op, lanes in (("read", 16), ("write", 32)):
        found = counted("zeros", 29, "global" if op == "read" else "shared", op)
        assert (found.requests, found.lanes) == (1, lanes)


def _made() -> bool:
    from rooftop.core.compile import CompileError, ToolchainError, compile_cuda

    try:
        machine.accesses_of((made := compile_cuda(SOURCE, name="k.cu", target="sm_90a", kernels=["stores"])).cubin, made.names["stores"], "k.cu")
    except (CompileError, ToolchainError):
        return False
    return True


MADE = _made()


@compiled
def test_what_the_gpus_compiler_made_is_kept_for_every_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path))
    source = "__global__ void copy(const float4* x, float4* out) { out[threadIdx.x] = x[threadIdx.x]; }\n"
    made = machine.of(source, "a.cu", ["copy"], "sm_90a")
    assert [(a.op, a.width) for a in made.accesses] == [("read", 16), ("write", 16)]
    compiling = machine._compile
    asked: list[str] = []

    def noted(text: str, *rest: Any) -> machine.MachineCode:
        asked.append(text)
        return compiling(text, *rest)

    monkeypatch.setattr(machine, "_compile", noted)
    assert machine.of(source, "a.cu", ["copy"], "sm_90a") == made
    assert not asked
    machine.of(source + "// more\n", "a.cu", ["copy"], "sm_90a")
    assert asked == [source + "// more\n"]
