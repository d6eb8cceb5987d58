"""`rooftop.comm` on two GPUs or more: scripts/comm_on_gpus.py starts a process for each and judges what they do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "scripts" / "comm_on_gpus.py"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason=f"needs two NVIDIA GPUs: there are {torch.cuda.device_count()}")]


@pytest.mark.parametrize(("section", "more"), [("public", []), ("faults", []), ("stragglers", ["--iterations", "1000"])])
def test_what_several_gpus_do(section: str, more: list[str], tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), section, "--out", str(tmp_path), *more], capture_output=True, text=True, timeout=300, check=False)
    told = json.loads((tmp_path / f"{section}.json").read_text(encoding="utf-8"))
    wrong = [(c["check"], c["rank"], c["wrong"]) for c in told["checks"] if c["wrong"]]
    assert done.returncode == 0 and not wrong, (wrong, done.stderr[-3000:])
