"""Launches of Triton and Gluon kernels with little host time, and their differences between Triton 3.6 and 3.9."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from rooftop.core import tensor_maps
from rooftop.core.spec import Descriptor, Launch, Meta
from rooftop.core.triton_compat import ALIGN, descriptor, give_amd_libdevice, options_of, seen_as, settle, values_of, version

_KEPT = 256  # descriptors kept, by address, of one argument of one launch


class DescriptorSlot:
    """The position of one descriptor among the arguments of the C function, and its value for the address of each call.

    Triton 3.6 passes its C function a tensor map and then each size and stride (on targets without TMA an address instead, and all of them
    twice). Encoding the map is a driver call, so maps are cached by address. Other versions pass the descriptor, and Triton does the
    rest."""

    __slots__ = ("_given", "_kept", "_make", "_meta", "index", "name", "place", "size")

    def __init__(
        self, name: str, given: Descriptor, meta: Meta, index: int, place: int, size: int, make: Callable[[Any], list[Any]]
    ) -> None:
        """`name`: the parameter's."""
        self.name, self._given, self._meta, self._make = name, given, meta, make
        self.index, self.place, self.size = index, place, size
        self._kept: dict[int, list[Any]] = {}

    def of(self, given: Descriptor, meta: Meta) -> DescriptorSlot:
        """The same place for a tensor of another shape."""
        return DescriptorSlot(self.name, given, meta, self.index, self.place, self.size, self._make)

    def arguments(self, address: int) -> list[Any]:
        found = self._kept.get(address)
        if found is None:
            if address % ALIGN:
                raise ValueError(f"{self._given.tensor} lies at {address:#x}, which is not a multiple of {ALIGN}: TMA does not copy it")
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            found = self._kept[address] = self._make(descriptor(self._given, self._meta, address))
        return found


def _expanded(compiled: Any) -> tuple[Callable[..., Any], Callable[[Any, Any], list[Any]], list[Any]] | None:
    """For a kernel with descriptors in Triton 3.6: its C function, the function that makes a descriptor's arguments, and its metadata for
    each. None for other versions of Triton."""
    import inspect

    from triton.backends.nvidia import driver

    make = getattr(driver, "make_tensordesc_arg", None)
    raw = inspect.getclosurevars(compiled.run.launch).nonlocals.get("launcher")
    if make is None or raw is None:
        return None
    return raw, make, list(getattr(compiled.metadata, "tensordesc_meta", None) or [])


class PreparedTriton:
    """One kernel launch in which only the addresses change: ``prepared(stream, addresses)``. Thread-safe.

    A call copies a list, fills in stream and addresses and makes one C call. It skips Triton's binder, cache key, check of changed globals
    and launch hooks, and the driver query whether an address is the GPU's: the caller must ensure that, and that the current device is the
    one the launch was prepared for. Raises ValueError if an address is not a multiple of 16 although the kernel was compiled for that."""

    __slots__ = ("_call", "_fixed", "_maps", "_numbers", "_rest", "_slots", "compiled")

    def __init__(
        self, compiled: Any, grid: tuple[int, ...], values: Mapping[str, Any], places: Mapping[str, int],
        descriptors: Mapping[str, tuple[Descriptor, Meta]] | None = None,
    ) -> None:
        """``compiled``: Triton's CompiledKernel with initialised handles. ``values``: the arguments in order. ``places``: the position of
        each tensor parameter's address among the addresses of a call; ``descriptors``: those that are descriptors."""
        self.compiled = compiled
        runner = compiled.run
        own = bool(runner.global_scratch_size or runner.profile_scratch_size or getattr(runner, "gsan_enabled", False))
        expanded = _expanded(compiled) if descriptors and not own else None
        own = own or (bool(descriptors) and expanded is None)
        given, order, maps = _arguments(values, places, descriptors or {}, expanded)
        divisible = {path[0] for path, facts in compiled.src.attrs.items() if any(fact[0] == "tt.divisibility" for fact in facts)}
        head = [*(*grid, 1, 1)[:3], 0, compiled.function]  # 0: the stream
        flags = [runner.launch_cooperative_grid, runner.launch_pdl]
        packed, hooks, scratch = compiled.packed_metadata, [None, None, None], [None, None]  # launch metadata, enter, exit; global, profile
        self._rest: list[Any] | None = None
        if own:  # Triton's own launcher, which allocates scratch for each launch
            self._call: Callable[..., Any] = _with_allocator(runner) if runner.global_scratch_size else runner
            self._fixed = [*head, packed, *hooks, *given]
        elif hasattr(runner, "arg_annotations"):  # from 3.7: one C function for every signature, which takes the arguments as a tuple
            self._call = runner.launch
            self._fixed = [*head, *flags, packed, *hooks, *scratch, runner.arg_annotations, runner.kernel_signature]
            self._rest = given
        else:  # 3.6: a C function made for this signature
            self._call = runner.launch if expanded is None else expanded[0]
            self._fixed = [*head, *flags, *scratch, packed, *hooks, *given]
        first = 0 if self._rest is not None else len(self._fixed) - len(given)
        number = {name: i for i, name in enumerate(values)}
        self._slots = tuple(
            (first + order[n], at, ALIGN - 1 if number[n] in divisible else 0) for n, at in places.items() if n not in (descriptors or {})
        )
        self._maps = tuple(maps)
        for one in maps:
            one.place += first
        self._numbers = tuple((first + order[n], n) for n, value in values.items() if isinstance(value, (int, float)) and n not in places)

    def again(self, grid: tuple[int, ...], args: Mapping[str, Any], tensors: Mapping[str, Meta | None]) -> PreparedTriton:
        """The same binary with another grid, other numbers, and descriptors of tensors of other shapes."""
        made = object.__new__(PreparedTriton)
        made.compiled, made._call, made._slots, made._numbers = self.compiled, self._call, self._slots, self._numbers
        made._maps = tuple([one.of(args[one.name], cast(Meta, tensors[args[one.name].tensor])) for one in self._maps])
        made._fixed = self._fixed.copy()
        made._fixed[:3] = (*grid, 1, 1)[:3]
        made._rest = None if self._rest is None else self._rest.copy()
        target = made._fixed if made._rest is None else made._rest
        for place, name in self._numbers:
            if name in args:
                target[place] = args[name]
        return made

    def __call__(self, stream: int, addresses: Sequence[int]) -> None:
        fixed = self._fixed.copy()
        fixed[3] = stream
        target = fixed if self._rest is None else self._rest.copy()
        for place, index, low in self._slots:
            address = addresses[index]
            if low and address & low:
                raise ValueError(f"address {address:#x} is not a multiple of {ALIGN}, as the kernel was compiled for: prepare it anew")
            target[place] = address
        for one in self._maps:
            target[one.place : one.place + one.size] = one.arguments(addresses[one.index])
        if target is fixed:
            self._call(*fixed)
        else:
            self._call(*fixed, tuple(target))


def _itself(made: Any) -> list[Any]:
    return [made]


def _made(inner: Callable[[Any, Any], list[Any]], fact: Any, made: Any) -> list[Any]:
    return inner(made, fact)


def _arguments(
    values: Mapping[str, Any], places: Mapping[str, int], descriptors: Mapping[str, tuple[Descriptor, Meta]],
    expanded: tuple[Callable[..., Any], Callable[[Any, Any], list[Any]], list[Any]] | None,
) -> tuple[list[Any], dict[str, int], list[DescriptorSlot]]:
    """The arguments in the launcher's order, the position of each parameter's first one, and the descriptors among them."""
    given: list[Any] = []
    order: dict[str, int] = {}
    maps: list[DescriptorSlot] = []
    make: Callable[[Any], list[Any]]
    for name, value in values.items():
        order[name] = len(given)
        if name not in descriptors:
            given.append(value)
            continue
        asked, meta = descriptors[name]
        if expanded is None:
            size, make = 1, _itself
        else:
            _, inner, facts = expanded
            fact = facts[len(maps)] if facts else None
            if fact is not None and asked.dtype:
                fact = {**fact, "elem_type": tensor_maps.TYPES[asked.dtype]}
            rank = len(asked.shape or meta.shape)
            size, make = (2 + 4 * rank if fact is None else 1 + 2 * rank), partial(_made, inner, fact)
        maps.append(DescriptorSlot(name, asked, meta, places[name], order[name], size, make))
        given += [None] * size
    return given, order, maps


def _with_allocator(runner: Callable[..., Any]) -> Callable[..., Any]:
    """Triton's launcher with memory from torch, unless the user has set an allocator (`triton.set_allocator`)."""

    def call(*args: Any) -> Any:
        with _allocator():
            return runner(*args)

    return call


@contextmanager
def _allocator() -> Iterator[None]:
    from triton.runtime import _allocation

    kept = _allocation._allocator
    if not isinstance(kept.get(), _allocation.NullAllocator):
        yield
        return
    token = kept.set(_from_torch)
    try:
        yield
    finally:
        kept.reset(token)


def _from_torch(size: int, alignment: int, stream: int | None) -> Any:
    """Memory of torch's caching allocator, on the current device and stream, which are the launch's: it is reused only by work that comes
    after the launch."""
    import torch

    made = torch.empty(size + alignment, dtype=torch.uint8, device=torch.device("cuda", torch.cuda.current_device()))
    return made[-made.data_ptr() % alignment :]


def prepare(
    launch: Launch, tensors: Mapping[str, Meta | None], names: Sequence[str], device: int, runtime_floats: Collection[str] = ()
) -> PreparedTriton:
    """Compile (or find in Triton's cache) and load a launch for the GPU ``device``; nothing is launched.

    ``tensors``: the Metas of the tensors that the launch names; later calls must pass addresses of tensors like these. ``names`` is the
    order of those addresses. Raises TypeError if arguments do not match the kernel's parameters."""
    key = _same_binary(launch, tensors, names, device, runtime_floats)
    known = None if key is None else _PREPARED.get(key)
    if known is not None:
        return known.again(launch.grid, launch.args, tensors)
    made = _prepare(launch, tensors, names, device, runtime_floats)
    if key is not None:
        if len(_PREPARED) >= PREPARED:
            _PREPARED.clear()
        _PREPARED[key] = made
    return made


PREPARED = 2048  # launches kept: another launch of the same binary is copied from one of them
_PREPARED: dict[Any, PreparedTriton] = {}


def _same_binary(
    launch: Launch, tensors: Mapping[str, Meta | None], names: Sequence[str], device: int, runtime_floats: Collection[str]
) -> Any:
    """A key that is equal for launches of the same binary with the same order of addresses; None if an argument cannot be compared."""
    settle(launch.kernel)
    facts: list[Any] = []
    for name, value in launch.args.items():
        if isinstance(value, Descriptor):
            meta = tensors.get(value.tensor)
            rank = None if meta is None else (meta.dtype, len(value.shape or meta.shape))
            facts.append((name, value.tensor, value.block, value.layout, value.padding, value.dtype, rank))
        elif isinstance(value, str) and (meta := tensors.get(value)) is not None:
            facts.append((name, value, meta.dtype, meta.align % ALIGN == 0))
        else:
            facts.append((name, seen_as(launch.kernel, name, value), value in runtime_floats if isinstance(value, str) else value is None))
    stated = (launch.warps, launch.stages, launch.pdl, launch.cooperative, *sorted(launch.options.items()))
    key = (launch.kernel, device, stated, tuple(names), tuple(facts))
    try:
        hash(key)
    except TypeError:  # a constant that is a list, say
        return None
    return key


def _prepare(
    launch: Launch, tensors: Mapping[str, Meta | None], names: Sequence[str], device: int, runtime_floats: Collection[str] = ()
) -> PreparedTriton:
    version()
    from triton.runtime import driver

    kernel, options = launch.kernel, options_of(launch)
    # Gluon's may take num_warps
    values = {**{n: options[n] for n in kernel.arg_names if n in options}, **values_of(launch, tensors, runtime_floats)}
    missing = [p.name for p in kernel.params if p.name not in values and not p.has_default]
    unknown = sorted(set(values) - set(kernel.arg_names))
    if missing or unknown:
        raise TypeError(f"{kernel.__name__} takes {', '.join(kernel.arg_names)}; missing are {missing}, unknown are {unknown}")
    ordered = {p.name: values.get(p.name, p.default) for p in kernel.params}
    if driver.active.get_current_target().backend == "hip":
        give_amd_libdevice()
    before = driver.active.get_current_device()
    driver.active.set_current_device(device)
    try:
        settle(kernel)
        made = kernel.run(grid=launch.grid, warmup=True, **{**options, **ordered})
        made = made.result() if hasattr(made, "result") else made  # if Triton compiles asynchronously
        made._init_handles()
    finally:
        driver.active.set_current_device(before)
    places, descriptors = dict[str, int](), dict[str, tuple[Descriptor, Meta]]()
    for name, value in ordered.items():
        asked = launch.args.get(name)
        if isinstance(asked, str) and value is not None:
            if asked not in names:
                raise ValueError(
                    f"{kernel.__name__}: {name} is {asked!r}, which names no tensor; give a constant that chooses code as a number"
                )
            places[name] = names.index(asked)
        elif isinstance(asked, Descriptor) and (meta := tensors.get(asked.tensor)) is not None:
            places[name], descriptors[name] = names.index(asked.tensor), (asked, meta)
    return PreparedTriton(made, launch.grid, ordered, places, descriptors)
