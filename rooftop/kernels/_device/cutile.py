"""Where the cuTile kernels import `ct` from. In the process that compiles them it is `cuda.tile`; elsewhere a placeholder without
attributes, so that the files can be imported without the language."""

from __future__ import annotations

from typing import Any

from rooftop.core.backends.present import language


class Absent:
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"ct.{name}: cuda.tile is there only while a kernel is compiled; use it inside kernels and in annotations alone"
        )


ct: Any = language("ct", Absent())
