"""What the layers that take the place of `torch.nn.Linear` have in common: to models and frameworks they are `nn.Linear`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class Weight:
    """Stands for the weight [out_features, in_features] of a layer that stores no matrix. It answers what models ask of a weight (`dtype`,
    `device`, `shape`, `size()`, `dim()`, `numel()`, `requires_grad`), and `dequantize()` computes the matrix. All else that a tensor can do
    raises an error that says so; other names (`codes`, `format`, `layout`, ...) are those of what is stored."""

    requires_grad = False
    grad = None
    is_leaf = True

    def __init__(self, layer: str, said: str, stored: Any, dtype: torch.dtype) -> None:
        self.stored, self.dtype = stored, dtype
        self.device, self.shape = stored.device, torch.Size(stored.shape)
        self.ndim, self.nbytes = len(self.shape), stored.nbytes
        remedy = "call the layer, or take the matrix layer.weight.dequantize()"
        self._refusal = (
            f"{layer}.weight {tuple(self.shape)} is stored as {said}, not as a matrix: {remedy}, or leave the layer out of the conversion"
        )

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    def numel(self) -> int:
        return self.shape.numel()

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        return False

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The matrix, of the layer's dtype or another floating one."""
        found = self.stored.dequantize(dtype or self.dtype) if hasattr(self.stored, "dequantize") else self.stored.to_dense()
        return found.to(dtype or self.dtype)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        found = next((a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(a, Weight)), None)
        raise TypeError(
            f"{getattr(function, '__name__', function)}: {found._refusal if found is not None else 'a weight that is no matrix'}"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "stored" not in vars(self) or (hasattr(Tensor, name) and name != "values"):
            raise AttributeError(f"{name}: {vars(self).get('_refusal', 'a weight that is no matrix')}")
        return getattr(self.stored, name)

    def __repr__(self) -> str:
        return f"Weight({self._refusal})"


def _refuse(name: str) -> Callable[..., NoReturn]:
    def run(self: Weight, *args: Any) -> NoReturn:
        raise TypeError(f"{name}: {self._refusal}")

    return run


OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "matmul", "rmatmul", "neg", "pow", "getitem", "setitem", "iter",
    "len"
)
for _name in (*OPERATORS, "array"):
    setattr(Weight, f"__{_name}__", _refuse(_name))


class LinearLayer(nn.Linear):  # type: ignore[misc]
    """`torch.nn.Linear` with another product: `isinstance`, `in_features`, `out_features`, `weight` and `bias` are as there. A subclass
    that stores no matrix says in `stored` what it stores instead; its `weight` is then a `Weight`, and `layer.weight = matrix` stores that
    matrix in the layer's format.

    Under autocast `cast` gives input, weight and bias the dtype in which `nn.Linear` would multiply."""

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def stored(self) -> tuple[Any, str, torch.dtype] | None:
        """What takes the place of the matrix, how an error names it, and the dtype that the weight has for others. None where `weight` is a
        parameter."""
        return None

    def store(self, matrix: Tensor) -> None:
        """Take a matrix as the weight. Raises ValueError where it does not fit."""
        raise NotImplementedError

    @property
    def weight(self) -> Any:
        found = self.stored()
        if found is None:
            return self._parameters.get("weight")
        return Weight(type(self).__name__, found[1], found[0], found[2])

    @weight.setter
    def weight(self, matrix: Any) -> None:
        self._set_weight(matrix)

    def register_parameter(self, name: str, param: Any) -> None:
        if name == "weight":
            self._set_weight(param)
        else:
            super().register_parameter(name, param)

    def _set_weight(self, matrix: Any) -> None:
        if self.stored() is None:
            if matrix is not None and not isinstance(matrix, nn.Parameter):
                raise TypeError(f"{type(self).__name__}: weight is a {type(matrix).__name__}; it must be a torch.nn.Parameter")
            self._parameters["weight"] = matrix
            return
        what = type(self).__name__
        if not isinstance(matrix, Tensor) or matrix.dim() != 2 or matrix.shape[1] != self.in_features or matrix.dtype not in FLOATS:
            given = f"{tuple(matrix.shape)} {matrix.dtype}" if isinstance(matrix, Tensor) else f"a {type(matrix).__name__}"
            raise ValueError(f"{what}: weight is {given}; it must be a matrix [N, {self.in_features}] of {', '.join(map(str, FLOATS))}")
        if matrix.device.type == "meta":
            raise ValueError(f"{what}: weight is on the meta device and has no values; load the model first")
        with torch.no_grad():
            self.store(matrix.detach())

    def reset_parameters(self) -> None:
        found = self.stored()
        raise TypeError(
            f"{type(self).__name__}: a weight stored as {found[1] if found else 'it is'} cannot be drawn anew; set layer.weight to a matrix"
        )

    @staticmethod
    def cast(x: Any, *others: Tensor | None) -> tuple[Any, ...]:
        """Input, weight and bias as they are, or under autocast in its dtype."""
        if not isinstance(x, Tensor) or x.device.type == "meta" or x.dtype not in FLOATS or not torch.is_autocast_enabled(x.device.type):
            return (x, *others)
        kind = torch.get_autocast_dtype(x.device.type)
        return tuple(t.to(kind) if t is not None and t.dtype in FLOATS else t for t in (x, *others))

    def __getstate__(self) -> dict[str, Any]:
        """Buffers of float8 as bytes, which pickle can read back."""
        state = dict(vars(self))
        held = {n: t for n, t in self._buffers.items() if t is not None and t.dtype.is_floating_point and t.dtype.itemsize == 1}
        if held:
            state["_buffers"] = {n: t.view(torch.uint8) if n in held else t for n, t in self._buffers.items()}
            state["_float8"] = {n: t.dtype for n, t in held.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        kinds = state.pop("_float8", {})
        super().__setstate__(state)
        for name, kind in kinds.items():
            self._buffers[name] = self._buffers[name].view(kind)
