"""What models of Hugging Face Transformers do with masks and keywords, read from their classes and sources: no model is known by name."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from rooftop.core.op import constant

# Arguments of Transformers' functions that make masks: blocks that see all of themselves, functions of a model's own.
UNIONS = r"block_sequence_ids|\b(or|and)_mask_function\b|\bmask_function=(?!create_)"


@dataclass(frozen=True)
class Kind:
    """What the models of a configuration do with masks."""

    refusal: str = ""  # why they can be given none of ours
    reads_mask: bool = False  # they work on masks themselves
    unites: bool = False  # they may ask for masks in which keys apart from each other are seen


@constant
def kind_of(config: type) -> Kind:
    return _kind(config)


@constant
def gives(layer: type, keyword: str) -> bool:
    """Whether a layer gives its attention function this keyword by name, or its source does not tell; else the caller of the model did."""
    source = "".join(_source(c) for c in layer.__mro__)
    return "get_interface(" not in source or re.search(rf"\b{re.escape(keyword)}=", source) is not None


@cache
def _kind(config: type) -> Kind:
    from transformers import PreTrainedConfig, PreTrainedModel

    models = [m for m in _below(PreTrainedModel) if m.config_class not in (None, PreTrainedConfig) and issubclass(config, m.config_class)]
    if not models:
        return Kind()
    if not any(m._can_set_attn_implementation() for m in models):
        return Kind(f'{models[0].__name__} computes attention itself and reads no mask of rooftop; give it attn_implementation="eager"')
    files = [sys.modules[m.__module__] for m in models if m.__module__ in sys.modules]
    return Kind(
        reads_mask=any(map(_reads_mask, files)), unites=any(not _source(f) or re.search(UNIONS, _source(f)) is not None for f in files)
    )


def _below(parent: Any) -> Iterator[Any]:
    for child in parent.__subclasses__():
        yield child
        yield from _below(child)


@cache
def _source(of: Any) -> str:
    try:
        return inspect.getsource(of)
    except (OSError, TypeError):
        return ""


@cache
def _reads_mask(module: ModuleType) -> bool:
    """Whether models of a file ask for masks that are never left out, or a class in it that calls the attention interface does more with
    its mask than to hand it on or to compare it with None. A use that this does not see raises: no other form has a shape of scores."""
    source = _source(module)
    if not source or re.search(r"allow_is_(causal|bidirectional)_skip\W+False", source):
        return True
    for layer in ast.parse(source).body:
        if not isinstance(layer, ast.ClassDef) or "get_interface(" not in (ast.get_source_segment(source, layer) or ""):
            continue
        if any(isinstance(x, ast.Name) and x.id in ("attention_mask", "causal_mask") for node in ast.walk(layer) for x in _operands(node)):
            return True
    return False


def _operands(node: ast.AST) -> list[ast.expr]:
    """What an expression computes with: hands of an operator, what is indexed or has an attribute read, what torch's functions are
    given."""
    if isinstance(node, (ast.Subscript, ast.Attribute)):
        return [node.value]
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[0] in ("torch", "F", "nn"):
        return [x for given in node.args for x in (given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given])]
    return []
