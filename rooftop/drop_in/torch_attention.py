"""`rooftop.attention` in torch's socket for flash attention: `torch.nn.functional.scaled_dot_product_attention`, and
`torch.nn.attention.varlen` where torch has it, run it without a change of the model.

    from rooftop.drop_in import torch_attention
    torch_attention.register()                                     # from torch 2.10 on
    torch.nn.attention.activate_flash_attention_impl("rooftop")    # and restore_flash_attention_impl() ends it

What it takes: what torch gives its flash backend (16-bit tensors, no mask), packed sequences, windows, ALiBi, pages. Dropout,
`num_splits` and the debug mask raise RuntimeError, as those of other providers do: deactivate it, or let torch choose another backend.
Importing this changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

NAME = "rooftop"
_UNBOUNDED = (None, -1)


class Handle:
    """Keeps the overrides of aten's functions while it lives."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def remove(self) -> None:
        """The functions that were there before are back."""
        if self._library is not None:
            self._library._destroy()
        self._library = None


def register(key: str = "CUDA") -> None:
    """Make the implementation known to torch under the name "rooftop"; `torch.nn.attention.activate_flash_attention_impl` then uses it
    for tensors of the dispatch key `key`.

    Raises RuntimeError where torch has no such socket (before 2.10)."""
    import torch.nn.attention

    socket = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if socket is None:
        raise RuntimeError(
            f"torch {torch.__version__} has no register_flash_attention_impl; use rooftop.drop_in.scaled_dot_product_attention"
        )
    socket(NAME, register_fn=lambda: activate(key))


def activate(key: str = "CUDA") -> Handle:
    """Override aten's four functions of flash attention for tensors of a dispatch key, until the handle is removed."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    for name, function in (
        ("_scaled_dot_product_flash_attention", dense), ("_scaled_dot_product_flash_attention_backward", dense_backward),
        ("_flash_attention_forward", forward), ("_flash_attention_backward", backward),
    ):
        library.impl(name, function, key)
    return Handle(library)


def forward(
    query: Tensor, key: Tensor, value: Tensor, cum_seq_q: Tensor | None, cum_seq_k: Tensor | None, max_q: int, max_k: int, dropout_p: float,
    is_causal: bool, return_debug_mask: bool, *, scale: float | None = None, window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None, alibi_slopes: Tensor | None = None, block_table: Tensor | None = None, num_splits: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`aten::_flash_attention_forward`: query [B, L, H, D], key and value [B, S, Hk, D], packed [T, H, D] with bounds; with `block_table`
    pages.

    Returns (out, logsumexp [B, H, L] or [H, T], and three tensors of dropout's, which are zero)."""
    import torch

    from rooftop.ops.attention import attention

    _refuse(dropout_p, return_debug_mask, num_splits)
    out, lse = attention(
        query, key, value, causal=is_causal, window=_window(window_size_left, window_size_right), scale=scale, cu_seqlens_q=cum_seq_q,
        cu_seqlens_k=None if block_table is not None else cum_seq_k, page_table=block_table, cache_lengths=seqused_k,
        alibi_slopes=alibi_slopes,
        return_lse=True,
    )
    state = torch.zeros(2, dtype=torch.uint64, device=query.device)
    return out, lse, state, torch.zeros((), dtype=torch.uint64, device=query.device), query.new_empty(0)


def backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int, max_k: int, dropout_p: float, is_causal: bool, rng_state: Tensor, unused: Tensor, *, scale: float | None = None,
    window_size_left: int | None = None, window_size_right: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`aten::_flash_attention_backward`: the gradients of query, key and value, in their shapes."""
    from rooftop.ops._attention import UNBOUNDED
    from rooftop.ops.attention import OP

    _refuse(dropout_p)
    assert OP.bwd is not None
    packed = cum_seq_q is not None
    given = [grad_out, query, key, value, out, logsumexp]
    dout, q, k, v, o, lse = (t[None] for t in given) if packed else given
    left, right = (UNBOUNDED if w in _UNBOUNDED else int(w or 0) for w in (window_size_left, window_size_right))
    factor = query.shape[-1] ** -0.5 if scale is None else float(scale)
    dq, dk, dv, *_ = OP.bwd(
        dout, None, q, k, v, o, lse, None, None, cum_seq_q, cum_seq_k, None, None, None, None, None, None, None, None, None,
        left, 0 if is_causal else right, factor, 0.0, 0.0, 0,
    )
    return (dq[0], dk[0], dv[0]) if packed else (dq, dk, dv)


def dense(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
    scale: float | None = None
) -> tuple[Tensor, Tensor, None, None, int, int, Tensor, Tensor, Tensor]:
    """`aten::_scaled_dot_product_flash_attention`: query [B, H, L, D], key and value [B, Hk, S, D]. The output lies in memory as the
    query does."""
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    out, lse, state, unused, mask = forward(
        q, k, v, None, None, q.shape[1], k.shape[1], dropout_p, is_causal, return_debug_mask, scale=scale
    )
    return out.transpose(1, 2), lse, None, None, query.shape[2], key.shape[2], state, unused, mask


def dense_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int, max_k: int, dropout_p: float, is_causal: bool, philox_seed: Tensor, philox_offset: Tensor, *, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`aten::_scaled_dot_product_flash_attention_backward`, in the shapes of `dense`."""
    dout, q, k, v, o = (t.transpose(1, 2) for t in (grad_out, query, key, value, out))
    found = backward(dout, q, k, v, o, logsumexp, None, None, max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset, scale=scale)
    dq, dk, dv = (t.transpose(1, 2) for t in found)
    return dq, dk, dv


def _window(left: int | None, right: int | None) -> tuple[int, int] | None:
    if left in _UNBOUNDED and right in _UNBOUNDED:
        return None
    return (-1 if left is None else int(left), -1 if right is None else int(right))


def _refuse(dropout_p: float, return_debug_mask: bool = False, num_splits: int | None = None) -> None:
    given = [
        name for name, there in (("dropout_p", dropout_p > 0), ("return_debug_mask", return_debug_mask), ("num_splits", bool(num_splits)))
        if there
    ]
    if given:
        raise RuntimeError(
            f"rooftop's flash attention does not take {' and '.join(given)}: torch.nn.attention.restore_flash_attention_impl() ends its use"
        )
