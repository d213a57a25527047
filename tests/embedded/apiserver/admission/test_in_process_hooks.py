"""In-process hooks, alone and beside webhooks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from koord.embedded.apiserver.admission.hooks import InProcessHook
from koord.embedded.apiserver.admission.matching import WebhookRule, parse_selector
from koord.embedded.apiserver.admission.webhooks import ALLOWED, AdmissionVerdict, deny
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes
from tests.embedded.apiserver.admission.admitted_objects import CONFIG_MAPS, PODS, config_map, pod
from tests.embedded.apiserver.admission.webhook_server import webhook_server
from tests.embedded.apiserver.rest_harness import Api, started

CM = (WebhookRule(api_groups=("",), resources=("configmaps",)),)
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    made = await started(seed=5)
    yield made
    await made.server.close()


def _label(key: str, value: str) -> Callable[[AdmissionAttributes], AdmissionVerdict]:
    def mutate(attributes: AdmissionAttributes) -> AdmissionVerdict:
        labels = (attributes.obj or {})["metadata"].get("labels") or {}
        return AdmissionVerdict(patch=[{"op": "add", "path": "/metadata/labels", "value": {**labels, key: value}}])

    return mutate


async def test_patch(api: Api) -> None:
    api.server.hooks.add(InProcessHook(name="label", rules=CM, mutate=_label("a", "1")))
    _, made = await api.post(CONFIG_MAPS, config_map())
    assert made["metadata"]["labels"] == {"a": "1"}


async def test_whole_object(api: Api) -> None:
    def mutate(attributes: AdmissionAttributes) -> AdmissionVerdict:
        return AdmissionVerdict(obj={**(attributes.obj or {}), "data": {"k": "mine"}})

    api.server.hooks.add(InProcessHook(name="data", rules=CM, mutate=mutate))
    body = config_map()
    _, made = await api.post(CONFIG_MAPS, body)
    assert (made["data"], body["data"]) == ({"k": "mine"}, {"k": "v"})


async def test_denial_reads_as_a_webhooks(api: Api) -> None:
    api.server.hooks.add(InProcessHook(name="gate.example.com", rules=CM, validate=lambda _: deny("no", 409)))
    status, body = await api.post(CONFIG_MAPS, config_map())
    assert (status, body["message"]) == (409, 'admission webhook "gate.example.com" denied the request: no')


async def test_warnings(api: Api) -> None:
    api.server.hooks.add(InProcessHook(name="w", rules=CM, validate=lambda _: AdmissionVerdict(warnings=("hm",))))
    assert (await api.post(CONFIG_MAPS, config_map()))[0] == 201
    assert api.warning == '299 - "hm"'


async def test_asynchronous_function(api: Api) -> None:
    async def validate(attributes: AdmissionAttributes) -> AdmissionVerdict:
        return deny(f"{attributes.operation} by {attributes.user}")

    api.server.hooks.add(InProcessHook(name="a", rules=CM, validate=validate))
    _, body = await api.post(CONFIG_MAPS, config_map())
    assert body["message"].endswith("CREATE by tester")


async def test_a_hook_that_fails_lets_nothing_through(api: Api) -> None:
    def broken(_: AdmissionAttributes) -> AdmissionVerdict:
        raise LookupError("lost")

    api.server.hooks.add(InProcessHook(name="b", rules=CM, mutate=broken))
    status, body = await api.post(CONFIG_MAPS, config_map())
    assert (status, body["reason"]) == (500, "InternalError")
    assert "LookupError: lost" in body["message"]
    assert (await api.get(f"{CONFIG_MAPS}/x"))[0] == 404


async def test_validators_see_the_finished_object(api: Api) -> None:
    seen: list[Any] = []

    def validate(attributes: AdmissionAttributes) -> AdmissionVerdict:
        seen.append(attributes.obj)
        return ALLOWED

    api.server.hooks.add(InProcessHook(name="see", rules=CM, validate=validate, mutate=_label("a", "1")))
    await api.post(CONFIG_MAPS, config_map())
    (obj,) = seen
    assert obj["metadata"]["labels"] == {"a": "1"}
    assert obj["metadata"]["uid"]


async def test_selectors_and_exact_rules(api: Api) -> None:
    hook = InProcessHook(
        name="picky",
        rules=CM,
        validate=lambda _: deny("no"),
        objects=parse_selector({"matchLabels": {"watched": "yes"}}),
        namespaces=parse_selector({"matchLabels": {"kubernetes.io/metadata.name": "default"}}),
    )
    api.server.hooks.add(hook)
    assert (await api.post(CONFIG_MAPS, config_map("a")))[0] == 201
    assert (await api.post(CONFIG_MAPS, config_map("b", {"watched": "yes"})))[0] == 400
    there = "/api/v1/namespaces/kube-public/configmaps"
    assert (await api.post(there, config_map("b", {"watched": "yes"})))[0] == 201


async def test_built_in_plugins_look_again(api: Api) -> None:
    """A profile that gives a pod another class has to give the class's number too, as on a real server."""

    def mutate(attributes: AdmissionAttributes) -> AdmissionVerdict:
        spec = {**(attributes.obj or {})["spec"], "priorityClassName": "system-node-critical"}
        for field in ("priority", "preemptionPolicy"):
            spec.pop(field)
        return AdmissionVerdict(obj={**(attributes.obj or {}), "spec": spec})

    rules = (WebhookRule(api_groups=("",), resources=("pods",), operations=("CREATE",)),)
    api.server.hooks.add(InProcessHook(name="profile", rules=rules, mutate=mutate))
    _, made = await api.post(PODS, pod())
    assert made["spec"]["priority"] == 2_000_001_000


async def test_removed_hooks_are_silent_and_names_are_unique(api: Api) -> None:
    hook = InProcessHook(name="once", rules=CM, validate=lambda _: deny("no"))
    api.server.hooks.add(hook)
    with pytest.raises(ValueError, match="once"):
        api.server.hooks.add(hook)
    api.server.hooks.remove("once")
    assert (await api.post(CONFIG_MAPS, config_map()))[0] == 201


async def test_before_webhooks_and_again_after_them(api: Api) -> None:
    calls = 0

    def mutate(attributes: AdmissionAttributes) -> AdmissionVerdict:
        nonlocal calls
        calls += 1
        return _label("own", str(calls))(attributes)

    api.server.hooks.add(InProcessHook(name="own", rules=CM, mutate=mutate, reinvoked=True))
    async with webhook_server() as webhooks:
        webhook = {
            "name": "a.example.com",
            "clientConfig": {"url": f"{webhooks.url}/label-a", "caBundle": webhooks.ca_bundle},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        assert (await api.post(MUTATING, {"metadata": {"name": "m"}, "webhooks": [webhook]}))[0] == 201
        _, made = await api.post(CONFIG_MAPS, config_map())
        (asked,) = webhooks.asked("/label-a")
    assert asked["request"]["object"]["metadata"]["labels"] == {"own": "1"}
    assert made["metadata"]["labels"] == {"own": "2", "a": "1"}


async def test_services_are_found_by_the_resolver(api: Api) -> None:
    async with webhook_server("hooks.koord-system.svc") as webhooks:
        host, _, port = webhooks.url.removeprefix("https://").partition(":")

        def resolve(namespace: str, name: str, asked: int) -> tuple[str, int] | None:
            return (host, int(port)) if (namespace, name, asked) == ("koord-system", "hooks", 9443) else None

        api.server.hooks.webhook_client.resolver = resolve
        service = {"namespace": "koord-system", "name": "hooks", "path": "/deny-with-message", "port": 9443}
        webhook = {
            "name": "s.example.com",
            "clientConfig": {"service": service, "caBundle": webhooks.ca_bundle},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        await api.post(MUTATING, {"metadata": {"name": "m"}, "webhooks": [webhook]})
        status, body = await api.post(CONFIG_MAPS, config_map())
    assert (status, body["message"]) == (400, 'admission webhook "s.example.com" denied the request: not on my watch')


async def test_a_write_that_lost_the_race_starts_over(api: Api) -> None:
    """A hook that waits lets others write; the update is then made on what they left."""
    await api.post(CONFIG_MAPS, config_map())
    raced = False

    async def validate(attributes: AdmissionAttributes) -> AdmissionVerdict:
        nonlocal raced
        if not raced:
            raced = True
            await api.patch(f"{CONFIG_MAPS}/x", {"data": {"other": "1"}})
        return ALLOWED

    api.server.hooks.add(InProcessHook(name="slow", rules=CM, validate=validate))
    status, body = await api.patch(f"{CONFIG_MAPS}/x", {"data": {"mine": "2"}})
    assert (status, body["data"]) == (200, {"k": "v", "other": "1", "mine": "2"})
