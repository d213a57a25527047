"""The pod resources that readers get: the kubelet's, with the devices of the annotation, over restarts of a kubelet."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from koord.host.unix_socket import NotExclusive
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.pod_resources.service import PodResourcesProxy, PodResourcesServer, allocated_devices
from koord.koordlet.pod_resources.settings import PodResourcesProxySettings
from koord.telemetry.clock import WallClock
from koord.wire import pod_resources, raw_fields
from koord.wire.pod_resources import ContainerDevices
from koord.wire.raw_fields import encode_string
from tests.koordlet.pod_resources.fake_kubelet import ALLOCATABLE, FakeKubelet, pod_message

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
BOTH = {
    "gpu": [{"minor": 0, "id": "0"}],
    "rdma": [{"minor": 1, "id": "0000:01:00.0", "extension": {"vfs": [{"minor": -1, "busID": "0000:01:00.2"}]}}],
}
LISTED = [
    ContainerDevices(resource_name="koordinator.sh/rdma", device_ids=("0000:01:00.2",)),
    ContainerDevices(resource_name="nvidia.com/gpu", device_ids=("0",)),
]
Found = dict[str, list[ContainerDevices]]


def meta(name: str, allocated: Any = None) -> PodMeta:
    annotations = {} if allocated is None else {ALLOCATED: json.dumps(allocated)}
    return PodMeta(uid=name, namespace="default", name=name, annotations=annotations)


class TestAllocatedDevices:
    def test_names_and_ids_are_those_that_readers_expect(self) -> None:
        assert allocated_devices(meta("a", BOTH).annotations) == LISTED[::-1]

    @pytest.mark.parametrize("text", ["{", "[]", '{"gpu":[]}', '{"gpu":[{"minor":0}]}'])
    def test_what_names_no_device_adds_none(self, text: str) -> None:
        assert allocated_devices({ALLOCATED: text}) == []

    def test_a_template_of_a_card_does_not_hide_the_card(self) -> None:
        card = {"minor": 0, "id": "npu-0", "extension": {"gpuSharedResourceTemplate": "vir02"}}
        assert [one.device_ids for one in allocated_devices(meta("a", {"gpu": [card, card]}).annotations)] == [
            ("npu-0",)
        ]

    def test_other_kinds_are_named_as_their_resources(self) -> None:
        (found,) = allocated_devices(meta("a", {"fpga": [{"minor": 0, "id": "f0"}]}).annotations)
        assert found.resource_name == "koordinator.sh/fpga"


class Site:
    def __init__(self, folder: Path) -> None:
        self.settings = PodResourcesProxySettings(
            socket=str(folder / "proxy" / "kubelet.sock"), kubelet_socket=str(folder / "k.sock"), refresh_s=20.0
        )
        self.kubelet = FakeKubelet()
        self.pods: tuple[PodMeta, ...] | None = None
        self.learns: tuple[PodMeta, ...] | None = None  # what the next refresh brings
        self.refreshes = 0
        self.channel = grpc.aio.insecure_channel(f"unix://{self.settings.socket}")

    async def refresh(self) -> None:
        self.refreshes += 1
        if self.learns is not None:
            self.pods = self.learns

    async def serve(self) -> PodResourcesServer | NotExclusive:
        return await PodResourcesServer.start(self.settings, lambda: self.pods, self.refresh)

    async def call(self, method: str, message: bytes = b"") -> bytes:
        answer: bytes = await self.channel.unary_unary(method)(message, timeout=30, wait_for_ready=True)
        return answer

    async def devices(self, method: str = pod_resources.LIST, message: bytes = b"") -> Found:
        answer = await self.call(method, message)
        return {
            raw_fields.string_of(pod, 1): pod_resources.devices_of(raw_fields.chunks_of(pod, 3)[0])
            for pod in raw_fields.chunks_of(answer, 1)
        }


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as the path of a socket is limited."""
    made = Path(tempfile.mkdtemp(prefix="pr-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
async def site(folder: Path) -> AsyncIterator[Site]:
    site = Site(folder)
    site.kubelet.pods = {name: pod_message(name) for name in ("a", "b")}
    site.pods = (meta("a", BOTH), meta("b"))
    await site.kubelet.start(site.settings.kubelet_socket)
    server = await site.serve()
    assert isinstance(server, PodResourcesServer)
    yield site
    await site.channel.close()
    await server.stop()
    await site.kubelet.stop()
    assert not os.path.exists(site.settings.socket)  # noqa: ASYNC240 - a test


@pytest.mark.parametrize("method", [pod_resources.LIST, pod_resources.LIST_V1ALPHA1])
async def test_list_has_the_devices_of_pods(site: Site, method: str) -> None:
    assert await site.devices(method) == {"a": LISTED, "b": []}
    assert site.refreshes == 0
    assert stat.S_IMODE(os.stat(site.settings.socket).st_mode) == 0o660


async def test_get_has_them_as_well(site: Site) -> None:
    asked = encode_string(1, "a") + encode_string(2, "default")
    assert await site.devices(pod_resources.GET, asked) == {"a": LISTED}
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await site.call(pod_resources.GET, encode_string(1, "nobody"))
    assert (refused.value.code(), refused.value.details()) == (
        grpc.StatusCode.UNKNOWN,
        "pod is not found in podResources",
    )


async def test_other_calls_pass_as_they_are(site: Site) -> None:
    assert await site.call(pod_resources.ALLOCATABLE) == ALLOCATABLE
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await site.call("/v1.PodResourcesLister/Watch")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_pod_that_is_new_is_asked_for_before_the_answer(site: Site) -> None:
    site.kubelet.pods["new"] = pod_message("new")
    assert site.pods is not None
    site.learns = (*site.pods, meta("new", BOTH))
    assert (await site.devices())["new"] == LISTED
    assert site.refreshes == 1


async def test_a_pod_that_nobody_can_tell_of_delays_one_answer_alone(site: Site) -> None:
    site.kubelet.pods["unreadable"] = pod_message("unreadable")
    for _ in range(3):
        assert (await site.devices())["a"] == LISTED
    assert site.refreshes == 2
    site.kubelet.pods["other"] = pod_message("other")
    await site.devices()
    assert site.refreshes == 4


async def test_an_answer_that_cannot_be_read_is_an_error(site: Site) -> None:
    site.kubelet.broken = True
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await site.call(pod_resources.LIST)
    assert refused.value.code() is grpc.StatusCode.INTERNAL


async def test_a_kubelet_that_restarts_is_found_again(site: Site) -> None:
    await site.kubelet.stop()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await site.call(pod_resources.LIST)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    await site.kubelet.start(site.settings.kubelet_socket)
    found: Found | None = None
    async with asyncio.timeout(30):
        while found is None:
            try:
                found = await site.devices()
            except grpc.aio.AioRpcError:
                found = None  # it is connected to again in a moment
    assert found["a"] == LISTED


async def test_a_socket_that_another_server_has_is_left_to_it(site: Site) -> None:
    assert isinstance(await site.serve(), NotExclusive)
    assert (await site.devices())["a"] == LISTED


async def test_the_proxy_says_whether_it_serves(folder: Path) -> None:
    site = Site(folder)
    (folder / "proxy").write_text("a file where the folder should be")
    proxy = PodResourcesProxy(site.settings, WallClock(), lambda: site.pods, site.refresh)
    task = asyncio.create_task(proxy.run())
    async with asyncio.timeout(30):
        while "cannot" not in proxy.state:  # noqa: ASYNC110 - a text, not an event
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert str(folder / "proxy") in proxy.state
    await site.channel.close()
