"""Overrides of torchtitan's modules by rooftop's ops:

    --override.imports rooftop.drop_in.torchtitan_overrides.rooftop_rms_norm,rooftop.drop_in.torchtitan_overrides.rooftop_swiglu

Provenance: `rooftop.rms_norm` and `rooftop.swiglu`, forward and backward; parameters, checkpoints and initialisation are those of
torchtitan's modules. Limits: a DTensor (tensor or sequence parallel) runs torchtitan's own forward, so FSDP and TP shard as before;
subclasses of the modules are left alone. Sharding: `sharding_config` and `param_init` are copied from the module that is replaced.
torchtitan must be installed to import this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torchtitan.config import derive, override
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.common.nn_modules import RMSNorm

from rooftop.ops.rms_norm import rms_norm
from rooftop.ops.swiglu import swiglu


class RooftopRMSNorm(RMSNorm):  # type: ignore[misc]
    """torchtitan's RMSNorm, by `rooftop.rms_norm`."""

    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):  # type: ignore[misc]
        pass

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, DTensor) or isinstance(self.weight, DTensor) or (self.weight is not None and self.weight.dtype != x.dtype):
            return super().forward(x)
        return rms_norm(x, tuple(self.normalized_shape), self.weight, self.eps)


class RooftopFeedForward(FeedForward):  # type: ignore[misc]
    """torchtitan's SwiGLU feed-forward, its gate by `rooftop.swiglu`."""

    @dataclass(kw_only=True, slots=True)
    class Config(FeedForward.Config):  # type: ignore[misc]
        pass

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w1(x), self.w3(x)
        if isinstance(gate, DTensor) or isinstance(up, DTensor):
            return super().forward(x)
        return self.w2(swiglu(gate, up))


@override(target=RMSNorm.Config, exact=True, description="RMSNorm by rooftop (FSDP; DTensors run torchtitan's own).")  # type: ignore[untyped-decorator]
def rooftop_rms_norm(cfg: Any) -> Any:
    """The config of `RooftopRMSNorm` with the fields of `cfg`."""
    return derive(cfg, RooftopRMSNorm.Config)


@override(target=FeedForward.Config, exact=True, description="SwiGLU by rooftop (FSDP; DTensors run torchtitan's own).")  # type: ignore[untyped-decorator]
def rooftop_swiglu(cfg: Any) -> Any:
    """The config of `RooftopFeedForward` with the fields of `cfg`."""
    return derive(cfg, RooftopFeedForward.Config)
