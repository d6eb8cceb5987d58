"""The application: its pages, and what may be handed in by whom."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from rooftop.core import registry
from rooftop.core.names import RegistryError, UnknownName
from rooftop.lab.judge.board import RECORD, BoardError, tables
from rooftop.lab.judge.forms import MOST
from rooftop.lab.judge.serve import pages
from rooftop.lab.judge.serve.guard import Guard
from rooftop.lab.judge.serve.queue import Job, LimitError, NoUserError
from rooftop.lab.judge.serve.service import COOKIE, RefusedError, Service, known, owner, page, refusal, refused, said, service_of, signed_in
from rooftop.lab.judge.serve.worker import form_of
from rooftop.lab.judge.verdict import Verdict

STREAMS = 8  # pages of one user that follow a job at once
LOOK = 0.5  # seconds between two looks at a job that is followed


def application(service: Service) -> ASGIApp:
    routes = [
        Route("/", _ladders), Route("/ladder/{name}", _ladder), Route("/board", _board), Route("/user", _user), Route("/healthz", _health),
        Route("/hand-in", _form), Route("/hand-in", _hand_in, methods=["POST"]),
        Route("/job/{name}", _job), Route("/job/{name}/events", _events),
        Route("/job/{name}/verdict.json", _verdict), Route("/sign-in", _sign_in_form), Route("/sign-in", _sign_in, methods=["POST"]),
        Route("/sign-out", _sign_out, methods=["POST"]), Route("/static/{name}", _static),
    ]
    kinds = (RefusedError, HTTPException, NoUserError, LimitError, BoardError, RegistryError, Exception)
    refusals: dict[Any, Any] = dict.fromkeys(kinds, refusal)
    made = Starlette(routes=routes, exception_handlers=refusals)
    made.state.service = service
    return Guard(made, service.log, lambda scope, status, text: said(service, status, text), service.prefix)


# -- signing in -----------------------------------------------------------------------------------------------------


def _sign_in_form(request: Request) -> Response:
    return page(request, "sign_in.html.j2", said="")


async def _sign_in(request: Request) -> Response:
    async with request.form(max_files=0, max_fields=4) as form:
        token = str(form.get("token", "")).strip()
    user = await run_in_threadpool(owner, request, token)
    service = service_of(request)
    answer = RedirectResponse(service.pages.profile(user), 303)
    answer.set_cookie(
        COOKIE, token, max_age=30 * 86400, path=service.prefix or "/", secure=request.url.scheme == "https", httponly=True,
        samesite="strict",
    )
    return answer


def _sign_out(request: Request) -> Response:
    service = service_of(request)
    answer = RedirectResponse(service.pages.at("/"), 303, {"clear-site-data": '"cookies"'})
    answer.delete_cookie(COOKIE, path=service.prefix or "/", httponly=True, samesite="strict")
    return answer


# -- what everybody may read -----------------------------------------------------------------------------------------


def _ladders(request: Request) -> Response:
    return page(request, "climbs.html.j2", ladders=pages.ladders())


def _ladder(request: Request) -> Response:
    ladder = registry.ladder(request.path_params["name"])
    with service_of(request).queue() as queue:
        devices, rungs = pages.rungs(ladder, queue.entries(op=ladder.op))
    return page(request, "climb.html.j2", ladder=ladder, devices=devices, rungs=rungs)


def _board(request: Request) -> Response:
    service, op = service_of(request), request.query_params.get("op", "")
    if op and op not in registry.op_names():
        raise UnknownName("op", op[:60], registry.op_names())
    with service.queue() as queue:
        ops, entries = queue.ops(), queue.entries(op=op) if op else []
    users = {(e.device, e.item) for e in entries if e.source != RECORD}
    entries.sort(key=lambda e: (e.device, e.item) not in users)  # where somebody has handed in comes first
    return page(request, "standing.html.j2", op=op, ops=ops, tables=Markup(tables(entries, service.pages.profile)))


def _user(request: Request) -> Response:
    name, user = request.query_params.get("name", ""), known(request)
    with service_of(request).queue() as queue:
        entries, jobs = queue.history(name), queue.jobs(name) if name == user else []
        if not entries and not jobs and name != user:
            raise RefusedError(404, f"there is no user {name[:60]!r} with submissions")
    return page(request, "user.html.j2", name=name, entries=entries, jobs=jobs, drawn=pages.history(entries), user=user)


def _health(request: Request) -> Response:
    """200 where the board can be read and every device has somebody who judges; else 503, and what is wrong."""
    service = service_of(request)
    with service.queue() as queue:
        counts = queue.counts()
    wrong = {w.target: w.trouble or "its thread has ended" for w in service.workers if w.trouble or not w.is_alive()}
    return JSONResponse({"ok": not wrong, "devices": list(service.targets), "jobs": counts, "wrong": wrong}, 503 if wrong else 200)


def _static(request: Request) -> Response:
    found = pages.static().get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    return Response(found[0], media_type=found[1], headers={"cache-control": "public, max-age=31536000, immutable"})


# -- handing in ------------------------------------------------------------------------------------------------------


def _form(request: Request) -> Response:
    user, op = signed_in(request), request.query_params.get("op", "")
    return HTMLResponse(_hand_in_page(service_of(request), user, op, "", "cu", "", ""))


def _hand_in_page(service: Service, user: str, op: str, source: str, language: str, target: str, text: str, function: str = "") -> str:
    return service.pages.html(
        "hand_in.html.j2", user=user, op=op, ops=registry.op_names(), source=Markup.escape(source), written=language, target=target,
        said=text, function=function,
    )


async def _hand_in(request: Request) -> Response:
    """A job, and where it is; else the form again, with what was given and why it is refused."""
    service, user = service_of(request), await run_in_threadpool(signed_in, request)
    async with request.form(max_files=1, max_fields=8, max_part_size=2 * MOST) as form:
        given = {n: str(form.get(n, "")) for n in ("op", "target", "language", "function")}
        file = form.get("file")
        upload = (file.filename or "", await file.read()) if isinstance(file, UploadFile) and file.filename else None
        source = str(form.get("source", ""))
    language = "py" if given["language"] == "py" else "cu"
    name, held = upload if upload is not None else (f"pasted.{language}", source.replace("\r\n", "\n").encode("utf-8", "replace"))
    shown, function = source, given["function"].strip()
    try:
        text = _text(service, held, given)
        shown, name = text, _name(name)
        language = name[-2:]
        async with service.recognising:
            called, target = function if language == "py" else "", given["target"] or service.targets[0]
            form_, why = await run_in_threadpool(form_of, name, text, given["op"], called, target, service.workers[0].trusted)
        if not form_:
            raise RefusedError(422, why)
        job = await run_in_threadpool(_keep, service, user, name, text, called, given["op"], target)
    except (RefusedError, LimitError, BoardError) as error:
        status, why, seconds = refused(error)
        service.log("refused", user=user, status=status, said=str(error)[:300])
        page = _hand_in_page(service, user, given["op"], shown.replace("\r\n", "\n"), language, given["target"], why, function)
        return HTMLResponse(page, status, {"retry-after": str(seconds)} if seconds else None)
    if worker := service.worker(job.target):
        worker.wake()
    service.log("handed in", user=user, job=job.id, op=job.op, target=job.target, bytes=len(held), form=form_)
    return RedirectResponse(service.pages.at(f"/job/{job.id}"), 303)


def _keep(service: Service, user: str, name: str, text: str, function: str, op: str, target: str) -> Job:
    with service.queue() as queue:
        return queue.hand_in(user, op=op, file=name, source=text, target=target, function=function, limits=service.limits)


def _text(service: Service, held: bytes, given: dict[str, str]) -> str:
    """The source. Raises RefusedError for what is none, and for what cannot be asked of this server."""
    if given["op"] not in registry.op_names():
        unknown = UnknownName("op", given["op"][:60], registry.op_names()).args[0]
        raise RefusedError(422, unknown if given["op"] else "say what it computes")
    if given["target"] and given["target"] not in service.targets:
        raise RefusedError(422, f"there is no device {given['target'][:60]!r} here; there are {', '.join(service.targets)}")
    if len(held) > MOST:
        raise RefusedError(413, f"it has {len(held):,} bytes; a submission has at most {MOST:,}")
    if given["function"].strip() and not given["function"].strip().isidentifier():
        raise RefusedError(422, f"{given['function'][:60]!r} is no name of a function")
    if b"\0" in held:
        raise RefusedError(422, f"it is binary (a zero byte at {held.index(0)}); a submission is source text in UTF-8")
    try:
        return held.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise RefusedError(422, f"it is not UTF-8 (byte {error.start}); save it as UTF-8") from None


def _name(given: str) -> str:
    """A name of a file that is one, whatever a browser says: its last part, of few characters."""
    last = re.sub(r"[^A-Za-z0-9_.-]", "_", re.split(r"[/\\]", given)[-1]).lstrip(".-") or "file"
    stem, dot, ending = last.rpartition(".")
    if not dot or f".{ending}" not in (".cu", ".py"):
        raise RefusedError(422, f"{last[-60:]} is no submission: a .cu or a .py is")
    return f"{stem[:80]}.{ending}"


# -- jobs ------------------------------------------------------------------------------------------------------------


def _own(request: Request) -> tuple[Service, Job]:
    """The job, for its user alone. Raises RefusedError, NoUserError."""
    user, service = signed_in(request), service_of(request)
    with service.queue() as queue:
        try:
            job = queue.job(request.path_params["name"])
        except LookupError as error:
            raise RefusedError(404, str(error)) from None
    if job.user != user:
        raise RefusedError(403, "another user has handed this in; you see its entry on the board")
    return service, job


def _progress(service: Service, job: Job) -> dict[str, Any]:
    with service.queue() as queue:
        state, before, why = queue.progress(job.id)
    worker = service.worker(job.target)
    if state == "waiting":
        text = f"waiting: {before} before it" if worker else f"waiting: {job.target} is not here now"
    elif state == "judging":
        text = f"being judged: {(worker.stage(job.id) if worker else '') or 'it begins'}"
    else:
        text = why or "judged"
    return {"state": state, "text": text, "over": state in ("done", "refused")}


def _job(request: Request) -> Response:
    service, job = _own(request)
    verdict, place, places = None, 0, 0
    with service.queue() as queue:
        if job.state == "done" and (entry := queue.entry(job.id)) is not None:
            verdict = Verdict.of_json(entry.verdict)
            if entry.score is not None:
                beside = [e.id for e in queue.entries(op=entry.op, device=entry.device, basis=entry.basis) if e.item == entry.item]
                place, places = beside.index(entry.id) + 1, len(beside)
    return page(
        request, "job.html.j2", job=job, verdict=verdict, place=place, places=places, progress=_progress(service, job)["text"],
        costly=pages.costly(job.source, verdict) if verdict else [], stretches=pages.stretches(job.source, verdict, job.file),
    )


def _verdict(request: Request) -> Response:
    service, job = _own(request)
    with service.queue() as queue:
        entry = queue.entry(job.id) if job.state == "done" else None
    return JSONResponse({"file": job.file, "op": job.op, **_progress(service, job), "verdict": entry.verdict if entry else None})


async def _events(request: Request) -> Response:
    """What becomes of a job, as server-sent events, until it is over, the reader has gone or the server ends."""
    service, job = await run_in_threadpool(_own, request)
    if service.following[job.user] >= STREAMS:
        raise RefusedError(429, f"you follow {STREAMS} jobs at once, which is the most", 10)

    async def stream() -> AsyncIterator[str]:
        service.following[job.user] += 1
        try:
            before, quiet = "", 0.0
            while not service.stopping:
                now = await run_in_threadpool(_progress, service, job)
                line = json.dumps(now)
                if line != before:
                    yield f"event: progress\ndata: {line}\n\n"
                    before, quiet = line, 0.0
                elif quiet > 15:
                    yield ": still here\n\n"
                    quiet = 0.0
                if now["over"]:
                    return
                await asyncio.sleep(LOOK)
                quiet += LOOK
        finally:
            service.following[job.user] -= 1

    return StreamingResponse(stream(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})
