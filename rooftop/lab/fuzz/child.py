"""The process in which calls are run on a GPU: a line in is a call, a line out is what became of it. `python -m rooftop.lab.fuzz.child cuda`"""

from __future__ import annotations

import base64
import os
import pickle
import sys

from rooftop.lab.fuzz import judge


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anybody prints is no answer
    for line in sys.stdin:
        outcome = judge.run(pickle.loads(base64.b64decode(line)), sys.argv[1])
        answers.write(base64.b64encode(pickle.dumps(outcome)).decode() + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
