"""Kernels compiled for TPUs by libtpu, with no chip: memory, code, how full the bundles are, spills, and the cycles that the compiler
estimates.

Nothing here is measured. `cycles` is libtpu's static estimate with the trips of the grid; it leaves out waiting for HBM. `model_seconds` is
the longer of these cycles at the chip's clock and of the case's least bytes at HBM's datasheet speed: a model, and called so wherever it is
shown. Of kernels that make copies of their own, and of attention's long grids, libtpu estimates no cycles; of v6e the clock is not known:
there the bytes alone stand."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftop.core.backends.pallas import LIMIT, PallasError, PallasImplementation, Process
from rooftop.core.spec import Case
from rooftop.core.tpu import TPUS, Tpu, absent, python
from rooftop.lab.candidates import Subject

Facts = dict[str, Any]
# ends the process where a kernel makes copies of its own: "No DMA issue node found"
PROFILE = "--xla_jf_dump_static_llo_profile_to={0}/cycles"
FLAGS = ("--xla_jf_dump_to={0}/bundles", "--xla_jf_dump_llo_text=true",
         "--xla_jf_dump_llo_pass_label_regex=.*final.*")  # of libtpu 0.0.42; undocumented, others may read them otherwise
NATURAL = "VPOP"  # results popped from the matrix units' queues: not work of its own


@dataclass(frozen=True)
class Compiled:
    """What `pallas_child` says of a kernel: its parts by name, and bytes of memory and of code."""

    kernels: list[str]
    vmem: int
    code: int
    hbm: int
    hbm_temporary: int


def device_of(target: str) -> Tpu:
    """Raises ValueError for a chip that is none of TPUS."""
    if target not in TPUS:
        raise ValueError(f"target is {target!r}; it is one of {', '.join((*TPUS, 'ascend910b'))}")
    return TPUS[target]


def facts_of(subject: Subject, case: Case, target: str, limit: float = LIMIT) -> Facts:
    """What libtpu says of `subject` for `case`: {"target", "config", "vmem", ...}, or {"target", "refused": why not}.

    Raises PallasError where there is no jax, PallasTimeout where the compiler does not end in `limit` seconds."""
    device = device_of(target)
    base: Facts = {"target": target}
    implementation = subject.implementation
    if not isinstance(implementation, PallasImplementation):
        return {**base, "refused": f"{subject.name} is no kernel for a TPU"}
    _, problem = subject.kernel_problem(case, device)
    if reason := implementation.supports(problem):
        return {**base, "refused": reason}
    found = python()
    if found is None:
        raise PallasError(str(absent()))
    config = implementation.choose(problem)
    with tempfile.TemporaryDirectory(prefix="rooftop-") as name:
        folder = Path(name)
        (folder / "cycles").mkdir()
        (folder / "bundles").mkdir()
        flags = (*FLAGS, *([PROFILE] if getattr(implementation.module, "CYCLES", implementation.interpreter != "tpu") else []))
        process = Process(found, {"LIBTPU_INIT_ARGS": " ".join(flags).format(folder)})
        try:
            job = {**implementation.job(problem, config), "what": "compile", "inputs": list(subject.op.inputs_of(problem))}
            made = process.ask(job, limit, Compiled)
        finally:
            process.end()
        cycles = _cycles(folder / "cycles")
        slots, bundles = _slots(folder / "bundles", made.kernels)
    mine = sum(n for name, n in cycles.items() if name in made.kernels) or None  # 0: libtpu could not tell
    work = subject.op.work(problem)
    return {
        **base, "config": implementation.config_dict(config), "vmem": made.vmem, "hbm": made.hbm, "hbm_temporary": made.hbm_temporary,
        "code": made.code, "bundles": bundles, "slots": {n: round(v, 4) for n, v in slots.items() if ":" not in n},
        "spills": int(slots.get("VSTORE:SPILL", 0)), "fills": int(slots.get("VLOAD:FILL", 0)),
        "cycles": mine, "cycles_around": None if mine is None else sum(cycles.values()) - mine,
        **_model(device, mine, work.bytes, work.ops),
    }


def _cycles(folder: Path) -> dict[str, int]:
    """HLO op -> estimated cycles, the trips of its grid included."""
    found = {}
    for path in sorted(folder.iterdir()):
        text = path.read_text(encoding="utf-8")
        for name, cycles in re.findall(r'hlo_op_name: "([^"]+)"\s+estimated_cycles: (\d+)', text):
            found[name] = int(cycles)
    return found


def _slots(folder: Path, kernels: list[str]) -> tuple[dict[str, float], int]:
    """Of the kernels' final bundles: the share of each slot that is taken (of spills and fills, how many bundles have one), and how many
    bundles there are."""
    taken: dict[str, int] = {}
    room: dict[str, int] = {}
    bundles = 0
    for path in sorted(folder.glob("*final_hlo-static-per-bundle-utilization.txt")):
        if not any(f"-{name}-" in path.name for name in kernels) or "pre-delay" in path.name:
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        names, capacity = [n.strip() for n in lines[1].split(",")], [int(n) for n in lines[2].split()]
        rows = [[int(n) for n in line.split()] for line in lines[4:] if line.strip()]
        bundles += len(rows)
        for i, name in enumerate(names):
            taken[name] = taken.get(name, 0) + sum(row[i] for row in rows)
            room[name] = room.get(name, 0) + capacity[i] * len(rows)
    return {n: (taken[n] if ":" in n else taken[n] / room[n]) for n in taken if room[n] and n != NATURAL}, bundles


def _model(device: Tpu, cycles: int | None, moved: int, ops: Mapping[str, float]) -> Facts:
    memory = moved / device.hbm_bytes_per_second
    found: Facts = {"model_memory_seconds": float(f"{memory:.4g}")}
    if cycles is None or device.clock_hz is None or device.products_a_cycle is None:
        return found
    compute = cycles / device.clock_hz
    found |= {"model_core_seconds": float(f"{compute:.4g}"), "model_seconds": float(f"{max(compute, memory):.4g}")}
    rates = {"tensor-bf16": device.products_a_cycle, "tensor-i8": 2 * device.products_a_cycle}
    products = [(n, rates[unit]) for unit, n in ops.items() if unit in rates]
    if products:
        found["matrix_share"] = round(products[0][0] / products[0][1] / cycles, 4)
    return found
