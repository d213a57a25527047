"""The server over HTTP: headers, pages, updates by long polling, and what it refuses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from importlib import resources
from typing import Any

import aiohttp
import pytest

from koord.dashboard.access import DashboardAccess
from koord.dashboard.fleet import FleetTable, NodeRow
from koord.dashboard.report import WHAT_IF
from koord.dashboard.server import PAGES, DashboardServer, NotLoopback
from koord.telemetry.clock import WallClock

TOKEN = {"Authorization": "Bearer secret"}
WEB = resources.files("koord.dashboard") / "web"
ASSETS = sorted(file.name for file in WEB.iterdir())


async def echo(parameters: Mapping[str, str]) -> Any:
    return dict(parameters)


class ServedDashboard:
    def __init__(self, server: DashboardServer, session: aiohttp.ClientSession, base: str) -> None:
        self.server = server
        self.session = session
        self.base = base

    async def get(self, path: str, **headers: str) -> tuple[int, Mapping[str, str], bytes]:
        async with self.session.get(self.base + path, headers=headers) as answer:
            return answer.status, answer.headers, await answer.read()


@pytest.fixture
async def served() -> AsyncIterator[ServedDashboard]:
    fleet = FleetTable("epoch", 0.0)
    server = DashboardServer(fleet, lambda: {"echo": echo, WHAT_IF: echo}, WallClock(), DashboardAccess("secret"))
    url = await server.listen("127.0.0.1", 0)
    async with aiohttp.ClientSession() as session:
        yield ServedDashboard(server, session, url.partition("/#")[0])
    await server.close()


@pytest.mark.parametrize("path", ["/", "/nodes/a", "/assets/main.js", "/assets/none.js", "/api/updates", "/none"])
async def test_every_answer_forbids_outside_resources(served: ServedDashboard, path: str) -> None:
    _, headers, _ = await served.get(path)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"
    )
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cache-Control"] == "no-store"


async def test_deep_links_answer_with_the_page_and_unknown_paths_do_not(served: ServedDashboard) -> None:
    for path in ("/", *(f"/{page}" for page in PAGES), "/nodes/a", "/pods/default/web", "/gangs/default/mpi"):
        status, headers, body = await served.get(path)
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8"), path
        assert b"/assets/main.js" in body
    for path in ("/none", "/assets/../server.py", "/assets/%2e%2e%2fserver.py", "/assets/server.py"):
        assert (await served.get(path))[0] == 404, path


async def test_updates_come_as_soon_as_something_changes(served: ServedDashboard) -> None:
    served.server.fleet.put_node(NodeRow(name="first"))
    served.server.tick()
    async with served.session.get(f"{served.base}/api/updates", headers=TOKEN) as answer:
        first = await answer.json()
    assert first["whole"]
    waiting = asyncio.create_task(
        served.session.get(f"{served.base}/api/updates?epoch=epoch&since={first['version']}", headers=TOKEN)
    )
    served.server.fleet.put_node(NodeRow(name="<img src=x onerror=alert(1)>"))
    while not waiting.done():
        served.server.tick()
        await asyncio.sleep(0)
    async with await waiting as answer:
        second = await answer.json()
    assert not second["whole"]
    assert [row[0] for row in second["nodes"]] == ["<img src=x onerror=alert(1)>"]


@pytest.mark.parametrize("since", ["-1", "x", "9" * 19, "1e3"])
async def test_a_version_that_is_none_is_refused(served: ServedDashboard, since: str) -> None:
    assert (await served.get(f"/api/updates?since={since}", **TOKEN))[0] == 400


async def test_reports_and_manifests_reach_their_functions(served: ServedDashboard) -> None:
    status, _, body = await served.get("/api/reports/echo?name=a&name=b", **TOKEN)
    assert (status, body) == (200, b'{"name":"a"}')
    async with served.session.post(f"{served.base}/api/what-if", data=b"kind: Pod", headers=TOKEN) as answer:
        assert await answer.json() == {"manifest": "kind: Pod"}
    async with served.session.post(f"{served.base}/api/what-if", data=b"\xff", headers=TOKEN) as answer:
        assert answer.status == 400


async def test_without_the_token_nothing_is_told_and_nothing_is_run(served: ServedDashboard) -> None:
    for path in ("/api/updates", "/api/reports/echo", "/api/none"):
        assert (await served.get(path))[0] == 401, path
    async with served.session.post(f"{served.base}/api/what-if", data=b"kind: Pod") as answer:
        assert answer.status == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1"])
async def test_it_does_not_listen_where_other_machines_reach_it(host: str) -> None:
    server = DashboardServer(FleetTable("e", 0.0), dict, WallClock())
    with pytest.raises(NotLoopback, match="SSH tunnel"):
        await server.listen(host, 0)


def test_assets_name_no_outside_resource_and_never_parse_markup() -> None:
    for name in ASSETS:
        text = (WEB / name).read_text()
        outside = set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"']*", text))
        assert outside <= {"http://www.w3.org/2000/svg"}, name
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in text, name


def test_modules_import_only_modules_that_are_there() -> None:
    for name in ASSETS:
        for wanted in re.findall(r"/assets/([\w.-]+)", (WEB / name).read_text()):
            assert wanted in ASSETS, f"{name} wants {wanted}"
