"""Sampling of one index from each row of logits: temperature, top-k, top-p (nucleus), min-p.

    w_i = exp((logits_i - max) / temperature), rounded down to a multiple of 2^-32
    kept: the top_k first in order; of those the shortest run from the first on whose w come to top_p of all of theirs; of those with w_i >=
    min_p out = the first kept i with w_0 + ... + w_i > u · (sum of all kept w), indices in their order, u in [0, 1) from the seed and the
    row, or from the row's own seed

In order: the largest first, equal ones by index. Sums of whole multiples are exact, so no order of summation shows.

Sources: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration" (top-p); Nguyen et al. 2024, "Turning Up the Heat" (min-p)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rooftop.core import argument_checks, invariance
from rooftop.core.op import Calls, Judged, Judging, Op, Values
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.core.sweeps import Sizes
from rooftop.formats import random_bits
from rooftop.ops import _ordering, _randomness

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LEAST = 5e-38  # of a temperature above 0: kernels multiply by log2(e) / temperature, in float32
AT_ONCE = 1 << 15  # logits that are drawn from together on the CPU
UNIT = 2**32  # multiples of a weight's unit in 1


def sample(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int | Tensor | None = None,
    *,
    generator: torch.Generator | None = None,
    implementation: str | None = None,
) -> Tensor:
    """One index drawn from each row of `logits`, along the last dimension. Like `torch.multinomial`, each call draws new random numbers,
    unless a seed is given.

    Args:
        logits: float32, float16 or bfloat16, of any shape and strides with at least one dimension; the last one is the vocabulary.
        temperature: at least 0, below 3e38. 0 is greedy: the largest logit, among equal ones the lowest index. Values between 0 and 5e-38
            count as 5e-38.
        top_k: only the k largest can be drawn; at least 1. None: all.
        top_p: above 0, at most 1: of those, only the largest that together have this share of the probability.
        min_p: 0 to 1: of those, only the ones whose probability is at least `min_p` times that of the most probable one.
        seed: any whole number, of which the low 32 bits count: equal calls give equal draws. Row r (counted row-major) uses the random bits
            of elements 2 r and 2 r + 1. Or an int32 or int64 tensor of the shape of the result, with a seed for each row: row r uses
            elements 0 and 1 of its own seed, so its draw does not depend on its place in the call. None: drawn from `generator`. A call
            that is captured in a CUDA graph needs a seed; every replay uses it.
        generator: a `torch.Generator` of the device of `logits` that draws the seed; None: torch's default one, which `torch.manual_seed`
            sets.
        implementation: name of a kernel, which runs or raises. None selects the best one that supports `logits`.

    Returns int64 of the shape of `logits` without the last dimension. -infinity and NaN are masked: they are never drawn. A row with all
    elements masked gives -1. In a row with +infinity one of those is drawn. Elements less than 2^-32 times as probable as the most probable
    one are not drawn.

    Raises TypeError for other dtypes or arguments that are not numbers, ValueError for numbers out of these ranges, logits without
    dimensions or an empty vocabulary, or where a named implementation cannot take `logits`."""
    import torch

    _validate(logits, temperature, top_k, top_p, min_p)
    seeds, drawn = _seeds(logits, seed, generator), 0
    if seeds is None and temperature == 0 and invariance.on:  # nothing is drawn: any seeds do
        seeds = logits.new_zeros(logits.shape[:-1], dtype=torch.int32)
    if seeds is None:
        drawn = _randomness.seed("sample", seed, generator, logits, temperature != 0)
    if 0 < temperature < LEAST:
        temperature = LEAST
    return OP(
        logits, seeds, float(temperature), 0 if top_k is None else min(top_k, logits.shape[-1]), float(top_p), float(min_p), drawn,
        implementation=implementation,
    )


def _seeds(logits: Tensor, seed: Any, generator: Any) -> Tensor | None:
    """One seed for each row as int32, its low 32 bits; None if `seed` is no tensor."""
    import torch

    if not isinstance(seed, torch.Tensor):
        return None
    _randomness.one_of_them("sample", generator)
    if seed.dtype not in (torch.int32, torch.int64) or seed.shape != logits.shape[:-1] or seed.device != logits.device:
        raise ValueError(
            f"sample: seed is {seed.dtype} of shape {tuple(seed.shape)} on {seed.device}; as a tensor it must be torch.int32 or torch.int64 of shape "
            f"{tuple(logits.shape[:-1])} on {logits.device}, one for each row"
        )
    return seed.to(torch.int32).contiguous()


def _validate(logits: Tensor, temperature: float, top_k: int | None, top_p: float, min_p: float) -> None:
    import torch

    if not isinstance(logits, torch.Tensor):
        raise TypeError(f"sample: logits is a {type(logits).__name__}; it must be a tensor")
    if logits.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"sample: logits is {logits.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    if logits.dim() == 0 or not 1 <= logits.shape[-1] < 2**31:
        raise ValueError(f"sample: logits has shape {tuple(logits.shape)}; it must have a last dimension of 1 to 2^31 - 1, the vocabulary")
    for name, value in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        argument_checks.number("sample", name, value, "a number")
    if not 0 <= temperature < 3e38:
        raise ValueError(f"sample: temperature is {temperature}; it must be at least 0 and below 3e38")
    if top_k is not None:
        argument_checks.number("sample", "top_k", top_k, "a whole number of at least 1, or None", whole=True)
        if top_k < 1:
            raise ValueError(f"sample: top_k is {top_k}; it must be at least 1, or None")
    if not 0 < top_p <= 1:
        raise ValueError(f"sample: top_p is {top_p}; it must be above 0 and at most 1")
    if not 0 <= min_p <= 1:
        raise ValueError(f"sample: min_p is {min_p}; it must be 0 to 1")


def uniform(seed: int, seeds: Tensor | None, rows: int, device: Any) -> Tensor:
    """u of each row, float64: 53 of its 64 bits."""
    import torch

    own: Any = seed if seeds is None else seeds.reshape(-1, 1).to(torch.int64, copy=True)
    words = random_bits.bits(own, 2 * rows if seeds is None else 2, device).view(rows, 2)
    return (words[:, 0] * 2**21 + (words[:, 1] >> 11)).double() * 2.0**-53


def _weights(x: Tensor, temperature: float) -> Tensor:
    """w of rows, float64, 0 where masked; computed in the dtype of x."""
    import torch

    masked = x.isnan() | (x == float("-inf"))
    top = x.masked_fill(masked, float("-inf")).amax(-1, keepdim=True)
    scaled = torch.where(x == top, 0.0, (x - top) / temperature)
    weights = (scaled.exp().double() * UNIT).floor()
    return weights.masked_fill(masked | scaled.isnan(), 0.0)


def _kept(x: Tensor, order: Tensor, weights: Tensor, top_k: int, top_p: float, min_p: float, how: str = "") -> Tensor:
    """The weights of what may be drawn, 0 for the rest. x, order, weights: [rows, n], order the indices of the largest first."""
    import torch

    n = x.shape[-1]
    first = weights.gather(-1, order)
    if top_k:
        first = first.where(torch.arange(n, device=x.device) < top_k, 0.0)
    upto = first.cumsum(-1)
    if top_p < 1:
        bound = (upto[..., -1:] * top_p).ceil().clamp(min=1)
        first = first.where((upto <= bound) if how == "p" else (upto - first < bound), 0.0)
    first = first.where(first >= min_p * UNIT, 0.0)
    return torch.zeros_like(weights).scatter(-1, order, first)


def _at(kept: Tensor, u: Tensor) -> Tensor:
    """The index at which the sum of `kept` passes the share u of it; -1 where nothing is kept."""
    import torch

    upto = kept.cumsum(-1)
    bar = (u.unsqueeze(-1) * upto[..., -1:]).floor()
    found = (upto > bar).to(torch.int8).argmax(-1)
    return found.masked_fill(upto[..., -1] <= 0, -1)


def _draw(x: Tensor, order: Tensor, weights: Tensor, top_k: int, top_p: float, min_p: float, u: Tensor, how: str = "") -> Tensor:
    """`how`: what a known-wrong version changes."""
    return _at(_kept(x, order, weights, top_k, top_p, min_p, how), u)


def reference(logits: Tensor, seeds: Tensor | None, temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> Tensor:
    """`top_k` 0: all."""
    import torch

    x = logits.flatten(0, -2) if logits.dim() > 1 else logits.unsqueeze(0)
    rows = x.shape[0]
    if temperature == 0:
        masked = x.isnan() | (x == float("-inf"))
        found = x.masked_fill(masked, float("-inf")).argmax(-1) if rows else torch.zeros(0, dtype=torch.int64, device=x.device)
        return found.masked_fill(masked.all(-1), -1).view(logits.shape[:-1])
    x = x.float()
    order = _ordering.ordered(x, None, True, "smallest")
    found = _draw(x, order, _weights(x, temperature), top_k, top_p, min_p, uniform(seed, seeds, rows, x.device))
    return found.view(logits.shape[:-1])


def cpu(logits: Tensor, seeds: Tensor | None, temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> Any:
    """The same arithmetic, a cache's worth of rows at a time, and in order only where a filter asks for it."""
    import torch

    x = logits.flatten(0, -2) if logits.dim() > 1 else logits.unsqueeze(0)
    if temperature == 0 or not x.shape[0]:
        return NotImplemented
    found = torch.empty(x.shape[0], dtype=torch.int64)
    share, step = uniform(seed, seeds, x.shape[0], x.device), max(1, AT_ONCE // x.shape[1])
    for i in range(0, x.shape[0], step):
        part = x[i : i + step].float()
        top = part.amax(-1, keepdim=True)
        plain = temperature > 1e-30 and bool(top.isfinite().all())  # nothing is NaN or +inf, and what is -inf has no weight
        weights = ((part - top) / temperature).exp_().double().mul_(UNIT).floor_() if plain else _weights(part, temperature)
        if top_k or top_p < 1:
            order = _ordering.ordered(part, None, True, "smallest") if bool(part.isnan().any()) else part.sort(
                dim=-1, descending=True, stable=True
            ).indices
            weights = _kept(part, order, weights, top_k, top_p, min_p)
        elif min_p > 0:
            weights = weights.where(weights >= min_p * UNIT, 0.0)
        upto = weights.cumsum(-1)
        total = upto[:, -1:]
        place = torch.searchsorted(upto, (share[i : i + step, None] * total).floor_(), right=True)
        found[i : i + step] = place.masked_fill_(total <= 0, -1)[:, 0]
    return found.view(logits.shape[:-1])


SLACK = 2e-5  # of a row's probability: float32 exponentials, and weights in units of 2^-32


def _fits(judged: Judged) -> str | None:
    """Each draw must be that of some bounds within SLACK of those asked for."""
    import torch

    logits, got, o = judged.tensors["logits"], judged.got["out"], judged.options
    if got.shape != logits.shape[:-1] or got.dtype != torch.int64:
        return f"shape {tuple(got.shape)} and {got.dtype}; they must be {tuple(logits.shape[:-1])} and torch.int64"
    temperature, top_k, top_p, min_p = float(o["temperature"]), int(o["top_k"]), float(o["top_p"]), float(o["min_p"])
    want = judged.same["out"].reshape(-1)
    out = got.reshape(-1)
    if torch.equal(out, want):
        return None
    if temperature == 0:
        row = int((out != want).nonzero()[0])
        return f"row {row} has {int(out[row])}; the largest is {int(want[row])}"
    x = (logits.flatten(0, -2) if logits.dim() > 1 else logits.unsqueeze(0)).double()
    order, weights, u = _ordering.ordered(x, None, True, "smallest"), _weights(x, temperature), uniform(
        int(o["seed"]), judged.tensors.get("seeds"), x.shape[0], x.device
    )
    fits = out == want
    for dp in (0.0, -SLACK, SLACK):
        for dm in (0.0, -SLACK, SLACK):
            p, m = (top_p + dp if top_p < 1 else top_p), (min_p * (1 + dm) if min_p > 0 else min_p)
            kept = _kept(x, order, weights, top_k, min(max(p, 1e-12), 1 - 1e-12) if top_p < 1 else 1.0, m)
            least, most = (_at(kept, (u + du).clamp(0, 1 - 2.0**-53)) for du in (-SLACK, SLACK))
            drawn = (out >= 0) & (kept.gather(-1, out.clamp(min=0).unsqueeze(-1)).squeeze(-1) > 0)
            fits |= (drawn & (out >= least) & (out <= most)) | ((out < 0) & (most < 0))
    if bool(fits.all()):
        return None
    row = int((~fits).nonzero()[0])
    return f"row {row} draws {int(out[row])}; it must be {int(want[row])}, or a neighbour within {SLACK} of the probability"


def outputs(logits: Meta, **_: Any) -> dict[str, Meta]:
    return {"out": Meta(logits.shape[:-1], "i64")}


def canonical(p: Problem) -> Problem | None:
    return _ordering.rows(p, "logits")


def work(p: Problem) -> Work:
    """Read the logits once, write an index a row; an exponential an element."""
    return Work(p["logits"].nbytes, p["out"].nbytes, {"exp": float(p["logits"].numel)})


def _torch() -> Callable[..., Any]:
    """Filters and torch.multinomial. Its draws are its own: comparable in time alone."""

    def run(logits: Tensor, seeds: Tensor | None, temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> Tensor:
        import torch

        if temperature == 0:
            return logits.argmax(-1)
        x = logits.flatten(0, -2).float() / temperature
        if top_k:
            x = x.masked_fill(x < x.topk(top_k, -1).values[..., -1:], float("-inf"))
        if top_p < 1:
            sorted_, at = x.sort(dim=-1, descending=True)
            share = sorted_.softmax(-1)
            x = torch.full_like(x, float("-inf")).scatter(-1, at, sorted_.masked_fill(share.cumsum(-1) - share >= top_p, float("-inf")))
        share = x.softmax(-1)
        if min_p > 0:
            share = share.where(share >= min_p * share.amax(-1, keepdim=True), 0.0)
        return torch.multinomial(share, 1).view(logits.shape[:-1])

    return run


def _wrong(change: str) -> Callable[..., Any]:
    def run(logits: Tensor, seeds: Tensor | None, temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> Tensor:
        if change == "seed":
            return reference(logits, None if seeds is None else seeds + 1, temperature, top_k, top_p, min_p, seed + 1)
        if change == "k":
            return reference(logits, seeds, temperature, top_k + 1 if top_k else 0, top_p, min_p, seed)
        if change == "min_p":
            return reference(logits, seeds, temperature, top_k, top_p, 0.0, seed)
        if change == "greedy":
            return reference(logits, seeds, 0.0, top_k, top_p, min_p, seed)
        if change == "temperature":
            return reference(logits, seeds, temperature and 1.0, top_k, top_p, min_p, seed)
        if change == "masked":
            return reference(logits.nan_to_num(0.0, None, 0.0), seeds, temperature, top_k, top_p, min_p, seed)
        if temperature == 0:
            return reference(logits, seeds, temperature, top_k, top_p, min_p, seed)
        x = (logits.flatten(0, -2) if logits.dim() > 1 else logits.unsqueeze(0)).float()
        order = _ordering.ordered(x, None, True, "smallest")
        u = uniform(seed, seeds, x.shape[0], x.device)
        return _draw(x, order, _weights(x, temperature), top_k, top_p, min_p, u, "p").view(logits.shape[:-1])

    return run


def _cases() -> list[Case]:
    def call(
        shape: tuple[int, ...], d: str, fill: str = "normal", layout: str = "contiguous", temperature: float = 1.0, top_k: int = 0,
        top_p: float = 1.0, min_p: float = 0.0, seed: int = 7, own: bool = False,
    ) -> dict[str, Any]:
        return {
            "logits": Input(shape, d, fill, layout), "seeds": Input(shape[:-1], "i32") if own else None,
            "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
            "seed": seed
        }

    ways: dict[str, dict[str, Any]] = {
        "plain": {}, "k 50": {"top_k": 50}, "p 0.9": {"top_p": 0.9}, "k 50, p 0.9": {"top_k": 50, "top_p": 0.9},
        "min_p 0.05": {"min_p": 0.05}, "greedy": {"temperature": 0.0},
    }
    bench = [case(f"256x128256 {name}", tags="bench model", **call((256, 128256), "bf16", **how)) for name, how in ways.items()]
    bench += [
        case(f"{r}x128256 {name}", tags="bench model", **call((r, 128256), "f32", **ways[name])) for r in (1, 1024)
        for name in ("plain", "k 50, p 0.9")
    ]
    bench += [case("64x128256 p 0.9", tags="bench model", **call((64, 128256), "bf16", **ways["p 0.9"]))] + [
        case(f"1x131072 {name}", tags="bench", **call((1, 131072), d, **ways[name])) for d in ("f32", "bf16")
        for name in ("p 0.9", "k 50, p 0.9")
    ]
    edge = []
    for d in ("f32", "f16", "bf16"):
        edge += [case(f"{name} 40x900", tags="edge", **call((40, 900), d, **how)) for name, how in ways.items()]
        if d == "f16":
            continue
        edge += [
            case(f"{name} 150x70", tags="edge", why="a row a multiprocessor", **call((150, 70), d, **how)) for name, how in ways.items()
        ]
        edge += [
            case("plain 530x20", tags="edge", why="four rows a multiprocessor", **call((530, 20), d)),
            case("p 0.9 530x20", tags="edge", why="four rows a multiprocessor", **call((530, 20), d, top_p=0.9)),
            case("cold 40x900", tags="edge", **call((40, 900), d, temperature=0.25)),
            case("hot 40x901, all three", tags="edge", **call((40, 901), d, temperature=4.0, top_k=300, top_p=0.8, min_p=0.02)),
            case("k 1500 of 4003", tags="edge", why="more than the block's list", **call((12, 4003), d, top_k=1500, top_p=0.95)),
            case(
                "a flat p 0.95 of 5001", tags="edge", why="the nucleus is longer than the block's list",
                **call((8, 5001), d, temperature=20.0, top_p=0.95)
            ),
            case("k above all", tags="edge", **call((9, 60), d, top_k=60)),
            case(
                "p 0.9 of 20011", tags="edge", why="several blocks of a row", **call((2, 20011), d, temperature=0.8, top_p=0.9, min_p=0.001)
            ),
            case("k 300, p 0.9 of 20011", tags="edge", why="several blocks of a row", **call((2, 20011), d, top_k=300, top_p=0.9)),
            case("min_p 0.01 of 20011", tags="edge", why="several blocks of a row", **call((2, 20011), d, min_p=0.01)),
            case(
                "k 2500, p 0.9 of 20011", tags="edge", why="several blocks of a row, more than a list",
                **call((1, 20011), d, top_k=2500, top_p=0.9)
            ),
            case(
                "a flat p 0.9 of 20011", tags="edge", why="more than a block's candidates",
                **call((1, 20011), d, temperature=60.0, top_p=0.9)
            ),
            case("slices 3x4x70", tags="edge", **call((3, 4, 70), d)),
            case("one element", tags="edge", **call((1, 1), d)),
            case("no rows", tags="edge", **call((0, 30), d)),
            case("transposed", tags="edge", **call((30, 44), d, "normal", "transposed")),
            case("rows padded", tags="edge", **call((9, 256), d, "normal", "padded")),
            case("rows misaligned", tags="edge", **call((9, 260), d, "normal", "sliced", top_k=9)),
            case("expanded", tags="edge", **call((6, 320), d, "normal", "expanded")),
            case("another seed", tags="edge", **call((40, 300), d, seed=-5)),
            *(case(f"a seed a row, {name}", tags="edge", **call((40, 300), d, own=True, **ways[name])) for name in ("plain", "k 50, p 0.9", "greedy")),
            case("a seed a row 3x2x900", tags="edge", **call((3, 2, 900), d, own=True)),
            case("a seed a row 2x20011", tags="edge", why="several blocks of a row", **call((2, 20011), d, own=True, top_p=0.9)),
        ]
        for fill in ("nan", "-inf rows") if d == "bf16" else ("nan", "inf", "-inf", "-inf rows", "-0.0", "equal", "wide", "large"):
            edge += [
                case(f"{fill}, {name}", tags="edge", **call((12, 300), d, fill, **ways[name]))
                for name in ("plain", "k 50, p 0.9", "greedy")
            ]
        edge.append(
            case("equal, p 0.5 of 300", tags="edge", why="the nucleus ends among equal ones", **call((24, 300), d, "equal", top_p=0.5))
        )
        edge.append(case("equal, p 0.5 of 4000", tags="edge", **call((5, 4000), d, "equal", top_p=0.5)))
    huge = [case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **call((17000, 128256), "bf16"))]
    return bench + edge + huge


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    seed = options["seed"] if tensors["seeds"] is None else tensors["seeds"]
    return [tensors["logits"], options["temperature"]], {
        "top_k": options["top_k"] or None, "top_p": options["top_p"], "min_p": options["min_p"], "seed": seed,
    }


def _rows(p: Problem) -> dict[str, int] | str:
    return f"{_randomness.PLACE}: give seed as a tensor, one for each row" if p.get("seeds") is None else {"logits": 0, "seeds": 0, "out": 0}



OP = Op(
    reference,
    calls=Calls(cpu=cpu, public=_public),
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(
        lambda dtype, rows, columns: {
            "logits": Input((rows, columns), dtype), "seeds": Input((rows,), "i32"), "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 7,
        },
        {"rows": (1, 1 << 26), "columns": (64, 1 << 20)}, rows="rows", models={"columns": "vocabulary"}, axis="columns",
    ),
    work=work,
    values=Values(runtime_options=("temperature", "top_k", "top_p", "min_p", "seed")),
    judging=Judging(rows=_rows, compare={"out": _fits}),
    peers={"torch": _torch},
    wrong={
        "another seed": _wrong("seed"), "one more of top_k": _wrong("k"), "min_p ignored": _wrong("min_p"),
        "always greedy": _wrong("greedy"), "temperature ignored": _wrong("temperature"), "masked drawn": _wrong("masked"),
        "the last of the nucleus left out": _wrong("p"),
    },
)
