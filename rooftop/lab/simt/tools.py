"""What binutils say of a file that was made of somebody's source: confined like the compiler, and within a limit."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rooftop.core import sandbox
from rooftop.core.compile import CompileError

SECONDS, MEMORY = 120, 4 << 30  # that one of them may take; bytes of addresses


def said(tool: Path, file: Path, *options: str, asked: str = "") -> str:
    """What `tool` prints of `file`. `asked`: its standard input. Raises CompileError where it fails, or does not come to an end."""
    command = sandbox.tool(
        [str(tool), *options, str(file.absolute())], readable=[file.absolute().parent], writable=(), seconds=SECONDS, memory=MEMORY
    )
    try:
        return subprocess.run(command, input=asked, capture_output=True, text=True, check=True, timeout=2 * SECONDS).stdout
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        raise CompileError(f"{file.name}: {tool.name} says nothing of it: {error}") from None
