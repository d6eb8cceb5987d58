"""The repository: its size, the paths that its pages cite, and where the environment is read."""

from __future__ import annotations

from rooftop.core import settings


def test_the_environment_is_read_in_one_place() -> None:
    found = [str(p) for p in (settings.PACKAGE).rglob("*.py") if p.name != "settings.py" and ("os.environ" in (t := p.read_text()) or "getenv" in t)]
    assert found == []


def test_tracked_files_stay_small() -> None:
    import subprocess

    root = settings.CHECKOUT
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    assert sum((root / f).stat().st_size for f in listed if f and (root / f).is_file()) < 16 << 20


def test_cited_paths_exist() -> None:
    import re

    for page in (settings.CHECKOUT / "README.md", *(settings.CHECKOUT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} cites {link}"
