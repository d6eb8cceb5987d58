"""A model of Hugging Face Transformers from its config.json, with random weights or with none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rooftop.core import whole_file


def configuration(path: Path, layers: int, command: str) -> Any:
    """What Transformers makes of the file, with so many layers (0: as it says). Raises ValueError for another file, and where Transformers
    is absent."""
    try:
        said = json.loads(whole_file.regular(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: it is no JSON ({error})") from None
    if not isinstance(said, dict) or not isinstance(said.get("model_type"), str):
        raise ValueError(f"{path}: it names no model_type; a config.json of Transformers does")
    try:
        from transformers import AutoConfig
        from transformers.utils import logging
    except ImportError:
        raise ValueError(f"{command} needs Hugging Face Transformers: pip install transformers") from None
    logging.set_verbosity_error()
    name = said.pop("model_type")
    if layers:
        said |= {"num_hidden_layers": layers} | (
            {"layer_types": said["layer_types"][:layers]} if isinstance(said.get("layer_types"), list) else {}
        )
    try:
        return AutoConfig.for_model(name, **said)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # its checks have classes of their own
        raise _refused(path, error) from None


def model_of(path: Path, config: Any, where: str, dtype: Any, *, values: bool = True) -> Any:
    """A causal language model on a device. Without `values` its weights take no memory until they are read."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    torch.manual_seed(0)
    try:
        if values:
            with torch.device(where):
                return AutoModelForCausalLM.from_config(config, dtype=dtype)
        with no_init_weights():
            return AutoModelForCausalLM.from_config(config, dtype=dtype)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # its checks have classes of their own
        raise _refused(path, error) from None


def _refused(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path}: Transformers makes no causal language model of it: {' '.join(str(error).split())[:200]}")
