"""What `rooftop.patch(model)` does: an instance of a model gets the functions of this package, where a trial says that they compute the
same."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from torch import nn

from rooftop.drop_in import gates, linears, losses, mixtures, norms, residuals, rotations
from rooftop.drop_in.swapping import Swap, buried, remaking, restore, swap, swap_of, swapped_class

PARTS = ("attention", "rms_norm", "layer_norm", "rope", "mlp", "activation", "fused_linear_cross_entropy", "experts", "residual", "linear")
ASKED_FOR = ("residual", "linear")  # replaced only where a call says so
ALIASES = {"swiglu": "mlp", "geglu": "mlp", "gelu": "activation", "cross_entropy": "fused_linear_cross_entropy"}
# what a compiler does at least as well, where it may fuse it with its neighbours
DECOMPOSED = ("activation", "rms_norm", "layer_norm", "mlp", "residual")
STATE = "_rooftop"  # an attribute of a patched model: what its configuration said before
NAME = "rooftop"  # of the attention and the experts function


@dataclass(frozen=True)
class Row:
    """What was done for a part: `what`, how often; without a reason it was replaced, with one it was left."""

    part: str
    what: str
    count: int
    why: str = ""


@dataclass
class Report:
    """What `patch` has replaced, and what not and why: ``print(report)``. As a context manager it restores the model at the end of its
    block."""

    model: nn.Module = field(repr=False)
    rows: list[Row]

    @property
    def replaced(self) -> dict[str, int]:
        """How many modules of each part were replaced."""
        found: Counter[str] = Counter()
        for row in self.rows:
            if not row.why:
                found[row.part] += row.count
        return dict(found)

    @property
    def left(self) -> list[Row]:
        return [row for row in self.rows if row.why]

    def __str__(self) -> str:
        lines = [
            (r.part, r.what, str(r.count), r.why and f"left: {r.why}")
            for r in sorted(self.rows, key=lambda r: (bool(r.why), PARTS.index(r.part)))
        ]
        table = [("part", "of", "times", ""), *lines]
        widths = [max(len(line[i]) for line in table) for i in range(3)]
        return "\n".join(f"{a:{widths[0]}s}  {b:{widths[1]}s}  {c:>{widths[2]}s}  {d}".rstrip() for a, b, c, d in table)

    def __enter__(self) -> nn.Module:
        return self.model

    def __exit__(self, *_: Any) -> None:
        if is_patched(self.model):
            unpatch(self.model)


@remaking
def remade(how: Swap) -> Any:
    """An empty module, for copies and pickles. Where they are read, the parts are known once this file is imported, and Transformers is
    told."""
    if issubclass(how.base, _models_of_transformers()):
        _register()
    cls: Any = swapped_class(how)
    return cls.__new__(cls)


def _models_of_transformers() -> tuple[type, ...]:
    try:
        from transformers import PreTrainedModel
    except ImportError:
        return ()
    return (PreTrainedModel,)


def _register() -> None:
    """Tell Transformers of our functions, unless the caller has, with options of their own."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from rooftop.drop_in.transformers import register_transformers

    if NAME not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        register_transformers(NAME)
    mixtures.register_experts(NAME)


def is_patched(model: nn.Module) -> bool:
    return any(swap_of(m) is not None or buried(m) for m in model.modules())


def wanted(parts: Mapping[str, Any]) -> list[str]:
    """The parts that are asked for. Raises TypeError for others."""
    found = {n: n not in ASKED_FOR for n in PARTS}
    for name, value in parts.items():
        if name not in found and name not in ALIASES:
            raise TypeError(f"patch: {name!r} is no part; there are {', '.join((*PARTS, *ALIASES))}")
        if not isinstance(value, bool):
            raise TypeError(f"patch: {name} is {value!r}; it must be True or False")
        found[ALIASES.get(name, name)] = value
    return [n for n, on in found.items() if on]


def apply(
    model: nn.Module, parts: Mapping[str, Any], *, check: bool = True, memory: str = "fast", decompose: Sequence[str] | None = None
) -> Report:
    """What `rooftop.patch` does; `parts`: by name or alias, those that are not there are asked for, but for those of ASKED_FOR."""
    asked = wanted(parts)
    if not isinstance(check, bool):
        raise TypeError(f"patch: check is {check!r}; it must be True or False")
    if unknown := [n for n in decompose or () if n not in PARTS]:
        raise TypeError(f"patch: decompose has {unknown[0]!r}; there are {', '.join(PARTS)}")
    if memory not in ("fast", "small"):
        raise ValueError(f"patch: memory is {memory!r}; it must be 'fast' or 'small'")
    _check_model(model)
    rows: list[Row] = []
    try:
        _Patch(model, set(asked), check, memory, decompose, rows).run()
        if not any(not row.why for row in rows):
            said = "; ".join(f"{r.part} of {r.what}: {r.why}" for r in rows[:4]) or f"it has no {', '.join(asked) or 'parts'}"
            raise ValueError(f"patch: nothing of {type(model).__name__} can be replaced ({said})")
    except BaseException:
        _restore(model)
        raise
    return Report(model, rows)


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"patch: model is a {type(model).__name__}; it must be a torch.nn.Module")
    if is_patched(model):
        raise ValueError(f"patch: {type(model).__name__} is patched already; rooftop.unpatch(model) first")
    for module in model.modules():
        if any(c.__name__ in ("FSDPModule", "FullyShardedDataParallel") for c in type(module).__mro__):
            raise ValueError(f"patch: {type(module).__name__} is wrapped by FSDP; patch the model before it is wrapped")
    for name, p in model.named_parameters():
        if p.device.type == "meta":
            raise ValueError(f"patch: {name} is on the meta device and has no values; load the model first")


def unpatch(model: nn.Module) -> nn.Module:
    """Undo `patch`, in a copy or an unpickled model too: classes and configuration are as before. Returns `model`.

    Raises ValueError for a model that is not patched, or was wrapped by FSDP since."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"unpatch: model is a {type(model).__name__}; it must be a torch.nn.Module")
    if not is_patched(model):
        raise ValueError(f"unpatch: {type(model).__name__} is not patched")
    if any(buried(m) for m in model.modules()):
        raise ValueError(f"unpatch: {type(model).__name__} was wrapped by FSDP after it was patched; unpatch it before")
    _restore(model)
    return model


def _restore(model: nn.Module) -> None:
    for module in list(model.modules()):
        if (before := vars(module).pop(STATE, None)) is not None:
            _implementations(module, before)
        restore(module)


def _implementations(model: Any, named: Mapping[str, Mapping[str, Any]]) -> None:
    """Set the attention and experts functions of a model's configuration, part by part."""
    for name, values in named.items():
        for key, value in values.items():
            config = model.config if not key else getattr(model.config, key)
            setattr(config, name, value)


def _said(model: Any, name: str) -> dict[str, Any]:
    parts = {"": model.config, **{k: getattr(model.config, k, None) for k in getattr(model.config, "sub_configs", {})}}
    return {k: getattr(c, name, None) for k, c in parts.items() if c is not None}


def pretrained(model: nn.Module) -> list[Any]:
    """The outermost models of Transformers in a module."""
    kinds = _models_of_transformers()
    found: list[Any] = []

    def walk(module: nn.Module) -> None:
        if isinstance(module, kinds):
            found.append(module)
        else:
            for child in module.children():
                walk(child)

    walk(model)
    return found


Finder = Callable[..., "tuple[Any, ...] | str"]


class _Patch:
    """One run of `patch`: each method replaces a part and says so in `rows`."""

    def __init__(
        self, model: nn.Module, wanted: set[str], check: bool, memory: str, decompose: Sequence[str] | None, rows: list[Row]
    ) -> None:
        self.model, self.wanted, self.check, self.memory, self.rows = model, wanted, check, memory, rows
        self.decompose, self.by_size = (DECOMPOSED, True) if decompose is None else (tuple(decompose), False)
        self.modules = list(dict.fromkeys(model.modules()))
        self.tops = pretrained(model)

    def run(self) -> None:
        for top in self.tops:
            top.__dict__[STATE] = {}
        if "attention" in self.wanted:
            self.attention()
        if "experts" in self.wanted:
            self.experts()
        if self.wanted & {"rms_norm", "layer_norm"}:
            self.kinds("norm", norms, norms.candidate, norms.signature, norms.find, lambda o: "rms_norm" if o[0] == "rms" else "layer_norm")
        bypassed = {id(child) for m in self.modules if mixtures.candidate(m) for child in m.modules()} if self.done("experts") else set()
        if "mlp" in self.wanted:
            for module in self.kinds("mlp", gates, gates.mlp_candidate, gates.mlp_signature, gates.find_mlp, lambda _: "mlp"):
                bypassed |= {id(m) for m in module.modules()}
        if "activation" in self.wanted:
            within = [m for m in self.modules if id(m) not in bypassed]
            self.kinds("act", gates, gates.act_candidate, gates.act_signature, gates.find_act, lambda _: "activation", within)
        if "residual" in self.wanted:
            self.kinds("residual", residuals, residuals.candidate, residuals.signature, residuals.find, lambda _: "residual")
        if "rope" in self.wanted:
            self.rope()
        if "fused_linear_cross_entropy" in self.wanted:
            self.loss()
        if "linear" in self.wanted:
            self.linear()
        for top in self.tops:  # so that a copy of it in another process knows the attention function
            if swap_of(top) is None and not any(
                r.why == "" for r in self.rows if r.part == "fused_linear_cross_entropy" and r.what == type(top).__name__
            ):
                swap(top, "model")

    def done(self, part: str) -> bool:
        return any(r.part == part and not r.why for r in self.rows)

    def kinds(
        self, name: str, _: ModuleType, candidate: Callable[..., Any], signature: Callable[..., Any], find: Finder,
        part: Callable[..., str],
        among: list[nn.Module] | None = None,
    ) -> list[nn.Module]:
        """Replace the modules that are candidates, after one trial for each kind. Returns them."""
        done: list[nn.Module] = []
        found: dict[Any, tuple[Any, ...] | str] = {}
        counts: Counter[tuple[str, str, str]] = Counter()
        for module in self.modules if among is None else among:
            if swap_of(module) is not None or not candidate(module):
                continue
            key = (type(module), signature(module), "forward" in vars(module))
            if key not in found:
                found[key] = find(module, self.check)
            options = found[key]
            if isinstance(options, str):
                if name != "act":  # anything without parameters may be an activation
                    counts[{"norm": "rms_norm"}.get(name, name), type(module).__name__, options] += 1
            elif (as_part := part(options)) in self.wanted:
                counts[as_part, type(module).__name__, ""] += 1
                swap(module, name, options, as_part in self.decompose)
                done.append(module)
        self.rows += [Row(p, what, n, why) for (p, what, why), n in counts.items() if p in self.wanted]
        return done

    def attention(self) -> None:
        from rooftop.drop_in.transformers_models import kind_of

        if not self.tops:
            self.rows.append(Row("attention", type(self.model).__name__, 1, "it is no model of Transformers"))
        for top in self.tops:
            name = type(top).__name__
            why = kind_of(type(top.config)).refusal
            if not why and not type(top)._can_set_attn_implementation():
                why = "it does not use the attention interface"
            if not why and _chooses_classes(top):
                why = "it chooses among attention classes of its own"
            if not why and getattr(top.config, "output_attentions", False):
                why = "its configuration asks for attention weights (output_attentions)"
            if not why:
                _register()
                top.__dict__[STATE]["_attn_implementation"] = _said(top, "_attn_implementation")
                try:
                    top.set_attn_implementation(NAME)
                except ValueError as error:
                    why = " ".join(str(error).split())
                else:
                    why = "" if top.config._attn_implementation == NAME else "it keeps its attention function"
            layers = sum("get_interface" in _names(m) for m in top.modules()) or 1
            self.rows.append(Row("attention", name, 1 if why else layers, why))

    def experts(self) -> None:
        for top in self.tops:
            layers = [m for m in top.modules() if mixtures.candidate(m)]
            if not layers:
                continue
            verdicts = {(type(m), mixtures.signature(m)): m for m in layers}
            why = next((w for m in verdicts.values() if isinstance(w := mixtures.find(m, self.check), str)), "")
            if not why:
                _register()
                top.__dict__[STATE]["_experts_implementation"] = _said(top, "_experts_implementation")
                top.set_experts_implementation(NAME)
            self.rows.append(Row("experts", type(layers[0]).__name__, len(layers), why))

    def rope(self) -> None:
        named: dict[type, dict[str, Any]] = {}
        for module in self.modules:
            if swap_of(module) is None and type(module) not in named:
                named[type(module)] = rotations.functions(module)
        layers = [m for m in self.modules if swap_of(m) is None and named.get(type(m))]
        if not layers:
            return
        forms = rotations.forms_of(self.model)
        found: dict[Any, tuple[str, str, bool] | str] = {}
        counts: Counter[tuple[str, str]] = Counter()
        for module in layers:
            functions = named[type(module)]
            why = forms if isinstance(forms, str) else rotations.refusal(module)
            for function in functions.values():
                if not why and function not in found:
                    found[function] = rotations.find(function, forms, self.check)  # type: ignore[arg-type]
            names = () if why else tuple((n, *found[f]) for n, f in functions.items() if not isinstance(found[f], str))
            if names:
                swap(module, "rope", (names, self.by_size), "rope" in self.decompose)
            else:
                why = why or str(next(found[f] for f in functions.values()))
            counts[type(module).__name__, why] += 1
        self.rows += [Row("rope", what, n, why) for (what, why), n in counts.items()]

    def loss(self) -> None:
        for top in self.heads():
            options = losses.find(top, self.memory, self.check)
            if not isinstance(options, str):
                swap(top, "loss", options, "fused_linear_cross_entropy" in self.decompose)
            self.rows.append(Row("fused_linear_cross_entropy", type(top).__name__, 1, options if isinstance(options, str) else ""))

    def linear(self) -> None:
        layers = [m for m in self.modules if linears.candidate(m)]
        for module in layers:
            swap(module, "linear")
        if layers:
            self.rows.append(Row("linear", "Linear", len(layers)))

    def heads(self) -> Iterator[Any]:
        """The models with an output embedding: the outermost ones."""
        for top in self.tops:
            if losses.candidate(top) != "its forward takes no labels":
                yield top


def _chooses_classes(model: nn.Module) -> bool:
    """Whether a layer is of a class from a table by attention function, as in GIT: it stays as it was made, and would be given our
    masks."""
    used = {type(m) for m in model.modules()}
    for module in {sys.modules.get(c.__module__) for c in used} - {None}:
        tables = [v for v in vars(module).values() if isinstance(v, dict) and isinstance(v.get("eager"), type)]
        if any(c in used for table in tables for c in table.values()):
            return True
    return False


def _names(module: nn.Module) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code.co_names if code is not None else ()
