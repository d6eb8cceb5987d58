"""The queue of what was handed in and the users' tokens, in the board's file.

A job is `waiting`, `judging`, then `done` (its entry is on the board, with the job's id) or `refused` (`said` is the reason, and there is
no entry). What ends it is one transaction with the entry: a server that is killed has judged a job or has not, and then begins it again."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from rooftop.lab.judge.board import Board, BoardError, Entry
from rooftop.lab.judge.verdict import Verdict

TRIES = 12  # times that a job is begun: what ends the server each time is given up, so that the others have their turn
LONGEST = 60  # characters of a user's name
DAYS = 3650  # that a token may hold


class NoUserError(ValueError):
    """A token is none, or has expired; the text says which."""


class LimitError(ValueError):
    """A limit of the queue is met; the text says which. `seconds`: after which it may be different; `full`: for everybody."""

    def __init__(self, text: str, seconds: int, full: bool = False) -> None:
        super().__init__(text)
        self.seconds, self.full = seconds, full


@dataclass(frozen=True)
class Limits:
    """`waiting`: jobs of all users; `own`: waiting jobs of one; `hourly`: that one may hand in within an hour."""

    waiting: int = 200
    own: int = 10
    hourly: int = 60


@dataclass(frozen=True)
class Job:
    """What was handed in. `number`: its turn. `target`: the device that it is for. `began`: the last time it was begun."""

    number: int
    id: str
    at: str
    user: str
    op: str
    file: str
    function: str
    target: str
    source: str
    state: str
    tries: int
    began: str
    said: str

    @property
    def over(self) -> bool:
        return self.state in ("done", "refused")


_FIELDS = ", ".join(Job.__dataclass_fields__)


def now() -> datetime:
    return datetime.now(UTC)


def _text(at: datetime) -> str:
    return at.isoformat(timespec="seconds")


def hashed(token: str) -> str:
    """What is kept of a token. It has 256 random bits, so a plain hash cannot be turned back by trying."""
    return hashlib.sha256(token.encode()).hexdigest()


class Queue(Board):
    """The board with its queue and users. One thread at a time uses it."""

    # -- users -----------------------------------------------------------------------------------------------------

    def add_user(self, name: str, days: int) -> tuple[str, datetime]:
        """A new token of a user, and when it expires; it is shown once and kept hashed. Tokens that the user has stay valid."""
        if not name.strip() or len(name) > LONGEST or not name.isprintable() or name in ("rungs", "peers"):
            raise ValueError(f"{name!r} cannot be a user: a name has 1 to {LONGEST} printable characters, and is not rungs or peers")
        if not 1 <= days <= DAYS:
            raise ValueError(f"--days {days}: a token holds 1 to {DAYS} days")
        token, until = secrets.token_urlsafe(32), now() + timedelta(days=days)
        with self.changing():
            self._base.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", (hashed(token), name, _text(now()), _text(until)))
        return token, until

    def remove_user(self, name: str) -> int:
        """How many tokens of a user do not hold any more. What they have handed in stays."""
        with self.changing():
            return self._base.execute("DELETE FROM tokens WHERE user = ?", (name,)).rowcount

    def users(self) -> list[tuple[str, str, str]]:
        """(user, made, expires) of each token."""
        return self._all("SELECT user, made, expires FROM tokens ORDER BY user, made", ())

    def user_of(self, token: str) -> str:
        """Whose token it is. Raises NoUserError."""
        found = self._all("SELECT user, expires FROM tokens WHERE hash = ?", (hashed(token),))
        if not found:
            raise NoUserError("this token is not known here; rooftop board user add NAME makes one")
        if datetime.fromisoformat(found[0][1]) <= now():
            raise NoUserError(f"this token has expired ({found[0][1][:10]}); rooftop board user add NAME makes another")
        return str(found[0][0])

    # -- handing in ------------------------------------------------------------------------------------------------

    def hand_in(self, user: str, *, op: str, file: str, source: str, target: str, function: str = "", limits: Limits | None = None) -> Job:
        """A new job, at the end of the queue. Raises LimitError; then nothing is kept."""
        limits, at = limits or Limits(), now()
        with self.changing():
            waiting, own = self._one(
                "SELECT count(*), count(CASE WHEN user = ? THEN 1 END) FROM jobs WHERE state IN ('waiting', 'judging')", (user,)
            )
            if waiting >= limits.waiting:
                raise LimitError(f"the queue is full: {waiting} are waiting; try again later", 60, full=True)
            if own >= limits.own:
                raise LimitError(f"{own} of yours are waiting, which is the most; try again when one is judged", 60)
            since = self._all("SELECT at FROM jobs WHERE user = ? AND at > ? ORDER BY at", (user, _text(at - timedelta(hours=1))))
            if len(since) >= limits.hourly:
                free = datetime.fromisoformat(since[-limits.hourly][0]) + timedelta(hours=1)
                seconds = max(1, int((free - at).total_seconds()))
                wait = f"try again in {seconds // 60 + 1} min"
                raise LimitError(f"you have handed in {len(since)} within an hour, which is the most; {wait}", seconds)
            name = uuid.uuid4().hex
            self._base.execute(
                "INSERT INTO jobs (id, at, user, op, file, function, target, source) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (name, _text(at), user, op, file, function, target, source),
            )
        return self.job(name)

    def job(self, name: str) -> Job:
        """Raises LookupError."""
        found = self._all(f"SELECT {_FIELDS} FROM jobs WHERE id = ?", (name,))
        if not found:
            raise LookupError(f"there is no job {name[:40]}")
        return Job(*found[0])

    def progress(self, name: str) -> tuple[str, int, str]:
        """State of a job, how many of its device are before it, and what was said of it. Raises LookupError."""
        found = self._all("SELECT state, number, target, said FROM jobs WHERE id = ?", (name,))
        if not found:
            raise LookupError(f"there is no job {name[:40]}")
        state, number, target, said = found[0]
        counted = "SELECT count(*) FROM jobs WHERE state IN ('waiting', 'judging') AND target = ? AND number < ?"
        return state, self._one(counted, (target, number))[0], said

    def jobs(self, user: str, most: int = 100) -> list[Job]:
        """The last of a user, the newest first, without their sources."""
        fields = _FIELDS.replace(" source,", " '',")
        return [Job(*row) for row in self._all(f"SELECT {fields} FROM jobs WHERE user = ? ORDER BY number DESC LIMIT ?", (user, most))]

    def entry(self, name: str) -> Entry | None:
        """The entry of a job that is done."""
        return next(iter(self.entries(name=name, right=False)), None)

    def ops(self) -> list[tuple[str, int]]:
        """(op, entries that are right) of each op that has any."""
        return self._all("SELECT op, count(*) FROM entries WHERE kind = 'right' GROUP BY op ORDER BY op", ())

    def counts(self) -> dict[str, int]:
        """State -> jobs."""
        return dict(self._all("SELECT state, count(*) FROM jobs GROUP BY state", ()))

    # -- judging ---------------------------------------------------------------------------------------------------

    def resume(self, target: str) -> int:
        """What a server that is gone was judging on a device waits again, at its place; how many. Whoever calls it has the device's lock.
        What was begun TRIES times is refused."""
        with self.changing():
            self._base.execute(
                "UPDATE jobs SET state = 'refused', said = ? WHERE state = 'judging' AND target = ? AND tries >= ?",
                (f"the server ended {TRIES} times while it was judged", target, TRIES),
            )
            return self._base.execute("UPDATE jobs SET state = 'waiting' WHERE state = 'judging' AND target = ?", (target,)).rowcount

    def take(self, target: str) -> Job | None:
        """The next job of a device, which is being judged from now on."""
        with self.changing():
            found = self._all("SELECT id FROM jobs WHERE state = 'waiting' AND target = ? ORDER BY number LIMIT 1", (target,))
            if not found:
                return None
            self._base.execute("UPDATE jobs SET state = 'judging', tries = tries + 1, began = ? WHERE id = ?", (_text(now()), found[0][0]))
        return self.job(found[0][0])

    def back(self, job: Job) -> None:
        """It was not judged, through no fault of its own: it waits again, at its place."""
        with self.changing():
            self._base.execute("UPDATE jobs SET state = 'waiting', tries = tries - 1 WHERE id = ? AND state = 'judging'", (job.id,))

    def judged(self, job: Job, verdict: Verdict) -> None:
        """Keep its entry; the job is done."""
        entry = self.placed(replace(verdict, file=job.file), job.user, job.id)
        with self.changing():
            if self._base.execute("UPDATE jobs SET state = 'done' WHERE id = ? AND state = 'judging'", (job.id,)).rowcount:
                self._insert([entry])

    def refuse(self, job: Job, said: str) -> None:
        """It is no submission, or could not be judged: `said` is why, and there is no entry."""
        with self.changing():
            self._base.execute("UPDATE jobs SET state = 'refused', said = ? WHERE id = ? AND state = 'judging'", (said, job.id))

    def _all(self, statement: str, values: tuple[object, ...]) -> list[tuple]:
        try:
            with closing(self._base.execute(statement, values)) as rows:
                return rows.fetchall()
        except sqlite3.Error as error:
            if self._base.in_transaction:  # `changing` says what is kept
                raise
            raise BoardError(f"{self.path} cannot be read: {error}") from None

    def _one(self, statement: str, values: tuple[object, ...]) -> tuple:
        return self._all(statement, values)[0]
