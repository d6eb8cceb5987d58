"""What `rooftop.invariant()` costs: each op at its bench cases, and at the sizes where a free choice gains most, timed with and without the
mode.

rooftop bench --invariant [OP ...] --records FOLDER      writes a record an op below FOLDER; docs/invariance.md shows the newest of each"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rooftop.core import invariance, registry
from rooftop.core.call import Call, select
from rooftop.core.contract import MODE, Contract
from rooftop.core.dispatch import plan_for
from rooftop.core.plans import Plan
from rooftop.core.spec import Case, Input
from rooftop.lab.aot import compile_calls
from rooftop.lab.inputs import make
from rooftop.lab.records import store
from rooftop.lab.records.record import Record, Table, of_kind
from rooftop.lab.timing.timer import Candidate, Timer, sets_needed
from rooftop.lab.timing.timer_cuda import CudaBackend

SUBJECT = "cost of invariance of "  # an op
BENCH = "bench cases"
FIRST = ("matmul", "attention", "rms_norm", "softmax", "swiglu", "cross_entropy", "quantized_matmul", "grouped_matmul", "scaled_matmul")  # of all ops
CASE_S = 0.15  # of sampling


def ops(names: Sequence[str]) -> list[Contract]:
    """Those to which the mode makes a difference, the most used first."""
    every = [registry.op(n) for n in names or sorted(registry.op_names(), key=lambda n: FIRST.index(n) if n in FIRST else len(FIRST))]
    return [o for op in every for o in (op, op.bwd) if o is not None and o.invariance["batch"] == MODE and o.rows is not None]


def cases(op: Contract) -> Iterator[tuple[str, Case]]:
    """(group of the table, case)."""

    def one(group: str, name: str, **inputs: Any) -> tuple[str, Case]:
        return group, Case(f"{group}, {name}", inputs, frozenset({"bench"}))

    if op.name == "matmul":
        for n in (4096, 8192):
            for m in (1 << i for i in range(14)):
                b = Input((n, n), "bf16", layout="transposed")
                yield one(f"N = K = {n}, 1 to 8192 rows", f"{m} rows", a=Input((m, n), "bf16"), b=b, c=None, alpha=1.0, beta=0.0)
    if op.name == "attention":
        for batch, keys in ((1, 2048), (1, 8192), (16, 4096), (64, 4096)):
            kv = Input((batch, keys, 8, 128), "bf16")
            more = {"left": -1, "right": 0, "scale": 128**-0.5, "softcap": 0.0, "dropout_p": 0.0, "seed": 7}
            group = "decoding, 1 sequence" if batch == 1 else "decoding, 16 sequences and more"
            yield one(group, f"{batch} of {keys} keys", q=Input((batch, 1, 32, 128), "bf16"), k=kv, v=kv, **more)
    if op.swept is not None and op.swept.rows == "rows" and tuple(op.swept.drawn) == ("columns",) and "bf16" in op.swept.dtypes:
        for rows in (1, 16):
            yield "fewer rows than multiprocessors", op.swept.case("bf16", {"columns": 8192, "rows": rows})
    for case in op.cases:
        if "bench" in case.tags:
            yield BENCH, seeded(case) if op.name == "sample" else case


def seeded(case: Case) -> Case:
    """Of `sample`, with a seed for each row: the mode refuses one for all."""
    if case.inputs["seeds"] is not None:
        return case
    logits = case.inputs["logits"]
    assert isinstance(logits, Input)
    return replace(case, inputs={**case.inputs, "seeds": Input((logits.shape[0],), "i32")})


def losses(on: bool, tensors: Mapping[str, Any]) -> Any:
    """`linear_cross_entropy` of no gradient, which the mode runs as a product and a loss."""
    from rooftop import linear_cross_entropy

    with invariance.invariant(on):
        return linear_cross_entropy(tensors["x"], tensors["weight"], tensors["target"], bias=tensors.get("bias"), reduction="none")


def measure(names: Sequence[str] = (), budget_s: float = 120.0, say: Any = print) -> Iterator[Table]:
    """As each op is done, a record of kind `clock` an op, a row a case: seconds without and with the mode on the kernel clock. Cases that
    the budget leaves are named."""
    import torch

    from rooftop.core.implementation import device_of

    index = torch.cuda.current_device()
    timer, device, began = Timer(CudaBackend(index)), device_of(index), time.monotonic()
    for op in ops(names):
        rows: list[dict[str, Any]] = []
        left: list[str] = []
        listed, over = list(cases(op)), time.monotonic() - began > budget_s
        if over:
            say(f"{op.name}: not measured, the time is over")
        else:
            say(f"{op.name}: {compile_calls(((c, case) for _, case in listed for c in chosen(op, case, device)), device)} programs compiled")
        for group, case in listed:
            if over or time.monotonic() - began > budget_s:
                left.append(f"{op.name}: {case.id}")
                continue
            try:
                row = timed(op, case, timer, device)
            except (invariance.InvarianceError, torch.cuda.OutOfMemoryError) as error:
                left.append(f"{op.name}: {case.id}: {' '.join(str(error).split())[:200]}")
                continue
            rows.append({"group": group, "case": case.id, **row})
            say(f"{op.name} {case.id}: {row['free'] * 1e6:.1f} us free, {row['mode'] * 1e6:.1f} in the mode ({row['free'] / row['mode']:.2f})")
        about = {"device": store.about(device), "versions": store.versions()}
        yield {"kind": "clock", "subject": SUBJECT + op.name, "rows": rows, "left": left, **about}


def chosen(op: Contract, case: Case, device: Any) -> Iterator[Call]:
    """The calls of a case, without and with the mode."""
    for on in (False, True):
        with invariance.invariant(on), contextlib.suppress(invariance.InvarianceError):
            if (call := select(op, op.problem(case, device)).call) is not None:
                yield call


def timed(op: Contract, case: Case, timer: Timer, device: Any) -> dict[str, Any]:
    import torch

    tensors, options = make(op, case, "cuda", 1)
    touched = sum(t.numel() * t.element_size() for t in tensors.values() if t is not None)
    sets = [tensors] + [{n: None if t is None else t.clone() for n, t in tensors.items()} for _ in range(sets_needed(touched, device.l2_bytes) - 1)]
    values: list[Any] = [options[n] for n in op.runtime_options]
    candidates, kernels = [], []
    with torch.no_grad():
        for name, on in (("free", False), ("mode", True)):
            if op.name == "linear_cross_entropy":  # no kernel of its own in the mode
                calls, kernel = [partial(losses, on, s) for s in sets], "matmul, cross_entropy" if on else op.name
            else:
                with invariance.invariant(on):
                    plan = plan_for(op, op.arguments(tensors, options), None)
                if not isinstance(plan, Plan):
                    raise invariance.InvarianceError(f"{op.name}: no kernel runs {case.id}")
                calls, kernel = [partial(plan, [s[x] for x in plan.call.inputs], values) for s in sets], plan.call.implementation.name
            candidates.append(Candidate(name, calls))
            kernels.append(kernel)
        took = timer.measure(candidates, bytes_per_call=touched, budget_s=CASE_S, target=0.01, samples=(7, 60))
    return {c.name: took[c.name].median for c in candidates} | {"kernels": kernels}


def table(found: list[Record], _site: Any = None) -> str:
    """Each op by its newest record, a row for its cases that are alike."""
    mine = [r for r in of_kind(found, "clock") if r.subject.startswith(SUBJECT) and r["rows"]]
    if not mine:
        return "Nothing has been measured yet."
    newest = {r.subject.removeprefix(SUBJECT): r for r in mine}
    lines = [f"{mine[-1]['device']['name']}: the speed in the mode over that without.", ""]
    lines += ["| op | cases | geometric mean | least | there |", "|---|---|---:|---:|---|"]
    for op, record in newest.items():
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for row in record["rows"]:
            groups.setdefault(row["group"], []).append(row)
        for group, rows in groups.items():
            shares = [row["free"] / row["mode"] for row in rows]
            least = rows[shares.index(min(shares))]
            mean = math.exp(sum(map(math.log, shares)) / len(shares))
            lines.append(f"| {op} | {len(rows)} {group if group == BENCH else f'of {group}'} | {mean:.2f} | {min(shares):.2f} | {least['case']} |")
    if missing := [op.name for op in ops(()) if op.name not in newest]:
        lines += ["", f"Not measured: {', '.join(missing)}."]
    return "\n".join(lines)
