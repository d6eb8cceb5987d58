"""What the binaries of kernels hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooftop.lab.cli.app import ENVIRONMENT, JUDGE, OK, WRONG, AsJson, CaseName, Include, KernelName, What, app, echo, table

if TYPE_CHECKING:
    pass


@app.command(rich_help_panel=JUDGE)
def inspect(
    what: What = None, case: CaseName = None,
    arch: Annotated[
        list[str] | None, typer.Option(help="The architecture, 80, 89 or 90, or a card: h100, h200, a800, rtx4090. Default: 80, 89 and 90.")
    ] = None,
    sass: Annotated[bool, typer.Option("--sass", help="Print the machine code.")] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="Print PTX (Triton).")] = False,
    target: Annotated[
        list[str] | None, typer.Option(help="An NPU: v5e, v5p or v6e (Pallas, by libtpu), ascend910b (Triton, by Huawei's compiler).")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(help="For a .cu whose head names no op: its sizes and numbers, as N=1000,M=3. Default: 1024 for sizes, 1 for numbers.")
    ] = None,
    kernel: KernelName = None, include: Include = None,
    as_json: AsJson = False,
) -> None:
    """Show registers, spills and instructions from the binary.

    Also shared memory and occupancy. Needs no GPU. Exit code 1 if a demand is not met, 3 if nothing could be compiled because a compiler
    is missing.

    Examples: [bold]rooftop inspect sgemm_cuda[/bold] · [bold]rooftop inspect softmax__triton --arch 80 --ptx[/bold] ·
    [bold]rooftop inspect matmul --target v5e[/bold] · [bold]rooftop inspect my.cu --shape N=1000[/bold]"""
    from rooftop.lab import candidates
    from rooftop.lab.check import own_op
    from rooftop.lab.cli import triton_files
    from rooftop.lab.inspect import inspector as inspects

    what = triton_files.cuda(what) if what else what
    if python := [p for p in map(triton_files.own, what or []) if p is not None]:
        if len(python) < len(what or []):
            raise ValueError(f"{python[0].path} is an ordinary Python file: name it by itself")
        raise typer.Exit(
            max(triton_files.inspect(p, arch or ["80", "89", "90"], "sass" if sass else "ptx" if ptx else "", as_json) for p in python)
        )
    plain = [Path(name) for name in what or [] if own_op.headless(Path(name))]
    if plain:
        _inspect_files(plain, arch or ["80", "89", "90"], kernel, include or [], as_json)
        if len(plain) == len(what or []):
            return
        what = [name for name in what or [] if Path(name) not in plain]
    shapes = own_op.shapes_of([shape] if shape else [])
    bare = {name: s for name in what or [] if (s := own_op.alone(Path(name), shapes)) is not None}  # files whose head names no op
    if shape and not bare:
        raise ValueError("--shape is for a .cu whose head names no op; the cases of an op have sizes of their own (--case)")
    named = [name for name in what or [] if name not in bare]
    found = [*bare.values(), *(candidates.find(named) if named or not bare else [])]
    if target:
        from rooftop.lab.cli import npu

        npu.inspect(found, case, target, as_json)
        return
    archs: list[int | str] = [int(a) if a.isdigit() else a for a in arch or ["80", "89", "90"]]
    if sass or ptx:
        for s in found:
            echo(inspects.text(s, inspects.inspect_case(s, case, archs[-1]), archs[-1], "sass" if sass else "ptx"))
        return
    jobs = [(s, inspects.inspect_case(s, case, a), a) for s in found for a in archs]
    if not jobs:
        raise ValueError(f"{', '.join(what or [])}: no kernel yet; rooftop new kernel OP__triton, or OP__cuda, writes one to begin with")
    facts = inspects.many(jobs)
    rows = []
    for (name, a), f in facts.items():
        if "refused" in f:
            rows.append({"subject": name, "arch": a, "note": f["refused"]})
        for k in f.get("kernels", []):
            counts = " ".join(f"{n}:{c}" for n, c in k["counts"].items() if n not in ("BRA", "total"))
            occupancy = f"{k['occupancy']['percent']:.0f} % ({k['occupancy']['limiter']})"
            rows.append({"subject": name, "arch": a, **k, "occ": occupancy, "note": "; ".join(k["unmet"]), "sass": counts})
    columns = {"subject": "subject", "arch": "sm", "kernel": "kernel", "registers": "regs", "spills": "spill B", "shared": "shared B",
               "occ": "occupancy", "sass": "instructions", "note": "unmet"}
    if as_json:
        table(rows, columns, True)
    else:
        if made := [r for r in rows if "kernel" in r]:
            table(_together(made, list(columns)), columns, False)
        _show_refusals([r for r in rows if "kernel" not in r])
    if any(k["unmet"] for f in facts.values() for k in f.get("kernels", [])):
        raise typer.Exit(WRONG)
    if any("absent" in f for f in facts.values()) and not any(f.get("kernels") for f in facts.values()):
        raise typer.Exit(ENVIRONMENT)


def _inspect_files(paths: Sequence[Path], archs: Sequence[str], kernel: str | None, folders: Sequence[Path], as_json: bool) -> None:
    """Files without a head: every kernel, on each target."""
    from rooftop.lab.inspect import inspector
    from rooftop.lab.simt import own_file

    rows: list[dict[str, Any]] = []
    said: dict[str, None] = {}  # each once
    code = OK
    for path in paths:
        try:
            source = own_file.read(path, folders)
        except own_file.NoKernelError as error:
            said[f"rooftop: {error}"] = None
            code = code or ENVIRONMENT
            continue
        for a in archs:
            made = own_file.facts(source, inspector.device_of(int(a) if a.isdigit() else a), kernel)
            said |= dict.fromkeys(f"not compiled: {path}: {name}: {why}" for name, why in made.refused.items())
            said |= dict.fromkeys(f"left out, as it does not compile: {error}" for error in made.left_out)
            said |= dict.fromkeys(
                f"not here: {h}; a plain generator stands in for it, with other registers and instructions" for h in made.stands_in
            )
            code = code or (OK if not made.refused else ENVIRONMENT if made.needs else WRONG)
            for k in made.found:
                counts = " ".join(f"{n}:{c}" for n, c in k["counts"].items() if n not in ("BRA", "total"))
                occ = f"{k['occupancy']['percent']:.0f} % of {k['threads']} threads ({k['occupancy']['limiter']})"
                rows.append({"subject": str(path), "arch": a, **k, "occ": occ, "sass": counts})
                if k["assumed"]:
                    said[f"assumed, as nothing in the file says it (--kernel does): {k['kernel']}: {k['assumed']}"] = None
    columns = {"subject": "file", "arch": "sm", "kernel": "kernel", "registers": "regs", "spills": "spill B", "shared": "shared B", "occ": "occupancy",
               "sass": "instructions"}
    if rows:
        table(rows if as_json else _together(rows, list(columns)), columns, as_json)
    for text in said:
        echo(text, err=as_json)
    if code:
        raise typer.Exit(code)


def _together(rows: list[dict[str, Any]], shown: list[str]) -> list[dict[str, Any]]:
    """Rows of a subject that differ in the architecture alone, as one that names them all; those that differ in nothing, once."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        first = found.setdefault(tuple(row.get(k) for k in shown if k != "arch"), {**row, "arch": []})
        first["arch"] += [str(row["arch"])] if str(row["arch"]) not in first["arch"] else []
    return [{**row, "arch": " ".join(row["arch"])} for row in found.values()]


_CARD = re.compile(r"; [^;]* is (?:none|sm_\d+)$")  # the end of a reason that names the card of one architecture


def _show_refusals(rows: list[dict[str, Any]]) -> None:
    """What no machine code was made of, by reason."""
    archs: dict[tuple[str, str], list[str]] = {}
    for r in rows:
        archs.setdefault((_CARD.sub("", r["note"]).removeprefix(f"{r['subject']}: "), r["subject"]), []).append(str(r["arch"]))
    found: dict[tuple[str, str], list[str]] = {}
    for (reason, name), listed in archs.items():
        found.setdefault((reason, " ".join(listed)), []).append(name)
    for (reason, on), names in found.items():
        echo(f"not for {on}: {reason} ({', '.join(names)})")
