"""The commands that README.md, docs/ and the help texts print: each is one that the command line takes; those that cost little run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from _support import command

import rooftop
from rooftop.core import registry, settings
from rooftop.lab import candidates, cli

DOCUMENTS = [settings.CHECKOUT / "README.md", *sorted((settings.CHECKOUT / "docs").glob("*.md"))]
QUICK = ("ls", "show sgemm_cuda", "show sgemm_cuda/04", "--version", "explain softmax", "where softmax", "cache")
NAMES = ("check", "inspect", "bench", "sanitize", "tune", "simt", "sweep")  # commands whose words are ops, kernels, ladders, rungs or files
ELSEWHERE = ("my", "any", "mine", "scale", "rotate", "in.", "out", "square__mine", "x.", "softmax_cuda/11")  # such words stand for the reader's own


def printed() -> list[tuple[str, str]]:
    """(document, the words after `rooftop`): lines of blocks, and code in the text that is more than a command's name."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M)
        lines = [line for block in blocks for line in block.splitlines()]
        lines += re.findall(r"(?<!`)`(rooftop [^`\n]+)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
        for line in lines:
            match = re.match(r"\s*(?:\$ )?(?:\.venv/bin/)?rooftop (.+)", line)
            if match:
                found.append((path.name, re.split(r"\s+#|\s+[;|>]|\s*&&", match[1])[0].strip().rstrip(",.")))
    return list(dict.fromkeys(found))


@cache
def commands() -> Any:
    """All that the command line has, made once."""
    cli.commands()
    return typer.main.get_command(cli.app)


def described(group: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Each command and its help text, subcommands included."""
    for word, one in group.commands.items():
        yield f"{name}{word}", one.help
        if isinstance(one, typer.core.TyperGroup):
            yield from described(one, f"{name}{word} ")


HELP = dict(described(commands()))
EXAMPLES = [("help", words) for text in HELP.values() for words in re.findall(r"\[bold\]rooftop ([^|\[]+)\[/bold\]", text)]
COMMANDS = list(dict.fromkeys([*printed(), *EXAMPLES]))


@pytest.mark.parametrize("name", HELP)
def test_a_command_says_in_a_line_of_80_columns_what_it_does(name: str) -> None:
    first = HELP[name].partition("\n\n")[0]
    assert 10 < len(first) <= 63 and first.endswith("."), first
    assert first.split()[0] not in ("A", "An", "The", "For", "Of") and "\n" not in first, first


def test_there_are_commands_in_the_documents() -> None:
    assert len(COMMANDS) > 60 and len(EXAMPLES) > 60
    assert {name for name, _ in COMMANDS} >= {"README.md", "adding.md", "gpu.md", "simulator.md", "profiling.md"}


@pytest.mark.parametrize(("document", "words"), COMMANDS, ids=[f"{d}: {w}" for d, w in COMMANDS])
def test_a_printed_command_is_taken(document: str, words: str) -> None:
    group: Any = commands()
    given = [w for w in shlex.split(words.replace("...", ""), comments=True) if w]
    while isinstance(group, typer.core.TyperGroup) and given and not given[0].startswith("-"):
        name = given.pop(0)
        assert name in group.commands, f"{document}: rooftop has no command {name!r}"
        group = group.commands[name]
    if isinstance(group, typer.core.TyperGroup) or not given:
        return  # a command that is named, not given
    options = {o for p in group.params for o in (*p.opts, *p.secondary_opts)}
    if named := [w for w in given if w.startswith("--") and w.partition("=")[0] not in options and group.name != "profile"]:
        raise AssertionError(f"{document}: rooftop {words}: there is no option {named}")
    if given[-1].startswith("--") or any(re.fullmatch(r"[A-Z]+|<.*>", w) for w in given):
        return  # words that stand for others, an option without its value
    try:
        context = group.make_context(group.name, given)
    except Exception as error:
        assert type(error).__name__ == "MissingParameter", f"{document}: rooftop {words}: {error}"  # options alone, in the text
        return
    if group.name == "new" and context.params["kind"] == "rung":
        ladder, _, slug = context.params["name"].partition("/")
        assert int(slug[:2]) not in {rung.number for rung in registry.ladder(ladder).rungs}, f"{document}: number {slug[:2]} of {ladder} is taken"
    if group.name in NAMES:
        asked = context.params.get("what") or []
        known = [w for w in ([asked] if isinstance(asked, str) else asked) if not w.startswith(ELSEWHERE) and not Path(w).suffix]
        assert not known or candidates.find(known)


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("words", QUICK)
def test_a_command_of_the_readme_runs(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, *words.split()) == 0
    assert capsys.readouterr().out.strip()


def test_the_lines_of_python_at_the_top_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = re.findall(r"^```python\n(.*?)^```", DOCUMENTS[0].read_text(encoding="utf-8"), re.S | re.M)[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.cu").write_text((settings.PACKAGE / "ladders" / "softmax_cuda" / "01_naive.cu").read_text(encoding="utf-8").replace(
        "/* rooftop", '/* rooftop\nop = "softmax"', 1), encoding="utf-8")
    known = {"x": torch.randn(4, 64), "a": torch.randn(8, 16), "b": torch.randn(16, 8), "b0": torch.randn(8)}
    exec(block, known)
    torch.testing.assert_close(known["y"], torch.softmax(known["x"], -1))
    torch.testing.assert_close(known["my"](known["x"]), rooftop.softmax(known["x"]))
