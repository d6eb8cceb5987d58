"""docs/tutorial.md: its Python runs, its commands print what it shows."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rooftop.core import settings
from rooftop.lab.cli import app, commands
from rooftop.lab.report import document

TEXT = (settings.CHECKOUT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def steps() -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """(language, code, what it prints, the files saved before) of each block that is run."""
    files: dict[str, str] = {}
    blocks = re.findall(r"(?:`([\w.]+)`:\n\n)?^```(\w*)\n(.*?)^```", TEXT, re.S | re.M)
    for (name, language, code), (_, after, printed) in zip(blocks, [*blocks[1:], ("", "", "")], strict=True):
        if language == "cuda":
            files[name] = code
        elif language:
            assert not after, f"{code}: what it prints must follow"
            yield language, code, printed, dict(files)


STEPS = list(steps())


def matches(shown: str, printed: str) -> None:
    """Line by line, in order; `...` stands for any lines, and within a line for any text."""
    lines = [line.rstrip() for line in printed.splitlines()]
    at, anywhere = 0, False
    for want in shown.splitlines():
        if want.strip() == "...":
            anywhere = True
            continue
        pattern = re.compile(".*".join(map(re.escape, want.rstrip().split("..."))))
        found = next((i for i in range(at, len(lines) if anywhere else at + 1) if i < len(lines) and pattern.fullmatch(lines[i])), None)
        assert found is not None, f"not printed: {want}\n--- printed:\n{printed}"
        at, anywhere = found + 1, False
    assert anywhere or at == len(lines), f"more is printed:\n{printed}"


@pytest.mark.parametrize(
    ("language", "code", "shown", "files"), [pytest.param(*s, marks=[pytest.mark.sampled("slow")] if " simt " in s[1] else [], id=s[1].split("\n")[0][:40])
                                             for s in STEPS]
)
def test_a_step_prints_what_the_tutorial_shows(
    language: str, code: str, shown: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOFTOP_PREDICTIONS", str(tmp_path / "predictions.jsonl"))
    if language == "python":
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "tutorial", "exec"), {})
        matches(shown, printed.getvalue())
        return
    (line,) = code.splitlines()
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    if files and any(name in line for name in files):
        monkeypatch.chdir(tmp_path)
    else:
        monkeypatch.chdir(settings.CHECKOUT)
    commands()
    monkeypatch.setenv("COLUMNS", "300")
    program, *words = shlex.split(line)
    assert program == "rooftop"
    matches(shown, CliRunner().invoke(app, words).stdout)


def test_a_step_that_prints_something_else_is_told() -> None:
    matches("a\n...\nb ... d\n", "a\nx\nb c d\n")
    for shown in ("a\nb c d\n", "...\nb ... e\n", "a\n...\nb c d\nmore\n", "a\n"):
        with pytest.raises(AssertionError):
            matches(shown, "a\nx\nb c d\n")


def test_the_page_has_every_chapter_and_all_code() -> None:
    page = document.html(TEXT)
    assert [heading for _, heading in document.chapters(TEXT)] == re.findall(r"^## (.*)", TEXT, re.M)
    assert page.count("<h2") == len(list(document.chapters(TEXT))) >= 5
    for language, code, _, _ in STEPS:
        assert language and code.splitlines()[-1].split("(")[0].split("&")[0][:20] in page
    assert "`" not in re.sub(r"<pre.*?</pre>", "", page, flags=re.S) and "](" not in page
    assert document.html("a <b> & `<c>` [text](other.md) *x*") == "<p>a &lt;b&gt; &amp; <code>&lt;c&gt;</code> text <i>x</i></p>"
