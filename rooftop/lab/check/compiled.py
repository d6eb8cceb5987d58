"""Whether a GPU could run a kernel of CUDA C++ at all: asked of NVRTC and of its machine code, before the kernel runs in the simulator.

The simulator takes what the host's compiler takes, which is more: a header that NVRTC has not, more shared memory than a card has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rooftop.core.compile import CompileError, ToolchainError
from rooftop.core.digests import without_comments
from rooftop.core.helpers import with_headers
from rooftop.core.implementation import Implementation
from rooftop.core.spec import TARGETS, Case, Launch, Meta, Problem
from rooftop.lab.candidates import Subject

_SAID: dict[tuple[Any, ...], str | None] = {}  # by implementation, target and launch: cases share them
_TELLS_APART = re.compile(r"ARCH|##|\barch\b|\bcard\b")
_UNASKED: dict[str, str] = {}  # by implementation: what is missing here that would have told


def refused(subject: Subject, case: Case, arch: int = 90) -> str | None:
    """Why a GPU of the kernel's first target, or of `arch`, cannot run what it launches for a case: it does not compile, or a launch asks
    for what the card has not. None: nothing is said against it, or neither NVRTC nor the CUDA tools are here, which `unasked` tells."""
    implementation = subject.implementation
    assert implementation is not None
    for target in sorted({implementation.arch, max(arch, implementation.arch)}):
        device = TARGETS[target]
        if subject.supports(case, device) is not None:
            continue
        call = subject.call(case, device)
        for launch in call.launches:
            key = (implementation, target, launch.kernel, launch.block, launch.cluster, launch.shared)
            if key not in _SAID:
                _SAID[key] = _asked(implementation, call.problem, launch, call.scratch)
            if _SAID[key]:
                return f"no sm_{target} can run it: {_SAID[key]}"
    return None


def simulated(subject: Subject, arch: int = 90) -> tuple[int, ...]:
    """The architectures that a kernel is simulated for: `arch`, or the first that it is for; and that one too, where its source can tell
    them apart."""
    implementation = subject.implementation
    assert implementation is not None and implementation.head is not None
    main = max(arch, implementation.arch)
    head = implementation.head
    texts = [*map(without_comments, with_headers(head.source, head.folders)), *(text for _, text in head.expressions())]
    apart = implementation.arch < main and any(_TELLS_APART.search(text) for text in texts)
    return (main, implementation.arch) if apart else (main,)


def unasked(subject: Subject) -> str | None:
    """What is missing here, so that `refused` could not ask."""
    assert subject.implementation is not None
    return _UNASKED.get(subject.implementation.digest)


def _asked(implementation: Implementation, problem: Problem, launch: Launch, scratch: Mapping[str, Meta]) -> str | None:
    from rooftop.lab.inspect.inspector import kernel_facts

    try:
        said = kernel_facts(implementation, problem, launch, scratch)["occupancy"]["refused"]
    except CompileError as error:
        return str(error)
    except ToolchainError as error:
        _UNASKED[implementation.digest] = str(error)
        return None
    return f"{launch.kernel}: {said}" if said else None
