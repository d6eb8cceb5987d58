"""How kernels are launched, whatever they compute."""

from __future__ import annotations

from rooftop.core.spec import Device


def chained(device: Device) -> bool:
    """Whether launches may begin before the one before them in the stream has ended (programmatic dependent launch): docs/head.md has the rules."""
    return device.arch >= 90
