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


def test_what_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="has rungs 1 to 10; given 11"):
        list(ladder_text.rung(ladder_text.page_of("softmax_cuda", []), 11))
    with pytest.raises(RegistryError, match="no ladder 'nix'"):
        ladder_text.page_of("nix", [])


@pytest.mark.sampled("slow")
@pytest.mark.parametrize(("name", "code"), [("softmax_cuda/02", 0), ("softmax_cuda/x", 1), ("softmax_cuda/99", 1)])
def test_the_command_says_what_is_wrong_with_a_name(name: str, code: int) -> None:
    commands()
    found = CliRunner().invoke(app, ["show", name])
    assert (found.exit_code == 0) == (code == 0)
