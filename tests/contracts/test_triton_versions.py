"""Every Triton kernel compiles for every target with the Triton that is installed; `make test-triton39` runs this with 3.9."""

from __future__ import annotations

import pytest

from rooftop.core import registry, triton_compat
from rooftop.core.spec import TARGETS
from rooftop.lab import candidates

KERNELS = [f.name for f in registry.kernel_files() if f.backend == "triton"]


def test_the_installed_version_is_accepted() -> None:
    assert (3, 6) <= triton_compat.version() <= (3, 9)


@pytest.mark.parametrize("arch", sorted(TARGETS))
@pytest.mark.parametrize("name", KERNELS)
def test_every_path_of_every_triton_kernel_compiles(name: str, arch: int) -> None:
    subject = candidates.find([name])[0]
    assert subject.implementation is not None
    seen = set()
    for case in subject.op.cases:
        _, problem = subject.kernel_problem(case, TARGETS[arch])
        if subject.implementation.supports(problem) is not None:
            continue
        config, _ = subject.implementation.resolve(problem)
        for launch in subject.implementation.launches(problem, config):
            path = (launch.kernel.__name__, case.dtype)
            if path not in seen:
                seen.add(path)
                tensors = {**dict(problem.tensors), **subject.implementation.scratch(problem, config)}
                made = triton_compat.compile_launch(launch, tensors, arch)
                assert f".target sm_{arch}" in made.ptx
                assert made.cubin
                assert made.shared <= TARGETS[arch].shared_per_block
    assert seen
