"""What a language model needs to know to be the tutor of a rung, as text to paste into a chat."""

from __future__ import annotations

from collections.abc import Sequence

from rooftop.lab.learn import lessons
from rooftop.lab.learn.kinds import Material, questions
from rooftop.lab.report import ladder_text

RULES = """\
You are my tutor for one version of a GPU kernel. Rules:
- Go step by step, one idea at a time, from first principles. Stop after each step and wait for me.
- Before you tell me a result, ask what I expect, and why.
- Do not quiz me until I ask for it. Then ask one question at a time, wait for my answer, and explain from the figures below.
- Use the figures below alone. They were counted in a simulator, read from the compiled binary or recorded on a card. If you need another, say that you do not \
have it, and which command would give it.
- Where my code or my answer is wrong, do not give me the right one: give a hint, then a larger one, then the answer.
- Begin with what I missed, if there is anything."""


def prompt(material: Material, rung: str, missed: Sequence[str] = ()) -> str:
    """Rules, idea, code, counts, recorded times, and the questions that the learner missed last. Raises RegistryError for no such rung."""
    page = material.page
    before, row = lessons.row_of(page, rung)
    parts = [RULES, f"# The ladder\n{page.title}. {page.intro}"]
    if before is not None:
        parts.append(
            f"# The rung before: {before.name}\nIdea: {before.idea}" + (f"\nWhat limits it: {before.limit}" if before.limit else "")
        )
    idea = f"# The rung: {row.name}\nIdea: {row.idea}"
    if said := lessons.launch(row, page):
        idea += f"\n{said}"
    parts.append(idea + (f"\nWhat limits it now: {row.limit}" if row.limit else ""))
    parts.append(f"# Its code\n```\n{row.source.rstrip()}\n```")
    if before is not None:
        parts.append("# What it changes\n```diff\n" + "\n".join(ladder_text.difference(before, row)) + "\n```")
    figures = [f"- {p.text} {p.told(None)}" for ask in lessons.asks(page, row) if (p := lessons.answer(ask, page, row))]
    figures += [f"- {lessons.map_of(access)[0]}" for access in (row.counts.accesses if row.counts else ())]
    for device in page.devices:
        found = row.cells.get((device.name, page.headline))
        if found is not None and found.kernel is not None and found.stale is None:
            share = "" if found.share is None else f", {100 * found.share:.0f} % of the roof that was measured there"
            figures.append(f"- {device.name} at {page.headline}: {found.seconds * 1e6:,.1f} µs{share}")
    for target in row.facts:
        for k in target.kernels:
            figures.append(f"- compiled for {target.target}: {k.kernel}: {k.registers} registers a thread, {k.shared:,} bytes of shared memory a block, "
                           f"occupancy {k.occupancy:.0f} %, limited by {k.limiter}")
    parts.append("# Figures\n" + (
        "\n".join(figures) or "None is counted or recorded here yet: rooftop simt, rooftop inspect and rooftop bench give some."
    ))
    asked = {q.id: q for q in questions(material)}
    known = [asked[m] for m in missed if m in asked]
    if known:
        parts.append("# What I missed\n" + "\n".join(f"- {q.text} Right: {q.solution}. {q.explanation}" for q in known))
    return "\n\n".join(parts)
