"""The project's own Triton kernels compiled for a Huawei Ascend: by Huawei's Triton (3.2) to linalg and by its compiler to HIVM, with
memory planned and pipes synchronised. The last step, to machine code, is closed (`hivmc`, of CANN) and is not made. No kernel is changed
for it."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rooftop.core import registry, settings, tpu
from rooftop.core.digests import digest
from rooftop.core.spec import TARGETS, Case
from rooftop.lab.candidates import Subject, implementations

PATH = settings.CHECKOUT / "results" / "npu" / "ascend.json"
TARGET = "Ascend910B3"
LIMIT = 300.0  # seconds for a kernel and a case


def python() -> Path | None:
    return tpu.python(".venv-ascend", "ascendnpuir")


def absent() -> str | None:
    """None, or how to get Huawei's compiler. It brings a Triton of its own, so it needs an environment of its own."""
    return None if python() else "there is no environment with triton-ascend and ascendnpu-ir (make ascend-env, Python 3.11)"


def subjects() -> list[Subject]:
    """Every shipped Triton kernel."""
    found = [s for name in registry.op_names() for s in _with_backward(name)]
    return [s for s in found if s.implementation is not None and s.implementation.backend == "triton"]


def _with_backward(name: str) -> Iterator[Subject]:
    op = registry.op(name)
    if op.twin_of is None:
        yield from implementations(op)
        yield from implementations(op.bwd) if op.bwd is not None else ()


def cases_of(subject: Subject) -> list[Case]:
    """The first timed case that the kernel takes, then the smallest of its edge cases that has something to write: tiles are chosen by
    shapes."""
    card = TARGETS[80]
    taken = [
        c for c in subject.op.cases if "huge" not in c.tags and subject.supports(c, card) is None
        and not subject.op.idle(subject.op.problem(c, card))
    ]
    edge = [
        c for c in taken if "edge" in c.tags and c.name.startswith(("odd", "aligned", "tile"))
    ] or [c for c in taken if "edge" in c.tags]
    return [*[c for c in taken if "bench" in c.tags][:1], *edge[:1]]


def compiled(subject: Subject, case: Case) -> list[dict[str, Any]]:
    """For each launch the kernel with bytes planned and loops over single elements, or why it is refused."""
    found = python()
    if found is None:
        raise RuntimeError(str(absent()))
    assert subject.implementation is not None
    with tempfile.TemporaryDirectory(prefix="rooftop-") as folder:
        env = {"PYTHONPATH": str(settings.CHECKOUT), "TRITON_CACHE_DIR": folder}
        try:
            ran = subprocess.run(
                [str(found), "-m", "rooftop.lab.npu.ascend_child", subject.name, case.id, TARGET, folder],
                capture_output=True, text=True, check=False, timeout=LIMIT, env=settings.environment(env),
            )
        except subprocess.TimeoutExpired:
            return [{"kernel": subject.name, "refused": f"no answer in {LIMIT:.0f} s"}]
    lines = [line for line in ran.stdout.splitlines() if line.startswith("[{")]
    if not lines:
        said = (ran.stderr.strip().splitlines() or ["no word"])[-1]
        return [{"kernel": subject.name, "refused": f"the compiler ended with {ran.returncode}: {said[:200]}"}]
    return json.loads(lines[-1])


def tried(subject: Subject) -> list[dict[str, Any]]:
    """Its cases in turn, up to the first that is accepted whole."""
    found = []
    for case in cases_of(subject):
        found.append({"case": case.id, "launches": compiled(subject, case)})
        if not any("refused" in x for x in found[-1]["launches"]):
            break
    return found


def inspect(found: Sequence[Subject]) -> list[dict[str, Any]]:
    """Rows for the command line."""
    rows = []
    for s in found:
        for one in tried(s):
            for x in one["launches"]:
                rows.append(
                    {
                        "subject": s.name, "case": one["case"], "verdict": "no" if "refused" in x else "yes",
                        "note": x.get("refused", one["case"]), **x
                    }
                )
    return rows


def read(path: Path = PATH) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def stale(found: dict[str, Any]) -> list[str]:
    """The kernels that are not as they were when they were compiled."""
    known = found.get("kernels", {})
    return [s.name for s in subjects() if known.get(s.name, {}).get("digest") != digest_of(s)]


def digest_of(subject: Subject) -> str:
    """Hash of what is compiled."""
    return digest(*(subject.digest(case, TARGETS[80]) for case in cases_of(subject)))


def update(say: Callable[[str], None], path: Path = PATH) -> None:
    """Compile what is stale, and write the file after each."""
    if reason := absent():
        say(reason)
        return
    found = read(path)
    there = {s.name: s for s in subjects()}
    found = {"target": TARGET, "software": {"triton-ascend": "3.2.0", "ascendnpu-ir": "1.2.0"},
             "kernels": {n: k for n, k in found.get("kernels", {}).items() if n in there}}
    for name in stale(found):
        s = there[name]
        assert s.implementation is not None
        found["kernels"][name] = {"digest": digest_of(s), "tried": tried(s)}
        say(f"{name}: {'refused' if any('refused' in x for x in found['kernels'][name]['tried'][-1]['launches']) else 'accepted'}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
