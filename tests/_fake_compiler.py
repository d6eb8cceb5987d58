"""Stands for the process that has a compiler: answers each job with a cubin that says so, slowly, and leaves a line in the file that RUNS names.

TEXTS: the cubin is the kernel's file as it was when it was first asked for. FAILS, GRUMBLES, KILLED: how a job goes wrong. ENDED: a file that it leaves
when it ends of itself."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    texts: dict[str, str] = {}
    for line in sys.stdin:
        job = json.loads(line)
        code = b"a cubin"
        if "RUNS" in os.environ:
            with open(os.environ["RUNS"], "a", encoding="utf-8") as file:
                file.write(f"{job['function']} for {job['target']}\n")
            time.sleep(1.0)
        if "TEXTS" in os.environ:
            code = texts.setdefault(job["kernel"], Path(job["kernel"]).read_text(encoding="utf-8")).encode()
        if "KILLED" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        if "GRUMBLES" in os.environ and texts.setdefault("asked", job["function"]) != job["function"]:
            sys.exit(3)
        if "FAILS" in os.environ or "GRUMBLES" in os.environ:
            print("TileError: ct.mma takes no tiles of words", file=sys.stderr, flush=True)
            found = {"error": "TileError: ct.mma takes no tiles of words"}
        else:
            found = {"code": base64.b64encode(code).decode(), "symbol": job["function"], "seconds": 1.0}
        print(json.dumps(found), flush=True)
    if "ENDED" in os.environ:
        Path(os.environ["ENDED"]).write_text("of itself", encoding="utf-8")


if __name__ == "__main__":
    main()
