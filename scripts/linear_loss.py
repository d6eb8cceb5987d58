"""linear_cross_entropy with its gradients at sizes drawn from a seed, beside torch.compile of plain torch, Liger and the three products alone (hidden and
classes padded to 64), on this machine's GPU. Writes one JSON record.

    python scripts/linear_loss.py --seed 76 --out results/h200/linear_loss.json

A call is that of a user: the loss of bfloat16 tokens and the gradients of x and weight by autograd. Half of the sizes are multiples of 16, the others any.
Times by CUDA events, all of a point in turn; memory is what a call allocates at most. Sizes that --seconds leaves no time for are left out."""

import argparse
import math
import multiprocessing
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

MOST = 6e12  # tokens x hidden x classes: about 50 ms of products
SAMPLES, BUDGET_S = (6, 8), 0.4
JOBS = 4  # sizes compiled at once: a call takes up to 20 GB of the device
FAR_OFF = 0.02  # a gradient further than this from torch's, as a share of its norm, is wrong


def drawn(seed: int, count: int) -> list[tuple[int, int, int]]:
    """(tokens, hidden, classes), log-uniform."""
    chance, found = random.Random(f"{seed} linear loss"), list[tuple[int, int, int]]()
    while len(found) < count:
        n, h, v = (
            round(math.exp(chance.uniform(math.log(low), math.log(high)))) for low, high in ((1024, 16384), (1024, 4096), (16000, 160000))
        )
        n, h, v = (n // 16 * 16, h // 16 * 16, v // 16 * 16) if len(found) % 2 == 0 else (n, h, v)
        if n * h * v <= MOST:
            found.append((n, h, v))
    return found


def steps() -> dict[str, Callable[[Any, Any, Any], Any]]:
    """By name: (loss, dx, dweight) of x, weight and target."""
    import torch
    from torch.nn import functional

    import rooftop

    def of(loss: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
        def step(x: Any, weight: Any, target: Any) -> Any:
            value = loss(x, weight, target)
            return value.detach(), *torch.autograd.grad(value, (x, weight))

        return step

    plain = torch.compile(lambda x, weight, target: functional.cross_entropy((x @ weight.T).float(), target), dynamic=False)
    found = {
        "fast": of(lambda x, weight, target: rooftop.linear_cross_entropy(x, weight, target)),
        "small": of(lambda x, weight, target: rooftop.linear_cross_entropy(x, weight, target, memory="small")), "torch.compile": of(plain),
    }
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Liger
    except ImportError:
        return found
    return found | {"liger": of(lambda x, weight, target: Liger.apply(x, weight, target)[0])}


def row(timer: Any, size: tuple[int, int, int], calls: Mapping[str, Callable[[Any, Any, Any], Any]]) -> dict[str, Any]:
    import torch
    from torch.nn import functional

    from rooftop.lab.timing.peak_memory import peak_bytes
    from rooftop.lab.timing.sweep import first_line
    from rooftop.lab.timing.timer import Candidate, sets_needed

    n, h, v = size
    torch.compiler.reset()
    count = sets_needed(2 * (n * h + v * h), timer.backend.l2_bytes)
    x = [torch.randn(n, h, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(count)]
    weight = [(torch.randn(v, h, device="cuda") * h**-0.5).bfloat16().requires_grad_() for _ in range(count)]
    target = [torch.randint(v, (n,), device="cuda") for _ in range(count)]
    field, without, off, memory = [], {}, {}, {}
    want: Any = None
    apart = [tuple(functional.pad(t.detach(), (0, -h % 64, 0, below)) for t, below in ((a, 0), (w, -v % 64))) for a, w in zip(x, weight, strict=True)]

    def products(i: int) -> Any:
        a, w = apart[i]
        logits = a @ w.T
        return logits @ w, logits.T @ a

    for name in ("torch.compile", *(c for c in calls if c != "torch.compile")):
        def once(i: int = 0, step: Callable[..., Any] = calls[name]) -> Any:
            return step(x[i], weight[i], target[i])
        try:
            result = once()
            if name == "torch.compile":
                want = result
            elif want is not None:
                off[name] = max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in zip(result, want, strict=True))
            del result
            memory[name] = peak_bytes(once)
            field.append(Candidate(name, [partial(once, i) for i in range(count)], uncapturable="autograd runs it"))
        except Exception as error:
            without[name] = first_line(error)[:200]
            torch.cuda.empty_cache()
    field.append(Candidate("products", [partial(products, i) for i in range(count)], uncapturable="beside what is not captured"))
    del want
    field.sort(key=lambda c: c.name != "fast")
    m = timer.measure(field, "kernel", bytes_per_call=2 * (n * h + v * h), target=0.004, budget_s=BUDGET_S, samples=SAMPLES)
    torch.cuda.empty_cache()
    return {
        "tokens": n, "hidden": h, "classes": v, "us": {c: round(t.median * 1e6, 1) for c, t in m.timings.items()}, "bytes": memory, "noise": round(m.noise, 4),
        "off": {c: float(f"{x:.2g}") for c, x in off.items()}, "wrong": [c for c, x in off.items() if x > FAR_OFF], "absent": without,
    }


def once(size: tuple[int, int, int]) -> None:
    """In a process of its own: each run once."""
    import torch

    n, h, v = size
    calls = steps()
    x, weight = (torch.zeros(k, h, device="cuda", dtype=torch.bfloat16, requires_grad=True) for k in (n, v))
    for call in calls.values():
        call(x, weight, torch.zeros(n, device="cuda", dtype=torch.int64))
    torch.cuda.synchronize()


def table(rows: list[dict[str, Any]]) -> str:
    lines, every, over = list[str](), list[float](), list[float]()
    for r in rows:
        us, peers = r["us"], [r["us"][c] for c in ("torch.compile", "liger") if c in r["us"]]
        if peers and "fast" in us:
            every.append(min(peers) / us["fast"])
        mib = " ".join(f"{c} {b >> 20}" for c, b in r["bytes"].items())
        if "products" in us and "fast" in us:
            over.append(us["fast"] / us["products"])
        lines.append(f"{r['tokens']}x{r['hidden']}x{r['classes']}: {every[-1] if every else 0:.3f}  " + " ".join(f"{c} {t:.0f}" for c, t in us.items())
                     + f" us; MiB {mib}{'; WRONG ' + str(r['wrong']) if r['wrong'] else ''}{'; ' + str(r['absent']) if r['absent'] else ''}")
    if every:
        mean = math.exp(sum(map(math.log, every)) / len(every))
        lines.append(f"the faster of torch.compile and Liger over fast: {mean:.3f}, least {min(every):.3f}, {len(every)} points")
        lines.append(f"fast over the three products alone: {math.exp(sum(map(math.log, over)) / len(over)):.3f}, most {max(over):.3f}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0, help="compiling included")
    parser.add_argument("--compile-only", action="store_true", help="run each once, several sizes at a time, so that all is in the caches")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began = time.monotonic()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("timing needs an NVIDIA GPU")
    from rooftop.lab.records import store
    from rooftop.lab.timing.timer import Timer
    from rooftop.lab.timing.timer_cuda import CudaBackend

    if given.compile_only:
        with ProcessPoolExecutor(JOBS, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
            waiting = {pool.submit(once, size): size for size in drawn(given.seed, given.points)}
            for done in as_completed(waiting):
                print(f"{time.monotonic() - began:.0f} s {'x'.join(map(str, waiting[done]))} {done.exception() or 'compiled'}", flush=True)
        return 0
    timer, calls = Timer(CudaBackend(torch.cuda.current_device())), steps()
    rows: list[dict[str, Any]] = []
    for size in drawn(given.seed, given.points):
        if time.monotonic() - began > given.seconds:
            print(f"left out: {'x'.join(map(str, size))}", flush=True)
            continue
        rows.append(row(timer, size, calls))
        print(table(rows[-1:]).splitlines()[0], flush=True)
        if given.out:
            store.write_rows(given.out, "linear_cross_entropy", given.seed, torch.cuda.get_device_name(), rows)
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
