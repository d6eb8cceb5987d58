"""Time two revisions of rooftop in turns, in one run on one GPU, and write the ratios as JSON: is any op slower than it was, at any size?

    python scripts/compare_revisions.py e0a171b --out results/h200/against_e0a171b.json     # in a clone with its history
    python scripts/compare_revisions.py path/to/an/older/tree --out here.json --family norm --points 60 --seed 7

Cases are the contracts' own that are timed (`bench`), and `--points` random sizes of the swept ops of each family, drawn from `--seed`. Each revision has a
process of its own; both hold the same random inputs in as many copies as exceed the L2 cache. A CUDA graph calls the op once for each copy; the two processes
time it in turns, ROUNDS times. Direction "both" captures the call and its gradients. The result of a case is the median over the rounds of (time of the older
revision / time of this one): above 1, this one is faster."""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
ROUNDS = 9
ENOUGH = 192 << 20  # bytes of input copies: three times an H200's L2 cache
MOST = 24 << 30  # bytes of a case's tensors: both processes hold them
Case = tuple[str, str, str]  # op, case (or "sweep" and JSON of its dtype and sizes), direction


def cases(families: Sequence[str], ops: Sequence[str], points: int, seed: int) -> list[Case]:
    """What is timed, of all families or of some: the contracts' bench cases, and `points` random sizes a family."""
    from rooftop.core import registry
    from rooftop.core.spec import TARGETS
    from rooftop.lab.timing import sweep_points

    found: list[Case] = []
    by_family: dict[str, list[str]] = {}
    for name in registry.op_names():
        kernels = registry.implementations(name)
        family = kernels[0].path.parent.name if kernels else ""
        if family and family != "comm" and (not families or family in families) and (not ops or name in ops):
            by_family.setdefault(family, []).append(name)
    for names in by_family.values():
        swept = [n for n in names if registry.op(n).swept is not None]
        for name in names:
            op = registry.op(name)
            ways = ("forward", "both") if op.grad is not None else ("forward",)
            listed = [c.id for c in op.cases if "bench" in c.tags and "huge" not in c.tags]
            if points and op.swept is not None:
                share = points // len(swept) + (swept.index(name) < points % len(swept))
                drawn = sweep_points.draw(op, op.swept, TARGETS["h200"], MOST // 4, seed=seed, count=share, of_models=False) if share else []
                listed += ["sweep " + json.dumps([p.dtype, dict(p.sizes)]) for p in drawn]
            found += [(name, case, way) for case in listed for way in ways]
    return found


def prepare(case: Case) -> Callable[[], float]:
    """A function that returns the microseconds of one call, on average over some milliseconds."""
    import torch

    from rooftop.core import registry
    from rooftop.lab import inputs

    name, which, direction = case
    op, grad = registry.op(name), direction == "both"
    if which.startswith("sweep "):
        dtype, sizes = json.loads(which.removeprefix("sweep "))
        assert op.swept is not None
        this = op.swept.case(dtype, sizes)
    else:
        this = op.case(which)
    tensors, options = inputs.make(op, this, "cuda", 0)
    size = sum(t.nbytes for t in tensors.values() if t is not None)
    if size > MOST:
        raise ValueError(f"the case has {size / 2**30:.1f} GiB of tensors")
    wrt = [n for entry in op.grad.wrt for n in entry.split("=")] if grad and op.grad is not None else []

    def copied() -> dict[str, Any]:
        made = {n: None if t is None else torch.empty_like(t, memory_format=torch.preserve_format).copy_(t) for n, t in tensors.items()}
        for n in wrt:
            if made.get(n) is not None and made[n].is_floating_point():
                made[n].requires_grad_()
        return made

    calls = [copied() for _ in range(min(64, -(-ENOUGH // max(size, 1))))]

    def run(given: dict[str, Any]) -> Any:
        out = op(*op.arguments(given, options))
        return [t for t in (out if isinstance(out, tuple) else (out,)) if t is not None and (not grad or t.requires_grad)]

    upstream: list[Any] = []

    def once() -> None:
        for given in calls:
            with torch.set_grad_enabled(grad):
                out = run(given)
            if grad:
                upstream[:] = upstream or [torch.randn_like(t) for t in out]
                torch.autograd.grad(out, [t for t in given.values() if t is not None and t.requires_grad], upstream, allow_unused=True)

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
            try:
                ready = prepare(tuple(json.loads(line)))
            except Exception as error:  # another tree may refuse a case in any way: it is left out, with the reason
                print(json.dumps(f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"), file=answers, flush=True)
                continue
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

    def answer(self) -> float | str:
        """A time, or why the case cannot be prepared."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a revision's process has ended: its error stands above")
        found: float | str = json.loads(line)
        return found


    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def compare(
    older: Path, caches: Path, todo: Sequence[Case], ahead: int = 0, budget_s: float = math.inf
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The times, and why cases are left out. `ahead`: that many processes of each revision compile all cases first, into the caches, for at
    most half of the budget."""
    began = time.monotonic()

    def pair() -> tuple[Revision, Revision]:
        return Revision(older, caches / "older"), Revision(HERE, caches / "this")

    def prepared(both: tuple[Revision, Revision], case: Case) -> str:
        """"", or why not."""
        for revision in both:
            revision.send(json.dumps(case))
        return next((a for a in [revision.answer() for revision in both] if isinstance(a, str)), "")

    def compiled(share: Sequence[Case]) -> None:
        both = pair()
        for case in share:
            if time.monotonic() - began < budget_s / 2:
                prepared(both, case)
        for revision in both:
            revision.end()

    if ahead:
        with ThreadPoolExecutor(ahead) as pool:
            list(pool.map(compiled, (todo[i::ahead] for i in range(ahead))))
    rows, refused = [], {}
    both = pair()
    for case in todo:
        if time.monotonic() - began > budget_s:
            refused[" ".join(case)] = "the time is over"
            continue
        if why := prepared(both, case):
            refused[" ".join(case)] = why
            continue
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for revision, each in zip(both, times, strict=True):
                revision.send("time")
                each.append(float(revision.answer()))
        ratios = [old / new for old, new in zip(*times, strict=True)]
        ratio = statistics.median(ratios)
        noise = statistics.median(abs(r - ratio) for r in ratios)
        old_us, new_us = (statistics.median(t) for t in times)
        rows.append({"op": case[0], "case": case[1], "direction": case[2], "older us": round(old_us, 2), "us": round(new_us, 2),
                     "ratio": round(ratio, 3), "noise": round(noise, 3)})
        print(f"{case[0]:20s} {case[1]:60s} {case[2]:8s} {old_us:9.1f} {new_us:9.1f} us {ratio:6.3f}", flush=True)
    return rows, refused


def main() -> int:
    if sys.argv[1:] == ["work"]:
        work()
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("older", help="a git revision, or a folder that holds an older tree")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--op", action="append", default=[], help="one op; may be given several times")
    parser.add_argument("--family", action="append", default=[], help="one family of kernels; may be given several times")
    parser.add_argument("--points", type=int, default=0, help="random sizes of a family besides the bench cases")
    parser.add_argument("--seed", type=int, default=0, help="of the random sizes")
    parser.add_argument("--ahead", type=int, default=0, help="processes of each revision that compile first (default: none)")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds; what is left then, of all cases in random order, is left out")
    parser.add_argument("--part", default="1/1", help="which part of the cases, as 1/2: for one of several GPUs")
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
        sys.path.insert(0, str(HERE))
        todo = cases(given.family, given.op, given.points, given.seed)
        if given.budget < math.inf:
            random.Random(given.seed).shuffle(todo)
        part, parts = map(int, given.part.split("/"))
        rows, refused = compare(older.resolve(), Path(temporary), todo[part - 1 :: parts], given.ahead, given.budget)
    slower = [r for r in rows if r["ratio"] < 0.97 - 2 * r["noise"]]
    mean = math.exp(statistics.fmean(math.log(r["ratio"]) for r in rows)) if rows else None
    content = {"device": torch.cuda.get_device_name(), "older": Path(given.older).name, "rounds": ROUNDS, "seed": given.seed, "mean ratio": mean,
               "slower": len(slower), "cases": rows, "left out": refused}
    given.out.write_text(json.dumps(content, indent=1) + "\n")
    for case, why in refused.items():
        if why != "the time is over":
            print(f"left out: {case}: {why}")
    print(f"{len(rows)} cases, geometric mean {mean or 0:.3f}, {len(slower)} slower than {content['older']} by more than 3 % and the noise")
    return 0


if __name__ == "__main__":
    sys.exit(main())
