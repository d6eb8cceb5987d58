"""What a campaign against the whole found: said in a line, an exit code, and a record, of which the table of docs/trust.md is written.

A record is of kind `clock` and subject `trials`: `case` is what was tried, `rows` how often each outcome came (of single files: `of` and
`sha256`, a row a file), `source` a hash of the package as it was, `revision` the commit, with a `+` where files had been changed since."""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from rooftop.core import settings
from rooftop.lab.records import store
from rooftop.lab.records.record import Record, Table, of_kind

SUBJECT = "trials"
FINDING = "finding"  # the outcome that nothing may have
SHOWN = 40  # findings that are printed
CODE = (".py", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".toml")


def options(parser: argparse.ArgumentParser, seed: int = 1) -> None:
    """Those that every campaign has."""
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--records", type=Path, help="a folder: what was tried and found becomes a record")


def ended(what: str, given: argparse.Namespace, run: Callable[[], tuple[Counter[str], list[str]]]) -> NoReturn:
    """Do a campaign, print how many did what and the findings, write the record if one is asked for; the exit code is 1 where there are
    findings."""
    source(), revision()  # of the code as it is now
    if given.records is not None:
        store.Writer(given.records, str(store.host()["cpu"])).ready()  # what cannot be written is said before, not after
    started = time.monotonic()
    kinds, findings = run()
    seconds = time.monotonic() - started
    print(f"{kinds.total()} {what}, seed {given.seed}, {seconds:.0f} s: " + ", ".join(f"{n} {k}" for k, n in sorted(kinds.items())))
    for text in findings[:SHOWN]:
        print(text)
    if given.records is not None:
        rows = [
            {"outcome": kind, "count": n}
            for kind, n in sorted((kinds + Counter({FINDING: max(len(findings) - kinds[FINDING], 0)})).items())
        ]
        print(f"written: {keep(given.records, what, rows, seconds, given.seed)}")
    raise SystemExit(bool(findings))


def keep(folder: Path, what: str, rows: Sequence[Table], seconds: float, seed: int | None = None) -> Path:
    """Write the record of a campaign below `folder`; its file."""
    card = {"name": str(store.host()["cpu"])}
    said = {
        "kind": "clock", "subject": SUBJECT, "case": what, "device": card, "source": source(), "revision": revision(),
        "seconds": max(seconds, 1e-3)
    }
    with store.Writer(folder, card["name"]) as writer:
        writer.write({**said, "seed": seed, "rows": list(rows)})
        return writer.path


@cache
def source() -> str:
    """A hash of the package's code."""
    made = hashlib.sha256()
    for path in sorted(p for p in settings.PACKAGE.rglob("*") if p.suffix in CODE):
        made.update(f"{path.relative_to(settings.PACKAGE)}\0".encode() + path.read_bytes() + b"\0")
    return made.hexdigest()[:12]


@cache
def revision() -> str:
    """The commit of the checkout; empty without git."""

    def asked(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=settings.CHECKOUT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    found = asked("rev-parse", "--short=12", "HEAD")
    return found + "+" * bool(found and asked("status", "--porcelain", "--untracked-files=no", "--", "rooftop"))


def campaigns(found: Sequence[Record]) -> dict[str, list[Record]]:
    """Of each thing that was tried the last record of each seed, oldest first."""
    kept: dict[str, dict[int | None, Record]] = {}
    for r in of_kind(found, "clock", SUBJECT):
        of_seed = kept.setdefault(r.case, {})
        of_seed.pop(r.get("seed"), None)
        of_seed[r.get("seed")] = r
    return {case: list(of_seed.values()) for case, of_seed in kept.items()}


def outcomes(records: Sequence[Record]) -> Counter[str]:
    """How often each came, over all of them."""
    made: Counter[str] = Counter()
    for row in (row for r in records for row in r["rows"]):
        made[row["outcome"]] += row["count"]
    return +made


def table(found: list[Record], _site: Any) -> str:
    """What was tried, as a table of docs/trust.md: the runs of several seeds together, with the commit of the last."""
    lines = ["| tried | how many | seed | came to | seconds | commit |", "|---|---:|---:|---|---:|---|"]
    for what, records in sorted(campaigns(found).items()):
        came = outcomes(records)
        seeds = [r["seed"] for r in records if r.get("seed") is not None]
        named = f"{len(seeds)} seeds, {min(seeds)} to {max(seeds)}" if len(seeds) > 1 else "".join(map(str, seeds))
        of = ", ".join(f"{n:,} {kind}" for kind, n in sorted(came.items(), key=lambda one: -one[1]))
        lines.append(
            f"| {what} | {came.total():,} | {named} | {of}; {came[FINDING]:,} findings | {sum(r['seconds'] for r in records):,.0f} | "
            f"{records[-1]['revision']} |"
        )
    return "\n".join(lines) if len(lines) > 2 else "Nothing has been measured yet."
