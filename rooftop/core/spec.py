"""The data types of the package: dtypes, tensor metadata, cases, problems, work, launches.

Everything here is plain data that needs neither torch nor a GPU, so the kernel and the config that a call would use can be computed, tested
and explained on any machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

Number: TypeAlias = int | float | bool
Option: TypeAlias = int | float | bool | str


@dataclass(frozen=True)
class DType:
    """One element type and its names in the toolchains."""

    name: str
    bytes: int
    torch: str
    cuda: str
    triton: str
    floating: bool  # whether torch computes with it as a floating-point number; codes and integers are compared bit for bit
    mantissa: int = 0  # explicit mantissa bits
    max: float = 0.0  # largest finite value


DTYPES: Mapping[str, DType] = MappingProxyType(
    {
        d.name: d
        for d in (
            DType("f64", 8, "float64", "double", "fp64", True, 52, 1.7976931348623157e308),
            DType("f32", 4, "float32", "float", "fp32", True, 23, 3.4028234663852886e38),
            DType("f16", 2, "float16", "__half", "fp16", True, 10, 65504.0),
            DType("bf16", 2, "bfloat16", "__nv_bfloat16", "bf16", True, 7, 3.3895313892515355e38),
            DType("f8e4m3", 1, "float8_e4m3fn", "__nv_fp8_e4m3", "fp8e4nv", True, 3, 448.0),
            DType("f8e5m2", 1, "float8_e5m2", "__nv_fp8_e5m2", "fp8e5", True, 2, 57344.0),
            DType("f8e8m0", 1, "float8_e8m0fnu", "unsigned char", "u8", False),  # a power of two: the scale of an mx block
            DType("f4e2m1x2", 1, "float4_e2m1fn_x2", "unsigned char", "u8", False),  # two fp4 codes a byte, the first in the low half
            DType("c64", 8, "complex64", "float2", "i64", False),  # can be moved, not computed with
            DType("u64", 8, "uint64", "unsigned long long", "u64", False),
            DType("u32", 4, "uint32", "unsigned int", "u32", False),
            DType("u16", 2, "uint16", "unsigned short", "u16", False),
            DType("i64", 8, "int64", "long long", "i64", False),
            DType("i32", 4, "int32", "int", "i32", False),
            DType("i16", 2, "int16", "short", "i16", False),
            DType("i8", 1, "int8", "signed char", "i8", False),
            DType("u8", 1, "uint8", "unsigned char", "u8", False),
            DType("bool", 1, "bool", "bool", "i1", False),
        )
    }
)
OF_TORCH: Mapping[str, str] = MappingProxyType({d.torch: d.name for d in DTYPES.values()})


def dtype_of(torch_dtype: object) -> str:
    """The name here of a torch dtype. Raises TypeError if there is none."""
    name = str(torch_dtype).removeprefix("torch.")
    if name not in OF_TORCH:
        raise TypeError(f"dtype is {torch_dtype}; accepted are {', '.join(f'torch.{n}' for n in OF_TORCH)}")
    return OF_TORCH[name]


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of ``shape``, in elements."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def collapse(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Dimensions merged into one (extent, stride), or None if their strides do not allow it. Dimensions of extent 1 are ignored."""
    extent, stride = 1, 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n == 1:
            continue
        if extent == 1:
            extent, stride = n, s
        elif s == stride * extent:
            extent *= n
        else:
            return None
    return extent, stride


@dataclass(frozen=True)
class Meta:
    """What is known of one tensor without its values: shape, strides (in elements), dtype, alignment of its address (in bytes)."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] = ()
    align: int = 16
    itemsize: int = field(init=False, compare=False, repr=False)
    numel: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        object.__setattr__(self, "itemsize", DTYPES[self.dtype].bytes)
        object.__setattr__(self, "numel", prod(self.shape))
        if len(self.strides) != len(self.shape):
            if self.strides:
                raise ValueError(f"{len(self.strides)} strides for {len(self.shape)} dimensions")
            object.__setattr__(self, "strides", contiguous_strides(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of its elements; each element counts once, whatever the strides."""
        return self.numel * self.itemsize

    @property
    def contiguous(self) -> bool:
        step = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != step:
                return 0 in self.shape
            step *= extent
        return True

    @property
    def span(self) -> int:
        """Elements from the first to one past the last that the strides reach."""
        if self.numel == 0:
            return 0
        return 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))

    def with_(self, **changes: Any) -> Meta:
        return replace(self, **changes)


@dataclass(frozen=True)
class Device:
    """What a kernel's choices may depend on about the card. Without a GPU, the figures of a named target are used."""

    name: str
    arch: int  # 90 on an H100
    sms: int
    shared_per_block: int  # bytes of shared memory that a block may request (opt-in)
    l2_bytes: int
    clusters: tuple[int, ...] = ()  # how many clusters of 1, 2, 4, 8 and 16 blocks are resident at once, with one block a multiprocessor
    gfx: str = field(default="", repr=False, kw_only=True)  # AMD's architecture, "gfx942"; `arch` is then 80: configs without TMA and wgmma

    def resident(self, blocks: int) -> int:
        """How many clusters of `blocks` blocks are resident at once, with one block a multiprocessor. It may be fewer than sms / blocks: a
        cluster must fit into one GPC (a group of multiprocessors), and on each card other multiprocessors of a GPC are disabled."""
        size = max(blocks - 1, 0).bit_length()  # the next power of two
        return self.clusters[size] if size < len(self.clusters) else max(1, self.sms // blocks)

    @property
    def pdl(self) -> bool:
        """Whether kernels are launched by programmatic dependent launch, before the preceding kernel in the stream has completed
        (docs/head.md)."""
        return self.arch >= 90

    @property
    def target(self) -> str:
        """The compiler's name of the architecture. Instructions of one architecture alone (from Hopper on) need the `a`."""
        return self.gfx or (f"sm_{self.arch}a" if self.arch >= 90 else f"sm_{self.arch}")


class Targets(Mapping[int, Device]):
    """Cards to compile for and to choose configs for without a GPU: one for each architecture, by its number or name (90, "90", "sm_90a",
    "gfx942"), and by a name of its own ("h100", "b200", or torch's name). Iterates over the architectures that kernels are tuned and tested
    for; others are found as well."""

    def __init__(self, tuned: Mapping[int, Device], names: Mapping[str, Device]) -> None:
        self._tuned, self.names = tuned, names
        last = list(names.values())[::-1]  # of several cards of an architecture the first stands for it
        self._named = {**names, **{d.name.lower(): d for d in last}, **{d.gfx: d for d in last if d.gfx}}
        self._known = {**{d.arch: d for d in last if not d.gfx}, **tuned}

    def __getitem__(self, key: int | str) -> Device:
        if isinstance(key, int):
            return self._known[key]
        if found := re.fullmatch(r"(?:sm_?)?(\d+)a?", key):
            return self._known[int(found[1])]
        return self._named[key.lower()]

    def __iter__(self) -> Iterator[int]:
        return iter(self._tuned)

    def __len__(self) -> int:
        return len(self._tuned)

    @property
    def architectures(self) -> tuple[str, ...]:
        """Every architecture that is known, as `__getitem__` takes it."""
        return (*(str(a) for a in sorted(self._known)), *dict.fromkeys(d.gfx for d in self.names.values() if d.gfx))


_A800 = Device("NVIDIA A800-SXM4-80GB", 80, 108, 163 * 1024, 40 << 20)
_RTX4090 = Device("NVIDIA GeForce RTX 4090", 89, 128, 99 * 1024, 72 << 20)
_H100 = Device("NVIDIA H100 80GB HBM3", 90, 132, 227 * 1024, 50 << 20, (132, 66, 30, 15, 7))
# the same chip; which multiprocessors are off differs from card to card
_H200 = Device("NVIDIA H200", 90, 132, 227 * 1024, 60 << 20, _H100.clusters)
TARGETS = Targets(
    {80: _A800, 89: _RTX4090, 90: _H100},
    {
        "a800": _A800, "rtx4090": _RTX4090, "h100": _H100, "h200": _H200,
        "a100": Device("NVIDIA A100-SXM4-80GB", 80, 108, 163 * 1024, 40 << 20),
        "a10": Device("NVIDIA A10", 86, 72, 99 * 1024, 6 << 20),
        "l40s": Device("NVIDIA L40S", 89, 142, 99 * 1024, 96 << 20),
        "h800": Device("NVIDIA H800", 90, 132, 227 * 1024, 50 << 20, _H100.clusters),
        "h20": Device("NVIDIA H20", 90, 78, 227 * 1024, 60 << 20),
        "b200": Device("NVIDIA B200", 100, 148, 227 * 1024, 126 << 20),
        "b300": Device("NVIDIA B300", 103, 148, 227 * 1024, 126 << 20),
        "rtx5090": Device("NVIDIA GeForce RTX 5090", 120, 170, 99 * 1024, 96 << 20),
        "mi300x": Device("AMD Instinct MI300X", 80, 304, 64 * 1024, 4 << 20, gfx="gfx942"),
        "mi350x": Device("AMD Instinct MI350X", 80, 256, 160 * 1024, 4 << 20, gfx="gfx950"),
        "rx7900xtx": Device("AMD Radeon RX 7900 XTX", 80, 96, 64 * 1024, 6 << 20, gfx="gfx1100"),
    },
)


@dataclass(frozen=True)
class Problem:
    """One call without values: the tensors' Metas by the op's names (None for an absent optional one), the options, the device."""

    op: str
    tensors: tuple[tuple[str, Meta | None], ...]
    options: tuple[tuple[str, Option], ...] = ()
    device: Device = TARGETS[90]
    runtime_options: tuple[str, ...] = ()  # options known only at each call: the choice of a kernel may not depend on them
    runtime_floats: tuple[str, ...] = ()  # those that are float32; the others are 32-bit integers
    extra: tuple[str, ...] = ()  # parameters to which the reference gives a default, and which do not have it
    bucket: Callable[[Problem], Problem] | None = field(default=None, compare=False, repr=False)  # the contract's, for `tune_key`
    get: Callable[[str], Meta | None] = field(init=False, compare=False, repr=False)  # a tensor by its name; None: absent

    def __post_init__(self) -> None:
        object.__setattr__(self, "get", dict(self.tensors).get)  # a choice looks tensors up some dozens of times

    def __hash__(self) -> int:
        found = self.__dict__.get("_hash")
        if found is None:  # one problem is looked up several times
            found = hash((self.op, self.tensors, self.options, self.device, self.runtime_options, self.runtime_floats, self.extra))
            object.__setattr__(self, "_hash", found)
        return int(found)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_hash"}  # a hash of texts holds in one process alone

    def __getitem__(self, name: str) -> Meta:
        meta = self.get(name)
        if meta is None:
            raise KeyError(f"{self.op} has no tensor {name!r} here")
        return meta

    def option(self, name: str) -> Option:
        for key, value in self.options:
            if key == name:
                return value
        raise KeyError(f"{self.op} has no option {name!r}")

    def replace(self, **tensors: Meta | None) -> Problem:
        changed = tuple([(k, tensors.get(k, m)) for k, m in self.tensors])
        return Problem(self.op, changed, self.options, self.device, self.runtime_options, self.runtime_floats, self.extra, self.bucket)

    def on(self, device: Device) -> Problem:
        return replace(self, device=device)

    @property
    def tune_key(self) -> str:
        """The key of tuned configs: the signature, without float options, which influence only values, of the problem that the contract's
        `bucket` puts in place of similar ones (with row counts in buckets, for example)."""
        p = self if self.bucket is None else self.bucket(self)
        return replace(p, options=tuple((k, v) for k, v in p.options if not isinstance(v, float))).signature

    @property
    def signature(self) -> str:
        """A short text that names the shapes, dtypes and options."""
        parts = [
            f"{k}:{m.dtype}[{','.join(map(str, m.shape))}]" + ("" if m.contiguous and m.align >= 16 else "*")
            for k, m in self.tensors
            if m is not None
        ]
        return " ".join(parts + [f"{k}={v}" for k, v in self.options])


@dataclass(frozen=True)
class Work:
    """The minimum that a case requires: bytes read and written (each element once) and operations by unit (one FMA is one)."""

    read: int
    write: int
    ops: Mapping[str, float] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return self.read + self.write

    def of_part(self, part: float) -> Work:
        """The work if the values require only this share of the operations; the bytes stay the same."""
        return replace(self, ops={unit: n * part for unit, n in self.ops.items()})


@dataclass(frozen=True)
class TensorMap:
    """A TMA tensor map as an argument of a launch. CUDA C++ gets it by value, as `const __grid_constant__ CUtensorMap` (tensor_map.cuh).

    Sizes and strides count elements, the innermost dimension last. The driver encodes the map for the address of each call."""

    tensor: str  # the op's name for it, or the name of scratch memory
    box: tuple[int, ...]  # elements of one copy, at most 256 in each dimension
    swizzle: int = 0  # bytes: 0, 32, 64 or 128
    steps: tuple[int, ...] = ()  # element strides: every n-th element of each dimension is copied; (): every element
    dtype: str = ""  # of DTYPES, "tf32" or "f32ftz"; "": the tensor's own dtype
    promote: int = 256  # bytes that the L2 fetches at least: 0, 64, 128 or 256
    fill: str = "zero"  # value of elements outside the tensor: "zero" or "nan"
    shape: tuple[int, ...] = ()  # of the tensor; (): that of the problem
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Descriptor:
    """A TMA descriptor as an argument of a launch of Triton or Gluon: a host-side `TensorDescriptor`, made for the address of each call.
    `layout` (Gluon only): an `NVMMASharedLayout`. It is only useful on sm_90; in Triton it works everywhere."""

    tensor: str
    block: tuple[int, ...]  # elements of one copy
    layout: Any = None
    padding: str = "zero"  # value of elements outside the tensor: "zero" or "nan"
    shape: tuple[int, ...] = ()  # of the tensor; (): that of the problem
    strides: tuple[int, ...] = ()
    dtype: str = ""  # "tf32": TMA rounds float32 to TF32 when it copies; "": the tensor's own dtype


@dataclass(frozen=True)
class Launch:
    """One kernel launch as data. Strings in `args` name tensors (their address is passed) or runtime options (their value is passed); other
    values are numbers, tensor maps or descriptors.

    Triton, Gluon: `kernel` is the jit function, `args` go by parameter name (constexprs too); `warps`, `stages` and `options` apply: any
    option of Triton's backend (`num_ctas`, `maxnreg`, `enable_fp_fusion`, `launch_cooperative_grid`, ...).
    CUDA C++: `kernel` is the name expression, `args` go by position, `types` are their C types; `block`, `cluster`, `shared`, `cooperative`
    and `options`
    apply: `carveout` (percent of the L1 to use as shared memory) and `spread` (distribute clusters over all GPCs).

    `cooperative`: a cooperative launch: all blocks are resident and may wait for each other (`cooperative_groups::this_grid().sync()`); a
    grid with more blocks is refused.

    `pdl`: programmatic dependent launch (from sm_90 on; below it has no effect): the kernel may start before the preceding kernel in
    the stream, whatever kernel that is, has completed. Every thread must wait for it (`gdc_wait`, `griddepcontrol.wait`) before its first
    access of global memory, without exception; `rooftop inspect` checks the machine code. After the wait a kernel may release the dependent
    kernel (`gdc_launch_dependents`, `griddepcontrol.launch_dependents`); otherwise it is released when this kernel completes."""

    kernel: Any
    grid: tuple[int, ...]
    args: Mapping[str, Any]
    warps: int = 4
    stages: int = 1
    types: tuple[str, ...] = ()
    block: tuple[int, ...] = (1,)
    cluster: tuple[int, ...] = ()
    shared: int = 0
    pdl: bool = False
    cooperative: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """Part of a tensor, or of scratch memory, as an argument of a `TorchCall`: strides and offset count its elements."""

    tensor: str  # the op's name for it, or the name of scratch memory
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def of(self, tensor: Any) -> Any:
        return tensor.as_strided(self.shape, self.strides, tensor.storage_offset() + self.offset)


@dataclass(frozen=True)
class TorchCall:
    """A call of torch between launches, for example a cuBLAS product: `function(**args)` on torch's current stream. `args` may contain
    numbers and `View`s, which become tensors. The function writes into those; it may not allocate memory of their size, nor synchronise."""

    function: Callable[..., None]
    args: Mapping[str, Any]

    def run(self, memory: Mapping[str, Any]) -> None:
        """`memory`: tensors by name."""
        self.function(**{k: v.of(memory[v.tensor]) if isinstance(v, View) else v for k, v in self.args.items()})


Step: TypeAlias = Launch | TorchCall


@dataclass(frozen=True)
class Input:
    """How to make one input tensor of a case. `fill` and `layout` are names in `rooftop.lab.inputs`; integers are 0 to 99, or "below
    1000"."""

    shape: tuple[int, ...]
    dtype: str = "f32"
    fill: str = "normal"
    layout: str = "contiguous"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")


@dataclass(frozen=True)
class Case:
    """One shape, dtype and option set of an op. `tags`: `edge`, `bench`, `model`, `huge` (needs a large GPU). A list of inputs is a tuple
    of `Input`. `part`: the share of the work that its values require, if shapes alone do not determine it, for example with ignored
    tokens."""

    name: str
    inputs: Mapping[str, Input | tuple[Input, ...] | Option | None]
    tags: frozenset[str] = frozenset()
    why: str = ""
    part: float = 1.0

    @cached_property
    def dtype(self) -> str:
        """The dtype of the first tensor."""
        return next(v.dtype for _, v in self.tensors())

    @cached_property
    def id(self) -> str:
        return f"{self.name} {self.dtype}"

    def tensors(self) -> Iterator[tuple[str, Input]]:
        """Its tensors by name; those of a list are numbered: `xs` becomes `xs0`, `xs1`, ..."""
        for name, value in self.inputs.items():
            if isinstance(value, Input):
                yield name, value
            elif isinstance(value, tuple):
                yield from ((f"{name}{i}", v) for i, v in enumerate(value))

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes cases picklable: a read-only view of a dict is not, so another process gets the dict."""
        return Case, (self.name, dict(self.inputs), self.tags, self.why, self.part)


def case(name: str, *, tags: str = "", why: str = "", part: float = 1.0, **inputs: Any) -> Case:
    """Makes a case in one line: ``case("tall", x=Input((4096, 128)), dim=-1, tags="bench model")``."""
    return Case(name, MappingProxyType(dict(inputs)), frozenset(tags.split()), why, part)


def pow2(n: int) -> int:
    """The smallest power of two that is at least n, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def instance(name: str, *arguments: Any) -> str:
    """A kernel's name with its template arguments, as C++ writes them."""
    text = ", ".join(map(str, arguments)).replace("True", "true")
    return f"{name}<{text.replace('False', 'false')}>"


def typed(listed: Mapping[str, tuple[Any, Any]], *, value_first: bool = False) -> dict[str, Any]:
    """name -> (C type, value), or (value, C type), as the `args` and `types` of a launch."""
    types, values = zip(*listed.values(), strict=True)
    if value_first:
        types, values = values, types
    return {"args": dict(zip(listed, values, strict=True)), "types": types}


def typed_arguments(p: Problem, listed: Mapping[str, tuple[str, Any]]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """name -> (C type, value) as the `args` and `types` of a launch; a "ptr" is the tensor of that name, or null if it is absent."""
    args: dict[str, Any] = {}
    types: list[str] = []
    for name, (kind, value) in listed.items():
        args[name] = (None if p.get(name) is None else name) if kind == "ptr" else value
        types.append(kind)
    return args, tuple(types)
