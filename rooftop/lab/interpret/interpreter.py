"""Triton kernels on a CPU: any ``@triton.jit`` function, in the same process that compiles it, on CPU tensors.

``run`` calls the kernel's Python code once for each program of the grid. While it runs, and only then, Triton's own builtins are bound to
a builder (``interpret_builder``) that computes with NumPy (``interpret_numbers``) on memory that is checked access by access
(``interpret_memory``); ``tl.sum`` and every other ``@triton.jit`` function that the kernel calls are run in the same way. TRITON_INTERPRET
need not (and must not) be set.

Not modelled: the order in which programs run (here x fastest, one after another), contraction of a * b + c into an fma, the error of
approximate instructions (exp, log, sin, division), the order of sums inside tl.dot.
Not simulated, with an error that says so: inline assembly, tl.dot_scaled, tl.map_elementwise, arithmetic on fp8, Gluon.

Not safe in threads: what it patches is global to the process while it runs."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import time
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rooftop.lab.interpret.language import MARK, Language, bounds_of, cpu, tensor_of, truth
from rooftop.lab.interpret.memory import DeviceAssert, InterpretError, Memory, Misaligned, NotSimulated, OutOfBounds, ReadOnly
from rooftop.lab.interpret.races import RaceBetweenPrograms, Races, line_of

if TYPE_CHECKING:
    import torch

__all__ = [
    "DeviceAssert", "InterpretError", "KernelError", "Misaligned", "NotSimulated", "OutOfBounds", "RaceBetweenPrograms", "ReadOnly", "Run",
    "run"
]

GRID_LIMITS = (2**31 - 1, 65535, 65535)  # CUDA's, in programs


class KernelError(InterpretError):
    """The kernel's Python code raised; the message says what and where, and the original is the cause."""


@dataclass(frozen=True)
class Run:
    """What a run did; `programs`: how many ran. Bytes are counted lane by lane: a byte read twice counts twice, an atomic counts as load
    and store."""

    programs: int
    loaded: int  # bytes
    stored: int  # bytes


def run(
    kernel: Any,
    grid: tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]],
    args: Mapping[str, object],
    *,
    readonly: Collection[str] = (),
    reachable: Iterable[torch.Tensor] = (),
    max_programs: int = 16384,
    poison: bool = True,
    check_overflow: bool = False,
    num_warps: int = 4,
    seconds: float = float("inf"),
) -> Run:
    """Run a ``@triton.jit`` kernel on CPU tensors, which it changes in place.

    grid            programs along x, y, z, or a function of ``args`` (defaults filled in) that gives them
    args            every parameter by name: CPU tensors, numbers, None, tuples, TensorDescriptors; constexprs as plain values
    readonly        names of tensor parameters that the kernel must not write to
    reachable       more tensors, reached by addresses that the kernel reads from memory (pointer tables)
    max_programs    the largest grid accepted; a program costs about 0.1 ms for each operation in it
    poison          fill masked lanes of loads without ``other`` with NaN (integers 0x7f7f...), as Triton leaves them undefined; False: 0
    seconds         after so long no more programs are begun: `Run.programs` says how many ran
    check_overflow  also raise DeviceAssert where an integer operation of up to 32 bits overflows (a GPU wraps)

    Raises OutOfBounds, Misaligned, ReadOnly, RaceBetweenPrograms, DeviceAssert, NotSimulated or KernelError, all InterpretErrors, naming
    kernel, program and source line; TypeError or ValueError for arguments that no launch would take."""
    from triton.runtime import JITFunction

    if not isinstance(kernel, JITFunction) or kernel.is_gluon():
        kind = "a Gluon kernel" if isinstance(kernel, JITFunction) else f"{type(kernel).__module__}.{type(kernel).__name__}"
        raise TypeError(f"kernel is {kind}; a @triton.jit function is accepted (not autotuned, not made under TRITON_INTERPRET=1)")
    values = _bind(kernel, args)
    sizes = grid(dict(values)) if callable(grid) else grid
    if not 1 <= len(sizes) <= 3 or any(not 0 <= n <= limit for n, limit in zip(sizes, GRID_LIMITS, strict=False)):
        raise ValueError(f"grid is {sizes}; one to three sizes of at most {GRID_LIMITS} are accepted")
    nx, ny, nz = (*sizes, 1, 1)[:3]
    if nx * ny * nz > max_programs:
        raise ValueError(f"grid {sizes} has {nx * ny * nz} programs; max_programs is {max_programs}: choose a smaller case or raise it")
    unknown = set(readonly) - {n for n, v in values.items() if tensor_of(v) is not None}
    if unknown:
        raise ValueError(f"readonly names {sorted(unknown)}, which are not tensor arguments of {kernel.__name__}")
    with _Session(poison, check_overflow, num_warps) as session, np.errstate(all="ignore"):
        for tensor in reachable:
            session.memory.add_reachable(cpu("reachable", tensor))
        called = {p.name: session.argument(p, values[p.name], p.name in readonly) for p in kernel.params}
        session.builder.grid_dim = (nx, ny, nz)
        until, done = time.thread_time() + seconds, 0
        session.memory.until = until + seconds
        for z, y, x in itertools.product(range(nz), range(ny), range(nx)):
            if time.thread_time() > until:
                break
            session.builder.grid_idx = (x, y, z)
            session.races.begin((x, y, z))
            try:
                kernel(**called)
            except Exception as error:
                raise _located(error, kernel.__name__, (x, y, z)) from error
            done += 1
        return Run(done, session.memory.loaded, session.memory.stored)


def _bind(kernel: Any, args: Mapping[str, object]) -> dict[str, Any]:
    values = {p.name: args.get(p.name, p.default) for p in kernel.params}
    missing = [p.name for p in kernel.params if p.name not in args and not p.has_default]
    unknown = [name for name in args if name not in values]
    if missing or unknown:
        raise TypeError(f"{kernel.__name__} takes {', '.join(values)}; missing are {missing}, unknown are {unknown}")
    return values


def _located(error: Exception, kernel: str, program: tuple[int, int, int]) -> InterpretError:
    """``error`` with the place: the innermost line of interpreted code outside Triton's own library."""
    import triton

    library, place = str(Path(triton.__file__).parent), ""
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if MARK in trace.tb_frame.f_globals and (not place or not name.startswith(library)):
            place = f", {Path(name).name}:{trace.tb_lineno}: {linecache.getline(name, trace.tb_lineno).strip()}"
        trace = trace.tb_next
    kind, text = (type(error), str(error)) if isinstance(error, InterpretError) else (KernelError, f"{type(error).__name__}: {error}")
    return kind(f"{kernel}, program {program}{place}\n  {text}")


class _Rewrite(ast.NodeTransformer):
    """Makes a kernel's Python code behave as Triton's compiler reads it: assigned numbers become scalars on the device, asserts are checked
    for every lane, ``and``, ``or`` and ``not`` take blocks, annotations of parameters are not evaluated."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list, node.returns = [], None
        for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            arg.annotation = None
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        node.value = ast.Call(ast.Name("__rooftop_assign__", ast.Load()), [self.visit(node.value)], [])
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        nothing = ast.arguments([], [], None, [], [], None, [])
        parts: list[ast.expr] = [ast.Lambda(nothing, self.visit(value)) for value in node.values]
        name = "__rooftop_and__" if isinstance(node.op, ast.And) else "__rooftop_or__"
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), parts, []), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.copy_location(ast.Call(ast.Name("__rooftop_not__", ast.Load()), [node.operand], []), node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        args = [self.visit(e) for e in (node.test, node.msg) if e is not None]
        return ast.copy_location(ast.Expr(ast.Call(ast.Name("__rooftop_assert__", ast.Load()), args, [])), node)


_MISSING = object()


class _Session(Language):
    """Triton patched for one run: entering applies every patch, leaving undoes them in reverse."""

    def __init__(self, poison: bool, check_overflow: bool, num_warps: int) -> None:
        import triton
        import triton.runtime.interpreter as interpreter
        from triton.language.semantic import TritonSemantic

        from rooftop.lab.interpret.builder import Builder

        self.memory = Memory()
        self.interpreter, self.tl = interpreter, interpreter.tl
        self.races = Races(line_of(MARK, str(Path(triton.__file__).parent)))
        self.builder: Any = type("Builder", (Builder, interpreter.InterpreterBuilder), {})(interpreter, self.memory, self.races, poison)
        options = replace(self.builder.options, debug=True, sanitize_overflow=check_overflow)
        self.builder.options = types.SimpleNamespace(**vars(options), num_warps=num_warps)
        self.semantic = TritonSemantic(self.builder)
        self.functions: dict[int, Callable[..., Any]] = {}
        self.wrapped: dict[int, Callable[..., Any]] = {}
        self.undo: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> _Session:
        from triton.runtime import JITFunction

        if getattr(JITFunction.__call__, MARK, False):
            raise RuntimeError("a run is under way in this process; interpreted runs cannot be nested or in two threads")
        try:
            self._patch(JITFunction)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for owner, name, value in reversed(self.undo):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self.undo.clear()

    def _set(self, owner: Any, name: str, value: Any) -> None:
        self.undo.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    # patches

    def _patch(self, jit_function: type) -> None:
        tl = self.tl
        self._replacements()

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            return self.function(function)(*args, **kwargs)

        setattr(call, MARK, True)
        self._set(jit_function, "__call__", call)
        self._set(self.interpreter, "_get_np_dtype", self.builder.numpy_type)
        self._set(tl.dtype, "to_ir", lambda kind, builder: kind)
        extra = ("libdevice", "cuda", "cuda.libdevice", "cuda.gdc", "cuda.utils")
        modules = [tl, tl.core, tl.math, tl.standard, tl.random, *(import_module(f"triton.language.extra.{m}") for m in extra)]
        modules.append(tl.extra.cuda)  # Triton makes two module objects of this one
        classes = [c for c in vars(tl.core).values() if isinstance(c, type) and c.__module__ == tl.core.__name__]
        for owner in (*modules, *classes):
            for name, member in list(vars(owner).items()):
                new = self.replacement(member)
                if new is member and isinstance(owner, type) and isinstance(member, jit_function):
                    new = functools.partialmethod(lambda this, /, *a, _f, **k: _f(this, *a, **k), _f=member)
                if new is not member:
                    self._set(owner, name, new)
        tensor = tl.tensor
        self._set(tensor, "__index__", lambda t: int(t.handle.data.item()))
        self._set(tensor, "__bool__", truth)
        self._set(tensor, "__repr__", lambda t: f"{t.type}{t.handle.data}")
        self._set(tensor, "__str__", lambda t: str(t.handle.data))
        self._set(tensor, "T", property(lambda t: tl.trans(t)))
        if hasattr(tl, "condition"):
            self._set(tl.condition, "__bool__", lambda c: bool(int(c.condition)))

    def _replacements(self) -> None:
        """What stands for Triton's functions that the compiler treats specially, found by identity."""
        tl, cuda = self.tl, self.tl.extra.cuda
        table: list[tuple[Any, Callable[..., Any]]] = [
            (tl.range, self.range),
            (tl.static_range, lambda *bounds, step=None, **hints: range(*bounds_of(bounds, step))),
            (tl.static_assert, self.check),
            (tl.static_print, print),
            (tl.reduce, self.reduce),
            (tl.associative_scan, self.scan),
            *((f, lambda x, *values, **kw: x) for f in (tl.multiple_of, tl.max_contiguous, tl.max_constancy)),
            *((f, lambda **kw: None) for f in (cuda.gdc_wait, cuda.gdc_launch_dependents)),
            *((f, self._missing(f.__name__)) for f in (tl.dot_scaled, tl.map_elementwise)),
        ]
        stubs = vars(import_module("triton.language.extra.libdevice"))
        table += [(stubs[n], self.wrap(f)) for n, f in vars(cuda.libdevice).items() if n in stubs and tl.core.is_builtin(f)]
        self.wrapped.update((id(old), new) for old, new in table)

    def _missing(self, name: str) -> Callable[..., Any]:
        def raises(*args: Any, **kwargs: Any) -> Any:
            raise NotSimulated(f"tl.{name} is not simulated")

        return raises

    def replacement(self, member: Any) -> Any:
        """What an interpreted function sees in the place of ``member``."""
        if id(member) in self.wrapped:
            return self.wrapped[id(member)]
        return self.wrap(member) if callable(member) and self.tl.core.is_builtin(member) else member

    def wrap(self, builtin: Callable[..., Any]) -> Callable[..., Any]:
        """A Triton builtin bound to this session's builder."""

        def bound(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = self.semantic
            return builtin(*args, **kwargs)

        self.wrapped[id(builtin)] = bound
        return bound

    # functions

    def function(self, jit: Any) -> Callable[..., Any]:
        """The Python function of a ``@triton.jit`` function, rewritten, with globals and closure as they stand now."""
        if id(jit) not in self.functions:
            if jit.is_gluon():
                raise self._missing(f"Gluon function {jit.__name__}")()
            tree = _Rewrite().visit(ast.parse(jit.src))
            first = next(i for i, line in enumerate(jit.raw_src) if line.strip().startswith("def "))
            ast.increment_lineno(ast.fix_missing_locations(tree), jit.starting_line_number + first - 1)
            scope = {**jit.fn.__globals__, **inspect.getclosurevars(jit.fn).nonlocals}
            constexpr = self.tl.constexpr
            scope = {n: v.value if isinstance(v, constexpr) else self.replacement(v) for n, v in scope.items()}
            special = {"range": self.range, "max": self._extreme("max"), "min": self._extreme("min")}
            scope.update({n: f for n, f in special.items() if n not in jit.fn.__globals__})
            scope.update({MARK: True, "__rooftop_assign__": self.assign, "__rooftop_assert__": self.check})
            scope.update({f"__rooftop_{n}__": getattr(self, f"logical_{n}") for n in ("and", "or", "not")})
            exec(compile(tree, jit.fn.__code__.co_filename, "exec", dont_inherit=True), scope)
            self.functions[id(jit)] = scope[jit.fn.__name__]
        return self.functions[id(jit)]
