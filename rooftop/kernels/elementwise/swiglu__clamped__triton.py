"""y = gate · sigmoid(alpha · gate) · (up + offset), both clamped. Contract: rooftop/ops/swiglu.py; code:
rooftop/kernels/elementwise/_clamped_gate.py"""

from __future__ import annotations

from rooftop.kernels.elementwise._clamped_gate import clamped
from rooftop.kernels.elementwise._pointwise import Config

supports, choose, configs, launches = clamped(backward=False)
__all__ = ["Config", "choose", "configs", "launches", "supports"]
