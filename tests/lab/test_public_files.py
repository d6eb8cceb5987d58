"""What is kept of other people's files: scripts/public_files.py, and its table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rooftop.core import settings
from rooftop.lab.report import public_files

sys.path.insert(0, str(settings.CHECKOUT / "scripts"))
import public_files as script


def test_files_with_a_kernel_are_drawn_from_each_repository_in_turn_and_none_twice(tmp_path: Path) -> None:
    kernel = "__global__ void k() {}\n"
    for name, text in {
        "a/one/x.cu": kernel + "// 1", "a/one/y.cu": kernel + "// 2", "a/one/sub/z.cu": kernel + "// 3", "b/two/same.cu": kernel + "// 1",
        "b/two/host.cu": "// __global__ void k()\nint main() {}\n", "b/two/k.py": "@triton.jit\ndef k(): pass\n", "c/three/k.py": "# @triton.jit\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for clone in ("a/one", "b/two", "c/three"):
        folder = str(tmp_path / clone)
        subprocess.run(["git", "init", "-q", folder], check=True)
        by = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", "-C", folder, *by, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    drawn = script.draw(tmp_path, 1, {"cuda": 3, "triton": 5})["files"]
    assert [f["kind"] for f in drawn] == ["cuda"] * 3 + ["triton"]
    assert len({f["sha256"] for f in drawn}) == 4 and len({f["repository"] for f in drawn[:2]}) == 2
    assert {f["path"] for f in drawn} <= {"x.cu", "y.cu", "sub/z.cu", "same.cu", "k.py"} and len(drawn[0]["commit"]) == 40
    assert drawn == script.draw(tmp_path, 1, {"cuda": 3, "triton": 5})["files"]


@pytest.mark.parametrize(("command", "code", "said", "kind"), [
    ("simt", 0, "x.cu:3: k<<<1, 32>>>()\nchecked: no fault\n", "whole"),
    ("simt", 1, "called as assumed (--args gives others): --args '8'\nchecked: 1 fault\n", "assumed"),
    ("simt", 3, "its kernels alone are judged, since ...\nchecked: no fault\n", "alone"),
    ("simt", 3, "line 3 opens a socket\nchecked: no fault as far as it came\n", "refused"),
    ("simt", 3, "rooftop: x.cu:1: ...\n", "refused"),
    ("simt", 1, "rooftop: x.cu does not compile\n", "own"),
    ("simt", 124, "x.cu: running for 240 s\n", "none"),
    ("simt", 1, "Traceback (most recent call last):\n", "none"),
    ("inspect", 0, "", "whole"),
    ("inspect", 3, "", "refused"),
])
def test_what_a_run_came_to_is_read_from_what_it_says(command: str, code: int, said: str, kind: str) -> None:
    assert script.came_to(command, code, said) == kind


def test_the_table_has_a_line_for_each_run_command_and_language() -> None:
    files = [{"kind": k, "repository": r, "sha256": s * 64} for k, r, s in (("cuda", "a/one", "1"), ("cuda", "b/two", "2"), ("triton", "b/two", "3"))]
    rows: dict[str, Any] = {
        f"simt {'1' * 16}": [0, 4.0, 3.0, "whole"], f"simt {'2' * 16}": [3, 90.0, 10.0, "refused"], f"simt {'3' * 16}": [0, 5.0, 5.0, "whole"],
        f"inspect {'1' * 16}": [0, 2.0, 1.0, "whole"],
    }
    again = {f"simt {'2' * 16}": [0, 8.0, 3.0, "alone"]}
    lines = public_files.text({"seed": 7, "files": files, "runs": {"first": {"rows": rows}, "second": {"rows": again}}}).splitlines()
    assert lines[0].startswith("2 `.cu` files and 1 Triton files of 2 repositories, drawn with seed 7")
    assert lines[-4:-1] == [
        "| first | `simt X.cu` | 2 | 1 | 0 | 0 | 0 | 1 | 0 | 47.0 | 90 | 10 |", "| first | `simt X.py` | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 5.0 | 5 | 5 |",
        "| first | `inspect X.cu` | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 2.0 | 2 | 1 |",
    ]
    assert lines[-1] == "| second | `simt X.cu` | 2 | 1 | 0 | 1 | 0 | 0 | 0 | 6.0 | 8 | 3 |", "the first run's, but for the file that was run again"
