"""Reports of Nsight Compute as CSV: every way that ncu prints them gives the same figures, and what is no report says so."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from rooftop.lab.counters.diagnose import numbers, reports, show
from rooftop.lab.counters.diagnose.diagnosis import diagnose

NAMES = ("ID", "Kernel Name", "Block Size", "Grid Size", "CC", "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum", "launch__grid_size")
RAW = [
    NAMES,
    ("", "", "", "", "", "us", "Mbyte", "Kbyte", ""),
    ("0", "copy(float *, int)", "(256, 1, 1)", "(4096, 1, 1)", "9.0", "1,234.5", "67.125", "65,536.5", "4,096"),
    ("1", "empty()", "(32, 1, 1)", "(1, 1, 1)", "9.0", "2.25", "n/a", "0", "1"),
]


def table(rows: list[tuple[str, ...]], delimiter: str = ",") -> str:
    return "\n".join(delimiter.join(f'"{field}"' for field in row) for row in rows) + "\n"


def localised(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    swap = str.maketrans(",.", ".,")
    return [*rows[:2], *(tuple(f.translate(swap) if i >= 5 else f for i, f in enumerate(row)) for row in rows[2:])]


@pytest.mark.parametrize("text", [table(RAW), "==PROF== Connected to process 7\n" + table(RAW), table(localised(RAW)), table(localised(RAW), ";")])
def test_raw_pages_give_base_units_whatever_the_locale(text: str) -> None:
    copy, empty = reports.parse(text)
    assert copy.name == "copy(float *, int)" and copy.grid == (4096, 1, 1) and copy.block == (256, 1, 1) and copy.arch == "9.0"
    assert copy.metrics == pytest.approx(
        {"gpu__time_duration.sum": 1234.5e-6, "dram__bytes_read.sum": 67.125e6, "dram__bytes_write.sum": 65536.5e3, "launch__grid_size": 4096}
    )
    assert empty.get("dram__bytes_read.sum") is None and empty.get("dram__bytes_write.sum") == 0


def test_what_was_not_collected_is_never_zero() -> None:
    _, empty = reports.parse(table(RAW))
    found = diagnose(empty)
    assert found.bound == "unknown" and not found.loads  # one of the two counters of the device memory is n/a
    assert "device memory" in found.missing and "stall reasons" in found.missing and "duration" not in found.missing


def test_details_pages_map_labels_and_keep_rules() -> None:
    names = ("ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name",
             "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup")  # fmt: skip
    start = ("0", "7", "k", "(256, 1, 1)", "(128, 1, 1)", "9.0")
    sol = "GPU Speed Of Light Throughput"
    rows = [
        names,
        (*start, sol, "Duration", "us", "10.5", *[""] * 5),
        (*start, sol, "Memory Throughput", "%", "81.25", *[""] * 5),
        (*start, "Memory Workload Analysis", "Memory Throughput", "Gbyte/s", "812.5", *[""] * 5),
        (*start, "Occupancy", "", "", "", "AchievedOccupancy", "OPT", "Low, [bold]very[/bold] low", "local", "12.5"),
    ]
    (kernel,) = reports.parse(table(rows))
    assert kernel.get("gpu__time_duration.sum") == pytest.approx(10.5e-6)
    assert kernel.get("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed") == 81.25
    assert kernel.get("dram__bytes.sum.per_second") == pytest.approx(812.5e9)
    assert kernel.rules == [reports.Rule("AchievedOccupancy", "Low, [bold]very[/bold] low", "Occupancy", 12.5, "local")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"\0\1\2 elf", "neither a .ncu-rep nor text"),
        (b"a,b\n1,2\n", "no table of ncu --csv"),
        (b"==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "not permitted"),
        (b"==WARNING== No kernels were profiled.\n", "no kernel was profiled"),
        (table(RAW[:2]).encode(), "no kernels"),
        (table(RAW).encode()[:-20], "cut off"),
        (gzip.compress(table(RAW).encode())[:-30], "cut off"),
        (table([("ID", "Name"), ("0", "k")]).encode(), "Kernel Name"),
        (table([*RAW, ("2", "k", "", "", "", "1,5", "1,234,567.5", "1.234.567,5", "")]).encode(), "two kinds"),
    ],
)
def test_files_that_are_no_report_say_what_is_wrong(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "some.csv"
    path.write_bytes(content)
    with pytest.raises(reports.ReportError, match=said):
        reports.read(path)


def test_a_report_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such report"):
        reports.read(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("text", "decimal", "value"),
    [("1,234.5", ".", 1234.5), ("1.234,5", ",", 1234.5), ("1\u202f234,5", ",", 1234.5), ("1'234.5", ".", 1234.5), ("12.5%", ".", 12.5), ("1.5e3", ".", 1500.0),
     ("-3", ".", -3.0), ("n/a", ".", None), ("", ".", None), ("(256, 1, 1)", ".", None)],
)  # fmt: skip
def test_numbers(text: str, decimal: str, value: float | None) -> None:
    assert numbers.number(text, decimal) == value


@pytest.mark.parametrize(
    ("texts", "decimal"), [(["1,234", "5"], "."), (["0,125"], ","), (["1.234", "12,5"], ","), (["1.234.567"], ","), (["12345.678"], "."), ([], ".")]
)
def test_the_decimal_separator_of_a_report(texts: list[str], decimal: str) -> None:
    assert numbers.decimal_separator(texts) == decimal


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("usecond", 1e-6), ("ns", 1e-9), ("Gbyte/second", 1e9), ("cycle/nsecond", 1e9), ("Ghz", 1e9), ("Kbyte/block", 1e3), ("%", 1), ("inst", 1)],
)
def test_units(unit: str, factor: float) -> None:
    assert numbers.scale(unit) == pytest.approx(factor)


class Metric:
    """Of a canned report of ncu_report."""

    def __init__(self, value: float | str | None, unit: str = "") -> None:
        self._value, self._unit = value, unit

    def value(self) -> float | str | None:
        return self._value

    def unit(self) -> str:
        return self._unit


class Domain:
    def __init__(self, found: tuple[str, tuple[str, ...]]) -> None:
        self._name, self._ranges = found

    def name(self) -> str:
        return self._name

    def push_pop_ranges(self) -> tuple[str, ...]:
        return self._ranges


class Action:
    metrics = {
        "gpu__time_duration.sum": Metric(2500.0, "ns"), "launch__grid_dim_x": Metric(4), "launch__grid_dim_y": Metric(1), "launch__grid_dim_z": Metric(1),
        "device__attribute_compute_capability_major": Metric(9), "device__attribute_compute_capability_minor": Metric(0),
        "device__attribute_display_name": Metric("NVIDIA H200"), "dram__bytes_read.sum": Metric(None, "byte"),
    }  # fmt: skip

    def name(self) -> str:
        return "k(float *)"

    def metric_names(self) -> list[str]:
        return [*self.metrics, "smsp__gone.sum"]

    def metric_by_name(self, name: str) -> Metric | None:
        return self.metrics.get(name)

    def nvtx_state(self) -> Action:
        return self

    def domains(self) -> tuple[int, ...]:
        return (1, 0)

    def domain_by_id(self, number: int) -> Domain:
        return Domain({0: ("<default domain>", ("epoch", "step")), 1: ("CCCL", ("sort",))}[number])

    def rule_results_as_dicts(self) -> list[dict[str, object]]:
        return [
            {
                "rule_identifier": "SOLBottleneck",
                "rule_message": {"message": "Low of @url:the Guide:https://x.y/z@, see @section:LaunchStats:Launch Statistics@"},
                "speedup_estimation": {"type": 1, "speedup": 12.5},
            }
        ]


def test_actions_of_ncu_report_give_the_same_kernel() -> None:
    kernel = reports.of_action(Action())
    assert (kernel.name, kernel.grid, kernel.arch) == ("k(float *)", (4, 1, 1), "9.0")
    assert kernel.get("gpu__time_duration.sum") == pytest.approx(2.5e-6) and kernel.get("dram__bytes_read.sum") is None
    assert kernel.texts == {"device__attribute_display_name": "NVIDIA H200"}
    assert kernel.rules == [reports.Rule("SOLBottleneck", "Low of the Guide, see Launch Statistics", "", 12.5, "local")]
    assert kernel.case == "step" and kernel.lines == []


class Counts:
    """A metric with a value for each instruction."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def value(self) -> None:
        return None

    def unit(self) -> str:
        return ""

    def has_correlation_ids(self) -> bool:
        return True

    def correlation_ids(self) -> Counts:
        return self

    def num_instances(self) -> int:
        return len(self.values)

    def as_uint64(self, i: int) -> int:
        return 16 * i

    def as_double(self, i: int) -> float:
        return self.values[i]


class Place:
    def __init__(self, line: int) -> None:
        self._line = line

    def file_name(self) -> str:
        return "k.cu"

    def line(self) -> int:
        return self._line


class WithLines(Action):
    metrics = {
        **Action.metrics,
        "smsp__pcsamp_warps_issue_stalled_wait": Counts([1.0, 2.0, 0.0]),
        "smsp__pcsamp_warps_issue_stalled_barrier": Counts([0, 5, 2]),
    }

    def source_info(self, address: int) -> Place:
        return Place({0: 10, 16: 11, 32: 10}[address])


def test_source_lines_by_the_stalls_of_their_instructions() -> None:
    kernel = reports.of_action(WithLines())
    assert kernel.lines == [reports.Line("k.cu", 11, 0.7, "stalled"), reports.Line("k.cu", 10, 0.3, "stalled")]
    assert "70% of the stalls at k.cu:11" in show.screen(diagnose(kernel))


def test_the_details_page_of_2025_ends_a_metric_after_its_value() -> None:
    names = "ID,Kernel Name,Block Size,Grid Size,CC,Section Name,Metric Name,Metric Unit,Metric Value,Rule Name,Rule Type,Rule Description,Estimated Speedup"
    metric = '0,k,"(1, 1, 1)","(1, 1, 1)",9.0,Command line profiler metrics,gpu__time_duration.sum,us,2.5,'
    rule = '0,k,"(1, 1, 1)","(1, 1, 1)",9.0,SpeedOfLight,,,,SOLBottleneck,OPT,Low,12.5'
    (kernel,) = reports.parse("\n".join((names, metric, rule)))
    assert kernel.get("gpu__time_duration.sum") == pytest.approx(2.5e-6) and kernel.rules[0].speedup == 12.5
    with pytest.raises(reports.ReportError, match="cut off"):
        reports.parse("\n".join((names, metric, rule[:-10])))
