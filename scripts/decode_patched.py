"""Decode with rooftop's functions, in 16 or fewer bits: python scripts/decode_patched.py FOLDER --format int4 --text "Once upon a time"

MODEL is a folder or name for from_pretrained, or a config.json: random weights, and random tokens as the prompt, then."""

import argparse
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import rooftop

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("model")
p.add_argument("--format", default="", help="int4, int8, fp8, mxfp4, ...: of rooftop.quantize_model")
p.add_argument("--text", default="Once upon a time")
p.add_argument("--new", type=int, default=128)
p.add_argument("--temperature", type=float, default=0.0)
args = p.parse_args()

device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
if args.model.endswith(".json"):
    model, tokenizer = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model), dtype=dtype), None
    ids = torch.randint(3, model.config.vocab_size, (1, 64))
else:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype), AutoTokenizer.from_pretrained(args.model)
    ids = tokenizer(args.text, return_tensors="pt").input_ids
model.to(device).eval()
if args.format:
    rooftop.quantize_model(model, args.format)
rooftop.patch(model)
began = time.perf_counter()
out = rooftop.generate(model, ids.to(device), max_new_tokens=args.new, temperature=args.temperature)
print(tokenizer.decode(out[0]) if tokenizer else out[0].tolist())
print(f"{out.shape[1] - ids.shape[1]} tokens in {time.perf_counter() - began:.2f} s")
