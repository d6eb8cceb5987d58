"""Submissions in CUDA C++ without a GPU: in the simulator, whose process keeps them from everything (docs/trust.md)."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.compile import CompileError
from rooftop.core.contract import Contract
from rooftop.core.implementation import device_of
from rooftop.core.spec import DTYPES, Case, dtype_of
from rooftop.lab.candidates import Subject
from rooftop.lab.check import checker
from rooftop.lab.judge import sizes
from rooftop.lab.judge.forms import Submission, SubmissionError
from rooftop.lab.judge.python import Outcome, wrongly
from rooftop.lab.judge.tasks import Call, OpTask, Task
from rooftop.lab.simt import program, program_build, program_caller
from rooftop.lab.simt.process import SimulatedCrash

if TYPE_CHECKING:
    from rooftop.lab.simt.report import Report

TYPES = {
    "float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16", "int": "i32",
    "int32_t": "i32", "long long": "i64", "int64_t": "i64", "char": "i8", "signed char": "i8", "int8_t": "i8", "unsigned char": "u8",
    "uint8_t": "u8", "bool": "bool",
}
FAULTS = {
    "shared-race": "race", "warp-race": "race", "global-race": "race", "missing-wait": "race", "out-of-bounds": "beyond",
    "misaligned": "fault", "uninitialised": "unwritten", "deadlock": "stuck", "barrier-divergence": "stuck", "not-simulated": "not judged",
}
SMALL = 1 << 15  # elements of a case, where there are such
EDGE = 2  # edge cases of the contract beside the hidden ones
MOST_SECONDS = 15.0  # of one run of a program
_FROM_DEVICE = re.compile(
    r"cudaMemcpy\w*\s*\([^;]*(?:cudaMemcpyDeviceToHost|cudaMemcpyDefault)|cudaMemcpyFromSymbol|\bthrust::host_vector"
    r"|cudaMallocManaged|cudaHostAlloc"
)


# -- a file with a head ----------------------------------------------------------------------------------------------


def of_head(
    submission: Submission, task: OpTask, dtype: str | None, place: Path | None = None, backend: str = "cpu"
) -> tuple[Outcome, Subject]:
    """Judge a kernel with a head at hidden sizes and edge cases of the op. `place`: the file whose folder its includes are looked up in."""
    implementation = CudaImplementation((place or submission.path).resolve(), task.op.name, submission.path.stem, text=submission.text)
    subject = Subject(submission.path.stem, task.op, implementation)
    if implementation.head.op not in (None, task.name):
        raise SubmissionError(f"{submission.path}: its head names the op {implementation.head.op}, and --op says {task.name}")
    where, reason = checker.backend_of(subject, backend)
    if where == "none" or reason:
        return Outcome("not judged", reason or "it needs a GPU"), subject
    cases = hidden(subject, task, dtype, backend)
    if not cases:
        return Outcome("not judged", f"{submission.path.name} takes no case of {task.name} that is small enough"), subject
    for n, case in enumerate(cases, 1):
        result = checker.check(subject, case, backend=backend, seed=secrets.randbits(31))
        if result.status != "ok":
            return Outcome(
                kind_of(result.status, result.message), f"{case.id}: {' '.join(result.message.split())[:400]}", trials=n
            ), subject
    return Outcome("right", trials=len(cases)), subject


def hidden(subject: Subject, task: OpTask, dtype: str | None, backend: str = "cpu") -> list[Case]:
    """Three cases of sizes drawn now and some of the contract's edge cases, those that the kernel takes. A kernel that takes fixed sizes
    has its own."""
    assert subject.implementation is not None
    device = subject.implementation.stand_in(90) if backend == "cpu" else device_of(0)
    where, reason = checker.backend_of(subject, backend)

    def takes(case: Case) -> bool:
        try:
            return checker.left_out(subject, case, where, device, reason) is None
        except Exception:
            return False

    able = [c for c in subject.op.cases if dtype in (None, c.dtype) and "huge" not in c.tags and _elements(c) and takes(c)]
    small = [c for c in able if _elements(c) <= SMALL] or sorted(able, key=_elements)[:3]
    ordinary = [c for c in small if all(v.fill == "normal" or v.fill.startswith("below ") for _, v in c.tensors())]
    task.draw.shuffle(ordinary)
    drawn: list[Case] = []
    for base in ordinary[:6]:
        for _ in range(6):
            if len(drawn) < 3 and (case := task.hidden(base)) is not base and takes(case):
                drawn.append(case)
                break
    edge = [c for c in small if c not in ordinary] or ordinary
    task.draw.shuffle(edge)
    return [*drawn, *edge[: EDGE if drawn else EDGE + 3]]


def _elements(case: Case) -> int:
    return sum(prod(v.shape) for _, v in case.tensors())


def kind_of(status: str, message: str) -> str:
    """The kind of a verdict by what a check found."""
    if status == "skipped":
        return "not judged"
    fault = next((kind for name, kind in FAULTS.items() if f": {name}: " in message), None)
    if fault:
        return fault
    if status == "error":
        kind_of_error = "broken" if message.startswith(("CompileError", "HeadError", "ExpressionError", "LaunchError")) else "raises"
        return kind_of_error if (crash := _crash(message)) == "wrong" else crash
    if "differ between two runs" in message:
        return "race"
    if "the input" in message and "was written" in message:
        return "input changed"
    return "beyond" if "outside" in message or "guard" in message else _crash(message) if "simulation" in message else "wrong"


def _crash(message: str) -> str:
    signs = {
        "ROOFTOP_SIMT_SECONDS": "stuck", "ROOFTOP_STEP_SECONDS": "stuck", "had not ended": "stuck", "ROOFTOP_SIMT_MIB": "memory",
        "threads and was ended": "processes", "cannot be read": "forged", "answers": "forged", "ends the process": "ended",
        "crashed": "fault",
    }
    return next((kind for sign, kind in signs.items() if sign in message), "wrong")


# -- solve() ---------------------------------------------------------------------------------------------------------

_MAIN = """
namespace simt_judge {{
inline int digit(char c) {{ return c <= '9' ? c - '0' : c - 'a' + 10; }}
inline void put(void* to, const char* hex) {{
    std::vector<unsigned char> bytes(std::strlen(hex) / 2);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(digit(hex[2 * i]) * 16 + digit(hex[2 * i + 1]));
    cudaMemcpy(to, bytes.data(), bytes.size(), cudaMemcpyHostToDevice);
}}
inline void show(const char* marker, int set, const char* name, const void* from, size_t n) {{
    std::vector<unsigned char> bytes(n);
    cudaMemcpy(bytes.data(), from, n, cudaMemcpyDeviceToHost);
    std::string text;
    for (const unsigned char b : bytes) text += "0123456789abcdef"[b >> 4], text += "0123456789abcdef"[b & 15];
    std::cout << marker << ' ' << set << ' ' << name << ' ' << text << std::endl;
}}
}}
SIMT_MAIN int main(int argc, char** argv) {{
    const int sets = std::atoi(argv[2]);
    (void)argc;
{allocate}
    for (int set = 0; set < (sets ? sets : 1); ++set) {{
        char** given = argv + {fixed} + set * {pointers};
        if (sets) {{
{put}
        }}
        solve({call});
        cudaDeviceSynchronize();
        if (sets) {{
{show}
        }}
    }}
{free}
    return 0;
}}
"""


@dataclass(frozen=True)
class Solve:
    """The program that calls a submission's `solve`: pointers and numbers come by its arguments, memory is shown after each call."""

    source: program_build.Source
    pointers: tuple[str, ...]
    dtypes: tuple[str, ...]
    written: tuple[bool, ...]  # whether a pointer is not to const
    numbers: tuple[str, ...]  # C types of the parameters that are no pointers


def solve_of(submission: Submission) -> Solve:
    """Raises SubmissionError for parameters that nothing can be passed for."""
    assert submission.solve is not None
    pointers: list[str] = []
    dtypes, written, numbers, call = list[str](), list[bool](), list[str](), list[str]()
    for p in submission.solve.parameters:
        text = re.sub(r"\b__restrict(?:__)?\b", "", p.text)
        plain = re.sub(r"\bconst\b|[*&]|\[\d*\]", "", text).strip()
        if p.pointer:
            if plain not in TYPES or text.count("*") > 1:
                raise SubmissionError(
                    f"{submission.path}:{submission.solve.line}: solve takes {p.text} {p.name}; pointers to {', '.join(TYPES)} are accepted"
                )
            pointers.append(p.name)
            dtypes.append(TYPES[plain])
            written.append("const" not in text)
            call.append(p.name)
        elif re.fullmatch(r"(?:unsigned |signed )?(?:int|long|long long|short|size_t|u?int\d+_t|float|double|bool|unsigned)", plain):
            call.append(
                f"static_cast<{plain}>({'std::atof' if plain in ('float', 'double') else 'std::atoll'}(argv[{{number{len(numbers)}}}]))"
            )
            numbers.append(plain)
        else:
            raise SubmissionError(
                f"{submission.path}:{submission.solve.line}: solve takes {p.text} {p.name}; pointers and numbers are accepted"
            )
    first = 3 + len(pointers)  # of the numbers: before them the program's name, the marker, the sets and the pointers' bytes
    types = {
        n: re.sub(r"\bconst\b|\*|\[\d*\]|\b__restrict(?:__)?\b", "", p.text).strip()
        for n, p in zip(pointers, [p for p in submission.solve.parameters if p.pointer], strict=True)
    }
    sizes = {n: f"std::strtoull(argv[{3 + i}], nullptr, 10)" for i, n in enumerate(pointers)}
    added = _MAIN.format(
        fixed=first + len(numbers), pointers=len(pointers),
        call=", ".join(call).format(**{f"number{i}": first + i for i in range(len(numbers))}),
        allocate="\n".join(f"    {types[n]}* {n}; cudaMalloc(&{n}, {sizes[n]});" for n in pointers),
        put="\n".join(f"        simt_judge::put({n}, given[{i}]);" for i, n in enumerate(pointers)),
        show="\n".join(f'        simt_judge::show(argv[1], set, "{n}", {n}, {sizes[n]});' for n in pointers),
        free="\n".join(f"    cudaFree({n});" for n in pointers),
    )
    head = "#include <cstdlib>\n#include <cstring>\n#include <iostream>\n#include <string>\n#include <vector>\n"
    source = program_build.read(submission.path, (), submission.text)
    if source.missing or program_build.has_main(source):
        what = f"includes {source.missing[0]}, which is not here" if source.missing else "has a main() beside solve(): hand in one of them"
        raise SubmissionError(f"{submission.path} {what}")
    return Solve(replace(source, added=head + added), tuple(pointers), tuple(dtypes), tuple(written), tuple(numbers))


def of_solve(submission: Submission, task: Task) -> tuple[Outcome, Solve, str]:
    """Judge a `solve` at hidden calls: what came of it, its program, and the rule that its sizes follow."""
    solve = solve_of(submission)
    if _FROM_DEVICE.search(submission.text):
        return (
            Outcome(
                "host work",
                f"{submission.path.name} copies memory of the device to the host, or shares it: a solve() launches kernels alone",
            ),
            solve,
            "",
        )
    rules: list[str] = []  # what its sizes may follow, likely ones first: several, while all calls so far have the same sizes by them
    trials, failed, last = 0, Outcome("raises", ""), None
    for group in _groups(task, solve):
        outcomes: dict[tuple[Any, ...], Outcome] = {}
        counts = sizes.numbers_of(solve.numbers, group[0])
        for numbers in dict.fromkeys(counts[r] for r in rules or counts if r in counts):
            outcomes[numbers] = outcome = _run(solve, group, numbers)
            if outcome.kind == "right":
                rules = [r for r in rules or counts if counts.get(r) == numbers]
                trials, last = trials + len(group), group[0]
                break
            if outcome.kind not in ("wrong", "unwritten", "beyond", "replay", "raises"):  # whatever the sizes are
                return replace(outcome, trials=trials + 1), solve, ""
            failed = failed if failed.said else outcome
        else:
            # a solve of one row, say, need not take a matrix whose sizes not every rule gives
            if outcomes and (all(r in counts for r in rules) if rules else not isinstance(task, OpTask)):
                return replace(failed, trials=trials + 1), solve, ""
    if not rules:
        if not failed.said:
            failed = Outcome(
                "raises", f"{submission.solve} has another signature: {task.name} needs its tensors, its outputs and sizes, in this order"
            )
        return replace(failed, trials=1), solve, ""
    if isinstance(task, OpTask):
        for group in islice(_deciding(task, solve, rules), 3):
            counts = sizes.numbers_of(solve.numbers, group[0])
            right = next((s for s in dict.fromkeys(counts[r] for r in rules if r in counts) if _run(solve, group, s).kind == "right"), None)
            if right is not None:
                rules, trials, last = [r for r in rules if counts.get(r) == right], trials + len(group), group[0]
                break
    assert last is not None
    return Outcome("right", trials=trials), solve, sizes.placed(rules[0], last)


def _deciding(task: OpTask, solve: Solve, rules: Sequence[str]) -> Iterator[list[Call]]:
    """Calls whose sizes by these rules differ, a few: of a vector alone `N` may be its elements or its last size. A solve need not take
    them."""
    for base in [c for n in range(1, len(solve.pointers) + 1) for c in _plain(task, solve, n)][:40]:
        if len(rules) > 1 and fits(solve, task.op, base):
            group = task.group(task.hidden(base))
            numbers = sizes.numbers_of(solve.numbers, group[0])
            if len({numbers[r] for r in rules if r in numbers}) > 1:
                yield group


def _plain(task: OpTask, solve: Solve, tensors: int) -> list[Case]:
    """Cases of so many tensors in plain layouts, those whose sizes are as many as the solve's numbers first."""
    try:
        bases = task.plain(solve.dtypes[0], tensors)
    except ValueError:
        return []
    return sorted(bases, key=lambda c: abs(len({e for _, v in c.tensors() for e in v.shape}) - len(solve.numbers)))


def _groups(task: Task, solve: Solve) -> Iterator[list[Call]]:
    """Calls with as many pointers of these types. Several ranks are tried, until one is right; then sizes are drawn anew for it."""
    if not isinstance(task, OpTask):
        yield from task.groups(None, 3)
        return
    count = 0
    for tensors in range(1, len(solve.pointers) + 1):
        for base in _plain(task, solve, tensors)[:4]:
            group = task.group(task.hidden(base))
            if fits(solve, task.op, base):
                count += 1
                yield group
                yield task.group(task.hidden(base))
    if not count:
        kinds = ", ".join(f"{d} {n}" for n, d in zip(solve.pointers, solve.dtypes, strict=True))
        raise SubmissionError(f"solve has the pointers {kinds}: {task.name} has no case of such tensors and outputs in plain layouts")


def fits(solve: Solve, op: Contract, case: Case) -> bool:
    """Whether the pointers of a solve are the tensors and outputs of a case, in order."""
    problem, dtypes = op.problem(case), [v.dtype for _, v in case.tensors()]
    kinds = [*dtypes, *(m.dtype for n in op.output_names if (m := problem.get(n)) is not None)]
    return kinds == list(solve.dtypes) and all(solve.written[len(dtypes) :])


def _run(solve: Solve, group: Sequence[Call], numbers: Sequence[Any]) -> Outcome:
    marker = secrets.token_hex(12)
    try:
        ran = program.run(solve.source, arguments_of(solve, group, numbers, marker), seed=secrets.randbits(20), most=MOST_SECONDS)
    except CompileError as error:
        text = " ".join(str(error).split())[:300]
        return Outcome("stuck" if "_SECONDS" in text else "broken", text)
    except SimulatedCrash as error:
        return Outcome(_crash(str(error)), str(error))
    for f in (f for f in ran.report.findings if f.kind != "leak"):
        return Outcome(FAULTS.get(f.kind, "fault"), str(f))
    if ran.over or ran.cut:
        return Outcome("stuck", f"{len(group)} calls did not end in {MOST_SECONDS:.0f} s in the simulator")
    if ran.denied:
        return Outcome("denied", f"it wanted {'; '.join(ran.denied[:2])}")
    if ran.ended != "returned":
        return Outcome("ended", f"it ended by {ran.ended} ({ran.status}) before it was through")
    if not ran.launches:
        return Outcome("host work", "solve() launches no kernel")
    return _judged(solve, group, ran.report.printed, marker)


def arguments_of(solve: Solve, group: Sequence[Call], numbers: Sequence[Any], marker: str) -> list[str]:
    """Of the program: the marker, how many sets, the bytes of each pointer, the numbers, then each set's contents."""
    first = group[0]
    bytes_of = [t.numel() * t.element_size() for t in first.tensors.values()] + [
        prod(s) * DTYPES[d].bytes for s, d in first.outputs.values()
    ]
    contents = []
    for call in group:
        contents += [_hex(t) for t in call.tensors.values()] + ["ff" * n for n in bytes_of[len(call.tensors) :]]
    return [marker, str(len(group)), *map(str, bytes_of), *(repr(n) if isinstance(n, float) else str(int(n)) for n in numbers), *contents]


def _hex(tensor: Any) -> str:
    import torch

    return str(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex())


def _judged(solve: Solve, group: Sequence[Call], printed: str, marker: str) -> Outcome:
    import torch

    shown: dict[tuple[int, str], str] = {}
    for line in printed.splitlines():
        words = line.split(" ")
        if len(words) == 4 and words[0] == marker and words[1].isdigit() and (int(words[1]), words[2]) not in shown:
            shown[int(words[1]), words[2]] = words[3]
    names = dict(zip(solve.pointers, [*group[0].tensors, *group[0].outputs], strict=True))
    earlier: list[Call] = []
    for i, call in enumerate(group):
        outputs: dict[str, Any] = {}
        for pointer, name in names.items():
            shape, dtype = (
                call.outputs[name] if name in call.outputs else (tuple(call.tensors[name].shape), dtype_of(call.tensors[name].dtype))
            )
            try:
                held = bytearray.fromhex(shown[i, pointer])
                outputs[name] = torch.frombuffer(held, dtype=torch.uint8).view(getattr(torch, DTYPES[dtype].torch)).reshape(shape)
            except (KeyError, ValueError, RuntimeError):
                return Outcome("forged", f"{pointer} of call {i + 1} is not shown as it must be")
        for name, t in call.tensors.items():
            if name not in call.mutates and not torch.equal(
                outputs.pop(name).reshape(-1).view(torch.uint8), t.contiguous().reshape(-1).view(torch.uint8)
            ):
                return Outcome("input changed", f"the input {name} was written")
        if said := call.wrong(outputs):
            return Outcome(wrongly(call, outputs, earlier), f"{call.name}: {said}")
        earlier.append(call)
    return Outcome("right")


def counted(solve: Solve, call: Call, numbers: Sequence[Any]) -> Report:
    """The counts of one call."""
    return program.run(
        solve.source, arguments_of(solve, [call], numbers, secrets.token_hex(12)), mode="count", blocks=64, most=MOST_SECONDS
    ).report


# -- CUDA C++ in a Python file ---------------------------------------------------------------------------------------


def of_inline(submission: Submission, task: Task) -> Outcome:
    """Judge the function of torch's tensors in the sources that a file gives to load_inline: the file is read, not run. Its inputs are
    drawn there, shown, and judged here."""
    from rooftop.lab.check import like as likes
    from rooftop.lab.simt import in_python

    paths = in_python.sources(submission.path)
    if not paths:
        raise SubmissionError(f"{submission.path} gives load_inline no CUDA source that its text says")
    if not isinstance(task, OpTask):
        raise SubmissionError(f"{submission.path}: load_inline sources are judged by an op: --op NAME")
    source, trials = program_build.read(paths[0]), 0
    for group in task.groups(None, 2):
        call = group[0]
        names = list(call.tensors)
        candidates = [f for f in program_caller.torch_functions(source.texts[source.shown]) if len(f.parameters) == len(names)]
        if not candidates or not all("Tensor" in p.text for p in candidates[0].parameters):
            return Outcome("raises", f"no function of its sources takes {len(names)} tensors alone, as {task.name} does")
        marker, seed = secrets.token_hex(8), secrets.randbits(20)
        lines = [f'simt::shown_by = "{marker}"; std::cout << "{marker} call {candidates[0].name}" << std::endl;']
        for i, t in enumerate(call.tensors.values()):
            kind, shape = program_caller.TYPES[dtype_of(t.dtype)], ", ".join(map(str, t.shape))
            lines.append(f'auto t{i} = simt::made_tensor(torch::{kind}, {{{shape}}}, {seed + i}); simt::shown("before", {i}, t{i});')
        lines.append(f"simt::shown_result({candidates[0].name}({', '.join(f't{i}' for i in range(len(names)))})); cudaDeviceSynchronize();")
        added = "SIMT_MAIN int main() {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
        try:
            ran = program.run(replace(source, added=added), most=MOST_SECONDS)
        except (CompileError, SimulatedCrash) as error:
            return Outcome("broken" if isinstance(error, CompileError) else _crash(str(error)), " ".join(str(error).split())[:300])
        for f in ran.report.findings:
            return Outcome(FAULTS.get(f.kind, "fault"), str(f), trials=trials + 1)
        shown = [c for c in likes._calls(ran.report.printed, marker) if c[3]]
        if not shown:
            return Outcome("raises", f"{candidates[0].name} came to no result at {call.name}", trials=trials + 1)
        _, before, _, outs = shown[0]
        inputs = {n: before[f"tensor{i}"] for i, n in enumerate(names)}
        assert call.case is not None
        again = task.call(call.case, {**dict.fromkeys(task.op.tensor_names), **inputs}, task.op.options(call.case))
        outputs = dict(zip(again.outputs, outs.values(), strict=False))
        if [tuple(t.shape) for t in outputs.values()] != [s for s, _ in again.outputs.values()]:
            return Outcome("shape", f"{candidates[0].name} returns {[tuple(t.shape) for t in outs.values()]}", trials=trials + 1)
        if said := again.wrong(outputs):
            return Outcome("wrong", f"{call.name}: {said}", trials=trials + 1)
        trials += 1
    return Outcome("right", trials=trials)
