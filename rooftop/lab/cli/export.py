"""Packages for others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooftop.lab.cli.app import SHOW, app, echo


@app.command(name="export-hf", rich_help_panel=SHOW)
def export_hf(out: Annotated[Path, typer.Argument(help="A folder that does not exist, or is empty.")]) -> None:
    """Write layers for the `kernels` library of Hugging Face.

    The layers are RMSNorm, SiLUAndMul, RotaryEmbedding and ForCausalLMLoss, also for KernelConfig of Transformers.

    Example: [bold]rooftop export-hf rooftop-layers[/bold]"""
    from rooftop.lab.scaffold import hub as export

    files = export.write(out)
    echo(f"wrote {out}: {len(files)} files, {sum(f.stat().st_size for f in files) / 1e6:.1f} MB; {', '.join(export.LAYERS)} in {export.VARIANT}")
