"""Quantised gradients in torch's own data parallelism: a hook for DistributedDataParallel, communication methods for FSDP2, and error
feedback."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from rooftop.ranks import agreement, collectives, groups, ways
from rooftop.ranks.steps import Options

OPTIONS = {
    "wire": "int8", "group_size": 128, "hadamard": False, "stochastic": False, "seed": 0, "shots": None, "path": None, "verify": None,
    "timeout": None,
}


class ErrorFeedback:
    """Adds the quantisation error of a tensor to the next tensor of the same key, so that nothing is lost permanently (Seide et al. 2014;
    arXiv 1901.09847).

    The state is one tensor of the gradient's size and dtype for each key. `state_dict` returns it, for checkpoints; each rank has its
    own."""

    def __init__(self) -> None:
        self._lost: dict[Any, Tensor] = {}
        self._keys = WeakIdKeyDictionary()  # of parameters
        self._seen = 0

    def all_reduce(self, x: Tensor, key: Any = 0, group: Any = None, **options: Any) -> Tensor:
        """`rooftop.comm.all_reduce(x + stored error, ...)`; stores the new error, which is zero on path "plain". Values that are not finite
        are not stored.

        Between several hosts every rank sends its own codes, as path "portable" does. Options as for `rooftop.comm.all_reduce`, except
        `statistics`. Raises the same errors, TypeError for another option, ValueError for path "hierarchical", whose errors are those of
        sums, and for a tensor that does not match the last one of its key: the other ranks of that call raise `Disagreement`."""
        what = "ErrorFeedback.all_reduce"
        group = groups.group_of(what, group)
        if unknown := [n for n in options if n not in OPTIONS]:
            known = ", ".join(OPTIONS)
            agreement.refuse(what, group, TypeError(f"{what}: {unknown[0]!r} is no option; accepted are {known}"))
        try:
            hash(key)
        except TypeError as error:
            agreement.refuse(what, group, TypeError(f"{what}: key is {key!r}; it must be hashable: {error}"))
        return self._reduced(what, x, {key: None}, group, options)

    def bucket(self, x: Tensor, parameters: Sequence[Tensor], group: Any, **options: Any) -> Tensor:
        """As `all_reduce`, of the flat gradients of `parameters`, one after another. Each parameter's error is stored under its own key
        (see `keys_of`): it stays with the parameter whatever else is sent with it. A parameter whose gradient is zero on this rank, as
        of one that a step does not use, keeps its error until it has a gradient again."""
        what = "ErrorFeedback.bucket"
        used = torch.stack(torch._foreach_norm(x.split([p.numel() for p in parameters]), 1)) != 0
        return self._reduced(what, x, dict(zip(self.keys_of(parameters), parameters, strict=True)), group, options, used)

    def keys_of(self, parameters: Iterable[Tensor]) -> list[int]:
        """The keys of parameters in `state_dict`: their numbers, in the order in which they were first seen. The errors of a parameter that
        no longer exists are discarded."""
        found = []
        for p in parameters:
            key = self._keys.get(p)
            if key is None:
                key = self._keys[p] = self._seen
                self._seen += 1
                weakref.finalize(p, self._lost.pop, key, None)
            found.append(key)
        return found

    def _reduced(
        self, what: str, x: Tensor, parts: dict[Any, Tensor | None], group: Any, options: dict[str, Any], used: Tensor | None = None
    ) -> Tensor:
        """`parts`: by key the tensors of which x holds as many elements, one after another; None: x itself. `used`: bool, one a part:
        whether its stored error is added."""
        given = {**OPTIONS, **options}
        before = {key: lost for key in parts if (lost := self._lost.get(key)) is not None}

        def check(t: Tensor, ranks: int) -> None:
            for key, lost in before.items():
                like = parts[key]
                shape = t.shape if like is None else (like.numel(),)
                if tuple(lost.shape) != tuple(shape) or lost.dtype != t.dtype:
                    raise ValueError(f"{what}: {key!r} was {lost.dtype} {tuple(lost.shape)}; now it is {t.dtype} {tuple(shape)}")
            if given["path"] == "hierarchical":
                raise ValueError(f"{what}: path is 'hierarchical', which quantises sums of several ranks; what that loses is no rank's")

        settings = tuple(given[n] for n in ("wire", "group_size", "hadamard", "stochastic", "seed"))
        shots = given["shots"]
        x, group, o, limit = collectives.begun(
            "all_reduce", x, group, settings, shots, given["path"], False, given["verify"], given["timeout"], check, name=what
        )
        sizes = [x.numel() if like is None else like.numel() for like in parts.values()]
        stored = None
        if before:
            pieces = (before.get(key) for key in parts)
            stored = torch.cat([x.new_zeros(n) if t is None else t.to(x.device).reshape(-1) for t, n in zip(pieces, sizes, strict=True)])
            stored = stored.view(x.shape)
        sends = stored  # of the stored error, what goes along now
        if stored is not None and used is not None:
            counts = torch.tensor(sizes).to(x.device, non_blocking=True)
            sends = torch.where(used.repeat_interleave(counts, output_size=x.numel()), stored, 0.0)
        total = x if sends is None else x + sends
        way = ways.planned(what, total, group, o.wire.name, shots, given["path"], limit).path
        found = ways.all_reduce(total, group, o, shots, "portable" if way == "hierarchical" else given["path"], limit)
        lost = total - (total if way == "plain" else collectives.lossy(total, group, o))
        lost = torch.where(lost.isfinite(), lost, torch.zeros_like(lost))
        if stored is not None and sends is not stored:
            lost = lost + (stored - sends)
        if None in parts.values():
            self._lost.update(dict.fromkeys(parts, lost))
        else:
            self._lost.update(zip(parts, lost.reshape(-1).split(sizes), strict=True))
        return found

    def state_dict(self) -> dict[Any, Tensor]:
        return dict(self._lost)

    def load_state_dict(self, state: dict[Any, Tensor]) -> None:
        """Raises TypeError for a value that is no tensor."""
        for key, lost in state.items():
            if not isinstance(lost, Tensor):
                raise TypeError(f"ErrorFeedback.load_state_dict: {key!r} is a {type(lost).__name__}; it must be a tensor")
        new = dict(state)
        self.clear()
        self._lost.update(new)

    def clear(self) -> None:
        """Discard the stored errors, for example after a skipped step."""
        self._lost.clear()


def ddp_hook(
    group: Any = None, *, wire: str = "int8", group_size: int = 128, hadamard: bool = False, stochastic: bool = False,
    error_feedback: bool = False, seed: int = 0, path: str | None = None,
) -> Callable[[Any, Any], Any]:
    """A communication hook: ``model.register_comm_hook(None, rooftop.comm.ddp_hook(wire="int8"))`` on a DistributedDataParallel model.

    Each bucket is divided by the number of ranks and summed by `rooftop.comm.all_reduce`; all ranks get the same bits. With `stochastic`
    each call has its own seed, counted from `seed`. The attribute `feedback` of the hook is the `ErrorFeedback`, or None; it keeps the
    error of each parameter, also if several models have the hook. A parameter that a step does not use on this rank keeps its error for the
    next step that does. `path` as for `all_reduce`: with None a bucket goes unquantised where a measured table of sizes says that this is
    faster, which `rooftop.comm.plan` shows. `group`: None: the ProcessGroup that `register_comm_hook` was given as its state, as torch's
    own hooks take it, without one the default group. The hook cannot see a `process_group` of the model: name it in one of the two places.

    Raises TypeError and ValueError immediately for options that are not supported."""
    if group is not None:
        groups.group_of("ddp_hook", group)
    options: dict[str, Any] = {"wire": wire, "group_size": group_size, "hadamard": hadamard, "stochastic": stochastic}
    Options.of("ddp_hook", wire, group_size, hadamard, stochastic, seed)
    ways.check_way("ddp_hook", None, path, ways.paths_of("all_reduce"))
    if error_feedback and path == "hierarchical":
        raise ValueError("ddp_hook: path is 'hierarchical', which quantises sums of several ranks; what that loses is no rank's")
    options["path"] = path
    feedback = ErrorFeedback() if error_feedback else None
    calls = [0]

    def hook(state: Any, bucket: Any) -> Any:
        chosen = groups.group_of("ddp_hook", state if group is None and isinstance(state, dist.ProcessGroup) else group)
        x = bucket.buffer() / dist.get_world_size(chosen)
        calls[0] += 1
        given = {**options, "seed": seed + calls[0]} if stochastic else options
        # Errors are those of parameters: DDP sorts its buckets anew after the first step, and several models may have this hook.
        found = collectives.all_reduce(x, chosen, **given) if feedback is None else feedback.bucket(x, bucket.parameters(), chosen, **given)
        done: Any = torch.futures.Future(devices=[x.device] if x.is_cuda else None)
        done.set_result(found)
        return done

    hook.__annotations__.update({"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]})  # which DDP compares
    hook.feedback = feedback  # type: ignore[attr-defined]
    return hook


class _Communication:
    """What FSDP2 asks of a communication object: memory of its own for the flat tensors, and the collective."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)


class _ReduceScatter(_Communication):
    def __init__(self, seeds: Iterator[int] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.seeds = count(1) if seeds is None else seeds  # of the calls of all modules of a model

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        kind = getattr(op, "op", op)
        mean = kind == dist.ReduceOp.AVG
        if not mean and kind != dist.ReduceOp.SUM:
            agreement.refuse("fsdp_hook", group, ValueError(f"fsdp_hook: the reduction is {op}; accepted are SUM and AVG"))
        ranks = dist.get_world_size(group)
        given = input_tensor / ranks if mean else input_tensor
        found = collectives.reduce_scatter(given, group, seed=next(self.seeds), **self.options)
        assert isinstance(found, Tensor)
        output_tensor.copy_(found.view_as(output_tensor))


class _AllGather(_Communication):
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        found = collectives.all_gather(input_tensor, group, **self.options)
        assert isinstance(found, Tensor)
        output_tensor.copy_(found.view_as(output_tensor))


def fsdp_hook(
    module: Any, *, gradients: str | None = "int8", weights: str | None = None, group_size: int = 128, hadamard: bool = False,
    stochastic: bool = False, path: str | None = None,
) -> Any:
    """Make an FSDP2 module (`torch.distributed.fsdp.fully_shard`) send its gradients, and optionally its weights, quantised. Returns the
    module.

    Args:
        module: a result of `fully_shard`; submodules that are sharded separately are changed too.
        gradients: wire of the reduce-scatter of gradients; None: torch's own.
        weights: wire of the all-gather of weights (as ZeRO++'s qwZ); None: torch's own.
        group_size, hadamard, stochastic: as for `all_reduce`; stochastic applies only to gradients, with another seed in each call,
            hadamard not to a wire "bf16" beside another.
        path: as for `reduce_scatter` and `all_gather`. None: what a measured table of sizes says is faster unquantised goes unquantised;
            `rooftop.comm.plan(x, wire=..., kind="reduce_scatter")` shows it.

    Raises TypeError for a module that is not sharded by FSDP2, RuntimeError if this version of torch cannot set its communication."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError as error:
        raise RuntimeError(f"fsdp_hook: this torch has no FSDP2 ({error})") from None
    if not isinstance(module, FSDPModule):
        raise TypeError(f"fsdp_hook: module is a {type(module).__name__}; it must be sharded by torch.distributed.fsdp.fully_shard")
    coded = any(wire not in (None, "bf16") for wire in (gradients, weights))

    def rotated(wire: str) -> bool:
        return False if wire == "bf16" and coded else hadamard

    for wire, rounding in ((gradients, stochastic), (weights, False)):
        if wire is not None:
            Options.of("fsdp_hook", wire, group_size, rotated(wire), rounding, 0)
    ways.check_way("fsdp_hook", None, path, ways.paths_of("reduce_scatter"))
    seeds = count(1)
    for part in module.modules():
        if not isinstance(part, FSDPModule):
            continue
        for wire, setter, made in (
            (gradients, "set_custom_reduce_scatter", partial(_ReduceScatter, seeds, stochastic=stochastic)),
            (weights, "set_custom_all_gather", _AllGather),
        ):
            if wire is None:
                continue
            if not hasattr(part, setter):
                raise RuntimeError(f"fsdp_hook: this torch ({torch.__version__}) has no FSDPModule.{setter}")
            getattr(part, setter)(made(wire=wire, group_size=group_size, hadamard=rotated(wire), path=path))
    return module
