"""What comes from outside is shown as it is: no command obeys control characters, rich's markup or Markdown in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from _support import command, committed

from rooftop.core import settings
from rooftop.core.texts import LINE, brief, line, markdown, printable
from rooftop.lab import exit_codes
from rooftop.lab.cli import cased
from rooftop.lab.cli.app import table
from rooftop.lab.report import documents

FORGED = "\x1b[2J\x1b[31mforged\x1b[0m [bold]x[/bold] \x9b1m \u202eabc \x07\r\x00"
SHOWN = "\\x1b[2J\\x1b[31mforged\\x1b[0m [bold]x[/bold] \\x9b1m \\u202eabc \\x07\\r\\x00"


def plain(text: str) -> bool:
    return not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", text)


def test_control_characters_are_written_out() -> None:
    assert printable(FORGED) == SHOWN and printable("two\nlines\tπ µ ─ é") == "two\nlines\tπ µ ─ é" and printable("\ud800") == "\\ud800"
    assert line("a\nb" + "x" * 50, 20) == "a\\nb" + "x" * 13 + "..."


def test_commands_print_them_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    exit_codes.echo(FORGED)
    table([{"a": FORGED, "b": 1}], {"a": "name", "b": "count"}, False)
    table([{"a": FORGED + "y" * 90, "b": FORGED}], {"a": "name", "b": "long"}, False)
    for words in (("show", FORGED), ("check", FORGED), ("decompress", "nosuch" + FORGED.replace("\x00", ""))):
        assert command(monkeypatch, *words) == 1
    said = capsys.readouterr()
    assert plain(said.out + said.err) and re.sub(r"\s", "", said.out).count("[bold]x[/bold]") == 4 and "forged" in said.err


@pytest.mark.parametrize("words", [["check", "{}"], ["{}"], ["show", "{}"], ["explain", "softmax", "--arch", "{}"], ["bench", "softmax", "--budget", "{}"]])
def test_a_long_name_is_named_not_repeated(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(monkeypatch, *(w.format("a" * 100_000) for w in words)) in (1, 3)
    said = capsys.readouterr().err
    assert 100 < len(said) < 3000 and "aaa..." in said.replace("\n", "")


def test_an_error_keeps_its_remedy() -> None:
    said = brief(f"no op {'x' * 5000}, rooftop ls lists them")
    assert said.startswith("no op xxx") and said.endswith("x... rooftop ls lists them") and len(said) < 500
    assert brief("\x1b[1m") == "\\x1b[1m" and len(brief("a b " * 5000)) == LINE


def test_one_place_prints() -> None:
    found = [p.name for p in (settings.PACKAGE / "lab").rglob("*.py") if "typer.echo" in p.read_text(encoding="utf-8")]
    assert sorted(found) == ["exit_codes.py", "simt.py"]  # simt: lines with colours of its own, of texts that are printable


def test_markdown_of_a_record_is_no_markup() -> None:
    assert markdown({"a|b": ["<!-- /generated -->", 1, None, "two\nlines `x` [y](z) *w* \\"]}) == {
        "a\\|b": ["\\<!-- /generated --\\>", 1, None, "two lines \\`x\\` \\[y\\](z) \\*w\\* \\\\"]
    }


@pytest.mark.sampled("slow")
def test_tables_of_the_docs_keep_their_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of records whose texts would end a cell, a row, the table or the generated part."""
    for name, kept in (("TABLES", {("docs/formats.md", "perplexity"): documents.perplexity}), ("DRAWN", {}), ("PICTURES", {})):
        monkeypatch.setattr(documents, name, kept)  # the others take seconds
    hostile = " | <!-- /generated --> [x](javascript:y) <script> "
    found: list[Any] = []
    for r in committed():
        if r["kind"] == "clock" and r.get("subject") == "perplexity":
            found = [r.but(rows=[{**row, "way": row["way"] + hostile} for row in r["rows"]], device={**r.device, "name": "card" + hostile})]
    assert found
    text = documents.pages(settings.CHECKOUT, found)["docs/formats.md"]
    made = text.partition("<!-- generated: perplexity -->")[2].partition(documents.END)[0]
    rows = [line for line in made.splitlines() if line.startswith("|")]
    assert len(rows) == len(found[0]["rows"]) + 2 and {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}
    assert not re.search(r"(?<!\\)[<\[]", made)


@pytest.mark.sampled("slow")
def test_a_source_with_control_characters_is_shown_in_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from rooftop.lab import simt

    if reason := simt.unavailable():
        pytest.skip(reason)
    (tmp_path / "bad.cu").write_text(
        '/* rooftop\nargs = ["N: i32", "x: f32[N]", "y: f32[N]"]\n[[launch]]\nkernel = "twice"\ngrid = ["ceil(N / 256)"]\nblock = [256]\n*/\n'
        "__global__ void twice(int n, const float* x, float* y) {\n    int i = blockIdx.x * 256 + threadIdx.x;\n"
        f"    if (i < n) y[i + 1] = 2 * x[i]; // {FORGED[:-2]}\n}}\n"
    )
    assert command(monkeypatch, "simt", str(tmp_path / "bad.cu"), "--shape", "N=300") == 1
    said = capsys.readouterr()
    assert plain(said.out + said.err) and "\\x1b[31mforged" in said.out


def test_a_number_of_shape_may_be_no_size() -> None:
    assert cased.sizes("N=3,a=4x5,eps=1e-5") == {"N": (3,), "a": (4, 5), "eps": (1e-5,)}
    with pytest.raises(ValueError, match=r"^--shape 'eps=high': it is written NAME=SIZE [^\n]*$"):
        cased.sizes("N=3,eps=high")
