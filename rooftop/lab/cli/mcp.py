"""A server of the Model Context Protocol over stdin and stdout: rooftop's commands as tools for an agent, on the files of one folder.

A tool runs a command of rooftop in a process of its own, which has a limit of time and keeps its caches and temporary files in the
folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rooftop.lab.cli.app import ENVIRONMENT, LOOK, app, echo

# an op, a kernel, a ladder or a rung: nothing that leaves a folder
NAME = re.compile(r"[a-z0-9]+(?:_+[a-z0-9]+)*(?:/\d\d(?:_[a-z0-9]+)*)?")
SECONDS = 120
MOST = 400_000  # characters of a result
OWN = ".rooftop"  # in the folder: caches and temporary files
MEANS = {0: "ok", 1: "wrong", 2: "slower than required", 3: "something is missing on this machine"}
NEXT = {  # tool -> what to do after it, by exit code
    "check": {
        0: "right: inspect shows registers and instructions, place what it lacks", 1: "simt shows the line of a race or a wrong access"
    },
    "simt": {
        0: "no fault: look at lines with many sectors or wavefronts a request, then place", 1: "mend the first finding, then simt again"
    },
    "inspect": {0: "spills or low occupancy: fewer registers, or smaller tiles; then check", 1: "the demand that is not met is in unmet"},
    "place": {0: "ladder shows the rung that has the first missing optimisation"},
    "diagnose": {0: "make the first lever, then diagnose again with the report before and after"},
    "ladder": {0: "read the rung's source: rooftop where LADDER/NN names it"},
    "explain": {0: "targets says where the chosen kernel compiles"},
    "targets": {0: "explain says what an op runs on a card"},
}


class Refused(ValueError):
    """What a tool is not given; one line."""


def inside(folder: Path, given: str) -> Path:
    """The file of the folder that a path means, relative to it or absolute. Raises Refused for one outside, also through a link, and for
    none."""
    try:
        path = (folder / given).resolve()
    except (OSError, ValueError, RuntimeError):
        raise Refused(f"{given!r} is no path") from None
    if not path.is_relative_to(folder):
        raise Refused(f"{given} is not in {folder}; a tool takes files of that folder")
    if not path.is_file():
        raise Refused(f"there is no file {given} in {folder}")
    return path


def subject(folder: Path, given: str) -> str:
    """A name of rooftop's as it is, or the path of a file of the folder. Raises Refused."""
    return given if NAME.fullmatch(given) and not (folder / given).is_file() else str(inside(folder, given))


def options(**given: str | int | None) -> list[str]:
    """Options of a command: each one word, so that no value is taken for another option. Raises Refused for control characters."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None and value != ""]
    if bad := [w for w in words if not w.isprintable()]:
        raise Refused(f"{bad[0]!r} has characters that cannot be printed")
    return words


def environment(folder: Path) -> dict[str, str]:
    """Of a command: what it writes by itself lies in the folder."""
    from rooftop.core import settings

    own = folder / OWN
    (own / "tmp").mkdir(parents=True, exist_ok=True)
    return settings.environment({
        "ROOFTOP_CACHE": str(own / "cache"), "TRITON_CACHE_DIR": str(own / "triton"), "ROOFTOP_PREDICTIONS": str(own / "predictions.jsonl"),
        "ROOFTOP_DIARY": str(own / "diary.jsonl"),
        "TMPDIR": str(own / "tmp"), "XDG_STATE_HOME": str(own), "PYTHONPATH": str(settings.CHECKOUT), "COLUMNS": "200", "NO_COLOR": "1",
    })


async def ran(folder: Path, tool: str, words: Sequence[str], seconds: float) -> dict[str, Any]:
    """What a command says: `exit`, `means`, `result` (its JSON, or its text), `said` (its errors), `next` (what to do after it)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "rooftop", *words, cwd=folder, env=environment(folder), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        remedy = "give a smaller shape or fewer blocks, or start the server with --seconds"
        raise Refused(f"{tool}: no answer in {seconds:.0f} s; it was ended: {remedy}") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    code, text = process.returncode or 0, out.decode(errors="replace")
    try:
        result: Any = json.loads(text)
    except ValueError:
        result = text[:MOST]
    if len(text) > MOST and not isinstance(result, str):
        result = {"cut": f"{len(text)} characters of JSON; ask for one case or one kernel", "begins": text[:2000]}
    said = [line for line in err.decode(errors="replace").splitlines() if line.strip()][-20:]
    follow = NEXT[tool].get(
        code, "read said, and doctor (rooftop doctor) where something is missing" if code == ENVIRONMENT else "read said"
    )
    means = MEANS.get(code, f"ended with {code}")
    return {"command": " ".join(["rooftop", *words]), "exit": code, "means": means, "result": result, "said": said, "next": follow}


def tools(folder: Path, seconds: float) -> Mapping[str, Any]:
    """The tools by name, each a coroutine whose docstring and signature the protocol shows."""

    async def check(what: str, case: str = "", reference: str = "", quick: bool = True) -> dict[str, Any]:
        """Whether a kernel is right: a .cu or .py of the folder with a head, or a name of rooftop's, on its cases against float64.
        Without a GPU in the simulator or the interpreter. reference: my.py:function, for a .cu whose head names no op. Rows: status,
        error, first wrong element."""
        words = ["check", subject(folder, what), "--json", *(["--quick"] if quick else [])]
        if reference:
            file, _, function = reference.rpartition(":")
            words += options(reference=f"{inside(folder, file)}:{function}")
        return await ran(folder, "check", [*words, *options(case=case)], seconds)

    async def simt(
        what: str, case: str = "", shape: str = "", kernel: str = "", grid: str = "", block: str = "", blocks: int = 0
    ) -> dict[str, Any]:
        """CUDA C++ run on the CPU: for each source line requests, sectors, bank conflicts; findings (races, accesses out of bounds,
        divergent barriers) with line and threads. shape: N=1000. kernel, grid, block: of a .cu without a head."""
        more = options(case=case, shape=shape, kernel=kernel, grid=grid, block=block, blocks=blocks or None)
        return await ran(folder, "simt", ["simt", subject(folder, what), "--json", *more], seconds)

    async def inspect(what: str, arch: str = "90", case: str = "", shape: str = "") -> dict[str, Any]:
        """Registers, spills, shared memory, occupancy and instructions of a kernel's binary; no GPU needed. arch: 80 to 120, or a card
        (h200, b200)."""
        return await ran(
            folder, "inspect", ["inspect", subject(folder, what), "--json", *options(arch=arch, case=case, shape=shape)], seconds
        )

    async def place(what: str, ladder: str) -> dict[str, Any]:
        """Which rung of a ladder (sgemm_cuda, softmax_cuda, ...) a kernel is closest to, which optimisations it lacks, and what each
        gained there."""
        return await ran(folder, "place", ["place", subject(folder, what), "--json", *options(ladder=ladder)], seconds)

    async def diagnose(what: str, kernel: str = "", card: str = "", after: str = "") -> dict[str, Any]:
        """What limits a kernel: of a profiler's report in the folder (.ncu-rep, ncu's text, a Chrome trace), or of a kernel's name.
        after: a second report of the same kernel after a change."""
        words = ["diagnose", subject(folder, what), *([str(inside(folder, after))] if after else []), "--json", "--no-keep"]
        return await ran(folder, "diagnose", [*words, *options(kernel=kernel, card=card)], seconds)

    async def explain(op: str, case: str = "", arch: str = "90") -> dict[str, Any]:
        """Which kernel an op of rooftop runs on a card, with which config, and why not the others. arch: 80 to 120, gfx942, or a card
        (h200, b200, mi300x)."""
        return await ran(folder, "explain", ["explain", _name(op), "--json", *options(case=case, arch=arch)], seconds)

    async def ladder(name: str) -> dict[str, Any]:
        """A ladder (sgemm_cuda), each step from the naive kernel to the fastest with its idea and gain, or one of its rungs
        (sgemm_cuda/04) with the change."""
        return await ran(folder, "ladder", ["show", _name(name)], seconds)

    async def targets(what: str = "", target: str = "") -> dict[str, Any]:
        """Which of rooftop's kernels compiles for which target (sm_80 to sm_120a, gfx942, ...): registers, spills, shared memory, matrix
        instructions, reasons."""
        return await ran(folder, "targets", ["targets", *([_name(what)] if what else []), "--json", *options(target=target)], seconds)

    return {f.__name__: f for f in (check, simt, inspect, place, diagnose, explain, ladder, targets)}


def _name(given: str) -> str:
    if not NAME.fullmatch(given):
        raise Refused(f"{given!r} is no name of an op, a kernel, a ladder or a rung (rooftop ls lists them)")
    return given


@app.command(rich_help_panel=LOOK)
def mcp(
    folder: Annotated[Path, typer.Argument(help="The folder whose files the tools take; nothing is written outside of it.")] = Path(),
    seconds: Annotated[float, typer.Option(help="Seconds that a tool may take at most.")] = SECONDS,
) -> None:
    """Serve tools to an agent, over the Model Context Protocol.

    The tools are check, simt, inspect, place, diagnose, explain, ladder and targets, on the files of one folder. They talk over stdin and
    stdout. Needs the package mcp.

    Example: [bold]rooftop mcp my_kernels[/bold]"""
    root = folder.resolve()
    if not root.is_dir():
        raise ValueError(f"{folder} is no folder")
    if not 1 <= seconds <= 86_400:
        raise ValueError(f"--seconds {seconds:g}: it must be 1 to 86400")
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError as error:
        from rooftop.core.names import extra

        echo(f"rooftop: the package mcp is not installed, or older than 2 ({error}): {extra('mcp')}", err=True)
        raise typer.Exit(ENVIRONMENT) from None
    from rooftop import __version__

    server = MCPServer(
        name="rooftop", version=__version__,
        instructions=f"GPU kernels checked, counted and placed without a GPU. Tools take files of {root}, or names of rooftop's. Begin with check.",
    )
    for name, tool in tools(root, seconds).items():
        server.add_tool(_one_line(tool, ToolError), name=name, description=tool.__doc__)
    server.run("stdio")


def _one_line(tool: Any, error: type[Exception]) -> Any:
    """The tool; what it refuses is an error of the protocol, in a line."""
    import functools

    @functools.wraps(tool)
    async def run(**given: Any) -> dict[str, Any]:
        try:
            found: dict[str, Any] = await tool(**given)
        except (Refused, OSError) as why:
            raise error(" ".join(str(why).split())) from None
        return found

    return run
