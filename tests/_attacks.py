"""The files of tests/attack: kernels, records and commands that try to get past a check or a limit. Each must end as docs/trust.md promises.

    PYTHONPATH=tests python -m _attacks

Each runs in a folder of its own, beside copies of all of them, with results of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rooftop.core import settings
from rooftop.core.texts import CONTROL
from rooftop.lab.exit_codes import Parser, ended
from rooftop.lab.records import trials

FOLDER = Path(__file__).resolve().parent / "attack"
PATIENCE = 300.0  # seconds
ABSENT = 77  # the exit code of what needs a package that is not here
JUDGED = ("--reference", "ref.py:scale", "--shape", "N=300")


@dataclass(frozen=True)
class Attack:
    """`words`: of the command line, after `rooftop`, or of a Python file; {pid}: of a process that must live. It ends with `code` and says what
    `says` finds, in at most `seconds`."""

    name: str
    words: Sequence[str]
    code: int
    says: str
    environment: dict[str, str] = field(default_factory=dict)
    seconds: float = 120.0
    lines: int | None = None  # at most


def _check(name: str, code: int, says: str, **more: object) -> Attack:
    return Attack(name, ("check", name, *(JUDGED if name.endswith(".cu") else ())), code, says, **more)  # type: ignore[arg-type]


ATTACKS = (
    _check("sleeps.cu", 0, r"\bok\b"), _check("kills.cu", 0, r"\bok\b"),  # what they would do is no code that a GPU has
    _check("other_macro.cu", 1, r"\bwrong\b"), _check("second_call.cu", 1, r"\bwrong\b"), _check("nan_dropped.cu", 1, r"\bwrong\b|NaN"),
    _check("hidden_include.cu", 1, r"which stands beside the file; a kernel may\s+include CUDA's own headers"),
    _check("control_characters.cu", 1, r"\bwrong\b|outside"),
    _check("endless_template.cu", 1, "ROOFTOP_STEP_SECONDS", environment={"ROOFTOP_STEP_SECONDS": "2"}),
    _check("square__exits__torch.py", 1, r"exit code 0|SystemExit"),
    _check("square__endless__triton.py", 1, "ROOFTOP_STEP_SECONDS|no answer in", environment={"ROOFTOP_STEP_SECONDS": "6"}),
    _check("right.cu", 0, r"\bok\b", environment={"ROOFTOP_CACHE": "relative"}, seconds=200),
    _check("right.cu", 1, r"ROOFTOP_SIMT_SECONDS", environment={"ROOFTOP_SIMT_SECONDS": "99999999999999999999999"}, lines=2),
    _check("right.cu", 0, r"\bok\b", environment={"PATH": "/etc/passwd:/proc/1/root:/usr/bin:/bin"}),
    Attack("record_bomb.jsonl", ("records", "merge", "record_bomb.jsonl"), 1, r"record_bomb\.jsonl:2: .*stand for more than", seconds=20, lines=2),
    Attack("sweep_axis.jsonl", ("records", "merge", "sweep_axis.jsonl"), 1, r"sweep_axis\.jsonl:\d+: .*axis is 'nosuch'", seconds=20, lines=2),
    Attack("source.rft", ("compress", "source.rft", "--abs", "0.1"), 1, r"source\.rft", seconds=20, lines=2),
    Attack("source.npy", ("compress", "source.npy", "--abs", "0.1"), 1, r"source", seconds=20, lines=2),  # source.rft is a link to it here
    Attack("complex.npy", ("compress", "complex.npy", "--abs", "1"), 1, r"complex", seconds=20, lines=2),
    Attack("byte_order.py", ("byte_order.py",), 0, r"<f4"), Attack("shared_pages.py", ("shared_pages.py",), 0, "0 times", {"ROOFTOP_SIMT_MIB": "400"}),
)


def _files(folder: Path, attack: Attack) -> dict[Path, bytes]:
    """The files of an attack; those that must stay as they are."""
    import numpy as np

    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    (folder / "sb").mkdir()
    (folder / "sb" / "secret.h").write_text("#define SECRET 42\n", encoding="utf-8")
    np.save(folder / "source.npy", np.random.default_rng(1).random(9000))
    np.save(folder / "complex.npy", np.zeros(4, complex))
    if attack.name == "source.rft":
        (folder / "source.npy").rename(folder / "source.rft")
    elif attack.name == "source.npy":
        (folder / "source.rft").symlink_to("source.npy")
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def judged(attack: Attack) -> tuple[str, str]:
    """"as promised", "absent" (what it needs), or a finding and what."""
    with tempfile.TemporaryDirectory(prefix="rooftop-attack-") as name, subprocess.Popen(["sleep", "100000"], start_new_session=True) as other:
        folder = Path(name) / "here"
        kept = _files(folder, attack)
        (folder / "kills.cu").write_bytes(kept[folder / "kills.cu"].replace(b"PID", str(other.pid).encode()))
        kept[folder / "kills.cu"] = (folder / "kills.cu").read_bytes()
        environment = {"PYTHONPATH": settings.python_path(), "ROOFTOP_RESULTS": str(folder / "results"), "ROOFTOP_DIARY": "off", **attack.environment}
        words = attack.words if attack.words[0].endswith(".py") else ["-m", "rooftop", *attack.words]
        started = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, *words], cwd=folder, env=settings.environment(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=PATIENCE, check=False,
            )
        except subprocess.TimeoutExpired:
            return trials.FINDING, f"it had not ended after {PATIENCE:.0f} s"
        finally:
            lives = other.poll() is None
            other.kill()
        seconds, said = time.monotonic() - started, done.stdout.decode(errors="replace")
        if done.returncode == ABSENT and words[0] == attack.name:
            return "absent: needs numcodecs", ""
        ways = {
            f"it ended with {done.returncode}, not {attack.code}": done.returncode != attack.code, "it ended another process": not lives,
            f"it does not say {attack.says}": re.search(attack.says, said) is None, "it printed a traceback": "Traceback (most recent" in said,
            "it printed a control character": CONTROL.search(said) is not None, f"it took {seconds:.0f} s": seconds > attack.seconds,
            f"it said {len(said.splitlines())} lines": attack.lines is not None and len(said.splitlines()) > attack.lines,
            "a file is another": any(not p.is_file() or p.read_bytes() != content for p, content in kept.items()),
        }
        wrong = [way for way, holds in ways.items() if holds]
    return (trials.FINDING, f"{'; '.join(wrong)}: {said[-600:]!r}") if wrong else ("as promised", "")


def run(attacks: Sequence[Attack] = ATTACKS) -> tuple[Counter[str], list[str]]:
    """How many ended how, and the findings."""
    kinds: Counter[str] = Counter()
    findings = []
    for attack in attacks:
        kind, what = judged(attack)
        kinds[kind] += 1
        if kind == trials.FINDING:
            findings.append(f"{attack.name} ({' '.join(attack.words)}): {what}")
    return kinds, findings


def main() -> None:
    parser = Parser(prog="python -m _attacks", description="Files that try to get past a check or a limit.")
    trials.options(parser, seed=0)
    given = parser.parse_args()
    trials.ended("attacks of tests/attack", given, run)


if __name__ == "__main__":
    ended(main)
