"""Which keys a query attends to: the range of each row, for the contracts of masks. The last query stands at the last key.

    row r of sequence b is query i = r // group at position p = i + kv_b - n_b, of n_b queries and kv_b keys
    keys max(0, p - left) <= j < min(kv_b, p + right + 1); none where i >= n_b"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.ops._rotary import integers

if TYPE_CHECKING:
    from torch import Tensor

UNBOUNDED = -1  # of `left` and `right`
FAR = 2**30 - 1  # as far as anything reaches


def ranges(
    batch: int, rows: int, kv_len: int, lengths: Tensor | None, q_lengths: Tensor | None, left: int, right: int, group: int, device: Any
) -> tuple[Tensor, Tensor]:
    """(begin, end), int64 [batch, rows]: the keys of each row. An empty range has end = begin."""
    import torch

    query = torch.arange(rows, device=device)[None] // group
    keys = torch.full((batch, 1), kv_len, device=device) if lengths is None else lengths.long().clamp(0, kv_len)[:, None]
    count = torch.full((batch, 1), rows // group, device=device) if q_lengths is None else q_lengths.long().clamp(0, rows // group)[:, None]
    position = query + keys - count
    begin = (position - left).clamp(min=0) if left != UNBOUNDED else torch.zeros_like(position)
    end = torch.minimum(keys, position + right + 1) if right != UNBOUNDED else keys.expand_as(position)
    begin = torch.minimum(begin, keys)
    end = torch.maximum(end, begin)
    real = query < count
    return torch.where(real, begin, 0), torch.where(real, end, 0)


def window_of(op: str, causal: bool, window: Any) -> tuple[int, int]:
    """(left, right) of the arguments of a public function. Raises for a window that is none."""
    if not isinstance(causal, bool):
        raise TypeError(f"{op}: causal is {causal!r}, a {type(causal).__name__}; it must be a bool")
    if window is None:
        return UNBOUNDED, 0 if causal else UNBOUNDED
    if not isinstance(window, (tuple, list)) or len(window) != 2 or any(isinstance(n, bool) or not isinstance(n, int) for n in window):
        raise TypeError(f"{op}: window is {window!r}; it must be a pair of whole numbers (left, right), or None")
    left, right = window
    for n in (left, right):
        if n < UNBOUNDED:
            number(op, "window", n, "a pair of whole numbers of at least 0, or -1 for no bound", whole=True)  # one too long to be shown
    if left < UNBOUNDED or right < UNBOUNDED:
        raise ValueError(f"{op}: window is {tuple(window)}; left and right must be at least 0, or -1 for no bound")
    left, right = min(left, FAR), min(right, FAR)
    return left, 0 if causal else right


def sizes(
    op: str, q_len: int, kv_len: int, lengths: Tensor | None, q_lengths: Tensor | None, batch: int | None, group: int, device: Any
) -> tuple[int, Any]:
    """The batch and the device. Raises for sizes and lengths that do not fit."""
    import torch

    for name, n, least in (("q_len", q_len, 0), ("kv_len", kv_len, 0), ("group", group, 1)):
        number(op, name, n, f"a whole number from {least} to {FAR}", whole=True)
        if not least <= n <= FAR:
            raise ValueError(f"{op}: {name} is {n}; it must be {least} to {FAR}")
    given = [(name, t) for name, t in (("lengths", lengths), ("q_lengths", q_lengths)) if t is not None]
    for name, t in given:
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{op}: {name} is a {type(t).__name__}; it must be a tensor")
        if batch is None and t.dim() == 1:
            batch = t.shape[0]
        if device is None:
            device = t.device
    batch = 1 if batch is None else batch
    number(op, "batch", batch, "a whole number from 0", whole=True)
    if batch < 0:
        raise ValueError(f"{op}: batch is {batch}; it must be at least 0")
    if not isinstance(device, (torch.device, str, int, type(None))):
        raise TypeError(f"{op}: device is {device!r}, a {type(device).__name__}; it must be a torch.device, its name, or None")
    found = torch.empty(0, device=device).device  # with the index of the GPU
    for name, t in given:
        integers(op, name, t, ((batch,),), found)
    return batch, found


def beyond(rows: int, kv_len: int, lengths: Tensor | None, q_lengths: Tensor | None) -> str | None:
    """What is wrong with the lengths, or None: what the contracts' `faults` say."""
    for name, t, most in (("lengths", lengths, kv_len), ("q_lengths", q_lengths, rows)):
        if t is not None and bool((bad := (t < 0) | (t > most)).any()):
            return f"{name} holds {int(t[bad][0])}; the mask has room for 0 to {most}"
    return None
