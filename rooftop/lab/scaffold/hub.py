"""The package for Hugging Face's `kernels` library that `rooftop export-hf` writes: a folder that `LocalLayerRepository`, and
Transformers with `KernelConfig(..., use_local_kernel=True)`, load layers from. It holds the part of rooftop that runs: where rooftop is
not installed, that copy is imported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from rooftop.core import settings

LAYERS = ("RMSNorm", "SiLUAndMul", "RotaryEmbedding", "ForCausalLMLoss")
VARIANT = "torch-universal"
NOT_RUN = ("lab", "ladders")  # of the package: the workbench

INIT = '''"""Layers of rooftop {version} for Hugging Face's `kernels`: {layers}."""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("rooftop") is None:
    sys.path.append(str(Path(__file__).resolve().parent / "_rooftop"))

from . import layers

__all__ = ["layers"]
'''
LAYERS_TEXT = """from rooftop.drop_in.hub_layers import {layers}

__all__ = "{layers}".split(", ")
"""
CARD = """---
library_name: kernels
license: apache-2.0
---
# rooftop {version}: {layers}

GPU kernels for PyTorch, each with its backward and under torch.compile. Made by `rooftop export-hf`.

```python
from pathlib import Path
from kernels import LocalLayerRepository
layer = LocalLayerRepository(Path("{folder}"), layer_name="RMSNorm").load()

from transformers import AutoModelForCausalLM, KernelConfig
config = KernelConfig({{"RMSNorm": "{folder}:RMSNorm", "rotary_pos_emb": "{folder}:RotaryEmbedding"}}, use_local_kernel=True)
model = AutoModelForCausalLM.from_pretrained("...", use_kernels=True, kernel_config=config)
```
"""


def write(folder: Path) -> list[Path]:
    """Write the package into `folder`, which must be absent or empty, whole or not at all; the files written.

    Raises ValueError for a folder that holds something or lies in this package, OSError where nothing can be written."""
    from rooftop import __version__

    out = folder.absolute()
    if out.is_relative_to(settings.PACKAGE):
        raise ValueError(f"{folder} lies in the package itself; name a folder elsewhere")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{folder} is not empty; name a folder that does not exist or holds nothing")
    words = {"version": __version__, "layers": ", ".join(LAYERS), "folder": str(out)}
    build = out / "build" / VARIANT
    try:
        build.mkdir(parents=True, exist_ok=True)
        shutil.copytree(settings.PACKAGE, build / "_rooftop" / "rooftop", ignore=_not_run)
        (out / "README.md").write_text(CARD.format(**words), encoding="utf-8")
        (build / "__init__.py").write_text(INIT.format(**words), encoding="utf-8")
        (build / "layers.py").write_text(LAYERS_TEXT.format(**words), encoding="utf-8")
        about = {
            "id": f"_rooftop_{__version__.replace('.', '_')}", "name": "rooftop", "version": 1, "license": "Apache-2.0",
            "python-depends": [], "backend": {"type": "cuda"},
        }
        (build / "metadata.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    except OSError:
        shutil.rmtree(out / "build", ignore_errors=True)
        raise
    return sorted(p for p in out.rglob("*") if p.is_file())


def _not_run(folder: str, names: list[str]) -> set[str]:
    """What is left out of a folder of the package: the workbench, its tests' caches and what nothing needs at run time."""
    here = Path(folder) == settings.PACKAGE
    return {n for n in names if n == "__pycache__" or (here and n in NOT_RUN) or n.endswith(".pyc")}
