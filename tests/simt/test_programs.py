"""Programs that run as they are: each file of programs/ says what it prints, with which arguments, and where faults are to be found (`// BUG: kind`)."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from rooftop.lab import simt
from rooftop.lab.cli import commands
from rooftop.lab.cli.app import app
from rooftop.lab.simt import process, program, program_build
from rooftop.lab.simt.tokens import tokenise

FOLDER = Path(__file__).parent / "programs"
FILES = sorted(p.stem for p in FOLDER.glob("*.cu"))
pytestmark = pytest.mark.skipif(simt.unavailable() is not None, reason=str(simt.unavailable()))


def marked(text: str, word: str) -> list[str]:
    return re.findall(rf"^// {word}: (.*)$", text, re.M)


def found(run: program.Run) -> set[tuple[int, str]]:
    return {(f.line, f.kind) for f in run.report.findings if f.kind != "leak"}


@pytest.mark.sampled("programs")
@pytest.mark.parametrize("name", FILES)
def test_a_program_prints_what_it_should_and_its_faults_are_found_at_their_lines(name: str) -> None:
    path = FOLDER / f"{name}.cu"
    text = path.read_text(encoding="utf-8")
    source, assumed = program.source_of(path)
    run = program.run(source, [w for line in marked(text, "args") for w in line.split()])
    for line in marked(text, "prints"):
        assert line in run.report.printed.splitlines(), run.report.printed
    assert marked(text, "assumed") in ([], [assumed])
    lines = text.splitlines()
    wanted = {(n, kind) for n, line in enumerate(lines, 1) if (m := re.search(r"// BUG: ([\w-]+)", line)) for kind in [m[1]]}
    allowed = {(n, m[1]) for n, line in enumerate(lines, 1) if (m := re.search(r"// MAY: ([\w-]+)", line))}
    assert wanted <= found(run), [str(f) for f in run.report.findings]
    assert found(run) <= wanted | allowed, [str(f) for f in run.report.findings]
    assert run.launches or name == "fault_launch"
    assert all(x.watched for x in run.launches)


def test_each_launch_is_listed_once_with_its_arguments_by_name() -> None:
    source, _ = program.source_of(FOLDER / "vector_add.cu")
    run = program.run(source, ["1000"])
    assert [str(x).partition(": ")[2] for x in run.launches] == ["vecAdd<<<4, 256>>>(d_a, d_b, d_c, 1000)"]
    assert run.ended == "returned"


def test_the_command_counts_and_judges_a_program(tmp_path: Path) -> None:
    commands()
    done = CliRunner().invoke(app, ["simt", str(FOLDER / "vector_add.cu"), "--args", "1000", "--json", "--html", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    data = json.loads(done.output[done.output.index("{") :])
    assert data["launches"][0]["arguments"] == ["d_a", "d_b", "d_c", "1000"]
    assert {(c["op"], c["requests"]) for c in data["lines"]} == {("read", 64), ("write", 32)}
    assert "vecAdd" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.sampled("simulator")
def test_a_program_without_its_arguments_is_called_with_small_numbers_or_says_how_to_give_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands()
    done = CliRunner().invoke(app, ["simt", str(FOLDER / "vector_add.cu")])
    assert done.exit_code == 0, done.output
    assert "called as assumed (--args gives others): --args '8', for n" in done.output and "vecAdd<<<1, 256>>>(d_a, d_b, d_c, 8)" in done.output
    monkeypatch.chdir(tmp_path)
    text = (
        '#include <cstdio>\n#include <cstdlib>\n__global__ void k(int* p, int n) {{ if (threadIdx.x < n) p[threadIdx.x{0}] = 1; }}\n'
        'int main(int c, char** v) {{\n    if (c < 3{1}) {{ printf("Usage: %s {2}\\n", v[0]); return 1; }}\n'
        "    int* p;\n    cudaMalloc(&p, 4 * atoi(v[1]));\n    k<<<1, 128>>>(p, atoi(v[2]));\n    cudaFree(p);\n}}\n"
    )
    for given, code, says in (
        (("", " || atoi(v[1]) % 32", "<rows> [steps]"), 0, "--args '64 64', for <rows> [steps]"),  # 8 does not do
        ((" + 1", "", "n m"), 3, "its arguments are assumed, and what is found may come of that: --args gives the true ones"),
        (("", "", "table.txt n"), 3, "if it wants arguments, give them by --args"), (("", "", "input_file n"), 3, "if it wants arguments, give them by --args"),
        (("", " || 1", "n m"), 3, "if it wants arguments, give them by --args"),
    ):
        Path("own.cu").write_text(text.format(*given), encoding="utf-8")
        done = CliRunner().invoke(app, ["simt", "own.cu"])
        assert done.exit_code == code and says in done.output, done.output


def test_an_allocation_of_more_than_there_is_gives_its_error(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(
        "#include <cstdio>\n__global__ void k(int* p) { *p = 1; }\nint main() {\n    int *p, *q;\n    cudaMalloc(&p, 4);\n"
        '    printf("%d %d\\n", cudaMalloc(&q, (size_t)-1), cudaMalloc(&q, (size_t)1 << 63));\n    k<<<1, 1>>>(p);\n    cudaFree(p);\n}\n', encoding="utf-8",
    )
    run = program.run(program.source_of(path)[0])
    assert run.report.printed.split() == ["2", "2"] and not run.report.findings


def test_what_the_host_may_not_do_is_contained_and_named(tmp_path: Path) -> None:
    path = tmp_path / "reads.cu"
    path.write_text(
        '#include <cstdio>\n#include <cstdlib>\n#include <fstream>\n__global__ void k() {}\nint main() {\n'
        '    if (!fopen("/etc/hostname", "r")) puts("no file");\n    std::ofstream("/tmp/written-by-a-program") << 1;\n'
        '    system("true");\n    k<<<1, 1>>>();\n    return 0;\n}\n', encoding="utf-8",
    )
    run = program.run(program.source_of(path)[0])
    assert "no file" in run.report.printed
    assert any("opens the file /etc/hostname" in d for d in run.denied)
    assert any("runs the command true" in d for d in run.denied)
    assert not Path("/tmp/written-by-a-program").exists()


@pytest.mark.sampled("simulator")
def test_what_a_program_writes_goes_nowhere_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.cu").write_text(
        '#include <cstdio>\n__global__ void k() {}\nint main() {\n    FILE* f = fopen("out.txt", "w");\n    if (!f) return 1;\n'
        '    for (int i = 0; i < 100000; ++i) fprintf(f, "%d ", i);\n    k<<<1, 1>>>();\n    return fclose(f);\n}\n', encoding="utf-8",
    )
    commands()
    done = CliRunner().invoke(app, ["simt", "own.cu"])
    assert done.exit_code == 0 and "line 4 writes the file out.txt: nothing of it is kept" in done.output, done.output
    assert [p.name for p in tmp_path.iterdir()] == ["own.cu"]


def test_streams_write_to_nothing_and_read_what_they_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = """#include <fstream>
#include <iostream>
#include <string>
__global__ void fill(int* p, int v) { p[threadIdx.x] = v; }
int main() {
    int *d, now = -1, v = 0;
    cudaSetDevice(1);
    cudaGetDevice(&now);
    cudaMalloc(&d, 128);
    std::ofstream out("made.txt"), more(std::string("more.txt"), std::ios::app);
    out << "never seen" << std::endl;
    more << 1;
    std::ifstream in("numbers.txt");
    in >> v;
    fill<<<1, 32>>>(d, v);
    cudaFree(d);
    std::cout << now << " " << v << " " << out.good() << more.good() << std::endl;
}
"""
    Path("beside").mkdir()
    Path("beside/own.cu").write_text(code, encoding="utf-8")
    Path("beside/numbers.txt").write_text("41\n", encoding="utf-8")
    source, _ = program.source_of(Path("beside/own.cu"))
    without, given = program.run(source), program.run(source, files=[Path("beside/numbers.txt")])
    assert without.denied == ("line 13 opens the file numbers.txt",) and not given.denied
    assert given.unkept == ("line 10 writes the file made.txt", "line 10 writes the file more.txt")
    assert given.beside == ("line 7 uses a GPU beside the first",)
    assert given.report.printed == "1 41 11\n" and without.report.printed == "1 0 11\n"
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["numbers.txt", "own.cu"]


@pytest.mark.parametrize("waits", ["", pytest.param("if (n % 200000 == 0) usleep(5000);", marks=pytest.mark.sampled("programs"))])
def test_a_host_without_an_end_is_ended_in_time_and_what_was_found_is_told(waits: str, tmp_path: Path) -> None:
    """By its CPU time, or by the clock where it waits, as on a machine with other work."""
    path = tmp_path / "own.cu"
    path.write_text("#include <unistd.h>\n__global__ void k(int* p) { p[1] = 0; }\nint main() {\n    int* d;\n    cudaMalloc(&d, 4);\n    k<<<1, 1>>>(d);\n"
                    f"    volatile int n = 0;\n    while (true) {{ n = n + 1; {waits} }}\n}}\n", encoding="utf-8")
    run = program.run(program.source_of(path)[0], most=0.2)
    assert (run.ended, run.over, run.busy) == ("time", True, "line 8")
    assert [(f.line, f.kind) for f in run.report.findings] == [(2, "out-of-bounds")]


def test_sizes_among_the_arguments_are_scaled_and_missing_arguments_are_assumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands()
    text = "#include <cstdlib>\n__global__ void k() {}\nint main(int c, char** given) { k<<<atoi(given[1]), atoi(given[2])>>>(); }\n"
    Path("own.cu").write_text(text, encoding="utf-8")
    said = CliRunner().invoke(app, ["simt", "own.cu", "--args", "4096 3", "--scale", "0.01", "--no-check"])
    assert said.exit_code == 0 and "--args '41 3' in place of '4096 3'" in said.output and "k<<<41, 3>>>" in said.output
    nothing = CliRunner().invoke(app, ["simt", "own.cu", "--scale", "0.5"])
    assert nothing.exit_code == 1 and "no whole number of 32 or more" in str(nothing.exception)
    assert "k<<<8, 8>>>" in CliRunner().invoke(app, ["simt", "own.cu", "--no-check"]).output


@pytest.mark.sampled("simulator")
def test_tensors_are_reduced_as_torch_does(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(
        "#include <cstdio>\n#include <torch/extension.h>\nstd::shared_ptr<int> again(std::shared_ptr<int> p) { return p; }\n"
        "std::tuple<torch::Tensor, torch::Tensor> copied(torch::Tensor x) { std::tuple<torch::Tensor, torch::Tensor> t = torch::max(x, 0); return t; }\n"
        "__global__ void k(float* x) { x[threadIdx.x] = threadIdx.x % 4 == 1 ? -5.f : threadIdx.x; }\n"
        "int main() {\n    auto x = torch::empty({2, 3, 4});\n    k<<<1, 24>>>(x.data_ptr<float>());\n"
        "    std::tuple<torch::Tensor, torch::Tensor> m = torch::max(x, 1);\n    auto least = x.min(-1, true);\n"
        '    printf("%g %ld %ld %ld\\n", '
        'std::get<0>(m).sum().item<float>(), std::get<1>(m).max().item().to<long>(), std::get<0>(m).dim(), std::get<1>(m).numel());\n'
        '    printf("%g %ld %ld\\n", '
        'torch::sum(std::get<0>(least)).cpu().item().toDouble(), std::get<0>(least).size(2), std::get<1>(least).sum().item<int64_t>());\n'
        '    printf("%g %g\\n", torch::mean(x, 0).sum().item<double>(), torch::max(x).item<double>());\n}\n', encoding="utf-8",
    )
    run = program.run(program.source_of(path)[0])
    x = torch.tensor([-5.0 if i % 4 == 1 else i for i in range(24)]).reshape(2, 3, 4)
    largest, least = x.max(1), x.min(-1, keepdim=True)
    wanted = [largest.values.sum(), largest.indices.max(), 2, 8, least.values.sum(), 1, least.indices.sum(), x.mean(0).sum(), x.max()]
    assert [float(n) for n in run.report.printed.split()] == [float(n) for n in wanted]


def test_timing_loops_are_shortened_and_their_results_kept(tmp_path: Path) -> None:
    path = tmp_path / "loop.cu"
    path.write_text(
        "#include <cstdio>\n__global__ void set(int* p) { *p = 7; }\n__global__ void add(int* p) { *p += 1; }\n"
        "int main() {\n    int *p, h;\n    cudaMalloc(&p, 4);\n    for (int i = 0; i < 500; ++i) set<<<1, 1>>>(p);\n"
        "    for (int i = 0; i < 500; ++i) add<<<1, 1>>>(p);\n"
        '    cudaMemcpy(&h, p, 4, cudaMemcpyDeviceToHost);\n    printf("%d\\n", h);\n    cudaFree(p);\n}\n',
        encoding="utf-8",
    )
    run = program.run(program.source_of(path)[0])
    assert run.report.printed.split() == ["507"]
    assert [(x.times, x.watched) for x in run.launches] == [(500, 1), (500, 1)]
    assert run.launches[0].skipped > 400
    assert run.launches[1].skipped == 0


def test_tokens_of_a_source_put_together_are_the_source() -> None:
    for name in FILES:
        text = (FOLDER / f"{name}.cu").read_text(encoding="utf-8")
        assert "".join(t.text for t in tokenise(text)) == text


def test_a_file_that_only_offers_kernels_says_how_to_launch_one(tmp_path: Path) -> None:
    path = tmp_path / "kernels.cu"
    path.write_text("struct S { float** x; };\n__global__ void scale(S s, int n) { if (threadIdx.x < n) s.x[0][threadIdx.x] *= 2; }\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"has no main\(\).*the parameter S s of scale: .*--kernel"):
        program.source_of(path)


@pytest.mark.sampled("simulator")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '#include "nowhere.cuh"\n__global__ void k() { helper(); }\nint main() { k<<<1, 1>>>(); }\n',
            ('own.cu:1: "nowhere.cuh" is not found: name its folder by -I',),
        ),
        (
            "#include <cudnn.h>\n__global__ void k() {}\nint main() { cudnnHandle_t h; k<<<1, 1>>>(); }\n",
            ("own.cu:3: 'cudnnHandle_t' is declared neither", "cudnn.h"),
        ),
        (
            "__global__ void k() {}\nint main() { cudaChannelFormatDesc d = cudaCreateChannelDesc<float>(); k<<<1, 1>>>(); }\n",
            ("own.cu:2: 'cudaChannelFormatDesc' is declared neither", "(textures and surfaces are not simulated)"),
        ),
        (
            "__global__ void k() {}\nint main() { cudaDeviceProp p; k<<<1, p.noSuchThing>>>(); }\n",
            ("own.cu:2", "no member named", "noSuchThing", "checked: no fault"),
        ),
        (
            "#include <cuda.h>\n__global__ void k() {}\nint main() { CUmodule m; cuModuleLoad(&m, \"k.cubin\"); k<<<1, 1>>>(); }\n",
            ("own.cu:3: 'CUmodule' is declared neither", "(the driver API is not simulated)"),
        ),
        (
            "#include <cublasLt.h>\n__global__ void k() {}\nint main() { cublasLtHandle_t h; cublasLtCreate(&h); cublasLtMatrixTransformDesc_t d; "
            "cublasLtMatrixTransformDescCreate(&d, CUDA_R_32F); k<<<1, 1>>>(); }\n",
            ("own.cu:3: 'cublasLtMatrixTransformDesc_t' is declared neither",),
        ),
        (
            "__global__ void k() {}\nint main() { int n; cudaHostRegister(&n, 4, 0); k<<<1, 1>>>(); }\n",
            ("cudaHostRegister: memory of the host's that a kernel reads", "it came to what is not simulated"),
        ),
    ],
)
def test_what_is_not_here_is_named_with_exit_code_3(text: str, says: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.cu").write_text(text, encoding="utf-8")
    commands()
    done = CliRunner().invoke(app, ["simt", "own.cu"])
    assert done.exit_code == 3, done.output
    assert all(words in done.output for words in says), done.output


ALONE = """#include <GL/gl.h>
struct Cell { int a, b; };
struct Window { GLuint id; };
texture<float, 1> table;
__global__ void shift(float4* p, const Cell* cells, int n) {
    extern __shared__ float4 held[];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    held[threadIdx.x] = p[i%s];
    __syncthreads();
    if (i < n) p[i].x = held[threadIdx.x].x + cells[i].a;
}
__global__ void looked_up(float* o) { o[threadIdx.x] = tex1Dfetch(table, threadIdx.x); }
int main() { Window w; glGenBuffers(1, &w.id); shift<<<8, 128, 128 * sizeof(float4)>>>(nullptr, nullptr, 1024); }
"""


def test_kernels_are_launched_where_no_caller_can_be_made_for_the_functions_that_do(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(
        "#define real float\nstruct Net { real* w; };\n__global__ void scale(real* w, int n) { if (threadIdx.x < n) w[threadIdx.x] *= 2; }\n"
        "void forward(Net net, float* x) { scale<<<1, 64>>>(net.w, 64); }\n"
    )
    source, assumed = program.source_of(path, given=["n=40"])
    run = program.run(source)
    assert assumed == "scale<<<1, 64>>>(w=f32:4096, n=40)" and not run.report.faults and len(run.launches) == 1


@pytest.mark.sampled("simulator")
def test_kernels_alone_are_judged_where_the_host_cannot_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands()
    for more, fault in (("", 0), (" + 40000", 1)):
        Path("own.cu").write_text(ALONE % more, encoding="utf-8")
        done = CliRunner().invoke(app, ["simt", "own.cu"])
        assert done.exit_code == 3, done.output
        assert "its kernels alone are judged, since the program cannot be run: own.cu:1: <GL/gl.h> is not found" in done.output
        assert "shift<<<8, 128, 2048 B shared>>>(p=float4:4096, cells=Cell:4096:zeros, n=1024)" in done.output
        assert "left out, as it does not compile: own.cu:4" in done.output and "looked_up<<<" not in done.output, done.output
        assert ("own.cu:8: out-of-bounds" in done.output) == bool(fault)
        assert f"checked: {'1 fault' if fault else 'no fault'}" in done.output, done.output


def test_a_fault_of_one_function_keeps_no_other_from_being_judged(tmp_path: Path) -> None:
    one = "__global__ void k{0}(float* x, int n) {{ const int i = blockIdx.x * 32 + threadIdx.x; if (i {1} n) x[i] = {0}; }}\n"
    each = 'extern "C" void f{0}(float* x, int n) {{ k{0}<<<(n + 32) / 32, 32>>>(x, n); }}\n'
    path = tmp_path / "own.cu"
    path.write_text("".join((one + each).format(i, "<=" if i in (1, 3) else "<") for i in (1, 2, 3)))
    run = program.run(program.source_of(path)[0])
    assert [x.kernel for x in run.launches] == ["k1", "k2", "k3"] and {(f.line, f.kind) for f in run.report.findings} == {
        (1, "out-of-bounds"), (5, "out-of-bounds")
    }


def test_the_macros_of_a_file_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "own.cuh").write_text("void check(int code, int line);\nint answer();\n")
    (tmp_path / "other.cu").write_text(
        '#include "own.cuh"\n#include <cstdio>\nvoid check(int code, int line) { printf("%d at %d\\n", code, line); }\nint answer() { return 42; }\n'
    )
    (tmp_path / "own.cu").write_text(
        '#include "own.cuh"\n#define check(code) (check(code, __LINE__))\n__global__ void k(int* p) { *p = 1; }\n'
        "int main() { int* p; cudaMalloc(&p, 4); k<<<1, 1>>>(p); cudaFree(p); check(answer()); }\n"
    )
    run = program.run(program.source_of(tmp_path / "own.cu")[0])
    assert run.report.printed == "42 at 4\n" and not run.report.findings


@pytest.mark.sampled("simulator")
def test_a_header_that_is_left_out_is_said_and_no_other_file_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, away = tmp_path / "here" / "a" / "b" / "c", tmp_path / "away"
    here.mkdir(parents=True)
    away.mkdir()
    (away / "secret").write_text("#error secret\n", encoding="utf-8")
    (here / "link.h").symlink_to(away / "secret")
    (here / "table").write_text("1, 2\n", encoding="utf-8")
    monkeypatch.chdir(here)
    text = '#ifndef ONCE\n#define ONCE\n#include "own.cu"\n#include "link.h"\nint t[] = {\n#include "table"\n};\n'
    Path("own.cu").write_text(text + "int main() { return t[1] - 2; }\n#endif\n", encoding="utf-8")
    commands()
    done = CliRunner().invoke(app, ["simt", "own.cu"])
    assert done.exit_code == 0, done.output
    assert 'own.cu:4: "link.h": not found, and left out; -I names the folder of headers' in done.output
    Path("own.cu").write_text(f'#include "{away}/secret"\nint main() {{}}\n', encoding="utf-8")
    done = CliRunner().invoke(app, ["simt", "own.cu"])
    assert done.exit_code == 3 and "is not found" in done.output and "#error" not in done.output


def test_a_source_is_a_file_of_the_length_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.cu").touch()
    os.truncate("own.cu", 8 << 30)
    os.mkfifo("pipe.cu")
    commands()
    for name, says in (("own.cu", "it has 8,589,934,592 bytes; at most 16,777,216 are read"), ("pipe.cu", "pipe.cu is no regular file")):
        monkeypatch.setattr(sys, "argv", ["rooftop", "simt", name])
        done = CliRunner().invoke(app, ["simt", name])
        assert done.exit_code != 0 and says in f"{done.output} {done.exception}"


@pytest.mark.sampled("simulator")
def test_a_fault_of_a_launch_that_is_assumed_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.cu").write_text("__global__ void k(float* x, int n) { x[blockIdx.x * blockDim.x + threadIdx.x + 100 * n] = 1; }\n", encoding="utf-8")
    commands()
    done = CliRunner().invoke(app, ["simt", "own.cu"])
    assert done.exit_code == 3, done.output
    assert "called as assumed (--arg gives others): k<<<4, 256>>>(x=f32:4096, n=1024)" in done.output
    assert "out-of-bounds" in done.output
    assert "its launches are assumed, and what is found may come of that: --kernel, --grid, --block and --arg give the true ones" in done.output


@pytest.mark.sampled("simulator")
def test_a_fault_with_inputs_that_are_assumed_is_one_where_they_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.cu").write_text(
        "__global__ void k(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x * n + n] = 1; }\n"
        'extern "C" void run(float* x, int n) { k<<<1, 64>>>(x, n); }\n', encoding="utf-8",
    )
    commands()
    done = CliRunner().invoke(app, ["simt", "own.cu"])
    assert done.exit_code == 0, "rows of n elements: x has n * n " + done.output
    assert "run(x: 10,000 elements, n = 100)" in done.output
    done = CliRunner().invoke(app, ["simt", "own.cu", "--arg", "n=64"])
    assert done.exit_code == 3, done.output
    assert "its inputs are assumed" in done.output
    done = CliRunner().invoke(app, ["simt", "own.cu", "--arg", "n=64", "--arg", "x=f32:64x64"])
    assert done.exit_code == 1, done.output


@pytest.mark.sampled("simulator")
def test_sizes_that_tiles_divide_are_taken_where_others_have_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.cu").write_text(
        "__global__ void k(float* x) { x[threadIdx.x + blockIdx.x * 64] = 1; }\n"
        'extern "C" void run(float* x, int n) { k<<<(n + 63) / 64, 64>>>(x); }\n', encoding="utf-8",
    )
    commands()
    done = CliRunner().invoke(app, ["simt", "own.cu"])
    assert done.exit_code == 0, done.output
    assert "run(x: 128 elements, n = 128)" in done.output
    assert "the same with sizes that its tiles may not divide, run(x: 1,000 elements, n = 1000), has faults: own.cu:1: out-of-bounds" in done.output


@pytest.mark.sampled("simulator")
def test_a_program_that_reads_its_input_is_given_numbers_or_says_how_to_give_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.cu").write_text(
        "#include <iostream>\n__global__ void k(int* p) { p[threadIdx.x] = 1; }\nint main() {\n    int n = 0, *p;\n    std::cin >> n;\n"
        "    cudaMalloc(&p, 64);\n    k<<<1, 16 / n>>>(p);\n    cudaFree(p);\n    getchar();\n}\n", encoding="utf-8",
    )
    Path("in.txt").write_text("4\n", encoding="utf-8")
    commands()
    done = CliRunner().invoke(app, ["simt", "own.cu"])
    assert done.exit_code == 0 and "k<<<1, 2>>>" in done.output, done.output
    assert "called as assumed (--input gives others): a standard input of the number 8, again and again" in done.output
    Path("choosy.cu").write_text(Path("own.cu").read_text().replace("cudaMalloc", "if (n == 8) return 2;\n    cudaMalloc"), encoding="utf-8")
    done = CliRunner().invoke(app, ["simt", "choosy.cu"])
    assert done.exit_code == 3 and "checked: no fault" in done.output, done.output
    assert "--input FILE gives it" in done.output
    done = CliRunner().invoke(app, ["simt", "own.cu", "--input", "in.txt"])
    assert done.exit_code == 0 and "k<<<1, 4>>>" in done.output, done.output
    assert "--input no.txt: no such file" in str(CliRunner().invoke(app, ["simt", "own.cu", "--input", "no.txt"]).exception)


@pytest.mark.sampled("simulator")
def test_files_of_one_program_may_each_have_a_function_of_one_name(tmp_path: Path) -> None:
    unit = (
        '#include "all.cuh"\nstatic __global__ void set(int* p) {{ *p = {n}; }}\nstatic void go(int* p) {{ set<<<1, 1>>>(p); }}\n'
        "void run{n}(int* p) {{ go(p); }}\n"
    )
    shown = '    cudaMemcpy(&h, p, 4, cudaMemcpyDeviceToHost);\n    printf("%d\\n", h);\n'
    (tmp_path / "all.cuh").write_text("#pragma once\nvoid run1(int*);\nvoid run2(int*);\nextern const int own[2];\n", encoding="utf-8")
    for n in (1, 2):
        more = "const int own[2] = {7, 8};\n" if n == 1 else ""
        (tmp_path / f"unit{n}.cu").write_text(unit.format(n=n) + more, encoding="utf-8")
    (tmp_path / "main.cu").write_text(
        '#include "all.cuh"\n#include <cstdio>\nint main() {\n    int *p, h;\n    cudaMalloc(&p, 4);\n'
        f'    run1(p);\n{shown}    run2(p);\n{shown}    printf("%d\\n", own[1]);\n    cudaFree(p);\n}}\n', encoding="utf-8",
    )
    (tmp_path / "kernels").mkdir()
    for name in ("main.cu", "unit1.cu", "main.cu"):
        run = program.run(program.source_of(tmp_path / name)[0])
        assert run.report.printed.split() == ["1", "2", "8"]
        if name == "unit1.cu":  # and where one of them lies in a folder of its own
            (tmp_path / "unit2.cu").rename(tmp_path / "kernels/unit2.cu")


def test_reads_by_ldmatrix_and_by_wmma_are_alike_before_a_write_of_the_warps(tmp_path: Path) -> None:
    path = tmp_path / "own.cu"
    path.write_text(
        "#include <cuda_fp16.h>\n#include <mma.h>\n__global__ void k(const half* a, half* o) {\n    __shared__ __align__(32) half t[256];\n"
        "    for (int i = threadIdx.x; i < 256; i += 32) t[i] = a[i];\n    __syncwarp();\n    unsigned r0, r1;\n"
        "    const unsigned p = (unsigned)__cvta_generic_to_shared(&t[threadIdx.x % 16 * 16]);\n"
        '    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r0), "=r"(r1) : "r"(p));\n'
        "    for (int i = threadIdx.x; i < 256; i += 32) t[i] = __float2half((float)(r0 & 1));\n    __syncwarp();\n"
        "    nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, half, nvcuda::wmma::row_major> f;\n    nvcuda::wmma::load_matrix_sync(f, t, 16);\n"
        "    for (int i = threadIdx.x; i < 256; i += 32) t[i] = f.x[0];\n    __syncwarp();\n"
        "    t[threadIdx.x] = a[0];\n    asm volatile(\"ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\" : \"=r\"(r0), \"=r\"(r1) : \"r\"(p));\n"
        "    o[threadIdx.x] = __float2half((float)r0);\n}\n", encoding="utf-8",
    )
    last = path.read_text(encoding="utf-8").count("\n") - 2
    source = program.kernel_of(path, (), "k", ["a=f16:256", "o=f16:256"], grid=(1,), block=(32,), shared=0, cooperative=False)
    run = program.run(source)
    assert {(f.line, f.kind) for f in run.report.findings} == {(last - 1, "warp-race"), (last, "warp-race")}, "only what is written and not waited for"


def test_a_variable_that_main_fills_is_named_where_main_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.cu").write_text(
        "__constant__ int n;\n__global__ void k(int* o) { o[0] = n; }\nint main() {\n    int h = 64;\n    cudaMemcpyToSymbol(n, &h, sizeof h);\n}\n",
        encoding="utf-8",
    )
    commands()
    done = CliRunner().invoke(app, ["simt", "own.cu", "--kernel", "k", "--grid", "1", "--block", "1", "--arg", "o=i32:1"])
    assert done.exit_code == 0, done.output
    assert "own.cu:5: main() fills n, and a launch by --kernel does not run main(): n holds what it is declared with" in done.output


def test_a_program_that_takes_long_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(process, "TELL_S", 0.01)
    monkeypatch.setattr(process, "going_on", told.append)
    path = tmp_path / "long.cu"
    main = "float* x; cudaMalloc(&x, 128); cudaMemset(x, 0, 128); k<<<1, 32>>>(x); cudaFree(x); for (volatile long i = 0; i < 200000000; ++i);"
    path.write_text(f"__global__ void k(float* x) {{ x[threadIdx.x] += 1; }}\nint main() {{ {main} }}\n", encoding="utf-8")
    run = program.run(program.source_of(path)[0], mode="count")
    assert run.ended == "returned" and told and told == sorted(told)


def test_what_a_macro_makes_before_main_is_watched(tmp_path: Path) -> None:
    path = tmp_path / "made.cu"
    path.write_text(
        "#include <cstdio>\n__global__ void k(float* x, int n) { if (threadIdx.x <= n) x[threadIdx.x] = 1; }\n"
        "#define RUN(n) void run_##n(float* x) { k < < < 1, \\\n    2 * n > > > (x, n); }\nRUN(32)\n"
        "__global__ void k_a2d(float* x) { x[0] = 1; }\n#define BY(tag) void by_##tag(float* x) { k_##tag##2d<<<1, 1>>>(x); }\nBY(a)\n"
        "int main() { float* x; cudaMalloc(&x, 128); by_a(x); run_32(x); k<<<1, 32>>>(x, 32); cudaFree(x); }\n"
    )
    run = program.run(program.source_of(path)[0])
    assert [(x.line, x.watched) for x in run.launches] == [(8, 1), (5, 1), (9, 1)]
    assert {(f.kind, f.line) for f in run.report.findings} == {("out-of-bounds", 2)}


def test_launches_that_cannot_be_watched_are_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.cu").write_text("__global__ void k(int* x) { x[0] = 1; }\nint main() { int* x; cudaMalloc(&x, 4); k<<<1, 1>>>(x); cudaFree(x); }\n")
    monkeypatch.setattr(program_build, "_matched", lambda nm, library: [])
    commands()
    done = CliRunner().invoke(app, ["simt", "own.cu"])
    assert done.exit_code == 3 and "1 of its launches could not be watched: own.cu:2: k<<<1, 1>>>" in done.output, done.output


@pytest.mark.sampled("simulator")
def test_when_time_is_over_launches_that_were_watched_are_left_out(tmp_path: Path) -> None:
    text = (
        "#include <cassert>\n#include <cstdio>\n__global__ void k(int* x, int n) { for (int i = 0; i < 40000; ++i) x[threadIdx.x] += n; }\n"
        "__global__ void other(int* x) { x[threadIdx.x] = 1; }\n"
        "int main() { int* x; int sum; cudaMalloc(&x, 128); cudaMemset(x, 0, 128); for (int i = 0; i < 30000; ++i) k<<<1, 32>>>(x, 1);\n"
        "cudaMemcpy(&sum, x, 4, cudaMemcpyDeviceToHost); assert(sum == 1200000000); MORE cudaFree(x); puts(\"the end\"); }\n"
    )
    path = tmp_path / "long.cu"
    path.write_text(text.replace("MORE", ""))
    run = program.run(program.source_of(path)[0], budget=0.5, most=2.0)
    assert 1 < run.cut < 30000 and not run.over and [f.kind for f in run.report.findings] in ([], ["leak"]), run.report.findings
    assert [(x.watched, x.times) for x in run.launches] == [(1, 30000)]
    path.write_text(text.replace("MORE", "other<<<1, 32>>>(x);").replace("assert(sum", "(void)(sum"))
    run = program.run(program.source_of(path)[0], budget=0.5, most=2.0)
    assert run.cut and not run.over and [x.watched for x in run.launches] == [1, 1], "a kernel that nobody has watched is not left out"
