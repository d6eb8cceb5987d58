"""The local board: one SQLite file that several programs write at once.

An entry is written in one transaction: a program that is killed has written it or has not. Its `id` is the writer's, so that writing again
what may have been written already adds nothing."""

from __future__ import annotations

import json
import math
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from rooftop.core.forms import FormError, formed
from rooftop.lab.judge import counts, score
from rooftop.lab.judge.verdict import KINDS, Verdict
from rooftop.lab.records.store import Record

OWN, RECORD, IMPORTED = "judged here", "of the records", "imported"
_COLUMNS = (
    "id TEXT PRIMARY KEY, at TEXT NOT NULL, user TEXT NOT NULL, source TEXT NOT NULL, basis TEXT NOT NULL, device TEXT NOT NULL, "
    "op TEXT NOT NULL, item TEXT NOT NULL, subject TEXT NOT NULL, digest TEXT NOT NULL, kind TEXT NOT NULL, score REAL, amount REAL, "
    "verdict TEXT NOT NULL"
)
MIGRATIONS = (  # statements that bring a file from one version to the next
    (
        f"CREATE TABLE entries ({_COLUMNS})", "CREATE INDEX places ON entries (op, device, basis, kind)",
        "CREATE INDEX users ON entries (user, at)",
    ),
    ("ALTER TABLE entries ADD COLUMN signer TEXT NOT NULL DEFAULT ''",),
    (  # of rooftop serve: serve/queue.py
        "CREATE TABLE tokens (hash TEXT PRIMARY KEY, user TEXT NOT NULL, made TEXT NOT NULL, expires TEXT NOT NULL)",
        "CREATE TABLE jobs (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, at TEXT NOT NULL, user TEXT NOT NULL, "
        "op TEXT NOT NULL, file TEXT NOT NULL, function TEXT NOT NULL, target TEXT NOT NULL, source TEXT NOT NULL, state TEXT NOT NULL "
        "DEFAULT 'waiting', tries INTEGER NOT NULL DEFAULT 0, began TEXT NOT NULL DEFAULT '', said TEXT NOT NULL DEFAULT '')",
        "CREATE INDEX turns ON jobs (state, target, number)", "CREATE INDEX handed_in ON jobs (user, at)",
    ),
)
VERSION = len(MIGRATIONS)
WAIT = 60.0  # seconds for other writers


class BoardError(ValueError):
    """The file cannot be used as it is; the text says why and what to do."""


class FullError(BoardError):
    """There is no room on the disk for what was to be kept."""


@dataclass(frozen=True)
class Entry:
    """One judgement. `basis`: "time" or "counts", which are boards apart; `item`: the case; `amount`: seconds, or cycles by counts;
    `source`: judged here, of the records, or imported; `signer`: the fingerprint of the key that an imported entry is signed with."""

    id: str
    at: str
    user: str
    source: str
    basis: str
    device: str
    op: str
    item: str
    subject: str
    digest: str
    kind: str
    score: float | None
    amount: float | None
    verdict: dict[str, Any] = field(default_factory=dict)
    signer: str = ""

    def checked(self) -> Entry:
        """Raises FormError for what no board writes: another kind, a score beyond 0 to 1, an amount that is none, a wrong one with a
        score."""
        numbers = [n for n in (self.score, self.amount) if n is not None]
        datetime.fromisoformat(self.at)
        if self.kind not in KINDS or self.basis not in ("time", "counts", "") or not all(map(math.isfinite, numbers)):
            raise FormError(f"kind {self.kind!r}, basis {self.basis!r} or a number is none of a board's")
        if (self.score is not None and not 0 <= self.score <= 1) or (self.amount is not None and self.amount <= 0):
            raise FormError("the score is 0 to 1, the amount above 0")
        if self.score is not None and self.kind != "right":
            raise FormError(f"what is {self.kind} has no score")
        if max(len(t) for t in (self.id, self.user, self.device, self.op, self.item, self.subject)) > 200:
            raise FormError("a text of it is longer than 200 characters")
        return self


def of_verdict(verdict: Verdict, user: str, now: datetime | None = None, name: str = "") -> Entry:
    """An entry of a judgement. `name`: its id; "": one of its own."""
    at = (now or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds")
    amount = verdict.seconds if verdict.basis == "time" else verdict.cost
    device = verdict.device if verdict.basis == "time" else "counts"
    return Entry(
        name or uuid.uuid4().hex, at, user, OWN, verdict.basis, device, verdict.op, verdict.case, verdict.file, verdict.digest,
        verdict.kind, verdict.score, amount, json.loads(json.dumps(verdict.to_json())),
    ).checked()


class Board:
    """The file, open. Raises BoardError for one that is damaged, that a later version made, or that cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            raise BoardError(f"{path} is a folder; the board is one file (ROOFTOP_BOARD names another)")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(path, timeout=WAIT, isolation_level=None)
            self._open()
        except (sqlite3.Error, OSError) as error:
            damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
            what = (
                "is damaged, or no board; it was left as it is: move it away, then a new one is begun"
                if damaged
                else f"cannot be used: {error}"
            )
            raise BoardError(f"{path} {what} (ROOFTOP_BOARD names another)") from None

    def _open(self) -> None:
        self._base.execute("PRAGMA journal_mode = WAL")
        self._base.execute("PRAGMA synchronous = FULL")
        version = self._version()
        if version < VERSION:
            with self._writing():
                version = self._version()  # another process may have brought it up to date meanwhile
                if version == 0 and self._base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    raise sqlite3.DatabaseError("somebody else's")
                for statements in MIGRATIONS[version:]:
                    for statement in statements:
                        self._base.execute(statement)
                self._base.execute(f"PRAGMA user_version = {VERSION}")
        elif version > VERSION:
            raise BoardError(f"{self.path} was written by a later version of rooftop: use that, or name another file by ROOFTOP_BOARD")
        self._base.execute("SELECT id, signer FROM entries LIMIT 1").fetchall()

    def _version(self) -> int:
        return int(self._base.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._base.execute("COMMIT")
        except BaseException:
            if self._base.in_transaction:  # SQLite has given it up itself where the disk is full
                self._base.execute("ROLLBACK")
            raise

    @contextmanager
    def changing(self) -> Iterator[None]:
        """One transaction: all of it is kept, or none. Raises BoardError, FullError where the disk is full."""
        try:
            with self._writing():
                yield
        except sqlite3.Error as error:
            raise _kept_before(self.path, error) from None

    def close(self) -> None:
        self._base.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing ---------------------------------------------------------------------------------------------------

    def add(self, entries: Entry | Iterable[Entry], renew: bool = False) -> int:
        """Keep entries, all or none of them; how many were new. One whose id is there stays as it is, or with `renew` becomes the new
        one."""
        listed = [entries] if isinstance(entries, Entry) else list(entries)
        with self.changing():
            return self._insert(listed, renew)

    def _insert(self, listed: Sequence[Entry], renew: bool = False) -> int:
        names = [f for f in Entry.__dataclass_fields__ if f != "verdict"] + ["verdict"]
        marks = ", ".join("?" * len(names))
        rows = [tuple(json.dumps(v) if n == "verdict" else v for n in names for v in [getattr(e.checked(), n)]) for e in listed]
        before = self._base.total_changes
        self._base.executemany(f"INSERT OR {'REPLACE' if renew else 'IGNORE'} INTO entries ({', '.join(names)}) VALUES ({marks})", rows)
        return self._base.total_changes - before

    def begin(self, records: Sequence[Record] = ()) -> int:
        """The rungs by counts, and of `records` every rung and peer at a case of a scale, as entries: so that a first entry has a place."""
        held = {str(i) for (i,) in self._base.execute("SELECT id FROM entries WHERE source = ?", (RECORD,))}
        made = [e for e in (*_of_counts(), *_of_records(records)) if e.id not in held]
        return self.add(made) if made else 0

    # -- reading ---------------------------------------------------------------------------------------------------

    def entries(
        self, *, op: str | None = None, device: str | None = None, user: str | None = None, basis: str | None = None,
        name: str | None = None, right: bool = True,
    ) -> list[Entry]:
        """The best first; without `right` also those that are not right, which have no score."""
        wanted = {"op": op, "device": device, "user": user, "basis": basis, "id": name, "kind": "right" if right else None}
        given = {n: v for n, v in wanted.items() if v is not None}
        where = " AND ".join(f"{n} = ?" for n in given) or "1"
        names = ", ".join(Entry.__dataclass_fields__)
        order = "op, basis DESC, device, item, score IS NULL, score DESC, amount, at"
        try:
            with closing(self._base.execute(f"SELECT {names} FROM entries WHERE {where} ORDER BY {order}", tuple(given.values()))) as rows:
                fields = list(Entry.__dataclass_fields__)
                return [Entry(**{n: json.loads(v) if n == "verdict" else v for n, v in zip(fields, row, strict=True)}) for row in rows]
        except (sqlite3.Error, json.JSONDecodeError) as error:
            raise BoardError(
                f"{self.path} cannot be read: {error}; move it away, then a new one is begun (ROOFTOP_BOARD names another)"
            ) from None

    def history(self, user: str) -> list[Entry]:
        """All that a user has handed in, right or not, the oldest first."""
        return sorted(self.entries(user=user, right=False), key=lambda e: (e.at, e.id))

    def placed(self, verdict: Verdict, user: str, name: str = "") -> Entry:
        """The entry of a judgement, whose verdict has its percentile here; it is not kept yet."""
        entry = of_verdict(verdict, user, name=name)
        return replace(entry, verdict={**entry.verdict, "percentile": self.percentile(entry)})

    def percentile(self, entry: Entry) -> float | None:
        """Of the others at the same op, device, basis and case (the best of each user, each rung and each peer) how many per cent it beats;
        None where there are none, or it has no score."""
        if entry.score is None:
            return None
        best: dict[tuple[str, str], float] = {}
        for e in self.entries(op=entry.op, device=entry.device, basis=entry.basis):
            who = (e.user, e.subject if e.source == RECORD else "")
            if e.id != entry.id and e.item == entry.item and e.score is not None and (e.source == RECORD or e.user != entry.user):
                best[who] = max(best.get(who, 0.0), e.score)
        return 100.0 * sum(s < entry.score for s in best.values()) / len(best) if best else None


def _kept_before(path: Path, error: sqlite3.Error) -> BoardError:
    full = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
    return (FullError if full else BoardError)(f"{path}: {error}; what was kept before is still there")


def _entry(
    key: Sequence[str], at: str, basis: str, device: str, op: str, item: str, subject: str, points: float | None, amount: float
) -> Entry:
    name = uuid.uuid5(uuid.NAMESPACE_OID, "\0".join(key)).hex
    user = "peers" if subject.startswith("peer:") else "rungs"
    return Entry(name, at, user, RECORD, basis, device, op, item, subject, "", "right", points, amount)


def _of_counts() -> Iterator[Entry]:
    for name, kept in counts.shipped().items():
        scale = score.by_counts(kept["op"], kept["case"].rpartition(" ")[2], kept["language"])
        for rung, cost in scale[0].rungs if scale is not None and scale[0].ladder == name else ():
            yield _entry(
                ("counts", name, rung, kept["case"], f"{cost}"), "2026-01-01T00:00:00+00:00", "counts", "counts", kept["op"], kept["case"],
                rung, scale[0].score(cost) if scale else None, cost,
            )


def _of_records(records: Sequence[Record]) -> Iterator[Entry]:
    pairs: dict[tuple[str, str], list[Record]] = {}
    ceilings = [r for r in records if r.kind == "ceiling"]
    for r in records:
        if r.kind == "bench":
            pairs.setdefault((r.op, r.card), []).append(r)
    for (op, device), own in pairs.items():
        try:
            known = score.timed(own, op, device)
            scales = [s for c in known if (s := score.by_time([*own, *ceilings], op, device, case=c)) is not None]
        except (ValueError, LookupError):
            continue
        at = max(r.at for r in own)
        for scale in scales:
            for subject, seconds in known[scale.case].items():
                if subject.startswith("peer:") or "/" in subject:
                    yield _entry(
                        ("time", op, device, scale.case, subject, f"{seconds:.6g}"), at, "time", device, op, scale.case, subject,
                        scale.score(seconds), seconds,
                    )


# -- signed entries --------------------------------------------------------------------------------------------------


def _keys() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ModuleNotFoundError(
            "signed entries need the package cryptography: pip install 'rooftop[board]'", name="cryptography"
        ) from error
    return ed25519


def exported(entries: Iterable[Entry], key: Path) -> str:
    """Entries judged here as JSON lines, each signed by the key of the file, which is made where there is none."""
    ed25519 = _keys()
    if key.is_file():
        private = ed25519.Ed25519PrivateKey.from_private_bytes(bytes.fromhex(key.read_text(encoding="ascii").strip()))
    else:
        private = ed25519.Ed25519PrivateKey.generate()
        key.parent.mkdir(parents=True, exist_ok=True)
        key.touch(0o600)
        key.write_text(private.private_bytes_raw().hex() + "\n", encoding="ascii")
    public = private.public_key().public_bytes_raw().hex()
    lines = []
    for entry in entries:
        if entry.source == OWN:
            told = {**asdict(entry), "source": IMPORTED, "signer": public[:16]}
            lines.append(json.dumps({"entry": told, "key": public, "signature": private.sign(_message(told)).hex()}, sort_keys=True))
    return "".join(line + "\n" for line in lines)


def imported(text: str) -> list[Entry]:
    """The entries of an export, each checked against its signature. Raises ValueError with the line of the first that is not whole; then
    none counts."""
    ed25519 = _keys()
    from cryptography.exceptions import InvalidSignature

    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            said = json.loads(line)
            entry = formed(said["entry"], Entry)
            ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(said["key"])).verify(
                bytes.fromhex(said["signature"]), _message(said["entry"])
            )
            if entry.source != IMPORTED or entry.signer != said["key"][:16]:
                raise FormError("its source or signer is not that of an export")
            found.append(entry.checked())
        except InvalidSignature:
            raise ValueError(f"line {number}: the signature is not that of this entry; nothing was imported") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} is no signed entry ({str(error)[:80]}); nothing was imported") from None
    return found


def _message(entry: dict[str, Any]) -> bytes:
    return b"rooftop board entry\0" + json.dumps(entry, sort_keys=True).encode()


# -- the page --------------------------------------------------------------------------------------------------------


_STYLE = (
    "body{font:15px system-ui;margin:2em auto;max-width:60em;padding:0 1em;color-scheme:light dark}td,th{padding:.2em .8em;text-align:left}"
    ".scroll{overflow-x:auto}table{border-collapse:collapse}tr:nth-child(even){background:#8882}"
)


def page(entries: Sequence[Entry]) -> str:
    """The board as one HTML page, without scripts."""
    head = "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>Board</title>"
    return f"{head}<style>{_STYLE}</style><h1>Board</h1>\n{tables(entries)}\n"


def tables(entries: Sequence[Entry], profile: Callable[[str], str] | None = None) -> str:
    """The entries as HTML, a table for each op, device and case. `profile`: of a user who has handed in, where their page is."""
    from html import escape

    from rooftop.core.texts import printable

    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for e in entries:
        groups.setdefault((e.op, e.device, e.item), []).append(e)
    parts = []
    for (op, device, item), listed in groups.items():
        by = "by counts, without a GPU: no times" if device == "counts" else device
        rows = [("place", "user", "kernel", "verdict", "score", "time or cost", "source", "date")]
        for i, e in enumerate(listed, 1):
            points = "" if e.score is None else f"{e.score:.3f}"
            rows.append((str(i), e.user, e.subject, e.kind, points, amount(e), e.source, e.at[:10]))
        cells = [[escape(printable(text)) for text in row] for row in rows]
        for line, e in zip(cells[1:], listed, strict=True):
            if profile is not None and e.source != RECORD:
                line[1] = f'<a href="{escape(profile(e.user))}">{line[1]}</a>'
        title = escape(printable(f"{op} · {by} · {item}"))
        rows_shown = "".join(f"<tr>{''.join(f'<td>{cell}' for cell in line)}" for line in cells)
        parts.append(f'<h2>{title}</h2>\n<div class="scroll"><table>{rows_shown}</table></div>\n')
    return "".join(parts) or "<p>No entries."


def amount(entry: Entry) -> str:
    """A time in microseconds, or a cost in cycles by counts."""
    if entry.amount is None:
        return ""
    return f"{entry.amount * 1e6:.1f} us" if entry.basis == "time" else f"{entry.amount:,.0f} cycles"
