"""Nsight Compute's report files, read through NVIDIA's `ncu_report` module: totals of a kernel, and its memory instructions by source
line."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.compile import ToolchainError
from rooftop.lab.inspect.sass_lines import Instruction, accesses, opcode, place

ADDED: Mapping[str, str] = {  # our name -> the source metric that is added up over instructions
    "executed": "inst_executed", "threads": "thread_inst_executed_true", "tags": "memory_l1_tag_requests_global",
    "sectors": "memory_l2_theoretical_sectors_global", "ideal_sectors": "memory_l2_theoretical_sectors_global_ideal",
    "local_sectors": "memory_l2_theoretical_sectors_local",
    "wavefronts": "memory_l1_wavefronts_shared", "ideal_wavefronts": "memory_l1_wavefronts_shared_ideal",
}
_SASS_KEPT = 4  # instructions quoted of each line and opcode


def module(ncu: Path) -> Any:
    """NVIDIA's ncu_report. Raises ToolchainError with the folders that were looked into."""
    try:
        return importlib.import_module("ncu_report")
    except ImportError:
        pass
    looked = list(folders(ncu))
    errors = []
    for folder in looked:
        sys.path.insert(0, str(folder))
        try:
            return importlib.import_module("ncu_report")
        except ImportError as error:
            errors.append(f"{folder}: {error}")
            sys.path.remove(str(folder))
    why = "; ".join(errors) or f"there is none near {ncu}"
    raise ToolchainError(f"ncu_report, which lies in Nsight Compute's folder extras/python, is not to be found: {why}")


def folders(ncu: Path) -> Iterable[Path]:
    """Where ncu_report may lie: beside the program (which may be a script that names it), then in the usual installations, newest first."""
    places: list[Path] = []
    program = ncu.resolve()
    places += [program.parent, *program.parents[1:4]]
    try:
        head = program.read_bytes()[:4096]
    except OSError:
        head = b""
    if head.startswith(b"#!"):
        places += [Path(p).parent for p in re.findall(r"(/[\w./-]+/ncu)\b", head.decode(errors="replace"))]
    places += sorted(Path("/opt/nvidia/nsight-compute").glob("*"), reverse=True)
    places += sorted(Path("/usr/local").glob("cuda*/nsight-compute*"), reverse=True)
    seen: set[Path] = set()
    for near in places:
        folder = near / "extras" / "python"
        if folder not in seen and (folder / "ncu_report.py").is_file():
            seen.add(folder)
            yield folder


def load(path: Path, ncu: Path) -> list[Any]:
    """The actions (one for each profiled kernel) of a report, in the order of their launches."""
    context = module(ncu).load_report(str(path))
    _OPEN.append(context)  # actions are views into it
    ranges = [context.range_by_idx(i) for i in range(context.num_ranges())]
    return [r.action_by_idx(i) for r in ranges for i in range(r.num_actions())]


_OPEN: list[Any] = []


def symbol(action: Any) -> str:
    """The kernel's mangled name."""
    return str(action.name(action.NameBase_MANGLED)) if hasattr(action, "NameBase_MANGLED") else str(action.name())


def missing(action: Any, wanted: Sequence[str]) -> list[str]:
    names = set(action.metric_names())
    return [m for m in wanted if m not in names]


def totals(action: Any, wanted: Sequence[str]) -> dict[str, float]:
    """Metrics of the whole kernel, in their units (bytes, sectors, nanoseconds); those that it lacks are left out."""
    found = {name: action.metric_by_name(name) for name in wanted}
    return {name: metric.as_double() for name, metric in found.items() if metric is not None}


def version(action: Any) -> dict[str, str]:
    """Of the profiler and the driver, where the report says them."""
    wanted = {"ncu": "profiler__version", "driver": "profiler__driver_version"}
    found = {ours: action.metric_by_name(name) for ours, name in wanted.items()}
    return {ours: str(metric.as_string()) for ours, metric in found.items() if metric is not None}


def instances(action: Any, name: str, labels: bool = False) -> dict[int, Any]:
    """Address of an instruction -> value of a source metric, a whole number or with `labels` a text; empty where the report has none."""
    metric = action.metric_by_name(name)
    if metric is None or not metric.has_correlation_ids():
        return {}
    addresses = metric.correlation_ids()

    def value(i: int) -> Any:
        return (metric.as_string(i) if labels else None) or metric.as_uint64(i) or round(metric.as_double(i))

    return {int(addresses.as_uint64(i)): value(i) for i in range(metric.num_instances())}


def lines(action: Any, shown: str, source: str, code: Sequence[Instruction] = ()) -> tuple[list[dict[str, Any]], dict[str, list[int]]]:
    """A kernel's memory instructions added up by (file, line, opcode), and of every opcode how many warps and threads executed it.

    `shown`: the path under which the kernel was compiled; `source`: its text; `code`: its instructions with their lines
    (rooftop.lab.inspect.sass_lines), without which the report's own are taken, which name CUDA's headers for what these put in. A row holds
    `file`, `line`, `text`, `opcode`, `width` (bits a thread), `instructions` (places in the machine code), the sums of ADDED, and some of
    the SASS."""
    columns = {ours: instances(action, name) for ours, name in ADDED.items()}
    widths, spaces = instances(action, "memory_access_size_type"), instances(action, "memory_type", labels=True)
    rows: dict[tuple[str, int, str], dict[str, Any]] = {}
    opcodes: dict[str, list[int]] = {}
    texts = {shown: source.splitlines()}
    known = {i.offset: i for i in code}
    pcs = sorted(set(columns["executed"]) | {a for c in columns.values() for a in c})
    base = _base(action, pcs, known, shown) if code else 0
    for pc in pcs:
        sass = str(action.sass_by_pc(pc) or "").strip()
        op = opcode(sass)
        counts = opcodes.setdefault(op, [0, 0])
        counts[0] += int(columns["executed"].get(pc, 0))
        counts[1] += int(columns["threads"].get(pc, 0))
        sums = {ours: int(values.get(pc, 0)) for ours, values in columns.items()}
        if not accesses(op) and not any(sums[k] for k in ("sectors", "local_sectors", "wavefronts", "ideal_wavefronts")):
            continue
        file, line = _where(action, pc, shown, known.get(pc - base))
        row = rows.setdefault((file, line, op), {"instructions": 0, **dict.fromkeys(ADDED, 0), "sass": []})
        row["instructions"] += 1
        for ours, value in sums.items():
            row[ours] += value
        row["width"] = widths.get(pc)
        row["space"] = spaces.get(pc)
        if len(row["sass"]) < _SASS_KEPT:
            row["sass"].append(sass)
    found = []
    for (file, line, op), row in sorted(rows.items()):
        text = texts.setdefault(file, _text(file))
        found.append({"file": file, "line": line, "text": text[line - 1].strip() if 0 < line <= len(text) else "", "opcode": op, **row})
    return found, dict(sorted(opcodes.items()))


def _base(action: Any, pcs: Sequence[int], known: Mapping[int, Instruction], shown: str) -> int:
    """The address of the kernel's first instruction: that at which every address of the report holds the opcode of the machine code."""
    opcodes = {pc: opcode(str(action.sass_by_pc(pc) or "")) for pc in pcs}
    for offset in known:
        base = pcs[0] - offset
        if all(pc - base in known and known[pc - base].opcode == op for pc, op in opcodes.items() if not _padding(op)):
            return base
    raise ToolchainError(f"{shown}: the instructions of the report are not those of the machine code that was launched")


def _padding(op: str) -> bool:
    """Of instructions that sass_lines leaves out, since they never run."""
    return op in ("NOP", "LDS", "?")


def _where(action: Any, pc: int, shown: str, instruction: Instruction | None) -> tuple[str, int]:
    if instruction is not None:
        return instruction.file, instruction.line
    info = action.source_info(pc)
    return ("", 0) if info is None else (place(str(info.file_name()), shown), int(info.line()))


def _text(file: str) -> list[str]:
    path = settings.CHECKOUT / file
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if file and path.is_file() else []
