"""A small GPT trained with gradients that travel in float32, int8 and int4, from one start on the same batches: loss curves, and how far the ends are apart.

    torchrun --nproc-per-node 2 scripts/train_gpt_quantised.py --steps 300 --seeds 3 --out curves.json --picture curves.svg

The text is made: words drawn by a random chain of second order, so that there is something to learn, nothing to download, and every rank can
make its own batches. On GPUs over NCCL, else over gloo."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from rooftop import comm
from rooftop.lab.report.loss_curves import drawn

WORDS, LENGTH = 64, 64
RUNS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "int8": {"wire": "int8"},
    "int4, fed back": {"wire": "int4", "group_size": 64, "error_feedback": True},
}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, WORDS))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(x) + self.places.weight[: x.shape[1]]))


def batch(chain: Tensor, count: int, g: torch.Generator) -> Tensor:
    """[count, LENGTH + 1] words, each drawn by the two before it."""
    found = [torch.randint(WORDS, (count,), generator=g), torch.randint(WORDS, (count,), generator=g)]
    while len(found) < LENGTH + 1:
        found.append(torch.multinomial(chain[(found[-2] + found[-1]) % WORDS // 8 * 8 + found[-1] % 8], 1, generator=g)[:, 0])
    return torch.stack(found, 1)


def train(options: dict[str, Any] | None, seed: int, a: argparse.Namespace, device: torch.device) -> list[float]:
    """The mean loss of all ranks at each step."""
    torch.manual_seed(seed)
    model = DistributedDataParallel(GPT(a.width, a.layers, a.heads).to(device))
    if options is not None:
        model.register_comm_hook(None, comm.ddp_hook(**options))
    optimiser = torch.optim.AdamW(model.parameters(), lr=a.rate, betas=(0.9, 0.95))
    chain = torch.softmax(3 * torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(1)), -1)
    g = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    losses = torch.zeros(a.steps, device=device)
    for step in range(a.steps):
        for part in optimiser.param_groups:
            part["lr"] = a.rate * min(1, (step + 1) / 20) * (1 - 0.9 * step / a.steps)
        text = batch(chain, a.batch, g).to(device)
        loss = cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses[step] = loss.detach()
    dist.all_reduce(losses)
    return (losses / dist.get_world_size()).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, value in (
        ("steps", int, 300), ("seeds", int, 3), ("width", int, 128), ("layers", int, 2), ("heads", int, 4), ("batch", int, 16), ("rate", float, 2e-3),
    ):
        parser.add_argument(f"--{name}", type=kind, default=value)
    parser.add_argument("--out", type=Path, help="JSON: run -> seed -> losses")
    parser.add_argument("--picture", type=Path, help="SVG of the loss curves")
    a = parser.parse_args()
    on_gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpus else "gloo")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    curves = {name: [train(options, seed, a, device) for seed in range(a.seeds)] for name, options in RUNS.items()}
    if dist.get_rank() == 0:
        ends = {name: [sum(losses[-20:]) / len(losses[-20:]) for losses in found] for name, found in curves.items()}
        for name, found in ends.items():
            apart = sum(found) / sum(ends["plain"]) - 1
            print(f"{name:15} mean loss of the last 20 steps, by seed: {', '.join(f'{v:.4f}' for v in found)}; {100 * apart:+.2f} % of plain")
        if a.out is not None:
            a.out.write_text(json.dumps(curves) + "\n", encoding="utf-8")
        if a.picture is not None:
            a.picture.write_text(drawn(curves), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
