"""Ordinary Python files with Triton kernels, as they are: what `simt`, `inspect`, `check` and `place` say of them."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.lab.cli.app import ENVIRONMENT, OK, WRONG, echo, table

if TYPE_CHECKING:
    from rooftop.lab.interpret.host import Finding, Ran

SHOWN = 20  # kinds of launches that are listed


@dataclass(frozen=True)
class Own:
    """`my.py` or `my.py:name`."""

    path: Path
    name: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)


def own(word: str, given: Sequence[str] = (), seed: int = 0) -> Own | None:
    """What a word of a command line names of an ordinary Python file; None for anything else, a kernel by its name
    (`softmax__mine__triton.py`) too. `given`:
    its arguments, NAME=VALUE. Raises ValueError."""
    from rooftop.core import registry
    from rooftop.core.names import RegistryError

    text, _, name = word.rpartition(":") if not word.endswith(".py") else (word, "", "")
    path = Path(text)
    if path.suffix != ".py" or not path.is_file() or not all(part.isidentifier() for part in name.split(".") if name):
        return None
    try:
        known = registry.kernel_name(path.stem)
    except RegistryError:
        known = None
    return None if known is not None and not name else Own(
        path, name, {n: v for i, text in enumerate(given) for n, v in [_argument(text, seed + i)]}
    )


def _argument(text: str, seed: int) -> tuple[str, Any]:
    """A tensor (x=f32:48x40), else a constant of Python."""
    from rooftop.lab.simt import arguments

    name, equals, said = (part.strip() for part in text.partition("="))
    if not equals or not name.isidentifier():
        raise ValueError(f"--arg {text!r}: it is written NAME=VALUE, as in x=f32:48x40 or n=40")
    if ":" in said or said.endswith(".npy"):
        return name, arguments.tensor(name, said, seed)
    try:
        return name, ast.literal_eval(said)
    except (ValueError, SyntaxError):
        raise ValueError(f"--arg {text}: it is a tensor, as f32:48x40, or a constant of Python") from None


def cuda(words: Sequence[str]) -> list[str]:
    """The words, a Python file without Triton that hands CUDA C++ to torch's `load_inline` or `load` by that: `my.py`, or
    `my.py:kernel`."""
    from rooftop.lab.simt import in_python

    found = []
    for word in words:
        python = own(word)
        if python is None or "triton" in python.path.read_text(encoding="utf-8", errors="replace"):
            found.append(word)
            continue
        made = in_python.sources(python.path)
        if made:
            echo(f"{word}: its CUDA C++ is {', '.join(map(str, made))}", err=True)
        found += list(map(str, made)) or [word]
    return found


def cuda_one(word: str) -> tuple[str, str | None]:
    """The same for a command that takes one file, and the kernel that is named. Raises ValueError where there are several."""
    found = cuda([word])
    if len(found) > 1:
        raise ValueError(f"{word} loads {len(found)} files of CUDA C++: name one of {', '.join(found)}")
    name = word.rpartition(":")[2] if found != [word] and not word.endswith(".py") else None
    return found[0], name


def simulate(what: Own, args: str | None, seed: int, budget: float, as_json: bool) -> int:
    """Run it with its launches interpreted and watched. The exit code."""
    from rooftop.lab.cli import noted
    from rooftop.lab.inspect import triton_file
    from rooftop.lab.interpret.host import Watch

    watch = Watch(seconds=budget, total=6 * budget)
    ran = triton_file.launches(what.path, what.name, what.given, shlex.split(args or ""), watch, seed)
    code = _code(ran)
    faults = sum(f.kind in ("fault", "launch", "host") for f in ran.findings)
    noted.interpreted(str(what.path), len(ran.launches), faults)
    what_ran = "its time was over" if watch.over else "not every program ran"
    cut = (
        f"{what_ran} (--budget {budget:g}): what the file computes was not judged; smaller sizes may do" if watch.cut and not ran.findings
        else ""
    )
    if as_json:
        echo(json.dumps({"subject": str(what.path), "launches": [x.to_json() for x in ran.launches], "unfinished": cut,
                         "assumed": ran.assumed, "notes": ran.notes,
                         "findings": [{"kind": f.kind, "text": f.text} for f in ran.findings]}, indent=2))
        return code
    _show(ran)
    if watch.total < 6 * budget:
        echo(f"{watch.ended}, so its functions were called with tensors of ours (--budget gives it longer)")
    if cut:
        echo(cut)
    if not ran.launches and not ran.findings:
        echo("it launches no Triton kernel")
    said = f"{faults} fault{'s' if faults > 1 else ''}" if faults else "no fault"
    far = " as far as it came" if cut or (ran.findings and not faults) else ""
    echo(f"checked: {said}{far} ({watch.spent:.1f} s in {len(ran.launches)} kinds of launches)")
    return code


ASSUMED = "its kernels alone were launched, as is assumed from their code (--arg gives others):"


def _show(ran: Ran) -> None:
    if ran.assumed and ran.launches:
        echo(ASSUMED)
    for x in ran.launches[:SHOWN]:
        echo(str(x))
    if len(ran.launches) > SHOWN:
        echo(f"... and {len(ran.launches) - SHOWN} kinds of launches more")
    for said in (*ran.notes, *ran.findings):
        echo(str(said))


def _code(ran: Ran) -> int:
    if any(f.kind in ("fault", "launch", "host") for f in ran.findings):
        return WRONG
    return ENVIRONMENT if ran.findings or not ran.launches else OK


def inspect(what: Own, archs: Sequence[str], kind: str, as_json: bool) -> int:
    """Its kernels' machine code, or with `kind` (sass, ptx) their text. The exit code."""
    from rooftop.core import triton_compat
    from rooftop.lab.inspect import binary, inspector, triton_file
    from rooftop.lab.interpret.host import Watch

    ran = triton_file.launches(what.path, what.name, what.given, (), Watch(run=False, total=30.0))
    if not ran.launches:
        _nothing(what, ran.findings)
        return _code(ran)
    if ran.assumed:
        echo(ASSUMED, err=True)
    devices = [inspector.device_of(int(a) if a.isdigit() else a) for a in archs]
    if kind:
        for x in ran.launches:
            made = triton_compat.compile_values(x.kernel, x.values, devices[-1].arch, x.options)
            echo(made.ptx if kind == "ptx" else binary.sass(made.cubin, made.name))
        return OK
    rows: list[dict[str, Any]] = []
    refused: dict[str, str] = {}
    judged = [triton_file.several(ran, device) for device in devices]
    for dtype in ("float16", "bfloat16"):
        if any(triton_file.OF_16_BITS in why for _, absent in judged for why in absent.values()):
            ran = triton_file.launches(what.path, what.name, what.given, (), Watch(run=False, total=30.0, dtype=dtype))
            judged = [triton_file.several(ran, device) for device in devices]
    for a, (found, absent) in zip(archs, judged, strict=True):
        refused |= absent
        for k in found:
            counts = " ".join(f"{n}:{c}" for n, c in k["counts"].items() if n not in ("BRA", "total"))
            rows.append({"subject": what.path.stem, "arch": a, **k, "occ": f"{k['occupancy']['percent']:.0f} % ({k['occupancy']['limiter']})", "sass": counts,
                         "note": "; ".join(k["unmet"])})
    columns = {"subject": "subject", "arch": "sm", "kernel": "kernel", "registers": "regs", "spills": "spill B", "shared": "shared B", "occ": "occupancy",
               "sass": "instructions", "config": "config", "note": "unmet"}
    if as_json:
        table([*rows, *({"kernel": name, "note": why} for name, why in refused.items())], columns, True)
    elif rows:
        table(rows, {n: c for n, c in columns.items() if n not in ("config", "note") or any(r.get(n) for r in rows)}, False)
    for name, why in {} if as_json else refused.items():
        echo(f"{name} does not compile{' as its launch is assumed (--arg gives another)' if ran.assumed else ''}: {why}")
    if refused and ran.assumed:  # which may be why
        return ENVIRONMENT
    return WRONG if refused or any(r["note"] for r in rows) else OK


def _nothing(what: Own, findings: Sequence[Finding]) -> None:
    for f in findings:
        echo(str(f))
    if not findings:
        echo(
            f"{what.path} launches no Triton kernel, and no function of it does: rooftop inspect {what.path}:FUNCTION --arg x=f32:48x40",
            err=True
        )


def compare(what: Own, like: str, seed: int, as_json: bool) -> int:
    """One of its functions against a function of torch or of the user's. The exit code."""
    from rooftop.lab.check import triton_like
    from rooftop.lab.cli import noted

    judged = triton_like.compared(what.path, what.name, like, what.given, seed)
    if as_json:
        rows = [{"right": c.right, "text": str(c), "error": c.error, "allowed": c.allowed} for c in judged.compared]
        table([*rows, *({"right": False, "text": str(f)} for f in judged.findings)], {}, True)
    else:
        for f in judged.ended:
            echo(f"the file's own code does not come to its end: {f}")
        for c in judged.compared:
            echo(str(c))
        for f in judged.findings:
            echo(str(f))
        if judged.configs > 1:
            tried = min(judged.configs, triton_like.MOST_CONFIGS)
            echo(f"autotuned: {tried} of {judged.configs} configs were tried")
        for why in dict.fromkeys(judged.refused):
            echo(f"not called, as the file itself refuses: {why}")
    kinds = {f.kind for f in judged.findings}
    noted.comparison(f"{what.path}:{what.name}", like, [c.right for c in judged.compared], len(judged.findings))
    if kinds & {"fault", "launch", "host"} or not all(c.right for c in judged.compared):
        return WRONG
    return ENVIRONMENT if kinds else OK


def facts(what: Own, target: str) -> tuple[str, Mapping[str, Any]]:
    """The name and the machine code's facts of the kernel that moves most bytes. Raises ToolchainError where there is none to be
    had here, ValueError where its host code fails."""
    from rooftop.core.compile import ToolchainError
    from rooftop.lab.inspect import inspector, triton_file
    from rooftop.lab.interpret.host import Watch

    ran = triton_file.launches(what.path, what.name, what.given, (), Watch(run=False, total=30.0))
    if not ran.launches:
        kind = ValueError if any(f.kind in ("fault", "launch", "host") for f in ran.findings) else ToolchainError
        raise kind("; ".join(map(str, ran.findings)) or f"{what.path} launches no Triton kernel")
    largest = max(ran.launches, key=lambda x: sum(v.numel() for v in x.values.values() if hasattr(v, "numel")))
    return f"{what.path.name}:{largest.name}", {"kernels": [triton_file.facts(largest, inspector.device_of(target))]}
