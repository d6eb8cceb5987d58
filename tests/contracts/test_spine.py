"""The spine end to end without a GPU: expressions, heads, discovery, records, contracts, check."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
import torch

import rooftop
from rooftop.core import api, head, head_text, library, registry, settings
from rooftop.core.call import select
from rooftop.core.compile import CompileError, compile_cuda, compile_many
from rooftop.core.expressions import ExpressionError, evaluate, integer
from rooftop.core.spec import TARGETS, Case, Meta, Problem
from rooftop.lab import candidates
from rooftop.lab.check import checker
from rooftop.lab.inspect import inspector
from rooftop.lab.records import store

OPS = [n for name in registry.op_names() for n in (name, *([f"{name}_bwd"] if registry.op(name).bwd else []))]


def small(op_name: str) -> list[Case]:
    return [c for c in registry.op(op_name).cases if "bench" not in c.tags and "huge" not in c.tags]


# -- expressions and heads -----------------------------------------------------------------------------------------


def test_expressions_calculate_exactly() -> None:
    assert integer("ceil(N / 128) * 2", {"N": 129}) == 4
    assert integer("ceil(7 / 3 * 3)", {}) == 7
    assert evaluate("M % 4 == 0 and 1 < K <= 8", {"M": 8, "K": 8}) is True
    with pytest.raises(ExpressionError, match="5/2"):
        integer("5 / 2", {})
    with pytest.raises(ExpressionError, match="divides by zero"):
        evaluate("M // 0", {"M": 1})


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "x.shape", "[1 for _ in x]", "lambda: 1", "(y := 2)", "f'{x}'", "2 ** 9", "x[0]", "eval('1')", "min(*x)", "1 +", "a" * 600],
)
def test_expressions_refuse_everything_else(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, {"x": 3, "y": 1})


def test_expressions_refuse_numbers_that_grow_without_end() -> None:
    with pytest.raises(ExpressionError, match="grows beyond"):
        evaluate("*".join(["99999999999"] * 20), {})


HEAD = """/* rooftop
op      = "softmax"
dtypes  = ["f32"]
args    = ["C: i32", "x: T[R, C, 1]", "y: T[R, C, 1]"]
[[launch]]
kernel  = "k<{T}>"
grid    = ["R"]
block   = [256]
*/
template <typename T> __global__ void k(int C, const T* x, T* y) { if (threadIdx.x == 0) y[0] = x[0]; }
"""


def problem(rows: int = 4, columns: int = 8, dtype: str = "f32") -> Problem:
    m = Meta((rows, columns, 1), dtype)
    return Problem("softmax", (("x", m), ("y", m)), (("dim", 1),))


def test_a_head_becomes_launches() -> None:
    launch = head_text.parse(HEAD, "my.cu").launches_for(problem(), {})[0]
    assert (launch.kernel, launch.grid, launch.block, dict(launch.args)) == ("k<float>", (4,), (256,), {"C": 8, "x": "x", "y": "y"})


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("/* rooftop", "/* kernel", "no head"),
        ("*/", "", "not closed"),
        ("args    = [", "args    = [[", "my.cu:.*not valid TOML"),
        ("dtypes", "dtyps", "did you mean 'dtypes'"),
        ('"C: i32"', '"C: int"', "'int' is not one of"),
        ('grid    = ["R"]', 'grid    = ["R; import os"]', "not an expression"),
        ('grid    = ["R"]', 'grid    = ["open(\'x\')"]', "may be called"),
        ('block   = [256]', "blocks  = [256]", "lacks block|has blocks"),
    ],
)
def test_a_malformed_head_says_what_is_wrong(old: str, new: str, says: str) -> None:
    with pytest.raises(head.HeadError, match=says):
        head_text.parse(HEAD.replace(old, new), "my.cu")


@pytest.mark.parametrize(
    ("change", "given", "says"),
    [
        (("[256]", '["C * 512"]'), problem(), "must be 1 to 1024"),
        (('["R"]', '["R / 3"]'), problem(), "whole number"),
        (("C: i32", "C: i32 = C * 1000000000"), problem(), "does not fit i32"),
        (("[256]", "[256]"), problem(dtype="bf16"), "takes f32"),
    ],
)
def test_a_problem_that_does_not_fit_is_refused_with_the_reason(change: tuple[str, str], given: Problem, says: str) -> None:
    import re

    reason = head_text.parse(HEAD.replace(*change), "my.cu").supports(given)
    assert reason is not None
    assert re.search(says, reason)


# -- discovery -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "hint"), [("softmx", "softmax"), ("sgemm_cud", "sgemm_cuda"), ("softmax__tritn", "softmax__triton")])
def test_a_misspelt_name_gets_a_hint(word: str, hint: str) -> None:
    with pytest.raises(registry.RegistryError, match=hint):
        candidates.find([word])


def house(tmp_path: Path) -> registry.House:
    for name in ("ops", "kernels/elementwise", "ladders"):
        (tmp_path / name).mkdir(parents=True)
    return registry.House(tmp_path / "ops", tmp_path / "kernels", tmp_path / "ladders")


def test_one_file_each_adds_an_op_a_kernel_and_a_rung(tmp_path: Path) -> None:
    h = house(tmp_path)
    (h.ops / "softmax.py").write_text((registry.HOUSE.ops / "softmax.py").read_text())
    (h.kernels / "elementwise" / "softmax__mine__cuda_sm90.cu").write_text(HEAD)
    (h.ladders / "l").mkdir()
    (h.ladders / "l" / "ladder.toml").write_text(
        'op="softmax"\ntitle="t"\nintro="i"\ndtypes=["f32"]\ntargets=[90]\nheadline="odd 3x7"\ncases=["odd 3x7"]'
    )
    (h.ladders / "l" / "01_first.cu").write_text(HEAD)
    assert registry.op_names(h) == ("softmax",)
    assert [i.name for i in registry.implementations("softmax", h)] == ["softmax__mine__cuda_sm90"]
    assert registry.rung("l/first", h).implementation.op == "softmax"


@pytest.mark.parametrize("name", ["softmx__cuda.cu", "softmax__tritn.py", "softmax.cu", "softmax__cuda.py"])
def test_a_kernel_file_with_a_wrong_name_is_an_error(tmp_path: Path, name: str) -> None:
    h = house(tmp_path)
    (h.ops / "softmax.py").write_text("")
    (h.kernels / "elementwise" / name).write_text(HEAD)
    with pytest.raises(registry.RegistryError):
        registry.kernel_files(h)


# -- records -------------------------------------------------------------------------------------------------------


def _write(folder: Path, count: int) -> None:
    with store.Writer(folder, "NVIDIA H100 80GB HBM3") as writer:
        for i in range(count):
            writer.write({"kind": "clock", "subject": str(i), "device": {"name": "NVIDIA H100 80GB HBM3"}})


def test_two_processes_writing_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write, args=(tmp_path, 40)) for _ in range(2)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert len(store.read(tmp_path)) == 80


def test_merging_loses_nothing_and_twice_changes_nothing(tmp_path: Path) -> None:
    _write(tmp_path / "there", 3)
    source = next((tmp_path / "there").rglob("*.jsonl"))
    assert store.merge(tmp_path / "there", tmp_path / "here").added == [source.name]
    assert store.merge(tmp_path / "there", tmp_path / "here").same == [source.name]
    with source.open("a") as file:
        file.write('{"kind": "clock", "subject": "copy", "device": {"name": "NVIDIA H100 80GB HBM3"}}\n{"kind": "be')
    grown = store.merge(tmp_path / "there", tmp_path / "here")
    assert grown.grown == [source.name]
    assert "cut off" in grown.notes[0]
    assert len(store.read(tmp_path / "here")) == 4


def test_a_file_that_is_not_of_records_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.jsonl").write_text('{"kind": "clock", "subject": "copy", "device": {"name": "card"}}\nnonsense\n{"kind": "bench"}\n')
    with pytest.raises(store.RecordError, match=r"a\.jsonl:2"):
        store.merge(tmp_path / "bad", tmp_path / "here")
    assert not (tmp_path / "here").exists()
    with store.Writer(tmp_path, "card") as writer, pytest.raises(store.RecordError, match="number"):
        writer.write({"kind": "bench", "subject": "x", "t": float("nan")})


# -- contracts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPS)
def test_the_reference_passes_its_own_check(name: str) -> None:
    op = registry.op(name)
    found = [checker.check_callable(op, c, lambda *args: library.fallback(op, args), name="reference") for c in small(name)]
    assert [(r.case, r.message) for r in found if r.status != "ok"] == []


@pytest.mark.parametrize(("name", "wrong"), [(n, w) for n in OPS for w in registry.op(n).wrong])
def test_every_known_wrong_implementation_is_rejected(name: str, wrong: str) -> None:
    op = registry.op(name)
    assert any(checker.check_callable(op, c, op.wrong[wrong], name=wrong).status == "wrong" for c in small(name))


@pytest.mark.parametrize("name", OPS)
def test_one_precision_lower_is_rejected_in_every_dtype(name: str) -> None:
    op = registry.op(name)
    for dtype in sorted({c.dtype for c in small(name)}):
        cases = [c for c in small(name) if c.dtype == dtype]
        assert any(checker.check_callable(op, c, checker.lower_precision(op), name="lower").status == "wrong" for c in cases), dtype


@pytest.mark.parametrize("name", [n for n in registry.op_names() if registry.op(n).grad])
def test_the_backward_is_the_gradient_of_the_reference(name: str) -> None:
    op = registry.op(name)
    assert op.grad is not None
    unfit = ("NaN", "inf", "large", "overflow", "empty", "rows", "out of range", "all ignored")
    for c in [c for c in small(name) if c.dtype == "f32" and not any(w in c.name for w in unfit)]:
        from rooftop.lab.inputs import make

        tensors, options = make(op, c, "cpu", 3)
        wide = {
            n: t if t is None or not t.is_floating_point() else t.double().contiguous().requires_grad_(n in ",".join(op.grad.wrt).replace("=", ",").split(","))
            for n, t in tensors.items()
        }
        outs = op.reference(*wide.values(), *options.values())
        outs = dict(zip(op.output_names, outs if isinstance(outs, tuple) else (outs,), strict=True))
        generator = torch.Generator().manual_seed(1)
        flow = {n: o for n, o in outs.items() if n not in op.grad.aside}
        d_outs = {n: None if o is None else torch.randn(o.shape, dtype=torch.float64, generator=generator) for n, o in flow.items()}
        names = [n for entry in op.grad.wrt for n in entry.split("=") if wide[n] is not None]
        pairs = [(o, d_outs[n]) for n, o in flow.items() if o is not None]
        want = torch.autograd.grad([o for o, _ in pairs], [wide[n] for n in names], [d for _, d in pairs], allow_unused=True)
        with torch.no_grad():
            got = op.grad.spread(op.grad.backward(*d_outs.values(), *op.grad.saved({**wide, **outs}), *options.values()))
        for n, w in zip(names, want, strict=True):
            torch.testing.assert_close(got[n], torch.zeros_like(got[n]) if w is None else w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OPS)
def test_the_choice_for_every_case_and_target_is_made_without_a_gpu(name: str) -> None:
    op = registry.op(name)
    for device in TARGETS.values():
        for c in op.cases:
            call = select(op, op.problem(c, device)).call
            if "bench" in c.tags and registry.implementations(name):  # a new op has no kernel yet
                assert call is not None, c.id
            if call is not None:
                assert call.launches


def test_ops_hold_under_opcheck_and_compile_on_the_cpu() -> None:
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    a, b, c = torch.randn(4, 6), torch.randn(6, 3), torch.randn(4, 3)
    rooftop.softmax(x), rooftop.add(x, y), rooftop.matmul(a, b)  # registers them
    torch.library.opcheck(torch.ops.rooftop.softmax.default, (x.requires_grad_(), 1, ""))
    torch.library.opcheck(torch.ops.rooftop.add.default, (x, y.requires_grad_(), ""))
    torch.library.opcheck(torch.ops.rooftop.matmul.default, (a.requires_grad_(), b.requires_grad_(), c.requires_grad_(), 0.5, 2.0, ""))

    def model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return rooftop.softmax(rooftop.add(rooftop.matmul(a, b), rooftop.matmul(a, b)), dim=0)

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(a, b), model(a, b))
    compiled(a, b).square().sum().backward()
    got = a.grad
    a.grad = None
    model(a, b).square().sum().backward()
    torch.testing.assert_close(got, a.grad)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: rooftop.softmax(torch.ones(3, dtype=torch.int32)), TypeError, "int32"),
        (lambda: rooftop.softmax(torch.ones(3), dim=1), IndexError, "dim is 1"),
        (lambda: rooftop.softmax(torch.tensor(1.0)), ValueError, "no dimensions"),
        (lambda: rooftop.softmax([1.0]), TypeError, "list"),
        (lambda: rooftop.add(torch.ones(3), torch.ones(4)), ValueError, r"\(3,\).*\(4,\)"),
        (lambda: rooftop.add(torch.ones(3), torch.ones(3).half()), TypeError, "float16"),
        (lambda: rooftop.matmul(torch.ones(3, 4), torch.ones(3, 4)), ValueError, "a's columns"),
        (lambda: rooftop.matmul(torch.ones(3, 4).double(), torch.ones(4, 4)), TypeError, "float64"),
        (lambda: rooftop.matmul(torch.ones(3, 4), torch.ones(4, 5), c=torch.ones(3, 4)), ValueError, r"\(3, 5\)"),
        (lambda: rooftop.add(torch.ones(3), torch.ones(3, device="meta")), ValueError, "meta"),
        (lambda: rooftop.softmax(torch.ones(3, 3), implementation="triton"), ValueError, "CUDA tensors"),
    ],
)
def test_a_wrong_call_says_what_was_given_and_what_is_accepted(call: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()  # type: ignore[operator]


# -- kernels -------------------------------------------------------------------------------------------------------

TRITON = [f.name for f in registry.kernel_files() if f.backend == "triton"]


@pytest.mark.parametrize("name", TRITON)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_every_triton_kernel_is_right_in_the_interpreter(name: str, dtype: str) -> None:
    subject = candidates.find([name])[0]
    found = [checker.check(subject, c, backend="interpreter", seed=7) for c in checker.select_cases(subject, tags=("edge",), dtype=dtype)]
    assert [(r.case, r.message) for r in found if r.status in ("wrong", "error")] == []
    assert sum(r.status == "ok" for r in found) >= 10


PLANTED = {
    "tail dropped": ("tl.store(out + at, total, inside)", "tl.store(out + at, total, at < n - 1)", "wrong", "out"),
    "stored beyond the end": ("tl.store(out + at, total, inside)", "tl.store(out + at, total)", "error", "OutOfBounds"),
    "loaded beyond the end": ("tl.load(y + at, inside)", "tl.load(y + at)", "error", "OutOfBounds"),
    "input written": ("tl.store(out + at, total, inside)", "tl.store(out + at, total, inside)\n    tl.store(x + at, total, inside)", "error", "ReadOnly"),
    "one precision lower": ("+ tl.load(y + at, inside)", "+ tl.load(y + at, inside).to(tl.bfloat16)", "wrong", "largest error"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(tmp_path: Path, name: str) -> None:
    old, new, status, says = PLANTED[name]
    text = (registry.HOUSE.kernels / "elementwise" / "add__triton.py").read_text()
    assert old in text
    path = tmp_path / "add__triton.py"
    path.write_text(text.replace(old, new))
    subject = candidates.Subject("planted", registry.op("add"), registry.user_file(path))
    found = checker.check(subject, registry.op("add").case("odd f32"), backend="interpreter")
    assert (found.status, says in found.message) == (status, True), found.message


RUNGS = [s for n in registry.ladder_names() for s in candidates.rungs(registry.ladder(n))]


@pytest.mark.parametrize("subject", RUNGS + candidates.find(OPS), ids=lambda s: s.name)
@pytest.mark.parametrize("arch", [80, 89, 90])
def test_every_kernel_compiles_and_meets_its_demands(subject: candidates.Subject, arch: int) -> None:
    facts = inspector.facts_of(subject, inspector.inspect_case(subject, None, arch), arch)
    assert facts.get("kernels") or arch < 90, facts
    assert [u for k in facts.get("kernels", []) for u in k["unmet"]] == []


# -- the house -----------------------------------------------------------------------------------------------------


def test_the_stub_is_what_the_op_files_say() -> None:
    assert api.STUB.read_text(encoding="utf-8") == api.stub(), "run: rooftop stub"


def test_the_environment_is_read_in_one_place() -> None:
    found = [str(p) for p in (settings.PACKAGE).rglob("*.py") if p.name != "settings.py" and ("os.environ" in (t := p.read_text()) or "getenv" in t)]
    assert found == []


def test_tracked_files_stay_small() -> None:
    import subprocess

    root = settings.CHECKOUT
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    assert sum((root / f).stat().st_size for f in listed if f and (root / f).is_file()) < 16 << 20


def test_cited_paths_exist() -> None:
    import re

    for page in (settings.CHECKOUT / "README.md", *(settings.CHECKOUT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} cites {link}"


def test_importing_the_package_loads_nothing() -> None:
    import subprocess
    import sys

    code = "import sys, json, rooftop; print(json.dumps([m for m in ('torch', 'triton', 'numpy', 'rich') if m in sys.modules]))"
    assert json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) == []


def test_skeletons_are_right_as_they_stand(tmp_path: Path) -> None:
    from rooftop.lab import scaffold

    h = house(tmp_path)
    scaffold.write("op", "scale_two", h)
    scaffold.write("kernel", "scale_two__triton", h)
    assert registry.op_names(h) == ("scale_two",)
    found = registry.implementations("scale_two", h)[0]
    op = registry.op("scale_two", h)
    assert checker.check(candidates.Subject(found.name, op, found), op.case("odd f32"), backend="interpreter").status == "ok"
    with pytest.raises(ValueError, match="there already"):
        scaffold.write("op", "scale_two", h)
    with pytest.raises(registry.RegistryError):
        scaffold.write("kernel", "scale_tow__triton", h)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what happens without a GPU")
def test_commands_that_need_a_gpu_say_so_with_exit_code_3() -> None:
    import subprocess
    import sys

    for words in (["bench", "add"], ["calibrate"]):
        done = subprocess.run([sys.executable, "-m", "rooftop.lab.cli", *words], capture_output=True, text=True, check=False)
        assert (done.returncode, "needs an NVIDIA GPU" in done.stderr) == (3, True), done.stderr


def test_the_command_line_prints_json_and_hints() -> None:
    import subprocess
    import sys

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "rooftop.lab.cli", *words], capture_output=True, text=True, check=False)

    assert {r["name"] for r in json.loads(run("ls", "--json").stdout)} >= {"softmax", "matmul", "add", "sgemm_cuda", "softmax_cuda"}
    assert json.loads(run("check", "add", "--case", "odd f32", "--json").stdout)["results"][0]["status"] == "ok"
    assert json.loads(run("explain", "softmax", "--json").stdout)
    misspelt = run("check", "softmx")
    assert (misspelt.returncode, "did you mean 'softmax'" in misspelt.stderr) == (1, True)


@pytest.mark.parametrize("jobs", [1, 2])
def test_many_programs_are_compiled_into_the_cache_and_one_that_fails_is_left(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_CACHE", str(tmp_path))
    monkeypatch.setenv("ROOFTOP_JOBS", str(jobs))
    right = "template <int N> __global__ void fill(int* y) { y[threadIdx.x] = N; }"
    programs = [(right, "right.cu", "sm_80", (f"fill<{n}>",)) for n in range(7)] + [("__global__ void broken(", "wrong.cu", "sm_80", ("broken",))]
    compile_many(programs)
    assert all(compile_cuda(s, name=n, target=t, kernels=k).cached for s, n, t, k in programs[:-1])
    with pytest.raises(CompileError, match=r"wrong\.cu"):
        compile_cuda(programs[-1][0], name="wrong.cu", target="sm_80", kernels=("broken",))


def test_headers_that_are_kept_change_no_byte_and_parts_hold_every_job_once() -> None:
    from rooftop.core import compile as compiling

    source = "#include <cuda_fp16.h>\ntemplate <int N> __global__ void fill(__half* y) { y[threadIdx.x] = __hadd(y[threadIdx.x], __half(N)); }"
    plain = compile_cuda(source, name="fill.cu", target="sm_80", kernels=("fill<3>",), use_cache=False)
    for _ in range(2):  # made, then used
        assert compile_cuda(source, name="fill.cu", target="sm_80", kernels=("fill<3>",), use_cache=False, of_many=True).cubin == plain.cubin
    jobs = [(s, "a.cu", t, (str(i),)) for s, t, n in (("a", "sm_80", 11), ("a", "sm_90a", 2), ("b", "sm_80", 5)) for i in range(n)]
    parts = compiling._parts(jobs, 4)
    assert sorted(job for part in parts for job in part) == sorted(jobs)
    assert all(len({(job[0], job[2]) for job in part}) == 1 for part in parts) and [len(p) for p in parts] == [5, 4, 4, 3, 2]


LET = """/* rooftop
args    = ["n: i32 = count", "x: f32[N]", "y: f32[N]"]
[let]
count   = "N * each"
doubled = "2 * count"
[config]
each = 3
[[launch]]
kernel = "k<{doubled}>"
grid   = ["doubled // 4"]
block  = ["each"]
*/
"""


def test_a_name_of_let_stands_for_its_expression_wherever_it_is_used() -> None:
    read = head_text.parse(LET, "let.cu")
    problem = Problem("any", (("x", Meta((10,), "f32")), ("y", Meta((10,), "f32"))), (), TARGETS[80])
    (launch,) = read.launches_for(problem, {"each": 6})
    assert (launch.kernel, launch.grid, launch.block, launch.args["n"]) == ("k<120>", (30,), (6,), 60)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('count   = "N * each"', 'count   = "N * (each"', "is not an expression"),
        ('count   = "N * each"', 'each    = "N"', "a name of its own"),
        ('count   = "N * each"', "count   = 3", "must be a condition"),
    ],
)
def test_a_let_that_cannot_be_read_is_refused(old: str, new: str, says: str) -> None:
    with pytest.raises(head.HeadError, match=says):
        head_text.parse(LET.replace(old, new), "let.cu")


def test_names_of_let_that_name_each_other_in_a_circle_are_an_error() -> None:
    read = head_text.parse(LET.replace('count   = "N * each"', 'count   = "doubled"'), "let.cu")
    problem = Problem("any", (("x", Meta((10,), "f32")), ("y", Meta((10,), "f32"))), (), TARGETS[80])
    with pytest.raises(ExpressionError):
        read.launches_for(problem, read.config)


ADDS = """/* rooftop
op      = "add"
args    = ["n: i64 = numel(x)", "x: f32[N]", "y: f32[N]", "out: f32[N]"]
[[launch]]
kernel = "k"
grid   = ["ceil(N / 256)"]
block  = [256]
*/
__global__ void k(long long n, const float* x, const float* y, float* out) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i];
}
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("ceil(N / 256)", "Q", "names 'Q'"),
        ("ceil(N / 256)", "ceil(N / smss)", "did you mean 'sms'"),
        ("y: f32[N]", "z: f32[N]", "args name a tensor 'z'"),
        ("[256]", "[2048]", "out of range"),
        ("ceil(N / 256)", "0", "out of range"),
    ],
)
def test_a_head_that_no_problem_fits_is_wrong_and_never_just_not_supported(old: str, new: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(ADDS.replace(old, new))
    with pytest.raises(head.HeadError, match=says):
        (subject,) = candidates.find([str(path)])
        subject.supports(registry.op("add").case("odd f32"), TARGETS[90])


def test_a_problem_that_does_not_fit_is_not_supported(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(ADDS)
    (subject,) = candidates.find([str(path)])
    assert "takes f32" in str(subject.supports(registry.op("add").case("odd bf16"), TARGETS[90]))
    assert subject.supports(registry.op("add").case("odd f32"), TARGETS[90]) is None


@pytest.mark.parametrize(
    "line", ['demands = { has = "LDG" }', 'demands = { spills = "0" }', "predict = { speedup = nan }", 'requires = { "N > 0" = 3 }']
)
def test_demands_predictions_and_reasons_of_the_wrong_kind_are_refused(line: str) -> None:
    with pytest.raises(head.HeadError):
        head_text.parse(ADDS.replace('op      = "add"', 'op      = "add"\n' + line), "mine.cu")
