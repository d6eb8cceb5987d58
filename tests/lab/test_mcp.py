"""The server for agents: through the protocol with the package's own client where it is installed; its rules for paths without it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from _support import command

from rooftop.core import settings
from rooftop.lab.cli import mcp

RACE = """/* rooftop
args = ["N: i32", "x: f32[N]", "y: f32[N]"]
[[launch]]
kernel = "turn"
grid = ["ceil(N / 64)"]
block = [64]
*/
__global__ void turn(int n, const float* x, float* y) {
    __shared__ float s[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    s[threadIdx.x] = i < n ? x[i] : 0;
    if (i < n) y[i] = s[63 - threadIdx.x];
}
"""
ENDLESS = "import time\ntime.sleep(1000)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "race.cu").write_text(RACE)
    (tmp_path / "secret.cu").write_text(RACE)
    (made / "json.py").write_text("raise SystemExit('a module of the folder was imported')")
    (made / "link.cu").symlink_to(tmp_path / "secret.cu")
    return made.resolve()


def test_only_files_of_the_folder_are_taken(folder: Path) -> None:
    assert mcp.subject(folder, "race.cu") == mcp.subject(folder, str(folder / "race.cu")) == str(folder / "race.cu")
    assert mcp.subject(folder, "softmax") == "softmax" and mcp.subject(folder, "sgemm_cuda/04") == "sgemm_cuda/04"
    for path in ("../secret.cu", str(folder.parent / "secret.cu"), "link.cu", "/etc/passwd", "sub/../../secret.cu"):
        with pytest.raises(mcp.Refused, match=r"is not in .*; a tool takes files of that folder"):
            mcp.subject(folder, path)
    for path in ("none.cu", "--help", "-", "a b", "x\0y", "Softmax", ""):
        with pytest.raises(mcp.Refused, match=r"there is no file|is no path"):
            mcp.subject(folder, path)
    with pytest.raises(mcp.Refused, match="is no name of an op"):
        mcp._name("../softmax")
    assert mcp.options(case="--json", blocks=None, kernel="") == ["--case=--json"]
    with pytest.raises(mcp.Refused, match="cannot be printed"):
        mcp.options(case="a\nb")


def test_what_a_command_writes_by_itself_is_in_the_folder(folder: Path) -> None:
    found = mcp.environment(folder)
    assert all(Path(found[n]).is_relative_to(folder) for n in ("ROOFTOP_CACHE", "TRITON_CACHE_DIR", "ROOFTOP_PREDICTIONS", "TMPDIR", "XDG_STATE_HOME"))


def test_a_command_that_does_not_end_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a package of the name rooftop that sleeps: the process is gone afterwards."""
    (folder / "rooftop").mkdir()
    (folder / "rooftop" / "__init__.py").touch()
    (folder / "rooftop" / "__main__.py").write_text(f"import os\nopen({str(folder / 'pid')!r}, 'w').write(str(os.getpid()))\n{ENDLESS}")
    monkeypatch.setattr(mcp, "environment", lambda where: settings.environment({"PYTHONPATH": str(where)}))
    with pytest.raises(mcp.Refused, match="check: no answer in 3 s; it was ended"):
        asyncio.run(mcp.ran(folder, "check", ["check"], 3.0))
    pid = int((folder / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_bad_words_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for words, why in ((("mcp", str(tmp_path / "none")), "is no folder"), (("mcp", str(tmp_path), "--seconds", "0"), "it must be 1 to 86400")):
        assert command(monkeypatch, *words) == 1
        said = capsys.readouterr().err.strip()
        assert why in said and "\n" not in said
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert command(monkeypatch, "mcp", str(tmp_path)) == 3
    assert "the package mcp is not installed" in capsys.readouterr().err


@pytest.mark.sampled("slow")
def test_an_agent_calls_the_tools(folder: Path) -> None:
    """With the package's own client, over stdin and stdout."""
    pytest.importorskip("mcp.client.stdio", reason="the package mcp is not installed (pip install 'mcp>=2')")
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "rooftop", "mcp", str(folder), "--seconds", "120"],
        env=settings.environment({"PYTHONPATH": os.pathsep.join([str(settings.CHECKOUT), *sys.path])}),
    )

    async def talk() -> dict[str, Any]:
        found: dict[str, Any] = {}
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            found["tools"] = {t.name: t for t in (await session.list_tools()).tools}
            found["simt"] = await session.call_tool("simt", {"what": "race.cu", "shape": "N=100"})
            found["outside"] = await session.call_tool("check", {"what": "../secret.cu"})
            found["ladder"] = await session.call_tool("ladder", {"name": "softmax_cuda/03"})
            found["unknown"] = await session.call_tool("explain", {"op": "sofmax"})
        return found

    found = asyncio.run(talk())
    assert set(found["tools"]) == {"check", "simt", "inspect", "place", "diagnose", "explain", "ladder", "targets"}
    assert all(t.description for t in found["tools"].values())
    answer = json.loads(found["simt"].content[0].text)
    assert answer["exit"] == 1 and "race" in json.dumps(answer["result"]) and answer["next"].startswith("mend the first finding")
    outside = found["outside"].content[0].text
    assert (getattr(found["outside"], "is_error", None) or getattr(found["outside"], "isError", None)) and "is not in" in outside and "\n" not in outside
    assert "softmax_cuda/03" in json.loads(found["ladder"].content[0].text)["result"]
    unknown = json.loads(found["unknown"].content[0].text)
    assert unknown["exit"] == 1 and "softmax" in unknown["said"][-1]
    assert {p.name for p in folder.iterdir()} == {"race.cu", "link.cu", "json.py", mcp.OWN}
    assert {p.name for p in folder.parent.iterdir()} == {"work", "secret.cu"}
