"""What `rooftop.quantize` returns: codes with their scales, and what is needed to read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from rooftop.quant.formats import SCALES, Format, format_of

FACTS = ("format", "shape", "dtype", "rows", "columns", "split", "scale_dtype", "seed")
TENSORS = ("codes", "scale", "zero", "over")
SCALE_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "e8m0": "float8_e8m0fnu", "e4m3": "float8_e4m3fn"}


@dataclass(frozen=True)
class Quantized:
    """A tensor in codes.

        value = (decode(code) - zero) * scale, and scale * over where `over` is there

    It is a pytree node (its tensors are the leaves), goes through `torch.compile` and `torch.save`; `tensors()` and `facts()` are what safetensors take.

    codes        8 bits: of the shape of the tensor, int8, uint8, float8_e4m3fn or float8_e5m2. 6 and 4 bits: bytes (uint8), packed along the last
                 dimension, [..., ceil(n * bits / 8)]; rooftop/quant/formats.py says byte by byte how. Where groups run along another dimension
                 than the last two, those behind it are one row.
    scale        float32, float16, bfloat16, float8_e8m0fnu or float8_e4m3fn; a scalar, or one for each row, column, group or block
    zero         zero points as the codes (int8 or uint8) in the shape of `scale`; None where symmetric
    over         the tensor's scale of nvfp4, float32, one element; None for the others
    format       a name of `rooftop.quant.FORMATS`
    shape, dtype of what was quantised; dtype as torch prints it, without "torch."
    rows, columns, split   how scales are shared: dimensions before the last `split` ones are rows; a scale stands for `rows` by `columns` of them
    seed         of the dither that `dequantize` takes off again; None for none"""

    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    over: Tensor | None
    format: str
    shape: tuple[int, ...]
    dtype: str
    rows: int
    columns: int
    split: tuple[int, int]
    scale_dtype: str
    seed: int | None = None

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The values, in the dtype that was quantised or another floating one."""
        from rooftop.ops.dequantize import dequantize

        return dequantize(self, dtype)

    @property
    def kind(self) -> Format:
        return format_of(self.format)

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Of codes, scales and zero points."""
        return sum(t.numel() * t.element_size() for t in (self.codes, self.scale, self.zero, self.over) if t is not None)

    def to(self, device: Any) -> Quantized:
        """On another device."""
        return self._with([None if t is None else t.to(device) for t in self._leaves()])

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by name, those that are there: what safetensors' `save_file` takes, with `facts()` as metadata."""
        return {n: t for n, t in zip(TENSORS, self._leaves(), strict=True) if t is not None}

    def facts(self) -> dict[str, str]:
        """All else, as text."""
        return {"rooftop.quantized": json.dumps({n: getattr(self, n) for n in FACTS})}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> Quantized:
        """The inverse of `tensors()` and `facts()`. Raises ValueError where they do not fit each other."""
        if "rooftop.quantized" not in facts:
            raise ValueError(f"facts hold {', '.join(facts) or 'nothing'}; they must hold 'rooftop.quantized'")
        given = json.loads(facts["rooftop.quantized"])
        if set(given) != set(FACTS):
            raise ValueError(f"facts name {', '.join(sorted(given))}; they must name {', '.join(FACTS)}")
        given["shape"], given["split"] = tuple(given["shape"]), tuple(given["split"])
        if missing := {"codes", "scale"} - set(tensors):
            raise ValueError(f"tensors lack {', '.join(sorted(missing))}; there are {', '.join(tensors)}")
        made = cls(**{n: tensors.get(n) for n in TENSORS}, **given)  # type: ignore[arg-type]
        made.verify()
        return made

    @property
    def geometry(self) -> tuple[int, int, int]:
        """The tensor as [A, R, C]: scales are shared within each of the A, by `rows` of R and `columns` of C."""
        a, r = self.split
        return prod(self.shape[:a]), prod(self.shape[a:r]), prod(self.shape[r:])

    def verify(self) -> None:
        """Raises ValueError where codes, scales or zero points do not have the sizes, dtypes and device that the shape and the format ask for."""
        f, rank = self.kind, len(self.shape)
        a, r = self.split
        if not 0 <= a <= r <= rank or min((*self.shape, 0)) < 0 or min(self.rows, self.columns) < 1:
            given = f"shape {self.shape}, split {self.split}, rows {self.rows}, columns {self.columns}"
            raise ValueError(f"{given}: a split lies in order within the dimensions, rows and columns are at least 1")
        if self.scale_dtype not in SCALES or (f.group and self.scale_dtype != f.scale):
            raise ValueError(f"scale_dtype is {self.scale_dtype!r}; accepted for {f.name} are {f.scale if f.group else ', '.join(SCALES)}")
        if self.dtype not in ("float32", "float16", "bfloat16"):
            raise ValueError(f"dtype is {self.dtype!r}; accepted are float32, float16, bfloat16")
        outer, tall, wide = self.geometry
        groups = outer * -(-tall // max(self.rows, 1)) * -(-wide // max(self.columns, 1))
        if self.codes.element_size() != 1 or self.codes.numel() != outer * tall * f.bytes(wide):
            raise ValueError(
                f"codes are {tuple(self.codes.shape)} {self.codes.dtype}; {f.name} of {self.shape} takes {outer * tall} rows of {f.bytes(wide)} bytes"
            )
        for name, t in (("scale", self.scale), ("zero", self.zero)):
            if t is not None and t.numel() != groups:
                raise ValueError(f"{name} has {t.numel()} elements; {self.shape} by {self.rows} x {self.columns} takes {groups}")
        bytes_, scale = (torch.int8, torch.uint8), getattr(torch, SCALE_DTYPES.get(self.scale_dtype, ""), None)
        if self.scale.dtype != scale and not (self.scale_dtype in ("e8m0", "e4m3") and self.scale.dtype == torch.uint8):
            raise ValueError(f"scale is {self.scale.dtype}; {self.scale_dtype} is kept as {scale}")
        if self.zero is not None and (self.zero.dtype not in bytes_ or f.exponent):
            raise ValueError(f"zero is {self.zero.dtype} of {f.name}; zero points are int8 or uint8, of int8, uint8, int4 and uint4 alone")
        if (self.over is not None) != (f.kind == "nv"):
            raise ValueError(f"over is {'there' if self.over is not None else 'None'}; nvfp4 has one, other formats none")
        if self.over is not None and (self.over.numel() != 1 or self.over.dtype != torch.float32):
            raise ValueError(f"over has {self.over.numel()} elements of {self.over.dtype}; it must have one, float32")
        if len({t.device for t in self._leaves() if t is not None}) > 1:
            places = ", ".join(str(t.device) for t in self._leaves() if t is not None)
            raise ValueError(f"codes, scale, zero and over are on {places}; they must be on one device")

    def _leaves(self) -> list[Tensor | None]:
        return [self.codes, self.scale, self.zero, self.over]

    def _with(self, leaves: Any) -> Quantized:
        return Quantized(*leaves, *(getattr(self, n) for n in FACTS))


def _flatten(q: Quantized) -> tuple[list[Any], Any]:
    return q._leaves(), tuple(getattr(q, n) for n in FACTS)


def _unflatten(leaves: Any, context: Any) -> Quantized:
    return Quantized(*leaves, *context)


torch.utils._pytree.register_pytree_node(Quantized, _flatten, _unflatten, serialized_type_name="rooftop.quant.Quantized")
torch.serialization.add_safe_globals([Quantized])
