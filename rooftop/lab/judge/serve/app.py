"""The application: its pages, what may be handed in by whom, and every refusal as a page with its status code."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
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
from rooftop.lab.judge.board import BoardError, FullError, tables
from rooftop.lab.judge.forms import MOST
from rooftop.lab.judge.serve import pages
from rooftop.lab.judge.serve.guard import Guard, Log
from rooftop.lab.judge.serve.queue import Job, LimitError, Limits, NoUserError, Queue
from rooftop.lab.judge.serve.worker import Worker, form_of
from rooftop.lab.judge.verdict import Verdict

COOKIE = "rooftop"
TRIALS, WITHIN = 20, 60.0  # unknown tokens of one address in so many seconds; then none is looked up
STREAMS = 8  # pages of one user that follow a job at once
LOOK = 0.5  # seconds between two looks at a job that is followed
RECOGNISING = 2  # processes that recognise what is handed in, at once
TITLES = {
    400: "This request cannot be read", 401: "Sign in", 403: "Not for you", 404: "Not here", 405: "Not so", 408: "Too slow", 413: "Too large",
    422: "No submission", 429: "Too often", 500: "A fault of the server", 503: "Not now", 507: "The disk is full",
}  # fmt: skip


class RefusedError(Exception):
    """A request is refused with this status."""

    def __init__(self, status: int, text: str, seconds: int = 0) -> None:
        super().__init__(text)
        self.status, self.seconds = status, seconds


@dataclass
class Service:
    """What the pages stand on. `stopping`: the server ends, and streams with it."""

    board: Path
    workers: Sequence[Worker]
    log: Log
    prefix: str = ""
    limits: Limits = field(default_factory=Limits)
    stopping: bool = False
    following: Counter[str] = field(default_factory=Counter)
    trials: defaultdict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque))

    def __post_init__(self) -> None:
        self.targets = tuple(w.target for w in self.workers)
        self.pages = pages.Pages(self.prefix, self.targets)
        self.recognising = asyncio.Semaphore(RECOGNISING)

    def queue(self) -> Queue:
        return Queue(self.board)

    def worker(self, target: str) -> Worker | None:
        return next((w for w in self.workers if w.target == target), None)


def application(service: Service) -> ASGIApp:
    routes = [
        Route("/", _ladders), Route("/ladder/{name}", _ladder), Route("/board", _board), Route("/user", _user), Route("/healthz", _health),
        Route("/hand-in", _form), Route("/hand-in", _hand_in, methods=["POST"]), Route("/job/{name}", _job), Route("/job/{name}/events", _events),
        Route("/job/{name}/verdict.json", _verdict), Route("/sign-in", _sign_in_form), Route("/sign-in", _sign_in, methods=["POST"]),
        Route("/sign-out", _sign_out, methods=["POST"]), Route("/static/{name}", _static),
    ]  # fmt: skip
    refusals: dict[Any, Any] = {
        kind: _refusal for kind in (RefusedError, HTTPException, NoUserError, LimitError, BoardError, registry.RegistryError, Exception)
    }
    made = Starlette(routes=routes, exception_handlers=refusals)
    made.state.service = service
    return Guard(made, service.log, lambda scope, status, text: said(service, status, text), service.prefix)


# -- answers --------------------------------------------------------------------------------------------------------------


def said(service: Service, status: int, text: str, user: str = "", headers: dict[str, str] | None = None) -> HTMLResponse:
    """A page that says why there is no other."""
    if status == 401:
        return HTMLResponse(service.pages.html("sign_in.html.j2", said=text), 401, {"www-authenticate": "Bearer", **(headers or {})})
    made = service.pages.html("said.html.j2", status=status, title=TITLES.get(status, str(status)), said=text, user=user)
    return HTMLResponse(made, status, headers)


def _refused(error: Exception) -> tuple[int, str, int]:
    """Status, text and seconds after which to try again."""
    match error:
        case RefusedError():
            return error.status, str(error), error.seconds
        case HTTPException():
            return error.status_code, {404: "there is no such page", 405: "this page is not used so"}.get(error.status_code, str(error.detail)), 0
        case NoUserError():
            return 401, str(error), 0
        case LimitError():
            return 503 if error.full else 429, str(error), error.seconds
        case registry.RegistryError():
            return 404, str(error.args[0]), 0
        case FullError():
            return 507, "there is no room on the server's disk; nothing of this was kept, and nothing that was kept before is lost: try again later", 60
        case BoardError():
            return 503, "the board cannot be used now; nothing that was kept is lost: try again later", 60
    return 500, "the server has made a fault; its log says which", 0


def _refusal(request: Request, error: Exception) -> Response:
    status, text, seconds = _refused(error)
    if status >= 500:
        _service(request).log("error", status=status, kind=type(error).__name__, said=str(error)[:500])
    return said(_service(request), status, text, request.scope["state"].get("user", ""), {"retry-after": str(seconds)} if seconds else None)


def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


def _page(request: Request, template: str, **about: Any) -> HTMLResponse:
    return HTMLResponse(_service(request).pages.html(template, user=about.pop("user", "") or _known(request), **about))


# -- users ----------------------------------------------------------------------------------------------------------------


def _token(request: Request) -> str:
    word, _, given = request.headers.get("authorization", "").partition(" ")
    return given.strip() if word.lower() == "bearer" else request.cookies.get(COOKIE, "")


def _owner(request: Request, token: str) -> str:
    """Whose token it is. Raises NoUserError, and RefusedError where an address tries too many."""
    service = _service(request)
    tried, now = service.trials[request.client.host if request.client else ""], monotonic()
    while tried and tried[0] < now - WITHIN:
        tried.popleft()
    if len(tried) >= TRIALS:
        raise RefusedError(429, f"{TRIALS} unknown tokens within a minute came from your address; try again later", int(WITHIN))
    with service.queue() as queue:
        try:
            user = queue.user_of(token)
        except NoUserError:
            tried.append(now)
            raise
    request.scope["state"]["user"] = user
    return user


def _signed_in(request: Request) -> str:
    """The user. Raises NoUserError where nobody is, or a token does not hold."""
    token = _token(request)
    if not token:
        raise NoUserError("this page needs your token")
    return _owner(request, token)


def _known(request: Request) -> str:
    """The user, or "": for pages that everybody may read."""
    try:
        return request.scope["state"].get("user", "") or (_owner(request, token) if (token := _token(request)) else "")
    except (NoUserError, RefusedError):
        return ""


def _sign_in_form(request: Request) -> Response:
    return _page(request, "sign_in.html.j2", said="")


async def _sign_in(request: Request) -> Response:
    async with request.form(max_files=0, max_fields=4) as form:
        token = str(form.get("token", "")).strip()
    user = await run_in_threadpool(_owner, request, token)
    service = _service(request)
    answer = RedirectResponse(service.pages.profile(user), 303)
    answer.set_cookie(
        COOKIE, token, max_age=30 * 86400, path=service.prefix or "/", secure=request.url.scheme == "https", httponly=True, samesite="strict"
    )
    return answer


def _sign_out(request: Request) -> Response:
    service = _service(request)
    answer = RedirectResponse(service.pages.at("/"), 303, {"clear-site-data": '"cookies"'})
    answer.delete_cookie(COOKIE, path=service.prefix or "/", httponly=True, samesite="strict")
    return answer


# -- what everybody may read ----------------------------------------------------------------------------------------------


def _ladders(request: Request) -> Response:
    return _page(request, "climbs.html.j2", ladders=pages.ladders())


def _ladder(request: Request) -> Response:
    ladder = registry.ladder(request.path_params["name"])
    with _service(request).queue() as queue:
        devices, rungs = pages.rungs(ladder, queue.entries(op=ladder.op))
    return _page(request, "climb.html.j2", ladder=ladder, devices=devices, rungs=rungs)


def _board(request: Request) -> Response:
    service, op = _service(request), request.query_params.get("op", "")
    if op and op not in registry.op_names():
        raise registry.UnknownName("op", op[:60], registry.op_names())
    with service.queue() as queue:
        ops, shown = queue.ops(), tables(queue.entries(op=op), service.pages.profile) if op else ""
    return _page(request, "standing.html.j2", op=op, ops=ops, tables=Markup(shown))


def _user(request: Request) -> Response:
    name, user = request.query_params.get("name", ""), _known(request)
    with _service(request).queue() as queue:
        entries, jobs = queue.history(name), queue.jobs(name) if name == user else []
        if not entries and not jobs and name != user:
            raise RefusedError(404, f"nobody called {name[:60]!r} has handed anything in")
    return _page(request, "user.html.j2", name=name, entries=entries, jobs=jobs, drawn=pages.history(entries), user=user)


def _health(request: Request) -> Response:
    """200 where the board can be read and every device has somebody who judges; else 503, and what is wrong."""
    service = _service(request)
    with service.queue() as queue:
        counts = queue.counts()
    wrong = {w.target: w.trouble or "its thread has ended" for w in service.workers if w.trouble or not w.is_alive()}
    return JSONResponse({"ok": not wrong, "devices": list(service.targets), "jobs": counts, "wrong": wrong}, 503 if wrong else 200)


def _static(request: Request) -> Response:
    found = pages.static().get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    return Response(found[0], media_type=found[1], headers={"cache-control": "public, max-age=31536000, immutable"})


# -- handing in -----------------------------------------------------------------------------------------------------------


def _form(request: Request) -> Response:
    user, op = _signed_in(request), request.query_params.get("op", "")
    return HTMLResponse(_hand_in_page(_service(request), user, op, "", "cu", "", ""))


def _hand_in_page(service: Service, user: str, op: str, source: str, language: str, target: str, text: str, function: str = "") -> str:
    return service.pages.html(
        "hand_in.html.j2", user=user, op=op, ops=registry.op_names(), source=Markup.escape(source), language=language, target=target, said=text,
        function=function,
    )


async def _hand_in(request: Request) -> Response:
    """A job, and where it is; else the form again, with what was given and why it is refused."""
    service, user = _service(request), await run_in_threadpool(_signed_in, request)
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
            form_, why = await run_in_threadpool(form_of, name, text, given["op"], function if language == "py" else "")
        if not form_:
            raise RefusedError(422, why)
        job = await run_in_threadpool(_keep, service, user, name, text, function if language == "py" else "", given)
    except (RefusedError, LimitError, BoardError) as error:
        status, why, seconds = _refused(error)
        service.log("refused", user=user, status=status, said=str(error)[:300])
        page = _hand_in_page(service, user, given["op"], shown.replace("\r\n", "\n"), language, given["target"], why, function)
        return HTMLResponse(page, status, {"retry-after": str(seconds)} if seconds else None)
    if worker := service.worker(job.target):
        worker.wake()
    service.log("handed in", user=user, job=job.id, op=job.op, target=job.target, bytes=len(held), form=form_)
    return RedirectResponse(service.pages.at(f"/job/{job.id}"), 303)


def _keep(service: Service, user: str, name: str, text: str, function: str, given: dict[str, str]) -> Job:
    with service.queue() as queue:
        return queue.hand_in(
            user, op=given["op"], file=name, source=text, target=given["target"] or service.targets[0], function=function, limits=service.limits
        )


def _text(service: Service, held: bytes, given: dict[str, str]) -> str:
    """The source. Raises RefusedError for what is none, and for what cannot be asked of this server."""
    if given["op"] not in registry.op_names():
        raise RefusedError(422, registry.UnknownName("op", given["op"][:60], registry.op_names()).args[0] if given["op"] else "say what it computes")
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


# -- jobs -----------------------------------------------------------------------------------------------------------------


def _own(request: Request) -> tuple[Service, Job]:
    """The job, for its user alone. Raises RefusedError, NoUserError."""
    user, service = _signed_in(request), _service(request)
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
    return _page(
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
