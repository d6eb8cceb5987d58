"""Generated command lines: each ends with an exit code and plain lines, never with a traceback, a signal or control characters.

    PYTHONPATH=tests python -m _command_lines --lines 2000

Commands and options are those of the application; values are names, files (good, damaged, none), numbers in and out of range, texts with control characters.
Each line runs in a process of its own, in a folder of its own, with a cache and records of its own. Since some commands write pages and kernels into the
checkout, the package is a temporary copy of it; what a line has changed there is taken back after it."""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.texts import CONTROL
from rooftop.lab.exit_codes import Parser, ended, positive
from rooftop.lab.records import trials

PATIENCE = 10.0  # seconds: what takes longer has found nothing wrong with its arguments, and is ended
MARK = ".copy"  # a file that says of a tree that it is one that may be spoilt
CODES = (0, 1, 2, 3)
TEXTS = (
    "", " ", "-", "--", "softmax", "add", "sgemm_cuda", "sgemm_cuda/01", "sgemm_cuda/99", "matmul__triton", "peer:torch", "nosuch", "f32", "bf16", "f99",
    "edge", "odd f32", "0", "1", "-1", "3", "1e9", "1e-3", "nan", "inf", "1e999", "99999999999999999999999", "1.5", "0x10", "\u0663", "true", "8m", "90s",
    "-3h", "a=1,b=2", "M=1", "M=0", "N=99999999999", "x=f32:4", "x=", "=", "[bold]x[/bold]", "[/]", "\x1b[31mforged", "\u202eabc", "\udcff", "a\nb", "../..",
    "/", "/dev/null", "/nosuch/a", "a" * 300, "HEAD", "H100", "NVIDIA H200", "sm_90", "4x2", "0x0", "{", "auto", "planes", "lossless", "events", "ncu",
    "good.cu", "bad.cu", "ref.py:scale", "ref.py:nosuch", "ref.py", "broken.py", "x.npy", "objects.npy", "x.rft", "cut.rft", "records", "records/a.jsonl",
    "bad.jsonl", "empty", "folder", "link", "m.safetensors", "text.txt", "loop", "new/file", "x.ncu-rep",
    "square__good__torch.py", "square__exits__torch.py", "square__gone__torch.py", "square__odd__triton.py",
)


def files(folder: Path) -> None:
    """Good, damaged and odd files to name."""
    import numpy as np

    from rooftop.codecs import compress

    head = '/* rooftop\nargs = ["N: i32", "x: f32[N]", "y: f32[N]"]\n[[launch]]\nkernel = "twice"\ngrid = ["ceil(N / 256)"]\nblock = [256]\n*/\n'
    body = "__global__ void twice(int n, const float* x, float* y) { int i = blockIdx.x * 256 + threadIdx.x; if (i < n) y[i] = 2 * x[i]; }\n"
    np.save(folder / "x.npy", np.arange(100, dtype="f4"))
    np.save(folder / "objects.npy", np.array([None], object), allow_pickle=True)
    data = bytes(compress(np.arange(100, dtype="f4"), lossless=True))
    card = {"name": "NVIDIA H200"}
    record = json.dumps({"kind": "clock", "subject": "a", "device": card, "at": "2026-01-01T00:00:00+00:00"}) + "\n"
    texts = {
        "good.cu": head + body, "bad.cu": head + "nonsense \x1b[31m {", "ref.py": "def scale(x):\n    return x * 2\n", "broken.py": "def (\n",
        "text.txt": "hello\n", "bad.jsonl": record + '{"kind": "\x1b[1m"}\n', "x.ncu-rep": "no report", "empty": "",
    }
    square = "{}\ndef supports(p):\n    return None\ndef run(inputs, outputs, scratch, config):\n    outputs['y'].copy_(inputs['x'] ** 2)\n"
    raises = "class Odd(BaseException):\n    pass\nraise Odd('\\x1b[31m')"
    first = {"good__torch": "print('\\x1b[1m')", "exits__torch": "import sys; sys.exit(0)", "gone__torch": "import os; os._exit(0)", "odd__triton": raises}
    texts |= {f"square__{name}.py": square.format(line) for name, line in first.items()}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, content in {"x.rft": data, "cut.rft": data[:-9], "m.safetensors": b"\x05" + bytes(7) + b"[1,2]"}.items():
        (folder / name).write_bytes(content)
    for name in ("folder", "records"):
        (folder / name).mkdir()
    (folder / "records" / "a.jsonl").write_text(record, encoding="utf-8")
    (folder / "records" / "b.jsonl.xz").write_bytes(lzma.compress(record.encode()))
    (folder / "link").symlink_to("nothing")
    (folder / "loop").symlink_to("loop")


def _commands() -> list[tuple[list[str], list[Any]]]:
    """Every command, with its parameters."""
    import typer

    from rooftop.lab import cli
    from rooftop.lab.cli.app import app

    cli.commands()
    found: list[tuple[list[str], list[Any]]] = []

    def walk(command: Any, words: list[str]) -> None:
        if hasattr(command, "commands"):
            for name, inner in sorted(command.commands.items()):
                walk(inner, [*words, name])
        else:
            found.append((words, list(command.params)))

    walk(typer.main.get_command(app), [])
    return found


def lines(count: int, seed: int) -> Iterator[list[str]]:
    """Every command in turn, with some of its options, values of any kind."""
    commands, rng = _commands(), random.Random(seed)
    for i in range(count):
        words, parameters = commands[i % len(commands)]
        line = list(words)
        for p in parameters:
            if p.param_type_name == "argument":
                line += rng.choices(TEXTS, k=rng.choice([0, 1, 1, 1, 2]))
            elif rng.random() < min(0.5, 3 / len(parameters)):
                line += [rng.choice(p.opts), *([] if getattr(p, "is_flag", False) else [rng.choice(TEXTS)])]
        if rng.random() < 0.1:
            line.insert(rng.randrange(len(line) + 1), rng.choice(TEXTS))
        yield [word for word in line if "\0" not in word]


def command() -> None:
    """The command of `sys.argv`, if its tree is a copy."""
    if not (settings.CHECKOUT / MARK).is_file():
        raise RuntimeError(f"{settings.CHECKOUT} is no copy, and a command may write into it")
    from rooftop.lab import cli

    cli.main()


def _child(words: list[str], folder: Path, out: int, main: Callable[[], object]) -> None:
    """The command, in this process, which ends."""
    for number in (1, 2):
        os.dup2(out, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    os.environ.update({f"ROOFTOP_{n}": str(folder / n.lower()) for n in ("CACHE", "RESULTS")} | {"XDG_STATE_HOME": str(folder / "state"), "HOME": str(folder)})
    sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", errors="backslashreplace", closefd=False) for n in (1, 2))  # noqa: SIM115
    sys.argv = ["rooftop", *words]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def judged(words: list[str], main: Callable[[], object] = command) -> tuple[str, str]:
    """What a line did: "ended" with its exit code, "long", or "finding" and what."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile() as out:
        folder = Path(name) / "here"
        folder.mkdir()
        files(folder)
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            _child(words, folder, out.fileno(), main)
        until, status = time.monotonic() + PATIENCE, None
        while status is None and time.monotonic() < until:
            done, found = os.waitpid(child, os.WNOHANG)
            status = found if done else None
            time.sleep(0.02)
        for stopped in (lambda: os.killpg(child, signal.SIGKILL), lambda: os.kill(child, signal.SIGKILL)):
            try:
                stopped()
            except (ProcessLookupError, PermissionError):
                continue
        if status is None:
            os.waitpid(child, 0)
        out.seek(0)
        said = out.read().decode(errors="replace")
        shutil.rmtree(folder, ignore_errors=True)
    if "Traceback (most recent" in said:
        return "finding", " ".join(said.strip().splitlines()[-4:])[-600:]
    if status is not None and (not os.WIFEXITED(status) or os.WEXITSTATUS(status) not in CODES):
        return "finding", f"it ended with status {status}: {said[-200:]!r}"
    if (odd := CONTROL.search(said)) is not None:
        return "finding", f"it printed the control character {odd[0]!r}: {said[max(odd.start() - 80, 0) : odd.end() + 20]!r}"
    return ("long", "") if status is None else (f"ended with {os.WEXITSTATUS(status)}", "")


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """A temporary copy of the files of the checkout that git knows, as they are now; a repository too."""
    with tempfile.TemporaryDirectory(prefix="rooftop-lines-") as name:
        folder = Path(name) / "checkout"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=settings.CHECKOUT, capture_output=True, text=True, check=True).stdout.split("\0")
        for file in filter(None, listed):
            if (settings.CHECKOUT / file).is_file():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(settings.CHECKOUT / file, folder / file)
        (folder / MARK).touch()
        author = ["-c", "user.name=copy", "-c", "user.email=copy@localhost", "-c", "gc.auto=0", "-c", "commit.gpgsign=false"]
        for words in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "copy"]):
            subprocess.run(["git", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        yield folder


def run(count: int, seed: int, seconds: float = float("inf")) -> tuple[Counter[str], list[str]]:
    """How many lines did what, and the findings, in a copy of the checkout; no new line once so many `seconds` are over."""
    with copied() as tree:
        env = settings.environment({"PYTHONPATH": os.pathsep.join(map(str, (tree, tree / "tests")))})
        given = [f"--lines={count}", f"--seed={seed}", f"--seconds={seconds}", "--here"]
        done = subprocess.run([sys.executable, "-m", "_command_lines", *given], cwd=tree.parent, env=env, stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout)
    return Counter(told["kinds"]), told["findings"]


def _run_here(count: int, seed: int, seconds: float) -> tuple[Counter[str], list[str]]:
    """`run`, in the copy that this package is of."""
    from rooftop.core import registry
    from rooftop.lab.report import data  # noqa: F401 - imported once, before the processes part

    for name in registry.op_names():
        registry.op(name)
    kinds: Counter[str] = Counter()
    findings = []
    until = time.monotonic() + seconds
    for i, words in enumerate(lines(count, seed)):
        if time.monotonic() > until:
            break
        kind, what = judged(words)
        kinds[re.sub(r"\W+", " ", kind)] += 1
        if kind == "finding":
            findings.append(f"line {i} of seed {seed}: {words!r}: {what}")
            print(ascii(findings[-1]), file=sys.stderr, flush=True)
        if i % 100 == 99:
            print(f"{i + 1} lines", file=sys.stderr, flush=True)
        for undo in (["checkout", "-q", "--", "."], ["clean", "-fdqx", "-e", "__pycache__"]):
            subprocess.run(["git", *undo], cwd=settings.CHECKOUT, check=True)
    return kinds, findings


def main() -> None:
    parser = Parser(prog="python -m _command_lines", description="Generated command lines.")
    parser.add_argument("--lines", type=positive, default=2000)
    trials.options(parser)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no new line after so many")
    parser.add_argument("--here", action="store_true", help="the package is the copy")
    given = parser.parse_args()
    if given.here:
        kinds, findings = _run_here(given.lines, given.seed, given.seconds)
        print(json.dumps({"kinds": kinds, "findings": findings}))
        return
    trials.ended("generated command lines", given, lambda: run(given.lines, given.seed, given.seconds))


if __name__ == "__main__":
    ended(main)
