"""Python files with Triton kernels, as they are found: their own host code runs on a GPU that is not there, their launches are interpreted and watched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from _support import COPIED, command, flat
from _support import TRITON as HEAD

from rooftop.lab.check import triton_like
from rooftop.lab.cli import elsewhere, triton_files
from rooftop.lab.inspect import triton_file
from rooftop.lab.interpret import host, stand_in, wrappers
from rooftop.lab.interpret.host import Watch

FILES = Path(__file__).parent / "files"
COPY = f"""{COPIED}def copy(x, out=None):
    y = torch.empty_like(x) if out is None else out
    copied[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), B=64)
    return y
"""


def ran(folder: Path, text: str, watch: Watch | None = None) -> host.Ran:
    path = folder / "mine.py"
    path.write_text(text, encoding="utf-8")
    return host.program(path, (), watch)


def test_a_program_runs_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    found = host.program(FILES / "softmax.py")
    assert found.findings == () and "right" in capfd.readouterr().err
    (launch,) = found.launches
    assert (launch.name, launch.grid, launch.times, launch.programs) == ("rows", (5,), 2, 5)
    assert launch.repeated == 1 and not launch.cut  # once for its check; its clock times the same again
    assert launch.options == {"num_warps": 8} and launch.loaded == launch.stored == 5 * 781 * 4
    assert not torch.cuda.is_available() and torch.empty(1).device.type == "cpu"


@pytest.mark.parametrize(
    ("bound", "call", "kind", "says"),
    [("n + 1", "copy(torch.ones(100, device='cuda'))", "fault", "load outside argument 'x' (float32, shape (100,)"),
     ("n", "copy(torch.ones(100))", "launch", "the argument x is a tensor of the CPU (float32 100): move it to the GPU"),
     ("n", "copied[7](torch.ones(8).cuda(), torch.ones(8).cuda(), 8, B=64)", "launch", "the grid of copied is 7; it must be a tuple"),
     ("n", "copied[(1,)](torch.ones(8).cuda(), torch.ones(8).cuda(), 8)", "launch", "copied: missing a required argument: 'B'"),
     ("n", "copied[(1,)](torch.ones(8).cuda(), torch.ones(8).cuda(), 8, B=64, num_wraps=4)", "launch", "unknown is 'num_wraps'"),
     ("n", "assert (copy(torch.ones(9).cuda()) == 2).all(), 'not two'", "host", "AssertionError: not two"),
     ("n", "import sys; sys.exit(3)", "host", "it ends the process: SystemExit: 3"),
     ("n", "import sys; n = sys.argv[1:] or sys.exit(2)", "refused", "(2) before any launch: --args 'WORD WORD' gives it arguments"),
     ("n", "import nosuchmodule.part as part\npart.look(copy)", "absent", ":14: part.look(copy): the module nosuchmodule.part is not installed")],
)
def test_what_is_wrong_is_found_with_its_line(bound: str, call: str, kind: str, says: str, tmp_path: Path) -> None:
    (finding,) = ran(tmp_path, COPY.format(bound=bound) + call + "\n").findings
    assert finding.kind == kind and says in finding.text and "mine.py:" in finding.text
    if kind in ("launch", "host"):
        lines = (COPY.format(bound=bound) + call).splitlines()
        said = "copied[" if "copy(torch.ones(100))" in call else call
        assert finding.line == 1 + next(i for i, line in enumerate(lines) if said in line)


def test_a_launch_is_left_out_only_where_memory_is_as_it_was(tmp_path: Path) -> None:
    """Each turn's output is fresh memory; `total` grows in each turn, and the file's own assertions say what must be there."""
    found = ran(tmp_path, f"""{HEAD}
@triton.jit
def add(x, y, by, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, tl.load(x + at) + by)
x, total = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
for i in range(5):
    y = torch.empty_like(x)
    add[(1,)](x, y, 1, B=64)
    assert (y == 2).all()
    add[(1,)](total, total, 0.5, B=64)
assert (total == 2.5).all()
add[(1,)](x, x[:], 1, B=64)
assert (x == 2).all()
add[(1,)](x, y, 1, B=64)
assert (y == 3).all()
""")
    assert found.findings == ()
    assert [(x.values["by"], x.times, x.repeated) for x in found.launches] == [(1, 7, 4), (0.5, 5, 0)]


def test_tensors_are_where_they_would_be(tmp_path: Path) -> None:
    text = """
here, there = torch.ones(4), torch.ones(4, device="cuda")
assert not here.is_cuda and there.is_cuda and there.device == torch.device("cuda", 0) and there.get_device() == 0
assert (there + 1).is_cuda and there[1:].is_cuda and torch.empty_like(there).is_cuda and not (here + 1).is_cuda
moved = here.to("cuda")
moved[0] = 5
assert here[0] == 1 and moved.is_cuda and there.cuda() is there and there.to("cuda") is there
assert not there.cpu().is_cuda and there.cpu().data_ptr() != there.data_ptr()
layer = torch.nn.Linear(4, 4).cuda()
assert layer.weight.is_cuda and layer(there).is_cuda and torch.nn.Parameter(torch.ones(3, device="cuda")).is_cuda
x = torch.ones(3, device="cuda", requires_grad=True)
(x * x).sum().backward()
assert x.grad.is_cuda and torch.tensor([1.0]).is_cuda is False and torch.zeros(2, dtype=torch.int32, device=there.device).is_cuda
assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record(); end.record(); torch.cuda.synchronize()
assert start.elapsed_time(end) == 1.0 and triton.runtime.driver.active.get_active_torch_device().type == "cuda"
import matplotlib.pyplot as plt
figure, axes = plt.subplots(); axes.plot([1, 2]); plt.show()
"""
    assert ran(tmp_path, HEAD + text).findings == ()


def test_a_file_in_its_package_that_says_accelerator_and_shows_tables_runs(tmp_path: Path) -> None:
    (tmp_path / "own" / "part").mkdir(parents=True)
    (tmp_path / "own" / "more.py").write_text("def sizes() -> int:\n    return 100\n", encoding="utf-8")
    found = ran(tmp_path / "own" / "part", "from own.more import sizes\nimport tabulate\n" + COPY.format(bound="n") + """
assert torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == "cuda"
y = copy(torch.ones(sizes(), device="cuda"))
torch.accelerator.synchronize()
print(tabulate.tabulate([["sum", float(y.sum())]]))
""")
    assert found.findings == () and found.launches[0].programs == found.launches[0].whole


def test_launches_beyond_the_time_are_cut_and_said(tmp_path: Path) -> None:
    text = COPY.format(bound="n") + "assert (copy(torch.ones(1 << 20, device='cuda')) == 1).all(), 'not judged'\n"
    found = ran(tmp_path, text, Watch(seconds=0.3))
    (launch,) = found.launches
    assert found.findings == () and found.watch.cut and 0 < launch.programs < launch.whole == 16384
    assert f"{launch.programs} of 16384 programs ran" in str(launch)


@pytest.mark.parametrize("call", ["copied[1](x, x, 64, 64)", "copied[(1,)](x, x, 64, 64, B=64)"])
def test_a_first_launch_that_fails_is_found_though_no_function_launches(call: str, tmp_path: Path) -> None:
    kernel = COPY.format(bound="n").partition("def copy(")[0]
    (tmp_path / "own.py").write_text(f"{kernel}x = torch.ones(64, device='cuda')\n{call}\n", encoding="utf-8")
    found = triton_file.launches(tmp_path / "own.py", "", {}, (), Watch())
    assert [f.kind for f in found.findings] == ["launch"] and not found.launches, found.findings


def test_a_file_without_end_is_ended_and_said(tmp_path: Path) -> None:
    found = ran(tmp_path, COPY.format(bound="n") + "while True:\n    copy(torch.ones(8, device='cuda'))\n", Watch(total=0.5))
    assert found.findings == () and found.watch.over and found.watch.cut and found.launches[0].times > 1


def test_each_config_of_an_autotuned_kernel_runs_on_its_own_copies() -> None:
    a, b = torch.randn(20, 24), torch.randn(24, 18)
    watch = Watch()
    with host.standing_in(watch):
        module, _ = host.run_file(FILES / "tuned.py", watch, "tuned")
        made, again = (module.matmul(a.cuda(), b.cuda()) for _ in range(2))
    assert torch.allclose(made, a @ b, atol=0.05) and torch.equal(made.cpu(), again.cpu())
    assert [(x.config, x.times) for x in watch.launches.values()] == [
        ("M=16 N=16 num_warps=2 num_stages=3", 1), ("M=32 N=16 num_warps=4 num_stages=2", 2)
    ]
    assert all(x.values["EVEN"] is False for x in watch.launches.values()) and watch.configs == 2


def test_configs_that_a_static_assert_refuses_are_passed_over_and_a_reference_is_given_what_both_take(tmp_path: Path) -> None:
    text = f"""{HEAD}
@triton.autotune([triton.Config({{"B": b}}) for b in (512, 256)], key=[])
@triton.jit
def rows(x, w, y, n, eps, B: tl.constexpr, N: tl.constexpr):
    tl.static_assert(B >= N and B < 512)
    at = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=0.0).to(tl.float32)
    v = v * tl.rsqrt(tl.sum(v * v) / n + eps) * tl.load(w + at, mask=at < n)
    tl.store(y + tl.program_id(0) * n + at, v, mask=at < n)

class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, normalized_shape, weight, eps):
        y = torch.empty_like(x)
        rows[(x.shape[0],)](x, weight, y, x.shape[1], eps, N=triton.next_power_of_2(x.shape[1]))
        return y

@triton.jit
def losses(x, t, y, n, B: tl.constexpr):
    i, at = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + i * n + at, mask=at < n, other=-float("inf")).to(tl.float32)
    m = tl.max(v)
    tl.store(y + i, tl.log(tl.sum(tl.exp(v - m))) + m - tl.load(x + i * n + tl.load(t + i)).to(tl.float32))

@triton.jit
def squares(x, y, N: tl.constexpr):
    at = tl.arange(0, 16)[:, None] * N + tl.arange(0, 16)
    v = tl.load(x + at)
    tl.store(y + at, tl.dot(v.to(tl.float16), v))

def square(a):
    x, y = a[:16, :16].contiguous(), torch.empty_like(a[:16, :16])
    squares[(1,)](x, y, N=16)
    return y

def squared(a):
    return a[:16, :16] @ a[:16, :16]

def entropy(logits, labels):
    y = torch.empty(logits.shape[0], dtype=torch.float32, device="cuda")
    losses[(logits.shape[0],)](logits, labels, y, logits.shape[1], B=triton.next_power_of_2(logits.shape[1]))
    return y
"""
    (tmp_path / "own.py").write_text(text, encoding="utf-8")
    judged = triton_like.compared(tmp_path / "own.py", "square", f"{tmp_path / 'own.py'}:squared", {}, 0)
    assert judged.right and len(judged.compared) == 3 and "same dtype" in judged.refused[0], "it is for float16 alone"
    for name, like in (("Norm", "rms_norm"), ("entropy", "cross_entropy")):
        judged = triton_like.compared(tmp_path / "own.py", name, f"torch.nn.functional.{like}", {}, 0)
        assert judged.right and judged.called >= 6, (name, judged.findings, [str(c) for c in judged.compared])
        assert name != "Norm" or {x.config[:5] for x in judged.launches} == {"B=256"}


def test_a_wrapper_is_judged_by_a_function_of_torchs(tmp_path: Path) -> None:
    judged = triton_like.compared(FILES / "softmax.py", "softmax", "torch.softmax", {}, 0)
    assert judged.right and len(judged.compared) == 6 and {c.inputs for c in judged.compared} >= {("x: float32 33x100",), ("x: float16 128x256",)}
    wrong = (FILES / "softmax.py").read_text(encoding="utf-8").replace("tl.exp(v - ", "tl.exp2(v - ")
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")
    judged = triton_like.compared(tmp_path / "wrong.py", "", "torch.softmax", {}, 0)
    assert not judged.right and not any(c.right for c in judged.compared)
    late = (FILES / "softmax.py").read_text(encoding="utf-8").replace("mask=at < n, other", "mask=at <= n, other")
    (tmp_path / "late.py").write_text(late, encoding="utf-8")
    judged = triton_like.compared(tmp_path / "late.py", "softmax", "torch.softmax", {}, 0)
    assert not judged.right and "softmax(x: float32 33x100): rows, program (32, 0, 0), late.py:12" in judged.findings[0].text


@pytest.mark.sampled("slow")
def test_a_wrapper_is_judged_with_each_config() -> None:
    judged = triton_like.compared(FILES / "tuned.py", "", "torch.matmul", {}, 0)
    assert judged.right and judged.configs == 2
    configs = "M=16 N=16 num_warps=2 num_stages=3", "M=32 N=16 num_warps=4 num_stages=2"
    assert {c.function for c in judged.compared} == {f"matmul, config {c}" for c in configs}
    assert judged.compared[0].inputs == ("a: float32 33x40", "b: float32 40x100")


def test_a_tensor_that_it_changes_is_its_output(tmp_path: Path) -> None:
    text = COPY.format(bound="n") + "def into(x, out):\n    copy(x, out)\ndef wants(x, count: int):\n    copy(x)\n"
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    judged = triton_like.compared(tmp_path / "mine.py", "into", "torch.clone", {}, 0)
    assert judged.right and judged.compared[0].output == "out" and judged.compared[0].inputs == ("x: float32 33x100",)
    with pytest.raises(ValueError, match="wants wants the number count: --arg count="):
        triton_like.compared(tmp_path / "mine.py", "wants", "torch.clone", {}, 0)
    with pytest.raises(ValueError, match="has 2 functions that launch kernels: into, wants"):
        triton_like.compared(tmp_path / "mine.py", "", "torch.clone", {}, 0)
    with pytest.raises(ValueError, match="no 'cpy'; did you mean 'copy'"):
        triton_like.compared(tmp_path / "mine.py", "cpy", "torch.clone", {}, 0)
    given = triton_like.compared(tmp_path / "mine.py", "copy", "torch.clone", {"x": torch.randn(7, 3).half()}, 0)
    assert given.right and [c.inputs for c in given.compared] == [("x: float16 7x3",)]


def test_a_number_has_its_usual_value_where_nothing_is_compared(tmp_path: Path) -> None:
    text = COPY.format(bound="n") + "def into(x, out, eps: float, dim: int):\n    assert eps == 1e-5 and dim == -1\n    copy(x, out)\n"
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    found = triton_file.launches(tmp_path / "mine.py", "into", {}, (), Watch(seconds=2.0))
    assert [x.name for x in found.launches] == ["copied"] and found.findings == ()
    with pytest.raises(ValueError, match="into wants the number eps: --arg eps="):
        triton_like.compared(tmp_path / "mine.py", "into", "torch.clone", {}, 0)


def test_what_launches_is_compiled_for_any_target(tmp_path: Path) -> None:
    from rooftop.lab.inspect.inspector import device_of

    found = triton_file.launches(FILES / "tuned.py", "", {}, (), Watch(run=False))  # it launches nothing by itself: its functions are called
    assert [x.name for x in found.launches] == ["product", "product"] and found.findings == ()
    rows, refused = triton_file.several(found, device_of(90))
    assert refused == {} and [r["config"] for r in rows] == ["M=16 N=16 num_warps=2 num_stages=3", "M=32 N=16 num_warps=4 num_stages=2"]
    assert all(r["counts"].get("HMMA") and r["registers"] > 8 for r in rows)
    (tmp_path / "mine.py").write_text(COPY.format(bound="missing") + "copy(torch.ones(9, device='cuda'))\n", encoding="utf-8")
    rows, refused = triton_file.several(triton_file.launches(tmp_path / "mine.py", "", {}, (), Watch(run=False)), device_of(80))
    assert rows == [] and "missing" in refused["copied"]


def test_which_functions_launch(tmp_path: Path) -> None:
    with host.standing_in(Watch()):
        names = vars(host.run_file(FILES / "tuned.py", Watch(), "tuned")[0])
    assert list(wrappers.functions(names, names["__name__"])) == ["matmul"]  # the outermost
    assert list(wrappers.kernels(names)) == ["product"] and wrappers.jit_of(names["product"]).__name__ == "product"
    assert wrappers.resolve(names, "Product.apply", "tuned.py") == names["Product"].apply


def test_everything_is_as_it_was_afterwards() -> None:
    from triton.runtime import JITFunction
    from triton.runtime.autotuner import Autotuner

    before = JITFunction.run, Autotuner.run, torch.cuda.is_available, torch.compile
    with pytest.raises(KeyError), stand_in.gpu(lambda *_: None, lambda *_: None):
        raise KeyError
    assert (JITFunction.run, Autotuner.run, torch.cuda.is_available, torch.compile) == before


def test_commands_take_such_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "simt", str(FILES / "softmax.py"), "--json") == 0
    said = capsys.readouterr()
    assert [x["kernel"] for x in json.loads(said.out)["launches"]] == ["rows"] and "it runs in a process of its own" in flat(said.err)
    assert command(monkeypatch, "check", f"{FILES / 'softmax.py'}:softmax", "--like", "torch.softmax") == 0
    assert capsys.readouterr().out.count("right: softmax(x: float") == 6


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("words", ["inspect {} --arch 90", "place {} --ladder matmul_triton", "simt {}:product"])
def test_more_commands_take_such_a_file(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, *words.format(FILES / "tuned.py").split()) == 0
    assert "product" in capsys.readouterr().out


def test_an_option_that_says_nothing_to_python_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(elsewhere, "inside", True)
    assert command(monkeypatch, "simt", str(FILES / "softmax.py"), "--grid", "4") == 1
    assert "softmax.py is Python; it takes" in flat(capsys.readouterr().err)


def test_a_file_that_is_no_kernel_by_its_name_needs_a_reference(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert triton_files.own(str(FILES / "softmax.py"), ("x=f32:2x3", "n=4", "name='a'")).given.keys() == {"x", "n", "name"}  # type: ignore[union-attr]
    for wrong in ("x", "n=a b", "x=f99:3"):
        with pytest.raises(ValueError, match="--arg"):
            triton_files.own(str(FILES / "softmax.py"), (wrong,))
    assert triton_files.own("square__mine__triton.py") is None and triton_files.own(str(FILES / "nosuch.py")) is None
    assert command(monkeypatch, "check", str(FILES / "softmax.py")) == 1
    assert "say what it computes, as in rooftop check" in flat(capsys.readouterr().err)


@pytest.mark.sampled("slow")
def test_a_norm_gets_its_weight_and_eps_by_name_whatever_else_its_file_asserts(tmp_path: Path) -> None:
    text = f"""{HEAD}import argparse
argparse.ArgumentParser().parse_args()
@triton.jit
def scaled(x, w, y, n, eps, B: tl.constexpr):
    at = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, axis=0) / n + eps)
    tl.store(y + tl.program_id(0) * n + at, v * scale * tl.load(w + at, mask=at < n), mask=at < n)
def norm(x, weight, eps=0.25):
    y = torch.empty_like(x)
    scaled[(x.shape[0],)](x, weight, y, x.shape[1], eps, B=triton.next_power_of_2(x.shape[1]))
    return y
assert (norm(torch.ones(40, 8, device="cuda"), torch.ones(8, device="cuda")) == 3).all()
"""
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    judged = triton_like.compared(tmp_path / "mine.py", "norm", "torch.nn.functional.rms_norm", {}, 0)
    assert judged.compared[0].inputs == ("x: float32 33x100", "weight: float32 100") and judged.right
    assert [f.kind for f in judged.ended] == ["host"]
