"""What the pages' search looks through: every page, rung, public name and chapter, as a script that a page loads when a reader first
types."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from rooftop.lab.report import document
from rooftop.lab.report.data import SiteData
from rooftop.lab.report.reference import Entry

FILE = "search.js"
LONGEST = 110  # letters of a line


def entries(site: SiteData, spaces: Iterable[tuple[str, str, tuple[Entry, ...]]]) -> Iterator[tuple[str, ...]]:
    """(kind, title, line, address), and texts that are found but not shown: what limits a rung, the docstring of an op's function."""
    kernels = set[str]()
    if site.tutorial:
        yield "tutorial", document.title(site.tutorial), "tutorial: start here", "tutorial.html"
        for anchor, title in document.chapters(site.tutorial):
            yield "tutorial", title, "", f"tutorial.html#{anchor}"
    for ladder in site.ladders:
        yield "ladder", ladder.name, f"{ladder.title}. {ladder.line}", ladder.file, ladder.intro
        for rung in ladder.rungs:
            yield "rung", f"{ladder.name}/{rung.number:02d} {rung.title}", rung.idea, f"{ladder.file}#{rung.anchor}", rung.limit
    for op in site.ops:
        yield "op", op.name, op.line, op.file, op.entry.doc if op.entry else ""
        for i in (i for i in op.implementations if i.name not in kernels):  # one that serves several ops is found once
            kernels.add(i.name)
            yield "kernel", i.name, "", f"{op.file}#kernels"
    for card in site.cards:
        yield "card", card.device.short, "ceilings as measured", card.file
    pages = {op.name for op in site.ops}
    for space, _, found in spaces:
        for e in found:
            if space != "rooftop" or e.name not in pages:  # its page is found
                yield "API", e.anchor, e.line, f"api.html#{e.anchor}", e.doc


def script(site: SiteData, spaces: Iterable[tuple[str, str, tuple[Entry, ...]]]) -> str:
    rows = [[kind, title, _short(line), address, _rest(title, line, *more)] for kind, title, line, address, *more in entries(site, spaces)]
    return f"window.rooftopPages={json.dumps(rows, ensure_ascii=True, separators=(',', ':'))};\n"


def _short(line: str) -> str:
    line = re.sub(r"\s+", " ", line).replace("`", "")
    return line if len(line) <= LONGEST else line[: LONGEST - 3].rpartition(" ")[0] + "..."


def _rest(title: str, *texts: str) -> str:
    """The words of `texts` that a result does not show, each once."""
    shown = set(_words(f"{title} {_short(texts[0])}"))
    return " ".join(dict.fromkeys(w for w in _words(" ".join(texts)) if w not in shown))


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())
