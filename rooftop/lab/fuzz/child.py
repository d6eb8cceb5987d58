"""The process in which calls are run on a GPU: a line in is a call, drawn or still to be drawn; a line out is the call and what became of
it. `python -m rooftop.lab.fuzz.child cuda`"""

from __future__ import annotations

import base64
import os
import pickle
import sys

from rooftop.lab.fuzz import judge
from rooftop.lab.fuzz.drafts import Turn
from rooftop.lab.fuzz.judge import Outcome


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anybody prints is no answer
    for line in sys.stdin:
        given = pickle.loads(base64.b64decode(line))
        draft = given.draw() if isinstance(given, Turn) else given
        outcome = Outcome("refused") if draft is None else judge.run(draft, sys.argv[1])
        answers.write(base64.b64encode(pickle.dumps((draft, outcome))).decode() + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
