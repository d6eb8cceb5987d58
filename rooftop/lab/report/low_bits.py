"""What scripts/low_bits.py measured, results/*/low_bits_SECTION.json, as tables of docs/formats.md and docs/sparse.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from statistics import geometric_mean, median
from typing import Any

from rooftop.core import settings
from rooftop.formats.number_formats import FORMATS
from rooftop.lab.records.record import Record
from rooftop.lab.report.data import SiteData

BANDS = ((1, 1), (16, 16), (64, 64), (128, 128), (256, 1023), (1024, 8192))  # of M
NOTHING = "Nothing has been measured yet."
SLOW = 0.8  # of the copy: what lies below is named
Rows = Sequence[Mapping[str, Any]]


def over(rows: Iterable[Mapping[str, Any]], peer: str) -> list[tuple[float, Mapping[str, Any]]]:
    """The peer's time over ours, where both were timed, the least first."""
    return sorted(((r["peers"][peer] / r["us"], r) for r in rows if r["us"] and r["peers"].get(peer)), key=lambda x: x[0])


def products(rows: Rows) -> str:
    lines = ["| weights | M | points | times as fast as cuBLAS | least | at M x N x K |", "|---|---:|---:|---:|---:|---|"]
    for format in dict.fromkeys(r["format"] for r in rows):
        for low, high in BANDS:
            if found := over((r for r in rows if r["format"] == format and low <= r["M"] <= high), "torch"):
                least, at = found[0]
                m = f"{low}" if low == high else f"{low} to {high}"
                where = " x ".join(str(at[n]) for n in "MNK")
                lines.append(f"| {format} | {m} | {len(found)} | {geometric_mean(x for x, _ in found):.2f} | {least:.2f} | {where} |")
    return "\n".join(lines)


def share(r: Mapping[str, Any]) -> float:
    """Of the copy of the bytes that must move. A scale of the whole tensor, or of columns longer than the shared memory of a cluster holds,
    is known after a first read, so that x is read twice; the tensor's scale of nvfp4 is an op of its own, which was timed beside."""
    if r["op"] == "quantize" and r["format"] == "nvfp4":
        return float(r["share"])
    bits = FORMATS[r["format"]].bits
    twice = r["op"] == "quantize" and r["way"] in ("tensor", "columns")
    return float(r["copy_us"]) / float(r["us"]) * ((32 + bits) / (16 + bits) if twice else 1.0)


def codes(rows: Rows) -> str:
    shares = sorted((share(r), f"{r['op']} {r['format']} by {r['way']}") for r in rows)
    own = [f"{name.removesuffix(' by its groups')} {s:.2f}" for s, name in shares if " nvfp4 " in name]
    below = [f"{name} {s:.2f}" for s, name in shares if s < SLOW]
    said = f"{len(shares)} pairs of format and granularity, both ways: median {median(s for s, _ in shares):.2f}; {', '.join(own)}."
    return said + (f" Below {SLOW}: {', '.join(below)}." if below else f" None below {SLOW}.")


def sparse(rows: Rows) -> str:
    lines = ["| blocks of | density | columns | of the dense product times the density |", "|---:|---:|---:|---:|"]
    lines += [f"| {r['side']} | {r['percent'] / 100:g} | {r['N']} | {r['share']:.2f} |" for r in rows if r["op"] == "spmm_bsr"]
    semi = [r for r in rows if r["op"] == "spmm_24"]
    if semi:
        lines += ["", "| 2:4, columns | points | times as fast as cuBLAS | least |", "|---:|---:|---:|---:|"]
    for n in sorted({r["N"] for r in semi}):
        if found := over((r for r in semi if r["N"] == n), "cublas"):
            lines.append(f"| {n} | {len(found)} | {geometric_mean(x for x, _ in found):.2f} | {found[0][0]:.2f} |")
    return "\n".join(lines)


def peers(rows: Rows) -> str:
    """Times as fast as cuBLAS: ours, and other libraries."""
    names = sorted({n for r in rows for n in r["peers"]} - {"torch"})
    lines = [f"| weights | M | ours | {' | '.join(names)} |", f"|---|---:|---:|{'---:|' * len(names)}"]
    for r in rows:
        if cublas := r["peers"].get("torch"):
            theirs = (f"{cublas / us:.2f}" if (us := r["peers"].get(n)) else "" for n in names)
            lines.append(f"| {r['format']} | {r['M']} | {cublas / r['us']:.2f} | {' | '.join(theirs)} |")
    return "\n".join(lines)


SECTIONS = {"products": products, "codes": codes, "sparse": sparse, "peers": peers}


def _table(section: str, found: list[Record], _site: SiteData) -> str:
    said = []
    for path in sorted(settings.load().results.glob(f"*/low_bits_{section}.json")) if found else ():
        kept = json.loads(path.read_text(encoding="utf-8"))
        said += [f"{kept['device']}, seed {kept['seed']}.", "", SECTIONS[section](kept["rows"]), ""]
    return "\n".join(said).rstrip() or NOTHING


TABLES = {section: partial(_table, section) for section in SECTIONS}
