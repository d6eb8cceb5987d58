"""Every text of the pages stands out from what is behind it by at least 4.5:1, in both themes (WCAG 2.2, 1.4.3)."""

from __future__ import annotations

import re

import pytest

from rooftop.lab.report.site import TEMPLATES

CSS = (TEMPLATES / "report.css").read_text(encoding="utf-8")
LEAST = 4.5
CODE = ("code", "plus", "minus")  # the listing, a line added, a line removed
BEHIND = {  # colour of text -> what may be behind it
    "ink": ("paper", "wash", "top", "plain-wash", "bar", "bad-wash", *CODE),
    "soft": ("paper", "wash", "top", "plain-wash", "bad-wash"),
    "blue": ("paper", "wash", "top"),
    "good": ("good-wash",),
    "bad": ("bad-wash", "paper"),
    "warn": ("warn-wash", *CODE),
    "number": ("paper", "top", *CODE),
    "word": CODE, "text": CODE, "note": CODE, "digit": CODE,
}


def themes() -> dict[str, dict[str, str]]:
    """Of each theme its variables; those that the dark one does not change are the light one's."""
    light, dark = (dict(re.findall(r"--([\w-]+): *(#[0-9a-fA-F]{6})", block)) for block in re.findall(r":root \{(.*?)\}", CSS, re.S))
    return {"light": light, "dark": {**light, **dark}}


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def rules() -> list[tuple[str, str]]:
    """Selectors and what is declared, comments and media queries apart."""
    bare = re.sub(r"/\*.*?\*/", "", CSS, flags=re.S)
    return [(s.strip(), d) for s, d in re.findall(r"([^{}]+)\{([^{}]*)\}", bare)]


def test_black_on_white_is_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0) and contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out(theme: str) -> None:
    known = themes()[theme]
    found = {f"{ink} on {back}": contrast(known[ink], known[back]) for ink, backs in BEHIND.items() for back in backs}
    assert not {pair: round(ratio, 2) for pair, ratio in found.items() if ratio < LEAST}


def test_text_in_a_drawing_stands_out_from_its_box() -> None:
    ink = next(m[1] for s, d in rules() if s == "figure.drawing text.in" and (m := re.search(r"fill: (#\w{6})", d)))
    boxes = {s: m[1] for s, d in rules() if s.startswith("figure.drawing .box.") and "text" not in s and (m := re.search(r"fill: (#\w{6})", d))}
    assert len(boxes) == 6 and not {s: contrast(ink, c) for s, c in boxes.items() if contrast(ink, c) < LEAST}


def test_every_colour_of_text_is_among_the_pairs() -> None:
    """A rule that colours text or lays something behind it by another variable belongs into BEHIND first."""
    for selector, declared in rules():
        for name in re.findall(r"(?<![\w-])color: var\(--([\w-]+)\)", declared):
            assert name in BEHIND, selector
        for name in re.findall(r"fill: var\(--([\w-]+)\)", declared) if re.search(r"\btext\b", selector) else ():
            assert name in BEHIND, selector
        assert not re.search(r"(?<![\w-])color: *(#|rgb|hsl)", declared), f"{selector}: a colour that no theme changes"
