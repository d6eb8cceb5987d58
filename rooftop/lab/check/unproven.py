"""Kernels that no machine without a GPU can run, and that no record proves as they now stand: what is still to be checked on a GPU."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from rooftop.core import disk_cache, registry, settings
from rooftop.core.digests import digest
from rooftop.core.registry import HOUSE, House
from rooftop.core.spec import TARGETS
from rooftop.lab.candidates import Subject
from rooftop.lab.check.proofs import Proofs
from rooftop.lab.records import store
from rooftop.lab.records.store import SETTLED, Record


@dataclass(frozen=True)
class Unproven:
    """A kernel, why it runs on a GPU only, and those of its cases that have no check record of its present digest."""

    name: str
    reason: str
    cases: tuple[str, ...]
    of: int  # cases that it takes

    def __str__(self) -> str:
        return f"{self.name}: {len(self.cases)} of {self.of} cases have no check record ({self.reason})"


def gpu_only(house: House = HOUSE) -> Iterator[tuple[Subject, str]]:
    """The kernels that run on a GPU only, rungs of ladders among them, each with the reason."""
    rungs = [r for name in registry.ladder_names(house) for r in registry.ladder(name, house).rungs if r.path.suffix != ".toml"]
    files = registry.kernel_files(house)
    found = [Subject(f.name, registry.op(f.op, house), registry.implementation(f.name, house)) for f in files]
    found += [Subject(r.name, registry.op(r.implementation.op, house), r.implementation, r) for r in rungs]
    for subject in found:
        assert subject.implementation is not None
        place, reason = subject.implementation.where()
        if place == "none" and subject.implementation.platform == "gpu":
            yield subject, reason or ""


def unproven(
    records: Iterable[Record], house: House = HOUSE, answers: Mapping[Any, tuple[str | None, str]] | None = None
) -> list[Unproven]:
    """The kernels that run on a GPU only and lack a check record for some case that they take; what needs a large GPU (`huge`) is not asked
    for. `answers`: as of `Proofs`."""
    from rooftop.lab.check.checker import select_cases

    kernels = list(gpu_only(house))
    names = {subject.name for subject, _ in kernels}
    proofs = Proofs((r for r in records if r.subject in names), answers)
    found = []
    for subject, reason in kernels:
        assert subject.implementation is not None
        card = TARGETS[max(90, subject.implementation.arch)]
        taken = (c for c in select_cases(subject) if "huge" not in c.tags and not subject.supports(c, card))
        cases = [c for c in taken if not subject.op.idle(subject.op.problem(c, card))]
        lacking = tuple(c.id for c in cases if not proofs.hold(subject, c))
        if lacking or not cases:
            found.append(Unproven(subject.name, reason, lacking, len(cases)))
    return found


def _package() -> list[Path]:
    """The files of the package, without what Python compiles."""
    return sorted(Path(at) / name for at, _, names in os.walk(settings.PACKAGE) for name in names if not name.endswith(".pyc"))


def waiting(results: Path) -> list[Unproven]:
    """`unproven` of the records below a folder: the answer of the last time, while no file of the package and of the records has changed
    since, and the same packages are installed. Raises like `store.read`."""
    stats = {str(path): path.stat() for path in (*store.files(results), *_package())}
    installed = [(p, Path(p).stat().st_mtime_ns) for p in sys.path if p.endswith("-packages") and Path(p).is_dir()]
    stamp = digest(sys.version, installed, [(n, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for n, s in stats.items()])
    try:
        kept = settings.load().cache / "facts" / f"unproven-{digest(str(settings.PACKAGE), str(results.resolve()))}.json"
    except (OSError, ValueError):  # no place for a cache
        return unproven(store.read(results))
    known = disk_cache.read_json(kept)
    if isinstance(known, dict) and known.get("stamp") == stamp:
        return [Unproven(name, reason, tuple(cases), of) for name, reason, cases, of in known["found"]]
    found = unproven(store.read(results))
    if max(max(s.st_mtime, s.st_ctime) for s in stats.values()) <= time.time() - SETTLED:
        disk_cache.write_json(kept, {"stamp": stamp, "found": [astuple(one) for one in found]})
    return found
