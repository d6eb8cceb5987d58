"""Random calls of the system from simulated code: its process may end by them, nothing else may change.

    ROOFTOP_SIMT_SECONDS=4 python -m rooftop.lab.fuzz.calls --runs 500

A run makes every call several times, with numbers, small ones, descriptors, addresses, and names and processes that are there as arguments.
A file, a folder and another process of the same user must be as before, and the next simulation must run."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from rooftop.core import sandbox, settings
from rooftop.lab.exit_codes import Parser, ended, positive
from rooftop.lab.records import trials

CALLS = """
extern "C" {{ long syscall(long, ...); int* __errno_location(); int getpid(); void* memset(void*, int, unsigned long); }}
SIMT_PLAIN __attribute__((noinline)) int made(long n, long a, long b, long c, long d, long e, long f) {{
    return syscall(n, a, b, c, d, e, f) == -1 ? *__errno_location() : 0;
}}
__global__ void k(int* y) {{
    {body}
}}
"""
LAST = 512  # beyond the highest number of a call
EACH = 8  # times that a run makes each call
PATIENCE = 10  # seconds of CPU time
# uretprobe, uprobe: the kernel does not ask filters, and ends whoever calls them from elsewhere than its own trampoline
PAST_FILTERS = (335, 336)
# ends of the process; back from a signal; a wait; its own memory, lost: these end the run alone
LEFT = (60, 231, *PAST_FILTERS, 15, 202, 11, 10, 25, 12, 9)
BODY = """
    static const char* names[] = {{"{kept}", "{folder}", "{folder}/made", "/proc/{pid}/mem"}}; const int leaves[] = {{{leaves}}};
    unsigned long state = y[0] * 2ul + 1; static char space[1 << 16];
    y[0] = 0;
    for (int i = 0; i < {count}; ++i) {{
        long a[6];
        for (int j = 0; j < 6; ++j) {{
            state = state * 6364136223846793005ul + 1442695040888963407ul;
            const unsigned long r = state >> 16;
            switch (state >> 60) {{
                case 0: case 1: case 2: a[j] = r % 8; break;
                case 3: a[j] = -static_cast<long>(r % 128); break;
                case 4: case 5: a[j] = {pid}; break;
                case 6: case 7: case 8: a[j] = reinterpret_cast<long>(names[r % 4]); break;
                case 9: a[j] = 1l << (r % 64); break;
                case 10: a[j] = static_cast<long>(r); break;
                default: a[j] = reinterpret_cast<long>(space + r % 4096); break;
            }}
        }}
        const int n = i % {last};
        bool leave = false;
        for (int left : leaves) leave |= n == left;
        if (!leave) y[0] += made(n, a[0], a[1], a[2], a[3], a[4], a[5]) == 0;
    }}"""


def run(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """How many runs ended how, and what was found changed outside. All runs are of one built source, so that they are fast."""
    import torch

    from rooftop.lab import simt

    kinds: Counter[str] = Counter()
    findings: list[str] = []
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name, subprocess.Popen(
        ["sleep", "1000000"], stdin=subprocess.DEVNULL, start_new_session=True
    ) as other:
        folder, kept = Path(name), Path(name) / "kept.txt"
        kept.write_text("as it was", encoding="utf-8")
        made = {"kept": kept, "folder": folder, "pid": other.pid, "leaves": ", ".join(map(str, LEFT)), "count": EACH * LAST, "last": LAST}
        source = CALLS.format(body=BODY.format(**made))
        try:
            for i in range(count):
                drawn = rng.randrange(1 << 30)
                y = torch.tensor([drawn], dtype=torch.int32)
                try:
                    simt.simulate(source, "k", {"y": y}, grid=(1,), block=(1,), arguments=[("y", "ptr")])
                    kinds["went on"] += 1
                except simt.SimulatedCrash:  # it closed the way to answer, say
                    kinds["ended the simulation alone"] += 1
                changed = [] if other.poll() is None else ["another process ended"]
                if [p.name for p in folder.iterdir()] != ["kept.txt"] or kept.read_text(encoding="utf-8") != "as it was":
                    changed.append("a file changed")
                if changed:
                    findings.append(f"run {i} of seed {seed} ({drawn}): {', '.join(changed)}")
                    kinds[trials.FINDING] += 1
                    break  # what it was tried on is no longer there
        finally:
            with contextlib.suppress(ProcessLookupError):
                other.kill()
        y = torch.zeros(1, dtype=torch.int32)
        simt.simulate("__global__ void k(int* y) { y[0] = 5; }", "k", {"y": y}, grid=(1,), block=(1,), arguments=[("y", "ptr")])
        if int(y[0]) != 5:
            findings.append(f"after seed {seed} a simulation gives {int(y[0])}, not 5")
    return kinds, findings


def main() -> None:
    parser = Parser(prog="python -m rooftop.lab.fuzz.calls", description="Random calls of the system from simulated code.")
    parser.add_argument("--runs", type=positive, default=100, help=f"of {EACH * LAST:,} calls")
    trials.options(parser)
    given = parser.parse_args()
    if not sandbox.filterable() or os.uname().machine != "x86_64":
        raise OSError("the numbers of the calls are x86-64's, and a seccomp filter is needed")
    if settings.load().simt_seconds > PATIENCE:
        raise ValueError(f"set ROOFTOP_SIMT_SECONDS to {PATIENCE} or less: a run may wait for what does not come")
    trials.ended(f"runs of {EACH * LAST:,} random system calls", given, lambda: run(given.runs, given.seed))


if __name__ == "__main__":
    ended(main)
