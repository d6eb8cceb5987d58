"""Rotary position embedding (RoPE) of queries and keys, in one launch.

    out[2i], out[2i + 1] = x[2i] cos a_i - x[2i + 1] sin a_i, x[2i + 1] cos a_i + x[2i] sin a_i        (interleaved; half: x[i] and x[i + R / 2])
    a_i = position · theta^(-2i / R) or from tables, i < R / 2 = rotary_dim / 2

Source: Su et al. 2021, "RoFormer" (arXiv 2104.09864)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.core.op import Calls, Grad, Judging, Op, Sizes, Tolerance, Values, like
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.ops._peers import Kept, compiled
from rooftop.ops._rotary import angles, integers, rotary_size, rotated, tables, turned

if TYPE_CHECKING:
    from torch import Tensor

ORDERS = ("bshd", "bhsd")


def rope(
    q: Tensor,
    k: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    *,
    positions: Tensor | None = None,
    offset: int = 0,
    theta: float = 10000.0,
    layout: str = "half",
    rotary_dim: int | None = None,
    order: str | None = None,
    implementation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Rotate `q`, and `k` if it is given, computed in float32 and rounded once. ``rope(q, k, cos, sin, order="bhsd")`` is Hugging Face's
    apply_rotary_pos_emb.

    Args:
        q: float32, float16 or bfloat16, [B, S, H, D], or with `order="bhsd"` [B, H, S, D], or the same without B. Any strides; transposed
            views are read in place.
        k: as `q`, with any number of heads, or None.
        cos, sin: tables in float32 or the dtype of `q`, [P, R / 2] or [B or 1, P, R / 2], R = `rotary_dim`; of tables with R columns, each
            value twice as in Hugging Face, every other column (interleaved) or the first half (half) is read. None: computed from `theta`,
            with the same accuracy at all positions.
        positions: int32 or int64, [S], [1, S] or [B, S]: the row of the tables, or the position, of each token. None: 0 to S - 1.
        offset: added to the positions. It is an argument of the call: replays of a captured CUDA graph use the same one.
        theta: the base of the frequencies; used if there are no tables.
        layout: `"half"` (Llama, GPT-NeoX: element i is paired with i + R / 2) or `"interleaved"` (GPT-J: 2i with 2i + 1).
        rotary_dim: how many leading elements of a head are rotated, even; the others are copied. None: all.
        order: of the dimensions, "bshd" or "bhsd", see `q`. None is "bshd", as in `rooftop.attention` and `rooftop.append_kv`; tables whose
            rows fit "bhsd" alone are refused.
        implementation: name of a kernel (`"cuda_sm80"`), which runs or raises. None selects the best one that supports the input.

    Returns the rotated `q`, or (q, k), in new memory: with the strides of the input if it is dense, else those of a contiguous [B, S, H,
    D]. A token whose row is outside of the tables gets NaN in its rotated elements (`rooftop.debug()` reports it). The gradient is the
    inverse rotation; the tables have none.

    Raises TypeError for other dtypes, ValueError for shapes, devices or options that do not fit."""
    order = named_order("rope", order, q, cos, positions)
    given = arguments("rope", q, k, cos, sin, positions, offset, theta, layout, rotary_dim, order)
    out_q, out_k = OP(*given, implementation=implementation)
    rotated_q = _outer(out_q, q, order)
    return rotated_q if k is None else (rotated_q, _outer(out_k, k, order))


def named_order(op: str, order: str | None, q: Any, cos: Any, positions: Any) -> str:
    """The order of the dimensions; where none is named, "bshd". Raises ValueError where none is named and the tables have as many rows as
    "bhsd" has tokens, and not as "bshd" has."""
    import torch

    if order is not None:
        return order
    if isinstance(q, torch.Tensor) and isinstance(cos, torch.Tensor) and positions is None and q.dim() in (3, 4) and cos.dim() in (2, 3):
        tokens, heads, rows = q.shape[-3], q.shape[-2], cos.shape[-2]
        if rows == heads != tokens:
            raise ValueError(
                f"{op}: q has shape {tuple(q.shape)} and cos {tuple(cos.shape)}, with a row for each of {heads}: give order='bhsd' if q is "
                "[B, heads, tokens, D], order='bshd' if it is [B, tokens, heads, D]"
            )
    return ORDERS[0]


def arguments(
    op: str, q: Tensor, k: Tensor | None, cos: Tensor | None, sin: Tensor | None, positions: Tensor | None, offset: int, theta: float,
    layout: str, rotary_dim: int | None, order: str,
) -> tuple[Any, ...]:
    """What the op takes, from what the public function is given: views [B, S, H, D], tables [1 or B, P, R / 2], positions [1 or B, S]."""
    import torch

    if order not in ORDERS:
        raise ValueError(f"{op}: order is {order!r}; it must be one of {', '.join(map(repr, ORDERS))}")
    for name, t in (("q", q), ("k", k)):
        if t is None and name == "k":
            continue
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{op}: {name} is a {type(t).__name__}; it must be a tensor")
        if t.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise TypeError(f"{op}: {name} is {t.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
        if t.dtype != q.dtype:
            raise TypeError(f"{op}: q is {q.dtype} and {name} is {t.dtype}; they must be the same")
        if t.dim() not in (3, 4):
            raise ValueError(f"{op}: {name} has shape {tuple(t.shape)}; it must have 4 dimensions ({order}) or 3 ({order[1:]})")
        if t.device != q.device:
            raise ValueError(f"{op}: q lies on {q.device} and {name} on {t.device}; they must be on one device")
    inner = _inner(q, order)
    batch, length, _, columns = inner.shape
    key = None if k is None else _inner(k, order)
    if k is not None and key is not None and (k.dim() != q.dim() or (key.shape[0], key.shape[1], key.shape[3]) != (batch, length, columns)):
        raise ValueError(
            f"{op}: q has shape {tuple(q.shape)} and k {tuple(k.shape)}; they must differ in the number of heads alone (order={order!r})"
        )
    size = rotary_size(op, rotary_dim, columns, layout)
    found_cos, found_sin = tables(op, cos, sin, size, layout, q, batch)
    if positions is not None:
        integers(op, "positions", positions, ((length,), (1, length), (batch, length)), q.device)
        positions = positions if positions.dim() == 2 else positions.unsqueeze(0)
    number(op, "offset", offset, "a whole number", whole=True)
    number(op, "theta", theta, "a number above 0", finite=True)
    if not -(2**31) <= offset < 2**31:
        raise ValueError(f"{op}: offset is {offset}; it must be -2**31 to 2**31 - 1")
    if not theta > 0:
        raise ValueError(f"{op}: theta is {theta}; it must be above 0")
    return inner, key, found_cos, found_sin, positions, layout, size, float(theta), offset, False


def _inner(t: Tensor, order: str) -> Tensor:
    """As [B, S, H, D], a view."""
    t = t if t.dim() == 4 else t.unsqueeze(0)
    return t.transpose(1, 2) if order == "bhsd" else t


def _outer(t: Tensor, given: Tensor, order: str) -> Tensor:
    """Back to the order and the number of dimensions of `given`."""
    t = t.transpose(1, 2) if order == "bhsd" else t
    return t if given.dim() == 4 else t.squeeze(0)


def reference(
    q: Tensor, k: Tensor | None, cos: Tensor | None, sin: Tensor | None, positions: Tensor | None, layout: str, rotary_dim: int,
    theta: float, offset: int, inverse: bool,
) -> tuple[Tensor, Tensor | None]:
    """q [B, S, H, D], k [B, S, J, D], tables [1 or B, P, R / 2], positions [1 or B, S]; `inverse`: by the negative angle."""
    import torch

    rows = torch.arange(q.shape[1], device=q.device)[None] if positions is None else positions.long()
    c, s = angles(rows + offset, cos, sin, rotary_dim, theta, q)
    s = -s if inverse else s
    return rotated(q, c, s, layout, rotary_dim), None if k is None else rotated(k, c, s, layout, rotary_dim)


def cpu(
    q: Tensor, k: Tensor | None, cos: Tensor | None, sin: Tensor | None, positions: Tensor | None, layout: str, rotary_dim: int,
    theta: float, offset: int, inverse: bool,
) -> Any:
    """Neighbouring rows of tables, read in place."""
    count = q.shape[1]
    if positions is not None or cos is None or sin is None or offset < 0 or offset + count > cos.shape[1] or not q.shape[-1]:
        return NotImplemented
    c, s = (t[:, offset : offset + count, None].float() for t in (cos, sin))
    s = -s if inverse else s
    return tuple(None if x is None else turned(x, c, s, layout, rotary_dim) for x in (q, k))


def backward(
    dout_q: Tensor, dout_k: Tensor | None, cos: Tensor | None, sin: Tensor | None, positions: Tensor | None, layout: str, rotary_dim: int,
    theta: float, offset: int, inverse: bool,
) -> tuple[Tensor, Tensor | None]:
    """The rotation back, by the same kernel."""
    dq, dk = OP(dout_q, dout_k, cos, sin, positions, layout, rotary_dim, theta, offset, not inverse)
    return dq, None if dout_k is None else dk


def faults(
    q: Tensor, k: Tensor | None, cos: Tensor | None, sin: Tensor | None, positions: Tensor | None, layout: str, rotary_dim: int,
    theta: float, offset: int, inverse: bool,
) -> str | None:
    import torch

    if cos is None or not any(t is not None and t.numel() for t in (q, k)):
        return None
    rows = (torch.arange(q.shape[1], device=q.device) if positions is None else positions.long()) + offset
    bad = (rows < 0) | (rows >= cos.shape[1])
    return f"a position is {int(rows[bad][0])}; the tables have {cos.shape[1]} rows" if bool(bad.any()) else None


def public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The call of a case; the rotation back has none, nor have tables of other than R / 2 columns: the public function reads half of R
    columns. A head that was made empty has nothing to rotate."""
    cos, sin, size = tensors["cos"], tensors["sin"], options["rotary_dim"]
    if not tensors["q"].shape[3]:
        cos, sin, size = cos if cos is None else cos[..., :0], sin if sin is None else sin[..., :0], 0
    elif cos is not None and cos.shape[2] != size // 2:
        return None
    named = {n: options[n] for n in ("layout", "theta", "offset")}
    return (tensors["q"], tensors["k"], cos, sin), {"positions": tensors["positions"], "order": "bshd", "rotary_dim": size, **named}


def outputs(q: Meta, k: Meta | None, **_: Any) -> dict[str, Meta | None]:
    return {"out_q": like(q), "out_k": k and like(k)}


def canonical(p: Problem) -> Problem | None:
    """As it is; None where neighbours of a head are not neighbours in memory, or the tables lie differently."""
    heads = [m for n in ("q", "k", "out_q", "out_k") if (m := p.get(n)) is not None]
    if [m for m in heads if m.shape[3] > 1 and m.strides[3] != 1]:
        return None
    cos, sin = p.get("cos"), p.get("sin")
    return p if cos is None or sin is None or cos.strides == sin.strides else None


def work(p: Problem) -> Work:
    """Q and K read and written once, the rows of the tables read once."""
    turned = [m for n in ("q", "k") if (m := p.get(n)) is not None]
    heads = sum([m.nbytes for m in turned])
    tokens = p["q"].shape[0] * p["q"].shape[1]
    used = sum([min(m.nbytes, tokens * m.shape[2] * m.itemsize) for n in ("cos", "sin") if (m := p.get(n)) is not None])
    ids = m.nbytes if (m := p.get("positions")) is not None else 0
    rotary = int(p.option("rotary_dim"))
    elements = sum([m.numel // max(m.shape[3], 1) * rotary for m in turned])
    return Work(heads + used + ids, heads, {"fma32": 2.0 * elements})


def _picked(q: Tensor, cos: Tensor | None, sin: Tensor | None, positions: Tensor | None, offset: int) -> tuple[Tensor, Tensor]:
    """The rows of a peer's tables: it is given those alone."""
    if cos is None or sin is None:
        raise ValueError("takes tables alone")
    if positions is not None:
        if cos.shape[0] > 1:
            raise ValueError("takes positions with one table alone")
        return cos[0][positions.long() + offset], sin[0][positions.long() + offset]
    return cos[:, offset : offset + q.shape[1]], sin[:, offset : offset + q.shape[1]]


def _formula(
    q: Tensor, k: Tensor | None, cos: Tensor | None, sin: Tensor | None, positions: Tensor | None, layout: str, rotary_dim: int,
    theta: float, offset: int, inverse: bool,
) -> tuple[Tensor, Tensor | None]:
    """Hugging Face's formula, x · cos + rotate_half(x) · sin, in the dtype of x; the interleaved one as reference."""
    c, s = (t[:, :, None].to(q.dtype) for t in _picked(q, cos, sin, positions, offset))
    s = -s if inverse else s
    return tuple(None if x is None else rotated(x, c, s, layout, rotary_dim) for x in (q, k))  # type: ignore[return-value]


def _repeated(cos: Tensor, sin: Tensor, q: Tensor, positions: Tensor | None, offset: int) -> tuple[Tensor, Tensor]:
    """As Hugging Face keeps them: each value twice, in the dtype of q, [1 or B, S, R]."""
    import torch

    c, s = (torch.cat((t, t), -1).to(q.dtype) for t in _picked(q, cos, sin, positions, offset))
    return c, s


def whole_heads(
    prepared: Kept, q: Any, k: Any, cos: Any, sin: Any, positions: Any, layout: str, rotary_dim: int, offset: int, inverse: bool
) -> Any:
    """The tables of a peer that rotates whole heads in the half layout, made once. Raises ValueError for anything else."""
    if layout != "half" or rotary_dim != q.shape[3] or inverse or cos is None:
        raise ValueError("rotates whole heads by tables, in the half layout alone")
    return prepared(cos, sin, q, positions, offset)


def _hugging_face() -> Callable[..., Any]:
    import torch

    prepared = Kept(_repeated)

    def half(x: Tensor) -> Tensor:
        n = x.shape[-1] // 2
        return torch.cat((-x[..., n:], x[..., :n]), -1)

    def run(
        q: Any, k: Any, cos: Any, sin: Any, positions: Any, layout: str, rotary_dim: int, theta: float, offset: int, inverse: bool
    ) -> Any:
        c, s = (t[:, :, None] for t in whole_heads(prepared, q, k, cos, sin, positions, layout, rotary_dim, offset, inverse))
        return q * c + half(q) * s, None if k is None else k * c + half(k) * s

    return run


def liger() -> Callable[..., Any]:
    """Liger rotates in place: a peer of `rope_`."""
    from liger_kernel.ops.rope import LigerRopeFunction

    prepared = Kept(_repeated)

    def run(
        q: Any, k: Any, cos: Any, sin: Any, positions: Any, layout: str, rotary_dim: int, theta: float, offset: int, inverse: bool
    ) -> None:
        if k is None:
            raise ValueError("Liger rotates q and k")
        LigerRopeFunction.apply(
            q.transpose(1, 2), k.transpose(1, 2), *whole_heads(prepared, q, k, cos, sin, positions, layout, rotary_dim, offset, inverse)
        )

    return run


def _swept(dtype: str, tokens: int, heads: int, head: int) -> dict[str, Any]:
    """Queries and a quarter as many keys; heads of even size, with tables in float32."""
    head = head // 2 * 2
    q, table = Input((1, tokens, heads, head), dtype), Input((1, tokens, head // 2), "f32")
    return {"q": q, "k": Input((1, tokens, max(heads // 4, 1), head), dtype), "cos": table, "sin": table, "positions": None,
            "layout": "half", "rotary_dim": head, "theta": 10000.0, "offset": 0, "inverse": False}


def _cases() -> list[Case]:
    def call(
        b: int, s: int, h: int, j: int, d: int, dtype: str, *, rows: int = 0, tables: str = "", batches: int = 1,
        ids: tuple[str, int] | None = None, layout: str = "half", r: int | None = None, fill: str = "normal",
        lies: str = "contiguous", **options: Any,
    ) -> dict[str, Any]:
        r = d if r is None else r
        table = Input((batches, rows or s, r // 2), tables or dtype) if tables != "made" else None
        x = Input((b, s, h, d), dtype, fill, lies)
        made = {
            "q": x, "k": Input((b, s, j, d), dtype, fill, lies) if j else None, "cos": table, "sin": table,
            "positions": Input((b if ids and ids[1] else 1, s), ids[0], f"below {rows or s}") if ids else None,
            "layout": layout, "rotary_dim": r, "theta": 10000.0, "offset": 0, "inverse": False,
        }
        if unknown := options.keys() - made.keys():
            raise TypeError(f"rope has no {', '.join(sorted(unknown))}")
        return made | options

    bench = [
        case("llama 8b 4x8192, 256 MiB", tags="bench model", **call(2, 6554, 32, 8, 128, "bf16", tables="f32")),
        case("made 4x8192, 256 MiB", tags="bench", **call(2, 6554, 32, 8, 128, "bf16", tables="made", theta=500000.0)),
        case("interleaved 256 MiB", tags="bench", **call(2, 6554, 32, 8, 128, "bf16", tables="f32", layout="interleaved")),
        case("quarter rotated 256 MiB", tags="bench", **call(2, 8738, 32, 32, 80, "f16", r=20)),
        case("float32 256 MiB", tags="bench", **call(1, 6554, 32, 8, 128, "f32")),
        case("positions 32 MiB", tags="bench", **call(1, 1638, 32, 8, 128, "bf16", rows=8192, tables="f32", ids=("i64", 1))),
        case("Hugging Face 32 MiB", tags="bench model", **call(1, 1638, 32, 8, 128, "bf16")),
        case(
            "decode 1", tags="bench", why="a launch and little else",
            **call(1, 1, 32, 8, 128, "bf16", rows=8192, tables="f32", ids=("i64", 1))
        ),
        case("decode 256", tags="bench", **call(256, 1, 32, 8, 128, "bf16", rows=8192, tables="f32", ids=("i64", 1))),
    ]
    edge = []
    for t in ("f32", "f16", "bf16"):
        edge += [
            case("empty", tags="edge", **call(0, 5, 2, 1, 16, t)),
            case("no tokens", tags="edge", **call(2, 0, 2, 1, 16, t, rows=4)),
            case("one element pair", tags="edge", **call(1, 1, 1, 0, 2, t)),
            case("q alone", tags="edge", **call(2, 7, 3, 0, 64, t)),
            case("grouped", tags="edge", **call(2, 9, 6, 2, 64, t)),
            case("interleaved", tags="edge", **call(2, 9, 6, 2, 64, t, layout="interleaved")),
            case("tables in float32", tags="edge", **call(2, 9, 6, 2, 64, t, tables="f32")),
            case("tables of each sequence", tags="edge", **call(3, 5, 2, 2, 32, t, batches=3, rows=11, offset=4)),
            case("positions", tags="edge", **call(2, 9, 5, 1, 128, t, rows=40, ids=("i32", 1))),
            case("positions of all", tags="edge", **call(3, 9, 5, 1, 128, t, rows=40, ids=("i64", 0), offset=0)),
            case("out of range of the tables", tags="edge", **call(1, 9, 3, 1, 32, t, rows=6)),
            case("out of range, before the tables", tags="edge", **call(1, 9, 3, 1, 32, t, rows=6, offset=-2, layout="interleaved")),
            case("out of range, no rows", tags="edge", **{**call(1, 3, 2, 1, 8, t), **dict.fromkeys(("cos", "sin"), Input((1, 0, 4), t))}),
            case("made", tags="edge", **call(2, 9, 6, 2, 64, t, tables="made")),
            case("made, far", tags="edge", **call(1, 9, 4, 2, 64, t, tables="made", theta=1e6, offset=1_000_003, layout="interleaved")),
            case("made, at positions", tags="edge", **call(2, 9, 4, 2, 64, t, tables="made", ids=("i64", 1), offset=-5)),
            case("head of 80", tags="edge", **call(1, 5, 3, 1, 80, t)),
            case("head of 96", tags="edge", **call(1, 5, 3, 1, 96, t, layout="interleaved")),
            case("head of 192", tags="edge", **call(1, 5, 3, 1, 192, t)),
            case("head of 256", tags="edge", **call(1, 5, 3, 1, 256, t)),
            case("head of 6", tags="edge", **call(2, 5, 3, 1, 6, t, layout="interleaved")),
            case("head of 10", tags="edge", **call(2, 5, 3, 1, 10, t)),
            case("head of 7, 4 rotated", tags="edge", **call(2, 5, 3, 1, 7, t, r=4)),
            case("head of 5, 4 interleaved", tags="edge", **call(2, 5, 3, 1, 5, t, r=4, layout="interleaved")),
            case("a quarter", tags="edge", **call(2, 5, 3, 1, 64, t, r=16)),
            case("a quarter of 80, interleaved", tags="edge", **call(2, 5, 3, 1, 80, t, r=20, layout="interleaved")),
            case("nothing rotated", tags="edge", **call(2, 5, 3, 1, 16, t, r=0)),
            case("back", tags="edge", **call(2, 9, 6, 2, 64, t, inverse=True)),
            case("many tokens", tags="edge", **call(1, 300, 9, 2, 16, t)),
            case("rows padded", tags="edge", **call(2, 5, 3, 1, 64, t, lies="padded")),
            case("rows misaligned", tags="edge", **call(2, 5, 3, 1, 64, t, lies="sliced")),
            case("address misaligned", tags="edge", **call(2, 5, 3, 1, 64, t, lies="offset")),
            case("every second element", tags="edge", **call(2, 5, 3, 1, 64, t, lies="strided")),
            case("expanded", tags="edge", **call(2, 5, 3, 1, 64, t, lies="expanded")),
            case("large values", tags="edge", **call(2, 5, 3, 1, 64, t, fill="large", tables="made")),
            case("denormals", tags="edge", **call(2, 5, 3, 1, 64, t, fill="tiny")),
            case("NaN", tags="edge", **call(2, 5, 3, 1, 64, t, fill="nan")),
            case("+inf", tags="edge", **call(2, 5, 3, 1, 64, t, fill="inf", tables="made", offset=1)),
            case("-0.0", tags="edge", **call(2, 5, 3, 1, 64, t, fill="-0.0")),
        ]
    huge = [case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **call(1, 131080, 128, 1, 128, "bf16", tables="f32"))]
    return bench + edge + huge


def _changed(change: str) -> Callable[..., Any]:
    def run(
        q: Any, k: Any, cos: Any, sin: Any, positions: Any, layout: str, rotary_dim: int, theta: float, offset: int, inverse: bool
    ) -> Any:
        if change == "positions" and positions is not None:
            positions = positions * 0
        layout = {"half": "interleaved", "interleaved": "half"}[layout] if change == "layout" else layout
        inverse = not inverse if change == "angle" else inverse
        made = list(reference(q, k, cos, sin, positions, layout, rotary_dim, theta, 0 if change == "offset" else offset, inverse))
        if change == "k" and k is not None:
            made[1] = k.clone()
        if change == "rest":
            made[0][..., rotary_dim:] = 0
        return tuple(made)

    return run


OP = Op(
    reference,
    calls=Calls(cpu=cpu, faults=faults, public=public),
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    judging=Judging(rows=lambda p: {n: (0, 1) for n, m in p.tensors if m is not None and len(m.shape) > 2}, alone=reference),  # no sums
    swept=Sizes(
        _swept, {"tokens": (1, 1 << 22), "heads": (1, 128), "head": (16, 256)}, rows="tokens", models={"head": "head"}, axis="head"
    ),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    values=Values(runtime_options=("offset",)),
    grad=Grad(wrt=("q", "k"), saves=("cos", "sin", "positions"), backward=backward),
    peers={"torch": lambda: _formula, "torch.compile": compiled(_formula), "huggingface": _hugging_face},
    wrong={
        "the other layout": _changed("layout"),
        "positions ignored": _changed("positions"),
        "offset ignored": _changed("offset"),
        "negative angle": _changed("angle"),
        "k not rotated": _changed("k"),
        "rest not copied": _changed("rest"),
    },
)
