"""Where the words that a warp asks for lie in the 32 banks of shared memory, and how many turns the request takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rooftop.core.expressions import evaluate
from rooftop.lab.report.drawings.canvas import Canvas, Picture, plural

BANKS = 32  # of 4 bytes each
CELL = 8.0
ACROSS = 3  # panels in a line


def turns(words: Sequence[Sequence[int]]) -> int:
    """Turns that a request takes. `words`: of each lane the words it asks for. Requests of 8 and 16 bytes a lane are served half and
    quarter warps at a time; within one of these a bank gives one word a turn, to all lanes that ask for the same."""
    each = max(len(w) for w in words)
    at_once = 32 // each
    total = 0
    for first in range(0, len(words), at_once):
        held: dict[int, set[int]] = {}
        for lane in words[first : first + at_once]:
            for word in lane:
                held.setdefault(word % BANKS, set()).add(word)
        total += max(len(found) for found in held.values())
    return total


def asked(row: str, unit: str, pitch: int, words: int = 1, xor: str = "0", lanes: int = 32) -> list[list[int]]:
    """Of each lane the words it asks for: `words` of them from unit `unit` (exclusive-ored with `xor`) of row `row`, rows `pitch` words
    apart. The three are expressions of `lane`, `xor` of `row` as well."""
    found = []
    for lane in range(lanes):
        r = int(evaluate(row, {"lane": lane}))
        u = int(evaluate(unit, {"lane": lane, "row": r})) ^ int(evaluate(xor, {"lane": lane, "row": r}))
        found.append([r * pitch + u * words + w for w in range(words)])
    return found


def draw(variants: Sequence[Mapping[str, Any]]) -> Picture:
    """`variants`: name, and the parameters of `asked`. A cell is a word, a row of cells one word of each bank; filled is what the request
    asks for."""
    canvas = Canvas()
    about = []
    x, top, lowest = 0.0, 34.0, 0.0
    for i, variant in enumerate(variants):
        if i and i % ACROSS == 0:
            x, top = 0.0, lowest + 62
        given = dict(variant)
        name = given.pop("name")
        words = asked(**given)
        places = sorted({w for lane in words for w in lane})
        rows = sorted({w // BANKS for w in places})
        shown = {r: k for k, r in enumerate(rows[:32])}
        height = CELL * max(len(shown), 1)
        canvas.text(x, top - 22, name, kind="label")
        canvas.text(x, top - 6, "bank 0")
        canvas.text(x + CELL * BANKS, top - 6, "31", "end")
        canvas.box(x, top, CELL * BANKS, height, "paper")
        for bank in range(0, BANKS + 1, 8):
            canvas.line(x + bank * CELL, top, x + bank * CELL, top + height, "thin")
        least = -(-len(words) // (32 // max(map(len, words))))
        count = turns(words)
        for lane, found in enumerate(words):
            for w in found:
                if w // BANKS in shown:
                    kind = "hot" if count > least else "a"
                    canvas.box(
                        x + w % BANKS * CELL, top + shown[w // BANKS] * CELL, CELL, CELL, kind,
                        about=f"lane {lane}: word {w}, bank {w % BANKS}"
                    )
        said = f"{plural(len(places), 'word')} in {plural(count, 'turn')}" + (f"; {least} would do" if count > least else "")
        canvas.text(x, top + height + 16, said)
        about.append(f"{name}: {said}")
        lowest = max(lowest, top + height)
        x += CELL * BANKS + 32
    return canvas.picture("; ".join(about))
