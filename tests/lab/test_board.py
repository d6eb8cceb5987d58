"""The board: several writers, kills, versions, damage, signed entries, percentile."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from _support import command, committed

from rooftop.core import settings
from rooftop.lab.judge import board as boards
from rooftop.lab.judge.board import Board, BoardError, Entry
from rooftop.lab.judge.verdict import Verdict

WRITER = """
import sys, uuid
from pathlib import Path
from rooftop.lab.judge.board import OWN, Board, Entry
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with Board(path) as board:
    for i in range(count):
        key = uuid.uuid5(uuid.NAMESPACE_OID, f"{name} {i}").hex
        board.add(Entry(key, "2026-11-29T00:00:00+00:00", name, OWN, "counts", "counts", "add", "c f32", f"k{i}", "", "right", 0.5, 1.0))
        print(i, flush=True)
"""


def entry(name: str, user: str = "ann", points: float | None = 0.5, **more: object) -> Entry:
    made = Entry(
        name, "2026-11-29T10:00:00+00:00", user, boards.OWN, "counts", "counts", "softmax", "c f32", f"{name}.cu", "d", "right", points,
        100.0,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def writers(path: Path, count: int, each: int, kills: int, seed: int) -> tuple[int, int]:
    """`count` writers of `each` entries, `kills` times one of them killed and begun again; how many entries came of it, and kills that hit
    one."""
    draw, environment = random.Random(seed), settings.environment({"PYTHONPATH": settings.python_path()})

    def begin(n: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), f"writer{n}", str(each)], env=environment, stdout=subprocess.DEVNULL
        )

    running = {n: begin(n) for n in range(count)}
    hit = 0
    for _ in range(kills):
        time.sleep(draw.uniform(0.05, 0.25))
        n = draw.randrange(count)
        if running[n].poll() is None:
            os.kill(running[n].pid, signal.SIGKILL)
            hit += 1
        running[n].wait()
        running[n] = begin(n)
    assert [p.wait(300) for p in running.values()] == [0] * count
    with Board(path) as board:
        found = board.entries()
        assert len({e.id for e in found}) == len(found)
        assert {(e.user, e.subject) for e in found} == {(f"writer{n}", f"k{i}") for n in range(count) for i in range(each)}
    return len(found), hit


def test_several_writers_and_kills_lose_nothing_and_write_nothing_twice(tmp_path: Path) -> None:
    found, hit = writers(tmp_path / "board.sqlite", 3, 40, 4, seed=1)
    assert found == 120 and hit >= 1
    with Board(tmp_path / "board.sqlite") as board:
        assert board.add([entry("again"), entry("again")]) == 1 and board.add(entry("again")) == 0


def test_a_file_of_the_first_version_is_brought_up_to_date_with_all_it_has(tmp_path: Path) -> None:
    path = tmp_path / "board.sqlite"
    with sqlite3.connect(path) as base:
        for statement in boards.MIGRATIONS[0]:
            base.execute(statement)
        base.execute(
            "INSERT INTO entries VALUES ('a', '2026-11-29T00:00:00+00:00', 'ann', 'judged here', 'counts', 'counts', 'add', 'c', 'k', '', "
            "'right', 0.5, 2.0, '{}')"
        )
        base.execute("PRAGMA user_version = 1")
    base.close()
    with Board(path) as board:
        assert [(e.id, e.signer) for e in board.entries()] == [("a", "")] and board.add(entry("b")) == 1
    with Board(path) as board:
        assert len(board.entries()) == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"no database at all", "is damaged, or no board"), (None, "is damaged, or no board"), (b"later", "a later version")],
)
def test_a_damaged_board_is_one_line_and_stays_as_it_is(
    tmp_path: Path, content: bytes | None, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "board.sqlite"
    with Board(path) as board:
        board.add([entry(f"e{i}") for i in range(200)])
    if content == b"later":
        with sqlite3.connect(path) as base:
            base.execute(f"PRAGMA user_version = {boards.VERSION + 1}")
        base.close()
    else:
        path.write_bytes(content if content is not None else b"\0" * 64 + path.read_bytes()[64:])
    before = path.read_bytes()
    with pytest.raises(BoardError, match=says):
        Board(path)
    monkeypatch.setenv("ROOFTOP_BOARD", str(path))
    code, said = command(monkeypatch, "board"), capsys.readouterr().err.strip()
    assert code == 1 and says in said and len(said.splitlines()) == 1 and path.read_bytes() == before
    with pytest.raises(BoardError, match="is a folder"):
        Board(tmp_path)


def test_what_no_board_writes_is_refused_whole(tmp_path: Path) -> None:
    with Board(tmp_path / "board.sqlite") as board:
        for wrong in (
            {"kind": "splendid"}, {"score": 1.5}, {"score": float("nan")}, {"kind": "wrong"}, {"amount": -1.0}, {"at": "yesterday"},
            {"user": "x" * 300},
        ):
            with pytest.raises(ValueError):
                board.add([entry("fine"), entry("other", **wrong)])
        assert board.entries() == []


def test_a_percentile_is_of_others_at_the_same_case(tmp_path: Path) -> None:
    with Board(tmp_path / "board.sqlite") as board:
        mine = entry("mine", points=0.6)
        assert board.percentile(mine) is None
        board.add(
            [
                mine, entry("old", points=0.9), entry("b", "ben", 0.5), entry("b2", "ben", 0.55), entry("c", "cy", 0.7),
                entry("x", "dan", 0.1, item="other f32"),
            ]
        )
        assert board.percentile(mine) == pytest.approx(50.0), "the best of ben and of cy, not one's own, not of other cases"
        board.add([entry("r1", "rungs", 0.0, source=boards.RECORD), entry("r2", "rungs", 0.3, source=boards.RECORD)])
        assert board.percentile(mine) == pytest.approx(75.0)
        assert board.percentile(entry("wrong", points=None, kind="wrong")) is None
        assert [e.id for e in board.history("ann")] == ["mine", "old"]
        board.add(entry("bad", kind="race", score=None))
        assert [e.id for e in board.history("ann")] == ["bad", "mine", "old"] and "bad" not in {e.id for e in board.entries(op="softmax")}


def test_a_board_begins_with_every_rung_and_peer_of_the_records(tmp_path: Path) -> None:
    records = [r for r in committed() if r["kind"] == "ceiling" or (r["kind"] == "bench" and r["op"] == "softmax")]
    with Board(tmp_path / "board.sqlite") as board:
        assert board.begin(records) > 50 and board.begin(records) == 0
        timed = board.entries(op="softmax", device="NVIDIA H200", basis="time")
        names = {e.subject for e in timed}
        assert {"peer:torch", "softmax_cuda/01_naive", "softmax_cuda/08_cluster"} <= names
        first = [e for e in timed if e.subject == "softmax_cuda/01_naive"]
        assert first and all(e.score == 0 for e in first) and all(e.score is not None and 0 <= e.score <= 1 for e in timed)
        counted = board.entries(basis="counts")
        assert {e.device for e in counted} == {"counts"} and "softmax_cuda/04_warp_shuffle" in {e.subject for e in counted}


def test_a_verdict_becomes_an_entry_and_a_page_shows_it_as_text(tmp_path: Path) -> None:
    verdict = Verdict("<b>k</b>.cu", "0" * 64, "f", "softmax", "right", basis="counts", cost=10.0, score=0.25, case="c f32")
    with Board(tmp_path / "board.sqlite") as board:
        board.add(boards.of_verdict(verdict, "<script>ann"))
        kept = board.entries()[0]
        page = boards.page(board.entries())
    assert (kept.score, kept.amount, kept.device, kept.verdict["kind"]) == (0.25, 10.0, "counts", "right")
    assert "<script" not in page and "&lt;script&gt;ann" in page and "&lt;b&gt;k" in page and "no times" in page
    assert boards.of_verdict(Verdict("k.cu", "", "f", "softmax", "race"), "ann").score is None


def test_signed_entries_come_back_and_changed_ones_do_not(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="signed entries need cryptography: pip install 'rooftop[board]'")
    text = boards.exported([entry("a"), entry("b", "ben"), entry("r", source=boards.RECORD)], tmp_path / "key")
    assert text.count("\n") == 2 and (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert boards.exported([entry("a")], tmp_path / "key").splitlines()[0] == text.splitlines()[0], "the key is kept"
    found = boards.imported(text)
    assert [(e.id, e.source) for e in found] == [("a", boards.IMPORTED), ("b", boards.IMPORTED)] and len({e.signer for e in found}) == 1
    with Board(tmp_path / "board.sqlite") as board:
        assert board.add(found) == 2 and board.add(found) == 0
    line = json.loads(text.splitlines()[0])
    other = json.loads(boards.exported([entry("c")], tmp_path / "other").splitlines()[0])
    changed = [
        {**line, "entry": {**line["entry"], "score": 0.99}}, {**line, "entry": {**line["entry"], "user": "eve"}},
        {**line, "key": other["key"]}, {**line, "signature": line["signature"][:-2]}, {**line, "entry": {**line["entry"], "more": 1}},
        {"entry": line["entry"]}, [], {**line, "key": "zz"},
    ]
    for wrong in changed:
        with pytest.raises(ValueError, match=r"^line 2.*nothing was imported$"):
            boards.imported(text.splitlines()[1] + "\n" + json.dumps(wrong))


def test_without_the_package_an_export_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    monkeypatch.setenv("ROOFTOP_BOARD", str(tmp_path / "board.sqlite"))
    code = command(monkeypatch, "board", "--device", "counts", "--export", str(tmp_path / "out.jsonl"))
    assert code == 3 and "cryptography" in capsys.readouterr().err and not (tmp_path / "out.jsonl").exists()
