"""The process that compiles cells: a line of JSON in, a line out (rooftop.core.child). An error of the compiler is an answer."""

from __future__ import annotations

import json
import sys

from rooftop.core.child import answers_apart, end_with_parent


def main() -> None:
    out = answers_apart()
    end_with_parent()
    from rooftop.lab.inspect import targets as cells

    subjects = {s.name: s for s in cells.subjects()}
    for line in sys.stdin:
        job = json.loads(line)
        subject = subjects[job["kernel"]]
        try:
            answer = {"row": cells.compiled(subject, subject.op.case(job["case"]), job["target"])}
        except Exception as error:
            answer = {"row": {"failed": cells.reason_of(error)}}
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
