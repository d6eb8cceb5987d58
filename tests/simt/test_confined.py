"""Simulated code that is no kernel's: what it may do to the machine it runs on (docs/trust.md)."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from _support import command, flat

from rooftop.core import compile, sandbox, settings
from rooftop.lab import doctor, simt
from rooftop.lab.fuzz import calls
from rooftop.lab.fuzz.calls import CALLS, LAST, PAST_FILTERS
from rooftop.lab.simt import build, native, process

SOURCE = """
extern "C" {{
int system(const char*); int open(const char*, int, ...); long read(int, void*, unsigned long); int socket(int, int, int); int fork(); int kill(int, int);
int getppid(); char* getenv(const char*);
void* mmap(void*, unsigned long, int, int, int, long); void _exit(int); void abort();
void* malloc(unsigned long); void* memset(void*, int, unsigned long); int unlink(const char*);
}}
__global__ void k(int* y) {{
    {body}
}}
"""
x86 = pytest.mark.skipif(platform.machine() != "x86_64" or not sandbox.filterable(), reason="the numbers of calls are x86-64's")
confined = pytest.mark.skipif(bool(sandbox.missing()), reason=f"not here: {', '.join(sandbox.missing())}")


def made_before(source: str) -> None:
    """Build a source, so that limits are those of its run alone."""
    build.build(source, path="kernel.cu", kernels=["k"], mode="check")


def run(*bodies: str) -> int | list[int]:
    """What `y[0]` is behind it; of several, what the numbers of `y` are, one each."""
    y = torch.zeros(len(bodies), dtype=torch.int32)
    report = simt.simulate(SOURCE.format(body=" ".join(bodies)), "k", {"y": y}, grid=(1,), block=(1,), arguments=[("y", "ptr")])
    assert report.clean, report.findings
    return [int(v) for v in y] if len(bodies) > 1 else int(y[0])


def called(body: str, results: int) -> list[int]:
    """What the numbers of `y` are after `body`: error numbers, 0 where a call was answered."""
    y = torch.zeros(results, dtype=torch.int32)
    report = simt.simulate(CALLS.format(body=body), "k", {"y": y}, grid=(1,), block=(1,), arguments=[("y", "ptr")])
    assert report.clean, report.findings
    return [int(v) for v in y]


@confined
def test_no_file_no_network_no_program_no_other_process(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("secret", encoding="utf-8")
    made = tmp_path / "made"
    tried = (
        f'open("{mine}", 0)', 'open("/etc/passwd", 0)', f'open("{made}", 0101, 0644)', f'unlink("{mine}")', "socket(2, 1, 0)", "socket(1, 1, 0)", "fork()",
        "kill(getppid(), 0)", f'-(system("touch {made}") != 0)',
    )
    assert run(*(f"y[{i}] = {call};" for i, call in enumerate(tried))) == [-1] * len(tried)
    assert mine.read_text(encoding="utf-8") == "secret" and not made.exists()


def built(text: str) -> None:
    """A kernel behind `text` is built and run."""
    source = f"{text}\n__global__ void k(int* y) {{ y[0] = 1; }}"
    simt.simulate(source, "k", {"y": torch.zeros(1)}, grid=(1,), block=(1,), arguments=[("y", "ptr")])


@confined
@pytest.mark.parametrize("line", ['#include "{}"', '\f#inc\\\nlude "{}"', '#define F "{}"\n#include F',
                                  '__attribute__((section(".x\\n.incbin \\"{}\\"\\n.text #"))) int q = 1;'])
def test_neither_compiler_nor_assembler_reads_other_files(line: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.h"
    mine.write_text("int secret = 7;\n", encoding="utf-8")
    with pytest.raises(compile.CompileError) as error:
        built(line.format(mine))
    assert "secret" not in str(error.value)


@confined
def test_a_tool_reaches_no_network(tmp_path: Path) -> None:
    code = "import socket, sys; s = socket.socket(); s.settimeout(5); print(s.connect_ex(('127.0.0.1', int(sys.argv[1]))))"
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        words = [sys.executable, "-S", "-c", code, str(server.getsockname()[1])]
        open_ = subprocess.run(words, capture_output=True, text=True, check=True)
        asked = sandbox.tool(words, readable=[Path(sys.base_prefix), Path(sys.prefix)], writable=[tmp_path], seconds=20, memory=4 << 30)
        kept = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert open_.stdout.strip() == "0" and kept.stdout.strip() != "0", kept
    assert kept.stdout.strip() or "PermissionError" in kept.stderr or "not permitted" in kept.stderr, kept


def test_a_file_that_the_key_does_not_cover_is_refused_by_what_the_compiler_says_it_read() -> None:
    """A file of the system's is open to it, and no header of it."""
    there = next((p for p in Path("/usr/lib").rglob("*.py") if " " not in str(p) and not p.read_text(encoding="utf-8", errors="replace").strip()), None)
    if there is None:
        pytest.skip("no empty file in /usr/lib")
    with pytest.raises(compile.CompileError, match=rf"includes {re.escape(str(there.resolve()))}, which is no header"):
        built(f'#include "{there}"')


def test_a_compilation_that_takes_too_long_or_too_much_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = "constexpr long f(long n) { long s = 0; for (long i = 0; i < n; ++i) s += i; return s; }"
    many = " ".join(f"static constexpr long q{i} = f(200000{i});" for i in range(40))
    monkeypatch.setenv("ROOFTOP_SIMT_SECONDS", "1")
    with pytest.raises(compile.CompileError, match=r"1 s of CPU time.*ROOFTOP_SIMT_SECONDS"):
        built(f"{sums} {many}")
    assert not list((settings.load().cache / "simt").glob(f"*/tmp-of-{os.getpid()}-*"))


def test_a_compiler_ends_with_a_command_that_is_killed(tmp_path: Path) -> None:
    """At once: the driver, and the compiler that it has started."""
    words = "from rooftop.core import sandbox; import subprocess, sys; subprocess.run(sandbox.tool(sys.argv[1:], readable=[{0!r}], writable=[{0!r}], **{1}))"
    (tmp_path / "long.cpp").write_text(LONG, encoding="utf-8")
    compiler = [str(build.compiler().path), "-fconstexpr-ops-limit=100000000000", "-fconstexpr-loop-limit=2000000000", "-c", "long.cpp"]
    own = settings.environment({"PYTHONPATH": settings.python_path(), "TMPDIR": str(tmp_path)})
    code = words.format(str(tmp_path), {"seconds": 60, "memory": 8 << 30})
    with subprocess.Popen([sys.executable, "-c", code, *compiler], cwd=tmp_path, env=own) as killed:
        started: set[int] = set()

        def compiles() -> bool:
            parents = _parents()
            started.update({killed.pid})
            while more := {p for p, above in parents.items() if above in started} - started:
                started.update(more)
            return any("cc1plus" in _said(p) or "-cc1" in _said(p) for p in started)

        _until(compiles)
        killed.kill()
        killed.wait()
        _until(lambda: not started & set(_parents()), tries=30)


LONG = "constexpr long f(long n) { long s = 0; for (long i = 0; i < n; ++i) s += i; return s; } static_assert(f(1000000000) > 0);"


def _said(pid: int) -> str:
    """The command line of a process; empty where there is none."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("body", "says"), [("abort();", "SIGABRT"), ("_exit(3);", "exit code 3"), ("_exit(0);", "exit code 0")], ids=["abort", "exit", "exit-0"],
)
def test_an_end_of_the_process_is_named(body: str, says: str) -> None:
    with pytest.raises(simt.SimulatedCrash, match=says):
        run(body)


def test_what_would_run_before_the_kernel_ends_in_an_error_not_in_this_process() -> None:
    """The loader calls the resolver of an indirect function when it loads the library: no kernel runs then."""
    source = """
extern "C" void abort();
extern "C" __attribute__((used)) void (*resolved())() { abort(); return 0; }
extern "C" __attribute__((ifunc("resolved"))) void indirect();
__device__ void (*kept)() = indirect;
__global__ void k(int* y) { if (y[0] == 7) kept(); }
"""
    with pytest.raises((simt.SimulatedCrash, OSError, ValueError)):
        simt.simulate(source, "k", {"y": torch.zeros(1, dtype=torch.int32)}, grid=(1,), block=(1,), arguments=[("y", "ptr")])


def test_memory_and_time_are_bounded_and_so_is_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_SIMT_MIB", "1024")
    with pytest.raises(simt.SimulatedCrash, match=r"more than 1024 MiB of memory \(ROOFTOP_SIMT_MIB\)"):
        run("for (int i = 0; i < 3000; ++i) memset(malloc(1 << 20), 1, 1 << 20);")
    endless = "for (long i = 0; i < 1l << 34; ++i) if (i % 3 == 1) y[0] = i;"
    waits = "int here = 0; y[0] = made(202, (long)&here, 0, 0, 0, 0, 0);"
    made_before(SOURCE.format(body=endless))
    made_before(CALLS.format(body=waits))
    monkeypatch.setenv("ROOFTOP_SIMT_SECONDS", "1")
    with ThreadPoolExecutor(1) as beside:
        ended = beside.submit(called, waits, 1) if platform.machine() == "x86_64" and sandbox.filterable() else None
        with pytest.raises(simt.SimulatedCrash, match=r"more than 1 s of CPU time \(ROOFTOP_SIMT_SECONDS\)"):
            run(endless)
        if ended is not None:  # who waits for ever
            said = r"had not ended after 6 s and was ended: it may take 1 s of CPU time \(ROOFTOP_SIMT_SECONDS\)"
            with pytest.raises(simt.SimulatedCrash, match=said):
                ended.result()


def test_the_environment_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "1")
    process._stop(os.getpid())  # the next one begins with the variable set here
    body = 'y[0] = (getenv("SECRET_OF_MINE") != 0) + 2 * (getenv("PATH") != 0);'
    assert run(body) == 2


def test_pages_that_leave_the_resident_set_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared ones are not given at all, and of its own those in the swap count."""
    monkeypatch.setenv("ROOFTOP_SIMT_MIB", "512")
    body = "y[0] = mmap(0, 1 << 20, 3, 0x21, -1, 0) == reinterpret_cast<void*>(-1l);"
    assert run(body) == 1


@pytest.mark.parametrize(
    ("header", "rest"),
    [(b"[" * 100000, b""), (b"nonsense", b""), (b"[]", b""), (b"{}", b""), (b'{"blobs": [-1, 0, 1]}', b""), (b'{"parameters": 3}', b""),
     (b'{"ran": 1, "total": 1, "threads": 1, "status": 0, "fma": 0, "other": 0, "printed": "", "blobs": [424, 0, 0]}', b"\xff" * 424),
     (b'{"ran": "1", "total": 1, "threads": 1, "status": 0, "fma": 0, "other": 0, "printed": "", "blobs": [0, 0, 0]}', b"")],
    ids=["deep", "no JSON", "a list", "empty", "negative", "of another kind", "no finding", "a text"],
)
def test_an_answer_that_is_written_in_its_place_is_an_end_too(header: bytes, rest: bytes) -> None:
    message = b"A" + struct.pack("QQ", len(header), len(rest)) + header + rest
    assert len(rest) in (0, ctypes.sizeof(native.RawFinding))
    y = torch.zeros(len(message), dtype=torch.uint8)
    y.copy_(torch.frombuffer(bytearray(message), dtype=torch.uint8))
    source = """extern "C" { long write(int, const void*, unsigned long); void _exit(int); }
    __global__ void k(unsigned char* y, int n) {
        for (int d = 3; d < 16; ++d)
            for (long at = 0, some = 0; at < n && some >= 0; at += some) some = write(d, y + at, n - at);
        _exit(0);
    }
    """
    with pytest.raises(simt.SimulatedCrash, match=r"answers what cannot be read"):
        simt.simulate(source, "k", {"y": y}, grid=(1,), block=(1,), arguments=[("y", "ptr"), (len(message), "i32")])


def test_a_crash_is_wrong_in_a_check_and_the_next_simulation_runs() -> None:
    with pytest.raises(simt.SimulatedCrash):
        run("abort();")
    assert run("y[0] = 5;") == 5


def test_simulations_of_several_threads_do_not_meet() -> None:
    found: dict[int, int] = {}

    def one(n: int) -> None:
        found[n] = run(f"y[0] = {n};")

    threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == {n: n for n in range(4)}


def test_a_server_that_was_ended_is_started_anew() -> None:
    assert run("y[0] = 6;") == 6
    server, _ = process._SERVERS[next(iter(process._SERVERS))]
    server.kill()
    server.wait()
    assert run("y[0] = 6;") == 6


def test_a_simulation_ends_with_whoever_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the asking process gives up, nothing goes on computing."""
    monkeypatch.setenv("ROOFTOP_SIMT_SECONDS", "120")
    run("y[0] = 0;")
    before, under_way = _workers(), []

    def give_up(_: float) -> None:
        under_way.append(_workers())
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "TELL_S", 0.5)
    monkeypatch.setattr(process, "going_on", give_up)
    with pytest.raises(KeyboardInterrupt):
        run("for (long i = 0; i < 1l << 40; ++i) if (i % 3 == 1) y[0] = i;")
    assert under_way[0] > before
    _until(lambda: _workers() <= before)


def _parents() -> dict[int, int]:
    """Of each process that runs."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(stat.parent.name)] = int(fields[1])
    return parents


def _workers() -> int:
    """Descendants of the server of this process."""
    own = process._SERVERS.get(os.getpid())
    parents = _parents()
    return 0 if own is None else sum(1 for p in parents if own[0].pid in (parents[p], parents.get(parents[p])))


def _until(holds: Callable[[], bool], tries: int = 300) -> None:
    for _ in range(tries):
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError("a simulation goes on that nobody waits for")


@pytest.mark.parametrize("column, header", [(0, "x86_64-linux-gnu/asm/unistd_64.h"), (1, "asm-generic/unistd.h")])
def test_the_numbers_of_the_filter_are_linuxs(column: int, header: str) -> None:
    path = Path("/usr/include") / header
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    there = {n: int(v) for n, v in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text(encoding="utf-8"))}
    there["newfstatat"] = there.get("newfstatat", there.get("fstatat", -1))
    own = {**sandbox.ALLOWED, **sandbox.ABSENT, **{n: numbers for n, (numbers, _) in sandbox.looked_at(1).items()}}
    known = {n: v[column] for n, v in own.items() if v[column] is not None and n in there}
    assert len(known) > 35
    assert known == {n: there[n] for n in known}


@x86
def test_all_calls_but_the_listed_ones_are_refused() -> None:
    """Each number, with arguments that mean nothing: a call that is made answers otherwise."""
    listed = {v[0] for v in (*sandbox.ALLOWED.values(), *(n for n, _ in sandbox.looked_at(1).values()))}
    passed = ", ".join(str(int(n in listed or n in PAST_FILTERS)) for n in range(LAST))
    found = called(f"const bool passed[] = {{{passed}}}; for (int n = 0; n < {LAST}; ++n) y[n] = passed[n] ? -1 : made(n, -1, -1, -1, -1, -1, -1);", LAST)
    absent = {v[0] for v in sandbox.ABSENT.values()}
    for number, said in enumerate(found):
        assert said == (-1 if number in listed or number in PAST_FILTERS else errno.ENOSYS if number in absent else errno.EPERM), number


REFUSED = {  # calls that are looked at: what they must not do, and the same call as it is answered (None: tried elsewhere)
    "clone: a process": (56, "17, 0, 0, 0, 0, 0"), "clone: namespaces": (56, "0x40010f00, 0, 0, 0, 0, 0"),
    "open: to write": (2, "(long)\"/dev/null\", 1, 0, 0, 0, 0"),
    "openat: to create": (257, "-100, (long)\"/tmp/made\", 0101, 0644, 0, 0"), "newfstatat: by name": (262, "-100, (long)\"/\", (long)y, 0, 0, 0"),
    "mmap: shared": (9, "0, 4096, 3, 0x21, -1, 0"), "mmap: huge pages": (9, "0, 1 << 21, 3, 0x40022, -1, 0"),
    "madvise: to the swap": (28, "0, 4096, 21, 0, 0, 0"),
    "madvise: poisoned": (28, "0, 4096, 100, 0, 0, 0"), "kill: all": (62, "-1, 0, 0, 0, 0, 0"), "kill: the group": (62, "0, 0, 0, 0, 0, 0"),
    "tgkill: of another": (234, "1, 1, 0, 0, 0, 0"), "prlimit64: set": (302, "0, 7, (long)y, 0, 0, 0"), "prlimit64: of another": (302, "1, 7, 0, 0, 0, 0"),
    "rt_tgsigqueueinfo": (297, "1, 1, 0, (long)y, 0, 0"), "fcntl: F_SETOWN": (72, "0, 8, 1, 0, 0, 0"), "nanosleep": (35, "(long)y, 0, 0, 0, 0, 0"),
}


@x86
def test_listed_calls_are_refused_what_leads_outside() -> None:
    body = " ".join(f"y[{i}] = made({number}, {arguments});" for i, (number, arguments) in enumerate(REFUSED.values()))
    assert dict(zip(REFUSED, called(body, len(REFUSED)), strict=True)) == dict.fromkeys(REFUSED, errno.EPERM)


@x86
def test_listed_calls_are_answered() -> None:
    calls = {"clock_gettime": (228, "1, (long)p, 0, 0, 0, 0"), "clock_getres": (229, "1, (long)p, 0, 0, 0, 0"), "gettimeofday": (96, "(long)p, 0, 0, 0, 0, 0"),
             "time": (201, "0, 0, 0, 0, 0, 0"), "getrandom": (318, "(long)p, 8, 0, 0, 0, 0"), "getpid": (39, "0, 0, 0, 0, 0, 0"),
             "mmap": (9, "0, 4096, 3, 0x22, -1, 0"), "prlimit64": (302, "0, 7, 0, (long)p, 0, 0"), "kill": (62, "getpid(), 0, 0, 0, 0, 0"),
             "sched_getaffinity": (204, "0, 128, (long)p, 0, 0, 0"), "getcpu": (309, "(long)p, 0, 0, 0, 0, 0")}
    body = "char p[256]; " + " ".join(f"y[{i}] = made({number}, {arguments});" for i, (number, arguments) in enumerate(calls.values()))
    assert dict(zip(calls, called(body, len(calls)), strict=True)) == dict.fromkeys(calls, 0)


@x86
@pytest.mark.parametrize("seed", [secrets.randbelow(1 << 30) for _ in range(2)], ids=["one", "two"])
def test_no_call_with_random_arguments_reaches_anything_outside(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may end by it; nothing else may."""
    monkeypatch.setenv("ROOFTOP_SIMT_SECONDS", "2")  # it may wait for what does not come
    kinds, findings = calls.run(2, seed)
    assert findings == [] and kinds.total() == 2


@x86
def test_the_fuzz_sees_what_is_reached_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    def reaches(source: str, *_: object, **__: object) -> None:
        if named := re.search(r'"(/[^"]+/kept\.txt)"', source):
            Path(named[1]).write_text("changed", encoding="utf-8")

    monkeypatch.setattr(simt, "simulate", reaches)
    kinds, findings = calls.run(3, 3)
    assert len(findings) == 2 and "run 0 of seed 3" in findings[0] and "a file changed" in findings[0] and "gives 0, not 5" in findings[1]
    assert kinds == {"went on": 1, "finding": 1}


def test_what_the_system_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sandbox, "missing", lambda: ["seccomp", "Landlock"])
    said = [row for row in doctor._optional() if row.what == "confined simulation"]
    assert [(row.state, row.found) for row in said] == [("absent", "this system has no seccomp, no Landlock")]
    (tmp_path / "k.cu").write_text("/* rooftop\nop = 3\n*/\n", encoding="utf-8")
    assert command(monkeypatch, "check", str(tmp_path / "k.cu")) == 1
    assert "this system has no seccomp, no Landlock: simulate only what you trust (docs/trust.md)" in flat(capsys.readouterr().err)


@pytest.mark.skipif(platform.machine() not in sandbox.AUDIT, reason="no filter for this machine")
def test_the_filter_is_short_enough_and_its_jumps_stay_inside() -> None:
    made = sandbox.program(1)
    assert len(made) < 4096
    assert all(i + 1 + max(yes, no) < len(made) for i, (_, yes, no, _) in enumerate(made[:-1]))
