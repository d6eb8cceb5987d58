"""Pruning, sparse layers, and the advice which layout to take."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import rooftop
from rooftop.ops.prune_24 import PAIRS, kept, patterns
from rooftop.sparse import Pruned, SparseLinear, SparseTensor, advise, permute_columns, prune, rewind, sparsify_model


def test_there_are_90_patterns_with_two_in_each_row_and_column() -> None:
    masks = {tuple(tuple(int(c in PAIRS[i]) for c in range(4)) for i in p) for p in patterns()}
    assert len(masks) == 90 and all(sum(row) == 2 for m in masks for row in (*m, *zip(*m, strict=True)))


def test_the_optimal_search_keeps_the_most_that_any_mask_can() -> None:
    w = torch.randn(4, 4, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    rows = [[int(c in pair) for c in range(4)] for pair in PAIRS]
    best = max(
        float((w.double().abs() * torch.tensor(m)).sum()) for m in product(rows, repeat=4) if all(sum(column) == 2 for column in zip(*m, strict=True))
    )
    assert float(w.double().abs()[kept(w, "optimal")].sum()) == pytest.approx(best, rel=1e-6)
    assert float(w.double().abs()[kept(w, "greedy")].sum()) <= best * (1 + 1e-6)


@pytest.mark.parametrize("algorithm", ["optimal", "greedy"])
def test_both_orientations_hold_the_same_elements(algorithm: str) -> None:
    w = torch.randn(38, 53).to(torch.float16)
    s, t = rooftop.prune_24(w, algorithm)
    s.verify()
    t.verify()
    assert torch.equal(s.to_dense(), t.to_dense().t())
    dense = s.to_dense()
    assert torch.equal(dense, torch.where(dense != 0, w, 0))
    with pytest.raises(ValueError, match="algorithm is 'best'"):
        rooftop.prune_24(w, "best")


def test_a_trained_layer_has_the_gradients_of_its_pruned_weight() -> None:
    torch.manual_seed(0)
    layer = SparseLinear(torch.randn(24, 32, dtype=torch.bfloat16), torch.randn(24, dtype=torch.bfloat16), train24=True)
    x = torch.randn(3, 5, 32, dtype=torch.bfloat16, requires_grad=True)
    w = layer.sparse.to_dense()
    y = layer(x)
    torch.testing.assert_close(y, x @ w.t() + layer.bias, atol=0.1, rtol=0.05)
    dy = torch.randn_like(y)
    y.backward(dy)
    assert x.grad is not None and layer.weight is not None and layer.weight.grad is not None
    torch.testing.assert_close(x.grad, dy @ w, atol=0.1, rtol=0.05)
    torch.testing.assert_close(layer.weight.grad, dy.flatten(0, 1).t() @ x.detach().flatten(0, 1), atol=0.1, rtol=0.05)  # the whole weight, straight through


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64))


@pytest.mark.parametrize(("form", "density"), [("elements", 0.25), ("blocks", 0.25), ("2:4", 0.5)])
def test_masks_keep_the_fraction_and_stay(form: str, density: float) -> None:
    net = model()
    masks = prune(net, 0.75, form=form, block=(16, 16))
    assert masks.density() == pytest.approx(density, abs=0.03)
    assert all(torch.equal(net[i].weight != 0, masks.masks[f"{i}.weight"]) for i in (0, 2))
    with torch.no_grad():
        net[0].weight.add_(1.0)
    masks.apply(net)
    assert torch.equal(net[0].weight != 0, masks.masks["0.weight"])


def test_a_lottery_ticket_has_the_first_weights_and_the_last_masks() -> None:
    net = model()
    first = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        net[0].weight.mul_(torch.rand_like(net[0].weight))
    one = prune(net, 0.5, everywhere=True)
    two = prune(net, 0.75, everywhere=True, before=one)
    assert all(bool((one.masks[n] | ~two.masks[n]).all()) for n in one.masks) and two.density() == pytest.approx(0.25, abs=0.01)
    rewind(net, first, two)
    assert torch.equal(net[0].weight, first["0.weight"] * two.masks["0.weight"])


def test_an_order_of_columns_keeps_more() -> None:
    w = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)) * torch.linspace(3, 0.1, 64)  # the large ones side by side

    def size(x: Tensor) -> float:
        return float(x.abs().unflatten(1, (-1, 4)).topk(2, dim=-1).values.sum())

    order = permute_columns(w, rounds=30)
    assert sorted(order.tolist()) == list(range(64)) and size(w[:, order]) > 1.05 * size(w)


@pytest.mark.parametrize("layout", ["2:4", "csr", "bsr"])
def test_a_model_with_sparse_layers_gives_what_its_pruned_weights_do(layout: str) -> None:
    net = model()
    if layout != "2:4":
        prune(net, 0.9, form="blocks" if layout == "bsr" else "elements")
    net = net.to(torch.bfloat16)
    twin = sparsify_model(copy.deepcopy(net), layout, least=8)
    assert isinstance(twin[0], SparseLinear)
    for i in (0, 2):
        net[i].weight.data = twin[i].sparse.to_dense()
    x = torch.randn(7, 64, dtype=torch.bfloat16)
    torch.testing.assert_close(twin(x), net(x), atol=0.05, rtol=0.05)
    again = sparsify_model(model().to(torch.bfloat16), layout, least=8) if layout == "2:4" else copy.deepcopy(twin)
    again.load_state_dict(twin.state_dict())
    assert torch.equal(again(x), twin(x))


def test_advice_says_dense_where_little_is_zero() -> None:
    x = torch.randn(512, 512)
    assert advise(x, 512).best.layout == "dense"
    few = x * (torch.rand(512, 512) < 0.002)
    assert advise(few, 512).sparse.layout == "csr"
    blocks = torch.zeros(2048, 2048)
    blocks[:128, :128] = blocks[512:640, 256:384] = 1.0
    advice = advise(SparseTensor.from_dense(blocks.to(torch.bfloat16)), 4096)
    assert advice.best.layout == "bsr" and "bsr" in str(advice)
    assert SparseTensor.from_dense(blocks.to(torch.bfloat16), "auto", n=4096).layout == "bsr"
    with pytest.raises(ValueError, match="n is 0"):
        advise(x, 0)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_pruned_weights_become_zero_whatever_they_were(value: float) -> None:
    layer = nn.Linear(8, 8)
    layer.weight.data[0, 0] = value
    masks = prune(layer, 1.0)
    assert torch.equal(layer.weight, torch.zeros(8, 8))
    layer.weight.data[3, 3] = value
    masks.apply(layer)
    assert torch.equal(layer.weight, torch.zeros(8, 8))
    layer.weight.data.fill_(1.0)[0, 0] = value
    assert torch.equal(prune(layer, 0.5, everywhere=True, before=masks).masks["weight"], torch.zeros(8, 8, dtype=torch.bool))
    assert torch.equal(layer.weight, torch.zeros(8, 8))


class Tied(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.fc = nn.Embedding(16, 8), nn.Linear(8, 8)
        self.head, self.twin = nn.Linear(8, 16, bias=False), nn.Linear(8, 16)
        self.head.weight = self.twin.weight = self.wte.weight


def test_a_tied_weight_is_pruned_once() -> None:
    for everywhere in (False, True):
        net = Tied()
        masks = prune(net, 0.5, everywhere=everywhere)
        assert set(masks.masks) == {"fc.weight", "head.weight"} and masks.density() == 0.5
        assert net.head.weight is net.wte.weight and torch.equal(net.wte.weight != 0, masks.masks["head.weight"])
        assert prune(net, 0.75, before=masks, everywhere=everywhere).density() == 0.25
    for skip in ("wte", "twin", ["head"]):
        assert set(prune(Tied(), 0.5, skip=skip).masks) == {"fc.weight"}


def test_masks_that_do_not_fit_change_nothing() -> None:
    net = model()
    first = copy.deepcopy(net.state_dict())
    good = torch.zeros(96, 64, dtype=torch.bool)
    for masks, error in (({"0.weight": good, "9.weight": good}, KeyError), ({"0.weight": good, "2.weight": good}, ValueError)):
        with pytest.raises(error):
            Pruned(masks).apply(net)
        with pytest.raises(error):
            rewind(net, {n: t + 1 for n, t in first.items()}, Pruned(masks))
    assert all(torch.equal(t, first[n]) for n, t in net.state_dict().items())


def test_equal_weights_are_pruned_to_the_exact_fraction() -> None:
    for fraction in (0.0, 0.3, 0.5, 1.0):
        net = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 30))
        for layer in net:
            nn.init.constant_(layer.weight, 0.5)
        masks = prune(net, fraction, everywhere=True)
        flat = torch.cat([m.flatten() for m in masks.masks.values()])
        assert torch.equal(flat, torch.arange(400) < 400 - round(400 * fraction))
        for layer in net:
            nn.init.constant_(layer.weight, 0.0)
        again = prune(net, 0.5, everywhere=True, before=masks)
        assert again.density() == min(0.5, masks.density())


@pytest.mark.parametrize("train24", [False, True])
def test_a_sparse_layer_keeps_what_is_frozen_and_whether_it_trains(train24: bool) -> None:
    net = model().eval()
    net[0].bias.requires_grad_(False)
    net[0].weight.requires_grad_(False)
    sparsify_model(net, train24=train24)
    assert not any(m.training for m in net.modules())
    assert not net[0].bias.requires_grad and net[2].bias.requires_grad
    if train24:
        assert not net[0].weight.requires_grad and net[2].weight.requires_grad
    bias = SparseLinear(SparseTensor.from_dense(torch.eye(8)), torch.zeros(8)).bias
    assert bias is not None and bias.requires_grad


def test_layers_whose_parent_reads_the_weight_stay_dense() -> None:
    net = nn.Sequential(nn.TransformerEncoderLayer(64, 4, 64, batch_first=True), nn.Linear(64, 64)).eval()
    x = torch.randn(2, 3, 64)
    want = net[0](x)
    sparsify_model(net, "csr")
    assert isinstance(net[1], SparseLinear) and sum(isinstance(m, SparseLinear) for m in net.modules()) == 1
    with torch.no_grad():
        torch.testing.assert_close(net[0](x), want)
    net.train()(x).sum().backward()
    attention = sparsify_model(nn.MultiheadAttention(64, 4), "csr")
    assert attention(x, x, x)[0].shape == x.shape


def test_names_to_skip_and_layouts_are_taken_whole() -> None:
    def named() -> nn.Module:
        return nn.ModuleDict({"fc1": nn.Linear(8, 8), "fc10": nn.Linear(8, 8)})

    net = sparsify_model(named(), "csr", skip="fc10", least=8)
    assert isinstance(net["fc1"], SparseLinear) and isinstance(net["fc10"], nn.Linear)
    assert set(prune(named(), skip="fc10").masks) == {"fc1.weight"}
    for net in (nn.ReLU(), named()):
        with pytest.raises(ValueError, match="layout is 'ell'"):
            sparsify_model(net, "ell")
