"""Where the shipped kernel differs from the last rung of its ladder: on its page, from the files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from _report import Strict, make
from _support import committed

from rooftop.core import registry
from rooftop.lab.candidates import Memo
from rooftop.lab.report import beyond, ladder_text
from rooftop.lab.report.data import Gatherer
from rooftop.lab.report.ladder_cases import headline_of


def test_a_page_tells_where_the_shipped_kernel_differs_from_the_last_rung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(tmp_path, monkeypatch)
    kernel = tmp_path / "kernels" / "simple" / "scale__cuda.cu"
    text = kernel.read_text(encoding="utf-8").replace("if (i < n)", 'asm volatile("cp.async.bulk.commit_group;");\n    if (i < n)')
    kernel.write_text(text.replace("template <typename T>", "// wgmma: only said\ntemplate <typename T>"), encoding="utf-8")
    page = made.page([])
    assert list(page.beyond) == [
        "Rung 02, the last in a file of its own, is 5 lines of code in 1 file; scale__cuda is 6 lines of code in 1 file; new: scale__cuda.cu.",
        "Of the hardware, only the shipped kernel uses TMA.",
        "At big f32, rung 02 launches 131072 blocks of 256 threads; the shipped kernel 262144 blocks of 128 threads.",
        "In the config of that launch, threads is 128 instead of 256.",
        "Of the 3 timed cases of scale, rung 02 takes 2 and the shipped kernel 3, among them odd f32, which the rung does not.",
    ]
    assert " ".join(page.beyond) in Strict(made.build([])[1]).text
    assert list(ladder_text.overview(page))[-5:] == [f"  {line}" for line in page.beyond]


def test_each_ladder_of_the_tree_tells_so_in_five_lines() -> None:
    gatherer, silent = Gatherer([]), []
    for name in registry.ladder_names():
        ladder = registry.ladder(name)
        told = gatherer._beyond(ladder, registry.op(ladder.op))
        silent += [] if told else [name]
        assert len(told) <= 5 and all(len(line) < 420 and line.endswith(".") for line in told), told
    assert not silent


def test_of_plain_torch_and_of_a_ladder_that_is_the_shipped_kernel_nothing_is_said() -> None:
    ladder = registry.ladder("gelu_cuda")
    op, rung = registry.op("gelu"), ladder.rungs[0]
    case = next(c for c in op.cases if "bench" in c.tags)
    assert list(beyond.lines(ladder, op, None, case, Memo())) == []
    alone = registry.Ladder(**{**ladder.__dict__, "rungs": (rung,)})
    assert list(beyond.lines(alone, op, rung.implementation, case, Memo())) == []


GRADUAL = ("attention_fwd", "hgemm_hopper", "layer_norm_cuda", "reduce_cuda", "rms_norm_cuda", "softmax_cuda", "topk_cuda")
LINES, SPEED = 1 / 3, 0.85  # of the shipped kernel's, at least


@pytest.mark.parametrize("name", GRADUAL)
def test_the_rung_before_the_shipped_kernel_is_no_cliff(name: str) -> None:
    """It has a third of the lines, and where both are timed at the headline on one card, 0.85 of the speed."""
    ladder = registry.ladder(name)
    op, at = registry.op(ladder.op), ladder.rungs
    before, after = next((a, b) for a, b in pairwise(at) if b.path.suffix == ".toml" and a.path.suffix != ".toml" and b.number > 5)
    old, new = (sum(len(beyond._code(p).splitlines()) for p in beyond._files(r.implementation.path, op)) for r in (before, after))
    assert old >= LINES * new, f"{before.name} has {old} lines of code, {after.name} {new}"
    measured = Gatherer([r for r in committed() if r.subject in (before.name, after.name)]).measured
    case = headline_of(ladder, op).id
    for card in {card for card, *_ in measured}:
        slow, fast = (measured.get((card, op.name, r.name, case)) for r in (before, after))
        if slow and fast and slow.kernel and fast.kernel and not slow.stale and not fast.stale:
            assert fast.seconds / slow.seconds >= SPEED, f"{before.name} on {card}"
