"""The tables of docs/targets.md, of what is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rooftop.core import tpu
from rooftop.core.spec import TARGETS
from rooftop.lab.inspect import targets as cells
from rooftop.lab.inspect import targets_kept as kept
from rooftop.lab.inspect.targets_kept import Cell
from rooftop.lab.npu import ascend, figures

STATES = ("compiles", "too large", "failed", "refused", "unknown")
WORDS = {"compiles": "compile", "too large": "need too much shared memory", "failed": "do not compile", "refused": "are not for it",
         "unknown": "not compiled yet"}


def summary(found: Sequence[Cell]) -> list[dict[str, Any]]:
    """A row a target: how many kernels are in which state, and how many of those that compile have matrix instructions, or spill."""
    rows = []
    for target in dict.fromkeys(c.target for c in found):
        mine = [c for c in found if c.target == target]
        counted = Counter(c.state for c in mine)
        fine = [c.row for c in mine if c.state == "compiles" and c.row]
        rows.append({
            "target": cells.COLUMNS[target], "card": TARGETS[target].name, **{s: counted[s] for s in STATES},
            "matrix": sum(bool(r["matrix"]) for r in fine), "spilling": sum(bool(r["spills"]) for r in fine),
        })
    return rows


def row_of(cell: Cell) -> dict[str, Any]:
    """A cell as a row of `rooftop targets --json`."""
    figures_ = {k: cell.row[k] for k in ("case", "registers", "spills", "shared", "matrix") if cell.row and k in cell.row}
    return {"kernel": cell.subject.name, "target": cells.COLUMNS[cell.target], "state": cell.state, "reason": cell.reason,
            "limit": cells.limit_of(cell.target), **figures_}


def of_others() -> list[dict[str, Any]]:
    """Rows of TPUs and Ascend, of what `rooftop npu` has committed: accepted or refused by the vendor's compiler."""
    rows = []
    for name, entry in sorted(figures.read().get("kernels", {}).items()):
        for target in tpu.TPUS:
            cases = [facts[target] for facts in entry.get("compiled", {}).values() if target in facts]
            if cases and "/" not in name:
                refused = [str(f["refused"]) for f in cases if "refused" in f]
                rows.append({"kernel": name, "target": target, "state": "refused" if len(refused) == len(cases) else "compiles",
                             "reason": refused[0] if len(refused) == len(cases) else ""})
    for name, entry in sorted(ascend.read().get("kernels", {}).items()):
        why = [str(x["refused"]) for x in entry["tried"][-1]["launches"] if "refused" in x]
        rows.append({"kernel": name, "target": "ascend910b", "state": "refused" if why else "compiles", "reason": why[0] if why else ""})
    return rows


def text() -> str:
    """Everything below the page's head."""
    found = list(kept.shown(cells.subjects(), cells.COLUMNS, kept.read()))
    return "\n\n".join((_summary(found), _kernels(found), _reasons(found), _lost(found), _tpus()))


def _summary(found: Sequence[Cell]) -> str:
    lines = [
        f"| target | figures of | {' | '.join(WORDS[s] for s in STATES)} | with matrix instructions | spill |", "|---|---|" + "---:|" * 7
    ]
    for r in summary(found):
        lines.append(
            f"| {r['target']} | {r['card']} | {' | '.join(str(r[s] or '') for s in STATES)} | {r['matrix']} | {r['spilling'] or ''} |"
        )
    return "\n".join(lines)


def _kernels(found: Sequence[Cell]) -> str:
    others = {(r["kernel"], r["target"]): r["state"] for r in of_others()}
    lines = [f"| kernel | {' | '.join(cells.COLUMNS.values())} | Ascend |", "|---|" + "---|" * (len(cells.COLUMNS) + 1)]
    by_name: dict[str, dict[str, Cell]] = {}
    for c in found:
        by_name.setdefault(c.subject.name, {})[c.target] = c
    for name, row in by_name.items():
        there = {"compiles": "yes", "refused": "no"}.get(others.get((name, "ascend910b"), ""), "")
        lines.append(f"| `{name}` | {' | '.join(_cell(row[t]) for t in cells.COLUMNS)} | {there} |")
    return "\n".join(lines)


def _tpus() -> str:
    """The Pallas kernels, which alone are for TPUs: accepted by libtpu's compiler, or why not."""
    rows: dict[str, dict[str, str]] = {}
    for r in of_others():
        if r["target"] in tpu.TPUS:
            rows.setdefault(r["kernel"], {})[r["target"]] = "yes" if r["state"] == "compiles" else f"no: {_plain(r['reason'])}"
    lines = [f"| kernel for TPUs | {' | '.join(tpu.TPUS)} |", "|---|" + "---|" * len(tpu.TPUS)]
    return "\n".join([*lines, *(f"| `{name}` | {' | '.join(row.get(t, '') for t in tpu.TPUS)} |" for name, row in rows.items())])


def _cell(cell: Cell) -> str:
    """Registers, K of shared memory, bytes spilled, kinds of matrix instructions: `96 r, 48 K, mma`."""
    if cell.state != "compiles" or cell.row is None:
        return {"refused": "", "unknown": "?", "failed": "**fails**", "too large": "**too large**"}[cell.state]
    row = cell.row
    parts = [
        f"{row['registers']} r", f"{-(-row['shared'] // 1024)} K" if row["shared"] else "",
        f"{row['spills']} B spilled" if row["spills"] else ""
    ]
    return ", ".join(p for p in (*parts, *row["matrix"]) if p)


def _reasons(found: Sequence[Cell]) -> str:
    listed: dict[tuple[str, str], list[str]] = {}
    for c in found:
        if c.state in ("failed", "too large"):
            listed.setdefault((c.subject.name, c.reason), []).append(cells.COLUMNS[c.target])
    if not listed:
        return "Every cell that is tried compiles."
    lines = ["| kernel | target | why not |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {', '.join(targets)} | {_plain(why)} |" for (name, why), targets in sorted(listed.items()))])


def _plain(why: str) -> str:
    return why.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def _lost(found: Sequence[Cell]) -> str:
    lines = kept.lost(found)
    return (
        "\n".join(["Lost matrix instructions:", "", *(f"- {line}" for line in lines)]) if lines
        else "No kernel loses its matrix instructions on a target."
    )
