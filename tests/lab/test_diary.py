"""The diary: what commands found, with the learner's notes, as pages by day; what is damaged is kept, and the same days give the same bytes."""

from __future__ import annotations

import fcntl
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from math import prod
from pathlib import Path

import _browser
import pytest
from _report import Strict
from _support import command

from rooftop.core import registry
from rooftop.lab.diary import days, log, pages
from rooftop.lab.diary.days import Note, section
from rooftop.lab.diary.log import Entry, Row
from rooftop.lab.learn.progress import Progress
from rooftop.lab.records.record import Record

START = datetime(2026, 11, 23, 9, 30, tzinfo=UTC)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A learner's folder, in which a log is kept."""
    monkeypatch.setenv("ROOFTOP_DIARY", str(tmp_path / "state" / "diary.jsonl"))
    monkeypatch.setenv("ROOFTOP_LEARN", str(tmp_path / "state" / "learn.sqlite"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def at(hours: float) -> str:
    return (START + timedelta(hours=hours)).isoformat(timespec="seconds")


def week(home: Path) -> None:
    """30 checks, 10 benches, 5 simulations, predictions, puzzles and notes of seven days."""
    for n in range(30):
        wrong = n % 7 == 6
        log.keep("check", [f"sgemm_cuda/{n % 12:02d}", "softmax__cuda_sm90"], ["matmul"], {"ok": 5, "wrong": int(wrong)}, said="|x| [y](z)" if wrong else "",
                 at=lambda n=n: at(24 * (n % 7) + n / 10))
    for n in range(10):
        rows = [Row("spmm_csr__cuda", f"rows {256 << k} f32", 10.0 * 2**k, 0.8 + 0.1 * k) for k in range(4)]
        log.keep("bench", ["spmm_csr__cuda"], ["spmm_csr"], {"cases": 4}, rows, at=lambda n=n: at(24 * (n % 7) + 1 + n / 10))
    for n in range(5):
        log.keep("simt", ["transpose_cuda/02"], figures={"sectors": 4096, "wavefronts": 0, "faults": n % 2}, at=lambda n=n: at(24 * n))
    with Progress(home / "state" / "learn.sqlite", lambda: START) as progress:
        progress.predicted("transpose_cuda/02_rows_out", "speedup", 4.0, 3.4, 89)
        progress.tried("transpose_cuda/04a", "race", "line 3", 1)
        progress.tried("transpose_cuda/04a", "right", "", 1)
        progress.read("transpose_cuda/02_rows_out")
    (home / "notes").mkdir()
    (home / "notes" / "2026-11-23-gemm.md").write_text("# 合并访存\n\nTiles, `a[i]`.\n\n```\n# no heading\n```\n<script>x</script>\n", encoding="utf-8")
    (home / "notes" / "2026-11-25.md").write_text("Slept on it.", encoding="utf-8")


def test_a_week_is_a_page_a_day_and_an_index_twice_the_same(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    week(home)
    began = time.process_time()
    assert command(monkeypatch, "diary") == 0
    assert time.process_time() - began < 5
    assert "7 days, 48 things done: diary/index.html" in capsys.readouterr().out
    made = {p.name: p.read_bytes() for p in (home / "diary").iterdir()}
    assert set(made) == {"report.css", "report.js", *(f"{d}.{e}" for d in ["index", *(f"2026-11-{n}" for n in range(23, 30))] for e in ("md", "html"))}
    assert command(monkeypatch, "diary", "--out", "again") == 0
    assert {p.name: p.read_bytes() for p in (home / "again").iterdir()} == made
    for name in made:
        if name.endswith(".html"):
            Strict(made[name].decode())
    first = made["2026-11-23.md"].decode()
    for said in ("5 checks, 2 benches", "## GEMM", "## SpMM and other sparse products", "## Reductions and data movement", "speedup: said 4, was 3.4",
                 "| puzzle | transpose_cuda/04a | ", "### gemm", "### 合并访存", "\n# no heading\n",
                 "spmm_csr__cuda | rows 256 f32 | 10.00 µs | 0.80x"):
        assert said in first, (said, first)
    page = made["2026-11-23.html"].decode()
    assert page.count("<svg") == 2 and "合并访存" in page and "<script>x" not in page and "&lt;script>x" in page and "cdn" not in page
    assert made["index.html"].decode().count("<svg") == 1 and "2026-11-29.html" in made["index.html"].decode()
    assert "\\|x\\| \\[y\\](z)" in "".join(t.decode() for n, t in made.items() if n.endswith(".md")), "what is said is no markup"


def test_one_day_alone_is_written_with_the_index_of_all(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    week(home)
    assert command(monkeypatch, "diary", "2026-11-25") == 0
    assert {p.name for p in (home / "diary").glob("*.md")} == {"2026-11-25.md", "index.md"}
    index, day = ((home / "diary" / name).read_text(encoding="utf-8") for name in ("index.md", "2026-11-25.md"))
    assert "2026-11-29.md" in index and "Slept on it." in day


def test_the_pages_replace_nothing_of_somebody_elses(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    week(home)
    (home / "diary").mkdir()
    (home / "diary" / "2026-11-25.md").write_text("mine", encoding="utf-8")
    assert command(monkeypatch, "diary") == 1
    assert "2026-11-25.md is no page of the diary's" in capsys.readouterr().err
    assert [p.name for p in (home / "diary").iterdir()] == ["2026-11-25.md"] and (home / "diary" / "2026-11-25.md").read_text("utf-8") == "mine"
    assert command(monkeypatch, "diary", "--out", "notes") == 1 and "the pages need a folder of their own" in capsys.readouterr().err


# -- the log ------------------------------------------------------------------------------------------------------------------


def test_many_append_at_once_and_a_torn_line_spoils_no_other(home: Path) -> None:
    path = home / "state" / "diary.jsonl"
    path.parent.mkdir()
    path.write_bytes(b'{"at": "2026-11-2')
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: log.keep("check", [str(n)], at=lambda: at(n)), range(40)))
    found, aside = log.read(path)
    assert {e.subjects for e in found} == {(str(n),) for n in range(40)} and aside is not None and aside.read_bytes().startswith(b'{"at": "2026-11-2\n')
    assert log.read(path) == (found, None)


DAMAGED = (
    b"\xff\xfe\x00 no text", b"{}", b"[]", b'{"at": "yesterday at ten in the morning", "kind": "check"}', b"[" * 100_000, b'{"at": 3, "kind": "check"}',
    b'{"at": "2026-11-23T10:00:00+00:00", "kind": "check", "figures": {"ok": NaN}}', b'{"at": "2026-11-23T10:00:00+00:00", "kind": "check", "rows": [1]}',
    b'{"at": "2026-11-23", "kind": "check"}',
)


def test_damaged_lines_are_kept_aside_and_said(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / "state" / "diary.jsonl"
    log.keep("check", ["good"], at=lambda: at(0))
    good = path.read_bytes()
    content = good + b"\n".join(DAMAGED) + b"\n" + good
    path.write_bytes(content)
    assert command(monkeypatch, "diary") == 0
    said = capsys.readouterr()
    assert f"it is kept as it was in {path}.damaged" in said.err and said.err.count("\n") == 1 and "1 day, 2 things done" in said.out
    assert path.with_name("diary.jsonl.damaged").read_bytes() == content and path.read_bytes() == good + good
    assert command(monkeypatch, "diary") == 0 and capsys.readouterr().err == ""


@pytest.mark.parametrize("hostile", ["\x1b[2J", "</script><img src=x onerror=y>", "a|b\n# c", "\u202eabc", "x" * 5000, "\udc80"])
def test_what_an_entry_says_is_no_markup(home: Path, hostile: str) -> None:
    log.keep(hostile, [hostile], [hostile], {hostile: 1.0}, [Row(hostile, hostile, 3.0, 1.0)], hostile, at=lambda: at(0))
    found, aside = log.read(home / "state" / "diary.jsonl")
    assert aside is None and len(found) == 1
    day = days.days(found, [])[0]
    html, text = pages.page(day), pages.text(day)
    html.encode(), text.encode()
    Strict(html)
    assert "<img" not in html and "\x1b" not in html + text and "\u202e" not in html + text and "\n# c" not in text


def test_a_log_that_cannot_be_written_fails_no_command(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("/proc/none/diary.jsonl", str(home), "/dev/full"):
        monkeypatch.setenv("ROOFTOP_DIARY", place)
        log.keep("check", ["a"])
    monkeypatch.setenv("ROOFTOP_DIARY", "off")
    log.keep("check", ["a"])
    assert list(home.iterdir()) == []
    os.mkfifo(home / "pipe")  # that nobody reads
    monkeypatch.setenv("ROOFTOP_DIARY", str(home / "pipe"))
    log.keep("check", ["a"])
    with pytest.raises(ValueError, match="is no ordinary file"):
        log.read(home / "pipe")
    monkeypatch.setattr(log, "WAIT", 0.05)
    with (home / "held.jsonl").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setenv("ROOFTOP_DIARY", held.name)
        log.keep("check", ["a"])
    assert log.read(home / "held.jsonl") == ([], None)


@pytest.mark.parametrize(("words", "kind", "subject", "heading", "said"), [
    ((), "check", "softmax__triton", "Norms and softmax", {"ok": 1.0}),
    (("diagnose", "transpose_cuda/02"), "diagnose", "transpose_cuda/02", "Reductions and data movement", {}),
])
def test_commands_keep_what_they_found(
    home: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], kind: str, subject: str, heading: str, said: dict[str, float]
) -> None:
    if kind == "check":
        case = min(registry.op("softmax").cases, key=lambda c: sum(prod(x.shape) or 1 << 40 for _, x in c.tensors()))
        words = ("check", subject, "--case", case.id, "--backend", "cpu")
    assert command(monkeypatch, *words) == 0
    found, aside = log.read(home / "state" / "diary.jsonl")
    assert aside is None and [(e.kind, e.subjects) for e in found] == [(kind, (subject,))] and section(found[0]) == heading
    assert said.items() <= found[0].figures.items()


# -- what else there is -------------------------------------------------------------------------------------------------------


def test_sections_are_by_what_is_computed() -> None:
    def of(*subjects: str, ops: tuple[str, ...] = ()) -> str:
        return section(Entry(at(0), "check", subjects, ops))

    assert of("sgemm_cuda/05_tile_2d") == of("matmul__cuda_sm90") == "GEMM" and of("my.cu") == "Other" and of("my.cu", ops=("softmax",)) == "Norms and softmax"
    assert of("spmm_csr_cuda/02") == "SpMM and other sparse products" and of("quantize_cuda/01") == "Quantisation"
    assert of("softmax__pallas") == "NPU" and of("lossy_cuda/01") == "Compression" and of("gone_ladder/01") == "Other"
    from rooftop.core import helpers

    assert {p.name for p in helpers.KERNELS.iterdir() if p.is_dir() and p.name[0] != "_"} <= set(days.SECTIONS), "every family has a heading"


def record(subject: str, us: float, when: str, **more: object) -> Record:
    return Record({"kind": "bench", "at": when, "subject": subject, "op": "softmax", "case": "c", "device": {"name": "card"},
            "clocks": {"kernel": {"median": us * 1e-6, "low": 0.0, "high": 1.0}},
            "versus": {n: {"ratio": x, "low": x, "high": x, "verdict": "same"} for n, x in (("peer:torch", 0.5), ("ceiling:copy", 2.0))}, **more})


def test_records_of_a_card_elsewhere_come_by_their_day_and_once() -> None:
    made = days.of_records([record("softmax__cuda", 8.0, "2026-11-24T01:30:00+02:00"), record("peer:torch", 9.0, at(0)),
                            record("softmax__cuda", 0, at(5), kind="check", error={"ok": False})])
    assert [(e.day, e.kind, e.subjects) for e in made] == [("2026-11-23", "record", ("softmax__cuda",)), ("2026-11-23", "check", ("softmax__cuda",))]
    assert made[0].rows == (Row("softmax__cuda", "c", 8.0, 2.0),) and made[1].figures == {"ok": 0, "wrong": 1}
    logged = Entry(at(1), "bench", ("softmax__cuda",), ("softmax",), {"cases": 1}, made[0].rows)
    assert [e.kind for e in days.days([logged, made[0]], [])[0].entries] == ["bench"]


TEXT = "共享内存 und Größe"


@pytest.mark.parametrize(("content", "encoding"), [
    (TEXT.encode(), ""), (b"\xef\xbb\xbf" + TEXT.encode(), ""), (TEXT.encode("utf-16"), ""), (TEXT.encode("utf-32"), ""), (TEXT.encode("gb18030"), "gb18030"),
    (TEXT.encode(), "gb18030"),
])
def test_notes_of_any_encoding_are_read(tmp_path: Path, content: bytes, encoding: str) -> None:
    (tmp_path / "2026-11-23 shared.md").write_bytes(content)
    (tmp_path / "todo.md").write_bytes(b"\xff")
    (tmp_path / "2026-13-99.md").write_text("no date", encoding="utf-8")
    assert days.notes(tmp_path, encoding) == ([Note("2026-11-23", "shared", TEXT, "2026-11-23 shared.md")], ["2026-13-99.md", "todo.md"])


@pytest.mark.parametrize(("prepare", "words", "said"), [
    (lambda d: (d / "notes" / "2026-11-23.md").write_bytes(TEXT.encode("gb18030")), [], "notes/2026-11-23.md is not UTF-8: save it as UTF-8"),
    (lambda d: (d / "notes" / "2026-11-23.md").write_bytes(b"a\0b"), [], "notes/2026-11-23.md is not UTF-8"),
    (lambda d: (d / "notes" / "2026-11-23.md").write_bytes(b"\xff\xff"), ["--encoding", "gb18030"], "is neither UTF-8 nor gb18030"),
    (lambda d: None, ["--encoding", "klingon"], "--encoding klingon: there is no such encoding"),
    (lambda d: None, ["--encoding", "hex"], "--encoding hex: there is no such encoding"),
    (lambda d: os.mkfifo(d / "notes" / "2026-11-23.md"), [], "no regular file"),
    (lambda d: None, ["tomorrow"], "'tomorrow' is no date; it is written 2026-11-29"),
    (lambda d: None, ["2026-01-01"], "there is nothing of 2026-01-01"),
    (lambda d: None, ["--notes", "notes/x.md"], "is a file; a folder is needed"),
    (lambda d: None, ["--records", "nix"], "--records nix: there is no such folder"),
    (lambda d: None, ["--out", "notes/x.md"], "notes/x.md is a file; a folder is needed"),
])
def test_what_is_wrong_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], prepare, words, said) -> None:  # type: ignore[no-untyped-def]
    (home / "notes").mkdir()
    (home / "notes" / "x.md").write_text("x", encoding="utf-8")
    log.keep("check", ["a"], at=lambda: at(0))
    prepare(home)
    before = (home / "state" / "diary.jsonl").read_bytes()
    assert command(monkeypatch, "diary", *words) in (1, 3)
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1 and said in lines[0], lines
    assert not (home / "diary").exists() and (home / "state" / "diary.jsonl").read_bytes() == before


def test_a_damaged_progress_file_is_said(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "state").mkdir()
    (home / "state" / "learn.sqlite").write_bytes(b"damaged")
    assert command(monkeypatch, "diary") == 0
    said = capsys.readouterr()
    assert "it is kept as" in said.err and "the diary is empty" in said.out and not (home / "diary").exists()


def test_every_kind_and_figure_that_commands_keep_has_words() -> None:
    assert set(pages.ZEROS) <= set(pages.FIGURES)
    assert sorted(k for held in pages.GROUPS.values() for k in held) == sorted(pages.KINDS), "each is in a colour"
    text = json.dumps([pages.result(Entry(at(0), k, figures=dict.fromkeys(pages.FIGURES, 2.0))) for k in pages.KINDS])
    assert "{}" not in text


PROBE = """
window.addEventListener("load", function () {
  parent.postMessage(JSON.stringify({
    width: innerWidth, page: document.documentElement.scrollWidth, drawn: document.querySelectorAll("figure svg").length,
    rows: document.querySelectorAll("tbody tr").length, notes: document.querySelectorAll("h3").length,
    wide: Array.from(document.querySelectorAll("h1, h2, h3, p, figure, .scroll")).filter(function (x) {
      return x.getBoundingClientRect().right > innerWidth + 1;
    }).length,
  }), "*");
});
"""


@pytest.mark.skipif(_browser.BROWSER is None, reason="there is no browser (chromium)")
@pytest.mark.sampled("slow")
@pytest.mark.parametrize("width", [390, 1440])
def test_a_day_in_a_browser(home: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Nothing is wider than the screen but what scrolls by itself."""
    week(home)
    assert command(monkeypatch, "diary") == 0
    said = _browser.said(home / "diary", "2026-11-23.html", PROBE, width)
    assert said["page"] <= said["width"] and said["wide"] == 0, said
    assert (said["drawn"], said["rows"], said["notes"]) == (2, 5 + 2 + 8 + 4, 2), said
