"""`rooftop.comm` on the GPUs of this host: what its tests do over gloo, over NCCL and symmetric memory, and 10^4 calls with random stragglers.

    python scripts/comm_on_gpus.py public --out out/           what a user calls, right and wrong, graphs, torch.compile, hooks, layers
    python scripts/comm_on_gpus.py faults --out out/           ranks that call something else, are late, or die
    python scripts/comm_on_gpus.py stragglers --out out/ --iterations 10000
    python scripts/comm_on_gpus.py sampling --out out/         how far the time of a call depends on how many a sample has
    python scripts/comm_on_gpus.py times --out out/            the CPU's share of a call, one and two shots, norms, products, beside NCCL and torch
    python scripts/comm_on_gpus.py some --only shapes,late     checks of any section in the same processes

It starts a process for each GPU (--processes for another number), on a machine without GPUs over gloo. Each section writes out/SECTION.json; the exit code is 1
if anything was wrong. A check that fails gets a new group for what comes after it."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _comm_checks import BF16, F16, F32, FORMATS, PUBLIC, Here
from _comm_faults import FAULTS, gaps, sampling, stragglers
from _comm_hooks import HOOKS
from _comm_times import TIMED, TIMES

from rooftop.ranks import symmetric

CALLS = {**PUBLIC, **HOOKS}
CHECKS: dict[str, dict[str, Callable[..., Any]]] = {
    "public": CALLS, "faults": FAULTS, "stragglers": {"stragglers": stragglers}, "sampling": {"sampling": sampling, "gaps": gaps},
    "times": TIMES,
    "some": {**CALLS, "gaps": gaps, **{name: check for name, check in FAULTS.items() if name != "killed"}},
}
# what the checks run beside FORMATS
MORE = (
    ("int8", 128, True, False, BF16), ("int8", 128, True, False, F32), ("int4", 32, False, False, F32), ("fp8", 128, False, False, F32),
    ("int4", 128, False, False, F32), ("int4", 128, True, True, F32),
)
EXPERTS = (("bf16", "int8", 128), ("f32", "int4", 32), ("bf16", "bf16", 128), ("f16", "fp8", 64), ("f32", "int8", 256), ("bf16", "int4", 64))


def prepare(section: str) -> None:
    """Compile what the section runs, on all cores: FORMATS and MORE, or what is timed."""
    from rooftop.core.compile import compile_many
    from rooftop.core.spec import TARGETS, dtype_of
    from rooftop.ranks import exchange, expert_launches, kernels, norm, rank_launches

    target = kernels.facts(0).target if torch.cuda.is_available() else TARGETS[90].target
    made: set[tuple[str, str]] = {("meeting", "meeting")}
    times = section == "times"
    for wire, group, hadamard, stochastic, dtype in TIMED if times else (*FORMATS, *MORE):
        d = dtype_of(F32 if hadamard and dtype == F16 else dtype)
        said, how = (4096, 2, d, wire, group, hadamard, stochastic, 1), rank_launches.How(wire, group, hadamard, stochastic)
        made |= {("one_shot" if s == 1 else "two_shot", rank_launches.launch(s, *said, rank=0).kernel) for s in (1, 2)}
        if times:
            continue
        made |= {("exchange", exchange.launch(kind, *said, rank=0).kernel) for kind in exchange.KINDS}
        made |= {("steps", x.kernel) for x in (
            rank_launches.encode_rows(how, d, 1, 1, 1, 1, 1, x="x", messages="m"), rank_launches.add_messages(how, 2, 1, 1, 1, messages="m", sums="s"),
            rank_launches.decode_rows(how, d, 1, 1, 1, 1, 1, 1, 1, messages="m", out="o"),
        )}
    for weight, wire, group, how in (("bf16", "bf16", 128, norm.Norm(0.0)), ("bf16", "int8", 128, norm.Norm(0.0)), ("f32", "int8", 128, norm.Norm(0.0))):
        made.add(("norm", norm.launch(1, 64, 2, weight, weight, wire, group, how, 1, residual=True, rank=0).kernel))
    made.add(("exchange", exchange.launch("reduce_scatter", 4096, 2, "bf16", "int8", 128, False, False, 1, rank=0).kernel))
    for d, wire, group in EXPERTS[: 1 if times else None]:
        made |= {("experts", expert_launches.launch(1, 64, 2, 2, 2, d, wire, group, 1, back=back, rank=0).kernel) for back in (False, True)}
    sources = {stem: kernels.source(stem) for stem, _ in made}
    compile_many([(*sources[stem][:2], target, (name,), sources[stem][2]) for stem, name in sorted(made)])


def chosen(name: str, only: str) -> bool:
    return any(part in name for part in only.split(","))


def work(a: argparse.Namespace) -> int:
    """One process."""
    on_gpus = torch.cuda.is_available()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpus else "gloo", timeout=timedelta(seconds=60))
    symmetric.PATIENCE = 20.0
    store, h = dist.distributed_c10d._get_default_store(), Here(device)
    dist.barrier()
    out, failed, found, dead = Path(a.out) / f"{a.section}.{rank}.jsonl", 0, dict[str, Any](), False
    given = {"iterations": a.iterations, "seconds": a.seconds, "seed": a.seed} if a.section == "stragglers" else {}
    for i, (name, check) in enumerate(CHECKS[a.section].items()):
        if i < a.skip or not chosen(name, a.only):
            continue
        faulthandler.dump_traceback_later(a.check_limit, exit=True)
        begun, message, found = time.monotonic(), "", {}
        try:
            found = check(h, **given) or {}
            h.settle()
        except Exception as error:
            message = f"{type(error).__name__}: {str(error)[:1500]}"
            traceback.print_exc()
        failed += bool(message)
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"check": name, "rank": rank, "seconds": round(time.monotonic() - begun, 2), "wrong": message, **found}) + "\n")
        if dead := name == "killed":
            break
        try:  # the ranks go on together; over the store, which a fault of the GPUs leaves alone
            store.set(f"done/{i}/{rank}", "wrong" if message else "ok")
            keys = [f"done/{i}/{r}" for r in range(ranks)]
            store.wait(keys, timedelta(seconds=a.check_limit))
            if any(store.get(k) != b"ok" for k in keys):
                h.group = dist.new_group()
        except Exception as error:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"check": name, "rank": rank, "seconds": 0, "wrong": f"the other ranks are gone: {error}"[:500]}) + "\n")
            failed += 1
            break
    if a.section in ("public", "stragglers") and not failed:
        dist.destroy_process_group()
    with contextlib.suppress(Exception):  # the first process holds the store: it goes last
        store.set(f"gone/{rank}", "")
        if rank == 0 and not dead:  # the other is dead then
            store.wait([f"gone/{r}" for r in range(ranks)], timedelta(seconds=5))
    sys.stdout.flush()
    os._exit(failed > 0)  # communicators of broken groups have nobody to end with


def processes(a: argparse.Namespace, out: Path, ends: float) -> list[Any]:
    """Run one for each rank till it ends, or till that time. Their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(a.processes), "PYTHONUNBUFFERED": "1"}
    limit = a.check_limit if a.section in ("public", "faults", "some") else a.limit
    given = {"out": out, "skip": a.skip, "only": a.only, "iterations": a.iterations, "seconds": a.seconds, "seed": a.seed, "check-limit": limit}
    command = [sys.executable, __file__, a.section, *(word for name, value in given.items() for word in (f"--{name}", str(value)))]
    children = [subprocess.Popen(command, env={**os.environ, **where, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(a.processes)]
    codes: list[Any] = []
    for child in children:
        try:
            codes.append(child.wait(max(1.0, ends - time.monotonic())))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            codes.append("timeout")
    return codes


def start(a: argparse.Namespace) -> int:
    """A process for each rank, and what they found together. Where they end before the last check, others begin after the one that ended them."""
    out, ends, codes, rows, todo = Path(a.out), time.monotonic() + a.limit, list[Any](), list[dict[str, Any]](), list(CHECKS[a.section])
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob(f"{a.section}.*.jsonl"):
        old.unlink()
    if torch.cuda.is_available():
        prepare(a.section)
    while a.skip < len(todo) and time.monotonic() < ends - 5:
        codes += (now := processes(a, out, ends))
        new = [json.loads(line) for p in sorted(out.glob(f"{a.section}.*.jsonl")) for line in p.read_text(encoding="utf-8").splitlines()]
        for p in out.glob(f"{a.section}.*.jsonl"):
            p.unlink()
        rows += new
        told = {r: [row["check"] for row in new if row["rank"] == r] for r in range(a.processes)}
        wanted = [n for i, n in enumerate(todo) if i >= a.skip and chosen(n, a.only)]
        missing = [n for n in wanted if any(n not in told[r] for r in range(a.processes) if n != "killed" or r != 1)]
        if not missing:
            break
        rows.append({"check": missing[0], "rank": -1, "seconds": 0.0, "wrong": f"the processes ended: {now}"})
        a.skip = todo.index(missing[0]) + 1
    names = list(dict.fromkeys(r["check"] for r in rows))
    for name in names:
        mine = [r for r in rows if r["check"] == name]
        bad = [f"rank {r['rank']}: {r['wrong']}" for r in mine if r["wrong"]]
        print(f"{'WRONG' if bad else 'ok':6}{max(r['seconds'] for r in mine):7.1f} s  {name}" + "".join(f"\n        {line[:400]}" for line in bad))
    several = torch.cuda.is_available()
    device = f"{torch.cuda.get_device_name()} x{a.processes}" if several else f"gloo x{a.processes}"
    versions = {"torch": torch.__version__, "nccl": ".".join(map(str, torch.cuda.nccl.version())) if several else ""}  # type: ignore[no-untyped-call]
    told = {"section": a.section, "device": device, **versions, "processes": codes, "checks": [r for r in rows if r["rank"] == 0 or r["wrong"]]}
    (out / f"{a.section}.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return int(any(r["wrong"] for r in rows) or any(code != 0 for code in codes) or not rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=tuple(CHECKS))
    parser.add_argument("--out", default="comm_on_gpus")
    parser.add_argument("--processes", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="stragglers: end after these")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which the processes are ended")
    parser.add_argument("--check-limit", type=float, default=60.0, help="seconds of one check, after which its processes end")
    parser.add_argument("--skip", type=int, default=0, help="checks at the beginning that are left out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="checks whose names contain this, or one of these, separated by commas")
    a = parser.parse_args()
    if torch.cuda.is_available() and a.processes > torch.cuda.device_count():
        parser.error(f"{a.processes} processes need as many GPUs; there are {torch.cuda.device_count()}")
    return work(a) if "RANK" in os.environ else start(a)


if __name__ == "__main__":
    sys.exit(main())
