"""The table of webhooks: the path, gate and webhook configuration entries of each. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Obj = dict[str, Any]

REVIEW_VERSIONS = ("v1", "v1beta1")
TIMEOUT_S = 30
# A label on the namespace, by which its owner keeps all of these webhooks away.
_OWN_CONTROL_PLANE: Obj = {"matchExpressions": [{"key": "control-plane", "operator": "DoesNotExist"}]}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a webhook configuration. Several may lead to one path."""

    name: str
    operations: tuple[str, ...]
    group: str
    version: str
    resources: tuple[str, ...]
    failure_policy: Literal["Ignore", "Fail"] = "Ignore"
    namespaces: Obj | None = msgspec.field(default_factory=lambda: _OWN_CONTROL_PLANE)
    objects: Obj | None = None  # label selector
    timeout_s: int = TIMEOUT_S
    review_versions: tuple[str, ...] = REVIEW_VERSIONS
    side_effects: str = "None"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    gate: str
    mutates: bool
    object_type: str  # as metrics name it
    entries: tuple[Entry, ...]
    # System namespaces and this product's own are never sent here: what repairs the cluster must not depend on us.
    excludes_system: bool = False
    # The gate under which manifests register it, where serving it is not enough: registered by request only.
    registered: str = ""


_SCHEDULING = "scheduling.koordinator.sh"
_SIGS = "scheduling.sigs.k8s.io"

ROUTES: tuple[Route, ...] = (
    Route(
        path="/mutate-pod",
        gate="PodMutatingWebhook",
        mutates=True,
        object_type="pod",
        excludes_system=True,
        entries=(
            Entry(
                name="mpod-create.koordinator.sh",
                operations=("CREATE",),
                group="",
                version="v1",
                resources=("pods",),
            ),
            Entry(
                name="mpod-update.koordinator.sh",
                operations=("UPDATE",),
                group="",
                version="v1",
                resources=("pods",),
                objects={"matchLabels": {"pod.koordinator.sh/mutating-update": "true"}},
            ),
        ),
    ),
    Route(
        path="/validate-pod",
        gate="PodValidatingWebhook",
        mutates=False,
        object_type="pod",
        excludes_system=True,
        entries=(
            Entry(
                name="vpod.koordinator.sh",
                operations=("CREATE", "UPDATE"),
                group="",
                version="v1",
                resources=("pods",),
            ),
        ),
    ),
    Route(
        path="/validate-pod-binding",
        gate="PodValidatingWebhook",
        registered="BindingAdmissionWebhook",
        mutates=False,
        object_type="pod",
        excludes_system=True,
        entries=(
            Entry(
                name="vpodbinding.koordinator.sh",
                operations=("CREATE",),
                group="",
                version="v1",
                resources=("pods/binding",),
            ),
        ),
    ),
    Route(
        path="/mutate-scheduling-sigs-k8s-io-v1alpha1-elasticquota",
        gate="ElasticMutatingWebhook",
        mutates=True,
        object_type="elasticquota",
        entries=(
            Entry(
                name="melasticquota.koordinator.sh",
                operations=("CREATE",),
                group=_SIGS,
                version="v1alpha1",
                resources=("elasticquotas",),
            ),
        ),
    ),
    Route(
        path="/validate-scheduling-sigs-k8s-io-v1alpha1-elasticquota",
        gate="ElasticValidatingWebhook",
        mutates=False,
        object_type="elasticquota",
        entries=(
            Entry(
                name="velasticquota.koordinator.sh",
                operations=("CREATE", "UPDATE", "DELETE"),
                group=_SIGS,
                version="v1alpha1",
                resources=("elasticquotas",),
            ),
        ),
    ),
    Route(
        path="/mutate-node-status",
        gate="NodeMutatingWebhook",
        mutates=True,
        object_type="node",
        entries=(
            Entry(
                name="mnode-status.koordinator.sh",
                operations=("CREATE", "UPDATE"),
                group="",
                version="v1",
                resources=("nodes/status",),
                namespaces=None,
            ),
        ),
    ),
    Route(
        path="/validate-node",
        gate="NodeValidatingWebhook",
        mutates=False,
        object_type="node",
        entries=(
            Entry(
                name="vnode.koordinator.sh",
                operations=("CREATE", "UPDATE"),
                group="",
                version="v1",
                resources=("nodes",),
                namespaces=None,
            ),
        ),
    ),
    Route(
        path="/validate-configmap",
        gate="ConfigMapValidatingWebhook",
        mutates=False,
        object_type="configmap",
        entries=(
            Entry(
                name="vconfigmap.koordinator.sh",
                operations=("CREATE", "UPDATE", "DELETE"),
                group="",
                version="v1",
                resources=("configmaps",),
                failure_policy="Fail",
                namespaces=None,
                objects={"matchLabels": {"koordinator.sh/configmap-type": "slo-controller-config"}},
                timeout_s=10,
            ),
        ),
    ),
    Route(
        path="/mutate-reservation",
        gate="ReservationMutatingWebhook",
        mutates=True,
        object_type="reservation",
        entries=(
            Entry(
                name="mreservation-create.koordinator.sh",
                operations=("CREATE",),
                group=_SCHEDULING,
                version="v1alpha1",
                resources=("reservations",),
                namespaces=None,
            ),
        ),
    ),
)


def served(gates: Mapping[str, bool]) -> tuple[Route, ...]:
    """Return the routes whose gate is on; none when webhooks are switched off as a whole."""
    if not gates["WebhookFramework"]:
        return ()
    return tuple(route for route in ROUTES if gates[route.gate])


def configured(gates: Mapping[str, bool]) -> tuple[Route, ...]:
    """Return the routes that manifests register with API servers."""
    return tuple(route for route in served(gates) if not route.registered or gates[route.registered])
