"""Informers, elections and events against a real kube-apiserver, and elections beside a real kube-scheduler."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koord.api.kubernetes.builtin_kinds import (
    CONFIG_MAPS,
    CORE_EVENTS,
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS_EVENTS,
    LEASES,
    NAMESPACES,
)
from koord.api.kubernetes.core_v1 import ConfigMap
from koord.api.kubernetes.node import LeaseSpec
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder, object_reference
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.leader_election import LeaderElector, LeaseConfig
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import ApiRequest, ApiResponse, Transport, WatchStream
from koord.telemetry.clock import WallClock
from tests.kube.scripted_server import THINGS
from tests.real.reach import breakable, connect
from tools import assets
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real

PATIENCE_S = 60


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[Client]:
    async with connect(plane.kubeconfig) as made:
        yield made


@pytest.fixture
async def ns(client: Client) -> AsyncIterator[str]:
    name = f"informer-{secrets.token_hex(4)}"
    unwrap(await client.create(NAMESPACES, {"metadata": {"name": name}}))
    yield name
    await client.delete_collection(CONFIG_MAPS, name)
    await client.delete(NAMESPACES, name)
    left = unwrap(await client.dynamic.get(NAMESPACES, name))
    await client.dynamic.replace(NAMESPACES, {**left, "spec": {"finalizers": []}}, subresource="finalize")


async def until(true: Callable[[], bool | Awaitable[bool]]) -> None:
    """Poll: what is waited for happens in other processes, which cannot set an event here."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = true()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.02)


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


def state(maps: list[ConfigMap]) -> dict[str, tuple[str, str]]:
    return {m.metadata.name: (m.metadata.uid, m.metadata.resource_version) for m in maps}


async def test_an_informer_follows_writes_through_cuts_and_an_outage(
    plane: ControlPlane, client: Client, ns: str, tmp_path: Path
) -> None:
    told: dict[str, ConfigMap] = {}

    def replay(change: ObjectChange[ConfigMap]) -> None:
        name = change.object.metadata.name
        if change.kind == "deleted":
            del told[name]
        else:
            assert (name in told) == (change.kind == "updated")
            told[name] = change.object

    async with (
        breakable(plane, tmp_path) as (watcher, wire),
        InformerFactory(watcher, WallClock()) as informers,
    ):
        maps = informers.for_resource(CONFIG_MAPS, ns)
        maps.add_event_handler(replay)
        await informers.wait_for_cache_sync(timeout=PATIENCE_S)
        for turn in range(30):
            unwrap(await client.create(CONFIG_MAPS, config_map(f"m{turn}", turn="0"), ns))
            unwrap(await client.patch(CONFIG_MAPS, f"m{turn // 2}", {"data": {"turn": str(turn)}}, ns, kind="merge"))
            if turn % 3 == 2:
                unwrap(await client.delete(CONFIG_MAPS, f"m{turn}", ns))
                unwrap(await client.create(CONFIG_MAPS, config_map(f"m{turn}"), ns))
            if turn % 10 == 4:
                wire.cut()
            if turn == 15:
                wire.down = True
                wire.cut()
            if turn == 20:
                wire.down = False
        oracle = state(list(unwrap(await client.list(CONFIG_MAPS, ns)).items))
        await until(lambda: state(maps.list()) == oracle)
        assert state(list(told.values())) == oracle
        assert maps.counts.lists == 1, "a cut stream is resumed, not listed again"
        assert maps.counts.failures > 0
        assert maps.handler_errors == 0


class OldVersions:
    """Asks for history that the server no longer has, once."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.next = False

    async def send(self, request: ApiRequest) -> ApiResponse:
        return await self._inner.send(request)

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        if self.next:
            self.next = False
            request = msgspec.structs.replace(request, query={**request.query, "resourceVersion": "1"})
        return await self._inner.watch(request)

    async def close(self) -> None:
        await self._inner.close()


async def test_an_expired_version_is_listed_again_and_a_bad_object_is_skipped(client: Client, ns: str) -> None:
    loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "metadata": {"name": "things.test.koord"},
        "spec": {
            "group": "test.koord",
            "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": loose}}],
        },
    }
    unwrap(await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition))

    async def served() -> bool:
        made = await client.create(THINGS, {"metadata": {"name": "a"}, "spec": {"size": 1}}, ns)
        return not isinstance(made, ApiError)

    await until(served)
    bad = {"metadata": {"name": "bad"}, "spec": {"size": "huge"}}
    await client.dynamic.create(THINGS, bad, ns)

    old = OldVersions(client.caller.transport)
    clock = WallClock()
    reports: list[str] = []
    informers = InformerFactory(
        Client(old, clock=clock, burst=0), clock, on_malformed=lambda what: reports.append(what.name)
    )
    things = informers.for_resource(THINGS, ns)
    old.next = True
    async with informers:
        await informers.wait_for_cache_sync(timeout=PATIENCE_S)
        await until(lambda: things.counts.lists == 2)
        assert things.counts.expired == 1
        unwrap(await client.create(THINGS, {"metadata": {"name": "b"}}, ns))
        await until(lambda: {t.metadata.name for t in things.list()} == {"a", "b"})
        assert reports == ["bad"]
    await client.delete(CUSTOM_RESOURCE_DEFINITIONS, "things.test.koord")


def quick(name: str, namespace: str, identity: str) -> LeaseConfig:
    return LeaseConfig(
        name=name, namespace=namespace, identity=identity, duration_s=4, renew_deadline_s=3.0, retry_s=0.3
    )


class Standing:
    """A candidate that works until told to stop."""

    def __init__(self, client: Client, config: LeaseConfig) -> None:
        self.leading = asyncio.Event()
        self.election = LeaderElector(client, WallClock(), config, on_started=self._work)
        self.task = asyncio.create_task(self.election.run())

    async def _work(self) -> None:
        self.leading.set()
        await asyncio.Event().wait()

    async def led(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.leading.wait()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_leadership_passes_on_release(client: Client, ns: str) -> None:
    a = Standing(client, quick("l", ns, "a"))
    await a.led()
    b = Standing(client, quick("l", ns, "b"))
    await until(lambda: b.election.leader == "a")
    held = unwrap(await client.get(LEASES, "l", ns)).spec
    assert (held.holder_identity, held.lease_duration_seconds, held.lease_transitions) == ("a", 4, 0)
    await a.stop()
    await b.led()
    assert unwrap(await client.get(LEASES, "l", ns)).spec.lease_transitions == 1
    await b.stop()
    freed = unwrap(await client.get(LEASES, "l", ns)).spec
    assert (freed.holder_identity, freed.lease_duration_seconds) == ("", 1)


async def test_a_real_kube_scheduler_and_we_stand_for_one_lease(plane: ControlPlane, client: Client, ns: str) -> None:
    binary = assets.folder() / "kube-scheduler"
    if not binary.is_file():
        pytest.skip("no kube-scheduler built: run `python -m tools.assets` first")
    us = Standing(client, quick("shared", ns, "us"))
    await us.led()
    command = [
        str(binary),
        *("--kubeconfig", str(plane.kubeconfig), "--authentication-kubeconfig", str(plane.kubeconfig)),
        *("--authorization-kubeconfig", str(plane.kubeconfig), "--secure-port", "0"),
        *("--leader-elect=true", "--leader-elect-resource-name=shared", f"--leader-elect-resource-namespace={ns}"),
        *("--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=300ms"),
    ]
    quiet = asyncio.subprocess.DEVNULL
    them = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet, start_new_session=True)

    async def lease() -> LeaseSpec:
        return unwrap(await client.get(LEASES, "shared", ns)).spec

    async def held() -> bool:
        return bool((await lease()).holder_identity)

    async def renewed() -> bool:
        return (await lease()).renew_time != taken.renew_time

    try:
        before = await lease()
        await us.stop()
        await until(held)
        taken = await lease()
        assert taken.holder_identity != "us"
        assert taken.lease_transitions == (before.lease_transitions or 0) + 1
        us = Standing(client, quick("shared", ns, "us-again"))
        await until(lambda: us.election.leader == taken.holder_identity)
        await until(renewed)
        assert not us.leading.is_set(), "it renews and we wait"
        os.killpg(them.pid, signal.SIGKILL)  # it cannot release: we have to outwait it
        await us.led()
        final = await lease()
        assert (final.holder_identity, final.lease_transitions) == ("us-again", (taken.lease_transitions or 0) + 1)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(them.pid, signal.SIGKILL)
        await them.wait()
        await us.stop()


async def test_events_are_accepted_and_read_by_both_apis(client: Client, ns: str) -> None:
    about = object_reference(CONFIG_MAPS, unwrap(await client.create(CONFIG_MAPS, config_map("m"), ns)))
    async with EventRecorder(
        client, WallClock(), controller="koord-manager", instance="koord-manager-test"
    ) as recorder:
        recorder.record(about, "Warning", "Tested", "n" * 5000, action="Testing", related=about)
        await until(lambda: recorder.counts.writes == 1)
        recorder.record(about, "Warning", "Tested", "n" * 5000, action="Testing", related=about)
        await until(lambda: recorder.counts.writes == 2)
        recorder.record(about, "Warning", "Tested", "n" * 5000, action="Testing", related=about)
    assert (recorder.counts.writes, recorder.counts.refused, recorder.counts.lost) == (3, 0, 0)
    (event,) = unwrap(await client.list(EVENTS_EVENTS, ns)).items
    assert (event.reason, event.action, event.reporting_controller) == ("Tested", "Testing", "koord-manager")
    assert event.series is not None
    assert event.series.count == 3
    assert event.regarding.uid == about.uid
    (core,) = unwrap(await client.list(CORE_EVENTS, ns, fields="involvedObject.name=m")).items
    assert core.metadata.uid == event.metadata.uid
    assert len(core.message) == 1024
