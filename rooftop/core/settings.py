"""All settings, read from the environment in this one place.

| variable | meaning | default |
|---|---|---|
| `ROOFTOP_CACHE` | folder of compiled kernels | `$XDG_CACHE_HOME/rooftop` or `~/.cache/rooftop` |
| `ROOFTOP_CACHE_MIB` | most that folder may hold before what was longest not used is removed | 2048 |
| `ROOFTOP_RESULTS` | folder of the records that pages and `explain` read | `results/` of the checkout, else the cache folder's `results/` |
| `ROOFTOP_PREDICTIONS` | gains that `diagnose` predicted, and what came | `$XDG_STATE_HOME/rooftop/predictions.jsonl`, else in `~/.local/state` |
| `ROOFTOP_LEARN` | file of what a learner has done | `$XDG_STATE_HOME/rooftop/learn.sqlite`, else in `~/.local/state` |
| `ROOFTOP_BOARD` | board of what `rooftop judge` has judged | `$XDG_STATE_HOME/rooftop/board.sqlite`, else in `~/.local/state` |
| `ROOFTOP_DIARY` | log of what commands found, for `rooftop diary`; `off`: none is kept | `$XDG_STATE_HOME/rooftop/diary.jsonl`, else in `~/.local/state` |
| `ROOFTOP_INVARIANT` | 1: `rooftop.invariant()` is on from the start | 0 |
| `ROOFTOP_JOBS` | processes that compile at once | number of usable cores |
| `LOCAL_RANK`, `WORLD_SIZE` | which of its processes this is on its host, and how many there are: torchrun sets them | 0, 1 |
| `ROOFTOP_SIMT_MIB` | most memory that one simulation may take | three quarters of the machine's |
| `ROOFTOP_SIMT_PATIENCE` | seconds of CPU time in which simulated threads must get anywhere, or their loop is taken to be endless | 20 |
| `ROOFTOP_SIMT_SECONDS` | seconds of CPU time that one simulation, or one step of building it, may take | 3600 |
| `ROOFTOP_STEP_SECONDS` | seconds in which NVRTC must compile a file of somebody's, and its Python must be through with a step: loading, a case, a line | 300 |
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
CHECKOUT = PACKAGE.parent


@dataclass(frozen=True)
class Settings:
    cache: Path
    results: Path
    jobs: int
    patience: int = 20
    cache_mib: int = 2048
    predictions: Path = Path("predictions.jsonl")
    simt_seconds: int = 3600
    simt_mib: int = 0
    step_seconds: int = 300
    learn: Path = Path("learn.sqlite")
    diary: Path | None = None
    board: Path = Path("board.sqlite")


def is_checkout() -> bool:
    """Whether the package is in its repository, not in site-packages."""
    return (CHECKOUT / "pyproject.toml").is_file() and (CHECKOUT / "rooftop").is_dir()


def load() -> Settings:
    """The settings that the environment gives now.

    Raises ValueError if a variable has an invalid value, OSError if a folder would have to be in a home folder that does not exist."""
    own, of_user = os.environ.get("ROOFTOP_CACHE"), os.environ.get("XDG_CACHE_HOME")
    cache = _folder(own) if own else _folder(of_user) / "rooftop" if of_user else home("ROOFTOP_CACHE") / ".cache" / "rooftop"
    in_checkout = (CHECKOUT / "pyproject.toml").is_file() and (CHECKOUT / "results").is_dir()
    results = os.environ.get("ROOFTOP_RESULTS")
    noted = os.environ.get("ROOFTOP_PREDICTIONS")
    diary = os.environ.get("ROOFTOP_DIARY")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4 >> 20
    found = Settings(
        cache=cache,
        results=_folder(results) if results else (CHECKOUT / "results" if in_checkout else cache / "results"),
        jobs=_whole("ROOFTOP_JOBS", len(os.sched_getaffinity(0)), "processes", 1, 10_000),
        patience=_whole("ROOFTOP_SIMT_PATIENCE", 20, "seconds", 1),
        cache_mib=_whole("ROOFTOP_CACHE_MIB", 2048, "MiB", 0),
        predictions=_folder(noted) if noted else _state(cache) / "predictions.jsonl",
        simt_seconds=_whole("ROOFTOP_SIMT_SECONDS", 3600, "seconds", 1),
        simt_mib=_whole("ROOFTOP_SIMT_MIB", machine, "MiB", 1),
        learn=_folder(learnt) if (learnt := os.environ.get("ROOFTOP_LEARN")) else _state(cache) / "learn.sqlite",
        diary=None if diary == "off" else _folder(diary) if diary else _state(cache) / "diary.jsonl",
        board=_folder(board) if (board := os.environ.get("ROOFTOP_BOARD")) else _state(cache) / "board.sqlite",
        step_seconds=_whole("ROOFTOP_STEP_SECONDS", 300, "seconds", 1),
    )
    return replace(found, **{n: min([getattr(found, n), *(w[n] for w in _WITHIN if n in w)]) for w in _WITHIN for n in w})


_WITHIN: list[dict[str, int]] = []


@contextmanager
def within(**limits: int) -> Iterator[None]:
    """Settings that are limits, no larger than these meanwhile, in all threads of this process."""
    _WITHIN.append(limits)
    try:
        yield
    finally:
        _WITHIN.remove(limits)


def _whole(name: str, default: int, unit: str, least: int, most: int = 10**9) -> int:
    """A variable that is a whole number; the limits of the system take every one of this range. Raises ValueError."""
    text = os.environ.get(name) or str(default)
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and least <= int(text) <= most):
        raise ValueError(f"{name} is {_shown(text)}; it must be a whole number of {unit}, {least} to {most}")
    return int(text)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 40 else repr(text[:37]) + "..."


def _folder(text: str) -> Path:
    """A path of a variable; what is relative is so to the folder in which this process is now: the programs that it starts may be in
    another."""
    return Path(os.path.abspath(text))  # noqa: PTH100 - Path.resolve would follow links


def home(instead: str) -> Path:
    """The user's home folder. Raises OSError if there is none, naming the variable that can be set `instead`."""
    try:
        return _folder(os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a user that the system does not know, as in a container
        raise OSError(f"this user has no home folder: set HOME, or {instead} to a folder that can be written") from None


def triton_cache() -> Path:
    """The folder of Triton's own cache. Raises like `home`."""
    chosen, above = os.environ.get("TRITON_CACHE_DIR"), os.environ.get("TRITON_HOME")
    return _folder(chosen) if chosen else (_folder(above) if above else home("TRITON_CACHE_DIR")) / ".triton" / "cache"


def _state(cache: Path) -> Path:
    """The folder of state files; the cache's own if there is no home folder."""
    try:
        chosen = os.environ.get("XDG_STATE_HOME")
        return (_folder(chosen) if chosen else home("XDG_STATE_HOME") / ".local" / "state") / "rooftop"
    except OSError:
        return cache


def torchrun() -> tuple[int, int]:
    """(this process's number on its host, number of processes of the run), as torchrun has set them."""
    return _whole("LOCAL_RANK", 0, "processes", 0), _whole("WORLD_SIZE", 1, "processes", 1)


def invariant() -> bool:
    """Whether `rooftop.invariant()` is on from the start. Raises ValueError."""
    text = os.environ.get("ROOFTOP_INVARIANT") or "0"
    if text not in ("0", "1"):
        raise ValueError(f"ROOFTOP_INVARIANT is {_shown(text)}; it must be 0 or 1")
    return text == "1"


def tool_path(name: str) -> Path | None:
    """An executable on PATH, or None. Folders that this user may not read are passed over, as a shell does."""
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]  # an empty one would be the present folder
    found = shutil.which(name, path=os.pathsep.join(folders)) if "/" not in name else None
    return Path(os.path.abspath(found)) if found else None  # noqa: PTH100


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child process: this process's, with `more`."""
    return {**os.environ, **more}


def python_path() -> str:
    """Where a Python process of rooftop's looks for modules: first in the checkout."""
    return os.pathsep.join([str(CHECKOUT), *([found] if (found := os.environ.get("PYTHONPATH")) else [])])


def bare_environment() -> dict[str, str]:
    """The environment for a child process that may know only where programs and libraries are."""
    return {n: v for n in ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL") if (v := os.environ.get(n)) is not None}


def library_folders() -> list[Path]:
    """Where the system's loader looks for libraries first."""
    return [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]


def without_caching_allocator() -> None:
    """Make every tensor of this process a separate allocation. Torch reads the variable at its first allocation: call this before."""
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
