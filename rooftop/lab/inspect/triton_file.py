"""The machine code of the kernels of an ordinary Python file: what its own host code launches is noted, and compiled for any target."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rooftop.core import child, triton_compat
from rooftop.core.spec import Device
from rooftop.lab.inspect.inspector import Facts, cached_facts
from rooftop.lab.inspect.occupancy import occupancy
from rooftop.lab.interpret import alone, host, imports, wrappers
from rooftop.lab.interpret.host import Finding, Launched, Watch

FILES = 3  # beside a file, and of tests, that are looked at for what launches its kernels
TESTS = "test", "tests"  # folders, here and above, that hold these
EACH = 8  # kinds of launches of one kernel that are compiled: of an autotuned one, configs
AS_NUMBER = "pointer"  # in what Triton says of a tensor that a kernel takes for a number
LANGUAGE = re.compile(r"\n\s+\w*Error\w*: ")  # in what a finding says: Triton refuses the code, as it may for a number that is assumed
OF_16_BITS = "must be same dtype"  # what Triton says of a product of the tensors and of what a kernel has made 16-bit itself


def launches(path: Path, word: str, arguments: Mapping[str, Any], args: Sequence[str], watch: Watch, seed: int = 0) -> host.Ran:
    """What a file launches as it is, or if that is nothing, or a function is named, what its functions do with the first tensors that they
    take. `word`: a function, or a kernel, of which alone the launches are kept."""
    ran = host.program(path, args, watch)
    names = dict(ran.names)
    if any(f.kind == "absent" and not f.module for f in ran.findings):
        return ran
    absent = tuple(f for f in ran.findings if f.kind == "absent")  # its functions may do without
    if watch.over and not ran.launches:  # its host code is slow: its functions are called with less
        watch.again()
    kernels = wrappers.kernels(names)
    if not names or (ran.launches and (not word or word in kernels)):
        return _only(ran, kernels.get(word) if word else None, word, path)
    if word and word not in kernels:
        watch.launches.clear()
        return _called(path, names, {word: wrappers.resolve(names, word, path)}, arguments, watch, seed)
    if not word and any(f.kind in ("fault", "launch") for f in ran.findings):  # its own launches are wrong, before the first one ran
        return ran
    functions = wrappers.functions(names, "__main__")
    called = _called(path, names, functions, arguments, watch, seed) if functions else _beside(path, ran, arguments, watch, seed)
    if not called.launches and (inner := wrappers.functions(names, "__main__", inner=True)):  # of a test, say, that wants sizes
        by_inner = _called(path, names, inner, arguments, watch, seed)
        called = by_inner if by_inner.launches else called
    own = tuple(f for f in ran.findings if f.kind == "host" and "SystemExit" not in f.text)
    if not called.launches and not own and functions and not arguments and (tests := _beside(path, ran, arguments, watch, seed)).launches:
        called = tests
    if not called.launches and not own and (launch := alone.launched(names) if not word else {word: kernels[word]}):
        return _alone(path, names, launch, arguments, watch, seed, called.findings if functions else absent)
    if not called.launches and (own or not called.findings):  # what it says of itself tells more than what was tried with it
        return replace(ran, findings=own or ran.findings)
    called = replace(called, findings=(*absent, *called.findings)) if absent and called.launches else called
    return _only(called, kernels.get(word) if word else None, word, path)


def _beside(path: Path, ran: host.Ran, arguments: Mapping[str, Any], watch: Watch, seed: int) -> host.Ran:
    """What the files beside it and the tests above it that import this one launch of its kernels: it has nothing that launches them, or
    nothing says with what."""
    imports_it = re.compile(
        rf"^[ \t]*(?:from[ \t]+[\w.]*\b{re.escape(path.stem)}[ \t]+import\b|import[ \t]+(?:\w+\.)*{re.escape(path.stem)}\b)", re.M
    )
    here = path.resolve().parent
    folders = [here, *(above / name for above in (here, *here.parents[: imports.ABOVE]) for name in TESTS)]
    near = [p for folder in folders for p in sorted(folder.glob("*.py")) if p != path.resolve()]
    findings: list[Finding] = []
    for other in [p for p in near if imports_it.search(p.read_text(encoding="utf-8", errors="replace"))][:FILES]:
        if watch.over:
            watch.again()
        theirs = host.program(other, (), watch)
        said = f"launched by {os.path.relpath(other, here)}, which imports it"
        if _own(path, watch):
            return host.Ran(watch, tuple(f for f in theirs.findings if f.kind in ("fault", "launch", "not-simulated")), ran.names, notes=(said,))
        called = _called(other, dict(theirs.names), wrappers.functions(theirs.names, "__main__"), arguments, watch, seed)
        if _own(path, watch):
            return replace(called, notes=(said,))
        findings += called.findings
    return host.Ran(watch, tuple(findings) or ran.findings, ran.names)


def _own(path: Path, watch: Watch) -> bool:
    """Leaves of the launches those of kernels of this file; whether there are any."""
    watch.launches = {k: x for k, x in watch.launches.items() if Path(x.kernel.fn.__code__.co_filename).resolve() == path.resolve()}
    return bool(watch.launches)


def _alone(
    path: Path, names: Mapping[str, Any], kernels: Mapping[str, Any], arguments: Mapping[str, Any], watch: Watch, seed: int,
    why: tuple[Finding, ...]
) -> host.Ran:
    """Each kernel launched as is assumed from its code. What is found is no fault, since it may come of that. `why`: what its functions
    refused."""
    findings = list[Finding]()
    for word, kernel in kernels.items():
        before, first = dict(watch.launches), None
        for even, long, with_ in ((False, False, ""), (True, False, "sizes that its blocks divide"), (True, True, "longer arrays")):
            fault: Finding | None = None
            with host.standing_in(watch):
                try:
                    grid, values = alone.launch(kernel, arguments, seed, even, long)
                except host.Over:
                    break
                except ValueError as error:
                    first = Finding("refused", f"not launched, as nothing says what to give for {error}: --arg")
                    break
                watch.launches = dict(before)
                fault = next(iter(host.guarded(path, lambda: kernel[grid](**values), watch)), None)  # noqa: B023
            new = [x for k, x in watch.launches.items() if k not in before]
            if fault is None and watch.run and not any(x.stored or x.loaded for x in new):
                fault = Finding("refused", f"{word}: as its launch is assumed it reads and writes nothing")
            if fault is None or fault.kind == "not-simulated":
                first = fault or (first and replace(first, text=f"{first.text}\nwith {with_} there is none"))
                break
            first = first or replace(fault, kind="refused", text=f"its launch is assumed, and what is found may come of that (--arg): {fault}")
        findings += [first] if first is not None else []
    notes = [f for f in why if f.kind == "refused" and not f.outside and not findings and watch.launches]  # its kernels make up for these
    return host.Ran(watch, (*(f for f in why if f not in notes), *findings), names, assumed=True, notes=tuple(map(str, notes)))


def _only(ran: host.Ran, kernel: Any, word: str, path: Path) -> host.Ran:
    if not word:
        return ran
    if kernel is None:
        wrappers.resolve(ran.names, word, path)
        return ran
    one = wrappers.jit_of(kernel)
    ran.watch.launches = {k: x for k, x in ran.watch.launches.items() if x.kernel is one}
    return ran


def _called(path: Path, names: Any, functions: dict[str, Any], arguments: Mapping[str, Any], watch: Watch, seed: int) -> host.Ran:
    """Each function, with the first arguments that it takes. What its own checks refuse, and tensors that its kernels leave, are passed
    over: they may be none that it is for."""
    findings, refused = list[Finding](), list[Finding]()
    for word, function in functions.items():
        own = arguments if len(functions) == 1 else {}
        before, smaller = {k: replace(x) for k, x in watch.launches.items()}, dict[Any, Launched]()
        wrong = list[Finding]()
        for sizes in (wrappers.SIZES[1], wrappers.LARGER):
            try:
                found, passed = _first(path, word, function, own, watch, partial(wrappers.calls, function, own, seed, sizes, dtype=watch.dtype, usual=True))
            except host.Over:
                watch.launches = smaller or watch.launches
                wrong = [replace(f, kind="refused", text=f"{f}\nthere was no time for larger tensors of ours: --budget, or --arg") for f in wrong]
                break
            except ValueError as error:
                found, passed = [], [Finding("refused", str(error))]
            if wrong and (found or len(watch.launches) == len(before)):  # no better with these
                watch.launches = smaller
                break
            if wrong:
                found = [Finding("refused", f"{wrong[0]}\nwith larger tensors of ours there is none: --arg gives its own")]
            wrong, refused = found, refused + passed
            if own or not any(f.kind == "fault" for f in found):
                break
            smaller, watch.launches = watch.launches, {k: replace(x) for k, x in before.items()}
        findings += wrong
    if not watch.launches:
        findings += [Finding("refused", f"not called: {f}; --arg NAME=f32:48x40 gives its arguments", outside=f.outside) for f in refused]
    return host.Ran(watch, tuple(findings), names)


def _first(
    path: Path, word: str, function: Any, arguments: Mapping[str, Any], watch: Watch, made: Any
) -> tuple[list[Finding], list[Finding]]:
    """What is found in the first call that a function takes, and of the others the one that came furthest into the file. Raises ValueError
    where a number is missing, Over."""
    passed: list[Finding] = []
    as_tensors: list[Finding] = []  # what is wrong where each parameter that may be a number is a tensor
    narrower = ["bfloat16", "float16"]  # types to go on to
    with host.standing_in(watch):
        calls = list(made())
        while calls:
            values = calls.pop(0)
            before = {k: replace(x) for k, x in watch.launches.items()}
            raised = host.guarded(path, partial(function, *values.values()), watch)
            failed = [replace(f, text=f"{word}({_said(values)}): {f}") for f in raised]
            if narrower and any(OF_16_BITS in str(f) for f in failed):
                calls, watch.launches = list(made(dtype=narrower.pop())), before
                continue
            if any(AS_NUMBER in str(f) for f in failed):
                numbers = [n for n in wrappers.unsure(function) if hasattr(values[n], "data_ptr") and n not in arguments]
                if numbers and not as_tensors:
                    as_tensors, calls = [replace(f, kind="refused") for f in failed], [{**values, n: 2} for n in numbers]
                if as_tensors:
                    watch.launches = before
                    continue
            if not arguments and not all(hasattr(v, "data_ptr") for v in values.values()):
                failed = [replace(f, kind="refused") if f.kind == "fault" and LANGUAGE.search(f.text) else f for f in failed]
            if all(f.kind not in ("host", "refused") and not (f.outside and not arguments) for f in failed):
                return failed, []
            watch.launches = before
            passed += failed
    return as_tensors, sorted(passed, key=lambda f: (f.outside, f.line))[-1:]


def _said(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{n}: {host.shown(v)}" for n, v in values.items())


def facts(launched: Launched, device: Device) -> Facts:
    """Of one kind of launch, as `inspector.kernel_facts` says them. Raises Triton's error where it does not compile."""
    compiled = triton_compat.compile_values(launched.kernel, launched.values, device.arch, launched.options)
    child.alive()
    read = cached_facts(compiled.cubin, compiled.name)
    threads = 32 * compiled.num_warps
    limit = occupancy(
        device.arch, registers=read.registers, threads=threads, static_shared=read.shared, dynamic_shared=compiled.shared,
        cluster=compiled.num_ctas
    )
    return {
        "kernel": launched.name, "registers": read.registers, "spills": read.stack, "shared": read.shared + compiled.shared,
        "threads": threads,
        "grid": list(launched.grid), "counts": read.counts, "opcodes": dict(read.opcodes), "instructions": read.instructions,
        "loop": read.loop.counts if read.loop else {}, "config": launched.config, "unmet": [limit.refused] if limit.refused else [],
        "occupancy": {"percent": limit.percent, "limiter": limit.limiter, "blocks": limit.blocks, "refused": limit.refused},
    }


def several(ran: host.Ran, device: Device) -> tuple[list[Facts], dict[str, str]]:
    """The facts of each kind of launch, at most EACH of a kernel, and of those that do not compile the compiler's words."""
    all_facts: list[Facts] = []
    refused: dict[str, str] = {}
    seen: dict[str, int] = {}
    for launched in ran.launches:
        seen[launched.name] = seen.get(launched.name, 0) + 1
        if seen[launched.name] > EACH:
            continue
        try:
            one = facts(launched, device)
        except Exception as error:  # whatever Triton raises over a kernel
            refused[f"{launched.name}{f', config {launched.config}' if launched.config else ''}"] = f"{type(error).__name__}: {error}"
            continue
        if not any({**one, "grid": 0, "config": ""} == {**other, "grid": 0, "config": ""} for other in all_facts):
            all_facts.append(one)
    return all_facts, refused
