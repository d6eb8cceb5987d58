"""One kernel of a `.cu`, launched as the command line says: `--kernel --grid --block --arg`."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.lab.cli.app import echo

if TYPE_CHECKING:
    from rooftop.lab.simt import Report
    from rooftop.lab.simt.launching import Mode


@dataclass(frozen=True)
class Ordinary:
    """What the command line says of a launch of an ordinary `.cu`."""

    kernel: str | None
    grid: str | None
    block: str | None
    args: tuple[str, ...]
    shared: int
    cluster: str | None
    cooperative: bool

    @property
    def given(self) -> bool:
        return self != Ordinary(None, None, None, (), 0, None, False)

    @property
    def launches(self) -> bool:
        """Whether it says how a kernel is launched, and not only which, or with what a function is called."""
        return replace(self, kernel=None, args=()).given or bool(self.kernel and self.args)


def unusual(path: Path, kernel: str) -> bool:
    """Whether a kernel is none that `ordinary` finds in the file itself: of a header, made by a macro, one of several of its name, or of a
    file that wants CUB, which programs alone have."""
    from rooftop.core import head_text
    from rooftop.lab.simt import ordinary, program_build

    base, text = kernel.partition("<")[0].strip(), head_text.read(path)

    def there(text: str) -> int:
        return sum(base in (k.name, k.name.rpartition("::")[2]) for k in ordinary.every_kernel(text))

    if re.search(r"^[ \t]*#[ \t]*include[ \t]*<cub/", text, re.M):
        return True
    makers = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\([^)]*\)(?:[^\n]|\\\n)*__global__", text, re.M)
    made = any(re.search(rf"^[ \t]*{maker}\s*\([^)]*\b{re.escape(base)}\b", text, re.M) for maker in makers)
    return there(text) > 1 or (there(text) == 0 and (made or any(map(there, program_build.read(path).texts.values()))))


def run(path: Path, own: Ordinary, blocks: int | None, seed: int, schedules: int, check: bool) -> tuple[
    str, dict[str, str], Report, Report | None
]:
    """One kernel of a file as it stands."""
    from rooftop.lab.simt import arguments, ordinary
    from rooftop.lab.simt import run as running

    text, _, folders = running.source_of(path)
    kernel, entry = ordinary.choose(text, str(path), own.kernel)
    grid, block = extents("--grid", own.grid, kernel), extents("--block", own.block, kernel)
    ordinary.split(kernel, own.args)  # what is wrong with them is said before anything is built
    build_ahead()
    job = arguments.prepare(text, str(path), folders, kernel, entry, own.args, seed)
    launch = job.launch(grid, block, extents("--cluster", own.cluster, kernel) if own.cluster else (), own.shared, own.cooperative)

    def made(mode: Mode) -> Report:
        memory, uninitialised = job.memory()
        return running.run_launches(
            text, str(path), [launch], memory, uninitialised=uninitialised, mode=mode, seed=seed, schedules=schedules, blocks=blocks,
            folders=folders,
            values=job.values,
        )

    counted, checked = runs(made, check)
    return f"{path}, {entry}<<<{own.grid}, {own.block}>>>", {str(path): text}, counted, checked


def runs(run: Callable[[Mode], Report], check: bool) -> tuple[Report, Report | None]:
    """The counted run and the checked one, which comes first: what does not end in it would not end while it is counted either, and is
    not."""
    build_ahead()
    checked = run("check") if check else None
    if checked is not None and any(f.kind in ("deadlock", "not-simulated") for f in checked.findings):
        return checked, checked
    return run("count"), checked


def build_ahead() -> None:
    """Build what all simulations share while the source is compiled; whoever needs it first waits for it, and says why it cannot be
    built."""
    from rooftop.lab.simt import build

    build.progress = lambda text: echo(text, err=True)

    def build_it() -> None:
        with contextlib.suppress(Exception):
            build.engine("check", "count")

    threading.Thread(target=build_it, daemon=True).start()


def extents(option: str, text: str | None, kernel: object) -> tuple[int, ...]:
    if text is None:
        raise ValueError(f"{kernel}: give its launch, as in --grid 4 --block 256 ({option} is missing)")
    numbers = text.replace(",", "x").split("x")
    if not 1 <= len(numbers) <= 3 or not all(n.strip().isdigit() and int(n) > 0 for n in numbers):
        raise ValueError(f"{option} {text}: it is one to three whole numbers of 1 or more, as in {option} 4x2")
    return tuple(map(int, numbers))


def launch_of(kernel: str | None, grid: str | None, block: str | None, shared: int, cooperative: bool = False) -> dict[str, Any] | None:
    """The launch that the options give, for `program.kernel_of`; None where none is. Raises ValueError where one of them is missing."""
    if kernel is None:
        for option, said in (("--grid", grid), ("--block", block), ("--shared", shared)):
            if said:
                raise ValueError(f"{option} {said}: it goes with --kernel, which says what is launched")
        return None
    blocks, threads = extents("--grid", grid, kernel), extents("--block", block, kernel)
    return {"entry": kernel, "grid": blocks, "block": threads, "shared": shared, "cooperative": cooperative}
