"""This module decides who may read the dashboard: by Host header, Origin, token and session cookie."""

from __future__ import annotations

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from koord.telemetry import http_routing
from koord.telemetry.http_routing import HttpCall, HttpReply

API_PREFIX = "/api/"
SESSION_PATH = "/api/session"
_BEARER = "Bearer "


class DashboardAccess:
    """DashboardAccess lets a call pass that names this server and has the token or the cookie that the token bought.

    A page of another site can make a browser send calls here, also under a name of its own that resolves to 127.0.0.1.
    Its calls have its own name as Host or Origin, and the cookie is not sent with them.
    """

    def __init__(self, token: str = "") -> None:
        """Create the access rules. Without `token` a random one is made."""
        self.token = token or secrets.token_urlsafe(24)
        self._session = secrets.token_urlsafe(24)
        self._port = 0
        self._hosts: frozenset[str] = frozenset()

    def serve_at(self, host: str, port: int) -> str:
        """Accept calls to this address, and to localhost at its port; return the address with the token."""
        named = f"[{host}]" if ":" in host else host
        self._port = port
        self._hosts = frozenset(f"{name}:{port}" for name in (named, "127.0.0.1", "localhost", "[::1]"))
        return f"http://{named}:{port}/#token={self.token}"

    async def guard(self, call: HttpCall) -> HttpReply | None:
        """Return the refusal of a call, or None for one that may pass. The page itself holds no data and is open."""
        if call.headers.get("Host", "").lower() not in self._hosts:
            return http_routing.error_reply(421, "this server has another name: use the address that koord printed")
        origin = call.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() not in self._hosts:
            return http_routing.error_reply(403, "a page of another site may not ask here")
        if not call.path.startswith(API_PREFIX):
            return None
        if call.path == SESSION_PATH or self._has_session(call):
            return None
        if self.has_token(call):
            return None
        return http_routing.error_reply(401, "open the address that koord printed: it carries the token")

    def has_token(self, call: HttpCall) -> bool:
        given = call.headers.get("Authorization", "")
        return given.startswith(_BEARER) and _equal(given[len(_BEARER) :], self.token)

    def open_session(self, call: HttpCall) -> HttpReply:
        """Answer a call that has the token with the cookie that stands for it from now on."""
        if not self.has_token(call):
            return http_routing.error_reply(401, "this token is not that of this dashboard")
        # Cookies are shared by all ports of a host: the name tells two dashboards apart.
        cookie = f"{self._cookie_name}={self._session}; Path=/; HttpOnly; SameSite=Strict"
        return HttpReply(status=204, headers={"Set-Cookie": cookie})

    @property
    def _cookie_name(self) -> str:
        return f"koord-dashboard-{self._port}"

    def _has_session(self, call: HttpCall) -> bool:
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(call.headers.get("Cookie", ""))
        except CookieError:  # a cookie of another program on this host
            return False
        found = cookies.get(self._cookie_name)
        return found is not None and _equal(found.value, self._session)


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
