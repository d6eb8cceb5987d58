"""The repository: its size, the paths that its pages cite, and where the environment is read."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rooftop.core import settings


def test_the_environment_is_read_in_one_place() -> None:
    found = [str(p) for p in (settings.PACKAGE).rglob("*.py") if p.name != "settings.py" and ("os.environ" in (t := p.read_text()) or "getenv" in t)]
    assert found == []


def test_tracked_files_stay_small() -> None:
    root = settings.CHECKOUT
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    assert sum((root / f).stat().st_size for f in listed if f and (root / f).is_file()) < 16 << 20


def test_cited_paths_exist() -> None:
    import re

    for page in (settings.CHECKOUT / "README.md", *(settings.CHECKOUT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} cites {link}"


def test_the_package_is_found_from_the_folder_above_a_clone_named_rooftop(tmp_path: Path) -> None:
    """Where the environment is one that `make run` made for this checkout."""
    said = [json.loads(text) for d in importlib.metadata.distributions(name="rooftop") if (text := d.read_text("direct_url.json"))]
    if not any(found.get("url") == settings.CHECKOUT.as_uri() and found.get("dir_info", {}).get("editable") for found in said):
        pytest.skip("another checkout is installed here")
    (tmp_path / "rooftop").symlink_to(settings.CHECKOUT)
    done = subprocess.run([sys.executable, "-c", "import rooftop; print(rooftop.__version__)"], cwd=tmp_path, capture_output=True, text=True, check=False,
                          env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
    assert done.returncode == 0, f"{done.stderr}: the environment is older than scripts/environment.py; make run renews it"
