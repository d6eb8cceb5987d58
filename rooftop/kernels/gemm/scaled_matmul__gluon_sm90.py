"""out = scale_a · scale_b · a b + bias of fp8 or int8 on Hopper. Contract: rooftop/ops/scaled_matmul.py. Kernel:
rooftop/kernels/gemm/_product_gluon.py

wgmma reads 8-bit operands only along K, and TMA only on multiples of 16 bytes. An operand that lies otherwise is first copied into aligned rows
along K (rooftop/kernels/gemm/_product_launches.py): 2 bytes of device memory an element and a launch. wgmma adds fp8 products in fewer than 24
bits; unless `fast`, and with scales of blocks always, 128 products at a time are added to a sum in float32."""

from __future__ import annotations

from dataclasses import replace

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.gemm import _product_launches
from rooftop.kernels.gemm._model import Config, deepest
from rooftop.kernels.gemm._product_launches import Product, explanation

__all__ = ["Config", "choose", "configs", "explains", "for_any_rows", "launches", "scratch", "supports"]

DEMANDS = {"has": ["IGMMA|QGMMA", "UTMALDG"]}
TRIED = 24
SHORT = 4096  # the most products that tensor cores accumulate by themselves


def _product(p: Problem) -> Product:
    scales = str(p.option("scales"))
    short = p["a"].shape[-1] <= SHORT  # otherwise accumulation with fewer than 24 bits has a larger error than the result's rounding
    precise = p["a"].dtype != "i8" and (scales == "blocks" or not (p.option("fast") and short))
    return Product(
        sms=p.device.sms, scale_a="scale_a", scale_b="scale_b", scales=scales, promote=precise,
        **_product_launches.read_as(p, _product_launches.unread(p["a"], p["b"])),
    )


def supports(p: Problem) -> str | None:
    if p["a"].dtype != "i8" and p["out"].dtype == "f32":
        return "tensor cores add fp8 products in fewer than 24 bits: a float32 result needs more"
    if p["a"].shape[-1] < 16:
        return f"TMA reads 16 bytes at least: K must be 16 or more; given {p['a'].shape[-1]}"
    return _product_launches.along_k(_product(p))


def predicted(p: Problem) -> float:
    """Seconds of the copies and the product."""
    product = _product(p)
    return _product_launches.copying_seconds(p, _product_launches.unread(p["a"], p["b"])) + product.seconds(product.ranked()[0])


def choose(p: Problem) -> Config:
    return _product(p).ranked()[0]


def for_any_rows(p: Problem) -> Config:
    """One chain along all of K; of precise sums slices of 128, whatever the tile."""
    product = _product(p)
    f, chains = product.facts, [c for c in product.ranked() if c.SPLIT == 1 and not c.STREAM]
    short = [deepest(replace(c, BK=128), f.itemsize, f.out_bytes, f.vectors) for c in chains if product.promote]
    return min(short or chains, key=product.seconds)


def configs(p: Problem) -> list[Config]:
    return _product(p).ranked()[:TRIED]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return {**_product_launches.copies(p, _product_launches.unread(p["a"], p["b"])), **_product_launches.scratch(_product(p), config)}


def launches(p: Problem, config: Config) -> list[Launch]:
    copies = _product_launches.copying(p, _product_launches.unread(p["a"], p["b"]))
    return [*copies, *_product_launches.launches(_product(p), config, p.device.pdl)]


def explains(p: Problem, config: Config) -> str:
    copied = _product_launches.unread(p["a"], p["b"])
    before = f"wgmma does not read {' and '.join(copied)} where it lies: copied first; " if copied else ""
    return before + explanation(_product(p), config)
