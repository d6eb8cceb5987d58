"""What is counted of a line beside its accesses, by hand: operations, branches that parted; and how the counts are shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from simt import test_corpus
from simt.counts import DONE, Done

from rooftop.lab import simt
from rooftop.lab.simt import annotate, build, host_code
from rooftop.lab.simt.report import LineCounts, Report

needs_compiler = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))


def done_at(report: Report, line: int) -> dict[str, int]:
    """What a line of the one file of a report did."""
    found = {"fma": report.fma_at, "flops": report.other_at, "parted": report.divergent}
    return {name: sum(n for (_, at), n in of_line.items() if at == line) for name, of_line in found.items()}


@needs_compiler
@pytest.mark.parametrize("done", DONE, ids=str)
def test_operations_and_branches_are_counted_as_by_hand(done: Done) -> None:
    report = test_corpus.counted(done.file, done.kernel)
    found = done_at(report, done.line)
    assert {k: found[k] for k in done.counts} == done.counts, done.reason


@needs_compiler
@pytest.mark.parametrize(("file", "kernel"), sorted({(d.file, d.kernel) for d in DONE}), ids=lambda x: str(getattr(x, "stem", x)))
def test_no_other_line_does_anything(file: Path, kernel: str) -> None:
    report = test_corpus.counted(file, kernel)
    marked = [d for d in DONE if (d.file, d.kernel) == (file, kernel)]
    assert (report.fma, report.other_flops) == (sum(d.counts.get("fma", 0) for d in marked), sum(d.counts.get("flops", 0) for d in marked))
    assert sum(report.divergent.values()) == sum(d.counts.get("parted", 0) for d in marked)


@needs_compiler
def test_what_has_just_been_read_is_not_read_again() -> None:
    (file,) = {d.file for d in DONE if d.kernel == "copies_of_pairs"}
    report = test_corpus.counted(file, "copies_of_pairs")
    assert [(c.op, c.requests) for c in report.lines if c.op == "read"] == [("read", 1)]


MIXED = """
__global__ void mixed(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float4 a[32];
    __shared__ float b[32];
    const int t = threadIdx.x;
    a[t] = make_float4(x[t], 1, 2, 3), b[t] = x[0];
    __syncwarp();
    const float4 v = a[t ^ 1]; const float u = b[t ^ 1];
    out[t] = v.x + v.w + u;
}
"""


def mixed() -> Report:
    memory = {"x": torch.ones(32), "out": torch.zeros(32)}
    return simt.simulate(MIXED, "mixed", memory, grid=(1,), block=(32,), arguments=[("x", "ptr"), ("out", "ptr")], mode="count")


@needs_compiler
def test_every_width_of_a_line_is_shown() -> None:
    """16 bytes a lane are four wavefronts, 4 bytes one: 2.5 on average. Of the global reads one is of 128 bytes, the other of one word by all."""
    found = {(c.line, c.space, c.op): c for c in mixed().lines}
    for key in ((6, "shared", "write"), (8, "shared", "read")):
        assert found[key].widths == found[key].source_widths == ((16, 1), (4, 1))
        assert annotate.note(found[key]) == f"shared {key[2]} 16 B x1, 4 B x1: 2.5 wavefronts (2.5)"
    assert annotate.note(found[6, "global", "read"]) == "global read 4 B x2: 2.5 sectors (2.5)"


FILLED = """
__global__ void filled(int n, const float* __restrict__ x, float* __restrict__ out) {
    __shared__ __align__(16) float s[128];
    const int t = threadIdx.x;
    const int left = n - 4 * t, bytes = left >= 4 ? 16 : left > 0 ? 4 * left : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"((unsigned)__cvta_generic_to_shared(s + 4 * t)), "l"(bytes ? x + 4 * t : x), "r"(bytes));
    asm volatile("cp.async.wait_all;");
    __syncwarp();
    out[t] = s[4 * t];
}
"""


@pytest.mark.sampled("simulator")
@needs_compiler
@pytest.mark.parametrize(("n", "sectors"), [(128, 16), (64, 8), (66, 9), (1, 1), (0, 0)])
def test_lanes_of_a_copy_that_fill_with_zeros_read_no_sector(n: int, sectors: int) -> None:
    memory = {"x": torch.ones(128), "out": torch.zeros(32)}
    report = simt.simulate(FILLED, "filled", memory, grid=(1,), block=(32,), arguments=[(n, "i32"), ("x", "ptr"), ("out", "ptr")], mode="count")
    assert memory["out"].tolist() == [float(4 * t < n) for t in range(32)]
    assert sum(c.sectors for c in report.lines if (c.line, c.op) == (6, "read")) == sectors
    assert sum(c.source_sectors for c in report.lines if (c.line, c.op) == (6, "read")) == sectors


def test_a_line_of_one_width_and_a_rewritten_one_are_shown() -> None:
    one = LineCounts("a.cu", 3, "", "global", "read", 4, 8, sectors=32, ideal_sectors=32, source_width=4, source_requests=8, source_sectors=32)
    assert annotate.note(one) == "global read 4 B x8: 4 sectors (4)"
    split = replace(one, width=8, widths=((8, 4), (4, 4)), source_width=16, source_requests=4, source_widths=((16, 4),))
    assert annotate.note(split) == "global read 8 B x4, 4 B x4: 4 sectors (4); as written 16 B x4: 8 sectors"


def test_operations_stand_beside_their_line() -> None:
    report = Report(fma=64, other_flops=4, fma_at={("a.cu", 1): 64}, other_at={("a.cu", 1): 1, ("a.cu", 2): 3}, divergent={("a.cu", 2): 2})
    (page,) = annotate.pages(report, {"a.cu": "one\ntwo\n"})
    assert [row.notes for row in page.rows] == [("64 FMAs + 1 FLOP",), ("3 FLOPs", "parted 2x")]
    assert report.to_json()["fma_at"] == [{"file": "a.cu", "line": 1, "count": 64}]


@needs_compiler
def test_the_least_is_never_more_than_is_taken() -> None:
    for c in mixed().lines:
        assert c.ideal_sectors <= c.sectors
        assert c.ideal_wavefronts <= c.wavefronts
    (broadcast,) = [c for c in mixed().lines if (c.line, c.space, c.op) == (6, "global", "read")]
    assert (broadcast.sectors, broadcast.ideal_sectors) == (4 + 1, 4 + 1)


# -- the machine code, read -----------------------------------------------------------------------------------------------


def instructions(*lines: str) -> Iterator[tuple[int, str, str]]:
    yield 0, "", ""
    for i, line in enumerate(lines):
        name, _, operands = line.partition(" ")
        yield 16 * (i + 1), name, operands


MARK, READ, WRITE = "call 1 <__sanitizer_cov_trace_pc>", "call 2 <__tsan_read4>", "call 3 <__tsan_write4>"


def again(monkeypatch: pytest.MonkeyPatch, *lines: str) -> list[bool]:
    """Of the reads and writes of a piece of code, whether they are of what has just been read."""
    monkeypatch.setattr(host_code, "_instructions", lambda library: instructions(MARK, *lines, "ret "))
    monkeypatch.setattr(host_code, "places", lambda library, addresses: dict.fromkeys(addresses, ("a.cu", 1)))
    monkeypatch.setattr(host_code, "outright", lambda library, addresses: set(addresses))
    return [s.again for s in host_code._read(Path("a.so")).sites]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("mov %rbx,%rdi", READ, "mov %rbx,%rdi", READ), [False, True]),
        (("mov %rbx,%rdi", READ, "add $0x4,%rbx", "mov %rbx,%rdi", READ), [False, False]),
        (("mov %rbx,%rdi", READ, MARK, "mov %rbx,%rdi", READ), [False, False]),
        (("mov %rbx,%rdi", READ, "mov %rbp,%rdi", WRITE, "mov %rbx,%rdi", READ), [False, False, False]),
        (("mov %rbx,%rdi", READ, "call 4 <_ZN4simt13block_barrierEiiNS_6ReduceEi>", "mov %rbx,%rdi", READ), [False, False]),
        (("mov %rbx,%rdi", READ, "call 5 <expf@plt>", "mov %rbx,%rdi", READ), [False, True]),
        (("mov %rbx,%rdi", READ, "mov %rbx,%rdi", "call 6 <__tsan_read8>"), [False, False]),
        (("mov %rbx,%rdi", "call 7 <__tsan_volatile_read4>", "mov %rbx,%rdi", "call 7 <__tsan_volatile_read4>"), [False, False]),
        (("lea 0x8(%rbx,%rbp,4),%rdi", READ, "lea 0x8(%rbx,%rbp,4),%rdi", READ, "lea 0xc(%rbx,%rbp,4),%rdi", READ), [False, True, False]),
        (("mov 0x8(%rsp),%rdi", READ, "mov 0x8(%rsp),%rdi", READ), [False, True]),
        (("mov 0x8(%rsp),%rdi", READ, "mov %rbx,0x8(%rsp)", "mov 0x8(%rsp),%rdi", READ), [False, False]),
        (("mov %rax,%rdi", READ, "mov %rax,%rdi", READ), [False, False]),  # a call may change it
        (("mov (%rbx),%rdi", READ, "mov (%rbx),%rdi", READ), [False, False]),  # a pointer read from memory
    ],
)
def test_a_read_again_is_one_of_the_same_value_with_no_write_between(monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], expected: list[bool]) -> None:
    assert again(monkeypatch, *lines) == expected


def test_operations_are_those_between_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_code, "places", lambda library, addresses: {a: ("a.cu", a // 16) for a in addresses})
    monkeypatch.setattr(host_code, "outright", lambda library, addresses: set())
    lines = (
        "vaddss %xmm0,%xmm1,%xmm0", MARK, "vfmadd231ss %xmm0,%xmm1,%xmm2", "call 9 <_ZN4simt5maths5rsqrtEf>", "vcvtsi2ss %rax,%xmm0,%xmm0",
        "vaddss %xmm0,%xmm0,%xmm0", "vcvtph2ps %xmm0,%xmm0", "jne 40 <k>", MARK, "vmulsd %xmm0,%xmm1,%xmm0", "ret ",
    )
    monkeypatch.setattr(host_code, "_instructions", lambda library: instructions(*lines))
    pieces = host_code._read(Path("a.so")).pieces
    assert [(dict(p.fma), dict(p.flops), p.branch) for p in pieces.values()] == [({("a.cu", 3): 1}, {("a.cu", 4): 1}, None), ({}, {("a.cu", 10): 1}, None)]


@needs_compiler
def test_the_machine_code_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    library = build.build(MIXED, path="kernel.cu", kernels=["mixed"], mode="count").path
    first = host_code.of(library)
    host_code.of.cache_clear()
    monkeypatch.setattr(host_code, "_read", lambda library: pytest.fail("read again"))
    assert host_code.of(library) == first
    assert first.pieces
    assert {s.op for s in first.sites} == {"read", "write"}


WALK = """
__global__ void walk(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float tile[128];
    float sum = 0;
    for (int k = 0; k < 12; ++k) {
        tile[threadIdx.x] = x[(4 * k + blockIdx.x) * 128 + threadIdx.x];
        __syncthreads();
        for (int i = 0; i < 3; ++i) sum += tile[threadIdx.x ^ (i + k)];
        sum += __shfl_sync(~0u, sum, 0);
        __syncthreads();
    }
    out[blockIdx.x * 128 + threadIdx.x] = sum;
}
"""


@pytest.mark.sampled("simulator")
@needs_compiler
def test_a_line_that_reads_two_tensors_by_turns_has_no_step() -> None:
    source = """__global__ void dot(const float* x, const float* y, float* out) {
    float sum = 0;
    for (int k = 0; k < 64; ++k) sum = fmaf(x[k * 32 + threadIdx.x], y[k * 32 + threadIdx.x], sum);
    out[threadIdx.x] = sum;
}"""
    memory = {"x": torch.ones(2048), "y": torch.ones(2048), "out": torch.zeros(32)}
    report = simt.simulate(source, "dot", memory, grid=(1,), block=(32,), arguments=[(n, "ptr") for n in memory], mode="count")
    read = next(c.walk for c in report.lines if c.op == "read")
    assert read.requests[0] == 128 and read.within is None


@pytest.mark.sampled("simulator")
@needs_compiler
def test_the_walk_of_a_warp_goes_from_barrier_to_barrier() -> None:
    """A tile each second phase, 2 KiB on; what the compiler unrolls is one line's walk still. A shuffle ends no phase."""
    memory = {"x": torch.ones(48, 128), "out": torch.zeros(3, 128)}
    report = simt.simulate(WALK, "walk", memory, grid=(3,), block=(128,), arguments=[("x", "ptr"), ("out", "ptr")], mode="count")
    read, written = (next(c.walk for c in report.lines if (c.space, c.op) == what) for what in (("global", "read"), ("shared", "write")))
    assert (read.requests, read.onward, read.within) == ((1, 0) * 4, 4 * 128 * 4, None) and read.phases == 23
    assert (written.requests, written.onward) == ((1, 0) * 4, 0)
    reads = next(c.walk for c in report.lines if (c.space, c.op) == ("shared", "read"))
    assert reads.phases == 24 and reads.requests == (0, 3) * 4
    last = next(c.walk for c in report.lines if (c.space, c.op) == ("global", "write"))
    assert last.phases == 25 and not any(last.requests), "only the first phases are kept one by one"
