"""The process that compiles cells: a line of JSON in, a line out (rooftop.core.child). An error of the compiler is an answer."""

from __future__ import annotations

from rooftop.core.child import Jobs


def main() -> None:
    jobs = Jobs()
    from rooftop.lab.inspect import targets as cells

    subjects = {s.name: s for s in cells.subjects()}
    for job in jobs:
        subject = subjects[job["kernel"]]
        try:
            answer = {"row": cells.compiled(subject, subject.op.case(job["case"]), job["target"])}
        except Exception as error:
            answer = {"row": {"failed": cells.reason_of(error)}}
        jobs.answer(answer)


if __name__ == "__main__":
    main()
