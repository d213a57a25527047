"""`kubectl logs` of a simulated container: its states with their times, the kubelet's errors, and following."""

from __future__ import annotations

import random
from typing import Any

import pytest

from koord.embedded.apiserver.api_errors import StatusError
from koord.embedded.apiserver.rest.pod_subresources import choose_container, container_log
from koord.embedded.apiserver.server import ApiServer
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.transport.interface import ApiRequest, ApiResponse
from koord.telemetry.clock import ManualClock
from tests.embedded.apiserver.rest_harness import NS, STRATEGIC, Api, pod

BEGAN, READY, ENDED = "2026-01-01T00:00:01Z", "2026-01-01T00:00:03Z", "2026-01-01T00:00:09Z"
STARTED = f"{BEGAN} main (i) started on n1: a simulated container, which runs no process\n"


def a_status(**state: Any) -> dict[str, Any]:
    ready = "running" in state
    main = {"name": "main", "image": "i", "imageID": "", "ready": ready, "restartCount": 0, "state": state}
    condition = {"type": "ContainersReady", "status": "True" if ready else "False", "lastTransitionTime": READY}
    return {"phase": "Running", "conditions": [condition], "containerStatuses": [main]}


RUNNING = {"running": {"startedAt": BEGAN}}
OVER = {"terminated": {"startedAt": BEGAN, "finishedAt": ENDED, "exitCode": 3, "reason": "Error"}}
WAITING = {"waiting": {"reason": "CrashLoopBackOff"}}


def a_pod(status: dict[str, Any]) -> dict[str, Any]:
    spec = {"nodeName": "n1", "containers": [{"name": "main"}, {"name": "side"}]}
    return {"metadata": {"name": "p"}, "spec": spec, "status": status}


def test_each_state_is_a_line() -> None:
    lines = container_log(a_pod(a_status(**RUNNING)), "main", previous=False)
    assert [line.text.split(":")[0] for line in lines] == ["main (i) started on n1", "main is ready"]
    assert [line.time for line in lines] == [BEGAN, READY]
    ended = container_log(a_pod(a_status(**OVER)), "main", previous=False)[-1]
    assert (ended.time, ended.text) == (ENDED, "main ended with exit code 3: Error")


def test_between_two_runs_the_last_one_is_shown() -> None:
    status = a_status(**WAITING)
    status["containerStatuses"][0]["lastState"] = OVER
    assert container_log(a_pod(status), "main", previous=False) == container_log(a_pod(status), "main", previous=True)


@pytest.mark.parametrize(
    ("status", "previous", "message"),
    [
        pytest.param({}, False, 'container "main" in pod "p" is waiting to start: ContainerCreating', id="not-started"),
        pytest.param(a_status(**RUNNING), True, 'previous terminated container "main" in pod "p" not found', id="1st"),
    ],
)
def test_a_run_that_never_was(status: dict[str, Any], previous: bool, message: str) -> None:
    with pytest.raises(StatusError) as refused:
        container_log(a_pod(status), "main", previous=previous)
    assert refused.value.status()["message"] == message


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("", "a container name must be specified for pod p, choose one of: [main side]"),
        ("other", "container other is not valid for pod p"),
    ],
)
def test_a_container_that_is_not_clear(asked: str, message: str) -> None:
    with pytest.raises(StatusError) as refused:
        choose_container(a_pod({}), asked)
    assert refused.value.status()["message"] == message


async def served() -> tuple[EmbeddedCluster, Api]:
    cluster = EmbeddedCluster(ClusterSettings(http=False))
    await cluster.start()
    assert isinstance(cluster.server, ApiServer)
    api = Api(cluster.server, ManualClock(), random.Random(1))
    await api.post("/api/v1/nodes", {"metadata": {"name": "n1"}})
    await api.post(f"{NS}/pods", pod("p", nodeName="n1", containers=[{"name": "main", "image": "i"}]))
    await api.patch(f"{NS}/pods/p/status", {"status": a_status(**RUNNING)}, STRATEGIC)
    return cluster, api


async def read(api: Api, query: str = "") -> str:
    assert (await api.get(f"{NS}/pods/p/log{query}"))[0] == 200
    assert api.last is not None
    return api.last.body.raw().decode()


async def test_the_options_of_kubectl_logs() -> None:
    cluster, api = await served()
    both = f"{STARTED}{READY} main is ready\n"
    assert await read(api) == both
    assert await read(api, "?tailLines=1") == f"{READY} main is ready\n"
    assert await read(api, "?timestamps=true&tailLines=1") == f"{READY} {READY} main is ready\n"
    assert await read(api, f"?sinceTime={READY}") == f"{READY} main is ready\n"
    assert await read(api, "?sinceSeconds=1") == ""
    assert await read(api, "?limitBytes=10") == both[:10]
    await cluster.stop()


async def test_following_ends_with_the_container() -> None:
    cluster, api = await served()
    request = ApiRequest(method="GET", path=f"{NS}/pods/p/log", query={"follow": "true"}, user="tester")
    lines = await api.server.follow_log(request)
    assert not isinstance(lines, ApiResponse)
    assert await anext(lines) == f"{STARTED}{READY} main is ready\n".encode()
    status = {"status": {"containerStatuses": a_status(**OVER)["containerStatuses"]}}
    await api.patch(f"{NS}/pods/p/status", status, STRATEGIC)
    assert await anext(lines) == f"{ENDED} main ended with exit code 3: Error\n".encode()
    assert [text async for text in lines] == []
    await cluster.stop()
