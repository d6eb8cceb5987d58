"""Reports of Nsight Compute as CSV: every way that ncu prints them gives the same figures, and what is no report says so."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rooftop.lab.counters.diagnose import numbers, reports, rules, show
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
             "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup")
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
        (gzip.compress(table(RAW).encode(), mtime=0)[:-30], "cut off"),
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
)
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


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("s", 1), ("second", 1), ("msecond", 1e-3), ("ms", 1e-3), ("nsecond", 1e-9), ("cycle/usecond", 1e6), ("Mbyte/s", 1e6), ("byte/second", 1),
     ("Ginst", 1e9), ("Ksector", 1e3), ("register/thread", 1), ("hz", 1), ("inst/cycle", 1), ("Kbyte/cycle", 1e3), ("warp", 1), ("", 1), ("minute", 60)],
)
def test_units_of_all_versions(unit: str, factor: float) -> None:
    assert numbers.scale(unit) == pytest.approx(factor)


# -- several tables, and what stands between them -------------------------------------------------------------------------

TIME = ("ID", "Kernel Name", "gpu__time_duration.sum", "dram__bytes_read.sum")
FIRST = [TIME, ("", "", "usecond", "Kbyte"), ("0", "first(int)", "12.5", "1.5")]
SECOND = [TIME, ("", "", "msecond", "Mbyte"), ("0", "second(int)", "3.5", "2,000.25"), ("1", "second(int)", "n/a", "4")]


@pytest.mark.parametrize("between", ["", "==PROF== Disconnected from process 4\n\n==PROF== Connected to process 5 (/x)\nstep 1, loss 0.25\n"])
def test_every_table_of_a_file_has_units_of_its_own(between: str) -> None:
    """Runs appended with >>, or a table for each process."""
    first, second, third = reports.parse(table(FIRST) + between + table(SECOND))
    assert (first.name, first.metrics) == ("first(int)", pytest.approx({"gpu__time_duration.sum": 12.5e-6, "dram__bytes_read.sum": 1.5e3}))
    assert (second.name, second.metrics) == ("second(int)", pytest.approx({"gpu__time_duration.sum": 3.5e-3, "dram__bytes_read.sum": 2000.25e6}))
    assert third.metrics == {"dram__bytes_read.sum": 4e6}


def test_tables_may_have_other_columns_and_another_locale() -> None:
    other = [("ID", "Kernel Name", "dram__bytes_read.sum"), ("", "", "Mbyte"), ("0", "k", "1.234,5"), ("1", "k", "17,25")]
    kernels = reports.parse(table(FIRST) + table(other, ";"))
    assert [k.get("dram__bytes_read.sum") for k in kernels] == pytest.approx([1.5e3, 1234.5e6, 17.25e6])


def test_what_the_program_prints_into_a_table_is_no_row() -> None:
    lines = table(RAW).splitlines(keepends=True)
    kernels = reports.parse("".join([*lines[:2], "epoch 1, loss 0.5, lr 1e-3\n", *lines[2:3], "==WARNING== Launching the workload took long\n", *lines[3:]]))
    assert [k.name for k in kernels] == ["copy(float *, int)", "empty()"]


def test_a_raw_table_without_its_units_is_refused_and_not_read_as_seconds() -> None:
    with pytest.raises(reports.ReportError, match=r"gpu__time_duration\.sum has no unit"):
        reports.parse(table([RAW[0], *RAW[2:]]))
    (kernel,) = reports.parse(table([("ID", "Kernel Name", "sm__throughput.avg.pct_of_peak_sustained_elapsed"), ("0", "k", "37.5")]))
    assert kernel.metrics == {"sm__throughput.avg.pct_of_peak_sustained_elapsed": 37.5}  # a percentage needs no unit


def test_a_table_of_metrics_without_sections_and_one_of_averages() -> None:
    plain = [("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"), ("0", "k", "gpu__time_duration.sum", "nsecond", "410,000")]
    summary = [("Process ID", "Kernel Name", "Block Size", "Grid Size", "Invocations", "Section Name", "Metric Name", "Metric Unit", "Minimum", "Maximum",
                "Average"),
               ("7", "k", "(64, 1, 1)", "(8, 1, 1)", "3", "GPU Speed Of Light Throughput", "Duration", "us", "1.00", "5.00", "2.50")]
    kernels = reports.parse(table(plain) + table(summary))
    assert [k.get("gpu__time_duration.sum") for k in kernels] == pytest.approx([410e-6, 2.5e-6])
    assert kernels[1].grid == (8, 1, 1)


def test_a_source_page_says_which_page_is_read() -> None:
    text = table([("#", "Address", "Source", "Warp Stall Sampling (All Samples)"), ("1", "0x10", "LDG.E R2, [R2]", "12")])
    with pytest.raises(reports.ReportError, match="--page raw"):
        reports.parse(text)


def test_a_breakdown_and_stalls_printed_with_all_details_are_metrics() -> None:
    sol, warp = "GPU Speed Of Light Throughput", "Warp State Statistics"
    rows = [
        ("ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value"),
        ("0", "k", sol, "SM: Pipe Alu Cycles Active", "%", "41.5"),
        ("0", "k", sol, "L2: Lts2xbar Cycles Active", "%", "12"),
        ("0", "k", warp, "Stall Long Scoreboard", "inst", "7.75"),
        ("0", "k", warp, "Stall Dispatch Stall", "inst", "0.25"),
    ]
    (kernel,) = reports.parse(table(rows))
    elapsed, ratio = "avg.pct_of_peak_sustained_elapsed", "per_issue_active.ratio"
    assert kernel.metrics == {
        f"sm__pipe_alu_cycles_active.{elapsed}": 41.5, f"lts__lts2xbar_cycles_active.{elapsed}": 12,
        f"smsp__average_warps_issue_stalled_long_scoreboard_{ratio}": 7.75, f"smsp__average_warps_issue_stalled_dispatch_stall_{ratio}": 0.25,
    }


# -- the console ----------------------------------------------------------------------------------------------------------

CONSOLE = """==PROF== Connected to process 81 (/home/me/a.out)
==PROF== Profiling "scale" - 0: 0%....50%....100% - 9 passes
C[0] = 3.0, ok
==PROF== Disconnected from process 81
[81] a.out@127.0.0.1
  void ns::scale<float, 4>(T1 *, const T1 *, int) (1024, 2, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 8.6
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- -------------
    Metric Name             Metric Unit  Metric Value
    ----------------------- ----------- -------------
    SM Frequency                    Ghz          1.39
    Elapsed Cycles                cycle    37,680,872
    Memory Throughput                 %         91.25
    DRAM Throughput                   %         91.25
    Duration                         ms         27.01
    L1/TEX Cache Throughput           %         (!) n/a
    ----------------------- ----------- -------------

    OPT   Est. Local Speedup: 36.9%
          This workload is utilizing greater than 80.0% of the available memory
          performance of this device.

    Section: Launch Statistics
    -------------------------------- --------------- -----------------
    Metric Name                          Metric Unit      Metric Value
    -------------------------------- --------------- -----------------
    Function Cache Configuration                     CachePreferShared
    Registers Per Thread             register/thread               111
    Waves Per SM                                                 12.19
    Dynamic Shared Memory Per Block      Kbyte/block             67.58
    -------------------------------- --------------- -----------------

  add(float *), 2023-May-07 14:53:47, Context 1, Stream 7
    Section: Command line profiler metrics
    ---------------------------------------------------------------------- --------------- ------------------------------
    dram__bytes_read.sum                                                             Mbyte                           9.45
    l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum                                request                      8,388,608
    ---------------------------------------------------------------------- --------------- ------------------------------
"""


@pytest.mark.parametrize("text", [CONSOLE, CONSOLE.replace("\n    ", "\n"), CONSOLE.replace("\n", "\r\n"), "# notes\n```\n" + CONSOLE + "```\n"])
def test_the_console_of_new_and_old_versions(text: str) -> None:
    scaled, added = reports.parse(text)
    assert (scaled.name, scaled.grid, scaled.block, scaled.arch) == ("void ns::scale<float, 4>(T1 *, const T1 *, int)", (1024, 2, 1), (256, 1, 1), "8.6")
    assert scaled.metrics == pytest.approx({
        "gpc__cycles_elapsed.avg.per_second": 1.39e9, "gpc__cycles_elapsed.max": 37680872, "gpu__time_duration.sum": 27.01e-3,
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 91.25, "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 91.25,
        "launch__registers_per_thread": 111, "launch__waves_per_multiprocessor": 12.19, "launch__shared_mem_per_block_dynamic": 67580,
    })
    (rule,) = scaled.rules
    assert (rule.name, rule.speedup, rule.scope) == ("SOLBottleneck", 36.9, "local")
    assert rule.text == "This workload is utilizing greater than 80.0% of the available memory performance of this device."
    assert (added.name, added.grid) == ("add(float *)", ())
    assert added.metrics == pytest.approx({"dram__bytes_read.sum": 9.45e6, "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 8388608})


def test_the_console_in_another_locale() -> None:
    swap = str.maketrans(",.", ".,")
    text = re.sub(r"(?m)(?<= )[\d.,]+$", lambda value: value[0].translate(swap), CONSOLE)
    assert "27,01" in text and "8.388.608" in text
    scaled, added = reports.parse(text)
    assert scaled.get("gpc__cycles_elapsed.max") == 37680872 and scaled.get("gpu__time_duration.sum") == pytest.approx(27.01e-3)
    assert added.get("dram__bytes_read.sum") == pytest.approx(9.45e6)


def test_sections_pasted_without_their_kernel() -> None:
    (kernel,) = reports.parse(CONSOLE[CONSOLE.index("    Section: GPU") : CONSOLE.index("  add(")])
    assert kernel.get("gpu__time_duration.sum") == pytest.approx(27.01e-3) and "without a name" in kernel.name


def test_a_name_that_pushes_its_columns_aside() -> None:
    text = CONSOLE.replace("    dram__bytes_read.sum        ", "    lts__t_bytes_equiv_l1sectormiss_pipe_lsu_mem_global_op_ld_and_something.sum ").replace(
        "Mbyte                           9.45", "Mbyte  9.45")
    assert reports.parse(text)[1].get("lts__t_bytes_equiv_l1sectormiss_pipe_lsu_mem_global_op_ld_and_something.sum") == pytest.approx(9.45e6)


def test_numbers_that_stand_in_rules_alone() -> None:
    def shown(*texts: str) -> dict[str, float]:
        kernel = reports.Kernel("k", rules=[reports.Rule("r", text) for text in texts])
        rules.complete(kernel)
        return kernel.metrics

    assert shown("FMA is the highest-utilized pipeline (75.9%) based on active cycles, taking") == {
        "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active": 75.9}
    shared = "Shared is the highest-utilized pipeline (20.7%) based on elapsed cycles in the workload. It's dominated by its Tensor (FP) sub-pipeline."
    assert shown(shared) == {"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": 20.7}
    stall = (
        "On average, each warp of this kernel spends 24.0 cycles being stalled waiting for the MIO (memory input/output)\n  instruction queue to be not full."
    )
    assert shown(stall) == {"smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio": 24.0}
    sectors = "This kernel has uncoalesced global accesses resulting in a total of 7,340,032 excessive sectors (87% of the total 8388608 sectors)."
    assert shown(sectors) == {"derived__memory_l2_theoretical_sectors_global_excessive": 7340032, "memory_l2_theoretical_sectors_global": 8388608}
    assert shown("Nothing is said here.") == {}


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_packed_reports_by_their_content_whatever_their_name(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "my.ncu-rep.xz"
    path.write_bytes(pack(table(RAW).encode()))
    assert len(reports.read(path)) == 2
    path.write_bytes(pack(table(RAW).encode())[:-30])
    with pytest.raises(reports.ReportError, match="cut off"):
        reports.read(path)


def test_a_console_redirected_on_windows(tmp_path: Path) -> None:
    path = tmp_path / "ncu.txt"
    path.write_bytes(CONSOLE.encode("utf-16"))
    assert len(reports.read(path)) == 2


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
    }

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
