"""Readers of Nsight Compute's reports: `.ncu-rep` through NVIDIA's ncu_report, and what `ncu --csv` prints (`--page raw`, `--page details`).

Every reader gives the same: a `Kernel` for each profiled launch, of any program. A metric that the report lacks, or shows as `n/a`, is not collected:
`Kernel.get` returns None for it, never 0."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rooftop.lab.counters.diagnose.labels import LABELS
from rooftop.lab.counters.diagnose.numbers import decimal_separator, number, scale

LARGEST = 1 << 30  # bytes of a report, unpacked: more is refused
_REPORT = b"NVR\0"  # a .ncu-rep begins with it
ACCEPTED = "accepted are .ncu-rep, ncu --csv (--page raw or details) and a Chrome trace of torch.profiler"


class ReportError(ValueError):
    """A report that cannot be read, with what is wrong and what is accepted."""


@dataclass(frozen=True)
class Rule:
    """What one of Nsight Compute's own rules says. `speedup`: its estimate in percent; `scope`: global (of the kernel) or local (of one unit)."""

    name: str
    text: str
    section: str = ""
    speedup: float | None = None
    scope: str = ""


@dataclass(frozen=True)
class Line:
    """A source line with its part of the kernel's stalled warps' samples (`unit` stalled), or of its executed instructions (`unit` instructions)."""

    file: str
    line: int
    part: float
    unit: str


@dataclass
class Kernel:
    """One profiled launch. Numbers are in seconds, hertz, bytes, percent and plain counts."""

    name: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    arch: str = ""  # compute capability, "9.0"
    metrics: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # metrics that are no numbers
    rules: list[Rule] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    case: str = ""  # the NVTX range around the launch, where the report names one

    def get(self, *names: str) -> float | None:
        """The first of the metrics that was collected, or None."""
        return next((self.metrics[n] for n in names if n in self.metrics), None)


def read(path: Path) -> list[Kernel]:
    """The kernels of a report in the order of their launches; a `.gz` of one is read as well.

    Raises FileNotFoundError; ReportError for a file that is empty, cut off, or no report of Nsight Compute; ToolchainError where a `.ncu-rep` is given and
    ncu_report is not to be had."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such report")
    data = _bytes(path)
    if not data.strip():
        raise ReportError(f"{path}: the file is empty")
    if data.startswith(_REPORT):
        return _of_report(path, data)
    if b"\0" in data[:4096]:
        raise ReportError(f"{path}: neither a .ncu-rep nor text; {ACCEPTED}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    return parse(text, str(path))


def _bytes(path: Path) -> bytes:
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else open(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ReportError(f"{path}: the compressed file is cut off or damaged ({error})") from None
    if len(data) > LARGEST:
        raise ReportError(f"{path}: more than {LARGEST >> 30} GiB")
    return bytes(data)


# -- ncu --csv ------------------------------------------------------------------------------------------------------------


def parse(text: str, path: str = "the report") -> list[Kernel]:
    """The kernels in what `ncu --csv` printed. `path` is for messages."""
    lines = text.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if re.match(r'"?ID"?[,;\t]', line)), None)
    if start is None:
        raise ReportError(f"{path}: {_why_not(text)}")
    head = lines[start]
    delimiter = max(",;\t", key=head.count)
    table = [line for line in lines[start:] if not re.match(r"==\w+== ", line)]
    try:
        rows = [row for row in csv.reader(io.StringIO("".join(table), newline=""), delimiter=delimiter, strict=True) if row]
    except csv.Error as error:
        raise ReportError(f"{path}: the table is cut off or damaged ({error})") from None
    names, body = rows[0], rows[1:]
    if "Kernel Name" not in names:
        raise ReportError(f"{path}: a table without the column 'Kernel Name' is not of ncu --csv")
    short = names.index("Metric Value") + 2 if "Metric Value" in names and "Rule Name" in names else len(names)
    for row in body:
        if len(row) == short and not row[-1]:  # the details page ends a metric's row after its value, with a comma
            row.extend([""] * (len(names) - short))
    for at, row in enumerate(body, start + 2):
        if len(row) != len(names):
            raise ReportError(f"{path}: row {at} has {len(row)} of {len(names)} fields: the file is cut off or damaged")
    if not body:
        raise ReportError(f"{path}: the table has no kernels")
    kernels = _details(names, body, path) if "Section Name" in names else _raw(names, body, path)
    if not any(k.metrics for k in kernels):
        raise ReportError(f"{path}: the table holds no metric that is a number; give ncu --csv --page raw or --page details")
    return kernels


def _why_not(text: str) -> str:
    if "ERR_NVGPUCTRPERM" in text:
        return "ncu was not permitted to read the counters (ERR_NVGPUCTRPERM; rooftop doctor helps). Without counters: rooftop diagnose OP --case CASE"
    if "No kernels were profiled" in text:
        return "no kernel was profiled: the program launched none between the profiler's start and stop, or the filters let none through"
    errors = re.findall(r"^==ERROR== .*", text, re.MULTILINE)
    said = f"ncu ended with an error: {errors[0][:200]}. " if errors else ""
    return f"{said}no table of ncu --csv (its first column is ID); {ACCEPTED}"


def _raw(names: list[str], body: list[list[str]], path: str) -> list[Kernel]:
    """One row a kernel, the units in a row of their own below the names."""
    at = {n: i for i, n in enumerate(names)}
    first = body[0]
    units = first if not first[at["ID"]].strip() else [""] * len(names)
    rows = body[1:] if units is first else body
    if not rows:
        raise ReportError(f"{path}: the table has names and units, but no kernels")
    columns = [(i, n, scale(units[i])) for i, n in enumerate(names) if "__" in n]
    if not columns:
        raise ReportError(f"{path}: no column is a metric (gpu__time_duration.sum, ...)")
    decimal = _decimal((row[i] for row in rows for i, _, _ in columns), path)
    found = []
    for row in rows:
        kernel = _kernel({n: row[i] for n, i in at.items()})
        for i, name, factor in columns:
            _put(kernel, name, row[i], factor, decimal)
        found.append(kernel)
    return found


def _details(names: list[str], body: list[list[str]], path: str) -> list[Kernel]:
    """One row a metric or a rule of a kernel."""
    rows = [dict(zip(names, row, strict=True)) for row in body]
    decimal = _decimal((row.get("Metric Value", "") for row in rows), path)
    found: list[Kernel] = []
    for _, group in itertools.groupby(rows, key=lambda row: (row.get("Process ID"), row["ID"], row["Kernel Name"])):
        members = list(group)
        kernel = _kernel(members[0])
        for row in members:
            if label := row.get("Metric Name", ""):
                name = label if "__" in label else LABELS.get((row["Section Name"], label), LABELS.get(("", label), ""))
                if name:
                    _put(kernel, name, row.get("Metric Value", ""), scale(row.get("Metric Unit", "")), decimal)
            elif row.get("Rule Name"):
                gain = number(row.get("Estimated Speedup", ""), decimal)
                rule = Rule(row["Rule Name"], _unmarked(row.get("Rule Description", "")), row["Section Name"], gain, row.get("Estimated Speedup Type", ""))
                kernel.rules.append(rule)
        found.append(kernel)
    return found


def _decimal(texts: Iterator[str], path: str) -> str:
    try:
        return decimal_separator(texts)
    except ValueError as error:
        raise ReportError(f"{path}: {error}") from None


def _kernel(row: Mapping[str, str]) -> Kernel:
    case = next((row[n] for n in row if "Push/Pop_Range" in n or n.endswith("Push/Pop Stack")), "")
    return Kernel(row["Kernel Name"], _sizes(row.get("Grid Size", "")), _sizes(row.get("Block Size", "")), row.get("CC", ""), case=_range(case))


def _range(text: str) -> str:
    """The name in `<id> "<domain>:name:none:..."`, the innermost range last; one of the program's own (the default domain) before a library's."""
    found = re.findall(r'"(<[^>"]*>|[^:"]*):([^:"]+):', text)
    own = [name for domain, name in found if domain == "<default domain>"]
    return own[-1] if own else found[-1][1] if found else text.strip('" ')


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text))


def _put(kernel: Kernel, name: str, text: str, factor: float, decimal: str) -> None:
    value = number(text, decimal)
    if value is not None:
        kernel.metrics[name] = value * factor
    elif text.strip() and not re.match(r"\(?(n/a|nan|inf|!)", text.strip(), re.IGNORECASE):
        kernel.texts[name] = text


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
            raise ReportError(f"{path}: ncu_report cannot read it, it is cut off or of a newer version: {type(error).__name__}: {error}") from None
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
            kernel.rules.append(Rule(name, _unmarked(text), section, gain.get("speedup"), _SCOPES.get(gain.get("type", 0), "")))
    kernel.case = _case(action)
    kernel.lines = _lines(action)
    return kernel


_SCOPES = {1: "local", 2: "global"}  # of NVIDIA's SpeedupType


def _unmarked(text: str) -> str:
    """A rule's text without NVIDIA's links: `@url:TEXT:ADDRESS@`, `@section:KEY:TEXT@`."""
    return re.sub(r"@section:[^:@]*:([^@]*)@", r"\1", re.sub(r"@url:([^:@]*):[^@]*@", r"\1", text))


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
    """Source lines by samples of stalled warps, else by instructions; empty where the report holds no source counters or the kernel no line table."""
    if not hasattr(action, "source_info"):
        return []
    names = sorted(n for n in action.metric_names() if re.match(r"smsp__pcsamp_warps_issue_stalled_\w+$", n) and not n.endswith("not_issued"))
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
