"""Runs the commands on kernel files of other people, as a stranger would: with no option, each file in its own folder.

    python scripts/public_files.py draw FOLDER --seed 1 --cuda 120 --triton 18      draws files of the clones FOLDER/OWNER/NAME
    python scripts/public_files.py run FOLDER --as first                             runs each; an interrupted run is taken up again
    python scripts/public_files.py run FOLDER --as second --but first                those again that did not simply run
    python scripts/public_files.py run FOLDER --as third --but second --seed 1       of an earlier draw

Both write results/public_files.json, a list of draws: of a file its repository, commit, path and SHA-256, of a command its exit code, seconds, longest
time without a line, and what it came to. No text of a file is kept. docs/simulator.md shows the totals (rooftop report --docs)."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rooftop.core import whole_file

RECORD = Path(__file__).parents[1] / "results" / "public_files.json"
COMMANDS = ("simt", "inspect")
SECONDS = 240  # a command has no verdict that takes longer
KERNEL = {"cuda": re.compile(r"\b__global__\b"), "triton": re.compile(r"@triton\.jit\b")}
COMMENT = {"cuda": re.compile(r"//[^\n]*|/\*.*?\*/", re.S), "triton": re.compile(r"#[^\n]*")}
ENDING = {"cuda": ".cu", "triton": ".py"}
# What a run came to. Of each the sentence that says so, first match first.
SAID = (
    ("alone", r"its kernels alone are judged|its kernels alone were launched"),  # the program was not run, its kernels were
    ("assumed", r"called as assumed|with arguments of ours|tensors of ours|and what is found may come of that"),  # with arguments or inputs of ours
)


def draw(folder: Path, seed: int, wanted: dict[str, int]) -> dict[str, Any]:
    """Files with a kernel that no draw before had, of each repository in turn, drawn from a folder of it in turn."""
    drawn = {f["sha256"] for d in read() for f in d["files"]}
    chosen = random.Random(seed)
    found = []
    for kind, count in wanted.items():
        piles = []
        for clone in sorted(p for p in folder.glob("*/*") if (p / ".git").exists()):
            folders: dict[Path, list[Path]] = {}
            for f in sorted(clone.rglob(f"*{ENDING[kind]}")):
                if f.is_file() and KERNEL[kind].search(COMMENT[kind].sub("", f.read_text(errors="replace"))):
                    folders.setdefault(f.parent, []).append(f)
            piles.append(turns([chosen.sample(fs, len(fs)) for fs in chosen.sample(list(folders.values()), len(folders))]))
        files = turns(chosen.sample(piles, len(piles)))
        once = {f["sha256"]: f for f in (described(folder, kind, f) for f in reversed(files)) if f["sha256"] not in drawn}
        found += list(reversed(once.values()))[:count]
    return {"seed": seed, "files": found, "runs": {}}


def turns(piles: list[list[Path]]) -> list[Path]:
    """The first of each, then the second of each, ..."""
    return [p[i] for i in range(max(map(len, piles), default=0)) for p in piles if i < len(p)]


def described(folder: Path, kind: str, file: Path) -> dict[str, str]:
    owner, name, *_ = file.relative_to(folder).parts
    clone = folder / owner / name
    commit = subprocess.run(["git", "-C", str(clone), "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    sha = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"kind": kind, "repository": f"{owner}/{name}", "commit": commit, "path": str(file.relative_to(clone)), "sha256": sha}


def ran(words: list[str], folder: Path) -> tuple[list[float], str]:
    """[exit code (124: it was ended), seconds, the longest time without a line], what it said."""
    start = last = time.monotonic()
    silent, said = 0.0, []
    with subprocess.Popen(
        [sys.executable, "-m", "rooftop", *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONUNBUFFERED": "1"},
    ) as process:
        limit = threading.Timer(SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        limit.start()
        assert process.stdout is not None
        for line in process.stdout:
            last, silent = (now := time.monotonic()), max(silent, now - last)
            said.append(line)
        process.wait()
        limit.cancel()
    end = time.monotonic()
    code = 124 if process.returncode == -signal.SIGKILL else process.returncode
    return [code, round(end - start, 1), round(max(silent, end - last), 1)], b"".join(said).decode(errors="replace")


def came_to(command: str, code: float, said: str) -> str:
    """whole, assumed, alone: judged; own: an error of the file's, which its compiler tells too; refused: with a reason; none: no verdict."""
    if code not in (0, 1, 3) or "Traceback (most recent call last)" in said:
        return "none"
    if command == "inspect":
        return {0: "whole", 1: "whole" if " regs" in said else "own", 3: "refused"}[int(code)]
    judged = re.search(r"^(checked|counted): ", said, re.M) is not None
    if judged:
        return next((kind for kind, words in SAID if re.search(words, said)), "refused" if code == 3 else "whole")
    return "refused" if code == 3 else "own"


def run(
    folder: Path, name: str, commands: Sequence[str], texts: Path | None, but: str | None, kinds: Sequence[str], seed: int | None
) -> None:
    """Runs the files of the last draw, or of the one with this seed."""
    draws = read()
    record = next(d for d in reversed(draws) if seed in (None, d["seed"]))
    before = record["runs"][but]["rows"] if but else {}
    wanted = {at for at, r in before.items() if (r[3] in kinds if kinds else (r[0], r[3]) != (0, "whole"))}
    rows = record["runs"].setdefault(name, {"commit": revision(), "seconds_allowed": SECONDS, "rows": {}})["rows"]
    for command in commands:
        for f in sorted(record["files"], key=lambda f: f["sha256"]):  # so that all kinds come early
            file, at = folder / f["repository"] / f["path"], f"{command} {f['sha256'][:16]}"
            if hashlib.sha256(file.read_bytes()).hexdigest() != f["sha256"]:
                raise SystemExit(f"{file} is not the file that was drawn: git checkout {f['commit']}")
            if at in rows or (but and at not in wanted):
                continue
            numbers, said = ran([command, file.name], file.parent)
            rows[at] = [*numbers, came_to(command, numbers[0], said)]
            print(*rows[at], command, f["repository"], f["path"], flush=True)
            if texts is not None:
                texts.mkdir(parents=True, exist_ok=True)
                (texts / f"{at.replace(' ', '_')}.txt").write_text(f"{file}\n{rows[at]}\n{said}")
            write(draws)


def read() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(RECORD.read_text()) if RECORD.is_file() else []
    return found


def revision() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=RECORD.parent, capture_output=True, text=True).stdout.strip()


def write(draws: list[dict[str, Any]]) -> None:
    whole_file.write(RECORD, f"[{', '.join(map(written, draws))}]\n")


def written(record: dict[str, Any]) -> str:
    """One draw, with a line for each file and each row."""
    files = ",\n".join(json.dumps(f) for f in record["files"])
    runs = ",\n".join(
        f'{json.dumps(n)}: {json.dumps({k: v for k, v in r.items() if k != "rows"})[:-1]}, "rows": {{\n'
        + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in r["rows"].items()) + "\n}}"
        for n, r in record["runs"].items()
    )
    return f'{{"seed": {record["seed"]}, "files": [\n{files}\n], "runs": {{{runs}}}}}'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draw", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, help="of a draw; of a run: which draw's files, the last one's if not given")
    parser.add_argument("--cuda", type=int, default=120)
    parser.add_argument("--triton", type=int, default=18)
    parser.add_argument("--as", dest="name", default="first", help="the name of this run")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--but", help="only files that this run did not find whole, right and with exit code 0")
    parser.add_argument("--kinds", nargs="+", help="with --but: only files that it came to one of these with")
    parser.add_argument("--texts", type=Path, help="a folder for what the commands say, outside of the repository")
    given = parser.parse_args()
    if given.what == "draw":
        write([*read(), draw(given.folder.resolve(), given.seed or 0, {"cuda": given.cuda, "triton": given.triton})])
    else:
        run(given.folder.resolve(), given.name, given.commands, given.texts, given.but, given.kinds or (), given.seed)


if __name__ == "__main__":
    main()
