"""The wheel, where there is no tree: built, unpacked into a folder that nothing may write, and used from another folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from rooftop.core import settings

BUILD = "from setuptools import build_meta as b; import sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"
USE = """
import json, os, sys
import rooftop, torch
from rooftop.lab import cli
x = torch.randn(3, 40, generator=torch.Generator().manual_seed(1), requires_grad=True)
y = rooftop.softmax(x, dim=-1)
y[:, 0].sum().backward()
assert torch.allclose(y, torch.softmax(x, -1)) and x.grad is not None
for words in json.loads(sys.argv[1]):
    sys.argv = ["rooftop", *words]
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    print(f"== {words[0]}: {code}", flush=True)
print(rooftop.__file__)
"""
COMMANDS = (
    ["--version"], ["ls", "--json"], ["where", "softmax"], ["explain", "softmax", "--case", "rows 16384x8192 bf16", "--arch", "b200"],
    ["targets", "softmax__triton", "--json"], ["check", "add__triton", "--case", "odd f32"], ["simt", "--help"],
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is built, so that nothing is written into the checkout."""
    if int(__import__("setuptools").__version__.partition(".")[0]) < 77:
        pytest.skip("setuptools is older than 77, which pyproject.toml needs to build (pip install -U setuptools)")
    folder = tmp_path_factory.mktemp("tree")
    shutil.copytree(settings.PACKAGE, folder / "rooftop", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(settings.CHECKOUT / name, folder / name)
    return folder


def built(tree: Path, what: str) -> Path:
    out = tree / "dist"
    out.mkdir(exist_ok=True)
    ran = subprocess.run([sys.executable, "-c", BUILD, what, str(out)], cwd=tree, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return out / ran.stdout.strip().splitlines()[-1]


def files_of(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts}


def test_the_wheel_works_without_the_tree(tree: Path, tmp_path: Path) -> None:
    wheel = built(tree, "build_wheel")
    site, empty = tmp_path / "site", tmp_path / "elsewhere"
    empty.mkdir()
    zipfile.ZipFile(wheel).extractall(site)
    assert {f for f in files_of(site) if f.startswith("rooftop/")} == {f"rooftop/{f}" for f in files_of(settings.PACKAGE)}
    for path in (site, *site.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = files_of(site)
    env = {"PYTHONPATH": str(site), "ROOFTOP_CACHE": str(tmp_path / "cache"), "TRITON_CACHE_DIR": str(tmp_path / "triton"), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", USE, json.dumps(COMMANDS)], cwd=empty, capture_output=True, text=True, check=False, env=settings.environment(env)
    )
    assert ran.returncode == 0, ran.stderr
    assert {line for line in ran.stdout.splitlines() if line.startswith("== ")} == {f"== {words[0]}: 0" for words in COMMANDS}, ran.stdout + ran.stderr
    assert Path(ran.stdout.splitlines()[-1]).is_relative_to(site)
    assert files_of(site) == before and list(empty.iterdir()) == []  # root may write what is read-only
    for path in (site, *site.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def test_the_sdist_has_what_the_wheel_is_built_from(tree: Path) -> None:
    with tarfile.open(built(tree, "build_sdist")) as found:
        names = {name.partition("/")[2] for name in found.getnames()}
    assert {f"rooftop/{f}" for f in files_of(settings.PACKAGE)} | {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= names


def test_extras_name_what_there_is() -> None:
    project = tomllib.loads((settings.CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert {"models", "ncu", "peers", "mcp", "all", "dev"} <= extras.keys()
    joined = extras["all"][0].removeprefix("rooftop[").removesuffix("]").split(",")
    assert set(joined) <= extras.keys() and "dev" not in joined
