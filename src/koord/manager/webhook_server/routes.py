"""The table of webhooks (path, gate and webhook configuration entries of each), and the entries that a webhook
configuration must have so that API servers reach and trust this server. Pure.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from koord.api.model import Obj, decode_text
from koord.manager.webhook_server.cert_store import parse_authorities
from koord.telemetry.certificates import certificate_pem
from koord.values.json_text import MalformedText

REVIEW_VERSIONS = ("v1", "v1beta1")
TIMEOUT_S = 30
# A label on the namespace, by which its owner keeps all of these webhooks away.
_OWN_CONTROL_PLANE: Obj = {"matchExpressions": [{"key": "control-plane", "operator": "DoesNotExist"}]}


class WebhookEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a webhook configuration. Several may lead to one path."""

    name: str
    operations: tuple[str, ...]
    group: str = ""
    version: str = "v1"
    resources: tuple[str, ...]
    failure_policy: Literal["Ignore", "Fail"] = "Ignore"
    namespace_selector: Obj | None = msgspec.field(default_factory=lambda: _OWN_CONTROL_PLANE)
    object_selector: Obj | None = None  # label selector
    timeout_s: int = TIMEOUT_S
    review_versions: tuple[str, ...] = REVIEW_VERSIONS
    side_effects: str = "None"


class WebhookRoute(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    gate: str
    mutates: bool
    object_type: str  # as metrics name it
    entries: tuple[WebhookEntry, ...]
    # System namespaces and this product's own are never sent here: what repairs the cluster must not depend on us.
    excludes_system: bool = False
    # The gate under which manifests register it, where serving it is not enough: registered by request only.
    registration_gate: str = ""


_SCHEDULING_GROUP = "scheduling.koordinator.sh"
_SIGS_SCHEDULING_GROUP = "scheduling.sigs.k8s.io"

ROUTES: tuple[WebhookRoute, ...] = (
    WebhookRoute(
        path="/mutate-pod",
        gate="PodMutatingWebhook",
        mutates=True,
        object_type="pod",
        excludes_system=True,
        entries=(
            WebhookEntry(name="mpod-create.koordinator.sh", operations=("CREATE",), resources=("pods",)),
            WebhookEntry(
                name="mpod-update.koordinator.sh",
                operations=("UPDATE",),
                resources=("pods",),
                object_selector={"matchLabels": {"pod.koordinator.sh/mutating-update": "true"}},
            ),
        ),
    ),
    WebhookRoute(
        path="/validate-pod",
        gate="PodValidatingWebhook",
        mutates=False,
        object_type="pod",
        excludes_system=True,
        entries=(WebhookEntry(name="vpod.koordinator.sh", operations=("CREATE", "UPDATE"), resources=("pods",)),),
    ),
    WebhookRoute(
        path="/validate-pod-binding",
        gate="PodValidatingWebhook",
        registration_gate="BindingAdmissionWebhook",
        mutates=False,
        object_type="pod",
        excludes_system=True,
        entries=(WebhookEntry(name="vpodbinding.koordinator.sh", operations=("CREATE",), resources=("pods/binding",)),),
    ),
    WebhookRoute(
        path="/mutate-scheduling-sigs-k8s-io-v1alpha1-elasticquota",
        gate="ElasticMutatingWebhook",
        mutates=True,
        object_type="elasticquota",
        entries=(
            WebhookEntry(
                name="melasticquota.koordinator.sh",
                operations=("CREATE",),
                group=_SIGS_SCHEDULING_GROUP,
                version="v1alpha1",
                resources=("elasticquotas",),
            ),
        ),
    ),
    WebhookRoute(
        path="/validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota",
        gate="ElasticValidatingWebhook",
        mutates=False,
        object_type="elasticquota",
        entries=(
            WebhookEntry(
                name="velasticquota.koordinator.sh",
                operations=("CREATE", "UPDATE", "DELETE"),
                group=_SIGS_SCHEDULING_GROUP,
                version="v1alpha1",
                resources=("elasticquotas",),
            ),
        ),
    ),
    WebhookRoute(
        path="/mutate-node-status",
        gate="NodeMutatingWebhook",
        mutates=True,
        object_type="node",
        entries=(
            WebhookEntry(
                name="mnode-status.koordinator.sh",
                operations=("CREATE", "UPDATE"),
                resources=("nodes/status",),
                namespace_selector=None,
            ),
        ),
    ),
    WebhookRoute(
        path="/validate-node",
        gate="NodeValidatingWebhook",
        mutates=False,
        object_type="node",
        entries=(
            WebhookEntry(
                name="vnode.koordinator.sh",
                operations=("CREATE", "UPDATE"),
                resources=("nodes",),
                namespace_selector=None,
            ),
        ),
    ),
    WebhookRoute(
        path="/validate-nodeslo",  # ours: values that no koordlet can use
        gate="NodeSLOValidatingWebhook",
        mutates=False,
        object_type="nodeslo",
        entries=(
            WebhookEntry(
                name="vnodeslo.koordinator.sh",
                operations=("CREATE", "UPDATE"),
                group="slo.koordinator.sh",
                version="v1alpha1",
                resources=("nodeslos",),
                namespace_selector=None,
                timeout_s=10,
            ),
        ),
    ),
    WebhookRoute(
        path="/validate-configmap",
        gate="ConfigMapValidatingWebhook",
        mutates=False,
        object_type="configmap",
        entries=(
            WebhookEntry(
                name="vconfigmap.koordinator.sh",
                operations=("CREATE", "UPDATE", "DELETE"),
                resources=("configmaps",),
                failure_policy="Fail",
                namespace_selector=None,
                object_selector={"matchLabels": {"koordinator.sh/configmap-type": "slo-controller-config"}},
                timeout_s=10,
            ),
        ),
    ),
    WebhookRoute(
        path="/mutate-reservation",
        gate="ReservationMutatingWebhook",
        mutates=True,
        object_type="reservation",
        entries=(
            WebhookEntry(
                name="mreservation-create.koordinator.sh",
                operations=("CREATE",),
                group=_SCHEDULING_GROUP,
                version="v1alpha1",
                resources=("reservations",),
                namespace_selector=None,
            ),
        ),
    ),
)


def served_routes(gates: Mapping[str, bool]) -> tuple[WebhookRoute, ...]:
    """Return the routes whose gate is on; none when webhooks are switched off as a whole."""
    if not gates["WebhookFramework"]:
        return ()
    return tuple(route for route in ROUTES if gates[route.gate])


def registered_routes(gates: Mapping[str, bool]) -> tuple[WebhookRoute, ...]:
    """Return the routes that manifests register with API servers."""
    return tuple(
        route for route in served_routes(gates) if not route.registration_gate or gates[route.registration_gate]
    )


TEMPLATE_ANNOTATION = "template"  # annotation: the entries before this program changed them
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"


class WebhookAddress(msgspec.Struct, frozen=True, kw_only=True):
    """WebhookAddress states how API servers reach the server: a service of the cluster, or a host outside of it."""

    namespace: str
    service: str
    host: str = ""
    port: int = 9876

    @property
    def dns_name(self) -> str:
        return self.host or f"{self.service}.{self.namespace}.svc"

    def url(self, path: str) -> str:
        """Return the URL as an API server calls it; a service is always called at 443."""
        return f"https://{self.host}:{self.port}{path}" if self.host else f"https://{self.dns_name}:443{path}"


class DesiredWebhooks(msgspec.Struct, frozen=True):
    webhooks: list[Obj]
    template: str


def desired_webhooks(
    current: Obj,
    address: WebhookAddress,
    *,
    trusted: bytes,
    paths: Container[str],
    excluded: Sequence[str] = (),
    excluding: Container[str] = (),
) -> DesiredWebhooks:
    """Return the entries that `current` should have.

    `trusted` is the PEM of the CAs, `paths` what this server answers. Entries for other paths are left out, but stay in
    the template, so that they come back when their gate is switched on. Entries for a path in `excluding` never see the
    namespaces in `excluded`.
    """
    template = _saved_template(current)
    bundle = base64.b64encode(trusted).decode()
    entries = []
    for entry in template:
        path = entry_path(entry)
        if path not in paths:
            continue
        entry = {**entry, "clientConfig": _client_config(path, address, bundle)}
        if path in excluding and excluded:
            entry["namespaceSelector"] = exclude_namespaces(entry.get("namespaceSelector") or {}, excluded)
        entries.append(entry)
    return DesiredWebhooks(entries, json.dumps(template, separators=(",", ":")))


def is_up_to_date(current: Obj, target: DesiredWebhooks) -> bool:
    """Return whether the configuration has all desired fields; what the API server added does not matter."""
    return (
        _covers(current.get("webhooks") or [], target.webhooks)
        and _annotations(current).get(TEMPLATE_ANNOTATION) == target.template
    )


def build_patch(target: DesiredWebhooks) -> Obj:
    return {"metadata": {"annotations": {TEMPLATE_ANNOTATION: target.template}}, "webhooks": target.webhooks}


def entry_path(entry: Obj) -> str:
    client = entry.get("clientConfig") or {}
    if client.get("service"):
        return str(client["service"].get("path") or "/")
    return urlsplit(client.get("url") or "").path or "/"


def trusted_bundle(current: Obj) -> bytes:
    """Return every CA that any entry trusts."""
    found: dict[bytes, None] = {}
    for entry in current.get("webhooks") or []:
        for certificate in parse_authorities(_entry_ca_bundle(entry)):
            found[certificate_pem(certificate)] = None
    return b"".join(found)


def merge_authorities(authority: bytes, others: Iterable[bytes], now: datetime.datetime) -> bytes:
    """Return `authority` first, then those of `others` that differ from it and have not expired."""
    found = dict.fromkeys(parse_authorities(authority))
    for bundle in others:
        for certificate in parse_authorities(bundle):
            if certificate.not_valid_after_utc > now:
                found.setdefault(certificate)
    return b"".join(certificate_pem(certificate) for certificate in found)


def _saved_template(current: Obj) -> list[Obj]:
    """Return the saved entries, else the current. An empty saved list counts as none: it would lock entries out."""
    saved = decode_text(_annotations(current).get(TEMPLATE_ANNOTATION) or "[]", list[Obj])
    entries = current.get("webhooks") or [] if isinstance(saved, MalformedText) or not saved else saved
    return [_without_ca_bundle(entry) for entry in entries]


def _without_ca_bundle(entry: Obj) -> Obj:
    client = {key: value for key, value in (entry.get("clientConfig") or {}).items() if key != "caBundle"}
    return {**entry, "clientConfig": client}


def _client_config(path: str, address: WebhookAddress, bundle: str) -> Obj:
    if address.host:
        return {"caBundle": bundle, "url": address.url(path)}
    return {"caBundle": bundle, "service": {"namespace": address.namespace, "name": address.service, "path": path}}


def exclude_namespaces(selector: Obj, names: Sequence[str]) -> Obj:
    expressions = list(selector.get("matchExpressions") or [])
    for expression in expressions:
        if expression.get("key") == NAMESPACE_NAME_LABEL and expression.get("operator") == "NotIn":
            missing = [name for name in names if name not in expression["values"]]
            if not missing:
                return selector
    return {
        **selector,
        "matchExpressions": [*expressions, {"key": NAMESPACE_NAME_LABEL, "operator": "NotIn", "values": list(names)}],
    }


def _entry_ca_bundle(entry: Obj) -> bytes:
    try:
        return base64.b64decode((entry.get("clientConfig") or {}).get("caBundle") or "", validate=True)
    except binascii.Error:
        return b""


def _annotations(current: Obj) -> dict[str, str]:
    return (current.get("metadata") or {}).get("annotations") or {}


def _covers(current: Any, target: Any) -> bool:
    if isinstance(target, dict):
        return isinstance(current, dict) and all(_covers(current.get(key), value) for key, value in target.items())
    if isinstance(target, list):
        same = isinstance(current, list) and len(current) == len(target)
        return same and all(map(_covers, current, target))
    return bool(current == target)
