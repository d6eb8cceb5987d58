"""Kernels for TPUs and Ascend: what the vendors' compilers say of them, and what of it is committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooftop.lab.cli.app import ENVIRONMENT, SHOW, WRONG, app, echo, table

if TYPE_CHECKING:
    from rooftop.lab.candidates import Subject

COLUMNS = {
    "subject": "subject", "case": "case", "target": "target", "vmem": "VMEM B", "hbm": "HBM B", "code": "code B", "bundles": "bundles",
    "mxu": "MXU",
    "valu": "VALU", "spills": "spills", "cycles": "static cycles", "model": "model time", "note": "note",
}

PARTS = ("checked", "compiled", "ascend", "pages")
ASCEND = {
    "subject": "subject", "kernel": "kernel", "verdict": "HIVM", "ub": "UB B", "l1": "L1 B", "l0c": "L0C B", "loops": "scalar loads",
    "note": "case or reason",
}


def inspect(found: Sequence[Subject], case: str | None, targets: Sequence[str], as_json: bool) -> None:
    """`rooftop inspect --target`. Exit code 1 where a kernel is refused by the compiler, 3 where there is no toolchain."""
    from rooftop.core import tpu
    from rooftop.core.backends.pallas import PallasError, PallasImplementation
    from rooftop.lab.npu import figures
    from rooftop.lab.npu import tpu as compiler

    for target in targets:
        if target != "ascend910b":
            compiler.device_of(target)
    if "ascend910b" in targets:
        _ascend(found, as_json)
    targets = [t for t in targets if t != "ascend910b"]
    if not targets:
        return
    kernels = [s for s in found if isinstance(s.implementation, PallasImplementation)]
    if not kernels:
        raise ValueError("none of these is a kernel for a TPU (__pallas_tpu)")
    if reason := tpu.absent():
        echo(f"rooftop: {reason}", err=True)
        raise typer.Exit(ENVIRONMENT)
    rows: list[dict[str, Any]] = []
    refused = False
    for s in kernels:
        for c in [s.op.case(case)] if case else figures.cases_of(s)[:1]:
            for target in targets:
                row: dict[str, Any] = {"subject": s.name, "case": c.id, "target": target}
                try:
                    facts = compiler.facts_of(s, c, target)
                except PallasError as error:
                    refused = True
                    facts = {"note": str(error)}
                rows.append({**row, **facts, **_shown(facts)})
    table(rows, COLUMNS, as_json)
    if refused:
        raise typer.Exit(WRONG)


def _shown(facts: dict[str, Any]) -> dict[str, Any]:
    slots = facts.get("slots", {})
    seconds = facts.get("model_seconds")
    share = facts.get("matrix_share")
    note = facts.get("refused") or facts.get("note") or (f"{share:.3f} of the matrix units' peak" if share else "")
    percent = {n: f"{100 * slots[k]:.0f} %" for n, k in (("mxu", "MXU"), ("valu", "VALU")) if k in slots}
    return {**percent, "model": f"{1e6 * seconds:.0f} us" if seconds else "", "note": note}


def _ascend(found: Sequence[Subject], as_json: bool) -> None:
    from rooftop.lab.npu import ascend

    if reason := ascend.absent():
        echo(f"rooftop: {reason}", err=True)
        raise typer.Exit(ENVIRONMENT)
    kernels = [s for s in found if s.implementation is not None and s.implementation.backend == "triton"]
    if not kernels:
        raise ValueError("none of these is a Triton kernel")
    table(ascend.inspect(kernels), ASCEND, as_json)


@app.command(rich_help_panel=SHOW)
def npu(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 if the committed results are not those of the present code.")
    ] = False,
    only: Annotated[str | None, typer.Option(help="Only one part: checked, compiled, ascend or pages.")] = None,
) -> None:
    """Check and compile the kernels for TPU and Ascend that changed.

    Checks TPU kernels in the interpreter and compiles them for v5e, v5p and v6e; compiles Triton kernels for Ascend. Writes results/npu and
    the pages of docs. Needs the environments of make npu-env.

    Example: [bold]rooftop npu --check[/bold]"""
    from rooftop.lab.npu import ascend, figures, pages

    if check:
        outdated = [f"{s.name}: {what}{f' ({c.id})' if c else ''}" for s, what, c in figures.stale(figures.read())]
        outdated += [f"{name}: Ascend" for name in ascend.stale(ascend.read())] + [f"{path.name}: page" for path in pages.outdated()]
        echo("\n".join(outdated) if outdated else "results/npu and its pages are of the tree as it is")
        if outdated:
            echo("rooftop npu makes them anew")
            raise typer.Exit(WRONG)
        return
    if only not in (None, *PARTS):
        raise ValueError(f"--only {only}: it is one of {', '.join(PARTS)}")
    parts = [only] if only else list(PARTS)
    figures.update(echo, [p for p in parts if p in ("checked", "compiled")])
    if "ascend" in parts:
        ascend.update(echo)
    if "pages" in parts:
        echo(f"pages written: {', '.join(p.name for p in pages.update()) or 'none; all are as they were'}")
    left = [s.name for s, *_ in figures.stale(figures.read(), [p for p in parts if p in ("checked", "compiled")])]
    left += ascend.stale(ascend.read()) if "ascend" in parts else []
    if left:
        echo(f"not made anew: {', '.join(dict.fromkeys(left))}", err=True)
        raise typer.Exit(ENVIRONMENT)
