"""topk, sort, argsort, kthvalue, topk_mask and sample: their order against Python's own sort, what they refuse, how rows are shared out, and draws by
chi-square."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from _kernels import right

import rooftop
from rooftop.core import registry
from rooftop.core.public_arguments import arguments_of
from rooftop.core.spec import DTYPES, TARGETS, Input, Meta, case
from rooftop.kernels.select import _radix_sort, _smem_select, _threshold_rows, _top_k

HARD = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1e-45, -1e-45, 1.0, -1.0, 1.0000001, 3e38, -3e38]


def _ordered(row: list[float], descending: bool, nan: str) -> list[int]:
    """By Python's sort, which is stable: NaN apart, -0.0 == 0.0 as floats compare."""
    high = (nan == "largest") != descending  # whether NaN comes last
    numbers = [i for i, v in enumerate(row) if not math.isnan(v)]
    numbers.sort(key=lambda i: -row[i] if descending else row[i])
    others = [i for i, v in enumerate(row) if math.isnan(v)]
    return numbers + others if high else others + numbers


def _bits(t: torch.Tensor) -> list[bytes]:
    return [struct.pack("f", v) for v in t.tolist()]


@pytest.mark.parametrize("nan", ["largest", "smallest"])
@pytest.mark.parametrize("descending", [False, True])
def test_the_order_is_pythons(descending: bool, nan: str) -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.tensor(HARD)[torch.randint(0, len(HARD), (60, 40), generator=generator)]
    values, indices = rooftop.sort(x, descending=descending, nan=nan)
    first, places = rooftop.topk(x, 7, largest=descending, nan=nan)
    third, place = rooftop.kthvalue(x, 3, nan=nan)
    mask = rooftop.topk_mask(x, 7, largest=descending, nan=nan)
    for r, row in enumerate(x.tolist()):
        want = _ordered(row, descending, nan)
        assert indices[r].tolist() == want and rooftop.argsort(x[r], descending=descending, nan=nan).tolist() == want
        assert places[r].tolist() == want[:7]
        assert _bits(values[r].nan_to_num(7.0)) == _bits(x[r][want].nan_to_num(7.0))  # signs of zeros too
        assert _bits(first[r].nan_to_num(7.0)) == _bits(x[r][want[:7]].nan_to_num(7.0))
        assert mask[r].nonzero().flatten().tolist() == sorted(want[:7])
        assert int(place[r]) == _ordered(row, False, nan)[2]
    assert third.shape == (60,)


def test_rows_may_be_ragged_and_lie_along_any_dimension() -> None:
    x = torch.tensor([[3, 9, 1, 9], [5, 2, 8, 7]], dtype=torch.int32).T  # rows along dim 0
    lengths = torch.tensor([3, 1])
    values, indices = rooftop.topk(x, 2, dim=0, lengths=lengths)
    assert indices.tolist() == [[1, 0], [0, -1]] and values.tolist() == [[9, 5], [3, -(2**31)]]
    values, indices = rooftop.sort(x, 0, lengths=lengths)
    assert indices.T.tolist() == [[2, 0, 1, 3], [0, 1, 2, 3]] and values.T.tolist() == [[1, 3, 9, 9], [5, 2, 8, 7]]
    assert rooftop.topk_mask(x, 2, 0, lengths=lengths).T.tolist() == [[True, True, False, False], [True, False, False, False]]
    with rooftop.debug(), pytest.raises(IndexError, match="lengths go from -2 to 5"):
        rooftop.topk(x, 2, dim=0, lengths=torch.tensor([5, -2]))


def test_the_gradient_of_padding_does_not_reach_a_row() -> None:
    x = torch.randn(2, 5, requires_grad=True)
    values, _ = rooftop.topk(x, 3, lengths=torch.tensor([1, 5]))
    values.square().sum().backward()  # of -infinity twice, whose gradient is infinite
    x2 = x.detach()
    rest = x2[1].topk(3)
    assert x.grad is not None and torch.equal(x.grad[0], torch.tensor([2.0, 0, 0, 0, 0]) * x2[0])
    assert torch.equal(x.grad[1], torch.zeros(5).scatter(0, rest.indices, 2 * rest.values))


def test_a_nan_beyond_a_rows_length_is_no_error() -> None:
    x, lengths = torch.tensor([[2.0, 1.0, math.nan], [math.nan, 3.0, 4.0]]).T, torch.tensor([2, 0])  # rows along dim 0
    assert rooftop.topk(x, 1, 0, lengths=lengths, nan="error")[0].tolist() == [[2.0, -math.inf]]
    assert rooftop.sort(x, 0, lengths=lengths, nan="error")[1].T.tolist() == [[1, 0, 2], [0, 1, 2]]
    assert rooftop.argsort(x, 0, lengths=lengths, nan="error").T.tolist() == [[1, 0, 2], [0, 1, 2]]
    assert rooftop.topk_mask(x, 1, 0, lengths=lengths, nan="error").T.tolist() == [[True, False, False], [False] * 3]
    for call in (lambda n: rooftop.topk(x, 1, 0, lengths=n, nan="error"), lambda n: rooftop.sort(x, 0, lengths=n, nan="error")):
        with pytest.raises(ValueError, match="x has a NaN"):
            call(torch.tensor([2, 1]))


def test_a_temperature_that_kernels_cannot_divide_by_counts_as_the_least() -> None:
    for temperature, passed in ((1e-320, 5e-38), (1e-45, 5e-38), (4e-38, 5e-38), (6e-38, 6e-38), (0, 0.0)):
        assert arguments_of([registry.op("sample")], rooftop.sample, torch.ones(2, 4), temperature)[1][2] == passed
    assert rooftop.sample(torch.ones(64, 4), 1e-320).unique().tolist() == [0, 1, 2, 3]


X = torch.randn(3, 8)
BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: rooftop.topk(X, 9), ValueError, "k is 9; it must be 0 to the row's 8"),
    (lambda: rooftop.topk(X, -1), ValueError, "k is -1"),
    (lambda: rooftop.topk(X, 2.5), TypeError, "k is 2.5, a float"),  # type: ignore[arg-type]
    (lambda: rooftop.topk(X, 2, 2), IndexError, "dim is 2"),
    (lambda: rooftop.topk(X, 2, tie="first"), ValueError, "tie is 'first'; it is one of lowest, any"),
    (lambda: rooftop.topk(X, 2, nan="last"), ValueError, "nan is 'last'"),
    (lambda: rooftop.topk(X.double(), 2), TypeError, "torch.float64; accepted are torch.float32"),
    (lambda: rooftop.topk(X, 2, largest=1), TypeError, "largest is 1, a int"),  # type: ignore[arg-type]
    (lambda: rooftop.topk(X.sum(), 1), ValueError, "no dimensions"),
    (lambda: rooftop.topk(X, 2, lengths=torch.ones(3)), TypeError, "lengths is torch.float32"),
    (lambda: rooftop.topk(X, 2, lengths=torch.ones(8, dtype=torch.int64)), ValueError, r"lengths has shape \(8,\)"),
    (lambda: rooftop.topk(torch.tensor([1.0, math.nan]), 1, nan="error"), ValueError, "has a NaN"),
    (lambda: rooftop.sort(torch.tensor([math.nan]), nan="error"), ValueError, "has a NaN"),
    (lambda: rooftop.sort([1.0, 2.0]), TypeError, "x is a list"),  # type: ignore[arg-type]
    (lambda: rooftop.argsort(X, descending=None), TypeError, "descending is None"),  # type: ignore[arg-type]
    (lambda: rooftop.kthvalue(X, 0), ValueError, "k is 0; it must be 1"),
    (lambda: rooftop.kthvalue(torch.zeros(3, 0), 1), ValueError, "row's 0 elements"),
    (lambda: rooftop.topk_mask(X, 9), ValueError, "k is 9"),
    (lambda: rooftop.sample(X, top_p=0.0), ValueError, "top_p is 0.0; it must be above 0"),
    (lambda: rooftop.sample(X, top_p=1.5), ValueError, "top_p is 1.5"),
    (lambda: rooftop.sample(X, top_p=math.nan), ValueError, "top_p is nan"),
    (lambda: rooftop.sample(X, min_p=-0.1), ValueError, "min_p is -0.1"),
    (lambda: rooftop.sample(X, -1.0), ValueError, "temperature is -1.0"),
    (lambda: rooftop.sample(X, math.inf), ValueError, "temperature is inf"),
    (lambda: rooftop.sample(X, 3.2e38), ValueError, "temperature is 3.2e\\+38; it must be at least 0 and below 3e38"),
    (lambda: rooftop.sample(X, top_k=0), ValueError, "top_k is 0; it must be at least 1"),
    (lambda: rooftop.sample(X, seed=1.5), TypeError, "seed is 1.5"),  # type: ignore[arg-type]
    (lambda: rooftop.sample(X.int()), TypeError, "torch.int32; accepted"),
    (lambda: rooftop.sample(torch.zeros(3, 0)), ValueError, "last dimension of 1"),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD, ids=[text for *_, text in BAD])
def test_what_does_not_fit_is_refused(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_greedy_and_masked_rows() -> None:
    inf = math.inf
    x = torch.tensor([[-inf, math.nan, -inf], [1.0, 3.0, 3.0], [-inf, -inf, -5.0], [inf, 0.0, inf]])
    assert rooftop.sample(x, 0.0).tolist() == [-1, 1, 2, 0]
    drawn = {tuple(rooftop.sample(x, seed=s).tolist()) for s in range(40)}
    assert {d[0] for d in drawn} == {-1} and {d[1] for d in drawn} >= {1, 2} and {d[2] for d in drawn} == {2} and {d[3] for d in drawn} == {0, 2}
    assert rooftop.sample(x, 0.7, seed=3).equal(rooftop.sample(x, 0.7, seed=3 + 2**32))


@pytest.mark.parametrize("how", [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.8, "min_p": 0.05}])
def test_draws_have_the_distribution(how: dict[str, Any]) -> None:
    """Pearson's chi-square of 40000 draws, each row one, against probabilities worked out in float64; bound at 1e-5."""
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(2)) * 1.5
    rows, temperature = 40000, 0.8
    found = torch.bincount(rooftop.sample(logits.expand(rows, 20), temperature, seed=11, **how), minlength=20).double()
    share = (logits[0].double() / temperature).softmax(0)
    order = share.argsort(descending=True)
    kept = order[: how.get("top_k", 20)]
    run = share[kept].cumsum(0)
    kept = kept[(run - share[kept]) < how.get("top_p", 1.0) * run[-1]]
    kept = kept[share[kept] >= how.get("min_p", 0.0) * share.max()]
    want = torch.zeros(20, dtype=torch.float64)
    want[kept] = share[kept] / share[kept].sum() * rows
    assert float(found[want == 0].sum()) == 0
    chi = float(((found - want) ** 2 / want.clamp(min=1e-300))[want > 0].sum())
    free = len(kept) - 1
    z = ((chi / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))  # Wilson and Hilferty
    assert abs(z) < 4.4, (chi, free)


def test_rows_are_shared_out_within_what_a_card_has() -> None:
    """For any rows, length, k, dtype and card: a block's entries hold the k and a round, fit its shared memory, and the segments cover the row."""
    op = registry.op("topk")
    planned = 0
    for device in (*TARGETS.values(), *TARGETS.names.values()):
        for dtype in ("f32", "bf16", "i64"):
            for rows in (1, 3, 64, 131, 200, 4096):
                for n in (300, 1024, 5000, 33000, 131072, 1 << 24):
                    for k in (1, 2, 63, 64, 500, 1025, 2048):
                        p = op.problem_of({"x": Meta((rows, n), dtype), "lengths": None}, {"k": min(k, n), "largest": True, "nan": "largest"}, device)
                        config = _top_k.plan(p, min(k, n))
                        assert config is not None, p.signature
                        if config["way"] == "short":  # the registers of a block hold the row, 32 keys of 32 bits or 16 of 64 a thread at most
                            assert k <= _top_k.SHORT < _top_k.GROUPS <= config["threads"]
                            size, own = p["x"].itemsize, config["each"] * 16
                            assert config["threads"] * own >= n * size and own // size <= 128 // _top_k.key_bytes(p)
                            planned += 1
                            continue
                        entry, each = _top_k.key_bytes(p) + 4, _top_k.items(p)
                        for threads, capacity, round_ in (
                            (config["threads"], config["capacity"], each), (config["list_threads"], config["list_capacity"], 8),
                        ):
                            assert capacity * entry + _top_k.RESERVED <= device.shared_per_block
                            assert capacity >= _top_k.pow2(min(k, n))
                            alone = threads == config["threads"] and config["per"] <= threads * round_
                            assert capacity >= threads * round_ + (0 if alone else min(k, n))
                        assert config["per"] * config["splits"] >= n > config["per"] * (config["splits"] - 1)
                        assert config["splits"] == 1 or (config["per"] >= 2 * k and rows * config["splits"] <= 2 * device.sms)
                        levels = _top_k._levels(k, config["splits"])
                        assert not levels or levels[-1][2] == 1
                        planned += 1
    assert planned > 4000


def test_a_sample_leaves_what_a_block_holds() -> None:
    """For any rows, length, k, dtype and card: entries, sample and a round beside the k kept fit the shared memory, and the parts cover the row."""
    op = registry.op("topk")
    planned = 0
    for device in (*TARGETS.values(), *TARGETS.names.values()):
        for dtype in ("f32", "f16", "i64", "i32"):
            for rows in (1, 3, 64, 131, 200, 4096):
                for n in (4096, 5000, 33000, 131072, 1 << 20, 1 << 24, 1 << 30):
                    for k in (1, 2, 63, 300, 1025, 2048):
                        p = op.problem_of({"x": Meta((rows, n), dtype), "lengths": None}, {"k": k, "largest": True, "nan": "largest"}, device)
                        c = _threshold_rows.plan(p, k)
                        if c is None:
                            assert _top_k.plan(p, k) is not None or k > _top_k.MOST
                            continue
                        key, pack, m = _top_k.key_bytes(p), 16 // p["x"].itemsize, c["sample"]
                        blocks = 1 if c["threads"] == _threshold_rows.WIDE else 2
                        assert blocks * (c["capacity"] * (key + 4) + _top_k.RESERVED) <= device.shared_per_block and c["capacity"] % 4 == 0
                        assert c["capacity"] >= max(_top_k.pow2(k), k + c["threads"] * pack, c["threads"])
                        assert m * key <= c["capacity"] * (key + 4) and 4 * m <= n and m in _threshold_rows.SAMPLES
                        assert 0 < _threshold_rows.place(k, n, m) <= m and _threshold_rows.reaching(k, n, m) >= min(n, k)
                        assert c["per"] * c["splits"] >= n > c["per"] * (c["splits"] - 1) and c["splits"] <= _threshold_rows.LISTS
                        if c["splits"] > 1:
                            assert c["list_capacity"] * (key + 4) + 2 * _top_k.RESERVED <= device.shared_per_block
                            assert c["list_capacity"] >= max(_top_k.pow2(k), k + _threshold_rows.WIDE * pack) and rows * c["splits"] <= 2 * device.sms
                        planned += 1
    assert planned > 3000


def test_the_blocks_of_a_draw_hold_its_row() -> None:
    """For any rows, length, dtype and card with clusters: the blocks cover the row and fit, and the sums of a lane, 20 bits an element, fit 32 bits."""
    op, draw = registry.op("sample"), registry.implementation("sample__cuda_sm90")
    planned = 0
    for device in (*TARGETS.values(), *TARGETS.names.values()):
        for dtype in ("f32", "f16"):
            for rows in (1, 3, 16, 64, 131, 256, 4096):
                for n in (1, 64, 900, 5000, 33000, 131072, 300000, 600000, 1 << 20):
                    late = {"temperature": 1.0, "top_k": 0, "top_p": 0.9, "min_p": 0.0, "seed": 1}
                    p = op.problem_of({"logits": Meta((rows, n), dtype), "seeds": None}, late, device)
                    if device.arch < 90 or _smem_select.too_long(p["logits"], device, 36 * 1024):
                        continue
                    c = draw.choose(p)
                    packs, pack = _smem_select.packs(p["logits"], c["cluster"]), 16 // p["logits"].itemsize
                    assert packs * c["cluster"] * pack >= n + pack - 1 and 16 * packs + 36 * 1024 <= device.shared_per_block
                    assert -(-packs // c["threads"]) * (c["threads"] // 32) * pack < 2**12
                    assert c["cluster"] == 1 or rows * c["cluster"] <= device.sms or 3 * (16 * packs * 2 + 36 * 1024) > device.shared_per_block
                    planned += 1
    assert planned > 200


def test_many_rows_are_drawn_from_by_a_block_a_row_where_that_is_faster() -> None:
    op, draw = registry.op("sample"), registry.implementation("sample__cuda_sm90")
    given = {"temperature": 1.0, "top_k": 0, "top_p": 0.9, "min_p": 0.0, "seed": 1}
    for rows, apart in ((1, 0), (131, 0), (132, 1), (527, 1), (528, 3)):
        p = op.problem_of({"logits": Meta((rows, 128256), "bf16"), "seeds": None}, given, TARGETS[90])
        made = draw.launches(p, draw.choose(p))
        assert made[-1].args["apart"] == apart and len(made) == 1 + (apart > 0)
        assert all(launch.args["only"] == apart for launch in made[:-1])


@pytest.mark.sampled("kernels", "topk__warp__cuda_sm80")
@pytest.mark.parametrize(("columns", "k", "fill"), [(300, 8, "normal"), (300, 32, "normal"), (1000, 1, "inf"), (70, 32, "nan"), (300, 20, "equal")])
def test_a_warp_selects_from_short_rows(columns: int, k: int, fill: str) -> None:
    """With a list that is long enough, and with one that is not: many equal elements, or one of each lane."""
    op, name = registry.op("topk"), "topk__warp__cuda_sm80"
    c = case("c", x=Input((5, columns), "f32", fill), lengths=None, k=k, largest=True, nan="largest")
    right(name, c, seed=5)
    assert registry.choose("topk", op.kernel_problem(op.problem(c, TARGETS[90]))).kernel == name  # type: ignore[union-attr,arg-type]


def test_64_rows_of_a_vocabulary_are_one_wave_of_clusters() -> None:
    """With three blocks a multiprocessor, eight a row, they would be two."""
    op, draw = registry.op("sample"), registry.implementation("sample__cuda_sm90")
    given = {"temperature": 1.0, "top_k": 0, "top_p": 0.9, "min_p": 0.0, "seed": 1}
    p = op.problem_of({"logits": Meta((64, 128256), "bf16"), "seeds": None}, given, TARGETS["h200"])
    (launch,), device = draw.launches(p, draw.choose(p)), TARGETS["h200"]
    assert registry.choose("sample", p).kernel == draw.name  # type: ignore[union-attr]
    assert launch.grid[0] <= device.shared_per_block // (launch.shared + 36 * 1024) * device.sms


@pytest.mark.parametrize("k", [1, 30, 700])
def test_a_pivot_hardly_ever_lies_before_the_last(k: int) -> None:
    """Of 2000 random samples of 1024 of 8192: those with more of the first k than the place allows. Four standard deviations and more: none is expected."""
    generator = torch.Generator().manual_seed(k)
    place, n, m = _threshold_rows.place(k, 8192, 1024), 8192, 1024
    firsts = [int((torch.randperm(n, generator=generator)[:m] < k).sum()) for _ in range(2000)]
    assert max(firsts) <= place and k * m / n - 0.5 < sum(firsts) / 2000 < k * m / n + 0.5
    assert place * n / m < 4 * k + 6 * n / m + 1


def test_a_sort_fits_its_block() -> None:
    op = registry.op("sort")
    for device in TARGETS.values():
        for dtype in ("f32", "f16", "i64"):
            for n in (1, 33, 256, 257, 1025, 4096, 4097, 8192, 8193, 1 << 20):
                p = op.problem_of({"x": Meta((7, n), dtype), "lengths": None}, {"descending": False, "nan": "largest"}, device)
                config = _radix_sort.plan(p)
                if config["way"] != "warp":
                    tile = config["threads"] * config["each"]
                    assert tile * config["tiles"] >= n
                    if config["way"] == "block":
                        assert tile <= 65536 and _radix_sort.shared_of(p, config["threads"], config["each"]) <= device.shared_per_block
                        continue
                    ranks = config["threads"] // 32 * 1024 + 1024 + 32 + 1024
                    assert tile * (_top_k.key_bytes(p) + 4) + ranks + 1024 <= device.shared_per_block


def test_a_clusters_blocks_hold_the_row() -> None:
    op = registry.op("kthvalue")
    taken = 0
    for device in (*TARGETS.values(), *TARGETS.names.values()):
        if device.arch < 90:
            continue
        for dtype in ("f32", "bf16", "i64"):
            for rows in (1, 16, 1024):
                for n in (3, 777, 8192, 131072, 300000, 700001, 1 << 20):
                    p = op.problem_of({"x": Meta((rows, n), dtype), "lengths": None}, {"k": 2, "nan": "largest"}, device)
                    if _smem_select.not_taken(p) is not None:
                        assert n * DTYPES[dtype].bytes > 6 * device.shared_per_block
                        continue
                    cluster = _smem_select.choose(p)["cluster"]
                    held = 16 * _smem_select.packs(p["x"], cluster)
                    assert cluster in (1, 2, 4, 8) and held + _smem_select.STATIC <= device.shared_per_block
                    assert held * cluster >= n * DTYPES[dtype].bytes + 14  # an address may lie as far before the row's first element
                    taken += 1
    assert taken > 30


def test_the_proof_of_exactness_finds_a_wrong_index(monkeypatch: pytest.MonkeyPatch) -> None:
    from rooftop.lab.fuzz import selection

    monkeypatch.setattr(selection, "SHAPES", ((60, (1, 7)),))
    found = list(selection.wrong_rows(12, "cpu", 3))
    assert sum(rows for _, rows, _ in found) >= 12 and not any(bad for *_, bad in found)
    right = rooftop.argsort
    monkeypatch.setattr(rooftop, "argsort", lambda x: right(x.flip(-1)))
    assert all(bad.startswith("argsort") for *_, bad in selection.wrong_rows(12, "cpu", 3))
    monkeypatch.undo()
    monkeypatch.setattr(selection, "SHAPES", ((60, (1, 7)),))
    monkeypatch.setattr(selection, "by_numpy", lambda x, descending: x.argsort(-1).numpy() * 0)
    assert any("the proof's own order" in bad for *_, bad in selection.wrong_rows(12, "cpu", 3))
    assert list(selection.wrong_rows(12, "cpu", 3, seconds=0.0)) == []


def test_a_draw_may_be_any_that_fits_within_the_slack() -> None:
    """Rows of 100,000 logits that are alike: each has a probability of 1e-5, so that the slack spans two before and two after."""
    from rooftop.core.contract_parts import Judged
    from rooftop.ops.sample import SLACK, _fits

    n, options = 100_000, {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 3}
    x = torch.zeros(1, n)
    x[0, 1::2] = -math.inf
    want = rooftop.sample(x, seed=3)
    span = int(SLACK * n / 2)

    def judged(by: int) -> str | None:
        return _fits(Judged({"out": want + by}, {}, {"out": want}, {"logits": x}, options))

    assert span == 1 and int(want) % 2 == 0
    assert [judged(by) for by in (-2, 0, 2)] == [None, None, None]
    assert all(str(judged(by)).startswith("row 0 draws") for by in (-60, -1, 1, 60)), "too far, or masked"
