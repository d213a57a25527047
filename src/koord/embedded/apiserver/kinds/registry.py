"""The table from (group, kind) to the strategy of every built-in kind with rules beyond its schema, and the strategies
of those that only get defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.api.model import Obj
from koord.embedded.apiserver.kinds import (
    admission_registration,
    apps,
    config_map_secret,
    cron_job,
    device_claim,
    event,
    job,
    node,
    rbac,
    resource_quota,
    service,
    storage,
    strategy,
)
from koord.embedded.apiserver.kinds.pod import POD
from koord.embedded.apiserver.kinds.strategy import KindStrategy, fill_absent, fill_empty


def _with_generation(*keys: str, default: Any = None) -> KindStrategy:
    """Return the strategy of a kind whose generation follows these fields."""
    return KindStrategy(
        default=default or (lambda obj: None),
        prepare_create=strategy.begin_generation,
        prepare_update=strategy.bump_generation_on(*keys),
    )


# networking.k8s.io -------------------------------------------------------------------------------------------------


def _default_network_policy(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    for side in ("ingress", "egress"):
        for rule in spec.get(side) or ():
            for port in rule.get("ports") or ():
                fill_absent(port, protocol="TCP")
    fill_empty(spec, policyTypes=["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])


def _default_ingress_class(obj: Obj) -> None:
    parameters = (obj.get("spec") or {}).get("parameters")
    if parameters is not None:
        fill_absent(parameters, scope="Cluster")


NETWORK_POLICY = _with_generation("spec", default=_default_network_policy)
INGRESS = _with_generation("spec")
INGRESS_CLASS = _with_generation("spec", default=_default_ingress_class)


# autoscaling -------------------------------------------------------------------------------------------------------

_SCALE_UP = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_SCALE_DOWN = {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}


def _default_autoscaler(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    fill_absent(spec, minReplicas=1)
    if obj.get("apiVersion") == "autoscaling/v1":
        fill_absent(spec, targetCPUUtilizationPercentage=80)
        return
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": 80}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    behavior = spec.get("behavior")
    if behavior is not None:
        for key, wanted in (("scaleUp", _SCALE_UP), ("scaleDown", _SCALE_DOWN)):
            given = behavior.get(key) or {}
            filled = {field: value for field, value in wanted.items() if given.get(field) is None}
            behavior[key] = {**filled, **given}


AUTOSCALER = KindStrategy(default=_default_autoscaler)


# discovery and endpoints -------------------------------------------------------------------------------------------


def _default_endpoints(obj: Obj) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            fill_empty(port, protocol="TCP")


def _default_endpoint_slice(obj: Obj) -> None:
    for port in obj.get("ports") or ():
        fill_absent(port, protocol="TCP", name="")


ENDPOINTS = KindStrategy(default=_default_endpoints)
ENDPOINT_SLICE = _with_generation("addressType", "endpoints", "ports", default=_default_endpoint_slice)


# apiregistration.k8s.io --------------------------------------------------------------------------------------------


def _default_api_service(obj: Obj) -> None:
    service = (obj.get("spec") or {}).get("service")
    if service is not None and service.get("port") is None:
        service["port"] = 443


API_SERVICE = KindStrategy(default=_default_api_service)


_CORE = {
    "ConfigMap": config_map_secret.CONFIG_MAP,
    "Endpoints": ENDPOINTS,
    "Event": event.CORE_EVENT,
    "LimitRange": resource_quota.LIMIT_RANGE,
    "Namespace": node.NAMESPACE,
    "Node": node.NODE,
    "PersistentVolume": storage.PERSISTENT_VOLUME,
    "PersistentVolumeClaim": storage.PERSISTENT_VOLUME_CLAIM,
    "Pod": POD,
    "PodTemplate": apps.POD_TEMPLATE,
    "ReplicationController": apps.REPLICATION_CONTROLLER,
    "ResourceQuota": resource_quota.RESOURCE_QUOTA,
    "Secret": config_map_secret.SECRET,
    "Service": service.SERVICE,
}
_STORAGE = {
    "CSIDriver": storage.CSI_DRIVER,
    "CSINode": storage.CSI_NODE,
    "CSIStorageCapacity": storage.CSI_STORAGE_CAPACITY,
    "StorageClass": storage.STORAGE_CLASS,
    "VolumeAttachment": storage.VOLUME_ATTACHMENT,
}
_RESOURCE = {
    "DeviceClass": device_claim.DEVICE_CLASS,
    "ResourceClaim": device_claim.RESOURCE_CLAIM,
    "ResourceClaimTemplate": device_claim.RESOURCE_CLAIM_TEMPLATE,
    "ResourceSlice": device_claim.RESOURCE_SLICE,
}
_RBAC = {
    "ClusterRole": rbac.CLUSTER_ROLE,
    "ClusterRoleBinding": rbac.CLUSTER_ROLE_BINDING,
    "Role": rbac.ROLE,
    "RoleBinding": rbac.ROLE_BINDING,
}
_GROUPS: Mapping[str, Mapping[str, KindStrategy]] = {
    "": _CORE,
    "admissionregistration.k8s.io": {
        "MutatingWebhookConfiguration": admission_registration.MUTATING_WEBHOOK_CONFIGURATION,
        "ValidatingAdmissionPolicy": admission_registration.VALIDATING_ADMISSION_POLICY,
        "ValidatingAdmissionPolicyBinding": admission_registration.VALIDATING_ADMISSION_POLICY_BINDING,
        "ValidatingWebhookConfiguration": admission_registration.VALIDATING_WEBHOOK_CONFIGURATION,
    },
    "apiregistration.k8s.io": {"APIService": API_SERVICE},
    "apps": {
        "ControllerRevision": apps.CONTROLLER_REVISION,
        "DaemonSet": apps.DAEMON_SET,
        "Deployment": apps.DEPLOYMENT,
        "ReplicaSet": apps.REPLICA_SET,
        "StatefulSet": apps.STATEFUL_SET,
    },
    "autoscaling": {"HorizontalPodAutoscaler": AUTOSCALER},
    "batch": {"CronJob": cron_job.CRON_JOB, "Job": job.JOB},
    "coordination.k8s.io": {"Lease": node.LEASE},
    "discovery.k8s.io": {"EndpointSlice": ENDPOINT_SLICE},
    "events.k8s.io": {"Event": event.EVENTS_V1_EVENT},
    "networking.k8s.io": {
        "Ingress": INGRESS,
        "IngressClass": INGRESS_CLASS,
        "NetworkPolicy": NETWORK_POLICY,
    },
    "node.k8s.io": {"RuntimeClass": node.RUNTIME_CLASS},
    "policy": {"PodDisruptionBudget": apps.POD_DISRUPTION_BUDGET},
    "rbac.authorization.k8s.io": _RBAC,
    "resource.k8s.io": _RESOURCE,
    "scheduling.k8s.io": {"PriorityClass": node.PRIORITY_CLASS},
    "storage.k8s.io": _STORAGE,
}

STRATEGIES: Mapping[tuple[str, str], KindStrategy] = {
    (group, kind): strategy for group, kinds in _GROUPS.items() for kind, strategy in kinds.items()
}
