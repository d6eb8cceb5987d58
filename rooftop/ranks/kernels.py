"""Launches of the kernels of rooftop/kernels/comm by the collectives: compiled and prepared once for each kind of call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from rooftop.core import helpers
from rooftop.core.spec import Launch

FILES = {
    **{stem: f"comm/all_reduce_ranks__{stem}__cuda_sm80.cu" for stem in ("one_shot", "two_shot", "steps")},
    "exchange": "comm/exchange_ranks__cuda_sm80.cu", "norm": "comm/all_reduce_norm_ranks__cuda_sm80.cu",
    "experts": "comm/expert_rows_ranks__cuda_sm80.cu", "meeting": "comm/_rank_barrier.cu",
}


@cache
def usable(index: int) -> bool:
    """Whether kernels of ours can be launched on this GPU."""
    try:
        import cuda.bindings.driver  # noqa: F401
    except ImportError:
        return False
    return bool(torch.cuda.get_device_capability(index)[0] >= 8)


def facts(index: int) -> Any:
    """The device as kernels' choices see it: `sms`, `target`."""
    from rooftop.core.dispatch import _device

    return _device(index)


@cache
def source(stem: str) -> tuple[str, str, helpers.Folders]:
    """The text of a file, the name shown in errors, and the folders of its headers."""
    path = helpers.KERNELS / FILES[stem]
    return path.read_text(encoding="utf-8"), f"rooftop/kernels/{FILES[stem]}", helpers.folders(path, "")


@cache
def _module(stem: str, kernel: str, target: str, index: int) -> Any:
    from rooftop.core.compile import compile_cuda
    from rooftop.core.launch import Module

    text, name, folders = source(stem)
    with torch.cuda.device(index):
        return Module(compile_cuda(text, name=name, target=target, kernels=(kernel,), folders=folders))


def prepared(stem: str, launch: Launch, names: tuple[str, ...], index: int) -> Any:
    """A launch whose addresses alone change."""
    return _module(stem, launch.kernel, facts(index).target, index).prepare(launch, names, index)


_PREPARED: dict[Any, Any] = {}


def run(key: tuple[Any, ...], make: Callable[[int], Launch], index: int, given: Mapping[str, Any]) -> None:
    """Launch on the current stream. `key` says what `make(multiprocessors)` depends on; `given`: tensors and runtime numbers by the
    launch's names."""
    whole = (*key, index)
    found = _PREPARED.get(whole)
    with torch.cuda.device(index):
        if found is None:
            found = _PREPARED[whole] = prepared("steps", make(facts(index).sms), tuple(given), index)
        found(torch.cuda.current_stream().cuda_stream, [v.data_ptr() if isinstance(v, torch.Tensor) else v for v in given.values()])
