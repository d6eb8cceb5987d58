"""How pages write numbers and Markdown tables, and shorter HTML for the same tree: `shorter` drops end tags that HTML lets out, quotes and
escapes that a text does without, and spaces between blocks.

Templates stay readable for it, and whole: they close every element and quote every value. A browser makes the same elements, attributes and
texts of the page before and after, apart from white space that it does not show (tests/lab/test_report_markup.py)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

# The text of these stays as it is: of <pre> all spaces are shown, and of <svg> every element needs its end.
_WHOLE = re.compile(r"(<(?:pre|svg|script|style|textarea)\b.*?</(?:pre|svg|script|style|textarea)>)", re.S)
# Nothing but a sibling or the end of the parent may follow these, and both end them.
_ENDS = re.compile(r"[ \n\t]*</(?:td|th|tr|thead|tbody|caption|li|dt|dd|option)>[ \n\t]*")
# Elements that begin and end a line of their own: white space around their tags is not shown.
_LINES = (
    "table|caption|thead|tbody|tr|td|th|div|section|header|main|footer|nav|figure|figcaption|h[1-6]|p|ul|ol|li|dl|dt|dd|details|summary|head|body|html|meta|"
    "link|title|option"
)
_AROUND = re.compile(rf"[ \n\t]*(</?(?:{_LINES})\b[^<>\"]*(?:\"[^\"]*\"[^<>\"]*)*>)[ \n\t]*")
_PARAGRAPH = re.compile(
    r"</p>(?=<(?:p|div|section|header|main|footer|nav|figure|h[1-6]|ul|ol|dl|details|table)\b|</(?:div|section|header|main|footer|details|td|dd|li|figure)>)"
)
_SPACES = re.compile(r"[ \t]*\n[ \n\t]*")
_TAG = re.compile(r"<[a-zA-Z][^<>\"]*(?:\"[^\"]*\"[^<>\"]*)*>")
_QUOTED = re.compile(r"=\"([^ \n\t\"'=<>`\0]*[^ \n\t\"'=<>`\0/])\"(/?)")
_AND = re.compile(r"&amp;(?=[ \n&])")
_HIDDEN = "\0"  # in the place of & in a value, while escapes of the text are undone


def shorter(page: str) -> str:
    """The page in fewer bytes. Every value in it must be quoted, and every element closed."""
    parts = _WHOLE.split(page)
    for i in range(0, len(parts), 2):
        text = _ENDS.sub("", parts[i])
        text = _PARAGRAPH.sub("", _AROUND.sub(r"\1", text))
        parts[i] = _SPACES.sub("\n", text)
    text = _TAG.sub(lambda m: _tag(m[0]), "".join(parts))
    for escaped, plain in (("&#34;", '"'), ("&quot;", '"'), ("&#39;", "'"), ("&#x27;", "'"), ("&gt;", ">")):
        text = text.replace(escaped, plain)
    return _AND.sub("&", text).replace(_HIDDEN, "&")


@lru_cache(1 << 14)  # most tags of a page are alike
def _tag(tag: str) -> str:
    tag = tag.replace("&#39;", "'").replace("&#x27;", "'").replace("&", _HIDDEN)
    return _QUOTED.sub(lambda m: f"={m[1]} /" if m[2] else f"={m[1]}", tag)


def table(heads: str, rows: Iterable[Sequence[object]], sides: str = "") -> list[str]:
    """The lines of a Markdown table. `heads`: its columns with | between; `sides`: of each l, r or c, all l where empty."""
    lines = {"l": "---", "r": "---:", "c": ":-:"}
    ruled = "".join(lines[side] + "|" for side in sides or "l" * (heads.count(" | ") + 1))
    return [f"| {heads} |".replace("|  |", "| |"), f"|{ruled}", *(f"| {' | '.join(map(str, row))} |" for row in rows)]


def number(value: float, digits: int = 4) -> str:
    """To so many significant digits, thousands apart, never in powers of ten."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # after rounding: 999.96 to four digits is 1000
    places = max(0, digits - 1 - exponent)
    return f"{value:,.{places}f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
