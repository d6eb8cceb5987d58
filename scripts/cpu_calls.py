"""How long a call on CPU tensors takes beside torch's own function: `python scripts/cpu_calls.py [--dtypes f32,bf16] [OP ...]`.

A row an op and size, for each op that torch has: what the process spends on it (CPU time, so that other programs do not count), in microseconds, forward and
forward with backward. The two are called in turn, in batches; a figure is the least of the batches. `most` is what is allowed of torch's time: 1.3, or 2
where ours computes more than torch's. Size 0 is a call of a few hundred elements: its difference is what the host spends before torch's function runs.

`--out results/CPU/cpu_calls.json` keeps them as data, of which the table of docs/timing.md is made."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import Tensor

import rooftop
from rooftop.core.spec import DTYPES

DTYPE = {n: getattr(torch, DTYPES[n].torch) for n in ("f32", "f16", "bf16")}
CALM = 0.25  # seconds of both, in at least LEAST batches and at most MOST
LEAST, MOST = 5, 200
BATCH = 0.001  # seconds of one: far shorter than what a scheduler gives a process before another one has the core and its caches


@dataclass(frozen=True)
class Pair:
    """A call of ours and torch's for it, on the same tensors. `more`: what ours computes beyond torch's."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    tensors: list[Tensor]
    grad: tuple[int, ...] = ()  # of the tensors
    more: str = ""
    options: dict[str, Any] = field(default_factory=dict)


def pairs(dtype: torch.dtype, size: int) -> dict[str, Callable[[], Pair]]:
    """By op; `size` 0 to 3: tiny, small, medium, large (2 KiB, 512 KiB, 4 MiB, 16 MiB of float32 rows)."""
    rows, columns = ((2, 256), (128, 1024), (512, 2048), (1024, 4096))[size]
    side = (16, 128, 256, 512)[size]
    tokens = (8, 128, 256, 512)[size]

    def r(*shape: int) -> Tensor:
        return torch.randn(*shape).to(dtype)

    def x() -> Tensor:
        return r(rows, columns)

    def target() -> Tensor:
        return torch.randint(columns, (rows,))

    def heads() -> list[Tensor]:
        return [r(1, tokens, 4, 64) for _ in range(3)]

    def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        return F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal).transpose(1, 2)

    def rotated(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = q.chunk(2, -1)
        return q * cos + torch.cat((-b, a), -1) * sin

    def table() -> list[Tensor]:
        return [t.repeat(1, 2).to(dtype) for t in (torch.randn(tokens, 32).cos(), torch.randn(tokens, 32).sin())]

    def appended(kc: Tensor, vc: Tensor, k: Tensor, v: Tensor, at: Tensor) -> None:
        kc[:, 3 : 3 + k.shape[1]] = k
        vc[:, 3 : 3 + k.shape[1]] = v

    def grouped(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
        return torch.cat([a[i * side : (i + 1) * side] @ b[i] for i in range(4)])

    def drawn(logits: Tensor) -> Tensor:
        return torch.multinomial(logits.float().softmax(-1), 1)[:, 0]

    def sparse() -> Pair:
        held = torch.where(torch.rand(side, side) < 0.1, torch.randn(side, side), 0.0).to(dtype).to_sparse_csr()
        ours = rooftop.sparse.SparseTensor.from_torch(held)
        return Pair(lambda b: ours @ b, lambda b: held @ b, [r(side, side)])

    def sampled() -> Pair:
        """One product at each element of a sparse matrix."""
        held = torch.where(torch.rand(side, side) < 0.1, 1.0, 0.0).to(dtype).to_sparse_csr()
        at, ends = held.col_indices().int(), held.crow_indices().int()
        theirs = lambda a, b: torch.sparse.sampled_addmm(held, a, b.t(), beta=0.0).values()  # noqa: E731
        return Pair(lambda a, b: rooftop.sddmm_csr(a, b, at, ends), theirs, [r(side, side), r(side, side)])

    w = lambda: r(columns)  # noqa: E731
    once = "" if dtype == torch.float32 else "16 bits are rounded once, and gradients computed in float32"
    ends = torch.arange(1, 5, dtype=torch.int32) * side
    dim = {"dim": -1}
    return {
        "add": lambda: Pair(rooftop.add, torch.add, [x(), x()], (0, 1)),
        "square": lambda: Pair(rooftop.square, torch.square, [x()], (0,)),
        "gelu": lambda: Pair(rooftop.gelu, F.gelu, [x()], (0,)),
        "gelu tanh": lambda: Pair(rooftop.gelu, F.gelu, [x()], (0,), options={"approximate": "tanh"}),
        "silu": lambda: Pair(rooftop.silu, F.silu, [x()], (0,)),
        "swiglu": lambda: Pair(rooftop.swiglu, lambda a, b: F.silu(a) * b, [x(), x()], (0, 1), once),
        "geglu": lambda: Pair(rooftop.geglu, lambda a, b: F.gelu(a) * b, [x(), x()], (0, 1), once),
        "bias_mask_scale_add": lambda: Pair(
            rooftop.bias_mask_scale_add, lambda a, b, c, m: torch.where(m, a + b, 0.0) + c, [x(), w(), x(), torch.rand(rows, columns) > 0.5], (0, 1, 2),
            once,
        ),
        "bias_mask_scale_add dropout": lambda: Pair(
            lambda a: rooftop.bias_mask_scale_add(a, p=0.1), lambda a: F.dropout(a, 0.1), [x()], (0,), "bits that a seed gives on every device"
        ),
        "softmax": lambda: Pair(rooftop.softmax, torch.softmax, [x()], (0,), options=dim),
        "log_softmax": lambda: Pair(rooftop.log_softmax, torch.log_softmax, [x()], (0,), options=dim),
        "logsumexp": lambda: Pair(rooftop.logsumexp, torch.logsumexp, [x()], (0,), options=dim),
        "group_norm": lambda: Pair(lambda a, b, c: rooftop.group_norm(a, 8, b, c), lambda a, b, c: F.group_norm(a, 8, b, c),
                                   [r(4, 32, rows * columns // 128), r(32), r(32)], (0, 1, 2)),
        "layer_norm": lambda: Pair(lambda a, b, c: rooftop.layer_norm(a, columns, b, c), lambda a, b, c: F.layer_norm(a, (columns,), b, c), [x(), w(), w()],
                                   (0, 1, 2)),
        "rms_norm": lambda: Pair(lambda a, b: rooftop.rms_norm(a, columns, b), lambda a, b: F.rms_norm(a, (columns,), b), [x(), w()], (0, 1)),
        "reduce sum": lambda: Pair(lambda a: rooftop.reduce(a, "sum", -1), lambda a: a.sum(-1), [x()], (0,)),
        "reduce mean": lambda: Pair(lambda a: rooftop.reduce(a, "mean", -1), lambda a: a.mean(-1), [x()], (0,)),
        "reduce max": lambda: Pair(lambda a: rooftop.reduce(a, "max", -1), lambda a: a.amax(-1), [x()], (0,)),
        "reduce argmax": lambda: Pair(lambda a: rooftop.reduce(a, "argmax", -1), lambda a: a.argmax(-1), [x()]),
        "reduce var": lambda: Pair(lambda a: rooftop.reduce(a, "var", -1), lambda a: a.var(-1), [x()], (0,)),
        "cumsum": lambda: Pair(rooftop.cumsum, torch.cumsum, [x()], (0,), options=dim),
        "topk": lambda: Pair(lambda a: rooftop.topk(a, 8), lambda a: torch.topk(a, 8), [x()], (0,), "of equal elements the first, where torch gives any"),
        "kthvalue": lambda: Pair(lambda a: rooftop.kthvalue(a, 8), lambda a: torch.kthvalue(a, 8), [x()], (0,), "of equal elements the first"),
        "sort": lambda: Pair(rooftop.sort, lambda a: torch.sort(a, stable=True), [x()], (0,)),
        "argsort": lambda: Pair(rooftop.argsort, lambda a: torch.argsort(a, stable=True), [x()]),
        "topk_mask": lambda: Pair(
            lambda a: rooftop.topk_mask(a, 8), lambda a: torch.zeros_like(a, dtype=torch.bool).scatter_(-1, a.topk(8).indices, True), [x()], (),
            "of equal elements the first",
        ),
        "matmul": lambda: Pair(rooftop.matmul, torch.matmul, [r(side, side), r(side, side)], (0, 1)),
        "matmul bias gelu": lambda: Pair(
            lambda a, b, c: rooftop.matmul(a, b, bias=c, activation="gelu"), lambda a, b, c: F.gelu(torch.addmm(c, a, b)),
            [r(side, side), r(side, side), r(side)], (0, 1, 2), once,
        ),
        "linear": lambda: Pair(rooftop.linear, F.linear, [r(side, side), r(side, side), r(side)], (0, 1, 2), once),
        "gemv": lambda: Pair(rooftop.gemv, torch.mv, [x(), w()], (0, 1)),
        "grouped_matmul": lambda: Pair(rooftop.grouped_matmul, grouped, [r(4 * side, side), r(4, side, side), ends], (0, 1)),
        "int_matmul": lambda: Pair(
            rooftop.int_matmul, torch._int_mm, [torch.randint(-99, 99, (side, side)).to(torch.int8), torch.randint(-99, 99, (side, side)).to(torch.int8)]
        ),
        "cross_entropy": lambda: Pair(rooftop.cross_entropy, lambda a, t: F.cross_entropy(a.float(), t), [x(), target()], (0,)),
        "linear_cross_entropy": lambda: Pair(
            rooftop.linear_cross_entropy, lambda a, b, t: F.cross_entropy((a @ b.T).float(), t),
            # logits of a model's size: of large ones gradients of float32 are denormal, with which products take 40 times as long
            [r(side, side), r(4 * side, side) * side**-0.5, torch.randint(4 * side, (side,))], (0, 1), "a block of logits at a time, to save memory",
        ),
        "attention": lambda: Pair(rooftop.attention, lambda q, k, v: sdpa(q, k, v, False), heads(), (0, 1, 2), once),
        "attention causal": lambda: Pair(
            lambda q, k, v: rooftop.attention(q, k, v, causal=True), lambda q, k, v: sdpa(q, k, v, True), heads(), (0, 1, 2), once
        ),
        "rope": lambda: Pair(lambda q, c, s: rooftop.rope(q, None, c, s, order="bhsd"), rotated, [r(1, 16, tokens, 64), *table()], (0,), once),
        "append_kv": lambda: Pair(rooftop.append_kv, appended, [r(1, 2 * tokens + 8, 4, 64), r(1, 2 * tokens + 8, 4, 64), r(1, tokens, 4, 64),
                                                                r(1, tokens, 4, 64), torch.tensor([3])], (), "lengths that the tensor holds, each checked"),
        "concat_kv": lambda: Pair(rooftop.concat_kv, lambda a, b: torch.cat((a, b), -2), [r(16, 2 * tokens, 64), r(16, 8, 64)], (0, 1)),
        "transpose": lambda: Pair(rooftop.transpose, lambda a, dim0, dim1: a.transpose(dim0, dim1).contiguous(), [x()], (0,), options={"dim0": 0, "dim1": 1}),
        "sample": lambda: Pair(rooftop.sample, drawn, [x()], (), "64 bits a row and exact sums, the same on every device"),
        "attention grouped": lambda: Pair(
            rooftop.attention, lambda q, k, v: F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), enable_gqa=True).transpose(1, 2),
            [r(1, tokens, 8, 64), r(1, tokens, 2, 64), r(1, tokens, 2, 64)], (0, 1, 2), once,
        ),
        "spmm_csr": sparse,
        "sddmm_csr": sampled,
    }


def spent(call: Callable[[], Any], times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - started) / times


def compared(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of each: the least of many batches, one of each in turn."""
    for call in (ours, theirs, ours, theirs):
        call()
    first = max(spent(theirs, 1), 1e-6)
    times = max(1, int(BATCH / first))
    batches = min(MOST, max(LEAST, int(CALM / (2 * times * first))))
    found = [(spent(ours, times), spent(theirs, times)) for _ in range(batches)]
    return min(a for a, _ in found), min(b for _, b in found)


def calls(pair: Pair, gradients: bool) -> Iterator[Callable[[], Any]]:
    """Ours, then torch's."""
    for function in (pair.ours, pair.theirs):
        if not gradients:
            yield lambda f=function: f(*pair.tensors, **pair.options)
            continue
        leaves = [t.detach().requires_grad_() if i in pair.grad else t for i, t in enumerate(pair.tensors)]
        wanted = [leaves[i] for i in pair.grad]

        def both(f: Callable[..., Any] = function, leaves: list[Tensor] = leaves, wanted: list[Tensor] = wanted) -> None:
            out = f(*leaves, **pair.options)
            out = out if isinstance(out, Tensor) else out[0]
            torch.autograd.grad(out, wanted, torch.ones_like(out))

        yield both


def row(pair: Pair) -> dict[str, Any]:
    """Microseconds, ours then torch's: `forward`, and `both` with the backward."""
    found: dict[str, Any] = {}
    for gradients in (False, True) if pair.grad else (False,):
        found["both" if gradients else "forward"] = [round(t * 1e6, 1) for t in compared(*calls(pair, gradients))]
    return found | {"most": 2.0 if pair.more else 1.3}


def machine() -> dict[str, Any]:
    """Where it ran: the processor, what torch uses of it, and how many programs ran beside this one."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").is_file() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cpu": name, "capability": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__, "load": round(os.getloadavg()[0], 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", help="names of the table's first column; all of them by default")
    parser.add_argument("--dtypes", default="f32", help=f"of {', '.join(DTYPE)}")
    parser.add_argument("--sizes", default="0123", help="digits: 0 tiny, 1 small, 2 medium, 3 large")
    parser.add_argument("--out", type=Path, help="a file that the figures are added to")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kept: dict[str, Any] = machine() | {"rows": {}}
    if chosen.out and chosen.out.is_file():
        kept["rows"] = json.loads(chosen.out.read_text(encoding="utf-8"))["rows"]
    over = 0
    print(f"{'op':30} dtype size {'ours':>10} {'torch':>10}  ratio   {'with backward':>13} {'torch':>10}  ratio   most")
    for dtype, size in ((d, int(s)) for d in chosen.dtypes.split(",") for s in chosen.sizes):
        for name, make in pairs(DTYPE[dtype], size).items():
            if chosen.ops and name not in chosen.ops and name.split()[0] not in chosen.ops:
                continue
            line = f"{name:30} {dtype:5} {size:4}"
            try:
                found = row(make())
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
                print(f"{line} not compared: {type(error).__name__}: {str(error).splitlines()[0][:90]}", flush=True)
                continue
            kept["rows"].setdefault(name, {}).setdefault(dtype, {})[str(size)] = found
            for a, b in (found[part] for part in ("forward", "both") if part in found):
                much = size > 0 and a / b > found["most"]
                over += much
                line += f" {a:10.1f} {b:10.1f} {a / b:6.2f}{'*' if much else ' '}  "
            print(f"{line:90} {found['most']}", flush=True)
    print(f"{over} of these ratios are over what is allowed (*); of size 0 none is asked")
    if chosen.out:
        rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(found)}" for name, found in sorted(kept["rows"].items()))
        head = json.dumps({n: v for n, v in kept.items() if n != "rows"})
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(f'{head[:-1]}, "rows": {{\n{rows}\n}}}}\n', encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
