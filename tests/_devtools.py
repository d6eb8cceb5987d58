"""A real browser, driven: pages are opened, forms filled, files chosen, pictures taken, over the DevTools protocol on a pipe."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from _browser import BROWSER

PATIENCE = 60.0  # seconds that a page may take
_PIPE = (  # the browser looks for the pipe at 3 and 4
    "import fcntl, os, sys; r, w = (fcntl.fcntl(int(x), fcntl.F_DUPFD, 10) for x in sys.argv[1:3]); "
    "os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """Chromium without a window. Each `tab` has cookies of its own, as another user's browser has."""

    def __init__(self, profile: Path) -> None:
        assert BROWSER is not None
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        words = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                 f"--user-data-dir={profile}", "about:blank"]
        line = [sys.executable, "-c", _PIPE, str(to_read), str(to_write), *words]
        self._process = subprocess.Popen(line, pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self._number, self._held = 0, b""
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._to)
        os.close(self._from)

    def ask(self, method: str, session: str = "", **given: Any) -> dict[str, Any]:
        self._number += 1
        told = {"id": self._number, "method": method, "params": given, **({"sessionId": session} if session else {})}
        os.write(self._to, json.dumps(told).encode() + b"\0")
        while True:
            said = self.next()
            if said.get("id") == self._number:
                assert "error" not in said, (method, said["error"])
                found: dict[str, Any] = said["result"]
                return found
            self.events.append(said)

    def next(self) -> dict[str, Any]:
        """The next thing that it says."""
        while b"\0" not in self._held:
            assert select.select([self._from], [], [], PATIENCE)[0], "the browser says nothing"
            part = os.read(self._from, 1 << 20)
            assert part, "the browser has ended"
            self._held += part
        line, self._held = self._held.split(b"\0", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    def tab(self, width: int, height: int = 900) -> Tab:
        context = self.ask("Target.createBrowserContext")["browserContextId"]
        target = self.ask("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.ask(f"{domain}.enable")
        tab.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        return tab


class Tab:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def ask(self, method: str, **given: Any) -> dict[str, Any]:
        return self._browser.ask(method, self._session, **given)

    def value(self, script: str) -> Any:
        """What an expression of JavaScript is on the page."""
        said = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def until(self, script: str, seconds: float = PATIENCE) -> Any:
        """Wait until an expression is true, also while pages change."""
        end = time.monotonic() + seconds
        while True:
            try:
                if found := self.value(script):
                    return found
            except AssertionError:  # the page has gone meanwhile
                pass
            if time.monotonic() > end:
                raise AssertionError(f"{script} stays false on {self.value('location.href')}:\n{self.value('document.body.innerText')}")
            time.sleep(0.1)

    def open(self, url: str) -> None:
        self.value("window.old = true")
        self.ask("Page.navigate", url=url)
        self.until("!window.old && document.readyState === 'complete'")

    def loaded(self, url: str) -> float:
        """Seconds until the page's load event."""
        events = self._browser.events
        events.clear()
        start = time.perf_counter()
        self.ask("Page.navigate", url=url)
        while not any(e["method"] == "Page.loadEventFired" for e in events):
            events.append(self._browser.next())
        return time.perf_counter() - start

    def fill(self, **values: str) -> None:
        """Fields of a form, by their names."""
        for name, value in values.items():
            self.value(
                f"(function (field, value) {{ if (field.type === 'radio') {{ field = document.querySelector('[name={name}][value=' + value + ']');"
                " field.checked = true; } else { field.value = value; } field.dispatchEvent(new Event('input')); })"
                f"(document.querySelector('[name={name}]'), {json.dumps(value)})"
            )

    def choose(self, name: str, file: Path) -> None:
        """A file, in a field of this name."""
        found = self.ask("Runtime.evaluate", expression=f"document.querySelector('[name={name}]')")["result"]["objectId"]
        self.ask("DOM.setFileInputFiles", files=[str(file)], objectId=found)

    def send(self, form: str = "main form") -> None:
        """Press a form's button, and wait for the next page."""
        self.value("window.old = true")
        self.value(f"document.querySelector('{form} button').click()")
        self.until("!window.old && document.readyState === 'complete'")

    def picture(self, path: Path) -> None:
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 4000), "scale": 1}
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]))

    def status(self) -> int:
        """The status code of the page."""
        return int(self.value("performance.getEntriesByType('navigation')[0].responseStatus"))

    @property
    def text(self) -> str:
        return str(self.value("document.body.innerText"))
