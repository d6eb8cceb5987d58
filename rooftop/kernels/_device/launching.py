"""Launch options that do not depend on the kernel."""

from __future__ import annotations

from rooftop.core.spec import Device


def chained(device: Device) -> bool:
    """Whether launches may start before the previous one in the stream has ended (programmatic dependent launch): docs/head.md has the rules."""
    return device.arch >= 90
