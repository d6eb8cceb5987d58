"""Arrays in files, compressed and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooftop.lab.cli.app import app

FILES = "Compress"


@app.command(rich_help_panel=FILES)
def compress(
    source: Annotated[Path, typer.Argument(help="A .npy file, or a .safetensors file, whose weights are compressed without loss.")],
    target: Annotated[Path | None, typer.Argument(help="Default: SOURCE.rft, or SOURCE-compressed.safetensors.", show_default=False)] = None,
    abs: Annotated[float | None, typer.Option(help="The largest absolute error.", show_default=False)] = None,
    rel: Annotated[float | None, typer.Option(help="The largest error, as a share of the range of the values.", show_default=False)] = None,
    psnr: Annotated[float | None, typer.Option(help="Minimum PSNR in dB.", show_default=False)] = None,
    lossless: Annotated[bool, typer.Option("--lossless", help="Lossless: every bit is kept.")] = False,
    codec: Annotated[str, typer.Option(help="auto, fast, ratio, planes, shuffle.")] = "auto",
    rank: Annotated[int | None, typer.Option(help="Dimensions of the predictor, 1 to 3.", show_default=False)] = None,
    dtype: Annotated[str | None, typer.Option(help="dtype of a .npy file, if NumPy does not have it: bf16, f8e4m3, f8e5m2.", show_default=False)] = None,
) -> None:
    """Compress an array or a model; each value stays within the given error bound.

    Examples: [bold]rooftop compress in.npy --abs 1e-3[/bold] · [bold]rooftop compress model.safetensors[/bold]"""
    from rooftop import codecs

    _apart(source, target)
    if source.suffix == ".safetensors":
        target = target or source.with_name(source.stem + "-compressed.safetensors")
        ratio = codecs.compress_model(source, target)
        typer.echo(f"{target}: {target.stat().st_size:,} bytes, ratio {ratio:.3f}, lossless")
        return
    c = codecs.compress(_read(source, dtype), abs=abs, rel=rel, psnr=psnr, lossless=lossless, codec=codec, rank=rank, statistics=True)
    target = target or source.with_suffix(".rft")
    c.save(target)
    s = c.statistics
    assert s is not None
    said = "lossless" if not c.eb else f"largest error {s.largest_error:.6g} (bound {c.eb:.6g}), PSNR {s.psnr:.2f} dB"
    typer.echo(f"{target}: {c.nbytes:,} bytes, ratio {s.ratio:.3f}, codec {c.codec}, {said}")
    if s.violations:
        typer.echo(f"{s.violations} values are not within the bound", err=True)
        raise typer.Exit(1)


@app.command(rich_help_panel=FILES)
def decompress(
    source: Annotated[Path, typer.Argument(help="A file that rooftop compress wrote from a .npy file.")],
    target: Annotated[Path | None, typer.Argument(help="Default: the source's name with .npy, if there is no such file.", show_default=False)] = None,
) -> None:
    """Decompress to a .npy file. For a damaged file the error names the chunk.

    Without TARGET no existing file is replaced: the uncompressed in.npy is usually in the same folder as in.rft."""
    from rooftop import codecs
    from rooftop.core import whole_file

    _apart(source, target)
    if target is None:
        target = source.with_suffix(".npy")
        if target.exists():
            raise ValueError(f"{target} is there already, perhaps the original: name a target (rooftop decompress {source} TARGET)")
    x = codecs.decompress(source.read_bytes())
    whole_file.save_array(target, x)  # by its own name: np.save would add .npy to another one
    typer.echo(f"{target}: {x.dtype} {x.shape}")


def _apart(source: Path, target: Path | None) -> None:
    if target is not None and target.exists() and source.exists() and target.samefile(source):
        raise ValueError(f"the target is the source, {source}: name another file")


def _read(path: Path, dtype: str | None) -> object:
    import numpy as np

    from rooftop.formats.elements import ELEMENTS

    try:
        x = np.load(path, allow_pickle=False)
    except EOFError:
        raise ValueError(f"{path} is empty; a .npy file is accepted") from None
    if not isinstance(x, np.ndarray):
        raise ValueError(f"{path} holds several arrays (.npz); a .npy file is accepted")
    if dtype is None:
        if x.dtype.kind == "V":
            raise ValueError(f"{path} holds values of {x.dtype.itemsize} bytes without a type: say --dtype bf16, f8e4m3 or f8e5m2")
        return x
    if dtype not in ELEMENTS or ELEMENTS[dtype].bytes != x.dtype.itemsize:
        fitting = ", ".join(n for n, e in ELEMENTS.items() if e.bytes == x.dtype.itemsize)
        raise ValueError(f"--dtype is {dtype!r}; {path} holds values of {x.dtype.itemsize} bytes: {fitting}")
    return x.view(ELEMENTS[dtype].numpy)
