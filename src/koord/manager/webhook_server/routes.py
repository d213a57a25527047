"""The table of webhooks: the path, gate and webhook configuration entries of each. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from koord.api.model import Obj

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
