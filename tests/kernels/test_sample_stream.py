"""sample by a block a row that streams: what a block holds, and in the simulator that ordinary rows never come to the search digit by digit, on which its
speed rests, and that the others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _kernels import right

from rooftop.core import registry
from rooftop.core.choice import Chosen
from rooftop.core.spec import TARGETS, Input, Meta, case
from rooftop.kernels.select.sample__cuda_sm90 import one_wave
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker

NAME = "sample__stream__cuda_sm80"
PLAIN: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 3}
WAYS: tuple[dict[str, Any], ...] = (
    {}, {"min_p": 0.03}, {"top_p": 0.9}, {"top_p": 0.5, "temperature": 0.3}, {"top_p": 0.99, "min_p": 0.01}, {"top_p": 0.8, "min_p": 0.9}, {"top_k": 40},
)
SMALL = {"slots": 33, "capacity": 33 * 256 + 1024, "sample": 1024}


def _without_digits(folder: Path) -> Any:
    """The kernel, whose rows that are searched digit by digit draw -7."""
    found = registry.implementation(NAME)
    text = found.path.read_text(encoding="utf-8")
    search = "    draw_by_digits<T>(row, limit, temperature, top_p, min_p, u, out, s);\n"
    assert text.count(search) == 1
    (folder / found.path.name).write_text(text.replace(search, "    if (threadIdx.x == 0) *out = -7;\n"), encoding="utf-8")
    (folder / f"{NAME}.py").write_text(found.path.with_suffix(".py").read_text(encoding="utf-8"), encoding="utf-8")
    fixed = type(found)(folder / found.path.name, found.op, found.name)
    fixed.choose = lambda p: SMALL  # type: ignore[attr-defined]
    return fixed


@pytest.mark.sampled("kernels", NAME)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("how", WAYS, ids=str)
def test_ordinary_rows_are_streamed(tmp_path: Path, how: dict[str, Any], dtype: str) -> None:
    right(_without_digits(tmp_path), case("c", logits=Input((6, 24007), dtype), **(PLAIN | how)), seed=5)


@pytest.mark.sampled("kernels", NAME)
@pytest.mark.parametrize(("fill", "how"), [("equal", {"top_p": 0.5}), ("inf", {}), ("normal", {"top_k": 1500})])
def test_other_rows_are_searched(tmp_path: Path, fill: str, how: dict[str, Any]) -> None:
    given = case("c", logits=Input((3, 24007 if "top_p" in how else 4007), "f32", fill), **(PLAIN | how))
    found = checker.check(Subject("fixed", registry.op("sample"), _without_digits(tmp_path)), given, backend="simt", seed=5)
    assert found.status == "wrong" and "-7" in found.message
    right(NAME, given, seed=5)


def test_a_block_holds_its_candidates() -> None:
    op, kernel = registry.op("sample"), registry.implementation(NAME)
    for device in (d for d in (*TARGETS.values(), *TARGETS.names.values()) if not d.gfx):
        for dtype in ("f32", "f16"):
            for rows in (1, device.sms // 4, device.sms // 4 + 1, device.sms // 2 + 2, 5000):
                p = op.problem_of({"logits": Meta((rows, 128256), dtype), "seeds": None}, PLAIN, device)
                c = kernel.choose(p)
                assert 8 * c["capacity"] + 23 * 1024 <= device.shared_per_block and c["slots"] * 256 + 1024 <= c["capacity"] and c["capacity"] % 4 == 0
                assert c["capacity"] >= 4 * 1024 + 1024 + 2048  # what select() needs for a top_k of 1024
                if device.arch == 90:
                    found = registry.choose("sample", p)
                    assert isinstance(found, Chosen) and (found.kernel == NAME) == (4 * rows >= device.sms and not one_wave(p))
                    assert 2 * (8 * c["capacity"] + 22 * 1024) <= device.shared_per_block
