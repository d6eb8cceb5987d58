"""The process of a submission in Python on a GPU, in bubblewrap: what it cannot see, and that the judge's child still starts in it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rooftop.core import settings
from rooftop.core.child import ChildError
from rooftop.lab.judge import forms, python, timed
from rooftop.lab.judge.python import bubblewrap

INSIDE = """
import json, os, socket, sys
from rooftop.lab.judge import python_child
import torch
seen = [p for p in sys.argv[2:] if os.path.isfile(p)]
try:
    socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), 1)
    seen.append("network")
except OSError:
    pass
open(os.path.join(sys.argv[1], "out"), "w").write("kept")
try:
    open(python_child.__file__, "a")
    seen.append("writes")
except OSError:
    pass
try:
    os.kill(int(os.environ["JUDGE"]), 0)
    with open(f"/proc/{os.environ['JUDGE']}/mem", "r+b"):
        seen.append("the judge's memory")
except OSError:
    pass
print(json.dumps(seen))
"""


def test_a_submission_sees_nothing_of_the_users_nor_of_contracts(tmp_path: Path) -> None:
    place, secret = tmp_path / "place", tmp_path / "secret"
    place.mkdir()
    secret.write_text("expected outputs", encoding="utf-8")
    words = bubblewrap(place)
    if not words:
        pytest.skip("bubblewrap is not installed, or the system does not let it start")
    hidden = [str(secret), str(settings.PACKAGE / "ops" / "softmax.py"), str(settings.PACKAGE / "kernels" / "elementwise" / "choose.py")]
    assert all(Path(p).is_file() for p in hidden)
    with socket.create_server(("127.0.0.1", 0)) as open_port:
        more = {"JUDGE": str(os.getpid()), "PYTHONPATH": str(settings.PACKAGE.parent), "PORT": str(open_port.getsockname()[1])}
        command = [*words, sys.executable, "-c", INSIDE, str(place), *hidden]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=settings.environment(more))
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [] and (place / "out").read_text(encoding="utf-8") == "kept"


@pytest.mark.sampled("slow")
def test_where_no_memory_of_the_gpu_is_opened_in_bubblewrap_a_plain_process_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def square(x):\n    return x * x\n", encoding="utf-8")
    submission, tried = forms.recognise(str(path)), list[bool]()
    begin = python.Child.__init__

    def noted(self: python.Child, *args: Any, **more: Any) -> None:
        begin(self, *args, **more)
        tried.append(self.bubble)

    monkeypatch.setattr(python.Child, "__init__", noted)
    child = timed._child(submission, [])
    child.end()
    handle = {"storage": [0] * 4 + ["", 0, "", False], "dtype": "float32", "shape": [1], "strides": [1], "offset": 0}
    with pytest.raises(ChildError, match="another process cannot open memory of the GPU here: "):
        timed._child(submission, [{"x": handle}])
    bubble = bool(bubblewrap(tmp_path))
    assert tried == ([True, True, False] if bubble else [False, False])
