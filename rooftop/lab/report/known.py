"""What the pages ask of the tree, kept from one build to the next for as long as the tree is the same: digests of records' subjects, the
cases that a kernel takes, the one that a call takes, where facts and counts are kept. Working these out is most of a build."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rooftop.core import disk_cache, settings

if TYPE_CHECKING:
    from rooftop.lab.candidates import Memo, Subject

# what the answers follow from
FOLDERS = ("core", "formats", "ranks", "ops", "kernels", "ladders", "tuned", "sparse", "quant", "codecs", "comm", "lab/report")
FILES = ("lab/records/identity.py", "lab/candidates.py", "lab/climb.py")
ENDINGS = (".py", ".cu", ".cuh", ".toml", ".json")

# What was asked of the tree -> a word or why not, and a word:
#   (op, subject, cases, card)                                 why the subject no longer takes a case; its identity in the tree
#   ("machine", ...)                                           the hash of the machine code there
#   ("sweep", ...)                                             why a sweep is stale
#   ("beyond", ladder)                                         the lines on its shipped kernel
#   ("takes", op, rung, case, card)                            why the rung does not take the case
#   ("choice", op, case, card)                                 the implementation that a call takes
#   ("facts", rung, architecture), ("counts", ...)             the case; the key under which they are kept
#   ("place", rung)                                            where it runs without a GPU
Digests: TypeAlias = dict[Any, tuple[str | None, str]]


class Known(dict[Any, Any]):
    """A table of answers by what is asked, which its text stands for."""

    grown = False

    def __contains__(self, key: object) -> bool:
        return super().__contains__(repr(key))

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(repr(key))

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(repr(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.grown = True
        super().__setitem__(repr(key), value)


def _path() -> Path:
    from rooftop.core.backends.python_modules import missing
    from rooftop.core.backends.table import BACKENDS
    from rooftop.lab.inspect.inspector import tools

    made = hashlib.sha256(tools().encode())
    for backend in BACKENDS.values():  # a kernel takes no case where its compiler is not installed
        package = getattr(backend.implementation, "package", "")
        made.update(f"{package} {bool(package and missing(package, ''))}\0".encode())
    files = [settings.PACKAGE / file for file in FILES]
    for folder in FOLDERS:
        files += sorted(p for p in (settings.PACKAGE / folder).rglob("*") if p.suffix in ENDINGS)
    for path in files:
        made.update(str(path).encode() + b"\0" + path.read_bytes())
    key = made.hexdigest()
    return settings.load().cache / "facts" / key[:2] / f"{key}.digests.json"


def load() -> Known:
    """What was worked out before of the tree as it is; empty where there is nothing, or it cannot be read."""
    known = Known()
    try:
        data = disk_cache.read_json(_path())
        dict.update(known, {str(k): (None if why is None else str(why), str(digest)) for k, (why, digest) in data.items()})
    except (ValueError, TypeError, AttributeError):
        pass
    return known


def facts(wanted: Sequence[tuple[Subject, int]], memo: Memo, answers: Digests) -> dict[tuple[str, int], Any]:
    """Of these subjects and architectures the facts of binaries that were found before, by name and architecture. `answers` grows."""
    from rooftop.lab.inspect import inspector

    found = {}
    for s, arch in wanted:
        at = ("facts", s.name, arch)
        if at not in answers:
            case = inspector.inspect_case(s, None, arch, memo)
            answers[at] = case.id, inspector.key_of(s, case, arch, memo)
        if (kept := inspector.kept_at(answers[at][1], arch)) is not None:
            found[s.name, arch] = kept
    return found


def save(known: Known) -> None:
    """For the next build."""
    if known.grown:
        disk_cache.write_json(_path(), dict(known.items()))
