"""What a call has allocated at once at most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rooftop.core.contract import Contract
from rooftop.core.spec import Case
from rooftop.lab.candidates import Subject
from rooftop.lab.inputs import make

if TYPE_CHECKING:
    from torch import Tensor


def peak_bytes(call: Callable[[], object]) -> int:
    """Bytes that a call has allocated through torch on the current device at once at most, beyond what was allocated before it: its inputs.

    It is the second call that counts: what the first compiles, or allocates once for all calls, is not of a call. What a library allocates
    past torch is not seen."""
    import torch

    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()  # kept until the peak is read
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    del result
    return max(int(peak) - int(before), 0)


def of(
    op: Contract, case: Case, able: Sequence[Subject], public: Mapping[str, bool],
    own: Callable[[Subject, dict[str, Tensor | None]], Any],
) -> dict[str, int]:
    """The peak memory of one eager call of each of `able`. `public`: whether the op's function takes it as `implementation`. What no user
    can call, a rung or a file, is run by `own`, in memory of its own that is freed when the call ends."""
    import torch

    tensors, options = make(op, case, "cuda", 0)
    args = op.arguments(tensors, options)
    calls: dict[str, Callable[[], Any]] = {}
    for s in able:
        if s.peer is not None:
            calls[s.name] = partial(without_grad, s.function, args)
        elif public[s.name]:
            calls[s.name] = partial(op, *args, implementation=s.name)
        elif s.implementation is not None and s.implementation.platform == "gpu":
            calls[s.name] = partial(without_grad, own, (s, tensors))
    found = {}
    for name, call in calls.items():
        try:
            found[name] = peak_bytes(call)
        except torch.OutOfMemoryError:
            if not name.startswith("peer:"):
                raise
            torch.cuda.empty_cache()  # the field leaves it out, and says so
    return found


def without_grad(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    import torch

    with torch.no_grad():
        return function(*args)
