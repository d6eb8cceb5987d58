wrote /work/w-linlow/rooftop/__init__.pyi
ftop stub`; a test holds it against the op files."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rooftop import codecs as codecs
from rooftop import comm as comm
from rooftop import drop_in as drop_in
from rooftop import quant as quant
from rooftop import sparse as sparse
from rooftop.quant import QuantLinear as QuantLinear
from rooftop.quant import quantize_model as quantize_model

__version__: str

def add(x: Tensor, y: Tensor, *, implementation: str | None=None) -> Tensor:
    """The sum of `x` and `y`, element by element, rounded once.

    Args:
        x, y: float32, float16 or bfloat16, of the same shape and dtype (no broadcasting: expand first), any strides.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns a tensor of their shape and dtype.

    Raises TypeError for other dtypes or two different ones, ValueError for two shapes or devices."""

def all_reduce_ranks(x: Tensor, *, wire: str='int8', group_size: int=128, hadamard: bool=False, stochastic: bool=False, seed: int=0, shots: int=2, implementation: str | None=None) -> Tensor:
    """Each rank's result of a quantised all-reduce, [W, ...], of what the W ranks hold, `x` [W, ...]: ``rooftop.all_reduce_ranks(gradients, wire="int4")``.

    It shows on one device what a wire does to numbers, and is what the kernels of `rooftop.comm.all_reduce` are judged by.

    Args:
        x: float32, float16 or bfloat16; the first dimension is the rank, 1 to 16.
        wire: "bf16", "fp8" (e4m3), "int8" or "int4".
        group_size: elements that share a scale: 32, 64, 128 or 256.
        hadamard: rotate each group before it is quantised. Not with "bf16".
        stochastic: unbiased rounding, for "int8" and "int4".
        seed: of its random bits; a whole number, its low 32 bits count.
        shots: 1: quantised once, each rank adds up everything. 2: each rank adds up its stripe, the sums are quantised again.
        implementation: a kernel by name: it runs or raises. None picks the best that takes `x`.

    Of one rank nothing travels: x comes back. NaN and infinities arrive where they stood (with `hadamard` in all of their group). No gradient.

    Raises TypeError for other dtypes and types, ValueError for a wire, group size, rank count or combination that there is not."""

def append_kv(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor, *, page_table: Tensor | None=None, cu_seqlens: Tensor | None=None, new_lengths: Tensor | None=None, cos: Tensor | None=None, sin: Tensor | None=None, layout: str='half', rotary_dim: int | None=None, k_scale: Tensor | None=None, v_scale: Tensor | None=None, implementation: str | None=None) -> None:
    """Write `k` and `v` into the cache behind what it holds, in one launch. ``append_kv(k_cache, v_cache, k, v, lengths)`` is a decode step with N = 1.

    How a paged cache lies: `k_cache[p]` is page p, `page_size` tokens of all heads. Token number t of sequence b (t counts from 0 over the whole sequence)
    lies in ``k_cache[page_table[b, t // page_size], t % page_size]``; entries of `page_table` behind the last page in use are not read. A cache that
    lies head by head ([pages, H, page_size, D] in memory) is given as ``cache.transpose(1, 2)``: strides are taken as they are.

    Args:
        k_cache, v_cache: written into. [B, S_max, H, D] (contiguous cache: a sequence a row), or with `page_table` [pages, page_size, H, D], any
            page size. float32, float16 or bfloat16 as `k`, or float8_e4m3fn or float8_e5m2.
        k, v: float32, float16 or bfloat16, [B, N, H, D] (N new tokens for each sequence), or with `cu_seqlens` [T, H, D].
        lengths: int32 or int64 [B], the tokens that each sequence has in the cache already. It is not changed.
        page_table: int32 or int64 [B, pages of a sequence].
        cu_seqlens: int32 or int64 [B + 1], rising: tokens cu_seqlens[b] to cu_seqlens[b + 1] - 1 of `k` and `v` belong to sequence b.
        new_lengths: int32 or int64 [B]: of a padded batch [B, N, H, D] only the first new_lengths[b] tokens are written. Not with `cu_seqlens`.
        cos, sin: tables that rotate the keys (see `rooftop.rope`), [P, R / 2], float32 or the dtype of `k`; the row is the token's position.
        layout, rotary_dim: as `rope`'s.
        k_scale, v_scale: float32 [1] or [H], for an 8-bit cache alone: codes are k / k_scale, rounded to the nearest and held within the largest finite
            value; reading multiplies. None: 1.
        implementation: a kernel by name (`"cuda_sm80"`): it runs or raises. None picks the best that takes the input.

    A token is not written where its position is negative or beyond the cache, the page table or the tables of the rotation, or where its page is no page
    of the cache; nothing else is touched, and `rooftop.debug()` tells it. Where two tokens fall into one slot (a page table with repeated
    entries), each element is that of one of them.

    Raises TypeError for other dtypes, ValueError for shapes, devices or options that do not fit, RuntimeError where the cache requires a gradient."""

def argsort(x: Tensor, dim: int=-1, descending: bool=False, *, lengths: Tensor | None=None, nan: str='largest', implementation: str | None=None) -> Tensor:
    """The indices that put each row along `dim` in order. Always stable: of equal elements that with the lower index comes first.

    Args:
        x: float32, float16, bfloat16, int32 or int64, of any shape and strides with at least one dimension.
        dim: the dimension along which rows lie; negative counts from the last.
        descending: whether the largest come first.
        lengths: int32 or int64 of the shape of `x` without `dim`: only so many elements of each row are sorted. None: all.
        nan: "largest": NaN is above +infinity; "smallest": below -infinity; "error": a NaN is a ValueError, for which the call waits for the device.
        implementation: a kernel by name: it runs or raises. None picks the best that takes `x`.

    Returns int64 of the shape of `x`. -0.0 equals +0.0. Elements beyond a row's length stay where they are. A length below 0 counts as 0, one above the
    row as the row; `rooftop.debug()` raises IndexError for it.

    Raises TypeError for other dtypes, ValueError for nan or lengths that do not fit, or where a named implementation cannot take `x`; IndexError for a
    `dim` out of range."""

def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool=False, window: tuple[int, int] | None=None, scale: float | None=None, softcap: float | None=None, bias: Tensor | None=None, mask: Tensor | tuple[Tensor, Tensor] | None=None, dropout_p: float=0.0, seed: int=0, cu_seqlens_q: Tensor | None=None, cu_seqlens_k: Tensor | None=None, page_table: Tensor | None=None, cache_lengths: Tensor | None=None, alibi_slopes: Tensor | None=None, q_scale: Tensor | None=None, k_scale: Tensor | None=None, v_scale: Tensor | None=None, sinks: Tensor | None=None, return_lse: bool=False, deterministic: bool=True, implementation: str | None=None) -> Any:
    """Attention of `q` to `k` and `v`, computed in float32 and rounded once, but for the probabilities, which meet `v` in its dtype.

    The last query stands at the last key: query i of a sequence is at position i + keys - queries. What no kernel takes runs as plain torch, with all scores
    of one key head in memory; `rooftop.explain` says which and why.

    Args:
        q: [B, Sq, H, D], float16, bfloat16 or float32, any strides: heads before tokens in memory are given as ``q.transpose(1, 2)``. D is a multiple of 8,
            at most 256. With `cu_seqlens_q` [T, H, D].
        k, v: [B, Sk, Hk, D] and [B, Sk, Hk, Dv] in the dtype of `q`, H a multiple of Hk: query head h uses key head h // (H / Hk). Dv as D; it may differ.
        causal: no key behind the query's own position.
        window: (left, right): how many keys before and behind its own position a query sees; -1: no bound.
        scale: of the scores, above 0; None: D ** -0.5.
        softcap: scores are bounded smoothly to ± this; None for not.
        bias: added to the scores: broadcast over [B, H, Sq, Sk] (each extent whole or 1), of the dtype of `q` or float32. It has a gradient.
        mask: bool, broadcast as `bias`: False where a query does not see a key. Or the pair (begin, end) of `rooftop.attention_ranges`, int32 [B, Sq]: query i
            sees keys begin[b, i] to end[b, i] - 1 alone; tiles that no query of theirs sees are not looked at.
        dropout_p: the probability that a weight is dropped, to 2^-16; those that stay are divided by 1 - dropout_p.
        seed: its low 32 bits and the number of an element decide what is dropped, in the backward too.
        cu_seqlens_q, cu_seqlens_k: int32 or int64 [N + 1], rising: sequence n has the queries cu_seqlens_q[n] to cu_seqlens_q[n + 1] - 1. Bounds that fall
            or reach beyond the buffer count as the nearest that fit (`rooftop.debug()` tells them). Queries of no sequence see nothing.
        page_table: int32 or int64 [B, pages of a sequence]: `k` and `v` are pages [pages, page_size, Hk, D]; token t of sequence b is
            ``k[page_table[b, t // page_size], t % page_size]``. A page that does not exist makes the queries that see it NaN.
        cache_lengths: int32 or int64 [B], the keys that each sequence has; None: all of them.
        alibi_slopes: float32 [H] or [B, H].
        q_scale, k_scale, v_scale: float32 [1] or [heads], above 0, for float8_e4m3fn tensors: the value is code · scale.
        sinks: [H], a score of no key that takes part in the normaliser; of the dtype of `q` or float32. It has a gradient.
        return_lse: return (out, lse), lse [B, H, Sq] (packed [H, T]) in float32, natural logarithm; gradients flow through both.
        deterministic: every kernel here gives the same bits at each run; False allows one that does not.
        implementation: a kernel by name (`"triton"`, `"gluon_sm90"`): it runs or raises. None picks the best that takes the input.

    Returns out [B, Sq, H, Dv] in the dtype of `q` (bfloat16 for 8 bits). A query that sees no key has zeros and lse -inf, and no gradient.

    Raises TypeError for other dtypes, ValueError for shapes, devices or numbers that do not fit."""

def attention_mask(q_len: int, kv_len: int, lengths: Tensor | None=None, *, q_lengths: Tensor | None=None, causal: bool=False, window: tuple[int, int] | None=None, heads: int=1, group: int=1, batch: int | None=None, dtype: torch.dtype | None=None, fill: float=float('-inf'), out: Tensor | None=None, device: torch.device | str | None=None, implementation: str | None=None) -> Tensor:
    """The mask [batch, heads, q_len · group, kv_len]: True, or 0 in a floating dtype, where a query attends to a key; False, or `fill`, where not.

    Query i of sequence b stands at position i + lengths[b] - q_lengths[b]: the last query at the last key. It attends to the keys from position - left
    to position + right that the sequence has. `rooftop.attention_ranges` says the same in two numbers a row.

    Args:
        q_len, kv_len: queries and keys of the longest sequence.
        lengths: int32 or int64 [batch], the keys of each sequence; None: kv_len.
        q_lengths: int32 or int64 [batch], its queries; rows beyond attend to nothing. None: q_len. Lengths that do not fit count as the nearest that
            does (`rooftop.debug()` tells them).
        causal: no key behind the query's own position.
        window: (left, right): how many keys before and behind its own position a query attends to; -1: no bound.
        heads: how often the mask is repeated, for attention that takes one for each KV head.
        group: query heads of a KV head that are folded into the rows: each query has so many rows, one behind the other.
        batch: sequences, where no lengths say it; 1.
        dtype: torch.bool (None), or torch.float32, float16 or bfloat16 for a mask that is added to the scores.
        fill: of an additive mask, what is added where there is no attention. A row that attends to nothing holds nothing else.
        out: written into and returned, of that shape, any strides and one of these dtypes; it decides dtype and device.
        device: of a new mask: where the lengths lie, else torch's default.
        implementation: a kernel by name (`"cuda_sm80"`): it runs or raises. None picks the best that takes the input.

    Raises TypeError for other dtypes, ValueError for sizes, shapes or devices that do not fit."""

def attention_ranges(q_len: int, kv_len: int, lengths: Tensor | None=None, *, q_lengths: Tensor | None=None, causal: bool=False, window: tuple[int, int] | None=None, group: int=1, batch: int | None=None, out: tuple[Tensor, Tensor] | None=None, device: torch.device | str | None=None, implementation: str | None=None) -> tuple[Tensor, Tensor]:
    """Two int32 tensors (begin, end) [batch, q_len · group]: a row attends to the keys begin <= j < end, to none where they are equal.

    That is all that `rooftop.attention_mask` says with the same arguments, in 8 bytes a row instead of kv_len elements for each head; attention takes it
    as it is. `out`: two int32 tensors of that shape, which are written into and returned; None: new ones. Lengths below 0 or beyond kv_len (q_len)
    count as the nearest that fits (`rooftop.debug()` tells them). Other arguments and errors are `attention_mask`'s."""

def bias_mask_scale_add(x: Tensor, bias: Tensor | None=None, residual: Tensor | None=None, mask: Tensor | None=None, *, scale: float | None=None, p: float=0.0, seed: int=0, implementation: str | None=None) -> Tensor:
    """residual + scale · mask · (x + bias), computed in float32 and rounded once. Where the mask is False, x and bias have no say, NaN or not.

    Args:
        x: float32, float16 or bfloat16, [..., C], any strides.
        bias: [C] in the dtype of `x`; None for none.
        residual: as `x` in shape and dtype; None for none.
        mask: bool, of the shape of `x`; None: all True, or made from `seed` where `p` is not 0.
        scale: None: 1 / (1 - p), as in dropout.
        p: the probability that an element is dropped, 0 to 1; needs `mask` to be None.
        seed: its low 32 bits and an element's row-major index decide its mask, alike on every device and in every implementation. It is a
            number of the call: a CUDA graph that was captured repeats its mask.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns a tensor of the shape and dtype of `x`.

    Raises TypeError for other dtypes, ValueError for shapes or devices that do not fit, a `p` out of range or together with a mask."""

def compress_blocks(x: Tensor, bound: Tensor | None=None, *, rank: int | None=None, implementation: str | None=None) -> tuple[Tensor, Tensor, Tensor]:
    """The chunks of `x`, one after the other: what `rooftop.codecs.compress` puts into a container, as tensors on the device.

    Args:
        x: contiguous, any shape of up to 4 dimensions, of a dtype that `rooftop.codecs` knows. At most 2^31 - 1 chunks.
        bound: float64, one element, on the device of `x`: the largest absolute error. None: lossless. A bound that is not above 0 keeps every value exactly.
        rank: 1, 2 or 3: the dimensions that differences may be taken along. None: what `rooftop.codecs.compress` takes.
        implementation: a kernel by name (`"cuda_sm80"`): it runs or raises. None picks the best that takes `x`.

    Returns (words, table, total): int32 [at most], of which the first `total` (int64 [1]) are used; int32 [chunks, 2]: words and checksum of each chunk.

    Raises TypeError for other dtypes, ValueError for shapes, ranks or devices that do not fit."""

def compress_planes(x: Tensor, *, implementation: str | None=None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The chunks of `x`, one after the other, and the table they were coded with.

    Args:
        x: contiguous, any shape, of a dtype that `rooftop.codecs` knows. At most 2^31 - 1 chunks of 8192 values.
        implementation: a kernel by name (`"cuda_sm80"`): it runs or raises. None picks the best that takes `x`.

    Returns (words, table, frequencies, total): int32 [at most], of which the first `total` (int64 [1]) are used; int32 [chunks, 2]: words and checksum of
    each chunk; int16 [256].

    Raises TypeError for other dtypes, ValueError for a tensor that is not contiguous."""

def concat_kv(past: Tensor, new: Tensor, dim: int=-2, *, implementation: str | None=None) -> Tensor:
    """`past` and `new` one behind the other along `dim`, as a new contiguous tensor. Every element keeps its bits.

    Args:
        past, new: of one dtype, alike in every dimension but `dim`: [B, H, S, D] with the default `dim`, or any other shape and strides.
        dim: the dimension of the tokens; negative counts from the last.
        implementation: a kernel by name (`"cuda_sm80"`): it runs or raises. None picks the best that takes the input.

    Returns a contiguous tensor with past.shape[dim] + new.shape[dim] elements along `dim`. It never shares memory with its inputs. A cache with room
    for what comes is cheaper: `rooftop.append_kv` moves the new tokens alone.

    Raises TypeError for dtypes that differ or that rooftop has no name for, IndexError for a `dim` out of range, ValueError for shapes or devices that
    do not fit."""

def cross_entropy(input: Tensor, target: Tensor, *, ignore_index: int=-100, reduction: str='mean', label_smoothing: float=0.0, lse_square_scale: float=0.0, softcap: float | None=None, inplace_backward: bool=False, implementation: str | None=None) -> Tensor:
    """Cross-entropy between logits and class indices, as `torch.nn.functional.cross_entropy`, computed in float32.

    Args:
        input: logits [N, C] or [C], float32, float16 or bfloat16.
        target: int64 class indices [N] or [], 0 to C - 1 or `ignore_index`. Any other makes that row's loss and gradient NaN; under
            `rooftop.debug()` it is an IndexError.
        ignore_index: rows with this target have no loss and no gradient, and do not count in the mean.
        reduction: `"mean"` over the rows that count, `"sum"` or `"none"`.
        label_smoothing: 0 to 1, the share of the target spread evenly over all classes.
        lse_square_scale: factor of the squared log-normaliser, added to each row's loss (Liger's name for it).
        softcap: logits are first bounded smoothly to ± this; None for not. On a GPU, 16-bit logits of 1024 classes or more to 2e-7 of the cap: no more
            is seen in a loss, but where all of a row's logits are alike and err alike.
        inplace_backward: the backward writes the gradient over `input` (on CUDA, in eager mode), which saves its memory. Nothing else may need
            `input` after; a second backward through it raises.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns float32: a scalar, or [N] without a reduction. The mean over no rows is NaN, as torch's.

    Raises TypeError for other dtypes or options that are no numbers, ValueError for shapes, devices or options that are not accepted."""

def cumsum(x: Tensor, dim: int=-1, *, reverse: bool=False, implementation: str | None=None) -> Tensor:
    """The running sum of `x` along `dim`, kept in float32 and rounded once an element. The order of additions is fixed: equal calls give equal bits.

    Args:
        x: float32, float16 or bfloat16, any shape and strides with at least one dimension.
        dim: the dimension along which to add; negative counts from the last.
        reverse: whether to add from the end.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes `x`.

    Returns a tensor of the shape, dtype and device of `x`. From the first NaN on, every sum is NaN.

    Raises TypeError for anything but a floating tensor of these dtypes, IndexError for a `dim` out of range, ValueError for no dimensions or where a
    named implementation cannot take `x`."""

def decompress_blocks(words: Tensor, table: Tensor, bound: Tensor | None, shape: tuple[int, ...], dtype: Any, *, rank: int | None=None, implementation: str | None=None) -> tuple[Tensor, Tensor]:
    """The values whose chunks `rooftop.compress_blocks` wrote.

    Args:
        words: int32 [n], contiguous.
        table: int32 [chunks, 2]: words and checksum of each chunk.
        bound: float64 [1], as it was given; None: lossless.
        shape, dtype, rank: of the values; `rank` None: as `rooftop.codecs.compress` takes it.
        implementation: a kernel by name: it runs or raises. None picks the best that takes it.

    Returns (x, damaged): the values; int32 [chunks], 0, or why a chunk could not be decoded: 1 it lies outside of `words`, 2 its checksum is another, 3 its
    lengths do not fit. The values of such a chunk are 0.

    Raises TypeError for other dtypes, ValueError for shapes, ranks or devices that do not fit."""

def decompress_planes(words: Tensor, table: Tensor, frequencies: Tensor, shape: tuple[int, ...], dtype: Any, *, implementation: str | None=None) -> tuple[Tensor, Tensor]:
    """The values whose chunks `rooftop.compress_planes` wrote.

    Args:
        words: int32 [n], contiguous.
        table: int32 [chunks, 2]: words and checksum of each chunk.
        frequencies: int16 [256]; where they do not add up to 4096, every chunk that is coded counts as damaged.
        shape, dtype: of the values.
        implementation: a kernel by name: it runs or raises. None picks the best that takes it.

    Returns (x, damaged): the values; int32 [chunks], 0, or why a chunk could not be decoded: 1 it lies outside of `words`, 2 its checksum is another, 3 its
    lengths or states do not fit. The values of such a chunk are 0.

    Raises TypeError for other dtypes, ValueError for shapes or devices that do not fit."""

def dequantize(q: quant.Quantized, dtype: torch.dtype | None=None, *, implementation: str | None=None) -> Tensor:
    """The values of `q`, a contiguous tensor.

    Args:
        q: what `rooftop.quantize` returned.
        dtype: float32, float16 or bfloat16; None: that of what was quantised.
        implementation: a kernel by name: it runs or raises. None picks the best that takes `q`.

    Raises TypeError for anything but a `Quantized` and for other dtypes, ValueError where codes or scales do not have the sizes that its shape asks for."""

def geglu(a: Tensor, b: Tensor | None=None, approximate: str='none', *, implementation: str | None=None) -> Tensor:
    """gelu(a) · b, computed in float32 and rounded once.

    Args:
        a: the gate: float32, float16 or bfloat16, any shape and strides.
        b: what is gated, as `a` in shape and dtype. None: `a` holds both, [..., 2 C], the gate first.
        approximate: `"none"`, exact, or `"tanh"`, as in `torch.nn.functional.gelu`.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns a tensor of the shape of `a`, or [..., C] where it is packed, in its dtype.

    Raises TypeError for other dtypes or two different ones, ValueError for shapes that do not fit, a packed last dimension that is odd, another
    `approximate`, or an input that a named implementation cannot take."""

def gelu(input: Tensor, approximate: str='none', *, implementation: str | None=None) -> Tensor:
    """x · Φ(x), as `torch.nn.functional.gelu`, computed in float32 and rounded once.

    Args:
        input: float32, float16 or bfloat16, any shape and strides.
        approximate: `"none"`, exact, or `"tanh"`.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns a tensor of the shape and dtype of `input`.

    Raises TypeError for other dtypes, ValueError for another `approximate` or an input that a named implementation cannot take."""

def gemv(a: Tensor, x: Tensor, *, implementation: str | None=None) -> Tensor:
    """`a` times at most 16 vectors, summed in float32 (true float32 products, never TF32) and rounded once.

    Args:
        a: [..., M, K] float32, float16 or bfloat16. Rows or columns must be neighbours in memory (`a.t()` of a contiguous matrix is as good as a
            contiguous one); anything else is copied first.
        x: [..., K], a vector, or [..., R, K], R of them, at most 16; dtype and leading dimensions as those of `a`.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns [..., M] or [..., R, M], contiguous. With K = 0 it is zeros. The order of the sums depends on shapes alone.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit, more than 16 vectors, or tensors on different devices."""

def grouped_matmul(a: Tensor, b: Tensor, offsets: Tensor, *, implementation: str | None=None) -> Tensor:
    """One product for each of G groups, by offsets that stay on the device; summed in float32, rounded once.

    Three forms, told apart by the dimensions of a and b:
        [M, K], [G, K, N] -> [M, N]: group g is the rows offsets[g - 1] to offsets[g] of a; rows past the last offset give zeros;
        [M, K], [K, N] -> [G, M, N]: group g is the slice offsets[g - 1] to offsets[g] of K (the gradient of the weights); an empty one gives zeros;
        [G, M, K], [G, K, N] -> [G, M, N]: of matrix g the first offsets[g] rows; those after them give zeros and are not read.

    Args:
        a, b: float32, float16 or bfloat16, of one dtype, any strides.
        offsets: int32 [G]. In the first two forms where each group ends: not decreasing, at most M (K). In the third how many rows there are, at most M.
            Offsets outside that are cut to it; which rows then belong to which group is not said. `rooftop.debug()` tells.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns a tensor in the dtype of `a`.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit or tensors on different devices."""

def int_matmul(a: Tensor, b: Tensor, *, implementation: str | None=None) -> Tensor:
    """a b of 8-bit integers, summed exactly in 32 bits.

    Fastest where both operands are contiguous along K: `b` a transposed [N, K] tensor. All other layouts are read in place too.

    Args:
        a: [M, K], int8, any strides.
        b: [K, N], int8, any strides.
        implementation: a kernel by name (`"gluon_sm90"`): it runs or raises. None picks the best that takes the input.

    Returns [M, N] of int32, zeros where K is 0.

    Raises TypeError for other dtypes; ValueError for shapes that do not fit, tensors on different devices, or K above 131071, where a sum could
    leave 32 bits."""

def kthvalue(x: Tensor, k: int, dim: int=-1, keepdim: bool=False, *, nan: str='largest', implementation: str | None=None) -> tuple[Tensor, Tensor]:
    """The `k`-th smallest element of each row along `dim`, and its index: of equal elements those with lower indices count as smaller.

    Args:
        x: float32, float16, bfloat16, int32 or int64, of any shape and strides with at least one dimension.
        k: 1 to the row's elements; (n + 1) // 2 is the lower median.
        dim: the dimension along which rows lie; negative counts from the last.
        keepdim: whether `dim` stays, with extent 1.
        nan: "largest": NaN is above +infinity; "smallest": below -infinity; "error": a NaN is a ValueError, for which the call waits for the device.
        implementation: a kernel by name: it runs or raises. None picks the best that takes `x`.

    Returns (value, index), of the dtype of `x` and int64, of the shape of `x` without `dim`. -0.0 equals +0.0, and the value is the element as it stands.
    Gradients flow from `value` to `x`.

    Raises TypeError for other dtypes, ValueError for a k that the row has not, or where a named implementation cannot take `x`; IndexError for a `dim`
    out of range."""

def layer_norm(input: Tensor, normalized_shape: Sequence[int] | int, weight: Tensor | None=None, bias: Tensor | None=None, eps: float=1e-05, *, residual: Tensor | None=None, implementation: str | None=None) -> Any:
    """Each row with mean 0 and variance 1, as `torch.nn.functional.layer_norm`, computed in float32.

    Args:
        input: float32, float16 or bfloat16, [..., *normalized_shape], any strides.
        normalized_shape: the last dimensions of `input`, which are normalised together.
        weight, bias: of `normalized_shape`, in the dtype of `input` or float32; None for none.
        eps: added to the variance.
        residual: added to `input` first; of its shape and dtype. What is normalised is the sum as it is returned, rounded to that dtype.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns y, of the shape and dtype of `input`; with `residual` the pair (y, input + residual).

    Raises TypeError for other dtypes, ValueError for shapes or devices that do not fit, an eps below 0, or an input that a named
    implementation cannot take."""

def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, *, bias: Tensor | None=None, ignore_index: int=-100, label_smoothing: float=0.0, lse_square_scale: float=0.0, softcap: float | None=None, reduction: str='mean', return_lse: bool=False, weight_grad_dtype: torch.dtype | None=None, memory: str='fast', group: Any=None, implementation: str | None=None) -> Any:
    """Cross-entropy between `x @ weight.T + bias` and class indices. Products are summed in float32 and rounded to the dtype of `x`, all else is float32.

    With N tokens, H features, V classes and gradients included, memory beyond the inputs is, for 16-bit tensors and `"mean"` or `"sum"`:
    `"fast"`: dX + the larger of 3.1 dW and 3 dW + 256 MiB, three products; the gradients are made in the forward, and multiplied in the backward;
    `"small"`: dW + 3 dX + 64 MiB, four products: the backward makes the logits again. Both are exact and deterministic, and wait for nothing.

    Args:
        x: [..., H], float32, float16 or bfloat16.
        weight: [V, H] in the dtype of `x`. Where it, or `x`, requires no gradient, its product is not made.
        target: int64 [...], 0 to V - 1 or `ignore_index`. Any other makes the token's loss NaN, and the gradients; under `rooftop.debug()` it is an IndexError.
        bias: [V], of the dtype of `x` or float32.
        ignore_index: tokens with this target have no loss and no gradient, do not count in the mean, and their logits are not read. On Hopper, in 16 bits,
            they are left out of the products too; elsewhere these take their rows along.
        label_smoothing: 0 to 1, the share of the target spread evenly over all classes.
        lse_square_scale: factor of the squared log-normaliser, added to each token's loss.
        softcap: logits are first bounded smoothly to ± this; None for not.
        reduction: `"mean"` over the tokens that count, `"sum"` or `"none"`. With `"none"` both points of `memory` make four products.
        return_lse: return (loss, lse), lse [...] in float32, 0 where a token is ignored. No gradient flows through it.
        weight_grad_dtype: of the weight's gradient: its own, or torch.float32, for a leaf with ``weight.grad_dtype = torch.float32``: autograd would round
            it to the weight's dtype else. It is summed in float32 either way.
        memory: `"fast"` or `"small"`.
        group: a `torch.distributed` process group over whose ranks the vocabulary is split: `weight` and `bias` are this rank's classes, those of rank r
            before those of rank r + 1, as many on each. `x` and `target`, whose classes are those of the whole, are the same on all. Four numbers a
            token travel in the forward; dX is summed over the ranks. The backward makes the logits again, whatever `memory` is.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns float32: a scalar, or [...] without a reduction. The mean over no tokens is NaN, as torch's, and its gradients are zeros. With `"fast"` a second
    backward through one forward raises: the first has multiplied the gradients in their place.

    Raises TypeError for other dtypes or options that are no numbers, ValueError for shapes, devices or options that are not accepted."""

def linear_jsd(x: Tensor, weight: Tensor, teacher_x: Tensor, teacher_weight: Tensor, *, beta: float=0.5, temperature: float=1.0, mask: Tensor | None=None, reduction: str='mean', implementation: str | None=None) -> Tensor:
    """The generalised Jensen-Shannon divergence between a teacher's and a student's distribution over V classes, each the softmax of a product.

    Products are summed in float32 and rounded to the dtype of `x`, all else is float32. Four products with gradients, which are made in the forward. Memory
    beyond the inputs, for 16 bits, is dX + the larger of 4 dW and 3 dW + 512 MiB.

    Args:
        x: the student's [..., H], float32, float16 or bfloat16.
        weight: the student's [V, H], in the dtype of `x`.
        teacher_x, teacher_weight: the teacher's [..., K] and [V, K], in the dtype of `x`. They have no gradients.
        beta: 0 to 1: how much of the teacher is in the mixture. 0 is KL(teacher || student), the usual loss; 1 is KL(student || teacher).
        temperature: above 0; logits are divided by it. The loss is not multiplied by its square.
        mask: bool [...]: False where a token does not count. Its products are made all the same.
        reduction: `"mean"` over the tokens that count, or `"sum"`.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns a float32 scalar. The mean over no tokens is NaN. A second backward through one forward raises.

    Raises TypeError for other dtypes or options that are no numbers, ValueError for shapes, devices or options that are not accepted."""

def matmul(a: Tensor, b: Tensor, *, c: Tensor | None=None, alpha: float=1.0, beta: float=1.0, bias: Tensor | None=None, activation: str='none', gate: Tensor | None=None, residual: Tensor | None=None, out_dtype: Any=None, precision: str='ieee', implementation: str | None=None) -> Tensor:
    """act(alpha · a b + beta · c + bias) · gate + residual, summed in float32 and rounded once.

    float32 is true float32 unless `precision` says otherwise: each product and each sum is an IEEE FMA, never TF32. Operands of 16 bits are multiplied
    exactly by tensor cores.

    Args:
        a: [M, K], or [B, M, K] for a batch; float32, float16 or bfloat16. In 16 bits rows or columns may be the neighbours in memory, in float32
            rows; what lies otherwise is copied into contiguous memory first.
        b: [K, N], or [B, K, N], in the dtype of `a`, likewise.
        c: of the shape of the result, or None for no addend.
        alpha, beta: scales. With beta = 0, c is not read: NaN in it does not matter.
        bias: [N], added to each row; None for none.
        activation: "none", "relu", "silu", "gelu" or "gelu_tanh", of the sum so far.
        gate, residual: of the shape of the result, or None for none.
        out_dtype: torch.float32, torch.float16 or torch.bfloat16 with operands of 16 bits; None: the dtype of `a`.
        precision: how much of float32 operands is multiplied; sums are float32 in every mode. The error of one product x y, relative to it:
            "ieee" none beyond float32's;
            "tf32" under 2^-9: each operand is cut to 10 bits of fraction, what tensor cores read of a float32;
            "tf32x3" under 2^-19: x = x1 + x2 of 10 bits of fraction each, and x y = x1 y1 + x1 y2 + x2 y1 (Ootomo and Yokota 2022);
            "bf16x3" under 2^-15: the same with two bfloat16 numbers, at twice the speed of "tf32x3".
            The gradients are made in the same mode. In the two split modes an infinite operand, or one whose rounding to bfloat16 overflows (over 3.39e38),
            makes NaN of its row or column of the result.
        implementation: a kernel by name (`"simt__cuda_sm80"`): it runs or raises. None picks the best that takes the input.

    c, bias, gate and residual are float32, float16 or bfloat16, whatever `a` is; with `a` of float32 they are float32.

    Returns a new tensor [M, N] or [B, M, N]. With K = 0 the product counts as zeros.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit, an unknown activation or precision, a precision other than "ieee" with
    operands of 16 bits, or tensors on different devices."""

def merge_attention(a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor, *, implementation: str | None=None) -> tuple[Tensor, Tensor]:
    """The attention of queries to the keys of two parts, from what ``rooftop.attention(..., return_lse=True)`` gave for each. More parts are merged one by one.

    Args:
        a, b: [B, S, H, D] (of packed sequences [T, H, D]), float32, float16 or bfloat16, each as it is: what was merged before is float32.
        lse_a, lse_b: [B, H, S] (packed [H, T]), float32: the normalisers. -inf: the query sees no key of that part.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns (out, lse) in float32, of the shapes of `a` and `lse_a`. Where neither part saw a key: zeros and -inf. Gradients flow to all four.

    Raises TypeError for other dtypes, ValueError for shapes or devices that do not fit."""

def prune_24(w: Tensor, algorithm: str='optimal', *, implementation: str | None=None) -> tuple[sparse.SparseTensor, sparse.SparseTensor]:
    """W and its transpose, both 2:4, of the same kept elements.

    Args:
        w: [M, K] float16 or bfloat16. Its tiles of 4 x 4 begin at the first row and column; past the end there are zeros.
        algorithm: "optimal" or "greedy". Among patterns (elements) of the same size the first counts, by rows; NaN counts as infinite. Sizes are added in
            float32, the first two rows, the last two, then both.
        implementation: a kernel by name (`"cuda_sm80"`): it runs or raises. None picks the best that takes the input.

    Returns two `rooftop.sparse.SparseTensor`s, [M, K] and [K, M]. Their tensors are contiguous, as collectives want them. No gradient flows through it:
    `rooftop.sparse.SparseLinear` trains a dense weight through its pruned one.

    Raises TypeError for other dtypes, ValueError for other shapes or an unknown algorithm."""

def quantize(x: Tensor, format: str | quant.Format='int8', *, granularity: str | None=None, group: int=128, dim: int=-1, block: tuple[int, int]=(128, 128), symmetric: bool=True, rounding: str='nearest', scale_dtype: str | None=None, over: Tensor | None=None, seed: int=0, subtract: bool=False, implementation: str | None=None) -> quant.Quantized:
    """The codes of `x` with their scales: `rooftop.quantize(x, "int8", granularity="row").dequantize()` is nearly `x`.

    Args:
        x: float32, float16 or bfloat16, at least one dimension, any strides.
        format: a name of `rooftop.quant.FORMATS`: int8, uint8, int4, uint4, e4m3, e5m2 (fp8), e3m2, e2m3 (fp6), e2m1 (fp4), mxfp8_e4m3, mxfp8_e5m2,
            mxfp6_e3m2, mxfp6_e2m3, mxfp4, nvfp4; or an alias ("fp8", "mxfp8", ...).
        granularity: what shares a scale: "tensor", "row" (each row along the last dimension), "column" (each place of the last dimension), "group"
            (`group` neighbours along `dim`), "block" (of the last two dimensions). None: "group" where the format has groups of its own (mx, nv), else "row".
        group: 1 or more; 16 to 256 are the usual ones. Of mx and nv formats it is their own.
        symmetric: False, for ints alone: with zero points.
        rounding: "nearest" (ties to even), "stochastic" (unbiased), "zero" (cut off), "dither" (ints: noise of one step's width is added, then nearest).
        scale_dtype: "f32", "f16", "bf16", "e8m0" (a power of two), "e4m3". None: the format's own, float32 where it has none.
        over: nvfp4: the tensor's scale, float32, one element, above zero. None: max|x| / (448 * 6).
        seed: of the random bits; its low 32 bits and an element's row-major index decide them, alike on every device.
        subtract: with "dither": `dequantize` takes the noise off again.
        implementation: a kernel by name: it runs or raises. None picks the best that takes `x`.

    NaN becomes the NaN of fp8, 0 elsewhere; infinities stay infinite in e5m2 and become the largest code elsewhere. Neither has a say in the scale. A
    group without anything but zeros has the smallest scale there is.

    Returns a `rooftop.quant.Quantized`. No gradient flows through it; `rooftop.quant.fake_quantize` has the straight-through one.

    Raises TypeError for other dtypes, ValueError for a format, granularity, rounding or scale type that there is not or that do not go together,
    IndexError for a `dim` out of range."""

def quantized_matmul(x: Tensor, weight: quant.PackedWeight | quant.Quantized, bias: Tensor | None=None, *, activations: str | None=None, implementation: str | None=None) -> Tensor:
    """x times the transposed weight, plus bias: `torch.nn.functional.linear` with a weight in few bits.

    Args:
        x: [..., K], bfloat16 or float16, or float32 (the reference alone).
        weight: `rooftop.quant.pack_weight(...)`, a [N, K] in the packing of all kernels. With `activations` also the `Quantized` of a [N, K] by rows,
            symmetric, int8 for "int8" or e4m3 for "fp8".
        bias: [N] in the dtype of `x`; None for none.
        activations: None multiplies x as it is, sums in float32 and rounds once. "int8" and "fp8" (e4m3) quantise each row of x first, by its largest size,
            and multiply its codes; the row's scale is multiplied to the sums in float32. With a `Quantized` that is a product of 8-bit codes
            (`rooftop.scaled_matmul`). With a packed weight, whose groups have scales of their own, the codes are multiplied in 16 bits, which hold them
            exactly. No gradient flows through the codes.
        implementation: a kernel by name (`"mma__cuda_sm80"`): it runs or raises. None picks the best that takes the input. For packed weights alone.

    Returns [..., N] in the dtype of `x`. Gradients flow to `x` and `bias`; the weight has none. The order of the sums depends on shapes and the card alone.

    Raises TypeError for other dtypes and for a weight that is neither; ValueError for shapes that do not fit, a packed weight whose buffers are not
    those of its shape and format, an activation format that does not go with the weight, and tensors on different devices."""

def reduce(x: Tensor, op: str, dim: int | Sequence[int] | None=None, *, keepdim: bool=False, correction: int=1, implementation: str | None=None) -> Tensor:
    """`x` reduced over `dim`. Sums are taken in float32 (integers: int64) and rounded once; the order is fixed, so that equal calls give equal bits.

    Args:
        x: float32, float16 or bfloat16; for "sum", "max" and "argmax" also int64, int32, int16, int8 or uint8. Any shape and strides.
        op: "sum", "max", "argmax", "mean" or "var".
        dim: a dimension, several, or None for all; negative ones count from the last.
        keepdim: whether reduced dimensions stay, with extent 1.
        correction: of "var", what is subtracted from the count: 1 gives the unbiased estimate.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes `x`.

    Returns a tensor of the kept dimensions, of the dtype of `x`; int64 for "argmax" and for the "sum" of integers. NaN wins every maximum; of equal
    maxima "argmax" takes the first. The mean and the variance of nothing are NaN, its sum is 0.

    Raises TypeError for other dtypes, ValueError for another op, a dimension given twice, or a maximum of no elements; IndexError for a dimension out
    of range."""

def rms_norm(input: Tensor, normalized_shape: Sequence[int] | int, weight: Tensor | None=None, eps: float | None=None, *, bias: Tensor | None=None, residual: Tensor | None=None, implementation: str | None=None) -> Any:
    """Each row over its root mean square, as `torch.nn.functional.rms_norm`, computed in float32.

    Args:
        input: float32, float16 or bfloat16, [..., *normalized_shape], any strides.
        normalized_shape: the last dimensions of `input`, which are normalised together.
        weight, bias: of `normalized_shape`, in the dtype of `input` or float32; None for none.
        eps: added to the mean of the squares. None: torch's default, the epsilon of float32.
        residual: added to `input` first; of its shape and dtype. What is normalised is the sum as it is returned, rounded to that dtype.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns y, of the shape and dtype of `input`; with `residual` the pair (y, input + residual).

    Raises TypeError for other dtypes, ValueError for shapes or devices that do not fit, an eps below 0, or an input that a named
    implementation cannot take."""

def rope(q: Tensor, k: Tensor | None=None, cos: Tensor | None=None, sin: Tensor | None=None, *, positions: Tensor | None=None, offset: int=0, theta: float=10000.0, layout: str='half', rotary_dim: int | None=None, order: str='bhsd', implementation: str | None=None) -> Tensor | tuple[Tensor, Tensor]:
    """Rotate `q`, and `k` where it is given, computed in float32 and rounded once. ``rope(q, k, cos, sin)`` is Hugging Face's apply_rotary_pos_emb.

    Args:
        q: float32, float16 or bfloat16, [B, H, S, D] (`order="bhsd"`) or [B, S, H, D] (`"bshd"`), or the same without B. Any strides; transposed views
            are read in place.
        k: as `q`, with any number of heads; None for none.
        cos, sin: tables in float32 or the dtype of `q`, [P, R / 2] or [B or 1, P, R / 2], R = `rotary_dim`; with R columns, each value twice as
            Hugging Face makes them, every other (interleaved) or the first half (half) is read. None: made from `theta`, as exact at far positions
            as at near ones.
        positions: int32 or int64, [S], [1, S] or [B, S]: the row of the tables, or the position, of each token. None: 0 to S - 1.
        offset: is added to them. It is a number of the call: a CUDA graph that was captured repeats it.
        theta: the base of the frequencies; read where there are no tables.
        layout: `"half"` (Llama, GPT-NeoX: element i goes with i + R / 2) or `"interleaved"` (GPT-J: 2i with 2i + 1).
        rotary_dim: how many leading elements of a head are rotated, even; the others are copied. None: all.
        order: which dimensions are heads and tokens.
        implementation: a kernel by name (`"cuda_sm80"`): it runs or raises. None picks the best that takes the input.

    Returns the rotated `q`, or (q, k), in new memory: with the strides of the input where that is dense, else as [B, S, H, D] lies. A token whose row
    is outside of the tables comes out as NaN in its rotated elements (`rooftop.debug()` tells it). The gradient is the rotation back; the tables have none.

    Raises TypeError for other dtypes, ValueError for shapes, devices or options that do not fit."""

def rope_(q: Tensor, k: Tensor | None=None, cos: Tensor | None=None, sin: Tensor | None=None, *, positions: Tensor | None=None, offset: int=0, theta: float=10000.0, layout: str='half', rotary_dim: int | None=None, order: str='bhsd', implementation: str | None=None) -> Tensor | tuple[Tensor, Tensor]:
    """Rotate `q`, and `k` where it is given, in place: arguments and errors as `rope`'s. What is not rotated is neither read nor written.

    Returns `q`, or (q, k), as they were given. Raises RuntimeError for tensors that require a gradient while gradients are on, ValueError for a tensor
    whose strides let one element of memory stand for several. `q` and `k` must not overlap."""

def sample(logits: Tensor, temperature: float=1.0, top_k: int | None=None, top_p: float=1.0, min_p: float=0.0, seed: int=0, *, implementation: str | None=None) -> Tensor:
    """One index drawn from each row of `logits`, along the last dimension. Deterministic: equal calls draw alike; another seed draws anew.

    Args:
        logits: float32, float16 or bfloat16, of any shape and strides with at least one dimension; the last one is the vocabulary.
        temperature: finite, at least 0. 0 is greedy: the largest logit, of equal ones the lowest index.
        top_k: only the so many largest can be drawn; at least 1. None: all.
        top_p: above 0, at most 1: of those only the largest that together have this share of the probability.
        min_p: 0 to 1: of those only those at least this many times as probable as the likeliest.
        seed: any whole number, of which the low 32 bits count. Row r (counted row-major) takes the random bits of elements 2 r and 2 r + 1.
        implementation: a kernel by name: it runs or raises. None picks the best that takes `logits`.

    Returns int64 of the shape of `logits` without the last dimension. -infinity and NaN are masked: they are never drawn. A row that is masked whole gives
    -1. Of rows with +infinity one of those is drawn. What is less than 2^-32 as probable as the likeliest is not drawn.

    Raises TypeError for other dtypes or arguments that are no numbers, ValueError for numbers out of these ranges, logits of no dimensions or an empty
    vocabulary, or where a named implementation cannot take `logits`."""

def scaled_matmul(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *, bias: Tensor | None=None, fast: bool=False, out_dtype: Any=None, implementation: str | None=None) -> Tensor:
    """scale_a · scale_b · a b + bias of fp8 or int8, rounded once.

    Fastest where both operands are contiguous along K: `b` a transposed [N, K] tensor. All other layouts are read in place too.

    Args:
        a: [M, K], float8_e4m3fn, float8_e5m2 or int8, any strides.
        b: [K, N], an fp8 dtype where `a` has one, else int8; any strides.
        scale_a, scale_b: float32; what they multiply, by their shapes:
            one element each: the whole of a, the whole of b;
            [M] or [M, 1], and [N] or [1, N]: rows of a and columns of b;
            [M, ceil(K / 128)] and [ceil(K / 128), ceil(N / 128)] (fp8 alone): 128 elements of a row of a, blocks of 128 x 128 of b.
        bias: [N], float32, float16 or bfloat16, added to each row; None for none.
        fast: lets tensor cores add fp8 products in fewer than 24 bits all along K, up to 4096 of them. Otherwise, for float32 results, and
            with scales of blocks, no more than 128 are, and their sums are added in float32.
        out_dtype: torch.bfloat16 (the default), torch.float16 or torch.float32. Values beyond its range become infinite, as everywhere.
        implementation: a kernel by name (`"gluon_sm90"`): it runs or raises. None picks the best that takes the input.

    int8 is summed exactly in 32 bits before it is scaled.

    Returns [M, N], the bias (or zeros) where K is 0.

    Raises TypeError for other dtypes; ValueError for shapes that do not fit, scales of other shapes or of two kinds, tensors on different devices, or
    int8 with K above 131071, where a sum could leave 32 bits."""

def sddmm_bsr(a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, block: tuple[int, int], *, alpha: float=1.0, implementation: str | None=None) -> Tensor:
    """The blocks of alpha · a bᵀ at the places of a pattern: the values of a BSR matrix, and the gradient of those of `rooftop.spmm_bsr`.

    Args:
        a: [M, N] float32, float16 or bfloat16.
        b: [K, N] in the dtype of `a`: rows of both are multiplied.
        columns: int32 [blocks], the block column of each, 0 to ceil(K / W) - 1; others are cut to that. `rooftop.debug()` tells.
        offsets: int32 [ceil(M / H) + 1], not decreasing, from 0 to blocks. A block that is in no row is zeros; of one that is in several it is not said
            which counts.
        block: (H, W), rows and columns of a block, each 8, 16, 32, 64 or 128.
        alpha: scale.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns [blocks, H, W] in the dtype of `a`, zeros beyond M and K, summed in float32 (never TF32) and rounded once. Gradients flow to `a` and `b`.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit or tensors on different devices."""

def sddmm_csr(a: Tensor, b: Tensor, columns: Tensor, offsets: Tensor, *, alpha: float=1.0, implementation: str | None=None) -> Tensor:
    """The elements of alpha · a bᵀ at the places of a pattern: the values of a CSR matrix, and the gradient of those of `rooftop.spmm_csr`.

    Args:
        a: [M, N] float32, float16 or bfloat16.
        b: [K, N] in the dtype of `a`: rows of both are multiplied.
        columns: int32 [nnz], 0 to K - 1; others are cut to that. `rooftop.debug()` tells.
        offsets: int32 [M + 1], not decreasing, from 0 to nnz: row m has the elements offsets[m] to offsets[m + 1] - 1. An element that is in no row is 0;
            of one that is in several it is not said which row counts.
        alpha: scale.
        implementation: a kernel by name (`"cuda_sm80"`): it runs or raises. None picks the best that takes the input.

    Returns [nnz] in the dtype of `a`, summed in float32 (never TF32) and rounded once. Gradients flow to `a` and `b`.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit or tensors on different devices."""

def silu(input: Tensor, *, implementation: str | None=None) -> Tensor:
    """x · sigmoid(x), as `torch.nn.functional.silu`, computed in float32 and rounded once.

    Args:
        input: float32, float16 or bfloat16, any shape and strides.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns a tensor of the shape and dtype of `input`.

    Raises TypeError for other dtypes, ValueError for an input that a named implementation cannot take."""

def softmax(x: Tensor, dim: int=-1, *, implementation: str | None=None) -> Tensor:
    """Softmax of `x` along `dim`, computed in float32 and rounded once.

    Args:
        x: float32, float16 or bfloat16, any shape and strides with at least one dimension.
        dim: the dimension that sums to one; negative counts from the last.
        implementation: a kernel by name (`"triton"`, `"cuda_sm90"`): it runs or raises. None picks the best that takes `x`.

    Returns a tensor of the shape, dtype and device of `x`. A row that holds NaN or +inf, or only -inf, comes out as NaN.

    Raises TypeError for anything but a floating tensor of these dtypes, IndexError for a `dim` out of range, ValueError for no dimensions or where a
    named implementation cannot take `x`.

    Source: Milakov & Gimelshein 2018 (arXiv 1805.02867)."""

def sort(x: Tensor, dim: int=-1, descending: bool=False, *, lengths: Tensor | None=None, nan: str='largest', implementation: str | None=None) -> tuple[Tensor, Tensor]:
    """The elements of each row along `dim` in order, and their indices. Always stable: of equal elements that with the lower index comes first.

    Args:
        x: float32, float16, bfloat16, int32 or int64, of any shape and strides with at least one dimension.
        dim: the dimension along which rows lie; negative counts from the last.
        descending: whether the largest come first.
        lengths: int32 or int64 of the shape of `x` without `dim`: only so many elements of each row are sorted. None: all.
        nan: "largest": NaN is above +infinity; "smallest": below -infinity; "error": a NaN is a ValueError, for which the call waits for the device.
        implementation: a kernel by name: it runs or raises. None picks the best that takes `x`.

    Returns (values, indices) of the shape of `x`; `indices` is int64. -0.0 equals +0.0, and values are the elements as they stand. Elements beyond a row's
    length stay where they are. A length below 0 counts as 0, one above the row as the row; `rooftop.debug()` raises IndexError for it. Gradients flow
    from `values` to `x`.

    Raises TypeError for other dtypes, ValueError for nan or lengths that do not fit, or where a named implementation cannot take `x`; IndexError for a
    `dim` out of range."""

def spmm_24(values: Tensor, meta: Tensor, b: Tensor, *, bias: Tensor | None=None, alpha: float=1.0, activation: str='none', transposed: bool=False, implementation: str | None=None) -> Tensor:
    """act(alpha · S b + bias), S a 2:4 sparse [M, K], summed in float32 and rounded once. `rooftop.sparse.SparseTensor` holds `values` and `meta`.

    Args:
        values: [M, 2 ceil(K / 4)] float16 or bfloat16: the two kept of each group of four, in their order.
        meta: int32 [ceil(M / 16), ceil(K / 256), 32, 4]: their places; rooftop/sparse/two_four.py says bit by bit how. Words that name one place
            twice, or two out of order, give some number in that row.
        b: [K, N] in the dtype of `values`; rows or columns may be the neighbours in memory.
        bias: [M, 1] or [1, N] in the same dtype, added to each column or each row; None for none.
        alpha: scale of the product.
        activation: "none", "relu", "silu", "gelu" or "gelu_tanh", of the sum.
        transposed: give the transposed result, [N, M], contiguous: a linear layer's, where b is the transposed input.
        implementation: a kernel by name (`"cuda_sm90"`): it runs or raises. None picks the best that takes the input.

    Where b holds infinities or NaN, whether a zero of S meets them is not said.
    Gradients flow to `values`, `b` and `bias`.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit, an unknown activation, or tensors on different devices."""

def spmm_bsr(values: Tensor, columns: Tensor, offsets: Tensor, b: Tensor, *, rows: int | None=None, bias: Tensor | None=None, alpha: float=1.0, activation: str='none', implementation: str | None=None) -> Tensor:
    """act(alpha · S b + bias), S [M, K] of blocks of H rows and W columns, summed in float32 (never TF32) and rounded once.

    Args:
        values: [blocks, H, W] float32, float16 or bfloat16, H and W powers of two from 8 to 128. The last block row and block column may reach beyond M and
            K; what lies there is multiplied with nothing.
        columns: int32 [blocks], the block column of each, 0 to ceil(K / W) - 1; others are cut to that. `rooftop.debug()` tells. The same may come several
            times.
        offsets: int32 [ceil(M / H) + 1], not decreasing, from 0 to blocks: block row r has the blocks offsets[r] to offsets[r + 1] - 1. Offsets outside that
            are cut to it.
        b: [K, N] in the dtype of `values`, any strides.
        rows: M; None for all rows of the block rows.
        bias: [M, 1] or [1, N] in the same dtype, added to each column or each row; None for none.
        alpha: scale of the product.
        activation: "none", "relu", "silu", "gelu" or "gelu_tanh", of the sum.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Blocks that S does not hold meet nothing: infinities and NaN of b show only where a block stands. Gradients flow to `values`, `b` and `bias`.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit, an unknown activation, or tensors on different devices."""

def spmm_csr(values: Tensor, columns: Tensor, offsets: Tensor, b: Tensor, *, bias: Tensor | None=None, alpha: float=1.0, activation: str='none', implementation: str | None=None) -> Tensor:
    """act(alpha · S b + bias), S [M, K] in compressed rows, summed in float32 (never TF32) and rounded once. Row m of S has the elements offsets[m] to
    offsets[m + 1] - 1 of `values`, in the columns `columns`. The same column may come several times in a row, in any order: products add up.

    Args:
        values: [nnz] float32, float16 or bfloat16.
        columns: int32 [nnz], 0 to K - 1; others are cut to that. `rooftop.debug()` tells.
        offsets: int32 [M + 1], not decreasing, from 0 to nnz. Offsets outside that are cut to it; which elements then belong to which row is not said.
        b: [K, N] in the dtype of `values`.
        bias: [M, 1] or [1, N] in the same dtype, added to each column or each row; None for none.
        alpha: scale of the product.
        activation: "none", "relu", "silu", "gelu" or "gelu_tanh", of the sum.
        implementation: a kernel by name (`"cuda_sm80"`): it runs or raises. None picks the best that takes the input.

    What S does not hold meets nothing: infinities and NaN of b show only where an element of S stands. The order of the sums depends on shapes and the
    card alone. Gradients flow to `values`, `b` and `bias`.

    Raises TypeError for other dtypes, ValueError for shapes that do not fit, an unknown activation, or tensors on different devices."""

def square(input: Tensor, *, implementation: str | None=None) -> Tensor:
    """x · x, as `torch.square`, rounded once.

    Args:
        input: float32, float16 or bfloat16, any shape and strides.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns a tensor of the shape and dtype of `input`.

    Raises TypeError for other dtypes, ValueError for an input that a named implementation cannot take."""

def swiglu(a: Tensor, b: Tensor | None=None, *, implementation: str | None=None) -> Tensor:
    """silu(a) · b, computed in float32 and rounded once.

    Args:
        a: the gate: float32, float16 or bfloat16, any shape and strides.
        b: what is gated, as `a` in shape and dtype. None: `a` holds both, [..., 2 C], the gate first.
        implementation: a kernel by name (`"triton"`): it runs or raises. None picks the best that takes the input.

    Returns a tensor of the shape of `a`, or [..., C] where it is packed, in its dtype.

    Raises TypeError for other dtypes or two different ones, ValueError for shapes that do not fit, a packed last dimension that is odd, or an
    input that a named implementation cannot take."""

def topk(x: Tensor, k: int, dim: int=-1, largest: bool=True, sorted: bool=True, *, lengths: Tensor | None=None, tie: str='lowest', nan: str='largest', implementation: str | None=None) -> tuple[Tensor, Tensor]:
    """The `k` largest (or smallest) elements of each row along `dim`, in order, and their indices. Exact; equal calls give equal bits.

    Args:
        x: float32, float16, bfloat16, int32 or int64, of any shape and strides with at least one dimension.
        k: how many, 0 to the row's elements.
        dim: the dimension along which rows lie; negative counts from the last.
        largest: whether the largest come first, or the smallest.
        sorted: False allows any order of the k. The kernels of today sort them anyway.
        lengths: int32 or int64 of the shape of `x` without `dim`: only so many elements of each row take part. None: all.
        tie: "lowest": of equal elements that with the lowest index comes first. "any" leaves it open; the kernels of today give the lowest.
        nan: "largest": NaN is above +infinity; "smallest": below -infinity; "error": a NaN is a ValueError, for which the call waits for the device.
        implementation: a kernel by name: it runs or raises. None picks the best that takes `x`.

    Returns (values, indices): `values` of the dtype of `x`, `indices` int64, both of the shape of `x` with k along `dim`. -0.0 equals +0.0, and values are
    the elements as they stand. A row of fewer than k elements has index -1 beyond them, and there the order's last value: -infinity (integers: the least)
    for the largest, +infinity (the greatest) for the smallest. A length below 0 counts as 0, one above the row as the row;
    `rooftop.debug()` raises IndexError for it. Gradients flow from `values` to `x`.

    Raises TypeError for other dtypes, ValueError for k, tie, nan or lengths that do not fit, or where a named implementation cannot take `x`; IndexError
    for a `dim` out of range."""

def topk_mask(x: Tensor, k: int, dim: int=-1, largest: bool=True, *, lengths: Tensor | None=None, nan: str='largest', implementation: str | None=None) -> Tensor:
    """True at the `k` largest (or smallest) elements of each row along `dim`, False elsewhere. Exactly k of a row, of equal elements those with the lowest
    indices.

    Args:
        x: float32, float16, bfloat16, int32 or int64, of any shape and strides with at least one dimension.
        k: how many, 0 to the row's elements.
        dim: the dimension along which rows lie; negative counts from the last.
        largest: whether the largest are marked, or the smallest.
        lengths: int32 or int64 of the shape of `x` without `dim`: only so many elements of each row take part; the others are False. None: all.
        nan: "largest": NaN is above +infinity; "smallest": below -infinity; "error": a NaN is a ValueError, for which the call waits for the device.
        implementation: a kernel by name: it runs or raises. None picks the best that takes `x`.

    Returns bool of the shape of `x`. A row of fewer than k elements is True up to its length. -0.0 equals +0.0. A length below 0 counts as 0, one above
    the row as the row; `rooftop.debug()` raises IndexError for it.

    Raises TypeError for other dtypes, ValueError for k, nan or lengths that do not fit, or where a named implementation cannot take `x`; IndexError for
    a `dim` out of range."""

def transpose(x: Tensor, dim0: int, dim1: int, *, implementation: str | None=None) -> Tensor:
    """`x` with `dim0` and `dim1` exchanged, as a new contiguous tensor. Every element keeps its bits.

    Args:
        x: elements of 1, 2, 4 or 8 bytes of any dtype, any shape and strides with at least one dimension.
        dim0, dim1: the two dimensions; negative ones count from the last. They may be the same: then the result is a contiguous copy.
        implementation: a kernel by name (`"cuda_sm80"`): it runs or raises. None picks the best that takes `x`.

    Returns a contiguous tensor with the dtype and device of `x`. It never shares memory with `x`.

    Raises TypeError for anything but a tensor, for elements of another size, or where `x` requires a gradient and is complex; IndexError for a
    dimension out of range; ValueError for no dimensions or where a named implementation cannot take `x`."""

def load(path: str | Path, *, source: str | None=None) -> Any:
    """A `.cu` file with a head (docs/head.md) as a callable on CUDA tensors: ``y = rooftop.load("my.cu")(x, dim=1)``.

    Args:
        path: the file. `source` gives its text where it is not on disk; `path` then only names it.

    Returns a callable that takes the op's tensors and options by name or in the contract's order and returns its outputs. It is compiled by
    NVRTC at the first call and cached on disk.

    Raises HeadError for a missing or malformed head, CompileError with the compiler's text and your line, UnsupportedError for an input that
    the head's `requires` refuse, RuntimeError for an input that requires a gradient while gradients are on: what was loaded has none."""

def register() -> None:
    """Register every op with `torch.library`, as an exported program that is loaded in a new process needs."""

def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `function(*args, **kwargs)` would run, and why not the others: ``print(rooftop.explain(rooftop.softmax, x))``.

    `function` is a public op. Returns an Explanation; its text names the implementation, config, launches and rejected ones."""

def debug(enabled: bool=True) -> AbstractContextManager[None]:
    """Check what only the device can see, and wait for every kernel: ``with rooftop.debug(): loss = rooftop.cross_entropy(x, target)``.

    Indices, offsets and page tables that are out of range give a harmless result, which each op's docstring states, and never a write outside the
    output. Under `debug` they are an IndexError that names the op, and what the driver reports is raised by the call that caused it. Applies to the
    whole process until the block ends. Every call synchronises with the device: for finding faults, not for production."""
