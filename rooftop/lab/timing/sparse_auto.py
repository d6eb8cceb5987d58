"""Each way to make a product with a sparse matrix, timed side by side: what `rooftop.sparse.advise` says is held against it
(docs/sparse.md).

python -m rooftop.lab.timing.sparse_auto FOLDER      writes a record below FOLDER; about half a minute on a GPU"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.lab.exit_codes import Parser, ended, gpu_for
from rooftop.lab.records import store
from rooftop.lab.records.record import Record, newest
from rooftop.lab.timing.timer import Candidate, Timer, sets_needed
from rooftop.lab.timing.timer_cuda import CudaBackend

if TYPE_CHECKING:
    from torch import Tensor

    from rooftop.sparse.advice import Predicted

SIZE = 4096
SUBJECT = "sparse ways"
SLOWEST = 8.0  # times the dense product as predicted: a way that is slower is not timed


def matrices(device: Any, seed: int = 0) -> Iterator[tuple[str, Tensor, int]]:
    """Name, matrix, columns."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    def blocks(side: int, density: float, size: int = SIZE) -> Tensor:
        return (drawn(size // side, size // side) < density).repeat_interleave(side, 0).repeat_interleave(side, 1)

    def half() -> Tensor:
        from rooftop.formats import two_four

        keys = drawn(SIZE, SIZE)
        at = two_four.places(two_four.select(keys))
        return torch.zeros(SIZE, SIZE, dtype=torch.bool, device=device).scatter(1, at, True)

    full = torch.randn(SIZE, SIZE, generator=generator, device=device)
    for density in (0.001, 0.01, 0.05, 0.2):
        for n in (16, 1024):
            yield f"elements {density} x {n}", full * (drawn(SIZE, SIZE) < density), n
    for side, density in ((128, 0.05), (128, 0.3), (64, 0.1), (32, 0.1), (32, 0.3), (16, 0.05)):
        for n in (64, 2048):
            yield f"blocks of {side}, {density} x {n}", (full * blocks(side, density)).to(torch.bfloat16), n
    for n in (64, 2048):
        yield f"2:4 x {n}", (full * half()).to(torch.bfloat16), n
    yield "blocks of 32, 0.05 x 512", full * blocks(32, 0.05), 512
    yield "blocks of 128, 0.2 x 512", full * blocks(128, 0.2), 512
    wide = torch.randn(2 * SIZE, 2 * SIZE, generator=generator, device=device, dtype=torch.bfloat16)
    for side in (128, 64, 32):
        for n in (64, 512, 4096):
            yield f"{2 * SIZE} x {2 * SIZE}, blocks of {side}, 0.5 x {n}", wide * blocks(side, 0.5, 2 * SIZE), n


def label_of(way: Predicted) -> str:
    return way.layout + (f" {way.block[0]}" if way.block else "")


def _copies(*operands: Any) -> list[Any]:
    import torch

    return [torch.utils._pytree.tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, x) for x in operands]


def measure(say: Any = print) -> dict[str, Any]:
    """A record of kind `clock`, a row a matrix: seconds of each way on the kernel clock, and the facts that the model reads. Raises
    RuntimeError without a GPU."""
    import torch

    from rooftop.core.implementation import device_of
    from rooftop.sparse import SparseTensor
    from rooftop.sparse.advice import facts, predicted

    index = torch.cuda.current_device()
    timer, rows, l2 = Timer(CudaBackend(index)), [], device_of(index).l2_bytes
    for name, x, n in matrices(torch.device("cuda", index)):
        b = torch.randn(x.shape[1], n, device=x.device, dtype=x.dtype)
        known = facts(x)
        advice = predicted(known, n)
        dense = next(w.seconds for w in advice.ways if w.layout == "dense")
        candidates, most = [], 0
        for way in advice.ways:
            if way.layout == "bsr" and (way.stored > 0.6 * x.numel() or way.seconds > SLOWEST * dense):
                continue
            label = label_of(way)
            a = x if way.layout == "dense" else SparseTensor.from_dense(x, way.layout, block=way.block)
            touched = a.nbytes + b.nbytes + x.shape[0] * n * b.element_size()
            most = max(most, touched)
            # each way by its own bytes, so that none finds its operands in L2
            sets = [_copies(a, b) for _ in range(sets_needed(touched, l2))]
            candidates.append(Candidate(label, [partial(operator.matmul, *operands) for operands in sets]))
        timing = timer.measure(candidates, bytes_per_call=most, budget_s=0.2, target=0.01, samples=(7, 60))
        seconds = {c.name: timing[c.name].median for c in candidates}
        say(f"{name}: " + ", ".join(f"{label} {s * 1e6:.1f}" for label, s in sorted(seconds.items(), key=lambda w: w[1])))
        about = {**asdict(known), "blocks": {str(side): count for side, count in known.blocks.items()}}
        rows.append({"matrix": name, "dtype": str(x.dtype).removeprefix("torch."), "n": n, "facts": about, "seconds": seconds})
    return {"kind": "clock", "subject": SUBJECT, "rows": rows, "device": store.about(device_of(index)), "versions": store.versions()}


def judged(row: Mapping[str, Any]) -> tuple[str, str, float]:
    """Of a row the way that the model takes among those that were timed, the fastest, and the time of the one over that of the other."""
    from rooftop.sparse.advice import Facts, predicted

    known, seconds = {f.name for f in fields(Facts)}, row["seconds"]  # a record may hold more than its readers know
    facts = {n: v for n, v in row["facts"].items() if n in known}
    advice = predicted(Facts(**{**facts, "blocks": {int(side): count for side, count in facts["blocks"].items()}}), row["n"])
    taken = next(label for w in advice.ways if (label := label_of(w)) in seconds)
    best = min(seconds, key=seconds.__getitem__)
    return taken, best, seconds[taken] / seconds[best]


def table(found: list[Record], _site: Any = None) -> str:
    """The newest record, judged by the model as it stands."""
    record = newest(found, "clock", SUBJECT)
    if record is None:
        return "Nothing has been measured yet."
    lines = [
        f"{record['device']['name']}, {SIZE} x {SIZE} where a row says no other size.",
        "",
        "| matrix, columns | dtype | `advise` takes | µs | the fastest | µs | ratio |",
        "|---|---|---|---:|---|---:|---:|",
    ]
    for row in record["rows"]:
        taken, best, ratio = judged(row)
        times = [f"{row['seconds'][label] * 1e6:.1f}" for label in (taken, best)]
        lines.append(f"| {row['matrix']} | {row['dtype']} | {taken} | {times[0]} | {best} | {times[1]} | {ratio:.2f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    import torch

    parser = Parser(
        prog="python -m rooftop.lab.timing.sparse_auto", description="Each way to make a product with a sparse matrix, timed side by side."
    )
    parser.add_argument("folder", type=Path, help="where the record is written; results is that of the repository")
    given = parser.parse_args(arguments)
    gpu_for("timing")
    with store.Writer(given.folder, torch.cuda.get_device_name()) as writer:
        writer.write(measure())
        print(f"wrote {writer.path}")


if __name__ == "__main__":
    ended(main)
