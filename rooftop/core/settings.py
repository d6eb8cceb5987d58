"""All settings, read from the environment in this one place.

| variable | meaning | default |
|---|---|---|
| `ROOFTOP_CACHE` | folder of compiled kernels | `$XDG_CACHE_HOME/rooftop` or `~/.cache/rooftop` |
| `ROOFTOP_CACHE_MIB` | most that folder may hold before what was longest not used is removed | 2048 |
| `ROOFTOP_RESULTS` | folder of the records that pages and `explain` read | `results/` of the checkout, else the cache folder's `results/` |
| `ROOFTOP_PREDICTIONS` | gains that `diagnose` predicted, and what came | `$XDG_STATE_HOME/rooftop/predictions.jsonl`, else in `~/.local/state` |
| `ROOFTOP_JOBS` | processes that compile at once | number of usable cores |
| `LOCAL_RANK`, `WORLD_SIZE` | which of its processes this is on its host, and how many there are: torchrun sets them | 0, 1 |
| `ROOFTOP_SIMT_MIB` | most memory that one simulation may take | three quarters of the machine's |
| `ROOFTOP_SIMT_PATIENCE` | seconds of CPU time in which simulated threads must get anywhere, or their loop is taken to be endless | 20 |
| `ROOFTOP_SIMT_SECONDS` | seconds of CPU time that one simulation, or one step of building it, may take | 3600 |
| `ROOFTOP_STEP_SECONDS` | seconds in which NVRTC must compile a file of somebody's, and a check must load it, or be through with a case | 300 |
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
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


def is_checkout() -> bool:
    """Whether the package is in its repository, not in site-packages."""
    return (CHECKOUT / "pyproject.toml").is_file() and (CHECKOUT / "rooftop").is_dir()


def load() -> Settings:
    """The settings that the environment gives now.

    Raises ValueError if a variable has an invalid value, OSError if a folder would have to be in a home folder that does not exist."""
    own = os.environ.get("ROOFTOP_CACHE") or (os.environ.get("XDG_CACHE_HOME", "") and Path(os.environ["XDG_CACHE_HOME"]) / "rooftop")
    cache = Path(own) if own else home("ROOFTOP_CACHE") / ".cache" / "rooftop"
    in_checkout = (CHECKOUT / "pyproject.toml").is_file() and (CHECKOUT / "results").is_dir()
    results = os.environ.get("ROOFTOP_RESULTS")
    where = Path(results) if results else (CHECKOUT / "results" if in_checkout else cache / "results")
    jobs_text = os.environ.get("ROOFTOP_JOBS") or str(len(os.sched_getaffinity(0)))
    if not jobs_text.isdigit() or int(jobs_text) < 1:
        raise ValueError(f"ROOFTOP_JOBS is {jobs_text!r}; it must be a whole number of at least 1")
    patience = os.environ.get("ROOFTOP_SIMT_PATIENCE") or "20"
    if not patience.isdigit() or not 1 <= int(patience) <= 1_000_000:
        raise ValueError(f"ROOFTOP_SIMT_PATIENCE is {patience!r}; it must be a whole number of seconds, 1 to 1000000")
    mib = os.environ.get("ROOFTOP_CACHE_MIB") or "2048"
    if not mib.isdigit():
        raise ValueError(f"ROOFTOP_CACHE_MIB is {mib!r}; it must be a whole number of MiB")
    seconds, memory, step = (os.environ.get(f"ROOFTOP_{name}") for name in ("SIMT_SECONDS", "SIMT_MIB", "STEP_SECONDS"))
    for name, text, unit in (("SIMT_SECONDS", seconds, "seconds"), ("SIMT_MIB", memory, "MiB"), ("STEP_SECONDS", step, "seconds")):
        if text and (not text.isdigit() or not 1 <= int(text) <= 10**9):
            raise ValueError(f"ROOFTOP_{name} is {text!r}; it must be a whole number of {unit}, 1 to 1000000000")
    noted = os.environ.get("ROOFTOP_PREDICTIONS")
    predictions = Path(noted) if noted else _state(cache) / "predictions.jsonl"
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4 >> 20
    return Settings(cache, where, int(jobs_text), int(patience), int(mib), predictions, int(seconds or 3600), int(memory or machine), int(step or 300))


def home(instead: str) -> Path:
    """The user's home folder. Raises OSError if there is none, naming the variable that can be set `instead`."""
    try:
        return Path(os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a user that the system does not know, as in a container
        raise OSError(f"this user has no home folder: set HOME, or {instead} to a folder that can be written") from None


def triton_cache() -> Path:
    """The folder of Triton's own cache. Raises like `home`."""
    chosen = os.environ.get("TRITON_CACHE_DIR")
    return Path(chosen) if chosen else Path(os.environ.get("TRITON_HOME") or home("TRITON_CACHE_DIR")) / ".triton" / "cache"


def _state(cache: Path) -> Path:
    """The folder of state files; the cache's own if there is no home folder."""
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or home("XDG_STATE_HOME") / ".local" / "state") / "rooftop"
    except OSError:
        return cache


def torchrun() -> tuple[int, int]:
    """(this process's number on its host, number of processes of the run), as torchrun has set them."""
    return int(os.environ.get("LOCAL_RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


def tool_path(name: str) -> Path | None:
    """An executable on PATH, or None."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        candidate = Path(folder) / name
        if folder and candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    return None


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child process: this process's, with `more`."""
    return {**os.environ, **more}


def bare_environment() -> dict[str, str]:
    """The environment for a child process that may know only where programs and libraries are."""
    return {n: v for n in ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL") if (v := os.environ.get(n)) is not None}


def library_folders() -> list[Path]:
    """Where the system's loader looks for libraries first."""
    return [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]


def without_caching_allocator() -> None:
    """Make every tensor of this process a separate allocation. Torch reads the variable at its first allocation: call this before."""
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
