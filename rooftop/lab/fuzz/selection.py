"""topk, kthvalue and sort on adversarial rows, and the draws of sample by chi-square.

    python -m rooftop.lab.fuzz.selection --device cuda                  # 10^5 rows, 10^7 draws
    python -m rooftop.lab.fuzz.selection --device cpu --rows 2000 --draws 100000

Rows are of twelve kinds: normal, rounded, of equal leading bits, all equal, denormals, -infinity, with NaN, rising, falling, +-0, with infinities, of few
mantissa bits. What is right follows from NumPy's stable sort of whole numbers that order as the values do, not from the library's own reference. Draws are
compared with probabilities worked out in float64: Pearson's chi-square, as a normal deviate by Wilson and Hilferty. Beyond 4.4 (1e-5 on two sides) it is
wrong, and so is any draw of what has no probability."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

import rooftop

if TYPE_CHECKING:
    from torch import Tensor

KINDS = 12
SHAPES = ((200, (1, 7, 200)), (1000, (5, 64, 1000)), (3000, (64, 700)), (9000, (33, 2048)), (40000, (50, 5000)), (1 << 17, (3, 64, 2047)))
WAYS: tuple[dict[str, Any], ...] = ({}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 40, "top_p": 0.9})
MOST = 4.4


def adversarial(rows: int, n: int, generator: np.random.Generator) -> np.ndarray:
    """float32 [rows, n]; row r is of kind r modulo KINDS."""
    x = generator.standard_normal((rows, n), dtype=np.float32)
    kind = np.arange(rows) % KINDS
    at = [kind == i for i in range(KINDS)]
    x[at[1]] = np.round(x[at[1]] * 2)
    x[at[2]] = 1 + np.abs(x[at[2]]) * np.float32(1e-4)
    x[at[3]] = 0.5
    x[at[4]] *= np.float32(1e-39)
    x[at[5]] = -np.inf
    x[at[6]] = np.where(x[at[6]] > 1.5, np.float32("nan"), x[at[6]])
    x[at[7]] = np.sort(x[at[7]], -1)
    x[at[8]] = -np.sort(x[at[8]], -1)
    x[at[9]] = np.where(x[at[9]] > 0, np.float32(0.0), np.float32(-0.0))
    x[at[10]] = np.where(x[at[10]] > 2, np.float32("inf"), np.round(x[at[10]]))
    x[at[11]] = (x[at[11]].view(np.int32) & ~0xFF).view(np.float32)
    return x


def ordered(x: np.ndarray, descending: bool) -> np.ndarray:
    """Indices of each row in order, equals by index; NaN above all, -0.0 as +0.0."""
    bits = x.view(np.int32).astype(np.int64)
    size = bits & 0x7FFFFFFF
    key = np.where(bits < 0, -size, size)
    key = np.where(size > 0x7F800000, np.int64(1) << 40, key)
    return np.argsort(-key if descending else key, axis=-1, kind="stable")


def wrong_rows(rows: int, device: str, seed: int) -> Iterator[tuple[int, str]]:
    """(rows looked at, what was wrong with one of them, or nothing), a batch at a time."""
    import torch

    generator = np.random.default_rng(seed)
    each = rows // len(SHAPES) + 1
    for n, ks in SHAPES:
        left = each
        while left > 0:
            count = min(left, max(KINDS, (1 << 24) // n))
            left -= count
            x = adversarial(count, n, generator)
            on = torch.from_numpy(x).to(device)
            up, down = ordered(x, False), ordered(x, True)
            bad = ""
            for k in ks:
                for largest, want in ((True, down), (False, up)):
                    values, indices = rooftop.topk(on, k, largest=largest)
                    if not np.array_equal(indices.cpu().numpy(), want[:, :k]):
                        bad = f"topk {count}x{n} k={k} largest={largest}: indices"
                    if not np.array_equal(values.cpu().numpy().view(np.int32), np.take_along_axis(x, want[:, :k], -1).view(np.int32)):
                        bad = f"topk {count}x{n} k={k} largest={largest}: values"
                found = rooftop.kthvalue(on, k)[1].cpu().numpy()
                if not np.array_equal(found, up[:, k - 1]):
                    bad = f"kthvalue {count}x{n} k={k}"
                mask = np.zeros(x.shape, bool)
                np.put_along_axis(mask, down[:, :k], True, -1)
                if not np.array_equal(rooftop.topk_mask(on, k).cpu().numpy(), mask):
                    bad = f"topk_mask {count}x{n} k={k}"
            if not np.array_equal(rooftop.argsort(on).cpu().numpy(), up):
                bad = f"argsort {count}x{n}"
            yield count, bad


def deviate(draws: int, how: dict[str, Any], device: str, seed: int, length: int = 1000, temperature: float = 0.8) -> tuple[float, int, int]:
    """(the normal deviate of chi-square, its degrees of freedom, draws of what has no probability)."""
    import torch

    logits = torch.randn(1, length, generator=torch.Generator().manual_seed(2)) * 2
    found = torch.zeros(length, dtype=torch.float64)
    batch = min(draws, 200_000 if device != "cpu" else 20_000)
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
    chi, free = float(((found - want) ** 2 / want.clamp(min=1e-300))[big].sum()), int(big.sum()) - 1
    return ((chi / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free)), free, int(found[want == 0].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description="Adversarial rows of the ordering ops, and draws by chi-square.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--draws", type=int, default=10_000_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    how = parser.parse_args()
    looked, wrong = 0, []
    for count, bad in wrong_rows(how.rows, how.device, how.seed):
        looked += count
        wrong += [bad] if bad else []
    print(f"{looked} rows, seed {how.seed}: {len(wrong)} batches wrong {'; '.join(wrong[:5])}")
    for way in WAYS:
        z, free, beyond = deviate(how.draws // len(WAYS), way, how.device, how.seed)
        print(f"{how.draws // len(WAYS)} draws {way}: z {z:+.2f} of {free} degrees of freedom, {beyond} without probability")
        wrong += [str(way)] if abs(z) > MOST or beyond else []
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
