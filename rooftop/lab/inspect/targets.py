"""One kernel compiled for one target: registers, spills, shared memory against the target's limit, matrix instructions; or why there is
no machine code.

Each kernel is compiled for one case, the first timed one that it takes on the target. A compiler that meets an instruction of another
target ends its process (LLVM aborts), and one may take minutes, so another process compiles, with a limit of time."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from rooftop.core import registry
from rooftop.core.spec import TARGETS, Case, Device
from rooftop.lab import candidates
from rooftop.lab.candidates import Memo, Subject

# As `TARGETS` takes them, and as the page calls them. The figures of a cell are those of the first card of the architecture.
COLUMNS = {"80": "sm_80", "86": "sm_86", "89": "sm_89", "90": "sm_90a", "100": "sm_100a", "103": "sm_103a", "120": "sm_120a",
           "gfx942": "gfx942", "gfx950": "gfx950", "gfx1100": "gfx1100"}
BACKENDS = ("triton", "gluon", "cuda")
LIMIT = 300.0  # seconds for a kernel and a target
TAKES_NONE = "takes none of its cases there"

# Families of instructions that multiply matrices, by what the page calls them.
MATRIX = {
    "mma": ("HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "OMMA"), "wgmma": ("HGMMA", "IGMMA", "QGMMA", "BGMMA"),
    "tcgen05": ("UTCHMMA", "UTCIMMA", "UTCQMMA", "UTCOMMA", "UTCBMMA"),
}
_AMD = {"mfma": re.compile(r"^\s*v_s?mfma\w*", re.M), "wmma": re.compile(r"^\s*v_s?wmma\w*", re.M)}
_FIGURES = {name: re.compile(rf"^\s*\.{name}:\s*(\d+)", re.M) for name in ("vgpr_count", "private_segment_fixed_size")}

Row = dict[str, Any]


def target_of(word: str) -> str:
    """The column that a word means: "90", "sm_90a", "gfx942". Raises ValueError for another."""
    found = re.sub(r"^sm_?(\d+)a?$|^(\d+)a$", lambda m: m[1] or m[2], word)
    if found not in COLUMNS:
        raise ValueError(f"--target {word}: it is one of {', '.join(COLUMNS.values())}")
    return found


def subjects() -> list[Subject]:
    """Every shipped kernel that a compiler for a GPU makes, by name; the backward ones as well."""
    found: dict[str, Subject] = {}
    for name in registry.op_names():
        op = registry.op(name)
        for one in (op, op.bwd) if op.twin_of is None else ():
            found.update((s.name, s) for s in (candidates.implementations(one) if one is not None else ()))
    return [s for _, s in sorted(found.items()) if s.implementation is not None and s.implementation.backend in BACKENDS]


def case_of(subject: Subject, device: Device, memo: Memo | None = None) -> Case | None:
    """The case that is compiled: the first that the kernel takes there and that launches something, timed ones and those of 16-bit floats
    before others. None: it takes none."""
    known = memo or Memo()
    listed = sorted(
        (c for c in subject.op.cases if "huge" not in c.tags), key=lambda c: ("bench" not in c.tags, c.dtype not in ("bf16", "f16"))
    )
    return next(
        (c for c in listed if subject.supports(c, device, known) is None and not subject.op.idle(subject.op.problem(c, device))), None
    )


def digest_of(subject: Subject, target: str, memo: Memo | None = None) -> tuple[str, Case | None, str]:
    """What a cell follows from: the kernel's identity (rooftop.lab.records.identity) for the case and the target, "" if it runs on no
    such card; the case; why there is none, "" if there is."""
    device, implementation = TARGETS[target], subject.implementation
    assert implementation is not None
    if reason := implementation.foreign(device):
        return "", None, reason
    known = memo or Memo()
    case = case_of(subject, device, known)
    if case is None:
        reasons = Counter(reason for c in subject.op.cases if "huge" not in c.tags and (reason := subject.supports(c, device, known)))
        said = reasons.most_common(1)[0][0] if reasons else TAKES_NONE
        return said, None, said
    return subject.digest(case, device, known), case, ""


def compiled(subject: Subject, case: Case, target: str) -> Row:
    """The cell. Raises the compiler's error."""
    device, implementation = TARGETS[target], subject.implementation
    assert implementation is not None
    _, problem = subject.kernel_problem(case, device)
    config, _ = implementation.resolve(problem)
    scratch, rows = implementation.scratch(problem, config), []
    for launch in implementation.launches(problem, config):
        made = implementation.machine_code(problem, launch, scratch)
        rows.append({**(of_amd(made.ptx) if device.gfx else of_nvidia(made.cubin, made.symbol)), "dynamic": made.shared})
    matrix: Counter[str] = Counter()
    for row in rows:
        matrix.update(row["matrix"])
    return {
        "registers": max(r["registers"] for r in rows), "spills": max(r["spills"] for r in rows),
        "shared": max(r["static"] + r["dynamic"] for r in rows), "matrix": dict(sorted(matrix.items())),
    }


def of_nvidia(cubin: bytes, symbol: str) -> Row:
    """Registers a thread, bytes of local memory a thread, static bytes of shared memory, and matrix instructions of one kernel of a
    cubin."""
    from rooftop.lab.inspect import inspector

    found = inspector.cached_facts(cubin, symbol)
    counted = {name: sum(n for o, n in found.opcodes.items() if o.partition(".")[0] in families) for name, families in MATRIX.items()}
    return {"registers": found.registers, "spills": found.stack, "static": found.shared, "matrix": {k: n for k, n in counted.items() if n}}


def of_amd(assembly: str) -> Row:
    """The same of AMD's assembly text: vector registers, bytes of private memory a thread. Raises ValueError for a text without them."""
    figures = {name: pattern.search(assembly) for name, pattern in _FIGURES.items()}
    if absent := [name for name, match in figures.items() if match is None]:
        raise ValueError(f"the assembly text has no {' and no '.join(absent)}")
    numbers = {name: int(match[1]) for name, match in figures.items() if match is not None}
    counted = {name: len(pattern.findall(assembly)) for name, pattern in _AMD.items()}
    return {"registers": numbers["vgpr_count"], "spills": numbers["private_segment_fixed_size"], "static": 0,
            "matrix": {k: n for k, n in counted.items() if n}}


def limit_of(target: str) -> int:
    """Bytes of shared memory of a block, at most."""
    return TARGETS[target].shared_per_block


def reason_of(error: BaseException | str, file: Path | None = None) -> str:
    """A compiler's words in one line: the line that names the error."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    marks = ("error:", "Error", "ptxas fatal", "LLVM ERROR", "not supported", "OutOfResources")
    found = next((line for line in lines if any(m in line for m in marks)), lines[-1] if lines else "no word")
    return re.sub(r"/\S*/", "", found)[:200]
