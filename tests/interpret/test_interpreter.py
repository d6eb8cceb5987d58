"""What the interpreter must catch, what of the language it must know, and that it leaves no trace. Nothing here needs a GPU."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.language import load, maximum, store
from triton.language.extra import libdevice
from triton.language.extra.libdevice import tanh
from triton.tools.tensor_descriptor import TensorDescriptor

from rooftop.lab.interpret import interpreter

# -- memory --------------------------------------------------------------------------------------------------------


@triton.jit
def copy(x, y, n, shift, BLOCK: tl.constexpr, MASK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < n) if MASK else (at < 2**30)
    v = tl.load(x + at + shift, inside)
    tl.store(y + at, v, inside)


def copying(n: int, x: torch.Tensor, y: torch.Tensor, *, grid: int = 2, shift: int = 0, mask: bool = True, **options: Any) -> interpreter.Run:
    return interpreter.run(copy, (grid,), {"x": x, "y": y, "n": n, "shift": shift, "BLOCK": 64, "MASK": mask}, **options)


def test_masked_accesses_pass_and_are_counted() -> None:
    x, y = torch.randn(100), torch.full((100,), math.nan)
    done = copying(100, x, y, readonly={"x"})
    assert torch.equal(x, y) and done == interpreter.Run(programs=2, loaded=400, stored=400)


def test_load_outside() -> None:
    with pytest.raises(interpreter.OutOfBounds) as caught:
        copying(0, torch.randn(100), torch.zeros(128), mask=False)
    text = str(caught.value)
    for part in ("copy, program (1, 0, 0)", "test_interpreter.py:", "v = tl.load(x + at + shift, inside)", "load outside argument 'x'"):
        assert part in text
    assert "byte offset 400 (element 100), the first of 28 such lanes of 64 active" in text and "bytes 0 to 400" in text


def test_store_outside_leaves_neighbours_alone() -> None:
    whole = torch.zeros(200)
    with pytest.raises(interpreter.OutOfBounds, match="store outside argument 'y'"):
        copying(0, torch.ones(128), whole[:100], mask=False)
    assert whole[100:].abs().max() == 0


def test_before_the_first_element() -> None:
    whole = torch.randn(300)
    with pytest.raises(interpreter.OutOfBounds, match=r"load outside argument 'x'.*byte offset -4 \(element -1\), the first of 1 "):
        copying(64, whole[100:200], torch.zeros(100), shift=-1)


def test_another_argument_is_outside_too() -> None:
    whole = torch.randn(256)
    with pytest.raises(interpreter.OutOfBounds, match="load outside argument 'x'"):
        copying(128, whole[:128], whole[128:], shift=100)


def test_gap_between_rows() -> None:
    view = torch.randn(4, 40)[:, :32]
    with pytest.raises(interpreter.OutOfBounds, match="in a gap between the elements of argument 'x'"):
        copying(100, view, torch.zeros(128))
    copying(32, view, torch.zeros(32), grid=1)


def test_empty_tensor() -> None:
    copying(0, torch.empty(0), torch.empty(0))
    with pytest.raises(interpreter.OutOfBounds):
        copying(1, torch.empty(0), torch.zeros(1))


def test_wrapped_offset_is_caught() -> None:
    with pytest.raises(interpreter.OutOfBounds, match="load outside argument 'x'"):
        copying(64, torch.randn(64), torch.zeros(64), grid=1, shift=2**40)


def test_write_to_readonly() -> None:
    x = torch.zeros(64)
    with pytest.raises(interpreter.ReadOnly, match="store to read-only argument 'y'"):
        copying(64, torch.zeros(64), x, grid=1, readonly={"y"})
    with pytest.raises(ValueError, match="readonly names"):
        copying(64, torch.zeros(64), x, grid=1, readonly={"z"})


def test_aliases_stay_aliases() -> None:
    x = torch.arange(65.0)
    copying(64, x[1:], x[:64], grid=1)
    assert torch.equal(x[:64], torch.arange(1.0, 65.0))


@triton.jit
def reinterpreted(x, y, shift):
    wide = (x + shift).to(tl.pointer_type(tl.int32))
    tl.store(y, tl.load(wide))


def test_misaligned() -> None:
    x, y = torch.tensor([1, 2, 3, 4], dtype=torch.int16), torch.zeros(1, dtype=torch.int32)
    interpreter.run(reinterpreted, (1,), {"x": x, "y": y, "shift": 2})
    assert y.item() == 3 + (4 << 16)
    with pytest.raises(interpreter.Misaligned, match="not aligned to its size"):
        interpreter.run(reinterpreted, (1,), {"x": x, "y": y, "shift": 1})


@triton.jit
def through_table(table, y):
    x = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(y + tl.program_id(0), tl.load(x + 1))


def test_pointer_tables() -> None:
    parts, y = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])], torch.zeros(2)
    table = torch.tensor([p.data_ptr() for p in parts])
    interpreter.run(through_table, (2,), {"table": table, "y": y}, reachable=parts)
    assert y.tolist() == [2.0, 4.0]
    with pytest.raises(interpreter.OutOfBounds, match="lies in no tensor of `reachable`"):
        interpreter.run(through_table, (2,), {"table": table, "y": y})


@triton.jit
def unmasked_tail(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y, tl.sum(tl.load(x + at, at < n), 0))


def test_masked_lanes_are_poisoned() -> None:
    y = torch.zeros(1)
    interpreter.run(unmasked_tail, (1,), {"x": torch.ones(10), "y": y, "n": 10, "BLOCK": 16})
    assert math.isnan(y.item())
    interpreter.run(unmasked_tail, (1,), {"x": torch.ones(10), "y": y, "n": 10, "BLOCK": 16}, poison=False)
    assert y.item() == 10


@triton.jit
def descriptors(host, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    device = tl.make_tensor_descriptor(y, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    row = tl.program_id(0) * BM
    for column in range(0, N, BN):
        device.store([row, column], host.load([row, column]) * 2)


def test_tensor_descriptors() -> None:
    x, y = torch.randn(50, 48), torch.zeros(50, 48)
    host = TensorDescriptor.from_tensor(x, [16, 32])
    interpreter.run(descriptors, (4,), {"host": host, "y": y, "M": 50, "N": 48, "BM": 16, "BN": 32}, readonly={"host"})
    assert torch.equal(y, x * 2)
    with pytest.raises(interpreter.OutOfBounds):
        interpreter.run(descriptors, (4,), {"host": host, "y": y, "M": 64, "N": 48, "BM": 16, "BN": 32})


# -- the language --------------------------------------------------------------------------------------------------

SCALE = tl.constexpr(2.0)


@triton.jit
def halved(x, by: tl.constexpr = 2):
    return x / by


@triton.jit
def language(x, y, n, rounds, eps, LOW: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = (SCALE * tl.load(x + at, at < n, other=0.0)).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(rounds):
        far = i.to(tl.int64) * 2**40
        total += tl.where(far >= 0, v, 0.0)
    for _ in tl.static_range(2):
        total = halved(total)
    k = 0
    while k < min(rounds, 2):
        k += 1
        total += k
    if n > 3 and LOW is not None:
        total += eps
    if n > 3 and LOW is None:
        total += 1000
    assert n < 1000, "n is too large"
    tl.store(y + at, total * max(rounds, 1) + tl.softmax(v * 0.0), at < n)


@pytest.mark.parametrize("rounds", [1, 4])
def test_language(rounds: int) -> None:
    """Helpers, constexpr globals, loops with bounds from arguments (which NumPy 2.4 broke), while, min and max, and, assert."""
    x, y = torch.randn(50), torch.zeros(50)
    if rounds == 1:  # compiled in by Triton: a plain number
        interpreter.run(language, (1,), {"x": x, "y": y, "n": 50, "rounds": 1, "eps": 0.25, "LOW": 0, "BLOCK": 64})
    else:
        interpreter.run(language, lambda a: (a["n"] // 50,), {"x": x, "y": y, "n": 50, "rounds": 4, "eps": 0.25, "LOW": 0, "BLOCK": 64})
    steps = 1.0 if rounds == 1 else 3.0
    assert torch.allclose(y, (2 * x * rounds / 4 + steps + 0.25) * rounds + 1 / 64, atol=1e-5)


@triton.jit
def conditional(y, n):
    i = 0
    while tl.condition(i < n):
        i += 1
    tl.store(y, i)


def test_condition() -> None:
    y = torch.zeros(1, dtype=torch.int32)
    interpreter.run(conditional, (1,), {"y": y, "n": 5})
    assert y.item() == 5


def test_argument_of_one_is_a_constant() -> None:
    @triton.jit
    def widen(y, step):
        tl.store(y, step.to(tl.int64))

    y = torch.zeros(1, dtype=torch.int64)
    interpreter.run(widen, (1,), {"y": y, "step": 3})
    with pytest.raises(interpreter.KernelError, match="AttributeError"):  # as Triton's compiler: a constexpr has no .to
        interpreter.run(widen, (1,), {"y": y, "step": 1})


@triton.jit
def direct(x):
    store(x, tanh(load(x)) + maximum(load(x + 1), 2.0))


def test_builtins_imported_by_name() -> None:
    x = torch.tensor([0.5, 1.0])
    interpreter.run(direct, (1,), {"x": x})
    assert x[0].item() == pytest.approx(2 + math.tanh(0.5), rel=1e-6)


def test_closures() -> None:
    @triton.jit
    def inner(x):
        return x * 3

    @triton.jit
    def outer(y):
        tl.store(y, inner(tl.load(y)))

    y = torch.ones(1)
    interpreter.run(outer, (1,), {"y": y})
    assert y.item() == 3


@triton.jit
def transcendental(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(y + i, libdevice.tanh(v))
    tl.store(y + N + i, libdevice.log1p(v))
    tl.store(y + 2 * N + i, libdevice.erf(v))
    tl.store(y + 3 * N + i, libdevice.rsqrt(v))
    tl.store(y + 4 * N + i, libdevice.pow(v, 1.5))
    tl.store(y + 5 * N + i, tl.erf(v) + tl.exp(v) + tl.rsqrt(v) + tl.sigmoid(v))
    tl.store(y + 6 * N + i, libdevice.isnan(v).to(tl.float32))
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(y + 7 * N + i, libdevice.popc(i).to(tl.float32) + libdevice.clz(i).to(tl.float32))


def test_libdevice() -> None:
    x = torch.rand(64) + 0.1
    x[0] = math.nan
    y = torch.empty(8, 64)
    interpreter.run(transcendental, (1,), {"x": x, "y": y, "N": 64})
    i = torch.arange(64)
    bits = torch.tensor([bin(k).count("1") + 32 - int(k).bit_length() for k in i.tolist()]).float()
    rows = [x.tanh(), x.log1p(), x.erf(), x.rsqrt(), x**1.5, x.erf() + x.exp() + x.rsqrt() + x.sigmoid(), x.isnan().float(), bits]
    assert torch.allclose(y, torch.stack(rows), rtol=1e-6, equal_nan=True)


@triton.jit
def asserting(x):
    tl.device_assert(tl.load(x + tl.arange(0, 4)) > 0, "all must be positive")


@triton.jit
def assembly(x):
    tl.store(x, tl.inline_asm_elementwise("ex2.approx.f32 $0, $1;", "=f,f", [tl.load(x)], dtype=tl.float32, is_pure=True, pack=1))


@triton.jit
def doubled(x):
    tl.store(x, tl.load(x) * 2)


def test_device_assert_and_assembly() -> None:
    interpreter.run(asserting, (1,), {"x": torch.ones(4)})
    with pytest.raises(interpreter.DeviceAssert, match=r"asserting, program \(0, 0, 0\), .*all must be positive"):
        interpreter.run(asserting, (1,), {"x": -torch.ones(4)})
    with pytest.raises(interpreter.NotSimulated, match=r"inline assembly 'ex2\.approx\.f32"):
        interpreter.run(assembly, (1,), {"x": torch.ones(1)})


def test_overflow_is_checked_on_request() -> None:
    x = torch.full((1,), 2**30, dtype=torch.int32)
    interpreter.run(doubled, (1,), {"x": x})
    assert x.item() == -(2**31)
    with pytest.raises(interpreter.DeviceAssert, match="overflow"):
        interpreter.run(doubled, (1,), {"x": x}, check_overflow=True)


def test_bad_launches() -> None:
    x = torch.ones(1)
    for grid, text in (((20000,), "max_programs is 16384"), ((1, 70000), "at most"), ((1, 1, 1, 1), "one to three")):
        with pytest.raises(ValueError, match=text):
            interpreter.run(doubled, grid, {"x": x})
    with pytest.raises(TypeError, match=r"missing are \['x'\], unknown are \['z'\]"):
        interpreter.run(doubled, (1,), {"z": x})
    with pytest.raises(TypeError, match="on the CPU is accepted"):
        interpreter.run(doubled, (1,), {"x": torch.empty(1, device="meta")})
    with pytest.raises(TypeError, match=r"a @triton\.jit function is accepted"):
        interpreter.run(doubled.fn, (1,), {"x": x})
    assert interpreter.run(doubled, (0,), {"x": x}).programs == 0 and x.item() == 1


# -- leaving no trace ----------------------------------------------------------------------------------------------


def stock() -> dict[tuple[str, str], int]:
    """Identities of everything that a run may patch."""
    import triton.runtime.interpreter as interpreter
    from triton.runtime import JITFunction

    extra = [importlib.import_module(f"triton.language.extra.{m}") for m in ("libdevice", "cuda", "cuda.libdevice", "cuda.gdc", "cuda.utils")]
    owners = [tl, tl.core, tl.math, tl.standard, tl.random, tl.extra.cuda, interpreter, JITFunction, *extra]
    owners += [c for c in vars(tl.core).values() if isinstance(c, type)]
    kernels = {("globals", name): id(value) for name, value in globals().items()}
    return {(f"{o}{id(o)}", name): id(value) for o in owners for name, value in vars(o).items()} | kernels


def test_undone() -> None:
    import triton.runtime.interpreter  # noqa: F401 (so that it is there before the first look)

    before = stock()
    assert not {"__index__", "__bool__"} & set(vars(tl.tensor))  # nor has an earlier test left them there
    interpreter.run(doubled, (1,), {"x": torch.ones(1)})
    assert stock() == before
    with pytest.raises(interpreter.InterpretError):
        copying(0, torch.randn(10), torch.zeros(128), mask=False)
    with pytest.raises(interpreter.InterpretError):
        interpreter.run(assembly, (1,), {"x": torch.ones(1)})
    assert stock() == before
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        doubled(torch.ones(1))


def test_runs_are_not_nested() -> None:
    def grid(args: dict[str, Any]) -> tuple[int, ...]:
        return (1,)

    class Sneaky:
        def __init__(self) -> None:
            self.caught = ""

        def data_ptr(self) -> int:
            try:
                interpreter.run(doubled, grid, {"x": torch.ones(1)})
            except RuntimeError as error:
                self.caught = str(error)
            return 0

        device, layout, dtype = torch.device("cpu"), torch.strided, torch.float32
        shape, numel, stride, element_size = (), staticmethod(lambda: 1), staticmethod(lambda: ()), staticmethod(lambda: 4)

    sneaky = Sneaky()
    with pytest.raises(RuntimeError, match=r"(?s).*"):
        interpreter.run(copy, (1,), {"x": sneaky, "y": sneaky, "n": 1, "shift": 0, "BLOCK": 64, "MASK": False})
    assert "cannot be nested" in sneaky.caught
