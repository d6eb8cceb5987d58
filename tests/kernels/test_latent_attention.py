"""Latent attention on Hopper, without a GPU: its warp groups as threads, judged by the contract."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rooftop.core import registry
from rooftop.core.backends.triton import GluonImplementation
from rooftop.core.implementation import Where
from rooftop.core.spec import TARGETS, Launch, Problem, Step, TorchCall
from rooftop.kernels.attention import latent_attention__gluon_sm90 as kernel
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from tests import _gluon_threads as threads

OP = registry.op("latent_attention")
NAME = "latent_attention__gluon_sm90"


def clear_rows(tile: threads.Shared, there: Any, rows: int) -> None:
    """What that of rooftop/kernels/attention/_packed_sm90.py does."""
    tile.values[int(there) :] = 0


PART = threads.functions(registry.implementation(NAME).path, clear_rows=clear_rows)["_part"]


@dataclasses.dataclass(frozen=True)
class InThreads(TorchCall):
    """A launch of the Gluon kernel, in threads."""

    step: Launch | None = None

    def run(self, memory: Mapping[str, Any]) -> None:
        assert self.step is not None
        threads.launch(PART, self.step.grid, self.step.args, memory)


class Interpreted(GluonImplementation):
    def runs(self) -> Where:
        return Where("interpreter")

    def steps(self, problem: Problem, config: Any) -> Sequence[Step]:
        found = super().steps(problem, config)
        return [InThreads(print, {}, s) if isinstance(s, Launch) and s.kernel is kernel._part else s for s in found]


def subject(**config: Any) -> Subject:
    kept = registry.implementation(NAME)
    found = Interpreted(kept.path, kept.op, kept.name, kept.arch)
    found.choose = lambda p: dataclasses.replace(kept.choose(p), **config)  # type: ignore[method-assign]
    return Subject("in threads", OP, found)


CASES = [c for c in OP.cases if "bench" not in c.tags and kernel.supports(OP.kernel_problem(OP.problem(c, TARGETS["h200"]))) is None]


@pytest.mark.sampled("kernels", NAME)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_its_warp_groups_in_threads(case: Any) -> None:
    for config in ({"first": True}, {"first": False}, {"parts": 2}):
        found = checker.check(subject(**config), case, backend="interpreter")
        assert found.status == "ok", (config, found.message)
