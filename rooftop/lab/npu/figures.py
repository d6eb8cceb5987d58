"""What is committed of kernels for TPUs and Ascend: `results/npu/*.json`, written by `rooftop npu`, and the pages made of it.

A TPU's kernel has the digest of what was checked and compiled: kernel, helpers, contract and config. Where it is no longer that of the
tree, a test fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rooftop.core import registry, settings, tpu
from rooftop.core.backends.pallas import PallasError, PallasImplementation
from rooftop.core.digests import digest
from rooftop.core.spec import Case
from rooftop.lab import candidates
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.npu import tpu as compiler

FOLDER = settings.CHECKOUT / "results" / "npu"
TPU = FOLDER / "tpu.json"
SEED = 24


def subjects() -> list[Subject]:
    """Every kernel for a TPU, rungs of ladders among them, each file once."""
    rungs = [s for name in registry.ladder_names() for s in candidates.rungs(registry.ladder(name))]
    found = [s for name in registry.op_names() for s in candidates.implementations(registry.op(name)) if registry.op(name).twin_of is None]
    found += [s for s in rungs if s.rung and s.rung.path.suffix != ".toml"]
    return [s for s in found if isinstance(s.implementation, PallasImplementation)]


def cases_of(subject: Subject) -> list[Case]:
    """Those that are compiled for figures: what the kernel's FIGURES names, a ladder's headline, else the first bench case that it
    takes."""
    assert isinstance(subject.implementation, PallasImplementation)
    named = getattr(subject.implementation.module, "FIGURES", ())
    if named:
        return [subject.op.case(name) for name in named]
    if subject.rung is not None:
        ladder = registry.ladder(subject.rung.ladder)
        return [c for c in subject.op.cases if c.name == ladder.headline and c.dtype in ladder.dtypes]
    return [c for c in subject.op.cases if "bench" in c.tags and subject.supports(c, tpu.ANY) is None][:1]


def checked_cases(subject: Subject) -> list[Case]:
    """The cases that the interpreter runs: all that the kernel takes, up to the size that it can do."""
    return [
        c for c in checker.select_cases(subject)
        if not subject.op.idle(subject.op.problem(c)) and not checker._too_large(c, "pallas") and subject.supports(c, tpu.ANY) is None
    ]


def checked_digest(subject: Subject) -> str:
    return digest(*[subject.digest(c, tpu.ANY) for c in checked_cases(subject)])


def compiled_digest(subject: Subject, case: Case, device: tpu.Tpu) -> str | None:
    """Of what the compiler is given: kernel, helpers, config, shapes, options that are not at their defaults. None where the kernel does
    not take the case."""
    _, problem = subject.kernel_problem(case, device)
    implementation = subject.implementation
    assert isinstance(implementation, PallasImplementation)
    if implementation.supports(problem):
        return None
    default = {n: subject.op.parameters[n].default for n in subject.op.option_names}
    asked = replace(problem, options=tuple((n, v) for n, v in problem.options if v != default[n]))
    return digest(implementation.digest, implementation.config_dict(implementation.choose(problem)), asked.signature)


def check(subject: Subject) -> dict[str, Any]:
    """All of `checked_cases`, run. Raises PallasError where one is wrong: what is wrong is not committed."""
    results = [checker.check(subject, c, backend="pallas", seed=SEED) for c in checked_cases(subject)]
    if wrong := [r for r in results if r.status != "ok"]:
        raise PallasError(f"{subject.name}, {wrong[0].case}: {wrong[0].message or wrong[0].status} ({len(wrong)} of {len(results)} cases)")
    shares = [max(r.worst.max_share, r.worst.rms_share) for r in results if r.worst]
    assert isinstance(subject.implementation, PallasImplementation)
    how = {"plain": "plain", "tpu": "TPU"}[subject.implementation.interpreter]
    return {"digest": checked_digest(subject), "cases": len(results), "interpreter": how, "worst_share": round(max(shares, default=0.0), 3)}


def compile_all(subject: Subject, case: Case) -> dict[str, Any]:
    """Target -> facts, each with the digest of what was compiled."""
    return {t: {**compiler.facts_of(subject, case, t), "digest": compiled_digest(subject, case, device)} for t, device in tpu.TPUS.items()}


def read(path: Path = TPU) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write(found: dict[str, Any], path: Path = TPU) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def stale(found: dict[str, Any], parts: Iterable[str] = ("checked", "compiled")) -> Iterator[tuple[Subject, str, Case | None]]:
    """What the file lacks of the tree as it is: (kernel, "checked" or "compiled", the case of the latter)."""
    for s in subjects():
        entry = found.get("kernels", {}).get(s.name, {})
        if "checked" in parts and entry.get("checked", {}).get("digest") != checked_digest(s):
            yield s, "checked", None
        for c in cases_of(s) if "compiled" in parts else ():
            facts = entry.get("compiled", {}).get(c.id, {})
            wanted = {t: compiled_digest(s, c, d) for t, d in tpu.TPUS.items()}
            if {t: facts.get(t, {}).get("digest", "") for t in tpu.TPUS} != wanted:
                yield s, "compiled", c


def update(say: Callable[[str], None], parts: Iterable[str] = ("checked", "compiled"), path: Path = TPU) -> None:
    """Check and compile what is stale, and write the file after each. What no longer is in the tree goes."""
    found = read(path)
    there = {s.name: {c.id for c in cases_of(s)} for s in subjects()}
    kernels = {n: k for n, k in found.get("kernels", {}).items() if n in there}
    for name, entry in kernels.items():
        entry["compiled"] = {c: f for c, f in entry.get("compiled", {}).items() if c in there[name]}
    found = {"kernels": kernels, "software": {"jax": "0.10.2", "libtpu": "0.0.42.1"}}
    for s, what, case in list(stale(found, parts)):
        say(f"{s.name}: {what}{f', {case.id}' if case else ''}")
        entry = kernels.setdefault(s.name, {})
        try:
            if case is None:
                entry["checked"] = check(s)
            else:
                entry.setdefault("compiled", {})[case.id] = compile_all(s, case)
        except PallasError as error:
            say(f"  {error}")
            continue
        write(found, path)
