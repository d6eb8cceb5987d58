"""What is run without a GPU: what has changed since it was checked, and a sample of the rest, both within bounds that do not grow with the number of ops.

A kernel's case whose check record has the digest of the tree (kernel, helpers, contract, config) is proven: it need not run again. Cases that are not proven
run, up to `LONGEST` elements and, of each kernel, one case beyond, while the budget `UNPROVEN` lasts. A sample of all cases runs as well, within `BUDGET`.
Both budgets count elements over all kernels together and are shared out by a seed that is another in each commit. `make test-all` runs every case.

Tests marked `sampled(group, kernels...)` are chosen likewise, within SAMPLES; "slow" and "simulator": those of the workbench that take seconds; "serve":
minutes, with `--all` alone; "contracts": what holds of contracts and of calls on the CPU, all of it where contracts or the core have changed. One that names
no kernel and has a parameter that is the name of an op runs where that op's kernels, their choice or what they share have changed.

What runs because it has changed ends with `SECONDS` as well: then only the first test or case of a kernel runs, and the end of the run names what was left
out. So the time of a run grows neither with the number of ops nor with what a commit touches."""

from __future__ import annotations

import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path

from _support import answers, committed
from contracts.calls import ops

from rooftop.core import registry, settings
from rooftop.core.contract import Contract
from rooftop.core.spec import TARGETS, Case
from rooftop.lab import candidates
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.check.proofs import Proofs

LONGEST = 1 << 16  # elements of all tensors of a case
BUDGET = 1 << 20  # elements of the whole sample
UNPROVEN = 3 << 20  # elements of all cases without a check record of the present digest
PRICE = 1 << 12  # elements whose time a case takes whatever its size: inputs, reference, judgement
# Group of tests that are marked `sampled` -> (of those of which nothing has changed, how many run; how many run at most).
SAMPLES = {
    "kernels": (12, 24), "cells": (3, 8), "binaries": (6, 12), "counters": (2, 3), "fuzz": (2, 4), "warm": (3, 5), "corpus": (20, 30), "slow": (8, 14),
    "simulator": (5, 10), "models": (20, 30), "programs": (3, 4), "targets": (2, 4), "cpu": (4, 6), "patched": (4, 7), "compiled": (1, 2),
    "exploits": (2, 3), "serve": (0, 0), "puzzles": (1, 1), "questions": (1, 2), "compiled_questions": (1, 1), "contracts": (300, 10_000),
}
WHOLE = ("contracts",)  # groups that run whole where what they are about has changed, however long that takes: a minute
SECONDS = 45.0  # of CPU time that each process of a run has for what has changed, beyond the sample
FEW = 12  # kernels' files that a commit touches: all tests of these kernels run, beyond the bounds
ENGINES = {  # group -> what its tests are about beside kernels: they have changed where one of these files has
    "counters": ("rooftop/lab/simt/",), "corpus": ("rooftop/lab/simt/",), "programs": ("rooftop/lab/simt/",), "simulator": ("rooftop/lab/simt/",),
    "fuzz": ("rooftop/lab/fuzz/", "rooftop/ops/"),
    "slow": ("rooftop/core/", "rooftop/lab/"), "warm": ("rooftop/lab/timing/warm.py",), "models": ("rooftop/drop_in/",),
    "cpu": ("rooftop/ops/",),
    "contracts": ("rooftop/ops/", "rooftop/core/", "rooftop/formats/", "rooftop/lab/check/", "rooftop/lab/inputs.py", "tests/contracts/", "constraints.txt"),
    "patched": ("rooftop/drop_in/",), "compiled": ("rooftop/drop_in/",),
    "exploits": ("rooftop/lab/judge/", "rooftop/core/sandbox.py", "tests/exploit/"),
    "puzzles": ("rooftop/lab/learn/",), "questions": ("rooftop/lab/learn/",), "compiled_questions": ("rooftop/lab/learn/",),
}


def git(*words: str) -> str | None:
    """What git says of the checkout; None without git, or outside a repository."""
    try:
        done = subprocess.run(["git", *words], cwd=settings.CHECKOUT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@cache
def seed() -> str:
    """Another in each commit, the same in all processes of a run."""
    return git("rev-parse", "HEAD") or "rooftop"


@cache
def touched() -> frozenset[str]:
    """The files, from the root of the checkout, that the working tree and the last commit change."""
    found = (git("diff", "--name-only", "HEAD"), git("diff", "--name-only", "HEAD~1", "HEAD"), git("ls-files", "--others", "--exclude-standard"))
    return frozenset(line for text in found if text for line in text.splitlines())


@cache
def every() -> tuple[Subject, ...]:
    """All kernels for GPUs of the tree: the shipped ones, by op (an in-place twin has those of its op again), then the rungs of the ladders that are files
    of their own. Those for TPUs: tests/npu."""
    shipped = [s for name in ops() for s in candidates.implementations(registry.op(name))]
    rungs = [s for name in registry.ladder_names() for s in candidates.rungs(registry.ladder(name))]
    found = (*shipped, *(s for s in rungs if s.rung and s.rung.path.suffix != ".toml"))
    return tuple(s for s in found if s.implementation is None or s.implementation.platform == "gpu")


def label(subject: Subject) -> str:
    """What a test calls it: an in-place twin with its op's name."""
    return subject.name if subject.op.twin_of is None else f"{subject.op.name}: {subject.name}"


def may_run(group: str, rank: int, names: Sequence[str], ops: Sequence[str] = ()) -> bool:
    """Whether a test that is the `rank`-th of its group in this commit's order is within the bounds of its group: known without a look at the records."""
    return rank < SAMPLES[group][1] or edited(names) or edited_family(ops)


def runs(group: str, rank: int, path: str, names: Sequence[str], ops: Sequence[str] = (), test: str = "") -> bool:
    """Whether one that may run does: it is of the sample, or what it runs has changed and there is time for it. `ops`: those whose kernels it takes as they
    are chosen; each such test (`test`: its name) has a turn, whatever time is left."""
    sample, most = SAMPLES[group]
    if rank < sample or (group in WHOLE and changed(group, path, names)) or (edited_family(ops) and CLOCK.allows([test])):
        return True
    return (edited(names) or (rank < most and changed(group, path, names))) and CLOCK.allows(names or [f"tests of the group {group}"])


@dataclass
class Clock:
    """The CPU time that this process, with the commands it starts, has for what has changed. When it is over, each name still gets its first turn."""

    seconds: float = SECONDS
    begun: set[str] = field(default_factory=set)
    left_out: Counter[str] = field(default_factory=Counter)

    def allows(self, names: Sequence[str]) -> bool:
        """Whether something of these names may run. What may not is counted."""
        allowed = self.seconds > 0 or not self.begun.issuperset(names)
        (self.begun if allowed else self.left_out).update(names)
        return allowed

    @contextmanager
    def running(self) -> Iterator[None]:
        """What runs within costs its time."""
        before = sum(os.times()[:4])
        try:
            yield
        finally:
            self.seconds -= sum(os.times()[:4]) - before


CLOCK = Clock()


def changed(group: str, path: str, names: Sequence[str]) -> bool:
    """Whether a test of this group and file runs something that has changed: a kernel, what it is run by, or the test itself."""
    return path in touched() or any(f.startswith(e) for f in touched() for e in ENGINES.get(group, ())) or not all(map(unchanged, names))


def edited(names: Sequence[str]) -> bool:
    """Whether the working tree or the last commit touches few kernels, and the file of one of these is among them."""
    files = {f for f in touched() if f.startswith(("rooftop/kernels/", "rooftop/ladders/"))}
    if not 0 < len(files) <= FEW:
        return False
    stems = {file.path.stem for file in registry.kernel_files() if file.name in names} | {*names}  # a file of several kernels has the name of their group
    return any(Path(f).stem in stems or f.removeprefix("rooftop/ladders/").rpartition(".")[0] in names for f in files)


def edited_family(names: Sequence[str]) -> bool:
    """Whether the working tree or the last commit touches few kernels, and among them one of these ops, the choice of its family or what its kernels share."""
    if not names:
        return False
    files = [Path(f) for f in touched() if f.startswith("rooftop/kernels/")]
    if not 0 < len(files) <= FEW:
        return False
    of = [file.path for file in registry.kernel_files() if file.op.removesuffix("_bwd") in {n.removesuffix("_bwd") for n in names}]
    rooms, stems = {p.parent.name for p in of}, {p.stem for p in of}
    return any(f.stem in stems or (f.parent.name in rooms and (f.stem == "choose" or f.name.startswith("_"))) for f in files)


def ops_of(values: Iterable[object]) -> list[str]:
    """Those of a test's parameters that are the names of ops."""
    return [v for v in values if isinstance(v, str) and v in _names()]


@cache
def _names() -> frozenset[str]:
    return frozenset(ops())


def edited_op(name: str) -> bool:
    """Whether the working tree or the last commit touches few contracts, and that of this op or of its forward is among them."""
    files = {Path(f).stem for f in touched() if f.startswith("rooftop/ops/")}
    return len(files) <= FEW and name.removesuffix("_bwd") in files


def drawn(part: int, *words: str) -> bool:
    """Whether what has these words is among those one in `part` that this commit draws."""
    return sha256(" ".join((seed(), *words)).encode()).digest()[0] % part == 0


def elements(subject: Subject, case: Case) -> int:
    return _elements(subject.op, case)


_SIZES: dict[tuple[str, str], int] = {}


def _elements(op: Contract, case: Case) -> int:
    """Of all tensors of a case: asked for each kernel of an op, and again to sort."""
    if (key := (op.name, case.id)) not in _SIZES:
        _SIZES[key] = sum(m.numel for _, m in op.problem(case).tensors if m is not None)
    return _SIZES[key]


def place(subject: Subject) -> tuple[str, str | None]:
    """Where a kernel runs without a GPU, and the reason if nowhere."""
    return checker.backend_of(subject, "cpu")


# -- what records say ----------------------------------------------------------------------------------------------


@cache
def _recorded() -> Proofs:
    return Proofs(committed(), answers())


_PROVEN: dict[tuple[str, str, str], bool] = {}


def proven(subject: Subject, case: Case) -> bool:
    """Whether a check of this case that was passed is of the kernel, the contract and the config as they are now."""
    key = (subject.op.name, subject.name, case.id)
    if key not in _PROVEN:
        _PROVEN[key] = _recorded().hold(subject, case)
    return _PROVEN[key]


# -- the plan ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Which cases run of each of `subjects`. `all_`: every case that the checker leaves to no GPU."""

    subjects: Sequence[Subject]
    seed: str
    all_: bool = False
    budget: int = BUDGET
    unproven_budget: int = UNPROVEN

    def candidates(self, subject: Subject) -> list[Case]:
        return [c for c in checker.select_cases(subject) if "huge" not in c.tags]

    @cached_property
    def sampled(self) -> Mapping[str, frozenset[str]]:
        """Kernel -> ids of its cases in the sample of all cases."""
        return self._shared_out({label(s): [c for c in self.candidates(s) if 0 < elements(s, c) <= LONGEST] for s in self.subjects}, self.budget)

    @cached_property
    def unproven(self) -> Mapping[str, frozenset[str]]:
        """Kernel -> ids of its cases that run because nothing proves them: the short ones and, at the end of its queue, one of the long ones."""
        found: dict[str, list[Case]] = {}
        for s in self.subjects:
            device = TARGETS[max(90, s.implementation.arch)] if s.implementation else TARGETS[90]
            open_ = [c for c in self.candidates(s) if not proven(s, c)]
            long = [c for c in open_ if elements(s, c) > LONGEST and fits(c) and not s.supports(c, device)]
            chosen = [random.Random(f"{self.seed} {label(s)}").choice(long)] if long else []
            found[label(s)] = [*(c for c in open_ if elements(s, c) <= LONGEST), *chosen]
        return self._shared_out(found, self.unproven_budget)

    def _shared_out(self, of: Mapping[str, Sequence[Case]], budget: int) -> Mapping[str, frozenset[str]]:
        """Each kernel's cases in an order of the seed's, a case of each kernel after the other, while the budget lasts. A kernel that has come to its end, or
        whose case is too long for what is left, leaves its turn to the next."""
        order = [s for s in self.subjects if label(s) in of]
        random.Random(self.seed).shuffle(order)
        queues = []
        for s in order:
            cases = list(of[label(s)])
            random.Random(f"{self.seed} {label(s)}").shuffle(cases)
            queues.append([(s, c) for c in sorted(cases, key=lambda c: elements(s, c) > LONGEST)])
        found: dict[str, set[str]] = {}
        left = budget
        for turn in zip_longest(*queues):
            for s, c in (pair for pair in turn if pair is not None):
                price = PRICE + elements(s, c)
                if price <= left:
                    left -= price
                    found.setdefault(label(s), set()).add(c.id)
        return {name: frozenset(ids) for name, ids in found.items()}

    def cases(self, subject: Subject) -> list[Case]:
        """Those of the sample and those that nothing proves, the shortest first."""
        everyone = sorted(self.candidates(subject), key=lambda c: elements(subject, c))
        if self.all_:
            return everyone
        mine = self.sampled.get(label(subject), frozenset()) | self.unproven.get(label(subject), frozenset())
        return [c for c in everyone if c.id in mine]

    def always(self, subject: Subject, case: Case) -> bool:
        """Whether it runs however long what has changed takes."""
        return self.all_ or case.id in self.sampled.get(label(subject), ())


def fits(case: Case) -> bool:
    """Whether the checker runs it without a GPU."""
    return checker._too_large(case, "interpreter") is None


def waiting() -> list[str]:
    """A line for each kernel that only a GPU can run and that has no check record as it is."""
    from rooftop.lab.check.unproven import gpu_only, unproven

    return [str(kernel) for kernel in unproven(committed(), answers=answers())] if any(gpu_only()) else []


@cache
def unchanged(name: str) -> bool:
    """Whether every edge case that this kernel takes is proven. A kernel that is not in the tree has changed."""
    subject = next((s for s in every() if s.name == name), None)
    if subject is None or subject.implementation is None:
        return False
    device = TARGETS[max(90, subject.implementation.arch)]
    edges = [c for c in checker.select_cases(subject, tags=("edge",)) if "huge" not in c.tags and not empty(subject, c) and not subject.supports(c, device)]
    return bool(edges) and all(proven(subject, c) for c in edges)


def empty(subject: Subject, case: Case) -> bool:
    """Whether nothing is launched for it."""
    return subject.op.idle(subject.op.problem(case))
