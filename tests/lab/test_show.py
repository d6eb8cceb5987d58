"""`rooftop show`: a ladder in the terminal."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rooftop.core import registry
from rooftop.core.registry import RegistryError
from rooftop.lab.cli import app, commands
from rooftop.lab.report import ladder_text


def test_every_rung_has_its_idea_and_what_it_changes() -> None:
    page = ladder_text.page_of("softmax_cuda", [])
    shown = "\n".join(ladder_text.overview(page))
    ladder = registry.ladder("softmax_cuda")
    assert all(rung.name in shown and rung.head is not None and rung.head.idea.split(".")[0][:40] in shown for rung in ladder.rungs)
    assert "25 lines more, 16 less than naive" in shown and "predicted speedup 10, not measured" in shown


def test_a_rung_shows_the_difference_from_the_one_before_without_the_words_of_its_head() -> None:
    page = ladder_text.page_of("softmax_cuda", [])
    lines = list(ladder_text.rung(page, 4))
    assert "-    __shared__ float shared[THREADS];" in lines and any(line.startswith("+") and "__shfl_xor_sync" in line for line in lines)
    assert not any(line.startswith(("+idea", "-idea", "+limit", "-limit")) for line in lines)
    assert any("__global__" in line for line in ladder_text.rung(page, 1))  # the first rung is shown whole


@pytest.mark.parametrize(("name", "said"), [
    ("nix", "no ladder 'nix'"), ("softmax_cuda/x", "no rung 'softmax_cuda/x'"), ("softmax_cuda/99", "no rung 'softmax_cuda/99'"),
    ("topk_cuda/06_pivot", "it is 'topk_cuda/08_every_order' now"),  # not rung 06 of today, which is another
])
def test_the_command_says_what_is_wrong_with_a_name(name: str, said: str) -> None:
    commands()
    found = CliRunner().invoke(app, ["show", name])
    assert isinstance(found.exception, RegistryError) and said in str(found.exception)


@pytest.mark.sampled("slow")
def test_the_command_takes_a_rung_by_its_number() -> None:
    commands()
    assert "softmax_cuda/02" in CliRunner().invoke(app, ["show", "softmax_cuda/02"]).stdout
