"""Attention at sizes drawn from a seed, beside the kernels of cuDNN and FlashAttention-2, on all GPUs of this machine. Writes one JSON record.

    python scripts/attention_floors.py --seed 7451 --out results/h200/attention_floors.json
    python scripts/attention_floors.py decode --points 30 --seed 1 --out decode.json

Parts: forward and backward (lengths 512 to 32K, heads of 64 to 256 columns, 1 to 8 query heads to a key head, causal and full), decode and decode8 (one
query, caches of 16 and of 8 bits, batches 1 to 128, 1K to 64K keys), eight (the contract's 8-bit cases), latent (its cases of batch 64). Kernel clock, all of
a point in turn; the inputs rotate through more than L2. Kernels are compiled first. The points are shared out to the GPUs; those that --seconds leaves no
time for are named."""

import argparse
import math
import multiprocessing
import os
import queue
import random
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rooftop.core import registry, settings
from rooftop.core.call import select
from rooftop.core.spec import TARGETS, Case, Device, Input, case

PARTS = ("forward", "backward", "decode", "decode8", "eight", "latent")
TOKENS = 24576  # of a point of `forward` and `backward`
HEADS = ((32, 8), (64, 8), (16, 16), (16, 2))  # query and key heads of `decode`
MOST = 6 << 30  # bytes of a cache
LARGE = 256 << 20  # bytes of a cache from which it is held against the fastest read
SAMPLES = (6, 8)
BUDGET_S = 0.2  # of sampling a point


def attention(name: str, b: int, sq: int, h: int, d: int, sk: int, hk: int, right: int, cache: str = "bf16") -> Case:
    q, kv = Input((b, sq, h, d), "bf16"), Input((b, sk, hk, d), cache)
    scales: dict[str, Any] = {} if cache == "bf16" else {f"{n}_scale": Input((1,), "f32") for n in "kv"}
    return case(name, q=q, k=kv, v=kv, left=-1, right=right, scale=d**-0.5, softcap=0.0, dropout_p=0.0, seed=7, **scales)


def between(chance: random.Random, low: int, high: int) -> int:
    return round(math.exp(chance.uniform(math.log(low), math.log(high))))


def prefills(seed: int, count: int) -> Iterator[Case]:
    chance = random.Random(f"{seed} attention")
    for i in range(count):
        n = between(chance, 512, 32768)
        n = n // 128 * 128 if i % 2 == 0 else n
        d, group, right = chance.choice((64, 80, 96, 128, 256)), chance.choice((1, 2, 4, 8)), chance.choice((0, -1))
        b = max(1, round(TOKENS / n))
        yield attention(f"{'full' if right else 'causal'} {b}x{n} d{d}, 8 heads of {8 // group}", b, n, 8, d, n, 8 // group, right)


def decodes(seed: int, count: int, cache: str) -> Iterator[Case]:
    chance = random.Random(f"{seed} decode")
    while count:
        b, n, d, (h, hk) = between(chance, 1, 128), between(chance, 1024, 65536), chance.choice((64, 128, 128)), chance.choice(HEADS)
        if 4 * b * n * hk * d <= MOST:
            count -= 1
            yield attention(f"decode {b}x{n} d{d}, {h} heads of {hk}{'' if cache == 'bf16' else ', 8 bits'}", b, 1, h, d, n, hk, -1, cache)


def points(part: str, seed: int, count: int) -> list[tuple[str, str, Case]]:
    """(part, op, case) of each."""
    if part in ("eight", "latent"):
        op = "attention" if part == "eight" else "latent_attention"
        start = "8 bits, " if part == "eight" else "decode 64x8192"
        return [(part, op, c) for c in registry.op(op).cases if "bench" in c.tags and c.name.startswith(start)]
    drawn = prefills(seed, count) if part in ("forward", "backward") else decodes(seed, count, "bf16" if part == "decode" else "f8e4m3")
    return [(part, "attention_bwd" if part == "backward" else "attention", c) for c in drawn]


def chosen(op: Any, of: Case, device: Device) -> Any:
    """What a call takes."""
    from rooftop.lab.candidates import Subject

    call = select(op, op.problem(of, device)).call
    if call is None:
        raise ValueError(f"no kernel takes {of.id}")
    return Subject(call.implementation.name, op, call.implementation)


def compile_all(todo: list[tuple[str, str, Case]], device: Device) -> int:
    from rooftop.lab.aot import compile_first

    names = [(n, c) for _, n, c in todo] + [("attention", c) for _, n, c in todo if n == "attention_bwd"]
    return compile_first([(chosen(registry.op(n), c, device), c) for n, c in names], device)


def inputs(op: Any, of: Case, device: str, seed: int) -> dict[str, Any]:
    """The tensors. Those of a backward follow from the forward's kernel: its reference would hold all scores."""
    import torch

    from rooftop.lab.inputs import make

    forward = op.forward or op
    given, options = make(forward, of, device, seed)
    if forward is op:
        return given
    out, lse = forward(*forward.arguments(given, options))
    made = {"dout": torch.randn_like(out), "dlse": torch.zeros_like(lse)}  # the peers are given no gradient of the normaliser
    return made | dict(zip(forward.grad.saved_names, forward.grad.saved({**given, "out": out, "lse": lse}), strict=True))


def beside(part: str, op: Any, of: Case, sets: list[dict[str, Any]]) -> dict[str, list[Callable[[], Any]]]:
    """What stands beside the kernel: the contract's peers; torch's SDPA, which chooses among its own; of 8 bits, cuDNN on the same numbers in bfloat16."""
    import torch

    from rooftop.lab.timing.sweep import SAMPLED

    options = op.options(of)
    found: dict[str, list[Callable[[], Any]]] = {}
    if part not in ("eight", "decode8"):
        for name, factory in op.peers.items():
            if name not in SAMPLED:
                try:
                    run = factory()
                except ImportError:
                    continue
                found[name] = [partial(run, *op.arguments(t, options)) for t in sets]
    if part in ("forward", "decode"):
        def sdpa(t: Mapping[str, Any]) -> Any:
            q, k, v = (t[n].transpose(1, 2) for n in "qkv")
            causal, grouped = options["right"] == 0, q.shape[1] != k.shape[1]
            return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=options["scale"], enable_gqa=grouped)
        found["torch SDPA"] = [sdpa(t) for t in sets]
    if part == "eight":
        def wide(t: Mapping[str, Any]) -> Any:
            q, k, v = ((t[n].float() * t[f"{n}_scale"][:, None]).to(torch.bfloat16).transpose(1, 2) for n in "qkv")
            causal = options["right"] == 0
            return lambda: torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=options["scale"])
        found["torch cuDNN, bfloat16"] = [wide(t) for t in sets]
        try:
            found["cuDNN frontend, 8 bits"] = [cudnn_of_8_bits(t, options["right"] == 0, options["scale"]) for t in sets]
        except Exception as error:  # the wheel is absent, or its cuDNN has no such kernel
            print(f"cuDNN frontend, 8 bits: {type(error).__name__}: {error}"[:300], flush=True)
    return found


def cudnn_of_8_bits(t: Mapping[str, Any], causal: bool, scale: float) -> Callable[[], Any]:
    """cuDNN's attention in e4m3 by its frontend's graph; its weights have the largest of a row at 256. The result is bfloat16."""
    import cudnn
    import torch

    kinds = cudnn.data_type
    graph = cudnn.pygraph(io_data_type=kinds.FP8_E4M3, intermediate_data_type=kinds.FLOAT, compute_data_type=kinds.FLOAT)
    q, k, v = (t[n].transpose(1, 2) for n in "qkv")
    out = torch.empty_like(t["q"], dtype=torch.bfloat16).transpose(1, 2)
    given = {n: graph.tensor(dim=list(x.shape), stride=list(x.stride()), data_type=kinds.FP8_E4M3) for n, x in (("q", q), ("k", k), ("v", v))}
    factors = {f"descale_{n}": t[f"{n}_scale"] for n in "qkv"} | {"descale_s": 1 / 256, "scale_s": 256.0, "scale_o": 1.0}
    held = {n: x.view(1, 1, 1, 1) if torch.is_tensor(x) else torch.full((1, 1, 1, 1), x, device="cuda") for n, x in factors.items()}
    given |= {n: graph.tensor(dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=kinds.FLOAT) for n in held}
    o, *_ = graph.sdpa_fp8(**given, is_inference=True, attn_scale=scale, use_causal_mask=causal)
    o.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride())).set_data_type(kinds.BFLOAT16)
    graph.build([cudnn.heur_mode.A])
    pack = {given[n]: x for n, x in {"q": q.view(torch.uint8), "k": k.view(torch.uint8), "v": v.view(torch.uint8), **held}.items()} | {o: out}
    room = torch.empty(max(1, graph.get_workspace_size()), device="cuda", dtype=torch.uint8)
    handle = cudnn.create_handle()

    def run() -> Any:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(pack, room, handle=handle)
        return (out.transpose(1, 2),)
    return run


def errors_of_8_bits(t: Mapping[str, Any], options: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, float]:
    """Root mean square errors of results over that of attention of the same codes in float64: 256 queries of the first head."""
    import torch

    q, k, v = (t[n][0, :, 0].double() * t[f"{n}_scale"][0].double() for n in "qkv")
    at = torch.arange(0, q.shape[0], max(1, q.shape[0] // 256), device=q.device)
    z = q[at] @ k.T * options["scale"]
    if options["right"] == 0:
        z.masked_fill_(torch.arange(k.shape[0], device=q.device) > at[:, None], -math.inf)
    want = z.softmax(1) @ v
    return {n: float(((x[0, at, 0].double() - want).square().mean() / want.square().mean()).sqrt()) for n, x in results.items()}


class Worker:
    """One GPU."""

    def __init__(self) -> None:
        import torch

        from rooftop.core.devices import lookup
        from rooftop.core.implementation import device_of
        from rooftop.lab.records import store
        from rooftop.lab.timing import roofline, streams
        from rooftop.lab.timing.timer import Timer
        from rooftop.lab.timing.timer_cuda import CudaBackend

        torch.cuda.init()
        self.device, self.timer, self.streams = device_of(0), Timer(CudaBackend(0)), streams.Streams(0)
        self.ceilings = roofline.Ceilings.from_records(store.read(settings.load().results), self.device.name, lookup(self.device.name))

    def row(self, part: str, name: str, of: Case) -> dict[str, Any]:
        import torch

        from rooftop.lab.timing.bench_group import STREAM, Bench, BenchGroup, Summary
        from rooftop.lab.timing.sweep import differs, first_line
        from rooftop.lab.timing.sweep_points import held
        from rooftop.lab.timing.timer import Candidate, sets_needed

        op = registry.op(name)
        mine, problem = chosen(op, of, self.device), op.problem(of, self.device)
        bench = Bench(BenchGroup(op, of, []), self.device, self.timer, BUDGET_S, ("kernel",), Summary(), self.streams, self.ceilings)
        size = max(held(problem), 1)
        count = sets_needed(size, self.device.l2_bytes)
        sets = [inputs(op, of, "cuda", seed) for seed in range(count)]
        field, without, off = [bench.candidate(mine, sets, op.options(of))], {}, {}
        have: Mapping[str, Any] = field[0].calls[0]()  # type: ignore[assignment]  # its outputs, by name
        seen = {mine.name: have["out"]}
        for peer, calls in beside(part, op, of, sets).items():
            try:
                result = calls[0]()
                torch.cuda.synchronize()
                if peer != "torch SDPA" and part != "eight" and (why := differs(op, have, result)):
                    off[peer] = why
                if part == "eight":
                    seen[peer] = result[0] if "8 bits" in peer else result[0].transpose(1, 2)
                field.append(Candidate(peer, calls))
            except Exception as error:
                without[peer] = first_line(error)[:200]
        if part in ("decode", "decode8", "latent"):
            field += bench.copies(bench.work.bytes // 32 * 32, count)
        m = self.timer.measure(
            field, "kernel", bytes_per_call=size, floor_seconds=bench.floor("kernel"), target=0.004, budget_s=BUDGET_S, duty="normal", samples=SAMPLES,
        )
        wrong = {n: round(x, 5) for n, x in errors_of_8_bits(sets[0], op.options(of), seen).items()} if part == "eight" else {}
        us = {n: round(1e6 * t.median, 3) for n, t in m.timings.items()}
        reads = [x for n, x in us.items() if n.startswith(STREAM)]
        peers = {n: x for n, x in us.items() if n != mine.name and not n.startswith(STREAM)}
        operations = sum(2 * n for unit, n in bench.work.ops.items() if unit.startswith("tensor"))  # an FMA is two
        torch.cuda.empty_cache()
        return {
            "part": part, "case": of.name, "by": mine.name, "us": us[mine.name], "peers": peers, "read_us": min(reads, default=None),
            "bytes": bench.work.bytes, "tflops": round(operations / us[mine.name] / 1e6, 1), "noise": round(m.noise, 4),
            "by_events": sorted(n for n, t in m.timings.items() if t.method != "graph"),
            "absent": without, "differs": off, **({"errors": wrong} if wrong else {}),
        }


def work(gpu: str, todo: list[tuple[str, str, Case]], until: float, answers: Any) -> None:
    """In a process of its own: rows until the time is over."""
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    from rooftop.lab.timing.sweep import first_line

    worker = Worker()
    for part, name, of in todo:
        if time.time() > until:
            answers.put({"part": part, "case": of.name, "error": "no time was left"})
            continue
        try:
            answers.put(worker.row(part, name, of))
        except Exception as error:
            answers.put({"part": part, "case": of.name, "error": first_line(error)[:300]})
    answers.put(None)


def ratio(row: Mapping[str, Any]) -> float | None:
    """Of the time of what it is held against over ours: cuDNN, SDPA, or the fastest read of its bytes."""
    against = {"decode": "torch SDPA", "eight": "torch cuDNN, bfloat16"}.get(row["part"], "torch cuDNN")
    other = row["read_us"] if row["part"] in ("decode8", "latent") else row["peers"].get(against)
    return other / row["us"] if other else None


def mean(ratios: list[float]) -> float:
    """Geometric."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for part in PARTS:
        mine = [r for r in rows if r["part"] == part]
        found = sorted(((x, r) for r in mine if "us" in r and (x := ratio(r)) is not None), key=lambda x: x[0])
        if not found:
            lines += [f"{part}: no row" for _ in mine[:1]]
            continue
        lines.append(f"{part}: {len(found)} of {len(mine)} points, geometric mean {mean([x for x, _ in found]):.3f}, least {found[0][0]:.3f}")
        for n in sorted({n for _, r in found for n in r["peers"]}):
            each = [r["peers"][n] / r["us"] for _, r in found if n in r["peers"]]
            lines.append(f"    {n}: {mean(each):.3f} at {len(each)}")
        if part == "decode" and (large := [r["read_us"] / r["us"] for r in mine if "us" in r and r["bytes"] >= LARGE and r["read_us"]]):
            lines.append(f"    of the fastest read, from 256 MiB: {mean(large):.3f}, least {min(large):.3f}, {len(large)} points")
        shown = found[:8] if len(found) > 10 else found
        for x, r in shown:
            off = "DIFFERS" if r["differs"] else ""
            lines.append(f"  {x:.3f} {r['case']:42} {r['us']:9.1f} us {r['tflops']:6.0f} TFLOP/s {r['by'].partition('__')[2]} {off}")
    lines += [f"  {r['part']} {r['case']}: {r['error']}" for r in rows if "error" in r][:12]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--points", type=int, default=40, help="of each part whose sizes are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0, help="of timing; compiling comes on top")
    parser.add_argument("--compile-only", action="store_true", help="into the caches, without a GPU")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    todo = [p for part in given.parts for p in points(part, given.seed, given.points)]
    random.Random(given.seed).shuffle(todo)
    todo.sort(key=lambda point: point[0] not in ("eight", "latent"))  # the contract's cases are few: each is timed
    began = time.time()
    print(f"{len(todo)} points, {compile_all(todo, TARGETS['h200'])} programs compiled in {time.time() - began:.0f} s", flush=True)
    if given.compile_only:
        return 0
    import torch

    from rooftop.lab.records import store

    gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    if not gpus:
        raise SystemExit("timing needs an NVIDIA GPU; --compile-only does not")
    context, names = multiprocessing.get_context("spawn"), gpus.split(",")
    answers, until = context.Queue(), time.time() + given.seconds
    workers = [context.Process(target=work, args=(n, todo[i :: len(names)], until, answers)) for i, n in enumerate(names)]
    for w in workers:
        w.start()
    rows: list[dict[str, Any]] = []
    ended = 0
    while ended < len(workers):
        try:
            row = answers.get(timeout=2)
        except queue.Empty:
            if not any(w.is_alive() for w in workers):
                break  # a lost CUDA context
            continue
        ended += row is None
        if row is not None:
            rows.append(row)
            if given.out:
                store.write_rows(given.out, "attention", given.seed, torch.cuda.get_device_name(), rows)
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
