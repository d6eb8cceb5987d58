"""`rooftop serve` in this process: pages, tokens, limits, headers and refusals. What is handed in is not judged here."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _serve import SOURCE, VERDICT, Place, TestClient, made
from _support import command

from rooftop.core import sandbox, settings
from rooftop.lab.judge import board as boards
from rooftop.lab.judge.serve import app, guard, job_child, pages, service
from rooftop.lab.judge.serve.queue import TRIES, Limits, NoUserError, Queue
from rooftop.lab.judge.serve.worker import form_of


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(app, "form_of", lambda *given: ("a form", ""))
    return made(tmp_path)


def jobs(place: Place) -> int:
    with Queue(place.path) as queue:
        return sum(queue.counts().values())


# -- pages -----------------------------------------------------------------------------------------------------------


def links(text: str) -> list[str]:
    return [link for link in re.findall(r'(?:href|src|action)="([^"]*)"', text) if link != "data:,"]


def everything(place: Place) -> list[Any]:
    """Every page, and refusals of each kind."""
    waiting = place.hand_in().headers["location"]
    done = f"/job/{place.judged()}"
    wrong = place.hand_in().headers["location"]
    place.judged(replace(VERDICT, kind="race", score=None, lines=(), said="k.cu:3: shared-race: two threads"))
    ladder = pages.ladders()[0]
    get = ("/", f"/ladder/{ladder.name}", "/board", "/board?op=add", "/user?name=ann", "/hand-in", "/hand-in?op=add", "/sign-in", waiting,
           done, wrong, "/nosuch", "/board?op=nosuch", "/ladder/nosuch", "/job/nosuch", "/user?name=nobody", "/healthz",
           f"{done}/verdict.json")
    answers = [place.ann.get(path) for path in get]
    answers += [place.ben.get(done), place.client.get("/hand-in"), place.ann.put("/"), place.ann.post("/board")]
    answers.append(place.hand_in(target="h100"))
    return [*answers, *(place.ann.get(f"/static/{name}") for name in pages.static())]


def test_every_answer_has_the_headers_and_no_page_has_anything_inline(place: Place) -> None:
    found = everything(place)
    assert {a.status_code for a in found} == {200, 401, 403, 404, 405, 422, 503}
    for answer in found:
        for name, value in guard.HEADERS.items():
            assert name == "cache-control" or answer.headers[name] == value, answer.url
        assert "server" not in answer.headers and "strict-transport-security" not in answer.headers
        if answer.headers["content-type"].startswith("text/html"):
            assert answer.headers["cache-control"] == "no-store" and '<html lang="en">' in answer.text
            assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|javascript:", answer.text), answer.url
            assert all(re.match("/(?!/)", link) for link in links(answer.text)), answer.url
    secure = TestClient(place.client.app, base_url="https://rooftop.test").get("/")
    assert "max-age" in secure.headers["strict-transport-security"]


def test_static_files_have_hashes_in_their_names_and_are_kept(place: Place) -> None:
    text = place.client.get("/").text
    named = re.findall(r"/static/([\w.]+)", text)
    assert len(named) == 4 and set(named) == set(pages.static())
    for name in named:
        answer = place.client.get(f"/static/{name}")
        assert re.search(r"\.[0-9a-f]{16}\.(css|js)$", name) and "immutable" in answer.headers["cache-control"] and answer.text
    assert place.client.get("/static/report.css").status_code == 404


def test_a_verdict_has_its_lines_coloured_its_place_and_a_history(place: Place) -> None:
    place.hand_in()
    name = place.judged()
    text = place.ann.get(f"/job/{name}").text
    assert '<span class="same cost4" data-from="1">__global__' in text and '<span class="same cost2" data-from="3">' in text
    assert "place 1 of 1" in text and "add/02: wider loads" in text and "90 %" in text
    assert place.ann.get(f"/job/{name}/verdict.json").json()["verdict"]["score"] == 0.5
    place.hand_in()
    raced = place.judged(replace(VERDICT, kind="race", score=None, lines=(), said="k.cu:2: shared-race: and pasted.cu:3 meet"))
    text = place.ann.get(f"/job/{raced}").text
    assert '<span class="same fault" data-from="3">' in text and 'data-from="2"' not in text, "lines of other files are none of it"
    profile = place.client.get("/user?name=ann").text
    assert profile.count("<rect") == 2 and "/job/" not in profile and "0.500" in profile and "race" in profile
    assert place.ann.get("/user?name=ann").text.count('href="/job/') == 2
    board = place.client.get("/board?op=add").text
    assert '<a href="/user?name=ann">ann</a>' in board and "pasted.cu" in board


def test_a_ladder_shows_the_best_score_of_each_rung(place: Place) -> None:
    with Queue(place.path) as queue:
        queue.begin()
    text = place.client.get("/ladder/softmax_cuda").text
    rungs = next(x for x in pages.ladders() if x.name == "softmax_cuda").rungs
    assert text.count("<tr>") == 1 + len(rungs) and re.search(r">0\.\d\d\d<", text)


def test_a_job_is_followed_until_it_is_judged(place: Place) -> None:
    where = place.hand_in().headers["location"]
    place.hand_in(place.ben)
    assert "waiting: 0 before it" in place.ann.get(where).text
    threading.Timer(0.7, place.judged).start()
    said = place.ann.get(f"{where}/events")
    assert said.headers["content-type"].startswith("text/event-stream")
    lines = [json.loads(line.removeprefix("data: ")) for line in said.text.splitlines() if line.startswith("data: ")]
    assert [line["state"] for line in lines] == ["waiting", "done"] and lines[-1]["over"] and place.service.following["ann"] == 0
    with Queue(place.path) as queue:
        other = queue.jobs("ben")[0]
    assert place.ann.get(f"/job/{other.id}/events").status_code == 403
    place.service.following["ben"] = app.STREAMS
    assert place.ben.get(f"/job/{other.id}/events").status_code == 429


def test_behind_a_proxy_every_path_has_the_prefix(tmp_path: Path) -> None:
    place = made(tmp_path, "/judge")
    for path in ("/judge/", "/", "/judge/board", "/judge/hand-in", "/judge/sign-in"):
        answer = place.ann.get(path)
        assert answer.status_code == 200, path
        assert links(answer.text) and all(link.startswith("/judge/") for link in links(answer.text))
    answer = place.client.post("/judge/sign-in", data={"token": place.tokens["ann"]})
    assert answer.headers["location"] == "/judge/user?name=ann" and "Path=/judge;" in answer.headers["set-cookie"]


def test_health_says_what_is_wrong(place: Place) -> None:
    answer = place.client.get("/healthz")
    assert (answer.status_code, answer.json()["ok"], list(answer.json()["wrong"])) == (503, False, ["cpu"]), "its worker has not begun"
    worker = place.service.workers[0]
    worker.start()
    for _ in range(100):
        if (answer := place.client.get("/healthz")).status_code == 200:
            break
        time.sleep(0.05)
    worker.stop()
    assert answer.json() == {"ok": True, "devices": ["cpu"], "jobs": {}, "wrong": {}}


# -- tokens ----------------------------------------------------------------------------------------------------------


def expire(place: Place, user: str) -> None:
    with sqlite3.connect(place.path) as base:
        base.execute("UPDATE tokens SET expires = '2020-01-01T00:00:00+00:00' WHERE user = ?", (user,))
    base.close()


def test_tokens_are_kept_hashed_and_end(place: Place, tmp_path: Path) -> None:
    token = place.tokens["ann"]
    answer = place.client.post("/sign-in", data={"token": token})
    cookie = answer.headers["set-cookie"]
    assert answer.status_code == 303 and "HttpOnly" in cookie and "SameSite=strict" in cookie and "Secure" not in cookie
    secure = TestClient(place.client.app, base_url="https://rooftop.test", follow_redirects=False).post("/sign-in", data={"token": token})
    assert "Secure" in secure.headers["set-cookie"]
    assert place.client.get("/hand-in").status_code == 200, "with the cookie"
    where = place.hand_in().headers["location"]
    kept = b"".join(p.read_bytes() for p in tmp_path.iterdir() if p.is_file())
    assert token.encode() not in kept, "neither in the board nor in the log"
    assert place.ben.get(where).status_code == 403 and "another user" in place.ben.get(where).text
    expire(place, "ann")
    for answer in (place.ann.get("/hand-in"), place.hand_in(), place.ann.get(where), place.client.get("/hand-in")):
        assert answer.status_code == 401 and "expired (2020-01-01)" in answer.text and answer.headers["www-authenticate"] == "Bearer"
    assert place.ann.get("/board").status_code == 200 and "Sign in" in place.ann.get("/board").text
    with Queue(place.path) as queue:
        assert queue.remove_user("ben") == 1
        with pytest.raises(NoUserError, match="not known here"):
            queue.user_of(place.tokens["ben"])
    assert place.ben.get("/hand-in").status_code == 401
    out = place.client.post("/sign-out")
    assert out.status_code == 303 and 'rooftop=""' in out.headers["set-cookie"] and out.headers["clear-site-data"] == '"cookies"'


def test_an_address_may_not_try_tokens_without_end(place: Place) -> None:
    status = [place.client.post("/sign-in", data={"token": f"t{i}"}).status_code for i in range(service.TRIALS + 1)]
    assert status == [401] * service.TRIALS + [429]
    assert place.client.post("/sign-in", data={"token": place.tokens["ann"]}).status_code == 303, "others of the same address go on"


def test_a_form_of_another_site_is_refused(place: Place) -> None:
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 303), ("none", 303)):
        place.ann.headers["sec-fetch-site"] = site
        assert place.hand_in().status_code == status
    assert jobs(place) == 2


def test_users_are_made_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ROOFTOP_BOARD", str(tmp_path / "board.sqlite"))
    assert command(monkeypatch, "board", "user", "add", "ann", "--days", "3") == 0
    token = capsys.readouterr().out.strip()
    with Queue(tmp_path / "board.sqlite") as queue:
        assert queue.user_of(token) == "ann"
    assert command(monkeypatch, "board", "user", "list") == 0 and "ann" in capsys.readouterr().out
    assert command(monkeypatch, "board", "user", "remove", "ann") == 0 and command(monkeypatch, "board", "user", "remove", "ann") == 1
    for words in (("",), ("x" * 61,), ("a\nb",), ("rungs",), ("ann", "--days", "0")):
        capsys.readouterr()
        assert command(monkeypatch, "board", "user", "add", *words) == 1 and len(capsys.readouterr().err.strip().splitlines()) == 1


# -- bad input -------------------------------------------------------------------------------------------------------

LARGE = b"//" + b"x" * (10 << 20)
BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "10 MB": ({"file": ("k.cu", LARGE)}, 413, "a submission has at most 1,048,576"),
    "a byte too large": ({"file": ("k.cu", b"/" * ((1 << 20) + 1))}, 413, "it has 1,048,577 bytes"),
    "binary": ({"file": ("k.cu", b"\x7fELF\0\0")}, 422, "it is binary (a zero byte at 4)"),
    "not UTF-8": ({"file": ("k.py", b"# \xe9\n")}, 422, "it is not UTF-8 (byte 2)"),
    "another kind of file": ({"file": ("k.exe", b"MZ")}, 422, "k.exe is no submission: a .cu or a .py is"),
    "a device that is not there": ({"target": "h100"}, 422, "there is no device 'h100' here; there are cpu"),
    "no op": ({"op": ""}, 422, "say what it computes"),
    "an op that is none": ({"op": "sofmax"}, 422, "no op 'sofmax'; did you mean 'softmax'?"),
    "no name of a function": ({"language": "py", "function": "f()"}, 422, "'f()' is no name of a function"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_a_page_with_its_status_and_nothing_is_lost(place: Place, name: str) -> None:
    given, status, says = BAD[name]
    place.hand_in()
    answer = place.hand_in(**given)
    text = answer.text.replace("&#39;", "'")
    assert answer.status_code == status and says in text and jobs(place) == 1
    assert "file" in given or "k&lt;&lt;&lt;1, 1&gt;&gt;&gt;(x);" in text, "what was pasted stands in the form again"


def test_a_wrong_form_is_told_by_a_process_that_does_not_run_it(tmp_path: Path) -> None:
    place = made(tmp_path)
    mark = tmp_path / "it_ran"
    module = f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n"
    for file, content, says in (
        ("a.cu", "__global__ void k() {}\nvoid run() {}\n", "a.cu has neither a head nor extern"),
        ("b.py", module, "b.py has no function of tensors"),
    ):
        answer = place.hand_in(file=(file, content.encode()))
        assert answer.status_code == 422 and says in answer.text and "rooftop-serve-" not in answer.text
    whole = module + "def add(x, y): return x + y\n"
    if not sandbox.missing():
        assert form_of("c.py", whole, "add", "", "cpu", False) == ("a Python function", "")
    assert form_of("c.py", whole, "add", "", "cpu", True) == ("a Python function", "")
    assert not mark.exists() and jobs(place) == 0


def test_what_would_run_with_the_servers_rights_is_taken_of_trusted_users_alone(tmp_path: Path) -> None:
    place, text = made(tmp_path), "def supports(p): return None\ndef launches(p, config): return []\n"
    answer = place.hand_in(file=("add__mine__triton.py", text.encode()))
    assert answer.status_code == 422 and "run with the server&#39;s own rights; rooftop serve --trusted takes it" in answer.text
    place.service.workers[0].trusted = True
    assert place.hand_in(file=("add__mine__triton.py", text.encode())).status_code == 303


def test_where_the_system_isolates_nothing_nothing_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "k.cu").write_text(SOURCE)
    job = {"kernel": str(tmp_path / "k.cu"), "op": "add", "target": "cpu", "trusted": False}
    monkeypatch.setattr(sandbox, "missing", lambda: ["Landlock"])
    with pytest.raises(ValueError, match="this machine has no seccomp or no Landlock, without which it may run with the server's own rights"):
        job_child.recognise(job)
    assert job_child.recognise({**job, "trusted": True})["form"]
    monkeypatch.setattr(sandbox, "missing", list)
    assert job_child.recognise({**job, "target": "h200"})["form"], "a kernel has a card's context, and no files"
    (tmp_path / "k.py").write_text("def add(x, y): return x + y\n")
    with pytest.raises(ValueError, match="a Python function may, on a card, run with the server's own rights"):
        job_child.recognise({**job, "kernel": str(tmp_path / "k.py"), "target": "h200"})


def test_the_servers_process_has_nothing_that_runs_what_is_handed_in() -> None:
    code = "import sys, rooftop.lab.judge.serve.server as s; s.application; print(sorted(m for m in sys.modules if m in sys.argv[1:]))"
    apart = ["torch", "triton", "rooftop.lab.judge.judging", "rooftop.lab.judge.python", "rooftop.lab.judge.cuda"]
    own = settings.environment({"PYTHONPATH": settings.python_path()})
    done = subprocess.run([sys.executable, "-c", code, *apart], capture_output=True, text=True, check=True, env=own)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("limits", "status", "says"),
    [
        (Limits(waiting=2), 503, "the queue is full: 2 are waiting"), (Limits(own=2), 429, "2 of yours are waiting"),
        (Limits(hourly=2), 429, "you have handed in 2 within an hour"),
    ],
)
def test_limits_are_said_with_when_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits, status: int, says: str
) -> None:
    monkeypatch.setattr(app, "form_of", lambda *given: ("a form", ""))
    place = made(tmp_path, limits=limits)
    assert [place.hand_in().status_code for _ in range(2)] == [303, 303]
    answer = place.hand_in()
    assert answer.status_code == status and says in answer.text and int(answer.headers["retry-after"]) > 0 and "void solve" in answer.text
    assert jobs(place) == 2 and (place.hand_in(place.ben).status_code == 503) == (status == 503)
    if limits.hourly > 2:
        place.judged()
        assert place.hand_in().status_code == 303


def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, no file of SQLite can grow."""
    connect = sqlite3.connect
    on: list[bool] = []

    def connected(*given: Any, **more: Any) -> sqlite3.Connection:
        base = connect(*given, **more)
        if on:
            base.execute(f"PRAGMA max_page_count = {base.execute('PRAGMA page_count').fetchone()[0]}")
        return base

    monkeypatch.setattr(boards.sqlite3, "connect", connected)
    return lambda: on.append(True)


def test_a_full_disk_is_said_and_nothing_is_lost(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = full_disk(monkeypatch)
    where = place.hand_in().headers["location"]
    fill()
    large = SOURCE + "// " + "x" * 50_000
    answer = place.hand_in(source=large)
    assert answer.status_code == 507 and "no room on the server&#39;s disk" in answer.text and "x" * 50_000 in answer.text
    assert jobs(place) == 1 and place.ann.get(where).status_code == 200
    with Queue(place.path) as queue:
        job = queue.take("cpu")
        assert job is not None
        with pytest.raises(boards.FullError):
            queue.judged(job, replace(VERDICT, notes=("x" * 50_000,)))
        assert queue.job(job.id).state == "judging" and queue.entry(job.id) is None, "neither half of it is kept"
    assert place.service.board == place.path


def test_a_verdict_that_no_board_keeps_is_said_and_holds_nobody_up(place: Place) -> None:
    where = place.hand_in().headers["location"]
    with Queue(place.path) as queue:
        job = queue.take("cpu")
        assert job is not None and place.service.workers[0]._kept(queue, job, replace(VERDICT, score=2.0))
        assert queue.entry(job.id) is None
    assert "what no board keeps: the score is 0 to 1" in place.ann.get(where).text


def test_what_ends_the_server_each_time_is_given_up(place: Place) -> None:
    where = place.hand_in().headers["location"]
    with Queue(place.path) as queue:
        for n in range(TRIES):
            job = queue.take("cpu")
            assert job is not None and job.tries == n + 1
            assert queue.resume("cpu") == (n + 1 < TRIES)
        assert queue.take("cpu") is None
    assert f"the server ended {TRIES} times while it was judged" in place.ann.get(where).text


def test_a_board_that_cannot_be_used_is_a_page(place: Place) -> None:
    for path in place.path.parent.glob("board.sqlite*"):
        path.unlink()
    place.path.write_bytes(b"no board at all" * 100)
    answers = [place.client.get("/board"), place.client.get("/healthz"), place.ann.get("/hand-in")]
    assert [a.status_code for a in answers] == [503] * 3 and "nothing that was kept is lost" in answers[0].text


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("starlette", "uvicorn", "python_multipart"):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, name, None)
            assert command(patched, "serve", "--target", "cpu") == 3
        assert re.fullmatch(rf"rooftop: {name} is not installed: pip install '\.\[serve\]' .*\n", capsys.readouterr().err)
    for words in (("--prefix", "judge/"), ("--prefix", "/a b"), ("--port", "0")):
        assert command(monkeypatch, "serve", "--target", "cpu", *words) == 1


def test_a_file_is_named_by_its_last_part_in_few_characters(place: Place) -> None:
    long = "a" * 300
    for given, kept in (
        ("../../etc/x.cu", "x.cu"), ("C:\\k\\my kernel<b>.cu", "my_kernel_b_.cu"), (".cu", ""), ("..py", ""),
        (f"{long}.py", f"{long[:80]}.py"),
    ):
        answer = place.hand_in(file=(given, b"def f(x): return x\n"))
        assert answer.status_code == (303 if kept else 422), given
        if kept:
            assert f"<h1>{kept} " in place.ann.get(answer.headers["location"]).text


def test_the_log_is_lines_of_json(place: Place, tmp_path: Path) -> None:
    place.ann.get("/board?op=add")
    place.client.get('/x%22%0Ay')
    place.hand_in()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines()]
    assert [line["event"] for line in lines] == ["request", "request", "handed in", "request"]
    assert lines[0]["path"] == "/board" and lines[0]["status"] == 200 and lines[0]["user"] == "ann" and lines[0]["ms"] >= 0
