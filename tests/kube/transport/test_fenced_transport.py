"""Writes leave only while their sender may write, whenever they were begun."""

from __future__ import annotations

import asyncio

import pytest

from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, PODS
from koord.kube.client.retrying_caller import NEVER_RETRY
from koord.kube.client.typed_client import Client
from koord.kube.transport.interface import ApiRequest, Unreachable
from koord.kube.transport.wrappers import FencedTransport
from koord.telemetry.clock import LoopClock, run_virtual
from tests.kube.scripted_server import ScriptedServer

PATH = "/api/v1/namespaces/n/pods"


@pytest.mark.parametrize(
    ("method", "path", "passes"),
    [
        pytest.param("GET", PATH, True, id="reads-pass"),
        pytest.param("POST", PATH, False, id="a-create-does-not"),
        pytest.param("PATCH", f"{PATH}/p", False, id="a-patch-does-not"),
        pytest.param("DELETE", f"{PATH}/p", False, id="a-delete-does-not"),
        pytest.param("POST", f"{PATH}/events/binding", False, id="a-pod-named-like-events-is-no-event"),
        pytest.param("POST", "/apis/events.k8s.io/v1/namespaces/n/events", True, id="events-pass"),
    ],
)
def test_behind_a_closed_fence(method: str, path: str, passes: bool) -> None:
    async def story(_: LoopClock) -> None:
        server = ScriptedServer()
        fenced = FencedTransport(server, lambda: False)
        request = ApiRequest(method=method, path=path, body={"metadata": {"name": "x"}})
        if passes:
            await fenced.send(request)
        else:
            with pytest.raises(Unreachable) as refused:
                await fenced.send(request)
            assert not refused.value.sent
        assert len(server.requests) == passes

    run_virtual(story)


def test_a_write_that_waited_for_its_turn_is_looked_at_when_it_leaves() -> None:
    async def story(clock: LoopClock) -> None:
        server, may = ScriptedServer(), [True]
        client = Client(FencedTransport(server, lambda: may[0]), clock=clock, qps=1, burst=1, retry=NEVER_RETRY)
        pods = [{"metadata": {"name": name, "namespace": "n"}} for name in ("first", "second")]
        await client.dynamic.create(PODS, pods[0])
        waiting = asyncio.create_task(client.dynamic.create(PODS, pods[1]))
        await asyncio.sleep(0.5)
        may[0] = False
        with pytest.raises(Unreachable):
            await waiting
        event = {"metadata": {"name": "e", "namespace": "n"}}
        await client.dynamic.create(EVENTS_EVENTS, event)
        assert [request.body["metadata"]["name"] for request in server.requests] == ["first", "e"]

    run_virtual(story)
