"""Gives the records of an older form of hashes those of rooftop/lab/records/identity.py as it is now.

    python scripts/migrate_records.py --since REV [--records results] [--machine SECONDS]

A record that was fresh in the tree at REV, by that tree's own rule, gets the identity that it has in this tree, if both trees launch the same for it and the
code of the launches is the same; where the text differs, the same machine code is asked for. All others stay as they are, and stale. With --machine the hash
of the machine code is added, for so many seconds, CUDA C++ first."""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
NPU = HERE.parents[1] / "results" / "npu"
KINDS = ("check", "bench", "sanitize", "language")
FAMILIES = ("norm", "loss", "select", "movement", "quant")  # whose machine code is compiled first


def answers(folder: Path, judged: bool) -> dict[str, Any]:
    """Asked in a process of either tree: record -> whether it is fresh by that tree's rule, if that is `judged`, and what it launches by this tree's. The
    newest modules are put in an older tree."""
    from rooftop.lab.records import store
    from rooftop.lab.report.joined import Joined, staleness

    found = store.read(folder)
    stale = staleness(found)
    joined = Joined(found)
    return {name_of(r): {"fresh": judged and not stale(r), "launched": launched(joined, r)} for r in found if r["kind"] != "build"}


def others() -> dict[str, Any]:
    """Asked in either tree: what of results/npu is not stale by its own rule, and the digests of kernels that have tuned tables."""
    from rooftop.core import registry, settings
    from rooftop.lab.npu import ascend, figures

    gone = {(s.name, what, c.id if c else None) for s, what, c in figures.stale(figures.read(NPU / "tpu.json"))}
    stale = set(ascend.stale(ascend.read(NPU / "ascend.json")))
    tuned = {p.stem: registry.implementation(p.stem).digest for p in (settings.PACKAGE / "tuned").glob("*/*.json")}
    return {"gone": gone, "stale": stale, "tuned": tuned}


def rewrite_others(before: dict[str, Any], root: Path) -> Counter[tuple[str, str]]:
    """The same of results/npu, whose kernels have no machine code here, and of tuned tables."""
    from rooftop.core import registry, tpu
    from rooftop.lab.npu import ascend, figures
    from rooftop.lab.tune import tables

    counts: Counter[tuple[str, str]] = Counter()
    found = figures.read(NPU / "tpu.json")
    for s in figures.subjects():
        entry = found["kernels"].get(s.name, {})
        if "checked" in entry:
            fresh = (s.name, "checked", None) not in before["gone"]
            entry["checked"]["digest"] = figures.checked_digest(s) if fresh else entry["checked"]["digest"]
            counts["npu", "fresh" if fresh else "stale"] += 1
        for c in figures.cases_of(s):
            if c.id in entry.get("compiled", {}):
                fresh = (s.name, "compiled", c.id) not in before["gone"]
                for target, device in tpu.TPUS.items() if fresh else ():
                    entry["compiled"][c.id][target]["digest"] = figures.compiled_digest(s, c, device)
                counts["npu", "fresh" if fresh else "stale"] += 1
    figures.write(found, NPU / "tpu.json")
    known = ascend.read(NPU / "ascend.json")
    for s in ascend.subjects():
        if s.name in known["kernels"]:
            fresh = s.name not in before["stale"]
            known["kernels"][s.name]["digest"] = ascend.digest_of(s) if fresh else known["kernels"][s.name]["digest"]
            counts["ascend", "fresh" if fresh else "stale"] += 1
    (NPU / "ascend.json").write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for path in (root / "rooftop" / "tuned").glob("*/*.json"):
        table = tables.read_table(path)
        for entry in table.values():
            fresh = entry["digest"] == before["tuned"][path.stem]
            entry["digest"] = registry.implementation(path.stem).digest if fresh else entry["digest"]
            counts["tuned", "fresh" if fresh else "stale"] += 1
        tables.write(path, table)
    return counts


def name_of(r: dict[str, Any]) -> str:
    """What tells a record from others, before and after."""
    device = r.get("device", {}).get("name")
    return json.dumps([r.get(k) for k in ("kind", "run", "at", "op", "subject", "case", "backend", "cases", "first_s", "tier", "launch", "sizes")] + [device])


def subject_of(joined: Any, r: dict[str, Any]) -> Any:
    """Of either tree: the older one has all of its subjects in a table."""
    key = str(r.get("op")), str(r.get("subject"))
    return joined.subject(*key) if hasattr(joined, "subject") else joined.subjects.get(key)


def launched(joined: Any, r: dict[str, Any]) -> Any:
    """The launches and the code of a record's cases, contract apart."""
    from rooftop.lab.check.proofs import device_of

    subject = subject_of(joined, r)
    if r["kind"] not in KINDS or subject is None or subject.implementation is None:
        return None
    import identity_of_now as identity

    key = r["op"], r["subject"], r["case"], tuple(r.get("cases", ())), device_of(r)
    if key not in _LAUNCHED:
        device = identity.as_recorded(device_of(r), subject.implementation)
        _LAUNCHED[key] = _launched(joined, subject, r["cases"] if r["kind"] == "sanitize" else [r["case"]], device)
    return _LAUNCHED[key]


_LAUNCHED: dict[Any, str] = {}


def _launched(joined: Any, subject: Any, names: list[str], device: Any) -> str:
    import identity_of_now as identity

    cases = joined._cases_of(subject.op)
    found = []
    for name in names:
        if name not in cases:
            return "gone"
        try:
            problem = joined.memo.problem(subject.op, cases[name], device)
            config, steps = identity._prepared(subject.implementation, problem)
            found.append([identity.launched(subject.implementation, problem, config, steps), code(subject.implementation, steps)])
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return json.dumps(found, sort_keys=True)


def code(kernel: Any, steps: Any) -> list[str]:
    """The normalised code, by the modules of this tree."""
    import c_code_of_now as digests
    import cuda_form_of_now as cuda_form
    import normal_form_of_now as normal_form

    from rooftop.core import settings
    from rooftop.core.backends.cuda import CudaImplementation

    if isinstance(kernel, CudaImplementation):
        where = getattr(kernel.head, "folders", None) or (settings.PACKAGE / "kernels" / "_device",)
        kernels = tuple(str(s.kernel) for s in steps)
        return [cuda_form.Definitions(digests.expanded(kernel._text, where)).reached(kernels), *kernels]
    functions = [getattr(s, "kernel", None) or s.function for s in steps]
    hosts = [n for n in ("prepare", "run", "finish") if hasattr(kernel.module, n)] if not steps else []
    return [*map(normal_form.of_object, functions), *(normal_form.of_function(kernel.path, n) for n in hosts)]


def ask(tree: Path, modules: Path, folder: Path, *more: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "answer"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tree, modules)))}
        subprocess.run([sys.executable, "-P", str(HERE), "--answer", str(out), "--records", str(folder), *more], check=True, env=env, cwd=temporary)
        return dict(pickle.loads(out.read_bytes()))


def modules_of_now(root: Path, into: Path) -> None:
    """This tree's modules that normalise code, under names of their own: they run in either tree."""
    core = root / "rooftop" / "core"
    (into / "specialised_of_now.py").write_text((core / "specialised.py").read_text())
    (into / "normal_form_of_now.py").write_text((core / "normal_form.py").read_text().replace("rooftop.core.specialised", "specialised_of_now"))
    (into / "identity_of_now.py").write_text((root / "rooftop" / "lab" / "records" / "identity.py").read_text().replace(
        "from rooftop.core import normal_form\n", "import normal_form_of_now as normal_form\n"))
    (into / "cuda_form_of_now.py").write_text((core / "cuda_form.py").read_text().replace("rooftop.core.digests", "c_code_of_now"))
    helpers = (core / "helpers.py").read_text()

    def part(first: str, last: str) -> str:
        return helpers[helpers.index(first) : helpers.index(last)]

    (into / "c_code_of_now.py").write_text(
        (core / "digests.py").read_text() + "\nfrom collections.abc import Sequence\nfrom pathlib import Path\n\n" + part("_GAP = ", "_IMPORT = ")
        + part("def _found(", "def headers(") + part("def expanded(", "def with_headers(")
    )


def migrate(folder: Path, since: str, seconds: float, root: Path = HERE.parents[1], more: bool = False) -> Counter[tuple[str, str]]:
    """(kind, what became of it) -> records. `more`: what `others` are instead."""
    with tempfile.TemporaryDirectory() as temporary:
        old, modules = Path(temporary) / "old", Path(temporary) / "modules"
        old.mkdir(), modules.mkdir()
        done = subprocess.run(["git", "-C", str(root), "archive", since, "rooftop", "pyproject.toml"], capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(old, filter="data")
        modules_of_now(root, modules)
        if more:
            return rewrite_others(ask(old, modules, folder, "--others"), root)
        before, now = ask(old, modules, folder, "--judge"), ask(root, modules, folder)
    return rewrite(folder, before, now, seconds)


def rewrite(folder: Path, before: dict[str, Any], now: dict[str, Any], seconds: float) -> Counter[tuple[str, str]]:
    from rooftop.lab.records import form, rewriting, store

    counts: Counter[tuple[str, str]] = Counter()
    files = [(path, path.read_bytes(), rewriting.modern(store.sections(path)[0])) for path in form.below(folder)]
    given = []
    for r in (r for _, _, sections in files for _, records in sections for r in records):
        if r["kind"] in ("clock", "build"):
            continue
        name = name_of(r)
        if not before[name]["fresh"]:
            what = "stale"
        elif before[name]["launched"] != now[name]["launched"]:
            what = f"not proven: {now[name]['launched'] if str(now[name]['launched'])[:1] not in '[N' else 'another launch or code'}"
        else:
            what = "fresh"
            give(r)
            given.append(r)
        counts[str(r["kind"]), what] += 1
    add_machine(given, time.monotonic() + seconds)
    for path, content, sections in files:
        if (after := rewriting.text(sections)) != form.unpacked(content):
            rewriting.replace({path: content}, path, form.packed(after, path))
    return counts


_KNOWN: dict[str, Any] = {}


def known() -> Any:
    from rooftop.lab.report.joined import Joined

    if "joined" not in _KNOWN:
        _KNOWN["joined"] = Joined([])
    return _KNOWN["joined"]


def cases_of(r: dict[str, Any]) -> tuple[Any, list[Any]]:
    subject = subject_of(known(), r)
    cases = known()._cases_of(subject.op)
    return subject, [cases[name] for name in (r["cases"] if r["kind"] == "sanitize" else [r["case"]])]


def give(r: Any) -> None:
    """A record that is fresh gets the identity that it has now."""
    from rooftop.lab.check.proofs import device_of
    from rooftop.lab.records import identity
    from rooftop.lab.timing import roofline, swept

    if r["kind"] == "ceiling":
        r.table["digest"] = roofline.digest(roofline.part_of(r))  # type: ignore[arg-type]
    elif r["kind"] == "sweep":
        made = {n: identity.of(*swept.made_by(r, n), device_of(r), known().memo) for n in r["digests"]}  # type: ignore[misc]
        r.table["digests"], r.table["sources"] = {n: i.digest for n, i in made.items()}, {n: i.source for n, i in made.items()}
    elif r["kind"] in KINDS:
        r.table.update(identity.of(*cases_of(r), device_of(r), known().memo).facts)


def add_machine(given: list[Any], until: float) -> None:
    from rooftop.lab.check.proofs import device_of
    from rooftop.lab.records import identity

    def rank(r: dict[str, Any]) -> Any:
        kernel = cases_of(r)[0].implementation
        family = kernel.path.parent.name
        return kernel.backend != "cuda", family in ("attention", "gemm"), FAMILIES.index(family) if family in FAMILIES else len(FAMILIES), kernel.name

    todo = [r for r in given if r["kind"] in KINDS and cases_of(r)[0].implementation is not None and "machine" not in r]
    for r in sorted(todo, key=rank):
        if time.monotonic() > until:
            break
        if (found := identity.machine(*cases_of(r), device_of(r), known().memo)) is not None:
            r.table["machine"] = found


def fill(folder: Path, seconds: float) -> int:
    """Adds the hash of the machine code to records that are fresh by their text and have none, for so many seconds. Returns to how many."""
    from rooftop.lab.records import form, rewriting, store

    files = [(path, path.read_bytes(), rewriting.modern(store.sections(path)[0])) for path in form.below(folder)]
    lacking = [r for _, _, sections in files for _, records in sections for r in records if r["kind"] in KINDS and "source" in r and "machine" not in r]
    fresh = [r for r in lacking if known().stale(r) is None]
    add_machine(fresh, time.monotonic() + seconds)
    for path, content, sections in files:
        if (after := rewriting.text(sections)) != form.unpacked(content):
            rewriting.replace({path: content}, path, form.packed(after, path))
    return sum("machine" in r for r in fresh)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default="HEAD")
    parser.add_argument("--records", type=Path, default=HERE.parents[1] / "results")
    parser.add_argument("--machine", type=float, default=0.0)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--judge", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--others", action="store_true", help="results/npu and tuned tables instead of records")
    parser.add_argument("--fill", type=float, metavar="SECONDS", help="migrate nothing; add the hash of the machine code to fresh records without one")
    given = parser.parse_args()
    if given.answer:
        given.answer.write_bytes(pickle.dumps(others() if given.others else answers(given.records, given.judge)))
        return
    if given.fill is not None:
        print(f"{fill(given.records.resolve(), given.fill)} records have got the hash of their machine code")
        return
    for (kind, what), n in sorted(migrate(given.records.resolve(), given.since, given.machine, more=given.others).items()):
        print(f"{kind:12s} {n:6d} {what}")


if __name__ == "__main__":
    main()
