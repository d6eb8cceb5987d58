"""Where cuTile's kernels take `ct` from. In the process that compiles them it is `cuda.tile`; everywhere else a name that nothing may be asked of,
so that their files import without the language."""

from __future__ import annotations

from typing import Any


class Absent:
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"ct.{name}: cuda.tile is there only while a kernel is compiled; use it inside kernels and in annotations alone")


ct: Any = Absent()
