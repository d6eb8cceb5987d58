"""Ops of several ranks on several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rooftop.lab.cli.app import JUDGE, WRONG, app, echo, listed

if TYPE_CHECKING:
    from rooftop.lab.candidates import Subject
    from rooftop.lab.check.checker import Result


def launched() -> bool:
    """Whether torchrun has started several processes, of which this is one."""
    import torch.distributed as dist

    from rooftop.core import settings

    return dist.is_available() and dist.is_torchelastic_launched() and settings.torchrun()[1] > 1


@contextmanager
def _group() -> Iterator[bool]:
    """The default group of torchrun's processes, each with its own GPU if there are GPUs; and True on the first process."""
    import torch
    import torch.distributed as dist

    from rooftop.core import settings

    on_gpus = torch.cuda.is_available()
    if on_gpus:
        torch.cuda.set_device(settings.torchrun()[0] % torch.cuda.device_count())
    dist.init_process_group("nccl" if on_gpus else "gloo")
    try:
        yield dist.get_rank() == 0
        dist.barrier()
    finally:
        dist.destroy_process_group()


def check_on_ranks(found: Sequence[Subject], case: str | None, seed: int | None, records: Path | None) -> list[Result]:
    """What `rooftop check` does under torchrun. The results are the same on all ranks."""
    import secrets

    import torch.distributed as dist

    from rooftop.lab.timing import ranks as several

    with _group() as first:
        said: list[Any] = [secrets.randbits(31) if seed is None else seed]
        dist.broadcast_object_list(said, 0)
        results = several.check(found, records, case=case, seed=said[0], say=_printer(first))
        if first:
            echo(f"seed {said[0]}, {dist.get_world_size()} ranks")
            for name in dict.fromkeys(r.subject for r in results):
                own = [r for r in results if r.subject == name]
                skipped = [r for r in own if r.status == "skipped"]
                echo(f"{name}: {sum(r.status == 'ok' for r in own)} of {len(own) - len(skipped)} cases right")
                if skipped:
                    echo(f"    {len(skipped)} skipped: {skipped[0].message}")
            for r in results:
                if r.status == "wrong":
                    echo(f"    {r.subject}, {r.case}: {r.message}")
    return results


def bench_on_ranks(found: Sequence[Subject], case: str | None, budget_s: float, records: Path, case_budget_s: float = 3.0) -> list[str]:
    """What `rooftop bench` does under torchrun. Returns what was wrong."""

    from rooftop.lab.exit_codes import gpu_for
    from rooftop.lab.timing import ranks as several

    gpu_for("bench")
    with _group() as first:
        summary = several.run(found, records, case=case, budget_s=budget_s, say=_printer(first), case_budget_s=case_budget_s)
        if first:
            listed("not measured", summary.skipped)
            listed("left for the next run: the budget is spent", summary.left)
            listed("WRONG", summary.wrong)
    return summary.wrong


def _printer(first: bool) -> Callable[[str], None]:
    return echo if first else lambda text: None


@app.command(rich_help_panel=JUDGE)
def ranks(
    what: Annotated[list[str] | None, typer.Argument(help="Ops of several ranks. Default: all.")] = None,
    processes: Annotated[
        int, typer.Option(help="Number of processes on this machine, with gloo. Under torchrun: its processes, with NCCL on GPUs.")
    ] = 2,
    seed: Annotated[int | None, typer.Option(help="Seed of the inputs. Default: a new one each time.")] = None,
) -> None:
    """Check ops of several ranks, on several processes.

    Does what rooftop check does, with several processes instead of one device.

    Exit code 1 if anything is wrong or there is nothing to check.

    Examples: [bold]rooftop ranks all_reduce_ranks --processes 3[/bold] ·
    [bold]torchrun --nproc-per-node 4 -m rooftop.lab.cli ranks[/bold]"""
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
        echo(f"seed {seed}")
        for r in wrong:
            echo(f"{r.subject}, {r.case}: {r.message}")
        echo(f"{len(found) - len(wrong)} of {len(found)} cases right" if found else "nothing to check: no case has so many ranks")
    if wrong or not found:
        raise typer.Exit(WRONG)
