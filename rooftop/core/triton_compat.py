"""Differences between Triton 3.6 and 3.9, first half: compiling without a GPU, and how Triton specialises on the arguments of a launch.

Nothing here uses a driver. Triton's cache folder is Triton's own (``TRITON_CACHE_DIR``). `rooftop.core.triton_launch` launches."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from rooftop.core import disk_cache, tensor_maps
from rooftop.core.compile import whole_elf
from rooftop.core.spec import DTYPES, Descriptor, Launch, Meta

OLDEST, NEWEST = (3, 6), (3, 9)
DEFAULTS = {"enable_fp_fusion": True}  # 3.6's default, named because 3.9 warns that 3.10 will change it
RUNTIME_INTEGER = 2**30 + 1  # stands for a 32-bit runtime argument: neither 1 nor divisible by 16, on which Triton would specialise
RUNTIME_FLOAT = 0.5  # stands for a float runtime argument
ALIGN = 16  # bytes: the only alignment class for pointers, and the only divisor of integers, that Triton specialises on


class UnsupportedTriton(RuntimeError):
    """Triton's version is not among those that were tested."""


def version() -> tuple[int, int]:
    """Triton's major and minor version. Raises UnsupportedTriton outside 3.6 to 3.9, ImportError without Triton."""
    import triton

    match = re.match(r"(\d+)\.(\d+)", triton.__version__)
    found = (int(match[1]), int(match[2])) if match else (0, 0)
    if not OLDEST <= found <= NEWEST:
        oldest, newest = (".".join(map(str, v)) for v in (OLDEST, NEWEST))
        raise UnsupportedTriton(f"Triton is {triton.__version__}; {oldest} to {newest} are accepted")
    return found


@dataclass(frozen=True)
class Compiled:
    """A kernel compiled ahead of time.

    The entry ``name`` takes the parameters that are not constants, in order, then two pointers to scratch memory (null if ``scratch`` is
    0)."""

    name: str
    arch: int | str
    ptx: str  # of AMD's targets the assembly text
    cubin: bytes  # of AMD's targets the code object
    shared: int  # bytes of dynamic shared memory; not compared with the architecture's limit
    num_warps: int  # warps of a block: it has 32 times as many threads
    num_ctas: int  # blocks of a cluster
    scratch: int  # bytes of global scratch that each program needs


def compile_for(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    aligned: Collection[str],
    arch: int | str,
    num_warps: int = 4,
    num_stages: int = 3,
    num_ctas: int = 1,
    **options: object,
) -> Compiled:
    """Compile a ``@triton.jit`` or Gluon kernel for ``arch`` (80, 89, 90; Triton makes sm_90a of 90; "gfx942") without a GPU or a driver.

    signature   Triton's type of each parameter that is not a constant: "*bf16", "i32", "fp32", "tensordesc<bf16[64,64]>", ...
    constants   the value of each constexpr, and of any other parameter to be compiled in (an integer of 1, None for a pointer); missing
                constexprs get their default
    aligned     parameters known to be divisible by 16: addresses in bytes, integers as they are
    options     more of the backend's options (maxnreg, enable_fp_fusion, launch_pdl, ...)

    Raises ValueError if the parameters do not match the kernel, and Triton's error if the kernel does not compile. A kernel with
    instructions that ``arch`` does not have (wgmma on 80) ends the whole process inside LLVM: compile such kernels in a separate
    process."""
    version()
    values: dict[str, Any] = {p.name: p.default for p in kernel.params if p.is_constexpr and p.has_default} | dict(constants)
    names = list(kernel.arg_names)
    missing = [n for n in names if n not in signature and n not in values]
    unknown = sorted((set(signature) | set(values) | set(aligned)) - set(names))
    both = sorted(set(signature) & set(values))
    if missing or unknown or both:
        raise ValueError(
            f"{kernel.__name__} takes {', '.join(names)}; missing are {missing}, unknown are {unknown}, in both signature and constants "
            f"are {both}"
        )
    if bad := sorted(set(aligned) & set(values)):
        raise ValueError(f"aligned names {bad}, which are constants")
    types = {n: "constexpr" if n in values else signature[n] for n in names}
    places = {(names.index(n),): v for n, v in values.items()}
    attrs = {(names.index(n),): [["tt.divisibility", ALIGN]] for n in aligned}
    chosen = {**DEFAULTS, "num_warps": num_warps, "num_stages": num_stages, "num_ctas": num_ctas, **options}
    return _compile(kernel, types, places, attrs, arch, chosen)


def compile_launch(launch: Launch, tensors: Mapping[str, Meta | None], arch: int | str, runtime_floats: Collection[str] = ()) -> Compiled:
    """Compile what ``launch`` would compile on ``arch``, specialised on the values and alignments of its arguments as in Triton's own
    launch, without a GPU or a driver. ``tensors``: the Metas of the tensors that the launch names. Raises like ``compile_for``."""
    types, places, attrs = _specialised(launch, tensors, arch, runtime_floats)
    return _compile(launch.kernel, types, places, attrs, arch, options_of(launch))


def variant(launch: Launch, tensors: Mapping[str, Meta | None], arch: int | str, runtime_floats: Collection[str] = ()) -> str:
    """A text that is equal for launches of the same binary. Raises TypeError if arguments do not match the kernel's parameters."""
    kernel = launch.kernel
    facts = _specialised(launch, tensors, arch, runtime_floats)
    return f"{kernel.__module__}.{kernel.__name__} {facts} {sorted(options_of(launch).items())}"


def _specialised(
    launch: Launch, tensors: Mapping[str, Meta | None], arch: int | str, runtime_floats: Collection[str]
) -> tuple[Any, Any, Any]:
    """Types, constants and attributes of the parameters, as Triton derives them from the arguments."""
    options = options_of(launch)
    # Gluon's may take num_warps
    values = {**{n: options[n] for n in launch.kernel.arg_names if n in options}, **values_of(launch, tensors, runtime_floats)}
    return _of_values(launch.kernel, values, arch, options)


def compile_values(kernel: Any, values: Mapping[str, Any], arch: int, options: Mapping[str, Any]) -> Compiled:
    """Compile what a launch of ``kernel`` with these arguments by name, tensors among them, and these options compiles on ``arch``. Raises
    like ``compile_for``."""
    chosen = {**DEFAULTS, "num_warps": 4, "num_stages": 3, **options}
    return _compile(kernel, *_of_values(kernel, values, arch, chosen), arch, chosen)


def _of_values(kernel: Any, values: Mapping[str, Any], arch: int | str, options: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    version()
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    backend = make_backend(_target(arch))
    bound, specialization, rest = create_function_from_signature(kernel.signature, kernel.params, backend)(**values)
    if rest:
        raise TypeError(f"{kernel.__name__} takes {', '.join(kernel.arg_names)}; unknown are {', '.join(rest)}")
    _, types, places, attrs = kernel._pack_args(backend, options, bound, specialization, None)
    return types, places, attrs


def options_of(launch: Launch) -> dict[str, Any]:
    """The options for Triton's backend that a launch gives."""
    stated = {"launch_pdl": launch.pdl, "launch_cooperative_grid": launch.cooperative}
    return {**DEFAULTS, "num_warps": launch.warps, "num_stages": launch.stages, **{k: v for k, v in stated.items() if v}, **launch.options}


def _target(arch: int | str) -> Any:
    """Triton's target: a number is NVIDIA's, a text AMD's, whose data-centre chips (gfx9) have wavefronts of 64 threads."""
    from triton.backends.compiler import GPUTarget

    if isinstance(arch, int):
        return GPUTarget("cuda", arch, 32)
    give_amd_libdevice()
    return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)


@cache
def give_amd_libdevice() -> None:
    """Let Triton's compiler for AMD take AMD's functions where a kernel names those of CUDA's libdevice. It does so by itself only for
    kernels that import `triton.language.extra.libdevice`, which lacks what depends on CUDA."""
    from triton.backends.amd.compiler import HIPBackend
    from triton.language import core
    from triton.language.extra.hip import libdevice

    def mul_rn(a: Any, b: Any, _semantic: Any = None) -> Any:
        return libdevice.fma(a, b, -0.0, _semantic=_semantic)  # a product that is rounded by itself, and no part of a later fma

    module = ModuleType("rooftop.core.triton_compat.amd_libdevice")
    vars(module).update({n: f for n, f in vars(libdevice).items() if not n.startswith("__")}, mul_rn=core.extern(mul_rn))
    before = HIPBackend.get_module_map
    HIPBackend.get_module_map = lambda self: {**before(self), "triton.language.extra.cuda.libdevice": module}


def settle(kernel: Any) -> None:
    """Compute Triton's keys of all functions that a kernel calls, and then its own.

    Triton's key of a kernel holds the constants that a called function reads only if that function's key was computed before. The key would
    follow what the process has compiled so far, and the next process would compile the kernel again. hash(kernel), as of a key in a dict,
    computes the key too: no kernel is hashed before."""
    if kernel.hash is None:
        _settle(kernel, set())


def _settle(function: Any, met: set[int]) -> None:
    from triton.runtime.jit import JITCallable

    if id(function) in met:
        return
    met.add(id(function))
    if function.hash is None:
        code, known = function.fn.__code__, function.fn.__globals__
        cells = dict(zip(code.co_freevars, function.fn.__closure__ or (), strict=True))
        named = [known.get(n) for n in code.co_names] + [c.cell_contents for c in cells.values()]
        named += [getattr(m, n, None) for m in named if isinstance(m, ModuleType) for n in code.co_names]
        for one in named:
            if isinstance(one, JITCallable):
                _settle(one, met)
    function.cache_key  # noqa: B018  a property, which Triton keeps


def _compile(kernel: Any, types: Any, places: Any, attrs: Any, arch: int | str, options: dict[str, Any]) -> Compiled:
    import triton
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    settle(kernel)
    kind = GluonASTSource if kernel.is_gluon() else ASTSource
    source = kind(fn=kernel, signature=types, constexprs=places, attrs=attrs)

    text, kind_of_code = ("ptx", "cubin") if isinstance(arch, int) else ("amdgcn", "hsaco")

    def compiled() -> Any:
        while True:
            try:
                return triton.compile(source, target=_target(arch), options=options)
            except SystemError as error:  # CPython 3.11 counts its parser's depth for all threads together
                if "recursion depth mismatch" not in str(error):
                    raise

    try:
        made = compiled()
        whole = whole_elf(made.asm[kind_of_code])
    except (ValueError, TypeError, AttributeError, RecursionError) as error:  # from Triton's cache, or from the kernel
        if not disk_cache.mend_triton() and not isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
            raise
        whole = False
    if not whole:  # Triton trusts its cache: a truncated file is compiled again
        with triton.knobs.compilation.scope():
            triton.knobs.compilation.always_compile = True
            made = compiled()
    about, code = made.metadata, made.asm
    scratch = int(getattr(about, "global_scratch_size", 0) or 0)
    # num_warps as compiled: warp specialisation adds to those that were asked for
    return Compiled(about.name, arch, code[text], code[kind_of_code], about.shared, about.num_warps, about.num_ctas, scratch)


@cache
def constants_of(kernel: Any) -> frozenset[str]:
    """The parameters that are compiled in."""
    return frozenset(p.name for p in kernel.params if p.is_constexpr)


def seen_as(kernel: Any, name: str, value: Any) -> Any:
    """Equal for arguments, tensors apart, that Triton compiles alike: constants whole; of a whole number whether it is 1, a multiple of 16,
    and of how many bits; of a float that it is one."""
    settle(kernel)
    if name in constants_of(kernel):
        return "constant", value
    if type(value) is int:
        return value == 1, value % ALIGN == 0, -(2**31) <= value < 2**31, value < 2**63
    return "float" if isinstance(value, float) else value


class Pointer:
    """The properties of a tensor argument that Triton specialises on: the element's type and whether the address is a multiple of 16."""

    def __init__(self, dtype: Any, address: int) -> None:
        self.dtype, self.address = dtype, address

    def data_ptr(self) -> int:
        return self.address


def values_of(launch: Launch, tensors: Mapping[str, Meta | None], runtime_floats: Collection[str] = ()) -> dict[str, Any]:
    """The launch's arguments by parameter name, tensors as pointers of no memory, None for a tensor that is left out, RUNTIME_INTEGER for a
    runtime option.

    Raises ValueError for a `Descriptor` of a tensor that TMA does not copy."""
    found: dict[str, Any] = {}
    for name, value in launch.args.items():
        if isinstance(value, Descriptor):
            meta = tensors.get(value.tensor)
            found[name] = None if meta is None else descriptor(value, meta, 0)
        elif not isinstance(value, str):
            found[name] = value
        elif value not in tensors:
            found[name] = RUNTIME_FLOAT if value in runtime_floats else RUNTIME_INTEGER
        else:
            meta = tensors[value]
            found[name] = None if meta is None else Pointer(DTYPES[meta.dtype].triton, 0 if meta.align % ALIGN == 0 else meta.align)
    return found


def descriptor(given: Descriptor, meta: Meta, base: Any) -> Any:
    """Triton's (with a layout, Gluon's) own `TensorDescriptor`. `base`: a tensor, or an address. Raises ValueError where TMA copies no such
    tensor."""
    shape, strides = tensor_maps.laid_out(meta, given.shape, given.strides)
    if reason := tensor_maps.not_copied(meta, shape, strides):
        raise ValueError(f"a descriptor of {given.tensor}: {reason}")
    if isinstance(base, int):
        import torch

        base = Pointer(getattr(torch, DTYPES[meta.dtype].torch), base)
    if given.layout is None:
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(base, list(shape), list(strides), list(given.block), given.padding)
    from triton.experimental.gluon.nvidia import hopper

    made = hopper.TensorDescriptor(base, list(shape), list(strides), list(given.block), given.layout, given.padding)
    if given.dtype == "tf32" and hasattr(made, "round_f32_to_tf32"):  # from Triton 3.7; in 3.6 the launcher says it
        made.round_f32_to_tf32 = True
    return made
