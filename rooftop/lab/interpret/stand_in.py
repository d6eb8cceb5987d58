"""A GPU that is not there, for Python that asks torch and Triton for one: its tensors lie on the CPU, its events count nothing, its kernels
go to a function.

Which tensors would be on the GPU is kept: `is_cuda` and `device` say it, and a copy to another device is a copy."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from rooftop.core.spec import TARGETS
from rooftop.lab.interpret import repeats

CUDA = re.compile(r"cuda(:\d+)?")
CARD = TARGETS[90]
DRAWING = ("matplotlib", "matplotlib.pyplot", "seaborn", "tabulate", "prettytable", "termcolor", "colorama")  # what they show are results and times
MEMORY = 80 << 30  # bytes that it says it has
EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")  # functions of torch that leave memory as it was


class Devices(TorchFunctionMode):  # type: ignore[misc]
    """Every function of torch, with "cuda" read as "cpu", and a note of the tensors that are not on the GPU: what no function of torch made
    is."""

    def __init__(self, called: Callable[[], None]) -> None:
        super().__init__()
        self._called = called
        self._apart: dict[int, list[weakref.ref[torch.Tensor]]] = {}  # by the address of the memory: tensors of the CPU
        tensor: Any = torch.Tensor
        self._says: dict[Any, Callable[[Any], Any]] = {
            tensor.is_cuda.__get__: self.on_gpu, tensor.is_cpu.__get__: lambda t: not self.on_gpu(t), tensor.device.__get__: self._device,
            tensor.get_device: lambda t: 0 if self.on_gpu(t) else -1,
        }

    def on_gpu(self, tensor: Any) -> bool:
        """Whether a tensor would be on the GPU."""
        with torch._C.DisableTorchFunction():
            address = _address(tensor)
            return (
                not any(r() is not None for r in self._apart.get(address, ())) if address else not getattr(tensor, "_rooftop_apart", False)
            )

    def _device(self, tensor: Any) -> torch.device:
        return torch.device("cuda", 0) if self.on_gpu(tensor) else torch.device("cpu")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._called()
        kwargs = kwargs or {}
        if func in self._says:
            return self._says[func](args[0])
        if func is torch.device:  # it names one, and makes nothing there
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "cuda" and args and isinstance(args[0], torch.Tensor):
            return self._moved(args[0], True, args[0].clone)
        if name == "cpu" and args and isinstance(args[0], torch.Tensor):
            return self._moved(args[0], False, args[0].clone)
        named = [d for d in map(_named, (*args, *kwargs.values())) if d is not None]
        if isinstance(kwargs.get("device"), int):
            named, kwargs = ["cuda"], {**kwargs, "device": "cpu"}
        args, kwargs = tuple(map(_mapped, args)), {k: _mapped(v) for k, v in kwargs.items()}
        given = list(_tensors((*args, *kwargs.values())))
        if name == "to" and named:
            return self._moved(args[0], named[0] == "cuda", lambda: _copied(func(*args, **kwargs), args[0]))
        made = func(*args, **kwargs)
        where = named[0] == "cuda" if named else any(self.on_gpu(t) for t in given)
        for t in _tensors((made,)):
            self._note(t, where)
        if name in EMPTY and made.nbytes <= repeats.MOST:  # the same each time, and nothing that a kernel could do with
            real = made.is_floating_point() or made.is_complex()
            made.fill_(float("nan") if real else 1 if made.dtype == torch.bool else torch.iinfo(made.dtype).max)
        return made

    def _moved(self, tensor: Any, gpu: bool, copy: Callable[[], Any]) -> Any:
        if self.on_gpu(tensor) == gpu:
            made = copy()
            return tensor if made.dtype == tensor.dtype else self._note(made, gpu)
        return self._note(copy(), gpu)

    def _note(self, tensor: Any, gpu: bool) -> Any:
        address = _address(tensor)
        if not address:
            with contextlib.suppress(AttributeError, RuntimeError):
                tensor._rooftop_apart = not gpu
        elif gpu:
            self._apart.pop(address, None)
        else:
            self._apart[address] = [r for r in self._apart.get(address, ()) if r() is not None] + [weakref.ref(tensor)]
        return tensor


def _address(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError, AttributeError):  # of a tensor without memory of its own
        return 0


def _copied(made: Any, tensor: Any) -> Any:
    return made.clone() if made is tensor else made


def _named(value: Any) -> str | None:
    """The device that a value names: cuda, cpu, or None."""
    text = str(value) if isinstance(value, torch.device) else value if isinstance(value, str) else ""
    return "cuda" if CUDA.fullmatch(text) else "cpu" if text == "cpu" else None


def _mapped(value: Any) -> Any:
    return ("cpu" if isinstance(value, str) else torch.device("cpu")) if _named(value) == "cuda" else value


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


class _Nothing:
    """An event, a stream, a device, a drawing: it can be entered, and whatever is called of it does nothing and takes 1 ms."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: 1.0 if name == "elapsed_time" else True if name == "query" else _Nothing()

    def __call__(self, *_: Any, **__: Any) -> _Nothing:
        return self

    def __iter__(self) -> Iterator[_Nothing]:
        return iter((self, self))

    def __getitem__(self, _: Any) -> _Nothing:
        return self


class _Drawing(ModuleType):
    """A package that shows what there is, where it is not installed."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or _Nothing()


def _once(call: Callable[[], Any], *_: Any, quantiles: Any = None, return_mode: str = "mean", **__: Any) -> Any:
    """In place of `triton.testing.do_bench`: one call, 1 ms."""
    call()
    return [1.0] * len(quantiles) if quantiles else [1.0] if return_mode == "all" else 1.0


def _properties(*_: Any) -> Any:
    return SimpleNamespace(
        name=CARD.name, major=CARD.arch // 10, minor=CARD.arch % 10, total_memory=MEMORY, multi_processor_count=CARD.sms, warp_size=32,
        max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536, shared_memory_per_block=49152,
        shared_memory_per_block_optin=CARD.shared_per_block, shared_memory_per_multiprocessor=CARD.shared_per_block, L2_cache_size=50 << 20,
    )


class _Driver:
    """Triton's driver of it."""

    utils = SimpleNamespace(get_device_properties=lambda *_: {
        "max_shared_mem": CARD.shared_per_block, "max_num_regs": 65536, "multiprocessor_count": CARD.sms, "warpSize": 32,
        "sm_clock_rate": 1, "mem_clock_rate": 1, "mem_bus_width": 1,
    })

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", CARD.arch, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, *_: Any) -> int:
        return 0

    def set_current_device(self, *_: Any) -> None: ...

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_device_capability(self, *_: Any) -> tuple[int, int]:
        return divmod(CARD.arch, 10)

    def get_benchmarker(self) -> Any:
        return _once

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1)

    def clear_cache(self, *_: Any) -> None: ...


@contextlib.contextmanager
def gpu(launched: Callable[..., Any], configs: Callable[..., Any], called: Callable[[], None] = lambda: None) -> Iterator[Devices]:
    """While it lasts, torch and Triton find a GPU. `called()` comes before every function of torch.

    `launched(kernel, args, kwargs, grid, warmup)` stands for a launch of a `@triton.jit` function;
    `configs(tuner, args, kwargs)` for one of an autotuned function. What is timed is called once, and benchmarks of `triton.testing` are
    left out."""
    import triton.testing
    from triton.runtime import JITFunction
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.driver import driver

    class Fixed:  # of which no two are one: torch's compiler takes stock of torch.cuda, and wants each function once
        def __init__(self, value: Any) -> None:
            self.value = value

        def __call__(self, *_: Any, **__: Any) -> Any:
            return self.value

    cuda: dict[str, Any] = {
        "is_available": lambda: True, "is_initialized": lambda: True, "init": Fixed(None), "device_count": lambda: 1, "current_device": Fixed(0),
        "set_device": Fixed(None), "synchronize": Fixed(None), "empty_cache": Fixed(None), "manual_seed": Fixed(None), "manual_seed_all": Fixed(None),
        "get_device_name": lambda *_: CARD.name, "get_device_capability": lambda *_: divmod(CARD.arch, 10),
        "get_device_properties": _properties, "Event": _Nothing, "Stream": _Nothing, "stream": _Nothing,
        "current_stream": _Nothing, "default_stream": _Nothing, "device": _Nothing, "is_bf16_supported": lambda *_, **__: True,
        "nvtx": _Nothing(), "mem_get_info": lambda *_: (MEMORY, MEMORY), "reset_peak_memory_stats": Fixed(None), "_sleep": Fixed(None),
        **{n: Fixed(0) for n in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")},
    }

    any_card = {  # torch's words for a card of any maker
        **cuda, "current_accelerator": lambda *_, **__: torch.device("cuda"),
        **{n: Fixed(0) for n in ("current_device_index", "current_device_idx")}, **{n: Fixed(None) for n in ("set_device_index", "set_device_idx")},
    }

    def compiled(function: Any = None, **_: Any) -> Any:
        return function if function is not None else compiled

    patches = [
        *((torch.cuda, n, v) for n, v in cuda.items()), (torch, "compile", compiled),
        *((torch.accelerator, n, v) for n, v in any_card.items() if hasattr(torch, "accelerator") and hasattr(torch.accelerator, n)),
        (JITFunction, "run", lambda self, *args, grid, warmup, **kwargs: launched(self, args, kwargs, grid, warmup)),
        (Autotuner, "run", lambda self, *args, **kwargs: configs(self, args, kwargs)),
        (triton.testing, "do_bench", _once), (triton.testing, "do_bench_cudagraph", _once), (triton.testing.Mark, "run", lambda *_, **__: None),
    ]
    with contextlib.ExitStack() as undo:
        for name in [
            n for n in DRAWING if n.partition(".")[0] not in sys.modules and importlib.util.find_spec(n.partition(".")[0]) is None
        ]:
            sys.modules[name] = _Drawing(name)
            undo.callback(sys.modules.pop, name, None)
        for owner, name, value in patches:
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        undo.callback(driver.set_active, driver._active)
        driver.set_active(_Driver())
        yield undo.enter_context(Devices(called))
