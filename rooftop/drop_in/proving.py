"""Eager and patched side by side, from the same weights: is each layer's result, each gradient and each loss as near to a wider dtype as
eager's own?"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.drop_in.patching import apply, is_patched, unpatch
from rooftop.drop_in.swapping import swap_of

TIMES = 2.0  # eager's own error, as a norm, that ours may reach
UNITS = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
LEAST = 2.0  # units in the last place: where eager is exact by luck
SHOWN = 6


@dataclass(frozen=True)
class Compared:
    """|x - exact| / |exact| of one tensor: eager's and ours."""

    name: str
    eager: float
    ours: float
    unit: float

    @property
    def equal(self) -> bool:
        return self.ours <= TIMES * self.eager + LEAST * self.unit

    @property
    def share(self) -> float:
        return self.ours / (self.eager + LEAST * self.unit)


@dataclass
class Proof:
    """What `prove` found: ``print(proof)``. `layers` in the order in which they ran; times in seconds a step, memory in bytes (0 on a
    CPU)."""

    layers: list[Compared]
    gradients: list[Compared]
    losses: dict[str, list[float]] = field(default_factory=dict)
    curve: Compared | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)

    @property
    def first(self) -> str:
        """What is not equal first: a layer, a gradient or the losses; "" where all are."""
        for what, found in (("layer", self.layers), ("gradient of", self.gradients), ("", [self.curve] if self.curve else [])):
            for c in found:
                if not c.equal:
                    return f"{what} {c.name}".strip()
        return ""

    @property
    def equal(self) -> bool:
        return not self.first

    def verdict(self) -> str:
        if self.equal:
            return "equal within eager's own rounding"
        wrong = next(c for c in (*self.layers, *self.gradients, *([self.curve] if self.curve else [])) if not c.equal)
        return f"not equal: {self.first} errs by {wrong.ours:.1e}, eager by {wrong.eager:.1e}"

    def __str__(self) -> str:
        lines = [self.verdict()]
        for what, found in (("layers", self.layers), ("gradients", self.gradients)):
            worst = sorted(found, key=lambda c: -c.share)[:SHOWN]
            lines += [f"{what}: {len(found)}; the largest shares of eager's error:"]
            lines += [f"  {c.name:48s} eager {c.eager:.1e}  ours {c.ours:.1e}" for c in worst]
        if self.curve is not None:
            eager, ours = self.losses["eager"], self.losses["ours"]
            lines.append(f"losses of {len(eager)} steps: eager {eager[0]:.4f} to {eager[-1]:.4f}, ours {ours[0]:.4f} to {ours[-1]:.4f}")
            lines.append(f"a step: eager {self.seconds['eager'] * 1e3:.2f} ms, ours {self.seconds['ours'] * 1e3:.2f} ms")
            if any(self.memory.values()):
                lines.append(f"peak memory: eager {self.memory['eager'] / 2**30:.2f} GiB, ours {self.memory['ours'] / 2**30:.2f} GiB")
        return "\n".join(lines)


def prove(model: nn.Module, batch: Mapping[str, Any], steps: int = 20, *, lr: float = 1e-4, **parts: bool) -> Proof:
    """Run eager and patched side by side: ``print(rooftop.prove(model, {"input_ids": ids, "labels": ids}))``. The model stays as it is.

    Each layer's output and each parameter's gradient is compared with those of the model in float32 (a float32 model: in float64), beside
    eager's own error; then `steps` of AdamW are taken on the batch. Dropout is switched off.

    Args:
        model: a model, patched or not; one that is not is patched as `patch` does with `parts`. Copies of it are made one after the other.
        batch: what the model is called with, by name. With labels (or whatever makes its result have a `loss`) losses and gradients are
            compared.
        steps: of training; 0: none.
        lr: of AdamW.

    Returns a `Proof`; `proof.equal`, and `proof.first`, the first layer that is not equal.

    Raises TypeError for a batch that is no mapping, ValueError as `patch` does."""
    if not isinstance(batch, Mapping):
        raise TypeError(f"prove: batch is a {type(batch).__name__}; it must be a mapping of the model's arguments, as {{'input_ids': ids, 'labels': ids}}")
    if not isinstance(steps, int) or steps < 0:
        raise ValueError(f"prove: steps is {steps!r}; it must be a whole number of at least 0")
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    wide = torch.float64 if dtype == torch.float32 else torch.float32
    ours = copy.deepcopy(model)
    if not is_patched(ours):
        apply(ours, parts)
    watched = {n for n, m in ours.named_modules() if n and (swap_of(m) is not None or isinstance(_parent(ours, n), nn.ModuleList))}
    del ours
    found: dict[str, _Run] = {}
    for who in ("exact", "eager", "ours"):
        found[who] = _Run(_made(model, who, wide, parts), batch, watched, wide if who == "exact" else dtype, steps, lr)
    unit = UNITS[dtype]
    exact, eager, mine = (found[w] for w in ("exact", "eager", "ours"))
    proof = Proof(
        [_compared(n, exact.outputs[n], eager.outputs[n], mine.outputs[n], unit) for n in exact.outputs],
        [_compared(n, g, eager.gradient(n, g), mine.gradient(n, g), unit, exact.largest) for n, g in exact.gradients.items()],
    )
    if steps and exact.losses:
        curves = {w: torch.tensor(r.losses, dtype=torch.float64) for w, r in found.items()}
        apart = {w: float((curves[w] - curves["exact"]).abs().max() / curves["exact"].abs().max()) for w in ("eager", "ours")}
        proof.curve = Compared("losses", apart["eager"], apart["ours"], unit)
        proof.losses = {w: r.losses for w, r in found.items()}
        proof.seconds = {w: found[w].seconds for w in ("eager", "ours")}
        proof.memory = {w: found[w].memory for w in ("eager", "ours")}
    return proof


def proven(model: nn.Module) -> None:
    """Raises ValueError where a patched language model is not equal on random tokens."""
    where = next(model.parameters()).device
    config: Any = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        raise ValueError("patch: prove=True needs a language model of Transformers; call rooftop.prove(model, batch)")
    ids = torch.randint(0, config.get_text_config().vocab_size, (2, 32), generator=torch.Generator().manual_seed(0)).to(where)
    found = prove(model, {"input_ids": ids, "labels": ids}, 0)
    if not found.equal:
        raise ValueError(f"patch: {found.verdict()}; the model is as it was")


def _parent(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _made(model: nn.Module, who: str, wide: torch.dtype, parts: Mapping[str, Any]) -> Any:
    made: Any = copy.deepcopy(model)
    patched = is_patched(made)
    if who == "ours" and not patched:
        apply(made, parts)
    if who != "ours" and patched:
        unpatch(made)
    if who == "exact":
        made = made.to(wide)
        if wide == torch.float64 and hasattr(made, "set_experts_implementation") and any(
            hasattr(m, "is_transposed") for m in made.modules()
        ):
            made.set_experts_implementation("eager")  # grouped products take no float64
    for m in made.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
        for name, value in vars(m).items():
            if isinstance(value, float) and name.endswith(("dropout", "dropout_prob", "dropout_p")):
                setattr(m, name, 0.0)
    return made


class _Run:
    """One model's outputs and gradients of the first step, and its losses, time and memory."""

    def __init__(self, model: Any, batch: Mapping[str, Any], watched: set[str], dtype: torch.dtype, steps: int, lr: float) -> None:
        self.outputs: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self.losses: list[float] = []
        self.seconds, self.memory, self.largest = 0.0, 0, 0.0
        given = {n: t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t for n, t in batch.items()}
        model.train()
        cuda = next(model.parameters()).is_cuda
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        with self._watching(model, watched):
            loss = _loss(model(**given))
        if loss is None:
            return
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        loss.backward()
        self.gradients = {n: p.grad.detach().cpu() for n, p in model.named_parameters() if p.grad is not None}
        self.largest = max((float(g.double().norm()) for g in self.gradients.values()), default=0.0)
        times = []
        for _ in range(steps):
            optimizer.zero_grad()
            began = time.perf_counter()
            loss = _loss(model(**given))
            assert loss is not None
            loss.backward()
            optimizer.step()
            self.losses.append(float(loss.detach()))
            times.append(time.perf_counter() - began)
        self.seconds = statistics.median(times) if times else 0.0
        self.memory = torch.cuda.max_memory_allocated() if cuda else 0

    def gradient(self, name: str, like: Tensor) -> Tensor:
        """Zeros where there is none."""
        return self.gradients.get(name, torch.zeros_like(like))

    @contextmanager
    def _watching(self, model: nn.Module, watched: set[str]) -> Any:
        def hook(name: str) -> Callable[..., None]:
            def keep(_: nn.Module, __: Any, out: Any) -> None:
                out = out[0] if isinstance(out, tuple) else out
                if isinstance(out, Tensor) and out.is_floating_point() and name not in self.outputs:
                    self.outputs[name] = out.detach().cpu()

            return keep

        handles = [m.register_forward_hook(hook(n)) for n, m in model.named_modules() if n in watched]
        try:
            yield
        finally:
            for h in handles:
                h.remove()


def _loss(out: Any) -> Tensor | None:
    return out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)


def _compared(name: str, exact: Tensor, eager: Tensor, ours: Tensor, unit: float, largest: float = 0.0) -> Compared:
    """`largest`: the norm of the largest gradient; one that is nearly 0 beside it (a bias before a norm) is compared with a millionth of
    it."""
    true = exact.double()
    size = max(float(true.norm()), 1e-6 * largest) or 1.0
    return Compared(name, float((eager.double() - true).norm()) / size, float((ours.double() - true).norm()) / size, unit)
