"""Webhook configurations, requests and their outcomes, played against this server and against a real one."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from tests.embedded.apiserver.admission.webhook_server import WebhookServer

Obj = dict[str, Any]
MERGE = "application/merge-patch+json"
# (method, path, body, content type) -> status, body, warnings
Send = Callable[[str, str, Any, str], Awaitable[tuple[int, Any, list[str]]]]

CONFIG_MAPS: Obj = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}
KINDS = {"mutating": "MutatingWebhookConfiguration", "validating": "ValidatingWebhookConfiguration"}
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_PORT = re.compile(r"127\.0\.0\.1:\d+")


def hook(path: str, *, kind: str = "mutating", name: str = "", rules: Any = None, **more: Any) -> Obj:
    """One webhook; its URL, authority and namespace are put in when the case is played."""
    return {
        "kind": kind,
        "name": name or f"{path.strip('/')}.example.com",
        "path": path,
        "rules": rules or [CONFIG_MAPS],
        **more,
    }


def rule(resource: str, group: str = "", version: str = "v1", **more: Any) -> list[Obj]:
    return [{"apiGroups": [group], "apiVersions": [version], "operations": ["*"], "resources": [resource], **more}]


def condition(expression: str, name: str = "it") -> Obj:
    return {"name": name, "expression": expression}


def create(name: str = "x", labels: Obj | None = None) -> tuple[str, str, Any, str]:
    meta: Obj = {"name": name, **({"labels": labels} if labels else {})}
    return ("POST", "/api/v1/namespaces/{ns}/configmaps", {"metadata": meta, "data": {"k": "v"}}, "")


def change(name: str = "x") -> tuple[str, str, Any, str]:
    return ("PATCH", f"/api/v1/namespaces/{{ns}}/configmaps/{name}", {"data": {"k": "w"}}, MERGE)


def remove(name: str = "x") -> tuple[str, str, Any, str]:
    return ("DELETE", f"/api/v1/namespaces/{{ns}}/configmaps/{name}", None, "")


DRY = ("POST", "/api/v1/namespaces/{ns}/configmaps?dryRun=All", {"metadata": {"name": "dry"}}, "")
POD: Obj = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
MAKE_POD = ("POST", "/api/v1/namespaces/{ns}/pods", POD, "")
DEPLOYMENT: Obj = {
    "metadata": {"name": "d"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}},
    },
}
MAKE_DEPLOYMENT = ("POST", "/apis/apps/v1/namespaces/{ns}/deployments", DEPLOYMENT, "")
SCALE = ("PATCH", "/apis/apps/v1/namespaces/{ns}/deployments/d/scale", {"spec": {"replicas": 2}}, MERGE)
SCALER: Obj = {
    "apiVersion": "autoscaling/v1",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "h"},
    "spec": {
        "maxReplicas": 3,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
        "targetCPUUtilizationPercentage": 50,
    },
}
MAKE_SCALER = ("POST", "/apis/autoscaling/v1/namespaces/{ns}/horizontalpodautoscalers", SCALER, "")
SCALER_V2 = rule("horizontalpodautoscalers", "autoscaling", "v2")

_ANSWERS = [
    "allow",
    "allow-with-warnings",
    "deny",
    "deny-with-message",
    "deny-with-code",
    "deny-with-reason",
    "deny-with-good-code",
    "deny-with-details",
    "deny-with-warnings",
    "deny-with-patch",
    "label-a",
    "empty-patch",
    "bad-patch",
    "broken-patch",
    "wrong-type-patch",
    "unknown-field-patch",
    "invalid-patch",
    "rename-patch",
    "patch-without-type",
    "type-without-patch",
    "other-patch-type",
    "error",
    "missing",
    "garbage",
    "empty",
    "no-response",
    "other-version",
    "other-uid",
]
_JUDGEMENTS = ["allow", "allow-with-warnings", "deny", "deny-with-message", "label-a", "error", "other-uid"]

# id -> (webhooks, requests). Hooks of one kind go into configurations named after their place in the list.
CASES: dict[str, tuple[list[Obj], list[tuple[str, str, Any, str]]]] = {
    **{f"mutating-{name}": ([hook(f"/{name}")], [create()]) for name in _ANSWERS},
    **{f"validating-{name}": ([hook(f"/{name}", kind="validating")], [create()]) for name in _JUDGEMENTS},
    "slow": ([hook("/slow", timeoutSeconds=1)], [create()]),
    "slow-but-optional": ([hook("/slow", timeoutSeconds=1, failurePolicy="Ignore")], [create()]),
    "failure-is-ignored": ([hook("/error", failurePolicy="Ignore")], [create()]),
    "bad-answer-is-ignored": ([hook("/other-uid", failurePolicy="Ignore")], [create()]),
    "bad-patch-is-not-ignored": ([hook("/bad-patch", failurePolicy="Ignore")], [create()]),
    "denial-is-not-ignored": ([hook("/deny", failurePolicy="Ignore")], [create()]),
    "every-operation": ([hook("/allow"), hook("/allow", kind="validating")], [create(), change(), remove()]),
    "only-updates": (
        [hook("/deny", rules=[{**CONFIG_MAPS, "operations": ["UPDATE"]}])],
        [create(), change(), remove()],
    ),
    "deletion-is-denied": (
        [hook("/deny-with-message", kind="validating", rules=[{**CONFIG_MAPS, "operations": ["DELETE"]}])],
        [create(), remove()],
    ),
    "dry-run": ([hook("/label-a", sideEffects="NoneOnDryRun")], [DRY]),
    "two-in-order": ([hook("/label-a"), hook("/count")], [create()]),
    "two-in-the-other-order": ([hook("/count"), hook("/label-a")], [create()]),
    "asked-again": ([hook("/count", reinvocationPolicy="IfNeeded"), hook("/label-a")], [create()]),
    "asked-again-once": (
        [
            hook("/count", reinvocationPolicy="IfNeeded"),
            hook("/label-a", reinvocationPolicy="IfNeeded"),
            hook("/label-b"),
        ],
        [create()],
    ),
    "not-asked-again-for-nothing": (
        [hook("/label-a", reinvocationPolicy="IfNeeded"), hook("/empty-patch")],
        [create()],
    ),
    "first-denial-ends-it": ([hook("/deny"), hook("/label-a")], [create()]),
    "object-selector": (
        [hook("/deny", objectSelector={"matchLabels": {"watched": "yes"}})],
        [create("a"), create("b", {"watched": "yes"})],
    ),
    "object-selector-sees-the-old-object": (
        [
            hook(
                "/deny",
                rules=[{**CONFIG_MAPS, "operations": ["UPDATE"]}],
                objectSelector={"matchExpressions": [{"key": "watched", "operator": "Exists"}]},
            )
        ],
        [
            create("a", {"watched": "yes"}),
            ("PATCH", "/api/v1/namespaces/{ns}/configmaps/a", {"metadata": {"labels": None}}, MERGE),
        ],
    ),
    "other-namespaces": ([hook("/deny", namespaceSelector={"matchLabels": {"no-such": "label"}})], [create()]),
    "cluster-scope": ([hook("/deny", rules=[{**CONFIG_MAPS, "scope": "Cluster"}])], [create()]),
    "namespaced-scope": ([hook("/deny", rules=[{**CONFIG_MAPS, "scope": "Namespaced"}])], [create()]),
    "other-group": ([hook("/deny", rules=rule("configmaps", "apps"))], [create()]),
    "any-resource": ([hook("/deny", rules=rule("*", "*", "*"))], [create()]),
    "subresource": (
        [hook("/deny", rules=rule("deployments/status", "apps"))],
        [
            MAKE_DEPLOYMENT,
            ("PATCH", "/apis/apps/v1/namespaces/{ns}/deployments/d/status", {"status": {"replicas": 1}}, MERGE),
        ],
    ),
    "not-the-subresource": (
        [hook("/deny", rules=[{**rule("deployments", "apps")[0], "operations": ["UPDATE"]}])],
        [
            MAKE_DEPLOYMENT,
            ("PATCH", "/apis/apps/v1/namespaces/{ns}/deployments/d/status", {"status": {"replicas": 1}}, MERGE),
        ],
    ),
    "scale": ([hook("/allow", rules=rule("deployments/scale", "apps"))], [MAKE_DEPLOYMENT, SCALE]),
    "scale-changed": ([hook("/scale-to-five", rules=rule("*/scale", "*"))], [MAKE_DEPLOYMENT, SCALE]),
    "another-version": ([hook("/allow", rules=SCALER_V2)], [MAKE_SCALER]),
    "another-version-changed": ([hook("/label-a", rules=SCALER_V2)], [MAKE_SCALER]),
    "another-version-but-exact": ([hook("/deny", rules=SCALER_V2, matchPolicy="Exact")], [MAKE_SCALER]),
    "pod-gets-another-priority": ([hook("/prioritise", rules=rule("pods"))], [MAKE_POD]),
    "pod-gets-half-a-priority": ([hook("/prioritise-by-name-only", rules=rule("pods"))], [MAKE_POD]),
    "pod-gets-its-tolerations-back": ([hook("/no-tolerations", rules=rule("pods"))], [MAKE_POD]),
    "binding": (
        [hook("/deny-with-message", rules=rule("pods/binding"))],
        [MAKE_POD, ("POST", "/api/v1/namespaces/{ns}/pods/p/binding", {"target": {"name": "n"}}, "")],
    ),
    "eviction": (
        [hook("/deny-with-message", kind="validating", rules=rule("pods/eviction"))],
        [MAKE_POD, ("POST", "/api/v1/namespaces/{ns}/pods/p/eviction", {"metadata": {"name": "p"}}, "")],
    ),
    "eviction-is-no-deletion": (
        [hook("/deny", kind="validating", rules=[{**rule("pods")[0], "operations": ["DELETE"]}])],
        [MAKE_POD, ("POST", "/api/v1/namespaces/{ns}/pods/p/eviction", {"metadata": {"name": "p"}}, "")],
    ),
    "configurations-are-exempt": (
        [hook("/deny", rules=rule("*", "*", "*"), namespaceSelector={})],
        [
            (
                "POST",
                "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations?dryRun=All",
                {"metadata": {"name": "{ns}-other"}},
                "",
            )
        ],
    ),
    "condition-holds": ([hook("/deny", matchConditions=[condition("object.data.k == 'v'")])], [create()]),
    "condition-does-not-hold": ([hook("/deny", matchConditions=[condition("object.data.k != 'v'")])], [create()]),
    "condition-on-the-request": (
        [hook("/deny", kind="validating", matchConditions=[condition("request.operation == 'DELETE'")])],
        [create(), change(), remove()],
    ),
    "condition-on-the-old-object": (
        [hook("/deny", kind="validating", matchConditions=[condition("oldObject != null && oldObject.data.k == 'v'")])],
        [create(), change()],
    ),
    "condition-with-a-fault": ([hook("/allow", matchConditions=[condition("object.data.x == 'v'")])], [create()]),
    "condition-with-a-fault-ignored": (
        [hook("/deny", failurePolicy="Ignore", matchConditions=[condition("object.data.x == 'v'")])],
        [create()],
    ),
    "condition-with-a-fault-beside-a-false-one": (
        [hook("/deny", matchConditions=[condition("object.data.x == 'v'"), condition("false", "no")])],
        [create()],
    ),
    "condition-sees-what-hooks-before-changed": (
        [hook("/label-a"), hook("/deny", matchConditions=[condition("'a' in object.metadata.labels")])],
        [create()],
    ),
    "nobody-there": ([hook("/x", url="https://127.0.0.1:9/x")], [create()]),
    "unknown-authority": ([hook("/allow", caBundle="")], [create()]),
    "no-such-service": (
        [hook("/allow", service={"namespace": "{ns}", "name": "nobody", "path": "/allow", "port": 8443})],
        [create()],
    ),
}


def configurations(case: str, server: WebhookServer, ns: str) -> list[tuple[str, Obj]]:
    """Collection path and object of each webhook configuration of a case."""
    made = []
    for index, stated in enumerate(CASES[case][0]):
        more = dict(stated)
        kind, path = more.pop("kind"), more.pop("path")
        client: Obj = {"url": more.pop("url", server.url + path), "caBundle": more.pop("caBundle", server.ca_bundle)}
        if "service" in more:
            client = {"service": filled(more.pop("service"), ns), "caBundle": server.ca_bundle}
        webhook = {
            "clientConfig": client,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 5,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ns}},
            **more,
        }
        obj = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": KINDS[kind],
            "metadata": {"name": f"{ns}-{index}"},
            "webhooks": [webhook],
        }
        made.append((f"/apis/admissionregistration.k8s.io/v1/{KINDS[kind].lower()}s", obj))
    return made


def filled(value: Any, ns: str) -> Any:
    if isinstance(value, dict):
        return {key: filled(item, ns) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, ns) for item in value]
    return value.replace("{ns}", ns) if isinstance(value, str) else value


_HIDDEN = {"managedFields", "resourceVersion", "userInfo", "uid"}


def comparable(value: Any, ns: str) -> Any:
    """Without what differs from server to server and from run to run."""
    if isinstance(value, dict):
        return {key: comparable(item, ns) for key, item in value.items() if key not in _HIDDEN}
    if isinstance(value, list):
        return [comparable(item, ns) for item in value]
    if isinstance(value, str):
        text = _PORT.sub("<webhook>", value.replace(ns, "{ns}"))
        return _UID.sub("<uid>", _TIME.sub("<time>", text))
    return value


async def play(case: str, send: Send, server: WebhookServer, ns: str, settle: Callable[[], Awaitable[None]]) -> Obj:
    """Answers to the requests and what the webhooks were asked. `settle` waits until a configuration is in force."""
    server.reviews.clear()
    answers = []
    registered = configurations(case, server, ns)
    for path, obj in registered:
        status, body, _ = await send("POST", path, obj, "")
        assert status == 201, body
    await settle()
    for method, path, body, form in CASES[case][1]:
        status, answer, warnings = await send(method, path.replace("{ns}", ns), filled(body, ns), form)
        answers.append({"status": status, "body": comparable(answer, ns), "warnings": warnings})
    for path, obj in registered:
        await send("DELETE", f"{path}/{obj['metadata']['name']}", None, "")
    asked = [
        {"path": path, "request": comparable(review["request"], ns)}
        for path, review in server.reviews
        # A real server renews a lease of its own now and then, and asks its webhooks like anybody.
        if review["request"]["userInfo"].get("username") != "system:apiserver"
    ]
    return {"answers": answers, "asked": asked}
