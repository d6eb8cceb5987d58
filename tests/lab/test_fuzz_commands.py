"""Generated command lines: an exit code and plain lines, whatever is given."""

from __future__ import annotations

import subprocess
import sys

import _command_lines as fuzz
import pytest

from rooftop.core import settings


@pytest.mark.sampled("slow")
def test_generated_lines_end_with_an_exit_code(request: pytest.FixtureRequest) -> None:
    kinds, findings = fuzz.run(2000, seed=3) if request.config.getoption("--all") else fuzz.run(60, seed=3, seconds=10)
    assert findings == [] and kinds.total() >= 1


def test_the_fuzz_sees_tracebacks_signals_and_control_characters() -> None:
    ways = {
        "traceback": "raise TypeError('no')", "signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "control": "print('\\x1b[31m')",
        "code": "import sys; sys.exit(77)", "fine": "print('fine')",
    }
    found = {way: fuzz.judged([way], lambda: exec(ways[sys.argv[1]])) for way in ways}
    assert {way: kind for way, (kind, _) in found.items()} == {**dict.fromkeys(ways, "finding"), "fine": "ended with 0"}
    assert "TypeError: no" in found["traceback"][1] and "status 9" in found["signal"][1] and "control character" in found["control"][1]


def test_every_command_is_among_them() -> None:
    named = {tuple(words) for words, _ in fuzz._commands()}
    assert {("check",), ("compress",), ("records", "merge"), ("report",), ("simt",), ("stub",)} <= named


def test_no_line_runs_on_the_checkout_itself() -> None:
    kind, said = fuzz.judged(["ls"])
    assert kind == "finding" and "is no copy" in said
    with fuzz.copied() as tree:
        assert tree != settings.CHECKOUT and (tree / fuzz.MARK).is_file()
        assert (tree / "docs" / "trust.md").read_bytes() == (settings.CHECKOUT / "docs" / "trust.md").read_bytes()
        assert subprocess.run(["git", "status", "--porcelain"], cwd=tree, capture_output=True, check=True).stdout == b""
    assert not tree.exists()
