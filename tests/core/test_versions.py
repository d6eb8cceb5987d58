"""The compilers that `pip install` may choose are those that the tests ran with."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from rooftop.core import settings
from rooftop.core.compile import nvrtc_version

ROOT = settings.CHECKOUT
RANGES = {r.name: r for r in map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"])}
PINS = {
    name: version for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#") for name, _, version in [line.partition("==")]
}
COMPILERS = ("nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl", "triton")


@pytest.mark.parametrize("name", COMPILERS)
def test_what_is_installed_here_and_what_is_pinned_lie_in_the_range_of_the_package(name: str) -> None:
    for version in (PINS[name], metadata.version(name)):
        assert RANGES[name].specifier.contains(version), f"{name} {version} is not in {RANGES[name].specifier}: widen the range where the tests pass with it"


def test_the_range_of_nvrtc_is_the_one_release_that_is_tested() -> None:
    release = PINS["nvidia-cuda-nvrtc"].split(".")[:2]
    for name in COMPILERS[:4]:
        assert PINS[name].split(".")[:2] == release
        assert not RANGES[name].specifier.contains(f"{release[0]}.{int(release[1]) + 1}.0"), f"{name}: the next release has not been tested"
    assert nvrtc_version().split(".") == release, "the library that is loaded is the one that is pinned"


def test_the_ends_of_the_range_of_triton_are_each_tested_by_a_command() -> None:
    other = re.search(r"--triton (\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert other is not None
    low, high = sorted(map(Version, (PINS["triton"], other[1])))
    wanted = {">=": f"{low.major}.{low.minor}", "<": f"{high.major}.{high.minor + 1}"}
    assert {s.operator: s.version for s in RANGES["triton"].specifier} == wanted
