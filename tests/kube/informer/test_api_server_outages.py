"""Informers and events while an API server goes away and comes back twenty times: nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
from pathlib import Path

from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS
from koord.api.kubernetes.core_v1 import ConfigMap
from koord.embedded.apiserver.http_server import HttpServer
from koord.embedded.apiserver.rest.request_context import AdmissionChain
from koord.embedded.apiserver.server import ApiServer, builtin_catalog
from koord.embedded.cluster import InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.config.connection import Connection, SettingOrigin, TokenAuth
from koord.kube.events.recorder import EventRecorder, object_reference
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.http import HttpTransport
from koord.telemetry.clock import WallClock
from tests.real.reach import Wire

ORIGIN = SettingOrigin("test", "server")
OUTAGES, WARM = 20, 8
MAX_GROWTH_BYTES = 64 << 10  # of our client's code, over twelve outages
OURS = tracemalloc.Filter(True, str(Path(__file__).resolve().parents[3] / "src" / "koord" / "kube" / "*"))


class Sizes:
    """What an outage could leave behind."""

    def __init__(self, factory: InformerFactory, recorder: EventRecorder) -> None:
        gc.collect()
        self.tasks = len(asyncio.all_tasks())
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.pending = recorder.pending
        self.objects = sum(len(informer) for informer in factory)
        traces = tracemalloc.take_snapshot().filter_traces([OURS]).statistics("filename")
        self.bytes = sum(one.size for one in traces)


async def changed_object(informer: Informer[ConfigMap], uid: str) -> ConfigMap:
    while True:
        seen = informer.get("default", "changing")
        if seen is not None and seen.metadata.uid == uid:
            return seen
        await asyncio.sleep(0.02)


async def written(recorder: EventRecorder) -> None:
    while recorder.pending:  # noqa: ASYNC110 - it tells nobody when it is done
        await asyncio.sleep(0.02)


async def test_nothing_is_left_behind() -> None:
    server = ApiServer(catalog=builtin_catalog(), tokens={"secret": "tester"}, admission=AdmissionChain())
    await server.start()
    http = HttpServer(server)
    wire = Wire("127.0.0.1", int((await http.start("127.0.0.1", 0, None)).rpartition(":")[2]))
    door = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{door.sockets[0].getsockname()[1]}"
    clock = WallClock()
    connection = Connection(server=url, origin=ORIGIN, auth=TokenAuth(token="secret"))
    direct = Client(InProcessTransport(server, "tester"), burst=0)
    sizes: list[Sizes] = []
    tracemalloc.start()
    try:
        async with (
            Client(HttpTransport(connection, clock), clock=clock, burst=0) as client,
            EventRecorder(client, clock, controller="c", instance="i") as recorder,
        ):
            factory = InformerFactory(client, clock)
            informer = factory.for_resource(CONFIG_MAPS)
            factory.start()
            await factory.wait_for_cache_sync(30)
            for number in range(OUTAGES):
                wire.down = True
                wire.cut()
                await asyncio.sleep(0.05)  # some requests meet nobody
                wire.down = False
                body = {"metadata": {"name": "changing", "namespace": "default", "labels": {"n": str(number)}}}
                if number:
                    await direct.dynamic.delete(CONFIG_MAPS, "changing", "default")
                made = unwrap(await direct.dynamic.create(CONFIG_MAPS, body))
                async with asyncio.timeout(60):
                    seen = await changed_object(informer, made["metadata"]["uid"])
                    recorder.record(object_reference(CONFIG_MAPS, seen), "Normal", "Seen", "it was seen")
                    await written(recorder)
                sizes.append(Sizes(factory, recorder))
            await factory.stop()
    finally:
        tracemalloc.stop()
        door.close()
        await wire.end()
        await http.close()
        await server.close()
    warm, last = sizes[WARM], sizes[-1]
    assert last.tasks <= max(each.tasks for each in sizes[:WARM])
    assert last.descriptors <= max(each.descriptors for each in sizes[:WARM])
    assert (last.pending, last.objects) == (0, warm.objects)
    assert last.bytes - warm.bytes < MAX_GROWTH_BYTES, f"{last.bytes - warm.bytes} bytes more after twelve outages"
