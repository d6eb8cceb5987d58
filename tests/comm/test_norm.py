"""`all_reduce_norm` over gloo, against float64 and the contract; what it refuses; `RowParallelLinear` as its user."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from _processes import run
from torch import Tensor, nn

import rooftop
from rooftop import comm

FORMS: list[dict[str, Any]] = [
    {}, {"wire": "int8"}, {"wire": "int4", "group_size": 32}, {"format": "int8"}, {"format": "e4m3", "columns": 64},
    {"wire": "fp8", "format": "int8", "columns": 32},
]
DTYPES = (torch.bfloat16, torch.float32, torch.float16)


def given(ranks: int, i: int) -> tuple[Tensor, Tensor, Tensor]:
    """x of all ranks [W, 2, 3, C], the residual, the weight."""
    g, columns, dtype = torch.Generator().manual_seed(i), (200, 96, 77)[i % 3], DTYPES[i % 3]
    x, residual = torch.randn(ranks, 2, 3, columns, generator=g), torch.randn(2, 3, columns, generator=g)
    weight = torch.randn(columns, generator=g)
    return x.to(dtype), residual.to(dtype), weight.to(dtype if i % 2 else torch.float32)


def parts(y: Any) -> list[Tensor]:
    return [y] if isinstance(y, Tensor) else [y.codes.view(torch.uint8), y.scale]


def every(rank: int, ranks: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i, options in enumerate(FORMS):
        x, residual, weight = given(ranks, i)
        y, s = comm.all_reduce_norm(x[rank], residual, weight, 1e-5, **options)
        found[str(i)] = [*parts(y), s]
        found[f"shape {i}"] = tuple(y.shape), (y.dequantize() if not isinstance(y, Tensor) else y).float()
    x, residual, weight = given(ranks, 1)
    strided = x[rank].transpose(0, 1)
    found["strided"] = torch.equal(comm.all_reduce_norm(strided, residual.transpose(0, 1))[1].transpose(0, 1), comm.all_reduce_norm(x[rank], residual)[1])
    empty = [comm.all_reduce_norm(torch.ones(shape), format=f) for shape in ((0, 8), (3, 0)) for f in (None, "int8")]
    empty.append(comm.all_reduce_norm(torch.ones(3, 0), format="int8", columns=32))
    found["empty"] = [(tuple((y if isinstance(y, Tensor) else y.dequantize()).shape), tuple(s.shape)) for y, s in empty]
    if ranks > 2:
        return found
    torch.manual_seed(0)
    layer = nn.Linear(32, 96, dtype=torch.bfloat16)
    mine = comm.RowParallelLinear.of(layer)
    a, h = torch.randn(5, 32).bfloat16(), residual.reshape(-1, 96)[:5].bfloat16()
    with torch.no_grad():
        for name, more in (("layer", h), ("layer alone", None)):
            y, s = mine.forward_norm(a.chunk(ranks, 1)[rank], more, weight.bfloat16(), 1e-5)
            whole = (a.double() @ layer.weight.double().t() + layer.bias.double()) + (0 if more is None else h.double())
            found[name] = (y, s, whole, whole * (whole.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double())
    said = {}
    p = residual[0]
    for name, call in {
        "residual": lambda: comm.all_reduce_norm(x[rank], residual[:1] if rank else residual),
        "weight": lambda: comm.all_reduce_norm(x[rank], residual, weight[:-1]),
        "dtype": lambda: comm.all_reduce_norm(p, p.half()),
        "eps": lambda: comm.all_reduce_norm(p, eps=1e-6 if rank else 1e-5),
        "negative": lambda: comm.all_reduce_norm(p, eps=-1.0),
        "format": lambda: comm.all_reduce_norm(p, format="int4"),
        "columns": lambda: comm.all_reduce_norm(p, format="int8", columns=48),
        "no format": lambda: comm.all_reduce_norm(p, columns=64),
        "kind": lambda: comm.all_reduce_norm(p, format="int8" if rank else None),
        "another": lambda: comm.all_reduce_norm(p) if rank else comm.all_reduce(p),
        "path": lambda: comm.all_reduce_norm(p, path="plain"),
        "tensor": lambda: comm.all_reduce_norm([1.0]),  # type: ignore[arg-type]
        "gradient": lambda: mine.forward_norm(a.chunk(ranks, 1)[rank], None),
        "width": lambda: mine.forward_norm(a, None),
    }.items():
        said[name] = "nothing"
        try:
            call()
        except (TypeError, ValueError, RuntimeError) as error:
            said[name] = f"{type(error).__name__}: {error}"
        with suppress(AssertionError):
            assert float(comm.all_reduce(torch.ones(4))[0]) == ranks  # the group goes on
            said[name] += " | ok"
    found["said"] = said
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_has_the_same_sums_and_their_norm(ranks: int, request: pytest.FixtureRequest) -> None:
    if ranks > 2:
        request.getfixturevalue("long")
    found = run(every, ranks)
    for i, options in enumerate(FORMS):
        x, residual, weight = given(ranks, i)
        whole = [t.reshape(ranks, 6, -1) for t in (x, residual.expand(x.shape))]
        named = {"format": options.get("format"), "columns": options.get("columns"), "wire": options.get("wire", "bf16")}
        y, s = rooftop.all_reduce_norm_ranks(*whole, weight.expand(ranks, -1), 1e-5, group_size=options.get("group_size", 128), **named)
        loss = {"bf16": 0.02, "fp8": 0.15, "int8": 0.05, "int4": 0.8}[named["wire"]]
        total = x.double().sum(0) + residual.double()
        norm = total * (total.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
        for rank, f in enumerate(found):
            *got, sums = f[str(i)]
            assert torch.equal(sums.view(6, -1), s[rank]) and all(torch.equal(a, b) for a, b in zip(got, found[0][str(i)], strict=False)), (options, rank)
            if named["format"] is None:
                torch.testing.assert_close(got[0].view(6, -1), y[rank], rtol=2**-7, atol=1e-6)
            else:
                assert (got[0].view(6, -1).int() - y[0][rank].int()).abs().max() <= 1 or named["format"] == "e4m3"
                torch.testing.assert_close(got[1].reshape(6, -1), y[1][rank], rtol=1e-5, atol=0)
            shape, values = f[f"shape {i}"]
            assert shape == tuple(x.shape[1:])
            assert float((values.double() - norm).norm() / norm.norm()) < loss + (0.05 if named["format"] else 0), options
    for f in found:
        assert f["strided"] and f["empty"] == [((0, 8), (0, 8))] * 2 + [((3, 0), (3, 0))] * 3
    if ranks == 2:
        layer_and_errors(found)


def layer_and_errors(found: Any) -> None:
    texts = {
        "residual": "ValueError: all_reduce_norm: residual is (1, 3, 96)", "weight": "ValueError: all_reduce_norm: weight is (95,)",
        "dtype": "TypeError: all_reduce_norm: residual is torch.float16; x is torch.float32",
        "eps": "Disagreement: all_reduce_norm: the ranks were given different",
        "negative": "ValueError: all_reduce_norm: eps is -1.0", "format": "ValueError: all_reduce_norm: format is 'int4'; accepted are None, 'int8', 'e4m3'",
        "columns": "ValueError: all_reduce_norm: columns is 48", "no format": "ValueError: all_reduce_norm: columns is 64 and format is None",
        "kind": "Disagreement: all_reduce_norm", "another": "Disagreement: ", "path": "ValueError: all_reduce_norm: path is 'plain'",
        "tensor": "TypeError: all_reduce_norm: x is a list", "gradient": "RuntimeError: RowParallelLinear.forward_norm: no gradient",
        "width": "ValueError: RowParallelLinear: x is (5, 32)",
    }
    for rank, f in enumerate(found):
        for name in ("layer", "layer alone"):
            y, s, sums, norm = f[name]
            torch.testing.assert_close(s.double(), sums, rtol=0.02, atol=0.02)
            torch.testing.assert_close(y.double(), norm, rtol=0.02, atol=0.03)
            assert torch.equal(y, found[0][name][0]) and torch.equal(s, found[0][name][1])
        for name, text in texts.items():
            want = "Disagreement" if name == "residual" and rank == 0 else text
            assert f["said"][name].startswith(want) and f["said"][name].endswith(" | ok"), (rank, name, f["said"][name])
