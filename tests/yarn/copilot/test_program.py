"""The copilot's API over its socket, beside a NodeManager whose containers are real processes."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from koord.host.cgroup.layout import CgroupLayout
from koord.telemetry.clock import WallClock
from koord.telemetry.http_routing import HttpReply
from koord.telemetry.plain_http import request
from koord.yarn.copilot.node_manager import node_manager_address
from koord.yarn.copilot.program import CopilotNotStarted, CopilotSettings, YarnCopilot
from tests.host.fake_machine import FakeMachine
from tests.koordlet.inputs.fake_kubelet import pod
from tests.yarn.copilot.fake_node_manager import FakeNodeManager, container_id

MASTER, TASK, YOUNGEST = container_id(1), container_id(2), container_id(3)
PATHS = {"cgroupfs": "kubepods/besteffort/hadoop-yarn"}
PATHS["systemd"] = "kubepods.slice/kubepods-besteffort.slice/hadoop-yarn"


@pytest.fixture(params=[(1, "cgroupfs"), (1, "systemd"), (2, "systemd")], ids=lambda one: f"v{one[0]}-{one[1]}")
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> FakeMachine:
    version, driver = request.param
    return FakeMachine(tmp_path, version, CgroupLayout(driver))


@pytest.fixture
async def manager(machine: FakeMachine) -> AsyncIterator[FakeNodeManager]:
    made = FakeNodeManager(machine, PATHS[machine.layout.driver])
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def socket() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="yc-"))
    yield str(folder / "yarn-copilot.sock")
    shutil.rmtree(folder)


def settings_of(machine: FakeMachine, manager: FakeNodeManager, socket: str, **changes: Any) -> CopilotSettings:
    known = {
        "endpoint": socket,
        "cgroup_root": machine.paths.cgroup,
        "node_manager": ("127.0.0.1", manager.port),
        "kubelet": None,
        "address": None,
    }
    return CopilotSettings(**{**known, **changes})


@pytest.fixture
async def copilot(machine: FakeMachine, manager: FakeNodeManager, socket: str) -> AsyncIterator[YarnCopilot]:
    made = await YarnCopilot.start(settings_of(machine, manager, socket), WallClock())
    assert isinstance(made, YarnCopilot)
    yield made
    await made.stop()


async def ask(socket: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    sent = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await request(socket, method, path, sent, timeout_s=30.0)
    assert isinstance(answer, HttpReply), answer
    return answer.status, json.loads(answer.body)


async def test_containers_are_listed_where_this_nodes_driver_puts_them(
    machine: FakeMachine, manager: FakeNodeManager, copilot: YarnCopilot, socket: str
) -> None:
    assert await ask(socket, "GET", "/health") == (200, "ok")
    assert await ask(socket, "GET", "/information") == (200, {"name": "yarn", "version": "v1"})
    assert await ask(socket, "GET", "/v1/containers") == (200, [])
    await manager.run_container(TASK, vcores=2, memory_mb=256)
    manager.rows[MASTER] = {"id": MASTER, "state": "DONE"}
    await copilot.node_manager.containers(fresh=True)
    status, listed = await ask(socket, "GET", "/v1/containers")
    assert (status, [one["name"] for one in listed]) == (200, [TASK])
    assert listed[0]["cgroupDir"] == f"{PATHS[machine.layout.driver]}/{TASK}"
    assert listed[0]["resources"]["requests"] == {"cpu": "2", "memory": str(256 * 2**20)}
    assert await ask(socket, "GET", f"/v1/container?containerID={TASK}") == (200, listed[0])
    assert (await ask(socket, "GET", f"/v1/container?containerID={MASTER}"))[0] == 400
    assert os.stat(socket).st_mode & 0o777 == 0o660


async def test_a_container_is_killed_with_all_its_processes_and_no_other(
    manager: FakeNodeManager, copilot: YarnCopilot, socket: str
) -> None:
    await manager.run_container(TASK)
    await manager.run_container(YOUNGEST)
    status, answer = await ask(socket, "POST", "/v1/killContainer", {"containerID": TASK})
    assert (status, [one["name"] for one in answer["items"]]) == (200, [TASK])
    assert (manager.exit_code(TASK), manager.is_running(YOUNGEST)) == (-9, True)
    assert (await ask(socket, "POST", "/v1/killContainer", {"containerID": TASK}))[0] == 400  # it is gone


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"containerID": container_id(7)}, "has no live container"),
        ({"containerID": "../../../etc"}, "is no id of a container"),
        ({}, "is no id of a container"),
        (b"{", "is no request to kill a container"),
    ],
)
async def test_what_cannot_be_killed_is_said(copilot: YarnCopilot, socket: str, body: Any, reason: str) -> None:
    status, answer = await ask(socket, "POST", "/v1/killContainer", body)
    assert status == 400
    assert reason in answer["message"]


async def test_processes_that_are_not_seen_from_here_are_not_killed(
    machine: FakeMachine, manager: FakeNodeManager, copilot: YarnCopilot, socket: str
) -> None:
    group = await manager.run_container(TASK, joins=False)
    status, answer = await ask(socket, "POST", "/v1/killContainer", {"containerID": TASK})
    assert (status, "has no process in" in answer["message"]) == (400, True)
    for pid in (0, 1):
        (Path(machine.tree.group_path("cpu", group)) / "cgroup.procs").write_text(f"{pid}\n")
        status, answer = await ask(socket, "POST", "/v1/killContainer", {"containerID": TASK})
        assert (status, "the host's PID namespace" in answer["message"]) == (400, True)
    assert manager.is_running(TASK)


async def test_killing_by_resource_frees_what_is_asked_for(
    manager: FakeNodeManager, copilot: YarnCopilot, socket: str
) -> None:
    for name in (MASTER, TASK, YOUNGEST):
        await manager.run_container(name, vcores=1, memory_mb=512)
    assert await ask(socket, "POST", "/v1/killContainersByResource") == (200, {"items": []})
    assert (await ask(socket, "POST", "/v1/killContainersByResource", {"resources": {"cpu": "lots"}}))[0] == 400
    assert all(manager.is_running(name) for name in (MASTER, TASK, YOUNGEST))
    body = {"resources": {"cpu": "1500m", "memory": "100Mi"}}
    status, answer = await ask(socket, "POST", "/v1/killContainersByResource", body)
    assert (status, [one["name"] for one in answer["items"]]) == (200, [YOUNGEST, TASK])
    assert [manager.is_running(name) for name in (MASTER, TASK, YOUNGEST)] == [True, False, False]


async def test_a_node_manager_that_does_not_answer_or_answers_nonsense(
    manager: FakeNodeManager, copilot: YarnCopilot, socket: str
) -> None:
    manager.answer = web.Response(status=503)
    status, answer = await ask(socket, "GET", "/v1/containers")
    assert (status, "answered 503" in answer["message"]) == (400, True)
    manager.answer = web.Response(text="<html>")
    status, answer = await ask(socket, "POST", "/v1/killContainer", {"containerID": TASK})
    assert (status, "no list of containers" in answer["message"]) == (400, True)
    manager.answer = None
    assert await ask(socket, "GET", "/v1/containers") == (200, [])


async def test_many_callers_cost_the_node_manager_one_list(
    manager: FakeNodeManager, copilot: YarnCopilot, socket: str
) -> None:
    for _ in range(5):
        await ask(socket, "GET", "/v1/containers")
    assert manager.requests == 1


async def test_metrics_and_health(machine: FakeMachine, manager: FakeNodeManager, socket: str) -> None:
    made = await YarnCopilot.start(settings_of(machine, manager, socket), WallClock())
    assert isinstance(made, YarnCopilot)
    port = await made.endpoint.listen("127.0.0.1", 0)
    await manager.run_container(TASK)
    async with aiohttp.ClientSession() as session:
        texts = {}
        for name in ("healthz", "readyz", "metrics"):
            async with session.get(f"http://127.0.0.1:{port}/{name}") as answer:
                assert answer.status == 200
                texts[name] = await answer.text()
        assert "koord_yarn_copilot_containers 1" in texts["metrics"]
        assert 'koord_yarn_copilot_node_manager_requests_total{outcome="ok"} 1' in texts["metrics"]
        manager.answer = web.Response(status=500)
        made.node_manager.forget()
        async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            assert answer.status == 500
    await made.stop()


async def test_a_second_copilot_on_the_socket_says_why_it_does_not_start(
    machine: FakeMachine, manager: FakeNodeManager, copilot: YarnCopilot, socket: str
) -> None:
    other = await YarnCopilot.start(settings_of(machine, manager, socket), WallClock())
    assert isinstance(other, CopilotNotStarted)
    assert f"pid {os.getpid()}" in other.reason


async def test_the_node_managers_pod_is_found_when_its_address_changed(
    machine: FakeMachine, manager: FakeNodeManager, socket: str
) -> None:
    found = pod("nm", labels={"app.kubernetes.io/component": "node-manager"})
    found["status"]["podIP"] = "127.0.0.1"
    assert node_manager_address(json.dumps({"items": [pod("a"), found]}).encode()) == ("127.0.0.1", 8042)
    found["spec"]["hostNetwork"] = True
    assert node_manager_address(json.dumps({"items": [found]}).encode()) == ("localhost", 8042)
    found["status"]["phase"] = "Failed"
    assert node_manager_address(json.dumps({"items": [found]}).encode()) is None
    assert node_manager_address(b"no json") is None
    asked: list[str] = []

    async def pods(call: web.Request) -> web.Response:
        asked.append(call.path)
        return web.json_response({"items": []})

    application = web.Application()
    application.router.add_get("/pods", pods)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    kubelet = ("127.0.0.1", runner.addresses[0][1])
    made = await YarnCopilot.start(settings_of(machine, manager, socket, kubelet=kubelet), WallClock())
    assert isinstance(made, YarnCopilot)
    assert (await ask(socket, "GET", "/v1/containers"))[0] == 200
    assert asked == []  # it answers where it is expected
    manager.answer = web.Response(status=503)
    made.node_manager.forget()
    for _ in range(2):
        assert (await ask(socket, "GET", "/v1/containers"))[0] == 400
    assert asked == ["/pods"]  # and not again at once
    await made.stop()
    await runner.cleanup()
