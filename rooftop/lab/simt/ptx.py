"""Inline PTX to calls of the runtime (rooftop/lab/simt/runtime/ptx.h). What is not listed stops the kernel where it is executed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Operand:
    constraint: str  # "=r", "l", ...
    expression: str


def translate(template: str, operands: Sequence[Operand], where: str) -> str:
    """A statement that does what the instructions of `template` do."""
    statements = []
    for text in re.split(r"[;\n]", template):
        text = text.strip()
        if text and not text.startswith("//"):
            statements.append(_instruction(text, operands, where))
    return "do { " + " ".join(statements) + " } while (0)"


def _instruction(text: str, operands: Sequence[Operand], where: str) -> str:
    def value(name: str) -> str:
        match = re.fullmatch(r"%(\d+)", name.strip())
        return f"({operands[int(match[1])].expression})" if match else name

    if match := re.fullmatch(r"ex2\.approx(?:\.ftz)?\.f32\s+(%\d+),\s*(%\d+)", text):
        return f"{value(match[1])} = simt::ptx::ex2({value(match[2])});"
    if match := re.fullmatch(r"ld\.global(?:\.\w+)*\.v4\.u32\s+\{(.*?)\},\s*\[(%\d+)\]", text):
        names = [value(n) for n in match[1].split(",")]
        return f"{{ const uint4 simt_v = *reinterpret_cast<const uint4*>({value(match[2])}); " + " ".join(
            f"{n} = simt_v.{c};" for n, c in zip(names, "xyzw", strict=True)
        ) + " }"
    return f'simt::not_simulated("{text.split()[0]} at {where}");'
