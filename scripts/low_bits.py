"""Products and codes in few bits, and sparse products, beside dense ones and beside copies, on one GPU.

    python scripts/low_bits.py products --out results/h200 --seed 7     packed int4 and int8 weights over cuBLAS in bfloat16, M from 1 to 8192
    python scripts/low_bits.py codes --out results/h200                 every format and granularity, over the copy of the bytes that it must move
    python scripts/low_bits.py sparse --out results/h200                blocks over the dense product times the density; 2:4 of 1 to 64 columns
    python scripts/low_bits.py peers --out results/h200                 int4 and int8 beside humming and gemlite, where they are installed
    python scripts/low_bits.py peers --warm humming:3                   one of these calls alone: side by side for all of them before, they fill the caches of
                                                                        libraries that compile for half a minute

A section compiles on all cores first, writes OUT/low_bits_SECTION.json after every row, and stops after --seconds. Times are of the kernel clock, as `rooftop
sweep` has it. rooftop/lab/report/low_bits.py makes the tables. N and K are those of models and, as often, multiples of 128 drawn from the seed."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rooftop.core import registry
from rooftop.core.spec import Case, Input
from rooftop.core.sweeps import Sizes
from rooftop.formats.number_formats import FORMATS
from rooftop.lab.report import low_bits
from rooftop.lab.timing import sweep, sweep_points

LAYERS = (  # N, K of linear layers of Llama, Mistral, Qwen, Gemma and Phi
    (8192, 8192), (28672, 4096), (4096, 14336), (6144, 4096), (28672, 8192), (8192, 28672), (5120, 5120), (27648, 5120), (5120, 13824), (18944, 3584),
    (3584, 18944), (10240, 8192),
)
WEIGHTS = (("int4", 128), ("int8", 0))  # format, group
LARGEST = 2 * 4096 * 8192 * 8192  # products of a point
ROWS, COLUMNS = 16384, 8192  # of a tensor whose codes are timed
WAYS = {"rows": (1, COLUMNS), "columns": (ROWS, 1), "tensor": (ROWS, COLUMNS), "groups of 128": (1, 128), "groups down": (128, 1), "blocks": (128, 128)}
WIDE, SIDES, DENSITIES = 8192, (128, 64, 32), (0.5, 0.1)  # of block-sparse matrices
PEERS = (1, 16, 64, 128, 256, 1024, 4096)  # M beside other libraries


class Timed:
    """Rows of one op, timed as a sweep times points, and kept in a file."""

    def __init__(self, path: Path, seed: int, seconds: float, formats: Iterable[str], rows: Iterable[int] = PEERS) -> None:
        import torch

        from rooftop.core.implementation import device_of

        self.device, self.path, self.ends = device_of(torch.cuda.current_device()), path, time.monotonic() + seconds
        self.found: dict[str, Any] = {"device": self.device.name, "torch": torch.__version__, "seed": seed, "rows": []}
        self.formats, self.rows = tuple(formats), tuple(rows)
        self.base: sweep.Sweep | None = None

    def runs(
        self, op: str, inputs: Callable[..., Mapping[str, Any]], points: Iterable[Mapping[str, int]], dtype: str, peers: tuple[str | None, ...]
    ) -> sweep.Sweep:
        """A sweep of these points, with these peers alone."""
        made = [sweep_points.Point(dtype, tuple(p.items()), False) for p in points]
        run = sweep.Sweep(registry.op(op), Sizes(inputs, {n: (1, 1 << 40) for n, _ in made[0].sizes}, dtypes=(dtype,)), made, self.device, compiled=0)
        run.peers = [s for s in run.peers if s.peer in peers]
        if self.base is None:
            self.base = run
        run.timer, run.streams, run.kept = self.base.timer, self.base.streams, self.base.kept
        return run

    def compile(self, runs: Iterable[sweep.Sweep]) -> None:
        began, programs = time.monotonic(), 0
        for run in runs:
            programs += run.compile(range(len(run.points)))
        print(f"{programs} programs compiled in {time.monotonic() - began:.1f} s", flush=True)

    def over(self) -> bool:
        return time.monotonic() > self.ends

    def keep(self, row: Mapping[str, Any]) -> None:
        self.found["rows"].append(dict(row))
        text = ",\n".join("  " + json.dumps(r) for r in self.found["rows"])
        head = json.dumps({k: v for k, v in self.found.items() if k != "rows"})
        self.path.write_text(f'{head[:-1]}, "rows": [\n{text}\n]}}\n', encoding="utf-8")

    def row(self, run: sweep.Sweep, i: int) -> dict[str, Any] | None:
        """Microseconds of a point; None where it could not be timed, which is said."""
        try:
            made = run.row(i, partial(print, flush=True))
        except Exception as error:  # of one point: the others are timed
            print(f"FAILED {run.op.name} {dict(run.points[i].sizes)}: {sweep.first_line(error)}"[:240], flush=True)
            return None
        if made is None:
            return None
        us = {n: sweep._us(t) for n, t in made["peers"].items()}
        return {"kernel": made["by"], "us": sweep._us(made["seconds"]), "copy_us": sweep._us(made["copy"]), "wrong": bool(made["wrong"]), "peers": us}


def drawn(seed: int) -> list[dict[str, int]]:
    """M, N, K: in every band as many layers of models as other multiples of 128; bands in turn, so that a spent budget leaves some of each."""
    r = random.Random(f"{seed} low bits")
    found = []
    for k in range(12):
        for low, high in low_bits.BANDS:
            for f in range(len(WEIGHTS)):
                n, wide = r.choice(LAYERS) if (k + f) % 2 else (128 * r.randint(16, 224), 128 * r.randint(16, 160))
                m = 1 << r.randint(low.bit_length() - 1, high.bit_length() - 1) if k % 3 else r.randint(low, high)
                while m > low and m * n * wide > LARGEST:
                    m = max(low, m // 2)
                found.append({"format": f + 1, "M": m, "N": n, "K": wide})
    return found


def products(t: Timed, seed: int, by: tuple[str | None, ...] = ("torch",), points: list[dict[str, int]] | None = None) -> None:
    from rooftop.ops.quantized_matmul import _given

    def inputs(dtype: str, format: int, M: int, N: int, K: int) -> dict[str, Any]:
        return _given(M, N, K, *WEIGHTS[format - 1], dtype)

    run = t.runs("quantized_matmul", inputs, points or drawn(seed), "bf16", by)
    t.compile([run])
    for i, point in enumerate(run.points):
        if t.over():
            break
        sizes = dict(point.sizes)
        if found := t.row(run, i):
            t.keep({"format": WEIGHTS[sizes.pop("format") - 1][0], **sizes, **found})


def beside_peers(formats: Iterable[str], rows: Iterable[int] = PEERS) -> list[dict[str, int]]:
    return [{"format": f + 1, "M": m, "N": 8192, "K": 8192} for f, (name, _) in enumerate(WEIGHTS) if name in formats for m in rows]


def peers(t: Timed, seed: int) -> None:
    from rooftop.lab.records.software import versions

    t.found["versions"] = {n: v for n, v in versions().items() if n in ("humming-kernels", "gemlite")}
    products(t, seed, ("torch", "humming", "gemlite"), beside_peers(t.formats, t.rows))


def warm(peer: str, at: int) -> None:
    """One call of another library."""
    import torch

    from rooftop.core.spec import case
    from rooftop.lab.inputs import make
    from rooftop.ops.quantized_matmul import OP, _given

    point = beside_peers(FORMATS)[at]
    tensors, options = make(OP, case("warm", **_given(point["M"], point["N"], point["K"], *WEIGHTS[point["format"] - 1])), "cuda", 0)
    OP.peers[peer]()(*OP.arguments(tensors, options))
    torch.cuda.synchronize()


def codes(t: Timed, seed: int) -> None:
    """Each beside a copy of the bytes that the op reads and writes; of nvfp4 with the time of the tensor's scale."""
    del seed
    from rooftop.ops._quantize_cases import one
    from rooftop.ops.dequantize import _case
    from rooftop.ops.tensor_scale import NVFP4

    ways = [(f, w, (1, FORMATS[f].group) if FORMATS[f].group else WAYS[w]) for f in FORMATS for w in (("its groups",) if FORMATS[f].group else WAYS)]
    points = [{"way": i + 1} for i in range(len(ways))]
    into = t.runs("quantize", lambda dtype, way: one("", "", (1, ROWS, COLUMNS), ways[way - 1][2], ways[way - 1][0], dtype).inputs, points, "bf16", ())
    back = t.runs("dequantize", lambda dtype, way: _case("", "", (1, ROWS, COLUMNS), ways[way - 1][2], ways[way - 1][0]).inputs, points, "u8", ())
    scale = t.runs("tensor_scale", lambda dtype, rows: {"x": Input((rows, COLUMNS), dtype), "largest": NVFP4}, [{"rows": ROWS}], "bf16", ())
    t.compile([into, back, scale])
    own = t.row(scale, 0)
    for i in sweep._scattered_order(len(ways)):
        format, way, _ = ways[i]
        for name, run in (("quantize", into), ("dequantize", back)):
            if t.over() or not (found := t.row(run, i)):
                continue
            if name == "quantize" and format == "nvfp4" and own:
                found["share"] = (found["copy_us"] + own["copy_us"]) / (found["us"] + own["us"])
            t.keep({"op": name, "format": format, "way": way, **found})


def sparse(t: Timed, seed: int) -> None:
    from rooftop.ops.spmm_24 import _swept as semi
    from rooftop.ops.spmm_bsr import _swept as blocks

    r = random.Random(f"{seed} 2:4")
    shapes = [*LAYERS[:6], *((128 * r.randint(16, 200), 256 * r.randint(8, 60)) for _ in range(6))]
    points = [{"M": m, "N": n, "K": k} for n in (1, 16, 64, 8, 32, 48) for m, k in r.sample(shapes, 5)]
    few = t.runs("spmm_24", semi, points, "bf16", ("cublas",))
    cells = [{"M": WIDE, "K": WIDE, "N": n, "side": s, "percent": round(100 * d)} for n in (4096, 2048) for s in SIDES for d in DENSITIES]
    bsr = t.runs("spmm_bsr", blocks, cells, "bf16", ())
    t.compile([bsr, few])
    for point in bsr.points:
        if t.over():
            break
        sizes = dict(point.sizes)
        # beside the product of a full matrix: one with zeros takes less power, and runs at higher clocks
        dense = partial(full, sizes["M"], sizes["K"], sizes["N"])
        us = beside(t, bsr, point.case(bsr.of), dense)
        share = us["dense"] * sizes["percent"] / 100 / us["ours"]
        t.keep({"op": "spmm_bsr", **sizes, "us": us["ours"], "dense_us": us["dense"], "share": round(share, 3)})
    for i in range(len(few.points)):
        if t.over():
            break
        if found := t.row(few, i):
            t.keep({"op": "spmm_24", **dict(few.points[i].sizes), **found})


def full(m: int, k: int, n: int, count: int) -> list[Callable[[], Any]]:
    """Dense products of random matrices, a call a set of inputs."""
    import torch

    made = [(torch.randn(m, k, device="cuda", dtype=torch.bfloat16), torch.randn(k, n, device="cuda", dtype=torch.bfloat16)) for _ in range(count)]
    return [partial(torch.mm, a, b) for a, b in made]


def beside(t: Timed, run: sweep.Sweep, case: Case, dense: Callable[[int], list[Callable[[], Any]]]) -> dict[str, float]:
    """Microseconds of what a call takes, and of the dense product, in turn."""
    from rooftop.core.call import select
    from rooftop.lab.candidates import Subject
    from rooftop.lab.inputs import make
    from rooftop.lab.timing.bench_group import Bench, BenchGroup, Summary
    from rooftop.lab.timing.timer import Candidate, sets_needed

    problem = run.op.problem(case, run.device)
    call = select(run.op, problem).call
    assert call is not None
    one = Bench(BenchGroup(run.op, case, []), run.device, run.timer, 0.2, ("kernel",), Summary(), run.streams, run.ceilings)
    size = sweep_points.held(problem)
    count = max(2, sets_needed(size, run.device.l2_bytes))
    sets = [make(run.op, case, "cuda", i)[0] for i in range(count)]
    mine = one.kernel(Subject(call.implementation.name, run.op, call.implementation), sets)
    field = [Candidate("ours", mine.calls), Candidate("dense", dense(count))]
    m = run.timer.measure(field, "kernel", bytes_per_call=size, target=0.01, budget_s=0.3, duty="sweep", samples=(9, 41))
    return {n: round(m[n].median * 1e6, 2) for n in ("ours", "dense")}


SECTIONS = {"products": products, "codes": codes, "sparse": sparse, "peers": peers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("--out", type=Path, default=Path("out"), help="a folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--formats", nargs="+", default=[name for name, _ in WEIGHTS], help="of products beside other libraries")
    parser.add_argument("--rows", nargs="+", type=int, default=PEERS, help="the same's M")
    parser.add_argument("--warm", help="PEER:POINT")
    given = parser.parse_args()
    if given.warm:
        began, (peer, _, at) = time.monotonic(), given.warm.partition(":")
        warm(peer, int(at))
        print(f"{given.warm} {time.monotonic() - began:.1f} s")
        return
    given.out.mkdir(parents=True, exist_ok=True)
    timed = Timed(given.out / f"low_bits_{given.section}.json", given.seed, given.seconds, given.formats, given.rows)
    SECTIONS[given.section](timed, given.seed)
    print(low_bits.SECTIONS[given.section](timed.found["rows"]) if timed.found["rows"] else "nothing was timed")


if __name__ == "__main__":
    main()
