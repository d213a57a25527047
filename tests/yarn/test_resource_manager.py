"""Calls of ResourceManagers over TCP: who is active, who is allowed, and what is said of those that do not answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from koord.wire.hadoop_rpc import RpcException, RpcViolation
from koord.wire.hadoop_sasl import HadoopToken
from koord.wire.hadoop_yarn import NodeIdMessage, NodeReport, NodeResource, ResourceMessage, ResourceOption
from koord.yarn import resource_manager
from koord.yarn.hadoop_config import HostPort, ResourceManagerAddress, YarnCluster
from koord.yarn.resource_manager import Caller, NoActiveManager, ResourceManagerClient
from tests.yarn.fake_resource_manager import FakeResourceManager, FakeYarn, cluster_of, running
from tools.controlplane import free_port


def caller(user: str = "yarn", *tokens: HadoopToken) -> Caller:
    return Caller(user=user, random_bytes=lambda size: bytes(range(size)), tokens=tokens)


def wanted(host: str, memory_mib: int = 4096, vcores: int = 4) -> NodeResource:
    return NodeResource(NodeIdMessage(host, 8041), ResourceOption(ResourceMessage(memory_mib, vcores), 600_000))


async def test_nodes_are_listed_and_updated_as_the_user() -> None:
    yarn = FakeYarn(admins=("yarn",))
    node = yarn.add("a")
    yarn.use(node, 512, 1)
    manager = FakeResourceManager(yarn)
    async with running(manager):
        client = ResourceManagerClient(cluster_of("c", manager), caller())
        (report,) = await _listed(client)
        assert (report.capability, report.used) == (ResourceMessage(1024, 1), ResourceMessage(512, 1))
        assert await client.update([wanted("a")]) is None
        assert yarn.capability(node) == ResourceMessage(4096, 4)
        assert yarn.updates[-1].option.over_commit_timeout_ms == 600_000
        assert set(yarn.users) == {"yarn"}


async def test_a_user_who_is_no_administrator_is_refused() -> None:
    yarn = FakeYarn(admins=("yarn",))
    node = yarn.add("a")
    manager = FakeResourceManager(yarn)
    async with running(manager):
        client = ResourceManagerClient(cluster_of("c", manager), caller("nobody"))
        assert len(await _listed(client)) == 1
        for nodes in ([wanted("a")], []):
            refused = await client.update(nodes)
            assert isinstance(refused, RpcException)
            assert refused.is_access_denied
            assert "User nobody doesn't have permission" in str(refused)
        assert yarn.capability(node) == ResourceMessage(1024, 1)


async def test_the_active_one_of_a_pair_is_found_again_after_each_failover() -> None:
    yarn = FakeYarn()
    node = yarn.add("a")
    first, second = FakeResourceManager(yarn, "rm1"), FakeResourceManager(yarn, "rm2")
    async with running(first, second):
        pair = cluster_of("c", first, second)
        await second.become_standby()
        client = ResourceManagerClient(pair, caller())
        await _listed(client)
        assert client.active.id == "rm1"
        await first.become_standby()
        none = await client.nodes()
        assert isinstance(none, NoActiveManager)
        assert len(none.reasons) == 2
        refused = await client.update([wanted("a")])
        assert isinstance(refused, NoActiveManager)
        assert "StandbyException: ResourceManager rm1 is not Active!" in str(refused)
        await second.become_active()
        assert await client.update([wanted("a", 2048, 2)]) is None  # past the standby's refusal
        assert client.active.id == "rm2"
        assert yarn.capability(node) == ResourceMessage(2048, 2)
        await _listed(client)
        assert client.active.id == "rm2"


async def test_one_that_is_not_there_is_named() -> None:
    port = free_port()
    address = ResourceManagerAddress("", HostPort("127.0.0.1", port), HostPort("no.such.host.invalid", 1))
    client = ResourceManagerClient(YarnCluster("c", (address,)), caller())
    assert f"127.0.0.1:{port}" in str(await client.nodes())
    assert "no.such.host.invalid:1" in str(await client.update([]))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(b"", "closed before the answer", id="closes"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", "longer than", id="a-web-server"),
        pytest.param(b"\x00\x00\x00\x05\x04\x08\x00\x10\x00", "truncated", id="garbage"),
    ],
)
async def test_a_peer_that_is_no_resource_manager_is_named(answer: bytes, reason: str) -> None:
    async with peer(answer) as client:
        failed = await client.nodes()
        assert isinstance(failed, RpcViolation)
        assert reason in str(failed)


async def test_a_silent_peer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_manager, "ANSWER_TIMEOUT_S", 0.05)
    async with peer(None) as client:
        failed = await client.nodes()
        assert isinstance(failed, NoActiveManager)
        assert "no answer within" in str(failed)


@asynccontextmanager
async def peer(answer: bytes | None) -> AsyncIterator[ResourceManagerClient]:
    """Run a server that sends these bytes and no more, or nothing at all, whatever it is asked."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answer is not None:
            writer.write(answer)
            writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        place = HostPort("127.0.0.1", server.sockets[0].getsockname()[1])
        yield ResourceManagerClient(YarnCluster("c", (ResourceManagerAddress("", place, place),)), caller())
        await ended.wait()


@pytest.mark.parametrize("service", ["127.0.0.1:{}", "localhost:{}", "10.0.0.1:1,localhost:{}"])
async def test_a_token_for_the_service_is_used(service: str) -> None:
    yarn = FakeYarn()
    yarn.add("a")
    token = HadoopToken(identifier=b"id", password=b"secret")
    manager = FakeResourceManager(yarn, token=token)
    async with running(manager):
        place = HostPort("localhost", manager.address.client.port)
        cluster = YarnCluster("c", (ResourceManagerAddress("", place, manager.address.admin),))
        name = service.format(place.port)
        given = HadoopToken(identifier=b"id", password=b"secret", kind="RM_DELEGATION_TOKEN", service=name)
        await _listed(ResourceManagerClient(cluster, caller("yarn", given)))
        assert yarn.users == ["token"]
        wrong = HadoopToken(identifier=b"id", password=b"guess", kind="RM_DELEGATION_TOKEN", service=name)
        refused = await ResourceManagerClient(cluster, caller("yarn", wrong)).nodes()
        assert isinstance(refused, RpcException)
        assert refused.fatal
        elsewhere = HadoopToken(identifier=b"id", password=b"secret", kind="RM_DELEGATION_TOKEN", service="other:1")
        await _listed(ResourceManagerClient(cluster, caller("yarn", elsewhere)))
        assert yarn.users == ["token", "yarn"]


async def _listed(client: ResourceManagerClient) -> tuple[NodeReport, ...]:
    found = await client.nodes()
    assert isinstance(found, tuple), found
    return found
