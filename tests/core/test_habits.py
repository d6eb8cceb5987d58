"""What users of torch are used to: named tuples, broadcasting, batches of rows, logits of several dimensions, errors for targets, names in dir()."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F

import rooftop


@pytest.mark.parametrize(("ours", "theirs"), [
    (lambda x: rooftop.topk(x, 3), lambda x: torch.topk(x, 3)), (rooftop.sort, torch.sort),
    (lambda x: rooftop.kthvalue(x, 3), lambda x: torch.kthvalue(x, 3)),
    (lambda x: rooftop.kthvalue(x, 3, keepdim=True), lambda x: torch.kthvalue(x, 3, keepdim=True)),
])
def test_results_of_two_tensors_have_names(ours: object, theirs: object) -> None:
    x = torch.randperm(35).view(5, 7).float()
    found, want = ours(x), theirs(x)  # type: ignore[operator]
    assert torch.equal(found.values, want.values) and torch.equal(found.indices, want.indices)
    values, indices = found
    assert values is found.values and indices is found[1]


def test_named_results_go_through_compile() -> None:
    x = torch.randperm(35).view(5, 7).float()
    found = torch.compile(lambda t: rooftop.topk(t, 2).values + rooftop.sort(t).indices[:, :2], backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(found, x.topk(2).values + x.sort().indices[:, :2])


def test_add_broadcasts_and_its_gradients_are_summed() -> None:
    x, y = torch.randn(4, 1, 3, requires_grad=True), torch.randn(5, 1, requires_grad=True)
    out = rooftop.add(x, y)
    assert torch.equal(out, x + y)
    found, want = torch.autograd.grad(out.square().sum(), (x, y)), torch.autograd.grad((x + y).square().sum(), (x, y))
    torch.testing.assert_close(found, want)
    with pytest.raises(ValueError, match=r"^add: x has shape \(4, 3\) and y \(2, 3\); they must be alike, or broadcast as torch's do$"):
        rooftop.add(torch.ones(4, 3), torch.ones(2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_add_takes_a_number_and_a_factor(dtype: torch.dtype) -> None:
    x, y = torch.randn(4, 3).to(dtype).requires_grad_(), torch.randn(3).to(dtype).requires_grad_()
    assert torch.equal(rooftop.add(x, 2.5), x + 2.5) and torch.equal(rooftop.add(x, y, alpha=-3), torch.add(x, y, alpha=-3))
    assert torch.equal(torch.autograd.grad(rooftop.add(x, y, alpha=3).sum(), y)[0], torch.full((3,), 12.0, dtype=dtype))
    with pytest.raises(ValueError, match=r"^add: implementation is 'triton', and y is a number or alpha not 1"):
        rooftop.add(x, 2, implementation="triton")
    with pytest.raises(TypeError, match=r"^add: y is a str; it must be a tensor"):
        rooftop.add(x, "2")  # type: ignore[arg-type]


def test_sorts_take_stable_which_they_always_are() -> None:
    x = torch.tensor([2.0, 1.0, 2.0, 1.0])
    for stable in (True, False):
        assert rooftop.sort(x, stable=stable).indices.tolist() == rooftop.argsort(x, stable=stable).tolist() == [1, 3, 0, 2]
    with pytest.raises(TypeError, match=r"^sort: stable is 1, a int; it must be True or False"):
        rooftop.sort(x, stable=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("first", "second"), [((5,), (5,)), ((5,), (5, 7)), ((4, 5), (5,)), ((2, 3, 5), (5,)), ((5,), (2, 5, 7)), ((0,), (0,))])
def test_a_vector_is_a_row_or_a_column_of_a_product(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = torch.randn(first, requires_grad=True), torch.randn(second, requires_grad=True)
    found, want = rooftop.matmul(a, b), a @ b
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), (a, b)), torch.autograd.grad(want.sum(), (a, b)))
    torch.testing.assert_close(rooftop.matmul(a, b, residual=want, activation="relu"), want.relu() + want)
    with pytest.raises(ValueError, match=r"^matmul: a is .* a's last dimension must be as long as b's"):
        rooftop.matmul(a, torch.ones(6))


@pytest.mark.parametrize("lead", [(2, 3), (2, 3, 4), (0, 3)])
def test_rows_of_many_dimensions_times_a_matrix(lead: tuple[int, ...]) -> None:
    a, b, bias, residual = torch.randn(*lead, 5), torch.randn(5, 7), torch.randn(7), torch.randn(*lead, 7)
    torch.testing.assert_close(rooftop.matmul(a, b, bias=bias, activation="relu", residual=residual), (a @ b + bias).relu() + residual)
    with pytest.raises(ValueError, match=r"^matmul: b has shape \(2, 3, 5, 7\); it must have two dimensions"):
        rooftop.matmul(a, torch.ones(2, 3, 5, 7))


def test_linear_is_torchs_with_what_follows_it() -> None:
    x, w, b, more = torch.randn(2, 3, 5), torch.randn(7, 5), torch.randn(7), torch.randn(2, 3, 7)
    torch.testing.assert_close(rooftop.linear(x, w), F.linear(x, w))
    torch.testing.assert_close(rooftop.linear(x, w, b, activation="gelu", residual=more), F.gelu(F.linear(x, w, b)) + more)
    torch.testing.assert_close(rooftop.linear(x[0, 0], w, b), F.linear(x[0, 0], w, b))
    with pytest.raises(ValueError, match=r"^linear: x has shape \(2, 3, 5\) and weight \(5, 7\); they must be \[\.\.\., K\] and \[N, K\]$"):
        rooftop.linear(x, w.t())
    with pytest.raises(ValueError, match=r"^linear: .*activation is 'tanh'"):
        rooftop.linear(x, w, activation="tanh")
    with pytest.raises(TypeError, match=r"^linear: x is a list"):
        rooftop.linear([1.0], w)  # type: ignore[arg-type]
    assert str(rooftop.explain(rooftop.linear, x, w)).startswith("matmul on cpu")


@pytest.mark.parametrize(("temperature", "softcap"), [(1.0, None), (0.7, None), (0.7, 2.0)])
def test_log_probabilities_and_entropies_of_tokens_and_their_gradients(temperature: float, softcap: float | None) -> None:
    x, w, b = torch.randn(2, 3, 5, requires_grad=True), torch.randn(11, 5, requires_grad=True), torch.randn(11, requires_grad=True)
    tokens = torch.tensor([[1, -100, 10], [0, 4, 5]])
    found = rooftop.linear_logp(x, w, tokens, bias=b, temperature=temperature, softcap=softcap)
    z = F.linear(x, w, b)
    every = ((z if softcap is None else softcap * torch.tanh(z / softcap)) / temperature).log_softmax(-1)
    want = every.gather(-1, tokens.clamp(min=0)[..., None])[..., 0] * (tokens >= 0)
    torch.testing.assert_close(found, want)
    flow = torch.randn(2, 3)
    torch.testing.assert_close(torch.autograd.grad(found, (x, w, b), flow), torch.autograd.grad(want, (x, w, b), flow, retain_graph=True))
    both = rooftop.linear_logp(x, w, tokens, bias=b, temperature=temperature, softcap=softcap, return_entropy=True)
    spread = -(every.exp() * every).sum(-1) * (tokens >= 0)
    torch.testing.assert_close(both, (want, spread))
    torch.testing.assert_close(
        torch.autograd.grad(both, (x, w, b), (flow, flow.flip(0))), torch.autograd.grad((want, spread), (x, w, b), (flow, flow.flip(0)))
    )
    assert str(rooftop.explain(rooftop.linear_logp, x, w, tokens)).startswith("linear_cross_entropy on cpu")
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(rooftop.linear_logp, backend="aot_eager", fullgraph=True)(x, w, tokens, temperature=0.5), rooftop.linear_logp(
        x, w, tokens, temperature=0.5
    ))


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        ({"temperature": 0.0}, ValueError, r"^linear_logp: temperature is 0.0; it must be a finite number above 0$"),
        ({"temperature": float("nan")}, ValueError, r"^linear_logp: temperature is nan"),
        ({"temperature": "hot"}, TypeError, r"^linear_logp: temperature is 'hot'"),
        ({"temperature": 1e-40}, ValueError, r"^linear_logp: logit_scale / temperature is 1e\+40; it must be a finite number that a float32 holds$"),
        ({"tokens": torch.tensor([11])}, IndexError, r"^linear_logp: tokens\[0\] is 11"),
        ({"tokens": torch.tensor([[1]])}, ValueError, r"^linear_logp: tokens has shape \(1, 1\)"),
        ({"tokens": torch.tensor([1], dtype=torch.int32)}, TypeError, r"^linear_logp: tokens is torch.int32"),
    ],
)
def test_wrong_log_probabilities_are_one_line(more: dict[str, object], error: type[Exception], says: str) -> None:
    given = {"x": torch.randn(1, 5), "weight": torch.randn(11, 5), "tokens": torch.tensor([3])} | more
    with pytest.raises(error, match=says) as found:
        rooftop.linear_logp(**given)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_logits_of_several_dimensions_have_their_classes_last_or_second(reduction: str) -> None:
    logits, target = torch.randn(2, 3, 11, requires_grad=True), torch.tensor([[1, -100, 10], [0, 4, 5]])
    want = F.cross_entropy(logits.movedim(-1, 1), target, reduction=reduction)
    torch.testing.assert_close(rooftop.cross_entropy(logits, target, reduction=reduction), want)
    found = rooftop.cross_entropy(logits.movedim(-1, 1), target, reduction=reduction, label_smoothing=0.0)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), logits), torch.autograd.grad(want.sum(), logits))


def test_logits_that_fit_both_ways_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^cross_entropy: input has shape \(2, 3, 3\) and target \(2, 3\): the classes may be the last dimension or"):
        rooftop.cross_entropy(torch.randn(2, 3, 3), torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"^cross_entropy: .*they must be \[N, C\] and \[N\]"):
        rooftop.cross_entropy(torch.randn(2, 3, 4), torch.zeros(2, 2, dtype=torch.int64))


@pytest.mark.parametrize("value", [-1, 5, 2**40])
@pytest.mark.parametrize("scale", [0.0, 0.1])  # with torch's own function, and with the reference
@pytest.mark.parametrize("grad", [False, True])
def test_a_target_out_of_range_is_an_error_on_the_cpu(value: int, scale: float, grad: bool) -> None:
    x, w, target = torch.randn(3, 4, requires_grad=grad), torch.randn(5, 4, requires_grad=grad), torch.tensor([0, value, -100])
    with pytest.raises(IndexError, match=rf"^cross_entropy: target\[1\] is {value}; accepted are 0 to 4 and ignore_index, -100$"):
        rooftop.cross_entropy(x @ w.t(), target, lse_square_scale=scale)
    with pytest.raises(IndexError, match=rf"^linear_cross_entropy: target\[1\] is {value}; accepted are 0 to 4 and ignore_index, -100$"):
        rooftop.linear_cross_entropy(x, w, target, lse_square_scale=scale)


@pytest.mark.parametrize("space", ["sparse", "codecs", "comm", "quant", "drop_in"])
def test_dir_of_a_package_lists_its_names(space: str) -> None:
    module = getattr(rooftop, space)
    assert set(module.__all__) <= set(dir(module))
    assert not {"import_module", "TYPE_CHECKING"} & set(dir(module))


def test_what_was_quantised_prints_a_line() -> None:
    found = repr(rooftop.quantize(torch.randn(8, 64), "int8", granularity="row"))
    assert found == "Quantized(int8, float32 (8, 64), scales (8,) of f32, 544 bytes on cpu)"


def test_a_compressed_array_is_loaded_from_its_file(tmp_path: Path) -> None:
    field = numpy.linspace(0, 1, 4096, dtype=numpy.float32)
    rooftop.codecs.compress(field, abs=1e-3).save(tmp_path / "field.rt")
    found = rooftop.codecs.Compressed.load(tmp_path / "field.rt")
    assert numpy.abs(rooftop.codecs.decompress(found) - field).max() <= 1e-3
    assert isinstance(rooftop.codecs.decompress(rooftop.codecs.Compressed.load(tmp_path / "field.rt", torch=True)), torch.Tensor)
    (tmp_path / "none.rt").write_bytes(b"none")
    with pytest.raises(rooftop.codecs.FormatError):
        rooftop.codecs.Compressed.load(tmp_path / "none.rt")
    with pytest.raises(FileNotFoundError):
        rooftop.codecs.Compressed.load(tmp_path / "absent.rt")


@pytest.mark.parametrize("supported", [True, False])
def test_a_product_of_bfloat16_runs_on_a_cpu_whose_onednn_has_none(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from rooftop.ops import _matmul_calls

    supported = supported and _matmul_calls.onednn_takes_bfloat16()
    monkeypatch.setattr(_matmul_calls, "onednn_takes_bfloat16", lambda: supported)
    a, b, bias = torch.randn(8, 64).bfloat16(), torch.randn(64, 16).bfloat16(), torch.randn(16).bfloat16()
    expected = torch.nn.functional.gelu(a.double() @ b.double() + bias.double())
    assert (rooftop.matmul(a, b, bias=bias, activation="gelu").double() - expected).abs().max() < 0.02 * expected.abs().max()
