"""Run by its path with PYTHONPATH set to a tree of this project, old or new (`rooftop.lab.report.restamp`): says of recorded cases what the kernels of that
tree launch, as text that can be compared. Uses only what both trees have; what fails is an answer as well, `why`.

    python -P restamp_child.py JOB ANSWER

JOB, ANSWER: files of JSON. A job: {"what": "digests", "subjects": [name]} -> {name: digest or {"why"}}, or
{"what": "facts", "rows": [[name, case, device, config or null]]} -> [facts or {"why"}], or
{"what": "ceilings", "targets": [target]} -> {part: {"digest", target: machine code}}, of the parts that are measured by kernels of one file."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import struct
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

DEBUG = ("debug", ".note", ".strtab", ".shstrtab", ".symtab")  # of a section's name: names, line numbers and versions, none of which runs


def code_of(cubin: bytes) -> str:
    """Hash of all that a cubin gives to the GPU: each section but those of names, source lines and versions, and each symbol but its name.

    Raises ValueError for what is no ELF-64 file."""
    if cubin[:4] != b"\x7fELF":
        raise ValueError(f"not a cubin: it starts with {cubin[:4]!r}")
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    each, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * each) for i in range(count)]
    found = hashlib.sha256()
    for name_at, kind, flags, _, at, size, _, _, _, entry in sections:
        begin = sections[names][4] + name_at
        name = cubin[begin : cubin.index(b"\0", begin)].decode()
        content = b"" if kind == 8 else cubin[at : at + size]  # 8: no bits in the file, memory that is only reserved
        if kind == 2 and entry:  # the symbols: what each is, where, and its bytes
            content = b"".join(content[i + 4 : i + entry] for i in range(0, size, entry))
            name = "symbols"
        elif any(part in name for part in DEBUG):
            continue
        found.update(f"{name}\0{kind}\0{flags}\0{size}\0".encode() + content)
    return found.hexdigest()


def text_of(value: Any) -> Any:
    """A value of a launch as text: functions by their names, tables by their items. Raises ValueError where the text would hold an address."""
    if isinstance(value, dict):
        return {str(k): text_of(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [text_of(v) for v in value]
    if hasattr(value, "__name__"):
        return str(value.__name__)
    text = repr(value)
    if re.search(r"\bat 0x[0-9a-f]+", text):
        raise ValueError(f"no text for {text}")
    return text


@cache
def _subject(name: str) -> Any:
    from rooftop.lab import candidates

    return next(s for s in candidates.find([name]) if s.name == name)


_CODE: dict[tuple[str, str], tuple[Any, ...]] = {}  # target and variant -> what the compiler made of it


def _compiled(kernel: Any, problem: Any, launch: Any, scratch: Any) -> tuple[Any, ...]:
    key = (problem.device.target, kernel.variant(launch, {**dict(problem.tensors), **scratch}, problem))
    if not isinstance(launch.kernel, str) and key[1] == f"{kernel.name} {launch.kernel}":  # a revision whose Triton kernels do not tell their binaries apart
        how = text_of({k: v for k, v in vars(launch).items() if k != "kernel"})
        key = (key[0], f"{key[1]} {how} {problem.tensors}")
    if key not in _CODE:
        made = kernel.machine_code(problem, launch, scratch)
        _CODE[key] = code_of(made.cubin), made.symbol
    return _CODE[key]


def _case(op: Any, name: str) -> Any:
    """A case by its name, or a point of a sweep: "sweep" and JSON of its dtype and sizes."""
    if not name.startswith("sweep "):
        return op.case(name)
    dtype, sizes = json.loads(name.removeprefix("sweep "))
    return op.swept.case(dtype, sizes)


def _prepared(row: list[Any]) -> tuple[Any, ...]:
    from rooftop.core.spec import Device

    name, case_name, device, given = row
    subject = _subject(name)
    kernel, case = subject.implementation, _case(subject.op, case_name)
    where = Device(*device)
    problem = subject.kernel_problem(case, where)[1]
    if refused := kernel.supports(problem):
        raise ValueError(f"not supported: {refused}")
    config, source = kernel.resolve(problem, given)
    scratch = kernel.scratch(problem, config)
    steps = list(kernel.steps(problem, config))
    if not steps:
        raise ValueError("nothing is launched")
    return subject, kernel, case, problem, config, source, scratch, steps


def facts(row: list[Any]) -> dict[str, Any]:
    """What the tree runs for a subject, case and device with a config (None: its own), and the digest of its records."""
    from rooftop.core.digests import digest, strip

    subject, kernel, case, problem, config, source, scratch, steps = _prepared(row)
    launches = []
    for step in steps:
        if not hasattr(step, "grid"):  # a call of torch: its function, with all of the file that it is in
            file = Path(inspect.getfile(step.function)).read_text(encoding="utf-8")
            launches.append([step.function.__name__, text_of(step.args), "torch", digest(strip(file, "python"))])
            continue
        names = getattr(step.kernel, "arg_names", None)  # Triton passes by name: in the order of its parameters; CUDA C++ by position
        args = [step.args[n] for n in names if n in step.args] if names else list(step.args.values())
        args = [int(a) if isinstance(a, bool) else a for a in args]  # a kernel takes False as 0
        rest = {k: text_of(v) for k, v in vars(step).items() if k not in ("kernel", "args")}
        kernel_name = step.kernel if isinstance(step.kernel, str) else step.kernel.__name__
        launches.append([kernel_name, text_of(args), rest, _compiled(kernel, problem, step, scratch)])
    values = kernel.config_dict(config)
    return {
        "op": subject.op.digest(case), "kernel": kernel.digest, "config": values, "source": source, "heuristic": kernel.config_dict(kernel.choose(problem)),
        "digest": digest(subject.op.digest(case), kernel.digest, values), "problem": problem.signature, "launches": launches,
        "scratch": text_of(scratch), "zeroed": text_of(kernel.zeroed(problem, config)), "grids": _grids(subject, case, row[2], config),
    }  # fmt: skip


def _grids(subject: Any, case: Any, device: list[Any], config: Any) -> Any:
    """The grids on a card that says how many clusters it runs at once: records do not hold it, and persistent kernels ask."""
    from rooftop.core.spec import TARGETS, Device

    where = replace(Device(*device), clusters=TARGETS[device[1]].clusters)
    return text_of([getattr(step, "grid", None) for step in subject.implementation.steps(subject.kernel_problem(case, where)[1], config)])


def _jobs(row: list[Any]) -> list[Any]:
    """What NVRTC compiles for a row."""
    try:
        _, kernel, _, problem, _, _, _, steps = _prepared(row)
        return [kernel.compile_job([s.kernel], problem.device.target) for s in steps if hasattr(s, "grid")] if hasattr(kernel, "compile_job") else []
    except Exception:
        return []  # `facts` says why


def ceilings(targets: list[str]) -> dict[str, Any]:
    """The kernels that measure a card's memory and L2."""
    from rooftop.core.compile import compile_cuda
    from rooftop.lab.timing import roofline, streams

    source = roofline.MEMORY.read_text(encoding="utf-8")
    code = {t: code_of(compile_cuda(source, name=str(roofline.MEMORY), kernels=streams.kernels(), target=t).cubin) for t in targets}
    return {part: {"digest": roofline.digest(part), **code} for part, file in roofline.PARTS.items() if file == roofline.MEMORY}


def answer(job: dict[str, Any]) -> Any:
    def tried(make: Any, one: Any) -> Any:
        try:
            return make(one)
        except Exception as error:  # another tree may fail in any way, and each is an answer
            return {"why": f"{type(error).__name__}: {error}"[:300]}

    if job["what"] == "digests":
        return {name: tried(lambda n: _subject(n).implementation.digest, name) for name in job["subjects"]}
    if job["what"] == "ceilings":
        return tried(ceilings, job["targets"])
    from rooftop.core.compile import compile_many

    compile_many(list(dict.fromkeys(j for row in job["rows"] for j in _jobs(row))))
    return [tried(facts, row) for row in job["rows"]]


if __name__ == "__main__":
    read, written = map(Path, sys.argv[1:])
    written.write_text(json.dumps(answer(json.loads(read.read_text(encoding="utf-8"))), default=str), encoding="utf-8")
