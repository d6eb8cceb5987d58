"""out = a b of int8 in int32 on Hopper. Contract: rooftop/ops/int_matmul.py. Kernel: rooftop/kernels/gemm/_product_gluon.py

Operands that wgmma does not read where they lie are copied first, as by scaled_matmul__gluon_sm90.py."""

from __future__ import annotations

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.gemm import _product_launches
from rooftop.kernels.gemm._model import Config
from rooftop.kernels.gemm._product_launches import Product, explanation

__all__ = ["Config", "choose", "configs", "explains", "launches", "scratch", "supports"]

DEMANDS = {"has": ["IGMMA", "UTMALDG"]}
TRIED = 24


def _product(p: Problem) -> Product:
    return Product(sms=p.device.sms, raw=True, **_product_launches.read_as(p, _product_launches.unread(p["a"], p["b"])))


def supports(p: Problem) -> str | None:
    if p["a"].shape[-1] < 16:
        return f"TMA reads 16 bytes at least: K must be 16 or more; given {p['a'].shape[-1]}"
    return _product_launches.along_k(_product(p))


def predicted(p: Problem) -> float:
    """Seconds of the copies and the product."""
    product = _product(p)
    return _product_launches.copying_seconds(p, _product_launches.unread(p["a"], p["b"])) + product.seconds(product.ranked()[0])


def choose(p: Problem) -> Config:
    return _product(p).ranked()[0]


def configs(p: Problem) -> list[Config]:
    return _product(p).ranked()[:TRIED]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return {**_product_launches.copies(p, _product_launches.unread(p["a"], p["b"])), **_product_launches.scratch(_product(p), config)}


def launches(p: Problem, config: Config) -> list[Launch]:
    copies = _product_launches.copying(p, _product_launches.unread(p["a"], p["b"]))
    return [*copies, *_product_launches.launches(_product(p), config, p.device.pdl)]


def explains(p: Problem, config: Config) -> str:
    return explanation(_product(p), config)
