"""Widths of well-known models, as their published configurations give them: sizes that kernels meet first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """`hidden`: the width of the residual stream; `inner`: of the feed-forward layer (of one expert, where there are several); `head`: of
    an attention head;
    `context`: positions it was trained for."""

    name: str
    hidden: int
    inner: int
    head: int
    vocabulary: int
    context: int


WIDTHS = ("hidden", "inner", "head", "vocabulary", "context")
MODELS: tuple[Model, ...] = tuple(
    Model(*row)
    for row in (
        ("BERT base", 768, 3072, 64, 30522, 512),
        ("BERT large", 1024, 4096, 64, 30522, 512),
        ("GPT-2", 768, 3072, 64, 50257, 1024),
        ("GPT-2 medium", 1024, 4096, 64, 50257, 1024),
        ("GPT-2 large", 1280, 5120, 64, 50257, 1024),
        ("GPT-2 XL", 1600, 6400, 64, 50257, 1024),
        ("GPT-J 6B", 4096, 16384, 256, 50400, 2048),
        ("GPT-NeoX 20B", 6144, 24576, 96, 50432, 2048),
        ("Pythia 410M", 1024, 4096, 64, 50304, 2048),
        ("Pythia 2.8B", 2560, 10240, 80, 50304, 2048),
        ("OPT 1.3B", 2048, 8192, 64, 50272, 2048),
        ("OPT 30B", 7168, 28672, 128, 50272, 2048),
        ("BLOOM 176B", 14336, 57344, 128, 250880, 2048),
        ("Falcon 7B", 4544, 18176, 64, 65024, 2048),
        ("Falcon 40B", 8192, 32768, 64, 65024, 2048),
        ("T5 small", 512, 2048, 64, 32128, 512),
        ("ViT B/16", 768, 3072, 64, 1000, 197),
        ("ViT H/14", 1280, 5120, 80, 1000, 257),
        ("Whisper large", 1280, 5120, 64, 51866, 1500),
        ("Llama 1 13B", 5120, 13824, 128, 32000, 2048),
        ("Llama 1 33B", 6656, 17920, 128, 32000, 2048),
        ("Llama 2 7B", 4096, 11008, 128, 32000, 4096),
        ("Llama 2 70B", 8192, 28672, 128, 32000, 4096),
        ("Llama 3 8B", 4096, 14336, 128, 128256, 8192),
        ("Llama 3.1 405B", 16384, 53248, 128, 128256, 131072),
        ("Llama 3.2 1B", 2048, 8192, 64, 128256, 131072),
        ("Llama 3.2 3B", 3072, 8192, 128, 128256, 131072),
        ("Mistral 7B", 4096, 14336, 128, 32000, 32768),
        ("Mixtral 8x22B", 6144, 16384, 128, 32768, 65536),
        ("Mistral Large", 12288, 28672, 128, 32768, 131072),
        ("Phi-2", 2560, 10240, 80, 51200, 2048),
        ("Phi-3 mini", 3072, 8192, 96, 32064, 4096),
        ("Gemma 2B", 2048, 16384, 256, 256000, 8192),
        ("Gemma 2 9B", 3584, 14336, 256, 256000, 8192),
        ("Gemma 2 27B", 4608, 36864, 128, 256000, 8192),
        ("Qwen2 0.5B", 896, 4864, 64, 151936, 131072),
        ("Qwen2.5 7B", 3584, 18944, 128, 152064, 131072),
        ("Qwen2.5 32B", 5120, 27648, 128, 152064, 131072),
        ("DeepSeek V3", 7168, 2048, 128, 129280, 163840),
        ("Yi 34B", 7168, 20480, 128, 64000, 4096),
    )
)


def widths(names: tuple[str, ...]) -> Iterator[tuple[int, ...]]:
    """What the models have for these widths, each combination once. Raises ValueError for a width that models have not."""
    if unknown := set(names) - set(WIDTHS):
        raise ValueError(f"{', '.join(sorted(unknown))} is no width of a model; there are {', '.join(WIDTHS)}")
    yield from dict.fromkeys(tuple(int(getattr(m, n)) for n in names) for m in MODELS)
