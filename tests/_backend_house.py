"""A house of its own in which every backend has a kernel of one op: a bf16 product (tests/backend_house)."""

from __future__ import annotations

from pathlib import Path

from rooftop.core import registry
from rooftop.core.implementation import Implementation
from rooftop.lab.candidates import Subject

HERE = Path(__file__).parent / "backend_house"
HOUSE = registry.House(HERE / "ops", HERE / "kernels", HERE / "ladders")
NAMES = ("device__triton_sm90", "gluon_sm90", "grid__cuda_sm80", "host__triton_sm90", "split__cuda_sm80", "tiles__cuda_sm80", "tma__cuda_sm90", "torch")
AHEAD = ("cute_sm90", "cutile_sm90")  # whose compiler is an extra


def kernel(name: str) -> Implementation:
    return registry.implementation(f"mmt__{name}", HOUSE)


def subject(name: str) -> Subject:
    found = kernel(name)
    return Subject(found.name, registry.op("mmt", HOUSE), found)
