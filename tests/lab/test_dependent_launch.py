"""Programmatic dependent launches in the machine code: whoever may begin before the launch before it has ended waits for it before anything else."""

from __future__ import annotations

from pathlib import Path

import pytest
from _support import command

from rooftop.core import registry
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.head import HeadError
from rooftop.core.helpers import all_of
from rooftop.core.implementation import Implementation
from rooftop.core.spec import TARGETS, Launch, Problem
from rooftop.lab.candidates import Subject
from rooftop.lab.inspect import binary, inspector
from rooftop.lab.inspect.dependent_launch import before_wait, faults
from rooftop.lab.inspect.sass import parse

RUNGS = [r for name in registry.ladder_names() for r in registry.ladder(name).rungs]
EVERY: dict[str, Implementation] = {
    **{f.name: registry.implementation(f.name) for f in registry.kernel_files()}, **{r.implementation.name: r.implementation for r in RUNGS},
}


def words(implementation: Implementation) -> str:
    """All source that its kernels are made of."""
    files = [implementation.path, *all_of(implementation.path, implementation.op)]
    return "\n".join(p.read_text(encoding="utf-8") for p in files)


def speaks(implementation: Implementation) -> bool:
    """Whether its kernels could wait: without one of these words none does."""
    return any(word in words(implementation) for word in ("griddepcontrol", "gdc_", "cudaGridDependencySynchronize"))


SPEAKING = sorted(name for name, found in EVERY.items() if speaks(found))


def representatives(subject: Subject) -> list[tuple[Problem, Launch]]:
    """One launch of each kernel, with pdl and without, of the first case that makes it."""
    found: dict[tuple[str, bool], tuple[Problem, Launch]] = {}
    assert subject.implementation is not None
    for case in subject.op.cases:
        _, problem = subject.kernel_problem(case, TARGETS[90])
        if subject.implementation.supports(problem) is None and not subject.op.idle(problem):  # where nothing is to be written, none is launched
            for launch in subject.implementation.launches(problem, subject.implementation.resolve(problem)[0]):
                kernel = launch.kernel.partition("<")[0] if isinstance(launch.kernel, str) else launch.kernel.__name__
                found.setdefault((kernel, launch.pdl), (problem, launch))
    return list(found.values())


@pytest.mark.sampled("binaries", "{name}")
@pytest.mark.parametrize("name", SPEAKING)
def test_every_kernel_with_pdl_waits_first_and_no_other_waits(name: str) -> None:
    implementation = EVERY[name]
    subject = Subject(name, registry.op(implementation.op), implementation)
    launches = representatives(subject)
    assert launches
    if isinstance(implementation, CudaImplementation):  # all of them at once: most of the time goes into the headers
        built = implementation.compile([launch.kernel for _, launch in launches], TARGETS[90].target)
        code = binary.all_facts(built.cubin)
        found = [code[built.names[launch.kernel]] for _, launch in launches]
    else:
        made = [implementation.machine_code(p, launch, implementation.scratch(p, implementation.resolve(p)[0])) for p, launch in launches]
        found = [binary.facts(one.cubin, one.symbol) for one in made]
    last = implementation.demands.get("waits_last", ())
    assert [line for (_, launch), f in zip(launches, found, strict=True) for line in faults(f.kernel, f.before_wait, launch.pdl, f.kernel in last)] == []


def test_who_waits_last_waits() -> None:
    assert faults("k", None, True, last=True) != []
    assert faults("k", ("EXIT",), True, last=True) == []
    assert faults("k", ("EXIT",), True) != []


def test_who_could_not_wait_has_no_pdl() -> None:
    for name in sorted(set(EVERY) - set(SPEAKING)):
        implementation = EVERY[name]
        if isinstance(implementation, CudaImplementation):
            assert not any(launch.pdl for launch in implementation.head.launches), name
        else:
            assert not any(launch.pdl for _, launch in representatives(Subject(name, registry.op(implementation.op), implementation))), name


ADDS = """/* rooftop
op      = "add"
dtypes  = ["f32"]
args    = ["n: i32 = numel(x)", "x: f32[n]", "y: f32[n]", "out: f32[n]"]
[[launch]]
kernel  = "adds"
grid    = ["ceil(numel(x) / 256)"]
block   = [256]
pdl = true
*/
__device__ inline void wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__global__ void adds(int n, const float* x, const float* y, float* out) {
    wait();
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i];
}
"""
FAULTS = {
    "nothing": (("    wait();\n", "    wait();\n"), []),
    "says after it has waited that the next may begin": (("    wait();\n", "    wait();\n    next();\n"), []),
    "never waits": (("    wait();\n", ""), ["never waits"]),
    "loads first": (("    wait();\n", "    float first = *(volatile const float*)x;\n    wait();\n    if (first == 7) out[0] = 1;\n"), ["only after LDG"]),
    "stores first": (("    wait();\n", "    if (n == 5) out[0] = 1;\n    wait();\n"), ["STG.E"]),
    "lets the next begin first": (("    wait();\n", "    next();\n    wait();\n"), ["only after PREEXIT"]),
    "waits where it has work": (("    wait();\n    const int i = blockIdx.x * 256 + threadIdx.x;\n    if (i < n) out[i] =",
                                 "    const int i = blockIdx.x * 256 + threadIdx.x;\n    if (i >= n) return;\n    wait();\n    out[i] ="), ["only after"]),
    "no pdl": (("pdl = true\n", ""), ["is not launched with pdl"]),
}


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("what", FAULTS)
def test_what_is_wrong_with_a_kernel_with_pdl_is_told(what: str, tmp_path: Path) -> None:
    (old, new), expected = FAULTS[what]
    assert old in ADDS
    path = tmp_path / "adds.cu"
    path.write_text(ADDS.replace(old, new), encoding="utf-8")
    subject = Subject("adds", registry.op("add"), registry.user_file(path))
    found = inspector.facts_of(subject, registry.op("add").case("odd f32"), 90)["kernels"][0]["unmet"]
    assert len(found) == len(expected)
    assert all(part in line for part, line in zip(expected, found, strict=True)), found


@pytest.mark.parametrize(("arch", "code"), [(90, 1), (80, 0)])  # before sm_90 pdl has no effect
def test_inspect_exits_with_1_where_a_kernel_with_pdl_does_not_wait(arch: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "adds.cu"
    path.write_text(ADDS.replace("    wait();\n", ""), encoding="utf-8")
    assert command(monkeypatch, "inspect", str(path), "--arch", str(arch)) == code


def test_any_launch_may_have_pdl_and_it_is_true_or_false(tmp_path: Path) -> None:
    path = tmp_path / "adds.cu"
    path.write_text(ADDS.replace("pdl = true", "pdl = 1"), encoding="utf-8")
    with pytest.raises(HeadError, match="pdl must be true or false; given 1"):
        registry.user_file(path)


LISTING = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   ULDC.64 UR4, c[0x0][0x208] ;
        /*0020*/                   LDS R2, [R3] ;
        /*0030*/             {} ;
.L_x_0:
        /*0040*/             {} ;
.L_x_1:
        /*0050*/                   EXIT ;
"""


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("      ACQBULK", "      LDG.E R0, desc[UR4][R2.64]", ()),
        ("      NOP", "      LDG.E R0, desc[UR4][R2.64]", None),
        ("      LDG.E R0, desc[UR4][R2.64]", "      ACQBULK", ("LDG.E",)),
        ("@P0   BRA `(.L_x_0)", "      ACQBULK", ()),  # both ways come to it
        ("      BRA P0, `(.L_x_1)", "      ACQBULK", ("EXIT",)),  # one goes around it
        ("      BRA `(.L_x_0)", "      ACQBULK", ()),
        ("@P0   BRX R4", "      ACQBULK", ("EXIT",)),  # to any label that nobody else goes to
        ("@P0   EXIT", "      ACQBULK", ("EXIT",)),
        ("@P0   ACQBULK", "      NOP", ("EXIT", "a condition")),
        ("      UBLKCP.S.G [UR4], [UR6], UR8", "      ACQBULK", ("UBLKCP.S.G",)),
        ("      LDFUTURE R0, [R2]", "      ACQBULK", ("LDFUTURE",)),  # a load that nobody has heard of
    ],
)
def test_what_stands_before_the_wait(first: str, second: str, found: tuple[str, ...] | None) -> None:
    assert before_wait(*parse(LISTING.format(first, second).split("\n"))) == found
