"""What differs between Triton 3.6 and 3.9, in one place: compiling without a GPU, and launching at little cost to the host.

Nothing here touches a driver except ``prepare``. Triton's cache folder is Triton's own (``TRITON_CACHE_DIR``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooftop.core.spec import DTYPES, Launch, Meta

OLDEST, NEWEST = (3, 6), (3, 9)
DEFAULTS = {"enable_fp_fusion": True}  # 3.6's default, named because 3.9 warns that 3.10 will change it
LATE = 2**30 + 1  # stands for a 32-bit number given at each call: neither 1 nor divisible by 16, which Triton would compile in
ALIGN = 16  # bytes: Triton's one alignment class for pointers, and its one divisor for integers


class UnsupportedTriton(RuntimeError):
    """Triton's version is outside what the project was tried with."""


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

    The entry ``name`` takes the parameters that are not constants, in order, then two pointers to scratch (null where ``scratch`` is 0)."""

    name: str
    arch: int
    ptx: str
    cubin: bytes
    shared: int  # bytes of dynamic shared memory; not checked against what the architecture has
    num_warps: int  # of a block: blocks have 32 times as many threads
    num_ctas: int  # blocks of a cluster
    scratch: int  # bytes of global scratch that each program needs


def compile_for(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    aligned: Collection[str],
    arch: int,
    num_warps: int = 4,
    num_stages: int = 3,
    num_ctas: int = 1,
    **options: object,
) -> Compiled:
    """Compile a ``@triton.jit`` or Gluon kernel for ``arch`` (80, 89, 90: Triton itself makes sm_90a of 90) without a GPU or a driver.

    signature   Triton's type of each parameter that is not a constant: "*bf16", "i32", "fp32", "tensordesc<bf16[64,64]>", ...
    constants   the value of each constexpr, and of any other parameter to be compiled in (an integer of 1, None for a pointer); constexprs
                left out take their default
    aligned     parameters known to be divisible by 16: addresses in bytes, integers as they are
    options     more of the backend's options (maxnreg, enable_fp_fusion, launch_pdl, ...)

    Raises ValueError where the parameters do not fit the kernel, and what Triton raises where the kernel does not compile. A kernel with
    instructions that ``arch`` lacks (wgmma on 80) ends the whole process inside LLVM: compile what may do so in a process of its own."""
    version()
    values: dict[str, Any] = {p.name: p.default for p in kernel.params if p.is_constexpr and p.has_default} | dict(constants)
    names = list(kernel.arg_names)
    missing = [n for n in names if n not in signature and n not in values]
    unknown = sorted((set(signature) | set(values) | set(aligned)) - set(names))
    both = sorted(set(signature) & set(values))
    if missing or unknown or both:
        raise ValueError(
            f"{kernel.__name__} takes {', '.join(names)}; missing are {missing}, unknown are {unknown}, in both signature and constants are {both}"
        )
    if bad := sorted(set(aligned) & set(values)):
        raise ValueError(f"aligned names {bad}, which are constants")
    types = {n: "constexpr" if n in values else signature[n] for n in names}
    places = {(names.index(n),): v for n, v in values.items()}
    attrs = {(names.index(n),): [["tt.divisibility", ALIGN]] for n in aligned}
    chosen = {**DEFAULTS, "num_warps": num_warps, "num_stages": num_stages, "num_ctas": num_ctas, **options}
    return _compile(kernel, types, places, attrs, arch, chosen)


def compile_launch(launch: Launch, tensors: Mapping[str, Meta | None], arch: int) -> Compiled:
    """Compile what ``launch`` would compile on ``arch``, specialised on the values and alignments of its arguments as Triton does when it
    launches, without a GPU or a driver. ``tensors``: the facts of the tensors that the launch names. Raises as ``compile_for``."""
    version()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    kernel, backend = launch.kernel, make_backend(GPUTarget("cuda", arch, 32))
    options = _options(launch)
    bound, specialization, rest = create_function_from_signature(kernel.signature, kernel.params, backend)(**_values(launch, tensors))
    if rest:
        raise TypeError(f"{kernel.__name__} takes {', '.join(kernel.arg_names)}; unknown are {', '.join(rest)}")
    _, types, places, attrs = kernel._pack_args(backend, options, bound, specialization, None)
    return _compile(kernel, types, places, attrs, arch, options)


def _options(launch: Launch) -> dict[str, Any]:
    chained = {"launch_pdl": True} if launch.chained else {}
    return {**DEFAULTS, "num_warps": launch.warps, "num_stages": launch.stages, **chained}


def _compile(kernel: Any, types: Any, places: Any, attrs: Any, arch: int, options: dict[str, Any]) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    kind = GluonASTSource if kernel.is_gluon() else ASTSource
    source = kind(fn=kernel, signature=types, constexprs=places, attrs=attrs)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    about, code = made.metadata, made.asm
    scratch = int(getattr(about, "global_scratch_size", 0) or 0)
    # num_warps as compiled: warp specialisation adds to those that were asked for
    return Compiled(about.name, arch, code["ptx"], code["cubin"], about.shared, about.num_warps, about.num_ctas, scratch)


class _Pointer:
    """What Triton looks at in a tensor argument: the element's type and whether the address is a multiple of 16."""

    def __init__(self, meta: Meta) -> None:
        self.dtype = DTYPES[meta.dtype].triton
        self.address = 0 if meta.align % ALIGN == 0 else meta.align

    def data_ptr(self) -> int:
        return self.address


def _values(launch: Launch, tensors: Mapping[str, Meta | None]) -> dict[str, Any]:
    """The launch's arguments by parameter name, tensors as pointers of no memory, None for a tensor that is left out, LATE for a late option."""
    found: dict[str, Any] = {}
    for name, value in launch.args.items():
        if isinstance(value, str):
            meta = tensors.get(value)
            found[name] = LATE if value not in tensors else None if meta is None else _Pointer(meta)
        else:
            found[name] = value
    return found


class PreparedTriton:
    """One kernel launch whose addresses alone change: ``prepared(stream, addresses)``. Safe to call from several threads.

    A call copies a list, fills in stream and addresses and makes one C call. Triton's binder, cache key, check of changed globals and
    launch hooks are left out, as is its question to the driver whether an address is the GPU's: the caller answers for that and for the
    current device being the one the launch was prepared for. Raises ValueError where an address that the kernel was compiled to take as a
    multiple of 16 is not one."""

    __slots__ = ("_call", "_fixed", "_rest", "_slots", "compiled")

    def __init__(self, compiled: Any, grid: tuple[int, ...], values: Mapping[str, Any], places: Mapping[str, int]) -> None:
        """``compiled``: Triton's CompiledKernel with its handles made. ``values``: the arguments in order. ``places``: where the address of
        each tensor parameter stands among the addresses of a call."""
        self.compiled = compiled
        runner, given = compiled.run, list(values.values())
        divisible = {path[0] for path, facts in compiled.src.attrs.items() if any(fact[0] == "tt.divisibility" for fact in facts)}
        head = [*(*grid, 1, 1)[:3], 0, compiled.function]  # 0: the stream
        flags = [runner.launch_cooperative_grid, runner.launch_pdl]
        packed, hooks, scratch = compiled.packed_metadata, [None, None, None], [None, None]  # launch metadata, enter, exit; global, profile
        self._rest: list[Any] | None = None
        if runner.global_scratch_size or runner.profile_scratch_size or getattr(runner, "gsan_enabled", False):
            self._call: Callable[..., Any] = runner  # Triton's own launcher, which allocates scratch for each launch
            self._fixed = [*head, packed, *hooks, *given]
        elif hasattr(runner, "arg_annotations"):  # from 3.7: one C function for every signature, which takes the arguments as a tuple
            self._call = runner.launch
            self._fixed = [*head, *flags, packed, *hooks, *scratch, runner.arg_annotations, runner.kernel_signature]
            self._rest = given
        else:  # 3.6: a C function made for this signature
            self._call = runner.launch
            self._fixed = [*head, *flags, *scratch, packed, *hooks, *given]
        first = 0 if self._rest is not None else len(self._fixed) - len(given)
        order = {name: i for i, name in enumerate(values)}
        self._slots = tuple((first + order[n], at, ALIGN - 1 if order[n] in divisible else 0) for n, at in places.items())

    def __call__(self, stream: int, addresses: Sequence[int]) -> None:
        fixed = self._fixed.copy()
        fixed[3] = stream
        target = fixed if self._rest is None else self._rest.copy()
        for place, index, low in self._slots:
            address = addresses[index]
            if address & low:
                raise ValueError(f"address {address:#x} is not a multiple of {ALIGN}, as the kernel was compiled for: prepare it anew")
            target[place] = address
        if target is fixed:
            self._call(*fixed)
        else:
            self._call(*fixed, tuple(target))


def prepare(launch: Launch, tensors: Mapping[str, Meta | None], names: Sequence[str], device: int) -> PreparedTriton:
    """Compile (or find in Triton's cache) and load a launch for the GPU ``device``; nothing is launched.

    ``tensors``: the facts of the tensors that the launch names; the addresses of later calls must be of tensors like these. ``names`` gives
    the order of those addresses. Raises TypeError where arguments do not fit the kernel's parameters."""
    version()
    from triton.runtime import driver

    kernel, values = launch.kernel, _values(launch, tensors)
    missing = [p.name for p in kernel.params if p.name not in values and not p.has_default]
    unknown = sorted(set(values) - set(kernel.arg_names))
    if missing or unknown:
        raise TypeError(f"{kernel.__name__} takes {', '.join(kernel.arg_names)}; missing are {missing}, unknown are {unknown}")
    ordered = {p.name: values.get(p.name, p.default) for p in kernel.params}
    before = driver.active.get_current_device()
    driver.active.set_current_device(device)
    try:
        options = _options(launch)
        made = kernel.run(*ordered.values(), grid=launch.grid, warmup=True, **options)
        made = made.result() if hasattr(made, "result") else made  # where Triton compiles asynchronously
        made._init_handles()
    finally:
        driver.active.set_current_device(before)
    places = {n: names.index(launch.args[n]) for n, v in ordered.items() if isinstance(launch.args.get(n), str) and v is not None}
    return PreparedTriton(made, launch.grid, ordered, places)
