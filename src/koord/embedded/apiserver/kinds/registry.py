"""The table from (group, kind) to the strategy of every built-in kind with rules beyond its schema."""

from __future__ import annotations

from collections.abc import Mapping

from koord.embedded.apiserver.kinds import (
    admission_policy,
    apps,
    config_map_secret,
    cron_job,
    daemon_set,
    defaults_only,
    device_claim,
    event,
    job,
    node,
    persistent_volume,
    rbac,
    resource_quota,
    resource_slice,
    service,
    stateful_set,
    storage,
    webhook_configuration,
)
from koord.embedded.apiserver.kinds.pod import POD
from koord.embedded.apiserver.kinds.strategy import KindStrategy

_CORE = {
    "ConfigMap": config_map_secret.CONFIG_MAP,
    "Endpoints": defaults_only.ENDPOINTS,
    "Event": event.CORE_EVENT,
    "LimitRange": resource_quota.LIMIT_RANGE,
    "Namespace": node.NAMESPACE,
    "Node": node.NODE,
    "PersistentVolume": persistent_volume.PERSISTENT_VOLUME,
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
    "ResourceSlice": resource_slice.RESOURCE_SLICE,
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
        "MutatingWebhookConfiguration": webhook_configuration.MUTATING_WEBHOOK_CONFIGURATION,
        "ValidatingAdmissionPolicy": admission_policy.VALIDATING_ADMISSION_POLICY,
        "ValidatingAdmissionPolicyBinding": admission_policy.VALIDATING_ADMISSION_POLICY_BINDING,
        "ValidatingWebhookConfiguration": webhook_configuration.VALIDATING_WEBHOOK_CONFIGURATION,
    },
    "apiregistration.k8s.io": {"APIService": defaults_only.API_SERVICE},
    "apps": {
        "ControllerRevision": apps.CONTROLLER_REVISION,
        "DaemonSet": daemon_set.DAEMON_SET,
        "Deployment": apps.DEPLOYMENT,
        "ReplicaSet": apps.REPLICA_SET,
        "StatefulSet": stateful_set.STATEFUL_SET,
    },
    "autoscaling": {"HorizontalPodAutoscaler": defaults_only.AUTOSCALER},
    "batch": {"CronJob": cron_job.CRON_JOB, "Job": job.JOB},
    "coordination.k8s.io": {"Lease": node.LEASE},
    "discovery.k8s.io": {"EndpointSlice": defaults_only.ENDPOINT_SLICE},
    "events.k8s.io": {"Event": event.EVENTS_V1_EVENT},
    "networking.k8s.io": {
        "Ingress": defaults_only.INGRESS,
        "IngressClass": defaults_only.INGRESS_CLASS,
        "NetworkPolicy": defaults_only.NETWORK_POLICY,
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
