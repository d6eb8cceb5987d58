"""Which binaries an op runs at given columns, whatever its rows; and compiling them before anybody waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rooftop.core import registry
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.backends.triton import TritonImplementation
from rooftop.core.call import Call, select
from rooftop.core.contract import Contract
from rooftop.core.cubins import AbsentCompiler
from rooftop.core.spec import Case, Device, Input, Launch
from rooftop.lab import aot

EACH = {e << k for k in range(14) for e in (3, 5, 7, 9, 11, 13, 15)}
ODD = {(e << k) + d for d in (1, 2) for k in range(4, 12) for e in (3, 5, 7, 9, 11, 13, 15)}  # rows of a square matrix then start anywhere
ROWS = tuple(sorted({max(1, (1 << k) + d) for k in range(18) for d in (-1, 0, 1)} | EACH | ODD))


def resized(case: Case, sizes: dict[int, int]) -> Case:
    """The case with other extents in place of some, wherever they stand."""

    def one(v: object) -> object:
        if isinstance(v, tuple):
            return tuple(one(x) for x in v)
        return replace(v, shape=tuple(sizes.get(e, e) for e in v.shape)) if isinstance(v, Input) else v

    return replace(case, inputs={n: one(v) for n, v in case.inputs.items()})  # type: ignore[misc]


def rows_and_columns(case: Case) -> tuple[int, int] | None:
    """The first and last extent of the case's first tensor, where it has two dimensions, contiguous, and they differ."""
    first = next(v for _, v in case.tensors())
    plain = len(first.shape) == 2 and first.shape[0] != first.shape[1] and min(first.shape) > 1 and first.layout == "contiguous"
    return (first.shape[0], first.shape[1]) if plain else None


def kinds(op: Contract, dtype: str | None = None) -> list[Case]:
    """A case of each kind that is called with rows and columns: dtype, which tensors are given, texts and switches."""
    found: dict[tuple[object, ...], Case] = {}
    for c in op.cases:
        if (
            "huge" in c.tags or rows_and_columns(c) is None or dtype not in (None, c.dtype)
            or any(v.fill not in ("normal", "wide") for v in _floats(c))
        ):
            continue
        switches = tuple(v for v in op.options(c).values() if isinstance(v, (str, bool)))
        found.setdefault((tuple((n, v.dtype) for n, v in c.tensors()), switches), c)
    return list(found.values())


def _floats(case: Case) -> Iterator[Input]:
    return (v for _, v in case.tensors() if not v.fill.startswith("below"))


def calls(op: Contract, case: Case, columns: int, device: Device, rows: Sequence[int] = ROWS, kernel: str | None = None) -> Iterator[Call]:
    """The calls of an op and of its backward with these columns and rows; `kernel`: those of one that is named alone, where it takes
    them."""
    was = rows_and_columns(case)
    assert was is not None
    for n in rows:
        yield from calls_of(op, resized(case, {was[0]: n, was[1]: columns}), device, kernel)


def usual(op: Contract, dtype: str | None = None) -> Iterator[Case]:
    """Of an op that is not called with rows and columns: its bench and model cases, and each with one other extent of the first tensor.

    The last one stays, a head's elements say. The others become larger, smaller, and where they are long odd: of integers a binary knows
    whether they are 1 and whether 16 divides them."""
    for c in op.cases:
        if not c.tags & {"bench", "model"} or "huge" in c.tags or dtype not in (None, c.dtype):
            continue
        yield c
        *outer, last = next(v for _, v in c.tensors()).shape
        for e in dict.fromkeys(outer):
            others = [e * n // 4 for n in (2, 3, 7, 8) if e * n % 4 == 0] + [e - 1] * (e > LONG)
            yield from (resized(c, {e: other}) for other in others if e != last and other > 0)


LONG = 256  # of an extent that may be any number: tokens, not heads


def calls_of(op: Contract, case: Case, device: Device, kernel: str | None = None) -> Iterator[Call]:
    """The calls of an op and of its backward for a case; `kernel`: those of one that is named alone, where it takes them."""
    for one in (op, op.bwd):
        if one is None or (kernel is not None and not any(i.name == kernel for i in registry.implementations(one.name))):
            continue
        try:
            call = select(one, one.problem(case, device), kernel).call
        except ValueError:  # shapes that do not go together, or that the kernel does not take
            continue
        if call is not None:
            yield call


def _is_distinguishable(call: Call, launch: Launch) -> bool:
    """Whether the binary of a launch can be told without running it."""
    return not call.implementation.automatic or isinstance(launch.kernel, str) or hasattr(launch.kernel, "params")


def variants(call: Call) -> list[str]:
    """A text for each binary that a call runs."""
    tensors = {**dict(call.problem.tensors), **call.scratch}
    return [call.implementation.variant(x, tensors, call.problem) for x in call.launches if _is_distinguishable(call, x)]


@dataclass
class Summary:
    """What was compiled for one op."""

    op: str
    columns: int  # 0: of an op that is not called with rows and columns
    variants: int
    failed: list[str]


def warm(
    op: Contract, columns: int, device: Device, dtype: str | None = None, say: Callable[[str], None] = lambda text: None,
    kernel: str | None = None
) -> Summary:
    """Compile, into the disk caches of Triton and of rooftop, every binary that the op, or one `kernel` of it, runs at these columns for
    any of `ROWS`; of an op that is not called with rows and columns what it runs for its `usual` cases, on all cores."""
    done: set[object] = set()
    failed: list[str] = []
    by_rows = kinds(op, dtype)
    if by_rows:
        found = (call for case in by_rows for call in calls(op, case, columns, device, kernel=kernel))
    else:
        pairs = [(call, case) for case in usual(op, dtype) for call in calls_of(op, case, device, kernel)]
        aot.compile_calls((p for p in pairs if isinstance(p[0].implementation, TritonImplementation)), device)  # others compile fast
        found = (call for call, _ in pairs)
    for call in found:
        names = variants(call)
        implementation = call.implementation
        for launch, name in zip((x for x in call.launches if _is_distinguishable(call, x)), names, strict=True):
            if name in done:
                continue
            done.add(name)
            try:
                implementation.machine_code(call.problem, launch, call.scratch)
                say(f"{implementation.name} {name[:100]}")
            except OSError:  # a cache that cannot be written: none of the others could be kept either
                raise
            except Exception as error:  # one binary that cannot be compiled does not keep the others from it
                said = str(error) if isinstance(error, AbsentCompiler) else f"{implementation.name}: {type(error).__name__}: {error}"
                if said not in failed:
                    failed.append(said)
        if isinstance(implementation, CudaImplementation) and len(names) > 1 and (key := frozenset(names)) not in done:
            done.add(key)
            # a first call compiles all at once
            implementation.compile(tuple({x.kernel for x in call.launches}), call.problem.device.target)
    return Summary(op.name, columns if by_rows else 0, sum(isinstance(d, str) for d in done), failed)


def ops(names: Sequence[str]) -> list[Contract]:
    """Raises RegistryError for an unknown op."""
    return [registry.op(n) for n in (names or registry.op_names())]
