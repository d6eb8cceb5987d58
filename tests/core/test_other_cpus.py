"""Calls on a CPU with fewer instructions than this one may have: no AVX-512, no VNNI, no bfloat16."""

from __future__ import annotations

import os
import subprocess
import sys

CALLS = """
import torch
import rooftop

torch.manual_seed(0)
a, b = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((24, 64), (64, 17)))
assert torch.equal(rooftop.int_matmul(a, b).double(), a.double() @ b.double()), "int8"
x, y = torch.randn(8, 64).bfloat16(), torch.randn(64, 16).bfloat16()
want = torch.nn.functional.gelu(x.double() @ y.double())
assert (rooftop.matmul(x, y, activation="gelu").double() - want).abs().max() < 0.01 * want.abs().max(), "bfloat16"
w, t = torch.randn(96, 64), torch.arange(32)
loss = rooftop.linear_cross_entropy(*(v.bfloat16().requires_grad_() for v in (torch.cat((x,) * 4), w)), t)
want = torch.nn.functional.cross_entropy(torch.cat((x,) * 4).double() @ w.bfloat16().double().T, t)
assert (loss.double() - want).abs() < 0.01 * want and loss.grad_fn, "a loss of bfloat16"
for dtype in (torch.bfloat16, torch.float16):
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    every = every[every.isfinite()]
    want = torch.nn.functional.gelu(every.double()).to(dtype)
    assert torch.allclose(rooftop.gelu(every), want, rtol=0.02, atol=1e-6), "gelu"
z, target = torch.randn(2, 200_000), torch.tensor([5, 7])
want = torch.nn.functional.cross_entropy(z.double(), target, reduction="none")
assert (rooftop.cross_entropy(z, target, reduction="none") - want).abs().max() < 2e-6, "a long row"
"""


def test_results_are_right_without_newer_instructions() -> None:
    limits = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CALLS], env={**os.environ, **limits}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
