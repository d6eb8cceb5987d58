"""topk, kthvalue, topk_mask, sort and argsort on adversarial rows, and the draws of sample by chi-square. scripts/prove_selection.py writes
a record of both.

    python -m rooftop.lab.fuzz.selection --device cuda                  # 10^5 rows, 10^7 draws
    python -m rooftop.lab.fuzz.selection --device cpu --rows 2000 --draws 100000

Rows are of twelve kinds: normal, rounded, of equal leading bits, all equal, denormals, -infinity, with NaN, rising, falling, +-0, with
infinities, of few mantissa bits. What is right follows from torch's stable sort of whole numbers that order as the values do, and this from
NumPy's sort of the floats, not from the library's own reference. Draws are compared with probabilities worked out in float64: Pearson's
chi-square, as a normal deviate by Wilson and Hilferty. Beyond 4.4 (1e-5 on two sides) it is wrong, and so is any draw of what has no
probability. There are more short rows
than long ones: a length's share falls with its square root."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

import rooftop
from rooftop.lab.exit_codes import Parser, device, ended, positive

if TYPE_CHECKING:
    from torch import Generator, Tensor

KINDS = 12
SHAPES = ((200, (1, 7, 200)), (1000, (5, 64, 1000)), (3000, (64, 700)), (9000, (33, 2048)), (40000, (50, 5000)), (1 << 17, (3, 64, 2047)))
WAYS: tuple[dict[str, Any], ...] = ({}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 40, "top_p": 0.9})
MOST = 4.4
LONG = 20011  # logits: more than a block of any kernel holds at once
BATCH = 200_000_000  # logits of the draws made at a time


def adversarial(rows: int, n: int, generator: Generator) -> Tensor:
    """float32 [rows, n] on the generator's device; row r is of kind r modulo KINDS."""
    import torch

    x = torch.randn(rows, n, generator=generator, device=generator.device)
    of = [x[i::KINDS] for i in range(KINDS)]
    of[1].mul_(2).round_()
    of[2].abs_().mul_(1e-4).add_(1)
    of[3].fill_(0.5)
    of[4].mul_(1e-39)
    of[5].fill_(-math.inf)
    of[6].masked_fill_(of[6] > 1.5, math.nan)
    of[7].copy_(of[7].sort(-1).values)
    of[8].copy_(of[8].sort(-1, descending=True).values)
    of[9].copy_(torch.where(of[9] > 0, 0.0, -0.0))
    of[10].round_().masked_fill_(of[10] > 2, math.inf)
    of[11].view(torch.int32).bitwise_and_(~0xFF)
    return x


def share_of(rows: int, n: int) -> int:
    """How many of `rows` have n elements."""
    return math.ceil(rows * n**-0.5 / sum(m**-0.5 for m, _ in SHAPES))


def middles(n: int) -> tuple[int, ...]:
    """k for which topk would sort the whole row, for the others alone."""
    return tuple(dict.fromkeys((n // 2, n - n // 9, n - 2)))


def ordered(x: Tensor, descending: bool) -> Tensor:
    """Indices of each row in order, equals by index; NaN above all, -0.0 as +0.0. A stable sort of whole numbers that order as the values
    do."""
    import torch

    bits = x.view(torch.int32)
    size = bits & 0x7FFFFFFF
    key = torch.where(bits < 0, -size, size).masked_fill_(size > 0x7F800000, 0x7FFFFFFF)
    return (-key if descending else key).sort(dim=-1, stable=True).indices


def by_numpy(x: Tensor, descending: bool) -> np.ndarray:
    """The same of floats, by NumPy alone."""
    held = x.double().cpu().numpy() + 0.0
    key = np.where(np.isnan(held), np.inf, held), np.isnan(held)
    return np.lexsort((-key[0], ~key[1]) if descending else key, axis=-1)


def compile_ahead(rows: int) -> int:
    """The kernels that `wrong_rows` runs on the current GPU, and those of the draws, on all cores. Returns how many programs they are."""
    import torch

    from rooftop.core.implementation import device_of
    from rooftop.core.spec import Case, Input, case
    from rooftop.lab import aot, candidates

    cases: dict[str, list[Case]] = {"topk": [], "kthvalue": [], "topk_mask": [], "sort": [], "argsort": [], "sample": []}
    for n, ks in SHAPES:
        each = share_of(rows, n)
        full = min(each, max(KINDS, (1 << 24) // n))
        for count in {full, each % full or full}:
            given: dict[str, Any] = {"x": Input((count, n), "f32"), "lengths": None, "nan": "largest"}
            cases["argsort"].append(case("", descending=False, **given))
            cases["sort"] += [case("", descending=descending, **given) for descending in (True, False)]
            for k in (*ks, *middles(n)):
                cases["kthvalue"].append(case("", x=given["x"], k=k, nan="largest"))
                cases["topk_mask"].append(case("", k=k, largest=True, **given))
            for k in ks:
                cases["topk"] += [case("", k=k, largest=largest, **given) for largest in (True, False)]
    held: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0}
    cases["sample"] += [case("", logits=Input((BATCH // n, n), "f32"), **held) for n in (1000, LONG)]
    todo = [(s, c) for op, listed in cases.items() for s in candidates.find([op]) for c in listed]
    return aot.compile_first(todo, device_of(torch.cuda.current_device()))


def wrong_rows(rows: int, device: str, seed: int, seconds: float = math.inf) -> Iterator[tuple[int, int, str]]:
    """(elements of a row, rows looked at, what was wrong with one of them, or nothing), a batch at a time; no more batches of a length once
    its share of `seconds` is over."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    started = time.monotonic()
    for turn, (n, ks) in enumerate(SHAPES):
        left = each = share_of(rows, n)
        while left > 0 and time.monotonic() - started < seconds * (turn + 1) / len(SHAPES):
            count = min(left, max(KINDS, (1 << 24) // n))
            x = adversarial(count, n, generator)
            up, down = ordered(x, False), ordered(x, True)
            bad = ""
            if left == each:  # the order that all is held against, itself
                for descending, found in ((False, up), (True, down)):
                    if not np.array_equal(found[: 2 * KINDS].cpu().numpy(), by_numpy(x[: 2 * KINDS], descending)):
                        bad = f"the proof's own order of {n}"
            left -= count
            for k in ks:
                for largest, want in ((True, down), (False, up)):
                    values, indices = rooftop.topk(x, k, largest=largest)
                    if not torch.equal(indices, want[:, :k]):
                        bad = f"topk {count}x{n} k={k} largest={largest}: indices"
                    if not torch.equal(values.view(torch.int32), x.gather(-1, want[:, :k]).view(torch.int32)):
                        bad = f"topk {count}x{n} k={k} largest={largest}: values"
            for k in (*ks, *middles(n)):
                if not torch.equal(rooftop.kthvalue(x, k)[1], up[:, k - 1]):
                    bad = f"kthvalue {count}x{n} k={k}"
                mask = torch.zeros(x.shape, dtype=torch.bool, device=x.device).scatter_(-1, down[:, :k], True)
                if not torch.equal(rooftop.topk_mask(x, k), mask):
                    bad = f"topk_mask {count}x{n} k={k}"
            for descending, want in ((True, down), (False, up)):
                values, indices = rooftop.sort(x, descending=descending)
                if not torch.equal(indices, want) or not torch.equal(values.view(torch.int32), x.gather(-1, want).view(torch.int32)):
                    bad = f"sort {count}x{n} descending={descending}"
            if not torch.equal(rooftop.argsort(x), up):
                bad = f"argsort {count}x{n}"
            yield n, count, bad


def deviate(
    draws: int, how: dict[str, Any], device: str, seed: int, length: int = 1000, temperature: float = 0.8
) -> tuple[float, int, int]:
    """(the normal deviate of chi-square, its degrees of freedom, draws of what has no probability)."""
    import torch

    logits = torch.randn(1, length, generator=torch.Generator().manual_seed(2)) * 2
    found = torch.zeros(length, dtype=torch.float64)
    batch = min(draws, (BATCH if device != "cpu" else BATCH // 10) // length)
    turns = -(-draws // batch)
    held = logits.to(device).expand(batch, length).contiguous()
    for turn in range(turns):
        drawn = rooftop.sample(held, temperature, seed=seed + turn, **how)
        found += torch.bincount(drawn, minlength=length).double().cpu()
    share: Tensor = (logits[0].double() / temperature).softmax(0)
    order = share.argsort(descending=True)[: how.get("top_k", length)]
    run = share[order].cumsum(0)
    order = order[(run - share[order]) < how.get("top_p", 1.0) * run[-1]]
    order = order[share[order] >= how.get("min_p", 0.0) * share.max()]
    want = torch.zeros(length, dtype=torch.float64)
    want[order] = share[order] / share[order].sum() * batch * turns
    big = want >= 5
    pairs = [torch.stack((found[big], want[big]))]
    if float(want[~big].sum()) >= 5:  # what is rare counts together
        pairs.append(torch.stack((found[~big].sum(), want[~big].sum())).unsqueeze(-1))
    seen, expected = torch.cat(pairs, -1)
    chi, free = float(((seen - expected) ** 2 / expected).sum()), expected.numel() - 1
    z = ((chi / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free)) if free > 0 else 0.0
    return z, free, int(found[want == 0].sum())


def main() -> None:
    parser = Parser(
        prog="python -m rooftop.lab.fuzz.selection", description="Adversarial rows of the ordering ops, and draws by chi-square."
    )
    parser.add_argument("--rows", type=positive, default=100_000)
    parser.add_argument("--draws", type=positive, default=10_000_000)
    parser.add_argument("--device", type=device, default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="for the rows: fewer of them where they take longer")
    how = parser.parse_args()
    looked: Counter[int] = Counter()
    wrong = []
    if how.device != "cpu":
        print(f"compiled {compile_ahead(how.rows)} programs", flush=True)
    for n, count, bad in wrong_rows(how.rows, how.device, how.seed, how.seconds):
        if n not in looked and looked:
            print(f"{sum(looked.values())} rows of up to {max(looked)} looked at", flush=True)
        looked[n] += count
        wrong += [bad] if bad else []
    listed = ", ".join(f"{count} of {n}" for n, count in looked.items())
    print(f"{sum(looked.values())} rows ({listed}), seed {how.seed}: {len(wrong)} batches wrong {'; '.join(wrong[:5])}", flush=True)
    for way in WAYS:
        z, free, beyond = deviate(how.draws // len(WAYS), way, how.device, how.seed)
        print(f"{how.draws // len(WAYS)} draws {way}: z {z:+.2f} of {free} degrees of freedom, {beyond} without probability", flush=True)
        wrong += [str(way)] if abs(z) > MOST or beyond else []
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    ended(main)
