"""Extenders are asked as kube-scheduler asks them, and pods that they do not care about never wait for them."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from koord.api.config.scheduler.configuration import (
    Extender,
    ExtenderTLS,
    KubeSchedulerConfiguration,
    KubeSchedulerProfile,
    ManagedResource,
)
from koord.api.kubernetes.builtin_kinds import NODES, PODS, PRIORITY_CLASSES
from koord.kube.config.connection import BadConfig
from koord.kube.transport.api_error import unwrap
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.extender import HttpExtenderTransport
from koord.scheduler.framework.decision import ChosenNode
from koord.scheduler.framework.verdict import Fault
from koord.scheduler.plugins.registry import REGISTRY
from koord.telemetry import certificates
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.fake_extender import FakeExtender, node_names
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster

URL = "http://extender/scheduler"
LICENCE = "example.com/licence"


def extender(**settings: Any) -> Extender:
    return Extender(url_prefix=URL, **{"filter_verb": "filter", **settings})


def configured(*extenders: Extender) -> CompletedConfig:
    profile = KubeSchedulerProfile(scheduler_name="default-scheduler")
    made = CompletedConfig.complete(KubeSchedulerConfiguration(profiles=(profile,), extenders=extenders), REGISTRY)
    assert isinstance(made, CompletedConfig), made
    return made


Story = Callable[[FaultyCluster, FakeExtender], Coroutine[Any, Any, None]]


def run(story: Story, *settings: Extender, nodes: int = 3) -> None:
    async def main(clock: LoopClock) -> None:
        fake = FakeExtender()
        async with faulty_cluster(clock, configured(*settings), extender_transport=lambda *_: fake) as world:
            for number in range(nodes):
                await world.add_node(f"n{number}")
            await story(world, fake)
            await world.check()

    run_virtual(main)


async def add_licensed(world: FaultyCluster, name: str, cpu: str = "1", **spec: Any) -> None:
    amounts = {"requests": {"cpu": cpu, LICENCE: "1"}, "limits": {LICENCE: "1"}}
    containers = [{"name": "c", "image": "app", "resources": amounts}]
    await world.add_pod(name, containers=containers, **spec)


async def condition(world: FaultyCluster, name: str) -> tuple[str, str]:
    found = next(c for c in (await world.pod(name)).status.conditions if c.type == "PodScheduled")
    return found.reason, found.message


# Filter and prioritize ---------------------------------------------------------------------------------------------


def test_the_pod_gets_the_only_node_that_the_extender_leaves() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.failed, fake.unresolvable = {"n0": "no licence left"}, {"n2": "wrong site"}
        await world.add_pod("a")
        await world.clock.sleep(5)
        assert await world.node_of("a") == "n1"
        (args,) = fake.calls_of("filter")
        assert args["NodeNames"] is None
        shown = args["Nodes"]["items"][0]
        assert shown["status"]["allocatable"]["pods"] == "110", "nodes are shown whole"
        assert args["Pod"]["spec"]["restartPolicy"] == "Always", "so is the pod"
        assert not fake.calls_of("prioritize"), "with one node left nobody is asked for scores"

    run(story, extender(prioritize_verb="prioritize", weight=1))


def test_scores_count_ten_times_their_weight_beside_those_of_plugins() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.scores = {"n2": 10, "n1": 3}
        await world.add_pod("a")
        await world.clock.sleep(5)
        record = world.scheduler.attempt_log.get((await world.pod("a")).metadata.uid)
        assert record is not None
        assert isinstance(record.decision, ChosenNode)
        assert (record.decision.node, record.decision.scores["Extender"]) == ("n2", 10 * 7 * 10)
        assert {one.node: one.scores["Extender"] for one in record.decision.runners_up} == {"n1": 210, "n0": 0}

    run(story, extender(prioritize_verb="prioritize", weight=7))


def test_an_extender_that_caches_nodes_is_told_their_names_alone() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.failed = {"n0": "no", "n1": "no"}
        await world.add_pod("a")
        await world.clock.sleep(5)
        assert await world.node_of("a") == "n2"
        (args,) = fake.calls_of("filter")
        assert (args["Nodes"], sorted(args["NodeNames"])) == (None, ["n0", "n1", "n2"])

    run(story, extender(node_cache_capable=True))


def test_each_extender_sees_what_the_former_left() -> None:
    async def main(clock: LoopClock) -> None:
        fakes = [FakeExtender(), FakeExtender()]
        waiting = list(fakes)
        config = configured(extender(), extender(node_cache_capable=True))
        async with faulty_cluster(clock, config, extender_transport=lambda *_: waiting.pop(0)) as world:
            for name in ("n0", "n1"):
                await world.add_node(name)
            fakes[0].failed, fakes[1].failed = {"n0": "first"}, {"n1": "second"}
            await world.add_pod("a")
            await world.clock.sleep(1)
            assert node_names(fakes[1].calls_of("filter")[0]) == ["n1"]
            reason, message = await condition(world, "a")
            assert (reason, message.partition(".")[0]) == (
                "Unschedulable",
                "0/2 nodes are available: 1 first, 1 second",
            )
            assert message.endswith("2 No preemption victims found for incoming pod."), "eviction might help there"

    run_virtual(main)


def test_any_event_wakes_a_pod_that_only_the_extender_rejected() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.unresolvable = {"n0": "full"}
        await world.add_pod("a")
        await world.clock.sleep(20)
        assert (await condition(world, "a"))[1].startswith("0/1 nodes are available: 1 full. ")
        asked = len(fake.calls)
        await world.clock.sleep(60)
        assert len(fake.calls) == asked, "nothing has happened"
        fake.unresolvable = {}
        patch = {"metadata": {"annotations": {"somebody": "was here"}}}
        unwrap(await world.client.patch(NODES, "n0", patch, kind="merge"))
        await world.clock.sleep(20)
        assert await world.node_of("a") == "n0"

    run(story, extender(), nodes=1)


def test_a_node_that_the_extender_leaves_out_silently_is_out() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.silently_out = {"n0"}
        await world.add_pod("a")
        await world.clock.sleep(1)
        reason, message = await condition(world, "a")
        assert reason == "Unschedulable"
        assert message.startswith("0/1 nodes are available: no new claims"), "no reason is counted"
        assert message.endswith("Preemption is not helpful for scheduling."), message

    run(story, extender(), nodes=1)


# Interest ----------------------------------------------------------------------------------------------------------


def test_only_pods_with_a_managed_resource_are_shown_and_the_scheduler_can_leave_it_to_the_extender() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        await world.add_pod("plain")
        await add_licensed(world, "licensed")
        await world.clock.sleep(5)
        assert [args["Pod"]["metadata"]["name"] for args in fake.calls_of("filter")] == ["licensed"]
        assert await world.node_of("plain")
        assert await world.node_of("licensed"), "no node has the resource, and nobody but the extender counts it"

    run(story, extender(managed_resources=(ManagedResource(name=LICENCE, ignored_by_scheduler=True),)))


def test_pods_of_no_interest_do_not_wait_for_a_slow_extender() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.delay_s = 4.0
        for number in range(3):
            await add_licensed(world, f"licensed-{number}", cpu="100m")
        for number in range(20):
            await world.add_pod(f"plain-{number}", cpu="100m")
        await world.clock.sleep(2)
        assert all([await world.node_of(f"plain-{number}") for number in range(20)])
        assert len(fake.calls) == 1, "one pod at a time is shown, as in kube-scheduler"
        await world.clock.sleep(12)
        assert all([await world.node_of(f"licensed-{number}") for number in range(3)])

    run(story, extender(managed_resources=(ManagedResource(name=LICENCE, ignored_by_scheduler=True),)))


def test_the_room_that_others_took_meanwhile_is_not_given_again() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.delay_s = 2.0
        await add_licensed(world, "licensed", cpu="3")
        await world.clock.sleep(1)
        await world.add_pod("plain", cpu="3")
        await world.clock.sleep(30)
        assert await world.node_of("plain") == "n0"
        assert await world.node_of("licensed") == ""
        assert "1 Insufficient cpu" in (await condition(world, "licensed"))[1]

    run(story, extender(managed_resources=(ManagedResource(name=LICENCE, ignored_by_scheduler=True),)), nodes=1)


def test_a_node_that_came_meanwhile_is_shown_in_a_second_round() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.delay_s, fake.failed = 2.0, {"n0": "no"}
        await world.add_pod("a")
        await world.clock.sleep(1)
        await world.add_node("n1")
        await world.clock.sleep(4)
        assert await world.node_of("a") == "n1"
        assert [sorted(node_names(args)) for args in fake.calls_of("filter")] == [["n0"], ["n0", "n1"]]

    run(story, extender(), nodes=1)


def test_a_pod_that_is_deleted_while_the_extender_thinks_is_forgotten() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.delay_s = 3.0
        await world.add_pod("a")
        await world.clock.sleep(1)
        await world.remove_pod("a")
        await world.clock.sleep(10)
        assert not world.scheduler.queue.pods()

    run(story, extender())


# Faults ------------------------------------------------------------------------------------------------------------


def broken(fake: FakeExtender, how: str) -> None:
    if how == "slow":
        fake.delay_s = 60.0
    elif how == "error":
        fake.error = "licence server is down"
    elif how == "invented":
        fake.invented = ["elsewhere"]
    else:
        fake.status = 503


FAULTS = {
    "status": f"failed filter with extender at URL {URL}/filter, code 503",
    "error": "licence server is down",
    "slow": f'Post "{URL}/filter": context deadline exceeded',
    "invented": f'extender "{URL}" claims a filtered node "elsewhere" which is not found in the input node list',
}


@pytest.mark.parametrize("how", FAULTS)
def test_a_broken_extender_fails_the_attempt_in_kubernetes_words_until_it_works(how: str) -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        broken(fake, how)
        await world.add_pod("a")
        await world.clock.sleep(7)
        assert await condition(world, "a") == ("SchedulerError", FAULTS[how])
        fake.status, fake.error, fake.delay_s, fake.invented = 200, "", 0.0, []
        await world.settle()
        assert await world.node_of("a")

    run(story, extender(node_cache_capable=True))


@pytest.mark.parametrize("how", FAULTS)
def test_a_broken_extender_that_is_ignorable_is_passed_over(how: str) -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        broken(fake, how)
        await world.add_pod("a")
        await world.clock.sleep(7)
        assert await world.node_of("a")

    run(story, extender(node_cache_capable=True, ignorable=True))


def test_scores_that_do_not_come_are_done_without() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.status = 500
        await world.add_pod("a")
        await world.clock.sleep(5)
        assert await world.node_of("a")

    run(story, Extender(url_prefix=URL, prioritize_verb="prioritize", weight=1))


# Preemption --------------------------------------------------------------------------------------------------------


async def full_cluster(world: FaultyCluster) -> None:
    unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000}))
    for number in range(2):
        await world.add_pod(f"low-{number}", cpu="3")
    await world.clock.sleep(3)
    assert {await world.node_of("low-0"), await world.node_of("low-1")} == {"n0", "n1"}


@pytest.mark.parametrize("cached", [False, True])
def test_victims_are_taken_where_the_extender_lets_them(cached: bool) -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        await full_cluster(world)
        fake.refused_victims = {"n0"}
        await world.add_pod("high", cpu="3", priorityClassName="high")
        await world.clock.sleep(3)
        assert (await world.pod("high")).status.nominated_node_name == "n1"
        low = [await world.pod(f"low-{number}") for number in range(2)]
        leaving = [pod.spec.node_name for pod in low if pod.metadata.deletion_timestamp is not None]
        assert leaving == ["n1"]
        (args, *_) = fake.calls_of("preempt")
        shown = args["NodeNameToMetaVictims" if cached else "NodeNameToVictims"]
        assert sorted(shown) == ["n0", "n1"]
        assert args["Pod"]["metadata"]["name"] == "high"

    run(story, Extender(url_prefix=URL, preempt_verb="preempt", node_cache_capable=cached), nodes=2)


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (200, "no candidate node for preemption"),
        (500, f"failed preempt with extender at URL {URL}/preempt, code 500"),
    ],
)
def test_nobody_is_evicted_when_the_extender_leaves_no_candidate_or_fails(status: int, why: str) -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        await full_cluster(world)
        fake.refused_victims, fake.status = {"n0", "n1"}, status
        await world.add_pod("high", cpu="3", priorityClassName="high")
        await world.clock.sleep(3)
        message = f"0/2 nodes are available: 2 Insufficient cpu. preemption: {why}"
        assert await condition(world, "high") == ("Unschedulable", message)
        low = [await world.pod(f"low-{number}") for number in range(2)]
        assert [pod.metadata.deletion_timestamp for pod in low] == [None, None]

    run(story, Extender(url_prefix=URL, preempt_verb="preempt", node_cache_capable=True), nodes=2)


# Binding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignorable", [False, True])
def test_the_extender_binds_and_may_be_ignored_only_if_it_is_said_to_be(ignorable: bool) -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        async def bind(namespace: str, name: str, node: str) -> str:
            uid = (await world.pod(name)).metadata.uid
            refused = await world.client.bind(namespace, name, node, uid=uid)
            return refused.message if refused is not None else ""

        fake.bind = bind
        await world.add_pod("a")
        await world.clock.sleep(3)
        assert await world.node_of("a") == "n0"
        assert [args["PodName"] for args in fake.calls_of("bind")] == ["a"]
        assert not [r for r in world.wire.requests if r.path.endswith("/binding")], "ours did not bind"
        fake.status = 500
        await world.add_pod("b")
        await world.clock.sleep(3)
        assert await world.node_of("b") == ("n0" if ignorable else "")
        if not ignorable:
            assert await condition(world, "b") == (
                "SchedulerError",
                f"failed bind with extender at URL {URL}/bind, code 500",
            )
        fake.status = 200
        await world.settle()
        assert await world.node_of("b") == "n0"

    run(story, Extender(url_prefix=URL, bind_verb="bind", ignorable=ignorable), nodes=1)


# Over the wire -----------------------------------------------------------------------------------------------------


def serving_pair(name: str = "127.0.0.1") -> tuple[bytes, bytes, bytes]:
    """Return a CA, and a certificate for `name` with its key that it signed."""
    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = certificates.new_authority(ca_key, "extender-ca", now)
    signed: x509.Certificate = certificates.sign_serving_certificate(key, name, [name], ca, ca_key, now)
    return certificates.certificate_pem(ca), certificates.certificate_pem(signed), certificates.key_pem(key)


def client_pair() -> tuple[bytes, bytes]:
    """Return a certificate that is its own authority, with its key."""
    now = datetime.datetime.now(datetime.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "scheduler")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificates.certificate_pem(made), certificates.key_pem(key)


async def post(settings: Extender, url: str) -> tuple[int, bytes] | Fault:
    transport = HttpExtenderTransport(settings, "extenders[0]")
    try:
        body = b'{"Pod":{},"Nodes":null,"NodeNames":["n0"]}'
        return await transport.post(f"{url}/filter", body, 5.0)
    finally:
        await transport.close()


def test_plain_http_reaches_it() -> None:
    async def main() -> None:
        async with FakeExtender().serve() as url:
            answer = await post(Extender(url_prefix=url), url)
            assert not isinstance(answer, Fault), answer
            assert answer[0] == 200

    asyncio.run(main())


def test_nobody_at_the_address_is_said_in_gos_words() -> None:
    async def main() -> None:
        async with FakeExtender().serve() as url:
            pass
        answer = await post(Extender(url_prefix=url), url)
        place = url.removeprefix("http://")
        assert answer == Fault(f'Post "{url}/filter": dial tcp {place}: connect: connection refused')

    asyncio.run(main())


def test_tls_is_verified_with_the_ca_that_is_given_and_a_client_certificate_is_shown(tmp_path: Path) -> None:
    async def main() -> None:
        ca, certificate, key = serving_pair("extender.test")
        stranger, _, _ = serving_pair()
        context = certificates.server_context(certificate, key)
        context.verify_mode = ssl.CERT_REQUIRED
        shown, shown_key = client_pair()
        context.load_verify_locations(cadata=shown.decode())
        (tmp_path / "ca.crt").write_bytes(ca)
        data: dict[str, Any] = {
            "cert_data": base64.b64encode(shown).decode(),
            "key_data": base64.b64encode(shown_key).decode(),
        }
        async with FakeExtender().serve(context) as url:
            named = ExtenderTLS(ca_file=str(tmp_path / "ca.crt"), server_name="extender.test", **data)
            answer = await post(Extender(url_prefix=url, enable_https=True, tls_config=named), url)
            assert not isinstance(answer, Fault), answer
            unnamed = ExtenderTLS(ca_file=str(tmp_path / "ca.crt"), **data)
            answer = await post(Extender(url_prefix=url, enable_https=True, tls_config=unnamed), url)
            assert isinstance(answer, Fault)
            assert "tls: failed to verify certificate: x509" in answer.message
            other = ExtenderTLS(ca_data=base64.b64encode(stranger).decode(), server_name="extender.test", **data)
            answer = await post(Extender(url_prefix=url, enable_https=True, tls_config=other), url)
            assert isinstance(answer, Fault)
            assert "x509: certificate signed by unknown authority" in answer.message
            unverified = Extender(url_prefix=url, enable_https=True, tls_config=ExtenderTLS(**data))
            answer = await post(unverified, url)
            assert not isinstance(answer, Fault), "HTTPS without a CA is not verified, as upstream"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("tls", "where"),
    [
        ({"ca_data": "!"}, r"extenders\[0\].tlsConfig.caData"),
        ({"ca_file": "/nowhere/ca.crt"}, r"extenders\[0\].tlsConfig.caFile"),
        ({"cert_file": "/nowhere/tls.crt"}, "give both, or none"),
    ],
)
def test_certificates_that_cannot_be_used_are_refused_at_the_start(tls: dict[str, Any], where: str) -> None:
    with pytest.raises(BadConfig, match=where):
        HttpExtenderTransport(Extender(url_prefix="https://x", tls_config=ExtenderTLS(**tls)), "extenders[0]")


def test_a_whole_scheduler_asks_over_http() -> None:
    """Real time: the sockets are real."""

    async def main() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        fake = FakeExtender()
        fake.failed = {"n0": "no"}
        async with (
            fake.serve() as url,
            faulty_cluster(clock, configured(Extender(url_prefix=f"{url}/", filter_verb="filter"))) as world,
        ):
            await world.add_node("n0")
            await world.add_node("n1")
            bound = asyncio.Event()
            world.informers.for_resource(PODS).add_event_handler(
                lambda change: bound.set() if change.object.spec.node_name else None
            )
            await world.add_pod("a")
            async with asyncio.timeout(30):
                await bound.wait()
            assert await world.node_of("a") == "n1"

    asyncio.run(main())
