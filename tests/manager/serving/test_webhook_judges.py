"""Every webhook joined to a cluster: gates decide which there are, caches are what decisions rest on."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from koord.api.admission import AdmissionRequest, GroupVersionResource, UserInfo
from koord.api.builtin import CONFIG_MAPS, NAMESPACES, PRIORITY_CLASSES
from koord.api.config.gate_tables import MANAGER
from koord.api.custom import CLUSTER_COLOCATION_PROFILES, ELASTIC_QUOTAS
from koord.api.protocol import A_QUOTA_ADMISSION, A_QUOTA_CHILD_REQUEST, L_QUOTA_NAME, L_QUOTA_PARENT, ROOT_QUOTA
from koord.kube.refused import ok
from koord.manager.metrics import Metrics
from koord.manager.program import CONTROLLERS, is_chosen, unknown
from koord.manager.quota.evaluator import QuotaEvaluator
from koord.manager.quota.live import LiveQuotas
from koord.manager.serving import review
from koord.manager.serving.judge import Judge, Options
from koord.manager.serving.reach import synthetic_review
from koord.manager.serving.review import Review
from koord.manager.serving.route import ROUTES, configured, served
from koord.manager.webhooks import binding
from koord.manager.webhooks.verdict import Allowed, Denied, Verdict
from koord.manager.world import NAMESPACE, World
from koord.telemetry.metrics.registry import Registry
from tests.manager.manager_world import in_world

EVERY_WEBHOOK = {route.gate: True for route in ROUTES}


async def judge_of(world: World, options: Options = Options()) -> Judge:  # noqa: B008 - a frozen value
    quotas = LiveQuotas(world)
    await quotas.start()
    judge = Judge(world, quotas, QuotaEvaluator(world, quotas), Metrics(Registry()), options)
    await judge.wait_synced()
    return judge


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


async def asked(judge: Judge, path: str, about: AdmissionRequest) -> Verdict:
    return await judge.doors[path].verdict(about)


def test_the_table_has_a_gate_for_every_route() -> None:
    assert {route.gate for route in ROUTES} <= set(MANAGER)
    assert len({route.path for route in ROUTES}) == len(ROUTES)
    entries = [entry.name for route in ROUTES for entry in route.entries]
    assert len(set(entries)) == len(entries)


def test_gates_choose_what_is_served_and_what_is_registered() -> None:
    off = {name: gate.default for name, gate in MANAGER.items()}
    assert len(served(off)) == 5
    assert "/validate-pod-binding" in {route.path for route in served(off)}
    assert "/validate-pod-binding" not in {route.path for route in configured(off)}
    assert served({**off, "WebhookFramework": False}) == ()
    assert len(configured({**off, **EVERY_WEBHOOK, "BindingAdmissionWebhook": True})) == len(ROUTES)


def test_a_question_about_nothing_is_let_through_everywhere() -> None:
    async def main(world: World) -> None:
        judge = await judge_of(world)
        question = review.read(synthetic_review())
        assert isinstance(question, Review)
        assert set(judge.doors) == {route.path for route in ROUTES}
        for path, door in judge.doors.items():
            answer = await door.answer(question.request)
            assert answer.allowed, path
            assert not answer.patch, path

    in_world(main, **EVERY_WEBHOOK)


def test_a_namespace_younger_than_the_cache_is_asked_for() -> None:
    async def main(world: World) -> None:
        judge = await judge_of(world)
        spec = {"namespaceSelector": {"matchLabels": {"team": "a"}}, "labels": {"hit": "yes"}}
        ok(await world.client.create(CLUSTER_COLOCATION_PROFILES, {"metadata": {"name": "p"}, "spec": spec}))
        await asyncio.sleep(1)
        ok(await world.client.create(NAMESPACES, {"metadata": {"name": "work", "labels": {"team": "b"}}}))
        verdict = await asked(judge, "/mutate-pod", request("pods"))  # no time passed: only the server knows of it
        assert verdict == Allowed(None)

    in_world(main)


def test_a_priority_class_younger_than_the_cache_is_asked_for() -> None:
    async def main(world: World) -> None:
        judge = await judge_of(world)
        ok(await world.client.create(NAMESPACES, {"metadata": {"name": "work"}}))
        spec = {"selector": {}, "priorityClassName": "new"}
        ok(await world.client.create(CLUSTER_COLOCATION_PROFILES, {"metadata": {"name": "p"}, "spec": spec}))
        await asyncio.sleep(1)
        assert isinstance(await asked(judge, "/mutate-pod", request("pods")), Denied)
        ok(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": "new"}, "value": 5100}))
        verdict = await asked(judge, "/mutate-pod", request("pods"))
        assert isinstance(verdict, Allowed)
        assert verdict.object is not None
        assert verdict.object["spec"]["priority"] == 5100

    in_world(main)


def test_required_labels_follow_their_configmap_and_outlive_nonsense() -> None:
    async def main(world: World) -> None:
        judge = await judge_of(world)
        ok(await world.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}}))
        name = "pod-enhanced-validator-config"
        data = {"enable": " TRUE ", "rules": '[{"name": "r", "requiredLabels": ["owner"]}]'}
        about = request("pods")
        ok(await world.client.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": data}, NAMESPACE))
        await asyncio.sleep(1)
        assert await asked(judge, "/validate-pod", about) == Denied(400, "required label 'owner' is missing")
        ok(await world.client.patch(CONFIG_MAPS, name, {"data": {"rules": "["}}, NAMESPACE, kind="merge"))
        await asyncio.sleep(1)
        assert await asked(judge, "/validate-pod", about) == Denied(400, "required label 'owner' is missing")
        ok(await world.client.delete(CONFIG_MAPS, name, NAMESPACE))
        await asyncio.sleep(1)
        assert await asked(judge, "/validate-pod", about) == Allowed()

    in_world(main, EnablePodEnhancedValidator=True)


def test_a_pod_that_is_refused_anyway_uses_no_quota_up() -> None:
    async def main(world: World) -> None:
        judge = await judge_of(world)
        ok(await world.client.create(NAMESPACES, {"metadata": {"name": "work"}}))
        quota = {
            "metadata": {
                "name": "q",
                "labels": {L_QUOTA_PARENT: ROOT_QUOTA},
                "annotations": {A_QUOTA_ADMISSION: '{"cpu":"2"}'},
            },
            "spec": {"max": {"cpu": "2"}},
        }
        ok(await world.client.create(ELASTIC_QUOTAS, quota, "work"))
        await asyncio.sleep(1)

        async def charged(**gpu: str) -> tuple[Verdict, bool]:
            wanted = {"cpu": "1", **{f"koordinator.sh/{name}": amount for name, amount in gpu.items()}}
            spec = {"containers": [{"name": "c", "image": "i", "resources": {"requests": wanted}}]}
            labels = {L_QUOTA_NAME: "q"}
            pod = {"metadata": {"name": "a", "labels": labels}, "spec": spec}
            verdict = await asked(judge, "/validate-pod", request("pods", object=pod))
            stored = ok(await world.client.get(ELASTIC_QUOTAS, "q", "work"))
            return verdict, A_QUOTA_CHILD_REQUEST in stored.metadata.annotations

        refused, touched = await charged(gpu="120")
        assert isinstance(refused, Denied)
        assert not touched
        assert await charged() == (Allowed(), True)

    in_world(main, EnableQuotaAdmission=True, ValidatePodDeviceResource=True)


def test_decisions_about_bindings_are_counted() -> None:
    async def main(world: World) -> None:
        options = Options(binding=binding.Settings(users=("scheduler",), namespaces=("*",)))
        judge = await judge_of(world, options)
        about = request("pods", sub_resource="binding", user_info=UserInfo(username="system:kube-scheduler"))
        assert await asked(judge, "/validate-pod-binding", about) == Allowed()
        assert judge._metrics.binding_decisions.labels("allowed_username").value == 1

    in_world(main, BindingAdmissionWebhook=True)


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
        assert is_chosen("nodeslo", words) is runs

    def test_unknown_words_are_found(self) -> None:
        assert unknown(("*", "-nodeslo", "nodesl", "-x")) == ["nodesl", "-x"]

    def test_every_controller_declares_its_rights(self) -> None:
        for kind, _, _ in CONTROLLERS:
            assert kind.rights, kind
            assert re.fullmatch(r"[a-z]+", kind.name), kind
