"""koord-yarn-operator with Hadoop's own ResourceManager and NodeManager: what a fake cannot prove."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from koord.api.koordinator.yarn import DEFAULT_CLUSTER_ID
from koord.wire.hadoop_rpc import RpcException, RpcResponse
from koord.wire.hadoop_sasl import HadoopToken
from koord.wire.hadoop_yarn import CLIENT_PROTOCOL, NodeIdMessage, NodeResource, ResourceMessage, ResourceOption
from koord.wire.protobuf import DATA, STRING, MessageCodec, NestedField, ScalarField
from koord.yarn.capacity import BatchAmounts
from koord.yarn.operator import OperatorSettings
from koord.yarn.resource_manager import TOKEN_KIND, Caller, call
from tests.real.yarn.real_yarn import PATIENCE_S, RealYarn, needs_yarn, real_yarn
from tests.yarn.operator_site import operating, operator_site, until_held

pytestmark = [pytest.mark.real, needs_yarn(), pytest.mark.asyncio(loop_scope="module")]
SETTINGS = OperatorSettings(interval_s=0.5, longest_wait_s=1.0, absence_grace_s=2.0)
GI = 1 << 30


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def yarn(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealYarn]:
    acl = {"yarn.acl.enable": "true", "yarn.admin.acl": "root,yarn"}
    with real_yarn(tmp_path_factory.mktemp("yarn"), properties=acl) as running:
        running.start_resource_manager()
        running.start_node_manager()
        await running.until_running()
        yield running


async def eventually(what: str, is_true: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if await is_true():
            return
        await asyncio.sleep(0.2)
    raise AssertionError(what)


async def until_offered(yarn: RealYarn, memory_mib: int, vcores: int) -> None:
    async def is_offered() -> bool:
        report = await yarn.report()
        return report is not None and report.capability == ResourceMessage(memory_mib, vcores)

    await eventually(f"the NodeManager does not offer {memory_mib} MiB and {vcores} vcores", is_offered)


async def test_capacity_follows_batch_both_ways_and_a_shrunk_node_keeps_its_container(yarn: RealYarn) -> None:
    async with operator_site() as site:
        await site.add_node("n1", 6000, "3Gi")
        await site.add_pod("nm", "n1", {"kubernetes.io/batch-cpu": "1k"}, node_id=str(yarn.node_id))
        async with operating(site, yarn.cluster, settings=SETTINGS):
            await until_offered(yarn, 3072, 5)
            await site.lend("n1", 3000, "2Gi")
            await until_offered(yarn, 2048, 2)
            application = yarn.submit_sleep(1024, 2)
            await until_held(site, "n1", BatchAmounts(2000, GI))
            assert yarn.state_of(application) in ("ACCEPTED", "RUNNING")  # its master never registers
            await site.lend("n1", 2000, "512Mi")  # less than the container has
            await until_offered(yarn, 512, 1)
            for _ in range(5):  # the time of over-commitment is ten minutes: rounds pass, and the container stays
                await asyncio.sleep(SETTINGS.interval_s)
                report = await yarn.report()
                assert report is not None
                assert report.used == ResourceMessage(1024, 2)
            await site.lend("n1", 9000, "4Gi")
            await until_offered(yarn, 4096, 8)
            assert await site.held("n1") == BatchAmounts(2000, GI)
        at_once = msgspec.structs.replace(SETTINGS, over_commit_timeout_ms=0)
        async with operating(site, yarn.cluster, settings=at_once):
            await site.lend("n1", 1000, "256Mi")
            await until_held(site, "n1", BatchAmounts())  # without that time it is killed


async def test_who_is_no_administrator_is_refused_and_an_empty_update_changes_nothing(yarn: RealYarn) -> None:
    before = await yarn.report()
    assert before is not None
    option = ResourceOption(ResourceMessage(777, 7), 600_000)
    node = NodeResource(NodeIdMessage(yarn.node_id.host, yarn.node_id.port), option)
    for nodes in ([], [node]):
        refused = await yarn.client("nobody").update(nodes)
        assert isinstance(refused, RpcException)
        assert refused.is_access_denied
        assert "User nobody doesn't have permission to call 'updateNodeResource'" in str(refused)
    assert await yarn.client("yarn").update([]) is None
    after = await yarn.report()
    assert after is not None
    assert after.capability == before.capability
    stranger = NodeResource(NodeIdMessage("nowhere", 1), option)
    refused = await yarn.client("yarn").update([stranger])
    assert isinstance(refused, RpcException)
    assert "unrecognized node: nowhere:1" in str(refused)


async def test_a_denied_operator_says_so_and_leaves_the_node_manager_alone(yarn: RealYarn) -> None:
    before = await yarn.report()
    async with operator_site() as site:
        await site.add_node("n1", 7000, "7Gi")
        await site.add_pod("nm", "n1", node_id=str(yarn.node_id))
        async with operating(site, yarn.cluster, settings=SETTINGS, user="nobody") as operator:
            state = operator.clusters[DEFAULT_CLUSTER_ID]

            async def is_denied() -> bool:
                return "User nobody doesn't have permission" in state.error

            await eventually("the operator is not refused", is_denied)
    after = await yarn.report()
    assert before is not None
    assert after is not None
    assert after.capability == before.capability


class _Token(msgspec.Struct, frozen=True):
    identifier: bytes = b""
    password: bytes = b""
    kind: str = ""
    service: str = ""


class _TokenRequest(msgspec.Struct, frozen=True):
    renewer: str = ""


class _TokenResponse(msgspec.Struct, frozen=True):
    token: _Token | None = None


_TOKEN = MessageCodec(
    _Token,
    ScalarField(1, "identifier", DATA),
    ScalarField(2, "password", DATA),
    ScalarField(3, "kind", STRING),
    ScalarField(4, "service", STRING),
)
_TOKEN_REQUEST = MessageCodec(_TokenRequest, ScalarField(1, "renewer", STRING))
_TOKEN_RESPONSE = MessageCodec(_TokenResponse, NestedField(1, "token", _TOKEN))


async def test_a_delegation_token_is_proof_enough(yarn: RealYarn) -> None:
    address = yarn.cluster.managers[0].client
    caller = Caller(user="root", random_bytes=os.urandom)
    outcome = await call(
        address, caller, CLIENT_PROTOCOL, "getDelegationToken", _TOKEN_REQUEST.encode(_TokenRequest("root"))
    )
    assert isinstance(outcome, RpcResponse), outcome
    given = _TOKEN_RESPONSE.decode(outcome.body).token
    assert given is not None
    assert given.kind == TOKEN_KIND
    token = HadoopToken(identifier=given.identifier, password=given.password, kind=given.kind, service=str(address))
    listed = await yarn.client("ignored", (token,)).nodes()
    assert isinstance(listed, tuple), listed
    assert len(listed) == 1
    wrong = msgspec.structs.replace(token, password=b"guess")
    refused = await yarn.client("ignored", (wrong,)).nodes()
    assert isinstance(refused, RpcException)
    assert refused.fatal


async def test_a_resource_manager_that_starts_again_gets_what_changed_meanwhile(yarn: RealYarn) -> None:
    async with operator_site() as site:
        await site.add_node("n1", 3000, "3Gi")
        await site.add_pod("nm", "n1", node_id=str(yarn.node_id))
        async with operating(site, yarn.cluster, settings=SETTINGS) as operator:
            await until_offered(yarn, 3072, 3)
            yarn.kill("rm1")
            state = operator.clusters[DEFAULT_CLUSTER_ID]

            async def has_failed() -> bool:
                return bool(state.error)

            await eventually("the operator misses nobody", has_failed)
            await site.lend("n1", 4000, "4Gi")
            yarn.start_resource_manager()
            await until_offered(yarn, 4096, 4)
            assert state.updates["succeeded"] == 2


async def test_what_a_lost_node_manager_held_is_free(yarn: RealYarn) -> None:
    async with operator_site() as site:
        await site.add_node("n1", 3000, "3Gi")
        await site.add_pod("nm", "n1", node_id=str(yarn.node_id))
        async with operating(site, yarn.cluster, settings=SETTINGS) as operator:
            await until_offered(yarn, 3072, 3)
            yarn.submit_sleep(512)
            await until_held(site, "n1", BatchAmounts(1000, GI // 2))
            yarn.kill("nm")
            state = operator.clusters[DEFAULT_CLUSTER_ID]

            async def is_missed() -> bool:
                return [one.reason for one in state.problems] == ["not-registered"]

            await eventually("the NodeManager is not missed", is_missed)
            await until_held(site, "n1", BatchAmounts())
            sent = state.updates["succeeded"]
            yarn.start_node_manager()
            await until_offered(yarn, 3072, 3)
            assert state.updates["succeeded"] > sent  # it registered with what its own file says


async def test_a_failover_is_followed(tmp_path: Path) -> None:
    with real_yarn(tmp_path, managers=2) as pair:
        pair.start_resource_manager("rm1")
        pair.start_resource_manager("rm2")
        pair.start_node_manager()
        await pair.make_active("rm1")
        await pair.until_running()
        async with operator_site() as site:
            await site.add_node("n1", 2000, "2Gi")
            await site.add_pod("nm", "n1", node_id=str(pair.node_id))
            async with operating(site, pair.cluster, settings=SETTINGS):
                await until_offered(pair, 2048, 2)
                refused = await pair.client().update([])
                assert refused is None
                pair.kill("rm1")
                await pair.make_active("rm2")
                await until_offered(pair, 2048, 2)
                client = pair.client()
                await client.nodes()
                assert client.active.id == "rm2"
                await site.lend("n1", 3000, "3Gi")
                await until_offered(pair, 3072, 3)
