"""The process in which solutions of puzzles are judged, and rungs are counted: it reads jobs as JSON lines and answers each with one line.
A solution in Python may do anything to it."""

from __future__ import annotations

from dataclasses import asdict

from rooftop.core.child import Jobs


def main() -> None:
    from rooftop.core import registry
    from rooftop.lab.learn.counting import of_rung
    from rooftop.lab.learn.judge import judge

    jobs = Jobs()
    for job in jobs:
        try:
            if job["what"] == "counting":
                counts = of_rung(job["kernel"].partition("/")[0], job["kernel"], run=True)
                jobs.answer({"why": counts.why if counts else ""})
                continue
            said = asdict(judge(registry.rung(job["kernel"]), job["text"]))
        except SystemExit as error:
            said = {"kind": "broken", "said": f"it ends the process: SystemExit: {error.code}", "case": "", "counts": {}}
        except Exception as error:
            said = {"refused": " ".join(str(error).split())}
        jobs.answer(said)


if __name__ == "__main__":
    main()
