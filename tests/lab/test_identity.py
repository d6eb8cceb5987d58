"""What makes a record stale: another computation, another launch, another code. Nothing else does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rooftop.core import names, normal_form
from rooftop.core.backends.table import BACKENDS
from rooftop.core.backends.triton import TritonImplementation
from rooftop.core.compile import compile_cuda, nvrtc_version
from rooftop.core.contract import Contract
from rooftop.core.names import UnknownName
from rooftop.core.spec import TARGETS, Input, Meta, Work, case
from rooftop.lab.candidates import Subject
from rooftop.lab.records import identity, rewriting, store
from rooftop.lab.records.identity import Identity, code_of
from rooftop.lab.report.joined import Joined
from rooftop.lab.report.known import Known

H100 = TARGETS[90]
DEVICE = store.about(H100)

KERNEL = """/* rooftop
idea   = "One thread an element."
limit  = "none"
args   = ["n: i64 = numel(x)", "x: f32[R, C]", "y: f32[R, C]", "factor: f32"]
[config]
threads = 256
[[launch]]
kernel = "scale<{threads}>"
grid   = ["ceil(R * C / threads)"]
block  = ["threads"]
*/
#include <cuda_bf16.h>
template <int THREADS>
__global__ void scale(long long n, const float* x, float* y, float factor) {
    const long long place = blockIdx.x * (long long)THREADS + threadIdx.x;  // of the element
    if (place < n) y[place] = x[place] * factor;
}
"""
TRITON = '''
import triton
import triton.language as tl
from rooftop.core.spec import Launch

HALF = 0.5

@triton.jit
def halved(v):
    return v * 0.5

@triton.jit
def _scale(x, y, n, factor, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, halved(tl.load(x + at, at < n)) * factor, at < n)

def supports(p):
    return None

def choose(p):
    return {"size": 512}

def launches(p, config):
    n = p["x"].numel
    return [Launch(_scale, (-(-n // config["size"]),), {"x": "x", "y": "y", "n": n, "factor": p.option("factor"), "SIZE": config["size"]})]
'''


def reference(x: Tensor, factor: float, shift: float = 0.0) -> Tensor:  # type: ignore[name-defined] # noqa: F821
    return x * factor + shift


def contract(function: Callable[..., Any] = reference, reads: int = 1) -> Contract:
    return Contract(
        function, name="scale", outputs=lambda x, **_: {"y": Meta(x.shape, x.dtype)}, cases=[case("odd", x=Input((33, 7)), factor=2.0)],
        work=lambda p: Work(reads * p["x"].nbytes, p["y"].nbytes),
    )


def subject(folder: Path, text: str, *, stem: str = "kernel") -> Subject:
    """The kernel in a file of its own: what was read of another one is not used."""
    folder = folder / str(len(list(folder.iterdir())))
    folder.mkdir()
    path = folder / f"{stem}{'.cu' if text.startswith('/*') else '.py'}"
    path.write_text(text, encoding="utf-8")
    kernel = BACKENDS["cuda"].implementation(path, "scale") if path.suffix == ".cu" else TritonImplementation(path, "scale")
    return Subject("scale__mine", contract(), kernel)


def made(s: Subject) -> Identity:
    return identity.of(s, s.op.cases, H100)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  // of the element", ""),
        ("  // of the element", "  /* of y */"),
        ("    if (place < n) y[place]", "    if (place<n)\n        y[place]"),
        ('#include <cuda_bf16.h>\n', '#include <cstdint>\n#include <cuda_bf16.h>\n#include <cuda_bf16.h>\n'),
        ("One thread an element.", "Another idea."),
        ('ceil(R * C / threads)', 'ceil(numel(x) / threads)'),
        ('limit  = "none"', 'limit  = "none"\nlet    = { much = "R * C" }'),
    ],
)
def test_words_of_a_cuda_kernel_make_nothing_stale(tmp_path: Path, old: str, new: str) -> None:
    assert old in KERNEL and made(subject(tmp_path, KERNEL.replace(old, new))) == made(subject(tmp_path, KERNEL))


def test_a_header_that_is_moved_renamed_or_split_makes_nothing_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rooftop.core.digests import c_code
    from rooftop.core.helpers import expanded

    one, several = tmp_path / "one", tmp_path / "several"
    one.mkdir(), several.mkdir()
    (one / "a.cuh").write_text("// a\n#pragma once\n#define N 4\n__device__ int f() { return N; }\n__device__ int g() { return f(); }\n")
    (several / "_first.cuh").write_text("#pragma once\n#define N 4\n__device__ int f() { return N; }\n")
    (several / "b.cuh").write_text('#pragma once\n#include "_first.cuh"\n__device__ int g() { return f(); }\n')
    body = "__global__ void k(int* x) { *x = g(); }\n"
    assert c_code(expanded(f'#include "a.cuh"\n{body}', [one])) == c_code(
        expanded(f'#include "b.cuh"\n#include "_first.cuh"\n{body}', [several])
    )
    (several / "_first.cuh").write_text("#pragma once\n#define N 8\n__device__ int f() { return N; }\n")
    assert c_code(expanded(f'#include "a.cuh"\n{body}', [one])) != c_code(expanded(f'#include "b.cuh"\n{body}', [several]))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("* factor", "* factor * 2.0f", "source"),
        ("[place] = x", "[place] = 1.0f + x", "source"),
        ("ceil(R * C / threads)", "ceil(R * C / threads) + 1", "digest"),
        ("threads = 256", "threads = 128", "digest"),
        ('block  = ["threads"]', 'block  = ["threads"]\nshared = "1024"', "digest"),
        ('"n: i64 = numel(x)"', '"n: i64 = numel(x) + 1"', "digest"),
    ],
)
@pytest.mark.parametrize("code", [KERNEL])
def test_another_code_or_launch_of_a_cuda_kernel_makes_stale(tmp_path: Path, code: str, old: str, new: str, what: str) -> None:
    assert old in code
    before, now = made(subject(tmp_path, code)), made(subject(tmp_path, code.replace(old, new)))
    assert getattr(before, what) != getattr(now, what)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("halved", "half_of"),
        ("at", "place"),
        ("_scale", "_times"),
        ("    at = ", "    # elements\n    at = "),
        ("HALF = 0.5", "LIMIT = 4"),
        ('    return {"size": 512}', '    size = 2 ** 9\n    return {"size": size}'),
        ("import triton\n", "import math\nimport triton\n"),
        ('{"x": "x", "y": "y", "n": n', '{"y": "y", "x": "x", "n": n'),
    ],
)
def test_words_of_a_triton_kernel_make_nothing_stale(tmp_path: Path, old: str, new: str) -> None:
    changed = re.sub(rf"\bat\b(?!\.)", "place", TRITON) if old == "at" else TRITON.replace(old, new)  # noqa: F541
    assert changed != TRITON and made(subject(tmp_path, changed)) == made(subject(tmp_path, TRITON))


def test_the_order_of_triton_functions_makes_nothing_stale(tmp_path: Path) -> None:
    head, jit, rest = TRITON.partition("@triton.jit\ndef halved(v):\n    return v * 0.5\n")
    assert made(subject(tmp_path, head + rest + jit)) == made(subject(tmp_path, TRITON))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("v * 0.5", "v * 0.25", "source"),
        ("at < n)) * factor", "at < n)) + factor", "source"),
        ('"size": 512', '"size": 256', "digest"),
        ("(-(-n // config", "(1 - (-n // config", "digest"),
        ('"factor": p.option("factor")', '"factor": 1.0', "digest"),
        ('"SIZE": config["size"]}', '"SIZE": config["size"]}, warps=8', "digest"),
    ],
)
def test_another_code_or_launch_of_a_triton_kernel_makes_stale(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert old in TRITON
    before, now = made(subject(tmp_path, TRITON)), made(subject(tmp_path, TRITON.replace(old, new)))
    assert getattr(before, what) != getattr(now, what)


def test_a_helper_counts_by_what_it_does_not_by_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is moved to a folder of the test's, with a helper under two names."""
    package = tmp_path / "rooftop"
    (package / "kernels" / "norm").mkdir(parents=True)
    (package / "kernels" / "_device").mkdir()
    monkeypatch.setattr(normal_form.settings, "PACKAGE", package)
    helper = "import triton\n\n@triton.jit\ndef halved(v):\n    return v * 0.5\n"
    (package / "kernels" / "_device" / "old.py").write_text(helper)
    (package / "kernels" / "norm" / "_new.py").write_text(helper.replace("halved", "half").replace("import triton\n", "import triton\n\nOTHER = 1\n"))
    user = "import triton\nfrom rooftop.kernels.{} import {}\n\n@triton.jit\ndef k(x):\n    return {}(x)\n"
    texts = [user.format("_device.old", "halved", "halved"), user.format("norm._new", "half as h", "h"), user.format("norm", "_new", "_new.half")]
    found = []
    for i, text in enumerate(texts):
        (package / "kernels" / "norm" / f"k{i}.py").write_text(text)
        found.append(normal_form.of_function(package / "kernels" / "norm" / f"k{i}.py", "k"))
    assert len(set(found)) == 1
    (package / "kernels" / "norm" / "_other.py").write_text(helper.replace("0.5", "0.25"))
    (package / "kernels" / "norm" / "k3.py").write_text(user.format("norm._other", "halved", "halved"))
    assert normal_form.of_function(package / "kernels" / "norm" / "k3.py", "k") != found[0]


# -- what is computed --------------------------------------------------------------------------------------------------


def renamed_local(x: Tensor, factor: float, shift: float = 0.0) -> Tensor:  # type: ignore[name-defined] # noqa: F821
    """Another docstring."""
    scaled: Any = x * factor
    return scaled + shift


def with_a_local(x: Tensor, factor: float, shift: float = 0.0) -> Tensor:  # type: ignore[name-defined] # noqa: F821
    out = x * factor
    return out + shift


def with_more(x: Tensor, factor: float, shift: float = 0.0, gate: Tensor | None = None, kind: str = "none") -> Tensor:  # type: ignore[name-defined] # noqa: F821
    out = x * factor if kind == "none" else x / factor
    out = out if gate is None else out * gate
    return out + shift


def otherwise(x: Tensor, factor: float, shift: float = 0.0) -> Tensor:  # type: ignore[name-defined] # noqa: F821
    out = x * factor
    return out - shift


def test_a_contract_counts_by_what_it_computes_for_the_case() -> None:
    plain = contract(with_a_local)
    (odd,) = plain.cases
    assert contract(renamed_local).digest(odd) == plain.digest(odd)
    assert contract(with_more).digest(odd) == plain.digest(odd)
    assert contract(otherwise).digest(odd) != plain.digest(odd)
    assert contract(with_a_local, reads=2).digest(odd) != plain.digest(odd), "the work"
    for x, factor in ((Input((33, 8)), 2.0), (Input((33, 7), "f32", "nan"), 2.0), (Input((33, 7)), 3.0)):
        assert plain.digest(case("odd", x=x, factor=factor)) != plain.digest(odd)
    gated = case("odd", x=Input((33, 7)), gate=Input((33, 7)), factor=2.0)
    assert contract(with_more).digest(gated) != contract(with_more).digest(odd)
    assert contract(with_more).problem(gated).extra == ("gate",) and contract(with_more).problem(odd).extra == ()


# -- machine code ------------------------------------------------------------------------------------------------------


def has_nvrtc() -> bool:
    try:
        return bool(nvrtc_version())
    except Exception:
        return False


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not installed")


@needs_nvrtc
def test_machine_code_is_the_same_for_other_names_and_lines_and_for_no_other_number() -> None:
    source = "__global__ void k(float* out, int n) { int place = blockIdx.x * 32 + threadIdx.x; if (place < n) out[place] = 2.0f * place; }"

    def code(text: str, name: str = "k", whole: bool = False) -> str:
        made = compile_cuda(text, name="k.cu", target="sm_90a", kernels=(name,))
        return code_of(made.cubin, made.names[name], whole=whole)

    assert code(source) == code("// moved\n\n" + source.replace("place", "index")) == code(source.replace("void k(", "void other("), "other")
    assert code(source) == code(source + "__global__ void another(int* x) { *x = 1; }"), "another kernel of the file"
    assert code(source) != code(source.replace("2.0f", "3.0f"))
    assert code(source) != code(source.replace("void k(", "void __launch_bounds__(64) k(").replace("2.0f * place", "2.0f + place"))
    table = "__constant__ float T[4] = {1, 2, 3, 4};" + source.replace("2.0f * place", "T[n & 3] * place")
    for here in (table, table.replace("__constant__", "__device__ const")):
        assert code(here) != code(here.replace("3, 4", "3, 5")), "a table that it reads"
        unread = here.replace("T[n & 3]", "2.0f")
        assert code(unread) == code(source) != code(unread, whole=True), "a table that it does not read"
    with pytest.raises(ValueError, match="not a cubin"):
        code_of(b"PTX", "k")
    with pytest.raises(ValueError, match="no kernel nothing"):
        code_of(compile_cuda(source, name="k.cu", target="sm_90a", kernels=("k",)).cubin, "nothing")


def test_a_record_of_another_text_is_fresh_by_its_machine_code_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = subject(tmp_path, KERNEL)
    now, asked = made(s), []
    monkeypatch.setattr(identity, "machine", lambda *_: asked.append(1) or "abc")
    for record, fresh, compiled in (
        (now.facts, True, 0),
        ({**now.facts, "source": "other"}, False, 0),
        ({**now.facts, "source": "other", "machine": "abc"}, True, 1),
        ({**now.facts, "source": "other", "machine": "abd"}, False, 2),  # in both forms
        ({**now.facts, "digest": "other", "machine": "abc"}, False, 0),
        ({"digest": now.digest, "source": "other", "machine": ""}, False, 0),
    ):
        asked.clear()
        assert (identity.fresh(record, s, s.op.cases, H100), len(asked)) == (fresh, compiled), record


@needs_nvrtc
def test_a_renamed_variable_is_proven_by_machine_code_and_another_number_is_not(tmp_path: Path) -> None:
    s = subject(tmp_path, KERNEL)
    record = identity.facts(s, s.op.cases, H100)
    assert set(record) == {"digest", "source", "machine"}
    renamed = subject(tmp_path, KERNEL.replace("place", "index"))
    assert not made(renamed).made(record) and identity.fresh(record, renamed, s.op.cases, H100)
    assert not identity.fresh(record, subject(tmp_path, KERNEL.replace("* factor", "+ factor")), s.op.cases, H100)


# -- records in files --------------------------------------------------------------------------------------------------


def check_record(s: Subject, **more: Any) -> dict[str, Any]:
    return {
        "kind": "check", "op": s.op.name, "subject": s.name, "case": s.op.cases[0].id, "backend": "gpu", "device": DEVICE, "at": "2026-01-01T00:00:00+00:00",
        "run": "1", "error": {"ok": True, "share": 0.5}, **more,
    }


def test_what_is_proven_by_machine_code_gets_the_hash_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = subject(tmp_path, KERNEL)
    now = made(s)
    monkeypatch.setattr(Joined, "subject", lambda _, *names: s if names == (s.op.name, s.name) else None)
    monkeypatch.setattr(identity, "machine", lambda *_: "abc")
    folder = tmp_path / "results"
    (folder / "h100").mkdir(parents=True)
    rows = [check_record(s, digest=now.digest, source="old", machine="abc"), check_record(s, digest=now.digest, source="old", machine="abd", run="2")]
    (folder / "h100" / "1.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    done = rewriting.prune(folder, lambda found: lambda r: False, renew=Joined([]).renew, dry=True)
    assert done.dropped == 1 and '"old"' in (folder / "h100" / "1.jsonl").read_text()
    rewriting.prune(folder, lambda found: lambda r: r["run"] == "2", renew=Joined([]).renew)
    assert [r["source"] for r in store.read(folder)] == [now.source]
    other = Joined([]).renew(store.Record(check_record(s, digest=now.digest, source="old", machine="abd")))
    assert "machine" not in other and other["source"] == "old", "it is another code: nobody compiles for it again"
    before = (folder / "h100" / "1.jsonl.xz").read_bytes()
    rewriting.prune(folder, lambda found: lambda r: False, renew=Joined([]).renew)
    assert (folder / "h100" / "1.jsonl.xz").read_bytes() == before
    into = tmp_path / "merged"
    (tmp_path / "2.jsonl").write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
    rewriting.merge(tmp_path / "2.jsonl", into, Joined([]).renew)
    assert [r["source"] for r in store.read(into)] == [now.source]


def test_a_record_of_the_former_form_is_read_and_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = subject(tmp_path, KERNEL)
    monkeypatch.setattr(Joined, "subject", lambda _, *names: s if names == (s.op.name, s.name) else None)
    path = tmp_path / "old.jsonl"
    path.write_text(json.dumps(check_record(s, digest="0123456789ab")) + "\n", encoding="utf-8")
    (record,) = store.read(path)
    assert Joined([record]).stale(record) == "kernel, contract or launch changed since"
    assert Joined([record]).stale(record.but(**made(s).facts)) is None


def test_a_renamed_kernel_keeps_its_records_and_an_old_name_is_told_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rooftop.core import registry
    from rooftop.core.call import named

    monkeypatch.setitem(names.RENAMED, "add__gone__cuda_sm80", "add__triton")
    s = Subject("add__gone__cuda_sm80", registry.op("add"), registry.implementation("add__triton"))
    path = tmp_path / "old.jsonl"
    now = identity.of(s, [s.op.cases[0]], H100)
    path.write_text(json.dumps(check_record(s, **now.facts)) + "\n", encoding="utf-8")
    (record,) = store.read(path)
    assert record["subject"] == "add__triton" and Joined([record]).stale(record) is None
    for name in ("add__gone__cuda_sm80", "gone__cuda_sm80"):
        with pytest.raises(UnknownName, match="it is 'add__triton' now"):
            named(registry.op("add"), name)
    with pytest.raises(UnknownName, match="it is 'add__triton' now"):
        registry.implementation("add__gone__cuda_sm80")


def test_all_renamed_kernels_and_rungs_lead_to_one_of_the_tree() -> None:
    from rooftop.core import registry

    known = {f.name for f in registry.kernel_files()} | {r.name for n in registry.ladder_names() for r in registry.ladder(n).rungs}
    assert {old: new for old, new in names.RENAMED.items() if new not in known or old in known} == {}


def test_records_of_an_op_in_place_are_of_its_twins_kernels() -> None:
    from rooftop.core import registry

    twins = [(op, i) for n in registry.op_names() if (op := registry.op(n)).twin_of for i in registry.implementations(op.twin_of.name)]
    assert twins and all((s := Joined([]).subject(op.name, i.name)) and s.op is op and s.implementation is i for op, i in twins)


def test_what_is_known_is_found_by_what_was_asked() -> None:
    texts = Known()
    texts["machine", "add", ("odd f32",)] = "0123", ""
    assert texts.get(("machine", "add", ("odd f32",))) == ("0123", "") and texts.get("another", 1) == 1


def test_no_committed_record_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a record proves by its machine code alone, `rooftop report --docs` has given the hash of the text."""
    from _support import answers, committed

    asked: list[str] = []
    known = answers()
    monkeypatch.setattr(identity, "machine", lambda s, cases, *_: asked.append(f"{s.name} {cases[0].id}"))
    texts = Known()
    dict.update(texts, {key: answer for key, answer in known.items() if not key.startswith("('machine'")})
    joined = Joined(found := committed(), digests=texts)
    for r in found:
        if r["kind"] in ("check", "bench", "sanitize", "language"):
            joined.stale(r)
    assert not asked, f"{len(asked)} records, such as {asked[:3]}: run rooftop report --docs"


