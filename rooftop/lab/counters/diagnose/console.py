"""What `ncu` prints to the console, without `--csv`: sections of metrics in columns, and its rules. Logs with other output between them,
and old versions' tables without a head, are read alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rooftop.lab.counters.diagnose.kernel import Kernel, ReportError, Rule, sizes
from rooftop.lab.counters.diagnose.labels import metric_of
from rooftop.lab.counters.diagnose.numbers import decimal_separator, number, scale
from rooftop.lab.counters.diagnose.tables import put

_SIZE = r"\(\d+, ?\d+, ?\d+\)"
_LAUNCH = re.compile(
    rf"^\s*(?P<name>\S.*?)(?: (?P<grid>{_SIZE})x(?P<block>{_SIZE}))?(?:, \d{{4}}-\w{{3}}-\d\d \d\d:\d\d:\d\d)?, Context \d+, Stream \d+"
    r"(?:, Device \d+)?(?:, CC (?P<cc>\d+\.\d+))?(?:, Invocations \d+)?\s*$"
)
_SECTION = re.compile(r"^\s*Section: (.+?)\s*$")
_RULED = re.compile(r"^\s*-{3,}(?: +-{3,})+\s*$")
_RULE = re.compile(r"^\s*(?:OPT|INF|WRN|ERR)\s+(\S.*)$")
_GAIN = re.compile(r"^Est(?:\.|imated) (Local )?Speedup: ([\d.,]+)%\s*")
# section -> its rule's name, which the console leaves out; the others are named by section
_VERDICT = {"GPU Speed Of Light Throughput": "SOLBottleneck"}
_ROWS = (3, 5)  # columns: name, unit, value; of a summary the least, the largest and the mean value


def is_console(text: str) -> bool:
    return any(_SECTION.match(line) or _LAUNCH.match(line) for line in text.splitlines())


def kernels(text: str, path: str) -> list[Kernel]:
    """`path` is for messages."""
    rows: list[tuple[Kernel, str, str, str]] = []
    found: list[Kernel] = []
    for kernel, section, part in _parts(text.splitlines(), found):
        if isinstance(part, Rule):
            kernel.rules.append(part)
        elif (name := metric_of(part[0], section, part[1])) is not None:
            rows.append((kernel, name, part[1], part[2]))
    try:
        decimal = decimal_separator(value for *_, value in rows)
    except ValueError as error:
        raise ReportError(f"{path}: {error}") from None
    for kernel, name, unit, value in rows:
        put(kernel, name, value, scale(unit), decimal)
    return found


def _parts(lines: Sequence[str], found: list[Kernel]) -> Iterator[tuple[Kernel, str, Rule | tuple[str, str, str]]]:
    """Each row of metrics as (label, unit, value) and each rule, with its kernel and section; kernels are added to `found`."""
    section, said = "", ""
    spans: list[tuple[int, int]] = []

    def rule() -> Rule:
        text = re.sub(r"\s+", " ", said).strip()
        gain = _GAIN.match(text)
        scope = "" if gain is None else "local" if gain[1] else "global"
        return Rule(
            _VERDICT.get(section, section), text[gain.end() :] if gain else text, section, None if gain is None else number(gain[2]), scope
        )

    for line in [*lines, ""]:
        launch, title, starts, ruled = _LAUNCH.match(line), _SECTION.match(line), _RULE.match(line), _RULED.match(line)
        if said and (launch or title or starts or ruled or not line.strip()):
            yield found[-1], section, rule()
            said = ""
        if launch:
            found.append(Kernel(launch["name"], sizes(launch["grid"] or ""), sizes(launch["block"] or ""), launch["cc"] or ""))
            section, spans = "", []
        elif title:
            if not found or (title[1] == "GPU Speed Of Light Throughput" and found[-1].name == _UNNAMED):
                found.append(Kernel(_UNNAMED))
            section, spans = title[1], []
        elif ruled:
            spans = [m.span() for m in re.finditer("-+", line)]
            spans = spans if len(spans) in _ROWS and found else []
        elif starts and found:
            said, spans = starts[1], []
        elif said:
            said += " " + line.strip()
        elif not line.strip():
            spans = []
        elif spans and (row := _row(line, spans)) is not None:
            yield found[-1], section, row


_UNNAMED = "(a kernel without a name)"  # pasted from its first section on


def _row(line: str, spans: Sequence[tuple[int, int]]) -> tuple[str, str, str] | None:
    """By the columns under which it stands; where a long name or value pushed the others aside, by the spaces between them."""
    edges = [start for start, _ in spans[1:]]
    if all(line[e - 1 : e] in (" ", "") for e in edges) and len(line.rstrip()) <= spans[-1][1]:
        cells = [line[a:b].strip() for a, b in zip([0, *edges], [*edges, None], strict=True)]
    else:
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) == len(spans) - 1:  # without a unit
            cells.insert(1, "")
        if len(cells) != len(spans):
            *rest, value = line.split()
            cells = [" ".join(rest[:-1]), rest[-1], value] if len(rest) > 1 else []
    if len(cells) < 3 or not cells[0] or cells[0] == "Metric Name":
        return None
    return cells[0], cells[1], cells[-1]
