"""Simulated code that is no kernel's: what it may do to the machine it runs on (docs/trust.md)."""

from __future__ import annotations

import platform
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rooftop.lab import simt
from rooftop.lab.simt import process, sandbox

SOURCE = """
extern "C" {{
int system(const char*); int open(const char*, int, ...); long read(int, void*, unsigned long); int socket(int, int, int); int fork(); int kill(int, int);
int getppid(); void _exit(int); void abort(); void* malloc(unsigned long); void* memset(void*, int, unsigned long); int unlink(const char*);
}}
__global__ void k(int* y) {{
    {body}
}}
"""
confined = pytest.mark.skipif(bool(sandbox.missing()), reason=f"not here: {', '.join(sandbox.missing())}")


def run(body: str) -> int:
    y = torch.zeros(1, dtype=torch.int32)
    report = simt.simulate(SOURCE.format(body=body), "k", {"y": y}, grid=(1,), block=(1,), arguments=[("y", "ptr")])
    assert report.clean, report.findings
    return int(y[0])


@confined
def test_no_file_no_network_no_program_no_other_process(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("secret", encoding="utf-8")
    made = tmp_path / "made"
    assert run(f'y[0] = open("{mine}", 0);') == -1
    assert run('y[0] = open("/etc/passwd", 0);') == -1
    assert run(f'y[0] = open("{made}", 0101, 0644);') == -1
    assert run(f'y[0] = unlink("{mine}");') == -1
    assert run("y[0] = socket(2, 1, 0);") == -1
    assert run("y[0] = socket(1, 1, 0);") == -1
    assert run("y[0] = fork();") == -1
    assert run("y[0] = kill(getppid(), 0);") == -1
    assert run(f'y[0] = system("touch {made}") != 0;') == 1
    assert mine.read_text(encoding="utf-8") == "secret" and not made.exists()


@pytest.mark.parametrize(
    ("body", "says"), [("abort();", "SIGABRT"), ("_exit(3);", "exit code 3"), ("_exit(0);", "exit code 0")], ids=["abort", "exit", "exit-0"],
)  # fmt: skip
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


def test_memory_and_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTOP_SIMT_MIB", "1024")
    with pytest.raises(simt.SimulatedCrash, match=r"more than 1024 MiB of memory \(ROOFTOP_SIMT_MIB\)"):
        run("for (int i = 0; i < 3000; ++i) memset(malloc(1 << 20), 1, 1 << 20);")
    monkeypatch.setenv("ROOFTOP_SIMT_SECONDS", "1")
    with pytest.raises(simt.SimulatedCrash, match=r"more than 1 s of CPU time \(ROOFTOP_SIMT_SECONDS\)"):
        run("for (long i = 0; i < 1l << 34; ++i) if (i % 3 == 1) y[0] = i;")


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
    real = process._exactly
    assert real is not None
    before = _workers()
    gone = threading.Event()

    def give_up(self: object, *_: object) -> bytes:
        gone.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(process.socket.socket, "recv", give_up, raising=True)
    with pytest.raises(KeyboardInterrupt):
        run("for (long i = 0; i < 1l << 34; ++i) if (i % 3 == 1) y[0] = i;")
    monkeypatch.undo()
    assert gone.is_set()
    _until(lambda: _workers() <= before)


def _workers() -> int:
    """Descendants of the server of this process."""
    import os

    own = process._SERVERS.get(os.getpid())
    if own is None:
        return 0
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    return sum(1 for p in parents if own[0].pid in (parents[p], parents.get(parents[p])))


def _until(holds: Callable[[], bool]) -> None:
    for _ in range(300):
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
    own = {**sandbox.DENIED, **sandbox.ABSENT, "clone": sandbox.CLONE, "openat": sandbox.OPENAT, "kill": sandbox.KILL, "tgkill": sandbox.TGKILL}
    known = {n: v[column] for n, v in own.items() if n in there}
    assert len(known) > 60
    assert known == {n: there[n] for n in known}


@pytest.mark.skipif(platform.machine() not in sandbox.AUDIT, reason="no filter for this machine")
def test_the_filter_is_short_enough_and_its_jumps_stay_inside() -> None:
    made = sandbox.program(1)
    assert len(made) < 4096
    assert all(i + 1 + max(yes, no) < len(made) for i, (_, yes, no, _) in enumerate(made[:-1]))
