"""What a head hands its kernel, beside what the compiled kernel takes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rooftop.core import parameters, registry
from rooftop.core.backends import cuda
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.compile import compile_cuda
from rooftop.core.head import HeadError
from rooftop.core.spec import TARGETS, Launch
from rooftop.lab import simt
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.inspect import binary, inspector

ADDS = """/* rooftop
op     = "add"
dtypes = ["f32"]
args   = ["n: i64 = numel(x)", "x: f32[N]", "y: f32[N]", "out: f32[N]"]
[[launch]]
kernel = "adds<256>"
grid   = ["max(1, ceil(N / 256))"]
block  = [256]
*/
template <int B> __global__ void adds(long long n, const float* x, const float* y, float* out) {
    long long i = (long long)blockIdx.x * B + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i];
}
"""
PLANTED: dict[str, tuple[dict[str, str], str]] = {  # edits of ADDS, and what is said of it
    "a missing arg": (
        {'"y: f32[N]", ': ""},
        r"mine.cu: the head's args of adds<256> are 3 \(n: i64, x: ptr, out: ptr\); the kernel takes 4 parameters, of 8, 8, 8, 8 bytes",
    ),
    "one too many": ({'"out: f32[N]"]': '"out: f32[N]", "m: i32 = 1"]'}, r"are 5 .*; the kernel takes 4 parameters"),
    "i32 for i64": ({"n: i64": "n: i32"}, r"mine.cu: the head's args do not fit adds<256>: parameter 1, n: the head says i32, 4 bytes, and the kernel takes 8"),
    "two of them": (
        {"long long n, const float* x": "int n, float x", "x[i] +": "x +"},
        r"parameter 1, n: the head says i64, 8 bytes, and the kernel takes 4; parameter 2, x: the head says ptr, 8 bytes, and the kernel takes 4",
    ),
}
KINDS = {
    "ptr": "const float*", "i32": "int", "u32": "unsigned", "i64": "long long", "u64": "unsigned long long", "f32": "float", "f64": "double", "bool": "bool",
    "map": "const __grid_constant__ CUtensorMap",
}
MIXED = f"""#include "tensor_map.cuh"
struct Box {{ char of[129]; }};
__global__ void mixed({", ".join(f"{c} p{i}" for i, c in enumerate(KINDS.values()))}, Box box, short last) {{ }}
__global__ void none() {{ }}
"""


def planted(name: str) -> str:
    text = ADDS
    for old, new in PLANTED[name][0].items():
        assert old in text
        text = text.replace(old, new)
    return text


def mine(tmp_path: Path, text: str) -> Subject:
    path = tmp_path / "mine.cu"
    path.write_text(text)
    return Subject("mine", registry.op("add"), registry.user_file(path))


def launches(subject: Subject) -> tuple[CudaImplementation, Any, list[Launch]]:
    assert isinstance(subject.implementation, CudaImplementation)
    problem = subject.kernel_problem(subject.op.case("odd f32"), TARGETS[90])[1]
    return subject.implementation, problem, subject.implementation.launches(problem, subject.implementation.choose(problem))


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90a"])
def test_sizes_of_every_type_are_read(target: str) -> None:
    made = compile_cuda(MIXED, name="mixed.cu", target=target, kernels=["mixed", "none"])
    assert parameters.sizes(made.cubin, made.names["mixed"]) == (*(parameters.BYTES[k] for k in KINDS), 129, 2)
    assert parameters.sizes(made.cubin, made.names["none"]) == ()
    assert set(KINDS) == set(parameters.BYTES)


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("name", ["rms_norm_bwd__cuda_sm90", "matmul__simt__cuda_sm80"])
def test_sizes_are_those_that_cuobjdump_prints(tmp_path: Path, name: str) -> None:
    subject = Subject(name, registry.op(name.split("__")[0]), registry.implementation(name))
    problem = subject.kernel_problem(inspector.inspect_case(subject, None, 90), TARGETS[90])[1]
    kernel = subject.implementation
    assert isinstance(kernel, CudaImplementation)
    for launch in kernel.launches(problem, kernel.choose(problem)):
        made = kernel.compile([launch.kernel], TARGETS[90].target)
        file = tmp_path / "k.cubin"
        file.write_bytes(made.cubin)
        printed = subprocess.run([binary.tool("cuobjdump"), "--dump-elf", file], capture_output=True, text=True, check=True).stdout
        part = printed.split(f".nv.info.{made.names[launch.kernel]}\n")[-1].split("\n.")[0]
        found = {int(n, 16): int(b, 16) for n, b in re.findall(r"Ordinal : (\S+)\s+Offset\s+: \S+\s+Size\s+: (\S+)", part)}
        assert found
        assert parameters.sizes(made.cubin, made.names[launch.kernel]) == tuple(found[i] for i in sorted(found))


@pytest.mark.parametrize("name", PLANTED)
def test_a_mismatch_is_refused_by_inspect(tmp_path: Path, name: str) -> None:
    says = PLANTED[name][1]
    assert inspector.facts_of(mine(tmp_path, ADDS), registry.op("add").case("odd f32"), 90)["kernels"]
    subject = mine(tmp_path, planted(name))
    with pytest.raises(HeadError, match=says):
        inspector.facts_of(subject, subject.op.case("odd f32"), 90)
    with pytest.raises(HeadError, match=says):
        inspector.text(subject, subject.op.case("odd f32"), 90, "sass")


class Loaded:
    """A module in the place of the driver's, where there is no GPU."""

    made: list[str] = []

    def __init__(self, code: Any) -> None:
        self.made.append(code.target)

    def prepare(self, launch: Launch, names: Any, index: int) -> str:
        return str(launch.kernel)


@pytest.mark.parametrize("name", PLANTED)
def test_a_mismatch_is_refused_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    says = PLANTED[name][1]
    monkeypatch.setattr(cuda, "Module", Loaded)
    monkeypatch.setattr(Loaded, "made", [])
    kernel, problem, good = launches(mine(tmp_path, ADDS))
    checked: list[str] = []
    monkeypatch.setattr(cuda, "check_parameters", lambda launch, *rest: (checked.append(launch.kernel), parameters.check(launch, *rest)))
    for _ in range(2):
        assert kernel.prepare(problem, good, ("x", "y", "out"), 0) == ["adds<256>"]
    assert (checked, Loaded.made) == (["adds<256>"], ["sm_90a"]), "once a module"
    kernel, problem, bad = launches(mine(tmp_path, planted(name)))
    with pytest.raises(HeadError, match=says):
        kernel.prepare(problem, bad, ("x", "y", "out"), 0)
    assert Loaded.made == ["sm_90a"]


@pytest.mark.sampled("slow")
@pytest.mark.skipif(simt.unavailable() is not None, reason="the simulator cannot be built here")
@pytest.mark.parametrize("name", PLANTED)
def test_a_mismatch_is_refused_by_the_simulator(tmp_path: Path, name: str) -> None:
    case = registry.op("add").case("odd f32")
    assert checker.check(mine(tmp_path, ADDS), case, backend="simt").status == "ok"
    found = checker.check(mine(tmp_path, planted(name)), case, backend="simt")
    assert found.status == "error"
    assert re.search(r"has 4 parameters; \d arguments|parameter 1 is \d bytes; the argument n", found.message), found.message


def test_what_is_no_cubin_or_holds_no_such_kernel_is_said() -> None:
    made = compile_cuda(MIXED, name="mixed.cu", target="sm_90a", kernels=["mixed"])
    with pytest.raises(binary.BinaryError, match="no kernel 'mxed'"):
        parameters.sizes(made.cubin, "mxed")
    with pytest.raises(binary.BinaryError, match="not a cubin"):
        parameters.sizes(b"PK\3\4", "mixed")
    with pytest.raises(binary.BinaryError, match=r"cannot be read|no kernel"):
        parameters.sizes(made.cubin[:100], made.names["mixed"])
