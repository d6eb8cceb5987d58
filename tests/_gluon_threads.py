"""A Gluon kernel whose warps are specialised, run without a GPU: each partition is a thread, barriers count, TMA copies at once, and a product of
wgmma reads its operands as late as it may: when it is waited for. So a wait that is missing, a slot released too early and a deadlock show.
Arrays are numpy's, in float32; layouts have no meaning. Only what the kernels under test use is there."""

from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

SECONDS = 60.0  # until a wait counts as a deadlock
_thread = threading.local()  # pid, grid, products: those that run, the oldest first


class Dtype:
    def __init__(self, of: torch.dtype) -> None:
        self.torch, self.element_ty, self.primitive_bitwidth = of, self, of.itemsize * 8


class Number(int):
    """A whole number: `/` has no meaning, and `.to` changes nothing."""

    def to(self, _: Any) -> Number:
        return self


def _numbers(name: str) -> Any:
    def run(self: int, other: Any) -> Any:
        found = getattr(int, name)(int(self), other)
        return Number(found) if type(found) is int else found

    return run


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "mod", "and", "xor"):
    setattr(Number, f"__{_name}__", _numbers(f"__{_name}__"))


class Array(np.ndarray):
    """A tensor in registers."""

    type = types.SimpleNamespace(layout=None)

    def to(self, dtype: Any) -> Array:
        if isinstance(dtype, Dtype):
            return torch.from_numpy(np.asarray(self, np.float32).copy()).to(dtype.torch).float().numpy().view(Array)
        return self.astype(dtype)


def _array(x: Any) -> Array:
    return np.asarray(x).view(Array)


class Pointer:
    """Elements of a tensor's memory."""

    def __init__(self, tensor: torch.Tensor, at: Any = None) -> None:
        self.tensor, self.dtype = tensor, Dtype(tensor.dtype)
        self.at = tensor.storage_offset() if at is None else at

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.tensor, np.asarray(self.at, np.int64) + np.asarray(more, np.int64))

    def to(self, kind: Any) -> Pointer:
        """As words of another type, which are as wide as several elements."""
        words = torch.empty(0, dtype=kind).set_(self.tensor.untyped_storage())
        return Pointer(words, self.at * self.tensor.itemsize // kind.itemsize)

    def where(self, mask: Any) -> tuple[torch.Tensor, np.ndarray, torch.Tensor]:
        """The memory, which elements are in the mask, and their numbers in it."""
        at = np.asarray(self.at, np.int64)
        inside = np.broadcast_to(np.asarray(True if mask is None else mask), at.shape)
        memory = torch.empty(0, dtype=self.tensor.dtype).set_(self.tensor.untyped_storage())
        found = at[inside]
        if found.size and (found.min() < 0 or found.max() >= memory.numel()):
            raise IndexError(f"{sys._getframe(2).f_code.co_name}: elements {found.min()} to {found.max()} of {memory.numel()}")
        return memory, inside, torch.from_numpy(found)


class Shared:
    """Shared memory: NaN at first."""

    def __init__(self, values: np.ndarray, dtype: Dtype) -> None:
        self.values, self.dtype, self.type, self.shape = values, dtype, types.SimpleNamespace(element_ty=dtype), values.shape

    def index(self, i: Any) -> Shared:
        return Shared(self.values[int(i)], self.dtype)

    def reshape(self, shape: Sequence[int]) -> Shared:
        return Shared(self.values.reshape(shape), self.dtype)

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.values.transpose(order), self.dtype)

    def load(self, _: Any) -> Array:
        return _array(self.values.copy())

    def store(self, x: Any) -> None:
        self.values[...] = x

    def _reinterpret(self, _: Any, shape: Sequence[int], layout: Any) -> Any:
        """A tile as boxes of fewer rows and 64 columns, the rows of the first columns first."""
        (*_, rows, columns), (tile_rows, _) = shape, self.shape[-2:]
        each = tile_rows // rows

        def box(i: int) -> Shared:
            row, column = i % each * rows, i // each * columns
            return Shared(self.values[..., row : row + rows, column : column + columns], self.dtype)

        return types.SimpleNamespace(index=box)


class Barrier:
    """An mbarrier."""

    def __init__(self) -> None:
        self.changed, self.phase, self.count, self.pending, self.bytes = threading.Condition(), 0, 0, 0, 0

    def less(self, arrivals: int, size: int) -> None:
        with self.changed:
            self.pending -= arrivals
            self.bytes -= size
            assert self.pending >= 0, "more arrivals than a phase of the barrier has"
            if self.pending == self.bytes == 0:
                self.phase, self.pending = self.phase + 1, self.count
                self.changed.notify_all()


class Barriers:
    def __init__(self, n: int) -> None:
        self.all = [Barrier() for _ in range(n)]

    def index(self, i: Any) -> Barrier:
        return self.all[int(i)]


def _arrive(bar: Barrier, count: int = 1, pred: Any = True) -> None:
    if pred:
        bar.less(count, 0)
        time.sleep(0.005)  # whoever waits for it goes first: what is done too late then shows


def _init(bar: Barrier, count: int) -> None:
    bar.count = bar.pending = count


def _wait(bar: Barrier, parity: Any, pred: Any = True) -> None:
    if pred:
        with bar.changed:
            if not bar.changed.wait_for(lambda: bar.phase & 1 != int(parity), SECONDS):
                raise TimeoutError(f"{threading.current_thread().name} waits forever")


class Tiled:
    """A TMA descriptor."""

    def __init__(self, given: Any, tensor: torch.Tensor) -> None:
        self.whole = tensor.as_strided(given.shape, given.strides, tensor.storage_offset())
        self.block, self.dtype, self.layout = given.block, Dtype(tensor.dtype), None
        self.block_type = types.SimpleNamespace(shape=list(given.block))


def _copy(desc: Tiled, coord: Sequence[Any], bar: Barrier, to: Shared) -> None:
    assert tuple(to.shape) == tuple(desc.block), f"a box of {desc.block} into {to.shape}"
    found = np.zeros(desc.block, np.float32)
    here, there = [], []
    for c, n, most in zip(coord, desc.block, desc.whole.shape, strict=True):
        low, high = max(int(c), 0), min(int(c) + n, most)
        here.append(slice(low, max(high, low)))
        there.append(slice(low - int(c), low - int(c) + max(high - low, 0)))
    if all(s.stop > s.start for s in here):
        found[tuple(there)] = desc.whole[tuple(here)].float().numpy()
    to.values[...] = found
    bar.less(0, found.size * desc.dtype.torch.itemsize)


class Product:
    """A product of wgmma that runs; without `use_acc` it adds to nothing."""

    type = types.SimpleNamespace(layout=None)

    def __init__(self, a: Any, b: Shared, acc: Any, use_acc: Any) -> None:
        self.a, self.b, self.acc, self.use_acc = a, b, acc, use_acc
        self.made: Array | None = None

    def run(self) -> None:
        a = self.a.values if isinstance(self.a, Shared) else np.asarray(self.a)
        with np.errstate(all="ignore"):
            made = a @ self.b.values
        before = self.acc.made if isinstance(self.acc, Product) else self.acc
        self.made = _array(made + before if self.use_acc else made)


def _mma(a: Any, b: Shared, acc: Any, *, use_acc: Any = True, is_async: bool = False) -> Product:
    assert is_async
    _thread.products.append(Product(a, b, acc, use_acc))
    return _thread.products[-1]


def _mma_wait(num_outstanding: int, deps: Sequence[Product]) -> Array:
    while len(_thread.products) > num_outstanding:
        _thread.products.pop(0).run()
    (found,) = deps
    assert found.made is not None, "a product that still runs is used"
    return found.made


def _specialised(partitions: Sequence[tuple[Callable[..., None], Sequence[Any]]], *_: Any) -> None:
    failed: list[BaseException] = []
    place = _thread.pid, _thread.grid

    def partition(run: Callable[..., None], given: Sequence[Any]) -> None:
        (_thread.pid, _thread.grid), _thread.products = place, []
        try:
            run(*given)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=partition, args=p, name=p[0].__name__, daemon=True) for p in partitions]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise failed[0]


def _load(at: Pointer, mask: Any = None, other: Any = 0) -> Any:
    memory, inside, numbers = at.where(mask)
    whole = memory.dtype in (torch.int32, torch.int64)
    found = np.full(inside.shape, other, np.int64 if whole else np.float32)
    found[inside] = (memory[numbers] if whole else memory[numbers].float()).numpy()
    return _array(found) if found.ndim else Number(found) if whole else float(found)


def _store(at: Pointer, x: Any, mask: Any = None) -> None:
    memory, inside, numbers = at.where(mask)
    memory[numbers] = torch.from_numpy(np.broadcast_to(np.asarray(x, np.float32), inside.shape)[inside].copy()).to(memory.dtype)


def _extreme(of: Any, number: Callable[..., int]) -> Callable[[Any, Any], Any]:
    return lambda x, y: _array(of(x, y)) if np.ndim(x) or np.ndim(y) else Number(number(x, y))


def _function(of: Any) -> Callable[[Any], Array]:
    def run(x: Any) -> Array:
        with np.errstate(all="ignore"):
            return _array(of(np.asarray(x, np.float32)))

    return run


def _allocate(dtype: Any, shape: Sequence[int], _: Any) -> Any:
    if dtype is np.int64:
        return Barriers(shape[0])
    return Shared(np.full(shape, np.nan, np.float32), dtype if isinstance(dtype, Dtype) else Dtype(torch.float32))


def nothing(*_: Any, **more: Any) -> None:
    return None


class _Constant:
    def __new__(cls, value: Any) -> Any:
        return value


LANGUAGE = types.SimpleNamespace(
    constexpr=_Constant, pointer_type=lambda kind: torch.int32, float32=np.float32, int32=np.int32, int64=np.int64, SliceLayout=nothing,
    BlockedLayout=nothing, DotOperandLayout=nothing,
    NVMMADistributedLayout=nothing, SwizzledSharedLayout=nothing, NVMMASharedLayout=types.SimpleNamespace(get_default_for=nothing),
    zeros=lambda shape, dtype, _: _array(np.zeros(shape, dtype)), full=lambda shape, x, dtype, _: _array(np.full(shape, x, dtype)),
    arange=lambda low, high, _: _array(np.arange(low, high, dtype=np.int64)), where=lambda c, x, y: _array(np.where(c, x, y)),
    exp2=_function(np.exp2), log2=_function(np.log2), maximum=_extreme(np.fmax, max), minimum=_extreme(np.fmin, min),
    max=lambda x, axis: _array(np.fmax.reduce(np.asarray(x), axis=axis)), sum=lambda x, axis: _array(np.asarray(x).sum(axis)),
    convert_layout=lambda x, _, assert_trivial=False: x, static_range=range, load=_load, store=_store, allocate_shared_memory=_allocate,
    thread_barrier=nothing, warp_specialize=_specialised, inline_asm_elementwise=lambda *_, **more: Number(0),
    program_id=lambda axis: Number(_thread.pid[axis]), num_programs=lambda axis: Number(_thread.grid[axis]),
)
MBARRIER = types.SimpleNamespace(
    MBarrierLayout=nothing, init=_init, wait=_wait, expect=lambda bar, size: bar.less(1, -size),
    arrive=_arrive,
)


def functions(path: Path, **given: Any) -> dict[str, Any]:
    """What a kernel's file defines, over this language. `given`: what it imports from files of its family."""
    jit = types.SimpleNamespace(jit=lambda f=None, **options: f if f is not None else lambda g: g)
    names: dict[str, Any] = {
        "gluon": jit, "gl": LANGUAGE, "mbarrier": MBARRIER, "tma": types.SimpleNamespace(async_copy_global_to_shared=_copy),
        "warpgroup_mma": _mma, "warpgroup_mma_wait": _mma_wait, "fence_async_shared": nothing, **given,
    }
    text = path.read_text(encoding="utf-8")
    body = text[text.index("from __future__") :].partition("@dataclass")[0]
    lines = ["" if line.startswith(("from triton", "from rooftop", "from dataclasses")) else line for line in body.splitlines()]
    exec(compile("\n".join(lines), str(path), "exec"), names)
    return names


def launch(kernel: Callable[..., None], grid: Sequence[int], args: Mapping[str, Any], memory: Mapping[str, Any]) -> None:
    """All blocks, one after the other. `args`: of a `Launch`; `memory`: tensors and runtime options by name."""
    from rooftop.core.spec import Descriptor

    def seen(value: Any) -> Any:
        if isinstance(value, Descriptor):
            return Tiled(value, memory[value.tensor])
        found = memory[value] if isinstance(value, str) else value
        if isinstance(found, torch.Tensor):
            return Pointer(found)
        return Number(found) if type(found) is int else found

    whole = {n: seen(v) for n, v in args.items()}
    _thread.grid = (*grid, 1, 1)[:3]
    for z in range(_thread.grid[2]):
        for y in range(_thread.grid[1]):
            for x in range(_thread.grid[0]):
                _thread.pid = (x, y, z)
                kernel(**whole)
