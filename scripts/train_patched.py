"""Train a causal language model of Hugging Face Transformers with rooftop's functions: python scripts/train_patched.py config.json --compile

MODEL is a folder or name for from_pretrained, or a config.json: random weights then. The tokens are random; put your data in `batches`."""

import argparse
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import rooftop

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("model")
p.add_argument("--steps", type=int, default=20)
p.add_argument("--batch", type=int, default=4)
p.add_argument("--length", type=int, default=2048)
p.add_argument("--compile", action="store_true")
args = p.parse_args()

device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
if args.model.endswith(".json"):
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model), dtype=dtype)
else:
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
model.to(device).train()
print(rooftop.patch(model, residual=True))
call = torch.compile(model, fullgraph=True) if args.compile else model
batches = (torch.randint(0, model.config.vocab_size, (args.batch, args.length), device=device) for _ in range(args.steps))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
for step, ids in enumerate(batches):
    began = time.perf_counter()
    loss = call(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.4f}, {(time.perf_counter() - began) * 1e3:.1f} ms")
