"""In-process hooks, alone and beside webhooks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from koord.embedded.apiserver.admission.hooks import InProcessAdmission
from koord.embedded.apiserver.admission.registration import NO_CONDITIONS
from koord.embedded.apiserver.admission.rule import Rule, selector_of
from koord.embedded.apiserver.admission.verdict import ALLOWED, Verdict, denied
from koord.embedded.apiserver.rest.admission_chain import Attributes
from tests.embedded.apiserver.admission.admission_harness import CONFIG_MAPS, PODS, Api, config_map, pod, started
from tests.embedded.apiserver.admission.webhook_server import webhook_server

CM = (Rule(api_groups=("",), resources=("configmaps",)),)
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    made = await started()
    yield made
    await made.server.close()


def _label(key: str, value: str) -> Callable[[Attributes], Verdict]:
    def mutate(attributes: Attributes) -> Verdict:
        labels = (attributes.obj or {})["metadata"].get("labels") or {}
        return Verdict(patch=[{"op": "add", "path": "/metadata/labels", "value": {**labels, key: value}}])

    return mutate


async def test_patch(api: Api) -> None:
    api.server.hooks.add(InProcessAdmission(name="label", rules=CM, mutate=_label("a", "1")))
    _, made = await api.post(CONFIG_MAPS, config_map())
    assert made["metadata"]["labels"] == {"a": "1"}


async def test_whole_object(api: Api) -> None:
    def mutate(attributes: Attributes) -> Verdict:
        return Verdict(obj={**(attributes.obj or {}), "data": {"k": "mine"}})

    api.server.hooks.add(InProcessAdmission(name="data", rules=CM, mutate=mutate))
    body = config_map()
    _, made = await api.post(CONFIG_MAPS, body)
    assert (made["data"], body["data"]) == ({"k": "mine"}, {"k": "v"})


async def test_denial_reads_as_a_webhooks(api: Api) -> None:
    api.server.hooks.add(InProcessAdmission(name="gate.example.com", rules=CM, validate=lambda _: denied("no", 409)))
    status, body = await api.post(CONFIG_MAPS, config_map())
    assert (status, body["message"]) == (409, 'admission webhook "gate.example.com" denied the request: no')


async def test_warnings(api: Api) -> None:
    api.server.hooks.add(InProcessAdmission(name="w", rules=CM, validate=lambda _: Verdict(warnings=("hm",))))
    assert (await api.post(CONFIG_MAPS, config_map()))[0] == 201
    assert api.warning == '299 - "hm"'


async def test_asynchronous_function(api: Api) -> None:
    async def validate(attributes: Attributes) -> Verdict:
        return denied(f"{attributes.operation} by {attributes.user}")

    api.server.hooks.add(InProcessAdmission(name="a", rules=CM, validate=validate))
    _, body = await api.post(CONFIG_MAPS, config_map())
    assert body["message"].endswith("CREATE by tester")


async def test_a_hook_that_fails_lets_nothing_through(api: Api) -> None:
    def broken(_: Attributes) -> Verdict:
        raise LookupError("lost")

    api.server.hooks.add(InProcessAdmission(name="b", rules=CM, mutate=broken))
    status, body = await api.post(CONFIG_MAPS, config_map())
    assert (status, body["reason"]) == (500, "InternalError")
    assert "LookupError: lost" in body["message"]
    assert (await api.get(f"{CONFIG_MAPS}/x"))[0] == 404


async def test_validators_see_the_finished_object(api: Api) -> None:
    seen: list[Any] = []

    def validate(attributes: Attributes) -> Verdict:
        seen.append(attributes.obj)
        return ALLOWED

    api.server.hooks.add(InProcessAdmission(name="see", rules=CM, validate=validate, mutate=_label("a", "1")))
    await api.post(CONFIG_MAPS, config_map())
    (obj,) = seen
    assert obj["metadata"]["labels"] == {"a": "1"}
    assert obj["metadata"]["uid"]


async def test_selectors_and_exact_rules(api: Api) -> None:
    hook = InProcessAdmission(
        name="picky",
        rules=CM,
        validate=lambda _: denied("no"),
        objects=selector_of({"matchLabels": {"watched": "yes"}}),
        namespaces=selector_of({"matchLabels": {"kubernetes.io/metadata.name": "default"}}),
    )
    api.server.hooks.add(hook)
    assert (await api.post(CONFIG_MAPS, config_map("a")))[0] == 201
    assert (await api.post(CONFIG_MAPS, config_map("b", {"watched": "yes"})))[0] == 400
    there = "/api/v1/namespaces/kube-public/configmaps"
    assert (await api.post(there, config_map("b", {"watched": "yes"})))[0] == 201


async def test_built_in_plugins_look_again(api: Api) -> None:
    """A profile that gives a pod another class has to give the class's number too, as on a real server."""

    def mutate(attributes: Attributes) -> Verdict:
        spec = {**(attributes.obj or {})["spec"], "priorityClassName": "system-node-critical"}
        for field in ("priority", "preemptionPolicy"):
            spec.pop(field)
        return Verdict(obj={**(attributes.obj or {}), "spec": spec})

    rules = (Rule(api_groups=("",), resources=("pods",), operations=("CREATE",)),)
    api.server.hooks.add(InProcessAdmission(name="profile", rules=rules, mutate=mutate))
    _, made = await api.post(PODS, pod())
    assert made["spec"]["priority"] == 2_000_001_000


async def test_removed_hooks_are_silent_and_names_are_unique(api: Api) -> None:
    hook = InProcessAdmission(name="once", rules=CM, validate=lambda _: denied("no"))
    api.server.hooks.add(hook)
    with pytest.raises(ValueError, match="once"):
        api.server.hooks.add(hook)
    api.server.hooks.remove("once")
    assert (await api.post(CONFIG_MAPS, config_map()))[0] == 201


async def test_before_webhooks_and_again_after_them(api: Api) -> None:
    calls = 0

    def mutate(attributes: Attributes) -> Verdict:
        nonlocal calls
        calls += 1
        return _label("own", str(calls))(attributes)

    api.server.hooks.add(InProcessAdmission(name="own", rules=CM, mutate=mutate, reinvoked=True))
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

        api.server.hooks.caller.resolver = resolve
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


async def test_match_conditions_are_refused(api: Api) -> None:
    webhook = {
        "name": "c.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/"},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "matchConditions": [{"name": "a", "expression": "true"}],
    }
    status, body = await api.post(MUTATING, {"metadata": {"name": "m"}, "webhooks": [webhook]})
    assert status == 422
    assert f"webhooks[0].matchConditions: Forbidden: {NO_CONDITIONS}" in body["message"]


async def test_a_write_that_lost_the_race_starts_over(api: Api) -> None:
    """A hook that waits lets others write; the update is then made on what they left."""
    await api.post(CONFIG_MAPS, config_map())
    raced = False

    async def validate(attributes: Attributes) -> Verdict:
        nonlocal raced
        if not raced:
            raced = True
            await api.merge(f"{CONFIG_MAPS}/x", {"data": {"other": "1"}})
        return ALLOWED

    api.server.hooks.add(InProcessAdmission(name="slow", rules=CM, validate=validate))
    status, body = await api.merge(f"{CONFIG_MAPS}/x", {"data": {"mine": "2"}})
    assert (status, body["data"]) == (200, {"k": "v", "other": "1", "mine": "2"})
