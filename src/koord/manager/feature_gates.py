"""The feature gates of koord-manager, each with what it switches and the module that reads it.

This table drives parsing, the sentences about gates without effect, and the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.config.gates import ALPHA, BETA, FeatureGate, feature_gate_warnings

_ROUTES = "webhook_server.routes"
_QUOTA_ADMISSION = "EnableQuotaAdmission"
_SCHEDULER_ONLY = "koord-scheduler alone reads it; set it there"
_DESCHEDULER_ONLY = "koord-descheduler alone reads it; set it there"


class ManagerGate(FeatureGate, frozen=True, kw_only=True):
    """A gate of koord-manager, its reader below koord.manager, and the gates without which it has no effect."""

    reader: str = ""
    needs: tuple[str, ...] = ()


def _on(effect: str, reader: str = _ROUTES) -> ManagerGate:
    return ManagerGate(True, BETA, effect, reader=reader)


def _off(effect: str, reader: str = _ROUTES, *needs: str) -> ManagerGate:
    return ManagerGate(False, ALPHA, effect, reader=reader, needs=needs)


MANAGER_GATES: Mapping[str, ManagerGate] = {
    "WebhookFramework": _on("serve webhooks at all"),
    "PodMutatingWebhook": _on("serve /mutate-pod: profiles, batch resources, GPU requests"),
    "PodValidatingWebhook": _on("serve /validate-pod and /validate-pod-binding"),
    # Named so on the wire, though they are about quotas.
    "ElasticMutatingWebhook": _on("serve the defaulting of ElasticQuotas"),
    "ElasticValidatingWebhook": _on("serve the checks of ElasticQuotas"),
    "NodeSLOValidatingWebhook": _on("serve /validate-nodeslo: values that no koordlet can use (not in Koordinator)"),
    "NodeMutatingWebhook": _off("serve /mutate-node-status: amplified allocatable"),
    "NodeValidatingWebhook": _off("serve /validate-node: labels that match one strategy of each document"),
    "ConfigMapValidatingWebhook": _off("serve /validate-configmap: the documents of slo-controller-config"),
    "ReservationMutatingWebhook": _off("serve /mutate-reservation: profiles on Reservations"),
    "BindingAdmissionWebhook": _off(
        "refuse bindings by users that --binding-admission-user-name does not name", "webhook_server.handlers"
    ),
    "ColocationProfileSkipMutatingResources": _off(
        "profiles leave cpu and memory as they are", "webhooks.pod_mutating"
    ),
    "ColocationProfileSkipValidatingPriority": _off(
        "the label koordinator.sh/priority of a pod may change", "webhooks.pod_validating"
    ),
    "DisableExtendedResourceSpec": _off("write no extended-resource-spec annotation", "webhooks.pod_mutating"),
    "DisableDeviceResourceSpec": _off("leave GPU requests as they are", "webhooks.pod_mutating"),
    "ValidatePodDeviceResource": _off("refuse GPU requests that no card can satisfy", "webhooks.pod_validating"),
    "EnablePodEnhancedValidator": _off(
        "require labels of pods, by the ConfigMap pod-enhanced-validator-config", "webhooks.pod_validating"
    ),
    "ColocationProfileController": _off(
        "apply profiles to pods that wait for a node", "controllers.colocation_profile"
    ),
    "EnableSyncGPUSharedResource": _off(
        "nodes offer koordinator.sh/gpu.shared, which pods that share GPUs ask for",
        "controllers.noderesource",
    ),
    "MultiQuotaTree": _off("keep pods of a quota tree on the nodes of its profile", "webhooks.pod_mutating"),
    "DisableDefaultQuota": _off("pods without a quota label belong to none", "webhooks.pod_validating"),
    "SupportParentQuotaSubmitPod": _off("pods may belong to a quota with children", "webhooks.pod_validating"),
    "ElasticQuotaGuaranteeUsage": _off("check that a tree can guarantee the mins below it", "quota_topology_cache"),
    "ElasticQuotaEnableUpdateResourceKey": _off(
        "a quota's max may name fewer resources than its parent's", "quota_topology_cache"
    ),
    _QUOTA_ADMISSION: _off("refuse pods that exceed their quota when they are created", "quota_topology_cache"),
    "EnableQuotaAdmissionOnUpdate": _off(
        "check a pod again that is moved to another quota", "quota_topology_cache", _QUOTA_ADMISSION
    ),
    "ElasticQuotaIgnorePodOverhead": _off(
        "the overhead of pods does not count at admission", "quota_topology_cache", _QUOTA_ADMISSION
    ),
    "ElasticQuotaEvaluationTransformPod": _off(
        "count pods at admission as transformers change them",
        "quota_topology_cache",
        _QUOTA_ADMISSION,
        "ReplaceResourcesTransformer",
    ),
    "ReplaceResourcesTransformer": _off(
        "the annotation replace-resources changes what a pod counts for",
        "quota_topology_cache",
        "ElasticQuotaEvaluationTransformPod",
    ),
    "PriorityTransformer": ManagerGate(
        False, ALPHA, "pods without a priority have the default of their class", why=_SCHEDULER_ONLY
    ),
    "PreemptionPolicyTransformer": ManagerGate(
        False, ALPHA, "a label decides whether a pod may preempt", why=_SCHEDULER_ONLY
    ),
    "DisablePVCReservation": ManagerGate(
        False, BETA, "reservations for migrated pods leave their volume claims out", why=_DESCHEDULER_ONLY
    ),
}

# Where koord installs koord-manager. Its webhook makes pods that share GPUs ask for koordinator.sh/gpu.shared, which
# nodes offer behind this gate alone: with Koordinator's defaults such pods fit nowhere.
SHIPPED_MANAGER_GATES = "EnableSyncGPUSharedResource=true"


def shipped_manager_gates(stated: str) -> str:
    """Return the text of the gates of an installed koord-manager; what is stated wins."""
    return ",".join(filter(None, (SHIPPED_MANAGER_GATES, stated)))


def manager_gate_warnings(values: Mapping[str, bool]) -> list[str]:
    """Return a sentence for each gate that was switched without effect."""
    found = feature_gate_warnings(values, MANAGER_GATES)
    for name, gate in MANAGER_GATES.items():
        missing = [other for other in gate.needs if not values[other]]
        if values[name] and missing:
            found.append(f"feature gate {name} is on, which changes nothing without {' and '.join(missing)}")
    return found
