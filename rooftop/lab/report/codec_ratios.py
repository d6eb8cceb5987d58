"""The table of ratios of docs/codecs.md. All of it is arithmetic: the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator

from rooftop.codecs.api import compress, measured
from rooftop.lab.report import codec_fields as fields

BOUNDS = (1e-2, 1e-3, 1e-4)
SIZE = 128


def table() -> str:
    return "\n".join(rows())


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
