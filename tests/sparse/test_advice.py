"""The advice which layout to take, held against what was measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rooftop.core import settings
from rooftop.lab.records import store
from rooftop.lab.timing import sparse_auto
from rooftop.sparse import SparseTensor, advise
from rooftop.sparse.advice import Facts, facts, predicted


def rows() -> list[dict[str, Any]]:
    folder = settings.CHECKOUT / "results"
    mine = [r for r in store.read(folder) if r["kind"] == "clock" and r.get("subject") == sparse_auto.SUBJECT] if folder.is_dir() else []
    return max(mine, key=lambda r: str(r["at"]))["rows"] if mine else []


def test_the_way_that_is_taken_is_within_a_tenth_of_the_fastest() -> None:
    found = rows()
    if not found:
        pytest.skip("no record of sparse ways: python -m rooftop.lab.timing.sparse_auto makes one on a GPU")
    slow = {row["matrix"]: sparse_auto.judged(row) for row in found if sparse_auto.judged(row)[2] > 1.1}
    assert not slow, slow


def test_a_row_is_judged_by_what_was_timed() -> None:
    known = Facts(4096, 4096, 2, 4096 * 40, {8: 4096, 16: 3000, 32: 2000, 64: 900, 128: 51}, False)
    best = predicted(known, 2048).best
    assert (best.layout, best.block) == ("bsr", (128, 128))
    stored = {**known.__dict__, "blocks": {str(k): v for k, v in known.blocks.items()}}
    row = {"facts": stored, "n": 2048, "seconds": {"dense": 2.0, "bsr 128": 3.0, "csr": 1.5}}
    assert sparse_auto.judged(row) == ("bsr 128", "csr", 2.0)


@pytest.mark.parametrize("n", [64, 512, 4096])
def test_half_of_the_blocks_of_32_are_slower_than_dense(n: int) -> None:
    """As recorded on an H200: 1.2 to 2.2 times the dense product's time."""
    size = 8192
    blocks = size * size // 32**2 // 2
    assert predicted(Facts(size, size, 2, blocks * 32**2, {32: blocks}, False), n).best.layout == "dense"


def test_facts_count_blocks_and_groups() -> None:
    x = torch.zeros(64, 96, dtype=torch.bfloat16)
    x[0, 0], x[0, 3], x[40, 95] = 1, 2, 3
    found = facts(x)
    assert (found.nnz, found.blocks, found.semi) == (3, {8: 2, 16: 2, 32: 2, 64: 2, 128: 1}, True)
    x[0, 1] = 4
    assert not facts(SparseTensor.from_dense(x)).semi


def test_eight_bits_are_2_to_4_or_dense() -> None:
    x = torch.zeros(64, 64, dtype=torch.int8)
    x[:, ::2] = 1
    assert {w.layout for w in advise(x, 1024).ways} == {"dense", "2:4"}
    x[:, :3] = 1
    with pytest.raises(ValueError, match="8 bits"):
        _ = advise(x, 1024).sparse
