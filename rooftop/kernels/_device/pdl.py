"""Launch options that do not depend on the kernel."""

from __future__ import annotations

from rooftop.core.spec import Device


def chained(device: Device) -> bool:
    """Whether kernels are launched by programmatic dependent launch, before the preceding kernel in the stream has completed: docs/head.md has the rules."""
    return device.arch >= 90
