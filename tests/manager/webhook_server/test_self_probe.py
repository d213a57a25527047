"""Whether API servers can call: asked through what the configurations say, told by number and event."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import pytest

from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, MUTATING_WEBHOOK_CONFIGURATIONS
from koord.kube.transport.api_error import unwrap
from koord.manager.reconcile_loop import ManagerContext
from koord.manager.webhook_server import handlers
from koord.manager.webhook_server.cert_rotator import MUTATING_NAME
from koord.manager.webhook_server.handlers import DecodedReview
from koord.manager.webhook_server.routes import TEMPLATE_ANNOTATION
from koord.manager.webhook_server.self_probe import WebhookSelfProbe, synthetic_review
from tests.manager.webhook_server.replica_fixture import PATH, Replica, cluster_context, configuration


@pytest.fixture
async def context() -> AsyncIterator[ManagerContext]:
    async with cluster_context() as context, context.recorder:
        yield context


@pytest.fixture
async def replica(context: ManagerContext) -> AsyncIterator[Replica]:
    replica = Replica(context, "r1")
    await replica.start()
    yield replica
    await replica.stop()


def self_probe_of(context: ManagerContext, replica: Replica, *, tells: bool = True) -> WebhookSelfProbe:
    place = f"127.0.0.1:{replica.server.port}"
    return WebhookSelfProbe(context, replica.metrics, tells=lambda: tells, resolve=lambda _namespace, _service: place)


async def told(context: ManagerContext) -> list[str]:
    await context.recorder.stop()
    context.recorder.start()
    return sorted(event.reason for event in unwrap(await context.client.list(EVENTS_EVENTS)).items)


async def spoil_trust(context: ManagerContext) -> None:
    config = await configuration(context.client)
    entry = {**config["webhooks"][0]}
    wrong = base64.b64encode(b"no certificate").decode()
    entry["clientConfig"] = {**entry["clientConfig"], "caBundle": wrong}
    patch = {"webhooks": [entry], "metadata": {"annotations": {TEMPLATE_ANNOTATION: "[]"}}}
    unwrap(await context.client.patch(MUTATING_WEBHOOK_CONFIGURATIONS, MUTATING_NAME, patch, kind="merge"))


async def test_a_good_path_is_one(context: ManagerContext, replica: Replica) -> None:
    assert await self_probe_of(context, replica).probe_all() == {PATH: ""}
    assert replica.metrics.reachable.labels(PATH).value == 1
    assert await told(context) == []


async def test_a_spoilt_bundle_is_seen_and_its_repair_too(context: ManagerContext, replica: Replica) -> None:
    reach = self_probe_of(context, replica)
    await replica.cert_rotator.stop()  # it would repair the bundle at once
    await spoil_trust(context)
    assert (await reach.probe_all())[PATH]
    assert replica.metrics.reachable.labels(PATH).value == 0
    assert await told(context) == ["WebhookUnreachable"]
    await replica.look()
    assert await reach.probe_all() == {PATH: ""}
    assert await told(context) == ["WebhookReachable", "WebhookUnreachable"]


async def test_a_closed_port_is_seen_and_only_the_leader_tells(context: ManagerContext, replica: Replica) -> None:
    reach = self_probe_of(context, replica, tells=False)
    await replica.server.stop()
    assert "refused" in (await reach.probe_all())[PATH]
    assert replica.metrics.reachable.labels(PATH).value == 0
    assert await told(context) == []


async def test_a_name_that_this_pods_dns_does_not_know_says_nothing(
    context: ManagerContext, replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    """API servers take the address from the Service: without a cluster's DNS they call webhooks all the same."""
    nowhere = "koordinator-webhook-service.invalid:443"
    reach = WebhookSelfProbe(context, replica.metrics, resolve=lambda _namespace, _service: nowhere)
    for _ in range(2):
        assert await reach.probe_all() == {}
    assert await told(context) == []
    assert [one.levelname for one in caplog.records if "is not checked" in one.message] == ["WARNING"]


def test_the_question_is_a_review_about_nothing_of_ours() -> None:
    asked = handlers.decode_review(synthetic_review())
    assert isinstance(asked, DecodedReview)
    assert asked.request.dry_run is True
    assert asked.request.resource.resource == "selfchecks"
