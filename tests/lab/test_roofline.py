"""Curves, roofs and the calibration kernels' machine code. What needs a GPU is measured by `rooftop calibrate`."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from _simulated_device import Kernel, Simulated

from rooftop.core import devices
from rooftop.core.compile import compile_cuda
from rooftop.core.devices import datasheets
from rooftop.lab.inspect import binary
from rooftop.lab.records.record import Record
from rooftop.lab.timing import calibrate, roofline, streams, tensor_cores
from rooftop.lab.timing.roofline import Ceilings, Curve
from rooftop.lab.timing.timer import ImpossibleTime, Timer

MIB = 1 << 20


SHEET = replace(
    datasheets()[0], bandwidth_gbs=4000.0, sms=100, clock_mhz=2000.0, rates={"fma32": 200.0, "tensor-bf16": 2500.0}
)  # 4 TB/s, 40 T FMA/s, 500 T tensor FMA/s


def record(at: str = "2026-01-01T00:00:00+00:00", name: str = "card", scale: float = 1.0, **more: Any) -> Record:
    """Copies at 2, reads at 3 and writes at 4 TB/s with a fixed 1 us on top, from 2 MiB to 8 GiB."""
    rates = {"copy": 2e12, "read": 3e12, "write": 4e12}
    return Record({
        "kind": "ceiling",
        "digest": roofline.digest(),
        "at": at,
        "device": {"name": name},
        "curves": {
            kind: [{"bytes": b, "seconds": scale * (1e-6 + b / rate), "by": f"{kind} {b >> 20}"} for b in calibrate.SIZES] for kind, rate in rates.items()
        },
        "fma_fp32": {"burst": {"ops_per_s": 30e12}, "sustained": {"ops_per_s": 25e12}},
        "launch": {"graph_node_s": 1.2e-6}, **more,
    })


def test_a_calibration_of_other_kernels_says_nothing_of_these() -> None:
    other = record("2026-02-01T00:00:00+00:00", digest="0123456789ab")
    none = other.but(digest=None)  # as before there were digests
    for stale in (other, none):
        assert Ceilings.from_records([record(), stale], "card").at == "2026-01-01T00:00:00+00:00"
        alone = Ceilings.from_records([stale], "card", SHEET)
        assert alone.stale and not alone.curves and alone.bandwidth("copy", MIB) == 4e12
    assert not Ceilings.from_records([record()], "card").stale
    assert not Ceilings.from_records([], "card").stale


def test_sizes_are_those_promised() -> None:
    assert calibrate.SIZES[0] == 2 * MIB and calibrate.SIZES[-1] == 8 << 30


def test_a_curve_goes_through_its_points_and_smoothly_between() -> None:
    truth = {b: 1e-6 + b / 3e12 for b in calibrate.SIZES}
    curve = Curve(tuple(truth), tuple(truth.values()))
    for size, seconds in truth.items():
        assert curve.time(size) == pytest.approx(seconds)
    for size in (3 * MIB, 5 * MIB, 90 * MIB, 3000 * MIB):  # between the points, against the law they were made from
        assert curve.time(size) == pytest.approx(1e-6 + size / 3e12, rel=0.02)
    times = [curve.time(MIB * 1.1**i) for i in range(120)]
    assert all(a < b for a, b in pairwise(times))


def test_a_curve_past_its_ends() -> None:
    curve = Curve((2 * MIB, 4 * MIB), (2e-6, 3e-6))
    assert curve.time(40 * MIB) == pytest.approx(30e-6)  # the last bandwidth holds
    assert curve.time(MIB) == pytest.approx(2e-6 * 0.5 ** math.log2(1.5))  # the first slope goes on
    assert curve.time(0) == 0.0
    odd = Curve((2 * MIB, 4 * MIB), (3e-6, 2e-6))  # noise: the smaller took longer
    assert odd.time(MIB) == pytest.approx(3e-6)
    assert Curve((MIB,), (1e-6,)).time(MIB // 2) == pytest.approx(0.5e-6)


@pytest.mark.parametrize(("sizes", "times"), [((), ()), ((1, 2), (1.0,)), ((2, 1), (1.0, 2.0)), ((1, 2), (0.0, 1.0))])
def test_a_broken_curve_is_refused(sizes: tuple[int, ...], times: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="sizes must rise"):
        Curve(sizes, times)


def test_the_newest_record_of_this_card_counts() -> None:
    records = [
        record("2026-02-01T00:00:00+00:00", scale=1.0),
        record("2026-01-01T00:00:00+00:00", scale=2.0),
        record("2026-03-01T00:00:00+00:00", name="other", scale=3.0),
        Record({"kind": "timing"}),
    ]
    ceilings = Ceilings.from_records(records, "card")
    assert ceilings.at.startswith("2026-02")
    assert ceilings.bandwidth("copy", 8 << 30) == pytest.approx(2e12, rel=0.01)


def test_the_fastest_variant_is_that_of_the_nearest_size() -> None:
    c = Ceilings.from_records([record()], "card")
    assert [c.fastest("copy", size) for size in (0, MIB, 5 * MIB, 6 * MIB, 1 << 40)] == ["copy 2", "copy 2", "copy 4", "copy 8", "copy 8192"]
    assert Ceilings("card").fastest("read", MIB) is None


def test_roofs_of_pure_and_mixed_traffic() -> None:
    c = Ceilings.from_records([record()], "card")
    size = 1 << 30
    assert c.seconds(size, 0) == pytest.approx(1e-6 + size / 3e12)
    assert c.seconds(0, size) == pytest.approx(1e-6 + size / 4e12)
    assert c.seconds(size // 2, size // 2) == pytest.approx(1e-6 + size / 2e12)
    # A quarter written: half way between reading and copying, by time a byte.
    assert c.seconds(3 * size // 4, size // 4) == pytest.approx(1e-6 + size * (1 / 3e12 + 1 / 2e12) / 2)
    assert c.seconds(size // 4, 3 * size // 4) == pytest.approx(1e-6 + size * (1 / 4e12 + 1 / 2e12) / 2)
    roof = c.roof(size, 0)
    assert roof.bound == "memory" and roof.assumed == ()


def test_the_longest_part_bounds() -> None:
    c = Ceilings.from_records([record()], "card", SHEET)
    roof = c.roof(MIB, MIB, {"fma32": 30e9})
    assert (roof.bound, roof.seconds) == ("fma32", pytest.approx(1e-3))
    assert c.seconds(MIB, MIB, {"fma32": 30e9}, duty="sustained") == pytest.approx(1.2e-3)
    nothing = c.roof(0, 0)
    assert (nothing.bound, nothing.seconds) == ("launch", 1.2e-6)
    assert c.seconds(4, 4) >= 1.2e-6  # nothing beats an empty kernel


def test_what_was_not_measured_comes_from_the_datasheet_and_says_so() -> None:
    bare = Ceilings.from_records([], "card", SHEET)
    roof = bare.roof(3 << 30, 1 << 30, {"fma32": 1.0, "tensor-bf16": 1.0, "sqrt": 1.0})
    assert roof.seconds == pytest.approx((4 << 30) / 4e12)
    assert roof.assumed == (
        "read bandwidth from the datasheet",
        "copy bandwidth from the datasheet",
        "fma32 from the datasheet",
        "tensor-bf16 from the datasheet",
        "no ceiling of sqrt: left out",
    )
    measured = Ceilings.from_records([record()], "card", SHEET)
    assert measured.roof(1, 1, {"fma32": 1.0, "tensor-bf16": 1.0}).assumed == ("tensor-bf16 from the datasheet",)
    assert measured.roof(1, 0).assumed == ()
    with pytest.raises(ValueError, match="card has no measured read ceiling and no datasheet"):
        Ceilings("card").roof(MIB, 0)
    with pytest.raises(ValueError, match="'swap' is not one of copy, read, write"):
        bare.bandwidth("swap", MIB)  # type: ignore[arg-type]


def test_calibration_needs_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(RuntimeError, match="no CUDA device"):
        next(calibrate.calibrate())
    with pytest.raises(ValueError, match="disk is not one of memory, l2, tensor"):
        next(calibrate.calibrate(parts=["disk"]))  # type: ignore[list-item]


@pytest.fixture(scope="module", params=["sm_80", "sm_89", "sm_90a"])
def machine_code(request: pytest.FixtureRequest) -> tuple[bytes, dict[str, str]]:
    source = roofline.MEMORY
    built = compile_cuda(source.read_text(), name=source.name, target=request.param, kernels=streams.kernels())
    return built.cubin, built.names


def test_calibration_kernels_compile_to_what_they_claim(machine_code: tuple[bytes, dict[str, str]]) -> None:
    """Wide accesses, all of a thread's loads in flight before its first store, no spill, nothing folded away."""
    cubin, names = machine_code
    listing = re.split(r"^\.text\.(\S+):$", binary.sass(cubin), flags=re.M)
    code = dict(zip(listing[1::2], listing[2::2], strict=True))
    for expression, symbol in names.items():
        text = code[symbol]
        wide = re.findall(r"\b(LDG|STG)\S*?\.128", text)
        name, unroll = expression.partition("<")[0], int("".join(re.findall(r"<(\d+)", expression)) or 0)
        assert not re.search(r"\b(LDL|STL)\b", text), f"{expression} spills"
        if name == "copy":  # the tile, then the remainder's loop
            assert wide[: 2 * unroll] == ["LDG"] * unroll + ["STG"] * unroll, expression
        elif name == "read":
            assert wide.count("LDG") >= unroll and "STG" not in wide, expression
        elif name == "write":
            assert wide.count("STG") == unroll and "LDG" not in wide, expression
        elif name == "fma":
            assert len(re.findall(r"\bFFMA\b", text)) >= streams.FMA_CHAINS * streams.FMA_UNROLL
        if expression.endswith(", 1>"):
            assert ".EF." in text, f"{expression} lost its streaming hint"


# -- tensor cores and the L2 -------------------------------------------------------------------------------------------


def tensor_record(at: str = "2026-01-01T00:00:00+00:00", digest: str | None = None) -> Record:
    return Record({
        "kind": "ceiling", "subject": "tensor", "digest": digest or roofline.digest("tensor"), "at": at, "device": {"name": "card"},
        "rates": {"tensor-bf16": {"burst": {"ops_per_s": 400e12}, "sustained": {"ops_per_s": 320e12}}},
    })


def l2_record() -> Record:
    points = [{"bytes": 2**k << 20, "seconds": 1e-6 + (2**k << 20) / 6e12, "by": "one"} for k in range(5)]
    return Record({"kind": "ceiling", "subject": "l2", "digest": roofline.digest("l2"), "at": "2026-01-03T00:00:00+00:00", "device": {"name": "card"},
            "curves": {"copy": points, "read": points}})


def test_the_parts_of_a_calibration_stand_beside_each_other() -> None:
    c = Ceilings.from_records([record(), tensor_record("2026-02-01T00:00:00+00:00"), l2_record()], "card", SHEET)
    assert c.at == "2026-01-01T00:00:00+00:00" and c.bandwidth("copy", 8 << 30) == pytest.approx(2e12, rel=0.01)
    roof = c.roof(MIB, MIB, {"tensor-bf16": 400e9, "fma32": 30e6})
    assert (roof.bound, roof.seconds, roof.assumed) == ("tensor-bf16", pytest.approx(1e-3), ())
    assert c.seconds(MIB, MIB, {"tensor-bf16": 400e9}, duty="sustained") == pytest.approx(1.25e-3)
    assert set(c.l2) == {"copy", "read"} and c.l2["read"].time(16 * MIB) == pytest.approx(1e-6 + 16 * MIB / 6e12)


def test_each_part_is_stale_by_its_own_kernels() -> None:
    other = tensor_record("2026-02-01T00:00:00+00:00", digest="0123456789ab")
    c = Ceilings.from_records([record(), tensor_record(), other], "card", SHEET)
    assert not c.stale and c.rates["tensor-bf16"]["burst"] == 400e12, "the newest of these kernels"
    alone = Ceilings.from_records([record(), other], "card", SHEET)
    assert not alone.stale and set(alone.rates) == {"fma32"} and alone.roof(1, 1, {"tensor-bf16": 1.0}).assumed == ("tensor-bf16 from the datasheet",)
    assert roofline.current(record()) and roofline.current(tensor_record()) and not roofline.current(other)
    assert not roofline.current(record(subject="disk"))
    assert roofline.digest("tensor") != roofline.digest("memory") == roofline.digest("l2")


def test_the_kernels_of_the_memory_are_those_that_were_measured_with() -> None:
    """A new kernel has a file of its own: the committed calibrations are still of this tree."""
    assert roofline.digest("memory") == "0a9d249cc33f"


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
def test_loops_of_multiply_adds_hold_what_is_counted(target: str) -> None:
    """Their instructions, by number and shape, are the multiply-adds that `count` says; nothing else is in the loop but its counter; nothing spills, and
    no wgmma waits for the one before it."""
    arch = int(target[3:5])
    units = tensor_cores.kernels(arch)
    names = [k for by_name in units.values() for k in by_name.values()]
    assert set(units) == set(tensor_cores.UNITS) - ({"tensor-f8"} if arch == 80 else set())
    built = compile_cuda(roofline.TENSOR.read_text(), name=roofline.TENSOR.name, target=target, kernels=names)
    listing = re.split(r"^\.text\.(\S+):$", binary.sass(built.cubin), flags=re.M)
    code = dict(zip(listing[1::2], listing[2::2], strict=True))
    shapes = {"16816": 16 * 8 * 16, "1688": 16 * 8 * 8, "16832": 16 * 8 * 32}
    for unit, by_name in units.items():
        inner = tensor_cores.UNITS[unit].inner
        for kernel in by_name.values():
            text = code[built.names[kernel]]
            assert not re.search(r"\b(LDL|STL)\b", text), f"{kernel} spills"
            wide = re.findall(r"\b[HIQ]GMMA\.(\d+)x(\d+)x(\d+)\.", text)
            small = [shapes[n] for n in re.findall(r"\b[HIQ]MMA\.(\d+)\.", text)]
            assert bool(wide) == kernel.startswith("wgmma") and bool(small) == kernel.startswith("mma")
            made = sum(math.prod(map(int, shape)) for shape in wide) * 2 + sum(small) * 8  # two warp groups, eight warps
            assert made == tensor_cores.count(kernel, 1, 1, inner), kernel
            if wide:
                assert len(re.findall(r"WARPGROUP\.DEPBAR", text)) == 5, f"{kernel}: a wait for each tile, and one at the end"


def test_a_unit_is_one_of_the_datasheets() -> None:
    assert set(tensor_cores.UNITS) <= devices.units()
    for arch in (80, 89, 90):
        sheet = next(s for s in datasheets() if s.arch == arch)
        assert set(tensor_cores.kernels(arch)) <= set(sheet.rates)
    assert tensor_cores.kernels(100) == {}


class Fixed:
    """Calls of known rates under a device that draws power: loops by name, with the multiply-adds each makes a call."""

    def by_unit(self) -> dict[str, dict[str, tuple[Any, int]]]:
        return {"tensor-bf16": {"mma.sync": (Kernel("mma.sync", 1e-3), 10**11), "wgmma": (Kernel("wgmma", 1e-3), 2 * 10**11)}}


def test_sustained_only_the_fastest_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Simulated()
    found = calibrate._tensor(Timer(device), Fixed(), lambda text: None)["rates"]["tensor-bf16"]  # type: ignore[arg-type]
    assert found["burst"]["by"] == found["sustained"]["by"] == "wgmma"
    assert found["burst"]["ops_per_s"] == pytest.approx(2e14) and found["burst"]["all"]["mma.sync"] == pytest.approx(1e14)
    assert set(found["sustained"]["all"]) == {"wgmma"}, "its clock would be higher with one that draws less power"


def test_a_rate_that_no_such_card_has_is_refused() -> None:
    device = Simulated()
    device.describe = lambda: {"name": "NVIDIA H100 80GB HBM3"}  # type: ignore[method-assign]
    with pytest.raises(ImpossibleTime, match="no card of this kind"):
        calibrate._rate(Timer(device), "tensor-bf16", {"wgmma": (Kernel("wgmma", 1e-3), 6 * 10**11)}, "burst")
    assert calibrate._rate(Timer(device), "tensor-bf16", {"wgmma": (Kernel("wgmma", 1e-3), 5 * 10**11)}, "burst")["tflops"] == pytest.approx(1000)
