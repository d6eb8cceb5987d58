"""Arrays in files, compressed and back."""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooftop.lab.cli.app import app, echo

if TYPE_CHECKING:
    import numpy as np

    from rooftop.codecs import Progress

FILES = "Compress"


def _device(text: str) -> str:
    from argparse import ArgumentTypeError

    from rooftop.lab import exit_codes

    try:
        return text if text == "cpu" else exit_codes.device(text)
    except ArgumentTypeError as error:
        raise ValueError(str(error)) from None


Device = Annotated[str, typer.Option(help="The device that works on the weights of a model: cpu or cuda.", parser=_device, metavar="DEVICE")]
Force = Annotated[bool, typer.Option("--force", help="Replace a target that exists.")]


@app.command(rich_help_panel=FILES)
def compress(
    source: Annotated[Path, typer.Argument(help="A .npy file, or a .safetensors file, whose weights are compressed without loss.")],
    target: Annotated[
        Path | None, typer.Argument(help="The file to write. Default: SOURCE.rft, or SOURCE-compressed.safetensors.", show_default=False)
    ] = None,
    abs: Annotated[float | None, typer.Option(help="The largest absolute error.", show_default=False)] = None,
    rel: Annotated[float | None, typer.Option(help="The largest error, as a share of the range of the values.", show_default=False)] = None,
    psnr: Annotated[float | None, typer.Option(help="Minimum PSNR in dB.", show_default=False)] = None,
    lossless: Annotated[bool, typer.Option("--lossless", help="Lossless: every bit is kept.")] = False,
    codec: Annotated[str, typer.Option(help="The codec: auto, fast, ratio, planes or shuffle.")] = "auto",
    rank: Annotated[int | None, typer.Option(help="Dimensions of the predictor, 1 to 3.", show_default=False)] = None,
    dtype: Annotated[
        str | None, typer.Option(help="The dtype of a .npy file, if NumPy does not have it: bf16, f8e4m3, f8e5m2.", show_default=False)
    ] = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Compress an array or a model within an error bound.

    Each value stays within the bound that is given; weights of a model are compressed without loss.

    Examples: [bold]rooftop compress in.npy --abs 1e-3[/bold] · [bold]rooftop compress model.safetensors[/bold]"""
    from rooftop import codecs

    model = source.suffix == ".safetensors"
    target = _target(
        source, target or (source.with_name(source.stem + "-compressed.safetensors") if model else source.with_suffix(".rft")), force
    )
    if model:
        given = {
            "--abs": abs, "--rel": rel, "--psnr": psnr, "--rank": rank, "--dtype": dtype,
            "--codec": None if codec in ("auto", "planes") else codec
        }
        if said := ", ".join(f"{name} {value}" for name, value in given.items() if value is not None):
            raise ValueError(f"{said}: the weights of {source} are compressed without loss, by codec planes; leave it out")
        with _Shown(source) as shown:
            ratio = codecs.compress_model(source, target, device=device, progress=shown)
        echo(f"{target}: {target.stat().st_size:,} bytes, ratio {ratio:.3f}, lossless, {shown.speed()}")
        return
    if device != "cpu":
        raise ValueError(f"--device {device}: it is of models; {source} is compressed on the CPU")
    x = _read(source, dtype)
    try:
        c = codecs.compress(x, abs=abs, rel=rel, psnr=psnr, lossless=lossless, codec=codec, rank=rank, statistics=True)
    except TypeError as error:  # a dtype that no codec takes
        raise ValueError(f"{source}: {error}") from None
    c.save(target)
    s = c.statistics
    assert s is not None
    said = "lossless" if not c.eb else f"largest error {s.largest_error:.6g} (bound {c.eb:.6g}), PSNR {s.psnr:.2f} dB"
    echo(f"{target}: {c.nbytes:,} bytes, ratio {s.ratio:.3f}, codec {c.codec}, {said}")
    if s.violations:
        echo(f"{s.violations} values are not within the bound", err=True)
        raise typer.Exit(1)


@app.command(rich_help_panel=FILES)
def decompress(
    source: Annotated[Path, typer.Argument(help="A file that rooftop compress wrote.")],
    target: Annotated[
        Path | None, typer.Argument(help="The file to write. Default: the source's name with .npy; for a model there is none.", show_default=False)
    ] = None,
    weight: Annotated[
        str | None, typer.Option(help="For a model: only this weight, as a .npy file; no other is read.", show_default=False)
    ] = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Decompress to a .npy file, a model to a .safetensors file.

    For a damaged file the error names the chunk, and nothing is written.

    An existing target, such as in.npy beside in.rft, is replaced only with --force.

    Examples: [bold]rooftop decompress in.rft[/bold] · [bold]rooftop decompress m-compressed.safetensors m.safetensors[/bold] ·
    [bold]rooftop decompress m-compressed.safetensors head.npy --weight lm_head.weight[/bold]"""
    from rooftop import codecs
    from rooftop.core import whole_file

    model = source.suffix == ".safetensors"
    if model and target is None:
        raise ValueError(f"{source} is a model: name the file to write, model.safetensors, or weight.npy with --weight NAME")
    if not model and (weight is not None or device != "cpu"):
        given = f"--device {device}" if weight is None else f"--weight {weight[:80]}"
        raise ValueError(f"{given}: it is of models (.safetensors); {source} is none")
    target = _target(source, target or source.with_suffix(".npy"), force)
    if model and weight is None:
        with _Shown(source) as shown:
            codecs.decompress_model(source, target, device=device, progress=shown)
        echo(f"{target}: {target.stat().st_size:,} bytes, {shown.speed()}")
        return
    x = codecs.decompress(source.read_bytes()) if weight is None else _array(source, weight, device)
    whole_file.save_array(target, x)  # by its own name: np.save would add .npy to another one
    echo(f"{target}: {x.dtype} {x.shape}")


def _array(source: Path, name: str, device: str) -> np.ndarray:
    """One weight of a model."""
    from rooftop.codecs import weight
    from rooftop.formats.elements import bits_of, to_numpy

    found = weight(source, name, device=device).cpu()
    try:
        return to_numpy(*bits_of(found))
    except TypeError:
        raise ValueError(f"{source}: weight {name!r} is of {found.dtype}, which a .npy file does not hold") from None


class _Shown:
    """Progress of a model: a line that is rewritten on a terminal, nothing elsewhere."""

    def __init__(self, source: Path) -> None:
        self.size, self.started, self.seconds, self.last = source.stat().st_size, time.monotonic(), 0.0, 0.0

    def __enter__(self) -> _Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = max(time.monotonic() - self.started, 1e-9)
        if self.last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __call__(self, now: Progress) -> None:
        at = time.monotonic()
        if not sys.stderr.isatty() or at - self.last < 0.1:
            return
        self.last = at
        ratio = f", ratio {now.done / now.written:.3f}" if now.written else ""
        rate = now.done / max(at - self.started, 1e-9) / 1e9
        name = "".join(c if c.isprintable() else "?" for c in now.name[-40:])
        sys.stderr.write(f"\r\x1b[K{now.done / max(now.of, 1):.0%} of {now.of / 1e9:.2f} GB, {rate:.2f} GB/s{ratio}, {name}")
        sys.stderr.flush()

    def speed(self) -> str:
        """Of the whole, by the clock: bytes of the source a second."""
        return f"{self.seconds:.1f} s, {self.size / self.seconds / 1e9:.3f} GB/s"


def _target(source: Path, target: Path, force: bool) -> Path:
    """The target, once it is known to be another file than the source, and no file that is there already unless `force`."""
    if source.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(source))
    if source.exists() and not source.is_file():
        raise ValueError(f"{source} is no file")
    if target.exists() and source.exists() and target.samefile(source):
        raise ValueError(f"the target is the source: {target} is {source}; name another file")
    if not force and (target.is_file() or (target.is_symlink() and not target.exists())):
        raise ValueError(f"{target} is there already, perhaps the original: name another target, or replace it with --force")
    return target


def _read(path: Path, dtype: str | None) -> np.ndarray:
    import numpy as np

    from rooftop.formats.elements import ELEMENTS

    try:
        x = np.load(path, allow_pickle=False)
    except OSError:
        raise
    except EOFError:
        raise ValueError(f"{path} is empty; a .npy file is accepted") from None
    except Exception as error:  # whatever the bytes of a file that is none make NumPy raise
        raise ValueError(f"{path} cannot be read as a .npy file: {str(error).partition(chr(10))[0][:200]}") from None
    if not isinstance(x, np.ndarray):
        raise ValueError(f"{path} holds several arrays (.npz); a .npy file is accepted")
    if dtype is None:
        if x.dtype.kind == "V" and x.dtype.fields is None:
            raise ValueError(f"{path} holds values of {x.dtype.itemsize} bytes without a type: say --dtype bf16, f8e4m3 or f8e5m2")
        return x
    if dtype not in ELEMENTS or ELEMENTS[dtype].bytes != x.dtype.itemsize:
        fitting = ", ".join(n for n, e in ELEMENTS.items() if e.bytes == x.dtype.itemsize)
        raise ValueError(f"--dtype is {dtype!r}; {path} holds values of {x.dtype.itemsize} bytes: {fitting}")
    return x.view(ELEMENTS[dtype].numpy)
