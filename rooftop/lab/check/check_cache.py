"""Checks that were right, kept in the cache by all that they follow from: what has not changed since is not checked again by `make run`."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path

from rooftop.core import disk_cache, settings
from rooftop.core.spec import Case, Device
from rooftop.lab.candidates import Subject
from rooftop.lab.check.checker import Result
from rooftop.lab.check.compare import Verdict

JUDGES = ("core", "lab/check", "lab/interpret", "lab/simt")  # whose code a verdict follows from
PACKAGES = ("torch", "triton", "numpy")


@cache
def _judges() -> str:
    """Hash of what runs and judges kernels, and of the versions that it stands on."""
    made = hashlib.sha256()
    for folder in JUDGES:
        for path in sorted(p for p in (settings.PACKAGE / folder).rglob("*") if p.suffix in (".py", ".h", ".cpp")):
            made.update(path.read_bytes())
    for name in PACKAGES:
        try:
            made.update(f"{name} {metadata.version(name)}".encode())
        except metadata.PackageNotFoundError:
            made.update(f"{name} none".encode())
    return made.hexdigest()


def _path(subject: Subject, case: Case, where: str, device: Device) -> Path:
    parts = (_judges(), where, device.name if where == "gpu" else "", subject.name, subject.op.name, case.id, subject.digest(case, device))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return settings.load().cache / "checks" / key[:2] / f"{key}.json"


def find(subject: Subject, case: Case, where: str, device: Device) -> Result | None:
    """The result of an earlier check of the same code, where it was right; None where there is none, or it cannot be read."""
    try:
        data = disk_cache.read_json(_path(subject, case, where, device))
        outputs = {name: Verdict(**v) for name, v in data["outputs"].items()}
        return Result(subject.name, subject.op.name, case.id, "ok", where, "", outputs, tuple(data["path"]))
    except (KeyError, TypeError, AttributeError):
        return None


def keep(subject: Subject, case: Case, result: Result, device: Device) -> None:
    """Remember a result that was right."""
    if result.status != "ok" or result.unasked:
        return
    outputs = {name: v.__dict__ for name, v in result.outputs.items()}
    disk_cache.write_json(_path(subject, case, result.backend, device), {"outputs": outputs, "path": list(result.path)})
