"""Every webhook joined to a cluster: gates decide which there are, caches are what decisions rest on."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import CLUSTER_COLOCATION_PROFILES, ELASTIC_QUOTAS
from koord.api.koordinator.protocol import (
    A_QUOTA_ADMISSION,
    A_QUOTA_CHILD_REQUEST,
    L_QUOTA_NAME,
    L_QUOTA_PARENT,
    ROOT_QUOTA,
)
from koord.api.kubernetes.admission import AdmissionRequest, GroupVersionResource, UserInfo
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, NAMESPACES, PRIORITY_CLASSES
from koord.kube.transport.api_error import unwrap
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.program import CONTROLLERS, is_enabled, unknown_controllers
from koord.manager.quota_topology_cache import QuotaEvaluator, QuotaTopologyCache
from koord.manager.reconcile_loop import NAMESPACE, ManagerContext
from koord.manager.webhook_server.handlers import DecodedReview, WebhookHandlers, WebhookOptions, decode_review
from koord.manager.webhook_server.metrics import WebhookMetrics
from koord.manager.webhook_server.routes import ROUTES, registered_routes, served_routes
from koord.manager.webhook_server.self_probe import synthetic_review
from koord.manager.webhooks import admission
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDecision, AdmissionDenied
from koord.telemetry.metrics import MetricRegistry
from tests.manager.manager_harness import run_with_context

EVERY_WEBHOOK = {route.gate: True for route in ROUTES}


async def handlers_of(context: ManagerContext, options: WebhookOptions = WebhookOptions()) -> WebhookHandlers:  # noqa: B008 - a frozen value
    quotas = QuotaTopologyCache(context)
    await quotas.start()
    handlers = WebhookHandlers(
        context, quotas, QuotaEvaluator(context, quotas), WebhookMetrics(MetricRegistry()), options
    )
    await handlers.wait_synced()
    return handlers


def request(resource: str, **changes: Any) -> AdmissionRequest:
    made: dict[str, Any] = {
        "uid": "u",
        "resource": GroupVersionResource(version="v1", resource=resource),
        "operation": "CREATE",
        "namespace": "work",
        "name": "a",
        "object": {"metadata": {"name": "a", "labels": {"app": "job"}}, "spec": {"containers": []}},
        **changes,
    }
    return AdmissionRequest(**made)


async def asked(handlers: WebhookHandlers, path: str, about: AdmissionRequest) -> AdmissionDecision:
    return await handlers.handlers[path].decide(about)


def test_the_table_has_a_gate_for_every_route() -> None:
    assert {route.gate for route in ROUTES} <= set(MANAGER_GATES)
    assert len({route.path for route in ROUTES}) == len(ROUTES)
    entries = [entry.name for route in ROUTES for entry in route.entries]
    assert len(set(entries)) == len(entries)


def test_gates_choose_what_is_served_and_what_is_registered() -> None:
    off = {name: gate.default for name, gate in MANAGER_GATES.items()}
    assert len(served_routes(off)) == 6
    assert "/validate-pod-binding" in {route.path for route in served_routes(off)}
    assert "/validate-pod-binding" not in {route.path for route in registered_routes(off)}
    assert served_routes({**off, "WebhookFramework": False}) == ()
    assert len(registered_routes({**off, **EVERY_WEBHOOK, "BindingAdmissionWebhook": True})) == len(ROUTES)


def test_a_question_about_nothing_is_let_through_everywhere() -> None:
    async def main(context: ManagerContext) -> None:
        handlers = await handlers_of(context)
        question = decode_review(synthetic_review())
        assert isinstance(question, DecodedReview)
        assert set(handlers.handlers) == {route.path for route in ROUTES}
        for path, handler in handlers.handlers.items():
            answer = await handler.answer(question.request)
            assert answer.allowed, path
            assert not answer.patch, path

    run_with_context(main, **EVERY_WEBHOOK)


def test_a_namespace_younger_than_the_cache_is_asked_for() -> None:
    async def main(context: ManagerContext) -> None:
        handlers = await handlers_of(context)
        spec = {"namespaceSelector": {"matchLabels": {"team": "a"}}, "labels": {"hit": "yes"}}
        unwrap(await context.client.create(CLUSTER_COLOCATION_PROFILES, {"metadata": {"name": "p"}, "spec": spec}))
        await asyncio.sleep(1)
        unwrap(await context.client.create(NAMESPACES, {"metadata": {"name": "work", "labels": {"team": "b"}}}))
        verdict = await asked(handlers, "/mutate-pod", request("pods"))  # no time passed: only the server knows of it
        assert verdict == AdmissionAllowed(None)

    run_with_context(main)


def test_a_priority_class_younger_than_the_cache_is_asked_for() -> None:
    async def main(context: ManagerContext) -> None:
        handlers = await handlers_of(context)
        unwrap(await context.client.create(NAMESPACES, {"metadata": {"name": "work"}}))
        spec = {"selector": {}, "priorityClassName": "new"}
        unwrap(await context.client.create(CLUSTER_COLOCATION_PROFILES, {"metadata": {"name": "p"}, "spec": spec}))
        await asyncio.sleep(1)
        assert isinstance(await asked(handlers, "/mutate-pod", request("pods")), AdmissionDenied)
        unwrap(await context.client.create(PRIORITY_CLASSES, {"metadata": {"name": "new"}, "value": 5100}))
        verdict = await asked(handlers, "/mutate-pod", request("pods"))
        assert isinstance(verdict, AdmissionAllowed)
        assert verdict.object is not None
        assert verdict.object["spec"]["priority"] == 5100

    run_with_context(main)


def test_required_labels_follow_their_configmap_and_outlive_nonsense() -> None:
    async def main(context: ManagerContext) -> None:
        handlers = await handlers_of(context)
        unwrap(await context.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}}))
        name = "pod-enhanced-validator-config"
        data = {"enable": " TRUE ", "rules": '[{"name": "r", "requiredLabels": ["owner"]}]'}
        about = request("pods")
        unwrap(await context.client.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": data}, NAMESPACE))
        await asyncio.sleep(1)
        assert await asked(handlers, "/validate-pod", about) == AdmissionDenied(
            400, "required label 'owner' is missing"
        )
        unwrap(await context.client.patch(CONFIG_MAPS, name, {"data": {"rules": "["}}, NAMESPACE, kind="merge"))
        await asyncio.sleep(1)
        assert await asked(handlers, "/validate-pod", about) == AdmissionDenied(
            400, "required label 'owner' is missing"
        )
        unwrap(await context.client.delete(CONFIG_MAPS, name, NAMESPACE))
        await asyncio.sleep(1)
        assert await asked(handlers, "/validate-pod", about) == AdmissionAllowed()

    run_with_context(main, EnablePodEnhancedValidator=True)


def test_a_pod_that_is_refused_anyway_uses_no_quota_up() -> None:
    async def main(context: ManagerContext) -> None:
        handlers = await handlers_of(context)
        unwrap(await context.client.create(NAMESPACES, {"metadata": {"name": "work"}}))
        quota = {
            "metadata": {
                "name": "q",
                "labels": {L_QUOTA_PARENT: ROOT_QUOTA},
                "annotations": {A_QUOTA_ADMISSION: '{"cpu":"2"}'},
            },
            "spec": {"max": {"cpu": "2"}},
        }
        unwrap(await context.client.create(ELASTIC_QUOTAS, quota, "work"))
        await asyncio.sleep(1)

        async def charged(**gpu: str) -> tuple[AdmissionDecision, bool]:
            wanted = {"cpu": "1", **{f"koordinator.sh/{name}": amount for name, amount in gpu.items()}}
            spec = {"containers": [{"name": "c", "image": "i", "resources": {"requests": wanted}}]}
            labels = {L_QUOTA_NAME: "q"}
            pod = {"metadata": {"name": "a", "labels": labels}, "spec": spec}
            verdict = await asked(handlers, "/validate-pod", request("pods", object=pod))
            stored = unwrap(await context.client.get(ELASTIC_QUOTAS, "q", "work"))
            return verdict, A_QUOTA_CHILD_REQUEST in stored.metadata.annotations

        refused, touched = await charged(gpu="120")
        assert isinstance(refused, AdmissionDenied)
        assert not touched
        assert await charged() == (AdmissionAllowed(), True)

    run_with_context(main, EnableQuotaAdmission=True, ValidatePodDeviceResource=True)


def test_decisions_about_bindings_are_counted() -> None:
    async def main(context: ManagerContext) -> None:
        options = WebhookOptions(
            binding_admission=admission.BindingAdmissionSettings(users=("scheduler",), namespaces=("*",))
        )
        handlers = await handlers_of(context, options)
        about = request("pods", sub_resource="binding", user_info=UserInfo(username="system:kube-scheduler"))
        assert await asked(handlers, "/validate-pod-binding", about) == AdmissionAllowed()
        assert handlers._metrics.binding_decisions.labels("allowed_username").value == 1

    run_with_context(main, BindingAdmissionWebhook=True)


class TestChoosing:
    @pytest.mark.parametrize(
        ("words", "runs"),
        [
            pytest.param(("*",), True, id="all"),
            pytest.param(("*", "-nodeslo"), False, id="all-but-it"),
            pytest.param(("nodeslo",), True, id="it-alone"),
            pytest.param(("nodemetric",), False, id="another"),
            pytest.param(("-nodeslo", "nodeslo"), False, id="the-first-word-counts"),
        ],
    )
    def test_words(self, words: tuple[str, ...], runs: bool) -> None:
        assert is_enabled("nodeslo", words) is runs

    def test_unknown_words_are_found(self) -> None:
        assert unknown_controllers(("*", "-nodeslo", "nodesl", "-x")) == ["nodesl", "-x"]

    def test_every_controller_declares_its_rights(self) -> None:
        for kind, _, _ in CONTROLLERS:
            assert kind.rights, kind
            assert re.fullmatch(r"[a-z]+", kind.name), kind
