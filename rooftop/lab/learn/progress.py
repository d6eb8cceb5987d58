"""What a learner has done, in one SQLite file: answers, when each question comes again, lessons, puzzles, goals.

A file that is no such file is put aside under another name, and a new one is begun: nothing is lost, and it is said."""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import IO, Any

from rooftop.core import whole_file

VERSION = 1
TABLES = {
    "answers": "at TEXT NOT NULL, question TEXT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, given REAL NOT NULL, right INTEGER NOT NULL",
    "predictions": "at TEXT NOT NULL, rung TEXT NOT NULL, name TEXT NOT NULL, given REAL NOT NULL, found REAL NOT NULL, points INTEGER NOT NULL",
    "cards": "question TEXT PRIMARY KEY, subject TEXT NOT NULL, due TEXT NOT NULL, state TEXT NOT NULL",
    "lessons": "rung TEXT PRIMARY KEY, at TEXT NOT NULL, known INTEGER NOT NULL DEFAULT 0",
    "puzzles": "at TEXT NOT NULL, puzzle TEXT NOT NULL, verdict TEXT NOT NULL, said TEXT NOT NULL, hints INTEGER NOT NULL",
    "goals": "ladder TEXT PRIMARY KEY, made TEXT NOT NULL, due TEXT NOT NULL",
}


class ProgressError(ValueError):
    """The file cannot be used as it is; the text says why and what to do."""


@dataclass(frozen=True)
class Goal:
    ladder: str
    made: date
    by: date


class Progress:
    """The file, open. `now` is asked for the time of what is written; days are those of UTC.

    Raises ProgressError for a file that a later version has made, or one that cannot be written now. `aside`: where a damaged file was put,
    None where there was none."""

    WAIT = 10.0  # seconds for another program that is writing

    def __init__(self, path: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.path, self._now = path, now
        self.aside: Path | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise ProgressError(f"{path} is a folder; the progress is one file")
        # One process at a time: an open connection would roll back the journal of the file that another begins under this name.
        with self._lock() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._base = self._begun()
            except sqlite3.OperationalError as error:  # a lock, a folder that may not be written: the file is not to blame
                raise ProgressError(f"{path}: {error}; ROOFTOP_LEARN names another file") from None

    def _begun(self) -> sqlite3.Connection:
        try:
            return self._opened()
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            self.aside = whole_file.free(self.path)
            self.path.rename(self.aside)
            return self._opened()

    def _lock(self) -> IO[str]:
        try:
            return (self.path.parent / f".{self.path.name}.lock").open("a")
        except OSError as error:
            raise ProgressError(f"{self.path}: {error.strerror or error}; ROOFTOP_LEARN names another file") from None

    def _opened(self) -> sqlite3.Connection:
        base = sqlite3.connect(self.path, timeout=self.WAIT)
        try:
            if int(base.execute("PRAGMA user_version").fetchone()[0]) == 0:
                base.execute("BEGIN IMMEDIATE")  # another process may begin the same file: it has all of its tables, or none
            version = int(base.execute("PRAGMA user_version").fetchone()[0])
            if version > VERSION:
                raise ProgressError(
                    f"{self.path} was written by a later version of rooftop: use that, or name another file by ROOFTOP_LEARN"
                )
            if base.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("damaged")
            held = {str(name) for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if version == 0 and held:
                raise sqlite3.DatabaseError("somebody else's")
            with base:
                for name, columns in TABLES.items():
                    base.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
                    base.execute(f"SELECT {', '.join(c.split()[0] for c in columns.split(', '))} FROM {name} LIMIT 1")
                base.execute(f"PRAGMA user_version = {VERSION}")
        except sqlite3.OperationalError as error:
            base.close()
            if "no such column" in str(error):
                raise sqlite3.DatabaseError(str(error)) from None
            raise
        except BaseException:
            base.close()
            raise
        return base

    def close(self) -> None:
        self._base.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._told(), closing(self._base.execute(query, values)) as found:
            return found.fetchall()

    def _put(self, table: str, **values: Any) -> None:
        marks = ", ".join("?" * len(values))
        with self._told(), self._base:
            self._base.execute(f"INSERT OR REPLACE INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What goes wrong with the file, in one line: another program locks it, the disk is full."""
        try:
            yield
        except sqlite3.Error as error:
            raise ProgressError(f"{self.path}: {error}; what was kept before is still there") from None

    @property
    def today(self) -> date:
        return self._now().astimezone(UTC).date()

    def _stamp(self) -> str:
        return self._now().astimezone(UTC).isoformat(timespec="seconds")

    # -- answers, and when they come again -------------------------------------------------------------------------

    def answered(self, question: str, kind: str, subject: str, given: float, right: bool) -> date:
        """Keep an answer. Returns the day on which the question comes again: sooner where it was missed."""
        self._put("answers", at=self._stamp(), question=question, kind=kind, subject=subject, given=given, right=int(right))
        known = self._rows("SELECT state FROM cards WHERE question = ?", question)
        state, due = _reviewed(str(known[0][0]) if known else "", right, self._now().astimezone(UTC))
        self._put("cards", question=question, subject=subject, due=due.isoformat(), state=state)
        return due

    def due(self) -> dict[str, str]:
        """The questions that come again by today, those that have waited longest first, each with the rung or ladder that it is about."""
        rows = self._rows("SELECT question, subject FROM cards WHERE due <= ? ORDER BY due, question", self.today.isoformat())
        return {str(question): str(subject) for question, subject in rows}

    def asked(self) -> set[str]:
        """Every question that was ever answered."""
        return {str(q) for (q,) in self._rows("SELECT question FROM cards")}

    def missed(self, subject: str = "") -> list[str]:
        """The questions whose last answer was wrong, of a rung or a ladder or of all."""
        rows = self._rows("SELECT question, subject, right FROM answers ORDER BY rowid")
        last = {str(q): (str(s), bool(r)) for q, s, r in rows}
        return [q for q, (s, right) in last.items() if not right and (not subject or s == subject or s.startswith(f"{subject}/"))]

    def score(self) -> tuple[int, int]:
        """(right answers, answers)."""
        right, whole = self._rows("SELECT COALESCE(SUM(right), 0), COUNT(*) FROM answers")[0]
        return int(right), int(whole)

    # -- lessons, predictions, puzzles ------------------------------------------------------------------------------

    def read(self, rung: str, known: bool = False) -> None:
        """A lesson was read; `known`: skipped, since the learner knew it."""
        self._put("lessons", rung=rung, at=self._stamp(), known=int(known))

    def lessons(self) -> set[str]:
        return {str(r) for (r,) in self._rows("SELECT rung FROM lessons")}

    def predicted(self, rung: str, name: str, given: float, found: float, points: int) -> None:
        self._put("predictions", at=self._stamp(), rung=rung, name=name, given=given, found=found, points=points)

    def mean_points(self) -> tuple[float, int]:
        """Of the predictions: the mean of their points, and how many there are."""
        mean, count = self._rows("SELECT AVG(points), COUNT(*) FROM predictions")[0]
        return float(mean or 0), int(count)

    def tried(self, puzzle: str, verdict: str, said: str, hints: int) -> None:
        self._put("puzzles", at=self._stamp(), puzzle=puzzle, verdict=verdict, said=said, hints=hints)

    def solved(self) -> set[str]:
        return {str(p) for (p,) in self._rows("SELECT puzzle FROM puzzles WHERE verdict = 'right'")}

    def streak(self) -> int:
        """Days in a row with something done, up to today; or to yesterday, as long as today is young."""
        days = {
            str(d) for table in ("answers", "predictions", "lessons", "puzzles")
            for (d,) in self._rows(f"SELECT DISTINCT substr(at, 1, 10) FROM {table}")
        }
        day = self.today if self.today.isoformat() in days else self.today - timedelta(days=1)
        count = 0
        while day.isoformat() in days:
            count, day = count + 1, day - timedelta(days=1)
        return count

    # -- goals --------------------------------------------------------------------------------------------------------

    def aim(self, ladder: str, by: date) -> None:
        self._put("goals", ladder=ladder, made=self.today.isoformat(), due=by.isoformat())

    def goals(self) -> list[Goal]:
        rows = self._rows("SELECT ladder, made, due FROM goals ORDER BY due, ladder")
        return [Goal(str(ladder), date.fromisoformat(made), date.fromisoformat(due)) for ladder, made, due in rows]

    def forget(self, ladder: str) -> None:
        with self._told(), self._base:
            self._base.execute("DELETE FROM goals WHERE ladder = ?", (ladder,))

    # -- export -------------------------------------------------------------------------------------------------------

    def export(self) -> Mapping[str, Any]:
        """Everything, as plain values for JSON."""
        found: dict[str, Any] = {"version": VERSION, "at": self._stamp()}
        for name, columns in TABLES.items():
            names = [c.split()[0] for c in columns.split(", ")]
            found[name] = [
                dict(zip(names, row, strict=True)) for row in self._rows(f"SELECT {', '.join(names)} FROM {name} ORDER BY rowid")
            ]
        return found


def _reviewed(state: str, right: bool, now: datetime) -> tuple[str, date]:
    """FSRS's memory of a question after an answer, and the day on which it is asked again. Right is "good", wrong is "again"."""
    from fsrs import Card, Rating, Scheduler

    scheduler = Scheduler(learning_steps=(), relearning_steps=(), enable_fuzzing=False)  # in days: nobody asks twice in one session
    try:
        card = Card.from_json(state) if state else Card(card_id=0, due=now)
    except (ValueError, KeyError, TypeError):  # of another version of fsrs
        card = Card(card_id=0, due=now)
    card, _ = scheduler.review_card(card, Rating.Good if right else Rating.Again, now)
    return str(card.to_json()), max(card.due.astimezone(UTC).date(), (now + timedelta(days=1)).date())


def write_export(progress: Progress, path: Path) -> None:
    whole_file.write(path, json.dumps(progress.export(), indent=1) + "\n")

