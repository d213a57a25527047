"""What koordlet makes of the copilot's containers, and of a copilot that is away, slow or broken."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from koord.api.koordinator.protocol import BATCH, BE
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY
from koord.api.koordinator.slo import CgroupPath, HostApplicationSpec
from koord.host.cgroup.layout import CgroupLayout
from koord.koordlet.inputs.yarn_containers import (
    YarnContainers,
    YarnCopilotSettings,
    container_meta,
    with_application,
    yarn_application,
)
from koord.telemetry.clock import WallClock
from koord.telemetry.http_routing import HttpCall, HttpReply, error_reply
from koord.telemetry.plain_http import PlainHttpServer
from koord.wire.yarn_copilot import ContainerInfo, NodeManagerContainer, container_info

GROUP = "kubepods/besteffort/hadoop-yarn"
MASTER, TASK = "container_1_0001_01_000001", "container_1_0001_01_000002"
SYSTEMD = CgroupLayout("systemd")


def info(name: str = TASK, **changes: Any) -> ContainerInfo:
    made = container_info(NodeManagerContainer(id=name, vcores=2, memory_mb=512), GROUP)
    return ContainerInfo(**{**{field: getattr(made, field) for field in made.__struct_fields__}, **changes})


class FakeCopilot:
    """A copilot that answers what a test wants."""

    def __init__(self) -> None:
        self.server = PlainHttpServer()
        self.listed: list[ContainerInfo] | HttpReply = []
        self.refusal: HttpReply | None = None
        self.killed: list[bytes] = []
        self.server.routes.add("GET", "/v1/containers", lambda _: self.listed)
        self.server.routes.add("POST", "/v1/killContainer", self._kill)

    def _kill(self, call: HttpCall) -> Any:
        self.killed.append(call.body)
        return {"items": []} if self.refusal is None else self.refusal


@pytest.fixture
def socket() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="yc-"))
    yield str(folder / "s")
    shutil.rmtree(folder)


@pytest.fixture
async def copilot(socket: str) -> AsyncIterator[FakeCopilot]:
    made = FakeCopilot()
    await made.server.listen_unix(socket)
    yield made
    await made.server.close()


def follower(socket: str, groups: list[str] | None = None) -> YarnContainers:
    settings = YarnCopilotSettings(endpoint=socket, timeout_s=30.0, kill_timeout_s=30.0)
    return YarnContainers(settings, WallClock(), (groups if groups is not None else []).append)


def test_a_container_is_best_effort_work_of_the_batch_class() -> None:
    one = container_meta(info())
    assert (one.qos, one.priority_class, one.priority_value, one.is_alive) == (BE, BATCH, 5000, True)
    assert (one.namespace, one.name, one.uid, one.third_party) == ("yarn", TASK, TASK, "hadoop-yarn")
    assert one.group == f"{GROUP}/{TASK}"
    assert one.requests == {BATCH_CPU: 2000, BATCH_MEMORY: 512 * 2**20}


def test_a_master_goes_after_its_tasks_and_a_priority_of_a_band_counts() -> None:
    assert container_meta(info(MASTER)).priority_value == container_meta(info(TASK)).priority_value + 1
    mid = container_meta(info(priority=7500))
    assert (mid.priority_value, mid.priority_class) == (7500, "koord-mid")


async def test_containers_are_followed_and_their_group_is_told_once(copilot: FakeCopilot, socket: str) -> None:
    groups: list[str] = []
    yarn = follower(socket, groups)
    await yarn.refresh()
    assert (yarn.containers, yarn.is_present, groups) == ((), True, [])
    copilot.listed = [info(TASK), info(MASTER)]
    await yarn.refresh()
    first = yarn.containers
    assert [one.name for one in first] == [MASTER, TASK]
    await yarn.refresh()
    assert yarn.containers is first  # collectors take the same object for no change
    copilot.listed = []
    await yarn.refresh()
    assert (yarn.containers, groups) == ((), [GROUP])


async def test_without_a_copilot_there_are_no_containers_and_no_problem(socket: str) -> None:
    yarn = follower(socket)
    await yarn.refresh()
    assert (yarn.containers, yarn.is_present, yarn.problem) == ((), False, "")
    assert "no socket" in (await follower("").kill(TASK) or "")


@pytest.mark.parametrize(
    ("listed", "problem"),
    [
        (error_reply(400, "the NodeManager does not answer"), "answered 400: the NodeManager does not answer"),
        (HttpReply(status=400, body=b"{}"), "answered 400"),
        (HttpReply(body=b"<html>"), "cannot be read"),
        (HttpReply(body=b'[{"name":"container_1"}]'), "names no cgroup"),
        (HttpReply(body=b'[{"name":"container_1","cgroupDir":"kubepods/../../x"}]'), "names no cgroup"),
    ],
)
async def test_while_they_are_not_known_there_are_none(
    copilot: FakeCopilot, socket: str, listed: HttpReply, problem: str
) -> None:
    yarn = follower(socket)
    copilot.listed = [info()]
    await yarn.refresh()
    copilot.listed = listed
    await yarn.refresh()
    assert yarn.containers == ()
    assert problem in yarn.problem
    copilot.listed = [info()]
    await yarn.refresh()
    assert (len(yarn.containers), yarn.problem) == (1, "")


async def test_a_kill_that_is_refused_counts_when_the_container_is_gone(copilot: FakeCopilot, socket: str) -> None:
    yarn = follower(socket)
    copilot.listed = [info()]
    assert await yarn.kill(TASK) is None
    assert copilot.killed == [f'{{"containerID":"{TASK}"}}'.encode()]
    copilot.refusal = error_reply(400, "it has no process")
    assert await yarn.kill(TASK) == "the copilot answered 400: it has no process"
    copilot.listed = []
    assert await yarn.kill(TASK) is None
    assert await yarn.is_running(TASK) is False


@pytest.mark.parametrize(
    ("layout", "group", "base"),
    [
        (CgroupLayout("cgroupfs"), GROUP, "KubepodsBesteffort"),
        (SYSTEMD, "kubepods.slice/kubepods-besteffort.slice/hadoop-yarn", "KubepodsBesteffort"),
        (SYSTEMD, "hadoop-yarn", "CgroupRoot"),
    ],
)
def test_the_application_of_all_containers_has_their_group(layout: CgroupLayout, group: str, base: str) -> None:
    application = yarn_application(group, layout)
    assert layout.host_application_dir(application) == group
    assert application.cgroup_path is not None
    assert (application.cgroup_path.base, application.qos, application.priority) == (base, BE, BATCH)


@pytest.mark.parametrize(
    ("stated", "counted"),
    [
        ("hadoop-yarn/", 1),
        ("", 1),  # all best-effort work
        ("hadoop-yarn-2", 2),
        ("hadoop-yarn/container_1", 2),
    ],
)
def test_an_application_that_is_configured_already_is_not_counted_twice(stated: str, counted: int) -> None:
    layout = CgroupLayout("cgroupfs")
    path = CgroupPath(base="KubepodsBesteffort", relative_path=stated)
    known = (HostApplicationSpec(name="mine", qos=BE, priority=BATCH, cgroup_path=path),)
    assert len(with_application(known, yarn_application(GROUP, layout), layout)) == counted
