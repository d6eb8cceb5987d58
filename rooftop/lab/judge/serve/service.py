"""What the pages stand on: the board, the devices, who is signed in, and every refusal as a page with its status code."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from rooftop.core.names import RegistryError
from rooftop.lab.judge.board import BoardError, FullError
from rooftop.lab.judge.serve import pages
from rooftop.lab.judge.serve.guard import Log
from rooftop.lab.judge.serve.queue import LimitError, Limits, NoUserError, Queue
from rooftop.lab.judge.serve.worker import Worker

COOKIE = "rooftop"
TRIALS, WITHIN = 20, 60.0  # tokens that do not hold, of one address in so many seconds
ADDRESSES = 10_000  # that are remembered for it
RECOGNISING = 2  # processes that recognise what is handed in, at once
TITLES = {
    400: "This request cannot be read", 401: "Sign in", 403: "Not for you", 404: "Not here", 405: "Not so", 408: "Too slow",
    413: "Too large", 422: "No submission", 429: "Too often", 500: "A fault of the server", 503: "Not now", 507: "The disk is full",
}


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

    def tried(self, address: str) -> None:
        """A token that does not hold came from an address. Raises RefusedError where there were too many."""
        now = monotonic()
        if address not in self.trials and len(self.trials) >= ADDRESSES:
            self.trials.clear()
        tried = self.trials[address]
        while tried and tried[0] < now - WITHIN:
            tried.popleft()
        if len(tried) >= TRIALS:
            raise RefusedError(429, f"{TRIALS} tokens that do not hold came from your address within a minute; try again later", int(WITHIN))
        tried.append(now)

    def queue(self) -> Queue:
        return Queue(self.board)

    def worker(self, target: str) -> Worker | None:
        return next((w for w in self.workers if w.target == target), None)


# -- answers ---------------------------------------------------------------------------------------------------------


def said(service: Service, status: int, text: str, user: str = "", headers: dict[str, str] | None = None) -> HTMLResponse:
    """A page that says why there is no other."""
    if status == 401:
        return HTMLResponse(service.pages.html("sign_in.html.j2", said=text), 401, {"www-authenticate": "Bearer", **(headers or {})})
    made = service.pages.html("said.html.j2", status=status, title=TITLES.get(status, str(status)), said=text, user=user)
    return HTMLResponse(made, status, headers)


def refused(error: Exception) -> tuple[int, str, int]:
    """Status, text and seconds after which to try again."""
    match error:
        case RefusedError():
            return error.status, str(error), error.seconds
        case HTTPException():
            known = {404: "there is no such page", 405: "this page is not used so"}
            return error.status_code, known.get(error.status_code, str(error.detail)), 0
        case NoUserError():
            return 401, str(error), 0
        case LimitError():
            return 503 if error.full else 429, str(error), error.seconds
        case RegistryError():
            return 404, str(error.args[0]), 0
        case FullError():
            return 507, "there is no room on the server's disk; this was not kept, and nothing kept before is lost: try again later", 60
        case BoardError():
            return 503, "the board cannot be used now; nothing that was kept is lost: try again later", 60
    return 500, "the server has made a fault; its log says which", 0


def refusal(request: Request, error: Exception) -> Response:
    status, text, seconds = refused(error)
    if status >= 500:
        service_of(request).log("error", status=status, kind=type(error).__name__, said=str(error)[:500])
    return said(service_of(request), status, text, request.scope["state"].get("user", ""), {"retry-after": str(seconds)} if seconds else None)


def service_of(request: Request) -> Service:
    return request.app.state.service


def page(request: Request, template: str, **about: Any) -> HTMLResponse:
    return HTMLResponse(service_of(request).pages.html(template, user=about.pop("user", "") or known(request), **about))


# -- users -----------------------------------------------------------------------------------------------------------


def _token(request: Request) -> str:
    word, _, given = request.headers.get("authorization", "").partition(" ")
    return given.strip() if word.lower() == "bearer" else request.cookies.get(COOKIE, "")


def owner(request: Request, token: str) -> str:
    """Whose token it is. Raises NoUserError, and RefusedError where an address tries too many; a token that holds passes even then."""
    service = service_of(request)
    with service.queue() as queue:
        try:
            user = queue.user_of(token)
        except NoUserError:
            service.tried(request.client.host if request.client else "")
            raise
    request.scope["state"]["user"] = user
    return user


def signed_in(request: Request) -> str:
    """The user. Raises NoUserError where nobody is, or a token does not hold."""
    token = _token(request)
    if not token:
        raise NoUserError("this page needs your token")
    return owner(request, token)


def known(request: Request) -> str:
    """The user, or "": for pages that everybody may read."""
    try:
        return request.scope["state"].get("user", "") or (owner(request, token) if (token := _token(request)) else "")
    except (NoUserError, RefusedError):
        return ""
