"""What scripts/comm_on_gpus.py tries of the public functions: right calls by every path, wrong ones, graphs, torch.compile, layers. Hooks
of gradients: _comm_hooks.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rooftop import comm
from rooftop.ops import all_reduce_norm_ranks, all_reduce_ranks, exchange_ranks, expert_rows_ranks
from rooftop.ranks import symmetric, ways
from rooftop.ranks.steps import Options

FUNCTIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
PRODUCTS = ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
# wire, group_size, hadamard, stochastic, dtype: every wire, group size, dtype and option
FORMATS: tuple[tuple[str, int, bool, bool, torch.dtype], ...] = (
    ("bf16", 128, False, False, BF16), ("bf16", 128, False, False, F32), ("fp8", 128, False, False, BF16), ("fp8", 32, False, False, F16),
    ("fp8", 64, True, False, BF16), ("int8", 128, False, False, BF16), ("int8", 128, False, False, F32), ("int8", 256, True, False, F16),
    ("int8", 32, False, True, BF16), ("int4", 128, False, False, BF16), ("int4", 64, False, False, F16), ("int4", 32, False, True, F32),
    ("int4", 128, True, True, BF16), ("int4", 256, True, False, F32),
)
SOON = 5.0  # seconds within which a rank hears that another was given something else


class Here:
    """This rank."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.ranks, self.device, self.group = dist.get_rank(), dist.get_world_size(), device, dist.group.WORLD
        self.on_gpus = device.type == "cuda"
        self.paths = ("portable", "symmetric") if self.on_gpus else ("portable",)

    def pick(self, first: Any, other: Any) -> Any:
        """`other` on rank 1."""
        return other if self.rank == 1 else first

    def inputs(self, seed: int, shape: tuple[int, ...], dtype: torch.dtype = F32) -> Tensor:
        """The tensors of all ranks, [W, ...], the same wherever they are made."""
        g = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(self.ranks, *shape, generator=g, device=self.device).to(dtype)

    def settle(self) -> None:
        if self.on_gpus:
            torch.cuda.synchronize()


def expected(h: Here, what: str, xs: Tensor, wire: str, group: int, hadamard: bool, stochastic: bool, seed: int = 0, shots: int = 2) -> Tensor:
    """What this rank gets, by the formulas of the contracts, flat."""
    flat = xs.reshape(h.ranks, -1)
    o = Options.of("expected", wire, group, hadamard, stochastic, seed)

    def by_contract(x: Tensor) -> Tensor:
        how = (wire, group, hadamard, stochastic, o.seed)
        return all_reduce_ranks.reference(x, *how, shots) if what == "all_reduce" else exchange_ranks.reference(x, what, *how)

    return ways._in_range(flat, o, h.ranks if what in ("all_reduce", "reduce_scatter") else 1, by_contract)[h.rank].reshape(-1)


def differing(got: Tensor, want: Tensor) -> Tensor:
    """How many elements are not the same number; NaN is NaN."""
    return ((got.reshape(-1) != want) & ~(got.reshape(-1).isnan() & want.isnan())).sum()


def same(got: Tensor, want: Tensor, what: str) -> None:
    wrong = int(differing(got, want))
    assert not wrong, f"{what}: {wrong} of {want.numel()} elements are wrong"


def called(h: Here, what: str, x: Tensor, form: tuple[str, int, bool, bool, torch.dtype], path: str | None, **more: Any) -> Tensor:
    wire, group, hadamard, stochastic, _ = form
    options = {"wire": wire, "group_size": group, "hadamard": hadamard, "stochastic": stochastic, "path": path, **more}
    found: Tensor = getattr(comm, what)(x, h.group, **options)
    return found


@contextmanager
def raises(*errors: type[Exception], text: str = "") -> Any:
    caught: list[Exception] = []
    try:
        yield caught
    except errors as error:
        assert text in str(error), f"{type(error).__name__} says {error}; expected {text!r}"
        caught.append(error)
        return
    raise AssertionError(f"no {' or '.join(e.__name__ for e in errors)} was raised")


def first_calls(h: Here) -> None:
    """The first calls of a group: its communicator, its rooms, and the comparison."""
    print(comm.plan(torch.ones(4096, device=h.device), h.group, wire="bf16"), flush=True)
    for path in (*h.paths, "plain"):
        for what in FUNCTIONS:
            xs = h.inputs(3, (2 * h.ranks, 300), BF16)
            got = called(h, what, xs[h.rank], FORMATS[5], path, verify=True)
            if path != "plain":
                same(got, expected(h, what, xs, "int8", 128, False, False, 0, 1), f"{what}, {path}")
    if h.on_gpus:
        assert symmetric.unable(torch.ones(1, device=h.device), h.group) is None, symmetric.unable(torch.ones(1, device=h.device), h.group)


def formats(h: Here) -> None:
    """Every wire, option and dtype, by each path, at a size that ranks do not divide and one that fills the GPU."""
    for i, form in enumerate(FORMATS):
        for path in h.paths:
            for size in (347, 70_000 if h.on_gpus else 3_000):
                xs = h.inputs(10 + i, (h.ranks, size), form[4])
                for what in FUNCTIONS:
                    for shots in (1, 2) if what == "all_reduce" else (0,):
                        more = {"shots": shots} if shots else {}
                        got = called(h, what, xs[h.rank], form, path, seed=i, verify=False, **more)
                        same(got, expected(h, what, xs, *form[:4], i, shots), f"{what} of {size}, {path}, {form}, shots {shots}")
    comm.synchronize(h.group)


def large(h: Here) -> None:
    """All-reduces of several slabs, of both shots, twice: from 8 to 80 MiB, of no even size."""
    if not h.on_gpus:
        return
    for i, form in enumerate((FORMATS[0], FORMATS[5], FORMATS[9], FORMATS[2], FORMATS[8], FORMATS[6])):
        for size in (4_000_123, 40_000_001):
            xs = h.inputs(300 + i, (size,), form[4])
            for shots in (1, 2):
                want = expected(h, "all_reduce", xs, *form[:4], i, shots)
                for _ in range(2):
                    got = called(h, "all_reduce", xs[h.rank], form, "symmetric", seed=i, verify=False, shots=shots)
                    same(got, want, f"{size} elements, {form}, shots {shots}")
                del want, got
    small, big = h.inputs(310, (999,), BF16), h.inputs(311, (5_000_000,), BF16)
    wants = [expected(h, "all_reduce", xs, "int8", 128, False, False, 0, 1) for xs in (small, big)]
    for k in range(12):  # calls of unlike sizes share a room
        xs, want = ((small, big)[k % 3 == 0], wants[k % 3 == 0])
        same(called(h, "all_reduce", xs[h.rank], FORMATS[5], "symmetric", verify=False, shots=1), want, f"call {k}")


def counted(h: Here, seed: int, tokens: int, experts: int, full: bool = False) -> Tensor:
    """int32 [W, E]: about nine tenths of the tokens, one expert without, or all for the last one."""
    g = torch.Generator().manual_seed(seed)
    share = torch.rand(h.ranks, experts, generator=g)
    share[:, experts // 2] = 0
    if full:
        share[:, :-1] = 0
    return (share / share.sum(1, keepdim=True) * tokens * 0.9).round().to(torch.int32).to(h.device)


def experts(h: Here) -> None:
    """dispatch_rows and combine_rows by the contract, bit for bit: wires, dtypes, capacities, one call after another of unlike sizes."""
    for i, (tokens, columns, each, capacity, wire, group, dtype) in enumerate((
        (64, 7168, 32, None, "int8", 128, BF16), (1, 33, 1, None, "int4", 32, F32), (300, 1037, 5, 250, "bf16", 128, BF16),
        (2000, 512, 4, 2500, "fp8", 64, F16), (37, 4096, 128, None, "int8", 256, F32), (500, 2500, 2, 100, "int4", 64, BF16),
    )):
        tokens = tokens if h.on_gpus else min(tokens, 40)
        for full in (False, True):
            counts, xs = counted(h, i, tokens, each * h.ranks, full), h.inputs(400 + i, (tokens, columns), dtype)
            rows = capacity or h.ranks * tokens
            out, received, ends = expert_rows_ranks.reference(xs, counts, None, rows, wire, group)
            assert received is not None and ends is not None
            back, *_ = expert_rows_ranks.reference(out * 2, counts, received, tokens, wire, group)
            for path in h.paths:
                for k in range(5):  # both halves of the room, and calls like an earlier one
                    more: dict[str, Any] = {"wire": wire, "group_size": group, "path": path, "verify": False}
                    got, routes = comm.dispatch_rows(xs[h.rank], counts[h.rank], h.group, capacity=capacity, **more)
                    name = f"{tokens}x{columns}, {each} experts a rank, {wire}, {path}, call {k}"
                    same(got, out[h.rank].reshape(-1), f"dispatch {name}")
                    assert torch.equal(routes.received, received[h.rank]) and torch.equal(routes.ends, ends[h.rank]), f"counts {name}"
                    same(comm.combine_rows(got * 2, routes, h.group, **more), back[h.rank].reshape(-1), f"combine {name}")
    x, n = torch.ones(4, 8, device=h.device), torch.ones(h.ranks, dtype=torch.int32, device=h.device)
    for name, call in {
        "capacity": lambda: comm.dispatch_rows(x, n, h.group, capacity=h.pick(4, 5), verify=True),
        "counts": lambda: comm.dispatch_rows(x, h.pick(n, n.long()), h.group, verify=True),
        "columns": lambda: comm.dispatch_rows(h.pick(x, x[:, :7]), n, h.group, verify=True),
    }.items():
        begun = time.monotonic()
        with raises(comm.Disagreement, TypeError):
            call()
        assert time.monotonic() - begun < SOON, name


def shapes(h: Here) -> None:
    """Strides, empty tensors, many dimensions, fewer elements than ranks."""
    base = h.inputs(40, (64, 34), F32)
    views: dict[str, Callable[[Tensor], Tensor]] = {
        "transposed": lambda t: t.t(), "every second": lambda t: t[:, ::2], "from the second": lambda t: t.reshape(-1)[1:-1],
        "expanded": lambda t: t[:, :1].expand(64, 6), "bf16 at an odd address": lambda t: t.bfloat16().reshape(-1)[1:-1],
        "one number": lambda t: t[:1, :1].expand(64, 6), "channels last": lambda t: t.reshape(2, 4, 8, 34).contiguous(memory_format=torch.channels_last),
    }
    for name, view in views.items():
        xs = torch.stack([view(t) for t in base])
        for what in FUNCTIONS:
            for path in h.paths:
                got = called(h, what, view(base[h.rank]), FORMATS[5], path, verify=False)
                same(got, expected(h, what, xs, "int8", 128, False, False, 0, 2 if what != "all_reduce" else 1), f"{what}, {name}, {path}")
    for size in (1, h.ranks - 1, h.ranks + 1):
        xs = h.inputs(41, (size,), F32)
        for path in h.paths:
            for shots in (1, 2):
                got = called(h, "all_reduce", xs[h.rank], FORMATS[6], path, shots=shots)
                same(got, expected(h, "all_reduce", xs, "int8", 128, False, False, 0, shots), f"{size} elements")
    for what in FUNCTIONS:
        for shape in ((0, 3), (2 * h.ranks, 0)):
            for path in (None, *h.paths, "plain"):
                got = called(h, what, torch.ones(shape, device=h.device), FORMATS[5], path)
                rows = {"all_gather": shape[0] * h.ranks, "reduce_scatter": shape[0] // h.ranks}.get(what, shape[0])
                assert tuple(got.shape) == (rows, shape[1]) and got.device == h.device, (what, shape, got.shape, got.device)
    for what in PRODUCTS:
        for m, k, n in ((0, 64, 64), (4 * h.ranks, 0, 64), (4 * h.ranks, 64, 0)):
            got = getattr(comm, what)(torch.ones(m, k, device=h.device), torch.ones(k, n, device=h.device), h.group)
            assert got.shape[1] == n and not got.any(), (what, m, k, n)


def one_rank(h: Here) -> None:
    groups = [dist.new_group([r]) for r in range(h.ranks)]
    x = torch.randn(6, 4, device=h.device)
    for what in FUNCTIONS:
        assert torch.equal(getattr(comm, what)(x, groups[h.rank], wire="int4", verify=True), x), what
    for what in PRODUCTS:
        assert torch.equal(getattr(comm, what)(x, x.t(), groups[h.rank]), x @ x.t()), what
    with raises(ValueError, text="not in the group"):
        comm.all_reduce(x, groups[1 - h.rank] if h.ranks == 2 else groups[h.rank - 1])


def disagreements(h: Here) -> None:
    """Every rank raises at once, each says what was given, and the group goes on."""
    x, a = torch.ones(16 * h.ranks, device=h.device), torch.ones(4 * h.ranks, 64, device=h.device)
    p = h.pick
    kind = f"on {h.device.type}"
    cases: dict[str, tuple[Callable[[], Any], str]] = {
        "wire": (lambda: comm.all_reduce(x, h.group, wire=p("int8", "int4"), verify=True), "wire='int4'"),
        "a wire that is none": (lambda: comm.all_gather(x, h.group, wire=p("int8", "int3"), verify=True), "all_gather: wire is 'int3'"),
        "shape": (lambda: comm.all_to_all(p(x, torch.ones(2 * h.ranks, device=h.device)), h.group, verify=True), kind),
        "dtype": (lambda: comm.reduce_scatter(p(x, x.half()), h.group, verify=True), "reduce_scatter of float16"),
        "integers": (lambda: comm.all_reduce(p(x, x.int()), h.group, verify=True), "torch.int32; accepted are torch.float32"),
        "no tensor": (lambda: comm.all_reduce(p(x, [1.0]), h.group, verify=True), "x is a list"),
        "function": (lambda: p(comm.all_reduce, comm.all_gather)(x, h.group, verify=True), "all_gather of float32"),
        "rows": (lambda: comm.reduce_scatter(p(x, torch.ones(16 * h.ranks + 1, device=h.device)), h.group, verify=True), "must be a multiple"),
        "path": (lambda: comm.all_reduce(x, h.group, path=p("portable", "plain"), verify=True), "path='plain'"),
        "verify": (lambda: comm.all_reduce(x, h.group, verify=p(True, 1)), "verify is 1"),
        "timeout": (lambda: comm.all_reduce(x, h.group, verify=True, timeout=p(30, -1)), "timeout is -1"),
        "product": (lambda: comm.matmul_reduce_scatter(a, p(a.t(), a[:3, :3]), h.group, verify=True), "they must be [M, K] and [K, N]"),
        "product's wire": (lambda: comm.matmul_all_reduce(a, a.t(), h.group, wire=p(None, "int8"), verify=True), "wire='int8'"),
        "set_hosts": (lambda: comm.set_hosts(p(1, 7), h.group), "must divide"),
        "another device": (lambda: comm.all_reduce(p(x, x.to("cpu" if h.on_gpus else "meta")), h.group, verify=True), "accepted are the devices of the group"),
    }
    for name, (call, text) in cases.items():
        begun = time.monotonic()
        with raises(comm.Disagreement, ValueError, TypeError) as caught:
            call()
        said = str(caught[0])
        assert text in said, f"{name}: {text!r} is not in {said}"
        if h.rank != 1:
            assert isinstance(caught[0], comm.Disagreement) and "rank 0: " in said and "rank 1: " in said, f"{name}: {type(caught[0]).__name__}: {said}"
        assert time.monotonic() - begun < SOON, name
        again = comm.all_reduce(torch.ones(3, device=h.device), h.group, wire="bf16", verify=True)
        assert again.tolist() == [float(h.ranks)] * 3, name


def no_symmetric_memory(h: Here) -> None:
    """On rank 1 alone: all ranks fall back, and say why."""
    group, held = dist.new_group(), symmetric._can
    if h.rank == 1:
        symmetric._can = lambda device, others: "there is none, says the test"
    try:
        x = torch.ones(1000, device=h.device)
        plan = comm.plan(x, group)
        why = "the tensor lies on the CPU" if not h.on_gpus else h.pick("another rank has no symmetric memory", "there is none, says the test")
        assert plan.path == "portable" and why in str(plan), plan
        assert bool((comm.all_reduce(x, group, shots=2) == h.ranks).all())
        with raises(RuntimeError, text=why):
            comm.all_reduce(x, group, path="symmetric")
        with raises(RuntimeError, text=why):
            comm.matmul_reduce_scatter(torch.ones(2 * h.ranks, 8, device=h.device), torch.ones(8, 8, device=h.device), group, path="symmetric")
        assert bool((comm.all_reduce(x, group, shots=2) == h.ranks).all())
    finally:
        symmetric._can = held


def rotations(h: Here) -> None:
    """Near the largest number what is finite stays so; beyond it sums are infinite, as without a rotation."""
    for dtype in (F32, BF16, F16):
        largest = torch.finfo(dtype).max
        xs = ((h.inputs(50, (2 * h.ranks, 512), F32).clamp(-4, 4) / 4) * largest * 0.999).to(dtype)
        xs[1:] = 0
        form = ("int8", 256 if dtype == F16 else 128, True, False, dtype)
        for path in h.paths:
            for what in FUNCTIONS:
                got = called(h, what, xs[h.rank], form, path, verify=False)
                assert bool(got.isfinite().all()), f"{what} of {dtype}, {path}: not finite"
                same(got, expected(h, what, xs, *form[:4], 0, 1), f"{what} of {dtype}, {path}")
            beyond = torch.full((256,), largest, dtype=dtype, device=h.device)
            assert bool(called(h, "all_reduce", beyond, form, path).isinf().all())


def graphs(h: Here) -> None:
    """Captured and replayed with other numbers: the same bits as called."""
    if not h.on_gpus:
        return
    x, a = h.inputs(60, (h.ranks, 9000), BF16)[h.rank].clone(), h.inputs(61, (512 * h.ranks, 256), BF16)[h.rank].clone()
    b = h.inputs(62, (256, 384), BF16)[h.rank]
    calls: dict[str, Callable[[], Tensor]] = {}
    for path in h.paths:
        calls |= {f"{what}, {path}": partial(called, h, what, x, FORMATS[5], path, verify=False) for what in FUNCTIONS}
        calls[f"two shots, {path}"] = partial(called, h, "all_reduce", x, FORMATS[5], path, verify=False, shots=2)
        calls |= {f"{what}, {path}": partial(getattr(comm, what), a, b, h.group, path=path, verify=False) for what in PRODUCTS}
        calls[f"matmul_all_reduce in int8, {path}"] = partial(comm.matmul_all_reduce, a, b, h.group, wire="int8", path=path, verify=False)
    residual, weight = h.inputs(63, (1, 9000), BF16)[0].view(9, 1000), torch.ones(1000, dtype=BF16, device=h.device)
    for path in h.paths:
        calls[f"all_reduce_norm, {path}"] = lambda path=path: torch.stack(
            comm.all_reduce_norm(x.view(-1)[:9000].view(9, 1000), residual, weight, group=h.group, path=path, verify=False)  # type: ignore[arg-type]
        )
        counts = counted(h, 5, 64, 4 * h.ranks)[h.rank]

        def there_and_back(path: str = path, counts: Tensor = counts) -> Tensor:
            rows, routes = comm.dispatch_rows(x.view(-1, 100)[:64], counts, h.group, capacity=100, path=path, verify=False)
            return comm.combine_rows(rows, routes, h.group, path=path, verify=False)

        if path == "symmetric":  # over torch.distributed the host waits for the counts
            calls["experts"] = there_and_back
    calls["with a timeout"] = partial(called, h, "all_reduce", x, FORMATS[5], "portable", verify=False, timeout=30)
    stream = torch.cuda.Stream()
    for name, call in calls.items():
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call(), call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            out = call()
        for k in range(3):
            x.copy_(h.inputs(70 + k, (h.ranks, 9000), BF16)[h.rank])
            a.copy_(h.inputs(80 + k, (512 * h.ranks, 256), BF16)[h.rank])
            want = call().clone()
            graph.replay()
            same(out, want.reshape(-1), f"{name}, replay {k}")
        del graph
    comm.synchronize(h.group)


def norms(h: Here) -> None:
    """all_reduce_norm: the sums bit for bit by the contract, on every path; y by float64, the same bits on every rank; every wire and format."""
    for i, (rows, columns, dtype, wire, group, format, each) in enumerate((
        (1, 8192, BF16, "bf16", 128, None, None), (64, 8192, BF16, "bf16", 128, None, None), (300, 1037, F32, "int8", 128, None, None),
        (512, 4096, BF16, "fp8", 64, "int8", None), (7, 17000, F16, "bf16", 128, "e4m3", 128), (5, 640, BF16, "int4", 32, "int8", 64),
    )):
        xs = h.inputs(200 + i, (rows, columns), dtype)
        residual = h.inputs(210 + i, (rows, columns), dtype)[0]
        weight = h.inputs(220 + i, (columns,), F32)[0].to(dtype)
        total = all_reduce_norm_ranks.summed(xs, residual.expand(xs.shape), wire, group)[0]
        exact = total.double() * (total.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
        for path in h.paths:
            for _ in range(3):  # both halves of the room, and the first again
                y, s = comm.all_reduce_norm(
                    xs[h.rank], residual, weight, 1e-5, h.group, format=format, columns=each, wire=wire, group_size=group, path=path, verify=False
                )
                same(s, total.to(dtype).reshape(-1), f"sums {rows}x{columns} {dtype} {wire} {path}")
                values = y if isinstance(y, Tensor) else y.dequantize()
                off, most = float((values.double() - exact).norm() / exact.norm()), 0.05 if format == "e4m3" else 0.02 if format else 0.004
                assert off < most, f"{rows}x{columns} {dtype} {wire} {format} {path}: {off:.3g}"
            bits = y.view(torch.uint8) if isinstance(y, Tensor) else y.codes.view(torch.uint8)
            others = [torch.empty_like(bits) for _ in range(h.ranks)]
            dist.all_gather(others, bits.contiguous(), group=h.group)
            assert all(torch.equal(bits, other) for other in others), f"y of {rows}x{columns} {path} differs between ranks"
    with raises(comm.Disagreement, ValueError):
        comm.all_reduce_norm(xs[h.rank], residual, weight, h.pick(1e-5, 1e-6), h.group, verify=True)


def streams(h: Here) -> None:
    """Calls on two streams and two groups in turn."""
    if not h.on_gpus:
        return
    other, pair = dist.new_group(), [torch.cuda.Stream(), torch.cuda.Stream()]
    xs = h.inputs(90, (50_000,), BF16)
    want = expected(h, "all_reduce", xs, "int8", 128, False, False, 0, 1)
    torch.cuda.synchronize()
    found = []
    for i in range(40):
        with torch.cuda.stream(pair[i % 2]):
            found.append(comm.all_reduce(xs[h.rank], (h.group, other)[i // 2 % 2], wire="int8", shots=1, path="symmetric", verify=False))
    torch.cuda.synchronize()
    for i, got in enumerate(found):
        same(got, want, f"call {i}")


def compiled(h: Here, backend: str) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        y = comm.all_reduce(x * 2, wire="int8", shots=2, verify=False) + 1
        z = comm.reduce_scatter(y, wire="int4", group_size=32, verify=False)
        return y, z, comm.all_gather(z, wire="fp8", verify=False) * 0.5, comm.all_to_all(y, verify=False)

    torch._dynamo.reset()
    x = h.inputs(100, (4 * h.ranks, 24), F32)[h.rank]
    want = f(x)
    got = torch.compile(f, backend=backend, fullgraph=True)(x)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        same(a, b.reshape(-1), f"output {i}")


def products(h: Here) -> None:
    """Against the products in float64, and layers against those that every rank has in full."""
    for dtype, bound in ((BF16, 0.01), (F16, 0.002), (F32, 1e-4)):
        for m, k, n in ((256 * h.ranks, 192, 320), (3 * h.ranks, 33, 19)):
            a, b = h.inputs(140, (m, k), dtype), h.inputs(141, (k, n), dtype)
            whole = torch.stack([p.double() @ q.double() for p, q in zip(a, b, strict=True)]).sum(0)
            gathered = a.double().reshape(-1, k) @ b[h.rank].double()
            wants = (gathered, whole[h.rank * m // h.ranks : (h.rank + 1) * m // h.ranks], whole)
            for path in h.paths:
                for what, want in zip(PRODUCTS, wants, strict=True):
                    for wire in (None, "int8") if path == "portable" or what != "all_gather_matmul" else (None,):
                        got = getattr(comm, what)(a[h.rank], b[h.rank], h.group, path=path, wire=wire)
                        off = float((got.double() - want).norm() / want.norm())
                        assert off < bound + 0.02 * bool(wire), f"{what} {m}x{n}x{k} of {dtype}, {path}, {wire}: {off:.3g}"
    full = torch.nn.Linear(64, 32 * h.ranks).to(h.device)
    for p in full.parameters():
        dist.broadcast(p.data, 0)
    x = h.inputs(142, (8 * h.ranks, 64), F32)[0]
    layer = comm.ColumnParallelLinear.of(full, sequence=True)
    mine = x.view(h.ranks, 8, 64)[h.rank].clone().requires_grad_()
    y, want = layer(mine), full(x)
    width = 32
    assert torch.allclose(y, want[:, h.rank * width : (h.rank + 1) * width], atol=1e-3, rtol=1e-2)
    y.sum().backward()
    assert mine.grad is not None and torch.allclose(mine.grad, full.weight.sum(0).expand(8, 64), atol=1e-3, rtol=1e-2)
    row = torch.nn.Linear(32 * h.ranks, 48).to(h.device)
    for p in row.parameters():
        dist.broadcast(p.data, 0)
    z = comm.RowParallelLinear.of(row, sequence=True)(y.detach())
    assert torch.allclose(z, row(want.detach()).view(h.ranks, 8, 48)[h.rank], atol=1e-2, rtol=1e-2)


def a_straggler(h: Here) -> None:
    """One rank comes a second late: the others wait."""
    for path in h.paths:
        for who in range(h.ranks):
            xs = h.inputs(150 + who, (3000,), BF16)
            if h.rank == who:
                time.sleep(0.7)
            same(called(h, "all_reduce", xs[h.rank], FORMATS[5], path, shots=2, timeout=20), expected(h, "all_reduce", xs, "int8", 128, False, False), path)


PUBLIC: dict[str, Callable[[Here], None]] = {
    "first calls": first_calls, "formats": formats, "large": large, "experts": experts, "shapes": shapes, "one rank": one_rank, "disagreements": disagreements,
    "no symmetric memory": no_symmetric_memory, "rotations": rotations, "products and layers": products, "all_reduce_norm": norms,
    "graphs": graphs, "streams": streams,
    "a straggler": a_straggler,
    "torch.compile, aot_eager": partial(compiled, backend="aot_eager"), "torch.compile, inductor": partial(compiled, backend="inductor"),
}
