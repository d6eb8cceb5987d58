"""The package that `rooftop export-hf` writes: loaded by Hugging Face's `kernels` and put into a model of Transformers; complete without
rooftop."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from _support import command

from rooftop.drop_in import hub_layers as layers
from rooftop.lab.scaffold import hub as export


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "layers"
    export.write(folder)
    return folder


def test_layers_have_no_state_and_say_what_they_can() -> None:
    """What `kernels` asks of a layer: no constructor, no members of its own but two flags."""
    plain = set(dir(torch.nn.Module))
    for name in export.LAYERS:
        layer = getattr(layers, name)
        assert layer.__init__ is torch.nn.Module.__init__
        assert set(dir(layer)) - plain == {"can_torch_compile", "has_backward"} and layer.can_torch_compile and layer.has_backward


@pytest.mark.sampled("slow")
def test_layers_compute_what_they_replace() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.loss.loss_utils import ForCausalLMLoss
    from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

    assert transformers
    g = torch.Generator().manual_seed(3)
    norm = LlamaRMSNorm(24, eps=1e-3)
    norm.weight.data = torch.randn(24, generator=g)
    x = torch.randn(3, 5, 24, generator=g)
    torch.testing.assert_close(layers.RMSNorm.forward(norm, x), norm(x))
    packed = torch.randn(4, 12, generator=g)
    torch.testing.assert_close(layers.SiLUAndMul()(packed), torch.nn.functional.silu(packed[:, :6]) * packed[:, 6:])
    q, k = torch.randn(2, 4, 5, 8, generator=g), torch.randn(2, 2, 5, 8, generator=g)
    angles = torch.randn(2, 5, 4, generator=g).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()
    for dim in (1, 2):
        mine = layers.RotaryEmbedding()(*(t if dim == 1 else t.transpose(1, 2) for t in (q, k)), cos, sin, dim)
        theirs = apply_rotary_pos_emb(*(t if dim == 1 else t.transpose(1, 2) for t in (q, k)), cos, sin, dim)
        torch.testing.assert_close(mine, theirs)
    logits, labels = torch.randn(2, 6, 11, generator=g), torch.randint(11, (2, 6), generator=g)
    labels[0, 2] = -100
    for more in ({}, {"num_items_in_batch": torch.tensor(7)}, {"num_items_in_batch": 7}, {"shift_labels": labels.flip(1)}, {"ignore_index": 3}):
        given = labels.clamp(min=0) if "ignore_index" in more else labels
        torch.testing.assert_close(layers.ForCausalLMLoss()(logits, given, 11, **more), ForCausalLMLoss(logits, given, 11, **more))


@pytest.mark.sampled("slow")
def test_the_package_runs_without_rooftop(package: Path) -> None:
    """With torch's site-packages alone: the layers import the copy that the package holds."""
    site = [p for p in sys.path if p.endswith("site-packages")]
    text = (
        f"import sys; sys.path += {site!r}\n"
        "import importlib.util as u, sys\n"
        f"spec = u.spec_from_file_location('_layers', {str(package / 'build' / export.VARIANT / '__init__.py')!r})\n"
        "m = u.module_from_spec(spec); sys.modules['_layers'] = m; spec.loader.exec_module(m)\n"
        "import torch, rooftop\n"
        "x = torch.tensor([[0.5, -2.0, 3.0, 1.0]], requires_grad=True)\n"
        "y = m.layers.SiLUAndMul()(x); y.sum().backward()\n"
        "assert torch.allclose(y, torch.nn.functional.silu(x[:, :2]) * x[:, 2:]) and x.grad.abs().min() > 0\n"
        "print(rooftop.__file__)\n"
    )
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, check=False, cwd=package)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip().startswith(str(package))


@pytest.mark.sampled("slow")
def test_kernels_loads_it_into_a_model_of_transformers(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:  # a folder of these tests has the same name
        version = metadata.version("kernels")
    except metadata.PackageNotFoundError:
        pytest.skip("Hugging Face's kernels is not installed (pip install 'kernels>=0.16,<0.17')")
    kernels: Any = importlib.import_module("kernels")
    hub: Any = pytest.importorskip("transformers.integrations.hub_kernels", reason="transformers is not installed")
    if not hub.is_kernels_available():
        pytest.skip(f"transformers takes another version of kernels than {version}")
    from transformers import KernelConfig, LlamaConfig, LlamaForCausalLM
    from transformers.utils import kernel_config

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **sizes)).eval()
    ids = torch.arange(12).reshape(2, 6)
    want = model(ids).logits
    named = {"RMSNorm": "RMSNorm", "rotary_pos_emb": "RotaryEmbedding"}
    mapping = {ours: {"cpu": kernels.LocalLayerRepository(package, layer_name=name)} for ours, name in named.items()}
    with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
        kernels.kernelize(model, mode=kernels.Mode.INFERENCE | kernels.Mode.TORCH_COMPILE, device="cpu")
    forward = model.model.norm.forward
    assert getattr(forward, "__func__", forward).__module__ == "rooftop.drop_in.hub_layers"
    torch.testing.assert_close(model(ids).logits, want)
    asked = KernelConfig({ours: f"{package}:{name}" for ours, name in named.items()}, use_local_kernel=True)
    asked.sanitize_kernel_mapping(model)
    monkeypatch.setattr(kernel_config, "infer_device", lambda model: "cuda")  # Transformers replaces layers on accelerators alone
    asked.create_compatible_mapping(model)
    found = [repo.load() for devices in asked.kernel_mapping.values() for modes in devices.values() for repo in modes.values()]
    assert [c.__name__ for c in found] == ["RMSNorm", "RotaryEmbedding"]


def test_what_is_written(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    about = json.loads((package / "build" / export.VARIANT / "metadata.json").read_text())
    assert about["name"] == "rooftop" and about["id"].isidentifier()
    assert not list(package.rglob("__pycache__/rooftop*")) and not (package / "build" / export.VARIANT / "_rooftop" / "rooftop" / "lab").exists()
    assert command(monkeypatch, "export-hf", str(tmp_path / "new")) == 0 and "RMSNorm" in capsys.readouterr().out
    for folder, why in ((tmp_path / "new", "not empty"), (export.settings.PACKAGE / "x", "in the package itself")):
        before = sorted(folder.rglob("*")) if folder.exists() else []
        assert command(monkeypatch, "export-hf", str(folder)) == 1
        said = capsys.readouterr().err.strip()
        assert why in said and "\n" not in said and before == (sorted(folder.rglob("*")) if folder.exists() else [])
