"""What once got past a check or a limit, and the records of what was tried against the whole."""

from __future__ import annotations

import _attacks
import pytest
from _support import committed

from rooftop.core import settings
from rooftop.lab import simt
from rooftop.lab.records import trials

LEAST = {  # what docs/trust.md must be able to quote
    "mutated containers": 1_000_000, "mutated records": 10_000, "generated command lines": 2_000, "runs of 4,096 random system calls": 200,
    "attacks of tests/attack": len(_attacks.ATTACKS),
}


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("attack", _attacks.ATTACKS, ids=lambda a: f"{a.name} {' '.join(a.environment)}".strip())
def test_an_attack_ends_as_promised(attack: _attacks.Attack) -> None:
    if "simt" in attack.says or attack.name.endswith(".cu"):
        reason = simt.unavailable()
        if reason is not None:
            pytest.skip(str(reason))
    kind, what = _attacks.judged(attack)
    if kind.startswith("absent"):
        pytest.skip(kind)
    assert kind == "as promised", what


def test_every_file_of_the_folder_is_tried() -> None:
    helps = {"ref.py"}
    assert {p.name for p in _attacks.FOLDER.iterdir() if p.is_file()} - helps <= {a.name for a in _attacks.ATTACKS}


@pytest.mark.sampled("slow")
def test_a_broken_promise_is_seen() -> None:
    for attack in (_attacks.Attack("right", ("ls", "--nosuch"), 0, "nosuch"), _attacks.Attack("right", ("--version",), 0, "nosuch")):
        kind, what = _attacks.judged(attack)
        assert kind == trials.FINDING and ("it ended with 1, not 0" in what or "it does not say nosuch" in what)


@pytest.mark.parametrize("what", LEAST)
def test_the_committed_records_hold_what_the_page_quotes(what: str) -> None:
    came = trials.outcomes(trials.campaigns(committed())[what])
    assert came.total() >= LEAST[what] and came[trials.FINDING] == 0
    assert f"| {what} | {came.total():,} |" in (settings.CHECKOUT / "docs" / "trust.md").read_text(encoding="utf-8")
