"""The masks of `transformers_attention`.

A mask is the smallest of these forms. Transformers' own masks are of the last, or None, which a layer reads as its `is_causal` says; these
do not depend on that.

- int32 [causal, window, 0, 2], without elements: each query sees all keys, or with causal = 1 those up to itself, with window > 0 no more
  than so many of them. The first query stands at the first key.
- int32 [B, 1, L, 2]: each query sees one run of keys, given as its first key and the one after its last; equal: none. Kernels skip the
  tiles of keys outside it.
- int32 [B, 1, 1, 1]: of a cache with room for more, each sequence has so many keys; the last query stands at the last of them. A layer's
  `sliding_window` counts. Decoding gives this one (`rooftop.generate`).
- int32 [B, 2, 1, P]: of a cache in pages. The first row begins with how many keys the sequence has, the second names its pages, and keys
  and values are [pages, H, page size, D]. The rest as before. Continuous batching gives this one (`rooftop.generate_batch`).
- bool [B, 1, L, S]."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rooftop.drop_in.transformers_models import Kind, kind_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NO_SKIPS = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
HOLES = (
    "attention_mask has a 0 between tokens of a row, and the model is compiled for padding before and after them; "
    "call rooftop.drop_in.register_transformers(holes=True) before it is compiled"
)
TOGETHER = 1 << 26  # elements of a mask that are looked at together


class Told:
    """What is known of the call of a model while it is traced: `unpacked`, that its rows hold one sequence each, of tokens of one kind."""

    def __init__(self) -> None:
        self.unpacked = False  # of the instance from the start: a trace that sees it appear is not used again


TOLD = Told()


def is_order(mask: Tensor) -> bool:
    import torch

    return mask.dtype == torch.int32 and mask.dim() == 4 and mask.shape[2] == 0 and mask.shape[3] == 2


def is_runs(mask: Tensor) -> bool:
    import torch

    return mask.dtype == torch.int32 and mask.dim() == 4 and mask.shape[1] == 1 and mask.shape[3] == 2


def is_lengths(mask: Tensor) -> bool:
    import torch

    return mask.dtype == torch.int32 and mask.dim() == 4 and mask.shape[1:] == (1, 1, 1)


def is_pages(mask: Tensor) -> bool:
    import torch

    return mask.dtype == torch.int32 and mask.dim() == 4 and mask.shape[1:3] == (2, 1)


def transformers_mask(
    batch_size: int, q_length: int, kv_length: int, q_offset: int | Tensor = 0, kv_offset: int = 0,
    mask_function: Callable[..., Tensor] | None = None, attention_mask: Tensor | None = None, local_size: int | None = None,
    allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False, use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None, packed: bool = True, holes: bool = False, **_: Any,
) -> Tensor | None:
    """A mask function of Hugging Face Transformers (`AttentionMaskInterface`), for `transformers_attention`. The parameters are those of
    its `sdpa_mask`, and `packed`: False promises that `position_ids` never start anew within a row. Where nothing is traced they are looked
    at; a traced graph computes from them what each query sees, at each call, unless this is promised, or the model is patched and called
    without `position_ids`. `holes`: a traced graph may be given an `attention_mask` with 0 between tokens, not only before and after them.

    Returns the smallest of the forms above that says it; None where one query sees all keys. While a graph is traced nothing can be read
    from `attention_mask` (padding): given one, the graph computes runs at each call and asserts that they have no holes; with `holes` the
    mask is bool. Models that work on masks themselves get what `sdpa_mask` returns.

    Raises ValueError for a model that does not use `AttentionInterface`: its own attention would read this mask as another thing."""
    import torch
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask
    from transformers.utils.import_utils import is_tracing

    kind = Kind() if config is None else kind_of(type(config))
    if kind.refusal:
        raise ValueError(kind.refusal)
    function = causal_mask_function if mask_function is None else mask_function

    def full(start: int = 0, count: int = q_length, **skips: bool) -> Any:
        return sdpa_mask(
            batch_size=batch_size, q_length=count, kv_length=kv_length, q_offset=q_offset + start, kv_offset=kv_offset,
            mask_function=function, attention_mask=attention_mask, local_size=local_size, use_vmap=use_vmap, device=device,
            **{**NO_SKIPS, **skips},
        )

    if kind.reads_mask:
        return full(allow_is_causal_skip=allow_is_causal_skip, allow_is_bidirectional_skip=allow_is_bidirectional_skip)
    tracing = is_tracing(attention_mask)
    last = kv_offset + kv_length

    def all_there(end: int) -> bool:
        """No key from kv_offset to end - 1 is padding."""
        if attention_mask is None:
            return True
        return not tracing and attention_mask.shape[-1] >= end and bool(attention_mask[:, kv_offset:end].all())

    # Of the library's own functions all but unions leave one run. Padding and functions of models may leave more. Dynamo of torch 2.11
    # reads no attributes of a closure: there the model's source tells.
    certain = not use_vmap and (attention_mask is None or (tracing and not holes))
    if tracing:
        certain = certain and (TOLD.unpacked or not kind.unites)
    else:
        certain = certain and function.__module__ == sdpa_mask.__module__ and function.__name__ != "or_mask"
    promised = (
        tracing and (TOLD.unpacked or not packed) and certain and not allow_is_bidirectional_skip
        and function is not bidirectional_mask_function
    )
    if allow_is_causal_skip or promised:  # the function is causal, with no more than a window or chunks of local_size
        reach = kv_length if local_size is None else local_size
        window_of_model, chunk = (getattr(config, n, None) for n in ("sliding_window", "attention_chunk_size"))
        sliding = local_size is None or (local_size == window_of_model and local_size != chunk)
        if q_length == 1:
            if not tracing and q_offset == last - 1 and kv_length <= reach and (sliding or kv_offset == 0) and all_there(last):
                return None
        elif (isinstance(q_offset, int) or not tracing) and q_offset == kv_offset and all_there(min(last, kv_offset + q_length)):
            near = min(q_length, kv_length) <= reach
            if sliding or (near and kv_offset == 0):
                return torch.empty(1, 0 if near else reach, 0, 2, dtype=torch.int32, device=device)
    if allow_is_bidirectional_skip and (local_size is None or kv_length <= local_size) and all_there(last):
        return torch.empty(0, 0, 0, 2, dtype=torch.int32, device=device)
    if kv_length <= 2 or (tracing and not certain):
        return full()
    if tracing:  # the compiler fuses both; a loop would fix the length
        found = [_runs(full())]
        if attention_mask is not None:
            torch._assert_async(found[0][1], HOLES)
    else:
        step = max(1, TOGETHER // max(1, batch_size * kv_length))
        found = [_runs(full(i, min(step, q_length - i))) for i in range(0, q_length, step)]
        if not certain and not all(bool(one) for _, one in found):
            return full()
    runs = found[0][0] if len(found) == 1 else torch.cat([r for r, _ in found], 2)  # [2, B, L]
    return runs.permute(1, 2, 0)[:, None]


def _runs(mask: Tensor) -> tuple[Tensor, Tensor]:
    """(int32 [2, B, L]: the first key that a query sees and the one after the last; whether each sees all between) of [B, 1, L, S]."""
    import torch

    at = torch.arange(mask.shape[-1], dtype=torch.int32, device=mask.device)
    end = torch.where(mask, at + 1, 0).amax(-1)[:, 0]
    begin = torch.minimum(torch.where(mask, at, mask.shape[-1]).amin(-1)[:, 0], end)
    return torch.stack((begin, end)), (end - begin == mask.sum(-1, dtype=torch.int32)[:, 0]).all()
