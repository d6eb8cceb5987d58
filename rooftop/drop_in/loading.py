"""Models that others load: those of a kind are patched as they are made."""

from __future__ import annotations

import difflib
from typing import Any

from rooftop.drop_in import patching

LOADERS = ("from_pretrained", "_from_config")


class Applied:
    """What `apply_to` did, until `remove()`, or the end of a with block."""

    def __init__(self, cls: Any, parts: dict[str, Any], how: dict[str, Any]) -> None:
        self.cls, self.reports = cls, list[patching.Report]()
        for name in LOADERS:
            setattr(cls, name, classmethod(self._patching(name, parts, how)))

    def _patching(self, name: str, parts: dict[str, Any], how: dict[str, Any]) -> Any:
        plain = getattr(self.cls, name).__func__

        def load(cls: Any, *args: Any, **kwargs: Any) -> Any:
            found = plain(cls, *args, **kwargs)
            model = found[0] if isinstance(found, tuple) else found  # with output_loading_info
            if not patching.is_patched(model):
                self.reports.append(patching.apply(model, parts, **how))
            return found

        load.__doc__, load.__name__ = plain.__doc__, name
        load._rooftop = self  # type: ignore[attr-defined]
        return load

    def remove(self) -> None:
        """Models that are loaded from now on are not patched; those that were stay so."""
        for name in LOADERS:
            if getattr(vars(self.cls).get(name), "__func__", None) is not None and hasattr(vars(self.cls)[name].__func__, "_rooftop"):
                delattr(self.cls, name)

    def __enter__(self) -> Applied:
        return self

    def __exit__(self, *_: Any) -> None:
        self.remove()


def apply_to(
    model_type: str, *, check: bool = True, memory: str = "fast", decompose: tuple[str, ...] | None = None, **parts: bool
) -> Applied:
    """Patch causal language models of a type as they are loaded, for programs that load them themselves:
    ``rooftop.drop_in.apply_to("llama")``.

    Args:
        model_type: that of the configuration: "llama", "qwen3", ...
        check, memory, decompose, parts: of `rooftop.patch`.

    `from_pretrained` and `from_config` of the type's model class then end with `rooftop.patch`: the one thing here that changes a class,
    until `remove()` of what is returned, whose `reports` say what was replaced.

    Raises ImportError where Transformers is not installed, ValueError for a type that it does not have and one that this is applied to,
    TypeError for an unknown part."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

    if not isinstance(model_type, str) or model_type not in NAMES:
        near = difflib.get_close_matches(str(model_type), NAMES, 3)
        more = f"; there is {', '.join(near)}" if near else ""
        raise ValueError(f"apply_to: {model_type!r} is no type of Transformers' causal language models{more}")
    name = NAMES[model_type]
    cls = getattr(transformers, name if isinstance(name, str) else name[0])
    if any(hasattr(getattr(vars(cls).get(n), "__func__", None), "_rooftop") for n in LOADERS):
        raise ValueError(f"apply_to: {cls.__name__} is patched already as it is loaded; remove() what the first call returned")
    patching.wanted(parts)
    return Applied(cls, parts, {"check": check, "memory": memory, "decompose": decompose})
