"""Theoretical occupancy against hand-computed examples and against NVIDIA's own header."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from rooftop.core.compile import ToolchainError, cuda_include
from rooftop.lab.inspect.occupancy import LIMITS, occupancy

KIB = 1024


# Worked by hand. Registers a warp: r * 32 rounded up to 256; an SM's quarter holds 16384 // that, times 4.
@pytest.mark.parametrize(
    ("arch", "registers", "threads", "static", "dynamic", "blocks", "limiter"),
    [
        # 32 * 32 = 1024 a warp -> 64 warps; 64 // 8 = 8 blocks; so do threads: 64 // 8.
        (80, 32, 256, 0, 0, 8, "registers and threads"),
        # 33 * 32 = 1056 -> 1280 a warp -> 16384 // 1280 = 12, times 4 = 48 warps -> 6 blocks.
        (80, 33, 256, 0, 0, 6, "registers"),
        # 128 * 32 = 4096 -> 4 * 4 = 16 warps -> 2 blocks of 8 warps.
        (90, 128, 256, 0, 0, 2, "registers"),
        # 168 * 32 = 5376 -> 3 * 4 = 12 warps -> 1 block of 12 warps (384 threads), the shape of many wgmma kernels.
        (90, 168, 384, 0, 200 * KIB, 1, "registers and shared memory"),
        # 228 KiB // (48 + 1) KiB = 4.
        (90, 32, 128, 48 * KIB, 0, 4, "shared memory"),
        # 164 // 49 = 3; 100 // 49 = 2.
        (80, 32, 128, 48 * KIB, 0, 3, "shared memory"),
        (89, 32, 128, 48 * KIB, 0, 2, "shared memory"),
        # Static and dynamic add up: 16 + 33 + 1 = 50 -> 100 // 50 = 2; a byte more is 128 bytes more -> 1.
        (89, 32, 128, 16 * KIB, 33 * KIB, 2, "shared memory"),
        (89, 32, 128, 16 * KIB, 33 * KIB + 1, 1, "shared memory"),
        # The largest block that each architecture takes.
        (80, 32, 128, 0, 163 * KIB, 1, "shared memory"),
        (89, 32, 128, 0, 99 * KIB, 1, "shared memory"),
        (90, 32, 128, 0, 227 * KIB, 1, "shared memory"),
        # One warp a block: the number of blocks is the limit, 32, 16, 24.
        (80, 16, 32, 0, 0, 32, "blocks"),
        (86, 16, 32, 0, 0, 16, "blocks"),
        (89, 16, 32, 0, 0, 24, "blocks"),
        # 48 warps: one block of 1024 threads, two of 768.
        (89, 32, 1024, 0, 0, 1, "threads"),
        (89, 24, 768, 0, 0, 2, "threads"),
        # 33 threads take two warps: 64 // 2 = 32 blocks.
        (80, 16, 33, 0, 0, 32, "threads and blocks"),
    ],
)
def test_by_hand(arch: int, registers: int, threads: int, static: int, dynamic: int, blocks: int, limiter: str) -> None:
    got = occupancy(arch, registers=registers, threads=threads, static_shared=static, dynamic_shared=dynamic)
    assert (got.blocks, got.limiter, got.refused) == (blocks, limiter, None)
    assert got.warps == blocks * -(-threads // 32)
    assert got.percent == pytest.approx(100 * got.warps / LIMITS[arch].warps)


def test_percent() -> None:
    assert occupancy(80, registers=32, threads=256).percent == 100
    assert occupancy(89, registers=32, threads=1024).percent == pytest.approx(200 / 3)


@pytest.mark.parametrize(
    ("arch", "asked", "limiter", "says"),
    [
        (90, {"registers": 32, "threads": 1056}, "threads", "at most 1024"),
        (90, {"registers": 256, "threads": 128}, "registers", "at most 255"),
        (90, {"registers": 65, "threads": 1024}, "registers", "at most 64"),
        # 17 warps count as 20: 96 * 32 * 20 = 61440 fit, 104 * 32 * 20 = 66560 do not.
        (90, {"registers": 97, "threads": 544}, "registers", "at most 96"),
        (80, {"registers": 32, "threads": 128, "dynamic_shared": 163 * KIB + 1}, "shared memory", "166912"),
        (89, {"registers": 32, "threads": 128, "dynamic_shared": 100 * KIB}, "shared memory", "101376"),
        (80, {"registers": 32, "threads": 128, "cluster": 2}, "cluster", "sm_90"),
        (90, {"registers": 32, "threads": 128, "cluster": 32}, "cluster", "at most 8"),
    ],
)
def test_refused(arch: int, asked: dict[str, int], limiter: str, says: str) -> None:
    got = occupancy(arch, **asked)
    assert (got.blocks, got.warps, got.limiter) == (0, 0, limiter)
    assert got.refused is not None and says in got.refused


def test_clusters_that_can_be_launched() -> None:
    alone = occupancy(90, registers=64, threads=256)
    for size in (2, 8, 16):
        assert occupancy(90, registers=64, threads=256, cluster=size) == alone


@pytest.mark.parametrize(
    "asked",
    [
        {"registers": 0, "threads": 128},
        {"registers": 32, "threads": 0},
        {"registers": 32, "threads": 32, "dynamic_shared": -1},
        {"registers": 32, "threads": 32, "cluster": 0},
    ],
)
def test_bad_numbers(asked: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="accepted"):
        occupancy(90, **asked)


def test_unknown_architecture() -> None:
    with pytest.raises(ValueError, match="sm_80, sm_86, sm_89, sm_90"):
        occupancy(75, registers=32, threads=128)


REGISTERS = (1, 16, 24, 32, 33, 40, 56, 63, 64, 65, 72, 80, 96, 97, 104, 127, 128, 129, 160, 168, 200, 232, 255)
THREADS = (1, 32, 33, 64, 96, 128, 160, 192, 224, 256, 288, 320, 384, 416, 480, 512, 544, 640, 736, 768, 896, 1024)
SHARED = (0, 1, 100, 1024, 4000, 4992, 9216, 16384, 32768, 33000, 49152, 65536, 99 * KIB, 99 * KIB + 1, 116000, 163 * KIB,
          163 * KIB + 1, 200000, 227 * KIB, 227 * KIB + 1)

HEADER = r"""
#include <cstdio>
#include <cuda_occupancy.h>
int main() {
    int arch, warps, regs, threads; long shared, per_sm, per_block;
    while (std::scanf("%d %d %ld %ld %d %d %ld", &arch, &warps, &per_sm, &per_block, &regs, &threads, &shared) == 7) {
        cudaOccDeviceProp p;
        p.computeMajor = arch / 10; p.computeMinor = arch % 10; p.maxThreadsPerBlock = 1024; p.warpSize = 32;
        p.maxThreadsPerMultiprocessor = 32 * warps; p.regsPerBlock = p.regsPerMultiprocessor = 65536; p.numSms = 100;
        p.sharedMemPerBlock = 48 << 10; p.sharedMemPerMultiprocessor = per_sm; p.sharedMemPerBlockOptin = per_block;
        p.reservedSharedMemPerBlock = 1024;
        cudaOccFuncAttributes f;
        f.maxThreadsPerBlock = 1024; f.numRegs = regs; f.sharedSizeBytes = 0;
        f.partitionedGCConfig = PARTITIONED_GC_OFF; f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        f.maxDynamicSharedSizeBytes = per_block; f.numBlockBarriers = 1;
        cudaOccDeviceState s;
        s.cacheConfig = CACHE_PREFER_NONE; s.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult r;
        int bad = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &p, &f, &s, threads, shared);
        std::printf("%d\n", bad ? -bad : r.activeBlocksPerMultiprocessor);
    }
}
"""


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that answers from NVIDIA's header: a line of numbers in, blocks an SM out."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    try:
        include = next(f for f in cuda_include() if (Path(f) / "cuda_occupancy.h").is_file())
    except (ToolchainError, StopIteration):
        pytest.skip("no cuda_occupancy.h: install nvidia-cuda-runtime")
    folder = tmp_path_factory.mktemp("occupancy")
    (folder / "header.cpp").write_text(HEADER)
    subprocess.run([compiler, "-w", f"-I{include}", "header.cpp", "-o", "header"], cwd=folder, check=True)
    return folder / "header"


def test_against_nvidias_header(header: Path) -> None:
    cases = list(itertools.product(LIMITS, REGISTERS, THREADS, SHARED))
    asked = "".join(f"{arch} {LIMITS[arch].warps} {LIMITS[arch].shared} {LIMITS[arch].shared_per_block} {r} {t} {s}\n" for arch, r, t, s in cases)
    done = subprocess.run([header], input=asked, capture_output=True, text=True, check=True)
    theirs = [int(line) for line in done.stdout.split()]
    ours = [occupancy(a, registers=r, threads=t, dynamic_shared=s).blocks for a, r, t, s in cases]
    wrong = [(case, us, them) for case, us, them in zip(cases, ours, theirs, strict=True) if us != them]
    assert not wrong, f"{len(wrong)} of {len(cases)} differ, first {wrong[:5]} (case, ours, NVIDIA's)"
    assert len(set(theirs)) > 10 and min(theirs) == 0
