"""The text of `rooftop.explain` for a config of the Hopper product: tile, stages, why, and the predicted time."""

from __future__ import annotations

from rooftop.kernels._device.gemm_launch import Product
from rooftop.kernels._device.gemm_model import Config


def _tile(config: Config) -> str:
    more = "".join([f" split-K {config.SPLIT}" if config.SPLIT > 1 else "", " stream-K" if config.STREAM else "", " swapped" if config.SWAP else ""])
    return f"{config.BM}x{config.BN}x{config.BK}{more}"


def explanation(product: Product, config: Config) -> str:
    plan = product.plan(config)
    tiles = plan.whole + plan.streamed
    said = [
        f"tile {config.BM} x {config.BN}, {config.STAGES} stages of {config.BK} of K; {config.GROUPS} consumer warp group{'s'[: config.GROUPS - 1]}",
        f"{tiles} tiles on {plan.blocks} blocks",
    ]
    if config.SWAP:
        said.append("few columns: the operands are swapped, so that N fills the 64 rows of an instruction")
    if plan.split > 1:
        said.append(f"split-K: the {plan.streamed} tiles of the last, partial wave are cut into {plan.split} parts of K each, added by a second launch")
    elif plan.units:
        said.append(f"stream-K: the slices of {plan.streamed} tiles are divided evenly among the blocks, the parts added by a second launch")
    ranked = product.ranked()
    predicted = product.seconds(config)
    other = next((c for c in ranked if c != config), None)
    beside = "" if other is None else f"; {'next' if ranked[0] == config else 'the model prefers'} {_tile(other)} at {product.seconds(other) * 1e6:.1f} µs"
    said.append(f"predicted {predicted * 1e6:.1f} µs, {ranked.index(config) + 1 if config in ranked else 'none'} of {len(ranked)} by the model{beside}")
    return "; ".join(said)
