"""The generated parts of the documents: the tables of docs/npu.md between their markers, and docs/ascend.md whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rooftop.core import settings, whole_file
from rooftop.lab.npu import ascend, figures

NPU = settings.CHECKOUT / "docs" / "npu.md"
ASCEND = settings.CHECKOUT / "docs" / "ascend.md"


def texts() -> dict[Path, str]:
    """Every file as it must be."""
    found = figures.read()
    page = NPU.read_text(encoding="utf-8") if NPU.is_file() else ""
    for name, text in (("checked", checked(found)), ("compiled", compiled(found)), ("ladder", ladder(found))):
        before, opening, rest = page.partition(f"<!-- npu:{name} -->\n")
        _, closing, after = rest.partition(f"<!-- /npu:{name} -->")
        page = before + opening + text + closing + after
    return {NPU: page, ASCEND: of_ascend(ascend.read())}


def outdated() -> list[Path]:
    return [path for path, text in texts().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def update() -> list[Path]:
    """Write what is outdated; those files."""
    found = outdated()
    for path, text in texts().items():
        if path in found:
            whole_file.write(path, text)
    return found


def rows(*cells: Any) -> str:
    return f"| {' | '.join(str(c) for c in cells)} |\n"


def checked(found: Mapping[str, Any]) -> str:
    text = rows("kernel", "interpreter", "cases", "worst share of the allowance") + rows("---", "---", "---:", "---:")
    for name, entry in sorted(found.get("kernels", {}).items()):
        if c := entry.get("checked"):
            text += rows(f"`{name}`", c["interpreter"], c["cases"], c["worst_share"] or "exact")
    return text


def compiled(found: Mapping[str, Any]) -> str:
    head = ("kernel, case", "chip", "VMEM", "code", "bundles", "MXU", "VALU", "spills", "static cycles", "model")
    text = rows(*head) + rows("---", "---", *["---:"] * 8)
    for name, case, target, f in _facts(found):
        if "/" not in name:
            text += rows(f"`{name}`, {case}", target, *_cells(f))
    return text


def ladder(found: Mapping[str, Any]) -> str:
    text = rows(
        "rung", "chip", "VMEM", "code", "bundles", "MXU", "VALU", "spills", "static cycles", "model"
    ) + rows("---", "---", *["---:"] * 8)
    for name, _, target, f in _facts(found):
        if name.startswith("matmul_tpu/"):
            text += rows(f"`{name.partition('/')[2]}`", target, *_cells(f))
    return text


def _facts(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    for name, entry in sorted(found.get("kernels", {}).items()):
        for case, targets in entry.get("compiled", {}).items():
            for target, facts in sorted(targets.items()):
                yield name, case, target, facts


def _cells(f: Mapping[str, Any]) -> list[str]:
    if "refused" in f:
        return [f"not taken: {f['refused']}", *[""] * 7]
    cycles = "" if f["cycles"] is None else f"{f['cycles']:,}"
    share = f" ({100 * f['matrix_share']:.1f} % of peak)" if "matrix_share" in f else ""
    seconds = f.get("model_seconds")
    model = f"{1e6 * seconds:,.0f} µs" if seconds else f"over {1e6 * f['model_memory_seconds']:,.0f} µs"
    slots = f["slots"]
    return [_bytes(f["vmem"]), _bytes(f["code"]), f"{f['bundles']:,}", f"{100 * slots.get('MXU', 0):.0f} %",
            f"{100 * slots.get('VALU', 0):.0f} %", f"{f['spills']:,}", cycles + share, model]


def _bytes(n: int) -> str:
    return f"{n / 2**20:.1f} MiB" if n >= 1 << 20 else f"{n / 1024:.0f} KiB"


INTRO = """# Which of our Triton kernels run on an Ascend, and why not

This page is generated (`rooftop npu`). Every Triton kernel of this library, unchanged, is compiled for an Ascend 910B3 by Huawei's Triton (triton-ascend
{triton}) and its compiler (ascendnpu-ir {ir}) down to HIVM, with memory planning and pipe synchronisation. The step from HIVM to machine code is closed
source and is not done here. Nothing was run on a chip. *Accepted* means only that Huawei's compiler accepts the kernel and that the kernel fits the core's
memory.

Tile sizes are those that the kernel uses on an NVIDIA A800. They are chosen for its registers, not for the 192 KiB of an Ascend's unified buffer (UB). So a
kernel may be refused at a timed case and accepted at a small one; both are shown. *Scalar loads* are loads of single elements that remain in loops; they are
slow. The memories are [described here](npu.md#three-memories).

"""


def of_ascend(found: Mapping[str, Any]) -> str:
    software = found.get("software", {})
    text = INTRO.format(triton=software.get("triton-ascend", "?"), ir=software.get("ascendnpu-ir", "?"))
    kernels = found.get("kernels", {})
    whole = [n for n, k in kernels.items() if not any("refused" in x for x in k["tried"][-1]["launches"])]
    if outdated_names := ascend.stale(dict(found)):
        text += f"Changed since they were compiled: {', '.join(f'`{n}`' for n in outdated_names)}.\n\n"
    text += f"{len(whole)} of {len(kernels)} kernels are accepted, {sum(len(kernels[n]['tried']) == 1 for n in whole)} of them at their first timed case.\n\n"
    text += rows(
        "kernel", "case", "function", "accepted", "UB", "L1", "L0C", "scalar loads"
    ) + rows("---", "---", "---", "---", *["---:"] * 4)
    for name, entry in sorted(kernels.items()):
        for one in entry["tried"]:
            for x in one["launches"]:
                why = x.get("refused")
                if why:
                    text += rows(f"`{name}`", one["case"], f"`{x['kernel']}`", f"no: {_cell(why)}", "", "", "", "")
                else:
                    memories = [_bytes(x[m]) if m in x else "" for m in ("ub", "l1", "l0c")]
                    text += rows(f"`{name}`", one["case"], f"`{x['kernel']}`", "yes", *memories, x["loops"])
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
