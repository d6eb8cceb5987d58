"""What holds measured numbers in README and docs, written from the records: tables between markers, and pictures. Nobody types a number."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import geometric_mean, median

from rooftop.core import registry, settings, whole_file
from rooftop.core.texts import markdown
from rooftop.lab.records import store, trials
from rooftop.lab.records.record import Record, newest, of_kind
from rooftop.lab.report import (
    codec_peers,
    cpu_calls,
    language_page,
    loss_curves,
    low_bits,
    models_page,
    precision,
    profiling_page,
    public_files,
    sweep_page,
    tables,
)
from rooftop.lab.report.data import Digests, SiteData, gather
from rooftop.lab.report.markup import table
from rooftop.lab.report.picture import picture
from rooftop.lab.report.sparse_grid import drawing as sparse_drawing
from rooftop.lab.report.sparse_grid import table as sparse_table
from rooftop.lab.timing import first_calls, invariant_costs, sparse_auto

END = "<!-- /generated -->"
NOTHING = "Nothing has been measured yet."
FRESH = "No fresh record: nothing has been measured yet with the kernels as they stand."


def figures(found: list[Record], site: SiteData) -> str:
    """What the README's first screen says of the fastest cases, of the card with the most fresh records."""
    cards = sorted(
        (c for c in site.cards if c.device.known), key=lambda c: -sum(bool(s.summary.measured) for op in site.ops if (s := op.on(c.device)))
    )
    shown = []
    for op, begins, unit, title in FRONT:
        score = next((o.on(cards[0].device) for o in site.ops if o.name == op), None) if cards else None
        fresh = [m for row in (score.rows if score else ()) if (m := row.best) is not None and m.kernel is not None and not m.stale]
        best = [m for m in fresh if m.case.startswith(begins) and m.roofs.unit == unit]
        if best:
            m = max(best, key=lambda m: m.throughput or 0.0)
            peer = f", {m.best_peer.speed:.2f}x the speed of {m.best_peer.label}" if m.best_peer else ""
            share = f" ({100 * m.share:.0f} % of the roof)" if m.share else ""
            shown.append(f"{title}: {m.throughput or 0.0:,.0f} {m.roofs.unit}{share}{peer}")
    shown += models_page.front(found)
    return "\n".join([f"Measured on an {cards[0].device.short}:", "", *(f"- {text}" for text in shown)]) if shown else NOTHING


FRONT = (  # op, how its cases begin, their unit, what the README calls it: of each the case with the highest throughput
    ("attention", "causal d128", "TFLOP/s", "attention forward, causal"),
    ("attention_bwd", "causal d128", "TFLOP/s", "attention backward, causal"),
    ("attention", "decode", "GB/s", "attention, decoding"),
    ("matmul", "8192 cubed", "TFLOP/s", "matrix product of 8192 cubed"),
    ("linear_cross_entropy", "", "TFLOP/s", "loss of a large vocabulary"),
    ("rms_norm", "", "GB/s", "RMSNorm"),
)


def ops(found: list[Record], site: SiteData) -> str:
    """A row an op, its backward one of its own: on each card the cases with a fresh record, their median share of the roof, and the
    geometric mean of the speed over the best peer of each. One row for the collectives, which run on several cards and are compared with
    NCCL's."""
    cards = sorted((c for c in site.cards if c.device.known or c.device.calibrated), key=lambda c: c.device.name, reverse=True)
    columns = " | ".join(f"{c.device.short}: cases | of the roof | over the best peer" for c in cards)
    lines = [f"| op | family | {columns} |", "|---|---|" + "---:|---:|---:|" * len(cards)]
    unmeasured: list[str] = []
    for op in sorted((op for op in site.ops if op.family and op.family != "comm"), key=lambda op: (op.family, op.name)):
        cells: list[str] = []
        for card in cards:
            score = op.on(card.device)
            best = [m for row in score.rows if (m := row.best) is not None] if score else []
            shares, speeds = [m.share for m in best if m.share is not None], [m.best_peer.speed for m in best if m.best_peer]
            cells += [
                str(len(best)) if best else "", f"{median(shares):.2f}" if shares else "",
                f"{geometric_mean(speeds):.2f}x" if speeds else ""
            ]
        if any(cells):
            lines.append(f"| {op.name.removesuffix('_bwd') + ', backward' if op.name.endswith('_bwd') else op.name} | {op.family} | {' | '.join(cells)} |")
        else:
            unmeasured.append(op.name)
    several = [tables.speeds(found).get(card.device.name, []) for card in cards]
    if any(several):
        cells = [f"{len(s)} |  | {geometric_mean(s):.2f}x NCCL" if s else " |  | " for s in several]
        lines.append(f"| collectives, on several cards | comm | {' | '.join(cells)} |")
    if len(lines) == 2:
        return FRESH
    return "\n".join(lines) + (f"\n\nNot measured with the kernels as they stand: {', '.join(unmeasured)}." if unmeasured else "")


def scores(_found: list[Record], site: SiteData) -> str:
    """Every op's bench cases with a fresh record, by device: time, share of the measured roof, best peer, error. Stale ones are left
    out."""
    rows = []
    for op in site.ops:
        for device in op.scores:
            shown = [m for row in device.rows if (m := row.best) is not None and not m.stale and m.kernel is not None]
            for m in (x for one in shown for x in one.duties):
                peer = m.best_peer
                versus = f"{peer.speed:.2f}x {peer.label} ({peer.verdict})" if peer else ""
                share = f"{m.share:.2f}" if m.share else ""
                error = f"{m.error.share:.2f}" if m.error.share is not None else ""
                who = f"{m.subject}, {m.duty}" if m.duty else m.subject
                rows.append((op.name, m.case, m.card, who, f"{m.seconds * 1e6:.1f}", share, versus, error))
    heads = "op | case | device | implementation | kernel µs | of the roof | against the best peer | error / allowance"
    return "\n".join(table(heads, rows, "llllrrrr")) if rows else FRESH


def timing(found: list[Record], _site: SiteData) -> str:
    """The newest demonstration of naive timing (`rooftop.lab.timing.timer_cuda.naive_demo`)."""
    record = newest(found, "clock", "naive timing")
    if record is None:
        return NOTHING
    rows: list[dict[str, object]] = record["rows"]
    sizes = sorted({int(str(r["mib"])) for r in rows})
    said = (
        f"{record.card}, median of {record['repeats']}. {' and '.join(map(str, sizes))} MiB are read + written; GB/s is what would be claimed."
    )
    heads = " | ".join(("how it was timed", *(f"{m} MiB: µs | GB/s" for m in sizes), "what was timed"))
    made = []
    for how in dict.fromkeys(str(r["how"]) for r in rows):
        cells = []
        for mib in sizes:
            row = next(r for r in rows if r["how"] == how and r["mib"] == mib)
            cells.append(f"{float(str(row['seconds'])) * 1e6:.1f} | {float(str(row['gb_per_s'])):.0f}")
        says = next(str(r["says"]) for r in rows if r["how"] == how)
        made.append((how, *cells, says))
    return "\n".join([said, "", *table(heads, made, "l" + "rr" * len(sizes) + "l")])


def build(found: list[Record], _site: SiteData) -> str:
    """The newest build times of each way (`rooftop.lab.timing.build_time`)."""
    rows = []
    for name, r in {r.subject: r for r in of_kind(found, "build")}.items():
        seconds = float(r["seconds"])
        shown = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.1f} ms"
        rows.append((name, shown, r["n"], f"{r.card}, torch {r.versions.get('torch', '?')}"))
    return "\n".join(table("way | from source to the first result | builds | on", rows, "lrrl")) if rows else NOTHING


def first(found: list[Record], _site: SiteData) -> str:
    """The newest first calls of each op, dtype, card and candidate (`rooftop.lab.timing.first_calls`). Those of other host code or kernels
    have a date."""
    mine = sorted((r for r in found if r.kind == "first-calls"), key=lambda r: (first_calls.current(r), r.at))
    newest = {(r.card, r.op, r.case, r.subject): r for r in mine}
    if not newest:
        return NOTHING
    rows = []
    order = {"rooftop": 0, "peer:torch": 1}
    for key in sorted(newest, key=lambda k: (*k[:3], order.get(k[3], 2), k[3])):
        r = newest[key]
        spreads = [
            cell for k in ("rows", "columns") for cell in (_us(r[k]["median_s"]), _us(r[k]["max_s"]), f"{r[k]['slow']} of {r[k]['n']}")
        ]
        who = r.subject.removeprefix("peer:") + ("" if first_calls.current(r) else f", as of {r.at[:10]}")
        rows.append((f"{r.op} {r.case}", r.card, who, _us(r["first_s"]), _us(r["known_s"]), *spreads))
    heads = "op | on | µs of the host | the very first | known | new rows | slowest | above 10 ms | new columns | slowest | above 10 ms"
    lines = table(heads, rows, "lllrrrrrrrr")
    if not all(first_calls.current(r) for r in newest.values()):
        lines += ["", "With a date: the host's code or the kernels have changed since."]
    return "\n".join(lines)


def fuzzed(found: list[Record], _site: SiteData) -> str:
    """The campaigns of `rooftop fuzz` that are kept beside the records, in files fuzz.json: a line each, then what they found."""
    lines, wrong = ["| on | seed | calls | findings |", "|---|---:|---:|---:|"], list[str]()
    for path in sorted(settings.load().results.glob("*/fuzz.json")):
        kept = json.loads(path.read_text(encoding="utf-8"))
        for one in kept["campaigns"]:
            lines.append(f"| {kept['device']} | {one['seed']} | {one['calls']:,} | {len(one['findings'])} |")
            wrong += [f"- {f['message']} ({f['since']})" for f in one["findings"]]
    return "\n".join([*lines, "", *dict.fromkeys(wrong)]) if found and len(lines) > 2 else NOTHING


def perplexity(found: list[Record], site: SiteData) -> str:
    """What quantising costs a small model (`rooftop.lab.report.perplexity`, which needs torch)."""
    from rooftop.lab.report.perplexity import table

    return table(found, site)


def targets(_found: list[Record], _site: SiteData) -> str:
    """Which kernel compiles for which target (`rooftop.lab.inspect.targets`), of what is kept."""
    from rooftop.lab.report.targets_page import text

    return text()


def listed(_found: list[Record], _site: SiteData) -> str:
    """llms.txt of the repository: every document with its title and first sentence."""
    from rooftop.lab.report import document, reference, twins

    lines = [f"# rooftop\n\n> {twins.ABOUT}\n\n## Documents\n\n"]
    for path in [settings.CHECKOUT / "README.md", settings.CHECKOUT / "AGENTS.md", *sorted((settings.CHECKOUT / "docs").glob("*.md"))]:
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
        blocks = [b for b in text.split("\n\n") if b.strip() and not b.lstrip().startswith(("#", "```", "|", "<!--", "["))]
        name = path.relative_to(settings.CHECKOUT)
        lines.append(f"- [{document.title(text)}]({name}): {reference.sentence(document.plain(blocks[0]) if blocks else '')}\n")
    ops = registry.op_names()
    lines.append(f"\n## Code\n\n- [Contracts](rooftop/ops): {len(ops)} ops: {', '.join(ops)}\n")
    lines.append(f"- [Ladders](rooftop/ladders): {', '.join(registry.ladder_names())}\n")
    return "".join(lines)


def _us(seconds: float) -> str:
    return f"{float(seconds) * 1e6:,.0f}"


TABLES: Mapping[tuple[str, str], Callable[[list[Record], SiteData], str]] = {  # of the records, and of what the pages show of them
    ("README.md", "figures"): figures,
    ("README.md", "ops"): ops,
    ("docs/scores.md", "scores"): scores,
    ("docs/timing.md", "timing"): timing,
    ("docs/timing.md", "calls on a CPU"): cpu_calls.table,
    ("docs/dependencies.md", "build"): build,
    ("docs/gpu.md", "first calls"): first,
    ("docs/gpu.md", "fuzz"): fuzzed,
    ("docs/gpu.md", "sweeps"): sweep_page.together,
    ("docs/persistent.md", "choices"): tables.choices,
    ("docs/linear_cross_entropy.md", "time and memory"): tables.linear,
    ("docs/linear_cross_entropy.md", "drawn sizes"): tables.linear_drawn,
    ("docs/formats.md", "perplexity"): perplexity,
    ("docs/comm.md", "collectives"): tables.collectives,
    ("docs/comm.md", "products"): tables.products,
    ("docs/comm.md", "training"): loss_curves.text,
    ("docs/models.md", "models"): models_page.table,
    ("docs/learn.md", "time"): tables.learn,
    ("docs/matmul.md", "precision"): precision.table,
    ("docs/matmul.md", "sweeps"): sweep_page.products,
    ("docs/profiling.md", "right"): profiling_page.right,
    ("docs/profiling.md", "levers"): profiling_page.levers,
    ("docs/profiling.md", "ladders"): profiling_page.ladders,
    ("docs/languages.md", "languages"): lambda _, site: language_page.table(site.languages),
    ("docs/sparse.md", "where dense wins"): sparse_table,
    ("docs/sparse.md", "advice"): sparse_auto.table,
    ("docs/sparse.md", "speed"): low_bits.TABLES["sparse"],
    ("docs/formats.md", "products"): low_bits.TABLES["products"],
    ("docs/formats.md", "beside others"): low_bits.TABLES["peers"],
    ("docs/formats.md", "copies"): low_bits.TABLES["codes"],
    ("docs/invariance.md", "costs"): invariant_costs.table,
    ("docs/targets.md", "targets"): targets,
    ("docs/trust.md", "trials"): trials.table,
    ("docs/simulator.md", "other people's files"): public_files.table,
    ("docs/codecs.md", "peers"): codec_peers.table,
    ("docs/predictions.md", "judged"): tables.judged,
    ("docs/predictions.md", "expected"): tables.expectations,
}
DRAWN: Mapping[str, Callable[[list[Record], SiteData], str]] = {
    "docs/pictures/comm_training.svg": loss_curves.picture,
    "docs/pictures/precision.svg": precision.picture,
    "llms.txt": listed,
    "docs/pictures/sparse_grid.svg": lambda found, site: sparse_drawing(site),
}
PICTURES: Mapping[str, tuple[str, Mapping[str, str]]] = {  # file -> ladder, and what its peers are called there
    "docs/pictures/sgemm_cuda.svg": ("sgemm_cuda", {"torch": "torch (cuBLAS)"}),
    "docs/pictures/softmax_cuda.svg": ("softmax_cuda", {}),
}


def replaced(text: str, name: str, content: str) -> str:
    """`text` with what stands between the markers of table `name` replaced. Raises ValueError where they are missing."""
    begin = f"<!-- generated: {name} -->"
    before, found, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"the text has no {begin} ... {END}")
    return f"{before}{begin}\n{content}\n{END}{after}"


def pages(root: Path, found: list[Record], digests: Digests | None = None) -> dict[str, str]:
    """Every generated file below `root`, as it should be. `digests`: as for `gather`. Raises ValueError for markers that are missing,
    OSError for a file that is."""
    texts: dict[str, str] = {}
    found = [Record(markdown(r.table)) for r in found]
    site = gather(found, digests=digests)
    for (file, name), make in TABLES.items():
        texts[file] = replaced(texts.get(file) or (root / file).read_text(encoding="utf-8"), name, make(found, site))
    ladders = {ladder.name: ladder for ladder in site.ladders}
    texts |= {file: draw(found, site) for file, draw in DRAWN.items()}
    return texts | {file: picture(ladders[ladder], names) for file, (ladder, names) in PICTURES.items()}


def outdated(
    root: Path = settings.CHECKOUT, folder: Path | None = None, cut: list[str] | None = None, digests: Digests | None = None
) -> dict[str, str]:
    """The generated files that are not as the records below `folder` (results/ where None) have them, as they should be. `cut`: as
    for `records.read`. `digests`: as for `gather`."""
    where = folder or settings.load().results
    found = store.read(where, cut)
    texts = pages(root, found, digests)
    return {file: text for file, text in texts.items() if not (root / file).is_file() or (root / file).read_text(encoding="utf-8") != text}


def update(
    root: Path = settings.CHECKOUT, folder: Path | None = None, cut: list[str] | None = None, digests: Digests | None = None
) -> list[str]:
    """Write anew what is outdated; the files that changed."""
    changed = outdated(root, folder, cut, digests)
    for file, text in changed.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        whole_file.write(root / file, text)
    return list(changed)
