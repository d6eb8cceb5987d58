"""What a kernel moves between the L2 and the memory: a model of an H100's caches, fed with the global accesses of a whole simulated launch.

    python -m rooftop.lab.counters.traffic [LADDER | RUNG | FILE.cu ...] [--out DIR]

prints the model beside the recorded dram__bytes, at the cases of the tier `traffic`, and with --out writes both as records of kind `compared`. Pages
show the model while those records, none of them stale, show that it holds (`proven`).

The model. Blocks go to the multiprocessors in order, as many at once as registers and shared memory allow; each warp makes a request in turn. L1:
what shared memory leaves of 256 KiB, written through, the least recently used line goes. L2: 50 MiB in two partitions; addresses are spread over
them, each multiprocessor belongs to one, and what it reads from behind the other is kept in both; any line of a set may go. Lines of 128 bytes in
sectors of 32, 16 ways. A dirty sector is written to memory when its line goes; what is still in the L2 at the end is not. There is no time in it:
nothing is written back early, and no multiprocessor gets ahead of another.

Sources: CUDA C++ Programming Guide, "Compute Capability 9.x" (L1 and its division); NVIDIA A100 white paper, 2020 (partitions, each of which caches
for the multiprocessors connected to it); NVIDIA H100 white paper, 2022 (50 MB). Ways, the spreading of addresses and what makes room are not
published. That it is the oldest line in the L1 and any line in the L2 was chosen because the records of `softmax_cuda` are nearer to that."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.spec import TARGETS, Device, Launch
from rooftop.lab.counters.jobs import Job, jobs_for
from rooftop.lab.ending import Parser, ended
from rooftop.lab.inspect.binary import facts
from rooftop.lab.inspect.occupancy import SHARED_RESERVED, occupancy
from rooftop.lab.simt import native, process
from rooftop.lab.simt.build import build, stack_bytes
from rooftop.lab.simt.launching import LaunchError, Request
from rooftop.lab.simt.link import variables
from rooftop.lab.simt.memory import hold

SECTOR = 32  # bytes
L1_BYTES = 256 << 10  # of a multiprocessor, shared memory included
CARVEOUTS = tuple(k << 10 for k in (0, 8, 16, 32, 64, 100, 132, 164, 196, 228))  # bytes that shared memory may take of it
PARTITIONS = 2  # of the L2
WITHIN = 0.15  # of dram__bytes: the model holds for a kernel
NEEDED = 5  # kernels for which it must hold before it is shown
LARGEST = 1 << 34  # operations of a launch: more takes too long to simulate whole


TOO_MANY = 3  # what the engine gives where a launch touches more sectors than it keeps


class TooManyError(ValueError):
    """A launch touches more sectors than can be kept to be passed through the caches."""


class _Machine(ctypes.Structure):
    _fields_ = [("multiprocessors", ctypes.c_uint32), ("partitions", ctypes.c_uint32), ("l1_bytes", ctypes.c_uint64), ("l2_bytes", ctypes.c_uint64)]


class _Traffic(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("requests", "l1_sectors", "l2_sectors", "l2_read_sectors", "memory_read", "memory_written")]


@dataclass(frozen=True)
class Traffic:
    """Of one launch that finds its caches empty. Bytes; `requests`: of warps."""

    requests: int
    l1: int  # asked of the L1
    l2: int  # asked of the L2
    read: int  # from memory
    written: int  # to memory, before the kernel's end

    @property
    def memory(self) -> int:
        return self.read + self.written


def of_job(job: Job, device: Device = TARGETS[90]) -> tuple[Traffic, ...]:
    """The traffic of each launch of a job, all of its blocks simulated. Raises as `rooftop.lab.simt.run_launches` does."""
    launches = job.launches(device)
    head = job.implementation.head
    library = build(head.source, path=head.path, kernels=[x.kernel for x in launches], mode="traffic", arch=device.arch, folders=head.folders, rtc=True)
    memory = job.memory(device, "cpu")
    tensors = {n: t for n, t in memory.items() if hasattr(t, "data_ptr")}
    caches = []
    for launch in launches:
        together, shared = resident(job, launch, device)
        caches.append((bytes(_Machine(device.sms, PARTITIONS, L1_BYTES - carveout(together * shared), device.l2_bytes)), together))
    chosen = settings.load()
    request = Request(
        library=library.path, numbers=library.kernels, launches=launches, tensors=hold(tensors),
        values={n: v for n, v in memory.items() if n not in tensors}, variables=variables(library.path), mode="traffic", stack=stack_bytes(library.path),
        workers=chosen.jobs, patience=chosen.patience, seconds=chosen.simt_seconds, constant=(), caches=caches,
    )  # fmt: skip
    answer = process.ask(request, tensors, job.subject)
    if answer.status == TOO_MANY:
        raise TooManyError(f"{job.subject}, {job.title}: more accesses than can be kept")
    if answer.status:
        text = [bytes(f.text).decode(errors="replace") for f in native.array(native.RawFinding, answer.findings)[:1]]
        raise LaunchError(f"{job.subject}: the simulation of {launches[len(answer.traffic)].kernel} came to no end: {text}")
    found = [_Traffic.from_buffer_copy(data) for data in answer.traffic]
    return tuple(
        Traffic(f.requests, SECTOR * f.l1_sectors, SECTOR * f.l2_sectors, SECTOR * f.memory_read, SECTOR * f.memory_written) for f in found
    )


def resident(job: Job, launch: Launch, device: Device) -> tuple[int, int]:
    """Blocks that a multiprocessor holds at once, and the shared memory of each in bytes, the system's part included."""
    made = job.implementation.compile([launch.kernel], device.target)
    known = facts(made.cubin, made.names[launch.kernel])
    limit = occupancy(device.arch, registers=known.registers, threads=prod(launch.block), static_shared=known.shared, dynamic_shared=launch.shared)
    return limit.blocks, known.shared + launch.shared + SHARED_RESERVED


def carveout(shared: int) -> int:
    """What shared memory takes of the L1 where the blocks at once need `shared` bytes: the least of the divisions that has room."""
    return next((c for c in CARVEOUTS if c >= shared), CARVEOUTS[-1])


# -- against the hardware ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """The model and the recorded counters of one launch, bytes."""

    subject: str
    case: str
    launch: int
    model_read: float
    model_written: float
    read: float
    written: float

    @property
    def share(self) -> float:
        """The model's bytes over the hardware's."""
        return (self.model_read + self.model_written) / (self.read + self.written)

    @property
    def holds(self) -> bool:
        return abs(self.share - 1) <= WITHIN

    def __str__(self) -> str:
        sizes = " ".join(f"{b / 1e6:9.2f}" for b in (self.model_read, self.read, self.model_written, self.written))
        return f"{self.subject[-34:]:34s} {self.case[:22]:22s} {sizes} {self.share:6.3f} {'holds' if self.holds else ''}".rstrip()


def measured(found_records: Iterable[Mapping[str, Any]], device: Device = TARGETS[90]) -> dict[tuple[str, str, int], Mapping[str, Any]]:
    """(subject, case, launch) -> the newest record of the tier `traffic`, of those whose digest is the tree's: nothing stale proves anything."""
    return _fresh((r for r in found_records if r["kind"] == "counters" and r["tier"] == "traffic"), device)


def compared(found_records: Iterable[Mapping[str, Any]], device: Device = TARGETS[90]) -> list[Comparison]:
    """What records of kind `compared` say of traffic, those of other code left out."""
    mine = _fresh((r for r in found_records if r["kind"] == "compared" and r.get("tier") == "traffic"), device)
    return [Comparison(*key, *(float(r[side][what]) for side in ("model", "hardware") for what in ("read", "written"))) for key, r in mine.items()]


def _fresh(found_records: Iterable[Mapping[str, Any]], device: Device) -> dict[tuple[str, str, int], Mapping[str, Any]]:
    newest = {(str(r["subject"]), str(r["case"]), int(r["launch"])): r for r in sorted(found_records, key=lambda r: str(r["at"]))}
    jobs: dict[tuple[str, str], Job] = {}
    for subject in {s for s, _, _ in newest}:
        try:
            jobs.update({(subject, j.title): j for j in jobs_for([subject], ["traffic"])})
        except (OSError, LookupError, ValueError):  # no longer in the tree
            continue
    return {key: r for key, r in newest.items() if key[:2] in jobs and jobs[key[:2]].identity(device).made(r)}


def compare(job: Job, known: Mapping[tuple[str, str, int], Mapping[str, Any]]) -> list[Comparison]:
    """The launches of a job, where all of them are on record."""
    keys = [(job.subject, job.title, i) for i in range(len(job.launches(TARGETS[90])))]
    if any(k not in known for k in keys):
        return []
    totals = [known[k]["totals"] for k in keys]
    return [
        Comparison(*key, t.read, t.written, total["dram__bytes_read.sum"], total["dram__bytes_write.sum"])
        for key, t, total in zip(keys, of_job(job), totals, strict=True)
    ]


def proven(found: Iterable[Comparison]) -> set[str]:
    """The kernels for which the model holds at every case that was compared; none where they are fewer than are needed."""
    found = list(found)
    kernels = {c.subject for c in found} - {c.subject for c in found if not c.holds}
    return kernels if len(kernels) >= NEEDED else set()


def feasible(job: Job, device: Device = TARGETS[90]) -> bool:
    """Whether a job is small enough to be simulated whole."""
    if job.found is None:
        return True
    assert job.case is not None
    return sum(job.found.op.work(job.found.op.problem(job.case, device)).ops.values()) <= LARGEST


def record(c: Comparison, hardware: Mapping[str, Any]) -> dict[str, Any]:
    """The comparison as data, of kind `compared`."""
    return {
        "kind": "compared", "tier": "traffic", **{k: hardware[k] for k in ("op", "subject", "case", "digest", "source", "device", "launch") if k in hardware},
        "counters": hardware["run"], "share": c.share, "rows": [], "model": {"read": c.model_read, "written": c.model_written},
        "hardware": {"read": c.read, "written": c.written},
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    from rooftop.lab.records import store

    parser = Parser(prog="python -m rooftop.lab.counters.traffic", description="DRAM traffic: a model of the caches beside recorded counters.")
    parser.add_argument("names", nargs="*", help="ladders, rungs, kernels or .cu files; none: all whose traffic is recorded")
    parser.add_argument("--out", type=Path, help="folder to write records of kind `compared` to")
    given = parser.parse_args(arguments)
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)  # before the work: it may not be possible
    known = measured(store.read(settings.load().results))
    print(f"{'':57s} {'read':>9s} {'H100':>9s} {'written':>9s} {'H100':>9s}  share   (MB)")
    found: list[Comparison] = []
    for job in jobs_for(given.names or sorted({s for s, _, _ in known}), ["traffic"]):
        if not feasible(job):
            continue
        try:
            for c in compare(job, known):
                found.append(c)
                print(c, flush=True)
        except TooManyError as error:
            print(error)
    kernels = {c.subject for c in found}
    print(f"within {WITHIN:.0%} of dram__bytes for {len(kernels - {c.subject for c in found if not c.holds})} of {len(kernels)} kernels; {NEEDED} are needed")
    if given.out and found:
        with store.Writer(given.out, TARGETS[90].name) as writer:
            for c in found:
                writer.write(record(c, known[c.subject, c.case, c.launch]))
            print(f"{len(found)} records in {writer.path}")


if __name__ == "__main__":
    ended(main)
