"""Curves, roofs and the calibration kernels' machine code. What needs a GPU is measured by `rooftop calibrate`."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from rooftop.core import settings
from rooftop.core.compile import compile_cuda
from rooftop.core.devices import datasheets
from rooftop.lab.inspect import binary
from rooftop.lab.timing import roofline
from rooftop.lab.timing.roofline import Ceilings, Curve, calibrate, suspicious

MIB = 1 << 20


SHEET = replace(
    datasheets()[0], bandwidth_gbs=4000.0, sms=100, clock_mhz=2000.0, rates={"fma32": 200.0, "tensor-bf16": 2500.0}
)  # 4 TB/s, 40 T FMA/s, 500 T tensor FMA/s


def record(at: str = "2026-01-01T00:00:00+00:00", name: str = "card", scale: float = 1.0) -> dict[str, Any]:
    """Copies at 2, reads at 3 and writes at 4 TB/s with a fixed 1 us on top, from 2 MiB to 8 GiB."""
    rates = {"copy": 2e12, "read": 3e12, "write": 4e12}
    return {
        "kind": "ceiling",
        "digest": roofline.digest(),
        "at": at,
        "device": {"name": name},
        "curves": {
            kind: [{"bytes": b, "seconds": scale * (1e-6 + b / rate), "by": f"{kind} {b >> 20}"} for b in roofline.SIZES] for kind, rate in rates.items()
        },
        "fma_fp32": {"burst": {"ops_per_s": 30e12}, "sustained": {"ops_per_s": 25e12}},
        "launch": {"graph_node_s": 1.2e-6},
    }


def test_a_calibration_of_other_kernels_says_nothing_of_these() -> None:
    other = record("2026-02-01T00:00:00+00:00") | {"digest": "0123456789ab"}
    none = {k: v for k, v in other.items() if k != "digest"}  # as before there were digests
    for stale in (other, none):
        assert Ceilings.from_records([record(), stale], "card").at == "2026-01-01T00:00:00+00:00"
        alone = Ceilings.from_records([stale], "card", SHEET)
        assert alone.stale and not alone.curves and alone.bandwidth("copy", MIB) == 4e12
    assert not Ceilings.from_records([record()], "card").stale
    assert not Ceilings.from_records([], "card").stale


def test_sizes_are_those_promised() -> None:
    assert roofline.SIZES[0] == 2 * MIB and roofline.SIZES[-1] == 8 << 30


def test_a_curve_goes_through_its_points_and_smoothly_between() -> None:
    truth = {b: 1e-6 + b / 3e12 for b in roofline.SIZES}
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
        {"kind": "timing"},
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


def test_a_kernel_faster_than_its_ceiling_means_a_bad_calibration() -> None:
    roof = Ceilings.from_records([record()], "card").roof(MIB, MIB)
    assert suspicious(roof.seconds * 0.99, roof) is None
    assert suspicious(roof.seconds * 3, roof) is None
    text = suspicious(roof.seconds * 0.9, roof)
    assert text is not None and "calibrate again" in text and "memory" in text


def test_calibration_needs_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(RuntimeError, match="no CUDA device"):
        calibrate()


@pytest.fixture(scope="module", params=["sm_80", "sm_89", "sm_90a"])
def machine_code(request: pytest.FixtureRequest) -> tuple[bytes, dict[str, str]]:
    source = settings.PACKAGE / "kernels" / "_device" / "ceilings.cu"
    built = compile_cuda(source.read_text(), name=source.name, target=request.param, kernels=roofline.kernels())
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
            assert len(re.findall(r"\bFFMA\b", text)) >= roofline.FMA_CHAINS * roofline.FMA_UNROLL
        if expression.endswith(", 1>"):
            assert ".EF." in text, f"{expression} lost its streaming hint"
