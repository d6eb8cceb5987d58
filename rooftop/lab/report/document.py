"""A document of docs/ as HTML: headings, paragraphs, lists, blocks of code, and in a line code, emphasis and links. Of Markdown only what
they use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from markupsafe import Markup, escape


def title(text: str) -> str:
    """The first heading."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else ""


def plain(text: str) -> str:
    """A paragraph without its markup: of links the words."""
    return re.sub(r"\[([^\]]+)\]\([^)]*\)|[*`]", lambda m: m[1] or "", " ".join(text.split()))


def chapters(text: str) -> Iterator[tuple[str, str]]:
    """(anchor, heading) of each chapter."""
    for found in re.finditer(r"^## (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.MULTILINE):
        yield anchor(found[1]), found[1]


def anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def html(text: str) -> Markup:
    """Everything after the first heading."""
    return Markup("\n").join(Markup(part) for part in _blocks(text))


def _blocks(text: str) -> Iterator[str]:
    for part in re.split(r"^(```\w*\n.*?^```)$", text, flags=re.S | re.M):
        if code := re.match(r"```(\w*)\n(.*?)^```$", part, flags=re.S | re.M):
            if code[1] in ("python", "cuda", "cpp"):
                yield f'<pre class="code" data-lines tabindex="0"><span class="same" data-from="1">{escape(code[2])}</span></pre>'
            else:
                yield f'<pre class="said" tabindex="0">{escape(code[2].rstrip())}</pre>'
            continue
        for block in re.split(r"\n\s*\n", part.strip()):
            if heading := re.match(r"(#{1,3}) (.+)", block):
                if len(heading[1]) > 1:
                    yield f'<h{len(heading[1])} id="{anchor(heading[2])}">{_line(heading[2])}</h{len(heading[1])}>'
            elif block.startswith(("- ", "1. ")):
                kind = "ol" if block[0] == "1" else "ul"
                items = re.split(r"^(?:- |\d+\. )", block, flags=re.M)[1:]
                yield f"<{kind}>{''.join(f'<li>{_line(item)}</li>' for item in items)}</{kind}>"
            elif block:
                yield f"<p>{_line(block)}</p>"


def inline(text: str, shown: Callable[[str], str] = escape) -> Markup:
    """A line whose code stands between backticks; `shown`: the words between, as HTML."""
    parts = re.split(r"``?([^`]+)``?", " ".join(text.split()))
    return Markup("".join(f"<code>{escape(p)}</code>" if i % 2 else shown(p) for i, p in enumerate(parts)))


def _line(text: str) -> str:
    return inline(text, _marked)


def _marked(text: str) -> str:
    shown = str(escape(text))
    shown = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", shown)
    shown = re.sub(r"\*(.+?)\*", r"<i>\1</i>", shown)
    return re.sub(r"\[([^\]]+)\]\((?![a-z]+:)[^)]*\)", r"\1", shown)  # a link to another document, of which there is no page
