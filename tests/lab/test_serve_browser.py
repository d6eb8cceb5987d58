"""`rooftop serve` in a real browser, with the real judge: a right, a wrong, a racing and an endless kernel, a full queue, an expired token, two
users at once, on a phone's and a desk's width."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _browser import BROWSER
from _devtools import Browser, Tab
from _serve import begun, port, until, up
from lab.test_judge import SOFTMAX

from rooftop.core import settings
from rooftop.lab import simt
from rooftop.lab.judge.serve.queue import Queue

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no browser (chromium)")
EXPLOITS = settings.CHECKOUT / "tests" / "exploit"
WRONG = """__global__ void k(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) c[i] = a[i] - b[i];
}
extern "C" void solve(const float* a, const float* b, float* c, int n) { k<<<(n + 255) / 256, 256>>>(a, b, c, n); }
"""
WIDE = "document.documentElement.scrollWidth - innerWidth"  # pixels that a page is wider than the screen


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str, dict[str, str]]]:
    """A server with room for three jobs: its board, its address, tokens."""
    board, at = tmp_path / "board.sqlite", port()
    with Queue(board) as queue:
        tokens = {user: queue.add_user(user, 1)[0] for user in ("ann", "ben <b>")}
    own = settings.environment({"ROOFTOP_BOARD": str(board), "ROOFTOP_SIMT_PATIENCE": "2", "PYTHONPATH": settings.python_path()})
    words = ["serve", "--target", "cpu", "--port", str(at), "--waiting", "3", "--prefix", "/judge", "--log", str(tmp_path / "log")]
    process = subprocess.Popen([sys.executable, "-P", "-m", "rooftop", *words], env=own, stderr=subprocess.DEVNULL)
    try:
        until(lambda: up(at), 60)
        yield board, f"http://127.0.0.1:{at}/judge", tokens
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def signed_in(browser: Browser, width: int, url: str, token: str) -> Tab:
    tab = browser.tab(width)
    tab.open(f"{url}/sign-in")
    tab.fill(token=token)
    tab.send()
    assert tab.value("location.pathname") == "/judge/user"
    return tab


def hand_in(tab: Tab, url: str, op: str, source: str | Path) -> str:
    """Pasted or as a file; where the job is, or "" where it is refused."""
    tab.open(f"{url}/hand-in?op={op}")
    if isinstance(source, Path):
        tab.choose("file", source)
    else:
        tab.fill(source=source)
        assert tab.value("document.querySelectorAll('.editor pre .word').length") > 3, "what is typed is coloured"
        assert tab.value("document.querySelector('.editor pre').textContent").rstrip() == source.rstrip()
        tall = [tab.value(f"document.querySelector('.editor {part}').scrollHeight") for part in ("pre", "textarea")]
        assert abs(tall[0] - tall[1]) < 40, "the coloured lines lie under the typed ones"
    tab.send()
    return str(tab.value("location.href")) if "/job/" in tab.value("location.pathname") else ""


def judged(tab: Tab, job: str, kind: str, picture: Path) -> None:
    if tab.value("location.href") != job:
        tab.open(job)
    tab.until(f"document.getElementById('kind').textContent === {kind!r}", 240.0)
    assert tab.value(WIDE) <= 0
    tab.picture(picture)


@pytest.mark.sampled("slow")
def test_a_kernel_is_handed_in_and_followed(tmp_path: Path) -> None:
    """By a stub that judges."""
    board, at = tmp_path / "board.sqlite", port()
    with Queue(board) as queue:
        token, _ = queue.add_user("ann", 1)
    process = begun(board, at)
    try:
        until(lambda: up(at), 60)
        with Browser(tmp_path / "profile") as browser:
            tab = browser.tab(390)
            tab.open(f"http://127.0.0.1:{at}/sign-in")
            tab.fill(token=token)
            tab.send()
            job = hand_in(tab, f"http://127.0.0.1:{at}", "add", WRONG)
            judged(tab, job, "right", tmp_path / "right.png")
            assert [e for e in browser.events if e["method"] == "Runtime.exceptionThrown"] == []
    finally:
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.sampled("serve")
@pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))
def test_two_users_hand_in_kernels_and_see_verdicts_board_and_place(server: tuple[Path, str, dict[str, str]], tmp_path: Path) -> None:
    board, url, tokens = server
    with Browser(tmp_path / "profile") as browser:
        ann, ben = signed_in(browser, 1440, url, tokens["ann"]), signed_in(browser, 390, url, tokens["ben <b>"])
        right = hand_in(ann, url, "softmax", SOFTMAX)
        wrong = hand_in(ben, url, "add", WRONG)
        assert right and wrong and "before it" in ben.text
        race = hand_in(ann, url, "add", EXPLOITS / "race_that_passes.cu")
        endless = EXPLOITS / "kernel_without_end.cu"
        assert hand_in(ben, url, "add", endless) == "" and ben.status() == 503 and "the queue is full: 3 are waiting" in ben.text
        assert "volatile int i" in ben.value("document.querySelector('textarea').value"), "what was handed in is not lost"
        ben.picture(tmp_path / "full-390.png")
        judged(ann, right, "right", tmp_path / "right-1440.png")
        assert ann.value("document.querySelectorAll('pre.code .cost4, pre.code .cost3').length") >= 1
        assert ann.value("document.querySelectorAll('pre.code b').length") == SOFTMAX.rstrip("\n").count("\n") + 1, "numbered"
        assert "on the board" in ann.text and "Score 0." in ann.text
        stuck = hand_in(ben, url, "add", endless)
        assert stuck
        judged(ben, wrong, "wrong", tmp_path / "wrong-390.png")
        judged(ann, race, "race", tmp_path / "race-1440.png")
        assert ann.value("document.querySelector('pre.code .fault').textContent").strip()
        judged(ben, stuck, "stuck", tmp_path / "stuck-390.png")
        ben.open(right)
        assert ben.status() == 403 and "another user has handed this in" in ben.text
        for name, tab in (("1440", ann), ("390", ben)):
            for page, path in (("board", "/board?op=softmax"), ("ladder", "/ladder/softmax_cuda"), ("ladders", "/"), ("form", "/hand-in")):
                tab.open(url + path)
                assert tab.status() == 200 and tab.value(WIDE) <= 0, path
                tab.picture(tmp_path / f"{page}-{name}.png")
            tab.open(f"{url}/user?name=ann")
            assert tab.value("document.querySelectorAll('svg rect').length") == 2 and tab.value(WIDE) <= 0
            tab.picture(tmp_path / f"user-{name}.png")
        ann.open(f"{url}/board?op=softmax")
        row = ann.value("Array.from(document.querySelectorAll('tr')).find(r => r.textContent.includes('pasted.cu')).innerText")
        assert "ann" in row and "right" in row
        with sqlite3.connect(board) as base:
            base.execute("UPDATE tokens SET expires = '2020-01-01T00:00:00+00:00' WHERE user = 'ann'")
        base.close()
        ann.open(f"{url}/hand-in")
        assert ann.status() == 401 and "this token has expired" in ann.text
        ann.picture(tmp_path / "expired-1440.png")
        ben.open(f"{url}/hand-in")
        assert ben.status() == 200 and "ben <b>" in ben.text
        asked = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
        assert asked and all(u.startswith((url, "data:,")) for u in asked if u != "about:blank"), "no request to another host"
        said = [e["params"]["entry"] for e in browser.events if e["method"] == "Log.entryAdded"]
        assert [e["text"] for e in said if e["source"] != "network" and e["level"] != "verbose"] == [], "nothing is refused by the policy"
        assert not [e for e in browser.events if e["method"] == "Runtime.exceptionThrown"]
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert not any(token in log for token in tokens.values())
