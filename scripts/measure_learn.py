"""How long a lesson takes to open: its page in a headless browser at a phone's and a desk's width, and in the terminal up to its first question.

    python scripts/measure_learn.py                 # builds the pages, opens those of every ladder, and a lesson of each in the terminal
    python scripts/measure_learn.py --out results   # the same, kept as a record

A page's time is from the order to go there until its load event, without the browser's cache, the median of --repeats; a lesson's from the command
to its first question. The browser is driven through a pipe with the DevTools protocol (Debian: chromium)."""

from __future__ import annotations

import argparse
import base64
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

from rooftop.core import registry, settings
from rooftop.lab.learn import pages, puzzles
from rooftop.lab.records import store
from rooftop.lab.report import learn_page

WIDTHS = (390, 1440)


class Browser:
    """A tab of a headless browser."""

    def __init__(self, program: str) -> None:
        theirs, ours = os.pipe(), os.pipe()
        line = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(["sh", "-c", f'exec "$@" 3<&{theirs[0]} 4>&{ours[1]}', "sh", *line], pass_fds=(theirs[0], ours[1]),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs[0])
        os.close(ours[1])
        self.to, self.of, self.number, self.rest = theirs[1], ours[0], 0, b""
        targets = self("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        self.session = self("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self("Page.enable")
        self("Network.enable")
        self("Network.setCacheDisabled", cacheDisabled=True)

    session = ""

    def __call__(self, method: str, **about: Any) -> dict[str, Any]:
        """What the browser answers. Raises OSError where it ended, RuntimeError where it refuses."""
        self.number += 1
        said = {"id": self.number, "method": method, "params": about} | ({"sessionId": self.session} if self.session else {})
        os.write(self.to, json.dumps(said).encode() + b"\0")
        while (found := self._next()).get("id") != self.number:
            pass
        if "error" in found:
            raise RuntimeError(f"{method}: {found['error']['message']}")
        return dict(found["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            more = os.read(self.of, 1 << 16)
            if not more:
                raise OSError("the browser ended")
            self.rest += more
        first, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(first))

    def wide(self, width: int, height: int = 900) -> None:
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def open(self, page: Path) -> float:
        """Seconds until its load event."""
        start = time.perf_counter()
        self("Page.navigate", url=page.absolute().as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass
        return time.perf_counter() - start

    def picture(self) -> bytes:
        """The whole page as PNG."""
        return base64.b64decode(self("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.of)


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


def measured(program: str, site: Path, repeats: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with Browser(program) as browser:
        for width in WIDTHS:
            browser.wide(width)
            for name in (pages.FILE, *(pages.file_of(n) for n in puzzles.ladders())):
                browser.open(site / name)  # the tab's own first time, and that of the disk
                seconds = median(browser.open(site / name) for _ in range(repeats))
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
        rows = measured(program, given.site or Path(folder), given.repeats)
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[:2]
    about = store.host()
    device = {"name": about["cpu"], "machine": platform.machine(), "cores": about["cores"]}
    record = {"kind": "clock", "subject": learn_page.SUBJECT, "device": device, "versions": store.versions(), "browser": " ".join(version), "rows": rows}
    print(learn_page.table([record], None))
    if given.out:
        with store.Writer(given.out, str(device["name"])) as writer:
            writer.write(record)


if __name__ == "__main__":
    main()
