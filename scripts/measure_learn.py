"""How long a lesson takes to open: its page in a headless browser at a phone's and a desk's width, and in the terminal up to its first question.

    python scripts/measure_learn.py                 # builds the pages, opens those of every ladder, and a lesson of each in the terminal
    python scripts/measure_learn.py --out results   # the same, kept as a record

A page's time is from the order to go there until its load event, without the browser's cache, the median of --repeats; a lesson's from the command
to its first question. The browser is driven through a pipe with the DevTools protocol (Debian: chromium)."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from rooftop.core import registry, settings
from rooftop.lab.learn import pages, puzzles
from rooftop.lab.records import store
from rooftop.lab.report import tables

WIDTHS = (390, 1440)


def rooftop(*words: str, until: bytes = b"") -> float:
    """Seconds of a command that is given nothing to read, or those until it said `until`. Raises RuntimeError where it fails, or never says so."""
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, "-m", "rooftop", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdin is not None and process.stdout is not None
        said, seconds = b"", 0.0
        while more := os.read(process.stdout.fileno(), 1 << 16):
            said += more
            if not seconds and until and until in said:
                seconds = time.perf_counter() - start
                process.stdin.close()
    if process.returncode or (until and not seconds):
        raise RuntimeError(f"rooftop {' '.join(words)}: {said.decode(errors='replace')[-500:]}")
    return seconds or time.perf_counter() - start


def measured(site: Path, repeats: int) -> list[dict[str, Any]]:
    sys.path.insert(0, str(settings.CHECKOUT / "tests"))
    from _devtools import Browser

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as profile, Browser(Path(profile)) as browser:
        for width in WIDTHS:
            tab = browser.tab(width)
            tab.ask("Network.setCacheDisabled", cacheDisabled=True)
            for name in (pages.FILE, *(pages.file_of(n) for n in puzzles.ladders())):
                url = (site / name).absolute().as_uri()
                tab.loaded(url)  # the tab's own first time, and that of the disk
                seconds = median(tab.loaded(url) for _ in range(repeats))
                rows.append({"what": "page", "of": name, "width": width, "bytes": (site / name).stat().st_size, "seconds": seconds})
    for name in puzzles.ladders():
        rung = registry.ladder(name).rungs[1].name
        rows.append({"what": "terminal", "of": rung, "seconds": median(rooftop("learn", rung, until=b"do you expect?") for _ in range(repeats))})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--site", type=Path, metavar="DIR", help="pages that are there, instead of new ones")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of records; none is written without it")
    given = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        parser.error("there is no browser: chromium (Debian) or google-chrome is needed")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(ROOFTOP_LEARN=f"{folder}/learn.sqlite", ROOFTOP_DIARY="off")
        if given.site is None:
            rooftop("report", "--out", folder, "--records", str(settings.load().results))
        rows = measured(given.site or Path(folder), given.repeats)
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[:2]
    about = store.host()
    device = {"name": about["cpu"], "machine": platform.machine(), "cores": about["cores"]}
    record = {"kind": "clock", "subject": tables.LEARN, "device": device, "versions": store.versions(), "browser": " ".join(version), "rows": rows}
    print(tables.learn([store.Record(record)], None))
    if given.out:
        with store.Writer(given.out, str(device["name"])) as writer:
            writer.write(record)


if __name__ == "__main__":
    main()
