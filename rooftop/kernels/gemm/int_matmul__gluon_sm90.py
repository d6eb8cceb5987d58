"""out = a b of int8 in int32 on Hopper. Contract: rooftop/ops/int_matmul.py. Kernel: rooftop/kernels/gemm/_product_gluon.py

wgmma reads 8-bit operands only along K: rows of a and columns of b must be contiguous in memory."""

from __future__ import annotations

from rooftop.core.spec import Launch, Meta, Problem
from rooftop.kernels.gemm import _product_launches
from rooftop.kernels.gemm._model import Config
from rooftop.kernels.gemm._product_launches import Product, explanation

__all__ = ["Config", "choose", "configs", "explains", "launches", "scratch", "supports"]

DEMANDS = {"has": ["IGMMA", "UTMALDG"]}
TRIED = 24


def _product(p: Problem) -> Product:
    return Product(dict(p.tensors), p.device.sms, raw=True)


def supports(p: Problem) -> str | None:
    if p["a"].shape[-1] < 16:
        return f"TMA reads 16 bytes at least: K must be 16 or more; given {p['a'].shape[-1]}"
    return _product_launches.along_k(_product(p))


def choose(p: Problem) -> Config:
    return _product(p).ranked()[0]


def configs(p: Problem) -> list[Config]:
    return _product(p).ranked()[:TRIED]


def scratch(p: Problem, config: Config) -> dict[str, Meta]:
    return _product_launches.scratch(_product(p), config)


def launches(p: Problem, config: Config) -> list[Launch]:
    return _product_launches.launches(_product(p), config, p.device.pdl)


def explains(p: Problem, config: Config) -> str:
    return explanation(_product(p), config)
