"""What `rooftop.quantize` returns: codes with their scales, and what is needed to read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from rooftop.formats.number_formats import SCALES, Format, format_of

FACTS = ("format", "shape", "dtype", "rows", "columns", "split", "scale_dtype", "seed")
TENSORS = ("codes", "scale", "zero", "over")
CODE_DTYPES = {"int8": "int8", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}  # the others: uint8
SCALE_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "e8m0": "float8_e8m0fnu", "e4m3": "float8_e4m3fn"}


@dataclass(frozen=True, eq=False)
class Quantized:
    """A tensor in codes.

        value = (decode(code) - zero) * scale, and scale * over where `over` is there

    Two are equal where they are the same object; `torch.equal` compares their tensors.

    It is a pytree node (its tensors are the leaves), goes through `torch.compile` and `torch.save`; `tensors()` and `facts()` are what
    safetensors take.

    codes        8 bits: of the shape of the tensor, int8, uint8, float8_e4m3fn or float8_e5m2. 6 and 4 bits: bytes (uint8), packed along
                 the last dimension, [..., ceil(n * bits / 8)]; rooftop/formats/number_formats.py says byte by byte how. Where groups run
                 along another dimension than the last two, those behind it are one row.
    scale        float32, float16, bfloat16, float8_e8m0fnu or float8_e4m3fn; a scalar, or one for each row, column, group or block
    zero         zero points as the codes (int8 or uint8) in the shape of `scale`; None where symmetric
    over         the tensor's scale of nvfp4, float32, one element; None for the others
    format       a name of `rooftop.quant.FORMATS`
    shape, dtype of what was quantised; dtype as torch prints it, without "torch."
    rows, columns, split   how scales are shared: dimensions before the last `split` ones are rows; a scale stands for `rows` by `columns`
                           of them
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

    def __repr__(self) -> str:
        scales = f"{tuple(self.scale.shape)} of {self.scale_dtype}"
        return f"Quantized({self.format}, {self.dtype} {self.shape}, scales {scales}, {self.nbytes:,} bytes on {self.device})"

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The values, in the dtype that was quantised or another floating one."""
        import rooftop

        return rooftop.dequantize(self, dtype)

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
        try:
            given = json.loads(facts["rooftop.quantized"])
        except (TypeError, ValueError) as e:
            raise ValueError(f"facts['rooftop.quantized'] is {facts['rooftop.quantized']!r}; it must be JSON, as facts() gives it") from e
        if not isinstance(given, dict) or set(given) != set(FACTS):
            raise ValueError(
                f"facts name {', '.join(sorted(given)) if isinstance(given, dict) else repr(given)}; they must name {', '.join(FACTS)}"
            )
        for name in ("shape", "split"):
            if not isinstance(given[name], list):
                raise ValueError(f"{name} is {given[name]!r}; it must be a list of whole numbers")
            given[name] = tuple(given[name])
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
        """Raises ValueError where codes, scales or zero points do not have the sizes, dtypes and device that the shape and the format ask
        for."""
        self._verify_facts()
        f, rank = self.kind, len(self.shape)
        a, r = self.split
        if not 0 <= a <= r <= rank or min((*self.shape, 0)) < 0 or min(self.rows, self.columns) < 1:
            given = f"shape {self.shape}, split {self.split}, rows {self.rows}, columns {self.columns}"
            raise ValueError(f"{given}: a split lies in order within the dimensions, rows and columns are at least 1")
        if self.scale_dtype not in SCALES or (f.group and self.scale_dtype != f.scale):
            raise ValueError(f"scale_dtype is {self.scale_dtype!r}; accepted for {f.name} are {f.scale if f.group else ', '.join(SCALES)}")
        if f.group and sorted((self.rows, self.columns)) != [1, f.group]:
            raise ValueError(f"rows are {self.rows} and columns {self.columns}; {f.name} has groups of {f.group}")
        if self.dtype not in ("float32", "float16", "bfloat16"):
            raise ValueError(f"dtype is {self.dtype!r}; accepted are float32, float16, bfloat16")
        outer, tall, wide = self.geometry
        groups = outer * -(-tall // max(self.rows, 1)) * -(-wide // max(self.columns, 1))
        if self.codes.element_size() != 1 or self.codes.numel() != outer * tall * f.bytes(wide):
            raise ValueError(
                f"codes are {tuple(self.codes.shape)} {self.codes.dtype}; {f.name} of {self.shape} takes {outer * tall} rows of "
                f"{f.bytes(wide)} bytes"
            )
        wanted = self.shape if f.bits == 8 else (*self.shape[:r], f.bytes(wide))
        if (
            tuple(self.codes.shape) != tuple(wanted)
            or self.codes.dtype not in (torch.uint8, getattr(torch, CODE_DTYPES.get(f.element, "uint8")))
        ):
            kept = CODE_DTYPES.get(f.element, "uint8")
            raise ValueError(
                f"codes are {tuple(self.codes.shape)} {self.codes.dtype}; {f.name} of {self.shape} takes {tuple(wanted)} torch.{kept}"
            )
        down = self.shape[a:r] if self.rows == 1 else (-(-tall // self.rows),)
        across = self.shape[r:] if self.columns == 1 else (-(-wide // self.columns),)
        shared = tuple(n for n in (*self.shape[:a], *down, *across) if n != 1)
        for name, t in (("scale", self.scale), ("zero", self.zero)):
            if t is not None and t.numel() != groups:
                raise ValueError(f"{name} has {t.numel()} elements; {self.shape} by {self.rows} x {self.columns} takes {groups}")
            if t is not None and groups and tuple(n for n in t.shape if n != 1) != shared:
                raise ValueError(
                    f"{name} has shape {tuple(t.shape)}; {self.shape} by {self.rows} x {self.columns} takes {shared}, ones left out"
                )
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

    def _verify_facts(self) -> None:
        """Raises ValueError for facts and tensors of another kind than the class says."""
        whole = (int, torch.SymInt)
        for name in ("shape", "split"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(n, whole) and not isinstance(n, bool) for n in value):
                raise ValueError(f"{name} is {value!r}; it must be a tuple of whole numbers")
        if len(self.split) != 2:
            raise ValueError(f"split is {self.split}; it must be two whole numbers")
        for name in ("rows", "columns", "seed"):
            value = getattr(self, name)
            if (not isinstance(value, whole) or isinstance(value, bool)) and not (name == "seed" and value is None):
                raise ValueError(f"{name} is {value!r}; it must be a whole number{' or None' if name == 'seed' else ''}")
        for name in ("format", "dtype", "scale_dtype"):
            if not isinstance(value := getattr(self, name), str):
                raise ValueError(f"{name} is {value!r}; it must be a name")
        for name, t in zip(TENSORS, self._leaves(), strict=True):
            if not isinstance(t, torch.Tensor) and not (t is None and name in ("zero", "over")):
                raise ValueError(f"{name} is a {type(t).__name__}; it must be a tensor{' or None' if name in ('zero', 'over') else ''}")

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
