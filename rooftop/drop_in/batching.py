"""Continuous batching: `rooftop.generate_batch`. A step decodes a token of each running sequence; where one ends, the next prompt takes its
place. Keys and values lie in pages that all sequences share."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.core.argument_checks import number, whole_seed
from rooftop.drop_in import patching
from rooftop.drop_in.caches import KVCache
from rooftop.drop_in.decoding import Decoder, ends_of
from rooftop.formats import random_bits
from rooftop.ops.sample import sample

LOOKED = 8  # steps between two looks at which sequences have ended: a look waits for the device
PAGE = 64  # tokens


@dataclass
class _Running:
    """A sequence in a slot: the request, the pages that it holds, and its new tokens."""

    request: int
    pages: list[int]
    new: list[int] = field(default_factory=list)


class _Slots(Decoder):
    """A decoder whose sequences come and go. Page 0 belongs to nobody: slots without a sequence write there."""

    def __init__(self, model: Any, slots: int, max_length: int, pages: int) -> None:
        self.room = -(-max_length // PAGE)  # pages of the longest sequence
        device = model.get_input_embeddings().weight.device
        self.table = torch.zeros(slots, self.room, dtype=torch.int32, device=device)
        self.seeds = torch.zeros(slots, dtype=torch.int64, device=device)
        self.pages = (pages + 1, PAGE)
        self.free = list(range(pages, 0, -1))
        self.running: dict[int, _Running] = {}
        super().__init__(model, slots, max_length)

    def _cache(self) -> KVCache:
        return KVCache(self.model.config, self.max_length, static=True, lengths=self.lengths, pages=self.pages, table=self.table)

    def _run(self, ids: Tensor, positions: Tensor, end: int | None) -> Tensor:
        torch.add(self.lengths, 1, out=self.after)
        return self._model(ids, positions, self._mask(self.after, self.table))

    def _mask(self, lengths: Tensor, table: Tensor) -> Tensor:
        return torch.stack((lengths[:, None].expand_as(table), table), 1)[:, :, None]

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def admit(self, slot: int, request: int, prompt: Tensor, most: int, chunk: int, seed: int) -> None:
        """Give a slot the sequence that begins with `prompt` [L] and has at most `most` tokens."""
        self.seeds[slot] = random_bits.bits(seed, 1, start=request)[0]
        self.running[slot] = _Running(request, [self.free.pop() for _ in range(-(-most // PAGE))])
        held = self.running[slot].pages
        self.table[slot] = torch.tensor(held + [0] * (self.room - len(held)), dtype=torch.int32)
        lengths, table, n = torch.zeros(1, dtype=torch.int32, device=prompt.device), self.table[slot : slot + 1], prompt.shape[0]
        self.cache.lengths, self.cache.table = lengths, table
        for a in range(0, n - 1, chunk):
            b = min(a + chunk, n - 1)
            after = torch.full_like(lengths, b)
            self._model(prompt[None, a:b], torch.arange(a, b, device=prompt.device)[None], self._mask(after, table))
            lengths.fill_(b)
        self.cache.lengths, self.cache.table = self.lengths, self.table
        self.lengths[slot], self.token[slot] = n - 1, prompt[-1]

    def leave(self, slot: int) -> _Running:
        ended = self.running.pop(slot)
        self.free += reversed(ended.pages)
        return ended

    def idle(self) -> None:
        """Slots without a sequence do not grow."""
        for slot in set(range(self.batch)) - set(self.running):
            self.lengths[slot] = 0
            self.table[slot] = 0


def generate_batch(
    model: nn.Module, prompts: Sequence[Sequence[int] | Tensor], *, max_new_tokens: int | Sequence[int] = 128,
    eos_token_id: int | Sequence[int] | None = None,
    temperature: float = 0.0, top_k: int | None = None, top_p: float = 1.0, min_p: float = 0.0, seed: int = 0, slots: int = 32,
    cache_tokens: int | None = None, prefill_chunk: int = 2048,
) -> list[list[int]]:
    """Continue many prompts, of any lengths and in any number: ``rooftop.generate_batch(model, [[1, 5, 9], [1, 7]], max_new_tokens=64)``.

    `slots` sequences run at once; one that ends makes room for the next prompt. At temperature 0 each gets the tokens of Transformers'
    greedy `model.generate` of its prompt alone, up to the rounding of products in another batch.

    Args:
        model: a causal language model of Transformers; one that is not patched is for the time of the call.
        prompts: each the ids of at least one token.
        max_new_tokens: at most so many, or a number for each prompt.
        eos_token_id: one or several that end a sequence; None: those of the model's generation_config.
        temperature, top_k, top_p, min_p: of `rooftop.sample`.
        seed: any whole number. A draw's random numbers follow from it, the place of the prompt in `prompts` and that of the token in its
            sequence, so not from what else runs beside it.
        slots: sequences that run at once, at most.
        cache_tokens: tokens for which there is memory, of all running sequences together, in pages of 64; None: what the `slots` longest
            take. With less, fewer sequences run at once.
        prefill_chunk: tokens of a prompt that go through the model at once.

    Returns the new tokens of each prompt, in the order of the prompts; an end is part of them.

    Raises TypeError and ValueError for arguments that do not fit, for a sequence that cache_tokens cannot hold, and for models as
    `generate`."""
    asked, most = _checked(model, prompts, max_new_tokens, slots, prefill_chunk)
    whole_seed("generate_batch", seed)
    if not asked:
        return []
    whole = [len(p) + n for p, n in zip(asked, most, strict=True)]
    need = [-(-n // PAGE) for n in whole]
    slots = min(slots, len(asked))
    if cache_tokens is None:
        pages = sum(sorted(need)[-slots:])
    else:
        number("generate_batch", "cache_tokens", cache_tokens, "a whole number of at least 1", whole=True)
        pages = cache_tokens // PAGE
        if (longest := max(need)) > pages:
            raise ValueError(
                f"generate_batch: cache_tokens is {cache_tokens}; a sequence of {max(whole)} tokens takes {longest} pages of {PAGE}"
            )
    with ExitStack() as stack, torch.inference_mode():
        if not patching.is_patched(model):
            stack.enter_context(patching.apply(model, {"residual": True}))
        stack.callback(model.train, model.training)
        model.eval()
        decoder = _Slots(model, slots, max(whole), pages)
        ends = set(ends_of(model, eos_token_id))
        waiting = deque(range(len(asked)))
        found: list[list[int]] = [[] for _ in asked]
        greedy, device = temperature == 0, decoder.token.device
        while waiting or decoder.running:
            for slot in sorted(set(range(slots)) - set(decoder.running)):
                if not waiting or need[waiting[0]] > len(decoder.free):
                    break
                request = waiting.popleft()
                decoder.admit(slot, request, torch.tensor(asked[request], device=device), whole[request], prefill_chunk, seed)
            decoder.idle()
            made = []
            for _ in range(LOOKED):
                logits = decoder.step(greedy)
                if not greedy:
                    decoder.token.copy_(sample(logits, temperature, top_k, top_p, min_p, decoder.seeds + decoder.lengths)[:, None])
                made.append(decoder.token.clone())
            for slot, tokens in enumerate(torch.cat(made, 1).tolist()):
                if (running := decoder.running.get(slot)) is None:
                    continue
                for token in tokens:
                    running.new.append(token)
                    if token in ends or len(running.new) == most[running.request]:
                        found[running.request] = decoder.leave(slot).new
                        break
        return found


def _checked(model: Any, prompts: Any, new: Any, slots: Any, chunk: Any) -> tuple[list[list[int]], list[int]]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"generate_batch: model is a {type(model).__name__}; it must be a torch.nn.Module")
    if isinstance(prompts, (str, Tensor)) or not isinstance(prompts, Sequence):
        raise TypeError(f"generate_batch: prompts is a {type(prompts).__name__}; it must be a sequence of sequences of ids")
    asked = []
    for i, p in enumerate(prompts):
        ids = p.tolist() if isinstance(p, Tensor) and p.dim() == 1 and not p.is_floating_point() else p
        if not isinstance(ids, Sequence) or isinstance(ids, str) or not ids or not all(isinstance(t, int) and t >= 0 for t in ids):
            raise TypeError(f"generate_batch: prompts[{i}] is {p!r:.60}; it must be the ids of at least one token")
        asked.append(list(ids))
    most = list(new) if isinstance(new, Sequence) else [new] * len(asked)
    if len(most) != len(asked):
        raise ValueError(f"generate_batch: max_new_tokens has {len(most)} numbers for {len(asked)} prompts")
    for name, values in (("max_new_tokens", most), ("slots", [slots]), ("prefill_chunk", [chunk])):
        for n in values:
            number("generate_batch", name, n, "a whole number of at least 1", whole=True)
            if n < 1:
                raise ValueError(f"generate_batch: {name} is {n}; it must be at least 1")
    return asked, most
