"""What all drawings are made of: rectangles, texts, lines and arrows as one SVG element. Colours are the page's, by class (report.css)."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from markupsafe import Markup

WIDTH = 880  # pixels, at most
LETTER, BOLD = 6.3, 7.3  # pixels of a letter at the size of the page's figures, and of one of a label
CAPITAL, BROAD, CHINESE = 1.2, 3.0, 6.0  # what a capital letter, an m or a w, and a Chinese character takes more
COLOURS = ("a", "b", "c", "d", "e")  # classes of filled boxes, told apart by hue and by lightness


@dataclass(frozen=True)
class Picture:
    """`about`: what it shows in words, for those who do not see it and for the terminal."""

    svg: Markup
    about: str


def length(text: str, kind: str = "") -> float:
    """Pixels that a text takes, in the widest of the fonts that readers have."""
    more = CAPITAL * sum(map(str.isupper, text)) + BROAD * sum(text.lower().count(c) for c in "mw") + CHINESE * sum(c >= "\u2e80" for c in text)
    return (BOLD if kind == "label" else LETTER) * len(text) + more


def short(pixels: float) -> str:
    """To a tenth, in as few letters as that takes: a page has thousands of them."""
    return f"{pixels:.1f}".removesuffix(".0")


class Canvas:
    """Grows downwards; (0, 0) is the upper left corner."""

    def __init__(self) -> None:
        self._body: list[str] = []
        self._plain: dict[str, int] = {}  # class -> the element that draws its boxes together, among the last ones
        self._drawn: list[tuple[int, float, float, float, float]] = []  # what these elements and the texts between them cover
        self._spoken = ""  # and of those that it groups, each with its words
        self._right = self._bottom = 0.0

    def _reach(self, x: float, y: float) -> None:
        self._right, self._bottom = max(self._right, x), max(self._bottom, y)

    def _add(self, element: str) -> None:
        self._body.append(element)
        self._plain, self._drawn, self._spoken = {}, [], ""

    def box(self, x: float, y: float, width: float, height: float, kind: str = "", text: str = "", about: str = "") -> None:
        """A rectangle, with a text in its middle where that fits. `about` is what a pointer reads."""
        self._reach(x + width, y + height)
        kind, width, height = f"box {kind}".rstrip(), max(width, 0.5), max(height, 0.5)
        if about:
            size = f'width="{short(width)}" height="{short(height)}"'
            if self._spoken != kind:
                self._add(f'<g class="{kind}">')
            else:
                self._body[-1] = self._body[-1].removesuffix("</g>")
            self._body[-1] += f'<rect x="{short(x)}" y="{short(y)}" {size}><title>{escape(about)}</title></rect></g>'
            self._spoken = kind
        else:  # those of a kind that nothing drawn between them covers are one path
            at = self._plain.get(kind, -1)
            if at < 0 or any(
                i > at and left < x + width and x < right and top < y + height and y < bottom for i, left, top, right, bottom in self._drawn
            ):
                at = self._plain[kind] = len(self._body)
                self._body.append(f'<path class="{kind}" d="')
                self._spoken = ""
            self._body[at] = (
                self._body[at].removesuffix('"/>') + f'M{short(x)} {short(y)}h{short(width)}v{short(height)}h{short(-width)}z"/>'
            )
            self._drawn.append((at, x, y, x + width, y + height))
        if text and length(text) <= width + 2 and height >= 11:
            self.text(x + width / 2, y + height / 2 + 4, text, "middle", kind="in")

    def text(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> None:
        wide = length(text, kind)
        self._reach(x + {"start": wide, "middle": wide / 2, "end": 0}[anchor], y + 4)
        chosen = f' class="{kind}"' if kind else ""
        stands = f' text-anchor="{anchor}"' if anchor != "start" else ""
        left = x - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        self._drawn.append((len(self._body), left, y - 12, left + wide, y + 4))
        self._body.append(f'<text{chosen} x="{short(x)}" y="{short(y)}"{stands}>{escape(text)}</text>')
        self._spoken = ""

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "") -> None:
        self._reach(max(x1, x2), max(y1, y2))
        self._add(f'<line class="{f"stroke {kind}".rstrip()}" x1="{short(x1)}" y1="{short(y1)}" x2="{short(x2)}" y2="{short(y2)}"/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Along an axis."""
        self.line(x1, y1, x2, y2)
        dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
        a, b = (x2 - 6 * dx - 3 * dy, y2 - 6 * dy - 3 * dx), (x2 - 6 * dx + 3 * dy, y2 - 6 * dy + 3 * dx)
        points = " ".join(f"{short(x)},{short(y)}" for x, y in ((x2, y2), a, b))
        self._add(f'<polygon class="head" points="{points}"/>')

    def picture(self, about: str) -> Picture:
        width, height = self._right + 2, self._bottom + 4
        return Picture(
            Markup(
                f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img" '
                f'aria-label="{escape(about)}">'
                f'{"".join(self._body)}</svg>'
            ),
            about,
        )


def plural(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def binary(size: float) -> str:
    """A number of bytes in the unit that leaves the fewest digits."""
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= step:
            return f"{size / step:.4g} {unit}"
    return f"{size:.4g} bytes"
