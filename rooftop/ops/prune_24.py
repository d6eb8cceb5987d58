"""Prune a dense weight to 2:4 sparsity by rows and by columns at once, packed in both orientations: W for the forward product, its
transpose for the gradient of the input.

    the kept elements of each 4 x 4 tile are at most two in each row and in each column;
    "optimal": of the 90 patterns with just two in each, the one whose sizes add up to most; "greedy": the elements by size,
    while their row and column have room

Source: Hubara et al., "Accelerated Sparse Neural Training: A Provable and Efficient Method to Find N:M Transposable Masks" (2021); the
greedy search is that of torch's `_sparse_semi_structured_tile`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from rooftop.core.op import Calls, Op, Tolerance
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.core.sweeps import Sizes

if TYPE_CHECKING:
    from torch import Tensor

    from rooftop import sparse

FILLS = ("integers", "nan", "inf", "-0.0", "tiny")
ALGORITHMS = ("greedy", "optimal")
PAIRS = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))  # the order of rooftop.formats.two_four.CODES


def prune_24(
    w: Tensor, algorithm: str = "optimal", *, implementation: str | None = None
) -> tuple[sparse.SparseTensor, sparse.SparseTensor]:
    """W and its transpose, both 2:4 sparse, with the same elements kept.

    Args:
        w: [M, K] float16 or bfloat16. Its tiles of 4 x 4 begin at the first row and column; past the end there are zeros.
        algorithm: "optimal" or "greedy". Among elements of the same magnitude the first by rows is kept; NaN counts as infinite. Magnitudes
            are added in float32, the upper two rows, the lower two, then both. Among patterns with the same sum one is chosen, the same on
            every device: see `kept`.
        implementation: name of a kernel (`"cuda_sm80"`), which runs or raises. None selects the best one that supports the input.

    Returns two `rooftop.sparse.SparseTensor`s, [M, K] and [K, M]. Their tensors are contiguous, as collectives require. No gradient flows
    through it: `rooftop.sparse.SparseLinear` trains a dense weight through its pruned one.

    Raises TypeError for other dtypes, ValueError for other shapes or an unknown algorithm."""
    import torch

    import rooftop

    if not isinstance(w, torch.Tensor) or w.dtype not in (torch.float16, torch.bfloat16):
        given = w.dtype if isinstance(w, torch.Tensor) else f"a {type(w).__name__}"
        raise TypeError(f"prune_24: w is {given}; accepted are tensors of torch.float16 and torch.bfloat16")
    if w.dim() != 2:
        raise ValueError(f"prune_24: w has shape {tuple(w.shape)}; it must be [M, K]")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise ValueError(f"prune_24: algorithm is {algorithm!r}; it is one of {', '.join(map(repr, ALGORITHMS))}")
    values, meta, values_t, meta_t = OP(w.detach(), algorithm, implementation=implementation)
    m, k = w.shape
    made = rooftop.sparse.SparseTensor
    return made(values, None, None, None, meta, "2:4", (m, k)), made(values_t, None, None, None, meta_t, "2:4", (k, m))


@cache
def patterns() -> tuple[tuple[int, int, int, int], ...]:
    """The 90 transposable patterns, a pair for each row, in order."""
    return tuple(
        (a, b, c, d) for a, b, c, d in product(range(6), repeat=4) if all(sum(j in PAIRS[i] for i in (a, b, c, d)) == 2 for j in range(4))
    )


@cache
def halves() -> tuple[tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]], ...]:
    """The 90 patterns as 19 kinds, by how often the upper two rows keep each column: the pairs of the upper two rows, those of the lower
    two, in order."""
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for a, b in product(range(6), repeat=2):
        found.setdefault(tuple((j in PAIRS[a]) + (j in PAIRS[b]) for j in range(4)), []).append((a, b))
    return tuple((tuple(ways), tuple(found[tuple(2 - n for n in often)])) for often, ways in found.items())


def kept(w: Tensor, algorithm: str) -> Tensor:
    """Which elements of w are kept, [4 ceil(M / 4), 4 ceil(K / 4)].

    "optimal": of each kind of `halves` the largest sum of the upper two rows and that of the lower two, of equal ones the first; of the
    kinds the largest total, of equal ones the first."""
    import torch

    m, k = w.shape
    tall, across = -(-m // 4), -(-k // 4)
    size = torch.nn.functional.pad(w, (0, -k % 4, 0, -m % 4)).float().abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    tiles = size.view(tall, 4, across, 4).transpose(1, 2)  # tall, across, row, column
    if algorithm == "optimal":
        pairs = torch.tensor(PAIRS, device=w.device)
        sums = tiles[..., pairs[:, 0]] + tiles[..., pairs[:, 1]]  # tall, across, row, pair
        count = tall * across
        most = torch.full((count,), -1.0, device=w.device)
        best = torch.zeros(count, 4, dtype=torch.int64, device=w.device)  # a pair for each row

        def half(first: int, ways: tuple[tuple[int, int], ...]) -> tuple[Tensor, Tensor]:
            """The largest sum of two rows, and its pairs; the first of equal ones."""
            each = torch.tensor(ways, device=w.device)
            total = sums[:, :, first, each[:, 0]] + sums[:, :, first + 1, each[:, 1]]
            largest, at = total.flatten(0, 1).max(-1, keepdim=True)
            at = (total.flatten(0, 1) == largest).to(torch.uint8).argmax(-1)
            return largest[:, 0], each[at]

        for upper, lower in halves():
            (top, over), (bottom, under) = half(0, upper), half(2, lower)
            better = top + bottom > most
            most = torch.where(better, top + bottom, most)
            best = torch.where(better[:, None], torch.cat((over, under), 1), best)
        found = torch.zeros(count, 4, 4, dtype=torch.bool, device=w.device).scatter_(2, pairs[best], True).view(tall, across, 4, 4)
    else:
        order = tiles.flatten(2).argsort(dim=-1, descending=True, stable=True)
        found = torch.zeros(tall, across, 16, dtype=torch.bool, device=w.device)
        rows, columns = (torch.zeros(tall, across, 4, dtype=torch.int64, device=w.device) for _ in range(2))
        for i in range(16):
            at = order[..., i : i + 1]
            fits = (rows.gather(2, at // 4) < 2) & (columns.gather(2, at % 4) < 2)
            found.scatter_(2, at, fits)
            rows.scatter_add_(2, at // 4, fits.long())
            columns.scatter_add_(2, at % 4, fits.long())
        found = found.view(tall, across, 4, 4)
    return found.transpose(1, 2).reshape(4 * tall, 4 * across)


def reference(w: Tensor, algorithm: str = "optimal") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    import torch

    from rooftop.formats.two_four import compress, select

    m, k = w.shape
    mask = kept(w, algorithm)
    whole = torch.where(mask, torch.nn.functional.pad(w, (0, -k % 4, 0, -m % 4)), 0)
    chosen = mask.to(torch.uint8)
    values, meta = compress(whole[:m], select(chosen[:m]))
    values_t, meta_t = compress(whole.t()[:k], select(chosen.t()[:k].contiguous()))
    return values, meta, values_t, meta_t


def outputs(w: Meta, **_: Any) -> dict[str, Meta]:
    m, k = w.shape
    return {
        "values": Meta((m, 2 * -(-k // 4)), w.dtype), "meta": Meta((-(-m // 16), -(-k // 256), 32, 4), "i32"),
        "values_t": Meta((k, 2 * -(-m // 4)), w.dtype), "meta_t": Meta((-(-k // 16), -(-m // 256), 32, 4), "i32"),
    }


def canonical(p: Problem) -> Problem | None:
    w = p["w"]
    return p if (w.shape[1] <= 1 or w.strides[1] == 1) and w.strides[0] >= 0 else None


def work(p: Problem) -> Work:
    """The weight read once, both packed matrices written once."""
    return Work(p["w"].nbytes, sum(p[n].nbytes for n in ("values", "meta", "values_t", "meta_t")), {})


def _torch() -> Callable[..., Any]:
    """torch's greedy kernel, both orientations."""
    import torch

    def tile(w: Tensor, algorithm: str) -> Any:
        return torch._sparse_semi_structured_tile(w, algorithm="", use_cutlass=True)[:4]  # without its masks

    return tile


def _rows_alone(w: Tensor, algorithm: str) -> tuple[Tensor, ...]:
    """The two largest of each four of a row; the transpose by the two largest of its own."""
    from rooftop.formats.two_four import compress, select

    return (*compress(w, select(w.abs().float())), *compress(w.t(), select(w.t().abs().float().contiguous())))


def _not_transposed(w: Tensor, algorithm: str) -> tuple[Tensor, ...]:
    values, meta, values_t, meta_t = reference(w, algorithm)
    return values, meta, values_t, meta_t.flip(0)


def _cases() -> list[Case]:
    bench = [
        case(f"{algorithm} {m}x{k}", tags="bench", w=Input((m, k), "bf16"), algorithm=algorithm)
        for algorithm in ALGORITHMS for m, k in ((4096, 4096), (8192, 8192), (14336, 4096))
    ]
    edge = []
    shapes = {
        "one tile": (4, 4), "one element": (1, 1), "odd": (37, 53), "a block": (128, 128), "blocks": (256, 384),
        "blocks and more": (264, 136), "one row": (1, 300), "one column": (300, 1), "wide": (20, 600), "tall": (530, 24), "no rows": (0, 8),
        "no columns": (8, 0),
    }
    for dtype in ("bf16", "f16"):
        for algorithm in ALGORITHMS:
            edge += [case(f"{algorithm}, {name}", tags="edge", w=Input(s, dtype), algorithm=algorithm) for name, s in shapes.items()]
            edge += [case(f"{algorithm}, {fill}", tags="edge", w=Input((40, 72), dtype, fill), algorithm=algorithm) for fill in FILLS]
        edge += [
            case(f"optimal, {how}", tags="edge", w=Input((40, 72), dtype, layout=how), algorithm="optimal")
            for how in ("padded", "sliced", "offset", "strided", "transposed", "expanded")
        ]
    return bench + edge


OP = Op(
    reference,
    outputs=outputs,
    calls=Calls(objects=True),
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(
        lambda dtype, rows, fours: {"w": Input((rows, 4 * fours), dtype), "algorithm": "greedy"},
        {"rows": (1, 1 << 24), "fours": (16, 1 << 14)}, rows="rows", axis="fours", dtypes=("bf16", "f16"),
    ),
    work=work,
    tolerance=Tolerance(exact=True),
    peers={"torch": _torch},
    wrong={
        "by rows alone": _rows_alone,
        "metadata upside down": _not_transposed,
        "the other algorithm": lambda w, algorithm: reference(w, "greedy" if algorithm == "optimal" else "optimal"),
    },
)
