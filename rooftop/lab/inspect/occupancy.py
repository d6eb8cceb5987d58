"""Theoretical occupancy: how many blocks of a kernel one SM can hold, and which resource sets that number.

The limits are those of the CUDA C++ Programming Guide, *Compute Capabilities*, table "Technical Specifications per
Compute Capability" (https://docs.nvidia.com/cuda/cuda-c-programming-guide/). How registers and shared memory are
handed out (256 registers a warp, in four parts of an SM; 128 bytes of shared memory; one KiB a block for the system)
follows NVIDIA's `cuda_occupancy.h`, which the CUDA runtime's headers bring and the tests compare with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

KIB = 1024
WARP = 32  # threads
PARTITIONS = 4  # of an SM, each with its own scheduler and a quarter of the registers
REGISTERS = 65536  # 32-bit, an SM; also the most for one block
REGISTERS_PER_THREAD = 255
REGISTER_UNIT = 256  # registers are handed to a warp in units of this
SHARED_UNIT = 128  # bytes; shared memory is handed to a block in units of this
SHARED_RESERVED = 1 * KIB  # bytes of every block that the system takes
THREADS_PER_BLOCK = 1024
CLUSTER = 8  # blocks; 16 for a kernel that sets the non-portable attribute


@dataclass(frozen=True, slots=True)
class Limits:
    """What one SM of an architecture holds."""

    warps: int
    blocks: int
    shared: int  # bytes, the system's part of each block included
    shared_per_block: int  # bytes, static and dynamic; above 48 KiB only when the kernel asks for it


LIMITS: Mapping[int, Limits] = MappingProxyType(
    {
        80: Limits(warps=64, blocks=32, shared=164 * KIB, shared_per_block=163 * KIB),
        86: Limits(warps=48, blocks=16, shared=100 * KIB, shared_per_block=99 * KIB),
        89: Limits(warps=48, blocks=24, shared=100 * KIB, shared_per_block=99 * KIB),
        90: Limits(warps=64, blocks=32, shared=228 * KIB, shared_per_block=227 * KIB),
        100: Limits(warps=64, blocks=32, shared=228 * KIB, shared_per_block=227 * KIB),
        103: Limits(warps=64, blocks=32, shared=228 * KIB, shared_per_block=227 * KIB),
        120: Limits(warps=48, blocks=24, shared=100 * KIB, shared_per_block=99 * KIB),
    }
)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks of one kernel an SM holds at once."""

    arch: int
    blocks: int  # an SM; 0 where the kernel cannot be launched
    warps: int  # an SM
    max_warps: int  # an SM
    limiter: str  # "registers", "shared memory", "threads", "blocks", or several joined by " and "
    allowed: Mapping[str, int]  # blocks an SM by each limit alone
    refused: str | None  # why the kernel cannot be launched, or None

    @property
    def percent(self) -> float:
        """Resident warps in hundredths of the most that an SM holds."""
        return 100 * self.warps / self.max_warps


def occupancy(
    arch: int,
    *,
    registers: int,
    threads: int,
    static_shared: int = 0,
    dynamic_shared: int = 0,
    cluster: int = 1,
) -> Occupancy:
    """Occupancy of a kernel of `registers` a thread, `threads` a block and that many bytes of shared memory a block.

    `static_shared` is without the system's KiB, as `binary.Facts.shared` is. The SM is taken to give shared memory
    the largest part of its L1. A cluster changes nothing here but what can be launched: how many clusters fit
    depends on which SMs of a card are switched off, and only the card can say (`cudaOccupancyMaxActiveClusters`).

    Raises ValueError for an unknown architecture and for numbers below 1 (shared memory: below 0). What is valid
    but too much is not an error: `blocks` is 0 and `refused` says why.
    """
    if arch not in LIMITS:
        raise ValueError(f"no occupancy limits for sm_{arch}; known are {', '.join(f'sm_{a}' for a in LIMITS)}")
    for name, value, least in (
        ("registers", registers, 1),
        ("threads", threads, 1),
        ("cluster", cluster, 1),
        ("static_shared", static_shared, 0),
        ("dynamic_shared", dynamic_shared, 0),
    ):
        if value < least:
            raise ValueError(f"{name} is {value}; at least {least} is accepted")
    limits = LIMITS[arch]
    warps = _rounded_up(threads, WARP) // WARP
    shared = static_shared + dynamic_shared
    per_warp = _rounded_up(registers * WARP, REGISTER_UNIT)
    allowed = {
        "registers": REGISTERS // PARTITIONS // per_warp * PARTITIONS // warps,
        "shared memory": limits.shared // _rounded_up(shared + SHARED_RESERVED, SHARED_UNIT),
        "threads": limits.warps // warps,
        "blocks": limits.blocks,
    }
    for name, reason in _refusals(arch, limits, registers, per_warp, warps, threads, shared, cluster).items():
        return Occupancy(arch, 0, 0, limits.warps, name, MappingProxyType(allowed | {name: 0}), reason)
    blocks = min(allowed.values())
    limiter = " and ".join(name for name, n in allowed.items() if n == blocks)
    return Occupancy(arch, blocks, blocks * warps, limits.warps, limiter, MappingProxyType(allowed), None)


def _refusals(
    arch: int, limits: Limits, registers: int, per_warp: int, warps: int, threads: int, shared: int, cluster: int
) -> dict[str, str]:
    """Resource to the reason why the kernel cannot be launched on this architecture at all."""
    out = {}
    if threads > THREADS_PER_BLOCK:
        out["threads"] = f"{threads} threads a block; at most {THREADS_PER_BLOCK} are accepted"
    # The check at launch takes the warps of a block as if every partition had equally many.
    if registers > REGISTERS_PER_THREAD or per_warp * _rounded_up(warps, PARTITIONS) > REGISTERS:
        most = min(REGISTERS_PER_THREAD, REGISTERS // _rounded_up(warps, PARTITIONS) // REGISTER_UNIT * REGISTER_UNIT // WARP)
        out["registers"] = f"{registers} registers a thread; at most {most} with {threads} threads a block"
    if shared > limits.shared_per_block:
        out["shared memory"] = f"{shared} bytes of shared memory a block; sm_{arch} has at most {limits.shared_per_block}"
    if cluster > 1 and arch < 90:
        out["cluster"] = f"clusters of {cluster} blocks; sm_{arch} has none, sm_90 is the first"
    elif cluster > 2 * CLUSTER:
        out["cluster"] = f"clusters of {cluster} blocks; at most {CLUSTER} ({2 * CLUSTER} where the kernel allows it)"
    return out


def _rounded_up(n: int, unit: int) -> int:
    """`n` rounded up to a multiple of `unit`."""
    return -(-n // unit) * unit
