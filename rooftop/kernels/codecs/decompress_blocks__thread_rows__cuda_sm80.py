"""The launch of decompress_blocks__thread_rows__cuda_sm80.cu: that of decompress_blocks__cuda_sm80, in blocks of 128."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rooftop.core.spec import Launch, Problem
from rooftop.formats.elements import ELEMENTS
from rooftop.kernels.codecs import decompress_blocks__cuda_sm80 as lanes


def supports(p: Problem, head: Any) -> str | None:
    if ELEMENTS[str(p.option("element"))].wide:
        return f"the codes of {p.option('element')} have 64 bits; a row of them does not fit a thread's registers"
    return lanes.supports(p, head)


def launches(p: Problem, config: Any, head: Any) -> list[Launch]:
    return [replace(launch, block=(128,)) for launch in lanes.launches(p, config, head)]
