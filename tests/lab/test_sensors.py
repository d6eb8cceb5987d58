"""Sensors: what NVML and nvidia-smi say, and that their absence is an answer and never an exception.

No GPU is needed: a stand-in for the NVML binding and one for the program answer as theirs do. The last test reads the
real card where there is one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rooftop.core import settings
from rooftop.lab.timing import sensors
from rooftop.lab.timing.sensors import Absent, Sensors, read

UUID = "GPU-78b84756-65f8-ec6b-851d-3878b541caf4"


class NotSupported(Exception):
    pass


def nvml(**changes: Any) -> ModuleType:
    """A module that answers as nvidia-ml-py does for one H100; `changes` replace its functions."""
    module = ModuleType("pynvml")
    answers: dict[str, Any] = {
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda i: one(i == 0),
        "nvmlDeviceGetHandleByUUID": lambda u: one(u == UUID),
        "nvmlDeviceGetUUID": lambda h: UUID,
        "nvmlDeviceGetName": lambda h: b"NVIDIA H100 80GB HBM3",  # bindings before 12 gave bytes
        "nvmlSystemGetDriverVersion": lambda: "580.159.04",
        "nvmlDeviceGetClockInfo": lambda h, clock: {1: 1755, 2: 2619}[clock],
        "nvmlDeviceGetMaxClockInfo": lambda h, clock: {1: 1980, 2: 2619}[clock],
        "nvmlDeviceGetPowerUsage": lambda h: 689_123,
        "nvmlDeviceGetEnforcedPowerLimit": lambda h: 700_000,
        "nvmlDeviceGetTemperature": lambda h, sensor: 61,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda h: 0x24,
    }
    for name, value in (answers | changes).items():
        if value is not None:
            setattr(module, name, value)
    return module


def one(there: bool) -> str:
    if not there:
        raise NotSupported("Not Found")
    return "handle"


def refuse(*_: Any) -> Any:
    raise NotSupported("Not Supported")


@pytest.fixture
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # what an import of a missing module finds


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH; the test writes its nvidia-smi there."""
    monkeypatch.setattr(settings, "tool_path", lambda name: found if (found := tmp_path / name).is_file() else None)
    return tmp_path / "nvidia-smi"


def program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


H100 = Sensors(
    uuid=UUID, name="NVIDIA H100 80GB HBM3", driver="580.159.04", sm_mhz=1755, memory_mhz=2619, max_sm_mhz=1980,
    power_w=689.123, power_limit_w=700.0, temperature_c=61, reasons=("power cap", "software thermal slowdown"),
    source="NVML",
)


@pytest.mark.parametrize("device", [0, UUID, UUID.removeprefix("GPU-")])
def test_nvml(monkeypatch: pytest.MonkeyPatch, device: int | str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    got = read(device)
    assert got == H100
    assert json.loads(json.dumps(got.to_json()))["reasons"] == ["power cap", "software thermal slowdown"]


def test_what_a_card_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = nvml(
        nvmlDeviceGetPowerUsage=refuse,
        nvmlDeviceGetClockInfo=refuse,
        nvmlDeviceGetTemperature=None,
        nvmlDeviceGetCurrentClocksEventReasons=None,
    )
    monkeypatch.setitem(sys.modules, "pynvml", quiet)
    got = read(0)
    assert isinstance(got, Sensors)
    assert (got.power_w, got.sm_mhz, got.memory_mhz, got.temperature_c, got.reasons) == (None,) * 5
    assert (got.max_sm_mhz, got.power_limit_w, got.slowed) == (1980, 700.0, ())


def test_an_older_binding_calls_them_throttle_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    older = nvml(
        nvmlDeviceGetCurrentClocksEventReasons=None,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda h: 0x8 | 0x40,
    )
    monkeypatch.setitem(sys.modules, "pynvml", older)
    got = read(0)
    assert isinstance(got, Sensors)
    assert got.reasons == ("hardware slowdown", "hardware thermal slowdown")


@pytest.mark.parametrize(
    ("mask", "reasons", "slowed"),
    [
        (0, (), ()),
        (1, ("idle",), ()),
        (5, ("idle", "power cap"), ("power cap",)),
        (0x1000, ("unknown 0x1000",), ("unknown 0x1000",)),
    ],
)
def test_reasons(monkeypatch: pytest.MonkeyPatch, mask: int, reasons: tuple[str, ...], slowed: tuple[str, ...]) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlDeviceGetCurrentClocksEventReasons=lambda h: mask))
    got = read(0)
    assert isinstance(got, Sensors)
    assert (got.reasons, got.slowed) == (reasons, slowed)


@pytest.mark.parametrize("device", [1, "GPU-0"])
def test_no_such_device(monkeypatch: pytest.MonkeyPatch, device: int | str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    got = read(device)
    assert isinstance(got, Absent)
    assert repr(device) in got.reason and "sees 1" in got.reason


def test_nothing_at_all(no_nvml: None, smi: Path) -> None:
    got = read(0)
    assert isinstance(got, Absent)
    assert "nvidia-ml-py is not installed" in got.reason and "nvidia-smi is not in PATH" in got.reason
    assert got.to_json() == {"reason": got.reason}


def test_no_driver_library(monkeypatch: pytest.MonkeyPatch, smi: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlInit=refuse))
    got = read(0)
    assert isinstance(got, Absent)
    assert "NVML cannot be used (Not Supported)" in got.reason


def test_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlDeviceGetName=refuse))
    assert read(0) == Absent("NotSupported: Not Supported")


LINE = f"{UUID}, NVIDIA H100 80GB HBM3, 580.159.04, 1755, 2619, 1980, 689.12, 700.00, 61, "


def test_smi(no_nvml: None, smi: Path) -> None:
    program(smi, f'echo "$@" > {smi}.asked; echo "{LINE}0x0000000000000024"')
    got = read(UUID.removeprefix("GPU-"))
    assert isinstance(got, Sensors)
    assert (got.uuid, got.name, got.driver, got.source) == (UUID, H100.name, H100.driver, "nvidia-smi")
    assert (got.sm_mhz, got.memory_mhz, got.max_sm_mhz, got.temperature_c) == (1755, 2619, 1980, 61)
    assert (got.power_w, got.power_limit_w, got.reasons) == (689.12, 700.0, H100.reasons)
    asked = Path(f"{smi}.asked").read_text()
    assert f"--id={UUID} " in asked and "--format=csv,noheader,nounits" in asked


def test_smi_does_not_say(no_nvml: None, smi: Path) -> None:
    program(smi, f'echo "{UUID}, NVIDIA X, 580.1, [N/A], 2619, N/A, [Not Supported], [N/A], 61, [N/A]"')
    got = read(0)
    assert isinstance(got, Sensors)
    assert (got.sm_mhz, got.max_sm_mhz, got.power_w, got.power_limit_w, got.reasons) == (None,) * 5
    assert (got.memory_mhz, got.temperature_c) == (2619, 61)


def test_smi_of_an_older_driver(no_nvml: None, smi: Path) -> None:
    program(
        smi,
        f'case "$*" in *clocks_event*) echo "Field \\"clocks_event_reasons.active\\" is not a valid field"; exit 2;; *) echo "{LINE}0x4";; esac',
    )
    got = read(0)
    assert isinstance(got, Sensors)
    assert got.reasons == ("power cap",)


def test_smi_fails(no_nvml: None, smi: Path) -> None:
    program(smi, 'echo "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver" >&2; exit 9')
    got = read(0)
    assert isinstance(got, Absent)
    assert "could not communicate" in got.reason


def test_the_card_that_is_here() -> None:
    got = read(0)
    if isinstance(got, Absent):
        assert got.reason
        pytest.skip(f"no card to read: {got.reason}")
    assert got.uuid.startswith("GPU-") and got.driver[0].isdigit()
    assert got.sm_mhz is None or 0 < got.sm_mhz <= (got.max_sm_mhz or 4000)
    assert got.power_w is None or 1 < got.power_w < 2000
    assert got.temperature_c is None or 5 < got.temperature_c < 120
    by_uuid = sensors.read(got.uuid)
    assert isinstance(by_uuid, Sensors) and by_uuid.uuid == got.uuid
