"""What `rooftop judge` does with a GPU, in a short table: right submissions, and some that must not pass."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rooftop.core import registry
from rooftop.lab.judge import judging
from rooftop.lab.judge.verdict import Verdict

SOLVE = """
__global__ void k(const float* x, float* y, int n) {{ long i = blockIdx.x * 256L + threadIdx.x; if (i < n) y[i] = {what}; }}
extern "C" void solve(const float* x, float* y, int N) {{ cudaMemset(y, 0, 4); k<<<(N + 255) / 256, 256>>>(x, y, N); cudaDeviceSynchronize(); }}
"""
TRITON = """
import torch, triton
import triton.language as tl
@triton.jit
def k(x, y, n, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, v * v, mask=i < n)
def square(x):
    y = torch.empty_like(x)
    k[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), 1024)
    return y
"""
REPLAY = "kept = {}\ndef square(x):\n    return kept.setdefault(x.shape, x * x)\n"
STREAM = "import torch\ns = torch.cuda.Stream()\ndef square(x):\n    with torch.cuda.stream(s):\n        return x * x\n"
EVENT = "import torch\nclass E(torch.cuda.Event):\n    def elapsed_time(self, o): return 1e-3\ntorch.cuda.Event = E\ndef square(x):\n    return x * x\n"
SUBMISSIONS = (  # name, text, op, the kinds of which one is expected
    ("solve.cu", SOLVE.format(what="x[i] * x[i]"), "square", ("right",)), ("wrong.cu", SOLVE.format(what="x[i]"), "square", ("wrong",)),
    ("triton.py", TRITON, "square", ("right",)), ("torch.py", "def square(x):\n    return x * x\n", "square", ("right",)),
    ("replay.py", REPLAY, "square", ("replay", "wrong")), ("stream.py", STREAM, "square", ("right", "wrong", "clocks differ")),
    ("event.py", EVENT, "square", ("patched", "clocks differ")),
)


def main() -> int:
    rows: list[tuple[Verdict, tuple[str, ...]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, text, op, expected in SUBMISSIONS:
            (Path(folder) / name).write_text(text, encoding="utf-8")
            rows.append((judging.judge(f"{folder}/{name}" + (":square" if name.endswith(".py") else ""), op), expected))
    for rung in registry.ladder("softmax_cuda").rungs[::6]:
        rows.append((judging.judge(str(rung.path), "softmax", place=rung.path), ("right",)))
    for v, expected in rows:
        time = "" if v.seconds is None else f"{v.seconds * 1e6:9.1f} us  score {v.score if v.score is None else round(v.score, 3)}"
        print(f"{v.file:28} {v.kind:14} {time:30} {v.took:5.1f} s  {'ok' if v.kind in expected else 'NOT ' + '/'.join(expected)}  {v.said[:90]}")
        print(*(f"    {n}" for n in v.notes), sep="\n") if v.notes else None
    return int(any(v.kind not in expected for v, expected in rows))


if __name__ == "__main__":
    raise SystemExit(main())
