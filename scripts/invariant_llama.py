"""Prove that a Llama gives each token the same bits, whatever else is in the call: alone, in a batch, padded, packed, prefilled in chunks, decoded with a
cache; and that the losses of training in packed sequences are the log-probabilities of inference. Writes one JSON record.

    python scripts/invariant_llama.py --out results/h200/invariant_llama.json     # bfloat16, 8 layers of 2048, on the GPU
    python scripts/invariant_llama.py --device cpu --tiny                         # float32, seconds

Exit code 1 if a bit differs. Without `rooftop.invariant()` (--free) the table shows what differs then."""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rooftop

BATCH = 64
SIZES = {  # of the model, and the tokens of a sequence
    False: {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000},
    True: {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 128},
}


def made(tiny: bool, device: str, seed: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(**SIZES[tiny], max_position_embeddings=16384, rope_theta=500000.0)  # type: ignore[arg-type]
    with torch.device(device):
        model = LlamaForCausalLM(config).to(torch.float32 if tiny else torch.bfloat16).eval()
    rooftop.patch(model, fused_linear_cross_entropy=False, linear=True)
    return model


def unequal(got: Tensor, expected: Tensor) -> int:
    """Elements whose bits differ."""
    kind = torch.int16 if got.element_size() == 2 else torch.int32
    return int((got.contiguous().view(kind) != expected.contiguous().view(kind)).sum())


class Proof:
    """One model and its sequences. Each way yields (logits or losses, what they must be)."""

    def __init__(self, model: Any, ids: list[Tensor]) -> None:
        self.model, self.ids = model, ids
        self.alone = [self.logits(x[None])[0] for x in ids]

    def logits(self, ids: Tensor, **more: Any) -> Tensor:
        with torch.no_grad():
            return self.model(input_ids=ids, use_cache=False, **more).logits

    def again(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield self.logits(self.ids[0][None])[0], self.alone[0]

    def batch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """With so many others of its length."""
        n, vocabulary = len(self.ids[0]), self.model.config.vocab_size
        others = torch.randint(3, vocabulary, (BATCH - 1, n), generator=torch.Generator().manual_seed(5)).to(self.ids[0])
        yield self.logits(torch.cat((others[:7], self.ids[0][None], others[7:])))[7], self.alone[0]

    def padded(self) -> Iterator[tuple[Tensor, Tensor]]:
        most = max(map(len, self.ids)) + 3
        ids = torch.stack([nn.functional.pad(x, (0, most - len(x))) for x in self.ids])
        mask = torch.stack([torch.arange(most) < len(x) for x in self.ids]).long().to(ids.device)
        for row, x, expected in zip(self.logits(ids, attention_mask=mask), self.ids, self.alone, strict=True):
            yield row[: len(x)], expected

    def together(self) -> tuple[Tensor, dict[str, Any], list[int]]:
        """All sequences, one behind another, what the model is told of them, and where they begin."""
        starts = [0]
        for x in self.ids:
            starts.append(starts[-1] + len(x))
        bounds = torch.tensor(starts, dtype=torch.int32, device=self.ids[0].device)
        positions = torch.cat([torch.arange(len(x), device=x.device) for x in self.ids])[None]
        longest = max(map(len, self.ids))
        told = {"position_ids": positions, "cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
        return torch.cat(self.ids)[None], told, starts

    def packed(self) -> Iterator[tuple[Tensor, Tensor]]:
        ids, told, starts = self.together()
        found = self.logits(ids, **told)[0]
        for i, expected in enumerate(self.alone):
            yield found[starts[i] : starts[i + 1]], expected

    def pieces(self, ends: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """The first sequence, piece by piece, with a cache."""
        from transformers import DynamicCache

        cache, first = DynamicCache(), 0
        for last in ends:
            with torch.no_grad():
                found = self.model(input_ids=self.ids[0][None, first:last], past_key_values=cache, use_cache=True).logits[0]
            yield found, self.alone[0][first:last]
            first = last

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        n = len(self.ids[0])
        for size in (n // 3 + 1, n // 5 + 1):
            yield from self.pieces([*range(size, n, size), n])

    def decoded(self) -> Iterator[tuple[Tensor, Tensor]]:
        """A prompt, then token by token."""
        n = len(self.ids[0])
        yield from self.pieces([*range(max(1, n - 24), n), n])

    def losses(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Of training in one packed row, against the log-probabilities of each sequence alone."""
        ids, told, starts = self.together()
        self.model.train()
        hidden = self.model.model(input_ids=ids, use_cache=False, **told).last_hidden_state[0]
        self.model.eval()
        targets = torch.cat([torch.cat((x[1:], x.new_full((1,), -100))) for x in self.ids])
        losses = rooftop.linear_cross_entropy(hidden, self.model.lm_head.weight, targets, reduction="none")
        assert losses.requires_grad
        for i, (x, logits) in enumerate(zip(self.ids, self.alone, strict=True)):
            yield losses[starts[i] : starts[i + 1] - 1].detach(), rooftop.cross_entropy(logits[:-1], x[1:], reduction="none")

    def captured(self) -> Iterator[tuple[Tensor, Tensor]]:
        """A CUDA graph of the first sequence."""
        if self.ids[0].device.type != "cuda":
            return
        given, stream = self.ids[0][None].clone(), torch.cuda.Stream()
        causal = torch.empty(1, 0, 0, 2, dtype=torch.int32, device=given.device)  # told, as nothing can be looked at in a capture
        with torch.cuda.stream(stream):
            self.logits(given, attention_mask=causal)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found = self.logits(given, attention_mask=causal)
        graph.replay()
        torch.cuda.synchronize()
        yield found[0], self.alone[0]


WAYS: dict[str, Callable[[Proof], Iterator[tuple[Tensor, Tensor]]]] = {
    "once more": Proof.again, f"in a batch of {BATCH}": Proof.batch, "padded": Proof.padded, "packed": Proof.packed, "prefilled in chunks": Proof.chunks,
    "decoded with a cache": Proof.decoded, "loss of packed training": Proof.losses, "in a CUDA graph": Proof.captured,
}


def prove(tiny: bool, device: str, length: int, seed: int, free: bool) -> dict[str, Any]:
    """The record."""
    started, model = time.monotonic(), made(tiny, device, seed)
    lengths = [length, 1, length // 2 + 1, length - 3]
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(3, model.config.vocab_size, (n,), generator=generator).to(device) for n in lengths]
    rows = []
    with contextlib.nullcontext() if free else rooftop.invariant():
        proof = Proof(model, ids)
        for name, way in WAYS.items():
            began, wrong, count = time.monotonic(), 0, 0
            for got, expected in way(proof):
                wrong, count = wrong + unequal(got, expected), count + got.numel()
            if count:
                rows.append({"way": name, "values": count, "unequal": wrong, "seconds": round(time.monotonic() - began, 2)})
    return {
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu", "torch": torch.__version__, "model": SIZES[tiny],
        "dtype": str(model.dtype).removeprefix("torch."), "lengths": lengths, "seed": seed, "invariant": not free, "ways": rows,
        "seconds": round(time.monotonic() - started, 1),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="two layers of 64 columns in float32")
    parser.add_argument("--length", type=int, help="tokens of the longest sequence; 9 with --tiny, else 1500")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--free", action="store_true", help="without the mode: what differs then")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(argv)
    record = prove(given.tiny, given.device, given.length or (9 if given.tiny else 1500), given.seed, given.free)
    for row in record["ways"]:
        print(f"{row['way']:24} {row['unequal']:10} of {row['values']:10} differ   {row['seconds']:6.2f} s")
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["unequal"] for row in record["ways"]) and not given.free else 0


if __name__ == "__main__":
    sys.exit(main())
