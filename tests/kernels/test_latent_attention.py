"""Latent attention on Hopper, without a GPU: its warp groups as threads, judged by the contract."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from _kernels import right

from rooftop.core import registry
from rooftop.core.backends.triton import GluonImplementation
from rooftop.core.implementation import Implementation, Where
from rooftop.core.spec import TARGETS, Input, Launch, Problem, Step, TorchCall
from rooftop.core.spec import case as new_case
from rooftop.kernels.attention import latent_attention__gluon_sm90 as kernel
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from tests import _gluon_threads as threads

OP = registry.op("latent_attention")
NAME = "latent_attention__gluon_sm90"


def clear_rows(tile: threads.Shared, there: Any, rows: int) -> None:
    """What that of rooftop/kernels/attention/_packed_sm90.py does."""
    tile.values[int(there) :] = 0


def load_codes(words: threads.Pointer, c_ring: threads.Shared, r_ring: threads.Shared, full: Any, empty: Any, table: threads.Pointer, begin: int,
               end: int, keys: int, kb: int, ks: int, PAGES: int, V: int, R: int, PAGE: int, BN: int) -> None:
    """What that of rooftop/kernels/attention/_latent_coded_sm90.py does."""
    codes = torch.empty(0, dtype=torch.float8_e4m3fn).set_(words.tensor.untyped_storage())
    for n, token in enumerate(range(begin, end, BN)):
        tile = torch.zeros(BN, V + R)
        for i, row in enumerate(range(token, min(token + BN, keys))):
            page = int(threads.LANGUAGE.load(table + row // PAGE)) if PAGE else 0
            if 0 <= page < PAGES or not PAGE:
                at = 4 * (int(words.at) + page * kb + (row % PAGE if PAGE else row) * ks)
                tile[i] = codes[at : at + V + R].float()
        half, slot, parity = c_ring.shape[4], n % 2, n // 2 & 1 ^ 1
        pieces = [(2, r_ring.index(slot), tile[:, V:])] if R else []
        pieces += [(i, c_ring.index(2 * slot + i), tile[:, :V][:, i * half : (i + 1) * half]) for i in range(2)]
        for i, to, values in pieces:
            threads.MBARRIER.wait(empty.index(3 * slot + i), parity)
            to.values[...] = 0
            to.values[..., : values.shape[1]] = values.numpy()
            threads.MBARRIER.arrive(full.index(3 * slot + i))


GIVEN = {"clear_rows": clear_rows, "load_codes": load_codes}
FILE = registry.implementation(NAME).path
GROUPS = FILE.with_name("_latent_groups_sm90.py")


def part_of(groups: Path) -> Any:
    """The launch, with the warp groups of a file."""
    return threads.functions(FILE, **threads.functions(groups, **GIVEN))["_part"]


PART = part_of(GROUPS)


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


def in_threads(**config: Any) -> Implementation:
    kept = registry.implementation(NAME)
    found = Interpreted(kept.path, kept.op, kept.name, kept.arch)
    found.choose = lambda p: dataclasses.replace(kept.choose(p), **config)  # type: ignore[method-assign]
    return found


CASES = [c for c in OP.cases if "bench" not in c.tags and kernel.supports(OP.kernel_problem(OP.problem(c, TARGETS["h200"]))) is None]


@pytest.mark.sampled("kernels", NAME)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_its_warp_groups_in_threads(case: Any) -> None:
    right(in_threads(), case, seed=0)


def long(tokens: int) -> Any:
    q, kv = Input((1, 3, 8, 192), "bf16"), Input((1, tokens, 1, 192), "bf16")
    return new_case("long", q=q, kv=kv, value_size=128, right=0, scale=192**-0.5)


@pytest.mark.sampled("kernels", NAME)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("tokens", [384, 400])  # 6 tiles of 64 tokens, and 7
def test_long_sequences_in_threads(tokens: int, parts: int) -> None:
    right(in_threads(parts=parts), long(tokens), seed=0)


WAIT = "        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))\n"


@pytest.mark.sampled("kernels", NAME)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{WAIT}        mbarrier.arrive(empty.index(0), count=1)\n", f"        mbarrier.arrive(empty.index(0), count=1)\n{WAIT}"),
        (f"{WAIT}        mbarrier.arrive(empty.index(4), count=1)\n", f"        mbarrier.arrive(empty.index(4), count=1)\n{WAIT}"),
        ("mbarrier.wait(free, phase ^ 1)", "mbarrier.wait(free, phase)"),
        ("        _landed(p_full.index(0), i & 1, CODED)\n", ""),
    ],
    ids=["a piece released before its product", "another", "a wait for the wrong phase", "weights that are not waited for"],
)
def test_a_fault_between_warp_groups_shows(before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = GROUPS.read_text(encoding="utf-8")
    assert before in text
    wrong = tmp_path / "wrong.py"
    wrong.write_text(text.replace(before, after), encoding="utf-8")
    monkeypatch.setattr(threads, "SECONDS", 5.0)
    monkeypatch.setitem(globals(), "PART", part_of(wrong))
    assert checker.check(Subject("wrong", OP, in_threads(parts=1)), long(400), backend="interpreter").status in ("wrong", "error")
