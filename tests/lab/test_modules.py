"""Modules that are called as `python -m rooftop.lab....`: what a user can mend is one line and an exit code."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from rooftop.core import settings
from rooftop.lab.exit_codes import ended


@pytest.mark.parametrize(
    ("module", "words", "code", "says"),
    [
        ("timing.sparse_auto", [], 1, "required: folder"),
        ("timing.sparse_auto", ["{here}"], 3, "timing needs an NVIDIA GPU"),
        ("timing.languages", [], 1, "required: what, folder"),
        ("timing.languages", ["third", "{here}"], 1, "invalid choice: 'third'"),
        ("timing.languages", ["first", "{here}"], 3, "the first call needs an NVIDIA GPU"),
        ("timing.languages", ["compile", "{here}/file"], 3, "file is a file; a folder is needed"),
        ("fuzz.selection", [], 3, "the device cuda needs an NVIDIA GPU"),
        ("fuzz.selection", ["--device", "tpu"], 1, "'tpu' is not cpu, cuda or cuda:N"),
        ("fuzz.selection", ["--rows", "0"], 1, "'0' is not a whole number above 0"),
        ("fuzz.containers", ["--streams", "-1"], 1, "'-1' is not a whole number above 0"),
        ("fuzz.containers", ["--to", "cuda"], 3, "needs an NVIDIA GPU"),
        ("fuzz.containers", ["--streams", "1", "--records", "{here}/file"], 3, "file is a file; a folder is needed"),
        ("fuzz.records", ["--lines", "0"], 1, "'0' is not a whole number above 0"),
        ("fuzz.calls", [], 1, "set ROOFTOP_SIMT_SECONDS to 10 or less"),
        ("counters.collect", [], 3, "counters need an NVIDIA GPU"),
        ("counters.collect", ["--tiers", "third"], 1, "'third' is not one of lines, traffic"),
        ("counters.collect", ["--shape", "M"], 1, "'M' is not of the form"),
        ("counters.collect", ["nothere"], 1, "no op, implementation, ladder or rung 'nothere'"),
        ("counters.compare", ["--out", "{here}/file"], 3, "file is a file; a folder is needed"),
        ("report.perplexity", ["--out", "{here}/file"], 3, "file is a file; a folder is needed"),
        ("report.perplexity", ["--steps", "many"], 1, "'many' is not a whole number above 0"),
    ],
)
def test_what_is_wrong_is_one_line(
    module: str, words: list[str], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr("sys.argv", [module, *(w.format(here=tmp_path) for w in words)])
    with pytest.raises(SystemExit) as exit:
        ended(importlib.import_module(f"rooftop.lab.{module}").main)
    said = capsys.readouterr().err
    assert exit.value.code == code and says in said and len(said.strip().splitlines()) == 1, said


def test_every_module_ends_so_but_those_that_other_modules_start() -> None:
    """A child answers the module that started it, and is no command."""
    children = {
        "__main__", "apart_child", "ascend_child", "child", "command_child", "drive", "elsewhere",
        "job_child", "judge_child", "python_child", "reference_child", "sanitize", "targets_child",
    }
    for path in sorted((settings.PACKAGE / "lab").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if '__name__ == "__main__":' in text and path.stem not in children:
            assert "    ended(" in text.partition('__name__ == "__main__":')[2], path
