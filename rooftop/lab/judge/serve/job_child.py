"""The process that recognises and judges what was handed in: jobs come as lines of JSON (`rooftop.core.child`). The server's process never
does."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rooftop.core.child import Jobs


def recognise(job: Mapping[str, Any]) -> dict[str, Any]:
    """Its form. Refused is what would run with the rights of who started the server, unless they trust its users."""
    from rooftop.core import sandbox
    from rooftop.lab.judge import forms

    found = forms.recognise(job["kernel"], job["op"])
    shown, what = forms.SHOWN[found.form], ""
    if sandbox.missing():
        what = "this machine has no seccomp or no Landlock, without which it may"
    elif found.form == "module":
        what = f"{shown} would"
    elif found.form in ("function", "model") and job["target"] != "cpu":  # in bubblewrap where that can be, else in a plain process
        what = f"{shown} may, on a card,"
    if what and not job["trusted"]:
        raise forms.SubmissionError(f"{what} run with the server's own rights; rooftop serve --trusted takes it")
    return {"form": shown}


def judge(job: Mapping[str, Any]) -> dict[str, Any]:
    """One at a time a device, also where the server that asked for the one before is gone: the lock is held until this process ends."""
    from rooftop.core import whole_file
    from rooftop.lab.judge import judging

    recognise(job)
    lock = open(job["lock"], "w")  # noqa: SIM115
    fcntl.flock(lock, fcntl.LOCK_EX)
    progress = Path(job["progress"])
    verdict = judging.judge(job["kernel"], job["op"], target=job["target"], say=lambda text: whole_file.write(progress, text))
    return {"verdict": verdict.to_json()}


def device(job: Mapping[str, Any]) -> dict[str, Any]:
    """What is judged on: "cpu", or the card's short name."""
    from rooftop.core.devices import slug
    from rooftop.lab.judge import judging

    return {"device": slug(found) if (found := judging.card(job["target"])) else "cpu"}


def begin(job: Mapping[str, Any]) -> dict[str, Any]:
    """The board with the rungs and peers of the records."""
    from rooftop.core import settings
    from rooftop.lab.judge.board import Board
    from rooftop.lab.records import store

    with Board(Path(job["board"])) as board:
        return {"begun": board.begin(store.read(settings.load().results))}


ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "form": recognise, "judgement": judge, "beginning": begin, "device": device,
}


def main() -> None:
    jobs = Jobs()
    for job in jobs:
        try:
            said = ANSWERS[job["what"]](job)
        except SystemExit as error:
            said = {"refused": f"it ends the process: {error.code}"}
        except Exception as error:
            text = str(error.args[0] if isinstance(error, LookupError) and error.args else error) or type(error).__name__
            said = {"refused": " ".join(text.split())[:1000]}
        folder = str(Path(str(job.get("kernel", "."))).parent)
        jobs.answer(json.loads(json.dumps(said, default=str).replace(f"{folder}/", "")) if len(folder) > 1 else said)


if __name__ == "__main__":
    main()
