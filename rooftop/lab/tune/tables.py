"""Tables of tuned configs: written whole, merged, brought home from another machine.

Tables lie in `<folder>/<device slug>/<implementation>.json`: `Problem.tune_key` -> one entry, which `Implementation.resolve` reads:

| key | what it holds |
|---|---|
| `config` | the config's values; null: the heuristic was measured and none beat it (a sibling card's table is then not asked) |
| `over_heuristic` | time of the heuristic's config over this one's; null where `config` is |
| `case`, `at` | the case it was measured on, and when (UTC) |
| `digest` | that of the kernel: an entry of other code is not read, since its config may be wrong there |"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rooftop.core import devices, implementation, registry
from rooftop.core.spec import TARGETS, Device
from rooftop.lab.candidates import Subject

Entry = dict[str, Any]


class TuneError(ValueError):
    """A table that cannot be read or written, or a config that broke the device."""


def label(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in values.items()) or "(none)"


def table_path(folder: Path, device: str, name: str) -> Path:
    return folder / devices.slug(device) / f"{name}.json"


def read_table(path: Path) -> dict[str, Entry]:
    """Raises TuneError, with the entry, where the file is no table."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TuneError(f"{path}: not JSON: {error}") from None
    if not isinstance(table, dict):
        raise TuneError(f"{path}: a table is a JSON object, signature -> entry")
    for signature, entry in table.items():
        if fault := _fault(entry):
            raise TuneError(f"{path}: {signature}: {fault}")
    return table


def _fault(entry: Any) -> str | None:
    if not isinstance(entry, dict) or set(entry) != {"config", "over_heuristic", "case", "at", "digest"}:
        return "an entry holds config, over_heuristic, case, at and digest"
    config, gain = entry["config"], entry["over_heuristic"]
    if not all(isinstance(entry[k], str) for k in ("case", "at", "digest")):
        return "case, at and digest are texts"
    if config is None:
        return None if gain is None else "over_heuristic is null where config is"
    if not isinstance(config, dict):
        return f"config is {config!r}; an object or null is accepted"
    if isinstance(gain, bool) or not isinstance(gain, (int, float)) or not gain >= 1:
        return f"over_heuristic is {gain!r}; a config is kept only if it is faster, at least 1"
    return None


def save(path: Path, entries: Mapping[str, Entry], kernel: str) -> bool:
    """Write `entries` over those of the table; entries of other code than `kernel` (its digest) go. Returns whether the file changed.

    The file is whole at every moment. Raises TuneError where it cannot be written or what is there is no table."""
    present = read_table(path) if path.is_file() else {}
    merged = {s: e for s, e in (present | dict(entries)).items() if e["digest"] == kernel}
    if merged == present:
        return False
    write(path, merged)
    return True


def write(path: Path, table: Mapping[str, Entry]) -> None:
    """The file of a table, whole at every moment. Raises TuneError where it cannot be written."""
    lines = (f"  {json.dumps(s)}: {json.dumps(e, sort_keys=True, allow_nan=False)}" for s, e in sorted(table.items()))
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)  # mkstemp's 0600 would follow the file into a wheel
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise TuneError(f"{path} cannot be written ({error}); --keep DIR puts tables elsewhere") from None
    implementation._TABLES.pop(path, None)  # read anew by whoever asks next in this process
    implementation._tuned_names.cache_clear()


@dataclass
class Brought:
    """What `bring` did: entries of each table that were taken, that were there already (or newer), and those of other kernels' code."""

    taken: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)


def bring(source: Path, into: Path) -> Brought:
    """Bring the tables of another machine (a folder that --keep filled) into `into`. Of two entries for one problem the newer stays; an
    entry of code that is no longer the kernel's is left out, and said.

    Raises, before anything is written, FileNotFoundError where there is no such folder, TuneError for a file that is no table or a config
    that the kernel cannot take, RegistryError for an implementation that is not there."""
    if not source.is_dir():
        raise FileNotFoundError(f"no folder {source}")
    files = sorted(source.rglob("*.json"))
    if not files:
        raise TuneError(f"{source} holds no table: <device>/<implementation>.json is looked for")
    result = Brought()
    new: list[tuple[Path, dict[str, Entry], str]] = []
    for path in files:
        device, *rest = path.relative_to(source).with_suffix("").parts
        if not rest or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", device):
            raise TuneError(f"{path}: a table is <device>/<implementation>.json below {source}")
        subject = _subject("/".join(rest))
        kernel = subject.implementation
        assert kernel is not None
        target = into.joinpath(device, *rest[:-1], f"{rest[-1]}.json")
        present = read_table(target) if target.is_file() else {}
        taken: dict[str, Entry] = {}
        for signature, entry in read_table(path).items():
            shown = f"{device}/{kernel.name}: {entry['case']}"
            there = present.get(signature)
            if entry["digest"] != kernel.digest:
                result.stale.append(shown)
                continue
            _require_runs(path, subject, device, signature, entry)
            if there is not None and there["digest"] == kernel.digest and there["at"] >= entry["at"]:
                result.same.append(shown)
            else:
                taken[signature] = entry
                result.taken.append(shown)
        if taken:
            new.append((target, taken, kernel.digest))
    for target, taken, digest_now in new:
        save(target, taken, digest_now)
    return result


def _subject(name: str) -> Subject:
    if "/" in name:
        rung = registry.rung(name)
        return Subject(rung.name, registry.op(registry.ladder(rung.ladder).op), rung.implementation, rung)
    found = registry.implementation(name)
    return Subject(name, registry.op(found.op), found)


def _require_runs(path: Path, subject: Subject, device: str, signature: str, entry: Entry) -> None:
    """Raises TuneError unless the config has the heuristic's keys and gives launches for the op's case of that signature."""
    kernel, values = subject.implementation, entry["config"]
    assert kernel is not None
    if values is None:
        return
    sheet = devices.lookup(device)
    card = TARGETS.get(kernel.arch, TARGETS[90])  # stands in for a card that has no datasheet here
    if sheet is not None and isinstance(sheet.arch, int):
        card = Device(sheet.name, sheet.arch, sheet.sms, sheet.shared_per_sm - 1024, sheet.l2_bytes)  # 1 KiB of it is the system's
    elif sheet is not None:
        card = TARGETS[sheet.arch]
    problem = next((p for c in subject.op.cases if (p := subject.kernel_problem(c, card)[1]).tune_key == signature), None)
    if problem is None:
        raise TuneError(f"{path}: {signature}: no case of {subject.op.name} has this signature")
    expected = kernel.config_dict(kernel.choose(problem))
    if set(values) != set(expected):
        raise TuneError(f"{path}: {signature}: config is {label(values)}; one like {label(expected)} is accepted")
    try:
        kernel.launches(problem, kernel.config_of(values))
    except Exception as error:  # whatever a kernel's own code does with values that it does not expect
        raise TuneError(f"{path}: {signature}: config {label(values)} gives no launch: {error}") from None


def require_writable(folder: Path) -> None:
    """Raises TuneError now rather than after the measuring."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise TuneError(f"{folder} cannot be written ({error}); --keep DIR puts tables elsewhere") from None
