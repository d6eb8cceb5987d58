"""Saving and loading of quantised models, and import of checkpoints in GPTQ, AWQ and HQQ layouts as packed weights.

    GPTQ  qweight int32 [K / P, N], P = 32 / bits codes of a column a word, lowest bits first; qzeros int32 [K / group, N / P] along N,
          stored less 1 in version 1; scales [K / group, N]; g_idx [K], the group of each row
    AWQ   qweight int32 [K, N / 8], qzeros int32 [K / group, N / 8], 4 bits: nibble i of a word is column 8 j + (0, 2, 4, 6, 1, 3, 5, 7)[i];
          scales [K / group, N]
    HQQ   W_q uint8: the rows [N K / group, group] of groups, in 4 bits the first half of the rows in the high nibbles, in 2 bits by
          quarters; scale and zero [N K / group, 1], floats; axis 1

Sources: github.com/AutoGPTQ/AutoGPTQ, github.com/casper-hansen/AutoAWQ, github.com/mobiusml/hqq, as of 2025."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.formats.packed import PackedWeight, pack_codes
from rooftop.quant import experts
from rooftop.quant.linear import QuantLinear
from rooftop.quant.replacing import is_linear, replaced, sizes, take_over
from rooftop.quant.safetensors_file import load_file, save_file

KEY = "rooftop.quantised_layers"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def save_quantized(model: nn.Module, path: str | Path) -> None:
    """The state of a model with `QuantLinear` layers as a safetensors file. Tensors that are shared are written once for each name.

    Raises TypeError for a state that is no tensor or of a dtype that the file format does not have, ValueError for a tensor on the meta
    device; no file is written then."""
    _check_model("save_quantized", model)
    facts = {n: m.described() for n, m in model.named_modules(remove_duplicate=False) if isinstance(m, QuantLinear)}
    state = model.state_dict()
    for name, t in state.items():
        if not isinstance(t, Tensor):
            raise TypeError(f"save_quantized: {name} is a {type(t).__name__}; a safetensors file holds tensors alone")
        if t.device.type == "meta":
            raise ValueError(f"save_quantized: {name} is on the meta device and has no values")
    save_file(state, path, {KEY: json.dumps(facts)})


def _key(name: str, key: str) -> str:
    """The name of a layer's tensor in a state dict. The model itself has no name."""
    return f"{name}.{key}" if name else key


def _as(present: nn.Module, layer: QuantLinear) -> QuantLinear:
    """In training or not, its bias frozen or not and of that dtype, with the hooks of the layer whose place it takes."""
    layer.facts = {**layer.facts, "dtype": str(present.weight.dtype).removeprefix("torch.")}
    if isinstance(present.bias, Tensor) and layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.detach().to(present.bias.dtype), requires_grad=present.bias.requires_grad)
    take_over(layer, present)
    return layer


def _check_model(what: str, model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{what}: model is a {type(model).__name__}; it must be a torch.nn.Module")


def load_quantized(model: nn.Module, path: str | Path, device: Any = "cpu") -> nn.Module:
    """Load a file of `save_quantized` into a model (with ordinary linear layers, as its class creates it), in place. Returns the model; if
    it is itself a linear layer, the `QuantLinear` that takes its place. Layers that are one in the model, or have one weight there, are so
    again. As in `load_state_dict`, tensors take the dtypes of the model (codes and scales keep theirs); those on the meta device are
    created on `device`.

    Raises ValueError if the file is truncated, not such a file, or of another model, and names the layer or the tensor; the model is then
    unchanged."""
    _check_model("load_quantized", model)
    tensors, metadata = load_file(path, device)
    if KEY not in metadata:
        raise ValueError(f"{path}: its metadata has {', '.join(metadata) or 'nothing'}; a file of save_quantized has {KEY!r}")
    made: dict[int, QuantLinear] = {}
    first: dict[int, str] = {}  # the name of each of them
    weights: dict[int, list[QuantLinear]] = {}  # by the tensor that is their weight in the model
    modules = dict(model.named_modules(remove_duplicate=False))
    try:
        described = json.loads(metadata[KEY]).items()
    except (ValueError, AttributeError):
        raise ValueError(f"{path}: its metadata {KEY!r} is {metadata[KEY][:80]!r}; it must be JSON, a description for each layer") from None
    mixtures: dict[str, dict[str, QuantLinear]] = {}
    for name, facts in described:
        if mixture := experts.in_place(model, name):
            layer = _stored(facts, None, name, tensors, path)
            if (layer.out_features, layer.in_features) != experts.whole(*mixture):
                given = (layer.out_features, layer.in_features)
                raise ValueError(f"{path}: {name} is {given} there, the model's is {experts.whole(*mixture)}")
            layer.facts = {**layer.facts, "dtype": str(mixture[0]._parameters[mixture[1]].dtype).removeprefix("torch.")}
            mixtures.setdefault(name.rpartition(".")[0], {})[mixture[1]] = layer
            continue
        present = modules.get(name)
        if present is None or not (is_linear(present) or isinstance(present, QuantLinear)):
            raise ValueError(
                f"{path}: layer {name} is quantised there; the model has "
                f"{'none of that name' if present is None else type(present).__name__}"
            )
        bias = tensors.get(_key(name, "bias"))
        layer = _stored(facts, bias, name, tensors, path)
        if (bias is None) != (present.bias is None):
            there, here = ("no bias", "one") if bias is None else ("a bias", "none")
            raise ValueError(f"{path}: {_key(name, 'bias')}: the layer has {there} in the file, and {here} in the model")
        if (layer.out_features, layer.in_features) != sizes(present):
            raise ValueError(f"{path}: {name} is {(layer.out_features, layer.in_features)} there, the model's is {sizes(present)}")
        if id(present) in made:
            if not all(
                _same(tensors, _key(first[id(present)], key), _key(name, key)) for key in ("codes", "scale", "zero", "bias", "_extra_state")
            ):
                raise ValueError(f"{path}: {first[id(present)]} and {name} differ there; they are one layer in the model")
            continue
        made[id(present)], first[id(present)] = _as(present, layer), name
        weights.setdefault(id(present.codes if isinstance(present, QuantLinear) else present.weight), []).append(layer)
    replacing: dict[int, nn.Module] = dict(made)
    for name, layers in mixtures.items():
        holder = modules[name]
        if missing := experts.lacking(holder, layers):
            raise ValueError(f"{path}: experts {name} lack {missing}")
        if id(holder) not in replacing:
            replacing[id(holder)] = experts.QuantExperts(holder, layers)
            take_over(replacing[id(holder)], holder)
    try:
        with replaced(model, replacing) as result:
            _created(result, tensors, device)
            result.load_state_dict(tensors, strict=True)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    for together in weights.values():
        one = together[0]
        for other in together[1:]:
            if other.facts == one.facts and all(_equal(one._buffers[n], other._buffers[n]) for n in ("codes", "scale", "zero")):
                other._buffers.update({n: one._buffers[n] for n in ("codes", "scale", "zero")})
    return result


def _stored(facts: str, bias: Tensor | None, name: str, tensors: Mapping[str, Tensor], path: str | Path) -> QuantLinear:
    """A layer of these facts, to load into. Raises ValueError where they are none, or codes or scales are not in the file."""
    try:
        layer = QuantLinear.empty(facts, bias)
    except ValueError as error:
        raise ValueError(f"{path}: {name}: {error}") from None
    if not {_key(name, "codes"), _key(name, "scale")} <= set(tensors):
        raise ValueError(f"{path}: {name} lacks its codes or scales")
    return layer


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return (a is None) == (b is None) and (a is None or b is None or (a.dtype == b.dtype and torch.equal(_bytes(a), _bytes(b))))


def _bytes(t: Tensor) -> Tensor:
    return t.detach().contiguous().view(torch.uint8)


def _same(tensors: Mapping[str, Tensor], a: str, b: str) -> bool:
    return _equal(tensors.get(a), tensors.get(b))


def _created(model: nn.Module, tensors: Mapping[str, Tensor], device: Any) -> None:
    """Parameters and buffers on the meta device get memory, to load into. Raises ValueError for one that the file does not have."""
    made: dict[int, Any] = {}
    for place, module in model.named_modules(remove_duplicate=False):
        for held in (module._parameters, module._buffers):
            for name, t in held.items():
                if t is None or t.device.type != "meta":
                    continue
                if _key(place, name) not in tensors and id(t) not in made:
                    raise ValueError(f"{_key(place, name)} is on the meta device, and the file has no values for it")
                if id(t) not in made:
                    empty = torch.empty_like(t, device=device)
                    made[id(t)] = nn.Parameter(empty, requires_grad=t.requires_grad) if isinstance(t, nn.Parameter) else empty
                held[name] = made[id(t)]


def _words(t: Tensor, what: str, bits: int) -> Tensor:
    """int32 words as codes along a new last dimension, lowest bits first."""
    if not isinstance(t, Tensor) or t.dtype != torch.int32 or t.dim() != 2:
        given = f"{tuple(t.shape)} {t.dtype}" if isinstance(t, Tensor) else type(t).__name__
        raise ValueError(f"{what} is {given}; it must be a matrix of torch.int32")
    shift = torch.arange(0, 32, bits, dtype=torch.int32, device=t.device)
    return ((t[..., None] >> shift) & ((1 << bits) - 1)).to(torch.uint8)


def _bits(bits: int, accepted: tuple[int, ...], what: str) -> None:
    if bits not in accepted:
        raise ValueError(f"{what}: bits is {bits!r}; accepted are {', '.join(map(str, accepted))}")


def _scales(scales: Tensor, zeros: Tensor, groups: int, n: int, what: str) -> None:
    if (
        not isinstance(scales, Tensor) or scales.dtype not in (torch.float16, torch.bfloat16, torch.float32)
        or tuple(scales.shape) != (groups, n)
    ):
        given = f"{tuple(scales.shape)} {scales.dtype}" if isinstance(scales, Tensor) else type(scales).__name__
        raise ValueError(f"{what}: scales are {given}; they must be floats {(groups, n)}")
    if tuple(zeros.shape) != (groups, n):
        raise ValueError(f"{what}: qzeros hold {tuple(zeros.shape)} zero points; scales are {(groups, n)}")


def from_gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor | None = None, *, bits: int = 4, version: int = 1
) -> PackedWeight:
    """A layer of a GPTQ checkpoint. version 1 (most files) stores zero points minus 1, version 2 stores them unchanged.

    Raises ValueError for bits other than 2, 4 and 8, tensors that do not match, groups that no kernel supports, and `g_idx` that is not in
    order: groups of columns sorted by activation order (desc_act) are not contiguous."""
    _bits(bits, (2, 4, 8), "GPTQ")
    if version not in (1, 2):
        raise ValueError(f"GPTQ: version is {version!r}; accepted are 1 and 2")
    codes = _words(qweight, "GPTQ: qweight", bits).permute(1, 0, 2).flatten(1)  # [N, K]
    n, k = codes.shape
    zeros = _words(qzeros, "GPTQ: qzeros", bits).flatten(1)
    groups = scales.shape[0] if isinstance(scales, Tensor) and scales.dim() == 2 else 0
    if groups == 0 or k % groups:
        raise ValueError(f"GPTQ: qweight holds K = {k}; scales have {groups} groups, which do not divide it")
    _scales(scales, zeros, groups, n, "GPTQ")
    if g_idx is not None and g_idx.numel() != k:
        raise ValueError(f"GPTQ: g_idx has {g_idx.numel()} elements; qweight holds K = {k}")
    if g_idx is not None and not torch.equal(g_idx.to(torch.int64).cpu(), torch.arange(k) // (k // groups)):
        raise ValueError(
            "GPTQ: g_idx is not k // group: the columns are in activation order (desc_act); quantise with desc_act=False, or with one group"
        )
    zero = (zeros + 1) & ((1 << bits) - 1) if version == 1 else zeros  # as AutoGPTQ's kernels: what leaves the range begins anew
    return pack_codes(
        codes.contiguous(), scales.t().contiguous(), zero.t().contiguous(), format=f"int{bits}", group=k // groups, dtype=scales.dtype
    )


def from_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> PackedWeight:
    """A layer of an AWQ checkpoint ("gemm" layout, 4 bits). Raises ValueError for tensors that do not match and groups that no kernel
    supports."""
    place = torch.tensor(AWQ_ORDER).argsort()
    codes = _words(qweight, "AWQ: qweight", 4)[..., place.to(qweight.device)].flatten(1).t()  # [N, K]
    n, k = codes.shape
    zeros = _words(qzeros, "AWQ: qzeros", 4)[..., place.to(qzeros.device)].flatten(1)
    groups = scales.shape[0] if isinstance(scales, Tensor) and scales.dim() == 2 else 0
    if groups == 0 or k % groups:
        raise ValueError(f"AWQ: qweight holds K = {k}; scales have {groups} groups, which do not divide it")
    _scales(scales, zeros, groups, n, "AWQ")
    return pack_codes(
        codes.contiguous(), scales.t().contiguous(), zeros.t().contiguous(), format="int4", group=k // groups, dtype=scales.dtype
    )


def from_hqq(
    w_q: Tensor, scale: Tensor, zero: Tensor, *, shape: tuple[int, int], bits: int = 4, group: int = 64, axis: int = 1
) -> PackedWeight:
    """A layer of an HQQ checkpoint: `shape` (N, K), `group_size`, `axis` and bits are in its meta. Zero points stay real numbers.

    Raises ValueError for bits other than 2, 4 and 8, axis 0 (groups down the columns) and tensors that do not fit."""
    _bits(bits, (2, 4, 8), "HQQ")
    if axis != 1:
        raise ValueError(f"HQQ: axis is {axis!r}; accepted is 1, groups along K: quantise with axis=1")
    n, k = shape
    if group < 1 or k % group:
        raise ValueError(f"HQQ: group is {group}, which does not divide K = {k}")
    per = 8 // bits
    rows = n * k // group
    if not isinstance(w_q, Tensor) or w_q.dtype != torch.uint8 or w_q.numel() * per != n * k or rows % per:
        given = f"{tuple(w_q.shape)} {w_q.dtype}" if isinstance(w_q, Tensor) else type(w_q).__name__
        raise ValueError(f"HQQ: W_q is {given}; {n} x {k} codes of {bits} bits are {n * k // per} torch.uint8")
    stacked = w_q.reshape(rows // per, group)
    codes = torch.cat([(stacked >> (8 - bits * (i + 1))) & ((1 << bits) - 1) for i in range(per)]).reshape(n, k)
    for name, t in (("scale", scale), ("zero", zero)):
        if not isinstance(t, Tensor) or t.numel() != rows or not t.dtype.is_floating_point:
            given = f"{tuple(t.shape)} {t.dtype}" if isinstance(t, Tensor) else type(t).__name__
            raise ValueError(f"HQQ: {name} is {given}; it must be {rows} floats, one a group")
    return pack_codes(codes, scale.reshape(n, -1), zero.to(scale.dtype).reshape(n, -1), format=f"int{bits}", group=group, dtype=scale.dtype)


def import_checkpoint(model: nn.Module, tensors: Mapping[str, Tensor], layout: str, *, bits: int = 4, version: int = 1) -> nn.Module:
    """Replace the linear layers for which `tensors` (a state dict) has a GPTQ or AWQ form, in place; the other tensors are loaded as
    ordinary state.

    layout: "gptq" or "awq". Returns the model; if it is itself a linear layer, the `QuantLinear` that takes its place. Raises ValueError if
    no layer has that layout, a shape differs, a tensor is missing (the bias of a layer that has one, too), or names are left over;
    TypeError for a tensor of another dtype. The model is unchanged then. A tied parameter may be there under one of its names."""
    if layout not in ("gptq", "awq"):
        raise ValueError(f"layout is {layout!r}; accepted are 'gptq' and 'awq'")
    _check_model("import_checkpoint", model)
    modules, left = dict(model.named_modules(remove_duplicate=False)), dict(tensors)
    made: dict[int, QuantLinear] = {}
    weights: dict[int, PackedWeight] = {}  # by the tensor that is their weight in the model
    first: dict[int, str] = {}  # the name of each of them
    for name in [n.removesuffix("qweight").removesuffix(".") for n in tensors if n == "qweight" or n.endswith(".qweight")]:
        present = modules.get(name)
        said = name or "the layer"
        if present is None or not is_linear(present):
            raise ValueError(
                f"{said} is quantised in the checkpoint; the model has {'none of that name' if present is None else type(present).__name__}"
            )
        part = {key: left.pop(_key(name, key)) for key in ("qweight", "qzeros", "scales", "g_idx", "bias") if _key(name, key) in left}
        if missing := {"qweight", "qzeros", "scales", *(("bias",) if present.bias is not None else ())} - set(part):
            raise ValueError(f"{said} lacks {', '.join(sorted(missing))}: the checkpoint is truncated or of another layout")
        try:
            if layout == "gptq":
                packed = from_gptq(part["qweight"], part["qzeros"], part["scales"], part.get("g_idx"), bits=bits, version=version)
            else:
                packed = from_awq(part["qweight"], part["qzeros"], part["scales"])
        except (TypeError, ValueError) as error:
            raise type(error)(f"{said}: {error}") from None
        if packed.shape != sizes(present):
            raise ValueError(f"{said} is {packed.shape} by the {layout} layout; the model's is {sizes(present)}")
        shared = weights.setdefault(id(present.weight), packed)
        if _alike(shared, packed):
            packed = shared
        elif id(present) in made:
            raise ValueError(f"{first[id(present)]} and {said} differ in the checkpoint; they are one layer in the model")
        first.setdefault(id(present), said)
        try:
            made[id(present)] = _as(present, QuantLinear(packed, part.get("bias")))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{said}: {error}") from None
    if not made:
        raise ValueError(
            f"no tensor's name ends in .qweight, as the {layout} layout has it; there are {', '.join(list(tensors)[:4]) or 'none'}"
        )
    own = model.state_dict()
    quantised = {_key(n, "") for n, m in modules.items() if id(m) in made or isinstance(m, QuantLinear)}
    wanted = {n for n in own if not any(n.startswith(q) for q in quantised)}
    kept = {n: id(p) for n, p in model.named_parameters(remove_duplicate=False)}
    present_too = {kept[n] for n in left if n in kept}
    wanted -= {n for n in wanted - set(left) if kept.get(n) in present_too}  # a tied parameter under another name
    if wrong := wanted ^ set(left):
        raise ValueError(f"checkpoint and model differ in {', '.join(sorted(wrong)[:6])}")
    for name in sorted(wanted):
        if isinstance(own[name], Tensor) and not isinstance(left[name], Tensor):
            raise ValueError(f"{name} is a {type(left[name]).__name__} in the checkpoint; the model's is a tensor")
        if isinstance(own[name], Tensor) and tuple(left[name].shape) != tuple(own[name].shape):
            raise ValueError(f"{name} is {tuple(left[name].shape)} in the checkpoint; the model's is {tuple(own[name].shape)}")
    with replaced(model, made) as result:
        result.load_state_dict(left, strict=False)
    return result


def _alike(a: PackedWeight, b: PackedWeight) -> bool:
    return a is b or (a.facts() == b.facts() and all(_equal(x, y) for x, y in zip(a._leaves(), b._leaves(), strict=True)))
