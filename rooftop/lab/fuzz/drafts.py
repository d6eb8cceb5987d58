"""One random call as data: drawn from a contract's cases, made smaller step by step, and written as the lines of Python that make its
tensors.

A call starts from a case. The extents of the case stand for sizes: wherever the case has 300, the call has the same other number. A draw
that the public function refuses (tried on meta tensors) is drawn again."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from rooftop.core import registry
from rooftop.core.contract import Contract, metas_of
from rooftop.core.op import Op
from rooftop.core.spec import DTYPES, Case, Input, Option, Problem
from rooftop.lab import public_calls

MODES = ("eager", "grad", "compile")
STEPS = (8, 16, 64, 128, 1024)  # sizes lie at multiples of these, and beside them, more often than elsewhere
TRIES = 40  # draws until the public function takes one


@dataclass(frozen=True)
class Limits:
    """How large a call may be: bytes and operations of its work, elements of its inputs."""

    bytes: float
    operations: float
    elements: int


GPU = Limits(64e6, 4e9, 1 << 22)
CPU = Limits(64e3, 2e5, 1 << 14)  # kernels run in the interpreter and the simulator


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory that is filled with numbers all over."""

    order: tuple[int, ...] = ()  # dimensions from the slowest to the fastest; (): as they are
    pad: int = 0  # elements between the rows of the fastest dimension
    step: int = 1  # from an element to its neighbour in the fastest dimension
    window: int = 0  # not 0: elements from one index of the slowest dimension to the next, which may then overlap
    still: tuple[int, ...] = ()  # dimensions of stride 0
    offset: int = 0  # elements before the first

    @property
    def simplicity(self) -> tuple[int, int]:
        """The less, the simpler: how many things are unusual, then the offset."""
        return (self.order != ()) + (self.pad > 0) + (self.step != 1) + (self.window > 0) + (self.still != ()) + (self.offset > 0), self.offset

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        steps = [0] * len(shape)
        stride = self.step
        order = self.order if sorted(self.order) == list(range(len(shape))) else tuple(range(len(shape)))
        for i, dim in enumerate(reversed(order)):
            steps[dim] = 0 if dim in self.still else stride
            stride = stride * max(shape[dim], 1) + (self.pad if i == 0 else 0)
        if self.window and len(shape) > 1:
            steps[order[0]] = min(self.window, steps[order[0]])  # drawn for a shape that may have been made smaller since
        return tuple(steps)


@dataclass(frozen=True)
class Fill:
    """What numbers a tensor holds. `sown`: a NaN or an infinity at `seeds` places of its memory."""

    kind: str = "normal"
    scale: float = 1.0
    sown: str = ""
    seeds: int = 0

    def source(self, dtype: str, count: int, below: int) -> str:
        """An expression of `count` numbers of a dtype; `g` is a torch.Generator."""
        d = DTYPES[dtype]
        if d.name == "bool":
            return f"torch.rand({count}, generator=g) < 0.7"
        if d.name == "c64":
            return f"torch.randn({count}, 2, generator=g).view(torch.complex64).flatten()"
        if d.name in ("f4e2m1x2", "f8e8m0"):
            low, high = (119, 136) if d.name == "f8e8m0" else (0, 256)
            return f"torch.randint({low}, {high}, ({count},), generator=g, dtype=torch.uint8).view(torch.{d.torch})"
        if not d.floating:
            return f"torch.randint(0, {max(below, 1)}, ({count},), generator=g).to(torch.{d.torch})"
        size = f" * {self.scale!r}"
        text = {
            "one sign": f"torch.rand({count}, generator=g){size}",
            "far": f"(torch.randn({count}, generator=g) + 100.0){size}",
            "integers": f"torch.randint(-8, 9, ({count},), generator=g).float()",
            "equal": f"torch.full(({count},), {self.scale!r})",
            "zeros": f"torch.zeros({count})",
            "-0.0": f"torch.full(({count},), -0.0)",
            "large": f"(torch.rand({count}, generator=g) * 0.4 + 0.5) * {min(d.max, 3.0e38)!r} * (torch.randint(0, 2, ({count},), generator=g) * 2 - 1)",
            "tiny": f"torch.randn({count}, generator=g) * {(2.0**-14 if d.name == 'f16' else 2.0**-126) / 8!r}",
        }.get(self.kind, f"torch.randn({count}, generator=g){size}")
        return text if d.name == "f32" else f"({text}).to(torch.{d.torch})"


@dataclass(frozen=True)
class Draft:
    """A call. `sizes`: what each extent of the case has become; `wants`: inputs whose gradients are asked for in mode "grad"."""

    op: str
    case: str
    seed: int = 0
    sizes: Mapping[int, int] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    options: Mapping[str, Option] = field(default_factory=dict)
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    fills: Mapping[str, Fill] = field(default_factory=dict)
    mode: str = "eager"
    wants: tuple[str, ...] = ()
    stream: bool = False
    again: bool = False  # called a second time: the same bits

    def __hash__(self) -> int:
        return hash(repr(self))

    @property
    def contract(self) -> Contract:
        return registry.op(self.op)

    @cached_property
    def tensors(self) -> dict[str, tuple[tuple[int, ...], str, int]]:
        """Shape, dtype and the bound of whole numbers of each tensor that is there."""

        def below(v: Input) -> int:
            n = int(v.fill.removeprefix("below ")) if v.fill.startswith("below ") else 100
            return self.sizes.get(n, n) if v.fill.startswith("below ") else n

        inputs = self.contract.case(self.case).tensors()
        return {n: (tuple(self.sizes.get(e, e) for e in v.shape), v.dtype, below(v)) for n, v in inputs if n not in self.absent}

    @property
    def finite(self) -> bool:
        return not any(f.sown or f.kind in ("large", "tiny") for f in self.fills.values())

    def source(self, device: str) -> list[str]:
        """The lines that make the tensors, each by the reference's name for it."""
        lines = [f"g = torch.Generator().manual_seed({self.seed})"]
        sown = random.Random(self.seed)
        for name, (shape, dtype, below) in self.tensors.items():
            layout, fill = self.layouts.get(name, Layout()), self.fills.get(name, Fill())
            strides = layout.strides(shape)
            reach = layout.offset + (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if math.prod(shape) else 0)
            lines.append(f"{name} = {fill.source(dtype, reach, below)}")
            if fill.sown and reach and DTYPES[dtype].floating:
                lines.append(f"{name}[{sorted(sown.randrange(reach) for _ in range(fill.seeds))}] = float({fill.sown!r})")
            moved = "" if device == "cpu" else f".to({device!r})"
            lines.append(f"{name} = {name}{moved}.as_strided({shape}, {strides}, {layout.offset})")
        return lines

    def make(self, device: str) -> tuple[dict[str, Any], dict[str, Any], Any]:
        """The tensors (None where absent), the options, and the generator as it then is."""
        import torch

        names: dict[str, Any] = {"torch": torch}
        exec("\n".join(self.source(device)), names)  # the very lines that are shown for a finding
        op, options = self.contract, dict(self.options)
        tensors = {**{n: None for n in op.tensor_names if n not in op.list_names}, **{n: names[n] for n in self.tensors}}
        if op.fixup is not None:
            g = names["g"] if device == "cpu" else torch.Generator(device).manual_seed(self.seed)
            for name, fitting in op.fixup(tensors, options, g).items():
                if tensors[name] is not None and math.prod(tensors[name].shape):
                    # no two elements in one place: they are written one by one
                    apart = replace(self.layouts.get(name, Layout()), still=(), window=0)
                    shape = tuple(fitting.shape)
                    if tensors[name].stride() != apart.strides(shape):
                        tensors[name] = torch.empty_strided(shape, apart.strides(shape), dtype=fitting.dtype, device=device)
                    tensors[name].copy_(fitting)
        return tensors, options, names["g"]

    def problem(self, tensors: Mapping[str, Any], device: Any = None) -> Problem:
        return self.contract.problem_of(metas_of(tensors), dict(self.options), device)


# -- drawing ------------------------------------------------------------------------------------------------------


def size(r: random.Random, most: int) -> int:
    u = r.random()
    if u < 0.12:
        return 0 if u < 0.03 else 1
    n = int(2 ** r.uniform(0, math.log2(most)))
    if r.random() < 0.4:
        step = r.choice([s for s in STEPS if s <= most] or [1])
        n = max(1, round(n / step)) * step + r.choice((-1, 0, 0, 1))
    return min(n, most)


def _layout(r: random.Random, shape: tuple[int, ...], mutated: bool) -> Layout:
    rank, offset = len(shape), r.choice((0, 0, 0, 0, 1, 2, 3, 4, 7, 8, r.randrange(1, 130)))
    if r.random() < 0.45 or rank == 0:
        return Layout(offset=offset)
    kind = r.choice(("permuted", "padded", "stepped", "still", "overlapping"))
    if kind in ("still", "overlapping") and mutated:
        kind = "padded"
    if kind == "permuted":
        return Layout(order=tuple(r.sample(range(rank), rank)), offset=offset)
    if kind == "padded":
        return Layout(pad=r.choice((1, 3, 5, 8, 16, 64)), offset=offset)
    if kind == "stepped":
        return Layout(step=r.choice((2, 3, 5)), offset=offset)
    if kind == "still":
        return Layout(still=tuple(i for i in range(rank) if r.random() < 0.5), offset=offset)
    return Layout(window=r.randint(1, max(1, math.prod(shape[1:]))), offset=offset)


def _fill(r: random.Random, spec: Input, allowed: set[str]) -> Fill:
    """`allowed`: the fills that the contract's own cases have for this tensor. Infinities are sown where a case has one."""
    if r.random() < 0.15:
        kind = r.choice(sorted(allowed & {"large", "tiny", "-0.0", "integers", "equal", "far"}) or ["normal"])
        return Fill(kind, 1.0)
    sown = ""
    if r.random() < 0.12:
        sown = r.choice(["nan", *(("inf", "-inf") if allowed & {"inf", "-inf"} else ())] if "nan" in allowed else [""])
    kind = r.choice(("normal", "normal", "normal", "normal", "one sign", "far", "zeros")) if len(allowed) > 1 else "normal"
    exponent = r.choice((0, 0, 0, r.uniform(-10, 7))) if len(allowed) > 1 else 0
    return Fill(kind, float(f"{2.0**exponent:.3g}"), sown, r.choice((1, 1, 2, 5)) if sown else 0)


def _option(r: random.Random, op: Contract, name: str, own: Option) -> Option:
    kind, seen = op.kinds[name], [op.options(c)[name] for c in op.cases]
    if name in op.runtime_options and kind == "int":
        return r.choice((own, r.randrange(-(2**31), 2**31)))
    if r.random() < 0.6:
        return own
    if kind == "bool":
        return r.random() < 0.5
    value = r.choice(seen)
    if r.random() < 0.4 and not isinstance(value, (bool, str)) and value is not None:
        return value + r.choice((-1, 1)) if isinstance(value, int) else float(f"{value * r.uniform(0.25, 2):.4g}")
    return value


def draw(op: Contract, seed: int, index: int, limits: Limits, gpu: bool) -> Draft | None:
    """Call number `index` of a seed; None where none of so many draws was one that the public function takes."""
    r = random.Random(f"{op.name} {seed} {index}")
    cases = [c for c in op.cases if not {"bench", "huge"} & c.tags] or list(op.cases)
    for attempt in range(TRIES):
        draft = fitting(_draw(r, op, r.choice(cases), limits, gpu, gentle=attempt > TRIES // 2), limits)
        if draft is not None and (accepted := taken(draft)) is not None:
            return accepted
    return None


@dataclass(frozen=True)
class Turn:
    """A call that is still to be drawn, in the process that runs it."""

    op: str
    seed: int
    index: int
    limits: Limits
    gpu: bool

    def draw(self) -> Draft | None:
        return draw(registry.op(self.op), self.seed, self.index, self.limits, self.gpu)


def _draw(r: random.Random, op: Contract, case: Case, limits: Limits, gpu: bool, gentle: bool) -> Draft:
    inputs = dict(case.tensors())
    extents = sorted({e for v in inputs.values() for e in v.shape})
    share = r.choice((0.1, 0.4)) if gentle else 0.85  # of many extents that hang together hardly any may change
    changed = [e for e in extents if r.random() < share]
    most = max(2, int(limits.elements ** r.uniform(0.3, 0.8)))
    sizes = {e: size(r, most) for e in changed}
    allowed = {
        n: {dict(c.tensors())[n].fill for c in op.cases if n in dict(c.tensors()) and dict(c.tensors())[n].dtype == v.dtype} for n,
        v in inputs.items()
    }
    absent = tuple(n for n in inputs if n in op.kinds and "None" in op.kinds[n] and r.random() < 0.2)
    shapes = {n: tuple(sizes.get(e, e) for e in v.shape) for n, v in inputs.items()}
    wrt = [
        n for n in differentiable(op) if n in inputs and n not in absent and DTYPES[inputs[n].dtype].floating
        and DTYPES[inputs[n].dtype].bytes > 1
    ]
    u = r.random()
    mode = "compile" if u < (0.004 if gpu else 0.01) else "grad" if wrt and u < 0.45 and not op.mutates else "eager"
    wants = tuple(n for n in wrt if r.random() < 0.7) or tuple(wrt[:1])
    return Draft(
        op.name, case.id, r.randrange(2**31), sizes, absent, {n: _option(r, op, n, v) for n, v in op.options(case).items()},
        {n: _layout(r, shapes[n], n in op.mutates or n in op.into.values()) for n in inputs},
        {n: _fill(r, v, allowed[n]) for n, v in inputs.items()}, mode, wants if mode == "grad" else (), gpu and r.random() < 0.2,
        r.random() < 0.1 and mode == "eager",
    )


def differentiable(op: Contract) -> list[str]:
    """The inputs that have gradients."""
    return [] if op.grad is None else list(dict.fromkeys([*(n for entry in op.grad.wrt for n in entry.split("=")), *op.grad.same]))


def fitting(draft: Draft, limits: Limits) -> Draft | None:
    """The call with its largest sizes halved until it is within the limits; None where the contract cannot say what it computes."""
    for _ in range(64):
        elements = sum(math.prod(shape) for shape, _, _ in draft.tensors.values())
        try:
            work = draft.contract.work(draft.problem(meta(draft)))
        except Exception:  # shapes that do not go together
            return None
        if elements <= limits.elements and work.bytes <= limits.bytes and sum(work.ops.values()) <= limits.operations:
            return draft
        extents = {e: draft.sizes.get(e, e) for v in dict(draft.contract.case(draft.case).tensors()).values() for e in v.shape}
        largest = max(extents, key=lambda e: extents[e])
        draft = replace(draft, sizes={**draft.sizes, largest: extents[largest] // 2})
    return None


def meta(draft: Draft) -> dict[str, Any]:
    """Tensors without memory in the call's layouts."""
    import torch

    def one(name: str) -> Any:
        shape, dtype, _ = draft.tensors[name]
        return torch.empty_strided(
            shape, draft.layouts.get(name, Layout()).strides(shape), dtype=getattr(torch, DTYPES[dtype].torch), device="meta"
        )

    return {**{n: None for n in draft.contract.tensor_names if n not in draft.contract.list_names}, **{n: one(n) for n in draft.tensors}}


def taken(draft: Draft) -> Draft | None:
    """The call, if the public function takes it: tried on meta tensors, which have no numbers. Options that are no parameters of the public
    function (an extent that the backward needs, the largest value of a dtype) become what it makes of the others."""
    op = draft.contract
    function = public_calls.function(op)
    try:
        args, kwargs = public_calls.arguments(op, meta(draft), draft.options)
        function(*args, **kwargs)
        if unknown := [n for n in draft.options if n not in inspect.signature(function).parameters]:
            assert isinstance(op, Op)
            tensors = meta(draft)
            for n in draft.wants:  # some of them follow from which gradients are wanted
                tensors[n].requires_grad_()
            options = public_calls.passed(op, tensors, draft.options)[1]
            return replace(draft, options={**draft.options, **{n: options[n] for n in unknown}})
    except (ValueError, TypeError, IndexError, ArithmeticError, NotImplementedError, AttributeError, RuntimeError):
        return None
    return draft


# -- making smaller -------------------------------------------------------------------------------------------------


def smaller(draft: Draft) -> Iterator[Draft]:
    """Simpler calls, the greatest simplifications first. Not all are taken by the public function."""
    case = draft.contract.case(draft.case)
    if draft.mode == "compile":
        yield replace(draft, mode="eager")
    if draft.stream:
        yield replace(draft, stream=False)
    if draft.again:
        yield replace(draft, again=False)
    if draft.mode == "grad":
        yield replace(draft, mode="eager", wants=())
        for name in draft.wants if len(draft.wants) > 1 else ():
            yield replace(draft, wants=tuple(n for n in draft.wants if n != name))
    extents = {e: draft.sizes.get(e, e) for _, v in case.tensors() for e in v.shape}
    for e, n in sorted(extents.items(), key=lambda item: -item[1]):
        yield from (replace(draft, sizes={**draft.sizes, e: k}) for k in dict.fromkeys((1, n // 8, n // 2, n - n // 4, n - 1)) if 0 < k < n)
    for name in draft.tensors:
        if "None" in draft.contract.kinds.get(name, ""):
            yield replace(draft, absent=(*draft.absent, name))
        layout, fill = draft.layouts.get(name, Layout()), draft.fills.get(name, Fill())
        for simple in dict.fromkeys((Layout(), replace(layout, offset=0), replace(layout, offset=1), Layout(offset=layout.offset))):
            if simple != layout and simple.simplicity < layout.simplicity:
                yield replace(draft, layouts={**draft.layouts, name: simple})
        for simpler in dict.fromkeys(
            (Fill(), Fill(fill.kind, fill.scale), Fill("normal", fill.scale), Fill(fill.kind, 1.0, fill.sown, min(fill.seeds, 1)))
        ):
            if simpler != fill and (simpler == Fill() or len(repr(simpler)) < len(repr(fill))):
                yield replace(draft, fills={**draft.fills, name: simpler})
    plain_options = draft.contract.options(draft.contract.cases[0])
    for name, value in draft.options.items():
        for simple_value in (plain_options[name], draft.contract.options(case)[name]):
            if value not in (simple_value, plain_options[name]):
                yield replace(draft, options={**draft.options, name: simple_value})


# -- showing --------------------------------------------------------------------------------------------------------


def script(draft: Draft, device: str) -> str:
    """The call as a few lines of Python."""
    op = draft.contract
    tensors, options, _ = draft.make("cpu")
    args, kwargs = public_calls.arguments(op, tensors, options)
    named = {id(t): n for n, t in tensors.items() if t is not None}

    def text(value: Any) -> str:
        if id(value) in named:
            return named[id(value)]
        if isinstance(value, list):
            return f"[{', '.join(map(text, value))}]"
        return f"float({str(value)!r})" if isinstance(value, float) and not math.isfinite(value) else repr(value)

    usual = {n: repr(p.default) for n, p in inspect.signature(public_calls.function(op)).parameters.items()}
    said = [text(a) for a in args] + [f"{k}={text(v)}" for k, v in kwargs.items() if text(v) != usual.get(k)]
    function = f"rooftop.{op.name}" if draft.mode != "compile" else f"torch.compile(rooftop.{op.name}, backend='aot_eager')"
    lines = ["import torch, rooftop", *draft.source(device)]
    if op.fixup is not None:
        lines.append("# the contract's fixup() then makes these fit each other")
    if draft.mode == "grad":
        lines += [f"{n}.requires_grad_()" for n in draft.wants]
    call = f"{function}({', '.join(said)})"
    if draft.stream:
        lines.append("with torch.cuda.stream(torch.cuda.Stream()):")
    lines.append(("    " if draft.stream else "") + f"found = {call}")
    if draft.mode == "grad":
        lines += [
            "found = [t for t in (found if isinstance(found, tuple) else (found,)) if t.requires_grad]",
            f"grads = torch.autograd.grad(found, [{', '.join(draft.wants)}], [torch.randn(t.shape, generator=g).to(t) for t in found])",
        ]
    return "\n".join(lines)
