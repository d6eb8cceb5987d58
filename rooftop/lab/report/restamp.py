"""Restamping records: a kernel's text has changed and its machine code has not.

A digest covers the text of kernel and helpers without comments and docstrings. Renaming a variable or rewording a message changes the digest, although the
GPU runs the same code. `restamp` takes the records that belong to the tree at a git revision, computes in that tree and in the present one what each recorded
case launches, and rewrites the digest where both are identical: the contract's part of the digest, problem, config, the heuristic's choice, scratch memory,
every launch (kernel, arguments, grid, block, cluster, shared memory, options) and the machine code for the record's card. Whatever is not proven identical
stays stale. Entries of tuned tables are treated in the same manner, and so are ceilings of memory and L2, by the kernels that measure them. Checks that ran
without a GPU are left alone: they can be repeated anywhere."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.devices import slug
from rooftop.core.digests import digest
from rooftop.lab.records import store
from rooftop.lab.records.store import Record, RecordError

CHILD = Path(__file__).with_name("restamp_child.py")
KINDS = ("check", "bench", "sanitize", "counters", "compared", "language")

Row = tuple[str, str, tuple[Any, ...], str]  # subject, case, the fields of its Device, its explicit config as JSON ("" for none)


@dataclass
class Restamped:
    """What `restamp` did, or would do. Each table counts by subject; `why`: subject -> a reason, of those that could not be compared or have changed."""

    restamped: dict[str, int] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    tuned: dict[str, int] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)


def restamp(
    folder: Path, since: str, names: Iterable[str] = (), *, dry: bool = False, root: Path = settings.CHECKOUT, tuned: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Restamped:  # fmt: skip
    """Rewrite the digests of the records below `folder` that were those of the tree at git revision `since` and run the same machine code in `root`.

    names  subjects, as records call them (of ceilings: memory, l2); none: every one whose text has changed
    tuned  the folder of tuned tables; None: that of `root`
    Raises RecordError where git does not know the revision, a process of a tree fails, or a run is writing one of the files."""
    with tempfile.TemporaryDirectory() as temporary:
        old = _archived(root, since, Path(temporary))
        return _restamp(folder, set(names), Trees(old, root), dry, root / "rooftop" / "tuned" if tuned is None else tuned, say)


def _archived(root: Path, since: str, into: Path) -> Path:
    """The package at a revision, as files."""
    done = subprocess.run(["git", "-C", str(root), "archive", since, "rooftop", "pyproject.toml"], capture_output=True)
    if done.returncode:
        raise RecordError(f"git archive {since}: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(into, filter="data")
    return into


class Trees:
    """An old tree and the present one, asked alike by `restamp_child`, each in a process of its own."""

    def __init__(self, old: Path, new: Path) -> None:
        self.roots = (old, new)

    def ask(self, root: Path, job: dict[str, Any]) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            given, found = Path(folder) / "job.json", Path(folder) / "answer.json"
            given.write_text(json.dumps(job), encoding="utf-8")
            command = [sys.executable, "-P", str(CHILD), str(given), str(found)]
            done = subprocess.run(command, capture_output=True, env=settings.environment({"PYTHONPATH": str(root)}), cwd=folder)
            if done.returncode or not found.is_file():
                raise RecordError(f"the tree in {root} does not answer: {done.stderr.decode(errors='replace').strip()[-500:]}")
            return json.loads(found.read_text(encoding="utf-8"))

    def changed(self, subjects: Sequence[str]) -> list[str]:
        """Subjects whose kernel's text is another one in the two trees."""
        old, new = (self.ask(root, {"what": "digests", "subjects": list(subjects)}) for root in self.roots)
        return [n for n in subjects if old[n] != new[n]]

    def ceilings(self, targets: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What either tree says of the kernels that measure ceilings."""
        old, new = (self.ask(root, {"what": "ceilings", "targets": list(targets)}) for root in self.roots)
        return old, new

    def facts(self, rows: Sequence[Row]) -> dict[Row, tuple[dict[str, Any], dict[str, Any]]]:
        """What the old tree says of each row, and what the new one says with the old one's config."""
        listed = [[name, case, list(device), json.loads(config) if config else None] for name, case, device, config in rows]
        old = self.ask(self.roots[0], {"what": "facts", "rows": listed})
        for row, said in zip(listed, old, strict=True):
            row[3] = said.get("config")
        new = self.ask(self.roots[1], {"what": "facts", "rows": listed})
        return dict(zip(rows, zip(old, new, strict=True), strict=True))


MOST_LOST = 0.2  # of the points of a sweep at which a kernel was timed


def _added(old: dict[str, Any], new: dict[str, Any]) -> set[str]:
    """Parameters that configs have got since, at their defaults: what the old config leaves out, in the heuristic's choice too."""
    names = set(new["config"]) - set(old["config"])
    return {n for n in names if new["heuristic"].get(n) == new["config"][n]}


def verdict(old: dict[str, Any], new: dict[str, Any]) -> tuple[str, str]:
    """("same" or "changed" or "unknown", why) of what two trees say of one row."""
    for which, said in (("before", old), ("now", new)):
        if "why" in said:
            return "unknown", f"{which}: {said['why']}"
    added = _added(old, new)
    for key in ("op", "problem", "config", "heuristic", "scratch", "zeroed", "grids"):
        now = {n: v for n, v in new[key].items() if n not in added} if key in ("config", "heuristic") else new[key]
        if old[key] != now:
            return "changed", {"op": "the contract"}.get(key, key)
    if len(old["launches"]) != len(new["launches"]):
        return "changed", "the number of launches"
    for mine, other in zip(old["launches"], new["launches"], strict=True):
        for what, a, b in zip(("the kernel's name", "arguments", "the launch", "machine code"), mine, other, strict=True):
            if a != b:
                return "changed", f"{what} of {mine[0]}"
    return "same", ""


def _restamp(folder: Path, names: set[str], trees: Trees, dry: bool, tuned: Path, say: Callable[[str], None]) -> Restamped:
    from rooftop.lab.check.proofs import device_of
    from rooftop.lab.timing.roofline import part_of

    result = Restamped()
    paths = sorted({path.resolve() for path in folder.rglob("*.jsonl")})
    with store.held(paths):
        files: list[tuple[Path, bytes, list[tuple[Record, list[Record]]]]] = []
        for path in paths:
            read, note = store.sections(path)
            if note:
                raise RecordError(f"{note}: a run is writing it, or was cut off")
            files.append((path, path.read_bytes(), store.modern(read)))
        found = [r for _, _, sections in files for _, records in sections for r in records if _stampable(r, names)]
        sweeps = [r for _, _, sections in files for _, records in sections for r in records if r["kind"] == "sweep"]
        tables = _entries(tuned, names, {slug(str(r["device"]["name"])): _fields(device_of(r)) for r in found})
        swept = {n for r in sweeps for n in r["digests"] if not names or n in names}
        subjects = sorted({str(r["subject"]) for r in found} | {name for _, name, _, _ in tables} | swept)
        changed = set(trees.changed(subjects))
        found = [r for r in found if r["subject"] in changed]
        tables = [entry for entry in tables if entry[1] in changed]
        points = {(i, n): _points(r, n, _fields(device_of(r))) for i, r in enumerate(sweeps) for n in sorted(changed & set(r["digests"]))}
        rows = sorted({row for r in found for row in _rows(r, _fields(device_of(r)))} | {row for *_, row in tables}
                      | {row for listed in points.values() for row in listed.values()}, key=str)  # fmt: skip
        say(f"{len(changed)} of {len(subjects)} kernels have another text; {len(rows)} cases to compare")
        said = trees.facts(rows) if rows else {}
        kept = _tuned(tables, said, result, dry)
        for record in found:
            _stamp(record, _rows(record, _fields(device_of(record))), said, kept, result)
        for (i, name), listed in points.items():
            _stamp_sweep(sweeps[i], name, listed, said, kept, result)
        measured = [r for _, _, sections in files for _, records in sections for r in records if r["kind"] == "ceiling"]
        _stamp_ceilings([r for r in measured if not names or part_of(r) in names], trees, result)
        if not dry:
            for path, before, sections in files:
                if _mine(sections, set(result.restamped)) and (after := store.text(sections)) != before:
                    store.replace(path, before, after)
    return result


def _fields(device: Any) -> tuple[Any, ...]:
    return device.name, device.arch, device.sms, device.shared_per_block, device.l2_bytes


def _mine(sections: Iterable[tuple[Record, Sequence[Record]]], names: set[str]) -> bool:
    return any(r.get("subject", "memory") in names or names & set(r.get("digests", ())) for _, records in sections for r in records)


def _stampable(r: Record, names: set[str]) -> bool:
    subject, case = r.get("subject"), r.get("case")
    if r["kind"] not in KINDS or not isinstance(subject, str) or not isinstance(case, str) or subject.startswith("peer:") or "digest" not in r:
        return False
    return (not names or subject in names) and not (r["kind"] == "check" and r.get("backend") != "gpu")


def _rows(r: Record, device: tuple[Any, ...]) -> list[Row]:
    cases = r["cases"] if r["kind"] == "sanitize" else [r["case"]]
    return [(str(r["subject"]), str(case), device, "") for case in cases]


def _stamp(r: Record, rows: Sequence[Row], said: dict[Row, Any], kept: set[str], result: Restamped) -> None:
    """Give a record the digest of the tree as it is, if it had that of the old one and all of its cases run the same."""
    name, pairs = str(r["subject"]), [said[row] for row in rows]
    before, now = (_digest(r, [pair[i] for pair in pairs]) for i in (0, 1))
    if r["digest"] == now or before not in (None, r["digest"]):
        return  # of the present tree already, or of another revision
    if not _same(name, rows, pairs, kept, result):
        return
    r["digest"] = now
    result.restamped[name] = result.restamped.get(name, 0) + 1


def _points(r: Record, name: str, device: tuple[Any, ...]) -> dict[int, Row]:
    """The points of a sweep that an implementation was timed at, by their numbers."""
    mine = r["implementations"].index(name) if name in r["implementations"] else -1
    at = range(len(r["by"])) if name in r["named"] else [i for i, by in enumerate(r["by"]) if by == mine and r["us"][i] is not None]
    cases = {i: [r["dtypes"][r["dtype"][i]], {size: values[i] for size, values in r["sizes"].items()}] for i in at}
    return {i: (name, "sweep " + json.dumps(case), device, "") for i, case in cases.items()}


def _stamp_sweep(r: Record, name: str, listed: Mapping[int, Row], said: dict[Row, Any], kept: set[str], result: Restamped) -> None:
    """Give a sweep the digest of a kernel as it is, if it had that of the old tree. The points at which the kernel runs otherwise now lose their times, if
    they are few; if they are many, the sweep stays as it is."""
    pairs = {i: said[row] for i, row in listed.items()}
    if not pairs or any(old.get("kernel") not in (None, r["digests"][name]) or new.get("kernel") == r["digests"][name] for old, new in pairs.values()):
        return
    lost = [i for i, row in listed.items() if not _same(name, [row], [pairs[i]], kept, result)]
    if len(lost) > MOST_LOST * len(listed):
        return
    for i in lost:
        if r["implementations"][r["by"][i]] == name:
            r["us"][i] = None
        if name in r["named"]:
            r["peers"][name][i] = None
    r["digests"][name] = next(new["kernel"] for i, (_, new) in pairs.items() if i not in lost)
    result.restamped[name] = result.restamped.get(name, 0) + 1


def _stamp_ceilings(found: Sequence[Record], trees: Trees, result: Restamped) -> None:
    """Give ceilings the digest of the kernels as they are, if they had that of the old tree and the machine code for their card is identical."""
    from rooftop.lab.check.proofs import device_of
    from rooftop.lab.timing.roofline import part_of

    old, new = trees.ceilings(sorted({device_of(r).target for r in found})) if found else ({}, {})
    for r in found:
        part, target = part_of(r), device_of(r).target
        if part not in old or part not in new or r["digest"] != old[part]["digest"] or old[part]["digest"] == new[part]["digest"]:
            continue
        if old[part][target] == new[part][target]:
            r["digest"] = new[part]["digest"]
            result.restamped[part] = result.restamped.get(part, 0) + 1
        else:
            result.changed[part] = result.changed.get(part, 0) + 1
            result.why.setdefault(part, "machine code of the kernels that measure it")


def _same(name: str, rows: Sequence[Row], pairs: Sequence[Any], kept: set[str], result: Restamped) -> bool:
    """Whether both trees run the same at all rows; what differs is counted."""
    for row, (old, new) in zip(rows, pairs, strict=True):
        answer, why = verdict(old, new)
        if answer == "same" and str(old["source"]).startswith("tuned") and name not in kept:
            answer, why = "changed", "its tuned config, which is not of the code as it is"
        if answer != "same":
            counts = result.changed if answer == "changed" else result.unknown
            counts[name] = counts.get(name, 0) + 1
            result.why.setdefault(name, f"{row[1]}: {why}")
            return False
    return True


def _digest(r: Record, found: Sequence[dict[str, Any]]) -> str | None:
    """The digest of a record by what a tree says of its cases; None where it could not say."""
    if any("digest" not in one for one in found):
        return None
    return digest(*(one["digest"] for one in found)) if r["kind"] == "sanitize" else str(found[0]["digest"])


def _entries(tuned: Path, names: set[str], devices: dict[str, tuple[Any, ...]]) -> list[tuple[Path, str, str, Row]]:
    """(file, kernel, key, row) of each entry of the tuned tables of cards that records are of."""
    found = []
    for path in sorted(tuned.glob("*/*.json")):
        if path.parent.name in devices and (not names or path.stem in names):
            for key, entry in json.loads(path.read_text(encoding="utf-8")).items():
                config = json.dumps(entry["config"], sort_keys=True) if entry["config"] is not None else ""
                found.append((path, path.stem, key, (path.stem, str(entry["case"]), devices[path.parent.name], config)))
    return found


def _tuned(tables: Sequence[tuple[Path, str, str, Row]], said: dict[Row, Any], result: Restamped, dry: bool) -> set[str]:
    """Rewrite the digests of entries that run the same. Returns the kernels all of whose entries do."""
    kept, lost = set(), set()
    for path in dict.fromkeys(path for path, *_ in tables):
        table = json.loads(path.read_text(encoding="utf-8"))
        for _, name, key, row in (entry for entry in tables if entry[0] == path):
            old, new = said[row]
            if verdict(old, new)[0] == "same" and table[key]["digest"] == old["kernel"]:
                table[key]["digest"] = new["kernel"]
                result.tuned[name] = result.tuned.get(name, 0) + 1
                kept.add(name)
            else:
                lost.add(name)
        if not dry:
            from rooftop.lab.tune import tables as tuning

            tuning.write(path, table)
    return kept - lost
