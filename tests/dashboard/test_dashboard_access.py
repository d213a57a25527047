"""Who may read the dashboard: the token, the cookie that it buys, and pages of other sites."""

from __future__ import annotations

import pytest

from koord.dashboard.access import SESSION_PATH, DashboardAccess
from koord.telemetry.http_routing import HttpCall

HOST = "127.0.0.1:8080"


@pytest.fixture
def access() -> DashboardAccess:
    made = DashboardAccess("the-token")
    assert made.serve_at("127.0.0.1", 8080) == "http://127.0.0.1:8080/#token=the-token"
    return made


def call(path: str = "/api/updates", **headers: str) -> HttpCall:
    return HttpCall(method="GET", path=path, headers={"Host": HOST, **headers})


async def status(access: DashboardAccess, asked: HttpCall) -> int:
    refusal = await access.guard(asked)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({"Authorization": "Bearer the-token"}, 200, id="token"),
        pytest.param({"Authorization": "Bearer the-tokem"}, 401, id="another-token"),
        pytest.param({"Authorization": "Bearer "}, 401, id="empty-token"),
        pytest.param({"Authorization": "Bearer thé-token"}, 401, id="letters-beyond-ascii"),
        pytest.param({"Authorization": "the-token"}, 401, id="no-scheme"),
        pytest.param({"Cookie": "koord-dashboard-8080=guess"}, 401, id="guessed-cookie"),
        pytest.param({"Cookie": 'a="'}, 401, id="malformed-cookie"),
        pytest.param({}, 401, id="nothing"),
    ],
)
async def test_data_needs_the_token(access: DashboardAccess, headers: dict[str, str], expected: int) -> None:
    assert await status(access, call(**headers)) == expected


async def test_the_page_itself_holds_no_data_and_needs_no_token(access: DashboardAccess) -> None:
    assert await status(access, call("/nodes")) == 200


async def test_the_token_buys_a_cookie_that_scripts_and_other_sites_do_not_get(access: DashboardAccess) -> None:
    opened = access.open_session(call(SESSION_PATH, Authorization="Bearer the-token"))
    cookie = opened.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "the-token" not in cookie
    assert await status(access, call(Cookie=f"other=1; {cookie.split(';')[0]}")) == 200
    assert access.open_session(call(SESSION_PATH, Authorization="Bearer no")).status == 401


async def test_the_cookie_of_another_run_opens_nothing(access: DashboardAccess) -> None:
    other = DashboardAccess("the-token")
    other.serve_at("127.0.0.1", 8080)
    cookie = other.open_session(call(SESSION_PATH, Authorization="Bearer the-token")).headers["Set-Cookie"]
    assert await status(access, call(Cookie=cookie.split(";")[0])) == 401


@pytest.mark.parametrize("host", ["evil.example:8080", "127.0.0.1", "127.0.0.1:80", "", "localhost.evil.example:8080"])
async def test_a_name_that_resolves_here_is_not_served(access: DashboardAccess, host: str) -> None:
    asked = call(Authorization="Bearer the-token", Host=host)
    assert await status(access, asked) == 421
    assert await status(access, call("/", Host=host)) == 421


@pytest.mark.parametrize("host", [HOST, "localhost:8080", "LOCALHOST:8080", "[::1]:8080"])
async def test_names_of_this_machine_are_served(access: DashboardAccess, host: str) -> None:
    assert await status(access, call(Authorization="Bearer the-token", Host=host)) == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:9999", "null"])
async def test_a_page_of_another_origin_may_not_ask(access: DashboardAccess, origin: str) -> None:
    assert await status(access, call(Authorization="Bearer the-token", Origin=origin)) == 403


async def test_two_dashboards_make_different_tokens() -> None:
    assert DashboardAccess().token != DashboardAccess().token
