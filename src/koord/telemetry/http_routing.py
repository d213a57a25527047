"""HTTP calls and replies as plain values, and a table of routes by path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


class HttpCall(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    query: Mapping[str, tuple[str, ...]] = {}
    headers: Mapping[str, str] = {}  # looked up without regard to case
    body: bytes = b""
    certificate: Mapping[str, Any] | None = None  # of a client that showed one and was verified
    parameters: Mapping[str, str] = {}  # the parts of the path that the route names with a colon

    def first_value(self, name: str) -> str | None:
        values = self.query.get(name)
        return values[0] if values else None

    def is_switched_on(self, name: str) -> bool:
        """Return whether a switch is on: `?name`, `?name=` and `?name=true` all are."""
        return self.first_value(name) in ("", "true", "1")


class HttpReply(msgspec.Struct, frozen=True, kw_only=True):
    status: int = 200
    body: bytes = b""
    content_type: str = TEXT
    headers: Mapping[str, str] = {}


# A handler answers with a Reply, or with data that becomes JSON. It may be a coroutine function.
HttpHandler = Callable[[HttpCall], Any | Awaitable[Any]]
# Decides on a call before it is handled: None lets it pass.
HttpGuard = Callable[[HttpCall], Awaitable[HttpReply | None]]

NOT_FOUND = HttpReply(status=404, body=b"404 page not found\n")


def text_reply(words: str, status: int = 200) -> HttpReply:
    return HttpReply(status=status, body=words.encode())


def json_reply(data: Any, status: int = 200) -> HttpReply:
    return HttpReply(status=status, body=msgspec.json.encode(data), content_type=JSON)


def error_reply(status: int, message: str) -> HttpReply:
    """Return an error in the format of Koordinator's services."""
    return json_reply({"message": message}, status)


def status_reply(code: int, reason: str, message: str) -> HttpReply:
    """Return an error in the format of Kubernetes' secure ports."""
    body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    body |= {"message": message, "reason": reason}
    if code == 403:
        body["details"] = {}
    body["code"] = code
    pretty = msgspec.json.format(msgspec.json.encode(body), indent=2)
    return HttpReply(status=code, body=pretty, content_type=JSON)


class RouteTable:
    """Routes with paths like /apis/v1/nodes/:name. A fixed path goes before one with a parameter."""

    def __init__(self) -> None:
        self._fixed: dict[str, dict[str, HttpHandler]] = {}
        self._open: list[tuple[tuple[str, ...], str, dict[str, HttpHandler]]] = []

    def add(self, method: str, path: str, handler: HttpHandler) -> None:
        """Register a handler. `method` "*" is any. A path and method can be registered once."""
        methods = self._methods(path)
        if method in methods:
            raise ValueError(f"{method} {path} is taken")
        methods[method] = handler

    def find(self, method: str, path: str) -> tuple[HttpHandler, dict[str, str]] | None:
        methods = self._fixed.get(path)
        if methods is not None:
            handler = methods.get(method) or methods.get("*")
            return None if handler is None else (handler, {})
        given = path.split("/")
        for pattern, _, methods in self._open:
            handler = methods.get(method) or methods.get("*")
            if handler is not None and len(pattern) == len(given):
                pairs = tuple(zip(pattern, given))
                if all(part == value or (part[:1] == ":" and value) for part, value in pairs):
                    return handler, {part[1:]: value for part, value in pairs if part[:1] == ":"}
        return None

    def listing(self, prefix: str) -> dict[str, list[str]]:
        """Return method -> sorted paths below `prefix`."""
        found: dict[str, list[str]] = {}
        known = [*self._fixed.items(), *((path, methods) for _, path, methods in self._open)]
        for path, methods in known:
            if path.startswith(prefix):
                for method in methods:
                    found.setdefault(method, []).append(path)
        return {method: sorted(paths) for method, paths in sorted(found.items())}

    def _methods(self, path: str) -> dict[str, HttpHandler]:
        if "/:" not in path:
            return self._fixed.setdefault(path, {})
        for _, known, methods in self._open:
            if known == path:
                return methods
        made: dict[str, HttpHandler] = {}
        self._open.append((tuple(path.split("/")), path, made))
        return made
