"""Time the row ops of two revisions of rooftop in turns, in one run on one GPU, and write the ratios as JSON: is any benched size slower than it was?

    python scripts/compare_revisions.py e0a171b --out results/h200/against_e0a171b.json     # in a clone with its history
    python scripts/compare_revisions.py path/to/an/older/tree --out here.json

Each revision has a process of its own; both hold the same random inputs in as many copies as exceed the L2 cache. A CUDA graph calls the public function
once for each copy; the two processes time it in turns, ROUNDS times. Direction "both" captures the call and its gradients. The result of a case is the median
over the rounds of (time of the older revision / time of this one): above 1, this one is faster."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
ROUNDS = 9
ENOUGH = 192 << 20  # bytes of input copies: three times an H200's L2 cache
ROWS = ((16384, 8192), (4096, 32768), (2048, 131072), (1024, 262144), (262144, 256), (32768, 2304), (16384, 5120), (8192, 12288), (8192, 12289), (2048, 4096))
Case = tuple[str, tuple[int, ...], str, str]  # op, sizes, dtype, direction


def cases() -> list[Case]:
    """The sizes at which the row ops were benched at e0a171b, in the dtypes of those cases; products in float32."""
    found: list[Case] = []
    for op in ("rms_norm", "layer_norm"):
        found += [(op, size, "bfloat16", way) for size in ROWS for way in ("forward", "both")]
        found += [(op, size, "float32", "forward") for size in ROWS[:3]]
    found += [("softmax", size, "bfloat16", way) for size in (*ROWS[:3], (65536, 2048), (2048, 128256), ROWS[4]) for way in ("forward", "both")]
    found += [("softmax", size, "float32", "forward") for size in ROWS[:3]]
    found += [("cross_entropy", size, "bfloat16", way) for size in (*ROWS[:4], (4096, 128256), (4096, 50257), (512, 32768)) for way in ("forward", "both")]
    found += [(op, (16384, 8192), "bfloat16", way) for op in ("gelu", "swiglu") for way in ("forward", "both")]
    products = ((1024, 1024, 1024), (4096, 4096, 4096), (16384, 128, 4096), (256, 256, 65536), (2048, 11008, 4096))
    found += [("matmul", size, "float32", "forward") for size in products]
    return found


def prepare(case: Case) -> Callable[[], float]:
    """A function that returns the microseconds of one call, on average over some milliseconds."""
    import torch

    import rooftop

    op, size, name, direction = case
    dtype, grad = getattr(torch, name), direction == "both"

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_(grad)

    def inputs() -> tuple[list[torch.Tensor], Callable[[], Any]]:
        if op == "matmul":
            a, b = normal(size[0], size[2]), normal(size[2], size[1])
            return [a, b], lambda: rooftop.matmul(a, b)
        x = normal(*size)
        if op in ("rms_norm", "layer_norm"):
            w, extra = normal(size[1]), [normal(size[1])] if op == "layer_norm" else []
            return [x, w, *extra], lambda: getattr(rooftop, op)(x, size[1], w, *extra)
        if op == "cross_entropy":
            target = torch.randint(size[1], (size[0],), device="cuda")
            return [x], lambda: rooftop.cross_entropy(x, target)
        if op == "swiglu":
            y = normal(*size)
            return [x, y], lambda: rooftop.swiglu(x, y)
        return [x], lambda: getattr(rooftop, op)(x)

    torch.manual_seed(0)
    calls = [inputs()]
    held = sum(t.nbytes for t in calls[0][0])
    calls += [inputs() for _ in range(min(63, -(-ENOUGH // held) - 1))]
    with torch.no_grad():
        upstream = torch.randn_like(calls[0][1]())

    def once() -> None:
        for given, call in calls:
            with torch.set_grad_enabled(grad):
                out = call()
            if grad:
                torch.autograd.grad(out, given, upstream)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        once()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            once()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def time_it(replays: int) -> float:
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / replays / len(calls)

    time_it(1)
    replays = max(1, round(6e3 / (time_it(1) * len(calls))))
    return lambda: time_it(replays)


def work() -> None:
    """One revision's process: a line in (a case to prepare, or `time`), a line out."""
    answers, ready = sys.stdout, None
    sys.stdout = sys.stderr
    for line in sys.stdin:
        if line.strip() != "time":
            ready = None
            op, size, dtype, direction = json.loads(line)
            ready = prepare((op, tuple(size), dtype, direction))
        print(json.dumps(ready() if ready and line.strip() == "time" else 0.0), file=answers, flush=True)


class Revision:
    """A process that runs a tree's package."""

    def __init__(self, tree: Path, cache: Path) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH", "")))), "ROOFTOP_CACHE": str(cache)}
        program = "import runpy, sys; sys.argv = [sys.argv[1], 'work']; runpy.run_path(sys.argv[0], run_name='__main__')"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, __file__], cwd=tree, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> float:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a revision's process has ended: its error stands above")
        return float(json.loads(line))


    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def compare(older: Path, caches: Path, only: str = "", ahead: int = 0) -> list[dict[str, Any]]:
    """`ahead`: that many processes of each revision compile all cases first, into the caches."""
    todo = [case for case in cases() if not only or case[0] == only]

    def pair() -> tuple[Revision, Revision]:
        return Revision(older, caches / "older"), Revision(HERE, caches / "this")

    def prepared(both: tuple[Revision, Revision], case: Case) -> None:
        for revision in both:
            revision.send(json.dumps(case))
        for revision in both:
            revision.answer()

    def compiled(share: list[Case]) -> None:
        both = pair()
        for case in share:
            prepared(both, case)
        for revision in both:
            revision.end()

    if ahead:
        with ThreadPoolExecutor(ahead) as pool:
            list(pool.map(compiled, (todo[i::ahead] for i in range(ahead))))
    rows = []
    both = pair()
    for case in todo:
        prepared(both, case)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for revision, each in zip(both, times, strict=True):
                revision.send("time")
                each.append(revision.answer())
        ratios = [old / new for old, new in zip(*times, strict=True)]
        ratio = statistics.median(ratios)
        noise = statistics.median(abs(r - ratio) for r in ratios)
        old_us, new_us = (statistics.median(t) for t in times)
        rows.append({"op": case[0], "size": case[1], "dtype": case[2], "direction": case[3], "older us": round(old_us, 2), "us": round(new_us, 2),
                     "ratio": round(ratio, 3), "noise": round(noise, 3)})  # fmt: skip
        print(f"{case[0]:14s} {'x'.join(map(str, case[1])):16s} {case[2]:9s} {case[3]:8s} {old_us:9.1f} {new_us:9.1f} us {ratio:6.3f}", flush=True)
    return rows


def main() -> int:
    if sys.argv[1:] == ["work"]:
        work()
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("older", help="a git revision, or a folder that holds an older tree")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="one op")
    parser.add_argument("--ahead", type=int, default=0, help="processes of each revision that compile first (default: none)")
    given = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("compare_revisions.py: needs an NVIDIA GPU", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as temporary:
        older = Path(given.older)
        if not older.is_dir():
            older = Path(temporary) / "tree"
            archive = Path(temporary) / "tree.tar"
            subprocess.run(["git", "-C", str(HERE), "archive", "-o", str(archive), given.older, "rooftop"], check=True)
            with tarfile.open(archive) as packed:
                packed.extractall(older, filter="data")
        rows = compare(older.resolve(), Path(temporary), given.only, given.ahead)
    slower = [r for r in rows if r["ratio"] < 0.98 - 2 * r["noise"]]
    content = {"device": torch.cuda.get_device_name(), "older": Path(given.older).name, "rounds": ROUNDS, "cases": rows, "slower": len(slower)}
    given.out.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{len(rows)} cases, {len(slower)} slower than {content['older']} by more than 2 % and the noise")
    return 0


if __name__ == "__main__":
    sys.exit(main())
