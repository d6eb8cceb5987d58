"""Whether a result is called right or wrong."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from rooftop.core.spec import OF_TORCH  # noqa: E402
from rooftop.lab.check.compare import compare  # noqa: E402


def sums(*shape: int, seed: int = 1):
    """Exact sums of products, what plain float32 makes of them, and what another order of adding makes."""
    g = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(*shape, 24, generator=g) for _ in range(2))
    exact = (a.double() * b.double()).sum(-1)
    same = (a * b).sum(-1)
    other = torch.zeros(shape)
    for k in range(24):
        other = other + a[..., k] * b[..., k]
    return other, exact, same


@pytest.mark.parametrize("shape", [(300, 64), (1, 1), (4097,), (1, 12289), (7, 4097)])
def test_another_order_of_adding_is_right(shape):
    verdict = compare(*sums(*shape), "f32", 4.0)
    assert verdict.ok and verdict.elements == torch.Size(shape).numel()


@pytest.mark.parametrize("shape,at", [((300, 64), (299, 3)),
                                      ((300, 64), (0, 0)), ((4097,), (4096,)), ((12289,), (12287,)), ((12289,), (5,)), ((1, 9000), (0, 8999))])
def test_one_wrong_element_is_found_where_it_is(shape, at):
    out, exact, same = sums(*shape)
    out[at] += 0.01
    verdict = compare(out, exact, same, "f32", 4.0)
    assert not verdict.ok and verdict.where == at and verdict.wrong == 1
    assert verdict.expected == pytest.approx(float(exact[at])) and verdict.value == float(out[at])


def test_the_end_of_a_long_row_is_not_judged_by_one_rounding():
    out, exact, same = sums(4097)
    same[-1] = exact[-1]  # as luck would have it
    out[-1] = float(exact[-1]) + 3 * abs(float(exact[-1])) * 2.0**-23
    assert compare(out, exact, same, "f32", 4.0).ok


def test_infinities_and_shapes():
    out, exact, same = sums(4, 5)
    same[1, 2] = out[1, 2] = float("nan")
    assert compare(out, exact, same, "f32", 4.0).ok
    out[1, 2] = 0.0
    verdict = compare(out, exact, same, "f32", 4.0)
    assert not verdict.ok and verdict.where == (1, 2)
    assert "it must be (4, 5)" in compare(out.T, exact, same, "f32", 4.0).message
    assert compare(out[:0], exact[:0], same[:0], "f32", 4.0).ok


def test_integers_are_equal_or_wrong():
    out = torch.arange(12).reshape(3, 4)
    assert compare(out, out.double(), out.clone(), "i64", 4.0).ok
    wrong = out.clone()
    wrong[2, 1] += 1
    verdict = compare(wrong, out.double(), out, "i64", 4.0)
    assert not verdict.ok and verdict.where == (2, 1)


@pytest.mark.parametrize("slip", [0.0, 1e-4])
def test_one_element_is_judged_over_several_draws_where_it_misses_its_allowance(slip, monkeypatch):
    """dx of one column is what cancels in g - unit * (unit * g): what torch errs there is now and then 0. Still a wrong scale is found."""
    from rooftop.lab import candidates
    from rooftop.lab.check import checker

    (subject,) = candidates.find(["rms_norm_bwd__triton"])
    case = subject.op.case("one element f32")

    runs = []

    def runner(call, memory):
        runs.append(1)
        s, dy = memory["s"], memory["dy"]
        weight = memory["weight"] if memory["weight"] is not None else torch.ones(1)
        scale = ((s.double().pow(2).mean(-1, keepdim=True) + call.problem.option("eps")).rsqrt() * (1 + slip)).float()
        unit, g = s * scale, dy * weight
        memory["dx"].copy_(scale * g - (scale * unit) * (unit * g).mean(-1, keepdim=True))
        if memory["dweight"] is not None:
            memory["dweight"].copy_((dy * unit).reshape(-1, 1).sum(0))

    monkeypatch.setitem(checker.RUNNERS, "interpreter", runner)
    found = [checker.check(subject, case, backend="interpreter", seed=seed) for seed in range(8)]
    assert {r.status for r in found} == ({"wrong"} if slip else {"ok"}), [r.message for r in found]
    if slip:
        assert all("over 16 draws" in r.message for r in found)
    else:
        assert len(runs) > 2 * len(found)  # some were judged over all draws, for they had missed the allowance of one
    assert (len(runs) - 2 * len(found)) % 15 == 0
    assert {(r.outputs["dx"].elements, r.outputs["dx"].where) for r in found} <= {(1, None), (1, (0,))}, found[0].message


DTYPES = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"]


@pytest.mark.parametrize("name", DTYPES)
def test_bit_for_bit_a_zero_has_a_sign_and_a_nan_is_a_nan(name):
    dtype = getattr(torch, name)
    zero = torch.zeros(7, 3, 2).to(dtype)
    negative = zero.clone()
    negative.view(torch.uint8)[5, 2, -1] |= 0x80  # the sign of the last element of a row, wherever its bytes end
    assert compare(zero, zero, zero.clone(), name_of(dtype), 1.0, bitwise=True).ok
    verdict = compare(negative, zero, zero, name_of(dtype), 1.0, bitwise=True)
    assert not verdict.ok and verdict.wrong == 1 and verdict.where == (5, 2, 1)
    if not dtype.is_complex:
        a, b = (torch.full((2,), v).to(dtype) for v in (float("nan"), -float("nan")))
        assert compare(a, a, b, name_of(dtype), 1.0, bitwise=True).ok


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "float8_e8m0fnu", "bool", "uint16", "int64"])
def test_codes_and_integers_have_bits_alone(name):
    dtype = getattr(torch, name)
    size = torch.empty(0, dtype=dtype).element_size()
    a = torch.zeros(6, size, dtype=torch.uint8).view(dtype)
    b = torch.zeros(6, size, dtype=torch.uint8)
    b[4, -1] = 1
    assert compare(a, a, a.clone(), name_of(dtype), 1.0).ok
    assert compare(b.view(dtype), a, a, name_of(dtype), 1.0).wrong == 1


def name_of(dtype):
    return OF_TORCH[str(dtype).removeprefix("torch.")]
