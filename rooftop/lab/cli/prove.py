"""Whether a model computes the same with rooftop's functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rooftop.lab.cli.app import JUDGE, WRONG, AsJson, app, echo
from rooftop.lab.cli.configured import configuration, model_of


@app.command(rich_help_panel=JUDGE)
def prove(
    config: Annotated[Path, typer.Argument(help="A config.json of a model of Hugging Face Transformers.", show_default=False)],
    layers: Annotated[int, typer.Option(help="Number of layers; 0: as the configuration says.", min=0)] = 0,
    batch: Annotated[int, typer.Option(help="Number of sequences.", min=1)] = 2,
    length: Annotated[int, typer.Option(help="Tokens per sequence.", min=2)] = 128,
    steps: Annotated[int, typer.Option(help="Number of training steps; 0: none.", min=0)] = 20,
    dtype: Annotated[str, typer.Option(help="bf16, f16 or f32; auto: bf16 on a GPU, f32 on a CPU.")] = "auto",
    residual: Annotated[bool, typer.Option("--residual", help="Also move residual additions into the norms.")] = False,
    as_json: AsJson = False,
) -> None:
    """Patch a model with random weights, and compare it with eager.

    Compares each layer, each gradient and the losses, beside the error that eager itself makes.

    Runs on the GPU if there is one. Exit code 1 if they are not equal; the first layer that differs is named.

    Example: [bold]rooftop prove config.json --layers 2[/bold]"""
    kinds = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
    if dtype not in (*kinds, "auto"):
        raise ValueError(f"dtype is {dtype!r}; accepted are {', '.join(kinds)}, auto")
    made = configuration(config, layers, "prove")
    import torch

    from rooftop.drop_in.one_line import patch
    from rooftop.drop_in.proving import prove as proof_of

    where = "cuda" if torch.cuda.is_available() else "cpu"
    model = model_of(config, made, where, getattr(torch, kinds["bf16" if where == "cuda" else "f32"] if dtype == "auto" else kinds[dtype]))
    ids = torch.randint(0, made.get_text_config().vocab_size, (batch, length), generator=torch.Generator().manual_seed(1)).to(where)
    report = patch(model, residual=residual)
    proof = proof_of(model, {"input_ids": ids, "labels": ids}, steps)
    if as_json:
        rows = [{"part": r.part, "of": r.what, "times": r.count, "left": r.why} for r in report.rows]
        echo(json.dumps({"equal": proof.equal, "first": proof.first, "verdict": proof.verdict(), "replaced": rows, "losses": proof.losses,
                         "seconds": proof.seconds, "memory": proof.memory}))
    else:
        echo(f"{report}\n\n{proof}")
    if not proof.equal:
        raise typer.Exit(WRONG)
