"""Decoding: `rooftop.generate`. A cache with memory for all tokens, a step of one token as one CUDA graph, prompts in chunks, sequences of
any lengths."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.core.argument_checks import number, whole_seed
from rooftop.drop_in import patching
from rooftop.drop_in.caches import KVCache, refusal
from rooftop.drop_in.packing import Packing
from rooftop.ops.sample import sample

LOOKED = 16  # steps between two looks at whether all sequences have ended: a look waits for the device


class Decoder:
    """The memory and the graph of a patched model's decoding, to be used again: ``decoder = Decoder(model, batch=16, max_length=4096)``.

    Args:
        model: a patched causal language model of Transformers.
        batch: sequences. max_length: tokens of each, prompt and all.
        graph: a step as one CUDA graph; None: on a GPU, unless the tables of the model's rotation depend on how long the sequences are.
        packed: linear layers that are given one tensor (queries, keys and values; gate and up) are one product, and their weights views of
            one matrix from then on; None: on a GPU.

    `prefill(ids, lengths)`, then `step()`, which takes `token` [B, 1] and returns logits [B, V]. Raises ValueError for a model that it
    cannot decode with."""

    def __init__(self, model: Any, batch: int, max_length: int, *, graph: bool | None = None, packed: bool | None = None) -> None:
        if why := _refused(model):
            raise ValueError(f"generate: {why}; use model.generate")
        for name, n in (("batch", batch), ("max_length", max_length)):
            if not isinstance(n, int) or n < 1:
                raise ValueError(f"generate: {name} is {n!r}; it must be a whole number of at least 1")
        device = model.get_input_embeddings().weight.device
        self.model, self.batch, self.max_length = model, batch, max_length
        self.lengths, self.after = (torch.zeros(batch, dtype=torch.int32, device=device) for _ in range(2))
        self.token = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self.cache = self._cache()
        self.graphs: dict[bool, tuple[Any, Tensor]] = {}  # by whether the step draws: the graph, and the logits that it leaves
        self.captures = device.type == "cuda" and not _grows(model) if graph is None else graph
        self.packing: Packing | None = None
        if device.type == "cuda" if packed is None else packed:
            self.packing = Packing(model, lambda: self._step(False))
            self.lengths.zero_()

    def _cache(self) -> KVCache:
        return KVCache(self.model.config, self.max_length, static=True, lengths=self.lengths)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def prefill(self, ids: Tensor, lengths: Tensor, chunk: int = 2048) -> None:
        """Write the keys and values of all tokens of the prompts but the last of each, which is the next step's. ids [B, L]: row b has
        lengths[b] tokens and then anything."""
        self.lengths.zero_()
        for a in range(0, ids.shape[1] - 1, chunk):
            b = min(a + chunk, ids.shape[1] - 1)
            self._run(ids[:, a:b], torch.arange(a, b, device=ids.device)[None].expand(ids.shape[0], -1), b)
            self.lengths.fill_(b)
        self.lengths.copy_(lengths - 1)
        self.token.copy_(ids.gather(1, lengths[:, None].long() - 1))

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def step(self, greedy: bool = False) -> Tensor:
        """Append `token` and return the logits after it, which the next step overwrites; `greedy`: the most probable one becomes
        `token`."""
        if not self.captures:
            return self._step(greedy)
        if greedy not in self.graphs and not self._capture(greedy):
            self.captures = False
            return self._step(greedy)
        graph, logits = self.graphs[greedy]
        graph.replay()
        return logits

    def _step(self, greedy: bool) -> Tensor:
        logits = self._run(self.token, self.lengths[:, None].long(), None)
        self.lengths.add_(1)
        if greedy:
            self.token.copy_(sample(logits, 0.0)[:, None])
        return logits

    def _run(self, ids: Tensor, positions: Tensor, end: int | None) -> Tensor:
        """Logits [B, V] after the last of `ids`; `end`: how many tokens each sequence then has, None: one more than now."""
        if end is None:
            torch.add(self.lengths, 1, out=self.after)
        else:
            self.after.fill_(end)
        return self._model(ids, positions, self.after.view(-1, 1, 1, 1))

    def _model(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        with nullcontext() if self.packing is None else self.packing.on():
            out = self.model(
                input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=self.cache, use_cache=True, logits_to_keep=1
            )
        return out.logits[:, -1]

    def _capture(self, greedy: bool) -> bool:
        """Make the graph of a step; False: a step waits for the device, as where an op has no kernel for the model's dtype, and no graph
        can hold it."""
        before, token = self.lengths.clone(), self.token.clone()
        side, waits = torch.cuda.Stream(), torch.cuda.get_sync_debug_mode()
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                self._step(greedy)
                self.lengths.copy_(before)
                torch.cuda.set_sync_debug_mode("error")
                self._step(greedy)
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
            return False
        finally:
            torch.cuda.set_sync_debug_mode(waits)
            torch.cuda.current_stream().wait_stream(side)
            self.lengths.copy_(before)
            self.token.copy_(token)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._step(greedy)
        self.graphs[greedy] = graph, logits
        self.lengths.copy_(before)
        self.token.copy_(token)
        return True


def _grows(model: Any) -> bool:
    """Whether a rotation looks at the positions, on the host, to choose its tables."""
    parameters = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    kinds = [parameters, *(v for v in parameters.values() if isinstance(v, dict))]
    return any("dynamic" in str(k.get("rope_type")) or k.get("rope_type") == "longrope" for k in kinds)


def _refused(model: Any) -> str:
    name = type(model).__name__
    if not patching.pretrained(model) or not hasattr(model, "generate"):
        return f"{name} is no language model of Transformers"
    if getattr(model.config, "_attn_implementation", None) != patching.NAME:
        return f"the attention of {name} is not rooftop's"
    return refusal(model.config)


def generate(
    model: nn.Module, ids: Tensor, *, attention_mask: Tensor | None = None, max_new_tokens: int = 128,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None, temperature: float = 0.0, top_k: int | None = None, top_p: float = 1.0, min_p: float = 0.0,
    seed: int | Tensor = 0,
    prefill_chunk: int = 2048, decoder: Decoder | None = None,
) -> Tensor:
    """Continue prompts: ``rooftop.generate(model, ids, max_new_tokens=64)``. At temperature 0 the tokens of Transformers' greedy
    `model.generate`.

    Args:
        model: a causal language model of Transformers; one that is not patched is for the time of the call.
        ids: int64 [B, L] on the model's device.
        attention_mask: [B, L], 0 for padding, on either side; None: no padding.
        max_new_tokens: at most so many.
        eos_token_id: one or several that end a sequence; None: those of the model's generation_config.
        pad_token_id: after a sequence's end; None: the generation_config's, else the first of eos_token_id, else 0.
        temperature, top_k, top_p, min_p: of `rooftop.sample`.
        seed: any whole number, or, as `rooftop.invariant()` asks for, an int64 tensor [B] with one for each sequence. It counts up by 1 at
            each step, so those of two sequences should lie further apart than max_new_tokens.
        prefill_chunk: tokens of the prompts that go through the model at once.
        decoder: a `Decoder` of this model whose memory and graph are used again.

    Returns int64 [B, L + new]: the prompts and what follows, as long as the longest.

    Raises TypeError and ValueError for arguments that do not fit, and for models with other layers than full and sliding attention."""
    _check(model, ids, attention_mask, max_new_tokens, prefill_chunk)
    if not isinstance(seed, Tensor):
        whole_seed("generate", seed)
    with ExitStack() as stack, torch.inference_mode():
        if not patching.is_patched(model):
            stack.enter_context(patching.apply(model, {"residual": True}))
        mode = model.training
        stack.callback(model.train, mode)
        model.eval()
        prompts, lengths = _compact(ids, attention_mask)
        need = ids.shape[1] + max_new_tokens
        if decoder is None:
            decoder = Decoder(model, ids.shape[0], need)
        elif decoder.model is not model or decoder.batch != ids.shape[0] or decoder.max_length < need:
            has = f"{decoder.batch} sequences of {decoder.max_length} tokens of its model"
            raise ValueError(f"generate: decoder is for {has}; {ids.shape[0]} of {need} are due")
        said = getattr(model, "generation_config", None)
        ends = ends_of(model, eos_token_id)
        pad = pad_token_id if pad_token_id is not None else getattr(said, "pad_token_id", None)
        pad = pad if pad is not None else ends[0] if ends else 0
        decoder.prefill(prompts, lengths, prefill_chunk)
        stops = torch.tensor(ends, device=ids.device) if ends else None
        new = ids.new_full((ids.shape[0], max_new_tokens), pad)
        made, greedy = 0, temperature == 0
        for i in range(max_new_tokens):
            logits = decoder.step(greedy)
            if not greedy:
                decoder.token.copy_(sample(logits, temperature, top_k, top_p, min_p, seed + i)[:, None])
            new[:, i : i + 1], made = decoder.token, i + 1
            if stops is not None and made % LOOKED == 0 and bool(torch.isin(new[:, :made], stops).any(1).all()):
                break
        if stops is not None:  # a sequence that has ended goes on by itself; what it says then is padding
            hit = torch.isin(new[:, :made], stops)
            last = torch.where(hit.any(1), hit.int().argmax(1) + 1, made)
            made = int(last.max())
            new = torch.where(torch.arange(new.shape[1], device=new.device) < last[:, None], new, pad)
        return torch.cat((ids, new[:, :made]), 1)


def ends_of(model: Any, eos_token_id: Any) -> list[int]:
    """The tokens that end a sequence: those given, or of the model's generation_config."""
    given = eos_token_id if eos_token_id is not None else getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return [] if given is None else [int(given)] if isinstance(given, int) else [int(g) for g in given]


def _check(model: Any, ids: Any, mask: Any, new: Any, chunk: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"generate: model is a {type(model).__name__}; it must be a torch.nn.Module")
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.dim() != 2 or not ids.numel():
        given = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else f"a {type(ids).__name__}"
        raise TypeError(f"generate: ids is {given}; it must be torch.int64 [B, L], with a token at least")
    if mask is not None and (not isinstance(mask, Tensor) or mask.shape != ids.shape):
        given = str(tuple(mask.shape)) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"generate: attention_mask is {given}; it must be of the shape of ids, {tuple(ids.shape)}")
    for name, n in (("max_new_tokens", new), ("prefill_chunk", chunk)):
        number("generate", name, n, "a whole number of at least 1", whole=True)
        if n < 1:
            raise ValueError(f"generate: {name} is {n}; it must be at least 1")


def _compact(ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """(prompts that begin at 0, their lengths). Raises ValueError for one without tokens."""
    if mask is None:
        return ids, torch.full((ids.shape[0],), ids.shape[1], dtype=torch.int32, device=ids.device)
    there = mask != 0
    lengths = there.sum(1, dtype=torch.int32)
    if not bool((lengths > 0).all()):
        raise ValueError("generate: attention_mask leaves a sequence without tokens")
    order = torch.sort((~there).int(), dim=1, stable=True).indices
    return ids.gather(1, order), lengths
