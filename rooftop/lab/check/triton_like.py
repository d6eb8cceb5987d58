"""A function of a Python file against a function of torch: `rooftop check my.py:softmax --like torch.softmax`. Its Triton kernels are
interpreted.

It is called at several sizes and dtypes, and with each config of an autotuned kernel. What it returns, or the tensors that it changes, are
compared with what the reference makes of the others."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core.backends.python_files import LOADED
from rooftop.lab.check import like as likes
from rooftop.lab.check.like import Compared
from rooftop.lab.interpret import host, wrappers
from rooftop.lab.interpret.host import Finding, Launched, Watch

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("float32", "float16")
TYPES = re.compile(r"must be (?:the )?same dtype|must have the same dtype|invalid operands of type|[Mm]ismatched type")  # Triton's errors
MOST_CONFIGS = 16  # of an autotuned kernel that are tried


@dataclass
class Judged:
    """What came of the calls. `called`: how many came to a result; `refused`: what the file's own checks say of calls that they do not
    take; `ended`: what ended the file's own code where it was loaded, after the function was defined."""

    compared: list[Compared] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    ended: list[Finding] = field(default_factory=list)
    launches: list[Launched] = field(default_factory=list)
    configs: int = 1
    called: int = 0

    @property
    def right(self) -> bool:
        return bool(self.compared) and all(c.right for c in self.compared) and not self.findings


def _line(refusal: str) -> int:
    """Where in the file a call was refused: the later, the further it came."""
    found = re.search(r"\.py:(\d+)", refusal)
    return int(found[1]) if found else 0


def compared(path: Path, word: str, like: str, own: Mapping[str, Any], seed: int) -> Judged:
    """`word`: the function, or empty for the one that launches the file's kernels; `own`: its arguments by name.

    Raises ValueError where nothing can be called."""
    said = Judged()
    watch = Watch(choice=0, seconds=2.0, total=30.0)
    with host.standing_in(watch):
        module, failed = host.run_file(path, watch, f"{LOADED}{path.stem}")
    names = vars(module)
    if failed and word.partition(".")[0] not in names:
        said.findings += failed
        return said
    said.ended += failed
    function, word = chosen(names, word, path)
    reference = likes.reference_of(like)
    ours, theirs = wrappers.agreed(function, reference)
    theirs = {n: v for n, v in theirs.items() if not set(ours) & set(own)}
    trial = _Trial(
        path, function, word, _standing(reference, function, theirs), like, {**(ours if theirs else {}), **own}, seed, said, theirs,
        "reduction" in wrappers.takes(reference),
    )
    for dtype in DTYPES if not own else DTYPES[:1]:
        for sizes in wrappers.SIZES if not own else wrappers.SIZES[:1]:
            choice = 0
            while choice < min(said.configs, MOST_CONFIGS) and (choice == 0 or (dtype == DTYPES[0] and sizes is wrappers.SIZES[0])):
                watch = Watch(choice=choice)
                trial.call(sizes, dtype, watch)
                said.configs = max(said.configs, watch.configs)
                said.launches += watch.launches.values()
                choice += 1
    if any(c.right for c in said.compared):  # right where its types fit: it is not for those that do not
        said.refused += [f.text for f in said.findings if TYPES.search(f.text)]
        said.findings = [f for f in said.findings if not TYPES.search(f.text)]
    if not said.compared and not said.findings:
        why = max(said.refused, key=_line, default="no tensors are known that both take")
        raise ValueError(f"{path}: {word} and {like} were not called together: {why}; --arg NAME=f32:48x40 gives its arguments")
    return said


def _standing(reference: Callable[..., Any], function: Callable[..., Any], given: Mapping[str, Any]) -> Callable[..., Any]:
    """The reference, with the GPU that is not there, with the defaults of the function that both have by name (eps), and what is
    `given`."""
    try:
        takes = inspect.signature(reference).parameters
        shared = {
            n: p.default for n, p in inspect.signature(function).parameters.items() if n in takes and isinstance(p.default, int | float)
        }
    except (TypeError, ValueError):  # of a builtin
        shared = {}

    def called(*args: Any, **kwargs: Any) -> Any:
        with host.standing_in(Watch(choice=0)):
            return reference(*args, **{**shared, **given, **kwargs})

    return called


def chosen(names: Mapping[str, Any], word: str, path: Path) -> tuple[Callable[..., Any], str]:
    """The function that is meant. Raises ValueError where there are none, or several."""
    if word:
        found = wrappers.resolve(names, word, path)
        if word in wrappers.kernels(names):
            raise ValueError(f"{path}: {word} is a kernel; name the function that launches it, or rooftop simt {path}:{word}")
        return found, word
    listed = wrappers.functions(names, str(names.get("__name__", "")))
    if not listed:
        raise ValueError(f"{path}: no function of it launches a Triton kernel")
    if len(listed) > 1:
        raise ValueError(
            f"{path} has {len(listed)} functions that launch kernels: {', '.join(listed)}; name one: {path}:{next(iter(listed))}"
        )
    (name, function), *_ = listed.items()
    return function, name


@dataclass
class _Trial:
    """Calls of a function beside the reference. `families`: the numbers of the ways to make its arguments that are left; None before any is
    known. `given`: what the reference is given by name; `reduces`: it may leave a loss as it is or take its mean, and does as the
    function."""

    path: Path
    function: Callable[..., Any]
    word: str
    reference: Callable[..., Any]
    like: str
    own: Mapping[str, Any]
    seed: int
    said: Judged
    given: dict[str, Any] = field(default_factory=dict)
    reduces: bool = False
    families: Sequence[int] | None = None

    def call(self, sizes: Mapping[str, int], dtype: str, watch: Watch) -> None:
        """One call, with the first arguments that the reference takes."""
        with host.standing_in(watch):
            listed = list(wrappers.calls(self.function, self.own, self.seed, sizes, dtype))
        refusal = ""
        for number in self.families if self.families is not None else range(len(listed)):
            values = listed[number]
            before = {n: v.clone() for n, v in values.items() if hasattr(v, "data_ptr")}
            if (inputs := _inputs(self.reference, self.like, before)) is None:
                continue
            watch.launches.clear()
            outs: list[Any] = []
            with host.standing_in(watch):
                failed = host.guarded(self.path, lambda values=values, outs=outs: outs.append(self.function(*values.values())), watch)  # type: ignore[misc]
            if failed and failed[0].kind == "host":
                refusal = max(refusal, failed[0].text, key=_line)
                continue
            self.families = self.families or [number]
            if failed:
                shown = ", ".join(f"{n}: {host.shown(v)}" for n, v in values.items())
                text = f"{self.word}({shown}): {failed[0]}"
                if text not in [f.text for f in self.said.findings]:
                    self.said.findings.append(Finding(failed[0].kind, text))
            else:
                self._judge(values, before, inputs, outs[0], watch)
            return
        if refusal:
            self.said.refused.append(refusal)

    def _judge(self, values: Mapping[str, Any], before: Mapping[str, Any], inputs: Sequence[str], out: Any, watch: Watch) -> None:
        """What it returned, or the tensors that it changed, against the reference."""
        self.said.called += 1
        changed = {n: v for n, v in values.items() if n in before and not likes._same(before[n].contiguous(), v.contiguous())}
        returned = out if isinstance(out, tuple | list) else [out]
        outputs = (
            {f"output {i}" if len(returned) > 1 else "output": t.detach() for i, t in enumerate(returned) if hasattr(t, "data_ptr")}
            or changed
        )
        if not outputs:
            raise ValueError(f"{self.path}: {self.word} returns no tensor and changes none")
        if self.reduces and next(iter(outputs.values())).numel() > 1:
            self.given["reduction"] = "none"
        kept = {n: v for n, v in before.items() if n in inputs}
        name = f"{self.word}, config {next(iter(watch.launches.values())).config}" if watch.configs > 1 and watch.launches else self.word
        self.said.compared += likes._judged(name, self.reference, self.like, kept, {n: t.cpu() for n, t in outputs.items()}, tf32(watch))


def tf32(watch: Watch) -> bool:
    """Whether a kernel may multiply float32 in TF32: `tl.dot` does unless it is told otherwise."""
    return any("dot(" in x.kernel.src and "ieee" not in x.kernel.src for x in watch.launches.values())


def _inputs(reference: Callable[..., Any], like: str, tensors: Mapping[str, Tensor]) -> list[str] | None:
    """The names of those that the reference takes: all, or those that are not called like an output."""
    apart = [n for n in tensors if not wrappers.OUTPUT.fullmatch(n)]
    for names in dict.fromkeys([tuple(tensors), tuple(apart)]):
        try:
            if names and likes.called(reference, like, [tensors[n] for n in names]):
                return list(names)
        except (ValueError, TypeError, RuntimeError, IndexError):
            continue
    return None
