"""The row ops, elementwise ops and transposes at sizes drawn from a seed, beside a copy of the same bytes and Liger: `rooftop sweep` as a
campaign of one GPU, all ops in turn, so that a run cut short is a fair sample.

    python scripts/row_floors.py compile --seed 7801 --drawn drawn.pkl       kernels of all points on all cores, then the peers' once each
    python scripts/row_floors.py time --seed 7801 --drawn drawn.pkl --seconds 100 --rows rows.jsonl
    python scripts/row_floors.py records --seed 7801 --rows rows.jsonl --out results
    python scripts/row_floors.py show --rows rows.jsonl

Points: rows x columns of 32 MiB to 1 GiB, 48 to 300,000 columns, a third of them odd and a third multiples of 16, in bfloat16, float16 and
float32. A point is held against the fastest copy of as many bytes (of a loss: read) on the same clock in the same field. Both rotate through
more than three times L2, also where one call's tensors would fit it: neither finds its inputs there, and each leaves as many written lines."""

import argparse
import dataclasses
import json
import math
import multiprocessing
import pickle
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rooftop.core import registry, settings
from rooftop.core.spec import TARGETS, Device
from rooftop.lab.candidates import Subject
from rooftop.lab.report.sweep_page import GROUPS, reached
from rooftop.lab.timing import sweep, sweep_points

COUNTS = dict(zip(GROUPS, (50, 50, 15, 100), strict=True))  # points of each op of a group
FLOORS = dict(zip(GROUPS, ({0.95: 0.88, 0.99: 0.75}, {0.95: 0.80, 0.99: 0.65}, {0.98: 0.92, 0.99: 0.80}, {0.95: 0.80}), strict=True))
BYTES, COLUMNS, DTYPES = (32 << 20, 1 << 30), (48, 300_000), ("bf16", "f16", "f32")
COMPILED = 30  # points beside torch.compile, the last that are timed
PROCESSES = 8  # that call peers once, on the GPU


def ops(part: str = "") -> list[str]:
    known = registry.op_names()
    found = [n for group, names in GROUPS.items() if part in group for n in names if n.removesuffix("_bwd") in known]
    return [n for n in found if n != "add_bwd"]  # two copies


def group_of(op: str) -> str:
    return next(g for g, names in GROUPS.items() if op in names)


def drawn(op: Any, of: Any, device: Device, seed: int) -> list[sweep_points.Point]:
    chance = random.Random(f"{seed} {op.name}")
    drawing = sweep_points.Drawing(op, of, device, 0, BYTES, chance)
    found: list[sweep_points.Point] = []
    while len(found) < COUNTS[group_of(op.name)]:
        dtype, columns = chance.choice(DTYPES), drawing.size(*COLUMNS, False)
        columns = (columns | 1, columns // 16 * 16, columns)[len(found) % 3]
        point = sweep_points.Point(dtype, (("rows", drawing.rows(dtype, {"columns": columns})), ("columns", columns)), False)
        if BYTES[0] <= op.work(drawing.problem(point)).bytes <= BYTES[1]:
            found.append(point)
    return found


class Run(sweep.Sweep):
    """A sweep whose peers are chosen point by point."""

    liger: list[Subject]
    compiler: list[Subject]

    def beside(self, i: int, compiled: bool) -> list[Subject]:
        """Liger at a third of the points: it takes rows of at most 65,536 elements, and up to 70 times as long."""
        return self.compiler if compiled else self.liger if i % 3 == 0 and dict(self.points[i].sizes)["columns"] <= 65536 else []


def runs(seed: int, device: Device, on_gpu: bool, names: list[str], kept: Path | None = None) -> Iterator[Run]:
    """`kept`: a file with the points that `compile` has drawn."""
    known = pickle.loads(kept.read_bytes()) if kept is not None and kept.exists() else {}
    ceilings = sweep.ceilings_of(device)
    timer, copies, reserved = sweep._on_this_gpu() if on_gpu else (object(), None, 1 << 40)
    for name in names:
        op = registry.op(name)
        of = dataclasses.replace(sweep_points.swept(op), dtypes=DTYPES)
        run = Run(op, of, known.get(name) or drawn(op, of, device, seed), device, timer=timer, compiled=0, ceilings=ceilings)  # type: ignore[arg-type]
        run.streams, run.kept = copies, reserved
        run.liger = [s for s in run.peers if s.peer == "liger"]
        run.compiler = [s for s in run.sampled if s.peer == "torch.compile"]
        yield run


def order(seed: int, found: list[Run]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(op, point) of all in turn, and of those that are timed again beside torch.compile."""
    every = [(k, i) for k, run in enumerate(found) for i in range(len(run.points))]
    random.Random(seed).shuffle(every)
    able = [(k, i) for k, i in every if found[k].compiler and found[k].points[i].dtype == "bf16"]  # most contracts compile no other
    again: list[tuple[int, int]] = []
    each = dict.fromkeys(range(len(found)), 0)
    for k, i in able:
        if each[k] < 2 and len(again) < COMPILED:
            each[k] += 1
            again.append((k, i))
    return every, again


def once(job: tuple[int, str, list[tuple[int, bool]]]) -> list[str]:
    """In a process of its own: peers of some points called once, so that their compilers have run."""
    import torch

    from rooftop.core.implementation import device_of
    from rooftop.lab.inputs import make

    seed, name, points = job
    run, said = next(iter(runs(seed, device_of(0), False, [name]))), []
    for i, compiled in points:
        case = run.points[i].case(run.of)
        try:
            if compiled:
                torch.compiler.reset()  # as the sweep does, past the shape before
            tensors, options = make(run.op, case, "cuda", 0)
            for s in run.beside(i, compiled):
                with torch.no_grad():
                    s.function(*run.op.arguments(tensors, options))
            torch.cuda.synchronize()
        except Exception as error:
            said.append(f"{name} {case.id}: {type(error).__name__} {str(error)[:100]}")
        if torch.cuda.memory_reserved() > 8 << 30:
            torch.cuda.empty_cache()
    return said


def compile_all(given: argparse.Namespace) -> None:
    from rooftop.lab.aot import compile_first

    began = time.time()
    device, on_gpu = here()
    found = list(runs(given.seed, device, False, ops(given.part)))
    if given.drawn:
        given.drawn.write_bytes(pickle.dumps({run.op.name: run.points for run in found}))
    chosen = [(s, p.case(run.of)) for run in found for p in run.points if (s := run.chosen(p))]
    print(f"{len(chosen)} points drawn in {time.time() - began:.1f} s", flush=True)
    print(f"{compile_first(chosen, device)} programs in {time.time() - began:.1f} s", flush=True)
    if not on_gpu:
        return
    every, again = order(given.seed, found)
    jobs: dict[tuple[str, bool], list[tuple[int, bool]]] = defaultdict(list)
    for compiled, some in ((True, again), (False, every)):
        for k, i in some:
            if found[k].beside(i, compiled):
                jobs[found[k].op.name, compiled].append((i, compiled))
    todo = [(given.seed, name, some) for (name, _), some in jobs.items()]
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        for said in pool.map(once, todo):
            print(*said, sep="\n", end="\n" if said else "", flush=True)
    print(f"peers of {sum(map(len, jobs.values()))} points in {time.time() - began:.1f} s", flush=True)


def here() -> tuple[Device, bool]:
    import torch

    from rooftop.core.implementation import device_of

    return (device_of(0), True) if torch.cuda.is_available() else (TARGETS["h200"], False)


def measure(given: argparse.Namespace) -> None:
    began = time.time()
    found = list(runs(given.seed, here()[0], True, ops(given.part), given.drawn))
    every, again = order(given.seed, found)
    print(f"{len(every)} points, {len(again)} of them beside torch.compile, drawn in {time.time() - began:.1f} s", flush=True)
    spent: dict[str, float] = defaultdict(float)
    with open(given.rows, "w", encoding="utf-8") as file:
        for n, (k, i, compiled) in enumerate([*((k, i, False) for k, i in every), *((k, i, True) for k, i in again)]):
            if time.time() - began > given.seconds:
                print(f"{len(every) + len(again) - n} points left out: {given.seconds:g} s are spent", flush=True)
                break
            run, at = found[k], time.time()
            run.peers, run.sampled, run.sample = run.beside(i, compiled), [], {i} if compiled else set()
            try:
                row = run.row(i, lambda text: print(text[:200], flush=True))
            except Exception as error:
                print(f"{run.op.name} {run.points[i].case(run.of).id}: {type(error).__name__} {str(error)[:160]}", flush=True)
                if sweep.context_lost():
                    break
                continue
            spent[group_of(run.op.name)] += time.time() - at
            if row is not None:
                file.write(json.dumps({"op": run.op.name, "index": i, "compiled": compiled, **row}) + "\n")
                file.flush()
    print(", ".join(f"{name}: {s:.1f} s" for name, s in spent.items()), flush=True)


def read(rows: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """Op -> point -> its row; what torch.compile took relative to the kernel beside it is put beside the first row's time."""
    found: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for line in rows.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        of = found[row.pop("op")]
        if row.pop("compiled") and (first := of.get(row["index"])):
            first["peers"] |= {n: s * first["seconds"] / row["seconds"] for n, s in row["peers"].items()}
        else:
            of[row["index"]] = row
    return found


def record(job: tuple[int, str, Device, list[dict[str, Any]]]) -> dict[str, Any]:
    seed, name, device, rows = job
    return {**next(iter(runs(seed, device, False, [name])))._record(rows), "seed": seed}


def records(given: argparse.Namespace) -> None:
    from rooftop.lab.records import store

    device = here()[0]
    jobs = [(given.seed, name, device, [rows[i] for i in sorted(rows)]) for name, rows in read(given.rows).items()]
    with store.Writer(given.out, device.name) as writer, ProcessPoolExecutor(
        min(settings.load().jobs, len(jobs)), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for found in pool.map(record, jobs):
            writer.write(found)


def show(given: argparse.Namespace) -> None:
    """The floors, peers, and the worst points of each group."""
    found, device = read(given.rows), here()[0]
    named = {run.op.name: run for run in runs(given.seed, device, False, list(found))}
    for group, asked in FLOORS.items():
        mine = [(r["roof"] / r["seconds"], name, i, r) for name, rows in found.items() if group_of(name) == group for i, r in rows.items()]
        if not mine:
            continue
        shares = [m[0] for m in mine]
        print(f"FLOOR {group}: {len(mine)} of {COUNTS[group] * len([n for n in ops() if group_of(n) == group])} points, median {reached(shares, 0.5):.2f}")
        for part, floor in asked.items():
            print(f"    {100 * part:g} % at {reached(shares, part):.2f}; asked {floor}, under it {sum(s < floor for s in shares)}")
        for peer in sorted({n for m in mine for n in m[3]["peers"]}):
            ratios = [m[3]["peers"][peer] / m[3]["seconds"] for m in mine if peer in m[3]["peers"]]
            least, mean = 0.95 if peer == "torch.compile" else 0.97, math.exp(sum(map(math.log, ratios)) / len(ratios))
            print(f"    {peer}: {len(ratios)} points, {mean:.2f}x, least {min(ratios):.2f}, under {least}: {sum(x < least for x in ratios)}")
        for share, name, i, r in sorted(mine, key=lambda m: m[0])[: given.worst]:
            p, peers = named[name].points[i], {n: round(s / r["seconds"], 2) for n, s in r["peers"].items()}
            print(f"    {share:.2f} {name} {p.dtype} {' x '.join(str(v) for _, v in p.sizes)} {r['by']} {r['seconds'] * 1e6:.1f} us {peers}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("compile", "time", "records", "show"))
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--drawn", type=Path)
    parser.add_argument("--part", default="", help="of the name of a group of ops")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--rows", type=Path, default=Path("rows.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--worst", type=int, default=16)
    given = parser.parse_args()
    {"compile": compile_all, "time": measure, "records": records, "show": show}[given.what](given)


if __name__ == "__main__":
    main()
