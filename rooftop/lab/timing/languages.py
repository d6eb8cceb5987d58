"""The same op in each language: what compiling costs, what the compiler makes, what the first call costs.

    python -m rooftop.lab.timing.languages compile results     needs the compilers, and no GPU
    python -m rooftop.lab.timing.languages first results       needs a GPU

Kernel times are those of `rooftop bench`; the page of docs/languages.md joins all three by kernel, case and digest."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftop.core import cubins, registry, settings
from rooftop.core.backends.aot import AotImplementation
from rooftop.core.child import cpu_seconds
from rooftop.core.cubins import AbsentCompiler
from rooftop.core.names import RegistryError
from rooftop.core.registry import HOUSE, House
from rooftop.core.spec import TARGETS
from rooftop.lab.candidates import Subject
from rooftop.lab.exit_codes import Parser, ended, gpu_for
from rooftop.lab.records import identity, store

CARD = "h200"
LANGUAGES = ("cuda", "triton", "gluon", "cutile", "cute")  # a column each, by backend


@dataclass(frozen=True)
class Row:
    """An op at one case, and the kernel of each language that is shown: that which the language takes the case with."""

    op: str
    case: str
    kernels: Mapping[str, str]


ROWS = (
    Row("softmax", "rows 16384x8192 bf16", {
        "cuda": "softmax__cuda_sm80", "triton": "softmax__triton", "cutile": "softmax__cutile_sm90", "cute": "softmax__cute_sm90",
    }),
    Row("rms_norm", "rows 16384x8192 bf16", {
        "cuda": "rms_norm__cuda_sm80", "triton": "rms_norm__triton", "cutile": "rms_norm__cutile_sm90", "cute": "rms_norm__cute_sm90",
    }),
    Row("rms_norm_bwd", "rows 16384x8192 bf16", {
        "cuda": "rms_norm_bwd__cuda_sm80", "triton": "rms_norm_bwd__triton", "cutile": "rms_norm_bwd__cutile_sm90",
    }),
    Row("swiglu", "512 MiB 10922x8192 bf16", {"cuda": "swiglu__rows__cuda_sm80", "triton": "swiglu__triton", "cutile": "swiglu__cutile_sm90"}),
    Row(
        "transpose", "square 16384 bf16",
        {"cuda": "transpose__cuda_sm80", "triton": "transpose__triton", "cutile": "transpose__cutile_sm90"}
    ),
    Row("matmul", "4096 cubed bf16", {
        "cuda": "matmul__multicast__cuda_sm90", "triton": "matmul_triton/06_descriptors", "gluon": "matmul__gluon_sm90",
        "cutile": "matmul__cutile_sm90", "cute": "matmul__cute_sm90",
    }),
    Row("matmul", "8192 cubed bf16", {
        "cuda": "matmul__multicast__cuda_sm90", "triton": "matmul_triton/06_descriptors", "gluon": "matmul__gluon_sm90",
        "cutile": "matmul__cutile_sm90", "cute": "matmul__cute_sm90",
    }),
    Row("attention", "causal d128 8192 bf16", {
        "cuda": "attention_cuda/05_tensor_cores", "triton": "attention__triton", "gluon": "attention__gluon_sm90",
        "cutile": "attention__cutile_sm90",
    }),
)


def subject_of(op: str, name: str, house: House = HOUSE) -> Subject | None:
    """A kernel, or a rung of a ladder, by name; None where this house has none of that name."""
    try:
        rung = registry.rung(name, house) if "/" in name else None
        return Subject(name, registry.op(op, house), registry.implementation(name, house) if rung is None else rung.implementation, rung)
    except RegistryError:
        return None


def subjects() -> Iterator[tuple[Row, str, Subject]]:
    for row in ROWS:
        for language, name in row.kernels.items():
            if (found := subject_of(row.op, name)) is not None:
                yield row, language, found


def compile_facts(subject: Subject, case: str) -> dict[str, Any]:
    """Seconds of CPU time to compile all that the case launches, with nothing kept, and what the binaries hold. Imports are paid before."""
    from rooftop.lab.inspect import inspector

    implementation = subject.implementation
    assert implementation is not None
    _, problem = subject.kernel_problem(subject.op.case(case), TARGETS[CARD])
    if reason := implementation.supports(problem):
        raise ValueError(f"{subject.name} does not take {case}: {reason}")
    config, _ = implementation.resolve(problem)
    launches, scratch = implementation.launches(problem, config), implementation.scratch(problem, config)
    tensors = {**dict(problem.tensors), **scratch}
    if isinstance(implementation, AotImplementation):
        made = [implementation.cubin(launch, tensors, problem) for launch in launches]
        seconds, compiler = sum(m.seconds for m in made), made[0].compiler
    else:
        began = cpu_seconds()
        for launch in launches:
            implementation.machine_code(problem, launch, scratch)
        seconds, compiler = cpu_seconds() - began, cubins.versions(
            ("triton",) if implementation.backend != "cuda" else ("nvidia-cuda-nvrtc",)
        )
    kernels = [inspector.kernel_facts(implementation, problem, launch, scratch) for launch in launches]
    kept = ("kernel", "registers", "spills", "shared", "threads", "instructions")
    return {"compile_s": max(seconds, 1e-6), "compiler": compiler, "kernels": [{k: facts[k] for k in kept} for facts in kernels]}


def compiled(name: str, op: str, case: str) -> dict[str, Any]:
    """`compile_facts` in a process of its own whose caches are empty; of a case that is like it first, so that imports count for
    nothing."""
    with tempfile.TemporaryDirectory() as folder:
        code = (
            "import json\nfrom rooftop.lab.timing import languages\n"
            f"found = languages.subject_of({op!r}, {name!r})\n"
            f"languages.warmed()\nprint('FACTS' + json.dumps(languages.compile_facts(found, {case!r})))\n"
        )
        env = settings.environment(
            {"ROOFTOP_CACHE": f"{folder}/rooftop", "TRITON_CACHE_DIR": f"{folder}/triton", "PYTHONPATH": os.pathsep.join(sys.path)}
        )
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("FACTS")]
    if not found:
        raise RuntimeError(f"{name}: {(done.stderr.strip().splitlines() or ['no word of why'])[-1][:300]}")
    return json.loads(found[0].removeprefix("FACTS"))


def warmed() -> None:
    """Import the compilers that live in this process, and let each compile something."""
    add = Subject("add__triton", registry.op("add"), registry.implementation("add__triton"))
    compile_facts(add, add.op.cases[0].id)
    importlib.import_module("rooftop.core.compile").nvrtc_version()


def write_compiled(folder: Path) -> None:
    card = store.about(TARGETS[CARD])
    with store.Writer(folder, card["name"]) as writer:
        for row, language, subject in subjects():
            try:
                facts = compiled(subject.name, row.op, row.case)
            except (RuntimeError, AbsentCompiler) as error:
                print(f"{row.op} {row.case}, {language}: {error}", flush=True)
                continue
            record = {
                "kind": "language", "op": row.op, "case": row.case, "subject": subject.name, "device": card, "versions": store.versions(),
                **facts
            }
            record |= identity.facts(subject, [subject.op.case(row.case)], TARGETS[CARD])
            writer.write(record)
            print(f"{row.op} {row.case}, {language}: {facts['compile_s']:.2f} s", flush=True)


def first_call(subject: Subject, case: str) -> float:
    """Seconds of the host and the GPU from a call that this process has not seen to its end. The binary lies on the disk."""
    import torch

    from rooftop.core.implementation import device_of
    from rooftop.lab.inputs import make, on_gpu

    index = torch.cuda.current_device()
    call = subject.call(subject.op.case(case), device_of(index))
    tensors, options = make(subject.op, subject.op.case(case), "cuda", 0)
    for launch in call.launches:
        call.implementation.machine_code(call.problem, launch, call.scratch)  # leaves the binary in the caches

    numbers = {n: v for n, v in options.items() if n in call.op.runtime_options and not isinstance(v, str)}
    memory = list(call.memory(call.given(tensors), numbers, on_gpu).values())
    torch.cuda.synchronize()
    began = time.perf_counter()
    call.runner(index)(torch.cuda.current_stream().cuda_stream, memory)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def write_first(folder: Path) -> None:
    import torch

    from rooftop.core.implementation import device_of

    device = device_of(torch.cuda.current_device())
    card = store.about(device)
    with store.Writer(folder, card["name"]) as writer:
        for row, language, subject in subjects():
            try:
                seconds = first_call(subject, row.case)
            except (AbsentCompiler, ValueError) as error:
                print(f"{row.op} {row.case}, {language}: {error}", flush=True)
                continue
            record = {
                "kind": "language", "op": row.op, "case": row.case, "subject": subject.name, "device": card, "versions": store.versions()
            }
            writer.write({**record, **identity.facts(subject, [subject.op.case(row.case)], device), "first_s": seconds})
            print(f"{row.op} {row.case}, {language}: first call {seconds * 1e3:.1f} ms", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(
        prog="python -m rooftop.lab.timing.languages", description="The same op in each language: what compiling and the first call cost."
    )
    parser.add_argument("what", choices=("compile", "first"), help="compile: needs the compilers, and no GPU; first: needs a GPU")
    parser.add_argument("folder", type=Path, help="where the records are written; results is that of the repository")
    given = parser.parse_args(arguments)
    if given.what == "first":
        gpu_for("the first call")
    (write_first if given.what == "first" else write_compiled)(given.folder)


if __name__ == "__main__":
    ended(main)
