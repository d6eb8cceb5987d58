"""Peers of `rooftop.append_kv`, with its reference's parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.ops._peers import Kept

if TYPE_CHECKING:
    from torch import Tensor


def index_put(
    k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor, page_table: Tensor | None, cu_seqlens: Tensor | None,
    new_lengths: Tensor | None, cos: Tensor | None, sin: Tensor | None, k_scale: Tensor | None, v_scale: Tensor | None, layout: str,
    rotary_dim: int, limit: float,
) -> None:
    """Indexing in torch, for tokens that all fit."""
    if cos is not None or cu_seqlens is not None or new_lengths is not None or limit:
        raise ValueError("the plain copy alone")
    size = k_cache.shape[1]
    position = lengths.long()[:, None] + _arange(k)
    page = _batch(k)[:, None].expand_as(position) if page_table is None else page_table.long().gather(1, position // size)
    k_cache[page, position % size] = k
    v_cache[page, position % size] = v


def _arange(k: Tensor) -> Tensor:
    import torch

    return torch.arange(k.shape[1], device=k.device)


def _batch(k: Tensor) -> Tensor:
    import torch

    return torch.arange(k.shape[0], device=k.device)


def _plan(lengths: Tensor, page_table: Tensor, cu_seqlens: Tensor | None, batch: int, count: int, size: int) -> tuple[Tensor, ...]:
    """What FlashInfer is given besides the tensors: each token's sequence and position, where the pages of a sequence begin, tokens on its
    last page."""
    import torch

    device = lengths.device
    starts = cu_seqlens if cu_seqlens is not None else torch.arange(batch + 1, device=device, dtype=torch.int32) * (count // max(batch, 1))
    total = lengths + (starts[1:] - starts[:-1])
    token = torch.arange(count, device=device)
    sequence = torch.searchsorted(starts, token, right=True) - 1
    position = lengths[sequence] + token - starts[sequence]
    begins = torch.arange(batch + 1, device=device, dtype=torch.int32) * page_table.shape[1]
    return sequence.int(), position.int(), page_table.flatten().int(), begins, (total - (total - 1) // size * size).int()


def flashinfer_append() -> Callable[..., Any]:
    import flashinfer  # type: ignore[import-not-found]

    prepared = Kept(_plan)

    def run(
        k_cache: Any, v_cache: Any, k: Any, v: Any, lengths: Any, page_table: Any, cu_seqlens: Any, new_lengths: Any, cos: Any, sin: Any,
        k_scale: Any, v_scale: Any, layout: str, rotary_dim: int, limit: float,
    ) -> None:
        if page_table is None or cos is not None or new_lengths is not None or limit:
            raise ValueError("FlashInfer appends to paged caches of the dtype of k")
        count = k.shape[0] * k.shape[1]
        sequence, position, pages, begins, last = prepared(lengths, page_table, cu_seqlens, lengths.shape[0], count, k_cache.shape[1])
        flashinfer.append_paged_kv_cache(k.flatten(0, 1), v.flatten(0, 1), sequence, position, (k_cache, v_cache), pages, begins, last)

    return run
