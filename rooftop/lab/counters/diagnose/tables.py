"""What `ncu --csv` prints: raw pages (a row a kernel), details pages and `--metrics` (a row a metric), summaries. A file may hold several
tables."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rooftop.lab.counters.diagnose.kernel import Kernel, ReportError, Rule, absent, sizes
from rooftop.lab.counters.diagnose.labels import metric_of
from rooftop.lab.counters.diagnose.numbers import decimal_separator, number, scale
from rooftop.lab.counters.diagnose.rules import unmarked

_HEAD = re.compile(r'\ufeff?\s*"?(ID|Process ID|Kernel Name)"?[,;\t]')
_SOURCE = re.compile(r'\ufeff?\s*"?(#|Line No|Address)"?[,;\t].*(Source|Address)')
_SCALED = re.compile(r"(__time_|__bytes|__cycles_\w+\.\w+\.per_second|\.per_second$)")  # of these a number without its unit says nothing


def is_head(line: str) -> bool:
    return _HEAD.match(line) is not None


def is_source_page(text: str) -> bool:
    return any(_SOURCE.match(line) for line in text.splitlines()[:200])


def kernels(lines: Sequence[str], path: str) -> list[Kernel]:
    """Of all tables, in order. `path` is for messages."""
    starts = [i for i, line in enumerate(lines) if is_head(line) and "Kernel Name" in line]
    if not starts:
        raise ReportError(f"{path}: a table without the column 'Kernel Name' is not of ncu --csv")
    found: list[Kernel] = []
    for start, end in itertools.pairwise([*starts, len(lines)]):
        found += _table(lines[start:end], start, path)
    return found


def _table(lines: Sequence[str], start: int, path: str) -> list[Kernel]:
    head = lines[0].lstrip("\ufeff \t")
    delimiter = max(",;\t", key=head.count)
    table = [head, *_records(lines[1:], head.startswith('"'))]
    try:
        rows = [row for row in csv.reader(io.StringIO("".join(table), newline=""), delimiter=delimiter, strict=True) if row]
    except csv.Error as error:
        raise ReportError(f"{path}: the table is cut off or damaged ({error})") from None
    names, body = [n.strip() for n in rows[0]], rows[1:]
    for at, row in enumerate(body, start + 2):
        if len(row) != len(names):
            if not _is_short(names, row):
                raise ReportError(f"{path}: row {at} has {len(row)} of {len(names)} fields: the file is cut off or damaged")
            row.extend([""] * (len(names) - len(row)))
    if not body:
        raise ReportError(f"{path}: the table has no kernels")
    return _details(names, body, path) if "Metric Name" in names else _raw(names, body, path)


def _is_short(names: list[str], row: list[str]) -> bool:
    """A metric's row of the details page, which ends after its value with a comma."""
    return "Metric Value" in names and "Rule Name" in names and len(row) == names.index("Metric Value") + 2 and not row[-1]


def _records(lines: Iterable[str], quoted: bool) -> Iterator[str]:
    """The lines of the table's records, without what the profiler and the program printed between them."""
    inside = False
    for line in lines:
        if not inside and (re.match(r"==\w+== ", line) or (quoted and not line.lstrip().startswith('"'))):
            continue
        inside ^= line.count('"') % 2 == 1
        yield line


def _raw(names: list[str], body: list[list[str]], path: str) -> list[Kernel]:
    """One row a kernel, the units in a row of their own below the names."""
    at = {n: i for i, n in enumerate(names)}
    columns = [(i, n) for i, n in enumerate(names) if "__" in n]
    if not columns:
        raise ReportError(f"{path}: no column is a metric (gpu__time_duration.sum, ...)")
    identity = at.get("ID", at["Kernel Name"])
    rows = [row for row in body if row[identity].strip()]
    if not rows:
        raise ReportError(f"{path}: the table has names and units, but no kernels")
    decimal = _decimal((row[i] for row in rows for i, _ in columns), path)
    units: list[float] | None = None
    found = []
    for row in body:
        if not row[identity].strip():
            units = [scale(row[i]) for i, _ in columns]
            continue
        if units is None:
            if lacking := next((n for i, n in columns if _SCALED.search(n) and not absent(row[i])), None):
                raise ReportError(
                    f"{path}: {lacking} has no unit: the row of units below the names is missing; give the table as ncu --csv printed it"
                )
            units = [1.0] * len(columns)
        kernel = _kernel({n: row[i] for n, i in at.items()})
        for (i, name), factor in zip(columns, units, strict=True):
            put(kernel, name, row[i], factor, decimal)
        found.append(kernel)
    return found


def _details(names: list[str], body: list[list[str]], path: str) -> list[Kernel]:
    """One row a metric or a rule of a kernel; of a summary over several launches its average."""
    rows = [dict(zip(names, row, strict=True)) for row in body]
    value = "Metric Value" if "Metric Value" in names else "Average"
    decimal = _decimal((row.get(value, "") for row in rows), path)
    found: list[Kernel] = []
    for _, group in itertools.groupby(
        rows, key=lambda row: tuple(row.get(n) for n in ("Process ID", "ID", "Kernel Name", "Block Size", "Grid Size"))
    ):
        members = list(group)
        kernel = _kernel(members[0])
        for row in members:
            section, unit = row.get("Section Name", ""), row.get("Metric Unit", "")
            if label := row.get("Metric Name", ""):
                if name := metric_of(label, section, unit):
                    put(kernel, name, row.get(value, ""), scale(unit), decimal)
            elif row.get("Rule Name"):
                gain = number(row.get("Estimated Speedup", ""), decimal)
                kernel.rules.append(
                    Rule(row["Rule Name"], unmarked(row.get("Rule Description", "")), section, gain, row.get("Estimated Speedup Type", ""))
                )
        found.append(kernel)
    return found


def _decimal(texts: Iterator[str], path: str) -> str:
    try:
        return decimal_separator(texts)
    except ValueError as error:
        raise ReportError(f"{path}: {error}") from None


def _kernel(row: Mapping[str, str]) -> Kernel:
    case = next((row[n] for n in row if "Push/Pop_Range" in n or n.endswith("Push/Pop Stack")), "")
    return Kernel(
        row["Kernel Name"], sizes(row.get("Grid Size", "")), sizes(row.get("Block Size", "")), row.get("CC", ""), case=_range(case)
    )


def _range(text: str) -> str:
    """The name in `<id> "<domain>:name:none:..."`, the innermost range last; one of the program's own (the default domain) before a
    library's."""
    found = re.findall(r'"(<[^>"]*>|[^:"]*):([^:"]+):', text)
    own = [name for domain, name in found if domain == "<default domain>"]
    return own[-1] if own else found[-1][1] if found else text.strip('" ')


def put(kernel: Kernel, name: str, text: str, factor: float, decimal: str) -> None:
    """A printed value into a kernel's metrics, or into its texts if it is none."""
    value = number(text, decimal)
    if value is not None:
        kernel.metrics[name] = value * factor
    elif not absent(text):
        kernel.texts[name] = text
