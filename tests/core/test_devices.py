"""Datasheets: figures that agree with each other, names as the driver gives them, and the impossible-time floor."""

from __future__ import annotations

import pytest

from rooftop.core import devices
from rooftop.core.devices import Datasheet, floor_seconds, lookup, sibling, slug
from rooftop.core.spec import TARGETS
from rooftop.lab.inspect.occupancy import LIMITS

SHEETS = devices.datasheets()
EACH = pytest.mark.parametrize("sheet", SHEETS, ids=lambda s: slug(s.name))


def card(name: str) -> Datasheet:
    sheet = lookup(name)
    assert sheet is not None
    return sheet


@pytest.mark.parametrize(
    ("name", "arch", "sms", "bandwidth", "nvlink"),
    [
        ("NVIDIA H100 80GB HBM3", 90, 132, 3350, 900),
        ("NVIDIA H100 PCIe", 90, 114, 2039, 600),
        ("NVIDIA H200", 90, 132, 4800, 900),
        ("NVIDIA H800", 90, 132, 3350, 400),
        ("NVIDIA A800-SXM4-80GB", 80, 108, 2039, 400),
        ("NVIDIA A800 80GB PCIe", 80, 108, 1935, 400),
        ("NVIDIA GeForce RTX 4090", 89, 128, 1008, 0),
        ("NVIDIA L40S", 89, 142, 864, 0),
        ("NVIDIA H20", 90, 78, 4000, 900),
        ("NVIDIA B200", 100, 148, 8000, 1800),
        ("NVIDIA GeForce RTX 5090", 120, 170, 1792, 0),
        ("AMD Instinct MI300X", "gfx942", 304, 5300, 896),
        ("AMD Instinct MI350X", "gfx950", 256, 8000, 1075),
    ],
)
def test_lookup(name: str, arch: int | str, sms: int, bandwidth: float, nvlink: float) -> None:
    sheet = card(name)
    assert (sheet.name, sheet.arch, sheet.sms) == (name, arch, sms)
    assert (sheet.bandwidth_gbs, sheet.nvlink_gbs) == (bandwidth, nvlink)


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3 MIG 3g.40gb", "NVIDIA H100", "NVIDIA T4", "Ascend 910B", "cpu", "H1000"])
def test_unknown_cards_have_no_sheet(name: str) -> None:
    assert lookup(name) is None
    assert sibling(name) is None


def test_slug() -> None:
    assert slug("NVIDIA H100 80GB HBM3") == "h100-80gb-hbm3"
    assert slug("NVIDIA A800-SXM4-80GB") == "a800-sxm4-80gb"
    assert slug("NVIDIA GeForce RTX 4090") == "geforce-rtx-4090"
    assert slug("h100-80gb-hbm3") == "h100-80gb-hbm3"
    assert slug("../NVIDIA H200") == "h200"
    with pytest.raises(ValueError, match="no device name"):
        slug("//")


def test_siblings() -> None:
    assert sibling("NVIDIA H800") == sibling("NVIDIA H200") == "NVIDIA H100 80GB HBM3"
    assert sibling("NVIDIA A100-SXM4-80GB") == "NVIDIA A800-SXM4-80GB"
    assert sibling("NVIDIA A800-SXM4-80GB") == "NVIDIA A100-SXM4-80GB"
    assert sibling("NVIDIA H100 80GB HBM3") is None
    for sheet in SHEETS:
        if sheet.sibling is not None:
            assert card(sheet.sibling).arch == sheet.arch


@EACH
def test_sheets_agree_with_themselves(sheet: Datasheet) -> None:
    """Peak arithmetic follows from SMs, rate and clock; memory bandwidth from clock and bus. Each is from another source."""
    assert sheet.sources
    from_clock = sheet.bus_bits / 8 * 2 * sheet.memory_mhz * 1e6
    assert from_clock == pytest.approx(sheet.bandwidth_gbs * 1e9, rel=0.03)
    assert sheet.dram_bytes_per_second >= max(from_clock, sheet.bandwidth_gbs * 1e9)
    units = {"f32": "fma32", **{d: f"tensor-{d}" for d in ("tf32", "bf16", "f16", "i8", "f8")}}
    assert set(sheet.tflops) <= set(units)
    for dtype, tflops in sheet.tflops.items():
        peak = 2 * sheet.per_second(units[dtype]) / 1e12
        # The sheet's own clock is lower than the highest: by 8 % on an H100's tensor cores, by 19 % on an RTX 4090.
        assert 0.8 * peak <= tflops <= 1.002 * peak, (dtype, tflops, peak)


@EACH
def test_sheets_agree_with_the_house(sheet: Datasheet) -> None:
    target = next((t for t in TARGETS.names.values() if t.name == sheet.name), TARGETS[sheet.arch])
    assert (target.gfx or target.arch) == sheet.arch
    if isinstance(sheet.arch, int):  # AMD's cards keep nothing of a block's shared memory for the system
        assert sheet.shared_per_sm == LIMITS[sheet.arch].shared
        assert target.shared_per_block == LIMITS[sheet.arch].shared_per_block
    else:
        assert sheet.shared_per_sm == target.shared_per_block
    if target.name == sheet.name:
        assert (target.sms, target.l2_bytes) == (sheet.sms, sheet.l2_bytes)


def test_every_target_has_a_sheet() -> None:
    assert {t.name for t in TARGETS.values()} <= {s.name for s in SHEETS}


def test_floor_by_hand() -> None:
    h100 = card("NVIDIA H100 80GB HBM3")
    # 5120 bits * 2 * 2619 MHz / 8 = 3352.32 GB/s, above the sheet's 3350.
    assert floor_seconds(h100, 3352.32e9, {}) == pytest.approx(1.0)
    # 132 SMs * 128 FMA * 1980 MHz = 33.45e12 a second: 4096^3 takes 2.054 ms.
    assert floor_seconds(h100, 0, {"fma32": 4096.0**3}) == pytest.approx(2.054e-3, rel=1e-3)
    # 132 * 2048 * 1980 MHz = 535.3e12: 8192^3 takes 1.027 ms; cuBLAS in a burst needs 1.39.
    assert floor_seconds(h100, 0, {"tensor-bf16": 8192.0**3}) == pytest.approx(1.027e-3, rel=1e-3)
    assert floor_seconds(h100, 0, {}) == 0
    both = {"fma32": 4096.0**3, "mufu": 1.0}
    assert floor_seconds(h100, 1e9, both) == floor_seconds(h100, 0, {"fma32": 4096.0**3})
    assert floor_seconds(h100, 1e11, both) == floor_seconds(h100, 1e11, {})


def test_the_higher_clock_counts() -> None:
    card_4090 = card("NVIDIA GeForce RTX 4090")
    work = {"fma32": 1e12}
    at_sheet = floor_seconds(card_4090, 0, work)
    assert floor_seconds(card_4090, 0, work, clock_mhz=2520) == at_sheet
    assert floor_seconds(card_4090, 0, work, clock_mhz=2 * 3105) == pytest.approx(at_sheet / 2)


# Kernel times that were measured on an H100 80GB HBM3: none may be refused. Bytes and times of plain copies in
# rotation, and of cuBLAS in bursts.
@pytest.mark.parametrize(
    ("dram_bytes", "ops", "seconds"),
    [
        (2048 * 2**20, {}, 2048 * 2**20 / 2982e9),
        (4 * 2**30, {}, 4 * 2**30 / 3290e9),
        (0, {"tensor-bf16": 8192.0**3}, 2 * 8192.0**3 / 789e12),
        (0, {"tensor-f8": 4096.0**3}, 2 * 4096.0**3 / 1405e12),
        (0, {"fma32": 8192.0**3}, 2 * 8192.0**3 / 51.6e12),
    ],
)
def test_no_true_time_is_refused(dram_bytes: float, ops: dict[str, float], seconds: float) -> None:
    floor = floor_seconds(card("NVIDIA H100 80GB HBM3"), dram_bytes, ops)
    assert 0.5 * seconds < floor < seconds


def test_bad_work() -> None:
    h100 = card("NVIDIA H100 80GB HBM3")
    with pytest.raises(ValueError, match=r"no unit 'ffma'; it has fma32"):
        floor_seconds(h100, 0, {"ffma": 1})
    with pytest.raises(ValueError, match="no unit 'tensor-f8'"):
        floor_seconds(card("NVIDIA A800-SXM4-80GB"), 0, {"tensor-f8": 1})
    for bad in (-1.0, float("nan")):
        with pytest.raises(ValueError, match=f"dram_bytes is {bad}; it must be at least 0"):
            floor_seconds(h100, bad, {})
        with pytest.raises(ValueError, match="it must be at least 0"):
            floor_seconds(h100, 0, {"fma32": bad})


@pytest.mark.parametrize("name", ["h200", "H200", "NVIDIA H200"])
def test_a_target_may_be_a_card_by_name(name: str) -> None:
    card = TARGETS[name]
    sheet = lookup(card.name)
    assert sheet is not None
    assert (card.arch, card.sms, card.l2_bytes, card.shared_per_block) == (sheet.arch, sheet.sms, sheet.l2_bytes, sheet.shared_per_sm - 1024)
    assert (card.sms, card.shared_per_block, card.l2_bytes, card.target) == (132, 227 * 1024, 60 << 20, "sm_90a")


def test_targets_are_architectures_by_any_name_and_cards() -> None:
    assert list(TARGETS) == [80, 89, 90] and len(TARGETS) == 3  # what kernels are tuned for; others are found by number and name
    assert TARGETS[100] is TARGETS["b200"] is TARGETS["sm_100a"] and TARGETS["gfx942"] is TARGETS["mi300x"] is TARGETS["AMD Instinct MI300X"]
    assert TARGETS[90] is TARGETS["90"] is TARGETS["sm_90"] is TARGETS["sm90"] is TARGETS["sm_90a"] is TARGETS["h100"]
    assert TARGETS["a800"] is TARGETS[80] and TARGETS["rtx4090"] is TARGETS[89]
    for unknown in (75, "75", "h300", "sm_", ""):
        assert unknown not in TARGETS
        with pytest.raises(KeyError):
            TARGETS[unknown]
    for card in TARGETS.names.values():
        sheet = lookup(card.name)
        assert sheet is not None and (sheet.arch, sheet.sms) == (card.gfx or card.arch, card.sms)
