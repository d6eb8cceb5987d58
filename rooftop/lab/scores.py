"""The score table of the README, written by the tool between markers. Nobody types a number."""

from __future__ import annotations

from pathlib import Path

from rooftop.lab import records, settings
from rooftop.lab.report_data import gather

BEGIN, END = "<!-- generated: scores -->", "<!-- /generated -->"
README = settings.CHECKOUT / "README.md"


def table(folder: Path) -> str:
    """Every op's bench cases with a fresh record, newest first by device: time, share of the measured roof, best peer, error. Stale ones are left out."""
    found = records.read(folder) if folder.is_dir() else []
    site = gather(found)
    lines = [
        "| op | case | device | implementation | kernel µs | of the roof | against the best peer | error / allowance |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for op in site.ops:
        for device in op.scores:
            for row in device.rows:
                m = row.best
                if m is None or m.stale or m.kernel is None:
                    continue
                peer = m.best_peer
                versus = f"{peer.speed:.2f}x {peer.label} ({peer.verdict})" if peer else ""
                share = f"{m.share:.2f}" if m.share else ""
                error = f"{m.error:.2f}" if m.error is not None else ""
                lines.append(f"| {op.name} | {m.case} | {m.device} | {m.subject} | {m.seconds * 1e6:.1f} | {share} | {versus} | {error} |")
    if len(lines) == 2:
        return "No fresh record: nothing has been measured yet with the kernels as they stand."
    return "\n".join(lines)


def replaced(text: str, content: str) -> str:
    """`text` with what stands between the markers replaced. Raises ValueError where they are missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the text has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def update() -> bool:
    """Write the README's table anew. True: it changed."""
    text = README.read_text(encoding="utf-8")
    new = replaced(text, table(settings.load().results))
    if new != text:
        README.write_text(new, encoding="utf-8")
    return new != text
