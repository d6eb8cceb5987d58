"""Clocks, power, temperature and what holds the clocks back, read before and after a measurement.

Read through NVML where nvidia-ml-py is installed, else through `nvidia-smi`, which reads the same. Nothing is ever
set. Reading never raises: where nothing can be read the answer is `Absent`, with the reason.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from rooftop.core import settings

# Bits of nvmlClocksEventReasons in NVML's nvml.h ("throttle reasons" before driver 535).
REASONS = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}


@dataclass(frozen=True, slots=True)
class Sensors:
    """One reading of one card. None: the card or its driver does not say."""

    uuid: str  # "GPU-..."
    name: str
    driver: str  # version
    sm_mhz: int | None
    memory_mhz: int | None
    max_sm_mhz: int | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None
    reasons: tuple[str, ...] | None  # what holds the clocks back (values of REASONS); () when nothing does
    source: str  # "NVML" or "nvidia-smi"

    @property
    def slowed(self) -> tuple[str, ...]:
        """The reasons that can spoil a measurement: all but idleness."""
        return tuple(r for r in self.reasons or () if r != "idle")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Absent:
    """Nothing could be read, and why."""

    reason: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read(device: int | str = 0) -> Sensors | Absent:
    """The sensors of one card, by the driver's index or by UUID (with or without `GPU-`). Never raises.

    The driver's index is torch's only where every card is visible to torch and in bus order: pass the UUID,
    `str(torch.cuda.get_device_properties(i).uuid)`, to be sure.
    """
    try:
        nvml = _nvml()
        if isinstance(nvml, ModuleType):
            return _from_nvml(nvml, device)
        smi = _from_smi(device)
        return smi if isinstance(smi, Sensors) else Absent(f"{nvml}; {smi.reason}")
    except Exception as error:
        return Absent(f"{type(error).__name__}: {error}")


def told(device: int | str = 0) -> dict[str, Any]:
    """What `read` finds, as records have it."""
    found = read(device)
    return dict(found.to_json()) if isinstance(found, Sensors) else {"absent": str(found)}


def _nvml() -> ModuleType | str:
    """The NVML binding, initialised, or why there is none. It counts its users, so that asking again costs nothing."""
    try:
        import pynvml
    except ImportError as error:
        return f"nvidia-ml-py is not installed ({error})"
    try:
        pynvml.nvmlInit()
    except Exception as error:  # NVMLError_LibraryNotFound, NVMLError_DriverNotLoaded, ...
        return f"NVML cannot be used ({error})"
    return pynvml


def _from_nvml(nvml: ModuleType, device: int | str) -> Sensors | Absent:
    try:
        if isinstance(device, str):
            handle = nvml.nvmlDeviceGetHandleByUUID(_uuid(device))
        else:
            handle = nvml.nvmlDeviceGetHandleByIndex(device)
    except Exception as error:
        return Absent(f"NVML has no device {device!r} ({error}); it sees {nvml.nvmlDeviceGetCount()}")
    mask = _asked(
        lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    )
    power = _asked(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    limit = _asked(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    return Sensors(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        driver=_text(nvml.nvmlSystemGetDriverVersion()),
        sm_mhz=_asked(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        memory_mhz=_asked(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        max_sm_mhz=_asked(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        power_w=None if power is None else power / 1000,  # NVML counts milliwatts
        power_limit_w=None if limit is None else limit / 1000,
        temperature_c=_asked(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        reasons=None if mask is None else _reasons(mask),
        source="NVML",
    )


def _from_smi(device: int | str) -> Sensors | Absent:
    program = settings.tool_path("nvidia-smi")
    if program is None:
        return Absent("nvidia-smi is not in PATH")
    fields = "uuid,name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,enforced.power.limit,temperature.gpu"
    said = ""
    for reasons in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):  # since driver 535, before
        command = [
            str(program),
            f"--id={_uuid(device) if isinstance(device, str) else device}",
            f"--query-gpu={fields},{reasons}",
            "--format=csv,noheader,nounits",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20)
        except (OSError, subprocess.TimeoutExpired) as error:
            return Absent(f"nvidia-smi: {error}")
        values = [v.strip() for v in done.stdout.strip().split(",")]
        if done.returncode == 0 and len(values) == 10:
            break
        said = said or (done.stdout + done.stderr).strip()
    else:
        return Absent(f"nvidia-smi: {said or 'no answer'}")
    mask = _number(values[9])
    whole = [None if (n := _number(v)) is None else round(n) for v in values]
    return Sensors(
        uuid=values[0],
        name=values[1],
        driver=values[2],
        sm_mhz=whole[3],
        memory_mhz=whole[4],
        max_sm_mhz=whole[5],
        power_w=_number(values[6]),
        power_limit_w=_number(values[7]),
        temperature_c=whole[8],
        reasons=None if mask is None else _reasons(int(mask)),
        source="nvidia-smi",
    )


def _asked(*questions: Callable[[], int]) -> int | None:
    """The first answer; None where the card or the binding has none (`Not Supported`, a function not yet there)."""
    for question in questions:
        try:
            return int(question())
        except Exception:
            continue
    return None


def _number(text: str) -> float | None:
    """A number as nvidia-smi writes it, bit masks in hexadecimal; None for `[N/A]` and its like."""
    try:
        return float(int(text, 16)) if text.lower().startswith("0x") else float(text)
    except ValueError:
        return None


def _reasons(mask: int) -> tuple[str, ...]:
    known = tuple(name for bit, name in REASONS.items() if mask & bit)
    rest = mask & ~sum(REASONS)
    return (*known, f"unknown {rest:#x}") if rest else known


def _uuid(text: str) -> str:
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
