"""A file without a head against a function of torch: `rooftop check my.cu --like torch.softmax`. It is called in the simulator, with inputs
that are shown.

What it computes is what its memory holds afterwards: tensors that it returns, or else those that it changed. The reference gets the others,
in order."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.lab.interpret import numbers

if TYPE_CHECKING:
    from torch import Tensor

TIMES = 4.0  # of the error that torch itself makes in the same precision
FLOOR = 2.0  # units in the last place at the largest value, where torch is exact
DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "bf16": "bfloat16", "u8": "uint8",
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class Compared:
    """One output of one call. `error`, `allowed`: the largest of all elements; `at`: the element of the error."""

    function: str
    inputs: tuple[str, ...]
    output: str
    error: float
    allowed: float
    at: tuple[int, ...]
    got: float
    want: float

    @property
    def right(self) -> bool:
        return self.error <= self.allowed

    def __str__(self) -> str:
        said = f"{self.function}({', '.join(self.inputs)}), {self.output}: error {self.error:.2g}, {self.allowed:.2g} allowed"
        return f"right: {said}" if self.right else f"wrong: {said}; at {list(self.at)} {self.got:.7g} in place of {self.want:.7g}"


def reference_of(text: str) -> Callable[..., Any]:
    """`torch.softmax`, or `my.py:function`. Raises ValueError."""
    if ":" in text:
        from rooftop.core.backends.python_files import load_file

        file, _, name = text.partition(":")
        found = getattr(load_file(Path(file)), name, None)
    else:
        package, *rest = text.split(".")
        if package != "torch":
            raise ValueError(f"--like {text}: it is a function of torch, as in torch.softmax, or FILE.py:FUNCTION")
        found = importlib.import_module(package)
        for part in rest:
            found = getattr(found, part, None)
    if not callable(found):
        raise ValueError(f"--like {text}: there is no such function")
    return found


def compared(
    path: Path, like: str, given: Sequence[str], folders: Sequence[Path], launch: dict[str, Any] | None, seed: int
) -> tuple[list[Compared], Any]:
    """Each output, and what the simulation came to. `launch`: of a kernel (`program.kernel_of`); None: the file's own functions are called.

    Raises ValueError where nothing comes back that the reference could be compared with."""
    from rooftop.lab.simt import program

    function = reference_of(like)
    source, _ = (program.kernel_of(path, folders, given=given, **launch), "") if launch else program.source_of(path, folders, given)
    if not source.added:
        how = "for one kernel of it give --kernel, --grid, --block and --arg"
        raise ValueError(f"{path} has a main() of its own, which checks itself: rooftop simt {path}; {how}")
    marker = secrets.token_hex(8)
    added = source.added.replace("/*simt_shown*/", f'simt::shown_by = "{marker}";')
    run = program.run(replace(source, added=f'#define SIMT_SHOWN "{marker}"\n{added}'), seed=seed)
    made: list[Compared] = []
    for name, before, after, outs in _calls(run.report.printed, marker):
        changed = [k for k in before if k in after and not _same(before[k], after[k])]
        outputs = outs or {k: after[k] for k in changed}
        inputs = {k: v for k, v in before.items() if k not in changed}
        if not outputs:
            raise ValueError(f"{path}: {name} returns no tensor and changes none")
        made += _judged(name, function, like, inputs, outputs)
    if not made and not run.report.findings:
        raise ValueError(f"{path}: no call of it came to its end, so nothing was compared:\n{run.report.printed[:400]}")
    return made, run


def _same(a: Tensor, b: Tensor) -> bool:
    import torch

    return bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))


Arrays = dict[str, "Tensor"]


def _calls(printed: str, marker: str) -> list[tuple[str, Arrays, Arrays, Arrays]]:
    import torch

    calls: list[tuple[str, Arrays, Arrays, Arrays]] = []
    for line in printed.splitlines():
        words = line.split()
        if words[:1] != [marker]:
            continue
        if words[1] == "call":
            if calls and not calls[-1][2] and not calls[-1][3]:  # it took nothing of what it was given
                calls.pop()
            calls.append((words[2], {}, {}, {}))
        elif calls and words[1] in ("before", "after", "out"):
            shape = [int(n) for n in words[4].split("x")]
            data = torch.frombuffer(bytearray.fromhex(words[5]), dtype=getattr(torch, DTYPES[words[3]])).reshape(shape)
            _, before, after, outs = calls[-1]
            {"before": before, "after": after, "out": outs}[words[1]][words[2]] = data
    return [c for c in calls if c[2] or c[3]]


def _judged(name: str, function: Callable[..., Any], like: str, inputs: Arrays, outputs: Arrays, tf32: bool = False) -> list[Compared]:
    """`tf32`: what torch errs on inputs that are rounded to TF32 counts as its error in float32."""
    import torch

    def narrow(t: Tensor) -> Tensor:
        return torch.from_numpy(numbers.tf32(t.contiguous().numpy())) if tf32 and t.dtype == torch.float32 else t

    wide = [t.double() if t.is_floating_point() else t for t in inputs.values()]
    exact, same = (_called(function, like, tensors) for tensors in (wide, [narrow(t) for t in inputs.values()]))
    made = []
    for (label, got), want, plain in zip(outputs.items(), exact, same, strict=False):
        if got.numel() != want.numel():
            sizes = "x".join(map(str, want.shape))
            raise ValueError(f"{name}: {label} has {got.numel()} elements, {like} gives {want.numel()} ({sizes}): give sizes by --arg")
        real, got64 = want.double().reshape(-1), got.double().reshape(-1)
        error, torchs = (got64 - real).abs().nan_to_num(float("inf")), (plain.double().reshape(-1) - real).abs().nan_to_num(0)
        unit = torch.finfo(got.dtype).eps if got.is_floating_point() else 0
        worst = int(error.argmax())
        place = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), want.shape)) if want.dim() else ()
        allowed = max(TIMES * float(torchs.max()), FLOOR * unit * float(real.abs().max())) if real.numel() else 0.0
        shown = tuple(f"{k}: {str(t.dtype).removeprefix('torch.')} {'x'.join(map(str, t.shape))}" for k, t in inputs.items())
        made.append(Compared(name, shown, label, float(error.max()), allowed, place, float(got64[worst]), float(real[worst])))
    return made


def _called(function: Callable[..., Any], like: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The reference's outputs; a function that wants a dimension gets the last, a norm its weight and bias by name."""
    said = None
    normal = {"normalized_shape": tensors[0].shape[-1:], **dict(zip(("weight", "bias"), tensors[1:], strict=False))} if tensors else {}
    for some, more in ((tensors, {}), (tensors, {"dim": -1}), (tensors[:1], normal)):
        if len(some) + len(more) < len(tensors):
            continue
        try:
            found = function(*some, **more)
        except (TypeError, RuntimeError) as error:
            said = said or error
            continue
        return [found] if hasattr(found, "reshape") else list(found)
    shapes = ", ".join("x".join(map(str, t.shape)) for t in tensors)
    raise ValueError(f"{like} cannot take tensors of {shapes}: {said}; --arg gives others, and --like FILE.py:FUNCTION a function of yours")
