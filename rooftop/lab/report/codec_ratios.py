"""The table of ratios of docs/codecs.md: `python -m rooftop.lab.report.codec_ratios` writes it anew. All of it is arithmetic: the same on
every machine."""

from __future__ import annotations

from collections.abc import Iterator

from rooftop.codecs.api import compress, measured
from rooftop.core import settings, whole_file
from rooftop.lab.exit_codes import ended
from rooftop.lab.report import codec_fields as fields

PAGE = "docs/codecs.md"
BEGIN, END = "<!-- generated: ratios -->\n", "<!-- /generated -->\n"
BOUNDS = (1e-2, 1e-3, 1e-4)
SIZE = 128


def rows(size: int = SIZE) -> Iterator[str]:
    yield "| field | rel | `fast` | cuSZp3's format | `ratio` | `fast` / cuSZp3's | `ratio` / `fast` | violations |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for name in fields.FIELDS:
        x = fields.field(name, size)
        for rel in BOUNDS:
            fast, small = (
                min((compress(x, rel=rel, codec=codec, rank=r) for r in range(1, x.ndim + 1)), key=lambda c: c.nbytes)
                for codec in ("fast", "ratio")
            )
            peer = x.nbytes / min(fields.cuszp_bytes(x, fast.eb, rank) for rank in range(1, x.ndim + 1))
            violations = measured(x, fast).violations + measured(x, small).violations
            sizes = (fast.ratio, peer, small.ratio, fast.ratio / peer, small.ratio / fast.ratio)
            yield f"| {name} | {rel:g} | {' | '.join(f'{v:.2f}' for v in sizes)} | {violations} |"


def page(text: str, size: int = SIZE) -> str:
    """The page with its table made anew. Raises ValueError where it has no place for it."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no {BEGIN.strip()} ... {END.strip()}")
    return head + begin + "\n".join(rows(size)) + "\n" + end + tail


def main() -> None:
    path = settings.CHECKOUT / PAGE
    whole_file.write(path, page(path.read_text(encoding="utf-8")))
    print(f"wrote {path}")


if __name__ == "__main__":
    ended(main)
