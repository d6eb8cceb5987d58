"""Readers of Nsight Compute's reports: `.ncu-rep` through NVIDIA's ncu_report, and what ncu prints, with `--csv` (tables) or without
(console).

Every reader gives the same: a `Kernel` for each profiled launch, of any program. A metric that the report lacks, or shows as `n/a`, is not
collected: `Kernel.get` returns None for it, never 0."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rooftop.lab.counters.diagnose import console, tables
from rooftop.lab.counters.diagnose.kernel import Kernel, Line, ReportError, Rule
from rooftop.lab.counters.diagnose.numbers import scale
from rooftop.lab.counters.diagnose.rules import complete, unmarked

__all__ = ["Kernel", "Line", "ReportError", "Rule", "content", "of_action", "parse", "read"]

LARGEST = 1 << 30  # bytes of a report, unpacked: more is refused
_REPORT = b"NVR\0"  # a .ncu-rep begins with it
# by a file's first bytes
PACKED: Mapping[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": lzma.open, b"BZh": bz2.open}
ACCEPTED = (
    "accepted are .ncu-rep, what ncu prints (--page raw or details, with --csv or without) and a Chrome trace of torch.profiler; .gz, .xz, "
    ".bz2 of these"
)


def read(path: Path) -> list[Kernel]:
    """The kernels of a report in the order of their launches; a `.gz`, `.xz` or `.bz2` of one is read as well.

    Raises FileNotFoundError; ReportError for a file that is empty, cut off, or no report of Nsight Compute; ToolchainError where a
    `.ncu-rep` is given and ncu_report is not to be had."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such report")
    data = content(path, LARGEST + 1)
    if len(data) > LARGEST:
        raise ReportError(f"{path}: more than {LARGEST >> 30} GiB")
    if not data.strip():
        raise ReportError(f"{path}: the file is empty")
    if data.startswith(_REPORT):
        return _of_report(path, data)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # a redirected console of Windows
        return parse(data.decode("utf-16", errors="replace"), str(path))
    if b"\0" in data[:4096]:
        raise ReportError(f"{path}: neither a .ncu-rep nor text; {ACCEPTED}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    return parse(text, str(path))


def content(path: Path, most: int = LARGEST) -> bytes:
    """A file's first bytes, unpacked if it is a .gz, .xz or .bz2, whatever its name. Raises ReportError where that is cut off or damaged
    before them."""
    try:
        with open(path, "rb") as file:
            first = file.read(8)
        unpack = next((o for magic, o in PACKED.items() if first.startswith(magic)), None)
        with open(path, "rb") if unpack is None else unpack(path) as file:
            return bytes(file.read(most))
    except (PermissionError, IsADirectoryError):
        raise
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise ReportError(f"{path}: the compressed file is cut off or damaged ({error})") from None


def parse(text: str, path: str = "the report") -> list[Kernel]:
    """The kernels in what ncu printed, as tables of `--csv` or to the console. `path` is for messages."""
    lines = text.splitlines(keepends=True)
    if any(tables.is_head(line) for line in lines):
        kernels = tables.kernels(lines, path)
    elif console.is_console(text):
        kernels = console.kernels(text, path)
    else:
        raise ReportError(f"{path}: {_why_not(text)}")
    for kernel in kernels:
        complete(kernel)
    if not any(k.metrics for k in kernels):
        raise ReportError(f"{path}: there is no metric that is a number; give --page raw or --page details")
    return kernels


def _why_not(text: str) -> str:
    if "ERR_NVGPUCTRPERM" in text:
        return (
            "ncu was not permitted to read the counters (ERR_NVGPUCTRPERM; rooftop doctor helps). Without counters: rooftop diagnose OP "
            "--case CASE"
        )
    if "No kernels were profiled" in text:
        return "no kernel was profiled: the program launched none between the profiler's start and stop, or the filters let none through"
    if tables.is_source_page(text):
        return "the source page holds counts by instruction, not of the kernel; give ncu --import REPORT --page raw --csv"
    errors = re.findall(r"^==ERROR== .*", text, re.MULTILINE)
    said = f"ncu ended with an error: {errors[0][:200]}. " if errors else ""
    return f"{said}no table of ncu --csv (its first column is ID) and no section of ncu's console output; {ACCEPTED}"


# -- .ncu-rep -------------------------------------------------------------------------------------------------------------


def _of_report(path: Path, data: bytes) -> list[Kernel]:
    import tempfile

    from rooftop.core.compile import ToolchainError
    from rooftop.lab.counters import ncu_report
    from rooftop.lab.counters.collect import find_ncu

    try:
        ncu = find_ncu()
    except ToolchainError:
        ncu = Path("ncu")  # ncu_report may be installed alone
    try:
        ncu_report.module(ncu)
    except ToolchainError as error:
        instead = f"pip install ncu-report reads reports without a GPU; or give ncu --import {path.name} --csv --page raw"
        raise ToolchainError(f"{path}: {error}. {instead}") from None
    with tempfile.NamedTemporaryFile(suffix=".ncu-rep") as file:
        file.write(data)
        file.flush()
        try:
            actions = ncu_report.load(Path(file.name), ncu)
        except Exception as error:  # NVIDIA's module raises its own, by version
            raise ReportError(
                f"{path}: ncu_report cannot read it, it is cut off or of a newer version: {type(error).__name__}: {error}"
            ) from None
        kernels = [of_action(action) for action in actions]
    if not kernels:
        raise ReportError(f"{path}: the report holds no kernel, or is cut off")
    return kernels


def of_action(action: Any) -> Kernel:
    """A kernel of an open report of ncu_report."""
    kernel = Kernel(str(action.name()))
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        if metric is None:
            continue
        try:
            value = metric.value()
        except Exception:  # a metric without a value of its own, with instances alone
            continue
        if isinstance(value, str):
            kernel.texts[name] = value
        elif value is not None:
            kernel.metrics[name] = float(value) * scale(str(metric.unit() or ""))
    for what in ("grid", "block"):
        sizes = [kernel.get(f"launch__{what}_dim_{axis}") for axis in "xyz"]
        setattr(kernel, what, tuple(int(s) for s in sizes if s is not None))
    major, minor = (kernel.get(f"device__attribute_compute_capability_{x}") for x in ("major", "minor"))
    kernel.arch = "" if major is None or minor is None else f"{major:.0f}.{minor:.0f}"
    if hasattr(action, "rule_results_as_dicts"):
        for rule in action.rule_results_as_dicts():
            said = rule.get("rule_message") or {}
            gain = rule.get("speedup_estimation") or {}
            text = str(said.get("message", "")) if isinstance(said, dict) else str(said)
            name, section = str(rule.get("rule_identifier", rule.get("name", ""))), str(rule.get("section_identifier", ""))
            kernel.rules.append(Rule(name, unmarked(text), section, gain.get("speedup"), _SCOPES.get(gain.get("type", 0), "")))
    complete(kernel)
    kernel.case = _case(action)
    kernel.lines = _lines(action)
    return kernel


_SCOPES = {1: "local", 2: "global"}  # of NVIDIA's SpeedupType


def _case(action: Any) -> str:
    """The innermost NVTX range of the program around the launch."""
    state = action.nvtx_state() if hasattr(action, "nvtx_state") else None
    if state is None:
        return ""
    found = {}
    for number_ in state.domains():
        domain = state.domain_by_id(number_)
        ranges = domain.push_pop_ranges()
        if ranges:
            found[domain.name()] = str(ranges[-1])
    return found.get("<default domain>", next(iter(found.values()), ""))


def _lines(action: Any) -> list[Line]:
    """Source lines by samples of stalled warps, else by instructions; empty where the report holds no source counters or the kernel no line
    table."""
    if not hasattr(action, "source_info"):
        return []
    names = sorted(
        n for n in action.metric_names() if re.match(r"smsp__pcsamp_warps_issue_stalled_\w+$", n) and not n.endswith("not_issued")
    )
    for group in (names, ["inst_executed"]):
        counts: dict[tuple[str, int], float] = {}
        for name in group:
            metric = action.metric_by_name(name)
            if metric is None or not metric.has_correlation_ids():
                continue
            places = metric.correlation_ids()
            for i in range(metric.num_instances()):
                info = action.source_info(places.as_uint64(i))
                if info is not None:
                    key = (str(info.file_name()), int(info.line()))
                    counts[key] = counts.get(key, 0.0) + metric.as_double(i)
        total = sum(counts.values())
        if total:
            unit = "stalled" if group is names else "instructions"
            return [Line(file, line, n / total, unit) for (file, line), n in sorted(counts.items(), key=lambda kv: -kv[1])[:5]]
    return []
