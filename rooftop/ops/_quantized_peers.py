"""Other libraries' quantising and products with packed weights, at the formats that they have. torchao: its Triton kernels of fp8 by groups
and blocks, and its plain functions under torch.compile. humming and gemlite: products, of weights that they pack outside what is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def torchao() -> Callable[..., Any]:
    """Source: torchao 0.18. Its int8 scales are rounded otherwise than ours: comparable in time alone."""
    import torch
    from torchao.kernel.blockwise_quantization import fp8_blockwise_act_quant, fp8_blockwise_weight_quant
    from torchao.prototype.mx_formats.mx_tensor import to_mx
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize
    from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine, quantize_affine

    def int8(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
        scale, zero = choose_qparams_affine(x, MappingType.SYMMETRIC, (1, group), torch.int8, -127, 127, eps=2.0**-126)
        return quantize_affine(x, (1, group), scale, zero, torch.int8, -127, 127), scale

    def mx(x: Tensor, element: str) -> tuple[Tensor, Tensor]:
        dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e2m1": torch.float4_e2m1fn_x2}[element]
        scale, codes = to_mx(x, dtype, 32)
        return codes, scale

    def nv(x: Tensor, over: Tensor) -> tuple[Tensor, Tensor]:
        scale, codes = nvfp4_quantize(x, 16, over)
        return codes, scale

    made = {f.__name__: torch.compile(f, dynamic=False) for f in (int8, mx, nv)}

    def run(
        x: Tensor, over: Tensor | None, rows: int, columns: int, format: str, scales: str, symmetric: bool, rounding: str, seed: int
    ) -> Any:
        a, r, c = x.shape
        if (
            a != 1 or not symmetric or rounding != "nearest" or c % columns or not x.is_cuda
            or x.dtype not in (torch.bfloat16, torch.float32)
        ):
            raise ValueError("torchao's functions on one CUDA matrix of bfloat16 or float32, whole groups, symmetric, nearest")
        flat = x[0]
        if (format, scales, rows) == ("e4m3", "f32", 1):
            codes, scale = fp8_blockwise_act_quant(flat, columns)
        elif (format, scales) == ("e4m3", "f32") and rows == columns and r % rows == 0:
            codes, scale = fp8_blockwise_weight_quant(flat, columns)
        elif (format, scales, rows) == ("int8", "f32", 1):
            codes, scale = made["int8"](flat, columns)
        elif (scales, rows, columns) == ("e8m0", 1, 32) and format in ("e4m3", "e5m2", "e2m1"):
            codes, scale = made["mx"](flat, format)
        elif (format, scales, rows, columns) == ("e2m1", "e4m3", 1, 16) and over is not None:
            codes, scale = made["nv"](flat, over.reshape(()))
        else:
            raise ValueError("torchao has int8 and e4m3 by rows and groups, e4m3 by square blocks, mxfp8, mxfp4 and nvfp4")
        scale = scale.view(torch.uint8) if scale.element_size() == 1 else scale
        return codes.view(torch.uint8).unsqueeze(0), scale.reshape(1, -(-r // rows), -(-c // columns)), None

    return run


def _product(layer: Callable[..., Any]) -> Callable[..., Any]:
    """A peer of quantized_matmul. `layer` makes of the packed weight's parts a module that multiplies with it."""
    import torch
    from torch.utils.weak import WeakTensorKeyDictionary

    held: Any = WeakTensorKeyDictionary()

    def run(
        x: Tensor, codes: Tensor, scale: Tensor, zero: Tensor | None, x_scale: Tensor | None, bias: Tensor | None, n: int, k: int,
        group: int, format: str, scales: str,
    ) -> Any:
        if x_scale is not None or bias is not None or zero is not None or not x.is_cuda:
            raise ValueError("only symmetric weights on a GPU, without a bias and scales of rows")
        if codes not in held:
            held[codes] = layer(codes, scale, n, k, group, format, scales, x.dtype)
        with torch.no_grad():
            return held[codes](x)

    return run


def humming() -> Callable[..., Any]:
    """Source: humming-kernels 0.1.20. It quantises the weight's values anew: comparable in time alone."""
    from humming.layer import HummingLayer

    from rooftop.formats.packed import values

    def layer(codes: Tensor, scale: Tensor, n: int, k: int, group: int, format: str, scales: str, dtype: Any) -> Any:
        if not format.startswith("int") or scales == "e8m0":
            raise ValueError("humming: integers with scales of floats")
        weight = values(codes, scale, None, n, k, group, format, scales, dtype)
        config = {"dtype": format, "group_size": 0 if group == k else group}
        made = HummingLayer(shape_n=n, shape_k=k, weight_config=config, torch_dtype=dtype).to(codes.device)
        made.load_from_unquantized(weight)
        made.transform()
        return made

    return _product(layer)


def gemlite() -> Callable[..., Any]:
    """Source: gemlite 0.6."""
    from gemlite.helper import A16Wn

    from rooftop.formats.packed import rearranged, weight_format

    def layer(codes: Tensor, scale: Tensor, n: int, k: int, group: int, format: str, scales: str, dtype: Any) -> Any:
        bits = weight_format(format).bits
        if not format.startswith("int") or scales == "e8m0":
            raise ValueError("gemlite: integers with scales of floats")
        by_row = scale.transpose(1, 2).reshape(-1, scale.shape[1])[:n].to(dtype).contiguous()
        zero = by_row * 0 + (1 << (bits - 1))
        return A16Wn(device=str(codes.device), dtype=dtype).from_weights(rearranged(codes, bits, n, k), by_row, zero, bits, group)

    return _product(layer)
