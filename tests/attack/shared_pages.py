"""Pages that leave the resident set and stay allocated: 3 GiB of them within a limit of 400 MiB."""

import sys
import threading
import time
from pathlib import Path

import torch

from rooftop.lab import simt

SOURCE = """extern "C" { void* mmap(void*, unsigned long, int, int, int, long); int madvise(void*, unsigned long, int);
                         void* memset(void*, int, unsigned long); }
__global__ void k(int* y) {
    for (int j = 0; j < 30; j++) {
        char* p = (char*)mmap(0, 100l << 20, 3, 0x21, -1, 0);
        if (p == (char*)-1l) return;
        for (int b = 0; b < 10; b++) { memset(p + ((long)b * 10 << 20), 1, 10l << 20); madvise(p + ((long)b * 10 << 20), 10l << 20, 4); }
        y[0]++;
    }
}"""


def free() -> int:
    return next(int(line.split()[1]) >> 10 for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))


least = [free()]


def watch() -> None:
    while least:
        least.append(free())
        time.sleep(0.05)


threading.Thread(target=watch, daemon=True).start()
y = torch.zeros(1, dtype=torch.int32)
try:
    simt.simulate(SOURCE, "k", {"y": y}, grid=(1,), block=(1,), arguments=[("y", "ptr")])
except simt.SimulatedCrash as error:
    print(error)
print(f"{int(y[0])} times 100 MiB")
sys.exit(int(y[0]) > 4)
