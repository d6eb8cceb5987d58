"""What can be checked, timed and inspected: an implementation, a rung, a user's file, or a peer, each for one op."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rooftop.core import registry, settings
from rooftop.core.call import Call, problem_for_kernels
from rooftop.core.contract import Contract
from rooftop.core.head import Head
from rooftop.core.implementation import Implementation
from rooftop.core.names import RegistryError
from rooftop.core.spec import Case, Device, Problem
from rooftop.lab.records import identity
from rooftop.lab.records.identity import Identity
from rooftop.lab.records.identity import Memo as Memo


@dataclass(frozen=True)
class Subject:
    """One thing that computes an op. `name` is what records call it."""

    name: str
    op: Contract
    implementation: Implementation | None = None
    rung: registry.Rung | None = None
    peer: str | None = None

    @property
    def head(self) -> Head | None:
        """The words about it: a rung's own, even where the kernel is the shipped one."""
        return self.rung.head if self.rung else self.implementation.head if self.implementation else None

    @cached_property
    def function(self) -> Callable[..., Any]:
        """A peer as a callable with the reference's signature. Raises ImportError where it is absent."""
        assert self.peer is not None
        return self.op.peers[self.peer]()

    def absent(self) -> str | None:
        """None, or why a peer cannot be had here."""
        if self.peer is None:
            return None
        try:
            _ = self.function
        except ImportError as error:
            return f"{self.peer} is not installed ({error})"
        return None

    def kernel_problem(self, case: Case, device: Device) -> tuple[Problem, Problem]:
        """The case's problem as called and as kernels see it."""
        problem = self.op.problem(case, device)
        return problem, problem_for_kernels(self.op, problem)[0]

    def call(self, case: Case, device: Device) -> Call:
        """The case as this kernel runs it. Raises UnsupportedError where it cannot."""
        assert self.implementation is not None, f"{self.name} is no kernel"
        return Call.of(self.op, self.implementation, self.op.problem(case, device))

    def supports(self, case: Case, device: Device, memo: Memo | None = None) -> str | None:
        """None, or the reason why it cannot take the case. `memo`: what was worked out for other subjects; grows."""
        if self.implementation is None:
            return None
        return self.implementation.supports((memo or Memo()).problem(self.op, case, device))

    def identity(self, case: Case, device: Device, memo: Memo | None = None) -> Identity:
        """What a record of it depends on. `memo`: what was worked out for other subjects; grows."""
        return identity.of(self, [case], device, memo)

    def digest(self, case: Case, device: Device, memo: Memo | None = None) -> str:
        """Hash of all that what is computed, compiled or counted of it depends on: a key of caches."""
        return self.identity(case, device, memo).key


def implementations(op: Contract) -> list[Subject]:
    return [Subject(i.name, op, i) for i in registry.implementations((op.twin_of or op).name)]


def peers(op: Contract) -> list[Subject]:
    return [Subject(f"peer:{name}", op, peer=name) for name in op.peers]


def rungs(ladder: registry.Ladder) -> list[Subject]:
    op = registry.op(ladder.op)
    return [Subject(r.name, op, r.implementation, r) for r in ladder.rungs]


def find(names: Iterable[str], otherwise: str | None = None) -> list[Subject]:
    """What the words on a command line mean: ops (their implementations), implementations, ladders, rungs, files. None: everything.
    `otherwise`: the op of a file whose head names none.

    Raises RegistryError for a word that means none of these."""
    words = list(names)
    if not words:
        words = [*_ops_with_kernels(), *registry.ladder_names()]
    found: list[Subject] = []
    for word in words:
        found += [s for s in _one(word, otherwise) if s.name not in {f.name for f in found}]
    return found


def is_own_file(word: str) -> bool:
    """Whether a word of a command line is a file of the user's, not one of the package's."""
    path = Path(word)
    return path.suffix in (".cu", ".py") and path.is_file() and not path.resolve().is_relative_to(settings.PACKAGE)


def _ops_with_kernels() -> list[str]:
    return sorted({f.op for f in registry.kernel_files()} | set(registry.op_names()))


def _one(word: str, otherwise: str | None = None) -> list[Subject]:
    path = Path(word)
    if path.suffix in (".cu", ".py"):
        for rung_subject in (s for ladder in registry.ladder_names() for s in rungs(registry.ladder(ladder))):
            if rung_subject.rung and path.exists() and rung_subject.rung.path.samefile(path):
                return [rung_subject]
        for file in registry.kernel_files():
            if path.exists() and file.path.samefile(path):
                return [Subject(file.name, registry.op(file.op), registry.implementation(file.name))]
        found = registry.user_file(path, otherwise)
        return [Subject(found.name, registry.op(found.op), found)]
    if path.is_dir() and word not in (*registry.ladder_names(), *_ops_with_kernels()):
        raise RegistryError(f"{word} is a folder; name files in it, or an op, an implementation, a ladder or a rung (rooftop ls)")
    if "/" in word:
        rung = registry.rung(word)
        return [Subject(rung.name, registry.op(registry.ladder(rung.ladder).op), rung.implementation, rung)]
    if word in registry.ladder_names():  # "spmm_24" and "attention_bwd" are ops as well
        return [*(implementations(registry.op(word)) if word in _ops_with_kernels() else []), *rungs(registry.ladder(word))]
    kernels = {f.name: f for f in registry.kernel_files()}
    if word in kernels:
        return [Subject(word, registry.op(kernels[word].op), registry.implementation(word))]
    if word in _ops_with_kernels() or word.removesuffix("_bwd") in registry.op_names():
        return implementations(registry.op(word))
    raise registry.unknown("op, implementation, ladder or rung", word, [*_ops_with_kernels(), *kernels, *registry.ladder_names()])
