"""A Markdown twin of each page, for agents and terminals: what the page says in words and tables, without drawings, sources and scripts;
and llms.txt, the list of them. A source is named by its file: agents read it there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rooftop.core import whole_file
from rooftop.core.texts import markdown
from rooftop.lab.report import document, ladder_text, reference
from rooftop.lab.report.cards import Card
from rooftop.lab.report.data import LadderPage, OpScore, SiteData
from rooftop.lab.report.markup import number

LIST = "llms.txt"
ABOUT = "GPU kernels for PyTorch, each climbed from the naive version to the roof of the hardware, checked against float64, timed beside its peers, explained."


def write(out: Path, site: SiteData, more: Mapping[str, str] | None = None) -> None:
    """Write them beside the pages; twins of pages that are gone go. `more`: those of pages that others write."""
    out.mkdir(parents=True, exist_ok=True)
    made = texts(site, more)
    for name, text in made.items():
        whole_file.write(out / name, text)
    for path in (p for kind in ("ladder", "op", "card", "learn") for p in out.glob(f"{kind}-*.md")):
        if path.name not in made:
            path.unlink()


def texts(site: SiteData, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """File -> text, of every page of the site and the list of them."""
    spaces = reference.namespaces()
    found = {name_of(x.file): ladder(x) for x in site.ladders} | {name_of(x.file): op(x) for x in site.ops} | {
        name_of(x.file): card(x) for x in site.cards
    }
    found["api.md"] = "".join(_api(spaces))
    if site.languages:
        found["languages.md"] = languages(site)
    if site.tutorial:
        found["tutorial.md"] = site.tutorial
    found |= more or {}
    listed = llms(site, found)
    return {**found, "index.md": listed, LIST: listed}


def name_of(page: str) -> str:
    return Path(page).with_suffix(".md").name


def ladder(page: LadderPage) -> str:
    sources = "".join(f"- `{row.name}`: `{row.path}`\n" for row in page.rungs)
    return f"# {page.title}\n\n```text\n" + "\n".join(ladder_text.overview(page)).rstrip() + f"\n```\n\n## Sources\n\n{sources}"


def op(score: OpScore) -> str:
    kernels = "".join(f"- `{k.name}`: {k.backend}, from sm_{k.arch}, `{k.path}`\n" for k in score.implementations)
    call = f"```python\n{score.usage.strip()}\n```\n\n" if score.usage else ""
    return f"# {score.name}\n\n{_line(score.about)}\n\n{call}## Kernels\n\n{kernels}\n## Measured\n\n" + "".join(_measured(score))


def _measured(score: OpScore) -> Iterator[str]:
    rows = [m for device in score.scores for row in device.rows if (m := row.best) is not None and not m.stale and m.kernel is not None]
    if not rows:
        yield "Nothing that is of the kernels as they are.\n"
        return
    yield "| case | card | kernel | µs | of the roof | over the best peer |\n|---|---|---|---:|---:|---:|\n"
    for m in rows:
        peer = f"{m.best_peer.speed:.2f}x {m.best_peer.label}" if m.best_peer else ""
        yield f"| {_line(m.case)} | {_line(m.card)} | {m.subject} | {number(m.seconds * 1e6)} | {f'{m.share:.2f}' if m.share else ''} | {_line(peer)} |\n"


def card(found: Card) -> str:
    lines = [f"# {_line(found.device.name)}\n\n"]
    if found.bandwidth:
        lines.append(f"Datasheet: {found.bandwidth / 1e9:.0f} GB/s of device memory.\n\n")
    lines.append("Operations a second, an FMA as two:\n\n| unit | in a burst | sustained | datasheet |\n|---|---:|---:|---:|\n")
    lines += [f"| {unit} | {' | '.join(f'{v:.3g}' if v else '' for v in values)} |\n" for unit, values in found.rates]
    return "".join(lines)


def languages(site: SiteData) -> str:
    lines = ["# The same ops in each language\n\n| op | case | kernel | lines | µs |\n|---|---|---|---:|---:|\n"]
    for row in site.languages:
        for cell in row.cells:
            if cell is not None:
                time = number(cell.measured.seconds * 1e6) if cell.measured is not None and cell.measured.kernel is not None else ""
                lines.append(f"| {row.op} | {_line(row.case)} | `{cell.path}` | {cell.lines} | {time} |\n")
    return "".join(lines)


def _api(spaces: Sequence[tuple[str, str, Sequence[reference.Entry]]]) -> Iterator[str]:
    yield "# Public names\n\n"
    for space, about, entries in spaces:
        yield f"## {space}\n\n{_line(reference.sentence(about))}\n\n"
        yield from (f"- `{' '.join(e.signature.split()) or e.name}`: {_line(e.line)}\n" for e in entries)
        yield "\n"


def llms(site: SiteData, found: Mapping[str, str]) -> str:
    """llms.txt (llmstxt.org): what there is, a link and a line each."""
    lines = [f"# rooftop\n\n> {ABOUT}\n"]
    parts = {"Ops": "op-", "Ladders, step by step": "ladder-", "Cards": "card-"}
    about = {name_of(x.file): x.about for x in site.ops} | {name_of(x.file): x.line for x in site.ladders}
    for title, prefix in parts.items():
        lines.append(f"\n## {title}\n\n")
        for name in sorted(n for n in found if n.startswith(prefix)):
            said = reference.sentence(about.get(name, ""))
            lines.append(f"- [{document.title(found[name])}]({name}){': ' + _line(said) if said else ''}\n")
    lines.append("\n## More\n\n")
    lines += [f"- [{document.title(found[n])}]({n})\n" for n in ("tutorial.md", "learn.md", "api.md", "languages.md") if n in found]
    return "".join(lines)


def _line(text: str) -> str:
    return str(markdown(" ".join(text.split())))
