"""Codecs of others beside ours, on the same values in one run.

    python -m rooftop.lab.report.codec_peers --to cuda --records results
    python -m rooftop.lab.report.codec_peers --size 64                     # without a GPU: ours, zfp and SZ3 on the CPU

nvCOMP (`nvidia-nvcomp-cu13`, `nvidia-libnvcomp-cu13`): ANS, Bitcomp, cascaded and LZ4 without loss, and Bitcomp with a bound, by its Python
API. zfp (`zfpy`) and SZ3 (`hdf5plugin`, `h5py`) run on the CPU, as our `ratio` with fitted weights does: of those the ratio alone is
measured, by a run without --to. What is not installed is left out, with the reason.

On a GPU each library's codec runs in a process of its own, several GPUs at once: one that crashes, hangs or loses its CUDA context costs
the values that it was at.

`kernel`: the durations of all kernels and copies of a call, added up, as torch's profiler has them; `call`: the median time of a call on
the stream, with all that it waits for. Both are of the values' bytes. Every result is decoded and compared: `share` is the largest error
as a share of the bound."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

from rooftop.core import settings
from rooftop.core.spec import Device
from rooftop.lab.exit_codes import Parser, device, ended, positive
from rooftop.lab.records import store
from rooftop.lab.records.record import Record, Table, of_kind
from rooftop.lab.report import codec_fields

SUBJECT = "codec peers"
FIELDS = ("turbulence", "climate", "seismic")
RELATIVE = (1e-2, 1e-3)
REPEATS = 10
BITS = {True: 16, False: 32}  # of the weights, of a field
HUNG_S = 90.0  # a process that takes longer hangs
SPEEDS = ("in_kernel", "in_call", "out_kernel", "out_call")  # GB/s; 0: not measured


@dataclass(frozen=True)
class Way:
    """One codec, set up for some values: `encode` makes what `decode` and `size` (in bytes) take."""

    encode: Callable[[], Any]
    decode: Callable[[Any], Any]  # the values, flat, of the type of the original
    size: Callable[[Any], int]
    on: str = "cpu"


def rooftop_way(x: Any, eb: float | None, codec: str, to: str) -> Way:
    """Ours: of a tensor, where it lies. On a GPU `ratio` has no fitted weights."""
    from rooftop.codecs import Compressed, compress, decompress

    bound: dict[str, Any] = {"lossless": True} if eb is None else {"abs": eb}
    if codec == "ratio":
        bound["fitted"] = to == "cpu"

    def decode(c: Compressed) -> Any:
        if c.on_device is not None:
            from rooftop.codecs import device as on_gpu

            return on_gpu.decompress(c.on_device)[0].reshape(-1)
        return decompress(c, to=to).reshape(-1)

    return Way(lambda: compress(x, codec=codec, **bound), decode, lambda c: int(c.nbytes), to)


def nvcomp_way(x: Any, eb: float | None, options: dict[str, Any]) -> Way:
    import torch

    if x.device.type != "cuda":
        raise ImportError("it needs a GPU")
    from nvidia import nvcomp  # an ImportError where it is absent

    said = dict(options)
    if said.get("mode") == "lossy":
        said |= {"mode": nvcomp.BitcompMode.BITCOMP_LOSSY_FP_TO_SIGNED, "delta": 2 * float(eb or 0.0)}
    codec = nvcomp.Codec(cuda_stream=torch.cuda.current_stream().cuda_stream, **said)
    values = nvcomp.as_array(x.reshape(-1).view(torch.uint8))

    def decode(encoded: Any) -> Any:
        # by its CUDA array interface: with a DLPack capsule the process ended in a double free
        return torch.as_tensor(codec.decode(encoded, "|u1"), device=x.device).view(torch.uint8).view(x.dtype)

    return Way(lambda: codec.encode(values), decode, lambda made: int(made.buffer_size), "cuda")


def zfp_way(x: Any, eb: float | None) -> Way:
    import torch
    import zfpy

    values = x.cpu().numpy()
    return Way(
        lambda: zfpy.compress_numpy(values, tolerance=eb if eb is not None else -1.0),
        lambda made: torch.from_numpy(zfpy.decompress_numpy(made)).reshape(-1), len,
    )


def sz3_way(x: Any, eb: float | None) -> Way:
    import io

    import h5py
    import hdf5plugin
    import torch

    values = x.cpu().numpy()

    def encode() -> bytes:
        file = io.BytesIO()
        with h5py.File(file, "w") as f:
            f.create_dataset("x", data=values, chunks=values.shape, compression=hdf5plugin.SZ3(absolute=eb))
        return file.getvalue()

    def decode(encoded: bytes) -> Any:
        with h5py.File(io.BytesIO(encoded), "r") as f:
            return torch.from_numpy(f["x"][:]).reshape(-1)

    def size(encoded: bytes) -> int:
        with h5py.File(io.BytesIO(encoded), "r") as f:
            return int(f["x"].id.get_storage_size())

    return Way(encode, decode, size)


Made = Callable[[Any, "float | None"], Way]


def ways(lossy: bool, bits: int, to: str) -> dict[str, Made]:
    """Name -> what sets it up for values of so many bits. On a GPU, where the values are many, those of the CPU are left to a run on it."""
    whole, real = f"<i{bits // 8}", f"<f{bits // 8}"
    makers: dict[str, Made] = {}
    on_cpu = to == "cpu"
    for codec in ("fast", "ratio") if lossy else ("planes", "shuffle"):
        makers[f"rooftop {codec}"] = partial(rooftop_way, codec=codec, to=to)
    if lossy:
        makers["nvcomp bitcomp, lossy"] = partial(
            nvcomp_way, options={"algorithm": "Bitcomp", "data_type": real, "mode": "lossy"}
        )
        return makers | ({"zfp": zfp_way, "sz3": sz3_way} if on_cpu else {})
    for name, options in {
        "ans, bytes": {"algorithm": "ANS", "data_type": "|u1"}, "ans, floats": {"algorithm": "ANS", "data_type": real},
        "bitcomp": {"algorithm": "Bitcomp", "data_type": whole}, "cascaded": {"algorithm": "Cascaded", "data_type": whole},
        "lz4": {"algorithm": "LZ4", "data_type": whole},
    }.items():
        makers[f"nvcomp {name}"] = partial(nvcomp_way, options=options)
    return makers


@lru_cache(maxsize=1)
def values_of(name: str, size: int, to: str) -> Any:
    """A field of codec_fields, float32, size^3 values; or `weights`: as many bfloat16, normal, sigma 0.02. On a GPU several of it, one
    after
    the other: 512 MiB of size 256."""
    import torch

    if name == "weights":
        g = torch.Generator().manual_seed(1)
        x = torch.randn(size**3, generator=g).mul_(0.02).bfloat16()
    else:
        x = torch.from_numpy(codec_fields.field(name, size))
    x = x.to(to)
    return x.repeat(32 // x.element_size(), *(1,) * (x.dim() - 1)) if to.startswith("cuda") else x


def seconds(call: Callable[[], Any]) -> tuple[float, float]:
    """(kernel, call) of one call, on a GPU."""
    import torch

    for _ in range(3):
        call()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPEATS)]
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(REPEATS):
            call()
        torch.cuda.synchronize()
    busy = sum(e.self_device_time_total for e in profile.key_averages()) * 1e-6 / REPEATS
    return busy, statistics.median(b.elapsed_time(e) for b, e in events) * 1e-3


def measured(name: str, way: Way, x: Any, eb: float | None) -> Table:
    """A row: bytes of the values over those of the result, GB/s both ways, the largest error over the bound. Raises RuntimeError where what
    comes back is no array of these values, or without a bound has other bits."""
    encoded = way.encode()
    got, want = way.decode(encoded).to(x.device).reshape(-1), x.reshape(-1)
    if got.shape != want.shape or got.dtype != want.dtype:
        raise RuntimeError(f"{name} gives {got.dtype} {tuple(got.shape)}")
    error = float((got.double() - want.double()).abs().max())
    if eb is None and error:
        raise RuntimeError(f"{name} is lossless and gives other values")
    size = x.numel() * x.element_size()
    packed = way.size(encoded)
    speeds = dict.fromkeys(SPEEDS, 0.0)
    if way.on.startswith("cuda"):
        for side, call in (("in", way.encode), ("out", partial(way.decode, encoded))):
            kernel, whole = seconds(call)
            speeds |= {f"{side}_kernel": size / kernel / 1e9, f"{side}_call": size / whole / 1e9}
    return {"codec": name, "on": way.on, "ratio": size / packed, "share": error / eb if eb else 0.0, **speeds}


def cases() -> Iterator[tuple[str, float | None]]:
    """(values, the bound as a share of their range; None: lossless)."""
    yield "weights", None
    for name in FIELDS:
        yield from ((name, rel) for rel in RELATIVE)


def run(
    size: int, to: str, say: Callable[[str], None] = print, diary: Path | None = None, only: Collection[str] = ()
) -> tuple[list[Table], list[str]]:
    """The rows, and what was left out. `only`: these codecs. `diary`: a file of a line of JSON for each codec and values begun, and each
    row, as they come; what it holds is not done again, and what it has as begun alone ended the process that wrote it.

    With a diary a codec of others that fails on a GPU ends the run, whose CUDA context may be lost: another goes on."""
    import torch

    # a stream of its own: 0 would let nvCOMP make one that no event waits for
    with torch.cuda.stream(torch.cuda.Stream(to)) if to.startswith("cuda") else nullcontext():
        return _run(size, to, say, diary, only)


def _run(size: int, to: str, say: Callable[[str], None], diary: Path | None, only: Collection[str]) -> tuple[list[Table], list[str]]:
    rows, left = _read(diary)

    def note(**line: Any) -> None:
        if diary is not None:
            with diary.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    for name, rel in cases():
        asked = {c: make for c, make in ways(rel is not None, BITS[name == "weights"], to).items() if c in only or not only}
        done = {r["codec"] for r in rows if (r["values"], r["rel"]) == (name, rel or 0.0)}
        asked = {c: make for c, make in asked.items() if c not in done and not {c, _at(c, name, rel)} & set(left)}
        if not asked:
            continue
        x = values_of(name, size, to)
        eb = None if rel is None else float(x.max() - x.min()) * rel
        for codec, make in asked.items():
            if codec in left:
                continue
            at = _at(codec, name, rel)
            note(begun=at)
            try:
                row = {"values": name, "rel": rel or 0.0, "bytes": x.numel() * x.element_size(), **measured(codec, make(x, eb), x, eb)}
            except ImportError as error:
                left[codec] = f"{codec}: not installed, or not here ({error})"
                note(left=left[codec], codec=codec)
            except Exception as error:  # of a peer: the others go on
                if codec.startswith("rooftop"):
                    raise
                left[at] = f"{at}: {type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
                note(left=left[at], codec=at)
                if diary is not None and to.startswith("cuda"):
                    raise
            else:
                rows.append(row)
                note(row=row)
                say(
                    f"{name:10s} {rel or 'lossless':>8} {codec:22s} ratio {row['ratio']:7.2f}  error {row['share']:.3f} of the bound  "
                    f"in {_speed(row, 'in') or '-'}  out {_speed(row, 'out') or '-'} GB/s"
                )
    for text in left.values():
        say(f"left out: {text}")
    return rows, list(left.values())


def _at(codec: str, name: str, rel: float | None) -> str:
    return f"{codec} of {name}, {rel or 'lossless'}"


def _read(diary: Path | None) -> tuple[list[Table], dict[str, str]]:
    """The rows, and why what was left out: among it what was begun last, if nothing came of it."""
    lines = [json.loads(line) for line in diary.read_text(encoding="utf-8").splitlines()] if diary is not None and diary.exists() else []
    left = {line["codec"]: str(line["left"]) for line in lines if "left" in line}
    for line, after in zip(lines, [*lines[1:], {}], strict=False):
        if "begun" in line and not {"row", "left"} & set(after):
            left[line["begun"]] = f"{line['begun']}: it ended the process"
    return [line["row"] for line in lines if "row" in line], left


def apart(size: int) -> tuple[list[Table], list[str]]:
    """As `run` on all GPUs, our codecs in one process, each of the others in one of its own; another process goes on where one has
    crashed."""
    import torch

    names = list(dict.fromkeys(c for name, rel in cases() for c in ways(rel is not None, BITS[name == "weights"], "cuda")))
    ours = [c for c in names if c.startswith("rooftop")]
    jobs: SimpleQueue[list[str]] = SimpleQueue()
    for job in [ours, *([c] for c in names if c not in ours)]:
        jobs.put(job)
    with TemporaryDirectory() as folder:

        def work(gpu: str) -> None:
            while not jobs.empty():
                with suppress(Empty):
                    _finished(jobs.get_nowait(), size, gpu, Path(folder))

        gpus = [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(torch.cuda.device_count())]
        with ThreadPoolExecutor(len(gpus)) as pool:
            list(pool.map(work, gpus))
        read = [_read(path) for path in sorted(Path(folder).iterdir())]
    rows, order = [r for found, _ in read for r in found], [(name, rel or 0.0) for name, rel in cases()]
    rows.sort(key=lambda r: (order.index((r["values"], r["rel"])), names.index(r["codec"])))
    return rows, [text for _, left in read for text in left.values()]


def _finished(codecs: list[str], size: int, gpu: str, folder: Path) -> None:
    """Measure these codecs on one GPU, in as many processes as it takes. Raises RuntimeError where one of ours fails, or nothing comes
    on."""
    diary = folder / f"{codecs[0].replace(' ', '_')}.jsonl"
    command = [sys.executable, "-m", "rooftop.lab.report.codec_peers", "--size", str(size), "--to", "cuda", "--diary", str(diary)]
    command += [w for c in codecs for w in ("--codec", c)]
    before = -1
    while True:
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(command, check=False, timeout=HUNG_S, env=settings.environment({"CUDA_VISIBLE_DEVICES": gpu}))
            if not done.returncode:
                return
        now = len(diary.read_text(encoding="utf-8").splitlines()) if diary.exists() else -1
        if now == before or codecs[0].startswith("rooftop"):
            raise RuntimeError(f"the process that measures {', '.join(codecs)} failed")
        before = now


def _speed(row: Table, side: str) -> str:
    return f"{row[f'{side}_kernel']:,.0f} ({row[f'{side}_call']:,.0f})" if row[f"{side}_kernel"] else ""


def table(records: list[Record], _site: Any) -> str:
    """The newest run of each card, as a table of docs/codecs.md."""
    mine = {r.card: r for r in of_kind(records, "clock", SUBJECT)}
    if not mine:
        return "Nothing has been measured yet."
    lines = ["| on | values | rel | codec | ratio | in GB/s | out GB/s | error / bound |", "|---|---|---:|---|---:|---:|---:|---:|"]
    for card, record in sorted(mine.items()):
        for r in record["rows"]:
            rel, share = (f"{r['rel']:g}", f"{r['share']:.3f}") if r["rel"] else ("lossless", "")
            on = "CPU" if r["on"] == "cpu" else card
            lines.append(f"| {on} | {r['values']} | {rel} | {r['codec']} | {r['ratio']:.2f} | {_speed(r, 'in')} | {_speed(r, 'out')} | {share} |")
    return "\n".join(lines)


def keep(folder: Path, rows: list[Table], left: list[str], to: str) -> Path:
    """Write the record; its file."""
    about: Table = {"name": str(store.host()["cpu"])}
    if to.startswith("cuda"):
        import torch

        from rooftop.core.implementation import device_of

        card: Device = device_of(torch.device(to).index or 0)
        about = store.about(card)
    with store.Writer(folder, str(about["name"])) as writer:
        writer.write({"kind": "clock", "subject": SUBJECT, "device": about, "versions": store.versions(), "rows": rows, "left": left})
        return writer.path


def main() -> None:
    parser = Parser(prog="python -m rooftop.lab.report.codec_peers", description="Codecs of others beside ours.")
    parser.add_argument("--size", type=positive, default=256, help="values along each of three dimensions")
    parser.add_argument("--to", type=device, default="cpu", help="where ours and nvCOMP run: cpu, cuda")
    parser.add_argument("--records", type=Path, help="a folder: what was measured becomes a record")
    parser.add_argument("--codec", action="append", default=[], help="measure this one alone; may be given several times")
    parser.add_argument("--diary", type=Path, help="a file: what has been measured, for a process that goes on where one crashed")
    options = parser.parse_args()
    alone = options.diary is None and options.to.startswith("cuda")  # nvCOMP may crash
    rows, left = apart(options.size) if alone else run(options.size, options.to, diary=options.diary, only=options.codec)
    if options.records is not None:
        print(f"written: {keep(options.records, rows, left, options.to)}")


if __name__ == "__main__":
    ended(main)
