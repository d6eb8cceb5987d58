"""Programs that run as they are: each file of programs/ says what it prints, with which arguments, and where faults are to be found (`// BUG: kind`)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rooftop.lab import simt
from rooftop.lab.cli import commands
from rooftop.lab.cli.app import app
from rooftop.lab.simt import program
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


def test_a_program_without_its_arguments_says_how_to_give_them() -> None:
    commands()
    done = CliRunner().invoke(app, ["simt", str(FOLDER / "vector_add.cu")])
    assert done.exit_code == 3
    assert "--args" in done.output


def test_what_the_host_may_not_do_is_contained_and_named(tmp_path: Path) -> None:
    path = tmp_path / "reads.cu"
    path.write_text(
        '#include <cstdio>\n#include <cstdlib>\n#include <fstream>\n__global__ void k() {}\nint main() {\n'
        '    if (!fopen("/etc/hostname", "r")) puts("no file");\n    std::ofstream("/tmp/written-by-a-program") << 1;\n'
        '    system("true");\n    k<<<1, 1>>>();\n    return 0;\n}\n', encoding="utf-8",
    )  # fmt: skip
    run = program.run(program.source_of(path)[0])
    assert "no file" in run.report.printed
    assert any("opens the file /etc/hostname" in d for d in run.denied)
    assert any("runs the command true" in d for d in run.denied)
    assert not Path("/tmp/written-by-a-program").exists()


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
    path.write_text("__global__ void scale(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"has no main\(\).*--kernel.*scale\(float\* x, int n\)"):
        program.source_of(path)


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
    ],
)
def test_what_is_not_here_is_named_with_exit_code_3(text: str, says: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.cu").write_text(text, encoding="utf-8")
    commands()
    done = CliRunner().invoke(app, ["simt", "own.cu"])
    assert done.exit_code == 3, done.output
    assert all(words in done.output for words in says), done.output
