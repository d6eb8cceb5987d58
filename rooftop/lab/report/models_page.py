"""The tables of docs/models.md: training steps, decoding and experts of models with random weights, as scripts/measure_models.py timed
them, and what each part gains, of `rooftop profile`."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import geometric_mean
from typing import Any

from rooftop.lab.records.record import Record, of_kind
from rooftop.lab.report.data import SiteData

SUBJECT = "models"
PEERS = ("compile", "liger")  # what the steps of a variant are compared with
NAMES = {"compile": "torch.compile", "liger": "Liger"}
# The heading of a table, the figure that its cells show first, how it is written, and the ones in brackets.
TABLES: Mapping[str, tuple[str, str, str, Mapping[str, str]]] = {
    "train": ("a training step, ms (peak GiB)", "ms", "{:,.1f}", {"GiB": "{:.1f}"}),
    "decode": ("decoding, tokens/s (share of the bandwidth)", "tokens/s", "{:,.0f}", {"of bandwidth": "{:.0%}"}),
    "experts": ("experts, both ways, ms", "ms", "{:,.2f}", {}),
    "gains": ("what a part alone saves of forward and backward, ms (predicted)", "ms", "{:,.1f}", {"predicted ms": "{:.1f}"}),
    "loss": ("loss after 200 steps", "loss", "{:.4f}", {}),
}


def table(found: list[Record], _site: SiteData) -> str:
    """The newest figure of each model and variant, and the geometric means over the models of one run."""
    newest = _newest(found)
    if newest is None:
        return "Nothing has been measured yet."
    device, transformers, cells_of = newest
    parts = [f"{device}, {transformers}."]
    for what, (title, first, form, more) in TABLES.items():
        cells = cells_of.get(what, {})
        variants = list(dict.fromkeys(v for _, v in cells))
        if not cells:
            continue
        parts += ["", f"| {title} | " + " | ".join(variants) + " |", "|---|" + "---:|" * len(variants)]
        for of in dict.fromkeys(of for of, _ in cells):
            parts.append(f"| {of} | " + " | ".join(_cell(cells.get((of, v)), first, form, more) for v in variants) + " |")
        if what == "train":
            parts += ["", *_means(cells, variants)]
    return "\n".join(parts)


def front(found: list[Record]) -> list[str]:
    """What the README's first screen says of models."""
    newest = _newest(found)
    if newest is None:
        return []
    train, decode = newest[2].get("train", {}), newest[2].get("decode", {})
    said = []
    ratios = {
        peer: [train[of, peer]["ms"] / f["ms"] for (of, v), f in train.items() if v == "patched+compile" and (of, peer) in train]
        for peer in PEERS
    }
    if all(ratios.values()):
        means = " and ".join(f"{geometric_mean(r):.2f}x the speed of {NAMES[peer]}" for peer, r in ratios.items())
        said.append(f"training step of patched models: {means}, geometric mean of {max(map(len, ratios.values()))} models")
    if ours := decode.get(("1", "rooftop")):
        beside = f", {ours['tokens/s'] / other['tokens/s']:.2f}x the speed of Transformers" if (other := decode.get(("1", "transformers"))) else ""
        said.append(f"decoding of a Llama: {ours['tokens/s']:,.0f} tokens/s{beside}")
    return said


def _newest(found: list[Record]) -> tuple[str, str, Mapping[str, Mapping[tuple[str, str], Mapping[str, float]]]] | None:
    """(device, version of Transformers, of each table the newest figures of each model and variant), of the device measured last."""
    mine = of_kind(found, "clock", SUBJECT)
    if not mine:
        return None
    device = mine[-1].card
    newest: dict[str, dict[tuple[str, str], Mapping[str, float]]] = {}
    for record in (r for r in mine if r.card == device):
        for row in record["rows"]:
            newest.setdefault(row["what"], {})[row["of"], row["variant"]] = row["figures"]
    return device, mine[-1]["transformers"], newest


def _cell(figures: Mapping[str, float] | None, first: str, form: str, more: Mapping[str, str]) -> str:
    if figures is None:
        return ""
    beside = ", ".join(f.format(figures[n]) for n, f in more.items() if n in figures)
    return form.format(figures[first]) + (f" ({beside})" if beside else "")


def _means(cells: Mapping[tuple[str, str], Mapping[str, float]], variants: list[str]) -> list[str]:
    lines: list[Any] = []
    for ours in (v for v in variants if v.startswith("patched")):
        for peer in ("compile+graphs",) if ours.endswith("+graphs") else PEERS:
            ratios = [cells[of, peer]["ms"] / f["ms"] for (of, v), f in cells.items() if v == ours and (of, peer) in cells]
            if ratios:
                lines.append(
                    f"- {ours} over {peer}: {geometric_mean(ratios):.2f}x in the geometric mean of {len(ratios)}, least {min(ratios):.2f}x"
                )
    return lines
