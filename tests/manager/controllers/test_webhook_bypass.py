"""Pods that no webhook changed though a profile is for them are told of, once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from koord.api.config import gates
from koord.api.koordinator.custom_kinds import CLUSTER_COLOCATION_PROFILES
from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, NAMESPACES, PODS
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.transport.api_error import unwrap
from koord.manager.controllers.webhook_bypass import WebhookBypassController
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.reconcile_loop import ManagerContext, ManagerSettings
from koord.telemetry.clock import LoopClock, run_virtual

Test = Callable[[Client, WebhookBypassController], Awaitable[None]]


def run(test: Test, switches: str = "") -> None:
    switched = gates.parse_feature_gates(switches, MANAGER_GATES)
    assert isinstance(switched, dict)

    async def main(clock: LoopClock) -> None:
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), clock=clock)
        await cluster.start()
        client, informers = cluster.client, cluster.informers
        assert client is not None
        assert informers is not None
        recorder = EventRecorder(client, clock, controller="koord-manager", instance="test")
        settings = ManagerSettings(gates=switched)
        context = ManagerContext(client=client, informers=informers, clock=clock, recorder=recorder, settings=settings)
        controller = WebhookBypassController(context)
        try:
            recorder.start()
            await controller.start()
            unwrap(await client.create(NAMESPACES, {"metadata": {"name": "work"}}))
            spec = {"selector": {"matchLabels": {"app": "job"}}, "qosClass": "BE"}
            unwrap(await client.create(CLUSTER_COLOCATION_PROFILES, {"metadata": {"name": "batch"}, "spec": spec}))
            await asyncio.sleep(2)
            await test(client, controller)
        finally:
            await controller.stop()
            await recorder.stop()
            await cluster.stop()

    run_virtual(main)


async def create(client: Client, name: str, namespace: str = "work", **labels: str) -> None:
    pod: dict[str, Any] = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    unwrap(await client.create(PODS, pod, namespace))
    await asyncio.sleep(2)


async def told(client: Client) -> list[tuple[str, str]]:
    events = unwrap(await client.list(EVENTS_EVENTS)).items
    return sorted((event.regarding.name, event.reason) for event in events)


def total(controller: WebhookBypassController) -> float:
    (_, counter) = controller.readings()
    return counter.values[0][1]


def test_an_untouched_pod_is_told_of_once_and_leaves_the_numbers_when_it_goes() -> None:
    async def test(client: Client, controller: WebhookBypassController) -> None:
        await create(client, "bare", app="job")
        unwrap(await client.patch(PODS, "bare", {"metadata": {"labels": {"x": "y"}}}, "work", kind="merge"))
        await asyncio.sleep(2)
        assert await told(client) == [("bare", "WebhookBypassed")]
        now, _ = controller.readings()
        assert now.values == ((("work",), 1.0),)
        unwrap(await client.delete(PODS, "bare", "work", grace_seconds=0))
        await asyncio.sleep(2)
        now, _ = controller.readings()
        assert now.values == ()
        assert total(controller) == 1

    run(test)


def test_pods_that_were_changed_or_are_nobodys_are_left_alone() -> None:
    async def test(client: Client, controller: WebhookBypassController) -> None:
        await create(client, "changed", app="job", **{"koordinator.sh/qosClass": "BE"})
        await create(client, "other", app="web")
        await create(client, "system", "kube-system", app="job")
        assert await told(client) == []
        assert total(controller) == 0

    run(test)
