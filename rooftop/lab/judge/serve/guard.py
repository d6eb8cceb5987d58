"""What stands before and after every request: limits of size and time, no forms of other sites, security headers, a line of the log."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rooftop.lab.judge.forms import MOST

BODY = 2 * MOST + (64 << 10)  # bytes of a request: a source, whose lines a browser ends by two, and the other fields
DRAINED = 32 << 20  # bytes of a larger one that are read and dropped, so that its sender reads the answer
PATIENCE = 30.0  # seconds for a request's body
_NOTHING = (
    "accelerometer", "autoplay", "camera", "clipboard-read", "clipboard-write", "cross-origin-isolated", "display-capture",
    "encrypted-media", "fullscreen", "geolocation", "gyroscope", "magnetometer", "microphone", "midi", "payment", "picture-in-picture",
    "publickey-credentials-get", "screen-wake-lock", "sync-xhr", "usb", "xr-spatial-tracking",
)
HEADERS = {  # OWASP's list of secure headers; TLS, and Strict-Transport-Security where it is spoken, are the proxy's
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "x-frame-options": "DENY", "referrer-policy": "no-referrer",
    "permissions-policy": ", ".join(f"{name}=()" for name in _NOTHING),
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "x-permitted-cross-domain-policies": "none", "x-dns-prefetch-control": "off", "cache-control": "no-store",
}
SECURE = "max-age=31536000; includeSubDomains"


class Log(logging.Handler):
    """Lines of JSON: what happens here, and what the server's own loggers say."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self._path, self._lock, self._file = path, threading.Lock(), None if path is None else path.open("a", encoding="utf-8")

    def __call__(self, event: str, **fields: Any) -> None:
        line = json.dumps({"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **fields}, default=str)
        to: IO[str] = self._file or sys.stdout
        with self._lock:
            try:
                to.write(line + "\n")
                to.flush()
            except OSError:  # a full disk, a closed pipe: the service goes on
                return

    def emit(self, record: logging.LogRecord) -> None:
        self("server", level=record.levelname.lower(), said=self.format(record))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()


class Guard:
    """The application, guarded. `refused(scope, status, text)`: the page that says so. `prefix`: of the paths behind a proxy; requests may
    have it or not."""

    def __init__(self, app: ASGIApp, log: Log, refused: Callable[[Scope, int, str], Response], prefix: str = "") -> None:
        self._app, self._log, self._refused, self._prefix = app, log, refused, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, sent = time.perf_counter(), {"status": 500, "bytes": 0}
        scope["root_path"] = self._prefix
        scope.setdefault("state", {})

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent["status"] = message["status"]
                _add_headers(MutableHeaders(raw=message.setdefault("headers", [])), scope["scheme"] == "https")
            sent["bytes"] += len(message.get("body", b""))
            await send(message)

        try:
            await self._answer(scope, receive, answer)
        finally:
            self._log(
                "request", method=scope["method"], path=scope["path"][:200], client=(scope.get("client") or ("",))[0],
                user=scope["state"].get("user", ""), ms=round(1000 * (time.perf_counter() - began), 1), **sent,
            )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            await self._refused(scope, 405, f"{scope['method'][:20]} is not used here")(scope, receive, send)
            return
        if scope["method"] == "POST":
            if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                await self._refused(scope, 403, "this form was sent from another site; open the page here")(scope, receive, send)
                return
            try:
                async with asyncio.timeout(PATIENCE):
                    body, size = await _body(receive, headers.get("content-length", ""))
            except TimeoutError:
                await self._refused(scope, 408, f"the request did not arrive in {PATIENCE:.0f} s; send it again")(scope, receive, send)
                return
            if body is None:
                text = f"the request has {size:,} bytes or more; a submission has at most {MOST:,}"
                await self._refused(scope, 413, text)(scope, receive, send)
                return
            receive = _again(body, receive)
        await self._app(scope, receive, send)


async def _body(receive: Receive, declared: str) -> tuple[bytes | None, int]:
    """The body, or None where it is too large, and its size as far as it was read."""
    parts: list[bytes] = []
    size, expected = 0, int(declared) if declared.isdecimal() and len(declared) < 20 else 0
    if expected > DRAINED:
        return None, expected
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"", 0
        size += len(message.get("body", b""))
        if size <= BODY:
            parts.append(message.get("body", b""))
        if not message.get("more_body") or size > DRAINED:
            return (b"".join(parts) if size <= BODY else None), max(size, expected)


def _again(body: bytes, receive: Receive) -> Receive:
    given = [{"type": "http.request", "body": body, "more_body": False}]

    async def once() -> Message:
        return given.pop() if given else await receive()

    return once


def _add_headers(headers: MutableHeaders, secure: bool) -> None:
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    if secure:
        headers.setdefault("strict-transport-security", SECURE)


