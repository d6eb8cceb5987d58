"""What a step of decoding costs under `rooftop.invariant()`: a patched Llama of 16 layers generates with and without the mode. Writes one JSON record.

    python scripts/invariant_step.py --out results/h200/invariant_step.json     # 1.2 B parameters, bfloat16, on the GPU
    python scripts/invariant_step.py --tiny                                     # on the CPU: seconds

A step is the difference of two lengths of generation, divided by the tokens between them, so that the prefill and the capture of a CUDA graph stay out of it.
The ways are timed in turns, ROUNDS times; the record has each time, the table their medians."""

import argparse
import contextlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import rooftop

ROUNDS = 3
SIZES: dict[bool, dict[str, Any]] = {  # of the model
    False: {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256},
    True: {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 128},
}
TOKENS = {False: (1024, 16, 80), True: (8, 2, 4)}  # of the prompt, and the two lengths of generation
BATCHES = {False: (1, 16, 64), True: (1, 2)}


def seconds(model: Any, ids: torch.Tensor, new: int) -> float:
    if ids.is_cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    rooftop.generate(model, ids, max_new_tokens=new, temperature=0.0)
    if ids.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(tiny: bool, device: str, seed: int) -> dict[str, Any]:
    """The record."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    with torch.device(device):
        config = LlamaConfig(**SIZES[tiny], max_position_embeddings=8192)
        model = LlamaForCausalLM(config).to(torch.float32 if device == "cpu" else torch.bfloat16).eval()
    rooftop.patch(model, linear=True)
    prompt, few, many = TOKENS[tiny]
    rows = []
    for batch in BATCHES[tiny]:
        ids = torch.randint(3, config.vocab_size, (batch, prompt), device=device)
        steps: dict[str, list[float]] = {"free": [], "invariant": []}
        for turn in range(ROUNDS + 1):
            for way, found in steps.items():
                with rooftop.invariant() if way == "invariant" else contextlib.nullcontext():
                    lasted = seconds(model, ids, few), seconds(model, ids, many)
                if turn:  # the first compiles
                    found.append(round(1e3 * (lasted[1] - lasted[0]) / (many - few), 4))
        row = {"sequences": batch, "step_ms": steps, "ratio": round(statistics.median(steps["invariant"]) / statistics.median(steps["free"]), 3)}
        print(row, flush=True)
        rows.append(row)
    return {
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu", "torch": torch.__version__, "model": SIZES[tiny],
        "dtype": str(model.dtype).removeprefix("torch."), "prompt": prompt, "new": [few, many], "seed": seed, "steps": rows,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="two layers of 64 columns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(argv)
    record = measure(given.tiny, given.device, given.seed)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
