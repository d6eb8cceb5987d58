"""A Python file with Triton kernels, run as it is, without a GPU: its own host code makes the tensors and launches; every launch is
interpreted and watched.

An autotuned kernel runs with each of its configs, on copies of its tensors but for the last; heuristics and hooks run as they are."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from rooftop.core import child, settings
from rooftop.lab.interpret import imports, interpreter
from rooftop.lab.interpret.memory import StaticAssert
from rooftop.lab.interpret.repeats import Repeats

OPTIONS = (
    "num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion", "launch_pdl", "launch_cooperative_grid", "ir_override", "debug"
)
_ARGUMENTS = re.compile(r"\bsys\.argv\b|\bargparse\b|\bclick\.|\bfire\.Fire\b")  # what reads the words of a command line
WIDTH = 400  # characters of a launch's arguments that are shown


class HostError(RuntimeError):
    """What Triton's own launch would refuse."""


class Over(BaseException):
    """The time of the whole file is over."""


@dataclass
class Launched:
    """One kind of launch. `values`: the arguments by name as the first of the kind had them; `options`: num_warps and the like; `config`:
    of an autotuned kernel. `programs`: how many of `whole` ran; bytes are those of the lanes. `repeated`: how many of the `times` found
    memory as one before, and were left out."""

    kernel: Any
    grid: tuple[int, ...]
    values: dict[str, Any]
    options: dict[str, Any]
    config: str = ""
    times: int = 0
    repeated: int = 0
    programs: int = 0
    loaded: int = 0
    stored: int = 0
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return str(self.kernel.__name__)

    @property
    def whole(self) -> int:
        total = 1
        for n in self.grid:
            total *= n
        return total

    @property
    def cut(self) -> bool:
        """Whether not every program of it ran."""
        return self.programs != self.whole * (self.times - self.repeated)

    def __str__(self) -> str:
        given = ", ".join(f"{n}={shown(v)}" for n, v in self.values.items())
        given = given if len(given) <= WIDTH else given[: WIDTH - 3] + "..."
        said = f"{self.name}[{'x'.join(map(str, self.grid))}]({given})"
        said += f", config {self.config}" if self.config else ""
        said += f", {self.times} times" if self.times > 1 else ""
        said += f", {self.repeated} of them the same again and left out" if self.repeated else ""
        ran = f"{self.programs} of {self.whole * (self.times - self.repeated)} programs ran, " if self.cut else ""
        return f"{said}: {ran}{_bytes(self.loaded)} loaded, {_bytes(self.stored)} stored by lanes" if self.programs else f"{said}: not run"

    def to_json(self) -> dict[str, Any]:
        return {"kernel": self.name, "grid": list(self.grid), "arguments": {n: shown(v) for n, v in self.values.items()},
                "options": self.options, "config": self.config, "times": self.times, "repeated": self.repeated, "programs": self.programs,
                "loaded": self.loaded, "stored": self.stored}


def shown(value: Any) -> str:
    """An argument of a launch in a word: `f32 64x64`, 3, 0.5."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{kind} {'x'.join(map(str, value.shape)) or 'scalar'}"
    if hasattr(value, "block_shape"):
        return f"descriptor of {shown(value.base)} in blocks of {'x'.join(map(str, value.block_shape))}"
    return f"{value:.6g}" if isinstance(value, float) else str(getattr(value, "value", value))[:80]


def _bytes(n: int) -> str:
    return f"{n / 1e6:.1f} MB" if n >= 1e6 else f"{n / 1e3:.1f} kB" if n >= 1000 else f"{n} B"


@dataclass
class Watch:
    """What becomes of launches: interpreted, at most `seconds` each, the file's own code with them at most `total`; or only noted (`run` is
    False).

    `choice`: of autotuned kernels only the config of that number, modulo how many there are; None: each of them the first time, then the
    last. `configs`: the largest number that a kernel had. `over`: the time of the whole file ended it, half of it where nothing was
    launched (the rest is for its functions), or its memory; `ended`: which."""

    run: bool = True
    seconds: float = 10.0
    total: float = 120.0
    choice: int | None = None
    launches: dict[Any, Launched] = field(default_factory=dict)
    configs: int = 1
    spent: float = 0.0
    config: str = ""
    devices: Any = None
    over: bool = False
    ended: str = ""
    dtype: str = "float32"  # of tensors of ours
    _most: int = field(default_factory=lambda: settings.load().simt_mib << 19)  # bytes: half of what the process may take
    _began: float = 0.0
    _told: float = 0.0
    _tried: set[Any] = field(default_factory=set)
    _repeats: Repeats = field(default_factory=Repeats)

    def called(self) -> None:
        """Before each function of torch: ends the file when its time is over."""
        now = time.monotonic()
        self._began = self._began or now
        if now - self._told > 5:
            self._told = now
            child.alive()
        if now - self._began > (self.total if self.launches else self.total / 2):
            self._end(f"in {self.total / 2:.0f} s")
        if child.memory(os.getpid()) > self._most:
            self._end(f"in {self._most >> 20} MiB, which its host code takes,")

    def _end(self, within: str) -> None:
        self.over, self.ended = True, f"{within} it launched nothing"
        raise Over

    def again(self) -> None:
        """Half of the time anew."""
        self.over, self._began, self.total = False, 0.0, self.total / 2

    @property
    def cut(self) -> bool:
        """Whether a launch has not run whole, so that what it computed says nothing."""
        return self.over or any(x.cut for x in self.launches.values()) or not self.run

    def launched(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any, warmup: bool) -> Any:
        """In place of the launch of a `@triton.jit` function."""
        names = list(kernel.arg_names)
        options = {n: v for n, v in kwargs.items() if n not in names}
        if unknown := [n for n in options if n not in OPTIONS]:
            raise HostError(f"{kernel.__name__} takes {', '.join(names)}; unknown is {unknown[0]!r}")
        for hook in kernel.pre_run_hooks:
            hook(*args, **kwargs)
        try:
            bound = kernel.signature.bind(*args, **{n: v for n, v in kwargs.items() if n in names})
        except TypeError as error:
            raise HostError(f"{kernel.__name__}: {error}") from None
        bound.apply_defaults()
        values = dict(bound.arguments)
        if grid is None:
            return _Compiled(self, kernel, values, options)
        sizes = grid({**values, **options}) if callable(grid) else grid
        if not isinstance(sizes, tuple | list):
            raise HostError(f"the grid of {kernel.__name__} is {sizes!r}; it must be a tuple of one to three numbers")
        if not warmup:
            self._interpret(kernel, values, tuple(map(int, sizes)), options)
        return _Compiled(self, kernel, values, options)

    def _interpret(self, kernel: Any, values: dict[str, Any], grid: tuple[int, ...], options: dict[str, Any]) -> None:
        import torch

        with torch._C.DisableTorchFunction():
            for name, value in values.items():
                if type(value).__module__ == "numpy":
                    raise HostError(
                        f"{kernel.__name__}: the argument {name} is numpy's ({shown(value)}): Triton takes tensors and Python's numbers"
                    )
                if hasattr(value, "data_ptr") and self.devices is not None and not self.devices.on_gpu(value):
                    raise HostError(f"{kernel.__name__}: the argument {name} is a tensor of the CPU ({shown(value)}): move it to the GPU")
            key = kernel, grid, self.config, tuple((n, _kind(v)) for n, v in values.items()), tuple(sorted(options.items(), key=str))
            found = self.launches.setdefault(key, Launched(kernel, grid, dict(values), options, self.config))
            found.times += 1
            if not self.run or self.spent >= self.total:
                return
            before = self._repeats.before(key, values)
            if before is not None and before.again():
                found.repeated += 1
                return
            began = time.thread_time()
            try:
                plain = {n: getattr(v, "value", v) if type(v).__name__ == "constexpr" else v for n, v in values.items()}
                limit = min(self.seconds, self.total - self.spent)
                done = interpreter.run(kernel, grid, plain, max_programs=1 << 40, num_warps=options.get("num_warps", 4), seconds=limit)
            finally:
                took = time.thread_time() - began
                found.seconds += took
                self.spent += took
                child.alive()
            found.programs += done.programs
            found.loaded += done.loaded
            found.stored += done.stored
            if before is not None and done.programs == found.whole:
                before.left()

    def tuned(self, tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """In place of the launch of an autotuned function."""
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        chosen = list(tuner.prune_configs(kwargs)) if len(tuner.configs) > 1 else list(tuner.configs)
        self.configs = max(self.configs, len(chosen))
        kind = tuner, tuple(_kind(v) for v in (*args, *(v for n, v in kwargs.items() if n in tuner.arg_names)))
        if self.choice is not None:
            chosen = [chosen[self.choice % len(chosen)]]
        elif self.run and (kind in self._tried or self.spent > self.total / 4):
            chosen = chosen[-1:]
        self._tried.add(kind)

        def run(config: Any, own: tuple[Any, ...], more: dict[str, Any], last: bool) -> Any:
            every = {**dict(zip(tuner.arg_names, own, strict=False)), **more, **config.all_kwargs()}
            tuner.best_config = config
            before, self.config, noted = self.config, _named(config), dict(self.launches)
            try:
                tuner.pre_hook(every, reset_only=last)
                if config.pre_hook is not None:
                    config.pre_hook(every)
                return tuner.fn.run(*own, **more, **config.all_kwargs())
            except StaticAssert:
                self.launches = noted
                raise
            finally:
                self.config = before

        for config in chosen[:-1]:
            with contextlib.suppress(StaticAssert):  # as Triton does, which tunes with those that compile
                run(config, tuple(map(_copy, args)), {n: _copy(v) for n, v in kwargs.items()}, False)
        others = [c for c in tuner.configs if c is not chosen[-1]]
        for i, config in enumerate([chosen[-1], *others]):
            try:
                made = run(config, args, kwargs, True)
                break
            except StaticAssert:
                if i == len(others):
                    raise
        tuner.nargs = None
        return made


def _named(config: Any) -> str:
    """A config by its constants, and the options that it gives."""
    said = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    said |= {n: v for n in ("num_ctas", "maxnreg") if (v := getattr(config, n, None)) not in (None, 1)}
    return " ".join(f"{n}={shown(v)}" for n, v in said.items())


def _copy(value: Any) -> Any:
    return value.clone() if hasattr(value, "data_ptr") and hasattr(value, "clone") else value


def _kind(value: Any) -> Any:
    if hasattr(value, "data_ptr"):
        return str(value.dtype), tuple(value.shape), tuple(value.stride())
    return shown(value)


class _NoCode(dict[str, str]):
    def __missing__(self, kind: str) -> str:
        raise interpreter.NotSimulated(f"not simulated: the {kind} of a compiled kernel, which is not compiled here")


class _Compiled:
    """What a launch returns: a kernel that can be launched again, with figures that nobody has measured; none is 0, since programs divide by
    them."""

    n_regs, n_spills = 32, 0
    asm: Mapping[str, str] = _NoCode()

    def __init__(self, watch: Watch, kernel: Any, values: dict[str, Any], options: dict[str, Any]) -> None:
        self.metadata = SimpleNamespace(shared=1024, num_warps=options.get("num_warps", 4), name=kernel.__name__)
        self._again = watch, kernel, values, options

    def _init_handles(self) -> None: ...

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        watch, kernel, values, options = self._again
        constants = {p.name: values[p.name] for p in kernel.params if p.is_constexpr}

        def launch(*args: Any, **_: Any) -> None:
            names = [n for n in kernel.arg_names if n not in constants] if len(args) != len(kernel.arg_names) else kernel.arg_names
            watch.launched(kernel, (), {**constants, **dict(zip(names, args, strict=False)), **options}, grid, False)

        return launch


@dataclass(frozen=True)
class Finding:
    """`kind`: fault (of a kernel), launch (what Triton's own launch refuses), host (of the Python around it), not-simulated, absent (a
    module that is not installed), refused (assumed arguments that it does not take). `line`: of the file's, where it is the Python's;
    `outside`: an access outside a tensor, which may be the fault of whoever chose the tensors; `module`: what is not installed."""

    kind: str
    text: str
    line: int = 0
    outside: bool = False
    module: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Ran:
    """A file that has run, or as far as it came. `assumed`: its kernels alone were launched, with arguments of ours; `notes`: of which."""

    watch: Watch
    findings: tuple[Finding, ...]
    names: Mapping[str, Any]
    assumed: bool = False
    notes: tuple[str, ...] = ()

    @property
    def launches(self) -> list[Launched]:
        return list(self.watch.launches.values())


def program(path: Path, args: Sequence[str] = (), watch: Watch | None = None) -> Ran:
    """Run a file as `python FILE ARGS`, with a GPU that is not there. What it prints goes to the standard error stream.

    A module that is not installed and that nothing does without is missed where it is used, not where it is imported."""
    watch = watch or Watch()
    with imports.without() as absent:
        while True:
            with standing_in(watch):
                made, findings = run_file(path, watch, "__main__", args)
            wanted = [f.module for f in findings if f.module]
            if wanted and imports.above(path, wanted[0]):
                continue
            if not wanted or not absent(wanted[0]):
                return Ran(watch, findings, vars(made))


@contextlib.contextmanager
def standing_in(watch: Watch) -> Iterator[None]:
    from rooftop.lab.interpret import stand_in

    with stand_in.gpu(watch.launched, watch.tuned, watch.called) as devices:
        watch.devices = devices
        yield


def run_file(path: Path, watch: Watch, name: str, args: Sequence[str] = ()) -> tuple[ModuleType, tuple[Finding, ...]]:
    """Run a file as the module `name`, beside its own modules; within `standing_in`. What it has defined until an error stays."""
    made = ModuleType(name)
    made.__file__ = str(path)
    before = sys.argv, list(sys.path), sys.modules.get(name)
    made.__package__ = imports.package_of(path)
    sys.argv, sys.modules[name] = [str(path), *args], made
    sys.path.insert(0, str(path.resolve().parent))

    def run() -> None:
        exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), vars(made))

    try:
        with contextlib.redirect_stdout(sys.stderr if watch.run else io.StringIO()):
            return made, guarded(path, run, watch)
    finally:
        sys.argv, sys.path[:] = before[:2]
        if before[2] is not None:
            sys.modules[name] = before[2]


def guarded(path: Path, run: Callable[[], Any], watch: Watch) -> tuple[Finding, ...]:
    """Run it: what it raises is a finding. What its own code asserts says nothing once a launch was cut short or only noted."""
    try:
        run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return tuple(f for f in [finding(path, error, watch)] if f is not None)
    return ()


def finding(path: Path, error: BaseException, watch: Watch) -> Finding | None:
    """What an error of a file's is."""
    if isinstance(error, interpreter.NotSimulated):
        return Finding("not-simulated", str(error))
    if isinstance(error, StaticAssert):  # the file's own check of its constants
        return Finding("host", str(error))
    if isinstance(error, interpreter.InterpretError):
        return Finding("fault", str(error), outside=isinstance(error, interpreter.OutOfBounds))
    if isinstance(error, ModuleNotFoundError) and error.name:
        return Finding("absent", f"{place(path, error)}: the module {error.name} is not installed", module=error.name)
    if isinstance(error, ImportError) and error.name:  # of another version than the one that is here
        return Finding("absent", f"{place(path, error)}: {error}")
    if isinstance(error, Over) or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return None
    if watch.cut and watch.launches and not isinstance(error, HostError):
        return None
    if isinstance(error, SystemExit) and not watch.launches and len(sys.argv) == 1 and _ARGUMENTS.search(path.read_text(errors="replace")):
        return Finding("refused", f"{place(path, error)}: it ends the process ({error.code}) before any launch: --args 'WORD WORD' gives it arguments")
    ends = "it ends the process: " if isinstance(error, SystemExit) else ""
    where, said = place(path, error), " ".join(str(error).split())[:400]
    line = re.match(r":(\d+)", where.removeprefix(str(path)))
    own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    if own and not isinstance(error, SystemExit) and re.match(r"from\b|import\b", (own[-1].line or "").lstrip()):  # of a module that may want more than is here
        return Finding("absent", f"{path}:{own[-1].lineno}: {(own[-1].line or '').strip()}: {type(error).__name__}: {said}")
    if isinstance(error, AssertionError) and any(map(_tf32, watch.launches.values())):
        said += "; tl.dot multiplies float32 in tf32 on this card, with 10 bits: input_precision=\"ieee\" is exact"
    kind, named = ("launch", "") if isinstance(error, HostError) else ("host", f"{ends}{type(error).__name__}: ")
    return Finding(kind, f"{where}: {named}{said}", int(line[1]) if line else 0)


def _tf32(launched: Launched) -> bool:
    """Whether a kernel may multiply float32 with fewer bits."""
    source = str(launched.kernel.raw_src if hasattr(launched.kernel, "raw_src") else "")
    exact = "ieee" in source or "allow_tf32=False" in source
    return "tl.dot(" in source and not exact and any(str(getattr(v, "dtype", "")) == "torch.float32" for v in launched.values.values())


def place(path: Path, error: BaseException) -> str:
    """File and line of the innermost frame in the user's own files."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{path}:{error.lineno}"
    folder = str(path.resolve().parent)
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if str(Path(f.filename).resolve()).startswith(folder)
        and "site-packages" not in f.filename
    ]
    if not frames:
        return str(path)
    last = frames[-1]
    where = str(path) if Path(last.filename).resolve() == path.resolve() else last.filename
    line = inspect.cleandoc(last.line or "").splitlines()
    return f"{where}:{last.lineno}: {line[0][:100]}" if line else f"{where}:{last.lineno}"
