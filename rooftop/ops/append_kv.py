"""Write new keys and values into a KV cache, in place: contiguous or paged, ragged batches, with rotation (RoPE) of the keys and 8-bit
codes on the way.

    k_cache[page, row, h] = encode(rotate(k[token, h])), v_cache[page, row, h] = encode(v[token, h])
    position = lengths[b] + index of the token among those of its sequence b; page = page_table[b, position // page_size], row = position %
    page_size

A contiguous cache has a page for each sequence: page = b, row = position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import among, apart, written
from rooftop.core.op import Calls, Op, Sizes, Tolerance, Values
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.ops._kv_peers import flashinfer_append, index_put
from rooftop.ops._peers import compiled
from rooftop.ops._rotary import angles, integers, rotary_size, rotated, tables

if TYPE_CHECKING:
    from torch import Tensor

LIMITS = {"torch.float8_e4m3fn": 448.0, "torch.float8_e5m2": 57344.0}  # the largest finite value of an 8-bit cache


def append_kv(
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    *,
    page_table: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    new_lengths: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    layout: str = "half",
    rotary_dim: int | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    implementation: str | None = None,
) -> None:
    """Append `k` and `v` to the cache, in one launch. ``append_kv(k_cache, v_cache, k, v, lengths)`` is a decode step with N = 1.

    Layout of a paged cache: `k_cache[p]` is page p, with `page_size` tokens of all heads. Token t of sequence b (t counts from 0 over the
    whole sequence) is ``k_cache[page_table[b, t // page_size], t % page_size]``; entries of `page_table` after the last page in use are not
    read. Pass a cache that is stored head by head ([pages, H, page_size, D] in memory) as ``cache.transpose(1, 2)``: any strides are
    supported.

    Args:
        k_cache, v_cache: written into. [B, S_max, H, D] (contiguous cache: a sequence a row), or with `page_table` [pages, page_size, H,
            D], any page size. float32, float16 or bfloat16 as `k`, or float8_e4m3fn or float8_e5m2.
        k, v: float32, float16 or bfloat16, [B, N, H, D] (N new tokens for each sequence), or with `cu_seqlens` [T, H, D].
        lengths: int32 or int64 [B], the number of tokens that each sequence already has in the cache. It is not changed.
        page_table: int32 or int64 [B, pages of a sequence].
        cu_seqlens: int32 or int64 [B + 1], non-decreasing: tokens cu_seqlens[b] to cu_seqlens[b + 1] - 1 of `k` and `v` belong to sequence
            b.
        new_lengths: int32 or int64 [B]: of a padded batch [B, N, H, D] only the first new_lengths[b] tokens are written. Not with
            `cu_seqlens`.
        cos, sin: tables that rotate the keys (see `rooftop.rope`), [P, R / 2], float32 or the dtype of `k`; a token uses the row of its
            position.
        layout, rotary_dim: as `rope`'s.
        k_scale, v_scale: float32 [1] or [H], for an 8-bit cache only: codes are k / k_scale, rounded to nearest and clamped to the largest
            finite value; reading multiplies by the scale. None: 1.
        implementation: name of a kernel (`"cuda_sm80"`), which runs or raises. None selects the best one that supports the input.

    A token is not written if its position is negative or beyond the cache, the page table or the tables of the rotation, or if its page is
    not in the cache; nothing else is written either, and `rooftop.debug()` reports it. If two tokens have the same slot (a page table with
    repeated entries), each element comes from one of them. `k_cache`, `v_cache`, `k` and `v` must not overlap. No gradient flows through
    the cache.

    Raises TypeError for other dtypes, ValueError for shapes, devices or options that do not fit, RuntimeError if the cache requires a
    gradient."""
    import torch

    op = "append_kv"
    for name, t in (("k_cache", k_cache), ("v_cache", v_cache), ("k", k), ("v", v)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{op}: {name} is a {type(t).__name__}; it must be a tensor")
        if t.device != k_cache.device:
            raise ValueError(f"{op}: k_cache lies on {k_cache.device} and {name} on {t.device}; they must be on one device")
    for name, t in (("k", k), ("v", v)):
        if t.dtype not in (torch.float32, torch.float16, torch.bfloat16) or t.dtype != k.dtype:
            raise TypeError(
                f"{op}: {name} is {t.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16, alike for k ({k.dtype}) and v"
            )
    for name, t in (("k_cache", k_cache), ("v_cache", v_cache)):
        if (t.dtype != k.dtype and str(t.dtype) not in LIMITS) or t.dtype != k_cache.dtype:
            raise TypeError(
                f"{op}: {name} is {t.dtype}; accepted are {k.dtype}, {', '.join(LIMITS)}, alike for k_cache ({k_cache.dtype}) and v_cache"
            )
        if t.dim() != 4 or t.shape != k_cache.shape:
            raise ValueError(
                f"{op}: k_cache has shape {tuple(k_cache.shape)} and {name} {tuple(t.shape)}; both must be the same, of 4 dimensions"
            )
        written(op, name, t)
    rank = 4 if cu_seqlens is None else 3
    if k.dim() != rank or v.shape != k.shape or k.shape[-2:] != k_cache.shape[2:]:
        raise ValueError(
            f"{op}: k has shape {tuple(k.shape)} and v {tuple(v.shape)}; both must be {'[B, N, H, D]' if rank == 4 else '[T, H, D]'} with "
            f"heads and columns "
            f"{tuple(k_cache.shape[2:])} as the cache's"
        )
    if not isinstance(lengths, torch.Tensor) or lengths.dim() != 1:
        raise _error(lengths)(f"{op}: lengths is {_description(lengths)}; it must be an int32 or int64 tensor [B]")
    batch = lengths.shape[0]
    integers(op, "lengths", lengths, ((batch,),), k.device)
    if (rank == 4 and k.shape[0] != batch) or (page_table is None and k_cache.shape[0] != batch):
        raise ValueError(
            f"{op}: lengths has {batch} sequences, k shape {tuple(k.shape)} and k_cache {tuple(k_cache.shape)}; without page_table all "
            f"have the same B"
        )
    if page_table is not None:
        if not isinstance(page_table, torch.Tensor) or page_table.dim() != 2:
            raise _error(page_table)(f"{op}: page_table is {_description(page_table)}; it must be [{batch}, pages]")
        integers(op, "page_table", page_table, ((batch, page_table.shape[1]),), k.device)
    if cu_seqlens is not None:
        integers(op, "cu_seqlens", cu_seqlens, ((batch + 1,),), k.device)
    if new_lengths is not None:
        if cu_seqlens is not None:
            raise ValueError(f"{op}: new_lengths and cu_seqlens are both given; cu_seqlens says how many tokens are new")
        integers(op, "new_lengths", new_lengths, ((batch,),), k.device)
    size = rotary_size(op, 0 if cos is None and rotary_dim is None else rotary_dim, k.shape[-1], layout)
    found_cos, found_sin = tables(op, cos, sin, size, layout, k, 1)
    if found_cos is None and size:
        raise ValueError(f"{op}: rotary_dim is {size}, and there are no tables; give cos and sin")
    limit = LIMITS.get(str(k_cache.dtype), 0.0)
    for name, t in (("k_scale", k_scale), ("v_scale", v_scale)):
        if t is None:
            continue
        if not isinstance(t, torch.Tensor) or t.dtype != torch.float32:
            raise TypeError(f"{op}: {name} is {_description(t)}; it must be a tensor of torch.float32")
        if not limit or not among(tuple(t.shape), ((1,), (k.shape[-2],))) or t.device != k.device:
            raise ValueError(
                f"{op}: {name} has shape {tuple(t.shape)} on {t.device}; it must be (1,) or ({k.shape[-2]},) on {k.device}, "
                f"with a cache of 8 bits, not {k_cache.dtype}"
            )
    apart(op, "k_cache", k_cache, "v_cache", v_cache)
    if rank == 3:
        k, v = k.unsqueeze(0), v.unsqueeze(0)
    OP(
        k_cache, v_cache, k, v, lengths, page_table, cu_seqlens, new_lengths, found_cos, found_sin, k_scale, v_scale, layout, size, limit,
        implementation=implementation,
    )


def _error(t: Any) -> type[Exception]:
    return ValueError if hasattr(t, "dtype") else TypeError


def _description(t: Any) -> str:
    return f"{t.dtype} {tuple(t.shape)}" if hasattr(t, "dtype") else f"a {type(t).__name__}"


def _places(
    k: Tensor, lengths: Tensor, page_table: Tensor | None, cu_seqlens: Tensor | None, new_lengths: Tensor | None, page_size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For each token: its sequence, its position, its page (-1 where there is none), and whether it is one of its sequence's."""
    import torch

    count, device = k.shape[0] * k.shape[1], k.device
    token = torch.arange(count, device=device)
    batch = lengths.shape[0]
    if cu_seqlens is None:
        sequence, index = token // max(k.shape[1], 1), token % max(k.shape[1], 1)
        real = torch.ones_like(token, dtype=torch.bool) if new_lengths is None else index < new_lengths.long()[sequence]
    else:
        starts = cu_seqlens.long()
        sequence = (torch.searchsorted(starts, token, right=True) - 1).clamp(0, max(batch - 1, 0))
        real = (token >= starts[0]) & (token < starts[-1])
        index = token - starts[sequence] if batch else token
    if batch == 0:
        return token, token, token.new_full((count,), -1), token < 0
    position = lengths.long()[sequence] + index
    if page_table is None:
        return sequence, position, torch.where((position >= 0) & (position < page_size), sequence, -1), real
    entry = torch.div(position, max(page_size, 1), rounding_mode="floor")
    inside = (entry >= 0) & (entry < page_table.shape[1]) if page_size else torch.zeros_like(real)
    pages = page_table.long()[sequence, entry.clamp(0, max(page_table.shape[1] - 1, 0))] if page_table.shape[1] else entry
    return sequence, position, torch.where(inside, pages, -1), real


def reference(
    k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor, page_table: Tensor | None, cu_seqlens: Tensor | None,
    new_lengths: Tensor | None, cos: Tensor | None, sin: Tensor | None, k_scale: Tensor | None, v_scale: Tensor | None, layout: str,
    rotary_dim: int, limit: float,
) -> None:
    """k, v [B, N, H, D], or [1, T, H, D] with cu_seqlens; `limit`: the largest finite value of an 8-bit cache, else 0."""
    import torch

    pages, page_size = k_cache.shape[:2]
    _, position, page, kept = _places(k, lengths, page_table, cu_seqlens, new_lengths, page_size)
    kept = kept & (page >= 0) & (page < pages)
    if cos is not None and sin is not None:
        kept = kept & (position >= 0) & (position < cos.shape[1])
        c, s = angles(position.view(1, -1), cos, sin, rotary_dim, 1.0, k)
        k = rotated(k.flatten(0, 1)[None], c, s, layout, rotary_dim)
    page, row = page[kept], position[kept] % max(page_size, 1)
    for cache, x, scale in ((k_cache, k, k_scale), (v_cache, v, v_scale)):
        x = x.flatten(0, 1)[kept]
        if limit:
            x = (x if scale is None else x / scale[:, None]).clamp(-limit, limit)
        values = x.to(cache.dtype)
        if cache.element_size() == 1:  # torch writes no 8-bit floats by index
            cache.view(torch.uint8)[page, row] = values.view(torch.uint8)
        else:
            cache[page, row] = values


def cpu(
    k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor, page_table: Tensor | None, cu_seqlens: Tensor | None,
    new_lengths: Tensor | None, cos: Tensor | None, sin: Tensor | None, k_scale: Tensor | None, v_scale: Tensor | None, layout: str,
    rotary_dim: int, limit: float,
) -> Any:
    """Whole rows of contiguous caches, for which there is room."""
    if limit or page_table is not None or cu_seqlens is not None or new_lengths is not None or cos is not None or not lengths.numel():
        return NotImplemented
    count, starts = k.shape[1], lengths.tolist()
    first, last = min(starts), max(starts)
    if first < 0 or last + count > k_cache.shape[1]:
        return NotImplemented
    if first == last:
        at = slice(first, first + count)
        k_cache[:, at], v_cache[:, at] = k, v
        return None
    for b, start in enumerate(starts):
        at = slice(start, start + count)
        k_cache[b, at], v_cache[b, at] = k[b], v[b]
    return None


def faults(
    k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor, page_table: Tensor | None, cu_seqlens: Tensor | None,
    new_lengths: Tensor | None, cos: Tensor | None, sin: Tensor | None, k_scale: Tensor | None, v_scale: Tensor | None, layout: str,
    rotary_dim: int, limit: float,
) -> str | None:
    if cu_seqlens is not None and cu_seqlens.numel():
        starts = cu_seqlens.long()
        if bool((starts[1:] < starts[:-1]).any()) or int(starts[0]) != 0 or int(starts[-1]) != k.shape[1]:
            return f"cu_seqlens goes from {int(starts[0])} to {int(starts[-1])}; it must rise from 0 to {k.shape[1]}, the tokens of k"
    if new_lengths is not None and new_lengths.numel() and (int(new_lengths.max()) > k.shape[1] or int(new_lengths.min()) < 0):
        return f"new_lengths is {int(new_lengths.min())} to {int(new_lengths.max())}; it must be 0 to {k.shape[1]}, the tokens of k"
    pages, page_size = k_cache.shape[:2]
    sequence, position, page, real = _places(k, lengths, page_table, cu_seqlens, new_lengths, page_size)
    room = page_size if page_table is None else page_size * page_table.shape[1]
    rows = room if cos is None else min(room, cos.shape[1])
    if bool((bad := real & ((position < 0) | (position >= rows))).any()):
        what = "the tables of the rotation have" if rows < room else "a sequence has room for"
        return f"a token of sequence {int(sequence[bad][0])} has position {int(position[bad][0])}; {what} {rows}"
    if bool((bad := real & ((page < 0) | (page >= pages))).any()):
        entry = int(position[bad][0]) // page_size
        return f"page_table[{int(sequence[bad][0])}, {entry}] is {int(page[bad][0])}; the cache has {pages} pages"
    return None


def public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The call of a case; tables of other than R / 2 columns have none: the public function reads half of R columns."""
    if tensors["cos"] is not None and tensors["cos"].shape[2] != options["rotary_dim"] // 2:
        return None
    k, v = (t if tensors["cu_seqlens"] is None else t.squeeze(0) for t in (tensors["k"], tensors["v"]))
    named = {n: tensors[n] for n in ("page_table", "cu_seqlens", "new_lengths", "cos", "sin", "k_scale", "v_scale")}
    rotary = None if tensors["cos"] is None else options["rotary_dim"]
    return (tensors["k_cache"], tensors["v_cache"], k, v, tensors["lengths"]), {**named, "layout": options["layout"], "rotary_dim": rotary}


def outputs(k_cache: Meta, **_: Any) -> dict[str, Meta]:
    return {}


def canonical(p: Problem) -> Problem | None:
    """As it is; None where neighbours of a head are not neighbours in memory."""
    heads = [p[n] for n in ("k_cache", "v_cache", "k", "v")]
    cos, sin = p.get("cos"), p.get("sin")
    lists = [m for n in ("lengths", "cu_seqlens", "new_lengths", "k_scale", "v_scale") if (m := p.get(n)) is not None]
    if any(m.shape[3] > 1 and m.strides[3] != 1 for m in heads) or any(m.shape[0] > 1 and m.strides[0] != 1 for m in lists):
        return None
    return p if cos is None or sin is None or cos.strides == sin.strides else None


def work(p: Problem) -> Work:
    """K and V read once and written once in the cache's dtype, where all tokens fit; a number of each sequence, a page of each token at
    most."""
    k, cache = p["k"], p["k_cache"]
    tokens = k.shape[0] * k.shape[1]
    read = 2 * k.nbytes + sum(
        m.nbytes for n in ("lengths", "cu_seqlens", "new_lengths", "k_scale", "v_scale") if (m := p.get(n)) is not None
    )
    if (pages := p.get("page_table")) is not None:
        read += pages.itemsize * min(pages.numel, p["lengths"].shape[0] + tokens // max(cache.shape[1], 1))
    read += sum(min(m.nbytes, tokens * m.shape[2] * m.itemsize) for n in ("cos", "sin") if (m := p.get(n)) is not None)
    return Work(read, 2 * k.numel * cache.itemsize, {"fma32": 2.0 * tokens * k.shape[2] * int(p.option("rotary_dim"))})


def fixup(tensors: Mapping[str, Any], options: Mapping[str, Any], generator: Any) -> dict[str, Any]:
    """Offsets that rise, pages of which none comes twice (those that are missing stand outside of the cache), scales above 0."""
    import torch

    found: dict[str, Any] = {}
    cache, k, lengths = tensors["k_cache"], tensors["k"], tensors["lengths"]
    if (starts := tensors["cu_seqlens"]) is not None:
        inner = torch.randint(0, k.shape[1] + 1, (starts.numel() - 2,), generator=generator, device=k.device).sort().values
        found["cu_seqlens"] = torch.cat((inner.new_zeros(1), inner, inner.new_full((1,), k.shape[1]))).to(starts.dtype)
    if (table := tensors["page_table"]) is not None:
        pages = torch.randperm(cache.shape[0], generator=generator, device=k.device)[: table.numel()]
        missing = torch.tensor(
            [-1, cache.shape[0], 2**31 - 1, -(2**31)], device=k.device
        ).repeat(table.numel())[: table.numel() - pages.numel()]
        mixed = torch.cat((pages, missing))[torch.randperm(table.numel(), generator=generator, device=k.device)]
        found["page_table"] = mixed.view(table.shape).to(table.dtype)
    for name in ("k_scale", "v_scale"):
        if (scale := tensors[name]) is not None:
            found[name] = scale.abs() * 0.02 + 0.003
    if tensors["new_lengths"] is None and cu_wide(tensors):  # decode of a long cache: anywhere in it
        room = cache.shape[1] if table is None else cache.shape[1] * table.shape[1]
        found["lengths"] = torch.randint(
            0, max(room - k.shape[1] + 1, 1), lengths.shape, generator=generator, device=k.device
        ).to(lengths.dtype)
    return found


def cu_wide(tensors: Mapping[str, Any]) -> bool:
    """Whether the room of a sequence is far more than the random lengths reach."""
    table = tensors["page_table"]
    return bool(tensors["cu_seqlens"] is None and tensors["k_cache"].shape[1] * (1 if table is None else table.shape[1]) >= 1024)


def _swept(dtype: str, sequences: int, tokens: int, heads: int, head: int) -> dict[str, Any]:
    """Into pages of 16 tokens, behind 1024 tokens of each sequence at most."""
    pages = -(-(tokens + 1024) // 16)
    cache, new = Input((sequences * pages, 16, heads, head), dtype), Input((sequences, tokens, heads, head), dtype)
    return {"k_cache": cache, "v_cache": cache, "k": new, "v": new, "lengths": Input((sequences,), "i32", "below 1025"),
            "page_table": Input((sequences, pages), "i32"), "layout": "half", "rotary_dim": 0, "limit": 0.0}


def _cases() -> list[Case]:
    def call(
        b: int, n: int, h: int, d: int, t: str, room: int, *, cache: str = "", pages: tuple[int, int] | None = None, ragged: bool = False,
        new: bool = False, rope: Mapping[str, Any] = MappingProxyType({}), scales: int = 0, wide: bool = False, below: int = 0,
        fill: str = "normal", lies: tuple[str, str] = ("contiguous", "contiguous"),
    ) -> dict[str, Any]:
        """Room for a sequence; `pages`: of the cache, and tokens of a page; lengths below `below`, else so that all fits. `rope`: rows of
        the tables, and what
        else differs; `lies`: the layouts of the cache and of what is appended."""
        count = "i64" if wide else "i32"
        kept = (b, room) if pages is None else pages
        into = Input((*kept, h, d), cache or t, layout=lies[0])
        x = Input((1, b * n, h, d) if ragged else (b, n, h, d), t, fill, lies[1])
        r = rope.get("r", d) if rope else 0
        table = Input((1, rope["rows"], r // 2), rope.get("tables", "f32")) if rope else None
        scale = Input((scales,), "f32") if scales else None
        longest = b * n if ragged else n
        return {
            "k_cache": into, "v_cache": into, "k": x, "v": x, "lengths": Input((b,), count, f"below {below or max(room - longest + 1, 1)}"),
            "page_table": Input((b, -(-room // pages[1])), count) if pages else None,
            "cu_seqlens": Input((b + 1,), count) if ragged else None, "new_lengths": Input((b,), count, f"below {n + 2}") if new else None,
            "cos": table, "sin": table, "k_scale": scale, "v_scale": scale, "layout": rope.get("layout", "half"), "rotary_dim": r,
            "limit": {"f8e4m3": 448.0, "f8e5m2": 57344.0}.get(cache, 0.0),
        }

    bench = [
        case("prefill 256 MiB", tags="bench model", **call(8, 4096, 8, 128, "bf16", 8192)),
        case("prefill, pages of 16, 256 MiB", tags="bench model", **call(8, 4096, 8, 128, "bf16", 8192, pages=(4096, 16))),
        case("prefill, rotated, 256 MiB", tags="bench", **call(8, 4096, 8, 128, "bf16", 8192, pages=(1024, 64), rope={"rows": 8192})),
        case("prefill, ragged, 256 MiB", tags="bench", **call(16, 2048, 8, 128, "bf16", 65536, pages=(16384, 64), ragged=True)),
        case("prefill, fp8, 192 MiB", tags="bench", **call(8, 4096, 8, 128, "bf16", 8192, cache="f8e4m3", pages=(4096, 16), scales=1)),
        case("prefill 32 MiB", tags="bench", **call(1, 4096, 8, 128, "bf16", 8192, pages=(1024, 16))),
        case("decode 1", tags="bench", why="a launch and little else", **call(1, 1, 8, 128, "bf16", 8192, pages=(512, 16))),
        case("decode 64, rotated", tags="bench", **call(64, 1, 8, 128, "bf16", 8192, pages=(32768, 16), rope={"rows": 8192})),
        case("decode 256", tags="bench", **call(256, 1, 8, 128, "bf16", 1024, pages=(16384, 16))),
    ]
    edge = []
    for t in ("f32", "f16", "bf16"):
        edge += [
            case("no sequence", tags="edge", **call(0, 1, 2, 16, t, 8)),
            case("no tokens", tags="edge", **call(2, 0, 2, 16, t, 8)),
            case("no room", tags="edge", **call(2, 3, 2, 16, t, 0)),
            case("one token", tags="edge", **call(1, 1, 1, 64, t, 9)),
            case("decode", tags="edge", **call(3, 1, 2, 128, t, 17)),
            case("several tokens", tags="edge", **call(3, 5, 2, 80, t, 17, wide=True)),
            case("pages", tags="edge", **call(3, 5, 2, 64, t, 24, pages=(12, 8))),
            case("pages of 5", tags="edge", **call(3, 7, 2, 96, t, 23, pages=(20, 5), wide=True)),
            case("pages of one token", tags="edge", **call(2, 3, 2, 64, t, 9, pages=(31, 1))),
            case("pages are missing", tags="edge", **call(4, 9, 2, 64, t, 20, pages=(9, 4))),
            case("beyond the cache", tags="edge", **call(3, 5, 2, 64, t, 8, below=12)),
            case("beyond the page table", tags="edge", **call(3, 5, 2, 64, t, 8, pages=(11, 4), below=12)),
            case("ragged", tags="edge", **call(4, 6, 2, 64, t, 40, ragged=True)),
            case("ragged, pages", tags="edge", **call(5, 4, 3, 32, t, 30, pages=(17, 8), ragged=True, wide=True)),
            case("padded batch", tags="edge", **call(4, 6, 2, 64, t, 30, new=True)),
            case("rotated", tags="edge", **call(3, 5, 2, 64, t, 24, pages=(12, 8), rope={"rows": 24})),
            case("rotated, interleaved", tags="edge", **call(3, 5, 2, 64, t, 24, rope={"rows": 24, "layout": "interleaved"})),
            case("a quarter rotated", tags="edge", **call(3, 5, 2, 80, t, 24, pages=(12, 8), rope={"rows": 24, "r": 20})),
            case("rotated, tables short", tags="edge", **call(3, 5, 2, 64, t, 24, rope={"rows": 9, "tables": t})),
            case(f"fp8, {t}", tags="edge", **call(3, 5, 2, 64, t, 24, pages=(12, 8), cache="f8e4m3", scales=1)),
            case(f"fp8 of heads, rotated, {t}", tags="edge", **call(3, 5, 4, 64, t, 24, cache="f8e5m2", scales=4, rope={"rows": 24})),
            case(f"fp8 without scales, {t}", tags="edge", **call(3, 5, 2, 72, t, 24, cache="f8e4m3", fill="wide")),
            case(f"fp8, large values, {t}", tags="edge", **call(2, 5, 2, 64, t, 24, cache="f8e4m3", fill="large")),
            case(f"fp8, NaN, {t}", tags="edge", **call(2, 5, 2, 64, t, 24, cache="f8e5m2", fill="nan")),
            case(f"fp8, +inf, {t}", tags="edge", **call(2, 5, 2, 64, t, 24, cache="f8e4m3", fill="inf", scales=2)),
            case("head of 192", tags="edge", **call(2, 3, 1, 192, t, 9)),
            case("head of 256", tags="edge", **call(2, 3, 1, 256, t, 9, rope={"rows": 9})),
            case("head of 7", tags="edge", **call(2, 3, 3, 7, t, 9, pages=(6, 4))),
            case("head of 6, rotated", tags="edge", **call(2, 3, 3, 6, t, 9, rope={"rows": 9, "layout": "interleaved"})),
            case("cache misaligned", tags="edge", **call(2, 3, 2, 64, t, 9, lies=("sliced", "contiguous"))),
            case("cache padded", tags="edge", **call(2, 3, 2, 64, t, 9, lies=("padded", "contiguous"))),
            case("every second element of the cache", tags="edge", **call(2, 3, 2, 16, t, 9, lies=("strided", "contiguous"))),
            case("address misaligned", tags="edge", **call(2, 3, 2, 64, t, 9, lies=("contiguous", "offset"))),
            case("k expanded", tags="edge", **call(2, 3, 2, 64, t, 9, lies=("contiguous", "expanded"))),
            case("denormals", tags="edge", **call(2, 3, 2, 64, t, 9, fill="tiny")),
            case("NaN", tags="edge", **call(2, 3, 2, 64, t, 9, fill="nan")),
            case("-0.0", tags="edge", **call(2, 3, 2, 64, t, 9, fill="-0.0")),
        ]
    huge = [case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **call(1, 5, 8, 128, "bf16", (1 << 21) + 4096))]
    return bench + edge + huge


def _changed(change: str) -> Callable[..., None]:
    def run(
        k_cache: Any, v_cache: Any, k: Any, v: Any, lengths: Any, page_table: Any, cu_seqlens: Any, new_lengths: Any, cos: Any, sin: Any,
        k_scale: Any, v_scale: Any, layout: str, rotary_dim: int, limit: float,
    ) -> None:
        if change == "one further":
            lengths = lengths + 1
        elif change == "table ignored" and page_table is not None:
            page_table = (
                page_table * 0 + page_table.new_tensor(range(page_table.numel())).view(page_table.shape)
            ) % max(k_cache.shape[0], 1)
        elif change == "clamped":
            lengths = lengths.clamp(0, max(k_cache.shape[1] - k.shape[1], 0))
        elif change == "padding":
            new_lengths = None
        elif change == "scales":
            k_scale = v_scale = None
        elif change == "rotation":
            cos = sin = None
        elif change == "exchanged":
            k, v = v, k
        reference(
            k_cache, v_cache, k, v, lengths, page_table, cu_seqlens, new_lengths, cos, sin, k_scale, v_scale, layout, rotary_dim, limit
        )

    return run


OP = Op(
    reference,
    calls=Calls(cpu=cpu, faults=faults, public=public),
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(
        _swept, {"sequences": (1, 1024), "tokens": (1, 4096), "heads": (1, 32), "head": (16, 256)}, rows="sequences",
        models={"head": "head"}, axis="tokens"
    ),
    work=work,
    tolerance=Tolerance(exact=True),
    mutates=("k_cache", "v_cache"),
    values=Values(fixup=fixup),
    peers={"torch": lambda: index_put, "torch.compile": compiled(index_put), "flashinfer": flashinfer_append},
    wrong={
        "one position further": _changed("one further"),
        "page table ignored": _changed("table ignored"),
        "positions clamped": _changed("clamped"),
        "padding written": _changed("padding"),
        "scales ignored": _changed("scales"),
        "keys not rotated": _changed("rotation"),
        "k and v exchanged": _changed("exchanged"),
        "nothing written": lambda *args: None,
    },
)
