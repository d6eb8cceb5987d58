"""Models with random weights, eager and compiled, with Liger and with rooftop: a training step, decoding, prefill and experts. One short table each.

    python scripts/measure_models.py                              # on a GPU: everything, within --budget
    python scripts/measure_models.py --what train --models llama,moe --variants eager,patched,patched+compile
    python scripts/measure_models.py --what decode --batches 1,64
    python scripts/measure_models.py --tiny                       # small models on a CPU, to see that it runs

Variants of training: eager, compile, liger, liger+compile, patched, patched+compile; each may have +residual, +small (memory="small"),
+graphs (compiled with mode="reduce-overhead") and +plain:PART:PART (the parts that are left to the compiler; without it those of
`rooftop.patch`). Of decoding: transformers (a static cache and a compiled step), rooftop,
rooftop+int4, rooftop+int4+head.

Each variant is built, compiled and warmed up in a process of its own, --wave of them at once; then one after the other is timed, alone on the
GPU. Reported of training: ms of a step (median of 7), peak GiB, seconds to the first step, the loss after 12 steps; of decoding: tokens/s, the
share of --bandwidth that reading weights and cache once a step is, ms of the prefill."""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRAIN = "eager,compile,liger,patched,patched+residual,patched+compile,patched+compile+plain"
DECODE = "transformers,rooftop,rooftop+int4,rooftop+int4+head"
# (kind of model, its sizes, sequences, tokens of each)
MODELS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "llama": ("llama", {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
                        "vocab_size": 128256}, 4, 2048),
    "qwen3": ("qwen3", {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 8,
                        "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True}, 4, 2048),
    "small": ("llama", {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4,
                        "vocab_size": 32000}, 1, 2048),
    "wide": ("llama", {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8,
                       "vocab_size": 128256}, 1, 32768),
    "gemma": ("gemma3_text", {"hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 1,
                              "head_dim": 256, "vocab_size": 262144, "sliding_window": 512}, 4, 2048),
    "moe": ("qwen3_moe", {"hidden_size": 2048, "moe_intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 4,
                          "head_dim": 128, "num_experts": 64, "num_experts_per_tok": 8, "vocab_size": 151936}, 4, 2048),
}
TINY = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "vocab_size": 256, "num_experts": 4, "num_experts_per_tok": 2}
LIGER = {"llama": "llama", "qwen3": "qwen3", "gemma3_text": "gemma3_text", "qwen3_moe": "qwen3_moe"}
EXPERTS = {  # experts, of a token, hidden, intermediate, tokens
    "8 of 64, 2048 x 768": (64, 8, 2048, 768, 8192), "2 of 8, 4096 x 14336": (8, 2, 4096, 14336, 4096),
    "4 of 32, 2880 x 2880": (32, 4, 2880, 2880, 8192),
}
STEPS, TIMED = 12, 7
FIRST = 3  # token that is not special


def made(args: argparse.Namespace, name: str, seed: int = 0) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, sizes, batch, length = MODELS[name]
    sizes = {n: TINY[n] for n in sizes if n in TINY} if args.tiny else dict(sizes)
    config = AutoConfig.for_model(kind, **sizes, max_position_embeddings=65536, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(seed)
    with torch.device(args.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32 if args.tiny else torch.bfloat16)
    return model, (2, 16) if args.tiny else (batch, length)


def sync(args: argparse.Namespace) -> None:
    import torch

    if args.device == "cuda":
        torch.cuda.synchronize()


def seconds(args: argparse.Namespace, f: Callable[[], Any]) -> float:
    sync(args)
    began = time.perf_counter()
    f()
    sync(args)
    return time.perf_counter() - began


def peak(args: argparse.Namespace) -> float:
    import torch

    return torch.cuda.max_memory_allocated() / 2**30 if args.device == "cuda" else 0.0


def train(args: argparse.Namespace, name: str, variant: str) -> Callable[[], dict[str, Any]]:
    import torch

    import rooftop

    how, *flags = variant.split("+")
    model, (batch, length) = made(args, name)
    model.train()
    if how == "liger":
        import liger_kernel.transformers as liger

        getattr(liger, f"apply_liger_kernel_to_{LIGER[MODELS[name][0]]}")(model=model)
    elif how == "patched":
        plain = next((tuple(f.split(":")[1:]) for f in flags if f.startswith("plain")), None)
        more = {"memory": "small"} if "small" in flags else {}
        rooftop.patch(model, residual="residual" in flags, decompose=plain, **more)
    mode = "reduce-overhead" if "graphs" in flags else None
    call = torch.compile(model, fullgraph=how != "liger", backend=args.backend, mode=mode) if "compile" in (how, *flags) else model
    ids = torch.randint(0, model.config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(1)).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=args.device == "cuda")
    losses: list[Any] = []

    def step() -> None:
        loss = call(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())

    first = seconds(args, step)
    for _ in range(STEPS - TIMED - 1):
        step()
    sync(args)

    def timed() -> dict[str, Any]:
        if args.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        ms = statistics.median(seconds(args, step) for _ in range(TIMED)) * 1e3
        return {"ms": ms, "GiB": peak(args), "first step s": first, "loss": float(losses[STEPS - 1])}

    return timed


def loss(args: argparse.Namespace, name: str, variant: str) -> Callable[[], dict[str, Any]]:
    """The mean loss of the last of 200 steps, of 256 tokens whose successors are drawn from eight each: weights in float32, under
    autocast to bfloat16. `variant`: how, and the seed of weights and tokens."""
    import torch

    import rooftop

    how, seed = variant.split(" seed ")
    model, (batch, length) = made(args, name, int(seed))
    model.float().train()
    if how == "patched":
        rooftop.patch(model)
    g = torch.Generator().manual_seed(int(seed))
    vocabulary = min(model.config.vocab_size - FIRST, 256)  # few enough that 200 steps learn them
    following = torch.randint(0, vocabulary, (vocabulary, 8), generator=g)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=args.device == "cuda")

    def run() -> dict[str, Any]:
        found = []
        for _ in range(5 if args.tiny else 200):
            ids, drawn = torch.randint(0, vocabulary, (batch, length), generator=g), torch.randint(0, 8, (length, batch), generator=g)
            for i in range(1, length):
                ids[:, i] = following[ids[:, i - 1], drawn[i]]
            # Padding is 0, and its embedding zeros: as the first token, it would be zeros in all layers, whose norms multiply gradients by 1,000.
            tokens = (ids + FIRST).to(args.device)
            with torch.autocast(args.device, torch.bfloat16):
                step = model(input_ids=tokens, labels=tokens, use_cache=False).loss
            step.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            found.append(step.detach())
        losses = torch.stack(found).tolist()
        odd = next((i for i, x in enumerate(losses) if not math.isfinite(x)), None)
        if odd is not None:
            raise ValueError(f"the loss of step {odd} is {losses[odd]}, after {losses[max(odd - 3, 0) : odd]}")
        return {"loss": statistics.fmean(losses[-20:])}

    return run


def decode(args: argparse.Namespace, batch: int, variant: str) -> Callable[[], dict[str, Any]]:
    import torch

    import rooftop

    how, *flags = variant.split("+")
    model, _ = made(args, "llama")
    model.eval()
    prompt, new = (8, 5) if args.tiny else (args.prompt, args.new)
    ids = torch.randint(3, model.config.vocab_size, (batch, prompt), generator=torch.Generator().manual_seed(1)).to(args.device)
    lengths = torch.full((batch,), prompt, dtype=torch.int32, device=args.device)
    if "int4" in flags:
        rooftop.quantize_model(model, "int4", group=32 if args.tiny else 128)
    if "head" in flags:
        rooftop.quantize_model(model, "int4", group=32 if args.tiny else 128, include="lm_head", exclude=())
    if how == "rooftop":
        rooftop.patch(model, residual=True)
        decoder = rooftop.drop_in.Decoder(model, batch, prompt + new + 8)

        def begin() -> None:
            decoder.prefill(ids, lengths)

        def step() -> None:
            decoder.step(greedy=True)
    else:
        from transformers import StaticCache

        cache = StaticCache(config=model.config, max_cache_len=prompt + new + 8)
        token, at = torch.zeros(batch, 1, dtype=torch.long, device=args.device), torch.zeros(1, 1, dtype=torch.long, device=args.device)

        def one(token: Any, at: Any) -> Any:
            return model(input_ids=token, position_ids=at, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1, keepdim=True)

        fast = one if args.tiny else torch.compile(one, mode="reduce-overhead", fullgraph=True, dynamic=False)

        def begin() -> None:
            cache.reset()
            model(input_ids=ids[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
            token.copy_(ids[:, -1:])
            at.fill_(prompt - 1)

        def step() -> None:
            token.copy_(fast(token, at))
            at.add_(1)

    def run() -> None:
        for _ in range(new):
            step()

    with torch.no_grad():
        begin()
        for _ in range(4):
            step()
    sync(args)

    def timed() -> dict[str, Any]:
        with torch.no_grad():
            first = statistics.median(seconds(args, begin) for _ in range(3))
            rest = []
            for _ in range(3):
                begin()
                rest.append(seconds(args, run))
        taken = statistics.median(rest) / new
        config = model.config
        size = config.hidden_size // config.num_attention_heads
        held = sum(t.nbytes for n, t in (*model.named_parameters(), *model.named_buffers()) if "embed_tokens" not in n)
        held += batch * (prompt + new // 2) * config.num_hidden_layers * 2 * config.num_key_value_heads * size * 2
        return {"tokens/s": batch / taken, "of bandwidth": held / taken / args.bandwidth, "prefill ms": first * 1e3, "GiB": peak(args)}

    return timed


def experts(args: argparse.Namespace, shape: str, variant: str) -> Callable[[], dict[str, Any]]:
    """Forward and backward of one layer of experts."""
    import torch
    from transformers import AutoConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    import rooftop

    count, k, width, inner, tokens = (4, 2, 64, 32, 32) if args.tiny else EXPERTS[shape]
    config = AutoConfig.for_model("qwen3_moe", hidden_size=width, moe_intermediate_size=inner, num_experts=count, num_experts_per_tok=k)
    rooftop.drop_in.register_experts()
    config._experts_implementation = {"transformers": "grouped_mm"}.get(variant, variant)
    g = torch.Generator().manual_seed(1)
    dtype = torch.float32 if args.tiny else torch.bfloat16
    with torch.device(args.device):
        layer = Qwen3MoeExperts(config).to(dtype)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(0, 0.02)
    x = torch.randn(tokens, width, generator=g).to(args.device, dtype).requires_grad_()
    scores = torch.rand(tokens, count, generator=g).to(args.device)
    weights, index = scores.softmax(-1).topk(k)
    weights = weights.to(dtype)

    def step() -> None:
        layer(x, index, weights).sum().backward()

    for _ in range(3):
        step()

    def timed() -> dict[str, Any]:
        return {"ms": statistics.median(seconds(args, step) for _ in range(TIMED)) * 1e3}

    return timed


def worker(args: argparse.Namespace) -> None:
    """Prepare, say so, wait for a line, measure, print the result as JSON."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    what, name, variant = args.worker
    try:
        timed = {"train": train, "experts": experts, "loss": loss}[what](args, name, variant) if what != "decode" else decode(args, int(name), variant)
        print("READY", flush=True)
        sys.stdin.readline()
        print("RESULT " + json.dumps(timed()), flush=True)
    except Exception as error:
        print("RESULT " + json.dumps({"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"}), flush=True)


def run(args: argparse.Namespace, jobs: list[tuple[str, str, str]], until: float) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Waves of processes: all of a wave get ready at once, then each is measured alone."""
    options = [x for n in ("device", "prompt", "new", "bandwidth", "backend") for x in (f"--{n}", str(getattr(args, n)))] + ["--tiny"] * args.tiny
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    while jobs:
        wave, jobs = jobs[: args.wave], jobs[args.wave :]
        if time.time() > until:
            found |= {job: {"failed": "the budget is spent"} for job in (*wave, *jobs)}
            break
        begun = [
            (job, subprocess.Popen([sys.executable, __file__, *options, "--worker", *job], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for job in wave
        ]

        def line(process: Any) -> str:
            return next((t for t in process.stdout if t.startswith(("READY", "RESULT"))), 'RESULT {"failed": "the process ended"}')

        heard = [(job, process, line(process)) for job, process in begun]
        for job, process, said in heard:
            if said.startswith("READY"):
                process.stdin.write("\n")
                process.stdin.flush()
                said = line(process)
            found[job] = json.loads(said.removeprefix("RESULT "))
            process.stdin.close()
            process.wait()
            shown = "  ".join(f"{n} {v:.4g}" if isinstance(v, float) else f"{n}: {v}" for n, v in found[job].items())
            print(f"{job[0]:8s}{job[1]:22s}{job[2]:40s}{shown}", flush=True)
        rows = [{"what": w, "of": n, "variant": v, "figures": found[w, n, v]} for w, n, v in wave if "failed" not in found[w, n, v]]
        if args.records and rows:  # after each wave: a run that is ended early keeps what it has measured
            record(args, rows)
    return found


def means(found: dict[tuple[str, str, str], dict[str, Any]], names: list[str]) -> None:
    """Geometric means over the models of how much faster a variant is than others."""
    variants = list(dict.fromkeys(v for what, _, v in found if what == "train"))
    for base in ("eager", "compile", "liger", "patched"):
        for v in variants:
            pairs = [(found.get(("train", n, base), {}).get("ms"), found.get(("train", n, v), {}).get("ms")) for n in names]
            ratios = [a / b for a, b in pairs if a and b]
            if ratios and v != base and v.startswith("patched"):
                print(f"{v} over {base}: {math.exp(statistics.fmean(map(math.log, ratios))):.3f}x over {len(ratios)} of {len(names)} models")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--what", default="train,decode,experts", help="also loss: that after 200 steps, of three seeds")
    p.add_argument("--models", default=",".join(MODELS))
    p.add_argument("--variants", default=TRAIN, help="of training")
    p.add_argument("--decoders", default=DECODE)
    p.add_argument("--batches", default="1,16,64")
    p.add_argument("--prompt", type=int, default=2048)
    p.add_argument("--new", type=int, default=128)
    p.add_argument("--bandwidth", type=float, default=4.8e12, help="bytes/s")
    p.add_argument("--backend", default="inductor", help="of torch.compile")
    p.add_argument("--budget", type=float, default=570, help="seconds, after which no wave begins")
    p.add_argument("--wave", type=int, default=4, help="processes that hold a model at once")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--device", default="")
    p.add_argument("--records", default="", help="a folder: each wave of results becomes a record, of which docs/models.md is written")
    p.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    args = p.parse_args()
    if not args.device:
        import torch

        args.device = "cpu" if args.tiny or not torch.cuda.is_available() else "cuda"
    if args.worker:
        worker(args)
        return
    what, names = args.what.split(","), args.models.split(",")
    jobs = [("train", n, v) for n in names for v in args.variants.split(",")] if "train" in what else []
    jobs += [("decode", b, v) for b in args.batches.split(",") for v in args.decoders.split(",")] if "decode" in what else []
    jobs += [("experts", s, v) for s in EXPERTS for v in ("transformers", "rooftop")] if "experts" in what else []
    jobs += [("loss", n, f"{how} seed {seed}") for n in names for how in ("eager", "patched") for seed in range(3)] if "loss" in what else []
    found = run(args, jobs, time.time() + args.budget)
    means(found, names)


def record(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    import torch
    import transformers

    from rooftop.core.implementation import device_of
    from rooftop.lab.records import store

    about = store.about(device_of(torch.cuda.current_device())) if args.device == "cuda" else {"name": platform.processor() or platform.machine()}
    with store.Writer(Path(args.records), about["name"]) as writer:
        said = {"kind": "clock", "subject": "models", "device": about, "versions": store.versions()}
        writer.write({**said, "transformers": f"Transformers {transformers.__version__}", "rows": rows})
        print(f"written: {writer.path}")


if __name__ == "__main__":
    main()
