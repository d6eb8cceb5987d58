"""Packed weights in the kernels of quantized_matmul: every config of the one for few rows, and what the Hopper kernel takes for rows and columns."""

from __future__ import annotations

import pytest
from _kernels import right

pytest.importorskip("triton")
import torch
import triton
import triton.language as tl

from rooftop.core import registry
from rooftop.core.spec import TARGETS, case
from rooftop.formats.packed import arrange, planes
from rooftop.kernels.gemm import _unpack_wgmma
from rooftop.kernels.gemm import quantized_matmul__gluon_sm90 as hopper
from rooftop.kernels.gemm._lowbit_plan import FORMATS, pieces
from rooftop.lab.interpret import interpreter
from rooftop.ops.quantized_matmul import _given

FEW_ROWS = "quantized_matmul__mma__cuda_sm80"
WAYS: list[tuple[dict[str, int], int, int, int, str]] = [  # config, M, N, K, format
    ({"tokens": 1, "tiles": 1, "high": 2, "down": 1, "along": 8, "deep": 4, "slab": 1, "split": 1, "raw": 1}, 1, 40, 2208, "int4"),
    ({"tokens": 1, "tiles": 1, "high": 1, "down": 2, "along": 2, "deep": 6, "slab": 2, "split": 2}, 1, 40, 2304, "int4"),
    ({"tokens": 4, "tiles": 1, "high": 1, "down": 4, "along": 2, "deep": 4, "slab": 4, "split": 1, "raw": 1}, 3, 80, 640, "int2"),
    ({"tokens": 16, "tiles": 2, "high": 2, "down": 8, "along": 1, "deep": 2, "slab": 2, "split": 4}, 13, 150, 1100, "e2m3"),
    ({"tokens": 32, "tiles": 4, "high": 1, "down": 1, "along": 4, "deep": 3, "slab": 1, "split": 1}, 32, 50, 512, "int8"),
    ({"tokens": 64, "tiles": 8, "high": 2, "down": 4, "along": 2, "deep": 4, "slab": 1, "split": 1}, 70, 70, 520, "e2m1"),
    ({"tokens": 64, "tiles": 8, "high": 1, "down": 8, "along": 1, "deep": 3, "slab": 2, "split": 2}, 64, 130, 300, "int4"),
]


@pytest.mark.sampled("kernels", FEW_ROWS)
@pytest.mark.parametrize("number", range(len(WAYS)))
def test_every_way_is_right(number: int) -> None:
    config, m, n, k, format = WAYS[number]
    given = _given(m, n, k, format, 0 if k % 32 else 32, zero="u8" if format == "int2" else "")
    whole = {**registry.implementation(FEW_ROWS).head.config, **config, "format": FORMATS.index(format)}  # type: ignore[attr-defined]
    found = right(FEW_ROWS, case("c", **given), whole, seed=number)
    assert found.path[0].startswith("few_rows<") and len(found.path) == 1 + (config["split"] > 1)


@triton.jit
def whole_block(words, high, out, half, WORDS: tl.constexpr, BITS: tl.constexpr):
    """The codes of one half of a block of 64 stripes' rows, by the functions that place pairs, a step at a time, and then beside them those of
    the whole half. words, high: int32 [4, chunks, 32, 4] of the planes."""
    HIGH: tl.constexpr = 4
    MASK: tl.constexpr = ((1 << BITS) - 1) * 0x10001
    stripe, lane = tl.arange(0, HIGH)[:, None, None, None], tl.arange(0, 32)[None, None, :, None]
    two = tl.arange(0, 2)[None, None, None, :]
    if BITS == 8:
        chunk = tl.arange(0, 2)[None, :, None, None]
        w = tl.load(words + (stripe * 4 + 2 * half + chunk) * 128 + lane * 4 + tl.arange(0, 4)[None, None, None, :])
    elif BITS == 2:
        w = tl.load(words + stripe * 128 + lane * 4 + 2 * half + two)
    else:
        w = tl.load(words + (stripe * 2 + half) * 128 + lane * 4 + tl.arange(0, 4)[None, None, None, :])
    first = _unpack_wgmma.words_apart(w)
    second = first
    if BITS == 6:
        second = _unpack_wgmma.words_apart(tl.load(high + stripe * 128 + lane * 4 + 2 * half + two))
    steps = ()
    for step in tl.static_range(4):
        p = ()
        for pair in tl.static_range(4):
            p += (_unpack_wgmma.codes_of(first, second, step, pair, BITS) & MASK,)
        steps += (_unpack_wgmma.square(p[0], p[1], p[2], p[3], tl.int16),)
        found = _unpack_wgmma.matrix_of_step(steps[step], 64)
        tl.store(out + tl.arange(0, 64)[:, None] * 128 + (16 * step + tl.arange(0, 16))[None, :], found)
    found = _unpack_wgmma.matrix_of_half(steps[0], steps[1], steps[2], steps[3], 64)
    tl.store(out + tl.arange(0, 64)[:, None] * 128 + (64 + tl.arange(0, 64))[None, :], found)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("bits", [8, 6, 4, 2])
def test_pairs_are_placed_as_they_were_packed(bits: int, half: int) -> None:
    """What says of the registers of the Hopper kernel which row and column they are: plain Triton functions, run by the interpreter."""
    codes = torch.randint(0, 1 << bits, (64, 128), generator=torch.Generator().manual_seed(bits), dtype=torch.uint8)
    packed, at, parts = arrange(codes, bits), 0, []
    for b in planes(bits):
        parts.append(packed[:, 0, at : at + 256 * b].contiguous().view(torch.int32).reshape(-1))
        at += 256 * b
    out = torch.full((64, 128), -1, dtype=torch.int16)
    interpreter.run(whole_block, (1,), {"words": parts[0], "high": parts[-1], "out": out, "half": half, "WORDS": 0, "BITS": bits})
    wanted = codes[:, 64 * half : 64 * half + 64]
    assert torch.equal(out.to(torch.uint8), torch.cat([wanted, wanted], 1))


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_chosen_fits_a_multiprocessor(format: str) -> None:
    op, few = registry.op("quantized_matmul"), registry.implementation(FEW_ROWS)
    for m in (1, 7, 33, 64, 65, 200, 5000):
        for n, k in ((8192, 8192), (1000, 4096), (14336, 640), (16, 128)):
            problem = op.problem(case("c", **_given(m, n, k, format, 128)), TARGETS[90])
            for config in few.configs(problem):
                assert all(launch.shared <= 227 * 1024 and launch.block[0] in (128, 256) for launch in few.launches(problem, config))
            assert hopper.supports(problem) is None
            for tile in hopper.configs(problem):
                assert tile.STAGES >= 2 and tile.BN * tile.BM <= 256 * 128
                whole, rest, each, count = pieces(tile, problem)
                assert whole + rest == -(-m // tile.BM) * -(-n // tile.BN) and each * (count - 1) < -(-k // 128) <= each * count
                assert count == 1 or (rest * count <= 132 and (whole % 132 == 0 and whole > 0) == tile.TAIL)


def test_tiles_past_the_last_wave_are_split() -> None:
    op = registry.op("quantized_matmul")
    chosen = {n: hopper.choose(op.problem(case("c", **_given(256, n, 13312, "int8")), TARGETS["h200"])) for n in (19584, 16896)}
    assert (chosen[19584].BM, chosen[19584].TAIL) == (256, True)  # 153 tiles for 132 multiprocessors
    assert (chosen[16896].BM, chosen[16896].SPLIT) == (256, 1)  # 132


@pytest.mark.parametrize("bias", [False, True])
def test_pieces_are_added_to_the_tiles_that_they_are_of(bias: bool) -> None:
    m, n, bm, bn, whole, count, group = 150, 264, 64, 128, 4, 3, 2
    places, columns = [], -(-n // bn)  # of tiles in grouped order: two rows of tiles, column by column
    for tile in range(9):
        first = tile // (group * columns) * group
        size = min(columns - first, group)
        places.append((first + tile % (group * columns) % size, tile % (group * columns) // size))
    draw = torch.Generator().manual_seed(5)
    parts = torch.randn(count, 9 - whole, bm, bn, generator=draw)
    scale, rows, plus = torch.rand(n, generator=draw), torch.rand(m, generator=draw), torch.randn(n, generator=draw) if bias else None
    out = torch.full((m, n), torch.nan)
    args = {"parts": parts, "scale": scale, "x_scale": rows, "bias": plus, "out": out, "M": m, "eights": n // 8, "whole": whole, "rest": 9 - whole}
    more = {"group": group, "BM": bm, "BN": bn, "SPLIT": count, "BLOCK": 1024, "PDL": False}
    interpreter.run(hopper._add_parts, (9 - whole, bm * bn // 1024), {**args, **more})
    for tile, (pn, pm) in enumerate(places):
        at = (slice(pm * bm, min(m, pm * bm + bm)), slice(pn * bn, min(n, pn * bn + bn)))
        if tile < whole:
            assert out[at].isnan().all()
            continue
        sums = parts[:, tile - whole].sum(0)[: out[at].shape[0], : out[at].shape[1]] * scale[at[1]] * rows[at[0], None]
        torch.testing.assert_close(out[at], sums if plus is None else sums + plus[at[1]])


def test_what_the_hopper_kernel_leaves_to_the_other() -> None:
    op = registry.op("quantized_matmul")
    for given, reason in (
        (_given(100, 64, 256, "int4", 128, "f16", "f32"), "scales of groups"),
        (_given(100, 64, 256, "int4", 128, zero="bf16"), "whole zero points"),
        (_given(100, 64, 256, "e2m1", 32, "f16", "e8m0"), "scales of groups"),
        (_given(100, 60, 256, "int4", 128), "out"),
        (_given(100, 64, 100, "int4"), "x"),
        (_given(100, 64, 256, "int4", zero="u8"), "zero points go with groups"),
    ):
        problem = op.problem(case("c", **given), TARGETS[90])
        assert reason in (hopper.supports(problem) or "") and registry.implementation(FEW_ROWS).supports(problem) is None
