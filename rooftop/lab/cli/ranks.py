"""Ops of several ranks on several processes."""

from __future__ import annotations

from typing import Annotated

import typer

from rooftop.lab.cli.app import JUDGE, WRONG, app


@app.command(rich_help_panel=JUDGE)
def ranks(
    what: Annotated[list[str] | None, typer.Argument(help="Ops of several ranks; none: all that there are.")] = None,
    processes: Annotated[int, typer.Option(help="Processes of this machine, over gloo. Under torchrun its own are taken, and on GPUs NCCL.")] = 2,
    seed: Annotated[int | None, typer.Option(help="Of the inputs; fresh each time when not given.")] = None,
) -> None:
    """Judge ops of several ranks on several processes by their contract, as `rooftop check` judges their kernels on one device.

    Exit code 1 if anything is wrong or there is nothing to check.

    Examples: [bold]rooftop ranks all_reduce_ranks --processes 3[/bold] · [bold]torchrun --nproc-per-node 4 -m rooftop.lab.cli ranks[/bold]"""
    import secrets

    import torch
    import torch.distributed as dist

    from rooftop.core import registry
    from rooftop.lab.check import ranks as judging

    names = what or [n for n in registry.op_names() if registry.op(n).ranks is not None]
    seed = secrets.randbits(31) if seed is None else seed
    first = True
    found = []
    if dist.is_torchelastic_launched():
        on_gpus = torch.cuda.is_available()
        dist.init_process_group("nccl" if on_gpus else "gloo")
        if on_gpus:
            torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
        said = [seed]
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpus else torch.device("cpu")
        dist.broadcast_object_list(said, 0)
        for name in names:
            found += judging.check(registry.op(name), dist.group.WORLD, device, said[0])
        first = dist.get_rank() == 0
        seed = said[0]
        dist.destroy_process_group()
    else:
        for name in names:
            if registry.op(name).ranks is None:
                raise ValueError(f"{name} is no op of several ranks; there are {', '.join(n for n in registry.op_names() if registry.op(n).ranks is not None)}")
            found += judging.check_here(name, processes, seed)
    wrong = [r for r in found if r.status != "ok"]
    if first:
        typer.echo(f"seed {seed}")
        for r in wrong:
            typer.echo(f"{r.subject}, {r.case}: {r.message}")
        typer.echo(f"{len(found) - len(wrong)} of {len(found)} cases right" if found else "nothing to check: no case has so many ranks")
    if wrong or not found:
        raise typer.Exit(WRONG)
