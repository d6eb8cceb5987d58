"""What a call has allocated at once at most."""

from __future__ import annotations

from collections.abc import Callable


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
