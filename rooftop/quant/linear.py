"""Linear layers with quantised weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.formats.number_formats import ALIASES
from rooftop.formats.packed import FACTS, FP8, PackedWeight
from rooftop.formats.quantized import FACTS as QUANTIZED_FACTS
from rooftop.formats.quantized import Quantized
from rooftop.quant import calibrate
from rooftop.quant.layer import FLOATS, LinearLayer
from rooftop.quant.replacing import check_weight, is_linear, matrix

EIGHT = {"int8": "int8", "fp8": "e4m3"}  # activations -> the format of a weight whose product is one of 8-bit codes


class QuantLinear(LinearLayer):
    """`torch.nn.Linear` with a quantised weight: `rooftop.quantized_matmul(x, weight, bias)`.

    Gradients flow to the input and the bias; the weight consists of buffers and has none. `state_dict` contains the buffers and, as
    `_extra_state`, their description (JSON in a uint8 tensor), so that any file format for tensors can store the layer. `packed` is the
    weight as it is stored; `weight` answers as a tensor does when asked for its dtype, device or shape, and `weight = matrix` rounds that
    matrix to the nearest codes of the layer's format.

    weight       a PackedWeight, or with `activations` a Quantized [N, K] of 8 bits by rows
    bias         [N] or None. A parameter that is frozen (`requires_grad=False`) stays so. Under autocast input and bias are cast as by
                 nn.Linear
    activations  None, "int8" or "fp8": how the input is quantised, row by row"""

    def __init__(self, weight: PackedWeight | Quantized, bias: Tensor | None = None, *, activations: str | None = None) -> None:
        super().__init__()
        if activations is not None and activations not in EIGHT:
            raise ValueError(f"QuantLinear: activations is {activations!r}; accepted are None, {', '.join(map(repr, EIGHT))}")
        if not isinstance(weight, (PackedWeight, Quantized) if activations else PackedWeight):
            raise TypeError(
                f"QuantLinear: weight is a {type(weight).__name__}; it must be a PackedWeight{' or a Quantized' if activations else ''}"
            )
        weight.verify()
        if bias is not None and (not isinstance(bias, Tensor) or not bias.dtype.is_floating_point):
            raise TypeError(f"QuantLinear: bias is {_said(bias)}; it must be a tensor of a floating dtype")
        if bias is not None and tuple(bias.shape) != (weight.shape[0],):
            raise ValueError(f"QuantLinear: bias is {tuple(bias.shape)}; it must be {(weight.shape[0],)}")
        self.activations = activations
        self._take(weight)
        self.bias = _parameter(bias)

    @classmethod
    def of(
        cls, linear: nn.Module, format: str = "int4", *, group: int = 128, zero_points: bool = False, method: str = "nearest",
        hessian: Tensor | None = None, activations: str | None = None,
    ) -> QuantLinear:
        """The layer in codes. `format`, `group`, `zero_points` and `method` as `quantize_model`'s; `hessian` for "gptq"."""
        if not is_linear(linear):
            raise TypeError(f"QuantLinear.of: given a {type(linear).__name__}; it must be a torch.nn.Linear")
        check_weight(linear)
        weight = matrix(linear).detach()
        if activations is not None and activations not in EIGHT:
            raise ValueError(f"activations is {activations!r}; accepted are None, {', '.join(map(repr, EIGHT))}")
        if (
            activations is not None and EIGHT[activations] == ALIASES.get(format, format) and group == 0 and not zero_points
            and method == "nearest"
        ):
            from rooftop.ops.quantize import quantize

            calibrate.check_finite(weight)
            return cls(quantize(weight, EIGHT[activations], granularity="row"), linear.bias, activations=activations)
        if method not in calibrate.METHODS:
            raise ValueError(f"method is {method!r}; accepted are {', '.join(calibrate.METHODS)}")
        if method == "gptq":
            if hessian is None:
                raise ValueError("method 'gptq' needs the Hessian of the layer's inputs")
            packed = calibrate.gptq(weight, hessian, format, group=group, zero_points=zero_points)
        elif method == "hqq":
            packed = calibrate.hqq(weight, format, group=group)
        else:
            packed = calibrate.nearest(weight, format, group=group, zero_points=zero_points)
        return cls(packed, linear.bias, activations=activations)

    @classmethod
    def empty(cls, facts: str, bias: Tensor | None = None, device: Any = None) -> QuantLinear:
        """A layer of a given kind whose buffers hold nothing yet, to load a state into. `facts`: what `_extra_state` holds."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._read(facts)
        for name in ("codes", "scale", "zero"):
            layer.register_buffer(name, None)
        layer.bias = _parameter(bias)
        return layer

    @property
    def packed(self) -> PackedWeight | Quantized:
        """The weight in codes."""
        if "group" not in self.facts:
            return Quantized(self.codes, self.scale, self.zero, None, **self.facts)
        return PackedWeight(self.codes, self.scale, self.zero, **self.facts)

    def stored(self) -> tuple[Any, str, torch.dtype]:
        return self.packed, f"codes of {self.facts['format']} (layer.packed)", getattr(torch, self.facts["dtype"])

    def store(self, matrix: Tensor) -> None:
        if self.bias is not None and matrix.shape[0] != self.bias.shape[0]:
            raise ValueError(f"QuantLinear: weight is {tuple(matrix.shape)}; the bias has {self.bias.shape[0]} elements")
        matrix = matrix.to(self.codes.device)
        if "group" in self.facts:
            self._take(calibrate.again(matrix, PackedWeight(self.codes, self.scale, self.zero, **self.facts)))
        else:
            from rooftop.ops.quantize import quantize

            calibrate.check_finite(matrix)
            self._take(quantize(matrix, self.facts["format"], granularity="row"))

    def forward(self, input: Tensor) -> Tensor:
        from rooftop.ops.quantized_matmul import quantized_matmul

        x, bias = self.cast(input, self.bias)
        return quantized_matmul(x, self.packed, bias, activations=self.activations)

    def extra_repr(self) -> str:
        more = f", group={self.facts['group']}" if "group" in self.facts else ""
        more += f", activations={self.activations}" if self.activations else ""
        return f"{self.in_features}, {self.out_features}, format={self.facts['format']}{more}, bias={self.bias is not None}"

    def _take(self, weight: PackedWeight | Quantized) -> None:
        if isinstance(weight, Quantized):
            self.facts: dict[str, Any] = {n: getattr(weight, n) for n in QUANTIZED_FACTS}
        else:
            self.facts = {n: getattr(weight, n) for n in FACTS}
        self.out_features, self.in_features = self.facts["shape"]
        for name in ("codes", "scale", "zero"):
            self.register_buffer(name, getattr(weight, name))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantLinear:
        """Codes, scales and zero points move between devices and keep their dtypes: `model.half()` is for the rest, and for what
        `weight.dtype` says."""
        kept = {n: t for n in ("codes", "scale", "zero") if (t := self._buffers.get(n)) is not None}
        for name in kept:
            self._buffers[name] = None
        super()._apply(fn, recurse)
        as_now = fn(
            torch.empty(0, dtype=getattr(torch, self.facts["dtype"]), device=self.bias.device if self.bias is not None else "cpu")
        ).dtype
        if as_now in FLOATS:
            self.facts = {**self.facts, "dtype": str(as_now).removeprefix("torch.")}
        for name, t in kept.items():
            moved = fn(t)
            self._buffers[name] = moved if moved.dtype == t.dtype else t.to(moved.device)
        return self

    def _read(self, facts: str) -> None:
        self.facts, self.activations = _facts(facts)
        self.out_features, self.in_features = self.facts["shape"]

    def described(self) -> str:
        """What the buffers mean, as JSON."""
        return json.dumps({**self.facts, "activations": self.activations})

    def get_extra_state(self) -> Tensor:
        return torch.frombuffer(bytearray(self.described().encode()), dtype=torch.uint8).clone()

    def set_extra_state(self, state: Any) -> None:
        facts, activations = _facts(_text(state))
        self.facts, self.activations = {**facts, "dtype": self.facts["dtype"]}, activations

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Codes of another format are taken as they come, if they fit the facts that come with them and the layer's shape. ValueError where
        they do not: the layer is then as it was."""
        given = {n: state_dict[prefix + n] for n in ("codes", "scale", "zero") if prefix + n in state_dict}
        described = prefix + "_extra_state" in state_dict
        facts, activations = self.facts, self.activations
        if described:
            try:
                facts, activations = _facts(_text(state_dict[prefix + "_extra_state"]))
            except ValueError as error:
                raise ValueError(f"{prefix}_extra_state: {error}") from None
            if facts["shape"] != self.facts["shape"]:
                raise ValueError(f"{prefix}_extra_state: the weight is {facts['shape']} there; the layer's is {self.facts['shape']}")
        for name in (*given, "bias"):
            t = state_dict.get(prefix + name)
            if not isinstance(t, Tensor) and (t is not None or name in given):
                raise ValueError(f"{prefix}{name} is a {type(t).__name__}; it must be a tensor")
        bias = state_dict.get(prefix + "bias")
        if bias is not None and self.bias is not None and (tuple(bias.shape) != tuple(self.bias.shape) or not bias.dtype.is_floating_point):
            raise ValueError(f"{prefix}bias is {_said(bias)}; it must be {tuple(self.bias.shape)} of a floating dtype")
        whole = described and {"codes", "scale"} <= set(given)
        mine = {n: t for n in ("codes", "scale", "zero") if (t := self._buffers.get(n)) is not None}
        after = given if whole else {**mine, **given}
        if (given or described) and {"codes", "scale"} <= set(after):
            try:
                _fits({n: t.to("meta") for n, t in after.items()}, facts, activations)
            except ValueError as error:
                raise ValueError(f"{prefix}codes, {prefix}scale, {prefix}zero: {error}") from None
            for name in ("codes", "scale", "zero") if whole else tuple(given):
                t, old = given.get(name), mine.get(name)
                if t is not None and old is not None and (t.shape, t.dtype) == (old.shape, old.dtype):
                    continue  # loaded in place: layers that share it go on to
                self._buffers[name] = None if t is None else torch.empty_like(t, device=old.device if old is not None else t.device)
            if described:  # the dtype stays that of the model
                self.facts, self.activations = {**facts, "dtype": self.facts["dtype"]}, activations
        super()._load_from_state_dict(state_dict, prefix, *args)


def _said(t: Any) -> str:
    return f"{tuple(t.shape)} {t.dtype}" if isinstance(t, Tensor) else f"a {type(t).__name__}"


def _parameter(bias: Tensor | None) -> nn.Parameter | None:
    """A copy as a parameter: frozen if it was one that is frozen."""
    return None if bias is None else nn.Parameter(
        bias.detach().clone(), requires_grad=bias.requires_grad or not isinstance(bias, nn.Parameter)
    )


def _text(state: Any) -> str:
    if not isinstance(state, Tensor) or state.dtype != torch.uint8 or state.dim() != 1:
        raise ValueError(f"it is {_said(state)}; it must be JSON as a vector of torch.uint8")
    try:
        return bytes(state.cpu().tolist()).decode()
    except UnicodeDecodeError:
        raise ValueError("its bytes are no UTF-8; it must be JSON as a vector of torch.uint8") from None


def _facts(text: str) -> tuple[dict[str, Any], str | None]:
    """Facts and `activations` out of what `described()` made. Raises ValueError where it is something else."""
    try:
        given = json.loads(text)
    except (ValueError, TypeError):
        raise ValueError("a quantised layer's description is no JSON") from None
    names = set(given) - {"activations"} if isinstance(given, dict) and "activations" in given else None
    if names not in (set(FACTS), set(QUANTIZED_FACTS)):
        said = ", ".join(sorted(given)) or "nothing" if isinstance(given, dict) else f"a {type(given).__name__}"
        raise ValueError(
            f"a quantised layer's description names {said}; it must name activations and {', '.join(FACTS)} or {', '.join(QUANTIZED_FACTS)}"
        )
    activations = given.pop("activations")
    if activations is not None and (not isinstance(activations, str) or activations not in EIGHT):
        raise ValueError(f"activations is {activations!r}; accepted are None, {', '.join(map(repr, EIGHT))}")
    shape = given["shape"]
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and n > 0 for n in shape):
        raise ValueError(f"shape is {shape!r}; it must be [N, K], both at least 1")
    if not isinstance(given["dtype"], str) or not isinstance(getattr(torch, given["dtype"], None), torch.dtype):
        raise ValueError(f"dtype is {given['dtype']!r}; accepted are float32, float16, bfloat16")
    return {n: tuple(v) if isinstance(v, list) else v for n, v in given.items()}, activations


def _fits(tensors: Mapping[str, Tensor], facts: Mapping[str, Any], activations: str | None) -> None:
    """Raises ValueError where the buffers of a layer are not those that its facts ask for."""
    try:
        if "group" in facts:
            PackedWeight(tensors["codes"], tensors["scale"], tensors.get("zero"), **facts).verify()
            return
        if activations is None or facts["format"] != EIGHT[activations]:
            raise ValueError(
                f"activations is {activations!r} with a weight of {facts['format']}; accepted are int8 with int8, fp8 with e4m3"
            )
        Quantized(tensors["codes"], tensors["scale"], tensors.get("zero"), None, **facts).verify()
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the description does not make sense: {error}") from None
    wanted = torch.int8 if activations == "int8" else FP8["e4m3"]
    if tensors["codes"].dtype != wanted or tuple(tensors["codes"].shape) != facts["shape"]:
        raise ValueError(f"codes are {_said(tensors['codes'])}; they must be {facts['shape']} {wanted}")
